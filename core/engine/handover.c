/* handover.c - between a device's queues and the thread that drives transfers.
 *
 * Three parts: mirrors of what travels; planning, in which each transfer gets its words, events
 * and copies; and what happens in a step. In a step a start and a wait each have three forms, by
 * how the list runs: launched (queued_), captured (captured_), and replayed (replay_). */
#include <engine/handover.h>

#include <stdatomic.h>
#include <stdlib.h>

#include <base/memory.h>

enum { WORD_BYTES = 64 }; /* a word has a cache line to itself */

/* Whether the host may work in the device's memory as soon as a launch returns: then there is
 * nothing to hand over. */
static bool is_direct(const engine_t *e)
{
    const uint32_t both = LH_DEVICE_SYNCHRONOUS | LH_DEVICE_HOST_ACCESS;
    return (e->properties.flags & both) == both;
}

/* Whether a stream can hold until the host sets a word. If not, the host itself waits for what
 * comes. */
static bool awaits_words(const engine_t *e)
{
    return (e->properties.flags & LH_DEVICE_WORDS) != 0 && e->api->await != NULL;
}

/* Whether a stream may hold for the end of a transfer that is started now. Outside of lists nobody knows
 * what else will be loaded before it ends, and who starts one there waits for it at once. */
static bool holds_streams(const engine_t *e)
{
    return awaits_words(e) && e->loaded;
}

/* The allocation or the arena in which a value lies. */
static const allocation_t *allocation_of(const engine_t *e, const flow_t *f, uint32_t value)
{
    lh_assert(value > 0 && value < f->value_count);
    const flow_buffer_t *buffer = &f->buffers[f->values[value].buffer];
    return buffer->allocation != NULL ? buffer->allocation : &e->arenas[buffer->arena];
}

/* Whether the host works in mirrors of the device's memory, or cards in the memory itself. */
static bool is_out_of_reach(const engine_t *e)
{
    return (e->properties.flags & LH_DEVICE_HOST_ACCESS) == 0;
}

bool handover_can_reach(const engine_t *e)
{
    return is_out_of_reach(e) && awaits_words(e) && e->api->share != NULL &&
           e->api->arrived != NULL;
}

/* A replay can't ask the host for events, so the device must both await words and set them. */
bool handovers_capture(const engine_t *e)
{
    return engine_captures(e) && !is_direct(e) && !e->exchanges && awaits_words(e) &&
           e->api->signal != NULL;
}

/* ---- mirrors ---- */

/* The mirror of an allocation; NULL: none. There are few: of stores and arenas that travel. */
static mirror_t *mirror_find(const engine_t *e, const allocation_t *allocation)
{
    for (uint32_t i = 0; i < e->mirror_count; i++)
        if (e->mirrors[i].of == allocation) return &e->mirrors[i];
    return NULL;
}

const allocation_t *handover_allocation(const engine_t *e, const allocation_t *allocation)
{
    const mirror_t *m = mirror_find(e, allocation);
    return m == NULL ? allocation : &m->pinned;
}

/* Ranges are in order, so a binary search finds the one that holds the offset. */
uint64_t handover_offset(const engine_t *e, const allocation_t *allocation, uint64_t offset)
{
    const mirror_t *m = mirror_find(e, allocation);
    if (m == NULL) return offset;
    uint32_t low = 0, high = m->count; /* the range is in [low, high) */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        *(m->ranges[middle].begin <= offset ? &low : &high) = middle;
    }
    const mirror_range_t *x = &m->ranges[low];
    lh_assert(m->count > 0 && x->begin <= offset && offset < x->end);
    return x->at + offset - x->begin;
}

/* The mirror of an allocation, made if there is none. NULL: memory is short. */
static mirror_t *mirror_take(engine_t *e, const allocation_t *allocation)
{
    mirror_t *found = mirror_find(e, allocation);
    if (found != NULL) return found;
    mirror_t *mirrors = mem_grow(e->mirrors, &e->mirror_capacity, e->mirror_count + 1u,
                                 sizeof(*mirrors));
    if (mirrors == NULL) return NULL;
    e->mirrors = mirrors;
    mirrors[e->mirror_count] = (mirror_t){
        .of = allocation,
        .pinned = {.name = allocation->name, .space = LH_SPACE_PINNED, .kind = MEMORY_PINNED}};
    return &mirrors[e->mirror_count++];
}

