/* data/pair_record.h - what prepare.json says of the pair of token files that it made: the length
 * and SHA-256 of each. The format of the pair itself has no checksum. */
#ifndef DATA_PAIR_RECORD_H
#define DATA_PAIR_RECORD_H

#include <format/json_writer.h>

#include <base/digest.h>

typedef struct pair_sum { /* of one file */
    uint64_t bytes;
    char sha256[SHA256_TEXT];
} pair_sum_t;

typedef struct pair_sums {
    pair_sum_t idx, bin;
} pair_sums_t;

typedef struct pair_record {
    char *summary;   /* path of the prepare.json that tells of the pair; NULL: none does */
    char *idx, *bin; /* paths of the pair's files */
    pair_sums_t sums;
} pair_record_t;

/* "pair" in the prepare.json of `folder`: output is the pair's prefix. */
void pair_record_put(json_writer_t *w, const char *folder, const char *output,
                     const pair_sums_t *sums);

/* What the prepare.json beside the pair says of it, or that of the pipeline's `folder` (NULL:
 * none). One of an older version, and a pair that was not made by prepare, have no record:
 * out->summary is NULL then. */
lh_status_t pair_record_find(const char *prefix, const char *folder,
                             pair_record_t *out) LH_MUST_CHECK;
/* That of the pair which the prepare.json in a folder tells of. */
lh_status_t pair_record_read(const char *folder, pair_record_t *out) LH_MUST_CHECK;
void pair_record_free(pair_record_t *r);

/* The index is read whole, of the .bin only its length is looked at. LH_CORRUPT: not as it was
 * made. Without a record all is well. */
lh_status_t pair_record_check(const pair_record_t *r) LH_MUST_CHECK;
/* Both are read whole. */
lh_status_t pair_record_check_idx(const pair_record_t *r) LH_MUST_CHECK;
lh_status_t pair_record_check_bin(const pair_record_t *r) LH_MUST_CHECK;

#endif
