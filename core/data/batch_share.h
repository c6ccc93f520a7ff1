/* data/batch_share.h - which sequences of the global batch a rank takes, and in how many passes:
 * the batch is the same list for every number of ranks, each takes a piece of it. */
#ifndef DATA_BATCH_SHARE_H
#define DATA_BATCH_SHARE_H

#include <base/status.h>

/* All ranks make the same number of passes over the same number of rows; rows that a rank has no
 * sequence for are padding (batches_pad). */
typedef struct batch_share {
    uint64_t first, count; /* sequences of the batch that are this rank's */
    uint64_t rows;         /* sequences of a pass, at most micro_batch    */
    uint64_t passes;
} batch_share_t;

batch_share_t batch_share(uint64_t batch, uint64_t micro_batch, uint32_t rank, uint32_t ranks);
/* Sequences of pass i that are no padding; they begin at first + i * rows. */
uint64_t batch_share_rows(const batch_share_t *s, uint64_t pass);

#endif
