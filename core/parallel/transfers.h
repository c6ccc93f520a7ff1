/* parallel/transfers.h - what moves between ranks in a step: a table of transfers, each a bucket of
 * gradients to sum, of new values to gather, the values of an instance, or partial sums of the norm.
 *
 * It is the engine's exchange (program/transfer.h): it puts calls of transfers into the programs'
 * flows, plans a collective for each once memory is there, and runs them in a step. */
#ifndef PARALLEL_TRANSFERS_H
#define PARALLEL_TRANSFERS_H

#include <comm/comm.h>
#include <engine/program.h>
#include <parallel/shards.h>
#include <program/transfer.h>

enum { PARTIAL_WORDS = 2 }; /* op sum_squares */

enum { MOVE_SUM = 1, MOVE_ACROSS, MOVE_VALUE_GATHER, MOVE_INSTANCE, MOVE_PARTIALS, MOVE_RECORDED };

/* A transfer with what parallel/ knows of it: which parameters, and where their whole form lies. */
typedef struct move {
    transfer_t transfer;  /* first: a transfer_t * is a move_t * */
    uint32_t kind;        /* MOVE_* */
    uint32_t *parameters; /* [count] storages, in order */
    uint32_t count;
    program_t *program; /* where the whole form lies in its arenas; NULL: in a store */
    uint32_t *values;   /* [count] of that program's flow; PARTIALS: one; RECORDED: what is read
                           and what is written */
    uint32_t arena;     /* ARENA_* */
    struct move *after; /* ACROSS: the last of the sums whose result it sums again, where that lies
                           in memory of comm/ */
    bool awaited;       /* VALUE_GATHER: by the training program */
    collective_t *plan;
    bool running;
} move_t;

enum { TRANSFER_ALLOCATIONS = 5 };

typedef struct transfers {
    exchange_t exchange; /* first: an exchange_t * is a transfers_t * */
    engine_t *engine;
    weights_t *weights;
    const world_t *world;
    comm_t *comm; /* NULL: planned only */
    shards_t *shards;
    optimizer_tables_t tables; /* theirs */
    const group_t *group;      /* theirs, of the shares */
    uint32_t group_kind;       /* LH_GROUP_* of it */
    const shares_t *shares;    /* theirs */
    group_t *across;           /* NULL: nothing is summed over sites by itself */
    uint32_t micro_batches;
    uint64_t bucket_bytes;
    bool recorded; /* some transfers are a model's own, of activations */

    int shared[TRANSFER_ALLOCATIONS]; /* descriptors of registered memory; open until the end */
    uint32_t shared_count;

    move_t **list; /* in the order in which they are planned: the same on all ranks */
    uint32_t count;
    size_t capacity;
    move_t **value_gather_of; /* [parameters] what gathers its new value; NULL: nothing */
} transfers_t;

typedef struct transfers_how {
    engine_t *engine;
    weights_t *weights;
    const world_t *world;
    comm_t *comm;           /* may be planned only; NULL: engine_build is refused     */
    shards_t *shards;       /* of several ranks; belongs to the transfers once they are made */
    uint32_t micro_batches; /* runs of the training program in a step */
    uint64_t bucket_bytes;  /* 0: choose */
    lh_status_t (*arrange)(exchange_t *x); /* arrange_flows (arrange.h) */
} transfers_how_t;

/* Becomes the engine's exchange. */
lh_status_t transfers_new(const transfers_how_t *how, transfers_t **out) LH_MUST_CHECK;
/* After engine_close, and after comm_close, whose plans read its groups. NULL does nothing. */
void transfers_free(transfers_t *t);

/* Gathers all values anew, after they were loaded or drawn. All ranks call it. */
lh_status_t transfers_value_gather(transfers_t *t) LH_MUST_CHECK;
/* Waits for whatever is under way. */
lh_status_t transfers_finish(transfers_t *t) LH_MUST_CHECK;

/* Plans every transfer as engine_build does, for a communicator that is planned only. After
 * engine_plan, which it needs in place of memory. */
lh_status_t transfers_plan(transfers_t *t) LH_MUST_CHECK;

/* A storage of its own that is trained. */
bool transfers_is_updated(const transfers_t *t, uint32_t parameter);
/* A new row; arrays are copied. values may be NULL. */
lh_status_t transfers_add(transfers_t *t, const move_t *row, move_t **out) LH_MUST_CHECK;
uint64_t transfers_bucket_bytes(const transfers_t *t);
/* Values of a move in a program's flow, for a call that starts it or waits for it. */
flow_moved_t transfers_moved(const transfers_t *t, program_t *p, const move_t *m);

#endif
