/* handover_test.c - transfers between a queue and the host, in one process: an exchange that doubles
 * stands for the other ranks. The host waits for nothing while it queues. Launched one by one and
 * replayed, with a transfer that a list waits for itself and one that another list waits for; and
 * each wait of a stream is needed: without any one of them the numbers are wrong, or the device says
 * so. The same where the exchange works in the device's own memory, as a network card does, and where it
 * queues transfers on the device, as NCCL's are. A list that runs for the first time has no stream hold for
 * the host, and one that the device does not capture is launched. A start that fails leaves no queue waiting.
 *
 * An input x becomes y = x + x; a transfer makes z = 2 y of it; w = z + z; another one makes s = 2 w,
 * which the second program waits for and gives out as s + s. Transfers on the queue only copy: there y = 4 x,
 * s = w, and one of the host's takes z over behind the first, as a sum over sites does, and doubles it. Any
 * other transfer of the host's goes past those on the queue. */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <engine/handover.h>
#include <engine/program.h>
#include <graph/op_table.h>

#include "golden.h"

enum { ELEMENTS = 4096, RUNS = 12, TRANSFERS = 2 };
/* The host's behind the first on the queue; all in the list. */
enum { TAKEN_OVER = TRANSFERS, LISTED };
/* Where the exchange works: in mirrors, in device memory without any, or on the device's queue. */
enum { IN_MIRRORS, IN_PLACE, ON_QUEUE };
#define NO_WAIT UINT32_MAX

/* Of a run that is under way: doubles once its gate is past, what it finds then. */
typedef struct doubled {
    transfer_t transfer; /* first: a transfer_t * is a doubled_t * */
    const float *from;
    float *to;
    lh_place_t places[2]; /* on the queue: what is read, what is written */
    transfer_gate_t gate;
    atomic_bool running;
    float made[ELEMENTS];
} doubled_t;

typedef struct scene {
    exchange_t exchange; /* first */
    rig_t rig;
    program_t *first, *second;
    doubled_t list[LISTED];
    uint32_t values[LISTED][2]; /* of the first program: what is read, what is written */
    uint32_t where;             /* IN_MIRRORS, IN_PLACE, ON_QUEUE */
    char *seen[2];              /* in place: the activations and the outputs, as it reaches them */
    uint64_t bytes[2];          /* of `seen` */
    pthread_t thread;
    atomic_bool stop;
    /* Transfers under way: whose wait the device had reached when the gate opened; before the end; at all. */
    atomic_uint at_once, reached, transfers;
    bool ahead;                 /* runs before are still queued */
    uint64_t word_at;           /* beside: in pinned memory */
    lh_place_t word;            /* the same: the transfer on the queue awaits it on its way */
    atomic_bool lets_go;        /* the host's transfer sets it at its end */
    atomic_bool lost;           /* no transfer of the host's ends any more */
    uint32_t starts, lost_from; /* so far; at how many a peer is lost */
    lh_status_t status;         /* of what the host was told */
} scene_t;

/* The device comes to its wait while the transfer is under way, and is seen there. */
static void reached_look(scene_t *s, const doubled_t *d)
{
    const struct timespec nap = {0, 50000};
    bool there = d->gate.reached(d->gate.context);
    s->transfers++;
    s->at_once += there;
    for (uint32_t i = 0; i < 400 && !there; i++) {
        (void)nanosleep(&nap, NULL);
        there = d->gate.reached(d->gate.context);
    }
    s->reached += there;
}

static void word_set(const scene_t *s)
{
    atomic_store((_Atomic uint32_t *)s->word.address, 1);
}

static void *doubler(void *context)
{
    scene_t *s = context;
    /* Longer than queues take. */
    const struct timespec nap = {0, 50000}, travel = {0, s->where == IN_PLACE ? 6000000 : 3000000};
    while (!s->stop) {
        for (uint32_t i = 0; i < LISTED; i++) {
            doubled_t *d = &s->list[i];
            if (s->lost || !d->running || d->gate.past(d->gate.context) != LH_OK) continue;
            for (uint32_t k = 0; k < ELEMENTS; k++)
                d->made[k] = 2 * d->from[k];
            if (d->gate.reached != NULL) reached_look(s, d);
            (void)nanosleep(&travel, NULL);
            memcpy(d->to, d->made, sizeof(d->made));
            if (d->gate.done != NULL) d->gate.done(d->gate.context);
            if (s->lets_go) word_set(s);
            d->running = false; /* from here on it may be started anew */
        }
        (void)nanosleep(&nap, NULL);
    }
    return NULL;
}

