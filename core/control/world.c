/* world.c - numbers nodes and sites by their names, lists who acts together, and shows plugins the
 * world.
 *
 * Every rank makes the same world from the same places, and every number here follows from the
 * order of ranks alone: no rank is asked, and no two can disagree. What is asked of a site or a place
 * in it is counted once, by world_number. */
#include <control/world.h>

#include <stdio.h>
#include <string.h>

#include <base/memory.h>
#include <base/processors.h>

/* All in one site and one node until names are filled in and numbered. */
lh_status_t world_new(uint32_t rank, uint32_t size, world_t **out)
{
    if (size == 0 || rank >= size)
        return fail(LH_INVALID, "rank %u of %u ranks: ranks count from 0", rank, size);
    world_t *w = mem_new(sizeof(*w));
    world_rank_t *ranks = w == NULL ? NULL : mem_array(size, sizeof(*ranks));
    if (ranks == NULL) {
        mem_free(w);
        return LH_NO_MEMORY;
    }
    w->ranks = ranks;
    w->by_site = mem_array(size, sizeof(*w->by_site));
    w->site_begin = mem_array((size_t)size + 1, sizeof(*w->site_begin));
    if (w->by_site == NULL || w->site_begin == NULL) {
        world_free(w);
        return LH_NO_MEMORY;
    }
    w->row.struct_size = sizeof(w->row);
    w->row.rank = rank;
    w->row.size = size;
    world_number(w);
    *out = w;
    return LH_OK;
}

static bool same_site(const world_rank_t *a, const world_rank_t *b)
{
    return strncmp(a->site_name, b->site_name, WORLD_SITE_NAME) == 0;
}

/* A node is (site, host): one machine may play two sites. */
static bool same_node(const world_rank_t *a, const world_rank_t *b)
{
    return same_site(a, b) && strncmp(a->host, b->host, WORLD_HOST_NAME) == 0;
}

/* Which of the sites, or nodes, so far a rank is of, by the last rank of each; `count`: of none. Ranks
 * mostly follow the one before on its node, so the newest is looked at first. */
static uint32_t find_like(const world_t *w, const uint32_t *last, uint32_t count,
                          const world_rank_t *r,
                          bool (*same)(const world_rank_t *, const world_rank_t *))
{
    for (uint32_t i = count; i-- > 0;)
        if (same(r, &w->ranks[last[i]])) return i;
    return count;
}

/* site_begin holds the last rank of each site so far, which knows how many there are. */
static void list_sites(world_t *w)
{
    uint32_t begin = 0;
    for (uint32_t s = 0; s < w->row.sites; s++) {
        const uint32_t count = w->ranks[w->site_begin[s]].place + 1;
        w->site_begin[s] = begin;
        begin += count;
    }
    w->site_begin[w->row.sites] = begin;
    for (uint32_t r = 0; r < w->row.size; r++)
        w->by_site[w->site_begin[w->ranks[r].site] + w->ranks[r].place] = r;
}

/* Each rank takes its numbers from the last rank before it of its site and node: the first of one opens
 * a new one. The two lists hold those last ranks meanwhile, by_site of nodes, site_begin of sites. */
void world_number(world_t *w)
{
    uint32_t nodes = 0, sites = 0, *node_last = w->by_site, *site_last = w->site_begin;
    for (uint32_t i = 0; i < w->row.size; i++) {
        world_rank_t *r = &w->ranks[i];
        r->site = find_like(w, site_last, sites, r, same_site);
        r->node = find_like(w, node_last, nodes, r, same_node);
        r->place = r->site < sites ? w->ranks[site_last[r->site]].place + 1 : 0;
        r->local_rank = r->node < nodes ? w->ranks[node_last[r->node]].local_rank + 1 : 0;
        sites += r->site == sites;
        nodes += r->node == nodes;
        site_last[r->site] = node_last[r->node] = i;
    }
    w->row.sites = sites;
    w->row.nodes = nodes;
    list_sites(w);
}

