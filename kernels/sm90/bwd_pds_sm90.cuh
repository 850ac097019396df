// bwd_pds_sm90.cuh - attention backward, first half: P and dS of a chunk to the workspace.
//     S = Q K^T,  P = e^(s - LSE),  dP = dO V^T,  dS = P (dP - delta)      128 q x 192 k a step of a persistent CTA
//
// Why write P and dS out: a pair costs 2 (D + Dv) flop here and leaves 4 bytes, and dV, dK, dQ become plain
// products without recomputation or ordering. Why 192 keys: chunks of 128 + 192 rows are 77 flop for a byte
// filled from L2; 128 + 128 would be 64, above what L2 delivers at full speed.
//
//             time ->           one tile = S_STEPS + DP_STEPS ring steps of 64 columns
//   WG0 load  | Q0 K0 | Q1 K1 | .. Qn Kn | dO0 V0 | .. dOn Vn | Q0 K0 (next tile) ..     one warp
//   WG1 math  | S  += Q K^T   64 x 192   | dP += dO V^T       | S (next) ..              rows 0..63
//       alu   | dS of the previous tile  | P of this tile     | dS of this tile          under the first steps
//   WG2 math  | the same for rows 64..127
// P waits for its dS in the staging tile, not in registers: the next S needs them. The staging tile is three
// blocks, each stored as soon as it is written and written again two blocks later: at D <= 320 there is no time
// between the last block of P and the first of dS to wait for a whole tile.
//
// Barriers         arrivals      meaning
//   full[s]        1 + tx bytes  slot s holds two chunks, and the tile's work item is there     WG0 -> WG1, WG2
//   free[s]        2             both warpgroups are done with slot s                           WG1, WG2 -> WG0
//   1 + wg         128 threads   a staging block is written, the next one may be                in one warpgroup
//
// Registers of a math thread: S 96, dP 96, row state and addresses 48. Shared: ring 4 x 40 KiB, staging 2 x 24 KiB.
// Blocks with a visible pair are written whole, zeros included; the products read no other.
#include "common/blocks.cuh"
#include "common/dropout.cuh"
#include "common/scores.cuh"
#include "common/shapes.h"
#include "sm90/ring_sm90.cuh"
#include "sm90/stairs_sm90.cuh"
#include "sm90/store_sm90.cuh"
#include "sm90/wgmma_sm90.cuh"

static constexpr int BM = 128, BN = FFPA_BN, GROUPS = BN / 16, BLOCKS = BN / 64;
static constexpr int S_STEPS = shape_panels(FFPA_D, 2), DP_STEPS = shape_panels(FFPA_DV, 2);
static constexpr int ITEMS = 8;      // more than tiles that can be under way: a ring holds STAGES of their steps
static constexpr int LINES = 16;     // lines of query rows that share keys in L2
static constexpr int SPREAD = 6;     // P and dS are worked off under this many steps, if there are as many
static constexpr u32 BLOCK = 8192, A_BYTES = BM * 128, SLOT = (BM + BN) * 128, STAGING = BN / 64 * BLOCK;
static constexpr bool SELECTS = ROW_MASKS || FFPA_VARLEN; // may a tile hold pairs whose weight is 0 whatever dP is?
static constexpr bool ANY_OPTIONS = BN == 128;              // are there registers for all?
static constexpr bool SCORED = FFPA_MASK || ANY_OPTIONS; // do scores come from the shared code? It wants more registers
// Staging tiles: P; what dP - delta is multiplied by where that is not P. With FFPA_DMASK that is in f32, as the mask's gradient may be,
// so two tiles, each thread's numbers by themselves, and the softcap's slope, which that gradient is without, has another.
static constexpr bool WEIGHTED = !FFPA_DMASK && (FFPA_SOFTCAP || FFPA_DROPOUT), SLOPES = FFPA_SOFTCAP && FFPA_DMASK;
static constexpr int TILES = FFPA_DMASK ? 3 + SLOPES : 1 + WEIGHTED, STAGES = pds90_stages(BN, TILES);
static constexpr u32 WEIGHTS = WEIGHTED ? STAGING : 0, OWN = STAGING, SLOPE = 3 * STAGING; // where, from P on
static_assert(BN == 128 || (BN == 192 && !FFPA_DMASK && (FFPA_MASK == 0 || FFPA_MASK == BOOL)), "registers for bool masks");
static_assert(BN == 128 || FFPA_SOFTCAP + FFPA_ALIBI + FFPA_DROPOUT + (FFPA_MASK != 0) <= 1, "registers for one option");

