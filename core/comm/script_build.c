/* script_build.c - parts of a script: units of pieces, steps, edges, staging slots.
 *
 * A piece is cut into units, each of at most a chunk. Small chunks let sums begin before all is
 * there and keep several messages under way, large ones cost fewer steps and fewer turns;
 * comm_agree.c chooses. Small segments are joined until a message carries at least 32 KiB; what is
 * larger is sent from where it lies, and so is all of a device's memory, where nobody could join.
 *
 * Steps are only appended, and an edge goes from an earlier step to a later one wherever two steps
 * of one rank depend on each other. A script of one rank therefore has no circle; that scripts of
 * all ranks together have none is due to their common order, and tests play them against each
 * other. */
#include <comm/script_build.h>

#include <base/memory.h>
#include <comm/quantize.h>
#include <longhaul/dtype.h>

enum { JOIN_BYTES = 32 << 10, SLOT_ALIGN = 64, MOST_STEPS = 1 << 26 };

/* Room for one more item. After the first failure nothing is added any more; the reason is kept for
 * script_new to return. Over MOST_STEPS items the chunks are refused as too small. */
static bool builder_grow(builder_t *b, void **items, size_t *capacity, uint32_t count, size_t size)
{
    if (b->failed) return false;
    void *bigger = count >= MOST_STEPS ? NULL : mem_grow(*items, capacity, (size_t)count + 1, size);
    if (bigger == NULL) {
        if (count >= MOST_STEPS)
            (void)fail(LH_NO_MEMORY, "'%s' has over %d steps: take larger chunks", b->how->name,
                       MOST_STEPS);
        b->failed = true;
        return false;
    }
    *items = bigger;
    return true;
}

/* The step's index, or SCRIPT_NONE. */
static uint32_t new_step(builder_t *b, uint32_t kind)
{
    script_t *s = b->s;
    void *items = s->steps;
    if (!builder_grow(b, &items, &b->step_capacity, s->step_count, sizeof(*s->steps)))
        return SCRIPT_NONE;
    s->steps = items;
    s->steps[s->step_count] = (script_step_t){.kind = kind};
    return s->step_count++;
}

void build_edge(builder_t *b, uint32_t before, uint32_t after)
{
    if (before == SCRIPT_NONE || after == SCRIPT_NONE) return;
    lh_assert(before < after && after < b->s->step_count);
    void *items = b->edges;
    if (!builder_grow(b, &items, &b->edge_capacity, b->edge_count, sizeof(*b->edges))) return;
    b->edges = items;
    b->edges[b->edge_count++] = (build_edge_t){before, after};
}

/* Bytes of the largest unit, and of all, in a dtype; those in blocks have their scales. */
static uint64_t most_bytes(const builder_t *b, lh_dtype_t dtype)
{
    if (b->part == LH_DTYPE_I8 && dtype == LH_DTYPE_I8) return b->most_packed;
    return b->most_elements * lh_dtype_bytes(dtype);
}

/* A long link holds `window` bytes, however small the units are: a pool of fewer would keep what
 * comes behind waiting. Slots are counted as units of the average length. */
static bool is_deep(const builder_t *b, const build_pool_t *p, lh_dtype_t dtype)
{
    if (p->count < b->in->depth) return false;
    return (double)p->count * (double)b->elements * (double)lh_dtype_bytes(dtype) >=
           (double)b->in->window * b->unit_count;
}

static build_pool_t *pool_of(const builder_t *b, uint32_t pool, uint32_t peer, lh_dtype_t dtype)
{
    uint32_t wide = 0;
    while (lh_dtype_bytes(dtype) >> wide > 1)
        wide++;
    lh_assert(pool < POOLS && peer < b->g->size && wide < POOL_SIZES);
    return &b->pools[((size_t)peer * POOLS + pool) * POOL_SIZES + wide];
}

/* Slots are taken in turn, the one that was taken longest ago first. A slot can be taken again only
 * if the step that reads it last is known by now: else the pool gets one more, beyond its depth,
 * since the unit that has the slot and the one that wants it would wait for each other. */
