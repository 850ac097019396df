/* tile.c - the register tile, one copy per number of rows and way of walking A; see tile.h. */
#include "cpu/simd/tile.h"
#include "cpu/simd/matrix.h"

/* A unit stride of A becomes an address offset, which saves an addition per load. PARTIAL is
 * any strides and fewer than NR columns; PAIRS_* take words of two bf16. */
enum walk { ALONG_K, ALONG_I, ANY_WALK, PARTIAL, PAIRS_K, PAIRS_I, WALKS };

typedef float word __attribute__((may_alias)); /* f32, or two bf16 that were stored as such */

/* acc + x * b in f32 or, pair by pair, in bf16. */
INLINE vf multiply_add(const enum walk walk, vf x, vf b, vf acc)
{
    return walk == PAIRS_K || walk == PAIRS_I ? vdot_bf16(acc, x, b) : vfma(x, b, acc);
}

enum { LINE = 16 }; /* floats of a cache line */

/* Columns of C, at most NR, and what is added for each element: `depth` products, `chain` of them at a time. */
typedef struct panel_size {
    ptrdiff_t n, depth, chain;
} panel_size;

/* m x NR elements of C, or m x n with PARTIAL. m and walk are constants wherever this is inlined. */
INLINE void tile_block(const int m, const enum walk walk, const panel_size *size,
                       const tile_a *a, const tile_b *b, const tile_c *c)
{
    const ptrdiff_t n = size->n, chain = size->chain;
    ptrdiff_t depth = size->depth;
    const ptrdiff_t row = walk == ALONG_I || walk == PAIRS_I ? 1 : a->row;
    const ptrdiff_t col = walk == ALONG_K || walk == PAIRS_K ? 1 : a->col;
    const ptrdiff_t n0 = n < VL ? n : VL, n1 = n - n0;
    const word *pa[(MR + 2) / 3]; /* every third row; the others are one and two strides on */
    const float *pb = b->p;
    bool add = c->add;
    UNROLL for (int i = 0; i < m; i += 3) pa[i / 3] = a->p + i * row;
    for (int i = 0; add && i < m; i++) /* C is often far away; the loop below hides that */
        for (int j = 0; j < NR; j += LINE)
            __builtin_prefetch(c->p + i * c->ld + j, 1);
    do {
        const ptrdiff_t steps = depth < chain ? depth : chain;
        vf acc[MR][2];
        UNROLL for (int i = 0; i < m; i++) acc[i][0] = acc[i][1] = vzero();
        for (ptrdiff_t k = 0; k < steps; k++) {
            const vf b0 = walk == PARTIAL ? vload_first(pb, n0) : vload(pb);
            const vf b1 = walk == PARTIAL ? vload_first(pb + n0, n1) : vload(pb + VL);
            pb += b->ld;
            if (walk == ALONG_I) __builtin_prefetch(pa[0] + LINE); /* of the next rows */
            UNROLL for (int i = 0; i < m; i++)
            {
                const vf x = vset(pa[i / 3][i % 3 * row]);
                acc[i][0] = multiply_add(walk, x, b0, acc[i][0]);
                acc[i][1] = multiply_add(walk, x, b1, acc[i][1]);
            }
            UNROLL for (int i = 0; i < m; i += 3) pa[i / 3] += col;
        }
        UNROLL for (int i = 0; i < m; i++)
        {
            float *p = c->p + i * c->ld;
            if (walk == PARTIAL) {
                if (add) acc[i][0] += vload_first(p, n0), acc[i][1] += vload_first(p + n0, n1);
                vstore_first(p, acc[i][0], n0);
                vstore_first(p + n0, acc[i][1], n1);
            } else {
                if (add) acc[i][0] += vload(p), acc[i][1] += vload(p + VL);
                vstore(p, acc[i][0]);
                vstore(p + VL, acc[i][1]);
            }
        }
        depth -= steps;
        add = true;
    } while (depth > 0);
}

typedef void block_fn(const panel_size *size, const tile_a *a, const tile_b *b,
                      const tile_c *c);

