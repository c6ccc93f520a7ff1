/* graph/recording.h - what was recorded: values and the nodes that make them, in order; and what passes do
 * with them.
 *
 * A model is not executed op by op. Its plugin calls the recorder (lh_graph_api_t) once for the
 * embedding, each block and the head, and what it called is a recording: a straight list, in which
 * a node's inputs come from nodes before it. A recording has no control flow, no data and no
 * memory, only shapes and dtypes. So a block that is recorded once can be instantiated for every
 * equal block and micro-batch, forward and back; and a model can't branch on data.
 *
 * Passes work on the list: fusion rewrites nodes of the forward pass in place, the gradient pass
 * appends nodes, core/engine writes instances of the list into a flow. Value 0 is "none"; values
 * and nodes start at index 1. A recording belongs to the program that keeps it; one thread uses it.
 * A recording keeps its first failure, after which calls return 0, so that neither models nor
 * gradient functions need to check after each line. */
#ifndef GRAPH_RECORDING_H
#define GRAPH_RECORDING_H

#include <graph/op_table.h>

/* Kinds of values: what comes from outside a recording (parameters, inputs, constants, arguments),
 * and what a node makes. The engine resolves the former when it instantiates the recording. */
enum {
    VALUE_NONE = 0,     /* dropped by a pass; the ids of other values stay */
    VALUE_PARAM = 1,    /* a parameter, by `name` */
    VALUE_INPUT = 2,    /* a run-time input, by `which`, LH_INPUT_* */
    VALUE_CONSTANT = 3, /* `constant`, F32 [constant_count] */
    VALUE_RESULT = 4,   /* an output of `node`, in `slot` */
    VALUE_ARGUMENT = 5, /* what flows in: the part's input, or the gradient of its output */
    /* A RESULT that is the gradient of parameter `name`, in the accumulation dtype. Its node must
     * be able to add: in a step the first node that writes a gradient writes, later ones add
     * (flow_finish decides). */
    VALUE_GRADIENT = 6,
};

/* A tensor as it will be: [rows, columns] or another shape of up to LH_MAX_RANK dimensions, dense.
 * Ids of values never change, whatever passes do. */
typedef struct graph_value {
    uint32_t kind;         /* VALUE_* */
    uint32_t node;         /* RESULT, GRADIENT: the node that makes it */
    uint32_t slot;         /* RESULT, GRADIENT: index into that node's slots */
    uint32_t which;        /* INPUT */
    const char *name;      /* PARAM, GRADIENT; owned by the recording */
    const float *constant; /* CONSTANT; owned by the recording */
    uint64_t constant_count;
    lh_arg_t arg; /* dtype, rank, shape, stride; layout dense */
} graph_value_t;

/* A call of an op. Nodes change their numbers when fusion drops others. */
typedef struct graph_node {
    const op_t *op;
    void *attributes;           /* owned by the recording; op->row.attributes_bytes, or NULL */
    lh_value_t slots[OP_SLOTS]; /* inputs, then outputs; 0: left out */
    /* By slot, for outputs: the value onto whose memory this output adds, so that, say, the
     * gradients that q, k and v send into their common input are one sum. 0: the output writes. */
    lh_value_t adds_to[OP_SLOTS];
    bool backward; /* appended by the gradient pass */
    /* Of such a node: the node of the forward pass whose gradient it is part of. As nodes are walked
     * back, these numbers only fall. 0: it belongs to where the way back begins. */
    uint32_t gradient_of;
} graph_node_t;

/* A term that the model adds to what is minimised; terms of all blocks are summed. */
typedef struct graph_loss {
    const char *metric; /* its name in reports; owned by the recording */
    lh_value_t value;   /* [1], F32 or F64 */
} graph_loss_t;

/* A sum over the parts of a micro-batch: what this part adds to it, or the argument by which the
 * head reads it. */
typedef struct graph_sum {
    const char *name; /* owned by the recording */
    lh_value_t value; /* [count], F32 or F64    */
    /* Where the recording is differentiated: of what is added, the argument in which the sum's
     * gradient comes; of what is read, the gradient itself (0: no loss depends on it). */
    lh_value_t gradient;
} graph_sum_t;

/* What a recording is made for: sizes, dtypes, and whom to ask for shapes of parameters and for
 * kernels. */
