// fwd_one_sm90.cuh - attention forward for D and Dv up to 320, one CTA for 64 TEAMS query rows.
//     S = Q K^T,  P = 2^(S - m),  O = P V / l,  LSE = ln(sum e^S)
//
// Why one CTA: O and S of 64 rows fit the registers of a warpgroup up to Dv = 320. Two or three warpgroups ("teams")
// share K and V, so that a byte from the L2 serves 128 or 192 rows, and one's softmax hides behind the others' products.
//
//              time ->                                       (per block and team BN (D + Dv) / 32 clocks of products)
//   warp 0     K_j+2 ..                                      copies, also of the next tile
//   warp 1     V_j+1 ..                                      copies; cleans blocks that not every row sees (guard_sm90.cuh)
//   warp 2     next tile, its Q                              hands out tiles
//   team 0     | S_j+1 = Q K_j+1 | O += P_j V_j |            (here the other teams' products run)
//              scalar:    softmax of S_j+1 -> P_j+1  ...
//   team 1, 2  the same, a part of the period later: named barriers pass the right to issue around
//
// Barriers       arrivals      meaning
//   q_full[t]    1 + bytes     team t's rows of Q have come                             warp 2 -> team t
//   q_free[t]    4 warps       the tile's last S is complete: Q may be replaced         team t -> warp 2
//   k_full[s]    1 + bytes     slot s holds keys                                        warp 0 -> teams
//   k_free[s]    4 TEAMS       every team is done with slot s                           teams -> warp 0
//   v_full, v_free             the same for V                                           warp 1 <-> teams
//   v_raw        1 + bytes     a block of V that warp 1 must look at first              copy engine -> warp 1
//   tile_full[i] 1             tile record i is written                                 warp 2 -> all
//   tile_free[i] 4 TEAMS + 2   every reader is done with it: warp 0's thread and warps   all -> warp 2
//   named 1 + t  256 threads   team t may issue its products                            team t - 1 -> team t
//
// Blocks of keys are walked from the last to the first, so that masked ones come early in causal tiles. Nothing is in
// flight at the loop's back edge: ptxas does not count groups of wgmma across it and would serialise them all (C7514).
//
// Registers of a team's thread: DV / 2 of O, BN / 2 of S, BN / 4 of P, about 40 more, in MATH_REGS. Packed sequences
// give the warp that looks for tiles more of them.
#include "common/dropout.cuh"
#include "common/shapes.h"
#include "sm90/guard_sm90.cuh"
#include "sm90/parts_sm90.cuh"
#include "sm90/ring_sm90.cuh"
#include "sm90/softmax_sm90.cuh"
#include "sm90/store_sm90.cuh"
#include "sm90/wgmma_sm90.cuh"

static constexpr int D = FFPA_D, DV = FFPA_DV, BM = FFPA_BM, BN = FFPA_BN;
static constexpr int TEAMS = BM / 64, K_STAGES = FFPA_STAGES, V_STAGES = FFPA_V_STAGES;
static constexpr int DC = (D + 63) / 64, VC = (DV + 63) / 64; // 64-column chunks of a row; what is past D is zeros
static constexpr int STEPS = (D + 15) / 16;                   // wgmma steps of S
static constexpr int WIDE = (DV + 31) / 32 * 32;              // columns of O, zeros included
static constexpr int Q_BYTES = 64 * 128 * DC, K_BYTES = BN * 128 * DC, V_BYTES = BN * 128 * VC;
static constexpr int TEAM = 128, THREADS = TEAM * (TEAMS + 1);
static constexpr int LOAD_REGS = FFPA_VARLEN ? 56 : TEAMS == 3 ? 32 : 40;
static constexpr int MATH_REGS = TEAMS == 3 ? (FFPA_VARLEN ? 152 : 160) : (FFPA_VARLEN ? 224 : 232);

struct Tile { // what the CTA computes next
    Sequence seq;
    int head, row;             // query head; first row in its sequence
    int first, end;            // blocks of keys [first, end), at least one; none = no more tiles
    int clear_from, clear_to;  // keys that every row of the tile sees
    int dirty;                 // warp 1 found NaN or Inf in V where rows may differ in what they see
#if FFPA_SPLIT
    int part;                  // of the keys, or ALL_KEYS
#endif
};

