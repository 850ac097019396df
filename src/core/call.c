/* call.c - from params structs of any version to one call. */
#include "core/call.h"

#include <math.h>
#include <string.h>

/* Sizes in version 0.1. A later version appends fields and leaves these numbers alone. */
enum {
    FORWARD_V01 = 752,
    BACKWARD_V01 = 608,
    DROPOUT_V01 = 48,
    VARLEN_V01 = 56,
    KV_CACHE_V01 = 216,
    QUANT_V01 = 256,
    ROWS_V01 = 24
};
_Static_assert(sizeof(ffpa_forward_params) == FORWARD_V01, "ABI: ffpa_forward_params");
_Static_assert(sizeof(ffpa_backward_params) == BACKWARD_V01, "ABI: ffpa_backward_params");
_Static_assert(sizeof(ffpa_dropout) == DROPOUT_V01, "ABI: ffpa_dropout");
_Static_assert(sizeof(ffpa_varlen) == VARLEN_V01, "ABI: ffpa_varlen");
_Static_assert(sizeof(ffpa_kv_cache) == KV_CACHE_V01, "ABI: ffpa_kv_cache");
_Static_assert(sizeof(ffpa_quant) == QUANT_V01, "ABI: ffpa_quant");
_Static_assert(sizeof(ffpa_row_subset) == ROWS_V01, "ABI: ffpa_row_subset");
_Static_assert(sizeof(ffpa_problem) == PROBLEM_V01, "ABI: ffpa_problem");
_Static_assert(sizeof(ffpa_tensor) == 80, "ffpa_tensor is frozen");

/* The struct_size that a caller's struct begins with; ours is `known` bytes long. */
static ffpa_status read_size(size_t *bytes, const void *user, size_t min_bytes, size_t known,
                             const char *fn, const char *what)
{
    CHECK(user, FFPA_E_INVALID, "%s: %s is NULL", fn, what);
    memcpy(bytes, user, sizeof *bytes);
    CHECK(*bytes >= min_bytes, FFPA_E_INVALID,
          "%s: %s.struct_size=%zu is below %zu, its size in version 0.1; set it to sizeof", fn,
          what, *bytes, min_bytes);
    CHECK(*bytes <= known + 65536, FFPA_E_INVALID,
          "%s: %s.struct_size=%zu is no plausible size of this struct", fn, what, *bytes);
    return FFPA_OK;
}

ffpa_status params_read(void *dst, size_t dst_bytes, size_t min_bytes, const void *src,
                        const char *fn, const char *what)
{
    size_t bytes = 0;
    TRY(read_size(&bytes, src, min_bytes, dst_bytes, fn, what));
    for (size_t i = dst_bytes; i < bytes; i++)
        CHECK(((const unsigned char *)src)[i] == 0, FFPA_E_NEWER,
              "%s: %s sets byte %zu, but this library knows only its first %zu", fn, what, i,
              dst_bytes);
    memset(dst, 0, dst_bytes);
    memcpy(dst, src, bytes < dst_bytes ? bytes : dst_bytes);
    memcpy(dst, &dst_bytes, sizeof dst_bytes);
    return FFPA_OK;
}

ffpa_status params_give(void *user, size_t min_bytes, const void *ours, size_t our_bytes,
                        const char *fn, const char *what)
{
    size_t bytes = 0;
    TRY(read_size(&bytes, user, min_bytes, our_bytes, fn, what));
    for (size_t i = bytes; i < our_bytes; i++)
        CHECK(((const unsigned char *)ours)[i] == 0, FFPA_E_INVALID,
              "%s: this needs byte %zu of %s, but the caller's has only %zu", fn, i, what,
              bytes);
    memset(user, 0, bytes);
    memcpy(user, ours, bytes < our_bytes ? bytes : our_bytes);
    memcpy(user, &bytes, sizeof bytes);
    return FFPA_OK;
}

/* A field that a later version may give a meaning. */
static ffpa_status check_reserved(int32_t value, const char *fn, const char *what)
{
    CHECK(value == 0, FFPA_E_NEWER, "%s: %s.reserved=%d; this version knows only 0", fn, what,
          value);
    return FFPA_OK;
}

/* Copy a side struct and let the pointer in the params name the copy. */
#define READ_SIDE(field, copy, min_bytes)                                              \
    do {                                                                               \
        if (!c->f.field) break;                                                        \
        TRY(params_read(&c->copy, sizeof c->copy, min_bytes, c->f.field, fn, #field)); \
        c->f.field = &c->copy;                                                         \
    } while (0)

ffpa_status call_read_forward(call *c, const ffpa_forward_params *params, const char *fn)
{
    memset(c, 0, sizeof *c);
    c->op = FFPA_FORWARD;
    TRY(params_read(&c->f, sizeof c->f, FORWARD_V01, params, fn, "params"));
    READ_SIDE(dropout, dropout, DROPOUT_V01);
    READ_SIDE(varlen, varlen, VARLEN_V01);
    READ_SIDE(kv_cache, cache, KV_CACHE_V01);
    READ_SIDE(quant, quant, QUANT_V01);
    READ_SIDE(rows, rows, ROWS_V01);
    TRY(check_reserved(c->dropout.reserved, fn, "dropout"));
    TRY(check_reserved(c->varlen.reserved, fn, "varlen"));
    return check_reserved(c->cache.reserved, fn, "kv_cache");
}

ffpa_status call_read_backward(call *c, const ffpa_backward_params *params, const char *fn)
{
    ffpa_backward_params g;
    TRY(params_read(&g, sizeof g, BACKWARD_V01, params, fn, "params"));
    CHECK(g.forward, FFPA_E_INVALID,
          "%s: params.forward is NULL; it names the forward call to differentiate", fn);
    TRY(call_read_forward(c, g.forward, fn));
    c->op = FFPA_BACKWARD;
    c->g = g;
    return FFPA_OK;
}

double call_scale(const call *c)
{
    if (c->f.flags & FFPA_SCALE) return (double)c->f.scale;
    return c->f.q.shape[3] > 0 ? 1.0 / sqrt((double)c->f.q.shape[3]) : 1.0;
}

void *call_workspace(const call *c, size_t *bytes)
{
    *bytes = c->op == FFPA_BACKWARD ? c->g.workspace_bytes : c->f.workspace_bytes;
    return c->op == FFPA_BACKWARD ? c->g.workspace : c->f.workspace;
}
