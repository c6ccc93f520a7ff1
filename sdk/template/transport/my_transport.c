/* my_transport.c - a template for transport plugins: both ends of a connection are in one open
 * transport, and a message is one memcpy. It reaches no other process, and says so in nic_info.
 *
 * What it shows is the contract: nothing blocks; LH_AGAIN changes nothing; every accepted operation
 * ends in exactly one event, after a cancel too; DRAINED is the last event of a connection. Rename
 * the file, `my_transport` and the name below (all three must agree). */
#include <longhaul/plugin.h>

enum { DEPTH = 32 }; /* operations per direction: what nic_info promises */

typedef struct operation {
    void *data; /* of a send it is only read */
    uint64_t bytes, cookie;
    uint32_t tag;
} operation_t;

typedef struct queue { /* in the order posted */
    operation_t rows[DEPTH];
    uint32_t first, count;
} queue_t;

typedef enum state { DIALED, OPEN, BROKEN, DRAINED } state_t;

struct lh_conn {
    lh_transport_t *transport;
    lh_conn_t *next;
    lh_conn_t *peer;         /* NULL: gone                                 */
    lh_listener_t *waits_at; /* until accept takes it                      */
    state_t state;
    bool up_is_said, down_is_said;
    lh_status_t why; /* BROKEN: the status of what is outstanding  */
    uint64_t cookie;
    lh_hello_t hello;
    queue_t sends, receives;
};

struct lh_listener {
    lh_transport_t *transport;
    lh_listener_t *next;
    uint32_t number;
};

struct lh_region {
    lh_region_t *next;
    lh_arena_t arena;
};

struct lh_transport {
    const lh_host_t *host;
    lh_conn_t *conns;
    lh_listener_t *listeners;
    lh_region_t *regions;
    uint32_t next_number;
    lh_wire_event_t later; /* the second of a pair that the caller had no room for */
    bool has_later;
};

static lh_status_t my_open(const lh_host_t *host, LH_UNUSED const void *config,
                           lh_transport_t **out)
{
    lh_transport_t *t = host->alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->host = host;
    *out = t;
    return LH_OK;
}

/* May be called with everything still open. */
static void my_close(lh_transport_t *t)
{
    const lh_host_t *host = t->host;
    for (lh_conn_t *c = t->conns, *next; c != NULL; c = next) {
        next = c->next;
        host->release(host, c);
    }
    for (lh_listener_t *l = t->listeners, *next; l != NULL; l = next) {
        next = l->next;
        host->release(host, l);
    }
    for (lh_region_t *r = t->regions, *next; r != NULL; r = next) {
        next = r->next;
        host->release(host, r);
    }
    host->release(host, t);
}

static lh_status_t my_nic_count(LH_UNUSED lh_transport_t *t, uint32_t *out)
{
    *out = 1;
    return LH_OK;
}

static lh_status_t my_nic_info(lh_transport_t *t, uint32_t nic, lh_nic_info_t *info)
{
    if (nic != 0) return t->host->fail(t->host, LH_INVALID, "there is one card, not %u", nic);
    LH_FILL(lh_nic_info_t, info,
            .flags = LH_CAN_DIAL_TO_SEND | LH_CAN_DIAL_TO_RECEIVE | LH_CAN_DUPLEX,
            .memory_kinds = LH_MEM_HOST, .bytes_per_second = 10000000000ull, .latency_ns = 100,
            .max_message_bytes = (uint64_t)1 << 40, .max_connections = 1024, .max_sends = DEPTH,
            .max_recvs = DEPTH, .alignment_bytes = 1, .numa = -1, .name = "loopback");
    return LH_OK;
}

/* What was asked for and can't be given is refused, never lowered. */
static lh_status_t check_security(lh_transport_t *t, uint32_t security)
{
    if (security == LH_SECURITY_PLAIN) return LH_OK;
    return t->host->fail(t->host, LH_UNSUPPORTED,
                         "security %u is asked for; this offers %u (plain)", security,
                         (uint32_t)LH_SECURITY_PLAIN);
}

/* The address is opaque to the host; here it is the listener's number. */
static lh_status_t my_listen(lh_transport_t *t, LH_UNUSED uint32_t nic, uint32_t security,
                             lh_address_t *address, lh_listener_t **out)
{
    const lh_status_t status = check_security(t, security);
    if (status != LH_OK) return status;
    lh_listener_t *l = t->host->alloc(t->host, sizeof(*l), 64);
    if (l == NULL) return LH_NO_MEMORY;
    l->transport = t;
    l->number = ++t->next_number;
    l->next = t->listeners;
    t->listeners = l;
    address->length = sizeof(l->number);
    memcpy(address->bytes, &l->number, sizeof(l->number));
    *out = l;
    return LH_OK;
}

