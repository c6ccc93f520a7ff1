/* call_list.c - makes call lists of flows and runs them.
 *
 * There are three ways to run a list: launch each call; replay what was captured; or, while
 * profiling, launch each call and take the time. A list is captured when it runs for the second time:
 * libraries load a kernel's code when it is first launched, which a driver may refuse inside a
 * capture. Where the device itself makes transfers, which no capture takes, a list is captured in the
 * pieces between its transfers. */
#include <engine/call_list.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <engine/handover.h>
#include <longhaul/dtype.h>

#include <stdio.h>

enum { REASON_BYTES = 2048 }; /* of a sentence that is kept: none is longer */

/* How many places a call has in the list: one for each slot; a transfer is given one, which stays
 * unused. */
static uint32_t place_count(const flow_call_t *call)
{
    const uint32_t slots = flow_call_slots(call);
    return slots > 0 ? slots : 1;
}

/* Bytes of which a value's place is a multiple: the device says how its allocations are aligned, and
 * each buffer in them is; a value may begin inside a buffer. 0: the device does not say. */
static uint32_t value_alignment(const engine_t *e, const flow_t *flow, const flow_value_t *v)
{
    const uint64_t at = flow->buffers[v->buffer].offset + v->offset;
    const uint64_t most = e->properties.alignment_bytes;
    if (most == 0) return 0;
    return (uint32_t)(at % most == 0 ? most : at & (~at + 1));
}

/* The input, from 1, over which an output of an op may lie; 0: none. */
static uint32_t over_of(const op_t *op, uint32_t slot)
{
    if (op->alias[slot] != 0) return op->alias[slot];
    if (op->over[slot] != 0) return op->over[slot];
    return slot == op->in_count && (op->row.flags & LH_OP_IN_PLACE) != 0 ? 1 : 0;
}

/* The arguments by which a call's kernel is chosen: each value's dtype and shape, with the flags of
 * this call. An input is KEPT where it is a weight, which only the optimizer step changes. An
 * output is added to (ADD) where the flow decided so, and alias_slot names the input in whose
 * memory it lies, if any. */
static void args_of(const engine_t *e, const flow_t *flow, const flow_call_t *call, bool later,
                    lh_arg_t *args)
{
    const op_t *op = call->op;
    lh_assert(place_count(call) <= OP_SLOTS);
    const uint32_t add = later ? call->add | call->add_later : call->add;
    for (uint32_t i = 0; i < place_count(call); i++) {
        args[i] = (lh_arg_t){0};
        if (call->slots[i] == 0) continue;

        const flow_value_t *v = &flow->values[call->slots[i]];
        args[i] = v->arg;
        args[i].flags = 0;
        args[i].alias_slot = 0;
        args[i].alignment = value_alignment(e, flow, v);
        if (i < op->in_count) {
            if (flow->buffers[v->buffer].kept) args[i].flags = LH_ARG_KEPT;
            continue;
        }
        if ((add >> i & 1u) != 0) args[i].flags = LH_ARG_ADD;
        const uint32_t in = over_of(op, i);
        if (in == 0 || call->slots[in - 1] == 0) continue;
        const flow_value_t *from = &flow->values[call->slots[in - 1]];
        if (from->buffer == v->buffer && from->offset == v->offset) args[i].alias_slot = in;
    }
}

bool call_list_offers(void *engine, const flow_t *flow, const flow_call_t *call)
{
    const engine_t *e = engine;
    lh_arg_t args[OP_SLOTS];
    if (call->kind != FLOW_KERNEL) return true;
    args_of(e, flow, call, false, args);
    return kernel_is_offered(e->kernels, call->op, call->attributes, args);
}

/* Fills in what is known before memory is there: a kernel's, or a fill's size. */
static lh_status_t call_choose(engine_t *e, const flow_t *flow, const flow_call_t *call, bool later,
                               exec_call_t *out)
{
    *out = (exec_call_t){.source = call};
    if (call->transfer != NULL) return LH_OK;
    if (call->kind == FLOW_FILL) {
        out->bytes = flow_arg_bytes(&flow->values[call->slots[0]].arg);
        return LH_OK;
    }
    lh_arg_t args[OP_SLOTS];
    args_of(e, flow, call, later, args);
    kernel_t *kernel;
    const lh_status_t status = kernel_choose(e->kernels, call->op, call->attributes, args, &kernel);
    if (status != LH_OK) return status;
    out->kernel = kernel;
    out->launch = kernel->row->launch;
    out->prepared = kernel->prepared;
    return LH_OK;
}

