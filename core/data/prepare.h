/* data/prepare.h - the stage that turns JSONL into token files: corpus.bin and corpus.idx, a
 * summary in prepare.json, and the lines that were left out in prepare.rejected.txt. And what
 * prepare.json says of the pair of token files, for whoever reads the pair: the length and SHA-256
 * of each, as the format of the pair itself has no checksum.
 *
 * A prepare.json, shortened:
 *
 *     {"output": "corpus", "key": "text", ..., "documents": 3, "tokens": 71,
 *      "tokenizer": {"kind": "byte-level BPE", ...,
 *                    "files": [{"path": "vocab.json", "sha256": "..."}]},
 *      "files": [{"path": "a.jsonl", "bytes": 402, "sha256": "..."}],
 *      "pair": {"prefix": "corpus", "idx": {"bytes": 102, "sha256": "..."}, "bin": {...}}} */
#ifndef DATA_PREPARE_H
#define DATA_PREPARE_H

#include <config/job_outputs.h>
#include <data/indexed.h>
#include <format/json.h>
#include <tokenizer/tokenizer.h>

/* What came of the input: for progress and for prepare.json. */
typedef struct prepare_counts {
    /* Of the input as stored: compressed where it is. */
    uint64_t bytes_read, bytes_total;
    uint64_t documents; /* written, empty ones too                           */
    uint64_t empty;     /* of those: without any token                       */
    uint64_t tokens;
    uint64_t rejected; /* lines that are no good           */
    uint64_t filtered; /* documents that accept() dropped  */
} prepare_counts_t;

/* What the stage reads and whom it asks; all is the caller's. */
typedef struct prepare_how {
    const job_prepare_t *prepare;
    const job_outputs_t
        *own; /* files of the job, which patterns of its input leave out; may be NULL */
    /* The folder of the INI, in which relative inputs lie. */
    const char *base;
    /* Of the pipeline: the summary and the rejected lines are written there. */
    const char *folder;
    uint64_t line_bytes, window_bytes; /* of [limits] */
    const tokenizer_t *tokenizer;
    const job_chat_t *chat; /* NULL, or of format CHAT_NONE: lines are documents */

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

/* On a failure before the commit no file is left or changed. One in the commit (a disk that fails)
 * may leave new files without their prepare.json. The result does not depend on the number of
 * workers. */
lh_status_t prepare_run(const prepare_how_t *how, prepare_counts_t *out) LH_MUST_CHECK;

/* What a prepare.json says of a pair; owned, freed by prepare_record_free. */
typedef struct prepare_record {
    /* Path of the prepare.json that tells of the pair; NULL: none does. */
    char *summary;
    char *idx, *bin; /* paths of the pair's files */
    pair_sums_t sums;
    char tokenizer[SHA256_TEXT]; /* of its first file; "": not told */
} prepare_record_t;

/* "pair" in the prepare.json of `folder`: output is the pair's prefix. */
void prepare_record_put(json_writer_t *w, const char *folder, const char *output,
                        const pair_sums_t *sums);

/* What the prepare.json beside the pair says of it, or that of the pipeline's `folder` (NULL:
 * none). One of an older version, and a pair that was not made by prepare, have no record:
 * out->summary is NULL then. */
lh_status_t prepare_record_find(const char *prefix, const char *folder,
                                prepare_record_t *out) LH_MUST_CHECK;
/* The record of the pair which the prepare.json in a folder tells of. */
lh_status_t prepare_record_read(const char *folder, prepare_record_t *out) LH_MUST_CHECK;
void prepare_record_free(prepare_record_t *r);

/* The index is read whole, of the .bin only its length is looked at. LH_CORRUPT: not as it was
 * made. Without a record all is well. */
lh_status_t prepare_record_check(const prepare_record_t *r) LH_MUST_CHECK;
/* Each of the two reads its file whole and compares length and digest; there must be a record. */
lh_status_t prepare_record_check_idx(const prepare_record_t *r) LH_MUST_CHECK;
lh_status_t prepare_record_check_bin(const prepare_record_t *r) LH_MUST_CHECK;

#endif
