/* tcp_greet.c - the listening end: who may come in. A stranger costs a socket, a few KiB and two
 * seconds at most; it is answered nothing until it has said what only a rank of this job can say.
 */
#include "tcp_tuning.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* For who comes in: with EPOLLIN, or not at all. */
static void listener_watch(lh_listener_t *l, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = &l->watch};
    for (uint32_t i = 0; i < l->fd_count; i++)
        (void)epoll_ctl(l->transport->epoll, EPOLL_CTL_MOD, l->fds[i], &event);
}

/* There is room again: a listener that was full is watched anew. */
void stranger_take(stream_t *s)
{
    lh_listener_t *l = s->listener;
    stream_t **at = &l->strangers;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->next = NULL;
    l->stranger_count--;
    l->transport->unsettled--;
    if (l->full) {
        listener_watch(l, EPOLLIN);
        l->full = false;
    }
}

/* Freed by the next poll, as rows of epoll may still point to it. */
void stranger_drop(stream_t *s)
{
    lh_transport_t *t = s->transport;
    t->host->count(t->host, "tcp.strangers", 1);
    stranger_take(s);
    stream_close(s, false);
    s->next = t->dead_strangers;
    t->dead_strangers = s;
}

/* Makes room among those that have said nothing, the oldest first, so that sockets that stay silent
 * can't keep a rank out; false: all have said who they are, and wait for the host. */
static bool make_room(lh_listener_t *l)
{
    if (l->stranger_count < STRANGERS_MAX) return true;
    for (stream_t *s = l->strangers; s != NULL; s = s->next)
        if (s->state != STREAM_OFFERED) {
            stranger_drop(s);
            return true;
        }
    return false;
}

/* Takes over fd, which came by a card, unless it returns false. With a key the TLS handshake comes
 * first: nothing is parsed of who has not shown that it has one. */
static bool stranger_new(lh_listener_t *l, int fd, uint32_t card)
{
    lh_transport_t *t = l->transport;
    stream_t *s;
    if (stream_new(t, STRANGER_BYTES, &s) != LH_OK) return false;
    s->fd = fd;
    s->card = card;
    s->listener = l;
    s->listens = true;
    s->deadline = t->now + STRANGER_NS;
    s->state = l->security == LH_SECURITY_PLAIN ? STREAM_GREETING : STREAM_SHAKING;
    if ((s->state == STREAM_SHAKING &&
         tls_new(t->tls_context, t->host, UINT32_MAX, &s->tls) != LH_OK) ||
        stream_watch(s) != LH_OK) {
        stream_free(s);
        return true; /* closed with it */
    }
    /* The oldest first: that order is the one of accept and of make_room. */
    stream_t **end = &l->strangers;
    while (*end != NULL)
        end = &(*end)->next;
    *end = s;
    l->stranger_count++;
    t->unsettled++;
    stream_progress(s);
    return true;
}

/* Accepts all who wait at one of the sockets. A listener whose strangers all wait for the host is not
 * watched any more: the kernel's backlog holds the rest. */
static void listener_serve_socket(lh_listener_t *l, uint32_t card)
{
    for (int turn = 0; turn < STRANGERS_MAX; turn++) {
        if (!make_room(l)) {
            listener_watch(l, 0);
            l->full = true;
            return;
        }
        const int fd = accept4(l->fds[card], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == ECONNABORTED || errno == EINTR)) continue;
        if (fd < 0) return;
        if (!stranger_new(l, fd, card)) (void)close(fd);
    }
}

void listener_serve(lh_listener_t *l)
{
    for (uint32_t i = 0; i < l->fd_count && !l->full; i++)
        listener_serve_socket(l, i);
}

/* Two seconds to say who it is; then it may wait as long as the host takes. */
void listener_expire(lh_listener_t *l)
{
    for (stream_t *s = l->strangers, *next; s != NULL; s = next) {
        next = s->next;
        if (s->state != STREAM_OFFERED && l->transport->now > s->deadline) stranger_drop(s);
    }
}

/* A welcome or refusal; a fresh socket always has room for it. */
static void stranger_answer(stream_t *s, const welcome_t *w)
{
    uint8_t bytes[WELCOME_BYTES];
    size_t sent = 0;
    welcome_write(w, bytes);
    if (stream_put(s, (frame_t){.type = FRAME_WELCOME, .length = WELCOME_BYTES}, bytes))
        (void)stream_push(s, &sent);
}

/* Told to who has sent a whole greeting; all else is dropped without a word. The version says nothing
 * that a stranger could not find by trying: of a wrong job it is told in any case. */
static bool stranger_refuse(stream_t *s, uint32_t why)
{
    const welcome_t w = {.answer = why, .streams = why == REFUSED_VERSION ? FRAMES_VERSION : 0};
    stranger_answer(s, &w);
    if (s->state != STREAM_CLOSED) stranger_drop(s);
    return false;
}

/* A connection that the host closes instead of admitting it. */
void turn_away(lh_conn_t *c)
{
    const welcome_t w = {.answer = REFUSED_HOST};
    stream_t *s = c->streams[0];
    if (!c->dialed && !c->admitted && s != NULL && s->state == STREAM_OFFERED)
        stranger_answer(s, &w);
}

/* In constant time. */
static bool same_tokens(const uint8_t *a, const uint8_t *b)
{
    unsigned differ = 0;
    for (int i = 0; i < TOKEN_BYTES; i++)
        differ |= (unsigned)(a[i] ^ b[i]);
    return differ == 0;
}

/* The three by which ranks tell connections apart. */
static bool same_hello(const lh_hello_t *a, const lh_hello_t *b)
{
    return a->rank == b->rank && a->service == b->service && a->serial == b->serial;
}

