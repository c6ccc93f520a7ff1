/* format/safetensors.h - reads safetensors files: header checked whole before a byte of data is
 * believed, tensors found by name, bytes read with pread. And writes them: the header first, then
 * tensors in any order and in pieces.
 *
 * A file is 8 bytes of length, a header of JSON with so many bytes that says each tensor's dtype,
 * shape and place, and the data, which fill the rest without a hole. The rules are those of the
 * reference reader; the limits are our own.
 *
 * A file in full, of one tensor with four zeros:
 *
 *     8 bytes     88, little-endian
 *     88 bytes    {"__metadata__":{"format":"pt"},
 *                 "w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}     on one line
 *     16 bytes    0 */
#ifndef FORMAT_SAFETENSORS_H
#define FORMAT_SAFETENSORS_H

#include <longhaul/tensor.h>

#include <base/status.h>

/* Our own limits. A header may have more dimensions than our tensors (LH_MAX_RANK), so that what is
 * only listed or checked is not refused; names of real models are far shorter than the limit. */
enum { SAFETENSORS_RANK = 8, SAFETENSORS_NAME = 512 /* bytes of a tensor's name */ };
enum { SAFETENSORS_USUAL = 1000000 /* tensors, where no limit is given */ };

/* What a header may say; number is the core's dtype where it has one (LH_DTYPE_NONE: only carried).
 */
typedef struct safetensors_dtype {
    const char *name; /* "BF16" */
    /* Of an element; fewer than 8 for the smallest. */
    uint32_t bits;
    lh_dtype_t number;
} safetensors_dtype_t;

const safetensors_dtype_t *safetensors_dtype_named(const char *name); /* NULL: unknown */
const safetensors_dtype_t *safetensors_dtype(lh_dtype_t number);      /* NULL: none    */
/* Says which tensor has a dtype of no such name, and which there are; ours: those with a number. */
lh_status_t safetensors_dtype_refuse(const char *path, const char *tensor, const char *found,
                                     bool ours) LH_MUST_CHECK;

/* A tensor of a file that was opened; it lives as long as the file. */
typedef struct safetensor {
    const char *name;
    const safetensors_dtype_t *dtype;
    uint32_t rank; /* 0: a scalar */
    uint64_t shape[SAFETENSORS_RANK];
    /* elements is 1 for a scalar and 0 where a dimension is */
    uint64_t elements, bytes;
    uint64_t offset; /* in the file */
} safetensor_t;

/* What a file may ask for before it is refused: it may be a stranger's. */
typedef struct safetensors_limits {
    /* Longest header that is read. 0: 16 MiB; never more than 100,000,000. */
    uint64_t header_bytes;
    /* The most that a file may have. 0: SAFETENSORS_USUAL. */
    uint64_t tensors;
    /* A symbolic link in the place of the file is refused. */
    bool refuses_links;
} safetensors_limits_t;

/* An open file. It is only read after safetensors_open, by any thread: reads name their place. */
typedef struct safetensors {
    char *path;
    int fd;
    uint64_t file_bytes, header_bytes;
    uint64_t header_hash; /* XXH3-64 of the header's text */
    /* [count] in the order of their data. */
    safetensor_t *tensors;
    uint32_t count;
    /* [count] indices into tensors, sorted by name. */
    uint32_t *by_name;
    /* The parsed JSON, which owns the tensors' names. */
    struct yyjson_doc *header;
} safetensors_t;

/* limits NULL: the defaults. Every refusal names the file and, where there is one, the tensor. */
lh_status_t safetensors_open(const char *path, const safetensors_limits_t *limits,
                             safetensors_t **out) LH_MUST_CHECK;
void safetensors_close(safetensors_t *s); /* NULL does nothing */
const safetensor_t *safetensors_find(const safetensors_t *s, const char *name); /* NULL: none */
/* `bytes` of a tensor's data from byte `at` of it. */
lh_status_t safetensors_read(const safetensors_t *s, const safetensor_t *t, uint64_t at, void *to,
                             uint64_t bytes) LH_MUST_CHECK;
/* A value of __metadata__; NULL: none. */
const char *safetensors_metadata(const safetensors_t *s, const char *key);

/* The writer is for files whose names and shapes are known before their data: header first, then
 * tensors in any order and in pieces. A row is a tensor that is to be written. */
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

/* What a manifest says of a file. */
typedef struct safetensors_written {
    uint64_t file_bytes;
    uint64_t header_hash; /* as safetensors_t has it */
} safetensors_written_t;

/* Creates the file (one that exists is refused), gives it its full size, writes the header. The
 * data lie in the order of the rows, the first one 8-byte aligned. */
lh_status_t safetensors_create(const char *path, const safetensors_row_t *rows, uint32_t row_count,
                               const safetensors_pair_t *pairs, uint32_t pair_count,
                               safetensors_writer_t **out) LH_MUST_CHECK;
/* Bytes [at, at + bytes) of a row's data; no byte twice, as only their number is counted. One
 * thread at a time. */
lh_status_t safetensors_write(safetensors_writer_t *w, uint32_t row, uint64_t at, const void *from,
                              uint64_t bytes) LH_MUST_CHECK;
/* Ends a file whose bytes were all written: fsync, close. out may be NULL. Frees w whatever it
 * returns. */
lh_status_t safetensors_finish(safetensors_writer_t *w, safetensors_written_t *out) LH_MUST_CHECK;
/* Closes and leaves the unfinished file to whoever removes its folder. NULL does nothing. */
void safetensors_abandon(safetensors_writer_t *w);

/* Bytes of a row's data; false: 2^63 or more. */
bool safetensors_row_bytes(const safetensors_row_t *row, uint64_t *out);

#endif
