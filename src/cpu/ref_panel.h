/* ref_panel.h - a panel: up to BM query rows of one head against a range of its keys, and the
 * mathematics of one attention weight. Included once by ref_engine.h, in the precision `real`.
 *
 *   x_ij = scale <q_i, k_j>    t = c tanh(x/c)    s_ij = t + bias - alibi |i + Nk - Nq - j|
 *   P_ij = e^(s_ij - LSE_i)    dS_ij = P_ij (m_ij/(1-p) <dO_i, v_j> - delta_i)
 *
 * A(i), the keys that query i may see, is kept as an explicit list: a key that is not in it is
 * never read, so it cannot matter what it holds. What is in it takes part by IEEE rules: NaN in
 * a score makes the row and its LSE NaN; so does a score of +inf, through inf - inf; a weight
 * of 0 (dropped, or too small for `real`) times an infinite value is NaN. */

#include "core/dropout.h"
#include "core/plan.h"
#include "core/sequence.h"
#include "cpu/element.h"
#include "cpu/own_keys.h"

#include <tgmath.h>

typedef REAL real;

enum {
    BM = 32,   /* query rows of a panel */
    BN = 32,   /* keys that are converted to `real` at a time */
    LANES = 8, /* partial sums of a dot product: hides latency, allows vectors */
};

/* What backward's second and third pass need of a row. LSE_i is kept in two parts, since their
 * sum loses all precision of `sum` for large scores. */
typedef struct row_stat {
    real max, sum, delta; /* LSE = max + log(sum) */
    bool empty;           /* no key, or all scores -inf */
    bool given;           /* O and LSE are the call's: there are more keys elsewhere */
} row_stat;

/* One call, as all pieces of work see it. */
typedef struct ref_job {
    const call *c;
    const ffpa_problem *ask;
    real scale, softcap, keep_scale;
    bool dropping;
    dropout_key dropout;
    int64_t d, dv, hq, hk, max_nk;
    int64_t row_blocks;   /* panels that cover the query rows of the longest sequence */
    int64_t key_blocks;   /* tiles that cover its keys */
    row_stat *stats;      /* [q's batch, Hq, q's rows]; backward only */
    struct panel *panels; /* one per worker */
} ref_job;

typedef struct panel {
    const ref_job *job;
    int64_t b, h; /* sequence and query head */
    sequence seq;
    int rows;
    int64_t row[BM];     /* i of each row */
    int64_t first, last; /* range that the listed keys are from */
    int64_t count[BM];   /* number of keys listed for it */
    row_stat stat[BM];
    real k_norm[BN]; /* |k| of the keys in k */
    real reach[BM];  /* of each row, the largest |k| of its keys */
    /* what k and v hold: first key (-1 = nothing), sequence, key head */
    int64_t k_tile, v_tile, tile_b, tile_hk;

    /* [BM][max_nk], one entry per listed key */
    int64_t *key;
    real *s;     /* score, then P */
    real *ds;    /* <dO, v>, then dS */
    real *slope; /* dt/dx of the softcap */

    real *q, *dq;   /* [BM][D] */
    real *dout, *o; /* [BM][Dv] */
    real *k, *dk;   /* [BN][D] */
    real *v, *dv;   /* [BN][Dv] */
    real *mask_sum; /* [BM][max_nk] */
} panel;

/* ---- vectors --------------------------------------------------------------------------- */

