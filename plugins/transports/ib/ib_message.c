/* ib_message.c - messages: a send waits for the grant of its receive, and is then written straight
 * into it, chunk by chunk, over whichever queue pairs have least to do. */
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>

#include "ib.h"

void ib_tell(ib_sink_t *s, lh_wire_event_t event)
{
    char *row = (char *)s->events + (size_t)s->event_size * s->count++;
    const size_t bytes = s->event_size < sizeof(event) ? s->event_size : sizeof(event);
    memset(row, 0, s->event_size);
    memcpy(row, &event, bytes);
}

static void ib_counter_bump(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
                          memory_order_relaxed);
}

/* The sender sees both ends' tags and lengths, so it is the one that finds mistakes. */
static bool begin_send(lh_conn_t *c, ib_operation_t *o)
{
    ib_grant_t grant;
    if (!ib_grant_read(c->board, c->send_next, &grant)) {
        ib_conn_break(c, LH_CORRUPT, "grant %llu from rank %u is none",
                      (unsigned long long)c->send_next, c->peer);
        return false;
    }
    if (grant.tag != o->tag)
        ib_conn_break(c, LH_MISMATCH, "a message with tag %u met a receive with tag %u", o->tag,
                      grant.tag);
    else if (grant.bytes < o->bytes)
        ib_conn_break(c, LH_TRUNCATED,
                      "a message of %llu bytes met a receive of %llu bytes (tag %u)",
                      (unsigned long long)o->bytes, (unsigned long long)grant.bytes, o->tag);
    o->chunk = c->security == LH_SECURITY_PRIVATE ? ib_private_chunk(c) : c->tuning.chunk_bytes;
    o->to = grant.address;
    memcpy(o->to_keys, grant.keys, sizeof(o->to_keys));
    return c->state == IB_OPEN;
}

static void write_granted(lh_conn_t *c)
{
    while (c->send_next < c->send_end && c->send_next < c->granted) {
        ib_operation_t *o = &c->sends[c->send_next % IB_DEPTH];
        if (o->chunk == 0 && !begin_send(c, o)) return;
        const uint64_t chunks = ib_chunks(o->bytes, o->chunk);
        while (o->out < chunks)
            if (!ib_pairs_write(c, c->send_next)) return;
        c->send_next++;
    }
}

void ib_messages_write(lh_conn_t *c)
{
    ib_private_post(c);
    write_granted(c);
    (void)ib_pairs_flush(c);
}

static bool send_is_done(const lh_conn_t *c)
{
    const ib_operation_t *o = &c->sends[c->send_first % IB_DEPTH];
    return c->send_first < c->send_next && o->back == o->out;
}

/* A peer gone wild may call a message whole while threads still write frames of it: until these are back the
 * buffer is not the host's again, and then they are one too many. */
static bool receive_is_done(const lh_conn_t *c)
{
    const ib_operation_t *o = &c->receives[c->receive_first % IB_DEPTH];
    return c->receive_first < c->receive_told && ib_inbox_whole(&o->inbox) && o->opening == 0;
}

bool ib_messages_ready(const lh_conn_t *c)
{
    return send_is_done(c) || receive_is_done(c);
}

void ib_messages_tell(lh_conn_t *c, ib_sink_t *s)
{
    for (; receive_is_done(c) && ib_sink_room(s); c->receive_first++) {
        const ib_operation_t *o = &c->receives[c->receive_first % IB_DEPTH];
        ib_counter_bump(&c->bytes_received, o->inbox.bytes);
        ib_tell(s, (lh_wire_event_t){.cookie = o->cookie,
                                     .bytes = o->inbox.bytes,
                                     .type = LH_WIRE_RECEIVED,
                                     .tag = o->tag});
    }
    for (; send_is_done(c) && ib_sink_room(s); c->send_first++) {
        const ib_operation_t *o = &c->sends[c->send_first % IB_DEPTH];
        ib_counter_bump(&c->bytes_sent, o->bytes);
        ib_tell(s,
                (lh_wire_event_t){
                    .cookie = o->cookie, .bytes = o->bytes, .type = LH_WIRE_SENT, .tag = o->tag});
    }
}

bool ib_messages_drain(lh_conn_t *c, ib_sink_t *s)
{
    struct {
        ib_operation_t *rows;
        uint64_t *first, end;
        uint32_t type;
    } queues[] = {{c->sends, &c->send_first, c->send_end, LH_WIRE_SENT},
                  {c->receives, &c->receive_first, c->receive_end, LH_WIRE_RECEIVED}};
    for (int i = 0; i < 2; i++)
        for (; *queues[i].first < queues[i].end; (*queues[i].first)++) {
            const ib_operation_t *o = &queues[i].rows[*queues[i].first % IB_DEPTH];
            if (!ib_sink_room(s)) return false;
            ib_tell(s, (lh_wire_event_t){.cookie = o->cookie,
                                         .type = queues[i].type,
                                         .status = c->why,
                                         .reason = c->reason,
                                         .tag = o->tag});
        }
    return true;
}

