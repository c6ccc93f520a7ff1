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
 * Recordings are instantiated into it, block by block: each block of a model appends the same
 * nodes with values of its own. Then core/parallel weaves transfers in, and flow_finish decides
 * what is left to decide. Lists of calls are made of it once and run every step, so all that a
 * step branches on is stated here as a property of a call (first_only, later_only, last_only,
 * add_later).
 *
 * Indices start at 1; 0 is none. The first failure is kept in status, later calls do nothing and
 * return 0, so that whoever writes a flow checks once. One thread writes it; it is not changed
 * after flow_finish. */
#ifndef PROGRAM_FLOW_H
#define PROGRAM_FLOW_H

#include <graph/recording.h>
#include <program/allocation.h>
#include <program/transfer.h>

/* Where buffers without an allocation of their own are planned to: activations; whole forms of
 * values that are cut over ranks, gathered for a block instance; whole gradients on their way to
 * their owners. */
enum { ARENA_ACTIVATIONS, ARENA_GATHERED, ARENA_BUCKETS, ARENAS };

/* A run of bytes. `accumulates` and `each_micro` decide at flow_finish which call that writes it
 * must add to what is there (LH_ARG_ADD): gradients and losses are sums over micro-batches, made
 * in place. */
typedef struct flow_buffer {
    const allocation_t *allocation; /* NULL: an activation */
    uint32_t arena;                 /* ARENA_*, without an allocation */
    uint64_t offset;                /* in the allocation; in the arena once planned */
    uint64_t bytes;
    uint32_t first, last; /* calls that touch it; after flow_finish */
    bool accumulates;     /* who writes first in a step writes, all others add: gradients, loss */
    bool each_micro;      /* with accumulates: who writes first in a micro-batch writes          */
    bool kept;            /* LH_ARG_KEPT for who reads it */
    bool written;
} flow_buffer_t;

/* What a call sees of a buffer. Several values of one buffer may overlap. */
typedef struct flow_value {
    lh_arg_t arg;
    uint32_t buffer;
    uint64_t offset; /* bytes inside the buffer */
} flow_value_t;

/* Kinds of calls. A start and a wait name the same transfer and the same values. */
enum { FLOW_KERNEL = 1, FLOW_FILL = 2, FLOW_COLLECTIVE = 3, FLOW_WAIT = 4 };

/* Values of a call that starts a transfer or waits for it, in flow_t.moved. From the start to the
 * wait nobody may change what is read or touch what is written. */
typedef struct flow_moved {
    uint32_t reads, read_count, writes, write_count;
} flow_moved_t;

/* What is left out when: first_only and later_only decide which of a program's two lists the call
 * is in; a last_only call is in both, and is passed over when the list runs, but in the last run
 * of a step. */
typedef struct flow_call {
    uint32_t kind; /* FLOW_* */
    const op_t *op;
    const void *attributes;     /* of a recording, or static */
    uint32_t slots[OP_SLOTS];   /* values; FILL: slots[0] is zeroed; COLLECTIVE, WAIT: none */
    const transfer_t *transfer; /* COLLECTIVE, WAIT: of the engine's exchange, which owns it */
    flow_moved_t moved;         /* COLLECTIVE, WAIT */
    uint32_t add;               /* bit per slot: LH_ARG_ADD */
    uint32_t add_later;         /* bit per slot: LH_ARG_ADD from the second micro-batch on */
    uint32_t part, block;
    uint32_t row; /* of the schedule */
    bool backward;
    bool first_only; /* left out from the second micro-batch on */
    bool later_only; /* left out of the first micro-batch */
    bool last_only;  /* COLLECTIVE: left out but in the last micro-batch */
    bool live;
} flow_call_t;

