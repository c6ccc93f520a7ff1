/* stop_test.c - a machine is asked to stop while ranks meet, once they have, and while a door stands where
 * rank 0 will be: all that have come end with one sentence, which names it. */
#include <unit/base/scratch_files.h>

#include <string.h>

#include <control/control_door.h>
#include <unit/control/control_ranks.h>

static void ended_so(const rank_run_t *r, lh_status_t status, const char *sentence)
{
    assert_int_equal(r->status, status);
    assert_string_equal(r->reason, sentence);
}

/* Rank 3 is not there: without a stop the others would wait for it for 20 s. */
static void who_has_come_ends_with_a_machine_that_is_asked(void **state)
{
    static const struct {
        uint32_t rank, what;
        lh_status_t status;
        const char *sentence;
    } cases[] = {
        {2, CONTROL_ASKS_STOP, STATUS_STOPPED,
         "osaka/o1 was asked to stop while no step was under way"},
        {0, CONTROL_ASKS_STOP, STATUS_STOPPED,
         "tokyo/t1 was asked to stop while no step was under way"},
        {1, CONTROL_ASKS_END, STATUS_ENDED,
         "tokyo/t1 was told to end at once while no step was under way"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        control_asked_t asked = {.what = cases[i].what};
        rank_run_t ranks[3];
        star_t star;
        assert_int_equal(star_open(&star), LH_OK);
        for (uint32_t r = 0; r < 3; r++)
            ranks[r] = (rank_run_t){.how = star_how(&star, r, RANKS)};
        ranks[cases[i].rank].how.asked = &asked;
        const uint64_t begin = sys()->now_ns();
        ranks_open(ranks, 3);
        for (uint32_t r = 0; r < 3; r++)
            ended_so(&ranks[r], cases[i].status, cases[i].sentence);
        assert_true(seconds_since(begin) < 10);
        secret_free(star.secret);
    }
}

/* One that answers a SIGTERM itself tells nobody; one that does not yet ends the job. */
static void ranks_that_have_met_end_unless_they_answer_themselves(void **state)
{
    static const char sentence[] = "tokyo/t1 was asked to stop while no step was under way";
    control_asked_t asked[RANKS] = {{0}};
    rank_run_t ranks[RANKS];
    star_t star;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (rank_run_t){.how = star_how(&star, r, RANKS)};
        ranks[r].how.asked = &asked[r];
    }
    ranks_open(ranks, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(ranks[r].status, LH_OK);
    control_heeds(ranks[3].control);
    atomic_store(&asked[3].what, CONTROL_ASKS_STOP);
    (void)usleep(4 * CONTROL_TICK_MS * 1000);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(control_status(ranks[r].control), LH_OK);

    atomic_store(&asked[1].what, CONTROL_ASKS_STOP);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_true(fails_within(ranks[r].control, 20));
        assert_int_equal(control_status(ranks[r].control), STATUS_STOPPED);
        assert_string_equal(control_failure(ranks[r].control), sentence);
    }
    ranks_close(ranks, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        ended_so(&ranks[r], STATUS_STOPPED, sentence);
    secret_free(star.secret);
}

/* Nobody listens: the machine that is asked does not wait for rank 0. */
static void who_reaches_nobody_stops_by_itself(void **state)
{
    control_asked_t asked = {.what = CONTROL_ASKS_STOP};
    star_t star;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    (void)close(star.listener);
    rank_run_t rank = {.how = star_how(&star, 2, RANKS)};
    control_culprit_t culprit = {0};
    rank.how.asked = &asked;
    rank.how.culprit = &culprit;
    const uint64_t begin = sys()->now_ns();
    (void)rank_open_thread(&rank);
    ended_so(&rank, STATUS_STOPPED, "osaka/o1 was asked to stop while no step was under way");
    assert_int_equal(culprit.status, STATUS_STOPPED);
    assert_true(seconds_since(begin) < 10);
    secret_free(star.secret);
}

/* ---- a door ---- */

typedef struct door_run {
    control_door_how_t how;
    control_asked_t asked;
    lh_status_t status;
    bool elsewhere;
    char sentence[CONTROL_STOP_TEXT];
    pthread_t thread;
} door_run_t;

static const job_t job;

static void *door_thread(void *argument)
{
    door_run_t *d = argument;
    d->status = control_door_keep(&d->how, d->sentence, &d->elsewhere);
    return NULL;
}

/* A door, and two ranks of three that have come to it. */
static void door_begin(star_t *star, door_run_t *d, rank_run_t ranks[3], control_asked_t *asked)
{
    char said[4096] = "";
    assert_int_equal(star_open(star), LH_OK);
    *d = (door_run_t){.how = {.job = &job,
                              .listener = star->listener,
                              .secret = star->secret,
                              .site = "tokyo",
                              .host = "t1"}};
    d->how.asked = &d->asked;
    FILE *log = listen_to_logs();
    (void)pthread_create(&d->thread, NULL, door_thread, d);
    for (uint32_t r = 1; r < 3; r++) {
        ranks[r] = (rank_run_t){.how = star_how(star, r, 3)};
        ranks[r].how.asked = &asked[r];
        (void)pthread_create(&ranks[r].thread, NULL, rank_open_thread, &ranks[r]);
    }
    const uint64_t begin = sys()->now_ns();
    const char *first = NULL;
    while (first == NULL || strstr(first + 1, "tokyo/t1 runs the stages before") == NULL) {
        if (seconds_since(begin) > 20) FAIL_TEST("the ranks said: %s\n", said);
        (void)usleep(10000);
        (void)!pread(fileno(log), said, sizeof(said) - 1, 0);
        first = strstr(said, "tokyo/t1 runs the stages before");
    }
    log_also(-1, "");
    (void)fclose(log);
}

static void door_end(const star_t *star, door_run_t *d, rank_run_t ranks[3])
{
    (void)pthread_join(d->thread, NULL);
    for (uint32_t r = 1; r < 3; r++)
        (void)pthread_join(ranks[r].thread, NULL);
    secret_free(star->secret);
}

static void who_waits_at_a_door_hears_of_a_stop(void **state)
{
    static const char here[] = "tokyo/t1 was asked to stop while no step was under way",
                      there[] = "osaka/o1 was told to end at once while no step was under way";
    (void)state;
    for (uint32_t elsewhere = 0; elsewhere < 2; elsewhere++) {
        control_asked_t asked[3] = {{0}};
        rank_run_t ranks[3];
        door_run_t door;
        star_t star;
        door_begin(&star, &door, ranks, asked);
        if (elsewhere != 0)
            atomic_store(&asked[2].what, CONTROL_ASKS_END);
        else
            atomic_store(&door.asked.what, CONTROL_ASKS_STOP);
        door_end(&star, &door, ranks);
        const lh_status_t status = elsewhere != 0 ? STATUS_ENDED : STATUS_STOPPED;
        assert_int_equal(door.status, status);
        assert_int_equal(door.elsewhere, elsewhere != 0);
        assert_string_equal(door.sentence, elsewhere != 0 ? there : here);
        for (uint32_t r = 1; r < 3; r++)
            ended_so(&ranks[r], status, door.sentence);
    }
}

/* The stages are over: who waited meets rank 0 at the same port, and a stranger in between is no matter. */
static void who_waits_at_a_door_meets_rank_0_behind_it(void **state)
{
    control_asked_t asked[3] = {{0}};
    rank_run_t ranks[3];
    door_run_t door;
    star_t star;
    int stranger;
    (void)state;
    door_begin(&star, &door, ranks, asked);
    assert_int_equal(
        control_dial("127.0.0.1", star.port, sys()->now_ns() + UINT64_C(2000000000), 0, &stranger),
        LH_OK);
    atomic_store(&door.asked.what, CONTROL_ASKS_PASS);
    (void)pthread_join(door.thread, NULL);
    assert_int_equal(door.status, LH_OK);
    ranks[0] = (rank_run_t){.how = star_how(&star, 0, 3)};
    ranks[0].how.listener = -1;
    (void)rank_open_thread(&ranks[0]);
    for (uint32_t r = 1; r < 3; r++)
        (void)pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < 3; r++)
        if (ranks[r].status != LH_OK) FAIL_TEST("rank %u: %s\n", r, ranks[r].reason);
    ranks_close(ranks, 3);
    (void)close(stranger);
    secret_free(star.secret);
}

