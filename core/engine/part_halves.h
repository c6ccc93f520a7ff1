/* engine/part_halves.h - the two halves of a part's way back: what leads to the gradient of its input,
 * and what leads to gradients of its weights only, which may come later.
 *
 * Breadth-first, the embedding's gradient is complete behind all others, and nothing hides its sum. In
 * halves, all micro-batches go through the first block's first half, then back through the embedding,
 * and only then are the weights of that block summed, leg by leg (part_legs.h): the embedding's sum
 * hides behind those products, and what is complete last is the first leg. The block's own sums have less
 * to hide behind: over links that take longer for them than those products take, nothing is won.
 *
 * What it costs is memory: what products of the second half read, of all micro-batches. On the way
 * back through the first block what later blocks kept is free, so halves are for blocks whose memory
 * has room there. */
#ifndef ENGINE_PART_HALVES_H
#define ENGINE_PART_HALVES_H

#include <engine/part_legs.h>
#include <engine/part_record.h>

/* Whether an op is one end of a transfer between two ranks: it takes nothing here, or makes
 * nothing. */
static inline bool part_halves_meet(const op_t *op)
{
    return op->in_count == 0 || op->out_count == 0;
}

/* Says of each node of a differentiated part's way back whether it is of the first half: leads
 * [nodes]. What another rank is sent or sends is, as that rank waits, too. */
lh_status_t part_halves_mark(const part_t *part, bool *leads) LH_MUST_CHECK;

/* Whether the first of all blocks, differentiated ones, goes back in halves with the embedding's way back
 * between them. `last` is the leg of it whose gradients are complete last. It does where
 *
 *    - more of the embedding is trained than of that leg;
 *    - each weight is summed in the order in which it is when the block goes whole;
 *    - no op says that it lies in another's memory which the whole way back would write at once;
 *    - later blocks have kept as much as the second half needs beyond what the way back has anyway;
 *    - it exchanges nothing with other ranks by itself, whose order is the model's. */
lh_status_t part_halves_find(const program_t *p, const part_t *embed, const part_t *blocks,
                             const part_leg_t *last, bool *out) LH_MUST_CHECK;

#endif
