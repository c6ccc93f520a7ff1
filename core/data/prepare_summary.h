/* data/prepare_summary.h - what prepare tells about itself: prepare.json, and the list of lines it
 * left out. */
#ifndef DATA_PREPARE_SUMMARY_H
#define DATA_PREPARE_SUMMARY_H

#include <data/input_files.h>
#include <data/line_reader.h>
#include <data/pair_record.h>
#include <data/prepare.h>

typedef struct prepare_ends {
    int32_t prepend, append; /* ids around each document; -1: none */
} prepare_ends_t;

typedef struct prepare_facts {
    const prepare_how_t *how;
    const prepare_counts_t *counts;
    const input_files_t *files;
    const line_file_t *read; /* [files->count] */
    pair_sums_t sums;        /* of what was written */
} prepare_facts_t;

/* The text of prepare.json; the caller frees it with mem_free. */
lh_status_t prepare_summary_text(const prepare_facts_t *facts, char **out) LH_MUST_CHECK;
lh_status_t prepare_summary_write(const char *folder, const char *text) LH_MUST_CHECK;
/* Takes an older one away; none is fine. */
lh_status_t prepare_summary_remove(const char *folder) LH_MUST_CHECK;

/* prepare.rejected.txt: "file:line: reason" a line, streamed. */
typedef struct rejected_list rejected_list_t;
lh_status_t rejected_list_open(const char *folder, rejected_list_t **out) LH_MUST_CHECK;
lh_status_t rejected_list_add(rejected_list_t *list, const char *path, uint64_t line,
                              const char *reason) LH_MUST_CHECK;
/* Makes it appear; a list without a line takes an older one away instead. */
lh_status_t rejected_list_commit(rejected_list_t *list) LH_MUST_CHECK;
void rejected_list_close(rejected_list_t *list); /* leaves nothing uncommitted; NULL does nothing */

#endif
