/* ib_meet.c - how two ends meet, by librdmacm: addresses are resolved, and the connect request of
 * each queue pair carries a greeting as its private data.
 *
 * The first queue pair, one whose ports are up, is the connection: its request is what the host
 * accepts and admits. The others follow once that is answered, and are taken without asking; one
 * whose port is down, or that is not answered, is left to ib_mend.c. A request that is no greeting,
 * or that does not know the listener's token, is rejected at once and counted; at most IB_WAITING
 * others wait. Nothing is allocated for any of them. With `known` a proof comes first: ib_prove.h.
 * Here is the end that dials, and what the connection manager says; ib_listen.c is the other end. */
#include <errno.h>
#include <stdio.h>

#include "ib.h"

#define DIAL_NS 10000000000ull /* where the host names none */
enum { FIRST_MS = 2000 };      /* that the others' first turn may take */
enum { EVENTS_MOST = 256 };    /* of the connection manager, at a time */

static ib_greeting_t greeting_of(const ib_pair_t *p)
{
    const lh_conn_t *c = p->conn;
    ib_greeting_t g = {.token = c->token,
                       .board = p->turn == 0 ? (uint64_t)(uintptr_t)&c->board[0] : p->arrived,
                       .key = c->board_in[p->port]->rkey,
                       .turn = p->turn,
                       .index = p->index,
                       .pairs = c->pair_count,
                       .ports = c->transport->port_count,
                       .security = c->security,
                       .first = c->dials && p->turn == 0 && p->index == c->first,
                       .asks = c->asking,
                       .hello = c->hello};
    if (c->asking) memcpy(g.mac, c->nonce, IB_MAC_BYTES);
    return g;
}

/* Signed, as it leaves. What can't be written was refused when the connection was asked for. */
void ib_greeting_pack(const ib_pair_t *p, uint8_t out[IB_GREETING_BYTES])
{
    const lh_conn_t *c = p->conn;
    const ib_greeting_t g = greeting_of(p);
    (void)ib_greeting_write(&g, out);
    if (c->security != LH_SECURITY_PLAIN && !g.asks) ib_session_sign(c->session, !c->dials, out);
}

/* The retries of what waits for receive work requests are endless (7), and never needed. */
cm_param_t ib_param_of(const ib_pair_t *p, const uint8_t greeting[IB_GREETING_BYTES])
{
    return (cm_param_t){.data = greeting,
                        .data_bytes = IB_GREETING_BYTES,
                        .responder_resources = 1,
                        .initiator_depth = 1,
                        .retries = IB_RETRIES,
                        .pair = p->qp != NULL ? p->qp->number : 0,
                        .rnr_retries = 7};
}

/* Older kernels don't know the ACK timeout, and keep their own. */
void ib_set_options(ib_pair_t *p)
{
    lh_transport_t *t = p->conn->transport;
    uint8_t timeout = (uint8_t)p->conn->tuning.ack_timeout;
    uint8_t class = (uint8_t)t->config->traffic_class;
    if (t->verbs.set_option(p->id, CM_OPTION_ID, CM_OPTION_ACK_TIMEOUT, &timeout, 1) != 0)
        t->host->log(t->host, LH_LOG_DEBUG, "the kernel keeps its own ACK timeout: %s",
                     strerror(errno));
    if (class != 0) /* which was tried when the port was opened */
        (void)t->verbs.set_option(p->id, CM_OPTION_ID, CM_OPTION_TOS, &class, 1);
}

/* ---- the end that dials ---- */

static bool is_reachable(const ib_pair_t *p)
{
    const lh_conn_t *c = p->conn;
    return (c->to_down & 1u << p->index % c->peer_ports) == 0 &&
           ib_port_is_up(c->transport, &c->transport->ports[p->port]);
}

const char *ib_meet_nowhere(const lh_conn_t *c)
{
    const bool several = c->transport->port_count > 1 && c->peer_ports > 1;
    uint32_t i = 0;
    while (i < c->pair_count && !is_reachable(&c->pairs[i]))
        i++;
    if (i < c->pair_count && !several) return "";
    if (i < c->pair_count)
        return "; ports are not crossed: the first leads to the other end's first, and so on, so "
               "bind has one order at both ends";
    return "; no queue pair has a port that is up here and one that was up there: the first goes "
           "from "
           "the first port to the first, the second from the second to the second, and so on";
}

/* A first turn that can't be had ends the connection where it is the only one, a later one is tried
 * again. */
static void give_up(ib_pair_t *p, const char *what, const char *why)
{
    if (p->turn > 0)
        ib_pair_missed(p);
    else if (ib_pair_has_others(p))
        ib_pair_absent(p, what);
    else
        ib_conn_break(p->conn, LH_UNREACHABLE, "rank %u: %s: %s%s", p->conn->peer, what, why,
                      ib_meet_nowhere(p->conn));
}