static lh_status_t conn_new(lh_transport_t *t, lh_conn_t **out)
{
    lh_conn_t *c = t->host->alloc(t->host, sizeof(*c), 64);
    if (c == NULL) return LH_NO_MEMORY;
    c->transport = t;
    c->next = t->conns;
    t->conns = c;
    *out = c;
    return LH_OK;
}

/* Returns at once; LH_WIRE_UP follows when the other end admits. */
static lh_status_t my_connect(lh_transport_t *t, const lh_address_t *address,
                              const lh_conn_params_t *params, lh_conn_t **out)
{
    uint32_t number = 0;
    lh_status_t status = check_security(t, params->security);
    if (status != LH_OK) return status;
    if (address->length == sizeof(number)) memcpy(&number, address->bytes, sizeof(number));
    lh_listener_t *l = t->listeners;
    while (l != NULL && l->number != number)
        l = l->next;
    if (l == NULL)
        return t->host->fail(t->host, LH_UNREACHABLE, "no listener %u in this process", number);

    lh_conn_t *c;
    status = conn_new(t, &c);
    if (status != LH_OK) return status;
    c->cookie = params->cookie;
    c->hello = params->hello;
    c->waits_at = l;
    *out = c;
    return LH_OK;
}

/* The one that waits longest: new ones are put in front. */
static lh_status_t my_accept(lh_listener_t *l, lh_hello_t *hello, lh_conn_t **out)
{
    lh_conn_t *dialer = NULL, *c;
    for (lh_conn_t *at = l->transport->conns; at != NULL; at = at->next)
        if (at->waits_at == l && at->state == DIALED) dialer = at;
    if (dialer == NULL) return LH_AGAIN;
    const lh_status_t status = conn_new(l->transport, &c);
    if (status != LH_OK) return status;
    dialer->waits_at = NULL;
    dialer->peer = c;
    c->peer = dialer;
    *hello = dialer->hello;
    *out = c;
    return LH_OK;
}

static lh_status_t my_admit(lh_conn_t *c, const lh_conn_params_t *params)
{
    const lh_status_t status = check_security(c->transport, params->security);
    if (status != LH_OK) return status;
    if (c->peer == NULL)
        return c->transport->host->fail(c->transport->host, LH_PEER_LOST, "the dialer has gone");
    c->cookie = params->cookie;
    c->state = OPEN;
    c->peer->state = OPEN;
    return LH_OK;
}

static void break_conn(lh_conn_t *c, lh_status_t why)
{
    if (c->state >= BROKEN) return;
    c->state = BROKEN;
    c->why = why;
}

static void my_close_listener(lh_listener_t *l)
{
    lh_transport_t *t = l->transport;
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next)
        if (c->waits_at == l) {
            c->waits_at = NULL;
            break_conn(c, LH_UNREACHABLE);
        }
    lh_listener_t **at = &t->listeners;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    t->host->release(t->host, l);
}

/* Local: the peer is not asked. It learns of it as of a death. */
static void my_cancel(lh_conn_t *c)
{
    break_conn(c, LH_CANCELLED);
    c->waits_at = NULL;
    if (c->peer == NULL) return;
    break_conn(c->peer, LH_PEER_LOST);
    c->peer->peer = NULL;
    c->peer = NULL;
}

static void my_close_conn(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    my_cancel(c);
    lh_conn_t **at = &t->conns;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    t->host->release(t->host, c);
}

static lh_status_t my_register(lh_transport_t *t, LH_UNUSED uint32_t nic, const lh_arena_t *memory,
                               lh_region_t **out)
{
    if (memory->kind != LH_MEM_HOST)
        return t->host->fail(t->host, LH_UNSUPPORTED, "memory of kind %u, only the host's is taken",
                             memory->kind);
    lh_region_t *r = t->host->alloc(t->host, sizeof(*r), 64);
    if (r == NULL) return LH_NO_MEMORY;
    r->arena = *memory;
    r->next = t->regions;
    t->regions = r;
    *out = r;
    return LH_OK;
}

static void my_release(lh_transport_t *t, lh_region_t *r)
{
    lh_region_t **at = &t->regions;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    t->host->release(t->host, r);
}

/* Posting is allowed before the connection is up: an early receive is a standing grant. */
static lh_status_t post(lh_conn_t *c, queue_t *q, operation_t operation)
{
    if (c->state >= BROKEN)
        return c->transport->host->fail(c->transport->host, c->why, "the connection is down");
    if (q->count == DEPTH) return LH_AGAIN;
    q->rows[(q->first + q->count++) % DEPTH] = operation;
    return LH_OK;
}

static lh_status_t my_isend(lh_conn_t *c, LH_UNUSED lh_region_t *region, const void *data,
                            uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    return post(c, &c->sends, (operation_t){(void *)(uintptr_t)data, bytes, cookie, tag});
}

