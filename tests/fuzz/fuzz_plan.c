/* fuzz_plan.c - params structs full of arbitrary bytes, asked about but not run: sizes, strides, flags
 * and struct sizes of any value give a status and a sentence, at once, and no tensor is read. */
#include "harness.h"

#include "ffpa/ffpa.h"

static ffpa_context *context(void)
{
    static ffpa_context *ctx;
    const ffpa_context_options options = {
        .struct_size = sizeof options, .policy = FFPA_ALLOW_SLOW, .threads = 2};
    if (!ctx) MUST(ffpa_context_create(&options, &ctx) == FFPA_OK);
    return ctx;
}

/* Addresses that must not be read. */
static void *anywhere(taker *t)
{
    const uintptr_t value = take_byte(t);
    return (void *)(value << 40 | value << 8);
}

/* A tensor that often fits the others, with some fields replaced by raw bytes. */
static void take_tensor(taker *t, ffpa_tensor *x, const int64_t like[4])
{
    const uint8_t raw = take_byte(t);
    const uint64_t n = (uint64_t)like[2] * (uint64_t)like[3], h = n * (uint64_t)like[1];
    *x = (ffpa_tensor){anywhere(t),
                       {like[0], like[1], like[2], like[3]},
                       {(int64_t)h, (int64_t)n, like[3], 1},
                       FFPA_F32,
                       0};
    if (raw & 1) take(t, x->shape, sizeof x->shape);
    if (raw & 2) take(t, x->stride, sizeof x->stride);
    if (raw & 4) take(t, &x->dtype, sizeof x->dtype);
    if (raw & 8) x->dtype = raw >> 4;
    if (raw & 16) take(t, &x->device, sizeof x->device);
    if (raw & 32) x->shape[raw & 3] = 1;
    if (raw & 64) memset(x, 0, sizeof *x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    taker t = {data, bytes};
    int64_t n[7]; /* B Hq Hk Nq Nk D Dv */
    ffpa_forward_params f = ffpa_forward_params_init();
    ffpa_backward_params g = ffpa_backward_params_init();
    const uint8_t given = take_byte(&t), wide = take_byte(&t);
    for (int i = 0; i < 7; i++) {
        if (wide >> i & 1)
            take(&t, &n[i], sizeof n[i]);
        else
            n[i] = take_byte(&t);
    }
    const int64_t q[4] = {n[0], n[1], n[3], n[5]}, k[4] = {n[0], n[2], n[4], n[5]};
    const int64_t v[4] = {n[0], n[2], n[4], n[6]}, o[4] = {n[0], n[1], n[3], n[6]};
    const int64_t lse[4] = {n[0], n[1], n[3], 1}, mask[4] = {n[0], n[1], n[3], n[4]},
                  head[4] = {1, n[1], 1, 1};
    take_tensor(&t, &f.q, q), take_tensor(&t, &f.k, k), take_tensor(&t, &f.v, v),
        take_tensor(&t, &f.o, o);
    take_tensor(&t, &f.lse, lse), take_tensor(&t, &f.mask, mask),
        take_tensor(&t, &f.sink, head);
    take_tensor(&t, &f.alibi, head), take_tensor(&t, &g.dout, o), take_tensor(&t, &g.dlse, lse);
    take_tensor(&t, &g.dq, q), take_tensor(&t, &g.dk, k), take_tensor(&t, &g.dv, v);
    take_tensor(&t, &g.dmask, mask), take_tensor(&t, &g.dsink, head);
    take(&t, &f.flags, 32); /* flags, causal, scale, softcap, window */
    take(&t, &f.workspace_limit_bytes, sizeof f.workspace_limit_bytes);
    ffpa_dropout dropout;
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
    ffpa_quant quant = {.struct_size = sizeof quant};
    take(&t, &dropout, sizeof dropout), take(&t, &varlen, sizeof varlen),
        take(&t, &cache, sizeof cache);
    if (!(given & 64))
        dropout.struct_size = sizeof dropout, varlen.struct_size = sizeof varlen,
        cache.struct_size = sizeof cache;
    /* A size that claims more than is there is the one lie that nobody can detect. */
    if (dropout.struct_size > sizeof dropout) dropout.struct_size = sizeof dropout;
    if (varlen.struct_size > sizeof varlen) varlen.struct_size = sizeof varlen;
    if (cache.struct_size > sizeof cache) cache.struct_size = sizeof cache;
    if (given & 1) f.dropout = &dropout;
    if (given & 2) f.varlen = &varlen;
    if (given & 4) f.kv_cache = &cache;
    if ((given & 24) == 24) f.quant = &quant;
    g.forward = &f;

    size_t size;
    ffpa_plan *plan;
    ffpa_report report = {.struct_size = sizeof report};
    const ffpa_status forward = ffpa_forward_workspace(context(), &f, &size);
    MUST(forward == FFPA_OK || ffpa_last_error()[0]);
    const ffpa_status backward = ffpa_plan_backward(context(), &g, &plan);
    MUST(backward == FFPA_OK || (ffpa_last_error()[0] && !plan));
    if (!f.varlen &&
        !f.kv_cache) { /* whose arrays it would read; it also has rules about addresses */
        const ffpa_status now = ffpa_forward_supported(context(), &f, &report);
        MUST(now == forward || (forward == FFPA_OK && now == FFPA_E_INVALID));
        if (now == FFPA_OK) MUST(size == report.workspace_bytes && report.flop >= 0);
        const ffpa_status then = ffpa_backward_supported(context(), &g, &report);
        MUST(then == backward || (backward == FFPA_OK && then == FFPA_E_INVALID));
    }
    ffpa_plan_destroy(plan);
    return 0;
}
