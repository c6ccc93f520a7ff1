/* transfers.c - the table of what moves between ranks, a collective for each row, and their runs in
 * a step.
 *
 * A collective's buffers are whole allocations: a store, or an arena of the engine. Which elements
 * of them a transfer moves is said by its pieces, a list of segments for each member. So memory is
 * registered once, and gradients are sent from where they were added up.
 *
 * Where the host can't reach a device's memory, the memory's mirror travels instead
 * (engine/handover.h), and places are those of the mirror. A job that is only planned has no
 * memory: its addresses are made up so that no two allocations overlap. */
#include <parallel/transfers.h>

#include <stdio.h>
#include <unistd.h>

#include <base/memory.h>
#include <engine/handover.h>
#include <longhaul/dtype.h>
#include <parallel/transfer_order.h>

/* Bytes of a bucket, and how many buckets the host would make of all gradients. */
enum { BUCKET_LEAST = 512 << 10, BUCKET_MOST = 25 << 20, BUCKETS = 24 };

/* With b buckets whose sums take T seconds in all, and W seconds of the backward pass in which they
 * can hide, a step waits for
 *
 *    max(0, T (1 - 1 / b) - W) + T / b + RTT / 2 for each hop.
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

/* Pieces and their segments are one allocation each, the segments that of the first piece. */
static void native_free(lh_coll_t *call)
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
    native_free(&m->call);
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
static uint64_t elements_of(const transfers_t *t, const move_t *m)
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

/* The collectives of a transfer (COLLECTIVE_*) as plugins call them (LH_COLL_*). */
static const uint32_t native_ops[COLLECTIVES] = {
    [COLLECTIVE_ALL_REDUCE] = LH_COLL_ALL_REDUCE,
    [COLLECTIVE_REDUCE_SCATTER] = LH_COLL_REDUCE_SCATTER,
    [COLLECTIVE_ALL_GATHER] = LH_COLL_ALL_GATHER,
};

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
        m->native = native_offers(n, t->engine->properties.native, x->group, native_ops[x->op],
                                  x->dtype);
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
    m->transfer.elements = elements_of(t, m);
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
    const uint32_t read_count = across ? 0 : values_of(t, p, m, sum, lists);
    const uint32_t write_count = passes_on ? 0 : values_of(t, p, m, !narrows, writes);
    const flow_moved_t moved = flow_moved(p->flow, lists, read_count, writes, write_count);
    mem_free(lists);
    return moved;
}

/* ---- a collective for each transfer ---- */

/* The first made-up address of a job that is only planned, and what addresses are a multiple of. */
enum { PLANNED_BASE = 4096 };

/* Lives while all collectives are planned. */
typedef struct planner {
    transfers_t *t;
    /* Memory whose bytes travel, registered once: the engine's allocation, the address of its
     * memory or of its mirror, and the number that comm gave it. */
    const allocation_t *allocations[TRANSFER_ALLOCATIONS];
    char *bases[TRANSFER_ALLOCATIONS];
    uint32_t arenas[TRANSFER_ALLOCATIONS];
    uint32_t allocation_count;
    bool planned;          /* there is no memory: nothing is read at the addresses */
    uintptr_t planned_end; /* behind the last address that was made up */
    /* [parameters][members] where a slice begins in its owner's store, in elements */
    uint64_t *value_cuts, *grad_cuts;
} planner_t;

/* An allocation as comm knows it: its address and its arena. */
static lh_status_t place_of(const planner_t *pl, const allocation_t *allocation, coll_place_t *out)
{
    for (uint32_t i = 0; i < pl->allocation_count; i++) {
        if (pl->allocations[i] != allocation) continue;
        *out = (coll_place_t){pl->bases[i], pl->arenas[i]};
        return LH_OK;
    }
    return fail(LH_INVALID, "memory '%s' is not registered for transfers", allocation->name);
}

/* Registers an allocation with comm, or its mirror where the host can't reach the memory; an
 * allocation that the host can reach in neither way does not travel. A device that can gives a
 * descriptor of the memory: peers on the node then map the memory and read in place. */
