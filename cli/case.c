/* case.c - a problem with tensors. */
#include "case.h"

#include "program.h"
#include "scalar.h"

#include <math.h>
#include <string.h>

enum { DATA_Q, DATA_K, DATA_V, DATA_DOUT, DATA_DLSE, DATA_MASK, DATA_SINK, DATA_PAGES };

/* ---- generated data ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t hash_of(const ffpa_problem *p, int data, int64_t index)
{
    return mix(mix(p->seed * 256 + (uint64_t)data) + (uint64_t)index);
}

static double normal_of(uint64_t h)
{
    uint64_t sum = (h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48);
    return ((double)sum - 131070.0) * (1.7320508075688772 / 65536);
}

static void fill(const attention_case *c, const ffpa_tensor *t, int data)
{
    int64_t at[4] = {0}, index = 0;
    if (tensor_elements(t) == 0) return;
    do
        tensor_set(t, at, normal_of(hash_of(&c->problem, data, index++)));
    while (tensor_next(t, at));
}

/* A bool mask keeps 3 of 4 keys; an additive one holds -inf in one place of 16. */
static void fill_mask(const attention_case *c, const ffpa_tensor *t)
{
    int64_t at[4] = {0}, index = 0;
    if (tensor_elements(t) == 0) return;
    do {
        uint64_t h = hash_of(&c->problem, DATA_MASK, index++);
        double value = t->dtype == FFPA_BOOL ? (mix(h) & 3) != 0
                       : (mix(h) & 15) == 0  ? (double)-INFINITY
                                             : normal_of(h);
        tensor_set(t, at, value);
    } while (tensor_next(t, at));
}

/* ---- shapes ---- */

static int64_t case_keys(const ffpa_problem *p, int64_t b)
{
    return p->n_lengths > 0 ? p->lengths[b] : p->nk;
}

int64_t case_queries(const ffpa_problem *p, int64_t b)
{
    return p->n_lengths > 0 && p->page == 0 ? p->lengths[b] : p->nq;
}

static bool packed(const ffpa_problem *p) { return p->n_lengths > 0 && p->page == 0; }

/* [b, h, n, d] of query-side tensors, packed or not. */
static void query_shape(const ffpa_problem *p, int64_t d, int64_t shape[4])
{
    int64_t total = 0;
    for (int64_t b = 0; packed(p) && b < p->b; b++)
        total += p->lengths[b];
    shape[0] = packed(p) ? 1 : p->b;
    shape[1] = p->hq;
    shape[2] = packed(p) ? total : p->nq;
    shape[3] = d;
}

static int64_t pages_of(const ffpa_problem *p, int64_t b)
{
    return (case_keys(p, b) + p->page - 1) / p->page;
}

static void key_shape(const ffpa_problem *p, int64_t d, int64_t shape[4])
{
    query_shape(p, d, shape);
    shape[1] = p->hk;
    if (!packed(p)) shape[2] = p->nk;
    if (p->page > 0) {
        shape[0] = 1; /* one page that nobody owns */
        for (int64_t b = 0; b < p->b; b++)
            shape[0] += pages_of(p, b);
        shape[2] = p->page;
    }
}

/* ---- inputs ---- */

static bool make_varlen(attention_case *c)
{
    const ffpa_problem *p = &c->problem;
    int32_t *offsets = arena_alloc(&c->memory, ((size_t)p->b + 1) * sizeof *offsets);
    if (!offsets) return false;
    offsets[0] = 0;
    for (int64_t b = 0; b < p->b; b++)
        offsets[b + 1] = offsets[b] + (int32_t)p->lengths[b];
    c->varlen =
        (ffpa_varlen){.struct_size = sizeof c->varlen, .batch = p->b, .index_dtype = FFPA_I32};
    c->varlen.cu_q = c->varlen.cu_k = offsets;
    c->varlen.max_q = c->varlen.max_k = p->nq;
    c->forward.varlen = &c->varlen;
    return true;
}

static int64_t table_width(const ffpa_problem *p)
{
    int64_t longest = (p->nk + p->page - 1) / p->page; /* Nk is the longest length */
    return longest > 1 ? longest : 1;
}

/* Rows of pages past a sequence's end hold NaN: a path that reads them shows. */
static void poison_page_tails(attention_case *c, const int32_t *table, int64_t width)
{
    const ffpa_problem *p = &c->problem;
    ffpa_tensor *tensors[] = {&c->forward.k, &c->forward.v};
    for (int64_t b = 0; b < p->b; b++)
        for (int64_t j = case_keys(p, b); j < pages_of(p, b) * p->page; j++)
            for (int t = 0; t < 2; t++)
                for (int64_t h = 0; h < p->hk; h++)
                    for (int64_t d = 0; d < tensors[t]->shape[3]; d++)
                        tensor_set(
                            tensors[t],
                            (int64_t[4]){table[b * width + j / p->page], h, j % p->page, d},
                            (double)NAN);
}

