/* judge_device.c - staging a call to device memory. Pieces of host memory that overlap travel as one, so views
 * that share memory still do on the device. */
#include "support/judge_device.h"

#include "base/dynlib.h"
#include "support/tensor_make.h"
#include "support/unit.h"

#include <stdlib.h>

enum { GUARD = 4096, MAX_SPANS = 48, DEVICE = 0, POISON = 0xff };

/* ---- driver ------------------------------------------------------------------------------------------ */

typedef unsigned long long address;
static struct {
    int (*cuInit)(unsigned);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuCtxSynchronize)(void);
    int (*cuMemAlloc_v2)(address *, size_t);
    int (*cuMemFree_v2)(address);
    int (*cuMemsetD8_v2)(address, unsigned char, size_t);
    int (*cuMemcpyHtoD_v2)(address, const void *, size_t);
    int (*cuMemcpyDtoH_v2)(void *, address, size_t);
} cu;

static void must(int result, const char *what)
{
    if (result != 0) fail_msg("%s: CUDA error %d", what, result);
}

static void open_driver(void)
{
    char why[200] = "";
    void *context;
    if (cu.cuInit) return;
    void *library = dynlib_system.open("libcuda.so.1", false, why, sizeof why);
    if (!library) fail_msg("no NVIDIA driver: %s", why);
#define FIND(name) dynlib_store(&cu.name, dynlib_system.symbol(library, #name))
    FIND(cuInit), FIND(cuDevicePrimaryCtxRetain), FIND(cuCtxSetCurrent), FIND(cuCtxSynchronize);
    FIND(cuMemAlloc_v2), FIND(cuMemFree_v2), FIND(cuMemsetD8_v2);
    FIND(cuMemcpyHtoD_v2), FIND(cuMemcpyDtoH_v2);
#undef FIND
    must(cu.cuInit(0), "cuInit");
    must(cu.cuDevicePrimaryCtxRetain(&context, DEVICE), "cuDevicePrimaryCtxRetain");
    must(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* ---- spans ------------------------------------------------------------------------------------------- */

typedef struct span {
    unsigned char *low,
        *high; /* host bytes; low = NULL: no host memory, only `room` on the device */
    size_t room;
    bool written;  /* by the call */
    address block; /* device memory: guard, bytes, guard */
    size_t lead;   /* bytes before the first one; as aligned as on the host */
} span;

typedef struct stage {
    span spans[MAX_SPANS];
    int count;
} stage;

static size_t span_bytes(const span *s)
{
    return s->low ? (size_t)(s->high - s->low) : s->room;
}

static void add_span(stage *g, const void *data, size_t bytes, bool written)
{
    span s = {.low = (unsigned char *)(uintptr_t)data, .written = written};
    if (!data) return;
    s.high = s.low + bytes;
    for (int i = 0; i < g->count;) { /* swallow what it meets */
        const span *o = &g->spans[i];
        if (o->low < s.high && s.low < o->high) {
            if (o->low < s.low) s.low = o->low;
            if (o->high > s.high) s.high = o->high;
            s.written |= o->written;
            g->spans[i] = g->spans[--g->count];
            i = 0;
        } else {
            i++;
        }
    }
    assert_true(g->count < MAX_SPANS);
    g->spans[g->count++] = s;
}

/* From the lowest element of a view to the end of its highest. */
static void add_view(stage *g, const ffpa_tensor *t, bool written)
{
    int64_t low = 0, high = 1;
    const int64_t size = (int64_t)dtype_bytes(t->dtype);
    if (!t->data) return;
    for (int a = 0; a < 4; a++) {
        const int64_t reach = (t->shape[a] - 1) * t->stride[a];
        if (t->shape[a] == 0)
            high = 0, a = 4; /* nothing, but it has an address */
        else if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    if (high <= 0) low = 0, high = 0;
    add_span(g, (char *)t->data + low * size, (size_t)((high - low) * size), written);
}

static void send(span *s)
{
    const size_t bytes = span_bytes(s);
    s->lead = GUARD + (size_t)((uintptr_t)s->low % 64);
    must(cu.cuMemAlloc_v2(&s->block, s->lead + bytes + GUARD), "cuMemAlloc");
    must(cu.cuMemsetD8_v2(s->block, POISON, s->lead + bytes + GUARD), "cuMemsetD8");
    if (s->low && bytes)
        must(cu.cuMemcpyHtoD_v2(s->block + s->lead, s->low, bytes), "cuMemcpyHtoD");
}

static void check_poison(const unsigned char *bytes, size_t n, const char *where)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != POISON)
            fail_msg("device memory %s what the call may use was written", where);
}

/* What came back: outputs to where they belong; the rest must be as it was sent. */
static void fetch(span *s)
{
    const size_t bytes = span_bytes(s), all = s->lead + bytes + GUARD;
    unsigned char *copy = malloc(all);
    if (!copy) abort();
    must(cu.cuMemcpyDtoH_v2(copy, s->block, all), "cuMemcpyDtoH");
    must(cu.cuMemFree_v2(s->block), "cuMemFree");
    check_poison(copy, s->lead, "before");
    check_poison(copy + s->lead + bytes, GUARD, "after");
    if (s->low && s->written)
        memcpy(s->low, copy + s->lead, bytes);
    else if (s->low && memcmp(s->low, copy + s->lead, bytes) != 0)
        fail_msg("device memory that is an input was written");
    free(copy);
}

static address on_device(const stage *g, const void *data)
{
    const unsigned char *at = data;
    for (int i = 0; i < g->count; i++) {
        const span *s = &g->spans[i];
        if (s->low && at >= s->low && (at < s->high || (at == s->high && s->low == s->high)))
            return s->block + s->lead + (size_t)(at - s->low);
    }
    fail_msg("a pointer was not staged");
    return 0;
}

static void move_pointer(const stage *g, const void **pointer)
{
    if (*pointer) *pointer = (const void *)(uintptr_t)on_device(g, *pointer); // NOLINT
}

static void move_view(const stage *g, ffpa_tensor *t)
{
    if (!t->data) return;
    t->data = (void *)(uintptr_t)on_device(g, t->data); // NOLINT
    t->device = FFPA_CUDA(DEVICE);
}

/* ---- calls ------------------------------------------------------------------------------------------- */

/* A call with its side structs copied, so that their pointers can be moved. */
typedef struct moved {
    ffpa_forward_params f;
    ffpa_backward_params g;
    ffpa_dropout dropout;
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
} moved;

enum { F_VIEWS = 8, G_VIEWS = 7 };

static void views_of(moved *m, ffpa_tensor *list[F_VIEWS + G_VIEWS])
{
    ffpa_tensor *all[] = {&m->f.q,    &m->f.k,     &m->f.v,    &m->f.o,     &m->f.lse,
                          &m->f.mask, &m->f.alibi, &m->f.sink, &m->g.dout,  &m->g.dlse,
                          &m->g.dq,   &m->g.dk,    &m->g.dv,   &m->g.dmask, &m->g.dsink};
    memcpy(list, all, sizeof all);
}

static size_t index_bytes(int32_t dtype) { return dtype == FFPA_I64 ? 8 : 4; }

static void add_sides(stage *g, const moved *m)
{
    const ffpa_forward_params *f = &m->f;
    if (f->dropout) {
        add_span(g, m->dropout.seed_ptr, 8, false);
        add_span(g, m->dropout.offset_ptr, 8, false);
    }
    if (f->varlen) {
        const size_t bytes = (size_t)(m->varlen.batch + 1) * index_bytes(m->varlen.index_dtype);
        add_span(g, m->varlen.cu_q, bytes, false);
        add_span(g, m->varlen.cu_k, bytes, false);
    }
    if (f->kv_cache) {
        const ffpa_kv_cache *c = &m->cache;
        const size_t b = (size_t)f->q.shape[0], one = index_bytes(c->index_dtype);
        const int64_t row = c->table_stride ? c->table_stride : c->table_width;
        add_span(g, c->lengths, b * one, false);
        add_span(g, c->batch_index, b * one, false);
        add_span(g, c->block_table, ((b - 1) * (size_t)row + (size_t)c->table_width) * one,
                 false);
        add_view(g, &c->k_new, false);
        add_view(g, &c->v_new, false);
    }
}

static void move_sides(const stage *g, moved *m)
{
    if (m->f.dropout) {
        move_pointer(g, (const void **)&m->dropout.seed_ptr);
        move_pointer(g, (const void **)&m->dropout.offset_ptr);
        m->f.dropout = &m->dropout;
    }
    if (m->f.varlen) {
        move_pointer(g, &m->varlen.cu_q);
        move_pointer(g, &m->varlen.cu_k);
        m->f.varlen = &m->varlen;
    }
    if (m->f.kv_cache) {
        move_pointer(g, &m->cache.lengths);
        move_pointer(g, &m->cache.batch_index);
        move_pointer(g, &m->cache.block_table);
        move_view(g, &m->cache.k_new);
        move_view(g, &m->cache.v_new);
        m->f.kv_cache = &m->cache;
    }
}

static void send_call(stage *g, moved *m, bool backward)
{
    ffpa_tensor *views[F_VIEWS + G_VIEWS];
    const int count = F_VIEWS + (backward ? G_VIEWS : 0);
    views_of(m, views);
    open_driver();
    for (int i = 0; i < count; i++) {
        const ffpa_tensor *t = views[i];
        const bool appended =
            m->f.kv_cache && m->cache.k_new.data && (t == &m->f.k || t == &m->f.v);
        const bool output = backward ? i >= F_VIEWS + 2 : t == &m->f.o || t == &m->f.lse;
        add_view(g, t, output || appended);
    }
    add_sides(g, m);
    for (int i = 0; i < g->count; i++)
        send(&g->spans[i]);
    for (int i = 0; i < count; i++)
        move_view(g, views[i]);
    move_sides(g, m);
}

/* A NaN-filled workspace of exactly the size asked for. */
static void *add_workspace(stage *g, size_t bytes)
{
    assert_true(g->count < MAX_SPANS);
    span *s = &g->spans[g->count++];
    *s = (span){.room = bytes, .written = true};
    send(s);
    return (void *)(uintptr_t)(s->block + s->lead); // NOLINT: device memory
}

static ffpa_status finish(stage *g, ffpa_status status)
{
    must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    for (int i = 0; i < g->count; i++)
        fetch(&g->spans[i]);
    return status;
}

bool judge_on_device(const ffpa_context *ctx)
{
    return strstr(ffpa_context_describe(ctx), "backend=cuda") != NULL;
}

void judge_say_device(ffpa_context *ctx, ffpa_forward_params *f, ffpa_backward_params *g)
{
    ffpa_tensor *views[] = {&f->q,    &f->k,     &f->v,    &f->o,     &f->lse,
                            &f->mask, &f->alibi, &f->sink, &g->dout,  &g->dlse,
                            &g->dq,   &g->dk,    &g->dv,   &g->dmask, &g->dsink};
    for (size_t i = 0; judge_on_device(ctx) && i < COUNT(views); i++)
        if (views[i]->data) views[i]->device = FFPA_CUDA(DEVICE);
}

static moved copy_call(const ffpa_forward_params *f)
{
    moved m = {.f = *f};
    if (f->dropout) m.dropout = *f->dropout;
    if (f->varlen) m.varlen = *f->varlen;
    if (f->kv_cache) m.cache = *f->kv_cache;
    return m;
}

ffpa_status judge_forward(ffpa_context *ctx, const ffpa_forward_params *f)
{
    stage g = {0};
    if (!judge_on_device(ctx)) return ffpa_forward(ctx, f);
    moved m = copy_call(f);
    send_call(&g, &m, false);
    ffpa_status status = ffpa_forward_workspace(ctx, &m.f, &m.f.workspace_bytes);
    if (status == FFPA_OK) {
        m.f.workspace = add_workspace(&g, m.f.workspace_bytes);
        status = ffpa_forward(ctx, &m.f);
    }
    return finish(&g, status);
}

ffpa_status judge_backward(ffpa_context *ctx, const ffpa_backward_params *params)
{
    stage g = {0};
    if (!judge_on_device(ctx)) return ffpa_backward(ctx, params);
    moved m = copy_call(params->forward);
    m.g = *params;
    send_call(&g, &m, true);
    m.g.forward = &m.f;
    ffpa_status status = ffpa_backward_workspace(ctx, &m.g, &m.g.workspace_bytes);
    if (status == FFPA_OK) {
        m.g.workspace = add_workspace(&g, m.g.workspace_bytes);
        status = ffpa_backward(ctx, &m.g);
    }
    return finish(&g, status);
}

ffpa_status judge_merge(ffpa_context *ctx, const ffpa_merge_params *params)
{
    stage g = {0};
    if (!judge_on_device(ctx)) return ffpa_merge(ctx, params);
    ffpa_merge_params m = *params;
    ffpa_tensor *views[] = {&m.o_a, &m.lse_a, &m.o_b, &m.lse_b, &m.o, &m.lse};
    open_driver();
    for (int i = 0; i < 6; i++)
        add_view(&g, views[i], i >= 4);
    for (int i = 0; i < g.count; i++)
        send(&g.spans[i]);
    for (int i = 0; i < 6; i++)
        move_view(&g, views[i]);
    return finish(&g, ffpa_merge(ctx, &m));
}
