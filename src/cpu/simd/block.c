/* block.c - online softmax over key tiles with query rows as lanes.
 *
 *   S^T[key][row] = K[key][d] Q^T[d][row]      K tile in place, Q^T panel chunk in L1
 *   m, l per lane; P^T = e^(S^T - m)           vertical over keys: no horizontal reductions
 *   O^T[dv][row] += V[key][dv] P^T[key][row]   V tile walked along dv, P^T panel in L1
 *
 * Why transposed: K and V rows are broadcast operands then, which need no packing, the softmax has a
 * lane per row, and P^T is already the panel that the second product wants.
 *
 * The base m is moved, and O rescaled, only when some lane's maximum passed it by more than SLACK: e^SLACK
 * is far from overflow, and O / l does not depend on m. */
#include "cpu/simd/block.h"

#include <float.h>
#include <math.h>

enum { SLACK = 8 };

/* Fewest columns of V worth bf16 products: below, and with few rows, the time is elsewhere, and f32 weights are exact. */
enum { PAIRS_COLUMNS = 8 };

/* Words of Q whose panel stays in L1: a matrix unit brings larger first-level caches, and writes scores less often. */
enum { PAIRS_DEPTH = HAS_MATRIX ? 2 * TILE_DEPTH : TILE_DEPTH };

/* Query rows of a block. The more, the less often K and V are read again and V copied; the fewer, the more
 * processors have something to do. */
static int block_rows(const problem *p)
{
    enum { SMALL = 128, LARGE = 256, MANY_BLOCKS = 32 };
    const int64_t group = p->ask.hk > 0 ? p->ask.hq / p->ask.hk : 0, rows = group * p->ask.nq;
    if (p->sources & VARLEN_Q)
        return group * p->total_q * p->ask.hk >= LARGE * MANY_BLOCKS ? LARGE : SMALL;
    const int64_t blocks = (rows + LARGE - 1) / LARGE * p->ask.b * p->ask.hk;
    const int64_t most = blocks >= MANY_BLOCKS ? LARGE : SMALL;
    return rows >= most ? (int)most : rows > NR ? (int)(rows + NR - 1) / NR * NR : NR;
}

tiles tiles_of(const problem *p)
{
    tiles t = {.bm = block_rows(p), .bn = 96, .d = p->ask.d, .dv = p->ask.dv};
    t.pairs = HAS_PAIRS && p->ask.dtype == FFPA_BF16;
    t.exact = p->ask.dtype == FFPA_F32;
    /* each tile reads and writes O: a matrix unit would wait for that more than for the products */
    if (t.pairs && HAS_MATRIX) t.bn = MAX_KEYS;
    t.ld = tile_stride(t.d > t.dv ? t.d : t.dv);
    t.ld_k = HAS_MATRIX ? tile_stride(pairs_count(t.d)) : t.ld;
    t.ld_v = HAS_MATRIX ? tile_stride(pairs_count(t.bn)) : t.ld;
    t.bias = scores_scratch(&p->ask, t.bm);
    t.keep = p->dropping ? (size_t)t.bn * NR : 0;
    return t;
}

static size_t round_line(size_t floats) { return (floats + 15) / 16 * 16; }

enum { PARTS = 10 };

static ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

/* Offsets in floats of the parts of a block's scratch; the last one is the end. */
static void scratch_offsets(const tiles *t, size_t at[PARTS + 1])
{
    const ptrdiff_t few = FEW_ROWS * few_stride(t->d);
    const ptrdiff_t many =
        t->bm * larger(t->d, pairs_count(t->d)); /* few columns, padded, are more words */
    const ptrdiff_t blocks = (t->dv + MATRIX_BLOCK - 1) / MATRIX_BLOCK;
    const ptrdiff_t size[PARTS] = {larger(many, few),
                                   t->bm * t->dv,
                                   t->bn * larger(t->ld, t->ld_k),
                                   t->bm * t->bn,
                                   (ptrdiff_t)t->bias,
                                   (ptrdiff_t)t->keep,
                                   t->pairs ? t->bm * pairs_count(t->bn) : 0,
                                   t->exact ? t->bn * NR : 0,
                                   t->exact ? t->d * NR : 0,
                                   t->pairs && HAS_MATRIX ? blocks * MATRIX_BLOCK * t->ld_v
                                                          : 0};
    at[0] = 0;
    for (int i = 0; i < PARTS; i++)
        at[i + 1] = at[i] + round_line((size_t)size[i]);
}

