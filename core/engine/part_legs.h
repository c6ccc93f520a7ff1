/* engine/part_legs.h - where a block is cut, so that rows of a schedule take it in legs.
 *
 * Breadth-first, the gradients of the first block's weights are the last to be complete, all of them
 * with the last micro-batch's way back through that block; and of new values its are the first to be
 * needed. Nothing hides a transfer of these from other sites. In legs, of which each has some of the
 * weights, all micro-batches go through the first leg and then through the next, and back likewise:
 * what belongs to a leg hides behind those before it, and the first leg's alone is left.
 *
 * A leg is a range of the recording's nodes on the way there and one on the way back. All legs belong
 * to one instance, whose map goes from the one to the next; a micro-batch's calls are those of the
 * whole block in the same order, and so are the bits. What it costs is memory from leg to leg. On the
 * way there that is kept for the way back anyway, but where the block is computed again; and on the way
 * back through the first blocks what others kept is free. */
#ifndef ENGINE_PART_LEGS_H
#define ENGINE_PART_LEGS_H

#include <engine/part_record.h>

/* The most legs of a block, and how many of a model's first blocks go in legs: behind the second one,
 * links that are less busy than the device have caught up. */
enum { PART_LEGS = 4, PART_LEG_BLOCKS = 2 };

/* Nodes [forward, forward_end) of a part's recording on the way there, [backward, backward_end) on
 * the way back. */
typedef struct part_leg {
    uint32_t forward, forward_end, backward, backward_end;
} part_leg_t;

/* In the order of the way there. */
typedef struct part_legs {
    part_leg_t list[PART_LEGS];
    uint32_t count; /* 1: the block goes whole */
} part_legs_t;

/* All nodes of a part, which is differentiated by now if it will be. */
part_leg_t part_leg_whole(const part_t *part);
/* Whether a leg is the last one of its way: behind it the part's output is there, or the gradient of
 * its input. */
static inline bool part_leg_ends_forward(const part_leg_t *leg, const part_t *part)
{
    return leg->forward_end == part->forward_end;
}
static inline bool part_leg_ends_backward(const part_leg_t *leg, const part_t *part)
{
    return leg->backward_end == part->r->node_count;
}

/* Finds the legs of a differentiated block with the parameters of part->block. It goes whole where there is
 * no place to cut it, or where it exchanges something with other ranks by itself, whose order is the
 * model's. */
lh_status_t part_legs_find(const program_t *p, const part_t *part, part_legs_t *out) LH_MUST_CHECK;

#endif
