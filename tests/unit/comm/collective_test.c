/* Collectives between ranks that are threads, over links that take their time. */
#include <base/digest.h>
#include <comm/comm.h>

#include <math.h>
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
    return lh_dtype_bytes(a->scene->dtype);
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

static lh_status_t plan_all(actor_t *a)
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
static void expect_some(actor_t *a, collective_t *gather, uint32_t round)
{
    const uint32_t count = (a->rank * 3 + round * 2) % (PLANS + 2);
    for (uint32_t p = 0; p < count; p++)
        if (!collective_expect(p < PLANS ? a->plans[p] : gather, false))
            trouble(a, "a run that can't be expected");
    if (count > 0 && collective_expect(a->plans[0], false)) trouble(a, "a run expected twice");
}

static lh_status_t run_round(actor_t *a, collective_t *gather, uint32_t round)
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
    hub.flight = scene->flight;
    hub.measured = scene->measured;
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
        for (uint32_t v = 0; v < 16; v++) {
            scene_t s = plain;
            s.sites = shapes[i];
            s.border = (v & 8) != 0 ? LH_DTYPE_BF16 : 0;
            s.mapped = (v & 1) != 0;
            s.thread = (v & 2) != 0;
            s.algorithm = (v & 4) != 0 ? COLL_RING : COLL_AUTO;
            s.dtype = (v & 3) == 0 ? LH_DTYPE_BF16 : LH_DTYPE_F32;
            all_is_well(&s);
        }
}

static void every_way_between_sites_gives_the_same(void **state)
{
    (void)state;
    static const char *const shapes[] = {"ab", "abc", "abbc", "aabbc", "abcd"};
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t way = BETWEEN_AUTO; way < BETWEEN_WAYS; way++) {
            scene_t s = plain;
            s.sites = shapes[i];
            s.measured = way % 2 == 0;
            s.border = way != BETWEEN_CHAIN ? LH_DTYPE_BF16 : 0;
            job.comm.between_sites = way;
            all_is_well(&s);
        }
    job.comm.between_sites = BETWEEN_AUTO;
}

/* ---- a border of int8 ---- */

/* Of the sums of all steps on a rank, of what all-reduce and reduce-scatter leave. */
static uint64_t sums_digest[FAKE_RANKS];
enum { STEPS = 40 };

/* The same gradient in every step: what was applied comes to it in the mean, though a step alone is
 * only as exact as a scale. Steps of 127 of the largest magnitude, so `most` is of all elements. */
static void same_gradient_again(actor_t *a)
{
    const group_t *g = comm_group(a->comm, LH_GROUP_DATA);
    const uint32_t part = (ELEMENTS + g->size - 1) / g->size, mine = part * g->self;
    const uint32_t end = mine + part < ELEMENTS ? mine + part : ELEMENTS;
    static _Thread_local double exact[ELEMENTS], sums[ELEMENTS];
    double most = 0, worst = 0, first = 0;
    uint64_t digest = 1;
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK) trouble(a, fail_reason());
    memset(exact, 0, sizeof(exact));
    memset(sums, 0, sizeof(sums));
    for (uint32_t r = 0; r < g->size; r++) {
        contribution(a, g->ranks[r], 0, 0, a->inputs[r]);
        for (uint32_t i = 0; i < ELEMENTS; i++)
            exact[i] += (double)test_load(a->scene->dtype, a->inputs[r], i);
    }
    for (uint32_t i = 0; i < ELEMENTS; i++)
        most = fmax(most, fabs(exact[i]));
    for (uint32_t step = 0; status == LH_OK && step < STEPS; step++) {
        for (uint32_t p = 0; p < 2; p++)
            contribution(a, a->world->row.rank, 0, 0, whole_of(a, p));
        for (uint32_t p = 0; status == LH_OK && p < 2; p++)
            status = collective_start(a->plans[p]);
        for (uint32_t p = 0; status == LH_OK && p < 2; p++)
            status = collective_wait(a->plans[p]);
        digest = digest_xxh3(whole_of(a, 0), ELEMENTS * item(a)) + digest * 31;
        if (end > mine && memcmp(whole_of(a, 0) + mine * item(a), whole_of(a, PLANS),
                                 (end - mine) * item(a)) != 0)
            trouble(a, "an all-reduce and a reduce-scatter give different sums");
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            const double got = (double)test_load(a->scene->dtype, whole_of(a, 0), i);
            sums[i] += got;
            const double off = fabs(got - exact[i]) - fabs(exact[i]) / 256;
            if (step == 0) first = fmax(first, off);
        }
    }
    /* Parts may be larger than their sum: of two sites up to `most` of each is not counted. */
    for (uint32_t i = 0; i < ELEMENTS; i++)
        worst = fmax(worst, fabs(sums[i] / STEPS - exact[i]) - fabs(exact[i]) / 256);
    const double bound = g->sites * most / 127;
    if (first > bound || first < bound / 100)
        trouble(a, "the first step is not as exact as a scale");
    if (worst > bound / STEPS * 2) trouble(a, "the mean is not what was put in");
    sums_digest[a->rank] = digest;
}

