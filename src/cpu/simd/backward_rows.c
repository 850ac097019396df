/* backward_rows.c - the rows pass, dQ without its parts; and how a block's dQ leaves its panels. */
#include "cpu/simd/backward.h"

void backward_store_dq(backward_work *w, int64_t row0, int rows, float *dq)
{
    const backward_job *job = w->job;
    float factor[MAX_ROWS];
    row_block_set(&w->rb, job->ask, job->c, &w->seq,
                  (row_place){w->at[0], w->at[1], row0, rows});
    for (ptrdiff_t i = 0; i < w->rb.lanes * job->t.d; i += VL)
        vstore(dq + i, vload(dq + i) * vset(job->scale));
    for (int r = 0; r < rows; r++)
        factor[r] = 1.0f; /* not the scale: a factor of 0 would hide NaN */
    rows_from_panels(&w->rb, &job->c->g.dq, dq, factor);
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
