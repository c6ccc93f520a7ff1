/* parallel/transfers_state.h - the inside of transfers, shared by the files that write flows
 * (arrange.c, gathered.c) and that run them (transfers.c). */
#ifndef PARALLEL_TRANSFERS_STATE_H
#define PARALLEL_TRANSFERS_STATE_H

#include <graph/program.h>
#include <parallel/holdings.h>
#include <parallel/transfers.h>

enum { TRANSFER_SUM = 1, TRANSFER_RENEW, TRANSFER_VISIT, TRANSFER_PARTIALS };
enum { TRANSFER_NAME = 40 };
/* A ticket to wait for: all sums of gradients that are under way. */
#define TICKET_SUMS UINT32_MAX

typedef struct transfer {
    char name[TRANSFER_NAME];
    uint32_t kind;        /* TRANSFER_* */
    uint32_t *parameters; /* [count] storages, in order */
    uint32_t count;
    program_t *program; /* where the whole form lies in its arenas; NULL: in a store */
    uint32_t *values;   /* [count] of that program's flow; PARTIALS: one */
    uint32_t arena;     /* ARENA_* */
    /* At most three plans: of the first micro-batch, of later ones that add, and over sites. */
    collective_t *first, *later, *across;
    collective_t *running[2];
    uint32_t running_count;
} transfer_t;

typedef struct visit_values { /* the values that one visit reads, gathered */
    program_t *program;
    uint32_t part, block;
    bool backward;
    uint32_t *parameters, *values; /* [count] */
    uint32_t count;
} visit_values_t;

typedef struct bucket_gradients { /* gradients of one program, whole for a bucket */
    program_t *program;
    uint32_t *values; /* [parameters] 0: not used yet */
} bucket_gradients_t;

enum { TRANSFER_REGIONS = 4 };

struct transfers {
    exchange_t exchange; /* first: an exchange_t * is a transfers_t * */
    engine_t *engine;
    weights_t *weights;
    const world_t *world;
    comm_t *comm; /* NULL: planned only */
    holdings_t *holdings;
    optimizer_tables_t tables; /* theirs */
    const group_t *group;      /* theirs, of the shares */
    const shares_t *shares;    /* theirs */
    group_t *across;           /* NULL: nothing is summed over sites by itself */
    uint32_t micro_batches;
    uint64_t bucket_bytes;

    int shared[TRANSFER_REGIONS]; /* descriptors of registered memory; open until the end */
    uint32_t shared_count;

    transfer_t **list; /* by ticket */
    uint32_t count;
    size_t capacity;
    uint32_t *renew_of; /* [parameters] ticket + 1 that gathers its new value; 0: none */
    visit_values_t *visits;
    uint32_t visit_count;
    size_t visit_capacity;
    bucket_gradients_t *buckets;
    uint32_t bucket_count;
    size_t bucket_capacity;
};

/* A storage of its own that is trained. */
bool transfers_is_updated(const transfers_t *t, uint32_t parameter);
/* A new row; arrays are copied. values may be NULL. *ticket is its index. */
lh_status_t transfers_add(transfers_t *t, const transfer_t *row, uint32_t *ticket) LH_MUST_CHECK;
uint64_t transfers_bucket_bytes(const transfers_t *t);

/* gathered.c: exchange_t.value and .gradient. */
uint32_t transfers_value(exchange_t *x, program_t *p, uint32_t parameter);
uint32_t transfers_gradient(exchange_t *x, program_t *p, uint32_t parameter);
/* NULL: none of that program yet. */
const bucket_gradients_t *transfers_gradients_of(const transfers_t *t, const program_t *p);

/* arrange.c: exchange_t.arrange. */
lh_status_t transfers_arrange(exchange_t *x, program_t *p) LH_MUST_CHECK;

/* transfer_plan.c: exchange_t.build. */
lh_status_t transfers_build(exchange_t *x) LH_MUST_CHECK;

#endif