static const void *reached_words[LISTED]; /* of transfers that the host makes */

static lh_status_t on_arrange(exchange_t *x)
{
    (void)x; /* lists have their calls already */
    return LH_OK;
}

/* The descriptor of what travels stands for a dma-buf, and the doubler for a card. */
static lh_status_t on_reach(exchange_t *x)
{
    scene_t *s = (scene_t *)x;
    engine_t *e = s->rig.engine;
    const allocation_t *allocations[] = {&e->arenas[ARENA_ACTIVATIONS], &e->outputs};
    if (s->where != IN_PLACE) return LH_OK;
    assert_true(handover_can_reach(e));
    for (uint32_t i = 0; i < 2; i++) {
        lh_share_t share = {.struct_size = sizeof(share), .fd = -1};
        OK(e->api->share(allocations[i]->memory, LH_SHARE_DMABUF, &share));
        s->bytes[i] = allocations[i]->bytes;
        s->seen[i] = mmap(NULL, s->bytes[i], PROT_READ | PROT_WRITE, MAP_SHARED, share.fd, 0);
        assert_true(s->seen[i] != MAP_FAILED);
        (void)close(share.fd);
        assert_true(handover_reach(e, allocations[i]) > 0);
        assert_true(handover_reach(e, allocations[i]) == 0);
    }
    assert_int_equal(e->mirror_count, 0);
    return LH_OK;
}

/* The allocation in which a value of the first program lies, and where in it. */
static const allocation_t *allocation_of(const scene_t *s, uint32_t value, uint64_t *at)
{
    const flow_t *f = s->first->flow;
    const flow_value_t *v = &f->values[value];
    const flow_buffer_t *b = &f->buffers[v->buffer];
    *at = b->offset + v->offset;
    return b->allocation != NULL ? b->allocation : &s->rig.engine->arenas[b->arena];
}

/* Where the exchange finds a value. */
static float *mirror_of(const scene_t *s, uint32_t value)
{
    const engine_t *e = s->rig.engine;
    uint64_t at;
    const allocation_t *allocation = allocation_of(s, value, &at);
    at = handover_offset(e, allocation, at);
    if (s->where == IN_PLACE) return (float *)(void *)(s->seen[allocation == &e->outputs] + at);
    return (float *)allocation_place(handover_allocation(e, allocation), at).address;
}

/* Where the device has it. */
static lh_place_t place_of(const scene_t *s, uint32_t value)
{
    uint64_t at;
    const allocation_t *allocation = allocation_of(s, value, &at);
    return allocation_place(allocation, at);
}

static lh_status_t on_bind(exchange_t *x)
{
    scene_t *s = (scene_t *)x;
    const engine_t *e = s->rig.engine;
    if (s->word_at != 0) s->word = allocation_place(&e->pinned, s->word_at);
    for (uint32_t i = 0; i < e->handover_count; i++) {
        doubled_t *d = &s->list[i];
        if (e->handovers[i] == NULL) continue;
        for (uint32_t k = 0; k < 2; k++)
            d->places[k] = place_of(s, s->values[i][k]);
        if (e->handovers[i]->native) continue; /* neither mirrors nor words */
        d->from = mirror_of(s, s->values[i][0]);
        d->to = mirror_of(s, s->values[i][1]);
        reached_words[i] = allocation_place(&e->pinned, e->handovers[i]->reached).address;
    }
    return LH_OK;
}

static lh_status_t on_wait(exchange_t *x, const transfer_t *t)
{
    const doubled_t *d = (const doubled_t *)t;
    const struct timespec nap = {0, 50000};
    (void)x;
    while (d->running)
        (void)nanosleep(&nap, NULL);
    return LH_OK;
}

static lh_status_t on_start(exchange_t *x, const transfer_t *t, const transfer_gate_t *gate)
{
    scene_t *s = (scene_t *)x;
    doubled_t *d = (doubled_t *)(uintptr_t)t;
    assert_non_null(gate);
    assert_false(d->running); /* the host waits before it starts one anew */
    if (s->starts++ == s->lost_from) return fail(LH_TIMED_OUT, "a peer is lost");
    d->gate = *gate;
    d->running = true;
    return LH_OK;
}

/* ---- a device that leaves out a wait ---- */

static const lh_device_api_t *real_api;
static const engine_t *engine;
static uint32_t waits, left_out; /* so far in this phase; the one that is left out */
static uint32_t where;           /* of the scenes that are played */
static bool beside;              /* on the queue: the host's transfer does not take over */
static bool last_only;           /* the last round of a step starts transfers, no other */