static lh_status_t allocation_share(planner_t *pl, const allocation_t *of)
{
    const engine_t *e = pl->t->engine;
    const allocation_t *allocation = handover_allocation(e, of);
    const bool mirrored = allocation != of;
    lh_assert(pl->allocation_count < TRANSFER_ALLOCATIONS);
    if (allocation->bytes == 0 &&
        (e->mirror_count > 0 || (e->properties.flags & LH_DEVICE_HOST_ACCESS) != 0)) {
        /* This rank has no slice of what travels to and from the others' memory of this name. It
         * keeps its number, behind which nothing is read. */
        static char nothing[1];
        pl->allocations[pl->allocation_count] = of;
        pl->bases[pl->allocation_count] = nothing;
        return comm_arena(pl->t->comm, nothing, sizeof(nothing), -1, 0,
                          &pl->arenas[pl->allocation_count++]);
    }
    if (allocation->bytes == 0) return LH_OK;
    if (!mirrored && (e->properties.flags & LH_DEVICE_HOST_ACCESS) == 0) return LH_OK;
    if (allocation->address == NULL && !pl->planned)
        return fail(LH_ABI, "device %s lets the host reach its memory, but gives no address of %s",
                    e->how.device->name, allocation->name);
    lh_share_t share = {.struct_size = sizeof(share), .fd = -1};
    char *base = allocation->address;
    if (pl->planned) {
        base = (char *)pl->planned_end;
        pl->planned_end += (allocation->bytes / PLANNED_BASE + 1) * PLANNED_BASE;
        share.fd = e->api->share == NULL || mirrored ? -1 : 0;
    } else if (e->api->share == NULL || mirrored ||
               e->api->share(allocation->memory, LH_SHARE_MEMFD, &share) != LH_OK)
        share = (lh_share_t){.fd = -1};
    if (share.fd >= 0 && !pl->planned) pl->t->shared[pl->t->shared_count++] = share.fd;
    pl->allocations[pl->allocation_count] = of;
    pl->bases[pl->allocation_count] = base;
    return comm_arena(pl->t->comm, base, allocation->bytes, share.fd, share.offset,
                      &pl->arenas[pl->allocation_count++]);
}

/* In the same order on all ranks, as they name arenas to each other by number. */
static lh_status_t allocations_share(planner_t *pl)
{
    const transfers_t *t = pl->t;
    lh_status_t status = allocation_share(pl, &t->weights->value->allocation);
    if (status == LH_OK) status = allocation_share(pl, &t->weights->grad->allocation);
    if (status == LH_OK) status = allocation_share(pl, &t->engine->arenas[ARENA_GATHERED]);
    if (status == LH_OK) status = allocation_share(pl, &t->engine->arenas[ARENA_BUCKETS]);
    if (status == LH_OK && t->recorded)
        status = allocation_share(pl, &t->engine->arenas[ARENA_ACTIVATIONS]);
    return status;
}

/* Where every member keeps its slices of a cut store, in elements from the store's start, as
 * weights_shard_add lays them out there: *out is [parameters][members], freed by the caller, on
 * failure too. No member has to be asked, as the layout follows from shares, dtypes and alignment
 * alone; this rank's own layout is compared with the result. */
static lh_status_t cuts_lay(const transfers_t *t, const store_t *store, uint64_t **out)
{
    const uint32_t count = t->weights->parameters->count, ways = t->group->size;
    uint64_t *cuts = mem_array((size_t)count * ways, sizeof(*cuts));
    if (cuts == NULL) return LH_NO_MEMORY;
    *out = cuts;
    for (uint32_t m = 0; m < ways; m++) {
        allocation_t walk = {.name = store->name};
        for (uint32_t i = 0; i < count; i++) {
            if (!store->shards[i].present) continue;
            const lh_slice_t s = shard_shares_slice(t->shares, i, m);
            const uint64_t wide = lh_dtype_bytes(store->shards[i].dtype);
            uint64_t offset;
            const lh_status_t status = allocation_take(&walk, (s.end - s.begin) * wide,
                                                       engine_alignment(t->engine), &offset);
            if (status != LH_OK) return status;
            cuts[(size_t)i * ways + m] = offset / wide;
            if (m == t->group->self && offset != store->shards[i].offset)
                return fail(LH_INVALID, "the slices of %s are not laid out as others expect",
                            store->name);
            /* All of a cut store travels, so offsets in its mirror are the same. */
            lh_assert(m != t->group->self || s.begin == s.end ||
                      handover_offset(t->engine, &store->allocation, offset) == offset);
        }
    }
    return LH_OK;
}

