/* train/batch_dump.h - the first global batches of a run as a safetensors file, for a reference run
 * in another framework. */
#ifndef TRAIN_BATCH_DUMP_H
#define TRAIN_BATCH_DUMP_H

#include <data/batches.h>

/* tokens, labels I32 [count, batch, sequence] and weights F32 of the same shape. An older file is
 * replaced. */
lh_status_t batch_dump(const char *path, batches_t *data, uint64_t count, uint64_t batch,
                       uint64_t sequence, uint64_t max_documents) LH_MUST_CHECK;

#endif