static bool is_left_out(void)
{
    return waits++ == left_out;
}

/* On the queue only waits of the exchange's own stream and waits for it are left out. The other scenes have
 * the rest; here a stream that waits for both, what is made and the exchange, needs only the later one. */
static bool is_one_of(const lh_stream_t *s, const lh_event_t *e)
{
    return where != ON_QUEUE || s == engine->exchanging || e == engine->exchanged;
}

static lh_status_t wait_maybe(lh_stream_t *s, lh_event_t *e)
{
    return is_one_of(s, e) && is_left_out() ? LH_OK : real_api->wait(s, e);
}

/* The exchange takes the engine's stream as it is. */
static lh_status_t native_none(lh_stream_t *s, lh_native_t *out)
{
    (void)s, (void)out;
    return LH_OK;
}

/* The control thread's waits for what is still queued, for ends of programs and for all else; the gate's
 * thread asks without a time. */
static uint32_t end_waits, host_waits;

static bool is_end(const lh_event_t *e)
{
    for (uint32_t i = 0; i < engine->program_count; i++)
        for (uint32_t k = 0; k < STAGING_SLOTS; k++)
            if (engine->programs[i]->done[k] == e) return true;
    return false;
}

static lh_status_t test_counted(lh_event_t *e, uint64_t timeout_ns)
{
    uint32_t *const count = is_end(e) ? &end_waits : &host_waits;
    if (timeout_ns > 0 && real_api->test(e, 0) == LH_AGAIN) (*count)++;
    return real_api->test(e, timeout_ns);
}

/* Streams that hold until the host sets a word, so far in this phase; whether no capture takes that. */
static uint32_t holds;
static bool refuses;

/* The word that says where the device stands only counts its time. */
static lh_status_t await_maybe(lh_stream_t *s, const lh_place_t *word)
{
    if (refuses && engine->capturing) return fail(LH_UNSUPPORTED, "no word in a capture");
    for (uint32_t i = 0; i < LISTED; i++)
        if (word->address == reached_words[i]) return real_api->await(s, word);
    holds++;
    return where != ON_QUEUE && is_left_out() ? LH_OK : real_api->await(s, word);
}

/* ---- transfers on the device's queue ---- */

/* Turns of the queue between reading and writing, and bytes that each one fills. */
enum { TRAVELS = 12, TRAVEL_BYTES = 64 };

static lh_status_t on_native(exchange_t *x, const transfer_t *t, bool *native, uint64_t *bytes)
{
    (void)x;
    *native = t->number != TAKEN_OVER;
    *bytes = *native ? sizeof(float) * ELEMENTS + TRAVEL_BYTES : 0;
    return LH_OK;
}

/* Reads as soon as it may and writes late, as the doubler does: what is read too early, at either end, is of
 * the run before. */
static lh_status_t on_queue(exchange_t *x, const transfer_t *t)
{
    scene_t *s = (scene_t *)x;
    const engine_t *e = s->rig.engine;
    const lh_place_t *places = ((const doubled_t *)t)->places;
    const uint64_t bytes = sizeof(float) * ELEMENTS;
    if (s->starts++ == s->lost_from) return fail(LH_TIMED_OUT, "a peer is lost");
    const lh_place_t held = allocation_place(&e->workspace, 0),
                     filled = allocation_place(&e->workspace, bytes);
    lh_status_t status = e->api->copy(e->exchanging, &held, &places[0], bytes);
    if (status == LH_OK && beside) status = e->api->await(e->exchanging, &s->word);
    for (uint32_t i = 0; i < TRAVELS && status == LH_OK; i++)
        status = e->api->fill(e->exchanging, &filled, 0, TRAVEL_BYTES);
    return status == LH_OK ? e->api->copy(e->exchanging, &places[1], &held, bytes) : status;
}

/* ---- the two programs ---- */

static uint32_t doubled_value(scene_t *s, program_t *p, uint32_t x, uint32_t out)
{
    const uint32_t slots[] = {x, x, out};
    flow_kernel(p->flow, op_table_find(s->rig.ops, "add"), NULL, slots);
    return out;
}

static void call_put(scene_t *s, program_t *p, uint32_t kind, uint32_t transfer,
                     const flow_moved_t *moved)
{
    const flow_insert_t one = {.at = p->flow->call_count,
                               .call = {.kind = kind,
                                        .transfer = &s->list[transfer].transfer,
                                        .last_only = last_only && kind == FLOW_COLLECTIVE,
                                        .moved = *moved}};
    flow_weave(p->flow, &one, 1);
}