size_t block_scratch_bytes(const tiles *t)
{
    size_t at[PARTS + 1];
    scratch_offsets(t, at);
    return at[PARTS] * sizeof(float);
}

block_scratch block_scratch_at(const tiles *t, void *memory)
{
    size_t at[PARTS + 1];
    float *p = memory;
    scratch_offsets(t, at);
    return (block_scratch){p + at[0], p + at[1], p + at[2], p + at[3], p + at[4],
                           p + at[5], p + at[6], p + at[7], p + at[8], p + at[9]};
}

/* C = or += A B for one panel of NR lanes, in f32 or in words of two bf16. */
static void panel_product(const tiles *t, ptrdiff_t m, ptrdiff_t depth, tile_a a, tile_b b,
                          tile_c c)
{
    if (t->pairs)
        tile_mul_pairs(m, depth, a, b, c);
    else
        (a.col == 1 ? tile_dots : tile_mul)(m, NR, depth, a, b, c); /* scores : values */
}

/* Where the scores of a panel's part are. */
static float *panel_scores(const tiles *t, const block_scratch *w, int p, tile_part part)
{
    return w->s + p * t->bn + part.first * NR;
}

/* Whole panels. */
typedef struct lane_range {
    int first, end;
} lane_range;

/* S^T of some panels: depth in chunks, so that a chunk of a Q^T panel stays in L1 over all keys. */
static void scores_product(const block_state *st, const tiles *t, const block_scratch *w,
                           tile_a k, lane_range lanes)
{
    const ptrdiff_t whole = t->pairs ? pairs_count(t->d) : t->d;
    const ptrdiff_t most = t->pairs ? PAIRS_DEPTH : TILE_DEPTH;
    ptrdiff_t d0 = 0;
    do {
        const ptrdiff_t depth = whole - d0 < most ? whole - d0 : most;
        for (int p = lanes.first; p < lanes.end; p += NR) {
            const tile_part part = st->part[p / NR];
            panel_product(t, part.n, depth,
                          (tile_a){k.p + part.first * k.row + d0, k.row, 1, k.ahead},
                          (tile_b){w->q + p * whole + d0 * NR, NR},
                          (tile_c){panel_scores(t, w, p, part), NR, d0 > 0});
        }
        d0 += depth;
    } while (d0 < whole);
}

/* O^T of all panels += the V tile; columns in chunks, so that a chunk stays in L2 over all panels. */
static void values_product(const block_state *st, const tiles *t, const block_scratch *w,
                           tile_ahead *ahead)
{
    const ptrdiff_t panel = t->pairs ? pairs_count(t->bn) : t->bn;
    const float *weights = t->pairs ? w->pairs : w->s;
    for (ptrdiff_t d0 = 0; d0 < t->dv; d0 += TILE_DEPTH) {
        const ptrdiff_t columns = t->dv - d0 < TILE_DEPTH ? t->dv - d0 : TILE_DEPTH;
        for (int p = 0; p < st->rb.lanes; p += NR) {
            const tile_part part = st->part[p / NR];
            const ptrdiff_t first = t->pairs ? part.first / 2 : part.first; /* which is even */
            if (part.n == 0 && !st->fresh) continue;
            tile_a v = {w->kv + first * t->ld + d0, 1, t->ld, ahead};
            if (t->pairs && HAS_MATRIX)
                v = (tile_a){w->columns + d0 * t->ld_v + first, t->ld_v, 1, ahead};
            panel_product(t, columns, t->pairs ? pairs_count(part.n) : part.n, v,
                          (tile_b){weights + p * panel + first * NR, NR},
                          (tile_c){w->o + p * t->dv + d0 * NR, NR, !st->fresh});
        }
    }
}