uint32_t build_slot(builder_t *b, uint32_t pool, uint32_t peer, lh_dtype_t dtype, uint64_t bytes,
                    script_view_t *view)
{
    build_pool_t *p = pool_of(b, pool, peer, dtype);
    uint32_t slot = SCRIPT_NONE;
    if (is_deep(b, p, dtype)) slot = p->slots[p->turn % p->count];
    if (slot != SCRIPT_NONE && b->slots[slot].last != SCRIPT_NONE) {
        p->turn = (p->turn + 1) % p->count;
    } else {
        void *items = b->slots;
        if (!builder_grow(b, &items, &b->slot_capacity, b->slot_count, sizeof(*b->slots)))
            return SCRIPT_NONE;
        b->slots = items;
        items = p->slots;
        if (!builder_grow(b, &items, &p->capacity, p->count, sizeof(*p->slots))) return SCRIPT_NONE;
        p->slots = items;
        slot = b->slot_count++;
        p->slots[p->count++] = slot;
        uint64_t size = most_bytes(b, dtype);
        if (bytes > size) size = bytes;
        b->slots[slot] = (build_slot_t){.at = b->s->staging_bytes, .last = SCRIPT_NONE};
        b->s->staging_bytes += (size + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    }
    *view = (script_view_t){
        .buffer = BUFFER_STAGING, .layout = LAYOUT_PACKED, .dtype = dtype, .at = b->slots[slot].at};
    return slot;
}

void build_slot_use(builder_t *b, uint32_t slot, uint32_t step)
{
    if (slot == SCRIPT_NONE || step == SCRIPT_NONE) return;
    lh_assert(slot < b->slot_count);
    build_edge(b, b->slots[slot].last, step);
    b->slots[slot].last = SCRIPT_NONE;
}

void build_slot_end(builder_t *b, uint32_t slot, uint32_t step)
{
    lh_assert(slot == SCRIPT_NONE || slot < b->slot_count);
    if (slot != SCRIPT_NONE) b->slots[slot].last = step;
}

script_view_t build_whole(const builder_t *b)
{
    return (script_view_t){.buffer = BUFFER_WHOLE, .layout = LAYOUT_WHOLE, .dtype = b->how->dtype};
}

script_view_t build_cut(const builder_t *b)
{
    if (b->how->cut.address == NULL) return build_whole(b);
    return (script_view_t){.buffer = BUFFER_CUT, .layout = LAYOUT_CUT, .dtype = b->how->dtype};
}

/* The label becomes the tag. finish_lanes adds the message's place on its lane to it. */
uint32_t build_message(builder_t *b, uint32_t peer, bool sending, const script_view_t *view,
                       uint64_t bytes, uint32_t after)
{
    lh_assert(peer < b->g->size);
    const uint32_t id = new_step(b, sending ? STEP_SEND : STEP_RECV);
    if (id == SCRIPT_NONE) return id;
    script_step_t *step = &b->s->steps[id];
    step->peer = peer;
    step->to = *view;
    step->bytes = bytes;
    step->tag = b->label;
    step->answers = b->answers;
    build_edge(b, after, id);
    return id;
}

uint32_t build_signal(builder_t *b, uint32_t peer, bool sending, uint32_t after)
{
    /* Nothing travels, but it must lie in memory that links know. */
    const script_view_t nothing = {.buffer = BUFFER_STAGING, .dtype = b->how->dtype};
    return build_message(b, peer, sending, &nothing, 0, after);
}

/* A SUM or COPY of all runs of a unit; its sources stand side by side in script_t.views. */
static uint32_t new_compute(builder_t *b, uint32_t kind, const build_unit_t *u,
                            const script_view_t *to, const script_view_t *sources, uint32_t count)
{
    const uint32_t id = new_step(b, kind);
    if (id == SCRIPT_NONE) return id;
    script_t *s = b->s;
    script_step_t *step = &s->steps[id];
    step->to = *to;
    step->run = u->run;
    step->run_count = u->run_count;
    step->source = s->view_count;
    step->source_count = count;
    if (count > s->most_sources) s->most_sources = count;
    for (uint32_t i = 0; i < count; i++) {
        void *items = s->views;
        if (!builder_grow(b, &items, &b->view_capacity, s->view_count, sizeof(*s->views)))
            return SCRIPT_NONE;
        s->views = items;
        s->views[s->view_count++] = sources[i];
    }
    return id;
}

uint32_t build_copy(builder_t *b, const build_unit_t *u, const script_view_t *to,
                    const script_view_t *from)
{
    return new_compute(b, STEP_COPY, u, to, from, 1);
}

uint32_t build_sum(builder_t *b, const build_unit_t *u, const script_view_t *to, bool add,
                   const script_view_t *sources, uint32_t count)
{
    const uint32_t id = new_compute(b, STEP_SUM, u, to, sources, count);
    if (id != SCRIPT_NONE) b->s->steps[id].add = add;
    return id;
}

/* A copy of no runs. */
uint32_t build_join(builder_t *b)
{
    const build_unit_t nothing = {0};
    const script_view_t view = {.buffer = BUFFER_STAGING, .dtype = b->how->dtype};
    return build_copy(b, &nothing, &view, &view);
}

/* Whether the unit is contiguous in that view, and as it travels: then the message needs no staging
 * at this end. The other end may see it in another layout and pack or unpack it by itself. */
static bool is_message(const build_unit_t *u, const script_view_t *view, lh_dtype_t wire)
{
    if (wire != 0 && wire != view->dtype) return false;
    return u->run_count == 1 || view->layout == LAYOUT_PACKED || view->layout == LAYOUT_PIECE;
}

static uint64_t packed_bytes(const builder_t *b, const build_unit_t *u)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < u->run_count; i++)
        bytes += quantize_bytes(b->s->runs[u->run + i].count);
    return bytes;
}

