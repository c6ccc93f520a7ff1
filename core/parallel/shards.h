/* parallel/shards.h - what a rank has from step to step: shards of values, gradients, master
 * weights and optimizer states, as the optimizer's tables and the shares say.
 *
 * A slice is a range of a parameter's elements, the shares say whose each slice is, and a shard is a
 * slice in memory, in the store of one kind of data.
 *
 * The list of shards needs neither a device nor another rank. `plan` and `check` make it for every
 * rank of a job in one process and add up its bytes; the update makes it for its own rank and gives
 * the weights their stores by it. One description for both is why a plan's bytes are a run's bytes.
 *
 * With P parameters, v bytes a value, g bytes a gradient, m bytes a master and its states, over n
 * ranks, a rank holds (Rajbhandari et al., "ZeRO", 2020, figure 1)
 *
 *    zero0   P (v + g + m)
 *    zero1   P (v + g) + P m / n
 *    zero2   P v + P (g + m) / n      and whole gradients of the buckets under way
 *    zero3   P (v + g + m) / n        and, beside those, whole values of the blocks in use */
#ifndef PARALLEL_SHARDS_H
#define PARALLEL_SHARDS_H

#include <engine/engine.h>
#include <parallel/optimizer_tables.h>

/* Who owns which elements of every parameter, over the ranks of a group.
 *
 * A parameter is cut at multiples of a unit. A unit is a multiple of LH_NORM_BLOCK elements, so
 * that the norm is summed from the same partial sums at every stage, and of the grain of the
 * parameter's rule. Member m gets the units from floor(k u / n) to floor((k + 1) u / n) with
 * k = (m + parameter) mod n, u the parameter's units and n the members: slices differ by one unit
 * at most, and small parameters go round over the members. Ownership depends on the parameter and
 * the group alone, never on buckets. */
typedef struct shares {
    uint32_t ways;      /* members of the group */
    uint32_t count;     /* parameters */
    lh_slice_t *slices; /* [count][ways] in elements of the parameter */
} shares_t;

/* Borrowed while the shares are made. An optimizer with a `slice` of its own is asked about
 * `space`, and must give every element to exactly one member. */
typedef struct shares_how {
    const parameters_t *parameters;
    const lh_rule_t *const *rule_of; /* [parameters] */
    uint32_t ways;                   /* members of the group */
    const lh_optimizer_api_t *api;   /* NULL: the core cuts, as above */
    lh_optimizer_t *optimizer;
    uint32_t space; /* index into the optimizer's spaces */
} shares_how_t;

/* Refused (LH_INVALID, with the parameter's name) where an optimizer's slices leave out or repeat
 * an element, or cut what belongs together. Freed by shard_shares_free, which leaves an empty
 * one. */
lh_status_t shard_shares_new(const shares_how_t *how, shares_t *out) LH_MUST_CHECK;
void shard_shares_free(shares_t *s);
/* Elements of a parameter that a member of the group owns; begin == end: none. */
lh_slice_t shard_shares_slice(const shares_t *s, uint32_t parameter, uint32_t member);

/* Stores by number: four kinds, then one for each state that some rule has. */
enum { SHARD_VALUE, SHARD_GRAD, SHARD_MASTER, SHARD_STATES, SHARD_STORES = 32 };

/* Memory of one kind, in which all its shards lie one behind the other. */
typedef struct shard_store {
    char name[32];
    uint32_t holds; /* LH_HOLDS_*; 0: no such store, as where the value is its own master */
    double initial; /* of a state: what each element is before step 0 */
} shard_store_t;

/* What this rank has of one parameter in one store. Shards lie in their store in the order of the
 * list. */
typedef struct shard {
    uint32_t store; /* SHARD_*; states are numbered from SHARD_STATES */
    uint32_t parameter;
    lh_dtype_t dtype;
    lh_slice_t slice;  /* elements of the parameter that the shard belongs to */
    uint64_t elements; /* in memory: those of the slice; of a state, by its extent */
} shard_t;

/* Borrowed while the shards are made. */
typedef struct shards_how {
    const parameters_t *parameters;
    const bool *frozen; /* [parameters] */
    lh_dtype_t compute;
    const optimizer_how_t *optimizer;
} shards_how_t;

/* In a run of several ranks the transfers own it, else whoever made it. Read only once it is
 * made. */
typedef struct shards {
    shards_how_t how;               /* only while it is made */
    const parameters_t *parameters; /* borrowed */
    optimizer_tables_t tables;
    group_t *group;  /* whose members the shares are of; owned; NULL: alone */
    shares_t shares; /* empty where there is no group */
    shard_store_t stores[SHARD_STORES];
    uint32_t store_count; /* SHARD_STATES and one for each state */
    shard_t *list;        /* [count] in the order of parameters */
    uint32_t count;
    size_t capacity;
} shards_t;

/* The shards of rank how->optimizer->world->row.rank. The caller frees them with shards_free, or
 * hands them to transfers_new. Refused with a sentence for what is not built. */
lh_status_t shards_new(const shards_how_t *how, shards_t **out) LH_MUST_CHECK;
void shards_free(shards_t *h); /* NULL does nothing */
/* Lists the shards of another member of the group instead; how: as these were made. A job of many
 * ranks is counted so, as the shares are those of all members. On failure the list is of no use. */
lh_status_t shards_turn(shards_t *h, const shards_how_t *how, uint32_t member) LH_MUST_CHECK;

/* The elements of a parameter whose master and states this rank has. */
lh_slice_t shards_slice(const shards_t *h, uint32_t parameter);
/* Bytes of values, gradients, masters and states, the four kinds of a report that last. alignment:
 * in bytes, a power of two, of each shard, as the device asks for (engine_alignment). */
lh_status_t shards_memory(const shards_t *h, uint64_t alignment,
                          memory_report_t *out) LH_MUST_CHECK;

#endif
