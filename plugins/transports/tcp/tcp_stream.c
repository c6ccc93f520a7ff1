/* tcp_stream.c - a socket: its memory, its place in epoll, frames on their way into the kernel.
 *
 * What leaves is a batch: heads in the stream's own memory, payloads where the caller has them (or,
 * encrypted, in scratch), as vectors of one sendmsg. A batch is finished before the next begins, so
 * places in it can be used again. Frames are cut first and sealed then, so that a thread may do the
 * latter for all of them; and a payload that leaves from the caller's pages has a sendmsg of its own. */
#include "tcp_work.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <longhaul/crc32c.h>

#include "tcp_zero.h"

/* A stranger's stage is small: it has not earned more. */
lh_status_t stream_new(lh_transport_t *t, uint32_t stage_bytes, stream_t **out)
{
    stream_t *s = t->host->alloc(t->host, sizeof(*s), 64);
    if (s == NULL) return LH_NO_MEMORY;
    s->stage = t->host->alloc(t->host, stage_bytes, 64);
    if (s->stage == NULL) {
        t->host->release(t->host, s);
        return LH_NO_MEMORY;
    }
    s->watch.kind = WATCH_STREAM;
    s->transport = t;
    s->stage_size = stage_bytes;
    s->fd = -1;
    *out = s;
    return LH_OK;
}

static void socket_close(stream_t *s)
{
    (void)close(s->fd); /* leaves epoll */
    s->fd = -1;
}

/* With abort the kernel throws away what it holds and tells the peer with a reset: no orphan keeps
 * TCP memory. */
void stream_close(stream_t *s, bool abort)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    work_drop(s);
    if (s->state == STREAM_OPEN) s->transport->open_streams--;
    s->state = STREAM_CLOSED;
    if (s->fd < 0) return;
    /* A message whose pages it has is not done, so that it may not leave any more in any case: also not
     * where the reset is refused, and the socket closed without it. */
    const bool is_cut_off = zero_holds(s);
    if (abort || is_cut_off) (void)setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    if (is_cut_off) zero_reset(s);
    if (!zero_holds(s)) socket_close(s);
}

bool stream_let_go(stream_t *s, bool force)
{
    if (s->state != STREAM_CLOSED || s->fd < 0) return true;
    zero_collect(s);
    if (zero_holds(s) && !force) return false;
    socket_close(s);
    return true;
}

/* With everything it holds; the socket is reset if it is still open. */
void stream_free(stream_t *s)
{
    if (s == NULL) return;
    const lh_host_t *host = s->transport->host;
    stream_close(s, true);
    (void)stream_let_go(s, true);
    tls_free(s->tls);
    seal_free(s->seals[0]);
    seal_free(s->seals[1]);
    host->release(host, s->scratch);
    host->release(host, s->stage);
    host->release(host, s);
}

/* A socket that connects is writable once it has. */
lh_status_t stream_watch(stream_t *s)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &s->watch};
    if (s->state == STREAM_CONNECTING) event.events |= EPOLLOUT;
    s->watched = event.events;
    return epoll_ctl(s->transport->epoll, EPOLL_CTL_ADD, s->fd, &event) == 0 ? LH_OK : LH_IO;
}

static void stream_watch_for(stream_t *s, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = &s->watch};
    if (s->watched == events || s->fd < 0) return;
    if (epoll_ctl(s->transport->epoll, EPOLL_CTL_MOD, s->fd, &event) == 0) s->watched = events;
}

/* Writability is watched only while the kernel refuses bytes: it is true nearly always. */
void stream_watch_out(stream_t *s, bool on)
{
    stream_watch_for(s, on ? s->watched | EPOLLOUT : s->watched & ~(uint32_t)EPOLLOUT);
}

/* Not watched only while somebody sleeps and a thread has to open what came: until then the stream is
 * not read, and what came behind would wake the sleeper again and again. */
void stream_watch_in(stream_t *s, bool on)
{
    stream_watch_for(s, on ? s->watched | EPOLLIN : s->watched & ~(uint32_t)EPOLLIN);
}

/* One piece of memory behind the batch's others. */
static void vector_add(stream_t *s, const void *bytes, size_t length)
{
    if (length == 0) return;
    s->vectors[s->vector_count++] = (struct iovec){(void *)(uintptr_t)bytes, length};
}

/* Head and payload under one tag, which goes into the head's last bytes. */
static bool seal_frame(stream_t *s, uint32_t i)
{
    seal_t *seal = s->seals[0];
    uint8_t *head = s->heads[i];
    return seal_begin(seal, s->frames[i].sequence, head, HEAD_PROVEN) &&
           seal_add(seal, s->frames[i].from, s->frames[i].to, s->frames[i].length) &&
           seal_end(seal, head + HEAD_PROVEN);
}

/* On a thread of the pool, too: it touches the batch and the seal, and nothing else. */
bool stream_seal(stream_t *s)
{
    if (s->seals[0] == NULL) return true;
    for (; s->sealed_count < s->frame_count; s->sealed_count++)
        if (!seal_frame(s, s->sealed_count)) return false;
    return true;
}

