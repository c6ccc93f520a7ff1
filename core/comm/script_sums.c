/* script_sums.c - how contributions reach the owner of a piece: inside each site to the leader
 * of the owner, in one order, then over the border, each byte once, to the owner. */
#include <comm/script_sums.h>

#include <base/memory.h>

/* The member `steps` behind `from`, round its site. */
static uint32_t round_site(const group_t *g, uint32_t from, uint32_t steps)
{
    lh_assert(from < g->size);
    const uint32_t begin = g->site_begin[g->site_of[from]],
                   size = group_site_size(g, g->site_of[from]);
    return begin + (from - begin + steps) % size;
}

static uint32_t own_leader(const builder_t *b, uint32_t owner)
{
    return group_leader(b->g, b->g->site_of[b->self], owner);
}

/* Where the sum of all goes at its owner. */
static script_view_t result_view(const builder_t *b)
{
    return b->how->op == COLL_REDUCE_SCATTER ? build_cut(b) : build_whole(b);
}

static bool adds(const builder_t *b)
{
    return b->how->op == COLL_REDUCE_SCATTER && b->how->add;
}

/* A sum over sites is still to come: this one stays in F32 until then. */
static uint32_t sum_to_carry(builder_t *b, build_unit_t *u, const script_view_t *sources,
                             uint32_t count)
{
    u->carry_slot = build_slot(b, POOL_SUM, b->self, 0, &u->carry);
    const uint32_t sum = build_sum(b, u, &u->carry, false, sources, count);
    build_slot_use(b, u->carry_slot, sum);
    u->carry_step = sum;
    return sum;
}

static uint32_t sum_to_result(builder_t *b, build_unit_t *u, const script_view_t *sources,
                              uint32_t count)
{
    const script_view_t result = result_view(b);
    u->ready = build_sum(b, u, &result, adds(b), sources, count);
    return u->ready;
}

static void contribute(builder_t *b, uint32_t to, build_unit_t *u)
{
    const script_view_t own = build_whole(b);
    if (build_mapped(b, to)) {
        (void)build_signal(b, to, true, SCRIPT_NONE);
        b->lent[to] = true;
        return; /* their result, or their word at the end, says that they have read it */
    }
    u->used = build_send(b, to, u, &own, SCRIPT_NONE);
}

/* Receives from everybody of the site, or reads where they have it, and sums in order. */
static void collect(builder_t *b, uint32_t owner, build_unit_t *u)
{
    const uint32_t size = group_site_size(b->g, b->g->site_of[b->self]);
    script_view_t *sources = mem_array(size, sizeof(*sources));
    uint32_t *slots = mem_array((size_t)size * 2, sizeof(*slots)), *arrived = slots + size;
    if (sources == NULL || slots == NULL) b->failed = true;
    for (uint32_t k = 0; !b->failed && k < size; k++) {
        const uint32_t from = round_site(b->g, b->self, k + 1);
        sources[k] = build_whole(b);
        slots[k] = arrived[k] = SCRIPT_NONE;
        if (from == b->self) continue;
        if (build_mapped(b, from)) {
            sources[k].buffer = BUFFER_PEER_WHOLE;
            sources[k].peer = from;
            arrived[k] = build_signal(b, from, false, SCRIPT_NONE);
            continue;
        }
        slots[k] = build_slot(b, POOL_IN, from, 0, &sources[k]);
        sources[k].dtype = b->how->dtype;
        arrived[k] = build_recv(b, from, u, &sources[k], SCRIPT_NONE);
        build_slot_use(b, slots[k], arrived[k]);
    }
    uint32_t sum = SCRIPT_NONE;
    if (!b->failed)
        sum = b->g->sites == 1 ? sum_to_result(b, u, sources, size)
                               : sum_to_carry(b, u, sources, size);
    for (uint32_t k = 0; !b->failed && k < size; k++) {
        const uint32_t from = round_site(b->g, b->self, k + 1);
        build_edge(b, arrived[k], sum);
        build_slot_end(b, slots[k], sum);
        if (from != b->self && build_mapped(b, from)) build_reads(b, from, sum);
    }
    u->used = sum;
    (void)owner;
    mem_free(sources);
    mem_free(slots);
}

