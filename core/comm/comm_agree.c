/* comm_agree.c - before the first run: all ranks plan the same, choose alike, and every message has
 * its match.
 *
 * A difference between ranks would show as a wait without end or as wrong sums, in the middle of a
 * run. So it is looked for before step 0, in two rounds. Ranks first compare digests, one row for
 * each group that a rank is in; only where these differ do they send a row for each plan, to say in
 * words what differs. After the scripts are made, they compare messages: over all pairs of ranks
 * the digests of what is sent, less those of what is awaited, must come to nothing.
 *
 * The choice of algorithm and chunk is at the end: by size, by who can map whom, by the link. It
 * depends only on what is the same on all ranks, so that nobody has to be told what was chosen. */
#include <comm/comm_agree.h>

#include <stdio.h>

#include <base/digest.h>
#include <base/memory.h>
#include <comm/coll.h>
#include <comm/quantize.h>
#include <links/link_crowd.h>
#include <longhaul/dtype.h>

enum { NAME_BYTES = 56 };

/* A plan as it travels where summaries differ. */
typedef struct plan_row { /* as it travels */
    uint64_t key, digest;
    plan_place_t place;
    char name[NAME_BYTES];
} plan_row_t;

/* How one rank fared, for all to end alike. */
typedef struct verdict {
    lh_status_t status;
    char sentence[300];
} verdict_t;

lh_status_t comm_gather(comm_t *c, const void *mine, size_t bytes, void *all)
{
    if (c->world->row.size > 1) return control_gather(c->control, mine, bytes, all);
    memcpy(all, mine, bytes);
    return LH_OK;
}

/* The lowest rank's failure counts. It is a gather, so all ranks come here, also those that
 * failed. */
lh_status_t comm_ask(comm_t *c, lh_status_t mine, lh_status_t *of_all)
{
    verdict_t own = {.status = mine};
    const uint32_t size = c->world->row.size;
    *of_all = LH_OK;
    if (mine != LH_OK) (void)snprintf(own.sentence, sizeof(own.sentence), "%s", fail_reason());
    verdict_t *all = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = comm_gather(c, &own, sizeof(own), all);
    for (uint32_t r = 0; status == LH_OK && *of_all == LH_OK && r < size; r++) {
        all[r].sentence[sizeof(all[r].sentence) - 1] = '\0';
        if (all[r].status != LH_OK) *of_all = fail_again(all[r].status, all[r].sentence);
    }
    mem_free(all);
    return status;
}

lh_status_t comm_verdict(comm_t *c, lh_status_t mine)
{
    lh_status_t of_all;
    const lh_status_t status = comm_ask(c, mine, &of_all);
    return status == LH_OK ? of_all : status;
}

/* Chains digests: order matters. */
static uint64_t plan_digest_mix(uint64_t digest, uint64_t value)
{
    const uint64_t pair[2] = {digest, value};
    return digest_xxh3(pair, sizeof(pair));
}

/* A send of one is the receive of the other: both belong to their pair, from sender to receiver.
 * Other plans belong to their list of ranks and its division into sites. */
uint64_t comm_key(const coll_how_t *how, const world_t *w)
{
    const group_t *g = how->group;
    if (!coll_op_is_pair(how->op))
        return plan_digest_mix(digest_xxh3(g->ranks, g->size * sizeof(*g->ranks)), g->sites);
    const uint32_t from = how->op == COLL_SEND ? w->row.rank : g->ranks[how->root];
    const uint32_t to = how->op == COLL_SEND ? g->ranks[how->root] : w->row.rank;
    return plan_digest_mix(from, (uint64_t)1 << 32 | to);
}

/* All that must be the same on every rank of the group, and the settings that the choice depends
 * on. A pair's two ops count as one, and its root and its piece not at all: each end names the
 * other as its root, and the piece is the whole, to the receiver. */
