/* arrange.c - puts the starts and waits of transfers into the flows of training, scoring and
 * generation. */
#include <parallel/transfers_state.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <tensor/dtype.h>

typedef struct arranger {
    transfers_t *t;
    program_t *p;
    flow_exchange_t *list; /* to be woven */
    uint32_t count;
    size_t capacity;
    uint32_t *first, *last; /* [known] calls that touch a buffer first and last; 0: none */
    uint32_t known;         /* buffers when they were looked for */
    lh_status_t status;
} arranger_t;

static void put(arranger_t *a, uint32_t at, const flow_call_t *call)
{
    if (a->status != LH_OK) return;
    flow_exchange_t *list = mem_grow(a->list, &a->capacity, a->count + 1u, sizeof(*list));
    if (list == NULL) {
        a->status = LH_NO_MEMORY;
        return;
    }
    a->list = list;
    a->list[a->count++] = (flow_exchange_t){at, *call};
}

static flow_call_t call_of(const transfers_t *t, uint32_t kind, uint32_t ticket)
{
    const transfer_t *x = t->list[ticket];
    return (flow_call_t){.kind = kind,
                         .ticket = ticket,
                         .values = x->values,
                         .value_count = x->values == NULL ? 0 : x->count,
                         .gives = x->kind != TRANSFER_SUM};
}

static uint32_t slots_of(const flow_call_t *call)
{
    return call->kind == FLOW_KERNEL ? call->op->in_count + call->op->out_count : 1;
}

static lh_status_t uses_find(arranger_t *a)
{
    const flow_t *f = a->p->flow;
    a->known = f->buffer_count;
    a->first = mem_array(a->known, sizeof(*a->first));
    a->last = mem_array(a->known, sizeof(*a->last));
    if (a->first == NULL || a->last == NULL) return LH_NO_MEMORY;
    for (uint32_t c = 1; c < f->call_count; c++) {
        for (uint32_t s = 0; s < slots_of(&f->calls[c]); s++) {
            const uint32_t value = f->calls[c].slots[s];
            if (value == 0) continue;
            const uint32_t buffer = f->values[value].buffer;
            if (a->first[buffer] == 0) a->first[buffer] = c;
            a->last[buffer] = c;
        }
    }
    return LH_OK;
}

/* Of a value's buffer in one of the two tables. */
static uint32_t use_of(const arranger_t *a, const uint32_t *table, uint32_t value)
{
    const uint32_t buffer = value == 0 ? 0 : a->p->flow->values[value].buffer;
    return buffer < a->known ? table[buffer] : 0;
}

/* ---- values gathered for visits ---- */

typedef struct visit_place {
    uint32_t at, ticket;
} visit_place_t;

static int earlier(const void *a, const void *b)
{
    const visit_place_t *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->ticket < y->ticket ? -1 : 1;
}

static const char *part_name(const visit_values_t *v)
{
    return v->part == LH_PART_EMBED ? "embed" : "head";
}

static lh_status_t visit_ticket(transfers_t *t, const visit_values_t *v, uint32_t *ticket)
{
    transfer_t row = {.kind = TRANSFER_VISIT,
                      .parameters = v->parameters,
                      .count = v->count,
                      .program = v->program,
                      .values = v->values,
                      .arena = ARENA_GATHERED};
    if (v->part == LH_PART_BLOCK)
        (void)snprintf(row.name, sizeof(row.name), "values of block %u%s", v->block,
                       v->backward ? " again" : "");
    else
        (void)snprintf(row.name, sizeof(row.name), "values of the %s", part_name(v));
    return transfers_add(t, &row, ticket);
}

/* Visit i waits before its first use; its start stands `ahead` visits earlier. */
static void visits_put(arranger_t *a)
{
    transfers_t *t = a->t;
    visit_place_t *places = mem_array(t->visit_count + 1u, sizeof(*places));
    uint32_t count = 0;
    if (places == NULL) {
        a->status = LH_NO_MEMORY;
        return;
    }
    for (uint32_t i = 0; i < t->visit_count && a->status == LH_OK; i++) {
        const visit_values_t *v = &t->visits[i];
        if (v->program != a->p) continue;
        uint32_t at = UINT32_MAX;
        for (uint32_t k = 0; k < v->count; k++) {
            const uint32_t use = use_of(a, a->first, v->values[k]);
            if (use != 0 && use < at) at = use;
        }
        if (at == UINT32_MAX) continue;
        places[count].at = at;
        a->status = visit_ticket(t, v, &places[count].ticket);
        count++;
    }
    qsort(places, count, sizeof(*places), earlier);
    const uint32_t ahead = optimizer_tables_move(&t->tables, t->tables.visit)->ahead;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t next = i == 0 ? 0 : i + ahead; next <= i + ahead && next < count; next++) {
            const flow_call_t start = call_of(t, FLOW_START, places[next].ticket);
            put(a, i == 0 ? 1 : places[i].at, &start);
        }
        const flow_call_t wait = call_of(t, FLOW_WAIT, places[i].ticket);
        put(a, places[i].at, &wait);
    }
    mem_free(places);
}

/* ---- new values, gathered after the step before ---- */

/* A value is waited for where it is first read; in training only the first micro-batch can be too
 * early. */
