/* test_empty.c - no query heads, or no keys: nothing to compute, but every gradient asked for is written. */
#include "support/judge_paths.h"
#include "support/sample_call.h"
#include "support/unit.h"

#include <unistd.h>

static void check_zero(const float *x, size_t n, const char *backend, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != 0.0f) fail_msg("%s: %s[%zu]=%g, not 0", backend, name, i, (double)x[i]);
}

static void gradients_without_query_heads(void **state)
{
    (void)state;
    static const char *const backends[] = {"cpu", "reference", "naive"};
    static sample_call s;
    for (size_t b = 0; b < COUNT(backends); b++) {
        ffpa_context *ctx = judge_context(backends[b], NULL, 2);
        sample_init(&s);
        sample_attach_mask(&s); /* one mask for all heads, however few */
        s.f.mask.shape[1] = s.g.dmask.shape[1] = 1;
        s.f.q.shape[1] = s.f.o.shape[1] = s.f.lse.shape[1] = 0;
        s.g.dout.shape[1] = s.g.dq.shape[1] = 0;
        const sample_memory before = s.mem;
        assert_ok(ffpa_forward(ctx, &s.f));
        assert_memory_equal(&before, &s.mem, sizeof before);
        assert_ok(ffpa_backward(ctx, &s.g));
        check_zero(s.mem.dk, COUNT(s.mem.dk), backends[b], "dk");
        check_zero(s.mem.dv, COUNT(s.mem.dv), backends[b], "dv");
        for (int i = 0; i < SB; i++)
            check_zero(s.mem.dmask + i * SHQ * SNQ * SNK, SNQ * SNK, backends[b], "dmask");
        assert_memory_equal(before.dq, s.mem.dq, sizeof before.dq);
        ffpa_context_destroy(ctx);
    }
}

/* Empty tensors may have no address, and still be asked for. */
static void gradients_without_keys(void **state)
{
    (void)state;
    static const char *const backends[] = {"cpu", "reference", "naive"};
    static sample_call s;
    for (size_t b = 0; b < COUNT(backends); b++) {
        ffpa_context *ctx = judge_context(backends[b], NULL, 2);
        sample_init(&s);
        ffpa_tensor *const keys[] = {&s.f.k, &s.f.v, &s.g.dk, &s.g.dv};
        for (size_t i = 0; i < COUNT(keys); i++) {
            keys[i]->shape[2] = 0;
            keys[i]->data = NULL;
        }
        memset(s.mem.dq, 0xff, sizeof s.mem.dq);
        assert_ok(ffpa_forward(ctx, &s.f));
        assert_ok(ffpa_backward(ctx, &s.g));
        check_zero(s.mem.dq, COUNT(s.mem.dq), backends[b], "dq");
        ffpa_context_destroy(ctx);
    }
}

/* Nothing to write is nothing to do, however many sequences it is spread over. */
static void a_trillion_empty_sequences(void **state)
{
    (void)state;
    static sample_call s;
    ffpa_context *ctx;
    const ffpa_context_options options = {
        .struct_size = sizeof options, .policy = FFPA_ALLOW_SLOW, .threads = 1};
    assert_ok(ffpa_context_create(&options, &ctx));
    sample_init(&s);
    ffpa_tensor *const tensors[] = {&s.f.q,    &s.f.k,  &s.f.v,  &s.f.o, &s.f.lse,
                                    &s.g.dout, &s.g.dq, &s.g.dk, &s.g.dv};
    for (size_t i = 0; i < COUNT(tensors); i++) {
        tensors[i]->shape[0] = (int64_t)1 << 40;
        tensors[i]->shape[1] = 1;
        tensors[i]->shape[2] = 0;
        memset(tensors[i]->stride, 0, sizeof tensors[i]->stride);
    }
    alarm(20); /* a loop over them would end the test */
    assert_ok(ffpa_forward(ctx, &s.f));
    assert_ok(ffpa_backward(ctx, &s.g));
    alarm(0);
    ffpa_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_without_query_heads),
                                       cmocka_unit_test(gradients_without_keys),
                                       cmocka_unit_test(a_trillion_empty_sequences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