static uint64_t plan_digest(const collective_t *x)
{
    const coll_how_t *how = &x->how;
    const job_comm_t *job = &x->comm->job->comm;
    const bool pair = coll_op_is_pair(how->op);
    const uint64_t rows[] = {pair ? COLL_SEND : how->op,
                             how->dtype,
                             how->border,
                             pair ? 0 : how->root,
                             how->elements,
                             how->cut.address != NULL,
                             how->add,
                             how->device != NULL,
                             how->service,
                             how->algorithm,
                             how->between,
                             how->chunk_bytes,
                             job->bits,
                             job->algorithm,
                             job->between_sites,
                             job->chunk_bytes,
                             digest_xxh3(x->name, strlen(x->name))};
    uint64_t digest = digest_xxh3(rows, sizeof(rows));
    for (uint32_t o = 0; !pair && how->op != COLL_BARRIER && o < how->group->size; o++)
        digest = plan_digest_mix(digest,
                                 digest_xxh3(x->pieces[o].segments,
                                             x->pieces[o].count * sizeof(*x->pieces[o].segments)));
    return digest;
}

/* From an address to an arena and an offset in it: arenas have the same numbers on all ranks, while
 * addresses differ. */
static void place_locate(const comm_t *c, const coll_place_t *p, uint32_t *arena, uint64_t *offset)
{
    *arena = PLAN_NOWHERE;
    *offset = 0;
    if (p->address == NULL || p->arena >= c->arena_count) return;
    *arena = p->arena;
    *offset = (uint64_t)((char *)p->address - c->arenas[p->arena].base);
}

void comm_place(const collective_t *x, plan_place_t *out)
{
    place_locate(x->comm, &x->how.whole, &out->whole_arena, &out->whole);
    place_locate(x->comm, &x->how.cut, &out->cut_arena, &out->cut);
}

static void fill_rows(const comm_t *c, plan_row_t *rows)
{
    for (uint32_t i = 0; i < c->plan_count; i++) {
        const collective_t *x = c->plans[i];
        rows[i] = (plan_row_t){.key = x->key, .digest = plan_digest(x)};
        comm_place(x, &rows[i].place);
        (void)snprintf(rows[i].name, NAME_BYTES, "%s", x->doing);
    }
}

/* The n-th row with this key, or NULL. */
static const plan_row_t *find_row(const plan_row_t *rows, uint32_t count, uint64_t key, uint32_t n)
{
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].key == key && n-- == 0) return &rows[i];
    return NULL;
}

/* The sentence for a plan that `rank` does not have, has under another name, or has otherwise. */
static lh_status_t plan_refuse(const comm_t *c, const collective_t *x, uint32_t rank,
                               const plan_row_t *theirs)
{
    char who[160], self[160];
    world_rank_text(c->world, rank, who, sizeof(who));
    world_rank_text(c->world, c->world->row.rank, self, sizeof(self));
    if (theirs == NULL)
        return fail(LH_MISMATCH, "%s plans the %s, %s does not", self, x->doing, who);
    if (strncmp(theirs->name, x->doing, NAME_BYTES - 1) != 0)
        return fail(LH_MISMATCH, "where %s plans the %s, %s plans the %.*s", self, x->doing, who,
                    NAME_BYTES - 1, theirs->name);
    return fail(LH_MISMATCH, "%s and %s plan the %s with other sizes, pieces or settings", self,
                who, x->doing);
}

/* Holds a plan against the same one of every other member: the n-th of the key, if it is the n-th
 * here. */
static lh_status_t match_plan(comm_t *c, collective_t *x, const plan_row_t *all, uint32_t most)
{
    const group_t *g = x->how.group;
    const plan_row_t *mine = &all[(size_t)c->world->row.rank * most];
    for (uint32_t m = 0; m < g->size; m++) {
        const bool pair = coll_op_is_pair(x->how.op);
        if (m == g->self) x->places[m] = mine[x->index].place;
        if (m == g->self || (pair && m != x->how.root)) continue;
        const plan_row_t *row = find_row(&all[(size_t)g->ranks[m] * most], most, x->key, x->number);
        if (row == NULL || row->digest != mine[x->index].digest)
            return plan_refuse(c, x, g->ranks[m], row);
        x->places[m] = row->place;
    }
    return LH_OK;
}