bool ib_dial(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    struct sockaddr_storage from = t->ports[p->port].here, to = c->to[p->index % c->peer_ports];
    ib_place_port(&from, 0);
    t->meeting = true;
    p->reached = false;
    if (t->verbs.create_id(t->events, &p->id, &p->watch, CM_SPACE_TCP) != 0) {
        p->id = NULL;
        give_up(p, "rdma_create_id", strerror(errno));
        return false;
    }
    p->state = IB_PAIR_MEETING;
    ib_set_options(p);
    const uint64_t now = t->host->now_ns(t->host);
    if (p->turn == 0) p->again_ns = now + FIRST_MS * 1000000ull + 4 * c->link.round_trip_ns;
    const uint64_t until = p->turn > 0 ? p->again_ns : c->give_up_ns;
    const uint64_t left_ms = until > now ? (until - now) / 1000000 + 1 : 1;
    if (t->verbs.resolve_address(p->id, (struct sockaddr *)&from, (struct sockaddr *)&to,
                                 left_ms < 60000 ? (int)left_ms : 60000) == 0)
        return true;
    give_up(p, "its address can't be resolved", strerror(errno));
    return false;
}

/* Whether two such ports can speak with each other at all. */
static lh_status_t check_place(lh_transport_t *t, uint32_t peer, const lh_address_t *address,
                               ib_place_t *place)
{
    const lh_host_t *host = t->host;
    const lh_status_t status = ib_place_read(address, place);
    if (status == LH_ABI)
        return host->fail(host, LH_ABI, "rank %u has another version of this transport", peer);
    const ib_port_t *own = ib_port_first_up(t);
    if (status != LH_OK || place->at[0].ss_family != own->here.ss_family)
        return host->fail(host, LH_INVALID,
                          "rank %u: an address of %u bytes that is not of this plugin, or of "
                          "another family than this end's",
                          peer, address->length);
    if (place->roce != 0 && own->roce != 0 && place->roce != own->roce)
        return host->fail(host, LH_UNSUPPORTED,
                          "rank %u's GID is of RoCE v%u, that of %s here of v%u; expected the same "
                          "(gid)",
                          peer, place->roce, own->device, own->roce);
    if (place->link_layer == own->link_layer && place->mtu == own->mtu) return LH_OK;
    return host->fail(host, LH_UNSUPPORTED,
                      "rank %u's port is %s with an MTU of %u bytes, that of %s here %s with %u; "
                      "expected the same",
                      peer, ib_layer_text(place->link_layer), ib_mtu_bytes(place->mtu), own->device,
                      ib_layer_text(own->link_layer), ib_mtu_bytes(own->mtu));
}

/* Both of whose ports are up, as far as this end knows. */
static uint32_t choose_first(const lh_conn_t *c)
{
    for (uint32_t i = 0; i < c->pair_count; i++)
        if (is_reachable(&c->pairs[i])) return i;
    return 0;
}

lh_status_t ib_connect(lh_transport_t *t, const lh_address_t *address,
                       const lh_conn_params_t *params, lh_conn_t **out)
{
    const lh_host_t *host = t->host;
    ib_place_t place;
    uint8_t raw[IB_GREETING_BYTES];
    lh_status_t status = ib_check_security(t, params->security);
    if (status == LH_OK) status = check_place(t, params->peer, address, &place);
    if (status != LH_OK) return status;
    lh_conn_t *c = ib_conn_new(t, IB_DIALING);
    if (c == NULL) return LH_NO_MEMORY;
    memcpy(c->to, place.at, sizeof(c->to));
    c->peer_ports = place.ports;
    c->to_down = place.down;
    c->token = place.token;
    c->hello = params->hello;
    c->security = params->security;
    c->asking = c->security != LH_SECURITY_PLAIN;
    status = ib_take_params(c, params);
    c->pair_count = c->tuning.queue_pairs;
    for (uint32_t i = 0; i < c->pair_count; i++)
        c->pairs[i].port = i % t->port_count;
    c->give_up_ns = host->now_ns(host) + (params->dial_ns != 0 ? params->dial_ns : DIAL_NS);
    if (status == LH_OK && c->asking) status = host->random(host, c->nonce, IB_NONCE_BYTES);
    if (status == LH_OK) status = ib_conn_equip(c);
    if (status == LH_OK &&
        !ib_greeting_write(&(ib_greeting_t){.hello = c->hello, .pairs = 1, .ports = 1}, raw))
        status = host->fail(host, LH_INVALID, "service %u and direction %u of a hello",
                            c->hello.service, c->hello.direction);
    if (status != LH_OK) {
        ib_close_conn(c);
        return status;
    }
    c->first = choose_first(c);
    c->lead = c->first;
    (void)ib_dial(&c->pairs[c->first]);
    *out = c;
    return LH_OK;
}

