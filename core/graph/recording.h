/* graph/recording.h - what was recorded: values and the nodes that make them, in order; and the
 * functions by which passes record.
 *
 * A model is not executed op by op. Its plugin calls the recorder (lh_graph_api_t) once for the
 * embedding, each block and the head, and what it called is a recording: a straight list, where a
 * node's inputs come from nodes before it. There is no control flow, no data and no memory in it,
 * only shapes and dtypes; so a block that is recorded once can be instantiated for every equal
 * block, micro-batch and direction.
 *
 * Passes work on the list: fusion rewrites nodes of the forward pass in place, the gradient pass
 * appends nodes, core/engine writes instances of it into a flow. Value 0 is "none"; values and
 * nodes start at index 1. A recording belongs to the program that keeps it; one thread uses it.
 * The first failure is kept in it and later calls return 0, so that neither models nor gradient
 * functions check after each line. */
#ifndef GRAPH_RECORDING_H
#define GRAPH_RECORDING_H

#include <graph/op_table.h>

/* Kinds of values: what comes from outside a recording (parameters, inputs, constants, arguments),
 * and what a node makes. A program resolves the former when it instantiates the recording. */
enum {
    VALUE_NONE = 0,     /* a pass has dropped it; ids of the others stay                */
    VALUE_PARAM = 1,    /* name                                                        */
    VALUE_INPUT = 2,    /* which: LH_INPUT_*                                           */
    VALUE_CONSTANT = 3, /* constant: [count] F32                                       */
    VALUE_RESULT = 4,   /* of node, in output slot                                     */
    VALUE_ARGUMENT = 5, /* what flows into the recording: the part's input, a gradient from above */
    VALUE_GRADIENT = 6, /* a RESULT that is the gradient of parameter `name`, in the accumulation
                           dtype. Every node that writes it may be asked to add; who writes first in
                           a step writes, later ones add: the program decides by order     */
};

/* A tensor as it will be: [rows, columns] or another shape of up to LH_MAX_RANK dimensions, dense.
 * Ids of values never change, whatever passes do. */
typedef struct graph_value {
    uint32_t kind; /* VALUE_*                                           */
    uint32_t node; /* RESULT, GRADIENT: who makes it                    */
    uint32_t slot; /* index into that node's slots                      */
    uint32_t which;
    const char *name;      /* owned by the recording */
    const float *constant; /* owned by the recording */
    uint64_t constant_count;
    lh_arg_t arg; /* dtype, rank, shape, stride; layout dense */
} graph_value_t;

/* A call of an op. Nodes move when others are dropped; values say by which node they are made. */
typedef struct graph_node {
    const op_t *op;
    void *attributes;           /* owned by the recording; op->row.attributes_bytes, or NULL */
    lh_value_t slots[OP_SLOTS]; /* inputs then outputs; 0: left out              */
    /* Per slot, outputs only: the value whose memory this output adds onto, so that q, k and v's
     * gradients into their shared input are one accumulator. 0: writes. */
    lh_value_t adds_to[OP_SLOTS];
    bool backward; /* appended by the gradient pass */
} graph_node_t;

/* A term that the model adds to what is minimised, [1]; of blocks, summed over all of them. */
typedef struct graph_loss {
    const char *metric;
    lh_value_t value;
} graph_loss_t;

/* What a recording is made for: sizes, dtypes, and whom to ask for shapes of parameters and for
 * kernels. */
typedef struct recording_how {
    const op_table_t *ops;
    const lh_host_t *host;
    uint64_t tokens, sequences, max_documents;
    lh_dtype_t compute;    /* of parameters and activations: BF16, F32, or F64 in tests    */
    lh_dtype_t accumulate; /* of parameters' gradients: F32 (F64 when compute is F64)     */
    /* Shape of a parameter by its name in the part that is recorded: rank 1 or 2, or 3 for
     * experts. NULL: there are none. Refused with a sentence. */
    lh_status_t (*param)(void *context, const char *name, uint64_t shape[LH_MAX_RANK],
                         uint32_t *rank);
    void *context;
    /* Has the device a kernel for this call? args in slot order, outputs included. NULL: no device
     * is known; ops are recorded as base ops, and nothing is fused. */
    bool (*offers)(void *device, const op_t *op, const void *attributes, const lh_arg_t *args);
    void *device;
} recording_how_t;