#define BLOCK(m, walk)                                                                       \
    static void block_##m##_##walk(const panel_size *size, const tile_a *a, const tile_b *b, \
                                   const tile_c *c)                                          \
    {                                                                                        \
        tile_block(m, walk, size, a, b, c);                                                  \
    }
#define BLOCKS(m)      \
    BLOCK(m, ALONG_K)  \
    BLOCK(m, ALONG_I)  \
    BLOCK(m, ANY_WALK) \
    BLOCK(m, PARTIAL)  \
    BLOCK(m, PAIRS_K)  \
    BLOCK(m, PAIRS_I)
#define NAMES(m)                                                           \
    [m] = {block_##m##_ALONG_K, block_##m##_ALONG_I, block_##m##_ANY_WALK, \
           block_##m##_PARTIAL, block_##m##_PAIRS_K, block_##m##_PAIRS_I}

BLOCKS(1)
BLOCKS(2)
BLOCKS(3)
BLOCKS(4)
BLOCKS(5)
BLOCKS(6)
#if VEC_LANES == 16
BLOCKS(7)
BLOCKS(8)
BLOCKS(9)
BLOCKS(10)
BLOCKS(11)
BLOCKS(12)
#endif

static block_fn *const blocks[MR + 1][WALKS] = {
    NAMES(1), NAMES(2), NAMES(3), NAMES(4),  NAMES(5),  NAMES(6),
#if VEC_LANES == 16
    NAMES(7), NAMES(8), NAMES(9), NAMES(10), NAMES(11), NAMES(12),
#endif
};

/* A product of at most NR columns. */
typedef struct panel {
    ptrdiff_t m;
    panel_size size;
    tile_a a;
    tile_b b;
    tile_c c;
} panel;

static void panel_mul(enum walk walk, const panel *p)
{
    for (ptrdiff_t i = 0, left = (p->m + MR - 1) / MR; left > 0; left--) {
        const ptrdiff_t rows = (p->m - i + left - 1) / left; /* even: short blocks are slow */
        const tile_a a = {p->a.p + i * p->a.row, p->a.row, p->a.col, NULL};
        const tile_c c = {p->c.p + i * p->c.ld, p->c.ld, p->c.add};
        if (p->a.ahead) tile_fetch(p->a.ahead, p->a.ahead->share);
        blocks[rows][walk](&p->size, &a, &p->b, &c);
        i += rows;
    }
}

/* All panels of a product, `whole` being the walk of those with NR columns. */
static void panels_mul(enum walk whole, ptrdiff_t n, const panel *p)
{
    for (ptrdiff_t j = 0; j < n; j += NR) {
        panel part = *p;
        part.size.n = n - j < NR ? n - j : NR;
        part.b.p += j;
        part.c.p += j;
        panel_mul(part.size.n < NR ? PARTIAL : whole, &part);
    }
}

void tile_mul(ptrdiff_t m, ptrdiff_t n, ptrdiff_t depth, tile_a a, tile_b b, tile_c c)
{
    const panel p = {m, {NR, depth, depth}, a, b, c};
    panels_mul(a.col == 1 ? ALONG_K : a.row == 1 ? ALONG_I : ANY_WALK, n, &p);
}

void tile_dots(ptrdiff_t m, ptrdiff_t n, ptrdiff_t depth, tile_a a, tile_b b, tile_c c)
{
    const panel p = {m, {NR, depth, tile_chain(depth)}, a, b, c};
    panels_mul(ALONG_K, n, &p);
}

void tile_mul_pairs(ptrdiff_t m, ptrdiff_t words, tile_a a, tile_b b, tile_c c)
{
#if FFPA_MATRIX
    matrix_mul(m, words, a, b, c);
#else
    const bool dots = a.col == 1;
    const panel p = {m, {NR, words, dots ? TILE_CHAIN : words}, a, b, c};
    panel_mul(dots ? PAIRS_K : PAIRS_I, &p);
#endif
}
