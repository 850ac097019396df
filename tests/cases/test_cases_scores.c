/* test_cases_scores.c - softcap, ALiBi and gradients of an added mask: cases B48 to B50, B65, B66. */
#include "support/judge_rule.h"

#include <math.h>

static void capped_scores(const setting *s)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype, .nk = 2, .d = s->d});
    t->f.softcap = 10;
    tensor_values(t->t[Q], 1, (double[]){30});
    tensor_values(t->t[K], 1, (double[]){1, 0});
    tensor_values(t->t[V], 1, (double[]){1, 0});
    must_forward(t, s);
    const double x = 10 * tanh(3);
    expect_values(t, O, 1, (double[]){1 / (1 + exp(-x))}, 0, s);
    expect_all(t, LSE, x + log1p(exp(-x)), 0, s);
    sample_free(t);
}
CASE(b48_capped_scores, ON_ALL, 0, capped_scores)

static void derivative_of_the_cap(const setting *s)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .o_dtype = FFPA_F32, .nk = 2, .d = s->d, .backward = true});
    t->f.softcap = 10;
    tensor_values(t->t[Q], 1, (double[]){5});
    tensor_values(t->t[K], 1, (double[]){1, 0});
    tensor_values(t->t[V], 1, (double[]){1, 0});
    tensor_values(t->t[DOUT], 1, (double[]){1});
    must_forward(t, s);
    must_backward(t, s);
    const double bent = tanh(.5), p = 1 / (1 + exp(-10 * bent)),
                 dx = p * (1 - p) * (1 - bent * bent);
    /* 1 - p is what is left of a cancellation: f32 has it to some units of 1. */
    const double slack = s->dtype == FFPA_F32 ? 1 : .05;
    expect_values(t, O, 1, (double[]){p}, 0, s);
    expect_values(t, DQ, 1, (double[]){dx}, slack, s);
    const double dk[] = {5 * dx, -5 * p * (1 - p)}; /* key 1 has x = 0 */
    expect_values(t, DK, 1, dk, slack, s);
    sample_free(t);
}
CASE(b49_derivative_of_the_cap, ON_ALL, 0, derivative_of_the_cap)

static void alibi_distance(const setting *s)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype, .nk = 3, .d = s->d});
    tensor_all(t->t[Q], 0);
    tensor_identity(t->t[V]);
    tensor_all(sample_put(t, ALIBI, tensor_new(FFPA_F32, 1, 1, 1, 1, NULL)), log(2));
    must_forward(t, s);
    expect_values(t, O, 3, (double[]){1 / 7., 2 / 7., 4 / 7.}, 0, s);
    sample_free(t);
    /* Keys on both sides of the query, slopes per batch and head, top-left causal beside it. */
    t = sample_new(&(sample_spec){
        .dtype = s->dtype, .b = 2, .hq = 2, .nq = 37, .nk = 60, .d = s->d, .backward = true});
    tensor_values(sample_put(t, ALIBI, tensor_new(FFPA_F32, 2, 2, 1, 1, NULL)), 1,
                  (double[]){.5, .25, -.125, 0});
    judge_sample_on(t, s->path, "b50");
    t->f.causal = FFPA_TOP_LEFT;
    judge_sample_on(t, s->path, "b50 top left");
    sample_free(t);
}
CASE(b50_alibi_distance, ON_ALL, 64, alibi_distance)

/* B2 H2 Nq2 Nk2, q = k = 0, v = (0, 1), dout 1 in one column: dS = -+1/4 for each of 8 rows. */
static sample *bias_sample(const setting *s, const int64_t shape[4])
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .b = 2, .hq = 2, .nq = 2, .d = s->d, .backward = true});
    tensor_all(t->t[Q], 0);
    tensor_all(t->t[K], 0);
    tensor_values(t->t[V], 1, (double[]){0, 1, 0, 1, 0, 1, 0, 1});
    tensor_values(t->t[DOUT], 1, (double[]){1, 1, 1, 1, 1, 1, 1, 1});
    tensor_all(
        sample_put(t, MASK, tensor_new(FFPA_F32, shape[0], shape[1], shape[2], shape[3], NULL)),
        0);
    sample_put(t, DMASK, tensor_new(FFPA_F32, shape[0], shape[1], shape[2], shape[3], NULL));
    return t;
}

