/* graph/visit.h - one part of the model on its way through a program: its recording, where its
 * values lie, and the passes over it. */
#ifndef GRAPH_VISIT_H
#define GRAPH_VISIT_H

#include <graph/part_record.h>

typedef struct visit {
    program_t *program;
    const part_t *part;
    uint32_t block;     /* whose parameters; the recording may be that of an equal block */
    uint32_t lane;      /* which of the micro-batches in the inputs */
    uint64_t row_begin; /* first row of the lane's inputs, for chunks of the head */
    uint32_t *map;
    flow_source_t source;
} visit_t;

/* The visit must stay where it is while it is used. */
void visit_begin(visit_t *v, program_t *p, const part_t *part, uint32_t block, uint32_t lane,
                 uint64_t row_begin);
/* Appends the forward pass on `input`; attention as in generation where the program is DECODE.
 * Returns the output's flow value. */
uint32_t visit_forward(visit_t *v, uint32_t input);
/* Appends again what recompute says is not kept. RECOMPUTE_* */
void visit_recompute(visit_t *v, uint32_t recompute);
/* Appends the reverse pass for the gradient of the output. Returns the input's; 0: there is none.
 * Where `into` is not 0 it lies there. */
uint32_t visit_backward(visit_t *v, uint32_t gradient, uint32_t into);

#endif