static void programs_write(scene_t *s)
{
    const uint64_t shape[] = {1, ELEMENTS};
    const lh_arg_t arg = flow_arg(LH_DTYPE_F32, 2, shape);
    const program_how_t how = {.use = USE_DECODE, .sequences = 1, .rows = 1};
    rig_t *r = &s->rig;
    OK(program_empty(r->engine, r->weights, &how, &s->first));
    OK(program_empty(r->engine, r->weights, &how, &s->second));
    flow_t *f = s->first->flow, *g = s->second->flow;

    const uint32_t x = program_input_value(s->first, LH_INPUT_WEIGHTS, &arg);
    uint32_t y = doubled_value(s, s->first, x, flow_activation(f, &arg));
    if (s->where == ON_QUEUE) y = doubled_value(s, s->first, y, flow_activation(f, &arg));
    const uint32_t z = flow_activation(f, &arg);
    const flow_moved_t inside = flow_moved(f, &y, 1, &z, 1);
    call_put(s, s->first, FLOW_COLLECTIVE, 0, &inside);
    /* Nothing but the second transfer waits for the first. */
    if (s->where == ON_QUEUE) call_put(s, s->first, FLOW_COLLECTIVE, TAKEN_OVER, &inside);
    call_put(s, s->first, FLOW_WAIT, s->where == ON_QUEUE ? TAKEN_OVER : 0, &inside);
    const uint32_t w = doubled_value(s, s->first, z,
                                     program_output_value(s->first, OUTPUT_LOGITS, &arg, false));
    const uint32_t shared = program_output_value(s->first, OUTPUT_STATS, &arg, false);
    const flow_moved_t over = flow_moved(f, &w, 1, &shared, 1);
    call_put(s, s->first, FLOW_COLLECTIVE, 1, &over);
    memcpy(s->values, (const uint32_t[LISTED][2]){{y, z}, {w, shared}, {z, z}}, sizeof(s->values));

    /* The same memory, as the second program sees it. */
    const uint32_t buffer = flow_buffer(
        g, &r->engine->outputs, s->first->outputs[OUTPUT_STATS].offset, sizeof(float) * ELEMENTS);
    const uint32_t seen = flow_value(g, &arg, buffer, 0);
    const flow_moved_t came = flow_moved(g, &seen, 0, &seen, 1);
    call_put(s, s->second, FLOW_WAIT, 1, &came);
    (void)doubled_value(s, s->second, seen,
                        program_output_value(s->second, OUTPUT_LOGITS, &arg, false));
    OK(f->status);
    OK(g->status);
}

/* The device moves y = x + x to z and the host doubles it into u meanwhile: z + u is given out. */
static void beside_write(scene_t *s)
{
    const uint64_t shape[] = {1, ELEMENTS};
    const lh_arg_t arg = flow_arg(LH_DTYPE_F32, 2, shape);
    const program_how_t how = {.use = USE_DECODE, .sequences = 1, .rows = 1};
    OK(allocation_take(&s->rig.engine->pinned, 64, 64, &s->word_at));
    OK(program_empty(s->rig.engine, s->rig.weights, &how, &s->first));
    flow_t *f = s->first->flow;
    const uint32_t x = program_input_value(s->first, LH_INPUT_WEIGHTS, &arg);
    const uint32_t y = doubled_value(s, s->first, x, flow_activation(f, &arg));
    const uint32_t z = flow_activation(f, &arg), u = flow_activation(f, &arg);
    const flow_moved_t by_device = flow_moved(f, &y, 1, &z, 1);
    const flow_moved_t by_host = flow_moved(f, &y, 1, &u, 1);
    call_put(s, s->first, FLOW_COLLECTIVE, 0, &by_device);
    call_put(s, s->first, FLOW_COLLECTIVE, TAKEN_OVER, &by_host);
    call_put(s, s->first, FLOW_WAIT, TAKEN_OVER, &by_host);
    call_put(s, s->first, FLOW_WAIT, 0, &by_device);
    const uint32_t slots[] = {z, u, program_output_value(s->first, OUTPUT_LOGITS, &arg, false)};
    flow_kernel(f, op_table_find(s->rig.ops, "add"), NULL, slots);
    memcpy(s->values, (const uint32_t[LISTED][2]){{y, z}, {0, 0}, {y, u}}, sizeof(s->values));
    OK(f->status);
}

