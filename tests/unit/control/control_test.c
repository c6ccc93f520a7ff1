/* control_test.c - ranks that have met: they agree or don't, gather, and end with the first reason. */
#include <unit/base/scratch_files.h>

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <control/control_state.h>
#include <unit/control/control_ranks.h>

static void open_well(star_t *star, rank_run_t ranks[RANKS])
{
    assert_int_equal(star_open(star), LH_OK);
    for (uint32_t i = 0; i < RANKS; i++)
        ranks[i] = (rank_run_t){.how = star_how(star, i, RANKS)};
    const uint64_t begin = sys()->now_ns();
    ranks_open(ranks, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        if (ranks[RANKS - 1 - i].status != LH_OK)
            FAIL_TEST("rank %u: %s\n", RANKS - 1 - i, ranks[RANKS - 1 - i].reason);
    print_message("%d ranks met in %.1f ms\n", RANKS, seconds_since(begin) * 1e3);
}

static void all_meet_and_know_each_other(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    open_well(&star, ranks);
    for (uint32_t i = 0; i < RANKS; i++) {
        const world_t *w = ranks[i].world;
        assert_int_equal(w->row.rank, i);
        assert_int_equal(w->row.size, RANKS);
        assert_int_equal(w->row.sites, 2);
        assert_int_equal(w->row.nodes, 2);
        assert_true(w->row.job == ranks[0].world->row.job);
        assert_string_equal(w->ranks[3].host, "o1");
        assert_string_equal(w->ranks[1].site_name, "tokyo");
        assert_int_equal(w->ranks[2].pid, getpid());
    }
    ranks_close(ranks, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, LH_OK);
    secret_free(star.secret);
}

enum { ROUNDS = 50, PART = 1000 };

static void *gather_rounds(void *argument)
{
    rank_run_t *r = argument;
    uint32_t mine[PART], *all = calloc((size_t)RANKS * PART, sizeof(*all));
    for (uint32_t round = 0; r->status == LH_OK && round < ROUNDS; round++) {
        for (uint32_t i = 0; i < PART; i++)
            mine[i] = r->how.rank * 1000000 + round * PART + i;
        r->status = control_gather(r->control, mine, sizeof(mine), all);
        for (uint32_t i = 0; r->status == LH_OK && i < RANKS * PART; i++)
            if (all[i] != i / PART * 1000000 + round * PART + i % PART) r->status = LH_CORRUPT;
        if (r->status == LH_OK) r->status = control_barrier(r->control, "between rounds");
        control_progress(r->control, round + 1, "a round");
    }
    free(all);
    return NULL;
}

static void every_rank_gets_all_parts(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    open_well(&star, ranks);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_create(&ranks[i].thread, NULL, gather_rounds, &ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, LH_OK);
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

/* Parts of a size that stands out among heartbeats. */
enum { COLLECTED = 100000 };

static void *collect_twice(void *argument)
{
    rank_run_t *r = argument;
    const bool keeps = r->how.rank == 0;
    char *mine = malloc(COLLECTED), *all = keeps ? malloc((size_t)RANKS * COLLECTED) : NULL;
    uint32_t sum = r->how.rank, sums[RANKS];
    for (int turn = 0; r->status == LH_OK && turn < 2; turn++) {
        memset(mine, (int)r->how.rank + 10 * turn + 1, COLLECTED);
        r->status = control_collect(r->control, mine, COLLECTED, all);
        for (uint32_t i = 0; keeps && r->status == LH_OK && i < RANKS * COLLECTED; i++)
            if (all[i] != (char)(i / COLLECTED + 10 * (uint32_t)turn + 1)) r->status = LH_CORRUPT;
        /* A gather behind it goes to all again. */
        if (r->status == LH_OK) r->status = control_gather(r->control, &sum, sizeof(sum), sums);
        for (uint32_t i = 0; r->status == LH_OK && i < RANKS; i++)
            if (sums[i] != i) r->status = LH_CORRUPT;
    }
    free(mine);
    free(all);
    return NULL;
}

/* Nothing of what rank 0 alone gets comes to the others. */
static void rank_0_alone_gets_what_it_collects(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    control_counts_t counts;
    (void)state;
    open_well(&star, ranks);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_create(&ranks[i].thread, NULL, collect_twice, &ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, LH_OK);
        control_counts(ranks[i].control, &counts);
        if (i == 0)
            assert_true(counts.bytes_received > 2ull * (RANKS - 1) * COLLECTED);
        else
            assert_true(counts.bytes_received < COLLECTED);
    }
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

static void *gather_aside(void *argument)
{
    enum { ASIDE_PART = 700 };
    rank_run_t *r = argument;
    uint32_t mine[ASIDE_PART], *all = calloc((size_t)RANKS * ASIDE_PART, sizeof(*all));
    for (uint32_t round = 0; r->status == LH_OK && round < 2 * ROUNDS; round++) {
        for (uint32_t i = 0; i < ASIDE_PART; i++)
            mine[i] = 7 + r->how.rank * 1000000 + round * ASIDE_PART + i;
        r->status = round % 2 == 0
                        ? control_gather_on(r->control, CONTROL_ASIDE, mine, sizeof(mine), all)
                        : control_collect_on(r->control, CONTROL_ASIDE, mine, sizeof(mine),
                                             r->how.rank == 0 ? all : NULL);
        if (round % 2 != 0 && r->how.rank != 0) continue;
        for (uint32_t i = 0; r->status == LH_OK && i < RANKS * ASIDE_PART; i++)
            if (all[i] != 7 + i / ASIDE_PART * 1000000 + round * ASIDE_PART + i % ASIDE_PART)
                r->status = LH_CORRUPT;
    }
    free(all);
    return NULL;
}

/* Each rank has two threads, of which either may be ahead of the other; another one on each rank begins. */
static void two_channels_know_nothing_of_each_other(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS], aside[RANKS];
    (void)state;
    open_well(&star, ranks);
    for (uint32_t i = 0; i < RANKS; i++) {
        aside[i] = ranks[i];
        if (i % 2 == 0) (void)pthread_create(&aside[i].thread, NULL, gather_aside, &aside[i]);
        (void)pthread_create(&ranks[i].thread, NULL, gather_rounds, &ranks[i]);
        if (i % 2 != 0) (void)pthread_create(&aside[i].thread, NULL, gather_aside, &aside[i]);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
        (void)pthread_join(aside[i].thread, NULL);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, LH_OK);
        assert_int_equal(aside[i].status, LH_OK);
    }
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

static void *gather_aside_once(void *argument)
{
    rank_run_t *r = argument;
    uint32_t mine = r->how.rank, all[RANKS];
    r->status = control_gather_on(r->control, CONTROL_ASIDE, &mine, sizeof(mine), all);
    return NULL;
}

/* The last rank gathers there no more, neither now nor later; all other gathers go on, and it ends
 * with the reason for which it has left. */
static void a_rank_that_leaves_a_channel_waits_for_nobody(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS], aside;
    uint32_t mine = 0, all[RANKS];
    (void)state;
    open_well(&star, ranks);
    for (uint32_t turn = 0; turn < 2; turn++) {
        aside = ranks[RANKS - 1];
        (void)pthread_create(&aside.thread, NULL, gather_aside_once, &aside);
        if (turn == 0) control_leave(aside.control, CONTROL_ASIDE);
        (void)pthread_join(aside.thread, NULL);
        assert_int_equal(aside.status, LH_CANCELLED);
    }
    assert_int_equal(control_gather_on(aside.control, CONTROL_ASIDE, &mine, sizeof(mine), all),
                     LH_CANCELLED);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_create(&ranks[i].thread, NULL, gather_rounds, &ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, LH_OK);
    control_fail(ranks[RANKS - 1].control, RANKS - 1, LH_INVALID, "a word is wrong");
    for (uint32_t i = 0; i < RANKS; i++)
        assert_true(fails_within(ranks[i].control, 20));
    ranks_close(ranks, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, LH_INVALID);
        assert_non_null(strstr(ranks[i].reason, "a word is wrong"));
    }
    secret_free(star.secret);
}