// One tile.
struct Item {
    int block, width; // of the line: its first block in the workspace, blocks of each half of it; block -1: there are no more tiles
    int head, row, key;
    int s, nq, nk, q_row; // its sequence
    KeyRange seen;        // FFPA_RANGE: query i of the sequence sees keys [lo + i, hi + i) of those that exist
    int whole;            // bit w: every row of warpgroup w sees every key of the tile
};

// A line of query rows: its sequence and first row there.
struct Line {
    int s, nq, nk, q_row, k_row, row;
    int block, width; // as of an item
    KeyRange seen;
};

struct Shared {
    u8 slot[STAGES][SLOT];
    u8 staging[2][TILES][STAGING];
    Item item[ITEMS];
    Line line[LINES]; // of the group that the walk is in
    u64 full[STAGES], free[STAGES];
};
static_assert(sizeof(Shared) <= pds90_shared_bytes(BN, TILES) && sizeof(Shared) <= 227 * 1024, "shared budget");

// ---- loading

// The walk over the tiles of a chunk that hold a visible pair: heads, groups of LINES lines, key tiles, lines. Lane r
// knows the key tiles of line r.
struct Walk {
    int from, to;       // key tiles of this lane's line
    int head, group;    // of lines
    int tile, tile_end; // key tile, end of all lines
    u32 after;          // lines that come after the last tile
    int lane;           // whose line the tile is
};

FFPA_DEVICE int groups_of(const pds90_args &a) { return (a.chunk.nt + LINES - 1) / LINES; }

FFPA_DEVICE void enter_group(const pds90_args &a, Shared &sm, Walk &w)
{
    const int lane = threadIdx.x & 31, of_chunk = w.group * LINES + lane, line = a.chunk.t0 + of_chunk;
    w.from = w.to = 0;
    if (lane < LINES && of_chunk < a.chunk.nt) {
        const Sequence s = sequence_at(a.seq, line_owner(a.seq.cu_q, a.seq, line, a.seq.nq, 1, BM));
        const int row = (line - line_first(a.seq.cu_q, a.seq, s.s, a.seq.nq, 1, BM)) * BM;
        const int last = row + BM < s.nq ? row + BM - 1 : s.nq - 1;
        const k_scores &c = a.scores;
        const int lo = key_range(c.left, c.right, c.top_left, row, s.nq, s.nk).lo;
        const int hi = key_range(c.left, c.right, c.top_left, last, s.nq, s.nk).hi;
        if (row < s.nq && lo < hi) w.from = lo / BN, w.to = (hi + BN - 1) / BN;
        const int step = stairs_line(a.stairs, row / BM, line - row / BM);
        const int block = (int)stairs_block(a.stairs, w.head, s.s, step);
        sm.line[lane] = {s.s, s.nq, s.nk, (int)s.q_row, (int)s.k_row, row, block, stairs_width(a.stairs, step),
                         key_line(c, s.nq, s.nk)};
    }
    w.tile = __reduce_min_sync(~0u, w.from < w.to ? w.from : 0x7fffffff);
    w.tile_end = __reduce_max_sync(~0u, w.to);
    w.after = ~0u;
}

// On by `skip` tiles and to the next. Is there one?
FFPA_DEVICE bool walk_on(const pds90_args &a, Shared &sm, Walk &w, int skip)
{
    for (;;) {
        for (; w.tile < w.tile_end; w.tile++, w.after = ~0u) {
            u32 live = __ballot_sync(~0u, w.from <= w.tile && w.tile < w.to) & w.after;
            const int count = __popc(live);
            if (skip < count) {
                for (; skip > 0; skip--) live &= live - 1;
                w.lane = __ffs(live) - 1;
                w.after = ~1u << w.lane;
                return true;
            }
            skip -= count;
        }
        if (++w.group == groups_of(a)) w.group = 0, w.head++;
        if (w.head == a.chunk.nh) return false;
        enter_group(a, sm, w);
    }
}

