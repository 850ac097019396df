/* pairs.c - packing bf16 into words of two; see pairs.h. */
#include "cpu/simd/pairs.h"
#include "cpu/simd/scores.h"

#include <math.h>

typedef uint16_t vhalves
    __attribute__((vector_size(4 * VL))); /* the 2 VL numbers of VL words */

/* Words c .. c + VL - 1 of a row of n bf16, `stride` apart; zeros past its end. */
INLINE vf load_words(const uint16_t *row, int64_t stride, ptrdiff_t c, ptrdiff_t n)
{
    const ptrdiff_t first = 2 * c, left = n - first < 2 * VL ? n - first : 2 * VL;
    vf x = vzero();
    if (stride == 1 && left == 2 * VL) {
        memcpy(&x, row + first, sizeof x);
        return x;
    }
    uint16_t part[2 * VL] = {0};
    for (ptrdiff_t i = 0; i < left; i++)
        part[i] = row[(first + i) * stride];
    memcpy(&x, part, sizeof x);
    return x;
}

static const uint16_t *query_row(const row_block *rb, int r)
{
    return sequence_query(rb->s, &rb->c->f.q, rb->head[r], rb->query[r]);
}

bool pairs_fit(const row_block *rb)
{
    const ffpa_tensor *q = &rb->c->f.q;
    const uint16_t infinity = 0x7f80, least = 0x0080, large = infinity - (67 << 7); /* 2^60 */
    const vhalves magnitude = (vhalves){0} + (uint16_t)0x7fff;
    vhalves bad = {0};
    if (!(fabs(call_scale(rb->c)) < 0x1p60)) return false;
    for (int r = 0; r < rb->rows; r++)
        for (ptrdiff_t c = 0; c < (q->shape[3] + 1) / 2; c += VL) {
            const vhalves x =
                (vhalves)load_words(query_row(rb, r), q->stride[3], c, q->shape[3]) & magnitude;
            bad |= (vhalves)(x >= large) | (vhalves)((vhalves)(x - 1) < (uint16_t)(least - 1));
        }
    return !vany((vi)bad);
}

void pairs_load_q(float *panels, const row_block *rb)
{
    const ffpa_tensor *q = &rb->c->f.q;
    const ptrdiff_t d = q->shape[3], words = pairs_count(d);
    for (int r = 0; r < rb->lanes; r += VL) {
        float *panel = panels + r / NR * NR * words + r % NR;
        for (ptrdiff_t c = 0; c < words; c += VL) {
            vf x[VL];
            for (int i = 0; i < VL; i++)
                x[i] = load_words(query_row(rb, r + i), q->stride[3], c, d);
            vtranspose(x);
            for (int i = 0; i < VL && c + i < words; i++)
                vstore(panel + (c + i) * NR, x[i]);
        }
    }
}

void pairs_load_keys(float *dst, ptrdiff_t ld, const row_block *rb, int64_t j0, ptrdiff_t n)
{
    const ffpa_tensor *k = &rb->c->f.k;
    const ptrdiff_t d = k->shape[3], words = pairs_count(d);
    for (ptrdiff_t j = 0; j < n; j++) {
        const uint16_t *row = sequence_key(rb->s, k, rb->hk, j0 + j);
        for (ptrdiff_t c = 0; c < words; c += VL) {
            const vf x = load_words(row, k->stride[3], c, d);
            vstore_first(dst + j * ld + c, x, words - c < VL ? words - c : VL);
        }
    }
}

bool pairs_finite(const row_block *rb, int64_t j0, ptrdiff_t n)
{
    const ffpa_tensor *v = &rb->c->f.v;
    const ptrdiff_t dv = v->shape[3];
    const vu infinity = vuset(0x7f807f80), least = vuset(0x00800080); /* of both halves */
    vu sum = vuset(0);
    for (ptrdiff_t j = 0; j < n; j++) {
        const uint16_t *row = sequence_key(rb->s, v, rb->hk, j0 + j);
        for (ptrdiff_t c = 0; c < (dv + 1) / 2; c += VL) /* the top exponent carries over */
            sum |= ((vu)load_words(row, 1, c, dv) & infinity) + least;
    }
    return !vany((vi)(sum & vuset(0x80008000)));
}

