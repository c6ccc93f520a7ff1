/* data/packs.h - conversations in rows: which documents of a set a row holds, each whole and apart
 * from the others, and which of its tokens are trained on.
 *
 * A document of such a set has several sequences: what is no answer, an answer, what is none, and
 * so on (chat.h). A row is `sequence` tokens that are read and as many that are predicted, so a
 * conversation of n tokens takes n - 1 places of it: the last token is only predicted. The order is a
 * pure function of the set's lengths, the sequence, the number of rows and the seed. */
#ifndef DATA_PACKS_H
#define DATA_PACKS_H

#include <config/job.h>
#include <data/indexed.h>

/* What decides the order; copied by packs_new. */
typedef struct packs_how {
    indexed_t *set;      /* must outlive the packs */
    const char *name;    /* for messages: "the valid split of corpus" */
    uint64_t first, end; /* documents of the set that take part: a split's */
    uint64_t sequence;
    uint64_t wanted; /* rows that will be asked for; decides the epochs. 0: one epoch */
    uint64_t seed;
    bool pairs;        /* documents are pairs */
    bool together;     /* as many documents in a row as fit; else one */
    uint32_t too_long; /* TOO_LONG_*: of a document that takes more than a row */
} packs_how_t;

/* An order that was made. Takes 4 bytes a document and epoch and 12 a row. */
typedef struct packs {
    indexed_t *set;
    uint64_t sequence;
    uint64_t count; /* rows; at least as many as were wanted */
    bool pairs;
    uint64_t most;       /* conversations in a row, at most */
    uint32_t *documents; /* documents of row after row */
    uint64_t *rows;      /* [count + 1] where each row's begin in documents */
    uint32_t *shuffle;   /* [count] row i is rows[shuffle[i]] */
    uint64_t cut,
        left_out; /* of an epoch: documents that are cut; that have nothing to train on, or
                               are too long */
    int32_t *ids; /* of the document at hand */
} packs_t;

/* Refused: a set whose documents have no answers, and what too_long says. */
lh_status_t packs_new(const packs_how_t *how, packs_t **out) LH_MUST_CHECK;
void packs_free(packs_t *p); /* NULL does nothing */

/* A row as the caller's memory: [sequence] each, and where its conversations begin, [most + 1] at most;
 * what is left behind them is one more, of tokens 0 and weights 0. */
typedef struct packs_row {
    int32_t *tokens, *labels, *positions;
    float *weights; /* 1 where the label is an answer's, -1 where it is a rejected one's, else 0 */
    uint32_t *begins;
    uint32_t begin_count;
} packs_row_t;

/* Row i. For one thread at a time. */
lh_status_t packs_read(packs_t *p, uint64_t i, packs_row_t *row) LH_MUST_CHECK;

#endif
