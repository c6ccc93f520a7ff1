/* link_crowd.c - rates of pairs of sites that send at once, and what they say of the way.
 *
 * A figure under load is taken for less than the one alone only if it is less by a quarter: machines
 * are busy, and no other decision hangs on a tenth. Who is slowed down, and by how much, is a matter
 * of luck among senders (bbr gives a longer way more, cubic a shorter one), while what they share is
 * not: so a pair that is slower is taken to get an equal part of what came of all pairs of its sender,
 * or of its receiver, if that is more than it had.
 *
 * By the same rules pairs share while a job trains. Which of them are on one way is seen while the pairs
 * of one site alone are busy: then nothing else can slow what leaves it, or what comes to it. Ways in
 * the middle of a chain of four sites and more are not told apart by that, and two shared ways on one
 * side of a site are taken for one. */
#include <links/link_crowd.h>

#include <math.h>
#include <stdio.h>

#include <links/links.h>

static const double slowed_share = 0.75; /* of the rate alone: what is less shares something  */
static const double more_share = 1.25;   /* of one rank's rate: several have more than one    */
static const double no_demand = 1e-6;    /* of what all on a trunk send: less is nothing      */
static const uint64_t least_ns = 400000000;
/* CROWD_TRIPS: of the longest round trip; a new connection takes half of them to get up to speed.
 * HALVINGS: of a range in which a rate is looked for; what is left is next to nothing. */
enum { CROWD_TRIPS = 16, HALVINGS = 64 };

bool link_crowd_has(uint32_t site, uint32_t other, uint32_t busy)
{
    return busy == CROWD_ALL || (busy != CROWD_NONE && (busy == site || busy == other));
}

/* A pair's first site is the one with the lower number. */
uint32_t link_crowd_beside(uint32_t site, uint32_t other, uint32_t busy)
{
    lh_assert(link_crowd_has(site, other, busy));
    if (busy == CROWD_ALL) return BESIDE_ALL;
    return busy == (site < other ? site : other) ? BESIDE_FIRST : BESIDE_SECOND;
}

uint64_t link_crowd_ns(uint64_t round_trip_ns)
{
    return CROWD_TRIPS * round_trip_ns > least_ns ? CROWD_TRIPS * round_trip_ns : least_ns;
}

/* In double, as figures of a record that was edited by hand may be as large as a record takes. */
static void scale_figure(uint64_t *figure, double most)
{
    if ((double)*figure > most) *figure = (uint64_t)most;
}

/* A border that many share is as wide for few, and what each of many had over a card of its own a few have
 * as often as they are: so it is the less of the two. */
void link_crowd_scale(probe_figures_t *f, uint32_t ranks)
{
    lh_assert(ranks > 0);
    if (f->together_ranks != 0 && f->together_ranks <= ranks) return;
    for (uint32_t way = 0; way < 2; way++) {
        const double most = (double)ranks * (double)f->rate[way];
        scale_figure(&f->together[way], most);
        for (uint32_t i = 0; i < BESIDES; i++)
            scale_figure(&f->beside[i][way], most);
    }
    if (f->together_ranks != 0) f->together_ranks = ranks;
}

uint64_t link_crowd_border(const probe_figures_t *f, int way)
{
    const bool more = (double)f->together[way] > more_share * (double)f->rate[way];
    return more ? f->together[way] : f->rate[way];
}

static double crowd_came(const probe_pair_t *pairs, uint32_t from, uint32_t to, uint32_t busy)
{
    const probe_figures_t *f = &pairs[links_pair(from, to)].figures;
    return (double)f->beside[link_crowd_beside(from, to, busy)][from > to];
}

static double crowd_alone(const probe_pair_t *pairs, uint32_t from, uint32_t to)
{
    return (double)link_crowd_border(&pairs[links_pair(from, to)].figures, from > to);
}

/* 0: not measured, which is not slow. */
static bool is_slowed(const probe_pair_t *pairs, uint32_t from, uint32_t to, uint32_t busy)
{
    const double came = crowd_came(pairs, from, to, busy);
    return came > 0 && came < slowed_share * crowd_alone(pairs, from, to);
}

/* An equal part of what came over the busy pairs of one site in one direction. What another pair had
 * beyond this one's rate alone, it had over a way of its own. */
static double equal_part(const probe_pair_t *pairs, uint32_t sites, uint32_t from, uint32_t to,
                         uint32_t busy, bool leaves)
{
    const double alone = crowd_alone(pairs, from, to);
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t s = 0; s < sites; s++) {
        const uint32_t a = leaves ? from : s, b = leaves ? s : to;
        if (a == b || !link_crowd_has(a, b, busy)) continue;
        sum += fmin(crowd_came(pairs, a, b, busy), alone);
        count++;
    }
    return count > 0 ? sum / count : 0;
}

/* Whether what a pair had beside others was measured of the pairs that there are, all at one time. A
 * record has rows of many jobs: of sites a, b, c and later of a, b, d, say, and of a and b what they had
 * beside d. */