static void int8_adds_up_to_the_gradient_whatever_the_way(void **state)
{
    (void)state;
    static const char *const shapes[] = {"ab", "aabb", "abc", "abbc"};
    char texts[FAKE_RANKS][400];
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        uint64_t digest = 0;
        for (uint32_t v = 0; v < 2 * BETWEEN_WAYS; v++) {
            scene_t s = plain;
            s.sites = shapes[i];
            s.border = LH_DTYPE_I8;
            s.algorithm = v % 3 == 0 ? COLL_RING : COLL_DIRECT;
            s.chunk = v % 2 == 0 ? 1000 : 1 << 16;
            s.thread = v == 3;
            job.comm.between_sites = v % BETWEEN_WAYS;
            play_scene(&s, same_gradient_again, texts);
            for (uint32_t r = 0; r < hub.size; r++) {
                if (texts[r][0] != '\0') fail_msg("sites %s, rank %u: %s", s.sites, r, texts[r]);
                if (r == 0 && v == 0) digest = sums_digest[0];
                assert_true(sums_digest[r] == digest);
            }
        }
    }
    job.comm.between_sites = BETWEEN_AUTO;
}

/* Two sites: bytes an element and direction, all ranks of a site together. */
static double sent_across[FAKE_RANKS][2];

static void count_packed(actor_t *a)
{
    uint64_t sent[4], staging;
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK) trouble(a, fail_reason());
    for (uint32_t p = 0; p < 2; p++) {
        collective_bytes(a->plans[p], sent, &staging);
        sent_across[a->rank][p] = (double)sent[LH_LINK_WAN] / ELEMENTS;
    }
}

static void int8_sends_a_byte_and_a_part_of_a_scale(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    /* An all-reduce by exchange, by mesh; a reduce-scatter, whose values then go as BF16. */
    static const double expected[] = {132.0 / 128, 132.0 / 128 / 2 + 1, 132.0 / 128 / 2};
    for (uint32_t v = 0; v < 2; v++) {
        scene_t s = plain;
        s.sites = "aabb";
        s.border = LH_DTYPE_I8;
        job.comm.between_sites = v == 0 ? BETWEEN_EXCHANGE : BETWEEN_MESH;
        play_scene(&s, count_packed, texts);
        for (uint32_t r = 0; r < 4; r++)
            assert_string_equal(texts[r], "");
        for (uint32_t site = 0; site < 2; site++)
            for (uint32_t p = 0; p < 2; p++) {
                const double sent = sent_across[2 * site][p] + sent_across[2 * site + 1][p];
                assert_true(fabs(sent - expected[p == 1 ? 2 : v]) < 0.001);
            }
    }
    job.comm.between_sites = BETWEEN_AUTO;
}

