/* matrix.c - the product on the matrix unit; see matrix.h.
 *
 *                  B   k: 16 words    tiles 6, 7, from L1
 *                  |  6  |  7  |
 *   A  4           |  0  |  1  |      A step of k: four loads of 16 lines, of which A's come from L2, and four
 *      5           |  2  |  3  |      products of 16 cycles
 */
#include "cpu/simd/matrix.h"

#if FFPA_MATRIX

_Static_assert((int)NR == (int)MATRIX_BLOCK, "a panel is as wide as a block");

enum { AHEAD = 8, LINE = 16 }; /* lines that a step fetches; floats of a line */

/* One block of C. C is in L2, and loads of it would be waited for: meanwhile the `left` rows after it are fetched. */
static void block_mul(ptrdiff_t words, const tile_a *a, const tile_b *b, const tile_c *c,
                      ptrdiff_t left)
{
    enum { EDGE = MATRIX_EDGE, SIZE = sizeof(float) };
    const ptrdiff_t row_a = a->row * SIZE, row_b = b->ld * SIZE, row_c = c->ld * SIZE;
    const float *a0 = a->p, *a1 = a->p + EDGE * a->row, *pb = b->p;
    ptrdiff_t next = MATRIX_BLOCK * NR;
    const ptrdiff_t share = a->ahead ? a->ahead->share * EDGE / (words + 1) + 1 : 0;
    const ptrdiff_t end = next + (left < MATRIX_BLOCK ? left : MATRIX_BLOCK) * NR;
    float *c0 = c->p, *c1 = c->p + EDGE * c->ld;
    if (c->add) {
        matrix_load(0, c0, row_c);
        matrix_load(1, c0 + EDGE, row_c);
        matrix_load(2, c1, row_c);
        matrix_load(3, c1 + EDGE, row_c);
    } else {
        matrix_zero(0);
        matrix_zero(1);
        matrix_zero(2);
        matrix_zero(3);
    }
    for (ptrdiff_t k = 0; k < words; k += EDGE, pb += EDGE * b->ld) {
        matrix_load(6, pb, row_b);
        matrix_load(4, a0 + k, row_a);
        matrix_load(7, pb + EDGE, row_b);
        matrix_multiply_add(0, 4, 6);
        matrix_load(5, a1 + k, row_a);
        matrix_multiply_add(1, 4, 7);
        matrix_multiply_add(2, 5, 6);
        matrix_multiply_add(3, 5, 7);
        if (a->ahead) tile_fetch(a->ahead, share);
        for (int i = 0; i < AHEAD && next < end; i++, next += LINE)
            __builtin_prefetch(c->p + next, 1);
    }
    matrix_store(0, c0, row_c);
    matrix_store(1, c0 + EDGE, row_c);
    matrix_store(2, c1, row_c);
    matrix_store(3, c1 + EDGE, row_c);
}

/* The first m rows of a block, by way of a whole one. */
static void edge_mul(ptrdiff_t m, ptrdiff_t words, const tile_a *a, const tile_b *b,
                     const tile_c *c)
{
    float block[MATRIX_BLOCK][NR] = {{0}};
    for (ptrdiff_t i = 0; c->add && i < m; i++)
        memcpy(block[i], c->p + i * c->ld, sizeof block[i]);
    /* The loads of tiles do not say that they read. */
    __asm__ volatile("" : : "r"(block) : "memory");
    block_mul(words, a, b, &(tile_c){block[0], NR, c->add}, 0);
    for (ptrdiff_t i = 0; i < m; i++)
        memcpy(c->p + i * c->ld, block[i], sizeof block[i]);
}

void matrix_mul(ptrdiff_t m, ptrdiff_t words, tile_a a, tile_b b, tile_c c)
{
    for (ptrdiff_t i = 0; i < m; i += MATRIX_BLOCK) {
        const tile_a rows = {a.p + i * a.row, a.row, 1, a.ahead};
        const tile_c to = {c.p + i * c.ld, c.ld, c.add};
        if (m - i < MATRIX_BLOCK)
            edge_mul(m - i, words, &rows, &b, &to);
        else
            block_mul(words, &rows, &b, &to, c.add ? m - i - MATRIX_BLOCK : 0);
    }
}

#endif
