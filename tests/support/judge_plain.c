/* judge_plain.c - the definition, sequence by sequence and row by row.
 *   x = scale <q, k>, t = c tanh(x / c), s = t + bias - slope |i + Nk - Nq - j|
 *   LSE = ln(sum e^s [+ e^sink]), P = e^(s - LSE), O = sum keep P v
 *   delta = <dO, O> - dLSE, dS = P (keep <dO, v> - delta), dX = dS (1 - (t / c)^2) */
#include "support/judge_plain.h"

#include <math.h>
#include <stdlib.h>

const double plain_unwritten = 12345.6789;

typedef struct span {
    int64_t nq, nk;           /* of this sequence */
    int64_t q_batch, q_row;   /* where its first query is */
    int64_t k_batch, k_row;   /* where its first key is, unless paged */
    int64_t batch;            /* its number */
} span;

/* One row of scores and what backward needs of it. */
typedef struct row {
    double *score, *bend, *prob, *keep; /* [nk] s, dt/dx, P, keep factor */
    bool *allowed;
    double lse;
} row;

static int64_t index_of(const void *array, int32_t dtype, int64_t i)
{
    return dtype == FFPA_I64 ? ((const int64_t *)array)[i] : (int64_t)((const int32_t *)array)[i];
}

static int64_t sequences(const trial *t) { return t->f.varlen ? t->varlen.batch : t->t[Q]->view.shape[0]; }

static span span_of(const trial *t, int64_t b)
{
    span s = {t->t[Q]->view.shape[2], t->t[K]->view.shape[2], b, 0, b, 0, b};
    const ffpa_varlen *v = t->f.varlen;
    const ffpa_kv_cache *c = t->f.kv_cache;
    if (v && v->cu_q) {
        s.q_batch = 0, s.q_row = index_of(v->cu_q, v->index_dtype, b);
        s.nq = index_of(v->cu_q, v->index_dtype, b + 1) - s.q_row;
    }
    if (v && v->cu_k) {
        s.k_batch = 0, s.k_row = index_of(v->cu_k, v->index_dtype, b);
        s.nk = index_of(v->cu_k, v->index_dtype, b + 1) - s.k_row;
    }
    if (c) {
        s.nk = index_of(c->lengths, c->index_dtype, b) + (t->t[K_NEW] ? t->t[K_NEW]->view.shape[2] : 0);
        if (c->batch_index) s.k_batch = index_of(c->batch_index, c->index_dtype, b);
    }
    return s;
}

/* Column d of key (or value) j; appended rows come from where the caller handed them in. */
static double key(const trial *t, const span *s, role r, int64_t h, int64_t j, int64_t d)
{
    const ffpa_kv_cache *c = t->f.kv_cache;
    const role fresh = r == K ? K_NEW : V_NEW;
    if (c && t->t[fresh]) {
        const int64_t old = s->nk - t->t[fresh]->view.shape[2];
        if (j >= old) return tensor_get(t->t[fresh], s->batch, h, j - old, d);
    }
    if (c && c->block_table) {
        const int64_t page = t->t[K]->view.shape[2];
        const int64_t stride = c->table_stride ? c->table_stride : c->table_width;
        return tensor_get(t->t[r], index_of(c->block_table, c->index_dtype, s->batch * stride + j / page), h,
                          j % page, d);
    }
    return tensor_get(t->t[r], s->k_batch, h, s->k_row + j, d);
}

/* An element of a tensor whose axes may be 1. */
static double broadcast(const tensor *x, int64_t b, int64_t h, int64_t n, int64_t d)
{
    const int64_t *s = x->view.shape;
    return tensor_get(x, s[0] == 1 ? 0 : b, s[1] == 1 ? 0 : h, s[2] == 1 ? 0 : n, s[3] == 1 ? 0 : d);
}

static bool in_range(const trial *t, const span *s, int64_t i, int64_t j)
{
    const int64_t shift = t->f.causal == FFPA_TOP_LEFT ? 0 : s->nk - s->nq;
    if (t->f.causal && j > i + shift) return false;
    if (!(t->f.flags & FFPA_WINDOW)) return true;
    if (t->f.window_left >= 0 && j < i + shift - t->f.window_left) return false;
    return t->f.window_right < 0 || j <= i + shift + t->f.window_right;
}

