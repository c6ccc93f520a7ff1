/* transfers.c - the table of what moves between ranks, and its runs in a step. */
#include <parallel/arrange.h>
#include <parallel/transfer_plan.h>

#include <stdio.h>
#include <unistd.h>

#include <base/memory.h>
#include <engine/handover.h>
#include <longhaul/dtype.h>

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

static void move_free(move_t *m)
{
    if (m == NULL) return;
    mem_free(m->parameters);
    mem_free(m->values);
    mem_free(m);
}

static lh_dtype_t dtype_of(const transfers_t *t, const move_t *m)
{
    const weights_t *w = t->weights;
    switch (m->kind) {
    case MOVE_SUM:
    case MOVE_ACROSS: return w->grad->pieces[m->parameters[0]].dtype;
    case MOVE_PARTIALS: return w->accumulate;
    default: return w->compute;
    }
}

/* Of the whole form. Sites sum what is left of it in each. */
static uint64_t elements_of(const transfers_t *t, const move_t *m)
{
    uint64_t elements = 0;
    if (m->kind == MOVE_PARTIALS) {
        const lh_arg_t *sums = &m->program->flow->values[m->values[0]].arg;
        return sums->shape[0] * sums->shape[1];
    }
    for (uint32_t i = 0; i < m->count; i++) {
        const parameter_t *p = &t->weights->parameters->items[m->parameters[i]];
        const lh_slice_t mine = shares_slice(t->shares, p->storage, t->group->self);
        elements += m->kind == MOVE_ACROSS ? mine.end - mine.begin : p->elements;
    }
    return elements;
}

lh_status_t transfers_add(transfers_t *t, const move_t *row, move_t **out)
{
    move_t **list = mem_grow(t->list, &t->capacity, t->count + 1u, sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    t->list = list;
    move_t *m = mem_new(sizeof(*m));
    if (m == NULL) return LH_NO_MEMORY;
    *m = *row;
    m->parameters = row->parameters == NULL ? NULL : list_copy(row->parameters, row->count);
    m->values = row->values == NULL ? NULL : list_copy(row->values, row->count);
    if ((row->parameters != NULL && m->parameters == NULL) ||
        (row->values != NULL && m->values == NULL)) {
        move_free(m);
        return LH_NO_MEMORY;
    }
    const bool across = m->kind == MOVE_ACROSS;
    m->transfer.number = t->count;
    t->list[t->count++] = m;
    *out = m;
    if (m->kind == MOVE_RECORDED) return LH_OK;
    m->transfer.group = across ? LH_GROUP_ACROSS : t->group_kind;
    m->transfer.ways = across ? t->across->size : t->group->size;
    m->transfer.dtype = dtype_of(t, m);
    m->transfer.elements = elements_of(t, m);
    return LH_OK;
}

/* ---- the values of a call ---- */

/* This rank's elements of a parameter, in a store that holds them or the whole. 0: it has none. */
static uint32_t own_value(const transfers_t *t, program_t *p, const store_t *store,
                          uint32_t parameter)
{
    const uint32_t storage = t->weights->parameters->items[parameter].storage;
    const lh_slice_t mine = shares_slice(t->shares, storage, t->group->self);
    const store_piece_t *piece = &store->pieces[storage];
    if (mine.begin == mine.end) return 0;
    const uint32_t all = flow_reshape(p->flow, program_store_value(p, store, storage), 1,
                                      &piece->elements);
    return flow_rows(p->flow, all, mine.begin - piece->slice.begin, mine.end - mine.begin);
}

/* The form that `whole` says, of all parameters of a move. Returns how many values there are. */
static uint32_t values_of(const transfers_t *t, program_t *p, const move_t *m, bool whole,
                          uint32_t *out)
{
    const weights_t *w = t->weights;
    const store_t *store = m->kind == MOVE_INSTANCE || m->kind == MOVE_VALUE_GATHER ? w->value
                                                                                    : w->grad;
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        out[count] = !whole              ? own_value(t, p, store, m->parameters[i])
                     : m->values != NULL ? m->values[i]
                                         : program_store_value(p, store, m->parameters[i]);
        count += out[count] != 0;
    }
    return count;
}

flow_moved_t transfers_moved(const transfers_t *t, program_t *p, const move_t *m)
{
    if (m->kind == MOVE_PARTIALS) return flow_moved(p->flow, m->values, 1, m->values, 1);
    uint32_t *lists = mem_array(2 * (size_t)m->count, sizeof(*lists));
    if (lists == NULL) {
        p->flow->status = LH_NO_MEMORY;
        return (flow_moved_t){0};
    }
    const bool sum = m->kind == MOVE_SUM, across = m->kind == MOVE_ACROSS;
    const bool narrows = across || m->transfer.op == COLLECTIVE_REDUCE_SCATTER;
    uint32_t *writes = lists + m->count;
    /* What sites sum again goes from one to the other inside comm/. */
    const bool passes_on = sum && t->across != NULL;
    const uint32_t read_count = across ? 0 : values_of(t, p, m, sum, lists);
    const uint32_t write_count = passes_on ? 0 : values_of(t, p, m, !narrows, writes);
    const flow_moved_t moved = flow_moved(p->flow, lists, read_count, writes, write_count);
    mem_free(lists);
    return moved;
}

/* ---- in a step ---- */

static lh_status_t move_wait(move_t *m)
{
    if (!m->running) return LH_OK;
    m->running = false;
    return collective_wait(m->plan);
}

