/* judge_trial.h - one call with all its tensors: built, run and run again on other paths or copies. */
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
typedef struct trial_spec {
    int32_t dtype;
    int64_t b, hq, hk, nq, nk, d, dv;
    bool backward;   /* dout, dq, dk, dv too */
    int32_t o_dtype; /* 0 = dtype */
    tensor_layout layout[ROLES];
} trial_spec;

typedef struct trial {
    trial_spec spec;
    ffpa_forward_params f; /* options; tensors are filled in when it runs */
    ffpa_backward_params g;
    ffpa_dropout dropout; /* used when f.dropout points here; likewise below */
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
    tensor *t[ROLES]; /* NULL = absent */
} trial;

/* Inputs hold H fill (q 0, k 10^6, v 2*10^6, dout 3*10^6), outputs poison; scale is 1. */
trial *trial_new(const trial_spec *spec);

/* Replace or add a tensor, which the trial owns from now on; NULL takes it away. Returns `given`. */
tensor *trial_put(trial *t, role r, tensor *given);

/* Turn on an option; the values may be changed afterwards. */
void trial_use_dropout(trial *t, float p, uint64_t seed, uint64_t offset);
void trial_use_window(trial *t, int64_t left, int64_t right);

/* Packed sequences; the arrays must outlive the trial. NULL = that side is dense. */
void trial_use_varlen(trial *t, int64_t batch, const int32_t *cu_q, const int32_t *cu_k);

/* Keys in a cache; likewise. Pages and entries are set in t->cache afterwards. */
void trial_use_cache(trial *t, const int32_t *lengths);

/* A bool [b, h, n, d] mask from values in logical order, non-zero = attend. */
void trial_use_mask(trial *t, const int64_t shape[4], const double *keep);

/* Contiguous copy with the same options: dtype 0 = as it is, FFPA_F64 = for the oracle. Index arrays
 * of varlen and cache are shared. */
trial *trial_copy(const trial *t, int32_t dtype);

void trial_free(trial *t);

/* Poison the outputs and call; then fail the test if anything else than an output has changed. */
ffpa_status trial_forward(trial *t, ffpa_context *ctx);
ffpa_status trial_backward(trial *t, ffpa_context *ctx);

/* Fill the tensor fields of t->f and t->g without calling. */
void trial_wire(trial *t);

/* The trial as a problem string, with what the string cannot say after it. */
const char *trial_text(const trial *t);

#endif
