/* session/evaluation.h - losses of data that is not trained on: a split by samples, or documents
 * one by one, packed side by side. Sums run in double, token by token, in order.
 *
 * The scoring program gives three numbers a token: largest logit, sum of exponentials, logit of the
 * label. The loss is made of them here in double, since a sum over a whole split in FP32 would lose
 * what models differ by. */
#ifndef SESSION_EVALUATION_H
#define SESSION_EVALUATION_H

#include <data/batches.h>
#include <session/session.h>
#include <session/train_comm.h>

typedef struct evaluation evaluation_t;

/* rows is the length of a sequence in tokens. max_documents bounds the table of document starts and
 * so how many documents are packed side by side. */
typedef struct evaluation_how {
    session_t *session;
    uint64_t sequences, rows; /* of one run: sequences of rows tokens                       */
    uint64_t max_documents;   /* in one run                                                 */
    bool narrow_logits;       /* as training has them: program.h                            */
    uint32_t document_rows;   /* every document has as many; 0: not known                   */
    bool pairs; /* of a split in phase dpo: losses are of pairs, which stand in place of tokens */
    const train_ranks_t *ranks; /* who share the runs of a split; NULL: alone */
} evaluation_how_t;

/* Before engine_build: makes the scoring program. */
lh_status_t evaluation_new(const evaluation_how_t *how, evaluation_t **out) LH_MUST_CHECK;
void evaluation_free(evaluation_t *e); /* NULL does nothing */

/* Adding two of them is adding their fields; the mean loss is nll / tokens, and what it is over no
 * tokens the caller decides. */
typedef struct evaluation_sum {
    double nll; /* natural log, summed over tokens; of pairs their loss */
    uint64_t tokens;
} evaluation_sum_t;

/* The first `runs` runs of a split (0: all of them; what does not fill a run is left out, unless
 * there would be none). Run i is rank i modulo their number's; sums of runs are added in the order
 * of runs, so that the result is the same bits for any number of ranks. Every rank takes as many
 * turns as every other and gets the result. Allocates on its first call, or where it has more runs
 * than before, and never in between. */
lh_status_t evaluation_split(evaluation_t *e, batches_t *data, uint64_t runs,
                             evaluation_sum_t *out) LH_MUST_CHECK;

/* The first id has no loss, as nothing comes before it: begin a document with a token that stands
 * for its start if its first word is to count. */
typedef struct evaluation_document { /* ids [count]; the loss is of ids 1 to count - 1 */
    const int32_t *ids;
    uint64_t count;
    uint64_t context; /* ids at the front that have no loss, though they are read: of a prompt */
} evaluation_document_t;

/* Documents in order; each(context, i, sum) sees every one. One with more than sequences * rows + 1
 * ids is refused. A document of fewer than 2 ids has no loss: 0 tokens. */
lh_status_t evaluation_documents(evaluation_t *e, const evaluation_document_t *documents,
                                 uint64_t count,
                                 void (*each)(void *context, uint64_t document,
                                              const evaluation_sum_t *sum),
                                 void *context) LH_MUST_CHECK;

#endif
