/* tile.h - the register-tile product that every matrix product of this folder is made of:
 *
 *   C[i][j] = (add ? C[i][j] : 0) + sum_k A[i][k] * B[k][j]      i < m, j < n, k < depth
 *
 *            B row k: NR floats, two vectors, from L1
 *            |  b0  |  b1  |
 *     A[0][k] acc00   acc01        One step of k: two loads of B, MR broadcasts of A,
 *     A[1][k] acc10   acc11        2 MR multiply-adds. A is read in place through two strides,
 *      ...     ...     ...         so rows of K (col = 1) and columns of V (row = 1) need no
 *     A[MR-1] .       .            packing; only B's rows must be contiguous.
 *
 * Sums run over k in increasing order for each element, whatever m, n and the place of an element in
 * them: results depend on neither tiling of i and j nor threads.
 *
 * Cost model: B's panel (depth x NR floats) is read once per MR rows, so the caller keeps
 * depth <= TILE_DEPTH for it to stay in L1; A streams from L2 and wants a row stride that is
 * not a multiple of 4096 bytes / 8, or its rows fall into the same cache sets (tile_stride
 * pads). */
#ifndef FFPA_CPU_SIMD_TILE_H
#define FFPA_CPU_SIMD_TILE_H

#include "cpu/simd/vec.h"

#include <stdbool.h>

enum { TILE_DEPTH = 4096 / NR };

/* Additions in one chain of tile_dots. Rounding errors grow with it, and starting another costs about as much
 * as two additions: a quarter of a short sum is what a plain loop over eight partial sums comes to. Of bf16,
 * whose products are exact and leave bits to spare, the longest will do. */
enum { TILE_CHAIN = 64 };
INLINE ptrdiff_t tile_chain(ptrdiff_t depth)
{
    return depth <= 64 ? 16 : depth <= 128 ? 32 : TILE_CHAIN;
}

/* Memory to fetch while a product runs, a few cache lines per register tile: a burst would stall the loads
 * behind it. */
typedef struct tile_ahead {
    const char *row;               /* the next row; NULL = nothing */
    ptrdiff_t stride, bytes, rows; /* bytes between rows, bytes of a row, rows left */
    ptrdiff_t at;                  /* next byte of the row */
    ptrdiff_t share;               /* lines per register tile */
} tile_ahead;

INLINE void tile_fetch(tile_ahead *next, ptrdiff_t lines)
{
    for (ptrdiff_t i = 0; i < lines && next->rows > 0; i++) {
        __builtin_prefetch(next->row + next->at, 0, 2);
        next->at += 64;
        if (next->at < next->bytes) continue;
        next->at = 0;
        next->row += next->stride;
        next->rows--;
    }
}

typedef struct tile_a { /* element (i, k) is p[i * row + k * col]; any strides, any alignment */
    const float *p;
    ptrdiff_t row, col;
    tile_ahead *ahead; /* NULL = nothing */
} tile_a;

typedef struct tile_b { /* element (k, j) is p[k * ld + j]; element alignment suffices */
    const float *p;
    ptrdiff_t ld;
} tile_b;

typedef struct tile_c { /* element (i, j) is p[i * ld + j]; overlaps neither A nor B */
    float *p;
    ptrdiff_t ld;
    bool add; /* C += instead of C = */
} tile_c;

/* The product above for any m, n, depth >= 0. Nothing outside the m x depth, depth x n and m x
 * n elements is read or written. B's columns are taken NR at a time, the outer loop; fastest
 * when n is a multiple of NR and m of MR. */
#define tile_mul ISA_NAME(tile_mul)
void tile_mul(ptrdiff_t m, ptrdiff_t n, ptrdiff_t depth, tile_a a, tile_b b, tile_c c);

/* The same for scores and their like, whose rounding errors are exponentiated or cancel: a.col is 1, and sums
 * are made of chains of tile_chain(depth), added in order. */
#define tile_dots ISA_NAME(tile_dots)
void tile_dots(ptrdiff_t m, ptrdiff_t n, ptrdiff_t depth, tile_a a, tile_b b, tile_c c);

/* Both over pairs of bf16: A and B hold words of two neighbouring k, the even one in the low
 * half, and every stride counts words. NR columns; a.row is 1, or a.col is and the sums are chains of
 * TILE_CHAIN words. On a matrix unit a.col is 1 and the operands are padded (matrix.h). */
#define tile_mul_pairs ISA_NAME(tile_mul_pairs)
void tile_mul_pairs(ptrdiff_t m, ptrdiff_t words, tile_a a, tile_b b, tile_c c);

/* Row stride for scratch rows of n floats: a multiple of one cache line, and an odd number of
 * them, so that neighbouring rows never share a cache set. */
INLINE ptrdiff_t tile_stride(ptrdiff_t n) { return (((n + 15) / 16) | 1) * 16; }

#endif
