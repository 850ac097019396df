// fwd_spill_plan_sm90.cuh - what the two kernels of the spilled forward share: sizes, the workspace, rings, work items.
//
//   fwd_spill_p    P = 2^(S * scale - base), base per row, S = Q K^T masked      128 rows x all their keys, in tiles of 192
//   fwd_spill_pv   O^T = V^T P^T / l                                            256 (of Dv; or 128 for the rest) x 192 rows
//
// Why: above D = 576, O[128, Dv] in f32 does not fit the registers of two SMs. Two bytes of P per score written and read cost
// 4 Dv / 4 flop per byte of memory, 1 TB/s at most, and both halves are products whose tiles do not depend on D.
//
// Workspace, for the heads of a chunk; row64 = 64 rows of one head, block = 64 x 64 of P, 8 KB, already swizzled for wgmma:
//   p        [heads][run][run_blocks] blocks: a run for each row64; where rows differ in the keys they see, a run for two
//            (p_run), which halves P of causal calls, but not with lengths, on which the sum of two depends; only blocks of key
//            tiles that the 128 rows see are written, and read
//   moved    [heads][row64][k_tiles + 1] words: a byte per warp, 1 = the bases of its rows moved before this tile, or, in the
//            last word, before any
//   factor   [heads][row64][k_tiles][64]: by how much, where moved; a rare path: random data never takes it
//   inverse  [heads][row64][64]: what O is multiplied by;   base: the last base
//   zero     one block of zeros, for rows that see none of a key tile that others see
//   tickets  the next item of either kernel; each kernel clears the other's, which is not running
//
// Items come from a counter, the longest first. The loading thread draws one when it has asked for all that the one before
// needs, and writes it into shared memory, where two items alternate.
#pragma once
#include "common/shapes.h"
#include "sm90/fwd_rows_sm90.cuh"
#include "sm90/ring_sm90.cuh"
#include "sm90/wgmma_sm90.cuh"

static constexpr int CHUNK = 64, CHUNKS = shape_panels(FFPA_D, 2); // of Q and K: steps of S
static constexpr int DV = (FFPA_DV + 127) / 128 * 128;             // columns of V and O that are multiplied
static constexpr int BLOCK = 8192;                                 // bytes of 64 rows x 64 columns
static constexpr int BM = 128, BK = 192;                           // rows of an item of P; keys of its tiles, rows of an item of O
static constexpr int THREADS = 384, TEAM_THREADS = 128;            // one warpgroup loads, two multiply
static_assert(DTYPE == F16 || DTYPE == BF16, "16-bit inputs");
static constexpr bool LENGTHS = FFPA_CACHE == 1;                   // keys of a sequence: a number on the device
static_assert(!FFPA_VARLEN && FFPA_CACHE != 2, "dense queries; dense keys, or a cache without pages");

// full[s]: 1 arrival + bytes; free[s]: one arrival of each multiplying warpgroup. dealt[2]: 1 arrival + bytes, the item is
// there; taken[2]: one arrival of each multiplying warp, which is done with it.
struct Barriers {
    u64 full[4], free[4], dealt[2], taken[2];
};
FFPA_DEVICE void set_up_barriers(Barriers &bar)
{
    if (threadIdx.x == 0) {
        ring_init(bar.full, bar.free, 4, 2);
        for (int i = 0; i < 2; i++) {
            mbar_init(smem_addr(&bar.dealt[i]), 1);
            mbar_init(smem_addr(&bar.taken[i]), 8 * WARP_ARRIVALS);
        }
        mbar_init_fence();
    }
    __syncthreads();
}

// This thread's warp is done with item number k of the CTA.
FFPA_DEVICE void give_back_item(Barriers &bar, int k)
{
    warp_arrive(smem_addr(&bar.taken[k & 1]));
}

// Item i of `tiles` tiles of rows a head: where rows differ in length, `side` heads at a time, the longest rows first.
// side * tiles is about twice the number of CTAs. A CTA then gets a long and a short tile, most long ones walk the keys in step, and
// K (V) of these heads stays in the L2.
struct Place {
    int local, tile; // head of the chunk
};
FFPA_DEVICE Place place_of(const fwd_spill_args &a, int i, int tiles)
{
    if (!FFPA_RANGE) return {i / tiles, i % tiles};
    const int first = i / (a.side * tiles) * a.side, heads = min(a.side, a.heads - first);
    i -= first * tiles;
    return {first + i % heads, tiles - 1 - i / heads};
}

// With lengths: where the keys of an item's sequence are, and how many. Part of the item then; else nothing, so that dense kernels are
// what they would be without.
struct HeadKeys {
#if FFPA_CACHE
    int batch, nk;
#endif
};
FFPA_DEVICE HeadKeys keys_of_head(const fwd_spill_args &a, int head)
{
#if FFPA_CACHE
    const Sequence s = sequence_at(a.seq, head / a.hq);
    return {(int)s.k_batch, s.nk};
#else
    return {};
#endif
}
template <class Item> FFPA_DEVICE HeadKeys keys_of(const Item &t)
{
#if FFPA_CACHE
    return t.keys;
#else
    return {};
#endif
}
FFPA_DEVICE int key_count(const fwd_spill_args &a, const HeadKeys &k)
{
#if FFPA_CACHE
    return k.nk;
#else
    return a.nk;
#endif
}
FFPA_DEVICE int key_batch(const HeadKeys &k, int b)
{
#if FFPA_CACHE
    return k.batch;
#else
    return b;
#endif
}

// Key tiles [from, to) that some of the 128 rows from `row` on see: exactly those of which P is written.
struct KeyTiles {
    int from, to;
};
FFPA_DEVICE KeyTiles key_tiles(const fwd_spill_args &a, int row, const HeadKeys &keys)
{
    const k_scores &c = a.scores;
    const int last = row + BM < a.nq ? row + BM - 1 : a.nq - 1;
    const int lo = key_range(c.left, c.right, c.top_left, row, a.nq, key_count(a, keys)).lo;
    const int hi = key_range(c.left, c.right, c.top_left, last, a.nq, key_count(a, keys)).hi;
    return {lo / BK, (hi + BK - 1) / BK};
}

// Number of the block of P of the first 64 keys and half `half` of the tile of 128 rows number `tile` (of the chunk) that sees `k`.
// Tiles number t and q_tiles - 1 - t share two runs, one from the left, the other up to the right end.
FFPA_DEVICE int p_run(const fwd_spill_args &a, int local, int tile, int half, const KeyTiles &k)
{
    if (!FFPA_RANGE || LENGTHS) return ((local * a.q_tiles + tile) * 2 + half) * a.run_blocks - (FFPA_RANGE ? 3 * k.from : 0);
    const int other = a.q_tiles - 1 - tile, pair = min(tile, other), pairs = (a.q_tiles + 1) / 2;
    return ((local * pairs + pair) * 2 + half) * a.run_blocks + (tile <= other ? -3 * k.from : a.run_blocks - 3 * k.to);
}
