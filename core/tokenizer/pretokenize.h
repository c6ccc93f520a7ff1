/* tokenizer/pretokenize.h - cuts a text into the pieces that BPE works on, by a list of steps.
 *
 * A pretokenizer of a tokenizer.json is a list of steps. Each cuts every piece of the one before
 * it, and nearly all only cut: what a step would do to the characters (a space in front, the
 * alphabet of bytes, Metaspace's mark where it comes first) is done before or left out, as symbols
 * are looked up by bytes. A Metaspace behind other steps writes its marks into a text of its own. */
#ifndef TOKENIZER_PRETOKENIZE_H
#define TOKENIZER_PRETOKENIZE_H

#include <base/text.h>
#include <tokenizer/unicode_patterns.h>

/* What a step looks for in a piece. */
typedef enum split_by {
    SPLIT_PATTERN, /* one of unicode_patterns.h                            */
    SPLIT_REGEX,
    SPLIT_STRING,
    SPLIT_DIGITS,       /* characters of class number                        */
    SPLIT_BYTE_DIGITS,  /* the same after bytes became characters: ², ³, ¹, ¼, ½ and ¾
                          stand for bytes */
    SPLIT_THREE_DIGITS, /* [0-9][0-9][0-9] over bytes                       */
    SPLIT_PUNCTUATION,
    SPLIT_SPACES,    /* characters of class space                                        */
    SPLIT_WORDS,     /* the same, and runs of word characters and of others lie between  */
    SPLIT_LENGTH,    /* so many characters, or what is left                              */
    SPLIT_METASPACE, /* spaces become p->mark, which goes with what follows; rewrites    */
} split_by_t;

/* With "a-b" and the match "-": ISOLATED gives a - b, REMOVED a b, WITH_PREVIOUS a- b, WITH_NEXT a
 * -b; CONTIGUOUS is ISOLATED, but runs of matches are one piece. */
typedef enum split_behaviour { /* what becomes of a match */
                               SPLIT_ISOLATED,
                               SPLIT_REMOVED,
                               SPLIT_WITH_PREVIOUS,
                               SPLIT_WITH_NEXT,
                               SPLIT_CONTIGUOUS, /* neighbouring matches are one piece */
} split_behaviour_t;

/* One step; the fields that belong to its `by` are set. */
typedef struct split_step {
    split_by_t by;
    split_behaviour_t behaviour;
    bool invert; /* what does not match counts as the match */
    pattern_t pattern;
    /* owned; of SPLIT_REGEX */
    pattern_regex_t *regex;
    char *string; /* owned */
    size_t string_length;
    size_t characters; /* of SPLIT_LENGTH */
} split_step_t;

/* Filled by the reader of a file, then only read. A tokenizer without steps has texts encoded whole
 * (tokenizer_parts.h, cuts). */
typedef struct pretokenizer {
    unicode_classes_t classes;
    split_step_t *steps;
    size_t count, room;
    bool prefix_space; /* a space goes before a text that does not start with one   */
    bool metaspace;    /* spaces become `mark` first                                 */
    char mark[5];
    enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend; /* of the mark       */
} pretokenizer_t;

/* A piece of the text that is being cut, from start to before end. */
typedef struct text_span {
    uint32_t start, end; /* bytes */
} text_span_t;

/* One thread's memory: the spans before and after a step, which change places from step to step. */
typedef struct pretokenize_scratch {
    /* [room], count of them in the order of the text; none is empty */
    struct span_list {
        text_span_t *spans;
        size_t count, room;
    } lists[2];
    struct text_cut *cuts; /* matches and what lies between, of one span and step */
    size_t cut_count, cut_room;
    text_t marked;             /* what a Metaspace behind other steps has made of the text */
    pattern_match_t **matches; /* by step; NULL where it has no regex */
    size_t match_count;
} pretokenize_scratch_t;

/* Takes over what the step owns, also on failure. */
lh_status_t pretokenizer_add(pretokenizer_t *p, split_step_t step) LH_MUST_CHECK;
void pretokenizer_free(pretokenizer_t *p);

lh_status_t pretokenize_scratch_open(const pretokenizer_t *p,
                                     pretokenize_scratch_t *s) LH_MUST_CHECK;
void pretokenize_scratch_close(pretokenize_scratch_t *s);

/* Appends the text with p->mark in the place of each space, and in front where p->prepend says so
 * and none is there. first: the text begins where a document does. */
void pretokenize_mark(const pretokenizer_t *p, bool first, const char *text, size_t length,
                      text_t *out);

/* *text becomes the text that the spans are of, where a step rewrites it. Both are valid until the
 * next call with this scratch. *length < 2^32. first: the text begins where a document does. */
lh_status_t pretokenize(const pretokenizer_t *p, pretokenize_scratch_t *s, bool first,
                        const char **text, size_t *length,
                        const struct span_list **out) LH_MUST_CHECK;

#endif
