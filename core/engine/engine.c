/* engine.c - opens a device, builds what was stated, and reports.
 *
 * The build, in order: core/parallel puts transfers into the flows (arrange); each flow is
 * finished, which says how large the arenas are; handovers find what has to be copied for
 * transfers; each call gets its kernel, which says how much scratch is needed; memory is allocated
 * and set to zero; the exchange binds its plans to it; lists get addresses, and are
 * captured by their second runs. Up to the allocation all of it is a plan that can be reported and thrown away. */
#include <engine/engine.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/memory.h>
#include <engine/handover.h>

/* Bytes of a pinned slot through which weights go to a device whose memory the host can't reach: at
 * the rate of PCIe many times what a copy costs to start. And the most scratch that a kernel may ask
 * for, 4 GiB. */
enum { SLOT_BYTES = 2 << 20 };
static const uint64_t scratch_limit_bytes = (uint64_t)4 << 30;

/* Names stand in sentences and reports: an arena's is what it is for, any other allocation's is the
 * name of its field. */
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
            .name = engine_memory_text(kinds[i]), .space = LH_SPACE_DEVICE, .kind = kinds[i]};
    ALLOCATION(scratch, SCRATCH, DEVICE);
    ALLOCATION(inputs, INPUTS, DEVICE);
    ALLOCATION(outputs, OUTPUTS, DEVICE);
    ALLOCATION(constants, CONSTANTS, DEVICE);
    ALLOCATION(caches, CACHES, DEVICE);
    ALLOCATION(workspace, TRANSFERS, DEVICE);
    ALLOCATION(pinned, PINNED, PINNED);
#undef ALLOCATION
}

/* What copies between host and device need. Where the host reaches all memory there is nothing to
 * copy beside a step, and no second stream, which might have threads of its own. */
static lh_status_t copying_start(engine_t *e)
{
    const lh_stream_how_t how = {.struct_size = sizeof(how), .role = LH_STREAM_COPY};
    lh_status_t status = LH_OK;
    if ((e->properties.flags & LH_DEVICE_HOST_ACCESS) != 0)
        e->copying = e->stream;
    else
        status = e->api->stream_new(e->device, &how, &e->copying);
    if (status == LH_OK) status = e->api->event_new(e->device, &e->fed);
    if (status == LH_OK) status = e->api->event_new(e->device, &e->marked);
    e->slot_bytes = SLOT_BYTES;
    for (uint32_t i = 0; status == LH_OK && i < COPY_SLOTS; i++) {
        status = e->api->event_new(e->device, &e->slots[i].copied);
        if (status == LH_OK)
            status = allocation_take(&e->pinned, SLOT_BYTES, engine_alignment(e), &e->slots[i].at);
    }
    return status;
}

/* Opens the device, asks for its properties, and makes the computing stream. A device need not
 * offer its native queue. */
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
    return status == LH_OK ? copying_start(e) : status;
}

/* Without a device only the allocations get their names: programs can then be recorded, and their
 * transfers checked. */
