/* Collectives between ranks that are threads, over links that take their time. */
#include <comm/comm.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "canonical_sum.h"
#include "fake_links.h"

#include <cmocka.h>

enum { ELEMENTS = 20011, PLANS = 4 };

typedef struct scene {
    const char *sites;
    uint32_t rounds, algorithm, limit, delay;
    uint64_t chunk;
    lh_dtype_t dtype;
    bool mapped, thread;
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

static void trouble(actor_t *a, const char *text)
{
    if (a->trouble[0] == '\0') (void)snprintf(a->trouble, sizeof(a->trouble), "%s", text);
}

/* What `rank` contributes to a plan in a round. */
static void contribution(const actor_t *a, uint32_t rank, uint32_t plan, uint32_t round, char *out)
{
    uint64_t seed = rank * 1000003u + plan * 101u + round * 7919u + 1;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const float value = (float)(int32_t)(seed >> 32) * (float)(1 << (seed >> 28 & 7));
        test_store(a->scene->dtype, out, i, value);
    }
}

static uint64_t item(const actor_t *a)
{
    return dtype_bytes(a->scene->dtype);
}

static char *whole_of(const actor_t *a, uint32_t plan)
{
    return a->memory + plan * ELEMENTS * item(a);
}

static uint32_t owner_of(const group_t *g, uint32_t at)
{
    return at / ((ELEMENTS + g->size - 1) / g->size);
}

static void check(actor_t *a, uint32_t plan, uint32_t round)
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
                   canonical_sum(g, a->scene->dtype, inputs, owner, i));
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

static lh_status_t plan_all(actor_t *a)
{
    uint32_t arena;
    lh_status_t status = comm_arena(a->comm, a->memory, (PLANS + 1) * ELEMENTS * item(a), 1, 0,
                                    &arena);
    coll_how_t how = {.op = COLL_ALL_REDUCE,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = a->scene->dtype,
                      .elements = ELEMENTS,
                      .service = LH_SERVICE_GRADIENT,
                      .algorithm = a->scene->algorithm,
                      .chunk_bytes = a->scene->chunk};
    static const char *const names[PLANS] = {"first", "cut off", "third", "gathered"};
    for (uint32_t p = 0; status == LH_OK && p < PLANS; p++) {
        how.name = names[p];
        how.whole = (coll_place_t){whole_of(a, p), arena};
        how.cut = (coll_place_t){p == 1 ? whole_of(a, PLANS) : NULL, arena};
        how.op = p == 1 || p == 3 ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE;
        status = collective_new(a->comm, &how, &a->plans[p]);
    }
    return status;
}

static lh_status_t run_round(actor_t *a, collective_t *gather, uint32_t round)
{
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

static void act(actor_t *a)
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

static void open_actor(actor_t *a)
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

static void close_actor(actor_t *a)
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

static void *on_stage(void *argument)
{
    part_t *p = argument;
    p->play(&p->actor);
    return NULL;
}

/* Opens all, plays, and closes once all are through; texts[rank] gets what went wrong. */
static void play_scene(const scene_t *scene, play_t *play, char texts[][400])
{
    static part_t parts[FAKE_RANKS];
    memset(parts, 0, sizeof(parts));
    hub_reset((uint32_t)strlen(scene->sites));
    hub.mapped = scene->mapped;
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

static void all_is_well(const scene_t *scene)
{
    char texts[FAKE_RANKS][400];
    play_scene(scene, act, texts);
    for (uint32_t r = 0; r < hub.size; r++)
        if (texts[r][0] != '\0') fail_msg("sites %s, rank %u: %s", scene->sites, r, texts[r]);
}

static const scene_t plain = {
    .sites = "aa", .rounds = 3, .dtype = LH_DTYPE_F32, .chunk = 4096, .delay = 3, .limit = 5};

static void several_run_at_a_time_and_again(void **state)
{
    (void)state;
    static const char *const shapes[] = {"a", "aa", "aaa", "aabb", "aaab", "abbc"};
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t v = 0; v < 8; v++) {
            scene_t s = plain;
            s.sites = shapes[i];
            s.mapped = (v & 1) != 0;
            s.thread = (v & 2) != 0;
            s.algorithm = (v & 4) != 0 ? COLL_RING : COLL_AUTO;
            s.dtype = (v & 3) == 0 ? LH_DTYPE_BF16 : LH_DTYPE_F32;
            all_is_well(&s);
        }
}

static void a_hundred_runs_give_the_same(void **state)
{
    (void)state;
    scene_t s = plain;
    s.sites = "aab";
    s.rounds = 100;
    s.thread = true;
    all_is_well(&s);
}

static void one_message_at_a_time_is_enough(void **state)
{
    (void)state;
    scene_t s = plain;
    s.sites = "aaaa";
    s.limit = 1;
    all_is_well(&s);
}

static void plan_other_name(actor_t *a)
{
    coll_how_t how = {.name = a->rank == 1 ? "bias" : "weight",
                      .op = COLL_ALL_REDUCE,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = 10,
                      .service = LH_SERVICE_GRADIENT};
    collective_t *x;
    uint32_t arena;
    lh_status_t status = comm_arena(a->comm, a->memory, 4096, -1, 0, &arena);
    how.whole = (coll_place_t){a->memory, arena};
    if (status == LH_OK) status = collective_new(a->comm, &how, &x);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status == LH_MISMATCH) trouble(a, fail_reason());
}

