/* cuda_backward_run.c - enqueueing the stages of the backward pass, chunk by chunk. */
#include "common/args.h"
#include "cuda/cuda_args.h"
#include "cuda/cuda_backward.h"

enum { THREADS = 256 };

static float *floats(const backward_pass *r, size_t at)
{
    return (float *)(void *)(r->workspace + at);
}

static ffpa_status launch(const backward_pass *r, int kernel, int64_t blocks, void *args)
{
    return cuda_launch(r->own->device, r->own->kernels[kernel], r->c->g.stream,
                       (cuda_grid){blocks, THREADS}, args);
}

static ffpa_status run_delta(const backward_pass *r)
{
    delta_args args = {.o = args_tensor(&r->c->f.o),
                       .dout = args_tensor(&r->c->g.dout),
                       .dlse = args_tensor(&r->c->g.dlse),
                       .delta = floats(r, r->x->at.delta),
                       .seq = r->seq,
                       .hq = r->hq,
                       .dv = (int)r->c->f.v.shape[3]};
    return launch(r, r->x->delta, backward_delta_blocks(r->prob), &args);
}

static ffpa_status run_pds(const backward_pass *r)
{
    pds_args args = {.q = args_tensor(&r->c->f.q),
                     .k = args_tensor(&r->c->f.k),
                     .v = args_tensor(&r->c->f.v),
                     .dout = args_tensor(&r->c->g.dout),
                     .lse = args_tensor(&r->c->f.lse),
                     .delta = floats(r, r->x->at.delta),
                     .p = r->workspace + r->x->at.p,
                     .ds = r->workspace + r->x->at.ds,
                     .dbias = r->x->dmask >= 0 ? floats(r, r->x->at.dbias) : NULL,
                     .seq = r->seq,
                     .scores = r->scores,
                     .dropout = r->dropout,
                     .chunk = r->chunk,
                     .hq = r->hq,
                     .hk = r->hk,
                     .group = r->group,
                     .key_tiles = (int)(r->x->ld / 128)};
    return launch(r, r->x->pds, backward_pds_blocks(r->x, &r->chunk), &args);
}

static ffpa_status run_renorm(const backward_pass *r)
{
    renorm_args args = {.p = r->workspace + r->x->at.p,
                        .ds = r->workspace + r->x->at.ds,
                        .dbias = r->x->dmask >= 0 ? floats(r, r->x->at.dbias) : NULL,
                        .lse = args_tensor(&r->c->f.lse),
                        .seq = r->seq,
                        .chunk = r->chunk,
                        .left = r->scores.left,
                        .right = r->scores.right,
                        .top_left = r->scores.top_left};
    return launch(r, r->x->renorm, backward_renorm_blocks(&r->chunk), &args);
}

static gemm_args product_args(const backward_pass *r, size_t a, const ffpa_tensor *b,
                              const ffpa_tensor *out)
{
    return (gemm_args){.a = r->workspace + a,
                       .b = args_tensor(b),
                       .out = args_tensor(out),
                       .seq = r->seq,
                       .chunk = r->chunk,
                       .alpha = r->scores.scale,
                       .hq = r->hq,
                       .hk = r->hk,
                       .group = r->group,
                       .cols = (int)out->shape[3],
                       .left = r->scores.left,
                       .right = r->scores.right,
                       .top_left = r->scores.top_left,
                       .first = r->opens,
                       .last = r->closes,
                       .key_tiles = r->x->key_lines};
}

static ffpa_status run_keys_product(const backward_pass *r, int kernel, int columns,
                                    gemm_args *args)
{
    const int64_t kv_heads = ceil_div(r->chunk.nh, r->group);
    return launch(r, kernel, backward_keys_blocks(r->x, kv_heads, args->cols, columns), args);
}

static ffpa_status run_products(const backward_pass *r)
{
    const backward_choice *x = r->x;
    if (x->dv >= 0) {
        gemm_args args = product_args(r, x->at.p, &r->c->g.dout, &r->c->g.dv);
        args.alpha = 1.0f;
        if (x->partial) args.partial = floats(r, x->at.dv_partial);
        TRY(run_keys_product(r, x->dv, x->dv_columns, &args));
    }
    if (x->dk >= 0) {
        gemm_args args = product_args(r, x->at.ds, &r->c->f.q, &r->c->g.dk);
        if (x->partial) args.partial = floats(r, x->at.dk_partial);
        TRY(run_keys_product(r, x->dk, x->dk_columns, &args));
    }
    if (x->dq < 0) return FFPA_OK;
    gemm_args args = product_args(r, x->at.ds, &r->c->f.k, &r->c->g.dq);
    return launch(r, x->dq, backward_rows_blocks(x, &r->chunk, args.cols), &args);
}

