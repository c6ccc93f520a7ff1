/* script_sums.c - the phases of sums: how contributions are added inside a site, and what sites have
 * summed over all sites.
 *
 * Whatever the algorithm inside a site and the way between sites, an element's sum is made of the
 * same numbers in the same order (collective.h): who adds, and how often the same is added, differs
 * alone. */
#include <comm/script_sums.h>

#include <base/memory.h>
#include <longhaul/dtype.h>

/* Where the sum of all goes at its owner. */
static script_view_t result_view(const builder_t *b)
{
    return b->how->op == COLL_REDUCE_SCATTER ? build_cut(b) : build_whole(b);
}

/* Only a reduce-scatter may add to what is there: gradients of an earlier micro-batch. */
static bool result_adds(const builder_t *b)
{
    return b->how->op == COLL_REDUCE_SCATTER && b->how->add;
}

/* The rest of a ring is still to come, or a sum over sites: this partial sum goes into staging
 * memory and stays in F32 until then, so that it is rounded once. What is all of a site's is
 * rounded for the border, if that has a dtype: also where it does not leave, so that every sum over
 * sites is made of the same numbers. */
static uint32_t sum_to_carry(builder_t *b, build_unit_t *u, const script_view_t *sources,
                             uint32_t count, bool all_of_site)
{
    u->carry_slot = build_slot(b, POOL_SUM, b->self,
                               all_of_site && b->part != 0 ? b->part : LH_DTYPE_F32, 0, &u->carry);
    const uint32_t sum = build_sum(b, u, &u->carry, false, sources, count);
    build_slot_use(b, u->carry_slot, sum);
    u->carry_step = sum;
    return sum;
}

/* The last sum of a piece, at its owner. From here on the unit is `ready`. */
static uint32_t sum_to_result(builder_t *b, build_unit_t *u, const script_view_t *sources,
                              uint32_t count)
{
    const script_view_t result = result_view(b);
    u->ready = build_sum(b, u, &result, result_adds(b), sources, count);
    if (u->ready != SCRIPT_NONE) b->s->steps[u->ready].rounded = b->border;
    return u->ready;
}

/* This rank's contribution to the leader of its site. */
static void unit_contribute(builder_t *b, uint32_t to, build_unit_t *u)
{
    const script_view_t own = build_whole(b);
    if (build_mapped(b, to)) {
        (void)build_signal(b, to, true, SCRIPT_NONE);
        b->lent[to] = true;
        return; /* their result, or their word at the end, says that they have read it */
    }
    u->used = build_send(b, to, u, &own, 0, SCRIPT_NONE);
}

/* The leader receives from everybody of the site, or reads where they have it, and sums in order:
 * from the member behind it round the site, itself last. One step adds all contributions, so that
 * each element is read once and written once. */
static void unit_collect(builder_t *b, build_unit_t *u)
{
    const uint32_t size = world_group_site_size(b->g, b->g->site_of[b->self]);
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
        slots[k] = build_slot(b, POOL_IN, from, b->how->dtype, 0, &sources[k]);
        arrived[k] = build_recv(b, from, u, &sources[k], 0, SCRIPT_NONE);
        build_slot_use(b, slots[k], arrived[k]);
    }
    uint32_t sum = SCRIPT_NONE;
    if (!b->failed)
        sum = b->g->sites == 1 ? sum_to_result(b, u, sources, size)
                               : sum_to_carry(b, u, sources, size, true);
    for (uint32_t k = 0; !b->failed && k < size; k++) {
        const uint32_t from = round_site(b->g, b->self, k + 1);
        build_edge(b, arrived[k], sum);
        build_slot_end(b, slots[k], sum);
        if (from != b->self && build_mapped(b, from)) build_reads(b, from, sum);
    }
    u->used = sum;
    mem_free(sources);
    mem_free(slots);
}

/* Everybody to the leader. A site of one member has nothing to add up inside: sum_across() takes
 * its whole. In a group of one member in all the step still copies, or adds, from the whole to the
 * result. */