// Shared memory: Q | K slots | V slots | barriers | two tile records
static constexpr u32 S_Q = 0, S_K = TEAMS * Q_BYTES, S_V = S_K + K_STAGES * K_BYTES, S_BARS = S_V + V_STAGES * V_BYTES;
static constexpr u32 Q_FULL = S_BARS, Q_FREE = Q_FULL + 8 * TEAMS, K_FULL = Q_FREE + 8 * TEAMS,
                     K_FREE = K_FULL + 8 * K_STAGES,
                     V_FULL = K_FREE + 8 * K_STAGES, V_FREE = V_FULL + 8 * V_STAGES, V_RAW = V_FREE + 8 * V_STAGES,
                     TILE_FULL = V_RAW + 8, TILE_FREE = TILE_FULL + 16, S_TILES = TILE_FREE + 16,
                     S_BYTES = S_TILES + 2 * sizeof(Tile);
static constexpr int SHARED = fwd_one_shared_bytes(D, DV, BM, BN, K_STAGES, V_STAGES);
static_assert(S_BYTES <= SHARED && S_BARS + 512 == SHARED, "shapes.h disagrees");
static_assert(SHARED <= 227 * 1024, "shared budget: fewer slots, smaller BN");
static_assert((TEAMS == 2 || TEAMS == 3) && BM % 64 == 0 && BN % 16 == 0, "whole teams, whole steps");
static_assert(WIDE / 2 + BN / 2 + BN / 4 + 24 <= MATH_REGS, "register budget: smaller BN");

struct Math { // one thread of a team
    float o[WIDE / 2], s[BN / 2];
    u32 p[BN / 4]; // the A operand of P V
    SoftmaxRows rows;
    Ring k, v;
    u32 team, base; // which; address of shared memory
};

// ---- tiles ---------------------------------------------------------------------------------------

// The first item of a CTA is its own number, the next ones come from the counter. `items` = none left.
FFPA_DEVICE int next_item(const fwd_one_args &a, int items, bool first)
{
    if (first) return blockIdx.x;
    return a.counter ? gridDim.x + atomic_add(a.counter, 1) : items;
}

// Heads in groups; within a group the longest tiles of all its heads first. False: no rows there.
FFPA_DEVICE bool tile_of(const fwd_one_args &a, int item, Tile &t)
{
    const k_scores &c = a.f.scores;
    const PartItem its = part_item(a.parts, item);
    const int per = a.f.tiles * a.head_group, group = its.tile / per, rest = its.tile - group * per;
    const int left = a.heads - group * a.head_group, size = left < a.head_group ? left : a.head_group;
    const int line = rest / size, x = group * a.head_group + rest % size;
    const bool packed = FFPA_VARLEN && a.f.seq.cu_q;
    const int s = packed ? line_owner(a.f.seq.cu_q, a.f.seq, line, a.f.seq.nq, 1, BM) : x / a.f.hq;
    t.head = packed ? x : x % a.f.hq;
    t.seq = sequence_at(a.f.seq, s);
    t.row = packed ? line_row(a.f.seq.cu_q, a.f.seq, s, line, a.f.seq.nq, 1, BM) : line * BM;
    if (t.row >= t.seq.nq) return false;
    if (FFPA_RANGE) t.row = (t.seq.nq - 1) / BM * BM - t.row;
    const int last = t.row + BM < t.seq.nq ? t.row + BM - 1 : t.seq.nq - 1;
    const KeyRange first_keys = key_range(c.left, c.right, c.top_left, t.row, t.seq.nq, t.seq.nk);
    const KeyRange last_keys = key_range(c.left, c.right, c.top_left, last, t.seq.nq, t.seq.nk);
    t.clear_from = last_keys.lo, t.clear_to = first_keys.hi;
    const Blocks own = part_blocks(a.parts, its.part, {first_keys.lo / BN, (last_keys.hi + BN - 1) / BN}, 1);
    t.first = own.first, t.end = own.end;
    t.dirty = 0;
#if FFPA_SPLIT
    t.part = its.part;
#endif
    if (t.end <= t.first) t.end = t.first + 1; // a block that no row sees writes the zeros of a tile without keys
    return true;
}

