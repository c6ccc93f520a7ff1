/* tokenizer/decode_steps.h - how the decoder of a tokenizer.json makes text of tokens: a list of
 * steps, each of which makes a new list of tokens out of the last one, as Hugging Face's
 * decode_chain does. What is left is written one after another. */
#ifndef TOKENIZER_DECODE_STEPS_H
#define TOKENIZER_DECODE_STEPS_H

#include <base/text.h>
#include <subword/token_pieces.h>
#include <tokenizer/unicode_patterns.h>

typedef enum decode_by {
    DECODE_BYTE_LEVEL,    /* characters of GPT-2's alphabet become bytes: one token, UTF-8 or not */
    DECODE_BYTE_FALLBACK, /* runs of <0xNN> become UTF-8 together, or U+FFFD each                 */
    DECODE_FUSE,          /* all tokens become one                                                */
    DECODE_REPLACE,       /* `from` or a regex by `to`, in each token                             */
    DECODE_STRIP,         /* `from`, a character, off the ends of each token                      */
    DECODE_METASPACE,     /* `from` becomes a space, in the first token nothing if `first`        */
    DECODE_WORDPIECE, /* a space before each token but the first, or off with the prefix `from` */
    DECODE_SUFFIX,    /* `from` becomes a space, in the last token nothing                    */
    DECODE_CTC,       /* a token once, without `from`, the pad; `to`, the delimiter, a space  */
} decode_by_t;

/* One step; the fields that belong to its `by` are set. */
typedef struct decode_step {
    decode_by_t by;
    char *from, *to; /* owned; UTF-8 */
    size_t from_length, to_length;
    pattern_regex_t *regex; /* of DECODE_REPLACE, in the place of from; owned */
    size_t start, stop;     /* of DECODE_STRIP: how many at most              */
    bool first;             /* of DECODE_METASPACE                            */
    bool cleanup;           /* spaces before punctuation and short forms go   */
} decode_step_t;

/* Filled by the reader of a file, then only read. Zero-initialise. */
typedef struct decode_steps {
    decode_step_t *steps;
    size_t count, room;
} decode_steps_t;

/* Takes over what the step owns, also on failure. */
lh_status_t decode_steps_add(decode_steps_t *d, decode_step_t step) LH_MUST_CHECK;
void decode_steps_free(decode_steps_t *d);

/* Tokens one after another, and where each ends. Zero-initialise. */
typedef struct decode_list {
    text_t bytes;
    size_t *ends;
    size_t count, room;
    size_t most; /* bytes; 0: as many as there are. A file may double them at every step. */
} decode_list_t;

/* What was appended to bytes since the last one is a token. Refuses more bytes than `most`. */
lh_status_t decode_list_end(decode_list_t *list) LH_MUST_CHECK;
void decode_list_free(decode_list_t *list);

/* Appends to out what all steps make of the list, which is used up. */
lh_status_t decode_steps_run(const decode_steps_t *d, decode_list_t *list,
                             text_t *out) LH_MUST_CHECK;

/* The byte that a piece spelt "<0xNN>" stands for; -1: it is none. */
int decode_byte(piece_t piece);

#endif
