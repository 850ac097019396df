/* alloc.c - the default allocator and the two ways of asking. */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

static void *default_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    void *memory = NULL;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void default_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

const allocator allocator_default = {default_alloc, default_free, NULL};

void *mem_raw(const allocator *a, size_t bytes)
{
    return a->alloc(a->user, bytes ? bytes : 1, ALIGNMENT);
}

void *mem_new(const allocator *a, size_t bytes)
{
    void *memory = mem_raw(a, bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

void mem_free(const allocator *a, void *memory)
{
    if (memory) a->free(a->user, memory);
}