/* The bytes are those of the dtype that travels: F32 for a sum on its way, the border's where it
 * crosses one and there is one, else the collective's own. */
static uint32_t unit_message(builder_t *b, uint32_t peer, bool sending, const build_unit_t *u,
                             const script_view_t *view, uint32_t after)
{
    const bool blocks = b->part == LH_DTYPE_I8 && view->dtype == LH_DTYPE_I8;
    const uint64_t bytes = blocks ? packed_bytes(b, u) : u->elements * lh_dtype_bytes(view->dtype);
    const uint32_t id = build_message(b, peer, sending, view, bytes, after);
    if (id == SCRIPT_NONE) return id;
    b->s->steps[id].run = u->run;
    b->s->steps[id].run_count = 1; /* where it begins; what follows is behind it */
    return id;
}

/* Returns the step after which this rank's copy of the unit may be written again. */
uint32_t build_send(builder_t *b, uint32_t to, const build_unit_t *u, const script_view_t *view,
                    lh_dtype_t wire, uint32_t after)
{
    if (is_message(u, view, wire)) return unit_message(b, to, true, u, view, after);
    script_view_t packed;
    const uint32_t slot = build_slot(b, POOL_OUT, to, wire != 0 ? wire : view->dtype, 0, &packed);
    const uint32_t copy = build_copy(b, u, &packed, view);
    build_edge(b, after, copy);
    build_slot_use(b, slot, copy);
    const uint32_t sent = unit_message(b, to, true, u, &packed, copy);
    build_slot_end(b, slot, sent);
    return sent;
}

/* Returns the step after which the unit is in the view. `after` guards what was in the view before:
 * a message that lands there directly waits for it; one that lands in staging does not, and its
 * copy does. */