static void inside_direct(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t leader = own_leader(b, owner);
    if (world_group_site_size(b->g, b->g->site_of[b->self]) == 1 && b->g->sites > 1) return;
    if (b->self == leader)
        unit_collect(b, u);
    else
        unit_contribute(b, leader, u);
}

/* The sum so far goes round the site, from the leader's next member to the leader, and each adds
 * its own behind it: the same order as in unit_collect(). In hop h it leaves the member h places
 * behind the leader; the first hop carries a contribution in the collective's dtype, later ones
 * partial sums in F32. */
static void inside_ring(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0);
    const uint32_t size = world_group_site_size(b->g, b->g->site_of[b->self]);
    if (hop >= size) return;
    const uint32_t leader = own_leader(b, owner);
    const uint32_t from = round_site(b->g, leader, hop), to = round_site(b->g, from, 1);
    const script_view_t own = build_whole(b);
    if (b->self == from && hop == 1) {
        u->used = build_send(b, to, u, &own, 0, SCRIPT_NONE);
    } else if (b->self == from) {
        const uint32_t sent = build_send(b, to, u, &u->carry, 0, u->carry_step);
        build_slot_end(b, u->carry_slot, sent);
    }
    if (b->self != to) return;

    script_view_t sources[2] = {{0}, own};
    const uint32_t slot = build_slot(b, POOL_IN, from, hop == 1 ? b->how->dtype : LH_DTYPE_F32, 0,
                                     &sources[0]);
    const uint32_t arrived = build_recv(b, from, u, &sources[0], 0, SCRIPT_NONE);
    build_slot_use(b, slot, arrived);
    const uint32_t sum = to == leader && b->g->sites == 1
                             ? sum_to_result(b, u, sources, 2)
                             : sum_to_carry(b, u, sources, 2, to == leader);
    build_edge(b, arrived, sum);
    build_slot_end(b, slot, sum);
    u->used = sum;
}

/* The dtype in which a site's part of a sum over sites is: a site of one has no partial sum, but a
 * contribution. */
static lh_dtype_t part_dtype(const builder_t *b, uint32_t site)
{
    if (b->part != 0) return b->part;
    return world_group_site_size(b->g, site) == 1 ? b->how->dtype : LH_DTYPE_F32;
}

/* What this rank's site adds to a sum over sites: what it has in `carry`, which a site of one fills
 * here where its contribution has to be rounded, or the contribution as it lies. It is there after
 * u->carry_step. */
static script_view_t site_part(builder_t *b, build_unit_t *u)
{
    const script_view_t own = build_whole(b);
    const uint32_t site = b->g->site_of[b->self];
    if (world_group_site_size(b->g, site) > 1) return u->carry;
    if (part_dtype(b, site) == own.dtype) return own;
    u->used = sum_to_carry(b, u, &own, 1, true);
    return u->carry;
}

/* A site's part, from the owner's leader there to who adds. */
static void across_send(builder_t *b, uint32_t to, build_unit_t *u)
{
    const script_view_t part = site_part(b, u);
    const uint32_t sent = build_send(b, to, u, &part, 0, u->carry_step);
    if (part.buffer == BUFFER_WHOLE) u->used = sent;
    build_slot_end(b, u->carry_slot, sent);
}

/* The parts of all sites in one step, from the site behind the owner's round to the owner's own,
 * whose ever this site is. share: this site's part goes to all others too, which do the same. Then
 * its place is free again once all of them have it and it is added; and where the part is a
 * contribution that the result will overwrite, not before it has left. */
