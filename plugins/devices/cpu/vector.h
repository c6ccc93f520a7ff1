/* vector.h - F32 lanes for the kernel sources: as wide as the instruction set that the source is
 * being compiled for, with loads and stores that convert, and the few functions kernels need.
 *
 * Arithmetic is that of GCC's vector types, compiled without contraction: a * b + c rounds twice,
 * and vf_fma() says where it shall not. So a tail of m < LANES elements, loaded with zeros behind
 * it, has the same bits as a full vector would give, wherever the element lies. */
#ifndef LH_CPU_VECTOR_H
#define LH_CPU_VECTOR_H

#include <stdint.h>
#include <string.h>

#include "cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* The build says which instruction set a source is compiled for. */
#ifndef CPU_SUFFIX
#define CPU_SUFFIX baseline
#endif
#define CPU_PASTE_(name, suffix) name##_##suffix
#define CPU_PASTE(name, suffix) CPU_PASTE_(name, suffix)
#define CPU_ISA(name) CPU_PASTE(name, CPU_SUFFIX)

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define CPU_INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

/* Defines name_f32 and name_bf16 from a part function name(k, part, dtype) that is CPU_INLINE. */
#define CPU_BOTH(name)                                             \
    static void name##_f32(const lh_prepared_t *k, uint32_t part)  \
    {                                                              \
        name(k, part, LH_DTYPE_F32);                               \
    }                                                              \
    static void name##_bf16(const lh_prepared_t *k, uint32_t part) \
    {                                                              \
        name(k, part, LH_DTYPE_BF16);                              \
    }
#define CPU_PICK(name, dtype) ((dtype) == LH_DTYPE_BF16 ? name##_bf16 : name##_f32)

/* ---- lanes ---- */

CPU_INLINE vf vf_set(float x)
{
    return x - (vf){0}; /* that is x, and costs nothing; 0 + x would turn -0 into 0 */
}
CPU_INLINE vf vf_zero(void)
{
    return (vf){0};
}
/* mask lanes are 0 or -1, as comparisons give them */
CPU_INLINE vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}
CPU_INLINE vf vf_max(vf a, vf b) /* b where either is not a number */
{
    return vf_select(a > b, a, b);
}
CPU_INLINE vf vf_min(vf a, vf b)
{
    return vf_select(a < b, a, b);
}
CPU_INLINE vf vf_abs(vf a)
{
    return (vf)((vi)a & 0x7fffffff);
}
CPU_INLINE vf vf_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
/* A square root of lanes, correctly rounded. */
CPU_INLINE vf vf_sqrt(vf a)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)a);
#elif defined(__x86_64__)
    return (vf)_mm_sqrt_ps((__m128)a);
#elif defined(__aarch64__)
    return (vf)vsqrtq_f32((float32x4_t)a);
#else
    for (int i = 0; i < LANES; i++)
        a[i] = __builtin_sqrtf(a[i]);
    return a;
#endif
}
/* Sum and maximum over the lanes, halves onto halves: a fixed order. */
CPU_INLINE float vf_sum(vf a)
{
    float lane[LANES];
    memcpy(lane, &a, sizeof(lane));
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    }
    return lane[0];
}
CPU_INLINE float vf_top(vf a)
{
    float lane[LANES];
    memcpy(lane, &a, sizeof(lane));
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    }
    return lane[0];
}
/* Lanes from m on become `fill`. */
CPU_INLINE vf vf_keep(vf a, uint64_t m, float fill)
{
    vi index;
    for (int i = 0; i < LANES; i++)
        index[i] = i;
    return vf_select(index < (vi){0} + (int32_t)m, a, vf_set(fill));
}

/* ---- loads and stores of the first m <= LANES elements at p; what lies behind reads as zero ----
 */

CPU_INLINE vf vf_load(const float *p)
{
    vf a;
    memcpy(&a, p, sizeof(a));
    return a;
}
CPU_INLINE void vf_store(float *p, vf a)
{
    memcpy(p, &a, sizeof(a));
}
CPU_INLINE vf vf_from_bf16(vh h)
{
    return (vf)(__builtin_convertvector(h, vu) << 16);
}
/* To the nearest, ties to even; what is no number stays one. */
CPU_INLINE vh vf_to_bf16(vf a)
{
    const vu u = (vu)a;
    const vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    const vu quiet = (u >> 16) | 0x40;
    const vu nan = (vu)(a != a);
    return __builtin_convertvector((rounded & ~nan) | (quiet & nan), vh);
}
CPU_INLINE vf vf_load_bf16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof(h));
    return vf_from_bf16(h);
}
CPU_INLINE void vf_store_bf16(uint16_t *p, vf a)
{
    const vh h = vf_to_bf16(a);
    memcpy(p, &h, sizeof(h));
}

