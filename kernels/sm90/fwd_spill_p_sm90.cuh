// fwd_spill_p_sm90.cuh - P of the spilled forward (fwd_spill_plan_sm90.cuh has the whole): 128 rows an item, two teams of 64.
//
//            time ->
//   WG0 load   | Q, K chunk 0 | chunk 1 | ..   TMA: 128 rows of Q and 192 keys of K a slot
//   WG1 tensor | S_j = Q K_j^T, CHUNKS steps                            | S_{j+1} ..
//   WG1 scalar | softmax of S_{j-1} in four parts, P_{j-1} to memory    | softmax of S_j ..
//   WG2          the same for rows 64 .. 127
// With options the scalar work is longer, and cut finer: 25 units under all steps (softmax_unit).
//
// Barriers: full[s] 1 + bytes (WG0 -> WG1, WG2), free[s] 2 (WG1, WG2 -> WG0), dealt[i] 1 (WG0 -> WG1, WG2), taken[i] 8 warps back;
// named 1, 2: 128 threads of a team (staging)
// Budget: registers / math thread 2 x 96 (S of this tile, S of the one before), shared: ring 4 x 40 KB + staging 2 x 24 KB
#include "sm90/fwd_spill_scores_sm90.cuh"

static constexpr int STAGES = 4;

struct Item {
    int local, head;         // head of the chunk, negative = no more items; of all
    int tile, row, from, to; // of the chunk; first row; key tiles
#if FFPA_CACHE
    HeadKeys keys;
#endif
};
struct Smem {
    alignas(1024) u8 slot[STAGES][5 * BLOCK]; // 128 rows of Q, 192 of K
    alignas(1024) u8 staging[2][3 * BLOCK];
    Item item[2];
    Barriers bar;
    HeadOptions options[2]; // of the items
};
static_assert(sizeof(Smem) <= SPILL_SHARED_BYTES, "shared budget");
static_assert(CHUNKS >= 6, "the softmax hides under six steps");

FFPA_DEVICE Item item_of(const fwd_spill_args &a, int i)
{
    const Place at = place_of(a, i, a.q_tiles);
    const int row = a.row0 + at.tile * BM;
    const HeadKeys keys = keys_of_head(a, a.head0 + (i < a.heads * a.q_tiles ? at.local : 0));
    const KeyTiles k = key_tiles(a, row, keys);
#if FFPA_CACHE
    return {i < a.heads * a.q_tiles ? at.local : -1, a.head0 + at.local, at.tile, row, k.from, k.to, keys};
#else
    return {i < a.heads * a.q_tiles ? at.local : -1, a.head0 + at.local, at.tile, row, k.from, k.to};
#endif
}

// Scores with ALiBi grow from tile to tile up to the diagonal, and a base that moves cuts the products of the second kernel. Where
// that would happen often, bases begin with the scores of one tile that is computed twice: where the first row's nearest key is, for all
// rows see that (but for windows), and they are near to theirs. Negative = none.
FFPA_DEVICE int tile_ahead(const fwd_spill_args &a, const Item &t, float slope)
{
    const k_scores &c = a.scores;
    if (!FFPA_ALIBI || !(slope * (float)((t.to - t.from) * BK) > 4 * LAZY)) return -1;
    const int diagonal = key_count(a, keys_of(t)) - a.nq;
    const int nearest = FFPA_RANGE && c.top_left && c.right >= 0 ? min(diagonal, c.right) : diagonal;
    return max(t.from, min((t.row + nearest) / BK, t.to - 1));
}

