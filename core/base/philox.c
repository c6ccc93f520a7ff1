/* philox.c - Philox4x32-10 and uniform numbers. */
#include <base/philox.h>

void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

    philox_rounds(key, &c0, &c1, &c2, &c3);
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

void philox_words(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    philox(key, counter, out);
}

double philox_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t word[4];

    philox_words(seed, stream, index, word);
    return (double)(((uint64_t)word[0] << 32 | word[1]) >> 11) * 0x1p-53;
}
