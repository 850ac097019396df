// fwd_spill_scores_sm90.cuh - options of the spilled forward: from products to scores, and what dropout takes, 16 keys at a time.
//
// A math thread has two tiles of S and about 40 registers besides, and few warps to hide a latency behind. Hence a bit and not a
// byte for a key of a bool mask, asked for a tile ahead; a random number for four keys once, by one of the two lanes that have two
// each; no more of an added mask at once than 8 numbers; and what an item's rows have in common in shared memory.
#pragma once
#include "sm90/fwd_spill_plan_sm90.cuh"

static constexpr bool OPTIONED = SCORED || FFPA_DROPOUT;

// What an item's head knows of its options. The loading thread finds it out.
struct HeadOptions {
    const char *mask; // FFPA_MASK: element [b, h, 0, 0]
    float slope;      // FFPA_ALIBI
    int number;       // FFPA_DROPOUT: b * Hq + h
    int ahead;        // FFPA_ALIBI: key tile that the bases begin with, of the item
#if FFPA_CACHE
    int nk;           // keys of the sequence
#endif
};
FFPA_DEVICE int keys_of_options(const HeadOptions &o, const fwd_spill_args &a)
{
#if FFPA_CACHE
    return o.nk;
#else
    return a.nk;
#endif
}

FFPA_DEVICE HeadOptions head_options(const fwd_spill_args &a, int head)
{
    const k_scores &c = a.scores;
    const int b = head / a.hq, h = head % a.hq;
    HeadOptions o = {0, 0.0f, head, -1};
    if (FFPA_ALIBI) o.slope = c.alibi[b * c.alibi_sb + h * c.alibi_sh];
    if (FFPA_MASK) o.mask = (const char *)c.mask.data + (b * c.mask.sb + h * c.mask.sh) * dtype_size(FFPA_MASK);
    return o;
}

// A row of the mask; one past the end counts as the last.
FFPA_DEVICE const char *mask_row(const HeadOptions &o, const fwd_spill_args &a, int row)
{
    return o.mask + min(row, a.nq - 1) * a.scores.mask.sn * dtype_size(FFPA_MASK);
}

// ---- bool masks -------------------------------------------------------------------------------------------

