/* checks.c - shapes, dtypes and options. */
#include "core/checks.h"

#include <inttypes.h>
#include <math.h>

enum { MAX_D = 1024 };

bool tensor_given(const ffpa_tensor *t)
{
    return t->data || t->shape[0] || t->shape[1] || t->shape[2] || t->shape[3];
}

static bool is_float(int32_t dtype)
{
    return dtype == FFPA_F32 || dtype == FFPA_F16 || dtype == FFPA_BF16 || dtype == FFPA_F64;
}

/* ---- rules without tensors -------------------------------------------------------------------- */

/* Of q, k and v. */
static ffpa_status check_dtype(int32_t dtype, const char *fn)
{
    CHECK(dtype != FFPA_E4M3 && dtype != FFPA_E5M2, FFPA_E_UNSUPPORTED,
          "%s: dtype %s: quantised inputs are declared but not implemented in this version", fn,
          dtype_name(dtype));
    CHECK(is_float(dtype), FFPA_E_INVALID, "%s: q.dtype=%d (%s) is none of f32, f16, bf16, f64",
          fn, dtype, dtype_name(dtype));
    return FFPA_OK;
}

static ffpa_status check_sizes(const ffpa_problem *a, const char *fn)
{
    CHECK(a->b >= 0 && a->hq >= 0 && a->hk >= 0 && a->nq >= 0 && a->nk >= 0, FFPA_E_INVALID,
          "%s: B=%" PRId64 " Hq=%" PRId64 " Hk=%" PRId64 " Nq=%" PRId64 " Nk=%" PRId64
          ": none may be negative",
          fn, a->b, a->hq, a->hk, a->nq, a->nk);
    CHECK(a->d >= 0 && a->d <= MAX_D, FFPA_E_INVALID,
          "%s: D=%" PRId64 " (q.shape[3]) is not in 0..%d", fn, a->d, MAX_D);
    CHECK(a->dv >= 0 && a->dv <= MAX_D, FFPA_E_INVALID,
          "%s: Dv=%" PRId64 " (v.shape[3]) is not in 0..%d", fn, a->dv, MAX_D);
    CHECK(a->hk > 0 ? a->hq % a->hk == 0 : a->hq == 0, FFPA_E_INVALID,
          "%s: Hk=%" PRId64 " (k.shape[1]) does not divide Hq=%" PRId64 " (q.shape[1])", fn,
          a->hk, a->hq);
    return FFPA_OK;
}

static ffpa_status check_options(const ffpa_problem *a, const char *fn)
{
    CHECK(a->causal >= FFPA_CAUSAL_NONE && a->causal <= FFPA_BOTTOM_RIGHT, FFPA_E_INVALID,
          "%s: causal=%d is not a value of ffpa_causal (0, 1, 2)", fn, a->causal);
    CHECK(isfinite(a->softcap) && a->softcap >= 0.0f, FFPA_E_INVALID,
          "%s: softcap=%g must be finite and not negative (0 = off)", fn, (double)a->softcap);
    CHECK(!a->has_scale || isfinite(a->scale), FFPA_E_INVALID, "%s: scale=%g must be finite",
          fn, (double)a->scale);
    CHECK(a->dropout >= 0.0f && a->dropout <= 1.0f, FFPA_E_INVALID,
          "%s: dropout p=%g is not in 0..1", fn, (double)a->dropout);
    CHECK(a->mask_dtype == 0 || a->mask_dtype == FFPA_BOOL ||
              (is_float(a->mask_dtype) && a->mask_dtype != FFPA_F64),
          FFPA_E_INVALID, "%s: mask.dtype=%s is none of bool, f32, f16, bf16", fn,
          dtype_name(a->mask_dtype));
    CHECK(a->mask_axes <= 15u && (a->mask_dtype || a->mask_axes == 0), FFPA_E_INVALID,
          "%s: mask_axes=%u must be 0..15, and 0 without a mask", fn, a->mask_axes);
    return FFPA_OK;
}

