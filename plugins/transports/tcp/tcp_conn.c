/* tcp_conn.c - a connection from its first stream to its last event. */
#include "tcp_tuning.h"

#include <stdarg.h>
#include <stdio.h>

#define END_NS 80000000ull /* how long a FRAME_END may wait for room */

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

void conn_free(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        stream_free(c->streams[i]);
    c->transport->budget_used -= c->budget_used;
    host->release(host, c->slot_memory);
    host->release(host, c);
}

/* What the caller was told has left goes on to the peer, unless a send is cut off: then nothing of
 * it may leave any more, for its buffer is about to be the caller's again. */
static void close_streams(lh_conn_t *c)
{
    const bool abort = c->send_first != c->send_end && !c->sends[c->send_first % DEPTH].done;
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        if (c->streams[i] != NULL) stream_close(c->streams[i], abort);
    atomic_store_explicit(&c->paths_up, 0, memory_order_relaxed);
}

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
    c->state = CONN_BROKEN;
    c->why = why;
    close_streams(c);
}

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
    if (c->open_count < c->stream_count) {
        c->state = CONN_JOINING;
        return;
    }
    c->state = CONN_UP;
    c->transport->unsettled--;
    c->up_due = true;
    conn_tune_whole(c);
    conn_say_tuning(c);
}

bool conn_has_events(const lh_conn_t *c)
{
    return c->up_due || c->state == CONN_BROKEN ||
           (c->send_first != c->send_end && c->sends[c->send_first % DEPTH].done) ||
           (c->recv_first != c->recv_end && c->recvs[c->recv_first % DEPTH].done);
}

static void tell(sink_t *s, const lh_wire_event_t *event)
{
    char *row = s->rows + (size_t)s->row_size * s->count++;
    memset(row, 0, s->row_size);
    memcpy(row, event, s->row_size < sizeof(*event) ? s->row_size : sizeof(*event));
}

static void tell_operation(lh_conn_t *c, sink_t *s, const operation_t *op, uint32_t type)
{
    const bool well = op->done;
    const lh_wire_event_t event = {.cookie = op->cookie,
                                   .bytes = well ? op->total : 0,
                                   .reason = well ? NULL : c->reason,
                                   .type = type,
                                   .status = well ? LH_OK : c->why,
                                   .tag = op->tag};
    tell(s, &event);
}

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

void conn_tell(lh_conn_t *c, sink_t *s)
{
    if (c->up_due && s->count < s->max) {
        c->up_due = false;
        tell(s, &(lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_UP});
    }
    tell_queue(c, s, true, false);
    tell_queue(c, s, false, false);
    if (c->state != CONN_BROKEN) return;
    if (!c->down_said && s->count < s->max) {
        c->down_said = true;
        if (c->why != LH_CANCELLED)
            tell(s, &(lh_wire_event_t){.cookie = c->cookie,
                                       .type = LH_WIRE_DOWN,
                                       .status = c->why,
                                       .reason = c->reason});
    }
    if (!c->down_said) return;
    tell_queue(c, s, true, true);
    tell_queue(c, s, false, true);
    if (s->count == s->max || c->send_first != c->send_end || c->recv_first != c->recv_end) return;
    c->up_due = false;
    c->state = CONN_DRAINED;
    tell(s, &(lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_DRAINED});
}
