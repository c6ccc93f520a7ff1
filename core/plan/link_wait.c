/* link_wait.c - the formula of docs/links.md for any number of sites.
 *
 * Bytes are counted from the plans of all transfers, so a way between sites, a dtype of the border or
 * sites of other sizes need no formula of their own. Pairs of sites that share a cable are taken for
 * links of their own, as the record has them. */
#include <plan/link_wait.h>

#include <math.h>

#include <links/links.h>

static const double filled = 0.95; /* of a link's rate, as docs/links.md promises */

/* Of all ranks of a site. */
static double crossing_bytes(const link_wait_how_t *how, uint32_t what, uint32_t from, uint32_t to)
{
    return how->crosses[((size_t)what * how->sites + from) * how->sites + to];
}

/* The busiest direction and the slowest round trip that is used. */
static bool crossing_time(const link_wait_how_t *how, uint32_t what, double *busy, double *trip)
{
    *busy = *trip = 0;
    for (uint32_t from = 0; from < how->sites; from++)
        for (uint32_t to = 0; to < how->sites; to++) {
            const double bytes = from == to ? 0 : crossing_bytes(how, what, from, to);
            if (bytes <= 0) continue;
            const uint32_t pair = links_pair(from, to);
            if (pair >= how->pair_count) return false;
            const probe_figures_t *f = &how->pairs[pair].figures;
            const double rate = (double)(how->rate != 0 ? how->rate : f->rate[from > to]);
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
