/* judge_plain.c - the definition, sequence by sequence and row by row.
 *   x = scale <q, k>, t = c tanh(x / c), s = t + bias - slope |i + Nk - Nq - j|
 *   LSE = ln(sum e^s [+ e^sink]), P = e^(s - LSE), O = sum keep P v
 *   delta = <dO, O> - dLSE, dS = P (keep <dO, v> - delta), dX = dS (1 - (t / c)^2) */
#include "support/judge_plain.h"

#include <math.h>
#include <stdlib.h>

typedef struct span {
    int64_t nq, nk;         /* of this sequence */
    int64_t q_batch, q_row; /* where its first query is */
    int64_t k_batch, k_row; /* where its first key is, unless paged */
    int64_t batch;          /* its number */
} span;

/* One row of scores and what backward needs of it. */
typedef struct row {
    double *score, *bend, *prob, *keep; /* [nk] s, dt/dx, P, keep factor */
    bool *allowed;
    bool empty; /* no key, or all scores -inf: at most a sink */
    double lse;
} row;

/* Where the loops are: sequence, key head g, query head h, query i. */
typedef struct work {
    const sample *t;
    plain *p;
    span s;
    int64_t g, h, i;
    int64_t d, dv;
    double scale;
    double *q, *k, *v, *o, *go; /* query i, keys and values of the head, o and dout of row i */
    row r;
} work;

static int64_t index_of(const void *array, int32_t dtype, int64_t i)
{
    return dtype == FFPA_I64 ? ((const int64_t *)array)[i]
                             : (int64_t)((const int32_t *)array)[i];
}

static int64_t sequences(const sample *t)
{
    return t->f.varlen ? t->varlen.batch : t->t[Q]->view.shape[0];
}

static span span_of(const sample *t, int64_t b)
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
        s.nk = index_of(c->lengths, c->index_dtype, b) +
               (t->t[K_NEW] ? t->t[K_NEW]->view.shape[2] : 0);
        if (c->batch_index) s.k_batch = index_of(c->batch_index, c->index_dtype, b);
    }
    return s;
}

/* Column d of key (or value) j; appended rows come from where the caller handed them in. */
static double key(const sample *t, const span *s, role r, int64_t h, int64_t j, int64_t d)
{
    const ffpa_kv_cache *c = t->f.kv_cache;
    const role fresh = r == K ? K_NEW : V_NEW;
    if (c && t->t[fresh]) {
        const int64_t old = s->nk - t->t[fresh]->view.shape[2];
        if (j >= old) return tensor_at(t->t[fresh], s->batch, h, j - old, d);
    }
    if (c && c->block_table) {
        const int64_t page = t->t[K]->view.shape[2];
        const int64_t stride = c->table_stride ? c->table_stride : c->table_width;
        return tensor_at(t->t[r],
                         index_of(c->block_table, c->index_dtype, s->batch * stride + j / page),
                         h, j % page, d);
    }
    return tensor_at(t->t[r], s->k_batch, h, s->k_row + j, d);
}

/* An element of a tensor whose axes may be 1. */
static double broadcast(const tensor *x, int64_t b, int64_t h, int64_t n, int64_t d)
{
    const int64_t *s = x->view.shape;
    return tensor_at(x, s[0] == 1 ? 0 : b, s[1] == 1 ? 0 : h, s[2] == 1 ? 0 : n,
                     s[3] == 1 ? 0 : d);
}

static bool in_range(const sample *t, const span *s, int64_t i, int64_t j)
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
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        for (int n = 0; n < 4; n++)
            c[n] = next[n];
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

static void score_row(work *w)
{
    const sample *t = w->t;
    const span *s = &w->s;
    row *r = &w->r;
    const double cap = (double)t->f.softcap;
    const tensor *mask = t->t[MASK];
    for (int64_t j = 0; j < s->nk; j++) {
        const double bias = mask ? broadcast(mask, s->batch, w->h, w->i, j) : 0.0;
        r->allowed[j] = in_range(t, s, w->i, j) &&
                        !(mask && mask->view.dtype == FFPA_BOOL && bias == 0.0) &&
                        !(mask && bias == -(double)INFINITY);
        if (!r->allowed[j]) continue;
        double x = 0.0;
        for (int64_t c = 0; c < w->d; c++)
            x += w->q[c] * w->k[j * w->d + c];
        x *= w->scale;
        const double bent = cap > 0 ? tanh(x / cap) : 0.0;
        r->bend[j] = 1.0 - bent * bent;
        r->score[j] = cap > 0 ? cap * bent : x;
        if (mask && mask->view.dtype != FFPA_BOOL) r->score[j] += bias;
        if (t->t[ALIBI]) {
            const double distance = fabs((double)(w->i + s->nk - s->nq - j));
            r->score[j] -= broadcast(t->t[ALIBI], s->batch, w->h, 0, 0) * distance;
        }
    }
}

