/* tcp_conn.c - a connection from its first stream to its last event.
 *
 * There are two ways to an end. conn_break closes the sockets at once. conn_end is for a fault that
 * the peer should hear of: a last frame says which, for at most END_NS, and then it breaks. In both
 * every operation gets its event from conn_tell, as the caller's rows have room, and DRAINED is the
 * last. */
#include "tcp_tuning.h"
#include "tcp_work.h"
#include "tcp_zero.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#define END_NS 80000000ull /* how long a FRAME_END may wait for room, and what is before it */
enum { PAUSE_NS = 200000 };

/* In the transport's list from here on. */
lh_status_t conn_new(lh_transport_t *t, lh_conn_t **out)
{
    lh_conn_t *c = t->host->alloc(t->host, sizeof(*c), 64);
    if (c == NULL) return LH_NO_MEMORY;
    c->transport = t;
    c->next = t->conns;
    t->conns = c;
    *out = c;
    return LH_OK;
}

/* For sentences: a rank alone says little to who has to find the machine. */
void conn_name(lh_conn_t *c, uint32_t rank)
{
    const lh_host_t *host = c->transport->host;
    lh_rank_info_t info = {.struct_size = sizeof(info)};
    c->peer = rank;
    if (host->rank_info(host, rank, &info) == LH_OK && info.host_name[0] != '\0')
        (void)snprintf(c->peer_text, sizeof(c->peer_text), "rank %u on %.63s", rank,
                       info.host_name);
    else
        (void)snprintf(c->peer_text, sizeof(c->peer_text), "rank %u", rank);
}

/* All tasks that no thread has begun are forgotten first: while one is waited for, its thread would
 * begin the next, and all of them would be waited for in turn. */
static void streams_close(lh_conn_t *c, bool abort)
{
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        if (c->streams[i] != NULL) work_forget(c->streams[i]);
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        if (c->streams[i] != NULL) stream_close(c->streams[i], abort);
}

/* Whether the kernel has pages of sends still; not for long: see tcp_zero.c. */
static bool conn_holds_pages(lh_conn_t *c, bool is_late)
{
    bool holds = false;
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        holds |= c->streams[i] != NULL && !stream_let_go(c->streams[i], is_late);
    return holds;
}

/* Where nobody polls any more; for all streams together. poll(2) would not wait: a socket that was
 * reset has POLLHUP set for good. */
static void conn_await_pages(lh_conn_t *c)
{
    static const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (uint64_t ns = 0; conn_holds_pages(c, ns >= ZERO_WAIT_NS); ns += PAUSE_NS)
        (void)nanosleep(&pause, NULL);
}

/* What it took of the kernel's memory is for others now: its sockets are closed. */
static void budget_release(lh_conn_t *c)
{
    c->transport->budget_used -= c->budget_used;
    c->budget_used = 0;
}

void conn_free(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    streams_close(c, true);
    conn_await_pages(c);
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        stream_free(c->streams[i]);
    budget_release(c);
    host->release(host, c->slot_memory);
    host->release(host, c);
}

/* What the caller was told has left goes on to the peer, unless a send is cut off: then nothing of
 * it may leave any more, for its buffer is about to be the caller's again. */
static void close_streams(lh_conn_t *c)
{
    const bool abort = c->send_first != c->send_end && !c->sends[c->send_first % DEPTH].done;
    streams_close(c, abort);
    atomic_store_explicit(&c->paths_up, 0, memory_order_relaxed);
}

/* fmt NULL: the reason stays. The text is made first, as an argument may be the old reason. */
void conn_break(lh_conn_t *c, lh_status_t why, const char *fmt, ...)
{
    if (c->state >= CONN_BROKEN) return;
    if (fmt != NULL) {
        char text[REASON_BYTES];
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        memcpy(c->reason, text, sizeof(text));
    }
    if (c->state == CONN_DIALING || c->state == CONN_JOINING) c->transport->unsettled--;
    /* What the peer has acknowledged is done, though nobody has looked yet. */
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        if (c->streams[i] != NULL && c->streams[i]->fd >= 0) zero_collect(c->streams[i]);
    c->state = CONN_BROKEN;
    c->why = why;
    c->pages_deadline = c->transport->now + ZERO_WAIT_NS;
    close_streams(c);
    budget_release(c); /* not when it is freed: the next connection may be chosen for before that */
}

