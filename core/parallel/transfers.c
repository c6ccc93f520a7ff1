/* transfers.c - the table of what moves between ranks, and its runs in a step. */
#include <parallel/transfers_state.h>

#include <stdio.h>
#include <unistd.h>

#include <base/memory.h>

enum { BUCKET_LEAST = 512 << 10, BUCKET_MOST = 25 << 20, BUCKETS = 24 };

/* The last bucket of a pass is the one that nothing hides: a small part of all, but not so small
 * that the time to start it counts. */
uint64_t transfers_bucket_bytes(const transfers_t *t)
{
    if (t->bucket_bytes != 0) return t->bucket_bytes;
    const uint64_t part = t->weights->parameters->elements * sizeof(float) / BUCKETS;
    return part < BUCKET_LEAST ? BUCKET_LEAST : part > BUCKET_MOST ? BUCKET_MOST : part;
}

bool transfers_is_updated(const transfers_t *t, uint32_t parameter)
{
    return t->weights->parameters->items[parameter].storage == parameter &&
           !t->weights->frozen[parameter];
}

static uint32_t *list_copy(const uint32_t *list, uint32_t count)
{
    uint32_t *copy = mem_array(count, sizeof(*copy));
    if (copy != NULL) memcpy(copy, list, count * sizeof(*copy));
    return copy;
}

static void transfer_free(transfer_t *x)
{
    if (x == NULL) return;
    mem_free(x->parameters);
    mem_free(x->values);
    mem_free(x);
}

lh_status_t transfers_add(transfers_t *t, const transfer_t *row, uint32_t *ticket)
{
    transfer_t **list = mem_grow(t->list, &t->capacity, t->count + 1u, sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    t->list = list;
    transfer_t *x = mem_new(sizeof(*x));
    if (x == NULL) return LH_NO_MEMORY;
    *x = *row;
    x->parameters = row->parameters == NULL ? NULL : list_copy(row->parameters, row->count);
    x->values = row->values == NULL ? NULL : list_copy(row->values, row->count);
    if ((row->parameters != NULL && x->parameters == NULL) ||
        (row->values != NULL && x->values == NULL)) {
        transfer_free(x);
        return LH_NO_MEMORY;
    }
    *ticket = t->count;
    t->list[t->count++] = x;
    return LH_OK;
}

/* ---- in a step ---- */

static lh_status_t run_add(transfer_t *x, collective_t *plan)
{
    const lh_status_t status = collective_start(plan);
    if (status == LH_OK) x->running[x->running_count++] = plan;
    return status;
}

static lh_status_t transfer_wait(transfer_t *x)
{
    for (uint32_t i = 0; i < x->running_count; i++) {
        const lh_status_t status = collective_wait(x->running[i]);
        if (status != LH_OK) return status;
    }
    x->running_count = 0;
    return LH_OK;
}

static lh_status_t on_start(exchange_t *exchange, uint32_t ticket)
{
    transfers_t *t = (transfers_t *)exchange;
    transfer_t *x = t->list[ticket];
    if (x->first == NULL) return LH_OK;    /* nothing to move */
    lh_status_t status = transfer_wait(x); /* of a run that nobody needed to wait for */
    if (status != LH_OK) return status;
    collective_t *plan = t->engine->micro_batch > 0 && x->later != NULL ? x->later : x->first;
    status = run_add(x, plan);
    const bool last = x->kind != TRANSFER_SUM || t->engine->last_micro;
    if (status == LH_OK && x->across != NULL && last) status = run_add(x, x->across);
    return status;
}

static lh_status_t on_wait(exchange_t *exchange, uint32_t ticket)
{
    transfers_t *t = (transfers_t *)exchange;
    if (ticket != TICKET_SUMS) return transfer_wait(t->list[ticket]);
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        if (t->list[i]->kind == TRANSFER_SUM) status = transfer_wait(t->list[i]);
    return status;
}

lh_status_t transfers_renew(transfers_t *t)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        if (t->list[i]->kind == TRANSFER_RENEW) status = on_start(&t->exchange, i);
    return status == LH_OK ? transfers_finish(t) : status;
}

lh_status_t transfers_finish(transfers_t *t)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        status = transfer_wait(t->list[i]);
    return status;
}

/* ---- for the update's flow ---- */

static void flow_append(flow_t *f, const flow_call_t *call)
{
    const flow_exchange_t one = {.at = f->call_count, .call = *call};
    flow_weave(f, &one, 1);
}

void transfers_write_sums_wait(LH_UNUSED transfers_t *t, program_t *update)
{
    const flow_call_t wait = {.kind = FLOW_WAIT, .ticket = TICKET_SUMS};
    flow_append(update->flow, &wait);
}

void transfers_write_partials(transfers_t *t, program_t *update, uint32_t sums)
{
    flow_t *f = update->flow;
    if (t->tables.cut == LH_GROUP_SELF || f->status != LH_OK) return;
    uint32_t ticket;
    const transfer_t row = {.kind = TRANSFER_PARTIALS,
                            .name = "norm",
                            .count = 1,
                            .program = update,
                            .values = &sums,
                            .arena = ARENA_BUCKETS};
    f->status = transfers_add(t, &row, &ticket);
    if (f->status != LH_OK) return;
    flow_call_t call = {
        .kind = FLOW_START, .ticket = ticket, .values = t->list[ticket]->values, .value_count = 1};
    flow_append(f, &call);
    call.kind = FLOW_WAIT;
    call.gives = true;
    flow_append(f, &call);
}

