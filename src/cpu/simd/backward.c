/* backward.c - the plan of the gradients, and the passes in order; see backward.h. */
#include "cpu/simd/backward.h"

#include <math.h>

enum {
    FEWEST_PIECES = 8, /* shorter chunks rather than fewer pieces */
    PIECES = 32, /* pieces of the keys pass that are aimed at, for balance on many cores */
    CHUNK_BYTES = 4 << 20, /* K, V, dK, dV of a chunk: a worker's share of L3 */
};

static int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low || high < low ? low : x > high ? high : x;
}

static ptrdiff_t whole_panels(ptrdiff_t n) { return (n + NR - 1) / NR * NR; }

/* The chunk is as long as CHUNK_BYTES allow, shorter when there would be too few pieces. */
static void plan_keys(backward_plan *t, const problem *p, int64_t sequences)
{
    const int64_t bytes = 2 * (t->ld_k + t->ld_v) * (int64_t)sizeof(float) * t->bn;
    const int64_t items = sequences * p->ask.hk;
    const int64_t keys = p->sources & VARLEN_K ? p->total_k : p->ask.nk;
    int64_t tiles = clamp(CHUNK_BYTES / bytes, 1, MAX_CHUNK / t->bn);
    if (items > 0 && !(p->sources & VARLEN_K))
        tiles = clamp(ceiling(keys, t->bn) * items / (FEWEST_PIECES), 1, tiles);
    t->chunk = (int)tiles * t->bn;
    t->parts = clamp(items > 0 ? ceiling(PIECES, items) : 1, 1, ceiling(keys, t->chunk));
}

static uint64_t unit_bytes(const backward_plan *t)
{
    return (uint64_t)t->unit_blocks * (uint64_t)t->bm * (uint64_t)t->d * sizeof(float);
}

/* How dQ comes about. Half of the workspace limit is for its parts; the number of parts decides the order
 * of sums, so it depends on nothing but the problem. */
static void plan_queries(backward_plan *t, const problem *p, int64_t sequences)
{
    const bool packed = p->sources & VARLEN_Q;
    const int64_t group = p->ask.hk ? p->ask.hq / p->ask.hk : 1;
    const uint64_t budget = p->workspace_limit_bytes / 2;
    t->units = packed ? p->ask.hk : p->ask.hk * sequences;
    t->unit_sequences = packed ? sequences : 1;
    t->unit_blocks =
        packed ? p->total_q * group / t->bm + sequences + 1 : ceiling(p->ask.nq * group, t->bm);
    const uint64_t all = unit_bytes(t) * (uint64_t)t->units;
    const bool both = p->outputs & OUT_DQ && p->outputs & (OUT_DK | OUT_DV);
    t->fused = both && unit_bytes(t) <= budget;
    if (t->fused && all > 0) t->parts = clamp((int64_t)(budget / all), 1, t->parts);
}

backward_plan backward_plan_of(const problem *p)
{
    const int64_t sequences = p->ask.b, group = p->ask.hk ? p->ask.hq / p->ask.hk : 1;
    backward_plan t = {.bm = 64, .bn = 96, .d = p->ask.d, .dv = p->ask.dv};
    t.d_pad = whole_panels(t.d);
    t.dv_pad = whole_panels(t.dv);
    t.ld_k = tile_stride(t.d_pad);
    t.ld_v = tile_stride(t.dv_pad);
    t.ld_p = tile_stride(t.bm);
    plan_keys(&t, p, sequences);
    plan_queries(&t, p, sequences);
    t.bias = scores_scratch(&p->ask, t.bm);
    t.keep = p->dropping ? (size_t)t.bn * NR : 0;
    t.tanhs = p->ask.softcap > 0 ? (size_t)t.bn * NR : 0;
    const size_t rows = (size_t)(group > t.bm ? group : t.bm);
    t.mask_sum = p->outputs & OUT_DMASK ? 2 * rows * (size_t)t.chunk : 0; /* f64 */
    return t;
}

/* ---- scratch ---- */

enum { SCRATCH_PARTS = 18 };

/* Offsets in floats of the members of backward_scratch, in their order; the last one is the end. */
static void scratch_offsets(const backward_plan *t, size_t at[SCRATCH_PARTS])
{
    const size_t bm = (size_t)t->bm, bn = (size_t)t->bn, chunk = (size_t)t->chunk;
    const size_t d = (size_t)t->d_pad, dv = (size_t)t->dv_pad;
    const size_t k = chunk * (size_t)t->ld_k, v = chunk * (size_t)t->ld_v,
                 p = bn * (size_t)t->ld_p;
    const size_t q = bm * (size_t)t->ld_k, dout = bm * (size_t)t->ld_v;
    const size_t size[SCRATCH_PARTS - 1] = {
        k,       v,       k,       v, q, dout,   bm * d,
        bm * dv, bm * bn, bm * bn, p, p, bm * d, d > dv ? d : dv,
        t->bias, t->keep, t->tanhs};
    at[0] = 0;
    for (int i = 0; i + 1 < SCRATCH_PARTS; i++)
        at[i + 1] = at[i] + (size[i] + 15) / 16 * 16;
}

