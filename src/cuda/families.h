/* families.h - which kernels serve which problem. A family is one strategy on one range of chips; the
 * table's order is the order of preference, and every refusal has its reason. */
#ifndef FFPA_CUDA_FAMILIES_H
#define FFPA_CUDA_FAMILIES_H

#include "core/plan.h"
#include "cuda/config.h"
#include "cuda/cuda_context.h"
#include "cuda/tensor_map.h"

/* A planned problem on a device. What it points at is the operation's own. */
typedef struct cuda_plan {
    const cuda_device *device;
    const struct family *family;
    void *choice;                             /* tiles, grids, workspace layout */
    const cuda_kernel *kernels[MAX_VARIANTS]; /* in the order of the choice's variants */
    map_cache *maps; /* for families that take tensor maps, else NULL */
} cuda_plan;

typedef struct family {
    const char *name; /* "sm80": the path is "cuda/sm80/forward" */
    ffpa_op op;
    int min_cc, max_cc; /* compute capabilities it runs on */

    /* Can it compute this problem? If not, why (a clause). */
    bool (*supports)(const problem *p, const cuda_device *device, char *why, size_t why_bytes);

    /* Is it the right one where a later family would do, too? If not, why. Not asked when it alone is allowed.
     * NULL = always. */
    bool (*prefers)(const problem *p, const cuda_device *device, char *why, size_t why_bytes);

    /* Bytes of a choice, and making one: tiles, launch sizes, workspace, and the kernels needed.
     * Fills the report's path, tiles, splits and workspace. */
    size_t choice_bytes;
    ffpa_status (*choose)(const problem *p, const cuda_device *device, void *choice,
                          variant_list *kernels, ffpa_report *report);

    /* Enqueue. The device's context is current. */
    ffpa_status (*run)(const ffpa_plan *plan, const cuda_plan *own, const call *c,
                       char *workspace);

    bool maps; /* do its runs take tensor maps? */
} family;

extern const family FAMILIES[]; /* ends with a NULL name */

/* The first family that takes the problem, among those called `only` (NULL = all); NULL, with every refusal
 * in `why`, when none does. */
const family *family_for(const problem *p, const cuda_device *device, const char *only,
                         char *why, size_t why_bytes);

#endif
