/* data/json_lines.h - the texts of JSONL files one after the other, for readers that want one at a
 * time and stop at the first bad line. `prepare` reads lines in batches instead. */
#ifndef DATA_JSON_LINES_H
#define DATA_JSON_LINES_H

#include <base/status.h>

typedef struct json_lines json_lines_t;

/* paths and key stay the caller's and must live as long as the reader. */
lh_status_t json_lines_open(const char *const *paths, uint32_t count, const char *key,
                            uint64_t line_bytes, json_lines_t **out) LH_MUST_CHECK;
void json_lines_close(json_lines_t *lines); /* NULL does nothing */

/* The next line's text, valid until the next call; *end behind the last one. Blank lines are passed
 * over. A bad line is LH_INVALID with "file:line: reason". */
lh_status_t json_lines_next(json_lines_t *lines, const char **text, size_t *length,
                            bool *end) LH_MUST_CHECK;
/* Line of the last text, from 1 in its file. */
uint64_t json_lines_number(const json_lines_t *lines);

#endif
