/* test_cases_determinism.c - same bits from run to run, for any number of threads, and whoever shares
 * the batch: cases B54 and B55. */
#include "support/judge_device.h"
#include "support/judge_rule.h"

#include <math.h>

static const role outputs[] = {O, LSE, DQ, DK, DV, DMASK, DSINK};

static void expect_same_outputs(const sample *a, const sample *b, const setting *s)
{
    for (size_t x = 0; x < COUNT(outputs); x++) {
        if (a->t[outputs[x]]) expect_same(a, b, outputs[x], s);
    }
}

static void run(sample *t, ffpa_context *ctx)
{
    assert_ok(sample_forward(t, ctx));
    if (t->spec.backward) assert_ok(sample_backward(t, ctx));
}

static void thirty_runs(const setting *s)
{
    /* One run of the full problem takes the oracle a second. */
    const int64_t nq = s->path->slow || judge_quick() ? 70 : 300;
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .b = 2, .hq = 8, .hk = 2, .nq = nq, .d = s->d, .backward = true});
    t->f.causal = FFPA_BOTTOM_RIGHT;
    t->f.flags = FFPA_DETERMINISTIC;
    sample *first = sample_copy(t, 0);
    run(first, s->path->ctx);
    const bool few = s->path->slow || judge_quick() || strstr(s->path->name, "portable");
    const int runs = s->path->slow ? 2 : few ? 3 : 30;
    for (int n = 1; n < runs; n++) {
        run(t, s->path->ctx);
        expect_same_outputs(t, first, s);
    }
    sample_free(t);
    sample_free(first);
}
CASE(b54_thirty_runs_agree, ON_BF16, 512, thirty_runs)

/* Problems that are cut into pieces in different ways. */
static sample *cut(int kind, const setting *s)
{
    static const sample_spec list[] = {
        {.b = 2, .hq = 4, .hk = 2, .nq = 150, .backward = true},
        {.hq = 1, .nq = 333, .backward = true},
        {.hq = 8, .hk = 1, .nq = 1, .nk = 3000},
        {.hq = 3, .hk = 1, .nq = 5, .nk = 1500, .backward = true},
        {.hq = 2, .nq = 1000, .nk = 7, .backward = true},
    };
    sample_spec spec = list[kind];
    spec.dtype = s->dtype, spec.d = s->d;
    sample *t = sample_new(&spec);
    const sample_spec *sizes = &t->spec;
    if (kind < 2) t->f.causal = FFPA_BOTTOM_RIGHT;
    if (!sizes->backward) return t;
    tensor_hash(sample_put(t, MASK, tensor_new(FFPA_F32, 1, 1, 1, sizes->nk, NULL)), 9, 2);
    sample_put(t, DMASK, tensor_new(FFPA_F32, 1, 1, 1, sizes->nk, NULL));
    tensor_hash(sample_put(t, SINK, tensor_new(FFPA_F32, 1, sizes->hq, 1, 1, NULL)), 10, 2);
    sample_put(t, DSINK, tensor_new(FFPA_F32, 1, sizes->hq, 1, 1, NULL));
    sample_use_dropout(t, .1f, 3, 4);
    return t;
}

static void thread_counts(const setting *s)
{
    for (int kind = 0; kind < 5; kind++) {
        sample *first = cut(kind, s), *t = sample_copy(first, 0);
        ffpa_context *one = judge_context(s->path->backend, s->path->isa, 1);
        run(first, one);
        ffpa_context_destroy(one);
        const int counts[] = {2, 3, 8};
        for (size_t x = s->path->slow || judge_quick() ? 2 : 0; x < COUNT(counts); x++) {
            ffpa_context *many = judge_context(s->path->backend, s->path->isa, counts[x]);
            run(t, many);
            expect_same_outputs(t, first, s);
            ffpa_context_destroy(many);
        }
        sample_free(t);
        sample_free(first);
    }
}
CASE(b54_thread_count_changes_no_bit, ON_F32 | ON_BF16, 256, thread_counts)

/* ---- batch invariance ---- */

enum { B = 9, MIDDLE = 4 };

/* Element [b, h, 0, c] of a batch equals [0, h, 0, c] of the row alone, bit for bit; on a GPU, which splits the keys
 * by how many blocks there are, within rounding. */
static void expect_row_alone(const sample *batch, const sample *alone, const setting *s)
{
    const double slack = judge_on_device(s->path->ctx) ? 8 * tensor_ulp(s->dtype) : 0;
    for (int64_t h = 0; h < batch->spec.hq; h++) {
        for (int64_t c = 0; c < s->d; c++) {
            const double a = tensor_at(batch->t[O], MIDDLE, h, 0, c);
            const double b = tensor_at(alone->t[O], 0, h, 0, c);
            if (!(fabs(a - b) <= slack))
                fail_msg("%s, D=%lld: o[%d,%lld,0,%lld] is %.9g in the batch, %.9g alone",
                         s->path->name, (long long)s->d, MIDDLE, (long long)h, (long long)c, a,
                         b);
        }
        const double lse = tensor_at(alone->t[LSE], 0, h, 0, 0);
        assert_true(fabs(tensor_at(batch->t[LSE], MIDDLE, h, 0, 0) - lse) <=
                    slack * fmax(1, fabs(lse)));
    }
}