FFPA_DEVICE Tile &tile_wait(Tile *tiles, u32 base, int k)
{
    mbar_wait(base + TILE_FULL + 8 * (k & 1), k >> 1 & 1);
    return tiles[k & 1];
}
FFPA_DEVICE u32 tile_free(u32 base, int k) { return base + TILE_FREE + 8 * (k & 1); }

// Does the copy of V go past warp 1? Only where rows may differ in the keys they see, or foreign rows follow.
static constexpr bool GUARD = ROW_MASKS || FFPA_VARLEN || FFPA_CACHE;
FFPA_DEVICE bool guarded(int clear_from, int clear_to, int key)
{
    return GUARD && (FFPA_MASK || key < clear_from || key + BN > clear_to);
}

// ---- copies --------------------------------------------------------------------------------------

// Warp 2. The record of tile k + 1 is written while tile k runs, into the place of tile k - 1.
FFPA_DEVICE void produce_tiles(Tile *tiles, u32 base, const fwd_one_args &a)
{
    const int all = a.f.tiles * a.heads;
    const int items = FFPA_SPLIT ? a.parts.whole + (all - a.parts.whole) * a.parts.splits : all;
#pragma unroll 1
    for (int k = 0;; k++) {
        Tile t;
        int item = next_item(a, items, k == 0);
        while (item < items && !tile_of(a, item, t)) item = next_item(a, items, false);
        if (item >= items) t.first = t.end = 0;
        if (k >= 2) mbar_wait(base + TILE_FREE + 8 * (k & 1), (k >> 1 & 1) ^ 1);
        tiles[k & 1] = t;
        mbar_arrive(base + TILE_FULL + 8 * (k & 1));
        if (item >= items) return;
#pragma unroll 1
        for (int team = 0; team < TEAMS; team++) {
            const u32 full = base + Q_FULL + 8 * team;
            if (k > 0) mbar_wait(base + Q_FREE + 8 * team, (k & 1) ^ 1);
            mbar_expect(full, Q_BYTES);
#pragma unroll
            for (int c = 0; c < DC; c++)
                tma_load_4d(base + S_Q + team * Q_BYTES + c * 64 * 128, &a.q_map, full, c * 64,
                            (int)t.seq.q_row + t.row + team * 64, t.head, (int)t.seq.q_batch);
        }
    }
}

// Warp 0.
FFPA_DEVICE void produce_k(Tile *tiles, u32 base, const fwd_one_args &a)
{
    Ring r = {0, 0};
#pragma unroll 1
    for (int k = 0;; k++) {
        const Tile &t = tile_wait(tiles, base, k);
        const int head = t.head / a.f.group, batch = (int)t.seq.k_batch, first = t.first;
        const int row = (int)t.seq.k_row;
        int block = t.end;
        mbar_arrive(tile_free(base, k));
        if (block == first) return;
#pragma unroll 1
        while (--block >= first) {
            const u32 full = base + K_FULL + 8 * r.slot, data = base + S_K + r.slot * K_BYTES;
            mbar_wait(base + K_FREE + 8 * r.slot, r.parity ^ 1);
            mbar_expect(full, K_BYTES);
#pragma unroll
            for (int c = 0; c < DC; c++)
                tma_load_4d(data + c * BN * 128, &a.k_map, full, c * 64, row + block * BN, head, batch);
            ring_next<K_STAGES>(r);
        }
    }
}

