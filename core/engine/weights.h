/* engine/weights.h - a model's parameters in device memory: one store for each kind of data, with
 * a shard for each logical parameter.
 *
 * Stores: the value that kernels read, in the compute dtype; its gradient; the F32 master that the
 * optimizer step changes, where the compute dtype is narrower; and each state of the rule
 * (moments). Which there are, and which elements of a parameter this rank has in each, the
 * optimizer plugin's tables say (core/parallel); without an optimizer there are values, and whole
 * gradients where a program trains.
 *
 * A store is one allocation, in which shards lie one after the other in the order of parameters. It
 * is sized while the job is set up, allocated by engine_build, and lives to the end of the run, or
 * to engine_finish. One allocation for each kind, and not for each parameter, is what lets
 * transfers register memory once. The control thread calls all functions, between steps. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include <graph/parameters.h>

#include <engine/engine_state.h>

typedef struct weights_how {
    const lh_model_api_t *api;
    lh_model_t *model;                   /* opened; closed by the caller after engine_close      */
    lh_dtype_t compute;                  /* BF16, F32 (F64 in tests)                             */
    const parameters_adapter_t *adapter; /* NULL: none; all that is no factor is then frozen */
    bool reference; /* of a frozen model beside the one that trains: whole on each rank */
} weights_how_t;

/* Kinds of a parameter's data, by which others ask for it. */
enum {
    SPACE_PARAMETER = 1, /* the master where there is one, else the value; writing renews both   */
    SPACE_VALUE = 2,     /* what kernels read, in the compute dtype                             */
    SPACE_GRAD = 3,
    SPACE_STATE = 16, /* + k: the rule's k-th state                                         */
};

/* What this rank holds of a parameter in a space. A state may have another extent than its
 * parameter, one element for each row, say. */
typedef struct weights_shard {
    lh_dtype_t dtype;
    lh_slice_t slice;  /* elements of the parameter */
    uint64_t elements; /* in memory: of the slice, or of the state */
    const char *name;  /* of a state: "exp_avg"; else NULL */
} weights_shard_t;

/* The elements of one parameter that this rank has in a store. */
typedef struct store_shard {
    bool present;
    lh_dtype_t dtype;
    lh_slice_t slice;  /* elements of the logical parameter held here */
    uint64_t elements; /* stored: of the slice, or of the state */
    uint64_t offset;   /* bytes from the start of the allocation */
} store_shard_t;

/* One kind of data. Allocated alone: programs and core/parallel hold on to it. */
typedef struct store {
    char name[32];
    uint32_t holds; /* LH_HOLDS_* */
    uint32_t state; /* of a state: its number, k of SPACE_STATE + k */
    double initial; /* of a state: what each element is before step 0 */
    allocation_t allocation;
    store_shard_t *shards; /* [parameters]; tied ones have none of their own */
} store_t;

/* Keys or values of one attention for generation: [sequences, capacity, width] in the compute
 * dtype. */
typedef struct cache_entry {
    uint64_t sequences, capacity, width;
    uint32_t block, place; /* place: 2 * (attention in its block) + (0 keys, 1 values) */
    uint64_t offset;       /* in the engine's caches */
} cache_entry_t;

/* Owned by the engine. Parameters that are tied share the shards of the one in whose memory they
 * lie: arrays are indexed by parameter_t.storage, and entries of tied parameters stay empty. */
struct weights {
    engine_t *engine;
    const lh_model_api_t *api;
    lh_model_t *model;
    parameters_t *parameters;
    lh_dtype_t compute, accumulate;
    bool reference;
    bool *frozen; /* [parameters] */
    store_t **stores;
    uint32_t store_count;
    size_t store_capacity;
    store_t *value, *grad, *master; /* of `stores`. grad NULL: none; master NULL: the value is its
                                       own */
    lh_slice_t *owned;              /* [parameters] what this rank saves; NULL: everything */
    bool gathered; /* values are cut: each instance reads a whole form of its own */
    bool bucketed; /* gradients are cut: the backward pass adds into whole forms  */
    cache_entry_t *caches;
    uint32_t cache_count;
    size_t cache_capacity;
};

