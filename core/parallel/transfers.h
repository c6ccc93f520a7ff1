/* parallel/transfers.h - what moves between ranks in a step: a table of transfers, each a bucket of
 * gradients to sum, of new values to gather, the values of an instance, or partial sums of the
 * norm.
 *
 * The table is the engine's exchange (program/transfer.h). arrange.c puts calls of transfers into
 * the programs' flows before these have memory; then a collective of core/comm is planned for each
 * transfer; in a step transfers are started and waited for. All of that happens in the control
 * thread. Fields of these structs are for the files of core/parallel; others use the functions.
 *
 *    kind           collective                       of what, where
 *    SUM            all-reduce, or reduce-scatter    a bucket of gradients: in their store, or in
 *                   where gradients are cut          whole forms that live for the bucket
 *    ACROSS         all-reduce over sites            what SUM left on this rank, in its store
 *    VALUE_GATHER   all-gather                       new values from their owners, in the store
 *    INSTANCE       all-gather                       values that are cut, into a block's whole form
 *    PARTIALS       all-gather                       sums of squares of gradients, for the norm
 *    LOSSES         all-gather over all ranks        each rank's loss of the step, for the host
 *    RECORDED       as a model recorded it, or a     activations
 *                   send, or a receive
 *
 * Where the job names a plugin for collectives inside a machine, transfers over groups of one machine are
 * made on the device's own queue (comm/native.h), recorded ones excepted; an ACROSS then copies out what
 * its SUM has left on the device.
 *
 * With P elements over n ranks, a rank sends about 2 P (n - 1) / n elements in a step where nothing
 * is cut (an all-reduce of gradients), and as many where the update is cut (a reduce-scatter of
 * gradients, a gather of values). Whole gradients that live for a bucket are summed in every round
 * of the schedule, and values that are cut are gathered for each instance: less memory for more
 * bytes on the way. */
#ifndef PARALLEL_TRANSFERS_H
#define PARALLEL_TRANSFERS_H

#include <comm/comm.h>
#include <engine/program.h>
#include <parallel/shards.h>
#include <program/transfer.h>

/* Words of a partial sum, as op sum_squares leaves it of a block. */
enum { PARTIAL_WORDS = 2 };

enum {
    MOVE_SUM = 1,
    MOVE_ACROSS,
    MOVE_VALUE_GATHER,
    MOVE_INSTANCE,
    MOVE_PARTIALS,
    MOVE_LOSSES,
    MOVE_RECORDED
};

/* A transfer with what core/parallel knows of it: which parameters, and where their whole form
 * lies. Made before programs have memory; `plan` is set when they have. */
typedef struct move {
    transfer_t transfer;  /* first: a transfer_t * is a move_t * */
    uint32_t kind;        /* MOVE_* */
    uint32_t *parameters; /* [count] in order, each with memory of its own; NULL: not of
                             parameters */
    uint32_t count;
    program_t *program; /* in whose arenas the whole form lies; NULL: in a store */
    uint32_t *values;   /* [count] of that program's flow. PARTIALS: the sums; LOSSES: the
                             terms of all ranks; RECORDED: what is read and what is written
                             (0: nothing is).
                             NULL: found by the parameters */
    uint32_t arena;     /* ARENA_* of the program */
    struct move *after; /* ACROSS: the last SUM of the bucket, whose result is summed again */
    bool awaited;       /* VALUE_GATHER: the training program waits for it */
    bool begun;         /* start_alone: since the device's queue was last empty */
    collective_t *plan; /* core/comm's; NULL until memory is there */
    bool running;       /* started by the host, and not waited for by the host */
    bool native;        /* made on the device's own queue (comm/native.h): it has no plan */
    lh_coll_t call;     /* native; its lists are owned */
} move_t;

/* How many allocations may travel: values, gradients, and three arenas. Of them those of gathered values
 * may be reached by links where the device has them, as no sum is made there. */
enum { TRANSFER_ALLOCATIONS = 5, TRANSFER_REACHED = 2 };

enum { TRANSFERS_WAY = 400 }; /* bytes of transfers_way */

/* One for each engine. Its lists are complete when programs are arranged, and only read in a
 * step. */
typedef struct transfers {
    exchange_t exchange; /* what the engine calls; first: an exchange_t * is a transfers_t * */
    /* As transfers_how_t named them: all borrowed but the shards. */
    engine_t *engine;
    weights_t *weights;
    const world_t *world;
    comm_t *comm;              /* NULL: nothing can be planned or run */
    shards_t *shards;          /* owned */
    optimizer_tables_t tables; /* a copy of the shards' */
    /* Who takes part in all transfers but ACROSS, LOSSES and RECORDED. */
    const group_t *group;   /* the shards', of the shares */
    uint32_t group_kind;    /* LH_GROUP_* of it */
    const shares_t *shares; /* the shards' */
    group_t *across;        /* owned; NULL: nothing is summed over sites by itself */
    uint32_t rounds;        /* runs of the training program in a step */
    uint64_t bucket_bytes;  /* 0: transfers_bucket_bytes chooses */
    lh_dtype_t border;      /* of sums of gradients between sites, if not 0 */
    bool recorded;          /* some transfers are a model's own, of activations */

    /* Descriptors of registered memory. Peers map the memory by these, so they stay open until the
     * end. */
    int shared[TRANSFER_ALLOCATIONS];
    uint32_t shared_count;

    /* What links reach where the device has it, with the numbers that comm gave; the same on all ranks. */
    const allocation_t *reached[TRANSFER_REACHED];
    uint32_t reached_arenas[TRANSFER_REACHED], reached_count;
    coll_device_t device; /* of plans of such memory */
    char way[TRANSFERS_WAY];

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
    comm_t *comm;          /* may be one that is planned only; NULL: engine_build is refused */
    shards_t *shards;      /* of several ranks; the transfers own them once they are made */
    uint32_t rounds;       /* runs of the training program in a step */
    uint64_t bucket_bytes; /* 0: the optimizer's choice, or the host's */
    /* F32, BF16 or I8: in which sums of gradients cross from site to site. 0: as `wire` of the
     * optimizer's move says; where that is 0, BF16 if values are, else F32. */
    lh_dtype_t border;
    lh_status_t (*arrange)(exchange_t *x); /* arrange_flows (arrange.h) */
} transfers_how_t;