uint32_t build_recv(builder_t *b, uint32_t from, const build_unit_t *u, const script_view_t *view,
                    lh_dtype_t wire, uint32_t after)
{
    if (is_message(u, view, wire)) return unit_message(b, from, false, u, view, after);
    script_view_t packed;
    const uint32_t slot = build_slot(b, POOL_IN, from, wire != 0 ? wire : view->dtype, 0, &packed);
    const uint32_t received = unit_message(b, from, false, u, &packed, SCRIPT_NONE);
    build_slot_use(b, slot, received);
    const uint32_t copy = build_copy(b, u, view, &packed);
    build_edge(b, received, copy);
    build_edge(b, after, copy);
    build_slot_end(b, slot, copy);
    return copy;
}

bool build_mapped(const builder_t *b, uint32_t peer)
{
    lh_assert(peer < b->g->size);
    return b->in->peers != NULL && b->in->peers[peer].mapped;
}

/* For give_back: the signal to the member waits for the last of these steps. */
void build_reads(builder_t *b, uint32_t peer, uint32_t step)
{
    lh_assert(peer < b->g->size);
    /* An edge from each read to the next one makes the last stand for all. */
    build_edge(b, b->joined[peer], step);
    b->joined[peer] = step;
}

/* The two lists that units are made of; see add_elements. */
static bool add_run(builder_t *b, const script_run_t *run)
{
    void *items = b->s->runs;
    if (!builder_grow(b, &items, &b->run_capacity, b->s->run_count, sizeof(*b->s->runs)))
        return false;
    b->s->runs = items;
    b->s->runs[b->s->run_count++] = *run;
    return true;
}

static bool new_unit(builder_t *b)
{
    void *items = b->units;
    if (!builder_grow(b, &items, &b->unit_capacity, b->unit_count, sizeof(*b->units))) return false;
    b->units = items;
    b->units[b->unit_count++] = (build_unit_t){.run = b->s->run_count,
                                               .ready = SCRIPT_NONE,
                                               .used = SCRIPT_NONE,
                                               .carry_step = SCRIPT_NONE,
                                               .carry_slot = SCRIPT_NONE};
    return true;
}

/* Small segments share a message; what is large is sent from where it lies. A segment that is
 * longer than `most` goes on in the next unit. Takes what it adds off the front of *run. */
static bool add_elements(builder_t *b, uint32_t first_unit, script_run_t *run, uint64_t most)
{
    build_unit_t *u = b->unit_count > first_unit ? &b->units[b->unit_count - 1] : NULL;
    const uint64_t join = b->how->device != NULL ? 0 : JOIN_BYTES / b->element_bytes;
    if (u == NULL || u->elements >= join || run->count >= join || u->elements + run->count > most) {
        if (!new_unit(b)) return false;
        u = &b->units[b->unit_count - 1];
    }
    script_run_t part = *run;
    if (part.count > most) part.count = most;
    part.packed = u->elements;
    if (!add_run(b, &part)) return false;
    u->run_count++;
    u->elements += part.count;
    b->elements += part.count;
    if (u->elements > b->most_elements) b->most_elements = u->elements;
    run->offset += part.count;
    run->piece += part.count;
    run->error += part.count;
    run->count -= part.count;
    return true;
}

/* Elements of a full unit. A multiple of BUILD_ALIGN where the chunk allows: units then begin on
 * whole cache lines if their segment does. Where parts are packed, whole blocks, counted from the
 * start of a segment: so blocks, and with them bits, don't depend on the chunk. */
static uint64_t unit_elements(const builder_t *b)
{
    const uint64_t align = b->part == LH_DTYPE_I8 ? QUANTIZE_BLOCK : BUILD_ALIGN;
    uint64_t most = b->in->chunk_bytes / b->element_bytes;
    if (most > align) most -= most % align;
    if (b->part == LH_DTYPE_I8 && most < align) most = align;
    return most == 0 ? 1 : most;
}

/* Units of piece o are unit_begin[o] to unit_begin[o + 1]. Segments are numbered over all pieces, as
 * script_places_t.segments has them. Errors are of the pieces for whose owners this rank packs. */
