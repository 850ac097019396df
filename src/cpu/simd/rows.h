/* rows.h - query rows packed into lanes, and rows of K and V brought into cache as f32.
 *
 * The query heads of a group share keys, so their rows are packed together: packed row r is query
 * r / group of head hk * group + r % group. A block is some of these rows; lanes past its last row
 * repeat that row, so that no loop over lanes needs a tail. Lane arrays ("panels") hold NR lanes
 * side by side: element (d, lane) of a panel is p[d * NR + lane]. */
#ifndef FFPA_CPU_SIMD_ROWS_H
#define FFPA_CPU_SIMD_ROWS_H

#include "core/sequence.h"
#include "cpu/simd/tile.h"

enum { MAX_ROWS = 256 }; /* rows of a block; a multiple of every NR */

/* Which rows: packed rows row0 .. row0 + rows - 1 of sequence b and key head hk. */
typedef struct row_place {
    int64_t b, hk, row0;
    int rows;
} row_place;

typedef struct row_block {
    const call *c;
    const sequence *s;
    int64_t b, hk;
    int rows, lanes;         /* lanes = rows rounded up to NR */
    int64_t first, last;     /* keys that some row may see */
    int64_t query[MAX_ROWS]; /* of each lane: query index, query head, keys it may see */
    int64_t head[MAX_ROWS];
    int64_t from[MAX_ROWS], to[MAX_ROWS];
} row_block;

#define row_block_set ISA_NAME(row_block_set)
void row_block_set(row_block *rb, const ffpa_problem *ask, const call *c, const sequence *s,
                   row_place at);

/* Do rows of t lie in one piece? */
INLINE bool row_contiguous(const ffpa_tensor *t)
{
    return t->stride[3] == 1 || t->shape[3] == 1;
}

/* n elements, `stride` apart, as f32. BOOL becomes 0 where set and -inf where not. */
#define row_load ISA_NAME(row_load)
void row_load(float *dst, const void *src, int32_t dtype, int64_t stride, ptrdiff_t n);

/* n f32 rounded to dtype (f32, f16, bf16), `stride` elements apart. */
#define row_store ISA_NAME(row_store)
void row_store(void *dst, int32_t dtype, int64_t stride, const float *src, ptrdiff_t n);

/* Are all n floats finite? */
#define row_finite ISA_NAME(row_finite)
bool row_finite(const float *x, ptrdiff_t n);

/* Keys j0 .. j0 + n - 1 of k or v, head hk, as f32 rows `ld` apart. */
#define rows_load_keys ISA_NAME(rows_load_keys)
void rows_load_keys(float *dst, ptrdiff_t ld, const row_block *rb, const ffpa_tensor *t,
                    int64_t j0, ptrdiff_t n);

/* Rows of q (or dout) as panels [lanes / NR][shape[3]][NR]. */
#define rows_to_panels ISA_NAME(rows_to_panels)
void rows_to_panels(float *panels, const row_block *rb, const ffpa_tensor *t);

/* Lane r of panels as a row of `dim` floats times `factor`; 0 gives 0 whatever is there. */
#define panel_row ISA_NAME(panel_row)
void panel_row(float *row, const float *panels, ptrdiff_t dim, int r, float factor);

/* Write a row of floats, times `factor` as above, to lane r's row of o (or dq). */
#define row_out ISA_NAME(row_out)
void row_out(const row_block *rb, const ffpa_tensor *t, int r, const float *row, float factor);

/* Both, for all rows: lane r is multiplied by factor[r]. */
#define rows_from_panels ISA_NAME(rows_from_panels)
void rows_from_panels(const row_block *rb, const ffpa_tensor *t, const float *panels,
                      const float *factor);

#endif
