/* backward_stats.c - what the passes need of each row beforehand: delta_i = <dO_i, O_i> - dLSE_i, and base_i
 * and norm_i with P = e^(s - base_i) norm_i; and dSink = - sum P_sink delta.
 *
 * base is lse and norm 1, as given, unless rounding matters: that of a large lse, which is a factor on all of
 * P, and that of a 16-bit O in delta, because dP - delta may nearly vanish. And where dO is not finite,
 * <dO, O> is NaN even if the row has no keys and only a sink. Such rows are gone over once more:
 *
 *   base = max_j s    l = sum_j e^(s - base) + e^(sink - base)    norm = 1 / l    delta = sum_j P keep dP - dLSE
 *
 * Where lse is larger than rounding explains, o and lse come from more keys than are here (own_keys.h): then
 * they stay as given, and no weight is above 1. */
#include "cpu/own_keys.h"
#include "cpu/simd/backward.h"

#include <math.h>

row_stat *backward_stat(const backward_job *job, const sequence *s, int64_t h, int64_t i)
{
    const ffpa_tensor *q = &job->c->f.q;
    return job->stats + (s->q_batch * q->shape[1] + h) * q->shape[2] + s->q_row + i;
}

/* <a, b> of the lanes of one panel, added in the order in which tile_dots adds dP, TILE_DEPTH columns at a
 * time: where one key has all of the weight, delta is that key's dP to the bit, and dS is 0. */
static void dot_lanes(const float *a, const float *b, ptrdiff_t n, float *out)
{
    vf sum[2] = {vzero(), vzero()};
    for (ptrdiff_t d0 = 0, end; d0 < n; d0 = end) {
        const ptrdiff_t left = n - d0 / TILE_DEPTH * TILE_DEPTH;
        end = d0 + tile_chain(left < TILE_DEPTH ? left : TILE_DEPTH);
        if (end > n) end = n;
        vf chain[2] = {vzero(), vzero()};
        for (ptrdiff_t i = d0 * NR; i < end * NR; i += NR)
            for (int h = 0; h < 2; h++)
                chain[h] = vfma(vload(a + i + h * VL), vload(b + i + h * VL), chain[h]);
        for (int h = 0; h < 2; h++)
            sum[h] += chain[h];
    }
    for (int h = 0; h < 2; h++)
        vstore(out + h * VL, sum[h]);
}

static float scalar_at(const backward_work *w, const ffpa_tensor *t, int64_t h, int64_t i)
{
    return t->data ? *(const float *)sequence_query(&w->seq, t, h, i) : 0.0f;
}

static float sink_at(const backward_job *job, int64_t h)
{
    const ffpa_tensor *sink = &job->c->f.sink;
    return sink->data ? ((const float *)sink->data)[h * sink->stride[1]] : -INFINITY;
}

/* <dO, O> of the piece's rows, as given. True if some should be gone over once more, which is decided row by
 * row: what else is in its block must not change a row's bits. */
static bool stats_given(backward_work *w, int64_t row0, int rows, bool *again)
{
    const call *c = w->job->c;
    const backward_plan *t = &w->job->t;
    float *o_panels = w->m.v; /* keys come later; a chunk is longer than a block */
    bool any = false;
    backward_set_block(w, row0, rows);
    backward_load_lanes(w, &c->f.o, w->m.dv, t->ld_v, o_panels);
    backward_load_lanes(w, &c->g.dout, w->m.dout, t->ld_v, w->m.dout_panels);
    for (int p = 0; p < w->rb.lanes; p += NR)
        dot_lanes(o_panels + p * t->dv, w->m.dout_panels + p * t->dv, t->dv, w->delta + p);
    for (int r = 0; r < rows; r++) {
        *backward_stat(w->job, &w->seq, w->rb.head[r], w->rb.query[r]) =
            (row_stat){.base = w->lse[r], .norm = 1.0f, .delta = w->delta[r]};
        again[r] = c->f.o.dtype != FFPA_F32 || lse_is_large(w->lse[r]) ||
                   !(fabsf(w->delta[r]) < INFINITY);
        any = any || again[r];
    }
    return any;
}

/* Add P and dS of the tile to the sums of each lane, whose base backward_tile has moved. */
static void add_tile(const backward_work *w, const float *k_norm)
{
    const ptrdiff_t ld = w->job->t.ld_p;
    row_sums *sums = w->sums;
    for (int lane = 0; lane < w->rb.lanes; lane += VL) {
        vf p_sum = vload(sums->p + lane), ds_sum = vload(sums->ds + lane);
        vf norm = vload(sums->k_norm + lane);
        for (ptrdiff_t j = 0; j < w->sc.n; j++) {
            const vf p = vload(w->m.p + j * ld + lane);
            p_sum += p;
            ds_sum += vload(w->m.dx + j * ld + lane);
            norm = vmax(vselect(p > vzero(), vset(k_norm[j]), vzero()), norm);
        }
        vstore(sums->p + lane, p_sum);
        vstore(sums->ds + lane, ds_sum);
        vstore(sums->k_norm + lane, norm);
    }
}

static float row_norm(const float *x, ptrdiff_t n)
{
    vf sum[2] = {vzero(), vzero()};
    ptrdiff_t i = 0;
    for (; i + NR <= n; i += NR)
        for (int h = 0; h < 2; h++)
            sum[h] = vfma(vload(x + i + h * VL), vload(x + i + h * VL), sum[h]);
    for (; i < n; i += VL) {
        const vf v = vload_first(x + i, n - i < VL ? n - i : VL);
        sum[0] = vfma(v, v, sum[0]);
    }
    return sqrtf(vsum(sum[0] + sum[1]));
}

