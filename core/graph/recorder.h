/* graph/recorder.h - begins a recording, into which models, rules and gradients then record by its functions
 * (lh_graph_api_t); and the checks behind those, which passes use as well. One thread uses a recording. */
#ifndef GRAPH_RECORDER_H
#define GRAPH_RECORDER_H

#include <graph/recording.h>

/* An empty recording; `how` is copied. Freed by recording_free. */
lh_status_t recorder_new(const recording_how_t *how, recording_t **out) LH_MUST_CHECK;
/* The LH_INPUT_* that an input slot of this name takes where it is left out; 0: none. */
uint32_t recorder_input_of(const char *slot);

/* ---- for passes that record, inside core/graph ---- */

/* An op with its inputs, before it becomes a node. Fused ops and those that models record go
 * through the same checks. */
typedef struct op_call {
    const op_t *op;
    void *attributes; /* owned by the call until it is appended; NULL: the op has none */
    lh_value_t in[OP_SLOTS];
    lh_arg_t args[OP_SLOTS]; /* inputs, then outputs */
} op_call_t;

/* Makes a call: copies attributes, fills in inputs that have a standard source (tokens, positions
 * and their like, by the name of the slot), completes attributes and asks the op's shape(). On
 * success the caller owns call->attributes (mem_free). LH_INVALID where the op refuses the inputs;
 * the recording does not keep that failure. */
lh_status_t recorder_call(recording_t *r, const op_t *op, const void *attributes,
                          const lh_value_t *in, uint32_t in_count, op_call_t *call) LH_MUST_CHECK;

/* Whether the device has a kernel for a call. False where no device is known. */
bool recorder_offers(const recording_t *r, const op_call_t *call);

#endif