static lh_status_t my_irecv(lh_conn_t *c, LH_UNUSED lh_region_t *region, void *data, uint64_t bytes,
                            uint32_t tag, uint64_t cookie)
{
    return post(c, &c->receives, (operation_t){data, bytes, cookie, tag});
}

typedef struct sink { /* the caller's rows, which may be of another version's size */
    lh_transport_t *transport;
    lh_wire_event_t *events;
    uint32_t event_size, max, count;
} sink_t;

static void tell(sink_t *s, lh_wire_event_t event)
{
    if (s->count == s->max) {
        s->transport->later = event;
        s->transport->has_later = true;
        return;
    }
    char *row = (char *)s->events + (size_t)s->event_size * s->count++;
    const size_t bytes = s->event_size < sizeof(event) ? s->event_size : sizeof(event);
    memset(row, 0, s->event_size);
    memcpy(row, &event, bytes);
}

static operation_t pop(queue_t *q)
{
    const operation_t operation = q->rows[q->first];
    q->first = (q->first + 1) % DEPTH;
    q->count--;
    return operation;
}

/* c's oldest send meets the peer's oldest receive. Both ends with two tags, or a message that is
 * too long, end in one error on both sides. */
static void deliver(lh_conn_t *c, sink_t *s)
{
    while (c->state == OPEN && c->peer != NULL && c->sends.count > 0 &&
           c->peer->receives.count > 0 && s->count < s->max) {
        const operation_t from = pop(&c->sends), to = pop(&c->peer->receives);
        const lh_status_t status = from.tag != to.tag      ? LH_MISMATCH
                                   : from.bytes > to.bytes ? LH_TRUNCATED
                                                           : LH_OK;
        if (status == LH_OK && from.bytes > 0) memcpy(to.data, from.data, from.bytes);
        const uint64_t bytes = status == LH_OK ? from.bytes : 0;
        tell(s, (lh_wire_event_t){.cookie = from.cookie,
                                  .bytes = bytes,
                                  .type = LH_WIRE_SENT,
                                  .status = status,
                                  .tag = from.tag});
        tell(s, (lh_wire_event_t){.cookie = to.cookie,
                                  .bytes = bytes,
                                  .type = LH_WIRE_RECEIVED,
                                  .status = status,
                                  .tag = to.tag});
        if (status == LH_OK) continue;
        break_conn(c, status);
        break_conn(c->peer, status);
    }
}

/* Each outstanding operation ends in one event, then the connection in its last. */
static void drain(lh_conn_t *c, sink_t *s)
{
    if (!c->down_is_said && s->count < s->max) {
        c->down_is_said = true;
        if (c->why != LH_CANCELLED)
            tell(s, (lh_wire_event_t){.cookie = c->cookie,
                                      .type = LH_WIRE_DOWN,
                                      .status = c->why,
                                      .reason = "the other end of the loop is gone"});
    }
    while (c->sends.count > 0 && s->count < s->max)
        tell(s, (lh_wire_event_t){
                    .cookie = pop(&c->sends).cookie, .type = LH_WIRE_SENT, .status = c->why});
    while (c->receives.count > 0 && s->count < s->max)
        tell(s, (lh_wire_event_t){.cookie = pop(&c->receives).cookie,
                                  .type = LH_WIRE_RECEIVED,
                                  .status = c->why});
    if (!c->down_is_said || c->sends.count + c->receives.count > 0 || s->count == s->max) return;
    tell(s, (lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_DRAINED});
    c->state = DRAINED;
}

static lh_status_t my_poll(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                           uint32_t max, uint32_t *count)
{
    sink_t s = {t, events, event_size, max, 0};
    if (t->has_later && max > 0) {
        t->has_later = false;
        tell(&s, t->later);
    }
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next) {
        if (c->state == OPEN && !c->up_is_said && s.count < max) {
            c->up_is_said = true;
            tell(&s, (lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_UP});
        }
        deliver(c, &s);
        if (c->state == BROKEN) drain(c, &s);
    }
    *count = s.count;
    return LH_OK;
}

static const lh_transport_api_t api = {
    .struct_size = sizeof(api),
    .open = my_open,
    .close = my_close,
    .nic_count = my_nic_count,
    .nic_info = my_nic_info,
    .listen = my_listen,
    .accept = my_accept,
    .admit = my_admit,
    .close_listener = my_close_listener,
    .connect = my_connect,
    .cancel = my_cancel,
    .close_conn = my_close_conn,
    .register_memory = my_register,
    .release_memory = my_release,
    .isend = my_isend,
    .irecv = my_irecv,
    .poll = my_poll,
    .security_levels = 1u << LH_SECURITY_PLAIN,
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_TRANSPORT,
    .name = "my_transport",
    .version = "0.1.0",
    .summary = "a template: loops back inside the process",
    .transport = &api,
};
