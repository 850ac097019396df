// fwd_spill_plan_sm90.cuh - what the two kernels of the spilled forward share: sizes, the workspace, rings, work items.
//
//   fwd_spill_p    P = 2^(S * scale - base), base per row, S = Q K^T masked      128 rows x all their keys, in tiles of 192
//   fwd_spill_pv   O^T = V^T P^T / l                                            256 (of Dv; or 128 for the rest) x 192 rows
//
// Why: above D = 576, O[128, Dv] in f32 does not fit the registers of two SMs. Two bytes of P per score written and read cost
// 4 Dv / 4 flop per byte of memory, 1 TB/s at most, and both halves are products whose tiles do not depend on D.
//
// Workspace, for the heads of a chunk; row64 = 64 rows of one head, block = 64 x 64 of P, 8 KB, already swizzled for wgmma:
//   p        [heads][row64][k_blocks] blocks; only those of key tiles that the 128 rows see are written, and read
//   moved    [heads][row64][k_tiles] words: a byte per warp, 1 = the bases of its rows moved before this tile
//   factor   [heads][row64][k_tiles][64]: by how much, where moved; a rare path: random data never takes it
//   inverse  [heads][row64][64]: what O is multiplied by;   base: the last base
//   zero     one block of zeros, for rows that see none of a key tile that others see
#pragma once
#include "common/shapes.h"
#include "sm90/fwd_rows_sm90.cuh"
#include "sm90/wgmma_sm90.cuh"

static constexpr int CHUNK = 64, CHUNKS = shape_panels(FFPA_D, 2); // of Q and K: steps of S
static constexpr int DV = (FFPA_DV + 127) / 128 * 128;             // columns of V and O that are multiplied
static constexpr int BLOCK = 8192;                                 // bytes of 64 rows x 64 columns
static constexpr int BM = 128, BK = 192;                           // rows of an item of P; keys of its tiles, rows of an item of O
static constexpr int THREADS = 384, TEAM_THREADS = 128;            // one warpgroup loads, two multiply
static_assert(DTYPE == F16 || DTYPE == BF16, "16-bit inputs");
static_assert(!SCORED && !FFPA_DROPOUT && !FFPA_VARLEN && !FFPA_CACHE, "plain, causal, window and sink");

struct Ring {
    u32 slot, parity; // next to use; its phase
};
template <int STAGES> FFPA_DEVICE void ring_next(Ring &r)
{
    if (++r.slot == STAGES) r.slot = 0, r.parity ^= 1;
}

// full[s]: 1 arrival + bytes; free[s]: one arrival of each multiplying warpgroup.
FFPA_DEVICE void set_up_ring(u64 *full, u64 *free, int stages)
{
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; s++) {
            mbar_init(smem_addr(&full[s]), 1);
            mbar_init(smem_addr(&free[s]), 2);
        }
        mbar_init_fence();
    }
    __syncthreads();
}

// Item of round k for this CTA; odd rounds run backwards, so that no CTA always gets the longest.
FFPA_DEVICE int item_at(int k) { return k * gridDim.x + (k & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); }

// Key tiles [from, to) that some of the 128 rows from `row` on see: exactly those of which P is written.
struct KeyTiles {
    int from, to;
};
FFPA_DEVICE KeyTiles key_tiles(const fwd_spill_args &a, int row)
{
    const k_scores &c = a.scores;
    const int last = row + BM < a.nq ? row + BM - 1 : a.nq - 1;
    const int lo = key_range(c.left, c.right, c.top_left, row, a.nq, a.nk).lo;
    const int hi = key_range(c.left, c.right, c.top_left, last, a.nq, a.nk).hi;
    return {lo / BK, (hi + BK - 1) / BK};
}
