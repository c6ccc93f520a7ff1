/* script_make.c - makes a script: phases of the op and the algorithm, chunk after chunk.
 *
 * A sum goes up to the piece's owner and its result comes down again. Up: the members of each site
 * bring their contributions to the one who stands for the owner there, the owner's leader (in the
 * owner's site that is the owner itself), and the leaders of the other sites send one partial sum
 * each to the owner. Down: the owner sends the result to the leaders of the other sites, and they
 * and the owner pass it on inside. So every byte crosses a border once each way, however many ranks
 * a site has.
 *
 * With S bytes of buffer, R ranks in all, N sites, g = R / N ranks in each, and equal pieces, an
 * all-reduce sends over the link from one site to another, in one direction,
 *
 *    2 S / N            here: S for two sites, 0.67 S for three
 *    2 S (R - 1) / R    a ring through all ranks that crosses each border once
 *
 * and inside a site each rank sends 2 (g - 1) / g S, by ring and by direct messages alike (partial
 * sums travel as F32, so a ring of BF16 sends more). Where three sites lie in a chain, the link of
 * an outer site carries what that site sends to both others, 4/3 S in a direction; a sum at the
 * middle site would send S. That is not built.
 *
 * Pieces are cut into chunks, and phases follow each other at a distance of `lag` chunks, so that a
 * link carries the next contributions while this rank adds those that came. With stages that take
 * t_1, t_2, ... for one chunk, k chunks take about sum(t_i) + (k - 1) max(t_i), and not k sum(t_i).
 *
 * A phase is called for every unit on every rank and emits what this rank does in it, which may be
 * nothing. The order of the calls is the order of messages on all links, hence emit_phases never
 * asks which rank this is; only what a phase emits does. */
#include <comm/script_make.h>

#include <base/memory.h>
#include <comm/script_build.h>
#include <longhaul/dtype.h>

/* A part of the algorithm that is done unit by unit. `hop` is its number among those of a ring or
 * of a halving, from 1. It emits the steps of unit u of owner's piece `lag` units after the first
 * phase has. */
typedef struct phase {
    void (*emit)(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u);
    uint32_t hop, lag;
} phase_t;
/* Bounds the length of a ring: a ring of m members has m - 1 phases each way. */
enum { PHASES = 512 };
typedef struct phases {
    phase_t rows[PHASES];
    uint32_t count, lag; /* lag of what comes next */
} phases_t;

static void add_phase(phases_t *p, void (*emit)(builder_t *, uint32_t, uint32_t, build_unit_t *),
                      uint32_t hop, uint32_t lag)
{
    if (p->count < PHASES) p->rows[p->count++] = (phase_t){emit, hop, p->lag + lag};
}

/* ---- places in a site ---- */

/* The member `steps` behind `from`, round its site. The order of sums is counted by it:
 * round_site(g, x, 1) is the first contribution of a sum that ends at x. */
static uint32_t round_site(const group_t *g, uint32_t from, uint32_t steps)
{
    lh_assert(from < g->size);
    const uint32_t begin = g->site_begin[g->site_of[from]],
                   size = world_group_site_size(g, g->site_of[from]);
    return begin + (from - begin + steps) % size;
}

/* Who stands for the owner in this rank's site: where contributions of the site go, and who has the
 * result first here. */
static uint32_t own_leader(const builder_t *b, uint32_t owner)
{
    return world_group_leader(b->g, b->g->site_of[b->self], owner);
}

/* ---- moves ---- */

/* A unit that goes from one member to another. */
typedef struct transfer {
    uint32_t from, to;
    script_view_t source, place; /* as `from` and as `to` sees it in its own memory */
} transfer_t;

/* The same place in a mapped member's memory. All members cut their buffers alike, so offsets
 * agree. */
static script_view_t view_at(uint32_t peer, const script_view_t *mine)
{
    script_view_t view = *mine;
    view.buffer = mine->buffer == BUFFER_CUT ? BUFFER_PEER_CUT : BUFFER_PEER_WHOLE;
    view.peer = peer;
    return view;
}

/* What this rank does for a unit on its way: nothing, if it is at neither end. The first case is a
 * member that moves its own piece between its cut and its whole. Where memory is mapped no bytes
 * are sent: the sender says that its unit is ready, and the receiver copies it from there.
 *
 * Who receives writes over its own contribution in an all-reduce, so the copy or the receive waits
 * for u->used, the last step that reads that; what is passed on later waits for u->ready. */
