/* shm_message.c - messages through the rings: small ones are copied in and out, large ones in
 * memory that the peer has mapped are copied once, by the receiver, straight from the sender's.
 *
 * Sends are written in the order posted, and receives are filled in that order: a message is
 * matched by place and its tag only compared. A message goes the direct way if the peer has mapped
 * its region and it is long enough (option direct); the decision is made anew for each piece and
 * shows in the record. A direct send is done when the receiver has copied it (lane.copied), an
 * eager one as soon as it is in the ring.
 *
 * With checksums the receiver checks its copy and not the source, as the source may change after it
 * was checked. */
#include "shm.h"

/* So that the check of one piece and the copy of another overlap. */
static const uint64_t direct_piece = 256 << 10;

/* Counters of one writer: no locked instruction is needed. */
static void shm_counter_bump(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
                          memory_order_relaxed);
}

/* Whether the caller's rows have room for one more event. */
static bool sink_has_room(const shm_sink_t *s)
{
    return s->count < s->max;
}

/* One event, as far as the caller's version of the row goes. */
static void sink_tell(shm_sink_t *s, lh_wire_event_t event)
{
    char *row = (char *)s->events + (size_t)s->event_size * s->count++;
    const size_t bytes = s->event_size < sizeof(event) ? s->event_size : sizeof(event);
    memset(row, 0, s->event_size);
    memcpy(row, &event, bytes);
}

/* The queue is a ring of SHM_DEPTH rows. */
static shm_operation_t *queue_row(shm_queue_t *q, uint32_t index)
{
    return &q->rows[(q->first + index) % SHM_DEPTH];
}

static void queue_pop(shm_queue_t *q)
{
    q->first = (q->first + 1) % SHM_DEPTH;
    q->count--;
}

/* Whether the peer has mapped this region, by the bit that its take() has set. */
static bool peer_has(const lh_conn_t *c, const lh_region_t *r)
{
    if (r == NULL || r->id >= SHM_REGIONS) return false;
    const uint64_t word = atomic_load_explicit(
        &c->shared->sides[1 - c->side].taken[r->id / SHM_WORD], memory_order_acquire);
    return (word >> (r->id % SHM_WORD) & 1) != 0;
}

/* Of the record's head but for its sequence, which the ring sets when it is published. */
static uint32_t head_check(const lh_conn_t *c, const shm_record_t *record)
{
    return (uint32_t)c->transport->check(record, offsetof(shm_record_t, sequence));
}

/* The wake-up is left to the end of a step: one for all records. */
static void record_publish(lh_conn_t *c, shm_record_t *record, uint64_t inline_bytes)
{
    if (c->checksum) record->head_check = head_check(c, record);
    shm_ring_publish(&c->out, record, inline_bytes);
    c->published = true;
}

/* One record of the message. False: the ring is full. */
static bool write_eager(lh_conn_t *c, shm_operation_t *o)
{
    const uint64_t left = o->bytes - o->done, most = shm_ring_piece(&c->out);
    const uint64_t piece = left < most ? left : most;
    shm_record_t *record = shm_ring_room(&c->out, piece);
    if (record == NULL) return false;
    *record = (shm_record_t){
        .kind = SHM_EAGER, .tag = o->tag, .bytes = o->bytes, .piece = (uint32_t)piece};
    if (c->checksum) record->check = c->transport->check(o->data + o->done, piece);
    if (piece > 0) memcpy(record + 1, o->data + o->done, piece);
    o->done += piece;
    record_publish(c, record, piece);
    return true;
}

/* A record that points to a piece; `copies` is by which count of copied records the whole send is
 * done. */
static bool write_direct(lh_conn_t *c, shm_operation_t *o)
{
    const uint64_t left = o->bytes - o->done;
    const uint64_t piece = left < direct_piece ? left : direct_piece;
    shm_record_t *record = shm_ring_room(&c->out, 0);
    if (record == NULL) return false;
    const char *from = o->data + o->done;
    *record = (shm_record_t){.kind = SHM_DIRECT,
                             .tag = o->tag,
                             .bytes = o->bytes,
                             .offset = (uint64_t)(from - (const char *)o->region->arena.base),
                             .piece = (uint32_t)piece,
                             .region = o->region->id};
    if (c->checksum) record->check = c->transport->check(from, piece);
    o->done += piece;
    o->copies = ++c->direct_sent;
    record_publish(c, record, 0);
    return true;
}

/* A piece of a put, by a copy into the peer's memory; behind the last a record, if the peer is to
 * be told. */