FFPA_DEVICE void load_tiles(const fwd_spill_args &a, Smem &sm, Ring &r, const Item &t, int from, int to)
{
    const int b = t.head / a.hq, h = t.head % a.hq, hk = h / a.group;
#pragma unroll 1
    for (int j = from; j < to; j++)
#pragma unroll 1
        for (int x = 0; x < CHUNKS; x++) {
            const u32 full = smem_addr(&sm.bar.full[r.slot]), at = smem_addr(sm.slot[r.slot]);
            mbar_wait(smem_addr(&sm.bar.free[r.slot]), r.parity ^ 1);
            mbar_expect(full, 5 * BLOCK);
            tma_load_4d(at, &a.q, full, x * CHUNK, t.row, h, b);
            tma_load_4d(at + 2 * BLOCK, &a.k, full, x * CHUNK, j * BK, hk, key_batch(keys_of(t), b));
            ring_next<STAGES>(r);
        }
}

FFPA_DEVICE void produce(const fwd_spill_args &a, Smem &sm)
{
    Ring r = {0, 0};
#pragma unroll 1
    for (int k = 0;; k++) {
        const Item t = item_of(a, (int)atomic_add(&a.tickets[0], 1));
        mbar_wait(smem_addr(&sm.bar.taken[k & 1]), (k >> 1 & 1) ^ 1);
        sm.item[k & 1] = t;
        int ahead = -1;
        if (OPTIONED && t.local >= 0) {
            HeadOptions o = head_options(a, t.head);
            ahead = o.ahead = tile_ahead(a, t, o.slope);
#if FFPA_CACHE
            o.nk = t.keys.nk;
#endif
            sm.options[k & 1] = o;
        }
        mbar_arrive(smem_addr(&sm.bar.dealt[k & 1]));
        if (t.local < 0) return;
        if (ahead >= 0) load_tiles(a, sm, r, t, ahead, ahead + 1);
        load_tiles(a, sm, r, t, t.from, t.to);
    }
}

struct Rows {           // a thread's two rows, 8 apart
    float m[2], l[2];   // base, row sum
    int row, row64;     // query row of the first; of the workspace
    int run, from;      // of P; first key tile
    bool moved;         // a base of this warp's rows did, after that tile
    int clear_from, clear_to; // keys that all rows of the team see
    KeyRange line;      // keys that row i sees, less i
    int nk;             // LENGTHS: of the sequence
    u32 number, bits[3]; // OPTIONED: of the item; bool mask: of the tile whose scores come next
};

// This thread's first row of a team's, which begin at `first`; of an item's.
FFPA_DEVICE int row_of(int first) { return first + (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7); }
FFPA_DEVICE int first_row(const Item &t) { return row_of(t.row + ((int)threadIdx.x / TEAM_THREADS - 1) * 64); }

// Where the rows of an item are, and what they see.
FFPA_DEVICE void place_rows(Rows &w, const fwd_spill_args &a, const Item &t)
{
    const k_scores &c = a.scores;
    const int team = threadIdx.x / TEAM_THREADS - 1, first = t.row + team * 64, end = first + 63 < a.nq ? first + 63 : a.nq - 1;
    w.row = row_of(first);
    w.from = t.from;
    w.run = p_run(a, t.local, t.tile, team, {t.from, t.to});
    w.row64 = (t.local * a.q_tiles + t.tile) * 2 + team;
    w.clear_to = key_range(c.left, c.right, c.top_left, first, a.nq, key_count(a, keys_of(t))).hi;
    w.clear_from = key_range(c.left, c.right, c.top_left, end, a.nq, key_count(a, keys_of(t))).lo;
    w.line = key_line(c, a.nq, key_count(a, keys_of(t)));
    w.nk = key_count(a, keys_of(t));
}

// With options there is no register to keep that in between two uses.
FFPA_DEVICE void recall_rows(Rows &w, const fwd_spill_args &a, Smem &sm)
{
    if (OPTIONED) place_rows(w, a, sm.item[opaque(w.number) & 1]);
}