static void normalise_row(work *w)
{
    const sample *t = w->t;
    row *r = &w->r;
    const double sink = t->t[SINK] ? tensor_at(t->t[SINK], 0, w->h, 0, 0) : -(double)INFINITY;
    double most = sink, sum = 0.0;
    bool nan = false;
    r->empty = true;
    for (int64_t j = 0; j < w->s.nk; j++) {
        if (!r->allowed[j]) continue;
        if (isnan(r->score[j])) nan = true;
        if (r->score[j] != -(double)INFINITY) r->empty = false;
        if (r->score[j] > most) most = r->score[j];
    }
    const bool empty = most == -(double)INFINITY && !nan;
    for (int64_t j = 0; j < w->s.nk && !empty; j++) {
        if (r->allowed[j]) sum += exp(r->score[j] - most);
    }
    if (t->t[SINK] && !empty) sum += exp(sink - most);
    r->lse = nan ? (double)NAN : empty ? -(double)INFINITY : most + log(sum);
    for (int64_t j = 0; j < w->s.nk; j++) {
        r->prob[j] = 0.0, r->keep[j] = 1.0;
        if (empty) r->allowed[j] = false;
        if (!r->allowed[j]) continue;
        r->prob[j] = nan ? (double)NAN : exp(r->score[j] - most) / sum;
        if (!t->f.dropout) continue;
        const bool kept =
            plain_keeps(&t->dropout, w->s.batch * t->t[Q]->view.shape[1] + w->h, w->i, j);
        r->keep[j] = kept && t->dropout.p < 1.0f ? 1.0 / (1.0 - (double)t->dropout.p) : 0.0;
    }
}

/* Row i of head h of an output with the query side's rows; NULL when it is not asked for. */
static double *query_row(const work *w, role r, int64_t h, int64_t i)
{
    if (!w->p->out[r]) return NULL;
    const int64_t *n = w->t->t[r]->view.shape;
    return w->p->out[r] + ((w->s.q_batch * n[1] + h) * n[2] + w->s.q_row + i) * n[3];
}

static double *key_row(const work *w, role r, int64_t g, int64_t j)
{
    if (!w->p->out[r]) return NULL;
    const int64_t *n = w->t->t[r]->view.shape;
    return w->p->out[r] + ((w->s.k_batch * n[1] + g) * n[2] + w->s.k_row + j) * n[3];
}

static void add_mask_gradient(const work *w, int64_t j, double ds)
{
    if (!w->p->out[DMASK]) return;
    const int64_t *n = w->t->t[DMASK]->view.shape;
    const int64_t b = n[0] == 1 ? 0 : w->s.batch, h = n[1] == 1 ? 0 : w->h;
    const int64_t q = n[2] == 1 ? 0 : w->i, k = n[3] == 1 ? 0 : j;
    w->p->out[DMASK][((b * n[1] + h) * n[2] + q) * n[3] + k] += ds;
}

/* What the pair (i, j) adds to the gradients. */
static void gradient_pair(const work *w, int64_t j, double delta)
{
    const row *r = &w->r;
    double *dq = query_row(w, DQ, w->h, w->i), *dk = key_row(w, DK, w->g, j),
           *dv = key_row(w, DV, w->g, j);
    double dp = 0.0;
    for (int64_t c = 0; c < w->dv; c++) {
        dp += w->go[c] * w->v[j * w->dv + c];
        if (dv) dv[c] += r->keep[j] * r->prob[j] * w->go[c];
    }
    const double ds = r->prob[j] * (r->keep[j] * dp - delta), dx = ds * r->bend[j] * w->scale;
    add_mask_gradient(w, j, ds);
    for (int64_t c = 0; c < w->d; c++) {
        if (dq) dq[c] += dx * w->k[j * w->d + c];
        if (dk) dk[c] += dx * w->q[c];
    }
}

static void gradient_row(const work *w)
{
    const sample *t = w->t;
    const span *s = &w->s;
    double delta =
        t->t[DLSE] ? -tensor_at(t->t[DLSE], s->q_batch, w->h, s->q_row + w->i, 0) : 0.0;
    for (int64_t c = 0; c < w->dv; c++) {
        w->go[c] = tensor_at(t->t[DOUT], s->q_batch, w->h, s->q_row + w->i, c);
        if (!w->r.empty) delta += w->go[c] * w->o[c];
    }
    if (w->p->out[DSINK] && w->r.lse != -(double)INFINITY)
        w->p->out[DSINK][w->h] -= exp(tensor_at(t->t[SINK], 0, w->h, 0, 0) - w->r.lse) * delta;
    for (int64_t j = 0; j < s->nk; j++) {
        if (w->r.allowed[j]) gradient_pair(w, j, delta);
    }
}