/* Notes that a value's bytes travel. Ranges are put in order later, by mirror_lay. */
static lh_status_t value_mirror(engine_t *e, const flow_t *f, uint32_t value)
{
    const flow_value_t *v = &f->values[value];
    const uint64_t begin = f->buffers[v->buffer].offset + v->offset,
                   bytes = flow_arg_bytes(&v->arg);
    mirror_t *m = mirror_take(e, allocation_of(e, f, value));
    if (m == NULL) return LH_NO_MEMORY;
    if (bytes == 0) return LH_OK;
    mirror_range_t *ranges = mem_grow(m->ranges, &m->capacity, m->count + 1u, sizeof(*ranges));
    if (ranges == NULL) return LH_NO_MEMORY;
    m->ranges = ranges;
    ranges[m->count++] = (mirror_range_t){.begin = begin, .end = begin + bytes};
    return LH_OK;
}

/* All that a transfer reads or writes, unless the host reaches the device's memory as it is. */
static lh_status_t call_mirror(engine_t *e, const flow_t *f, const flow_call_t *call)
{
    lh_status_t status = LH_OK;
    if (!is_out_of_reach(e)) return LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < call->moved.read_count; i++)
        status = value_mirror(e, f, f->moved[call->moved.reads + i]);
    for (uint32_t i = 0; status == LH_OK && i < call->moved.write_count; i++)
        status = value_mirror(e, f, f->moved[call->moved.writes + i]);
    return status;
}

static int mirror_range_earlier(const void *a, const void *b)
{
    const mirror_range_t *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Widens ranges to whole lines, joins those that meet, and lays them one after the other. If all
 * of an allocation travels, its mirror is laid out as the allocation is: each byte has the same
 * offset in both. `line` is the engine's alignment, in bytes. */
static void mirror_lay(mirror_t *m, uint64_t line)
{
    uint32_t kept = 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        m->ranges[i].begin -= m->ranges[i].begin % line;
        m->ranges[i].end = (m->ranges[i].end + line - 1) / line * line;
        if (m->ranges[i].end > m->of->bytes) m->ranges[i].end = m->of->bytes;
    }
    if (m->count > 0) qsort(m->ranges, m->count, sizeof(*m->ranges), mirror_range_earlier);
    for (uint32_t i = 0; i < m->count; i++) {
        const mirror_range_t x = m->ranges[i];
        if (kept > 0 && x.begin <= m->ranges[kept - 1].end) {
            if (x.end > m->ranges[kept - 1].end) m->ranges[kept - 1].end = x.end;
            continue;
        }
        m->ranges[kept++] = x;
    }
    m->count = kept;
    for (uint32_t i = 0; i < m->count; i++) {
        m->ranges[i].at = at;
        at += (m->ranges[i].end - m->ranges[i].begin + line - 1) / line * line;
    }
    m->pinned.bytes = at;
}

/* The last mirror takes the place of the one that goes. */
uint64_t handover_reach(engine_t *e, const allocation_t *allocation)
{
    mirror_t *m = mirror_find(e, allocation);
    if (m == NULL) return 0;
    lh_assert(m->pinned.memory == NULL);
    const uint64_t bytes = m->pinned.bytes;
    mem_free(m->ranges);
    *m = e->mirrors[--e->mirror_count];
    return bytes;
}

/* ---- planning ---- */

/* Marks the transfers that cross lists: a list waits for one that it did not start, or starts one
 * and leaves the wait to another list. Called for each list that there may be: of the first or of
 * later rounds, in the last round of a step or not. */
static void crossings_find(engine_t *e, const flow_t *f, bool later, bool last)
{
    for (uint32_t c = 1; c < f->call_count; c++) {
        const flow_call_t *call = &f->calls[c];
        if (call->transfer == NULL || (later ? call->first_only : call->later_only)) continue;
        if (call->last_only && !last) continue;
        lh_assert(call->transfer->number < e->handover_count);
        handover_t *h = e->handovers[call->transfer->number];
        const bool starts = call->kind == FLOW_COLLECTIVE;
        if (starts == h->open) h->crosses = true;
        h->open = starts;
    }
    for (uint32_t i = 0; i < e->handover_count; i++) {
        handover_t *h = e->handovers[i];
        if (h == NULL) continue;
        h->crosses = h->crosses || h->open;
        h->open = false;
    }
}