// Warp 1, all lanes. A guarded block is complete for the teams when the warp has looked at it.
FFPA_DEVICE void produce_v(Tile *tiles, u32 base, const fwd_one_args &a)
{
    const bool one = (threadIdx.x & 31) == 0;
    Ring r = {0, 0};
    u32 raw_parity = 0;
#pragma unroll 1
    for (int k = 0;; k++) {
        Tile &t = tile_wait(tiles, base, k);
        const int first = t.first, clear_from = t.clear_from, clear_to = t.clear_to;
        const int head = t.head / a.f.group, batch = (int)t.seq.k_batch, row = (int)t.seq.k_row;
        int block = t.end;
        warp_arrive(tile_free(base, k));
        if (block == first) return;
#pragma unroll 1
        while (--block >= first) {
            const u32 full = base + V_FULL + 8 * r.slot, data = base + S_V + r.slot * V_BYTES;
            const int key = block * BN;
            const bool look = guarded(clear_from, clear_to, key);
            const u32 bar = look ? base + V_RAW : full;
            mbar_wait(base + V_FREE + 8 * r.slot, r.parity ^ 1);
            if (one) {
                mbar_expect(bar, V_BYTES);
#pragma unroll
                for (int c = 0; c < VC; c++)
                    tma_load_4d(data + c * BN * 128, &a.v_map, bar, c * 64, row + key, head, batch);
            }
            if (look) {
                mbar_wait(bar, raw_parity);
                raw_parity ^= 1;
                if (guard_clean<V_BYTES>(data) && one) t.dirty = 1;
                if (one) mbar_arrive(full);
            }
            ring_next<V_STAGES>(r);
        }
    }
}

// ---- products ------------------------------------------------------------------------------------

FFPA_DEVICE void scores_issue(Math &w)
{
    mbar_wait(w.base + K_FULL + 8 * w.k.slot, w.k.parity);
    wgmma_fence();
    const u32 q = desc_chunk(w.base + S_Q + w.team * Q_BYTES), k = desc_chunk(w.base + S_K) + w.k.slot * (K_BYTES >> 4);
#pragma unroll
    for (int x = 0; x < STEPS; x++)
        wgmma_kk(w.s, q + x / 4 * (64 * 128 >> 4) + 2 * (x % 4), k + x / 4 * (BN * 128 >> 4) + 2 * (x % 4), x);
    wgmma_commit();
}

// O += P V for 16 keys. An instruction takes 256 columns at most: more go in two, the first of whole chunks.
template <int N> FFPA_DEVICE void output_step(float (&o)[N], const u32 *p, u32 v)
{
    constexpr int CHUNKS = 3, FIRST = CHUNKS * 64 / 2;
    if constexpr (N <= 128) {
        wgmma_rn(o, p, v, 1);
    } else {
        wgmma_rn(reinterpret_cast<float(&)[FIRST]>(o), p, v, 1);
        wgmma_rn(reinterpret_cast<float(&)[N - FIRST]>(o[FIRST]), p, v + CHUNKS * (BN * 128 >> 4), 1);
    }
}

FFPA_DEVICE void output_issue(Math &w)
{
    mbar_wait(w.base + V_FULL + 8 * w.v.slot, w.v.parity);
    wgmma_fence(); // its own, because a wait lies between the two groups: else ptxas adds arrivals (C7519)
    const u32 v = desc_chunks(w.base + S_V, BN * 128) + w.v.slot * (V_BYTES >> 4);
#pragma unroll
    for (int x = 0; x < BN / 16; x++) output_step(w.o, w.p + 4 * x, v + x * (16 * 128 >> 4));
    wgmma_commit();
}

// Until all but the last BEHIND groups are complete; then K's slot goes back.
template <int BEHIND> FFPA_DEVICE void scores_wait(Math &w)
{
    wgmma_wait<BEHIND>();
    if ((threadIdx.x & 31) == 0) mbar_arrive(w.base + K_FREE + 8 * w.k.slot);
    ring_next<K_STAGES>(w.k);
    pin(w.s);
}

FFPA_DEVICE void output_wait(Math &w)
{
    wgmma_wait<0>();
    if ((threadIdx.x & 31) == 0) mbar_arrive(w.base + V_FREE + 8 * w.v.slot);
    ring_next<V_STAGES>(w.v);
    pin(w.o);
}

FFPA_DEVICE void turn_wait(u32 team) { named_sync<256>(1 + team); }
FFPA_DEVICE void turn_pass(u32 team) { named_arrive<256>(1 + (team + 1 == TEAMS ? 0 : team + 1)); }

// ---- one tile of a team --------------------------------------------------------------------------

// The first of this thread's rows; the second is 8 on.
FFPA_DEVICE int team_row(u32 team) { return team * 64 + (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7); }

