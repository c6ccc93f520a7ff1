/* data/line_reader.h - the lines of many files one after the other, with a cap on what one line may
 * make the reader hold. */
#ifndef DATA_LINE_READER_H
#define DATA_LINE_READER_H

#include <base/digest.h>

typedef struct line {
    char *bytes; /* without the newline, not NUL-terminated; may be written to; NULL if too_long */
    size_t length;
    uint64_t number; /* from 1 in its file */
    uint32_t file;   /* index into paths   */
    bool too_long;   /* over line_bytes: skipped without being held */
} line_t;

typedef struct line_file { /* known once the file was read to its end */
    uint64_t bytes;        /* as stored */
    char sha256[SHA256_TEXT];
} line_file_t;

typedef struct line_reader line_reader_t;

/* paths stay the caller's and must live as long as the reader. Files are opened one at a time;
 * window_bytes as in byte_source.h. */
lh_status_t line_reader_new(const char *const *paths, uint32_t count, uint64_t line_bytes,
                            uint64_t window_bytes, line_reader_t **out) LH_MUST_CHECK;
void line_reader_free(line_reader_t *r); /* NULL does nothing */

/* *end is true behind the last line; else *out is valid until the next call. A byte order mark at a
 * file's start is left out; the last line needs no newline. */
lh_status_t line_reader_next(line_reader_t *r, line_t *out, bool *end) LH_MUST_CHECK;

uint64_t line_reader_taken(const line_reader_t *r);           /* bytes of all files, as stored */
const line_file_t *line_reader_files(const line_reader_t *r); /* [count]; complete after the end */

#endif
