/* transfer_plan.c - plans a collective for every ticket, once memory is there. */
#include <parallel/transfers_state.h>

#include <base/memory.h>
#include <tensor/dtype.h>

enum { PLANNED_BASE = 4096 };

typedef struct planner {
    transfers_t *t;
    /* Memory whose bytes travel, registered once. */
    const region_t *regions[TRANSFER_REGIONS];
    char *bases[TRANSFER_REGIONS];
    uint32_t arenas[TRANSFER_REGIONS];
    uint32_t region_count;
    /* There is no memory: any addresses will do that differ, as nothing is read there. */
    bool planned;
    uintptr_t planned_end;
    uint64_t *value_cuts, *grad_cuts; /* [parameters][members] element offsets into their owner's */
} planner_t;

static lh_status_t place_of(const planner_t *pl, const region_t *region, coll_place_t *out)
{
    for (uint32_t i = 0; i < pl->region_count; i++) {
        if (pl->regions[i] != region) continue;
        *out = (coll_place_t){pl->bases[i], pl->arenas[i]};
        return LH_OK;
    }
    return fail(LH_INVALID, "memory '%s' is not registered for transfers", region->name);
}

static lh_status_t region_share(planner_t *pl, const region_t *region)
{
    const engine_t *e = pl->t->engine;
    if (region->bytes == 0) return LH_OK;
    if ((region->address == NULL && !pl->planned) ||
        (e->properties.flags & LH_DEVICE_HOST_ACCESS) == 0)
        return fail(LH_UNSUPPORTED,
                    "device %s keeps %s where the host can't reach them; transfers from there are "
                    "not built",
                    e->how.device->name, region->name);
    lh_share_t share = {.struct_size = sizeof(share), .fd = -1};
    char *base = region->address;
    if (pl->planned) {
        base = (char *)pl->planned_end;
        pl->planned_end += (region->bytes / PLANNED_BASE + 1) * PLANNED_BASE;
        share.fd = e->api->share == NULL ? -1 : 0;
    } else if (e->api->share == NULL ||
               e->api->share(region->memory, LH_SHARE_MEMFD, &share) != LH_OK)
        share = (lh_share_t){.fd = -1};
    if (share.fd >= 0 && !pl->planned) pl->t->shared[pl->t->shared_count++] = share.fd;
    pl->regions[pl->region_count] = region;
    pl->bases[pl->region_count] = base;
    return comm_arena(pl->t->comm, base, region->bytes, share.fd, share.offset,
                      &pl->arenas[pl->region_count++]);
}

static lh_status_t regions_share(planner_t *pl)
{
    const transfers_t *t = pl->t;
    lh_status_t status = region_share(pl, &t->weights->value->region);
    if (status == LH_OK) status = region_share(pl, &t->weights->grad->region);
    if (status == LH_OK) status = region_share(pl, &t->engine->arenas[ARENA_GATHERED]);
    if (status == LH_OK) status = region_share(pl, &t->engine->arenas[ARENA_BUCKETS]);
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
        region_t walk = {.name = store->name};
        for (uint32_t i = 0; i < count; i++) {
            if (!store->pieces[i].present) continue;
            const lh_slice_t s = shares_slice(t->shares, i, m);
            const uint64_t wide = dtype_bytes(store->pieces[i].dtype);
            uint64_t offset;
            const lh_status_t status = region_take(&walk, (s.end - s.begin) * wide,
                                                   engine_alignment(t->engine), &offset);
            if (status != LH_OK) return status;
            cuts[(size_t)i * ways + m] = offset / wide;
            if (m == t->group->self && offset != store->pieces[i].offset)
                return fail(LH_INVALID, "the slices of %s are not laid out as others expect",
                            store->name);
        }
    }
    return LH_OK;
}

static const region_t *whole_region(const transfers_t *t, const transfer_t *x)
{
    if (x->program != NULL) return &t->engine->arenas[x->arena];
    return x->kind == TRANSFER_SUM ? &t->weights->grad->region : &t->weights->value->region;
}

static lh_dtype_t dtype_of(const transfers_t *t, const transfer_t *x)
{
    return x->kind == TRANSFER_SUM || x->kind == TRANSFER_PARTIALS ? t->weights->accumulate
                                                                   : t->weights->compute;
}

/* First element of the k-th parameter in the whole form. */
static uint64_t whole_at(const transfers_t *t, const transfer_t *x, uint32_t k)
{
    const uint64_t wide = dtype_bytes(dtype_of(t, x));
    if (x->program != NULL) {
        const flow_value_t *v = &x->program->flow->values[x->values[k]];
        return (x->program->flow->buffers[v->buffer].offset + v->offset) / wide;
    }
    const store_t *store = x->kind == TRANSFER_SUM ? t->weights->grad : t->weights->value;
    return store->pieces[x->parameters[k]].offset / wide;
}

static uint64_t blocks(uint64_t elements)
{
    return (elements + LH_NORM_BLOCK - 1) / LH_NORM_BLOCK;
}

