/* tcp_tls.h - proves the job's key on a stream: a TLS 1.3 handshake with an external pre-shared key
 * (psk_dhe_ke, X25519), over memory; then the frames' secrets are exported from it. */
#ifndef TCP_TLS_H
#define TCP_TLS_H

#include <longhaul/host.h>

#include "tcp_seal.h"

typedef struct tls tls_t; /* one handshake; freed once the seals are made of it */

/* One a transport. */
lh_status_t tls_context_new(const lh_host_t *host, void **out);
void tls_context_free(void *context);

/* peer: the rank dialled, or UINT32_MAX at the end that listens, which learns it. */
lh_status_t tls_new(void *context, const lh_host_t *host, uint32_t peer, tls_t **out);
void tls_free(tls_t *t);

/* Takes what whole records there are in `bytes`; *taken of them are used up. LH_OK: done;
 * LH_AGAIN: more is needed. *out and *out_bytes are to be sent in any case, valid until the next
 * call. */
lh_status_t tls_step(tls_t *t, const uint8_t *bytes, size_t length, size_t *taken,
                     const uint8_t **out, size_t *out_bytes);
/* The rank whose key was proven, once tls_step has said LH_OK. */
uint32_t tls_peer(const tls_t *t);
/* Of what the dialler sends, and of what the listener sends. */
lh_status_t tls_secrets(tls_t *t, uint8_t out[2][SECRET_BYTES]);

#endif
