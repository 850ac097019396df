/* test_compare.c - the comparison behind `ffpa check` and `ffpa run --expect` can say no. */

#include "support/unit.h"

#include "compare.h"

#include <math.h>

#define assert_near(got, wanted, tolerance) assert_true(fabs((got) - (wanted)) <= (tolerance))

static difference compare(float *got, float *expected, int64_t n, const unsigned char *keep)
{
    ffpa_tensor x = ffpa_tensor_4d(got, FFPA_F32, 1, 1, n, 1);
    ffpa_tensor y = ffpa_tensor_4d(expected, FFPA_F32, 1, 1, n, 1);
    return compare_tensors(&x, &y, keep);
}

static void errors_are_measured(void **state)
{
    (void)state;
    float got[] = {1, 2, 3}, expected[] = {1, 2.5f, 3};
    difference d = compare(got, expected, 3, NULL);
    assert_int_equal(d.compared, 3);
    assert_int_equal(d.pattern, 0);
    assert_near(d.max_error, 0.5, 0);
    assert_near(d.max_expected, 3, 0);
    assert_near(d.relative_l2, 0.5 / sqrt(1 + 6.25 + 9), 1e-12);
}

static void non_finite_values_must_match(void **state)
{
    (void)state;
    const float values[] = {1, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            float got[] = {0, values[i]}, expected[] = {0, values[j]};
            difference d = compare(got, expected, 2, NULL);
            assert_int_equal(d.pattern, i == j ? 0 : 1);
            assert_near(d.max_error, 0, 0);
            if (i != j) assert_int_equal(d.first[2], 1);
        }
}

static void other_rows_do_not_count(void **state)
{
    (void)state;
    float got[] = {1, NAN, 3}, expected[] = {1, 2, 3};
    const unsigned char keep[] = {1, 0, 1};
    difference d = compare(got, expected, 3, keep);
    assert_int_equal(d.compared, 2);
    assert_int_equal(d.pattern, 0);
}

static void the_rule_accepts_and_refuses(void **state)
{
    (void)state;
    double bound;
    difference ours = {.max_error = 0.0205}, naive = {.max_error = 0.01};
    assert_false(difference_accept(&ours, &naive, false, &bound));
    assert_near(bound, 0.02001, 1e-12);
    assert_true(difference_accept(&ours, &naive, true, &bound));
    assert_near(bound, 0.03001, 1e-12);
    ours = (difference){.pattern = 1};
    assert_false(difference_accept(&ours, &naive, true, &bound));
    ours = (difference){.max_error = (double)NAN};
    assert_false(difference_accept(&ours, &naive, true, &bound));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_measured),
        cmocka_unit_test(non_finite_values_must_match),
        cmocka_unit_test(other_rows_do_not_count),
        cmocka_unit_test(the_rule_accepts_and_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