static bool write_put(lh_conn_t *c, shm_operation_t *o)
{
    const uint64_t left = o->bytes - o->done;
    const uint64_t piece = left < direct_piece ? left : direct_piece;
    if (piece > 0) memcpy(o->remote->base + o->offset + o->done, o->data + o->done, piece);
    o->done += piece;
    if (o->done < o->bytes || o->tag == 0) return true;
    shm_record_t *record = shm_ring_room(&c->out, 0);
    if (record == NULL) return false;
    *record = (shm_record_t){.kind = SHM_SIGNAL, .tag = o->tag, .bytes = o->bytes};
    record_publish(c, record, 0);
    return true;
}

/* As much as the ring and the budget of a call allow. */
static void write_sends(lh_conn_t *c)
{
    uint64_t moved = 0;
    shm_queue_t *q = &c->sends;
    while (q->written < q->count && moved < SHM_BUDGET) {
        shm_operation_t *o = queue_row(q, q->written);
        const uint64_t before = o->done;
        /* Memory that no peer has mapped, and short messages, go through the ring. */
        const bool direct = o->kind == SHM_SEND && peer_has(c, o->region) &&
                            o->bytes >= c->transport->config.direct_bytes;
        const bool written = o->kind == SHM_PUT ? write_put(c, o)
                             : direct           ? write_direct(c, o)
                                                : write_eager(c, o);
        if (!written && shm_ring_is_wild(&c->out))
            shm_break(c, LH_CORRUPT, "rank %u has read what was never written into its ring",
                      c->peer);
        if (!written) return;
        moved += o->done - before;
        if (o->done == o->bytes) q->written++;
    }
}

/* In the order posted: one that is not copied yet holds up those behind it. */
static void tell_sent(lh_conn_t *c, shm_sink_t *s)
{
    shm_queue_t *q = &c->sends;
    while (q->written > 0 && sink_has_room(s)) {
        const shm_operation_t *o = queue_row(q, 0);
        const shm_lane_t *lane = c->out.lane;
        if (o->copies > 0 && atomic_load_explicit(&lane->copied, memory_order_acquire) < o->copies)
            return;
        shm_counter_bump(&c->bytes_sent, o->bytes);
        sink_tell(s, (lh_wire_event_t){.cookie = o->cookie,
                                       .bytes = o->bytes,
                                       .type = o->kind == SHM_PUT ? LH_WIRE_PUT : LH_WIRE_SENT,
                                       .tag = o->tag});
        queue_pop(q);
        q->written--;
    }
}

/* Where a direct record's bytes lie in this process; NULL: nowhere. */
static const char *direct_source(const lh_conn_t *c, const shm_record_t *record)
{
    const lh_remote_t *m = record->region < SHM_REGIONS ? c->mapped[record->region] : NULL;
    if (m == NULL || m->base == NULL || record->piece > m->bytes ||
        record->offset > m->bytes - record->piece)
        return NULL;
    return m->base + record->offset;
}

/* The receive that a message goes to, once its first piece has come. False: none yet, or it does
 * not fit and the connection is broken. */
static bool record_match(lh_conn_t *c, const shm_record_t *record)
{
    const shm_queue_t *q = &c->receives;
    if (q->count == 0) return false;
    const shm_operation_t *o = queue_row(&c->receives, 0);
    if (o->tag != record->tag)
        shm_break(c, LH_MISMATCH, "a message with tag %u met a receive with tag %u", record->tag,
                  o->tag);
    else if (o->bytes < record->bytes)
        shm_break(c, LH_TRUNCATED, "a message of %llu bytes met a receive of %llu bytes (tag %u)",
                  (unsigned long long)record->bytes, (unsigned long long)o->bytes, o->tag);
    return c->state == SHM_OPEN;
}

/* Copies a piece to where it belongs; false: the connection is broken. */
static bool copy_piece(lh_conn_t *c, const shm_record_t *record, const char *payload, char *to)
{
    const bool direct = record->kind == SHM_DIRECT;
    const char *from = direct ? direct_source(c, record) : payload;
    if (from == NULL) {
        shm_break(c, LH_CORRUPT,
                  "rank %u sends bytes %llu to %llu of its region %u, which is not "
                  "mapped that far",
                  c->peer, (unsigned long long)record->offset,
                  (unsigned long long)record->offset + record->piece, record->region);
        return false;
    }
    if (record->piece > 0) memcpy(to, from, record->piece);
    if (!direct) return true;
    /* A sender that gave up may have changed its buffer meanwhile. */
    shm_fence(memory_order_acquire);
    if (atomic_load(&c->shared->sides[1 - c->side].gone) != 0) {
        shm_break(c, LH_PEER_LOST, "rank %u gave up while its message was copied", c->peer);
        return false;
    }
    return true;
}

/* Of the copy, which nobody else can change. */
static bool check_piece(lh_conn_t *c, const shm_record_t *record, const char *copy)
{
    if (!c->checksum || c->transport->check(copy, record->piece) == record->check) return true;
    shm_break(c, LH_CORRUPT,
              "%u bytes of a message (tag %u) from rank %u don't match their checksum",
              record->piece, record->tag, c->peer);
    return false;
}