// Where the rows of one operand of a tile are.
struct Box {
    int row, head, batch;
};

// `steps` steps from step `n` on.
FFPA_DEVICE void load_steps(Shared &sm, const k_map &a, const Box &x, const k_map &b, const Box &y, int steps, u32 n)
{
#pragma unroll 1
    for (int c = 0; c < steps; c++, n++) {
        const u32 s = n % STAGES, full = smem_addr(&sm.full[s]), at = smem_addr(sm.slot[s]);
        mbar_wait(smem_addr(&sm.free[s]), (n / STAGES & 1) ^ 1);
        mbar_expect(full, SLOT);
        tma_load_4d(at, &a, full, c * 64, x.row, x.head, x.batch);
        tma_load_4d(at + A_BYTES, &b, full, c * 64, y.row, y.head, y.batch);
    }
}

// Does each of the 64 rows from `row` on exist and see all keys of the tile?
FFPA_DEVICE bool sees_whole(const Line &l, int row, int key)
{
    const int last = row + 63;
    if (last >= l.nq || key + BN > l.nk) return false;
    return !FFPA_RANGE || (l.seen.lo + last <= key && l.seen.hi + row >= key + BN);
}

// The tile that the walk has come to, by the lane of its line. What the ranges make of it is found here, in an idle warp, for
// every instruction between two steps of the warpgroups counts.
FFPA_DEVICE void load_tile(const pds90_args &a, Shared &sm, const Walk &w, u32 count)
{
    const bool q_packed = FFPA_VARLEN && a.seq.cu_q, k_packed = FFPA_VARLEN && a.seq.cu_k;
    const int head = a.chunk.h0 + w.head;
    const Line &l = sm.line[w.lane];
    const u32 n = count * (S_STEPS + DP_STEPS);
    const int key = w.tile * BN, whole = sees_whole(l, l.row, key) + 2 * sees_whole(l, l.row + 64, key);
    sm.item[count % ITEMS] = {l.block, l.width, head, l.row, key, l.s, l.nq, l.nk,
                              q_packed ? l.q_row : l.s * a.seq.nq, l.seen, whole};
    const Box x = {l.q_row + l.row, head, q_packed ? 0 : l.s};
    const Box y = {l.k_row + w.tile * BN, head / a.group, k_packed ? 0 : l.s};
    load_steps(sm, a.q, x, a.k, y, S_STEPS, n);
    load_steps(sm, a.dout, x, a.v, y, DP_STEPS, n + S_STEPS);
}

// Tiles blockIdx.x, blockIdx.x + gridDim.x, .. of the walk. The full barrier of a tile's first step also says that its
// item is there; behind the last tile it says that there is none.
FFPA_DEVICE void load_tiles(const pds90_args &a, Shared &sm)
{
    Walk w;
    u32 count = 0;
    w.head = w.group = 0;
    enter_group(a, sm, w);
#pragma unroll 1
    for (bool more = walk_on(a, sm, w, blockIdx.x); more; more = walk_on(a, sm, w, gridDim.x - 1), count++) {
        if (w.lane == (threadIdx.x & 31)) load_tile(a, sm, w, count);
        __syncwarp();
    }
    if ((threadIdx.x & 31) == 0) {
        const u32 n = count * (S_STEPS + DP_STEPS);
        sm.item[count % ITEMS].block = -1;
        mbar_wait(smem_addr(&sm.free[n % STAGES]), (n / STAGES & 1) ^ 1);
        mbar_arrive(smem_addr(&sm.full[n % STAGES]));
    }
}

// ---- mathematics

