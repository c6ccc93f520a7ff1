/* step_plan.c - adds up the calls of a step. */
#include <plan/step_plan.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <engine/engine_profile.h>
#include <format/json_writer.h>
#include <program/transfer.h>

const char *const step_plan_part_names[STEP_PLAN_PARTS] = {
    [STEP_FORWARD] = "forward",
    [STEP_BACKWARD] = "backward",
    [STEP_HEAD] = "head",
    [STEP_UPDATE] = "update",
};

static uint32_t part_of(const program_call_t *call)
{
    if (strcmp(call->part, "update") == 0) return STEP_UPDATE;
    if (strcmp(call->part, "head") == 0) return STEP_HEAD;
    return call->backward ? STEP_BACKWARD : STEP_FORWARD;
}

static step_kind_t *kind_find(step_plan_t *plan, const char *kind)
{
    for (uint32_t i = 0; i < plan->kind_count; i++)
        if (strcmp(plan->kinds[i].kind, kind) == 0) return &plan->kinds[i];
    step_kind_t *kinds = mem_grow(plan->kinds, &plan->kind_capacity, (size_t)plan->kind_count + 1,
                                  sizeof(*kinds));
    if (kinds == NULL) return NULL;
    plan->kinds = kinds;
    step_kind_t *made = &plan->kinds[plan->kind_count++];
    (void)snprintf(made->kind, sizeof(made->kind), "%s", kind);
    return made;
}

static void sum_add(step_sum_t *sum, const program_call_t *call, uint64_t times, double seconds)
{
    sum->calls += times;
    sum->flops += call->flops * (double)times;
    sum->bytes += call->bytes * (double)times;
    sum->seconds += seconds * (double)times;
}

static lh_status_t transfer_add(step_plan_t *plan, const program_call_t *call, uint64_t times)
{
    const transfer_t *t = call->transfer;
    if (call->waits) return LH_OK;
    uint32_t i = 0;
    for (; i < plan->transfer_count; i++) {
        const step_transfers_t *row = &plan->transfers[i];
        if (row->op == t->op && row->group == t->group && row->dtype == t->dtype) break;
    }
    if (i == plan->transfer_count) {
        step_transfers_t *rows = mem_grow(plan->transfers, &plan->transfer_capacity, i + 1u,
                                          sizeof(*rows));
        if (rows == NULL) return LH_NO_MEMORY;
        plan->transfers = rows;
        rows[plan->transfer_count++] = (step_transfers_t){
            .op = t->op, .group = t->group, .ways = t->ways, .dtype = t->dtype};
    }
    plan->transfers[i].starts += times;
    plan->transfers[i].bytes += (double)times * (double)transfer_bytes(t);
    return LH_OK;
}

lh_status_t step_plan_add(step_plan_t *plan, const program_call_t *call, uint64_t times,
                          const device_rate_t *rate)
{
    char kind[CALL_KIND];
    bool measured = false;
    if (call->transfer != NULL) return transfer_add(plan, call, times);
    const double seconds = rate == NULL ? 0 : device_rate_seconds(rate, call, &measured);
    device_rate_kind(call, kind);
    const uint32_t before = plan->kind_count;
    step_kind_t *row = kind_find(plan, kind);
    if (row == NULL) return LH_NO_MEMORY;
    if (plan->kind_count > before && rate != NULL && !measured) plan->unmeasured++;
    row->measured = measured;
    sum_add(&row->sum, call, times, seconds);
    sum_add(&plan->parts[part_of(call)], call, times, seconds);
    sum_add(&plan->all, call, times, seconds);
    return LH_OK;
}

