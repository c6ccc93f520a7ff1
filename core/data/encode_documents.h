/* data/encode_documents.h - documents of JSONL files as token ids: by several threads in the order of
 * the input, for the stage prepare, and one at a time, for evaluation.
 *
 * In the ring one thread reads, the workers take a batch of lines each, the caller gets batch after
 * batch: what comes out does not depend on the number of threads. A fixed number of batches goes
 * round, so memory does not grow with the input. */
#ifndef DATA_ENCODE_DOCUMENTS_H
#define DATA_ENCODE_DOCUMENTS_H

#include <base/status.h>
#include <data/input_lines.h>
#include <tokenizer/tokenizer.h>

typedef struct encode_how {
    const char *const *paths; /* [count]; they, key and tokenizer must live as long as the ring */
    uint32_t count;
    const char *key;
    uint64_t line_bytes, window_bytes;
    const tokenizer_t *tokenizer;
    int32_t prepend, append; /* ids around a document that has any tokens; -1: none */
    uint32_t workers;        /* at least 1                                          */
} encode_how_t;

enum { ENCODED_BLANK, ENCODED_TEXT, ENCODED_REJECTED };

typedef struct encoded_line {
    uint64_t number;   /* from 1 in its file */
    uint32_t file;     /* index into paths   */
    uint32_t result;   /* ENCODED_*          */
    size_t at, length; /* of its bytes in the batch */
    size_t tokens;     /* ENCODED_TEXT: the next that many of ids */
    size_t reason_at;  /* ENCODED_REJECTED: where its sentence stands in reasons */
    bool too_long;
} encoded_line_t;

typedef struct encoded_batch {
    encoded_line_t *lines; /* [count] in input order */
    size_t count;
    token_ids_t ids; /* of all documents, one after the other */
    text_t reasons;  /* NUL-terminated sentences              */
    uint64_t taken;  /* bytes of all files read so far, as stored */

    char *bytes; /* the lines themselves; the workers' to overwrite */
    size_t length, bytes_capacity, line_capacity;
    lh_status_t status; /* of reading or encoding, its sentence in why */
    text_t why;
    bool last, encoded;
} encoded_batch_t;

typedef struct encode_ring encode_ring_t;

lh_status_t encode_ring_start(const encode_how_t *how, encode_ring_t **out) LH_MUST_CHECK;
/* Stops the threads wherever they are and frees all. NULL does nothing. */
void encode_ring_stop(encode_ring_t *ring);

/* Waits for the next batch; NULL behind the last one. A failure of any thread is returned when its
 * batch's turn comes. The batch is the caller's until encode_ring_return. */
lh_status_t encode_ring_next(encode_ring_t *ring, const encoded_batch_t **out) LH_MUST_CHECK;
void encode_ring_return(encode_ring_t *ring);

/* [count] sizes and digests of the files; after encode_ring_next gave NULL. */
const line_file_t *encode_ring_files(const encode_ring_t *ring);

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

#endif
