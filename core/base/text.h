/* base/text.h - a growing string, and small questions about strings. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdarg.h>

#include <base/status.h>

/* A time of day of CLOCK_REALTIME in UTC, as RFC 3339 writes it: "2026-01-31T23:59:59.123Z". */
enum { TEXT_TIME = 25 };
void text_time(uint64_t wall_ns, char out[TEXT_TIME]);

/* Zero-initialise. data is NUL-terminated once anything was appended, NULL before. After an
 * allocation failed nothing more is appended and `failed` stays set: check it once at the end. */
typedef struct text {
    char *data;
    size_t length, capacity;
    bool failed;
} text_t;

void text_append(text_t *t, const char *text);
void text_append_n(text_t *t, const char *bytes, size_t length);
void text_printf(text_t *t, const char *fmt, ...) LH_PRINTF(2, 3);
void text_vprintf(text_t *t, const char *fmt, va_list args) LH_PRINTF(2, 0);
/* What others wrote (a plugin, a document), made harmless to a terminal: what it would obey stands
 * as \xNN. lines: new lines and tabs stay as they are. */
void text_append_shown(text_t *t, const char *text, bool lines);
void text_free(text_t *t);
/* LH_OK, or LH_NO_MEMORY if an append failed. */
lh_status_t text_status(const text_t *t);

/* Bytes at `at` that a terminal obeys instead of showing them: 1 for a control character and for a
 * byte that is no UTF-8, 2 for one of U+0080 to U+009F, else 0. 1 too for a character that turns
 * the direction of the text around it: what follows of it, by itself, is no UTF-8. */
size_t text_control(const char *at);
bool text_equal(const char *a, const char *b); /* NULL equals only NULL */
bool text_starts(const char *text, const char *prefix);
bool text_ends(const char *text, const char *suffix);
/* Cuts white space at both ends in place; returns the new start. */
char *text_trim(char *text);
/* Number of single-character edits from a to b; used for "did you mean". */
size_t text_distance(const char *a, const char *b);
/* The name nearest to `typed`, or NULL if none is near. */
typedef struct text_nearest {
    const char *typed;
    const char *best;
    size_t distance;
} text_nearest_t;
void text_nearest_offer(text_nearest_t *n, const char *name);
const char *text_nearest_name(const text_nearest_t *n);

/* "1h 04m", "12m 30s", "4.2 s". */
void text_duration(double seconds, char out[24]);
/* "1.07M", "16.9M", "940". */
void text_count(double count, char out[16]);
/* "1.2 GiB", "640 KiB". */
void text_bytes(double bytes, char out[16]);

#endif