/* Makes the transfers, sets them as the engine's exchange, and says which elements this rank saves
 * (weights->owned). Refused if the tables ask for a whole form of gradients whose life is not
 * built. On failure the shards stay the caller's. */
lh_status_t transfers_new(const transfers_how_t *how, transfers_t **out) LH_MUST_CHECK;
/* After engine_close, and after comm_close, as the plans of comm read the groups that are freed
 * here. NULL does nothing. */
void transfers_free(transfers_t *t);

/* Gathers all new values again, after owners loaded or drew theirs, and waits for them. All ranks
 * call it, between steps. */
lh_status_t transfers_value_gather(transfers_t *t) LH_MUST_CHECK;
/* Waits for whatever is under way, on the device and between ranks. */
lh_status_t transfers_finish(transfers_t *t) LH_MUST_CHECK;

/* By which memory gathered values travel, and why, for the log: once memory is there; empty where none do
 * or there is no choice. */
const char *transfers_way(const transfers_t *t);

/* How many there are; they are numbered from 0. */
uint32_t transfers_count(const transfers_t *t);
/* Bytes that this rank sends to other sites in a run of a transfer; 0 until plans are counted or
 * connected. */
uint64_t transfers_border_bytes(const transfers_t *t, const transfer_t *transfer);
/* What a transfer carries, for how it can hide: sums of gradients, new values, anything else. */
enum { CROSSING_SUMS, CROSSING_VALUES, CROSSINGS };
uint32_t transfers_crossing(const transfers_t *t, const transfer_t *transfer);
/* Adds the bytes that so many runs send to each site, to[sites]; nothing until plans are counted. */
void transfers_sent_to(const transfers_t *t, const transfer_t *transfer, double times, double *to);
/* Round trips between sites that a run takes one after the other. */
double transfers_trips(const transfers_t *t, const transfer_t *transfer);

/* Elements of a parameter whose sums this rank packs for a border of I8, and what rounding has taken
 * from them so far: a state of the run, which is saved and loaded between steps. */
typedef struct transfers_error {
    uint32_t parameter;
    lh_slice_t slice;
    float *errors; /* of the slice; comm's */
} transfers_error_t;

/* All of this rank, once comm is connected: of the ranks of a site, each element of a parameter
 * belongs to one. The list is the caller's to mem_free; NULL where there are none. */
lh_status_t transfers_errors(const transfers_t *t, transfers_error_t **out,
                             uint32_t *count) LH_MUST_CHECK;
/* Whether sums of gradients leave such errors; all ranks answer alike, also one that packs nothing. */
bool transfers_keep_errors(const transfers_t *t);
/* After a step that was not applied, and before the next one's sums begin: errors begin at zero again. */
void transfers_forget_errors(const transfers_t *t);

/* Whether values are cut over ranks of several sites, so that every pass gathers them over
 * borders. */
bool transfers_values_cross(const transfers_t *t);

/* Whether a parameter has memory of its own (it is not tied to another) and is trained. */
bool transfers_is_updated(const weights_t *w, uint32_t parameter);
/* How many partial sums of the norm the first `elements` of a parameter come to. */
uint64_t transfers_norm_blocks(uint64_t elements);
/* Adds a row to the table. *out stays the table's; arrays of `row` are copied, and may be NULL.
 * Rows are added in the same order on all ranks, as that is the order of plans. Number, group,
 * ways, dtype and elements of the transfer are filled in; of a recorded one only its number. */
lh_status_t transfers_add(transfers_t *t, const move_t *row, move_t **out) LH_MUST_CHECK;
/* How large a bucket becomes before it is closed, in bytes of gradients or values. */
uint64_t transfers_bucket_bytes(const transfers_t *t);
/* The values of a move in a program's flow, for a call that starts the move or waits for it. On
 * failure the flow's status says why. */
flow_moved_t transfers_moved(const transfers_t *t, program_t *p, const move_t *m);

/* ---- for transfer_plan.c --------------------------------------------------------------------- */

/* The allocation in which the whole form of a transfer lies. */
const allocation_t *transfers_whole(const transfers_t *t, const move_t *x);
/* An element of the k-th parameter in the whole form, from the start of its allocation or of its mirror,
 * in which it must travel. */
uint64_t transfers_whole_element(const transfers_t *t, const move_t *x, uint32_t k,
                                 uint64_t element);
/* The site's share of the work of a second sum, in elements of the parameter: of what a member of the
 * group of the shares holds after the sum inside its site, in blocks of the norm, and small
 * parameters go round over the sites (as in shards.h). */
lh_slice_t transfers_across_slice(const transfers_t *t, uint32_t parameter, uint32_t member,
                                  uint32_t site);
/* The collective of a transfer (COLLECTIVE_*) as plugins call it (LH_COLL_*). */
uint32_t transfers_native_op(uint32_t op);
/* Pieces and their segments are one allocation each, the segments that of the first piece. */
void transfers_native_free(lh_coll_t *call);

#endif
