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
 * sums travel as F32, so a ring of BF16 sends more). That way between sites is the MESH. In an
 * EXCHANGE leaders send their partial sum to those of all other sites, and each adds all: S over each
 * link, one latency instead of two. Where three sites lie in a chain, the link of an outer site
 * carries in a mesh what that site sends to both others, 4/3 S in a direction; as a CHAIN the middle
 * site adds, and it carries S. Where each site is joined to two others only, a RING uses those links
 * alone.
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
#include <comm/script_sums.h>
#include <longhaul/dtype.h>

/* ---- moves ---- */

/* A unit that goes from one member to another. */
typedef struct transfer {
    uint32_t from, to;
    script_view_t source, place; /* as `from` and as `to` sees it in its own memory */
    lh_dtype_t wire;             /* as it travels; 0: as it is stored              */
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
        (void)build_send(b, t->to, u, &t->source, t->wire, u->ready);
    } else if (t->to == b->self && build_mapped(b, t->from)) {
        const uint32_t told = build_signal(b, t->from, false, SCRIPT_NONE);
        const script_view_t theirs = view_at(t->from, &t->source);
        u->ready = build_copy(b, u, &t->place, &theirs);
        build_edge(b, told, u->ready);
        build_edge(b, u->used, u->ready);
        build_reads(b, t->from, u->ready);
    } else if (t->to == b->self) {
        u->ready = build_recv(b, t->from, u, &t->place, t->wire, u->used);
    }
}

/* Owners of a gather may hold their piece apart; who passes it on has it in its whole. A sum that
 * crosses a border has been rounded to its dtype, so that nothing is lost on the way. */
static void unit_spread(builder_t *b, build_unit_t *u, uint32_t owner, uint32_t from, uint32_t to)
{
    const bool apart = b->how->op == COLL_ALL_GATHER && from == owner;
    const bool crosses = b->g->site_of[from] != b->g->site_of[to];
    const transfer_t t = {from, to, apart ? build_cut(b) : build_whole(b), build_whole(b),
                          crosses ? b->border : 0};
    unit_transfer(b, u, &t);
}

/* Over borders: from who has it first, the owner but in a chain, to the owner's leaders in all other
 * sites. */
static void spread_across(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t first = sums_at(b, owner);
    for (uint32_t site = 0; site < b->g->sites; site++)
        if (site != b->g->site_of[first])
            unit_spread(b, u, owner, first, world_group_leader(b->g, site, owner));
}

/* In hop h (from 1) the site h - 1 places behind the owner's sends to the next one. */
static void spread_round(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    lh_assert(hop > 0);
    const uint32_t home = b->g->site_of[owner], sites = b->g->sites;
    unit_spread(b, u, owner, world_group_leader(b->g, (home + hop - 1) % sites, owner),
                world_group_leader(b->g, (home + hop) % sites, owner));
}

/* Inside a site: from who has it first to all others. */
static void spread_direct(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const uint32_t holder = own_leader(b, owner),
                   size = world_group_site_size(b->g, b->g->site_of[b->self]);
    if (holder != b->self) unit_spread(b, u, owner, holder, b->self);
    for (uint32_t k = 1; holder == b->self && k < size; k++)
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
    if (b->how->op == COLL_ALL_GATHER && b->how->device == NULL)
        add_near_phase(p, keep_own, 0, 0, 0, 0);
    if (b->g->sites > 1 && !sums_everywhere(b)) {
        if (!sums_round(b)) add_near_phase(p, spread_across, 0, 0, 0, 0);
        for (uint32_t hop = 1; sums_round(b) && hop < b->g->sites; hop++)
            add_near_phase(p, spread_round, hop, (hop - 1) * b->in->lag, 0, 0);
        if (sums_round(b)) p->lag += (b->g->sites - 2) * b->in->lag;
        if (most > 1) p->lag += b->in->lag;
    }
    if (most == 1) return;
    if (b->in->algorithm == COLL_RING)
        for (uint32_t hop = 1; hop < most; hop++)
            add_near_phase(p, spread_ring, hop, hop - 1, hop - 1, hop);
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
    const transfer_t t = {b->how->root, owner, build_whole(b), build_cut(b), 0};
    unit_transfer(b, u, &t);
}

