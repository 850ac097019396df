// fwd_sm80.cuh - attention forward and decode on mma.sync: O = softmax(S) V, BM query rows a CTA.
//     S = Q K^T (BM x BN),  m, l per row,  P = e^(S - m),  O = P V / l,  LSE = m + ln l
//
// Why warps in WM x WN, with WN > 1: O is BM x DV in f32 registers; with all warps stacked on the rows a
// warp reads all of K and V for 16 rows, 16 flop per byte of shared memory. WN warps that share rows split
// the keys for S and the columns for O; a warp then has 32 rows, B fragments serve two row groups, and D = 512
// fits (128 registers of O). The price is P and the row maximum going through shared memory.
//
//              time ->
//   copies    | Q K0 K1 | K2 ..       | V0 V1 ..    | next K0 ..        cp.async, STAGES - 1 slots ahead
//   warp m, n | S[m, keys n] += Q K^T | max, P, l   | O[m, columns n] += P V
//
// Barriers (all __syncthreads)
//   ring_turn   the slot has arrived for every thread, and the slot before it may be overwritten; the first
//               one after the softmax also publishes P
//   row maxima  WN > 1: the maxima of all key parts are written
//   guard       once, at the end: did any thread find NaN or Inf in V where rows differ in what they see?
//
// Shared: Q BM x D | P BM x BN | STAGES slots of BN x PANELS x 128 bytes | maxima, sums | work item
// A slot holds PANELS panels of K for BN keys, or VK keys of V by VP_SLOT panels.
#include "common/dropout.cuh"
#include "common/epilogue.cuh"
#include "common/scores.cuh"
#include "common/shapes.h"
#include "common/tiles.cuh"

static constexpr int D = FFPA_D, DV = FFPA_DV, BM = FFPA_BM, BN = FFPA_BN, STAGES = FFPA_STAGES;
static constexpr int WM = FFPA_WM, WN = FFPA_WN, THREADS = 32 * WM * WN;
static constexpr int MT = BM / WM / 16, SG = BN / WN / 16; // row groups, key groups of a warp
static constexpr int QP = shape_panels(D, ES), VP = shape_panels(DV, ES);
static constexpr int PANELS = FFPA_PANELS, K_TURNS = (QP + PANELS - 1) / PANELS;
static constexpr int SLOT = BN * 128 * PANELS, SLOT_PANELS16 = SLOT / (16 * 128); // 16-key panels that fit
static constexpr int V_PARTS = (VP + SLOT_PANELS16 - 1) / SLOT_PANELS16;
static constexpr int V_UNIT = V_PARTS == 1 || WN < GROUPS_PER_PANEL ? 1 : WN / GROUPS_PER_PANEL; // panels that split over WN warps
static constexpr int VP_SLOT = ((VP + V_PARTS - 1) / V_PARTS + V_UNIT - 1) / V_UNIT * V_UNIT;
static constexpr int VK = VP_SLOT * 4 <= SLOT_PANELS16 ? 64 : VP_SLOT * 2 <= SLOT_PANELS16 ? 32 : 16;
static constexpr int V_TURNS = BN / VK * V_PARTS, TURNS = K_TURNS + V_TURNS;
static constexpr int GROUPS = (DV + 15) / 16;                     // 16-column groups of O
static constexpr int PART_GROUPS = VP_SLOT * GROUPS_PER_PANEL;    // of one part of V
static constexpr int OG_PART = (PART_GROUPS + WN - 1) / WN;       // of a warp, in one part
static constexpr int OG = V_PARTS == 1 ? (GROUPS + WN - 1) / WN : OG_PART * V_PARTS;

static constexpr int S_Q = 0, S_P = BM * 128 * QP, S_RING = S_P + BM * BN * ES, S_ROWS = S_RING + STAGES * SLOT,
                     S_WORK = S_ROWS + BM * WN * 8, S_BYTES = S_WORK + 192;