/* Where a batch's encrypted payloads lie, one after the other. */
static uint8_t *scratch_room(stream_t *s, uint64_t bytes)
{
    const lh_host_t *host = s->transport->host;
    /* What of it this batch has taken already. */
    uint64_t used = 0;
    for (uint32_t i = 0; i < s->vector_count; i++)
        if (s->scratch != NULL && (uint8_t *)s->vectors[i].iov_base >= s->scratch &&
            (uint8_t *)s->vectors[i].iov_base < s->scratch + s->scratch_bytes)
            used += s->vectors[i].iov_len;
    /* A whole batch fits from the start: what lies here can't move before it has left. */
    if (s->conn != NULL && used == 0) {
        if (bytes < BATCH_BYTES) bytes = BATCH_BYTES;
        if (bytes < s->conn->tuning.chunk_bytes) bytes = s->conn->tuning.chunk_bytes;
    }
    if (used + bytes <= s->scratch_bytes) return s->scratch + used;
    if (used > 0) return NULL;
    host->release(host, s->scratch);
    s->scratch = host->alloc(host, bytes, 64);
    s->scratch_bytes = s->scratch == NULL ? 0 : bytes;
    return s->scratch;
}

/* Grants go with every frame: a head has room for them, and a frame of their own costs a packet. */
bool stream_cut(stream_t *s, frame_t *f, const void *payload)
{
    if (s->vector_done == s->vector_count)
        s->vector_done = s->vector_count = s->frame_done = s->frame_count = s->sealed_count = 0;
    /* Sealed payloads are sent from where they lie; encrypted ones need memory of their own. */
    const bool encrypts = s->seals[0] != NULL && seal_encrypts(s->seals[0]) && f->length > 0;
    uint8_t *room = encrypts ? scratch_room(s, f->length) : NULL;
    if (encrypts && room == NULL) return false;

    uint8_t *head = s->heads[s->frame_count];
    f->stream = (uint16_t)s->index;
    f->sequence = s->out_sequence++;
    f->grants = s->conn != NULL ? s->conn->recv_end : 0;
    if (s->seals[0] == NULL) frame_set_crc(f, lh_crc32c(0, payload, f->length));
    frame_write(f, head);
    vector_add(s, head, HEAD_BYTES);
    vector_add(s, encrypts ? room : payload, f->length);
    s->frames[s->frame_count].vectors = s->vector_count;
    s->frames[s->frame_count].message = f->message;
    s->frames[s->frame_count].is_data = f->type == FRAME_DATA;
    s->frames[s->frame_count].zero_copies = zero_takes(s, f);
    s->frames[s->frame_count].sequence = f->sequence;
    s->frames[s->frame_count].from = payload;
    s->frames[s->frame_count].to = room;
    s->frames[s->frame_count++].length = f->length;
    return true;
}

bool stream_add(stream_t *s, frame_t *f, const void *payload)
{
    if (!stream_cut(s, f, payload)) return false;
    if (stream_seal(s)) return true;
    s->vector_done = s->vector_count; /* without a seal it must not leave */
    return false;
}

bool stream_put(stream_t *s, frame_t f, const void *payload)
{
    if (s->vector_done != s->vector_count) return false;
    if (f.length > 0) memcpy(s->small, payload, f.length);
    return stream_add(s, &f, s->small);
}

/* A send is done when the kernel has all of its frames, as TCP keeps copies, and has let go of those
 * of its pages that it did not copy. */
void stream_part_left(stream_t *s, uint32_t message)
{
    operation_t *op = &s->conn->sends[message % DEPTH];
    op->frames--;
    op->done = op->frames == 0 && op->total == op->bytes;
}

/* The kernel took this many bytes of the batch. */
static void batch_advance(stream_t *s, size_t bytes)
{
    while (bytes > 0) {
        struct iovec *v = &s->vectors[s->vector_done];
        const size_t part = bytes < v->iov_len ? bytes : v->iov_len;
        v->iov_base = (uint8_t *)v->iov_base + part;
        v->iov_len -= part;
        bytes -= part;
        if (v->iov_len == 0) s->vector_done++;
    }
    for (; s->frame_done < s->frame_count; s->frame_done++) {
        if (s->frames[s->frame_done].vectors > s->vector_done) return;
        if (s->frames[s->frame_done].is_data) stream_part_left(s, s->frames[s->frame_done].message);
    }
}

/* The peer may have said why before it closed: that is the better reason. */
static bool send_failed(stream_t *s, int error)
{
    s->send_error = error;
    /* A FRAME_END may lie in the socket still. */
    if (s->state == STREAM_OPEN && !stream_pull_all(s)) return false;
    return stream_lost(s, error);
}

/* Up to the next payload that leaves from its own pages, or that one; as sendmsg. */
static ssize_t batch_send(stream_t *s)
{
    uint32_t frame = s->frame_done;
    while (frame < s->frame_count && !s->frames[frame].zero_copies)
        frame++;
    /* A frame's payload is its last vector. */
    const bool is_last = frame == s->frame_count;
    const uint32_t end = is_last ? s->vector_count : s->frames[frame].vectors - 1;
    if (end == s->vector_done) return zero_send(s, frame);
    const struct msghdr message = {.msg_iov = s->vectors + s->vector_done,
                                   .msg_iovlen = end - s->vector_done};
    /* A head waits for its payload: it is worth no packet of its own. */
    return sendmsg(s->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | (is_last ? 0 : MSG_MORE));
}

/* Until the batch is empty or the kernel is full. */
bool stream_push(stream_t *s, size_t *bytes)
{
    s->blocked = false;
    while (s->vector_done < s->vector_count) {
        const ssize_t n = batch_send(s);
        if (n < 0 && errno == EINTR) continue;
        /* The kernel is full: poll asks again, or epoll says when. */
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
            s->blocked = true;
            return true;
        }
        if (n < 0) return send_failed(s, errno);
        batch_advance(s, (size_t)n);
        *bytes += (size_t)n;
    }
    return true;
}