/* Finds out whether the device makes the transfer itself; the workspace is then as large as that
 * needs. */
static lh_status_t native_ask(handover_t *h)
{
    uint64_t bytes = 0;
    engine_t *e = h->engine;
    if (e->exchange->native == NULL) return LH_OK;
    const lh_status_t status = e->exchange->native(e->exchange, h->transfer, &h->native, &bytes);
    if (bytes > e->workspace.bytes) e->workspace.bytes = bytes;
    e->exchanges = e->exchanges || h->native;
    return status;
}

/* Makes a handover, with four words of its own, for a transfer that has none. */
static lh_status_t handover_add(engine_t *e, const transfer_t *transfer)
{
    const uint32_t number = transfer->number;
    if (number >= e->handover_count) {
        handover_t **list = mem_grow(e->handovers, &e->handover_capacity, number + 1u,
                                     sizeof(*list));
        if (list == NULL) return LH_NO_MEMORY;
        e->handovers = list;
        while (e->handover_count <= number)
            list[e->handover_count++] = NULL;
    }
    if (e->handovers[number] != NULL) return LH_OK;
    handover_t *h = mem_new(sizeof(*h));
    if (h == NULL) return LH_NO_MEMORY;
    h->engine = e;
    h->transfer = transfer;
    e->handovers[number] = h;
    lh_status_t status = native_ask(h);
    if (status != LH_OK || h->native) return status;
    status = allocation_take(&e->pinned, WORD_BYTES, WORD_BYTES, &h->word);
    if (status == LH_OK) status = allocation_take(&e->pinned, WORD_BYTES, WORD_BYTES, &h->asked);
    if (status == LH_OK) status = allocation_take(&e->pinned, WORD_BYTES, WORD_BYTES, &h->there);
    if (status == LH_OK) status = allocation_take(&e->pinned, WORD_BYTES, WORD_BYTES, &h->reached);
    return status;
}

/* Crossings matter for captured lists only: a launched list can wait for an event, whichever list
 * has recorded it. */
lh_status_t handovers_plan(engine_t *e)
{
    lh_status_t status = LH_OK;
    if (is_direct(e)) return LH_OK;
    for (uint32_t i = 0; i < e->program_count; i++) {
        const flow_t *f = e->flows[i];
        for (uint32_t c = 1; c < f->call_count && status == LH_OK; c++) {
            if (f->calls[c].kind != FLOW_COLLECTIVE) continue;
            status = handover_add(e, f->calls[c].transfer);
            if (status == LH_OK && !e->handovers[f->calls[c].transfer->number]->native)
                status = call_mirror(e, f, &f->calls[c]);
        }
    }
    for (uint32_t i = 0; i < e->mirror_count && status == LH_OK; i++)
        mirror_lay(&e->mirrors[i], engine_alignment(e));
    for (uint32_t i = 0; handovers_capture(e) && i < e->program_count && status == LH_OK; i++)
        for (uint32_t list = 0; list < 4; list++)
            crossings_find(e, e->flows[i], (list & 1) != 0, (list & 2) != 0);
    return status;
}

/* ---- once memory is there ---- */

/* The copy of a value between the device and its mirror; whoever queues it knows the direction. */
static handover_copy_t copy_of(const engine_t *e, const flow_t *f, uint32_t value)
{
    const flow_value_t *v = &f->values[value];
    const allocation_t *allocation = allocation_of(e, f, value);
    const uint64_t at = f->buffers[v->buffer].offset + v->offset;
    return (handover_copy_t){.device = allocation_place(allocation, at),
                             .mirror = allocation_place(handover_allocation(e, allocation),
                                                        handover_offset(e, allocation, at)),
                             .bytes = flow_arg_bytes(&v->arg)};
}

