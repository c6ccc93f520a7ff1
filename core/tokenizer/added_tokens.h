/* tokenizer/added_tokens.h - tokens that are cut out of a text before anything else happens to it. */
#ifndef TOKENIZER_ADDED_TOKENS_H
#define TOKENIZER_ADDED_TOKENS_H

#include <tokenizer/byte_trie.h>
#include <tokenizer/tokenizer.h>
#include <tokenizer/unicode.h>

typedef struct added_token {
    int32_t id;
    char *content; /* owned; UTF-8 without NUL */
    size_t length;
    bool special;        /* decoding may skip it                                     */
    bool implicit;       /* found in text only when asked for: SPELLING_IS_TOKEN     */
    bool normalized;     /* looked for after normalising                             */
    bool single_word;    /* not beside a word character                              */
    bool lstrip, rstrip; /* takes the white space before, after                      */
} added_token_t;

typedef struct added_tokens {
    added_token_t *tokens;
    size_t count, room;
    size_t searched;             /* tokens that SPELLING_AS_REFERENCE looks for */
    byte_trie_t raw, normalized; /* values are indices into tokens */
} added_tokens_t;

typedef struct added_match {
    int32_t id;        /* -1: none */
    size_t start, end; /* of what it takes, with white space that belongs to it */
    size_t next;       /* where the search goes on: white space may belong to two */
} added_match_t;

/* Takes over token.content, also on failure. */
lh_status_t added_tokens_add(added_tokens_t *a, added_token_t token) LH_MUST_CHECK;
void added_tokens_free(added_tokens_t *a);

/* The first match at or after `from`; leftmost, then longest. `among` is a->raw or a->normalized.
 * What lies before `floor` was taken by the match before. */
added_match_t added_tokens_find(const added_tokens_t *a, const byte_trie_t *among,
                                token_spelling_t spelling, const char *text, size_t length,
                                size_t floor, size_t from);

#endif