static bool cut_units(builder_t *b)
{
    const uint64_t most = unit_elements(b);
    uint64_t error = 0;
    uint32_t segment = 0;
    for (uint32_t o = 0; o < b->g->size; o++) {
        b->unit_begin[o] = b->unit_count;
        const bool packs = b->part == LH_DTYPE_I8 &&
                           world_group_leader(b->g, b->g->site_of[b->self], o) == b->self;
        uint64_t piece = 0;
        for (uint32_t i = 0; b->how->pieces != NULL && i < b->how->pieces[o].count; i++) {
            const uint64_t count = b->how->pieces[o].segments[i].count;
            script_run_t run = {
                .segment = segment++, .piece = piece, .error = packs ? error : 0, .count = count};
            piece += count;
            if (packs) error += count;
            while (run.count > 0)
                if (!add_elements(b, b->unit_begin[o], &run, most)) return false;
        }
        const uint32_t count = b->unit_count - b->unit_begin[o];
        if (count > b->most_units) b->most_units = count;
    }
    b->unit_begin[b->g->size] = b->unit_count;
    b->s->error_elements = error;
    return true;
}

/* A barrier has no elements and no units. */
lh_status_t build_open(builder_t *b, const script_how_t *in, script_t *s)
{
    const uint32_t size = in->how->group->size;
    *b = (builder_t){.in = in,
                     .how = in->how,
                     .g = in->how->group,
                     .self = in->how->group->self,
                     .part = script_part(in->how),
                     .border = script_border(in->how),
                     .element_bytes = lh_dtype_bytes(in->how->dtype),
                     .s = s};
    b->unit_begin = mem_array((size_t)size + 1, sizeof(*b->unit_begin));
    b->pools = mem_array((size_t)size * POOLS * POOL_SIZES, sizeof(*b->pools));
    b->lent = mem_array(size, sizeof(*b->lent));
    b->joined = mem_array(size, sizeof(*b->joined));
    if (b->unit_begin == NULL || b->pools == NULL || b->lent == NULL || b->joined == NULL)
        return LH_NO_MEMORY;
    for (uint32_t i = 0; i < size; i++)
        b->joined[i] = SCRIPT_NONE;
    if (in->how->op != COLL_BARRIER && !cut_units(b)) return LH_NO_MEMORY;
    for (uint32_t i = 0; b->part == LH_DTYPE_I8 && i < b->unit_count; i++) {
        const uint64_t bytes = packed_bytes(b, &b->units[i]);
        if (bytes > b->most_packed) b->most_packed = bytes;
    }
    return LH_OK;
}

void build_close(builder_t *b)
{
    for (uint32_t i = 0; b->pools != NULL && i < b->g->size * POOLS * POOL_SIZES; i++)
        mem_free(b->pools[i].slots);
    mem_free(b->pools);
    mem_free(b->edges);
    mem_free(b->units);
    mem_free(b->unit_begin);
    mem_free(b->slots);
    mem_free(b->lent);
    mem_free(b->joined);
}

/* Members may have their memory back when all who read it in place have said so: a member that has
 * read sends a signal after its last read, and the owner's run is not done before it has come.
 * Every rank goes through the readers in the same order and makes its own half of each pair. */
static void give_back(builder_t *b)
{
    b->answers = coll_op_is_pair(b->how->op);
    for (uint32_t reader = 0; reader < b->g->size; reader++) {
        if (reader != b->self && b->lent[reader]) (void)build_signal(b, reader, false, SCRIPT_NONE);
        for (uint32_t owner = 0; reader == b->self && owner < b->g->size; owner++)
            if (owner != b->self && b->joined[owner] != SCRIPT_NONE)
                (void)build_signal(b, owner, true, b->joined[owner]);
    }
}

/* Edges sorted by the step that they begin at: counts first, then the start of each list, then the
 * lists. next_count is counted twice, as it serves as the place to write at in between. */
