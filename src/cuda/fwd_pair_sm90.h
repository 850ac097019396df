/* fwd_pair_sm90.h - forward on compute capability 9.0 for heads of 257 to 576: pairs of blocks that share 128
 * query rows (kernels/sm90/fwd_pair_sm90.cuh). */
#ifndef FFPA_CUDA_FWD_PAIR_SM90_H
#define FFPA_CUDA_FWD_PAIR_SM90_H

#include "cuda/config.h"
#include "cuda/families.h"
#include "cuda/fwd_parts.h"

typedef struct pair_choice {
    int vrows, stages, flight, klag, swap_at, regs; /* FFPA_* of the kernel */
    int tiles;                                      /* lines of 128 query rows of one head */
    parts_choice parts;                             /* of their keys */
} pair_choice;

bool pair_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes);
ffpa_status pair_choose(const problem *p, const cuda_device *device, void *choice,
                        variant_list *kernels, ffpa_report *report);
ffpa_status pair_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                     char *workspace);

#endif