/* Take the sums of row r, with the sink as one more key, if lse is theirs. sum dS = sum P keep dP - delta
 * sum P, so it corrects the delta that it was computed with. */
static void stats_correct(const backward_work *w, int r)
{
    const row_sums *sums = w->sums;
    const float sink = sink_at(w->job, w->rb.head[r]);
    const double top = (double)sums->top[r] + (double)sums->top_low[r];
    const double base = (double)sink > top ? (double)sink : top;
    const float moved = top == base ? 1.0f : expf((float)(top - base));
    const float from_sink = sink == -INFINITY ? 0.0f : expf((float)((double)sink - base));
    const float l = sums->p[r] * moved + from_sink;
    const float delta = w->delta[r] + (sums->ds[r] * moved - w->delta[r] * from_sink) / l;
    const float q_norm = row_norm(w->m.q + r * w->job->t.ld_k, w->job->t.d);
    const double reach = fabs((double)w->job->scale) * (double)q_norm * (double)sums->k_norm[r];
    const double own = base + log((double)l);
    row_stat *stat = backward_stat(w->job, &w->seq, w->rb.head[r], w->rb.query[r]);
    if (!w->live[r] || !lse_is_own((double)w->lse[r], own, reach, FFPA_F32)) return;
    stat->base = (float)base;
    stat->base_low = (double)sink > top ? 0.0f : sums->top_low[r];
    stat->norm = 1.0f / l;
    if (fabsf(delta) < INFINITY) stat->delta = delta; /* or as given: P is right all the same */
}

static void stats_again(backward_work *w, int64_t row0, int rows, const bool *again)
{
    const backward_plan *t = &w->job->t;
    float k_norm[MAX_KEYS];
    row_sums sums = {.k_norm = {0}};
    backward_load_block(w, row0, rows);
    w->sums = &sums;
    for (int r = 0; r < w->rb.lanes; r++) {
        sums.top[r] = -INFINITY;
        /* a 16-bit O may overflow where its f32 sum does not */
        if (!(fabsf(w->delta[r]) < INFINITY)) w->delta[r] = 0;
    }
    for (int64_t j0 = w->rb.first / t->bn * t->bn; j0 < w->rb.last; j0 += t->bn) {
        const int64_t left = w->rb.last - j0;
        const ptrdiff_t n = (ptrdiff_t)(left < t->bn ? left : t->bn);
        backward_load_chunk(w, j0, n);
        if (!backward_tile(w, j0, n, WANT_P_DS)) continue;
        for (ptrdiff_t j = 0; j < n; j++)
            k_norm[j] = row_norm(w->m.k + j * t->ld_k, t->d);
        add_tile(w, k_norm);
    }
    for (int r = 0; r < rows; r++)
        if (again[r]) stats_correct(w, r);
    w->sums = NULL;
}

static void stats_piece(void *argument, int64_t piece, int worker)
{
    const backward_job *job = argument;
    const int64_t heads = job->sequences * job->hk;
    const int64_t blocks = (job->longest_q * job->group + job->t.bm - 1) / job->t.bm;
    const int64_t row0 = (blocks - 1 - piece / heads) * job->t.bm; /* causal: longest first */
    backward_work w;
    backward_work_begin(&w, job, worker);
    backward_sequence(&w, piece % heads / job->hk, piece % heads % job->hk);
    const int64_t left = w.seq.nq * job->group - row0;
    const int rows = (int)(left < job->t.bm ? left : job->t.bm);
    if (rows <= 0) return;
    bool again[MAX_ROWS];
    if (stats_given(&w, row0, rows, again)) stats_again(&w, row0, rows, again);
    for (int r = 0; r < rows; r++) {
        const int64_t i = (row0 + r) / job->group,
                      h = w.at[1] * job->group + (row0 + r) % job->group;
        backward_stat(job, &w.seq, h, i)->delta -= scalar_at(&w, &job->c->g.dlse, h, i);
    }
}

/* One head, sequences and rows in order. */
static void sink_piece(void *argument, int64_t h, int worker)
{
    const backward_job *job = argument;
    const call *c = job->c;
    const ffpa_tensor *dsink = &c->g.dsink;
    double sum = 0;
    (void)worker;
    for (int64_t b = 0; b < job->sequences; b++) {
        const sequence s = sequence_get(c, b);
        for (int64_t i = 0; i < s.nq; i++) {
            const float lse = *(const float *)sequence_query(&s, &c->f.lse, h, i);
            const row_stat *stat = backward_stat(job, &s, h, i);
            if (lse == -INFINITY) continue; /* then so is the sink: as if there were none */
            const double base = (double)stat->base + (double)stat->base_low;
            sum -=
                exp((double)sink_at(job, h) - base) * (double)stat->norm * (double)stat->delta;
        }
    }
    ((float *)dsink->data)[h * dsink->stride[1]] = (float)sum;
}

void backward_stats_pass(backward_job *job, pool *workers)
{
    const int64_t blocks = (job->longest_q * job->group + job->t.bm - 1) / job->t.bm;
    pool_run(workers, stats_piece, job, job->sequences * job->hk * blocks);
    if (job->c->g.dsink.data) pool_run(workers, sink_piece, job, job->hq);
}
