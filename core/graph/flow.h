/* graph/flow.h - a program before it has memory: calls in order, the values they touch, and the
 * buffers in which values lie.
 *
 * Recordings are instantiated into it, block by block. Buffers either lie in a region of their own
 * (parameters, inputs, caches) or live from their first call to their last and are planned into the
 * activation arena. Indices start at 1; 0 is none. The first failure is kept in status. */
#ifndef GRAPH_FLOW_H
#define GRAPH_FLOW_H

#include <graph/recording.h>
#include <graph/region.h>

/* Where buffers without a region of their own are planned to. */
enum { ARENA_ACTIVATIONS, ARENA_GATHERED, ARENA_BUCKETS, ARENAS };

typedef struct flow_buffer {
    const region_t *region; /* NULL: an activation */
    uint32_t arena;         /* ARENA_*, without a region */
    uint64_t offset;        /* in the region; in the arena once planned */
    uint64_t bytes;
    uint32_t first, last; /* calls that touch it; after flow_finish */
    bool accumulates;     /* who writes first in a step writes, all others add: gradients, loss */
    bool each_micro;      /* with accumulates: who writes first in a micro-batch writes          */
    bool kept;            /* LH_ARG_KEPT for who reads it */
    bool written;
} flow_buffer_t;

typedef struct flow_value {
    lh_arg_t arg;
    uint32_t buffer;
    uint64_t offset; /* bytes inside the buffer */
} flow_value_t;

enum { FLOW_KERNEL = 1, FLOW_FILL = 2, FLOW_START = 3, FLOW_WAIT = 4 };

typedef struct flow_call {
    uint32_t kind; /* FLOW_* */
    const op_t *op;
    const void *attributes;   /* of a recording, or static */
    uint32_t slots[OP_SLOTS]; /* values; FILL: slots[0] is zeroed; START, WAIT: none */
    const uint32_t *values;   /* START, WAIT: activations that are sent or come; not owned */
    uint32_t value_count;
    uint32_t ticket;    /* START, WAIT: of the engine's exchange */
    uint32_t add;       /* bit per slot: LH_ARG_ADD */
    uint32_t add_later; /* bit per slot: LH_ARG_ADD from the second micro-batch on */
    uint32_t part, block;
    bool backward;
    bool first_only; /* left out from the second micro-batch on */
    bool last_only;  /* START: left out but in the last micro-batch */
    bool gives;      /* START, WAIT: the values are written, not read */
    bool live;
} flow_call_t;

typedef struct flow {
    flow_buffer_t *buffers;
    flow_value_t *values;
    flow_call_t *calls;
    uint32_t buffer_count, value_count, call_count; /* 1 more than there are */
    size_t buffer_capacity, value_capacity, call_capacity;
    uint32_t part, block; /* given to calls from here on */
    bool backward;
    uint32_t turn; /* call at which saved activations are counted: the head's first chunk */
    uint64_t arena_bytes[ARENAS], saved_bytes; /* after flow_finish */
    lh_status_t status;
} flow_t;

lh_status_t flow_new(flow_t **out) LH_MUST_CHECK;
void flow_free(flow_t *f);

/* A dense argument; the last dimension is fastest. */
lh_arg_t flow_arg(lh_dtype_t dtype, uint32_t rank, const uint64_t *shape);
/* Bytes from the first element to the end of the last. */
uint64_t arg_bytes(const lh_arg_t *arg);

uint32_t flow_buffer(flow_t *f, const region_t *region, uint64_t offset, uint64_t bytes);
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

/* A call of the exchange (exchange.h) that is to stand before call `at`; those for one place keep
 * their order. */
typedef struct flow_exchange {
    uint32_t at;
    flow_call_t call; /* part, block and backward are those of call `at` */
} flow_exchange_t;
/* Puts all of them in their places; calls are renumbered. Before flow_finish. */
void flow_weave(flow_t *f, const flow_exchange_t *exchanges, uint32_t count);

/* A recording on its way into a flow. */
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
 * writes and who adds, plans the activations. Calls are renumbered. */
lh_status_t flow_finish(flow_t *f, uint64_t alignment) LH_MUST_CHECK;

#endif