static bool is_beside_these(const probe_pair_t *pairs, uint32_t sites, uint32_t from, uint32_t to)
{
    const probe_figures_t *f = &pairs[links_pair(from, to)].figures;
    return f->beside_pairs == (uint64_t)sites * (sites - 1) / 2 &&
           f->beside_at_s == pairs[0].figures.beside_at_s;
}

double link_crowd_rate(const probe_pair_t *pairs, uint32_t sites, uint32_t from, uint32_t to,
                       uint32_t busy)
{
    const double alone = crowd_alone(pairs, from, to);
    if (!link_crowd_has(from, to, busy) || !is_beside_these(pairs, sites, from, to) ||
        !is_slowed(pairs, from, to, busy))
        return alone;
    const double part = fmax(equal_part(pairs, sites, from, to, busy, true),
                             equal_part(pairs, sites, from, to, busy, false));
    return fmax(part, crowd_came(pairs, from, to, busy));
}

/* ---- trunks: ways that several pairs share ---- */

/* Pairs that share a way: what leaves a site, or what comes to it. */
typedef struct trunk {
    double rate;                                    /* bytes a second of all of them      */
    double came, most;                              /* their sum; the most of one alone */
    uint32_t count;                                 /* of pairs on it */
    uint32_t from[CROWD_SITES], to[CROWD_SITES];    /* [count] */
    double alone[CROWD_SITES], demand[CROWD_SITES]; /* [count] */
} trunk_t;

static bool trunk_has(const trunk_t *t, uint32_t from, uint32_t to, uint32_t *place)
{
    for (*place = 0; *place < t->count; ++*place)
        if (t->from[*place] == from && t->to[*place] == to) return true;
    return false;
}

static void trunk_add(trunk_t *t, const probe_pair_t *pairs, uint32_t from, uint32_t to,
                      uint32_t site)
{
    lh_assert(t->count < CROWD_SITES);
    t->from[t->count] = from;
    t->to[t->count] = to;
    t->alone[t->count] = crowd_alone(pairs, from, to);
    t->came += crowd_came(pairs, from, to, site);
    t->most = fmax(t->most, t->alone[t->count]);
    t->count++;
}

/* Of the pairs that are not on it yet the one that had the least of its rate alone; false: none. */
static bool trunk_next(const trunk_t *t, const probe_pair_t *pairs, uint32_t sites, uint32_t site,
                       bool leaves, uint32_t *from, uint32_t *to)
{
    double least = INFINITY;
    for (uint32_t s = 0; s < sites; s++) {
        const uint32_t a = leaves ? site : s, b = leaves ? s : site;
        uint32_t place;
        if (s == site || trunk_has(t, a, b, &place)) continue;
        const double left = crowd_came(pairs, a, b, site) / crowd_alone(pairs, a, b);
        if (left >= least) continue;
        least = left;
        *from = a;
        *to = b;
    }
    return least < INFINITY;
}

/* Those of a site's pairs that share their way in one direction; false: none do, or it was not measured
 * of so many sites. Pairs that are slowed do; and where they had less together than one of them has
 * alone, somebody else had the rest: who is slowed is luck. What one of them has alone the way carries. */
static bool trunk_find(const probe_pair_t *pairs, uint32_t sites, uint32_t site, bool leaves,
                       trunk_t *t)
{
    uint32_t from = site, to = site;
    *t = (trunk_t){0};
    if (sites > CROWD_SITES) return false;
    for (uint32_t s = 0; s < sites; s++) {
        const uint32_t a = leaves ? site : s, b = leaves ? s : site;
        if (a == b) continue;
        if (!is_beside_these(pairs, sites, a, b) || crowd_came(pairs, a, b, site) <= 0 ||
            crowd_alone(pairs, a, b) <= 0)
            return false;
        if (is_slowed(pairs, a, b, site)) trunk_add(t, pairs, a, b, site);
    }
    while (t->count > 0 && t->came < slowed_share * t->most &&
           trunk_next(t, pairs, sites, site, leaves, &from, &to))
        trunk_add(t, pairs, from, to, site);
    t->rate = fmax(t->came, t->most);
    return t->count > 1;
}

/* What each has to send, of 1 in all. */
static void trunk_demand(trunk_t *t, uint32_t sites, const double *demand)
{
    double all = 0;
    for (uint32_t i = 0; demand != NULL && i < t->count; i++)
        all += demand[(size_t)t->from[i] * sites + t->to[i]];
    for (uint32_t i = 0; i < t->count; i++) {
        const double own = all > 0 ? demand[(size_t)t->from[i] * sites + t->to[i]] / all
                                   : 1.0 / t->count;
        t->demand[i] = own > no_demand ? own : 0;
    }
}

/* Bytes a second of one pair, where there are `each` for all that is to be sent: no more than it has
 * alone, and as long as that is so a sixteenth of an equal part at least. */
static double trunk_part(const trunk_t *t, uint32_t i, double each)
{
    const double least = t->rate / (LINKS_SILENT * (double)t->count);
    return fmin(fmax(t->demand[i] * each, least), t->alone[i]);
}

