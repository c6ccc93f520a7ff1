/* control/secret.h - the key of a job: 32 random bytes in a file that only its owner can read, from
 * which every other key is derived. It is never handed out, logged, or put on a command line. */
#ifndef CONTROL_SECRET_H
#define CONTROL_SECRET_H

#include <base/status.h>

/* Opaque: no caller can copy the bytes by mistake. Its page is left out of core dumps. */
typedef struct secret secret_t;

/* Reads the file; it is made (mode 0600, whole or not at all) where it is not there and `make` is
 * set. Refused: other modes or owners, other lengths than 64 hex digits, all bytes equal. */
lh_status_t secret_open(const char *path, bool make, secret_t **out) LH_MUST_CHECK;
/* What secret_open would refuse of what is there now; nothing is made. */
lh_status_t secret_check(const char *path) LH_MUST_CHECK;
/* Reads the file that another machine makes or that is copied here, as soon as it is there and
 * whole: until end_ns on sys()->now_ns; what is no key has two seconds to become one. Says now and
 * then that it waits. */
lh_status_t secret_await(const char *path, uint64_t end_ns, secret_t **out) LH_MUST_CHECK;
/* A new key that lives as long as the job: for ranks of one machine. */
lh_status_t secret_random(secret_t **out) LH_MUST_CHECK;
/* Hands it to processes that are started: a sealed memfd that they read with secret_from_fd. */
lh_status_t secret_share(const secret_t *s, int *fd) LH_MUST_CHECK;
lh_status_t secret_from_fd(int fd, secret_t **out) LH_MUST_CHECK;
void secret_free(secret_t *s); /* wipes it */

/* HKDF-SHA-256 with `purpose`, the epoch and the pair of ranks (in either order) as info. */
lh_status_t secret_derive(const secret_t *s, const char *purpose, uint32_t epoch, uint32_t a,
                          uint32_t b, void *out, size_t bytes) LH_MUST_CHECK;

#endif
