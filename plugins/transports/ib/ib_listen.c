/* ib_listen.c - the end that listens: connect requests of strangers, of ranks that the host is to
 * admit, and of more queue pairs of a connection that it has admitted. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>

#include "ib.h"

enum { BACKLOG = IB_WAITING };

const char ib_not_this_job[] = "not this job";
const char ib_other_level[] = "it listens with another level of security";
const char ib_not_proven[] = "it does not believe that this end has the job's key";
const char ib_has_ended[] = "the connection has ended";
const char ib_not_yet[] = "not yet";

/* Of each port of the rank, whose port of addresses is its own where `port` is not set. */
static lh_status_t listen_at(lh_listener_t *l, uint32_t index)
{
    lh_transport_t *t = l->transport;
    const lh_host_t *host = t->host;
    struct sockaddr_storage at = t->ports[index].here;
    cm_id_t **id = &l->ids[index];
    lh_rank_info_t info = {.struct_size = sizeof(info)};
    uint64_t port = t->config->port;
    if (port != 0 && host->rank_info(host, host->world->rank, &info) == LH_OK)
        port += info.local_rank;
    ib_place_port(&at, htons((uint16_t)port));
    if (t->verbs.create_id(t->events, id, &l->watch, CM_SPACE_TCP) != 0)
        return host->fail(host, LH_IO, "rdma_create_id");
    if (t->verbs.bind_address(*id, (struct sockaddr *)&at) != 0 ||
        t->verbs.listen(*id, BACKLOG) != 0) {
        char text[80];
        ib_place_text(&at, text, sizeof(text));
        return host->fail(host, LH_IO, "listen with RDMA at %s", text);
    }
    return LH_OK;
}

lh_status_t ib_listen(lh_transport_t *t, uint32_t nic, uint32_t security, lh_address_t *address,
                      lh_listener_t **out)
{
    const lh_host_t *host = t->host;
    if (nic != 0) return host->fail(host, LH_INVALID, "there is one card, not %u", nic + 1);
    lh_status_t status = ib_check_security(t, security);
    if (status != LH_OK) return status;
    lh_listener_t *l = host->alloc(host, sizeof(*l), 64);
    if (l == NULL) return LH_NO_MEMORY;
    l->watch.kind = IB_WATCH_LISTENER;
    l->transport = t;
    l->security = security;
    l->next = t->listeners;
    t->listeners = l;
    status = host->random(host, &l->token, sizeof(l->token));
    for (uint32_t i = 0; i < t->port_count && status == LH_OK; i++)
        status = listen_at(l, i);
    if (status != LH_OK) {
        ib_close_listener(l);
        return status;
    }
    const ib_port_t *first = ib_port_first_up(t);
    ib_place_t place = {.ports = t->port_count,
                        .token = l->token,
                        .link_layer = first->link_layer,
                        .roce = first->roce,
                        .mtu = first->mtu};
    for (uint32_t i = 0; i < t->port_count; i++) {
        place.down |= ib_port_is_up(t, &t->ports[i]) ? 0 : 1u << i;
        place.at[i] = t->ports[i].here;
        ib_place_port(&place.at[i], t->verbs.source_port(l->ids[i]));
    }
    ib_place_write(&place, address);
    *out = l;
    return LH_OK;
}

