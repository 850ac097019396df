/* test_cases_dims.c - head sizes, zero sizes and the scale: cases B10 to B12, B61, B63. */
#include "support/judge_rule.h"
#include "support/tensor_element.h"

#include <math.h>

static void zero_sizes(const setting *s)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype, .nk = 3, .d = -1, .dv = s->d});
    t->f.flags = 0;
    tensor_identity(t->t[V]);
    must_forward(t, s);
    expect_values(t, O, 3, (double[]){1 / 3., 1 / 3., 1 / 3.}, 0, s);
    expect_all(t, LSE, log(3), 0, s);
    sample_free(t);

    t = sample_new(
        &(sample_spec){.dtype = s->dtype, .b = -1, .nq = 3, .d = s->d, .backward = true});
    must_forward(t, s);
    must_backward(t, s);
    sample_free(t);

    t = sample_new(
        &(sample_spec){.dtype = s->dtype, .nq = -1, .nk = 3, .d = s->d, .backward = true});
    must_forward(t, s);
    must_backward(t, s);
    expect_all(t, DK, 0, 0, s);
    expect_all(t, DV, 0, 0, s);
    sample_free(t);

    t = sample_new(
        &(sample_spec){.dtype = s->dtype, .nq = 3, .nk = -1, .d = s->d, .backward = true});
    must_forward(t, s);
    expect_all(t, O, 0, 0, s);
    expect_all(t, LSE, -(double)INFINITY, 0, s);
    must_backward(t, s);
    expect_all(t, DQ, 0, 0, s);
    sample_free(t);
}
CASE(b10_zero_sizes, ON_ALL, 0, zero_sizes)

/* No column of V: LSE alone is left, and the gradients that flow through it. */
static void no_value_columns(const setting *s)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                          .b = 2,
                                          .hq = 2,
                                          .hk = 1,
                                          .nq = 3,
                                          .nk = 300,
                                          .d = s->d,
                                          .dv = -1,
                                          .backward = true});
    tensor_hash(sample_put(t, DLSE, tensor_new(FFPA_F32, 2, 2, 3, 1, NULL)), 4000000, 1);
    t->f.causal = FFPA_BOTTOM_RIGHT;
    judge_sample_on(t, s->path, "b10 Dv=0");
    sample_free(t);
}
CASE(b10_no_value_columns, ON_ALL, 72, no_value_columns)

/* Two keys with the scores x and 0 before the scale, V = I2. */
static sample *two_keys(const setting *s, double x)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype, .nk = 2, .d = s->d});
    tensor_values(t->t[Q], 1, (double[]){1});
    tensor_values(t->t[K], 1, (double[]){x, 0});
    tensor_identity(t->t[V]);
    return t;
}

static void expect_two(sample *t, double score, const setting *s)
{
    const double p = 1 / (1 + exp(-score));
    must_forward(t, s);
    expect_values(t, O, 2, (double[]){p, 1 - p}, .1, s);
    expect_all(t, LSE, score > 0 ? score + log1p(exp(-score)) : log1p(exp(score)), 1, s);
}

static void default_scale(const setting *s)
{
    const double x = tensor_round(s->dtype, sqrt((double)s->d) * log(3));
    sample *t = two_keys(s, x);
    t->f.flags = 0;
    t->f.scale = 17; /* not meaningful without the flag */
    expect_two(t, x / sqrt((double)s->d), s);
    sample_free(t);
}
CASE(b11_default_scale_from_true_d, ON_ALL, 320, default_scale)
CASE(b11_default_scale_at_any_d, ON_ALL, 0, default_scale)

static void explicit_scale(const setting *s)
{
    const double x = tensor_round(s->dtype, 3 * log(3)), root = 1 / sqrt((double)s->d);
    const float scales[] = {1.0f, 0.0f, (float)-root, (float)root};
    for (size_t i = 0; i < COUNT(scales); i++) {
        sample *t = two_keys(s, x);
        t->f.flags = FFPA_SCALE;
        t->f.scale = scales[i];
        expect_two(t, (double)scales[i] * x, s);
        sample_free(t);
    }
}
CASE(b12_explicit_scale_is_honoured, ON_ALL, 320, explicit_scale)

static void last_column_counts(const setting *s)
{
    const int64_t dims[] = {65, 257, 321, 513, 1023};
    for (size_t i = 0; i < COUNT(dims); i++) {
        const int64_t d = dims[i];
        sample *t =
            sample_new(&(sample_spec){.dtype = s->dtype, .nk = 2, .d = d, .backward = true});
        const double x = tensor_round(s->dtype, log(3)), p = 1 / (1 + exp(-x));
        for (int r = Q; r <= V; r++)
            tensor_all(t->t[r], 0);
        tensor_put(t->t[Q], 0, 0, 0, d - 1, 1);
        tensor_put(t->t[K], 0, 0, 0, d - 1, x);
        tensor_put(t->t[V], 0, 0, 0, d - 2, 1);
        tensor_put(t->t[V], 0, 0, 1, d - 1, 1);
        must_forward(t, s);
        for (int64_t c = 0; c < d; c++)
            expect_column(t, O, c, c == d - 2 ? p : c == d - 1 ? 1 - p : 0, 0, s);
        /* dout reads the last column only: delta = 1 - p, dS = (-p, p) (1 - p). */
        tensor_all(t->t[DOUT], 0);
        tensor_put(t->t[DOUT], 0, 0, 0, d - 1, 1);
        must_backward(t, s);
        for (int64_t c = 0; c < d; c++) {
            const bool last = c == d - 1;
            expect_column(t, DQ, c, last ? -p * (1 - p) * x : 0, 1, s);
            expect_at(t, DK, (int64_t[]){0, 0, 0, c}, last ? -p * (1 - p) : 0, 1, s);
            expect_at(t, DK, (int64_t[]){0, 0, 1, c}, last ? p * (1 - p) : 0, 1, s);
            expect_at(t, DV, (int64_t[]){0, 0, 0, c}, last ? p : 0, 1, s);
            expect_at(t, DV, (int64_t[]){0, 0, 1, c}, last ? 1 - p : 0, 1, s);
        }
        sample_free(t);
    }
}
CASE(b61_last_column_counts, ON_ALL, 1, last_column_counts)

static void odd_head_sizes(const setting *s)
{
    const int64_t dims[] = {1, 3, 72, 80, 96, 136, 200, 500};
    for (size_t i = 0; i < COUNT(dims); i++) {
        sample_spec spec = {
            .dtype = s->dtype, .b = 1, .hq = 2, .nq = 37, .d = dims[i], .backward = true};
        for (int r = 0; r < ROLES; r++)
            spec.layout[r].pad[3] = 5; /* poison after each row */
        sample *t = sample_new(&spec);
        t->f.flags = 0;
        judge_sample_on(t, s->path, "b63");
        sample_free(t);
    }
}
CASE(b63_odd_head_sizes, ON_ALL, 1, odd_head_sizes)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b10_zero_sizes),
        cmocka_unit_test(b10_no_value_columns),
        cmocka_unit_test(b11_default_scale_from_true_d),
        cmocka_unit_test(b11_default_scale_at_any_d),
        cmocka_unit_test(b12_explicit_scale_is_honoured),
        cmocka_unit_test(b61_last_column_counts),
        cmocka_unit_test(b63_odd_head_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