/* Every sequence's pages in a shuffled order. */
static bool make_pages(attention_case *c)
{
    const ffpa_problem *p = &c->problem;
    int64_t width = table_width(p), pages = c->forward.k.shape[0], next = 0;
    int32_t *order = arena_alloc(&c->memory, (size_t)pages * sizeof *order);
    int32_t *table = arena_alloc(&c->memory, (size_t)(p->b * width) * sizeof *table);
    int32_t *lengths = arena_alloc(&c->memory, (size_t)p->b * sizeof *lengths);
    if (!order || !table || !lengths) return false;
    for (int64_t i = 0; i < pages; i++) { /* Fisher-Yates, inside out */
        int64_t j = (int64_t)(hash_of(p, DATA_PAGES, i) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    memset(table, 0, (size_t)(p->b * width) * sizeof *table);
    for (int64_t b = 0; b < p->b; b++) {
        lengths[b] = (int32_t)case_keys(p, b);
        for (int64_t i = 0; i < pages_of(p, b); i++)
            table[b * width + i] = order[next++];
    }
    poison_page_tails(c, table, width);
    c->cache = (ffpa_kv_cache){.struct_size = sizeof c->cache, .index_dtype = FFPA_I32};
    c->cache.lengths = lengths;
    c->cache.block_table = table;
    c->cache.table_width = c->cache.table_stride = width;
    c->forward.kv_cache = &c->cache;
    return true;
}

/* A mask has a column for every row of every page that a sequence may have. */
static bool make_biases(attention_case *c)
{
    const ffpa_problem *p = &c->problem;
    ffpa_forward_params *f = &c->forward;
    int64_t full[4] = {p->b, p->hq, p->nq, p->page ? table_width(p) * p->page : p->nk};
    int64_t heads[4] = {1, p->hq, 1, 1};
    if (p->mask_dtype) {
        for (int i = 0; i < 4; i++)
            full[i] = p->mask_axes >> i & 1 ? full[i] : 1;
        if (!tensor_new(&c->memory, &f->mask, p->mask_dtype, full, false)) return false;
        fill_mask(c, &f->mask);
    }
    if (p->alibi) {
        if (!tensor_new(&c->memory, &f->alibi, FFPA_F32, heads, false)) return false;
        for (int64_t h = 0; h < p->hq; h++)
            tensor_set(&f->alibi, (int64_t[4]){0, h, 0, 0},
                       exp2(-8.0 * (double)(h + 1) / (double)p->hq));
    }
    if (p->sink) {
        if (!tensor_new(&c->memory, &f->sink, FFPA_F32, heads, false)) return false;
        fill(c, &f->sink, DATA_SINK);
    }
    return true;
}

static void set_options(attention_case *c)
{
    const ffpa_problem *p = &c->problem;
    ffpa_forward_params *f = &c->forward;
    f->flags = (p->has_scale ? FFPA_SCALE : 0) | (p->has_window ? FFPA_WINDOW : 0);
    f->causal = p->causal;
    f->scale = p->scale;
    f->softcap = p->softcap;
    f->window_left = p->window_left;
    f->window_right = p->window_right;
    if (p->dropout > 0) {
        c->dropout =
            (ffpa_dropout){.struct_size = sizeof c->dropout, .p = p->dropout, .seed = p->seed};
        f->dropout = &c->dropout;
    }
}

static bool make_inputs(attention_case *c, bool with_dlse)
{
    const ffpa_problem *p = &c->problem;
    ffpa_forward_params *f = &c->forward;
    bool bnhd = p->bnhd != 0;
    int64_t q[4], k[4], v[4], o[4], lse[4];
    query_shape(p, p->d, q);
    key_shape(p, p->d, k);
    key_shape(p, p->dv, v);
    query_shape(p, p->dv, o);
    query_shape(p, 1, lse);
    if (!tensor_new(&c->memory, &f->q, p->dtype, q, bnhd) ||
        !tensor_new(&c->memory, &f->k, p->dtype, k, bnhd) ||
        !tensor_new(&c->memory, &f->v, p->dtype, v, bnhd))
        return false;
    fill(c, &f->q, DATA_Q);
    fill(c, &f->k, DATA_K);
    fill(c, &f->v, DATA_V);
    if (p->op == FFPA_BACKWARD) {
        if (!tensor_new(&c->memory, &c->backward.dout, p->dtype, o, bnhd)) return false;
        fill(c, &c->backward.dout, DATA_DOUT);
    }
    if (p->op == FFPA_BACKWARD && with_dlse) {
        if (!tensor_new(&c->memory, &c->backward.dlse, FFPA_F32, lse, false)) return false;
        fill(c, &c->backward.dlse, DATA_DLSE);
    }
    return make_biases(c) && (!packed(p) || make_varlen(c)) && (p->page == 0 || make_pages(c));
}

/* ---- outputs ---- */

/* lse and the gradient of an additive mask are asked for unrounded. */
static bool make_outputs(attention_case *c, int32_t dtype)
{
    const ffpa_problem *p = &c->problem;
    ffpa_forward_params *f = &c->forward;
    ffpa_backward_params *g = &c->backward;
    bool bnhd = p->bnhd != 0, mask = f->mask.data && f->mask.dtype != FFPA_BOOL;
    int32_t wide = dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32;
    int64_t o[4], lse[4];
    query_shape(p, p->dv, o);
    query_shape(p, 1, lse);
    bool good = tensor_new(&c->memory, &f->o, dtype, o, bnhd) &&
                tensor_new(&c->memory, &f->lse, wide, lse, false);
    if (p->op != FFPA_BACKWARD) return good;
    return good && tensor_new(&c->memory, &g->dq, dtype, f->q.shape, bnhd) &&
           tensor_new(&c->memory, &g->dk, dtype, f->k.shape, bnhd) &&
           tensor_new(&c->memory, &g->dv, dtype, f->v.shape, bnhd) &&
           (!mask || tensor_new(&c->memory, &g->dmask, wide, f->mask.shape, false)) &&
           (!p->sink || tensor_new(&c->memory, &g->dsink, FFPA_F32, f->sink.shape, false));
}

static int out_of_memory(attention_case *c)
{
    case_free(c);
    return complain(LIB_FAILED, "out of memory for the tensors of %s",
                    problem_print(&c->problem).text);
}

/* Offsets and page numbers are made as int32. */
static bool few_rows(const ffpa_problem *p)
{
    int64_t rows = 0;
    for (int i = 0; packed(p) && i < p->n_lengths; i++)
        rows += p->lengths[i];
    return rows <= INT32_MAX && (p->page == 0 || p->b * table_width(p) < INT32_MAX);
}

int case_build(attention_case *c, const ffpa_problem *problem, bool with_dlse,
               ffpa_context *context)
{
    ffpa_report report = {.struct_size = sizeof report};
    *c = (attention_case){.problem = *problem};
    ffpa_status status = ffpa_explain(context, problem, &report);
    if (status != FFPA_OK) return complain_library(status);
    if (!few_rows(problem))
        return complain(LIB_FAILED, "%s: 2^31 packed rows or pages, or more: too many to make",
                        problem_print(problem).text);
    c->forward = ffpa_forward_params_init();
    c->backward = ffpa_backward_params_init();
    c->backward.forward = &c->forward;
    set_options(c);
    if (!make_inputs(c, with_dlse) || !make_outputs(c, problem->dtype)) return out_of_memory(c);
    return DONE;
}

static bool convert_inputs(attention_case *c, const attention_case *from)
{
    const ffpa_forward_params *f = &from->forward;
    const ffpa_backward_params *g = &from->backward;
    return tensor_convert(&c->memory, &c->forward.q, &f->q, FFPA_F64) &&
           tensor_convert(&c->memory, &c->forward.k, &f->k, FFPA_F64) &&
           tensor_convert(&c->memory, &c->forward.v, &f->v, FFPA_F64) &&
           (!g->dout.data ||
            tensor_convert(&c->memory, &c->backward.dout, &g->dout, FFPA_F64)) &&
           (!g->dlse.data || tensor_convert(&c->memory, &c->backward.dlse, &g->dlse, FFPA_F64));
}

int case_twin(attention_case *c, const attention_case *from, int32_t dtype)
{
    *c = *from;
    c->memory = (arena){0};
    c->backward.forward = &c->forward;
    c->forward.rows = c->rows.count > 0 ? &c->rows : NULL;
    if (dtype == FFPA_F64 && !convert_inputs(c, from)) return out_of_memory(c);
    if (dtype == 0 && from->backward.dout.data && /* dout goes with o */
        !tensor_convert(&c->memory, &c->backward.dout, &from->backward.dout, FFPA_F32))
        return out_of_memory(c);
    return make_outputs(c, dtype ? dtype : FFPA_F32) ? DONE : out_of_memory(c);
}

void case_free(attention_case *c) { arena_free(&c->memory); }

int case_run(attention_case *c, ffpa_context *context)
{
    ffpa_status status = ffpa_forward(context, &c->forward);
    if (status == FFPA_OK && c->problem.op == FFPA_BACKWARD)
        status = ffpa_backward(context, &c->backward);
    return status == FFPA_OK ? DONE : complain_library(status);
}

bool case_output(const attention_case *c, int position, const char **name, ffpa_tensor *tensor)
{
    const struct {
        const char *name;
        const ffpa_tensor *tensor;
    } all[] = {{"o", &c->forward.o},         {"lse", &c->forward.lse},
               {"dq", &c->backward.dq},      {"dk", &c->backward.dk},
               {"dv", &c->backward.dv},      {"dmask", &c->backward.dmask},
               {"dsink", &c->backward.dsink}};
    if (position >= (int)(sizeof all / sizeof *all)) return false;
    *name = all[position].name;
    *tensor = *all[position].tensor;
    return true;
}