/* last: the last of the step's runs is one of these. */
static lh_status_t list_add(step_plan_t *plan, const program_t *p, bool later, uint64_t times,
                            bool last, const device_rate_t *rate)
{
    lh_assert(!later || times == 0 || last);
    program_call_t call;
    for (uint32_t i = 0; times > 0 && program_call(p, later, i, &call); i++) {
        const uint64_t runs = !call.last_only ? times : last ? 1 : 0;
        const lh_status_t status = runs == 0 ? LH_OK : step_plan_add(plan, &call, runs, rate);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static int slower_first(const void *a, const void *b)
{
    const step_sum_t *x = &((const step_kind_t *)a)->sum, *y = &((const step_kind_t *)b)->sum;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return strcmp(((const step_kind_t *)a)->kind, ((const step_kind_t *)b)->kind);
}

lh_status_t step_plan_new(const program_t *pass, const program_t *update, uint64_t micro_batches,
                          const device_rate_t *rate, step_plan_t *out)
{
    lh_assert(micro_batches > 0);
    step_plan_t plan = {0};
    lh_status_t status = list_add(&plan, pass, false, 1, micro_batches == 1, rate);
    if (status == LH_OK) status = list_add(&plan, pass, true, micro_batches - 1, true, rate);
    if (status == LH_OK) status = list_add(&plan, update, false, 1, true, rate);
    if (status != LH_OK) {
        step_plan_free(&plan);
        return status;
    }
    if (plan.kind_count > 0) qsort(plan.kinds, plan.kind_count, sizeof(*plan.kinds), slower_first);
    *out = plan;
    return LH_OK;
}

void step_plan_free(step_plan_t *plan)
{
    mem_free(plan->kinds);
    mem_free(plan->transfers);
    *plan = (step_plan_t){0};
}

/* Writes the profile of a step. */
static lh_status_t write_file(const char *folder, const char *name, text_t *text)
{
    char *path = path_join(folder, name);
    lh_status_t status = path == NULL ? LH_NO_MEMORY : text_status(text);
    if (status == LH_OK) status = file_replace(path, text->data, text->length);
    mem_free(path);
    text_free(text);
    return status;
}

lh_status_t step_profile_write(const char *folder, const profile_row_t *rows, uint32_t count,
                               double peak_flops, double bytes_per_second)
{
    double total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += (double)rows[i].ns;
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = 1};
    json_open(&w, NULL, '[');
    for (uint32_t i = 0; i < count; i++) {
        const profile_row_t *r = &rows[i];
        json_open(&w, NULL, '{');
        json_put_text(&w, "part", r->part);
        json_put_flag(&w, "backward", r->backward);
        json_put_text(&w, "op", r->op);
        json_put_text(&w, "kernel", r->kernel);
        json_put_u64(&w, "calls", r->calls);
        json_put_u64(&w, "ns", r->ns);
        json_put_real(&w, "flops", r->flops);
        json_put_real(&w, "bytes", r->bytes);
        json_put_real(&w, "share", total > 0 ? (double)r->ns / total : 0.0);
        json_put_real(&w, "of_limit", profile_row_of_limit(r, peak_flops, bytes_per_second));
        json_close(&w);
    }
    json_close(&w);
    return write_file(folder, "profile.json", &text);
}

static const char *call_name(const program_call_t *call)
{
    if (call->transfer != NULL) return call->transfer->name;
    return call->op == NULL ? "fill" : call->op->row.name;
}

/* Calls follow one another from at_us on, which moves to their end. */
static void put_calls(json_writer_t *w, const program_t *p, bool later, const char *phase,
                      double *at_us)
{
    program_call_t call;
    for (uint32_t i = 0; program_call(p, later, i, &call); i++) {
        if (call.ns == 0) continue;
        const double us = (double)call.ns * 1e-3;
        json_open(w, NULL, '{');
        json_put_text(w, "name", call_name(&call));
        json_put_text(w, "cat", phase);
        json_put_text(w, "ph", "X");
        json_put_real(w, "ts", *at_us);
        json_put_real(w, "dur", us);
        json_put_u64(w, "pid", 0);
        json_put_u64(w, "tid", 0);
        json_open(w, "args", '{');
        json_put_text(w, "kernel", call.kernel);
        json_put_text(w, "part", call.part);
        json_put_u64(w, "block", call.block);
        json_put_flag(w, "backward", call.backward);
        json_put_real(w, "flops", call.flops);
        json_put_real(w, "bytes", call.bytes);
        if (call.transfer != NULL) {
            json_put_text(w, "collective", collective_names[call.transfer->op]);
            json_put_text(w, "group", transfer_groups[call.transfer->group]);
            json_put_u64(w, "ranks", call.transfer->ways);
        }
        json_close(w);
        json_close(w);
        *at_us += us;
    }
}

lh_status_t step_trace_write(const char *folder, const program_t *pass, const program_t *update)
{
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = JSON_TIGHT};
    double at_us = 0;
    json_open(&w, NULL, '{');
    json_put_text(&w, "displayTimeUnit", "ms");
    json_open(&w, "traceEvents", '[');
    put_calls(&w, pass, false, "first micro-batch", &at_us);
    put_calls(&w, pass, true, "later micro-batches", &at_us);
    put_calls(&w, update, false, "update", &at_us);
    json_close(&w);
    json_close(&w);
    return write_file(folder, "profile.trace.json", &text);
}