static ffpa_status run_dmask(const backward_pass *r)
{
    const ffpa_tensor *t = &r->c->g.dmask;
    dmask_args args = {.dbias = floats(r, r->x->at.dbias),
                       .dmask = args_tensor(t),
                       .partial =
                           r->x->dmask_partial ? floats(r, r->x->at.dmask_partial) : NULL,
                       .seq = r->seq,
                       .chunk = r->chunk,
                       .hq = r->hq,
                       .mb = (int)t->shape[0],
                       .mh = (int)t->shape[1],
                       .mq = (int)t->shape[2],
                       .mk = (int)t->shape[3],
                       .left = r->scores.left,
                       .right = r->scores.right,
                       .top_left = r->scores.top_left,
                       .first = r->first,
                       .last = r->last};
    return launch(r, r->x->dmask, backward_dmask_blocks(r->prob), &args);
}

static ffpa_status run_dsink(const backward_pass *r)
{
    dsink_args args = {.lse = args_tensor(&r->c->f.lse),
                       .delta = floats(r, r->x->at.delta),
                       .sink = r->c->f.sink.data,
                       .dsink = r->c->g.dsink.data,
                       .sink_sh = args_tensor(&r->c->f.sink).sh,
                       .dsink_sh = args_tensor(&r->c->g.dsink).sh,
                       .seq = r->seq,
                       .hq = r->hq};
    return launch(r, r->x->dsink, r->hq, &args);
}

/* Heads h0.., lines t0..: the chunks of one kv head come one after the other. */
static ffpa_status run_chunk(backward_pass *r, const backward_stages *stages, int h0, int t0,
                             int rows)
{
    const backward_choice *x = r->x;
    const int heads = h0 + x->heads < r->hq ? x->heads : r->hq - h0;
    const bool from_start = t0 == 0, to_end = t0 + rows >= x->lines;
    const int64_t ld = rows > 0 ? backward_keys_of(r->prob, x, t0, rows) : x->ld;
    r->chunk = (k_chunk){.ld = ld, .h0 = h0, .nh = heads, .t0 = t0, .nt = rows};
    r->opens = from_start && h0 % r->group == 0;
    r->closes = to_end && (h0 + heads) % r->group == 0;
    r->first = from_start && h0 == 0;
    r->last = to_end && h0 + heads == r->hq;
    TRY(stages->pds(r));
    if (r->x->renorm >= 0) TRY(run_renorm(r));
    TRY(stages->products(r));
    return x->dmask >= 0 ? run_dmask(r) : FFPA_OK;
}

ffpa_status backward_begin(backward_pass *r, const ffpa_plan *plan, const cuda_plan *own,
                           const call *c, char *workspace, const k_map *maps)
{
    *r = (backward_pass){.prob = &plan->prob,
                         .own = own,
                         .x = own->choice,
                         .c = c,
                         .workspace = workspace,
                         .maps = maps,
                         .seq = args_sequences(&plan->prob, c),
                         .scores = args_scores(c),
                         .dropout = args_dropout(c),
                         .hq = (int)c->f.q.shape[1],
                         .hk = (int)c->f.k.shape[1]};
    if (r->hq == 0) return FFPA_OK;
    r->group = r->hq / r->hk;
    TRY(run_delta(r));
    return r->x->dsink >= 0 ? run_dsink(r) : FFPA_OK;
}

ffpa_status backward_enqueue(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                             char *workspace, const backward_stages *stages, const k_map *maps)
{
    backward_pass r;
    TRY(backward_begin(&r, plan, own, c, workspace, maps));
    for (int h0 = 0; h0 < r.hq; h0 += r.x->heads) {
        int t0 = 0;
        do { /* at least once: without any query the keys' gradients are zeros, which must be written */
            const int rows = backward_lines_from(r.prob, r.x, t0);
            TRY(run_chunk(&r, stages, h0, t0, rows));
            t0 += rows;
        } while (t0 < r.x->lines);
    }
    return FFPA_OK;
}

ffpa_status backward_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                         char *workspace)
{
    static const backward_stages sm80 = {run_pds, run_products};
    return backward_enqueue(plan, own, c, workspace, &sm80, NULL);
}
