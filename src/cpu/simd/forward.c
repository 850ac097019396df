/* forward.c - who computes what: blocks of rows, split over keys where there are few rows.
 *
 *   many rows   a piece of work is (block, sequence, key head); it writes its rows of O and LSE. Late
 *               blocks come first: under a causal mask they are the longest
 *   few rows    a piece is (sequence, key head, part of the keys); it writes a partial m, l, O to the
 *               workspace, and a second pass over (sequence, key head) combines the parts in order.
 *               Units of work go through the workspace in waves of bounded size
 *
 * The number of parts depends on the shape of that sequence alone: not on threads, nor on the batch. */
#include "cpu/simd/backward.h"
#include "cpu/simd/block.h"
#include "cpu/simd/simd.h"

#include <math.h>
#include <stdio.h>

enum {
    SPLIT_ROWS = 128,  /* with more rows than this, keys are not split */
    SPLIT_KEYS = 1024, /* fewest keys worth a part */
    MAX_SPLITS = 32,
    WAVE_BYTES = 32 << 20, /* of partial results; one unit may need more */
};

/* Rows that share keys, and into how many parts their keys go. */
static int64_t group_of(const call *c) { return c->f.q.shape[1] / c->f.k.shape[1]; }

static int split_count(int64_t rows, int64_t keys)
{
    if (rows > SPLIT_ROWS || keys < 2 * SPLIT_KEYS) return 1;
    return keys / SPLIT_KEYS < MAX_SPLITS ? (int)(keys / SPLIT_KEYS) : MAX_SPLITS;
}

/* Floats of one part's partial result: O rows, then m and l. */
static size_t part_floats(int64_t rows, ptrdiff_t dv)
{
    return ((size_t)rows * ((size_t)dv + 2) + 15) / 16 * 16;
}

/* How the workspace is used; from the problem alone. */
typedef struct layout {
    tiles t;
    size_t worker_bytes; /* per worker: scratch and block_state */
    size_t unit_floats;  /* partial results of a unit, as many parts as there may be */
    int64_t wave;        /* units in flight; 0 = keys are never split */
    int threads;
    int splits;   /* most parts of a unit */
    int64_t rows; /* most rows of a unit whose keys are split, or all when dense */
} layout;

static layout layout_of(const ffpa_plan *plan)
{
    const problem *p = &plan->prob;
    layout y = {.t = tiles_of(p), .threads = pool_threads(plan->ctx->pool), .splits = 1};
    const size_t state = (sizeof(block_state) + 63) / 64 * 64;
    y.worker_bytes = state + block_scratch_bytes(&y.t);
    const bool q_varies = p->sources & VARLEN_Q, k_varies = p->sources & ~(uint32_t)VARLEN_Q;
    const int64_t group = p->ask.hk > 0 ? p->ask.hq / p->ask.hk : 0;
    int64_t rows = group * (q_varies ? p->total_q : p->ask.nq);
    if (q_varies && rows > SPLIT_ROWS) rows = SPLIT_ROWS;
    y.rows = rows;
    y.splits = split_count(rows, k_varies ? INT64_MAX : p->ask.nk);
    const int64_t units = p->ask.b * p->ask.hk;
    if (y.splits == 1 || units <= 0 || rows <= 0) return y;
    y.unit_floats = (size_t)y.splits * part_floats(rows, y.t.dv);
    y.wave = WAVE_BYTES / (int64_t)(y.unit_floats * sizeof(float));
    y.wave = y.wave < 1 ? 1 : y.wave > units ? units : y.wave;
    return y;
}

static size_t layout_bytes(const layout *y)
{
    return (size_t)y->threads * y->worker_bytes +
           (size_t)y->wave * y->unit_floats * sizeof(float);
}

static ffpa_status plan_forward(ffpa_plan *plan)
{
    const layout y = layout_of(plan);
    ffpa_report *r = &plan->report;
    r->workspace_bytes = layout_bytes(&y);
    r->splits = y.splits;
    const problem *p = &plan->prob;
    const bool few = !(p->sources & VARLEN_Q) && y.rows <= FEW_ROWS && p->ask.nk >= MANY_KEYS;
    r->tile_q = y.t.bm;
    r->tile_k = few ? FEW_KEYS : y.t.bn;
    r->tile_d = (int32_t)(few || y.t.d < TILE_DEPTH ? y.t.d : TILE_DEPTH);
    snprintf(r->path, sizeof r->path, "cpu/%s/%s", ISA_TEXT(FFPA_ISA),
             few ? "decode" : "forward");
    r->threads = y.threads;
    return FFPA_OK;
}

