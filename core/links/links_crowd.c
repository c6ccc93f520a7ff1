/* links_crowd.c - many senders at once: all ranks of two sites, then all pairs of sites.
 *
 * Rank i of a site sends to rank i of another and takes what comes from there, for as long as both
 * sites have so many. All of them begin together, which a gather of the control plane sees to, and send
 * as fast as one rank was found to (links_probe.c) until the time is over; what came in its second half
 * counts, at the end that it came to. Its sum over the ranks is what all got together. A message that is
 * shorter than all others says that nothing more comes, so that connections end with nothing on its way.
 *
 * Turns: each pair of sites that have several ranks, alone; all pairs; and where these slow each other,
 * the pairs of each site without the others, which tells a chain from a border that all share. Between
 * two turns connections are made anew. */
#include <links/links_crowd.h>

#include <stdio.h>
#include <string.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <links/link_crowd.h>
#include <links/links_connect.h>

enum {
    AHEAD_MOST = 128, /* messages that a direction has on its way; links_probe asks for more */
    SHORTEST_DATA = 16 << 10, /* bytes of a message of data */
    LONGEST_DATA = 4 << 20,
    LAST_BYTES = 64, /* of the one that ends a direction */
};
static const uint32_t crowd_tag = 0xffff0003;
/* A message's length in time at the pace, so that there are enough to count; or, on a long way, so much
 * that AHEAD_MOST of them are two windows. */
static const double message_s = 0.002;

/* One peer of this rank in a turn. */
typedef struct partner {
    link_t *link; /* NULL: not connected */
    uint32_t peer, pair;
    int way;             /* of what comes, as in probe_figures_t */
    uint64_t bytes;      /* of a message that this end sends     */
    double pace;         /* bytes a second                       */
    uint32_t most;       /* messages sent that have not left     */
    uint32_t out, owed;  /* sends and receives that are posted   */
    uint64_t sent, came; /* messages; bytes in the time that counts */
    bool said, ended;    /* this end has sent its last; the other's has come */
} partner_t;

typedef struct crowd {
    links_t *l;
    char *memory; /* what is sent, and where all that comes lands: nobody looks at it */
    lh_region_t *region;
    partner_t partners[CROWD_SITES];
    uint32_t count;
    uint64_t *mine, *all; /* [2 x pairs] bytes a second that came; [ranks] of these */
    uint64_t begun_ns, counts_ns, ends_ns, moved_ns;
    bool paces; /* the transport does it itself; not where each has a part of a bound */
} crowd_t;

uint32_t links_crowd_ranks(const links_t *l, uint32_t site, uint32_t other)
{
    const world_t *w = l->how.world;
    const uint32_t here = world_site_size(w, site), there = world_site_size(w, other);
    return here < there ? here : there;
}

/* ---- who takes part ---- */

/* This rank's number among those of its site. */
static uint32_t site_place(const world_t *w)
{
    const uint32_t here = w->ranks[w->row.rank].site;
    uint32_t place = 0;
    while (world_site_rank(w, here, place) != w->row.rank)
        place++;
    return place;
}

/* What one rank was found to send there, cut into messages; at most its part of a bound that is asked for. */
static partner_t partner_new(const links_t *l, uint32_t here, uint32_t there, uint32_t place)
{
    const uint32_t pair = links_pair(here, there);
    const probe_figures_t *f = &l->pairs[pair].figures;
    const double rate = (double)f->rate[here > there], trip = 1e-9 * (double)f->round_trip_ns;
    const double window = 2 * trip / AHEAD_MOST;
    const double part = (double)f->asked / links_crowd_ranks(l, here, there);
    const double bytes = rate * (window > message_s ? window : message_s);
    partner_t p = {.peer = world_site_rank(l->how.world, there, place),
                   .pair = pair,
                   .way = there > here,
                   .pace = LINKS_FILL * (part > 0 && part < rate ? part : rate)};
    p.bytes = bytes < SHORTEST_DATA  ? SHORTEST_DATA
              : bytes > LONGEST_DATA ? LONGEST_DATA
                                     : (uint64_t)bytes;
    const double most = 2 * trip * rate / (double)p.bytes + 4;
    p.most = most < AHEAD_MOST ? (uint32_t)most : AHEAD_MOST;
    return p;
}

