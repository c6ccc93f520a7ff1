/* child_test.c - a child is heard until it ends, and what it started neither holds that up nor
 * outlives it. */
#include <unit/base/scratch_files.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <base/child.h>
#include <base/sys.h>

enum { GRANDCHILD_S = 30, SOON_MS = 10000, WORD = 4711 };
static const uint64_t second = UINT64_C(1000000000);

static int held[2]; /* by all that a test starts: whoever reads it knows when the last is gone */

static void watch_them(void)
{
    assert_int_equal(pipe2(held, O_CLOEXEC), 0);
}

static bool all_are_gone(void)
{
    struct pollfd end = {.fd = held[0], .events = POLLIN};
    char byte;
    (void)close(held[1]);
    const bool gone = poll(&end, 1, SOON_MS) == 1 && read(held[0], &byte, 1) == 0;
    (void)close(held[0]);
    return gone;
}

static child_t started(int (*work)(void *context, int to), void *context)
{
    child_t c;
    assert_int_equal(child_start(work, context, &c), CHILD_STARTED);
    return c;
}

static bool say_word(int to)
{
    const int word = WORD;
    return child_say(to, &word, sizeof(word));
}

static int hear_word(child_t *c, uint64_t patience)
{
    int word = 0;
    const int heard = child_hear(c, &word, sizeof(word), sys()->now_ns() + patience);
    if (heard == CHILD_SAID) assert_int_equal(word, WORD);
    return heard;
}

static int wait_for_ever(void)
{
    while (pause() < 0) {
    }
    return 1;
}

/* It keeps the pipe of its parent. */
static void start_grandchild(void)
{
    const pid_t pid = fork();
    if (pid < 0) _exit(1);
    if (pid > 0) return;
    (void)sleep(GRANDCHILD_S);
    _exit(0);
}

static int say_and_wait(void *unused, int to)
{
    (void)unused;
    start_grandchild();
    if (!say_word(to)) return 1;
    return wait_for_ever();
}

static int end_with(void *code, int to)
{
    (void)to;
    start_grandchild();
    return *(int *)code;
}

static void who_holds_the_pipe_does_not_hold_up_the_answer(void **state)
{
    (void)state;
    watch_them();
    const uint64_t begin = sys()->now_ns();
    child_t c = started(say_and_wait, NULL);
    assert_int_equal(hear_word(&c, GRANDCHILD_S * second), CHILD_SAID);
    const int how = child_take_away(&c);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_true(all_are_gone());
    assert_in_range((sys()->now_ns() - begin) / 1000000, 0, SOON_MS);
}

static void who_holds_the_pipe_does_not_hold_up_the_end(void **state)
{
    (void)state;
    for (int code = 6; code < 8; code++) {
        watch_them();
        const uint64_t begin = sys()->now_ns();
        child_t c = started(end_with, &code);
        if (code == 7) { /* as on a kernel without descriptors of processes */
            if (c.end >= 0) (void)close(c.end);
            c.end = -1;
        }
        assert_int_equal(hear_word(&c, GRANDCHILD_S * second), CHILD_ENDED);
        const int how = child_take_away(&c);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == code);
        assert_true(all_are_gone());
        assert_in_range((sys()->now_ns() - begin) / 1000000, 0, SOON_MS);
    }
}

static int say_twice(void *unused, int to)
{
    (void)unused;
    return say_word(to) && say_word(to) ? 0 : 1;
}

/* However close its end follows. */
static void all_that_it_said_is_heard(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        child_t c = started(say_twice, NULL);
        assert_int_equal(hear_word(&c, 60 * second), CHILD_SAID);
        assert_int_equal(hear_word(&c, 60 * second), CHILD_SAID);
        assert_int_equal(hear_word(&c, 60 * second), CHILD_ENDED);
        assert_int_equal(child_take_away(&c), 0);
    }
}

static int say_half(void *unused, int to)
{
    (void)unused;
    return write(to, "x", 1) == 1 ? 9 : 1;
}

static int close_pipe(void *unused, int to)
{
    (void)unused;
    (void)close(to);
    return say_word(to) ? 1 : 9;
}

static void without_a_whole_message_its_end_is_awaited(void **state)
{
    int (*const works[])(void *, int) = {say_half, close_pipe};
    (void)state;
    for (int i = 0; i < 2; i++) {
        child_t c = started(works[i], NULL);
        assert_int_equal(hear_word(&c, 60 * second), CHILD_ENDED);
        const int how = child_take_away(&c);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 9);
    }
}

/* It is deaf, and no longer in its own group. */
static int hang(void *group, int to)
{
    sigset_t all;
    (void)to;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, NULL);
    while (getpgrp() != *(pid_t *)group)
        (void)setpgid(0, *(pid_t *)group);
    return wait_for_ever();
}

static void one_that_hangs_is_taken_away(void **state)
{
    pid_t group = getpgrp();
    (void)state;
    watch_them();
    const uint64_t begin = sys()->now_ns();
    child_t c = started(hang, &group);
    assert_int_equal(hear_word(&c, second / 4), CHILD_LATE);
    assert_in_range((sys()->now_ns() - begin) / 1000000, 250, SOON_MS);
    const int how = child_take_away(&c);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_true(all_are_gone());
}

static int start_another(void *unused, int to)
{
    const char *const none[] = {NULL};
    const confine_t may = {.read = none, .write = none};
    child_t inner;
    (void)unused;
    (void)child_confine(&may);
    if (child_start(say_and_wait, NULL, &inner) != CHILD_STARTED) return 1;
    const bool heard = hear_word(&inner, GRANDCHILD_S * second) == CHILD_SAID;
    (void)child_take_away(&inner);
    return heard && say_word(to) ? 0 : 1;
}

/* One that is confined can make no group: what it leaves behind goes with its own. */
static void a_child_within_a_confined_one_is_taken_away(void **state)
{
    (void)state;
    watch_them();
    child_t c = started(start_another, NULL);
    assert_int_equal(hear_word(&c, GRANDCHILD_S * second), CHILD_SAID);
    (void)child_take_away(&c);
    assert_true(all_are_gone());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_holds_the_pipe_does_not_hold_up_the_answer),
        cmocka_unit_test(who_holds_the_pipe_does_not_hold_up_the_end),
        cmocka_unit_test(all_that_it_said_is_heard),
        cmocka_unit_test(without_a_whole_message_its_end_is_awaited),
        cmocka_unit_test(one_that_hangs_is_taken_away),
        cmocka_unit_test(a_child_within_a_confined_one_is_taken_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