/* ---- a run ---- */

typedef struct forward_job {
    const ffpa_problem *ask;
    const call *c;
    layout y;
    char *workers;   /* threads x worker_bytes */
    float *partials; /* wave x unit_floats */
    int64_t units;   /* sequences x key heads */
    int64_t blocks;  /* of the longest sequence */
    int64_t unit0;   /* first unit of the wave */
} forward_job;

static block_state *worker_state(const forward_job *job, int worker, block_scratch *w)
{
    char *p = job->workers + (size_t)worker * job->y.worker_bytes;
    *w = block_scratch_at(&job->y.t, p + (sizeof(block_state) + 63) / 64 * 64);
    return (block_state *)(void *)p;
}

static int unit_splits(const forward_job *job, const sequence *s)
{
    return split_count(s->nq * group_of(job->c), s->nk);
}

static const float *sink_of(const call *c, int64_t head)
{
    const ffpa_tensor *t = &c->f.sink;
    return t->data ? (const float *)t->data + head * t->stride[1] : NULL;
}

static void lse_store(const row_block *rb, int r, float lse)
{
    const ffpa_tensor *t = &rb->c->f.lse;
    if (t->data) *(float *)sequence_query(rb->s, t, rb->head[r], rb->query[r]) = lse;
}

/* Piece of the first pass: one block of rows over all its keys. */
static void run_block(void *argument, int64_t piece, int worker)
{
    const forward_job *job = argument;
    const int64_t unit = piece % job->units, block = job->blocks - 1 - piece / job->units;
    const int64_t heads = job->c->f.k.shape[1];
    const sequence s = sequence_get(job->c, unit / heads);
    const int64_t rows = s.nq * group_of(job->c), row0 = block * job->y.t.bm;
    if (row0 >= rows || unit_splits(job, &s) > 1) return;

    block_scratch w;
    block_state *st = worker_state(job, worker, &w);
    const int count = (int)(rows - row0 < job->y.t.bm ? rows - row0 : job->y.t.bm);
    float factor[MAX_ROWS], lse;
    row_block_set(&st->rb, job->ask, job->c, &s,
                  (row_place){unit / heads, unit % heads, row0, count});
    block_run(st, &job->y.t, &w, 0, s.nk);
    for (int r = 0; r < count; r++) {
        factor[r] = block_finish(st->m[r], st->l[r], sink_of(job->c, st->rb.head[r]), &lse);
        lse_store(&st->rb, r, lse);
        if (st->few) row_out(&st->rb, &job->c->f.o, r, w.o + r * job->y.t.dv, factor[r]);
    }
    if (!st->few) rows_from_panels(&st->rb, &job->c->f.o, w.o, factor);
}

/* Piece of the second pass: the few rows of a unit over one part of the keys. */
static void run_part(void *argument, int64_t piece, int worker)
{
    const forward_job *job = argument;
    const int64_t slot = piece / job->y.splits, part = piece % job->y.splits;
    const int64_t unit = job->unit0 + slot, heads = job->c->f.k.shape[1];
    const sequence s = sequence_get(job->c, unit / heads);
    const int splits = unit_splits(job, &s);
    const int64_t rows = s.nq * group_of(job->c);
    if (splits == 1 || part >= splits || rows == 0) return;

    block_scratch w;
    block_state *st = worker_state(job, worker, &w);
    float *o = job->partials + (size_t)slot * job->y.unit_floats +
               (size_t)part * part_floats(rows, job->y.t.dv);
    float *m = o + rows * job->y.t.dv, *l = m + rows;
    row_block_set(&st->rb, job->ask, job->c, &s,
                  (row_place){unit / heads, unit % heads, 0, (int)rows});
    block_run(st, &job->y.t, &w, s.nk * part / splits, s.nk * (part + 1) / splits);
    for (int r = 0; r < rows; r++) {
        m[r] = st->m[r];
        l[r] = st->l[r];
        block_row(st, &job->y.t, &w, r, o + r * job->y.t.dv, st->fresh ? 0.0f : 1.0f);
    }
}

