/* tcp_receive.c - bytes from a socket to where they belong: a payload whose receive is posted is
 * read straight into it, with the next head behind it in the same system call.
 *
 * A stream reads in one of two ways. Between payloads it reads into its stage, a small buffer, and
 * parses heads and small payloads from there (stream_eat). Inside of a payload that is left long
 * enough it reads into the receive's own memory (stream_pull), checking as it goes, or, where there
 * are threads, having it checked when it is whole (tcp_work.h). */
#include "tcp_work.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <longhaul/crc32c.h>

#include "tcp_zero.h"

enum {
    READ_MAX = 256 << 10, /* of one call: its checksum finds it in the cache */
    TAIL_BYTES = 4 << 10, /* behind a payload: the next head and what is small */
    DIRECT_BYTES = 512,   /* payloads below go through the stage */
    PULL_BYTES = 1 << 20, /* of one turn */
};

/* Whose fault depends on how far the stream was: see the four cases. */
bool stream_fail(stream_t *s, lh_status_t status, const char *fmt, ...)
{
    char text[REASON_BYTES];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    /* A stranger is dropped, a dial tried again, a connection ended; one that ends already ends for
     * its own reason. */
    if (s->conn == NULL) {
        stranger_drop(s);
    } else if (s->conn->dialed && s->state != STREAM_OPEN) {
        dial_failed(s, status, text);
    } else if (s->conn->state < CONN_ENDING) {
        conn_break(s->conn, status, "%s: %s", s->conn->peer_text, text);
    } else if (s->conn->state == CONN_ENDING) {
        conn_break(s->conn, s->conn->why, "%s", s->conn->reason);
    }
    return false;
}

/* Both ends are told both tags, or both sizes. */
static bool message_refuse(lh_conn_t *c, lh_status_t status, uint32_t message,
                           const operation_t *op, uint32_t tag, uint64_t total)
{
    const frame_t end = {.type = FRAME_END,
                         .message = message,
                         .offset = (uint64_t)-status,
                         .total = op->bytes,
                         .tag = op->tag};
    if (status == LH_MISMATCH)
        conn_end(c, status, &end,
                 "message %u of %s: it was sent with tag %u, the receive has tag %u", message,
                 c->peer_text, tag, op->tag);
    else
        conn_end(c, status, &end,
                 "message %u of %s, tag %u: %llu bytes, the receive has room for %llu", message,
                 c->peer_text, tag, (unsigned long long)total, (unsigned long long)op->bytes);
    return false;
}

/* A frame of a message whose receive is posted: checks that it fits and where it goes. Frames of
 * one message may come by several streams in any order. */
static bool begin_posted(stream_t *s)
{
    lh_conn_t *c = s->conn;
    const frame_t *f = &s->in;
    operation_t *op = &c->recvs[f->message % DEPTH];
    if ((int32_t)(f->message - c->recv_first) < 0 || op->done)
        return stream_fail(s, LH_CORRUPT, "a frame of message %u, which is complete", f->message);
    if (!op->begun) {
        if (op->tag != f->tag)
            return message_refuse(c, LH_MISMATCH, f->message, op, f->tag, f->total);
        if (f->total > op->bytes)
            return message_refuse(c, LH_TRUNCATED, f->message, op, f->tag, f->total);
        op->begun = true;
        op->total = f->total;
    }
    if (op->tag != f->tag || op->total != f->total)
        return stream_fail(s, LH_CORRUPT, "frames of message %u that do not agree", f->message);
    s->to = op->data + f->offset;
    return true;
}

/* A message that came before its receive. */
static bool begin_early(stream_t *s)
{
    lh_conn_t *c = s->conn;
    const frame_t *f = &s->in;
    slot_t *slot = &c->slots[f->message % EAGER_SLOTS];
    /* Only whole small messages come early, and only as many as there are slots. */
    if (f->message - c->recv_end >= EAGER_SLOTS || f->total > EAGER_BYTES ||
        f->length != f->total || slot->taken)
        return stream_fail(s, LH_CORRUPT,
                           "message %u of %llu bytes without a grant; expected one below %u, or of "
                           "the %d behind that a whole one of %d bytes at most",
                           f->message, (unsigned long long)f->total, c->recv_end, EAGER_SLOTS,
                           EAGER_BYTES);
    if (c->slot_memory == NULL) {
        const lh_host_t *host = c->transport->host;
        c->slot_memory = host->alloc(host, (size_t)EAGER_SLOTS * EAGER_BYTES, 64);
        if (c->slot_memory == NULL)
            return stream_fail(s, LH_NO_MEMORY, "no memory for early messages");
    }
    *slot = (slot_t){.taken = true, .tag = f->tag, .bytes = f->length};
    s->in_slot = true;
    s->to = c->slot_memory + (size_t)(f->message % EAGER_SLOTS) * EAGER_BYTES;
    return true;
}

