/* transfers.c - the table of what moves between ranks, where each row's elements lie, and the runs of
 * rows in a step. */
#include <parallel/transfers.h>

#include <stdio.h>
#include <unistd.h>

#include <base/memory.h>
#include <engine/handover.h>
#include <longhaul/dtype.h>

/* Bytes of a bucket, and how many buckets the host would make of all gradients. */
enum { BUCKET_LEAST = 512 << 10, BUCKET_MOST = 25 << 20, BUCKETS = 24 };

/* With b buckets whose sums take T seconds in all, and W seconds of the backward pass in which they
 * can hide, a step waits for
 *
 *    max(0, (T - W) (1 - 1 / b)) + T / b + RTT / 2 for each hop (docs/links.md).
 *
 * Nothing hides the last bucket of a pass, T / b. So a bucket is a small part of the whole (1 / 24
 * of the gradients in F32), but not so small that the time to start it counts (512 KiB), and never
 * larger than 25 MiB. */
uint64_t transfers_bucket_bytes(const transfers_t *t)
{
    if (t->bucket_bytes != 0) return t->bucket_bytes;
    const uint64_t part = t->weights->parameters->elements * sizeof(float) / BUCKETS;
    return part < BUCKET_LEAST ? BUCKET_LEAST : part > BUCKET_MOST ? BUCKET_MOST : part;
}

bool transfers_is_updated(const weights_t *w, uint32_t parameter)
{
    lh_assert(parameter < w->parameters->count);
    return w->parameters->items[parameter].storage == parameter && !w->frozen[parameter];
}

uint64_t transfers_norm_blocks(uint64_t elements)
{
    return (elements + LH_NORM_BLOCK - 1) / LH_NORM_BLOCK;
}

/* A move owns its lists, as those of its maker do not last. */
static uint32_t *list_copy(const uint32_t *list, uint32_t count)
{
    uint32_t *copy = mem_array(count, sizeof(*copy));
    if (copy != NULL) memcpy(copy, list, count * sizeof(*copy));
    return copy;
}

void transfers_native_free(lh_coll_t *call)
{
    if (call->pieces != NULL) mem_free((void *)(uintptr_t)call->pieces[0].segments);
    mem_free((void *)(uintptr_t)call->pieces);
    call->pieces = NULL;
}

/* All but the move's plan, which belongs to comm. */
static void move_free(move_t *m)
{
    if (m == NULL) return;
    mem_free(m->parameters);
    mem_free(m->values);
    transfers_native_free(&m->call);
    mem_free(m);
}

/* A transfer travels in the dtype in which its data is stored. */
static lh_dtype_t dtype_of(const transfers_t *t, const move_t *m)
{
    const weights_t *w = t->weights;
    switch (m->kind) {
    case MOVE_SUM:
    case MOVE_ACROSS: return w->grad->shards[m->parameters[0]].dtype;
    case MOVE_PARTIALS: return w->accumulate;
    case MOVE_LOSSES: return LH_DTYPE_F32;
    default: return w->compute;
    }
}

/* Elements of the whole form; of an ACROSS, elements of this rank's part, which is what sites
 * sum. */
static uint64_t move_elements(const transfers_t *t, const move_t *m)
{
    uint64_t elements = 0;
    if (m->kind == MOVE_PARTIALS || m->kind == MOVE_LOSSES) {
        const lh_arg_t *rows = &m->program->flow->values[m->values[0]].arg;
        return rows->rank == 1 ? rows->shape[0] : rows->shape[0] * rows->shape[1];
    }
    for (uint32_t i = 0; i < m->count; i++) {
        const parameter_t *p = &t->weights->parameters->items[m->parameters[i]];
        const lh_slice_t mine = shard_shares_slice(t->shares, p->storage, t->group->self);
        elements += m->kind == MOVE_ACROSS ? mine.end - mine.begin : p->elements;
    }
    return elements;
}

uint32_t transfers_native_op(uint32_t op)
{
    static const uint32_t native_ops[COLLECTIVES] = {
        [COLLECTIVE_ALL_REDUCE] = LH_COLL_ALL_REDUCE,
        [COLLECTIVE_REDUCE_SCATTER] = LH_COLL_REDUCE_SCATTER,
        [COLLECTIVE_ALL_GATHER] = LH_COLL_ALL_GATHER,
    };
    lh_assert(op < COLLECTIVES);
    return native_ops[op];
}

