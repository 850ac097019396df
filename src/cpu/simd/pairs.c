/* pairs.c - packing bf16 into words of two; see pairs.h. */
#include "cpu/simd/pairs.h"

static uint32_t pair(const uint16_t *row, int64_t stride, ptrdiff_t i, ptrdiff_t n)
{
    const uint32_t low = row[i * stride], high = i + 1 < n ? row[(i + 1) * stride] : 0u;
    return low | high << 16;
}

/* n elements, `stride` apart, as words, each `step` words from the one before. */
static void pair_row(float *words, ptrdiff_t step, const uint16_t *row, int64_t stride,
                     ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += 2) {
        const uint32_t w = pair(row, stride, i, n);
        memcpy(words + i / 2 * step, &w, sizeof w);
    }
}

void pairs_load_q(float *panels, const row_block *rb)
{
    const ffpa_tensor *q = &rb->c->f.q;
    const ptrdiff_t d = q->shape[3], words = pairs_count(d);
    for (int r = 0; r < rb->lanes; r++) {
        const uint16_t *row = sequence_query(rb->s, q, rb->head[r], rb->query[r]);
        pair_row(panels + r / NR * NR * words + r % NR, NR, row, q->stride[3], d);
    }
}

void pairs_load_keys(float *dst, ptrdiff_t ld, const row_block *rb, int64_t j0, ptrdiff_t n)
{
    const ffpa_tensor *k = &rb->c->f.k;
    const ptrdiff_t d = k->shape[3], whole = d - d % 2;
    for (ptrdiff_t j = 0; j < n; j++) {
        const uint16_t *row = sequence_key(rb->s, k, rb->hk, j0 + j);
        if (k->stride[3] != 1) {
            pair_row(dst + j * ld, 1, row, k->stride[3], d);
            continue;
        }
        memcpy(dst + j * ld, row, (size_t)whole * sizeof *row);
        if (whole < d) pair_row(dst + j * ld + whole / 2, 1, row + whole, 1, 1);
    }
}

void pairs_load_values(float *dst, ptrdiff_t ld, const row_block *rb, int64_t j0, ptrdiff_t n)
{
    const ffpa_tensor *v = &rb->c->f.v;
    const ptrdiff_t dv = v->shape[3];
    for (ptrdiff_t j = 0; j < n; j += 2) {
        const uint16_t *low = sequence_key(rb->s, v, rb->hk, j0 + j), *high = low;
        if (j + 1 < n) high = sequence_key(rb->s, v, rb->hk, j0 + j + 1);
        const vi mask = viset(j + 1 < n ? -1 : 0);
        float *out = dst + j / 2 * ld;
        ptrdiff_t d = 0;
        for (; d + VL <= dv; d += VL) {
            const vi even = (vi)((vu)vint(vload_bf16(low + d)) >> 16);
            vstore(out + d, vbits(even | (vint(vload_bf16(high + d)) & mask)));
        }
        for (; d < dv; d++) {
            const uint32_t w = low[d] | (j + 1 < n ? (uint32_t)high[d] << 16 : 0u);
            memcpy(out + d, &w, sizeof w);
        }
    }
}

void pairs_pack(float *rows, ptrdiff_t ld, ptrdiff_t n, ptrdiff_t columns)
{
    for (ptrdiff_t j = 0; j < n; j += 2)
        for (ptrdiff_t d = 0; d < columns; d += VL) {
            const ptrdiff_t left = columns - d < VL ? columns - d : VL;
            const vf low = vload_first(rows + j * ld + d, left);
            const vf high = j + 1 < n ? vload_first(rows + (j + 1) * ld + d, left) : vzero();
            vstore_first(rows + j / 2 * ld + d, vpack_bf16(low, high), left);
        }
}

void pairs_weights(float *words, const float *weights, ptrdiff_t n)
{
    for (ptrdiff_t j = 0; j < n; j += 2)
        for (int h = 0; h < NR; h += VL) {
            const vf low = vload(weights + j * NR + h);
            const vf high = j + 1 < n ? vload(weights + (j + 1) * NR + h) : vzero();
            vstore(words + j / 2 * NR + h, vpack_bf16(low, high));
        }
}
