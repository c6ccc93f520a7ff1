/* transfer_plan.c - a collective for each row of the table of transfers.
 *
 * A collective's buffers are whole allocations: a store, or an arena of the engine. Which elements
 * of them a transfer moves is said by its pieces, a list of segments for each member. So memory is
 * registered once, and gradients are sent from where they were added up.
 *
 * Where the host can't reach a device's memory, the memory's mirror travels instead
 * (engine/handover.h), and places are those of the mirror; but for gathered values where cards reach
 * the memory itself (on_reach). A job that is only planned has no memory: its addresses are made up so
 * that no two allocations overlap. */
#include <parallel/transfer_plan.h>

#include <stdio.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <engine/handover.h>
#include <longhaul/dtype.h>
#include <parallel/transfer_order.h>

/* ---- memory that links reach by themselves ----
 *
 * What is summed on its way has to be where a processor adds, in memory of the host. Gathered values are
 * only sent and received: new ones after an update, and those of block instances. Where the device shares
 * its memory and every link of their group takes such, they need no mirrors. All ranks decide alike, as
 * the offsets that plans compare are those of one memory or of the other. */

/* The address of what a rank has nothing of; behind it nothing is read. */
static char nothing[1];

static bool is_gather(const move_t *m)
{
    return !m->native && (m->kind == MOVE_VALUE_GATHER || m->kind == MOVE_INSTANCE);
}

/* One allocation, as its device shares it. The descriptor is the caller's. */
static lh_status_t reach_share(const engine_t *e, const allocation_t *of, comm_device_memory_t *out)
{
    lh_share_t share = {.struct_size = sizeof(share), .fd = -1};
    *out = (comm_device_memory_t){.base = nothing, .bytes = sizeof(nothing), .fd = -1};
    if (of->bytes == 0) return LH_OK;
    if (of->address == NULL)
        return fail(LH_UNSUPPORTED, "device %s gives no address of %s", e->how.device->name,
                    of->name);
    const lh_status_t status = e->api->share(of->memory, LH_SHARE_DMABUF, &share);
    if (status != LH_OK) return status;
    if (share.fd < 0)
        return fail(LH_ABI, "device %s shares %s and gives no descriptor", e->how.device->name,
                    of->name);
    *out = (comm_device_memory_t){of->address, of->bytes, share.fd, share.offset};
    return LH_OK;
}

/* Either way is told once, by rank 0; the run's log has it from transfers_way. */
static void reach_tell(transfers_t *t, bool taken, uint64_t spared)
{
    char size[16];
    if (taken) {
        text_bytes((double)spared, size);
        (void)snprintf(t->way, sizeof(t->way),
                       "gathered values travel in the device's own memory, by dma-buf: %s of "
                       "mirrors less",
                       size);
    } else {
        (void)snprintf(t->way, sizeof(t->way), "gathered values travel by pinned mirrors: %.300s",
                       fail_reason());
        fail_clear();
    }
    if (t->world->row.rank == 0) log_line(LH_LOG_INFO, "%s", t->way);
}

/* coll_device_t.arrived. */
static lh_status_t reach_arrived(void *engine)
{
    const engine_t *e = engine;
    return e->api->arrived(e->device);
}

/* exchange_t.reach: on all ranks or on none, whatever keeps one of them from it. */
static lh_status_t on_reach(exchange_t *x)
{
    transfers_t *t = (transfers_t *)x;
    const allocation_t *allocations[TRANSFER_REACHED] = {&t->weights->value->allocation,
                                                         &t->engine->arenas[ARENA_GATHERED]};
    const uint32_t count = t->weights->gathered ? 2 : 1;
    comm_device_memory_t memory[TRANSFER_REACHED] = {0};
    uint32_t gathers = 0, shared = 0;
    uint64_t spared = 0;
    lh_status_t mine = LH_OK;
    bool taken;
    for (uint32_t i = 0; i < t->count; i++)
        gathers += is_gather(t->list[i]);
    if (gathers == 0 || t->comm == NULL || comm_is_planned(t->comm) ||
        !handover_can_reach(t->engine))
        return LH_OK;
    while (mine == LH_OK && shared < count) {
        mine = reach_share(t->engine, allocations[shared], &memory[shared]);
        shared += mine == LH_OK;
    }
    const lh_status_t status = comm_device_arenas(t->comm, t->group, memory, count, mine,
                                                  t->reached_arenas, &taken);
    for (uint32_t i = 0; i < shared; i++)
        if (memory[i].fd >= 0) (void)close(memory[i].fd);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; taken && i < count; i++) {
        t->reached[t->reached_count++] = allocations[i];
        spared += handover_reach(t->engine, allocations[i]);
    }
    t->device = (coll_device_t){reach_arrived, t->engine};
    reach_tell(t, taken, spared);
    return LH_OK;
}

