/* tensor_element.h - rounding, load and store of single elements of test tensors. Written apart from the library's
 * own conversions, which it judges; inline, because tests go through hundreds of millions of elements. */
#ifndef FFPA_TESTS_TENSOR_ELEMENT_H
#define FFPA_TESTS_TENSOR_ELEMENT_H

#include "ffpa/ffpa.h"

#include <math.h>
#include <string.h>

/* Round to `bits` significant bits, exponents below `lowest` being subnormal, above `largest` infinite. */
static inline double round_to(double x, int bits, int lowest, double largest)
{
    uint64_t word;
    memcpy(&word, &x, 8);
    int e = (int)(word >> 52 & 0x7ff) - 1023;
    if (e == 1024 || x == 0.0) return x;
    if (e < lowest) e = lowest;
    /* Adding 1.5 * 2^(52 + e - (bits - 1)) leaves just the wanted bits, rounded to nearest even. */
    word = (uint64_t)(1023 + 52 + e - (bits - 1)) << 52 | (uint64_t)1 << 51;
    double shift;
    memcpy(&shift, &word, 8);
    const double y = (x + shift) - shift;
    return fabs(y) > largest ? copysign((double)INFINITY, x) : copysign(y, x);
}

/* The value rounded to the dtype, to nearest, ties to even. */
static inline double tensor_round(int32_t dtype, double value)
{
    switch (dtype) {
    case FFPA_F32: return (double)(float)value;
    case FFPA_F16: return round_to(value, 11, -14, 65504.0);
    case FFPA_BF16: return round_to(value, 8, -126, 0x1.fep127);
    default: return value;
    }
}

static inline uint16_t f16_bits(double value)
{
    const double y = tensor_round(FFPA_F16, value);
    const unsigned sign = signbit(y) ? 0x8000u : 0u;
    if (isnan(y)) return (uint16_t)(sign | 0x7e00u);
    if (isinf(y)) return (uint16_t)(sign | 0x7c00u);
    if (fabs(y) < 0x1p-14) return (uint16_t)(sign | (unsigned)(fabs(y) * 0x1p24));
    uint64_t word;
    memcpy(&word, &y, 8);
    const unsigned e = (unsigned)(word >> 52 & 0x7ff) - 1023 + 15;
    return (uint16_t)(sign | e << 10 | (unsigned)(word >> 42 & 1023));
}

static inline double f16_value(uint16_t bits)
{
    const double sign = bits & 0x8000u ? -1.0 : 1.0;
    const unsigned e = bits >> 10 & 31, fraction = bits & 1023;
    if (e == 31) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (e == 0) return sign * fraction * 0x1p-24;
    const uint64_t word = (uint64_t)(e - 15 + 1023) << 52 | (uint64_t)fraction << 42;
    double magnitude;
    memcpy(&magnitude, &word, 8);
    return sign * magnitude;
}

static inline double tensor_load(int32_t dtype, const unsigned char *at)
{
    uint16_t half;
    uint32_t word;
    float single;
    double real;
    switch (dtype) {
    case FFPA_F64: memcpy(&real, at, 8); return real;
    case FFPA_F32: memcpy(&single, at, 4); return (double)single;
    case FFPA_F16: memcpy(&half, at, 2); return f16_value(half);
    case FFPA_BF16:
        memcpy(&half, at, 2);
        word = (uint32_t)half << 16;
        memcpy(&single, &word, 4);
        return (double)single;
    default: return (double)*at;
    }
}

static inline void tensor_store(int32_t dtype, unsigned char *at, double value)
{
    uint16_t half;
    uint32_t word;
    float single = (float)value;
    switch (dtype) {
    case FFPA_F64: memcpy(at, &value, 8); break;
    case FFPA_F32: memcpy(at, &single, 4); break;
    case FFPA_F16:
        half = f16_bits(value);
        memcpy(at, &half, 2);
        break;
    case FFPA_BF16:
        single = (float)tensor_round(FFPA_BF16, value);
        memcpy(&word, &single, 4);
        half = (uint16_t)(word >> 16);
        memcpy(at, &half, 2);
        break;
    default: *at = (unsigned char)value; break;
    }
}

#endif