static_assert(S_BYTES == fwd_shared_bytes(D, ES, BM, BN, WN, STAGES * PANELS), "shapes.h disagrees");
static_assert(S_BYTES <= 227 * 1024, "shared budget: fewer STAGES, smaller BM or BN");
static_assert(MT * 16 * WM == BM && SG * 16 * WN == BN && BN % VK == 0, "warps do not tile BM x BN");
static_assert(BN * ES % 128 == 0, "P is whole panels");
static_assert(V_PARTS == 1 || PART_GROUPS % WN == 0, "a part of V does not split over WN warps");
static_assert(MT * (OG + SG) * 8 <= 224, "register budget: smaller BM for this DV, or more warps");

struct Work {
    Sequence seq;
    int row, rows;          // first row of the tile in its sequence (of n * group with PACK), rows there
    int h, hk, split;       // query head (unless PACK), key head
    int tile, end;          // key tiles [tile, end)
    int clear_from, clear_to; // key tiles that every row sees whole
    KeyRows k, v;
};
static_assert(sizeof(Work) <= 192, "shapes.h: the work item has 192 bytes");

// Row r of the tile: token and query head.
FFPA_DEVICE int token_of(const fwd_args &a, const Work &w, int r)
{
    return FFPA_PACK ? (w.row + r) / a.group : w.row + r;
}
FFPA_DEVICE int head_of(const fwd_args &a, const Work &w, int r)
{
    return FFPA_PACK ? w.hk * a.group + (w.row + r) % a.group : w.h;
}

FFPA_DEVICE void work_keys(const fwd_args &a, Work &w)
{
    const k_scores &c = a.scores;
    const int last = w.row + BM < w.rows ? BM - 1 : w.rows - 1 - w.row;
    const KeyRange first_keys = key_range(c.left, c.right, c.top_left, token_of(a, w, 0), w.seq.nq, w.seq.nk);
    const KeyRange last_keys = key_range(c.left, c.right, c.top_left, token_of(a, w, last), w.seq.nq, w.seq.nk);
    w.tile = first_keys.lo / BN, w.end = (last_keys.hi + BN - 1) / BN;
    w.clear_from = (last_keys.lo + BN - 1) / BN, w.clear_to = first_keys.hi / BN;
    if (FFPA_SPLIT) {
        const int all = w.end > w.tile ? w.end - w.tile : 0, each = (all + a.splits - 1) / a.splits;
        w.tile += w.split * each;
        w.end = w.tile + each < w.end ? w.tile + each : w.end;
    }
}

// What this CTA computes. False: nothing.
FFPA_DEVICE bool work_of(const fwd_args &a, Work &w)
{
    const int group = FFPA_PACK ? a.group : 1;
    int x = blockIdx.x;
    w.split = 0;
    if (FFPA_SPLIT) w.split = x % a.splits, x /= a.splits;
    w.h = x / a.tiles;
    w.hk = FFPA_PACK ? w.h : w.h / a.group;
    const int line = x % a.tiles;
    const int s = line_owner(a.seq.cu_q, a.seq, line, a.seq.nq, group, BM);
    w.seq = sequence_at(a.seq, s);
    w.rows = w.seq.nq * group;
    w.row = line_row(a.seq.cu_q, a.seq, s, line, a.seq.nq, group, BM);
    if (w.row >= w.rows) return false;
    if (FFPA_RANGE) w.row = (w.rows - 1) / BM * BM - w.row; // the longest first
    work_keys(a, w);
    w.k = key_rows(a.k, a.seq, w.seq, w.hk, ES), w.v = key_rows(a.v, a.seq, w.seq, w.hk, ES);
    return true;
}

// ---- copies --------------------------------------------------------------------------------------

struct Feed {
    int tile, turn; // next to copy
    u32 slot;
};

