/* data/mt19937.h - numpy's legacy RandomState, as far as a shuffle of integers needs it: Megatron's
 * sample order is made of nothing else. */
#ifndef DATA_MT19937_H
#define DATA_MT19937_H

#include <stdint.h>

enum { MT19937_WORDS = 624 };

typedef struct mt19937 {
    uint32_t words[MT19937_WORDS];
    uint32_t next; /* index of the next word; MT19937_WORDS: make new ones */
} mt19937_t;

void mt19937_seed(mt19937_t *g, uint32_t seed); /* RandomState(seed)         */
uint32_t mt19937_next(mt19937_t *g);
void mt19937_shuffle(mt19937_t *g, uint32_t *items, uint64_t count); /* count <= 2^32 */

#endif