/* Whether links reach what a transfer writes where the device has it, and what it reads with that. */
static bool moved_is_reached(const engine_t *e, const flow_t *f, const flow_moved_t *moved)
{
    bool reached = false, mirrored = false;
    for (uint32_t i = 0; i < moved->read_count + moved->write_count; i++) {
        const uint32_t value = i < moved->read_count
                                   ? f->moved[moved->reads + i]
                                   : f->moved[moved->writes + i - moved->read_count];
        *(mirror_find(e, allocation_of(e, f, value)) == NULL ? &reached : &mirrored) = true;
    }
    lh_assert(!reached || !mirrored);
    return reached;
}

/* Copies of this rank's own part of what a transfer gathers, on the device. Values that are read stand in
 * the order of those that are written, without those of which this rank has no part. */
static void own_copies_list(handover_t *h, const flow_t *f, const flow_moved_t *moved)
{
    const engine_t *e = h->engine;
    for (uint32_t k = 0; e->exchange->own != NULL && k < moved->write_count; k++) {
        uint64_t begin = 0;
        const uint64_t bytes = e->exchange->own(e->exchange, h->transfer, k, &begin);
        if (bytes == 0) continue;
        lh_assert(h->out_count < moved->read_count);
        const handover_copy_t from = copy_of(e, f, f->moved[moved->reads + h->out_count]);
        handover_copy_t to = copy_of(e, f, f->moved[moved->writes + k]);
        lh_assert(from.bytes == bytes && begin + bytes <= to.bytes);
        to.mirror.offset += begin;
        to.mirror.address = (char *)to.mirror.address + begin;
        h->copies[h->out_count++] = (handover_copy_t){from.device, to.mirror, bytes};
    }
}

/* Lists the copies of a transfer. Several calls may start one transfer, all of the same values; the
 * first that is met lists them. */
static lh_status_t copies_make(handover_t *h, const flow_t *f, const flow_moved_t *moved)
{
    const engine_t *e = h->engine;
    if (h->copies != NULL || !is_out_of_reach(e)) return LH_OK;
    const uint32_t reads = h->transfer->takes_over ? moved->writes : moved->reads;
    const uint32_t out_count = h->transfer->takes_over ? moved->write_count : moved->read_count;
    h->copies = mem_array(out_count + moved->write_count + 1u, sizeof(*h->copies));
    if (h->copies == NULL) return LH_NO_MEMORY;
    if (moved_is_reached(e, f, moved)) {
        own_copies_list(h, f, moved);
        return LH_OK;
    }
    h->out_count = out_count;
    h->in_count = moved->write_count;
    for (uint32_t i = 0; i < h->out_count; i++)
        h->copies[i] = copy_of(e, f, f->moved[reads + i]);
    for (uint32_t i = 0; i < h->in_count; i++)
        h->copies[h->out_count + i] = copy_of(e, f, f->moved[moved->writes + i]);
    return LH_OK;
}

/* A word, by its offset in the engine's pinned memory. */
static _Atomic uint32_t *word_at(const handover_t *h, uint64_t offset)
{
    return allocation_place(&h->engine->pinned, offset).address;
}

/* Words begin at 0, which stands for "not yet"; `reached` as if there had been a run. Events
 * are made here, as no step may make any. */
static lh_status_t handover_place(handover_t *h)
{
    engine_t *e = h->engine;
    lh_status_t status = LH_OK;
    if (!h->native) {
        atomic_store(word_at(h, h->word), 0);
        atomic_store(word_at(h, h->asked), 0);
        atomic_store(word_at(h, h->there), 0);
        atomic_store(word_at(h, h->reached), 1);
    }
    for (uint32_t i = 0; i <= HANDOVER_CAPTURED && status == LH_OK; i++) {
        handover_turn_t *turn = &h->turns[i];
        status = e->api->event_new(e->device, &turn->made);
        if (status == LH_OK) status = e->api->event_new(e->device, &turn->read);
        if (status == LH_OK) status = e->api->event_new(e->device, &turn->arrived);
    }
    return status;
}

