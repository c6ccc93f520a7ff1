/* ib_seal.c - see ib_seal.h. As in TLS 1.3 (RFC 8446, 5.3) the nonce is a secret one XOR a counter:
 * two numbers for each frame, head and payload. After 65536 frames comes another key, so that none
 * ever seals more than GCM is good for. */
#include "ib_seal.h"

#include <limits.h>
#include <sys/mman.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

enum { GENERATION_LOG2 = 16, PAGE = 4096, LINE = 64 };
enum { PIECE = 8 << 10 };     /* with what it comes of and becomes: in a first cache of 32 KiB */
enum { HUGE_PAGE = 2 << 20 }; /* where a kernel's others have 4 KiB */
enum { FETCHED = 24 };        /* lines of a page: as many as a core has on their way at once */
enum { PART_HEAD = 0, PART_PAYLOAD = 1 };

typedef struct keyed { /* a context of the library for one direction, and the key that it has */
    EVP_CIPHER_CTX *context;
    bool opens, has_key;
    uint8_t key[IB_SEAL_KEY];
} keyed_t;

struct ib_cipher {
    keyed_t seals, opens;
    uint8_t *piece; /* [PIECE] of `room`, from a line's begin on */
    uint8_t room[PIECE + LINE];
};

static bool keyed_make(keyed_t *k, bool opens)
{
    k->opens = opens;
    k->context = EVP_CIPHER_CTX_new();
    return k->context != NULL &&
           EVP_CipherInit_ex(k->context, EVP_aes_128_gcm(), NULL, NULL, NULL, opens ? 0 : 1) == 1;
}

ib_cipher_t *ib_cipher_new(void)
{
    ib_cipher_t *x = OPENSSL_zalloc(sizeof(*x));
    if (x == NULL) return NULL;
    x->piece = x->room + (LINE - (uintptr_t)x->room % LINE) % LINE;
    if (keyed_make(&x->seals, false) && keyed_make(&x->opens, true)) return x;
    ib_cipher_free(x);
    return NULL;
}

void ib_cipher_free(ib_cipher_t *x)
{
    if (x == NULL) return;
    EVP_CIPHER_CTX_free(x->seals.context);
    EVP_CIPHER_CTX_free(x->opens.context);
    OPENSSL_clear_free(x, sizeof(*x));
}

/* ---- memory ---- */

