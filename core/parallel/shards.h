/* parallel/shards.h - what a rank holds from step to step: pieces of values, gradients, master
 * weights and optimizer states, as the optimizer's tables and the shares say.
 *
 * It needs neither a device nor another rank: memory is planned by it, for all ranks of a job in
 * one process, and made by it, when the update gives the weights their stores. One description for
 * both is why a plan's bytes are a run's bytes.
 *
 * With P parameters of v bytes a value, g a gradient, m a master and its states, over n ranks, a
 * rank holds
 *
 *    zero0   P (v + g + m)
 *    zero1   P (v + g) + P m / n
 *    zero2   P v + P (g + m) / n      and whole gradients of the buckets under way
 *    zero3   P (v + g + m) / n        and those, and whole values of the blocks in use */
#ifndef PARALLEL_SHARDS_H
#define PARALLEL_SHARDS_H

#include <engine/engine.h>
#include <parallel/optimizer_tables.h>

/* Who owns which elements of every parameter, over the ranks of a group.
 *
 * A parameter is cut at multiples of a unit: LH_NORM_BLOCK elements, so that the norm is summed
 * from the same partial sums at every stage, and the grain of its rule. Member m gets the units
 * from floor(k u / n) to floor((k + 1) u / n) with k = (m + parameter) mod n, u the parameter's
 * units and n the members: pieces differ by one unit at most, and small parameters go round over
 * the members. Ownership depends on the parameter and the group alone, never on buckets. */
typedef struct shares {
    uint32_t ways;
    uint32_t count;     /* parameters */
    lh_slice_t *slices; /* [count][ways] */
} shares_t;

/* rule_of: [parameters] the rule of each. An optimizer that slices itself is asked about `space`,
 * and must give every element to exactly one member. */
typedef struct shares_how {
    const parameters_t *parameters;
    const lh_rule_t *const *rule_of;
    uint32_t ways;
    const lh_optimizer_api_t *api; /* for slice; may be NULL */
    lh_optimizer_t *optimizer;
    uint32_t space;
} shares_how_t;

/* Refused with the parameter's name where an optimizer's slices leave out or repeat an element, or
 * cut what belongs together. Freed by shard_shares_free, which leaves an empty one. */
lh_status_t shard_shares_new(const shares_how_t *how, shares_t *out) LH_MUST_CHECK;
void shard_shares_free(shares_t *s);
/* Elements of a parameter that a member owns; begin == end: none. */
lh_slice_t shard_shares_slice(const shares_t *s, uint32_t parameter, uint32_t member);

/* Stores by number: four kinds, then one for each state that some rule has. */
enum { SHARD_VALUE, SHARD_GRAD, SHARD_MASTER, SHARD_STATES, SHARD_STORES = 32 };

/* Memory of one kind, in which all its pieces lie in a row. */
typedef struct shard_store {
    char name[32];
    uint32_t holds; /* LH_HOLDS_*; 0: there is none, as the value is its own master */
    double initial; /* of a state */
} shard_store_t;

typedef struct shard { /* a piece; pieces of a store lie in the order of the list */
    uint32_t store;    /* SHARD_*; states are numbered from SHARD_STATES */
    uint32_t parameter;
    lh_dtype_t dtype;
    lh_slice_t slice;  /* elements of the parameter    */
    uint64_t elements; /* of them, or of the state     */
} shard_t;

/* Borrowed while the shards are made. */
typedef struct shards_how {
    const parameters_t *parameters;
    const bool *frozen; /* [parameters] */
    lh_dtype_t compute;
    const optimizer_how_t *optimizer;
} shards_how_t;

/* Belongs to the transfers of a run of several ranks, else to the one who made it. */
typedef struct shards {
    shards_how_t how; /* only while it is made */
    const parameters_t *parameters;
    optimizer_tables_t tables;
    group_t *group; /* of the shares; NULL: alone */
    shares_t shares;
    shard_store_t stores[SHARD_STORES];
    uint32_t store_count;
    shard_t *list;
    uint32_t count;
    size_t capacity;
} shards_t;

/* The shards of the rank that how->optimizer->world is seen from. */
lh_status_t shards_new(const shards_how_t *how, shards_t **out) LH_MUST_CHECK;
void shards_free(shards_t *h); /* NULL does nothing */

/* Elements of a parameter whose master and states are here. */
lh_slice_t shards_slice(const shards_t *h, uint32_t parameter);
/* The four kinds of a report that last, with pieces aligned as a device lays them. */
lh_status_t shards_memory(const shards_t *h, uint64_t alignment,
                          memory_report_t *out) LH_MUST_CHECK;

#endif
