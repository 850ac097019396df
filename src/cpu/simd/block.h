/* block.h - attention of one block of query rows over a range of keys: the inside of forward. */
#ifndef FFPA_CPU_SIMD_BLOCK_H
#define FFPA_CPU_SIMD_BLOCK_H

#include "cpu/simd/few.h"
#include "cpu/simd/pairs.h"
#include "cpu/simd/scores.h"

/* Tiles of one problem; a function of its shape alone, so that results are too. */
typedef struct tiles {
    int bm, bn;          /* most rows of a block; keys of a tile */
    ptrdiff_t d, dv, ld; /* ld: stride of K and V rows in scratch */
    ptrdiff_t ld_k;      /* with pairs: words between rows of K */
    ptrdiff_t ld_v;      /* the same of rows, or columns, of V */
    size_t bias;         /* floats of mask scratch */
    size_t keep;         /* floats of dropout scratch */
    bool pairs;          /* bf16 that is multiplied as it is */
    bool exact;          /* f32, whose large scores are added up in f64 */
} tiles;

/* Scratch of one worker, cut from the workspace. On the right: blocks of few rows (few.h). With
 * tiles.pairs, q and kv hold words of two bf16 (pairs.h). */
typedef struct block_scratch {
    float *q;     /* [bm / NR][d][NR]  rows of Q                        [rows][few_stride(d)] */
    float *o;     /* [bm / NR][dv][NR] sum of P V, not normalised       [rows][dv] */
    float *kv;    /* [bn][ld] a tile of K, then the same tile of V */
    float *s;     /* [bm / NR][bn][NR] scores, then weights */
    float *bias;  /* see scores.h */
    float *keep;  /* [bn][NR] */
    float *pairs; /* [bm / NR][bn / 2][NR] weights as words, with tiles.pairs */
    float *low;   /* [bn][NR] what scores lack, with tiles.exact (scores_exact.c) */
    float *panel; /* [d][NR] few rows of Q as a panel, with tiles.exact */
    float *columns; /* [dv][ld_v] a tile of V as columns of words, on a matrix unit */
} block_scratch;

/* State after the keys seen so far: o = sum e^(s - m) v and l = sum e^(s - m), per lane. */
typedef struct block_state {
    row_block rb;
    scores sc;
    float m[MAX_ROWS], l[MAX_ROWS];
    float rounded[MAX_ROWS];       /* with tiles.pairs: l of the weights as bf16 */
    tile_part part[MAX_ROWS / NR]; /* of the tile, for each panel */
    bool few;                      /* at most FEW_ROWS rows */
    bool fresh;                    /* no key yet: o is not initialised */
    int64_t end;                   /* of the keys to come */
} block_state;

#define tiles_of ISA_NAME(tiles_of)
tiles tiles_of(const problem *p);

#define block_scratch_bytes ISA_NAME(block_scratch_bytes)
size_t block_scratch_bytes(const tiles *t);

#define block_scratch_at ISA_NAME(block_scratch_at)
block_scratch block_scratch_at(const tiles *t, void *memory);

/* Run the rows of st->rb over keys first .. last - 1. */
#define block_run ISA_NAME(block_run)
void block_run(block_state *st, const tiles *t, const block_scratch *w, int64_t first,
               int64_t last);

/* Row r of o, as `dv` floats times `factor`; 0 gives 0 whatever is there. */
#define block_row ISA_NAME(block_row)
void block_row(const block_state *st, const tiles *t, const block_scratch *w, int r, float *row,
               float factor);

/* Weight of a row's sum and its LSE, from m, l and the sink (NULL = none). */
#define block_finish ISA_NAME(block_finish)
float block_finish(float m, float l, const float *sink, float *lse);

#endif