FFPA_DEVICE void load_q(const fwd_args &a, const Work &w, u32 s_q)
{
#pragma unroll 1
    for (int x = threadIdx.x; x < BM * QP * 8; x += THREADS) {
        const int r = (x >> 3) % BM, p = (x >> 3) / BM, piece = x & 7;
        const bool in = w.row + r < w.rows;
        const int i = in ? token_of(a, w, r) : 0, h = head_of(a, w, in ? r : 0);
        const char *row = (const char *)a.q.data +
                          (w.seq.q_batch * a.q.sb + h * a.q.sh + (w.seq.q_row + i) * a.q.sn) * ES;
        piece_load<FFPA_ALIGNED, DTYPE>(s_q + p * BM * 128 + panel_at(r, piece), row, a.q.sd,
                                        p * PANEL_COLUMNS + piece * (16 / ES), in ? D : 0);
    }
}

// COUNT panels of ROWS keys from key j0, from panel p0 of rows of COLUMNS.
template <int ROWS, int COUNT, int COLUMNS>
FFPA_DEVICE void load_panels(const k_sequences &q, int nk, const KeyRows &t, u32 dst, int j0, int p0)
{
    const int piece = threadIdx.x & 7;
    constexpr int PASS = THREADS / 8 < ROWS ? THREADS / 8 : ROWS;
#pragma unroll COPY_UNROLL
    for (int r0 = 0; r0 < ROWS; r0 += PASS) {
        const int slice = threadIdx.x / 8 / PASS, r = r0 + threadIdx.x / 8 % PASS, j = j0 + r;
        const bool in = j < nk;
        const char *row = in ? key_row(t, q, j) : t.base;
#pragma unroll COPY_UNROLL
        for (int p = slice; p < COUNT; p += THREADS / 8 / PASS)
            piece_load<FFPA_ALIGNED, DTYPE>(dst + p * ROWS * 128 + panel_at(r, piece), row, t.sd,
                                            (p0 + p) * PANEL_COLUMNS + piece * (16 / ES), in ? COLUMNS : 0);
    }
}

// What the next copy needs of the work item. Read before the barrier, which hides the way to shared memory.
struct Source {
    KeyRows rows;
    int nk;
};
FFPA_DEVICE Source source_of(const Work &w, const Feed &f) { return {f.turn < K_TURNS ? w.k : w.v, w.seq.nk}; }

// Copy the next slot, if there is one, and close a group either way.
FFPA_DEVICE void feed(const fwd_args &a, const Source &s, int end, Feed &f, u32 ring)
{
    if (f.tile < end) {
        const u32 dst = ring + f.slot * SLOT;
        if (f.turn < K_TURNS) {
            load_panels<BN, PANELS, D>(a.seq, s.nk, s.rows, dst, f.tile * BN, f.turn * PANELS);
        } else {
            const int v = f.turn - K_TURNS;
            load_panels<VK, VP_SLOT, DV>(a.seq, s.nk, s.rows, dst, f.tile * BN + v / V_PARTS * VK, v % V_PARTS * VP_SLOT);
        }
        if (++f.turn == TURNS) f.turn = 0, f.tile++;
        f.slot = f.slot + 1 == STAGES ? 0 : f.slot + 1;
    }
    cp_commit();
}

// Take NaN and Inf out of the pieces of V that this thread copied. Were there any?
FFPA_DEVICE bool guard_scan(u32 slot)
{
    constexpr int PASS = THREADS / 8 < VK ? THREADS / 8 : VK;
    bool found = false;
#pragma unroll 1
    for (int r0 = 0; r0 < VK; r0 += PASS) {
        const int r = r0 + threadIdx.x / 8 % PASS;
#pragma unroll 1
        for (int p = threadIdx.x / 8 / PASS; p < VP_SLOT; p += THREADS / 8 / PASS)
            found |= piece_clean(slot + p * VK * 128 + panel_at(r, threadIdx.x & 7));
    }
    return found;
}

// ---- one tile ------------------------------------------------------------------------------------

struct Rows { // state of this thread's MT * 2 rows: 16 mt + g, 16 mt + g + 8
    float m[MT][2], l[MT][2];
};

