/* engine.c - opens a device, builds what was stated, and reports. */
#include <engine/engine_state.h>

#include <base/memory.h>
#include <engine/engine_profile.h>
#include <engine/handover.h>
#include <engine/model_flow.h>

enum { TRANSFER_BYTES = 4 << 20 };
static const uint64_t await_ns = 100000000; /* between two looks at `stopping` */
static const uint64_t scratch_limit_bytes = (uint64_t)4 << 30;

static void allocations_name(engine_t *e)
{
#define ALLOCATION(field, what, where)                                   \
    e->field = (allocation_t)                                            \
    {                                                                    \
        .name = #field, .space = LH_SPACE_##where, .kind = MEMORY_##what \
    }
    static const uint32_t kinds[ARENAS] = {MEMORY_ACTIVATIONS, MEMORY_GATHERED, MEMORY_BUCKETS};
    for (uint32_t i = 0; i < ARENAS; i++)
        e->arenas[i] = (allocation_t){
            .name = memory_kind_text(kinds[i]), .space = LH_SPACE_DEVICE, .kind = kinds[i]};
    ALLOCATION(scratch, SCRATCH, DEVICE);
    ALLOCATION(inputs, INPUTS, DEVICE);
    ALLOCATION(outputs, OUTPUTS, DEVICE);
    ALLOCATION(constants, CONSTANTS, DEVICE);
    ALLOCATION(caches, CACHES, DEVICE);
    ALLOCATION(pinned, PINNED, PINNED);
#undef ALLOCATION
}

uint64_t engine_alignment(const engine_t *e)
{
    const uint64_t asked = e->properties.alignment_bytes;
    return asked > ENGINE_ALIGNMENT ? asked : ENGINE_ALIGNMENT;
}

static lh_status_t device_start(engine_t *e)
{
    lh_status_t status = e->api->open(e->how.device->host, e->how.device_config,
                                      e->how.device_index, &e->device);
    if (status != LH_OK) return status;
    e->properties.struct_size = sizeof(e->properties);
    status = e->api->properties(e->device, &e->properties);
    if (status != LH_OK) return status;
    const uint64_t alignment = e->properties.alignment_bytes;
    if ((alignment & (alignment - 1)) != 0)
        return fail(LH_INVALID, "device %s wants places aligned to %llu, which is no power of two",
                    e->how.device->name, (unsigned long long)alignment);

    const lh_stream_how_t how = {.struct_size = sizeof(how), .role = LH_STREAM_COMPUTE};
    status = e->api->stream_new(e->device, &how, &e->stream);
    if (status == LH_OK && e->api->native != NULL)
        if (e->api->native(e->stream, &e->native) != LH_OK) e->native = (lh_native_t){0};
    if (status == LH_OK) status = e->api->event_new(e->device, &e->event);
    return status;
}

static lh_status_t engine_start(engine_t *e)
{
    allocations_name(e);
    if (e->how.device == NULL) return LH_OK;
    lh_status_t status = device_start(e);
    if (status != LH_OK) return status;
    e->transfer_bytes = TRANSFER_BYTES;
    status = allocation_take(&e->pinned, TRANSFER_BYTES, engine_alignment(e), &e->transfer_at);
    if (status != LH_OK) return status;

    const kernel_choice_how_t how = {.device = e->how.device,
                                     .opened = e->device,
                                     .config = e->how.device_config,
                                     .plugins = e->how.plugins,
                                     .plugin_count = e->how.plugin_count,
                                     .stream = e->stream,
                                     .scratch_limit_bytes = scratch_limit_bytes,
                                     .variants = e->how.variants};
    return kernel_choice_new(&how, &e->kernels);
}

lh_status_t engine_open(const engine_how_t *how, engine_t **out)
{
    engine_t *e = mem_new(sizeof(*e));
    if (e == NULL) return LH_NO_MEMORY;
    e->how = *how;
    e->api = how->device == NULL ? NULL : how->device->device;
    const lh_status_t status = engine_start(e);
    if (status != LH_OK) {
        engine_close(e);
        return status;
    }
    *out = e;
    return LH_OK;
}