/* Two copying streams, so that what leaves does not wait behind what comes. */
lh_status_t handovers_place(engine_t *e)
{
    const lh_stream_how_t how = {.struct_size = sizeof(how), .role = LH_STREAM_COPY};
    lh_status_t status = LH_OK;
    if (e->handover_count == 0) return LH_OK;
    status = e->api->stream_new(e->device, &how, &e->leaving);
    if (status == LH_OK) status = e->api->stream_new(e->device, &how, &e->coming);
    if (status == LH_OK && e->exchanges) {
        const lh_stream_how_t comm = {.struct_size = sizeof(comm), .role = LH_STREAM_COMM};
        status = e->api->stream_new(e->device, &comm, &e->exchanging);
        if (status == LH_OK) status = e->api->native(e->exchanging, &e->exchanging_native);
    }
    for (uint32_t i = 0; i < e->handover_count && status == LH_OK; i++)
        if (e->handovers[i] != NULL) status = handover_place(e->handovers[i]);
    for (uint32_t i = 0; i < e->program_count; i++) {
        const flow_t *f = e->flows[i];
        for (uint32_t c = 1; c < f->call_count && status == LH_OK; c++)
            if (f->calls[c].kind == FLOW_COLLECTIVE &&
                !e->handovers[f->calls[c].transfer->number]->native)
                status = copies_make(e->handovers[f->calls[c].transfer->number], f,
                                     &f->calls[c].moved);
    }
    return status;
}

void handovers_free(engine_t *e)
{
    for (uint32_t i = 0; i < e->handover_count; i++) {
        handover_t *h = e->handovers[i];
        if (h == NULL) continue;
        for (uint32_t k = 0; k <= HANDOVER_CAPTURED; k++) {
            lh_event_t *const events[] = {h->turns[k].made, h->turns[k].read, h->turns[k].arrived};
            for (uint32_t x = 0; x < 3; x++)
                if (events[x] != NULL) e->api->event_free(events[x]);
        }
        mem_free(h->copies);
        mem_free(h);
    }
    mem_free(e->handovers);
    if (e->leaving != NULL) e->api->stream_free(e->leaving);
    if (e->coming != NULL) e->api->stream_free(e->coming);
    if (e->exchanging != NULL) e->api->stream_free(e->exchanging);
    for (uint32_t i = 0; i < e->mirror_count; i++) {
        allocation_release(&e->mirrors[i].pinned, e->api);
        mem_free(e->mirrors[i].ranges);
    }
    mem_free(e->mirrors);
}

/* ---- in a step ---- */

/* transfer_gate_t.past, asked by the progress thread: LH_OK once the turn's copies out are past. */
static lh_status_t gate_past(void *context)
{
    const handover_t *h = context;
    return h->engine->api->test(h->turns[h->turn].read, 0);
}

/* transfer_gate_t.done, told by the progress thread: what came lies in the mirror, or in the device's own
 * memory. Releases the stream that awaits the word. */
static void gate_done(void *context)
{
    const handover_t *h = context;
    atomic_store_explicit(word_at(h, h->word), 1, memory_order_release);
}

/* transfer_gate_t.past for a captured list: LH_OK once the replay has set the word. The word is
 * cleared at once, so that the next replay can set it again. */
static lh_status_t gate_asked(void *context)
{
    const handover_t *h = context;
    uint32_t asked = 1;
    return atomic_compare_exchange_strong(word_at(h, h->asked), &asked, 0) ? LH_OK : LH_AGAIN;
}

/* Whether the queue can tell when it comes to a wait. */
static bool tells_waits(const engine_t *e)
{
    return awaits_words(e) && e->api->signal != NULL;
}

/* transfer_gate_t.reached. The word of the run before was taken back before the gate opened. */
static bool gate_reached(void *context)
{
    const handover_t *h = context;
    return atomic_load_explicit(word_at(h, h->reached), memory_order_acquire) != 0;
}

/* In front of the computing stream's wait. */
static lh_status_t wait_tell(const handover_t *h)
{
    const engine_t *e = h->engine;
    const lh_place_t reached = allocation_place(&e->pinned, h->reached);
    return tells_waits(e) ? e->api->signal(e->stream, &reached) : LH_OK;
}

/* Takes the next turn, once its events are past, which were recorded HANDOVER_TURNS starts ago. So
 * the host is at most that many starts ahead of the device. */
