/* engine_memory.c - what an engine's memory is for. */
#include <graph/program.h>

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
