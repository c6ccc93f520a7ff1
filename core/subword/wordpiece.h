/* subword/wordpiece.h - the longest piece that a word starts with, and again behind it (Wu et al.,
 * 2016, as BERT has it).
 *
 * Pieces that stand inside of a word are spelt with a prefix. With the pieces un, ##aff, ##able and
 * ##a a word goes this way, and one that cannot be written so to its end is unknown as a whole:
 *
 *     unaffable  ->  un | ##aff | ##able        unafraid  ->  [UNK]
 *
 * Filled by the reader of a file and then only read, so threads share it. */
#ifndef SUBWORD_WORDPIECE_H
#define SUBWORD_WORDPIECE_H

#include <subword/double_array.h>
#include <subword/token_pieces.h>
#include <subword/word_cache.h>

typedef struct wordpiece {
    double_array_t first; /* all pieces, as they are spelt                 */
    double_array_t rest;  /* those with the prefix, without it             */
    uint64_t characters;  /* a word of more is unknown without being read  */
    int32_t unknown;      /* -1: a text with an unknown word is refused    */
} wordpiece_t;

/* What one thread keeps from text to text. */
typedef struct wordpiece_scratch {
    word_cached_t *cache; /* [WORD_SLOTS] */
} wordpiece_scratch_t;

/* Makes both arrays of the vocabulary; path is for sentences. */
lh_status_t wordpiece_finish(wordpiece_t *w, const char *path, const piece_table_t *pieces,
                             const char *prefix) LH_MUST_CHECK;
void wordpiece_free(wordpiece_t *w);

/* Takes the memory of the cache, 2 MiB. */
lh_status_t wordpiece_scratch_open(wordpiece_scratch_t *s) LH_MUST_CHECK;
void wordpiece_scratch_close(wordpiece_scratch_t *s);

/* Appends the ids of one word of UTF-8, which a pretokenizer has cut. `readable` bytes, at least
 * length, may be read from text. out has room for length more ids already. */
lh_status_t wordpiece_encode(const wordpiece_t *w, wordpiece_scratch_t *s, const char *text,
                             size_t length, size_t readable, token_ids_t *out) LH_MUST_CHECK;

#endif
