/* control_frame.c - a cursor that never leaves its bytes, and one function a kind of frame. */
#include <control/control_frame.h>

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <base/memory.h>

typedef struct cursor {
    const unsigned char *at, *end;
    bool good;
} cursor_t;

static uint64_t frame_take(cursor_t *c, size_t bytes)
{
    uint64_t value = 0;
    if (!c->good || (size_t)(c->end - c->at) < bytes) {
        c->good = false;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)c->at[i] << (8 * i);
    c->at += bytes;
    return value;
}

static uint32_t take_u32(cursor_t *c)
{
    return (uint32_t)frame_take(c, 4);
}

/* One NUL, at the end; at most limit bytes with it. */
static const char *take_text(cursor_t *c, size_t limit)
{
    const size_t length = (size_t)frame_take(c, 2);
    if (!c->good || length == 0 || length > limit || (size_t)(c->end - c->at) < length ||
        memchr(c->at, '\0', length) != c->at + length - 1) {
        c->good = false;
        return "";
    }
    const char *text = (const char *)c->at;
    c->at += length;
    return text;
}

static cursor_t cursor_of(const frame_t *f)
{
    return (cursor_t){f->payload, f->payload + f->length, true};
}

static lh_status_t end_of(const cursor_t *c, const char *what)
{
    if (c->good && c->at == c->end) return LH_OK;
    return fail(LH_CORRUPT, "a %s of the control plane is not well formed", what);
}

lh_status_t frame_cut(const unsigned char *bytes, size_t length, uint32_t serial, size_t limit,
                      frame_t *out, size_t *used)
{
    if (length < FRAME_HEAD) return LH_AGAIN;
    cursor_t c = {bytes, bytes + FRAME_HEAD, true};
    const uint32_t payload = take_u32(&c);
    const uint32_t type = take_u32(&c);
    const uint32_t came = take_u32(&c);
    if (type == 0 || type >= FRAME_TYPES)
        return fail(LH_CORRUPT, "a frame of the control plane has type %u, which is none", type);
    if (payload > limit)
        return fail(LH_CORRUPT, "a frame of the control plane has %u bytes, at most %zu are taken",
                    payload, limit);
    if (came != serial)
        return fail(LH_CORRUPT, "frame %u of the control plane came where %u was due", came,
                    serial);
    if (length - FRAME_HEAD < payload) return LH_AGAIN;
    *out = (frame_t){.type = type, .payload = bytes + FRAME_HEAD, .length = payload};
    *used = FRAME_HEAD + (size_t)payload;
    return LH_OK;
}

void frame_append(text_t *out, uint32_t type, uint32_t serial, const text_t *payload)
{
    frame_put_u32(out, (uint32_t)payload->length);
    frame_put_u32(out, type);
    frame_put_u32(out, serial);
    if (payload->length > 0) text_append_n(out, payload->data, payload->length);
    out->failed = out->failed || payload->failed;
}

lh_status_t frame_read_hello(const frame_t *f, frame_hello_t *out)
{
    cursor_t c = cursor_of(f);
    frame_hello_t h = {.version = take_u32(&c)};
    h.rank = take_u32(&c);
    h.size = take_u32(&c);
    h.pid = take_u32(&c);
    h.incarnation = frame_take(&c, 8);
    h.site = take_text(&c, FRAME_FACT_TEXT);
    h.host = take_text(&c, FRAME_FACT_TEXT);
    h.fact_count = take_u32(&c);
    h.facts = c.at;
    if (h.fact_count > FRAME_FACTS) c.good = false;
    for (uint32_t i = 0; c.good && i < 2 * h.fact_count; i++)
        (void)take_text(&c, FRAME_FACT_TEXT);
    const lh_status_t status = end_of(&c, "hello");
    if (status == LH_OK) *out = h;
    return status;
}

static void take_place(cursor_t *c, frame_place_t *out)
{
    out->pid = take_u32(c);
    out->site = take_text(c, FRAME_FACT_TEXT);
    out->host = take_text(c, FRAME_FACT_TEXT);
}

lh_status_t frame_read_welcome(const frame_t *f, frame_welcome_t *out)
{
    cursor_t c = cursor_of(f);
    frame_place_t place;
    frame_welcome_t w = {.job = frame_take(&c, 8)};
    w.epoch = take_u32(&c);
    w.size = take_u32(&c);
    w.address = take_text(&c, FRAME_FACT_TEXT);
    w.places = c.at;
    for (uint32_t i = 0; c.good && i < w.size; i++)
        take_place(&c, &place);
    const lh_status_t status = end_of(&c, "welcome");
    if (status == LH_OK) *out = w;
    return status;
}

lh_status_t frame_read_notice(const frame_t *f, frame_notice_t *out)
{
    cursor_t c = cursor_of(f);
    frame_notice_t n = {.status = (lh_status_t)take_u32(&c)};
    n.rank = take_u32(&c);
    n.reason = take_text(&c, FRAME_REASON);
    if (n.status > 0) c.good = false;
    const lh_status_t status = end_of(&c, "notice");
    if (status == LH_OK) *out = n;
    return status;
}

lh_status_t frame_read_beat(const frame_t *f, frame_beat_t *out)
{
    cursor_t c = cursor_of(f);
    frame_beat_t b = {.step = frame_take(&c, 8)};
    b.text = take_text(&c, PROGRESS_TEXT);
    const lh_status_t status = end_of(&c, "heartbeat");
    if (status == LH_OK) *out = b;
    return status;
}