static lh_status_t engine_start(engine_t *e)
{
    allocations_name(e);
    if (e->how.device == NULL) return LH_OK;
    const lh_status_t status = device_start(e);
    if (status != LH_OK) return status;

    const kernel_choice_how_t how = {.ops = e->how.ops,
                                     .device = e->how.device,
                                     .opened = e->device,
                                     .config = e->how.device_config,
                                     .plugins = e->how.plugins,
                                     .plugin_count = e->how.plugin_count,
                                     .stream = e->stream,
                                     .scratch_limit_bytes = scratch_limit_bytes,
                                     .unordered = e->how.unordered,
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

/* How long the device waits in one call of `test`: 0.1 s. */
static const uint64_t drain_ns = 100000000;

/* No transfer is under way any more; after a failure streams may still await the ends of some. */
static void event_drain(engine_t *e)
{
    while (e->api->test(e->event, drain_ns) == LH_AGAIN)
        handovers_release(e);
}

/* Waits until a stream is empty, even while the job is being stopped. A device that is lost has nothing queued. A
 * wait for the event may have been given up as the job is stopped: it may be recorded again only once it is past. */
static void stream_drain(engine_t *e, lh_stream_t *stream)
{
    event_drain(e);
    if (e->api->record(stream, e->event) == LH_OK) event_drain(e);
}

/* Users before what they use: queues run dry, then handovers, programs, weights, kernels, memory,
 * and last the streams and the device. */
void engine_close(engine_t *e)
{
    if (e == NULL) return;
    /* Nothing may be queued on what is released. */
    lh_stream_t *const streams[] = {e->stream, e->copying, e->leaving, e->coming, e->exchanging};
    for (uint32_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++)
        if (streams[i] != NULL && e->event != NULL) stream_drain(e, streams[i]);
    handovers_free(e);
    for (uint32_t i = 0; i < e->program_count; i++)
        program_free(e->programs[i]);
    for (uint32_t i = 0; i < e->weights_count; i++)
        weights_free(e->weights[i]);
    kernel_choice_free(e->kernels);
    for (uint32_t i = 0; i < ENGINE_ALLOCATIONS; i++)
        allocation_release(&e->allocations[i], e->api);
    for (uint32_t i = 0; i < e->constant_count; i++)
        mem_free(e->constant_list[i].values);
    mem_free(e->constant_list);
    lh_event_t *const events[] = {e->event, e->fed, e->marked, e->slots[0].copied,
                                  e->slots[1].copied};
    for (uint32_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i] != NULL) e->api->event_free(events[i]);
    if (e->copying != NULL && e->copying != e->stream) e->api->stream_free(e->copying);
    if (e->stream != NULL) e->api->stream_free(e->stream);
    if (e->device != NULL) e->api->close(e->device);
    mem_free(e->programs);
    mem_free(e->flows);
    mem_free(e->weights);
    mem_free(e);
}

/* Without an exchange nothing can carry out the transfers that a recording states. */
static lh_status_t recorded_refuse(const engine_t *e)
{
    for (uint32_t i = 0; i < e->program_count; i++) {
        const flow_t *f = e->flows[i];
        if (f->recorded_count > 0)
            return fail(LH_INVALID, "the model records the %s over %u ranks, and there is one",
                        collective_names[f->recorded[0]->op], f->recorded[0]->ways);
    }
    return LH_OK;
}

/* An engine without an exchange is alone, and refuses recordings that need other ranks. */
lh_status_t engine_arrange(engine_t *e)
{
    if (e->arranged) return LH_OK;
    const lh_status_t status = e->exchange != NULL ? e->exchange->arrange(e->exchange)
                                                   : recorded_refuse(e);
    e->arranged = status == LH_OK;
    return status;
}

/* Kernels are chosen after the arenas are laid out, as whether an output lies in its input's memory
 * is part of what a kernel is chosen by. */
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

/* The engine's own allocations, then stores, then mirrors of what travels where links don't reach it. */
static lh_status_t allocations_alloc(engine_t *e)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < ENGINE_ALLOCATIONS; i++)
        status = allocation_alloc(&e->allocations[i], e->api, e->device);
    for (uint32_t i = 0; status == LH_OK && i < e->weights_count; i++)
        for (uint32_t s = 0; status == LH_OK && s < e->weights[i]->store_count; s++)
            status = allocation_alloc(&e->weights[i]->stores[s]->allocation, e->api, e->device);
    if (status == LH_OK && e->exchange != NULL && e->exchange->reach != NULL)
        status = e->exchange->reach(e->exchange);
    for (uint32_t i = 0; status == LH_OK && i < e->mirror_count; i++)
        status = allocation_alloc(&e->mirrors[i].pinned, e->api, e->device);
    return status == LH_OK ? handovers_place(e) : status;
}

/* Inputs, caches and states start at zero, so that no run depends on what memory held before.
 * Arenas need not: every buffer in them is written before it is read. */
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
        const engine_elements_t values = {c->values, LH_DTYPE_F32, c->count};
        status = engine_upload(e, &e->constants, c->offset, LH_DTYPE_F32, values);
    }
    return status;
}

/* After a failure the engine can only be closed. */
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

void engine_variants(const engine_t *e, text_t *out)
{
    kernel_choice_text(e->kernels, 0, out);
}

void engine_tune(engine_t *e, const char *known, bool tune)
{
    if (e->kernels != NULL) kernel_choice_tune(e->kernels, known, tune);
}

