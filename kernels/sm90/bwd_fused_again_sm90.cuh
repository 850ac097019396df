// bwd_fused_again_sm90.cuh - own rows that see NaN or Inf of a block that the guards cleaned, from global memory: a warp does
// them one by one, a lane every 32nd column, each pair as the definition says it.
#pragma once
#include "sm90/bwd_fused_work_sm90.cuh"

struct Columns {
    float x[4];
};

// Row i of head `head` in a side's first (K or Q) or second (V or dO) operand.
FFPA_DEVICE Columns columns_of(const k_tensor &from, const Work &t, bool keys, int head, int i, int columns)
{
    const i64 batch = keys ? t.seq.k_batch : t.seq.q_batch, row = (keys ? t.seq.k_row : t.seq.q_row) + i;
    const i64 at = batch * from.sb + head * from.sh + row * from.sn;
    Columns r;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int c = 32 * n + (threadIdx.x & 31);
        r.x[n] = c < columns ? element_get_alone(from.data, at + c, DTYPE) : 0.0f;
    }
    return r;
}
FFPA_DEVICE Columns walked_columns(const fused_args &a, const Work &t, int operand, int head, int i)
{
    return columns_of(a.walked[operand], t, !KEYS, KEYS ? t.head * a.group + head : t.head / a.group, i, operand ? DV : D);
}

FFPA_DEVICE float dot(const Columns &a, const Columns &b)
{
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 4; n++) sum = fmaf(a.x[n], b.x[n], sum);
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    return sum;
}

// Is there NaN or Inf in it?
FFPA_DEVICE bool dirty(const Columns &r) { return !(fabsf(r.x[0] * 0.0f + r.x[1] * 0.0f + r.x[2] * 0.0f + r.x[3] * 0.0f) < 1.0f); }

// Does own row r see any of it in a block that was guarded?
FFPA_DEVICE bool sees_dirt(const fused_args &a, const Work &t, int r)
{
    const KeyRange seen = seen_by(t, r);
#pragma unroll 1
    for (int head = 0; head < t.heads; head++) {
#pragma unroll 1
        for (int i = seen.lo; i < seen.hi; i++) {
            if (is_clear(t, i / BN * BN)) continue;
            const bool found = dirty(walked_columns(a, t, 0, head, i)) || (KEYS && dirty(walked_columns(a, t, 1, head, i)));
            if (__any_sync(~0u, found)) return true;
        }
    }
    return false;
}

FFPA_DEVICE void columns_put(const k_tensor &to, const Work &t, int r, const Columns &sum, float factor, int columns)
{
    const i64 batch = KEYS ? t.seq.k_batch : t.seq.q_batch, row = (KEYS ? t.seq.k_row : t.seq.q_row) + r;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int c = 32 * n + (threadIdx.x & 31);
        if (to.data && c < columns)
            element_put(to.data, batch * to.sb + t.head * to.sh + row * to.sn + c * to.sd, DTYPE, sum.x[n] * factor);
    }
}

FFPA_DEVICE void row_again(const fused_args &a, const Work &t, int r)
{
    const Columns own1 = columns_of(a.own[0], t, KEYS, t.head, r, D), own2 = columns_of(a.own[1], t, KEYS, t.head, r, DV);
    const KeyRange seen = seen_by(t, r);
    Columns sum1 = {}, sum2 = {};
#pragma unroll 1
    for (int head = 0; head < t.heads; head++) {
#pragma unroll 1
        for (int i = seen.lo; i < seen.hi; i++) {
            const int query = KEYS ? i : r, query_head = KEYS ? t.head * a.group + head : t.head;
            if (ldg_f32((const float *)a.lse.data + lse_at(a, t, query_head, query)) == -FFPA_INF) continue; // no gradients
            const Numbers of = numbers_of(a, t, query_head, query);
            const Columns x = walked_columns(a, t, 0, head, i), y = walked_columns(a, t, 1, head, i);
            const float p = ex2(fmaf(dot(own1, x), a.unit, of.minus_lse)), ds = p * (dot(own2, y) - of.delta);
#pragma unroll
            for (int n = 0; n < 4; n++) sum1.x[n] = fmaf(ds, x.x[n], sum1.x[n]), sum2.x[n] = fmaf(p, y.x[n], sum2.x[n]);
        }
    }
    columns_put(a.out1, t, r, sum1, a.scores.scale, D);
    if (KEYS) columns_put(a.out2, t, r, sum2, 1.0f, DV);
}

// After this warp's rows are stored.
FFPA_DEVICE void rows_again(const fused_args &a, const Work &t, u32 team)
{
    const int first = t.row + (int)team * 64 + (threadIdx.x >> 5 & 3) * 16;
    __syncwarp();
#pragma unroll 1
    for (int r = first; r < first + 16 && r < t.n; r++)
        if (sees_dirt(a, t, r)) row_again(a, t, r);
}
