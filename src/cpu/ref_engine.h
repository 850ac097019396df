/* ref_engine.h - forward and backward of a backend in the precision REAL, over panels
 * (ref_panel.h). Included once each by ref_reference.c and ref_naive.c, which define
 *   REAL           double or float
 *   REF_BACKEND    the backend's table; REF_NAME: its name as text
 *   REF_ROUNDING   what happens to P and dS before they are multiplied with V, K, Q or dO
 *   REF_TAKES_F64  whether f64 inputs are accepted
 *
 * Each pass divides its output among pieces, so that no sum depends on the number of threads:
 *   rows   O, LSE, dQ of one block of query rows
 *   keys   dK, dV of one tile of keys, over all rows of all query heads of the group
 *   mask   dMask of one block of its rows, over all sequences and heads that share them
 *   sink   dSink of one head
 * Every backward pass computes P and dS anew: twice the arithmetic, but no Nq x Nk memory. */
#include "cpu/ref_panel.h"

#include <stdio.h>

/* ---- rows ------------------------------------------------------------------------------ */

static void rows_forward(panel *p)
{
    const ref_job *job = p->job;
    panel_load(p, p->q, &job->c->f.q, job->d);
    panel_keys(p, 0, p->seq.nk);
    clear(p->reach, BM);
    panel_sweep(p, WITH_K, visit_score);
    for (int r = 0; r < p->rows; r++) {
        row_softmax(p, r);
        if (job->c->op == FFPA_BACKWARD) row_given(p, r);
    }
    panel_weights(p);
    clear(p->o, p->rows * job->dv);
    panel_sweep(p, WITH_V, visit_output);
}

static void rows_backward(panel *p)
{
    const ref_job *job = p->job;
    const ffpa_tensor *dlse = &job->c->g.dlse, *o = &job->c->f.o;
    panel_load(p, p->dout, &job->c->g.dout, job->dv);
    for (int r = 0; r < p->rows; r++) {
        row_stat *stat = &p->stat[r];
        real from_lse = 0;
        if (dlse->data)
            load_row(&from_lse, dlse, sequence_query(&p->seq, dlse, p->h, p->row[r]), 1);
        if (stat->given && job->dv > 0)
            load_row(p->o + r * job->dv, o, sequence_query(&p->seq, o, p->h, p->row[r]),
                     job->dv);
        stat->delta = dot(p->dout + r * job->dv, p->o + r * job->dv, job->dv);
        if (stat->empty && !stat->given) stat->delta = 0; /* whatever dO holds */
        stat->delta -= from_lse;
        *stat_of(p, r) = *stat;
    }
    panel_sweep(p, WITH_V, visit_dp);
    panel_ds(p);
    clear(p->dq, p->rows * job->d);
    panel_sweep(p, WITH_K, visit_dq);
}

static void rows_piece(void *argument, int64_t piece, int worker)
{
    const ref_job *job = argument;
    const call *c = job->c;
    panel *p = &job->panels[worker];
    const int64_t block = piece % job->row_blocks, head = piece / job->row_blocks;
    panel_begin(p, head / job->hq, head % job->hq);
    panel_rows(p, block * BM, asked_rows(c, p->seq.nq));
    if (p->rows == 0) return;
    rows_forward(p);
    if (c->op == FFPA_BACKWARD) {
        rows_backward(p);
        panel_store(p, &c->g.dq, job->scale, p->dq, job->d);
        return;
    }
    panel_store(p, &c->f.o, 1, p->o, job->dv);
    real lse[BM];
    for (int r = 0; r < p->rows; r++)
        lse[r] = p->stat[r].max + log(p->stat[r].sum);
    panel_store(p, &c->f.lse, 1, lse, 1);
}

/* ---- keys ------------------------------------------------------------------------------ */

/* P and dS of the panel's rows and listed keys, from what the pass over rows left in stats. */
static void panel_recompute(panel *p)
{
    const ref_job *job = p->job;
    for (int r = 0; r < p->rows; r++) {
        p->stat[r] = *stat_of(p, r);
        if (p->stat[r].empty) p->count[r] = 0;
    }
    if (!panel_has_keys(p)) return;
    panel_load(p, p->q, &job->c->f.q, job->d);
    panel_load(p, p->dout, &job->c->g.dout, job->dv);
    panel_sweep(p, WITH_K, visit_score);
    panel_weights(p);
    panel_sweep(p, WITH_V, visit_dp);
    panel_ds(p);
}

