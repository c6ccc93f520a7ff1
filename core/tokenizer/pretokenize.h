/* tokenizer/pretokenize.h - cuts a text into the pieces that BPE works on, by a list of steps. */
#ifndef TOKENIZER_PRETOKENIZE_H
#define TOKENIZER_PRETOKENIZE_H

#include <tokenizer/unicode_patterns.h>

typedef enum split_by {
    SPLIT_PATTERN, /* one of pretokenize.h                                 */
    SPLIT_REGEX,
    SPLIT_STRING,
    SPLIT_DIGITS,      /* characters of class number                        */
    SPLIT_BYTE_DIGITS, /* the same after bytes became characters: ², ³, ¹, ¼, ½ and ¾ stand for
                          bytes */
    SPLIT_THREE_DIGITS, /* [0-9][0-9][0-9] over bytes                       */
    SPLIT_PUNCTUATION,
} split_by_t;

typedef enum split_behaviour { /* what becomes of a match */
                               SPLIT_ISOLATED,
                               SPLIT_REMOVED,
                               SPLIT_WITH_PREVIOUS,
                               SPLIT_WITH_NEXT,
                               SPLIT_CONTIGUOUS, /* neighbouring matches are one piece */
} split_behaviour_t;

typedef struct split_step {
    split_by_t by;
    split_behaviour_t behaviour;
    bool invert; /* what does not match counts as the match */
    pattern_t pattern;
    pattern_regex_t *regex;
    char *string; /* owned */
    size_t string_length;
} split_step_t;

typedef struct pretokenizer {
    unicode_classes_t classes;
    split_step_t *steps;
    size_t count, room;
    bool prefix_space; /* a space goes before a text that does not start with one   */
    bool metaspace;    /* spaces become `mark` first                                 */
    char mark[5];
    enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend; /* of the mark       */
} pretokenizer_t;

typedef struct text_span {
    uint32_t start, end; /* bytes */
} text_span_t;

/* One thread's. */
typedef struct pretokenize_scratch {
    struct span_list {
        text_span_t *spans;
        size_t count, room;
    } lists[2];
    struct text_cut *cuts; /* matches and what lies between, of one span and step */
    size_t cut_count, cut_room;
    pattern_match_t **matches; /* by step; NULL where it has no regex */
    size_t match_count;
} pretokenize_scratch_t;

/* Takes over what the step owns, also on failure. */
lh_status_t pretokenizer_add(pretokenizer_t *p, split_step_t step) LH_MUST_CHECK;
void pretokenizer_free(pretokenizer_t *p);

lh_status_t pretokenize_scratch_open(const pretokenizer_t *p,
                                     pretokenize_scratch_t *s) LH_MUST_CHECK;
void pretokenize_scratch_close(pretokenize_scratch_t *s);

/* *out is valid until the next call with this scratch. length < 2^32. */
lh_status_t pretokenize(const pretokenizer_t *p, pretokenize_scratch_t *s, const char *text,
                        size_t length, const struct span_list **out) LH_MUST_CHECK;

#endif
