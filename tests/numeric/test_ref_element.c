/* test_ref_element.c - 16-bit conversions: every pattern there and back, every rounding boundary. */
#include "support/unit.h"

#include "cpu/element.h"

typedef struct format {
    int32_t dtype;
    int mantissa, bias;
} format;

static const format formats[] = {{FFPA_F16, 10, 15}, {FFPA_BF16, 7, 127}};

/* As large as the largest element, so that no branch on the dtype can look out of bounds. */
typedef union room {
    uint16_t bits;
    double widest;
} room;

static double load(const format *f, uint16_t bits)
{
    const room at = {.bits = bits};
    return element_load(&at, f->dtype);
}

static uint16_t store(const format *f, double value)
{
    room at = {.bits = 0xDEAD};
    element_store(&at, f->dtype, value);
    return at.bits;
}

/* The value by its definition, (-1)^s 2^(e - bias) 1.f, in arithmetic rather than bits. */
static double defined_value(const format *f, uint16_t bits)
{
    const int exponent = (bits & 0x7FFF) >> f->mantissa,
              fraction = bits & ((1 << f->mantissa) - 1);
    const double unit = pow(2, -f->mantissa), sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 0) return sign * pow(2, 1 - f->bias) * fraction * unit;
    return sign * pow(2, exponent - f->bias) * (1 + fraction * unit);
}

static void every_finite_pattern_goes_there_and_back(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT(formats); n++) {
        const format *f = &formats[n];
        const int infinity = (2 * f->bias + 1) << f->mantissa;
        for (int magnitude = 0; magnitude < infinity; magnitude++)
            for (int sign = 0; sign <= 0x8000; sign += 0x8000) {
                const uint16_t bits = (uint16_t)(sign | magnitude);
                assert_true(load(f, bits) == defined_value(f, bits));
                assert_int_equal(store(f, load(f, bits)), bits);
            }
    }
}

/* Halfway goes to even; a hair to either side goes to the near side. Past the largest value the same
 * rule, with infinity in the place of the next one. */
static void rounds_to_nearest_even(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT(formats); n++) {
        const format *f = &formats[n];
        const int infinity = (2 * f->bias + 1) << f->mantissa;
        for (int magnitude = 0; magnitude < infinity; magnitude++) {
            const uint16_t low = (uint16_t)magnitude, high = (uint16_t)(magnitude + 1);
            const double from = defined_value(f, low),
                         half = (from + defined_value(f, high)) / 2;
            const uint16_t even = low & 1 ? high : low;
            assert_int_equal(store(f, half), even);
            assert_int_equal(store(f, nextafter(half, 0)), low);
            assert_int_equal(store(f, nextafter(half, 1e300)), high);
            assert_int_equal(store(f, -half), even | 0x8000);
            assert_int_equal(store(f, -nextafter(half, 1e300)), high | 0x8000);
        }
    }
}

static void infinities_and_nan(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT(formats); n++) {
        const format *f = &formats[n];
        const uint16_t infinity = (uint16_t)((2 * f->bias + 1) << f->mantissa);
        assert_int_equal(store(f, (double)INFINITY), infinity);
        assert_int_equal(store(f, -(double)INFINITY), infinity | 0x8000);
        assert_int_equal(store(f, 1e300), infinity);
        assert_int_equal(store(f, -1e300), infinity | 0x8000);
        assert_int_equal(store(f, 1e-300), 0);
        assert_int_equal(store(f, -5e-324), 0x8000);
        assert_true(isnan(load(f, store(f, (double)NAN))));
        assert_true(load(f, infinity) == (double)INFINITY);
        for (int fraction = 1; fraction < 1 << f->mantissa; fraction++)
            assert_true(isnan(load(f, (uint16_t)(infinity + fraction))));
    }
}

static void a_double_is_rounded_once(void **state)
{
    (void)state;
    /* Just above halfway between 1 and 1 + 2^-10; as a float it would be the halfway point. */
    const double above = 1 + pow(2, -11) + pow(2, -40);
    assert_int_equal(store(&formats[0], above), 0x3C01);
    assert_int_equal(store(&formats[0], (double)(float)above), 0x3C00);
    assert_true(element_round(above, FFPA_F16) == 1 + pow(2, -10));
    assert_true(element_round(above, FFPA_BF16) == 1);
    assert_true(element_round(above, FFPA_F32) == (double)(float)above);
    assert_true(element_round(above, FFPA_F64) == above);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_finite_pattern_goes_there_and_back),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(infinities_and_nan),
        cmocka_unit_test(a_double_is_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