/* Rows first..last-1 of dK or dV. */
static void store_key_rows(const panel *p, const ffpa_tensor *t, real factor, const real *from,
                           int64_t n)
{
    if (!t->data || n == 0) return;
    for (int64_t j = p->first; j < p->last; j++) {
        /* sequence_key hands out what is only read; this row is ours to write */
        const char *row = sequence_key(&p->seq, t, p->tile_hk, j);
        char *to = (char *)t->data + (row - (const char *)t->data);
        store_row(t, to, factor, from + (j - p->first) * n, n);
    }
}

static void keys_piece(void *argument, int64_t piece, int worker)
{
    const ref_job *job = argument;
    const call *c = job->c;
    panel *p = &job->panels[worker];
    const int64_t head = piece / job->key_blocks, group = job->hq / job->hk;
    const int64_t b = head / job->hk, hk = head % job->hk;
    panel_begin(p, b, hk * group);
    p->tile_hk = hk; /* also when the group is empty */
    const int64_t first = piece % job->key_blocks * BN;
    const int64_t last = first + BN < p->seq.nk ? first + BN : p->seq.nk;
    if (first >= last) return;
    p->first = first, p->last = last;
    clear(p->dk, BN * job->d);
    clear(p->dv, BN * job->dv);
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        panel_begin(p, b, h);
        const int64_t rows = asked_rows(c, p->seq.nq);
        for (int64_t n = 0; n < rows; n += BM) {
            panel_rows(p, n, rows);
            panel_keys(p, first, last);
            panel_recompute(p);
            panel_sweep(p, 0, visit_dk_dv);
        }
    }
    store_key_rows(p, &c->g.dk, job->scale, p->dk, job->d);
    store_key_rows(p, &c->g.dv, 1, p->dv, job->dv);
}

/* ---- mask ------------------------------------------------------------------------------ */

/* Add dS of the panel to the rows of mask_sum, the first of which is mask row `origin`. */
static void add_mask_rows(panel *p, int64_t origin)
{
    const ref_job *job = p->job;
    const ffpa_tensor *mask = &job->c->f.mask;
    for (int r = 0; r < p->rows; r++) {
        const int64_t row = r * job->max_nk;
        real *sum =
            p->mask_sum + (mask->shape[2] == 1 ? 0 : p->row[r] - origin) * mask->shape[3];
        for (int64_t e = row; e < row + p->count[r]; e++)
            sum[mask->shape[3] == 1 ? 0 : p->key[e]] += p->ds[e];
    }
}

/* One head of one sequence: its rows i in origin..end-1. */
static void add_mask_head(panel *p, int64_t b, int64_t h, int64_t origin, int64_t end)
{
    const call *c = p->job->c;
    panel_begin(p, b, h);
    const int64_t last = asked_rows(c, end < p->seq.nq ? end : p->seq.nq);
    for (int64_t n = asked_rows(c, origin); n < last; n += BM) {
        panel_rows(p, n, last);
        panel_keys(p, 0, p->seq.nk);
        panel_recompute(p);
        add_mask_rows(p, origin);
    }
}

static int64_t mask_row_blocks(const ffpa_tensor *mask)
{
    return (mask->shape[2] + BM - 1) / BM;
}

static void mask_piece(void *argument, int64_t piece, int worker)
{
    const ref_job *job = argument;
    const ffpa_tensor *mask = &job->c->f.mask, *dmask = &job->c->g.dmask;
    panel *p = &job->panels[worker];
    const int64_t blocks = mask_row_blocks(mask), head = piece / blocks;
    const int64_t mb = head / mask->shape[1], mh = head % mask->shape[1];
    const int64_t origin = piece % blocks * BM;
    const int64_t rows = origin + BM < mask->shape[2] ? BM : mask->shape[2] - origin;
    clear(p->mask_sum, rows * mask->shape[3]);

    const bool all_b = mask->shape[0] == 1, all_h = mask->shape[1] == 1;
    for (int64_t b = all_b ? 0 : mb; b < (all_b ? sequence_count(job->c) : mb + 1); b++)
        for (int64_t h = all_h ? 0 : mh; h < (all_h ? job->hq : mh + 1); h++)
            add_mask_head(p, b, h, origin, mask->shape[2] == 1 ? INT64_MAX : origin + rows);

    for (int64_t i = 0; i < rows; i++) {
        const int64_t offset =
            mb * dmask->stride[0] + mh * dmask->stride[1] + (origin + i) * dmask->stride[2];
        store_row(dmask, (char *)dmask->data + offset * element_bytes(dmask->dtype), 1,
                  p->mask_sum + i * mask->shape[3], mask->shape[3]);
    }
}

