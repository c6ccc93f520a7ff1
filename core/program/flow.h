/* program/flow.h - a program before it has memory: calls in order, the values they touch, and the
 * buffers in which values lie.
 *
 * Three tables. A value is an argument as a kernel sees it (dtype, shape, strides) at an offset in
 * a buffer; several values may lie in one buffer: rows of it, the same bytes in another shape, or
 * what was there before a call and what is there after it. A buffer is a run of bytes that either
 * lies in an allocation (parameters, inputs, caches), or lives from the first call that touches it
 * to the last and is given a place in an arena for that time. A call is a kernel, a fill with
 * zeros, the start of a transfer or the wait for it.
 *
 * Recordings are instantiated into a flow, block by block: each block of a model appends the same
 * nodes with values of its own. Then core/parallel weaves transfers in, and flow_finish decides
 * what is left to decide. Lists of calls are made of the flow once and run every step, so all that
 * a step branches on is stated here as a property of a call (first_only, later_only, last_only,
 * add_later). A flow writes out every micro-batch and block of a run, which takes memory and
 * planning time, and in return nothing is looked up in a step.
 *
 * Indices start at 1; 0 stands for none. The first failure is kept in status; later calls do
 * nothing and return 0, so that whoever writes a flow checks once. One thread writes a flow, and
 * nobody changes it after flow_finish. */
#ifndef PROGRAM_FLOW_H
#define PROGRAM_FLOW_H

#include <graph/recording.h>
#include <program/allocation.h>
#include <program/transfer.h>

/* The arenas, in which buffers without an allocation get their places. ACTIVATIONS; GATHERED: whole
 * values, where values are cut over ranks, gathered for a block instance; BUCKETS: whole gradients
 * on their way to their owners. */
enum { ARENA_ACTIVATIONS, ARENA_GATHERED, ARENA_BUCKETS, ARENAS };

/* A run of bytes. By `accumulates` and `each_micro` flow_finish decides which of the calls that
 * write a buffer must add to what is there (LH_ARG_ADD): gradients and losses are sums over
 * micro-batches, made in place. */
typedef struct flow_buffer {
    const allocation_t *allocation; /* NULL: it lies in an arena */
    uint32_t arena;                 /* ARENA_*, where there is no allocation */
    uint64_t offset;                /* bytes, in the allocation; in the arena once planned */
    uint64_t bytes;
    uint32_t first, last; /* first and last call that touch it, after flow_finish; 0: none does */
    bool accumulates;     /* the first call of a step that writes it writes, all others add */
    bool each_micro;      /* with accumulates: the first call of each run writes */
    bool kept;            /* LH_ARG_KEPT for calls that read it: no call of the program writes it */
    bool written;         /* while flow_finish decides: a call before writes it */
    uint32_t joined;      /* the buffer that its values lie in since packing_apply; 0: this one */
} flow_buffer_t;

/* What a call sees of a buffer. Several values of one buffer may overlap. */
typedef struct flow_value {
    lh_arg_t arg;
    uint32_t buffer;
    uint64_t offset; /* bytes inside the buffer */
} flow_value_t;

/* Kinds of calls. A start and a wait name the same transfer and the same values; a start is one of
 * a collective, of a send or of a receive, as its transfer says. */
enum { FLOW_KERNEL = 1, FLOW_FILL = 2, FLOW_COLLECTIVE = 3, FLOW_WAIT = 4 };

/* The values that a transfer reads and writes: where each list begins in flow_t.moved, and how long
 * it is. From the start to the wait no call may change what is read or touch what is written. */
typedef struct flow_moved {
    uint32_t reads, read_count, writes, write_count;
} flow_moved_t;

/* A call. first_only and later_only decide which of a program's two lists the call is in: that of
 * the first round of a step, or that of later rounds. A last_only call is in both, and is passed
 * over when a list runs, except in the last round of a step. */
typedef struct flow_call {
    uint32_t kind; /* FLOW_* */
    const op_t *op;
    const void *attributes;     /* borrowed from a recording, or static */
    uint32_t slots[OP_SLOTS];   /* values; FILL: slots[0] is zeroed; COLLECTIVE, WAIT: none */
    const transfer_t *transfer; /* COLLECTIVE, WAIT; borrowed */
    flow_moved_t moved;         /* COLLECTIVE, WAIT */
    uint32_t add;               /* bit per slot: LH_ARG_ADD */
    uint32_t add_later;         /* bit per slot: LH_ARG_ADD in later rounds */
    uint32_t part, block;       /* LH_PART_*, and the block's number: for reports */
    uint32_t row;               /* of the schedule, in its round */
    bool backward;
    bool first_only; /* left out of later rounds */
    bool later_only; /* left out of the first round */
    bool last_only;  /* COLLECTIVE: left out of all rounds but the last */
    bool live;       /* while flow_finish drops calls: this one is needed */
} flow_call_t;

