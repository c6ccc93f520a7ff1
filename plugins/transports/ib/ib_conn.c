/* ib_conn.c - a connection's life: what it has, and how it ends.
 *
 * The end is in three steps. LEAVING: the peer is told why, over the queue pair itself, which takes
 * a round trip and the time of the chunks in front of it: it is waited for so long and IB_LEAVE_MS,
 * IB_LEFT_MS at most, and who waits may sleep until the goodbye's completion. Then the queue pairs
 * are destroyed: from there on the device touches no buffer, whatever the peer does. DRAINING: each
 * outstanding operation gets its event. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "ib.h"

enum { LEFT_OUT_NS = 2000000000 };

lh_conn_t *ib_conn_new(lh_transport_t *t, ib_state_t state)
{
    lh_conn_t *c = t->host->alloc(t->host, sizeof(*c), 64);
    if (c == NULL) return NULL;
    c->transport = t;
    c->state = state;
    for (uint32_t i = 0; i < IB_PAIRS_MOST; i++) {
        c->pairs[i].watch.kind = IB_WATCH_PAIR;
        c->pairs[i].conn = c;
        c->pairs[i].index = i;
    }
    c->dials = state == IB_DIALING;
    if (c->dials) t->meeting = true;
    c->next = t->conns;
    t->conns = c;
    return c;
}

static void queues_forget(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    for (uint32_t i = 0; i < t->port_count; i++) {
        if (c->cqs[i] != NULL) (void)t->verbs.destroy_cq(c->cqs[i]);
        c->cqs[i] = NULL;
    }
}

/* Of a port: the end that is dialed does not choose which pair comes to which. */
static uint32_t pairs_of_queue(const lh_conn_t *c)
{
    const uint32_t ports = c->transport->port_count;
    return c->dials ? (c->pair_count + ports - 1) / ports : c->pair_count;
}

static int queue_entries(const lh_conn_t *c)
{
    return (int)(pairs_of_queue(c) * 2 * c->transport->wrs);
}

/* The end of a sentence about one of so many entries that can't be made; "" where they are not why. */
static void entries_text(const lh_conn_t *c, const ib_port_t *port, int entries, char *out,
                         size_t room)
{
    verbs_limits_t limits = {.entries = 0};
    out[0] = '\0';
    if (c->transport->verbs.query_device(port->context, &limits) == 0 && limits.entries > 0 &&
        limits.entries < entries)
        (void)snprintf(out, room, "; one of that card has %d at most", limits.entries);
}

/* The port that can't have one, and errno; NULL: each has. */
static const ib_port_t *queues_make(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    for (uint32_t i = 0; i < t->port_count; i++) {
        const ib_port_t *port = &t->ports[i];
        c->cqs[i] = t->verbs.create_cq(port->context, queue_entries(c), c, port->channel, 0);
        if (c->cqs[i] != NULL) continue;
        const int error = errno;
        queues_forget(c);
        errno = error;
        return port;
    }
    return NULL;
}

/* Half of the queue pairs, where they were chosen and not set, and each port keeps one. False: no fewer. */
static bool pairs_halve(lh_conn_t *c)
{
    const lh_transport_t *t = c->transport;
    const uint32_t least = c->peer_ports > t->port_count ? c->peer_ports : t->port_count;
    if (!c->dials || t->config->queue_pairs != 0 || c->pair_count <= least) return false;
    c->pair_count = c->pair_count / 2 < least ? least : c->pair_count / 2;
    return true;
}

/* As many as the card has room for. */
static lh_status_t queues_fit(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    const uint32_t wanted = c->pair_count, of_one = pairs_of_queue(c);
    const int entries = queue_entries(c);
    const ib_port_t *lacks = queues_make(c), *first = lacks;
    char most[64] = "";
    while (lacks != NULL && pairs_halve(c))
        lacks = queues_make(c);
    if (lacks != NULL) {
        char limit[IB_LOCK_TEXT]; /* a driver may lock it */
        const int error = errno;
        ib_lock_text_of(c->transport, error, limit, sizeof(limit));
        entries_text(c, lacks, queue_entries(c), most, sizeof(most));
        errno = error;
        return host->fail(host, LH_IO,
                          "%s can't make a completion queue of %d entries, which %u queue pairs "
                          "need (queue_pairs sets how many)%s%s",
                          lacks->device, queue_entries(c), pairs_of_queue(c), most, limit);
    }
    if (first == NULL) return LH_OK;
    entries_text(c, first, entries, most, sizeof(most));
    host->log(host, LH_LOG_WARN,
              "rank %u: %s can't make a completion queue of %d entries, which %u queue pairs need; "
              "%u queue pairs instead of %u%s",
              c->peer, first->device, entries, of_one, c->pair_count, wanted, most);
    return ib_take_pairs(c);
}

