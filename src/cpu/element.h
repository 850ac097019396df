/* element.h - single elements of every floating dtype: read as double, written from double with
 * one rounding to nearest even. Exact for subnormals, infinities and NaN. */
#ifndef FFPA_CPU_ELEMENT_H
#define FFPA_CPU_ELEMENT_H

#include "ffpa/ffpa.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { F16_MANTISSA = 10, F16_BIAS = 15, BF16_MANTISSA = 7, BF16_BIAS = 127 };

/* A 16-bit format with `mantissa` stored bits to double: always exact. */
static inline double widen_16(uint16_t bits, int mantissa, int bias)
{
    const int fraction = bits & ((1 << mantissa) - 1);
    const int exponent = (bits & 0x7FFF) >> mantissa;
    uint64_t field = (uint64_t)(exponent - bias + 1023);
    if (exponent == 2 * bias + 1) field = 0x7FF; /* infinity or NaN */
    if (exponent == 0) {                         /* zero or subnormal */
        const double magnitude = ldexp(fraction, 1 - bias - mantissa);
        return bits & 0x8000 ? -magnitude : magnitude;
    }
    const uint64_t wide =
        (uint64_t)(bits >> 15) << 63 | field << 52 | (uint64_t)fraction << (52 - mantissa);
    double value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Double to a 16-bit format. Rounding happens once, on the double's own significand: going
 * through float would round twice. */
static inline uint16_t narrow_16(double value, int mantissa, int bias)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (uint32_t)(bits >> 63) << 15;
    const uint32_t infinity = (uint32_t)(2 * bias + 1) << mantissa;
    const uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    const int exponent = (int)(bits >> 52 & 0x7FF) - 1023;
    if (exponent == 1024)
        return (uint16_t)(sign | infinity | (fraction ? 1u << (mantissa - 1) : 0));

    const uint64_t significand = fraction | UINT64_C(1) << 52;
    const bool normal = exponent >= 1 - bias;
    const int shift = 52 - mantissa + (normal ? 0 : 1 - bias - exponent);
    if (shift > 53) return (uint16_t)sign; /* below half of the smallest subnormal */
    const uint64_t kept = significand >> shift,
                   rest = significand & ((UINT64_C(1) << shift) - 1);
    const uint64_t half = UINT64_C(1) << (shift - 1);
    const uint32_t rounded = (uint32_t)kept + (rest > half || (rest == half && (kept & 1)));
    /* The hidden bit of a normal number adds one to the exponent field, and so does a carry. */
    const uint32_t field = normal ? (uint32_t)(exponent + bias - 1) << mantissa : 0;
    const uint32_t magnitude = field + rounded;
    return (uint16_t)(sign | (magnitude < infinity ? magnitude : infinity));
}

static inline double element_load(const void *address, int32_t dtype)
{
    switch (dtype) {
    case FFPA_F64: return *(const double *)address;
    case FFPA_F32: return (double)*(const float *)address;
    case FFPA_F16: return widen_16(*(const uint16_t *)address, F16_MANTISSA, F16_BIAS);
    case FFPA_BF16: return widen_16(*(const uint16_t *)address, BF16_MANTISSA, BF16_BIAS);
    default: return (double)NAN; /* no other dtype passes the checks */
    }
}

static inline void element_store(void *address, int32_t dtype, double value)
{
    switch (dtype) {
    case FFPA_F64: *(double *)address = value; break;
    case FFPA_F32: *(float *)address = (float)value; break;
    case FFPA_F16: *(uint16_t *)address = narrow_16(value, F16_MANTISSA, F16_BIAS); break;
    case FFPA_BF16: *(uint16_t *)address = narrow_16(value, BF16_MANTISSA, BF16_BIAS); break;
    default: break;
    }
}

/* `value` as it would be after a store and a load. */
static inline double element_round(double value, int32_t dtype)
{
    switch (dtype) {
    case FFPA_F32: return (double)(float)value;
    case FFPA_F16:
        return widen_16(narrow_16(value, F16_MANTISSA, F16_BIAS), F16_MANTISSA, F16_BIAS);
    case FFPA_BF16:
        return widen_16(narrow_16(value, BF16_MANTISSA, BF16_BIAS), BF16_MANTISSA, BF16_BIAS);
    default: return value;
    }
}

static inline int64_t element_bytes(int32_t dtype)
{
    return dtype == FFPA_F64 ? 8 : dtype == FFPA_F32 ? 4 : 2;
}

#endif
