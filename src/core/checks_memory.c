/* checks_memory.c - what must hold of addresses when a call runs; and merge's rules. */
#include "core/checks.h"

#include <inttypes.h>
#include <string.h>

/* One tensor of a call, its name and whether the call writes it. */
typedef struct operand {
    const ffpa_tensor *t;
    const char *name;
    bool written;
    byte_range range;
} operand;

static ffpa_status check_operand(operand *o, const char *fn)
{
    TRY(view_range(o->t, fn, o->name, &o->range));
    if (o->range.low == o->range.high && !o->t->data) return FFPA_OK;
    CHECK(o->t->data || view_count(o->t) == 0, FFPA_E_INVALID, "%s: %s.data is NULL", fn,
          o->name);
    const size_t bytes = dtype_bytes(o->t->dtype);
    CHECK((uintptr_t)o->t->data % bytes == 0, FFPA_E_INVALID,
          "%s: %s.data=%p is not aligned to its %zu-byte elements", fn, o->name, o->t->data,
          bytes);
    const view_share folds = o->written ? view_folds(o->t) : SHARE_NO;
    CHECK(folds == SHARE_NO, FFPA_E_INVALID,
          "%s: %s.stride=[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
          "] %s two elements of an output at one address",
          fn, o->name, o->t->stride[0], o->t->stride[1], o->t->stride[2], o->t->stride[3],
          folds == SHARE_YES ? "puts" : "is too intricate to tell that it never puts");
    return FFPA_OK;
}

static ffpa_status check_apart(const operand *out, const operand *other, const char *fn)
{
    const view_share share = views_share(out->t, other->t);
    CHECK(share == SHARE_NO, FFPA_E_INVALID, "%s: %s %s %s %s in memory", fn,
          strcmp(out->name, "workspace") == 0 ? "the" : "output", out->name,
          share == SHARE_YES ? "overlaps" : "may overlap", other->name);
    return FFPA_OK;
}

/* Every written operand against every other. Views that are only read may share memory. */
static ffpa_status check_operands_apart(operand *ops, int n, const char *fn)
{
    for (int i = 0; i < n; i++)
        TRY(check_operand(&ops[i], fn));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            if (i == j || !ops[i].written || (ops[j].written && j < i)) continue;
            if (ops[i].range.high <= ops[j].range.low || ops[j].range.high <= ops[i].range.low)
                continue;
            TRY(check_apart(&ops[i], &ops[j], fn));
        }
    return FFPA_OK;
}

/* A side array as a tensor of `rows` times `columns`, absent when its address is NULL. */
static ffpa_tensor array_view(const void *data, int32_t dtype, int64_t rows, int64_t columns,
                              int64_t stride)
{
    ffpa_tensor t = {
        .shape = {1, 1, rows, columns}, .stride = {0, 0, stride, 1}, .dtype = dtype};
    if (!data) return (ffpa_tensor){0};
    memcpy(&t.data, &data, sizeof t.data); /* only compared */
    return t;
}

/* The arrays that a call reads besides tensors. */
enum { SIDE_ARRAYS = 8 };
static void side_arrays(const call *c, ffpa_tensor out[SIDE_ARRAYS])
{
    const ffpa_varlen *v = &c->varlen;
    const ffpa_kv_cache *k = &c->cache;
    const int64_t batch = sequence_count(c);
    const int32_t index = v->index_dtype, page_index = k->index_dtype;
    out[0] = array_view(v->cu_q, index, 1, batch + 1, 0);
    out[1] = array_view(v->cu_k, index, 1, batch + 1, 0);
    out[2] = array_view(k->lengths, page_index, 1, batch, 0);
    out[3] = array_view(k->batch_index, page_index, 1, batch, 0);
    out[4] = array_view(k->block_table, page_index, batch, k->table_width,
                        k->table_stride ? k->table_stride : k->table_width);
    out[5] = array_view(c->rows.rows, FFPA_I64, 1, c->rows.count, 0);
    out[6] = array_view(c->dropout.seed_ptr, FFPA_I64, 1, 1, 0);
    out[7] = array_view(c->dropout.offset_ptr, FFPA_I64, 1, 1, 0);
}

