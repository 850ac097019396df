/* context.h - what every call shares: options, thread pool, the backends allowed, the plan cache. */
#ifndef FFPA_CORE_CONTEXT_H
#define FFPA_CORE_CONTEXT_H

#include "base/pool.h"
#include "core/backend.h"

typedef struct plan_cache plan_cache;
typedef struct cuda_context cuda_context;

/* Vector instruction sets of the fast CPU backend, best last. */
typedef enum cpu_isa {
    ISA_PORTABLE = 0,
    ISA_AVX2 = 1,
    ISA_AVX512 = 2,
    ISA_AVX512_BF16 = 3,
    ISA_AMX_BF16 = 4
} cpu_isa;

enum { MAX_BACKENDS = 6 };

struct ffpa_context {
    allocator alloc;
    pool *pool;
    ffpa_policy policy;
    const backend *only;               /* the backend asked for by name, or NULL = any */
    const backend *list[MAX_BACKENDS]; /* in order of preference, NULL-terminated */
    cpu_isa isa;                       /* what the fast CPU backend may use */
    plan_cache *plans;
    cuda_context *cuda; /* the GPU backend's own; nothing in core looks inside */
    ffpa_log_fn log;
    void *log_user;
    char describe[1200];
};

/* Send a line to the caller's log, if there is one. */
void context_log(const ffpa_context *ctx, ffpa_log_level level, const char *fmt, ...)
    FFPA_PRINTF(3, 4);

#endif
