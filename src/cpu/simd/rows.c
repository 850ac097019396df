/* rows.c - moving rows between the caller's tensors and f32 scratch; see rows.h. */
#include "cpu/simd/rows.h"

#include <math.h>

void row_block_set(row_block *rb, const ffpa_problem *ask, const call *c, const sequence *s,
                   row_place at)
{
    const int64_t group = c->f.q.shape[1] / c->f.k.shape[1];
    rb->c = c;
    rb->s = s;
    rb->b = at.b;
    rb->hk = at.hk;
    rb->rows = at.rows;
    rb->lanes = (at.rows + NR - 1) / NR * NR;
    rb->first = s->nk;
    rb->last = 0;
    for (int r = 0; r < rb->lanes; r++) {
        const int64_t packed = at.row0 + (r < at.rows ? r : at.rows - 1);
        rb->query[r] = packed / group;
        rb->head[r] = at.hk * group + packed % group;
        const key_range keys = key_range_of(ask, s->nq, s->nk, rb->query[r]);
        rb->from[r] = keys.first;
        rb->to[r] = keys.last;
        if (keys.first >= keys.last) continue;
        if (keys.first < rb->first) rb->first = keys.first;
        if (keys.last > rb->last) rb->last = keys.last;
    }
}

static float element_load(const void *src, int32_t dtype, int64_t i)
{
    if (dtype == FFPA_F32) return ((const float *)src)[i];
    if (dtype == FFPA_F16) return f16_to(((const uint16_t *)src)[i]);
    if (dtype == FFPA_BF16) return bf16_to(((const uint16_t *)src)[i]);
    return ((const uint8_t *)src)[i] ? 0.0f : -INFINITY;
}

void row_load(float *dst, const void *src, int32_t dtype, int64_t stride, ptrdiff_t n)
{
    ptrdiff_t i = 0;
    if (stride == 1 && dtype == FFPA_F32)
        for (; i + VL <= n; i += VL)
            vstore(dst + i, vload((const float *)src + i));
    if (stride == 1 && dtype == FFPA_F16)
        for (; i + VL <= n; i += VL)
            vstore(dst + i, vload_f16((const uint16_t *)src + i));
    if (stride == 1 && dtype == FFPA_BF16)
        for (; i + VL <= n; i += VL)
            vstore(dst + i, vload_bf16((const uint16_t *)src + i));
    for (; i < n; i++)
        dst[i] = element_load(src, dtype, i * stride);
}

static void element_store(void *dst, int32_t dtype, int64_t i, float x)
{
    if (dtype == FFPA_F32) ((float *)dst)[i] = x;
    if (dtype == FFPA_F16) ((uint16_t *)dst)[i] = f16_from(x);
    if (dtype == FFPA_BF16) ((uint16_t *)dst)[i] = bf16_from(x);
}

void row_store(void *dst, int32_t dtype, int64_t stride, const float *src, ptrdiff_t n)
{
    ptrdiff_t i = 0;
    if (stride == 1 && dtype == FFPA_F32)
        for (; i + VL <= n; i += VL)
            vstore((float *)dst + i, vload(src + i));
    if (stride == 1 && dtype == FFPA_F16)
        for (; i + VL <= n; i += VL)
            vstore_f16((uint16_t *)dst + i, vload(src + i));
    if (stride == 1 && dtype == FFPA_BF16)
        for (; i + VL <= n; i += VL)
            vstore_bf16((uint16_t *)dst + i, vload(src + i));
    for (; i < n; i++)
        element_store(dst, dtype, i * stride, src[i]);
}

bool row_finite(const float *x, ptrdiff_t n)
{
    const vf limit = vset(INFINITY);
    vi bad = viset(0);
    ptrdiff_t i = 0;
    for (; i + VL <= n; i += VL)
        bad |= ~(vabs(vload(x + i)) < limit);
    return !vany(bad | ~(vabs(vload_first(x + i, n - i)) < limit));
}

void rows_load_keys(float *dst, ptrdiff_t ld, const row_block *rb, const ffpa_tensor *t,
                    int64_t j0, ptrdiff_t n)
{
    for (ptrdiff_t j = 0; j < n; j++)
        row_load(dst + j * ld, sequence_key(rb->s, t, rb->hk, j0 + j), t->dtype, t->stride[3],
                 t->shape[3]);
}