struct TeamKeys {
    int clear_from, clear_to; // keys that every row of the team sees
    int end;                  // past the last that any row sees
};

// Rows past the end count as the last one.
FFPA_DEVICE TeamKeys team_keys(const fwd_one_args &a, const Tile &t, u32 team)
{
    const k_scores &c = a.f.scores;
    const int last = t.seq.nq - 1, from = t.row + (int)team * 64 < last ? t.row + (int)team * 64 : last;
    const int to = from + 63 < last ? from + 63 : last;
    const KeyRange first_keys = key_range(c.left, c.right, c.top_left, from, t.seq.nq, t.seq.nk);
    const KeyRange last_keys = key_range(c.left, c.right, c.top_left, to, t.seq.nq, t.seq.nk);
    return {last_keys.lo, first_keys.hi, last_keys.hi};
}

// Past every key that a team sees it still takes part in the rings and in the turns.
FFPA_DEVICE void block_skip(Math &w)
{
    const bool one = (threadIdx.x & 31) == 0;
    mbar_wait(w.base + K_FULL + 8 * w.k.slot, w.k.parity); // an arrival before it would count for the slot's last use
    mbar_wait(w.base + V_FULL + 8 * w.v.slot, w.v.parity);
    if (one) mbar_arrive(w.base + K_FREE + 8 * w.k.slot);
    if (one) mbar_arrive(w.base + V_FREE + 8 * w.v.slot);
    ring_next<K_STAGES>(w.k);
    ring_next<V_STAGES>(w.v);
    turn_wait(w.team);
    turn_pass(w.team);
}

// S of the block at `key` to scores.
FFPA_DEVICE void block_scores(Math &w, const fwd_one_args &a, const Tile &t, int key, bool inside)
{
    const int column = key + 2 * (threadIdx.x & 3);
    if (!SHARED_SCORES && w.rows.unit == 1.0f) scores_multiply(w.s, a.unit);
    if (!SHARED_SCORES && inside) return;
    const int row = t.row + team_row(w.team), last = t.seq.nq - 1;
    const int i[2] = {row < last ? row : last, row + 8 < last ? row + 8 : last};
    if (SHARED_SCORES) {
        const ScoreRow rows[2] = {score_row(a.f.scores, t.seq, t.head, i[0]), score_row(a.f.scores, t.seq, t.head, i[1])};
        scores_shared(w.s, a.f.scores, rows, column, inside);
    } else {
        const k_scores &c = a.f.scores;
        const KeyRange seen[2] = {key_range(c.left, c.right, c.top_left, i[0], t.seq.nq, t.seq.nk),
                                  key_range(c.left, c.right, c.top_left, i[1], t.seq.nq, t.seq.nk)};
        scores_range(w.s, seen, column);
    }
}

// What dropout takes leaves P, not the sums.
FFPA_DEVICE void block_drop(Math &w, const fwd_one_args &a, const DropKey &drop, const Tile &t, int key)
{
    if (!FFPA_DROPOUT) return;
    const int row = t.row + team_row(w.team), column = key + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int i = 0; i < BN / 2; i += 2) {
        bool keeps[2];
        drop_keeps2(drop, t.seq.s * a.f.hq + t.head, row + 8 * (i >> 1 & 1), column + 8 * (i / 4), keeps);
        if (!keeps[0]) w.s[i] = 0.0f;
        if (!keeps[1]) w.s[i + 1] = 0.0f;
    }
}

FFPA_DEVICE void pack_weights(Math &w)
{
#pragma unroll
    for (int i = 0; i < BN / 4; i++) w.p[i] = pack2(w.s[2 * i], w.s[2 * i + 1]);
    pin(w.p);
}

FFPA_DEVICE void rescale(Math &w)
{
#pragma unroll
    for (int i = 0; i < WIDE / 2; i++) w.o[i] *= w.rows.r[i >> 1 & 1];
}

