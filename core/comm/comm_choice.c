/* comm_choice.c - which algorithm and which chunk: by size, by who can map whom, by the link. It
 * depends only on what is the same on all ranks. */
#include <comm/comm_choice.h>

#include <longhaul/dtype.h>

enum {
    AT_ONCE_BYTES = 8 << 10, /* up to here one message latency beats everything */
    AT_ONCE_MEMBERS = 16,
    MAP_BYTES = 16 << 10,  /* from here on a copy costs more than two signals */
    MANY_MEMBERS = 8,      /* more would all send to one at the same time     */
    RING_BYTES = 64 << 10, /* a member: from here on bytes count, not messages */
    LONGEST_RING = 128,
    MOST_CHUNKS = 4096,
};

static const uint64_t chunk_by_scope[COMM_SCOPES] = {1 << 20, 256 << 10, 512 << 10, 4 << 20};
/* Larger than what a link likes: nothing waits for its first byte, and each chunk costs signals. */
static const uint64_t map_chunk = 2 << 20;

uint32_t comm_widest_scope(const world_t *w, const group_t *g)
{
    uint32_t widest = 0;
    for (uint32_t m = 1; m < g->size; m++) {
        const uint32_t scope = world_scope(w, g->ranks[0], g->ranks[m]);
        if (scope > widest) widest = scope;
    }
    return widest;
}

static bool sums(uint32_t op)
{
    return op == COLL_ALL_REDUCE || op == COLL_REDUCE_SCATTER || op == COLL_REDUCE;
}

static bool halves_evenly(const group_t *g)
{
    for (uint32_t s = 0; s < g->sites; s++) {
        const uint32_t size = group_site_size(g, s);
        if ((size & (size - 1)) != 0) return false;
    }
    return true;
}

static uint32_t best_algorithm(const coll_how_t *how, uint64_t bytes, bool mapped)
{
    const uint32_t most = group_largest_site(how->group);
    if (mapped || most <= 2) return COLL_DIRECT;
    if (how->op == COLL_BARRIER) return most > MANY_MEMBERS ? COLL_HALVING : COLL_DIRECT;
    /* Each member talks to two others only, and a root sends or takes the whole just once. */
    if (bytes >= (uint64_t)RING_BYTES * most) return COLL_RING;
    return how->op == COLL_BROADCAST && most > 4 ? COLL_HALVING : COLL_DIRECT;
}

static uint32_t choose_algorithm(const collective_t *x, uint64_t bytes, bool mapped)
{
    const coll_how_t *how = &x->how;
    const job_comm_t *job = &x->comm->how.job->comm;
    uint32_t algorithm = how->algorithm != COLL_AUTO ? how->algorithm : job->algorithm;
    if (algorithm == COLL_AUTO) algorithm = best_algorithm(how, bytes, mapped);
    if (algorithm == COLL_HALVING && sums(how->op) &&
        (job->bits != BITS_ORDERED || !halves_evenly(how->group)))
        algorithm = COLL_DIRECT;
    if (algorithm == COLL_RING && group_largest_site(how->group) > LONGEST_RING)
        algorithm = COLL_DIRECT;
    const bool moves = how->op == COLL_SCATTER || how->op == COLL_GATHER ||
                       how->op == COLL_ALL_TO_ALL || how->op == COLL_SEND || how->op == COLL_RECV;
    return moves ? COLL_DIRECT : algorithm;
}

/* A quarter of what the link holds in flight, or what is good for links of its class. */
static uint64_t choose_chunk(const collective_t *x, const comm_facts_t *all, uint32_t scope,
                             bool mapped)
{
    lh_assert(scope < COMM_SCOPES);
    const uint64_t asked = x->how.chunk_bytes != 0 ? x->how.chunk_bytes
                                                   : x->comm->how.job->comm.chunk_bytes;
    if (asked != 0) return asked;
    uint64_t chunk = mapped ? map_chunk : chunk_by_scope[scope];
    double flight = 0;
    for (uint32_t m = 0; scope == LH_LINK_WAN && m < x->how.group->size; m++) {
        const link_figures_t *f = &all[x->how.group->ranks[m]].figures[scope];
        const double bytes = (double)f->round_trip_ns * 1e-9 * (double)f->bytes_per_second;
        if (bytes > flight) flight = bytes;
    }
    while ((double)chunk < flight / 4 && chunk < (16 << 20))
        chunk *= 2;
    const uint64_t bytes = x->how.elements * lh_dtype_bytes(x->how.dtype);
    while (bytes / chunk > MOST_CHUNKS)
        chunk *= 2;
    return chunk;
}

/* Whether a rank that maps these arenas of its peers can read a member's buffers in place. */
static bool maps_place(uint32_t maps, const plan_place_t *p)
{
    const uint32_t arenas[] = {p->whole_arena, p->cut_arena};
    for (int i = 0; i < 2; i++)
        if (arenas[i] != PLAN_NOWHERE && (arenas[i] >= 32 || (maps >> arenas[i] & 1) == 0))
            return false;
    return true;
}

/* Two members of a node that can read each other's buffers in place. */
static bool pair_maps(const collective_t *x, const comm_facts_t *all, uint32_t a, uint32_t b)
{
    lh_assert(a < x->how.group->size && b < x->how.group->size);
    const group_t *g = x->how.group;
    const uint32_t service = x->how.service;
    if (a == b || world_scope(x->comm->how.world, g->ranks[a], g->ranks[b]) != LH_LINK_NODE)
        return false;
    return maps_place(all[g->ranks[a]].maps[service], &x->places[b]) &&
           maps_place(all[g->ranks[b]].maps[service], &x->places[a]);
}

static bool all_map(const collective_t *x, const comm_facts_t *all)
{
    const group_t *g = x->how.group;
    if (x->how.op == COLL_SEND || x->how.op == COLL_RECV)
        return pair_maps(x, all, g->self, x->how.root);
    for (uint32_t a = 0; a < g->size; a++)
        for (uint32_t b = 0; b < a; b++)
            if (g->site_of[a] == g->site_of[b] && !pair_maps(x, all, a, b)) return false;
    return group_largest_site(g) > 1;
}

void comm_choose(const collective_t *x, const comm_facts_t *all, script_how_t *out)
{
    const coll_how_t *how = &x->how;
    const uint64_t bytes = how->elements * lh_dtype_bytes(how->dtype);
    const uint32_t scope = comm_widest_scope(x->comm->how.world, how->group);
    const bool can_map = bytes >= MAP_BYTES && all_map(x, all);
    const uint32_t algorithm = choose_algorithm(x, bytes, can_map);
    const bool mapped = can_map && algorithm == COLL_DIRECT;
    *out = (script_how_t){.how = how,
                          .algorithm = algorithm,
                          .chunk_bytes = choose_chunk(x, all, scope, mapped),
                          .lag = mapped                 ? 1
                                 : scope == LH_LINK_WAN ? 4
                                                        : 2,
                          .peers = mapped ? x->peers : NULL};
    out->depth = out->lag + 2;
    out->at_once = how->op == COLL_ALL_REDUCE && how->group->sites == 1 &&
                   algorithm == COLL_DIRECT && bytes <= AT_ONCE_BYTES &&
                   how->group->size <= AT_ONCE_MEMBERS;
    for (uint32_t m = 0; mapped && m < how->group->size; m++)
        x->peers[m].mapped = pair_maps(x, all, how->group->self, m);
}
