/* test_cases_lse.c - LSE, merging, splitting, sinks: cases B41 to B47. */
#include "support/judge_device.h"
#include "support/judge_rule.h"
#include "support/tensor_element.h"

#include <math.h>

/* ---- merge ---- */

typedef struct part {
    double o, lse;
} part;

static void expect_merge(const setting *s, part a, part b, part want)
{
    const double inf = (double)INFINITY;
    tensor *t[6];
    for (int x = 0; x < 6; x++)
        t[x] = tensor_new(x % 2 ? FFPA_F32 : s->dtype, 2, 3, 5, x % 2 ? 1 : s->d,
                          x == 2 ? &TENSOR_BNHD : NULL);
    tensor_all(t[0], a.o), tensor_all(t[1], a.lse), tensor_all(t[2], b.o),
        tensor_all(t[3], b.lse);
    ffpa_merge_params p = ffpa_merge_params_init();
    p.o_a = t[0]->view, p.lse_a = t[1]->view, p.o_b = t[2]->view, p.lse_b = t[3]->view;
    for (int in_place = 0; in_place < 3; in_place++) {
        tensor *o = in_place ? t[2 * in_place - 2] : t[4],
               *lse = in_place ? t[2 * in_place - 1] : t[5];
        p.o = o->view, p.lse = lse->view;
        assert_ok(judge_merge(s->path->ctx, &p));
        sample as_sample = {.spec = {.dtype = s->dtype}, .t = {[O] = o, [LSE] = lse}};
        expect_all(&as_sample, O, want.o, 0, s);
        expect_all(&as_sample, LSE, want.lse, 0, s);
        if (b.lse == -inf || a.lse == -inf) { /* one part alone comes through unchanged */
            assert_true(tensor_at(o, 1, 2, 4, 0) == want.o);
            assert_true(tensor_at(lse, 1, 2, 4, 0) == want.lse);
        }
        tensor_check_guards(o, "o");
        tensor_check_guards(lse, "lse");
        tensor_all(t[0], a.o), tensor_all(t[1], a.lse), tensor_all(t[2], b.o),
            tensor_all(t[3], b.lse);
    }
    for (int x = 0; x < 6; x++)
        tensor_free(t[x]);
}

static void merge_empty(const setting *s)
{
    const part none = {0, -(double)INFINITY}, some = {5, 1},
               stale = {(double)NAN, -(double)INFINITY};
    expect_merge(s, none, none, none);
    expect_merge(s, none, some, some);
    expect_merge(s, some, none, some);
    expect_merge(s, some, stale, some);
    expect_merge(s, stale, stale, none);
}
CASE(b41_merge_empty_parts, ON_ALL, 8, merge_empty)

static void merge_weights(const setting *s)
{
    const double w = 1 / (1 + exp(-1));
    expect_merge(s, (part){1, 0}, (part){5, log(3)}, (part){4, log(4)});
    expect_merge(s, (part){1, 16384}, (part){5, 16385},
                 (part){1 + 4 * w, 16385 + log1p(exp(-1))});
    expect_merge(s, (part){5, 16385}, (part){1, 16384},
                 (part){1 + 4 * w, 16385 + log1p(exp(-1))});
}
CASE(b45_merge_weights, ON_ALL, 8, merge_weights)

/* A part of next to no weight: what is not finite in it shows. */
static void merge_keeps_nan(const setting *s)
{
    const part odd[] = {
        {(double)NAN, -1000}, {(double)INFINITY, -200}, {(double)-INFINITY, -9}};
    const part one = {5, 0};
    for (int i = 0; i < 3; i++) {
        const part want = {odd[i].o, log1p(exp(odd[i].lse))};
        expect_merge(s, odd[i], one, want);
        expect_merge(s, one, odd[i], want);
    }
}
CASE(b41_merge_keeps_nan, ON_ALL, 8, merge_keeps_nan)

/* ---- splits ---- */

/* Run keys [first, last) of a sample alone, into o and lse. */
static void run_part(sample *whole, const int64_t keys[2], tensor *o, tensor *lse,
                     const setting *s)
{
    sample_wire(whole);
    ffpa_forward_params p = whole->f;
    p.k.shape[2] = p.v.shape[2] = keys[1] - keys[0];
    p.k.data = (char *)p.k.data + keys[0] * p.k.stride[2] * (int64_t)dtype_bytes(s->dtype);
    p.v.data = (char *)p.v.data + keys[0] * p.v.stride[2] * (int64_t)dtype_bytes(s->dtype);
    p.o = o->view, p.lse = lse->view;
    assert_ok(judge_forward(s->path->ctx, &p));
}

