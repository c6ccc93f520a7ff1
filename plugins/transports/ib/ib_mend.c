/* ib_mend.c - queue pairs that fail are replaced, and lose nothing.
 *
 * A reliable queue pair delivers in order, and both ends count the immediates that came over each.
 * So when one fails, whichever end saw it, the end that dials asks for another of the same place
 * with the number that it has taken, the other end answers with its own, and each sends again
 * exactly what the other has not taken: nothing is lost, nothing comes twice, and no end has to
 * remember which chunks there were. A chunk that was half written is written again to the same
 * place, before its receive is complete.
 *
 * Before an end tells its number it stops its old queue pair, takes all completions, of which the
 * last say that receives were flushed, and destroys it, so that nothing can arrive behind it: an
 * error of a send says nothing of what still comes, and what came unseen would be acknowledged by the
 * card and not counted here. A card that flushes nothing is waited for IB_STOP_MS, while chunks go on
 * over the other queue pairs; notices, too, but where it leads and has carried any: the peer takes them
 * in their order, which another queue pair would not keep (lead_of in ib_pair.c), so that grants and
 * credits wait until both ends know what came over it. The end that listens and sees an error first
 * disconnects, which tells the other. The first queue pair of the new turn begins with receive work
 * requests of its own, and so with new credits.
 *
 * One whose first try is not answered while others are up, as its port may be down, is parted with:
 * both ends tell each other over another one what they have taken; where that one goes down, too, they
 * do so again at once, or each end's word could lie on the queue pair that the other's is about. What
 * is left goes over the others:
 * what it had to say at once and anew (ib_pair_unsay), chunks as there are credits (ib_pairs_move). It
 * is dialed each second from then on, when nothing is left of it, and the connection ends only when
 * none is up.
 *
 * A path with a smaller MTU lets queue pairs meet and loses what they carry. So one that fails
 * IB_DOUBT times in a row of what was not small is in doubt: it is parted with, too, and when it is
 * up again carries a packet of the port's MTU, and nothing else until that has come through. Where
 * no other is left, or the connection was never up, it ends with a sentence that names the MTU. */
#include "ib.h"

enum { AGAIN_MS = 250, AWAY_MS = 1000, PATIENCE_LEAST_MS = 1000, WORSE_MS = 100 };
enum { PART_MS = 10 }; /* between tries to tell the other end */

static uint64_t mend_now(const lh_conn_t *c)
{
    return c->transport->host->now_ns(c->transport->host);
}

/* How long the card itself has tried before it gave up. */
static uint64_t tried_ns(const lh_conn_t *c)
{
    return ((uint64_t)4096 << c->tuning.ack_timeout) * (IB_RETRIES + 1);
}

/* Nothing waits for one whose work goes over the others. */
static uint64_t again_at(const ib_pair_t *p, uint64_t now)
{
    return now + (p->away ? AWAY_MS : AGAIN_MS) * 1000000ull + 4 * p->conn->link.round_trip_ns;
}

static void next_turn(ib_pair_t *p, uint64_t now)
{
    p->turn++;
    p->asked = p->answer_due = false;
    p->again_ns = again_at(p, now);
    (void)ib_dial(p);
}

void ib_pair_forget(ib_pair_t *p)
{
    while (p->former_count > 0)
        (void)p->conn->transport->verbs.destroy_id(p->former[--p->former_count]);
}

/* What is said of it from now on is no news. The oldest of too many goes: the other end, if there is
 * one, has heard of a later turn. */
static void former_keep(ib_pair_t *p)
{
    const ib_verbs_t *v = &p->conn->transport->verbs;
    p->id->context = &p->conn->transport->nobody;
    if (p->former_count == IB_FORMER) {
        (void)v->destroy_id(p->former[0]);
        memmove(&p->former[0], &p->former[1], (IB_FORMER - 1) * sizeof(p->former[0]));
        p->former_count--;
    }
    p->former[p->former_count++] = p->id;
    p->id = NULL;
}

bool ib_pairs_whole(const lh_conn_t *c)
{
    bool whole = atomic_load(&c->pairs_up) == c->pair_count;
    for (uint32_t i = 0; i < c->pair_count; i++)
        whole &= !ib_pair_doubted(&c->pairs[i]);
    return whole;
}

