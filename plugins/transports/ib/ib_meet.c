/* ib_meet.c - how two ends meet, by librdmacm: addresses are resolved, and the connect request of
 * each queue pair carries a greeting as its private data.
 *
 * The first queue pair is the connection: its request is what the host accepts and admits. The
 * others follow once that is answered, and are taken without asking. A request that is no greeting,
 * or that does not know the listener's token, is rejected at once and counted; at most IB_WAITING
 * others wait. Nothing is allocated for any of them. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>

#include "ib.h"

enum { BACKLOG = 128 };
#define DIAL_NS 10000000000ull /* where the host names none */

typedef struct place { /* what an address holds */
    uint32_t magic, token;
    uint16_t family, port; /* port: big-endian */
    uint8_t bytes[16];
    uint32_t scope;
} place_t;

static void place_write(const struct sockaddr_storage *from, uint16_t port, uint32_t token,
                        lh_address_t *out)
{
    place_t p = {.magic = IB_MAGIC, .token = token, .family = from->ss_family, .port = port};
    if (from->ss_family == AF_INET)
        memcpy(p.bytes, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    else
        memcpy(p.bytes, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 16);
    out->length = sizeof(p);
    memcpy(out->bytes, &p, sizeof(p));
}

static bool place_read(const lh_address_t *from, struct sockaddr_storage *out, uint32_t *token)
{
    place_t p;
    if (from->length != sizeof(p)) return false;
    memcpy(&p, from->bytes, sizeof(p));
    if (p.magic != IB_MAGIC || (p.family != AF_INET && p.family != AF_INET6)) return false;
    memset(out, 0, sizeof(*out));
    *token = p.token;
    if (p.family == AF_INET) {
        struct sockaddr_in *a = (struct sockaddr_in *)(void *)out;
        a->sin_family = AF_INET;
        a->sin_port = p.port;
        memcpy(&a->sin_addr, p.bytes, 4);
    } else {
        struct sockaddr_in6 *a = (struct sockaddr_in6 *)(void *)out;
        a->sin6_family = AF_INET6;
        a->sin6_port = p.port;
        memcpy(&a->sin6_addr, p.bytes, 16);
    }
    return true;
}

static void set_port(struct sockaddr_storage *a, uint16_t port)
{
    if (a->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)a)->sin_port = port;
    else
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = port;
}

static void text_of(const struct sockaddr_storage *a, char *out, size_t room)
{
    char host[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a;
    if (a->ss_family == AF_INET)
        (void)inet_ntop(AF_INET, &four->sin_addr, host, sizeof(host));
    else
        (void)inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof(host));
    (void)snprintf(out, room, a->ss_family == AF_INET ? "%s:%u" : "[%s]:%u", host,
                   ntohs(a->ss_family == AF_INET ? four->sin_port : six->sin6_port));
}

lh_status_t ib_address_text(LH_UNUSED lh_transport_t *t, const lh_address_t *address, char *text,
                            size_t room)
{
    struct sockaddr_storage a;
    uint32_t token;
    if (!place_read(address, &a, &token)) return LH_INVALID;
    text_of(&a, text, room);
    return LH_OK;
}

/* What was asked for and can't be given is refused, never lowered. */
static lh_status_t check_security(lh_transport_t *t, uint32_t security)
{
    static const char *const names[] = {"plain", "proven", "private"};
    if (security == LH_SECURITY_PLAIN) return LH_OK;
    return t->host->fail(t->host, LH_UNSUPPORTED,
                         "security = %s is asked for; RDMA writes past the processor, so this "
                         "transport offers only plain (a fabric that is trusted)",
                         security < 3 ? names[security] : "unknown");
}

static ib_greeting_t greeting_of(const ib_pair_t *p)
{
    const lh_conn_t *c = p->conn;
    return (ib_greeting_t){.magic = IB_MAGIC,
                           .token = c->token,
                           .board = (uint64_t)(uintptr_t)&c->board[0],
                           .key = c->boards->rkey,
                           .receives = IB_RECEIVES,
                           .index = (uint8_t)p->index,
                           .pairs = (uint8_t)c->pair_count,
                           .hello = c->hello};
}

