/* graph/weights.h - a model's parameters in device memory: one store for each kind of data, with a
 * piece for each logical parameter. */
#ifndef GRAPH_WEIGHTS_H
#define GRAPH_WEIGHTS_H

#include <graph/engine.h>
#include <graph/region.h>

typedef struct store_piece {
    bool present;
    lh_dtype_t dtype;
    lh_slice_t slice;  /* elements of the logical parameter held here */
    uint64_t elements; /* stored: of the slice, or of the state */
    uint64_t offset;   /* in the region */
} store_piece_t;

typedef struct store {
    char name[32];
    uint32_t holds; /* LH_HOLDS_* */
    uint32_t state; /* STATE: which of the rule's */
    double initial; /* STATE */
    region_t region;
    store_piece_t *pieces; /* [parameters]; tied ones have none of their own */
} store_t;

typedef struct cache_entry { /* keys or values of one attention for generation */
    uint64_t sequences, capacity, width;
    uint32_t block, place; /* place: 2 * (attention in its block) + (0 keys, 1 values) */
    uint64_t offset;       /* in the engine's caches */
} cache_entry_t;

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
    cache_entry_t *caches;
    uint32_t cache_count;
    size_t cache_capacity;
};

void weights_free(weights_t *w);

/* A store without pieces. */
lh_status_t weights_store_add(weights_t *w, const char *name, uint32_t holds,
                              store_t **out) LH_MUST_CHECK;
/* Room for a piece; the offset follows. */
lh_status_t weights_piece_add(weights_t *w, store_t *s, uint32_t parameter, lh_dtype_t dtype,
                              lh_slice_t slice, uint64_t elements) LH_MUST_CHECK;
/* Keeps only this rank's slices [parameters] of the values. Before any program. */
lh_status_t weights_value_cut(weights_t *w, const lh_slice_t *slices) LH_MUST_CHECK;
/* A whole gradient for every parameter that is not frozen, where no optimizer has made one. */
lh_status_t weights_gradients_default(weights_t *w) LH_MUST_CHECK;
/* Keys or values for a block's attention; shared by all who ask with the same sizes. */
lh_status_t weights_cache(weights_t *w, const cache_entry_t *wanted,
                          uint64_t *offset) LH_MUST_CHECK;

#endif
