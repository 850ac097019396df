/* scalar.c - single elements of every dtype as doubles. */
#include "scalar.h"

#include <math.h>
#include <string.h>

static const struct scalar_type {
    int32_t dtype;
    const char *name;
    size_t bytes;
} TYPES[] = {{FFPA_F32, "f32", 4}, {FFPA_F16, "f16", 2},   {FFPA_BF16, "bf16", 2},
             {FFPA_F64, "f64", 8}, {FFPA_BOOL, "bool", 1}, {FFPA_I32, "i32", 4},
             {FFPA_I64, "i64", 8}};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

size_t scalar_bytes(int32_t dtype)
{
    for (int i = 0; i < TYPE_COUNT; i++)
        if (TYPES[i].dtype == dtype) return TYPES[i].bytes;
    return 0;
}

const char *scalar_name(int32_t dtype)
{
    for (int i = 0; i < TYPE_COUNT; i++)
        if (TYPES[i].dtype == dtype) return TYPES[i].name;
    return "?";
}

int32_t scalar_float_named(const char *name)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(TYPES[i].name, name) == 0) return TYPES[i].dtype;
    return 0;
}

static double half_to_double(uint16_t h)
{
    int exponent = (h >> 10) & 31;
    double magnitude, fraction = h & 1023;
    if (exponent == 31)
        magnitude = fraction > 0 ? (double)NAN : (double)INFINITY;
    else
        magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

/* Straight from the double: going through f32 would round twice. */
static uint16_t half_from_double(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    if (isnan(value)) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 65520) return (uint16_t)(sign | 0x7c00);
    if (magnitude <
        ldexp(1, -14)) /* 1024 of these units is the smallest normal number's code */
        return (uint16_t)(sign | (uint16_t)nearbyint(ldexp(magnitude, 24)));
    int exponent;
    frexp(magnitude, &exponent); /* magnitude = f * 2^exponent, f in [0.5, 1) */
    double units = nearbyint(ldexp(magnitude, 11 - exponent)); /* 1024..2048 */
    return (uint16_t)(sign | (uint16_t)(((exponent + 13) << 10) + (int)units));
}

static double brain_to_double(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static uint16_t brain_from_double(double value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(value)) return (uint16_t)((bits >> 16) | 0x40);
    if (isfinite(f) &&
        (bits & 0xffff) == 0x8000) { /* on the fence as f32: let the double decide */
        if (fabs(value) > fabs((double)f))
            bits++;
        else if (fabs(value) < fabs((double)f))
            bits--;
    }
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static double read_16(const unsigned char *at, int32_t dtype)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return dtype == FFPA_F16 ? half_to_double(bits) : brain_to_double(bits);
}

double scalar_get(const void *data, int32_t dtype, int64_t index)
{
    const unsigned char *at =
        (const unsigned char *)data + index * (int64_t)scalar_bytes(dtype);
    float f;
    double d;
    int32_t i;
    int64_t l;
    switch (dtype) {
    case FFPA_F32: return memcpy(&f, at, sizeof f), (double)f;
    case FFPA_F16:
    case FFPA_BF16: return read_16(at, dtype);
    case FFPA_F64: return memcpy(&d, at, sizeof d), d;
    case FFPA_BOOL: return *at != 0;
    case FFPA_I32: return memcpy(&i, at, sizeof i), (double)i;
    case FFPA_I64: return memcpy(&l, at, sizeof l), (double)l;
    default: return 0;
    }
}

void scalar_set(void *data, int32_t dtype, int64_t index, double value)
{
    unsigned char *at = (unsigned char *)data + index * (int64_t)scalar_bytes(dtype);
    float f = (float)value;
    uint16_t bits;
    int32_t i;
    int64_t l;
    switch (dtype) {
    case FFPA_F32: memcpy(at, &f, sizeof f); break;
    case FFPA_F16: bits = half_from_double(value), memcpy(at, &bits, sizeof bits); break;
    case FFPA_BF16: bits = brain_from_double(value), memcpy(at, &bits, sizeof bits); break;
    case FFPA_F64: memcpy(at, &value, sizeof value); break;
    case FFPA_BOOL: *at = value != 0; break;
    case FFPA_I32: i = (int32_t)value, memcpy(at, &i, sizeof i); break;
    case FFPA_I64: l = (int64_t)value, memcpy(at, &l, sizeof l); break;
    default: break;
    }
}