lh_status_t call_list_choose(engine_t *e, const flow_t *flow, bool later, call_list_t *out)
{
    size_t places = 0;
    for (uint32_t i = 1; i < flow->call_count; i++)
        places += place_count(&flow->calls[i]);
    out->calls = mem_array(flow->call_count, sizeof(*out->calls));
    out->places = mem_array(places, sizeof(*out->places));
    if (out->calls == NULL || out->places == NULL) return LH_NO_MEMORY;

    for (uint32_t i = 1; i < flow->call_count; i++) {
        const flow_call_t *call = &flow->calls[i];
        if (later ? call->first_only : call->later_only) continue;
        const lh_status_t status = call_choose(e, flow, call, later, &out->calls[out->count]);
        if (status != LH_OK) return status;
        out->count++;
    }
    return LH_OK;
}

/* The place of a value, in its allocation or its arena; none for value 0. */
static lh_place_t flow_value_place(const engine_t *e, const flow_t *flow, uint32_t value)
{
    if (value == 0) return (lh_place_t){0};
    const flow_value_t *v = &flow->values[value];
    const flow_buffer_t *buffer = &flow->buffers[v->buffer];
    const allocation_t *allocation = buffer->allocation != NULL ? buffer->allocation
                                                                : &e->arenas[buffer->arena];
    return allocation_place(allocation, buffer->offset + v->offset);
}

/* Whether a list can be captured: the device, every kernel and every transfer must be able to. */
static bool list_captures(const engine_t *e, const call_list_t *list)
{
    if (list->count == 0 || !engine_captures(e)) return false;
    for (uint32_t i = 0; i < list->count; i++) {
        const kernel_t *kernel = list->calls[i].kernel;
        if (kernel != NULL && (kernel->plan.flags & LH_KERNEL_CAPTURE) == 0) return false;
        if (list->calls[i].source->transfer != NULL && !e->exchanges && !handovers_capture(e))
            return false;
    }
    return true;
}

static bool list_has_transfers(const call_list_t *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->calls[i].source->transfer != NULL) return true;
    return false;
}

/* Room for pieces, as no step may take any: there are at most as many as calls. */
static lh_status_t pieces_room(const engine_t *e, call_list_t *list)
{
    if (!e->exchanges || !list_captures(e, list) || !list_has_transfers(list)) return LH_OK;
    list->pieces = mem_array(list->count, sizeof(*list->pieces));
    return list->pieces != NULL ? LH_OK : LH_NO_MEMORY;
}

lh_status_t call_list_place(const engine_t *e, const flow_t *flow, call_list_t *list)
{
    lh_status_t status = pieces_room(e, list);
    lh_place_t *places = list->places;
    for (uint32_t i = 0; status == LH_OK && i < list->count; i++) {
        exec_call_t *call = &list->calls[i];
        const flow_call_t *source = call->source;
        if (source->kind == FLOW_FILL) call->to = flow_value_place(e, flow, source->slots[0]);
        if (source->kind != FLOW_KERNEL) continue;
        for (uint32_t s = 0; s < place_count(source); s++)
            places[s] = flow_value_place(e, flow, source->slots[s]);
        call->call = (lh_launch_t){
            .struct_size = sizeof(call->call),
            .arg_count = place_count(source),
            .args = places,
            .stream = e->stream,
            .queue = e->native.kind[0] != '\0' ? &e->native : NULL,
        };
        if (call->kernel->plan.scratch_bytes > 0)
            call->call.scratch = allocation_place(&e->scratch, 0);
        status = kernel_bind(call->kernel, &call->call);
        places += place_count(source);
    }
    return status;
}

/* A start that only the last round of a step makes is passed over in the other rounds; its wait
 * then finds nothing under way. */
static lh_status_t launch_transfer(engine_t *e, const flow_call_t *call)
{
    if (call->kind == FLOW_WAIT) return handover_wait(e, call->transfer);
    if (call->last_only && !e->last_micro) return LH_OK;
    return handover_start(e, call->transfer);
}

static lh_status_t launch_one(engine_t *e, exec_call_t *call)
{
    if (call->launch != NULL) return call->launch(call->prepared, &call->call);
    if (call->source->transfer != NULL) return launch_transfer(e, call->source);
    return e->api->fill(e->stream, &call->to, 0, call->bytes);
}

