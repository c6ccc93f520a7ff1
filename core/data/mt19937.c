/* mt19937.c - Mersenne twister (Matsumoto and Nishimura, 1998) and numpy's legacy shuffle. */
#include <data/mt19937.h>

enum { SHIFT = 397 };

void mt19937_seed(mt19937_t *g, uint32_t seed)
{
    for (uint32_t i = 0; i < MT19937_WORDS; i++) {
        g->words[i] = seed;
        seed = 1812433253u * (seed ^ (seed >> 30)) + i + 1;
    }
    g->next = MT19937_WORDS;
}

static void renew(mt19937_t *g)
{
    for (uint32_t i = 0; i < MT19937_WORDS; i++) {
        const uint32_t low = g->words[(i + 1) % MT19937_WORDS];
        const uint32_t mixed = (g->words[i] & 0x80000000u) | (low & 0x7fffffffu);
        g->words[i] = g->words[(i + SHIFT) % MT19937_WORDS] ^ (mixed >> 1) ^
                      ((mixed & 1) != 0 ? 0x9908b0dfu : 0);
    }
    g->next = 0;
}

uint32_t mt19937_next(mt19937_t *g)
{
    if (g->next == MT19937_WORDS) renew(g);
    uint32_t y = g->words[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* Uniform in [0, most]: draws masked with the smallest all-ones mask until one is not above. */
static uint32_t draw(mt19937_t *g, uint32_t most)
{
    uint32_t mask = most, value;
    for (uint32_t shift = 1; shift < 32; shift *= 2)
        mask |= mask >> shift;
    do {
        value = mt19937_next(g) & mask;
    } while (value > most);
    return value;
}

void mt19937_shuffle(mt19937_t *g, uint32_t *items, uint64_t count)
{
    for (uint64_t i = count; i-- > 1;) {
        const uint32_t j = draw(g, (uint32_t)i), item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}
