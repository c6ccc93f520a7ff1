/* coll.c - which way an all-reduce takes between sites, by predicted times.
 *
 * A buffer goes in chunks, each at once over all links: so a way takes as long as the busiest
 * direction of any link needs for its bytes, and the round trip of its slowest link, or half of
 * that where parts only are sent; a ring takes one for each site but one. The time of sums inside a
 * site and of adding is the same for all ways and left out. Pairs of sites may share a cable or a border:
 * a mesh and an exchange have the rates that were measured with all pairs busy, a chain those of its
 * middle's pairs alone. A ring has the rates that pairs have alone, as each site sends to one and
 * receives from one; what its hops share over a chain is left out. */
#include <comm/coll.h>

static const between_link_t *link_of(const between_how_t *how, uint32_t from, uint32_t to)
{
    lh_assert(from < how->sites && to < how->sites && from != to);
    return &how->links[(size_t)from * how->sites + to];
}

/* To the next site alone: for each owner but those there what was summed so far, and for each but those
 * behind it the result. */
static double ring_bytes(const between_how_t *how, uint32_t from, uint32_t to)
{
    double bytes = 0;
    if (to != (from + 1) % how->sites) return 0;
    for (uint32_t home = 0; home < how->sites; home++) {
        const uint32_t hop = (from + how->sites - home) % how->sites;
        if (hop > 0) bytes += how->share[home] * (hop == 1 ? how->part_bytes : how->partial_bytes);
        if (hop < how->sites - 1) bytes += how->share[home] * how->result_bytes;
    }
    return bytes;
}

/* Bytes that a way sends from one site to another. */
static double bytes_over(const between_how_t *how, uint32_t way, uint32_t middle, uint32_t from,
                         uint32_t to)
{
    switch (way) {
    case BETWEEN_EXCHANGE: return how->part_bytes;
    case BETWEEN_RING: return ring_bytes(how, from, to);
    case BETWEEN_CHAIN:
        return to == middle ? how->part_bytes : from == middle ? how->result_bytes : 0;
    default: return how->part_bytes * how->share[to] + how->result_bytes * how->share[from];
    }
}

/* What a link carries while the other links that the way uses are busy. */
static double rate_left(const between_how_t *how, uint32_t way, uint32_t middle, uint32_t from,
                        uint32_t to)
{
    const between_link_t *k = link_of(how, from, to);
    double beside = k->beside_all;
    if (way == BETWEEN_RING) beside = 0;
    if (way == BETWEEN_CHAIN) beside = from == middle ? k->beside_from : k->beside_to;
    return beside > 0 ? beside : k->bytes_per_second;
}

double coll_between_trips(uint32_t way, uint32_t sites)
{
    lh_assert(sites > 1);
    if (way == BETWEEN_RING) return sites - 1;
    return way == BETWEEN_EXCHANGE ? 0.5 : 1;
}

double coll_between_seconds(const between_how_t *how, uint32_t way, uint32_t middle)
{
    double busy = 0, trip = 0;
    for (uint32_t from = 0; from < how->sites; from++)
        for (uint32_t to = 0; to < how->sites; to++) {
            if (from == to) continue;
            const between_link_t *k = link_of(how, from, to);
            const double bytes = bytes_over(how, way, middle, from, to);
            if (bytes <= 0) continue;
            const double seconds = bytes / rate_left(how, way, middle, from, to);
            if (seconds > busy) busy = seconds;
            if (k->round_trip_s > trip) trip = k->round_trip_s;
        }
    return busy + trip * coll_between_trips(way, how->sites);
}

static bool all_known(const between_how_t *how)
{
    for (uint32_t from = 0; from < how->sites; from++)
        for (uint32_t to = 0; to < how->sites; to++)
            if (from != to && (link_of(how, from, to)->bytes_per_second <= 0 ||
                               link_of(how, from, to)->round_trip_s <= 0))
                return false;
    return true;
}

/* The first of those that take equally long. */
static uint32_t best_middle(const between_how_t *how)
{
    uint32_t best = 0;
    for (uint32_t m = 1; m < how->sites; m++)
        if (coll_between_seconds(how, BETWEEN_CHAIN, m) <
            coll_between_seconds(how, BETWEEN_CHAIN, best))
            best = m;
    return best;
}

uint32_t coll_between_choose(const between_how_t *how, uint32_t *middle)
{
    lh_assert(how->sites > 1 && how->asked < BETWEEN_WAYS);
    const bool known = all_known(how);
    const uint32_t centre = known ? best_middle(how) : how->sites / 2;
    uint32_t way = how->asked;
    if (way == BETWEEN_AUTO && !known) way = how->sites == 2 ? BETWEEN_EXCHANGE : BETWEEN_MESH;
    if (way == BETWEEN_AUTO) {
        way = BETWEEN_MESH;
        for (uint32_t other = BETWEEN_EXCHANGE; other < BETWEEN_WAYS; other++)
            if (coll_between_seconds(how, other, centre) < coll_between_seconds(how, way, centre))
                way = other;
    }
    if ((way == BETWEEN_CHAIN || way == BETWEEN_RING) && how->sites == 2) way = BETWEEN_MESH;
    *middle = way == BETWEEN_CHAIN ? centre : 0;
    return way;
}