/* The parts of one unit: part i has O [rows][dv], m [rows] and l [rows] at o + i * stride. */
typedef struct parts {
    float *o;
    size_t stride;
    int count;
    int64_t rows;
    ptrdiff_t dv;
} parts;

/* Combine the parts of row r, in order, into the first one, m and l included. */
static void combine_row(const parts *p, int64_t r)
{
    float *o = p->o + r * p->dv, *m = p->o + p->rows * p->dv + r, *l = m + p->rows;
    float top = -INFINITY;
    for (int i = 0; i < p->count; i++) {
        const float part = m[(size_t)i * p->stride];
        top = part > top ? part : top;
    }
    for (int i = 0; i < p->count; i++) {
        const size_t at = (size_t)i * p->stride;
        const float factor = m[at] == top ? 1.0f : expf(m[at] - top); /* also both -inf */
        *l = (i ? *l : 0.0f) + l[at] * factor;
        for (ptrdiff_t d = 0; d < p->dv; d++)
            o[d] = (i ? o[d] : 0.0f) + o[(size_t)d + at] * factor;
    }
    *m = top;
}

/* Piece of the third pass: combine the parts of a unit. */
static void run_combine(void *argument, int64_t piece, int worker)
{
    const forward_job *job = argument;
    const int64_t unit = job->unit0 + piece, heads = job->c->f.k.shape[1];
    const sequence s = sequence_get(job->c, unit / heads);
    const int splits = unit_splits(job, &s);
    const int64_t rows = s.nq * group_of(job->c);
    const ptrdiff_t dv = job->y.t.dv;
    if (splits == 1 || rows == 0) return;

    block_scratch w;
    block_state *st = worker_state(job, worker, &w);
    const parts p = {job->partials + (size_t)piece * job->y.unit_floats, part_floats(rows, dv),
                     splits, rows, dv};
    row_block_set(&st->rb, job->ask, job->c, &s,
                  (row_place){unit / heads, unit % heads, 0, (int)rows});
    for (int r = 0; r < rows; r++) {
        const float *m = p.o + rows * dv + r, *l = m + rows;
        float lse;
        combine_row(&p, r);
        const float factor = block_finish(*m, *l, sink_of(job->c, st->rb.head[r]), &lse);
        lse_store(&st->rb, r, lse);
        row_out(&st->rb, &job->c->f.o, r, p.o + r * dv, factor);
    }
}

static ffpa_status forward(const ffpa_plan *plan, const call *c, void *workspace)
{
    const int64_t sequences = sequence_count(c);
    int64_t most_rows = 0;
    bool whole = false, split = false; /* units for the first pass, for the others */
    forward_job job = {
        .ask = &plan->prob.ask, .c = c, .y = layout_of(plan), .workers = workspace};
    job.partials = (float *)(void *)(job.workers + (size_t)job.y.threads * job.y.worker_bytes);
    job.units = sequences * c->f.k.shape[1];
    sequences_append(c);
    if (job.units == 0) return FFPA_OK;
    for (int64_t b = 0; b < sequences; b++) {
        const sequence s = sequence_get(c, b);
        const int64_t rows = s.nq * group_of(c);
        if (rows > most_rows) most_rows = rows;
        if (unit_splits(&job, &s) > 1)
            split = true;
        else
            whole = true;
    }
    pool *threads = plan->ctx->pool;
    job.blocks = (most_rows + job.y.t.bm - 1) / job.y.t.bm;
    if (whole) pool_run(threads, run_block, &job, job.blocks * job.units);
    for (job.unit0 = 0; split && job.unit0 < job.units; job.unit0 += job.y.wave) {
        const int64_t left = job.units - job.unit0,
                      units = left < job.y.wave ? left : job.y.wave;
        pool_run(threads, run_part, &job, units * job.y.splits);
        pool_run(threads, run_combine, &job, units);
    }
    return FFPA_OK;
}

const cpu_kernels ISA_NAME(cpu_kernels) = {
    .isa = ISA_TEXT(FFPA_ISA),
    .plan_forward = plan_forward,
    .forward = forward,
    .plan_backward = cpu_plan_backward,
    .backward = cpu_backward,
};