static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t a = 0xD2511F53u * (uint64_t)c[0], b = 0xCD9E8D57u * (uint64_t)c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                                  (uint32_t)a};
        for (int n = 0; n < 4; n++) c[n] = next[n];
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

bool plain_keeps(const ffpa_dropout *d, int64_t bh, int64_t i, int64_t j)
{
    const uint64_t seed = d->seed_ptr ? *d->seed_ptr : d->seed;
    const uint64_t offset = d->offset_ptr ? *d->offset_ptr : d->offset;
    uint32_t c[4] = {(uint32_t)(j / 4), (uint32_t)i, (uint32_t)bh, (uint32_t)offset};
    philox(c, (uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(offset >> 32));
    return (double)c[j % 4] >= nearbyint((double)d->p * 4294967296.0);
}

static void score_row(const trial *t, const span *s, int64_t h, int64_t i, const double *q, const double *k,
                      row *r)
{
    const int64_t d = t->t[Q]->view.shape[3];
    const double scale = t->f.flags & FFPA_SCALE ? (double)t->f.scale : 1.0 / sqrt((double)d);
    const double cap = (double)t->f.softcap;
    const tensor *mask = t->t[MASK];
    for (int64_t j = 0; j < s->nk; j++) {
        const double bias = mask ? broadcast(mask, s->batch, h, i, j) : 0.0;
        r->allowed[j] = in_range(t, s, i, j) && !(mask && mask->view.dtype == FFPA_BOOL && bias == 0.0) &&
                        !(mask && bias == -(double)INFINITY);
        if (!r->allowed[j]) continue;
        double x = 0.0;
        for (int64_t c = 0; c < d; c++) x += q[c] * k[j * d + c];
        x *= scale;
        const double bent = cap > 0 ? tanh(x / cap) : 0.0;
        r->bend[j] = 1.0 - bent * bent;
        r->score[j] = cap > 0 ? cap * bent : x;
        if (mask && mask->view.dtype != FFPA_BOOL) r->score[j] += bias;
        if (t->t[ALIBI]) {
            const double distance = fabs((double)(i + s->nk - s->nq - j));
            r->score[j] -= broadcast(t->t[ALIBI], s->batch, h, 0, 0) * distance;
        }
    }
}

static void normalise_row(const trial *t, const span *s, int64_t h, int64_t i, row *r)
{
    const double sink = t->t[SINK] ? tensor_get(t->t[SINK], 0, h, 0, 0) : -(double)INFINITY;
    double most = sink, sum = 0.0;
    bool nan = false;
    for (int64_t j = 0; j < s->nk; j++) {
        if (!r->allowed[j]) continue;
        if (isnan(r->score[j])) nan = true;
        if (r->score[j] > most) most = r->score[j];
    }
    const bool empty = most == -(double)INFINITY && !nan;
    for (int64_t j = 0; j < s->nk && !empty; j++) {
        if (r->allowed[j]) sum += exp(r->score[j] - most);
    }
    if (t->t[SINK]) sum += exp(sink - most);
    r->lse = nan ? (double)NAN : empty ? -(double)INFINITY : most + log(sum);
    for (int64_t j = 0; j < s->nk; j++) {
        r->prob[j] = 0.0, r->keep[j] = 1.0;
        if (empty) r->allowed[j] = false;
        if (!r->allowed[j]) continue;
        r->prob[j] = nan ? (double)NAN : exp(r->score[j] - most) / sum;
        if (!t->f.dropout) continue;
        const bool kept = plain_keeps(&t->dropout, s->batch * t->t[Q]->view.shape[1] + h, i, j);
        r->keep[j] = kept && t->dropout.p < 1.0f ? 1.0 / (1.0 - (double)t->dropout.p) : 0.0;
    }
}

/* Where element [.., n, 0] of an output with the query side's rows is. */
static double *query_row(const trial *t, plain *p, role r, const span *s, int64_t h, int64_t i)
{
    if (!p->out[r]) return NULL;
    const int64_t *n = t->t[r]->view.shape;
    return p->out[r] + ((s->q_batch * n[1] + h) * n[2] + s->q_row + i) * n[3];
}

static double *key_row(const trial *t, plain *p, role r, const span *s, int64_t g, int64_t j)
{
    if (!p->out[r]) return NULL;
    const int64_t *n = t->t[r]->view.shape;
    return p->out[r] + ((s->k_batch * n[1] + g) * n[2] + s->k_row + j) * n[3];
}

static void add_mask_gradient(const trial *t, plain *p, const span *s, int64_t h, int64_t i, int64_t j, double ds)
{
    const int64_t *n = t->t[DMASK]->view.shape;
    const int64_t b = n[0] == 1 ? 0 : s->batch, head = n[1] == 1 ? 0 : h;
    const int64_t q = n[2] == 1 ? 0 : i, k = n[3] == 1 ? 0 : j;
    p->out[DMASK][((b * n[1] + head) * n[2] + q) * n[3] + k] += ds;
}

/* Everything that row (h, i) adds to the gradients. */
static void gradient_row(const trial *t, plain *p, const span *s, const int64_t at[3], const double *q,
                         const double *k, const double *v, const double *o, const row *r)
{
    const int64_t g = at[0], h = at[1], i = at[2];
    const int64_t d = t->t[Q]->view.shape[3], dv = t->t[V]->view.shape[3];
    const double scale = t->f.flags & FFPA_SCALE ? (double)t->f.scale : 1.0 / sqrt((double)d);
    const tensor *dout = t->t[DOUT];
    double delta = t->t[DLSE] ? -tensor_get(t->t[DLSE], s->q_batch, h, s->q_row + i, 0) : 0.0;
    double *go = malloc((size_t)(dv + 1) * sizeof *go);
    if (!go) abort();
    for (int64_t c = 0; c < dv; c++) {
        go[c] = tensor_get(dout, s->q_batch, h, s->q_row + i, c);
        delta += go[c] * o[c];
    }
    if (p->out[DSINK] && r->lse != -(double)INFINITY)
        p->out[DSINK][h] -= exp(tensor_get(t->t[SINK], 0, h, 0, 0) - r->lse) * delta;
    for (int64_t j = 0; j < s->nk; j++) {
        if (!r->allowed[j]) continue;
        double dp = 0.0;
        double *out = key_row(t, p, DV, s, g, j);
        for (int64_t c = 0; c < dv; c++) {
            dp += go[c] * v[j * dv + c];
            if (out) out[c] += r->keep[j] * r->prob[j] * go[c];
        }
        const double ds = r->prob[j] * (r->keep[j] * dp - delta), dx = ds * r->bend[j] * scale;
        if (p->out[DMASK]) add_mask_gradient(t, p, s, h, i, j, ds);
        double *dq = query_row(t, p, DQ, s, h, i), *dk = key_row(t, p, DK, s, g, j);
        for (int64_t c = 0; c < d; c++) {
            if (dq) dq[c] += dx * k[j * d + c];
            if (dk) dk[c] += dx * q[c];
        }
    }
    free(go);
}

static void output_row(const trial *t, plain *p, const span *s, const int64_t at[3], const double *v, const row *r,
                       double *o)
{
    const int64_t h = at[1], i = at[2], dv = t->t[V]->view.shape[3];
    for (int64_t c = 0; c < dv; c++) o[c] = 0.0;
    for (int64_t j = 0; j < s->nk; j++) {
        if (!r->allowed[j] || (r->keep[j] == 0.0 && !isnan(r->prob[j]))) continue;
        for (int64_t c = 0; c < dv; c++) o[c] += r->keep[j] * r->prob[j] * v[j * dv + c];
    }
    double *out = query_row(t, p, O, s, h, i), *lse = query_row(t, p, LSE, s, h, i);
    for (int64_t c = 0; out && c < dv; c++) out[c] = o[c];
    if (lse) *lse = r->lse;
}

/* One key head of one sequence, with the query heads of its group. */
static void head(const trial *t, plain *p, const span *s, int64_t g, row *r)
{
    const int64_t d = t->t[Q]->view.shape[3], dv = t->t[V]->view.shape[3];
    const int64_t group = t->t[Q]->view.shape[1] / t->t[K]->view.shape[1];
    double *k = malloc((size_t)(s->nk * (d + dv) + 1) * sizeof *k), *v = k + s->nk * d;
    double *q = malloc((size_t)(d + dv + 1) * sizeof *q), *o = q + d;
    if (!k || !q) abort();
    for (int64_t j = 0; j < s->nk; j++) {
        for (int64_t c = 0; c < d; c++) k[j * d + c] = key(t, s, K, g, j, c);
        for (int64_t c = 0; c < dv; c++) v[j * dv + c] = key(t, s, V, g, j, c);
    }
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        for (int64_t i = 0; i < s->nq; i++) {
            const int64_t at[3] = {g, h, i};
            for (int64_t c = 0; c < d; c++) q[c] = tensor_get(t->t[Q], s->q_batch, h, s->q_row + i, c);
            score_row(t, s, h, i, q, k, r);
            normalise_row(t, s, h, i, r);
            output_row(t, p, s, at, v, r, o);
            if (t->spec.backward) gradient_row(t, p, s, at, q, k, v, o, r);
        }
    }
    free(k);
    free(q);
}

