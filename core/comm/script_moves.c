/* script_moves.c - how what one member has reaches others: gathers, broadcasts, scatters, barriers.
 * Over a border it goes once, to the leader there, and then on inside. */
#include <comm/script_moves.h>

#include <base/memory.h>
#include <longhaul/dtype.h>

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
            spread(b, u, owner, owner, group_leader(b->g, site, owner));
}

/* Who has the piece first in this rank's site. */
static uint32_t first_holder(const builder_t *b, uint32_t owner)
{
    return group_leader(b->g, b->g->site_of[b->self], owner);
}

static uint32_t behind(const builder_t *b, uint32_t holder, uint32_t steps)
{
    lh_assert(holder < b->g->size);
    const uint32_t site = b->g->site_of[holder], begin = b->g->site_begin[site];
    return begin + (holder - begin + steps) % group_site_size(b->g, site);
}

static void spread_direct(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t holder = first_holder(b, owner),
                   size = group_site_size(b->g, b->g->site_of[b->self]);
    for (uint32_t k = 1; k < size; k++)
        spread(b, u, owner, holder, behind(b, holder, k));
}

static void spread_ring(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0);
    const uint32_t holder = first_holder(b, owner);
    if (hop >= group_site_size(b->g, b->g->site_of[b->self])) return;
    spread(b, u, owner, behind(b, holder, hop - 1), behind(b, holder, hop));
}

/* In round h (from 1) all who have it pass it on over a distance of 2^(h-1). */
static void spread_doubling(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0 && hop <= 32);
    const uint32_t holder = first_holder(b, owner),
                   size = group_site_size(b->g, b->g->site_of[b->self]);
    const uint32_t distance = 1u << (hop - 1);
    for (uint32_t k = 0; k < distance && k + distance < size; k++)
        spread(b, u, owner, behind(b, holder, k), behind(b, holder, k + distance));
}

static void keep_own(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    spread(b, u, owner, owner, owner);
}

void moves_spread(builder_t *b, phases_t *p)
{
    const uint32_t most = group_largest_site(b->g);
    if (b->how->op == COLL_ALL_GATHER) build_phase(p, keep_own, 0, 0);
    if (b->g->sites > 1) {
        build_phase(p, spread_across, 0, 0);
        if (most > 1) p->lag += b->in->lag;
    }
    if (most == 1) return;
    if (b->in->algorithm == COLL_RING)
        for (uint32_t hop = 1; hop < most; hop++)
            build_phase(p, spread_ring, hop, hop - 1);
    else if (b->in->algorithm == COLL_HALVING)
        for (uint32_t hop = 1; 1u << (hop - 1) < most; hop++)
            build_phase(p, spread_doubling, hop, hop - 1);
    else
        build_phase(p, spread_direct, 0, 0);
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

void moves_phases(builder_t *b, phases_t *p)
{
    switch (b->how->op) {
    case COLL_SCATTER: build_phase(p, move_scatter, 0, 0); return;
    case COLL_GATHER: build_phase(p, move_gather, 0, 0); return;
    case COLL_ALL_TO_ALL: build_phase(p, move_all_to_all, 0, 0); return;
    default: build_phase(p, move_pair, 0, 0); return;
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

void moves_barrier(builder_t *b)
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
