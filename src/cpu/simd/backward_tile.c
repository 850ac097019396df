/* backward_tile.c - one tile of keys x rows: the five products and what is between them.
 *
 * NaN and infinity. An entry that is not allowed has P = dX = 0 exactly, but 0 * NaN is NaN: so rows of K,
 * Q and dO that are not finite stay out of the last three products and are added one by one, to the
 * allowed entries only. */
#include "cpu/simd/backward.h"

#include <math.h>

/* C^T of all panels = rows * panels: depth in chunks, so that a chunk of a panel stays in L1. */
static void rows_by_panels(const backward_work *w, tile_a a, ptrdiff_t depth,
                           const float *panels, float *c)
{
    const ptrdiff_t n = w->sc.n, whole = depth;
    ptrdiff_t d0 = 0;
    do {
        depth = whole - d0 < TILE_DEPTH ? whole - d0 : TILE_DEPTH;
        for (int p = 0; p < w->rb.lanes; p += NR)
            tile_dots(n, NR, depth, (tile_a){.p = a.p + d0, .row = a.row, .col = 1},
                      (tile_b){panels + p * whole + d0 * NR, NR},
                      (tile_c){c + (ptrdiff_t)p * w->job->t.bn, NR, d0 > 0});
        d0 += depth;
    } while (d0 < whole);
}

static vi allowed_lanes(const backward_work *w, int lane0, ptrdiff_t j)
{
    vi live;
    memcpy(&live, w->live + lane0, sizeof live);
    return live & scores_allowed(&w->sc, lane0, j);
}

/* What weights_lanes needs besides the tile. */
typedef struct weights_kind {
    bool masked, kept, capped;
    bool bare;  /* weights without dropout */
    bool exact; /* scores are s + low, low where dX will be */
    bool odd;   /* something is not finite: scores of allowed keys may be -inf too */
    float factor;
} weights_kind;

/* VL lanes from lane0 on: scores and dP to P and dX. */
INLINE void weights_lanes(const backward_work *w, int lane0, const weights_kind kind)
{
    const ptrdiff_t ld = w->job->t.ld_p,
                    at = lane0 / NR * NR * (ptrdiff_t)w->job->t.bn + lane0 % NR;
    const float *s = w->m.s + at, *dp = w->m.dp + at;
    const float *keep = w->m.keep + lane0 % NR, *tanhs = w->m.tanhs + lane0 % NR;
    const vf base = vload(w->base + lane0), delta = vload(w->delta + lane0);
    const vf base_low = vload(w->base_low + lane0), norm = vload(w->norm + lane0);
    const vf factor = vset(kind.factor);
    vi live;
    memcpy(&live, w->live + lane0, sizeof live);
    for (ptrdiff_t j = 0; j < w->sc.n; j++) {
        /* As forward has it: fused with the difference, a large score would not be its own base. */
        const vf score = vmul_alone(vload(s + j * NR), factor);
        vf above = score - base;
        if (kind.exact) above = above + (vload(w->m.dx + j * ld + lane0) - base_low);
        vf p = vexp(above) * norm, g = vload(dp + j * NR);
        vf weight = p;
        if (kind.kept) {
            const vf k = vload(keep + j * NR);
            if (!kind.bare) weight = p * k;
            g = g * k;
        }
        vf x = p * (g - delta);
        if (kind.capped) {
            const vf t = vload(tanhs + j * NR);
            x = x * (vset(1.0f) - t * t);
        }
        if (kind.masked) { /* p is 0 then, unless base is NaN; x may be 0 * NaN */
            const vi in =
                kind.odd ? allowed_lanes(w, lane0, j) : live & ~(score == vset(-INFINITY));
            weight = vselect(in, weight, vzero());
            x = vselect(in, x, vzero());
        }
        vstore(w->m.p + j * ld + lane0, weight);
        vstore(w->m.dx + j * ld + lane0, x);
    }
}

/* The kinds that are common get code of their own. */
static void weights_panel(const backward_work *w, int p, const weights_kind kind)
{
    const weights_kind plain = {.factor = kind.factor},
                       masked = {.masked = true, .factor = kind.factor};
    weights_kind any = kind;
    any.masked = true;
    for (int lane0 = p; lane0 < p + NR; lane0 += VL) {
        if (kind.kept || kind.capped || kind.odd || kind.exact)
            weights_lanes(w, lane0, any);
        else if (kind.masked)
            weights_lanes(w, lane0, masked);
        else
            weights_lanes(w, lane0, plain);
    }
}

