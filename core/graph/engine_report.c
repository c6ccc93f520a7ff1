/* engine_report.c - what an engine's memory and time go into. */
#include <graph/program.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/memory.h>

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

static uint64_t region_planned(const region_t *r)
{
    return r->bytes;
}

enum { PAGES_AT_ONCE = 4096 };

/* Bytes of a region whose pages are in memory. */
static uint64_t region_resident(const region_t *r)
{
    unsigned char there[PAGES_AT_ONCE];
    if (r->memory == NULL) return 0;
    if (r->address == NULL) return r->bytes;
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

static void regions_sum(const engine_t *e, uint64_t (*size)(const region_t *r),
                        memory_report_t *out)
{
    const region_t *const list[] = {&e->scratch,   &e->inputs, &e->outputs,
                                    &e->constants, &e->caches, &e->pinned};
    for (uint32_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        out->bytes[list[i]->kind] += size(list[i]);
    for (uint32_t i = 0; i < ARENAS; i++)
        out->bytes[e->arenas[i].kind] += size(&e->arenas[i]);
    for (uint32_t i = 0; i < e->weights_count; i++)
        for (uint32_t s = 0; s < e->weights[i]->store_count; s++) {
            const region_t *r = &e->weights[i]->stores[s]->region;
            out->bytes[r->kind] += size(r);
        }
}

void engine_memory_measured(const engine_t *e, memory_report_t *out)
{
    *out = (memory_report_t){0};
    regions_sum(e, region_resident, out);
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
    regions_sum(e, region_planned, out);
    out->bytes[MEMORY_LIBRARY] = e->properties.reserve_bytes + kernel_choice_host_bytes(e->kernels);
    for (uint32_t i = 0; i < e->program_count; i++)
        if (e->programs[i]->flow->saved_bytes > out->saved_bytes)
            out->saved_bytes = e->programs[i]->flow->saved_bytes;
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        if (k != MEMORY_PINNED) out->total_bytes += out->bytes[k];
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

static bool is_exchange(const exec_call_t *call)
{
    return call->source->kind == FLOW_START || call->source->kind == FLOW_WAIT;
}

/* Of calls that are no kernel's. */
static const char *call_text(const exec_call_t *call)
{
    if (!is_exchange(call)) return "fill";
    return call->source->kind == FLOW_START ? "start" : "wait";
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

bool program_call(const program_t *p, bool later, uint32_t i, program_call_t *out)
{
    const call_list_t *list = &p->lists[later ? 1 : 0];
    if (i >= list->count) return false;
    const exec_call_t *call = &list->calls[i];
    const kernel_t *kernel = call->kernel;
    *out = (program_call_t){.part = part_text(p, call->source->part),
                            .kernel = call_text(call),
                            .block = call->source->block,
                            .backward = call->source->backward,
                            .bytes = (double)call->bytes,
                            .ns = call->ns};
    if (kernel == NULL) return true;
    out->op = kernel->op;
    out->attributes = kernel->attributes;
    out->args = kernel->args;
    out->arg_count = kernel->arg_count;
    out->kernel = kernel->plan.name;
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
    const bool none = call->kernel == NULL;
    const char *op = none ? call_text(call) : call->kernel->op->row.name;
    (void)snprintf(row.part, sizeof(row.part), "%s", part_text(p, call->source->part));
    (void)snprintf(row.op, sizeof(row.op), "%s", op);
    (void)snprintf(row.kernel, sizeof(row.kernel), "%s", none ? op : call->kernel->plan.name);
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

lh_status_t engine_profile_rows(engine_t *e, profile_row_t **rows, uint32_t *count)
{
    size_t most = 1;
    for (uint32_t i = 0; i < e->program_count; i++)
        for (uint32_t l = 0; l < 2; l++)
            most += e->programs[i]->lists[l].count;
    profile_row_t *made = mem_array(most, sizeof(*made));
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
