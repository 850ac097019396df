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
#if defined(__AVX512F__) || defined(FFPA_MATRIX_MODEL) /* tests: see matrix.h */
#    define VEC_LANES 16
enum { VL = VEC_LANES, MR = 12 };
#elif defined(__AVX2__)
#    define VEC_LANES 8
enum { VL = VEC_LANES, MR = 6 };
#else
#    define VEC_LANES 4
enum { VL = VEC_LANES, MR = 6 };
#endif
enum { NR = 2 * VL }; /* columns of a register tile, two vectors */

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));
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
INLINE vu vuset(uint32_t x) { return x - (vu){0}; }
INLINE vf vfma(vf a, vf b, vf c) { return a * b + c; } /* contracted: -ffp-contract=fast */
/* a * b, rounded before anything is added to it. */
INLINE vf vmul_alone(vf a, vf b)
{
    vf x = a * b;
#if defined(__x86_64__) && !defined(FFPA_MATRIX_MODEL) /* a register holds VL lanes */
    __asm__("" : "+x"(x));
#else
    __asm__("" : "+m"(x));
#endif
    return x;
}
INLINE vf vbits(vi x) { return (vf)x; }
INLINE vi vint(vf x) { return (vi)x; }

/* Half as many lanes of f64. */
typedef double vd __attribute__((vector_size(4 * VL)));
INLINE vd vdset(double x) { return x - (vd){0}; }
INLINE void vdstore(double *p, vd v) { memcpy(p, &v, sizeof v); }
INLINE vd vwiden(const float *p)
{
    typedef float vf_half __attribute__((vector_size(2 * VL)));
    vf_half x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vd);
}

/* Lane i of all-ones where mask is set picks a, else b. */
INLINE vf vselect(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* Lanes of a and b in turn: of their first halves, of their second halves. */
#if VEC_LANES == 16
#    define vmix_low(a, b) \
        __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#    define vmix_high(a, b)                                                                 \
        __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, \
                                15, 31)
#elif VEC_LANES == 8
#    define vmix_low(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#    define vmix_high(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#    define vmix_low(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#    define vmix_high(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Lane j of x[i] changes places with lane i of x[j]: perfect shuffles, one per bit of the index. */
INLINE void vtranspose(vf x[VL])
{
    UNROLL for (int bit = 1; bit < VL; bit *= 2)
    {
        vf y[VL];
        UNROLL for (int i = 0; i < VL / 2; i++)
        {
            y[2 * i] = vmix_low(x[i], x[i + VL / 2]);
            y[2 * i + 1] = vmix_high(x[i], x[i + VL / 2]);
        }
        UNROLL for (int i = 0; i < VL; i++) x[i] = y[i];
    }
}

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

INLINE float vsum(vf a)
{
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)a);
#elif defined(__AVX2__)
    __m128 x =
        _mm_add_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#else
    for (int n = VL / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a[i] += a[i + n];
    return a[0];
#endif
}

/* The sums of four vectors. */
typedef float vf4 __attribute__((vector_size(16), aligned(4), may_alias));
INLINE vf4 vsum4(vf a, vf b, vf c, vf d)
{
#if defined(__AVX512F__)
#    define FOLD(x)                                        \
        _mm256_add_ps(_mm512_castps512_ps256((__m512)(x)), \
                      _mm512_extractf32x8_ps((__m512)(x), 1))
#elif defined(__AVX2__)
#    define FOLD(x) ((__m256)(x))
#endif
#if defined(FOLD)
    const __m256 ab = _mm256_hadd_ps(FOLD(a), FOLD(b)), cd = _mm256_hadd_ps(FOLD(c), FOLD(d));
    const __m256 sums = _mm256_hadd_ps(ab, cd); /* of the halves */
    return (vf4)_mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
#    undef FOLD
#else
    return (vf4){vsum(a), vsum(b), vsum(c), vsum(d)};
#endif
}

/* Bring the cache line of p into L1. */
INLINE void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }

/* x in a register: keeps the compiler from loading it once per use. */
INLINE vf vkeep(vf x)
{
#if defined(__AVX2__)
    __asm__("" : "+x"(x));
#endif
    return x;
}

/* Low halves of a * b, and the high halves. */
INLINE vu vmul_wide(vu a, uint32_t b, vu *high)
{
#if defined(__AVX512F__)
    const __m512i x = (__m512i)a, y = _mm512_set1_epi32((int32_t)b);
    const __m512i even = _mm512_mul_epu32(x, y),
                  odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), y);
    *high = (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#elif defined(__AVX2__)
    const __m256i x = (__m256i)a, y = _mm256_set1_epi32((int32_t)b);
    const __m256i even = _mm256_mul_epu32(x, y),
                  odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), y);
    *high = (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#else
    for (int i = 0; i < VL; i++)
        (*high)[i] = (uint32_t)((uint64_t)a[i] * b >> 32);
#endif
    return a * vuset(b);
}

/* e^x of lanes that `normal` finds normal; of others arbitrary, but NaN of NaN. Adding 1.5 * 2^23 rounds to
 * units; 126 more make the sum's low bits the exponent field of 2^(n - 1), n being that integer. Half of e^x,
 * twice: 2^n itself is out of range just below the overflow bound. */
INLINE vf vexp_normal(vf x)
{
    const vf magic = vset(12582912.0f + 126.0f);
    const vf shifted = vfma(x, vset(1.44269504f), magic), n = shifted - magic;
    vf r = vfma(n, vset(-0.693359375f), x); /* ln 2 in two parts; n times the first is exact */
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vfma(p, r * r, r) + vset(1.0f);
    p = p * vbits(vint(shifted) << 23);
    return p + p;
}

