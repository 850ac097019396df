// fwd_pair_plan_sm90.cuh - sizes of fwd_pair_sm90.cuh: constants of a variant, shared memory, what a thread keeps, tiles.
//
// Budget (checked below)
//   registers / math thread   O: DV / 4   S: 32   P: 16   state and addresses: about 40              (FFPA_REGS, 232 or 240)
//   registers / load thread   504 - 2 x that: the launch allocates 168 x 384, and setmaxnreg only moves those
//   shared                    Q: 2 teams x D x 128   P in and out: 2 teams x 2 x 8192   ring: STAGES slots   rest: < 3 KB
#pragma once
#include "common/shapes.h"
#include "sm90/fwd_rows_sm90.cuh"
#include "sm90/wgmma_sm90.cuh"

static constexpr int CHUNK = 64;                       // columns of a chunk: rows of 128 bytes
static constexpr int CHUNKS = shape_panels(FFPA_D, 2); // of Q and K: steps of S
static constexpr int DV = shape_panels(FFPA_DV, 2) * CHUNK; // columns of V and O that are multiplied
static constexpr bool V_WHOLE = FFPA_DV % CHUNK == 0;  // else V comes a chunk a box, because a box of several ends at whole ones
static constexpr int DH = DV / 2;                      // columns of O per CTA
static constexpr int FULL = DH / CHUNK;                // whole chunks of V and O per CTA
static constexpr int HALF = DH % CHUNK;                // 32: the last chunk of V is shared, CTA c owns its half c
static constexpr bool HALF_SLOT = DH > 256;            // the half chunk of V has slots of its own: 64 keys x 64 columns
static constexpr int BM = 64;                          // query rows per team
static constexpr int BN = 128, BH = BN / 2;            // keys per block; those whose scores one CTA computes
static constexpr int VROWS = FFPA_VROWS;               // keys per V slot: VROWS / 16 wgmma steps
static constexpr int OWN = BH / VROWS + HALF_SLOT;     // V slots per half block
static constexpr int VSTEPS = 2 * OWN;                 // V slots per block
static constexpr int STAGES = FFPA_STAGES;             // ring slots
static constexpr int FLIGHT = FFPA_FLIGHT;             // P V steps that stay in flight
static constexpr int KLAG = FFPA_KLAG;                 // Q K steps that stay in flight
static constexpr int SWAP_AT = FFPA_SWAP_AT;           // P_i is sent under steps SWAP_AT .. SWAP_AT + 2 of S_{i+1}
static constexpr int MEET_AT = CHUNKS - 1;             // the peer's bases are met under this step
static constexpr int PARTS = BH / 16;                  // the softmax is cut in parts of 8 scores per thread
static constexpr int FREE_AT = KLAG - 1 > (FLIGHT - 1) / 2 ? KLAG - 1 : (FLIGHT - 1) / 2; // O += P_i V_i is complete under it

static constexpr int KBOX_BYTES = 64 * CHUNK * 2;      // K box: 64 keys x 64 columns
static constexpr int VCHUNK_BYTES = VROWS * CHUNK * 2; // one chunk of a V slot
static constexpr int VBOX_BYTES = (FULL + (HALF > 0 && !HALF_SLOT)) * VCHUNK_BYTES;
static constexpr int SLOT_BYTES = pair_slot_bytes(FFPA_DV, VROWS);
static constexpr int Q_BYTES = BM * CHUNK * 2;         // one chunk of one team's Q
static constexpr int P_BYTES = BM * BH * 2;            // one half of P
static constexpr int BASE_BYTES = BM * 4;              // the row bases of one half
static constexpr int THREADS = 384, TEAM_THREADS = 128;
static constexpr int REGS_MATH = FFPA_REGS, REGS_LOAD = 504 - 2 * REGS_MATH;

struct Tile {          // where the pair works
    Sequence seq;
    int head, row0;    // row0 within the sequence
    int first, blocks; // blocks of keys that some row sees; at least two: those past the end are wholly masked
#if FFPA_SPLIT
    int part; // or ALL_KEYS
#endif
};
struct Note {          // a warp's tile, in shared memory: registers are for what every step needs
    Tile tile;
    int number;        // how many tiles the pair did before it
    int head, tail;    // blocks (running numbers) before `head` and from `tail` on need masks
    KeyRange line;     // keys that row i of the tile sees, less i
    u32 sm;            // Ring::sm
};
struct TeamSmem {                   // what one team owns
    alignas(1024) u8 q[CHUNKS][Q_BYTES]; // stays for a tile
    alignas(1024) u8 p[P_BYTES];    // the peer's P half
    alignas(1024) u8 p_out[P_BYTES]; // own P half on its way to the peer
    float base[2][BM];              // the peer's row bases, blocks alternate
    float sum[BM];                  // the peer's row sums
    u64 base_full[2], p_full, p_free, l_full;
};
struct Smem {                       // the whole plan of shared memory
    TeamSmem team[2];
    alignas(1024) u8 ring[STAGES][SLOT_BYTES];
    u64 q_full[CHUNKS], q_free, full[STAGES], free[STAGES], tile_full[2];
    u32 next_tile[2];               // ids that rank 0 handed out, tiles alternate
    Note note[2 * TEAM_THREADS / 32]; // of each multiplying warp: one may begin a tile while another still ends the one before
};
#define AT(type, member) ((u32)(u64) & ((type *)0)->member) // byte offset: one base register serves every member