// The NaN and Inf of V that guard_clean took out, for the rows that see their keys.
FFPA_DEVICE void guard_add(Math &w, const fwd_one_args &a, const Tile &t)
{
    const KeyRows v = key_rows(a.f.v, a.f.seq, t.seq, t.head / a.f.group, ES);
    const int row = t.row + team_row(w.team), last = t.seq.nq - 1;
#pragma unroll 1
    for (int j = t.first * BN; j < t.end * BN && j < t.seq.nk; j++) {
        if (!guarded(t.clear_from, t.clear_to, j / BN * BN)) continue;
        const char *from = key_row(v, a.f.seq, j);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row + 8 * half < last ? row + 8 * half : last;
            if (score(a.f.scores, score_row(a.f.scores, t.seq, t.head, i), 0.0f, j, false) == -FFPA_INF) continue;
            bool keeps[2] = {true, true};
            if (FFPA_DROPOUT) drop_keeps2(drop_key(a.f.dropout), t.seq.s * a.f.hq + t.head, i, j & ~1, keeps);
            const bool kept = j & 1 ? keeps[1] : keeps[0];
#pragma unroll
            for (int n = 0; n < WIDE / 4; n++) { // columns 8 (n / 2) + 2 (lane & 3) + n % 2
                const int c = 8 * (n / 2) + 2 * (threadIdx.x & 3) + n % 2;
                const float x = c < DV ? element_get_alone(from, c, DTYPE) : 0.0f;
                if (!(fabsf(x) < FFPA_INF)) // a dropped weight is 0, and 0 times Inf is NaN
                    w.o[4 * (n / 2) + 2 * half + n % 2] += kept ? x : x * 0.0f;
            }
        }
    }
}

// O and LSE of a part of the keys.
FFPA_DEVICE void part_store(Math &w, const fwd_one_args &a, const Tile &t)
{
    const int row = t.row + team_row(w.team);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + 8 * half;
        const bool inside = i < t.seq.nq;
        const float l = softmax_sum(w.rows.l[half]);
        const float factor = l == 0.0f ? 0.0f : (FFPA_DROPOUT ? a.f.dropout.keep_scale : 1.0f) / l;
        const i64 at = part_row(a.parts, a.f.seq, a.f.hq, t.seq, t.head, part_of(t), i);
        if (inside && (threadIdx.x & 3) == 0) a.parts.lse[at] = softmax_lse(w.rows.m[half], l, a.back, a.back_rest);
        const OutRow out = {a.parts.o, at * DV, 1, DV, DV % 2 == 0};
        store_row<F32, DV>(out, w.o, half, factor, false, inside);
    }
}

FFPA_DEVICE void rows_store(Math &w, const fwd_one_args &a, const Tile &t)
{
    const int row = t.row + team_row(w.team);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + 8 * half;
        const bool inside = i < t.seq.nq;
        const float l = softmax_sum(w.rows.l[half]);
        const float factor = l == 0.0f ? 0.0f : (FFPA_DROPOUT ? a.f.dropout.keep_scale : 1.0f) / l;
        const k_tensor &lse = a.f.lse, &o = a.f.o;
        if (inside && (threadIdx.x & 3) == 0 && lse.data)
            ((float *)lse.data)[t.seq.q_batch * lse.sb + t.head * lse.sh + (t.seq.q_row + i) * lse.sn] =
                softmax_lse(w.rows.m[half], l, a.back, a.back_rest);
        const OutRow out = {o.data, t.seq.q_batch * o.sb + t.head * o.sh + (t.seq.q_row + i) * o.sn, o.sd, DV,
                            stores_pairs(o, FFPA_O_DTYPE, DV)};
        store_row<FFPA_O_DTYPE, DV>(out, w.o, half, factor, a.wide, inside);
    }
}

