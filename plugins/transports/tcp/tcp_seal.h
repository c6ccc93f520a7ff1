/* tcp_seal.h - AES-128-GCM over frames: one direction of one stream, a key of its own, the nonce is
 * the frame's sequence. proven: everything is only authenticated; private: payloads are encrypted
 * too. A frame that was changed, repeated or moved to another place of the stream fails its tag. */
#ifndef TCP_SEAL_H
#define TCP_SEAL_H

#include <longhaul/host.h>

enum { SECRET_BYTES = 32 };

typedef struct seal seal_t; /* of one thread, as its stream is */

/* opens: it checks what came; else it seals what leaves. secret is copied. */
lh_status_t seal_new(const lh_host_t *host, const uint8_t secret[SECRET_BYTES], bool encrypts,
                     bool opens, seal_t **out);
/* A memset that the compiler may not leave out. */
void secret_wipe(void *bytes, size_t length);
void seal_free(seal_t *s);
bool seal_encrypts(const seal_t *s);

/* A frame: its head, its payload in any number of pieces, its tag. Where it encrypts, from and to
 * may be the same; else `to` is not written. False: the library failed, or the tag is wrong. */
bool seal_begin(seal_t *s, uint64_t sequence, const uint8_t *head, size_t bytes);
bool seal_add(seal_t *s, const uint8_t *from, uint8_t *to, size_t bytes);
bool seal_end(seal_t *s, uint8_t tag[16]);
bool seal_check(seal_t *s, const uint8_t tag[16]);

#endif
