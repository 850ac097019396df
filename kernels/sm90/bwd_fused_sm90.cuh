// bwd_fused_sm90.cuh - attention backward for D and Dv up to 128 without P and dS in memory. One source, two kernels:
//     FFPA_KEYS   a CTA owns 128 keys and walks the queries:   dV = P^T dO,   dK = scale dS^T Q
//     else        a CTA owns 128 queries and walks the keys:   dQ = scale dS K
//     P = e^(scale Q K^T - LSE),   dP = dO V^T,   dS = P (dP - delta)
//
// Why twice: small heads leave 2 (D + Dv) flop for 4 bytes of P and dS, too few to write them out. Computing S and dP
// again costs two products more, but every sum stays in one CTA's registers: no atomics, no order to keep.
//
// "Own" rows are the 64 of a team, "walked" rows the BN of a block. P and dS have the own rows as wgmma's M, so they
// are the A operand of the sums as they leave the registers, and the walked rows serve as both kinds of B.
//
//              time ->                               (block j; a product takes BN D / 32 clocks)
//   warp 0     blocks j+1, j+2 ..                    copies
//   warp 1, 2  the same                              clean blocks that not every row sees (guard_sm90.cuh)
//   warp 3     the same                              FFPA_KEYS: -LSE and delta of the block's queries
//   team 0     | dP_j         | dV += P_j dO_j, S_j+1 | dK += dS_j Q_j |
//      scalar  | P_j from S_j | dS_j from dP_j        |
//   team 1     the same, whenever the tensor cores take it
//
// Barriers       arrivals                  meaning
//   own          1 + bytes                 the own rows have come                       warp 0 -> teams
//   raw[s]       1 + bytes                 slot s of a guarded block has been copied    warp 0 -> warps 1, 2
//   full[s]      1 + bytes, 2 warps with   slot s holds a block, clean, with its        warps 0..3 -> teams
//                GUARD, 1 with FFPA_KEYS   queries' numbers
//   free[s]      8 warps                   both teams are done with slot s              teams -> warps 0..3
//
// Nothing is in flight at the loop's back edge (C7514). Registers of a team's thread: (D + Dv) / 2 or D / 2 of sums, BN / 2
// each of S and dP, BN / 4 of P, about 25 more.
//
// NaN and Inf in a block that not every own row sees: the guards take them out of what the sums multiply by, for 0 x NaN is NaN,
// and own rows that do see them are computed again, pair by pair.
#include "common/shapes.h"
#include "sm90/bwd_fused_again_sm90.cuh"
#include "sm90/guard_sm90.cuh"
#include "sm90/store_sm90.cuh"
#include "sm90/wgmma_sm90.cuh"

static constexpr int DC = (D + 63) / 64, VC = (DV + 63) / 64;             // 64-column chunks; what is past D is zeros
static constexpr int D_STEPS = (D + 15) / 16, V_STEPS = (DV + 15) / 16;   // wgmma steps of S and dP
static constexpr int D_WIDE = (D + 31) / 32 * 32, V_WIDE = (DV + 31) / 32 * 32; // columns of the sums, zeros included
static constexpr u32 OWN1 = 64 * 128 * DC, OWN2 = 64 * 128 * VC, WALK1 = BN * 128 * DC, WALK2 = BN * 128 * VC;
static constexpr u32 SLOT = WALK1 + WALK2;
static constexpr int THREADS = 384, LOAD_REGS = 24, MATH_REGS = 240;
static constexpr u32 FULL_ARRIVALS = 1 + (2 * GUARD + KEYS) * WARP_ARRIVALS;

// Shared memory: own rows of both operands, by team | slots | numbers of a slot's queries | barriers, flag
static constexpr u32 S_OWN1 = 0, S_OWN2 = 2 * OWN1, S_SLOTS = S_OWN2 + 2 * OWN2, S_NUMBERS = S_SLOTS + STAGES * SLOT,
                     S_OWN = S_NUMBERS + STAGES * BN * 8, S_RAW = S_OWN + 8, S_FULL = S_RAW + 8 * STAGES,
                     S_FREE = S_FULL + 8 * STAGES, S_DIRTY = S_FREE + 8 * STAGES, S_BYTES = S_DIRTY + 8;
static constexpr int SHARED = fused_shared_bytes(D, DV, BN, STAGES);
static_assert(S_BYTES <= SHARED && SHARED <= 227 * 1024, "shared budget: fewer slots, smaller BN");
static_assert(BN % 16 == 0 && WALK1 % 1024 == 0, "whole steps, aligned tiles");

// ---- copies --------------------------------------------------------------------------------------

