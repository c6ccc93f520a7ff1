/* epoch_test.c - which ranks meet in which epoch: who was of the one before, who is new, and who is
 * left over from a meeting that is past. */
#include <unit/base/scratch_files.h>

#include <unit/control/control_ranks.h>

static void ranks_of(star_t *star, rank_run_t ranks[RANKS], const uint32_t epochs[RANKS])
{
    assert_int_equal(star_open(star), LH_OK);
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (rank_run_t){.how = star_how(star, i, RANKS)};
        ranks[i].how.epoch = epochs[i];
    }
}

/* 1 is a launcher that was started anew, rank 0's as well as another's. */
static void all_meet_in_the_epoch_that_the_highest_expects(void **state)
{
    static const struct {
        uint32_t epochs[RANKS], met;
    } jobs[] = {
        {{0, 0, 0, 0}, 1}, {{1, 1, 1, 1}, 1}, {{2, 2, 2, 2}, 2}, {{7, 7, 1, 1}, 7},
        {{1, 1, 5, 5}, 5}, {{4, 4, 4, 3}, 4}, {{3, 4, 4, 4}, 4}, /* whom the last welcome did not reach */
    };
    (void)state;
    for (size_t k = 0; k < sizeof(jobs) / sizeof(jobs[0]); k++) {
        star_t star;
        rank_run_t ranks[RANKS];
        ranks_of(&star, ranks, jobs[k].epochs);
        ranks_open(ranks, RANKS);
        for (uint32_t i = 0; i < RANKS; i++) {
            if (ranks[i].status != LH_OK) FAIL_TEST("rank %u: %s\n", i, ranks[i].reason);
            assert_int_equal(ranks[i].world->row.epoch, jobs[k].met);
        }
        ranks_close(ranks, RANKS);
        secret_free(star.secret);
    }
}

/* One of epoch 2 comes first, is refused, and the others meet when its successor is there. */
static void a_rank_of_a_past_epoch_is_refused_and_the_others_wait(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS], late;
    (void)state;
    ranks_of(&star, ranks, (const uint32_t[RANKS]){4, 4, 4, 4});
    late = (rank_run_t){.how = star_how(&star, 3, RANKS)};
    late.how.epoch = 2;
    for (uint32_t i = 0; i < 3; i++)
        (void)pthread_create(&ranks[i].thread, NULL, rank_open_thread, &ranks[i]);
    (void)rank_open_thread(&late);
    assert_int_equal(late.status, LH_MISMATCH);
    assert_string_equal(late.reason, "rank 3 on osaka/o1 is of epoch 2 of the job, which is past: "
                                     "rank 0 on t1 is of epoch 4");
    (void)rank_open_thread(&ranks[3]);
    for (uint32_t i = 0; i < 3; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        if (ranks[i].status != LH_OK) FAIL_TEST("rank %u: %s\n", i, ranks[i].reason);
        assert_int_equal(ranks[i].world->row.epoch, 4);
    }
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

/* Where rank 0's launcher is new and two others differ, who is right is not known before both are
 * there: whichever comes first, nobody starts in two epochs. */
static void nobody_meets_in_two_epochs(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    for (uint32_t old = 2; old <= 4; old += 2) {
        const uint32_t epochs[RANKS] = {1, 1, old, 6 - old};
        ranks_of(&star, ranks, epochs);
        for (uint32_t i = 0; i < RANKS; i++)
            ranks[i].how.join_ns = UINT64_C(1500000000);
        ranks_open(ranks, RANKS);
        for (uint32_t i = 0; i < RANKS; i++) {
            assert_true(ranks[i].status != LH_OK);
            assert_null(ranks[i].control);
        }
        secret_free(star.secret);
    }
}

/* Against heartbeats that come each 250 ms, of which each step here would wait for one. */
static void a_step_is_told_as_it_begins(void **state)
{
    enum { STEPS = 10 };
    star_t star;
    rank_run_t ranks[RANKS];
    control_member_t seen = {0};
    (void)state;
    ranks_of(&star, ranks, (const uint32_t[RANKS]){1, 1, 1, 1});
    ranks_open(ranks, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, LH_OK);
    const uint64_t begin = sys()->now_ns();
    for (uint64_t step = 1; step <= STEPS; step++)
        do {
            control_progress(ranks[2].control, step, "a sum");
            (void)usleep(1000);
            assert_true(control_member(ranks[0].control, 2, &seen));
            assert_true(seen.progress.step <= step);
        } while (seen.progress.step < step && seconds_since(begin) < 10);
    assert_true(seconds_since(begin) < 0.25 * (STEPS - 2));
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

/* Whoever decides on a restart is told the same of the end on every rank. The others leave once they
 * know of it, as ranks in the middle of a step do: one that had said goodbye before would leave well. */
static void every_rank_is_left_the_same_culprit(void **state)
{
    static control_culprit_t culprits[RANKS];
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    ranks_of(&star, ranks, (const uint32_t[RANKS]){1, 1, 1, 1});
    for (uint32_t i = 0; i < RANKS; i++)
        ranks[i].how.culprit = &culprits[i];
    ranks_open(ranks, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, LH_OK);
    control_progress(ranks[2].control, 41, "a sum");
    (void)usleep(600000); /* a heartbeat goes out each 250 ms */
    ranks[2].status = LH_PEER_LOST;
    (void)snprintf(ranks[2].reason, sizeof(ranks[2].reason), "its link is down");
    (void)pthread_create(&ranks[2].thread, NULL, rank_close_thread, &ranks[2]);
    for (uint32_t i = 0; i < RANKS; i++)
        if (i != 2) assert_true(fails_within(ranks[i].control, 20));
    (void)pthread_join(ranks[2].thread, NULL);
    ranks[2].control = NULL;
    ranks_close(ranks, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(culprits[i].status, LH_PEER_LOST);
        assert_int_equal(culprits[i].rank, 2);
        assert_int_equal(culprits[i].step, 41);
        assert_true(culprits[i].told == (i != 0)); /* rank 0 prints it */
    }
    secret_free(star.secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_meet_in_the_epoch_that_the_highest_expects),
        cmocka_unit_test(a_rank_of_a_past_epoch_is_refused_and_the_others_wait),
        cmocka_unit_test(nobody_meets_in_two_epochs),
        cmocka_unit_test(a_step_is_told_as_it_begins),
        cmocka_unit_test(every_rank_is_left_the_same_culprit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
