/* format/json.h - JSON read by one library, yyjson, which nothing else calls: files into trees
 * of values that live as long as their document, and one text out of a line of JSONL; and JSON
 * written from front to back into a text.
 *
 * Both readers refuse what is not UTF-8 and what is nested deeper than JSON_DEPTH. Documents also
 * refuse what a reader of files trips over: a key that stands twice, a NUL in a text, a number that
 * no double holds, NaN. Lines are data and may hold these, as Python's json reads them.
 *
 * Reading is by document, as the files that are read are small beside memory and are looked at in
 * any order. Writing is from front to back, as what is written is known in order: no tree is built
 * for it.
 *
 *     json_writer_t w = {.to = &text, .style = JSON_SPACED};
 *     json_open(&w, NULL, '{');
 *     json_put_u64(&w, "step", 7);
 *     json_close(&w);                  the text is {"step": 7} now */
#ifndef FORMAT_JSON_H
#define FORMAT_JSON_H

#include <base/status.h>
#include <base/text.h>

/* Levels of lists and objects in each other; yyjson is built with the same number. */
enum { JSON_DEPTH = 64 };

/* All values of a document are one block of memory that json_free gives back, and the texts in it
 * are NUL-terminated. A document is only read once it is made, by any thread. */
typedef struct yyjson_doc json_document_t;
typedef struct yyjson_val json_value_t; /* NULL wherever nothing stands: every question takes it */

/* The text must be one object, of at most `most` values. path is for sentences. */
lh_status_t json_parse(const char *path, const char *text, size_t length, uint64_t most,
                       json_document_t **out) LH_MUST_CHECK;
/* A whole file of at most `limit` bytes, by json_parse. */
lh_status_t json_read(const char *path, uint64_t limit, uint64_t most,
                      json_document_t **out) LH_MUST_CHECK;
void json_free(json_document_t *document);                      /* NULL does nothing */
const json_value_t *json_root(const json_document_t *document); /* NULL of NULL  */

/* What a value is. A whole number fits 63 bits and a sign. */
bool json_is_map(const json_value_t *v); /* an object: keys and values */
bool json_is_list(const json_value_t *v);
bool json_is_text(const json_value_t *v);
bool json_is_whole(const json_value_t *v);
bool json_is_numeric(const json_value_t *v); /* whole or not */
bool json_is_flag(const json_value_t *v);    /* true or false */
bool json_is_yes(const json_value_t *v);     /* true */
bool json_is_nil(const json_value_t *v);     /* null, which stands there */

/* What it says, if it is of that kind; else NULL or 0. */
const char *json_text(const json_value_t *v);
size_t json_text_length(const json_value_t *v);
int64_t json_whole(const json_value_t *v);
/* Sign, 19 or 20 digits and NUL. */
enum { JSON_WHOLE_TEXT = 24 };
/* The digits of an integer of up to 64 bits; false: it is none. */
bool json_whole_text(const json_value_t *v, char out[JSON_WHOLE_TEXT]);
double json_number(const json_value_t *v);
/* A whole number of 0 or more: what files hold counts and sizes in. Also one of a line, whose other
 * numbers are not converted. */
bool json_count(const json_value_t *v, uint64_t *out);

/* Of a list or an object: how many; the one of a key or a place, found by walking there. */
size_t json_size(const json_value_t *v);
const json_value_t *json_member(const json_value_t *map, const char *key);
const json_value_t *json_item(const json_value_t *list, size_t index);

/* for (json_walk_t w = json_walk(value); json_next(&w);) has each item of a list, each member of an
 * object, and nothing of anything else. Walking is linear; asking for one item after the other by
 * its place is not. */
typedef struct json_walk {
    /* Of a member, NULL in a list; NUL-terminated. */
    const char *key;
    const json_value_t *value;
    size_t index;
    const json_value_t *follows; /* what comes next, and how many are left */
    size_t left;
    bool keyed;
} json_walk_t;
json_walk_t json_walk(const json_value_t *v);
bool json_next(json_walk_t *w);

/* What stands there, for a sentence: 1.5, "a text", [1,2..., nothing. */
enum { JSON_FOUND = 64 };
void json_found(const json_value_t *v, char out[JSON_FOUND]);
/* "PATH: KEY is FOUND, WANTED was expected". */
lh_status_t json_refuse(const char *path, const char *key, const json_value_t *v,
                        const char *wanted) LH_MUST_CHECK;
/* A member with its kind checked; the sentence names file and key. */
lh_status_t json_take_count(const char *path, const json_value_t *map, const char *key,
                            uint64_t *out) LH_MUST_CHECK;
lh_status_t json_take_text(const char *path, const json_value_t *map, const char *key,
                           const char **out) LH_MUST_CHECK;

/* The text that `key` has at the top level of one line, which is one object; once. LH_INVALID:
 * fail_reason() says what is wrong with the line, with the byte counted from 1. Linear in time and
 * memory. *line is NULL before the first call and json_free's after the last; the text is valid
 * until the next call with it. */
lh_status_t json_line_text(const char *bytes, size_t length, const char *key,
                           json_document_t **line, const char **text,
                           size_t *text_length) LH_MUST_CHECK;
/* The line itself, for who looks at more of it than one text; what is wrong with it likewise. */
lh_status_t json_line_read(const char *bytes, size_t length, json_document_t **line) LH_MUST_CHECK;
/* Nothing but white space. */
bool json_line_blank(const char *bytes, size_t length);

/* Deeper than anything that is written: a document that was read, which is JSON_DEPTH deep at most,
 * inside of what the writer puts round it. */
enum { JSON_WRITER_DEPTH = JSON_DEPTH + 8 };

/* Of a number from 1 on: so many blanks a level, a member a line. */
enum { JSON_TIGHT = -1 /* {"a":1,"b":2} */, JSON_SPACED = 0 /* {"a": 1, "b": 2} */ };

/* What stands before the first of a container's values and between them, where the style is not to
 * say: for files whose bytes are fixed. */
typedef struct json_layout {
    const char *first, *next;
} json_layout_t;

/* Writes to the end of a text. Nothing here returns a status: what goes wrong is the text's
 * (text_status), as only memory can be missing, and the caller asks for it once, at the end.
 * Zero-initialise all but to and style. */
typedef struct json_writer {
    /* the caller's */
    text_t *to;
    /* JSON_TIGHT, JSON_SPACED, or how many blanks a level is moved in */
    int style;
    uint32_t depth;
    struct json_level {
        const json_layout_t *layout; /* NULL: the style's             */
        /* Something stands in this container already, so what comes next has a comma in front. */
        bool begun;
        /* the bracket that closes the level */
        char end;
    } levels[JSON_WRITER_DEPTH];
} json_writer_t;

/* A value, a list or an object at the place where the writer is. The key is NULL in a list and at
 * the top. bracket: '{' or '['; each is closed by json_close. The layout must live until then. */
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
void json_put_value(json_writer_t *w, const char *key, const json_value_t *value);

/* A finite real as Python writes it: 10000.0, 1e-05. */
enum { JSON_REAL_TEXT = 64 };
void json_real_text(double x, char out[JSON_REAL_TEXT]);

#endif
