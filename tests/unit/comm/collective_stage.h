/* collective_stage.h - ranks that are threads, over links that take their time (fake_links.h): a scene
 * says how many and where, an actor is one rank with its plans, and what they sum is compared with
 * the canonical order of sums. */
#ifndef COLLECTIVE_STAGE_H
#define COLLECTIVE_STAGE_H

#include <comm/comm.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "canonical_sum.h"
#include "fake_links.h"

#include <cmocka.h>

/* More plans than slots of staging memory. */
enum { ELEMENTS = 20011, PLANS = 6 };

typedef struct scene {
    const char *sites;
    uint32_t rounds, algorithm, limit, delay;
    uint64_t chunk, flight;
    lh_dtype_t dtype, border;
    bool mapped, thread, measured;
    uint32_t refuser; /* a rank, from 1, whose card takes no memory of a device; 0: none */
} scene_t;

typedef struct actor {
    const scene_t *scene;
    pthread_t thread;
    control_t control;
    uint32_t rank;
    world_t *world;
    comm_t *comm;
    char *memory;             /* whole of each plan, then cut */
    char *inputs[FAKE_RANKS]; /* what all ranks put in, as this one works it out */
    collective_t *plans[PLANS];
    uint64_t allocations;
    char trouble[400];
} actor_t;

static job_t job;

static inline void trouble(actor_t *a, const char *text)
{
    if (a->trouble[0] == '\0') (void)snprintf(a->trouble, sizeof(a->trouble), "%s", text);
}

/* What `rank` contributes to a plan in a round. */
static inline void contribution(const actor_t *a, uint32_t rank, uint32_t plan, uint32_t round,
                                char *out)
{
    uint64_t seed = rank * 1000003u + plan * 101u + round * 7919u + 1;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const float value = (float)(int32_t)(seed >> 32) * (float)(1 << (seed >> 28 & 7));
        test_store(a->scene->dtype, out, i, value);
    }
}

static inline uint64_t item(const actor_t *a)
{
    return lh_dtype_bytes(a->scene->dtype);
}

static inline char *whole_of(const actor_t *a, uint32_t plan)
{
    return a->memory + plan * ELEMENTS * item(a);
}

static inline uint32_t owner_of(const group_t *g, uint32_t at)
{
    return at / ((ELEMENTS + g->size - 1) / g->size);
}

static inline void check(actor_t *a, uint32_t plan, uint32_t round)
{
    void *inputs[FAKE_RANKS];
    char text[200], expected[4];
    const group_t *g = comm_group(a->comm, LH_GROUP_DATA);
    for (uint32_t r = 0; r < a->world->row.size; r++) {
        contribution(a, g->ranks[r], plan, round, a->inputs[r]);
        inputs[r] = a->inputs[r];
    }
    const char *whole = whole_of(a, plan), *cut = whole_of(a, PLANS);
    const uint32_t part = (ELEMENTS + g->size - 1) / g->size;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        const uint32_t owner = owner_of(g, i);
        test_store(a->scene->dtype, expected, 0,
                   canonical_sum(g, a->scene->dtype, a->scene->border, inputs, owner, i));
        const char *got = whole + i * item(a);
        if (plan == 1 && owner != g->self) continue;
        if (plan == 1) got = cut + (i - owner * part) * item(a);
        if (memcmp(got, expected, item(a)) == 0) continue;
        (void)snprintf(text, sizeof(text), "%s, round %u, element %u: %g, expected %g",
                       collective_name(a->plans[plan]), round, i,
                       (double)test_load(a->scene->dtype, got, 0),
                       (double)test_load(a->scene->dtype, expected, 0));
        trouble(a, text);
        return;
    }
}

static inline lh_status_t plan_all(actor_t *a)
{
    uint32_t arena;
    lh_status_t status = comm_arena(a->comm, a->memory, (PLANS + 1) * ELEMENTS * item(a), 1, 0,
                                    &arena);
    coll_how_t how = {.op = COLL_ALL_REDUCE,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = a->scene->dtype,
                      .border = a->scene->border,
                      .elements = ELEMENTS,
                      .service = LH_SERVICE_GRADIENT,
                      .algorithm = a->scene->algorithm,
                      .chunk_bytes = a->scene->chunk};
    static const char *const names[PLANS] = {"first",    "cut off", "third",
                                             "gathered", "fifth",   "sixth"};
    for (uint32_t p = 0; status == LH_OK && p < PLANS; p++) {
        how.name = names[p];
        how.whole = (coll_place_t){whole_of(a, p), arena};
        how.cut = (coll_place_t){p == 1 ? whole_of(a, PLANS) : NULL, arena};
        how.op = p == 1 || p == 3 ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE;
        status = collective_new(a->comm, &how, &a->plans[p]);
    }
    return status;
}

/* Every rank expects as many runs as it likes, some none, before it has what it puts in. */
static inline void expect_some(actor_t *a, collective_t *gather, uint32_t round)
{
    const bool far = a->world->row.nodes > 1; /* else nothing is expected */
    const uint32_t count = far ? (a->rank * 3 + round * 2) % (PLANS + 2) : 0;
    if (!far && collective_expect(a->plans[0], false)) trouble(a, "a run expected on one machine");
    for (uint32_t p = 0; p < count; p++)
        if (!collective_expect(p < PLANS ? a->plans[p] : gather, false))
            trouble(a, "a run that can't be expected");
    if (count > 0 && collective_expect(a->plans[0], false)) trouble(a, "a run expected twice");
}

