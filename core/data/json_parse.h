/* data/json_parse.h - the one door to jansson for text from outside: depth is bounded before it
 * recurses, keys are unique, strings hold no NUL, and its memory is ours. */
#ifndef DATA_JSON_PARSE_H
#define DATA_JSON_PARSE_H

#include <jansson.h>

#include <base/status.h>

enum { JSON_PARSE_DEPTH = 64 };

/* Gives jansson base/memory.h for a heap. json_parse does it; who only makes JSON calls it once. */
void json_use_memory(void);

/* The text must be one object. path is for sentences; the caller frees *out with json_decref. */
lh_status_t json_parse(const char *path, const char *text, size_t length,
                       json_t **out) LH_MUST_CHECK;
/* The same; what has more than `most` values, objects and lists among them, is refused before any
 * is held. */
lh_status_t json_parse_most(const char *path, const char *text, size_t length, uint64_t most,
                            json_t **out) LH_MUST_CHECK;

/* A whole file of at most `limit` bytes, by json_parse_most. */
lh_status_t json_read(const char *path, uint64_t limit, uint64_t most, json_t **out) LH_MUST_CHECK;

/* What stands there, for a sentence: 1.5, "a text", [1,2..., nothing. */
enum { JSON_FOUND = 64 };
void json_found(const json_t *value, char out[JSON_FOUND]);

#endif