// Which of 16 bytes are not zero?
FFPA_DEVICE u32 nonzero_bytes(const u32 (&x)[4])
{
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) { // bit 7 of each byte, then four bits to the top: the multiplication adds no two at one place
        const u32 high = (((x[i] & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x[i]) & 0x80808080u;
        bits |= ((high >> 7) * 0x10204080u >> 28) << 4 * i;
    }
    return bits;
}

// Keys key .. key + 15 of a row of the mask.
FFPA_DEVICE u32 mask_bits(const fwd_spill_args &a, const char *row, int key)
{
    u32 bits = 0;
    if (a.mask_wide && key + 16 <= a.nk) {
        u32 x[4];
        ldg128(x, row + key);
        return nonzero_bytes(x);
    }
#pragma unroll 4
    for (int i = 0; i < 16; i++)
        if (key + i < a.nk && row[(key + i) * a.scores.mask.sd] != 0) bits |= 1u << i;
    return bits;
}

// Word x of a tile, from `key` on, of rows row and row + 8: lane q of four has keys 48 q + 16 x .. + 15, the first row's low.
FFPA_DEVICE u32 mask_word(const HeadOptions &o, const fwd_spill_args &a, int row, int key, int x)
{
    const int mine = key + 48 * (threadIdx.x & 3) + 16 * x;
    const u32 low = mask_bits(a, mask_row(o, a, row), mine);
    return low | mask_bits(a, mask_row(o, a, row + 8), mine) << 16;
}

// ---- added masks ------------------------------------------------------------------------------------------

// Of keys key, key + 1, key + 8, key + 9 for both rows, in the order of the accumulator.
FFPA_DEVICE void bias_of(const HeadOptions &o, const fwd_spill_args &a, int row, int key, float (&bias)[8])
{
    const char *rows[2] = {mask_row(o, a, row), mask_row(o, a, row + 8)};
    if (a.mask_wide && key + 9 < a.nk) {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const char *at = rows[i >> 1 & 1] + (i64)(key + 2 * (i & 4)) * dtype_size(FFPA_MASK);
            if (FFPA_MASK == F32) {
                const float2 x = *(const float2 *)at;
                bias[i] = x.x, bias[i + 1] = x.y;
            } else {
                const u32 x = *(const u32 *)at;
                bias[i] = element_of_bits(x, FFPA_MASK), bias[i + 1] = element_of_bits(x >> 16, FFPA_MASK);
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int j = key + 2 * (i & 4) + (i & 1);
        bias[i] = j < a.nk ? element_get(rows[i >> 1 & 1], j * a.scores.mask.sd, FFPA_MASK) : 0.0f;
    }
}

// Ask memory for the rows of the tile from `key` on: each of the four lanes that share them for a quarter of their lines.
FFPA_DEVICE void bias_ahead(const HeadOptions &o, const fwd_spill_args &a, int row, int key)
{
    constexpr int KEYS = 128 / dtype_size(FFPA_MASK), LINES = BK / KEYS; // of a line; of a row
    const int q = threadIdx.x & 3, first = key + (q & 1) * KEYS;
    const char *from = mask_row(o, a, row + 4 * (q & 2)) + (i64)first * dtype_size(FFPA_MASK);
    if (!a.mask_wide) return;
#pragma unroll 1
    for (int x = first; x < key + LINES * KEYS && x < a.nk; x += 2 * KEYS, from += 256) prefetch_l2(from);
}

// ---- scores -----------------------------------------------------------------------------------------------

// tanh of 8 numbers. Of its own, because tanhf branches for each: near 0 an odd polynomial (largest error 1.5 * 2^-24 of the result),
// elsewhere 1 - 2 / (1 + e^2x), which is computed only where a number of the warp is there.
FFPA_DEVICE float tanh_near(float x)
{
    const float y = x * x;
    const float p = fmaf(fmaf(fmaf(fmaf(-0.00610495f, y, 0.02100364f), y, -0.0538525f), y, 0.13332783f), y, -0.33333328f);
    return fmaf(x * y, p, x);
}
FFPA_DEVICE void tanh_8(float (&x)[8])
{
    constexpr float NEAR = 0.625f;
    bool far = false;
#pragma unroll
    for (int i = 0; i < 8; i++) far |= !(fabsf(x[i]) < NEAR);
    if (__any_sync(~0u, far)) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float t = fmaf(-2.0f, rcp(1.0f + ex2(fabsf(x[i]) * (2.0f * LOG2E))), 1.0f);
            x[i] = fabsf(x[i]) < NEAR ? tanh_near(x[i]) : copysignf(t, x[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = tanh_near(x[i]);
    }
}

// Scores of group g, 16 keys, of the tile from `key` on, in natural units; which of them exist and are in range is not asked.
// `row`: the thread's first; `bits`: mask_word of the tile.
FFPA_DEVICE void score_group(float (&s)[BK / 2], const u32 (&bits)[3], const HeadOptions &o, const fwd_spill_args &a, int row, int key,
                             int g)
{
    const int lane = threadIdx.x & 31, mine = key + 16 * g + 2 * (lane & 3);
    const float away = (float)(row + keys_of_options(o, a) - a.nq - mine);
    u32 seen = ~0u;
    float bias[8], x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = s[8 * g + i] * (FFPA_SOFTCAP ? a.bend : a.scores.scale);
    if (FFPA_SOFTCAP) tanh_8(x);
    if (FFPA_MASK == BOOL)
        seen = __shfl_sync(~0u, bits[g % 3], (lane & 28) + g / 3) >> 2 * (lane & 3);
    else if (FFPA_MASK)
        bias_of(o, a, row, mine, bias);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int column = 2 * (i & 4) + (i & 1), half = i >> 1 & 1;
        float t = FFPA_SOFTCAP ? a.scores.softcap * x[i] : x[i];
        if (FFPA_ALIBI) t -= o.slope * fabsf(away + (float)(8 * half - column));
        if (FFPA_MASK == BOOL)
            t = seen >> (column + 16 * half) & 1 ? t : -FFPA_INF;
        else if (FFPA_MASK)
            t = bias[i] == -FFPA_INF ? -FFPA_INF : t + bias[i];
        s[8 * g + i] = t;
    }
}

// ---- dropout ----------------------------------------------------------------------------------------------

// A bit for each of the 8 weights of group g.
FFPA_DEVICE u32 kept_weights(const HeadOptions &o, const fwd_spill_args &a, int row, int key, int g)
{
    const DropKey drop = drop_key(a.dropout);
    const int odd = threadIdx.x & 1; // which of the two rows this lane draws for
    u32 c[8], mine = 0;
    drop_words8(drop, o.number, row + 8 * odd, key + 16 * g + 2 * (threadIdx.x & 2), c);
#pragma unroll
    for (int i = 0; i < 8; i++) mine |= (u32)(c[i] >= drop.threshold) << i;
    const u32 other = __shfl_xor_sync(~0u, mine, 1);
    const u32 low = (odd ? other : mine) >> 2 * odd, high = (odd ? mine : other) >> 2 * odd;
    return (low & 0x33) | (high & 0x33) << 2;
}