/* They only grow; an older number comes by a slower stream. */
static bool take_grants(stream_t *s, uint32_t grants)
{
    lh_conn_t *c = s->conn;
    if ((int32_t)(grants - c->granted) <= 0) return true;
    if ((int32_t)(grants - c->send_first) > 2 * DEPTH)
        return stream_fail(s, LH_CORRUPT,
                           "grants for %u messages, of which %u are posted; expected %u at most",
                           grants, c->send_end, c->send_first + 2 * DEPTH);
    c->granted = grants;
    return true;
}

/* The peer says what it did not like; it is told here in terms of our own send. */
static bool peer_ended(stream_t *s)
{
    const frame_t *f = &s->in;
    lh_conn_t *c = s->conn;
    const operation_t *op = &c->sends[f->message % DEPTH];
    const lh_status_t status = f->offset == (uint64_t)-LH_MISMATCH    ? LH_MISMATCH
                               : f->offset == (uint64_t)-LH_TRUNCATED ? LH_TRUNCATED
                               : f->offset == (uint64_t)-LH_CORRUPT   ? LH_CORRUPT
                                                                      : LH_PEER_LOST;
    if (status == LH_MISMATCH)
        conn_break(c, status, "message %u to %s: sent with tag %u, its receive has tag %u",
                   f->message, c->peer_text, op->tag, f->tag);
    else if (status == LH_TRUNCATED)
        conn_break(c, status, "message %u to %s, tag %u: %llu bytes, its receive has room for %llu",
                   f->message, c->peer_text, op->tag, (unsigned long long)op->bytes,
                   (unsigned long long)f->total);
    else
        conn_break(c, status, "%s ended the connection: what we sent %s", c->peer_text,
                   status == LH_CORRUPT ? "did not match its checksum or its seal"
                                        : "made no sense to it");
    return false;
}

static bool frame_end(stream_t *s);

/* A whole head lies in the stage. The sequence catches frames that were lost or repeated on the
 * way, which TCP alone would not if somebody rewrites it. */
static bool frame_begin(stream_t *s)
{
    frame_t *f = &s->in;
    const uint8_t *head = s->stage + s->stage_first;
    const char *wrong = frame_read(head, f);
    if (wrong != NULL) return stream_fail(s, LH_CORRUPT, "%s", wrong);
    if (f->sequence != s->in_sequence)
        return stream_fail(s, LH_CORRUPT, "frame %llu of stream %u, expected %llu",
                           (unsigned long long)f->sequence, s->index,
                           (unsigned long long)s->in_sequence);
    /* Greetings only before a stream is open, each from its own end; everything else only after. */
    const bool open = s->state == STREAM_OPEN;
    const bool greets = f->type == FRAME_HELLO || f->type == FRAME_WELCOME;
    if (open == greets || (open && f->stream != s->index) ||
        (!open && (f->type == FRAME_HELLO) != s->listens))
        return stream_fail(s, LH_CORRUPT, "a frame of type %u, stream %u, out of place", f->type,
                           f->stream);
    if (s->seals[1] != NULL && !seal_begin(s->seals[1], f->sequence, head, HEAD_PROVEN))
        return stream_fail(s, LH_IO, "the seal can't be opened");
    s->in_sequence++;
    s->stage_first += HEAD_BYTES;
    s->left = f->length;
    s->crc = 0;
    s->in_slot = s->defers = false;
    if (!open) s->to = s->small_in;
    if (f->type == FRAME_PAD) s->to = s->transport->sink;
    if (f->type == FRAME_DATA &&
        !((int32_t)(f->message - s->conn->recv_end) < 0 ? begin_posted(s) : begin_early(s)))
        return false;
    /* What lies in a slot may move to its receive before it is whole. */
    s->defers = f->type == FRAME_DATA && !s->in_slot && work_opens(s, f->length);
    return s->left > 0 ? true : frame_end(s);
}

/* The receive of a message that came before it is posted: what is there moves from the slot into
 * the receive's memory, and where `s` still brings the rest, that follows it there. Were the slot
 * kept until then, the receive would count as a grant all the same, and the message EAGER_SLOTS
 * later, which the peer may then send on a faster stream, would find no room. */