/* Multiply the rows of o in VL lanes from `lane0` on by alpha. */
static void scale_output(const block_state *st, const tiles *t, const block_scratch *w,
                         int lane0, vf alpha)
{
    if (st->fresh) return;
    if (st->few) {
        for (int r = lane0; r < lane0 + VL && r < st->rb.rows; r++)
            for (ptrdiff_t d = 0; d < t->dv; d++)
                w->o[r * t->dv + d] *= alpha[r - lane0];
        return;
    }
    float *o = w->o + lane0 / NR * NR * t->dv + lane0 % NR;
    for (ptrdiff_t d = 0; d < t->dv; d++)
        vstore(o + d * NR, vload(o + d * NR) * alpha);
}

/* Move the base of VL lanes from `lane0` on to `top` where that is higher, and o and l with it. */
static void move_base(block_state *st, const tiles *t, const block_scratch *w, int lane0,
                      vf top)
{
    float *m = st->m + lane0, *l = st->l + lane0;
    const vf base = vload(m), next = vmax(top, base);
    const vf moved = vexp(base - next), alpha = vselect(base == next, vset(1.0f), moved);
    vstore(st->rounded + lane0, vload(st->rounded + lane0) * alpha);
    vstore(m, next); /* (-inf - -inf would be NaN, hence the select) */
    vstore(l, vload(l) * alpha);
    scale_output(st, t, w, lane0, alpha);
}

/* Scores of a panel times `factor`, and the largest of each lane. They are stored before the maximum is taken
 * off: fused into one multiply-add, equal large scores would differ. */
static void find_top(float *s, ptrdiff_t n, float factor, vf top[2])
{
    top[0] = top[1] = vset(-INFINITY);
    for (ptrdiff_t j = 0; j < n; j++)
        for (int h = 0; h < 2; h++) {
            const vf x = vload(s + j * NR + h * VL) * vset(factor);
            vstore(s + j * NR + h * VL, x);
            top[h] = vmax(x, top[h]); /* NaN leaves it alone and comes through exp later */
        }
}

/* Lanes whose largest score is so large that its rounding shows in O, but not so large that w->low is, and not
 * far below the base. A bias makes keys negative that matter to no row in the end: there only above 0. */
static vi coarse(const block_state *st, vf top, const float *m)
{
    const vf size = st->sc.bias || st->sc.alibi ? top : vabs(top);
    return (size > vset(64)) & (size < vset(0x1p20f)) & (top > vload(m) - vset(16));
}

/* Few rows have neither panels of Q nor, always, the tile of K in scratch. */
static tile_a few_panel(const block_state *st, const tiles *t, const block_scratch *w, int p)
{
    const ptrdiff_t ld = few_stride(t->d);
    for (int r = 0; r < NR; r++)
        for (ptrdiff_t d = 0; d < t->d; d++)
            w->panel[d * NR + r] = p + r < st->rb.rows ? w->q[(p + r) * ld + d] : 0.0f;
    rows_load_keys(w->kv, t->ld, &st->rb, &st->rb.c->f.k, st->sc.j0, st->sc.n);
    return (tile_a){.p = w->kv, .row = t->ld, .col = 1};
}

