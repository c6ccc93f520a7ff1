/* base/philox.h - counter-based random numbers: the same (key, counter) gives the same bits on
 * every rank, thread and run, so nothing random has a state that a checkpoint could forget.
 * Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 *
 * A generator with a state would be faster for one thread that draws in order; here any element's
 * number is made without those before it, so that a rank makes its shard of a weight alone. In all
 * functions `seed` is the job's, `stream` tells one use of it from another (the hash of a tensor's
 * name, sampling), and `index` counts within it. None keeps anything: any thread may call them. */
#ifndef BASE_PHILOX_H
#define BASE_PHILOX_H

#include <stdint.h>

/* The ten rounds, on four words in place; here, so that loops over counters become vector code. The
 * constants are those of the paper: two multipliers, and two steps of the key (Weyl sequences). */
static inline void philox_rounds(const uint32_t key[2], uint32_t *c0, uint32_t *c1, uint32_t *c2,
                                 uint32_t *c3)
{
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * *c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * *c2;
        *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ k0;
        *c1 = (uint32_t)p1;
        *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
        *c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* Four words from a key of two and a counter of four. */
void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* Uniform in [0, 1) with 53 bits, for (seed, stream, index). */
double philox_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normal (Box and Muller) for (seed, stream, index). Its logarithm and cosine are made of
 * plain IEEE operations: the same bits on every processor and with every C library, one at a time
 * or by philox_normals. */
double philox_normal(uint64_t seed, uint64_t stream, uint64_t index);
/* out[i] = (float)(scale * philox_normal(seed, stream, begin + i)), by vector code.
 * [any thread] */
void philox_normals(uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count, double scale,
                    float *out);

#endif