/* exchange_t.own: an instance's whole form lies apart from the store, where a rank's own part is. */
static uint64_t on_own(exchange_t *x, const transfer_t *transfer, uint32_t k, uint64_t *begin)
{
    const transfers_t *t = (transfers_t *)x;
    const move_t *m = (const move_t *)transfer;
    if (m->kind != MOVE_INSTANCE) return 0;
    lh_assert(k < m->count);
    const uint64_t wide = lh_dtype_bytes(transfer->dtype);
    const uint32_t storage = t->weights->parameters->items[m->parameters[k]].storage;
    const lh_slice_t mine = shard_shares_slice(t->shares, storage, t->group->self);
    *begin = mine.begin * wide;
    return (mine.end - mine.begin) * wide;
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
static lh_status_t registered_place(const planner_t *pl, const allocation_t *allocation,
                                    coll_place_t *out)
{
    for (uint32_t i = 0; i < pl->allocation_count; i++) {
        if (pl->allocations[i] != allocation) continue;
        *out = (coll_place_t){pl->bases[i], pl->arenas[i]};
        return LH_OK;
    }
    return fail(LH_INVALID, "memory '%s' is not registered for transfers", allocation->name);
}

/* This rank has no slice of what travels to and from the others' memory of this name. It keeps its
 * number, behind which nothing is read. */
static lh_status_t number_keep(planner_t *pl, const allocation_t *of)
{
    pl->allocations[pl->allocation_count] = of;
    pl->bases[pl->allocation_count] = nothing;
    return comm_arena(pl->t->comm, nothing, sizeof(nothing), -1, 0,
                      &pl->arenas[pl->allocation_count++]);
}

/* Registers an allocation with comm, or its mirror where the host can't reach the memory; an
 * allocation that the host can reach in neither way does not travel. A device that can gives a
 * descriptor of the memory, of a mirror too: peers on the node then map it and read in place. */
static lh_status_t allocation_share(planner_t *pl, const allocation_t *of)
{
    const engine_t *e = pl->t->engine;
    const allocation_t *allocation = handover_allocation(e, of);
    const bool mirrored = allocation != of;
    lh_assert(pl->allocation_count < TRANSFER_ALLOCATIONS);
    for (uint32_t i = 0; i < pl->t->reached_count; i++) {
        if (pl->t->reached[i] != of) continue;
        pl->allocations[pl->allocation_count] = of;
        pl->bases[pl->allocation_count] = of->bytes == 0 ? nothing : of->address;
        pl->arenas[pl->allocation_count++] = pl->t->reached_arenas[i];
        return LH_OK;
    }
    if (allocation->bytes == 0 && (e->mirror_count > 0 || pl->t->reached_count > 0 ||
                                   (e->properties.flags & LH_DEVICE_HOST_ACCESS) != 0))
        return number_keep(pl, of);
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
        share.fd = e->api->share == NULL ? -1 : 0;
    } else if (e->api->share == NULL ||
               e->api->share(allocation->memory, LH_SHARE_MEMFD, &share) != LH_OK)
        share = (lh_share_t){.fd = -1};
    if (share.fd >= 0 && !pl->planned) pl->t->shared[pl->t->shared_count++] = share.fd;
    pl->allocations[pl->allocation_count] = of;
    pl->bases[pl->allocation_count] = base;
    return comm_arena(pl->t->comm, base, allocation->bytes, share.fd, share.offset,
                      &pl->arenas[pl->allocation_count++]);
}

/* In the same order on all ranks, as they name arenas to each other by number. Activations have
 * one on ranks that record no transfer, too: others may send to each other. */
