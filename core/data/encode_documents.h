/* data/encode_documents.h - documents of JSONL files as token ids: by several threads in the order
 * of the input, for the stage prepare, and one at a time, for evaluation.
 *
 * In the ring one thread reads, the workers take a batch of lines each, the caller gets batch after
 * batch: what comes out does not depend on the number of threads. A fixed number of batches goes
 * round, so memory does not grow with the input.
 *
 * A batch of the ring belongs to one thread at a time: to the reader that fills it, to the worker
 * that encodes it, to the caller between encode_ring_next and encode_ring_return. */
#ifndef DATA_ENCODE_DOCUMENTS_H
#define DATA_ENCODE_DOCUMENTS_H

#include <base/status.h>
#include <data/chat.h>
#include <data/input_lines.h>
#include <tokenizer/tokenizer.h>

/* What the ring is to do; copied by encode_ring_start, what it points to is not. */
typedef struct encode_how {
    /* [count] files; they, the key and the tokenizer must live as long as the ring. */
    const char *const *paths;
    uint32_t count;
    const char *key;
    uint64_t line_bytes, window_bytes;
    const tokenizer_t *tokenizer;
    /* NULL, or how lines become conversations; key, prepend and append are then not asked. */
    const chat_t *chat;
    /* Ids around a document that has any tokens; -1: none. */
    int32_t prepend, append;
    uint32_t workers; /* at least 1                                          */
} encode_how_t;

/* What came of a line: nothing stood there; it is a document; it is no good, for a reason. */
enum { ENCODED_BLANK, ENCODED_TEXT, ENCODED_REJECTED };

/* A line of a batch, and what came of it. */
typedef struct encoded_line {
    uint64_t number;   /* from 1 in its file */
    uint32_t file;     /* index into paths   */
    uint32_t result;   /* ENCODED_*          */
    size_t at, length; /* of its bytes in the batch */
    /* Of ENCODED_TEXT: how many ids of the batch are this line's; they follow those of the lines
     * before it. */
    size_t tokens;
    /* Of a conversation: how many of the batch's parts are this line's; likewise. Else 0. */
    size_t parts;
    /* Of ENCODED_REJECTED: where its sentence begins in the batch's reasons. */
    size_t reason_at;
    bool too_long;
} encoded_line_t;

/* Some lines that go through the ring together. The upper fields are for whoever takes it out; the
 * lower ones belong to the threads of the ring, one after the other: the reader's, a worker's, the
 * caller's. */
typedef struct encoded_batch {
    encoded_line_t *lines; /* [count] in input order */
    size_t count;
    token_ids_t ids;   /* of all documents, one after the other */
    token_ids_t parts; /* chat_encode's, of all conversations   */
    text_t reasons;    /* NUL-terminated sentences              */
    /* Bytes of all files that were read when the batch was filled, as stored: for progress. */
    uint64_t taken;

    /* The lines themselves, copied out of the reader's buffer. */
    char *bytes;
    size_t length, bytes_capacity, line_capacity;
    /* Of reading or encoding the batch; its sentence is in why. */
    lh_status_t status;
    text_t why;
    bool last, encoded;
} encoded_batch_t;

/* Threads that are at work from encode_ring_start to encode_ring_stop. The functions below are for
 * one thread. */
typedef struct encode_ring encode_ring_t;

/* One thread that reads and `workers` that tokenize. Signals never reach them. */
lh_status_t encode_ring_start(const encode_how_t *how, encode_ring_t **out) LH_MUST_CHECK;
/* Stops the threads wherever they are and frees all. NULL does nothing. */
void encode_ring_stop(encode_ring_t *ring);

/* Waits for the next batch; NULL behind the last one. A failure of any thread is returned when its
 * batch's turn comes. The batch is the caller's until encode_ring_return. */
lh_status_t encode_ring_next(encode_ring_t *ring, const encoded_batch_t **out) LH_MUST_CHECK;
void encode_ring_return(encode_ring_t *ring);

/* [count] sizes and digests of the files; after encode_ring_next gave NULL. */
const line_file_t *encode_ring_files(const encode_ring_t *ring);

/* What documents_open reads. */
typedef struct documents_how {
    const char *path;
    const char *key;
    const tokenizer_t *tokenizer;
    /* longest line that is accepted */
    uint64_t line_bytes;
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