/* A plane whose thread has ended though nobody failed. */
static void nothing_is_gathered_where_nobody_answers(void **state)
{
    uint32_t mine = 1, all = 0;
    control_t *c = calloc(1, sizeof(*c));
    (void)state;
    assert_non_null(c);
    (void)pthread_mutex_init(&c->gather_locks[CONTROL_MAIN], NULL);
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    c->how.size = 1;
    c->wake_fd = eventfd(0, EFD_CLOEXEC);
    c->closed = true;
    assert_int_equal(control_gather(c, &mine, sizeof(mine), &all), LH_PEER_LOST);
    assert_non_null(strstr(fail_reason(), "has ended"));
    (void)close(c->wake_fd);
    free(c);
}

static void *collect_or_gather(void *argument)
{
    rank_run_t *r = argument;
    uint32_t mine = 0, all[RANKS];
    r->status = r->how.rank == 2 ? control_gather(r->control, &mine, sizeof(mine), all)
                                 : control_collect(r->control, &mine, sizeof(mine), all);
    (void)snprintf(r->reason, sizeof(r->reason), "%s", fail_reason());
    return NULL;
}

static void a_rank_that_gathers_while_others_collect_is_told(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    open_well(&star, ranks);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_create(&ranks[i].thread, NULL, collect_or_gather, &ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, LH_MISMATCH);
        assert_non_null(strstr(ranks[i].reason, "'for rank 0' with 4"));
    }
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