static_assert(sizeof(Smem) <= pair_shared_bytes(FFPA_D, FFPA_DV, VROWS, STAGES), "shapes.h disagrees");
static_assert(sizeof(Smem) <= 227 * 1024, "shared budget: fewer STAGES");
static_assert(DH / 2 + 32 + 16 + 32 <= REGS_MATH, "register budget: O, S and P of one thread");
static_assert(REGS_LOAD * TEAM_THREADS + REGS_MATH * 2 * TEAM_THREADS <= 168 * THREADS,
              "setmaxnreg only moves what the launch allocated: 168 per thread; beyond that the kernel hangs");
static_assert(KLAG <= FLIGHT && STAGES >= FLIGHT + 2 && OWN <= VSTEPS - FLIGHT && FLIGHT >= 2 && CHUNKS >= FLIGHT,
              "slots of steps in flight, one being issued, one ahead");
static_assert(SWAP_AT > FREE_AT && SWAP_AT >= 2 && SWAP_AT + 2 <= CHUNKS,
              "the exchange happens inside the steps of S, or right behind the last");
static_assert(DTYPE == F16 || DTYPE == BF16, "16-bit inputs");

struct Ring {
    u32 sm;           // shared address of Smem
    u32 slot, parity; // next to use; its phase
};
FFPA_DEVICE void ring_next(Ring &r)
{
    if (++r.slot == STAGES) r.slot = 0, r.parity ^= 1;
}

struct Math {             // one thread of a team
    float o[DH / 2];      // 64 x DH of the warpgroup, mma layout: [8-column group][row, row, row + 8, row + 8]
    float s[BH / 2];      // 64 x BH scores, then 2^ of them
    u32 p[BH / 4];        // P in pairs: the A operand
    float m[2], b[2], l[2]; // agreed base of O, base of p, row sum (own keys, base b); rows lane / 4 and lane / 4 + 8
    int last;             // running number of this tile's last block: blocks are counted over all tiles of the pair
    bool moved;           // some base differs from m: rescale before P V
    Ring ring;
    u32 team, note;       // shared addresses of this team's TeamSmem and of this warp's note
};

// N registers of an accumulator, as one.
template <int N> using Registers = float[N];
template <int N> FFPA_DEVICE Registers<N> &part(float *x) { return *(Registers<N> *)x; }

// Thread number in its team: read again where needed rather than kept in a register.
FFPA_DEVICE u32 thread_id()
{
    u32 r;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(r));
    return r & (TEAM_THREADS - 1);
}

// The note at a shared address.
FFPA_DEVICE Note &note_at(u32 addr) { return *(Note *)__cvta_shared_to_generic(addr); }

// Where `addr` is in the peer CTA.
FFPA_DEVICE u32 at_peer(u32 addr) { return map_rank(addr, cluster_rank() ^ 1); }

// First of this thread's two rows in the tile; the other is 8 below.
FFPA_DEVICE int tile_row()
{
    const int thread = thread_id();
    return (threadIdx.x / TEAM_THREADS - 1) * BM + (thread >> 5) * 16 + (thread >> 2 & 7);
}

FFPA_DEVICE Tile find_tile(const fwd_pair_args &a, int id)
{
    Tile t;
    const PartItem item = part_item(a.parts, id);
    const int line = item.tile % a.tiles, s = line_owner(a.seq.cu_q, a.seq, line, a.seq.nq, 1, 2 * BM);
    t.head = item.tile / a.tiles;
    t.seq = sequence_at(a.seq, s);
    t.row0 = line_row(a.seq.cu_q, a.seq, s, line, a.seq.nq, 1, 2 * BM);
    if (FFPA_VARLEN && t.row0 > t.seq.nq) t.row0 = t.seq.nq; // no row: its block is computed for nothing
    if (FFPA_RANGE && t.row0 < t.seq.nq) t.row0 = (t.seq.nq - 1) / (2 * BM) * (2 * BM) - t.row0; // the longest first
    const k_scores &c = a.scores;
    const int end = t.row0 + 2 * BM < t.seq.nq ? t.row0 + 2 * BM - 1 : t.seq.nq - 1;
    const int lo = key_range(c.left, c.right, c.top_left, t.row0, t.seq.nq, t.seq.nk).lo;
    const int hi = key_range(c.left, c.right, c.top_left, end, t.seq.nq, t.seq.nk).hi;
    const Blocks all = {FFPA_RANGE ? lo / BN : 0, (hi + BN - 1) / BN}, own = part_blocks(a.parts, item.part, all, 2);
    t.first = own.first;
    t.blocks = own.end - own.first;
#if FFPA_SPLIT
    t.part = item.part;
    if (t.blocks == 0) t.first = (t.seq.nk + BN - 1) / BN; // no keys: those past the end
#endif
    if (t.blocks < 2) t.blocks = 2;
    return t;
}

// Id of the pair's tile number k. The first is its own number; later ones are announced one tile ahead.
FFPA_DEVICE int tile_id(u32 sm, int k)
{
    if (k == 0) return blockIdx.x / 2;
    mbar_wait_cluster(sm + AT(Smem, tile_full) + 8 * (k & 1), ((k - 1) >> 1) & 1);
    return lds32(sm + AT(Smem, next_tile) + 4 * (k & 1));
}

// Give back N slots whose wgmma are complete: the oldest of the HELD that this team has not given back yet.
template <int N, int HELD> FFPA_DEVICE void ring_release(const Ring &r)
{
#pragma unroll
    for (int x = 0; x < N; x++) {
        u32 s = r.slot + STAGES - HELD + x;
        if (s >= STAGES) s -= STAGES;
        if ((thread_id() & 31) == 0) mbar_arrive(r.sm + AT(Smem, free) + 8 * s);
    }
}
