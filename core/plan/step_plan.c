/* step_plan.c - adds up the calls of a step. */
#include <plan/step_plan.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>

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

lh_status_t step_plan_add(step_plan_t *plan, const program_call_t *call, uint64_t times,
                          const device_rate_t *rate)
{
    char kind[CALL_KIND];
    bool measured = false;
    const double seconds = rate == NULL ? 0 : device_rate_seconds(rate, call, &measured);
    call_kind(call, kind);
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

static lh_status_t list_add(step_plan_t *plan, const program_t *p, bool later, uint64_t times,
                            const device_rate_t *rate)
{
    program_call_t call;
    for (uint32_t i = 0; times > 0 && program_call(p, later, i, &call); i++) {
        const lh_status_t status = step_plan_add(plan, &call, times, rate);
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
    step_plan_t plan = {0};
    lh_status_t status = list_add(&plan, pass, false, 1, rate);
    if (status == LH_OK) status = list_add(&plan, pass, true, micro_batches - 1, rate);
    if (status == LH_OK) status = list_add(&plan, update, false, 1, rate);
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
    *plan = (step_plan_t){0};
}
