/* vec.h - the one place that knows instruction sets: vector types and one wrapper per
 * instruction. Everything in this folder is compiled once per instruction set; ISA_NAME keeps
 * the names apart. */
#ifndef FFPA_CPU_SIMD_VEC_H
#define FFPA_CPU_SIMD_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#    include <immintrin.h>
#endif

#define ISA_JOIN_(name, isa) name##_##isa
#define ISA_JOIN(name, isa)  ISA_JOIN_(name, isa)
#define ISA_NAME(name)       ISA_JOIN(name, FFPA_ISA)
#define ISA_TEXT_(isa)       #isa
#define ISA_TEXT(isa)        ISA_TEXT_(isa)

/* VL lanes per vector, MR rows of a register tile: MR x 2 accumulators, 2 vectors of B and one
 * broadcast must fit in the register file. */
#if defined(__AVX512F__)
enum { VL = 16, MR = 12 };
#elif defined(__AVX2__)
enum { VL = 8, MR = 6 };
#else
enum { VL = 4, MR = 6 };
#endif
enum { NR = 2 * VL }; /* columns of a register tile, two vectors */

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef float vf_unaligned __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t vi_unaligned __attribute__((vector_size(4 * VL), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline, unused))

/* The loop that follows has a small constant count and must vanish: its array is in registers.
 */
#if defined(__clang__)
#    define UNROLL _Pragma("clang loop unroll(full)")
#else
#    define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE vf vload(const float *p) { return *(const vf_unaligned *)p; }
INLINE void vstore(float *p, vf v) { *(vf_unaligned *)p = v; }
INLINE vf vset(float x) { return x - (vf){0}; }
INLINE vf vzero(void) { return (vf){0}; }
INLINE vi viset(int32_t x) { return x - (vi){0}; }
INLINE vf vfma(vf a, vf b, vf c) { return a * b + c; } /* contracted: -ffp-contract=fast */
INLINE vf vbits(vi x) { return (vf)x; }
INLINE vi vint(vf x) { return (vi)x; }

/* Lane i of all-ones where mask is set picks a, else b. */
INLINE vf vselect(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* The first n lanes, 0 <= n <= VL; nothing past them is touched, other lanes load as 0. */
INLINE vf vload_first(const float *p, ptrdiff_t n)
{
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif defined(__AVX2__)
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return (vf)_mm256_maskload_ps(p, (__m256i)(lane < viset((int32_t)n)));
#else
    vf v = {0};
    for (ptrdiff_t i = 0; i < n; i++)
        v[i] = p[i];
    return v;
#endif
}

INLINE void vstore_first(float *p, vf v, ptrdiff_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#elif defined(__AVX2__)
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7};
    _mm256_maskstore_ps(p, (__m256i)(lane < viset((int32_t)n)), (__m256)v);
#else
    for (ptrdiff_t i = 0; i < n; i++)
        p[i] = v[i];
#endif
}

/* Greater of the two; b when a is NaN. */
INLINE vf vmax(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vselect(a > b, a, b);
#endif
}

INLINE vf vabs(vf a) { return vbits(vint(a) & viset(0x7fffffff)); }

/* Does any lane of the mask have its bits set? */
INLINE int vany(vi mask)
{
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    int32_t any = 0;
    for (int i = 0; i < VL; i++)
        any |= mask[i];
    return any != 0;
#endif
}

/* Nearest integer of lanes within +-2^22, as a float: adding 1.5 * 2^23 rounds to units. */
INLINE vf vround(vf x)
{
    const vf magic = vset(12582912.0f);
    return (x + magic) - magic;
}

/* Lane-wise e^x within 2 ulp; 0 below the normal numbers (-inf included), inf above, NaN stays.
 */
INLINE vf vexp(vf x)
{
    const vi below = x<vset(-87.336540f), above = x> vset(88.722839f);
    const vf n = vround(vselect(below | above, vzero(), x) * vset(1.44269504f));
    vf r = vfma(n, vset(-0.693359375f), x); /* ln 2 in two parts; n times the first is exact */
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vfma(p, r * r, r) + vset(1.0f);
    /* 2^n by its bits; n = 128 happens just below the overflow bound, so in two factors */
    const vi e = vint(n + vset(12582912.0f)) - viset(0x4b400000);
    const vi half = e >> 1;
    p = p * vbits((half + 127) << 23) * vbits((e - half + 127) << 23);
    p = vselect(below, vzero(), p);
    return vselect(above, vset(__builtin_inff()), p);
}

#endif