typedef float STile[MT][SG][2][4];
typedef float OTile[MT][OG][2][4];

FFPA_DEVICE int warp_m() { return (threadIdx.x >> 5) / WN; }
FFPA_DEVICE int warp_n() { return (threadIdx.x >> 5) % WN; }

// Row of the tile of element e (0..3) of row group mt.
FFPA_DEVICE int row_of(int mt, int half) { return warp_m() * MT * 16 + mt * 16 + half * 8 + (lane_id() >> 2); }
FFPA_DEVICE int column_of(int n) { return ((n / 2) * WN + warp_n()) * 16 + n % 2 * 8 + (lane_id() & 3) * 2; } // of O
FFPA_DEVICE int key_of(int sg, int n8) { return warp_n() * SG * 16 + sg * 16 + n8 * 8 + (lane_id() & 3) * 2; }

FFPA_DEVICE void scores_step(STile &s, u32 s_q, u32 slot, int turn)
{
#pragma unroll
    for (int p = 0; p < PANELS; p++) {
        if (PANELS > 1 && QP % PANELS && turn * PANELS + p >= QP) break;
#pragma unroll STEP_UNROLL
        for (int k = 0; k < 4; k++) {
            u32 q[MT][4], b[SG][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
                frag_a(q[m], s_q + (turn * PANELS + p) * BM * 128, (warp_m() * MT + m) * 16, k);
#pragma unroll
            for (int n = 0; n < SG; n++) frag_b(b[n], slot + p * BN * 128, (warp_n() * SG + n) * 16, k);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < SG; n++) mma_step16(s[m][n], q[m], b[n]);
        }
    }
}

FFPA_DEVICE void output_step(OTile &o, u32 s_p, u32 slot, int first_key, int part)
{
#pragma unroll STEP_UNROLL
    for (int k = 0; k < VK; k += STEP) {
        u32 p[MT][4];
        const int column = (first_key + k) * ES; // of P, in bytes
#pragma unroll
        for (int m = 0; m < MT; m++)
            frag_a(p[m], s_p + (column >> 7) * BM * 128, (warp_m() * MT + m) * 16, (column >> 5) & 3);
#pragma unroll
        for (int n = 0; n < OG / V_PARTS; n++) {
            const int g = n * WN + warp_n(); // in this part
            if ((OG / V_PARTS * WN > PART_GROUPS) && g >= PART_GROUPS) break;
            u32 v[4];
            frag_b_rows(v, slot + g / GROUPS_PER_PANEL * VK * 128, k, g % GROUPS_PER_PANEL * ES);
#pragma unroll
            for (int m = 0; m < MT; m++) mma_step16(o[m][part * (OG / V_PARTS) + n], p[m], v);
        }
    }
}

// S to scores; the maxima of this thread's rows.
FFPA_DEVICE void scores_finish(const fwd_args &a, const Work &w, STile &s, float (&top)[MT][2], int tile)
{
    const bool clear = tile >= w.clear_from && tile < w.clear_to;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row_of(m, half), in = w.row + r < w.rows ? r : 0;
            const ScoreRow row = score_row(a.scores, w.seq, head_of(a, w, in), token_of(a, w, in));
            float x = -FFPA_INF;
#pragma unroll
            for (int n = 0; n < SG * 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &v = s[m][n / 2][n % 2][half * 2 + e];
                    v = score_capped(a.scores, v);
                    v = score(a.scores, row, v, tile * BN + key_of(n / 2, n % 2) + e, clear);
                    x = fmaxf(x, v);
                }
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
            top[m][half] = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
        }
}

// Maxima over the warps that share rows.
FFPA_DEVICE void maxima_share(float (&top)[MT][2], float *s_rows)
{
    if (WN == 1) return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if ((lane_id() & 3) == 0) s_rows[warp_n() * BM + row_of(m, half)] = top[m][half];
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < WN; n++) top[m][half] = fmaxf(top[m][half], s_rows[n * BM + row_of(m, half)]);
}

