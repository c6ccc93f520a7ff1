/* tokenizer/unicode_patterns.h - the classes of Unicode characters that tokenizers cut text by, and
 * patterns of tokenizer files: by PCRE2, run the way their authors' engines run them, and by hand
 * for the three that most byte-level tokenizers use.
 *
 * What a pattern does to a text, GPT-2's here: words keep the space in front of them, and a run of
 * spaces gives its last one to the word behind it.
 *
 *     "we're 42  here"   ->   "we" "'re" " 42" " " " here" */
#ifndef TOKENIZER_UNICODE_PATTERNS_H
#define TOKENIZER_UNICODE_PATTERNS_H

#include <base/status.h>
#include <base/text.h>

/* What a character is, as bits. Letters, numbers and white space exclude each other; the other two
 * may stand beside them. */
enum {
    CLASS_LETTER = 1,       /* category L                             */
    CLASS_NUMBER = 2,       /* Nd, Nl, No                             */
    CLASS_SPACE = 4,        /* the property White_Space               */
    CLASS_PUNCTUATION = 8,  /* category P, and all ASCII punctuation  */
    CLASS_WORD = 16,        /* \w: letters, marks, digits, connectors */
    UNICODE_COMMON = 0x800, /* code points whose class is tabulated   */
};

/* The classes of what nearly all characters of European text are, so that a scanner looks into a
 * table of 2 KiB instead of two of utf8proc. Filled once by the tokenizer, then only read. */
typedef struct unicode_classes { /* of the code points below UNICODE_COMMON */
    uint8_t of[UNICODE_COMMON];
} unicode_classes_t;

void unicode_classes_fill(unicode_classes_t *out);
/* 0 for what is no character, TEXT_UTF8_BAD too. */
uint8_t unicode_class(uint32_t character);

static inline uint8_t unicode_class_of(const unicode_classes_t *classes, uint32_t character)
{
    return character < UNICODE_COMMON ? classes->of[character] : unicode_class(character);
}

/* A regular expression of a tokenizer file, run by PCRE2 with the properties of Unicode and line
 * ends as the engines have them for which these patterns were written. */
typedef struct pattern_regex pattern_regex_t; /* never changes: shared by threads */
typedef struct pattern_match pattern_match_t; /* one per thread and pattern       */

/* `path` is the file that the pattern stands in, for sentences. */
lh_status_t pattern_regex_new(const char *path, const char *pattern, size_t length,
                              pattern_regex_t **out) LH_MUST_CHECK;
void pattern_regex_free(pattern_regex_t *r);

/* What a thread needs to match this pattern: places of groups and a stack. */
lh_status_t pattern_match_new(const pattern_regex_t *r, pattern_match_t **out) LH_MUST_CHECK;
void pattern_match_free(pattern_match_t *m);

/* The first match in text[from, length), which may be empty; *start == *end == length if there is
 * none. behind: a match has ended at `from`, where an empty one is none. Matching costs a bounded
 * number of steps; beyond that the text is refused. */
lh_status_t pattern_regex_find(const pattern_regex_t *r, pattern_match_t *m, const char *text,
                               size_t length, size_t from, bool behind, bool *found, size_t *start,
                               size_t *end) LH_MUST_CHECK;

/* Patterns that are so common that a scanner was written for each, which is faster than PCRE2. They
 * are known by their spelling alone, byte for byte; the slightest difference goes to PCRE2. */
typedef enum pattern {
    PATTERN_GPT2,
    PATTERN_LLAMA3, /* groups of up to three digits */
    PATTERN_QWEN2,  /* single digits                */
    PATTERN_COUNT,
    PATTERN_UNKNOWN = PATTERN_COUNT,
} pattern_t;

/* The pattern as files spell it. */
const char *pattern_text(pattern_t pattern);
/* PATTERN_UNKNOWN if none is spelt like this, byte for byte. */
pattern_t pattern_find(const char *text, size_t length);

/* The end of the piece that starts at `from`; from < length. All of a text is cut into pieces: what
 * is left between matches in other patterns does not occur. */
size_t pattern_next(pattern_t pattern, const unicode_classes_t *classes, const char *text,
                    size_t length, size_t from);

#endif