static void move_gather(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u)
{
    (void)hop;
    const transfer_t t = {owner, b->how->root, build_cut(b), build_whole(b), 0};
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
        transfer_t t = {from, owner, build_whole(b), build_cut(b), 0};
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
    const transfer_t t = {from, owner, build_whole(b), build_whole(b), 0};
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

/* ---- the script ---- */

/* The members of the group by who stands for them in this rank's site: those of a leader are by[begin[p]]
 * to by[begin[p + 1] - 1], in order, where p is the leader's place in the site. */
typedef struct led {
    uint32_t *begin, *by;
} led_t;

static void led_free(led_t *l)
{
    mem_free(l->begin);
    mem_free(l->by);
}

/* Counts a place behind, then is summed up and filled one place early, so that begin[p] is right in the
 * end. */
static bool led_make(const builder_t *b, led_t *out)
{
    const group_t *g = b->g;
    const uint32_t site = g->site_of[b->self], size = world_group_site_size(g, site);
    *out = (led_t){mem_array((size_t)size + 2, sizeof(*out->begin)),
                   mem_array(g->size, sizeof(*out->by))};
    if (out->begin == NULL || out->by == NULL) return false;
    for (uint32_t o = 0; o < g->size; o++)
        out->begin[own_leader(b, o) - g->site_begin[site] + 2]++;
    for (uint32_t p = 2; p < size + 2; p++)
        out->begin[p] += out->begin[p - 1];
    for (uint32_t o = 0; o < g->size; o++)
        out->by[out->begin[own_leader(b, o) - g->site_begin[site] + 1]++] = o;
    return true;
}

/* The unit of one piece in a phase. The label numbers unit and phase, and so is equal at both ends of a
 * message. */
static void emit_unit(builder_t *b, const phases_t *p, uint32_t phase, uint32_t owner,
                      uint64_t chunk)
{
    const uint64_t unit = b->unit_begin[owner] + chunk;
    if (unit >= b->unit_begin[owner + 1]) return;
    b->label = (uint32_t)unit * PHASES + phase + 1;
    p->rows[phase].emit(b, p->rows[phase].hop, owner, &b->units[unit]);
}

/* Owners in order, of two leaders merged: the order in which all would be gone through. */
static void emit_near(builder_t *b, const phases_t *p, const led_t *l, uint32_t phase,
                      uint64_t chunk)
{
    const phase_t *row = &p->rows[phase];
    const uint32_t site = b->g->site_of[b->self], size = world_group_site_size(b->g, site);
    uint32_t at[2], end[2];
    for (int i = 0; i < 2; i++) {
        const uint32_t place = (b->self - b->g->site_begin[site] + size - row->back[i] % size) %
                               size;
        at[i] = l->begin[place];
        end[i] = l->begin[place + 1];
    }
    if (row->back[0] % size == row->back[1] % size) at[1] = end[1];
    while (at[0] < end[0] || at[1] < end[1]) {
        const int next = at[1] == end[1] || (at[0] < end[0] && l->by[at[0]] < l->by[at[1]]) ? 0 : 1;
        emit_unit(b, p, phase, l->by[at[next]++], chunk);
    }
}

/* In tick t each phase works on its unit t - lag, of every piece. All ranks run these loops alike, but
 * for pieces with which a phase would do nothing here. */
static void emit_phases(builder_t *b, const phases_t *p, const led_t *l)
{
    lh_assert(p->count < PHASES);
    uint32_t most_lag = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->rows[i].lag > most_lag) most_lag = p->rows[i].lag;
    for (uint64_t tick = 0; tick < (uint64_t)b->most_units + most_lag; tick++)
        for (uint32_t i = 0; !b->failed && i < p->count; i++) {
            const uint64_t chunk = tick - p->rows[i].lag;
            if (tick < p->rows[i].lag || chunk >= b->most_units) continue;
            if (p->rows[i].near) emit_near(b, p, l, i, chunk);
            for (uint32_t o = 0; !p->rows[i].near && o < b->g->size; o++)
                emit_unit(b, p, i, o, chunk);
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
    led_t led = {0};
    if (!led_make(b, &led)) b->failed = true;
    if (fits) emit_phases(b, p, &led);
    b->label = 0;
    led_free(&led);
    mem_free(p);
    if (!fits)
        return fail(LH_UNSUPPORTED, "'%s': a ring of %u members is too long; take direct",
                    b->how->name, b->g->size);
    return LH_OK;
}

/* The processor can't reach a device's memory, so nothing there may be copied or summed; and nothing is
 * passed on: no message waits for another. */
static bool script_only_moves(const script_t *s)
{
    for (uint32_t i = 0; i < s->step_count; i++)
        if (s->steps[i].kind >= STEP_SUM || s->steps[i].needs > 0) return false;
    return true;
}

lh_status_t script_new(const script_how_t *how, script_t *out)
{
    builder_t b;
    *out = (script_t){0};
    lh_status_t status = build_open(&b, how, out);
    if (status == LH_OK) status = script_emit(&b);
    if (status == LH_OK) status = build_finish(&b);
    build_close(&b);
    lh_assert(status != LH_OK || how->how->device == NULL || script_only_moves(out));
    if (status != LH_OK) script_free(out);
    return status;
}