/* ---- sink ------------------------------------------------------------------------------ */

/* dSink_h = - sum_i e^(sink - LSE_i) delta_i; for a row without keys the weight is 1. */
static void sink_piece(void *argument, int64_t h, int worker)
{
    const ref_job *job = argument;
    const call *c = job->c;
    panel *p = &job->panels[worker];
    const real logit = (real)element_load(broadcast_at(&c->f.sink, 0, h, 0, 0), FFPA_F32);
    real sum = 0;
    for (int64_t b = 0; b < sequence_count(c); b++) {
        panel_begin(p, b, h);
        const int64_t rows = asked_rows(c, p->seq.nq);
        for (int64_t n = 0; n < rows; n++) {
            panel_rows(p, n, n + 1);
            const row_stat *stat = stat_of(p, 0);
            if (stat->sum == 0) continue; /* LSE = sink = -inf: as if there were none */
            sum -= exp(logit - stat->max) / stat->sum * stat->delta;
        }
    }
    const int64_t offset = h * c->g.dsink.stride[1] * element_bytes(c->g.dsink.dtype);
    element_store((char *)c->g.dsink.data + offset, c->g.dsink.dtype, (double)sum);
}

/* ---- scratch --------------------------------------------------------------------------- */

/* Cut `n` elements of `bytes` from *at, or only count them while there is no memory yet. */
static void *carve(char *memory, size_t *used, int64_t n, size_t bytes)
{
    void *at = memory ? memory + *used : NULL;
    *used += ((size_t)n * bytes + 63) / 64 * 64;
    return at;
}

static void carve_panel(panel *p, const ref_job *job, char *memory, size_t *used)
{
    const bool backward = job->c->op == FFPA_BACKWARD;
    const int64_t entries = BM * job->max_nk, back_entries = backward ? entries : 0;
    const ffpa_tensor *mask = &job->c->f.mask;
    *p = (panel){.job = job, .k_tile = -1, .v_tile = -1};
    p->key = carve(memory, used, entries, sizeof *p->key);
    p->s = carve(memory, used, entries, sizeof(real));
    p->ds = carve(memory, used, back_entries, sizeof(real));
    p->slope = carve(memory, used, back_entries, sizeof(real));
    if (!backward) p->slope = NULL;
    p->q = carve(memory, used, BM * job->d, sizeof(real));
    p->k = carve(memory, used, BN * job->d, sizeof(real));
    p->v = carve(memory, used, BN * job->dv, sizeof(real));
    p->o = carve(memory, used, BM * job->dv, sizeof(real));
    if (!backward) return;
    p->dq = carve(memory, used, BM * job->d, sizeof(real));
    p->dout = carve(memory, used, BM * job->dv, sizeof(real));
    p->dk = carve(memory, used, BN * job->d, sizeof(real));
    p->dv = carve(memory, used, BN * job->dv, sizeof(real));
    if (job->c->g.dmask.data)
        p->mask_sum = carve(memory, used, BM * mask->shape[3], sizeof(real));
}

/* All scratch of a job in one piece of memory, or its size. */
static size_t carve_job(ref_job *job, int workers, char *memory)
{
    const ffpa_tensor *q = &job->c->f.q;
    const int64_t rows =
        job->c->op == FFPA_BACKWARD ? q->shape[0] * q->shape[1] * q->shape[2] : 0;
    size_t used = 0;
    job->stats = carve(memory, &used, rows, sizeof *job->stats);
    job->panels = carve(memory, &used, workers, sizeof *job->panels);
    panel counted;
    for (int w = 0; w < workers; w++)
        carve_panel(memory ? &job->panels[w] : &counted, job, memory, &used);
    return used;
}