lh_status_t ib_conn_equip(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    c->board = host->alloc(host, 2 * sizeof(*c->board), 4096);
    if (c->board == NULL) return LH_NO_MEMORY;
    lh_status_t status = ib_register_all(t, &c->board[0], sizeof(*c->board), true, c->board_in);
    if (status == LH_OK)
        status = ib_register_all(t, &c->board[1], sizeof(*c->board), false, c->board_out);
    if (status == LH_OK) status = host->random(host, &c->label, sizeof(c->label));
    if (status == LH_OK) status = queues_fit(c);
    if (status != LH_OK) return status;
    return c->security == LH_SECURITY_PRIVATE ? ib_private_equip(c) : LH_OK;
}

/* From here on the device knows nothing of the connection. */
static void conn_dismantle(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    static const char refusal[] = "it was not admitted";
    const ib_verbs_t *v = &c->transport->verbs;
    for (uint32_t i = 0; i < IB_PAIRS_MOST; i++) {
        ib_pair_t *p = &c->pairs[i];
        ib_pair_forget(p);
        if (p->id != NULL) {
            ib_pair_unmake(p);
            if (p->reached)
                (void)v->disconnect(p->id);
            else if (c->state == IB_MET)
                (void)v->reject(p->id, refusal, sizeof(refusal));
            (void)v->destroy_id(p->id);
        }
        p->id = NULL;
        if (p->sent != NULL) t->host->release(t->host, p->sent);
        p->sent = NULL;
        p->state = IB_PAIR_NONE;
    }
    ib_private_unmake(c);
    queues_forget(c);
    ib_forget_all(t, c->board_in);
    ib_forget_all(t, c->board_out);
    atomic_store(&c->pairs_up, 0);
    c->state = IB_DRAINING;
}

void ib_conn_break(lh_conn_t *c, lh_status_t why, const char *fmt, ...)
{
    va_list args;
    (void)ib_pairs_flush(c); /* messages before one that is wrong */
    if (c->state >= IB_LEAVING) return;
    c->why = why;
    va_start(args, fmt);
    (void)vsnprintf(c->reason, sizeof(c->reason), fmt, args);
    va_end(args);
    const bool talks = c->state == IB_OPEN && !c->ended;
    c->state = IB_LEAVING;
    c->leave_ns = 0;
    if (talks && why != LH_PEER_LOST) ib_pairs_goodbye(c);
}

/* The peer learns of it as of a death. */
void ib_cancel(lh_conn_t *c)
{
    if (c->state >= IB_DRAINING) return;
    if (c->state == IB_OPEN) ib_device_watch(c->transport, 0);
    if (c->state != IB_LEAVING) c->why = LH_CANCELLED;
    conn_dismantle(c);
}

void ib_close_conn(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    ib_cancel(c);
    lh_conn_t **at = &t->conns;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    if (c->board != NULL) t->host->release(t->host, c->board);
    ib_private_free(c);
    t->host->release(t->host, c);
}

/* When a queue pair that both ends know to be down, dialed now and then or not, is not waited for any
 * more: at once, but where that may be the path's MTU, as it is then soon back. UINT64_MAX: it is none. */
static uint64_t left_out_ns(const ib_pair_t *p)
{
    if (p->state == IB_PAIR_UP || !p->away) return UINT64_MAX;
    return p->lost == 0 ? 0 : p->lost_ns + LEFT_OUT_NS;
}

/* Each has its own ports, and so its own path. */
static bool pairs_are_proven(const lh_conn_t *c)
{
    const uint64_t now = c->transport->host->now_ns(c->transport->host);
    bool all = true;
    for (uint32_t i = 0; i < c->pair_count; i++) {
        const ib_pair_t *p = &c->pairs[i];
        all &= (p->state == IB_PAIR_UP && p->proven) || now >= left_out_ns(p);
    }
    return all;
}