static void unit_transfer(builder_t *b, build_unit_t *u, const transfer_t *t)
{
    if (t->from == t->to) {
        if (t->from != b->self || t->source.buffer == t->place.buffer) return;
        const uint32_t copy = build_copy(b, u, &t->place, &t->source);
        build_edge(b, u->ready, copy);
    } else if (t->from == b->self && build_mapped(b, t->to)) {
        (void)build_signal(b, t->to, true, u->ready);
        b->lent[t->to] = true;
    } else if (t->from == b->self) {
        (void)build_send(b, t->to, u, &t->source, u->ready);
    } else if (t->to == b->self && build_mapped(b, t->from)) {
        const uint32_t told = build_signal(b, t->from, false, SCRIPT_NONE);
        const script_view_t theirs = view_at(t->from, &t->source);
        u->ready = build_copy(b, u, &t->place, &theirs);
        build_edge(b, told, u->ready);
        build_edge(b, u->used, u->ready);
        build_reads(b, t->from, u->ready);
    } else if (t->to == b->self) {
        u->ready = build_recv(b, t->from, u, &t->place, u->used);
    }
}

/* Owners of a gather may hold their piece apart; who passes it on has it in its whole. */
static void unit_spread(builder_t *b, build_unit_t *u, uint32_t owner, uint32_t from, uint32_t to)
{
    const bool apart = b->how->op == COLL_ALL_GATHER && from == owner;
    const transfer_t t = {from, to, apart ? build_cut(b) : build_whole(b), build_whole(b)};
    unit_transfer(b, u, &t);
}

/* Over borders: from the owner to its leader in every other site. */
static void spread_across(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    for (uint32_t site = 0; site < b->g->sites; site++)
        if (site != b->g->site_of[owner])
            unit_spread(b, u, owner, owner, world_group_leader(b->g, site, owner));
}

/* Inside a site: from who has it first to all others. */
static void spread_direct(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t holder = own_leader(b, owner),
                   size = world_group_site_size(b->g, b->g->site_of[b->self]);
    for (uint32_t k = 1; k < size; k++)
        unit_spread(b, u, owner, holder, round_site(b->g, holder, k));
}

/* In hop h (from 1) the member h - 1 places behind the first holder sends to the next one. */
static void spread_ring(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0);
    const uint32_t holder = own_leader(b, owner);
    if (hop >= world_group_site_size(b->g, b->g->site_of[b->self])) return;
    unit_spread(b, u, owner, round_site(b->g, holder, hop - 1), round_site(b->g, holder, hop));
}

/* In round h (from 1) all who have it pass it on over a distance of 2^(h-1): log2(g) rounds,
 * rounded up, for g members. */
static void spread_doubling(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0 && hop <= 32);
    const uint32_t holder = own_leader(b, owner),
                   size = world_group_site_size(b->g, b->g->site_of[b->self]);
    const uint32_t distance = 1u << (hop - 1);
    for (uint32_t k = 0; k < distance && k + distance < size; k++)
        unit_spread(b, u, owner, round_site(b->g, holder, k),
                    round_site(b->g, holder, k + distance));
}

/* An all-gather from a cut: the owner's piece to the owner's own whole. */
static void keep_own(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    unit_spread(b, u, owner, owner, owner);
}

/* Phases of gathers, of broadcasts, and of the way down in an all-reduce. What came over a border
 * is passed on inside the site `lag` chunks after it was sent. */
static void moves_spread(builder_t *b, phases_t *p)
{
    const uint32_t most = world_group_largest_site(b->g);
    if (b->how->op == COLL_ALL_GATHER) add_phase(p, keep_own, 0, 0);
    if (b->g->sites > 1) {
        add_phase(p, spread_across, 0, 0);
        if (most > 1) p->lag += b->in->lag;
    }
    if (most == 1) return;
    if (b->in->algorithm == COLL_RING)
        for (uint32_t hop = 1; hop < most; hop++)
            add_phase(p, spread_ring, hop, hop - 1);
    else if (b->in->algorithm == COLL_HALVING)
        for (uint32_t hop = 1; 1u << (hop - 1) < most; hop++)
            add_phase(p, spread_doubling, hop, hop - 1);
    else
        add_phase(p, spread_direct, 0, 0);
}

/* Scatter, gather, all-to-all and pairs go directly, over borders too: each byte has one sender and
 * one receiver, so leaders would gain nothing. */
static void move_scatter(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const transfer_t t = {b->how->root, owner, build_whole(b), build_cut(b)};
    unit_transfer(b, u, &t);
}

static void move_gather(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const transfer_t t = {owner, b->how->root, build_cut(b), build_whole(b)};
    unit_transfer(b, u, &t);
}

/* Elements of a piece: how long each member's part is in the cut of an all-to-all. */
static uint64_t piece_elements(const builder_t *b, uint32_t owner)
{
    uint64_t elements = 0;
    for (uint32_t i = b->unit_begin[owner]; i < b->unit_begin[owner + 1]; i++)
        elements += b->units[i].elements;
    return elements;
}