static void across_sum(builder_t *b, uint32_t owner, build_unit_t *u, bool share)
{
    const uint32_t home = b->g->site_of[owner], self = b->g->site_of[b->self], sites = b->g->sites;
    const script_view_t part = site_part(b, u);
    script_view_t *sources = mem_array(sites, sizeof(*sources));
    uint32_t *slots = mem_array((size_t)sites * 3, sizeof(*slots)), *arrived = slots + sites,
             *sent = arrived + sites;
    if (sources == NULL || slots == NULL) b->failed = true;
    for (uint32_t k = 0; !b->failed && k < sites; k++) {
        const uint32_t site = (home + k + 1) % sites;
        sent[k] = SCRIPT_NONE;
        if (site == self) {
            sources[k] = part;
            slots[k] = SCRIPT_NONE;
            arrived[k] = u->carry_step;
            continue;
        }
        const uint32_t from = world_group_leader(b->g, site, owner);
        if (share) sent[k] = build_send(b, from, u, &part, 0, u->carry_step);
        slots[k] = build_slot(b, POOL_IN, from, part_dtype(b, site), 0, &sources[k]);
        arrived[k] = build_recv(b, from, u, &sources[k], 0, SCRIPT_NONE);
        build_slot_use(b, slots[k], arrived[k]);
    }
    const uint32_t sum = b->failed ? SCRIPT_NONE : sum_to_result(b, u, sources, sites);
    for (uint32_t k = 0; !b->failed && k < sites; k++) {
        build_edge(b, arrived[k], sum);
        build_slot_end(b, slots[k], sum);
        if (part.buffer == BUFFER_WHOLE) build_edge(b, sent[k], sum);
    }
    uint32_t last = sum;
    if (!b->failed && share && u->carry_slot != SCRIPT_NONE) {
        last = build_join(b);
        build_edge(b, sum, last);
        for (uint32_t k = 0; k < sites; k++)
            build_edge(b, sent[k], last);
    }
    build_slot_end(b, u->carry_slot, last);
    mem_free(sources);
    mem_free(slots);
}

/* The second stage of a sum over several sites. */
static void sum_across(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t at = sums_at(b, owner);
    const bool leads = b->self == own_leader(b, owner);
    if (sums_everywhere(b) ? leads : b->self == at)
        across_sum(b, owner, u, sums_everywhere(b));
    else if (leads && b->g->site_of[at] != b->g->site_of[b->self])
        across_send(b, at, u);
}

/* The sum so far goes round the sites, from the one behind the owner's to it, and each adds its part
 * behind it: the order in which across_sum adds. In hop h it leaves the site h places behind the owner's;
 * the first hop carries that site's part, later ones partial sums in F32. */
static void across_ring(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0 && hop < b->g->sites);
    const uint32_t home = b->g->site_of[owner], sites = b->g->sites;
    const uint32_t from = world_group_leader(b->g, (home + hop) % sites, owner);
    const uint32_t to = world_group_leader(b->g, (home + hop + 1) % sites, owner);
    if (b->self == from && hop == 1) {
        across_send(b, to, u);
    } else if (b->self == from) {
        const uint32_t sent = build_send(b, to, u, &u->carry, 0, u->carry_step);
        build_slot_end(b, u->carry_slot, sent);
    }
    if (b->self != to) return;

    script_view_t sources[2] = {{0}, site_part(b, u)};
    const uint32_t before = u->carry_step, before_slot = u->carry_slot;
    const lh_dtype_t comes = hop == 1 ? part_dtype(b, b->g->site_of[from]) : LH_DTYPE_F32;
    const uint32_t slot = build_slot(b, POOL_IN, from, comes, 0, &sources[0]);
    const uint32_t arrived = build_recv(b, from, u, &sources[0], 0, SCRIPT_NONE);
    build_slot_use(b, slot, arrived);
    const uint32_t sum = to == owner ? sum_to_result(b, u, sources, 2)
                                     : sum_to_carry(b, u, sources, 2, false);
    build_edge(b, arrived, sum);
    build_edge(b, before, sum);
    build_slot_end(b, slot, sum);
    build_slot_end(b, before_slot, sum);
    if (sources[1].buffer == BUFFER_WHOLE) u->used = sum;
}

/* Recursive halving inside a site of 2^k members: another order of the sum, only where [comm] bits
 * = ordered. In hop h (from 1) members at distance size >> h exchange what the other half owns:
 * before it each holds partial sums of 2^(h-1) contributions, after it of 2^h, for half as many
 * owners. The sum is what came plus this rank's own, in this order. */
