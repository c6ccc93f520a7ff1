/* data/prepare.h - the stage that turns JSONL into token files: corpus.bin and corpus.idx, a
 * summary in prepare.json, and the lines that were left out in prepare.rejected.txt. */
#ifndef DATA_PREPARE_H
#define DATA_PREPARE_H

#include <base/digest.h>
#include <config/job_check.h>
#include <tokenizer/tokenizer.h>

typedef struct prepare_counts {
    uint64_t bytes_read, bytes_total; /* of the input as stored: compressed where it is    */
    uint64_t documents;               /* written, empty ones too                           */
    uint64_t empty;                   /* of those: without any token                       */
    uint64_t tokens;
    uint64_t rejected; /* lines that are no good           */
    uint64_t filtered; /* documents that accept() dropped  */
} prepare_counts_t;

typedef struct prepare_how {
    const job_prepare_t *prepare;
    const job_outputs_t
        *own;           /* files of the job, which patterns of its input leave out; may be NULL */
    const char *base;   /* folder of the INI: relative inputs lie in it    */
    const char *folder; /* of the pipeline: for summary and rejected lines */
    uint64_t line_bytes, window_bytes; /* of [limits] */
    const tokenizer_t *tokenizer;

    /* Optional. A data filter: *keep says whether the document is written. Called in input order,
     * on the thread that runs prepare. */
    lh_status_t (*accept)(void *context, uint64_t tokens, bool *keep);
    void *accept_context;
    /* Optional. Called on the same thread after each batch of lines: often. */
    void (*progress)(void *context, const prepare_counts_t *counts);
    void *progress_context;
    /* Optional. Once it says true, prepare ends with LH_CANCELLED and leaves nothing behind. */
    bool (*stopping)(void);
} prepare_how_t;

/* All or nothing: on any failure no file is left or changed. The result does not depend on
 * the number of workers. */
lh_status_t prepare_run(const prepare_how_t *how, prepare_counts_t *out) LH_MUST_CHECK;

#endif