typedef struct broken { /* which wait is left out; NO_WAIT: none */
    uint32_t build, run;
} broken_t;

static void scene_open(scene_t *s, bool capture, const broken_t *broken, lh_device_api_t *api)
{
    /* What reads too early must come before what it should have waited for, on a busy machine, too. */
    static const rig_option_t shares[] = {{"dmabuf", "yes"}, {"delay", "2ms"}, {NULL, NULL}};
    const golden_model_t *m = &golden_models[0];
    const rig_how_t how = {.model = m->plugin,
                           .options = m->options,
                           .compute = LH_DTYPE_F32,
                           .device_options = where == IN_PLACE ? shares : NULL};
    memset(s, 0, sizeof(*s));
    memset(reached_words, 0, sizeof(reached_words));
    s->where = where;
    s->lost_from = UINT32_MAX;
    s->exchange = (exchange_t){.arrange = on_arrange,
                               .reach = on_reach,
                               .bind = on_bind,
                               .start = on_start,
                               .wait = on_wait,
                               .native = where == ON_QUEUE ? on_native : NULL,
                               .queue = where == ON_QUEUE ? on_queue : NULL};
    for (uint32_t i = 0; i < LISTED; i++)
        s->list[i].transfer = (transfer_t){.number = i,
                                           .op = COLLECTIVE_ALL_REDUCE,
                                           .group = LH_GROUP_DATA,
                                           .ways = 2,
                                           .dtype = LH_DTYPE_F32,
                                           .elements = ELEMENTS,
                                           .takes_over = i == TAKEN_OVER && !beside};
    rig_open_how(&s->rig, &how);
    real_api = s->rig.engine->api;
    *api = *real_api;
    api->wait = wait_maybe;
    api->await = await_maybe;
    api->test = test_counted;
    api->native = native_none;
    s->rig.engine->api = api;
    s->rig.engine->how.no_capture = !capture;
    engine = s->rig.engine;
    engine_use_exchange(s->rig.engine, &s->exchange);
    if (beside)
        beside_write(s);
    else
        programs_write(s);
    waits = 0;
    left_out = broken->build;
    s->status = engine_build(s->rig.engine);
    assert_int_equal(pthread_create(&s->thread, NULL, doubler, s), 0);
}

/* What a failure has left in queues is engine_close's to let go on. */
static void scene_close(scene_t *s)
{
    for (uint32_t i = 0; i < LISTED && s->status == LH_OK; i++)
        (void)on_wait(&s->exchange, &s->list[i].transfer); /* who was not waited for */
    s->stop = true;
    (void)pthread_join(s->thread, NULL);
    left_out = NO_WAIT;
    rig_close(&s->rig);
    for (uint32_t i = 0; i < 2; i++)
        if (s->seen[i] != NULL) (void)munmap(s->seen[i], s->bytes[i]);
}

static float in[ELEMENTS], out[ELEMENTS];

/* Both programs are queued; nobody waits for them. Where the first has rounds, runs are those of steps. */
static void run_queue(scene_t *s, uint32_t run)
{
    const uint32_t rounds = s->first->rounds;
    for (uint32_t i = 0; i < ELEMENTS; i++)
        in[i] = (float)(run * 7 + i % 97 + 1);
    s->status = program_input(s->first, LH_INPUT_WEIGHTS, in, sizeof(in));
    if (s->status == LH_OK) s->status = program_run(s->first, rounds == 0 ? 0 : run % rounds);
    if (s->status == LH_OK && s->second != NULL) s->status = program_run(s->second, 0);
}

/* One run of both; false: other numbers came, or the host was told of a mistake. */
static bool run_once(scene_t *s, uint32_t run, const broken_t *broken)
{
    const bool whole = broken->run == NO_WAIT && broken->build == NO_WAIT;
    const call_list_t *list = &s->first->lists[0];
    const bool first = !list->ran && list->replay == NULL;
    waits = end_waits = host_waits = holds = 0;
    left_out = broken->run;
    run_queue(s, run);
    const uint32_t counted = waits;
    if (whole) assert_int_equal(host_waits, 0);
    if (whole && !s->ahead) assert_int_equal(end_waits, 0);
    if (whole && s->status == LH_OK && first) assert_int_equal(holds, 0);
    if (s->status == LH_OK) s->status = program_output(s->second, OUTPUT_LOGITS, out, sizeof(out));
    waits = counted;
    if (s->status != LH_OK) return false;
    for (uint32_t i = 0; i < ELEMENTS; i++)
        if (out[i] != 32 * in[i]) return false;
    return true;
}

