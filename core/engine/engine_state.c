/* engine_state.c - waits, copies between host and device, and what programs share. */
#include <engine/engine_state.h>

#include <base/memory.h>

/* How long the device waits in one call of `test`, between two looks at `stopping`: 0.1 s. */
static const uint64_t await_ns = 100000000;

uint64_t engine_alignment(const engine_t *e)
{
    const uint64_t asked = e->properties.alignment_bytes;
    return asked > ENGINE_ALIGNMENT ? asked : ENGINE_ALIGNMENT;
}

const lh_device_properties_t *engine_properties(const engine_t *e)
{
    return &e->properties;
}

/* The device waits in its own way, which is cheaper than a loop here. */
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

/* Whether the host reads and writes the allocation itself: once the stream is done, nothing needs
 * staging. */
static bool host_reaches(const engine_t *e, const allocation_t *allocation)
{
    return (e->properties.flags & LH_DEVICE_HOST_ACCESS) != 0 && allocation->address != NULL;
}

/* Copies `bytes` between `host` and an allocation. Where the host does not reach the allocation,
 * the bytes go through pinned memory, a part at a time; each part is waited for, as there is one
 * staging memory. */
static lh_status_t host_copy(engine_t *e, const allocation_t *allocation, uint64_t offset,
                             char *host, uint64_t bytes, bool to_host)
{
    lh_assert(offset <= allocation->bytes && bytes <= allocation->bytes - offset);
    if (host_reaches(e, allocation)) {
        const lh_status_t status = engine_wait(e);
        void *there = allocation_place(allocation, offset).address;
        if (status == LH_OK) memcpy(to_host ? host : there, to_host ? there : host, bytes);
        return status;
    }
    const lh_place_t staging = allocation_place(&e->pinned, e->transfer_at);
    for (uint64_t at = 0; at < bytes; at += e->transfer_bytes) {
        const uint64_t n = bytes - at < e->transfer_bytes ? bytes - at : e->transfer_bytes;
        const lh_place_t place = allocation_place(allocation, offset + at);
        if (!to_host) memcpy(staging.address, host + at, n);
        lh_status_t status = to_host ? e->api->copy(e->stream, &staging, &place, n)
                                     : e->api->copy(e->stream, &place, &staging, n);
        if (status == LH_OK) status = engine_wait(e);
        if (status != LH_OK) return status;
        if (to_host) memcpy(host + at, staging.address, n);
    }
    return LH_OK;
}

lh_status_t engine_upload(engine_t *e, const allocation_t *to, uint64_t offset, const void *host,
                          uint64_t bytes)
{
    return host_copy(e, to, offset, (char *)host, bytes, false);
}

lh_status_t engine_download(engine_t *e, const allocation_t *from, uint64_t offset, void *host,
                            uint64_t bytes)
{
    return host_copy(e, from, offset, host, bytes, true);
}

/* An allocation without bytes was never allocated, and needs no zeros. */
lh_status_t engine_zero(engine_t *e, const allocation_t *allocation)
{
    if (allocation->memory == NULL) return LH_OK;
    const lh_place_t to = allocation_place(allocation, 0);
    return e->api->fill(e->stream, &to, 0, allocation->bytes);
}

/* Looks at all constants in turn: there are few, as blocks share theirs, and programs are written
 * once. */
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

/* Both tables grow together; the flow stays where it is for the program's life. */
lh_status_t engine_program_add(engine_t *e, program_t *p, flow_t *flow)
{
    lh_assert(!e->arranged && p != NULL && flow != NULL);
    flow_t **flows = mem_grow(e->flows, &e->flow_capacity, e->program_count + 1u, sizeof(*flows));
    if (flows == NULL) return LH_NO_MEMORY;
    e->flows = flows;
    program_t **list = mem_grow(e->programs, &e->program_capacity, e->program_count + 1u,
                                sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    e->programs = list;
    e->flows[e->program_count] = flow;
    e->programs[e->program_count++] = p;
    return LH_OK;
}
