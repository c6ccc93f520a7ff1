/* comm_expect.c - what ranks will tell each other once they are connected, as far as it is known before.
 *
 * What is under way at a time, and so the memory for it, depends on the links between sites. An earlier
 * run or `longhaul bench links` has left a record of them. A plan has no addresses to match its rows
 * by, as a run does, but sites have names: a row of the same names and the same plugin is taken,
 * whatever its age, the youngest first. What many ranks had at once counts for those that the job has; of
 * more ranks than were at it a run measures that anew, and here it is taken as it is. */
#include <comm/comm_expect.h>

#include <base/memory.h>
#include <links/carrier.h>
#include <links/link_crowd.h>

lh_status_t comm_expect_pairs(comm_t *c)
{
    char name[32];
    const uint32_t sites = c->world->row.sites;
    mem_free(c->expected);
    c->expected = NULL;
    c->expected_count = 0;
    if (sites < 2 || c->known_count == 0 || c->job->comm.probe == PROBE_NO) return LH_OK;
    const char *plugin = carrier_plugin(c->job, c->registry, LH_LINK_WAN, name);
    if (plugin == NULL) return LH_INVALID;
    c->expected = mem_array(sites * (sites - 1) / 2, sizeof(*c->expected));
    if (c->expected == NULL) return LH_NO_MEMORY;
    c->expected_count = sites * (sites - 1) / 2;
    for (uint32_t b = 1; b < sites; b++)
        for (uint32_t a = 0; a < b; a++) {
            probe_pair_t *p = &c->expected[links_pair(a, b)];
            const uint32_t one = world_site_size(c->world, a), other = world_site_size(c->world, b);
            link_probe_take_named(p, world_site_name(c->world, a), world_site_name(c->world, b),
                                  plugin, c->known, c->known_count,
                                  c->job->transports[LH_LINK_WAN].rate);
            link_crowd_scale(&p->figures, one < other ? one : other);
        }
    return LH_OK;
}

/* The largest over the links of a site's ranks to other sites, which each of them has to all: what their
 * connections are told when they are made. */
static link_figures_t figures_expect(const comm_t *c, uint32_t here)
{
    const uint32_t ranks = world_site_size(c->world, here);
    link_figures_t out = {0};
    for (uint32_t there = 0; c->expected != NULL && there < c->world->row.sites; there++) {
        if (there == here) continue;
        const probe_figures_t *f = &c->expected[links_pair(here, there)].figures;
        uint64_t rate = c->job->transports[LH_LINK_WAN].rate;
        if (rate == 0) rate = link_crowd_border(f, here > there);
        const uint32_t theirs = world_site_size(c->world, there);
        rate /= ranks < theirs ? ranks : theirs;
        if (rate > out.bytes_per_second) out.bytes_per_second = rate;
        if (f->round_trip_ns > out.round_trip_ns) out.round_trip_ns = f->round_trip_ns;
    }
    return out;
}

/* Ranks of a site expect the same. */
static void figures_of_all(const comm_t *c, comm_facts_t *all)
{
    const world_t *w = c->world;
    for (uint32_t s = 0; s < w->row.sites; s++) {
        const link_figures_t figures = figures_expect(c, s);
        for (uint32_t i = 0; i < world_site_size(w, s); i++)
            all[world_site_rank(w, s, i)].figures[LH_LINK_WAN] = figures;
    }
}

lh_status_t comm_expect_facts(comm_t *c, comm_facts_t *all)
{
    char name[32];
    const plugin_t *plugin;
    uint32_t files = 0;
    const char *chosen = carrier_plugin(c->job, c->registry, LH_LINK_NODE, name);
    if (chosen == NULL) return LH_INVALID;
    const lh_status_t status = registry_load(c->registry, LH_KIND_TRANSPORT, chosen, &plugin);
    if (status != LH_OK) return status;
    const bool maps = plugin->transport->mapping != NULL;
    for (uint32_t a = 0; maps && a < c->arena_count && a < 32; a++)
        if (c->arenas[a].file) files |= 1u << a;
    for (uint32_t r = 0; r < c->world->row.size; r++)
        for (uint32_t s = 1; s < COMM_SERVICES; s++)
            all[r].maps[s] = files;
    figures_of_all(c, all);
    return LH_OK;
}