/* Columns moved between rows and their panel at a time: NR of these pieces stay in L1. */
enum { PIECE = 64 };

/* VL rows, PIECE apart, of n columns to VL lanes of a panel. */
static void to_lanes(float *panel, const float *rows, ptrdiff_t n)
{
    for (ptrdiff_t d = 0; d < n; d += VL) {
        vf x[VL];
        UNROLL for (int i = 0; i < VL; i++) x[i] = vload(rows + i * PIECE + d);
        vtranspose(x);
        for (int i = 0; i < VL && d + i < n; i++)
            vstore(panel + (d + i) * NR, x[i]);
    }
}

/* And back; columns from n on, up to whole vectors, become 0. */
static void from_lanes(float *rows, const float *panel, ptrdiff_t n)
{
    for (ptrdiff_t d = 0; d < n; d += VL) {
        vf x[VL];
        UNROLL for (int i = 0; i < VL; i++)
        {
            x[i] = d + i < n ? vload(panel + (d + i) * NR) : vzero();
        }
        vtranspose(x);
        UNROLL for (int i = 0; i < VL; i++) vstore(rows + i * PIECE + d, x[i]);
    }
}

void rows_to_panels(float *panels, const row_block *rb, const ffpa_tensor *t)
{
    const ptrdiff_t dim = t->shape[3], bytes = (ptrdiff_t)dtype_bytes(t->dtype);
    float piece[NR][PIECE] = {{0}};
    for (int p = 0; p < rb->lanes; p += NR)
        for (ptrdiff_t d0 = 0; d0 < dim; d0 += PIECE) {
            const ptrdiff_t n = dim - d0 < PIECE ? dim - d0 : PIECE;
            for (int r = 0; r < NR; r++) {
                const char *row = sequence_query(rb->s, t, rb->head[p + r], rb->query[p + r]);
                row_load(piece[r], row + d0 * t->stride[3] * bytes, t->dtype, t->stride[3], n);
            }
            for (int half = 0; half < NR; half += VL)
                to_lanes(panels + p * dim + d0 * NR + half, piece[half], n);
        }
}

void panel_row(float *row, const float *panels, ptrdiff_t dim, int r, float factor)
{
    const float *lane = panels + r / NR * NR * dim + r % NR;
    for (ptrdiff_t d = 0; d < dim; d++)
        row[d] = factor == 0.0f ? 0.0f : lane[d * NR] * factor;
}

/* Write n columns, from d0 on, of lane r's row of t. */
static void store_columns(const row_block *rb, const ffpa_tensor *t, int r, ptrdiff_t d0,
                          const float *from, ptrdiff_t n)
{
    char *row = sequence_query(rb->s, t, rb->head[r], rb->query[r]);
    row_store(row + d0 * t->stride[3] * (ptrdiff_t)dtype_bytes(t->dtype), t->dtype,
              t->stride[3], from, n);
}

void row_out(const row_block *rb, const ffpa_tensor *t, int r, const float *row, float factor)
{
    const ptrdiff_t dim = t->shape[3];
    float piece[PIECE];
    for (ptrdiff_t d0 = 0; d0 < dim; d0 += PIECE) {
        const ptrdiff_t n = dim - d0 < PIECE ? dim - d0 : PIECE;
        for (ptrdiff_t d = 0; d < n; d++)
            piece[d] = factor == 0.0f ? 0.0f : row[d0 + d] * factor;
        store_columns(rb, t, r, d0, piece, n);
    }
}

void rows_from_panels(const row_block *rb, const ffpa_tensor *t, const float *panels,
                      const float *factor)
{
    const ptrdiff_t dim = t->shape[3];
    float piece[NR][PIECE];
    for (int p = 0; p < rb->rows; p += NR)
        for (ptrdiff_t d0 = 0; d0 < dim; d0 += PIECE) {
            const ptrdiff_t n = dim - d0 < PIECE ? dim - d0 : PIECE;
            for (int half = 0; half < NR; half += VL)
                from_lanes(piece[half], panels + p * dim + d0 * NR + half, n);
            for (int r = p; r < p + NR && r < rb->rows; r++) {
                float *row = piece[r - p];
                for (ptrdiff_t d = 0; d < n; d++)
                    row[d] = factor[r] == 0.0f ? 0.0f : row[d] * factor[r];
                store_columns(rb, t, r, d0, row, n);
            }
        }
}