static ffpa_status check_lengths(const ffpa_problem *a, const char *fn)
{
    int64_t longest = 0;
    CHECK(a->page >= 0 && a->page <= INT32_MAX, FFPA_E_INVALID,
          "%s: page=%" PRId64 " is not in 0..2^31-1", fn, a->page);
    CHECK(a->n_lengths >= 0 && a->n_lengths <= FFPA_MAX_LENGTHS, FFPA_E_INVALID,
          "%s: varlen has %d lengths, at most %d fit", fn, a->n_lengths, FFPA_MAX_LENGTHS);
    if (a->n_lengths == 0) return FFPA_OK;
    CHECK(a->n_lengths == a->b, FFPA_E_INVALID,
          "%s: varlen has %d lengths for B=%" PRId64 " sequences", fn, a->n_lengths, a->b);
    for (int i = 0; i < a->n_lengths; i++) {
        CHECK(a->lengths[i] >= 0, FFPA_E_INVALID,
              "%s: varlen length %d is %" PRId64 ", negative", fn, i, a->lengths[i]);
        longest = a->lengths[i] > longest ? a->lengths[i] : longest;
    }
    CHECK(longest == a->nk && (a->page || a->nq == longest), FFPA_E_INVALID,
          "%s: the longest varlen length is %" PRId64 ", but Nq=%" PRId64 " Nk=%" PRId64
          "; it must equal Nk, and without page<n> also Nq",
          fn, longest, a->nq, a->nk);
    return FFPA_OK;
}

ffpa_status mask_check(bool mask, bool packed, const char *fn)
{
    CHECK(
        !mask || !packed, FFPA_E_UNSUPPORTED,
        "%s: mask with varlen: a mask indexes dense rows and keys; unpack the sequences or use "
        "causal, window and lengths",
        fn);
    return FFPA_OK;
}

ffpa_status ask_check(const ffpa_problem *a, const char *fn)
{
    CHECK(a->op == FFPA_FORWARD || a->op == FFPA_BACKWARD, FFPA_E_INVALID,
          "%s: op=%d is neither forward (1) nor backward (2)", fn, a->op);
    TRY(check_dtype(a->dtype, fn));
    TRY(check_sizes(a, fn));
    TRY(check_options(a, fn));
    TRY(check_lengths(a, fn));
    CHECK(a->op == FFPA_FORWARD || a->page == 0, FFPA_E_INVALID,
          "%s: page=%" PRId64 ": a KV cache has no backward", fn, a->page);
    return FFPA_OK;
}

/* ---- rules between tensors -------------------------------------------------------------------- */

/* A tensor that must have exactly these sizes. */
static ffpa_status expect_shape(const ffpa_tensor *t, const int64_t want[4], const char *fn,
                                const char *name)
{
    byte_range range;
    for (int i = 0; i < 4; i++)
        CHECK(t->shape[i] == want[i], FFPA_E_INVALID,
              "%s: %s.shape[%d]=%" PRId64 ", expected %" PRId64 " (shape [%" PRId64 ",%" PRId64
              ",%" PRId64 ",%" PRId64 "])",
              fn, name, i, t->shape[i], want[i], want[0], want[1], want[2], want[3]);
    return view_range(t, fn, name, &range);
}

/* A tensor whose axes are full or 1, as `want` says. */
static ffpa_status expect_broadcast(const ffpa_tensor *t, const int64_t want[4], const char *fn,
                                    const char *name)
{
    byte_range range;
    for (int i = 0; i < 4; i++)
        CHECK(t->shape[i] == want[i] || t->shape[i] == 1, FFPA_E_INVALID,
              "%s: %s.shape[%d]=%" PRId64 " must be 1 or %" PRId64, fn, name, i, t->shape[i],
              want[i]);
    return view_range(t, fn, name, &range);
}

ffpa_status dtype_check(const ffpa_tensor *t, const char *fn, const char *name)
{
    CHECK(dtype_bytes(t->dtype) > 0, FFPA_E_INVALID,
          "%s: %s.dtype=%d is not a value of ffpa_dtype", fn, name, t->dtype);
    return FFPA_OK;
}

static ffpa_status expect_dtype(const ffpa_tensor *t, int32_t want, int32_t other,
                                const char *fn, const char *name)
{
    TRY(dtype_check(t, fn, name));
    CHECK(t->dtype == want || t->dtype == other, FFPA_E_INVALID,
          other == want ? "%s: %s.dtype=%s, expected %s" : "%s: %s.dtype=%s, expected %s or %s",
          fn, name, dtype_name(t->dtype), dtype_name(want), dtype_name(other));
    return FFPA_OK;
}

