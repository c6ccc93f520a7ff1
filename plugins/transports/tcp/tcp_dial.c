/* tcp_dial.c - handshakes as they happen on a stream, and the end that dials: it tries again until
 * dial_ns is over, for the other end may be about to listen. */
#include "tcp_tuning.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Times that a peer may hang up in the handshake before that is taken for an answer, and how long
 * since the first: of many that dial at once it hangs up on all but STRANGERS_MAX. Pause between
 * tries. */
enum { REFUSALS_MAX = 3, REFUSED_NS = 1000000000, REDIAL_NS = 50000000, DIAL_WAY = 160 };

/* What can pass (nobody listens yet, a link that is down) is tried again; what can't (another key,
 * nonsense) ends the connection. */
void dial_failed(stream_t *s, lh_status_t status, const char *text)
{
    lh_conn_t *c = s->conn;
    const bool met = s->state == STREAM_SHAKING || s->state == STREAM_GREETING;
    const uint32_t index = s->index;
    if (c->state >= CONN_BROKEN) return;
    if (status == LH_DENIED || status == LH_CORRUPT || status == LH_NO_MEMORY) {
        conn_break(c, status, "%s at %s: %s", c->peer_text, c->address_text, text);
        return;
    }
    (void)snprintf(c->reason, sizeof(c->reason), "%s", text);
    /* Of the streams after the first, whose key was proven, the link may have been cut
     * meanwhile. */
    const bool refused = met && index == 0;
    if (refused && c->dial_refusals++ == 0) c->refused_since = c->transport->now;
    if (refused && c->dial_refusals >= REFUSALS_MAX &&
        c->transport->now - c->refused_since >= REFUSED_NS) {
        conn_break(c, LH_DENIED,
                   "%s at %s closed the connection in the handshake, %u times: it has another key, "
                   "or listens with another level of security than ours (%s)",
                   c->peer_text, c->address_text, c->dial_refusals,
                   c->security == LH_SECURITY_PLAIN ? "plain" : "with a key");
        return;
    }
    /* Closed now and dialled again after a pause: the peer may be about to listen. */
    stream_close(s, true);
    s->state = STREAM_NONE; /* dial_serve frees it and dials again */
    s->index = index;
    c->redial_at = c->transport->now + REDIAL_NS;
}

/* On every stream: who we are, whom we want, which stream of how many. */
static void send_greeting(stream_t *s)
{
    lh_conn_t *c = s->conn;
    uint8_t bytes[HELLO_BYTES];
    size_t sent = 0;
    greeting_t g = {.hello = c->hello,
                    .to = c->peer,
                    .security = c->security,
                    .stream = s->index,
                    .streams = c->stream_count,
                    .step = conn_step(c)};
    memcpy(g.token, c->token, TOKEN_BYTES);
    greeting_write(&g, bytes);
    s->state = STREAM_GREETING;
    if (!stream_put(s, (frame_t){.type = FRAME_HELLO, .length = HELLO_BYTES}, bytes)) {
        (void)stream_fail(s, LH_NO_MEMORY, "no memory for a greeting");
        return;
    }
    (void)stream_push(s, &sent);
}

/* Two keys from the handshake, one a direction; the handshake itself is not needed any more. At
 * `known` it has proven who both ends are, and frames are as in plain. */
static bool seals_new(stream_t *s)
{
    const lh_host_t *host = s->transport->host;
    const bool listens = s->listens;
    const uint32_t level = listens ? s->listener->security : s->conn->security;
    const bool encrypts = level == LH_SECURITY_PRIVATE, seals = level != LH_SECURITY_KNOWN;
    uint8_t secrets[2][SECRET_BYTES]; /* of the end that dials, of the end that listens */
    lh_status_t status = seals ? tls_secrets(s->tls, secrets) : LH_OK;
    const uint8_t *mine = secrets[listens], *its = secrets[!listens];
    if (seals && status == LH_OK) status = seal_new(host, mine, encrypts, false, &s->seals[0]);
    if (seals && status == LH_OK) status = seal_new(host, its, encrypts, true, &s->seals[1]);
    secret_wipe(secrets, sizeof(secrets));
    s->proven = tls_peer(s->tls);
    tls_free(s->tls);
    s->tls = NULL;
    return status == LH_OK ? true : stream_fail(s, LH_NO_MEMORY, "no memory for keys");
}

/* What it has to send always fits into a fresh socket. */
static bool stream_shake(stream_t *s)
{
    const uint8_t *out;
    size_t taken, bytes;
    const lh_status_t status = tls_step(s->tls, s->stage + s->stage_first,
                                        s->stage_last - s->stage_first, &taken, &out, &bytes);
    s->stage_first += (uint32_t)taken;
    if (status < 0 && s->listens) return stream_fail(s, status, "no TLS handshake");
    if (bytes > 0 && send(s->fd, out, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)bytes)
        return stream_fail(s, LH_PEER_LOST, "the handshake can't be sent");
    if (status < 0)
        return stream_fail(s, LH_DENIED, "it could not prove that it has this job's key");
    if (status == LH_AGAIN) return true;
    if (!seals_new(s)) return false;
    s->state = STREAM_GREETING;
    if (!s->listens) send_greeting(s);
    return s->state == STREAM_GREETING;
}

