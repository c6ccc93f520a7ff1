/* transfer_plan.c - plans a collective for every transfer, once memory is there. */
#include <parallel/transfer_plan.h>

#include <base/memory.h>
#include <engine/handover.h>
#include <longhaul/dtype.h>
#include <parallel/transfer_order.h>

enum { PLANNED_BASE = 4096 };

typedef struct planner {
    transfers_t *t;
    /* Memory whose bytes travel, registered once. */
    const allocation_t *allocations[TRANSFER_ALLOCATIONS];
    char *bases[TRANSFER_ALLOCATIONS];
    uint32_t arenas[TRANSFER_ALLOCATIONS];
    uint32_t allocation_count;
    /* There is no memory: any addresses will do that differ, as nothing is read there. */
    bool planned;
    uintptr_t planned_end;
    uint64_t *value_cuts, *grad_cuts; /* [parameters][members] element offsets into their owner's */
} planner_t;

static lh_status_t place_of(const planner_t *pl, const allocation_t *allocation, coll_place_t *out)
{
    for (uint32_t i = 0; i < pl->allocation_count; i++) {
        if (pl->allocations[i] != allocation) continue;
        *out = (coll_place_t){pl->bases[i], pl->arenas[i]};
        return LH_OK;
    }
    return fail(LH_INVALID, "memory '%s' is not registered for transfers", allocation->name);
}

/* Where the host can't reach it, its mirror; what has none does not travel. */
static lh_status_t allocation_share(planner_t *pl, const allocation_t *of)
{
    const engine_t *e = pl->t->engine;
    const allocation_t *allocation = handover_allocation(e, of);
    const bool mirrored = allocation != of;
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

/* Where every member keeps its slices of a cut store: as weights_piece_add lays them out there. */
static lh_status_t cuts_lay(const transfers_t *t, const store_t *store, uint64_t **out)
{
    const uint32_t count = t->weights->parameters->count, ways = t->group->size;
    uint64_t *cuts = mem_array((size_t)count * ways, sizeof(*cuts));
    if (cuts == NULL) return LH_NO_MEMORY;
    *out = cuts;
    for (uint32_t m = 0; m < ways; m++) {
        allocation_t walk = {.name = store->name};
        for (uint32_t i = 0; i < count; i++) {
            if (!store->pieces[i].present) continue;
            const lh_slice_t s = shares_slice(t->shares, i, m);
            const uint64_t wide = lh_dtype_bytes(store->pieces[i].dtype);
            uint64_t offset;
            const lh_status_t status = allocation_take(&walk, (s.end - s.begin) * wide,
                                                       engine_alignment(t->engine), &offset);
            if (status != LH_OK) return status;
            cuts[(size_t)i * ways + m] = offset / wide;
            if (m == t->group->self && offset != store->pieces[i].offset)
                return fail(LH_INVALID, "the slices of %s are not laid out as others expect",
                            store->name);
            /* All of a cut store travels, so that its mirror is its twin. */
            lh_assert(m != t->group->self || s.begin == s.end ||
                      handover_offset(t->engine, &store->allocation, offset) == offset);
        }
    }
    return LH_OK;
}

static const allocation_t *whole_allocation(const transfers_t *t, const move_t *x)
{
    if (x->program != NULL) return &t->engine->arenas[x->arena];
    return x->kind == MOVE_SUM ? &t->weights->grad->allocation : &t->weights->value->allocation;
}

/* First element of the k-th parameter in the whole form. */
static uint64_t whole_at(const transfers_t *t, const move_t *x, uint32_t k)
{
    const uint64_t wide = lh_dtype_bytes(x->transfer.dtype);
    if (x->program != NULL) {
        const flow_value_t *v = &x->program->flow->values[x->values[k]];
        const uint64_t at = x->program->flow->buffers[v->buffer].offset + v->offset;
        return handover_offset(t->engine, &t->engine->arenas[x->arena], at) / wide;
    }
    const bool grad = x->kind == MOVE_SUM || x->kind == MOVE_ACROSS;
    const store_t *store = grad ? t->weights->grad : t->weights->value;
    const uint64_t at = store->pieces[x->parameters[k]].offset;
    return handover_offset(t->engine, &store->allocation, at) / wide;
}

static uint64_t blocks(uint64_t elements)
{
    return (elements + LH_NORM_BLOCK - 1) / LH_NORM_BLOCK;
}

/* A member's segments of a transfer. */
static uint32_t segments_of(const planner_t *pl, const move_t *x, uint32_t member,
                            const uint64_t *cuts, coll_segment_t *out)
{
    const transfers_t *t = pl->t;
    const parameters_t *p = t->weights->parameters;
    uint32_t count = 0;
    uint64_t at = x->kind == MOVE_PARTIALS ? whole_at(t, x, 0) : 0;
    const uint32_t all = x->kind == MOVE_PARTIALS ? p->count : x->count;
    for (uint32_t k = 0; k < all; k++) {
        const uint32_t i = x->kind == MOVE_PARTIALS ? k : x->parameters[k];
        if (x->kind == MOVE_PARTIALS && !transfers_is_updated(t, i)) continue;
        const uint32_t storage = p->items[i].storage;
        const lh_slice_t s = shares_slice(t->shares, storage, member);
        coll_segment_t segment;
        if (x->kind == MOVE_PARTIALS) {
            const uint64_t first = s.begin / LH_NORM_BLOCK;
            segment = (coll_segment_t){.whole = at + first * PARTIAL_WORDS,
                                       .count = (blocks(s.end) - first) * PARTIAL_WORDS};
            if (s.end == s.begin) segment.count = 0;
            at += blocks(p->items[i].elements) * PARTIAL_WORDS;
        } else {
            segment = (coll_segment_t){.whole = whole_at(t, x, k) + s.begin,
                                       .count = s.end - s.begin};
            if (cuts != NULL) segment.cut = cuts[(size_t)storage * t->group->size + member];
        }
        if (segment.count > 0) out[count++] = segment;
    }
    return count;
}

typedef struct pieces { /* of one plan */
    coll_piece_t *rows;
    coll_segment_t *segments;
} pieces_t;

static void pieces_free(pieces_t *p)
{
    mem_free(p->rows);
    mem_free(p->segments);
}

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

/* The parts of what this rank holds after the sum inside its site, over which sites share the work
 * of the second sum. */
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
            const uint32_t i = x->parameters[k], place = (m + i) % ways;
            const lh_slice_t s = shares_slice(t->shares, i, t->group->self);
            const uint64_t units = blocks(s.end - s.begin), length = s.end - s.begin;
            uint64_t begin = units * place / ways * LH_NORM_BLOCK;
            uint64_t end = units * (place + 1) / ways * LH_NORM_BLOCK;
            if (begin > length) begin = length;
            if (end > length) end = length;
            const uint64_t base = cut ? pl->grad_cuts[(size_t)i * t->group->size + t->group->self]
                                      : whole_at(t, x, k) + s.begin;
            if (end > begin) mine[count++] = (coll_segment_t){base + begin, end - begin, 0};
        }
        out->rows[m] = (coll_piece_t){mine, count};
    }
    return LH_OK;
}