static lh_status_t allocations_share(planner_t *pl)
{
    const transfers_t *t = pl->t;
    const allocation_t *activations = &t->engine->arenas[ARENA_ACTIVATIONS];
    lh_status_t status = allocation_share(pl, &t->weights->value->allocation);
    if (status == LH_OK) status = allocation_share(pl, &t->weights->grad->allocation);
    if (status == LH_OK) status = allocation_share(pl, &t->engine->arenas[ARENA_GATHERED]);
    if (status == LH_OK) status = allocation_share(pl, &t->engine->arenas[ARENA_BUCKETS]);
    if (status == LH_OK)
        status = t->recorded ? allocation_share(pl, activations) : number_keep(pl, activations);
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
    uint64_t at = x->kind == MOVE_PARTIALS ? transfers_whole_element(t, x, 0, 0) : 0;
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
            segment = (coll_segment_t){.whole = transfers_whole_element(t, x, k, 0) + s.begin,
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

/* How sites share the work of a member's second sum: a piece for each. Segments begin where they do in the
 * member's own slice. */
static lh_status_t across_parts(const transfers_t *t, const move_t *x, uint32_t member,
                                pieces_t *out)
{
    const uint32_t ways = t->across->size;
    out->rows = mem_array(ways, sizeof(*out->rows));
    out->segments = mem_array((size_t)ways * x->count, sizeof(*out->segments));
    if (out->rows == NULL || out->segments == NULL) return LH_NO_MEMORY;
    for (uint32_t m = 0; m < ways; m++) {
        coll_segment_t *mine = &out->segments[(size_t)m * x->count];
        uint32_t count = 0;
        for (uint32_t k = 0; k < x->count; k++) {
            const uint32_t i = x->parameters[k];
            const lh_slice_t s = shard_shares_slice(t->shares, i, member);
            const lh_slice_t part = transfers_across_slice(t, i, member, m);
            if (part.end > part.begin)
                mine[count++] = (coll_segment_t){part.begin - s.begin, part.end - part.begin, 0};
        }
        out->rows[m] = (coll_piece_t){mine, count};
    }
    return LH_OK;
}

/* This rank's, where they lie. cut: its part lies in a store of its own, not in the whole form. */
static lh_status_t across_make(const planner_t *pl, const move_t *x, bool cut, pieces_t *out)
{
    const transfers_t *t = pl->t;
    const uint32_t self = t->group->self;
    const lh_status_t status = across_parts(t, x, self, out);
    for (uint32_t m = 0; status == LH_OK && m < t->across->size; m++) {
        coll_segment_t *at = &out->segments[(size_t)m * x->count];
        for (uint32_t k = 0; k < x->count; k++) {
            const uint32_t i = x->parameters[k];
            const lh_slice_t s = shard_shares_slice(t->shares, i, self);
            const lh_slice_t part = transfers_across_slice(t, i, self, m);
            if (part.end == part.begin) continue;
            at->whole += cut ? pl->grad_cuts[(size_t)i * t->group->size + self]
                             : transfers_whole_element(t, x, k, s.begin);
            at++;
        }
    }
    return status;
}

/* The collectives of a transfer (COLLECTIVE_*) as comm calls them (COLL_*). */
static const uint32_t coll_ops[COLLECTIVES] = {
    [COLLECTIVE_ALL_REDUCE] = COLL_ALL_REDUCE,
    [COLLECTIVE_REDUCE_SCATTER] = COLL_REDUCE_SCATTER,
    [COLLECTIVE_ALL_GATHER] = COLL_ALL_GATHER,
    [COLLECTIVE_ALL_TO_ALL] = COLL_ALL_TO_ALL,
    [COLLECTIVE_SEND] = COLL_SEND,
    [COLLECTIVE_RECEIVE] = COLL_RECV,
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
    lh_status_t status = registered_place(pl, &grad->allocation, &how->whole);
    if (status == LH_OK) status = across_make(pl, x, t->weights->bucketed, &pieces);
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
    const allocation_t *whole = transfers_whole(t, x);
    const uint64_t *cuts = NULL;
    pieces_t pieces = {0};
    how->elements = allocation_elements(t, whole, how->dtype);
    lh_status_t status = registered_place(pl, whole, &how->whole);
    if (t->reached_count > 0 && is_gather(x)) how->device = &t->device;
    if (status == LH_OK && x->kind == MOVE_INSTANCE) {
        cuts = pl->value_cuts;
        status = registered_place(pl, &t->weights->value->allocation, &how->cut);
    }
    if (status == LH_OK && x->kind == MOVE_SUM && t->weights->bucketed) {
        cuts = pl->grad_cuts;
        status = registered_place(pl, &t->weights->grad->allocation, &how->cut);
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
    const lh_status_t status = registered_place(pl, &pl->t->engine->arenas[x->arena], &arena);
    if (status != LH_OK) return status;
    how->whole = value_place(pl->t, x, x->values[0], arena);
    return collective_new(pl->t->comm, how, &x->plan);
}

/* A recorded collective moves equal pieces in the order of ranks, so it lists none; one end of a
 * pair moves all of its value, from or to the other. */
static lh_status_t recorded_plan(planner_t *pl, move_t *x, coll_how_t *how)
{
    coll_place_t arena = {0};
    how->group = comm_group(pl->t->comm, x->transfer.group);
    how->service = LH_SERVICE_ACTIVATION;
    how->elements = x->transfer.elements;
    if (how->group == NULL) return LH_INVALID;
    const lh_status_t status = registered_place(pl, &pl->t->engine->arenas[ARENA_ACTIVATIONS],
                                                &arena);
    if (status != LH_OK) return status;
    const bool pair = collective_is_pair(x->transfer.op);
    const bool gather = how->op == COLL_ALL_GATHER || how->op == COLL_RECV;
    how->whole = value_place(pl->t, x, x->values[gather ? 1 : 0], arena);
    if (pair) how->root = how->op == COLL_SEND ? x->transfer.to : x->transfer.from;
    if (how->op != COLL_ALL_REDUCE && !pair)
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
    const uint64_t each = x->transfer.elements / ways, at = transfers_whole_element(pl->t, x, 0, 0);
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
    transfers_native_free(&x->call);
    x->call = (lh_coll_t){.struct_size = sizeof(x->call),
                          .op = transfers_native_op(x->transfer.op),
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
    x->call.whole = allocation_place(transfers_whole(t, x), 0);
    x->call.workspace = allocation_place(&t->engine->workspace, 0);
    native_queue(comm_native(t->comm), &t->engine->exchanging_native);
    return status;
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
static lh_status_t transfers_plan_all(transfers_t *t, bool planned)
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

/* exchange_t.bind: memory is there, and nothing has run. */
static lh_status_t on_bind(exchange_t *x)
{
    transfers_t *t = (transfers_t *)x;
    if (t->comm != NULL && comm_is_planned(t->comm)) return LH_OK; /* transfer_plan has made all */
    const lh_status_t status = transfers_plan_all(t, false);
    return status == LH_OK ? orders_agree(t) : status;
}

void transfer_plan_use(transfers_t *t)
{
    t->exchange.reach = on_reach;
    t->exchange.own = on_own;
    t->exchange.bind = on_bind;
    t->exchange.native = on_native;
}

lh_status_t transfer_plan(transfers_t *t)
{
    return transfers_plan_all(t, true);
}

/* ---- what all ranks send over borders ---- */

typedef struct crossed {
    const transfers_t *t;
    const uint64_t *starts;
    uint64_t *by_rank, *between;
} crossed_t;

/* Of one group, NULL: the one that this rank's plan is of. The n-th group across sites is of their n-th
 * members. */
static lh_status_t move_crossings(const crossed_t *c, const move_t *x, const group_t *group,
                                  uint32_t n)
{
    const transfers_t *t = c->t;
    const size_t sites = t->world->row.sites;
    uint64_t *between = c->between + transfers_crossing(t, &x->transfer) * sites * sites;
    pieces_t pieces = {0};
    lh_status_t status = LH_OK;
    if (x->kind == MOVE_ACROSS) status = across_parts(t, x, n, &pieces);
    if (status == LH_OK)
        status = collective_crossings(x->plan, c->starts[x->transfer.number], group, pieces.rows,
                                      c->by_rank, between);
    pieces_free(&pieces);
    return status;
}

/* What the device makes by itself stays in a machine, and has no plan. Of pairs a rank knows its
 * own alone (transfer_plan_pairs). */
static lh_status_t group_crossings(const crossed_t *c, uint32_t kind, const group_t *group,
                                   uint32_t n)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < c->t->count; i++) {
        const move_t *x = c->t->list[i];
        if (x->plan != NULL && x->transfer.group == kind && c->starts[i] > 0 &&
            !collective_is_pair(x->transfer.op))
            status = move_crossings(c, x, group, n);
    }
    return status;
}

/* The groups across sites (or machines), of which each of the first one's ranks is in another. */
static lh_status_t across_crossings(const crossed_t *c)
{
    world_t seen = *c->t->world;
    lh_status_t status = LH_OK;
    uint32_t n = 0;
    for (uint32_t r = 0; status == LH_OK && r < seen.row.size; r++) {
        group_t *group;
        if (world_block(&seen, r) != 0) continue;
        seen.row.rank = r;
        status = world_group_new(&seen, LH_GROUP_ACROSS, &group);
        if (status != LH_OK) break;
        status = group_crossings(c, LH_GROUP_ACROSS, group, n++);
        world_group_free(group);
    }
    return status;
}

uint64_t transfer_plan_pairs(const transfers_t *t, const uint64_t *starts)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->count; i++)
        if (collective_is_pair(t->list[i]->transfer.op))
            bytes += starts[i] * transfers_border_bytes(t, &t->list[i]->transfer);
    return bytes;
}

/* Groups of a site's ranks cross nothing. */
lh_status_t transfer_plan_crossings(const transfers_t *t, const uint64_t *starts, uint64_t *by_rank,
                                    uint64_t *between)
{
    const crossed_t c = {t, starts, by_rank, between};
    bool across = false;
    for (uint32_t i = 0; i < t->count; i++)
        across |= t->list[i]->transfer.group == LH_GROUP_ACROSS;
    const lh_status_t status = group_crossings(&c, LH_GROUP_DATA, NULL, 0);
    return status == LH_OK && across ? across_crossings(&c) : status;
}