struct Math {
    u32 wg, full, free, slots, slot, parity;
    u32 staging, base, swizzle;
    bool elected;
    const Item *item; // first of the ring
    DropKey drop;     // FFPA_DROPOUT
    float cap_scale;  // FFPA_SOFTCAP: scale / softcap
    u32 count;        // tiles so far
    // The tile that P and dS are of; half = rows 8 further on.
    float lse[2];       // in base 2 unless SCORED; dead when P is done
    int key;            // this thread's first
    int lo[2], keys[2]; // FFPA_RANGE: first visible key, how many; else only their end, from this thread's first. Likewise
    float delta[2];     // from then on
    bool whole;         // every row sees every key, as far as ranges and lengths go
    ScoreRow row[2];    // SCORED
    float *dbias;       // FFPA_DMASK: this thread's first pair
    float alibi;        // FFPA_ALIBI: slope in base 2; key on the first row's diagonal, from this thread's first
    int diagonal;
    int bh, i;          // FFPA_DROPOUT: sequence and head, first row
    u32 block;          // first one in the workspace
    int blocks;         // fewer than 3 at the end of the keys; none before the first tile
};

// Is there another tile?
FFPA_DEVICE bool next_tile(Math &m)
{
    mbar_wait(m.full + 8 * m.slot, m.parity);
    return m.item[m.count++ % ITEMS].block >= 0;
}

// This thread's first row, within the tile.
FFPA_DEVICE int thread_row()
{
    const int thread = threadIdx.x - 128;
    return (thread >> 5) * 16 + (thread & 31) / 4;
}

// What P needs to know of the tile at hand.
FFPA_DEVICE void enter_tile(const pds90_args &a, Math &m)
{
    const Item it = m.item[(m.count - 1) % ITEMS];
    const k_scores &c = a.scores;
    const Sequence sequence = {it.s, it.nq, it.nk, 0, 0, 0, 0};
    const int first = it.row + m.wg * 64, row = it.row + thread_row(), key = it.key + (threadIdx.x & 3) * 2;
    const i64 batch = FFPA_VARLEN && a.seq.cu_q ? 0 : it.s, packed = FFPA_VARLEN && a.seq.cu_q ? it.q_row : 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + half * 8, in = i < it.nq ? i : it.row; // a row that is there: 64 further on none may be
        const float lse = ((const float *)a.lse.data)[batch * a.lse.sb + it.head * a.lse.sh + (packed + in) * a.lse.sn];
        const int lo = FFPA_RANGE ? max(it.seen.lo + i, 0) : 0, hi = FFPA_RANGE ? min(it.seen.hi + i, it.nk) : it.nk;
        m.lse[half] = i >= it.nq || lse == -FFPA_INF ? FFPA_INF : SCORED ? lse : lse * LOG2E; // infinite: P = 0
        if (SCORED) m.row[half] = score_row(c, sequence, it.head, in);
        if (SCORED && i >= it.nq) m.row[half].keys = {0, 0};
        m.lo[half] = lo - key;
        m.keys[half] = i >= it.nq ? 0 : FFPA_RANGE ? max(hi - lo, 0) : hi - key;
    }
    m.whole = it.whole >> m.wg & 1;
    m.block = it.block + m.wg * it.width + it.key / 64;
    m.blocks = it.width - it.key / 64;
    m.key = key;
    m.bh = it.s * a.hq + it.head, m.i = row;
    m.diagonal = row + it.nk - it.nq - key;
    if (FFPA_DMASK) m.dbias = a.dbias + ((i64)(it.block / (2 * it.width)) * BM + thread_row()) * a.chunk.ld + key; // no stairs here
    if (FFPA_ALIBI) m.alibi = c.alibi[it.s * c.alibi_sb + it.head * c.alibi_sh] * LOG2E;
}

// And what dS needs besides.
FFPA_DEVICE void load_delta(const pds90_args &a, Math &m)
{
    const Item &it = m.item[(m.count - 1) % ITEMS];
    const int row = it.row + thread_row();
    const float *at = a.delta + it.head * a.seq.total_q + it.q_row + row;
#pragma unroll
    for (int half = 0; half < 2; half++) m.delta[half] = row + half * 8 < it.nq ? ldg_f32(at + half * 8) : 0.0f;
}

// tanh with an error of 1e-7, not relative: enough for weights of 16 bits. tanhf is a call's worth of registers.
FFPA_DEVICE float tanh_near(float x) { return 1.0f - __fdividef(2.0f, 1.0f + ex2(2.0f * LOG2E * x)); }

