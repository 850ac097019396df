/* fake_device_call.c - tensors at made-up addresses. */
#include "fake/device_call.h"

#include <stdint.h>
#include <stdlib.h>

static uintptr_t next_address;

static void *somewhere(void)
{
    next_address += (uintptr_t)1 << 40;
    return (void *)next_address; // NOLINT: an address that nobody follows
}

static ffpa_tensor tensor(const device_call *c, int device, int32_t dtype,
                          const int64_t shape[4])
{
    ffpa_tensor t =
        ffpa_tensor_4d(somewhere(), (ffpa_dtype)dtype, shape[0], shape[1], shape[2], shape[3]);
    if (c->ask.bnhd) {
        t.stride[1] = shape[3];
        t.stride[2] = shape[1] * shape[3];
    }
    t.device = FFPA_CUDA(device);
    return t;
}

static void add_lengths(device_call *c)
{
    if (c->ask.n_lengths && c->ask.page) {
        c->cache = (ffpa_kv_cache){
            .struct_size = sizeof c->cache, .lengths = somewhere(), .index_dtype = FFPA_I32};
        c->cache.block_table = somewhere();
        c->cache.table_width = (c->ask.nk + c->ask.page - 1) / c->ask.page;
        c->f.kv_cache = &c->cache;
    } else if (c->ask.n_lengths) {
        c->varlen = (ffpa_varlen){
            .struct_size = sizeof c->varlen, .batch = c->ask.b, .index_dtype = FFPA_I32};
        c->varlen.cu_q = somewhere();
        c->varlen.cu_k = somewhere();
        c->varlen.max_q = c->ask.nq;
        c->f.varlen = &c->varlen;
    }
}

static void add_options(device_call *c, int device)
{
    const ffpa_problem *a = &c->ask;
    const int64_t mask[4] = {a->mask_axes & 1 ? a->b : 1, a->mask_axes & 2 ? a->hq : 1,
                             a->mask_axes & 4 ? a->nq : 1, a->mask_axes & 8 ? a->nk : 1};
    const int64_t heads[4] = {1, a->hq, 1, 1};
    c->f.causal = a->causal;
    c->f.scale = a->scale;
    c->f.flags = (a->has_scale ? FFPA_SCALE : 0u) | (a->has_window ? FFPA_WINDOW : 0u);
    c->f.window_left = a->window_left;
    c->f.window_right = a->window_right;
    c->f.softcap = a->softcap;
    if (a->mask_dtype) c->f.mask = tensor(c, device, a->mask_dtype, mask);
    if (a->alibi) c->f.alibi = tensor(c, device, FFPA_F32, heads);
    if (a->sink) c->f.sink = tensor(c, device, FFPA_F32, heads);
    if (a->dropout > 0) {
        c->dropout =
            (ffpa_dropout){.struct_size = sizeof c->dropout, .p = a->dropout, .seed = a->seed};
        c->f.dropout = &c->dropout;
    }
}

static void add_backward(device_call *c, int device)
{
    c->g = ffpa_backward_params_init();
    c->g.forward = &c->f;
    c->g.dout = tensor(c, device, c->f.o.dtype, c->f.o.shape);
    c->g.dq = tensor(c, device, c->f.q.dtype, c->f.q.shape);
    c->g.dk = tensor(c, device, c->f.k.dtype, c->f.k.shape);
    c->g.dv = tensor(c, device, c->f.v.dtype, c->f.v.shape);
    if (c->f.mask.data && c->f.mask.dtype != FFPA_BOOL)
        c->g.dmask = tensor(c, device, c->f.mask.dtype, c->f.mask.shape);
    if (c->f.sink.data) c->g.dsink = tensor(c, device, FFPA_F32, c->f.sink.shape);
}

void device_call_make(device_call *c, const char *problem, int device)
{
    *c = (device_call){.ask.struct_size = sizeof c->ask};
    if (ffpa_problem_parse(problem, &c->ask) != FFPA_OK) abort();
    const ffpa_problem *a = &c->ask;
    int64_t total = 0, pages = 0;
    for (int i = 0; i < a->n_lengths; i++) {
        total += a->lengths[i];
        pages += a->page ? (a->lengths[i] + a->page - 1) / a->page : 0;
    }
    const int packed = a->n_lengths && !a->page;
    const int64_t qb = packed ? 1 : a->b, qn = packed ? total : a->nq;
    const int64_t kb = packed    ? 1
                       : a->page ? pages
                                 : a->b,
                  kn = packed    ? total
                       : a->page ? a->page
                                 : a->nk;
    next_address = 0;
    c->f = ffpa_forward_params_init();
    c->f.q = tensor(c, device, a->dtype, (const int64_t[]){qb, a->hq, qn, a->d});
    c->f.k = tensor(c, device, a->dtype, (const int64_t[]){kb, a->hk, kn, a->d});
    c->f.v = tensor(c, device, a->dtype, (const int64_t[]){kb, a->hk, kn, a->dv});
    c->f.o = tensor(c, device, a->dtype, (const int64_t[]){qb, a->hq, qn, a->dv});
    c->f.lse = tensor(c, device, FFPA_F32, (const int64_t[]){qb, a->hq, qn, 1});
    add_lengths(c);
    add_options(c, device);
    if (a->op == FFPA_BACKWARD) add_backward(c, device);
    c->f.stream = c->g.stream = (void *)0x5150;
    c->f.workspace = c->g.workspace = somewhere();
}