/* How the lists run: captured before they ever ran, both or the second program's alone, or as in a training by
 * their second runs, which the device takes or not; it may give no replay of them, or have no function for it. */
enum { LAUNCHED, REPLAYED, SECOND_REPLAYED, LAUNCHED_AND_REPLAYED, REFUSED, EMPTY, LACKING };

static lh_status_t capture_end_empty(lh_stream_t *s, lh_replay_t **replay)
{
    lh_replay_t *made = NULL;
    const lh_status_t status = real_api->capture_end(s, &made);
    if (status == LH_OK) real_api->replay_free(made);
    *replay = NULL;
    return status;
}

/* Before they ever ran: of both programs, or of the second alone. */
static void lists_capture(scene_t *s, bool both)
{
    program_t *const programs[] = {s->first, s->second};
    for (uint32_t i = both ? 0 : 1; i < 2 && s->status == LH_OK; i++)
        s->status = call_list_capture(s->rig.engine, &programs[i]->lists[0]);
}

/* Whole, or in the pieces between transfers that are on the queue. */
static bool is_captured(const program_t *p)
{
    const call_list_t *list = &p->lists[0];
    return where == ON_QUEUE ? list->piece_count > 0 : list->replay != NULL;
}

/* Waits of the build and of a run; whether all runs were right. */
static bool scene_play(uint32_t mode, const broken_t *broken, broken_t *counted)
{
    scene_t *s = calloc(1, sizeof(*s));
    lh_device_api_t api;
    bool right = true;
    const bool captures = mode != LAUNCHED && mode < REFUSED;
    const bool whole = broken->run == NO_WAIT && broken->build == NO_WAIT;
    assert_non_null(s);
    refuses = mode == REFUSED;
    scene_open(s, mode != LAUNCHED, broken, &api);
    if (mode == EMPTY) api.capture_end = capture_end_empty;
    if (mode == LACKING) api.capture_begin = NULL;
    if (mode == REPLAYED || mode == SECOND_REPLAYED) lists_capture(s, mode == REPLAYED);
    counted->build = waits;
    right = s->status == LH_OK;
    if (right) assert_int_equal(is_captured(s->first), mode == REPLAYED);
    for (uint32_t run = 0; run < RUNS && right; run++) {
        right = run_once(s, run, broken);
        counted->run = waits;
    }
    if (right) assert_int_equal(is_captured(s->first), captures);
    if (right) assert_int_equal(is_captured(s->second), captures);
    if (right && mode == LAUNCHED) assert_true(holds > 0); /* of the last run */
    left_out = NO_WAIT;
    /* The host is ahead: it waits before it starts a transfer of its own whose last run is not over, and for the
     * end of a program's run before the last, as there are two slots for outputs. The latter shows where no
     * transfer of the host's stands behind a program's last kernel. It waits for nothing else. */
    s->ahead = true;
    host_waits = 0;
    for (uint32_t run = RUNS; run < 2 * RUNS && right; run++) {
        run_queue(s, run);
        right = s->status == LH_OK;
    }
    if (whole) assert_int_equal(host_waits, 0);
    if (right) right = run_once(s, 2 * RUNS, &(broken_t){NO_WAIT, NO_WAIT});
    if (right && whole) {
        assert_int_equal(s->reached, s->transfers);
        /* What is taken over goes out behind the transfer on the queue, when the wait has long been reached. */
        if (where != ON_QUEUE) assert_true(s->at_once < s->transfers);
    }
    /* A list whose transfers are not under way waits for nothing. */
    if (right) OK(program_run(s->second, 0));
    if (right) OK(engine_wait(s->rig.engine));
    scene_close(s);
    free(s);
    return right;
}

static void every_wait_is_needed(uint32_t mode)
{
    broken_t counted, ignored;
    const broken_t none = {NO_WAIT, NO_WAIT};
    assert_true(scene_play(mode, &none, &counted));
    print_message("%u waits in what is captured, %u in a run\n", counted.build, counted.run);
    assert_int_equal(counted.build > 0, mode == REPLAYED && where != ON_QUEUE);
    assert_true(counted.run > 0);
#ifdef __SANITIZE_THREAD__
    return; /* what is left out below is a race, by intention */
#endif
    for (uint32_t i = 0; i < counted.build + counted.run; i++) {
        const bool build = i < counted.build;
        const broken_t one = {build ? i : NO_WAIT, build ? NO_WAIT : i - counted.build};
        const bool right = scene_play(mode, &one, &ignored);
        if (right)
            print_error("all goes well without wait %u of the %s\n", build ? i : one.run,
                        build ? "captured lists" : "run");
        assert_false(right);
    }
}