/* Where sums over keys are wanted, move their base up to the largest score of the tile, and them with it. */
static void raise_base(backward_work *w, int p, const weights_kind kind)
{
    row_sums *sums = w->sums;
    const ptrdiff_t ld = w->job->t.ld_p;
    const float *s = w->m.s + (ptrdiff_t)p * w->job->t.bn;
    for (int lane = p; lane < p + NR; lane += VL) {
        const vf before = vload(sums->top + lane), before_low = vload(sums->top_low + lane);
        vf top = before, top_low = before_low;
        for (ptrdiff_t j = 0; j < w->sc.n;
             j++) { /* NaN leaves it alone and comes through exp */
            const vf x = vload(s + j * NR + lane - p) * vset(kind.factor);
            const vf low = kind.exact ? vload(w->m.dx + j * ld + lane) : vzero();
            const vi more = (x > top) | ((x == top) & (low > top_low));
            top = vselect(more, x, top);
            top_low = vselect(more, low, top_low);
        }
        const vi same = (top == before) & (top_low == before_low);
        const vf alpha =
            vselect(same, vset(1.0f), vexp((before - top) + (before_low - top_low)));
        vstore(sums->top + lane, top);
        vstore(sums->top_low + lane, top_low);
        vstore(sums->p + lane, vload(sums->p + lane) * alpha);
        vstore(sums->ds + lane, vload(sums->ds + lane) * alpha);
        vstore(w->base + lane, vselect(top == vset(-INFINITY), vzero(), top));
        vstore(w->base_low + lane, top_low);
    }
}

/* Scores of the panel at lane p, from its products. True if some are exact. */
static bool score_panel(const backward_work *w, int p, tile_kind kind, float *tanhs)
{
    const backward_plan *t = &w->job->t;
    float *s = w->m.s + (ptrdiff_t)p * t->bn;
    bool exact = false;
    for (int r = p; r < p + NR; r++)
        exact = exact || w->exact[r];
    if (kind >= TILE_SCORED || exact) scores_apply(&w->sc, p, scores_whole(&w->sc), s, tanhs);
    if (exact)
        scores_exact(&w->sc, p,
                     &(exact_part){.at = scores_whole(&w->sc),
                                   .k = w->m.k + (w->sc.j0 - w->chunk0) * t->ld_k,
                                   .ld_k = t->ld_k,
                                   .q = w->m.q_panels + p * t->d,
                                   .d = t->d,
                                   .lanes = w->exact + p,
                                   .s = s,
                                   .low = w->m.dx + p,
                                   .ld_low = t->ld_p,
                                   .tanhs = tanhs});
    return exact;
}

bool backward_tile(backward_work *w, int64_t j0, ptrdiff_t n, tile_want want)
{
    const backward_plan *t = &w->job->t;
    const tile_kind kind = scores_tile(&w->sc, j0, n);
    if (kind == TILE_EMPTY) return false;
    const ptrdiff_t j = j0 - w->chunk0;
    rows_by_panels(w, (tile_a){.p = w->m.k + j * t->ld_k, .row = t->ld_k, .col = 1}, t->d,
                   w->m.q_panels, w->m.s);
    rows_by_panels(w, (tile_a){.p = w->m.v + j * t->ld_v, .row = t->ld_v, .col = 1}, t->dv,
                   w->m.dout_panels, w->m.dp);
    const bool capped = w->sc.softcap > 0 && want == WANT_KEPT_DX;
    weights_kind how = {.masked = kind == TILE_MASKED || w->dead_lanes,
                        .kept = w->sc.dropout,
                        .capped = capped,
                        .bare = want == WANT_P_DS,
                        .odd =
                            w->odd_v || w->odd_keys || w->odd_q || w->odd_dout || w->odd_rows};
    for (int p = 0; p < w->rb.lanes; p += NR) {
        how.exact = score_panel(w, p, kind, capped ? w->m.tanhs : NULL);
        how.factor = kind == TILE_SCALED && !how.exact ? w->sc.factor : 1.0f;
        if (w->sums) raise_base(w, p, how);
        if (how.kept) scores_keep(&w->sc, p, scores_whole(&w->sc), w->m.keep);
        weights_panel(w, p, how);
    }
    return true;
}

/* ---- dQ ---- */