/* Buckets in the order of parameters, as the next forward pass reads them. */
void transfers_write_renew(transfers_t *t, program_t *update, uint32_t parameter)
{
    flow_t *f = update->flow;
    if (t->tables.renew == TABLE_MOVES || f->status != LH_OK) return;
    const parameters_t *p = t->weights->parameters;
    uint32_t begin = parameter;
    uint64_t bytes = 0;
    bool more = false;
    while (begin > 0 && t->renew_of[begin - 1] == 0)
        begin--;
    for (uint32_t i = begin; i <= parameter; i++)
        if (transfers_is_updated(t, i)) bytes += p->items[i].elements * sizeof(float);
    for (uint32_t i = parameter + 1; i < p->count; i++)
        more = more || transfers_is_updated(t, i);
    if (more && bytes < transfers_bucket_bytes(t)) return;

    uint32_t *list = mem_array(parameter - begin + 1u, sizeof(*list)), count = 0, ticket = 0;
    if (list == NULL) {
        f->status = LH_NO_MEMORY;
        return;
    }
    for (uint32_t i = begin; i <= parameter; i++)
        if (transfers_is_updated(t, i)) list[count++] = i;
    transfer_t row = {.kind = TRANSFER_RENEW, .parameters = list, .count = count};
    (void)snprintf(row.name, sizeof(row.name), "new values from %.20s", p->items[list[0]].name);
    f->status = transfers_add(t, &row, &ticket);
    for (uint32_t i = begin; i <= parameter; i++)
        t->renew_of[i] = ticket + 1;
    mem_free(list);
    const flow_call_t start = {.kind = FLOW_START, .ticket = ticket};
    if (f->status == LH_OK) flow_append(f, &start);
}

/* ---- opening ---- */

static lh_status_t own_what_is_saved(transfers_t *t)
{
    weights_t *w = t->weights;
    w->owned = mem_array(w->parameters->count, sizeof(*w->owned));
    if (w->owned == NULL) return LH_NO_MEMORY;
    /* Cut inside a site, every site holds all; the first one saves. */
    const world_t *world = t->world;
    const bool other_site = t->tables.cut == LH_GROUP_SITE &&
                            world->ranks[world->row.rank].site != world->ranks[0].site;
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        w->owned[i] = shares_slice(t->shares, i, t->group->self);
        if (other_site) w->owned[i].end = w->owned[i].begin;
    }
    return LH_OK;
}

static lh_status_t wide_check(const optimizer_tables_t *t)
{
    if (t->wide_grad == TABLE_SPACES) return LH_OK;
    const lh_space_t *wide = &t->spaces[t->wide_grad], *cut = &t->spaces[t->grad];
    const bool inside = cut->inside == t->wide_grad + 1;
    if ((wide->lives == LH_LIVES_BUCKET && !inside) || (wide->lives == LH_LIVES_STEP && inside))
        return LH_OK;
    return fail(LH_UNSUPPORTED,
                "space '%s' lives for %u and '%s' %s it; built are a bucket beside a cut of its "
                "own, and a step with the cut inside",
                wide->name, wide->lives, cut->name, inside ? "lies inside" : "lies beside");
}

static lh_status_t transfers_open(transfers_t *t, const transfers_how_t *how)
{
    const optimizer_tables_t *tables = &t->tables;
    lh_status_t status = wide_check(tables);
    if (status == LH_OK && tables->across != TABLE_MOVES)
        status = group_new(t->world, LH_GROUP_ACROSS, &t->across);
    if (status == LH_OK) status = own_what_is_saved(t);
    if (status != LH_OK) return status;
    t->renew_of = mem_array(how->weights->parameters->count, sizeof(*t->renew_of));
    if (t->renew_of == NULL) return LH_NO_MEMORY;
    const bool bucketed = tables->wide_grad != TABLE_SPACES &&
                          tables->spaces[tables->wide_grad].lives == LH_LIVES_BUCKET;
    t->exchange = (exchange_t){.arrange = transfers_arrange,
                               .value = tables->visit != TABLE_MOVES ? transfers_value : NULL,
                               .gradient = bucketed ? transfers_gradient : NULL,
                               .build = transfers_build,
                               .start = on_start,
                               .wait = on_wait};
    engine_use_exchange(how->engine, &t->exchange);
    return LH_OK;
}

lh_status_t transfers_new(const transfers_how_t *how, transfers_t **out)
{
    transfers_t *t = mem_new(sizeof(*t));
    if (t == NULL) return LH_NO_MEMORY;
    t->engine = how->engine;
    t->weights = how->weights;
    t->world = how->world;
    t->comm = how->comm;
    t->tables = how->holdings->tables;
    t->group = how->holdings->group;
    t->shares = &how->holdings->shares;
    t->micro_batches = how->micro_batches;
    t->bucket_bytes = how->bucket_bytes != 0 ? how->bucket_bytes : t->tables.bucket_bytes;
    const lh_status_t status = transfers_open(t, how);
    if (status != LH_OK) {
        transfers_free(t);
        return status;
    }
    t->holdings = how->holdings;
    *out = t;
    return LH_OK;
}

void transfers_free(transfers_t *t)
{
    if (t == NULL) return;
    for (uint32_t i = 0; i < t->shared_count; i++)
        (void)close(t->shared[i]);
    for (uint32_t i = 0; i < t->count; i++)
        transfer_free(t->list[i]);
    for (uint32_t i = 0; i < t->visit_count; i++) {
        mem_free(t->visits[i].parameters);
        mem_free(t->visits[i].values);
    }
    for (uint32_t i = 0; i < t->bucket_count; i++)
        mem_free(t->buckets[i].values);
    mem_free(t->list);
    mem_free(t->visits);
    mem_free(t->buckets);
    mem_free(t->renew_of);
    group_free(t->across);
    holdings_free(t->holdings);
    mem_free(t);
}