/* What it sends to other sites, against what the ways of an all-reduce send. The outer sites are
 * hardly joined, and so the middle one adds. */
static void count_bytes(actor_t *a)
{
    uint64_t sent[4], staging;
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK) trouble(a, fail_reason());
    collective_bytes(a->plans[0], sent, &staging);
    const uint64_t all = ELEMENTS * sizeof(uint16_t), links = a->rank == 1 ? 2 : 1;
    const uint64_t expected = a->scene->measured ? links * all : all / 3 * 4;
    if (sent[LH_LINK_WAN] + 16 < expected || sent[LH_LINK_WAN] > expected + 16)
        (void)snprintf(a->trouble, sizeof(a->trouble), "%llu bytes to other sites, not %llu",
                       (unsigned long long)sent[LH_LINK_WAN], (unsigned long long)expected);
}

static void a_slow_link_is_gone_round(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    for (uint32_t v = 0; v < 2; v++) {
        scene_t s = plain;
        s.sites = "abc";
        s.border = LH_DTYPE_BF16;
        s.measured = v == 1;
        play_scene(&s, count_bytes, texts);
        for (uint32_t r = 0; r < 3; r++)
            assert_string_equal(texts[r], "");
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

/* A plan of nothing, which has no steps between sites, behind one that moves. */
static void come_after(actor_t *a)
{
    collective_t *nothing;
    lh_status_t status = plan_all(a);
    const coll_how_t how = {.name = "nothing",
                            .op = COLL_ALL_REDUCE,
                            .group = comm_group(a->comm, LH_GROUP_DATA),
                            .dtype = LH_DTYPE_F32,
                            .service = LH_SERVICE_GRADIENT,
                            .after = a->plans[0]};
    if (status == LH_OK) status = collective_new(a->comm, &how, &nothing);
    if (status == LH_OK) status = comm_connect(a->comm);
    for (uint32_t round = 0; status == LH_OK && round < a->scene->rounds; round++) {
        status = collective_start(a->plans[0]);
        if (status == LH_OK) status = collective_start(nothing);
        if (status == LH_OK) status = collective_wait(nothing);
        if (status == LH_OK && collective_test(a->plans[0]) != LH_OK)
            trouble(a, "done before what it comes after");
        if (status == LH_OK) status = collective_wait(a->plans[0]);
    }
    if (status != LH_OK) trouble(a, fail_reason());
}

static void a_run_of_nothing_comes_after_what_it_was_planned_behind(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.sites = "ab";
    play_scene(&s, come_after, texts);
    for (uint32_t r = 0; r < 2; r++)
        assert_string_equal(texts[r], "");
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
    assert_non_null(strstr(texts[0], "all-reduce of first stood still for ")); /* 0.1 s or more */
    assert_non_null(strstr(texts[0], " s, waiting for rank 1"));
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
    how.border = LH_DTYPE_F16;
    if (collective_new(a->comm, &how, &x) != LH_UNSUPPORTED) trouble(a, "border");
    how.border = 0;
    how.algorithm = COLL_HALVING;
    if (collective_new(a->comm, &how, &x) != LH_UNSUPPORTED) trouble(a, "halving");
    how.algorithm = COLL_AUTO;
    how.root = 2;
    how.op = COLL_BROADCAST;
    if (collective_new(a->comm, &how, &x) != LH_INVALID) trouble(a, "root");
}

static uint32_t plans_stated;

static void state_plans(actor_t *a)
{
    coll_how_t how = {.name = "one of many",
                      .op = COLL_ALL_REDUCE,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = 10,
                      .service = LH_SERVICE_GRADIENT};
    collective_t *x;
    uint32_t arena;
    lh_status_t status = comm_arena(a->comm, a->memory, 4096, -1, 0, &arena);
    how.whole = (coll_place_t){a->memory, arena};
    for (uint32_t i = 0; status == LH_OK && i < plans_stated; i++)
        status = collective_new(a->comm, &how, &x);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK) trouble(a, fail_reason());
}

static void ranks_compare_groups_and_not_plans(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    uint64_t compared[2];
    s.sites = "aaaa";
    for (uint32_t i = 0; i < 2; i++) {
        plans_stated = i == 0 ? 1 : 100;
        play_scene(&s, state_plans, texts);
        for (uint32_t r = 0; r < hub.size; r++)
            assert_string_equal(texts[r], "");
        compared[i] = hub.compared;
    }
    assert_int_equal(compared[0], compared[1]);
}

/* Values of blocks that are cut alike, each at a place of its own, whole and cut. */
enum { BLOCKS = 3, VALUES = 2, HALF = 50, CUT_AT = 20000 };

static uint64_t value_at(uint32_t block, uint32_t value)
{
    return block * 1000 + value * (150 + 37 * block);
}

static float value_of(uint32_t block, uint32_t value, uint32_t element)
{
    return (float)(block * 10000 + value * 1000 + element);
}

static void gather_blocks(actor_t *a)
{
    coll_how_t how = {.name = "values of a block",
                      .op = COLL_ALL_GATHER,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = ELEMENTS,
                      .service = LH_SERVICE_PARAMETER};
    float *whole = (float *)(void *)a->memory, *cut = whole + CUT_AT;
    collective_t *blocks[BLOCKS];
    uint32_t arena;
    lh_status_t status = comm_arena(a->comm, a->memory, PLANS * ELEMENTS * item(a), 1, 0, &arena);
    how.whole = (coll_place_t){whole, arena};
    how.cut = (coll_place_t){cut, arena};
    for (uint32_t b = 0; b < BLOCKS && status == LH_OK; b++) {
        coll_segment_t segments[2][VALUES];
        coll_piece_t pieces[2];
        for (uint32_t m = 0; m < 2; m++) {
            for (uint32_t v = 0; v < VALUES; v++) {
                const uint64_t held = (b * VALUES + v) * 60 + m * (b + 1);
                segments[m][v] = (coll_segment_t){value_at(b, v) + m * HALF, HALF, held};
                for (uint32_t i = 0; m == a->rank && i < HALF; i++)
                    cut[held + i] = value_of(b, v, m * HALF + i);
            }
            pieces[m] = (coll_piece_t){segments[m], VALUES};
        }
        how.pieces = pieces;
        status = collective_new(a->comm, &how, &blocks[b]);
    }
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status == LH_OK && comm_scripts(a->comm) != 1) trouble(a, "scripts of their own");
    for (uint32_t b = 0; b < BLOCKS && status == LH_OK; b++)
        status = collective_start(blocks[b]);
    for (uint32_t b = 0; b < BLOCKS && status == LH_OK; b++)
        status = collective_wait(blocks[b]);
    if (status != LH_OK) trouble(a, fail_reason());
    for (uint32_t i = 0; i < BLOCKS * VALUES * 2 * HALF; i++) {
        const uint32_t b = i / (VALUES * 2 * HALF), v = i / (2 * HALF) % VALUES;
        const uint32_t element = i % (2 * HALF);
        if (whole[value_at(b, v) + element] != value_of(b, v, element)) trouble(a, "other values");
    }
}