FFPA_DEVICE void load_own(const fused_args &a, const Work &t, u32 base)
{
    const int row = (int)(KEYS ? t.seq.k_row : t.seq.q_row) + t.row, batch = (int)(KEYS ? t.seq.k_batch : t.seq.q_batch);
    mbar_expect(base + S_OWN, 2 * (OWN1 + OWN2));
#pragma unroll
    for (int team = 0; team < 2; team++) {
#pragma unroll
        for (int c = 0; c < DC; c++)
            tma_load_4d(base + S_OWN1 + team * OWN1 + c * 8192, &a.own1, base + S_OWN, c * 64, row + team * 64, t.head, batch);
#pragma unroll
        for (int c = 0; c < VC; c++)
            tma_load_4d(base + S_OWN2 + team * OWN2 + c * 8192, &a.own2, base + S_OWN, c * 64, row + team * 64, t.head, batch);
    }
}

// Warp 0, one lane.
FFPA_DEVICE void load_blocks(const fused_args &a, const Work &t, u32 base)
{
    const int row = (int)(KEYS ? t.seq.q_row : t.seq.k_row), batch = (int)(KEYS ? t.seq.q_batch : t.seq.k_batch);
    const int head = KEYS ? t.head * a.group : t.head / a.group;
#pragma unroll 1
    for (Walk w = walk_of(t); w.left > 0; walk_on(t, w)) {
        const u32 full = base + S_FULL + 8 * w.ring.slot, data = base + S_SLOTS + w.ring.slot * SLOT;
        const int at = walk_at(t, w);
        const bool guarded = GUARD && !is_clear(t, at);
        const u32 bar = guarded ? base + S_RAW + 8 * w.ring.slot : full;
        mbar_wait(base + S_FREE + 8 * w.ring.slot, w.ring.parity ^ 1);
        mbar_expect(bar, SLOT);
#pragma unroll
        for (int c = 0; c < DC; c++) tma_load_4d(data + c * BN * 128, &a.walk1, bar, c * 64, row + at, head + w.head, batch);
#pragma unroll
        for (int c = 0; c < VC; c++)
            tma_load_4d(data + WALK1 + c * BN * 128, &a.walk2, bar, c * 64, row + at, head + w.head, batch);
        if (guarded) mbar_arrive(full);
    }
}

// Warps 1 and 2, all lanes: half each of what the sums multiply by, in a block that not every own row sees.
FFPA_DEVICE void guard_blocks(const Work &t, u32 base, u32 half)
{
    constexpr u32 BYTES = (KEYS ? SLOT : WALK1) / 2;
    u32 raw = 0; // the phases of raw[s], a bit each
#pragma unroll 1
    for (Walk w = walk_of(t); w.left > 0; walk_on(t, w)) {
        const u32 slot = w.ring.slot;
        if (!is_clear(t, walk_at(t, w))) {
            mbar_wait(base + S_RAW + 8 * slot, raw >> slot & 1);
            raw ^= 1u << slot;
            if (guard_clean<BYTES>(base + S_SLOTS + slot * SLOT + half * BYTES) && threadIdx.x % 32 == 0) sts32(base + S_DIRTY, 1);
        } else {
            mbar_wait(base + S_FREE + 8 * slot, w.ring.parity ^ 1);
        }
        warp_arrive(base + S_FULL + 8 * slot);
    }
}

// Warp 3, all lanes.
FFPA_DEVICE void load_numbers(const fused_args &a, const Work &t, u32 base)
{
    const int lane = threadIdx.x & 31, head = t.head * a.group;
#pragma unroll 1
    for (Walk w = walk_of(t); w.left > 0; walk_on(t, w)) {
        const u32 at = base + S_NUMBERS + w.ring.slot * BN * 8;
        Numbers x[(BN + 31) / 32];
#pragma unroll
        for (int k = 0; k < (BN + 31) / 32; k++) x[k] = numbers_of(a, t, head + w.head, walk_at(t, w) + 32 * k + lane);
        mbar_wait(base + S_FREE + 8 * w.ring.slot, w.ring.parity ^ 1);
#pragma unroll
        for (int k = 0; k < (BN + 31) / 32; k++) {
            if (32 * k + lane >= BN) continue;
            sts32(at + (32 * k + lane) * 4, __float_as_uint(x[k].minus_lse));
            sts32(at + (BN + 32 * k + lane) * 4, __float_as_uint(x[k].delta));
        }
        warp_arrive(base + S_FULL + 8 * w.ring.slot);
    }
}

// ---- products ------------------------------------------------------------------------------------

