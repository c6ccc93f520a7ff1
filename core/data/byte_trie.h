/* data/byte_trie.h - the longest of many strings that a text starts with. */
#ifndef DATA_BYTE_TRIE_H
#define DATA_BYTE_TRIE_H

#include <base/status.h>

/* Zero-initialise. */
typedef struct byte_trie {
    struct trie_node {
        uint32_t child, sibling; /* 0: none  */
        int32_t value;           /* -1: none */
        uint8_t byte;
    } * nodes;
    size_t count, room;
    uint32_t first[256]; /* node of the first byte; 0: no string starts with it */
} byte_trie_t;

/* length > 0, value >= 0. A string that is there keeps its first value. */
lh_status_t byte_trie_add(byte_trie_t *t, const char *bytes, size_t length,
                          int32_t value) LH_MUST_CHECK;
/* The length of the longest string that text starts with and its value; 0 if none does. */
size_t byte_trie_longest(const byte_trie_t *t, const char *text, size_t length, int32_t *value);
void byte_trie_free(byte_trie_t *t);

#endif