static void collectives_of_one_shape_share_a_script(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    for (uint32_t v = 0; v < 4; v++) {
        scene_t s = plain;
        s.sites = v % 2 == 0 ? "aa" : "ab";
        s.mapped = v >= 2;
        play_scene(&s, gather_blocks, texts);
        for (uint32_t r = 0; r < hub.size; r++)
            assert_string_equal(texts[r], "");
    }
}

/* Messages are copied under the hub's lock. */
static float read_locked(const float *number)
{
    (void)pthread_mutex_lock(&hub.lock);
    const float value = *number;
    (void)pthread_mutex_unlock(&hub.lock);
    return value;
}

/* Rank 0 sends at once; the other only says that it will take part, and with its thread alone looking
 * what comes must lie in its memory (ahead), or must not, before it starts. */
static void receive_later(actor_t *a, bool ahead)
{
    enum { FEW = 1000, LOOKS = 2000, QUIET = 50 };
    coll_how_t how = {.name = "expected",
                      .op = COLL_BROADCAST,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = FEW,
                      .service = LH_SERVICE_GRADIENT};
    const struct timespec millisecond = {.tv_nsec = 1000000};
    float *numbers = (float *)(void *)a->memory;
    collective_t *x = NULL;
    uint32_t arena;
    for (uint32_t i = 0; i < FEW; i++)
        numbers[i] = a->rank == 0 ? 1 : 2;
    lh_status_t status = comm_arena(a->comm, a->memory, FEW * sizeof(float), -1, 0, &arena);
    how.whole = (coll_place_t){a->memory, arena};
    if (status == LH_OK) status = collective_new(a->comm, &how, &x);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status == LH_OK && a->rank == 1) {
        if (!collective_expect(x, ahead)) trouble(a, "it can't be expected");
        for (uint32_t i = 0; i < (ahead ? LOOKS : QUIET) && read_locked(&numbers[FEW - 1]) > 1; i++)
            (void)nanosleep(&millisecond, NULL);
        if ((read_locked(&numbers[FEW - 1]) > 1) == ahead) trouble(a, "written at another time");
    }
    if (status == LH_OK) status = collective_start(x);
    if (status == LH_OK) status = collective_wait(x);
    if (status != LH_OK) trouble(a, fail_reason());
    for (uint32_t i = 0; i < FEW; i++)
        if (numbers[i] > 1) trouble(a, "it has not come");
}

