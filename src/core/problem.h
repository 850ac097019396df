/* problem.h - what is asked, without pointers: the key of the plan cache and the subject of every
 * "can you?" put to a backend. */
#ifndef FFPA_CORE_PROBLEM_H
#define FFPA_CORE_PROBLEM_H

#include "core/call.h"
#include "core/dtype.h"

#include <stdbool.h>

/* Outputs that a call asks for. */
enum { OUT_LSE = 1, OUT_DQ = 2, OUT_DK = 4, OUT_DV = 8, OUT_DMASK = 16, OUT_DSINK = 32 };

/* Where lengths come from. */
enum { VARLEN_Q = 1, VARLEN_K = 2, CACHE_LENGTHS = 4, CACHE_PAGED = 8 };

/* Tensors whose rows all start at 16 bytes and are dense: what wide copies need. Boxed ones besides lie
 * forwards: axes longer than 1 have strides above 0 and below 2^40 bytes, as a copy engine wants. */
enum {
    ALIGNED_Q = 1,
    ALIGNED_K = 2,
    ALIGNED_V = 4,
    ALIGNED_DOUT = 8,
    BOXED_Q = 16,
    BOXED_K = 32,
    BOXED_V = 64,
    BOXED_O = 128,
    BOXED_DOUT = 256,
    BOXED_DQ = 512,
    BOXED_DK = 1024,
    BOXED_DV = 2048
};

/* A problem and what planning needs besides. All bytes are significant (it is hashed): make one with
 * problem_of_call or problem_of_ask, which zero it first. */
typedef struct problem {
    ffpa_problem ask; /* b = sequences; nq, nk = longest known sequence; lengths[] unused */
    uint32_t sources; /* VARLEN_*, CACHE_* */
    uint32_t outputs; /* OUT_* */
    int32_t o_dtype;
    int32_t device;               /* FFPA_HOST or FFPA_CUDA(i) */
    int32_t dlse, dropping;       /* 0 or 1: dlse given; dropout struct given */
    int32_t new_keys, row_subset; /* 0 or 1 */
    uint32_t
        aligned; /* ALIGNED_*, BOXED_*; 0 for host tensors, whose paths do not differ by it */
    int32_t dout_dtype, dq_dtype, dk_dtype, dv_dtype, dmask_dtype; /* 0 = absent */
    int64_t total_q, total_k; /* rows of q and k over all sequences (B * N when dense) */
    uint64_t workspace_limit_bytes;
} problem;

/* Every rule about shapes, dtypes, strides and options, checked once. `fn` opens each sentence.
 * Index arrays (offsets, lengths, pages) in host memory are checked by sequences_check, not here. */
ffpa_status problem_of_call(problem *p, const call *c, const char *fn);

/* The problem that contiguous host tensors of `ask` would give. */
ffpa_status problem_of_ask(problem *p, const ffpa_problem *ask, const char *fn);

/* The same problem with its contiguous tensors on a device. */
void problem_move(problem *p, int32_t device);

/* Keys that causal and window leave to query i of a sequence of nq rows and nk keys: [first, last),
 * clipped to the sequence; first == last when none is left. */
typedef struct key_range {
    int64_t first, last;
} key_range;
key_range key_range_of(const ffpa_problem *a, int64_t nq, int64_t nk, int64_t i);

#endif