/* The allocation in which the whole form of a transfer lies. */
static const allocation_t *whole_allocation(const transfers_t *t, const move_t *x)
{
    if (x->program != NULL) return &t->engine->arenas[x->arena];
    return x->kind == MOVE_SUM ? &t->weights->grad->allocation : &t->weights->value->allocation;
}

/* An element of the k-th parameter in the whole form, from the start of its allocation or of its mirror,
 * in which it must travel. */
static uint64_t whole_element(const transfers_t *t, const move_t *x, uint32_t k, uint64_t element)
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

static uint64_t whole_at(const transfers_t *t, const move_t *x, uint32_t k)
{
    return whole_element(t, x, k, 0);
}

/* A member's segments of a transfer, in the order of the parameters; returns how many. Partial sums
 * are cut where the gradients are: the row of a block belongs to the member that owns the block.
 * cuts: [parameters][members] of the cut form, or NULL where owners' parts lie in the whole form.
 * `out` has room for one segment a parameter. */
static uint32_t segments_of(const planner_t *pl, const move_t *x, uint32_t member,
                            const uint64_t *cuts, coll_segment_t *out)
{
    const transfers_t *t = pl->t;
    const parameters_t *p = t->weights->parameters;
    lh_assert(member < t->group->size);
    uint32_t count = 0;
    uint64_t at = x->kind == MOVE_PARTIALS ? whole_at(t, x, 0) : 0;
    const uint32_t all = x->kind == MOVE_PARTIALS ? p->count : x->count;
    for (uint32_t k = 0; k < all; k++) {
        const uint32_t i = x->kind == MOVE_PARTIALS ? k : x->parameters[k];
        if (x->kind == MOVE_PARTIALS && !transfers_is_updated(t->weights, i)) continue;
        const uint32_t storage = p->items[i].storage;
        const lh_slice_t s = shard_shares_slice(t->shares, storage, member);
        coll_segment_t segment;
        if (x->kind == MOVE_PARTIALS) {
            const uint64_t first = s.begin / LH_NORM_BLOCK;
            segment = (coll_segment_t){.whole = at + first * PARTIAL_WORDS,
                                       .count = (transfers_norm_blocks(s.end) - first) *
                                                PARTIAL_WORDS};
            if (s.end == s.begin) segment.count = 0;
            at += transfers_norm_blocks(p->items[i].elements) * PARTIAL_WORDS;
        } else {
            segment = (coll_segment_t){.whole = whole_at(t, x, k) + s.begin,
                                       .count = s.end - s.begin};
            if (cuts != NULL) segment.cut = cuts[(size_t)storage * t->group->size + member];
        }
        if (segment.count > 0) out[count++] = segment;
    }
    return count;
}

/* The pieces of one plan; freed once the plan is made, which copies them. */
typedef struct pieces {
    coll_piece_t *rows;       /* [members] */
    coll_segment_t *segments; /* [members][parameters] */
} pieces_t;

static void pieces_free(pieces_t *p)
{
    mem_free(p->rows);
    mem_free(p->segments);
}

/* Segments of all members of the group, for one plan. */
static lh_status_t pieces_make(const planner_t *pl, const move_t *x, const uint64_t *cuts,
                               pieces_t *out)
{
    const transfers_t *t = pl->t;
    const uint32_t ways = t->group->size;
    const uint32_t room = x->kind == MOVE_PARTIALS ? t->weights->parameters->count : x->count;
    out->rows = mem_array(ways, sizeof(*out->rows));
    out->segments = mem_array((size_t)ways * room, sizeof(*out->segments));
    if (out->rows == NULL || out->segments == NULL) return LH_NO_MEMORY;
    for (uint32_t m = 0; m < ways; m++) {
        coll_segment_t *mine = &out->segments[(size_t)m * room];
        out->rows[m] = (coll_piece_t){mine, segments_of(pl, x, m, cuts, mine)};
    }
    return LH_OK;
}

/* The site's share of the work of a second sum, in elements of the parameter: of what this rank holds
 * after the sum inside its site, in blocks of the norm, and small parameters go round over the sites
 * (as in shards.h). */