/* The record's room is free, and a direct one's source the sender's again. */
static void record_consume(lh_conn_t *c, const shm_record_t *record)
{
    if (record->kind == SHM_DIRECT)
        atomic_store_explicit(&c->in.lane->copied, ++c->direct_taken, memory_order_release);
    shm_ring_consume(&c->in, record);
    c->published = true;
}

/* LH_WIRE_RECEIVED, or of a put's signal LH_WIRE_ARRIVED. */
static void tell_received(lh_conn_t *c, shm_sink_t *s, const shm_operation_t *o, uint32_t type)
{
    shm_counter_bump(&c->bytes_received, o->bytes);
    sink_tell(
        s, (lh_wire_event_t){.cookie = o->cookie, .bytes = o->bytes, .type = type, .tag = o->tag});
}

/* It matches no receive: the event says tag and bytes. */
static bool read_signal(lh_conn_t *c, const shm_record_t *record, shm_sink_t *s)
{
    record_consume(c, record);
    tell_received(
        c, s, &(shm_operation_t){.cookie = c->cookie, .bytes = record->bytes, .tag = record->tag},
        LH_WIRE_ARRIVED);
    return true;
}

/* One record. False: nothing more can be read now. */
static bool read_record(lh_conn_t *c, shm_sink_t *s, uint64_t *moved)
{
    shm_record_t record;
    const char *payload;
    const lh_status_t status = shm_ring_next(&c->in, &record, &payload);
    if (status == LH_AGAIN) return false;
    if (status != LH_OK) {
        shm_break(c, LH_CORRUPT, "the ring from rank %u holds what is no record", c->peer);
        return false;
    }
    if (c->checksum && head_check(c, &record) != record.head_check) {
        shm_break(c, LH_CORRUPT, "a record from rank %u does not match its checksum", c->peer);
        return false;
    }
    if (record.kind == SHM_SIGNAL) return read_signal(c, &record, s);
    if (!record_match(c, &record)) return false;
    shm_operation_t *o = queue_row(&c->receives, 0);
    /* All pieces of a message say the same length, and none reaches past it. */
    if (record.piece > record.bytes - o->done || (o->done > 0 && record.bytes != o->copies)) {
        shm_break(c, LH_CORRUPT, "the pieces of a message from rank %u don't add up", c->peer);
        return false;
    }
    o->copies = record.bytes; /* of a receive: the length of the message that it gets */
    if (!copy_piece(c, &record, payload, o->data + o->done) ||
        !check_piece(c, &record, o->data + o->done))
        return false;
    record_consume(c, &record);
    o->done += record.piece;
    *moved += record.piece;
    if (o->done < record.bytes) return record.piece > 0;
    o->bytes = record.bytes;
    tell_received(c, s, o, LH_WIRE_RECEIVED);
    queue_pop(&c->receives);
    return true;
}

/* Until the ring is empty, the rows are full or the budget is used up. */
static void read_messages(lh_conn_t *c, shm_sink_t *s)
{
    uint64_t moved = 0;
    while (sink_has_room(s) && moved < SHM_BUDGET && read_record(c, s, &moved))
        ;
}

/* Each outstanding operation ends in one event, then the connection in its last. */
static void conn_drain(lh_conn_t *c, shm_sink_t *s)
{
    if (!c->down_said && sink_has_room(s)) {
        c->down_said = true;
        if (c->why != LH_CANCELLED)
            sink_tell(s, (lh_wire_event_t){.cookie = c->cookie,
                                           .type = LH_WIRE_DOWN,
                                           .status = c->why,
                                           .reason = c->reason});
    }
    /* What was posted and not done ends with the reason of the whole. */
    shm_queue_t *queues[] = {&c->sends, &c->receives};
    for (int i = 0; i < 2; i++)
        while (queues[i]->count > 0 && sink_has_room(s)) {
            const shm_operation_t *o = queue_row(queues[i], 0);
            sink_tell(s, (lh_wire_event_t){.cookie = o->cookie,
                                           .type = o->kind == SHM_RECEIVE ? LH_WIRE_RECEIVED
                                                   : o->kind == SHM_PUT   ? LH_WIRE_PUT
                                                                          : LH_WIRE_SENT,
                                           .status = c->why,
                                           .reason = c->reason,
                                           .tag = o->tag});
            queue_pop(queues[i]);
        }
    if (!c->down_said || c->sends.count + c->receives.count > 0 || !sink_has_room(s)) return;
    sink_tell(s, (lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_DRAINED});
    c->state = SHM_DRAINED;
}