static void what_is_launched_needs_every_wait(void **state)
{
    (void)state;
    where = IN_MIRRORS;
    every_wait_is_needed(LAUNCHED);
}

static void what_is_replayed_needs_every_wait(void **state)
{
    (void)state;
    where = IN_MIRRORS;
    every_wait_is_needed(REPLAYED);
}

static void what_is_launched_needs_every_wait_in_device_memory(void **state)
{
    (void)state;
    where = IN_PLACE;
    every_wait_is_needed(LAUNCHED);
}

static void what_is_replayed_needs_every_wait_in_device_memory(void **state)
{
    (void)state;
    where = IN_PLACE;
    every_wait_is_needed(REPLAYED);
}

static void what_is_launched_needs_every_wait_for_the_exchange(void **state)
{
    (void)state;
    where = ON_QUEUE;
    every_wait_is_needed(LAUNCHED);
}

/* In pieces: a transfer on the queue is in no capture. */
static void what_is_replayed_needs_every_wait_for_the_exchange(void **state)
{
    (void)state;
    where = ON_QUEUE;
    every_wait_is_needed(REPLAYED);
}

static void all_goes_well(uint32_t mode)
{
    broken_t ignored;
    for (int i = 0; i < 6; i++) {
        where = i % 2 != 0 ? IN_PLACE : IN_MIRRORS;
        assert_true(scene_play(mode, &(broken_t){NO_WAIT, NO_WAIT}, &ignored));
    }
}

static void what_is_launched_once_is_replayed_from_then_on(void **state)
{
    (void)state;
    all_goes_well(LAUNCHED_AND_REPLAYED);
}

/* What the first run has started is held, and the other list's replay awaits the word for it. */
static void a_replay_takes_what_a_first_run_has_started(void **state)
{
    (void)state;
    all_goes_well(SECOND_REPLAYED);
}

static void what_the_device_does_not_capture_is_launched(void **state)
{
    (void)state;
    all_goes_well(REFUSED);
}

static void what_the_device_gives_no_replay_of_is_launched(void **state)
{
    broken_t ignored;
    (void)state;
    for (where = IN_MIRRORS; where <= ON_QUEUE; where++)
        for (uint32_t mode = EMPTY; mode <= LACKING; mode++)
            assert_true(scene_play(mode, &(broken_t){NO_WAIT, NO_WAIT}, &ignored));
}

/* What only the last round of a step starts the device makes for the first time there, when the list has run
 * before: code is loaded, and ranks connect. From the second step on streams hold. */
static void what_a_last_round_first_starts_holds_no_stream(void **state)
{
    enum { ROUNDS = 3, STEPS = 3 };
    (void)state;
    where = ON_QUEUE;
    last_only = true;
    refuses = false;
    for (uint32_t captured = 0; captured < 2; captured++) {
        scene_t *s = calloc(1, sizeof(*s));
        lh_device_api_t api;
        assert_non_null(s);
        scene_open(s, captured != 0, &(broken_t){NO_WAIT, NO_WAIT}, &api);
        OK(s->status);
        s->first->rounds = ROUNDS;
        for (uint32_t run = 0; run < STEPS * ROUNDS; run++) {
            const bool last = run % ROUNDS == ROUNDS - 1;
            holds = 0;
            run_queue(s, run);
            OK(s->status);
            assert_int_equal(holds, last && run >= ROUNDS); /* for the host's one transfer */
            if (!last) continue;
            OK(program_output(s->second, OUTPUT_LOGITS, out, sizeof(out)));
            for (uint32_t i = 0; i < ELEMENTS; i++)
                assert_true(out[i] == 32 * in[i]);
        }
        assert_int_equal(is_captured(s->first), captured != 0);
        scene_close(s);
        free(s);
    }
    last_only = false;
}

/* On the queue a transfer may wait for other ranks that wait for one of the host's, which was started behind it.
 * Here the one on the queue is let go by the end of the other itself, but for the first run. */
