/* judge_sample.h - one call with all its tensors: built, run and run again on other paths or copies. */
#ifndef FFPA_TESTS_JUDGE_TRIAL_H
#define FFPA_TESTS_JUDGE_TRIAL_H

#include "support/tensor_make.h"

typedef enum role {
    Q,
    K,
    V,
    MASK,
    ALIBI,
    SINK,
    DOUT,
    DLSE,
    K_NEW,
    V_NEW,
    O,
    LSE,
    DQ,
    DK,
    DV,
    DMASK,
    DSINK,
    ROLES
} role;

extern const char *const role_name[ROLES];

/* Zero sizes mean: b = hq = 1, hk = hq, dv = d. A size of -1 is a real 0. */
typedef struct sample_spec {
    int32_t dtype;
    int64_t b, hq, hk, nq, nk, d, dv;
    bool backward;   /* dout, dq, dk, dv too */
    int32_t o_dtype; /* 0 = dtype */
    tensor_layout layout[ROLES];
} sample_spec;

typedef struct sample {
    sample_spec spec;
    ffpa_forward_params f; /* options; tensors are filled in when it runs */
    ffpa_backward_params g;
    ffpa_dropout dropout; /* used when f.dropout points here; likewise below */
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
    tensor *t[ROLES]; /* NULL = absent */
} sample;

/* Inputs hold H fill (q 0, k 10^6, v 2*10^6, dout 3*10^6), outputs poison; scale is 1. */
sample *sample_new(const sample_spec *spec);

/* Replace or add a tensor, which the sample owns from now on; NULL takes it away. Returns `given`. */
tensor *sample_put(sample *t, role r, tensor *given);

/* Turn on an option; the values may be changed afterwards. */
void sample_use_dropout(sample *t, float p, uint64_t seed, uint64_t offset);
void sample_use_window(sample *t, int64_t left, int64_t right);

/* Packed sequences; the arrays must outlive the sample. NULL = that side is dense. */
void sample_use_varlen(sample *t, int64_t batch, const int32_t *cu_q, const int32_t *cu_k);

/* Keys in a cache; likewise. Pages and entries are set in t->cache afterwards. */
void sample_use_cache(sample *t, const int32_t *lengths);

/* A bool [b, h, n, d] mask from values in logical order, non-zero = attend. */
void sample_use_mask(sample *t, const int64_t shape[4], const double *keep);

/* Contiguous copy with the same options: dtype 0 = as it is, FFPA_F64 = for the oracle. Index arrays
 * of varlen and cache are shared. */
sample *sample_copy(const sample *t, int32_t dtype);

void sample_free(sample *t);

/* Poison the outputs and call; then fail the test if anything else than an output has changed. */
ffpa_status sample_forward(sample *t, ffpa_context *ctx);
ffpa_status sample_backward(sample *t, ffpa_context *ctx);

/* Fill the tensor fields of t->f and t->g without calling. */
void sample_wire(sample *t);

/* The sample as a problem string, with what the string cannot say after it. */
const char *sample_text(const sample *t);

#endif
