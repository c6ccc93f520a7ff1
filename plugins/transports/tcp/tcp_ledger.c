/* tcp_ledger.c - who sends how much of a link between sites.
 *
 * Each connection is told the whole part that this rank has of its site's link, since mostly one of
 * them sends at a time: sums in the backward pass, new values in the forward pass. Where several do,
 * services that overlap or several peers in a small site's other half, they would fill queues on the
 * way and delay what is urgent. So they share: what is most urgent (LH_SERVICE_*, in their order)
 * has all but a sixteenth for each of the others, which are kept from standing still and have half
 * in all at most, and who is equally urgent the same. Who sends is seen by bytes, not by what is
 * posted: a message that waits for its receive needs no part, and a norm of some KiB takes none from
 * a bucket.
 *
 * What part of its site's link this rank has, the host tells, and tells anew (retune) when the ranks of a
 * site send other amounts than before. */
#include "tcp_ledger.h"

/* PART: a less urgent connection has one of so many, and all of them half at most; a connection that
 * sends less than one does not count. */
enum { LOOK_NS = 8000000, PART = 16 };

static bool has_pace(const lh_conn_t *c)
{
    return c->link.scope == LH_LINK_WAN && c->tuning.pace_bytes_per_second > 0 &&
           c->tuning.pace_bytes_per_second != UINT64_MAX;
}

static bool is_paced(const lh_conn_t *c)
{
    return c->state == CONN_UP && has_pace(c);
}

/* Of those that send to c's site, c among them. */
static uint32_t most_urgent(const lh_conn_t *first, const lh_conn_t *c)
{
    uint32_t urgent = c->service;
    for (const lh_conn_t *o = first; o != NULL; o = o->next)
        if (o->is_sending && o->site == c->site && o->service < urgent) urgent = o->service;
    return urgent;
}

double ledger_share(const lh_conn_t *first, const lh_conn_t *c)
{
    const uint32_t urgent = most_urgent(first, c);
    uint32_t equal = 0, less = 0;
    if (!c->is_sending) return 1;
    for (const lh_conn_t *o = first; o != NULL; o = o->next)
        if (o->is_sending && o->site == c->site) ++*(o->service == urgent ? &equal : &less);
    const double left = less < PART / 2 ? (double)less / PART : 0.5;
    return c->service == urgent ? (1 - left) / equal : left / less;
}

/* Not by its share: sixteen that are equally urgent have a sixteenth each. */
bool ledger_yields(const lh_conn_t *first, const lh_conn_t *c)
{
    return c->is_sending && most_urgent(first, c) < c->service;
}

/* Since the last look, `ns` ago: whether the kernel is full of it, or has taken more than a part. */
static bool conn_sends(lh_conn_t *c, uint64_t ns)
{
    const uint64_t all = atomic_load_explicit(&c->bytes_sent, memory_order_relaxed);
    const double sent = (double)(all - c->ledger_sent);
    c->ledger_sent = all;
    for (uint32_t i = 0; i < c->stream_count; i++)
        if (c->streams[i]->blocked && c->streams[i]->vector_done < c->streams[i]->vector_count)
            return true;
    return sent * PART > (double)c->tuning.pace_bytes_per_second * (double)ns * 1e-9;
}

static void share_take(lh_conn_t *c, double share)
{
    const double pace = (double)c->tuning.pace_bytes_per_second * share / c->stream_count;
    const uint64_t stream = pace < 1 ? 1 : (uint64_t)pace;
    c->share = share;
    c->rate_busy = false; /* a rate is that of one pace */
    for (uint32_t i = 0; i < c->stream_count; i++)
        (void)setsockopt(c->streams[i]->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &stream,
                         sizeof(stream));
}

/* The host has taken its pace away, and its sockets' with that (retune): it has no part of one any more, nor
 * does it let others go first. One that ends keeps its part. */
static void share_end(lh_conn_t *c)
{
    c->share = 1;
    c->yields = false;
    c->rate_busy = false;
}

void ledger_settle(lh_transport_t *t)
{
    const uint64_t ns = t->now - t->ledger_ns;
    if (ns < LOOK_NS) return;
    t->ledger_ns = t->now;
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next)
        c->is_sending = is_paced(c) && conn_sends(c, ns);
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next) {
        const double share = ledger_share(t->conns, c);
        if (is_paced(c)) c->yields = ledger_yields(t->conns, c);
        if (is_paced(c) && share != c->share) share_take(c, share);
        if (!has_pace(c) && c->share < 1) share_end(c);
    }
}
