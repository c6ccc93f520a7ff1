/* checkpoint/tensor_stream.h - the elements of a stored tensor in their order, some at a time, for
 * who goes through one that is larger than the memory that it may take.
 *
 * A hash is of a whole stored part, so it is known to be right only when the last element of the
 * part has been read: what was made of the elements before counts for nothing until the stream has
 * come to its end. */
#ifndef CHECKPOINT_TENSOR_STREAM_H
#define CHECKPOINT_TENSOR_STREAM_H

#include <checkpoint/checkpoint.h>

/* [serial], as the checkpoint that it reads. */
typedef struct tensor_stream tensor_stream_t;

/* Elements [begin, begin + count) of a tensor, in row-major order. The checkpoint and the tensor are
 * borrowed until tensor_stream_close. Takes a MiB of memory where the stored parts are ranges of the
 * tensor, as all are that a run or an import has saved; else that of the elements. */
lh_status_t tensor_stream_open(checkpoint_t *c, const manifest_tensor_t *t, uint64_t begin,
                               uint64_t count, tensor_stream_t **out) LH_MUST_CHECK;
/* The next `count` elements as F32, at most those that are left. With the last element of a part it
 * is checked against its hash: LH_CORRUPT; with the last of the stream, all parts that it has read of. */
lh_status_t tensor_stream_next(tensor_stream_t *s, float *out, uint64_t count) LH_MUST_CHECK;
void tensor_stream_close(tensor_stream_t *s); /* NULL does nothing */

#endif
