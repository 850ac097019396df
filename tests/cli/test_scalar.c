/* test_scalar.c - every 16-bit float survives the trip through double, and rounding is to nearest
 * even, checked against the neighbours rather than against another implementation. */

#include "support/unit.h"

#include "scalar.h"

#include <math.h>

#define assert_near(got, wanted, tolerance) assert_true(fabs((got) - (wanted)) <= (tolerance))

static double value_of(uint16_t bits, int32_t dtype) { return scalar_get(&bits, dtype, 0); }

static uint16_t bits_of(double value, int32_t dtype)
{
    uint16_t bits;
    scalar_set(&bits, dtype, 0, value);
    return bits;
}

static const int32_t DTYPES[] = {FFPA_F16, FFPA_BF16};

static void codes_round_trip(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (uint32_t code = 0; code < 0x10000; code++) {
            double value = value_of((uint16_t)code, DTYPES[t]);
            if (isnan(value))
                assert_true(isnan(value_of(bits_of(value, DTYPES[t]), DTYPES[t])));
            else
                assert_int_equal(bits_of(value, DTYPES[t]), code);
        }
}

static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (uint16_t code = 0; isfinite(value_of((uint16_t)(code + 1), DTYPES[t])); code++) {
            double low = value_of(code, DTYPES[t]),
                   high = value_of((uint16_t)(code + 1), DTYPES[t]);
            double middle = (low + high) / 2, step = (high - low) * 1e-9;
            uint16_t even = (uint16_t)(code + (code & 1));
            assert_int_equal(bits_of(middle, DTYPES[t]), even);
            assert_int_equal(bits_of(middle - step, DTYPES[t]), code);
            assert_int_equal(bits_of(middle + step, DTYPES[t]), code + 1);
            assert_int_equal(bits_of(-middle, DTYPES[t]), even | 0x8000);
        }
}

static void large_values_become_infinite(void **state)
{
    (void)state;
    assert_int_equal(bits_of(65519.99, FFPA_F16), 0x7bff);
    assert_int_equal(bits_of(65520, FFPA_F16), 0x7c00);
    assert_int_equal(bits_of(-1e30, FFPA_F16), 0xfc00);
    assert_int_equal(bits_of(3.4e38, FFPA_BF16), 0x7f80);
}

static void known_codes(void **state)
{
    (void)state;
    assert_near(value_of(0x3c00, FFPA_F16), 1, 0);
    assert_near(value_of(0x0001, FFPA_F16), ldexp(1, -24), 0);
    assert_near(value_of(0xc000, FFPA_F16), -2, 0);
    assert_near(value_of(0x3f80, FFPA_BF16), 1, 0);
    assert_near(value_of(0x4049, FFPA_BF16), 3.140625, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_round_trip),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(large_values_become_infinite),
        cmocka_unit_test(known_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
