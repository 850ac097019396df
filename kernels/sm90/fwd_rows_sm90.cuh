// fwd_rows_sm90.cuh - what the forward strategies do with a row: its unit, its end, and its repair.
#pragma once
#include "common/dropout.cuh"
#include "common/scores.cuh"
#include "sm90/parts_sm90.cuh"
#include "sm90/store_sm90.cuh"

// Scores that need more than a scale are finished in natural units (scores.cuh), the others in base 2.
static constexpr bool SCORED = FFPA_MASK || FFPA_SOFTCAP || FFPA_ALIBI;
static constexpr float UNIT = SCORED ? LOG2E : 1.0f;   // from a score's unit to base 2
static constexpr float LAZY = 8.0f / UNIT;             // a base moves only when a row grows past it by 2^8
static constexpr float NO_BASE = -3.402823466e38f;     // of a row that has seen no key: no finite score lies below
static constexpr bool GUARDED = ROW_MASKS || FFPA_VARLEN; // may a row multiply V of a key that it does not see?

struct RowEnd {
    float inverse, lse; // what O is multiplied by
};

// Of a row with base m and sum l.
FFPA_DEVICE RowEnd end_row(const k_scores &c, int head, float m, float l)
{
    float own = 1.0f;
    if (!SCORED) m *= LN2;
    if (FFPA_SINK) { // a key without a value
        const float sink = c.sink[head * c.sink_sh], top = l == 0.0f || sink > m ? sink : m;
        if (sink != -FFPA_INF) own = l == 0.0f ? 0.0f : exp_of(m - top), l = l * own + exp_of(sink - top), m = top;
    }
    return {l == 0.0f ? 0.0f : own / l, l == 0.0f ? -FFPA_INF : m + logf(l)};
}

FFPA_DEVICE u16 *row_at(const k_tensor &t, i64 b, int h, i64 n) { return (u16 *)t.data + b * t.sb + h * t.sh + n * t.sn; }

// A row of a part: its O, and the keys that it is made of. Where rows are done again (GUARDED) every tile is cut, or none.
struct PartRow {
    float *o;
    KeyRange keys;
};
static constexpr int RESULT = FFPA_SPLIT ? F32 : DTYPE;

// A masked key has weight 0, but 0 times NaN or Inf is NaN. Rare: one warp computes a row of O again, a key at a time, from the
// keys that it sees, and replaces what is not finite. Each lane has COUNT columns; negative = none.
template <int COUNT, class Args>
FFPA_DEVICE void row_again(const Args &a, const Sequence &s, int head, int row, const RowEnd &end, float m, const int (&columns)[COUNT],
                           const PartRow &part = {})
{
    const int lane = threadIdx.x & 31, hk = head / a.group;
    ScoreRow r = score_row(a.scores, s, head, row);
    if (FFPA_SPLIT) r.keys = {max(r.keys.lo, part.keys.lo), min(r.keys.hi, part.keys.hi)};
    const u16 *q = row_at(a.q_rows, s.q_batch, head, s.q_row + row);
    float acc[COUNT];
#pragma unroll
    for (int x = 0; x < COUNT; x++) acc[x] = 0.0f;
#pragma unroll 1
    for (int j = r.keys.lo; j < r.keys.hi; j++) {
        const u16 *k = row_at(a.k_rows, s.k_batch, hk, s.k_row + j), *v = row_at(a.v_rows, s.k_batch, hk, s.k_row + j);
        float dot = 0.0f;
#pragma unroll 1
        for (int x = lane; x < FFPA_D; x += 32) dot += element_get(q, x, DTYPE) * element_get(k, x, DTYPE);
#pragma unroll
        for (int x = 16; x > 0; x /= 2) dot += __shfl_xor_sync(~0u, dot, x);
        const float t = SCORED ? score(a.scores, r, score_capped(a.scores, dot), j, true) : dot * a.scale_log2;
        if (SCORED && t == -FFPA_INF) continue;
        float p = ex2((t - m) * UNIT);
        if constexpr (FFPA_DROPOUT) {
            bool keeps[2];
            drop_keeps2(drop_key(a.dropout), s.s * a.hq + head, row, j & ~1, keeps);
            p = (j & 1 ? keeps[1] : keeps[0]) ? p : 0.0f;
        }
#pragma unroll
        for (int x = 0; x < COUNT; x++)
            if (columns[x] >= 0) acc[x] += p * element_get_alone(v, columns[x], DTYPE);
    }
    void *o = FFPA_SPLIT ? (void *)part.o : row_at(a.o, s.q_batch, head, s.q_row + row);
#pragma unroll
    for (int x = 0; x < COUNT; x++)
        if (columns[x] >= 0 && !(fabsf(element_get_alone(o, columns[x], RESULT)) < FFPA_INF))
            element_put(o, columns[x], RESULT, acc[x] * end.inverse);
}
