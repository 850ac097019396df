/* judge_paths.h - the contexts under test, one per backend and instruction set of this machine. */
#ifndef FFPA_TESTS_JUDGE_PATHS_H
#define FFPA_TESTS_JUDGE_PATHS_H

#include "ffpa/ffpa.h"

#include <stdbool.h>

typedef struct judge_path {
    const char *name; /* such as "cpu/avx2" */
    const char *backend;
    const char *isa;
    ffpa_context *ctx;
    bool slow; /* the oracle itself: heavy cases run fewer times */
} judge_path;

/* Every path this machine can run, two threads each; ends with a row whose ctx is NULL. A path that
 * cannot be created for another reason than a missing instruction set fails the running test.
 * FFPA_TEST_PATH in the environment keeps only the paths whose name contains it; "cuda" or "cuda/FAMILY" is the
 * GPU, which runs only when asked for. */
const judge_path *judge_paths(void);

/* The yardsticks. */
ffpa_context *judge_reference(void);
ffpa_context *judge_naive(void);

/* A context of its own for a path, with another thread count. */
ffpa_context *judge_context(const char *backend, const char *isa, int threads);

/* FFPA_TEST_SCALE from the environment, at least 1: how many times the usual work to do. */
int judge_scale(void);

/* FFPA_TEST_EFFORT=quick, for sanitizer builds: long sweeps thin themselves out. The portable path, which is
 * the same source as the others, and the reference, which runs as the oracle anyway, are only judged where
 * FFPA_TEST_PATH asks for them. */
bool judge_quick(void);

/* FFPA_TEST_SHARD=2/5: of a program's settings or problems, in order, every fifth from the second on. Is the n-th
 * among them? Several processes share a slow program so. */
bool judge_in_shard(unsigned n);

#endif