/* Scores of the panel's coarse lanes anew, in two floats. k is the tile of K, unless rows are few. */
static void exact_panel(const block_state *st, const tiles *t, const block_scratch *w, int p,
                        tile_a k, const vi lanes[2])
{
    const tile_part part = st->part[p / NR];
    int32_t wanted[NR];
    memcpy(wanted, lanes, sizeof wanted);
    if (st->few) k = few_panel(st, t, w, p);
    scores_exact(&st->sc, p,
                 &(exact_part){.at = part,
                               .k = k.p + part.first * k.row,
                               .ld_k = k.row,
                               .q = st->few ? w->panel : w->q + p * t->d,
                               .d = t->d,
                               .lanes = wanted,
                               .s = panel_scores(t, w, p, part),
                               .low = w->low,
                               .ld_low = NR});
}

/* Scores s + low, low being NULL if it is 0, less their base m become weights, which are added to l. With `rounded`
 * the weights are made bf16, and added up there. */
INLINE void weigh(float *s, const float *low, ptrdiff_t n, const float *m, float *l,
                  float *rounded)
{
    vf base[2], sum[2] = {vzero(), vzero()}, rounded_sum[2] = {vzero(), vzero()};
    for (int h = 0; h < 2; h++) { /* a lane that has seen no key: all its scores are -inf */
        const vf b = vload(m + h * VL);
        base[h] = vselect(b == vset(-INFINITY), vzero(), b);
    }
    for (ptrdiff_t j = 0; j < n; j++)
        for (int h = 0; h < 2; h++) {
            vf x = vload(s + j * NR + h * VL) - base[h];
            if (low) x += vload(low + j * NR + h * VL);
            vf e = vexp_weight(x);
            sum[h] += e;
            if (rounded) {
                e = (vf)(vround_bf16(e) & vuset(0xffff0000));
                rounded_sum[h] += e;
            }
            vstore(s + j * NR + h * VL, e);
        }
    for (int h = 0; h < 2; h++)
        vstore(l + h * VL, vload(l + h * VL) + sum[h]);
    for (int h = 0; rounded && h < 2; h++)
        vstore(rounded + h * VL, vload(rounded + h * VL) + rounded_sum[h]);
}

/* Scores of one panel, times `factor`, become weights; m, l and o follow. */
static void softmax_panel(block_state *st, const tiles *t, const block_scratch *w, int p,
                          tile_a k, float factor)
{
    const ptrdiff_t n = st->part[p / NR].n;
    float *s = panel_scores(t, w, p, st->part[p / NR]);
    vf top[2];
    find_top(s, n, factor, top);
    const vi lanes[2] = {coarse(st, top[0], st->m + p), coarse(st, top[1], st->m + p + VL)};
    const bool exact = t->exact && vany(lanes[0] | lanes[1]);
    if (exact) {
        exact_panel(st, t, w, p, k, lanes);
        find_top(s, n, 1.0f, top);
    }
    for (int h = 0; h < 2; h++)
        if (vany(top[h] > vload(st->m + p + h * VL) + vset(SLACK)))
            move_base(st, t, w, p + h * VL, top[h]);
    if (exact)
        weigh(s, w->low, n, st->m + p, st->l + p, NULL);
    else if (t->pairs)
        weigh(s, NULL, n, st->m + p, st->l + p, st->rounded + p);
    else
        weigh(s, NULL, n, st->m + p, st->l + p, NULL);
}

/* bf16 weights stay as rounded here, and O gets its factor at the end (weigh_as_rounded). */
static void drop_weights(const block_state *st, const tiles *t, const block_scratch *w, int p,
                         float *s)
{
    const tile_part part = st->part[p / NR];
    scores_keep(&st->sc, p, part, w->keep);
    for (ptrdiff_t i = 0; i < part.n * NR; i += VL) {
        const vf x = vload(s + i), keep = vload(w->keep + i);
        vstore(s + i, t->pairs ? vselect(keep == vzero(), x * keep, x) : x * keep);
    }
}

/* A masked tile whose V holds NaN or infinity: 0 * NaN must not reach the rows that may not see that
 * key. Such rows of V are taken out of the tile and marked; returns how many there are. */
