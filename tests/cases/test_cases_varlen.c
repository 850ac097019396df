/* test_cases_varlen.c - packed sequences: cases B36 to B40. */
#include "support/judge_rule.h"

#include <math.h>

static sample *packed(const setting *s, int64_t total_q, int64_t total_k)
{
    return sample_new(&(sample_spec){.dtype = s->dtype,
                                     .hq = 4,
                                     .hk = 2,
                                     .nq = total_q ? total_q : -1,
                                     .nk = total_k ? total_k : -1,
                                     .d = s->d,
                                     .backward = true});
}

static void keys_without_queries(const setting *s)
{
    const int32_t cu_q[] = {0, 0, 2, 2}, cu_k[] = {0, 3, 5, 9}, no_q[] = {0, 0, 0, 0};
    sample *t = packed(s, 2, 9);
    sample_use_varlen(t, 3, cu_q, cu_k);
    must_forward(t, s);
    must_backward(t, s);
    for (int64_t j = 0; j < 9; j++) {
        if (j == 3 || j == 4) continue;
        expect_row(t, DK, j, 0, 0, s);
        expect_row(t, DV, j, 0, 0, s);
    }
    judge_sample_on(t, s->path, "b36");
    sample_free(t);
    t = packed(s, 0, 9);
    sample_use_varlen(t, 3, no_q, cu_k);
    must_forward(t, s);
    must_backward(t, s);
    expect_all(t, DK, 0, 0, s);
    expect_all(t, DV, 0, 0, s);
    sample_free(t);
}
CASE(b36_keys_without_queries, ON_ALL, 64, keys_without_queries)

static void queries_without_keys(const setting *s)
{
    const int32_t cu_q[] = {0, 2, 4}, cu_k[] = {0, 0, 3};
    sample *t = packed(s, 4, 3);
    sample_use_varlen(t, 2, cu_q, cu_k);
    must_forward(t, s);
    must_backward(t, s);
    for (int64_t i = 0; i < 2; i++) {
        expect_row(t, O, i, 0, 0, s);
        expect_row(t, LSE, i, -(double)INFINITY, 0, s);
        expect_row(t, DQ, i, 0, 0, s);
    }
    judge_sample_on(t, s->path, "b37");
    sample_free(t);
}
CASE(b37_queries_without_keys, ON_ALL, 64, queries_without_keys)

static void rows_past_the_last(const setting *s)
{
    const int32_t cu[] = {1, 2, 4}; /* row 0 belongs to no sequence either */
    sample *t = packed(s, 6, 6);
    sample_use_varlen(t, 2, cu, cu);
    must_forward(t, s);
    must_backward(t, s);
    const role outputs[] = {O, LSE, DQ, DK, DV};
    for (size_t x = 0; x < COUNT(outputs); x++) {
        const tensor *out = t->t[outputs[x]];
        for (int64_t h = 0; h < out->view.shape[1]; h++) {
            for (int64_t n = 0; n < 6; n++) {
                for (int64_t c = 0; c < out->view.shape[3]; c++)
                    assert_int_equal(tensor_poisoned(out, 0, h, n, c), n < 1 || n >= 4);
            }
        }
    }
    judge_sample_on(t, s->path, "b38");
    sample_free(t);
}
CASE(b38_rows_past_the_last_are_untouched, ON_ALL, 64, rows_past_the_last)

static void length_hints(const setting *s)
{
    const int32_t cu[] = {0, 3, 133};
    const int64_t hints[] = {0, 130, 1000, 100, 1};
    sample *first = NULL;
    for (size_t x = 0; x < COUNT(hints); x++) {
        sample *t = packed(s, 133, 133);
        t->f.causal = FFPA_BOTTOM_RIGHT;
        sample_use_varlen(t, 2, cu, cu);
        t->varlen.max_q = t->varlen.max_k = hints[x];
        must_forward(t, s);
        must_backward(t, s);
        if (!first) {
            judge_sample_on(t, s->path, "b39");
            first = t;
            continue;
        }
        const role outputs[] = {O, LSE, DQ, DK, DV};
        for (size_t y = 0; y < COUNT(outputs); y++)
            expect_close(t, first, outputs[y], 1, s);
        sample_free(t);
    }
    sample_free(first);
}
CASE(b39_length_hints_change_nothing, ON_ALL, 64, length_hints)

