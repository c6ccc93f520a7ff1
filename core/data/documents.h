/* data/documents.h - the documents of a JSONL file as token ids, for evaluation one at a time. */
#ifndef DATA_DOCUMENTS_H
#define DATA_DOCUMENTS_H

#include <data/tokenizer.h>

typedef struct documents_how {
    const char *path;
    const char *key;
    const tokenizer_t *tokenizer;
    uint64_t line_bytes; /* longest line that is accepted           */
    bool bos;            /* put the tokenizer's BOS before each     */
    uint64_t tokens;     /* a longer document is cut to this, BOS counted; 0: no limit */
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