/* Whether the device makes the transfer itself. An ACROSS goes between machines, and takes over from the
 * sum before it. */
static void transfer_choose(const transfers_t *t, move_t *m)
{
    const transfer_t *x = &m->transfer;
    const bool queues = t->engine->api != NULL && t->engine->api->native != NULL;
    const native_t *n = t->comm == NULL || !queues ? NULL : comm_native(t->comm);
    if (m->kind == MOVE_ACROSS)
        m->transfer.takes_over = m->after->native;
    else
        m->native = native_offers(n, t->engine->properties.native, x->group,
                                  transfers_native_op(x->op), x->dtype);
}

/* The transfer of a recorded row comes complete from its recording. */
lh_status_t transfers_add(transfers_t *t, const move_t *row, move_t **out)
{
    lh_assert(row->count > 0 && row->kind >= MOVE_SUM && row->kind <= MOVE_RECORDED);
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
    m->transfer.number = t->count;
    t->list[t->count++] = m;
    *out = m;
    switch (m->kind) {
    case MOVE_RECORDED: return LH_OK;
    case MOVE_ACROSS:
        m->transfer.group = LH_GROUP_ACROSS;
        m->transfer.ways = t->across->size;
        break;
    case MOVE_LOSSES:
        m->transfer.group = LH_GROUP_DATA;
        m->transfer.ways = t->world->row.size;
        break;
    default: m->transfer.group = t->group_kind; m->transfer.ways = t->group->size;
    }
    m->transfer.dtype = dtype_of(t, m);
    m->transfer.elements = move_elements(t, m);
    transfer_choose(t, m);
    return LH_OK;
}

/* ---- the values of a call ---- */

/* The flow's value of this rank's elements of a parameter, in a store that holds just those or the
 * whole. 0: the rank owns none. */
static uint32_t own_value(const transfers_t *t, program_t *p, const store_t *store,
                          uint32_t parameter)
{
    const uint32_t storage = t->weights->parameters->items[parameter].storage;
    const lh_slice_t mine = shard_shares_slice(t->shares, storage, t->group->self);
    const store_shard_t *piece = &store->shards[storage];
    if (mine.begin == mine.end) return 0;
    const uint32_t all = flow_reshape(p->flow, program_store_value(p, store, storage), 1,
                                      &piece->elements);
    return flow_rows(p->flow, all, mine.begin - piece->slice.begin, mine.end - mine.begin);
}

/* The values of all parameters of a move, whole or this rank's own part, into out [m->count].
 * Returns how many; parameters of which this rank owns nothing are left out. */