static real dot(const real *a, const real *b, int64_t n)
{
    real part[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            part[l] += a[i + l] * b[i + l];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (int l = 0; l < LANES; l++)
        sum += part[l];
    return sum;
}

/* y += a x */
static void add_scaled(real *restrict y, real a, const real *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void clear(real *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = 0;
}

static void load_row(real *to, const ffpa_tensor *t, const void *from, int64_t n)
{
    const int64_t step = t->stride[3] * element_bytes(t->dtype);
    const char *at = from;
#define LOAD_AS(type)                                        \
    case type:                                               \
        for (int64_t i = 0; i < n; i++)                      \
            to[i] = (real)element_load(at + i * step, type); \
        break;
    switch (t->dtype) { /* outside the loop, so that each loop is a simple one */
        LOAD_AS(FFPA_F64)
        LOAD_AS(FFPA_F32)
        LOAD_AS(FFPA_F16)
        LOAD_AS(FFPA_BF16)
    default: break;
    }
#undef LOAD_AS
}

static void store_row(const ffpa_tensor *t, void *to, real factor, const real *from, int64_t n)
{
    const int64_t step = t->stride[3] * element_bytes(t->dtype);
    for (int64_t i = 0; i < n; i++)
        element_store((char *)to + i * step, t->dtype, (double)(factor * from[i]));
}

/* The larger one; NaN if either is. */
static real larger_or_nan(real a, real b) { return b > a || isnan(b) ? b : a; }

/* ---- rows ------------------------------------------------------------------------------ */

/* Query rows are numbered 0.. among those asked for: all of them, or a subset. */
static int64_t asked_rows(const call *c, int64_t rows_below)
{
    if (!c->f.rows) return rows_below;
    int64_t n = 0;
    while (n < c->rows.count && c->rows.rows[n] < rows_below)
        n++;
    return n;
}

static int64_t asked_row(const call *c, int64_t n) { return c->f.rows ? c->rows.rows[n] : n; }

static void panel_begin(panel *p, int64_t b, int64_t h)
{
    const ref_job *job = p->job;
    const int64_t hk = job->hq > 0 ? h / (job->hq / job->hk) : 0; /* no query head has any */
    p->seq = sequence_get(job->c, b);
    p->b = b, p->h = h;
    if (p->tile_b != b || p->tile_hk != hk) p->k_tile = p->v_tile = -1;
    p->tile_b = b, p->tile_hk = hk;
}

/* Take asked rows first..last-1 of the sequence, or as many of them as fit. */
static void panel_rows(panel *p, int64_t first, int64_t last)
{
    p->rows = 0;
    for (int64_t n = first; n < last && p->rows < BM; n++)
        p->row[p->rows++] = asked_row(p->job->c, n);
}

static row_stat *stat_of(const panel *p, int r)
{
    const ffpa_tensor *q = &p->job->c->f.q;
    const int64_t row = p->seq.q_row + p->row[r];
    return &p->job->stats[(p->seq.q_batch * q->shape[1] + p->h) * q->shape[2] + row];
}

/* Rows of a query-shaped tensor into [BM][n]. */
static void panel_load(const panel *p, real *to, const ffpa_tensor *t, int64_t n)
{
    if (n == 0) return;
    for (int r = 0; r < p->rows; r++)
        load_row(to + r * n, t, sequence_query(&p->seq, t, p->h, p->row[r]), n);
}

static void panel_store(const panel *p, const ffpa_tensor *t, real factor, const real *from,
                        int64_t n)
{
    if (!t->data || n == 0) return;
    for (int r = 0; r < p->rows; r++)
        store_row(t, sequence_query(&p->seq, t, p->h, p->row[r]), factor, from + r * n, n);
}

/* ---- A(i) ------------------------------------------------------------------------------ */

/* An element of a tensor whose axes of size 1 stand for all indices. */
static const char *broadcast_at(const ffpa_tensor *t, int64_t b, int64_t h, int64_t i,
                                int64_t j)
{
    const int64_t index[4] = {b, h, i, j};
    int64_t offset = 0;
    for (int axis = 0; axis < 4; axis++)
        if (t->shape[axis] != 1) offset += index[axis] * t->stride[axis];
    return (const char *)t->data +
           offset * (t->dtype == FFPA_BOOL ? 1 : element_bytes(t->dtype));
}

static bool mask_removes(const panel *p, int64_t i, int64_t j)
{
    const ffpa_tensor *mask = &p->job->c->f.mask;
    if (!mask->data) return false;
    const char *at = broadcast_at(mask, p->b, p->h, i, j);
    if (mask->dtype == FFPA_BOOL) return *at == 0;
    return element_load(at, mask->dtype) == (double)-INFINITY;
}

/* List the keys in first..last-1 that each row may see. */
static void panel_keys(panel *p, int64_t first, int64_t last)
{
    p->first = first, p->last = last;
    for (int r = 0; r < p->rows; r++) {
        const int64_t i = p->row[r];
        const key_range range = key_range_of(p->job->ask, p->seq.nq, p->seq.nk, i);
        int64_t *key = p->key + r * p->job->max_nk, n = 0;
        for (int64_t j = first > range.first ? first : range.first; j < last && j < range.last;
             j++)
            if (!mask_removes(p, i, j)) key[n++] = j;
        p->count[r] = n;
    }
}

static bool panel_has_keys(const panel *p)
{
    for (int r = 0; r < p->rows; r++)
        if (p->count[r]) return true;
    return false;
}

/* ---- sweep: visit every listed (row, key), tile by tile -------------------------------- */

/* `e` is the entry in key, s, ds and slope; `n` the key's row in the tile. */
typedef void (*visit)(panel *p, int r, int64_t e, int64_t n);

static void load_tile(const panel *p, real *to, int64_t *holds, const ffpa_tensor *t, int64_t n,
                      int64_t first)
{
    if (*holds == first || n == 0) return;
    const int64_t last = first + BN < p->seq.nk ? first + BN : p->seq.nk;
    for (int64_t j = first; j < last; j++)
        load_row(to + (j - first) * n, t, sequence_key(&p->seq, t, p->tile_hk, j), n);
    *holds = first;
}

static void load_keys(panel *p, int64_t first)
{
    const ref_job *job = p->job;
    if (p->k_tile == first || job->d == 0) return;
    load_tile(p, p->k, &p->k_tile, &job->c->f.k, job->d, first);
    for (int64_t n = 0; n < BN && first + n < p->seq.nk; n++)
        p->k_norm[n] = sqrt(dot(p->k + n * job->d, p->k + n * job->d, job->d));
}

/* Tiles start at multiples of BN. With WITH_K and WITH_V the tile's keys and values are in k
 * and v. */
enum { WITH_K = 1, WITH_V = 2 };

static void panel_sweep(panel *p, int with, visit visit_entry)
{
    const ref_job *job = p->job;
    int64_t done[BM] = {0};
    for (int64_t first = p->first / BN * BN; first < p->last; first += BN) {
        bool loaded = false;
        for (int r = 0; r < p->rows; r++) {
            const int64_t row = r * job->max_nk;
            for (; done[r] < p->count[r] && p->key[row + done[r]] < first + BN; done[r]++) {
                if (!loaded && with & WITH_K) load_keys(p, first);
                if (!loaded && with & WITH_V)
                    load_tile(p, p->v, &p->v_tile, &job->c->f.v, job->dv, first);
                loaded = true;
                visit_entry(p, r, row + done[r], p->key[row + done[r]] - first);
            }
        }
    }
}

/* ---- one weight ------------------------------------------------------------------------ */

static void visit_score(panel *p, int r, int64_t e, int64_t n)
{
    const ref_job *job = p->job;
    const call *c = job->c;
    const int64_t i = p->row[r], j = p->key[e];
    real t = job->scale * dot(p->q + r * job->d, p->k + n * job->d, job->d), slope = 1;
    if (job->softcap > 0) {
        const real capped = tanh(t / job->softcap);
        t = job->softcap * capped;
        slope = 1 - capped * capped;
    }
    if (c->f.mask.data && c->f.mask.dtype != FFPA_BOOL)
        t += (real)element_load(broadcast_at(&c->f.mask, p->b, p->h, i, j), c->f.mask.dtype);
    if (c->f.alibi.data) {
        const int64_t distance = i + p->seq.nk - p->seq.nq - j;
        const double alibi =
            element_load(broadcast_at(&c->f.alibi, p->b, p->h, 0, 0), FFPA_F32);
        t -= (real)alibi * (real)(distance < 0 ? -distance : distance);
    }
    p->s[e] = t;
    if (p->slope) p->slope[e] = slope;
    if (p->k_norm[n] > p->reach[r]) p->reach[r] = p->k_norm[n];
}

/* m_ij / (1 - p) */
static real keep_factor(const panel *p, int r, int64_t e)
{
    const ref_job *job = p->job;
    if (!job->dropping) return 1;
    const bool kept = dropout_keeps(&job->dropout, p->b * job->hq + p->h, p->row[r], p->key[e]);
    return kept ? job->keep_scale : 0;
}

/* max and sum of row r, which make its LSE; an empty row loses its keys. */
static void row_softmax(panel *p, int r)
{
    const ffpa_tensor *sink = &p->job->c->f.sink;
    const real *s = p->s + r * p->job->max_nk;
    row_stat *stat = &p->stat[r];
    *stat = (row_stat){.max = -(real)INFINITY};
    for (int64_t n = 0; n < p->count[r]; n++)
        stat->max = larger_or_nan(stat->max, s[n]);
    stat->empty = stat->max == -(real)INFINITY;
    if (stat->empty) p->count[r] = 0;

    real logit = -(real)INFINITY;
    if (sink->data) logit = (real)element_load(broadcast_at(sink, 0, p->h, 0, 0), FFPA_F32);
    stat->max = larger_or_nan(stat->max, logit);
    if (stat->max == -(real)INFINITY) return; /* LSE = -inf: sum stays 0 */
    stat->sum = exp(logit - stat->max);
    for (int64_t n = 0; n < p->count[r]; n++)
        stat->sum += exp(s[n] - stat->max);
}

/* In backward: where the call's LSE stands for more keys than row r has here, take it. */
static void row_given(panel *p, int r)
{
    const ref_job *job = p->job;
    const ffpa_tensor *t = &job->c->f.lse;
    row_stat *stat = &p->stat[r];
    const real *q = p->q + r * job->d;
    const double reach =
        fabs((double)job->scale) * (double)(sqrt(dot(q, q, job->d)) * p->reach[r]);
    const double own = (double)stat->max + log((double)stat->sum);
    real lse;
    load_row(&lse, t, sequence_query(&p->seq, t, p->h, p->row[r]), 1);
    if (lse == -(real)INFINITY) {
        *stat = (row_stat){.max = lse, .empty = true};
        p->count[r] = 0;
    } else if (!lse_is_own((double)lse, own, reach, t->dtype)) {
        *stat = (row_stat){.max = lse, .sum = 1, .empty = stat->empty, .given = true};
    }
}

/* Scores to P. */
static void panel_weights(panel *p)
{
    for (int r = 0; r < p->rows; r++) {
        real *s = p->s + r * p->job->max_nk;
        for (int64_t n = 0; n < p->count[r]; n++)
            s[n] = exp(s[n] - p->stat[r].max) / p->stat[r].sum;
    }
}

static void visit_output(panel *p, int r, int64_t e, int64_t n)
{
    const int64_t dv = p->job->dv;
    add_scaled(p->o + r * dv, REF_ROUNDING(p->s[e] * keep_factor(p, r, e)), p->v + n * dv, dv);
}

/* <dO_i, v_j> */
static void visit_dp(panel *p, int r, int64_t e, int64_t n)
{
    const int64_t dv = p->job->dv;
    p->ds[e] = dot(p->dout + r * dv, p->v + n * dv, dv);
}

/* <dO, v> to dS; delta is in stat. */
static void panel_ds(panel *p)
{
    for (int r = 0; r < p->rows; r++) {
        const int64_t row = r * p->job->max_nk;
        for (int64_t e = row; e < row + p->count[r]; e++)
            p->ds[e] = p->s[e] * (keep_factor(p, r, e) * p->ds[e] - p->stat[r].delta);
    }
}

static void visit_dq(panel *p, int r, int64_t e, int64_t n)
{
    const int64_t d = p->job->d;
    add_scaled(p->dq + r * d, REF_ROUNDING(p->ds[e] * p->slope[e]), p->k + n * d, d);
}

/* dK_j and dV_j of the tile that is loaded; the factor `scale` of dK comes when it is stored.
 */
static void visit_dk_dv(panel *p, int r, int64_t e, int64_t n)
{
    const int64_t d = p->job->d, dv = p->job->dv;
    add_scaled(p->dk + n * d, REF_ROUNDING(p->ds[e] * p->slope[e]), p->q + r * d, d);
    add_scaled(p->dv + n * dv, REF_ROUNDING(p->s[e] * keep_factor(p, r, e)), p->dout + r * dv,
               dv);
}