struct Math { // one thread of a team
    float sum1[D_WIDE / 2];            // dK or dQ
    float sum2[KEYS ? V_WIDE / 2 : 1]; // dV
    float s[BN / 2], dp[BN / 2];
    u32 p[BN / 4], ds[BN / 4]; // the A operands of dV and of dK or dQ
    Ring ring;
    Numbers mine[2]; // of the own rows, unless FFPA_KEYS
    u32 team, base;  // which; address of shared memory
    float unit;      // scale * log2(e)
};

// acc = own rows x walked rows over STEPS steps of 16 columns.
template <int STEPS> FFPA_DEVICE void product(float (&acc)[BN / 2], u32 own, u32 walked)
{
    const u32 a = desc_chunk(own), b = desc_chunk(walked);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < STEPS; x++)
        wgmma_kk(acc, a + x / 4 * (8192 >> 4) + 2 * (x % 4), b + x / 4 * (BN * 128 >> 4) + 2 * (x % 4), x);
    wgmma_commit();
}

// sum += weights x walked rows.
template <int N> FFPA_DEVICE void accumulate(float (&sum)[N], const u32 *weights, u32 walked)
{
    const u32 b = desc_chunks(walked, BN * 128);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < BN / 16; x++) wgmma_rn(sum, weights + 4 * x, b + x * (16 * 128 >> 4), 1);
    wgmma_commit();
}

FFPA_DEVICE void scores_issue(Math &w, const Ring &r)
{
    mbar_wait(w.base + S_FULL + 8 * r.slot, r.parity);
    product<D_STEPS>(w.s, w.base + S_OWN1 + w.team * OWN1, w.base + S_SLOTS + r.slot * SLOT);
}

// ---- weights -------------------------------------------------------------------------------------

// The first of this thread's own rows in the team; the second is 8 on.
FFPA_DEVICE int team_row() { return (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7); }

// 0 for what a row does not see, whatever it was. `at`: walked row of the block.
FFPA_DEVICE void select(float (&x)[BN / 2], const Work &t, u32 team, int at)
{
    const int row = t.row + (int)team * 64 + team_row(), column = at + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const KeyRange r = seen_by(t, row + 8 * half);
        const int from = r.lo - column;
        const u32 count = r.hi - r.lo;
#pragma unroll
        for (int i = 2 * half; i < BN / 2; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; e++)
                if ((u32)(8 * (i / 4) + e - from) >= count) x[i + e] = 0.0f;
        }
    }
}

// S to P.
FFPA_DEVICE void weights(Math &w, const Work &t, int at, bool clear)
{
    const u32 numbers = w.base + S_NUMBERS + w.ring.slot * BN * 8 + (threadIdx.x & 3) * 8;
#pragma unroll
    for (int n = 0; n < BN / 8; n++) {
        float lse[2];
        if (KEYS) lds64(lse, numbers + n * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            w.s[4 * n + i] = ex2(fmaf(w.s[4 * n + i], w.unit, KEYS ? lse[i & 1] : w.mine[i >> 1].minus_lse));
    }
    if (!clear) select(w.s, t, w.team, at);
#pragma unroll
    for (int i = 0; i < BN / 4; i++) w.p[i] = pack2(w.s[2 * i], w.s[2 * i + 1]);
    pin(w.p);
}

// dP to dS.
FFPA_DEVICE void score_gradients(Math &w, const Work &t, int at, bool clear)
{
    const u32 numbers = w.base + S_NUMBERS + (w.ring.slot * 2 + 1) * BN * 4 + (threadIdx.x & 3) * 8;
#pragma unroll
    for (int n = 0; n < BN / 8; n++) {
        float delta[2];
        if (KEYS) lds64(delta, numbers + n * 32);
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; i++) {
            const float p = i & 1 ? high_of(w.p[i / 2]) : low_of(w.p[i / 2]);
            w.dp[i] = p * (w.dp[i] - (KEYS ? delta[i & 1] : w.mine[i >> 1 & 1].delta));
        }
    }
    if (!clear) select(w.dp, t, w.team, at);
#pragma unroll
    for (int i = 0; i < BN / 4; i++) w.ds[i] = pack2(w.dp[2 * i], w.dp[2 * i + 1]);
    pin(w.ds);
}

// ---- one block -----------------------------------------------------------------------------------

