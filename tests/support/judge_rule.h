/* judge_rule.h - the accept rule of docs/numerics.md, on whole calls and on closed-form answers. */
#ifndef FFPA_TESTS_JUDGE_RULE_H
#define FFPA_TESTS_JUDGE_RULE_H

#include "support/judge_paths.h"
#include "support/judge_sample.h"
#include "support/unit.h"

/* Run the sample on every path, on the oracle with float64 copies and on the naive path, forward and
 * (with spec.backward) backward. Each output must keep the rule
 *     max|out - oracle| <= 2 max|naive - oracle| + 1e-5      (gradients: 3)
 * with the oracle's non-finite pattern and the oracle's set of unwritten elements, and the oracle
 * itself must agree with judge_plain. `repro` says how to run this sample again. */
void judge_sample(sample *t, const char *repro);

/* Same, but only for the path given, which must be one of judge_paths. */
void judge_sample_on(sample *t, const judge_path *path, const char *repro);

/* ---- closed-form answers ---- */

/* One combination that a case is run at. */
typedef struct setting {
    const judge_path *path;
    int32_t dtype;
    int64_t d;
} setting;

enum { ON_F32 = 1, ON_F16 = 2, ON_BF16 = 4, ON_ALL = 7 };

/* Run the body on every path, each of these dtypes, and D = 8, 64, 256, 320, 512, 1024, or D = `d`
 * alone when it is not 0. With judge_quick each of the sizes goes to one dtype,
 * and f16 is left out of the rest where there is bf16. */
void for_each_setting(unsigned dtypes, int64_t d, void (*body)(const setting *s));

/* A cmocka test that does so. */
#define CASE(name, dtypes, d, body)        \
    static void name(void **state)         \
    {                                      \
        (void)state;                       \
        for_each_setting(dtypes, d, body); \
    }

/* Forward or backward on the setting's path; anything but FFPA_OK fails the test. */
void must_forward(sample *t, const setting *s);
void must_backward(sample *t, const setting *s);

/* The call has a wrong number inside one of its index arrays: E_INVALID with `words`. A GPU, whose arrays nobody
 * reads on the host, clamps it instead, and still writes nothing but the outputs. */
void expect_bad_contents(sample *t, const setting *s, const char *words);

/* The first `columns` columns of every row are `expected` (logical order), the other columns 0, each to
 * one unit in the last place of the dtype, or `slack` units of 1. -INFINITY and NaN match themselves. */
void expect_values(const sample *t, role r, int64_t columns, const double *expected,
                   double slack, const setting *s);

/* Every element of row n (of each batch and head) is `expected`. */
void expect_row(const sample *t, role r, int64_t n, double expected, double slack,
                const setting *s);

void expect_all(const sample *t, role r, double expected, double slack, const setting *s);

/* One element. */
void expect_at(const sample *t, role r, const int64_t at[4], double expected, double slack,
               const setting *s);

/* Every element of column d. */
void expect_column(const sample *t, role r, int64_t d, double expected, double slack,
                   const setting *s);

/* Same bits. */
void expect_same(const sample *a, const sample *b, role r, const setting *s);

/* Same bits; on a GPU, where options, batch and cache choose tiles and splits, equal within rounding. */
void expect_alike(const sample *a, const sample *b, role r, const setting *s);

/* Equal within rounding: `a` and `b` may differ by `units` units in the last place of the largest
 * magnitude among b's elements. */
void expect_close(const sample *a, const sample *b, role r, double units, const setting *s);

#endif