/* Pairs may fail later, one by one or all. */
static bool is_up(const lh_conn_t *c)
{
    if (c->up_said) return true;
    return c->state == IB_OPEN && atomic_load(&c->pairs_up) > 0 && pairs_are_proven(c) &&
           (c->security != LH_SECURITY_PRIVATE || (c->sealed.told && c->sealed.ready_keys));
}

/* What comes before it is up: each queue pair's path is tried with a packet of the port's MTU, and
 * ends that seal tell each other of their frames. */
static void conn_begin(lh_conn_t *c)
{
    for (uint32_t i = 0; i < c->pair_count && c->state == IB_OPEN; i++) {
        ib_pair_t *p = &c->pairs[i];
        if (p->state == IB_PAIR_UP && !p->failing && !p->proven && !p->probing)
            p->probing = ib_pair_probe(p);
    }
    if (c->pairs[c->lead].state == IB_PAIR_UP && c->state == IB_OPEN &&
        c->security == LH_SECURITY_PRIVATE)
        ib_private_meet(c);
    if (c->state == IB_OPEN) (void)ib_pairs_pump(c);
    if (c->state == IB_OPEN) ib_pairs_move(c);
}

static bool worse_is_due(const lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    return c->worse_due && (c->whole_due || host->now_ns(host) >= c->worse_ns);
}

static bool anything_to_tell(const lh_conn_t *c)
{
    return c->ended || worse_is_due(c) || c->whole_due || ib_messages_ready(c);
}

/* The goodbye's completion, or an error of a queue pair that was well, sets leave_ns to 0. */
static bool has_left(const lh_conn_t *c)
{
    return c->leave_ns == 0 || c->ended;
}

bool ib_conn_stir(lh_conn_t *c)
{
    if (c->state == IB_LEAVING) return has_left(c);
    if (c->state != IB_OPEN) return c->state == IB_DRAINING;
    if (!is_up(c)) conn_begin(c);
    if (c->state != IB_OPEN) return true;
    if (!is_up(c)) return c->ended;
    if (!c->up_said) return true;
    (void)ib_pairs_pump(c);
    if (c->state == IB_OPEN) ib_pairs_move(c);
    if (c->state == IB_OPEN) ib_pairs_notify(c);
    if (c->state == IB_OPEN) ib_messages_write(c);
    return c->state != IB_OPEN || anything_to_tell(c);
}