/* The retries of what waits for receive work requests are endless (7), and never needed. */
static cm_param_t param_of(const ib_greeting_t *greeting)
{
    return (cm_param_t){.data = greeting,
                        .data_bytes = sizeof(*greeting),
                        .responder_resources = 1,
                        .initiator_depth = 1,
                        .retries = 7,
                        .rnr_retries = 7};
}

/* Older kernels don't know the ACK timeout, and keep their own. */
static void set_options(ib_pair_t *p)
{
    lh_transport_t *t = p->conn->transport;
    uint8_t timeout = (uint8_t)p->conn->tuning.ack_timeout;
    uint8_t class = (uint8_t)t->config->traffic_class;
    if (t->verbs.set_option(p->id, CM_OPTION_ID, CM_OPTION_ACK_TIMEOUT, &timeout, 1) != 0)
        t->host->log(t->host, LH_LOG_DEBUG, "the kernel keeps its own ACK timeout: %s",
                     strerror(errno));
    if (class != 0 && t->verbs.set_option(p->id, CM_OPTION_ID, CM_OPTION_TOS, &class, 1) != 0)
        t->host->log(t->host, LH_LOG_WARN, "traffic class %u can't be set: %s", class,
                     strerror(errno));
}

static void take_params(lh_conn_t *c, const lh_conn_params_t *params)
{
    lh_link_t link = {.struct_size = sizeof(link)};
    lh_tuning_t tuning = {.struct_size = sizeof(tuning)};
    const ib_config_t *config = c->transport->config;
    const ib_wish_t wish = {.queue_pairs = config->queue_pairs,
                            .chunk_bytes = config->chunk_bytes,
                            .window_bytes = config->window_bytes,
                            .ack_timeout = config->ack_timeout};
    if (params->link != NULL)
        memcpy(&link, params->link,
               params->link->struct_size < sizeof(link) ? params->link->struct_size : sizeof(link));
    if (params->tuning != NULL)
        memcpy(&tuning, params->tuning,
               params->tuning->struct_size < sizeof(tuning) ? params->tuning->struct_size
                                                            : sizeof(tuning));
    c->tuning = ib_tuning(&wish, &link, &tuning, c->transport->rate);
    c->cookie = params->cookie;
    c->peer = params->peer;
}

/* ---- the end that listens ---- */

static lh_status_t listen_at(lh_listener_t *l)
{
    lh_transport_t *t = l->transport;
    const lh_host_t *host = t->host;
    struct sockaddr_storage at = t->here;
    lh_rank_info_t info = {.struct_size = sizeof(info)};
    uint64_t port = t->config->port;
    if (port != 0 && host->rank_info(host, host->world->rank, &info) == LH_OK)
        port += info.local_rank;
    set_port(&at, htons((uint16_t)port));
    if (t->verbs.create_id(t->events, &l->id, &l->watch, CM_SPACE_TCP) != 0)
        return host->fail(host, LH_IO, "rdma_create_id");
    if (t->verbs.bind_address(l->id, (struct sockaddr *)&at) != 0 ||
        t->verbs.listen(l->id, BACKLOG) != 0) {
        char text[80];
        text_of(&at, text, sizeof(text));
        return host->fail(host, LH_IO, "listen with RDMA at %s", text);
    }
    return LH_OK;
}

lh_status_t ib_listen(lh_transport_t *t, uint32_t nic, uint32_t security, lh_address_t *address,
                      lh_listener_t **out)
{
    const lh_host_t *host = t->host;
    if (nic != 0) return host->fail(host, LH_INVALID, "there is one card, not %u", nic + 1);
    lh_status_t status = check_security(t, security);
    if (status != LH_OK) return status;
    lh_listener_t *l = host->alloc(host, sizeof(*l), 64);
    if (l == NULL) return LH_NO_MEMORY;
    l->watch.kind = IB_WATCH_LISTENER;
    l->transport = t;
    l->next = t->listeners;
    t->listeners = l;
    status = host->random(host, &l->token, sizeof(l->token));
    if (status == LH_OK) status = listen_at(l);
    if (status != LH_OK) {
        ib_close_listener(l);
        return status;
    }
    place_write(&t->here, t->verbs.source_port(l->id), l->token, address);
    *out = l;
    return LH_OK;
}

