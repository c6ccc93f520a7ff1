/* comm/script_build.h - a script while it is being made: units, steps, what waits for what, slots
 * of staging memory.
 *
 * The makers (script_make.c) go through the units of all pieces and call build_send, build_recv,
 * build_sum and build_copy for what this rank does with each. Every rank goes through the same
 * units in the same order, also through those in which it has no part: that is what puts messages
 * in one order at both ends.
 *
 * A failed allocation is kept in `failed`, so that makers need not ask; steps that could not be
 * made are SCRIPT_NONE, which every function here takes and ignores. */
#ifndef COMM_SCRIPT_BUILD_H
#define COMM_SCRIPT_BUILD_H

#include <comm/script.h>

/* `after` may not begin before `before` is done. Both are indices of steps. */
typedef struct build_edge {
    uint32_t before, after;
} build_edge_t;

/* What one message carries of one piece: at most a chunk, a run of a segment or several small ones.
 * The fields from `ready` on are what phases leave to later phases of the same unit; SCRIPT_NONE
 * where nothing was left. */
typedef struct build_unit {
    uint32_t run, run_count;
    uint64_t elements;
    uint32_t ready;      /* step that made this rank's copy of the result final      */
    uint32_t used;       /* last step that reads this rank's contribution            */
    script_view_t carry; /* a sum on its way                                     */
    uint32_t carry_step, carry_slot;
} build_unit_t;

/* A place in staging memory that units of one peer use in turn. */
typedef struct build_slot {
    uint64_t at;   /* in staging memory                                          */
    uint32_t last; /* step that reads it last; SCRIPT_NONE while that is not known */
} build_slot_t;

/* Slots of one peer for one purpose and one size of elements. It grows to `depth` slots, to as many
 * as hold `window` bytes of units, and beyond that only where no slot is known to be free again
 * (build_slot); this bounds how many of a peer's units are under way at once, and with that staging
 * memory. */
typedef struct build_pool { /* slots are taken in turn */
    uint32_t *slots;
    uint32_t count, turn;
    size_t capacity;
} build_pool_t;

/* For what comes from a peer; what is packed to leave to it; sums on their way, which have this
 * rank as their peer. Each for elements of 1, 2, 4 and 8 bytes. */
enum { POOL_IN, POOL_OUT, POOL_SUM, POOLS };
enum { POOL_SIZES = 4 };
enum { BUILD_ALIGN = 64 }; /* elements: units start at whole cache lines where they can */

/* Lives as long as one script_new. All but `s`, `in`, `how` and `g` is freed by build_close. */
typedef struct builder {
    const script_how_t *in;
    const coll_how_t *how;
    const group_t *g;
    uint32_t self;
    lh_dtype_t part, border; /* script_part, script_border */
    uint64_t element_bytes;
    script_t *s;
    size_t step_capacity, view_capacity, run_capacity, edge_capacity, unit_capacity, slot_capacity;
    build_edge_t *edges;
    uint32_t edge_count;
    build_unit_t *units;
    uint32_t unit_count, most_units; /* of a piece */
    uint32_t *unit_begin;            /* [size + 1] of each piece */
    uint64_t elements;               /* of all units */
    uint64_t most_elements;          /* of a unit */
    uint64_t most_packed;            /* bytes of a unit in blocks, where `part` is I8 */
    build_slot_t *slots;
    uint32_t slot_count;
    build_pool_t *pools; /* [size][POOLS][POOL_SIZES] */
    uint32_t label;      /* of what is being made: the same at both ends of a message */
    bool *lent;          /* [size] they read our memory in place */
    uint32_t *joined;    /* [size] step that comes after all reads of theirs */
    bool answers;        /* messages that are made are answers of a pair */
    bool failed;
} builder_t;

/* Cuts all pieces into units. build_close is called whatever this returns. */
lh_status_t build_open(builder_t *b, const script_how_t *in, script_t *s) LH_MUST_CHECK;
lh_status_t build_finish(builder_t *b) LH_MUST_CHECK;
void build_close(builder_t *b);

/* Where either is SCRIPT_NONE there is no edge. */
void build_edge(builder_t *b, uint32_t before, uint32_t after);
/* A slot of staging memory of the largest unit in that dtype, or of `bytes` if that is more; view:
 * how a step sees it. */
uint32_t build_slot(builder_t *b, uint32_t pool, uint32_t peer, lh_dtype_t dtype, uint64_t bytes,
                    script_view_t *view);
/* `step` is the first to write into the slot, so it waits for who read it last. */
void build_slot_use(builder_t *b, uint32_t slot, uint32_t step);
/* `step` reads it last. SCRIPT_NONE slots: nothing. */
void build_slot_end(builder_t *b, uint32_t slot, uint32_t step);

/* This rank's buffers, from their start; runs say where in them. */
script_view_t build_whole(const builder_t *b);
script_view_t build_cut(const builder_t *b); /* or whole where there is no cut */

/* A message of no bytes: "it is there", or "I have read it". `after`: the step that it waits
 * for. */
uint32_t build_signal(builder_t *b, uint32_t peer, bool sending, uint32_t after);
/* A message of `bytes` from or to where the view says. The peer must make its other half under the
 * same label. */
uint32_t build_message(builder_t *b, uint32_t peer, bool sending, const script_view_t *view,
                       uint64_t bytes, uint32_t after);
/* A copy or a sum for all runs of a unit, without edges: the caller states what it waits for. */
uint32_t build_copy(builder_t *b, const build_unit_t *u, const script_view_t *to,
                    const script_view_t *from);
uint32_t build_sum(builder_t *b, const build_unit_t *u, const script_view_t *to, bool add,
                   const script_view_t *sources, uint32_t count);
/* A step that does nothing, for what must wait for several. */
uint32_t build_join(builder_t *b);
/* A unit to or from a member, through staging where it is not one run there, or where it travels in
 * another dtype than the view's; wire 0: in that. */
uint32_t build_send(builder_t *b, uint32_t to, const build_unit_t *u, const script_view_t *view,
                    lh_dtype_t wire, uint32_t after);
uint32_t build_recv(builder_t *b, uint32_t from, const build_unit_t *u, const script_view_t *view,
                    lh_dtype_t wire, uint32_t after);
/* Whether this rank and the member read each other's buffers in place. It is the same seen from
 * both. */
bool build_mapped(const builder_t *b, uint32_t peer);
/* `step` reads memory of a mapped member: it may not have it back before. */
void build_reads(builder_t *b, uint32_t peer, uint32_t step);

#endif
