/* case.h - a problem with tensors: generated inputs, outputs to fill, and calls ready to make.
 *
 * Generated data depend on the problem's seed, the tensor and the logical index alone, so every
 * machine, layout and dtype gets the same numbers (rounded to the dtype):
 *   h = mix(mix(seed * 2^8 + tensor) + index), mix = the finaliser of SplitMix64
 *   x = (sum of h's four 16-bit parts - 131070) * sqrt(3) / 65536      mean 0, variance 1
 * with tensor 0 q, 1 k, 2 v, 3 dout, 4 dlse, 5 mask, 6 sink, 7 order of the pages. */
#ifndef FFPA_CLI_CASE_H
#define FFPA_CLI_CASE_H

#include "tensors.h"

typedef struct attention_case {
    arena memory;
    ffpa_problem problem;
    ffpa_forward_params forward;
    ffpa_backward_params backward; /* when the problem is backward */
    ffpa_dropout dropout;
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
    ffpa_row_subset rows; /* count 0 = all rows */
} attention_case;

/* Inputs and outputs of a problem that `context` takes; dlse only with `with_dlse`. The case must not be
 * moved while in use: its calls point into it. DONE, or LIB_FAILED after a complaint. Free with
 * case_free. */
int case_build(attention_case *c, const ffpa_problem *problem, bool with_dlse,
               ffpa_context *context);

/* The same inputs with outputs of its own. `dtype` 0 shares the inputs and gives outputs in f32;
 * FFPA_F64 copies the inputs to f64 and gives outputs in f64; the case's own dtype shares the inputs
 * and has its dtypes. `from` must outlive it. */
int case_twin(attention_case *c, const attention_case *from, int32_t dtype);

void case_free(attention_case *c);

/* Run the case: forward and, for a backward problem, backward after it. DONE or LIB_FAILED. */
int case_run(attention_case *c, ffpa_context *context);

/* One output by position: name and tensor. False after the last. */
bool case_output(const attention_case *c, int position, const char **name, ffpa_tensor *tensor);

/* Query rows of sequence b. */
int64_t case_queries(const ffpa_problem *p, int64_t b);

#endif
