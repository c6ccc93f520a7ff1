/* weights.c - a model's parameters in device memory: stores and their shards, caches of
 * generation, and what is read and written from outside a step. */
#include <engine/weights.h>

#include <stdio.h>

#include <base/dtype.h>
#include <base/memory.h>
#include <graph/parameter_draw.h>

void weights_free(weights_t *w)
{
    if (w == NULL) return;
    for (uint32_t i = 0; i < w->store_count; i++) {
        allocation_release(&w->stores[i]->allocation, w->engine->api);
        mem_free(w->stores[i]->shards);
        mem_free(w->stores[i]);
    }
    mem_free(w->stores);
    mem_free(w->caches);
    mem_free(w->frozen);
    mem_free(w->owned);
    parameters_free(w->parameters);
    mem_free(w);
}

/* The row of a memory report that a store counts in. */
static uint32_t memory_kind_of(uint32_t holds)
{
    switch (holds) {
    case LH_HOLDS_VALUE: return MEMORY_PARAMETERS;
    case LH_HOLDS_GRAD: return MEMORY_GRADIENTS;
    case LH_HOLDS_MASTER: return MEMORY_MASTER;
    default: return MEMORY_STATE;
    }
}

lh_status_t weights_store_add(weights_t *w, const char *name, uint32_t holds, store_t **out)
{
    store_t **stores = mem_grow(w->stores, &w->store_capacity, w->store_count + 1u,
                                sizeof(*stores));
    if (stores == NULL) return LH_NO_MEMORY;
    w->stores = stores;

    store_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->shards = mem_array(w->parameters->count, sizeof(*s->shards));
    if (s->shards == NULL) {
        mem_free(s);
        return LH_NO_MEMORY;
    }
    (void)snprintf(s->name, sizeof(s->name), "%s", name);
    s->holds = holds;
    s->allocation = (allocation_t){.name = s->name,
                                   .space = LH_SPACE_DEVICE,
                                   .kind = w->reference ? MEMORY_REFERENCE : memory_kind_of(holds)};
    w->stores[w->store_count++] = s;
    *out = s;
    return LH_OK;
}

/* Shards lie one after the other in the order of these calls, each aligned for kernels. */
lh_status_t weights_shard_add(weights_t *w, store_t *s, uint32_t parameter, lh_dtype_t dtype,
                              lh_slice_t slice, uint64_t elements)
{
    lh_assert(parameter < w->parameters->count);
    lh_assert(slice.begin <= slice.end);
    store_shard_t shard = {true, dtype, slice, elements, 0};
    const lh_status_t status = allocation_take(&s->allocation, elements * lh_dtype_bytes(dtype),
                                               engine_alignment(w->engine), &shard.offset);
    if (status == LH_OK) s->shards[parameter] = shard;
    return status;
}

/* A whole shard for each parameter that has memory of its own; for frozen parameters if asked
 * to. */