/* The same numbering as of a world that has met, so that what is planned is what will be. */
lh_status_t world_plan(const job_t *job, uint32_t rank, world_t **out)
{
    world_t *w;
    const lh_status_t status = world_new(rank, job_ranks(job), &w);
    if (status != LH_OK) return status;
    for (uint32_t r = 0; r < w->row.size; r++) {
        const job_site_t *site;
        const job_host_t *host;
        job_rank_place(job, r, &site, &host);
        if (site == NULL) continue;
        (void)snprintf(w->ranks[r].site_name, WORLD_SITE_NAME, "%s", site->name);
        (void)snprintf(w->ranks[r].host, WORLD_HOST_NAME, "%s", host->name);
    }
    w->inside_nodes = job->parallel.inside == INSIDE_NODE;
    world_number(w);
    *out = w;
    return LH_OK;
}

void world_free(world_t *w)
{
    if (w == NULL) return;
    mem_free(w->ranks);
    mem_free(w->by_site);
    mem_free(w->site_begin);
    mem_free(w);
}

uint32_t world_site_size(const world_t *w, uint32_t site)
{
    lh_assert(site < w->row.sites);
    return w->site_begin[site + 1] - w->site_begin[site];
}

uint32_t world_site_rank(const world_t *w, uint32_t site, uint32_t place)
{
    lh_assert(place < world_site_size(w, site));
    return w->by_site[w->site_begin[site] + place];
}

const char *world_site_name(const world_t *w, uint32_t site)
{
    return w->ranks[world_site_rank(w, site, 0)].site_name;
}

/* The link class: by node first, as two ranks of one node are also of one site. */
uint32_t world_scope(const world_t *w, uint32_t a, uint32_t b)
{
    lh_assert(a < w->row.size && b < w->row.size);
    if (w->ranks[a].node == w->ranks[b].node) return LH_LINK_NODE;
    return w->ranks[a].site == w->ranks[b].site ? LH_LINK_SITE : LH_LINK_WAN;
}

enum { PLACE_TEXT = 160 };

/* " on SITE/HOST" of a rank; "" where its host is not known. */
static void place_text(const world_t *w, uint32_t rank, char text[PLACE_TEXT])
{
    const world_rank_t *r = &w->ranks[rank];
    text[0] = '\0';
    if (r->host[0] == '\0') return;
    (void)snprintf(text, PLACE_TEXT, " on %s%s%s", r->site_name, r->site_name[0] == '\0' ? "" : "/",
                   r->host);
}

/* For sentences: a number alone tells nobody which machine to look at. */
void world_rank_text(const world_t *w, uint32_t rank, char *text, size_t bytes)
{
    char place[PLACE_TEXT];
    lh_assert(rank < w->row.size);
    place_text(w, rank, place);
    (void)snprintf(text, bytes, "rank %u%s", rank, place);
}

/* Ranks that follow each other on one node are one run of the list. */
void world_ranks_text(const world_t *w, const bool *among, text_t *out)
{
    /* Runs that are shown, and ranks of those that are not. */
    uint32_t shown = 0, more = 0;
    for (uint32_t r = 0, last; r < w->row.size; r = last + 1) {
        char place[PLACE_TEXT];
        last = r;
        if (!among[r]) continue;
        while (last + 1 < w->row.size && among[last + 1] &&
               w->ranks[last + 1].node == w->ranks[r].node)
            last++;
        if (shown++ >= WORLD_SHOWN) {
            more += last - r + 1;
            continue;
        }
        place_text(w, r, place);
        text_append(out, shown > 1 ? ", " : "");
        if (last == r)
            text_printf(out, "rank %u%s", r, place);
        else
            text_printf(out, "ranks %u to %u%s", r, last, place);
    }
    if (more > 0) text_printf(out, " and %u more", more);
}

uint32_t world_block(const world_t *w, uint32_t rank)
{
    lh_assert(rank < w->row.size);
    return w->inside_nodes ? w->ranks[rank].node : w->ranks[rank].site;
}