static inline lh_status_t run_round(actor_t *a, collective_t *gather, uint32_t round)
{
    expect_some(a, gather, round);
    for (uint32_t p = 0; p < PLANS; p++)
        contribution(a, a->world->row.rank, p, round, whole_of(a, p));
    const uint64_t before = mem_count();
    lh_status_t status = LH_OK;
    for (uint32_t p = 0; status == LH_OK && p < PLANS; p++)
        status = collective_start(a->plans[p]);
    if (status == LH_OK) status = collective_start(gather);
    if (status == LH_OK) status = collective_wait(gather);
    for (uint32_t p = PLANS; status == LH_OK && p-- > 0;)
        status = collective_wait(a->plans[p]);
    a->allocations += mem_count() - before;
    return status;
}

static inline void act(actor_t *a)
{
    collective_t *gather;
    lh_status_t status = plan_all(a);
    const coll_how_t how = {.name = "back together",
                            .op = COLL_ALL_GATHER,
                            .group = comm_group(a->comm, LH_GROUP_DATA),
                            .dtype = a->scene->dtype,
                            .elements = ELEMENTS,
                            .whole = {whole_of(a, 3), 0},
                            .service = LH_SERVICE_GRADIENT,
                            .chunk_bytes = a->scene->chunk,
                            .after = a->plans[3]};
    if (status == LH_OK) status = collective_new(a->comm, &how, &gather);
    if (status == LH_OK) status = comm_connect(a->comm);
    for (uint32_t round = 0; status == LH_OK && round < a->scene->rounds; round++) {
        status = run_round(a, gather, round);
        for (uint32_t p = 0; status == LH_OK && p < PLANS; p++)
            check(a, p, round);
    }
    if (status != LH_OK) trouble(a, fail_reason());
    collective_times_t times;
    if (status == LH_OK) collective_times(gather, &times);
    if (status == LH_OK && times.runs != a->scene->rounds) trouble(a, "runs are not counted");
}

static inline void open_actor(actor_t *a)
{
    a->control.rank = a->rank;
    if (world_new(a->rank, hub.size, &a->world) != LH_OK) return;
    for (uint32_t r = 0; r < hub.size; r++)
        (void)snprintf(a->world->ranks[r].site_name, WORLD_SITE_NAME, "%c", a->scene->sites[r]);
    world_number(a->world);
    a->memory = mem_new((PLANS + 1) * ELEMENTS * sizeof(float));
    for (uint32_t r = 0; r < hub.size; r++)
        a->inputs[r] = mem_new(ELEMENTS * sizeof(float));
    const comm_how_t how = {
        .job = &job, .world = a->world, .control = &a->control, .thread = a->scene->thread};
    if (comm_open(&how, &a->comm) != LH_OK) trouble(a, fail_reason());
}

static inline void close_actor(actor_t *a)
{
    comm_close(a->comm);
    world_free(a->world);
    mem_free(a->memory);
    for (uint32_t r = 0; r < hub.size; r++)
        mem_free(a->inputs[r]);
}

typedef void play_t(actor_t *a);
typedef struct part {
    actor_t actor;
    play_t *play;
} part_t;

static inline void *on_stage(void *argument)
{
    part_t *p = argument;
    p->play(&p->actor);
    return NULL;
}

/* Opens all, plays, and closes once all are through; texts[rank] gets what went wrong. */
static inline void play_scene(const scene_t *scene, play_t *play, char texts[][400])
{
    static part_t parts[FAKE_RANKS];
    memset(parts, 0, sizeof(parts));
    hub_reset((uint32_t)strlen(scene->sites));
    hub.mapped = scene->mapped;
    hub.flight = scene->flight;
    hub.measured = scene->measured;
    hub.refuser = (int)scene->refuser - 1;
    if (scene->limit != 0) hub.limit = scene->limit;
    if (scene->delay != 0) hub.delay = scene->delay;
    for (uint32_t r = 0; r < hub.size; r++) {
        parts[r] = (part_t){{.scene = scene, .rank = r}, play};
        open_actor(&parts[r].actor);
    }
    for (uint32_t r = 0; r < hub.size; r++)
        assert_int_equal(pthread_create(&parts[r].actor.thread, NULL, on_stage, &parts[r]), 0);
    for (uint32_t r = 0; r < hub.size; r++)
        (void)pthread_join(parts[r].actor.thread, NULL);
    for (uint32_t r = 0; r < hub.size; r++) {
        (void)snprintf(texts[r], 400, "%s", parts[r].actor.trouble);
        assert_int_equal(parts[r].actor.allocations, 0);
        close_actor(&parts[r].actor);
    }
}

static inline void all_is_well(const scene_t *scene)
{
    char texts[FAKE_RANKS][400];
    play_scene(scene, act, texts);
    for (uint32_t r = 0; r < hub.size; r++)
        if (texts[r][0] != '\0') fail_msg("sites %s, rank %u: %s", scene->sites, r, texts[r]);
}

static const scene_t plain = {
    .sites = "aa", .rounds = 3, .dtype = LH_DTYPE_F32, .chunk = 4096, .delay = 3, .limit = 5};

#endif