// On entry S of the block at hand is complete, on exit that of the next one, unless it is the LAST.
template <bool LAST> FFPA_DEVICE void block(Math &w, const Work &t, int at)
{
    const bool clear = is_clear(t, at);
    const u32 data = w.base + S_SLOTS + w.ring.slot * SLOT;
    Ring next = w.ring;
    ring_next<STAGES>(next);
    product<V_STEPS>(w.dp, w.base + S_OWN2 + w.team * OWN2, data + WALK1);
    weights(w, t, at, clear);
    if constexpr (KEYS) accumulate(w.sum2, w.p, data + WALK1);
    if constexpr (!LAST) {
        pin(w.s);
        scores_issue(w, next);
    }
    wgmma_wait<KEYS + !LAST>();
    pin(w.dp);
    score_gradients(w, t, at, clear);
    accumulate(w.sum1, w.ds, data);
    wgmma_wait<0>();
    pin(w.s);
    pin(w.p);
    pin(w.ds);
    pin(w.sum1);
    if (KEYS) pin(w.sum2);
    warp_arrive(w.base + S_FREE + 8 * w.ring.slot);
    w.ring = next;
}

// ---- results -------------------------------------------------------------------------------------

template <int COLUMNS, int N> FFPA_DEVICE void rows_store(const Math &w, const Work &t, const k_tensor &out, bool wide, const float (&sum)[N], float factor)
{
    const i64 batch = KEYS ? t.seq.k_batch : t.seq.q_batch, first = KEYS ? t.seq.k_row : t.seq.q_row;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = t.row + (int)w.team * 64 + team_row() + 8 * half;
        const OutRow at = {out.data, batch * out.sb + t.head * out.sh + (first + r) * out.sn, out.sd, COLUMNS,
                           stores_pairs(out, DTYPE, COLUMNS)};
        store_row<DTYPE, COLUMNS>(at, sum, half, factor, wide, r < t.n);
    }
}

// ---- a tile --------------------------------------------------------------------------------------

FFPA_DEVICE void sums_clear(Math &w)
{
#pragma unroll
    for (int i = 0; i < D_WIDE / 2; i++) w.sum1[i] = 0.0f;
    if constexpr (KEYS) {
#pragma unroll
        for (int i = 0; i < V_WIDE / 2; i++) w.sum2[i] = 0.0f;
    }
}

FFPA_DEVICE void work_off(const fused_args &a, const Work &t, u32 base)
{
    Math w;
    w.base = base;
    w.team = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0); // one value per warp, and the compiler knows it
    w.ring = {0, 0};
    w.unit = a.unit;
    sums_clear(w);
    int left = t.blocks * t.heads, number = 0;
    if (left > 0) {
        if (!KEYS) {
            const int row = t.row + (int)w.team * 64 + team_row();
            w.mine[0] = numbers_of(a, t, t.head, row), w.mine[1] = numbers_of(a, t, t.head, row + 8);
        }
        mbar_wait(base + S_OWN, 0);
        scores_issue(w, w.ring);
        wgmma_wait<0>();
        pin(w.s);
#pragma unroll 1
        for (; left > 1; left--) {
            w.base = opaque(w.base);
            block<false>(w, t, (t.first + number) * BN);
            if (++number == t.blocks) number = 0;
        }
        block<true>(w, t, (t.first + number) * BN);
    }
    if (!KEYS && a.joins) grid_wait(); // the launch before is complete, before this one may be taken for complete
    if (a.out1.data) rows_store<D>(w, t, a.out1, a.wide1, w.sum1, a.scores.scale);
    if constexpr (KEYS) {
        if (a.out2.data) rows_store<DV>(w, t, a.out2, a.wide2, w.sum2, 1.0f);
    }
    if (GUARD && lds32(base + S_DIRTY)) rows_again(a, t, w.team);
}

// ---- the kernel ----------------------------------------------------------------------------------

FFPA_DEVICE void barriers_init(u32 base)
{
    mbar_init(base + S_OWN, 1);
    for (int s = 0; s < STAGES; s++) {
        mbar_init(base + S_RAW + 8 * s, 1);
        mbar_init(base + S_FULL + 8 * s, FULL_ARRIVALS);
        mbar_init(base + S_FREE + 8 * s, 8 * WARP_ARRIVALS);
    }
    sts32(base + S_DIRTY, 0);
    mbar_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ffpa_kernel(const __grid_constant__ fused_args a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = smem_addr(memory);
    Work t;
    if (threadIdx.x == 0) barriers_init(base);
    __syncthreads();
    if (!a.joins) grid_wait(); // delta
    grid_release();
    if (!work_of(a, t)) {
        if (a.joins) grid_wait();
        return;
    }
    if (threadIdx.x >= 128) {
        regs_more<MATH_REGS>();
        work_off(a, t, base);
        return;
    }
    regs_less<LOAD_REGS>();
    if (threadIdx.x == 0) {
        load_own(a, t, base);
        load_blocks(a, t, base);
    }
    const u32 warp = threadIdx.x >> 5;
    if (GUARD && (warp == 1 || warp == 2)) guard_blocks(t, base, warp - 1);
    if (KEYS && warp == 3) load_numbers(a, t, base);
}