// Does a row see the key in `column` of those from the thread's first?
FFPA_DEVICE bool seen(const Math &m, int half, int column)
{
    return FFPA_RANGE ? (u32)(column - m.lo[half]) < (u32)m.keys[half] : column < m.keys[half];
}

// Weights of columns 16 g .. 16 g + 15: x[i] is of row half i / 2 % 2, column i / 4 * 8 + i % 2. `slope` of the softcap.
FFPA_DEVICE void weights_plain(const pds90_args &a, const Math &m, const float *s, int g, float (&p)[8], float (&slope)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int column = 16 * g + (i >> 2) * 8 + (i & 1), half = i >> 1 & 1;
        const float bent = FFPA_SOFTCAP ? tanh_near(s[i] * m.cap_scale) : 0.0f;
        float x = fmaf(FFPA_SOFTCAP ? bent : s[i], (FFPA_SOFTCAP ? a.scores.softcap : a.scores.scale) * LOG2E, -m.lse[half]);
        if (FFPA_ALIBI) x -= m.alibi * fabsf((float)(m.diagonal + 8 * half - column));
        p[i] = ex2(x);
        slope[i] = 1.0f - bent * bent;
    }
    if (m.whole) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int column = 16 * g + (i >> 2) * 8 + (i & 1), half = i >> 1 & 1;
        p[i] = seen(m, half, column) ? p[i] : 0.0f;
    }
}

// The same with a bool mask alone; unseen pairs weigh -0.
FFPA_DEVICE void weights_masked(const pds90_args &a, const Math &m, const float *s, int g, float (&p)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int half = i >> 1 & 1;
        const float t = score_capped(a.scores, s[i]);
        const float v = score(a.scores, m.row[half], t, m.key + 16 * g + (i >> 2) * 8 + (i & 1), m.whole);
        p[i] = weight_of(v, exp_of(v - m.lse[half]));
    }
}

// ANY_OPTIONS: what the mask holds for these columns.
FFPA_DEVICE void load_mask(const Math &m, u32 (&mask)[8], int g)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int key = m.key + 16 * g + (i >> 2) * 8 + (i & 1);
        mask[i] = mask_value(m.row[i >> 1 & 1], key, key * m.row[0].mask_sd, m.whole);
    }
}

FFPA_DEVICE void put_group(u32 at, const float (&x)[8])
{
    stmatrix4(at, pack2(x[0], x[1]), pack2(x[2], x[3]), pack2(x[4], x[5]), pack2(x[6], x[7]));
}
FFPA_DEVICE u32 own_at(const Math &m, int g, int i) { return m.staging + OWN + ((4 * g + i) * 128 + (threadIdx.x & 127)) * 8; }
FFPA_DEVICE u32 group_at(const Math &m, int g) { return m.base + (g >> 2) * BLOCK + (m.swizzle ^ ((g & 3) << 5)); }

// Columns 16 g .. 16 g + 15 of P: from S in registers to the staging tile.
FFPA_DEVICE void group_p(const pds90_args &a, const Math &m, const float (&s)[BN / 2], int g)
{
    float p[8], weight[8];
    if (SCORED)
        weights_masked(a, m, s + 8 * g, g, p);
    else
        weights_plain(a, m, s + 8 * g, g, p, weight);
    if (FFPA_SOFTCAP) {
#pragma unroll
        for (int i = 0; i < 8; i++) weight[i] *= p[i];
        put_group(group_at(m, g) + WEIGHTS, weight);
    }
    put_group(group_at(m, g), p);
}