/* From here on nothing is received: what came after the fault is not to be trusted. */
void conn_end(lh_conn_t *c, lh_status_t why, const frame_t *end, const char *fmt, ...)
{
    if (c->state >= CONN_ENDING) return;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(c->reason, sizeof(c->reason), fmt, args);
    va_end(args);
    if (c->state != CONN_UP) c->transport->unsettled--;
    c->state = CONN_ENDING;
    c->why = why;
    c->end = *end;
    c->end_deadline = c->transport->now + END_NS;
    (void)conn_push(c);
}

/* A handshake is done. The connection is up when its last stream is. */
void conn_stream_open(lh_conn_t *c, stream_t *s)
{
    s->state = STREAM_OPEN;
    s->deadline = 0;
    c->transport->open_streams++;
    c->open_count++;
    atomic_store_explicit(&c->paths_up, c->open_count, memory_order_relaxed);
    atomic_store_explicit(&c->heard_ns, c->transport->now, memory_order_relaxed);
    socket_prepare(s->fd, c->silence_ns);
    socket_tune(c, s->fd, false);
    stream_watch_out(s, false);
    zero_begin(s);
    /* The first stream has brought the number of streams: the others can be dialled. */
    if (c->open_count < c->stream_count) {
        c->state = CONN_JOINING;
        return;
    }
    c->state = CONN_UP;
    c->transport->unsettled--;
    c->up_due = true;
    conn_tune_whole(c);
    conn_say_tuning(c);
    work_begin(c);
}

/* Whether a poll would tell something; asked before the host sleeps. */
bool conn_has_events(const lh_conn_t *c)
{
    return c->up_due || c->state == CONN_BROKEN ||
           (c->send_first != c->send_end && c->sends[c->send_first % DEPTH].done) ||
           (c->recv_first != c->recv_end && c->recvs[c->recv_first % DEPTH].done);
}

/* One row, as far as the caller's version of it goes. */
static void tell_row(sink_t *s, const lh_wire_event_t *event)
{
    char *row = s->rows + (size_t)s->row_size * s->count++;
    memset(row, 0, s->row_size);
    memcpy(row, event, s->row_size < sizeof(*event) ? s->row_size : sizeof(*event));
}

/* One that is done ends well, also on a connection that has broken since. */
static void tell_operation(lh_conn_t *c, sink_t *s, const operation_t *op, uint32_t type)
{
    const bool well = op->done;
    const lh_wire_event_t event = {.cookie = op->cookie,
                                   .bytes = well ? op->total : 0,
                                   .reason = well ? NULL : c->reason,
                                   .type = type,
                                   .status = well ? LH_OK : c->why,
                                   .tag = op->tag};
    tell_row(s, &event);
}

/* Those that are done, from the first on; also_cut_off: all, as the connection has broken. */
static void tell_queue(lh_conn_t *c, sink_t *s, bool receives, bool also_cut_off)
{
    operation_t *rows = receives ? c->recvs : c->sends;
    uint32_t *first = receives ? &c->recv_first : &c->send_first;
    const uint32_t end = receives ? c->recv_end : c->send_end;
    while (*first != end && s->count < s->max) {
        const operation_t *op = &rows[*first % DEPTH];
        if (!op->done && !also_cut_off) return;
        tell_operation(c, s, op, receives ? LH_WIRE_RECEIVED : LH_WIRE_SENT);
        ++*first;
    }
}

/* In this order: UP, what ended well, DOWN, what was cut off, DRAINED. */
void conn_tell(lh_conn_t *c, sink_t *s)
{
    if (c->up_due && s->count < s->max) {
        c->up_due = false;
        tell_row(s, &(lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_UP});
    }
    tell_queue(c, s, true, false);
    tell_queue(c, s, false, false);
    if (c->state != CONN_BROKEN) return;
    if (!c->down_said && s->count < s->max) {
        c->down_said = true;
        if (c->why != LH_CANCELLED)
            tell_row(s, &(lh_wire_event_t){.cookie = c->cookie,
                                           .type = LH_WIRE_DOWN,
                                           .status = c->why,
                                           .reason = c->reason});
    }
    /* DOWN comes before the operations that it has cut off. */
    if (!c->down_said) return;
    tell_queue(c, s, true, true);
    if (conn_holds_pages(c, c->transport->now >= c->pages_deadline)) return;
    tell_queue(c, s, false, true);
    if (s->count == s->max || c->send_first != c->send_end || c->recv_first != c->recv_end) return;
    c->up_due = false;
    c->state = CONN_DRAINED;
    tell_row(s, &(lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_DRAINED});
}