CPU_INLINE float f16_get(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t u = sign | ((rest << 13) + (rest >= 0x7c00 ? 0x70000000 : 0x38000000));
    float x;
    if (rest < 0x0400) { /* zero or denormal: rest times 2^-24 */
        x = (float)rest * 0x1p-24f;
        return sign != 0 ? -x : x;
    }
    memcpy(&x, &u, sizeof(x));
    return x;
}
CPU_INLINE uint16_t f16_put(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    const uint16_t sign = (uint16_t)((u >> 16) & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((u >> 13) & 0x3ff));
    if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more */
    if (u < 0x38800000) { /* denormal: adding 0.5 leaves the mantissa, rounded, in the low bits */
        float small;
        memcpy(&small, &u, sizeof(small));
        small += 0.5f;
        memcpy(&u, &small, sizeof(u));
        return (uint16_t)(sign | (u - 0x3f000000));
    }
    return (uint16_t)(sign | ((u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13));
}
CPU_INLINE vf vf_from_f16(vh h)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf a;
    for (int i = 0; i < LANES; i++)
        a[i] = f16_get(h[i]);
    return a;
#endif
}
CPU_INLINE vh vf_to_f16(vf a)
{
#if defined(__AVX512F__)
    return (vh)_mm512_cvtps_ph((__m512)a, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (vh)_mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT);
#else
    vh h;
    for (int i = 0; i < LANES; i++)
        h[i] = f16_put(a[i]);
    return h;
#endif
}

/* The first m < LANES elements, zeros behind them; and back. */
CPU_INLINE vf vf_load_some(const float *p, uint64_t m)
{
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << m) - 1), p);
#else
    vf a = {0};
    memcpy(&a, p, m * sizeof(*p));
    return a;
#endif
}
CPU_INLINE void vf_store_some(float *p, vf a, uint64_t m)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << m) - 1), (__m512)a);
#else
    memcpy(p, &a, m * sizeof(*p));
#endif
}
CPU_INLINE vh vh_load_some(const uint16_t *p, uint64_t m)
{
#if defined(__AVX512F__)
    return (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << m) - 1), p);
#else
    vh h = {0};
    memcpy(&h, p, m * sizeof(*p));
    return h;
#endif
}
CPU_INLINE void vh_store_some(uint16_t *p, vh h, uint64_t m)
{
#if defined(__AVX512F__)
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << m) - 1), (__m256i)h);
#else
    memcpy(p, &h, m * sizeof(*p));
#endif
}

/* Element `at` of an F32, BF16 or F16 array and the m - 1 behind it. Where dtype is a constant, one
 * of the branches remains. A copy of a length that is not one would be a call. */
CPU_INLINE vf vf_get(const void *base, lh_dtype_t dtype, uint64_t at, uint64_t m)
{
    if (dtype != LH_DTYPE_F32) {
        const uint16_t *p = (const uint16_t *)base + at;
        vh h;
        if (m >= LANES)
            memcpy(&h, p, sizeof(h));
        else
            h = vh_load_some(p, m);
        return dtype == LH_DTYPE_BF16 ? vf_from_bf16(h) : vf_from_f16(h);
    }
    const float *p = (const float *)base + at;
    return m >= LANES ? vf_load(p) : vf_load_some(p, m);
}
CPU_INLINE void vf_put(void *base, lh_dtype_t dtype, uint64_t at, uint64_t m, vf a)
{
    if (dtype != LH_DTYPE_F32) {
        uint16_t *p = (uint16_t *)base + at;
        const vh h = dtype == LH_DTYPE_BF16 ? vf_to_bf16(a) : vf_to_f16(a);
        if (m >= LANES)
            memcpy(p, &h, sizeof(h));
        else
            vh_store_some(p, h, m);
        return;
    }
    float *p = (float *)base + at;
    if (m >= LANES)
        vf_store(p, a);
    else
        vf_store_some(p, a, m);
}
/* How many elements from `at` on a vector takes of n. */
CPU_INLINE uint64_t vf_span(uint64_t at, uint64_t n)
{
    return n - at < LANES ? n - at : LANES;
}

