/* engine/instance.h - one part of the model on its way through a program: its recording, where its
 * values lie, and the passes over it. */
#ifndef ENGINE_INSTANCE_H
#define ENGINE_INSTANCE_H

#include <engine/part_record.h>

typedef struct instance {
    program_t *program;
    const part_t *part;
    uint32_t block;       /* whose parameters; the recording may be that of an equal block */
    uint32_t micro_batch; /* which of those in the inputs */
    uint64_t row_begin;   /* first row of its inputs, for pieces of the head */
    uint32_t *map;
    flow_source_t source;
} instance_t;

/* The instance must stay where it is while it is used. */
void instance_begin(instance_t *v, program_t *p, const part_t *part, uint32_t block,
                    uint32_t micro_batch, uint64_t row_begin);
/* Appends the forward pass on `input`; attention as in generation where the program is DECODE.
 * Returns the output's flow value. */
uint32_t instance_forward(instance_t *v, uint32_t input);
/* Appends again what recompute says is not kept. RECOMPUTE_* */
void instance_recompute(instance_t *v, uint32_t recompute);
/* Appends the reverse pass for the gradient of the output. Returns the input's; 0: there is none.
 * Where `into` is not 0 it lies there. */
uint32_t instance_backward(instance_t *v, uint32_t gradient, uint32_t into);
/* The same in two: what leads to the gradient of the input; later, what leads to gradients of
 * weights only. */
uint32_t instance_backward_input(instance_t *v, uint32_t gradient);
void instance_backward_weights(instance_t *v);

#endif