// Step of S: one chunk. The slot of the step before goes back.
FFPA_DEVICE void s_step(float (&s)[BK / 2], Smem &sm, Ring &r, u32 team, bool first, bool elected)
{
    mbar_wait(smem_addr(&sm.bar.full[r.slot]), r.parity);
    const u32 at = opaque(desc_chunk(smem_addr(sm.slot[r.slot])));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) wgmma_kk(s, at + team * (BLOCK >> 4) + 2 * k, at + (2 * BLOCK >> 4) + 2 * k, !(first && k == 0));
    wgmma_commit();
    wgmma_wait<1>();
    if (!first && elected) mbar_arrive(smem_addr(&sm.bar.free[r.slot == 0 ? STAGES - 1 : r.slot - 1]));
    ring_next<STAGES>(r);
    r.slot = opaque(r.slot); // else every slot's addresses stay in registers where STAGES divides CHUNKS, and spill
}

// After the last step: S is there.
FFPA_DEVICE void s_complete(float (&s)[BK / 2], Smem &sm, const Ring &r, bool elected)
{
    wgmma_wait<0>();
    pin(s);
    if (elected) mbar_arrive(smem_addr(&sm.bar.free[r.slot == 0 ? STAGES - 1 : r.slot - 1]));
}

FFPA_DEVICE void mask_scores(float (&s)[BK / 2], const Rows &w, const fwd_spill_args &a, int tile)
{
    const int column = tile * BK + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int lo = w.line.lo + w.row + 8 * h - column, hi = min(w.line.hi + w.row + 8 * h, LENGTHS ? w.nk : a.nk) - column;
#pragma unroll
        for (int x = 0; x < BK / 4; x++) {
            const int j = 8 * (x / 2) + (x & 1);
            float &v = s[4 * (x / 2) + 2 * h + (x & 1)];
            v = j < hi && (!FFPA_RANGE || j >= lo) ? v : -FFPA_INF;
        }
    }
}

// From scores as they lie in registers to the unit of bases.
FFPA_DEVICE float to_unit(float x, float scale) { return SCORED ? x : x * scale; }

// Greatest of this thread's scores of either row.
FFPA_DEVICE void row_maxima(const float (&s)[BK / 2], float (&x)[2])
{
    x[0] = s[0], x[1] = s[2];
#pragma unroll
    for (int i = 0; i < BK / 2; i += 4) {
        x[0] = fmaxf(x[0], fmaxf(s[i], s[i + 1]));
        x[1] = fmaxf(x[1], fmaxf(s[i + 2], s[i + 3]));
    }
}

// Let the base follow the row maximum; note the move for fwd_spill_pv. Nothing lies before tile w.from.
FFPA_DEVICE void move_base(float (&s)[BK / 2], Rows &w, const fwd_spill_args &a, int tile)
{
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    const i64 at = (i64)w.row64 * a.k_tiles + tile; // of factor; a row of moved is a word longer
    float x[2];
    row_maxima(s, x);
    const bool any = __any_sync(~0u, to_unit(x[0], a.scale_log2) > w.m[0] + LAZY || to_unit(x[1], a.scale_log2) > w.m[1] + LAZY);
    if (any) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            x[h] = fmaxf(x[h], __shfl_xor_sync(~0u, x[h], 1));
            x[h] = to_unit(fmaxf(x[h], __shfl_xor_sync(~0u, x[h], 2)), a.scale_log2);
            const float m = x[h] > w.m[h] + LAZY ? x[h] : w.m[h], f = ex2((w.m[h] - m) * UNIT);
            w.l[h] *= f;
            w.m[h] = m;
            if ((lane & 3) == 0) a.factor[at * 64 + 16 * warp + (lane >> 2) + 8 * h] = f;
        }
    }
    w.moved |= any && tile > w.from;
    if (lane == 0 && tile >= w.from) ((u8 *)(a.moved + at + w.row64))[warp] = any && tile > w.from;
}

