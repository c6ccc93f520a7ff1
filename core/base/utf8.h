/* base/utf8.h - UTF-8 read and written, strictly: overlong forms, surrogates, what lies behind the
 * last code point and cut characters are no UTF-8. Latin and most of the rest is decoded in place,
 * as tokenizers ask for every character of a corpus; libutf8proc knows all the others. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UTF8_BAD = 0x110000 /* stands for a byte that is not UTF-8 */ };

/* Bytes of a character that begins with this one; 1 for what cannot begin one. */
static inline uint32_t utf8_size(unsigned char first)
{
    return first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* The code point at p and its length in bytes; of what is not UTF-8, UTF8_BAD and 1. p < end. */
uint32_t utf8_decode_rare(const unsigned char *p, const unsigned char *end, uint32_t *length);

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
    return utf8_decode_rare(p, end, length);
}

/* Bytes of the character at `at`, in a text that a NUL ends: 0 where none stands. */
size_t utf8_character(const char *at);
size_t utf8_encode(uint32_t character, char out[4]); /* returns the number of bytes */

/* Bytes at the start of text that are ASCII; that are UTF-8: all of them, or up to the first one
 * that is not. */
size_t utf8_ascii(const char *text, size_t length);
size_t utf8_prefix(const char *text, size_t length);
bool utf8_valid(const char *text, size_t length);

#endif
