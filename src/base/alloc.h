/* alloc.h - host memory through the context's allocator; tests make each allocation fail in turn. */
#ifndef FFPA_BASE_ALLOC_H
#define FFPA_BASE_ALLOC_H

#include "base/status.h"

typedef struct allocator {
    ffpa_alloc_fn alloc;
    ffpa_free_fn free;
    void *user;
} allocator;

/* The C library's memory. */
extern const allocator allocator_default;

/* Zeroed memory, 64-byte aligned; NULL when it cannot be had (no sentence is stored). */
void *mem_new(const allocator *a, size_t bytes);

/* 64-byte aligned memory whose contents are unspecified; NULL when it cannot be had. */
void *mem_raw(const allocator *a, size_t bytes);

void mem_free(const allocator *a, void *memory);

#endif
