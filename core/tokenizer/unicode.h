/* tokenizer/unicode.h - the classes of characters that tokenizers cut text by, and the alphabet of
 * bytes. */
#ifndef TOKENIZER_UNICODE_H
#define TOKENIZER_UNICODE_H

#include <base/utf8.h>

enum {
    CLASS_LETTER = 1,       /* category L                             */
    CLASS_NUMBER = 2,       /* Nd, Nl, No                             */
    CLASS_SPACE = 4,        /* the property White_Space               */
    CLASS_PUNCTUATION = 8,  /* category P, and all ASCII punctuation  */
    CLASS_WORD = 16,        /* \w: letters, marks, digits, connectors */
    UNICODE_COMMON = 0x800, /* code points whose class is tabulated   */
};

typedef struct unicode_classes { /* of the code points below UNICODE_COMMON */
    uint8_t of[UNICODE_COMMON];
} unicode_classes_t;

void unicode_classes_fill(unicode_classes_t *out);
uint8_t unicode_class(uint32_t character);

static inline uint8_t class_of(const unicode_classes_t *classes, uint32_t character)
{
    return character < UNICODE_COMMON ? classes->of[character] : unicode_class(character);
}

/* The byte alphabet of byte-level BPE: every byte has a printable character. */
uint32_t byte_character(uint8_t byte);
/* The byte that a character stands for, or -1. */
int byte_of_character(uint32_t character);

#endif