/* "by eth1 to 10.0.0.7:29500: " of a stream where there are several ways, else nothing. */
static void dial_way(const lh_conn_t *c, uint32_t index, char *out, size_t room)
{
    const lh_transport_t *t = c->transport;
    struct sockaddr_storage to;
    socklen_t length;
    char text[80];
    out[0] = '\0';
    const place_t *from = address_way(t, &c->address, index, &to, &length);
    if (from == NULL || (!t->by_card && address_count(&c->address) == 1)) return;
    address_text(&to, text, sizeof(text));
    (void)snprintf(out, room, "by %s to %s: ", from->name, text);
}

/* Each may pass while a job starts: refused, unreachable, timed out. */
static void dial_lost(stream_t *s, int error)
{
    char way[DIAL_WAY];
    dial_way(s->conn, s->index, way, sizeof(way));
    (void)stream_fail(s, LH_UNREACHABLE, "%s%s", way, strerror(error));
}

/* The socket is connected, or has failed: SO_ERROR says which. */
static void stream_connected(stream_t *s)
{
    lh_conn_t *c = s->conn;
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) {
        dial_lost(s, error);
        return;
    }
    stream_watch_out(s, false);
    socket_prepare(s->fd, c->silence_ns);
    if (s->index == 0) { /* the round trip is known now, and the other end not yet told */
        conn_tune(c, s->fd);
        c->stream_count = c->tuning.streams;
    }
    if (c->security == LH_SECURITY_PLAIN) {
        send_greeting(s);
        return;
    }
    if (tls_new(s->transport->tls_context, s->transport->host, c->peer, &s->tls) != LH_OK) {
        (void)stream_fail(s, LH_DENIED, "there is no key to prove who we are");
        return;
    }
    s->state = STREAM_SHAKING;
    (void)stream_shake(s);
}

/* Bytes for a stream that is not open. False: none, or it is over. */
static bool read_some(stream_t *s)
{
    /* A stranger's bytes are counted over all of its handshake; who waits for its welcome has
     * nothing to say, and is only looked at for its end. */
    size_t room = s->stage_size - s->stage_last;
    if (s->listens && room > STRANGER_BYTES - s->strange_bytes)
        room = STRANGER_BYTES - s->strange_bytes;
    if (room == 0 || s->state == STREAM_OFFERED) room = 1;
    if (s->stage_last == s->stage_size || (s->listens && s->strange_bytes == STRANGER_BYTES))
        return stream_fail(s, LH_DENIED, "a greeting that is too long");
    const ssize_t n = recv(s->fd, s->stage + s->stage_last, room, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) return stream_fail(s, LH_UNREACHABLE, "%s", n < 0 ? strerror(errno) : "it hung up");
    if (s->state == STREAM_OFFERED)
        return stream_fail(s, LH_CORRUPT, "it does not wait for its welcome");
    s->stage_last += (uint32_t)n;
    s->strange_bytes += (uint32_t)n;
    return true;
}

/* One step of whatever the stream waits for; called when epoll says that something has come. */
void stream_progress(stream_t *s)
{
    if (s->state == STREAM_CONNECTING) {
        stream_connected(s);
        return;
    }
    if (s->state < STREAM_SHAKING || s->state > STREAM_OFFERED || !read_some(s)) return;
    if (s->state == STREAM_SHAKING && !stream_shake(s)) return;
    if (s->state == STREAM_GREETING) (void)stream_eat(s);
}

/* Dials stream `index` anew; what was there before is freed. */
static void stream_dial(lh_conn_t *c, uint32_t index)
{
    stream_t *s;
    stream_free(c->streams[index]);
    c->streams[index] = NULL;
    if (stream_new(c->transport, STAGE_BYTES, &s) != LH_OK) {
        conn_break(c, LH_NO_MEMORY, "no memory for a stream");
        return;
    }
    stream_adopt(c, s, index);
    s->card = index % c->transport->here_count;
    s->state = STREAM_CONNECTING;
    s->fd = socket_dial(c, index);
    if (s->fd < 0 || stream_watch(s) != LH_OK) dial_lost(s, errno);
}

/* Where nothing has failed yet, and there are several ways, it is told which of them is silent. */
static void dial_silence(lh_conn_t *c)
{
    char way[DIAL_WAY];
    uint32_t i = 0;
    while (i + 1 < c->stream_count && c->streams[i] != NULL && c->streams[i]->state == STREAM_OPEN)
        i++;
    dial_way(c, i, way, sizeof(way));
    if (c->reason[0] == '\0' && way[0] != '\0')
        (void)snprintf(c->reason, sizeof(c->reason), "%sno answer", way);
}

/* Of every poll, while a connection is not up: the deadline, then the first stream, then all others
 * at once. */
void dial_serve(lh_conn_t *c)
{
    if (!c->dialed || c->state > CONN_JOINING) return;
    const uint64_t now = c->transport->now;
    if (now >= c->dial_deadline) {
        dial_silence(c);
        conn_break(c, LH_UNREACHABLE, "%s at %s: no connection after %.1f s%s%s", c->peer_text,
                   c->address_text, (double)c->dial_ns / 1e9, c->reason[0] != '\0' ? ": " : "",
                   c->reason);
        return;
    }
    /* The others need the token that the first one's welcome brings. */
    const uint32_t wanted = c->state == CONN_DIALING ? 1 : c->stream_count;
    for (uint32_t i = 0; i < wanted && c->state <= CONN_JOINING && now >= c->redial_at; i++)
        if (c->streams[i] == NULL || c->streams[i]->state == STREAM_NONE) stream_dial(c, i);
}