static void output_row(work *w)
{
    const row *r = &w->r;
    for (int64_t c = 0; c < w->dv; c++)
        w->o[c] = 0.0;
    for (int64_t j = 0; j < w->s.nk; j++) {
        if (!r->allowed[j]) continue;
        for (int64_t c = 0; c < w->dv; c++)
            w->o[c] += r->keep[j] * r->prob[j] * w->v[j * w->dv + c];
    }
    double *out = query_row(w, O, w->h, w->i), *lse = query_row(w, LSE, w->h, w->i);
    for (int64_t c = 0; out && c < w->dv; c++)
        out[c] = w->o[c];
    if (lse) *lse = r->lse;
}

/* Key head g of the sequence, with the query heads of its group. */
static void head(work *w)
{
    const sample *t = w->t;
    const int64_t group = t->t[Q]->view.shape[1] / t->t[K]->view.shape[1];
    for (int64_t j = 0; j < w->s.nk; j++) {
        for (int64_t c = 0; c < w->d; c++)
            w->k[j * w->d + c] = key(t, &w->s, K, w->g, j, c);
        for (int64_t c = 0; c < w->dv; c++)
            w->v[j * w->dv + c] = key(t, &w->s, V, w->g, j, c);
    }
    for (w->h = w->g * group; w->h < (w->g + 1) * group; w->h++) {
        for (w->i = 0; w->i < w->s.nq; w->i++) {
            for (int64_t c = 0; c < w->d; c++)
                w->q[c] = tensor_at(t->t[Q], w->s.q_batch, w->h, w->s.q_row + w->i, c);
            score_row(w);
            normalise_row(w);
            output_row(w);
            if (t->spec.backward) gradient_row(w);
        }
    }
}

/* The rows of a sequence start from 0; what no sequence owns stays marked. */
static void clear(work *w)
{
    for (int x = O; x <= DV; x++) {
        const role r = (role)x;
        if (!w->p->out[r]) continue;
        const int64_t *n = w->t->t[r]->view.shape;
        const bool keys = r == DK || r == DV;
        for (int64_t h = 0; h < n[1]; h++) {
            for (int64_t i = 0; i < (keys ? w->s.nk : w->s.nq); i++) {
                double *out = keys ? key_row(w, r, h, i) : query_row(w, r, h, i);
                for (int64_t c = 0; c < n[3]; c++)
                    out[c] = 0.0;
            }
        }
    }
}

static double *doubles(int64_t count)
{
    double *space = malloc((size_t)(count > 0 ? count : 1) * sizeof *space);
    if (!space) abort();
    return space;
}

static plain new_outputs(const sample *t)
{
    plain p = {{NULL}};
    for (int x = O; x < ROLES; x++) {
        if (!t->t[x] || (x >= DQ && !t->spec.backward)) continue;
        const int64_t count = tensor_volume(t->t[x]);
        p.out[x] = doubles(count);
        /* Sums over sequences: whole from the start. */
        for (int64_t n = 0; n < count; n++)
            p.out[x][n] = x >= DMASK ? 0.0 : tensor_blank;
    }
    return p;
}

static int64_t longest_keys(const sample *t)
{
    int64_t longest = 1;
    for (int64_t b = 0; b < sequences(t); b++) {
        const span s = span_of(t, b);
        if (s.nk > longest) longest = s.nk;
    }
    return longest;
}

plain plain_attention(const sample *t)
{
    plain p = new_outputs(t);
    const int64_t nk = longest_keys(t);
    work w = {.t = t, .p = &p, .d = t->t[Q]->view.shape[3], .dv = t->t[V]->view.shape[3]};
    w.scale = t->f.flags & FFPA_SCALE ? (double)t->f.scale
              : w.d                   ? 1.0 / sqrt((double)w.d)
                                      : 0.0;
    double *space = doubles(4 * nk + (nk + 1) * w.d + (nk + 2) * w.dv);
    w.r = (row){
        space, space + nk, space + 2 * nk, space + 3 * nk, calloc((size_t)nk, sizeof(bool)),
        false, 0};
    if (!w.r.allowed) abort();
    w.k = space + 4 * nk, w.q = w.k + nk * w.d;
    w.v = w.q + w.d, w.o = w.v + nk * w.dv, w.go = w.o + w.dv;
    for (int64_t b = 0; b < sequences(t); b++) {
        w.s = span_of(t, b);
        clear(&w);
        for (w.g = 0; w.g < t->t[K]->view.shape[1]; w.g++)
            head(&w);
    }
    free(space);
    free(w.r.allowed);
    return p;
}

void plain_free(plain *p)
{
    for (int r = 0; r < ROLES; r++)
        free(p->out[r]);
}

double plain_cost(const sample *t)
{
    double pairs = 0.0;
    for (int64_t b = 0; b < sequences(t); b++) {
        const span s = span_of(t, b);
        pairs += (double)s.nq * (double)s.nk;
    }
    const double width = (double)(t->t[Q]->view.shape[3] + t->t[V]->view.shape[3]);
    return pairs * (double)t->t[Q]->view.shape[1] * width * (t->spec.backward ? 2.5 : 1.0);
}
