/* tcp_seal.c - see tcp_seal.h. As in TLS 1.3: key and first nonce come from a secret, the nonce is
 * that XOR the sequence; after 65536 frames both ends step to the next secret, so no key ever seals
 * more than GCM is good for. */
#include "tcp_seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

enum { NONCE_BYTES = 12, KEY_BYTES = 16, TAG_BYTES = 16, KEY_FRAMES_LOG2 = 16, PIECE = 1 << 30 };

struct seal {
    const lh_host_t *host;
    EVP_CIPHER_CTX *context;
    bool encrypts, opens;
    uint64_t generation; /* of the secret */
    uint8_t secret[SECRET_BYTES];
    uint8_t nonce[NONCE_BYTES];
};

void secret_wipe(void *bytes, size_t length)
{
    OPENSSL_cleanse(bytes, length);
}

/* One-way: who learns a later secret does not learn the ones before it. */
static bool seal_derive(const uint8_t secret[SECRET_BYTES], const char *purpose,
                        uint8_t out[SECRET_BYTES])
{
    unsigned length = SECRET_BYTES;
    return HMAC(EVP_sha256(), secret, SECRET_BYTES, (const uint8_t *)purpose, strlen(purpose), out,
                &length) != NULL;
}

/* Key and nonce of this generation into the cipher. */
static bool use_secret(seal_t *s)
{
    uint8_t key[SECRET_BYTES], nonce[SECRET_BYTES];
    const bool good = seal_derive(s->secret, "longhaul tcp key", key) &&
                      seal_derive(s->secret, "longhaul tcp nonce", nonce) &&
                      EVP_CipherInit_ex(s->context, EVP_aes_128_gcm(), NULL, key, NULL,
                                        s->opens ? 0 : 1) == 1;
    memcpy(s->nonce, nonce, NONCE_BYTES);
    secret_wipe(key, sizeof(key));
    return good;
}

lh_status_t seal_new(const lh_host_t *host, const uint8_t secret[SECRET_BYTES], bool encrypts,
                     bool opens, seal_t **out)
{
    seal_t *s = host->alloc(host, sizeof(*s), 64);
    if (s == NULL) return LH_NO_MEMORY;
    s->host = host;
    s->encrypts = encrypts;
    s->opens = opens;
    memcpy(s->secret, secret, SECRET_BYTES);
    s->context = EVP_CIPHER_CTX_new();
    if (s->context == NULL || !use_secret(s)) {
        seal_free(s);
        return host->fail(host, LH_NO_MEMORY, "no cipher for a stream");
    }
    *out = s;
    return LH_OK;
}

void seal_free(seal_t *s)
{
    if (s == NULL) return;
    EVP_CIPHER_CTX_free(s->context);
    secret_wipe(s->secret, sizeof(s->secret));
    s->host->release(s->host, s);
}

bool seal_encrypts(const seal_t *s)
{
    return s->encrypts;
}

/* Generations are never skipped backwards: sequences only grow. */
static bool step_to(seal_t *s, uint64_t generation)
{
    while (s->generation < generation) {
        uint8_t next[SECRET_BYTES];
        if (!seal_derive(s->secret, "longhaul tcp next", next)) return false;
        memcpy(s->secret, next, SECRET_BYTES);
        secret_wipe(next, sizeof(next));
        if (++s->generation == generation) return use_secret(s);
    }
    return true;
}

/* The head is authenticated and never encrypted: its length is needed to read the rest. */
bool seal_begin(seal_t *s, uint64_t sequence, const uint8_t *head, size_t bytes)
{
    uint8_t nonce[NONCE_BYTES];
    int length;
    if (!step_to(s, sequence >> KEY_FRAMES_LOG2)) return false;
    memcpy(nonce, s->nonce, NONCE_BYTES);
    /* The sequence, big-endian, into the nonce's end, as in RFC 8446, section 5.3. */
    for (int i = 0; i < 8; i++)
        nonce[NONCE_BYTES - 1 - i] ^= (uint8_t)(sequence >> 8 * i);
    return EVP_CipherInit_ex(s->context, NULL, NULL, NULL, nonce, s->opens ? 0 : 1) == 1 &&
           EVP_CipherUpdate(s->context, NULL, &length, head, (int)bytes) == 1;
}

/* Not encrypting, the payload is authenticated as more of the head's kind. */
bool seal_add(seal_t *s, const uint8_t *from, uint8_t *to, size_t bytes)
{
    int length;
    if (bytes == 0) return true;
    if (bytes > PIECE) return false;
    return EVP_CipherUpdate(s->context, s->encrypts ? to : NULL, &length, from, (int)bytes) == 1;
}

bool seal_end(seal_t *s, uint8_t tag[16])
{
    uint8_t none[16];
    int length;
    return EVP_CipherFinal_ex(s->context, none, &length) == 1 &&
           EVP_CIPHER_CTX_ctrl(s->context, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag) == 1;
}

/* GCM says only at the end whether all of it was right; what was decrypted meanwhile must not be
 * used before. */
bool seal_check(seal_t *s, const uint8_t tag[16])
{
    uint8_t none[16];
    int length;
    return EVP_CIPHER_CTX_ctrl(s->context, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES,
                               (void *)(uintptr_t)tag) == 1 &&
           EVP_CipherFinal_ex(s->context, none, &length) == 1;
}