// The same with dropout. What dP - delta is multiplied by keeps its size; a minus sign says that dP is dropped. A pair at a time: with
// all eight and the state of Philox there are not enough registers.
FFPA_DEVICE void group_p_dropped(const pds90_args &a, const Math &m, const float (&s)[BN / 2], int g)
{
    u32 kept[4], weight[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int half = i & 1, column = 16 * g + (i >> 1) * 8;
        float p[2];
        bool keeps[2];
        drop_keeps2(m.drop, m.bh, m.i + half * 8, m.key + column, keeps);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            p[e] = ex2(fmaf(s[8 * g + 2 * i + e], a.scores.scale * LOG2E, -m.lse[half]));
            if (!m.whole) p[e] = seen(m, half, column + e) ? p[e] : 0.0f;
        }
        weight[i] = pack2(keeps[0] ? p[0] : -p[0], keeps[1] ? p[1] : -p[1]);
        kept[i] = pack2(keeps[0] ? p[0] * a.dropout.keep_scale : 0.0f, keeps[1] ? p[1] * a.dropout.keep_scale : 0.0f);
    }
    stmatrix4(group_at(m, g) + WEIGHTS, weight[0], weight[1], weight[2], weight[3]);
    stmatrix4(group_at(m, g), kept[0], kept[1], kept[2], kept[3]);
}

// The same with any options, two pairs at a time. Weights of -0 are of unseen pairs: one that is dropped and too small for the dtype
// becomes 0, for then nothing tells it from one that is kept.
FFPA_DEVICE void group_p_scored(const pds90_args &a, const Math &m, const float (&s)[BN / 2], int g, const u32 (&mask)[8])
{
    constexpr float LEAST = DTYPE == F16 && !FFPA_DMASK ? 0x1p-24f : 0x1p-126f;
    u32 kept[4], weight[4], slope[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int half = i & 1, key = m.key + 16 * g + (i >> 1) * 8;
        float p[2], w[2], bend[2];
        bool keeps[2] = {true, true};
        if (FFPA_DROPOUT) drop_keeps2(m.drop, m.bh, m.i + half * 8, key, keeps);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float x = s[8 * g + 2 * i + e], bent = FFPA_SOFTCAP ? tanh_near(x * m.cap_scale) : 0.0f;
            const float t = FFPA_SOFTCAP ? a.scores.softcap * bent : a.scores.scale * x;
            const float v = score_of(m.row[half], t, key + e, mask[2 * i + e]);
            bend[e] = 1.0f - bent * bent;
            w[e] = p[e] = weight_of(v, exp_of(v - m.lse[half]));
            if (FFPA_SOFTCAP && !SLOPES) w[e] = weight_of(v, w[e] * bend[e]);
            if (!FFPA_DROPOUT) continue;
            p[e] = keeps[e] || v == -FFPA_INF ? p[e] * a.dropout.keep_scale : 0.0f;
            if (!keeps[e] && v != -FFPA_INF) w[e] = w[e] < LEAST ? 0.0f : -w[e];
        }
        kept[i] = pack2(p[0], p[1]), weight[i] = pack2(w[0], w[1]), slope[i] = pack2(bend[0], bend[1]);
        if (FFPA_DMASK) sts64(own_at(m, g, i), __float_as_uint(w[0]), __float_as_uint(w[1]));
    }
    if (WEIGHTED) stmatrix4(group_at(m, g) + WEIGHTS, weight[0], weight[1], weight[2], weight[3]);
    if (SLOPES) stmatrix4(group_at(m, g) + SLOPE, slope[0], slope[1], slope[2], slope[3]);
    stmatrix4(group_at(m, g), kept[0], kept[1], kept[2], kept[3]);
}

// dS of a pair: w (dP - delta).
FFPA_DEVICE float ds_of(const pds90_args &a, float w, float dp, float delta)
{
    if (FFPA_DROPOUT) dp = __float_as_uint(w) >> 31 ? 0.0f : dp * a.dropout.keep_scale;
    return (FFPA_DROPOUT ? fabsf(w) : w) * (dp - delta);
}

// Is this the weight of a pair that nobody sees?
FFPA_DEVICE bool hides(float w) { return SCORED ? unseen(w) : w == 0.0f; }

// Two pairs of columns with the mask's gradient, which goes to memory: weights from this thread's own, in f32.
FFPA_DEVICE u32 pairs_ds(const pds90_args &a, const Math &m, const float *dp, u32 slope, int g, int i)
{
    float w[2];
    lds64(w, own_at(m, g, i));
    float x = hides(w[0]) ? -0.0f : ds_of(a, w[0], dp[0], m.delta[i & 1]);
    float y = hides(w[1]) ? -0.0f : ds_of(a, w[1], dp[1], m.delta[i & 1]);
    if (m.blocks > 0) *(float2 *)(m.dbias + (i & 1) * 8 * a.chunk.ld + 16 * g + (i >> 1) * 8) = make_float2(x, y);
    if (SLOPES && !hides(w[0])) x *= low_of(slope);
    if (SLOPES && !hides(w[1])) y *= high_of(slope);
    return pack2(x, y);
}

