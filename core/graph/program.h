/* graph/program.h - a program's flow, its inputs and outputs, and the lists it becomes; for the
 * files that write flows (model_flow.c, parallel/update.c). */
#ifndef GRAPH_PROGRAM_H
#define GRAPH_PROGRAM_H

#include <graph/engine_state.h>
#include <graph/executor.h>
#include <graph/flow.h>

enum { PROGRAM_INPUTS = 9, STAGING_SLOTS = 2 };
enum { OUTPUT_EXTRA = 5 }; /* [1]: sum of the losses that the model adds; part of OUTPUT_LOSS */

typedef struct program_input { /* index: LH_INPUT_* */
    uint64_t bytes;            /* 0: not used */
    lh_arg_t arg;
    uint64_t offset;                /* in the engine's inputs */
    uint64_t pinned[STAGING_SLOTS]; /* in the engine's pinned memory: one is filled while the
                                       other's copy may still be queued */
    lh_event_t *copied[STAGING_SLOTS];
    bool busy[STAGING_SLOTS];
    uint32_t slot;  /* filled last */
    bool dirty;     /* not yet copied to the device */
    uint32_t value; /* in the flow */
} program_input_t;

typedef struct program_output { /* index: OUTPUT_* */
    uint64_t bytes;             /* 0: not made */
    uint64_t offset;            /* in the engine's outputs */
    uint64_t pinned;
    uint32_t value;
} program_output_t;

struct program {
    engine_t *engine;
    weights_t *weights;
    program_how_t how; /* use, sizes */
    uint64_t tokens;   /* of a lane */
    uint32_t lanes;
    flow_t *flow;
    recording_t **recordings; /* kept: the flow points into them */
    const recording_t *block; /* of the first block; one of them */
    uint32_t recording_count;
    size_t recording_capacity;
    uint32_t **maps; /* kept until the flow is finished */
    uint32_t map_count;
    size_t map_capacity;
    uint32_t *store_buffers; /* [stores][parameters] flow buffers of weights, 0: not yet */
    uint32_t store_count;

    program_input_t inputs[PROGRAM_INPUTS];
    program_output_t outputs[OUTPUTS];
    call_list_t lists[2];            /* first micro-batch, later ones */
    lh_event_t *done[STAGING_SLOTS]; /* of the runs in flight: the control thread is at most so many
                                        ahead of the device */
    uint64_t runs;
};

/* A program without calls, owned by the engine. */
lh_status_t program_empty(engine_t *e, weights_t *w, const program_how_t *how,
                          program_t **out) LH_MUST_CHECK;
void program_free(program_t *p);

/* Below, values are the flow's; a failure is kept in flow->status and 0 is returned. */

/* The program's input, made at the first call. */
uint32_t program_input_value(program_t *p, uint32_t which, const lh_arg_t *arg);
/* An output; accumulates: over micro-batches. */
uint32_t program_output_value(program_t *p, uint32_t which, const lh_arg_t *arg, bool accumulates);
/* A parameter's piece in a store, in the parameter's shape when whole, else flat. */
uint32_t program_store_value(program_t *p, const store_t *store, uint32_t parameter);
/* What kernels of the visit under way read of a parameter, and add its gradient into: its store, or
 * what the exchange brings there. */
uint32_t program_parameter(program_t *p, uint32_t parameter);
uint32_t program_gradient(program_t *p, uint32_t parameter);
/* Values of a recorded constant. */
uint32_t program_constant_value(program_t *p, const graph_value_t *v);
/* Owns the recording from here on, whatever it returns. */
lh_status_t program_keep(program_t *p, recording_t *r) LH_MUST_CHECK;
/* A zeroed map for a recording, freed when the flow is finished. NULL after setting flow->status.
 */
uint32_t *program_map(program_t *p, const recording_t *r);
/* Ends the flow: plans activations, frees maps. */
lh_status_t program_finish(program_t *p) LH_MUST_CHECK;

/* Steps of engine_build. */
lh_status_t program_choose(program_t *p) LH_MUST_CHECK;
lh_status_t program_place(program_t *p) LH_MUST_CHECK;

#endif
