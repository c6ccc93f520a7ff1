/* engine/weights.h - a model's parameters in device memory: one store for each kind of data, with
 * a shard for each logical parameter.
 *
 * Stores: the value that kernels read, in the compute dtype; its gradient; the F32 master that the
 * optimizer step changes, where the compute dtype is narrower; and each state of the rule
 * (moments). Which there are, and which elements of a parameter this rank has in each, the
 * optimizer plugin's tables say (core/parallel); without an optimizer there are values, and whole
 * gradients where a program trains.
 *
 * A store is one allocation, in which shards lie one after the other in the order of parameters.
 * It is sized while the job is set up, allocated by engine_build, and lives to the end of the run,
 * or to engine_finish. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include <graph/parameters.h>

#include <engine/engine_state.h>

typedef struct weights_how {
    const lh_model_api_t *api;
    lh_model_t *model;  /* opened; closed by the caller after engine_close      */
    lh_dtype_t compute; /* BF16, F32 (F64 in tests)                             */
} weights_how_t;

/* Kinds of a parameter's data, by which others ask for it. */
enum {
    SPACE_PARAMETER = 1, /* the master where there is one, else the value; writing renews both   */
    SPACE_VALUE = 2,     /* what kernels read, in the compute dtype                             */
    SPACE_GRAD = 3,
    SPACE_STATE = 16, /* + k: the rule's k-th state                                         */
};

/* What this rank holds: dtype, elements [begin, end) of the parameter and, for states, the number
 * of elements of the state, which may be of another extent than its parameter (one a row, say). */
typedef struct weights_extent {
    lh_dtype_t dtype;
    lh_slice_t slice;
    uint64_t elements;
    const char *name; /* of a state: "exp_avg"; else NULL */
} weights_extent_t;

/* The elements of one parameter that this rank has in a store. */
typedef struct store_shard {
    bool present;
    lh_dtype_t dtype;
    lh_slice_t slice;  /* elements of the logical parameter held here */
    uint64_t elements; /* stored: of the slice, or of the state */
    uint64_t offset;   /* in the allocation */
} store_shard_t;

/* One kind of data. Allocated alone: programs and core/parallel hold on to it. */
typedef struct store {
    char name[32];
    uint32_t holds; /* LH_HOLDS_* */
    uint32_t state; /* STATE: which of the rule's */
    double initial; /* STATE */
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
    bool *frozen; /* [parameters] */
    store_t **stores;
    uint32_t store_count;
    size_t store_capacity;
    store_t *value, *grad, *master; /* grad: what the backward pass adds into; NULL: none. master
                                       NULL: the value is its own */
    lh_slice_t *owned;              /* [parameters] what this rank saves; NULL: everything */
    bool gathered; /* values are cut: each instance reads a whole form of its own    */
    bool bucketed; /* gradients are cut: the backward pass adds into whole forms  */
    cache_entry_t *caches;
    uint32_t cache_count;
    size_t cache_capacity;
};

/* Of engine_close. NULL does nothing. */
void weights_free(weights_t *w);

/* A store without shards. */
lh_status_t weights_store_add(weights_t *w, const char *name, uint32_t holds,
                              store_t **out) LH_MUST_CHECK;
/* Room for a shard; the offset follows. */
lh_status_t weights_shard_add(weights_t *w, store_t *s, uint32_t parameter, lh_dtype_t dtype,
                              lh_slice_t slice, uint64_t elements) LH_MUST_CHECK;
/* Keeps only this rank's slices [parameters] of the values. Before any program. */
lh_status_t weights_value_cut(weights_t *w, const lh_slice_t *slices) LH_MUST_CHECK;
/* A whole gradient for every parameter that is not frozen, where no optimizer has made one. */
lh_status_t weights_gradients_default(weights_t *w) LH_MUST_CHECK;
/* Keys or values for a block's attention; shared by all who ask with the same sizes, so that a
 * prefill and the steps after it work on one cache. */
lh_status_t weights_cache(weights_t *w, const cache_entry_t *wanted,
                          uint64_t *offset) LH_MUST_CHECK;

/* Frees the gradients, and the values where each of them has a master. Of engine_finish. */
void weights_finish(weights_t *w);
/* SPACE_PARAMETER or a state whose data was read for the last time. */
void weights_release(weights_t *w, uint32_t space);

/* The model's parameters, all of their values on this rank, and nothing else yet. The engine owns
 * them. */
lh_status_t weights_new(engine_t *e, const weights_how_t *how, weights_t **out) LH_MUST_CHECK;
const parameters_t *weights_parameters(const weights_t *w);
/* No gradient and no state from here on; before the first program_new. LH_PARAM_FROZEN already
 * is. */
void weights_freeze(weights_t *w, uint32_t parameter);
bool weights_frozen(const weights_t *w, uint32_t parameter);
/* Host buffers are dense; values are converted from and to `dtype`. begin and count are elements of
 * the logical parameter and must lie in the slice held here. Not inside a step. */
lh_status_t weights_write(weights_t *w, uint32_t space, uint32_t parameter, uint64_t begin,
                          uint64_t count, lh_dtype_t dtype, const void *host) LH_MUST_CHECK;
lh_status_t weights_read(weights_t *w, uint32_t space, uint32_t parameter, uint64_t begin,
                         uint64_t count, lh_dtype_t dtype, void *host) LH_MUST_CHECK;
bool weights_extent(const weights_t *w, uint32_t space, uint32_t parameter, weights_extent_t *out);
/* Elements of the logical parameter that this rank writes into checkpoints: over all ranks each
 * element once. A state of another extent than its parameter's belongs to who owns element 0. */
lh_slice_t weights_owned(const weights_t *w, uint32_t parameter);
/* Every parameter's initial value (parameters.h), every state's. */
lh_status_t weights_initialize(weights_t *w, uint64_t seed, double init_std) LH_MUST_CHECK;

#endif
