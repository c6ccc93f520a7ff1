/* philox.c - Philox4x32-10, uniform numbers, and normal ones.
 *
 * A weight depends on seed, name and place alone, on every processor and with every C library, so
 * logarithm and cosine are made here of plain IEEE operations, after Sun's fdlibm (e_log.c,
 * e_rem_pio2.c, k_sin.c, k_cos.c) without the cases that these arguments cannot be: below 1 ulp,
 * branch-free. Normal numbers are made in blocks whose loops the compiler turns into vector code,
 * once for each instruction set; the flags that the build gives this file forbid it to contract
 * a multiplication and an addition into one rounding. */
#include <base/philox.h>

#include <math.h>
#include <string.h>

void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

    philox_rounds(key, &c0, &c1, &c2, &c3);
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static void philox_words(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    philox(key, counter, out);
}

/* The upper 53 of 64 bits: as many as the fraction of a double holds. */
double philox_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t word[4];

    philox_words(seed, stream, index, word);
    return (double)(((uint64_t)word[0] << 32 | word[1]) >> 11) * 0x1p-53;
}

/* Normal numbers. */
enum { BLOCK = 64 }; /* elements; all arrays of a block stay in the first cache */

#define INLINE static inline __attribute__((always_inline))

INLINE uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

INLINE double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The natural logarithm; x normal (no subnormal, infinity or NaN) and above 0. x = 2^k * m with m
 * in [sqrt(1/2), sqrt(2)). With f = m - 1 and s = f / (2 + f),
 *     log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + R(s^2)),
 * where R is a polynomial; k log(2) is added in two parts, the larger of which has no error. */
INLINE double log_of(double x)
{
    const uint64_t root_half = UINT64_C(0x3fe6a09e) << 32, one = UINT64_C(0x3ff00000) << 32;
    const uint64_t moved = bits_of(x) + (one - root_half);
    const double k = (double)((int32_t)(moved >> 52) - 1023);
    const double f = double_of((moved & (~UINT64_C(0) >> 12)) + root_half) - 1.0;
    const double half = 0.5 * f * f, s = f / (2.0 + f), z = s * s, w = z * z;
    const double odd = w * (3.999999999940941908e-01 +
                            w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double even = z * (6.666666666666735130e-01 +
                             w * (2.857142874366239149e-01 +
                                  w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
    return s * (half + (odd + even)) + k * ln2_low - half + f + k * ln2_high;
}

/* The cosine; 0 <= x <= 2 pi. x = n * pi / 2 + (a + b) with |a| <= pi / 4, pi / 2 in parts of 33,
 * 33 and 53 bits, so that the products with a small n are exact; b is what a lost. Cosine and sine
 * of that are both computed, and the quarter n chooses one and its sign without a branch. */
INLINE double cos_of(double x)
{
    const double shift = 0x1.8p52; /* adding it rounds to a whole number, in the lowest bits */
    const double moved = x * 6.36619772367581382433e-01 + shift, n = moved - shift;
    const uint64_t quarter = bits_of(moved) & 3u;
    const double t = x - n * 1.57079632673412561417e+00;
    const double middle = n * 6.07710050630396597660e-11, r = t - middle;
    const double low = n * 2.02226624879595063154e-21 - ((t - r) - middle);
    const double a = r - low, b = (r - a) - low;

    const double z = a * a, w = z * z;
    const double c = z * (4.16666666666666019037e-02 +
                          z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05)) +
                     w * w *
                         (-2.75573143513906633035e-07 +
                          z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11));
    const double half = 0.5 * z, rest = 1.0 - half;
    const double cosine = rest + (((1.0 - rest) - half) + (z * c - a * b));

    const double v = z * a;
    const double s = 8.33333333332248946124e-03 +
                     z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06) +
                     z * w * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10);
    const double sine = a - ((z * (0.5 * b - v * s) - b) - v * -1.66666666666666324348e-01);

    /* cos, -sin, -cos, sin */
    const uint64_t odd = UINT64_C(0) - (quarter & 1u);
    const uint64_t minus = ((quarter ^ (quarter >> 1)) & 1u) << 63;
    return double_of(((bits_of(sine) & odd) | (bits_of(cosine) & ~odd)) ^ minus);
}

/* 53 bits of two words as a number in [0, 1): in two steps whose halves fit an int32. */
INLINE double unit_of(uint32_t high, uint32_t low)
{
    const int32_t top = (int32_t)(high >> 6), rest = (int32_t)((high & 63u) << 21 | low >> 11);
    return (double)top * 0x1p-26 + (double)rest * 0x1p-53;
}

/* Box and Muller, of two uniform numbers; 1 - u0 lies in (0, 1], where the logarithm is finite. */
INLINE double normal_of(double u0, double u1)
{
    return sqrt(-2.0 * log_of(1.0 - u0)) * cos_of(6.283185307179586476925 * u1);
}

typedef struct words { /* of[k][i]: word k of the block's counter i */
    uint32_t of[4][BLOCK];
} words_t;

/* The four words of each of a block's counters, one array a word: philox_words without its stores
 * in between, which would keep the loop from becoming vector code. */
INLINE void words_take(uint64_t seed, uint64_t stream, uint64_t begin, words_t *w)
{
    for (uint32_t i = 0; i < BLOCK; i++) {
        const uint64_t index = begin + i;
        const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
        uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
        philox_rounds(key, &c0, &c1, &c2, &c3);
        w->of[0][i] = c0, w->of[1][i] = c1, w->of[2][i] = c2, w->of[3][i] = c3;
    }
}

/* The last block may be a part of one: it is made whole and copied in part, so that an element's
 * bits never depend on how many are asked for. */
INLINE void normals(uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count, double scale,
                    float *out)
{
    for (uint64_t at = 0; at < count; at += BLOCK) {
        words_t w;
        double z[BLOCK];
        float last[BLOCK];
        words_take(seed, stream, begin + at, &w);
        for (uint32_t i = 0; i < BLOCK; i++)
            z[i] = normal_of(unit_of(w.of[0][i], w.of[1][i]), unit_of(w.of[2][i], w.of[3][i]));
        float *to = count - at < BLOCK ? last : out + at;
        for (uint32_t i = 0; i < BLOCK; i++)
            to[i] = (float)(scale * z[i]);
        if (to == last) memcpy(out + at, last, (count - at) * sizeof(float));
    }
}

/* The same code three times: the attribute makes the compiler use that instruction set in it. */
typedef void normals_t(uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count, double scale,
                       float *out);

static void normals_plain(uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count,
                          double scale, float *out)
{
    normals(seed, stream, begin, count, scale, out);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void normals_avx2(uint64_t seed, uint64_t stream,
                                                         uint64_t begin, uint64_t count,
                                                         double scale, float *out)
{
    normals(seed, stream, begin, count, scale, out);
}

__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))) static void normals_avx512(
    uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count, double scale, float *out)
{
    normals(seed, stream, begin, count, scale, out);
}

/* The widest of the three that this processor has; all give the same bits. */
static normals_t *normals_here(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return normals_avx512;
    return __builtin_cpu_supports("avx2") ? normals_avx2 : normals_plain;
}
#else
static normals_t *normals_here(void)
{
    return normals_plain;
}
#endif

void philox_normals(uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count, double scale,
                    float *out)
{
    normals_here()(seed, stream, begin, count, scale, out);
}

double philox_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t word[4];
    philox_words(seed, stream, index, word);
    return normal_of(unit_of(word[0], word[1]), unit_of(word[2], word[3]));
}