/* Lane-wise e^x within 2 ulp of x at most 88, as weights have it; 0 below the normal numbers (-inf
 * included), NaN stays. */
INLINE vf vexp_weight(vf x) { return vselect(x < vset(-86.98f), vzero(), vexp_normal(x)); }

/* The same of any x: inf above the numbers that are finite. */
INLINE vf vexp(vf x)
{
    return vselect(x > vset(88.722839f), vset(__builtin_inff()), vexp_weight(x));
}

/* Lane-wise tanh: an odd polynomial near 0, where the quotient would cancel. */
INLINE vf vtanh(vf x)
{
    const vf a = vabs(x), x2 = x * x;
    vf p = vset(-5.70498872745e-3f);
    p = vfma(p, x2, vset(2.06390887954e-2f));
    p = vfma(p, x2, vset(-5.37397155531e-2f));
    p = vfma(p, x2, vset(1.33314422036e-1f));
    p = vfma(p, x2, vset(-3.33332819422e-1f));
    const vf near = vfma(p * x2, x, x);
    const vf e = vexp(a + a);
    const vf far = vset(1.0f) - vset(2.0f) / (e + vset(1.0f));
    const vf sign = vbits(vint(x) & viset(INT32_MIN));
    return vselect(a < vset(0.625f), near, vbits(vint(far) | vint(sign)));
}

/* ---- 16-bit floats ---- */

INLINE vf vload_bf16(const uint16_t *p)
{
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)),
                                 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16);
#else
    vi v = {0};
    for (int i = 0; i < VL; i++)
        v[i] = (int32_t)((uint32_t)p[i] << 16);
    return vbits(v);
#endif
}

INLINE vf vload_f16(const uint16_t *p)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
#else
    vi h = {0};
    for (int i = 0; i < VL; i++)
        h[i] = p[i];
    /* exponent and mantissa in f32's place, then 2^112 corrects the bias, subnormals included */
    const vi sign = (h & viset(0x8000)) << 16, body = (h & viset(0x7fff)) << 13;
    const vi special = (h & viset(0x7c00)) == viset(0x7c00);
    const vi value = vint(vbits(body) * vset(0x1p112f));
    return vbits(sign | vint(vselect(special, vbits(body | viset(0x7f800000)), vbits(value))));
#endif
}

/* Can bf16 be multiplied as it is? FFPA_EMULATE_PAIRS lets tests run that code anywhere. */
#if defined(__AVX512BF16__) || defined(FFPA_EMULATE_PAIRS) || defined(FFPA_MATRIX_MODEL)
enum { HAS_PAIRS = 1 };
#else
enum { HAS_PAIRS = 0 };
#endif

/* acc + low(a) low(b) + high(a) high(b), the halves of each lane being bf16. */
INLINE vf vdot_bf16(vf acc, vf a, vf b)
{
#if defined(__AVX512BF16__)
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
    const vi high = viset(-65536);
    const vf low = vbits(vint(a) << 16) * vbits(vint(b) << 16);
    return vfma(vbits(vint(a) & high), vbits(vint(b) & high), acc) + low;
#endif
}

/* The upper halves of f32 lanes rounded to bf16, nearest even; the lower halves are arbitrary. */
INLINE vu vround_bf16(vf x)
{
    const vu u = (vu)x, rounded = u + vuset(0x7fff) + (u >> 16 & vuset(1));
    return (vu)vselect(x == x, (vf)rounded,
                       (vf)vuset(0x7fc00000)); /* NaN must not carry over */
}

/* Two vectors as words of two bf16: `low` in the low halves. The instruction takes subnormals for 0, as those that
 * multiply such words do. */
INLINE vf vpack_bf16(vf low, vf high)
{
#if defined(__AVX512BF16__)
    const __m512i even_odd =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (vf)_mm512_permutexvar_epi16(even_odd, halves);
#else
    return (vf)(vround_bf16(low) >> 16 | (vround_bf16(high) & vuset(0xffff0000)));
#endif
}

/* VL lanes as bf16, rounded to nearest even. */
INLINE void vstore_bf16(uint16_t *p, vf x)
{
    typedef uint16_t vh __attribute__((vector_size(2 * VL)));
    const vh h = __builtin_convertvector(vround_bf16(x) >> 16, vh);
    memcpy(p, &h, sizeof h);
}

/* Round to nearest even, quietly for NaN. */
INLINE uint16_t bf16_from(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

INLINE uint16_t f16_from(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint32_t sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x1ffu));
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 rounds up to infinity */
    if (u < 0x38800000u) { /* subnormal: adding 1/2 rounds to units of 2^-24 */
        float f;
        memcpy(&f, &u, sizeof f);
        f += 0.5f;
        memcpy(&u, &f, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    u += 0xfffu + (u >> 13 & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

/* VL lanes as f16, rounded to nearest even. */
INLINE void vstore_f16(uint16_t *p, vf x)
{
#if defined(__AVX512F__)
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < VL; i++)
        p[i] = f16_from(x[i]);
#endif
}

INLINE float bf16_to(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

INLINE float f16_to(uint16_t h)
{
    const uint32_t body = (uint32_t)(h & 0x7fffu) << 13;
    float x;
    memcpy(&x, &body, sizeof x);
    x *= 0x1p112f;
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((h & 0x7c00u) == 0x7c00u) u = body | 0x7f800000u;
    u |= (uint32_t)(h & 0x8000u) << 16;
    memcpy(&x, &u, sizeof x);
    return x;
}

#endif
