/* quantize.c - blocks of INT8, packed and unpacked.
 *
 * Plain loops that the compiler makes vectors of, compiled twice. Each operation is rounded by itself
 * (the build keeps the compiler from fusing them), so both give the same bits. */
#include <comm/quantize.h>

#include <string.h>

#include <longhaul/dtype.h>

/* LEAST: below it 127 over the largest magnitude comes near what F32 can hold; a block of less is sent
 * as zeros and stays in the errors. MOST: above it scale * 127 might not be finite. ROUND: adding and
 * subtracting 1.5 * 2^23 rounds to the nearest whole number, ties to even, as F32 has no fractions
 * there. */
static const float least = 1e-30f, most_finite = 1.5e38f, to_whole = 12582912.0f;
enum { HIGHEST = 127 };

#define INLINE static inline __attribute__((always_inline))

uint64_t quantize_bytes(uint64_t elements)
{
    return (elements + QUANTIZE_BLOCK - 1) / QUANTIZE_BLOCK * sizeof(float) + elements;
}

uint64_t quantize_offset(uint64_t at)
{
    lh_assert(at % QUANTIZE_BLOCK == 0);
    return quantize_bytes(at);
}

/* The largest magnitude as bits: those of positive floats grow with them, infinity's are larger than
 * all, and a NaN's larger still. */
INLINE uint32_t pack_sums(const float *values, const float *errors, uint32_t count, float *sums)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < count; i++) {
        sums[i] = values[i] + errors[i];
        const uint32_t bits = lh_f32_bits(sums[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

INLINE void pack(const float *values, float *errors, uint32_t count, char *block)
{
    float sums[QUANTIZE_BLOCK];
    signed char *bytes = (signed char *)block + sizeof(float);
    const float largest = lh_bits_f32(pack_sums(values, errors, count, sums));
    if (!(largest <= most_finite)) {
        const float nan = lh_bits_f32(0x7fc00000u);
        memcpy(block, &nan, sizeof(nan));
        memset(bytes, 0, count);
        return;
    }
    const float scale = largest < least ? 0 : largest / HIGHEST;
    const float inverse = largest < least ? 0 : HIGHEST / largest;
    memcpy(block, &scale, sizeof(scale));
    for (uint32_t i = 0; i < count; i++) {
        const float whole = (sums[i] * inverse + to_whole) - to_whole;
        bytes[i] = (signed char)(int32_t)whole;
        errors[i] = sums[i] - whole * scale;
    }
}

INLINE void unpack(const char *block, uint32_t count, float *values)
{
    float scale;
    const signed char *bytes = (const signed char *)block + sizeof(float);
    memcpy(&scale, block, sizeof(scale));
    for (uint32_t i = 0; i < count; i++)
        values[i] = scale * (float)bytes[i];
}

static uint32_t highest = 1;

void quantize_level(uint32_t level)
{
    highest = level;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void pack_avx2(const float *values, float *errors,
                                                      uint32_t count, char *block)
{
    pack(values, errors, count, block);
}

__attribute__((target("avx2"))) static void unpack_avx2(const char *block, uint32_t count,
                                                        float *values)
{
    unpack(block, count, values);
}

static bool has_avx2(void)
{
    return highest >= 1 && __builtin_cpu_supports("avx2");
}
#endif

void quantize_pack(const float *values, float *errors, uint32_t count, char *block)
{
    lh_assert(count <= QUANTIZE_BLOCK);
#if defined(__x86_64__)
    if (has_avx2()) {
        pack_avx2(values, errors, count, block);
        return;
    }
#endif
    pack(values, errors, count, block);
}

void quantize_unpack(const char *block, uint32_t count, float *values)
{
    lh_assert(count <= QUANTIZE_BLOCK);
#if defined(__x86_64__)
    if (has_avx2()) {
        unpack_avx2(block, count, values);
        return;
    }
#endif
    unpack(block, count, values);
}