static void *wait_at_the_wrong_place(void *argument)
{
    rank_run_t *r = argument;
    r->status = control_barrier(r->control, r->how.rank == 2 ? "after saving" : "before step 0");
    (void)snprintf(r->reason, sizeof(r->reason), "%s", fail_reason());
    return NULL;
}

static void ranks_that_wait_at_different_places_are_told(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    open_well(&star, ranks);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_create(&ranks[i].thread, NULL, wait_at_the_wrong_place, &ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, LH_MISMATCH);
        assert_non_null(strstr(ranks[i].reason, "'after saving'"));
        assert_non_null(strstr(ranks[i].reason, "'before step 0'"));
        assert_string_equal(ranks[i].reason, ranks[0].reason);
    }
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

static void what_differs_is_a_table_on_every_rank(void **state)
{
    static const control_fact_t most[] = {
        {"binary", "1f00"}, {"plugin tcp", "1.0 abi 1 77aa"}, {"[train] batch", "8"}};
    static const control_fact_t other[] = {
        {"binary", "1f00"}, {"plugin tcp", "1.0 abi 1 88bb"}, {"[train] steps", "9"}};
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (rank_run_t){.how = star_how(&star, i, RANKS)};
        ranks[i].how.facts = i == 2 ? other : most;
        ranks[i].how.fact_count = 3;
    }
    const uint64_t begin = sys()->now_ns();
    ranks_open(ranks, RANKS);
    assert_true(seconds_since(begin) < 10); /* one that did not come would be waited for for 20 */
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, LH_MISMATCH);
        assert_string_equal(
            ranks[i].reason,
            "ranks differ; nothing was started\n"
            "plugin tcp: 1.0 abi 1 77aa on ranks 0-1, 3 (tokyo/t1); 1.0 abi 1 88bb on rank 2 "
            "(osaka/o1)\n"
            "[train] batch: 8 on ranks 0-1, 3 (tokyo/t1); (not set) on rank 2 (osaka/o1)\n"
            "[train] steps: (not set) on ranks 0-1, 3 (tokyo/t1); 9 on rank 2 (osaka/o1)");
    }
    secret_free(star.secret);
}

/* Time stands still from here on, where that is not 0: what waits for its end waits for something else to happen. */
static _Atomic uint64_t held_from;

static uint64_t now_held(void)
{
    const uint64_t now = sys_real.now_ns(), from = atomic_load(&held_from);
    return from != 0 && now > from ? from : now;
}

/* A thread may be looking at it just now: it never goes back. */
static void hold_clock(void)
{
    atomic_store(&held_from, sys_real.now_ns() + 50 * CONTROL_MS);
}

static sys_t with_held_clock(void)
{
    sys_t table = sys_real;
    atomic_store(&held_from, 0);
    table.now_ns = now_held;
    return table;
}

static void the_first_reason_is_everybodys(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    const sys_t held = with_held_clock();
    (void)state;
    sys_use(&held);
    open_well(&star, ranks);
    control_progress(ranks[1].control, 41, "all-reduce of gradients 3");
    (void)usleep(600000); /* two heartbeats */
    /* A neighbour sees the connection go before the cause is told, which has some time for that. */
    hold_clock();
    control_fail(ranks[3].control, 1, LH_PEER_LOST, "its link ended");
    ranks[1].status = LH_CORRUPT;
    strcpy(ranks[1].reason, "corpus.bin: token 70000 of 512");
    (void)pthread_create(&ranks[1].thread, NULL, rank_close_thread, &ranks[1]);
    for (uint32_t i = 0; i < RANKS; i++)
        if (i != 1) assert_true(fails_within(ranks[i].control, 20));
    (void)pthread_join(ranks[1].thread, NULL);
    ranks[1].control = NULL;
    ranks_close(ranks, RANKS);
    sys_use(NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        char expected[256];
        (void)snprintf(expected, sizeof(expected),
                       "rank 1 on tokyo/t1 (process %d) failed in step 41, all-reduce of gradients "
                       "3: corpus.bin: token 70000 of 512",
                       (int)getpid());
        assert_int_equal(ranks[i].status, LH_CORRUPT);
        assert_string_equal(ranks[i].reason, expected);
    }
    secret_free(star.secret);
}

