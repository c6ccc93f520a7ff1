/* checkpoint/safetensors_writer.h - writes a safetensors file whose names and shapes are known
 * before its data: header first, then tensors in any order and in pieces. */
#ifndef CHECKPOINT_SAFETENSORS_WRITER_H
#define CHECKPOINT_SAFETENSORS_WRITER_H

#include <checkpoint/safetensors.h>

typedef struct safetensors_row {
    const char *name;
    lh_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[LH_MAX_RANK];
} safetensors_row_t;

typedef struct safetensors_pair { /* of __metadata__; {"format": "pt"} is always there */
    const char *key, *value;
} safetensors_pair_t;

typedef struct safetensors_writer safetensors_writer_t;

typedef struct safetensors_written {
    uint64_t file_bytes;
    uint64_t header_hash; /* as safetensors_t has it */
} safetensors_written_t;

/* Creates the file (one that exists is refused), gives it its full size, writes the header. The
 * data lie in the order of the rows, the first one 8-byte aligned. */
lh_status_t safetensors_create(const char *path, const safetensors_row_t *rows, uint32_t row_count,
                               const safetensors_pair_t *pairs, uint32_t pair_count,
                               safetensors_writer_t **out) LH_MUST_CHECK;
lh_status_t safetensors_write(safetensors_writer_t *w, uint32_t row, uint64_t at, const void *from,
                              uint64_t bytes) LH_MUST_CHECK;
/* All bytes were written: fsync, close. out may be NULL. Frees w whatever it returns. */
lh_status_t safetensors_finish(safetensors_writer_t *w, safetensors_written_t *out) LH_MUST_CHECK;
/* Closes and leaves the unfinished file to whoever removes its folder. NULL does nothing. */
void safetensors_abandon(safetensors_writer_t *w);

/* Bytes of a row's data; false: more than 2^63. */
bool safetensors_row_bytes(const safetensors_row_t *row, uint64_t *out);

#endif