static void a_transfer_of_the_host_passes_one_on_the_queue(void **state)
{
    const struct timespec nap = {0, 1000000};
    scene_t *s = calloc(1, sizeof(*s));
    lh_device_api_t api;
    bool over = true, right = true;
    (void)state;
    assert_non_null(s);
    where = ON_QUEUE;
    beside = true;
    refuses = false;
    scene_open(s, false, &(broken_t){NO_WAIT, NO_WAIT}, &api);
    OK(s->status);
    for (uint32_t run = 0; run < 3 && over; run++) {
        s->lets_go = run > 0;
        if (run == 0) word_set(s);
        run_queue(s, run);
        OK(s->status);
        for (uint32_t i = 0; i < 5000 && program_under_way(s->first) > 0; i++)
            (void)nanosleep(&nap, NULL);
        over = program_under_way(s->first) == 0;
        if (!over) word_set(s);
        OK(program_output(s->first, OUTPUT_LOGITS, out, sizeof(out)));
        for (uint32_t i = 0; i < ELEMENTS; i++)
            right = right && out[i] == 6 * in[i];
    }
    scene_close(s);
    free(s);
    beside = false;
    assert_true(over);
    assert_true(right);
}

/* With runs of all transfers under way; those of the host's nobody ends any more. */
static void a_start_that_fails_leaves_no_queue_waiting(void **state)
{
    enum { RUNS_BEFORE = 4 };
    const broken_t none = {NO_WAIT, NO_WAIT};
    (void)state;
    refuses = false;
    for (uint32_t i = 0; i < 4 * TRANSFERS + 2 * LISTED; i++) {
        const bool queued = i >= 4 * TRANSFERS;
        const uint32_t each = queued ? LISTED : TRANSFERS, k = queued ? i - 4 * TRANSFERS : i;
        const bool replayed = k / each % 2 != 0;
        scene_t *s = calloc(1, sizeof(*s));
        lh_device_api_t api;
        assert_non_null(s);
        where = queued ? ON_QUEUE : k >= 2 * TRANSFERS ? IN_PLACE : IN_MIRRORS;
        scene_open(s, replayed, &none, &api);
        if (replayed) lists_capture(s, true);
        OK(s->status);
        s->lost_from = RUNS_BEFORE * each + k % each;
        for (uint32_t run = 0; run < RUNS && s->status == LH_OK; run++)
            run_queue(s, run);
        assert_int_equal(s->status, LH_TIMED_OUT);
        scene_close(s);
        free(s);
    }
}

static bool is_stopping(const lh_host_t *host)
{
    (void)host;
    return true;
}

/* The host waits for all that is queued, and hears that the job is stopped. What is left is let go by the close, which
 * must not record an event that is not past. */
static void a_wait_that_is_given_up_leaves_no_queue_waiting(void **state)
{
    const broken_t none = {NO_WAIT, NO_WAIT};
    (void)state;
    refuses = false;
    (void)alarm(30);
    for (where = IN_MIRRORS; where <= ON_QUEUE; where++) {
        scene_t *s = calloc(1, sizeof(*s));
        lh_device_api_t api;
        assert_non_null(s);
        scene_open(s, false, &none, &api);
        OK(s->status);
        assert_true(run_once(s, 0, &none));
        s->lost = true;
        run_queue(s, 1);
        OK(s->status);
        const lh_host_t *const host = s->rig.engine->how.host;
        lh_host_t stopped = *host;
        stopped.stopping = is_stopping;
        s->rig.engine->how.host = &stopped;
        s->status = engine_wait(s->rig.engine);
        s->rig.engine->how.host = host;
        assert_int_equal(s->status, LH_CANCELLED);
        scene_close(s);
        free(s);
    }
    (void)alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_launched_needs_every_wait),
        cmocka_unit_test(what_is_replayed_needs_every_wait),
        cmocka_unit_test(what_is_launched_needs_every_wait_in_device_memory),
        cmocka_unit_test(what_is_replayed_needs_every_wait_in_device_memory),
        cmocka_unit_test(what_is_launched_needs_every_wait_for_the_exchange),
        cmocka_unit_test(what_is_replayed_needs_every_wait_for_the_exchange),
        cmocka_unit_test(what_is_launched_once_is_replayed_from_then_on),
        cmocka_unit_test(a_replay_takes_what_a_first_run_has_started),
        cmocka_unit_test(what_the_device_does_not_capture_is_launched),
        cmocka_unit_test(what_the_device_gives_no_replay_of_is_launched),
        cmocka_unit_test(what_a_last_round_first_starts_holds_no_stream),
        cmocka_unit_test(a_transfer_of_the_host_passes_one_on_the_queue),
        cmocka_unit_test(a_start_that_fails_leaves_no_queue_waiting),
        cmocka_unit_test(a_wait_that_is_given_up_leaves_no_queue_waiting),
    };
    if (strcmp(rig_device(), "fake") != 0) return 77; /* no queue, no wait */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