bool ib_pair_has_others(const ib_pair_t *p)
{
    const lh_conn_t *c = p->conn;
    for (uint32_t i = 0; i < c->pair_count; i++) {
        const ib_pair_t *q = &c->pairs[i];
        if (q != p && q->state == IB_PAIR_UP && !ib_pair_doubted(q)) return true;
    }
    return false;
}

static bool all_doubted(const lh_conn_t *c)
{
    bool all = true;
    for (uint32_t i = 0; i < c->pair_count; i++)
        all &= ib_pair_doubted(&c->pairs[i]);
    return all;
}

/* It could be connected, by small packets, and the first one that was not small was lost, again and
 * again. Once it was up, a path that is cut now and then looks alike for a while. */
static bool path_is_too_small(ib_pair_t *p, uint64_t now)
{
    const lh_conn_t *c = p->conn;
    bool large = false, more = true; /* of the oldest that was to be answered */
    for (uint64_t i = p->sent_first; more && i < p->sent_end; i++) {
        large |= p->sent[i % IB_SEND_WRS].bytes > IB_SMALL;
        more = !p->sent[i % IB_SEND_WRS].signaled;
    }
    if (!p->unanswered || !large) return false;
    if (p->lost++ == 0) p->lost_ns = now;
    if (!c->up_said) return ib_pair_doubted(p);
    return all_doubted(c) && p->lost > IB_DOUBT && now - p->lost_ns >= c->patience_ns;
}

void ib_pair_fail(ib_pair_t *p, const char *why)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    const uint64_t now = mend_now(c), least = PATIENCE_LEAST_MS * 1000000ull;
    const bool was_up = p->state == IB_PAIR_UP, doubted = ib_pair_doubted(p);
    if (p->state == IB_PAIR_DOWN) return;
    p->failing = false;
    p->failure = why;
    if (!was_up) {
        if (p->turn > 0)
            ib_pair_missed(p);
        else
            ib_conn_break(c, LH_IO, "rank %u: queue pair %u failed: %s", c->peer, p->index, why);
        return;
    }
    if (path_is_too_small(p, now)) {
        ib_conn_break(c, LH_UNREACHABLE,
                      "packets of %u bytes don't come through to rank %u, though smaller ones did: "
                      "something between both may have a smaller MTU than their ports (%s, queue "
                      "pair %u)",
                      ib_mtu_bytes(t->ports[p->port].mtu), c->peer, t->ports[p->port].device,
                      p->index);
        return;
    }
    ib_pair_unmake(p);
    p->state = IB_PAIR_DOWN;
    ib_pair_unsay_words(p);
    t->meeting = true;
    /* The card's own tries are part of the patience, where it has tried. */
    const uint64_t tried = p->unanswered ? tried_ns(c) : 0;
    p->give_up_ns = now + (c->patience_ns > tried + least ? c->patience_ns - tried : least);
    (void)atomic_fetch_sub(&c->pairs_up, 1);
    if (!doubted) { /* else it was told, and it was not whole since */
        if (!c->worse_due) c->worse_ns = now + WORSE_MS * 1000000ull;
        c->worse_due = true;
        c->whole_due = false;
    }
    t->host->count(t->host, "rdma.replaced", 1);
    if (!c->dials) {
        /* What is said of it from now on is no news. */
        p->id->context = &t->nobody;
        p->again_ns = again_at(p, now);
        (void)t->verbs.disconnect(p->id);
        return;
    }
    former_keep(p);
    if (!p->gone && !(ib_pair_doubted(p) && ib_pair_has_others(p))) {
        next_turn(p, now);
        return;
    }
    p->asked = false;
    p->again_ns = now; /* to part with it */
}

/* For good: a device that comes back is another one, which this process has not opened. */
void ib_pair_removed(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    const char *device = c->transport->ports[p->port].device;
    bool all = true;
    p->gone = true;
    if (p->state == IB_PAIR_UP && c->state == IB_OPEN) (void)ib_pairs_pump(c);
    if (c->state >= IB_LEAVING) return;
    for (uint32_t i = 0; i < c->pair_count; i++)
        all &= c->pairs[i].gone;
    if (all || c->state != IB_OPEN)
        ib_conn_break(c, LH_IO, "the RDMA device %s was removed", device);
    else if (p->state == IB_PAIR_UP)
        ib_pair_fail(p, "its RDMA device was removed");
    else if (p->turn == 0 && p->state == IB_PAIR_MEETING)
        ib_pair_absent(p, "its RDMA device was removed");
    else if (p->state == IB_PAIR_MEETING)
        ib_pair_missed(p);
}