void ib_close_listener(lh_listener_t *l)
{
    lh_transport_t *t = l->transport;
    for (uint32_t i = 0; i < l->waiting_count; i++)
        (void)t->verbs.destroy_id(l->waiting[i].id);
    for (uint32_t i = 0; i < IB_PORTS_MOST; i++)
        if (l->ids[i] != NULL) (void)t->verbs.destroy_id(l->ids[i]);
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

static void pair_adopt(ib_pair_t *p, cm_id_t *id, const ib_greeting_t *g, uint32_t port)
{
    p->id = id;
    p->port = port;
    p->peer_key = g->key;
    p->placed = true;
    id->context = &p->watch;
}

static lh_status_t pair_answer(ib_pair_t *p)
{
    lh_transport_t *t = p->conn->transport;
    uint8_t greeting[IB_GREETING_BYTES];
    ib_set_options(p);
    lh_status_t status = ib_pair_make(p);
    if (status == LH_OK) status = ib_pair_ready(p);
    if (status != LH_OK) return status;
    ib_greeting_pack(p, greeting);
    cm_param_t param = ib_param_of(p, greeting);
    if (t->verbs.accept(p->id, &param) != 0)
        return t->host->fail(t->host, LH_PEER_LOST, "rank %u has gone before it was admitted",
                             p->conn->peer);
    p->state = IB_PAIR_MEETING;
    p->reached = true;
    return LH_OK;
}

static bool is_of(const lh_conn_t *c, const ib_greeting_t *g)
{
    if (c->state != IB_OPEN || c->dials || g->index >= c->pair_count ||
        g->security != c->security || memcmp(&c->hello, &g->hello, sizeof(g->hello)) != 0)
        return false;
    return g->turn > 0 || (c->peer_board == g->board && c->peer_ports == g->ports);
}

/* Another queue pair of a connection that was admitted, or a later turn of one. A turn counts once,
 * so that a request that was heard and sent again is none. */
static void take_more(lh_transport_t *t, const ib_request_t *r,
                      const uint8_t raw[IB_GREETING_BYTES])
{
    const ib_greeting_t *g = &r->greeting;
    cm_id_t *id = r->id;
    lh_conn_t *c = t->conns;
    while (c != NULL && !is_of(c, g))
        c = c->next;
    ib_pair_t *p = c == NULL ? NULL : &c->pairs[g->index];
    if (p == NULL || (g->turn == 0 ? p->state != IB_PAIR_NONE : g->turn <= p->turn)) {
        turn_away(t, id, ib_has_ended);
        return;
    }
    if (c->security != LH_SECURITY_PLAIN && !ib_session_signed(c->session, false, raw)) {
        t->host->count(t->host, "ib.strangers", 1);
        turn_away(t, id, ib_not_proven);
        return;
    }
    /* A later turn comes to the port of the first. What this end could not get through goes over
     * others first, for which both ends must part with it. */
    const bool parts = ib_pair_doubted(p) && !p->away && ib_pair_has_others(p);
    const bool strays = p->placed && r->port != p->port;
    if (g->turn > 0 && (strays || ib_pair_waits(p) || parts)) {
        turn_away(t, id, strays ? ib_has_ended : ib_not_yet);
        return;
    }
    if (g->turn > 0) ib_pair_renew(p, g, id);
    if (g->turn == 0 || p->id == id) pair_adopt(p, id, g, r->port);
    if (p->id != id) turn_away(t, id, c->state == IB_OPEN ? ib_not_yet : ib_has_ended);
    if (p->id != id || c->state != IB_OPEN) return;
    if (pair_answer(p) == LH_OK) return;
    if (g->turn > 0)
        ib_pair_missed(p);
    else
        ib_conn_break(c, LH_IO, "rank %u: queue pair %u can't be made", c->peer, g->index);
}

/* A row of the table of challenges, the oldest where all are out; the asker is sent away with it. */
static void challenge_send(lh_listener_t *l, cm_id_t *id, const ib_greeting_t *g)
{
    lh_transport_t *t = l->transport;
    const lh_host_t *host = t->host;
    uint8_t text[IB_CHALLENGE_BYTES];
    ib_asked_t *a = &l->asked[l->asked_next++ % IB_WAITING];
    *a = (ib_asked_t){.until_ns = host->now_ns(host) + IB_ASKED_MS * 1000000ull, .hello = g->hello};
    memcpy(a->dials, g->mac, IB_NONCE_BYTES);
    if (host->random(host, a->listens, IB_NONCE_BYTES) != LH_OK) {
        a->until_ns = 0;
        turn_away(t, id, ib_not_this_job);
        return;
    }
    ib_challenge_write(a->listens, text);
    (void)t->verbs.reject(id, text, sizeof(text));
    (void)t->verbs.destroy_id(id);
}

/* Whether it answers a challenge that is out; each is good for one answer. */
static bool greeting_is_proven(lh_listener_t *l, const ib_greeting_t *g,
                               const uint8_t raw[IB_GREETING_BYTES],
                               uint8_t session[IB_SESSION_BYTES])
{
    const lh_host_t *host = l->transport->host;
    const uint64_t now = host->now_ns(host);
    for (uint32_t i = 0; i < IB_WAITING; i++) {
        ib_asked_t *a = &l->asked[i];
        if (a->until_ns <= now || memcmp(&a->hello, &g->hello, sizeof(g->hello)) != 0) continue;
        if (!ib_session(host, g->hello.rank, a->dials, a->listens, session) ||
            !ib_session_signed(session, false, raw))
            continue;
        a->until_ns = 0;
        return true;
    }
    return false;
}

/* Which of the listener's ids it came to; IB_PORTS_MOST: none. */
static uint32_t port_of(const lh_listener_t *l, const cm_id_t *listens)
{
    uint32_t i = 0;
    while (i < IB_PORTS_MOST && (listens == NULL || l->ids[i] != listens))
        i++;
    return i;
}

static void take_request(lh_listener_t *l, cm_id_t *id, const cm_event_t *event,
                         const ib_greeting_t *g, const uint8_t raw[IB_GREETING_BYTES])
{
    lh_transport_t *t = l->transport;
    ib_request_t r = {.id = id, .port = port_of(l, event->listen_id), .greeting = *g};
    const bool known = l->security != LH_SECURITY_PLAIN;
    const char *why = NULL;
    if (event->status != 0 || g->pairs == 0 || g->token != l->token || r.port == IB_PORTS_MOST)
        why = ib_not_this_job;
    else if (g->security != l->security)
        why = ib_other_level;
    else if (g->first && known && !g->asks && !greeting_is_proven(l, g, raw, r.session))
        why = ib_not_proven;
    if (why != NULL) {
        t->host->count(t->host, "ib.strangers", 1);
        turn_away(t, id, why);
    } else if (!g->first) {
        take_more(t, &r, raw);
    } else if (known && g->asks) {
        challenge_send(l, id, g);
    } else if (l->waiting_count == IB_WAITING) {
        turn_away(t, id, "too many wait to be accepted");
    } else {
        l->waiting[l->waiting_count++] = r;
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
    c->peer_ports = r.greeting.ports;
    c->security = l->security;
    memcpy(c->session, r.session, IB_SESSION_BYTES);
    c->first = c->lead = r.greeting.index;
    pair_adopt(&c->pairs[c->first], r.id, &r.greeting, r.port);
    *hello = c->hello;
    *out = c;
    return LH_OK;
}

lh_status_t ib_admit(lh_conn_t *c, const lh_conn_params_t *params)
{
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    lh_status_t status = ib_check_security(t, params->security);
    if (status != LH_OK) return status;
    if (params->security != c->security)
        return host->fail(host, LH_UNSUPPORTED, "security %u is asked for, the listener has %u",
                          params->security, c->security);
    if (c->state != IB_MET) return host->fail(host, LH_INVALID, "it is admitted already");
    if (c->ended)
        return host->fail(host, LH_PEER_LOST, "rank %u has gone before it was admitted", c->peer);
    status = ib_take_params(c, params);
    if (status == LH_OK) status = ib_conn_equip(c);
    if (status == LH_OK) status = pair_answer(&c->pairs[c->first]);
    if (status == LH_OK) c->state = IB_OPEN;
    return status;
}

/* An id that waits to be accepted has its listener's context. */
void ib_listener_event(lh_listener_t *l, cm_id_t *id, const cm_event_t *event, const ib_said_t *s)
{
    if (event->type == CM_CONNECT_REQUEST) {
        take_request(l, id, event, &s->greeting, s->raw);
        return;
    }
    for (uint32_t i = 0; i < l->waiting_count; i++)
        if (l->waiting[i].id == id) {
            drop_request(l, i);
            (void)l->transport->verbs.destroy_id(id);
            return;
        }
}