size_t backward_scratch_bytes(const backward_plan *t)
{
    size_t at[SCRATCH_PARTS];
    scratch_offsets(t, at);
    return (at[SCRATCH_PARTS - 1] + (t->mask_sum + 15) / 16 * 16) * sizeof(float);
}

backward_scratch backward_scratch_at(const backward_plan *t, void *memory)
{
    size_t at[SCRATCH_PARTS];
    float *m = memory;
    scratch_offsets(t, at);
    return (backward_scratch){m + at[0],  m + at[1],  m + at[2],
                              m + at[3],  m + at[4],  m + at[5],
                              m + at[6],  m + at[7],  m + at[8],
                              m + at[9],  m + at[10], m + at[11],
                              m + at[12], m + at[13], m + at[14],
                              m + at[15], m + at[16], (double *)(void *)(m + at[17])};
}

/* ---- the two functions of the table ---- */

/* Sizes of the workspace: stats, the parts of dQ of `wave` units, scratch of every worker. */
typedef struct backward_layout {
    size_t stats, dq, scratch, total; /* bytes; scratch is one worker's */
    int64_t wave;
} backward_layout;

static backward_layout layout_of(const struct ffpa_plan *plan, const backward_plan *t)
{
    const problem *p = &plan->prob;
    const size_t workers = (size_t)pool_threads(plan->ctx->pool);
    backward_layout l = {.stats = ((size_t)(p->total_q * p->ask.hq) * sizeof(row_stat) + 63) /
                                  64 * 64,
                         .scratch = backward_scratch_bytes(t),
                         .wave = t->units};
    const size_t fixed = l.stats + l.scratch * workers, limit = p->workspace_limit_bytes;
    const size_t each = t->fused ? (size_t)t->parts * unit_bytes(t) : 0;
    if (each > 0) /* fewer units at a time change no result */
        l.wave = clamp(limit > fixed ? (int64_t)((limit - fixed) / each) : 1, 1, t->units);
    l.dq = each * (size_t)l.wave;
    l.total = fixed + l.dq;
    return l;
}

ffpa_status cpu_plan_backward(struct ffpa_plan *plan)
{
    const backward_plan t = backward_plan_of(&plan->prob);
    ffpa_report *report = &plan->report;
    report->workspace_bytes = layout_of(plan, &t).total;
    report->tile_q = t.bm;
    report->tile_k = t.bn;
    report->tile_d = TILE_DEPTH;
    report->splits = (int32_t)t.parts;
    report->threads = pool_threads(plan->ctx->pool);
    return FFPA_OK;
}

static void find_longest(backward_job *job)
{
    for (int64_t b = 0; b < job->sequences; b++) {
        const sequence s = sequence_get(job->c, b);
        if (s.nq > job->longest_q) job->longest_q = s.nq;
        if (s.nk > job->longest_k) job->longest_k = s.nk;
    }
}

ffpa_status cpu_backward(const struct ffpa_plan *plan, const call *c, void *workspace)
{
    backward_job job = {.c = c,
                        .ask = &plan->prob.ask,
                        .t = backward_plan_of(&plan->prob),
                        .sequences = sequence_count(c),
                        .hq = c->f.q.shape[1],
                        .hk = c->f.k.shape[1],
                        .scale = (float)call_scale(c)};
    const backward_layout l = layout_of(plan, &job.t);
    pool *workers = plan->ctx->pool;
    char *memory = workspace;
    job.group = job.hk ? job.hq / job.hk : 1;
    job.stats = (row_stat *)workspace;
    job.dq = (float *)(void *)(memory + l.stats);
    job.scratch = memory + l.stats + l.dq;
    job.scratch_bytes = l.scratch;
    job.wave = l.wave;
    find_longest(&job);
    backward_stats_pass(&job, workers);
    if (job.t.fused || c->g.dk.data || c->g.dv.data) backward_keys_pass(&job, workers);
    if (c->g.dq.data && !job.t.fused) backward_rows_pass(&job, workers);
    if (c->g.dmask.data) backward_mask_pass(&job, workers);
    return FFPA_OK;
}
