/* cuda_backward.h - backward on sm_80 and newer, in stages that later families can replace one by one:
 *   delta  rowsum(dO * O) - dLSE
 *   pds    recompute S and dP, write P and dS of a chunk to the workspace
 *   renorm with an added mask: rows whose LSE is too coarse for the sum's logarithm
 *   gemm   dV = P^T dO,  dK = dS^T Q,  dQ = dS K
 * Deterministic: no atomics, sums in one order. The workspace is bounded by walking the problem in chunks
 * of kv groups, else of heads of a group, else of lines of query tiles. */
#ifndef FFPA_CUDA_BACKWARD_H
#define FFPA_CUDA_BACKWARD_H

#include "cuda/config.h"
#include "cuda/families.h"

/* Places in the workspace, in bytes; a part that is not needed has no size. */
typedef struct backward_layout {
    size_t delta, p, ds, dbias, dk_partial, dv_partial, dmask_partial, bytes;
} backward_layout;

typedef struct backward_choice {
    int64_t ld;      /* keys of a row of P and dS */
    int lines;       /* lines of 128 query rows, of one head over all sequences */
    int key_lines;   /* the same of keys */
    int heads, rows; /* of a chunk: query heads, lines */
    int pds_rows;    /* of a block of the pds kernel */
    bool partial;    /* a kv head takes several chunks */
    bool dmask_partial;
    int delta, pds, renorm, dv, dk, dq, dmask,
        dsink;                              /* index of each kernel, -1 = not needed */
    int dv_columns, dk_columns, dq_columns; /* of a tile of each product */
    backward_layout at;
} backward_choice;

bool backward_supports(const problem *p, const cuda_device *device, char *why,
                       size_t why_bytes);
ffpa_status backward_choose(const problem *p, const cuda_device *device, void *choice,
                            variant_list *kernels, ffpa_report *report);
ffpa_status backward_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                         char *workspace);

#endif
