/* compare.h - how far a tensor is from what it should be. */
#ifndef FFPA_CLI_COMPARE_H
#define FFPA_CLI_COMPARE_H

#include "tensors.h"

typedef struct difference {
    double max_error;    /* over elements that are finite on both sides */
    double max_expected; /* largest finite magnitude expected */
    double relative_l2;  /* ||got - expected|| / ||expected||; 0 when both are 0 */
    int64_t compared;
    int64_t pattern;  /* elements whose NaN, +inf, -inf or finiteness differs */
    int64_t first[4]; /* the first of those */
} difference;

/* Compare equally shaped tensors. Only rows n with keep[n] != 0 count, unless `keep` is NULL. */
difference compare_tensors(const ffpa_tensor *got, const ffpa_tensor *expected,
                           const unsigned char *keep);

/* The accept rule of docs/numerics.md: at most 2 times the naive way's error + 1e-5, 3 times for a
 * gradient, and nothing out of pattern. `bound` gets the largest error allowed. */
bool difference_accept(const difference *ours, const difference *naive, bool gradient,
                       double *bound);

#endif
