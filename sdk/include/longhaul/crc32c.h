/* longhaul/crc32c.h - CRC-32C (Castagnoli): of what goes over a wire and of records in files.
 *
 * The code is here and not behind a call of the host, so that a plugin, which links against
 * nothing, has it at the speed of its own code. There are four ways, of which the fastest that the
 * processor has is chosen at the first use: by table, by the crc32 instruction, and by carry-less
 * multiplication of 16 or of 64 bytes at once (folding, as in Gopal et al., "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ Instruction"). Folding keeps a remainder as wide as its
 * registers: bits that are moved D bits ahead count x^D times as much, which is a product by two
 * constants, modulo the polynomial. The constants and the table are computed once in each source
 * file that includes this header. */
#ifndef LH_CRC32C_H
#define LH_CRC32C_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* One way to compute what lh_crc32c computes, with the same arguments. */
typedef uint32_t (*lh_crc32c_way_t)(uint32_t crc, const uint8_t *bytes, size_t length);

enum { LH_CRC32C_WAYS = 4 };

/* What ends in _ is for this header alone. */
#define LH_CRC32C_POLYNOMIAL_ 0x82f63b78u /* bits reflected */

static uint32_t lh_crc32c_table_[8][256];

static inline void lh_crc32c_make_table_(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ LH_CRC32C_POLYNOMIAL_ : crc >> 1;
        lh_crc32c_table_[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            lh_crc32c_table_[k][i] = lh_crc32c_table_[k - 1][i] >> 8 ^
                                     lh_crc32c_table_[0][lh_crc32c_table_[k - 1][i] & 0xff];
}

static inline uint32_t lh_crc32c_by_table_(uint32_t crc, const uint8_t *p, size_t length)
{
    crc = ~crc;
    for (; length >= 8; p += 8, length -= 8) {
        const uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                                    (uint32_t)p[3] << 24);
        crc = lh_crc32c_table_[7][low & 0xff] ^ lh_crc32c_table_[6][low >> 8 & 0xff] ^
              lh_crc32c_table_[5][low >> 16 & 0xff] ^ lh_crc32c_table_[4][low >> 24] ^
              lh_crc32c_table_[3][p[4]] ^ lh_crc32c_table_[2][p[5]] ^ lh_crc32c_table_[1][p[6]] ^
              lh_crc32c_table_[0][p[7]];
    }
    for (; length > 0; p++, length--)
        crc = crc >> 8 ^ lh_crc32c_table_[0][(crc ^ *p) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
/* x^(bits) mod P, reflected and shifted by one: what a reflected carry-less product wants. */
static inline uint64_t lh_crc32c_fold_constant_(uint32_t bits)
{
    uint32_t r = 0x80000000u; /* x^0, reflected */
    for (uint32_t i = 0; i < bits; i++)
        r = r & 1 ? r >> 1 ^ LH_CRC32C_POLYNOMIAL_ : r >> 1;
    return (uint64_t)r << 1;
}

enum {
    LH_CRC32C_FOLD_128_,
    LH_CRC32C_FOLD_256_,
    LH_CRC32C_FOLD_384_,
    LH_CRC32C_FOLD_512_,
    LH_CRC32C_FOLD_2048_,
    LH_CRC32C_FOLDS_,
};
static const uint32_t lh_crc32c_fold_bits_[LH_CRC32C_FOLDS_] = {128, 256, 384, 512, 2048};
static uint64_t lh_crc32c_fold_[LH_CRC32C_FOLDS_][2]; /* for the low and for the high half */

static inline void lh_crc32c_make_folds_(void)
{
    for (int i = 0; i < LH_CRC32C_FOLDS_; i++) {
        lh_crc32c_fold_[i][0] = lh_crc32c_fold_constant_(lh_crc32c_fold_bits_[i] + 32);
        lh_crc32c_fold_[i][1] = lh_crc32c_fold_constant_(lh_crc32c_fold_bits_[i] - 32);
    }
}

__attribute__((target("sse4.2"))) static inline uint32_t lh_crc32c_by_instruction_(uint32_t crc,
                                                                                   const uint8_t *p,
                                                                                   size_t length)
{
    uint64_t c = ~crc;
    for (; length >= 8; p += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        c = _mm_crc32_u64(c, word);
    }
    for (; length > 0; p++, length--)
        c = _mm_crc32_u8((uint32_t)c, *p);
    return ~(uint32_t)c;
}

/* Ends a fold: 16 bytes that are congruent to all before them, then the rest of the text. */
__attribute__((target("sse4.2,pclmul"))) static inline uint32_t lh_crc32c_finish_(__m128i x,
                                                                                  const uint8_t *p,
                                                                                  size_t length)
{
    uint64_t c = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));
    c = _mm_crc32_u64(c, (uint64_t)_mm_extract_epi64(x, 1));
    return lh_crc32c_by_instruction_(~(uint32_t)c, p, length);
}

