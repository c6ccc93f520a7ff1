/* data/json_record.h - takes one string out of a line of JSON, in linear time and no memory.
 *
 * The whole line must be one JSON object as Python's json reads it (so NaN and Infinity pass), but
 * stricter where text would be damaged: valid UTF-8, no half of a surrogate pair as an escape, at
 * most 64 levels deep, the wanted key once. What is wrong is a sentence, not a failure: a bad line
 * is data, and the caller decides what to do about it. */
#ifndef DATA_JSON_RECORD_H
#define DATA_JSON_RECORD_H

#include <base/status.h>

enum { JSON_DEPTH = 64, JSON_REASON = 200 };

/* Nothing but white space. */
bool json_record_blank(const char *line, size_t length);

/* The value of `key` at the top level, decoded in place: *text points into line. False: reason says
 * why, with the byte counted from 1. */
bool json_record_text(char *line, size_t length, const char *key, char **text, size_t *text_length,
                      char reason[JSON_REASON]);

#endif