/* They still run when a rank has waited for rank 0 as long as it is to: as after a loss, in which others may
 * go on without that machine. */
static void a_door_is_not_waited_at_for_longer_than_for_rank_0(void **state)
{
    control_asked_t asked = {0};
    control_told_t told = {0};
    const control_members_t members = {
        .job = &job, .layout = "", .met = "", .tried = "", .told = &told};
    star_t star;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    door_run_t door = {.how = {.job = &job,
                               .listener = star.listener,
                               .secret = star.secret,
                               .site = "tokyo",
                               .host = "t1",
                               .asked = &asked}};
    (void)pthread_create(&door.thread, NULL, door_thread, &door);
    rank_run_t rank = {.how = star_how(&star, 2, 3)};
    rank.how.members = &members;
    rank.how.epoch = 2;
    rank.how.join_ns = 1000 * CONTROL_MS;
    const uint64_t begin = sys()->now_ns();
    (void)rank_open_thread(&rank);
    assert_true(seconds_since(begin) < 10);
    assert_int_equal(rank.status, LH_TIMED_OUT);
    if (strstr(rank.reason, "rank 2 has not met rank 0 in 1 s: ") == NULL ||
        strstr(rank.reason, "stages that come before still run") == NULL)
        FAIL_TEST("it says: %s\n", rank.reason);
    assert_int_equal(atomic_load(&told.unreached), 1);
    atomic_store(&asked.what, CONTROL_ASKS_PASS);
    (void)pthread_join(door.thread, NULL);
    assert_int_equal(door.status, LH_OK);
    secret_free(star.secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_come_ends_with_a_machine_that_is_asked),
        cmocka_unit_test(ranks_that_have_met_end_unless_they_answer_themselves),
        cmocka_unit_test(who_reaches_nobody_stops_by_itself),
        cmocka_unit_test(who_waits_at_a_door_hears_of_a_stop),
        cmocka_unit_test(who_waits_at_a_door_meets_rank_0_behind_it),
        cmocka_unit_test(a_door_is_not_waited_at_for_longer_than_for_rank_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