static void renew_waits_put(arranger_t *a)
{
    transfers_t *t = a->t;
    const uint32_t count = t->weights->parameters->count;
    uint32_t *at = mem_array(t->count + 1u, sizeof(*at));
    if (at == NULL) {
        a->status = LH_NO_MEMORY;
        return;
    }
    for (uint32_t i = 0; i < count && a->status == LH_OK; i++) {
        if (t->renew_of[i] == 0) continue;
        const uint32_t value = program_store_value(a->p, t->weights->value, i);
        a->status = a->p->flow->status;
        const uint32_t use = a->status == LH_OK ? use_of(a, a->first, value) : 0;
        uint32_t *place = &at[t->renew_of[i] - 1];
        if (use != 0 && (*place == 0 || use < *place)) *place = use;
    }
    for (uint32_t ticket = 0; ticket < t->count; ticket++) {
        if (at[ticket] == 0) continue;
        flow_call_t wait = call_of(t, FLOW_WAIT, ticket);
        wait.first_only = a->p->how.use == USE_TRAIN;
        put(a, at[ticket], &wait);
    }
    mem_free(at);
}

/* ---- sums of gradients ---- */

typedef struct ready_gradient {
    uint32_t at; /* the call after which it is complete */
    uint32_t parameter, value;
} ready_gradient_t;

static int ready_earlier(const void *a, const void *b)
{
    const ready_gradient_t *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->parameter < y->parameter ? -1 : 1;
}

static uint32_t gradients_ready(arranger_t *a, ready_gradient_t *out)
{
    transfers_t *t = a->t;
    const bucket_gradients_t *g = transfers_gradients_of(t, a->p);
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->weights->parameters->count; i++) {
        if (!transfers_is_updated(t, i)) continue;
        const uint32_t value = g != NULL ? g->values[i]
                                         : program_store_value(a->p, t->weights->grad, i);
        out[count++] = (ready_gradient_t){use_of(a, a->last, value), i, value};
    }
    qsort(out, count, sizeof(*out), ready_earlier);
    return count;
}

static lh_status_t sum_ticket(arranger_t *a, const ready_gradient_t *ready, uint32_t count,
                              uint32_t number, uint32_t *ticket)
{
    const bool bucketed = transfers_gradients_of(a->t, a->p) != NULL;
    uint32_t *lists = mem_array(2 * (size_t)count, sizeof(*lists));
    if (lists == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        lists[i] = ready[i].parameter;
        lists[count + i] = ready[i].value;
    }
    transfer_t row = {.kind = TRANSFER_SUM, .parameters = lists, .count = count};
    if (bucketed) {
        row.program = a->p;
        row.values = lists + count;
        row.arena = ARENA_BUCKETS;
    }
    (void)snprintf(row.name, sizeof(row.name), "gradients %u", number);
    const lh_status_t status = transfers_add(a->t, &row, ticket);
    mem_free(lists);
    return status;
}

/* Buckets in the order in which gradients are complete. A bucket that is whole only for a while is
 * waited for two buckets later, so that two are under way and a third is made. */
static void sums_put(arranger_t *a)
{
    transfers_t *t = a->t;
    const uint64_t most = transfers_bucket_bytes(t);
    const bool bucketed = transfers_gradients_of(t, a->p) != NULL;
    ready_gradient_t *ready = mem_array(t->weights->parameters->count, sizeof(*ready));
    if (ready == NULL) {
        a->status = LH_NO_MEMORY;
        return;
    }
    const uint32_t count = gradients_ready(a, ready);
    uint32_t before[2] = {UINT32_MAX, UINT32_MAX}, number = 0;
    for (uint32_t begin = 0, end; begin < count && a->status == LH_OK; begin = end) {
        uint64_t bytes = 0;
        for (end = begin; end < count && (end == begin || bytes < most); end++)
            bytes += t->weights->parameters->items[ready[end].parameter].elements * sizeof(float);
        uint32_t ticket = 0;
        a->status = sum_ticket(a, &ready[begin], end - begin, number++, &ticket);
        if (a->status != LH_OK) break;
        const uint32_t at = ready[end - 1].at + 1;
        if (bucketed && before[0] != UINT32_MAX) {
            const flow_call_t wait = call_of(t, FLOW_WAIT, before[0]);
            put(a, at, &wait);
        }
        flow_call_t start = call_of(t, FLOW_START, ticket);
        start.last_only = !bucketed;
        put(a, at, &start);
        before[0] = before[1];
        before[1] = ticket;
    }
    for (uint32_t i = 0; bucketed && i < 2; i++) {
        if (before[i] == UINT32_MAX) continue;
        const flow_call_t wait = call_of(t, FLOW_WAIT, before[i]);
        put(a, a->p->flow->call_count, &wait);
    }
    mem_free(ready);
}

lh_status_t transfers_arrange(exchange_t *x, program_t *p)
{
    transfers_t *t = (transfers_t *)x;
    arranger_t a = {.t = t, .p = p};
    a.status = p->flow->status;
    if (a.status == LH_OK) a.status = uses_find(&a);
    if (a.status == LH_OK && t->exchange.value != NULL) visits_put(&a);
    if (a.status == LH_OK && t->exchange.value == NULL) renew_waits_put(&a);
    if (a.status == LH_OK && p->how.use == USE_TRAIN) sums_put(&a);
    if (a.status == LH_OK) flow_weave(p->flow, a.list, a.count);
    mem_free(a.first);
    mem_free(a.last);
    mem_free(a.list);
    return a.status == LH_OK ? p->flow->status : a.status;
}