static void receive_ahead(actor_t *a)
{
    receive_later(a, true);
}

static void receive_at_the_start(actor_t *a)
{
    receive_later(a, false);
}

static void what_is_expected_is_written_when_it_may_be(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    play_t *const plays[] = {receive_ahead, receive_at_the_start};
    for (uint32_t i = 0; i < 2; i++) {
        scene_t s = plain;
        s.sites = "ab";
        s.thread = true;
        play_scene(&s, plays[i], texts);
        for (uint32_t r = 0; r < hub.size; r++)
            assert_string_equal(texts[r], "");
    }
}

static _Atomic uint64_t staged;

static void stage(actor_t *a)
{
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK) trouble(a, fail_reason());
    if (a->rank == 0) staged = comm_bytes(a->comm);
}

/* An exchange of two sites sends what it sums, a mesh of them half to each owner; here all six plans
 * send 4 x ELEMENTS or half of that. With a window as long as ten of them all are under way at a
 * time, four where nothing is known of it or it is short. */
static void as_many_are_under_way_as_fill_a_window(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    uint64_t bytes[3];
    const uint64_t flights[] = {0, ELEMENTS, (uint64_t)10 * 4 * ELEMENTS};
    for (uint32_t i = 0; i < 3; i++) {
        scene_t s = plain;
        s.sites = "ab";
        s.chunk = 8192;
        s.flight = flights[i];
        play_scene(&s, stage, texts);
        for (uint32_t r = 0; r < hub.size; r++)
            assert_string_equal(texts[r], "");
        bytes[i] = staged;
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_true(bytes[2] > bytes[0] + 2 * 8192);
}

/* Each rank holds its numbers elsewhere in its arena. */
static void sum_elsewhere(actor_t *a)
{
    enum { FEW = 16 };
    coll_how_t how = {.name = "elsewhere",
                      .op = COLL_ALL_REDUCE,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = FEW,
                      .service = LH_SERVICE_GRADIENT};
    collective_t *x = NULL;
    uint32_t arena;
    float *mine = (float *)(void *)(a->memory + 64 * (size_t)a->rank);
    for (uint32_t i = 0; i < FEW; i++)
        mine[i] = (float)(a->rank + i);
    lh_status_t status = comm_arena(a->comm, a->memory, 4096, -1, 0, &arena);
    how.whole = (coll_place_t){mine, arena};
    if (status == LH_OK) status = collective_new(a->comm, &how, &x);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status == LH_OK) status = collective_start(x);
    if (status == LH_OK) status = collective_wait(x);
    if (status != LH_OK) trouble(a, fail_reason());
    for (uint32_t i = 0; i < FEW; i++)
        if (mine[i] != (float)(3 + 3 * i)) trouble(a, "another sum");
}