static lh_status_t whole_shards(weights_t *w, store_t *s, lh_dtype_t dtype, bool frozen_too)
{
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        const parameter_t *p = &w->parameters->items[i];
        if (p->storage != i || (w->frozen[i] && !frozen_too)) continue;
        const lh_slice_t all = {0, p->elements};
        const lh_status_t status = weights_shard_add(w, s, i, dtype, all, p->elements);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* The store is laid out anew from its beginning, as nothing lies in it yet. */
lh_status_t weights_value_cut(weights_t *w, const lh_slice_t *slices)
{
    lh_assert(w->value->allocation.memory == NULL);
    w->value->allocation.bytes = 0;
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        if (w->parameters->items[i].storage != i) continue;
        const lh_status_t status = weights_shard_add(w, w->value, i, w->compute, slices[i],
                                                     slices[i].end - slices[i].begin);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Where no transfers say who owns what, this rank owns everything. */
lh_slice_t weights_owned(const weights_t *w, uint32_t parameter)
{
    lh_assert(parameter < w->parameters->count);
    const parameter_t *p = &w->parameters->items[parameter];
    return w->owned != NULL ? w->owned[p->storage] : (lh_slice_t){0, p->elements};
}

lh_status_t weights_gradients_default(weights_t *w)
{
    if (w->grad != NULL) return LH_OK;
    lh_status_t status = weights_store_add(w, "grad", LH_HOLDS_GRAD, &w->grad);
    return status == LH_OK ? whole_shards(w, w->grad, w->accumulate, false) : status;
}

/* Looks at all entries in turn: two for each attention, asked for while a program is written. */
lh_status_t weights_cache(weights_t *w, const cache_entry_t *wanted, uint64_t *offset)
{
    lh_assert(wanted->sequences > 0 && wanted->width > 0);
    for (uint32_t i = 0; i < w->cache_count; i++) {
        const cache_entry_t *have = &w->caches[i];
        if (have->sequences != wanted->sequences || have->capacity != wanted->capacity ||
            have->width != wanted->width || have->block != wanted->block ||
            have->place != wanted->place)
            continue;
        *offset = have->offset;
        return LH_OK;
    }
    cache_entry_t *caches = mem_grow(w->caches, &w->cache_capacity, w->cache_count + 1u,
                                     sizeof(*caches));
    if (caches == NULL) return LH_NO_MEMORY;
    w->caches = caches;

    cache_entry_t entry = *wanted;
    const uint64_t bytes = entry.sequences * entry.capacity * entry.width *
                           lh_dtype_bytes(w->compute);
    const lh_status_t status = allocation_take(&w->engine->caches, bytes,
                                               engine_alignment(w->engine), &entry.offset);
    if (status != LH_OK) return status;
    w->caches[w->cache_count++] = entry;
    *offset = entry.offset;
    return LH_OK;
}

/* Values are in the compute dtype; gradients are summed in F32, or in F64 where values are F64. */
static lh_status_t weights_fill(weights_t *w, const weights_how_t *how)
{
    w->api = how->api;
    w->model = how->model;
    w->compute = how->compute;
    w->reference = how->reference;
    w->accumulate = how->compute == LH_DTYPE_F64 ? LH_DTYPE_F64 : LH_DTYPE_F32;
    lh_status_t status = parameters_new(how->api, how->model, &w->parameters);
    if (status == LH_OK && how->adapter != NULL)
        status = parameters_adapt(w->parameters, how->adapter);
    if (status != LH_OK) return status;

    w->frozen = mem_array(w->parameters->count, sizeof(*w->frozen));
    if (w->frozen == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        const parameter_t *p = &w->parameters->items[i];
        w->frozen[i] = (w->parameters->items[p->storage].row->flags & LH_PARAM_FROZEN) != 0 ||
                       how->reference || (how->adapter != NULL && !p->factor);
    }
    status = weights_store_add(w, "value", LH_HOLDS_VALUE, &w->value);
    return status == LH_OK ? whole_shards(w, w->value, w->compute, true) : status;
}

lh_status_t weights_new(engine_t *e, const weights_how_t *how, weights_t **out)
{
    weights_t **list = mem_grow(e->weights, &e->weights_capacity, e->weights_count + 1u,
                                sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    e->weights = list;

    weights_t *w = mem_new(sizeof(*w));
    if (w == NULL) return LH_NO_MEMORY;
    w->engine = e;
    const lh_status_t status = weights_fill(w, how);
    if (status != LH_OK) {
        weights_free(w);
        return status;
    }
    e->weights[e->weights_count++] = w;
    *out = w;
    return LH_OK;
}

const parameters_t *weights_parameters(const weights_t *w)
{
    return w->parameters;
}

/* All parameters that lie in the same memory are frozen with it. */
void weights_freeze(weights_t *w, uint32_t parameter)
{
    lh_assert(parameter < w->parameters->count);
    const uint32_t storage = w->parameters->items[parameter].storage;
    for (uint32_t i = 0; i < w->parameters->count; i++)
        if (w->parameters->items[i].storage == storage) w->frozen[i] = true;
}

bool weights_frozen(const weights_t *w, uint32_t parameter)
{
    lh_assert(parameter < w->parameters->count);
    return w->frozen[parameter];
}

/* The store of a space; NULL: the job has none. */
static const store_t *store_of(const weights_t *w, uint32_t space)
{
    if (space == SPACE_PARAMETER) return w->master != NULL ? w->master : w->value;
    if (space == SPACE_VALUE) return w->value;
    if (space == SPACE_GRAD) return w->grad;
    for (uint32_t i = 0; i < w->store_count; i++)
        if (w->stores[i]->holds == LH_HOLDS_STATE && w->stores[i]->state + SPACE_STATE == space)
            return w->stores[i];
    return NULL;
}

/* The store and the shard of a parameter in a space; NULL: there is none. A frozen parameter has no
 * master, so its value takes the master's place. */
static const store_shard_t *shard_of(const weights_t *w, uint32_t space, uint32_t parameter,
                                     const store_t **store)
{
    lh_assert(parameter < w->parameters->count);
    const uint32_t storage = w->parameters->items[parameter].storage;
    const store_t *s = store_of(w, space);
    if (s != NULL && !s->shards[storage].present && space == SPACE_PARAMETER) s = w->value;
    if (s == NULL || !s->shards[storage].present) return NULL;
    *store = s;
    return &s->shards[storage];
}

/* False as a rule because the parameter is frozen, or because there is no optimizer. */
bool weights_shard(const weights_t *w, uint32_t space, uint32_t parameter, weights_shard_t *out)
{
    const store_t *s;
    const store_shard_t *shard = shard_of(w, space, parameter, &s);
    if (shard == NULL) return false;
    *out = (weights_shard_t){.dtype = shard->dtype,
                             .slice = shard->slice,
                             .elements = shard->elements,
                             .name = s->holds == LH_HOLDS_STATE ? s->name : NULL};
    return true;
}

/* Checks that a range of elements is held here, and turns *begin into an element of the shard. */
static lh_status_t range_check(const weights_t *w, const store_t *s, const store_shard_t *shard,
                               uint32_t parameter, uint64_t *begin, uint64_t count)
{
    const uint64_t held = shard->slice.end - shard->slice.begin;
    /* A state of another extent than its parameter's is addressed by its own elements. */
    const uint64_t from = shard->elements == held ? shard->slice.begin : 0;
    if (*begin < from || count > shard->elements || *begin - from > shard->elements - count)
        return fail(LH_INVALID, "elements %llu to %llu of %s '%s' are not held here",
                    (unsigned long long)*begin, (unsigned long long)(*begin + count), s->name,
                    w->parameters->items[parameter].name);
    *begin -= from;
    return LH_OK;
}

/* Uploads elements [begin, begin + count) of a shard. */
static lh_status_t shard_write(weights_t *w, const store_t *s, const store_shard_t *shard,
                               uint64_t begin, uint64_t count, lh_dtype_t dtype, const void *host)
{
    lh_assert(begin <= shard->elements && count <= shard->elements - begin);
    const uint64_t at = shard->offset + begin * lh_dtype_bytes(shard->dtype);
    const engine_elements_t elements = {(void *)host, dtype, count};
    return engine_upload(w->engine, &s->allocation, at, shard->dtype, elements);
}

/* Writing SPACE_PARAMETER writes the master and the value, so that both are the same number. */
lh_status_t weights_write(weights_t *w, uint32_t space, uint32_t parameter, uint64_t begin,
                          uint64_t count, lh_dtype_t dtype, const void *host)
{
    const store_t *s;
    const store_shard_t *shard = shard_of(w, space, parameter, &s);
    if (shard == NULL)
        return fail(LH_INVALID, "parameter '%s' has no such data here",
                    w->parameters->items[parameter].name);
    uint64_t at = begin;
    lh_status_t status = range_check(w, s, shard, parameter, &at, count);
    if (status == LH_OK) status = shard_write(w, s, shard, at, count, dtype, host);
    if (status != LH_OK || space != SPACE_PARAMETER || s == w->value) return status;
    return weights_write(w, SPACE_VALUE, parameter, begin, count, dtype, host);
}

/* A store that was freed can't be read any more. A store without bytes was never allocated; reading
 * 0 elements of it is no error. */
lh_status_t weights_read(weights_t *w, uint32_t space, uint32_t parameter, uint64_t begin,
                         uint64_t count, lh_dtype_t dtype, void *host)
{
    const store_t *s;
    const store_shard_t *shard = shard_of(w, space, parameter, &s);
    if (shard == NULL)
        return fail(LH_INVALID, "parameter '%s' has no such data here",
                    w->parameters->items[parameter].name);
    if (s->allocation.memory == NULL && count > 0)
        return fail(LH_INVALID, "%s of parameter '%s' was given back", s->name,
                    w->parameters->items[parameter].name);
    const lh_status_t status = range_check(w, s, shard, parameter, &begin, count);
    if (status != LH_OK) return status;
    const uint64_t at = shard->offset + begin * lh_dtype_bytes(shard->dtype);
    const engine_elements_t elements = {host, dtype, count};
    return engine_download(w->engine, &s->allocation, at, shard->dtype, elements);
}

/* Writes the elements that this rank holds, while helper threads draw the next span. */
static lh_status_t parameter_initialize(weights_t *w, uint32_t index, parameter_draw_t *draw)
{
    const store_t *s;
    const store_shard_t *shard = shard_of(w, SPACE_PARAMETER, index, &s);
    if (shard == NULL) return LH_OK;
    parameter_span_t drawn;
    lh_status_t status = LH_OK;
    parameter_draw_start(draw, index, shard->slice.begin, shard->slice.end);
    while (status == LH_OK && parameter_draw_next(draw, &drawn))
        status = weights_write(w, SPACE_PARAMETER, index, drawn.begin, drawn.count, LH_DTYPE_F32,
                               drawn.values);
    return status;
}

/* Fills a state with a number other than 0. */
static lh_status_t state_initialize(weights_t *w, const store_t *s)
{
    float part[4096];
    for (uint32_t i = 0; i < 4096; i++)
        part[i] = (float)s->initial;
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        const store_shard_t *shard = &s->shards[i];
        for (uint64_t at = 0; shard->present && at < shard->elements; at += 4096) {
            const uint64_t left = shard->elements - at, n = left < 4096 ? left : 4096;
            const lh_status_t status = shard_write(w, s, shard, at, n, LH_DTYPE_F32, part);
            if (status != LH_OK) return status;
        }
    }
    return LH_OK;
}

/* A state whose initial value is 0 is filled at once. */
lh_status_t weights_initialize_states(weights_t *w)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < w->store_count; i++)
        if (w->stores[i]->holds == LH_HOLDS_STATE)
            status = w->stores[i]->initial == 0 ? engine_zero(w->engine, &w->stores[i]->allocation)
                                                : state_initialize(w, w->stores[i]);
    return status;
}

