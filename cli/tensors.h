/* tensors.h - tensors that the program owns, and the memory they live in. */
#ifndef FFPA_CLI_TENSORS_H
#define FFPA_CLI_TENSORS_H

#include "ffpa/ffpa.h"

#include <stdbool.h>

/* Blocks that are freed together. Zero is empty. */
typedef struct arena {
    void **blocks;
    int count;
    size_t bytes;
} arena;

/* 64-byte aligned memory of at least one byte, NULL without memory: also when the arena would hold more
 * than the machine has. */
void *arena_alloc(arena *a, size_t bytes);
void arena_free(arena *a);

/* New tensor of this logical shape, in memory order [B, H, N, D], or [B, N, H, D] with `bnhd`. Every
 * byte is 0xff, a NaN in every float dtype: what nobody writes shows. False without memory. */
bool tensor_new(arena *a, ffpa_tensor *t, int32_t dtype, const int64_t shape[4], bool bnhd);

/* Element [b, h, n, d]. */
double tensor_get(const ffpa_tensor *t, const int64_t at[4]);
void tensor_set(const ffpa_tensor *t, const int64_t at[4], double value);

/* Step `at` to the next element in logical order; false after the last. Start from zeros, and only
 * if tensor_elements is not 0. */
bool tensor_next(const ffpa_tensor *t, int64_t at[4]);

int64_t tensor_elements(const ffpa_tensor *t);

/* Copy of `from` in another dtype, with its memory order. False without memory. */
bool tensor_convert(arena *a, ffpa_tensor *to, const ffpa_tensor *from, int32_t dtype);

#endif
