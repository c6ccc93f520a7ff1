/* data/indexed_writer.h - writes Megatron's .bin and .idx, byte for byte as its preprocess_data
 * does, in fixed memory. Nothing stands under the final names before commit. */
#ifndef DATA_INDEXED_WRITER_H
#define DATA_INDEXED_WRITER_H

#include <data/pair_record.h>

typedef struct indexed_writer indexed_writer_t;

/* prefix: without .bin and .idx; files grow as PREFIX.{bin,idx,lengths}.tmp. vocab decides the
 * dtype and bounds the ids. */
lh_status_t indexed_writer_open(const char *prefix, uint32_t vocab,
                                indexed_writer_t **out) LH_MUST_CHECK;

/* One document of one sequence. An empty one is a document boundary without a sequence. */
lh_status_t indexed_writer_add(indexed_writer_t *w, const int32_t *ids,
                               uint64_t count) LH_MUST_CHECK;

/* Writes what is left, the index too, and tells what the files are now. Nothing can be added then.
 * Commit does it where it was not done. */
lh_status_t indexed_writer_finish(indexed_writer_t *w, pair_sums_t *out) LH_MUST_CHECK;
/* Makes the pair appear: synced, then renamed; an older pair is replaced, its index taken away
 * first, so that no index ever stands beside another's tokens. Frees w, whatever is returned. */
lh_status_t indexed_writer_commit(indexed_writer_t *w) LH_MUST_CHECK;
/* Leaves nothing behind. Frees w; NULL does nothing. */
void indexed_writer_discard(indexed_writer_t *w);

#endif
