// softmax_sm90.cuh - from the products Q K^T of one warpgroup, in its accumulator, to scores and to weights.
//
// A thread holds parts of two rows, g = lane / 4 and g + 8: element i of the accumulator is row half (i >> 1) & 1, column
// 8 (i / 4) + 2 (lane & 3) + (i & 1). A row's weights are 2^(x - m): m is its maximum when it was last looked at, and
// moves only when the row grows past it by LAZY. Weights stay below 2^LAZY, and O is rarely touched. With SHARED_SCORES
// x and m are in natural units: a bias near the lowest f32 must not overflow on the way to base 2.
#pragma once
#include "common/scores.cuh"
#include "sm90/ptx_sm90.cuh"

// Do scores come out of score_capped() and score(), or is x = scale * product all there is, and a range of keys?
static constexpr bool SHARED_SCORES = FFPA_SOFTCAP || FFPA_ALIBI || FFPA_MASK;
static constexpr float LAZY = SHARED_SCORES ? 8.0f * LN2 : 8.0f;
static constexpr float HUGE_BASE = 1048576.0f; // beyond it a product and its rounding may be a power of two apart

struct SoftmaxRows {
    float m[2], l[2]; // base and this thread's part of the sum; m = -inf: no key yet
    float r[2];       // what O must still be multiplied with
    float unit;       // log2 units of the numbers in the accumulator: scale * log2(e), or 1 once they are multiplied
    bool moved;       // is there an r other than 1 in this warp?
};

// The sink is a key without a value, which one thread of the four that share a row counts.
FFPA_DEVICE void softmax_begin(SoftmaxRows &w, float unit, const k_scores &c, int h)
{
    w.unit = SHARED_SCORES ? 1.0f : unit > 0.0f ? unit : 1.0f; // else scores_range multiplies
    w.m[0] = w.m[1] = -FFPA_INF;
    w.l[0] = w.l[1] = 0.0f;
    if (!FFPA_SINK) return;
    w.m[0] = w.m[1] = c.sink[h * c.sink_sh] * (SHARED_SCORES ? 1.0f : LOG2E);
    if ((threadIdx.x & 3) == 0 && w.m[0] != -FFPA_INF) w.l[0] = w.l[1] = 1.0f;
}

// -inf where a key is outside `seen`, one range for each of the two rows. `column`: this thread's first key.
template <int N> FFPA_DEVICE void scores_range(float (&s)[N], const KeyRange (&seen)[2], int column)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const KeyRange &r = seen[(i >> 1) & 1];
        const int j = 8 * (i / 4) + (i & 1);
        if (j >= r.hi - column || (FFPA_RANGE && j < r.lo - column)) s[i] = -FFPA_INF;
    }
}

// The scores of scores.cuh, natural units. `inside`: every row sees every key.
template <int N>
FFPA_DEVICE void scores_shared(float (&s)[N], const k_scores &c, const ScoreRow (&row)[2], int column, bool inside)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = score(c, row[(i >> 1) & 1], score_capped(c, s[i]), column + 8 * (i / 4) + (i & 1), inside);
}

template <int N> FFPA_DEVICE void scores_multiply(float (&s)[N], float x)
{
#pragma unroll
    for (int i = 0; i < N; i++) s[i] *= x;
}

// Move the base of rows that grew past it: rare, and only then do the threads of a row need its maximum.
template <int N> FFPA_DEVICE void softmax_base(SoftmaxRows &w, float (&s)[N])
{
    float x[2] = {-FFPA_INF, -FFPA_INF}, y[2] = {-FFPA_INF, -FFPA_INF};
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        x[0] = fmaxf(x[0], fmaxf(s[i], s[i + 1]));
        x[1] = fmaxf(x[1], fmaxf(s[i + 2], s[i + 3]));
        y[0] = fmaxf(y[0], fmaxf(s[i + 4], s[i + 5]));
        y[1] = fmaxf(y[1], fmaxf(s[i + 6], s[i + 7]));
    }
    x[0] = fmaxf(x[0], y[0]) * w.unit, x[1] = fmaxf(x[1], y[1]) * w.unit;
    w.moved = __any_sync(~0u, x[0] > w.m[0] + LAZY || x[1] > w.m[1] + LAZY);
    if (!w.moved) return;
    bool huge = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        x[half] = fmaxf(x[half], __shfl_xor_sync(~0u, x[half], 1));
        x[half] = fmaxf(x[half], __shfl_xor_sync(~0u, x[half], 2));
        const bool moves = x[half] > w.m[half] + LAZY;
        const float base = moves ? x[half] : w.m[half];
        w.r[half] = !moves ? 1.0f : SHARED_SCORES ? exp_of(w.m[half] - base) : ex2(w.m[half] - base);
        w.l[half] *= w.r[half];
        w.m[half] = base;
        huge |= fabsf(base) > HUGE_BASE && base != -FFPA_INF;
    }
    if (!SHARED_SCORES && __any_sync(~0u, huge) && w.unit != 1.0f) {
        scores_multiply(s, w.unit);
        w.unit = 1.0f;
    }
}

// Scores to weights, and their sums.
template <int N> FFPA_DEVICE void softmax_weights(SoftmaxRows &w, float (&s)[N])
{
    float base[2], sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int half = 0; half < 2; half++) base[half] = w.m[half] == -FFPA_INF ? 0.0f : w.m[half]; // -inf - 0, not NaN
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int half = (i >> 1) & 1;
        s[i] = SHARED_SCORES ? exp_of(s[i] - base[half]) : ex2(fmaf(s[i], w.unit, -base[half]));
        sum[half] += s[i];
    }
    w.l[0] += sum[0], w.l[1] += sum[1];
}

// The sum of a whole row.
FFPA_DEVICE float softmax_sum(float l)
{
    l += __shfl_xor_sync(~0u, l, 1);
    return l + __shfl_xor_sync(~0u, l, 2);
}

// Its LSE. The way back from log2 units keeps the bits that scale * log2(e) lost to rounding: m may be large.
FFPA_DEVICE float softmax_lse(float m, float l, float back, float back_rest)
{
    if (l == 0.0f) return -FFPA_INF;
    return SHARED_SCORES ? m + logf(l) : fmaf(m, back, fmaf(m, back_rest, logf(l)));
}
