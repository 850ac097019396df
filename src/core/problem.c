/* problem.c - a problem from a call or from an ask. The rules are in checks.c. */
#include "core/problem.h"

#include "core/checks.h"

#include <inttypes.h>
#include <string.h>

/* Heads times rows that a problem may have: beyond any memory, and so few that no product of sizes in a
 * plan overflows. */
static const int64_t MOST_ROWS = (int64_t)1 << 40;

static bool few_enough(int64_t heads, int64_t rows)
{
    int64_t product;
    return !__builtin_mul_overflow(heads ? heads : 1, rows ? rows : 1, &product) &&
           product <= MOST_ROWS;
}

static ffpa_status check_amount(const problem *p, const char *fn)
{
    const ffpa_problem *a = &p->ask;
    CHECK(few_enough(a->hq, p->total_q) && few_enough(a->hq, a->nq) &&
              few_enough(a->hq, a->b) && few_enough(a->hk, p->total_k) &&
              few_enough(a->hk, a->nk) && few_enough(a->hk, a->b),
          FFPA_E_INVALID,
          "%s: B=%" PRId64 " Hq=%" PRId64 " Hk=%" PRId64 " Nq=%" PRId64 " Nk=%" PRId64
          ": more than 2^40 rows of queries or keys, over all sequences and heads",
          fn, a->b, a->hq, a->hk, a->nq, a->nk);
    return FFPA_OK;
}

static int64_t at_most(int64_t hint, int64_t total)
{
    return hint > 0 && hint < total ? hint : total;
}

/* Where lengths come from, and the sizes that follow. */
static void fill_sizes(problem *p, const call *c)
{
    const ffpa_forward_params *f = &c->f;
    ffpa_problem *a = &p->ask;
    const bool packed_q = f->varlen && f->varlen->cu_q, packed_k = f->varlen && f->varlen->cu_k;
    a->b = f->varlen ? f->varlen->batch : f->q.shape[0];
    a->hq = f->q.shape[1];
    a->hk = f->k.shape[1];
    a->d = f->q.shape[3];
    a->dv = f->v.shape[3];
    p->total_q = packed_q ? f->q.shape[2] : a->b * f->q.shape[2];
    a->nq = packed_q ? at_most(f->varlen->max_q, f->q.shape[2]) : f->q.shape[2];
    p->sources = (packed_q ? VARLEN_Q : 0u) | (packed_k ? VARLEN_K : 0u);
    if (f->kv_cache) {
        const bool paged = f->kv_cache->block_table;
        a->nk = paged ? f->kv_cache->table_width * f->k.shape[2] : f->k.shape[2];
        a->page = paged ? f->k.shape[2] : 0;
        p->total_k = a->b * a->nk;
        p->sources |= CACHE_LENGTHS | (paged ? CACHE_PAGED : 0u);
        p->new_keys = f->kv_cache->k_new.shape[2] > 0;
    } else {
        a->nk = packed_k ? at_most(f->varlen->max_k, f->k.shape[2]) : f->k.shape[2];
        p->total_k = packed_k ? f->k.shape[2] : a->b * f->k.shape[2];
    }
}

static void fill_options(problem *p, const call *c)
{
    const ffpa_forward_params *f = &c->f;
    ffpa_problem *a = &p->ask;
    a->causal = f->causal;
    a->has_window = (f->flags & FFPA_WINDOW) != 0;
    a->window_left = a->has_window ? f->window_left : 0;
    a->window_right = a->has_window ? f->window_right : 0;
    if (tensor_given(&f->mask)) {
        a->mask_dtype = f->mask.dtype;
        for (int i = 0; i < 4; i++)
            a->mask_axes |= (f->mask.shape[i] != 1 ? 1u : 0u) << i;
    }
    a->softcap = f->softcap;
    a->has_scale = (f->flags & FFPA_SCALE) != 0;
    a->scale = a->has_scale ? f->scale : 0.0f;
    a->alibi = tensor_given(&f->alibi);
    a->sink = tensor_given(&f->sink);
    p->dropping = f->dropout != NULL;
    a->dropout = f->dropout ? f->dropout->p : 0.0f;
    p->row_subset = f->rows != NULL;
}

