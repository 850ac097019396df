/* array.h - one n-dimensional array found in a file: what it is and where its bytes are. */
#ifndef FFPA_CLI_ARRAY_H
#define FFPA_CLI_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARRAY_RANK_MAX 8

typedef struct array {
    const char *name;   /* owned by the reader; "" in .npy */
    const char *stored; /* dtype as the file spells it, likewise */
    int32_t dtype;      /* ffpa_dtype, or 0: one that attention has no use for */
    int32_t rank;
    int64_t shape[ARRAY_RANK_MAX];
    int64_t stride[ARRAY_RANK_MAX]; /* elements */
    size_t offset, bytes;           /* of its data in the file */
} array;

/* Bytes of `rank` dimensions. False when they overflow, with zero dimensions counted as one, so
 * that strides cannot overflow either. */
bool array_bytes(const int64_t *shape, int rank, size_t item_bytes, size_t *bytes);

/* Row-major strides, or column-major. */
void array_strides(array *a, bool column_major);

#endif