static void inside_direct(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t leader = own_leader(b, owner);
    if (group_site_size(b->g, b->g->site_of[b->self]) == 1 && b->g->sites > 1) return;
    if (b->self == leader)
        collect(b, owner, u);
    else
        contribute(b, leader, u);
}

/* The sum so far goes round the site, from the leader's next member to the leader. */
static void inside_ring(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0);
    const uint32_t size = group_site_size(b->g, b->g->site_of[b->self]);
    if (hop >= size) return;
    const uint32_t leader = own_leader(b, owner);
    const uint32_t from = round_site(b->g, leader, hop), to = round_site(b->g, from, 1);
    const script_view_t own = build_whole(b);
    if (b->self == from && hop == 1) {
        u->used = build_send(b, to, u, &own, SCRIPT_NONE);
    } else if (b->self == from) {
        const uint32_t sent = build_send(b, to, u, &u->carry, u->carry_step);
        build_slot_end(b, u->carry_slot, sent);
    }
    if (b->self != to) return;

    script_view_t sources[2] = {{0}, own};
    const uint32_t slot = build_slot(b, POOL_IN, from, 0, &sources[0]);
    if (hop == 1) sources[0].dtype = b->how->dtype;
    const uint32_t arrived = build_recv(b, from, u, &sources[0], SCRIPT_NONE);
    build_slot_use(b, slot, arrived);
    const uint32_t sum = to == leader && b->g->sites == 1 ? sum_to_result(b, u, sources, 2)
                                                          : sum_to_carry(b, u, sources, 2);
    build_edge(b, arrived, sum);
    build_slot_end(b, slot, sum);
    u->used = sum;
}

static void across_send(builder_t *b, uint32_t owner, build_unit_t *u)
{
    const script_view_t own = build_whole(b);
    if (group_site_size(b->g, b->g->site_of[b->self]) == 1) {
        u->used = build_send(b, owner, u, &own, SCRIPT_NONE);
        return;
    }
    build_slot_end(b, u->carry_slot, build_send(b, owner, u, &u->carry, u->carry_step));
}

/* At the owner: from its site's next round to its own. */
static void across_sum(builder_t *b, uint32_t owner, build_unit_t *u)
{
    const uint32_t home = b->g->site_of[owner], sites = b->g->sites;
    script_view_t *sources = mem_array(sites, sizeof(*sources));
    uint32_t *slots = mem_array((size_t)sites * 2, sizeof(*slots)), *arrived = slots + sites;
    if (sources == NULL || slots == NULL) b->failed = true;
    for (uint32_t k = 0; !b->failed && k < sites; k++) {
        const uint32_t site = (home + k + 1) % sites;
        const bool alone = group_site_size(b->g, site) == 1;
        if (site == home) {
            sources[k] = alone ? build_whole(b) : u->carry;
            slots[k] = alone ? SCRIPT_NONE : u->carry_slot;
            arrived[k] = u->carry_step;
            continue;
        }
        const uint32_t from = group_leader(b->g, site, owner);
        slots[k] = build_slot(b, POOL_IN, from, 0, &sources[k]);
        if (alone) sources[k].dtype = b->how->dtype;
        arrived[k] = build_recv(b, from, u, &sources[k], SCRIPT_NONE);
        build_slot_use(b, slots[k], arrived[k]);
    }
    const uint32_t sum = b->failed ? SCRIPT_NONE : sum_to_result(b, u, sources, sites);
    for (uint32_t k = 0; !b->failed && k < sites; k++) {
        build_edge(b, arrived[k], sum);
        build_slot_end(b, slots[k], sum);
    }
    mem_free(sources);
    mem_free(slots);
}

static void across(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    if (b->self == owner)
        across_sum(b, owner, u);
    else if (b->g->site_of[owner] != b->g->site_of[b->self] && b->self == own_leader(b, owner))
        across_send(b, owner, u);
}

/* Recursive halving inside a site of 2^k members: another order of the sum, only where [comm] bits
 * = ordered. In hop h (from 1) members at distance size >> h exchange what the other half owns. */