static double trunk_sum(const trunk_t *t, double each)
{
    double sum = 0;
    for (uint32_t i = 0; i < t->count; i++)
        sum += trunk_part(t, i, each);
    return sum;
}

/* The most for which all of them have no more than the way carries. With nothing they have a sixteenth of
 * it, so there is such a figure. */
static double trunk_each(const trunk_t *t)
{
    double low = 0, high = 0;
    for (uint32_t i = 0; i < t->count; i++)
        if (t->demand[i] > 0) high = fmax(high, t->alone[i] / t->demand[i]);
    if (trunk_sum(t, high) <= t->rate) return high;
    for (int turn = 0; turn < HALVINGS; turn++) {
        const double middle = (low + high) / 2;
        if (trunk_sum(t, middle) <= t->rate)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A pair may be on two: what leaves its one site and what comes to its other. */
double link_crowd_part(const probe_pair_t *pairs, uint32_t sites, const double *demand,
                       uint32_t from, uint32_t to)
{
    double part = 1;
    lh_assert(from != to && from < sites && to < sites);
    for (int end = 0; end < 2; end++) {
        trunk_t t;
        uint32_t place;
        if (!trunk_find(pairs, sites, end == 0 ? from : to, end == 0, &t) ||
            !trunk_has(&t, from, to, &place))
            continue;
        trunk_demand(&t, sites, demand);
        part = fmin(part, trunk_part(&t, place, trunk_each(&t)) / t.alone[place]);
    }
    return part;
}

/* ---- what is said of it ---- */

/* Whether a site's pairs, which were busy without the others, had all that they have alone. */
static bool is_middle(const probe_pair_t *pairs, uint32_t sites, uint32_t site)
{
    for (uint32_t s = 0; s < sites; s++)
        for (int way = 0; s != site && way < 2; way++) {
            const uint32_t from = way == 0 ? site : s, to = way == 0 ? s : site;
            if (crowd_came(pairs, from, to, site) <= 0 || is_slowed(pairs, from, to, site))
                return false;
        }
    return true;
}

uint32_t link_crowd_layout(const probe_pair_t *pairs, uint32_t sites, uint32_t *middle)
{
    bool slowed = false;
    for (uint32_t from = 0; from < sites; from++)
        for (uint32_t to = 0; to < sites; to++) {
            if (from == to) continue;
            if (!is_beside_these(pairs, sites, from, to) ||
                crowd_came(pairs, from, to, CROWD_ALL) <= 0)
                return CROWD_UNKNOWN;
            slowed = slowed || is_slowed(pairs, from, to, CROWD_ALL);
        }
    if (!slowed) return sites > 2 ? CROWD_APART : CROWD_UNKNOWN;
    for (*middle = 0; *middle < sites; ++*middle)
        if (is_middle(pairs, sites, *middle)) return CROWD_CHAIN;
    return CROWD_SHARED;
}

/* The least that any pair had of its rate while all were busy. */
static double least_left(const probe_pair_t *pairs, uint32_t sites)
{
    double least = 1;
    for (uint32_t from = 0; from < sites; from++)
        for (uint32_t to = 0; to < sites; to++)
            if (from != to)
                least = fmin(least,
                             crowd_came(pairs, from, to, CROWD_ALL) / crowd_alone(pairs, from, to));
    return least;
}

/* The name of a site is that of the first pair which has it. */
static const char *site_of_pairs(const probe_pair_t *pairs, uint32_t site)
{
    return site == 0 ? pairs[0].site[0] : pairs[links_pair(0, site)].site[1];
}

bool link_crowd_text(const probe_pair_t *pairs, uint32_t sites, char *out, size_t room)
{
    uint32_t middle = 0;
    const uint32_t layout = link_crowd_layout(pairs, sites, &middle);
    if (layout == CROWD_UNKNOWN) return false;
    const int slowest = (int)(100 * least_left(pairs, sites) + 0.5);
    if (layout == CROWD_APART)
        (void)snprintf(out, room, "all pairs of sites at once: none takes from another");
    else if (layout == CROWD_CHAIN)
        (void)snprintf(out, room,
                       "all pairs of sites at once: down to %d %% of what one has alone, but those "
                       "of %s without the other: a chain with %s in the middle",
                       slowest, site_of_pairs(pairs, middle), site_of_pairs(pairs, middle));
    else
        (void)snprintf(
            out, room,
            "all pairs of sites at once: down to %d %% of what one has alone: they share "
            "borders or cables",
            slowest);
    return true;
}

void link_crowd_together_text(const probe_pair_t *p, uint32_t ranks, char *out, size_t room)
{
    const probe_figures_t *f = &p->figures;
    const bool more = link_crowd_border(f, 0) > f->rate[0] || link_crowd_border(f, 1) > f->rate[1];
    (void)snprintf(
        out, room, "%s-%s: %.3g Gb/s there, %.3g Gb/s back by %u ranks of each at once, %s",
        p->site[0], p->site[1], 8e-9 * (double)f->together[0], 8e-9 * (double)f->together[1], ranks,
        more ? "more than one has" : "which share what one has");
}