// m, l and P of a tile; O to the new base. A row whose maximum stays keeps its O bit for bit.
FFPA_DEVICE void softmax_step(Rows &rows, OTile &o, STile &s, const float (&top)[MT][2])
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
        float keep[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float max = fmaxf(rows.m[m][half], top[m][half]);
            const float base = max == -FFPA_INF ? 0.0f : max; // no key yet: e^(-inf - 0) = 0, not NaN
            keep[half] = exp_of(rows.m[m][half] - base);
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < SG * 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &v = s[m][n / 2][n % 2][half * 2 + e];
                    v = exp_of(v - base);
                    sum += v;
                }
            rows.l[m][half] = rows.l[m][half] * keep[half] + sum;
            rows.m[m][half] = max;
        }
        if (__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
            for (int n = 0; n < OG * 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[m][n / 2][n % 2][e] *= keep[e / 2];
        }
    }
}

// P to shared memory, without what dropout takes.
FFPA_DEVICE void weights_put(const fwd_args &a, const Work &w, const DropKey &key, STile &s, u32 s_p, int tile)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row_of(m, half);
            const u32 bh = FFPA_DROPOUT ? w.seq.s * a.hq + head_of(a, w, r) : 0;
            const int i = FFPA_DROPOUT ? token_of(a, w, r) : 0;
#pragma unroll
            for (int n = 0; n < SG * 2; n++) {
                float *v = s[m][n / 2][n % 2] + half * 2;
                bool keeps[2] = {true, true};
                if (FFPA_DROPOUT) drop_keeps2(key, bh, i, tile * BN + key_of(n / 2, n % 2), keeps);
                tile_put2(s_p, BM, r, key_of(n / 2, n % 2), keeps[0] ? v[0] : 0.0f, keeps[1] ? v[1] : 0.0f);
            }
        }
}

// Does a tile go through guard_scan? Only where rows may differ in the keys they see.
FFPA_DEVICE bool guarded(const Work &w, int tile)
{
    return ROW_MASKS && (FFPA_MASK || tile < w.clear_from || tile >= w.clear_to);
}

// Which of this thread's rows see key j? Bit 2 m + half.
FFPA_DEVICE u32 rows_seeing(const fwd_args &a, const Work &w, int j)
{
    u32 seen = 0;
#pragma unroll
    for (int m = 0; m < MT * 2; m++) {
        const int r = row_of(m / 2, m % 2), in = w.row + r < w.rows ? r : 0;
        const ScoreRow row = score_row(a.scores, w.seq, head_of(a, w, in), token_of(a, w, in));
        seen |= (u32)(score(a.scores, row, 0.0f, j, false) != -FFPA_INF) << m;
    }
    return seen;
}

// For which of this thread's rows does dropout keep the weight of key j? Bit 2 m + half.
FFPA_DEVICE u32 rows_keeping(const fwd_args &a, const Work &w, int j)
{
    const DropKey key = drop_key(a.dropout);
    u32 kept = 0;
#pragma unroll
    for (int m = 0; m < MT * 2; m++) {
        const int r = row_of(m / 2, m % 2), in = w.row + r < w.rows ? r : 0;
        bool keeps[2];
        drop_keeps2(key, w.seq.s * a.hq + head_of(a, w, in), token_of(a, w, in), j & ~1, keeps);
        kept |= (u32)(j & 1 ? keeps[1] : keeps[0]) << m;
    }
    return kept;
}