static void slot_leave(lh_conn_t *c, uint32_t message, stream_t *s)
{
    slot_t *slot = &c->slots[message % EAGER_SLOTS];
    operation_t *op = &c->recvs[message % DEPTH];
    const uint8_t *from = c->slot_memory + (size_t)(message % EAGER_SLOTS) * EAGER_BYTES;
    const uint32_t there = slot->bytes - (s == NULL ? 0 : s->left);
    if (op->tag != slot->tag) {
        (void)message_refuse(c, LH_MISMATCH, message, op, slot->tag, slot->bytes);
        return;
    }
    if (slot->bytes > op->bytes) {
        (void)message_refuse(c, LH_TRUNCATED, message, op, slot->tag, slot->bytes);
        return;
    }
    if (there > 0) memcpy(op->data, from, there);
    op->total = slot->bytes;
    op->begun = true;
    if (s == NULL) {
        op->got = op->total;
        op->done = true;
    } else {
        s->to = op->data + there;
        s->in_slot = false;
    }
    *slot = (slot_t){.taken = false};
}

/* Called as a receive is posted: what came early of its message moves there. */
void receive_posted(lh_conn_t *c, uint32_t message)
{
    const slot_t *slot = &c->slots[message % EAGER_SLOTS];
    if (!slot->taken) return;
    stream_t *brings = NULL;
    for (uint32_t i = 0; i < c->stream_count && !slot->complete; i++) {
        stream_t *s = c->streams[i];
        if (s != NULL && s->in_slot && s->left > 0 && s->in.message == message) brings = s;
    }
    if (slot->complete || brings != NULL) slot_leave(c, message, brings);
}

/* A payload is complete and right. */
static bool data_end(stream_t *s)
{
    lh_conn_t *c = s->conn;
    const frame_t *f = &s->in;
    s->received += f->length;
    zero_answer(s, f);
    atomic_fetch_add_explicit(&c->bytes_received, f->length, memory_order_relaxed);
    if (s->in_slot) {
        c->slots[f->message % EAGER_SLOTS].complete = true; /* its receive is not posted yet */
        return true;
    }
    /* Where others have brought all of the message meanwhile its row may be another one's by now. */
    operation_t *op = &c->recvs[f->message % DEPTH];
    const bool is_over = (int32_t)(f->message - c->recv_first) < 0 || op->done;
    if (is_over || f->length > op->total - op->got)
        return stream_fail(s, LH_CORRUPT, "frames of message %u that overlap", f->message);
    op->got += f->length;
    op->done = op->got == op->total;
    return true;
}

/* A frame is complete. Its checksum or seal decides whether it counts: a data frame that fails is
 * told to the peer, so that both ends name the same frame. */
static bool frame_judge(stream_t *s, bool right)
{
    const frame_t *f = &s->in;
    if (!right && s->state == STREAM_OPEN && f->type == FRAME_DATA) {
        const frame_t end = {.type = FRAME_END,
                             .message = f->message,
                             .offset = (uint64_t)-LH_CORRUPT,
                             .tag = f->tag};
        conn_end(
            s->conn, LH_CORRUPT, &end,
            "%s: frame %llu of stream %u (message %u, tag %u, %u bytes at %llu) does not match "
            "its %s",
            s->conn->peer_text, (unsigned long long)f->sequence, s->index, f->message, f->tag,
            f->length, (unsigned long long)f->offset, s->seals[1] != NULL ? "seal" : "checksum");
        return false;
    }
    if (!right)
        return stream_fail(s, LH_CORRUPT, "a frame that does not match its checksum or seal");
    if (s->state != STREAM_OPEN) return greet_frame(s);
    if (!take_grants(s, f->grants)) return false;
    if (f->type == FRAME_END) return peer_ended(s);
    return f->type == FRAME_DATA ? data_end(s) : true;
}

static bool frame_end(stream_t *s)
{
    return frame_judge(s, s->seals[1] != NULL ? seal_check(s->seals[1], s->in.seal)
                                              : frame_crc_is(&s->in, s->crc));
}

/* What lies in the stage behind it has waited. Where another stream has ended the connection
 * meanwhile nothing counts any more. */
bool stream_opened(stream_t *s, bool right)
{
    return s->conn->state < CONN_ENDING && frame_judge(s, right) && stream_eat(s);
}

