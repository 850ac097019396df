/* test_ref_merge.c - merging partial results: closed forms, empty parts, in place, any stride. */
#include "support/unit.h"

#include "cpu/element.h"
#include "cpu/merge.h"

static const double NONE = -(double)INFINITY;

typedef struct part {
    double o, lse;
} part;

/* One element each, in double. */
static part merged(part a, part b)
{
    part out = {(double)NAN, (double)NAN};
    ffpa_merge_params p = ffpa_merge_params_init();
    p.o_a = ffpa_tensor_4d(&a.o, FFPA_F64, 1, 1, 1, 1);
    p.o_b = ffpa_tensor_4d(&b.o, FFPA_F64, 1, 1, 1, 1);
    p.lse_a = ffpa_tensor_4d(&a.lse, FFPA_F64, 1, 1, 1, 1);
    p.lse_b = ffpa_tensor_4d(&b.lse, FFPA_F64, 1, 1, 1, 1);
    p.o = ffpa_tensor_4d(&out.o, FFPA_F64, 1, 1, 1, 1);
    p.lse = ffpa_tensor_4d(&out.lse, FFPA_F64, 1, 1, 1, 1);
    assert_ok(cpu_merge(&p));
    return out;
}

/* B41, and an empty part whose O is not even a number. */
static void empty_parts_have_no_influence(void **state)
{
    (void)state;
    const part empty = {0, NONE}, five = {5, 1}, rubbish = {(double)NAN, NONE};
    const part parts[] = {empty, rubbish};
    for (size_t n = 0; n < COUNT(parts); n++) {
        part m = merged(parts[n], five);
        assert_true(m.o == 5 && m.lse == 1);
        m = merged(five, parts[n]);
        assert_true(m.o == 5 && m.lse == 1);
        m = merged(parts[n], parts[n]);
        assert_true(m.o == 0 && m.lse == NONE);
    }
}

/* B45 */
static void weights_are_natural_and_do_not_overflow(void **state)
{
    (void)state;
    part m = merged((part){1, 0}, (part){5, log(3)});
    assert_true(fabs(m.o - 4) < 1e-14 && fabs(m.lse - log(4)) < 1e-14);
    m = merged((part){1, 16384}, (part){5, 16385});
    assert_true(fabs(m.o - 3.924234) < 1e-6 && fabs(m.lse - 16385.3133) < 1e-4);
    m = merged((part){5, 16385}, (part){1, 16384});
    assert_true(fabs(m.o - 3.924234) < 1e-6 && fabs(m.lse - 16385.3133) < 1e-4);
}

static void nan_stays_nan(void **state)
{
    (void)state;
    const part five = {5, 1};
    assert_true(isnan(merged((part){1, (double)NAN}, five).lse));
    assert_true(isnan(merged(five, (part){1, (double)NAN}).o));
    assert_true(isnan(merged((part){(double)NAN, 0}, five).o));
    assert_true(isnan(merged((part){1, (double)INFINITY}, (part){1, (double)INFINITY}).lse));
}

/* Two rows of two bf16 columns, columns reversed in o_b, result in o_a itself. */
static void in_place_with_strides_and_rounding(void **state)
{
    (void)state;
    uint16_t a[4], b[4];
    const double from_a[4] = {1, 2, 3, 4}, from_b[4] = {10, 20, 30, 40};
    float lse_a[2] = {0, 0}, lse_b[2] = {0, -INFINITY};
    for (int n = 0; n < 4; n++) {
        element_store(&a[n], FFPA_BF16, from_a[n]);
        element_store(&b[n], FFPA_BF16, from_b[n]);
    }
    ffpa_merge_params p = ffpa_merge_params_init();
    p.o_a = p.o = ffpa_tensor_4d(a, FFPA_BF16, 1, 1, 2, 2);
    p.o_b = ffpa_tensor_4d(b + 1, FFPA_BF16, 1, 1, 2, 2);
    p.o_b.stride[3] = -1;
    p.lse_a = p.lse = ffpa_tensor_4d(lse_a, FFPA_F32, 1, 1, 2, 1);
    p.lse_b = ffpa_tensor_4d(lse_b, FFPA_F32, 1, 1, 2, 1);
    assert_ok(cpu_merge(&p));
    assert_true(element_load(&a[0], FFPA_BF16) == 10.5);
    assert_true(element_load(&a[1], FFPA_BF16) == 6);
    assert_true(element_load(&a[2], FFPA_BF16) == 3);
    assert_true(element_load(&a[3], FFPA_BF16) == 4);
    assert_true(lse_a[0] == (float)log(2));
    assert_true(lse_a[1] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_parts_have_no_influence),
        cmocka_unit_test(weights_are_natural_and_do_not_overflow),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(in_place_with_strides_and_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