/* The middle sequence of a batch, in a cache of its own with `capacity` rows. */
static sample *middle_alone(const sample *batch, int64_t capacity, const int32_t *length)
{
    sample_spec spec = batch->spec;
    spec.b = 1, spec.nk = capacity;
    sample *alone = sample_new(&spec);
    const role inputs[] = {Q, K, V};
    for (size_t x = 0; x < COUNT(inputs); x++) {
        const tensor *from = batch->t[inputs[x]];
        const int64_t rows = x ? *length : 1;
        for (int64_t h = 0; h < from->view.shape[1]; h++) {
            for (int64_t n = 0; n < rows; n++) {
                for (int64_t c = 0; c < spec.d; c++)
                    tensor_put(alone->t[inputs[x]], 0, h, n, c,
                               tensor_at(from, MIDDLE, h, n, c));
            }
        }
    }
    sample_use_cache(alone, length);
    return alone;
}

/* A decode row in a cache of 9 sequences, alone in a cache, and alone without one. */
static void decode_row(const setting *s, const int32_t lengths[B], int64_t longest)
{
    sample *batch = sample_new(&(sample_spec){
        .dtype = s->dtype, .b = B, .hq = 4, .hk = 1, .nq = 1, .nk = longest, .d = s->d});
    sample_use_cache(batch, lengths);
    must_forward(batch, s);
    const int64_t capacity[] = {lengths[MIDDLE], longest};
    for (size_t x = 0; x < COUNT(capacity); x++) {
        sample *alone = middle_alone(batch, capacity[x], &lengths[MIDDLE]);
        must_forward(alone, s);
        expect_row_alone(batch, alone, s);
        alone->f.kv_cache = NULL;
        if (capacity[x] == lengths[MIDDLE]) {
            must_forward(alone, s);
            expect_row_alone(batch, alone, s);
        }
        sample_free(alone);
    }
    sample_free(batch);
}

static void short_decode(const setting *s)
{
    const int32_t lengths[B] = {1, 130, 64, 900, 777, 0, 1500, 776, 300};
    decode_row(s, lengths, 1500);
}
CASE(b55_batch_invariance, ON_F32 | ON_BF16, 512, short_decode)

/* Long enough for the keys to be split. */
static void long_decode(const setting *s)
{
    const int32_t lengths[B] = {1, 130, 2048, 900, 4001, 0, 6000, 4000, 2047};
    decode_row(s, lengths, 6000);
}
CASE(b55_batch_invariance_of_split_keys, ON_ALL, 40, long_decode)

/* The middle sequence of a dense batch of prefills, and that sequence alone. */
static void prefill(const setting *s)
{
    sample *batch = sample_new(
        &(sample_spec){.dtype = s->dtype, .b = B, .hq = 2, .nq = 40, .nk = 90, .d = s->d});
    sample *alone =
        sample_new(&(sample_spec){.dtype = s->dtype, .hq = 2, .nq = 40, .nk = 90, .d = s->d});
    const role inputs[] = {Q, K, V};
    for (size_t x = 0; x < COUNT(inputs); x++) {
        const tensor *from = batch->t[inputs[x]];
        for (int64_t h = 0; h < 2; h++) {
            for (int64_t n = 0; n < from->view.shape[2]; n++) {
                for (int64_t c = 0; c < s->d; c++)
                    tensor_put(alone->t[inputs[x]], 0, h, n, c,
                               tensor_at(from, MIDDLE, h, n, c));
            }
        }
    }
    must_forward(batch, s);
    must_forward(alone, s);
    for (int64_t h = 0; h < 2; h++) {
        for (int64_t n = 0; n < 40; n++) {
            for (int64_t c = 0; c < s->d; c++)
                assert_true(tensor_at(batch->t[O], MIDDLE, h, n, c) ==
                            tensor_at(alone->t[O], 0, h, n, c));
        }
    }
    sample_free(batch);
    sample_free(alone);
}
CASE(b55_prefill_batch_invariance, ON_ALL, 320, prefill)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b54_thirty_runs_agree),
        cmocka_unit_test(b54_thread_count_changes_no_bit),
        cmocka_unit_test(b55_batch_invariance),
        cmocka_unit_test(b55_batch_invariance_of_split_keys),
        cmocka_unit_test(b55_prefill_batch_invariance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
