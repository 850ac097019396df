/* backward_load.c - K, V chunks and Q, dO blocks into f32 scratch, once per use by many tiles. */
#include "cpu/simd/backward.h"

#include <math.h>

void backward_work_begin(backward_work *w, const backward_job *job, int worker)
{
    w->job = job;
    w->sums = NULL;
    w->m = backward_scratch_at(&job->t, job->scratch + (size_t)worker * job->scratch_bytes);
}

void backward_sequence(backward_work *w, int64_t b, int64_t hk)
{
    w->seq = sequence_get(w->job->c, b);
    w->at[0] = b;
    w->at[1] = hk;
}

/* Key rows of one tensor, with zeros up to the padded width. */
static void load_keys(const backward_work *w, float *dst, ptrdiff_t ld, const ffpa_tensor *t)
{
    for (ptrdiff_t j = 0; j < w->keys; j++)
        row_load(dst + j * ld, sequence_key(&w->seq, t, w->at[1], w->chunk0 + j), t->dtype,
                 t->stride[3], t->shape[3]);
}

void backward_load_chunk(backward_work *w, int64_t chunk0, ptrdiff_t n)
{
    const backward_plan *t = &w->job->t;
    w->chunk0 = chunk0;
    w->keys = n;
    load_keys(w, w->m.k, t->ld_k, &w->job->c->f.k);
    load_keys(w, w->m.v, t->ld_v, &w->job->c->f.v);
    w->odd_keys = 0;
    w->odd_v = false;
    for (ptrdiff_t j = 0; j < n; j++) {
        if (!row_finite(w->m.k + j * t->ld_k, t->d)) w->odd_key[w->odd_keys++] = (int16_t)j;
        w->odd_v = w->odd_v || !row_finite(w->m.v + j * t->ld_v, t->dv);
    }
}

void backward_set_block(backward_work *w, int64_t row0, int rows)
{
    row_block_set(&w->rb, w->job->ask, w->job->c, &w->seq,
                  (row_place){w->at[0], w->at[1], row0, rows});
    const bool f32 = w->job->c->f.q.dtype == FFPA_F32;
    w->dead_lanes = false;
    for (int r = 0; r < w->rb.lanes; r++) {
        w->lse[r] = *(const float *)sequence_query(&w->seq, &w->job->c->f.lse, w->rb.head[r],
                                                   w->rb.query[r]);
        const bool live = r < w->rb.rows && w->lse[r] != -INFINITY;
        w->live[r] = live ? -1 : 0;
        w->exact[r] = f32 && live && lse_is_large(w->lse[r]) ? -1 : 0;
        w->dead_lanes = w->dead_lanes || !live;
    }
}

static void load_stats(backward_work *w)
{
    w->odd_rows = false;
    for (int r = 0; r < w->rb.lanes; r++) {
        const row_stat *stat = backward_stat(w->job, &w->seq, w->rb.head[r], w->rb.query[r]);
        w->base[r] = stat->base;
        w->base_low[r] = stat->base_low;
        w->norm[r] = stat->norm;
        w->delta[r] = stat->delta;
        w->odd_rows =
            w->odd_rows ||
            (w->live[r] && !(fabsf(w->base[r]) < INFINITY && fabsf(w->delta[r]) < INFINITY));
    }
}

/* Rows of Q, dO or O as f32, with zeros up to whole panels and for dead lanes. */
static void load_rows(const backward_work *w, const ffpa_tensor *t, float *rows, ptrdiff_t ld)
{
    const ptrdiff_t dim = t->shape[3];
    for (int r = 0; r < w->rb.lanes; r++) {
        float *row = rows + r * ld;
        const ptrdiff_t n = w->live[r] ? dim : 0;
        if (n > 0)
            row_load(row, sequence_query(&w->seq, t, w->rb.head[r], w->rb.query[r]), t->dtype,
                     t->stride[3], dim);
        memset(row + n, 0, (size_t)((dim + NR - 1) / NR * NR - n) * sizeof *row);
    }
}

/* The same with lanes as rows: panels [lanes / NR][dim][NR]. */
static void rows_to_lanes(const float *rows, ptrdiff_t ld, ptrdiff_t dim, int lanes,
                          float *panels)
{
    for (int r = 0; r < lanes; r += VL) {
        float *panel = panels + r / NR * NR * dim + r % NR;
        for (ptrdiff_t d = 0; d < dim; d += VL) {
            vf x[VL];
            UNROLL for (int i = 0; i < VL; i++) x[i] = vload(rows + (r + i) * ld + d);
            vtranspose(x);
            for (int i = 0; i < VL && d + i < dim; i++)
                vstore(panel + (d + i) * NR, x[i]);
        }
    }
}

void backward_load_lanes(const backward_work *w, const ffpa_tensor *t, float *rows,
                         ptrdiff_t ld, float *panels)
{
    load_rows(w, t, rows, ld);
    rows_to_lanes(rows, ld, t->shape[3], w->rb.lanes, panels);
}

/* Rows that are not finite become zeros and are listed: their 0 * NaN must not reach keys that they may
 * not see. Returns how many there are. */
static int take_odd_rows(const backward_work *w, float *rows, ptrdiff_t ld, ptrdiff_t dim,
                         int16_t *odd)
{
    int count = 0;
    for (int r = 0; r < w->rb.lanes; r++) {
        if (row_finite(rows + r * ld, dim)) continue;
        odd[count++] = (int16_t)r;
        memset(rows + r * ld, 0, (size_t)dim * sizeof *rows);
    }
    return count;
}

void backward_load_block(backward_work *w, int64_t row0, int rows)
{
    const backward_plan *t = &w->job->t;
    const backward_scratch *m = &w->m;
    const call *c = w->job->c;
    backward_set_block(w, row0, rows);
    scores_begin(&w->sc, &w->rb, m->bias);
    load_stats(w);
    backward_load_lanes(w, &c->f.q, m->q, t->ld_k, m->q_panels);
    backward_load_lanes(w, &c->g.dout, m->dout, t->ld_v, m->dout_panels);
    w->odd_q = take_odd_rows(w, m->q, t->ld_k, t->d, w->odd_q_row);
    w->odd_dout = take_odd_rows(w, m->dout, t->ld_v, t->dv, w->odd_dout_row);
}