// Groups from .. to - 1, 16 columns each: P to the staging tile, row sums.
FFPA_DEVICE void p_groups(const float (&s)[BK / 2], Rows &w, const fwd_spill_args &a, Smem &sm, u32 staging, int tile, int from, int to)
{
    const u32 lane = threadIdx.x & 31, row = 16 * (threadIdx.x >> 5 & 3) + (lane & 15), base = staging + row * 128;
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int g = from; g < to; g++) {
        float p[8];
        u32 kept = ~0u;
        if constexpr (FFPA_DROPOUT) {
            const u32 k = opaque(w.number) & 1;
            kept = kept_weights(sm.options[k], a, first_row(sm.item[k]), tile * BK, g);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float x = s[8 * g + i], m = w.m[i >> 1 & 1];
            p[i] = ex2(SCORED ? (x - m) * UNIT : fmaf(x, a.scale_log2, -m));
            sum[i >> 1 & 1] += p[i];
        }
#pragma unroll
        for (int i = 0; i < 8; i++) p[i] = !FFPA_DROPOUT || kept >> i & 1 ? p[i] : 0.0f;
        stmatrix4(base + (g >> 2) * BLOCK + ((((2 * g & 7) + (lane >> 4)) ^ (row & 7)) << 4), pack2(p[0], p[1]), pack2(p[2], p[3]),
                  pack2(p[4], p[5]), pack2(p[6], p[7]));
    }
    w.l[0] += sum[0];
    w.l[1] += sum[1];
}

// Before the first part: the copy engine has read what was staged before; masks and base.
FFPA_DEVICE void softmax_begin(float (&s)[BK / 2], Rows &w, const fwd_spill_args &a, int tile)
{
    if ((threadIdx.x & 127) == 0) bulk_wait_read<0>();
    named_sync<TEAM_THREADS>(threadIdx.x / TEAM_THREADS);
    if ((tile + 1) * BK > w.clear_to || (FFPA_RANGE && tile * BK < w.clear_from)) mask_scores(s, w, a, tile);
    move_base(s, w, a, tile);
}

// After the last part: all 64 rows are staged, one thread sends them.
FFPA_DEVICE void softmax_end(const Rows &w, const fwd_spill_args &a, u32 staging, int tile, bool elected)
{
    fence_async_proxy();
    named_sync<TEAM_THREADS>(threadIdx.x / TEAM_THREADS);
    if (elected && tile >= w.from) {
        bulk_store((u8 *)a.p + (i64)(w.run + tile * 3) * BLOCK, staging, min(3, a.k_blocks - tile * 3) * BLOCK);
        bulk_commit();
    }
}

// The softmax in units that fit between two steps: scores by groups, begin, P by groups, end.
static constexpr int GROUPS = BK / 16, SCORE_UNITS = SCORED ? GROUPS : 0, UNITS = SCORE_UNITS + 1 + GROUPS;
FFPA_DEVICE void softmax_unit(float (&s)[BK / 2], Rows &w, const fwd_spill_args &a, Smem &sm, u32 staging, int tile, int unit)
{
    const int g = unit - SCORE_UNITS - 1;
    const u32 k = opaque(w.number) & 1;
    if (unit < SCORE_UNITS) {
        const Item &t = sm.item[k];
        if (tile >= t.from) score_group(s, w.bits, sm.options[k], a, first_row(t), tile * BK, unit); // the tile without keys stays so
    } else if (g < 0) {
        recall_rows(w, a, sm);
        softmax_begin(s, w, a, tile);
    } else {
        p_groups(s, w, a, sm, staging, tile, g, g + 1);
        const int ask = FFPA_DROPOUT ? g - (GROUPS - 3) : g % 3 == 0 && g < 9 ? g / 3 : -1; // dropout has no registers to spare before
        if (FFPA_MASK == BOOL && ask >= 0)
            w.bits[ask] = mask_word(sm.options[k], a, first_row(sm.item[k]), (tile + 1) * BK, ask);
        if (FFPA_MASK && FFPA_MASK != BOOL && g == 0) bias_ahead(sm.options[k], a, first_row(sm.item[k]), (tile + 1) * BK);
        if (g < GROUPS - 1) return;
        recall_rows(w, a, sm);
        softmax_end(w, a, staging, tile, (threadIdx.x & 127) == 0);
    }
}