FFPA_DEVICE void consume_tile(Math &w, const fwd_one_args &a, const Tile &t, const DropKey &drop, int k)
{
    const bool one = (threadIdx.x & 31) == 0;
    const TeamKeys keys = team_keys(a, t, w.team);
    const int first = t.first * BN;
    int key = (t.end - 1) * BN;
#pragma unroll
    for (int i = 0; i < WIDE / 2; i++) w.o[i] = 0.0f;
    softmax_begin(w.rows, a.unit, a.f.scores, t.head);
    if (FFPA_RANGE)
#pragma unroll 1
        for (; key > first && key >= keys.end; key -= BN) block_skip(w);
    mbar_wait(w.base + Q_FULL + 8 * w.team, k & 1);
    scores_issue(w); // the first S has nothing to overlap with
    scores_wait<0>(w);
    if (key == first && one) mbar_arrive(w.base + Q_FREE + 8 * w.team);
    block_scores(w, a, t, key, key >= keys.clear_from && key + BN <= keys.clear_to);
    softmax_base(w.rows, w.s);
    softmax_weights(w.rows, w.s);
    block_drop(w, a, drop, t, key);
    pack_weights(w);
#pragma unroll 1
    while (key > first) {
        w.base = opaque(w.base);
        key -= BN;
        turn_wait(w.team);
        scores_issue(w);
        output_issue(w);
        turn_pass(w.team);
        scores_wait<1>(w);
        if (key == first && one) mbar_arrive(w.base + Q_FREE + 8 * w.team);
        block_scores(w, a, t, key, key >= keys.clear_from && key + BN <= keys.clear_to);
        softmax_base(w.rows, w.s);
        softmax_weights(w.rows, w.s);
        block_drop(w, a, drop, t, key);
        output_wait(w);
        pin(w.p);
        pin(w.s);
        if (w.rows.moved) rescale(w);
        pack_weights(w);
    }
    output_issue(w);
    output_wait(w);
    if (GUARD && t.dirty) guard_add(w, a, t);
    if (part_of(t) != ALL_KEYS)
        part_store(w, a, t);
    else
        rows_store(w, a, t);
}

FFPA_DEVICE void consume(Tile *tiles, u32 base, const fwd_one_args &a)
{
    const DropKey drop = FFPA_DROPOUT ? drop_key(a.f.dropout) : DropKey{0, 0, 0, 0};
    Math w;
    w.base = base;
    w.team = __shfl_sync(~0u, threadIdx.x / TEAM - 1, 0); // one value per warp, and the compiler knows it
    w.k = w.v = {0, 0};
    if (w.team == TEAMS - 1) turn_pass(w.team); // team 0 begins
#pragma unroll 1
    for (int k = 0;; k++) {
        const Tile &t = tile_wait(tiles, base, k);
        if (t.end == t.first) break;
        consume_tile(w, a, t, drop, k);
        warp_arrive(tile_free(base, k));
    }
    if (w.team == 0) turn_wait(w.team); // the last turn was passed to team 0: no barrier is left half full
}

// ---- the kernel ----------------------------------------------------------------------------------

FFPA_DEVICE void barriers_init(u32 base)
{
    for (int t = 0; t < TEAMS; t++) {
        mbar_init(base + Q_FULL + 8 * t, 1);
        mbar_init(base + Q_FREE + 8 * t, 4);
    }
    for (int s = 0; s < K_STAGES; s++) {
        mbar_init(base + K_FULL + 8 * s, 1);
        mbar_init(base + K_FREE + 8 * s, 4 * TEAMS);
    }
    for (int s = 0; s < V_STAGES; s++) {
        mbar_init(base + V_FULL + 8 * s, 1);
        mbar_init(base + V_FREE + 8 * s, 4 * TEAMS);
    }
    mbar_init(base + V_RAW, 1);
    for (int i = 0; i < 2; i++) {
        mbar_init(base + TILE_FULL + 8 * i, 1);
        mbar_init(base + TILE_FREE + 8 * i, (4 * TEAMS + 1) * WARP_ARRIVALS + 1);
    }
    mbar_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ffpa_kernel(const __grid_constant__ fwd_one_args a)
{
    extern __shared__ __align__(1024) u8 memory[];
    Tile *tiles = (Tile *)(memory + S_TILES);
    const u32 base = smem_addr(memory);
    if (threadIdx.x == 0) barriers_init(base);
    __syncthreads();
    if (threadIdx.x >= TEAM) {
        regs_more<MATH_REGS>();
        consume(tiles, base, a);
        return;
    }
    regs_less<LOAD_REGS>();
    if (threadIdx.x == 0) produce_k(tiles, base, a);
    if (threadIdx.x >> 5 == 1) produce_v(tiles, base, a);
    if (threadIdx.x == 64) produce_tiles(tiles, base, a);
}
