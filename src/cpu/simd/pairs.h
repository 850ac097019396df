/* pairs.h - operands of tile_mul_pairs: bf16 that is multiplied as it is, two neighbouring summands in
 * one word. A last odd summand is paired with 0. */
#ifndef FFPA_CPU_SIMD_PAIRS_H
#define FFPA_CPU_SIMD_PAIRS_H

#include "cpu/simd/rows.h"

INLINE ptrdiff_t pairs_count(ptrdiff_t n) { return (n + 1) / 2; }

/* Q as panels of words [lanes / NR][D / 2][NR]. */
#define pairs_load_q ISA_NAME(pairs_load_q)
void pairs_load_q(float *panels, const row_block *rb);

/* Keys j0 .. j0 + n - 1 of K as rows of words, `ld` words apart. */
#define pairs_load_keys ISA_NAME(pairs_load_keys)
void pairs_load_keys(float *dst, ptrdiff_t ld, const row_block *rb, int64_t j0, ptrdiff_t n);

/* The same keys of V, whose rows must be contiguous: row i of dst holds keys 2 i and 2 i + 1 column by
 * column, `ld` words apart. */
#define pairs_load_values ISA_NAME(pairs_load_values)
void pairs_load_values(float *dst, ptrdiff_t ld, const row_block *rb, int64_t j0, ptrdiff_t n);

/* The same from n rows of `columns` f32 in the same place. */
#define pairs_pack ISA_NAME(pairs_pack)
void pairs_pack(float *rows, ptrdiff_t ld, ptrdiff_t n, ptrdiff_t columns);

/* Weights of one panel [n][NR] rounded to words [n / 2][NR]. */
#define pairs_weights ISA_NAME(pairs_weights)
void pairs_weights(float *words, const float *weights, ptrdiff_t n);

#endif