uint32_t world_blocks(const world_t *w)
{
    return w->inside_nodes ? w->row.nodes : w->row.sites;
}

/* The rank's number among the ranks of its block. */
static uint32_t block_place(const world_t *w, uint32_t rank)
{
    return w->inside_nodes ? w->ranks[rank].local_rank : w->ranks[rank].place;
}

static bool is_group_member(const world_t *w, uint32_t which, uint32_t rank)
{
    const uint32_t self = w->row.rank;
    switch (which) {
    case LH_GROUP_DATA: return true;
    case LH_GROUP_SITE: return world_block(w, rank) == world_block(w, self);
    case LH_GROUP_ACROSS: return block_place(w, rank) == block_place(w, self);
    default: return rank == self;
    }
}

/* Site by site, so that a site is a run of members even where ranks were dealt out in turn. Sites
 * without a member of the group leave no mark in it. */
static uint32_t fill_members(const world_t *w, uint32_t which, group_t *g)
{
    uint32_t count = 0;
    for (uint32_t site = 0; site < w->row.sites; site++) {
        const uint32_t before = count;
        for (uint32_t place = 0; place < world_site_size(w, site); place++) {
            const uint32_t r = world_site_rank(w, site, place);
            if (!is_group_member(w, which, r)) continue;
            if (r == w->row.rank) g->self = count;
            if (count == before) g->site_begin[g->sites++] = count;
            g->site_of[count] = g->sites - 1;
            g->ranks[count++] = r;
        }
    }
    lh_assert(g->sites <= w->row.sites && count <= w->row.size);
    g->site_begin[g->sites] = count;
    return count;
}

uint32_t world_block_size(const world_t *w, uint32_t block)
{
    lh_assert(block < world_blocks(w));
    if (!w->inside_nodes) return world_site_size(w, block);
    uint32_t size = 0;
    for (uint32_t r = 0; r < w->row.size; r++)
        size += world_block(w, r) == block;
    return size;
}

/* As groups across them ask for it: no block is larger than all are on average. */
bool world_blocks_equal(const world_t *w)
{
    for (uint32_t r = 0; r < w->row.size; r++)
        if ((uint64_t)(block_place(w, r) + 1) * world_blocks(w) > w->row.size) return false;
    return true;
}

/* Names the first one that differs, by the name of its first rank. */
static lh_status_t check_equal_blocks(const world_t *w)
{
    const char *kind = w->inside_nodes ? "node" : "site";
    if (world_blocks_equal(w)) return LH_OK;
    for (uint32_t block = 1; block < world_blocks(w); block++) {
        const uint32_t first = world_block_size(w, 0), size = world_block_size(w, block);
        if (size == first) continue;
        uint32_t r = 0;
        while (world_block(w, r) != block)
            r++;
        return fail(LH_INVALID,
                    "a group across %ss needs %ss of equal size: %s '%s' has %u ranks, "
                    "%s '%s' has %u",
                    kind, kind, kind, w->inside_nodes ? w->ranks[0].host : w->ranks[0].site_name,
                    first, kind, w->inside_nodes ? w->ranks[r].host : w->ranks[r].site_name, size);
    }
    return LH_OK;
}

/* The same members on every rank that is in the group; self is this rank's index among them. */
lh_status_t world_group_new(const world_t *w, uint32_t which, group_t **out)
{
    if (which >= LH_GROUPS) return fail(LH_INVALID, "group %u: there are %u", which, LH_GROUPS);
    if (which == LH_GROUP_ACROSS) {
        const lh_status_t status = check_equal_blocks(w);
        if (status != LH_OK) return status;
    }
    group_t *g = mem_new(sizeof(*g));
    if (g == NULL) return LH_NO_MEMORY;
    g->ranks = mem_array(w->row.size, sizeof(*g->ranks));
    g->site_begin = mem_array((size_t)w->row.sites + 1, sizeof(*g->site_begin));
    g->site_of = mem_array(w->row.size, sizeof(*g->site_of));
    if (g->ranks == NULL || g->site_begin == NULL || g->site_of == NULL) {
        world_group_free(g);
        return LH_NO_MEMORY;
    }
    g->size = fill_members(w, which, g);
    *out = g;
    return LH_OK;
}