static uint32_t move_values(const transfers_t *t, program_t *p, const move_t *m, bool whole,
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

/* Which values a call reads and writes, for the checks and for placing memory. A sum reads whole
 * gradients and leaves whole or own ones; a gather reads own values and leaves whole values. */
flow_moved_t transfers_moved(const transfers_t *t, program_t *p, const move_t *m)
{
    if (m->kind == MOVE_PARTIALS || m->kind == MOVE_LOSSES)
        return flow_moved(p->flow, m->values, 1, m->values, 1);
    uint32_t *lists = mem_array(2 * (size_t)m->count, sizeof(*lists));
    if (lists == NULL) {
        p->flow->status = LH_NO_MEMORY;
        return (flow_moved_t){0};
    }
    const bool sum = m->kind == MOVE_SUM, across = m->kind == MOVE_ACROSS;
    const bool narrows = across || m->transfer.op == COLLECTIVE_REDUCE_SCATTER;
    uint32_t *writes = lists + m->count;
    /* Where an ACROSS follows, the sum hands its result over inside core/comm, and the flow sees
     * it written by the ACROSS. */
    const bool passes_on = sum && t->across != NULL;
    const uint32_t read_count = across ? 0 : move_values(t, p, m, sum, lists);
    const uint32_t write_count = passes_on ? 0 : move_values(t, p, m, !narrows, writes);
    const flow_moved_t moved = flow_moved(p->flow, lists, read_count, writes, write_count);
    mem_free(lists);
    return moved;
}

/* ---- where a transfer lies ---- */

const allocation_t *transfers_whole(const transfers_t *t, const move_t *x)
{
    if (x->program != NULL) return &t->engine->arenas[x->arena];
    return x->kind == MOVE_SUM ? &t->weights->grad->allocation : &t->weights->value->allocation;
}

uint64_t transfers_whole_element(const transfers_t *t, const move_t *x, uint32_t k,
                                 uint64_t element)
{
    lh_assert(k < x->count);
    const uint64_t wide = lh_dtype_bytes(x->transfer.dtype);
    const bool grad = x->kind == MOVE_SUM || x->kind == MOVE_ACROSS;
    const store_t *store = grad ? t->weights->grad : t->weights->value;
    const allocation_t *allocation = &store->allocation;
    uint64_t at;
    if (x->program != NULL) {
        const flow_value_t *v = &x->program->flow->values[x->values[k]];
        at = x->program->flow->buffers[v->buffer].offset + v->offset;
        allocation = &t->engine->arenas[x->arena];
    } else {
        at = store->shards[x->parameters[k]].offset;
    }
    at += element * wide;
    return (x->native ? at : handover_offset(t->engine, allocation, at)) / wide;
}

lh_slice_t transfers_across_slice(const transfers_t *t, uint32_t parameter, uint32_t member,
                                  uint32_t site)
{
    const uint32_t ways = t->across->size, place = (site + parameter) % ways;
    const lh_slice_t s = shard_shares_slice(t->shares, parameter, member);
    const uint64_t length = s.end - s.begin, units = transfers_norm_blocks(length);
    uint64_t begin = units * place / ways * LH_NORM_BLOCK;
    uint64_t end = units * (place + 1) / ways * LH_NORM_BLOCK;
    if (begin > length) begin = length;
    if (end > length) end = length;
    return (lh_slice_t){s.begin + begin, s.begin + end};
}

/* ---- what plans tell ---- */

static const move_t *transfer_move(const transfers_t *t, const transfer_t *transfer)
{
    lh_assert(transfer->number < t->count && &t->list[transfer->number]->transfer == transfer);
    return t->list[transfer->number];
}

const char *transfers_way(const transfers_t *t)
{
    return t->way;
}

uint32_t transfers_count(const transfers_t *t)
{
    return t->count;
}

uint64_t transfers_border_bytes(const transfers_t *t, const transfer_t *transfer)
{
    const move_t *m = transfer_move(t, transfer);
    uint64_t sent[LH_LINK_WAN + 1] = {0}, staging;
    if (m->plan != NULL) collective_bytes(m->plan, sent, &staging);
    return sent[LH_LINK_WAN];
}

uint32_t transfers_crossing(const transfers_t *t, const transfer_t *transfer)
{
    switch (transfer_move(t, transfer)->kind) {
    case MOVE_SUM:
    case MOVE_ACROSS: return CROSSING_SUMS;
    case MOVE_VALUE_GATHER:
    case MOVE_INSTANCE: return CROSSING_VALUES;
    default: return CROSSINGS;
    }
}

void transfers_sent_to(const transfers_t *t, const transfer_t *transfer, double times, double *to)
{
    const move_t *m = transfer_move(t, transfer);
    if (m->plan != NULL) collective_sent_to(m->plan, times, to);
}

double transfers_trips(const transfers_t *t, const transfer_t *transfer)
{
    const move_t *m = transfer_move(t, transfer);
    return m->plan == NULL ? 0 : collective_trips(m->plan);
}

/* Rows of one plan: the slices of the owners whose leader this rank is, in the order in which the
 * plan keeps their errors. Room is for all of them. */
static uint32_t errors_of(const transfers_t *t, const move_t *m, transfers_error_t *rows)
{
    uint64_t elements, at = 0;
    float *errors = collective_errors(m->plan, &elements);
    const bool across = m->kind == MOVE_ACROSS;
    const group_t *g = across ? t->across : t->group;
    uint32_t count = 0;
    for (uint32_t o = 0; o < g->size; o++) {
        if (world_group_leader(g, g->site_of[g->self], o) != g->self) continue;
        for (uint32_t k = 0; k < m->count; k++) {
            const uint32_t i = t->weights->parameters->items[m->parameters[k]].storage;
            const lh_slice_t s = across ? transfers_across_slice(t, i, t->group->self, o)
                                        : shard_shares_slice(t->shares, i, o);
            if (s.begin == s.end) continue;
            rows[count++] = (transfers_error_t){i, s, errors + at};
            at += s.end - s.begin;
        }
    }
    lh_assert(at == elements);
    return count;
}

static bool keeps_errors(const move_t *m)
{
    uint64_t elements;
    return m->plan != NULL && (m->kind == MOVE_SUM || m->kind == MOVE_ACROSS) && !m->transfer.add &&
           collective_errors(m->plan, &elements) != NULL;
}

lh_status_t transfers_errors(const transfers_t *t, transfers_error_t **out, uint32_t *count)
{
    size_t room = 0;
    *out = NULL;
    *count = 0;
    for (uint32_t i = 0; i < t->count; i++)
        if (keeps_errors(t->list[i])) room += (size_t)t->list[i]->count * t->world->row.size;
    if (room == 0) return LH_OK;
    transfers_error_t *rows = mem_array(room, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < t->count; i++)
        if (keeps_errors(t->list[i])) *count += errors_of(t, t->list[i], rows + *count);
    *out = rows;
    return LH_OK;
}

bool transfers_keep_errors(const transfers_t *t)
{
    return t->border == LH_DTYPE_I8 && t->world->row.sites > 1;
}

void transfers_forget_errors(const transfers_t *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        uint64_t elements;
        if (!keeps_errors(t->list[i])) continue;
        float *errors = collective_errors(t->list[i]->plan, &elements);
        memset(errors, 0, elements * sizeof(*errors));
    }
}