static void buffers_may_lie_elsewhere_on_each_rank(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.sites = "aaa";
    play_scene(&s, sum_elsewhere, texts);
    for (uint32_t r = 0; r < hub.size; r++)
        assert_string_equal(texts[r], "");
}

/* The ranks of one site have a plan more than those of the other, before the one that all have. */
static void sum_after_the_sites_own(actor_t *a)
{
    enum { FEW = 16 };
    const bool more = a->world->ranks[a->rank].site == 1;
    coll_how_t how = {.name = "of one site",
                      .op = COLL_ALL_REDUCE,
                      .group = comm_group(a->comm, LH_GROUP_SITE),
                      .dtype = LH_DTYPE_F32,
                      .elements = FEW,
                      .service = LH_SERVICE_GRADIENT};
    collective_t *own = NULL, *all = NULL;
    uint32_t arena;
    float *numbers = (float *)(void *)a->memory;
    for (uint32_t i = 0; i < 2 * FEW; i++)
        numbers[i] = (float)(a->rank + i % FEW);
    lh_status_t status = comm_arena(a->comm, a->memory, 4096, -1, 0, &arena);
    how.whole = (coll_place_t){numbers, arena};
    if (status == LH_OK && more) status = collective_new(a->comm, &how, &own);
    how.name = "of all";
    how.group = comm_group(a->comm, LH_GROUP_DATA);
    how.whole = (coll_place_t){numbers + FEW, arena};
    if (status == LH_OK) status = collective_new(a->comm, &how, &all);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status == LH_OK && more) status = collective_start(own);
    if (status == LH_OK) status = collective_start(all);
    if (status == LH_OK && more) status = collective_wait(own);
    if (status == LH_OK) status = collective_wait(all);
    if (status != LH_OK) trouble(a, fail_reason());
    for (uint32_t i = 0; i < FEW; i++) {
        if (more && numbers[i] != (float)(2 + 3 + 2 * i)) trouble(a, "another sum of the site");
        if (numbers[FEW + i] != (float)(6 + 4 * i)) trouble(a, "another sum of all");
    }
}

static void ranks_need_not_have_the_same_plans(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.sites = "aabb";
    play_scene(&s, sum_after_the_sites_own, texts);
    for (uint32_t r = 0; r < hub.size; r++)
        assert_string_equal(texts[r], "");
}

typedef struct door { /* a gate that the test opens */
    _Atomic bool open;
    _Atomic uint32_t asked, told;
} door_t;

static lh_status_t door_past(void *context)
{
    door_t *d = context;
    d->asked++;
    return d->open ? LH_OK : LH_AGAIN;
}

static void door_done(void *context)
{
    ((door_t *)context)->told++;
}

