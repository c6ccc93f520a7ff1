/* tokenizer/byte_trie.h - the longest of many strings that a text starts with. */
#ifndef TOKENIZER_BYTE_TRIE_H
#define TOKENIZER_BYTE_TRIE_H

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

/* The pieces of a vocabulary: bytes by id, id by bytes. */
typedef struct piece {
    const char *bytes; /* valid until the table grows or is freed */
    size_t length;
} piece_t;

typedef struct piece_table {
    char *bytes;
    size_t bytes_used, bytes_room;
    struct piece_place {
        uint32_t start, length;
    } * places; /* by id; length PIECE_ABSENT where no piece has the id */
    size_t count, room;
    uint64_t *slots; /* open addressing; upper half of the hash | id + 1; 0 is free */
    size_t slot_count, pieces;
} piece_table_t;

enum { PIECE_ABSENT = 0x7FFFFFFF };

/* Refuses an id or a spelling that is there already; `path` is for the sentence. */
lh_status_t piece_table_add(piece_table_t *t, const char *path, uint32_t id, const char *bytes,
                            size_t length) LH_MUST_CHECK;
/* -1: no piece has this spelling. */
int32_t piece_table_find(const piece_table_t *t, const char *bytes, size_t length);
/* False if no piece has the id. */
bool piece_table_get(const piece_table_t *t, uint32_t id, piece_t *out);
void piece_table_free(piece_table_t *t);

#endif