bool transfers_values_cross(const transfers_t *t)
{
    return t->tables.instance != TABLE_MOVES && t->group->sites > 1;
}

/* ---- in a step ---- */

/* Drives transports until the run is done, in the thread that runs the step. */
static lh_status_t move_wait(move_t *m)
{
    if (!m->running) return LH_OK;
    lh_assert(m->plan != NULL);
    m->running = false;
    return collective_wait(m->plan);
}

/* Waits until a device has worked off its queue, and with it all that awaits ends of transfers. */
static lh_status_t queue_drain(transfers_t *t)
{
    const lh_status_t status = engine_wait(t->engine);
    for (uint32_t i = 0; i < t->count; i++)
        t->list[i]->begun = false;
    return status;
}

/* A rank that is measured without the others (`bench device`): a start ends at once and brings
 * nothing. A queue (gate not NULL) awaits that end, and must be past it before the next run of the
 * same transfer ends, as two ends that come together are one to it. The partial sums of the norm
 * are zero, where what lies there by chance could have the step refused as not finite, and its
 * update left out. */
static lh_status_t start_alone(transfers_t *t, move_t *m, const transfer_gate_t *gate)
{
    const allocation_t *memory = handover_allocation(t->engine, &t->engine->arenas[m->arena]);
    const bool partials = m->kind == MOVE_PARTIALS && memory->address != NULL;
    const lh_status_t status = gate != NULL && (m->begun || partials) ? queue_drain(t) : LH_OK;
    m->begun = true;
    if (partials)
        memset((char *)memory->address +
                   transfers_whole_element(t, m, 0, 0) * lh_dtype_bytes(m->transfer.dtype),
               0, transfer_bytes(&m->transfer));
    if (gate != NULL && gate->done != NULL) gate->done(gate->context);
    return status;
}

/* exchange_t.expect. New values are written into where the training lists read the old ones; nothing of
 * the update's list, which starts these transfers, reads others' values. */
static bool on_expect(exchange_t *x, const transfer_t *transfer)
{
    const transfers_t *t = (transfers_t *)x;
    const move_t *m = (const move_t *)transfer;
    if (t->comm == NULL || m->plan == NULL || comm_is_planned(t->comm)) return false;
    return collective_expect(m->plan, m->kind == MOVE_VALUE_GATHER);
}

/* exchange_t.start, called by engine/handover.c. A gate says that the device's queue has not come
 * to the transfer yet. */
static lh_status_t on_start(exchange_t *x, const transfer_t *transfer, const transfer_gate_t *gate)
{
    transfers_t *t = (transfers_t *)x;
    move_t *m = (move_t *)(uintptr_t)transfer;
    lh_assert(m->plan != NULL);
    if (comm_is_planned(t->comm)) return start_alone(t, m, gate);
    lh_status_t status = move_wait(m); /* for a run that nobody has waited for */
    if (status == LH_OK && gate == NULL) status = collective_start(m->plan);
    if (status == LH_OK && gate != NULL) {
        const collective_gate_t behind = {.past = gate->past,
                                          .done = gate->done,
                                          .context = gate->context,
                                          .reached = gate->reached};
        status = collective_start_behind(m->plan, &behind);
    }
    m->running = status == LH_OK;
    return status;
}

