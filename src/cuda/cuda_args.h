/* cuda_args.h - from a call to the argument structs of kernels/common/args.h. */
#ifndef FFPA_CUDA_ARGS_H
#define FFPA_CUDA_ARGS_H

#include "common/args.h"
#include "core/problem.h"
#include "cuda/config.h"

/* Axes of size 1 get stride 0, so that a kernel may index a broadcast axis like a full one. */
k_tensor args_tensor(const ffpa_tensor *t);

k_sequences args_sequences(const problem *p, const call *c);
k_scores args_scores(const call *c);
k_dropout args_dropout(const call *c);

/* Forward: everything but tiles, splits and partial results. */
fwd_args args_forward(const call *c, const k_sequences *seq);

/* Causal and window as the kernels know them: keys before and after the centre, -1 = unlimited. */
typedef struct key_window {
    int left, right, top_left;
} key_window;
key_window args_window(const ffpa_problem *a);

/* Values of FFPA_RANGE, FFPA_CACHE, FFPA_VARLEN and FFPA_MASK for a problem. */
int macro_range(const problem *p);
int macro_cache(const problem *p);
int macro_varlen(const problem *p);

/* The macros that say what a score is and which pairs have one, for kernels that compute scores. */
void config_set_scores(variant *v, const problem *p);

/* The same for a variant's name: "_range_softcap", empty without options. */
typedef struct score_name {
    char text[64];
} score_name;
score_name score_name_of(const problem *p);

/* How many of `b` it takes to hold `a`. */
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The scale of scores whose exponentials are powers of 2. */
static inline float log2_scale(double scale) { return (float)(scale * 1.4426950408889634); }

/* Lines of tiles (kernels/README.md): `rows` tile rows for each row of a sequence. */
int64_t tile_lines(int64_t batch, int64_t n, int64_t total, bool packed, int64_t tile);

/* Do the sizes fit the kernels' 32-bit counters? If not, why. */
bool args_fit(const problem *p, char *why, size_t why_bytes);

#endif