lh_status_t frame_read_gather(const frame_t *f, frame_gather_t *out)
{
    cursor_t c = cursor_of(f);
    frame_gather_t g = {.round = take_u32(&c)};
    g.where = take_text(&c, FRAME_FACT_TEXT);
    g.length = take_u32(&c);
    g.bytes = c.at;
    if (c.good && g.length <= (size_t)(c.end - c.at))
        c.at += g.length;
    else
        c.good = false;
    const lh_status_t status = end_of(&c, "part");
    if (status == LH_OK) *out = g;
    return status;
}

static const char *next_text(const unsigned char **at)
{
    const char *text = (const char *)*at + 2;
    *at += 2 + ((size_t)(*at)[0] | (size_t)(*at)[1] << 8);
    return text;
}

void frame_next_fact(const unsigned char **at, const char **name, const char **value)
{
    *name = next_text(at);
    *value = next_text(at);
}

void frame_next_place(const unsigned char **at, frame_place_t *out)
{
    cursor_t c = {*at, *at + 4, true};
    out->pid = take_u32(&c);
    *at += 4;
    out->site = next_text(at);
    out->host = next_text(at);
}

static void frame_put(text_t *out, uint64_t value, size_t bytes)
{
    lh_assert(bytes <= 8);
    char raw[8];
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (char)(unsigned char)(value >> (8 * i));
    text_append_n(out, raw, bytes);
}

void frame_put_u32(text_t *out, uint32_t value)
{
    frame_put(out, value, 4);
}

void frame_put_u64(text_t *out, uint64_t value)
{
    frame_put(out, value, 8);
}

void frame_put_text(text_t *out, const char *text, size_t limit)
{
    lh_assert(limit > 0);
    const size_t length = strnlen(text, limit - 1);
    frame_put(out, length + 1, 2);
    text_append_n(out, text, length);
    text_append_n(out, "", 1);
}

void frame_write_hello(text_t *out, const frame_hello_t *hello)
{
    frame_put_u32(out, hello->version);
    frame_put_u32(out, hello->rank);
    frame_put_u32(out, hello->size);
    frame_put_u32(out, hello->pid);
    frame_put_u64(out, hello->incarnation);
    frame_put_text(out, hello->site, FRAME_FACT_TEXT);
    frame_put_text(out, hello->host, FRAME_FACT_TEXT);
    frame_put_u32(out, hello->fact_count);
}

void frame_write_notice(text_t *out, const frame_notice_t *notice)
{
    frame_put_u32(out, (uint32_t)notice->status);
    frame_put_u32(out, notice->rank);
    frame_put_text(out, notice->reason, FRAME_REASON);
}

void frame_write_beat(text_t *out, const progress_t *progress)
{
    frame_put_u64(out, progress->step);
    frame_put_text(out, progress->text, PROGRESS_TEXT);
}

void frame_write_gather(text_t *out, uint32_t round, const char *where, const void *bytes,
                        uint32_t length)
{
    frame_put_u32(out, round);
    frame_put_text(out, where, FRAME_FACT_TEXT);
    frame_put_u32(out, length);
    if (length > 0) text_append_n(out, bytes, length);
}

/* OpenSSL with an external pre-shared key; the end that dials says which rank it
 * is, and each rank's key is another one. */
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
    lh_assert(c->proven && c->out_at <= c->out.length);
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
    lh_assert(c->proven && c->in_at <= c->in.length);
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

/* A word that is read whole or again. */
void progress_write(progress_word_t *w, uint64_t step, const char *text)
{
    uint64_t words[PROGRESS_WORDS] = {0};
    const size_t length = text == NULL ? 0 : strnlen(text, PROGRESS_TEXT - 1);
    if (length > 0) memcpy(words, text, length);

    uint64_t serial = atomic_load_explicit(&w->serial, memory_order_relaxed);
    if (serial % 2 != 0 || !atomic_compare_exchange_strong(&w->serial, &serial, serial + 1)) return;
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&w->step, step, memory_order_relaxed);
    for (uint32_t i = 0; i < PROGRESS_WORDS; i++)
        atomic_store_explicit(&w->text[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&w->serial, serial + 2, memory_order_release);
}

/* A writer that died in between leaves an odd number for ever: what is there is then taken. */
void progress_read(const progress_word_t *w, progress_t *out)
{
    enum { TRIES = 100 };
    uint64_t words[PROGRESS_WORDS];
    for (uint32_t try = 0; try < TRIES; try++) {
        const uint64_t before = atomic_load_explicit(&w->serial, memory_order_acquire);
        out->step = atomic_load_explicit(&w->step, memory_order_relaxed);
        for (uint32_t i = 0; i < PROGRESS_WORDS; i++)
            words[i] = atomic_load_explicit(&w->text[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        const uint64_t after = atomic_load_explicit(&w->serial, memory_order_relaxed);
        if (before == after && before % 2 == 0) break;
    }
    memcpy(out->text, words, sizeof(words));
    out->text[PROGRESS_TEXT - 1] = '\0';
}

void progress_phrase(const progress_t *p, char out[PROGRESS_PHRASE])
{
    const bool text = p->text[0] != '\0';
    out[0] = '\0';
    if (p->step > 0)
        (void)snprintf(out, PROGRESS_PHRASE, " in step %llu%s%s", (unsigned long long)p->step,
                       text ? ", " : "", p->text);
    else if (text)
        (void)snprintf(out, PROGRESS_PHRASE, " in %s", p->text);
}
