/* control_conn.c - OpenSSL with an external pre-shared key; the end that dials says which rank it
 * is, and each rank's key is another one. */
#include <comm/control_conn.h>

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <base/memory.h>

enum { KEY_BYTES = 32, IDENTITY_BYTES = 32, READ_BYTES = 16384 };

static const char identity_format[] = "longhaul/1/%u";
static const unsigned char cipher_id[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

struct control_tls {
    SSL_CTX *context;
    const secret_t *secret;
};

struct control_conn {
    control_tls_t *tls;
    SSL *ssl;
    int fd;
    uint32_t rank;
    bool accepts, proven, ended, finished;
    char identity[IDENTITY_BYTES];
    uint32_t in_serial, out_serial;
    size_t limit;
    text_t in, out;
    size_t in_at, out_at; /* bytes of them that are done with */
    uint64_t sent, received;
};

static SSL_SESSION *session_for(SSL *ssl, uint32_t rank)
{
    const control_conn_t *c = SSL_get_app_data(ssl);
    unsigned char key[KEY_BYTES];
    if (secret_derive(c->tls->secret, "control plane", 0, 0, rank, key, sizeof(key)) != LH_OK)
        return NULL;
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, cipher_id);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session == NULL || cipher == NULL ||
        SSL_SESSION_set1_master_key(session, key, sizeof(key)) != 1 ||
        SSL_SESSION_set_cipher(session, cipher) != 1 ||
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
        SSL_SESSION_free(session);
        session = NULL;
    }
    OPENSSL_cleanse(key, sizeof(key));
    return session;
}

static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_bytes,
                       SSL_SESSION **out)
{
    control_conn_t *c = SSL_get_app_data(ssl);
    (void)md; /* both ends offer nothing but SHA-256 */
    *out = session_for(ssl, c->rank);
    if (*out == NULL) return 0;
    *id = (const unsigned char *)c->identity;
    *id_bytes = strlen(c->identity);
    return 1;
}

/* An identity that is none of ours finds no key; the handshake then ends, as there is no
 * certificate to fall back on. */
static int find_session(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **out)
{
    control_conn_t *c = SSL_get_app_data(ssl);
    char text[IDENTITY_BYTES], again[IDENTITY_BYTES];
    unsigned rank;
    *out = NULL;
    if (id_bytes >= sizeof(text)) return 1;
    memcpy(text, id, id_bytes);
    text[id_bytes] = '\0';
    if (sscanf(text, identity_format, &rank) != 1) return 1;
    (void)snprintf(again, sizeof(again), identity_format, rank);
    if (strcmp(text, again) != 0) return 1;
    *out = session_for(ssl, rank);
    if (*out != NULL) c->rank = rank;
    return 1;
}

