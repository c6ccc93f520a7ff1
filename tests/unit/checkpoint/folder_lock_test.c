/* folder_lock_test.c - a lock whose file may be removed still lets in one process at a time. */
#include <unit/base/scratch_files.h>

#include <sys/wait.h>
#include <unistd.h>

#include <base/file.h>
#include <checkpoint/folder_lock.h>

#define MS ((uint64_t)1000000)

static void what_was_made_for_a_lock_goes_with_it(void **state)
{
    scratch_t *s = *state;
    folder_lock_t lock;
    char folder[160];
    (void)snprintf(folder, sizeof(folder), "%.100s/a/b", s->folder);
    assert_int_equal(folder_lock_take(folder, 0, &lock), LH_OK);
    assert_true(file_exists(scratch_path(s, "a/b/.lock")));
    folder_lock_undo(&lock, folder);
    assert_false(file_exists(scratch_path(s, "a")));
    assert_true(file_exists(s->folder));
}

static void what_was_there_before_stays(void **state)
{
    scratch_t *s = *state;
    folder_lock_t lock;
    assert_int_equal(folder_lock_take(s->folder, 0, &lock), LH_OK);
    folder_lock_give(&lock);
    assert_int_equal(folder_lock_take(s->folder, 0, &lock), LH_OK);
    folder_lock_undo(&lock, s->folder);
    assert_true(file_exists(scratch_path(s, ".lock")));
}

static void a_folder_that_holds_anything_else_stays(void **state)
{
    scratch_t *s = *state;
    folder_lock_t lock;
    char folder[160];
    (void)snprintf(folder, sizeof(folder), "%.100s/a", s->folder);
    assert_int_equal(folder_lock_take(folder, 0, &lock), LH_OK);
    assert_int_equal(file_show(scratch_path(s, "a/b"), "x", 1), LH_OK);
    folder_lock_undo(&lock, folder);
    assert_true(file_exists(scratch_path(s, "a/b")));
    assert_false(file_exists(scratch_path(s, "a/.lock")));
}

static void who_removes_the_file_is_not_let_in(void **state)
{
    scratch_t *s = *state;
    folder_lock_t lock, other;
    assert_int_equal(folder_lock_take(s->folder, 0, &lock), LH_OK);
    assert_int_equal(unlink(scratch_path(s, ".lock")), 0);
    assert_int_equal(folder_lock_take(s->folder, 0, &other), LH_INVALID);
    assert_false(file_exists(scratch_path(s, ".lock"))); /* and leaves nothing */
    folder_lock_give(&lock);
    assert_int_equal(folder_lock_take(s->folder, 0, &other), LH_OK);
    folder_lock_give(&other);
}

static void who_holds_a_folder_is_named(void **state)
{
    scratch_t *s = *state;
    folder_lock_t lock, other;
    assert_int_equal(folder_lock_hold(s->folder, "process 7 on t1", true, &lock), LH_OK);
    assert_int_equal(folder_lock_hold(s->folder, "process 8 on t1", true, &other), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "/.run.lock: another run still writes in this folder: "
                                          "process 7 on t1"));
    folder_lock_undo(&lock, s->folder);
    assert_false(file_exists(scratch_path(s, ".run.lock")));
    /* What a killed one left names nobody any more; checkpoints in the same folder have theirs. */
    scratch_text(s, ".run.lock", "process 7 on t1, and more");
    assert_int_equal(folder_lock_hold(s->folder, "process 9", false, &lock), LH_OK);
    assert_int_equal(folder_lock_take(s->folder, 0, &other), LH_OK);
    folder_lock_give(&other);
    assert_int_equal(folder_lock_hold(s->folder, "process 8", false, &other), LH_INVALID);
    assert_string_equal(strrchr(fail_reason(), ':'), ": process 9");
    folder_lock_undo(&lock, s->folder);
}

static void a_folder_that_was_replaced_is_noticed(void **state)
{
    scratch_t *s = *state;
    folder_lock_t lock;
    char folder[160], away[160];
    (void)snprintf(folder, sizeof(folder), "%.100s/a", s->folder);
    (void)snprintf(away, sizeof(away), "%.100s/b", s->folder);
    assert_int_equal(folder_lock_take(folder, 0, &lock), LH_OK);
    assert_int_equal(folder_lock_check(&lock, folder), LH_OK);
    assert_int_equal(rename(folder, away), 0);
    assert_int_equal(folder_lock_check(&lock, folder), LH_IO);
    assert_int_equal(folder_make(folder), LH_OK);
    assert_int_equal(folder_lock_check(&lock, folder), LH_IO);
    folder_lock_give(&lock);
}

/* The child's lock is on a file that a third process finds. Exit code: which fact is wrong. */
static int waits_and_holds(const char *folder, int ready)
{
    folder_lock_t lock, other;
    (void)!write(ready, "", 1);
    if (folder_lock_take(folder, 10000 * MS, &lock) != LH_OK) return 1;
    if (folder_lock_take(folder, 0, &other) != LH_INVALID) return 2;
    folder_lock_give(&lock);
    return folder_lock_take(folder, 0, &other) == LH_OK ? 0 : 3;
}

static void who_waits_for_a_file_that_goes_excludes_others_still(void **state)
{
    enum { ROUNDS = 20 };
    scratch_t *s = *state;
    char folder[160], byte;
    (void)snprintf(folder, sizeof(folder), "%.100s/a", s->folder);
    for (int i = 0; i < ROUNDS; i++) {
        folder_lock_t lock;
        int ready[2], how = 0;
        assert_int_equal(folder_remove(folder), LH_OK);
        assert_int_equal(folder_lock_take(folder, 0, &lock), LH_OK);
        assert_int_equal(pipe(ready), 0);
        const pid_t child = fork();
        if (child == 0) {
            (void)close(lock.fd); /* the lock is the parent's alone */
            (void)close(lock.folder_fd);
            _exit(waits_and_holds(folder, ready[1]));
        }
        assert_int_equal(read(ready[0], &byte, 1), 1);
        (void)usleep(1000 * (useconds_t)i); /* the child has the file open by then, or not yet */
        folder_lock_undo(&lock, folder);
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFEXITED(how));
        assert_int_equal(WEXITSTATUS(how), 0);
        (void)close(ready[0]);
        (void)close(ready[1]);
    }
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(what_was_made_for_a_lock_goes_with_it),
        FACT(what_was_there_before_stays),
        FACT(a_folder_that_holds_anything_else_stays),
        FACT(who_removes_the_file_is_not_let_in),
        FACT(who_holds_a_folder_is_named),
        FACT(a_folder_that_was_replaced_is_noticed),
        FACT(who_waits_for_a_file_that_goes_excludes_others_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