// After the last tile, and only if guard_scan found some: the NaN and Inf of V for the rows that see their keys.
FFPA_DEVICE void guard_add(const fwd_args &a, const Work &w, OTile &o)
{
#pragma unroll 1
    for (int j = w.tile * BN; j < w.end * BN && j < w.seq.nk; j++) {
        if (!guarded(w, j / BN)) continue;
        const char *row = key_row(w.v, a.seq, j);
        const u32 seen = rows_seeing(a, w, j), kept = FFPA_DROPOUT ? rows_keeping(a, w, j) : ~0u;
        const i64 sd = opaque(w.v.sd);
#pragma unroll
        for (int n = 0; n < OG * 4; n++) {
            const int c = column_of(n / 2) + n % 2;
            const float v = c < DV ? element_get_alone(row, c * sd, DTYPE) : 0.0f;
            if (fabsf(v) < FFPA_INF) continue;
#pragma unroll
            for (int m = 0; m < MT * 2; m++)
                if (seen >> m & 1) // a dropped weight is 0, and 0 times Inf is NaN
                    o[m / 2][n / 4][n / 2 % 2][m % 2 * 2 + n % 2] += kept >> m & 1 ? v : v * 0.0f;
        }
    }
}

// ---- results -------------------------------------------------------------------------------------

// l over the quad and over the warps that share rows.
FFPA_DEVICE void sums_share(Rows &rows, float *s_sums)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float &l = rows.l[m][half];
            l += __shfl_xor_sync(~0u, l, 1);
            l += __shfl_xor_sync(~0u, l, 2);
            if (WN > 1 && (lane_id() & 3) == 0) s_sums[warp_n() * BM + row_of(m, half)] = l;
        }
    if (WN == 1) return;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float l = 0.0f;
#pragma unroll
            for (int n = 0; n < WN; n++) l += s_sums[n * BM + row_of(m, half)];
            rows.l[m][half] = l;
        }
}

// O and LSE of one row, where they go: the outputs, or this split's part of the workspace.
FFPA_DEVICE OutRow row_out(const fwd_args &a, const Work &w, int r, float lse)
{
    const int i = token_of(a, w, r), h = head_of(a, w, r);
    const bool writer = warp_n() == 0 && (lane_id() & 3) == 0;
    const i64 row = w.seq.q_row + i;
    if (FFPA_SPLIT) {
        const i64 at = (w.split * (i64)a.hq + h) * a.seq.total_q + row +
                       (FFPA_VARLEN && a.seq.cu_q ? 0 : (i64)w.seq.s * a.seq.nq);
        if (writer) a.lse_part[at] = lse;
        return {a.o_part, at * DV, 1, DV, DV % 2 == 0};
    }
    if (writer && a.lse.data) ((float *)a.lse.data)[w.seq.q_batch * a.lse.sb + h * a.lse.sh + row * a.lse.sn] = lse;
    return {a.o.data, w.seq.q_batch * a.o.sb + h * a.o.sh + row * a.o.sn, a.o.sd, DV, stores_pairs(a.o, FFPA_O_DTYPE, DV)};
}

FFPA_DEVICE void rows_store(const fwd_args &a, const Work &w, Rows &rows, OTile &o)
{
    const float keep_scale = FFPA_DROPOUT ? a.dropout.keep_scale : 1.0f;
#pragma unroll
    for (int m = 0; m < MT * 2; m++) {
        const int r = row_of(m / 2, m % 2);
        if (w.row + r >= w.rows) continue;
        const float l = rows.l[m / 2][m % 2], inverse = l == 0.0f ? 0.0f : keep_scale / l;
        const OutRow out = row_out(a, w, r, l == 0.0f ? -FFPA_INF : rows.m[m / 2][m % 2] + logf(l));
#pragma unroll
        for (int n = 0; n < OG * 2; n++) {
            const float *x = o[m / 2][n / 2][n % 2] + m % 2 * 2;
            store2<FFPA_SPLIT ? F32 : FFPA_O_DTYPE>(out, column_of(n), x[0] * inverse, x[1] * inverse);
        }
    }
}

// ---- the kernel ----------------------------------------------------------------------------------

