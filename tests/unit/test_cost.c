/* test_cost.c - the operations of a problem: the closed form against a count of every allowed pair. */
#include "support/unit.h"

#include "core/cost.h"

#include <stdbool.h>

static bool allowed(const ffpa_problem *a, int64_t i, int64_t j)
{
    const int64_t centre = a->causal == FFPA_TOP_LEFT ? i : i + a->nk - a->nq;
    if (a->causal != FFPA_CAUSAL_NONE && j > centre) return false;
    if (a->has_window && a->window_right >= 0 && j - centre > a->window_right) return false;
    return !(a->has_window && a->window_left >= 0 && centre - j > a->window_left);
}

static double flop_of(const problem *p)
{
    const amounts n = problem_amounts(p);
    return cost_flop(p, &n);
}

static double bytes_of(const char *text)
{
    ffpa_problem a = {.struct_size = sizeof a};
    problem p;
    assert_ok(ffpa_problem_parse(text, &a));
    assert_ok(problem_of_ask(&p, &a, "test"));
    const amounts n = problem_amounts(&p);
    return cost_bytes(&p, &n);
}

static double counted(const ffpa_problem *a)
{
    double pairs = 0;
    for (int64_t i = 0; i < a->nq; i++) {
        const key_range r = key_range_of(a, a->nq, a->nk, i);
        assert_true(0 <= r.first && r.first <= r.last && r.last <= a->nk);
        for (int64_t j = 0; j < a->nk; j++) {
            assert_int_equal(j >= r.first && j < r.last, allowed(a, i, j));
            pairs += allowed(a, i, j);
        }
    }
    return pairs;
}

static void every_pair_is_counted(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 5, 9}, windows[] = {-1, 0, 1, 3, 100, INT64_MAX};
    ffpa_problem a = {
        .op = FFPA_FORWARD, .dtype = FFPA_F32, .b = 3, .hq = 4, .hk = 2, .d = 8, .dv = 6};
    for (size_t q = 0; q < COUNT(sizes); q++)
        for (size_t k = 0; k < COUNT(sizes); k++)
            for (int causal = FFPA_CAUSAL_NONE; causal <= FFPA_BOTTOM_RIGHT; causal++)
                for (size_t l = 0; l < COUNT(windows); l++)
                    for (size_t r = 0; r < COUNT(windows); r++) {
                        problem p;
                        a.nq = sizes[q], a.nk = sizes[k], a.causal = causal;
                        a.has_window = l + r > 0;
                        a.window_left = windows[l], a.window_right = windows[r];
                        assert_ok(problem_of_ask(&p, &a, "test"));
                        assert_true(flop_of(&p) == counted(&a) * 3 * 4 * 2 * (8 + 6));
                    }
}

static void lengths_and_backward(void **state)
{
    (void)state;
    ffpa_problem a = {.struct_size = sizeof a};
    problem p;
    assert_ok(ffpa_problem_parse("bwd,f16,b3h2,q4k4,d8,causal,varlen=4+0+2", &a));
    assert_ok(problem_of_ask(&p, &a, "test"));
    assert_true(flop_of(&p) == 2.5 * (10 + 0 + 3) * 2 * 2 * (8 + 8));
    assert_ok(ffpa_problem_parse("fwd,f32,b2h4k1,q1k9,d8v4,page4,varlen=9+3", &a));
    assert_ok(problem_of_ask(&p, &a, "test"));
    assert_true(flop_of(&p) == (9 + 3) * 4 * 2 * (8 + 4));
}

/* Every tensor of a call once: inputs, outputs, statistics, biases. */
static void every_tensor_is_counted(void **state)
{
    (void)state;
    const double lse = 2 * 4 * 1 * 4;
    assert_true(bytes_of("fwd,f32,b2h4k1,q1k9,d8v4,page4,varlen=9+3") ==
                4 * (2 * 4 * 8 + 2 * 4 * 4 + (9 + 3) * (8 + 4)) + lse);
    const double q = 3 * 7 * 8, o = 3 * 7 * 4, k = 11 * 8, v = 11 * 4, rows = 3 * 7;
    assert_true(bytes_of("fwd,bf16,b1h3k1,q7k11,d8v4") == 2 * (q + o + k + v) + 4 * rows);
    assert_true(bytes_of("fwd,bf16,b1h3k1,q7k11,d8v4,mask=bool,alibi,sink") ==
                2 * (q + o + k + v) + 4 * rows + 7 * 11 + 2 * 4 * 3);
    assert_true(bytes_of("fwd,bf16,b1h3k1,q7k11,d8v4,mask=f32:bhqk") ==
                2 * (q + o + k + v) + 4 * rows + 4 * 3 * 7 * 11);
    assert_true(bytes_of("bwd,bf16,b1h3k1,q7k11,d8v4,mask=f32:hk,sink") ==
                2 * (2 * q + 2 * o + 2 * k + 2 * v) + 4 * rows + 2 * 4 * 3 * 11 + 2 * 4 * 3);
}

/* A call's own lengths count, where the host can read them. */
static void lengths_of_a_call(void **state)
{
    (void)state;
    enum { N = 400 };
    static float x[N * 16];
    static const int32_t cu[] = {0, 100, 200, 300, 400};
    ffpa_context *ctx;
    ffpa_report r = {.struct_size = sizeof r};
    assert_ok(ffpa_context_create(NULL, &ctx));
    const ffpa_varlen varlen = {.struct_size = sizeof varlen,
                                .batch = 4,
                                .cu_q = cu,
                                .cu_k = cu,
                                .index_dtype = FFPA_I32};
    ffpa_forward_params f = ffpa_forward_params_init();
    f.q = f.k = f.v = ffpa_tensor_4d(x, FFPA_F32, 1, 1, N, 8);
    f.o = ffpa_tensor_4d(x + N * 8, FFPA_F32, 1, 1, N, 8);
    f.varlen = &varlen;
    assert_ok(ffpa_forward_supported(ctx, &f, &r));
    assert_true(r.flop == 4 * 100.0 * 100 * 2 * 16);
    assert_true(r.bytes == 4.0 * N * 8 * 4);
    ffpa_context_destroy(ctx);
}

static void sizes_without_bound(void **state)
{
    (void)state;
    ffpa_problem a = {.struct_size = sizeof a};
    problem p;
    assert_ok(ffpa_problem_parse("fwd,f32,b1h1,q1099511627776k1099511627776,d4,causal", &a));
    assert_ok(problem_of_ask(&p, &a, "test")); /* at once, not after 10^12 rows */
    const double n = 1099511627776.0;
    assert_true(flop_of(&p) == n * (n + 1) / 2 * 2 * 8);
    static const char *const beyond[] = {
        "fwd,f32,b9223372036854775807h1,q2k2,d4", "fwd,f32,b4611686018427387904h1,q4k0,d0",
        "bwd,f16,b1h9223372036854775807,q0k0,d1024", "fwd,f32,b2h1,q9223372036854775807k1,d1"};
    for (size_t i = 0; i < COUNT(beyond); i++) {
        assert_ok(ffpa_problem_parse(beyond[i], &a));
        assert_status(problem_of_ask(&p, &a, "test"), FFPA_E_INVALID, "more than 2^40 rows");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_is_counted),   cmocka_unit_test(lengths_and_backward),
        cmocka_unit_test(every_tensor_is_counted), cmocka_unit_test(lengths_of_a_call),
        cmocka_unit_test(sizes_without_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
