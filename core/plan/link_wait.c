/* link_wait.c - the formula of docs/links.md for any number of sites.
 *
 * Bytes are counted from the plans of all transfers, so a way between sites, a dtype of the border or
 * sites of other sizes need no formula of their own. Pairs of sites that share a cable or a border have
 * the rates that were measured with all of them busy, where the bytes go over all of them. */
#include <plan/link_wait.h>

#include <math.h>

#include <links/link_crowd.h>
#include <links/links.h>

static const double filled = 0.95; /* of a link's rate, as docs/links.md promises */

/* Of all ranks of a site. */
static double crossing_bytes(const link_wait_how_t *how, uint32_t what, uint32_t from, uint32_t to)
{
    return how->crosses[((size_t)what * how->sites + from) * how->sites + to];
}

/* Which pairs are busy at once: all, those of one site, or none beside another, as where a pair is used in
 * one direction only (a ring) or alone. */
static uint32_t pairs_busy(const link_wait_how_t *how, uint32_t what)
{
    uint32_t used = 0, first = 0, second = 0;
    bool of_first = true, of_second = true;
    for (uint32_t b = 1; b < how->sites; b++)
        for (uint32_t a = 0; a < b; a++) {
            const bool there = crossing_bytes(how, what, a, b) > 0;
            const bool back = crossing_bytes(how, what, b, a) > 0;
            if (there != back) return CROWD_NONE;
            if (!there) continue;
            if (used++ == 0) {
                first = a;
                second = b;
            }
            of_first = of_first && (a == first || b == first);
            of_second = of_second && (a == second || b == second);
        }
    const uint32_t all = how->sites * (how->sites - 1) / 2;
    if (used < 2 || how->pair_count < all) return CROWD_NONE;
    if (used == all) return CROWD_ALL;
    return of_first ? first : of_second ? second : CROWD_NONE;
}

/* Bytes a second. A rate of the INI's is each pair's: beside others it has the same part of it as of what was
 * measured. */
static double pair_rate(const link_wait_how_t *how, uint32_t from, uint32_t to, uint32_t at_once)
{
    const double beside = link_crowd_rate(how->pairs, how->sites, from, to, at_once);
    const double alone = link_crowd_rate(how->pairs, how->sites, from, to, CROWD_NONE);
    if (how->rate == 0) return beside;
    return (double)how->rate * (alone > 0 ? fmin(1, beside / alone) : 1);
}

/* The busiest direction and the slowest round trip that is used. */
static bool crossing_time(const link_wait_how_t *how, uint32_t what, double *busy, double *trip)
{
    const uint32_t at_once = pairs_busy(how, what);
    *busy = *trip = 0;
    for (uint32_t from = 0; from < how->sites; from++)
        for (uint32_t to = 0; to < how->sites; to++) {
            const double bytes = from == to ? 0 : crossing_bytes(how, what, from, to);
            if (bytes <= 0) continue;
            const uint32_t pair = links_pair(from, to);
            if (pair >= how->pair_count) return false;
            const probe_figures_t *f = &how->pairs[pair].figures;
            const double rate = pair_rate(how, from, to, at_once);
            if (rate <= 0 || f->round_trip_ns == 0) return false;
            *busy = fmax(*busy, bytes / (filled * rate));
            *trip = fmax(*trip, (double)f->round_trip_ns * 1e-9);
        }
    return true;
}

double link_wait_edge(const double *to, uint32_t sites, uint32_t site, double last)
{
    double all = 0;
    for (uint32_t s = 0; s < sites; s++)
        if (s != site) all += to[s];
    return all > 0 ? last / all : 0;
}

bool link_wait(const link_wait_how_t *how, link_wait_t *out)
{
    *out = (link_wait_t){0};
    for (uint32_t what = 0; what < CROSSINGS; what++) {
        double busy, trip;
        if (!crossing_time(how, what, &busy, &trip)) return false;
        const double edge = how->edge[what];
        out->moved_s[what] = busy;
        out->wait_s[what] = fmax(0, (busy - how->window_s[what]) * (1 - edge)) + busy * edge +
                            trip * how->trips[what];
    }
    return true;
}