static lh_status_t region_known(lh_transport_t *t, lh_region_t *r)
{
    if (r->mrs[0] != NULL) return LH_OK;
    if (r->kind == LH_MEM_HOST) return ib_register_all(t, r->base, r->bytes, true, r->mrs);
    return t->host->fail(
        t->host, LH_UNSUPPORTED,
        "memory of a device was registered while this rank listens with security = "
        "private, so that no peer writes there; it goes with no other level");
}

static lh_status_t ib_may_post(lh_conn_t *c, lh_region_t *r, const char *data, uint64_t bytes)
{
    const lh_host_t *host = c->transport->host;
    if (c->state >= IB_LEAVING)
        return host->fail(host, c->why, "%s",
                          c->reason[0] != '\0' ? c->reason : "the connection was cancelled");
    if (bytes > IB_MESSAGE_MOST)
        return host->fail(host, LH_INVALID, "a message of %llu bytes, at most %llu",
                          (unsigned long long)bytes, (unsigned long long)IB_MESSAGE_MOST);
    if (bytes == 0) return LH_OK;
    if (r == NULL || bytes > r->bytes || data < r->base || data > r->base + (r->bytes - bytes))
        return host->fail(host, LH_INVALID,
                          "a message of %llu bytes does not lie in its registered memory",
                          (unsigned long long)bytes);
    if (c->security != LH_SECURITY_PRIVATE) return region_known(c->transport, r);
    if (r->kind == LH_MEM_HOST) return LH_OK;
    return host->fail(
        host, LH_UNSUPPORTED,
        "security = private is for memory of the host, which a processor seals; memory "
        "of a device goes with plain or known");
}

/* Whose memory cards must know; NULL: none need to. */
static lh_region_t *region_of(const lh_conn_t *c, lh_region_t *r, uint64_t bytes)
{
    return bytes == 0 || c->security == LH_SECURITY_PRIVATE ? NULL : r;
}

lh_status_t ib_isend(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                     uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = ib_may_post(c, region, data, bytes);
    if (status != LH_OK) return status;
    if (c->send_end - c->send_first == IB_DEPTH) return LH_AGAIN;
    c->sends[c->send_end++ % IB_DEPTH] = (ib_operation_t){.data = (char *)(uintptr_t)data,
                                                          .bytes = bytes,
                                                          .cookie = cookie,
                                                          .tag = tag,
                                                          .region = region_of(c, region, bytes)};
    if (c->up_said && c->state == IB_OPEN) ib_messages_write(c);
    return LH_OK;
}

/* The grant leaves with the next poll, or with a later one (grants_can_wait): the receives of a step are
 * posted in a row, and one notice then tells of all. */
lh_status_t ib_irecv(lh_conn_t *c, lh_region_t *region, void *data, uint64_t bytes, uint32_t tag,
                     uint64_t cookie)
{
    const lh_status_t status = ib_may_post(c, region, data, bytes);
    if (status != LH_OK) return status;
    if (c->receive_end - c->receive_first == IB_DEPTH) return LH_AGAIN;
    c->receives[c->receive_end++ % IB_DEPTH] = (ib_operation_t){
        .data = data,
        .bytes = bytes,
        .cookie = cookie,
        .tag = tag,
        .region = region_of(c, region, bytes),
        .inbox = {.room = bytes}};
    return LH_OK;
}

void ib_lock_text(const lh_transport_t *t, char *out, size_t room)
{
    struct rlimit limit = {0};
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    out[0] = '\0';
    if (limit.rlim_cur != RLIM_INFINITY)
        (void)snprintf(out, room,
                       "; a process may lock %llu bytes in all (ulimit -l), with %llu held already",
                       (unsigned long long)limit.rlim_cur, (unsigned long long)t->registered);
}

void ib_lock_text_of(const lh_transport_t *t, int error, char *out, size_t room)
{
    out[0] = '\0';
    if (error == ENOMEM) ib_lock_text(t, out, room);
}

