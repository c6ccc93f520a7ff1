/* parallel/transfers.h - what moves between ranks in a step: a table of transfers, each a bucket of
 * gradients to sum, of new values to gather, the values of an instance, or partial sums of the
 * norm.
 *
 * It is the engine's exchange (program/transfer.h). arrange.c puts calls of transfers into the
 * programs' flows before these have memory; then a collective of comm is planned for each; in a
 * step they are started and waited for. Fields of these structs are for the files of parallel/;
 * others use the functions.
 *
 *    kind           collective                       of what, where
 *    SUM            all-reduce, or reduce-scatter    a bucket of gradients: in their store, or in
 *                   where gradients are cut          whole forms that live for the bucket
 *    ACROSS         all-reduce over sites            what the SUM left on this rank, in its store
 *    VALUE_GATHER   all-gather                       new values from their owners, in the store
 *    INSTANCE       all-gather                       values that are cut, into a block's whole form
 *    PARTIALS       all-gather                       sums of squares of gradients, for the norm
 *    RECORDED       as a model recorded it           activations
 *
 * Over n ranks with P elements a rank sends about 2 (n - 1) / n P elements in a step where nothing
 * is cut (an all-reduce of gradients), and as many where the update is cut (a reduce-scatter of
 * gradients, a gather of values). Whole gradients that live for a bucket are summed in every round
 * of the schedule, and values that are cut are gathered for each instance. */
#ifndef PARALLEL_TRANSFERS_H
#define PARALLEL_TRANSFERS_H

#include <comm/comm.h>
#include <engine/program.h>
#include <parallel/shards.h>
#include <program/transfer.h>

/* What op sum_squares leaves of a block: words a partial sum. */
enum { PARTIAL_WORDS = 2 };

enum { MOVE_SUM = 1, MOVE_ACROSS, MOVE_VALUE_GATHER, MOVE_INSTANCE, MOVE_PARTIALS, MOVE_RECORDED };

/* A transfer with what parallel/ knows of it: which parameters, and where their whole form lies.
 * Made before programs have memory; `plan` follows when they have. `running` is the host's view, of
 * runs that were started and not waited for. */
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

/* Memory that may travel: values, gradients, and three arenas. */
enum { TRANSFER_ALLOCATIONS = 5 };

/* One for each engine. Its lists are complete when programs are arranged, and only read in a
 * step. */
typedef struct transfers {
    /* What the engine calls; then what transfers_how_t named. */
    exchange_t exchange; /* first: an exchange_t * is a transfers_t * */
    engine_t *engine;
    weights_t *weights;
    const world_t *world;
    comm_t *comm; /* NULL: planned only */
    shards_t *shards;
    optimizer_tables_t tables; /* theirs */
    /* Who takes part in all transfers but ACROSS and RECORDED. */
    const group_t *group;   /* theirs, of the shares */
    uint32_t group_kind;    /* LH_GROUP_* of it */
    const shares_t *shares; /* theirs */
    group_t *across;        /* NULL: nothing is summed over sites by itself */
    uint32_t micro_batches;
    uint64_t bucket_bytes;
    bool recorded; /* some transfers are a model's own, of activations */

    /* Descriptors of registered memory: peers map it by these, so they stay open until the end. */
    int shared[TRANSFER_ALLOCATIONS];
    uint32_t shared_count;

    /* The table, in the order in which collectives are planned: the same on all ranks. */
    move_t **list;
    uint32_t count;
    size_t capacity;
    move_t **value_gather_of; /* [parameters] what gathers its new value; NULL: nothing */
} transfers_t;

/* All but the shards outlives the transfers. */
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

/* Becomes the engine's exchange, and says which elements this rank saves (weights->owned). Refused
 * if the tables ask for a whole form that lives otherwise than is built. On failure the shards stay
 * the caller's. */
lh_status_t transfers_new(const transfers_how_t *how, transfers_t **out) LH_MUST_CHECK;
/* After engine_close, and after comm_close, whose plans read its groups. NULL does nothing. */
void transfers_free(transfers_t *t);

/* Gathers all values anew, after they were loaded or drawn. All ranks call it, between steps. */
lh_status_t transfers_value_gather(transfers_t *t) LH_MUST_CHECK;
/* Waits for whatever is under way, on the device and between ranks. */
lh_status_t transfers_finish(transfers_t *t) LH_MUST_CHECK;

/* Plans every transfer as engine_build does, for a communicator that is planned only. After
 * engine_plan, which it needs in place of memory. */
lh_status_t transfers_plan(transfers_t *t) LH_MUST_CHECK;

/* A storage of its own that is trained. */
bool transfers_is_updated(const weights_t *w, uint32_t parameter);
/* Partial sums of the norm that so many elements of a parameter come to. */
uint64_t transfers_norm_blocks(uint64_t elements);
/* A new row; arrays are copied. values may be NULL. Rows are added in the same order on all ranks,
 * as that is the order of plans. The transfer's group, dtype and elements are filled in, but for a
 * recorded one's. */
lh_status_t transfers_add(transfers_t *t, const move_t *row, move_t **out) LH_MUST_CHECK;
/* How large a bucket becomes before it is closed, in bytes of gradients or values. */
uint64_t transfers_bucket_bytes(const transfers_t *t);
/* Values of a move in a program's flow, for a call that starts it or waits for it. */
flow_moved_t transfers_moved(const transfers_t *t, program_t *p, const move_t *m);

#endif