void ib_close_listener(lh_listener_t *l)
{
    lh_transport_t *t = l->transport;
    for (uint32_t i = 0; i < l->waiting_count; i++)
        (void)t->verbs.destroy_id(l->waiting[i].id);
    if (l->id != NULL) (void)t->verbs.destroy_id(l->id);
    lh_listener_t **at = &t->listeners;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    t->host->release(t->host, l);
}

static void turn_away(lh_transport_t *t, cm_id_t *id, const char *why)
{
    (void)t->verbs.reject(id, why, (uint8_t)(strlen(why) + 1));
    (void)t->verbs.destroy_id(id);
}

static void adopt(ib_pair_t *p, cm_id_t *id)
{
    p->id = id;
    id->context = &p->watch;
}

static lh_status_t answer(ib_pair_t *p)
{
    lh_transport_t *t = p->conn->transport;
    set_options(p);
    const lh_status_t status = ib_pair_make(p);
    if (status != LH_OK) return status;
    const ib_greeting_t greeting = greeting_of(p);
    cm_param_t param = param_of(&greeting);
    if (t->verbs.accept(p->id, &param) != 0)
        return t->host->fail(t->host, LH_PEER_LOST, "rank %u has gone before it was admitted",
                             p->conn->peer);
    p->state = IB_PAIR_MEETING;
    p->reached = true;
    return LH_OK;
}

/* Another queue pair of a connection that was admitted. */
static void take_more(lh_transport_t *t, cm_id_t *id, const ib_greeting_t *g)
{
    lh_conn_t *c = t->conns;
    while (c != NULL &&
           (c->state != IB_OPEN || c->peer_board != g->board || c->peer_key != g->key ||
            memcmp(&c->hello, &g->hello, sizeof(g->hello)) != 0 || g->index >= c->pair_count ||
            c->pairs[g->index].id != NULL))
        c = c->next;
    if (c == NULL) {
        turn_away(t, id, "the connection has ended");
        return;
    }
    adopt(&c->pairs[g->index], id);
    const lh_status_t status = answer(&c->pairs[g->index]);
    if (status != LH_OK)
        ib_conn_break(c, status, "rank %u: queue pair %u can't be made", c->peer, g->index);
}

static void take_request(lh_listener_t *l, cm_id_t *id, const cm_event_t *event,
                         const ib_greeting_t *g)
{
    lh_transport_t *t = l->transport;
    if (event->status != 0 || g->magic == 0 || g->token != l->token) {
        t->host->count(t->host, "ib.strangers", 1);
        turn_away(t, id, "not this job");
    } else if (g->index > 0) {
        take_more(t, id, g);
    } else if (l->waiting_count == IB_WAITING) {
        turn_away(t, id, "too many wait to be accepted");
    } else {
        l->waiting[l->waiting_count++] = (ib_request_t){id, *g};
    }
}

static void drop_request(lh_listener_t *l, uint32_t index)
{
    l->waiting_count--;
    for (uint32_t i = index; i < l->waiting_count; i++)
        l->waiting[i] = l->waiting[i + 1];
}

lh_status_t ib_accept(lh_listener_t *l, lh_hello_t *hello, lh_conn_t **out)
{
    lh_transport_t *t = l->transport;
    ib_meet_events(t);
    if (l->waiting_count == 0) return LH_AGAIN;
    const ib_request_t r = l->waiting[0];
    lh_conn_t *c = ib_conn_new(t, IB_MET);
    if (c == NULL) return LH_NO_MEMORY;
    drop_request(l, 0);
    c->hello = r.greeting.hello;
    c->peer = c->hello.rank;
    c->pair_count = r.greeting.pairs;
    c->peer_board = r.greeting.board;
    c->peer_key = r.greeting.key;
    adopt(&c->pairs[0], r.id);
    *hello = c->hello;
    *out = c;
    return LH_OK;
}