/* For engine_close. NULL does nothing. */
void weights_free(weights_t *w);

/* Adds a store without shards, which the weights own. holds: LH_HOLDS_*. */
lh_status_t weights_store_add(weights_t *w, const char *name, uint32_t holds,
                              store_t **out) LH_MUST_CHECK;
/* Takes room for a parameter's shard behind the shards that the store has. slice: elements of the
 * parameter; elements: what is stored. */
lh_status_t weights_shard_add(weights_t *w, store_t *s, uint32_t parameter, lh_dtype_t dtype,
                              lh_slice_t slice, uint64_t elements) LH_MUST_CHECK;
/* Lets the values hold only this rank's slices [parameters]. Before any program is written. */
lh_status_t weights_value_cut(weights_t *w, const lh_slice_t *slices) LH_MUST_CHECK;
/* A store of whole gradients of every parameter that is not frozen, unless an optimizer made
 * one. */
lh_status_t weights_gradients_default(weights_t *w) LH_MUST_CHECK;
/* Room for the keys or the values of a block's attention: *offset is in bytes, in the engine's
 * caches. Whoever asks with the same sizes gets the same room, so that a prefill and the steps
 * after it work on one cache. */
lh_status_t weights_cache(weights_t *w, const cache_entry_t *wanted,
                          uint64_t *offset) LH_MUST_CHECK;

/* For engine_finish: frees the gradients, and the values where each parameter has a master. */
void weights_finish(weights_t *w);
/* Frees the memory of SPACE_PARAMETER or of a state, whose data was read for the last time. */
void weights_release(weights_t *w, uint32_t space);

/* The model's parameters with a store of whole values, and nothing else yet. The engine owns the
 * weights. */
lh_status_t weights_new(engine_t *e, const weights_how_t *how, weights_t **out) LH_MUST_CHECK;
const parameters_t *weights_parameters(const weights_t *w);
/* A frozen parameter has no gradient, no master and no state. Before update_new and the first
 * program_new. A parameter flagged LH_PARAM_FROZEN is frozen from the start. */
void weights_freeze(weights_t *w, uint32_t parameter);
bool weights_frozen(const weights_t *w, uint32_t parameter);
/* Copy elements [begin, begin + count) of a parameter, converted from or to `dtype`; `host` is
 * dense. The elements must lie in the slice that this rank holds, else LH_INVALID. They wait for
 * the device; not inside a step. Writing SPACE_PARAMETER writes the master and the value. */
lh_status_t weights_write(weights_t *w, uint32_t space, uint32_t parameter, uint64_t begin,
                          uint64_t count, lh_dtype_t dtype, const void *host) LH_MUST_CHECK;
lh_status_t weights_read(weights_t *w, uint32_t space, uint32_t parameter, uint64_t begin,
                         uint64_t count, lh_dtype_t dtype, void *host) LH_MUST_CHECK;
/* What this rank holds. False: the space does not exist for the parameter. */
bool weights_shard(const weights_t *w, uint32_t space, uint32_t parameter, weights_shard_t *out);
/* Elements of the parameter that this rank writes into checkpoints: over all ranks each element
 * once. A state of another extent than its parameter's belongs to the owner of element 0. */
lh_slice_t weights_owned(const weights_t *w, uint32_t parameter);
/* Writes the initial value of every parameter (graph/parameters.h) and every state. The draw of an
 * element depends on seed and parameter alone, not on which rank holds it. */
lh_status_t weights_initialize(weights_t *w, uint64_t seed, double init_std) LH_MUST_CHECK;
/* States alone: of parameters all elements that this rank holds are about to be loaded. */
lh_status_t weights_initialize_states(weights_t *w) LH_MUST_CHECK;

#endif
