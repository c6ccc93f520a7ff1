/* comm_expect.c - what ranks will tell each other once they are connected, as far as it is known before.
 *
 * What is under way at a time, and so the memory for it, depends on the links between sites. An earlier
 * run or `longhaul bench links` has left a record of them. A plan has no addresses to match its rows
 * by, as a run does, but sites have names: a row of the same names and the same plugin is taken,
 * whatever its age, the youngest first. */
#include <comm/comm_expect.h>

#include <base/memory.h>
#include <links/carrier.h>

/* The name of a site's lowest rank, which is what a run keeps. */
static const char *site_name(const world_t *w, uint32_t site)
{
    uint32_t r = 0;
    while (w->ranks[r].site != site)
        r++;
    return w->ranks[r].site_name;
}

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
        for (uint32_t a = 0; a < b; a++)
            link_probe_take_named(&c->expected[links_pair(a, b)], site_name(c->world, a),
                                  site_name(c->world, b), plugin, c->known, c->known_count);
    return LH_OK;
}

/* The largest over the links of a site's ranks to other sites, which each of them has to all: what their
 * connections are told when they are made. ranks: [sites], how many each has. */
static link_figures_t figures_expect(const comm_t *c, const uint32_t *ranks, uint32_t here)
{
    link_figures_t out = {0};
    for (uint32_t there = 0; c->expected != NULL && there < c->world->row.sites; there++) {
        if (there == here) continue;
        const probe_figures_t *f = &c->expected[links_pair(here, there)].figures;
        uint64_t rate = c->job->transports[LH_LINK_WAN].rate;
        if (rate == 0) rate = f->rate[here > there];
        rate /= ranks[here] < ranks[there] ? ranks[here] : ranks[there];
        if (rate > out.bytes_per_second) out.bytes_per_second = rate;
        if (f->round_trip_ns > out.round_trip_ns) out.round_trip_ns = f->round_trip_ns;
    }
    return out;
}

/* Ranks of a site expect the same, so it is looked up once a site: a plan of all ranks comes here for
 * each of them. */
static lh_status_t figures_of_all(const comm_t *c, comm_facts_t *all)
{
    const world_t *w = c->world;
    uint32_t *ranks = mem_array(w->row.sites, sizeof(*ranks));
    link_figures_t *figures = mem_array(w->row.sites, sizeof(*figures));
    const lh_status_t status = ranks == NULL || figures == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t r = 0; status == LH_OK && r < w->row.size; r++)
        ranks[w->ranks[r].site]++;
    for (uint32_t s = 0; status == LH_OK && s < w->row.sites; s++)
        figures[s] = figures_expect(c, ranks, s);
    for (uint32_t r = 0; status == LH_OK && r < w->row.size; r++)
        all[r].figures[LH_LINK_WAN] = figures[w->ranks[r].site];
    mem_free(ranks);
    mem_free(figures);
    return status;
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
    return figures_of_all(c, all);
}
