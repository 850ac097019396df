/* backward_rows.c - the rows pass, dQ without its parts; and how a block's dQ leaves its panels. */
#include "cpu/simd/backward.h"

void backward_store_dq(const backward_work *w, int64_t row0, int rows, const float *dq)
{
    const backward_job *job = w->job;
    const ffpa_tensor *t = &job->c->g.dq;
    const ptrdiff_t d = job->t.d;
    float *row = w->m.row;
    for (int r = 0; r < rows; r++) {
        const int64_t i = (row0 + r) / job->group,
                      h = w->at[1] * job->group + (row0 + r) % job->group;
        const float *lane = dq + r / NR * NR * d + r % NR;
        for (ptrdiff_t k = 0; k < d; k++)
            row[k] = lane[k * NR] * job->scale;
        row_store(sequence_query(&w->seq, t, h, i), t->dtype, t->stride[3], row, d);
    }
}

/* One block of rows over all keys. */
static void rows_piece(void *argument, int64_t piece, int worker)
{
    const backward_job *job = argument;
    const backward_plan *t = &job->t;
    const int64_t heads = job->sequences * job->hk;
    const int64_t blocks = (job->longest_q * job->group + t->bm - 1) / t->bm;
    /* With causal the last blocks are the longest. */
    const int64_t row0 = (blocks - 1 - piece / heads) * t->bm;
    backward_work w;
    backward_work_begin(&w, job, worker);
    backward_sequence(&w, piece % heads / job->hk, piece % heads % job->hk);
    const int64_t more = w.seq.nq * job->group - row0;
    if (more <= 0) return;
    backward_load_block(&w, row0, (int)(more < t->bm ? more : t->bm));
    memset(w.m.dq, 0, (size_t)(t->bm * t->d) * sizeof *w.m.dq);
    for (int64_t j0 = w.rb.first / t->bn * t->bn; j0 < w.rb.last; j0 += t->bn) {
        const int64_t left = w.rb.last - j0;
        const ptrdiff_t n = (ptrdiff_t)(left < t->bn ? left : t->bn);
        backward_load_chunk(&w, j0, n);
        if (backward_tile(&w, j0, n, WANT_KEPT_DX)) backward_add_dq(&w, w.m.dq);
    }
    backward_store_dq(&w, row0, w.rb.rows, w.m.dq);
}

void backward_rows_pass(backward_job *job, pool *workers)
{
    const int64_t blocks = (job->longest_q * job->group + job->t.bm - 1) / job->t.bm;
    pool_run(workers, rows_piece, job, job->sequences * job->hk * blocks);
}
