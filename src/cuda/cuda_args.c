/* cuda_args.c - sequences, scores and dropout of a call for the kernels. */
#include "cuda/cuda_args.h"

#include "core/checks.h"
#include "core/dropout.h"

#include <inttypes.h>
#include <stdio.h>

k_tensor args_tensor(const ffpa_tensor *t)
{
    return (k_tensor){t->data, t->shape[0] > 1 ? t->stride[0] : 0,
                      t->shape[1] > 1 ? t->stride[1] : 0, t->shape[2] > 1 ? t->stride[2] : 0,
                      t->shape[3] > 1 ? t->stride[3] : 0};
}

k_sequences args_sequences(const problem *p, const call *c)
{
    const ffpa_forward_params *f = &c->f;
    k_sequences s = {
        .batch = (int)p->ask.b, .nq = (int)f->q.shape[2], .nk = (int)f->k.shape[2]};
    s.total_q = p->total_q;
    s.total_k = p->total_k;
    s.entries = f->k.shape[0];
    if (f->varlen) {
        s.cu_q = f->varlen->cu_q;
        s.cu_k = f->varlen->cu_k;
        s.index64 = f->varlen->index_dtype == FFPA_I64;
    }
    if (f->kv_cache) {
        const ffpa_kv_cache *k = f->kv_cache;
        s.lengths = k->lengths;
        s.batch_index = k->batch_index;
        s.block_table = k->block_table;
        s.table_stride = k->table_stride ? k->table_stride : k->table_width;
        s.table_width = (int)k->table_width;
        s.page_size = (int)p->ask.page;
        s.new_keys = (int)k->k_new.shape[2];
        s.index64 = k->index_dtype == FFPA_I64;
        s.nk = (int)p->ask.nk; /* capacity */
    }
    return s;
}

key_window args_window(const ffpa_problem *a)
{
    key_window w = {-1, -1, a->causal == FFPA_TOP_LEFT};
    /* Lengths are below 2^31, so a wider window is no window. */
    if (a->has_window && a->window_left >= 0 && a->window_left <= INT32_MAX)
        w.left = (int)a->window_left;
    if (a->has_window && a->window_right >= 0 && a->window_right <= INT32_MAX)
        w.right = (int)a->window_right;
    if (a->causal != FFPA_CAUSAL_NONE) w.right = 0;
    return w;
}

k_scores args_scores(const call *c)
{
    const ffpa_forward_params *f = &c->f;
    const ffpa_problem a = {.causal = f->causal,
                            .has_window = (f->flags & FFPA_WINDOW) != 0,
                            .window_left = f->window_left,
                            .window_right = f->window_right};
    const key_window w = args_window(&a);
    k_scores s = {
        .scale = (float)call_scale(c), .softcap = f->softcap, .left = w.left, .right = w.right};
    s.top_left = w.top_left;
    s.mask = args_tensor(&f->mask);
    s.alibi = f->alibi.data;
    s.alibi_sb = args_tensor(&f->alibi).sb;
    s.alibi_sh = args_tensor(&f->alibi).sh;
    s.sink = f->sink.data;
    s.sink_sh = args_tensor(&f->sink).sh;
    return s;
}

k_dropout args_dropout(const call *c)
{
    const ffpa_dropout *d = c->f.dropout;
    if (!d) return (k_dropout){.keep_scale = 1.0f};
    const dropout_key key = dropout_key_make(d->p, d->seed, d->offset);
    return (k_dropout){.seed_ptr = (const k_u64 *)(const void *)d->seed_ptr,
                       .offset_ptr = (const k_u64 *)(const void *)d->offset_ptr,
                       .seed = d->seed,
                       .offset = d->offset,
                       .threshold = key.threshold,
                       .keep_scale = key.keep_scale};
}

fwd_args args_forward(const call *c, const k_sequences *seq)
{
    const ffpa_forward_params *f = &c->f;
    fwd_args args = {.q = args_tensor(&f->q),
                     .k = args_tensor(&f->k),
                     .v = args_tensor(&f->v),
                     .o = args_tensor(&f->o),
                     .lse = args_tensor(&f->lse),
                     .seq = *seq,
                     .scores = args_scores(c),
                     .dropout = args_dropout(c),
                     .hq = (int)f->q.shape[1],
                     .hk = (int)f->k.shape[1]};
    args.group = args.hq / args.hk;
    return args;
}

int macro_range(const problem *p)
{
    const key_window w = args_window(&p->ask);
    return w.left >= 0 || w.right >= 0;
}

int macro_cache(const problem *p)
{
    return p->sources & CACHE_PAGED ? 2 : p->sources & CACHE_LENGTHS ? 1 : 0;
}

int macro_varlen(const problem *p) { return (p->sources & (VARLEN_Q | VARLEN_K)) != 0; }

/* Backward has a sink's share in LSE: its kernels need not know of it. */
static bool sink_in_kernel(const problem *p)
{
    return p->ask.sink && p->ask.op == FFPA_FORWARD;
}

void config_set_scores(variant *v, const problem *p)
{
    const ffpa_problem *a = &p->ask;
    config_set(v, "RANGE", macro_range(p));
    config_set(v, "MASK", a->mask_dtype);
    config_set(v, "SOFTCAP", a->softcap > 0);
    config_set(v, "ALIBI", a->alibi);
    config_set(v, "SINK", sink_in_kernel(p));
    config_set(v, "DROPOUT", p->dropping);
    config_set(v, "VARLEN", macro_varlen(p));
}

score_name score_name_of(const problem *p)
{
    const ffpa_problem *a = &p->ask;
    score_name name;
    snprintf(name.text, sizeof name.text, "%s%s%s%s%s%s%s", macro_range(p) ? "_range" : "",
             a->mask_dtype ? "_mask" : "", a->softcap > 0 ? "_softcap" : "",
             a->alibi ? "_alibi" : "", sink_in_kernel(p) ? "_sink" : "",
             p->dropping ? "_dropout" : "", macro_varlen(p) ? "_varlen" : "");
    return name;
}

int64_t tile_lines(int64_t batch, int64_t n, int64_t total, bool packed, int64_t tile)
{
    return packed ? total / tile + batch : batch * ceil_div(n, tile);
}

bool args_fit(const problem *p, char *why, size_t why_bytes)
{
    const ffpa_problem *a = &p->ask;
    const int64_t most =
        INT32_MAX / 4; /* leaves room for rounding up to tiles and for i + Nk - Nq */
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"B", a->b},
                 {"Hq", a->hq},
                 {"Nq", a->nq},
                 {"Nk", a->nk},
                 {"rows of q", p->total_q},
                 {"rows of k", p->sources & VARLEN_K ? p->total_k : 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].value > most) {
            snprintf(why, why_bytes, "%s=%" PRId64 " is above %" PRId64, sizes[i].name,
                     sizes[i].value, most);
            return false;
        }
    return true;
}