/* Pieces of all members for `owner` stand in its cut in order of members. The same unit is moved
 * once from each member, so what one move left in it for later phases is forgotten before the
 * next. */
static void move_all_to_all(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint64_t bytes = piece_elements(b, owner) * b->element_bytes;
    for (uint32_t from = 0; from < b->g->size; from++) {
        transfer_t t = {from, owner, build_whole(b), build_cut(b)};
        t.place.layout = LAYOUT_PIECE;
        t.place.at = bytes * from;
        u->ready = u->used = SCRIPT_NONE;
        unit_transfer(b, u, &t);
    }
}

/* `whole` of the sender to the whole of the receiver, who owns the only piece. */
static void move_pair(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t from = b->self == owner ? b->how->root : b->self;
    const transfer_t t = {from, owner, build_whole(b), build_whole(b)};
    unit_transfer(b, u, &t);
}

/* Phases of the ops that only move. */
static void moves_phases(builder_t *b, phases_t *p)
{
    switch (b->how->op) {
    case COLL_SCATTER: add_phase(p, move_scatter, 0, 0); return;
    case COLL_GATHER: add_phase(p, move_gather, 0, 0); return;
    case COLL_ALL_TO_ALL: add_phase(p, move_all_to_all, 0, 0); return;
    default: add_phase(p, move_pair, 0, 0); return;
    }
}

/* This rank's half of a signal between two ranks; the sender's waits for all of the steps first to
 * end - 1. */
static void signal_after(builder_t *b, uint32_t from, uint32_t to, uint32_t first, uint32_t end)
{
    if (from == to || (from != b->self && to != b->self)) return;
    const uint32_t id = build_signal(b, from == b->self ? to : from, from == b->self, SCRIPT_NONE);
    if (from != b->self) return;
    for (uint32_t step = first; step < end; step++)
        build_edge(b, step, id);
}

/* Round after round, twice as far: after round h everybody knows of 2^h members, after log2(n) of
 * all. */
static void barrier_doubling(builder_t *b)
{
    const uint32_t size = b->g->size, self = b->self;
    for (uint32_t distance = 1; distance < size; distance *= 2) {
        const uint32_t known = b->s->step_count;
        signal_after(b, self, (self + distance) % size, 0, known);
        signal_after(b, (self + size - distance) % size, self, 0, 0);
    }
}

/* A barrier of one site is everybody's signal to everybody, or doubling where that would be many.
 * Over sites: to the first member of the site, among the first of all sites, and back. */
static void moves_barrier(builder_t *b)
{
    const group_t *g = b->g;
    if (b->in->algorithm == COLL_HALVING && g->sites == 1) {
        barrier_doubling(b);
        return;
    }
    const uint32_t begin = g->site_begin[g->site_of[b->self]];
    const uint32_t end = g->site_begin[g->site_of[b->self] + 1];
    if (g->sites == 1) {
        for (uint32_t from = begin; from < end; from++)
            for (uint32_t to = begin; to < end; to++)
                signal_after(b, from, to, 0, 0);
        return;
    }
    for (uint32_t m = begin + 1; m < end; m++)
        signal_after(b, m, begin, 0, 0);
    const uint32_t inside = b->s->step_count;
    for (uint32_t s = 0; b->self == begin && s < g->sites; s++)
        signal_after(b, begin, g->site_begin[s], 0, inside);
    for (uint32_t s = 0; b->self == begin && s < g->sites; s++)
        signal_after(b, g->site_begin[s], begin, 0, 0);
    const uint32_t all = b->s->step_count;
    for (uint32_t m = begin + 1; m < end; m++)
        signal_after(b, begin, m, 0, all);
}

/* ---- sums ---- */

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

/* A sum over sites, or the rest of a ring, is still to come: this partial sum goes into staging
 * memory and stays in F32 until then, so that it is rounded once. */