static uint64_t sooner_time(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Only what is acted on when it is due: a time that has passed would wake a sleeper again and again. */
uint64_t ib_conn_due(const lh_conn_t *c)
{
    const uint64_t now = c->transport->host->now_ns(c->transport->host);
    uint64_t due = UINT64_MAX;
    if (c->state == IB_DIALING) return c->give_up_ns;
    if (c->state == IB_LEAVING) return c->leave_ns;
    if (c->state != IB_OPEN) return due;
    if (c->dials && !c->up_said) due = c->give_up_ns;
    if (c->refused_ns != 0) due = sooner_time(due, c->refused_ns);
    for (uint32_t i = 0; i < c->pair_count && !c->up_said; i++) {
        const uint64_t left_out = left_out_ns(&c->pairs[i]);
        if (left_out > now) due = sooner_time(due, left_out);
    }
    if (!c->up_said && is_up(c)) return now;
    for (uint32_t i = 0; i < c->pair_count && c->refused_ns == 0; i++)
        due = sooner_time(due, ib_pair_due(&c->pairs[i]));
    if (c->worse_due && c->up_said) due = sooner_time(due, c->worse_ns);
    const uint64_t opens = ib_bucket_due(&c->bucket);
    const bool waits = c->send_next < c->send_end && c->send_next < c->granted;
    return waits && opens != 0 ? sooner_time(due, opens) : due;
}

/* That it lives on with fewer queue pairs, and that it is whole again. */
static void tell_pairs(lh_conn_t *c, ib_sink_t *s)
{
    lh_wire_event_t event = {.cookie = c->cookie, .type = LH_WIRE_DEGRADED};
    if (worse_is_due(c) && ib_sink_room(s)) {
        const uint32_t up = atomic_load(&c->pairs_up);
        const char *why = "";
        for (uint32_t i = 0; i < c->pair_count; i++)
            if (c->pairs[i].state != IB_PAIR_UP && c->pairs[i].failure != NULL)
                why = c->pairs[i].failure;
        (void)snprintf(c->reason, sizeof(c->reason), "%u of %u queue pairs are being replaced%s%s",
                       c->pair_count - up, c->pair_count, why[0] != '\0' ? ": " : "", why);
        c->worse_due = false;
        event.status = LH_PEER_LOST;
        event.reason = c->reason;
        ib_tell(s, event);
    }
    if (!c->worse_due && c->whole_due && ib_sink_room(s)) {
        c->whole_due = false;
        event.status = LH_OK;
        event.reason = NULL;
        ib_tell(s, event);
    }
}

/* Nothing of it is waited for by the clock but the end of a queue pair's idleness, which a poll now and then
 * sees: to read a clock takes longer than to find a completion queue empty. */
static bool is_at_rest(const lh_conn_t *c)
{
    return c->up_said && !c->transport->looks && c->refused_ns == 0 && !c->worse_due &&
           !c->whole_due && atomic_load(&c->pairs_up) == c->pair_count;
}

static void step_times(lh_conn_t *c, ib_sink_t *s)
{
    const uint64_t now = c->transport->host->now_ns(c->transport->host);
    if (c->refused_ns != 0 && now >= c->refused_ns && !c->ended)
        ib_conn_break(c, LH_CORRUPT,
                      "rank %u's card refuses what is written where its grants say: remote access "
                      "error",
                      c->peer);
    if (c->state != IB_OPEN) return;
    if (c->refused_ns == 0) ib_pairs_mend(c, now); /* also before it was up at the other end, too */
    if (c->up_said && c->state == IB_OPEN) {
        tell_pairs(c, s);
        ib_pairs_ping(c, now);
    }
}

static void step_open(lh_conn_t *c, ib_sink_t *s)
{
    if (is_up(c) && !c->up_said && ib_sink_room(s)) {
        c->up_said = true;
        ib_tell(s, (lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_UP});
    }
    (void)ib_conn_stir(c);
    if (c->state == IB_OPEN && !is_at_rest(c)) step_times(c, s);
    if (c->state != IB_OPEN) return;
    ib_messages_tell(c, s);
    /* What a peer wrote before it ended has been taken by now, and is opened soon. */
    if (c->ended && !ib_messages_ready(c) && c->sealed.opening == 0)
        ib_conn_break(c, LH_PEER_LOST, "rank %u closed its end, or its process ended", c->peer);
}

static void step_leaving(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    if (!has_left(c)) (void)ib_pairs_pump(c);
    if (has_left(c) || host->now_ns(host) >= c->leave_ns) conn_dismantle(c);
}

static void step_draining(lh_conn_t *c, ib_sink_t *s)
{
    if (!c->down_said) {
        if (!ib_sink_room(s)) return;
        c->down_said = true;
        if (c->why != LH_CANCELLED)
            ib_tell(s, (lh_wire_event_t){.cookie = c->cookie,
                                         .type = LH_WIRE_DOWN,
                                         .status = c->why,
                                         .reason = c->reason});
    }
    if (!ib_messages_drain(c, s) || !ib_sink_room(s)) return;
    ib_tell(s, (lh_wire_event_t){.cookie = c->cookie, .type = LH_WIRE_DRAINED});
    c->state = IB_DRAINED;
}

void ib_conn_step(lh_conn_t *c, ib_sink_t *s)
{
    const lh_host_t *host = c->transport->host;
    const bool dials = c->state == IB_DIALING || (c->state == IB_OPEN && c->dials && !c->up_said);
    if (dials && host->now_ns(host) > c->give_up_ns)
        ib_conn_break(c, LH_UNREACHABLE, "rank %u did not answer%s", c->peer,
                      c->state == IB_DIALING ? ib_meet_nowhere(c) : "");
    if (c->state == IB_OPEN) step_open(c, s);
    if (c->state == IB_LEAVING) step_leaving(c);
    if (c->state == IB_DRAINING) step_draining(c, s);
}