void engine_bound(engine_t *e)
{
    if (e->kernels != NULL) kernel_choice_bound(e->kernels);
}

void engine_timed(const engine_t *e, text_t *out)
{
    kernel_choice_text(e->kernels, LH_KERNEL_TUNE, out);
}

lh_status_t engine_finish(engine_t *e)
{
    const lh_status_t status = engine_wait(e);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < ENGINE_ALLOCATIONS; i++)
        if (&e->allocations[i] != &e->pinned) allocation_release(&e->allocations[i], e->api);
    for (uint32_t i = 0; i < e->weights_count; i++)
        weights_finish(e->weights[i]);
    return LH_OK;
}

/* ---- reports ---- */

bool engine_queues(const engine_t *e)
{
    return (e->properties.flags & LH_DEVICE_SYNCHRONOUS) == 0;
}

bool engine_can_profile(const engine_t *e)
{
    return !engine_queues(e) || e->api->event_time != NULL;
}

lh_status_t engine_profile(engine_t *e, bool on)
{
    lh_status_t status = engine_wait(e);
    for (uint32_t i = 0; status == LH_OK && i < e->program_count; i++)
        for (uint32_t l = 0; status == LH_OK && l < 2; l++)
            status = call_list_profile(e, &e->programs[i]->lists[l], on);
    if (status == LH_OK) e->profiling = on;
    return status;
}

/* What a call does, in one word: its op, its collective, or "fill". */
static const char *call_op(const program_call_t *call)
{
    if (call->op != NULL) return call->op->row.name;
    return call->transfer != NULL ? collective_names[call->transfer->op] : "fill";
}

/* The row that a call belongs to, without times. */
static profile_row_t profile_row_of(const program_call_t *call)
{
    profile_row_t row = {.backward = call->backward};
    (void)snprintf(row.part, sizeof(row.part), "%s", call->part);
    (void)snprintf(row.op, sizeof(row.op), "%s", call_op(call));
    (void)snprintf(row.kernel, sizeof(row.kernel), "%s", call->kernel);
    return row;
}

/* The row with the wanted one's names and direction, added if there is none: `rows` has room for
 * one a call. */
static profile_row_t *row_find(profile_row_t *rows, uint32_t *count, const profile_row_t *wanted)
{
    for (uint32_t i = 0; i < *count; i++)
        if (rows[i].backward == wanted->backward && strcmp(rows[i].part, wanted->part) == 0 &&
            strcmp(rows[i].op, wanted->op) == 0 && strcmp(rows[i].kernel, wanted->kernel) == 0)
            return &rows[i];
    rows[*count] = *wanted;
    return &rows[(*count)++];
}

/* Adds a list's calls to the rows. Only kernels have FLOPs and bytes; transfers and fills have
 * time alone. */
static void list_sum(const program_t *p, bool later, profile_row_t *rows, uint32_t *count)
{
    const uint64_t runs = p->lists[later].profiled_runs;
    program_call_t call;
    for (uint32_t i = 0; runs > 0 && program_call(p, later, i, &call); i++) {
        const profile_row_t wanted = profile_row_of(&call);
        profile_row_t *row = row_find(rows, count, &wanted);
        row->calls += runs;
        row->ns += call.ns;
        if (call.op == NULL) continue;
        row->flops += call.flops * (double)runs;
        row->bytes += call.bytes * (double)runs;
    }
}

static int profile_slower_first(const void *a, const void *b)
{
    const profile_row_t *x = a, *y = b;
    if (x->ns != y->ns) return x->ns > y->ns ? -1 : 1;
    return strcmp(x->op, y->op);
}

/* How many calls all lists have, which is room enough for rows and for frames. */
static size_t calls_most(const engine_t *e)
{
    size_t most = 1;
    for (uint32_t i = 0; i < e->program_count; i++)
        for (uint32_t l = 0; l < 2; l++)
            most += e->programs[i]->lists[l].count;
    return most;
}