static ffpa_status expect_device(const ffpa_tensor *t, const call *c, const char *fn,
                                 const char *name)
{
    CHECK(t->device == c->f.q.device, FFPA_E_INVALID,
          "%s: %s.device=%d, but q.device=%d; all tensors must be on one device (0 = host)", fn,
          name, t->device, c->f.q.device);
    return FFPA_OK;
}

/* An output or input gradient-like tensor: shape, dtype (or the other), device. */
static ffpa_status expect(const ffpa_tensor *t, const int64_t shape[4], int32_t dtype,
                          int32_t other, const call *c, const char *fn, const char *name)
{
    TRY(expect_dtype(t, dtype, other, fn, name));
    TRY(expect_shape(t, shape, fn, name));
    return expect_device(t, c, fn, name);
}

/* f32 for statistics and unrounded outputs, f64 beside f64 inputs. */
static int32_t wide(const call *c) { return c->f.q.dtype == FFPA_F64 ? FFPA_F64 : FFPA_F32; }

/* O, a gradient, or dO: of the dtype that it goes with, or f32; or f64 beside f64 inputs. */
static ffpa_status expect_result(const ffpa_tensor *t, const int64_t shape[4], int32_t dtype,
                                 const call *c, const char *fn, const char *name)
{
    const int32_t other = t->dtype == wide(c) ? wide(c) : FFPA_F32;
    return expect(t, shape, dtype, other, c, fn, name);
}

static ffpa_status check_varlen(const call *c, const char *fn)
{
    const ffpa_varlen *v = c->f.varlen;
    if (!v) return FFPA_OK;
    CHECK(v->cu_q || v->cu_k, FFPA_E_INVALID, "%s: varlen has neither cu_q nor cu_k", fn);
    CHECK(v->batch >= 0, FFPA_E_INVALID, "%s: varlen.batch=%" PRId64 " is negative", fn,
          v->batch);
    CHECK(v->index_dtype == FFPA_I32 || v->index_dtype == FFPA_I64, FFPA_E_INVALID,
          "%s: varlen.index_dtype=%d is neither i32 nor i64", fn, v->index_dtype);
    CHECK(v->max_q >= 0 && v->max_k >= 0, FFPA_E_INVALID,
          "%s: varlen.max_q=%" PRId64 " max_k=%" PRId64 ": hints may not be negative", fn,
          v->max_q, v->max_k);
    CHECK(!v->cu_k || !c->f.kv_cache, FFPA_E_INVALID,
          "%s: varlen.cu_k and kv_cache both say where the keys are; give one", fn);
    return mask_check(tensor_given(&c->f.mask), true, fn);
}

static ffpa_status check_cache(const call *c, const char *fn)
{
    const ffpa_kv_cache *k = c->f.kv_cache;
    if (!k) return FFPA_OK;
    CHECK(c->op == FFPA_FORWARD, FFPA_E_INVALID, "%s: kv_cache: a KV cache has no backward",
          fn);
    CHECK(k->lengths, FFPA_E_INVALID, "%s: kv_cache.lengths is NULL; it is required", fn);
    CHECK(k->index_dtype == FFPA_I32 || k->index_dtype == FFPA_I64, FFPA_E_INVALID,
          "%s: kv_cache.index_dtype=%d is neither i32 nor i64", fn, k->index_dtype);
    CHECK(!k->block_table || !k->batch_index, FFPA_E_INVALID,
          "%s: kv_cache has both block_table and batch_index; pages already choose the entry",
          fn);
    CHECK(k->table_width >= 0 && (!k->table_stride || k->table_stride >= k->table_width),
          FFPA_E_INVALID, "%s: kv_cache.table_stride=%" PRId64 " is below table_width=%" PRId64,
          fn, k->table_stride, k->table_width);
    CHECK(!k->block_table || c->f.k.shape[2] > 0 || c->f.k.shape[0] == 0, FFPA_E_INVALID,
          "%s: k.shape[2]=0 is no page size", fn);
    const int64_t batch = c->f.varlen ? c->f.varlen->batch : c->f.q.shape[0];
    int64_t keys;
    CHECK(
        !__builtin_mul_overflow(k->block_table ? k->table_width : 1, c->f.k.shape[2], &keys) &&
            !__builtin_mul_overflow(keys, batch, &keys),
        FFPA_E_INVALID,
        "%s: kv_cache.table_width=%" PRId64 " pages of k.shape[2]=%" PRId64 " rows for %" PRId64
        " sequences are more than 2^63 keys",
        fn, k->table_width, c->f.k.shape[2], batch);
    return FFPA_OK;
}