#if FFPA_MATRIX

/* Rows 2 i of two columns a word in `even`, rows 2 i + 1 in `odd`, become columns of words of two rows. */
INLINE void store_columns(float *dst, ptrdiff_t ld, vf even[VL], vf odd[VL])
{
    const vu low = vuset(0xffff);
    vtranspose(even);
    vtranspose(odd);
    UNROLL for (int c = 0; c < VL; c++)
    {
        const vu x = (vu)even[c], y = (vu)odd[c];
        vstore(dst + 2 * c * ld, (vf)((x & low) | y << 16));
        vstore(dst + (2 * c + 1) * ld, (vf)(x >> 16 | (y & ~low)));
    }
}

/* n rows as columns of words. */
static void load_columns(float *dst, ptrdiff_t ld, const uint16_t *const *row, ptrdiff_t n,
                         ptrdiff_t columns)
{
    for (ptrdiff_t j = 0; j < 2 * pairs_count(n); j += 2 * VL)
        for (ptrdiff_t d = 0; d < columns; d += 2 * VL) {
            vf even[VL], odd[VL];
            for (int i = 0; i < VL; i++) {
                const ptrdiff_t at = j + 2 * i;
                even[i] = at < n ? load_words(row[at], 1, d / 2, columns) : vzero();
                odd[i] = at + 1 < n ? load_words(row[at + 1], 1, d / 2, columns) : vzero();
            }
            store_columns(dst + d * ld + j / 2, ld, even, odd);
        }
}

void pairs_load_values(float *dst, ptrdiff_t ld, const row_block *rb, int64_t j0, ptrdiff_t n)
{
    const ffpa_tensor *v = &rb->c->f.v;
    const uint16_t *row[MAX_KEYS];
    for (ptrdiff_t j = 0; j < n; j++)
        row[j] = sequence_key(rb->s, v, rb->hk, j0 + j);
    load_columns(dst, ld, row, n, v->shape[3]);
}

void pairs_pack_values(float *dst, ptrdiff_t ld, float *rows, ptrdiff_t ld_rows, ptrdiff_t n,
                       ptrdiff_t columns)
{
    enum { PIECE = 64 };
    const uint16_t *row[MAX_KEYS];
    for (ptrdiff_t j = 0; j < n; j++) { /* in place: what is written has been read */
        uint16_t *to = (void *)(rows + j * ld_rows), part[PIECE];
        for (ptrdiff_t d = 0; d < columns; d += PIECE) {
            const ptrdiff_t left = columns - d < PIECE ? columns - d : PIECE;
            row_store(part, FFPA_BF16, 1, rows + j * ld_rows + d, left);
            memcpy(to + d, part, (size_t)left * sizeof *to);
        }
        row[j] = to;
    }
    load_columns(dst, ld, row, n, columns);
}

#else

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

void pairs_pack_values(float *dst, ptrdiff_t ld, float *rows, ptrdiff_t ld_rows, ptrdiff_t n,
                       ptrdiff_t columns)
{
    for (ptrdiff_t j = 0; j < n; j += 2)
        for (ptrdiff_t d = 0; d < columns; d += VL) {
            const ptrdiff_t left = columns - d < VL ? columns - d : VL;
            const vf low = vload_first(rows + j * ld_rows + d, left);
            const vf high =
                j + 1 < n ? vload_first(rows + (j + 1) * ld_rows + d, left) : vzero();
            vstore_first(dst + j / 2 * ld + d, vpack_bf16(low, high), left);
        }
}

#endif

void pairs_weights(float *words, const float *weights, ptrdiff_t n)
{
    for (ptrdiff_t j = 0; j < 2 * pairs_count(n); j += 2)
        for (int h = 0; h < NR; h += VL) {
            const vf low = j < n ? vload(weights + j * NR + h) : vzero();
            const vf high = j + 1 < n ? vload(weights + (j + 1) * NR + h) : vzero();
            vstore(words + j / 2 * NR + h, vpack_bf16(low, high));
        }
}