FFPA_DEVICE void rows_begin(const fwd_args &a, const Work &w, Rows &rows, OTile &o)
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.m[m][half] = -FFPA_INF, rows.l[m][half] = 0.0f;
            if (!FFPA_SINK || w.split != 0) continue;
            const int r = row_of(m, half); // the sink is a key without a value: one thread counts it
            rows.m[m][half] = a.scores.sink[head_of(a, w, w.row + r < w.rows ? r : 0) * a.scores.sink_sh];
            if (warp_n() == 0 && (lane_id() & 3) == 0 && rows.m[m][half] != -FFPA_INF) rows.l[m][half] = 1.0f;
        }
#pragma unroll
        for (int n = 0; n < OG * 8; n++) o[m][n / 8][n / 4 % 2][n % 4] = 0.0f;
    }
}

// Next slot of the ring: wait for it, publish it, refill the one before it.
FFPA_DEVICE u32 ring_turn(const fwd_args &a, const Work &w, Feed &f, u32 ring, u32 &slot)
{
    const Source source = source_of(w, f);
    const int end = w.end;
    __syncthreads();
    feed(a, source, end, f, ring);
    const u32 at = ring + slot * SLOT;
    slot = slot + 1 == STAGES ? 0 : slot + 1;
    return at;
}

// Decode: two CTAs a multiprocessor where O leaves registers for that.
static constexpr int WIDEST = DTYPE == F32 || !FFPA_ALIGNED ? 48 : 64;
extern "C" __global__ void __launch_bounds__(THREADS, BM <= 16 && MT * OG * 8 <= WIDEST ? 2 : 1)
    ffpa_kernel(const __grid_constant__ fwd_args a)
{
    extern __shared__ __align__(1024) u8 smem[];
    const u32 base = smem_addr(smem), ring = base + S_RING, s_p = base + S_P;
    float *s_rows = (float *)(smem + S_ROWS);
    Work work;
    if (!work_of(a, work)) return;
    // The work item lives in shared memory: read again where it is used, it leaves the registers to O.
    if (threadIdx.x == 0) *(Work *)(smem + S_WORK) = work;
    __syncthreads();
    const Work &w = *(const Work *)(smem + S_WORK);
    Feed f = {w.tile, 0, 0};
    const DropKey key = FFPA_DROPOUT ? drop_key(a.dropout) : DropKey{0, 0, 0, 0};
    Rows rows;
    OTile o;
    u32 slot = 0;
    bool found = false; // NaN or Inf in V, in a guarded tile
    rows_begin(a, w, rows, o);
    load_q(a, w, base + S_Q);
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) feed(a, source_of(w, f), w.end, f, ring);

#pragma unroll 1
    for (int tile = w.tile; tile < w.end; tile++) {
        // phase 1: S = Q K^T
        STile s;
#pragma unroll
        for (int n = 0; n < MT * SG * 8; n++) s[n / (SG * 8)][n / 8 % SG][n / 4 % 2][n % 4] = 0.0f;
#pragma unroll 1
        for (int turn = 0; turn < K_TURNS; turn++) {
            cp_wait<STAGES - 2>();
            scores_step(s, base + S_Q, ring_turn(a, w, f, ring, slot), turn);
        }
        // phase 2: m, l, P
        float top[MT][2];
        scores_finish(a, w, s, top, tile);
        maxima_share(top, s_rows);
        softmax_step(rows, o, s, top);
        weights_put(a, w, key, s, s_p, tile);
        // phase 3: O += P V
        const bool guard = guarded(w, tile);
#pragma unroll 1
        for (int k = 0; k < BN; k += VK)
#pragma unroll
            for (int part = 0; part < V_PARTS; part++) {
                cp_wait<STAGES - 2>();
                if (guard) found |= guard_scan(ring + slot * SLOT);
                output_step(o, s_p, ring_turn(a, w, f, ring, slot), k, part);
            }
    }
    cp_wait<0>();
    if (ROW_MASKS && __syncthreads_or(found)) guard_add(a, w, o);
    sums_share(rows, s_rows + BM * WN);
    rows_store(a, w, rows, o);
}
