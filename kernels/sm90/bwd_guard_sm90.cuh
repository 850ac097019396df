// bwd_guard_sm90.cuh - rows and keys that a gradient does not see must not reach it through 0 x NaN or 0 x Inf. In steps
// with a pair that nobody sees, three warps take such elements out of the operand before wgmma reads it; what does see
// them gets them back at the end of the tile. All other elements keep every bit.
#pragma once
#include "common/blocks.cuh"
#include "common/tiles.cuh"
#include "sm90/bwd_work_sm90.cuh"

static constexpr bool GUARDED = ROW_MASKS || FFPA_VARLEN;
static constexpr int GUARDS = 96; // threads

// May a pair of this block of the sum be unseen, or belong to another sequence?
FFPA_DEVICE bool step_guarded(const Item &it, int block)
{
    return FFPA_MASK || (GUARDED && (block < it.clear.from || block >= it.clear.to));
}

// Take NaN and Inf out of `bytes` of shared memory. Were there any? Guard threads. Many loads at once: while this lasts
// the warpgroups run out of steps.
FFPA_DEVICE bool guard_clean(u32 data, int bytes)
{
    const u32 exponents = DTYPE == F16 ? 0x7c007c00u : 0x7f807f80u, lowest = DTYPE == F16 ? 0x04000400u : 0x00800080u;
    bool found = false;
#pragma unroll 8
    for (int at = (threadIdx.x - 32) * 16; at < bytes; at += GUARDS * 16) {
        u32 x[4], bad = 0;
        lds128(x, data + at);
#pragma unroll
        for (int i = 0; i < 4; i++) bad |= (x[i] & exponents) + lowest; // an exponent of ones carries into the sign
        found |= (bad & 0x80008000u) != 0;
    }
    if (!named_any<GUARDS>(3, found)) return false;
#pragma unroll 1
    for (int at = (threadIdx.x - 32) * 16; at < bytes; at += GUARDS * 16) piece_clean(data + at);
    fence_async_proxy();
    named_sync<GUARDS>(3);
    return true;
}

// Element (row, column) of a block of P or dS.
FFPA_DEVICE float weight_in(const u8 *block, int row, int column)
{
    return element_get(block, block_element(row, column), DTYPE);
}

// What guarded steps left out of one element of dV or dK (row: a key) or dQ: 0, Inf or NaN.
FFPA_DEVICE float left_out(const products_args &a, const Item &it, const Sequence &s, int row, int column)
{
    const bool keys = it.product != DQ;
    const k_tensor &t = a.b_rows[it.product];
    const u8 *base = (const u8 *)(it.product == DV ? a.p : a.ds);
    float sum = 0.0f;
#pragma unroll 1
    for (int head = it.heads.from; head < it.heads.to; head++) {
        const i64 rows = keys ? s.q_batch * t.sb + (a.chunk.h0 + head) * t.sh + s.q_row * t.sn
                              : s.k_batch * t.sb + it.head / a.group * t.sh + s.k_row * t.sn;
#pragma unroll 1
        for (int x = it.blocks.from * 64; x < it.blocks.to * 64; x++) {
            if (x % 64 == 0 && !step_guarded(it, x / 64)) {
                x += 63;
                continue;
            }
            const int i = keys ? x : row, j = keys ? row : x; // query, key
            if (i >= s.nq || j >= s.nk) continue;
            const float v = element_get(t.data, rows + x * t.sn + column, DTYPE);
            const KeyRange seen = key_range(a.left, a.right, a.top_left, i, s.nq, s.nk);
            if (fabsf(v) < FFPA_INF || j < seen.lo || j >= seen.hi) continue;
            const float p = weight_in(base + block_at(a, it, head, i / 64, j / 64) * BLOCK, i % 64, j % 64);
            if (!FFPA_MASK || !unseen(p)) sum += p * v;
        }
    }
    return sum;
}

// Give it back to this warpgroup's half of a stored tile; `part`: its partial sums, if they are not finished.
template <int WIDTH> FFPA_DEVICE void guard_restore(const products_args &a, const Item &it, float *part)
{
    typedef Tile<WIDTH> T;
    const int wg = threadIdx.x / 128 - 1, thread = threadIdx.x & 127;
    const Sequence s = sequence_at(a.seq, it.seq);
    const k_tensor &t = a.out_rows[it.product];
    if (thread == 0) bulk_wait<0>(); // the tile is in memory
    fence_async_proxy_global();
    named_sync<128>(1 + wg);
#pragma unroll 1
    for (int x = 0; x < 2 * T::ACC; x++) {
        const int i = x % T::ACC, m = x / T::ACC * 64 + (thread >> 5) * 16 + (i >> 1 & 1) * 8 + (thread & 31) / 4;
        const int n = (i >> 2) * 8 + (thread & 3) * 2 + (i & 1);
        const int row = it.row + (T::TURNED ? n : wg * 128 + m), column = it.column + (T::TURNED ? wg * 128 + m : n);
        if (row < it.begin || row >= it.end || column >= a.columns) continue;
        const float sum = left_out(a, it, s, row, column);
        if (sum == 0.0f) continue;
        const i64 at = it.batch * t.sb + it.head * t.sh + (i64)(it.first_row + row) * t.sn + column;
        if (part)
            part[x * 128] += sum;
        else
            element_put(t.data, at, DTYPE, element_get(t.data, at, DTYPE) + (it.product == DV ? sum : sum * a.scale));
    }
}