ffpa_status call_check_memory(const call *c, size_t workspace_bytes, bool asking,
                              const char *fn)
{
    const ffpa_forward_params *f = &c->f;
    const ffpa_backward_params *g = &c->g;
    const bool forward = c->op == FFPA_FORWARD;
    const bool appends = f->kv_cache && c->cache.k_new.shape[2] > 0;
    size_t given;
    ffpa_tensor side[SIDE_ARRAYS];
    const ffpa_tensor workspace =
        array_view(call_workspace(c, &given), FFPA_BOOL, 1, (int64_t)workspace_bytes, 0);
    side_arrays(c, side);
    const operand all[] = {
        {&f->q, "q", false, {0, 0}},
        {&f->k, "k", appends, {0, 0}},
        {&f->v, "v", appends, {0, 0}},
        {&f->o, "o", forward, {0, 0}},
        {&f->lse, "lse", forward, {0, 0}},
        {&f->mask, "mask", false, {0, 0}},
        {&f->alibi, "alibi", false, {0, 0}},
        {&f->sink, "sink", false, {0, 0}},
        {&c->cache.k_new, "kv_cache.k_new", false, {0, 0}},
        {&c->cache.v_new, "kv_cache.v_new", false, {0, 0}},
        {&g->dout, "dout", false, {0, 0}},
        {&g->dlse, "dlse", false, {0, 0}},
        {&g->dq, "dq", true, {0, 0}},
        {&g->dk, "dk", true, {0, 0}},
        {&g->dv, "dv", true, {0, 0}},
        {&g->dmask, "dmask", true, {0, 0}},
        {&g->dsink, "dsink", true, {0, 0}},
        {&side[0], "varlen.cu_q", false, {0, 0}},
        {&side[1], "varlen.cu_k", false, {0, 0}},
        {&side[2], "kv_cache.lengths", false, {0, 0}},
        {&side[3], "kv_cache.batch_index", false, {0, 0}},
        {&side[4], "kv_cache.block_table", false, {0, 0}},
        {&side[5], "rows.rows", false, {0, 0}},
        {&side[6], "dropout.seed_ptr", false, {0, 0}},
        {&side[7], "dropout.offset_ptr", false, {0, 0}},
        {&workspace, "workspace", true, {0, 0}},
    };
    operand given_ones[sizeof all / sizeof all[0]];
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (asking ? all[i].t->data != NULL : tensor_given(all[i].t)) given_ones[n++] = all[i];
    return check_operands_apart(given_ones, n, fn);
}

ffpa_status merge_check(const ffpa_merge_params *m, const char *fn)
{
    operand ops[] = {
        {&m->o_a, "o_a", false, {0, 0}}, {&m->lse_a, "lse_a", false, {0, 0}},
        {&m->o_b, "o_b", false, {0, 0}}, {&m->lse_b, "lse_b", false, {0, 0}},
        {&m->o, "o", true, {0, 0}},      {&m->lse, "lse", true, {0, 0}},
    };
    const int32_t dtype = m->o_a.dtype;
    const int32_t lse_dtype = dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32;
    TRY(dtype_check(&m->o_a, fn, "o_a"));
    CHECK(dtype == FFPA_F32 || dtype == FFPA_F16 || dtype == FFPA_BF16 || dtype == FFPA_F64,
          FFPA_E_INVALID, "%s: o_a.dtype=%s is none of f32, f16, bf16, f64", fn,
          dtype_name(dtype));
    const int n = tensor_given(&m->lse) ? 6 : 5;
    for (int i = 0; i < n; i++) {
        const bool is_lse = i % 2 == 1;
        const ffpa_tensor *t = ops[i].t;
        TRY(dtype_check(t, fn, ops[i].name));
        CHECK(t->dtype == (is_lse ? lse_dtype : dtype), FFPA_E_INVALID,
              "%s: %s.dtype=%s, expected %s", fn, ops[i].name, dtype_name(t->dtype),
              dtype_name(is_lse ? lse_dtype : dtype));
        for (int a = 0; a < 4; a++) {
            const int64_t want = is_lse && a == 3 ? 1 : m->o_a.shape[a];
            CHECK(t->shape[a] == want, FFPA_E_INVALID,
                  "%s: %s.shape[%d]=%" PRId64 ", expected %" PRId64, fn, ops[i].name, a,
                  t->shape[a], want);
        }
        CHECK(
            t->device == m->o_a.device, FFPA_E_INVALID,
            "%s: %s.device=%d, but o_a.device=%d; all tensors must be on one device (0 = host)",
            fn, ops[i].name, t->device, m->o_a.device);
        TRY(check_operand(&ops[i], fn));
    }
    /* In place is fine when it is exactly in place: each element is read before it is written. */
    for (int i = 4; i < n; i++)
        for (int j = 0; j < n; j++) {
            const ffpa_tensor *a = ops[i].t, *b = ops[j].t;
            bool same = a->data == b->data && (j < 4) && i % 2 == j % 2;
            for (int x = 0; x < 4; x++)
                same = same && (a->stride[x] == b->stride[x] || a->shape[x] <= 1);
            const view_share share = i == j || same ? SHARE_NO : views_share(a, b);
            CHECK(share == SHARE_NO, FFPA_E_INVALID,
                  "%s: output %s %s %s in memory without being the same view", fn, ops[i].name,
                  share == SHARE_YES ? "overlaps" : "may overlap", ops[j].name);
        }
    return FFPA_OK;
}