// Steps X .. of S, with units of the softmax of the tile before under each. (A loop stays one: it is too long to unroll.)
template <int X>
FFPA_DEVICE void s_steps(float (&s)[BK / 2], float (&before)[BK / 2], Rows &w, const fwd_spill_args &a, Smem &sm, Ring &r, int tile)
{
    if constexpr (X < CHUNKS) {
        const u32 team = threadIdx.x / TEAM_THREADS - 1, staging = smem_addr(sm.staging[team]);
        const bool elected = (threadIdx.x & 127) == 0;
        s_step(s, sm, r, team, X == 0, elected);
#pragma unroll
        for (int unit = (X * UNITS + CHUNKS - 1) / CHUNKS; unit < ((X + 1) * UNITS + CHUNKS - 1) / CHUNKS; unit++)
            softmax_unit(before, w, a, sm, staging, tile - 1, unit);
        pin(before);
        s_steps<X + 1>(s, before, w, a, sm, r, tile);
    }
}

// S of tile `tile` into s; meanwhile the softmax of the tile before, in `before`: for the item's first that is a tile without keys,
// which is not sent.
FFPA_DEVICE void s_tile(float (&s)[BK / 2], float (&before)[BK / 2], Rows &w, const fwd_spill_args &a, Smem &sm, Ring &r, int tile)
{
    const u32 team = threadIdx.x / TEAM_THREADS - 1, staging = smem_addr(sm.staging[team]);
    const bool elected = (threadIdx.x & 127) == 0;
    if constexpr (OPTIONED) {
        s_steps<0>(s, before, w, a, sm, r, tile);
    } else {
        s_step(s, sm, r, team, true, elected);
        softmax_begin(before, w, a, tile - 1);
        pin(before);
        s_step(s, sm, r, team, false, elected);
#pragma unroll
        for (int part = 0; part < 4; part++) {
            p_groups(before, w, a, sm, staging, tile - 1, 3 * part, 3 * part + 3);
            pin(before);
            s_step(s, sm, r, team, false, elected);
        }
        softmax_end(w, a, staging, tile - 1, elected);
#pragma unroll
        for (int x = 6; x < CHUNKS; x++) s_step(s, sm, r, team, false, elected);
    }
    s_complete(s, sm, r, elected);
}

FFPA_DEVICE void s_finish(float (&s)[BK / 2], Rows &w, const fwd_spill_args &a, Smem &sm, int tile)
{
    const u32 team = threadIdx.x / TEAM_THREADS - 1, staging = smem_addr(sm.staging[team]);
    if constexpr (OPTIONED) {
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            softmax_unit(s, w, a, sm, staging, tile, unit);
            pin(s);
        }
    } else {
        softmax_begin(s, w, a, tile);
#pragma unroll
        for (int part = 0; part < 4; part++) p_groups(s, w, a, sm, staging, tile, 3 * part, 3 * part + 3);
        softmax_end(w, a, staging, tile, (threadIdx.x & 127) == 0);
    }
}

// The bases that an item's rows begin with: maxima of tile `tile` (tile_ahead). s is free afterwards.
FFPA_DEVICE void bases_ahead(float (&s)[BK / 2], Rows &w, const fwd_spill_args &a, Smem &sm, Ring &r, int tile)
{
    const u32 team = threadIdx.x / TEAM_THREADS - 1;
    const HeadOptions &o = sm.options[w.number & 1];
    const bool elected = (threadIdx.x & 127) == 0;
#pragma unroll
    for (int x = 0; x < 3; x++)
        if (FFPA_MASK == BOOL) w.bits[x] = mask_word(o, a, w.row, tile * BK, x);
#pragma unroll
    for (int x = 0; x < CHUNKS; x++) s_step(s, sm, r, team, x == 0, elected);
    s_complete(s, sm, r, elected);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) score_group(s, w.bits, o, a, w.row, tile * BK, g);
    mask_scores(s, w, a, tile);
    float x[2];
    row_maxima(s, x);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        x[h] = fmaxf(x[h], __shfl_xor_sync(~0u, x[h], 1));
        w.m[h] = fmaxf(w.m[h], fmaxf(x[h], __shfl_xor_sync(~0u, x[h], 2)));
    }
}

