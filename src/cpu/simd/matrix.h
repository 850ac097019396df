/* matrix.h - the processor's matrix unit (AMX), one wrapper per instruction: eight registers, "tiles", of 16 rows of
 * 64 bytes. In words of two bf16, neighbours along k as in pairs.h,
 *
 *   C[16][16] += A[16][16 words] B[16 words][16]        f32; subnormal numbers count as 0
 *
 * A row of C is the sum of two chains of 16, of the low and of the high halves, added to what was there.
 * Tiles are numbered by literals, since the instructions hold the number. FFPA_MATRIX_MODEL is a header that tests put in
 * the place of the unit, to run this code anywhere. */
#ifndef FFPA_CPU_SIMD_MATRIX_H
#define FFPA_CPU_SIMD_MATRIX_H

#include "cpu/simd/tile.h"

#if defined(FFPA_MATRIX_MODEL)
#    include FFPA_MATRIX_MODEL
#    define FFPA_MATRIX 1
#elif defined(__AMX_BF16__)
#    define matrix_zero(tile)            _tile_zero(tile)
#    define matrix_load(tile, p, bytes)  _tile_loadd(tile, p, bytes) /* rows `bytes` apart */
#    define matrix_store(tile, p, bytes) _tile_stored(tile, p, bytes)
#    define matrix_multiply_add(c, a, b) _tile_dpbf16ps(c, a, b)
#    define FFPA_MATRIX                  1

/* A thread that uses tiles says how, and releases them before it goes on to something else: while they are in use, its
 * state is 8 KB larger. */
INLINE void matrix_begin(void)
{
    static const struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } whole = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&whole);
}
INLINE void matrix_end(void) { _tile_release(); }
#else
#    define FFPA_MATRIX 0
INLINE void matrix_begin(void) {}
INLINE void matrix_end(void) {}
#endif

enum {
    HAS_MATRIX = FFPA_MATRIX,
    MATRIX_EDGE = 16,               /* rows of a tile, and its words or floats a row */
    MATRIX_BLOCK = 2 * MATRIX_EDGE, /* rows and columns of C that are made at a time */
};

/* tile_mul_pairs with a.col = 1. A is read up to whole blocks of rows and whole tiles of words, B up to whole tiles of
 * words: past `words` one of the two is 0 and the other finite. */
#define matrix_mul ISA_NAME(matrix_mul)
void matrix_mul(ptrdiff_t m, ptrdiff_t words, tile_a a, tile_b b, tile_c c);

#endif
