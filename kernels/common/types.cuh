// types.cuh - integer names, dtypes and their conversions, the options of a variant.
#pragma once
#include "config.cuh"
#include "common/options.cuh"

#define FFPA_DEVICE static __device__ __forceinline__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// ffpa_dtype of the public header.
static constexpr int F32 = 1, F16 = 2, BF16 = 3, BOOL = 5;

static constexpr int DTYPE = FFPA_DTYPE;
static constexpr int ES = DTYPE == F32 ? 4 : 2; // bytes of an element of q, k, v
FFPA_DEVICE constexpr int dtype_size(int dtype) { return dtype == F32 ? 4 : dtype == BOOL ? 1 : 2; }

static constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
static constexpr u32 INF_BITS = 0x7f800000u;
#define FFPA_INF __uint_as_float(INF_BITS)

#include "common/ptx.cuh"

// The bits of an element, from the lowest on, as f32.
FFPA_DEVICE float element_of_bits(u32 bits, int dtype)
{
    if (dtype == F32) return __uint_as_float(bits);
    return dtype == F16 ? f32_of_f16((u16)bits) : __uint_as_float(bits << 16);
}

// Element i of an array as f32.
FFPA_DEVICE float element_get(const void *base, i64 i, int dtype)
{
    if (dtype == F32) return ((const float *)base)[i];
    return element_of_bits(((const u16 *)base)[i], dtype);
}

// The same where the compiler must not gather many of them: rare paths that run beside full accumulators.
FFPA_DEVICE float element_get_alone(const void *base, i64 i, int dtype)
{
    if (dtype == F32) return ((const volatile float *)base)[i];
    return element_of_bits(((const volatile u16 *)base)[i], dtype);
}

FFPA_DEVICE void element_put(void *base, i64 i, int dtype, float x)
{
    if (dtype == F32)
        ((float *)base)[i] = x;
    else
        ((u16 *)base)[i] = (u16)(dtype == F16 ? pack_f16(x, 0.0f) : pack_bf16(x, 0.0f));
}

// Two neighbours with one store, where the caller knows that they are dense and aligned.
FFPA_DEVICE void element_put2(void *base, i64 i, int dtype, float x, float y)
{
    if (dtype == F32)
        *(float2 *)((float *)base + i) = make_float2(x, y);
    else
        *(u32 *)((u16 *)base + i) = dtype == F16 ? pack_f16(x, y) : pack_bf16(x, y);
}
