/* tcp_send.c - which bytes leave next, and on which stream: messages are cut in the order posted,
 * and a stream takes the next piece when the kernel has taken its last one (TCP_NOTSENT_LOWAT
 * bounds what waits there unsent).
 *
 * So streams share the work by how fast they take it, without a plan: a slow one takes fewer
 * pieces. Small messages leave together, in one system call for up to BATCH frames. */
#include "tcp_warm.h"

#include "tcp_work.h"
#include "tcp_zero.h"

/* Of one turn of a connection; how long grants wait for data that goes the same way; the shortest part
 * of a message that goes over a stream of its own. */
enum { PUSH_BYTES = 1 << 20, GRANT_DELAY_NS = 50000, LEAST_PART = 32 << 10 };

/* The message that may leave next, or NULL. */
static operation_t *next_send(lh_conn_t *c)
{
    if (c->send_next == c->send_end) return NULL;
    operation_t *op = &c->sends[c->send_next % DEPTH];
    /* How many messages this one is ahead of the peer's receives. */
    const int32_t ahead = (int32_t)(c->send_next - c->granted);
    if (ahead < 0 || (op->bytes <= EAGER_BYTES && ahead < EAGER_SLOTS)) return op;
    return NULL;
}

/* The next `length` bytes of a message become a frame of this stream's batch. */
static bool stream_cut_frame(stream_t *s, operation_t *op, uint64_t length)
{
    lh_conn_t *c = s->conn;
    frame_t f = {.type = FRAME_DATA,
                 .message = c->send_next,
                 .offset = op->total,
                 .total = op->bytes,
                 .length = (uint32_t)length,
                 .tag = op->tag};
    if (!stream_cut(s, &f, op->data + op->total)) return false;
    op->total += length;
    op->frames++;
    if (op->total == op->bytes) c->send_next++;
    return true;
}

/* Receives that the peer has not heard of, and no frame to tell it with. */
static bool grant_due(const lh_conn_t *c)
{
    if (c->advertised == c->recv_end) return false;
    return c->grant_now || c->transport->now - c->grant_since > GRANT_DELAY_NS;
}

/* How much of a message one stream takes. Between sites each is paced to its part of the rate, and
 * what waits for a message waits for the last of it: so all of them carry a part. What may come before
 * its receive is one frame, as it is kept in one slot. */
static uint64_t part_of(const lh_conn_t *c, const operation_t *op)
{
    const uint64_t most = c->tuning.chunk_bytes, part = op->bytes / c->stream_count + 1;
    if (c->link.scope != LH_LINK_WAN || op->bytes <= EAGER_BYTES || part >= most) return most;
    return part < LEAST_PART ? LEAST_PART : part;
}

/* What a batch may hold. It is bounded, or grants and small messages of later turns would wait behind
 * it; between sites to one part, as the next is for another stream. */
static uint64_t batch_most(const lh_conn_t *c, uint64_t part)
{
    return c->link.scope == LH_LINK_WAN || part > BATCH_BYTES ? part : BATCH_BYTES;
}

/* True: the batch holds something. */
static bool stream_fill_batch(stream_t *s)
{
    lh_conn_t *c = s->conn;
    operation_t *op = NULL;
    uint64_t batch = 0;
    uint32_t frames = 0;
    while (frames < BATCH && (op = next_send(c)) != NULL) {
        const uint64_t rest = op->bytes - op->total, part = part_of(c, op);
        const uint64_t length = rest < part ? rest : part;
        if (frames > 0 && batch + length > batch_most(c, part)) break;
        if (!stream_cut_frame(s, op, length))
            return stream_fail(s, LH_NO_MEMORY, "no memory to seal a frame");
        batch += length;
        frames++;
    }
    if (frames > 0 && !work_seal(s, batch))
        return stream_fail(s, LH_NO_MEMORY, "no memory to seal a frame");
    if (frames == 0 && grant_due(c)) {
        if (!stream_put(s, (frame_t){.type = FRAME_GRANT}, NULL))
            return stream_fail(s, LH_NO_MEMORY, "no memory to seal a frame");
        frames = 1;
    }
    /* Every frame has carried the grants. */
    if (frames == 0) return false;
    c->advertised = c->recv_end;
    c->grant_now = false;
    c->grant_since = 0;
    if (batch > 0) warm_sent(c, batch);
    s->sent += batch;
    atomic_fetch_add_explicit(&c->bytes_sent, batch, memory_order_relaxed);
    return true;
}

/* Time in which something was posted and the peer had no receive for it: for the report, which
 * tells a slow link from a late peer. */
static void watch_starved(lh_conn_t *c)
{
    const bool starved = c->send_next != c->send_end && next_send(c) == NULL;
    if (starved && c->starved_since == 0) c->starved_since = c->transport->now;
    if (starved || c->starved_since == 0) return;
    atomic_fetch_add_explicit(&c->starved_ns, c->transport->now - c->starved_since,
                              memory_order_relaxed);
    c->starved_since = 0;
}

/* Frames that are under way are finished, then the peer is told why; then it is over. A socket that has
 * pages is closed with a reset, which would throw the word away where it waits behind them: so they are
 * waited for, as long as the end may take. */
static void push_end(lh_conn_t *c)
{
    for (uint32_t i = 0; i < c->stream_count && c->end_by == NULL; i++) {
        stream_t *s = c->streams[i];
        size_t bytes = 0;
        /* The first stream that takes it will do. */
        if (s == NULL || s->state != STREAM_OPEN || s->sealing) continue;
        if (!stream_push(s, &bytes)) return;
        if (s->blocked || !stream_put(s, c->end, NULL)) continue;
        if (!stream_push(s, &bytes)) return;
        if (s->blocked) return;
        c->end_by = s;
    }
    if (c->end_by != NULL) zero_collect(c->end_by);
    const bool has_left = c->end_by != NULL && !zero_holds(c->end_by);
    if (has_left || c->transport->now >= c->end_deadline) conn_break(c, c->why, "%s", c->reason);
}

/* Streams take turns at being the first, so that none is always served last. */
bool conn_push(lh_conn_t *c)
{
    size_t all = 0;
    if (c->state == CONN_ENDING) push_end(c);
    if (c->state != CONN_UP) return false;
    warm_settle(c);
    for (bool moved = true; moved && all < PUSH_BYTES;) {
        moved = false;
        for (uint32_t i = 0; i < c->stream_count && c->state == CONN_UP; i++) {
            stream_t *s = c->streams[(c->turn + i) % c->stream_count];
            size_t bytes = 0;
            if (s->vector_done == s->vector_count && !stream_fill_batch(s)) continue;
            if (s->sealing) continue; /* work_take has it back */
            if (!stream_push(s, &bytes)) return false;
            all += bytes;
            moved |= bytes > 0 && !s->blocked;
        }
        if (c->state != CONN_UP) return false;
        if (moved) c->turn = (c->turn + 1) % c->stream_count;
    }
    if (warm_may_push(c) && !warm_push(c, &all)) return false;
    watch_starved(c);
    return all > 0;
}

/* Whether a push would hand something to the kernel; asked before the host sleeps. */
bool conn_can_push(const lh_conn_t *c)
{
    if (c->state != CONN_UP) return false;
    bool idle = false;
    for (uint32_t i = 0; i < c->stream_count; i++) {
        const stream_t *s = c->streams[i];
        if (s->vector_done < s->vector_count && !s->blocked && !s->sealing) return true;
        idle |= s->vector_done == s->vector_count;
    }
    return idle && (warm_may_push(c) || next_send((lh_conn_t *)(uintptr_t)c) != NULL);
}
