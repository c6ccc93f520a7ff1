/* engine_profile.c - what an engine's time goes into. */
#include <graph/program.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>

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
                                        .op = call->kernel == NULL ? call_text(call)
                                                                   : call->kernel->op->row.name,
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