static int take_odd_values(const tiles *t, const block_scratch *w, ptrdiff_t n,
                           int16_t odd[MAX_KEYS])
{
    int count = 0;
    for (ptrdiff_t j = 0; j < n; j++) {
        float *row = w->kv + j * t->ld;
        if (row_finite(row, t->dv)) continue;
        odd[count++] = (int16_t)j;
        memset(row, 0, (size_t)t->dv * sizeof *row);
    }
    return count;
}

/* Add key `j`, taken out above, to the rows that may see it. The tile row j serves as its buffer. */
static void add_odd_value(const block_state *st, const tiles *t, const block_scratch *w,
                          ptrdiff_t j)
{
    float *v = w->kv + j * t->ld;
    rows_load_keys(v, t->ld, &st->rb, &st->rb.c->f.v, st->sc.j0 + j, 1);
    for (int p = 0; p < st->rb.lanes; p += VL) {
        const int panel = p / NR * NR, half = p % NR;
        const vi seen = scores_allowed(&st->sc, p, j);
        const vf weight = vload(w->s + (ptrdiff_t)panel * t->bn + j * NR + half);
        float *o = w->o + panel * t->dv + half;
        for (int r = p; st->few && r < p + VL && r < st->rb.rows; r++)
            for (ptrdiff_t d = 0; d < t->dv; d++)
                if (seen[r - p]) w->o[r * t->dv + d] += weight[r - p] * v[d];
        for (ptrdiff_t d = 0; !st->few && d < t->dv; d++)
            vstore(o + d * NR, vload(o + d * NR) + vselect(seen, weight * vset(v[d]), vzero()));
    }
}

/* Scores become weights, in some panels; k as exact_panel has it. */
static void softmax_tile(block_state *st, const tiles *t, const block_scratch *w, tile_a k,
                         tile_kind kind, lane_range lanes)
{
    for (int p = lanes.first; p < lanes.end; p += NR) {
        const tile_part part = st->part[p / NR];
        float *s = panel_scores(t, w, p, part);
        const bool done = kind != TILE_PLAIN && kind != TILE_SCALED;
        if (done) scores_apply(&st->sc, p, part, s, NULL);
        softmax_panel(st, t, w, p, k, done ? 1.0f : st->sc.factor);
        if (st->sc.dropout) drop_weights(st, t, w, p, s);
        if (t->pairs)
            pairs_weights(w->pairs + p * pairs_count(t->bn) + part.first / 2 * NR, s, part.n);
    }
}

/* The tile of K where it is, if its rows are f32, evenly spaced and not all in the same few cache sets;
 * otherwise in scratch. */
static tile_a load_keys(const block_state *st, const tiles *t, const block_scratch *w)
{
    const ffpa_tensor *k = &st->rb.c->f.k;
    const int64_t j0 = st->sc.j0, page_bytes = 4096;
    if (t->pairs) {
        pairs_load_keys(w->kv, t->ld_k, &st->rb, j0, st->sc.n);
        return (tile_a){.p = w->kv, .row = t->ld_k, .col = 1};
    }
    const bool even =
        !st->rb.s->page_size && k->stride[2] * (int64_t)sizeof(float) % page_bytes;
    if (k->dtype == FFPA_F32 && row_contiguous(k) && even)
        return (tile_a){
            .p = sequence_key(st->rb.s, k, st->rb.hk, j0), .row = k->stride[2], .col = 1};
    rows_load_keys(w->kv, t->ld, &st->rb, k, j0, st->sc.n);
    return (tile_a){.p = w->kv, .row = t->ld, .col = 1};
}

