/* poison_alloc.h - host memory that is full of NaN when it comes: who reads scratch before writing it shows. */
#ifndef FFPA_TEST_POISON_ALLOC_H
#define FFPA_TEST_POISON_ALLOC_H

#include <stddef.h>

/* ffpa_alloc_fn and ffpa_free_fn; `user` is not used. */
void *poison_alloc(void *user, size_t bytes, size_t alignment);
void poison_free(void *user, void *memory);

#endif