void ib_pair_missed(ib_pair_t *p)
{
    lh_transport_t *t = p->conn->transport;
    ib_pair_unmake(p);
    if (p->id != NULL) {
        if (p->conn->dials)
            former_keep(p);
        else
            p->id->context = &t->nobody;
    }
    p->state = IB_PAIR_DOWN;
}

void ib_pair_absent(ib_pair_t *p, const char *why)
{
    lh_conn_t *c = p->conn;
    const uint64_t now = mend_now(c);
    ib_pair_missed(p);
    p->failure = why;
    p->asked = false;
    p->again_ns = now; /* to part with it */
    p->give_up_ns = now + c->patience_ns;
    if (!c->worse_due) c->worse_ns = now + WORSE_MS * 1000000ull;
    c->worse_due = true;
    c->whole_due = false;
    c->transport->meeting = true;
}

static bool pair_prune(ib_pair_t *p, uint64_t taken)
{
    lh_conn_t *c = p->conn;
    taken = p->acked + ((uint32_t)taken - (uint32_t)p->acked); /* of which 32 bits have come */
    if (!ib_credits_renew(&p->credits, p->acked, taken, p->arrived)) {
        ib_conn_break(c, LH_CORRUPT,
                      "rank %u says to have taken %llu writes of queue pair %u, which is not so",
                      c->peer, (unsigned long long)taken, p->index);
        return false;
    }
    while (p->acked < taken && p->sent_first < p->sent_end)
        ib_pair_done(p);
    return true;
}

/* The end that listens: its own queue pair may be well, or have failed long ago. */
void ib_pair_renew(ib_pair_t *p, const ib_greeting_t *g, cm_id_t *id)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    (void)ib_pairs_pump(c); /* also what came over others, before anything that comes over this */
    if (c->state != IB_OPEN || g->turn <= p->turn || ib_pair_waits(p)) return;
    /* The end that dials has found it dead, and so it is. */
    if (p->state == IB_PAIR_UP) ib_pair_fail(p, "the other end has lost it");
    ib_pair_unmake(p);
    if (p->id != NULL) (void)t->verbs.destroy_id(p->id);
    p->id = id;
    id->context = &p->watch;
    p->turn = g->turn;
    p->state = IB_PAIR_MEETING;
    p->asked = p->answer_due = false;
    p->again_ns = again_at(p, mend_now(c));
    (void)pair_prune(p, g->board);
}

void ib_pair_mended(ib_pair_t *p, uint64_t taken)
{
    lh_conn_t *c = p->conn;
    ib_pair_forget(p);
    if (c->dials && !pair_prune(p, taken)) return;
    p->away = p->asked = p->answer_due = p->notices = false;
    p->heard_ns = mend_now(c);
    p->rate = 0; /* what it was as it failed would keep chunks away from it for ever */
    (void)atomic_fetch_add(&c->pairs_up, 1);
    if (!ib_pair_repost(p)) {
        p->failing = true;
        p->failure = "it takes no work requests";
        return;
    }
    if (ib_pairs_whole(c)) c->whole_due = true;
}

bool ib_pair_waits(const ib_pair_t *p)
{
    return p->away && p->sent_first < p->sent_end && ib_pair_has_others(p);
}

/* The end that dialed decides, so its turn is the one that counts; the other one may only say that
 * it is down there. An answer, or an order, of a former turn is none. */
void ib_pair_parted(ib_pair_t *p)
{
    static const char lost[] = "the other end has lost it";
    lh_conn_t *c = p->conn;
    const uint32_t low = p->away_turn, count = p->away_count;
    p->heard_away = false;
    if (p->qp != NULL) (void)ib_pairs_pump(c); /* which may act on a later word, or a later turn */
    if (c->state != IB_OPEN) return;
    const int32_t ahead = ib_turn_ahead(p->turn, low);
    const uint32_t turn = p->turn + (uint32_t)ahead;
    if (c->dials ? ahead != 0 : ahead < 0) return;
    if (p->state == IB_PAIR_UP)
        ib_pair_fail(p, lost);
    else if (p->state == IB_PAIR_NONE || p->give_up_ns == 0)
        ib_pair_absent(p, "the other end can't reach it");
    else if (p->state == IB_PAIR_MEETING)
        ib_pair_missed(p);
    if (c->state != IB_OPEN || p->state != IB_PAIR_DOWN || (c->dials && !p->asked)) return;
    p->turn = turn;
    if (!pair_prune(p, ib_count_find(p->acked, count))) return;
    p->away = true;
    p->answer_due = !c->dials;
    p->again_ns = c->dials ? again_at(p, mend_now(c)) : 0; /* of the other end: to answer */
    ib_pair_unsay(p);
}

