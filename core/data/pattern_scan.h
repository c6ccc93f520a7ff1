/* data/pattern_scan.h - hand-made scanners for the patterns that byte-level tokenizers cut text
 * with. */
#ifndef DATA_PATTERN_SCAN_H
#define DATA_PATTERN_SCAN_H

#include <data/unicode.h>

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
