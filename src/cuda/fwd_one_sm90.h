/* fwd_one_sm90.h - forward on compute capability 9.0 with D and Dv up to 320: one block keeps 128 or 192
 * query rows in registers (kernels/sm90/fwd_one_sm90.cuh). */
#ifndef FFPA_CUDA_FWD_ONE_SM90_H
#define FFPA_CUDA_FWD_ONE_SM90_H

#include "cuda/families.h"
#include "cuda/fwd_parts.h"

typedef struct fwd_one_choice {
    int bm, bn, v_stages; /* tile rows, keys of a block, slots of V */
    int tiles, heads;     /* tiles of one head; heads that have so many */
    int head_group;       /* heads walked together */
    int blocks;           /* of threads */
    bool counted;         /* tiles are handed out by a counter in the workspace */
    bool wide;            /* o takes 16-byte stores */
    parts_choice parts;   /* of the tiles' keys */
} fwd_one_choice;

bool fwd_one_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes);
ffpa_status fwd_one_choose(const problem *p, const cuda_device *device, void *choice,
                           variant_list *kernels, ffpa_report *report);
ffpa_status fwd_one_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                        char *workspace);

#endif