/* dQ^T += K^T dX^T */
static void add_dq_tile(const backward_work *w, float *dq, const float *k)
{
    const backward_plan *t = &w->job->t;
    for (ptrdiff_t d0 = 0; d0 < t->d; d0 += TILE_DEPTH) {
        const ptrdiff_t columns = t->d - d0 < TILE_DEPTH ? t->d - d0 : TILE_DEPTH;
        for (int p = 0; p < w->rb.lanes; p += NR)
            tile_mul(columns, NR, w->sc.n, (tile_a){.p = k + d0, .row = 1, .col = t->ld_k},
                     (tile_b){w->m.dx + p, t->ld_p},
                     (tile_c){dq + p * t->d + d0 * NR, NR, true});
    }
}

/* Add key j of the tile, whose row of K is k, to the rows that may see it. */
static void add_dq_odd(const backward_work *w, float *dq, ptrdiff_t j, const float *k)
{
    const backward_plan *t = &w->job->t;
    for (int lane0 = 0; lane0 < w->rb.lanes; lane0 += VL) {
        const vi allowed = allowed_lanes(w, lane0, j);
        const vf x = vload(w->m.dx + j * t->ld_p + lane0);
        float *to = dq + lane0 / NR * NR * t->d + lane0 % NR;
        for (ptrdiff_t d = 0; d < t->d; d++)
            vstore(to + d * NR, vload(to + d * NR) + vselect(allowed, x * vset(k[d]), vzero()));
    }
}

void backward_add_dq(backward_work *w, float *dq)
{
    const backward_plan *t = &w->job->t;
    const ffpa_tensor *tensor = &w->job->c->f.k;
    const ptrdiff_t first = w->sc.j0 - w->chunk0;
    float *k = w->m.k + first * t->ld_k;
    for (int i = 0; i < w->odd_keys; i++)
        memset(w->m.k + w->odd_key[i] * t->ld_k, 0, (size_t)t->d * sizeof *k);
    add_dq_tile(w, dq, k);
    for (int i = 0; i < w->odd_keys; i++) {
        const ptrdiff_t j = w->odd_key[i] - first;
        float *row = k + j * t->ld_k;
        row_load(row, sequence_key(&w->seq, tensor, w->at[1], w->sc.j0 + j), tensor->dtype,
                 tensor->stride[3], t->d);
        if (j >= 0 && j < w->sc.n) add_dq_odd(w, dq, j, row);
    }
}

/* ---- dK, dV ---- */

typedef struct key_gradient {
    const ffpa_tensor *rows; /* Q or dO */
    const float *from;       /* in scratch */
    const float *weights;    /* dX^T or P^T */
    float *sum;              /* dK or dV of the tile's first key */
    ptrdiff_t ld, pad;
    const int16_t *odd;
    int odds;
} key_gradient;

/* Add row r to the keys that it may see. */
static void add_odd_row(const backward_work *w, const key_gradient *g, int r)
{
    const ptrdiff_t dim = g->rows->shape[3], ld_p = w->job->t.ld_p;
    row_load(w->m.row, sequence_query(&w->seq, g->rows, w->rb.head[r], w->rb.query[r]),
             g->rows->dtype, g->rows->stride[3], dim);
    for (ptrdiff_t j = 0; j < w->sc.n; j++) {
        if (!allowed_lanes(w, r / VL * VL, j)[r % VL]) continue;
        for (ptrdiff_t d = 0; d < dim; d++)
            g->sum[j * g->ld + d] += g->weights[j * ld_p + r] * w->m.row[d];
    }
}

static void add_key_gradient(const backward_work *w, const key_gradient *g)
{
    tile_mul(w->sc.n, g->pad, w->rb.lanes,
             (tile_a){.p = g->weights, .row = w->job->t.ld_p, .col = 1},
             (tile_b){g->from, g->ld}, (tile_c){g->sum, g->ld, true});
    for (int i = 0; i < g->odds; i++)
        add_odd_row(w, g, g->odd[i]);
}

void backward_add_dkdv(backward_work *w)
{
    const backward_plan *t = &w->job->t;
    const backward_scratch *m = &w->m;
    const call *c = w->job->c;
    const ptrdiff_t j = w->sc.j0 - w->chunk0;
    const key_gradient dk = {&c->f.q, m->q,     m->dx,        m->dk + j * t->ld_k,
                             t->ld_k, t->d_pad, w->odd_q_row, w->odd_q};
    const key_gradient dv = {&c->g.dout,          m->dout,    m->p,
                             m->dv + j * t->ld_v, t->ld_v,    t->dv_pad,
                             w->odd_dout_row,     w->odd_dout};
    if (c->g.dv.data) add_key_gradient(w, &dv);
    if (c->g.dk.data) add_key_gradient(w, &dk);
}