static lh_slice_t across_slice(const transfers_t *t, uint32_t parameter, uint32_t site)
{
    const uint32_t ways = t->across->size, place = (site + parameter) % ways;
    const lh_slice_t s = shard_shares_slice(t->shares, parameter, t->group->self);
    const uint64_t length = s.end - s.begin, units = transfers_norm_blocks(length);
    uint64_t begin = units * place / ways * LH_NORM_BLOCK;
    uint64_t end = units * (place + 1) / ways * LH_NORM_BLOCK;
    if (begin > length) begin = length;
    if (end > length) end = length;
    return (lh_slice_t){s.begin + begin, s.begin + end};
}

/* How sites share the work of the second sum: a piece for each. cut: this rank's part lies in a
 * store of its own, not in the whole form. */
static lh_status_t across_make(const planner_t *pl, const move_t *x, const group_t *across,
                               bool cut, pieces_t *out)
{
    const transfers_t *t = pl->t;
    const uint32_t ways = across->size;
    out->rows = mem_array(ways, sizeof(*out->rows));
    out->segments = mem_array((size_t)ways * x->count, sizeof(*out->segments));
    if (out->rows == NULL || out->segments == NULL) return LH_NO_MEMORY;
    for (uint32_t m = 0; m < ways; m++) {
        coll_segment_t *mine = &out->segments[(size_t)m * x->count];
        uint32_t count = 0;
        for (uint32_t k = 0; k < x->count; k++) {
            const uint32_t i = x->parameters[k];
            const lh_slice_t s = shard_shares_slice(t->shares, i, t->group->self);
            const lh_slice_t part = across_slice(t, i, m);
            if (s.end == s.begin) continue;
            const uint64_t base = cut ? pl->grad_cuts[(size_t)i * t->group->size + t->group->self]
                                      : whole_element(t, x, k, s.begin);
            if (part.end > part.begin)
                mine[count++] = (coll_segment_t){base + (part.begin - s.begin),
                                                 part.end - part.begin, 0};
        }
        out->rows[m] = (coll_piece_t){mine, count};
    }
    return LH_OK;
}

/* The collectives of a transfer (COLLECTIVE_*) as comm calls them (COLL_*). */
static const uint32_t coll_ops[COLLECTIVES] = {
    [COLLECTIVE_ALL_REDUCE] = COLL_ALL_REDUCE,
    [COLLECTIVE_REDUCE_SCATTER] = COLL_REDUCE_SCATTER,
    [COLLECTIVE_ALL_GATHER] = COLL_ALL_GATHER,
    [COLLECTIVE_ALL_TO_ALL] = COLL_ALL_TO_ALL,
};

/* Length of a collective's buffer: the elements of a whole allocation, or of its mirror. */
static uint64_t allocation_elements(const transfers_t *t, const allocation_t *allocation,
                                    lh_dtype_t dtype)
{
    return handover_allocation(t->engine, allocation)->bytes / lh_dtype_bytes(dtype);
}

/* An ACROSS works in place, on what this rank holds of the gradients after the sum inside its site.
 * Its run begins when that of the sum before it is done, without the device or the host in
 * between. */
static lh_status_t across_plan(planner_t *pl, move_t *x, coll_how_t *how)
{
    const transfers_t *t = pl->t;
    const store_t *grad = t->weights->grad;
    pieces_t pieces = {0};
    how->group = t->across;
    how->elements = allocation_elements(t, &grad->allocation, how->dtype);
    how->after = x->after->plan;
    lh_status_t status = place_of(pl, &grad->allocation, &how->whole);
    if (status == LH_OK) status = across_make(pl, x, t->across, t->weights->bucketed, &pieces);
    how->pieces = pieces.rows;
    if (status == LH_OK) status = collective_new(t->comm, how, &x->plan);
    pieces_free(&pieces);
    return status;
}

/* Sums and gathers over the group of the shares. Where values or gradients are cut, owners' pieces
 * lie in the store, and the whole form in an arena. */
static lh_status_t group_plan(planner_t *pl, move_t *x, coll_how_t *how)
{
    const transfers_t *t = pl->t;
    const allocation_t *whole = whole_allocation(t, x);
    const uint64_t *cuts = NULL;
    pieces_t pieces = {0};
    how->elements = allocation_elements(t, whole, how->dtype);
    lh_status_t status = place_of(pl, whole, &how->whole);
    if (status == LH_OK && x->kind == MOVE_INSTANCE) {
        cuts = pl->value_cuts;
        status = place_of(pl, &t->weights->value->allocation, &how->cut);
    }
    if (status == LH_OK && x->kind == MOVE_SUM && t->weights->bucketed) {
        cuts = pl->grad_cuts;
        status = place_of(pl, &t->weights->grad->allocation, &how->cut);
    }
    if (status == LH_OK) status = pieces_make(pl, x, cuts, &pieces);
    how->pieces = pieces.rows;
    if (status == LH_OK) status = collective_new(t->comm, how, &x->plan);
    pieces_free(&pieces);
    return status;
}