lh_status_t engine_profile_rows(engine_t *e, profile_row_t **rows, uint32_t *count)
{
    profile_row_t *made = mem_array(calls_most(e), sizeof(*made));
    if (made == NULL) return LH_NO_MEMORY;

    uint32_t n = 0;
    for (uint32_t i = 0; i < e->program_count; i++)
        for (uint32_t later = 0; later < 2; later++)
            list_sum(e->programs[i], later != 0, made, &n);
    qsort(made, n, sizeof(*made), profile_slower_first);
    *rows = made;
    *count = n;
    return LH_OK;
}

/* The roofline: a call takes at least its FLOPs over the matrix rate, and at least its bytes over
 * the bandwidth. */
double engine_profile_of_limit(const profile_row_t *r, double peak_flops, double bytes_per_second)
{
    if (r->ns == 0 || peak_flops <= 0 || bytes_per_second <= 0) return 0;
    const double compute = r->flops / peak_flops, move = r->bytes / bytes_per_second;
    return (compute > move ? compute : move) / ((double)r->ns * 1e-9);
}

/* ---- boxes of a flame chart ---- */

/* Frames so far; `list` has room for one a call. */
typedef struct frames {
    profile_frame_t *list;
    uint32_t count;
} frames_t;

/* Whether two frames are one box. Names of ops may come from different rows and are compared by
 * content; of each part there is one name only (part_text), so the pointer will do. */
static bool is_frame(const profile_frame_t *a, const profile_frame_t *b)
{
    return a->backward == b->backward && a->block == b->block && a->part == b->part &&
           strcmp(a->op, b->op) == 0;
}

/* The wanted frame among those of this list of calls, which begin at `first`; added if there is
 * none. An equal one is most likely near the end. */
static profile_frame_t *frame_find(frames_t *f, uint32_t first, const profile_frame_t *wanted)
{
    for (uint32_t i = f->count; i > first; i--)
        if (is_frame(&f->list[i - 1], wanted)) return &f->list[i - 1];
    f->list[f->count] = *wanted;
    return &f->list[f->count++];
}

/* Adds a list's calls to the frames. All waits are called "wait", whatever they wait for, as the
 * reader asks how long they are. */
static void list_frames(const program_t *p, bool later, const char *name, frames_t *f)
{
    const uint32_t first = f->count;
    program_call_t call;
    if (p->lists[later].profiled_runs == 0) return;
    for (uint32_t i = 0; program_call(p, later, i, &call); i++) {
        const profile_frame_t wanted = {.list = name,
                                        .part = call.part,
                                        .op = call.waits ? "wait" : call_op(&call),
                                        .op_flags = call.op == NULL ? 0 : call.op->row.flags,
                                        .waits = call.waits,
                                        .block = call.block,
                                        .backward = call.backward};
        frame_find(f, first, &wanted)->ns += call.ns;
    }
}

/* Lists of the update come last, as in a step. */
lh_status_t engine_profile_frames(engine_t *e, profile_frame_t **frames, uint32_t *count)
{
    frames_t f = {.list = mem_array(calls_most(e), sizeof(*f.list))};
    if (f.list == NULL) return LH_NO_MEMORY;
    for (uint32_t update = 0; update < 2; update++)
        for (uint32_t i = 0; i < e->program_count; i++) {
            const program_t *p = e->programs[i];
            if ((p->how.use == USE_UPDATE) != (update == 1)) continue;
            list_frames(p, false, update ? "update" : "first micro-batch", &f);
            list_frames(p, true, "later micro-batches", &f);
        }
    *frames = f.list;
    *count = f.count;
    return LH_OK;
}

/* What memory is for, by MEMORY_*. */
static const char *const kind_texts[MEMORY_KINDS] = {
    [MEMORY_PARAMETERS] = "parameters",    [MEMORY_GRADIENTS] = "gradients",
    [MEMORY_MASTER] = "master weights",    [MEMORY_STATE] = "optimizer state",
    [MEMORY_REFERENCE] = "reference",      [MEMORY_ACTIVATIONS] = "activations",
    [MEMORY_GATHERED] = "gathered blocks", [MEMORY_BUCKETS] = "buckets",
    [MEMORY_SCRATCH] = "scratch",          [MEMORY_INPUTS] = "inputs",
    [MEMORY_OUTPUTS] = "outputs",          [MEMORY_CACHES] = "caches",
    [MEMORY_CONSTANTS] = "constants",      [MEMORY_PINNED] = "pinned",
    [MEMORY_LIBRARY] = "library",          [MEMORY_TRANSFERS] = "transfers",
};

