/* engine_profile.c - what an engine's time goes into. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/memory.h>
#include <engine/engine_profile.h>
#include <engine/program.h>

bool engine_can_profile(const engine_t *e)
{
    return (e->properties.flags & LH_DEVICE_SYNCHRONOUS) != 0 || e->api->event_time != NULL;
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

/* What a call does: an op, a transfer or a fill. */
static const char *call_op(const exec_call_t *call)
{
    if (call->kernel != NULL) return call->kernel->op->row.name;
    return call->source->transfer != NULL ? collective_names[call->source->transfer->op] : "fill";
}

/* And how: the kernel, or whether a transfer is started or waited for. */
static const char *call_kernel(const exec_call_t *call)
{
    if (call->kernel != NULL) return call->kernel->plan.name;
    switch (call->source->kind) {
    case FLOW_COLLECTIVE: return "start";
    case FLOW_WAIT: return "wait";
    default: return "fill";
    }
}

static const char *part_text(const program_t *p, uint32_t part)
{
    if (p->how.use == USE_UPDATE) return "update";
    switch (part) {
    case LH_PART_EMBED: return "embed";
    case LH_PART_BLOCK: return "blocks";
    default: return "head";
    }
}

/* Of a transfer what it moves is counted where it is started. */
static double call_bytes(const exec_call_t *call)
{
    if (call->source->kind == FLOW_COLLECTIVE)
        return (double)transfer_bytes(call->source->transfer);
    return (double)call->bytes;
}

bool program_call(const program_t *p, bool later, uint32_t i, program_call_t *out)
{
    const call_list_t *list = &p->lists[later ? 1 : 0];
    if (i >= list->count) return false;
    const exec_call_t *call = &list->calls[i];
    const kernel_t *kernel = call->kernel;
    *out = (program_call_t){.part = part_text(p, call->source->part),
                            .kernel = call_kernel(call),
                            .transfer = call->source->transfer,
                            .waits = call->source->kind == FLOW_WAIT,
                            .last_only = call->source->last_only,
                            .block = call->source->block,
                            .backward = call->source->backward,
                            .bytes = call_bytes(call),
                            .ns = call->ns};
    if (kernel == NULL) return true;
    out->op = kernel->op;
    out->attributes = kernel->attributes;
    out->args = kernel->args;
    out->arg_count = kernel->arg_count;
    out->flops = kernel->cost.flops;
    out->bytes = kernel->cost.bytes;
    return true;
}

const recording_t *program_block(const program_t *p)
{
    return p->block;
}

static profile_row_t row_of(const program_t *p, const exec_call_t *call)
{
    profile_row_t row = {.backward = call->source->backward};
    (void)snprintf(row.part, sizeof(row.part), "%s", part_text(p, call->source->part));
    (void)snprintf(row.op, sizeof(row.op), "%s", call_op(call));
    (void)snprintf(row.kernel, sizeof(row.kernel), "%s", call_kernel(call));
    return row;
}

static profile_row_t *row_find(profile_row_t *rows, uint32_t *count, const profile_row_t *wanted)
{
    for (uint32_t i = 0; i < *count; i++)
        if (rows[i].backward == wanted->backward && strcmp(rows[i].part, wanted->part) == 0 &&
            strcmp(rows[i].op, wanted->op) == 0 && strcmp(rows[i].kernel, wanted->kernel) == 0)
            return &rows[i];
    rows[*count] = *wanted;
    return &rows[(*count)++];
}

static void list_sum(const program_t *p, const call_list_t *list, profile_row_t *rows,
                     uint32_t *count)
{
    if (list->profiled_runs == 0) return;
    for (uint32_t i = 0; i < list->count; i++) {
        const exec_call_t *call = &list->calls[i];
        const profile_row_t wanted = row_of(p, call);
        profile_row_t *row = row_find(rows, count, &wanted);
        row->calls += list->profiled_runs;
        row->ns += call->ns;
        if (call->kernel == NULL) continue;
        row->flops += call->kernel->cost.flops * (double)list->profiled_runs;
        row->bytes += call->kernel->cost.bytes * (double)list->profiled_runs;
    }
}

static int slower_first(const void *a, const void *b)
{
    const profile_row_t *x = a, *y = b;
    if (x->ns != y->ns) return x->ns > y->ns ? -1 : 1;
    return strcmp(x->op, y->op);
}

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
        for (uint32_t l = 0; l < 2; l++)
            list_sum(e->programs[i], &e->programs[i]->lists[l], made, &n);
    qsort(made, n, sizeof(*made), slower_first);
    *rows = made;
    *count = n;
    return LH_OK;
}

double profile_row_of_limit(const profile_row_t *r, double peak_flops, double bytes_per_second)
{
    if (r->ns == 0 || peak_flops <= 0 || bytes_per_second <= 0) return 0;
    const double compute = r->flops / peak_flops, move = r->bytes / bytes_per_second;
    return (compute > move ? compute : move) / ((double)r->ns * 1e-9);
}

/* ---- boxes of a flame chart ---- */

typedef struct frames {
    profile_frame_t *list;
    uint32_t count;
} frames_t;

static bool is_frame(const profile_frame_t *a, const profile_frame_t *b)
{
    return a->backward == b->backward && a->block == b->block && a->part == b->part &&
           strcmp(a->op, b->op) == 0;
}

