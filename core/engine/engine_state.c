/* engine_state.c - waits, copies between host and device, and what programs share. */
#include <engine/engine_state.h>

#include <base/dtype.h>
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

bool engine_captures(const engine_t *e)
{
    const lh_device_api_t *api = e->api;
    return !e->how.no_capture && (e->properties.flags & LH_DEVICE_CAPTURE) != 0 &&
           api->capture_begin != NULL && api->capture_end != NULL && api->replay != NULL &&
           api->replay_free != NULL;
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

/* A part of a copy that goes through a slot. */
typedef struct copy_part {
    const allocation_t *allocation;
    uint64_t offset, bytes; /* on the device */
    char *host;
    uint64_t count; /* elements */
    lh_dtype_t dtype, host_dtype;
    uint32_t slot;
} copy_part_t;

/* Part number n of a copy; count is 0 behind the last one. */
static copy_part_t copy_part_at(const engine_t *e, const copy_part_t *whole, uint64_t n)
{
    const uint64_t wide = lh_dtype_bytes(whole->dtype), most = e->slot_bytes / wide;
    copy_part_t part = *whole;
    const uint64_t first = n * most < whole->count ? n * most : whole->count;
    part.count = whole->count - first < most ? whole->count - first : most;
    part.offset += first * wide;
    part.bytes = part.count * wide;
    part.host += first * lh_dtype_bytes(whole->host_dtype);
    return part;
}

/* Takes the next slot and queues the copy that fills or empties it. */
static lh_status_t part_queue(engine_t *e, copy_part_t *part, bool to_host)
{
    part->slot = e->slot;
    e->slot = (e->slot + 1) % COPY_SLOTS;
    const lh_place_t pinned = allocation_place(&e->pinned, e->slots[part->slot].at);
    const lh_place_t place = allocation_place(part->allocation, part->offset);
    lh_event_t *const copied = e->slots[part->slot].copied;
    lh_status_t status = engine_await(e, copied);
    if (status == LH_OK && !to_host)
        status = dtype_convert(part->dtype, pinned.address, part->host_dtype, part->host,
                               part->count);
    if (status == LH_OK)
        status = to_host ? e->api->copy(e->copying, &pinned, &place, part->bytes)
                         : e->api->copy(e->copying, &place, &pinned, part->bytes);
    return status == LH_OK ? e->api->record(e->copying, copied) : status;
}

/* The slot's elements to where the host wants them, once they have come. */
static lh_status_t part_take(engine_t *e, const copy_part_t *part)
{
    const lh_place_t pinned = allocation_place(&e->pinned, e->slots[part->slot].at);
    const lh_status_t status = engine_await(e, e->slots[part->slot].copied);
    if (status != LH_OK) return status;
    return dtype_convert(part->host_dtype, part->host, part->dtype, pinned.address, part->count);
}

/* The copying stream comes behind all that is queued. The event is past once the uploads before the
 * last one are: so the host is at most two calls ahead. */
static lh_status_t copying_follow(engine_t *e)
{
    lh_status_t status = engine_await(e, e->fed);
    if (status == LH_OK) status = e->api->record(e->stream, e->fed);
    return status == LH_OK ? e->api->wait(e->copying, e->fed) : status;
}

/* The host converts into one slot while the device copies from the other. The computing stream waits
 * for the copies, the host does not. */
static lh_status_t staged_upload(engine_t *e, const copy_part_t *whole)
{
    lh_assert(!e->marks);
    lh_status_t status = copying_follow(e);
    copy_part_t part = copy_part_at(e, whole, 0);
    for (uint64_t n = 1; status == LH_OK && part.count > 0; n++) {
        status = part_queue(e, &part, false);
        if (status == LH_OK) status = e->api->wait(e->stream, e->slots[part.slot].copied);
        part = copy_part_at(e, whole, n);
    }
    return status;
}

/* The copy of the next part is queued before the host takes this one out of its slot. */
static lh_status_t staged_download(engine_t *e, const copy_part_t *whole)
{
    copy_part_t part = copy_part_at(e, whole, 0);
    lh_status_t status = e->marks ? LH_OK : copying_follow(e);
    if (status == LH_OK && part.count > 0) status = part_queue(e, &part, true);
    for (uint64_t n = 1; status == LH_OK && part.count > 0; n++) {
        copy_part_t next = copy_part_at(e, whole, n);
        if (next.count > 0) status = part_queue(e, &next, true);
        if (status == LH_OK) status = part_take(e, &part);
        part = next;
    }
    return status;
}

/* All that is copied between elements of the host and those at an offset. */
static copy_part_t part_whole(const allocation_t *allocation, uint64_t offset, lh_dtype_t dtype,
                              engine_elements_t host)
{
    lh_assert(offset <= allocation->bytes &&
              host.count <= (allocation->bytes - offset) / lh_dtype_bytes(dtype));
    return (copy_part_t){.allocation = allocation,
                         .offset = offset,
                         .host = host.at,
                         .count = host.count,
                         .dtype = dtype,
                         .host_dtype = host.dtype};
}

lh_status_t engine_upload(engine_t *e, const allocation_t *to, uint64_t offset, lh_dtype_t dtype,
                          engine_elements_t host)
{
    const copy_part_t whole = part_whole(to, offset, dtype, host);
    if (!host_reaches(e, to)) return staged_upload(e, &whole);
    const lh_status_t status = engine_wait(e);
    if (status != LH_OK) return status;
    return dtype_convert(dtype, allocation_place(to, offset).address, host.dtype, host.at,
                         host.count);
}

lh_status_t engine_download(engine_t *e, const allocation_t *from, uint64_t offset,
                            lh_dtype_t dtype, engine_elements_t host)
{
    const copy_part_t whole = part_whole(from, offset, dtype, host);
    if (!host_reaches(e, from)) return staged_download(e, &whole);
    const lh_status_t status = e->marks ? engine_await(e, e->marked) : engine_wait(e);
    if (status != LH_OK) return status;
    return dtype_convert(host.dtype, host.at, dtype, allocation_place(from, offset).address,
                         host.count);
}

lh_status_t engine_mark(engine_t *e)
{
    lh_status_t status = engine_await(e, e->marked); /* may be recorded again only then */
    if (status == LH_OK) status = e->api->record(e->stream, e->marked);
    if (status == LH_OK && e->copying != e->stream) status = e->api->wait(e->copying, e->marked);
    e->marks = status == LH_OK;
    return status;
}

void engine_unmark(engine_t *e)
{
    e->marks = false;
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
