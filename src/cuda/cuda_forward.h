/* cuda_forward.h - forward on sm_80 and newer: one kernel, and where few rows meet many keys a split over
 * the keys with a second kernel that combines. Decode and paged caches are this with other constants. */
#ifndef FFPA_CUDA_FORWARD_H
#define FFPA_CUDA_FORWARD_H

#include "cuda/config.h"
#include "cuda/families.h"

typedef struct forward_choice {
    int bm, bn, wm, wn, panels,
        stages;  /* tile rows and keys, warps along each, ring of slots */
    bool packed; /* the heads of a group are rows of one tile */
    int heads, tiles, splits;
    size_t lse_part;     /* byte offset in the workspace */
    int append, combine; /* index of that kernel, -1 = not needed; the attention kernel is 0 */
    bool nothing;        /* no element to write */
    bool spare;          /* v has no columns: one in the workspace stands for them */
    size_t spare_at;
} forward_choice;

bool forward_supports(const problem *p, const cuda_device *device, char *why, size_t why_bytes);
ffpa_status forward_choose(const problem *p, const cuda_device *device, void *choice,
                           variant_list *kernels, ffpa_report *report);
ffpa_status forward_run(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                        char *workspace);

#endif
