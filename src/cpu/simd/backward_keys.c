/* backward_keys.c - the keys pass: dK and dV, and with `fused` the parts of dQ. */
#include "cpu/simd/backward.h"

/* Where the dQ of a part of a unit is; unit counts from unit0. */
static float *dq_part(const backward_job *job, int64_t part, int64_t unit)
{
    const backward_plan *t = &job->t;
    return job->dq + (part * job->wave + unit) * t->unit_blocks * t->bm * t->d;
}

/* First block of a sequence in its unit. Packed sequences have room for a partial block each. */
static int64_t first_block(const backward_job *job, const sequence *s, int64_t b)
{
    if (job->t.unit_sequences == 1) return 0;
    return s->q_row * job->group / job->t.bm + b;
}

static int64_t block_count(const backward_job *job, int64_t nq)
{
    return (nq * job->group + job->t.bm - 1) / job->t.bm;
}

/* Sequence and key head of a unit's n-th sequence. */
static void unit_sequence(backward_work *w, int64_t unit, int64_t n)
{
    const backward_job *job = w->job;
    const int64_t hk = job->hk;
    if (job->t.unit_sequences == 1)
        backward_sequence(w, unit / hk, unit % hk);
    else
        backward_sequence(w, n, unit);
}

/* Rows of a block. */
static int block_rows(const backward_work *w, int64_t block)
{
    const int64_t left = w->seq.nq * w->job->group - block * w->job->t.bm;
    return (int)(left < w->job->t.bm ? left : w->job->t.bm);
}

/* Can a row of the block see a key of the chunk? Ranges only move up with the row. */
static bool block_sees(const backward_work *w, int64_t block)
{
    const backward_job *job = w->job;
    const int64_t row0 = block * job->t.bm, row1 = row0 + block_rows(w, block) - 1;
    const key_range low = key_range_of(job->ask, w->seq.nq, w->seq.nk, row0 / job->group);
    const key_range high = key_range_of(job->ask, w->seq.nq, w->seq.nk, row1 / job->group);
    return high.last > w->chunk0 && low.first < w->chunk0 + w->keys;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* All blocks of rows against the chunk in scratch. `dq` is the sequence's first block or NULL. */
static void chunk_run(backward_work *w, float *dq)
{
    const backward_plan *t = &w->job->t;
    const int64_t blocks = block_count(w->job, w->seq.nq), end = w->chunk0 + w->keys;
    for (int64_t block = 0; block < blocks; block++) {
        if (!block_sees(w, block)) continue;
        backward_load_block(w, block * t->bm, block_rows(w, block));
        for (int64_t j0 = w->chunk0; j0 < end; j0 += t->bn) {
            const int64_t first = larger(j0, w->rb.first);
            const int64_t last = smaller(smaller(j0 + t->bn, end), w->rb.last);
            if (first >= last ||
                !backward_tile(w, first, (ptrdiff_t)(last - first), WANT_KEPT_DX))
                continue;
            backward_add_dkdv(w);
            if (dq) backward_add_dq(w, dq + block * t->bm * t->d);
        }
    }
}

static void store_keys(const backward_work *w, const ffpa_tensor *t, float *sum, ptrdiff_t ld,
                       float factor)
{
    const ptrdiff_t dim = t->shape[3];
    if (!t->data) return;
    for (ptrdiff_t j = 0; j < w->keys; j++) {
        /* The address of a row of t, which is ours to write. */
        const char *row = sequence_key(&w->seq, t, w->at[1], w->chunk0 + j);
        float *from = sum + j * ld;
        for (ptrdiff_t d = 0; d < dim && factor != 1.0f; d++)
            from[d] *= factor;
        row_store((char *)t->data + (row - (const char *)t->data), t->dtype, t->stride[3], from,
                  dim);
    }
}

static void keys_piece(void *argument, int64_t piece, int worker)
{
    const backward_job *job = argument;
    const backward_plan *t = &job->t;
    const int64_t part = piece / (job->wave * t->unit_sequences);
    const int64_t rest = piece % (job->wave * t->unit_sequences);
    const int64_t unit = rest / t->unit_sequences, n = rest % t->unit_sequences;
    backward_work w;
    backward_work_begin(&w, job, worker);
    unit_sequence(&w, job->unit0 + unit, n);
    float *dq = NULL;
    if (t->fused) {
        dq = dq_part(job, part, unit) + first_block(job, &w.seq, n) * t->bm * t->d;
        memset(dq, 0, (size_t)(block_count(job, w.seq.nq) * t->bm * t->d) * sizeof *dq);
    }
    for (int64_t j0 = part * t->chunk; j0 < w.seq.nk; j0 += t->parts * t->chunk) {
        const int64_t left = w.seq.nk - j0;
        backward_load_chunk(&w, j0, (ptrdiff_t)(left < t->chunk ? left : t->chunk));
        memset(w.m.dk, 0, (size_t)(w.keys * t->ld_k) * sizeof *w.m.dk);
        memset(w.m.dv, 0, (size_t)(w.keys * t->ld_v) * sizeof *w.m.dv);
        chunk_run(&w, dq);
        store_keys(&w, &job->c->g.dk, w.m.dk, t->ld_k, job->scale);
        store_keys(&w, &job->c->g.dv, w.m.dv, t->ld_v, 1.0f);
    }
}

/* One block's dQ: its parts added in order. */
static void reduce_piece(void *argument, int64_t piece, int worker)
{
    const backward_job *job = argument;
    const backward_plan *t = &job->t;
    const int64_t blocks = block_count(job, job->longest_q), block = piece % blocks;
    const int64_t unit = piece / blocks / t->unit_sequences,
                  n = piece / blocks % t->unit_sequences;
    backward_work w;
    backward_work_begin(&w, job, worker);
    unit_sequence(&w, job->unit0 + unit, n);
    if (block >= block_count(job, w.seq.nq)) return;
    const ptrdiff_t count = t->bm * t->d;
    const int64_t offset = (first_block(job, &w.seq, n) + block) * count;
    float *sum = dq_part(job, 0, unit) + offset;
    for (int64_t part = 1; part < t->parts; part++) {
        const float *more = dq_part(job, part, unit) + offset;
        for (ptrdiff_t i = 0; i < count; i += VL)
            vstore(sum + i, vload(sum + i) + vload(more + i));
    }
    backward_store_dq(&w, block * t->bm, block_rows(&w, block), sum);
}

void backward_keys_pass(backward_job *job, pool *workers)
{
    const backward_plan *t = &job->t;
    const int64_t wave = job->wave, blocks = block_count(job, job->longest_q);
    for (job->unit0 = 0; job->unit0 < t->units; job->unit0 += wave) {
        job->wave = t->units - job->unit0 < wave ? t->units - job->unit0 : wave;
        const int64_t sequences = job->wave * t->unit_sequences;
        pool_run(workers, keys_piece, job, sequences * t->parts);
        if (t->fused) pool_run(workers, reduce_piece, job, sequences * blocks);
    }
}
