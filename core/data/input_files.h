/* data/input_files.h - the files that a list of paths and globs names. */
#ifndef DATA_INPUT_FILES_H
#define DATA_INPUT_FILES_H

#include <config/job_check.h>

typedef struct input_files {
    char **paths;                  /* in the order of the list; a glob's matches sorted by name */
    uint64_t *bytes, *modified_ns; /* of each, as they stood when the list was read */
    uint32_t count;
    size_t capacity;
} input_files_t;

/* list: comma-separated, relative ones against folder; '*', '?' and [..] in any part of a path.
 * What matches nothing, is no regular file, or is named twice is refused. *out is overwritten.
 * own: the job's own files, which patterns leave out; may be NULL. */
lh_status_t input_files_find(const char *folder, const char *list, const job_outputs_t *own,
                             input_files_t *out) LH_MUST_CHECK;
bool input_files_is_pattern(const char *path);
void input_files_free(input_files_t *files);

#endif