/* The pairs of this rank's site that are among those of `site` and of `other`: with both, one pair. */
static void partners_find(crowd_t *c, uint32_t site, uint32_t other)
{
    const links_t *l = c->l;
    const world_t *w = l->how.world;
    const uint32_t here = w->ranks[w->row.rank].site, place = site_place(w);
    c->count = 0;
    for (uint32_t there = 0; there < w->row.sites; there++) {
        if (there == here || !link_crowd_has(here, there, site) ||
            !link_crowd_has(here, there, other) || place >= links_crowd_ranks(l, here, there))
            continue;
        lh_assert(c->count < CROWD_SITES);
        c->partners[c->count++] = partner_new(l, here, there, place);
    }
}

/* The longest of those that are busy, so that all ranks take the same time. */
static uint64_t turn_trip_ns(const links_t *l, uint32_t site, uint32_t other)
{
    uint64_t longest = 0;
    for (uint32_t b = 1; b < l->how.world->row.sites; b++)
        for (uint32_t a = 0; a < b; a++) {
            const uint64_t trip = l->pairs[links_pair(a, b)].figures.round_trip_ns;
            if (link_crowd_has(a, b, site) && link_crowd_has(a, b, other) && trip > longest)
                longest = trip;
        }
    return longest;
}

/* Over the service for bulk data, which training connects to anew later. */
static lh_status_t partners_connect(crowd_t *c)
{
    uint32_t peers[CROWD_SITES];
    if (c->count == 0) return LH_OK;
    for (uint32_t i = 0; i < c->count; i++)
        peers[i] = c->partners[i].peer;
    const lh_status_t status = links_connect(c->l, peers, c->count, LH_SERVICE_BULK);
    for (uint32_t i = 0; status == LH_OK && i < c->count; i++)
        c->partners[i].link = links_find(c->l, peers[i], LH_SERVICE_BULK);
    return status;
}

/* Nobody takes a link's end for a failure from here on: all ranks have met, or have failed. */
static void partners_end(crowd_t *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->partners[i].link != NULL) c->partners[i].link->leaving = true;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->partners[i].link != NULL) link_drop(c->partners[i].link);
    c->count = 0;
}

/* ---- a turn ---- */

/* Keeps as many receives posted as the other end may send ahead. */
static lh_status_t partner_expect(crowd_t *c, partner_t *p)
{
    const uint64_t cookie = (uint64_t)(p - c->partners);
    while (!p->ended && p->owed < AHEAD_MOST) {
        const lh_status_t status = link_post(p->link, c->region, false, c->memory + LONGEST_DATA,
                                             LONGEST_DATA, crowd_tag, cookie);
        if (status == LH_AGAIN) return LH_OK;
        if (status != LH_OK) return status;
        p->owed++;
    }
    return LH_OK;
}

static bool partner_may_send(const crowd_t *c, const partner_t *p, uint64_t now)
{
    if (p->said || p->out >= p->most) return false;
    return c->paces || now >= c->ends_ns ||
           (double)(p->sent * p->bytes) <= p->pace * 1e-9 * (double)(now - c->begun_ns);
}

/* The last message leaves when the time is over. */
static lh_status_t partner_send(crowd_t *c, partner_t *p, uint64_t now)
{
    const uint64_t cookie = (uint64_t)(p - c->partners);
    while (partner_may_send(c, p, now)) {
        const bool last = now >= c->ends_ns;
        const lh_status_t status = link_post(p->link, c->region, true, c->memory,
                                             last ? LAST_BYTES : p->bytes, crowd_tag, cookie);
        if (status == LH_AGAIN) return LH_OK;
        if (status != LH_OK) return status;
        p->out++;
        p->sent++;
        p->said = last;
    }
    return LH_OK;
}

static void partner_take(const crowd_t *c, partner_t *p, const links_event_t *e, uint64_t now)
{
    if (!e->received) {
        p->out--;
        return;
    }
    p->owed--;
    if (e->bytes < SHORTEST_DATA) p->ended = true;
    if (now >= c->counts_ns && now < c->ends_ns) p->came += e->bytes;
}

/* Takes what has ended; sleeps where nothing has. */
static lh_status_t crowd_poll(crowd_t *c)
{
    enum { AT_ONCE = 64 };
    const uint64_t spin_ns = 20000, longest_ns = 1000000;
    const uint64_t timeout_ns = c->l->how.job->comm.timeout_ns;
    links_event_t events[AT_ONCE];
    uint32_t count;
    const lh_status_t status = links_poll(c->l, events, AT_ONCE, &count);
    if (status != LH_OK) return status;
    const uint64_t now = sys()->now_ns();
    for (uint32_t i = 0; i < count; i++) {
        lh_assert(events[i].cookie < c->count);
        partner_take(c, &c->partners[events[i].cookie], &events[i], now);
    }
    if (count > 0) {
        c->moved_ns = now;
        return LH_OK;
    }
    if (now > c->moved_ns + timeout_ns)
        return fail(LH_TIMED_OUT,
                    "nothing moved on this rank's links to other sites, which are measured all at "
                    "once, for [comm] timeout = %.0f s; expected messages",
                    (double)timeout_ns * 1e-9);
    links_sleep(c->l, -1, spin_ns, longest_ns);
    return LH_OK;
}