/* What is summed is written after the start, as a queue would. */
static void start_behind_doors(actor_t *a)
{
    enum { ROUNDS = 3 };
    const struct timespec nap = {0, 1000000};
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    for (uint32_t round = 0; status == LH_OK && round < ROUNDS; round++) {
        door_t doors[PLANS] = {0};
        for (uint32_t p = 0; status == LH_OK && p < PLANS; p++) {
            const collective_gate_t gate = {door_past, door_done, &doors[p]};
            status = collective_start_behind(a->plans[p], &gate);
        }
        for (uint32_t p = 0; status == LH_OK && p < PLANS; p++) {
            (void)nanosleep(&nap, NULL);
            if (doors[p].told != 0) trouble(a, "done before it began");
            if (collective_test(a->plans[p]) != LH_AGAIN) trouble(a, "went through a closed door");
            contribution(a, a->world->row.rank, p, round, whole_of(a, p));
            doors[p].open = true;
        }
        for (uint32_t p = 0; status == LH_OK && p < PLANS; p++)
            status = collective_wait(a->plans[p]);
        for (uint32_t p = 0; status == LH_OK && p < PLANS; p++) {
            if (doors[p].told != 1 || doors[p].asked == 0) trouble(a, "a door is told once");
            if (p != 3) check(a, p, round);
        }
    }
    if (status != LH_OK) trouble(a, fail_reason());
}

static void a_run_begins_when_its_gate_is_past(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    for (uint32_t v = 0; v < 4; v++) {
        scene_t s = plain;
        s.sites = v % 2 == 0 ? "aa" : "aab";
        s.mapped = v >= 2;
        s.thread = v % 2 == 0;
        play_scene(&s, start_behind_doors, texts);
        for (uint32_t r = 0; r < hub.size; r++)
            assert_string_equal(texts[r], "");
    }
}

/* No door is ever opened; links break meanwhile. */
static void break_behind_doors(actor_t *a)
{
    door_t doors[PLANS] = {0};
    uint32_t started = 0;
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    while (status == LH_OK && started < PLANS) {
        const collective_gate_t gate = {door_past, door_done, &doors[started]};
        status = collective_start_behind(a->plans[started], &gate);
        started += status == LH_OK;
    }
    if (status != LH_OK && status != LH_PEER_LOST) trouble(a, fail_reason());
    (void)pthread_mutex_lock(&hub.lock);
    hub.dead = 1;
    (void)pthread_mutex_unlock(&hub.lock);
    for (uint32_t p = 0; p < started; p++) {
        if (collective_wait(a->plans[p]) == LH_OK) trouble(a, "nothing is lost");
        if (doors[p].told != 1) trouble(a, "a queue waits for ever");
    }
}

static void who_waits_behind_a_lost_peer_is_told(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.thread = true;
    play_scene(&s, break_behind_doors, texts);
    for (uint32_t r = 0; r < hub.size; r++)
        assert_string_equal(texts[r], "");
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
        cmocka_unit_test(every_way_between_sites_gives_the_same),
        cmocka_unit_test(int8_adds_up_to_the_gradient_whatever_the_way),
        cmocka_unit_test(int8_sends_a_byte_and_a_part_of_a_scale),
        cmocka_unit_test(a_slow_link_is_gone_round),
        cmocka_unit_test(a_hundred_runs_give_the_same),
        cmocka_unit_test(one_message_at_a_time_is_enough),
        cmocka_unit_test(a_run_of_nothing_comes_after_what_it_was_planned_behind),
        cmocka_unit_test(other_plans_are_refused_on_all_ranks),
        cmocka_unit_test(ranks_compare_groups_and_not_plans),
        cmocka_unit_test(collectives_of_one_shape_share_a_script),
        cmocka_unit_test(what_is_expected_is_written_when_it_may_be),
        cmocka_unit_test(as_many_are_under_way_as_fill_a_window),
        cmocka_unit_test(buffers_may_lie_elsewhere_on_each_rank),
        cmocka_unit_test(ranks_need_not_have_the_same_plans),
        cmocka_unit_test(a_run_begins_when_its_gate_is_past),
        cmocka_unit_test(who_waits_behind_a_lost_peer_is_told),
        cmocka_unit_test(a_wait_ends_with_the_name_of_who_is_missing),
        cmocka_unit_test(a_lost_peer_ends_all),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