/* The next n bytes of a payload lie where they belong. */
static bool payload_took(stream_t *s, uint32_t n)
{
    if (s->defers)
        (void)0; /* a thread looks at all of them */
    else if (s->seals[1] == NULL)
        s->crc = lh_crc32c(s->crc, s->to, n);
    else if (!seal_add(s->seals[1], s->to, s->to, n))
        return stream_fail(s, LH_IO, "the seal can't be opened");
    s->to += n;
    s->left -= n;
    if (s->left > 0) return true;
    if (!s->defers) return frame_end(s);
    work_open(s);
    return true;
}

/* Heads and payloads from the stage, until it holds less than a head; what is left moves to its
 * start. */
bool stream_eat(stream_t *s)
{
    bool good = true;
    while (good && !s->opening && (s->state == STREAM_OPEN || s->state == STREAM_GREETING)) {
        const uint32_t there = s->stage_last - s->stage_first;
        if (s->left > 0 && there > 0) {
            const uint32_t n = there < s->left ? there : s->left;
            memcpy(s->to, s->stage + s->stage_first, n);
            s->stage_first += n;
            good = payload_took(s, n);
        } else if (s->left == 0 && there >= HEAD_BYTES) {
            good = frame_begin(s);
        } else {
            break;
        }
    }
    if (!good) return false;
    const uint32_t rest = s->stage_last - s->stage_first;
    if (s->stage_first > 0 && rest > 0) memmove(s->stage, s->stage + s->stage_first, rest);
    s->stage_first = 0;
    s->stage_last = rest;
    return true;
}

/* The kernel's word as a sentence; ETIMEDOUT is its keepalive or our own measure of silence. */
bool stream_lost(stream_t *s, int error)
{
    if (error == 0) return stream_fail(s, LH_PEER_LOST, "it closed the connection");
    if (error == ETIMEDOUT)
        return stream_fail(s, LH_PEER_LOST, "silent for %.1f s (cut link, or a host that hangs)",
                           (double)s->conn->silence_ns / 1e9);
    return stream_fail(s, LH_PEER_LOST, "%s", strerror(error));
}

/* Why the peer ended may lie in another stream than the one that was seen to end. */
static void pull_others(lh_conn_t *c)
{
    if (c->is_last_look) return;
    c->is_last_look = true;
    for (uint32_t i = 0; i < c->stream_count; i++)
        if (c->streams[i] != NULL) (void)stream_pull_all(c->streams[i]);
    c->is_last_look = false;
}

/* Before a connection is given up the other streams are read once more: see pull_others. */
static bool receive_failed(stream_t *s, ssize_t n, int error)
{
    if (s->conn->is_last_look) return false;
    pull_others(s->conn);
    return stream_lost(s, n < 0 ? error : s->send_error);
}

/* A short read means that the socket is empty: then no second call is made to learn it. */
bool stream_pull(stream_t *s, bool *more)
{
    /* A payload that ends within this read brings the bytes behind it into the stage: its next
     * head, often. */
    uint64_t taken = 0;
    *more = false;
    while (s->state == STREAM_OPEN && !s->opening && s->conn->state < CONN_ENDING) {
        struct iovec v[2] = {{s->stage + s->stage_last, s->stage_size - s->stage_last}, {NULL, 0}};
        /* The stage is empty inside of a payload, as stream_eat takes all of it that is there. */
        const bool direct = s->left >= DIRECT_BYTES;
        if (direct) {
            v[0] = (struct iovec){s->to, s->left < READ_MAX ? s->left : READ_MAX};
            if (s->left <= READ_MAX) v[1] = (struct iovec){s->stage, TAIL_BYTES};
        }
        const ssize_t n = v[1].iov_len > 0 ? readv(s->fd, v, 2)
                                           : recv(s->fd, v[0].iov_base, v[0].iov_len, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return true;
        if (n <= 0) return receive_failed(s, n, errno);
        const size_t first = direct ? ((size_t)n < v[0].iov_len ? (size_t)n : v[0].iov_len) : 0;
        s->stage_last += (uint32_t)((size_t)n - first);
        if (first > 0 && !payload_took(s, (uint32_t)first)) return false;
        if (!stream_eat(s)) return false;
        atomic_store_explicit(&s->conn->heard_ns, s->transport->now, memory_order_relaxed);
        if ((size_t)n < v[0].iov_len + v[1].iov_len) return true;
        taken += (uint64_t)n;
        if (taken >= PULL_BYTES) {
            *more = true;
            return true;
        }
    }
    return s->state == STREAM_OPEN;
}

bool stream_pull_all(stream_t *s)
{
    bool more = true;
    while ((more || s->opening) && s->state == STREAM_OPEN && s->conn->state < CONN_ENDING)
        if (!work_settle(s) || !stream_pull(s, &more)) return false;
    return true;
}