/* The list and what belongs to it. `how.context` is valid only while a part is recorded or
 * differentiated; who keeps the recording sets it to NULL afterwards. */
typedef struct recording {
    lh_graph_t graph; /* first: a lh_graph_t * that plugins get is a recording_t * */
    recording_how_t how;
    graph_value_t *values; /* [1..value_count) */
    graph_node_t *nodes;   /* [1..node_count)  */
    uint32_t value_count, node_count;
    size_t value_capacity, node_capacity;
    graph_loss_t *losses;
    uint32_t loss_count;
    size_t loss_capacity;
    lh_status_t status; /* first failure; its sentence is kept in reason */
    char *reason;
    bool backward;      /* what is recorded now belongs to the reverse pass */
    uint32_t expanding; /* expand() functions that are at work, one inside the other */
    lh_value_t output;  /* what the part returned */
} recording_t;

/* An empty recording; `how` is copied. Freed by recording_free, NULL does nothing. */
lh_status_t recording_new(const recording_how_t *how, recording_t **out) LH_MUST_CHECK;
void recording_free(recording_t *r);
/* The first failure of any recording call: LH_OK, or its status with fail() called again. */
lh_status_t recording_status(const recording_t *r) LH_MUST_CHECK;
/* A value of kind ARGUMENT: what comes from outside. 0 after a failure. */
lh_value_t recording_argument(recording_t *r, lh_dtype_t dtype, uint32_t rank,
                              const uint64_t *shape);
/* Gives a value that an op made another dtype: logits of BF16 matmuls in F32, for one. Kernels are
 * chosen by it later, so there must be one that writes that dtype. */
void recording_retype(recording_t *r, lh_value_t v, lh_dtype_t dtype);
/* Same ops, attributes, shapes, constants, parameter names and wiring: such blocks share a
 * recording, and instances of it differ in their parameters only. */
bool recording_equal(const recording_t *a, const recording_t *b);

/* ---- for passes that record, inside core/graph ---- */

/* Keeps the first failure: its status and the sentence of the last fail(). LH_OK changes
 * nothing. */
void recording_failed(recording_t *r, lh_status_t status);

/* An op with its inputs, before it becomes a node: the fused ops and those of models go through
 * the same checks. */
typedef struct op_call {
    const op_t *op;
    void *attributes; /* owned by the call until it is appended; NULL: the op has none */
    lh_value_t in[OP_SLOTS];
    lh_arg_t args[OP_SLOTS]; /* inputs, then outputs */
} op_call_t;

/* Copies attributes, fills in inputs that have a standard source (tokens, positions and their
 * like, by the name of the slot), completes attributes and asks the op's shape(). On success the
 * caller owns call->attributes (mem_free). */
lh_status_t recording_call(recording_t *r, const op_t *op, const void *attributes,
                           const lh_value_t *in, uint32_t in_count, op_call_t *call) LH_MUST_CHECK;

/* Has the device a kernel for this call? False where no device is known. */
bool recording_offers(const recording_t *r, const op_call_t *call);
/* Same dtype and shape. */
bool recording_args_alike(const lh_arg_t *a, const lh_arg_t *b);

/* Appends an empty value or node; 0 when memory is short (the recording has failed then). */
lh_value_t recording_value_add(recording_t *r, const graph_value_t *value);
uint32_t recording_node_add(recording_t *r, const graph_node_t *node);

/* Slots of a node, inputs and outputs. */
static inline uint32_t node_slots(const graph_node_t *n)
{
    return n->op->in_count + n->op->out_count;
}

#endif
