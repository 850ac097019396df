/* tensor_map.h - tensor maps: how the copy engine of compute capability 9.0 and newer finds a box of a
 * tensor. A kernel takes them by value in its arguments (k_map of common/args.h). */
#ifndef FFPA_CUDA_TENSOR_MAP_H
#define FFPA_CUDA_TENSOR_MAP_H

#include "base/alloc.h"
#include "common/args.h"
#include "cuda/driver.h"
#include "ffpa/ffpa.h"

/* What a map is made of, innermost axis first. All bytes are significant: make one with map_rows or
 * map_chunks. */
typedef struct map_shape {
    void *data;
    int64_t extent[5];       /* elements */
    int64_t stride_bytes[4]; /* of axes 1.. */
    int32_t box[5];          /* elements that one copy moves along each axis */
    int32_t rank, dtype, reserved;
} map_shape;

/* Boxes of `rows` tokens (at most 256) x one chunk of 128 bytes, from any column: axes D, N, H, B. Columns
 * and rows outside read as zeros. The tensor is boxed (core/problem.h) and not empty. */
map_shape map_rows(const ffpa_tensor *t, int rows);

/* Boxes of `rows` tokens x `chunks` whole chunks: axes 128 bytes, N, chunk, H, B. A chunk that is not
 * whole reads as zeros. */
map_shape map_chunks(const ffpa_tensor *t, int rows, int chunks);

/* The maps of the last few sets of pointers that a plan ran with, so that a call encodes none again. Any
 * thread; a lookup holds its lock for the copy of a few hundred bytes. */
enum { MAP_SET = 8 }; /* most maps of one launch */
typedef struct map_cache map_cache;
map_cache *map_cache_new(const allocator *a); /* NULL = no memory */
void map_cache_free(map_cache *cache);        /* NULL is fine */

/* The maps of `count` shapes. E_DRIVER when the driver refuses one. */
ffpa_status map_cache_get(map_cache *cache, const driver *drv, const map_shape *shapes,
                          int count, k_map *maps);

#endif