/* The place of a value of the move's flow in the move's arena, whose own place is `arena`. */
static coll_place_t value_place(const transfers_t *t, const move_t *x, uint32_t value,
                                coll_place_t arena)
{
    const flow_t *f = x->program->flow;
    const flow_value_t *v = &f->values[value];
    const uint64_t at = f->buffers[v->buffer].offset + v->offset;
    arena.address = (char *)arena.address +
                    handover_offset(t->engine, &t->engine->arenas[x->arena], at);
    return arena;
}

/* In place: rank r's words are the r-th of equal pieces. */
static lh_status_t losses_plan(planner_t *pl, move_t *x, coll_how_t *how)
{
    coll_place_t arena = {0};
    how->group = comm_group(pl->t->comm, x->transfer.group);
    how->elements = x->transfer.elements;
    if (how->group == NULL) return LH_INVALID;
    const lh_status_t status = place_of(pl, &pl->t->engine->arenas[x->arena], &arena);
    if (status != LH_OK) return status;
    how->whole = value_place(pl->t, x, x->values[0], arena);
    return collective_new(pl->t->comm, how, &x->plan);
}

/* A recorded collective moves equal pieces in the order of ranks, so it lists none. */
static lh_status_t recorded_plan(planner_t *pl, move_t *x, coll_how_t *how)
{
    coll_place_t arena = {0};
    how->group = comm_group(pl->t->comm, x->transfer.group);
    how->service = LH_SERVICE_ACTIVATION;
    how->elements = x->transfer.elements;
    if (how->group == NULL) return LH_INVALID;
    const lh_status_t status = place_of(pl, &pl->t->engine->arenas[ARENA_ACTIVATIONS], &arena);
    if (status != LH_OK) return status;
    const bool gather = how->op == COLL_ALL_GATHER;
    how->whole = value_place(pl->t, x, x->values[gather ? 1 : 0], arena);
    if (how->op != COLL_ALL_REDUCE)
        how->cut = value_place(pl->t, x, x->values[gather ? 0 : 1], arena);
    return collective_new(pl->t->comm, how, &x->plan);
}

/* In which dtype a sum of gradients crosses a border: the job's word, the table's, or that of what
 * is computed with. Values cross as they are stored. */
static lh_dtype_t border_of(const transfers_t *t, const move_t *x)
{
    const bool across = x->kind == MOVE_ACROSS;
    const lh_move_t *row = optimizer_tables_move(&t->tables,
                                                 across ? t->tables.across : t->tables.sum);
    if (x->kind != MOVE_SUM && !across) return 0;
    if (t->border != 0) return t->border;
    if (row != NULL && row->wire != 0) return row->wire;
    return t->weights->compute == LH_DTYPE_BF16 ? LH_DTYPE_BF16 : LH_DTYPE_F32;
}

/* What a bucket's sum in later micro-batches goes on with: the first one's errors. The two stand one
 * behind the other. */
static collective_t *continued_by(const transfers_t *t, const move_t *x)
{
    if (x->kind != MOVE_SUM || !x->transfer.add) return NULL;
    lh_assert(x->transfer.number > 0);
    const move_t *first = t->list[x->transfer.number - 1];
    lh_assert(first->kind == MOVE_SUM && first->parameters[0] == x->parameters[0]);
    return first->plan;
}

/* ---- transfers that the device makes itself ---- */

/* Losses: in place, rank r's words are the r-th of equal pieces. */
static lh_status_t losses_pieces(const planner_t *pl, const move_t *x, pieces_t *out)
{
    const uint32_t ways = x->transfer.ways;
    const uint64_t each = x->transfer.elements / ways, at = whole_at(pl->t, x, 0);
    out->rows = mem_array(ways, sizeof(*out->rows));
    out->segments = mem_array(ways, sizeof(*out->segments));
    if (out->rows == NULL || out->segments == NULL) return LH_NO_MEMORY;
    for (uint32_t m = 0; m < ways; m++) {
        out->segments[m] = (coll_segment_t){.whole = at + m * each, .count = each};
        out->rows[m] = (coll_piece_t){&out->segments[m], 1};
    }
    return LH_OK;
}

