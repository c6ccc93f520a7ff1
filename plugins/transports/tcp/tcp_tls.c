/* tcp_tls.c - see tcp_tls.h. OpenSSL sees memory only: whole records are given to it, what it
 * writes is taken out. The key of the pair of ranks comes from the host and is bound to job and
 * epoch there. */
#include "tcp_tls.h"

#include <stdio.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

enum { OUT_BYTES = 4096, RECORD_HEAD = 5, RECORD_MAX = 2048, IDENTITY_BYTES = 64, KEY_BYTES = 32 };
static const char label[] = "EXPORTER-longhaul-tcp-1";
static const unsigned char cipher[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

struct tls {
    const lh_host_t *host;
    SSL *ssl;
    BIO *in, *from; /* what the peer sent, what it is to get: the SSL's */
    uint32_t peer;
    bool listens;
    char identity[IDENTITY_BYTES];
    uint8_t out[OUT_BYTES];
};

/* job, epoch, who dials, whom */
static void write_identity(const lh_host_t *host, uint32_t dials, uint32_t listens,
                           char out[IDENTITY_BYTES])
{
    (void)snprintf(out, IDENTITY_BYTES, "lh1/%016llx/%u/%u/%u",
                   (unsigned long long)host->world->job, host->world->epoch, dials, listens);
}

/* OpenSSL's way to give an external key to TLS 1.3: a session that never was, with the key as its
 * secret. */
static SSL_SESSION *session_of(const tls_t *t, SSL *ssl)
{
    uint8_t key[KEY_BYTES];
    const SSL_CIPHER *suite = SSL_CIPHER_find(ssl, cipher);
    SSL_SESSION *session = SSL_SESSION_new();
    bool good = session != NULL && suite != NULL &&
                t->host->derive_key(t->host, "tcp", t->peer, key, sizeof(key)) == LH_OK;
    good = good && SSL_SESSION_set1_master_key(session, key, sizeof(key)) == 1 &&
           SSL_SESSION_set_cipher(session, suite) == 1 &&
           SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
    secret_wipe(key, sizeof(key));
    if (good) return session;
    SSL_SESSION_free(session);
    return NULL;
}

/* OpenSSL asks the end that dials for key and identity. */
static int use_session(SSL *ssl, LH_UNUSED const EVP_MD *digest, const unsigned char **id,
                       size_t *length, SSL_SESSION **session)
{
    tls_t *t = SSL_get_app_data(ssl);
    *session = session_of(t, ssl);
    if (*session == NULL) return 0;
    *id = (const unsigned char *)t->identity;
    *length = strlen(t->identity);
    return 1;
}

/* Who dials stands in the identity; it counts only because the binder proves the key of the pair.
 */
static int find_session(SSL *ssl, const unsigned char *id, size_t length, SSL_SESSION **session)
{
    tls_t *t = SSL_get_app_data(ssl);
    char text[IDENTITY_BYTES], expected[IDENTITY_BYTES];
    unsigned long long job;
    unsigned epoch, dials, listens;
    *session = NULL;
    if (length == 0 || length >= sizeof(text)) return 1;
    memcpy(text, id, length);
    text[length] = '\0';
    if (sscanf(text, "lh1/%16llx/%u/%u/%u", &job, &epoch, &dials, &listens) != 4) return 1;
    write_identity(t->host, dials, t->host->world->rank, expected);
    if (strcmp(text, expected) != 0 || dials >= t->host->world->size) return 1;
    /* Only now is there a peer, whose key is asked for; the binder is checked by OpenSSL. */
    t->peer = dials;
    *session = session_of(t, ssl);
    return 1;
}

/* One cipher, one group, no tickets, no early data: what isn't there can't be asked for. */
lh_status_t tls_context_new(const lh_host_t *host, void **out)
{
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_set1_groups_list(context, "X25519") != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1) {
        SSL_CTX_free(context);
        ERR_clear_error();
        return host->fail(host, LH_UNSUPPORTED, "this OpenSSL has no TLS 1.3 with X25519");
    }
    SSL_CTX_set_options(context,
                        SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_psk_use_session_callback(context, use_session);
    SSL_CTX_set_psk_find_session_callback(context, find_session);
    SSL_CTX_set_max_early_data(context, 0);
    *out = context;
    return LH_OK;
}

void tls_context_free(void *context)
{
    SSL_CTX_free(context);
}

/* The BIOs are the SSL's once they are set. */
lh_status_t tls_new(void *context, const lh_host_t *host, uint32_t peer, tls_t **out)
{
    tls_t *t = host->alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->host = host;
    t->peer = peer;
    /* Who listens learns from the identity who dials. */
    t->listens = peer == UINT32_MAX;
    if (!t->listens) write_identity(host, host->world->rank, peer, t->identity);
    t->ssl = SSL_new(context);
    t->in = BIO_new(BIO_s_mem());
    t->from = BIO_new(BIO_s_mem());
    if (t->ssl == NULL || t->in == NULL || t->from == NULL) {
        BIO_free(t->in);
        BIO_free(t->from);
        t->in = t->from = NULL;
        tls_free(t);
        return host->fail(host, LH_NO_MEMORY, "no memory for a handshake");
    }
    SSL_set_bio(t->ssl, t->in, t->from);
    (void)SSL_set_app_data(t->ssl, t);
    if (t->listens)
        SSL_set_accept_state(t->ssl);
    else
        SSL_set_connect_state(t->ssl);
    *out = t;
    return LH_OK;
}

void tls_free(tls_t *t)
{
    if (t == NULL) return;
    SSL_free(t->ssl);
    ERR_clear_error();
    t->host->release(t->host, t);
}

uint32_t tls_peer(const tls_t *t)
{
    return t->peer;
}

/* An exporter, as RFC 8446 has it in section 7.5: bound to this handshake and of no use for
 * another. */
lh_status_t tls_secrets(tls_t *t, uint8_t out[2][SECRET_BYTES])
{
    if (SSL_export_keying_material(t->ssl, out[0], 2 * SECRET_BYTES, label, sizeof(label) - 1, NULL,
                                   0, 0) != 1)
        return LH_NO_MEMORY;
    return LH_OK;
}

/* A record at a time, so that what comes behind the handshake stays where it is. */
static bool give_record(tls_t *t, const uint8_t *bytes, size_t length, size_t *taken)
{
    if (length - *taken < RECORD_HEAD) return false;
    const uint8_t *at = bytes + *taken;
    const size_t record = RECORD_HEAD + ((size_t)at[3] << 8 | at[4]);
    if (record > RECORD_MAX || length - *taken < record) return false;
    if (BIO_write(t->in, at, (int)record) != (int)record) return false;
    *taken += record;
    return true;
}

/* Whether the bytes can begin a TLS record of a sensible size; a stranger that speaks something
 * else is dropped at its first byte. */
static bool is_handshake(const uint8_t *bytes, size_t length)
{
    enum { CHANGE_CIPHER = 20, ALERT = 21, HANDSHAKE = 22, DATA = 23 };
    if (length > 0 && (bytes[0] < CHANGE_CIPHER || bytes[0] > DATA)) return false;
    if (length > 1 && bytes[1] != 3) return false;
    return length < RECORD_HEAD || RECORD_HEAD + ((size_t)bytes[3] << 8 | bytes[4]) <= RECORD_MAX;
}

/* One step. A handshake without the key (a certificate, nothing) must not pass: the session has to
 * be the one that was given. */
static lh_status_t tls_handshake(tls_t *t)
{
    ERR_clear_error();
    const int done = SSL_do_handshake(t->ssl);
    if (done == 1) return SSL_session_reused(t->ssl) == 1 ? LH_OK : LH_DENIED;
    const int why = SSL_get_error(t->ssl, done);
    ERR_clear_error();
    return why == SSL_ERROR_WANT_READ ? LH_AGAIN : LH_DENIED;
}

/* What is to be sent is taken out at the end, also after a failure: an alert says to the peer what
 * it was. */
lh_status_t tls_step(tls_t *t, const uint8_t *bytes, size_t length, size_t *taken,
                     const uint8_t **out, size_t *out_bytes)
{
    *taken = *out_bytes = 0;
    *out = t->out;
    lh_status_t status = tls_handshake(t); /* the end that dials begins without a record */
    while (status == LH_AGAIN) {
        if (!is_handshake(bytes + *taken, length - *taken)) return LH_DENIED;
        if (!give_record(t, bytes, length, taken)) break;
        status = tls_handshake(t);
    }
    const int n = BIO_read(t->from, t->out, OUT_BYTES);
    *out_bytes = n > 0 ? (size_t)n : 0;
    return status;
}