/* The end that dialed may be ready by now, and what it writes acknowledged by the card here. So at the end
 * that listens one that meets goes down when its completions have been taken, of which the last say that
 * it was stopped: what was acknowledged counts. */
static bool meeting_stop(ib_pair_t *p)
{
    const bool meets = !p->conn->dials && p->state == IB_PAIR_MEETING && p->qp != NULL;
    return meets && ib_pair_stop(p);
}

/* It is down while others are up: first both ends part with it, then it is dialed now and then. */
static void mend_one(ib_pair_t *p, uint64_t now)
{
    lh_conn_t *c = p->conn;
    const bool others = ib_pair_has_others(p);
    if (others && p->answer_due) {
        p->answer_due = !ib_pairs_part(c, p->index);
        if (p->answer_due) {
            p->again_ns = now + PART_MS * 1000000ull;
            return;
        }
    }
    if (now < p->again_ns || (others && p->asked && !p->away)) return;
    if (others && (!p->away || ib_pair_waits(p)) && meeting_stop(p)) return;
    if (others && !p->away) {
        ib_pair_missed(p);
        p->asked = ib_pairs_part(c, p->index);
        if (!p->asked) p->again_ns = now + PART_MS * 1000000ull;
    } else if (ib_pair_waits(p)) { /* so it can't be met, and what is left of it is free to go */
        if (p->state == IB_PAIR_MEETING) ib_pair_missed(p);
    } else if (c->dials && !p->gone) {
        ib_pair_missed(p);
        next_turn(p, now);
    }
}

/* When the last of them is given up, and with it the peer; never while one is up. Those in doubt are
 * up now and then, and count only where there are no others. */
static uint64_t last_give_up(const lh_conn_t *c)
{
    const bool all = all_doubted(c);
    uint64_t last = 0;
    for (uint32_t i = 0; i < c->pair_count; i++) {
        const ib_pair_t *p = &c->pairs[i];
        if (ib_pair_doubted(p) && !all) continue;
        if (p->state == IB_PAIR_UP) return UINT64_MAX;
        if (p->give_up_ns > last) last = p->give_up_ns;
    }
    return last;
}

void ib_pairs_mend(lh_conn_t *c, uint64_t now)
{
    for (uint32_t i = 0; i < c->pair_count && c->state == IB_OPEN; i++) {
        ib_pair_t *p = &c->pairs[i];
        if (c->dials && p->state == IB_PAIR_MEETING && p->give_up_ns == 0 && now >= p->again_ns &&
            ib_pair_has_others(p))
            ib_pair_absent(p, "it was not answered");
        if (p->state == IB_PAIR_UP || p->give_up_ns == 0) continue;
        if (now >= last_give_up(c))
            ib_conn_break(c, LH_PEER_LOST, "rank %u does not answer on queue pair %u: %s", c->peer,
                          i, p->failure);
        else
            mend_one(p, now);
    }
}

uint64_t ib_pair_due(const ib_pair_t *p)
{
    const lh_conn_t *c = p->conn;
    if (p->state == IB_PAIR_UP) {
        if (p->failing && p->stopped_ns != 0) return p->stopped_ns + IB_STOP_MS * 1000000ull;
        const uint64_t pause = c->transport->config->keepalive_ns;
        const bool pings = pause != 0 && c->up_said && ib_pair_wrs(p) == 0;
        return pings ? p->heard_ns + pause : UINT64_MAX;
    }
    if (p->give_up_ns == 0) {
        const bool ends = c->dials && p->state == IB_PAIR_MEETING && ib_pair_has_others(p);
        return ends ? p->again_ns : UINT64_MAX;
    }
    const bool waits = ib_pair_waits(p);
    const bool tries = waits ? p->state == IB_PAIR_MEETING : c->dials && !p->gone;
    if (ib_pair_has_others(p)) {
        const bool acts = p->answer_due || (p->away ? tries : !p->asked);
        return acts ? p->again_ns : UINT64_MAX;
    }
    const uint64_t last = last_give_up(c);
    return tries && p->again_ns < last ? p->again_ns : last;
}