static bool partner_is_over(const partner_t *p)
{
    return p->said && p->ended && p->out == 0;
}

static lh_status_t crowd_run(crowd_t *c, uint64_t ns)
{
    lh_status_t status = LH_OK;
    c->begun_ns = c->moved_ns = sys()->now_ns();
    c->counts_ns = c->begun_ns + ns / 2;
    c->ends_ns = c->begun_ns + ns;
    for (bool over = false; status == LH_OK && !over;) {
        const uint64_t now = sys()->now_ns();
        over = true;
        for (uint32_t i = 0; status == LH_OK && i < c->count; i++) {
            partner_t *p = &c->partners[i];
            status = partner_expect(c, p);
            if (status == LH_OK) status = partner_send(c, p, now);
            over = over && partner_is_over(p);
        }
        if (status == LH_OK && !over) status = crowd_poll(c);
    }
    return status;
}

/* c->mine becomes the sum over all ranks, the same on all. */
static lh_status_t crowd_sum(crowd_t *c)
{
    const uint32_t cells = 2 * c->l->pair_count, size = c->l->how.world->row.size;
    const lh_status_t status = links_gather(c->l, c->mine, cells * sizeof(*c->mine), c->all);
    for (uint32_t i = 0; status == LH_OK && i < cells; i++) {
        c->mine[i] = 0;
        for (uint32_t r = 0; r < size; r++)
            c->mine[i] += c->all[(size_t)r * cells + i];
    }
    return status;
}

/* Receives are posted before the ranks meet, so the first messages find them. */
static lh_status_t crowd_measure(crowd_t *c, uint64_t ns)
{
    lh_status_t status = partners_connect(c);
    for (uint32_t i = 0; status == LH_OK && i < c->count; i++)
        status = partner_expect(c, &c->partners[i]);
    memset(c->mine, 0, 2 * c->l->pair_count * sizeof(*c->mine));
    if (status == LH_OK) status = crowd_sum(c); /* of zeroes: to meet */
    if (status == LH_OK) status = crowd_run(c, ns);
    for (uint32_t i = 0; i < c->count; i++) {
        const partner_t *p = &c->partners[i];
        c->mine[2 * p->pair + (uint32_t)p->way] = (uint64_t)((double)p->came * 2e9 / (double)ns);
    }
    return status == LH_OK ? crowd_sum(c) : status;
}

/* One turn: afterwards c->mine has, the same on all ranks, the bytes a second of each pair and way while
 * the pairs of `site` that are also pairs of `other` were busy. */
static lh_status_t crowd_turn(crowd_t *c, uint32_t site, uint32_t other)
{
    links_t *l = c->l;
    lh_assert(!l->probing);
    partners_find(c, site, other);
    l->probing = true;
    const lh_status_t status = crowd_measure(c, link_crowd_ns(turn_trip_ns(l, site, other)));
    partners_end(c);
    l->probing = false;
    return status;
}

/* ---- all turns ---- */

/* Not measured is 0, and a way on which nothing came is as slow as can be. */
static void figure_set(const crowd_t *c, uint32_t pair, uint64_t out[2])
{
    for (uint32_t way = 0; way < 2; way++)
        out[way] = c->mine[2 * pair + way] > 0 ? c->mine[2 * pair + way] : 1;
}

static void crowd_say(const links_t *l, const char *text)
{
    if (l->how.world->row.rank == 0) log_line(LH_LOG_INFO, "%s", text);
}

/* The ranks of one pair. */
static lh_status_t crowd_together(crowd_t *c, uint32_t a, uint32_t b)
{
    char text[256];
    probe_pair_t *p = &c->l->pairs[links_pair(a, b)];
    const lh_status_t status = crowd_turn(c, a, b);
    if (status != LH_OK) return status;
    figure_set(c, links_pair(a, b), p->figures.together);
    p->figures.together_ranks = links_crowd_ranks(c->l, a, b);
    link_crowd_together_text(p, links_crowd_ranks(c->l, a, b), text, sizeof(text));
    crowd_say(c->l, text);
    return LH_OK;
}

