/* poison_alloc.c - see poison_alloc.h. */
#include "support/poison_alloc.h"

#include <stdlib.h>
#include <string.h>

void *poison_alloc(void *user, size_t bytes, size_t alignment)
{
    void *memory = NULL;
    (void)user;
    if (posix_memalign(&memory, alignment, bytes) != 0) return NULL;
    return memset(memory, 0xff, bytes);
}

void poison_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}