__attribute__((target("sse4.2,pclmul"))) static inline __m128i lh_crc32c_fold_128_(__m128i x,
                                                                                   int by,
                                                                                   __m128i next)
{
    const __m128i k = _mm_loadu_si128((const __m128i *)(const void *)lh_crc32c_fold_[by]);
    const __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("sse4.2,pclmul"))) static inline uint32_t lh_crc32c_by_16_bytes_(
    uint32_t crc, const uint8_t *p, size_t length)
{
    if (length < 256) return lh_crc32c_by_instruction_(crc, p, length);
    __m128i x[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~crc));
    for (p += 64, length -= 64; length >= 64; p += 64, length -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = lh_crc32c_fold_128_(
                x[i], LH_CRC32C_FOLD_512_,
                _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)));
    for (int i = 1; i < 4; i++)
        x[i] = lh_crc32c_fold_128_(x[i - 1], LH_CRC32C_FOLD_128_, x[i]);
    return lh_crc32c_finish_(x[3], p, length);
}

#define LH_CRC32C_WIDE_ "avx512f,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2"
__attribute__((target(LH_CRC32C_WIDE_))) static inline __m512i lh_crc32c_fold_512_(__m512i x,
                                                                                   __m512i k,
                                                                                   __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00),
                                     _mm512_clmulepi64_epi128(x, k, 0x11), next, 0x96);
}

__attribute__((target(LH_CRC32C_WIDE_))) static inline uint32_t lh_crc32c_by_64_bytes_(
    uint32_t crc, const uint8_t *p, size_t length)
{
    if (length < 1024) return lh_crc32c_by_16_bytes_(crc, p, length);
    const __m512i far = _mm512_broadcast_i32x4(
        _mm_loadu_si128((const __m128i *)(const void *)lh_crc32c_fold_[LH_CRC32C_FOLD_2048_]));
    const __m512i near = _mm512_broadcast_i32x4(
        _mm_loadu_si128((const __m128i *)(const void *)lh_crc32c_fold_[LH_CRC32C_FOLD_512_]));
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (p += 256, length -= 256; length >= 256; p += 256, length -= 256) {
        a = lh_crc32c_fold_512_(a, far, _mm512_loadu_si512(p));
        b = lh_crc32c_fold_512_(b, far, _mm512_loadu_si512(p + 64));
        c = lh_crc32c_fold_512_(c, far, _mm512_loadu_si512(p + 128));
        d = lh_crc32c_fold_512_(d, far, _mm512_loadu_si512(p + 192));
    }
    d = lh_crc32c_fold_512_(lh_crc32c_fold_512_(lh_crc32c_fold_512_(a, near, b), near, c), near, d);
    __m128i r = _mm512_extracti32x4_epi32(d, 3);
    r = lh_crc32c_fold_128_(_mm512_extracti32x4_epi32(d, 2), LH_CRC32C_FOLD_128_, r);
    r = lh_crc32c_fold_128_(_mm512_extracti32x4_epi32(d, 1), LH_CRC32C_FOLD_256_, r);
    r = lh_crc32c_fold_128_(_mm512_extracti32x4_epi32(d, 0), LH_CRC32C_FOLD_384_, r);
    return lh_crc32c_finish_(r, p, length);
}

static inline size_t lh_crc32c_find_ways_(lh_crc32c_way_t out[LH_CRC32C_WAYS])
{
    size_t count = 0;
    lh_crc32c_make_table_();
    lh_crc32c_make_folds_();
    out[count++] = lh_crc32c_by_table_;
    if (!__builtin_cpu_supports("sse4.2")) return count;
    out[count++] = lh_crc32c_by_instruction_;
    if (!__builtin_cpu_supports("pclmul")) return count;
    out[count++] = lh_crc32c_by_16_bytes_;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq"))
        out[count++] = lh_crc32c_by_64_bytes_;
    return count;
}
#else
static inline size_t lh_crc32c_find_ways_(lh_crc32c_way_t out[LH_CRC32C_WAYS])
{
    lh_crc32c_make_table_();
    out[0] = lh_crc32c_by_table_;
    return 1;
}
#endif

static lh_crc32c_way_t lh_crc32c_ways_[LH_CRC32C_WAYS];
static size_t lh_crc32c_way_count_;
static pthread_once_t lh_crc32c_once_ = PTHREAD_ONCE_INIT;

static inline void lh_crc32c_find_once_(void)
{
    lh_crc32c_way_count_ = lh_crc32c_find_ways_(lh_crc32c_ways_);
}

/* The ways that this processor has, slowest first, so that a test can compare them. Returns how
 * many. [any] */
static inline size_t lh_crc32c_ways(lh_crc32c_way_t out[LH_CRC32C_WAYS])
{
    (void)pthread_once(&lh_crc32c_once_, lh_crc32c_find_once_);
    memcpy(out, lh_crc32c_ways_, sizeof(lh_crc32c_ways_));
    return lh_crc32c_way_count_;
}

/* The CRC of bytes behind those whose CRC is `crc`, which is 0 to begin with:
 * lh_crc32c(lh_crc32c(0, a), b) is the CRC of a followed by b. [any] */
static inline uint32_t lh_crc32c(uint32_t crc, const void *bytes, size_t length)
{
    (void)pthread_once(&lh_crc32c_once_, lh_crc32c_find_once_);
    return lh_crc32c_ways_[lh_crc32c_way_count_ - 1](crc, (const uint8_t *)bytes, length);
}

#endif