/* The tables. Counts of buffers, values and calls are 1 more than there are, as index 0 is none. */
typedef struct flow {
    flow_buffer_t *buffers;
    flow_value_t *values;
    flow_call_t *calls;
    uint32_t *moved;       /* [moved_count] values of transfers, list behind list */
    transfer_t **recorded; /* [recorded_count] transfers that recordings state; owned */
    uint32_t buffer_count, value_count, call_count;
    uint32_t moved_count, recorded_count;
    size_t buffer_capacity, value_capacity, call_capacity, moved_capacity, recorded_capacity;
    /* Set by whoever writes, and given to each call that is appended: flow_call_t says what they
     * are. */
    uint32_t part, block, row;
    bool backward;
    uint32_t turn; /* the call at which saved activations are counted: the head's first; 0: none */
    uint64_t arena_bytes[ARENAS], saved_bytes; /* after flow_finish */
    lh_status_t status;
} flow_t;

/* A flow without calls, freed by flow_free together with the transfers that recordings stated. NULL
 * does nothing. */
lh_status_t flow_new(flow_t **out) LH_MUST_CHECK;
void flow_free(flow_t *f);

/* A dense argument; the last dimension is fastest. */
lh_arg_t flow_arg(lh_dtype_t dtype, uint32_t rank, const uint64_t *shape);
/* How many values a call touches through its slots, inputs first. A transfer's values are not in slots
 * but in `moved`. */
uint32_t flow_call_slots(const flow_call_t *call);
/* Bytes from the first element to the end of the last. */
uint64_t flow_arg_bytes(const lh_arg_t *arg);

/* A buffer at `offset` bytes of an allocation, or (NULL) one that is planned into the arena of
 * activations. flow_finish does not see that two buffers lie at one place, so whoever may need a
 * place twice keeps its buffer. */
uint32_t flow_buffer(flow_t *f, const allocation_t *allocation, uint64_t offset, uint64_t bytes);
/* A value at `offset` bytes inside a buffer. */
uint32_t flow_value(flow_t *f, const lh_arg_t *arg, uint32_t buffer, uint64_t offset);
/* A dense value like arg in a new buffer, in the arena of activations or in another. */
uint32_t flow_activation(flow_t *f, const lh_arg_t *arg);
uint32_t flow_in_arena(flow_t *f, const lh_arg_t *arg, uint32_t arena);
/* Rows [begin, begin + rows) of a value, in the value's memory: the first dimension is cut. */
uint32_t flow_rows(flow_t *f, uint32_t value, uint64_t begin, uint64_t rows);
/* A value's memory seen as another dense shape with as many elements. */
uint32_t flow_reshape(flow_t *f, uint32_t value, uint32_t rank, const uint64_t *shape);

/* Append a call. slots: [op->in_count + op->out_count] values, 0 where one is left out. attributes
 * must outlive the flow. flow_fill sets a value to zero, in all rounds or in the first only. */
void flow_kernel(flow_t *f, const op_t *op, const void *attributes, const uint32_t *slots);
void flow_fill(flow_t *f, uint32_t value, bool first_only);

/* Copies two lists of values, which a transfer reads and writes, for the calls of that transfer. */
flow_moved_t flow_moved(flow_t *f, const uint32_t *reads, uint32_t read_count,
                        const uint32_t *writes, uint32_t write_count);

/* A start or a wait that is to stand before call `at`. Several for one place keep their order. */
typedef struct flow_insert {
    uint32_t at;
    flow_call_t call; /* part, block, row and backward are those of call `at` */
} flow_insert_t;
/* Puts all inserts in their places, and renumbers calls. Before flow_finish. */
void flow_weave(flow_t *f, const flow_insert_t *inserts, uint32_t count);

/* A recording on its way into a flow: one instance of a part. */
typedef struct flow_source {
    flow_t *flow;
    const recording_t *recording;
    const op_t *copy; /* op "copy" */
    /* [recording->value_count] flow values; 0: not yet known. The caller sets arguments beforehand,
     * and results that are to lie in memory of its choice. */
    uint32_t *map;
    /* The flow value of a PARAM, INPUT, CONSTANT or GRADIENT. 0 after fail(). */
    uint32_t (*leaf)(void *context, const graph_value_t *value);
    void *context;
    /* Where the nodes at hand begin: those of one walk over the recording, in its order; what is left
     * for a later walk stands behind all of them. Values made since, but for the recorded one that is
     * used outside, are known to be touched by these nodes alone, and those behind. */
    uint32_t first_call, first_value, first_buffer;
    lh_value_t outside;
} flow_source_t;

/* Appends one node; its inputs are mapped, leaves, or results of nodes appended before. */
void flow_node(flow_source_t *s, uint32_t node);
/* The flow value that a recorded value became; asks `leaf` where nothing has made it. */
uint32_t flow_mapped(flow_source_t *s, lh_value_t value);

/* Drops calls whose results no call needs, leaves out optional results that no call reads, decides
 * which calls write and which add, finds how long each buffer lives, and plans the arenas. Calls
 * are renumbered; values and buffers keep their numbers, but a value may lie in another buffer than
 * it was made for (op_t.over). alignment: bytes, a power of two
 * (engine_alignment). LH_UNSUPPORTED where an op can't add onto a gradient that several calls
 * make. */
lh_status_t flow_finish(flow_t *f, uint64_t alignment) LH_MUST_CHECK;

#endif
