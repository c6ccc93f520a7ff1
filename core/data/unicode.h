/* data/unicode.h - UTF-8 and the classes of characters that tokenizers cut text by. */
#ifndef DATA_UNICODE_H
#define DATA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CLASS_LETTER = 1,       /* category L                             */
    CLASS_NUMBER = 2,       /* Nd, Nl, No                             */
    CLASS_SPACE = 4,        /* the property White_Space               */
    CLASS_PUNCTUATION = 8,  /* category P, and all ASCII punctuation  */
    CLASS_WORD = 16,        /* \w: letters, marks, digits, connectors */
    UNICODE_COMMON = 0x800, /* code points whose class is tabulated   */
    UNICODE_BAD = 0x110000, /* stands for a byte that is not UTF-8    */
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

/* Bytes of a character that begins with this one; 1 for what cannot begin one. */
static inline uint32_t utf8_size(unsigned char first)
{
    return first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* The length of what starts with the bytes at p, and its code point; overlong forms, surrogates and
 * cut characters are UNICODE_BAD, one byte long. p < end. */
uint32_t utf8_decode_long(const unsigned char *p, const unsigned char *end, uint32_t *length);

static inline uint32_t utf8_decode(const unsigned char *p, const unsigned char *end,
                                   uint32_t *length)
{
    if (*p < 0x80) {
        *length = 1;
        return *p;
    }
    /* three bytes that can be neither overlong nor a surrogate: most of what is not Latin */
    if (*p > 0xE0 && *p < 0xED && end - p >= 3 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80) {
        *length = 3;
        return (*p & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    return utf8_decode_long(p, end, length);
}

size_t utf8_encode(uint32_t character, char out[4]); /* returns the number of bytes */
bool utf8_valid(const char *text, size_t length);
/* Bytes at the start of text that are ASCII. */
size_t ascii_prefix(const char *text, size_t length);

/* The byte alphabet of byte-level BPE: every byte has a printable character. */
uint32_t byte_character(uint8_t byte);
/* The byte that a character stands for, or -1. */
int byte_of_character(uint32_t character);

#endif
