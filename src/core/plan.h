/* plan.h - how a problem will run. Immutable once made; counted, because the cache, the caller and
 * running calls may all hold it. */
#ifndef FFPA_CORE_PLAN_H
#define FFPA_CORE_PLAN_H

#include "core/context.h"

#include <stdatomic.h>

struct ffpa_plan {
    ffpa_context *ctx;
    problem prob;
    const backend *be;
    ffpa_report report;
    void *impl; /* the backend's own */
    _Atomic int references;
};

/* Choose a backend for `prob` and let it plan. With FFPA_E_UNSUPPORTED the sentence lists every
 * refusal; `refusals` (may be NULL) gets the list in either case. Release with plan_release. */
ffpa_status plan_make(ffpa_context *ctx, const problem *prob, const char *fn, ffpa_plan **plan,
                      ffpa_report *refusals);

void plan_release(ffpa_plan *plan); /* NULL is fine */

/* ---- cache: at most PLAN_CACHE_ENTRIES plans, the least recently used one leaves ---- */

plan_cache *plan_cache_new(const allocator *a);
void plan_cache_free(plan_cache *cache); /* NULL is fine */

/* The plan of `prob`, made on a miss. The caller releases it. Any thread. */
ffpa_status plan_get(ffpa_context *ctx, const problem *prob, const char *fn, ffpa_plan **plan);

/* Every rule that is left once a call is planned, about addresses and what index arrays on the host hold;
 * all but whether the workspace will do; `asking` as in call_check_memory. */
ffpa_status plan_check(const ffpa_plan *plan, const call *c, bool asking, const char *fn);

/* Run a plan: find or allocate the workspace, call the backend, remember the path. */
ffpa_status plan_run(const ffpa_plan *plan, const call *c, const char *fn);

#endif
