/* graph/recorder.h - how passes inside core/graph record: the same way as plugins, by parts. */
#ifndef GRAPH_RECORDER_H
#define GRAPH_RECORDER_H

#include <graph/op_table.h>

/* The functions that a recording offers plugins. */
extern const lh_graph_api_t recorder_api;

/* Keeps the first failure: its status and the sentence of the last fail(). */
void recorder_failed(recording_t *r, lh_status_t status);

/* An op with its inputs, before it becomes a node. */
typedef struct op_call {
    const op_t *op;
    void *attributes; /* owned by the call until it is appended; NULL: the op has none */
    lh_value_t in[OP_SLOTS];
    lh_arg_t args[OP_SLOTS]; /* inputs, then outputs */
} op_call_t;

/* Copies attributes, fills in inputs that have a standard source, completes attributes and asks the
 * op's shape(). On success the caller owns call->attributes (mem_free). */
lh_status_t op_call_make(recording_t *r, const op_t *op, const void *attributes,
                         const lh_value_t *in, uint32_t in_count, op_call_t *call) LH_MUST_CHECK;

/* Has the device a kernel for this call? */
bool recorder_offers(const recording_t *r, const op_call_t *call);
/* Same dtype and shape. */
bool arg_alike(const lh_arg_t *a, const lh_arg_t *b);

/* Appends an empty value or node; 0 when memory is short (the recording has failed then). */
lh_value_t recorder_value(recording_t *r, const graph_value_t *value);
uint32_t recorder_node(recording_t *r, const graph_node_t *node);

static inline uint32_t node_slots(const graph_node_t *n)
{
    return n->op->in_count + n->op->out_count;
}

#endif