typedef struct recording_how {
    const op_table_t *ops;
    const lh_host_t *host;
    uint64_t tokens, sequences, max_documents; /* of a micro-batch; tokens: the rows of the part */
    uint32_t document_rows; /* every document has as many rows; 0: nobody knows */
    lh_dtype_t compute;     /* of parameters and activations: BF16, F32, or F64 in tests */
    lh_dtype_t accumulate;  /* of parameters' gradients: F32, or F64 when compute is F64 */
    /* Finds the shape of a parameter by its name in the part that is recorded: rank 1 or 2, or 3
     * for experts. Fails with a sentence. NULL: there are no parameters. */
    lh_status_t (*param)(void *context, const char *name, uint64_t shape[LH_MAX_RANK],
                         uint32_t *rank);
    /* Whether a matrix has an adapter (parameters.h); *scale: alpha / rank, *magnitude: it has a
     * lora_m too. NULL: none has. */
    bool (*adapted)(void *context, const char *name, double *scale, bool *magnitude);
    void *context;
    /* Whether the device has a kernel for a call; args: inputs, then outputs. NULL: no device is
     * known; ops that can be expanded are, and nothing is fused. */
    bool (*offers)(void *device, const op_t *op, const void *attributes, const lh_arg_t *args);
    void *device;
} recording_how_t;

/* The list and what belongs to it. `how.context` is valid only while a part is recorded or
 * differentiated; whoever records sets it to NULL afterwards. */
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
    graph_sum_t *added, *totals;
    uint32_t added_count, total_count;
    size_t added_capacity, total_capacity;
    lh_status_t status;   /* the first failure */
    char *reason;         /* its sentence; NULL: none, or memory was short */
    bool misshapen;       /* it is an op's refusal of a call with a parameter that it names */
    bool backward;        /* nodes that are recorded now belong to the reverse pass */
    uint32_t gradient_of; /* to the gradient of this node; 0: of none */
    uint32_t expanding;   /* how many expand() functions are at work, one inside the other */
    bool adapting;        /* one of them is a linear layer's whose adapter is recorded behind it */
    lh_value_t output;    /* what the part returned */
} recording_t;

/* NULL does nothing. A recording is begun by the recorder (recorder.h). */
void recording_free(recording_t *r);
/* LH_OK, or the status of the first failure of any call that recorded; fail() is called again with
 * its sentence. */
lh_status_t recording_status(const recording_t *r) LH_MUST_CHECK;
/* Likewise; the sentence begins with the part (LH_PART_*) that was recorded: "block 0, q_norm:
 * rms_norm wants ...". */
lh_status_t recording_status_of(const recording_t *r, uint32_t part, uint32_t block) LH_MUST_CHECK;
/* A dense value of kind ARGUMENT, shape [rank]. 0 after a failure. */
lh_value_t recording_argument(recording_t *r, lh_dtype_t dtype, uint32_t rank,
                              const uint64_t *shape);
/* Gives a node's output another dtype, as F32 for the logits of a BF16 matmul. Kernels are chosen
 * by dtypes later, so the device must have one that writes this dtype. */
void recording_retype(recording_t *r, lh_value_t v, lh_dtype_t dtype);
/* Whether two recordings have the same ops, attributes, shapes, constants, parameter names and
 * wiring. Equal blocks share a recording, and its instances differ in their parameters only. */
bool recording_equal(const recording_t *a, const recording_t *b);
/* The first node in which two recordings that are not equal differ, or in what it reads and writes;
 * of the longer one, where the other is its beginning. 0: in no call, but in what is returned,
 * minimised or summed, or in what nobody reads. */
uint32_t recording_difference(const recording_t *a, const recording_t *b);

/* Where arguments are memory that lasts, an op that works in place (op_t.alias) writes over them,
 * and what stood there is gone. The first node that does so behind the one that made the value; 0:
 * none, or the value lies in no argument's memory. */
uint32_t recording_written_over(const recording_t *r, lh_value_t v);
/* The first node that reads what *over, a node before it, has written over; 0: none. */
uint32_t recording_late_read(const recording_t *r, uint32_t *over);

/* ---- for passes that record, inside core/graph ---- */

/* Keeps the first failure: its status and the sentence of the last fail(). LH_OK changes
 * nothing. */
void recording_failed(recording_t *r, lh_status_t status);
/* Puts words before the sentence of the first failure: where it was called, and with what. */
void recording_explain(recording_t *r, const char *before);
/* Whether two arguments have one dtype and shape, whatever their strides. */
bool recording_args_alike(const lh_arg_t *a, const lh_arg_t *b);

/* Append a copy of a value or a node; 0 where memory is short, which the recording keeps. */
lh_value_t recording_value_add(recording_t *r, const graph_value_t *value);
uint32_t recording_node_add(recording_t *r, const graph_node_t *node);

/* How many slots a node has, inputs and outputs. */
static inline uint32_t node_slots(const graph_node_t *n)
{
    return n->op->in_count + n->op->out_count;
}

#endif
