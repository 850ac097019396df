/* test_cases_tails.c - the last, partial tile: cases B13 and B14. */
#include "support/judge_rule.h"

#include <math.h>

static void mean_of_values(const setting *s)
{
    const int64_t step = judge_quick() ? 9 : 1;
    for (int64_t nk = 1; nk <= 130; nk += step) {
        sample *t = sample_new(&(sample_spec){.dtype = s->dtype, .nk = nk, .d = s->d});
        tensor_all(t->t[Q], 0);
        for (int64_t j = 0; j < nk; j++) {
            for (int64_t c = 0; c < s->d; c++)
                tensor_put(t->t[V], 0, 0, j, c, (double)j);
        }
        must_forward(t, s);
        expect_all(t, O, (double)(nk - 1) / 2, 0, s);
        expect_all(t, LSE, log((double)nk), 0, s);
        sample_free(t);
    }
}
CASE(b13_keys_past_the_end, ON_ALL, 0, mean_of_values)

/* More rows than a decode step, so that the tiles of long queries see the same tails. */
static void mean_for_many_rows(const setting *s)
{
    for (int64_t nk = 1; nk <= 130; nk += judge_quick() ? 11 : 3) {
        sample *t = sample_new(
            &(sample_spec){.dtype = s->dtype, .hq = 2, .nq = 37, .nk = nk, .d = s->d});
        tensor_all(t->t[Q], 0);
        for (int64_t j = 0; j < nk; j++) {
            for (int64_t c = 0; c < s->d; c++) {
                for (int64_t h = 0; h < 2; h++)
                    tensor_put(t->t[V], 0, h, j, c, (double)j);
            }
        }
        must_forward(t, s);
        expect_all(t, O, (double)(nk - 1) / 2, 0, s);
        expect_all(t, LSE, log((double)nk), 0, s);
        sample_free(t);
    }
}
CASE(b13_keys_past_the_end_of_many_rows, ON_F32 | ON_BF16, 64, mean_for_many_rows)

static void backward_tail(const setting *s, int64_t n)
{
    sample_spec spec = {
        .dtype = s->dtype, .b = 2, .hq = 2, .nq = n, .d = s->d, .backward = true};
    for (int r = 0; r < ROLES; r++)
        spec.layout[r].pad[2] = s->d; /* a row of NaN after each head's last */
    sample *t = sample_new(&spec);
    tensor_all(t->t[Q], 0);
    tensor_all(t->t[K], 0);
    tensor_all(t->t[V], 1);
    tensor_all(t->t[DOUT], 1);
    must_forward(t, s);
    must_backward(t, s);
    expect_all(t, DV, 1, 0, s);
    expect_all(t, DQ, 0, 1, s);
    expect_all(t, DK, 0, 1, s);
    sample_free(t);
}

static void backward_tail_65(const setting *s) { backward_tail(s, 65); }
CASE(b14_backward_tail, ON_ALL, 0, backward_tail_65)

static void backward_tail_sweep(const setting *s)
{
    for (int64_t n = 1; n <= 130; n += judge_quick() ? 11 : 3)
        backward_tail(s, n);
}
CASE(b14_backward_tail_sweep, ON_F32 | ON_BF16, 40, backward_tail_sweep)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b13_keys_past_the_end),
        cmocka_unit_test(b13_keys_past_the_end_of_many_rows),
        cmocka_unit_test(b14_backward_tail),
        cmocka_unit_test(b14_backward_tail_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
