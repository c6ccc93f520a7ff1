/* ib_seal.h - AES-128-GCM over frames of `security = private`: keys, heads, payloads. No verbs.
 *
 * A frame is a chunk of a message with a head that says where it belongs: [head 32][its tag 16]
 * [payload's tag 16][payload], head and payload encrypted apart. So a reader knows that the head is
 * the peer's before it decrypts a payload to where the head says. */
#ifndef IB_SEAL_H
#define IB_SEAL_H

#include "ib_prove.h"

enum {
    IB_SEAL_KEY = 16,
    IB_SEAL_TAG = 16,
    IB_SEAL_HEAD = 32,
    IB_SEAL_OVER = IB_SEAL_HEAD + 2 * IB_SEAL_TAG, /* bytes of a frame beside its payload */
    IB_SHARE_BYTES = 32,                           /* X25519 */
};

typedef struct ib_key { /* for 65536 frames of one direction */
    uint8_t key[IB_SEAL_KEY], nonce[IB_NONCE_BYTES];
} ib_key_t;

typedef struct ib_keys { /* of one direction of one connection */
    uint8_t secret[IB_SESSION_BYTES];
    ib_key_t now;
    uint64_t generation; /* of `now`, from 1 on; 0: there is none yet */
} ib_keys_t;

typedef struct ib_frame { /* a head */
    uint64_t message, offset;
    uint32_t bytes, index, tag; /* of the payload; of the chunk in its message; of the message */
    bool last;                  /* no chunk of the message has a larger index */
} ib_frame_t;

/* Memory for so many bytes of frames, all 0; NULL: errno says why not. From 2 MiB on in huge pages, where the kernel
 * gives any: frames are passed through in turn, so that of 4 KiB each page's address is looked up anew. */
uint8_t *ib_seal_map(uint64_t bytes);
void ib_seal_unmap(uint8_t *frames, uint64_t bytes); /* NULL does nothing */

typedef struct ib_cipher ib_cipher_t; /* of one thread */

ib_cipher_t *ib_cipher_new(void); /* NULL: no memory */
void ib_cipher_free(ib_cipher_t *x);

/* A key pair for one connection, of 32 random bytes. False: the library failed. */
bool ib_share_make(const uint8_t random[IB_SHARE_BYTES], uint8_t out[IB_SHARE_BYTES]);
/* The keys of both directions, from both ends' shares and the session that both have proven: who
 * learns the job's key later opens nothing that was recorded before. False: the peer's share is
 * none, or the library failed. */
bool ib_keys_agree(const uint8_t session[IB_SESSION_BYTES], const uint8_t random[IB_SHARE_BYTES],
                   const uint8_t mine[IB_SHARE_BYTES], const uint8_t theirs[IB_SHARE_BYTES],
                   bool dials, ib_keys_t *out, ib_keys_t *in);
/* The key for that frame, in k->now. */
bool ib_keys_at(ib_keys_t *k, uint64_t sequence);

/* sequence: of the frame in its direction; no two frames have the same. to: bytes + IB_SEAL_OVER. */
bool ib_seal_frame(ib_cipher_t *x, const ib_key_t *key, uint64_t sequence, const ib_frame_t *head,
                   const void *from, uint8_t *to);
/* False: it was not sealed with this key for this place. What the frame lies in may be written by
 * others meanwhile: each byte of it is read once. */
bool ib_open_head(ib_cipher_t *x, const ib_key_t *key, uint64_t sequence, const uint8_t *frame,
                  ib_frame_t *out);
/* `to` holds the payload only where it is true, and anything else where it is not. */
bool ib_open_payload(ib_cipher_t *x, const ib_key_t *key, uint64_t sequence, const uint8_t *frame,
                     uint32_t bytes, void *to);

#endif
