/* philox.c - Philox4x32-10 and two distributions on it. */
#include <base/philox.h>

#include <math.h>

void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static void draw(uint64_t seed, uint64_t stream, uint64_t index, double out[2])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    uint32_t word[4];

    philox(key, counter, word);
    for (int i = 0; i < 2; i++) {
        const uint64_t bits = ((uint64_t)word[2 * i] << 32 | word[2 * i + 1]) >> 11;
        out[i] = (double)bits * 0x1p-53;
    }
}

double philox_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    double u[2];
    draw(seed, stream, index, u);
    return u[0];
}

double philox_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    double u[2];
    draw(seed, stream, index, u);
    return sqrt(-2.0 * log(1.0 - u[0])) * cos(6.283185307179586476925 * u[1]);
}