// The same columns of dS: weights from the staging tile, dP from registers, dS in the place of P. Where a pair is not seen
// dP may be anything.
FFPA_DEVICE void group_ds(const pds90_args &a, const Math &m, const float (&dp)[BN / 2], int g)
{
    const u32 at = group_at(m, g);
    u32 w[4], ds[4], slope[4];
    if (FFPA_DMASK) {
        if (SLOPES) ldmatrix4(slope, at + SLOPE);
#pragma unroll
        for (int i = 0; i < 4; i++) ds[i] = pairs_ds(a, m, dp + 8 * g + 2 * i, SLOPES ? slope[i] : 0, g, i);
        stmatrix4(at, ds[0], ds[1], ds[2], ds[3]);
        return;
    }
    ldmatrix4(w, at + WEIGHTS);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float x = ds_of(a, low_of(w[i]), dp[8 * g + 2 * i], m.delta[i & 1]);
        const float y = ds_of(a, high_of(w[i]), dp[8 * g + 2 * i + 1], m.delta[i & 1]);
        ds[i] = pack2(x, y);
    }
    if (FFPA_MASK || (SELECTS && !m.whole)) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (hides(low_of(w[i]))) ds[i] = ds[i] & 0xffff0000u | (SCORED ? UNSEEN : 0);
            if (hides(high_of(w[i]))) ds[i] = ds[i] & 0x0000ffffu | (SCORED ? UNSEEN << 16 : 0);
        }
    }
    stmatrix4(at, ds[0], ds[1], ds[2], ds[3]);
}

// Block b of the staging tile is written: to the copy engine. The next one to be written was stored two blocks ago; the
// barrier also says that this store has read it.
FFPA_DEVICE void finish_block(const Math &m, void *dst, int b)
{
    fence_async_proxy();
    if (m.elected) bulk_wait_read<BLOCKS - 2>();
    named_sync<128>(1 + m.wg);
    if (!m.elected) return;
    if (b < m.blocks) bulk_store((u8 *)dst + (i64)(m.block + b) * BLOCK, m.staging + b * BLOCK, BLOCK);
    bulk_commit();
}

// acc += A B over 64 columns; then the slot of the step before is free, if its wgmma were still under way.
FFPA_DEVICE void step(Math &m, float (&acc)[BN / 2], bool first, bool release)
{
    const u32 before = m.slot ? m.slot - 1 : STAGES - 1;
    mbar_wait(m.full + 8 * m.slot, m.parity);
    const u32 at = opaque(m.slots + m.slot * (SLOT >> 4));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_kk(acc, at + m.wg * (BLOCK >> 4) + 2 * k, at + (A_BYTES >> 4) + 2 * k, !first || k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (release && m.elected) mbar_arrive(m.free + 8 * before);
    if (++m.slot == STAGES) m.slot = 0, m.parity ^= 1;
    m.slot = opaque(m.slot); // else the addresses of all slots stay in registers where the steps divide by STAGES
}

// One tile. On entry dP of the tile before is in dp, under way unless `drained`; on exit this one's is, under way.
FFPA_DEVICE void tile(const pds90_args &a, Math &m, float (&s)[BN / 2], float (&dp)[BN / 2], bool drained)
{
    constexpr int S_SPREAD = S_STEPS < SPREAD ? S_STEPS : SPREAD, DP_SPREAD = DP_STEPS < SPREAD ? DP_STEPS : SPREAD;
    u32 mask[8], next[8]; // ANY_OPTIONS; from memory a group ahead
#pragma unroll
    for (int j = 0; j < S_STEPS; j++) { // with the last tile's dS under its first steps
        step(m, s, j == 0, j > 0 || !drained);
        if (j == 0 && !drained) pin(dp);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (g * S_SPREAD / GROUPS != j) continue;
            group_ds(a, m, dp, g);
            if (g % 4 == 3) finish_block(m, a.ds, g / 4);
        }
        if (j == S_SPREAD - 1) enter_tile(a, m);
        if (ANY_OPTIONS && j == S_SPREAD - 1) load_mask(m, next, 0);
    }
#pragma unroll
    for (int j = 0; j < DP_STEPS; j++) { // with P under its first steps; the first one's wait completes S
        step(m, dp, j == 0, true);
        if (j == 0) pin(s);
        if (j == DP_SPREAD - 1) load_delta(a, m);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (g * DP_SPREAD / GROUPS != j) continue;
            if (ANY_OPTIONS) {
#pragma unroll
                for (int i = 0; i < 8; i++) mask[i] = next[i];
                if (g + 1 < GROUPS) load_mask(m, next, g + 1);
                group_p_scored(a, m, s, g, mask);
            } else if (FFPA_DROPOUT)
                group_p_dropped(a, m, s, g);
            else
                group_p(a, m, s, g);
            if (g % 4 == 3) finish_block(m, a.p, g / 4);
        }
    }
}