void engine_use_exchange(engine_t *e, exchange_t *x)
{
    lh_assert(e->program_count == 0);
    e->exchange = x;
}

enum { ALLOCATIONS = 6 + ARENAS };

static void allocations_of(engine_t *e, allocation_t *list[ALLOCATIONS])
{
    list[0] = &e->scratch;
    list[1] = &e->inputs;
    list[2] = &e->outputs;
    list[3] = &e->constants;
    list[4] = &e->caches;
    list[5] = &e->pinned;
    for (uint32_t i = 0; i < ARENAS; i++)
        list[6 + i] = &e->arenas[i];
}

/* A device that is lost has nothing queued. */
static void stream_drain(engine_t *e, lh_stream_t *stream)
{
    if (e->api->record(stream, e->event) != LH_OK) return;
    while (e->api->test(e->event, await_ns) == LH_AGAIN)
        continue;
}

void engine_close(engine_t *e)
{
    if (e == NULL) return;
    /* Nothing may be queued on what is released. */
    lh_stream_t *const streams[] = {e->stream, e->leaving, e->coming};
    for (uint32_t i = 0; i < 3; i++)
        if (streams[i] != NULL && e->event != NULL) stream_drain(e, streams[i]);
    handovers_free(e);
    for (uint32_t i = 0; i < e->program_count; i++)
        program_free(e->programs[i]);
    for (uint32_t i = 0; i < e->weights_count; i++)
        weights_free(e->weights[i]);
    kernel_choice_free(e->kernels);
    allocation_t *list[ALLOCATIONS];
    allocations_of(e, list);
    for (uint32_t i = 0; i < ALLOCATIONS; i++)
        allocation_release(list[i], e->api);
    for (uint32_t i = 0; i < e->constant_count; i++)
        mem_free(e->constant_list[i].values);
    mem_free(e->constant_list);
    if (e->event != NULL) e->api->event_free(e->event);
    if (e->stream != NULL) e->api->stream_free(e->stream);
    if (e->device != NULL) e->api->close(e->device);
    mem_free(e->programs);
    mem_free(e->weights);
    mem_free(e);
}

lh_status_t engine_await(engine_t *e, lh_event_t *event)
{
    const lh_host_t *host = e->how.host;
    for (;;) {
        const lh_status_t status = e->api->test(event, await_ns);
        if (status != LH_AGAIN) return status;
        if (host->stopping != NULL && host->stopping(host))
            return fail(LH_CANCELLED, "the job is being stopped");
    }
}

lh_status_t engine_wait(engine_t *e)
{
    const lh_status_t status = e->api->record(e->stream, e->event);
    return status == LH_OK ? engine_await(e, e->event) : status;
}

/* The device's memory is the host's as well: once the stream is done, nothing needs staging. */
static bool host_reaches(const engine_t *e, const allocation_t *allocation)
{
    return (e->properties.flags & LH_DEVICE_HOST_ACCESS) != 0 && allocation->address != NULL;
}