/* Rows of a sequence start from 0; what no sequence owns stays marked. */
static void clear(const trial *t, plain *p, const span *s)
{
    for (int x = O; x <= DV; x++) {
        const role r = (role)x;
        if (!p->out[r]) continue;
        const int64_t *n = t->t[r]->view.shape;
        const bool keys = r == DK || r == DV;
        for (int64_t h = 0; h < n[1]; h++) {
            for (int64_t i = 0; i < (keys ? s->nk : s->nq); i++) {
                double *out = keys ? key_row(t, p, r, s, h, i) : query_row(t, p, r, s, h, i);
                for (int64_t c = 0; c < n[3]; c++) out[c] = 0.0;
            }
        }
    }
}

plain plain_attention(const trial *t)
{
    plain p = {{NULL}};
    int64_t longest = 1;
    for (int x = O; x < ROLES; x++) {
        if (!t->t[x] || (x >= DQ && !t->spec.backward)) continue;
        const int64_t count = tensor_count(t->t[x]);
        p.out[x] = malloc((size_t)(count + 1) * sizeof(double));
        if (!p.out[x]) abort();
        for (int64_t n = 0; n < count; n++) p.out[x][n] = x >= DMASK ? 0.0 : plain_unwritten;
    }
    for (int64_t b = 0; b < sequences(t); b++) {
        const span s = span_of(t, b);
        clear(t, &p, &s);
        if (s.nk > longest) longest = s.nk;
    }
    double *space = malloc((size_t)longest * 4 * sizeof *space);
    row r = {space, space + longest, space + 2 * longest, space + 3 * longest, calloc((size_t)longest, sizeof(bool)), 0};
    if (!space || !r.allowed) abort();
    for (int64_t b = 0; b < sequences(t); b++) {
        const span s = span_of(t, b);
        for (int64_t g = 0; g < t->t[K]->view.shape[1]; g++) head(t, &p, &s, g, &r);
    }
    free(space);
    free(r.allowed);
    return p;
}

void plain_free(plain *p)
{
    for (int r = 0; r < ROLES; r++) free(p->out[r]);
}

double plain_cost(const trial *t)
{
    double pairs = 0.0;
    for (int64_t b = 0; b < sequences(t); b++) {
        const span s = span_of(t, b);
        pairs += (double)s.nq * (double)s.nk;
    }
    const double width = (double)(t->t[Q]->view.shape[3] + t->t[V]->view.shape[3]);
    return pairs * (double)t->t[Q]->view.shape[1] * width * (t->spec.backward ? 2.5 : 1.0);
}
