/* fuzz_view.h - tensors and index arrays from fuzzer input, each in a block of exactly the bytes that
 * it reaches. */
#ifndef FFPA_FUZZ_VIEW_H
#define FFPA_FUZZ_VIEW_H

#include "harness.h"

#include "ffpa/ffpa.h"

#include <stdbool.h>

enum { BLOCKS = 40, MOST_BYTES = 1 << 16 };
static void *block[BLOCKS];
static int blocks;

static void *fresh(int64_t bytes, taker *t)
{
    unsigned char *memory = malloc(bytes > 0 ? (size_t)bytes : 1);
    MUST(memory && blocks < BLOCKS);
    uint32_t x = take_byte(t) * 2654435761u + 1;
    for (int64_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 26);
    return block[blocks++] = memory;
}

static int64_t element_bytes(int32_t dtype)
{
    return dtype == FFPA_F64 || dtype == FFPA_I64    ? 8
           : dtype == FFPA_F32 || dtype == FFPA_I32  ? 4
           : dtype == FFPA_F16 || dtype == FFPA_BF16 ? 2
                                                     : 1;
}

/* A view like the one wanted, sometimes with another shape, stride, dtype or somebody else's memory. */
static ffpa_tensor take_view(taker *t, int32_t dtype, const int64_t want[4],
                             const ffpa_tensor *share)
{
    ffpa_tensor v = ffpa_tensor_4d(NULL, (ffpa_dtype)dtype, want[0], want[1], want[2], want[3]);
    const uint8_t odd = take_byte(t);
    int64_t low = 0, high = 1, count = 1;
    if (odd & 1) v.shape[take_byte(t) & 3] = take_byte(t) & 7;
    if (odd & 2) v.stride[take_byte(t) & 3] = (int8_t)take_byte(t);
    if (odd & 4) v.dtype = take_byte(t) & 15;
    if ((odd & 24) == 24) return (ffpa_tensor){0};
    for (int i = 0; i < 4; i++) {
        const int64_t reach = v.stride[i] * (v.shape[i] - 1);
        *(reach < 0 ? &low : &high) += reach;
        count *= v.shape[i];
    }
    const int64_t size = element_bytes(v.dtype);
    if (count == 0) low = 0, high = 0;
    if ((high - low) * size > MOST_BYTES) return (ffpa_tensor){0};
    if ((odd & 96) == 96 && share->data && memcmp(v.shape, share->shape, sizeof v.shape) == 0 &&
        v.dtype == share->dtype)
        return *share;
    v.data = (char *)fresh((high - low) * size, t) - low * size;
    return v;
}

static const void *take_indices(taker *t, int64_t n, int32_t dtype)
{
    void *array = fresh(n * element_bytes(dtype), t);
    for (int64_t i = 0, at = 0; i < n; i++) {
        at = take_byte(t) & 128 ? at + (take_byte(t) & 7) : (int8_t)take_byte(t) % 16;
        if (dtype == FFPA_I64)
            ((int64_t *)array)[i] = at;
        else if (dtype == FFPA_I32)
            ((int32_t *)array)[i] = (int32_t)at;
    }
    return array;
}

static void free_blocks(void)
{
    while (blocks > 0)
        free(block[--blocks]);
}

#endif
