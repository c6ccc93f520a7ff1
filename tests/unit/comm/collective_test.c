/* collective_test.c - what collectives between ranks give: whatever the algorithm, the way between
 * sites, the border's dtype and the pace of links, the canonical sum. */
#include "collective_stage.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/digest.h>
#include <torture.h>

#ifdef __SANITIZE_THREAD__
enum { SPARSER = 2 }; /* ranks' threads meet in the same way in each */
#else
enum { SPARSER = 1 };
#endif

/* Of the variants of each shape one of `every`, by turns, so that each comes with some shape; all of
 * them with LONGHAUL_TORTURE=1. */
static bool is_in_sample(uint32_t shape, uint32_t variant, uint32_t every)
{
    return torture_wanted() || (shape + variant) % (every * SPARSER) == 0;
}

static void several_run_at_a_time_and_again(void **state)
{
    (void)state;
    static const char *const shapes[] = {"a", "aa", "aaa", "aabb", "aaab", "abbc"};
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t v = 0; v < 16; v++) {
            if (!is_in_sample(i, v, 3)) continue;
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
            if (!is_in_sample(i, way, 1)) continue;
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
#ifdef __SANITIZE_THREAD__
enum { STEPS = 8 }; /* threads meet as often in each */
#else
enum { STEPS = 40 };
#endif

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
            if (v > 0 && !is_in_sample(i, v, 2)) continue;
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

/* ---- memory of a device ---- */

/* base: where the device has it, which ends whoever touches it; seen: the same memory for the test. */
typedef struct device_memory {
    char *base, *seen;
    int fd;
} device_memory_t;

static bool device_memory_open(device_memory_t *m, uint64_t bytes)
{
    m->fd = memfd_create("device", MFD_CLOEXEC);
    if (m->fd < 0 || ftruncate(m->fd, (off_t)bytes) != 0) return false;
    m->base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->seen = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    return m->base != MAP_FAILED && m->seen != MAP_FAILED;
}

/* Equal pieces in place: each rank makes its own, and all come to have all. */
static void device_round(actor_t *a, collective_t *gather, char *seen, uint32_t round)
{
    const group_t *g = comm_group(a->comm, LH_GROUP_DATA);
    const uint32_t part = (ELEMENTS + g->size - 1) / g->size;
    memset(seen, 0xff, ELEMENTS * item(a));
    for (uint32_t r = 0; r < g->size; r++) {
        const uint64_t at = part * r * item(a), end = ELEMENTS * item(a);
        const uint64_t bytes = at + part * item(a) < end ? part * item(a) : end - at;
        contribution(a, g->ranks[r], 0, round, a->inputs[r]);
        if (r == g->self) memcpy(seen + at, a->inputs[r] + at, bytes);
    }
    lh_status_t status = collective_start(gather);
    if (status == LH_OK) status = collective_wait(gather);
    if (status != LH_OK) trouble(a, fail_reason());
    for (uint32_t i = 0; status == LH_OK && i < ELEMENTS; i++) {
        const char *from = a->inputs[owner_of(g, i)];
        if (memcmp(seen + i * item(a), from + i * item(a), item(a)) == 0) continue;
        trouble(a, "a device has other elements than their owner");
        return;
    }
}

static lh_status_t sees_nothing(void *rank)
{
    (void)rank;
    return fail_again(LH_IO, "a device that sees nothing: said the test");
}

static bool blind; /* its devices see nothing of what comes */

static void gather_on_device(actor_t *a)
{
    device_memory_t m;
    collective_t *gather;
    uint32_t arena = 7;
    bool taken = false;
    const coll_device_t device = {blind ? sees_nothing : fake_arrived, &a->rank};
    if (!device_memory_open(&m, ELEMENTS * item(a))) {
        trouble(a, "no memory");
        return;
    }
    const comm_device_memory_t memory = {m.base, ELEMENTS * item(a), m.fd, 0};
    coll_how_t how = {.name = "values",
                      .op = COLL_ALL_GATHER,
                      .group = comm_group(a->comm, LH_GROUP_DATA),
                      .dtype = a->scene->dtype,
                      .elements = ELEMENTS,
                      .service = LH_SERVICE_PARAMETER,
                      .algorithm = a->scene->algorithm,
                      .chunk_bytes = a->scene->chunk,
                      .device = &device};
    lh_status_t status = comm_device_arenas(a->comm, how.group, &memory, 1, LH_OK, &arena, &taken);
    how.whole = (coll_place_t){m.base, arena};
    if (status == LH_OK && (!taken || arena != 0)) trouble(a, "no arena of a device");
    if (status == LH_OK) status = collective_new(a->comm, &how, &gather);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK) trouble(a, fail_reason());
    if (status == LH_OK && collective_algorithm(gather) != COLL_DIRECT)
        trouble(a, "members pass on what they can't see yet");
    for (uint32_t round = 0; a->trouble[0] == '\0' && round < a->scene->rounds; round++)
        device_round(a, gather, m.seen, round);
    comm_stop(a->comm);
    (void)close(m.fd);
    (void)munmap(m.base, ELEMENTS * item(a));
    (void)munmap(m.seen, ELEMENTS * item(a));
}