lh_status_t ib_admit(lh_conn_t *c, const lh_conn_params_t *params)
{
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    lh_status_t status = check_security(t, params->security);
    if (status != LH_OK) return status;
    if (c->state != IB_MET) return host->fail(host, LH_INVALID, "it is admitted already");
    if (c->ended)
        return host->fail(host, LH_PEER_LOST, "rank %u has gone before it was admitted", c->peer);
    take_params(c, params);
    status = ib_conn_equip(c);
    if (status == LH_OK) status = answer(&c->pairs[0]);
    if (status == LH_OK) c->state = IB_OPEN;
    return status;
}

/* ---- the end that dials ---- */

static bool dial(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    struct sockaddr_storage from = t->here, to = c->to;
    set_port(&from, 0);
    if (t->verbs.create_id(t->events, &p->id, &p->watch, CM_SPACE_TCP) != 0) {
        ib_conn_break(c, LH_IO, "rank %u: rdma_create_id: %s", c->peer, strerror(errno));
        return false;
    }
    p->state = IB_PAIR_MEETING;
    set_options(p);
    const uint64_t now = t->host->now_ns(t->host);
    const uint64_t left_ms = c->give_up_ns > now ? (c->give_up_ns - now) / 1000000 + 1 : 1;
    if (t->verbs.resolve_address(p->id, (struct sockaddr *)&from, (struct sockaddr *)&to,
                                 left_ms < 60000 ? (int)left_ms : 60000) == 0)
        return true;
    ib_conn_break(c, LH_UNREACHABLE, "rank %u: its address can't be resolved: %s", c->peer,
                  strerror(errno));
    return false;
}

lh_status_t ib_connect(lh_transport_t *t, const lh_address_t *address,
                       const lh_conn_params_t *params, lh_conn_t **out)
{
    const lh_host_t *host = t->host;
    struct sockaddr_storage to;
    uint32_t token;
    lh_status_t status = check_security(t, params->security);
    if (status != LH_OK) return status;
    if (!place_read(address, &to, &token) || to.ss_family != t->here.ss_family)
        return host->fail(host, LH_INVALID,
                          "rank %u: an address of %u bytes that is not of this plugin, or of "
                          "another family than this end's",
                          params->peer, address->length);
    lh_conn_t *c = ib_conn_new(t, IB_DIALING);
    if (c == NULL) return LH_NO_MEMORY;
    take_params(c, params);
    c->to = to;
    c->token = token;
    c->hello = params->hello;
    c->pair_count = c->tuning.queue_pairs;
    c->give_up_ns = host->now_ns(host) + (params->dial_ns != 0 ? params->dial_ns : DIAL_NS);
    status = ib_conn_equip(c);
    if (status != LH_OK) {
        ib_close_conn(c);
        return status;
    }
    (void)dial(&c->pairs[0]);
    *out = c;
    return LH_OK;
}

static void request(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    if (p->id->verbs != t->context) {
        ib_conn_break(c, LH_UNREACHABLE,
                      "rank %u is reached through another device than %s: set bind or device",
                      c->peer, t->device);
        return;
    }
    if (ib_pair_make(p) != LH_OK) {
        ib_conn_break(c, LH_IO, "rank %u: queue pair %u of %s can't be made: %s", c->peer, p->index,
                      t->device, strerror(errno));
        return;
    }
    const ib_greeting_t greeting = greeting_of(p);
    cm_param_t param = param_of(&greeting);
    if (t->verbs.connect(p->id, &param) == 0)
        p->reached = true;
    else
        ib_conn_break(c, LH_UNREACHABLE, "rank %u: rdma_connect: %s", c->peer, strerror(errno));
}

static void pair_is_up(ib_pair_t *p, const ib_greeting_t *reply)
{
    lh_conn_t *c = p->conn;
    const bool dialed = c->state == IB_DIALING;
    if (p->state == IB_PAIR_UP) return;
    if (dialed && (reply->magic == 0 || reply->pairs != c->pair_count)) {
        ib_conn_break(c, LH_UNREACHABLE, "rank %u answers as no rank of this version does",
                      c->peer);
        return;
    }
    p->state = IB_PAIR_UP;
    const uint32_t up = atomic_fetch_add(&c->pairs_up, 1) + 1;
    if (!dialed) return;
    c->peer_board = reply->board;
    c->peer_key = reply->key;
    if (up == c->pair_count) {
        c->state = IB_OPEN;
        c->transport->dialing--;
        return;
    }
    if (p->index == 0)
        for (uint32_t i = 1; i < c->pair_count; i++)
            if (!dial(&c->pairs[i])) return;
}