/* ---- the backend ----------------------------------------------------------------------- */

static ref_job job_of(const call *c, const ffpa_problem *ask)
{
    ref_job job = {.c = c,
                   .ask = ask,
                   .d = c->f.q.shape[3],
                   .dv = c->f.v.shape[3],
                   .hq = c->f.q.shape[1],
                   .hk = c->f.k.shape[1],
                   .softcap = (real)c->f.softcap};
    job.scale =
        job.d > 0 ? (real)call_scale(c) : 0; /* without columns the scores are 0, not NaN */
    if (c->f.dropout) {
        const ffpa_dropout *drop = &c->dropout;
        job.dropping = true;
        job.dropout = dropout_key_make(drop->p, drop->seed_ptr ? *drop->seed_ptr : drop->seed,
                                       drop->offset_ptr ? *drop->offset_ptr : drop->offset);
        job.keep_scale = drop->p < 1 ? (real)(1 / (1 - (double)drop->p)) : 0;
    }
    int64_t max_rows = 0;
    for (int64_t b = 0; b < sequence_count(c); b++) {
        const sequence s = sequence_get(c, b);
        const int64_t rows = asked_rows(c, s.nq);
        if (rows > max_rows) max_rows = rows;
        if (s.nk > job.max_nk) job.max_nk = s.nk;
    }
    job.row_blocks = (max_rows + BM - 1) / BM;
    job.key_blocks = (job.max_nk + BN - 1) / BN;
    return job;
}

static void job_run(ref_job *job, pool *workers)
{
    const call *c = job->c;
    const int64_t sequences = sequence_count(c);
    sequences_append(c);
    pool_run(workers, rows_piece, job, sequences * job->hq * job->row_blocks);
    if (c->g.dk.data || c->g.dv.data)
        pool_run(workers, keys_piece, job, sequences * job->hk * job->key_blocks);
    if (c->g.dmask.data) {
        const ffpa_tensor *mask = &c->f.mask;
        pool_run(workers, mask_piece, job,
                 mask->shape[0] * mask->shape[1] * mask_row_blocks(mask));
    }
    if (c->g.dsink.data) pool_run(workers, sink_piece, job, job->hq);
}

static ffpa_status ref_run(const struct ffpa_plan *plan, const call *c, void *workspace)
{
    (void)workspace; /* its size depends on lengths that a plan does not know: allocated here */
    const allocator *alloc = &plan->ctx->alloc;
    const int workers = pool_threads(plan->ctx->pool);
    ref_job job = job_of(c, &plan->prob.ask);
    const size_t bytes = carve_job(&job, workers, NULL);
    char *memory = mem_raw(alloc, bytes);
    CHECK(memory, FFPA_E_OUT_OF_MEMORY, "%s: %zu bytes of scratch cannot be allocated",
          c->op == FFPA_BACKWARD ? "ffpa_backward" : "ffpa_forward", bytes);
    carve_job(&job, workers, memory);
    job_run(&job, plan->ctx->pool);
    mem_free(alloc, memory);
    return FFPA_OK;
}

static bool ref_supports(const ffpa_context *ctx, const problem *p, char *why, size_t why_bytes)
{
    (void)ctx;
    const char *reason = NULL;
    if (p->device != FFPA_HOST) reason = "the tensors are not in host memory";
    if (p->ask.dtype == FFPA_F64 && !REF_TAKES_F64) reason = "f64 runs on the reference only";
    if (reason) snprintf(why, why_bytes, "%s", reason);
    return !reason;
}

static ffpa_status ref_plan(struct ffpa_plan *plan)
{
    ffpa_report *report = &plan->report;
    snprintf(report->path, sizeof report->path, "%s/%s", REF_NAME,
             plan->prob.ask.op == FFPA_BACKWARD ? "backward" : "forward");
    report->tile_q = BM;
    report->tile_k = BN;
    report->splits = 1;
    report->threads = pool_threads(plan->ctx->pool);
    return FFPA_OK;
}

const backend REF_BACKEND = {.name = REF_NAME,
                             .slow = true,
                             .supports = ref_supports,
                             .plan = ref_plan,
                             .forward = ref_run,
                             .backward = ref_run};
