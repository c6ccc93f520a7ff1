/* tcp_crc.c - CRC32C by table, by the crc32 instruction and by carry-less multiplication of 16 or
 * of 64 bytes at once (folding, as in Gopal et al., "Fast CRC computation ... using PCLMULQDQ").
 *
 * Folding keeps a remainder as wide as its registers: what stands D bits further is congruent to
 * itself times x^D, a product by two constants. They are computed once, not copied from a table. */
#include "tcp_crc.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { POLYNOMIAL = (int)0x82f63b78 }; /* bits reflected */

static uint32_t table[8][256];

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ (uint32_t)POLYNOMIAL : crc >> 1;
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xff];
}

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t length)
{
    crc = ~crc;
    for (; length >= 8; p += 8, length -= 8) {
        const uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                                    (uint32_t)p[3] << 24);
        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^
              table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
    }
    for (; length > 0; p++, length--)
        crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* x^(bits) mod P, reflected and shifted by one: what a reflected carry-less product wants. */
static uint64_t fold_constant(uint32_t bits)
{
    uint32_t r = 0x80000000u; /* x^0, reflected */
    for (uint32_t i = 0; i < bits; i++)
        r = r & 1 ? r >> 1 ^ (uint32_t)POLYNOMIAL : r >> 1;
    return (uint64_t)r << 1;
}

enum { FOLD_128, FOLD_256, FOLD_384, FOLD_512, FOLD_2048, FOLDS };
static const uint32_t fold_bits[FOLDS] = {128, 256, 384, 512, 2048};
static uint64_t fold[FOLDS][2]; /* for the low and for the high half */

static void make_folds(void)
{
    for (int i = 0; i < FOLDS; i++) {
        fold[i][0] = fold_constant(fold_bits[i] + 32);
        fold[i][1] = fold_constant(fold_bits[i] - 32);
    }
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p,
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
__attribute__((target("sse4.2,pclmul"))) static uint32_t finish(__m128i x, const uint8_t *p,
                                                                size_t length)
{
    uint64_t c = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));
    c = _mm_crc32_u64(c, (uint64_t)_mm_extract_epi64(x, 1));
    return by_instruction(~(uint32_t)c, p, length);
}

__attribute__((target("sse4.2,pclmul"))) static inline __m128i fold_128(__m128i x, int by,
                                                                        __m128i next)
{
    const __m128i k = _mm_loadu_si128((const __m128i *)(const void *)fold[by]);
    const __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t by_16_bytes(uint32_t crc, const uint8_t *p,
                                                                     size_t length)
{
    if (length < 256) return by_instruction(crc, p, length);
    __m128i x[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~crc));
    for (p += 64, length -= 64; length >= 64; p += 64, length -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = fold_128(x[i], FOLD_512,
                            _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)));
    for (int i = 1; i < 4; i++)
        x[i] = fold_128(x[i - 1], FOLD_128, x[i]);
    return finish(x[3], p, length);
}

#define WIDE "avx512f,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2"
__attribute__((target(WIDE))) static inline __m512i fold_512(__m512i x, __m512i k, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00),
                                     _mm512_clmulepi64_epi128(x, k, 0x11), next, 0x96);
}

__attribute__((target(WIDE))) static uint32_t by_64_bytes(uint32_t crc, const uint8_t *p,
                                                          size_t length)
{
    if (length < 1024) return by_16_bytes(crc, p, length);
    const __m512i far = _mm512_broadcast_i32x4(
        _mm_loadu_si128((const __m128i *)(const void *)fold[FOLD_2048]));
    const __m512i near = _mm512_broadcast_i32x4(
        _mm_loadu_si128((const __m128i *)(const void *)fold[FOLD_512]));
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (p += 256, length -= 256; length >= 256; p += 256, length -= 256) {
        a = fold_512(a, far, _mm512_loadu_si512(p));
        b = fold_512(b, far, _mm512_loadu_si512(p + 64));
        c = fold_512(c, far, _mm512_loadu_si512(p + 128));
        d = fold_512(d, far, _mm512_loadu_si512(p + 192));
    }
    d = fold_512(fold_512(fold_512(a, near, b), near, c), near, d);
    __m128i r = _mm512_extracti32x4_epi32(d, 3);
    r = fold_128(_mm512_extracti32x4_epi32(d, 2), FOLD_128, r);
    r = fold_128(_mm512_extracti32x4_epi32(d, 1), FOLD_256, r);
    r = fold_128(_mm512_extracti32x4_epi32(d, 0), FOLD_384, r);
    return finish(r, p, length);
}

static size_t find_ways(tcp_crc_way_t out[4])
{
    size_t count = 0;
    make_table();
    make_folds();
    out[count++] = by_table;
    if (!__builtin_cpu_supports("sse4.2")) return count;
    out[count++] = by_instruction;
    if (!__builtin_cpu_supports("pclmul")) return count;
    out[count++] = by_16_bytes;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq"))
        out[count++] = by_64_bytes;
    return count;
}
#else
static size_t find_ways(tcp_crc_way_t out[4])
{
    make_table();
    out[0] = by_table;
    return 1;
}
#endif

static tcp_crc_way_t ways[4];
static size_t way_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_once(void)
{
    way_count = find_ways(ways);
}

size_t tcp_crc_ways(tcp_crc_way_t out[4])
{
    (void)pthread_once(&once, find_once);
    memcpy(out, ways, sizeof(ways));
    return way_count;
}

uint32_t tcp_crc(uint32_t crc, const void *bytes, size_t length)
{
    (void)pthread_once(&once, find_once);
    return ways[way_count - 1](crc, bytes, length);
}