static void other_plans_are_refused_on_all_ranks(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.sites = "aaa";
    play_scene(&s, plan_other_name, texts);
    for (uint32_t r = 0; r < 3; r++)
        assert_string_equal(texts[r], "where rank 0 plans the all-reduce of weight, rank 1 plans "
                                      "the all-reduce of bias");
}

static void wait_for_nobody(actor_t *a)
{
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK || a->rank == 1) return; /* rank 1 never starts */
    status = collective_start(a->plans[0]);
    if (status == LH_OK) status = collective_wait(a->plans[0]);
    if (status == LH_TIMED_OUT) trouble(a, fail_reason());
}

static void a_wait_ends_with_the_name_of_who_is_missing(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    job.comm.timeout_ns = 50000000;
    play_scene(&plain, wait_for_nobody, texts);
    job.comm.timeout_ns = 60000000000;
    assert_non_null(
        strstr(texts[0], "all-reduce of first stood still for 0.1 s, waiting for rank 1"));
    assert_int_equal(hub.failures, 1);
}

static void lose_a_peer(actor_t *a)
{
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    (void)pthread_mutex_lock(&hub.lock);
    if (a->rank == 1) hub.dead = 1;
    (void)pthread_mutex_unlock(&hub.lock);
    if (status == LH_OK) status = collective_start(a->plans[0]);
    if (status == LH_OK) status = collective_wait(a->plans[0]);
    if (status == LH_OK) return;
    if (collective_start(a->plans[1]) == status) trouble(a, fail_reason());
}

static void a_lost_peer_ends_all(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.sites = "aaa";
    s.thread = true;
    s.delay = 1000;
    play_scene(&s, lose_a_peer, texts);
    for (uint32_t r = 0; r < 3; r++)
        assert_string_equal(texts[r], "rank 1 is lost: said the test");
}

static void plan_nonsense(actor_t *a)
{
    collective_t *x;
    uint32_t arena;
    const coll_segment_t outside = {5, 10, 0};
    const coll_piece_t pieces[] = {{&outside, 1}, {NULL, 0}};
    if (comm_arena(a->comm, a->memory, 4096, -1, 0, &arena) != LH_OK) return;
    coll_how_t how = {.name = "odd",
                      .op = COLL_ALL_REDUCE,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = 10,
                      .whole = {a->memory, arena},
                      .service = LH_SERVICE_GRADIENT};
    how.pieces = pieces;
    if (collective_new(a->comm, &how, &x) != LH_INVALID) trouble(a, "outside");
    how.pieces = NULL;
    how.elements = 1025;
    if (collective_new(a->comm, &how, &x) != LH_INVALID) trouble(a, "too long");
    how.elements = 10;
    how.dtype = LH_DTYPE_I32;
    if (collective_new(a->comm, &how, &x) != LH_UNSUPPORTED) trouble(a, "dtype");
    how.dtype = LH_DTYPE_F32;
    how.algorithm = COLL_HALVING;
    if (collective_new(a->comm, &how, &x) != LH_UNSUPPORTED) trouble(a, "halving");
    how.algorithm = COLL_AUTO;
    how.root = 2;
    how.op = COLL_BROADCAST;
    if (collective_new(a->comm, &how, &x) != LH_INVALID) trouble(a, "root");
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    play_scene(&plain, plan_nonsense, texts);
    assert_string_equal(texts[0], "");
}

int main(void)
{
    job.comm.timeout_ns = 60000000000;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_run_at_a_time_and_again),
        cmocka_unit_test(a_hundred_runs_give_the_same),
        cmocka_unit_test(one_message_at_a_time_is_enough),
        cmocka_unit_test(other_plans_are_refused_on_all_ranks),
        cmocka_unit_test(a_wait_ends_with_the_name_of_who_is_missing),
        cmocka_unit_test(a_lost_peer_ends_all),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
