/* request_test.c - what a child holds that is forked beside the thread that looks for requests, and
 * how many signals stops become. */
#include <unit/base/scratch_files.h>

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include <base/child.h>
#include <base/sys.h>
#include <launch/request.h>
#include <torture.h>

/* Of sizes that starting a thread asks for, more than a thread keeps at hand: each allocator has to
 * come to what its threads share, and to the locks there. */
static int allocate(void *context, int to)
{
    enum { COUNT = 12000, SIZES = 12 };
    const uint32_t word = 1;
    (void)context;
    for (uint32_t i = 0; i < COUNT; i++) {
        void *volatile more = malloc(16 + 16 * (i % SIZES));
        if (more == NULL) return 1;
    }
    return child_say(to, &word, sizeof(word)) ? 0 : 1;
}

static void no_lock_is_held_where_a_child_is_forked(void **state)
{
    enum { SERVERS = 16 };
    const uint64_t patience = UINT64_C(60000000000);
    const uint32_t rounds = torture_wanted() ? 2000 : 20;
    const scratch_t *files = *state;
    request_server_t *servers[SERVERS];
    for (uint32_t round = 0; round < rounds; round++) {
        child_t child;
        uint32_t word = 0;
        for (uint32_t i = 0; i < SERVERS; i++)
            assert_int_equal(request_serve(files->folder, 0, &servers[i]), LH_OK);
        assert_int_equal(child_start(allocate, NULL, &child), CHILD_STARTED);
        const int heard = child_hear(&child, &word, sizeof(word), sys()->now_ns() + patience);
        (void)child_take_away(&child);
        assert_int_equal(heard, CHILD_SAID);
        for (uint32_t i = 0; i < SERVERS; i++)
            request_end(servers[i]);
    }
}

/* Asked for, and taken away within a minute. */
static void ask(const char *folder, const char *word)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    const uint64_t end = sys()->now_ns() + UINT64_C(60000000000);
    assert_int_equal(request_put(folder, REQUEST_STOP, word), LH_OK);
    while (request_pending(folder, REQUEST_STOP) && sys()->now_ns() < end)
        (void)nanosleep(&pause, NULL);
    assert_false(request_pending(folder, REQUEST_STOP));
}

/* As a launcher, which reads its signals when it comes to it: they wait here. */
static void a_second_plain_stop_is_no_second_signal(void **state)
{
    const scratch_t *files = *state;
    const struct timespec patience = {.tv_sec = 60};
    request_server_t *server;
    sigset_t stops, before, waiting;
    (void)sigemptyset(&stops);
    (void)sigaddset(&stops, SIGTERM);
    (void)sigaddset(&stops, SIGINT);
    assert_int_equal(sigprocmask(SIG_BLOCK, &stops, &before), 0);
    assert_int_equal(request_serve(files->folder, REQUEST_STOP | REQUEST_PASSES, &server), LH_OK);
    ask(files->folder, "stop");
    assert_int_equal(sigtimedwait(&stops, NULL, &patience), SIGTERM);
    ask(files->folder, "stop");
    request_end(server); /* what it took, it has seen to by then */
    assert_int_equal(sigpending(&waiting), 0);
    assert_false(sigismember(&waiting, SIGTERM));
    assert_false(sigismember(&waiting, SIGINT));
    /* An end at once is one also behind a stop. */
    assert_int_equal(request_serve(files->folder, REQUEST_STOP | REQUEST_PASSES, &server), LH_OK);
    ask(files->folder, "stop");
    assert_int_equal(sigtimedwait(&stops, NULL, &patience), SIGTERM);
    ask(files->folder, REQUEST_NOW);
    assert_int_equal(sigtimedwait(&stops, NULL, &patience), SIGINT);
    assert_int_equal(sigtimedwait(&stops, NULL, &patience), SIGTERM);
    request_end(server);
    assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
}

/* Of a process that is alone, which would end by it with 143. */
static void a_stop_behind_a_signal_is_no_second_signal(void **state)
{
    const scratch_t *files = *state;
    request_server_t *server;
    assert_int_equal(sys_stop_watch(), LH_OK);
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(sys_stop_requested());
    assert_int_equal(request_serve(files->folder, REQUEST_STOP, &server), LH_OK);
    ask(files->folder, "stop");
    request_end(server);
    sys_stop_unwatch();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_lock_is_held_where_a_child_is_forked, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_second_plain_stop_is_no_second_signal, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_stop_behind_a_signal_is_no_second_signal, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