static lh_status_t finish_edges(builder_t *b)
{
    script_t *s = b->s;
    s->next = mem_array(b->edge_count, sizeof(*s->next));
    if (s->next == NULL) return LH_NO_MEMORY;
    s->next_count = b->edge_count;
    for (uint32_t i = 0; i < b->edge_count; i++) {
        s->steps[b->edges[i].before].next_count++;
        s->steps[b->edges[i].after].needs++;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->step_count; i++) {
        s->steps[i].next = at;
        at += s->steps[i].next_count;
        s->steps[i].next_count = 0;
    }
    for (uint32_t i = 0; i < b->edge_count; i++) {
        script_step_t *before = &s->steps[b->edges[i].before];
        s->next[before->next + before->next_count++] = b->edges[i].after;
    }
    return LH_OK;
}

/* Steps that no other step starts: the run puts them on its heap by itself. Messages need no such
 * list, as lanes are looked at anyway. */
static lh_status_t finish_first(builder_t *b)
{
    script_t *s = b->s;
    s->first = mem_array(s->step_count, sizeof(*s->first));
    if (s->first == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < s->step_count; i++)
        if (s->steps[i].kind >= STEP_SUM && s->steps[i].needs == 0) s->first[s->first_count++] = i;
    return LH_OK;
}

static bool step_travels(const script_step_t *step)
{
    return step->kind == STEP_SEND || step->kind == STEP_RECV;
}

/* Where the lane of a message is counted: [peer][answers][sending]. */
static uint32_t lane_place(uint32_t peer, bool answers, bool sending)
{
    return peer * 4 + answers * 2u + sending;
}

static uint32_t step_lane(const script_step_t *step)
{
    return lane_place(step->peer, step->answers, step->kind == STEP_SEND);
}

/* Sorts messages by link and direction, answers apart; inside a lane they stay in the order in which
 * they were made. The tag then tells apart messages of one lane that carry the same unit. Only a
 * script of a pair has answers, and one peer: never more lanes than two a member. */
static lh_status_t finish_lanes(builder_t *b)
{
    script_t *s = b->s;
    const uint32_t size = b->g->size;
    uint32_t *counts = mem_array((size_t)size * 4, sizeof(*counts));
    s->lanes = mem_array((size_t)size * 2, sizeof(*s->lanes));
    s->order = mem_array(s->step_count, sizeof(*s->order));
    if (counts == NULL || s->lanes == NULL || s->order == NULL) {
        mem_free(counts);
        return LH_NO_MEMORY;
    }
    for (uint32_t i = 0; i < s->step_count; i++)
        if (step_travels(&s->steps[i])) counts[step_lane(&s->steps[i])]++;
    /* Lanes that receive come first: a receive that waits for the peer's message spares it a round
     * trip (links.h). */
    for (uint32_t k = 0, at = 0; k < size * 4; k++) {
        const bool sending = k / size >= 2, answers = k / size % 2 == 1;
        const uint32_t lane = lane_place(k % size, answers, sending);
        if (counts[lane] == 0) continue;
        lh_assert(s->lane_count < size * 2);
        s->lanes[s->lane_count++] = (script_lane_t){
            .peer = k % size, .sending = sending, .answers = answers, .first = at};
        at += counts[lane];
        counts[lane] = s->lane_count; /* from here on: which lane, from 1 */
    }
    for (uint32_t i = 0; i < s->step_count; i++) {
        script_step_t *step = &s->steps[i];
        if (!step_travels(step)) continue;
        script_lane_t *lane = &s->lanes[counts[step_lane(step)] - 1];
        step->tag = step->tag * 31 + lane->count;
        lane->bytes += step->bytes;
        s->order[lane->first + lane->count++] = i;
        s->message_count++;
    }
    mem_free(counts);
    return LH_OK;
}

lh_status_t build_finish(builder_t *b)
{
    give_back(b);
    if (b->failed) return LH_NO_MEMORY;
    lh_status_t status = finish_edges(b);
    if (status == LH_OK) status = finish_first(b);
    return status == LH_OK ? finish_lanes(b) : status;
}