static lh_status_t turn_take(handover_t *h)
{
    const uint32_t turn = (h->turn + 1) % HANDOVER_TURNS;
    lh_status_t status = engine_await(h->engine, h->turns[turn].made);
    if (status == LH_OK) status = engine_await(h->engine, h->turns[turn].read);
    if (status == LH_OK) status = engine_await(h->engine, h->turns[turn].arrived);
    if (status == LH_OK) h->turn = turn;
    return status;
}

/* Queues the copies in from the mirror, or out to it. There are none where the host reaches the
 * device's memory. */
static lh_status_t copies_queue(const handover_t *h, lh_stream_t *stream, bool in)
{
    const lh_device_api_t *api = h->engine->api;
    const handover_copy_t *copies = h->copies + (in ? h->out_count : 0);
    const uint32_t count = in ? h->in_count : h->out_count;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < count && status == LH_OK; i++) {
        const handover_copy_t *c = &copies[i];
        status = in ? api->copy(stream, &c->device, &c->mirror, c->bytes)
                    : api->copy(stream, &c->mirror, &c->device, c->bytes);
    }
    return status;
}

/* Lets a copying stream wait until the computing stream has made what is read, then copy it out. */
static lh_status_t leaving_queue(const handover_t *h, const handover_turn_t *turn)
{
    const engine_t *e = h->engine;
    const lh_place_t reached = allocation_place(&e->pinned, h->reached);
    /* The wait of the run before stands in front of this, which therefore holds nobody up. */
    lh_status_t status = tells_waits(e) ? e->api->await(e->stream, &reached) : LH_OK;
    if (status == LH_OK) status = e->api->record(e->stream, turn->made);
    if (status == LH_OK) status = e->api->wait(e->leaving, turn->made);
    /* A sum over sites reads what a sum on the device has left, for which nothing else waits yet. No other
     * transfer may wait for those on the device: their ends depend on other ranks, which may be waiting for it. */
    if (status == LH_OK && h->transfer->takes_over && e->exchanged != NULL)
        status = e->api->wait(e->leaving, e->exchanged);
    return status == LH_OK ? copies_queue(h, e->leaving, false) : status;
}

/* Lets a copying stream await the end of the transfer and copy in what came. Behind that stands an
 * event, or where the transfer crosses lists a word. turn: NULL where it crosses lists. */
static lh_status_t coming_queue(const handover_t *h, const handover_turn_t *turn)
{
    const engine_t *e = h->engine;
    const lh_place_t word = allocation_place(&e->pinned, h->word);
    const lh_place_t there = allocation_place(&e->pinned, h->there);
    lh_status_t status = e->api->await(e->coming, &word);
    if (status == LH_OK) status = copies_queue(h, e->coming, true);
    if (status != LH_OK) return status;
    return h->crosses ? e->api->signal(e->coming, &there)
                      : e->api->record(e->coming, turn->arrived);
}

/* A start in a list that is captured. Copying out is part of the replay; copying in is, too, unless
 * another list waits. */
static lh_status_t captured_start(handover_t *h)
{
    const engine_t *e = h->engine;
    const handover_turn_t *turn = &h->turns[HANDOVER_CAPTURED];
    const lh_place_t asked = allocation_place(&e->pinned, h->asked);
    lh_status_t status = leaving_queue(h, turn);
    if (status == LH_OK) status = e->api->signal(e->leaving, &asked);
    if (status == LH_OK) status = e->api->record(e->leaving, turn->read);
    h->open = true;
    if (status != LH_OK || h->crosses) return status;
    status = e->api->wait(e->coming, turn->read);
    return status == LH_OK ? coming_queue(h, turn) : status;
}

/* Lets the computing stream await the word that says that what came is copied in. */
static lh_status_t there_await(const handover_t *h)
{
    const lh_place_t there = allocation_place(&h->engine->pinned, h->there);
    return h->engine->api->await(h->engine->stream, &there);
}

/* A wait in a list that is captured. In the list that has started the transfer it joins the copying
 * stream; any other list awaits a word. */
static lh_status_t captured_wait(handover_t *h)
{
    const engine_t *e = h->engine;
    const lh_status_t status = wait_tell(h);
    if (status != LH_OK) return status;
    if (h->crosses) return there_await(h);
    lh_assert(h->open);
    h->open = false;
    return e->api->wait(e->stream, h->turns[HANDOVER_CAPTURED].arrived);
}