/* Whether there is such a connection, open or on its way: a rank has one of each kind with
 * another. */
static bool is_twice(const stream_t *s)
{
    const lh_hello_t *hello = &s->greeting.hello;
    for (const lh_conn_t *c = s->transport->conns; c != NULL; c = c->next)
        if (!c->dialed && c->state < CONN_BROKEN && same_hello(&c->hello, hello)) return true;
    for (const stream_t *at = s->listener->strangers; at != NULL; at = at->next)
        if (at != s && at->state == STREAM_OFFERED && same_hello(&at->greeting.hello, hello))
            return true;
    return false;
}

/* A stream beyond the first: its token names the connection, whose first stream has been
 * admitted. */
static bool stream_join(stream_t *s)
{
    const greeting_t *g = &s->greeting;
    lh_conn_t *c = s->transport->conns;
    while (c != NULL && !(!c->dialed && c->admitted && same_tokens(c->token, g->token)))
        c = c->next;
    if (c == NULL || c->state != CONN_JOINING || !same_hello(&c->hello, &g->hello) ||
        g->stream >= c->stream_count || c->streams[g->stream] != NULL)
        return stranger_refuse(s, REFUSED_STREAM);
    stranger_take(s);
    stream_adopt(c, s, g->stream);
    return admit_stream(s);
}

/* The HELLO of a stranger, who has proven the key where there is one. The order of the checks is that
 * of what may be said: job and epoch before ranks. */
static bool greet_dialer(stream_t *s)
{
    const lh_world_t *world = s->transport->host->world;
    greeting_t *g = &s->greeting;
    if (greeting_is_of_other_version(s->small_in)) return stranger_refuse(s, REFUSED_VERSION);
    if (greeting_read(s->small_in, g) != NULL || s->in.stream != g->stream) {
        stranger_drop(s);
        return false;
    }
    s->index = g->stream;
    /* With a key these facts were proven by the handshake's identity; without one they are what
     * keeps jobs apart. */
    if (g->hello.job != world->job) return stranger_refuse(s, REFUSED_JOB);
    if (g->hello.epoch != world->epoch) return stranger_refuse(s, REFUSED_EPOCH);
    if (g->to != world->rank ||
        (s->listener->security != LH_SECURITY_PLAIN && s->proven != g->hello.rank))
        return stranger_refuse(s, REFUSED_RANK);
    if (g->security != s->listener->security) return stranger_refuse(s, REFUSED_SECURITY);
    if (g->stream > 0) return stream_join(s);
    if (is_twice(s)) return stranger_refuse(s, REFUSED_TWICE);
    s->state = STREAM_OFFERED;
    return true;
}

/* From here on the stream is the connection's to free. */
void stream_adopt(lh_conn_t *c, stream_t *s, uint32_t index)
{
    s->conn = c;
    s->listener = NULL;
    s->index = index;
    c->streams[index] = s;
}

/* The stage of a stranger is small; its first frames may lie in it already. */
static bool grow_stage(stream_t *s)
{
    const lh_host_t *host = s->transport->host;
    uint8_t *stage = host->alloc(host, STAGE_BYTES, 64);
    if (stage == NULL) return false;
    memcpy(stage, s->stage + s->stage_first, s->stage_last - s->stage_first);
    s->stage_last -= s->stage_first;
    s->stage_first = 0;
    host->release(host, s->stage);
    s->stage = stage;
    s->stage_size = STAGE_BYTES;
    return true;
}

/* Open first, then the welcome: the peer may send as soon as it has that. */
bool admit_stream(stream_t *s)
{
    lh_conn_t *c = s->conn;
    welcome_t w = {.answer = WELCOME, .streams = c->stream_count};
    memcpy(w.token, c->token, TOKEN_BYTES);
    if (!grow_stage(s)) {
        conn_break(c, LH_NO_MEMORY, "%s: no memory for a stream", c->peer_text);
        return false;
    }
    conn_stream_open(c, s);
    stranger_answer(s, &w);
    return s->state == STREAM_OPEN;
}

/* The WELCOME that the end that dials waits for. The first says how many streams there are to
 * be. */
static bool greet_listener(stream_t *s)
{
    lh_conn_t *c = s->conn;
    welcome_t w;
    const char *wrong = welcome_read(s->small_in, &w);
    if (wrong == NULL && w.answer == WELCOME && s->index > 0 && w.streams != c->stream_count)
        wrong = "a welcome with another number of streams";
    if (wrong != NULL) return stream_fail(s, LH_CORRUPT, "%s", wrong);
    if (w.answer == REFUSED_VERSION) {
        conn_break(c, LH_ABI,
                   "%s refused the connection: its frames of tcp are of version %u, ours of "
                   "version %u; both need the same version of this plugin",
                   c->peer_text, w.streams, (uint32_t)FRAMES_VERSION);
        return false;
    }
    if (w.answer != WELCOME) {
        /* Its host may close what it has not admitted because it ends, for a reason of its own. */
        const bool knows_us = w.answer == REFUSED_TWICE || w.answer == REFUSED_STREAM ||
                              w.answer == REFUSED_HOST;
        conn_break(c, knows_us ? LH_UNREACHABLE : LH_DENIED, "%s refused the connection: %s",
                   c->peer_text, welcome_reason(w.answer));
        return false;
    }
    /* The end that listens may want fewer streams, and more where this end's INI doesn't say. */
    if (s->index == 0) {
        conn_settle_streams(c, conn_step(c) == 0 && w.streams > c->stream_count ? c->stream_count
                                                                                : w.streams);
        memcpy(c->token, w.token, TOKEN_BYTES);
    }
    conn_stream_open(c, s);
    return true;
}

bool greet_frame(stream_t *s)
{
    return s->listens ? greet_dialer(s) : greet_listener(s);
}
