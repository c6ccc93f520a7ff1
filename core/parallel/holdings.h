/* parallel/holdings.h - what a rank holds from step to step: pieces of values, gradients, master
 * weights and optimizer states, as the optimizer's tables and the shares say. It needs neither a
 * device nor another rank: memory is planned by it and made by it. */
#ifndef PARALLEL_HOLDINGS_H
#define PARALLEL_HOLDINGS_H

#include <parallel/optimizer_tables.h>
#include <parallel/shares.h>
#include <parallel/update.h>

enum { HOLDING_VALUE, HOLDING_GRAD, HOLDING_MASTER, HOLDING_STATES, HOLDING_STORES = 32 };

typedef struct holding_store {
    char name[32];
    uint32_t holds; /* LH_HOLDS_*; 0: there is none, as the value is its own master */
    double initial; /* of a state */
} holding_store_t;

typedef struct holding { /* a piece; pieces of a store lie in the order of the list */
    uint32_t store;      /* HOLDING_*; states are numbered from HOLDING_STATES */
    uint32_t parameter;
    lh_dtype_t dtype;
    lh_slice_t slice;  /* elements of the parameter    */
    uint64_t elements; /* of them, or of the state     */
} holding_t;

typedef struct holdings_how {
    const parameters_t *parameters;
    const bool *frozen; /* [parameters] */
    lh_dtype_t compute;
    const update_how_t *update; /* all but comm and transfers */
} holdings_how_t;

struct holdings {
    holdings_how_t how; /* only while it is made */
    const parameters_t *parameters;
    optimizer_tables_t tables;
    group_t *group; /* of the shares; NULL: alone */
    shares_t shares;
    holding_store_t stores[HOLDING_STORES];
    uint32_t store_count;
    holding_t *list;
    uint32_t count;
    size_t capacity;
};

lh_status_t holdings_new(const holdings_how_t *how, holdings_t **out) LH_MUST_CHECK;
void holdings_free(holdings_t *h); /* NULL does nothing */

/* Elements of a parameter whose master and states are here. */
lh_slice_t holdings_slice(const holdings_t *h, uint32_t parameter);
/* The four kinds of a report that last, with pieces aligned as a device lays them. */
lh_status_t holdings_memory(const holdings_t *h, uint64_t alignment,
                            memory_report_t *out) LH_MUST_CHECK;

#endif
