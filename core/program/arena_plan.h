/* program/arena_plan.h - gives things that live for a time fixed offsets, so that those alive
 * together do not overlap and little is left between them.
 *
 * The offsets are found once, before the first step. The alternative, an allocator that hands
 * memory out while a step runs, costs time in every step, fragments, and knows less: here all
 * lifetimes are known. */
#ifndef PROGRAM_ARENA_PLAN_H
#define PROGRAM_ARENA_PLAN_H

#include <base/status.h>

/* A buffer on its way to a place. Times are numbers of calls, of any origin; things that live in
 * one same call are alive together. */
typedef struct arena_item {
    uint64_t bytes;
    uint32_t first, last; /* inclusive */
    uint64_t offset;      /* the answer */
} arena_item_t;

/* Greedy by size, largest first, each into the smallest gap that fits; ties by index, so that the
 * same items always get the same plan. alignment is a power of two. *bytes is the arena's size. */
lh_status_t arena_plan(arena_item_t *items, uint32_t count, uint64_t alignment,
                       uint64_t *bytes) LH_MUST_CHECK;

#endif