FFPA_DEVICE void drain(const Math &m, float (&dp)[BN / 2])
{
    wgmma_wait<0>();
    pin(dp);
    if (m.elected) mbar_arrive(m.free + 8 * (m.slot ? m.slot - 1 : STAGES - 1));
}

FFPA_DEVICE Math math_of(const pds90_args &a, Shared &sm)
{
    Math m;
    if (FFPA_DROPOUT) m.drop = drop_key(a.dropout);
    m.cap_scale = FFPA_SOFTCAP ? a.scores.scale / a.scores.softcap : 0.0f;
    const u32 thread = threadIdx.x & 127;
    m.key = m.bh = m.i = 0;
    m.wg = threadIdx.x / 128 - 1, m.elected = thread == 0;
    m.full = smem_addr(sm.full), m.free = smem_addr(sm.free), m.slots = desc_chunk(smem_addr(sm.slot));
    m.slot = m.parity = m.count = 0;
    m.staging = smem_addr(sm.staging[m.wg][0]);
    m.base = m.staging + ((thread >> 5) * 16 + (thread & 15)) * 128;
    m.swizzle = ((thread >> 4 & 1) ^ (thread & 7)) << 4;
    m.item = sm.item;
    m.delta[0] = m.delta[1] = 0.0f; // before the first tile zeros are worked off, and not stored
    m.whole = true, m.block = 0, m.blocks = 0;
    return m;
}

FFPA_DEVICE void work_tiles(const pds90_args &a, Shared &sm)
{
    Math m = math_of(a, sm);
    float s[BN / 2], dp[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; i++) dp[i] = 0.0f;
#pragma unroll 1
    while (next_tile(m)) {
        // Two tiles a pass: wgmma may not be under way across the back edge, nor where two paths meet (C7514).
        tile(a, m, s, dp, true);
        if (!next_tile(m)) {
            drain(m, dp);
            break;
        }
        tile(a, m, s, dp, false);
        drain(m, dp);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        group_ds(a, m, dp, g);
        if (g % 4 == 3) finish_block(m, a.ds, g / 4);
    }
    if (m.elected) bulk_wait<0>();
}

extern "C" __global__ void __launch_bounds__(384, 1) ffpa_kernel(const __grid_constant__ pds90_args a)
{
    extern __shared__ __align__(1024) u8 smem[];
    Shared &sm = *(Shared *)smem;
    if (threadIdx.x == 0) {
        ring_init(sm.full, sm.free, STAGES, 2);
        mbar_init_fence();
    }
    __syncthreads();
    grid_release();
    grid_wait(); // delta; and whoever read this workspace last
    if (threadIdx.x < 128) {
        regs_less<24>();
        if (blockIdx.x == 0 && threadIdx.x == 32) a.tickets[0] = a.tickets[1] = 0;
        if (threadIdx.x < 32) load_tiles(a, sm);
    } else {
        regs_more<240>();
        work_tiles(a, sm);
    }
}