/* Bring a tile of V into scratch; as take_odd_values where it is masked. */
static int load_values(const block_state *st, const tiles *t, const block_scratch *w,
                       tile_kind kind, int16_t odd[MAX_KEYS])
{
    const ffpa_tensor *v = &st->rb.c->f.v;
    const ptrdiff_t n = st->sc.n;
    float *pairs = HAS_MATRIX ? w->columns : w->kv;
    if (t->pairs && row_contiguous(v) &&
        (kind != TILE_MASKED || pairs_finite(&st->rb, st->sc.j0, n))) {
        pairs_load_values(pairs, t->ld_v, &st->rb, st->sc.j0, n);
        return 0;
    }
    rows_load_keys(w->kv, t->ld, &st->rb, v, st->sc.j0, n);
    const int odds = kind == TILE_MASKED ? take_odd_values(t, w, n, odd) : 0;
    if (t->pairs) pairs_pack_values(pairs, t->ld_v, w->kv, t->ld, n, t->dv);
    return odds;
}

/* What to fetch during a product: the rows of K or V of a tile at key j, if they lie evenly. */
static tile_ahead rows_ahead(const block_state *st, const tiles *t, const ffpa_tensor *x,
                             int64_t j)
{
    const ptrdiff_t size = (ptrdiff_t)dtype_bytes(x->dtype), bytes = x->shape[3] * size;
    const ptrdiff_t rows_of_c = t->pairs && HAS_MATRIX ? MATRIX_BLOCK : MR;
    const ptrdiff_t tiles_of_c = (st->rb.lanes / NR) * (t->bn / rows_of_c),
                    lines = t->bn * bytes / 64;
    const int64_t left = st->end - j < t->bn ? st->end - j : t->bn;
    if (st->rb.s->page_size || !row_contiguous(x) || left <= 0)
        return (tile_ahead){.row = NULL};
    return (tile_ahead){.row = sequence_key(st->rb.s, x, st->rb.hk, j),
                        .stride = x->stride[2] * size,
                        .bytes = bytes,
                        .rows = left,
                        .share = lines / tiles_of_c + 1};
}

static void tile_run(block_state *st, const tiles *t, const block_scratch *w, tile_kind kind)
{
    int16_t odd[MAX_KEYS];
    tile_ahead values = rows_ahead(st, t, &st->rb.c->f.v, st->sc.j0);
    tile_ahead keys = rows_ahead(st, t, &st->rb.c->f.k, st->sc.j0 + t->bn);
    for (int p = 0; p < st->rb.lanes; p += NR)
        st->part[p / NR] = scores_part(&st->sc, p);
    tile_a k = load_keys(st, t, w);
    k.ahead = &values;
    /* One panel's scores stay in L1 then; but K, if it is f32, may not stay in L2 over them. */
    const int together = t->pairs && HAS_MATRIX ? NR : st->rb.lanes;
    for (int p = 0; p < st->rb.lanes; p += together) {
        const lane_range lanes = {p, p + together};
        scores_product(st, t, w, k, lanes);
        softmax_tile(st, t, w, k, kind, lanes);
    }
    const int odds = load_values(st, t, w, kind, odd);
    values_product(st, t, w, &keys);
    st->fresh = false;
    for (int i = 0; i < odds; i++)
        add_odd_value(st, t, w, odd[i]);
}

static void tile_run_few(block_state *st, const tiles *t, const block_scratch *w,
                         tile_kind kind)
{
    few_tile f = {.rb = &st->rb,
                  .j0 = st->sc.j0,
                  .end = st->end,
                  .n = st->sc.n,
                  .scratch = w->kv,
                  .ld = t->ld,
                  .s = w->s,
                  .panel_keys = t->bn};
    int16_t odd[MAX_KEYS];
    for (int p = 0; p < st->rb.lanes; p += NR)
        st->part[p / NR] = scores_whole(&st->sc);
    few_locate(&f);
    few_scores(&f, w->q);
    softmax_tile(st, t, w, (tile_a){.p = NULL}, kind, (lane_range){0, st->rb.lanes});
    if (kind == TILE_MASKED || !row_contiguous(&st->rb.c->f.v)) few_copy_values(&f);
    const int odds = kind == TILE_MASKED ? take_odd_values(t, w, f.n, odd) : 0;
    few_output(&f, w->o, st->fresh);
    st->fresh = false;
    for (int i = 0; i < odds; i++)
        add_odd_value(st, t, w, odd[i]);
}