/* exchange_t.queue. Without other ranks nothing moves; of the partial sums see start_alone. */
static lh_status_t on_queue(exchange_t *x, const transfer_t *transfer)
{
    const transfers_t *t = (transfers_t *)x;
    const move_t *m = (const move_t *)transfer;
    const engine_t *e = t->engine;
    if (!comm_is_planned(t->comm))
        return native_enqueue(comm_native(t->comm), transfer->group, &m->call);
    if (m->kind != MOVE_PARTIALS) return LH_OK;
    const lh_place_t to = allocation_place(transfers_whole(t, m),
                                           transfers_whole_element(t, m, 0, 0) *
                                               lh_dtype_bytes(transfer->dtype));
    return e->api->fill(e->exchanging, &to, 0, transfer_bytes(transfer));
}

/* exchange_t.exposed. What a device exchanges itself stays on its machine. */
static void on_exposed(exchange_t *x, LH_UNUSED const transfer_t *transfer, uint64_t ns)
{
    const transfers_t *t = (transfers_t *)x;
    if (!comm_is_planned(t->comm)) comm_expose(t->comm, LH_LINK_NODE, ns);
}

/* exchange_t.wait: the host waits. Does nothing where the transfer was not started. */
static lh_status_t on_wait(LH_UNUSED exchange_t *x, const transfer_t *transfer)
{
    return move_wait((move_t *)(uintptr_t)transfer);
}

lh_status_t transfers_value_gather(transfers_t *t)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        if (t->list[i]->kind == MOVE_VALUE_GATHER)
            status = handover_start(t->engine, &t->list[i]->transfer);
    return status == LH_OK ? transfers_finish(t) : status;
}

/* First lets the device wait for every transfer, then waits for the device, then for the runs that
 * the host started. */
lh_status_t transfers_finish(transfers_t *t)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        status = handover_wait(t->engine, &t->list[i]->transfer);
    if (status == LH_OK) status = engine_wait(t->engine);
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        status = move_wait(t->list[i]);
    return status;
}

/* ---- opening ---- */

/* Sets weights->owned, so that every element is saved by exactly one rank. */
static lh_status_t own_what_is_saved(transfers_t *t)
{
    weights_t *w = t->weights;
    w->owned = mem_array(w->parameters->count, sizeof(*w->owned));
    if (w->owned == NULL) return LH_NO_MEMORY;
    /* Where the cut is inside a site (or node) each holds all elements; that of rank 0 saves. */
    const world_t *world = t->world;
    const bool other_site = t->tables.cut == LH_GROUP_SITE &&
                            world_block(world, world->row.rank) != world_block(world, 0);
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        w->owned[i] = shard_shares_slice(t->shares, i, t->group->self);
        if (other_site) w->owned[i].end = w->owned[i].begin;
    }
    return LH_OK;
}

/* Whole gradients beside cut ones are built in two ways: they live for a bucket beside a cut store
 * (zero2, zero3), or for the step in a store in which the owner's part is the cut (zero1). */
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

/* What may fail in making the transfers; the engine is told last. */
static lh_status_t transfers_open(transfers_t *t, const transfers_how_t *how)
{
    const optimizer_tables_t *tables = &t->tables;
    lh_status_t status = wide_check(tables);
    if (status == LH_OK && tables->across != TABLE_MOVES)
        status = world_group_new(t->world, LH_GROUP_ACROSS, &t->across);
    if (status == LH_OK) status = own_what_is_saved(t);
    if (status != LH_OK) return status;
    t->value_gather_of = mem_array(how->weights->parameters->count, sizeof(*t->value_gather_of));
    if (t->value_gather_of == NULL) return LH_NO_MEMORY;
    const bool bucketed = tables->wide_grad != TABLE_SPACES &&
                          tables->spaces[tables->wide_grad].lives == LH_LIVES_BUCKET;
    t->weights->gathered = tables->instance != TABLE_MOVES;
    t->weights->bucketed = bucketed;
    t->exchange = (exchange_t){.arrange = how->arrange,
                               .expect = on_expect,
                               .start = on_start,
                               .wait = on_wait,
                               .queue = on_queue,
                               .exposed = on_exposed};
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
    t->rounds = how->rounds;
    t->border = how->border;
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
    world_group_free(t->across);
    shards_free(t->shards);
    mem_free(t);
}
