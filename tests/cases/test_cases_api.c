/* test_cases_api.c - refusals and answers of the interface itself: cases B59, B60, B62, B68 to B70. */
#include "support/judge_device.h"
#include "support/judge_rule.h"

#include <math.h>

static void quantised_inputs(const setting *s)
{
    const ffpa_quant quant = {.struct_size = sizeof quant, .block_rows = 32};
    sample *t = sample_new(&(sample_spec){.dtype = s->dtype, .hq = 2, .d = s->d});
    t->f.quant = &quant;
    assert_status(sample_forward(t, s->path->ctx), FFPA_E_UNSUPPORTED, "quant");
    t->f.quant = NULL;
    const int32_t kinds[] = {FFPA_E4M3, FFPA_E5M2};
    for (size_t x = 0; x < COUNT(kinds); x++) {
        for (int r = Q; r <= (int)V; r++)
            sample_put(t, (role)r, tensor_new(kinds[x], 1, 2, 1, s->d, NULL));
        assert_status(sample_forward(t, s->path->ctx), FFPA_E_UNSUPPORTED, "quantised");
    }
    sample_free(t);
}
CASE(b59_b60_b62_quantised_inputs_are_refused, ON_F32, 72, quantised_inputs)

static void key_padding_mask(const setting *s)
{
    sample *t =
        sample_new(&(sample_spec){.dtype = s->dtype, .b = 2, .nq = 3, .nk = 5, .d = s->d});
    tensor_all(t->t[Q], 0);
    tensor_values(t->t[V], 1, (double[]){1, 2, 3, 4, 5, 10, 20, 30, 40, 50});
    sample_use_mask(t, (int64_t[]){2, 1, 1, 5}, (double[]){1, 1, 1, 1, 1, 0, 1, 0, 1, 0});
    must_forward(t, s);
    expect_values(t, O, 1, (double[]){3, 3, 3, 30, 30, 30}, 0, s);
    const double lse[] = {log(5), log(5), log(5), log(2), log(2), log(2)};
    expect_values(t, LSE, 1, lse, 0, s);
    const int64_t wrong[][4] = {
        {1, 1, 2, 3}, {2, 1, 1, 3}, {2, 3, 1, 5}, {3, 1, 1, 5}, {1, 1, 1, 4}};
    for (size_t x = 0; x < COUNT(wrong); x++) {
        const int64_t *n = wrong[x];
        tensor_all(sample_put(t, MASK, tensor_new(FFPA_BOOL, n[0], n[1], n[2], n[3], NULL)), 1);
        assert_status(sample_forward(t, s->path->ctx), FFPA_E_INVALID, "mask");
    }
    sample_free(t);
}
CASE(b68_key_padding_mask, ON_ALL, 64, key_padding_mask)

/* Workspace of Hq8 Hk1 D512 at length n, whose tensors are never touched. */
static void workspaces(int64_t n, const setting *s, size_t *forward, size_t *backward)
{
    sample *t = sample_new(
        &(sample_spec){.dtype = s->dtype, .hq = 8, .hk = 1, .d = s->d, .backward = true});
    for (int r = 0; r < ROLES; r++) {
        if (!t->t[r]) continue;
        const int64_t *old = t->t[r]->view.shape, shape[4] = {1, old[1], n, old[3]};
        sample_put(
            t, (role)r,
            tensor_map(t->t[r]->view.dtype, shape, (int64_t[]){0, n * shape[3], shape[3], 1}));
    }
    t->f.causal = FFPA_BOTTOM_RIGHT;
    sample_wire(t);
    if (judge_on_device(
            s->path->ctx)) { /* nothing is read: saying where it would be is enough */
        ffpa_tensor *views[] = {&t->f.q,    &t->f.k,  &t->f.v,  &t->f.o, &t->f.lse,
                                &t->g.dout, &t->g.dq, &t->g.dk, &t->g.dv};
        for (size_t i = 0; i < COUNT(views); i++)
            views[i]->device = FFPA_CUDA(0);
    }
    assert_ok(ffpa_forward_workspace(s->path->ctx, &t->f, forward));
    assert_ok(ffpa_backward_workspace(s->path->ctx, &t->g, backward));
    sample_free(t);
}

static void no_square_workspace(const setting *s)
{
    enum { N = 8192 };
    size_t forward[2], backward[2];
    workspaces(N, s, &forward[0], &backward[0]);
    workspaces(2 * N, s, &forward[1], &backward[1]);
    if (judge_on_device(s->path->ctx)) { /* where P and dS may be kept, a piece at a time */
        const size_t bound = (size_t)1 << 30;
        assert_true(forward[1] <= bound);
        assert_true(backward[1] <= bound);
        return;
    }
    const size_t all_heads = (size_t)8 * N * (size_t)s->d * sizeof(float),
                 fixed = (size_t)64 << 20;
    assert_true(forward[0] <= all_heads + fixed);
    assert_true(backward[0] <= 4 * all_heads + fixed);
    assert_true(forward[1] <= 2 * forward[0] + fixed);
    assert_true(backward[1] <= 2 * backward[0] + fixed);
}
CASE(b69_no_square_workspace, ON_BF16, 512, no_square_workspace)

static void path_is_told(const setting *s)
{
    sample *t = sample_new(
        &(sample_spec){.dtype = s->dtype, .hq = 2, .nq = 40, .d = s->d, .backward = true});
    must_forward(t, s);
    if (strncmp(ffpa_last_path(), s->path->name, strlen(s->path->name)) != 0)
        fail_msg("path is %s on %s", ffpa_last_path(), s->path->name);
    must_backward(t, s);
    if (strncmp(ffpa_last_path(), s->path->name, strlen(s->path->name)) != 0)
        fail_msg("path is %s on %s", ffpa_last_path(), s->path->name);
    sample_free(t);
}
CASE(b70_path_is_told, ON_F32, 64, path_is_told)

/* float64 runs on the oracle alone: refused by default, done and told with permission. */
static void b70_strict_by_default(void **state)
{
    (void)state;
    for (int policy = FFPA_STRICT; policy <= FFPA_ALLOW_SLOW; policy++) {
        ffpa_context_options options = {
            .struct_size = sizeof options, .policy = policy, .threads = 2};
        ffpa_context *ctx;
        assert_ok(ffpa_context_create(&options, &ctx));
        sample *t =
            sample_new(&(sample_spec){.dtype = FFPA_F64, .nq = 3, .d = 8, .backward = true});
        if (policy == FFPA_STRICT) {
            assert_status(sample_forward(t, ctx), FFPA_E_UNSUPPORTED, "cpu");
        } else {
            assert_ok(sample_forward(t, ctx));
            assert_string_equal(ffpa_last_path(), "reference/forward");
            assert_ok(sample_backward(t, ctx));
            assert_string_equal(ffpa_last_path(), "reference/backward");
        }
        sample_free(t);
        ffpa_context_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b59_b60_b62_quantised_inputs_are_refused),
        cmocka_unit_test(b68_key_padding_mask),
        cmocka_unit_test(b69_no_square_workspace),
        cmocka_unit_test(b70_path_is_told),
        cmocka_unit_test(b70_strict_by_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