static void pair_request(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    if (p->id->verbs != t->ports[p->port].context) {
        ib_conn_break(c, LH_UNREACHABLE,
                      "rank %u is reached through another device than %s: set bind or device",
                      c->peer, t->ports[p->port].device);
        return;
    }
    uint8_t greeting[IB_GREETING_BYTES];
    char limit[IB_LOCK_TEXT];
    /* Who only asks needs no queue pair yet. */
    if (!c->asking && ib_pair_make(p) != LH_OK) {
        const int error = errno;
        ib_lock_text_of(t, error, limit, sizeof(limit));
        if (p->turn > 0)
            ib_pair_missed(p);
        else
            ib_conn_break(c, LH_IO, "rank %u: queue pair %u of %s can't be made: %s%s", c->peer,
                          p->index, t->ports[p->port].device, strerror(error), limit);
        return;
    }
    ib_greeting_pack(p, greeting);
    cm_param_t param = ib_param_of(p, greeting);
    if (t->verbs.connect(p->id, &param) == 0)
        p->reached = !c->asking;
    else
        give_up(p, "rdma_connect", strerror(errno));
}

/* The listener wants a proof, over both nonces. */
static void pair_prove(ib_pair_t *p, const uint8_t nonce[IB_NONCE_BYTES])
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    c->asking = false;
    (void)t->verbs.destroy_id(p->id);
    p->id = NULL;
    if (!ib_session(t->host, c->peer, c->nonce, nonce, c->session)) {
        ib_conn_break(c, LH_DENIED, "rank %u: there is no key to prove who we are", c->peer);
        return;
    }
    (void)ib_dial(p);
}

/* Whether the reply is one of the end that was dialed, which with `known` has proven itself. */
static bool is_answer(const ib_pair_t *p, const ib_greeting_t *reply,
                      const uint8_t raw[IB_GREETING_BYTES])
{
    lh_conn_t *c = p->conn;
    if (reply->pairs != c->pair_count || reply->ports != c->peer_ports || reply->turn != p->turn ||
        reply->index != p->index)
        ib_conn_break(c, LH_UNREACHABLE, "rank %u answers as no rank of this version does",
                      c->peer);
    else if (c->security != LH_SECURITY_PLAIN && !ib_session_signed(c->session, true, raw))
        ib_conn_break(c, LH_DENIED, "rank %u could not prove that it has this job's key", c->peer);
    return c->state < IB_LEAVING;
}

static void pair_is_up(ib_pair_t *p, const ib_greeting_t *reply,
                       const uint8_t raw[IB_GREETING_BYTES])
{
    lh_conn_t *c = p->conn;
    if (p->state != IB_PAIR_MEETING) return;
    if (c->dials && !is_answer(p, reply, raw)) return;
    p->state = IB_PAIR_UP;
    if (c->dials) p->peer_key = reply->key;
    p->placed = true;
    if (p->turn > 0) {
        ib_pair_mended(p, reply->board);
        return;
    }
    (void)atomic_fetch_add(&c->pairs_up, 1);
    if (!c->dials || p->index != c->first) return;
    c->peer_board = reply->board;
    c->state = IB_OPEN;
    for (uint32_t i = 0; i < c->pair_count && c->state == IB_OPEN; i++) {
        ib_pair_t *other = &c->pairs[i];
        if (i == c->first) continue;
        if (is_reachable(other))
            (void)ib_dial(other);
        else
            ib_pair_absent(other, "a port of it is down");
    }
}

void ib_pair_heard(ib_pair_t *p)
{
    static const ib_greeting_t none;
    if (!p->conn->dials) pair_is_up(p, &none, NULL);
}

/* The answer has come: the queue pair is led to where it may send, and the other end told so. */
static void pair_answered(ib_pair_t *p, const ib_said_t *s)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    if (p->state != IB_PAIR_MEETING || p->qp == NULL) return;
    if (ib_pair_ready(p) != LH_OK)
        give_up(p, "its answer can't be taken", strerror(errno));
    else if (t->verbs.establish(p->id) != 0)
        give_up(p, "rdma_establish", strerror(errno));
    else
        pair_is_up(p, &s->greeting, s->raw);
}

/* ---- events ---- */

/* The end that listens disconnects when it has lost the queue pair, or has gone: only another try
 * tells which. The end that dials does so when it has gone. */