/* A table has room for more than it holds; count is 1 more than there are, as index 0 is none. */
typedef struct flow {
    flow_buffer_t *buffers;
    flow_value_t *values;
    flow_call_t *calls;
    uint32_t *moved;       /* values of transfers */
    transfer_t **recorded; /* transfers that recordings state; the exchange takes them over */
    uint32_t buffer_count, value_count, call_count; /* 1 more than there are */
    uint32_t moved_count, recorded_count;
    size_t buffer_capacity, value_capacity, call_capacity, moved_capacity, recorded_capacity;
    /* What is being written: set by the writer, given to each call from there on. part is
     * LH_PART_*, block its number, row that of the schedule in its round. */
    uint32_t part, block, row; /* given to calls from here on */
    bool backward;
    uint32_t turn; /* call at which saved activations are counted: the head's first chunk */
    uint64_t arena_bytes[ARENAS], saved_bytes; /* after flow_finish */
    lh_status_t status;
} flow_t;

/* A flow without calls. Freed by flow_free, with the transfers that recordings stated; NULL does
 * nothing. */
lh_status_t flow_new(flow_t **out) LH_MUST_CHECK;
void flow_free(flow_t *f);

/* A dense argument; the last dimension is fastest. */
lh_arg_t flow_arg(lh_dtype_t dtype, uint32_t rank, const uint64_t *shape);
/* Bytes from the first element to the end of the last. */
uint64_t flow_arg_bytes(const lh_arg_t *arg);

/* A buffer at `offset` of an allocation, or (NULL) one that is planned into the activation arena.
 * Two buffers at one place are two to flow_finish, so who names a place twice keeps the buffer. */
uint32_t flow_buffer(flow_t *f, const allocation_t *allocation, uint64_t offset, uint64_t bytes);
/* A value at `offset` bytes inside a buffer. */
uint32_t flow_value(flow_t *f, const lh_arg_t *arg, uint32_t buffer, uint64_t offset);
/* A buffer of its own in the activation arena, or in another. */
uint32_t flow_activation(flow_t *f, const lh_arg_t *arg);
uint32_t flow_in_arena(flow_t *f, const lh_arg_t *arg, uint32_t arena);
/* Rows [begin, begin + rows) of a value, in its memory. */
uint32_t flow_rows(flow_t *f, uint32_t value, uint64_t begin, uint64_t rows);
/* The same memory seen as another dense shape with as many elements. */
uint32_t flow_reshape(flow_t *f, uint32_t value, uint32_t rank, const uint64_t *shape);

/* slots: op->in_count + op->out_count values. */
void flow_kernel(flow_t *f, const op_t *op, const void *attributes, const uint32_t *slots);
void flow_fill(flow_t *f, uint32_t value, bool first_only);

/* Copies lists of values, for calls of transfers: what it reads, and what it writes. */
flow_moved_t flow_moved(flow_t *f, const uint32_t *reads, uint32_t read_count,
                        const uint32_t *writes, uint32_t write_count);

/* A start or wait of a transfer that is to stand before call `at`; those for one place keep their
 * order. */
typedef struct flow_insert {
    uint32_t at;
    flow_call_t call; /* part, block, row and backward are those of call `at` */
} flow_insert_t;
/* Puts all of them in their places; calls are renumbered. Before flow_finish. */
void flow_weave(flow_t *f, const flow_insert_t *inserts, uint32_t count);

/* A recording on its way into a flow: one block instance. */
typedef struct flow_source {
    flow_t *flow;
    const recording_t *recording;
    const op_t *copy; /* op "copy" */
    uint32_t *map; /* [recording->value_count] flow values. Set beforehand: arguments, and results
                      that are to lie in memory of the caller's choice */
    /* Flow value of a PARAM, INPUT, CONSTANT or GRADIENT. 0 after fail(). */
    uint32_t (*leaf)(void *context, const graph_value_t *value);
    void *context;
} flow_source_t;

/* Appends one node; its inputs are mapped, leaves, or results of nodes appended before. */
void flow_node(flow_source_t *s, uint32_t node);
/* What a recorded value became; resolves leaves. */
uint32_t flow_mapped(flow_source_t *s, lh_value_t value);

/* Drops calls whose results nobody needs, leaves out optional results nobody reads, decides who
 * writes and who adds, finds how long each buffer lives and plans the arenas. Calls are
 * renumbered; values and buffers keep their numbers. alignment is the device's, in bytes.
 * LH_UNSUPPORTED where an op can't add onto a gradient that several calls make. */
lh_status_t flow_finish(flow_t *f, uint64_t alignment) LH_MUST_CHECK;

#endif