lh_status_t engine_upload(engine_t *e, const allocation_t *to, uint64_t offset, const void *host,
                          uint64_t bytes)
{
    lh_assert(offset <= to->bytes && bytes <= to->bytes - offset);
    if (host_reaches(e, to)) {
        const lh_status_t status = engine_wait(e);
        if (status == LH_OK) memcpy(allocation_place(to, offset).address, host, bytes);
        return status;
    }
    const lh_place_t from = allocation_place(&e->pinned, e->transfer_at);
    for (uint64_t at = 0; at < bytes; at += e->transfer_bytes) {
        const uint64_t n = bytes - at < e->transfer_bytes ? bytes - at : e->transfer_bytes;
        const lh_place_t place = allocation_place(to, offset + at);
        memcpy(from.address, (const char *)host + at, n);
        lh_status_t status = e->api->copy(e->stream, &place, &from, n);
        if (status == LH_OK) status = engine_wait(e);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

lh_status_t engine_download(engine_t *e, const allocation_t *from, uint64_t offset, void *host,
                            uint64_t bytes)
{
    lh_assert(offset <= from->bytes && bytes <= from->bytes - offset);
    if (host_reaches(e, from)) {
        const lh_status_t status = engine_wait(e);
        if (status == LH_OK) memcpy(host, allocation_place(from, offset).address, bytes);
        return status;
    }
    const lh_place_t to = allocation_place(&e->pinned, e->transfer_at);
    for (uint64_t at = 0; at < bytes; at += e->transfer_bytes) {
        const uint64_t n = bytes - at < e->transfer_bytes ? bytes - at : e->transfer_bytes;
        const lh_place_t place = allocation_place(from, offset + at);
        lh_status_t status = e->api->copy(e->stream, &to, &place, n);
        if (status == LH_OK) status = engine_wait(e);
        if (status != LH_OK) return status;
        memcpy((char *)host + at, to.address, n);
    }
    return LH_OK;
}

lh_status_t engine_zero(engine_t *e, const allocation_t *allocation)
{
    if (allocation->memory == NULL) return LH_OK;
    const lh_place_t to = allocation_place(allocation, 0);
    return e->api->fill(e->stream, &to, 0, allocation->bytes);
}

lh_status_t engine_constant(engine_t *e, const float *values, uint64_t count, uint64_t *offset)
{
    lh_assert(count > 0);
    for (uint32_t i = 0; i < e->constant_count; i++) {
        const engine_constant_t *have = &e->constant_list[i];
        if (have->count != count || memcmp(have->values, values, count * sizeof(float)) != 0)
            continue;
        *offset = have->offset;
        return LH_OK;
    }
    engine_constant_t *list = mem_grow(e->constant_list, &e->constant_capacity,
                                       e->constant_count + 1u, sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    e->constant_list = list;

    engine_constant_t made = {.values = mem_array(count, sizeof(float)), .count = count};
    if (made.values == NULL) return LH_NO_MEMORY;
    memcpy(made.values, values, count * sizeof(float));
    const lh_status_t status = allocation_take(&e->constants, count * sizeof(float),
                                               engine_alignment(e), &made.offset);
    if (status != LH_OK) {
        mem_free(made.values);
        return status;
    }
    e->constant_list[e->constant_count++] = made;
    *offset = made.offset;
    return LH_OK;
}

lh_status_t engine_program_add(engine_t *e, program_t *p)
{
    lh_assert(!e->arranged);
    program_t **list = mem_grow(e->programs, &e->program_capacity, e->program_count + 1u,
                                sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    e->programs = list;
    e->programs[e->program_count++] = p;
    return LH_OK;
}

static lh_status_t how_check(const weights_t *w, const program_how_t *how)
{
    if (how->sequences == 0 || how->rows == 0)
        return fail(LH_INVALID, "a program of %llu sequences of %llu tokens has nothing to do",
                    (unsigned long long)how->sequences, (unsigned long long)how->rows);
    if (how->use != USE_DECODE) return LH_OK;
    if (how->capacity < how->rows)
        return fail(LH_INVALID, "a cache of %llu rows is too small for %llu tokens",
                    (unsigned long long)how->capacity, (unsigned long long)how->rows);
    (void)w;
    return LH_OK;
}

lh_status_t program_new(engine_t *e, weights_t *w, const program_how_t *how, program_t **out)
{
    lh_status_t status = how_check(w, how);
    program_t *p;
    if (status == LH_OK) status = program_empty(e, w, how, &p);
    if (status != LH_OK) return status;
    if (how->use == USE_TRAIN && !w->bucketed) status = weights_gradients_default(w);
    if (status == LH_OK) status = model_flow_write(p, how->schedule);
    if (status == LH_OK) *out = p;
    return status;
}

/* A recording that counts on other ranks. */
static lh_status_t recorded_refuse(const engine_t *e)
{
    for (uint32_t i = 0; i < e->program_count; i++) {
        const flow_t *f = e->programs[i]->flow;
        if (f->recorded_count > 0)
            return fail(LH_INVALID, "the model records the %s over %u ranks, and there is one",
                        collective_names[f->recorded[0]->op], f->recorded[0]->ways);
    }
    return LH_OK;
}

lh_status_t engine_arrange(engine_t *e)
{
    if (e->arranged) return LH_OK;
    const lh_status_t status = e->exchange != NULL ? e->exchange->arrange(e->exchange)
                                                   : recorded_refuse(e);
    e->arranged = status == LH_OK;
    return status;
}

lh_status_t engine_plan(engine_t *e)
{
    lh_assert(e->device != NULL);
    if (e->planned) return LH_OK;
    lh_status_t status = engine_arrange(e);
    for (uint32_t i = 0; status == LH_OK && i < e->program_count; i++)
        status = program_finish(e->programs[i]);
    if (status == LH_OK) status = handovers_plan(e);
    for (uint32_t i = 0; status == LH_OK && i < e->program_count; i++)
        status = program_choose(e->programs[i]);
    if (status != LH_OK) return status;
    e->scratch.bytes = kernel_choice_scratch(e->kernels);
    e->planned = true;
    return LH_OK;
}

static lh_status_t allocations_alloc(engine_t *e)
{
    allocation_t *list[ALLOCATIONS];
    allocations_of(e, list);
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < ALLOCATIONS; i++)
        status = allocation_alloc(list[i], e->api, e->device);
    for (uint32_t i = 0; status == LH_OK && i < e->weights_count; i++)
        for (uint32_t s = 0; status == LH_OK && s < e->weights[i]->store_count; s++)
            status = allocation_alloc(&e->weights[i]->stores[s]->allocation, e->api, e->device);
    for (uint32_t i = 0; status == LH_OK && i < e->mirror_count; i++)
        status = allocation_alloc(&e->mirrors[i].pinned, e->api, e->device);
    return status == LH_OK ? handovers_place(e) : status;
}

/* Inputs, caches and states start at zero, so that no run depends on what memory held before. */
static lh_status_t memory_start(engine_t *e)
{
    lh_status_t status = engine_zero(e, &e->inputs);
    if (status == LH_OK) status = engine_zero(e, &e->outputs);
    if (status == LH_OK) status = engine_zero(e, &e->caches);
    for (uint32_t i = 0; status == LH_OK && i < e->weights_count; i++)
        for (uint32_t s = 0; status == LH_OK && s < e->weights[i]->store_count; s++)
            status = engine_zero(e, &e->weights[i]->stores[s]->allocation);
    for (uint32_t i = 0; status == LH_OK && i < e->constant_count; i++) {
        const engine_constant_t *c = &e->constant_list[i];
        status = engine_upload(e, &e->constants, c->offset, c->values, c->count * sizeof(float));
    }
    return status;
}

lh_status_t engine_build(engine_t *e)
{
    lh_assert(!e->built);
    lh_status_t status = engine_plan(e);
    if (status == LH_OK) status = allocations_alloc(e);
    if (status == LH_OK) status = memory_start(e);
    if (status == LH_OK && e->exchange != NULL) status = e->exchange->bind(e->exchange);
    for (uint32_t i = 0; status == LH_OK && i < e->program_count; i++)
        status = program_place(e->programs[i]);
    if (status == LH_OK) status = engine_wait(e);
    e->built = status == LH_OK;
    return status;
}

const lh_device_properties_t *engine_properties(const engine_t *e)
{
    return &e->properties;
}

void engine_variants(const engine_t *e, text_t *out)
{
    kernel_choice_text(e->kernels, out);
}