static void pair_disconnected(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    if (c->state == IB_DIALING) {
        ib_conn_break(c, LH_UNREACHABLE, "rank %u closed the connection before it was up", c->peer);
    } else if (c->dials && c->state == IB_OPEN && !c->ended) {
        if (p->state != IB_PAIR_UP) return;
        (void)ib_pairs_pump(c);
        if (c->state == IB_OPEN && p->state == IB_PAIR_UP)
            ib_pair_fail(p, "the other end has lost it");
    } else {
        /* What has come over one that meets came from an end that was ready. */
        const cm_id_t *id = p->id;
        if (c->state == IB_OPEN && p->state == IB_PAIR_MEETING) (void)ib_pairs_pump(c);
        if (p->turn == 0 || p->state == IB_PAIR_UP)
            c->ended = true;
        else if (p->id == id)
            ib_pair_missed(p);
    }
}

/* A connection manager may hold the number of a queue pair for one that was before, and has no more to
 * say of the end behind it: that is tried again. */
static void pair_rejected(ib_pair_t *p, int by, const ib_said_t *s)
{
    static const char busy[] = "a connection manager rejects it";
    lh_conn_t *c = p->conn;
    const bool by_end = by <= 0 || by == CM_REJECTED_BY_NOBODY || by == CM_REJECTED_BY_PROGRAM;
    const bool denied = strcmp(s->text, ib_other_level) == 0 || strcmp(s->text, ib_not_proven) == 0;
    if (c->asking && s->challenges)
        pair_prove(p, s->nonce);
    else if (p->turn == 0 && !by_end && c->dials && ib_pair_has_others(p))
        ib_pair_absent(p, busy);
    else if (p->turn == 0)
        ib_conn_break(c, denied ? LH_DENIED : LH_UNREACHABLE,
                      "rank %u does not take the connection: %s", c->peer,
                      s->text[0] != '\0' ? s->text : "nobody listens at its address");
    else if (c->dials && by_end && strcmp(s->text, ib_not_yet) != 0)
        c->ended = true;
    else
        ib_pair_missed(p);
}

static void pair_event(ib_pair_t *p, const cm_event_t *event, const ib_said_t *s)
{
    lh_conn_t *c = p->conn;
    const ib_verbs_t *v = &c->transport->verbs;
    if (c->state >= IB_LEAVING) {
        if (event->type == CM_DISCONNECTED) c->ended = true;
        return;
    }
    switch (event->type) {
    case CM_ADDRESS_RESOLVED:
        if (v->resolve_route(p->id, 5000) != 0) give_up(p, "rdma_resolve_route", strerror(errno));
        return;
    case CM_ROUTE_RESOLVED: pair_request(p); return;
    case CM_CONNECT_RESPONSE: pair_answered(p, s); return;
    case CM_ESTABLISHED: pair_is_up(p, &s->greeting, s->raw); return;
    case CM_DISCONNECTED: pair_disconnected(p); return;
    case CM_REJECTED: pair_rejected(p, event->status, s); return;
    case CM_ADDRESS_ERROR:
    case CM_ROUTE_ERROR:
    case CM_CONNECT_ERROR:
    case CM_UNREACHABLE:
        if (c->state == IB_MET)
            c->ended = true;
        else if (p->state == IB_PAIR_UP) /* by what came over it alone: another turn has both */
            (void)ib_pair_stop(p);
        else
            give_up(p, v->event_text(event->type),
                    strerror(event->status < 0 ? -event->status : event->status));
        return;
    case CM_DEVICE_REMOVED: ib_pair_removed(p); return;
    default: return;
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

/* Everything is copied and acknowledged first: an id can't be destroyed before its events are. What is left of too
 * many comes with the next look: strangers may ask faster than they are refused. */
void ib_meet_events(lh_transport_t *t)
{
    cm_event_t *event;
    for (int i = 0; i < EVENTS_MOST && t->verbs.get_event(t->events, &event) == 0; i++) {
        const cm_event_t copy = *event;
        t->met_events++;
        ib_said_t s = {.text = ""};
        if (ib_greeting_read(copy.param.data, copy.param.data_bytes, &s.greeting))
            memcpy(s.raw, copy.param.data, IB_GREETING_BYTES);
        else
            memset(&s.greeting, 0, sizeof(s.greeting));
        s.challenges = ib_challenge_read(copy.param.data, copy.param.data_bytes, s.nonce);
        if (!s.challenges) read_text(&copy, s.text, sizeof(s.text));
        (void)t->verbs.ack_event(event);
        ib_watch_t *watch = copy.id->context;
        if (watch->kind == IB_WATCH_LISTENER)
            ib_listener_event((lh_listener_t *)(void *)watch, copy.id, &copy, &s);
        else if (watch->kind == IB_WATCH_PAIR)
            pair_event((ib_pair_t *)(void *)watch, &copy, &s);
    }
}
