/* engine/instance.h - one part of a model (embedding, a block, a section of the head) with its own
 * weights, for one micro-batch, on its way through a program.
 *
 * An instance holds a map from the recording's values to the flow's. The forward pass fills the map;
 * on the way back the nodes find there what the forward pass has left. Recomputation forgets entries
 * and appends the nodes that make them again. Failures are left in the flow's status. */
#ifndef ENGINE_INSTANCE_H
#define ENGINE_INSTANCE_H

#include <engine/part_legs.h>
#include <engine/part_record.h>
#include <engine/program.h>

/* The address of an instance must not change while it is used, as `source` points to it. */
typedef struct instance {
    program_t *program;
    const part_t *part;
    uint32_t block;       /* whose parameters; the recording may be that of an equal block */
    uint32_t micro_batch; /* of the run, from 0 */
    uint64_t row_begin;   /* first row of the micro-batch; other than 0 in sections of the head */
    part_leg_t leg;       /* the nodes that are appended; whoever takes it in legs sets the next */
    uint32_t *map;        /* [part->r->value_count] flow values; the program's */
    flow_source_t source;
} instance_t;

/* Begins an instance of `part` with the parameters of `block`, whose leg is the whole part. Nothing is
 * appended yet. */
void instance_begin(instance_t *v, program_t *p, const part_t *part, uint32_t block,
                    uint32_t micro_batch, uint64_t row_begin);
/* Begins a walk over nodes of the recording, each in its turn, and marks the calls from here on as this
 * instance's; whole: what is left for later, by legs, stands behind all of them in the recording. */
void instance_walk(instance_t *v, bool backward, bool whole);
/* Appends the forward pass of the leg on `input`, and returns the flow value of the output, or before
 * the last leg `input`, which each leg is given. In generation, ops that have a form with a cache are
 * replaced by it. */
uint32_t instance_forward(instance_t *v, uint32_t input);
/* Appends again the nodes whose results are not kept: all of the leg, or all but the costly ops
 * (RECOMPUTE_*). The nodes write new values; the old ones die with their last use in the forward
 * pass, which is what saves memory. The bits are the same, as the kernels are. What another rank
 * sent is kept, and what was sent to one is not sent again. */
void instance_recompute(instance_t *v, uint32_t recompute);
/* Appends the reverse pass of the leg, which begins with the gradient of the output. Returns the
 * gradient of the input (0: there is none), or with legs to come `gradient`, which each leg is given.
 * into: the flow value in which it is to lie, by a copy if its op can't write there; 0: anywhere. */
uint32_t instance_backward(instance_t *v, uint32_t gradient, uint32_t into);
/* The first half of the leg's way back in two (part_halves.h): what leads to the gradient of the input,
 * for which the chunk before waits; returns what instance_backward does. The second half makes the
 * gradients of weights, some rows later. */
uint32_t instance_backward_input(instance_t *v, uint32_t gradient);
/* The second half. The map still holds the gradient of the output and what the first half made. */
void instance_backward_weights(instance_t *v);

#endif