static void one_sequence(const setting *s)
{
    const int32_t cu[] = {0, 128};
    sample *dense = sample_new(
        &(sample_spec){.dtype = s->dtype, .hq = 2, .nq = 128, .d = s->d, .backward = true});
    dense->f.flags = 0;
    sample *t = sample_copy(dense, 0);
    sample_use_varlen(t, 1, cu, cu);
    must_forward(dense, s);
    must_backward(dense, s);
    must_forward(t, s);
    must_backward(t, s);
    const role outputs[] = {O, LSE, DQ, DK, DV};
    for (size_t y = 0; y < COUNT(outputs); y++)
        expect_close(t, dense, outputs[y], 1, s);
    sample_free(t);
    sample_free(dense);
}
CASE(b40_one_sequence_equals_dense, ON_ALL, 512, one_sequence)

/* Every sequence of a packed call is the dense call on its rows, with 64-bit offsets and options whose
 * alignment and dropout count within the sequence. */
static void sequences_stand_alone(const setting *s)
{
    const int32_t cu_q[] = {0, 5, 5, 42, 120}, cu_k[] = {0, 9, 20, 51, 120};
    int64_t wide_q[5], wide_k[5];
    for (int i = 0; i < 5; i++)
        wide_q[i] = cu_q[i], wide_k[i] = cu_k[i];
    sample *t = packed(s, 120, 120);
    t->f.causal = FFPA_BOTTOM_RIGHT;
    sample_use_window(t, 30, 0);
    sample_use_dropout(t, .25f, 7, 9);
    tensor_values(sample_put(t, ALIBI, tensor_new(FFPA_F32, 1, 4, 1, 1, NULL)), 1,
                  (double[]){.1, .2, 0, .5});
    sample_use_varlen(t, 4, cu_q, cu_k);
    judge_sample_on(t, s->path, "b39 sequences");
    sample *wide = sample_copy(t, 0);
    wide->varlen.cu_q = wide_q, wide->varlen.cu_k = wide_k;
    wide->varlen.index_dtype = FFPA_I64;
    must_forward(t, s);
    must_forward(wide, s);
    expect_same(wide, t, O, s);
    expect_same(wide, t, LSE, s);
    sample_free(wide);
    sample_free(t);
    /* One side packed, the other dense. */
    t = sample_new(&(sample_spec){
        .dtype = s->dtype, .b = 4, .hq = 2, .nq = 11, .nk = 120, .d = s->d, .backward = true});
    const role keys[] = {K, V, DK, DV};
    for (size_t x = 0; x < COUNT(keys); x++)
        sample_put(t, keys[x], tensor_new(s->dtype, 1, 2, 120, s->d, NULL));
    tensor_hash(t->t[K], 1, 1);
    tensor_hash(t->t[V], 2, 1);
    sample_use_varlen(t, 4, NULL, cu_k);
    judge_sample_on(t, s->path, "b39 dense queries");
    sample_free(t);
}
CASE(b39_sequences_stand_alone, ON_ALL, 96, sequences_stand_alone)

static void bad_offsets(const setting *s)
{
    const int32_t bad[][3] = {{0, 4, 3}, {-1, 2, 4}, {0, 2, 7}, {0, -5, 6}, {0, INT32_MAX, 6}};
    for (size_t x = 0; x < COUNT(bad); x++) {
        for (int side = 0; side < 2; side++) {
            const int32_t good[] = {0, 2, 4};
            sample *t = packed(s, 6, 6);
            sample_use_varlen(t, 2, side ? good : bad[x], side ? bad[x] : good);
            expect_bad_contents(t, s, side ? "cu_k" : "cu_q");
            sample_free(t);
        }
    }
}
CASE(b39_bad_offsets_are_refused, ON_F32, 64, bad_offsets)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b36_keys_without_queries),
        cmocka_unit_test(b37_queries_without_keys),
        cmocka_unit_test(b38_rows_past_the_last_are_untouched),
        cmocka_unit_test(b39_length_hints_change_nothing),
        cmocka_unit_test(b39_sequences_stand_alone),
        cmocka_unit_test(b39_bad_offsets_are_refused),
        cmocka_unit_test(b40_one_sequence_equals_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