static verbs_mr_t *register_bytes(lh_transport_t *t, const ib_port_t *port, void *base,
                                  uint64_t bytes, bool remote)
{
    char limit[IB_LOCK_TEXT];
    verbs_mr_t *mr = t->verbs.reg_mr(port->pd, base, bytes,
                                     VERBS_LOCAL_WRITE | (remote ? VERBS_REMOTE_WRITE : 0));
    if (mr != NULL) {
        t->registered += bytes;
        return mr;
    }
    const int error = errno;
    ib_lock_text(t, limit, sizeof(limit));
    errno = error;
    (void)t->host->fail(t->host, LH_IO, "registering %llu bytes with %s%s",
                        (unsigned long long)bytes, port->device, limit);
    return NULL;
}

lh_status_t ib_register_all(lh_transport_t *t, void *base, uint64_t bytes, bool remote,
                            verbs_mr_t **rows)
{
    for (uint32_t i = 0; i < t->port_count; i++) {
        rows[i] = register_bytes(t, &t->ports[i], base, bytes, remote);
        if (rows[i] == NULL) {
            ib_forget_all(t, rows);
            return LH_IO;
        }
    }
    return LH_OK;
}

/* What is a device's takes nothing of what a process may lock. */
static void rows_forget(const lh_transport_t *t, verbs_mr_t **rows)
{
    for (uint32_t i = 0; i < t->port_count; i++) {
        if (rows[i] != NULL) (void)t->verbs.dereg_mr(rows[i]);
        rows[i] = NULL;
    }
}

void ib_forget_all(lh_transport_t *t, verbs_mr_t **rows)
{
    for (uint32_t i = 0; i < t->port_count; i++)
        t->registered -= rows[i] != NULL ? rows[i]->bytes : 0;
    rows_forget(t, rows);
}

/* Then no peer shall be able to write to a rank's memory. Where another level is asked for after all,
 * the host's is registered with the first message, and a device's is not. */
static bool listens_in_private(const lh_transport_t *t)
{
    for (const lh_listener_t *l = t->listeners; l != NULL; l = l->next)
        if (l->security == LH_SECURITY_PRIVATE) return true;
    return false;
}

lh_status_t ib_register_device(lh_transport_t *t, const lh_arena_t *memory, verbs_mr_t **rows)
{
    const lh_host_t *host = t->host;
    const ib_verbs_t *v = &t->verbs;
    if (memory->fd < 0)
        return host->fail(host, LH_UNSUPPORTED,
                          "memory of a device without a dma-buf; it has to go through the host's");
    if (!t->takes_dmabuf)
        return host->fail(host, LH_UNSUPPORTED, "%s takes no memory of devices: %s",
                          t->ports[0].device,
                          v->reg_dmabuf_mr == NULL ? "libibverbs is too old for dma-buf"
                                                   : "its driver registers no dma-buf");
    if (listens_in_private(t)) return LH_OK;
    for (uint32_t i = 0; i < t->port_count; i++) {
        rows[i] = v->reg_dmabuf_mr(t->ports[i].pd, memory->fd_offset, memory->bytes,
                                   (uint64_t)(uintptr_t)memory->base, memory->fd,
                                   VERBS_LOCAL_WRITE | VERBS_REMOTE_WRITE);
        if (rows[i] != NULL) continue;
        (void)host->fail(host, LH_IO, "registering %llu bytes of a device with %s",
                         (unsigned long long)memory->bytes, t->ports[i].device);
        rows_forget(t, rows);
        return LH_IO;
    }
    return LH_OK;
}

lh_status_t ib_register(lh_transport_t *t, uint32_t nic, const lh_arena_t *memory,
                        lh_region_t **out)
{
    const lh_host_t *host = t->host;
    if (nic != 0) return host->fail(host, LH_INVALID, "there is one card, not %u", nic + 1);
    const bool own = memory->kind == LH_MEM_HOST;
    if (!own && memory->kind != LH_MEM_CUDA && memory->kind != LH_MEM_HIP &&
        memory->kind != LH_MEM_DMABUF)
        return host->fail(host, LH_UNSUPPORTED, "memory of kind %u is not known", memory->kind);
    lh_region_t *r = host->alloc(host, sizeof(*r), 64);
    if (r == NULL) return LH_NO_MEMORY;
    r->base = memory->base;
    r->bytes = memory->bytes;
    r->kind = memory->kind;
    lh_status_t status = LH_OK;
    if (!own)
        status = ib_register_device(t, memory, r->mrs);
    else if (!listens_in_private(t))
        status = region_known(t, r);
    if (status != LH_OK) {
        host->release(host, r);
        return status;
    }
    r->next = t->regions;
    t->regions = r;
    *out = r;
    return LH_OK;
}

void ib_release(lh_transport_t *t, lh_region_t *r)
{
    lh_region_t **at = &t->regions;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    if (r->kind == LH_MEM_HOST)
        ib_forget_all(t, r->mrs);
    else
        rows_forget(t, r->mrs);
    t->host->release(t->host, r);
}