static lh_status_t on_start(LH_UNUSED exchange_t *x, const transfer_t *transfer,
                            const transfer_gate_t *gate)
{
    move_t *m = (move_t *)(uintptr_t)transfer;
    lh_status_t status = move_wait(m); /* for a run that nobody needed to wait for */
    if (status == LH_OK && gate == NULL) status = collective_start(m->plan);
    if (status == LH_OK && gate != NULL) {
        const collective_gate_t behind = {gate->past, gate->done, gate->context};
        status = collective_start_behind(m->plan, &behind);
    }
    m->running = status == LH_OK;
    return status;
}

static lh_status_t on_wait(LH_UNUSED exchange_t *x, const transfer_t *transfer)
{
    return move_wait((move_t *)(uintptr_t)transfer);
}

lh_status_t transfers_value_gather(transfers_t *t)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        if (t->list[i]->kind == MOVE_VALUE_GATHER)
            status = transfer_start(t->engine, &t->list[i]->transfer);
    return status == LH_OK ? transfers_finish(t) : status;
}

lh_status_t transfers_finish(transfers_t *t)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        status = transfer_wait(t->engine, &t->list[i]->transfer);
    if (status == LH_OK) status = engine_wait(t->engine);
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        status = move_wait(t->list[i]);
    return status;
}

/* ---- for the update's flow ---- */

static void call_append(transfers_t *t, program_t *p, uint32_t kind, const move_t *m)
{
    flow_t *f = p->flow;
    const flow_insert_t one = {
        .at = f->call_count,
        .call = {.kind = kind, .transfer = &m->transfer, .moved = transfers_moved(t, p, m)}};
    if (f->status == LH_OK) flow_weave(f, &one, 1);
}

void transfers_write_partials(transfers_t *t, program_t *update, uint32_t sums)
{
    flow_t *f = update->flow;
    if (t->tables.cut == LH_GROUP_SELF || f->status != LH_OK) return;
    move_t *m;
    const move_t row = {.transfer = {.name = "norm", .op = COLLECTIVE_ALL_GATHER},
                        .kind = MOVE_PARTIALS,
                        .count = 1,
                        .program = update,
                        .values = &sums,
                        .arena = ARENA_BUCKETS};
    f->status = transfers_add(t, &row, &m);
    if (f->status != LH_OK) return;
    call_append(t, update, FLOW_COLLECTIVE, m);
    call_append(t, update, FLOW_WAIT, m);
}

/* Buckets in the order of parameters, as the next forward pass reads them. */
void transfers_write_value_gather(transfers_t *t, program_t *update, uint32_t parameter)
{
    flow_t *f = update->flow;
    if (t->tables.value_gather == TABLE_MOVES || f->status != LH_OK) return;
    const parameters_t *p = t->weights->parameters;
    uint32_t begin = parameter;
    uint64_t bytes = 0;
    bool more = false;
    while (begin > 0 && t->value_gather_of[begin - 1] == NULL)
        begin--;
    for (uint32_t i = begin; i <= parameter; i++)
        if (transfers_is_updated(t, i))
            bytes += p->items[i].elements * lh_dtype_bytes(t->weights->compute);
    for (uint32_t i = parameter + 1; i < p->count; i++)
        more = more || transfers_is_updated(t, i);
    if (more && bytes < transfers_bucket_bytes(t)) return;

    uint32_t *list = mem_array(parameter - begin + 1u, sizeof(*list)), count = 0;
    move_t *m = NULL;
    if (list == NULL) {
        f->status = LH_NO_MEMORY;
        return;
    }
    for (uint32_t i = begin; i <= parameter; i++)
        if (transfers_is_updated(t, i)) list[count++] = i;
    move_t row = {.transfer = {.op = COLLECTIVE_ALL_GATHER},
                  .kind = MOVE_VALUE_GATHER,
                  .parameters = list,
                  .count = count};
    (void)snprintf(row.transfer.name, TRANSFER_NAME, "new values from %.20s",
                   p->items[list[0]].name);
    f->status = transfers_add(t, &row, &m);
    for (uint32_t i = begin; i <= parameter; i++)
        t->value_gather_of[i] = m;
    mem_free(list);
    if (f->status == LH_OK) call_append(t, update, FLOW_COLLECTIVE, m);
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
    t->value_gather_of = mem_array(how->weights->parameters->count, sizeof(*t->value_gather_of));
    if (t->value_gather_of == NULL) return LH_NO_MEMORY;
    const bool bucketed = tables->wide_grad != TABLE_SPACES &&
                          tables->spaces[tables->wide_grad].lives == LH_LIVES_BUCKET;
    t->weights->gathered = tables->instance != TABLE_MOVES;
    t->weights->bucketed = bucketed;
    t->exchange = (exchange_t){
        .arrange = arrange_flows, .bind = transfer_plan_bind, .start = on_start, .wait = on_wait};
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
    t->tables = how->shards->tables;
    t->group = how->shards->group;
    t->group_kind = t->tables.cut != LH_GROUP_SELF ? t->tables.cut : LH_GROUP_DATA;
    t->shares = &how->shards->shares;
    t->micro_batches = how->micro_batches;
    t->bucket_bytes = how->bucket_bytes != 0 ? how->bucket_bytes : t->tables.bucket_bytes;
    const lh_status_t status = transfers_open(t, how);
    if (status != LH_OK) {
        transfers_free(t);
        return status;
    }
    t->shards = how->shards;
    *out = t;
    return LH_OK;
}

void transfers_free(transfers_t *t)
{
    if (t == NULL) return;
    for (uint32_t i = 0; i < t->shared_count; i++)
        (void)close(t->shared[i]);
    for (uint32_t i = 0; i < t->count; i++)
        move_free(t->list[i]);
    mem_free(t->list);
    mem_free(t->value_gather_of);
    group_free(t->across);
    shards_free(t->shards);
    mem_free(t);
}

lh_status_t transfers_plan(transfers_t *t)
{
    return transfer_plan_all(t, true);
}
