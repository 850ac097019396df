/* pairs.h - operands of tile_mul_pairs: bf16 that is multiplied as it is, two neighbouring summands in
 * one word. A last odd summand is paired with 0; a matrix unit wants whole tiles of words, the rest being 0.
 *
 *   Q   panels of words [lanes / NR][D / 2][NR]
 *   K   rows of words [keys][D / 2]
 *   P   panels of words [lanes / NR][keys / 2][NR]
 *   V   words of two keys: rows [keys / 2][Dv], or on a matrix unit columns [Dv][keys / 2] */
#ifndef FFPA_CPU_SIMD_PAIRS_H
#define FFPA_CPU_SIMD_PAIRS_H

#include "cpu/simd/matrix.h"
#include "cpu/simd/rows.h"

/* Words of n summands. */
INLINE ptrdiff_t pairs_count(ptrdiff_t n)
{
    const ptrdiff_t words = (n + 1) / 2, edge = MATRIX_EDGE;
    return HAS_MATRIX ? (words + edge - 1) / edge * edge : words;
}

/* Do products of bf16 pairs serve these rows? The processor takes subnormal numbers for 0: no score shows that
 * unless something else is very large. So Q has no subnormal number, nothing beyond 2^60, and nor is the scale. */
#define pairs_fit ISA_NAME(pairs_fit)
bool pairs_fit(const row_block *rb);

#define pairs_load_q ISA_NAME(pairs_load_q)
void pairs_load_q(float *panels, const row_block *rb);

/* Keys j0 .. j0 + n - 1 of K, rows `ld` words apart. */
#define pairs_load_keys ISA_NAME(pairs_load_keys)
void pairs_load_keys(float *dst, ptrdiff_t ld, const row_block *rb, int64_t j0, ptrdiff_t n);

/* The same keys of V, whose rows must be contiguous; rows or columns of dst are `ld` words apart. */
#define pairs_load_values ISA_NAME(pairs_load_values)
void pairs_load_values(float *dst, ptrdiff_t ld, const row_block *rb, int64_t j0, ptrdiff_t n);

/* Are these rows of V, contiguous as above, finite? */
#define pairs_finite ISA_NAME(pairs_finite)
bool pairs_finite(const row_block *rb, int64_t j0, ptrdiff_t n);

/* V from n rows of f32, ld_rows apart, which are spent: without a matrix unit dst is rows, and ld ld_rows. */
#define pairs_pack_values ISA_NAME(pairs_pack_values)
void pairs_pack_values(float *dst, ptrdiff_t ld, float *rows, ptrdiff_t ld_rows, ptrdiff_t n,
                       ptrdiff_t columns);

/* Weights of one panel [n][NR] rounded to words. */
#define pairs_weights ISA_NAME(pairs_weights)
void pairs_weights(float *words, const float *weights, ptrdiff_t n);

#endif