/* More parts than keys: the empty ones merge without a trace. */
static void more_splits_than_keys(const setting *s)
{
    const int64_t splits[] = {1, 2, 3, 7, 64};
    /* Weights may be rounded to the inputs' dtype, each part's against its own maximum. */
    const double units =
        s->dtype == FFPA_F32 ? 16 : tensor_ulp(s->dtype) / tensor_ulp(FFPA_F32);
    for (int64_t nk = 5; nk <= 6; nk++) {
        sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                              .o_dtype = FFPA_F32,
                                              .hq = 4,
                                              .hk = 1,
                                              .nq = 1,
                                              .nk = nk,
                                              .d = s->d});
        must_forward(t, s);
        for (size_t x = 0; x < COUNT(splits); x++) {
            sample *sum = sample_copy(t, 0);
            tensor_all(sum->t[O], (double)NAN);
            tensor_all(sum->t[LSE], -(double)INFINITY);
            tensor *o = tensor_new(FFPA_F32, 1, 4, 1, s->d, NULL),
                   *lse = tensor_new(FFPA_F32, 1, 4, 1, 1, NULL);
            for (int64_t n = 0; n < splits[x]; n++) {
                run_part(t, (int64_t[]){nk * n / splits[x], nk * (n + 1) / splits[x]}, o, lse,
                         s);
                ffpa_merge_params p = ffpa_merge_params_init();
                p.o_a = p.o = sum->t[O]->view, p.lse_a = p.lse = sum->t[LSE]->view;
                p.o_b = o->view, p.lse_b = lse->view;
                assert_ok(judge_merge(s->path->ctx, &p));
            }
            expect_close(sum, t, O, units, s);
            expect_close(sum, t, LSE, 16, s);
            tensor_free(o), tensor_free(lse);
            sample_free(sum);
        }
        sample_free(t);
    }
}
CASE(b42_more_splits_than_keys, ON_ALL, 512, more_splits_than_keys)

/* The same problem with more threads than keys, then with one appended key. */
static void more_threads_than_keys(const setting *s)
{
    const int threads[] = {1, 2, 3, 7, 64};
    const int32_t lengths[] = {5};
    sample *first[2] = {NULL, NULL};
    for (size_t x = 0; x < COUNT(threads); x++) {
        ffpa_context *ctx = judge_context(s->path->backend, s->path->isa, threads[x]);
        for (int appended = 0; appended < 2; appended++) {
            sample *t = sample_new(&(sample_spec){
                .dtype = s->dtype, .hq = 4, .hk = 1, .nq = 1, .nk = 5 + appended, .d = s->d});
            if (appended) {
                sample_use_cache(t, lengths);
                tensor_hash(sample_put(t, K_NEW, tensor_new(s->dtype, 1, 1, 1, s->d, NULL)), 5,
                            1);
                tensor_hash(sample_put(t, V_NEW, tensor_new(s->dtype, 1, 1, 1, s->d, NULL)), 6,
                            1);
            }
            assert_ok(sample_forward(t, ctx));
            if (x == 0) {
                judge_sample_on(t, s->path, "b42");
                first[appended] = t;
                continue;
            }
            expect_same(t, first[appended], O, s);
            expect_same(t, first[appended], LSE, s);
            sample_free(t);
        }
        ffpa_context_destroy(ctx);
    }
    sample_free(first[0]);
    sample_free(first[1]);
}
CASE(b42_more_threads_than_keys, ON_ALL, 512, more_threads_than_keys)

/* ---- LSE ---- */

static void natural_log(const setting *s)
{
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype, .nk = 2, .d = s->d});
    tensor_all(t->t[Q], 0);
    must_forward(t, s);
    expect_all(t, LSE, log(2), 0, s);
    sample_free(t);
}
CASE(b43_lse_is_a_natural_log, ON_ALL, 0, natural_log)

static void lse_layout(const setting *s)
{
    const tensor_layout list[] = {{.skew = 1},
                                  TENSOR_BNHD,
                                  {.pad = {3, 2, 1, 4}},
                                  {.flip = 4},
                                  {.order = {2, 1, 0, 3}, .step = 3}};
    const int32_t cu[] = {0, 2, 5};
    for (size_t x = 0; x < COUNT(list); x++) {
        for (int varlen = 0; varlen < 2; varlen++) {
            sample_spec spec = {
                .dtype = s->dtype, .hq = 3, .nq = 5, .d = s->d, .backward = true};
            spec.layout[LSE] = list[x];
            sample *t = sample_new(&spec); /* lse [1, 3, 5, 1], guarded all around */
            if (varlen) sample_use_varlen(t, 2, cu, cu);
            judge_sample_on(t, s->path, "b44");
            sample_free(t);
        }
    }
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype, .hq = 3, .nq = 5, .d = s->d});
    sample *without = sample_copy(t, 0);
    sample_put(without, LSE, NULL);
    must_forward(t, s);
    must_forward(without, s);
    expect_same(without, t, O, s);
    sample_free(t);
    sample_free(without);
}
CASE(b44_lse_layout, ON_ALL, 64, lse_layout)

