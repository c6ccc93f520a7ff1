/* collective_plans_test.c - what ranks must plan alike and what each may have of its own, when a run
 * begins and what is under way then, and who is told of what can't end. */
#include "collective_stage.h"

#include <sched.h>
#include <unistd.h>

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
    how.service = LH_SERVICE_CONTROL;
    if (collective_new(a->comm, &how, &x) != LH_INVALID) trouble(a, "service");
    how.service = LH_SERVICE_GRADIENT;
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

/* Both ends of each direction, the own send first; all are under way before any is waited for. What is sent
 * by the n-th plan of a round is n everywhere, and is written over once the send is over. */
static void trade_both_ways(actor_t *a)
{
    enum { TRADES = 3, ROUNDS = 3, LONG = 5000 }; /* more than is copied rather than mapped */
    float *values = (float *)(void *)a->memory;
    collective_t *sends[TRADES], *takes[TRADES];
    uint32_t arena;
    coll_how_t how = {.name = "traded",
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = LONG,
                      .root = 1 - a->rank,
                      .service = LH_SERVICE_ACTIVATION,
                      .chunk_bytes = a->scene->chunk};
    lh_status_t status = comm_arena(a->comm, values, 2 * TRADES * LONG * sizeof(float), 1, 0,
                                    &arena);
    for (uint32_t t = 0; status == LH_OK && t < 2 * TRADES; t++) {
        how.op = t % 2 == 0 ? COLL_SEND : COLL_RECV;
        how.whole = (coll_place_t){values + t * LONG, arena};
        status = collective_new(a->comm, &how, t % 2 == 0 ? &sends[t / 2] : &takes[t / 2]);
    }
    if (status == LH_OK) status = comm_connect(a->comm);
    for (uint32_t round = 0; status == LH_OK && round < ROUNDS; round++) {
        for (uint32_t t = 0; status == LH_OK && t < TRADES; t++) {
            for (uint32_t i = 0; i < LONG; i++)
                values[2 * t * LONG + i] = (float)(round * 100 + t * 10 + a->rank);
            status = collective_start(sends[t]);
            if (status == LH_OK) status = collective_start(takes[t]);
        }
        for (uint32_t t = TRADES; status == LH_OK && t-- > 0;) {
            status = collective_wait(sends[t]);
            memset(values + 2 * t * LONG, 0xff, LONG * sizeof(float));
            if (status == LH_OK) status = collective_wait(takes[t]);
            for (uint32_t i = 0; status == LH_OK && i < LONG; i++)
                if (values[(2 * t + 1) * LONG + i] != (float)(round * 100 + t * 10 + 1 - a->rank))
                    trouble(a, "not what was sent");
        }
    }
    if (status != LH_OK) trouble(a, fail_reason());
}