static void inside_halving(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0 && hop < 32);
    const uint32_t site = b->g->site_of[b->self], begin = b->g->site_begin[site];
    const uint32_t size = group_site_size(b->g, site), distance = size >> hop;
    if (distance == 0) return;
    const uint32_t me = b->self - begin, place = own_leader(b, owner) - begin;
    /* Those whose bits above `distance` are the owner's still hold a part of its sum. */
    if (((me ^ place) & ~(2 * distance - 1)) != 0) return;
    const uint32_t peer = begin + (me ^ distance);
    script_view_t mine = hop == 1 ? build_whole(b) : u->carry;
    if (((me ^ place) & distance) != 0) {
        const uint32_t sent = build_send(b, peer, u, &mine, u->carry_step);
        if (hop == 1) u->used = sent;
        build_slot_end(b, u->carry_slot, sent);
        return;
    }
    const uint32_t before = u->carry_step, before_slot = u->carry_slot;
    script_view_t sources[2] = {{0}, mine};
    const uint32_t slot = build_slot(b, POOL_IN, peer, 0, &sources[0]);
    if (hop == 1) sources[0].dtype = b->how->dtype;
    const uint32_t arrived = build_recv(b, peer, u, &sources[0], SCRIPT_NONE);
    build_slot_use(b, slot, arrived);
    const uint32_t sum = distance == 1 && b->g->sites == 1 ? sum_to_result(b, u, sources, 2)
                                                           : sum_to_carry(b, u, sources, 2);
    build_edge(b, arrived, sum);
    build_edge(b, before, sum);
    build_slot_end(b, slot, sum);
    build_slot_end(b, before_slot, sum);
    if (hop == 1) u->used = sum;
}

void sums_phases(builder_t *b, phases_t *p)
{
    const uint32_t most = group_largest_site(b->g);
    uint32_t hops = 1;
    if (most > 1 && b->in->algorithm == COLL_RING) {
        for (hops = 1; hops < most; hops++)
            build_phase(p, inside_ring, hops, hops - 1);
        p->lag += most - 2;
    } else if (most > 1 && b->in->algorithm == COLL_HALVING) {
        for (; most >> hops != 0; hops++)
            build_phase(p, inside_halving, hops, hops - 1);
        p->lag += hops - 2;
    } else if (most > 1 || b->g->sites == 1) {
        build_phase(p, inside_direct, 0, 0);
    }
    if (b->g->sites > 1) {
        if (most > 1) p->lag += b->in->lag;
        build_phase(p, across, 0, 0);
    }
}

/* Everybody sends all it has to everybody, and sums each piece as its owner would. */
void sums_at_once(builder_t *b)
{
    const uint32_t size = b->g->size;
    const uint64_t bytes = b->how->elements * b->element_bytes;
    script_view_t *sources = mem_array((size_t)size * 2, sizeof(*sources)), *by_member = sources;
    uint32_t *arrived = mem_array(size, sizeof(*arrived));
    if (sources == NULL || arrived == NULL) b->failed = true;
    const script_view_t own = build_whole(b);
    const uint32_t first = b->s->step_count;
    for (uint32_t m = 0; !b->failed && m < size; m++) {
        by_member[m] = own;
        if (m == b->self) continue;
        (void)build_slot(b, POOL_IN, m, bytes, &by_member[m]);
        by_member[m].layout = LAYOUT_WHOLE;
        by_member[m].dtype = b->how->dtype;
        (void)build_message(b, m, false, &by_member[m], bytes, SCRIPT_NONE);
        (void)build_message(b, m, true, &own, bytes, SCRIPT_NONE);
    }
    const uint32_t end = b->s->step_count;
    for (uint32_t o = 0; !b->failed && o < size; o++)
        for (uint32_t i = b->unit_begin[o]; i < b->unit_begin[o + 1]; i++) {
            script_view_t *ordered = sources + size;
            for (uint32_t k = 0; k < size; k++)
                ordered[k] = by_member[round_site(b->g, o, k + 1)];
            const uint32_t sum = build_sum(b, &b->units[i], &own, false, ordered, size);
            /* In place: not before what lies there has gone out. */
            for (uint32_t step = first; step < end; step++)
                build_edge(b, step, sum);
        }
    mem_free(sources);
    mem_free(arrived);
}
