/* program/transfer.h - what moves between ranks, as data.
 *
 * A transfer is a collective over a group of ranks, or what one of them sends to another, that a
 * step starts and later waits for. Calls of a flow (flow.h) start it and wait for it, and say
 * which values it reads and writes. A pass of core/parallel puts those calls there; whatever runs
 * a list, the profiler, the trace, the plan and the check of all ranks' orders read them. How and
 * where bytes travel is the exchange's affair: it has a plan for every transfer, bound to memory
 * once memory is there. */
#ifndef PROGRAM_TRANSFER_H
#define PROGRAM_TRANSFER_H

#include <ops/ops_collective.h>

#include <longhaul/dtype.h>

typedef struct engine engine_t;
typedef struct exchange exchange_t;
typedef struct transfer transfer_t;

enum { TRANSFER_NAME = 40 };

/* A transfer is the same on all ranks of its group, but for the memory in which its values lie;
 * one between two ranks is a SEND at the one and a RECEIVE at the other. Owned by the exchange, or
 * by the flow until the exchange takes it over; it lives as long as the programs whose calls name
 * it. */
struct transfer {
    char name[TRANSFER_NAME]; /* "gradients 3" */
    uint32_t number;          /* among those of the exchange */
    uint32_t op;              /* COLLECTIVE_* */
    uint32_t group;           /* LH_GROUP_* */
    uint32_t ways;            /* ranks in the group */
    uint32_t from,
        to;       /* SEND, RECEIVE: members of the group; in a flow its own end is not known yet */
    uint32_t tag; /* SEND, RECEIVE: as the model says */
    lh_dtype_t dtype;
    uint64_t elements; /* of the whole form, which all ranks of the group hold before or after */
    bool add;          /* REDUCE_SCATTER: adds the sum to what was there, instead of replacing it */
    bool takes_over;   /* reads what it writes, as a transfer that the device made has left it */
};

/* Bytes of the whole form. */
static inline uint64_t transfer_bytes(const transfer_t *t)
{
    return t->elements * lh_dtype_bytes(t->dtype);
}

/* What a device's queue and a transfer tell each other where the transfer is started before the
 * queue has come to it: the transfer asks whether it may read, and says when it has written. All
 * functions may be called by the progress thread of core/comm beside the control thread, so they
 * must not wait for anything. */
typedef struct transfer_gate {
    /* LH_AGAIN: what the transfer reads is not made yet. Asked again and again, by any thread. */
    lh_status_t (*past)(void *context);
    /* Told once, by any thread, when what the transfer writes is there, or never will be. NULL:
     * nobody is told. */
    void (*done)(void *context);
    void *context; /* stays until the transfer is waited for */
    /* Whether the queue stands at its wait for what the transfer writes, once the gate is past. Asked
     * as past is. NULL: the host waits in its place. */
    bool (*reached)(void *context);
} transfer_gate_t;

/* What the engine needs of core/parallel, which it does not see: a table of functions, set before
 * the first program is written. The control thread calls them: arrange, then reach, own and bind, then
 * start and wait in steps. Without a device only arrange is called. */
struct exchange {
    /* All programs are written and none is planned: puts transfers into their flows, and takes over
     * those that recordings stated. */
    lh_status_t (*arrange)(exchange_t *x);
    /* Memory is allocated but for mirrors: those of allocations that links reach by themselves need not
     * be (handover_reach). NULL: all are. */
    lh_status_t (*reach)(exchange_t *x);
    /* Of what a transfer writes, a rank's own part, where it lies in other memory: bytes [*begin, *begin +
     * result) of the k-th value, to be copied from the next of the values that it reads. 0: none of that
     * value. Asked of transfers in memory that links reach. NULL: all parts lie in place. */
    uint64_t (*own)(exchange_t *x, const transfer_t *t, uint32_t k, uint64_t *begin);
    /* Memory is allocated, nothing has run. */
    lh_status_t (*bind)(exchange_t *x);
    /* Before a list of a synchronous device runs: it will start this transfer, behind those that it
     * was told of before and ahead of any other. false: it may not be told of more. NULL: not asked. */
    bool (*expect)(exchange_t *x, const transfer_t *t);
    /* In a step. start returns at once. What the transfer reads has been written or, where there is
     * a gate, is once the gate is past. wait lets the host wait, but returns at once where the
     * transfer was not started since the last wait. */
    lh_status_t (*start)(exchange_t *x, const transfer_t *t, const transfer_gate_t *gate);
    lh_status_t (*wait)(exchange_t *x, const transfer_t *t);
    /* Whether a transfer is made on the device's own queue, and not by the host: queue is then called in
     * place of start and wait. Asked once memory is planned; *bytes: of workspace. NULL: none is. */
    lh_status_t (*native)(exchange_t *x, const transfer_t *t, bool *native, uint64_t *bytes);
    /* Queues it on the engine's stream for such transfers. */
    lh_status_t (*queue)(exchange_t *x, const transfer_t *t);
    /* How long the device's computing queue has stood at the wait for one that was queued before. NULL:
     * nobody asks. */
    void (*exposed)(exchange_t *x, const transfer_t *t, uint64_t ns);
};

#endif
