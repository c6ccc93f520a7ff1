/* base/digest.h - SHA-256 (identity of files, manifests, configurations) and XXH3-64 (tensors). */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include <base/status.h>

enum { SHA256_TEXT = 65 }; /* 64 hexadecimal digits and NUL */

typedef struct sha256 sha256_t; /* a running digest */
lh_status_t sha256_new(sha256_t **out) LH_MUST_CHECK;
void sha256_add(sha256_t *s, const void *bytes, size_t length);
/* Writes lower-case hexadecimal and frees s. */
void sha256_end(sha256_t *s, char out[SHA256_TEXT]);

lh_status_t sha256_of(const void *bytes, size_t length, char out[SHA256_TEXT]) LH_MUST_CHECK;
lh_status_t sha256_file(const char *path, char out[SHA256_TEXT]) LH_MUST_CHECK;

uint64_t xxh3(const void *bytes, size_t length);

#endif
