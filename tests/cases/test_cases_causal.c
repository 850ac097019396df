/* test_cases_causal.c - causal alignment and windows: cases B15 to B21. */
#include "support/judge_rule.h"

#include <math.h>

/* q = 0 and V = identity, so that O is the weight matrix. */
static sample *probe(const setting *s, int64_t nq, int64_t nk)
{
    sample *t = sample_new(&(sample_spec){
        .dtype = s->dtype, .nq = nq, .nk = nk, .d = s->d, .dv = nk, .backward = true});
    tensor_all(t->t[Q], 0);
    tensor_identity(t->t[V]);
    tensor_all(t->t[DOUT], 1);
    return t;
}

/* Row i spreads its weight evenly over keys first..last (none when last < first). */
static void expect_span(const sample *t, int64_t i, int64_t first, int64_t last,
                        const setting *s)
{
    const int64_t keys = last < first ? 0 : last - first + 1;
    for (int64_t j = 0; j < t->t[V]->view.shape[2]; j++) {
        const double p = j >= first && j <= last ? 1.0 / (double)keys : 0.0;
        expect_at(t, O, (int64_t[]){0, 0, i, j}, p, 0, s);
    }
    expect_at(t, LSE, (int64_t[]){0, 0, i, 0}, log((double)keys), 0, s);
}

static void two_alignments(const setting *s)
{
    sample *t = probe(s, 2, 5);
    t->f.causal = FFPA_BOTTOM_RIGHT;
    must_forward(t, s);
    expect_values(t, O, 5, (double[]){.25, .25, .25, .25, 0, .2, .2, .2, .2, .2}, 0, s);
    t->f.causal = FFPA_TOP_LEFT;
    must_forward(t, s);
    expect_values(t, O, 5, (double[]){1, 0, 0, 0, 0, .5, .5, 0, 0, 0}, 0, s);
    sample_free(t);
}
CASE(b15_two_causal_alignments, ON_ALL, 0, two_alignments)

static void more_queries_than_keys(const setting *s)
{
    sample *t = probe(s, 5, 2);
    t->f.causal = FFPA_BOTTOM_RIGHT;
    must_forward(t, s);
    expect_values(t, O, 2, (double[]){0, 0, 0, 0, 0, 0, 1, 0, .5, .5}, 0, s);
    const double inf = (double)INFINITY;
    expect_values(t, LSE, 1, (double[]){-inf, -inf, -inf, 0, log(2)}, 0, s);
    must_backward(t, s);
    expect_row(t, DV, 0, 1.5, 0, s);
    expect_row(t, DV, 1, .5, 0, s);
    for (int64_t i = 0; i < 3; i++)
        expect_row(t, DQ, i, 0, 0, s);
    t->f.causal = FFPA_TOP_LEFT;
    must_forward(t, s);
    expect_values(t, O, 2, (double[]){1, 0, .5, .5, .5, .5, .5, .5, .5, .5}, 0, s);
    must_backward(t, s);
    expect_row(t, DV, 0, 3, 0, s);
    expect_row(t, DV, 1, 2, 0, s);
    sample_free(t);
}
CASE(b16_more_queries_than_keys, ON_ALL, 0, more_queries_than_keys)

static void one_rule_at_every_size(const setting *s)
{
    const int64_t sizes[][2] = {{8, 512},   {511, 700}, {512, 700},
                                {600, 511}, {1, 300},   {130, 131}};
    for (size_t x = 0; x < COUNT(sizes); x++) {
        const int64_t nq = sizes[x][0], nk = sizes[x][1];
        for (int rule = FFPA_TOP_LEFT; rule <= FFPA_BOTTOM_RIGHT; rule++) {
            sample *t = probe(s, nq, nk);
            t->f.causal = rule;
            must_forward(t, s);
            for (int64_t i = 0; i < nq; i++) {
                const int64_t centre = rule == FFPA_TOP_LEFT ? i : i + nk - nq;
                expect_span(t, i, 0, centre < nk ? centre : nk - 1, s);
            }
            sample_free(t);
        }
    }
}
CASE(b17_one_rule_at_every_size, ON_F32 | ON_BF16, 64, one_rule_at_every_size)

static void mask_and_causal(const setting *s)
{
    for (int additive = 0; additive < 2; additive++) {
        sample *t = probe(s, 3, 3);
        t->f.causal = FFPA_BOTTOM_RIGHT;
        tensor *mask = tensor_new(additive ? FFPA_F16 : FFPA_BOOL, 1, 1, 1, 3, NULL);
        const double off = additive ? -(double)INFINITY : 0, on = additive ? 0 : 1;
        tensor_values(sample_put(t, MASK, mask), 3, (double[]){off, on, on});
        must_forward(t, s);
        for (int64_t i = 0; i < 3; i++)
            expect_span(t, i, 1, i, s);
        must_backward(t, s);
        const double dv[] = {0, 1.5, .5};
        for (int64_t j = 0; j < 3; j++)
            expect_row(t, DV, j, dv[j], 0, s);
        sample_free(t);
    }
}
CASE(b18_mask_and_causal_together, ON_ALL, 0, mask_and_causal)