/* A member's segments of a transfer. */
static uint32_t segments_of(const planner_t *pl, const transfer_t *x, uint32_t member,
                            const uint64_t *cuts, coll_segment_t *out)
{
    const transfers_t *t = pl->t;
    const parameters_t *p = t->weights->parameters;
    uint32_t count = 0;
    uint64_t at = x->kind == TRANSFER_PARTIALS ? whole_at(t, x, 0) : 0;
    const uint32_t all = x->kind == TRANSFER_PARTIALS ? p->count : x->count;
    for (uint32_t k = 0; k < all; k++) {
        const uint32_t i = x->kind == TRANSFER_PARTIALS ? k : x->parameters[k];
        if (x->kind == TRANSFER_PARTIALS && !transfers_is_updated(t, i)) continue;
        const uint32_t storage = p->items[i].storage;
        const lh_slice_t s = shares_slice(t->shares, storage, member);
        coll_segment_t segment;
        if (x->kind == TRANSFER_PARTIALS) {
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

static lh_status_t pieces_make(const planner_t *pl, const transfer_t *x, const uint64_t *cuts,
                               pieces_t *out)
{
    const transfers_t *t = pl->t;
    const uint32_t ways = t->group->size;
    const uint32_t room = x->kind == TRANSFER_PARTIALS ? t->weights->parameters->count : x->count;
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
static lh_status_t across_make(const planner_t *pl, const transfer_t *x, const group_t *across,
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

static lh_status_t across_plan(planner_t *pl, transfer_t *x, const coll_how_t *sum)
{
    transfers_t *t = pl->t;
    const bool cut = sum->cut.address != NULL;
    pieces_t pieces = {0};
    coll_how_t how = *sum;
    how.op = COLL_ALL_REDUCE;
    how.group = t->across;
    how.add = false;
    if (cut) how.whole = sum->cut;
    how.cut = (coll_place_t){0};
    how.elements = t->weights->grad->region.bytes / dtype_bytes(sum->dtype);
    how.after = x->later != NULL ? x->later : x->first;
    lh_status_t status = across_make(pl, x, t->across, cut, &pieces);
    how.pieces = pieces.rows;
    if (status == LH_OK) status = collective_new(t->comm, &how, &x->across);
    pieces_free(&pieces);
    return status;
}

static lh_status_t sum_plan(planner_t *pl, transfer_t *x, coll_how_t *how)
{
    transfers_t *t = pl->t;
    const optimizer_tables_t *tables = &t->tables;
    const bool bucketed = x->program != NULL;
    how->op = optimizer_tables_is_cut(tables, tables->grad) ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE;
    lh_status_t status = LH_OK;
    if (bucketed) status = place_of(pl, &t->weights->grad->region, &how->cut);
    if (status == LH_OK) status = collective_new(t->comm, how, &x->first);
    if (status == LH_OK && bucketed && t->micro_batches > 1) {
        coll_how_t later = *how;
        later.add = true;
        status = collective_new(t->comm, &later, &x->later);
    }
    if (status == LH_OK && tables->across != TABLE_MOVES) status = across_plan(pl, x, how);
    return status;
}

static lh_status_t transfer_plan(planner_t *pl, transfer_t *x)
{
    transfers_t *t = pl->t;
    const region_t *whole = whole_region(t, x);
    const bool bucketed = x->kind == TRANSFER_SUM && x->program != NULL;
    const uint64_t *cuts = x->kind == TRANSFER_VISIT ? pl->value_cuts
                           : bucketed                ? pl->grad_cuts
                                                     : NULL;
    pieces_t pieces = {0};
    coll_how_t how = {.name = x->name,
                      .op = COLL_ALL_GATHER,
                      .group = t->group,
                      .dtype = dtype_of(t, x),
                      .elements = whole->bytes / dtype_bytes(dtype_of(t, x)),
                      .service = x->kind == TRANSFER_SUM ? LH_SERVICE_GRADIENT
                                                         : LH_SERVICE_PARAMETER};
    lh_status_t status = place_of(pl, whole, &how.whole);
    if (status == LH_OK) status = pieces_make(pl, x, cuts, &pieces);
    how.pieces = pieces.rows;
    if (status == LH_OK && x->kind == TRANSFER_VISIT)
        status = place_of(pl, &t->weights->value->region, &how.cut);
    if (status == LH_OK)
        status = x->kind == TRANSFER_SUM ? sum_plan(pl, x, &how)
                                         : collective_new(t->comm, &how, &x->first);
    pieces_free(&pieces);
    return status;
}

static lh_status_t tickets_plan(transfers_t *t, bool planned)
{
    planner_t pl = {.t = t, .planned = planned, .planned_end = PLANNED_BASE};
    if (t->comm == NULL)
        return fail(LH_INVALID, "these ranks are planned only; nothing connects them");
    lh_status_t status = regions_share(&pl);
    if (status == LH_OK && t->exchange.value != NULL)
        status = cuts_lay(t, t->weights->value, &pl.value_cuts);
    if (status == LH_OK && t->exchange.gradient != NULL)
        status = cuts_lay(t, t->weights->grad, &pl.grad_cuts);
    for (uint32_t i = 0; status == LH_OK && i < t->count; i++)
        status = transfer_plan(&pl, t->list[i]);
    mem_free(pl.value_cuts);
    mem_free(pl.grad_cuts);
    return status;
}

lh_status_t transfers_build(exchange_t *x)
{
    return tickets_plan((transfers_t *)x, false);
}

lh_status_t transfers_plan(transfers_t *t)
{
    return tickets_plan(t, true);
}
