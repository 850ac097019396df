/* bwd_fused_sm90.h - backward on compute capability 9.0 with D and Dv up to 128: P and dS stay in registers, one launch
 * for dK and dV and one for dQ (kernels/sm90/bwd_fused_sm90.cuh). */
#ifndef FFPA_CUDA_BWD_FUSED_SM90_H
#define FFPA_CUDA_BWD_FUSED_SM90_H

#include "cuda/cuda_backward.h"

/* Sides whose rows a block of threads owns. */
enum { FUSED_QUERIES, FUSED_KEYS, FUSED_SIDES };

typedef struct fused_side {
    int kernel;       /* index, -1 = nothing is asked of it */
    int bn;           /* walked rows of a block */
    int tiles, heads; /* tiles of one head; heads that have so many */
    int head_group;   /* heads walked together */
    bool wide[2];     /* outputs take 16-byte stores */
} fused_side;

typedef struct fused_choice {
    backward_choice shared; /* delta, dsink and the workspace; must be first */
    fused_side side[FUSED_SIDES];
} fused_choice;

bool fused_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes);
ffpa_status fused_choose(const problem *p, const cuda_device *device, void *choice,
                         variant_list *kernels, ffpa_report *report);
ffpa_status fused_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                      char *workspace);

#endif