/* Does every row start at 16 bytes, its elements side by side? */
static bool rows_aligned(const ffpa_tensor *t)
{
    const int64_t bytes = (int64_t)dtype_bytes(t->dtype);
    bool aligned = (uintptr_t)t->data % 16 == 0 && (t->stride[3] == 1 || t->shape[3] <= 1);
    for (int i = 0; i < 3; i++)
        aligned = aligned && (t->shape[i] <= 1 || t->stride[i] % 16 * bytes % 16 == 0);
    return aligned;
}

/* Are its rows aligned, and does every longer axis lead forwards, by less than 2^40 bytes? */
static bool boxed(const ffpa_tensor *t)
{
    const int64_t most = ((int64_t)1 << 40) / (int64_t)dtype_bytes(t->dtype);
    bool fits = rows_aligned(t);
    for (int i = 0; i < 3; i++)
        fits = fits && (t->shape[i] <= 1 || (t->stride[i] > 0 && t->stride[i] < most));
    return fits;
}

/* ALIGNED_* and BOXED_* of device tensors. */
static uint32_t where_rows_are(const call *c)
{
    const ffpa_forward_params *f = &c->f;
    const ffpa_backward_params *g = &c->g;
    uint32_t bits = (rows_aligned(&f->q) ? ALIGNED_Q : 0u) |
                    (rows_aligned(&f->k) ? ALIGNED_K : 0u) |
                    (rows_aligned(&f->v) ? ALIGNED_V : 0u) | (boxed(&f->q) ? BOXED_Q : 0u) |
                    (boxed(&f->k) ? BOXED_K : 0u) | (boxed(&f->v) ? BOXED_V : 0u) |
                    (boxed(&f->o) ? BOXED_O : 0u);
    if (c->op != FFPA_BACKWARD) return bits;
    bits |= (rows_aligned(&g->dout) ? ALIGNED_DOUT : 0u) | (boxed(&g->dout) ? BOXED_DOUT : 0u);
    if (tensor_given(&g->dq) && boxed(&g->dq)) bits |= BOXED_DQ;
    if (tensor_given(&g->dk) && boxed(&g->dk)) bits |= BOXED_DK;
    if (tensor_given(&g->dv) && boxed(&g->dv)) bits |= BOXED_DV;
    return bits;
}

static int32_t dtype_if_given(const ffpa_tensor *t) { return tensor_given(t) ? t->dtype : 0; }

static void fill_gradients(problem *p, const ffpa_backward_params *g)
{
    p->outputs = (tensor_given(&g->dq) ? OUT_DQ : 0u) | (tensor_given(&g->dk) ? OUT_DK : 0u) |
                 (tensor_given(&g->dv) ? OUT_DV : 0u) |
                 (tensor_given(&g->dmask) ? OUT_DMASK : 0u) |
                 (tensor_given(&g->dsink) ? OUT_DSINK : 0u);
    p->dlse = tensor_given(&g->dlse);
    p->dout_dtype = g->dout.dtype;
    p->dq_dtype = dtype_if_given(&g->dq);
    p->dk_dtype = dtype_if_given(&g->dk);
    p->dv_dtype = dtype_if_given(&g->dv);
    p->dmask_dtype = dtype_if_given(&g->dmask);
    p->workspace_limit_bytes = g->workspace_limit_bytes;
}