/* Reading comes first: it frees room at the peer, which may wait for it to write. */
static void shm_step_open(lh_conn_t *c, shm_sink_t *s)
{
    if (!c->up_said) {
        if (!sink_has_room(s)) return;
        c->up_said = true;
        sink_tell(s, (lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_UP});
    }
    read_messages(c, s);
    if (c->state != SHM_OPEN) return;
    write_sends(c);
    tell_sent(c, s);
    shm_wake(c);
    /* What a peer wrote before it ended is read as far as receives wait for it. */
    if (c->ended && sink_has_room(s) && (c->receives.count == 0 || !shm_ring_any(&c->in)))
        shm_break(c, LH_PEER_LOST, "rank %u closed its end, or its process ended", c->peer);
}

/* One turn of a connection in any state; poll calls it for each. */
void shm_step(lh_conn_t *c, shm_sink_t *s)
{
    if (c->state == SHM_DIALING) {
        if (c->ended)
            shm_break(c, LH_UNREACHABLE, "rank %u closed the connection before it admitted it",
                      c->peer);
        else
            shm_dial(c);
    }
    if (c->state == SHM_OPEN) shm_step_open(c, s);
    if (c->state == SHM_BROKEN) conn_drain(c, s);
}

/* Whether a step would do something; asked before the host goes to sleep. It may say yes for
 * nothing, but never no where something waits. A put's signal needs no receive. */
bool shm_ready(const lh_conn_t *c)
{
    if (c->state == SHM_BROKEN) return true;
    if (c->state != SHM_OPEN) return false;
    if (!c->up_said || c->ended) return true;
    if (shm_ring_any(&c->in) && (c->receives.count > 0 || shm_ring_kind(&c->in) == SHM_SIGNAL))
        return true;
    const shm_queue_t *q = &c->sends;
    if (q->count == 0) return false;
    const uint64_t copied = atomic_load_explicit(&c->out.lane->copied, memory_order_acquire);
    if (q->written > 0 && q->rows[q->first].copies <= copied) return true;
    const uint64_t tail = atomic_load_explicit(&c->out.lane->tail, memory_order_acquire);
    return q->written < q->count && c->out.bytes - (c->out.at - tail) >= c->out.bytes / 8;
}

/* A connection that broke says why, to every later post. */
static lh_status_t check_post(lh_conn_t *c, const lh_region_t *r, const char *data, uint64_t bytes)
{
    const lh_host_t *host = c->transport->host;
    if (c->state >= SHM_BROKEN)
        return host->fail(host, c->why, "rank %u: %s", c->peer,
                          c->reason[0] != '\0' ? c->reason : "the connection was cancelled");
    if (r == NULL) return LH_OK;
    const char *base = r->arena.base;
    if (bytes > r->arena.bytes || data < base || data > base + (r->arena.bytes - bytes))
        return host->fail(host, LH_INVALID,
                          "a message of %llu bytes does not lie in its registered memory",
                          (unsigned long long)bytes);
    return LH_OK;
}

/* Posting is allowed before the connection is up: an early receive is a standing grant. */
static lh_status_t queue_post(shm_queue_t *q, const shm_operation_t *operation)
{
    if (q->count == SHM_DEPTH) return LH_AGAIN;
    *queue_row(q, q->count++) = *operation;
    return LH_OK;
}

/* Tries at once: a message that fits is in the ring when isend returns. */
static lh_status_t post_send(lh_conn_t *c, const shm_operation_t *operation)
{
    const lh_status_t status = queue_post(&c->sends, operation);
    if (status != LH_OK || c->state != SHM_OPEN) return status;
    write_sends(c);
    shm_wake(c);
    return LH_OK;
}

/* The region only says whether the direct way is open; without one the bytes go through the
 * ring. */
lh_status_t shm_isend(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                      uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = check_post(c, region, data, bytes);
    if (status != LH_OK) return status;
    return post_send(c, &(shm_operation_t){.data = (char *)(uintptr_t)data,
                                           .bytes = bytes,
                                           .cookie = cookie,
                                           .region = region,
                                           .tag = tag,
                                           .kind = SHM_SEND});
}

/* Nothing is moved here: the next step matches it with what has come. */
lh_status_t shm_irecv(lh_conn_t *c, lh_region_t *region, void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie)
{
    const lh_status_t status = check_post(c, region, data, bytes);
    if (status != LH_OK) return status;
    return queue_post(&c->receives, &(shm_operation_t){.data = data,
                                                       .bytes = bytes,
                                                       .cookie = cookie,
                                                       .region = region,
                                                       .tag = tag,
                                                       .kind = SHM_RECEIVE});
}

lh_status_t shm_post_put(lh_conn_t *c, const shm_operation_t *operation)
{
    const lh_status_t status = check_post(c, operation->region, operation->data, operation->bytes);
    return status == LH_OK ? post_send(c, operation) : status;
}
