/* crossings.c - bytes over borders, piece by piece.
 *
 * Of a sum a piece's owner gets a part from each other site, from whoever stands for it there, and
 * sends the result back; the ways between sites (BETWEEN_*) differ in who adds and in who sends on.
 * Of a gather the owner sends its piece to each other site. Neither chunks nor the algorithm inside a
 * site change what crosses. */
#include <comm/crossings.h>

#include <comm/quantize.h>
#include <longhaul/dtype.h>

typedef struct counter {
    const coll_how_t *how;
    const group_t *g;
    uint32_t between, middle;
    lh_dtype_t part, border; /* script_part, script_border */
    uint64_t runs;
    const world_t *world;
    uint64_t *by_rank, *pairs;
} counter_t;

static void count_message(const counter_t *c, uint32_t from, uint32_t to, uint64_t bytes)
{
    const world_t *w = c->world;
    const uint32_t sender = c->g->ranks[from], receiver = c->g->ranks[to];
    const uint32_t here = w->ranks[sender].site, there = w->ranks[receiver].site;
    if (here == there) return;
    c->by_rank[sender] += c->runs * bytes;
    c->pairs[(size_t)here * w->row.sites + there] += c->runs * bytes;
}

/* A piece as it travels: I8 in blocks, which every segment begins anew. */
static uint64_t piece_bytes(const coll_piece_t *p, lh_dtype_t dtype)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->count; i++)
        bytes += dtype == LH_DTYPE_I8 ? quantize_bytes(p->segments[i].count)
                                      : p->segments[i].count * lh_dtype_bytes(dtype);
    return bytes;
}

/* A site's part of a sum: a contribution where the site has one member. */
static uint64_t site_part_bytes(const counter_t *c, const coll_piece_t *p, uint32_t site)
{
    if (c->part != 0) return piece_bytes(p, c->part);
    const bool alone = world_group_site_size(c->g, site) == 1;
    return piece_bytes(p, alone ? c->how->dtype : LH_DTYPE_F32);
}

/* Round the sites, from the one behind the owner's: its part, and then sums of parts. */
static void count_sum_round(const counter_t *c, uint32_t owner, const coll_piece_t *p)
{
    const uint32_t home = c->g->site_of[owner], sites = c->g->sites;
    for (uint32_t hop = 1; hop < sites; hop++) {
        const uint32_t from = (home + hop) % sites, to = (from + 1) % sites;
        count_message(c, world_group_leader(c->g, from, owner), world_group_leader(c->g, to, owner),
                      hop == 1 ? site_part_bytes(c, p, from) : piece_bytes(p, LH_DTYPE_F32));
    }
}

/* To who adds; in an exchange each to all others. */
static void count_sum_across(const counter_t *c, uint32_t owner, uint32_t at, const coll_piece_t *p)
{
    const bool all = c->how->op == COLL_ALL_REDUCE && c->between == BETWEEN_EXCHANGE;
    for (uint32_t from = 0; from < c->g->sites; from++) {
        const uint32_t sender = world_group_leader(c->g, from, owner);
        const uint64_t bytes = site_part_bytes(c, p, from);
        for (uint32_t to = 0; all && to < c->g->sites; to++)
            if (to != from) count_message(c, sender, world_group_leader(c->g, to, owner), bytes);
        if (!all && from != c->g->site_of[at]) count_message(c, sender, at, bytes);
    }
}

/* From who has it first to all other sites, or round. */
static void count_spread(const counter_t *c, uint32_t owner, uint32_t first, const coll_piece_t *p,
                         bool round)
{
    const uint32_t home = c->g->site_of[first], sites = c->g->sites;
    const uint64_t bytes = piece_bytes(p, c->border != 0 ? c->border : c->how->dtype);
    for (uint32_t hop = 1; hop < sites; hop++) {
        const uint32_t from = round ? (home + hop - 1) % sites : home;
        count_message(c, from == home ? first : world_group_leader(c->g, from, owner),
                      world_group_leader(c->g, (home + hop) % sites, owner), bytes);
    }
}

/* Sums and gathers, which leaders of sites pass on. */
static void piece_crosses(const counter_t *c, uint32_t owner, const coll_piece_t *p)
{
    const bool there_and_back = c->how->op == COLL_ALL_REDUCE;
    const bool round = there_and_back && c->between == BETWEEN_RING;
    const bool chain = there_and_back && c->between == BETWEEN_CHAIN;
    const uint32_t at = chain ? world_group_leader(c->g, c->middle, owner) : owner;
    if (coll_op_sums(c->how->op)) {
        if (round)
            count_sum_round(c, owner, p);
        else
            count_sum_across(c, owner, at, p);
    }
    const bool everywhere = there_and_back && c->between == BETWEEN_EXCHANGE;
    if (c->how->op == COLL_ALL_GATHER || c->how->op == COLL_BROADCAST ||
        (there_and_back && !everywhere))
        count_spread(c, owner, at, p, round);
}

/* Ops whose bytes go straight to their receiver. */
static void piece_moves(const counter_t *c, uint32_t owner, const coll_piece_t *p)
{
    const uint64_t bytes = piece_bytes(p, c->how->dtype);
    const uint32_t root = c->how->root, self = c->g->self;
    switch (c->how->op) {
    case COLL_SCATTER: count_message(c, root, owner, bytes); break;
    case COLL_GATHER: count_message(c, owner, root, bytes); break;
    case COLL_SEND:
    case COLL_RECV: count_message(c, self == owner ? root : self, owner, bytes); break;
    case COLL_ALL_TO_ALL:
        for (uint32_t from = 0; from < c->g->size; from++)
            count_message(c, from, owner, bytes);
        break;
    default: break;
    }
}

void crossings_add(const script_how_t *how, uint64_t runs, const world_t *w, uint64_t *by_rank,
                   uint64_t *between)
{
    const coll_how_t *asked = how->how;
    const counter_t c = {.how = asked,
                         .g = asked->group,
                         .between = how->between,
                         .middle = how->middle,
                         .part = script_part(asked),
                         .border = script_border(asked),
                         .runs = runs,
                         .world = w,
                         .by_rank = by_rank,
                         .pairs = between};
    const bool passed_on = coll_op_sums(asked->op) || asked->op == COLL_ALL_GATHER ||
                           asked->op == COLL_BROADCAST;
    if (c.g->sites == 1 || asked->op == COLL_BARRIER) return;
    for (uint32_t o = 0; o < c.g->size; o++) {
        const coll_piece_t *p = &asked->pieces[o];
        if (p->count == 0) continue;
        if (passed_on)
            piece_crosses(&c, o, p);
        else
            piece_moves(&c, o, p);
    }
}