static const uint32_t coll_ops[COLLECTIVES] = {
    [COLLECTIVE_ALL_REDUCE] = COLL_ALL_REDUCE,
    [COLLECTIVE_REDUCE_SCATTER] = COLL_REDUCE_SCATTER,
    [COLLECTIVE_ALL_GATHER] = COLL_ALL_GATHER,
    [COLLECTIVE_ALL_TO_ALL] = COLL_ALL_TO_ALL,
};

/* That the memory of an allocation holds for those who communicate. */
static uint64_t allocation_elements(const transfers_t *t, const allocation_t *allocation,
                                    lh_dtype_t dtype)
{
    return handover_allocation(t->engine, allocation)->bytes / lh_dtype_bytes(dtype);
}

/* In place: what this rank holds of the gradients after the sum inside its site. */
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

static coll_place_t value_place(const transfers_t *t, const move_t *x, uint32_t value,
                                coll_place_t arena)
{
    const flow_t *f = x->program->flow;
    const flow_value_t *v = &f->values[value];
    const uint64_t at = f->buffers[v->buffer].offset + v->offset;
    arena.address = (char *)arena.address +
                    handover_offset(t->engine, &t->engine->arenas[ARENA_ACTIVATIONS], at);
    return arena;
}

/* In equal pieces, in the order of ranks, as the op says. */
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

static lh_status_t move_plan(planner_t *pl, move_t *x)
{
    const bool gradients = x->kind == MOVE_SUM || x->kind == MOVE_ACROSS;
    coll_how_t how = {.name = x->transfer.name,
                      .op = coll_ops[x->transfer.op],
                      .group = pl->t->group,
                      .dtype = x->transfer.dtype,
                      .add = x->transfer.add,
                      .service = gradients ? LH_SERVICE_GRADIENT : LH_SERVICE_PARAMETER};
    switch (x->kind) {
    case MOVE_ACROSS: return across_plan(pl, x, &how);
    case MOVE_RECORDED: return recorded_plan(pl, x, &how);
    default: return group_plan(pl, x, &how);
    }
}

lh_status_t transfer_plan_all(transfers_t *t, bool planned)
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

/* Before anybody connects: that no rank will wait for ever. */
static lh_status_t orders_agree(const transfers_t *t)
{
    transfer_list_t mine = {0};
    lh_status_t status = transfer_rows(t->engine, &mine.rows, &mine.count);
    if (status != LH_OK) return status;
    status = transfer_order_agree(t->world, comm_control(t->comm), &mine);
    mem_free(mine.rows);
    return status;
}

lh_status_t transfer_plan_bind(exchange_t *x)
{
    transfers_t *t = (transfers_t *)x;
    const lh_status_t status = transfer_plan_all(t, false);
    return status == LH_OK ? orders_agree(t) : status;
}