static void full_window_is_causal(const setting *s)
{
    const int64_t sizes[] = {16, 130, 257};
    for (size_t x = 0; x < COUNT(sizes); x++) {
        const int64_t n = sizes[x];
        sample *causal =
            sample_new(&(sample_spec){.dtype = s->dtype, .nq = n, .d = s->d, .backward = true});
        sample *window = sample_copy(causal, 0);
        causal->f.causal = FFPA_BOTTOM_RIGHT;
        sample_use_window(window, n - 1, 0);
        must_forward(causal, s);
        must_forward(window, s);
        must_backward(causal, s);
        must_backward(window, s);
        const role outputs[] = {O, LSE, DQ, DK, DV};
        for (size_t y = 0; y < COUNT(outputs); y++)
            expect_same(window, causal, outputs[y], s);
        sample_free(causal);
        sample_free(window);
    }
}
CASE(b19_full_window_is_causal, ON_ALL, 64, full_window_is_causal)
CASE(b19_full_window_is_causal_d512, ON_F32 | ON_BF16, 512, full_window_is_causal)

static void window_counts_keys_before(const setting *s)
{
    sample *t = probe(s, 8, 8);
    sample_use_window(t, 2, 0);
    must_forward(t, s);
    for (int64_t i = 0; i < 8; i++)
        expect_span(t, i, i < 2 ? 0 : i - 2, i, s);
    sample_use_window(t, 0, 1);
    must_forward(t, s);
    for (int64_t i = 0; i < 8; i++)
        expect_span(t, i, i, i < 7 ? i + 1 : 7, s);
    sample_use_window(t, -1, 1);
    must_forward(t, s);
    for (int64_t i = 0; i < 8; i++)
        expect_span(t, i, 0, i < 7 ? i + 1 : 7, s);
    sample_use_window(t, 3, -1);
    must_forward(t, s);
    for (int64_t i = 0; i < 8; i++)
        expect_span(t, i, i < 3 ? 0 : i - 3, 7, s);
    sample_free(t);
}
CASE(b20_window_counts_keys_before, ON_ALL, 0, window_counts_keys_before)

static void window_and_unequal_lengths(const setting *s)
{
    sample *t = probe(s, 3, 10);
    sample_use_window(t, 4, 0);
    must_forward(t, s);
    for (int64_t i = 0; i < 3; i++)
        expect_span(t, i, i + 3, i + 7, s);
    t->f.causal = FFPA_TOP_LEFT; /* moves the centre of the window too */
    sample_use_window(t, 1, 5);
    must_forward(t, s);
    for (int64_t i = 0; i < 3; i++)
        expect_span(t, i, i ? i - 1 : 0, i, s);
    sample_free(t);
    /* Long enough that whole tiles lie outside the window. */
    t = probe(s, 300, 400);
    sample_use_window(t, 20, 3);
    must_forward(t, s);
    for (int64_t i = 0; i < 300; i++)
        expect_span(t, i, i + 80, i + 103 < 400 ? i + 103 : 399, s);
    sample_free(t);
}
CASE(b21_window_and_unequal_lengths, ON_ALL, 64, window_and_unequal_lengths)

/* Gradients through partial tiles of every kind of band. */
static void bands_backward(const setting *s)
{
    const int64_t sizes[][2] = {{70, 70}, {33, 150}, {150, 33}};
    for (size_t x = 0; x < COUNT(sizes); x++) {
        for (int rule = 0; rule < 6; rule++) {
            sample *t = sample_new(&(sample_spec){.dtype = s->dtype,
                                                  .nq = sizes[x][0],
                                                  .nk = sizes[x][1],
                                                  .d = s->d,
                                                  .backward = true});
            t->f.causal = rule % 3;
            if (rule >= 3) sample_use_window(t, 17, 5);
            judge_sample_on(t, s->path, "bands");
            sample_free(t);
        }
    }
}
CASE(b17_bands_backward, ON_ALL, 72, bands_backward)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b15_two_causal_alignments),
        cmocka_unit_test(b16_more_queries_than_keys),
        cmocka_unit_test(b17_one_rule_at_every_size),
        cmocka_unit_test(b17_bands_backward),
        cmocka_unit_test(b18_mask_and_causal_together),
        cmocka_unit_test(b19_full_window_is_causal),
        cmocka_unit_test(b19_full_window_is_causal_d512),
        cmocka_unit_test(b20_window_counts_keys_before),
        cmocka_unit_test(b21_window_and_unequal_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