static void gradient_through_lse(const setting *s)
{
    sample *t =
        sample_new(&(sample_spec){.dtype = s->dtype, .nk = 2, .d = s->d, .backward = true});
    const double x = tensor_round(s->dtype, log(3)), p = 1 / (1 + exp(-x));
    tensor_values(t->t[Q], 1, (double[]){1});
    tensor_values(t->t[K], 1, (double[]){x, 0});
    tensor_all(t->t[DOUT], 0);
    tensor_all(sample_put(t, DLSE, tensor_new(FFPA_F32, 1, 1, 1, 1, NULL)), 1);
    must_forward(t, s);
    must_backward(t, s);
    expect_values(t, DQ, 1, (double[]){p * x}, 0, s);
    expect_values(t, DK, 1, (double[]){p, 1 - p}, 0, s);
    expect_all(t, DV, 0, 0, s);
    sample_free(t);
}
CASE(b46_gradient_through_lse, ON_ALL, 0, gradient_through_lse)

/* ---- sink ---- */

static void sink_counts(const setting *s)
{
    sample *t =
        sample_new(&(sample_spec){.dtype = s->dtype, .nk = 1, .d = s->d, .backward = true});
    tensor_all(t->t[Q], 0);
    tensor_values(t->t[V], 1, (double[]){6});
    tensor_values(t->t[DOUT], 1, (double[]){1});
    tensor_all(sample_put(t, SINK, tensor_new(FFPA_F32, 1, 1, 1, 1, NULL)), 0);
    sample_put(t, DSINK, tensor_new(FFPA_F32, 1, 1, 1, 1, NULL));
    must_forward(t, s);
    expect_values(t, O, 1, (double[]){3}, 0, s);
    expect_all(t, LSE, log(2), 0, s);
    must_backward(t, s);
    expect_all(t, DSINK, -1.5, 0, s);
    expect_values(t, DV, 1, (double[]){.5}, 0, s);
    sample_free(t);
}
CASE(b47_sink_counts, ON_ALL, 0, sink_counts)

/* An empty row with a sink: O = 0, LSE = the sink, and dSink receives dLSE. */
static void sink_of_an_empty_row(const setting *s)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .hq = 2, .nq = 3, .nk = 1, .d = s->d, .backward = true});
    t->f.causal = FFPA_BOTTOM_RIGHT; /* rows 0 and 1 see nothing */
    tensor_all(t->t[Q], 0);
    tensor_all(t->t[DOUT], 0);
    tensor_values(sample_put(t, SINK, tensor_new(FFPA_F32, 1, 2, 1, 1, NULL)), 1,
                  (double[]){-1.5, 30});
    tensor_values(sample_put(t, DLSE, tensor_new(FFPA_F32, 1, 2, 3, 1, NULL)), 1,
                  (double[]){1, 2, 0, 4, 8, 0});
    sample_put(t, DSINK, tensor_new(FFPA_F32, 1, 2, 1, 1, NULL));
    must_forward(t, s);
    const double last0 = log(1 + exp(-1.5)), last1 = 30 + log1p(exp(-30));
    expect_values(t, LSE, 1, (double[]){-1.5, -1.5, last0, 30, 30, last1}, 0, s);
    for (int64_t i = 0; i < 2; i++)
        expect_row(t, O, i, 0, 0, s);
    must_backward(t, s);
    expect_values(t, DSINK, 1, (double[]){3, 12}, 0, s);
    expect_all(t, DQ, 0, 0, s);
    judge_sample_on(t, s->path, "b47");
    sample_free(t);
}
CASE(b47_sink_of_an_empty_row, ON_ALL, 0, sink_of_an_empty_row)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b41_merge_empty_parts),
        cmocka_unit_test(b41_merge_keeps_nan),
        cmocka_unit_test(b42_more_splits_than_keys),
        cmocka_unit_test(b42_more_threads_than_keys),
        cmocka_unit_test(b43_lse_is_a_natural_log),
        cmocka_unit_test(b44_lse_layout),
        cmocka_unit_test(b45_merge_weights),
        cmocka_unit_test(b46_gradient_through_lse),
        cmocka_unit_test(b47_sink_counts),
        cmocka_unit_test(b47_sink_of_an_empty_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
