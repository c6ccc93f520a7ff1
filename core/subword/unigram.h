/* subword/unigram.h - the likeliest cut of a text into pieces (Kudo, 2018).
 *
 * Every piece has a score, the logarithm of how likely it is, and of all ways to write a text as
 * pieces the one with the highest sum counts. A character that no piece stands for is unknown, at
 * ten below the lowest score. The best way is found from left to right (Viterbi): the best one up
 * to a place is the best one up to where its last piece begins, and that piece.
 *
 * With the scores _th -3, e -2, _ -2, the -4 and t, h -9, the text "_the" has the two ways
 *
 *     _th | e   -5        _ | the   -6        and others, far below
 *
 * A unigram_t is filled by the reader of a file and then only read, so threads share it. What an
 * encode writes to lies in a unigram_scratch_t, one for each thread. */
#ifndef SUBWORD_UNIGRAM_H
#define SUBWORD_UNIGRAM_H

#include <subword/double_array.h>
#include <subword/token_pieces.h>
#include <subword/word_cache.h>

typedef struct unigram {
    double_array_t pieces; /* those that texts may become; values are ids */
    /* [score_count] by id. A sum of such may be compared and rounded as sentencepiece or as
     * Hugging Face do it, see `single`. */
    double *scores;
    size_t score_count;
    double unknown_score; /* of one unknown character                          */
    double most;          /* the largest of all scores, as a distance from 0   */
    /* The id that a run of unknown characters becomes; -1: a text that has one is refused. */
    int32_t unknown;
    /* An unknown character becomes the ids of its bytes instead. */
    bool byte_fallback;
    int32_t bytes[256];
    /* Sums are rounded to float after each piece, as in sentencepiece; false: they are doubles. On
     * long texts the rounding of float decides between ways that are nearly as likely, and ids are
     * to be the reference's. */
    bool single;
    /* Where texts are cut before: no piece goes over such a place, so no way does. */
    piece_neighbours_t neighbours;
    /* By ASCII character: the id of the piece that it is; -1: unknown. */
    int32_t ascii[128];
} unigram_t;

/* What one thread writes to while it encodes; kept from text to text. */
typedef struct unigram_scratch {
    struct unigram_node *nodes; /* [room] by byte of the word at hand      */
    uint32_t *ends;             /* [room] of its pieces, the last one first */
    size_t room;
    word_cached_t *cache; /* [WORD_SLOTS] */
} unigram_scratch_t;

/* Makes the array, the neighbours and what is derived of the scores, from pieces by id; `taken` (by
 * id, NULL: all) are those that texts may become. scores must be there, unknown and single set;
 * `lowest` is the score that an unknown character lies below. path is for sentences. */
lh_status_t unigram_finish(unigram_t *u, const char *path, const piece_table_t *pieces,
                           const uint8_t *taken, double lowest) LH_MUST_CHECK;
void unigram_free(unigram_t *u);

/* Takes the memory of the cache, 2 MiB. */
lh_status_t unigram_scratch_open(unigram_scratch_t *s) LH_MUST_CHECK;
void unigram_scratch_close(unigram_scratch_t *s);

/* Appends the ids of a text of UTF-8. `readable` bytes, at least length, may be read from text. out
 * has room for length more ids already: nothing is allocated unless a word is longer than any
 * before. Refuses a text with an unknown character where `unknown` is -1. */
lh_status_t unigram_encode(const unigram_t *u, unigram_scratch_t *s, const char *text,
                           size_t length, size_t readable, token_ids_t *out) LH_MUST_CHECK;

#endif