/* ---- events ---- */

static void pair_event(ib_pair_t *p, const cm_event_t *event, const ib_greeting_t *greeting,
                       const char *text)
{
    lh_conn_t *c = p->conn;
    const ib_verbs_t *v = &c->transport->verbs;
    if (c->state >= IB_LEAVING) {
        if (event->type == CM_DISCONNECTED) c->ended = true;
        return;
    }
    switch (event->type) {
    case CM_ADDRESS_RESOLVED:
        if (v->resolve_route(p->id, 5000) != 0)
            ib_conn_break(c, LH_UNREACHABLE, "rank %u: rdma_resolve_route: %s", c->peer,
                          strerror(errno));
        return;
    case CM_ROUTE_RESOLVED: request(p); return;
    case CM_ESTABLISHED: pair_is_up(p, greeting); return;
    case CM_DISCONNECTED:
        c->ended = true;
        if (c->state == IB_DIALING)
            ib_conn_break(c, LH_UNREACHABLE, "rank %u closed the connection before it was up",
                          c->peer);
        return;
    case CM_REJECTED:
        ib_conn_break(c, LH_UNREACHABLE, "rank %u does not take the connection: %s", c->peer,
                      text[0] != '\0' ? text : "nobody listens at its address");
        return;
    case CM_ADDRESS_ERROR:
    case CM_ROUTE_ERROR:
    case CM_CONNECT_ERROR:
    case CM_UNREACHABLE:
        if (c->state == IB_MET)
            c->ended = true;
        else
            ib_conn_break(c, LH_UNREACHABLE, "rank %u: %s: %s", c->peer, v->event_text(event->type),
                          strerror(event->status < 0 ? -event->status : event->status));
        return;
    case CM_DEVICE_REMOVED:
        ib_conn_break(c, LH_IO, "the RDMA device %s was removed", c->transport->device);
        return;
    default: return;
    }
}

/* An id that waits to be accepted has its listener's context. */
static void listener_event(lh_listener_t *l, cm_id_t *id, const cm_event_t *event,
                           const ib_greeting_t *greeting)
{
    if (event->type == CM_CONNECT_REQUEST) {
        take_request(l, id, event, greeting);
        return;
    }
    for (uint32_t i = 0; i < l->waiting_count; i++)
        if (l->waiting[i].id == id) {
            drop_request(l, i);
            (void)l->transport->verbs.destroy_id(id);
            return;
        }
}

/* What a peer says with a rejection, if it can be printed. */
static void read_text(const cm_event_t *event, char *out, size_t room)
{
    const char *from = event->param.data;
    size_t i = 0;
    for (; event->type == CM_REJECTED && from != NULL && i < event->param.data_bytes &&
           i + 1 < room && from[i] >= ' ' && from[i] <= '~';
         i++)
        out[i] = from[i];
    out[i] = '\0';
}

/* Everything is copied and acknowledged first: an id can't be destroyed before its events are. */
void ib_meet_events(lh_transport_t *t)
{
    cm_event_t *event;
    while (t->verbs.get_event(t->events, &event) == 0) {
        const cm_event_t copy = *event;
        ib_greeting_t greeting = {0};
        char text[CM_REJECT_BYTES + 1];
        if (!ib_greeting_read(copy.param.data, copy.param.data_bytes, &greeting))
            memset(&greeting, 0, sizeof(greeting));
        read_text(&copy, text, sizeof(text));
        (void)t->verbs.ack_event(event);
        ib_watch_t *watch = copy.id->context;
        if (watch->kind == IB_WATCH_LISTENER)
            listener_event((lh_listener_t *)(void *)watch, copy.id, &copy, &greeting);
        else if (watch->kind == IB_WATCH_PAIR)
            pair_event((ib_pair_t *)(void *)watch, &copy, &greeting, text);
    }
}