static lh_status_t launch_all(engine_t *e, const call_list_t *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const lh_status_t status = launch_one(e, &list->calls[i]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Tells of the transfers that the list will start, in order, up to the first that can't be told of. */
static void expect_all(const engine_t *e, const call_list_t *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const flow_call_t *call = list->calls[i].source;
        if (call->transfer == NULL || call->kind == FLOW_WAIT) continue;
        if (call->last_only && !e->last_micro) continue;
        if (!handover_expect(e, call->transfer)) return;
    }
}

/* Ends a capture, after a failure too, or the stream could not be used again. Then the failure is told, and
 * not what the end says of it. */
static lh_status_t capture_close(engine_t *e, lh_status_t status, lh_replay_t **out)
{
    char said[REASON_BYTES];
    if (status == LH_OK) {
        status = e->api->capture_end(e->stream, out);
        if (status != LH_OK || *out != NULL) return status;
        return fail(LH_UNSUPPORTED, "device %s gives no replay of what it captured",
                    e->how.device->name);
    }
    (void)snprintf(said, sizeof(said), "%s", fail_reason());
    (void)e->api->capture_end(e->stream, out);
    return fail_again(status, said);
}

/* One piece: a transfer, or all calls up to the next one. */
static lh_status_t piece_capture(engine_t *e, const call_list_t *list, list_piece_t *piece)
{
    lh_status_t status = LH_OK;
    piece->end = piece->begin + 1;
    if (list->calls[piece->begin].source->transfer != NULL) return LH_OK;
    while (piece->end < list->count && list->calls[piece->end].source->transfer == NULL)
        piece->end++;
    status = e->api->capture_begin(e->stream);
    if (status != LH_OK) return status;
    for (uint32_t i = piece->begin; i < piece->end && status == LH_OK; i++)
        status = launch_one(e, &list->calls[i]);
    return capture_close(e, status, &piece->replay);
}

static lh_status_t pieces_capture(engine_t *e, call_list_t *list)
{
    lh_status_t status = LH_OK;
    for (uint32_t at = 0; at < list->count && status == LH_OK;) {
        list_piece_t *piece = &list->pieces[list->piece_count++];
        piece->begin = at;
        status = piece_capture(e, list, piece);
        at = piece->end;
    }
    return status;
}

static lh_status_t pieces_run(engine_t *e, call_list_t *list)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < list->piece_count && status == LH_OK; i++) {
        const list_piece_t *p = &list->pieces[i];
        status = p->replay != NULL ? e->api->replay(p->replay, e->stream)
                                   : launch_transfer(e, list->calls[p->begin].source);
    }
    return status;
}

/* Launches the list between the beginning and the end of a capture. last: captures what the last
 * round of a step does, which alone has the last_only calls. */
static lh_status_t list_capture(engine_t *e, const call_list_t *list, bool last, lh_replay_t **out)
{
    lh_status_t status = e->api->capture_begin(e->stream);
    if (status != LH_OK) return status;
    e->last_micro = last;
    e->capturing = true;
    status = launch_all(e, list);
    if (status == LH_OK) status = handovers_captured(e);
    e->capturing = false;
    if (status != LH_OK) handovers_uncaptured(e);
    return capture_close(e, status, out);
}

/* Makes two replays where the last round of a step starts more transfers than the others. The round
 * that is queued stays what it is. */
static lh_status_t replays_make(engine_t *e, call_list_t *list)
{
    const bool last = e->last_micro;
    bool last_differs = false;
    for (uint32_t i = 0; i < list->count; i++)
        last_differs = last_differs || list->calls[i].source->last_only;
    lh_status_t status = list_capture(e, list, false, &list->replay);
    if (status == LH_OK && last_differs) status = list_capture(e, list, true, &list->last_replay);
    e->last_micro = last;
    return status;
}

lh_status_t call_list_capture(engine_t *e, call_list_t *list)
{
    if (list->captured) return LH_OK;
    list->captured = true;
    if (!list_captures(e, list)) return LH_OK;
    return list->pieces != NULL ? pieces_capture(e, list) : replays_make(e, list);
}

/* The host's part of the transfers comes first: each is started behind a word that the replay sets,
 * or made ready for the replay's wait. Then the replay is launched. */
static lh_status_t list_replay(engine_t *e, const call_list_t *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const flow_call_t *call = list->calls[i].source;
        if (call->transfer == NULL || (call->last_only && !e->last_micro)) continue;
        const lh_status_t status = handover_replay(e, call->transfer, call->kind == FLOW_WAIT);
        if (status != LH_OK) return status;
    }
    const bool last = e->last_micro && list->last_replay != NULL;
    return e->api->replay(last ? list->last_replay : list->replay, e->stream);
}

/* A synchronous device has finished when launch returns, so the host's clock tells the time. Any
 * other is asked for the times of events once the run is over, so the host waits for each profiled
 * run. */
