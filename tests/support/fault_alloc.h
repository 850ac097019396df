/* fault_alloc.h - an allocator for a context that counts, and that can refuse allocation n. */
#ifndef FFPA_TESTS_FAULT_ALLOC_H
#define FFPA_TESTS_FAULT_ALLOC_H

#include "ffpa/ffpa.h"

#include <stdatomic.h>

typedef struct fault_alloc {
    _Atomic long asked;  /* allocations so far, refused ones included */
    _Atomic long live;   /* blocks not yet freed */
    _Atomic long refuse; /* number of the allocation to refuse, from 1; 0 = none */
} fault_alloc;

/* Context options with this allocator. */
ffpa_context_options fault_options(fault_alloc *f, const char *backend);

/* From now on, refuse the nth allocation (0 = none). */
void fault_refuse(fault_alloc *f, long nth);

#endif