static void reduced_bias_gradient(const setting *s)
{
    for (int full = 0; full < 8; full++) { /* every set of broadcast axes */
        const int64_t shape[4] = {full & 1 ? 2 : 1, full & 2 ? 2 : 1, full & 4 ? 2 : 1, 2};
        const double rows = 8. / (double)(shape[0] * shape[1] * shape[2]);
        sample *t = bias_sample(s, shape);
        must_forward(t, s);
        must_backward(t, s);
        expect_column(t, DMASK, 0, -rows / 4, 0, s);
        expect_column(t, DMASK, 1, rows / 4, 0, s);
        sample_free(t);
    }
    sample *t = bias_sample(s, (int64_t[]){2, 2, 2, 1}); /* the sum over keys is 0 */
    must_forward(t, s);
    must_backward(t, s);
    expect_all(t, DMASK, 0, 1, s);
    sample_free(t);
}
CASE(b65_reduced_bias_gradient, ON_ALL, 0, reduced_bias_gradient)

/* Sizes past every tile, every set of axes, each mask dtype. */
static void bias_gradient_of_many_tiles(const setting *s)
{
    const int32_t kinds[] = {FFPA_F32, FFPA_F16, FFPA_BF16};
    for (int full = 0; full < 16; full++) {
        if (judge_quick() && full / 4 % 2 != (s->dtype == FFPA_F32)) continue;
        const int64_t b = full & 1 ? 2 : 1, h = full & 2 ? 4 : 1, q = full & 4 ? 75 : 1,
                      k = full & 8 ? 83 : 1;
        sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                              .b = 2,
                                              .hq = 4,
                                              .hk = 2,
                                              .nq = 75,
                                              .nk = 83,
                                              .d = s->d,
                                              .backward = true});
        const int32_t kind = kinds[full % 3];
        tensor_hash(sample_put(t, MASK, tensor_new(kind, b, h, q, k, NULL)), 4000000, 4);
        sample_put(
            t, DMASK,
            tensor_new(full % 2 ? FFPA_F32 : kind, b, h, q, k, full & 4 ? &TENSOR_BNHD : NULL));
        t->f.causal = full % 3;
        judge_sample_on(t, s->path, "b65");
        sample_free(t);
    }
}
CASE(b65_bias_gradient_of_many_tiles, ON_ALL, 40, bias_gradient_of_many_tiles)

static void only_some_gradients(const setting *s)
{
    sample *t = bias_sample(s, (int64_t[]){1, 1, 1, 2});
    const role outputs[] = {DQ, DK, DV, DMASK};
    must_forward(t, s);
    must_backward(t, s);
    for (unsigned wanted = 0; wanted < 16; wanted++) {
        sample *some = sample_copy(t, 0);
        for (size_t x = 0; x < COUNT(outputs); x++) {
            if (!(wanted >> x & 1u)) sample_put(some, outputs[x], NULL);
        }
        must_forward(some, s);
        must_backward(some, s);
        for (size_t x = 0; x < COUNT(outputs); x++) {
            if (wanted >> x & 1u) expect_same(some, t, outputs[x], s);
        }
        sample_free(some);
    }
    expect_values(t, DMASK, 2, (double[]){-2, 2}, 0, s);
    sample_free(t);
}
CASE(b66_only_some_gradients, ON_ALL, 0, only_some_gradients)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b48_capped_scores),
        cmocka_unit_test(b49_derivative_of_the_cap),
        cmocka_unit_test(b50_alibi_distance),
        cmocka_unit_test(b65_reduced_bias_gradient),
        cmocka_unit_test(b65_bias_gradient_of_many_tiles),
        cmocka_unit_test(b66_only_some_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
