/* assertion_test.c - what an assertion that does not hold leaves behind: an exit code and one
 * sentence, in the process that fails and in the one that waits for it. */
#include <unit/base/scratch_files.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/child.h>
#include <base/log.h>
#include <base/text.h>
#include <plugin/probe.h>

enum { SENTENCE = 512 };

static void fail_here(void)
{
    const int ranks = 0;
    lh_assert(ranks > 0);
}

static void *fail_in_a_thread(void *unused)
{
    fail_here();
    return unused;
}

static bool fail_again_while_told(const char *sentence)
{
    (void)sentence;
    fail_here();
    return true;
}

static void say_goodbye(void)
{
    (void)!write(STDERR_FILENO, "a handler of exit ran\n", 22);
}

static void by_itself(void)
{
    (void)atexit(say_goodbye);
    fail_here();
}

static void by_a_thread(void)
{
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++)
        (void)pthread_create(&threads[i], NULL, fail_in_a_thread, NULL);
    for (size_t i = 0; i < 3; i++)
        (void)pthread_join(threads[i], NULL);
}

static void while_it_is_told(void)
{
    status_assert_tell(fail_again_while_told);
    fail_here();
}

/* stderr of a child that does it. */
static void hear_end_of(void (*how)(void), char said[SENTENCE])
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        how();
        _exit(0);
    }
    (void)close(ends[1]);
    size_t length = 0;
    for (ssize_t got; (got = read(ends[0], said + length, SENTENCE - 1 - length)) > 0;)
        length += (size_t)got;
    said[length] = '\0';
    (void)close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EXIT_INTERNAL);
}

static void assert_sentence(const char *text, const char *begin, const char *end)
{
    char expected[SENTENCE];
    const char *line = strstr(text, "assertion_test.c:");
    assert_non_null(line);
    (void)snprintf(expected, sizeof(expected),
                   "%sinternal error at assertion_test.c:%d: 'ranks > 0' does not hold%s", begin,
                   atoi(strchr(line, ':') + 1), end);
    assert_string_equal(text, expected);
}

/* A file's line has its time of day ahead. */
static void assert_log(const char *text, const char *begin)
{
    assert_true(strlen(text) > TEXT_TIME);
    assert_int_equal(text[TEXT_TIME - 2], 'Z');
    assert_sentence(text + TEXT_TIME, begin, "\n");
}

static void it_ends_the_process_with_a_sentence_and_nothing_else(void **state)
{
    char said[SENTENCE];
    (void)state;
    hear_end_of(by_itself, said);
    assert_sentence(said, "longhaul: ", "\n");
    hear_end_of(by_a_thread, said);
    assert_sentence(said, "longhaul: ", "\n");
    hear_end_of(while_it_is_told, said);
    assert_string_equal(said, "");
}

static void the_logs_have_the_sentence(void **state)
{
    int log, own;
    char said[SENTENCE], *text;
    size_t length;
    char *paths[] = {mem_text(scratch_path(*state, "train.log")),
                     mem_text(scratch_path(*state, "rank-3.log"))};
    assert_int_equal(file_begin(paths[0], O_TRUNC | O_APPEND, &log), LH_OK);
    log_also(log, paths[0]);
    hear_end_of(by_itself, said);
    assert_int_equal(file_read(paths[0], SENTENCE, &text, &length), LH_OK);
    assert_log(text, "longhaul: ");
    mem_free(text);

    assert_int_equal(file_begin(paths[1], O_TRUNC | O_APPEND | O_RDWR, &own), LH_OK);
    log_as_rank(3, own, paths[1]);
    hear_end_of(by_a_thread, said);
    assert_sentence(said, "rank 3: longhaul: ", "\n");
    assert_int_equal(file_read(paths[1], SENTENCE, &text, &length), LH_OK);
    assert_log(text, "rank 3: longhaul: ");
    mem_free(text);
    log_as_rank(0, -1, "");
    log_also(-1, "");
    (void)close(own);
    (void)close(log);
    mem_free(paths[0]);
    mem_free(paths[1]);
}

static lh_status_t fail_confined(void *context, void *result)
{
    (void)context;
    (void)result;
    fail_here();
    return LH_OK;
}

static void who_waits_for_a_confined_process_has_the_sentence(void **state)
{
    static const char *const none[] = {NULL};
    const confine_work_t c = {
        .what = "the import", .may = {.read = none, .write = none}, .work = fail_confined};
    (void)state;
    assert_int_equal(child_run_confined(&c, NULL), STATUS_INTERNAL);
    assert_sentence(fail_reason(), "", "");
}

static lh_status_t fail_as_it_tries(void *context)
{
    (void)context;
    fail_here();
    return LH_OK;
}

static void a_plugin_that_is_tried_is_not_to_blame(void **state)
{
    const prober_t p = {
        .path = "x.so", .sha256 = "none", .limit_ms = 60000, .attempt = fail_as_it_tries};
    (void)state;
    assert_int_equal(probe(&p), STATUS_INTERNAL);
    assert_sentence(fail_reason(), "", "");
}

static void its_status_is_an_internal_error(void **state)
{
    (void)state;
    assert_int_equal(status_exit_code(STATUS_INTERNAL), EXIT_INTERNAL);
    assert_string_equal(status_text(STATUS_INTERNAL), "internal error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_ends_the_process_with_a_sentence_and_nothing_else),
        cmocka_unit_test(the_logs_have_the_sentence),
        cmocka_unit_test(who_waits_for_a_confined_process_has_the_sentence),
        cmocka_unit_test(a_plugin_that_is_tried_is_not_to_blame),
        cmocka_unit_test(its_status_is_an_internal_error),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
