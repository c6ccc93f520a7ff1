/* tokenizer/normalize.h - what happens to a text before it is cut: composition of characters,
 * replacements, sentencepiece's treatment of spaces.
 *
 * A normalizer is a list of steps, as tokenizer.json has them; a sentencepiece model is one step of
 * its own kind. Each step makes a new text out of the last one. */
#ifndef TOKENIZER_NORMALIZE_H
#define TOKENIZER_NORMALIZE_H

#include <base/status.h>
#include <base/text.h>
#include <subword/token_pieces.h>
#include <tokenizer/normalize_characters.h>
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
/* The shortest entry that text starts with, likewise. */
size_t normalize_charsmap_shortest(const charsmap_t *m, const char *text, size_t length,
                                   const char **to);

typedef enum normalize_by {
    NORMALIZE_UNICODE,     /* NFC, NFD, NFKC, NFKD       */
    NORMALIZE_PREPEND,     /* `to`, unless text is empty */
    NORMALIZE_REPLACE,     /* `from` or a regex by `to`  */
    NORMALIZE_SPACES,      /* sentencepiece              */
    NORMALIZE_CHARACTERS,  /* each by a rule                       */
    NORMALIZE_STRIP,       /* white space at the ends              */
    NORMALIZE_PRECOMPILED, /* a charsmap in Hugging Face's way     */
} normalize_by_t;

/* sentencepiece's normalizer_spec. */
typedef struct space_rules {
    charsmap_t charsmap;
    piece_trie_t kept; /* user-defined pieces: the charsmap does not touch them */
    /* A space before the text; no spaces at its ends, and one for a run of them; U+2581 for
     * spaces. */
    /* With all three " a  b " becomes _a_b, where _ is the mark. */
    bool add_dummy_prefix, remove_extra, escape;
    /* By ASCII character: 1 if it stays as it is before another one, whatever that is. Filled by
     * normalize_find_plain, once charsmap and kept are there. */
    uint8_t plain[128];
} space_rules_t;

/* Saves a look into the charsmap for nearly every character of English text. `space`: a space is
 * plain as well, where nothing else is done to it. */
void normalize_find_plain(space_rules_t *rules, bool space);
/* How many characters at the start of a text are plain. What is not ASCII may go together with the
 * character before it, as an accent does, so that one is not counted. */
size_t normalize_plain_run(const space_rules_t *rules, const char *text, size_t length);

/* Refuses what a step has made of `from` bytes if a file must have been made to fill the memory. */
lh_status_t normalize_check_growth(const text_t *out, size_t from) LH_MUST_CHECK;

/* One step; the fields that belong to its `by` are set. */
typedef struct normalize_step {
    normalize_by_t by;
    /* NFC and NFKC compose, NFD and NFKD do not; the two with K replace what is only compatible,
     * too */
    bool compose, compatible; /* of NORMALIZE_UNICODE */
    character_rule_t rule;
    bool left, right; /* of NORMALIZE_STRIP   */
    char *from, *to;  /* owned; UTF-8         */
    size_t from_length, to_length;
    /* of NORMALIZE_REPLACE, in the place of from; owned; NULL: from is a string */
    pattern_regex_t *regex;
    space_rules_t spaces; /* of NORMALIZE_SPACES; of NORMALIZE_PRECOMPILED its charsmap */
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
    /* The last text lost its first characters, so that it no longer begins where a document does:
     * that is how Hugging Face's library has it for a mark that only goes there. */
    bool dropped;
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