ffpa_status problem_of_call(problem *p, const call *c, const char *fn)
{
    TRY(call_check(c, fn));
    memset(p, 0, sizeof *p);
    p->ask.struct_size = sizeof p->ask;
    p->ask.op = (int32_t)c->op;
    p->ask.dtype = c->f.q.dtype;
    fill_sizes(p, c);
    fill_options(p, c);
    p->device = c->f.q.device;
    p->o_dtype = c->f.o.dtype;
    p->outputs = tensor_given(&c->f.lse) ? OUT_LSE : 0u;
    p->workspace_limit_bytes = c->f.workspace_limit_bytes;
    if (c->op == FFPA_BACKWARD) fill_gradients(p, &c->g);
    if (p->device != FFPA_HOST) p->aligned = where_rows_are(c);
    if (p->workspace_limit_bytes == 0) p->workspace_limit_bytes = (uint64_t)1 << 30;
    TRY(ask_check(&p->ask, fn));
    return check_amount(p, fn);
}

/* ---- from an ask: the call with contiguous tensors that it describes ------------------------- */

ffpa_status problem_of_ask(problem *p, const ffpa_problem *ask, const char *fn)
{
    TRY(ask_check(ask, fn));
    TRY(mask_check(ask->mask_dtype != 0, ask->n_lengths && !ask->page, fn));
    memset(p, 0, sizeof *p);
    p->ask = *ask;
    p->o_dtype = ask->dtype;
    p->dropping = ask->dropout > 0.0f;
    p->outputs = OUT_LSE;
    if (ask->op == FFPA_BACKWARD) {
        p->outputs = OUT_DQ | OUT_DK | OUT_DV |
                     (ask->mask_dtype && ask->mask_dtype != FFPA_BOOL ? OUT_DMASK : 0u) |
                     (ask->sink ? OUT_DSINK : 0u);
        p->dout_dtype = p->dq_dtype = p->dk_dtype = p->dv_dtype = ask->dtype;
        p->dmask_dtype = p->outputs & OUT_DMASK ? ask->mask_dtype : 0;
    }
    p->total_q = few_enough(ask->b, ask->nq) ? ask->b * ask->nq : INT64_MAX;
    p->total_k = few_enough(ask->b, ask->nk) ? ask->b * ask->nk : INT64_MAX;
    if (ask->n_lengths && !ask->page) {
        p->sources = VARLEN_Q | VARLEN_K;
        p->total_q = p->total_k = 0;
        for (int i = 0; i < ask->n_lengths; i++)
            p->total_q += ask->lengths[i];
        p->total_k = p->total_q;
    }
    if (ask->page) p->sources = CACHE_LENGTHS | CACHE_PAGED;
    p->workspace_limit_bytes = (uint64_t)1 << 30;
    return check_amount(p, fn);
}

void problem_move(problem *p, int32_t device)
{
    const ffpa_problem *a = &p->ask;
    const int64_t bytes = (int64_t)dtype_bytes(a->dtype);
    p->device = device;
    const bool backward = a->op == FFPA_BACKWARD;
    p->aligned = 0;
    if (a->d * bytes % 16 == 0) p->aligned |= ALIGNED_Q | ALIGNED_K | BOXED_Q | BOXED_K;
    if (a->dv * bytes % 16 == 0) p->aligned |= ALIGNED_V | BOXED_V | BOXED_O;
    if (!backward) return;
    if (p->aligned & ALIGNED_Q) p->aligned |= BOXED_DQ | BOXED_DK;
    if (p->aligned & ALIGNED_V) p->aligned |= ALIGNED_DOUT | BOXED_DOUT | BOXED_DV;
}

/* ---- causal and window ------------------------------------------------------------------------ */

key_range key_range_of(const ffpa_problem *a, int64_t nq, int64_t nk, int64_t i)
{
    const int64_t centre = a->causal == FFPA_TOP_LEFT ? i : i + nk - nq;
    int64_t first = 0, last = nk; /* a window wider than any sequence must not overflow */
    if (a->causal != FFPA_CAUSAL_NONE && centre + 1 < last) last = centre + 1;
    if (a->has_window && a->window_right >= 0 && a->window_right < nk - centre - 1)
        last = centre + a->window_right + 1 < last ? centre + a->window_right + 1 : last;
    if (a->has_window && a->window_left >= 0 && a->window_left < centre)
        first = centre - a->window_left;
    if (last < 0) last = 0;
    if (first > last) first = last;
    return (key_range){first, last};
}