/* Rank 0, which decides, and another one: each sees a link end, tells of it and ends itself, before the
 * one at the other end has said why. */
static void what_a_rank_ends_with_goes_behind_what_it_told_of(void **state)
{
    static const uint32_t tellers[] = {0, 3};
    (void)state;
    for (uint32_t t = 0; t < 2; t++) {
        star_t star;
        rank_run_t ranks[RANKS];
        rank_run_t *teller = &ranks[tellers[t]], *cause = &ranks[2];
        const sys_t held = with_held_clock();
        sys_use(&held);
        open_well(&star, ranks);
        hold_clock();
        control_fail(teller->control, 2, LH_PEER_LOST, "its link ended");
        (void)usleep(50000); /* it has been told */
        control_fail(teller->control, tellers[t], LH_PEER_LOST, "rank 2: its link ended");
        teller->status = LH_PEER_LOST;
        strcpy(teller->reason, "rank 2: its link ended");
        (void)pthread_create(&teller->thread, NULL, rank_close_thread, teller);
        (void)usleep(50000);
        cause->status = LH_CORRUPT;
        strcpy(cause->reason, "corpus.bin: token 70000 of 512");
        (void)pthread_create(&cause->thread, NULL, rank_close_thread, cause);
        (void)pthread_join(cause->thread, NULL);
        atomic_store(
            &held_from,
            0); /* rank 0 leaves when the time is over that it gives the one that it told of */
        (void)pthread_join(teller->thread, NULL);
        teller->control = cause->control = NULL;
        ranks_close(ranks, RANKS);
        sys_use(NULL);
        for (uint32_t i = 0; i < RANKS; i++) {
            assert_int_equal(ranks[i].status, LH_CORRUPT);
            assert_memory_equal(ranks[i].reason, "rank 2 on osaka/o1 (process ", 28);
            assert_non_null(strstr(ranks[i].reason, "corpus.bin: token 70000 of 512"));
        }
        secret_free(star.secret);
    }
}

static void a_rank_that_only_others_miss_is_named(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    open_well(&star, ranks);
    control_fail(ranks[3].control, 2, LH_PEER_LOST, "no byte for 3.0 s");
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_true(fails_within(ranks[i].control, 20));
        assert_non_null(strstr(control_failure(ranks[i].control), "rank 2 on osaka/o1"));
        assert_non_null(strstr(control_failure(ranks[i].control),
                               "no byte for 3.0 s (seen by rank 3 on osaka/o1)"));
    }
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

/* Ranks 1.. as processes; rank 0 too when `zero` is set. Each that has met the others writes a byte. */
static void spawn_ranks(const star_t *star, pid_t pids[RANKS], bool zero, int met)
{
    for (uint32_t i = zero ? 0 : 1; i < RANKS; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] != 0) continue;
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1); /* a rank that fails runs no other tests */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        control_culprit_t culprit = {0};
        rank_run_t self = {.how = star_how(star, i, RANKS)};
        self.how.culprit = &culprit;
        if (i != 0) (void)close(star->listener);
        (void)rank_open_thread(&self);
        if (self.status != LH_OK || write(met, "x", 1) != 1) _exit(1);
        control_progress(self.control, 7, "a test");
        control_waited(self.control, 40);
        control_waited(self.control, 2);
        (void)fails_within(self.control, 20);
        /* That rank 0 itself is lost is told by nobody. */
        const bool fits = control_status(self.control) == LH_PEER_LOST && culprit.told == !zero;
        _exit(fits ? 33 : 34);
    }
}

static void end_children(pid_t pids[RANKS], uint32_t first, uint32_t victim)
{
    for (uint32_t i = first; i < RANKS; i++) {
        int how = 0;
        if (i == victim) (void)kill(pids[i], SIGKILL);
        assert_int_equal(waitpid(pids[i], &how, 0), pids[i]);
        if (i != victim) assert_int_equal(WIFEXITED(how) ? WEXITSTATUS(how) : -1, 33);
    }
}

