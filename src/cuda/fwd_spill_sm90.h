/* fwd_spill_sm90.h - forward on compute capability 9.0 for heads above 576: P goes to a bounded workspace, then a
 * product makes O of it (kernels/sm90/fwd_spill_plan_sm90.cuh). */
#ifndef FFPA_CUDA_FWD_SPILL_SM90_H
#define FFPA_CUDA_FWD_SPILL_SM90_H

#include "cuda/config.h"
#include "cuda/families.h"

/* A chunk is `heads` whole heads, or rows of one when not even one fits. */
typedef struct spill_choice {
    int heads, q_tiles;    /* of a chunk: heads, tiles of 128 rows of each */
    int k_blocks, k_tiles; /* of 64 and of 192 keys */
    int run_blocks, side;  /* blocks of a run of P; heads walked side by side */
    size_t zero, moved, factor, inverse, base; /* byte offsets in the workspace; P is at 0 */
} spill_choice;

bool spill_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes);
bool spill_prefers(const problem *p, const cuda_device *device, char *why, size_t why_bytes);
ffpa_status spill_choose(const problem *p, const cuda_device *device, void *choice,
                         variant_list *kernels, ffpa_report *report);
ffpa_status spill_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                      char *workspace);

#endif