/* Row by row, where summaries differ: names what does, and learns where others' buffers lie.
 * Summaries may differ in places alone, which is no fault. */
static lh_status_t compare_rows(comm_t *c)
{
    const uint32_t size = c->world->row.size;
    uint64_t *counts = mem_array(size, sizeof(*counts)), mine = c->plan_count, most = 1;
    plan_row_t *rows = NULL, *all = NULL;
    lh_status_t status = counts == NULL ? LH_NO_MEMORY
                                        : comm_gather(c, &mine, sizeof(mine), counts);
    for (uint32_t r = 0; status == LH_OK && r < size; r++)
        if (counts[r] > most) most = counts[r];
    if (status == LH_OK) {
        rows = mem_array(most, sizeof(*rows));
        all = mem_array(most * size, sizeof(*all));
        if (rows == NULL || all == NULL) status = LH_NO_MEMORY;
    }
    if (status == LH_OK) {
        fill_rows(c, rows);
        status = comm_gather(c, rows, most * sizeof(*rows), all);
    }
    lh_status_t matched = status;
    for (uint32_t i = 0; matched == LH_OK && i < c->plan_count; i++)
        matched = match_plan(c, c->plans[i], all, (uint32_t)most);
    if (status == LH_OK) status = comm_verdict(c, matched);
    mem_free(rows);
    mem_free(all);
    mem_free(counts);
    return status;
}

/* All plans of a group, in order: what ranks compare grows with the groups that they are in, not
 * with the plans. */
typedef struct key_row {
    uint64_t key, plans;     /* key 0: no group */
    uint64_t digest, places; /* of the plans, and of where this rank's buffers of them lie */
    uint64_t ranks;          /* that have the group */
} key_row_t;

/* How many ranks must have a row of the plan's key. */
static uint64_t ranks_of(const collective_t *x)
{
    return coll_op_is_pair(x->how.op) ? 2 : x->how.group->size;
}

/* One row for each group of this rank's plans. rows: [plan_count]. Returns how many there are. */
static uint32_t sum_up(const comm_t *c, key_row_t *rows)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->plan_count; i++) {
        const collective_t *x = c->plans[i];
        plan_place_t place;
        uint32_t k = 0;
        while (k < count && rows[k].key != x->key)
            k++;
        if (k == count) rows[count++] = (key_row_t){.key = x->key, .ranks = ranks_of(x)};
        comm_place(x, &place);
        rows[k].plans++;
        rows[k].digest = plan_digest_mix(rows[k].digest, plan_digest(x));
        rows[k].places = plan_digest_mix(rows[k].places, digest_xxh3(&place, sizeof(place)));
    }
    return count;
}

static bool is_alike(const key_row_t *a, const key_row_t *b)
{
    return a->plans == b->plans && a->digest == b->digest && a->places == b->places;
}

/* Whether every group's ranks say the same of it, and all of them do. All ranks see the same rows
 * and so agree on the answer. */
static bool all_alike(const key_row_t *rows, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t ranks = 0;
        if (rows[i].key == 0) continue;
        for (uint64_t k = 0; k < count; k++) {
            if (rows[k].key != rows[i].key) continue;
            if (!is_alike(&rows[i], &rows[k])) return false;
            ranks++;
        }
        if (ranks != rows[i].ranks) return false;
    }
    return true;
}

/* Brings the rows of all ranks together. Ranks have different numbers of groups, so the largest
 * number is gathered first, and rows of key 0 fill up. */