static uint64_t seal_mapped(uint64_t bytes)
{
    return bytes < HUGE_PAGE ? bytes : (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

/* What is mapped beside the frames, so that these begin with a huge page, goes back. Such pages are asked for before any
 * of it is touched, as a kernel takes its time to make one of pages that are there. Where it has none nothing is lost but
 * speed. */
uint8_t *ib_seal_map(uint64_t bytes)
{
    const uint64_t all = seal_mapped(bytes), more = bytes < HUGE_PAGE ? 0 : HUGE_PAGE;
    uint8_t *map = mmap(NULL, all + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
    if (map == MAP_FAILED) return NULL;
    if (more == 0) return map;
    const uint64_t head = (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE, tail = more - head;
    uint8_t *frames = map + head;
    if (head > 0) (void)munmap(map, head);
    if (tail > 0) (void)munmap(frames + all, tail);
    (void)madvise(frames, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return frames;
}

void ib_seal_unmap(uint8_t *frames, uint64_t bytes)
{
    if (frames != NULL) (void)munmap(frames, seal_mapped(bytes));
}

/* ---- keys ---- */

/* HMAC-SHA-256 of a purpose and a number. */
static bool key_derive(const uint8_t secret[IB_SESSION_BYTES], const char *purpose, uint64_t number,
                       uint8_t out[IB_SESSION_BYTES])
{
    uint8_t text[32] = {0};
    unsigned length = IB_SESSION_BYTES;
    const size_t bytes = strlen(purpose);
    memcpy(text, purpose, bytes < 24 ? bytes : 24);
    for (int i = 0; i < 8; i++)
        text[24 + i] = (uint8_t)(number >> 8 * i);
    return HMAC(EVP_sha256(), secret, IB_SESSION_BYTES, text, sizeof(text), out, &length) != NULL;
}

bool ib_share_make(const uint8_t random[IB_SHARE_BYTES], uint8_t out[IB_SHARE_BYTES])
{
    size_t bytes = IB_SHARE_BYTES;
    EVP_PKEY *own = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, random, IB_SHARE_BYTES);
    const bool made = own != NULL && EVP_PKEY_get_raw_public_key(own, out, &bytes) == 1;
    EVP_PKEY_free(own);
    return made;
}

/* The library refuses shares that make a secret of zeros. */
static bool secret_agree(const uint8_t random[IB_SHARE_BYTES], const uint8_t theirs[IB_SHARE_BYTES],
                         uint8_t out[IB_SHARE_BYTES])
{
    size_t bytes = IB_SHARE_BYTES;
    EVP_PKEY *own = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, random, IB_SHARE_BYTES);
    EVP_PKEY *other = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, theirs, IB_SHARE_BYTES);
    EVP_PKEY_CTX *context = own != NULL ? EVP_PKEY_CTX_new(own, NULL) : NULL;
    const bool made = context != NULL && other != NULL && EVP_PKEY_derive_init(context) == 1 &&
                      EVP_PKEY_derive_set_peer(context, other) == 1 &&
                      EVP_PKEY_derive(context, out, &bytes) == 1 && bytes == IB_SHARE_BYTES;
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(own);
    EVP_PKEY_free(other);
    return made;
}

bool ib_keys_agree(const uint8_t session[IB_SESSION_BYTES], const uint8_t random[IB_SHARE_BYTES],
                   const uint8_t mine[IB_SHARE_BYTES], const uint8_t theirs[IB_SHARE_BYTES],
                   bool dials, ib_keys_t *out, ib_keys_t *in)
{
    uint8_t text[3 * IB_SHARE_BYTES], secret[IB_SESSION_BYTES];
    unsigned length = sizeof(secret);
    memcpy(text + IB_SHARE_BYTES, dials ? mine : theirs, IB_SHARE_BYTES);
    memcpy(text + 2 * IB_SHARE_BYTES, dials ? theirs : mine, IB_SHARE_BYTES);
    const bool made = secret_agree(random, theirs, text) &&
                      HMAC(EVP_sha256(), session, IB_SESSION_BYTES, text, sizeof(text), secret,
                           &length) != NULL &&
                      key_derive(secret, "longhaul rdma seal", dials ? 1 : 2, out->secret) &&
                      key_derive(secret, "longhaul rdma seal", dials ? 2 : 1, in->secret);
    OPENSSL_cleanse(text, sizeof(text));
    OPENSSL_cleanse(secret, sizeof(secret));
    out->generation = in->generation = 0;
    return made;
}

bool ib_keys_at(ib_keys_t *k, uint64_t sequence)
{
    const uint64_t generation = (sequence >> GENERATION_LOG2) + 1;
    uint8_t key[IB_SESSION_BYTES], nonce[IB_SESSION_BYTES];
    if (k->generation == generation) return true;
    if (!key_derive(k->secret, "longhaul rdma key", generation, key) ||
        !key_derive(k->secret, "longhaul rdma nonce", generation, nonce))
        return false;
    memcpy(k->now.key, key, IB_SEAL_KEY);
    memcpy(k->now.nonce, nonce, IB_NONCE_BYTES);
    k->generation = generation;
    OPENSSL_cleanse(key, sizeof(key));
    return true;
}

/* ---- frames ---- */

/* The nonce alone begins another text. A key is given only where the context has another one: from it
 * come the round keys and the powers of H, which takes as long as a kilobyte, twice a frame. */
static bool keyed_begin(keyed_t *k, const ib_key_t *key, uint64_t sequence, int part)
{
    uint8_t nonce[IB_NONCE_BYTES];
    const uint64_t number = 2 * sequence + (uint64_t)part;
    memcpy(nonce, key->nonce, sizeof(nonce));
    for (int i = 0; i < 8; i++)
        nonce[IB_NONCE_BYTES - 1 - i] ^= (uint8_t)(number >> 8 * i);
    const bool known = k->has_key && CRYPTO_memcmp(k->key, key->key, sizeof(k->key)) == 0;
    k->has_key = false; /* a context that has failed has none */
    if (EVP_CipherInit_ex(k->context, NULL, NULL, known ? NULL : key->key, nonce,
                          k->opens ? 0 : 1) != 1)
        return false;
    memcpy(k->key, key->key, sizeof(k->key));
    k->has_key = true;
    return true;
}

/* In one call: neither what is sealed nor what it becomes can be written by others meanwhile. */
static bool seal_text(const keyed_t *k, const void *from, uint32_t bytes, uint8_t *to, uint8_t *tag)
{
    uint8_t none[IB_SEAL_TAG];
    int length;
    if (bytes > INT_MAX) return false; /* what the library takes */
    if (bytes > 0 && EVP_CipherUpdate(k->context, to, &length, from, (int)bytes) != 1) return false;
    return EVP_CipherFinal_ex(k->context, none, &length) == 1 &&
           EVP_CIPHER_CTX_ctrl(k->context, EVP_CTRL_AEAD_GET_TAG, IB_SEAL_TAG, tag) == 1;
}

/* A processor fetches ahead of who reads or writes in order, but not into another page (of 4 KiB: the
 * memory's, where those of the kernel are larger): there it waits for the first lines. These are asked for
 * here while the piece before is decrypted. */
static void pages_ahead(const uint8_t *at, size_t bytes)
{
    for (size_t i = (PAGE - (uintptr_t)at % PAGE) % PAGE; i < bytes; i += PAGE) {
        __builtin_prefetch(at + i, 1);
        if (i + LINE < bytes) __builtin_prefetch(at + i + LINE, 1);
    }
}

/* Likewise of a frame, which is copied before it is decrypted: while it is copied nothing else is done, and so
 * more of it is asked for, as far as that does not keep the decryption waiting. Prefetchers go on from there. */
static void frame_ahead(const uint8_t *at, size_t bytes)
{
    for (size_t i = (PAGE - (uintptr_t)at % PAGE) % PAGE; i < bytes; i += PAGE)
        for (size_t k = i; k < bytes && k < i + FETCHED * LINE; k += LINE)
            __builtin_prefetch(at + k, 0);
}

static size_t piece_bytes(size_t left)
{
    return left < PIECE ? left : PIECE;
}

/* By way of a piece of this thread's own, as others can write the frame while it is read, and one
 * pass for the tag and another for the text would read two texts. */
static bool open_text(ib_cipher_t *x, const uint8_t *from, size_t bytes, uint8_t *to,
                      const uint8_t *tag)
{
    EVP_CIPHER_CTX *context = x->opens.context;
    uint8_t copy[IB_SEAL_TAG], none[IB_SEAL_TAG];
    int length;
    memcpy(copy, tag, sizeof(copy));
    pages_ahead(to, piece_bytes(bytes));
    for (size_t at = 0, now = 0; at < bytes; at += now) {
        now = piece_bytes(bytes - at);
        memcpy(x->piece, from + at, now);
        pages_ahead(to + at + now, piece_bytes(bytes - at - now));
        frame_ahead(from + at + now, piece_bytes(bytes - at - now));
        if (EVP_CipherUpdate(context, to + at, &length, x->piece, (int)now) != 1) return false;
    }
    return EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, IB_SEAL_TAG, copy) == 1 &&
           EVP_CipherFinal_ex(context, none, &length) == 1;
}

/* Little-endian words: message, offset, bytes, index, tag, last. */
static void head_write(const ib_frame_t *head, uint8_t out[IB_SEAL_HEAD])
{
    const uint32_t words[] = {(uint32_t)head->message,
                              (uint32_t)(head->message >> 32),
                              (uint32_t)head->offset,
                              (uint32_t)(head->offset >> 32),
                              head->bytes,
                              head->index,
                              head->tag,
                              head->last};
    for (int i = 0; i < IB_SEAL_HEAD; i++)
        out[i] = (uint8_t)(words[i / 4] >> 8 * (i % 4));
}

static void head_read(const uint8_t from[IB_SEAL_HEAD], ib_frame_t *out)
{
    uint32_t words[IB_SEAL_HEAD / 4] = {0};
    for (int i = 0; i < IB_SEAL_HEAD; i++)
        words[i / 4] |= (uint32_t)from[i] << 8 * (i % 4);
    *out = (ib_frame_t){.message = words[0] | (uint64_t)words[1] << 32,
                        .offset = words[2] | (uint64_t)words[3] << 32,
                        .bytes = words[4],
                        .index = words[5],
                        .tag = words[6],
                        .last = words[7] != 0};
}

bool ib_seal_frame(ib_cipher_t *x, const ib_key_t *key, uint64_t sequence, const ib_frame_t *head,
                   const void *from, uint8_t *to)
{
    uint8_t text[IB_SEAL_HEAD];
    head_write(head, text);
    return keyed_begin(&x->seals, key, sequence, PART_HEAD) &&
           seal_text(&x->seals, text, sizeof(text), to, to + IB_SEAL_HEAD) &&
           keyed_begin(&x->seals, key, sequence, PART_PAYLOAD) &&
           seal_text(&x->seals, from, head->bytes, to + IB_SEAL_OVER,
                     to + IB_SEAL_HEAD + IB_SEAL_TAG);
}

bool ib_open_head(ib_cipher_t *x, const ib_key_t *key, uint64_t sequence, const uint8_t *frame,
                  ib_frame_t *out)
{
    uint8_t text[IB_SEAL_HEAD];
    if (!keyed_begin(&x->opens, key, sequence, PART_HEAD) ||
        !open_text(x, frame, sizeof(text), text, frame + IB_SEAL_HEAD))
        return false;
    head_read(text, out);
    return true;
}

bool ib_open_payload(ib_cipher_t *x, const ib_key_t *key, uint64_t sequence, const uint8_t *frame,
                     uint32_t bytes, void *to)
{
    return keyed_begin(&x->opens, key, sequence, PART_PAYLOAD) &&
           open_text(x, frame + IB_SEAL_OVER, bytes, to, frame + IB_SEAL_HEAD + IB_SEAL_TAG);
}
