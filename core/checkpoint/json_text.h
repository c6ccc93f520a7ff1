/* checkpoint/json_text.h - values taken out of JSON with their types checked, and JSON written the
 * way people read it. */
#ifndef CHECKPOINT_JSON_TEXT_H
#define CHECKPOINT_JSON_TEXT_H

#include <jansson.h>

#include <base/text.h>
#include <data/json_parse.h>

/* "PATH: KEY is FOUND, WANTED was expected". */
lh_status_t json_text_refuse(const char *path, const char *key, const json_t *value,
                             const char *wanted) LH_MUST_CHECK;
/* A value of an object with its type checked; the sentence names file and key. */
lh_status_t json_text_u64(const char *path, const json_t *object, const char *key,
                          uint64_t *out) LH_MUST_CHECK;
lh_status_t json_text_string(const char *path, const json_t *object, const char *key,
                             const char **out) LH_MUST_CHECK;

enum { JSON_REAL_TEXT = 64 };
/* A finite real with the fewest digits that give it back, as Python writes it: 10000.0, 1e-05. */
void json_real_text(double x, char out[JSON_REAL_TEXT]);

/* Appends a string with quotes and escapes, and a real as above. */
void json_text_quote(text_t *t, const char *text);
void json_text_real(text_t *t, double x);
/* Appends a whole value, two spaces a level. */
void json_text_append(text_t *t, const json_t *value, uint32_t level);

#endif
