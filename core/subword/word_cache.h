/* subword/word_cache.h - what short texts became, remembered by one thread.
 *
 * Text repeats its words, and most of them are short. The cache is direct-mapped, so that a look is
 * at one line of memory and what is forgotten needs no order of age. Results must not depend on
 * what it holds. Who encodes keeps one in its scratch, an array of WORD_SLOTS slots, and looks into
 * it inline, as this is the innermost step of every encode. */
#ifndef SUBWORD_WORD_CACHE_H
#define SUBWORD_WORD_CACHE_H

#include <string.h>

#include <longhaul/base.h>

enum {
    WORD_SLOTS = 1 << 15,
    WORD_BYTES = 24, /* longest text that is remembered */
    WORD_IDS = 9,
    WORD_FEW_IDS = 8, /* where a margin stands beside them */
};

/* One cache line each. A slot holds the last text that fell on it; comparing its text takes three
 * words, as texts are padded with zeros and the tag tells their length. */
typedef struct word_cached {
    uint64_t key[WORD_BYTES / 8]; /* the text, padded with zeros     */
    uint8_t tag, count;           /* tag: of the length, 0: empty    */
    union {
        int32_t ids[WORD_IDS];
        struct {
            int32_t few[WORD_FEW_IDS];
            /* by how much these ids are the best ones (unigram.c) */
            float margin;
        };
    };
} word_cached_t;

/* The text as three words, padded with zeros. Where the memory behind the text may be read too,
 * three loads of fixed size and a mask are faster than a copy of so many bytes as there are.
 * length is at most WORD_BYTES; `readable` bytes may be read from text. */
static inline void word_key(const char *text, size_t length, size_t readable, uint64_t key[3])
{
    key[0] = key[1] = key[2] = 0;
    if (readable < WORD_BYTES) {
        memcpy(key, text, length);
        return;
    }
    memcpy(key, text, WORD_BYTES);
    for (size_t i = 0; i < 3; i++) {
        const size_t from = i * 8;
        if (length <= from)
            key[i] = 0;
        else if (length < from + 8)
            key[i] &= UINT64_MAX >> (64 - (length - from) * 8); /* little endian */
    }
}

/* A mix of the three words by odd factors with about as many ones as zeros; the top 15 bits are the
 * slot. */
static inline size_t word_slot(const uint64_t key[3])
{
    uint64_t h = key[0] * 0x9E3779B97F4A7C15u;
    h ^= (key[1] + 0x632BE59BD9B4E019u) * 0xC2B2AE3D27D4EB4Fu;
    h ^= key[2] * 0x165667B19E3779F9u;
    h ^= h >> 29;
    return (size_t)((h * 0xBF58476D1CE4E5B9u) >> 49) & (WORD_SLOTS - 1);
}

/* Whether the slot holds this text under this tag; one branch for the three words. */
static inline bool word_is(const word_cached_t *slot, const uint64_t key[3], uint8_t tag)
{
    const uint64_t other = (slot->key[0] ^ key[0]) | (slot->key[1] ^ key[1]) |
                           (slot->key[2] ^ key[2]);
    return other == 0 && slot->tag == tag;
}

#endif
