/* backend.h - what a backend is to the rest of the library: a table of functions. core names none. */
#ifndef FFPA_CORE_BACKEND_H
#define FFPA_CORE_BACKEND_H

#include "core/problem.h"

struct ffpa_plan;

typedef struct backend {
    const char *name; /* as in ffpa_context_options.backend */

    /* Runs only when asked for by name or when the policy allows slow paths. */
    bool slow;

    /* Its tensors are in device memory; others take host tensors only. */
    bool on_device;

    /* Can it run this problem? true, or false with the reason in `why` (a clause, no full stop). */
    bool (*supports)(const ffpa_context *ctx, const problem *p, char *why, size_t why_bytes);

    /* Fill plan->report (path, tiles, workspace, splits, threads) and plan->impl. Slow lane. */
    ffpa_status (*plan)(struct ffpa_plan *plan);

    /* Compute. `workspace` is plan->report.workspace_bytes of 64-byte aligned memory (NULL if 0). */
    ffpa_status (*forward)(const struct ffpa_plan *plan, const call *c, void *workspace);
    ffpa_status (*backward)(const struct ffpa_plan *plan, const call *c, void *workspace);

    /* Free plan->impl. Optional. */
    void (*unplan)(struct ffpa_plan *plan);
} backend;

#endif
