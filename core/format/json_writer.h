/* format/json_writer.h - JSON written from front to back into a text. What goes wrong is the text's
 * (text_status): only memory can be missing. */
#ifndef FORMAT_JSON_WRITER_H
#define FORMAT_JSON_WRITER_H

#include <base/text.h>

struct yyjson_val;

enum { JSON_WRITER_DEPTH = 64 };

/* Of a number from 1 on: so many blanks a level, a member a line. */
enum { JSON_TIGHT = -1 /* {"a":1,"b":2} */, JSON_SPACED = 0 /* {"a": 1, "b": 2} */ };

/* What stands before the first of a container's values and between them, where the style is not to
 * say: for files whose bytes are fixed. */
typedef struct json_layout {
    const char *first, *next;
} json_layout_t;

/* Zero-initialise all but to and style. */
typedef struct json_writer {
    text_t *to;
    int style;
    uint32_t depth;
    struct json_level {
        const json_layout_t *layout; /* NULL: the style's             */
        bool begun;                  /* something stands there already */
        char end;
    } levels[JSON_WRITER_DEPTH];
} json_writer_t;

/* The key is NULL in a list and at the top. bracket: '{' or '['; each is closed by json_close. */
void json_open(json_writer_t *w, const char *key, char bracket);
void json_open_as(json_writer_t *w, const char *key, char bracket, const json_layout_t *layout);
void json_close(json_writer_t *w);
/* Bytes that are not UTF-8 become U+FFFD: a file with them could not be read again. */
void json_put_text(json_writer_t *w, const char *key, const char *text);
void json_put_text_n(json_writer_t *w, const char *key, const char *bytes, size_t length);
void json_put_u64(json_writer_t *w, const char *key, uint64_t value);
/* With the fewest digits that give it back; null if it is not finite. */
void json_put_real(json_writer_t *w, const char *key, double value);
void json_put_flag(json_writer_t *w, const char *key, bool value);
void json_put_nil(json_writer_t *w, const char *key);
/* JSON that stands already, as it is. */
void json_put_as_is(json_writer_t *w, const char *key, const char *json);
/* A value that was read, with all that it holds. */
void json_put_value(json_writer_t *w, const char *key, const struct yyjson_val *value);

/* A finite real as Python writes it: 10000.0, 1e-05. */
enum { JSON_REAL_TEXT = 64 };
void json_real_text(double x, char out[JSON_REAL_TEXT]);

#endif