CPU_INLINE float bf16_get(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}
CPU_INLINE uint16_t bf16_put(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    if (x != x) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* ---- functions ---- */

/* exp(x) to 1 ulp; 0 below -103.97, infinite above 88.72, what is no number stays one. Results
 * below 2^-126 are denormal and right to their last bit but one. */
CPU_INLINE vf vf_exp(vf x)
{
    const vf low = vf_set(-104.0f), high = vf_set(88.8f);
    const vf bounded = vf_select(x > high, high, vf_select(x < low, low, x));
    const vf magic = vf_set(12582912.0f); /* 1.5 2^23: adding it rounds to a whole number */
    const vf whole = (vf_fma(bounded, vf_set(1.44269504088896341f), magic)) - magic;
    vf r = vf_fma(whole, vf_set(-0.693145751953125f), bounded);
    r = vf_fma(whole, vf_set(-1.42860682030941723e-6f), r);
    vf p = vf_set(1.9841270e-4f);
    p = vf_fma(p, r, vf_set(1.3888889e-3f));
    p = vf_fma(p, r, vf_set(8.3333333e-3f));
    p = vf_fma(p, r, vf_set(4.1666667e-2f));
    p = vf_fma(p, r, vf_set(1.6666667e-1f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r * r, r) + 1.0f;
    /* 2^whole in two factors, as neither 2^128 nor 2^-150 is a float. */
    const vi n = __builtin_convertvector(vf_select(x == x, whole, vf_zero()), vi);
    const vi half = n >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}
/* 1 / (1 + exp(-x)) */
CPU_INLINE vf vf_sigmoid(vf x)
{
    return 1.0f / (1.0f + vf_exp(-x));
}
/* tanh(x) to 7 ulp: an odd rational function, flat beyond where F32 is. */
CPU_INLINE vf vf_tanh(vf x)
{
    const vf most = vf_set(7.90531110763549805f);
    const vf c = vf_select(x > most, most, vf_select(x < -most, -most, x));
    const vf s = c * c;
    vf p = vf_set(-2.76076847742355e-16f);
    p = vf_fma(p, s, vf_set(2.00018790482477e-13f));
    p = vf_fma(p, s, vf_set(-8.60467152213735e-11f));
    p = vf_fma(p, s, vf_set(5.12229709037114e-08f));
    p = vf_fma(p, s, vf_set(1.48572235717979e-05f));
    p = vf_fma(p, s, vf_set(6.37261928875436e-04f));
    p = vf_fma(p, s, vf_set(4.89352455891786e-03f));
    vf q = vf_set(1.19825839466702e-06f);
    q = vf_fma(q, s, vf_set(1.18534705686654e-04f));
    q = vf_fma(q, s, vf_set(2.26843463243900e-03f));
    q = vf_fma(q, s, vf_set(4.89352518554385e-03f));
    return c * p / q;
}
/* erf(x) to 7 ulp, likewise. */
CPU_INLINE vf vf_erf(vf x)
{
    const vf most = vf_set(4.0f);
    const vf c = vf_select(x > most, most, vf_select(x < -most, -most, x));
    const vf s = c * c;
    vf p = vf_set(-2.72614225801306e-10f);
    p = vf_fma(p, s, vf_set(2.77068142495902e-08f));
    p = vf_fma(p, s, vf_set(-2.10102402082508e-06f));
    p = vf_fma(p, s, vf_set(-5.69250639462346e-05f));
    p = vf_fma(p, s, vf_set(-7.34990630326855e-04f));
    p = vf_fma(p, s, vf_set(-2.95459980854025e-03f));
    p = vf_fma(p, s, vf_set(-1.60960333262415e-02f));
    vf q = vf_set(-1.45660718464996e-05f);
    q = vf_fma(q, s, vf_set(-2.13374055278905e-04f));
    q = vf_fma(q, s, vf_set(-1.68282697438203e-03f));
    q = vf_fma(q, s, vf_set(-7.37332916720468e-03f));
    q = vf_fma(q, s, vf_set(-1.42647390514189e-02f));
    return c * p / q;
}

#endif
