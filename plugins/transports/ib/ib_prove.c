/* ib_prove.c - see ib_prove.h. HMAC-SHA-256, cut to 96 bits where it travels (RFC 4868 has 128; a
 * connect request has room for no more, and each guess costs a connect request). */
#include "ib_prove.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

static bool session_mac(const uint8_t key[IB_SESSION_BYTES], const void *text, size_t bytes,
                        uint8_t out[IB_SESSION_BYTES])
{
    unsigned length = IB_SESSION_BYTES;
    return HMAC(EVP_sha256(), key, IB_SESSION_BYTES, text, bytes, out, &length) != NULL;
}

bool ib_session(const lh_host_t *host, uint32_t peer, const uint8_t dials[IB_NONCE_BYTES],
                const uint8_t listens[IB_NONCE_BYTES], uint8_t out[IB_SESSION_BYTES])
{
    static const char purpose[] = "rdma known";
    uint8_t key[IB_SESSION_BYTES], text[2 * IB_NONCE_BYTES];
    if (host->derive_key(host, purpose, peer, key, sizeof(key)) != LH_OK) return false;
    memcpy(text, dials, IB_NONCE_BYTES);
    memcpy(text + IB_NONCE_BYTES, listens, IB_NONCE_BYTES);
    const bool made = session_mac(key, text, sizeof(text), out);
    OPENSSL_cleanse(key, sizeof(key));
    return made;
}

/* Another first byte for each end, so that a request is no answer to itself. */
static bool greeting_mac(const uint8_t session[IB_SESSION_BYTES], bool replies,
                         const uint8_t greeting[IB_GREETING_BYTES], uint8_t out[IB_SESSION_BYTES])
{
    uint8_t text[1 + IB_SIGNED_BYTES] = {replies ? 2 : 1};
    memcpy(text + 1, greeting, IB_SIGNED_BYTES);
    return session_mac(session, text, sizeof(text), out);
}

/* Without memory for it nothing is proven, and the other end refuses. */
void ib_session_sign(const uint8_t session[IB_SESSION_BYTES], bool replies,
                     uint8_t greeting[IB_GREETING_BYTES])
{
    uint8_t all[IB_SESSION_BYTES];
    if (!greeting_mac(session, replies, greeting, all)) return;
    memcpy(greeting + IB_SIGNED_BYTES, all, IB_MAC_BYTES);
}

bool ib_session_signed(const uint8_t session[IB_SESSION_BYTES], bool replies,
                       const uint8_t greeting[IB_GREETING_BYTES])
{
    uint8_t all[IB_SESSION_BYTES];
    return greeting_mac(session, replies, greeting, all) &&
           CRYPTO_memcmp(greeting + IB_SIGNED_BYTES, all, IB_MAC_BYTES) == 0;
}

void ib_session_mac(const uint8_t session[IB_SESSION_BYTES], const void *text, size_t bytes,
                    uint8_t out[IB_SESSION_BYTES])
{
    memset(out, 0, IB_SESSION_BYTES);
    (void)session_mac(session, text, bytes, out);
}

bool ib_same(const void *a, const void *b, size_t bytes)
{
    return CRYPTO_memcmp(a, b, bytes) == 0;
}

void ib_wipe(void *secret, size_t bytes)
{
    OPENSSL_cleanse(secret, bytes);
}
