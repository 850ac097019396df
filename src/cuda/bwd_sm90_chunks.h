/* bwd_sm90_chunks.h - which chunk of heads and lines fills the multiprocessors best. */
#ifndef FFPA_CUDA_BWD_SM90_CHUNKS_H
#define FFPA_CUDA_BWD_SM90_CHUNKS_H

#include "cuda/cuda_backward.h"

/* Columns of a product, whole panels of 64. */
static inline int columns_sm90(int64_t columns) { return (int)((columns + 63) / 64 * 64); }

/* Sets heads, rows and partial. Lines, ld, keys of a tile and sums are there. */
void chunks_sm90_choose(const problem *p, const cuda_device *device, backward_choice *x);

/* Are sums of dV and dK, over so many lines of so many heads of a group, the longer ones? The longest come
 * first. */
bool products_keys_first(const ffpa_problem *a, int64_t lines, int64_t heads);

#endif
