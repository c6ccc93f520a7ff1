/* lanes.h - F32 lanes for the kernel sources: as wide as the instruction set that the source is
 * being compiled for, with loads and stores that convert.
 *
 * Arithmetic is that of GCC's vector types, compiled without contraction: a * b + c rounds twice,
 * and vf_fma() says where it shall not. So a tail of m < LANES elements, loaded with zeros behind
 * it, has the same bits as a full vector would give, wherever the element lies.
 *
 * vf, vi, vu: LANES floats, signed, unsigned words; vh: LANES half words. Compilers turn arithmetic
 * on them into instructions of the set at hand; intrinsics stand only where GCC and clang make more
 * of them than one instruction. All functions are inlined by force: a call would spill every
 * lane. */
#ifndef LH_CPU_LANES_H
#define LH_CPU_LANES_H

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

/* Floats of a vector: of 64, 32 or 16 bytes. Kernels are written for any. */
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
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return vf_select(a > b, a, b);
#endif
}
/* b where either is not a number, as vf_max. */
CPU_INLINE vf vf_min(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return vf_select(a < b, a, b);
#endif
}
/* Clears the sign. */
CPU_INLINE vf vf_abs(vf a)
{
    return (vf)((vi)a & 0x7fffffff);
}
/* a b + c, rounded once where the processor can. */
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
#if defined(__AVX512F__)
    const __m256 eight = _mm512_castps512_ps256((__m512)a) + _mm512_extractf32x8_ps((__m512)a, 1);
    const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    const __m128 two = four + _mm_movehl_ps(four, four);
    return two[0] + two[1];
#else
    float lane[LANES];
    memcpy(lane, &a, sizeof(lane));
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    }
    return lane[0];
#endif
}
/* The largest lane. */
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

/* A whole vector; no address needs to be aligned. */
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
/* Exact: a BF16 is the upper half of an F32. */
CPU_INLINE vf vf_from_bf16(vh h)
{
#if defined(__AVX512BW__)
    /* One permutation instead of widening and a shift, which wait for the same unit. */
    const __m512i upper = _mm512_set_epi32(0xf0000, 0xe0000, 0xd0000, 0xc0000, 0xb0000, 0xa0000,
                                           0x90000, 0x80000, 0x70000, 0x60000, 0x50000, 0x40000,
                                           0x30000, 0x20000, 0x10000, 0);
    return (vf)_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, upper,
                                              _mm512_castsi256_si512((__m256i)h));
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}
/* To the nearest, ties to even; what is no number stays one. */
CPU_INLINE vh vf_to_bf16_exact(vf a)
{
    const vu u = (vu)a;
    const vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    const vu quiet = (u >> 16) | 0x40;
    const vu nan = (vu)(a != a);
    return __builtin_convertvector((rounded & ~nan) | (quiet & nan), vh);
}
/* The same, but where the processor has an instruction for it, what lies below 2^-126 becomes 0. */
CPU_INLINE vh vf_to_bf16(vf a)
{
#if defined(__AVX512BF16__)
    return (vh)_mm512_cvtneps_pbh((__m512)a);
#else
    return vf_to_bf16_exact(a);
#endif
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

/* By the processor's instructions, which AVX2 processors have too (F16C); else lane by lane. */
CPU_INLINE vf vf_from_f16(vh h)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf a;
    for (int i = 0; i < LANES; i++)
        a[i] = lh_f16_to_f32(h[i]);
    return a;
#endif
}
/* To nearest even; above 65504 infinite. */
CPU_INLINE vh vf_to_f16(vf a)
{
#if defined(__AVX512F__)
    return (vh)_mm512_cvtps_ph((__m512)a, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (vh)_mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT);
#else
    vh h;
    for (int i = 0; i < LANES; i++)
        h[i] = lh_f32_to_f16(a[i]) |
               (a[i] != a[i] ? 0x200 : 0); /* quiet, as instructions make it */
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
/* The same of half words. */
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
/* Stores what vf_get would load, rounded to nearest even. */
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
/* As vf_put, but a BF16 below 2^-126 is kept: for what is stored rather than worked with. */
CPU_INLINE void vf_put_exact(void *base, lh_dtype_t dtype, uint64_t at, uint64_t m, vf a)
{
    if (dtype == LH_DTYPE_BF16) {
        uint16_t *p = (uint16_t *)base + at;
        const vh h = vf_to_bf16_exact(a);
        if (m >= LANES)
            memcpy(p, &h, sizeof(h));
        else
            vh_store_some(p, h, m);
        return;
    }
    vf_put(base, dtype, at, m, a);
}
/* How many elements from `at` on a vector takes of n. */
CPU_INLINE uint64_t vf_span(uint64_t at, uint64_t n)
{
    return n - at < LANES ? n - at : LANES;
}
/* Runs the statements for the vectors of [begin, end): from element i on, m of them. There are two
 * copies of the statements, so that m is a constant in all but the last vector. */
#define VF_EACH(i, m, begin, end, ...)             \
    do {                                           \
        const uint64_t i##_end = (end);            \
        uint64_t i = (begin);                      \
        for (; i##_end - i >= LANES; i += LANES) { \
            const uint64_t m = LANES;              \
            __VA_ARGS__                            \
        }                                          \
        if (i < i##_end) {                         \
            const uint64_t m = i##_end - i;        \
            __VA_ARGS__                            \
        }                                          \
    } while (0)

#endif