static uint32_t sum_to_carry(builder_t *b, build_unit_t *u, const script_view_t *sources,
                             uint32_t count)
{
    u->carry_slot = build_slot(b, POOL_SUM, b->self, 0, &u->carry);
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
    u->used = build_send(b, to, u, &own, SCRIPT_NONE);
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

/* A site's partial sum, from the leader to the owner. A site of one has no partial sum, but a
 * contribution. */
static void across_send(builder_t *b, uint32_t owner, build_unit_t *u)
{
    const script_view_t own = build_whole(b);
    if (world_group_site_size(b->g, b->g->site_of[b->self]) == 1) {
        u->used = build_send(b, owner, u, &own, SCRIPT_NONE);
        return;
    }
    build_slot_end(b, u->carry_slot, build_send(b, owner, u, &u->carry, u->carry_step));
}

/* At the owner: partial sums of all sites in one step, from its site's next round to its own. */
static void across_sum(builder_t *b, uint32_t owner, build_unit_t *u)
{
    const uint32_t home = b->g->site_of[owner], sites = b->g->sites;
    script_view_t *sources = mem_array(sites, sizeof(*sources));
    uint32_t *slots = mem_array((size_t)sites * 2, sizeof(*slots)), *arrived = slots + sites;
    if (sources == NULL || slots == NULL) b->failed = true;
    for (uint32_t k = 0; !b->failed && k < sites; k++) {
        const uint32_t site = (home + k + 1) % sites;
        const bool alone = world_group_site_size(b->g, site) == 1;
        if (site == home) {
            sources[k] = alone ? build_whole(b) : u->carry;
            slots[k] = alone ? SCRIPT_NONE : u->carry_slot;
            arrived[k] = u->carry_step;
            continue;
        }
        const uint32_t from = world_group_leader(b->g, site, owner);
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

/* The second stage of a sum over several sites. */
static void sum_across(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    if (b->self == owner)
        across_sum(b, owner, u);
    else if (b->g->site_of[owner] != b->g->site_of[b->self] && b->self == own_leader(b, owner))
        across_send(b, owner, u);
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

/* Phases of the way up. p->lag grows by what the last phase of the ring or the halving lags behind,
 * so that what follows counts from there. */
static void sums_phases(builder_t *b, phases_t *p)
{
    const uint32_t most = world_group_largest_site(b->g);
    uint32_t hops = 1;
    if (most > 1 && b->in->algorithm == COLL_RING) {
        for (hops = 1; hops < most; hops++)
            add_phase(p, inside_ring, hops, hops - 1);
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
        add_phase(p, sum_across, 0, 0);
    }
}

/* For little: everybody sends all it has to everybody, and sums each piece in its owner's order, so
 * that every rank gets the owner's bits. One message latency instead of two, for n / 2 times as
 * many bytes among n. */
static void sums_at_once(builder_t *b)
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
}

/* ---- the script ---- */

/* In tick t each phase works on its unit t - lag, of every piece. All ranks run these loops alike;
 * the label numbers unit and phase, and so is equal at both ends of a message. */
static void emit_phases(builder_t *b, const phases_t *p)
{
    lh_assert(p->count < PHASES);
    uint32_t most_lag = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->rows[i].lag > most_lag) most_lag = p->rows[i].lag;
    for (uint64_t tick = 0; tick < (uint64_t)b->most_units + most_lag; tick++)
        for (uint32_t i = 0; !b->failed && i < p->count; i++) {
            const uint64_t chunk = tick - p->rows[i].lag;
            if (tick < p->rows[i].lag || chunk >= b->most_units) continue;
            for (uint32_t o = 0; o < b->g->size; o++) {
                const uint64_t unit = b->unit_begin[o] + chunk;
                if (unit >= b->unit_begin[o + 1]) continue;
                b->label = (uint32_t)unit * PHASES + i + 1;
                p->rows[i].emit(b, p->rows[i].hop, o, &b->units[unit]);
            }
        }
}

/* The all-reduce is a reduce-scatter and a gather behind it, `lag` chunks later. */
static lh_status_t script_emit(builder_t *b)
{
    phases_t *p = mem_new(sizeof(*p));
    if (p == NULL) return LH_NO_MEMORY;
    switch (b->how->op) {
    case COLL_BARRIER: moves_barrier(b); break;
    case COLL_ALL_REDUCE:
        if (b->in->at_once) {
            sums_at_once(b);
            break;
        }
        sums_phases(b, p);
        if (b->g->size > 1) p->lag += b->in->lag;
        moves_spread(b, p);
        break;
    case COLL_REDUCE_SCATTER:
    case COLL_REDUCE: sums_phases(b, p); break;
    case COLL_ALL_GATHER:
    case COLL_BROADCAST: moves_spread(b, p); break;
    default: moves_phases(b, p); break;
    }
    const bool fits = p->count < PHASES;
    if (fits) emit_phases(b, p);
    b->label = 0;
    mem_free(p);
    if (!fits)
        return fail(LH_UNSUPPORTED, "'%s': a ring of %u members is too long; take direct",
                    b->how->name, b->g->size);
    return LH_OK;
}

lh_status_t script_new(const script_how_t *how, script_t *out)
{
    builder_t b;
    *out = (script_t){0};
    lh_status_t status = build_open(&b, how, out);
    if (status == LH_OK) status = script_emit(&b);
    if (status == LH_OK) status = build_finish(&b);
    build_close(&b);
    if (status != LH_OK) script_free(out);
    return status;
}
