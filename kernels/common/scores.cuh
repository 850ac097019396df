// scores.cuh - what a score is, once for forward, backward and decode:
//     x = scale <q, k>,   t = c tanh(x / c) with softcap c,   s = t + bias - slope |i + Nk - Nq - j|,
//     s = -inf where the mask, causal, window or length forbids key j, or where the bias is -inf.
// In natural units: a bias near the lowest f32 must not overflow on the way to base 2.
#pragma once
#include "common/sequences.cuh"

static constexpr bool ROW_MASKS = FFPA_RANGE || FFPA_MASK; // may rows differ in the keys they see?

// Keys [lo, hi) that causal, window and length leave to query i.
struct KeyRange {
    int lo, hi;
};

FFPA_DEVICE KeyRange key_range(int left, int right, int top_left, int i, int nq, int nk)
{
    if (!FFPA_RANGE) return {0, nk};
    const i64 centre = top_left ? i : (i64)i + nk - nq;
    const int hi = right < 0 ? nk : clamp_int(centre + right + 1, 0, nk);
    const int lo = left < 0 ? 0 : clamp_int(centre - left, 0, hi);
    return {lo, hi};
}

// The same for all queries of a sequence at once: query i sees keys [lo + i, hi + i) of those that exist.
FFPA_DEVICE KeyRange key_line(const k_scores &c, int nq, int nk)
{
    const i64 far = 1 << 30, centre = c.top_left ? 0 : (i64)nk - nq; // sizes are below 2^29
    const i64 hi = FFPA_RANGE && c.right >= 0 ? centre + c.right + 1 : far;
    const i64 lo = FFPA_RANGE && c.left >= 0 ? centre - c.left : -far;
    return {clamp_int(lo, -far, far), clamp_int(hi, -far, far)};
}

// What one thread keeps of one query row.
struct ScoreRow {
    KeyRange keys;
    int diagonal;     // i + Nk - Nq
    float slope;
    const char *mask; // element [b, h, i, 0]
    i64 mask_sd;
};

FFPA_DEVICE ScoreRow score_row(const k_scores &c, const Sequence &s, int h, int i)
{
    ScoreRow r = {key_range(c.left, c.right, c.top_left, i, s.nq, s.nk), i + s.nk - s.nq, 0.0f, 0, 0};
    if (FFPA_ALIBI) r.slope = c.alibi[s.s * c.alibi_sb + h * c.alibi_sh];
    if (FFPA_MASK)
        r.mask = (const char *)c.mask.data +
                 (s.s * c.mask.sb + h * c.mask.sh + i * c.mask.sn) * dtype_size(FFPA_MASK);
    if (FFPA_MASK) r.mask_sd = opaque(c.mask.sd); // else the offsets of all keys stay in registers across rows
    return r;
}

// Before masks: scaled and capped. Backward wants this value too.
FFPA_DEVICE float score_capped(const k_scores &c, float dot)
{
    const float x = dot * c.scale;
    return FFPA_SOFTCAP ? c.softcap * tanhf(x / c.softcap) : x;
}

// score() in two steps, for kernels that fetch ahead (in one they would have a branch a pair more): first what the mask holds for key j, on
// which nothing waits; without a mask, whether the row sees the key. `offset`: j * mask_sd.
FFPA_DEVICE u32 mask_value(const ScoreRow &r, int j, i64 offset, bool inside)
{
    const u32 unseen = FFPA_MASK == F32 ? 0xff800000u : FFPA_MASK == F16 ? 0xfc00u : FFPA_MASK == BF16 ? 0xff80u : 0;
    const bool seen = inside | ((u32)(j - r.keys.lo) < (u32)(r.keys.hi - r.keys.lo));
    constexpr int SIZE = dtype_size(FFPA_MASK ? FFPA_MASK : BOOL);
    return FFPA_MASK ? ldg_where<SIZE>(seen, r.mask + offset * SIZE, unseen) : seen;
}

// Then the score of key j from score_capped's value.
FFPA_DEVICE float score_of(const ScoreRow &r, float t, int j, u32 bits)
{
    const bool added = FFPA_MASK && FFPA_MASK != BOOL;
    const float bias = added ? element_of_bits(bits, FFPA_MASK) : bits ? 0.0f : -FFPA_INF;
    if (FFPA_ALIBI) t -= r.slope * fabsf((float)(r.diagonal - j));
    if (added) t += bias;
    return bias == -FFPA_INF ? -FFPA_INF : t;
}

// The score of key j from score_capped's value. `inside`: j is known to be within the row's range.
FFPA_DEVICE float score(const k_scores &c, const ScoreRow &r, float t, int j, bool inside)
{
    bool seen = inside || (j >= r.keys.lo && j < r.keys.hi);
    if (FFPA_ALIBI) t -= r.slope * fabsf((float)(r.diagonal - j));
    if (FFPA_MASK == BOOL) {
        seen = seen && r.mask[j * r.mask_sd] != 0;
    } else if (FFPA_MASK) {
        const float bias = seen ? element_get(r.mask, j * r.mask_sd, FFPA_MASK) : 0.0f;
        t += bias;
        seen = seen && bias != -FFPA_INF;
    }
    return seen ? t : -FFPA_INF;
}

// e^x
FFPA_DEVICE float exp_of(float x) { return ex2(x * LOG2E); }