FFPA_DEVICE Rows rows_of(const fwd_spill_args &a, const Item &t, int number)
{
    Rows w;
    w.m[0] = w.m[1] = NO_BASE;
    w.l[0] = w.l[1] = 0.0f;
    w.moved = false;
    w.number = number;
    if (FFPA_MASK == BOOL) w.bits[0] = w.bits[1] = w.bits[2] = 0;
    place_rows(w, a, t);
    return w;
}

// Row sums, LSE, and what O is multiplied by.
FFPA_DEVICE void finish_rows(const Rows &w, const fwd_spill_args &a, int head)
{
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    const int b = head / a.hq, h = head % a.hq;
    if (lane == 0) ((u8 *)(a.moved + (i64)w.row64 * (a.k_tiles + 1) + a.k_tiles))[warp] = w.moved;
#pragma unroll
    for (int x = 0; x < 2; x++) {
        float l = w.l[x];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        if ((lane & 3) != 0) continue;
        const RowEnd end = end_row(a.scores, h, w.m[x], l);
        const int at = w.row64 * 64 + warp * 16 + (lane >> 2) + 8 * x;
        a.inverse[at] = end.inverse * (FFPA_DROPOUT ? a.dropout.keep_scale : 1.0f);
        a.base[at] = w.m[x];
        if (w.row + 8 * x < a.nq && a.lse.data)
            ((float *)a.lse.data)[b * a.lse.sb + h * a.lse.sh + (w.row + 8 * x) * a.lse.sn] = end.lse;
    }
}

FFPA_DEVICE void consume(const fwd_spill_args &a, Smem &sm)
{
    Ring r = {0, 0};
    float s0[BK / 2], s1[BK / 2];
#pragma unroll 1
    for (int k = 0;; k++) {
        mbar_wait(smem_addr(&sm.bar.dealt[k & 1]), k >> 1 & 1);
        const Item t = sm.item[k & 1];
        if (!OPTIONED) give_back_item(sm.bar, k);
        if (t.local < 0) break;
        Rows w = rows_of(a, t, k);
        if (FFPA_ALIBI && sm.options[k & 1].ahead >= 0) bases_ahead(s0, w, a, sm, r, sm.options[k & 1].ahead);
#pragma unroll
        for (int x = 0; x < BK / 2; x++) s1[x] = -FFPA_INF;
#pragma unroll 1
        for (int j = t.from; j < t.to; j += 2) {
            s_tile(s0, s1, w, a, sm, r, j);
            if (j + 1 == t.to) break;
            s_tile(s1, s0, w, a, sm, r, j + 1);
        }
        if (t.to - t.from & 1)
            s_finish(s0, w, a, sm, t.to - 1);
        else if (t.to > t.from)
            s_finish(s1, w, a, sm, t.to - 1);
        recall_rows(w, a, sm);
        const int done = OPTIONED ? (int)opaque((u32)k) : k; // else its half stays in a register, and spills
        finish_rows(w, a, OPTIONED ? sm.item[done & 1].head : t.head);
        if (OPTIONED) give_back_item(sm.bar, done);
    }
    if ((threadIdx.x & 127) == 0) bulk_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ffpa_kernel(const __grid_constant__ fwd_spill_args a)
{
    extern __shared__ __align__(1024) u8 smem[];
    Smem &sm = *(Smem *)smem;
    set_up_barriers(sm.bar);
    if (blockIdx.x == 0 && threadIdx.x == 0) a.tickets[1] = 0;
    if (threadIdx.x < TEAM_THREADS) {
        regs_less<24>();
        if (threadIdx.x == 0) produce(a, sm);
    } else {
        regs_more<240>();
        consume(a, sm);
    }
}
