/* judge_expect.c - closed-form answers, at every dtype, head dimension and path. */
#include "support/judge_device.h"
#include "support/judge_rule.h"
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const int64_t any_d[] = {8, 64, 256, 320, 512, 1024};

/* What quick leaves out of `dtypes` and of "any D", dtype number x and size number y. A GPU compiles for every head
 * dimension and dtype, so the outer ones; elsewhere each of the sizes goes to one dtype, and what is of one size
 * alone goes without f16 beside bf16, whose elements lie at the same places. */
static bool passed_over(const setting *s, unsigned dtypes, bool any, unsigned x, unsigned y)
{
    if (!judge_quick()) return false;
    if (strcmp(s->path->name, "cuda") == 0)
        return s->dtype == FFPA_F16 || (any && s->d != 64 && s->d != 512);
    return any ? y % 3 != x : s->dtype == FFPA_F16 && (dtypes & ON_BF16);
}

void for_each_setting(unsigned dtypes, int64_t d, void (*body)(const setting *s))
{
    static const int32_t dtype[] = {FFPA_F32, FFPA_F16, FFPA_BF16};
    unsigned n = 0;
    for (const judge_path *p = judge_paths(); p->ctx; p++) {
        for (unsigned x = 0; x < 3; x++) {
            if (!(dtypes >> x & 1u)) continue;
            for (unsigned y = 0; y < (d ? 1 : sizeof any_d / sizeof *any_d); y++) {
                const setting s = {p, dtype[x], d ? d : any_d[y]};
                if (!passed_over(&s, dtypes, d == 0, x, y) && judge_in_shard(n++)) body(&s);
            }
        }
    }
}

static const char *label(const setting *s)
{
    static char text[96];
    snprintf(text, sizeof text, "%s, %s, D=%lld", s->path->name, dtype_name(s->dtype),
             (long long)s->d);
    return text;
}

void must_forward(sample *t, const setting *s)
{
    const ffpa_status status = sample_forward(t, s->path->ctx);
    if (status != FFPA_OK)
        fail_msg("%s: %s\n  %s", label(s), ffpa_last_error(), sample_text(t));
}

void must_backward(sample *t, const setting *s)
{
    const ffpa_status status = sample_backward(t, s->path->ctx);
    if (status != FFPA_OK)
        fail_msg("%s: %s\n  %s", label(s), ffpa_last_error(), sample_text(t));
}

void expect_bad_contents(sample *t, const setting *s, const char *words)
{
    const ffpa_status status = sample_forward(t, s->path->ctx);
    if (judge_on_device(s->path->ctx))
        assert_ok(status);
    else
        assert_status(status, FFPA_E_INVALID, words);
}

static bool matches(double is, double must, int32_t dtype, double slack)
{
    if (isnan(must)) return isnan(is);
    if (isinf(must)) return is == must;
    const double ulp = tensor_ulp(dtype);
    /* f32 sums carry a few more roundings than their last place shows. */
    const double units = dtype == FFPA_F32 ? 8.0 : 1.0;
    return fabs(is - must) <= units * ulp * (fabs(must) + slack) + 1e-7;
}

void expect_at(const sample *t, role r, const int64_t at[4], double expected, double slack,
               const setting *s)
{
    const tensor *x = t->t[r];
    const double is = tensor_at(x, at[0], at[1], at[2], at[3]);
    if (tensor_poisoned(x, at[0], at[1], at[2], at[3]) ||
        !matches(is, expected, x->view.dtype, slack))
        fail_msg("%s: %s[%lld,%lld,%lld,%lld] is %.9g, must be %.9g\n  %s", label(s),
                 role_name[r], (long long)at[0], (long long)at[1], (long long)at[2],
                 (long long)at[3], is, expected, sample_text(t));
}

/* `at` walks over all elements in logical order; false past the last. */
static bool next(const tensor *x, int64_t at[4])
{
    for (int a = 3; a >= 0; a--) {
        if (++at[a] < x->view.shape[a]) return true;
        at[a] = 0;
    }
    return false;
}

void expect_values(const sample *t, role r, int64_t columns, const double *expected,
                   double slack, const setting *s)
{
    int64_t at[4] = {0};
    if (tensor_volume(t->t[r]) == 0) return;
    do {
        expect_at(t, r, at, at[3] < columns ? *expected++ : 0.0, slack, s);
    } while (next(t->t[r], at));
}

static void expect_where(const sample *t, role r, const int64_t axis_index[2],
                         const double must[2], const setting *s)
{
    int64_t at[4] = {0};
    do {
        if (at[axis_index[0]] == axis_index[1]) expect_at(t, r, at, must[0], must[1], s);
    } while (next(t->t[r], at));
}

void expect_row(const sample *t, role r, int64_t n, double expected, double slack,
                const setting *s)
{
    expect_where(t, r, (int64_t[]){2, n}, (double[]){expected, slack}, s);
}

void expect_column(const sample *t, role r, int64_t d, double expected, double slack,
                   const setting *s)
{
    expect_where(t, r, (int64_t[]){3, d}, (double[]){expected, slack}, s);
}

void expect_all(const sample *t, role r, double expected, double slack, const setting *s)
{
    int64_t at[4] = {0};
    if (tensor_volume(t->t[r]) == 0) return;
    do {
        expect_at(t, r, at, expected, slack, s);
    } while (next(t->t[r], at));
}

void expect_same(const sample *a, const sample *b, role r, const setting *s)
{
    if (!tensor_same_bits(a->t[r], b->t[r]))
        fail_msg("%s: %s differs between two calls that must agree bit for bit\n  %s", label(s),
                 role_name[r], sample_text(a));
}

void expect_close(const sample *a, const sample *b, role r, double units, const setting *s)
{
    int64_t at[4] = {0};
    double largest = 1.0;
    const tensor *y = b->t[r];
    do {
        const double value = fabs(tensor_at(y, at[0], at[1], at[2], at[3]));
        if (isfinite(value) && value > largest) largest = value;
    } while (next(y, at));
    do {
        const double must = tensor_at(y, at[0], at[1], at[2], at[3]);
        const double is = tensor_at(a->t[r], at[0], at[1], at[2], at[3]);
        const bool same = isfinite(must)
                              ? fabs(is - must) <= units * tensor_ulp(y->view.dtype) * largest
                              : matches(is, must, y->view.dtype, 0.0);
        if (!same)
            fail_msg("%s: %s[%lld,%lld,%lld,%lld] is %.9g in one call, %.9g in the other\n  %s",
                     label(s), role_name[r], (long long)at[0], (long long)at[1],
                     (long long)at[2], (long long)at[3], is, must, sample_text(a));
    } while (next(y, at));
}

void expect_alike(const sample *a, const sample *b, role r, const setting *s)
{
    const bool narrow = b->t[r]->view.dtype != FFPA_F32;
    if (judge_on_device(s->path->ctx))
        expect_close(a, b, r, narrow ? 4 : 64, s);
    else
        expect_same(a, b, r, s);
}