static lh_status_t run_timed(engine_t *e, call_list_t *list)
{
    list->profiled_runs++;
    if (list->marks == NULL) {
        for (uint32_t i = 0; i < list->count; i++) {
            const uint64_t before = sys()->now_ns();
            const lh_status_t status = launch_one(e, &list->calls[i]);
            if (status != LH_OK) return status;
            list->calls[i].ns += sys()->now_ns() - before;
        }
        return LH_OK;
    }
    lh_status_t status = e->api->record(e->stream, list->marks[0]);
    for (uint32_t i = 0; status == LH_OK && i < list->count; i++) {
        status = launch_one(e, &list->calls[i]);
        if (status == LH_OK) status = e->api->record(e->stream, list->marks[i + 1]);
    }
    return status == LH_OK ? call_list_collect(e, list) : status;
}

static void replays_free(engine_t *e, call_list_t *list)
{
    if (list->replay != NULL) e->api->replay_free(list->replay);
    if (list->last_replay != NULL) e->api->replay_free(list->last_replay);
    for (uint32_t i = 0; i < list->piece_count; i++)
        if (list->pieces[i].replay != NULL) e->api->replay_free(list->pieces[i].replay);
    mem_free(list->pieces);
    list->replay = list->last_replay = NULL;
    list->pieces = NULL;
    list->piece_count = 0;
}

/* Where the driver has no memory for a replay, which no plan counts, or does not capture one of the calls, the
 * list is launched call by call for good: the bits are the same, and a run of hours does not end for it. */
static lh_status_t second_run_capture(engine_t *e, call_list_t *list)
{
    const lh_status_t status = call_list_capture(e, list);
    if (status != LH_NO_MEMORY && status != LH_UNSUPPORTED) return status;
    log_line(LH_LOG_WARN, "%s; these calls are launched one by one from here on", fail_reason());
    fail_clear();
    replays_free(e, list);
    return LH_OK;
}

/* In the way that the list is ready for. */
static lh_status_t list_go(engine_t *e, call_list_t *list)
{
    if (e->profiling) return run_timed(e, list);
    if (list->replay != NULL) return list_replay(e, list);
    if (list->piece_count > 0) return pieces_run(e, list);
    return launch_all(e, list);
}

/* Whether a run launches something for the first time. A transfer that the device makes itself has code of its own,
 * and connects its ranks when it is first queued: what only the last round of a step starts has its first time in
 * the first such round, when the list may have run for other rounds. */
static bool run_is_first(const engine_t *e, const call_list_t *list)
{
    return !list->ran || (e->exchanges && e->last_micro && !list->ran_last);
}

lh_status_t call_list_run(engine_t *e, call_list_t *list)
{
    lh_status_t status = LH_OK;
    const bool again = list->ran, first = run_is_first(e, list);
    list->ran = true;
    list->ran_last = list->ran_last || e->last_micro;
    if (again && !e->profiling) status = second_run_capture(e, list);
    if (status == LH_OK && first && list->replay == NULL) status = handovers_settle(e);
    if (status != LH_OK) return status;
    expect_all(e, list);
    e->loaded = !first;
    status = list_go(e, list);
    e->loaded = false;
    return status;
}

static void marks_free(engine_t *e, call_list_t *list)
{
    for (uint32_t i = 0; list->marks != NULL && i <= list->count; i++)
        if (list->marks[i] != NULL) e->api->event_free(list->marks[i]);
    mem_free(list->marks);
    list->marks = NULL;
}

/* Times begin at zero each time that profiling is switched on. */
lh_status_t call_list_profile(engine_t *e, call_list_t *list, bool on)
{
    if (!on) {
        marks_free(e, list);
        return LH_OK;
    }
    for (uint32_t i = 0; i < list->count; i++)
        list->calls[i].ns = 0;
    list->profiled_runs = 0;
    if ((e->properties.flags & LH_DEVICE_SYNCHRONOUS) != 0 || list->marks != NULL) return LH_OK;
    if (e->api->event_time == NULL)
        return fail(LH_UNSUPPORTED, "device %s does not tell when an event was passed",
                    e->how.device->name);

    list->marks = mem_array(list->count + 1u, sizeof(*list->marks));
    if (list->marks == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i <= list->count; i++) {
        const lh_status_t status = e->api->event_new(e->device, &list->marks[i]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

lh_status_t call_list_collect(engine_t *e, call_list_t *list)
{
    uint64_t before, after;
    lh_assert(list->marks != NULL);
    lh_status_t status = engine_await(e, list->marks[list->count]);
    if (status == LH_OK) status = e->api->event_time(list->marks[0], &before);
    for (uint32_t i = 0; status == LH_OK && i < list->count; i++) {
        status = e->api->event_time(list->marks[i + 1], &after);
        if (status != LH_OK) break;
        list->calls[i].ns += after - before;
        before = after;
    }
    return status;
}

void call_list_free(engine_t *e, call_list_t *list)
{
    marks_free(e, list);
    replays_free(e, list);
    mem_free(list->calls);
    mem_free(list->places);
    *list = (call_list_t){0};
}