const char *engine_memory_text(uint32_t kind)
{
    return kind < MEMORY_KINDS ? kind_texts[kind] : "unknown";
}

/* The size of an allocation that a report counts: as planned, or as found by
 * allocation_resident. */
static uint64_t allocation_planned(LH_UNUSED const engine_t *e, const allocation_t *r)
{
    return r->bytes;
}

/* Pages that one mincore() is asked about. */
enum { PAGES_AT_ONCE = 4096 };

/* Bytes of an allocation whose pages are in memory. The operating system knows the host's pages
 * only: memory that the host can't reach counts as the device gave it, whatever stands at its
 * address here. */
static uint64_t allocation_resident(const engine_t *e, const allocation_t *r)
{
    unsigned char there[PAGES_AT_ONCE];
    const bool reached = (e->properties.flags & LH_DEVICE_HOST_ACCESS) != 0 ||
                         r->space != LH_SPACE_DEVICE;
    if (r->memory == NULL) return 0;
    if (r->address == NULL || !reached) return r->bytes;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)r->address;
    const uintptr_t end = begin + r->bytes;
    uint64_t resident = 0;
    for (uintptr_t at = begin & ~(page - 1); at < end; at += PAGES_AT_ONCE * page) {
        const uintptr_t left = (end - at + page - 1) / page;
        const size_t pages = left < PAGES_AT_ONCE ? left : PAGES_AT_ONCE;
        lh_assert(pages <= sizeof(there));
        if (mincore((char *)r->address - (begin - at), pages * page, there) != 0) return r->bytes;
        for (size_t i = 0; i < pages; i++) {
            const uintptr_t from = at + i * page, to = from + page;
            if ((there[i] & 1) != 0)
                resident += (to < end ? to : end) - (from > begin ? from : begin);
        }
    }
    return resident;
}

/* Adds up all of the engine's allocations by kind; `size` says how many bytes of one count. */
static void allocations_sum(const engine_t *e,
                            uint64_t (*size)(const engine_t *e, const allocation_t *r),
                            memory_report_t *out)
{
    for (uint32_t i = 0; i < ENGINE_ALLOCATIONS; i++) {
        lh_assert(e->allocations[i].kind < MEMORY_KINDS);
        out->bytes[e->allocations[i].kind] += size(e, &e->allocations[i]);
    }
    for (uint32_t i = 0; i < e->mirror_count; i++)
        out->bytes[MEMORY_PINNED] += size(e, &e->mirrors[i].pinned);
    for (uint32_t i = 0; i < e->weights_count; i++)
        for (uint32_t s = 0; s < e->weights[i]->store_count; s++) {
            const allocation_t *r = &e->weights[i]->stores[s]->allocation;
            lh_assert(r->kind < MEMORY_KINDS);
            out->bytes[r->kind] += size(e, r);
        }
}

/* Less than planned where pages were never touched, as the host gives memory only then. */
void engine_memory_measured(const engine_t *e, memory_report_t *out)
{
    *out = (memory_report_t){0};
    allocations_sum(e, allocation_resident, out);
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        if (k != MEMORY_PINNED) out->total_bytes += out->bytes[k];
}

bool engine_device_memory(const engine_t *e, lh_device_memory_t *out)
{
    lh_device_memory_t memory = {.struct_size = sizeof(memory)};
    if (e->api->memory == NULL || e->api->memory(e->device, &memory) != LH_OK) return false;
    *out = memory;
    return true;
}

/* What is planned, with what the device and the kernels keep for themselves. */
void engine_memory(const engine_t *e, memory_report_t *out)
{
    *out = (memory_report_t){0};
    allocations_sum(e, allocation_planned, out);
    out->bytes[MEMORY_LIBRARY] = e->properties.reserve_bytes + kernel_choice_host_bytes(e->kernels);
    for (uint32_t i = 0; i < e->program_count; i++)
        if (e->flows[i]->saved_bytes > out->saved_bytes)
            out->saved_bytes = e->flows[i]->saved_bytes;
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        if (k != MEMORY_PINNED) out->total_bytes += out->bytes[k];
}