void world_group_free(group_t *g)
{
    if (g == NULL) return;
    mem_free(g->ranks);
    mem_free(g->site_begin);
    mem_free(g->site_of);
    mem_free(g);
}

/* With sites of unequal size several owners have one leader; with equal ones each has its own, and
 * messages between sites are spread over all ranks. */
uint32_t world_group_leader(const group_t *g, uint32_t site, uint32_t owner)
{
    lh_assert(site < g->sites && owner < g->size);
    const uint32_t home = g->site_of[owner];
    if (site == home) return owner;
    const uint32_t size = g->site_begin[site + 1] - g->site_begin[site];
    return g->site_begin[site] + (owner - g->site_begin[home]) % size;
}

uint32_t world_group_site_size(const group_t *g, uint32_t site)
{
    lh_assert(site < g->sites);
    return g->site_begin[site + 1] - g->site_begin[site];
}

uint32_t world_group_largest_site(const group_t *g)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < g->sites; s++)
        if (world_group_site_size(g, s) > most) most = world_group_site_size(g, s);
    return most;
}

/* What the host hands out while plugins run: rows of the SDK, made once from a world, and what keys
 * are derived from. world and secret are borrowed. */
struct published {
    const world_t *world;
    const secret_t *secret;
    lh_rank_info_t *ranks;
};

/* A plugin's purposes have a prefix of their own: no plugin can ask for the control plane's key. */
static lh_status_t world_derive_key(const void *context, const char *purpose, uint32_t peer,
                                    void *out, size_t bytes)
{
    const published_t *p = context;
    const lh_world_t *w = &p->world->row;
    char own[96];
    if ((size_t)snprintf(own, sizeof(own), "plugin %s", purpose) >= sizeof(own))
        return fail(LH_INVALID, "a key's purpose is at most 88 bytes: '%s'", purpose);
    return secret_derive(p->secret, own, w->epoch, w->rank, peer, out, bytes);
}

/* A machine that plays several sites is several nodes, whose ranks share its processors all the same. */
static uint32_t world_beside(const world_t *w)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < w->row.size; r++)
        count += strcmp(w->ranks[r].host, w->ranks[w->row.rank].host) == 0;
    return count;
}

/* The device of a rank is its number within its node. */
lh_status_t world_publish(host_t *host, const world_t *world, const secret_t *secret,
                          published_t **out)
{
    published_t *p = mem_new(sizeof(*p));
    lh_rank_info_t *ranks = p == NULL ? NULL : mem_array(world->row.size, sizeof(*ranks));
    if (ranks == NULL) {
        mem_free(p);
        return LH_NO_MEMORY;
    }
    for (uint32_t r = 0; r < world->row.size; r++) {
        const world_rank_t *from = &world->ranks[r];
        ranks[r] = (lh_rank_info_t){.struct_size = sizeof(ranks[r]),
                                    .rank = r,
                                    .node = from->node,
                                    .site = from->site,
                                    .local_rank = from->local_rank,
                                    .device = from->local_rank};
        memcpy(ranks[r].host_name, from->host, sizeof(from->host));
    }
    *p = (published_t){world, secret, ranks};
    processors_share(world_beside(world));
    host_set_world(host, &(host_world_t){.row = world->row,
                                         .ranks = ranks,
                                         .derive = secret != NULL ? world_derive_key : NULL,
                                         .context = p});
    *out = p;
    return LH_OK;
}

void world_unpublish(host_t *host, published_t *p)
{
    if (p == NULL) return;
    host_set_world(host, NULL);
    processors_share(1);
    mem_free(p->ranks);
    mem_free(p);
}