/* A capture must join every stream that it forked to before it ends. A start that the list itself
 * waits for is joined by that wait; all others here, behind the copies of what they read. */
lh_status_t handovers_captured(engine_t *e)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < e->handover_count && status == LH_OK; i++) {
        handover_t *h = e->handovers[i];
        if (h == NULL || !h->open) continue;
        lh_assert(h->crosses);
        h->open = false;
        status = e->api->wait(e->stream, h->turns[HANDOVER_CAPTURED].read);
    }
    return status;
}

void handovers_uncaptured(engine_t *e)
{
    for (uint32_t i = 0; i < e->handover_count; i++)
        if (e->handovers[i] != NULL) e->handovers[i]->open = false;
}

/* Before a replay: waits for the transfer's last run, starts the transfer behind the word that the
 * replay sets, and, where another list waits, queues the copies in outside of all lists. */
static lh_status_t replay_start(handover_t *h)
{
    engine_t *e = h->engine;
    const transfer_gate_t gate = {.past = gate_asked,
                                  .done = gate_done,
                                  .context = h,
                                  .reached = tells_waits(e) ? gate_reached : NULL};
    lh_status_t status = h->under_way ? handover_wait(e, h->transfer) : LH_OK;
    if (status == LH_OK) status = e->exchange->wait(e->exchange, h->transfer);
    if (status == LH_OK) status = e->exchange->start(e->exchange, h->transfer, &gate);
    if (status != LH_OK || !h->crosses) return status;
    status = coming_queue(h, NULL);
    h->under_way = status == LH_OK;
    h->held = false;
    return status;
}

/* The host waits, and queues the copies in behind what is queued so far. */
static lh_status_t held_wait(const handover_t *h)
{
    const engine_t *e = h->engine;
    const lh_status_t status = e->exchange->wait(e->exchange, h->transfer);
    return status == LH_OK ? copies_queue(h, e->stream, true) : status;
}

/* A replay awaits the word whether or not the transfer is under way: where it is not, or is held, the
 * word is set here, in front of the replay. */
static lh_status_t replay_wait(handover_t *h)
{
    const engine_t *e = h->engine;
    const lh_place_t there = allocation_place(&e->pinned, h->there);
    const bool comes = h->under_way;
    if (!h->crosses) return LH_OK;
    h->under_way = false;
    if (comes && !h->held) return LH_OK;
    const lh_status_t status = comes ? held_wait(h) : LH_OK;
    return status == LH_OK ? e->api->signal(e->stream, &there) : status;
}

lh_status_t handover_replay(engine_t *e, const transfer_t *t, bool waits)
{
    handover_t *h = e->handovers[t->number];
    return waits ? replay_wait(h) : replay_start(h);
}

/* `asked` is awaited by nobody but the gate. */
void handovers_release(const engine_t *e)
{
    for (uint32_t i = 0; e->pinned.memory != NULL && i < e->handover_count; i++) {
        const handover_t *h = e->handovers[i];
        if (h == NULL || h->native) continue;
        const uint64_t words[] = {h->word, h->there, h->reached};
        for (uint32_t k = 0; k < sizeof(words) / sizeof(words[0]); k++)
            atomic_store_explicit(word_at(h, words[k]), 1, memory_order_release);
    }
}

/* How long the computing stream stood at the wait of a turn that is past, which is about to be used
 * again. */
static lh_status_t native_expose(const handover_t *h, handover_turn_t *turn)
{
    const engine_t *e = h->engine;
    uint64_t begun = 0, ended = 0;
    if (!turn->waited || e->api->event_time == NULL || e->exchange->exposed == NULL) return LH_OK;
    turn->waited = false;
    lh_status_t status = e->api->event_time(turn->read, &begun);
    if (status == LH_OK) status = e->api->event_time(turn->arrived, &ended);
    if (status == LH_OK && ended > begun)
        e->exchange->exposed(e->exchange, h->transfer, ended - begun);
    return status;
}

