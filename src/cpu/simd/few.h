/* few.h - the two products of a block with few rows, as in decode: memory-bound, so K and V are read
 * once, row by row, without a detour through scratch where possible.
 *
 * With few rows, rows as lanes would leave most lanes empty. Here the lanes run along the head
 * dimension: a score is a dot product, and O is kept as rows. Scores are still stored as S^T panels, so
 * that scores.h serves both. Each step prefetches the rows of the next one, evenly: bursts would
 * stall the loads behind them. */
#ifndef FFPA_CPU_SIMD_FEW_H
#define FFPA_CPU_SIMD_FEW_H

#include "cpu/simd/rows.h"

enum {
    FEW_ROWS = 16, /* most rows of such a block */
    MANY_KEYS =
        64, /* fewest keys: below, nothing is gained, and as tiles the scores are bit for bit
                       those that backward computes, so that one key has the weight 1 in both */
    FEW_KEYS =
        24 /* keys of a tile: whole steps of the scores, and enough for loops over them to
                     pay; K of a tile and V of the one before share L2 */
};

/* A tile of keys for these products. */
typedef struct few_tile {
    const row_block *rb;
    int64_t j0, end; /* first key of the tile; end of all keys to come, for prefetching */
    ptrdiff_t n;     /* keys of the tile */
    float *scratch;  /* [n][ld] for rows that are not contiguous */
    ptrdiff_t ld;
    float *s; /* S^T panels, panel_keys keys apart */
    ptrdiff_t panel_keys;
    int32_t k_dtype, v_dtype;      /* of the rows below: f32 when they are in scratch */
    const char *row[3 * FEW_KEYS]; /* as they are read: K of the tile, V of it, K of the next
                                       one; past its last key each repeats that */
} few_tile;

/* Find the rows of the tile that the other members describe. */
#define few_locate ISA_NAME(few_locate)
void few_locate(few_tile *t);

/* Floats between rows of Q in scratch. */
INLINE ptrdiff_t few_stride(ptrdiff_t d) { return (d + 15) / 16 * 16; }

/* Rows of Q as f32 rows few_stride(D) apart, zeros after the last column. */
#define few_load_q ISA_NAME(few_load_q)
void few_load_q(float *q, const row_block *rb);

/* S^T of the tile; lanes past the last row become 0. */
#define few_scores ISA_NAME(few_scores)
void few_scores(few_tile *t, const float *q);

/* V of the tile into scratch, as f32. */
#define few_copy_values ISA_NAME(few_copy_values)
void few_copy_values(few_tile *t);

/* O [rows][Dv] += P V (or = with `fresh`), P^T being in the panels. */
#define few_output ISA_NAME(few_output)
void few_output(const few_tile *t, float *o, bool fresh);

#endif