static void gathers_go_from_device_to_device(void **state)
{
    (void)state;
    static const char *const shapes[] = {"aa", "aaa", "aaaaa", "ab", "abc"};
    char texts[FAKE_RANKS][400];
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t v = 0; v < 4; v++) {
            scene_t s = plain;
            s.sites = shapes[i];
            s.mapped = true; /* a device's memory is not */
            s.thread = (v & 1) != 0;
            s.algorithm = (v & 2) != 0 ? COLL_RING : COLL_AUTO;
            play_scene(&s, gather_on_device, texts);
            for (uint32_t r = 0; r < hub.size; r++)
                if (texts[r][0] != '\0') fail_msg("sites %s, rank %u: %s", s.sites, r, texts[r]);
        }
}

/* The run ends where the device can't be told, with what it says. */
static void what_a_device_does_not_see_ends_a_run(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    blind = true;
    play_scene(&plain, gather_on_device, texts);
    blind = false;
    for (uint32_t r = 0; r < hub.size; r++)
        assert_string_equal(texts[r], "a device that sees nothing: said the test");
}

/* What one rank can't have no rank has, and arenas go on to be numbered alike. */
static const char *refusal;

static void be_refused_device_memory(actor_t *a)
{
    device_memory_t m;
    uint32_t arena = 7;
    bool taken = true;
    if (!device_memory_open(&m, 4096)) {
        trouble(a, "no memory");
        return;
    }
    const comm_device_memory_t memory = {m.base, 4096, m.fd, 0};
    if (comm_device_arenas(a->comm, comm_group(a->comm, LH_GROUP_DATA), &memory, 1, LH_OK, &arena,
                           &taken) != LH_OK)
        trouble(a, fail_reason());
    if (taken || strstr(fail_reason(), refusal) == NULL) trouble(a, fail_reason());
    if (comm_arena(a->comm, a->memory, 4096, -1, 0, &arena) != LH_OK || arena != 0)
        trouble(a, "another number");
    (void)close(m.fd);
    (void)munmap(m.base, 4096);
    (void)munmap(m.seen, 4096);
}

static void all_ranks_reach_device_memory_or_none(void **state)
{
    (void)state;
    static const char *const refusals[] = {"the card of rank 1 has no room",
                                           "[comm] device_memory = no", "passed on inside of them"};
    char texts[FAKE_RANKS][400];
    for (uint32_t v = 0; v < 3; v++) {
        scene_t s = plain;
        s.sites = v < 2 ? "aaa" : "aab";
        s.refuser = v == 0 ? 2 : 0;
        job.comm.device_memory = v == 1 ? DEVICE_MEMORY_NO : DEVICE_MEMORY_AUTO;
        refusal = refusals[v];
        play_scene(&s, be_refused_device_memory, texts);
        for (uint32_t r = 0; r < hub.size; r++)
            assert_string_equal(texts[r], "");
    }
    job.comm.device_memory = DEVICE_MEMORY_AUTO;
}

/* Peers that are ahead may send before this rank has begun anything. */
static void rest_for_a_while(actor_t *a)
{
    lh_status_t status = plan_all(a);
    if (status == LH_OK) status = comm_connect(a->comm);
    if (status != LH_OK) trouble(a, fail_reason());
    const uint64_t before = hub.polls[a->rank];
    const struct timespec nap = {.tv_sec = 1, .tv_nsec = 500000000};
    (void)nanosleep(&nap, NULL);
    if (hub.polls[a->rank] == before) trouble(a, "nobody has looked at the links");
    if (hub.polls[a->rank] > before + 20) trouble(a, "a thread that does not rest");
    comm_stop(a->comm);
}

static void links_are_looked_at_while_no_run_is_under_way(void **state)
{
    (void)state;
    char texts[FAKE_RANKS][400];
    scene_t s = plain;
    s.thread = true;
    play_scene(&s, rest_for_a_while, texts);
    for (uint32_t r = 0; r < hub.size; r++)
        assert_string_equal(texts[r], "");
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
        cmocka_unit_test(links_are_looked_at_while_no_run_is_under_way),
        cmocka_unit_test(a_run_of_nothing_comes_after_what_it_was_planned_behind),
        cmocka_unit_test(gathers_go_from_device_to_device),
        cmocka_unit_test(what_a_device_does_not_see_ends_a_run),
        cmocka_unit_test(all_ranks_reach_device_memory_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