/* The event in front of the wait, and the wait. */
static lh_status_t native_wait(handover_t *h)
{
    const engine_t *e = h->engine;
    handover_turn_t *turn = &h->turns[h->turn];
    const lh_status_t status = e->api->record(e->stream, turn->read);
    turn->waited = status == LH_OK;
    return status == LH_OK ? e->api->wait(e->stream, turn->arrived) : status;
}

/* A start that the device makes itself, behind what is queued so far. */
static lh_status_t native_start(handover_t *h)
{
    engine_t *e = h->engine;
    lh_status_t status = turn_take(h);
    handover_turn_t *turn = &h->turns[h->turn];
    if (status == LH_OK) status = native_expose(h, turn);
    lh_assert(!e->capturing);
    if (status == LH_OK) status = e->api->record(e->stream, turn->made);
    if (status == LH_OK) status = e->api->wait(e->exchanging, turn->made);
    if (status == LH_OK) status = e->exchange->queue(e->exchange, h->transfer);
    if (status == LH_OK) status = e->api->record(e->exchanging, turn->arrived);
    if (status == LH_OK) e->exchanged = turn->arrived;
    h->under_way = status == LH_OK;
    return status;
}

/* A start in a list that is launched. `made` and `read` are recorded behind what is queued so far;
 * the transfer begins once `read` is past. Unless it is held, the copies in are queued at once. */
static lh_status_t queued_start(engine_t *e, const transfer_t *t)
{
    handover_t *h = e->handovers[t->number];
    if (h->native) return native_start(h);
    if (e->capturing) return captured_start(h);
    lh_status_t status = h->under_way ? handover_wait(e, t) : LH_OK;
    /* The gate belongs to the run before until that run is done, so the host is at most one run
     * ahead. */
    if (status == LH_OK) status = e->exchange->wait(e->exchange, t);
    if (status == LH_OK) status = turn_take(h);
    const handover_turn_t *turn = &h->turns[h->turn];
    if (status == LH_OK) status = leaving_queue(h, turn);
    if (status == LH_OK) status = e->api->record(e->leaving, turn->read);
    const bool holds = holds_streams(e);
    const transfer_gate_t gate = {.past = gate_past,
                                  .done = holds ? gate_done : NULL,
                                  .context = h,
                                  .reached = holds && tells_waits(e) ? gate_reached : NULL};
    if (status == LH_OK) status = e->exchange->start(e->exchange, t, &gate);
    if (status == LH_OK && holds) status = coming_queue(h, turn);
    h->under_way = status == LH_OK;
    h->held = !holds;
    return status;
}

/* A wait in a list that is launched; nothing where the transfer is not under way. */
static lh_status_t queued_wait(engine_t *e, const transfer_t *t)
{
    handover_t *h = e->handovers[t->number];
    if (h == NULL) return LH_OK;
    if (e->capturing) return captured_wait(h);
    if (!h->under_way) return LH_OK;
    h->under_way = false;
    if (h->native) return native_wait(h);
    const lh_status_t status = wait_tell(h);
    if (status != LH_OK) return status;
    if (h->held) return held_wait(h);
    if (h->crosses) return there_await(h);
    return e->api->wait(e->stream, h->turns[h->turn].arrived);
}

/* Where no queue ever holds for a transfer there is nothing to wait for. */
lh_status_t handovers_settle(engine_t *e)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; awaits_words(e) && i < e->handover_count && status == LH_OK; i++) {
        const handover_t *h = e->handovers[i];
        if (h != NULL && !h->native) status = e->exchange->wait(e->exchange, h->transfer);
    }
    return status;
}

/* Where a queue works starts come ahead of their time anyway. */
bool handover_expect(const engine_t *e, const transfer_t *t)
{
    return is_direct(e) && e->exchange->expect != NULL && e->exchange->expect(e->exchange, t);
}

/* A device that does each call at once, in memory that the host reaches, needs no gate: it has made
 * what is read. */
lh_status_t handover_start(engine_t *e, const transfer_t *t)
{
    return is_direct(e) ? e->exchange->start(e->exchange, t, NULL) : queued_start(e, t);
}

lh_status_t handover_wait(engine_t *e, const transfer_t *t)
{
    return is_direct(e) ? e->exchange->wait(e->exchange, t) : queued_wait(e, t);
}