/* Values are written in the order of parameters, by each rank its own elements. */
lh_status_t weights_initialize(weights_t *w, uint64_t seed, double init_std)
{
    parameter_draw_t *draw;
    lh_status_t status = parameter_draw_new(w->parameters, seed, init_std, 0, &draw);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; status == LH_OK && i < w->parameters->count; i++)
        if (w->parameters->items[i].storage == i) status = parameter_initialize(w, i, draw);
    parameter_draw_free(draw);
    return status == LH_OK ? weights_initialize_states(w) : status;
}

/* Whether every parameter has a master. A frozen one has none: its value is all there is of it. */
static bool has_master(const weights_t *w)
{
    if (w->master == NULL) return false;
    for (uint32_t i = 0; i < w->parameters->count; i++)
        if (w->value->shards[i].present && !w->master->shards[i].present) return false;
    return true;
}

void weights_finish(weights_t *w)
{
    if (w->grad != NULL) allocation_release(&w->grad->allocation, w->engine->api);
    if (has_master(w)) allocation_release(&w->value->allocation, w->engine->api);
}

void weights_release(weights_t *w, uint32_t space)
{
    if (space == SPACE_PARAMETER && has_master(w))
        allocation_release(&w->master->allocation, w->engine->api);
    for (uint32_t i = 0; i < w->store_count; i++)
        if (w->stores[i]->holds == LH_HOLDS_STATE && w->stores[i]->state + SPACE_STATE == space)
            allocation_release(&w->stores[i]->allocation, w->engine->api);
}
