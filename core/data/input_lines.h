/* data/input_lines.h - the files that a list of paths and globs names, the lines of many files one
 * after the other, with a cap on what one line may make the reader hold, and the texts in them.
 *
 * Three readers lie above each other: byte_source gives the bytes of a file as they were before
 * compression, line_reader the lines of a list of files, input_texts the text that each line holds
 * under a key. prepare uses the second, as it parses lines on several threads; evaluation the
 * third. */
#ifndef DATA_INPUT_LINES_H
#define DATA_INPUT_LINES_H

#include <base/digest.h>
#include <config/job_outputs.h>

/* The files of a stage's input. Owned; freed by input_files_free. */
typedef struct input_files {
    /* [count] in the order of the list; what a pattern matches is sorted by name. */
    char **paths;
    /* [count] of each, as they stood when the list was read: a later run compares them. */
    uint64_t *bytes, *modified_ns;
    uint32_t count;
    size_t capacity;
} input_files_t;

/* list: comma-separated, relative ones against folder; '*', '?' and [..] in any part of a path.
 * What matches nothing, is no regular file, or is named twice is refused. *out is overwritten. own:
 * the job's own files, which patterns leave out once the job has run, and which it may not write
 * over; may be NULL. */
lh_status_t input_files_find(const char *folder, const char *list, const job_outputs_t *own,
                             input_files_t *out) LH_MUST_CHECK;
/* Likewise, of a job's [prepare] input, without the job's own files. */
lh_status_t input_files_of(const job_t *job, input_files_t *out) LH_MUST_CHECK;
/* Whether a path has a character of patterns in it. */
bool input_files_is_pattern(const char *path);
void input_files_free(input_files_t *files);

typedef struct line {
    /* Without the newline and not NUL-terminated. They may be written to. NULL if too_long. */
    char *bytes;
    size_t length;
    uint64_t number; /* from 1 in its file */
    uint32_t file;   /* index into paths   */
    /* The line was longer than line_bytes and was passed over without being held. */
    bool too_long;
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

/* Bytes of all files read so far, as stored: what progress is told by. line_reader_files: [count],
 * complete behind the last line. */
uint64_t line_reader_taken(const line_reader_t *r);
const line_file_t *line_reader_files(const line_reader_t *r);

/* The texts of JSONL files one after the other, for readers that want one at a time and stop at the
 * first bad line. `prepare` reads lines in batches instead. */
typedef struct input_texts input_texts_t;

/* paths and key stay the caller's and must live as long as the reader; key may be NULL where only
 * lines are asked for. */
lh_status_t input_texts_open(const char *const *paths, uint32_t count, const char *key,
                             uint64_t line_bytes, uint64_t window_bytes,
                             input_texts_t **out) LH_MUST_CHECK;
void input_texts_close(input_texts_t *lines); /* NULL does nothing */

/* The next line's text, valid until the next call; *end behind the last one. Blank lines are passed
 * over. A bad line is LH_INVALID with "file:line: reason". */
lh_status_t input_texts_next(input_texts_t *lines, const char **text, size_t *length,
                             bool *end) LH_MUST_CHECK;
/* The next line itself, for who looks at more of it than one text: not parsed yet, and not
 * NUL-terminated. */
lh_status_t input_texts_next_line(input_texts_t *lines, const char **bytes, size_t *length,
                                  bool *end) LH_MUST_CHECK;
/* LH_INVALID gets the place of the last text in front of its reason, as a text may be refused by
 * who knows what is wrong with it and not where it stands. Any other status is returned as it
 * is. */
lh_status_t input_texts_place(const input_texts_t *lines, lh_status_t status) LH_MUST_CHECK;

#endif