/* The frames of this list of calls begin at `first`; an equal one is most likely near the end. */
static profile_frame_t *frame_find(frames_t *f, uint32_t first, const profile_frame_t *wanted)
{
    for (uint32_t i = f->count; i > first; i--)
        if (is_frame(&f->list[i - 1], wanted)) return &f->list[i - 1];
    f->list[f->count] = *wanted;
    return &f->list[f->count++];
}

static void list_frames(const program_t *p, const call_list_t *list, const char *name, frames_t *f)
{
    const uint32_t first = f->count;
    if (list->profiled_runs == 0) return;
    for (uint32_t i = 0; i < list->count; i++) {
        const exec_call_t *call = &list->calls[i];
        const profile_frame_t wanted = {.list = name,
                                        .part = part_text(p, call->source->part),
                                        .op = call->source->kind == FLOW_WAIT ? "wait"
                                                                              : call_op(call),
                                        .block = call->source->block,
                                        .backward = call->source->backward};
        frame_find(f, first, &wanted)->ns += call->ns;
    }
}

lh_status_t engine_profile_frames(engine_t *e, profile_frame_t **frames, uint32_t *count)
{
    frames_t f = {.list = mem_array(calls_most(e), sizeof(*f.list))};
    if (f.list == NULL) return LH_NO_MEMORY;
    for (uint32_t update = 0; update < 2; update++)
        for (uint32_t i = 0; i < e->program_count; i++) {
            const program_t *p = e->programs[i];
            if ((p->how.use == USE_UPDATE) != (update == 1)) continue;
            list_frames(p, &p->lists[0], update ? "update" : "first micro-batch", &f);
            list_frames(p, &p->lists[1], "later micro-batches", &f);
        }
    *frames = f.list;
    *count = f.count;
    return LH_OK;
}

/* What an engine's memory is for. */
static const char *const kind_texts[MEMORY_KINDS] = {
    [MEMORY_PARAMETERS] = "parameters",   [MEMORY_GRADIENTS] = "gradients",
    [MEMORY_MASTER] = "master weights",   [MEMORY_STATE] = "optimizer state",
    [MEMORY_ACTIVATIONS] = "activations", [MEMORY_GATHERED] = "gathered blocks",
    [MEMORY_BUCKETS] = "buckets",         [MEMORY_SCRATCH] = "scratch",
    [MEMORY_INPUTS] = "inputs",           [MEMORY_OUTPUTS] = "outputs",
    [MEMORY_CACHES] = "caches",           [MEMORY_CONSTANTS] = "constants",
    [MEMORY_PINNED] = "pinned",           [MEMORY_LIBRARY] = "library",
    [MEMORY_TRANSFERS] = "transfers",
};

const char *memory_kind_text(uint32_t kind)
{
    return kind < MEMORY_KINDS ? kind_texts[kind] : "unknown";
}

static uint64_t allocation_planned(LH_UNUSED const engine_t *e, const allocation_t *r)
{
    return r->bytes;
}

enum { PAGES_AT_ONCE = 4096 };

/* Bytes of an allocation whose pages are in memory. The kernel knows the host's pages alone: what lies
 * where the host can't reach is what the device gave, whatever stands at its address here. */
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
        if (mincore((char *)r->address - (begin - at), pages * page, there) != 0) return r->bytes;
        for (size_t i = 0; i < pages; i++) {
            const uintptr_t from = at + i * page, to = from + page;
            if ((there[i] & 1) != 0)
                resident += (to < end ? to : end) - (from > begin ? from : begin);
        }
    }
    return resident;
}

static void allocations_sum(const engine_t *e,
                            uint64_t (*size)(const engine_t *e, const allocation_t *r),
                            memory_report_t *out)
{
    const allocation_t *const list[] = {&e->scratch,   &e->inputs, &e->outputs,
                                        &e->constants, &e->caches, &e->pinned};
    for (uint32_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        lh_assert(list[i]->kind < MEMORY_KINDS);
        out->bytes[list[i]->kind] += size(e, list[i]);
    }
    for (uint32_t i = 0; i < ARENAS; i++)
        out->bytes[e->arenas[i].kind] += size(e, &e->arenas[i]);
    for (uint32_t i = 0; i < e->mirror_count; i++)
        out->bytes[MEMORY_PINNED] += size(e, &e->mirrors[i].pinned);
    for (uint32_t i = 0; i < e->weights_count; i++)
        for (uint32_t s = 0; s < e->weights[i]->store_count; s++) {
            const allocation_t *r = &e->weights[i]->stores[s]->allocation;
            lh_assert(r->kind < MEMORY_KINDS);
            out->bytes[r->kind] += size(e, r);
        }
}

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

void engine_memory(const engine_t *e, memory_report_t *out)
{
    *out = (memory_report_t){0};
    allocations_sum(e, allocation_planned, out);
    out->bytes[MEMORY_LIBRARY] = e->properties.reserve_bytes + kernel_choice_host_bytes(e->kernels);
    for (uint32_t i = 0; i < e->program_count; i++)
        if (e->programs[i]->flow->saved_bytes > out->saved_bytes)
            out->saved_bytes = e->programs[i]->flow->saved_bytes;
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        if (k != MEMORY_PINNED) out->total_bytes += out->bytes[k];
}
