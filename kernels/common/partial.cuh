// partial.cuh - joining partial results: which row they are of, and what each part of its keys weighs.
#pragma once
#include "common/sequences.cuh"

struct OutPlace {
    i64 batch, i; // batch entry and row in o and lse
    bool exists;  // rows outside all sequences stay as they are
};

// Of row `row` of all sequences.
FFPA_DEVICE OutPlace out_place(const k_sequences &q, i64 row)
{
    const i64 batch = row / (q.nq > 0 ? q.nq : 1);
    if (!(FFPA_VARLEN && q.cu_q)) return {batch, row - batch * q.nq, true};
    return {0, row, row >= index_at(q.cu_q, q.index64, 0) && row < index_at(q.cu_q, q.index64, q.batch)};
}

// A part with keys never weighs nothing, so that NaN and Inf of its O get through: at least the smallest f32.
FFPA_DEVICE float some_weight(float weight, float lse) { return weight == 0.0f && lse != -FFPA_INF ? __uint_as_float(1) : weight; }

// Weights of at most 32 N parts, all lanes of a warp: part lane + 32 i has weight[i]. `lse`: of part 0; other parts are `stride` on.
// `sink` (FFPA_SINK): the score of a key without a value that belongs to no part. Returns the row's LSE.
template <int N> FFPA_DEVICE float part_weights(const float *lse, i64 stride, int splits, float (&weight)[N], float sink = -FFPA_INF)
{
    const int lane = threadIdx.x & 31;
    float own[N], top = -FFPA_INF, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int s = lane + 32 * i;
        own[i] = s < splits ? lse[s * stride] : -FFPA_INF;
        top = fmaxf(top, own[i]);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    if (FFPA_SINK) top = fmaxf(top, sink);
    const float base = top == -FFPA_INF ? 0.0f : top;
#pragma unroll
    for (int i = 0; i < N; i++) {
        weight[i] = ex2((own[i] - base) * LOG2E);
        sum += weight[i];
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (FFPA_SINK) sum += ex2((sink - base) * LOG2E);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int i = 0; i < N; i++) weight[i] = some_weight(weight[i] * inverse, own[i]);
    return sum == 0.0f ? -FFPA_INF : base + logf(sum);
}