/* A piece in the plugin's form, with neighbours joined; returns how many segments it has. */
static uint64_t native_piece(const coll_piece_t *p, lh_coll_segment_t *out)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const coll_segment_t *s = &p->segments[i];
        lh_coll_segment_t *last = count > 0 ? &out[count - 1] : NULL;
        if (last != NULL && last->whole + last->count == s->whole &&
            last->part + last->count == s->cut)
            last->count += s->count;
        else
            out[count++] = (lh_coll_segment_t){s->whole, s->count, s->cut};
    }
    return count;
}

/* There is room for a segment more, as the first piece owns the list. */
static lh_status_t native_pieces(const pieces_t *pieces, uint32_t ways, lh_coll_t *call)
{
    uint64_t room = 1, at = 0;
    for (uint32_t m = 0; m < ways; m++)
        room += pieces->rows[m].count;
    lh_coll_piece_t *rows = mem_array(ways, sizeof(*rows));
    lh_coll_segment_t *segments = mem_array(room, sizeof(*segments));
    if (rows == NULL || segments == NULL) {
        mem_free(rows);
        mem_free(segments);
        return LH_NO_MEMORY;
    }
    for (uint32_t m = 0; m < ways; m++) {
        rows[m] = (lh_coll_piece_t){&segments[at], native_piece(&pieces->rows[m], &segments[at])};
        at += rows[m].count;
    }
    call->pieces = rows;
    return LH_OK;
}

/* The store of this rank's part, where the whole form lies elsewhere; NULL: pieces lie in the whole. */
static const store_t *part_store(const transfers_t *t, const move_t *x)
{
    if (x->kind == MOVE_INSTANCE) return t->weights->value;
    return x->kind == MOVE_SUM && t->weights->bucketed ? t->weights->grad : NULL;
}

/* Everything but addresses, which are there once memory is. */
static lh_status_t native_make(const planner_t *pl, move_t *x)
{
    const transfers_t *t = pl->t;
    const store_t *part = part_store(t, x);
    const uint64_t *cuts = x->kind == MOVE_INSTANCE ? pl->value_cuts : pl->grad_cuts;
    pieces_t pieces = {0};
    native_free(&x->call);
    x->call = (lh_coll_t){.struct_size = sizeof(x->call),
                          .op = native_ops[x->transfer.op],
                          .dtype = x->transfer.dtype,
                          .add = x->transfer.add};
    if (part != NULL) x->call.part = allocation_place(&part->allocation, 0);
    lh_status_t status = x->kind == MOVE_LOSSES
                             ? losses_pieces(pl, x, &pieces)
                             : pieces_make(pl, x, part != NULL ? cuts : NULL, &pieces);
    if (status == LH_OK) status = native_pieces(&pieces, x->transfer.ways, &x->call);
    pieces_free(&pieces);
    return status;
}

/* exchange_t.native: the workspace follows from how the pieces lie, whatever the addresses. */
static lh_status_t on_native(exchange_t *x, const transfer_t *transfer, bool *native,
                             uint64_t *bytes)
{
    transfers_t *t = (transfers_t *)x;
    move_t *m = (move_t *)(uintptr_t)transfer;
    const planner_t pl = {.t = t};
    *native = m->native;
    if (!m->native) return LH_OK;
    const lh_status_t status = native_make(&pl, m);
    if (status == LH_OK) *bytes = native_use(comm_native(t->comm), transfer->group, &m->call);
    return status;
}

static lh_status_t native_plan(const planner_t *pl, move_t *x)
{
    const transfers_t *t = pl->t;
    const lh_status_t status = native_make(pl, x);
    x->call.whole = allocation_place(whole_allocation(t, x), 0);
    x->call.workspace = allocation_place(&t->engine->workspace, 0);
    native_queue(comm_native(t->comm), &t->engine->exchanging_native);
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
    const lh_place_t to = allocation_place(whole_allocation(t, m),
                                           whole_at(t, m, 0) * lh_dtype_bytes(transfer->dtype));
    return e->api->fill(e->exchanging, &to, 0, transfer_bytes(transfer));
}