static void run_tiles(block_state *st, const tiles *t, const block_scratch *w, int64_t first,
                      int64_t last)
{
    const int64_t step = st->few ? FEW_KEYS : t->bn;
    scores_begin(&st->sc, &st->rb, w->bias);
    if (st->few)
        few_load_q(w->q, &st->rb);
    else if (t->pairs)
        pairs_load_q(w->q, &st->rb);
    else
        rows_to_panels(w->q, &st->rb, &st->rb.c->f.q);
    for (int64_t j0 = first / step * step; j0 < last; j0 += step) {
        const int64_t from = j0 < first ? first : j0, to = j0 + step < last ? j0 + step : last;
        const tile_kind kind = scores_tile(&st->sc, from, to - from);
        if (kind == TILE_EMPTY) continue;
        if (st->few)
            tile_run_few(st, t, w, kind);
        else
            tile_run(st, t, w, kind);
    }
}

/* O has the weights rounded to bf16. Where many are alike their rounding is no accident that cancels but a factor on
 * O, unless what O will be divided by has it too. So O gets the factor l / rounded here; and dropout's,
 * for the same reason. */
static void weigh_as_rounded(const block_state *st, const tiles *t, const block_scratch *w)
{
    for (int lane = 0; lane < st->rb.lanes; lane += VL) {
        const vf l = vload(st->l + lane), rounded = vload(st->rounded + lane);
        const vf factor = vselect(rounded == vzero(), vset(1.0f), l / rounded);
        scale_output(st, t, w, lane, factor * vset(st->sc.dropout ? st->sc.key.keep_scale : 1));
    }
}

void block_run(block_state *st, const tiles *t, const block_scratch *w, int64_t first,
               int64_t last)
{
    for (int r = 0; r < st->rb.lanes; r++)
        st->m[r] = -INFINITY, st->l[r] = st->rounded[r] = 0;
    st->fresh = true;
    st->few = st->rb.rows <= FEW_ROWS && st->rb.s->nk >= MANY_KEYS;
    if (first < st->rb.first) first = st->rb.first;
    if (last > st->rb.last) last = st->rb.last;
    if (first >= last) return;
    st->end = last;
    tiles own = *t;
    own.pairs =
        t->pairs && st->rb.rows > FEW_ROWS && t->dv >= PAIRS_COLUMNS && pairs_fit(&st->rb);
    if (own.pairs) matrix_begin();
    run_tiles(st, &own, w, first, last);
    if (own.pairs) {
        weigh_as_rounded(st, t, w);
        matrix_end();
    }
}

void block_row(const block_state *st, const tiles *t, const block_scratch *w, int r, float *row,
               float factor)
{
    if (!st->few || factor == 0.0f) {
        panel_row(row, w->o, t->dv, r, factor);
        return;
    }
    for (ptrdiff_t d = 0; d < t->dv; d++)
        row[d] = w->o[r * t->dv + d] * factor;
}

float block_finish(float m, float l, const float *sink, float *lse)
{
    const bool empty = l == 0.0f;
    float factor = 1.0f;
    if (sink && *sink != -INFINITY) { /* one more key of weight e^sink, whose value is 0 */
        const float top = *sink > m ? *sink : m;
        factor = m == top ? 1.0f : expf(m - top);
        l = l * factor + expf(*sink - top); /* NaN of NaN, keys or not */
        m = top;
    }
    *lse = l == 0.0f ? -INFINITY : m + logf(l);
    if (empty) return 0.0f;
    factor /= l;
    return factor < FLT_MIN ? FLT_MIN
                            : factor; /* however small, NaN and infinity in V come through */
}
