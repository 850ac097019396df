/* fuzz_params.c - small calls that run, with tensors, options and index arrays from the input: every
 * tensor is a block of exactly the bytes that its view reaches, so a sanitizer sees one element
 * too many. Sizes, strides and dtypes may disagree with each other; then the call must be refused. */
#include "fuzz_view.h"

/* One call and everything that hangs off it. The three bytes of bits say what is in use. */
typedef struct fuzz_call {
    uint8_t bits[3];
    int64_t b, hq, hk, nq, nk, d, dv, q_batch, k_batch;
    int32_t dtype, wide, index;
    ffpa_forward_params f;
    ffpa_backward_params g;
    ffpa_dropout dropout;
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
} fuzz_call;

static const int32_t DTYPES[] = {FFPA_F32, FFPA_F16, FFPA_BF16, FFPA_F64};

static bool is_packed(const fuzz_call *c) { return (c->bits[0] & 3) == 3; }
static bool is_cached(const fuzz_call *c) { return (c->bits[0] & 3) == 2; }

static void take_sizes(fuzz_call *c, taker *t)
{
    take(t, c->bits, sizeof c->bits);
    c->b = take_byte(t) & 3;
    c->hk = take_byte(t) & 3;
    c->hq = c->hk * (take_byte(t) & 3);
    c->nq = take_byte(t) % 40;
    c->nk = take_byte(t) % 70;
    c->d = take_byte(t) % 70;
    c->dv = take_byte(t) & 1 ? c->d : take_byte(t) % 20;
    c->q_batch = is_packed(c) ? 1 : c->b;
    c->k_batch = is_packed(c) && c->bits[0] & 4 ? 1 : c->b;
    c->dtype = DTYPES[c->bits[1] & 3];
    c->wide = c->dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32;
    c->index = c->bits[1] & 4 ? FFPA_I32 : FFPA_I64;
}

#define VIEW(dtype, share, ...) take_view(t, dtype, (int64_t[4]){__VA_ARGS__}, share)

static void take_forward(fuzz_call *c, taker *t)
{
    ffpa_forward_params *f = &c->f;
    const uint8_t bits = c->bits[0], mask = c->bits[1], more = c->bits[2];
    f->q = VIEW(c->dtype, &f->q, c->q_batch, c->hq, c->nq, c->d);
    f->k = VIEW(c->dtype, &f->q, c->k_batch, c->hk, c->nk, c->d);
    f->v = VIEW(c->dtype, &f->k, c->k_batch, c->hk, c->nk, c->dv);
    f->o = VIEW(mask & 128 ? c->wide : c->dtype, &f->q, c->q_batch, c->hq, c->nq, c->dv);
    f->lse = VIEW(c->wide, &f->o, c->q_batch, c->hq, c->nq, 1);
    if (bits & 8)
        f->mask = VIEW(more & 4 ? FFPA_BOOL : DTYPES[more & 1], &f->k, mask & 8 ? c->b : 1,
                       mask & 16 ? c->hq : 1, mask & 32 ? c->nq : 1, mask & 64 ? c->nk : 1);
    if (bits & 16) f->alibi = VIEW(FFPA_F32, &f->sink, 1, c->hq, 1, 1);
    if (bits & 16) f->sink = VIEW(FFPA_F32, &f->alibi, 1, c->hq, 1, 1);
    f->flags = more >> 3 & 3;
    f->causal = more >> 5 & 3;
    f->scale = (float)(int8_t)take_byte(t) / 16;
    f->softcap = (float)(take_byte(t) & 3);
    f->window_left = (int8_t)take_byte(t);
    f->window_right = (int8_t)take_byte(t);
    if (bits & 32) f->dropout = &c->dropout;
    c->dropout =
        (ffpa_dropout){.struct_size = sizeof c->dropout, .p = (float)take_byte(t) / 200};
}

/* Arrays as long as the documentation says: for the batch that q, or varlen, has. */
static void take_lengths(fuzz_call *c, taker *t)
{
    const int64_t batch = c->f.q.shape[0], new_keys = c->bits[2] & 3;
    c->varlen =
        (ffpa_varlen){.struct_size = sizeof c->varlen, .batch = c->b, .index_dtype = c->index};
    c->cache = (ffpa_kv_cache){.struct_size = sizeof c->cache, .index_dtype = c->index};
    c->cache.table_width = take_byte(t) & 3;
    if (is_packed(c)) {
        c->f.varlen = &c->varlen;
        c->varlen.cu_q = take_indices(t, c->b + 1, c->index);
        if (c->bits[0] & 4) c->varlen.cu_k = take_indices(t, c->b + 1, c->index);
    }
    if (is_cached(c)) {
        c->f.kv_cache = &c->cache;
        c->cache.lengths = take_indices(t, batch, c->index);
        if (c->bits[0] & 4)
            c->cache.block_table = take_indices(t, batch * c->cache.table_width, c->index);
        else if (c->bits[0] & 64)
            c->cache.batch_index = take_indices(t, batch, c->index);
        if (new_keys) c->cache.k_new = VIEW(c->dtype, &c->f.k, c->b, c->hk, new_keys, c->d);
        if (new_keys) c->cache.v_new = VIEW(c->dtype, &c->f.v, c->b, c->hk, new_keys, c->dv);
    }
}

static void take_backward(fuzz_call *c, taker *t)
{
    ffpa_backward_params *g = &c->g;
    const int64_t *mask = c->f.mask.shape;
    g->forward = &c->f;
    g->dout = VIEW(c->f.o.dtype, &c->f.o, c->q_batch, c->hq, c->nq, c->dv);
    g->dlse = VIEW(c->wide, &c->f.lse, c->q_batch, c->hq, c->nq, 1);
    g->dq = VIEW(c->dtype, &c->f.q, c->q_batch, c->hq, c->nq, c->d);
    g->dk = VIEW(c->dtype, &g->dq, c->k_batch, c->hk, c->nk, c->d);
    g->dv = VIEW(c->dtype, &g->dk, c->k_batch, c->hk, c->nk, c->dv);
    if (c->bits[0] & 8)
        g->dmask = VIEW(c->f.mask.dtype, &g->dq, mask[0], mask[1], mask[2], mask[3]);
    if (c->bits[0] & 16) g->dsink = VIEW(FFPA_F32, &c->f.sink, 1, c->hq, 1, 1);
}

static void run(ffpa_context *ctx, taker *t)
{
    fuzz_call c = {.f = ffpa_forward_params_init(), .g = ffpa_backward_params_init()};
    take_sizes(&c, t);
    take_forward(&c, t);
    take_lengths(&c, t);
    MUST(ffpa_forward(ctx, &c.f) == FFPA_OK || ffpa_last_error()[0]);
    if (!(c.bits[0] & 128)) return;
    take_backward(&c, t);
    MUST(ffpa_backward(ctx, &c.g) == FFPA_OK || ffpa_last_error()[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"cpu", "reference", "naive"};
    static ffpa_context *ctx[3];
    taker t = {data, bytes};
    const int which = take_byte(&t) % 3;
    const ffpa_context_options options = {
        .struct_size = sizeof options, .backend = names[which], .threads = 2};
    if (!ctx[which]) MUST(ffpa_context_create(&options, &ctx[which]) == FFPA_OK);
    run(ctx[which], &t);
    free_blocks();
    return 0;
}
