/* ib_prove.h - the level `known`: both ends prove the job's key when they meet.
 *
 * The end that dials asks first, with a nonce; the listener rejects that request with a nonce of
 * its own; the request that follows, and its answer, carry MACs under a key that both nonces and
 * the pair's key make. So neither end's proof can be one that was heard before, and the listener
 * spends nothing but a row on whoever asks. Later queue pairs of the connection prove themselves
 * under the same key, with their index and turn, each turn once.
 *
 * What follows is not sealed: who can write into the fabric can change it. */
#ifndef IB_PROVE_H
#define IB_PROVE_H

#include "ib_ring.h"

enum { IB_SESSION_BYTES = 32 };

/* The key of one connection. False: the job has no secret. */
bool ib_session(const lh_host_t *host, uint32_t peer, const uint8_t dials[IB_NONCE_BYTES],
                const uint8_t listens[IB_NONCE_BYTES], uint8_t out[IB_SESSION_BYTES]);
/* The MAC of a greeting, for its last bytes; replies: by the end that listens. */
void ib_session_sign(const uint8_t session[IB_SESSION_BYTES], bool replies,
                     uint8_t greeting[IB_GREETING_BYTES]);
bool ib_session_signed(const uint8_t session[IB_SESSION_BYTES], bool replies,
                       const uint8_t greeting[IB_GREETING_BYTES]);
/* HMAC-SHA-256 under the session's key; zeros where the library fails. */
void ib_session_mac(const uint8_t session[IB_SESSION_BYTES], const void *text, size_t bytes,
                    uint8_t out[IB_SESSION_BYTES]);
/* In a time that does not tell where they differ. */
bool ib_same(const void *a, const void *b, size_t bytes);
/* A memset that the compiler may not leave out. */
void ib_wipe(void *secret, size_t bytes);

#endif