/* Until that many have written a byte, and nobody else will. */
static void all_have_met(const int met[2], uint32_t count)
{
    char byte;
    (void)close(met[1]);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(read(met[0], &byte, 1), 1);
    (void)close(met[0]);
}

static void lose_one(int number, const char *sentence, double limit)
{
    star_t star;
    pid_t pids[RANKS];
    int met[2];
    assert_int_equal(star_open(&star), LH_OK);
    assert_int_equal(pipe(met), 0);
    spawn_ranks(&star, pids, false, met[1]);
    rank_run_t zero = {.how = star_how(&star, 0, RANKS)};
    (void)rank_open_thread(&zero);
    if (zero.status != LH_OK) FAIL_TEST("%s\n", zero.reason);
    all_have_met(met, RANKS - 1);
    control_member_t member = {0};
    const uint64_t from = sys()->now_ns();
    while (!control_member(zero.control, 2, &member) || member.progress.step != 7 ||
           member.progress.waited_ns != 42) {
        assert_true(seconds_since(from) < 20);
        (void)usleep(1000);
    }
    assert_true(member.silent_ns < UINT64_C(3000000000));
    assert_string_equal(member.progress.text, "a test");
    (void)kill(pids[2], number);
    const uint64_t begin = sys()->now_ns();
    assert_true(fails_within(zero.control, limit));
    print_message("signal %d: named after %.3f s: %s\n", number, seconds_since(begin),
                  control_failure(zero.control));
    char expected[128];
    (void)snprintf(expected, sizeof(expected),
                   "rank 2 on osaka/o1 (process %d) was lost in step 7, a test: ", (int)pids[2]);
    assert_memory_equal(control_failure(zero.control), expected, strlen(expected));
    assert_non_null(strstr(control_failure(zero.control), sentence));
    assert_non_null(strstr(control_failure(zero.control), " (seen by rank 0 on tokyo/"));
    end_children(pids, 1, 2);
    (void)rank_close_thread(&zero);
    secret_free(star.secret);
}

static void a_killed_rank_is_named_at_once(void **state)
{
    (void)state;
    lose_one(SIGKILL, "its connection ", 20); /* ended, or reset */
}

static void a_stopped_rank_is_named(void **state)
{
    (void)state;
    lose_one(SIGSTOP, "silent for 3.", 20);
}

static void all_others_name_rank_0(void **state)
{
    for (uint32_t round = 0; round < 2; round++) {
        star_t star;
        pid_t pids[RANKS];
        int met[2];
        (void)state;
        assert_int_equal(star_open(&star), LH_OK);
        assert_int_equal(pipe(met), 0);
        spawn_ranks(&star, pids, true, met[1]);
        (void)close(star.listener);
        all_have_met(met, RANKS);
        (void)kill(pids[0], round == 0 ? SIGKILL : SIGSTOP);
        const uint64_t begin = sys()->now_ns();
        end_children(pids, 1, 0);
        const double seconds = seconds_since(begin);
        print_message("rank 0 gone: all others ended after %.3f s\n", seconds);
        assert_true(seconds < 15); /* they look for 20 */
        (void)kill(pids[0], SIGKILL);
        (void)waitpid(pids[0], NULL, 0);
        secret_free(star.secret);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_meet_and_know_each_other),
        cmocka_unit_test(every_rank_gets_all_parts),
        cmocka_unit_test(rank_0_alone_gets_what_it_collects),
        cmocka_unit_test(a_rank_that_gathers_while_others_collect_is_told),
        cmocka_unit_test(nothing_is_gathered_where_nobody_answers),
        cmocka_unit_test(two_channels_know_nothing_of_each_other),
        cmocka_unit_test(a_rank_that_leaves_a_channel_waits_for_nobody),
        cmocka_unit_test(ranks_that_wait_at_different_places_are_told),
        cmocka_unit_test(what_differs_is_a_table_on_every_rank),
        cmocka_unit_test(the_first_reason_is_everybodys),
        cmocka_unit_test(what_a_rank_ends_with_goes_behind_what_it_told_of),
        cmocka_unit_test(a_rank_that_only_others_miss_is_named),
        cmocka_unit_test(a_killed_rank_is_named_at_once),
        cmocka_unit_test(a_stopped_rank_is_named),
        cmocka_unit_test(all_others_name_rank_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
