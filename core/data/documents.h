/* data/documents.h - the documents of a JSONL file as token ids, for evaluation one at a time. */
#ifndef DATA_DOCUMENTS_H
#define DATA_DOCUMENTS_H

#include <base/status.h>
#include <tokenizer/tokenizer.h>

typedef struct documents_how {
    const char *path;
    const char *key;
    const tokenizer_t *tokenizer;
    uint64_t line_bytes;   /* longest line that is accepted         */
    uint64_t window_bytes; /* of a zstd file                        */
    bool bos;              /* put the tokenizer's BOS before each     */
    uint64_t tokens;       /* a longer document is cut to this, BOS counted; 0: no limit */
} documents_how_t;

typedef struct documents documents_t;

/* path, key and tokenizer stay the caller's and must live as long as the reader. */
lh_status_t documents_open(const documents_how_t *how, documents_t **out) LH_MUST_CHECK;
void documents_close(documents_t *d); /* NULL does nothing */

/* The next document's ids, valid until the next call; *end behind the last one. A bad line fails.
 */
lh_status_t documents_next(documents_t *d, const int32_t **ids, size_t *count,
                           bool *end) LH_MUST_CHECK;

/* The texts of JSONL files one after the other, for readers that want one at a
 * time and stop at the first bad line. `prepare` reads lines in batches instead. */
typedef struct json_lines json_lines_t;

/* paths and key stay the caller's and must live as long as the reader. */
lh_status_t json_lines_open(const char *const *paths, uint32_t count, const char *key,
                            uint64_t line_bytes, uint64_t window_bytes,
                            json_lines_t **out) LH_MUST_CHECK;
void json_lines_close(json_lines_t *lines); /* NULL does nothing */

/* The next line's text, valid until the next call; *end behind the last one. Blank lines are passed
 * over. A bad line is LH_INVALID with "file:line: reason". */
lh_status_t json_lines_next(json_lines_t *lines, const char **text, size_t *length,
                            bool *end) LH_MUST_CHECK;
/* Line of the last text, from 1 in its file. */
uint64_t json_lines_number(const json_lines_t *lines);

#endif