/* Most keys a sequence can have. */
static int64_t most_keys(const call *c)
{
    const ffpa_kv_cache *k = c->f.kv_cache;
    return k && k->block_table ? k->table_width * c->f.k.shape[2] : c->f.k.shape[2];
}

/* q, k, v, o, lse and appended keys: who must equal whom, by where rows and keys come from. */
static ffpa_status check_operands(const call *c, const char *fn)
{
    const ffpa_forward_params *f = &c->f;
    const ffpa_varlen *v = f->varlen;
    const bool packed_q = v && v->cu_q, packed_k = v && v->cu_k;
    const int64_t batch = v ? v->batch : f->q.shape[0];
    const int64_t k_batch = packed_k ? 1 : f->kv_cache ? f->k.shape[0] : batch;
    const int64_t q_want[4] = {packed_q ? 1 : batch, f->q.shape[1], f->q.shape[2],
                               f->q.shape[3]};
    const int64_t k_want[4] = {k_batch, f->k.shape[1], f->k.shape[2], f->q.shape[3]};
    const int64_t v_want[4] = {k_batch, f->k.shape[1], f->k.shape[2], f->v.shape[3]};
    const int64_t o_want[4] = {q_want[0], q_want[1], q_want[2], f->v.shape[3]};
    const int64_t lse_want[4] = {q_want[0], q_want[1], q_want[2], 1};
    const int32_t dtype = f->q.dtype;
    TRY(expect_shape(&f->q, q_want, fn, "q"));
    TRY(expect(&f->k, k_want, dtype, dtype, c, fn, "k"));
    TRY(expect(&f->v, v_want, dtype, dtype, c, fn, "v"));
    TRY(expect_result(&f->o, o_want, dtype, c, fn, "o"));
    if (tensor_given(&f->lse)) TRY(expect(&f->lse, lse_want, wide(c), wide(c), c, fn, "lse"));
    if (f->kv_cache && (tensor_given(&c->cache.k_new) || tensor_given(&c->cache.v_new))) {
        const int64_t rows = c->cache.k_new.shape[2];
        const int64_t kn_want[4] = {batch, k_want[1], rows, k_want[3]};
        const int64_t vn_want[4] = {batch, k_want[1], rows, v_want[3]};
        TRY(expect(&c->cache.k_new, kn_want, dtype, dtype, c, fn, "kv_cache.k_new"));
        TRY(expect(&c->cache.v_new, vn_want, dtype, dtype, c, fn, "kv_cache.v_new"));
        CHECK(rows <= most_keys(c), FFPA_E_INVALID,
              "%s: kv_cache.k_new.shape[2]=%" PRId64 " new keys, the cache holds %" PRId64
              " of a sequence",
              fn, rows, most_keys(c));
    }
    return FFPA_OK;
}