static lh_status_t gather_keys(comm_t *c, const key_row_t *mine, uint64_t count, bool *alike)
{
    const uint32_t size = c->world->row.size;
    uint64_t *counts = mem_array(size, sizeof(*counts)), most = 1;
    lh_status_t status = counts == NULL ? LH_NO_MEMORY
                                        : comm_gather(c, &count, sizeof(count), counts);
    for (uint32_t r = 0; status == LH_OK && r < size; r++)
        if (counts[r] > most) most = counts[r];
    mem_free(counts);
    if (status != LH_OK) return status;
    key_row_t *own = mem_array(most, sizeof(*own)), *all = mem_array(most * size, sizeof(*all));
    if (own == NULL || all == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK) {
        memcpy(own, mine, count * sizeof(*own));
        status = comm_gather(c, own, most * sizeof(*own), all);
    }
    if (status == LH_OK) *alike = all_alike(all, most * size);
    mem_free(own);
    mem_free(all);
    return status;
}

/* Where all is alike, others' buffers lie where this rank's do: nothing more has to travel. */
lh_status_t comm_agree_plans(comm_t *c)
{
    bool alike = false;
    key_row_t *rows = mem_array(c->plan_count + 1u, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    lh_status_t status = gather_keys(c, rows, sum_up(c, rows), &alike);
    mem_free(rows);
    if (status != LH_OK || !alike) return status == LH_OK ? compare_rows(c) : status;
    for (uint32_t i = 0; i < c->plan_count; i++) {
        collective_t *x = c->plans[i];
        for (uint32_t m = 0; m < x->how.group->size; m++)
            comm_place(x, &x->places[m]); /* the others' are the same */
    }
    return LH_OK;
}

void comm_map_peers(collective_t *x)
{
    for (uint32_t m = 0; m < x->how.group->size; m++) {
        const plan_place_t *p = &x->places[m];
        const link_t *k = links_find(x->comm->links, x->how.group->ranks[m], x->how.service);
        char *whole = k == NULL ? NULL : (char *)(uintptr_t)link_map(k, p->whole_arena);
        char *cut = k == NULL ? NULL : (char *)(uintptr_t)link_map(k, p->cut_arena);
        x->peers[m] = (script_peer_t){.whole = whole == NULL ? NULL : whole + p->whole,
                                      .cut = cut == NULL ? NULL : cut + p->cut};
    }
}

/* Of the messages between this rank and one other. */
typedef struct lane_row {
    uint64_t sent, received; /* digests over all plans */
} lane_row_t;

/* With `peer` of the world, over all plans that have it. Plans of both directions stand in another order
 * at either end, so answers, which have an order of their own, are digested by themselves. */
static lane_row_t lane_row(const comm_t *c, uint32_t peer)
{
    lane_row_t most = {0}, answers = {0};
    for (uint32_t i = 0; i < c->plan_count; i++) {
        const collective_t *x = c->plans[i];
        for (uint32_t m = 0; m < x->how.group->size; m++) {
            if (x->how.group->ranks[m] != peer) continue;
            most.sent = script_lane_digest(x->script, m, true, false, most.sent);
            most.received = script_lane_digest(x->script, m, false, false, most.received);
            answers.sent = script_lane_digest(x->script, m, true, true, answers.sent);
            answers.received = script_lane_digest(x->script, m, false, true, answers.received);
        }
    }
    return (lane_row_t){plan_digest_mix(most.sent, answers.sent),
                        plan_digest_mix(most.received, answers.received)};
}

/* All rows of all ranks travel only now, to find the pair that differs. */
static lh_status_t name_difference(comm_t *c, const lane_row_t *mine)
{
    const uint32_t size = c->world->row.size;
    lane_row_t *all = mem_array((size_t)size * size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = comm_gather(c, mine, size * sizeof(*mine), all);
    for (uint32_t a = 0; status == LH_OK && a < size; a++)
        for (uint32_t b = 0; status == LH_OK && b < size; b++)
            if (all[(size_t)a * size + b].sent != all[(size_t)b * size + a].received)
                status = fail(LH_MISMATCH,
                              "what rank %u would send to rank %u is not what that one awaits", a,
                              b);
    mem_free(all);
    return status != LH_OK ? status : fail(LH_MISMATCH, "ranks plan other messages");
}

/* Each rank adds the digests of what it sends, each made different by its pair of ranks, and takes
 * off those of what it awaits. Over all ranks every term meets its opposite, and the total is
 * nothing unless some list differs: 8 bytes a rank. */
lh_status_t comm_agree_lanes(comm_t *c)
{
    const uint32_t size = c->world->row.size, self = c->world->row.rank;
    lane_row_t *mine = mem_array(size, sizeof(*mine));
    uint64_t *sums = mem_array(size, sizeof(*sums)), sum = 0, total = 0;
    lh_status_t status = mine == NULL || sums == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t p = 0; status == LH_OK && p < size; p++) {
        mine[p] = lane_row(c, p);
        const uint64_t pair_out = (uint64_t)self << 32 | p, pair_in = (uint64_t)p << 32 | self;
        if (p != self)
            sum += plan_digest_mix(pair_out, mine[p].sent) -
                   plan_digest_mix(pair_in, mine[p].received);
    }
    if (status == LH_OK) status = comm_gather(c, &sum, sizeof(sum), sums);
    for (uint32_t p = 0; status == LH_OK && p < size; p++)
        total += sums[p];
    if (status == LH_OK && total != 0) status = name_difference(c, mine);
    mem_free(mine);
    mem_free(sums);
    return status;
}

/* ---- the choice of an algorithm ---- */

/* Where one algorithm overtakes the other. Bytes are those of the whole buffer but for
 * RING_BYTES. */
enum {
    AT_ONCE_BYTES = 8 << 10, /* up to here one message latency beats everything */
    AT_ONCE_MEMBERS = 16,
    MAP_BYTES = 16 << 10,  /* from here on a copy costs more than two signals */
    MANY_MEMBERS = 8,      /* more would all send to one at the same time     */
    RING_BYTES = 64 << 10, /* a member: from here on bytes count, not messages */
    LONGEST_RING = 128,
    MOST_CHUNKS = 4096,
};

/* By LH_LINK_*: node, site, wan; index 0 is a group of one rank. Bytes. */
static const uint64_t chunk_by_scope[COMM_SCOPES] = {1 << 20, 256 << 10, 512 << 10, 4 << 20};
/* Of mapped memory: a chunk costs the same signals whatever its length, so it is longer than the
 * messages of a node. */
static const uint64_t map_chunk = 2 << 20;

/* The farthest class of link that the group has, seen from its first member. */
static uint32_t widest_scope(const world_t *w, const group_t *g)
{
    uint32_t widest = 0;
    for (uint32_t m = 1; m < g->size; m++) {
        const uint32_t scope = world_scope(w, g->ranks[0], g->ranks[m]);
        if (scope > widest) widest = scope;
    }
    return widest;
}

/* Halving needs 2^k members in every site. */
static bool halves_evenly(const group_t *g)
{
    for (uint32_t s = 0; s < g->sites; s++) {
        const uint32_t size = world_group_site_size(g, s);
        if ((size & (size - 1)) != 0) return false;
    }
    return true;
}

/* `bytes` of the whole buffer. Mapped memory is always read directly: nobody forwards what all can
 * see. */
static uint32_t best_algorithm(const coll_how_t *how, uint64_t bytes, bool mapped)
{
    const uint32_t most = world_group_largest_site(how->group);
    if (mapped || most <= 2) return COLL_DIRECT;
    if (how->op == COLL_BARRIER) return most > MANY_MEMBERS ? COLL_HALVING : COLL_DIRECT;
    /* Each member talks to two others only, and a root sends or takes the whole just once. */
    if (bytes >= (uint64_t)RING_BYTES * most) return COLL_RING;
    return how->op == COLL_BROADCAST && most > 4 ? COLL_HALVING : COLL_DIRECT;
}

/* What was asked for counts first, then [comm] algorithm, then the rule. What can't be kept by that
 * algorithm (the canonical order, a site of another size, a ring that is too long) falls back to
 * direct messages, which scatters, gathers, all-to-alls and pairs always are. */
static uint32_t choose_algorithm(const collective_t *x, uint64_t bytes, bool mapped)
{
    const coll_how_t *how = &x->how;
    const job_comm_t *job = &x->comm->job->comm;
    uint32_t algorithm = how->algorithm != COLL_AUTO ? how->algorithm : job->algorithm;
    if (algorithm == COLL_AUTO) algorithm = best_algorithm(how, bytes, mapped);
    if (algorithm == COLL_HALVING && coll_op_sums(how->op) &&
        (job->bits != BITS_ORDERED || !halves_evenly(how->group)))
        algorithm = COLL_DIRECT;
    if (algorithm == COLL_RING && world_group_largest_site(how->group) > LONGEST_RING)
        algorithm = COLL_DIRECT;
    if (how->device != NULL) algorithm = COLL_DIRECT;
    const bool moves = how->op == COLL_SCATTER || how->op == COLL_GATHER ||
                       how->op == COLL_ALL_TO_ALL || coll_op_is_pair(how->op);
    return moves ? COLL_DIRECT : algorithm;
}

/* Bytes that the longest link of a group holds: the round trip (s) times the rate (bytes/s). 0: the
 * group has none, or nothing was measured. */
static double longest_flight(const collective_t *x, const comm_facts_t *all, uint32_t scope)
{
    double flight = 0;
    for (uint32_t m = 0; scope == LH_LINK_WAN && m < x->how.group->size; m++) {
        const link_figures_t *f = &all[x->how.group->ranks[m]].figures[scope];
        const double bytes = (double)f->round_trip_ns * 1e-9 * (double)f->bytes_per_second;
        if (bytes > flight) flight = bytes;
    }
    return flight;
}

/* What was asked for, else what is good for links of the class; on a long link at least a quarter of
 * its flight, up to 16 MiB. Chunks also grow until a buffer has no more than MOST_CHUNKS. */
static uint64_t choose_chunk(const collective_t *x, double flight, uint32_t scope, bool mapped)
{
    lh_assert(scope < COMM_SCOPES);
    const uint64_t asked = x->how.chunk_bytes != 0 ? x->how.chunk_bytes
                                                   : x->comm->job->comm.chunk_bytes;
    if (asked != 0) return asked;
    uint64_t chunk = mapped ? map_chunk : chunk_by_scope[scope];
    while ((double)chunk < flight / 4 && chunk < (16 << 20))
        chunk *= 2;
    const uint64_t bytes = x->how.elements * lh_dtype_bytes(x->how.dtype);
    while (bytes / chunk > MOST_CHUNKS)
        chunk *= 2;
    return chunk;
}

/* The arenas in which a member's buffers lie, a bit each; false: some are never read in place. */
static bool place_arenas(const plan_place_t *p, uint32_t *out)
{
    const uint32_t arenas[] = {p->whole_arena, p->cut_arena};
    *out = 0;
    for (int i = 0; i < 2; i++) {
        if (arenas[i] == PLAN_NOWHERE) continue;
        if (arenas[i] >= 32) return false;
        *out |= 1u << arenas[i];
    }
    return true;
}

/* Whether a rank that maps these arenas of its peers can read a member's buffers in place. */
static bool maps_place(uint32_t maps, const plan_place_t *p)
{
    uint32_t arenas;
    return place_arenas(p, &arenas) && (arenas & ~maps) == 0;
}

/* Two members of a node that can read each other's buffers in place. Both must: the script has one
 * way for a pair. */
static bool pair_maps(const collective_t *x, const comm_facts_t *all, uint32_t a, uint32_t b)
{
    lh_assert(a < x->how.group->size && b < x->how.group->size);
    const group_t *g = x->how.group;
    const uint32_t service = x->how.service;
    if (a == b || world_scope(x->comm->world, g->ranks[a], g->ranks[b]) != LH_LINK_NODE)
        return false;
    return maps_place(all[g->ranks[a]].maps[service], &x->places[b]) &&
           maps_place(all[g->ranks[b]].maps[service], &x->places[a]);
}

/* All pairs of a site's members, without going through them: each must map what at least one other member
 * has its buffers in. `one` and `two` are the arenas of that many members, or more. */
static bool site_maps(const collective_t *x, const comm_facts_t *all, uint32_t begin, uint32_t end)
{
    const group_t *g = x->how.group;
    uint32_t one = 0, two = 0, own;
    for (uint32_t m = begin; end - begin > 1 && m < end; m++) {
        if (world_scope(x->comm->world, g->ranks[begin], g->ranks[m]) != LH_LINK_NODE ||
            !place_arenas(&x->places[m], &own))
            return false;
        two |= one & own;
        one |= own;
    }
    for (uint32_t m = begin; end - begin > 1 && m < end; m++) {
        (void)place_arenas(&x->places[m], &own);
        if (((two | (one & ~own)) & ~all[g->ranks[m]].maps[x->how.service]) != 0) return false;
    }
    return true;
}

/* All pairs that would exchange messages inside a site; of a send or receive, the one pair. */
static bool all_map(const collective_t *x, const comm_facts_t *all)
{
    const group_t *g = x->how.group;
    if (coll_op_is_pair(x->how.op)) return pair_maps(x, all, g->self, x->how.root);
    for (uint32_t s = 0; s < g->sites; s++)
        if (!site_maps(x, all, g->site_begin[s], g->site_begin[s + 1])) return false;
    return world_group_largest_site(g) > 1;
}

/* Whether members read each other's buffers in place. Little is sent: signals would cost more. */
static bool plan_maps(const collective_t *x, const comm_facts_t *all)
{
    const uint64_t bytes = x->how.elements * lh_dtype_bytes(x->how.dtype);
    return x->how.device == NULL && bytes >= MAP_BYTES && all_map(x, all);
}

bool comm_answers(const collective_t *x, const comm_facts_t *all)
{
    return coll_op_is_pair(x->how.op) && plan_maps(x, all);
}

/* What is known of the links between the sites of a group, by a measurement or by its record. What they
 * leave each other was measured with all sites: of some of them it is not known. */
static void links_known(const comm_t *c, const group_t *g, between_link_t *out)
{
    uint32_t count;
    const probe_pair_t *pairs = comm_pairs(c, &count);
    for (uint32_t a = 0; a < g->sites; a++)
        for (uint32_t b = 0; b < g->sites; b++) {
            const uint32_t from = c->world->ranks[g->ranks[g->site_begin[a]]].site;
            const uint32_t to = c->world->ranks[g->ranks[g->site_begin[b]]].site;
            if (from == to || links_pair(from, to) >= count) continue;
            const uint32_t sites = c->world->row.sites;
            const uint64_t trip = pairs[links_pair(from, to)].figures.round_trip_ns;
            between_link_t *k = &out[(size_t)a * g->sites + b];
            k->round_trip_s = (double)trip * 1e-9;
            k->bytes_per_second = link_crowd_rate(pairs, sites, from, to, CROWD_NONE);
            if (g->sites != sites) continue;
            k->beside_all = link_crowd_rate(pairs, sites, from, to, CROWD_ALL);
            k->beside_from = link_crowd_rate(pairs, sites, from, to, from);
            k->beside_to = link_crowd_rate(pairs, sites, from, to, to);
        }
}

/* Pieces are taken for equal: who cuts them deals them out evenly. */
lh_status_t comm_between(const comm_t *c, const coll_how_t *how, script_how_t *out)
{
    const group_t *g = how->group;
    out->between = BETWEEN_MESH;
    if (how->op != COLL_ALL_REDUCE || g->sites == 1) return LH_OK;
    between_link_t *links = mem_array((size_t)g->sites * g->sites, sizeof(*links));
    double *share = mem_array(g->sites, sizeof(*share));
    if (links == NULL || share == NULL) {
        mem_free(links);
        mem_free(share);
        return LH_NO_MEMORY;
    }
    links_known(c, g, links);
    for (uint32_t s = 0; s < g->sites; s++)
        share[s] = (double)world_group_site_size(g, s) / g->size;
    const lh_dtype_t part = script_part(how), border = script_border(how);
    double elements = 0, part_bytes = (double)lh_dtype_bytes(part != 0 ? part : LH_DTYPE_F32);
    if (part == LH_DTYPE_I8) part_bytes = (double)quantize_bytes(QUANTIZE_BLOCK) / QUANTIZE_BLOCK;
    for (uint32_t m = 0; m < g->size; m++)
        for (uint32_t i = 0; i < how->pieces[m].count; i++)
            elements += (double)how->pieces[m].segments[i].count;
    const between_how_t between = {
        .sites = g->sites,
        .links = links,
        .share = share,
        .part_bytes = elements * part_bytes,
        .partial_bytes = elements * sizeof(float),
        .result_bytes = elements * (double)lh_dtype_bytes(border != 0 ? border : how->dtype),
        .asked = how->between != BETWEEN_AUTO ? how->between : c->job->comm.between_sites};
    out->between = coll_between_choose(&between, &out->middle);
    mem_free(links);
    mem_free(share);
    return LH_OK;
}

const probe_pair_t *comm_pairs(const comm_t *c, uint32_t *count)
{
    *count = c->expected_count;
    return c->found ? links_pairs(c->links, count) : c->expected;
}

/* lag: how many chunks a phase leaves between itself and the next. Mapped memory needs one, since
 * only signals travel; a long link four. depth is two more. On a long link as many units may be under
 * way, too, as are 1.25 times what it holds, so that it need not wait for an acknowledgement: most
 * units are shorter than a chunk, as they end with a parameter. */
lh_status_t comm_choose(const collective_t *x, const comm_facts_t *all, script_how_t *out)
{
    const coll_how_t *how = &x->how;
    const uint64_t bytes = how->elements * lh_dtype_bytes(how->dtype);
    const uint32_t scope = widest_scope(x->comm->world, how->group);
    const double flight = longest_flight(x, all, scope);
    const bool can_map = plan_maps(x, all);
    const uint32_t algorithm = choose_algorithm(x, bytes, can_map);
    const bool mapped = can_map && algorithm == COLL_DIRECT;
    *out = (script_how_t){.how = how,
                          .algorithm = algorithm,
                          .chunk_bytes = choose_chunk(x, flight, scope, mapped),
                          .lag = mapped                 ? 1
                                 : scope == LH_LINK_WAN ? 4
                                                        : 2,
                          .window = (uint64_t)(1.25 * flight),
                          .peers = mapped ? x->peers : NULL};
    out->depth = out->lag + 2;
    out->at_once = how->op == COLL_ALL_REDUCE && how->group->sites == 1 &&
                   algorithm == COLL_DIRECT && bytes <= AT_ONCE_BYTES &&
                   how->group->size <= AT_ONCE_MEMBERS;
    for (uint32_t m = 0; mapped && m < how->group->size; m++)
        x->peers[m].mapped = pair_maps(x, all, how->group->self, m);
    return comm_between(x->comm, how, out);
}
