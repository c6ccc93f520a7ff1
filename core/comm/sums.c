/* sums.c - one loop over sources, compiled for three instruction sets. It is plain addition in a
 * fixed order: lanes never meet, so the width of a vector does not show in the bits. */
#include <comm/sums.h>

#include <longhaul/dtype.h>

enum { LANES = 16, UNROLL = 4, BLOCK = LANES * UNROLL };

typedef float floats_t __attribute__((vector_size(64)));
typedef float loose_floats_t __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t words_t __attribute__((vector_size(64)));
typedef uint16_t halves_t __attribute__((vector_size(32)));
typedef uint16_t loose_halves_t __attribute__((vector_size(32), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* Vectors go through pointers: as arguments they would change the ABI with the target. */
INLINE void load(floats_t *out, lh_dtype_t dtype, const char *data, uint64_t at)
{
    if (dtype == LH_DTYPE_F32) {
        *out = *(const loose_floats_t *)(const void *)(data + at * 4);
        return;
    }
    const halves_t halves = *(const loose_halves_t *)(const void *)(data + at * 2);
    *out = (floats_t)(__builtin_convertvector(halves, words_t) << 16);
}

/* As lh_f32_to_bf16: to nearest, ties to even, a NaN stays one. */
INLINE void store(lh_dtype_t dtype, char *data, uint64_t at, const floats_t *value)
{
    if (dtype == LH_DTYPE_F32) {
        *(loose_floats_t *)(void *)(data + at * 4) = *value;
        return;
    }
    const words_t bits = (words_t)*value;
    const words_t high = bits >> 16;
    const words_t rounded = (bits + 0x7fffu + (high & 1u)) >> 16;
    const words_t nan = (words_t)((bits & 0x7fffffffu) > 0x7f800000u);
    const words_t quiet = high | ((words_t)((high & 0x7fu) == 0u) & 0x40u);
    const words_t chosen = (nan & quiet) | (~nan & rounded);
    *(loose_halves_t *)(void *)(data + at * 2) = __builtin_convertvector(chosen, halves_t);
}

INLINE void sum_block(lh_dtype_t dtype, char *to, bool add, const sum_source_t *sources,
                      uint32_t count, uint64_t at)
{
    floats_t sum[UNROLL], next[UNROLL];
    for (int k = 0; k < UNROLL; k++)
        load(&sum[k], sources[0].dtype, sources[0].data, at + (uint64_t)(k * LANES));
    for (uint32_t s = 1; s < count; s++)
        for (int k = 0; k < UNROLL; k++) {
            load(&next[k], sources[s].dtype, sources[s].data, at + (uint64_t)(k * LANES));
            sum[k] += next[k];
        }
    for (int k = 0; k < UNROLL; k++) {
        if (add) {
            load(&next[k], dtype, to, at + (uint64_t)(k * LANES));
            sum[k] = next[k] + sum[k];
        }
        store(dtype, to, at + (uint64_t)(k * LANES), &sum[k]);
    }
}

/* Two of F32 is what most runs are: no question of dtypes in the loop. */
INLINE uint64_t sum_pairs(float *to, const float *a, const float *b, uint64_t elements)
{
    uint64_t at = 0;
    for (; at + BLOCK <= elements; at += BLOCK) {
        loose_floats_t *t = (loose_floats_t *)(void *)(to + at);
        const loose_floats_t *x = (const loose_floats_t *)(const void *)(a + at);
        const loose_floats_t *y = (const loose_floats_t *)(const void *)(b + at);
        const floats_t s0 = x[0] + y[0], s1 = x[1] + y[1], s2 = x[2] + y[2], s3 = x[3] + y[3];
        t[0] = s0;
        t[1] = s1;
        t[2] = s2;
        t[3] = s3;
    }
    return at;
}

INLINE uint64_t sum_blocks(lh_dtype_t dtype, void *to, bool add, const sum_source_t *sources,
                           uint32_t count, uint64_t elements)
{
    if (dtype == LH_DTYPE_F32 && !add && count == 2 && sources[0].dtype == LH_DTYPE_F32 &&
        sources[1].dtype == LH_DTYPE_F32)
        return sum_pairs(to, sources[0].data, sources[1].data, elements);
    uint64_t at = 0;
    for (; at + BLOCK <= elements; at += BLOCK)
        sum_block(dtype, to, add, sources, count, at);
    return at;
}

typedef uint64_t blocks_fn(lh_dtype_t dtype, void *to, bool add, const sum_source_t *sources,
                           uint32_t count, uint64_t elements);

static uint64_t blocks_plain(lh_dtype_t dtype, void *to, bool add, const sum_source_t *sources,
                             uint32_t count, uint64_t elements)
{
    return sum_blocks(dtype, to, add, sources, count, elements);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t blocks_avx2(lh_dtype_t dtype, void *to, bool add,
                                                            const sum_source_t *sources,
                                                            uint32_t count, uint64_t elements)
{
    return sum_blocks(dtype, to, add, sources, count, elements);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static uint64_t blocks_avx512(
    lh_dtype_t dtype, void *to, bool add, const sum_source_t *sources, uint32_t count,
    uint64_t elements)
{
    return sum_blocks(dtype, to, add, sources, count, elements);
}
#endif

static uint32_t highest = 2;

static blocks_fn *best_blocks(void)
{
#if defined(__x86_64__)
    if (highest >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return blocks_avx512;
    if (highest >= 1 && __builtin_cpu_supports("avx2")) return blocks_avx2;
#endif
    return blocks_plain;
}

void sum_level(uint32_t level)
{
    highest = level;
}

static float element(lh_dtype_t dtype, const void *data, uint64_t at)
{
    return dtype == LH_DTYPE_F32 ? ((const float *)data)[at]
                                 : lh_bf16_to_f32(((const uint16_t *)data)[at]);
}

void sum_run(lh_dtype_t dtype, void *to, bool add, const sum_source_t *sources, uint32_t count,
             uint64_t elements)
{
    lh_assert(count > 0 && (dtype == LH_DTYPE_F32 || dtype == LH_DTYPE_BF16));
    uint64_t at = best_blocks()(dtype, to, add, sources, count, elements);
    for (; at < elements; at++) {
        float sum = element(sources[0].dtype, sources[0].data, at);
        for (uint32_t s = 1; s < count; s++)
            sum += element(sources[s].dtype, sources[s].data, at);
        if (add) sum = element(dtype, to, at) + sum;
        if (dtype == LH_DTYPE_F32)
            ((float *)to)[at] = sum;
        else
            ((uint16_t *)to)[at] = lh_f32_to_bf16(sum);
    }
}
