/* fault_alloc.c - see fault_alloc.h. */
#include "support/fault_alloc.h"

#include <stdlib.h>
#include <string.h>

static void *counted_alloc(void *user, size_t bytes, size_t alignment)
{
    fault_alloc *f = user;
    void *memory = NULL;
    if (atomic_fetch_add(&f->asked, 1) + 1 == atomic_load(&f->refuse)) return NULL;
    if (posix_memalign(&memory, alignment, bytes) != 0) return NULL;
    memset(memory, 0xa5, bytes); /* whoever relies on zeros without asking for them shows */
    atomic_fetch_add(&f->live, 1);
    return memory;
}

static void counted_free(void *user, void *memory)
{
    fault_alloc *f = user;
    atomic_fetch_sub(&f->live, 1);
    free(memory);
}

ffpa_context_options fault_options(fault_alloc *f, const char *backend)
{
    return (ffpa_context_options){.struct_size = sizeof(ffpa_context_options),
                                  .backend = backend,
                                  .threads = 3,
                                  .alloc = counted_alloc,
                                  .free = counted_free,
                                  .alloc_user = f};
}

void fault_refuse(fault_alloc *f, long nth)
{
    atomic_store(&f->asked, 0);
    atomic_store(&f->refuse, nth);
}
