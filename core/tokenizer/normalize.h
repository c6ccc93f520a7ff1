/* tokenizer/normalize.h - what happens to a text before it is cut: composition of characters,
 * replacements, sentencepiece's treatment of spaces.
 *
 * A normalizer is a list of steps, as tokenizer.json has them; a sentencepiece model is one step of
 * its own kind. Each step makes a new text out of the last one. */
#ifndef TOKENIZER_NORMALIZE_H
#define TOKENIZER_NORMALIZE_H

#include <base/status.h>
#include <base/text.h>
#include <tokenizer/token_pieces.h>
#include <tokenizer/unicode_patterns.h>

/* Sentencepiece's table of what characters are replaced with before encoding, NFKC with exceptions
 * in most models. It comes compiled in the model's file and is used as it is: a double array trie
 * (Darts-clone) and the replacements behind it. */
typedef struct charsmap {
    /* [unit_count] the double array; owned */
    uint32_t *units; /* a double array trie */
    size_t unit_count;
    /* [string_bytes] NUL-terminated replacements one after another; the trie's values are places in
     * it */
    char *strings; /* NUL-terminated, one after another */
    size_t string_bytes;
} charsmap_t;

/* A normalizer_spec.precompiled_charsmap; length 0 makes an empty map. */
lh_status_t normalize_charsmap_read(const char *path, const char *bytes, size_t length,
                                    charsmap_t *out) LH_MUST_CHECK;
void normalize_charsmap_free(charsmap_t *m);

/* The longest entry that text starts with: returns its length and the replacement, or 0. */
size_t normalize_charsmap_longest(const charsmap_t *m, const char *text, size_t length,
                                  const char **to);

typedef enum normalize_by {
    NORMALIZE_UNICODE, /* NFC, NFD, NFKC, NFKD       */
    NORMALIZE_PREPEND, /* `to`, unless text is empty */
    NORMALIZE_REPLACE, /* `from` or a regex by `to`  */
    NORMALIZE_SPACES,  /* sentencepiece              */
} normalize_by_t;

/* sentencepiece's normalizer_spec. */
typedef struct space_rules {
    charsmap_t charsmap;
    piece_trie_t kept; /* user-defined pieces: the charsmap does not touch them */
    /* A space before the text; no spaces at its ends, and one for a run of them; U+2581 for
     * spaces. */
    /* With all three " a  b " becomes _a_b, where _ is the mark. */
    bool add_dummy_prefix, remove_extra, escape;
} space_rules_t;

/* One step; the fields that belong to its `by` are set. */
typedef struct normalize_step {
    normalize_by_t by;
    /* NFC and NFKC compose, NFD and NFKD do not; the two with K replace what is only compatible,
     * too */
    bool compose, compatible; /* of NORMALIZE_UNICODE */
    char *from, *to;          /* owned; UTF-8         */
    size_t from_length, to_length;
    /* of NORMALIZE_REPLACE, in the place of from; owned; NULL: from is a string */
    pattern_regex_t *regex;
    space_rules_t spaces;
} normalize_step_t;

/* Filled by the reader of a file, then only read. */
typedef struct normalizer {
    normalize_step_t *steps;
    size_t count, room;
} normalizer_t;

/* One thread's memory for normalizing: two texts that take turns as source and destination of a
 * step. */
typedef struct normalize_scratch {
    text_t texts[2];
    /* [character_room] a text in UTF-32, for composition */
    int32_t *characters;
    size_t character_room;
    pattern_match_t **matches; /* by step */
    size_t match_count;
} normalize_scratch_t;

/* Takes over what the step owns, also on failure. */
lh_status_t normalizer_add(normalizer_t *n, normalize_step_t step) LH_MUST_CHECK;
void normalizer_free(normalizer_t *n);

lh_status_t normalize_scratch_open(const normalizer_t *n, normalize_scratch_t *s) LH_MUST_CHECK;
void normalize_scratch_close(normalize_scratch_t *s);

/* *out is text itself where nothing changes, or valid until the next call with this scratch. Text
 * that is not UTF-8 goes through composition unchanged; NORMALIZE_SPACES needs UTF-8. */
lh_status_t normalize(const normalizer_t *n, normalize_scratch_t *s, const char *text,
                      size_t length, const char **out, size_t *out_length) LH_MUST_CHECK;

#endif