static ffpa_status check_extras(const call *c, const char *fn)
{
    const ffpa_forward_params *f = &c->f;
    const int64_t batch = f->varlen ? f->varlen->batch : f->q.shape[0], hq = f->q.shape[1];
    const int64_t mask_want[4] = {batch, hq, f->q.shape[2], most_keys(c)};
    const int64_t slope_want[4] = {batch, hq, 1, 1}, sink_want[4] = {1, hq, 1, 1};
    if (tensor_given(&f->mask)) {
        TRY(dtype_check(&f->mask, fn, "mask"));
        TRY(expect_broadcast(&f->mask, mask_want, fn, "mask"));
        TRY(expect_device(&f->mask, c, fn, "mask"));
    }
    if (tensor_given(&f->alibi)) {
        CHECK(f->alibi.shape[1] == hq, FFPA_E_INVALID,
              "%s: alibi.shape[1]=%" PRId64 ", expected %" PRId64, fn, f->alibi.shape[1], hq);
        TRY(expect_dtype(&f->alibi, FFPA_F32, FFPA_F32, fn, "alibi"));
        TRY(expect_broadcast(&f->alibi, slope_want, fn, "alibi"));
        TRY(expect_device(&f->alibi, c, fn, "alibi"));
    }
    if (tensor_given(&f->sink))
        TRY(expect(&f->sink, sink_want, FFPA_F32, FFPA_F32, c, fn, "sink"));
    CHECK(!f->quant, FFPA_E_UNSUPPORTED,
          "%s: quant: quantised inputs are declared but not implemented in this version", fn);
    CHECK((f->flags & ~(FFPA_SCALE | FFPA_WINDOW | FFPA_DETERMINISTIC)) == 0, FFPA_E_NEWER,
          "%s: flags=0x%x has a bit that this library does not know", fn, f->flags);
    CHECK(!f->rows || f->rows->count >= 0, FFPA_E_INVALID,
          "%s: rows.count=%" PRId64 " is negative", fn, f->rows ? f->rows->count : 0);
    CHECK(!f->rows || f->rows->count == 0 || f->rows->rows, FFPA_E_INVALID,
          "%s: rows.rows is NULL", fn);
    for (int64_t i = 0; f->rows && i < f->rows->count; i++)
        CHECK(f->rows->rows[i] > (i ? f->rows->rows[i - 1] : -1), FFPA_E_INVALID,
              "%s: rows.rows[%" PRId64 "]=%" PRId64
              "; rows must be increasing and not negative",
              fn, i, f->rows->rows[i]);
    return FFPA_OK;
}

/* One requested gradient: the shape of what it is the gradient of. */
static ffpa_status check_gradient(const ffpa_tensor *grad, const ffpa_tensor *of, const call *c,
                                  const char *fn, const char *name)
{
    return tensor_given(grad) ? expect_result(grad, of->shape, of->dtype, c, fn, name)
                              : FFPA_OK;
}

static ffpa_status check_backward(const call *c, const char *fn)
{
    const ffpa_forward_params *f = &c->f;
    const ffpa_backward_params *g = &c->g;
    const int64_t *n = f->q.shape; /* rows have an LSE without columns of Q, too */
    CHECK(tensor_given(&f->lse) || n[0] == 0 || n[1] == 0 || n[2] == 0, FFPA_E_INVALID,
          "%s: forward.lse is absent; backward reads it", fn);
    TRY(expect_result(&g->dout, f->o.shape, f->q.dtype, c, fn, "dout"));
    if (tensor_given(&g->dlse))
        TRY(expect(&g->dlse, f->lse.shape, wide(c), wide(c), c, fn, "dlse"));
    TRY(check_gradient(&g->dq, &f->q, c, fn, "dq"));
    TRY(check_gradient(&g->dk, &f->k, c, fn, "dk"));
    TRY(check_gradient(&g->dv, &f->v, c, fn, "dv"));
    if (tensor_given(&g->dmask)) {
        CHECK(
            tensor_given(&f->mask) && f->mask.dtype != FFPA_BOOL, FFPA_E_INVALID,
            "%s: dmask is asked for, but forward.mask is %s; only an added mask has a gradient",
            fn, tensor_given(&f->mask) ? "bool" : "absent");
        TRY(check_gradient(&g->dmask, &f->mask, c, fn, "dmask"));
    }
    CHECK(!tensor_given(&g->dsink) || tensor_given(&f->sink), FFPA_E_INVALID,
          "%s: dsink is asked for, but forward.sink is absent", fn);
    return check_gradient(&g->dsink, &f->sink, c, fn, "dsink");
}

ffpa_status call_check(const call *c, const char *fn)
{
    TRY(check_dtype(c->f.q.dtype, fn));
    CHECK(c->f.q.device >= FFPA_HOST, FFPA_E_INVALID,
          "%s: q.device=%d is negative; FFPA_HOST is 0, FFPA_CUDA(i) is i + 1", fn,
          c->f.q.device);
    CHECK(!c->f.dropout || (c->dropout.p >= 0.0f && c->dropout.p <= 1.0f), FFPA_E_INVALID,
          "%s: dropout.p=%g is not in 0..1", fn, c->f.dropout ? (double)c->dropout.p : 0.0);
    TRY(check_varlen(c, fn));
    TRY(check_cache(c, fn));
    TRY(check_operands(c, fn));
    TRY(check_extras(c, fn));
    return c->op == FFPA_BACKWARD ? check_backward(c, fn) : FFPA_OK;
}
