/* base/text.h - a growing string, small questions about strings, numbers as people read them, and
 * UTF-8 read and written.
 *
 * All texts here are bytes that a NUL ends, in UTF-8 unless they come from outside: what a file, a
 * plugin or a peer wrote may be anything, and is made harmless where it is shown
 * (text_append_shown, log.h). Functions without a text_t neither allocate nor keep anything and may
 * be called by any thread; a text_t belongs to one thread at a time. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <base/status.h>

/* A growing string. Zero-initialise; text_free ends it. After an allocation failed nothing more is
 * appended and `failed` stays set: the callers of a dozen appends check once, at the end. */
typedef struct text {
    char *data;              /* owned; ends with a NUL once anything was appended, NULL before */
    size_t length, capacity; /* bytes, the first without the NUL */
    bool failed;
} text_t;

void text_append(text_t *t, const char *text);
void text_append_n(text_t *t, const char *bytes, size_t length); /* a NUL among them is kept */
void text_printf(text_t *t, const char *fmt, ...) LH_PRINTF(2, 3);
void text_vprintf(text_t *t, const char *fmt, va_list args) LH_PRINTF(2, 0);
/* What others wrote (a plugin, a document), made harmless to a terminal: bytes that it would obey
 * (text_control) become \xNN. lines: new lines and tabs stay as they are. */
void text_append_shown(text_t *t, const char *text, bool lines);
void text_free(text_t *t);
/* LH_OK, or LH_NO_MEMORY if an append failed. */
lh_status_t text_status(const text_t *t);

/* How many bytes at `at` a terminal obeys instead of showing them: 1 for a control character of
 * ASCII and for a byte that is no UTF-8, 2 for one of U+0080 to U+009F, else 0. A character that
 * turns the direction of the text around it counts for 1 as well: the rest of it is no UTF-8 by
 * itself, so that a caller who goes on byte by byte comes to all of it. */
size_t text_control(const char *at);

bool text_equal(const char *a, const char *b); /* NULL equals only NULL */
bool text_starts(const char *text, const char *prefix);
bool text_ends(const char *text, const char *suffix);
/* Cuts white space at both ends in place; returns the new start, inside of `text`. */
char *text_trim(char *text);
/* The number of single-character insertions, deletions and changes from a to b (Levenshtein's
 * distance), for "did you mean"; of strings of more than 63 bytes the longer one's length. */
size_t text_distance(const char *a, const char *b);
/* The name nearest to `typed`, or NULL if none is near. */
typedef struct text_nearest {
    const char *typed;
    const char *best;
    size_t distance;
} text_nearest_t;
void text_nearest_offer(text_nearest_t *n, const char *name);
const char *text_nearest_name(const text_nearest_t *n);

/* As strtod does in the C locale. A library that a plugin brings may call setlocale for all of this process, and
 * strtod would then want a comma where files have a point. */
double text_real(const char *text, char **end);
/* From here on this thread's printf and strtod are those of the C locale as well, whatever is set for the process.
 * Every thread begins with it (thread_start), the program's first one too; a child has it of its parent. */
void text_locale_hold(void);

/* A time of day of CLOCK_REALTIME in UTC, as RFC 3339 writes it: "2026-01-31T23:59:59.123Z". */
enum { TEXT_TIME = 25 };
void text_time(uint64_t wall_ns, char out[TEXT_TIME]);
/* "1h 04m", "12m 30s", "4.2 s". */
void text_duration(double seconds, char out[24]);
/* Powers of 1000: "1.07M", "16.9M", "940". */
void text_count(double count, char out[16]);
/* Powers of 1024: "1.2 GiB", "640 KiB". */
void text_bytes(double bytes, char out[16]);

/* UTF-8, strictly: overlong forms, surrogates, code points behind U+10FFFF and cut characters are
 * none. ASCII and most characters of three bytes are decoded in place, as tokenizers ask for every
 * character of a corpus; the others, Latin letters with accents among them, go to libutf8proc. */
enum { TEXT_UTF8_BAD = 0x110000 /* stands for a byte that is not UTF-8 */ };

/* Bytes of a character that begins with this one; 1 for what cannot begin one. */
static inline uint32_t text_utf8_size(unsigned char first)
{
    return first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* Whether a byte goes on with a character that a byte before it begins. */
static inline bool text_utf8_follows(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* The part of text_utf8_decode that is not worth being inlined; callers take that one. */
uint32_t text_utf8_decode_rare(const unsigned char *p, const unsigned char *end, uint32_t *length);

/* The code point at p and its length in bytes; TEXT_UTF8_BAD and 1 where no character stands there.
 * Nothing at or behind `end` is read; p < end. */
static inline uint32_t text_utf8_decode(const unsigned char *p, const unsigned char *end,
                                        uint32_t *length)
{
    if (*p < 0x80) {
        *length = 1;
        return *p;
    }
    /* three bytes that can be neither overlong nor a surrogate: Chinese and Japanese, say */
    if (*p > 0xE0 && *p < 0xED && end - p >= 3 && text_utf8_follows((char)p[1]) &&
        text_utf8_follows((char)p[2])) {
        *length = 3;
        return (*p & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    return text_utf8_decode_rare(p, end, length);
}

/* Bytes of the character at `at`, in a text that a NUL ends; 0 where none stands there. */
size_t text_utf8_character(const char *at);
/* Writes a code point; returns its number of bytes, 0 for what is none. */
size_t text_utf8_encode(uint32_t character, char out[4]);

/* Characters of a text that is UTF-8: every byte but those that go on with one. */
uint64_t text_utf8_count(const char *text, size_t length);
/* How many bytes at the start of a text are ASCII. */
size_t text_utf8_ascii(const char *text, size_t length);
/* How many are UTF-8: all, or those before the first that is not. */
size_t text_utf8_prefix(const char *text, size_t length);
bool text_utf8_valid(const char *text, size_t length);

#endif