static void two_ranks_may_both_send_first(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    for (uint32_t v = 0; v < 4; v++) {
        scene_t s = plain;
        s.mapped = v >= 2;
        s.thread = v % 2 == 0;
        play_scene(&s, trade_both_ways, texts);
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

/* Of three sites each sends a third of a plan's bytes to each of the two others, whose links are two: 2/3 of 4 x
 * ELEMENTS where a result goes back, 1/3 where none does, 5/9 on average. So a window of 2 x 4 x ELEMENTS is filled
 * 1.25 times by four and a half of them, and all six are under way, as many as fill it and two. Plans are not cut, so
 * that nothing else of what is staged goes by the window. */
static void each_of_two_links_has_a_window_to_fill(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    uint64_t bytes[2];
    const uint64_t flights[] = {0, (uint64_t)2 * 4 * ELEMENTS};
    for (uint32_t i = 0; i < 2; i++) {
        scene_t s = plain;
        s.sites = "abc";
        s.chunk = 1 << 20;
        s.flight = flights[i];
        play_scene(&s, stage, texts);
        for (uint32_t r = 0; r < hub.size; r++)
            assert_string_equal(texts[r], "");
        bytes[i] = staged;
    }
    assert_true(bytes[1] > bytes[0] + ELEMENTS);
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
    _Atomic bool open, reached;
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

static bool door_reached(void *context)
{
    return ((door_t *)context)->reached;
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
            const collective_gate_t gate = {
                .past = door_past, .done = door_done, .context = &doors[p]};
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

/* Rank 0 comes 300 ms late. The device of any other stands at its wait meanwhile, and rank 0's comes there
 * when the run is over; that hosts wait for both counts for nothing. */
static void expose_behind_doors(actor_t *a)
{
    const struct timespec late = {0, 300000000};
    const bool first = a->world->row.rank == 0;
    door_t door = {0};
    uint64_t ns[4], all = 0;
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status == LH_OK) comm_exposed(a->comm, ns);
    const collective_gate_t gate = {
        .past = door_past, .done = door_done, .context = &door, .reached = door_reached};
    if (status == LH_OK) status = collective_start_behind(a->plans[0], &gate);
    contribution(a, a->world->row.rank, 0, 0, whole_of(a, 0));
    if (first) (void)nanosleep(&late, NULL);
    door.reached = !first;
    door.open = true;
    if (status == LH_OK) status = collective_wait(a->plans[0]);
    if (status != LH_OK) trouble(a, fail_reason());
    comm_exposed(a->comm, ns);
    for (uint32_t s = 0; s < 4; s++)
        all += ns[s];
    if (first ? all != 0 : all < 15000000 || all > 10000000000)
        trouble(a, "not what the device stood");
}

static void a_devices_wait_is_exposed_from_when_it_stands_there(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    for (uint32_t v = 0; v < 2; v++) {
        scene_t s = plain;
        s.sites = "aa";
        s.thread = v == 0;
        play_scene(&s, expose_behind_doors, texts);
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
        const collective_gate_t gate = {
            .past = door_past, .done = door_done, .context = &doors[started]};
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

/* Opens by itself after some seconds, for a test that would hang else. */
static lh_status_t door_past_in_the_end(void *context)
{
    door_t *d = context;
    if (++d->asked > 100000) d->open = true;
    return d->open ? LH_OK : LH_AGAIN;
}

/* A device stands at its wait for the first plan, which rank 1 never starts, and the gate of the second is
 * queued behind that wait. With a thread the host waits for nothing, and as long as the device does not
 * stand there yet its queue may take longer than the limit; without, the host waits for the second. */
static void stand_before_nobody(actor_t *a)
{
    const struct timespec over = {0, 120000000}, nap = {0, 1000000};
    const bool thread = a->scene->thread;
    door_t stood = {.reached = !thread}, shut = {0};
    const collective_gate_t gates[] = {
        {.past = door_past, .done = door_done, .context = &stood, .reached = door_reached},
        {.past = door_past_in_the_end,
         .done = door_done,
         .context = &shut,
         .reached = door_reached}};
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK || a->rank == 1) return;
    for (uint32_t p = 0; status == LH_OK && p < 2; p++)
        status = collective_start_behind(a->plans[p], &gates[p]);
    stood.open = true; /* not before: with no gate closed the clock would run */
    if (thread) (void)nanosleep(&over, NULL);
    if (thread && stood.told != 0) trouble(a, "it was the device's turn");
    stood.reached = true;
    while (thread && stood.told == 0 && !shut.open)
        (void)nanosleep(&nap, NULL);
    if (status == LH_OK) status = collective_wait(a->plans[1]);
    if (shut.open) trouble(a, "no limit while a gate is closed");
    if (stood.told != 1 || shut.told != 1) trouble(a, "a queue waits for ever");
    if (status == LH_TIMED_OUT) trouble(a, fail_reason());
}

static void a_device_that_stands_at_its_wait_does_so_for_no_longer_than_the_limit(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    job.comm.timeout_ns = 50000000;
    for (uint32_t v = 0; v < 2; v++) {
        scene_t s = plain;
        s.thread = v == 0;
        play_scene(&s, stand_before_nobody, texts);
        if (strstr(texts[0], "all-reduce of first stood still for ") == NULL ||
            strstr(texts[0], " s, waiting for rank 1") == NULL)
            fail_msg("%s", texts[0]);
        assert_int_equal(hub.failures, 1);
    }
    job.comm.timeout_ns = 60000000000;
}

/* The host has started a plan that it waits for later, as a snapshot for another site, and a device stands at
 * its wait for the next one. Rank 1 starts neither. */
static void stand_behind_what_the_host_has_started(actor_t *a)
{
    enum { MOST_MS = 3000 };
    const struct timespec nap = {0, 1000000};
    door_t stood = {.open = true, .reached = true};
    const collective_gate_t gate = {
        .past = door_past, .done = door_done, .context = &stood, .reached = door_reached};
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK || a->rank == 1) return;
    status = collective_start(a->plans[0]);
    if (status == LH_OK) status = collective_start_behind(a->plans[1], &gate);
    for (uint32_t ms = 0; status == LH_OK && stood.told == 0 && ms < MOST_MS; ms++)
        (void)nanosleep(&nap, NULL);
    if (stood.told == 0) trouble(a, "no limit where the oldest run is the host's");
    if (status == LH_OK) status = collective_wait(a->plans[1]);
    if (status == LH_TIMED_OUT) trouble(a, fail_reason());
}

static void what_the_host_has_started_before_stops_no_clock(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.thread = true;
    job.comm.timeout_ns = 50000000;
    play_scene(&s, stand_behind_what_the_host_has_started, texts);
    job.comm.timeout_ns = 60000000000;
    if (strstr(texts[0], " stood still for ") == NULL ||
        strstr(texts[0], " s, waiting for rank 1") == NULL)
        fail_msg("%s", texts[0]);
    assert_int_equal(hub.failures, 1);
}

/* Memory is counted by what is expected of links, also where they have been measured by then. */
static void look_at_links(actor_t *a)
{
    uint32_t before, after;
    lh_status_t status = comm_probe(a->comm);
    if (status == LH_OK) status = comm_probe_wait(a->comm);
    if (status == LH_OK) status = plan_all(a);
    (void)comm_expected(a->comm, &before);
    if (status == LH_OK) status = comm_connect(a->comm);
    (void)comm_expected(a->comm, &after);
    if (status != LH_OK) trouble(a, fail_reason());
    if (before != 0) trouble(a, "as found before the ranks connect");
    if (after != 3) trouble(a, "not as found once they are connected");
}

static void links_are_as_expected_until_the_ranks_connect(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.sites = "abc";
    s.measured = true;
    play_scene(&s, look_at_links, texts);
    for (uint32_t r = 0; r < hub.size; r++)
        assert_string_equal(texts[r], "");
}

static uint32_t processors_wanted; /* by each rank's thread, of those that there are */

static void begin_to_probe(actor_t *a)
{
    cpu_set_t mine, few;
    CPU_ZERO(&few);
    if (sched_getaffinity(0, sizeof(mine), &mine) != 0) trouble(a, "which processors?");
    for (size_t cpu = 0; cpu < CPU_SETSIZE && (uint32_t)CPU_COUNT(&few) < processors_wanted; cpu++)
        if (CPU_ISSET(cpu, &mine)) CPU_SET(cpu, &few);
    if (sched_setaffinity(0, sizeof(few), &few) != 0) trouble(a, "it can't be bound");
    if (comm_probe(a->comm) != LH_OK) trouble(a, fail_reason());
}

/* How many ranks, each on a machine or all on one, wait at once for links to be measured. */
static uint32_t waits_at_once(const char *sites, uint32_t processors)
{
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.sites = sites;
    processors_wanted = processors;
    play_scene(&s, begin_to_probe, texts);
    for (uint32_t r = 0; r < hub.size; r++)
        assert_string_equal(texts[r], "");
    return hub.waits;
}

static void nothing_goes_on_beside_a_probe_without_a_processor_for_it(void **state)
{
    cpu_set_t mine;
    (void)state;
    assert_int_equal(waits_at_once("ab", 1), 2);
    assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
    if (CPU_COUNT(&mine) < 2) return; /* all that is below needs two */
    assert_int_equal(waits_at_once("ab", 2), 0);
    assert_int_equal(waits_at_once("aa", 2), 2);
    /* So many are this rank's alone where the machine has as many for each. */
    job.launch.bind = true;
    assert_int_equal(waits_at_once("aa", 1), 2);
    assert_int_equal(waits_at_once("aa", 2), sysconf(_SC_NPROCESSORS_ONLN) < 4 ? 2 : 0);
    job.launch.bind = false;
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
        cmocka_unit_test(other_plans_are_refused_on_all_ranks),
        cmocka_unit_test(ranks_compare_groups_and_not_plans),
        cmocka_unit_test(collectives_of_one_shape_share_a_script),
        cmocka_unit_test(two_ranks_may_both_send_first),
        cmocka_unit_test(what_is_expected_is_written_when_it_may_be),
        cmocka_unit_test(as_many_are_under_way_as_fill_a_window),
        cmocka_unit_test(each_of_two_links_has_a_window_to_fill),
        cmocka_unit_test(buffers_may_lie_elsewhere_on_each_rank),
        cmocka_unit_test(ranks_need_not_have_the_same_plans),
        cmocka_unit_test(a_run_begins_when_its_gate_is_past),
        cmocka_unit_test(a_devices_wait_is_exposed_from_when_it_stands_there),
        cmocka_unit_test(who_waits_behind_a_lost_peer_is_told),
        cmocka_unit_test(a_device_that_stands_at_its_wait_does_so_for_no_longer_than_the_limit),
        cmocka_unit_test(what_the_host_has_started_before_stops_no_clock),
        cmocka_unit_test(a_wait_ends_with_the_name_of_who_is_missing),
        cmocka_unit_test(a_lost_peer_ends_all),
        cmocka_unit_test(links_are_as_expected_until_the_ranks_connect),
        cmocka_unit_test(nothing_goes_on_beside_a_probe_without_a_processor_for_it),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
