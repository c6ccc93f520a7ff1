/* script_make.c - makes a script: phases of the op and the algorithm, chunk after chunk. What follows a
 * sum trails it by some chunks, so that a link carries contributions while sums are made. */
#include <comm/script_make.h>

#include <base/memory.h>
#include <comm/script_build.h>
#include <longhaul/dtype.h>

/* What is done unit by unit: each phase follows the one before at a distance of `lag` units. */
typedef struct phase {
    void (*emit)(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u);
    uint32_t hop, lag;
} phase_t;
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

/* ---- moves ---- */

typedef struct transfer {
    uint32_t from, to;
    script_view_t source, place; /* as `from` and as `to` sees it in its own memory */
} transfer_t;

/* The same place in a mapped member's memory. */
static script_view_t view_at(uint32_t peer, const script_view_t *mine)
{
    script_view_t view = *mine;
    view.buffer = mine->buffer == BUFFER_CUT ? BUFFER_PEER_CUT : BUFFER_PEER_WHOLE;
    view.peer = peer;
    return view;
}

static void transfer(builder_t *b, build_unit_t *u, const transfer_t *t)
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
static void spread(builder_t *b, build_unit_t *u, uint32_t owner, uint32_t from, uint32_t to)
{
    const bool apart = b->how->op == COLL_ALL_GATHER && from == owner;
    const transfer_t t = {from, to, apart ? build_cut(b) : build_whole(b), build_whole(b)};
    transfer(b, u, &t);
}

static void spread_across(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    for (uint32_t site = 0; site < b->g->sites; site++)
        if (site != b->g->site_of[owner])
            spread(b, u, owner, owner, world_group_leader(b->g, site, owner));
}

/* Who has the piece first in this rank's site. */
static uint32_t first_holder(const builder_t *b, uint32_t owner)
{
    return world_group_leader(b->g, b->g->site_of[b->self], owner);
}

static uint32_t behind(const builder_t *b, uint32_t holder, uint32_t steps)
{
    lh_assert(holder < b->g->size);
    const uint32_t site = b->g->site_of[holder], begin = b->g->site_begin[site];
    return begin + (holder - begin + steps) % world_group_site_size(b->g, site);
}

static void spread_direct(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t holder = first_holder(b, owner),
                   size = world_group_site_size(b->g, b->g->site_of[b->self]);
    for (uint32_t k = 1; k < size; k++)
        spread(b, u, owner, holder, behind(b, holder, k));
}

static void spread_ring(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0);
    const uint32_t holder = first_holder(b, owner);
    if (hop >= world_group_site_size(b->g, b->g->site_of[b->self])) return;
    spread(b, u, owner, behind(b, holder, hop - 1), behind(b, holder, hop));
}

/* In round h (from 1) all who have it pass it on over a distance of 2^(h-1). */
static void spread_doubling(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0 && hop <= 32);
    const uint32_t holder = first_holder(b, owner),
                   size = world_group_site_size(b->g, b->g->site_of[b->self]);
    const uint32_t distance = 1u << (hop - 1);
    for (uint32_t k = 0; k < distance && k + distance < size; k++)
        spread(b, u, owner, behind(b, holder, k), behind(b, holder, k + distance));
}

static void keep_own(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    spread(b, u, owner, owner, owner);
}

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

static void move_scatter(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const transfer_t t = {b->how->root, owner, build_whole(b), build_cut(b)};
    transfer(b, u, &t);
}

static void move_gather(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const transfer_t t = {owner, b->how->root, build_cut(b), build_whole(b)};
    transfer(b, u, &t);
}

static uint64_t piece_elements(const builder_t *b, uint32_t owner)
{
    uint64_t elements = 0;
    for (uint32_t i = b->unit_begin[owner]; i < b->unit_begin[owner + 1]; i++)
        elements += b->units[i].elements;
    return elements;
}

/* Pieces of all members for `owner` stand in its cut in order of members. */
static void move_all_to_all(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint64_t bytes = piece_elements(b, owner) * b->element_bytes;
    for (uint32_t from = 0; from < b->g->size; from++) {
        transfer_t t = {from, owner, build_whole(b), build_cut(b)};
        t.place.layout = LAYOUT_PIECE;
        t.place.at = bytes * from;
        u->ready = u->used = SCRIPT_NONE;
        transfer(b, u, &t);
    }
}

/* `whole` of the sender to the whole of the receiver, who owns the only piece. */
static void move_pair(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t from = b->self == owner ? b->how->root : b->self;
    const transfer_t t = {from, owner, build_whole(b), build_whole(b)};
    transfer(b, u, &t);
}

static void moves_phases(builder_t *b, phases_t *p)
{
    switch (b->how->op) {
    case COLL_SCATTER: add_phase(p, move_scatter, 0, 0); return;
    case COLL_GATHER: add_phase(p, move_gather, 0, 0); return;
    case COLL_ALL_TO_ALL: add_phase(p, move_all_to_all, 0, 0); return;
    default: add_phase(p, move_pair, 0, 0); return;
    }
}

/* Signals between two ranks once all of first..end-1 are done. */
static void signal_after(builder_t *b, uint32_t from, uint32_t to, uint32_t first, uint32_t end)
{
    if (from == to || (from != b->self && to != b->self)) return;
    const uint32_t id = build_signal(b, from == b->self ? to : from, from == b->self, SCRIPT_NONE);
    if (from != b->self) return;
    for (uint32_t step = first; step < end; step++)
        build_edge(b, step, id);
}

/* Round after round, twice as far: in round h everybody knows of 2^h members. */
static void barrier_doubling(builder_t *b)
{
    const uint32_t size = b->g->size, self = b->self;
    for (uint32_t distance = 1; distance < size; distance *= 2) {
        const uint32_t known = b->s->step_count;
        signal_after(b, self, (self + distance) % size, 0, known);
        signal_after(b, (self + size - distance) % size, self, 0, 0);
    }
}

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
    /* To the first of the site, among the first of all sites, and back. */
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

/* The member `steps` behind `from`, round its site. */
static uint32_t round_site(const group_t *g, uint32_t from, uint32_t steps)
{
    lh_assert(from < g->size);
    const uint32_t begin = g->site_begin[g->site_of[from]],
                   size = world_group_site_size(g, g->site_of[from]);
    return begin + (from - begin + steps) % size;
}

static uint32_t own_leader(const builder_t *b, uint32_t owner)
{
    return world_group_leader(b->g, b->g->site_of[b->self], owner);
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
    (void)owner;
    mem_free(sources);
    mem_free(slots);
}

static void inside_direct(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t leader = own_leader(b, owner);
    if (world_group_site_size(b->g, b->g->site_of[b->self]) == 1 && b->g->sites > 1) return;
    if (b->self == leader)
        collect(b, owner, u);
    else
        contribute(b, leader, u);
}

/* The sum so far goes round the site, from the leader's next member to the leader. */
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

static void across_send(builder_t *b, uint32_t owner, build_unit_t *u)
{
    const script_view_t own = build_whole(b);
    if (world_group_site_size(b->g, b->g->site_of[b->self]) == 1) {
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
        add_phase(p, across, 0, 0);
    }
}

/* Everybody sends all it has to everybody, and sums each piece as its owner would. */
static void sums_at_once(builder_t *b)
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

/* ---- the script ---- */

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

static lh_status_t emit(builder_t *b)
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
    if (status == LH_OK) status = emit(&b);
    if (status == LH_OK) status = build_finish(&b);
    build_close(&b);
    if (status != LH_OK) script_free(out);
    return status;
}
