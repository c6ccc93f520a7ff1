/* base/digest.h - SHA-256, which says what a file, a manifest or a configuration is, where somebody
 * may want it to pass for another; and XXH3-64, many times as fast, for tensors, where only
 * chance changes bytes. */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include <base/status.h>

enum { SHA256_TEXT = 65 }; /* 64 hexadecimal digits and NUL */

/* A running SHA-256, of bytes that come in parts; of one thread at a time. */
typedef struct digest digest_t;
lh_status_t digest_new(digest_t **out) LH_MUST_CHECK;
void digest_add(digest_t *d, const void *bytes, size_t length);
/* Writes lower-case hexadecimal and frees d: there is no other way to end it. */
void digest_end(digest_t *d, char out[SHA256_TEXT]);

/* The SHA-256 of bytes in memory; of a file: file_digest of base/file.h. [any thread] */
lh_status_t digest_of(const void *bytes, size_t length, char out[SHA256_TEXT]) LH_MUST_CHECK;

/* XXH3 of 64 bits with seed 0: the same on every processor. [any thread] */
uint64_t digest_xxh3(const void *bytes, size_t length);

/* The same of bytes that come in parts; of one thread at a time. */
typedef struct digest_xxh3_run digest_xxh3_run_t;
lh_status_t digest_xxh3_new(digest_xxh3_run_t **out) LH_MUST_CHECK;
void digest_xxh3_add(digest_xxh3_run_t *d, const void *bytes, size_t length);
/* Of all since digest_xxh3_new or the last call of this; d is empty again. */
uint64_t digest_xxh3_take(digest_xxh3_run_t *d);
void digest_xxh3_free(digest_xxh3_run_t *d); /* NULL does nothing */

#endif