/* The pairs of one site, or all. */
static lh_status_t crowd_beside(crowd_t *c, uint32_t site)
{
    const links_t *l = c->l;
    const lh_status_t status = crowd_turn(c, site, CROWD_ALL);
    if (status != LH_OK) return status;
    for (uint32_t b = 1; b < l->how.world->row.sites; b++)
        for (uint32_t a = 0; a < b; a++) {
            if (!link_crowd_has(a, b, site)) continue;
            const uint32_t pair = links_pair(a, b);
            figure_set(c, pair, l->pairs[pair].figures.beside[link_crowd_beside(a, b, site)]);
        }
    return LH_OK;
}

/* What was measured of other sites at another time goes: the record may be older than some of them. */
static lh_status_t crowd_of_sites(crowd_t *c)
{
    char text[256];
    uint32_t middle;
    const links_t *l = c->l;
    const uint32_t sites = l->how.world->row.sites;
    uint64_t last = 0;
    for (uint32_t i = 0; i < l->pair_count; i++)
        if (l->pairs[i].figures.measured_s > last) last = l->pairs[i].figures.measured_s;
    for (uint32_t i = 0; i < l->pair_count; i++) {
        memset(l->pairs[i].figures.beside, 0, sizeof(l->pairs[i].figures.beside));
        l->pairs[i].figures.beside_pairs = l->pair_count;
        l->pairs[i].figures.beside_at_s = last;
    }
    lh_status_t status = crowd_beside(c, CROWD_ALL);
    const bool apart = link_crowd_layout(l->pairs, sites, &middle) == CROWD_APART;
    for (uint32_t s = 0; status == LH_OK && !apart && s < sites; s++)
        status = crowd_beside(c, s);
    if (status == LH_OK && link_crowd_text(l->pairs, sites, text, sizeof(text))) crowd_say(l, text);
    return status;
}

/* Memory is registered with the one transport that is measured. */
static lh_status_t crowd_open(crowd_t *c)
{
    const links_t *l = c->l;
    const carrier_t *k = l->carriers[LH_LINK_WAN];
    const uint64_t bytes = 2 * (uint64_t)LONGEST_DATA;
    const size_t cells = 2 * (size_t)l->pair_count;
    c->paces = k->api->retune != NULL && l->how.job->transports[LH_LINK_WAN].rate == 0;
    c->memory = mem_new(bytes);
    c->mine = mem_array(cells, sizeof(*c->mine));
    c->all = mem_array(cells * l->how.world->row.size, sizeof(*c->all));
    if (c->memory == NULL || c->mine == NULL || c->all == NULL) return LH_NO_MEMORY;
    const lh_arena_t arena = links_memory(c->memory, bytes);
    return k->api->register_memory(k->transport, 0, &arena, &c->region);
}

static void crowd_close(crowd_t *c)
{
    const carrier_t *k = c->l->carriers[LH_LINK_WAN];
    if (c->region != NULL) k->api->release_memory(k->transport, c->region);
    mem_free(c->memory);
    mem_free(c->mine);
    mem_free(c->all);
}

/* Whether the pair's ranks have a turn of their own: so many were never measured at once. */
static bool has_together(const links_t *l, uint32_t a, uint32_t b)
{
    const probe_figures_t *f = &l->pairs[links_pair(a, b)].figures;
    const uint32_t ranks = links_crowd_ranks(l, a, b);
    return f->measured_s != 0 && ranks > 1 && f->together_ranks < ranks;
}

lh_status_t links_crowd(links_t *l, const bool *fresh)
{
    crowd_t c = {.l = l};
    const uint32_t sites = l->how.world->row.sites;
    bool any = false, all = sites > 2, together = false;
    for (uint32_t b = 1; b < sites; b++)
        for (uint32_t a = 0; a < b; a++) {
            any = any || fresh[links_pair(a, b)];
            all = all && l->pairs[links_pair(a, b)].figures.measured_s != 0;
            together = together || has_together(l, a, b);
        }
    all = all && (any || together); /* beside others, too, so many have not been measured */
    if (sites > CROWD_SITES || (!all && !together)) return LH_OK;
    lh_status_t status = crowd_open(&c);
    for (uint32_t b = 1; status == LH_OK && b < sites; b++)
        for (uint32_t a = 0; status == LH_OK && a < b; a++)
            if (has_together(l, a, b)) status = crowd_together(&c, a, b);
    if (status == LH_OK && all) status = crowd_of_sites(&c);
    crowd_close(&c);
    return status;
}
