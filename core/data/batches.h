/* data/batches.h - the training data of a job as a pure function of the global sample index: which
 * rank asks, and what was asked before, changes nothing, so a resume needs only the index.
 *
 * A run asks for samples by their number: step s of a job with batches of B sequences reads samples
 * s x B to (s + 1) x B, of which batch_share says who reads which. A resumed run asks for the same
 * numbers, one on more ranks for the same ones shared out otherwise. */
#ifndef DATA_BATCHES_H
#define DATA_BATCHES_H

#include <base/status.h>
#include <config/job.h>

enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST };

/* What decides the data of a split; all is the caller's. */
typedef struct batches_how {
    const job_data_t *data;
    /* Of the pipeline: data sets with relative names lie in it. */
    const char *folder;
    uint32_t split;    /* SPLIT_*                                                  */
    uint64_t sequence; /* tokens of a sample                                       */
    uint32_t phase;    /* PHASE_*: sft and dpo read sets of conversations, by packs.h */
    /* How many samples will be asked for. It decides the epochs and with them the order: the same
     * number must be given when a run is resumed. 0: each sample once. */
    uint64_t samples;
    uint32_t vocab; /* ids are below this                                       */
    /* An id that ends a document inside of a sequence of the set too, so that rows with documents
     * apart are cut there; -1: none does. */
    int32_t eod;
    /* Another split of the same job: what it has open is neither checked nor read again. NULL:
     * none. */
    const struct batches *beside;
} batches_how_t;

/* Open data sets of one split and the order of their samples. For one thread at a time, as a sample
 * is read into memory of its own. */
typedef struct batches batches_t;

/* Opens all sets of the split, checks them against their prepare.json and makes their order. */
lh_status_t batches_open(const batches_how_t *how, batches_t **out) LH_MUST_CHECK;
void batches_close(batches_t *b); /* NULL does nothing */

/* Of the tokens of all its data sets: indexed_digest of each. */
lh_status_t batches_digest(const batches_t *b, uint64_t *out) LH_MUST_CHECK;

uint64_t batches_samples(const batches_t *b); /* sample indices are below this */

/* The most documents that any sample of this order touches, by the set's sequences: a bound for
 * batch_rows_t.max_documents = rows * this, as long as no eod stands inside a sequence. */
uint64_t batches_documents_per_sample(const batches_t *b);

/* What a model needs of `rows` samples, row after row; the caller's memory. With documents = joined
 * a row is one segment. With apart a document is one: positions restart, starts has a row for each,
 * and the weight of a document's last token, whose label belongs to the next, is 0. In phase sft a
 * row is documents, each whole, and what is left behind them; weights are 1 for labels of answers. In
 * phase dpo it is pairs of documents, and weights of the second's answers are -1. */
typedef struct batch_rows {
    int32_t *tokens, *labels, *positions; /* [rows * sequence] */
    float *weights;                       /* [rows * sequence] 1, 0 or -1 */
    int32_t *starts;                      /* [max_documents + 1], padded with rows * sequence */
    uint64_t max_documents;
} batch_rows_t;

/* Samples [first, first + rows). [serial] */
lh_status_t batches_fill(batches_t *b, uint64_t first, uint64_t rows,
                         const batch_rows_t *out) LH_MUST_CHECK;

/* Rows [used, rows) become padding behind `used` filled ones: token 0, weight 0, each a document of
 * its own as long as there is room for it. */
void batches_pad(const batches_t *b, uint64_t used, uint64_t rows, const batch_rows_t *out);

/* True: every token weighs 1, so that the sum over a batch is known without reading it. */
bool batches_weigh_all(const batches_t *b);

/* Which sequences of the global batch a rank takes, and in how many micro-batches: the batch is the
 * same list for every number of ranks, each takes a piece of it. All ranks have the same number of
 * micro-batches of the same number of rows, as they meet in collectives; rows that a rank has no
 * sequence for are padding (batches_pad). */
typedef struct batch_share {
    uint64_t first, count; /* sequences of the batch that are this rank's */
    uint64_t rows;         /* sequences of a micro-batch, at most [train] micro_batch */
    uint64_t micro_batches;
} batch_share_t;

/* Pieces differ by one sequence at most; micro-batches are as few as micro_batch allows, and as even. */
batch_share_t batch_share(uint64_t batch, uint64_t micro_batch, uint32_t rank, uint32_t ranks);
/* Sequences of micro-batch i that are no padding; they begin at first + i * rows. */
uint64_t batch_share_rows(const batch_share_t *s, uint64_t micro_batch);

/* ---- which batches are left out ----
 *
 * A cursor is the global index of the first sample that no batch has taken yet. Batch n, from 1, of
 * B sequences is samples (n - 1) x B to n x B; those that [data] skip names are passed over, and the
 * next one is taken in their place. So a step's data follow from the cursor behind the step before,
 * which a checkpoint holds. */

enum { BATCH_SKIPS = 64 };

/* Of batches, from 1 and inclusive; ascending and apart. */
typedef struct batch_skips {
    struct {
        uint64_t first, last;
    } rows[BATCH_SKIPS];
    uint32_t count;
} batch_skips_t;

/* "1000..1200, 4000..4010, 5000"; NULL: none. */
lh_status_t batch_skips_parse(const char *text, batch_skips_t *out) LH_MUST_CHECK;
/* Where the next batch begins, for a cursor: there, or behind what it would touch of a range. */
uint64_t batch_skips_next(const batch_skips_t *s, uint64_t cursor, uint64_t batch);
/* The cursor behind `steps` batches more. */
uint64_t batch_skips_after(const batch_skips_t *s, uint64_t cursor, uint64_t steps, uint64_t batch);

#endif
