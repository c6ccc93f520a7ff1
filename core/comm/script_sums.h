/* comm/script_sums.h - what a phase of a script is, and the phases of sums: how contributions are
 * added inside a site, and what sites have summed over all sites. For script_make.c, which emits
 * phases and knows those that move.
 *
 * A phase is called for every unit on every rank, in the same order everywhere, and emits what this
 * rank does in it. */
#ifndef COMM_SCRIPT_SUMS_H
#define COMM_SCRIPT_SUMS_H

#include <comm/script_build.h>

/* A part of the algorithm that is done unit by unit. `hop` is its number among those of a ring or
 * of a halving, from 1. It emits the steps of unit u of owner's piece `lag` units after the first
 * phase has. */
typedef void phase_emit_t(builder_t *b, uint32_t hop, uint32_t owner, build_unit_t *u);
typedef struct phase {
    phase_emit_t *emit;
    uint32_t hop, lag;
    /* Whose pieces concern this rank: all members', or those of owners whose leader in its site stands
     * back[0] or back[1] places before it, round the site. */
    bool near;
    uint32_t back[2];
} phase_t;
/* Bounds the length of a ring: a ring of m members has m - 1 phases each way. */
enum { PHASES = 512 };
typedef struct phases {
    phase_t rows[PHASES];
    uint32_t count, lag; /* lag of what comes next */
} phases_t;

static inline void add_phase(phases_t *p, phase_emit_t *emit, uint32_t hop, uint32_t lag)
{
    if (p->count < PHASES)
        p->rows[p->count++] = (phase_t){.emit = emit, .hop = hop, .lag = p->lag + lag};
}

/* A phase in which this rank has a part for few owners: where a site has many members, most calls of
 * it would do nothing. */
static inline void add_near_phase(phases_t *p, phase_emit_t *emit, uint32_t hop, uint32_t lag,
                                  uint32_t back, uint32_t other)
{
    add_phase(p, emit, hop, lag);
    p->rows[p->count - 1].near = true;
    p->rows[p->count - 1].back[0] = back;
    p->rows[p->count - 1].back[1] = other;
}

/* The member `steps` behind `from`, round its site. The order of sums is counted by it:
 * round_site(g, x, 1) is the first contribution of a sum that ends at x. */
static inline uint32_t round_site(const group_t *g, uint32_t from, uint32_t steps)
{
    lh_assert(from < g->size);
    const uint32_t begin = g->site_begin[g->site_of[from]],
                   size = world_group_site_size(g, g->site_of[from]);
    return begin + (from - begin + steps) % size;
}

/* Who stands for the owner in this rank's site: where contributions of the site go, and who has the
 * result first here. */
static inline uint32_t own_leader(const builder_t *b, uint32_t owner)
{
    return world_group_leader(b->g, b->g->site_of[b->self], owner);
}

/* Whether the last of those phases leaves the result in every site, so that none has to cross a
 * border. */
static inline bool sums_everywhere(const builder_t *b)
{
    return b->how->op == COLL_ALL_REDUCE && b->in->between == BETWEEN_EXCHANGE;
}
/* Whether sums and results go round the sites. */
static inline bool sums_round(const builder_t *b)
{
    return b->how->op == COLL_ALL_REDUCE && b->in->between == BETWEEN_RING;
}

/* Who adds what sites send, and has the result first. Over a chain it is the owner's leader in the
 * middle, so that what outer sites send each other crosses no border twice. */
static inline uint32_t sums_at(const builder_t *b, uint32_t owner)
{
    const bool chain = b->how->op == COLL_ALL_REDUCE && b->in->between == BETWEEN_CHAIN;
    return chain ? world_group_leader(b->g, b->in->middle, owner) : owner;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Phases of the way up. p->lag grows by what the last phase lags behind, so that what follows counts
 * from there. */
void sums_phases(builder_t *b, phases_t *p);
/* All of an all-reduce of little, without phases. */
void sums_at_once(builder_t *b);

#endif