static void inside_halving(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0 && hop < 32);
    const uint32_t site = b->g->site_of[b->self], begin = b->g->site_begin[site];
    const uint32_t size = world_group_site_size(b->g, site), distance = size >> hop;
    if (distance == 0) return;
    const uint32_t me = b->self - begin, place = own_leader(b, owner) - begin;
    /* Those whose bits above `distance` are the owner's still hold a part of its sum. */
    if (((me ^ place) & ~(2 * distance - 1)) != 0) return;
    const uint32_t peer = begin + (me ^ distance);
    script_view_t mine = hop == 1 ? build_whole(b) : u->carry;
    if (((me ^ place) & distance) != 0) {
        const uint32_t sent = build_send(b, peer, u, &mine, 0, u->carry_step);
        if (hop == 1) u->used = sent;
        build_slot_end(b, u->carry_slot, sent);
        return;
    }
    const uint32_t before = u->carry_step, before_slot = u->carry_slot;
    script_view_t sources[2] = {{0}, mine};
    const uint32_t slot = build_slot(b, POOL_IN, peer, hop == 1 ? b->how->dtype : LH_DTYPE_F32, 0,
                                     &sources[0]);
    const uint32_t arrived = build_recv(b, peer, u, &sources[0], 0, SCRIPT_NONE);
    build_slot_use(b, slot, arrived);
    const uint32_t sum = distance == 1 && b->g->sites == 1
                             ? sum_to_result(b, u, sources, 2)
                             : sum_to_carry(b, u, sources, 2, distance == 1);
    build_edge(b, arrived, sum);
    build_edge(b, before, sum);
    build_slot_end(b, slot, sum);
    build_slot_end(b, before_slot, sum);
    if (hop == 1) u->used = sum;
}

void sums_phases(builder_t *b, phases_t *p)
{
    const uint32_t most = world_group_largest_site(b->g);
    uint32_t hops = 1;
    if (most > 1 && b->in->algorithm == COLL_RING) {
        for (hops = 1; hops < most; hops++)
            add_near_phase(p, inside_ring, hops, hops - 1, hops, hops + 1);
        p->lag += most - 2;
    } else if (most > 1 && b->in->algorithm == COLL_HALVING) {
        for (; most >> hops != 0; hops++)
            add_phase(p, inside_halving, hops, hops - 1);
        p->lag += hops - 2;
    } else if (most > 1 || b->g->sites == 1) {
        add_phase(p, inside_direct, 0, 0);
    }
    if (b->g->sites > 1) {
        if (most > 1) p->lag += b->in->lag;
        if (!sums_round(b)) add_near_phase(p, sum_across, 0, 0, 0, 0);
        for (uint32_t hop = 1; sums_round(b) && hop < b->g->sites; hop++)
            add_near_phase(p, across_ring, hop, (hop - 1) * b->in->lag, 0, 0);
        if (sums_round(b)) p->lag += (b->g->sites - 2) * b->in->lag;
    }
}

/* For little: everybody sends all it has to everybody, and sums each piece in its owner's order, so
 * that every rank gets the owner's bits. One message latency instead of two, for n / 2 times as
 * many bytes among n. */
void sums_at_once(builder_t *b)
{
    const uint32_t size = b->g->size;
    const uint64_t bytes = b->how->elements * b->element_bytes;
    script_view_t *sources = mem_array((size_t)size * 2, sizeof(*sources)), *by_member = sources;
    if (sources == NULL) b->failed = true;
    const script_view_t own = build_whole(b);
    const uint32_t first = b->s->step_count;
    for (uint32_t m = 0; !b->failed && m < size; m++) {
        by_member[m] = own;
        if (m == b->self) continue;
        (void)build_slot(b, POOL_IN, m, b->how->dtype, bytes, &by_member[m]);
        by_member[m].layout = LAYOUT_WHOLE;
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
}