lh_status_t control_tls_new(const secret_t *secret, control_tls_t **out)
{
    control_tls_t *t = mem_new(sizeof(*t));
    if (t == NULL) return LH_NO_MEMORY;
    SSL_CTX *x = SSL_CTX_new(TLS_method());
    t->context = x;
    t->secret = secret;
    if (x == NULL || SSL_CTX_set_min_proto_version(x, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(x, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(x, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_set1_groups_list(x, "X25519") != 1 || SSL_CTX_set_num_tickets(x, 0) != 1) {
        control_tls_free(t);
        return fail(LH_UNSUPPORTED, "OpenSSL has no TLS 1.3 with AES-128-GCM and X25519");
    }
    (void)SSL_CTX_set_options(x, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
    (void)SSL_CTX_set_session_cache_mode(x, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(x, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_psk_use_session_callback(x, use_session);
    SSL_CTX_set_psk_find_session_callback(x, find_session);
    *out = t;
    return LH_OK;
}

void control_tls_free(control_tls_t *t)
{
    if (t == NULL) return;
    SSL_CTX_free(t->context);
    mem_free(t);
}

lh_status_t conn_new(control_tls_t *t, int fd, uint32_t rank, size_t limit, control_conn_t **out)
{
    control_conn_t *c = mem_new(sizeof(*c));
    if (c == NULL) {
        (void)close(fd);
        return LH_NO_MEMORY;
    }
    *c = (control_conn_t){
        .tls = t, .fd = fd, .rank = rank, .accepts = rank == CONN_NO_RANK, .limit = limit};
    (void)snprintf(c->identity, sizeof(c->identity), identity_format, rank);
    c->ssl = SSL_new(t->context);
    if (c->ssl == NULL || SSL_set_fd(c->ssl, fd) != 1) {
        conn_free(c);
        return fail(LH_NO_MEMORY, "out of memory: a TLS connection");
    }
    SSL_set_app_data(c->ssl, c);
    /* Nobody is trusted by a certificate: an end that answers with one is refused. */
    if (!c->accepts) SSL_set_verify(c->ssl, SSL_VERIFY_PEER, NULL);
    if (c->accepts)
        SSL_set_accept_state(c->ssl);
    else
        SSL_set_connect_state(c->ssl);
    *out = c;
    return LH_OK;
}

void conn_free(control_conn_t *c)
{
    if (c == NULL) return;
    SSL_free(c->ssl);
    (void)close(c->fd);
    text_free(&c->in);
    text_free(&c->out);
    mem_free(c);
}

void conn_finish(control_conn_t *c)
{
    if (c->finished) return;
    c->finished = true;
    if (c->proven) (void)SSL_shutdown(c->ssl);
    (void)shutdown(c->fd, SHUT_WR);
}

/* LH_AGAIN: it waits for the socket. */
static lh_status_t look_at(control_conn_t *c, int result)
{
    const int error = errno;
    switch (SSL_get_error(c->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return LH_AGAIN;
    case SSL_ERROR_ZERO_RETURN: return fail(LH_PEER_LOST, "its connection ended");
    case SSL_ERROR_SYSCALL:
        if (error == 0) return fail(LH_PEER_LOST, "its connection ended");
        return fail(LH_PEER_LOST, "its connection broke: %s", strerror(error));
    default: {
        const char *why = ERR_reason_error_string(ERR_peek_error());
        return fail(LH_DENIED, "TLS: %s", why != NULL ? why : "no reason");
    }
    }
}

static lh_status_t shake_hands(control_conn_t *c)
{
    ERR_clear_error();
    errno = 0;
    const int done = SSL_do_handshake(c->ssl);
    if (done != 1) return look_at(c, done);
    /* The key is what proves the other end: a session without it proves nothing. */
    if (!SSL_session_reused(c->ssl) || c->rank == CONN_NO_RANK)
        return fail(LH_DENIED, "TLS: the other end did not use the job's key");
    c->proven = true;
    return LH_OK;
}

static lh_status_t send_out(control_conn_t *c)
{
    while (c->out_at < c->out.length) {
        size_t sent = 0;
        ERR_clear_error();
        errno = 0;
        const int done = SSL_write_ex(c->ssl, c->out.data + c->out_at, c->out.length - c->out_at,
                                      &sent);
        if (done != 1) return look_at(c, done);
        c->out_at += sent;
    }
    c->out.length = c->out_at = 0;
    return LH_OK;
}

static void forget_cut(control_conn_t *c)
{
    if (c->in_at == 0) return;
    memmove(c->in.data, c->in.data + c->in_at, c->in.length - c->in_at);
    c->in.length -= c->in_at;
    c->in_at = 0;
}

static lh_status_t read_in(control_conn_t *c)
{
    char bytes[READ_BYTES];
    forget_cut(c);
    for (;;) {
        size_t got = 0;
        ERR_clear_error();
        errno = 0;
        const int done = SSL_read_ex(c->ssl, bytes, sizeof(bytes), &got);
        if (done != 1) return look_at(c, done);
        text_append_n(&c->in, bytes, got);
        if (c->in.failed) return LH_NO_MEMORY;
        if (c->in.length > c->limit + FRAME_HEAD + READ_BYTES) return LH_AGAIN; /* cut first */
    }
}

lh_status_t conn_drive(control_conn_t *c)
{
    lh_status_t status = LH_OK;
    if (c->ended) return fail(LH_PEER_LOST, "its connection ended");
    if (!c->proven) {
        status = shake_hands(c);
        if (status == LH_AGAIN && c->accepts &&
            BIO_number_read(SSL_get_rbio(c->ssl)) > CONN_STRANGER_BYTES)
            status = fail(LH_DENIED, "TLS: more than %d bytes before the key", CONN_STRANGER_BYTES);
    }
    if (status == LH_OK && !c->finished) status = send_out(c);
    if (status == LH_PEER_LOST) status = LH_OK; /* what it said last is read first */
    if (c->proven && (status == LH_OK || status == LH_AGAIN)) status = read_in(c);
    if (status == LH_AGAIN) return LH_OK;
    c->ended = status != LH_OK;
    return status;
}

bool conn_is_proven(const control_conn_t *c)
{
    return c->proven;
}

/* A first message whose identity is a rank's and whose binder is not made with its key has ended
 * the connection. */
bool conn_has_greeted(const control_conn_t *c)
{
    return c->rank != CONN_NO_RANK && !c->ended;
}

uint32_t conn_rank(const control_conn_t *c)
{
    return c->proven ? c->rank : CONN_NO_RANK;
}

lh_status_t conn_next(control_conn_t *c, frame_t *out)
{
    size_t used = 0;
    if (c->in.length == c->in_at) return LH_AGAIN;
    const lh_status_t status = frame_cut((const unsigned char *)c->in.data + c->in_at,
                                         c->in.length - c->in_at, c->in_serial, c->limit, out,
                                         &used);
    if (status != LH_OK) return status;
    c->in_at += used;
    c->in_serial++;
    return LH_OK;
}

void conn_put(control_conn_t *c, uint32_t type, const text_t *payload)
{
    if (c->finished) return;
    frame_append(&c->out, type, c->out_serial++, payload);
}

size_t conn_unsent(const control_conn_t *c)
{
    return c->out.length - c->out_at;
}

int conn_fd(const control_conn_t *c)
{
    return c->fd;
}

bool conn_wants_write(const control_conn_t *c)
{
    return SSL_want_write(c->ssl) || (c->proven && conn_unsent(c) > 0);
}

void conn_traffic(control_conn_t *c, uint64_t *sent, uint64_t *received)
{
    const uint64_t out = BIO_number_written(SSL_get_wbio(c->ssl));
    const uint64_t in = BIO_number_read(SSL_get_rbio(c->ssl));
    *sent = out - c->sent;
    *received = in - c->received;
    c->sent = out;
    c->received = in;
}
