/* checkpoint/safetensors.h - reads safetensors files: header checked whole before a byte of data is
 * believed, tensors found by name, bytes read with pread. The rules are the reference reader's. */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H

#include <base/status.h>

#include <longhaul/tensor.h>

enum { SAFETENSORS_RANK = 8, SAFETENSORS_NAME = 512 /* bytes of a tensor's name */ };
enum { SAFETENSORS_USUAL = 1000000 /* tensors, where no limit is given */ };

/* What a header may say; number is the core's dtype where it has one (LH_DTYPE_NONE: only carried).
 */
typedef struct safetensors_dtype {
    const char *name; /* "BF16" */
    uint32_t bits;    /* of an element */
    lh_dtype_t number;
} safetensors_dtype_t;

const safetensors_dtype_t *safetensors_dtype_named(const char *name); /* NULL: unknown */
const safetensors_dtype_t *safetensors_dtype(lh_dtype_t number);      /* NULL: none    */
/* Says which tensor has a dtype of no such name, and which there are; ours: those with a number. */
lh_status_t safetensors_dtype_refuse(const char *path, const char *tensor, const char *found,
                                     bool ours) LH_MUST_CHECK;

typedef struct safetensor {
    const char *name;
    const safetensors_dtype_t *dtype;
    uint32_t rank; /* 0: a scalar */
    uint64_t shape[SAFETENSORS_RANK];
    uint64_t elements, bytes;
    uint64_t offset; /* in the file */
} safetensor_t;

typedef struct safetensors_limits {
    uint64_t header_bytes; /* 0: 16 MiB; never more than 100,000,000 */
    uint64_t tensors;      /* 0: SAFETENSORS_USUAL                   */
    bool refuses_links;    /* a symbolic link in the place of the file  */
} safetensors_limits_t;

typedef struct safetensors {
    char *path;
    int fd;
    uint64_t file_bytes, header_bytes;
    uint64_t header_hash;  /* XXH3-64 of the header's text */
    safetensor_t *tensors; /* in the order of their data */
    uint32_t count;
    uint32_t *by_name; /* indices into tensors, sorted by name */
    void *header;      /* the parsed JSON, owner of the names  */
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

#endif
