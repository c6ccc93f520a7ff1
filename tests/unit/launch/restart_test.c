/* restart_test.c - which ends are a loss, how often ranks start again, and the loop that is none. */
#include <unit/base/scratch_files.h>

#include <launch/restart.h>

static const uint64_t second = UINT64_C(1000000000);

static enum restart_answer lose(restarts_t *r, uint32_t rank, uint64_t step, int how, uint64_t at_s)
{
    const restart_cause_t cause = {rank, step, how};
    return restart_judge(r, &cause, at_s * second);
}

/* Against a count by hand over the times of all restarts so far, in any order of gaps. */
static void as_many_in_any_window_as_are_allowed(void **state)
{
    enum { ROUNDS = 2000, MOST = 5, WINDOW_S = 100 };
    static uint64_t made[ROUNDS];
    uint64_t now = 0, count = 0, random = 7;
    restarts_t r = {.most = MOST, .window_ns = WINDOW_S * second};
    (void)state;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        random = random * UINT64_C(6364136223846793005) + 1;
        now += (random >> 33) % 40;
        uint64_t lately = 0;
        for (uint64_t k = 0; k < count; k++)
            lately += now - made[k] < WINDOW_S;
        const enum restart_answer answer = lose(&r, i % 7, i, 9, now);
        assert_int_equal(answer, lately < MOST ? RESTART_AGAIN : RESTART_SPENT);
        if (answer == RESTART_AGAIN) made[count++] = now;
        assert_int_equal(restart_count(&r, now * second), lately < MOST ? lately + 1 : MOST);
    }
    assert_int_equal(r.made, count);
    assert_true(count > ROUNDS / 10 && count < ROUNDS);
    restart_free(&r);
}

static void the_third_of_the_same_kind_in_a_row_is_a_loop(void **state)
{
    restarts_t r = {.most = 100, .window_ns = second};
    (void)state;
    assert_int_equal(lose(&r, 1, 41, 9, 10), RESTART_AGAIN);
    assert_int_equal(lose(&r, 1, 41, 9, 20), RESTART_AGAIN);
    assert_int_equal(lose(&r, 2, 41, 9, 30), RESTART_AGAIN);  /* another rank, */
    assert_int_equal(lose(&r, 2, 42, 9, 40), RESTART_AGAIN);  /* step, */
    assert_int_equal(lose(&r, 2, 42, 11, 50), RESTART_AGAIN); /* cause */
    assert_int_equal(lose(&r, 2, 42, 11, 60), RESTART_AGAIN);
    assert_int_equal(lose(&r, 2, 42, 11, 70), RESTART_LOOP);
    restart_free(&r);
}

static void without_an_option_there_are_none(void **state)
{
    restarts_t r = {.window_ns = second};
    text_t told = {0};
    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        const enum restart_answer answer = lose(&r, 1, 41, 9, i);
        assert_int_equal(answer, RESTART_NEVER);
        restart_tell(&r, answer, i, &told);
    }
    assert_null(told.data);
    restart_free(&r);
}

static void what_never_came_is_no_loss(void **state)
{
    static const struct {
        lh_status_t status;
        uint64_t step;
        bool met, first, loss;
    } ends[] = {
        {LH_PEER_LOST, 0, true, true, true},   {LH_PEER_LOST, 0, false, true, true},
        {LH_TIMED_OUT, 0, false, true, false}, {LH_TIMED_OUT, 0, false, false, false},
        {LH_TIMED_OUT, 0, true, true, false},  {LH_UNREACHABLE, 0, true, true, false},
        {LH_TIMED_OUT, 0, true, false, true},  {LH_UNREACHABLE, 0, true, false, true},
        {LH_TIMED_OUT, 7, true, true, true},   {LH_OK, 0, false, true, false},
        {LH_OK, 0, true, true, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const control_culprit_t culprit = {
            .rank = 1, .status = ends[i].status, .step = ends[i].step};
        if (restart_is_loss(&culprit, ends[i].met, ends[i].first) != ends[i].loss)
            FAIL_TEST("end %zu\n", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_in_any_window_as_are_allowed),
        cmocka_unit_test(the_third_of_the_same_kind_in_a_row_is_a_loop),
        cmocka_unit_test(without_an_option_there_are_none),
        cmocka_unit_test(what_never_came_is_no_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
