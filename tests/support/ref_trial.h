/* ref_trial.h - one call with tensors of its own, planned and run by one backend. */
#ifndef FFPA_TESTS_REF_TRIAL_H
#define FFPA_TESTS_REF_TRIAL_H

#include "core/backend.h"
#include "cpu/ref.h"

typedef struct trial_size {
    int64_t b, hq, hk, nq, nk, d, dv;
} trial_size;

/* Tensors of the call are contiguous. Inputs hold the deterministic fill; everything the call may
 * write holds NaN, so that a missing write shows. */
typedef struct trial {
    trial_size size;
    call c;
    int threads; /* of the pool, 2 unless changed */
    void *owned[24];
    int n_owned;
} trial;

/* q k v o lse dout dlse dq dk dv, without options; scale 1. dlse is absent until trial_use_dlse. */
trial *trial_new(trial_size size, ffpa_dtype dtype);
void trial_free(trial *t);

/* A trial with q = 0, dO = 1 and V = I, so that O is the weight matrix itself. */
trial *trial_probe(trial_size size, ffpa_dtype dtype);

/* Closed forms are checked on the reference with f64 and with f32, and on naive with f32. */
typedef struct way {
    const backend *be;
    ffpa_dtype dtype;
} way;
enum { WAYS = 3 };
extern const way ways[WAYS];
#define EACH_WAY(w) for (const way *w = ways; w < ways + WAYS; w++)

/* A tensor that the trial frees: the fill from `offset` on, times `factor`. */
ffpa_tensor trial_tensor(trial *t, ffpa_dtype dtype, const int64_t shape[4], int64_t offset,
                         double factor);

/* Options. The gradients of mask and sink come with them. */
void trial_use_dlse(trial *t);
void trial_use_mask(trial *t, ffpa_dtype dtype, int64_t b, int64_t h, int64_t q, int64_t k);
void trial_use_alibi(trial *t);
void trial_use_sink(trial *t);
void trial_use_dropout(trial *t, float p, uint64_t seed, uint64_t offset);

/* Run, expecting success; forward leaves c.op as forward, backward as backward. */
void trial_forward(trial *t, const backend *be);
void trial_backward(trial *t, const backend *be);

/* Elements, in double. For bool, 0 or 1. */
double tensor_get(const ffpa_tensor *t, int64_t b, int64_t h, int64_t n, int64_t d);
void tensor_set(const ffpa_tensor *t, int64_t b, int64_t h, int64_t n, int64_t d, double value);
void tensor_fill(const ffpa_tensor *t, double value);
void tensor_set_identity(const ffpa_tensor *t);
int64_t tensor_count(const ffpa_tensor *t);

/* Element n of a tensor, counted in logical order. */
double tensor_nth(const ffpa_tensor *t, int64_t n);
void tensor_set_nth(const ffpa_tensor *t, int64_t n, double value);
void tensor_set_all(const ffpa_tensor *t, const double *values);

/* Every element equals its wanted value up to `tolerance`; NaN and infinities exactly. */
void assert_elements(const char *name, const ffpa_tensor *t, const double *wanted,
                     double tolerance);
void assert_constant(const char *name, const ffpa_tensor *t, double wanted);

/* Largest difference of two tensors of one shape; infinite where the non-finite patterns differ. */
double tensor_distance(const ffpa_tensor *a, const ffpa_tensor *b);

#endif
