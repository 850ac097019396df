/* backward_load.c - K, V chunks and Q, dO blocks into f32 scratch, once per use by many tiles. */
#include "cpu/simd/backward.h"

#include <math.h>

void backward_work_begin(backward_work *w, const backward_job *job, int worker)
{
    w->job = job;
    w->m = backward_scratch_at(&job->t, job->scratch + (size_t)worker * job->scratch_bytes);
}

void backward_sequence(backward_work *w, int64_t b, int64_t hk)
{
    w->seq = sequence_get(w->job->c, b);
    w->at[0] = b;
    w->at[1] = hk;
}

static bool row_finite(const float *x, ptrdiff_t n)
{
    const vf limit = vset(INFINITY);
    vi bad = viset(0);
    ptrdiff_t i = 0;
    for (; i + VL <= n; i += VL)
        bad |= ~(vabs(vload(x + i)) < limit);
    return !vany(bad | ~(vabs(vload_first(x + i, n - i)) < limit));
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
    for (ptrdiff_t j = 0; j < n; j++)
        if (!row_finite(w->m.k + j * t->ld_k, t->d)) w->odd_key[w->odd_keys++] = (int16_t)j;
}

/* lse, stats and liveness of each lane. A row whose lse is -inf has no keys: it is as dead as a lane
 * past the last row. */
static void load_stats(backward_work *w)
{
    const call *c = w->job->c;
    w->dead_lanes = false;
    for (int r = 0; r < w->rb.lanes; r++) {
        const int64_t h = w->rb.head[r], i = w->rb.query[r];
        w->lse[r] = *(const float *)sequence_query(&w->seq, &c->f.lse, h, i);
        const row_stat *stat = backward_stat(w->job, &w->seq, h, i);
        w->delta[r] = stat->delta;
        w->norm[r] = stat->norm;
        const bool live = r < w->rb.rows && w->lse[r] != -INFINITY;
        w->live[r] = live ? -1 : 0;
        w->dead_lanes = w->dead_lanes || !live;
    }
}

/* Rows of Q or dO as packed rows. A row that is not finite is left out (zeros) and listed, because its
 * 0 * NaN must not reach keys that it may not see. Returns how many there are. */
static int pack_rows(const backward_work *w, const ffpa_tensor *t, float *packed, int16_t *odd)
{
    const ptrdiff_t dim = t->shape[3], panel = w->job->t.bm * NR;
    float *row = w->m.row;
    int count = 0;
    for (int r = 0; r < w->rb.lanes; r++) {
        bool zero = !w->live[r];
        if (!zero) {
            row_load(row, sequence_query(&w->seq, t, w->rb.head[r], w->rb.query[r]), t->dtype,
                     t->stride[3], dim);
            zero = !row_finite(row, dim);
            if (zero) odd[count++] = (int16_t)r;
        }
        for (ptrdiff_t d = 0; d < dim; d += VL) {
            float *to = packed + d / NR * panel + r * NR + d % NR;
            vstore(to, zero ? vzero() : vload_first(row + d, dim - d < VL ? dim - d : VL));
        }
    }
    return count;
}

void backward_load_block(backward_work *w, int64_t row0, int rows)
{
    const call *c = w->job->c;
    row_block_set(&w->rb, w->job->ask, c, &w->seq, (row_place){w->at[0], w->at[1], row0, rows});
    scores_begin(&w->sc, &w->rb, w->m.bias);
    load_stats(w);
    rows_to_panels(w->m.q_panels, &w->rb, &c->f.q);
    rows_to_panels(w->m.dout_panels, &w->rb, &c->g.dout);
    w->odd_q = w->odd_dout = 0;
    if (c->g.dk.data) w->odd_q = pack_rows(w, &c->f.q, w->m.q_packed, w->odd_q_row);
    if (c->g.dv.data) w->odd_dout = pack_rows(w, &c->g.dout, w->m.dout_packed, w->odd_dout_row);
}