/* Plans one transfer. Gradients, values and activations have connections of their own, so that none
 * waits behind another. The losses, which are needed after the gradients only, go with those: a
 * connection more between all ranks would be one for a few words a step. */
static lh_status_t move_plan(planner_t *pl, move_t *x)
{
    const bool gradients = x->kind == MOVE_SUM || x->kind == MOVE_ACROSS || x->kind == MOVE_LOSSES;
    coll_how_t how = {.name = x->transfer.name,
                      .op = coll_ops[x->transfer.op],
                      .group = pl->t->group,
                      .dtype = x->transfer.dtype,
                      .border = border_of(pl->t, x),
                      .continues = continued_by(pl->t, x),
                      .add = x->transfer.add,
                      .service = gradients ? LH_SERVICE_GRADIENT : LH_SERVICE_PARAMETER};
    if (x->native) return pl->planned ? LH_OK : native_plan(pl, x);
    switch (x->kind) {
    case MOVE_ACROSS: return across_plan(pl, x, &how);
    case MOVE_LOSSES: return losses_plan(pl, x, &how);
    case MOVE_RECORDED: return recorded_plan(pl, x, &how);
    default: return group_plan(pl, x, &how);
    }
}

/* Plans are made in the order of the table, which is the same on all ranks. */
static lh_status_t plan_all(transfers_t *t, bool planned)
{
    planner_t pl = {.t = t, .planned = planned, .planned_end = PLANNED_BASE};
    if (t->comm == NULL)
        return fail(LH_INVALID, "these ranks are planned only; nothing connects them");
    lh_status_t status = allocations_share(&pl);
    if (status == LH_OK && t->weights->gathered)
        status = cuts_lay(t, t->weights->value, &pl.value_cuts);
    if (status == LH_OK && t->weights->bucketed)
        status = cuts_lay(t, t->weights->grad, &pl.grad_cuts);
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        status = move_plan(&pl, t->list[i]);
    mem_free(pl.value_cuts);
    mem_free(pl.grad_cuts);
    return status;
}

/* Checks, before any rank connects, that no rank will wait for ever. All ranks call it. */
static lh_status_t orders_agree(const transfers_t *t)
{
    transfer_list_t mine = {0};
    lh_status_t status = transfer_rows(t->engine, &mine.rows, &mine.count);
    if (status != LH_OK) return status;
    status = transfer_order_agree(t->world, comm_control(t->comm), &mine);
    mem_free(mine.rows);
    return status;
}

uint64_t transfers_border_bytes(const transfers_t *t, const transfer_t *transfer)
{
    lh_assert(transfer->number < t->count && &t->list[transfer->number]->transfer == transfer);
    const move_t *m = t->list[transfer->number];
    uint64_t sent[LH_LINK_WAN + 1] = {0}, staging;
    if (m->plan != NULL) collective_bytes(m->plan, sent, &staging);
    return sent[LH_LINK_WAN];
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
            const lh_slice_t s = across ? across_slice(t, i, o)
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
        memset((char *)memory->address + whole_at(t, m, 0) * lh_dtype_bytes(m->transfer.dtype), 0,
               transfer_bytes(&m->transfer));
    if (gate != NULL && gate->done != NULL) gate->done(gate->context);
    return status;
}

/* exchange_t.bind: memory is there, and nothing has run. */
static lh_status_t on_bind(exchange_t *x)
{
    transfers_t *t = (transfers_t *)x;
    if (t->comm != NULL && comm_is_planned(t->comm)) return LH_OK; /* transfers_plan has made all */
    const lh_status_t status = plan_all(t, false);
    return status == LH_OK ? orders_agree(t) : status;
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
        const collective_gate_t behind = {gate->past, gate->done, gate->context};
        status = collective_start_behind(m->plan, &behind);
    }
    m->running = status == LH_OK;
    return status;
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
    /* Where the cut is inside a site every site holds all elements; the site of rank 0 saves. */
    const world_t *world = t->world;
    const bool other_site = t->tables.cut == LH_GROUP_SITE &&
                            world->ranks[world->row.rank].site != world->ranks[0].site;
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
                               .bind = on_bind,
                               .expect = on_expect,
                               .start = on_start,
                               .wait = on_wait,
                               .native = on_native,
                               .queue = on_queue};
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

lh_status_t transfers_plan(transfers_t *t)
{
    return plan_all(t, true);
}
