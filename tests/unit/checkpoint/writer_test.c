/* writer_test.c - saves beside the caller: savers that die, hang, or outlive who asked them. */
#include <unit/checkpoint/small_state.h>

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <base/log.h>
#include <base/sys.h>
#include <checkpoint/saver.h>
#include <checkpoint/writer.h>

#define MS ((uint64_t)1000000)

static writer_t *open_writer(const char *folder, uint64_t deadline_ns)
{
    const writer_how_t how = {.folder = folder,
                              .keep = {.newest = 2},
                              .shard_bytes = 128,
                              .deadline_ns = deadline_ns,
                              .lock_ns = 5000 * MS};
    writer_t *w = NULL;
    assert_int_equal(writer_start(&how, &w), LH_OK);
    assert_int_equal(writer_open(w), LH_OK);
    assert_int_equal(writer_layout(w, small_tensors, SMALL_TENSORS), LH_OK);
    return w;
}

static void fill(writer_t *w, uint64_t step)
{
    for (uint32_t t = 0; t < SMALL_TENSORS; t++) {
        void *place;
        assert_int_equal(writer_place(w, t, &place), LH_OK);
        assert_int_equal(writer_place_bytes(w, t), small_elements(t) * sizeof(float));
        for (uint64_t i = 0; i < small_elements(t); i++)
            ((float *)place)[i] = small_value(step, t, i);
    }
}

static void submit(writer_t *w, uint64_t step)
{
    const checkpoint_meta_t meta = {.run = "test", .step = step};
    assert_int_equal(writer_begin(w), LH_OK);
    fill(w, step);
    assert_int_equal(writer_submit(w, &meta), LH_OK);
}

static void saves_follow_one_another(void **state)
{
    scratch_t *s = *state;
    writer_result_t result;
    struct statvfs room;
    writer_t *w = open_writer(s->folder, 0);
    assert_int_equal(writer_poll(w, &result), LH_INVALID);
    for (uint64_t step = 1; step <= 3; step++) {
        submit(w, step);
        assert_true(writer_busy(w));
        assert_int_equal(writer_begin(w), LH_AGAIN);
        assert_int_equal(writer_wait(w, &result), LH_OK);
        assert_int_equal(result.status, LH_OK);
        assert_int_equal(result.step, step);
        assert_int_equal(small_latest(s->folder), step);
        assert_int_equal(statvfs(s->folder, &room), 0);
        assert_true(result.has_room);
        const uint64_t left = (uint64_t)room.f_bavail * room.f_frsize;
        assert_in_range(result.free_bytes, left - left / 4,
                        left + left / 4); /* others write, too */
    }
    /* Each names the one before. */
    checkpoint_t *old, *new;
    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000002"), &old), LH_OK);
    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000003"), &new), LH_OK);
    assert_string_equal(new->manifest->parent, old->manifest->self);
    checkpoint_close(old);
    checkpoint_close(new);
    writer_close(w);
}

/* Bytes that this process has asked the system for. */
static uint64_t bytes_read(void)
{
    unsigned long long bytes = 0;
    FILE *f = fopen("/proc/self/io", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "rchar: %llu", &bytes), 1);
    assert_int_equal(fclose(f), 0);
    return bytes;
}

enum { LARGE_ROWS = 2048, LARGE_COLUMNS = 1024, MIB = 1 << 20 };

/* 8 MiB in pieces of one, of which another layout reads what it wants and no more. */
static void a_large_part_is_saved_in_pieces(void **state)
{
    scratch_t *s = *state;
    enum { COUNT = LARGE_ROWS * LARGE_COLUMNS };
    const checkpoint_tensor_t tensors[] = {
        {.name = "small", .dtype = LH_DTYPE_F32, .rank = 1, .shape = {7}},
        {.name = "large", .dtype = LH_DTYPE_F32, .rank = 2, .shape = {LARGE_ROWS, LARGE_COLUMNS}}};
    const writer_how_t how = {.folder = s->folder, .lock_ns = 5000 * MS};
    const checkpoint_meta_t meta = {.run = "test", .step = 1};
    writer_t *w = NULL;
    writer_result_t result;
    checkpoint_t *c;
    void *place;
    assert_int_equal(writer_start(&how, &w), LH_OK);
    assert_int_equal(writer_open(w), LH_OK);
    assert_int_equal(writer_layout(w, tensors, 2), LH_OK);
    assert_int_equal(writer_begin(w), LH_OK);
    for (uint32_t t = 0; t < 2; t++) {
        assert_int_equal(writer_place(w, t, &place), LH_OK);
        for (uint32_t i = 0; i < writer_place_bytes(w, t) / sizeof(float); i++)
            ((float *)place)[i] = (float)i;
    }
    assert_int_equal(writer_submit(w, &meta), LH_OK);
    assert_int_equal(writer_wait(w, &result), LH_OK);
    assert_int_equal(result.status, LH_OK);
    writer_close(w);

    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000001"), &c), LH_OK);
    const manifest_tensor_t *t = checkpoint_find(c, "large");
    assert_int_equal(checkpoint_find(c, "small")->part_count, 1);
    assert_int_equal(t->part_count, 8);
    float *values = mem_array(COUNT, sizeof(*values));
    const uint64_t shape[] = {LARGE_ROWS, LARGE_COLUMNS};
    const tensor_part_t slices[] = {
        {.count = 0},
        tensor_part_range(2, shape, COUNT / 4, COUNT / 4),
        tensor_part_range(2, shape, COUNT / 2 + 5, 1000),
        {.at = {100, 3}, .shape = {20, 1000}, .count = 20 * 1000},
    };
    const uint64_t most[] = {8, 2, 1, 1}; /* MiB */
    for (size_t i = 0; i < 4; i++) {
        const uint64_t before = bytes_read();
        assert_int_equal(checkpoint_read(c, t, &slices[i], values), LH_OK);
        assert_true(bytes_read() - before <= most[i] * MIB + 4096);
        const uint64_t first = i == 3 ? 100 * LARGE_COLUMNS + 3 : slices[i].first;
        assert_true(values[0] == (float)first);
        const uint64_t count = i == 0 ? COUNT : slices[i].count;
        const uint64_t last = i == 3 ? 119 * LARGE_COLUMNS + 1002 : first + count - 1;
        assert_true(values[count - 1] == (float)last);
    }
    mem_free(values);
    checkpoint_close(c);
}

static void a_save_that_fails_says_why_and_the_next_one_works(void **state)
{
    scratch_t *s = *state;
    writer_result_t result;
    writer_t *w = open_writer(s->folder, 0);
    submit(w, 1);
    assert_int_equal(writer_wait(w, &result), LH_OK);
    submit(w, 1);
    assert_int_equal(writer_wait(w, &result), LH_OK);
    assert_int_equal(result.status, LH_INVALID);
    assert_string_equal(behind_folder(s, result.reason),
                        "step-000000000001 is there already: a step is saved once");
    submit(w, 2);
    assert_int_equal(writer_wait(w, &result), LH_OK);
    assert_int_equal(result.status, LH_OK);
    writer_close(w);
}

/* In the saver: waits where a disk would, until somebody ends it. */
static int hang_fsync(int fd)
{
    while (fd >= 0)
        (void)pause();
    return -1;
}

static writer_t *open_hanging(const char *folder, uint64_t deadline_ns)
{
    sys_t table = sys_real;
    table.fsync = hang_fsync;
    static sys_t kept;
    kept = table;
    sys_use(&kept);
    writer_t *w = open_writer(folder, deadline_ns);
    sys_use(NULL);
    return w;
}

/* Children of this process, by the kernel's list: who saves, and who is in reserve. */
static void savers_of_test(pid_t pids[2])
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)getpid(), (int)getpid());
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d %d", &pids[0], &pids[1]), 2);
    (void)fclose(f);
}

static void a_saver_that_is_killed_costs_only_its_save(void **state)
{
    scratch_t *s = *state;
    writer_result_t result;
    pid_t pids[2];
    assert_int_equal(small_save(s->folder, 1, 0), LH_OK);
    writer_t *w = open_hanging(s->folder, 0);
    submit(w, 2);
    savers_of_test(pids);
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    assert_int_equal(writer_wait(w, &result), LH_OK);
    assert_int_equal(result.status, LH_IO);
    assert_string_equal(result.reason, "the process that saves was ended by signal 9");
    assert_int_equal(writer_begin(w), LH_OK); /* the reserve is there */
    assert_int_equal(small_latest(s->folder), 1);
    writer_leave(w);
}

/* In the saver: it dies, and a file system keeps it from its end, for some seconds here. Its socket and the folder's
 * lock are closed by then. */
static int die_slowly(int fd)
{
    struct timespec left = {.tv_sec = 4};
    (void)close_range(STDERR_FILENO + 1, ~0u, 0);
    while (fd >= 0 && nanosleep(&left, &left) != 0) {
    }
    _exit(0);
}

static void a_saver_that_does_not_come_to_its_end_is_not_waited_for(void **state)
{
    scratch_t *s = *state;
    writer_result_t result;
    pid_t pids[2];
    static sys_t dying;
    dying = sys_real;
    dying.fsync = die_slowly;
    sys_use(&dying);
    writer_t *w = open_writer(s->folder, 0);
    sys_use(NULL);
    submit(w, 1);
    savers_of_test(pids);
    assert_int_equal(writer_wait(w, &result), LH_OK);
    assert_int_equal(result.status, LH_IO);
    assert_string_equal(result.reason, "the process that saves has died");
    assert_int_equal(writer_begin(w), LH_OK); /* the reserve is there */
    writer_close(w);
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    assert_int_equal(waitpid(pids[0], NULL, 0), pids[0]);
}

static void wait_until_gone(pid_t pid)
{
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
}

/* Whichever of the two dies between saves, and however often: no save is lost. */
static void the_reserve_takes_over(void **state)
{
    scratch_t *s = *state;
    writer_result_t result;
    pid_t pids[2];
    writer_t *w = open_writer(s->folder, 0);
    savers_of_test(pids);
    for (uint64_t step = 1; step <= 3; step++) {
        if (step > 1) {
            assert_int_equal(kill(pids[step == 2 ? 1 : 0], SIGKILL), 0);
            wait_until_gone(pids[step == 2 ? 1 : 0]);
        }
        submit(w, step);
        assert_int_equal(writer_wait(w, &result), LH_OK);
        assert_string_equal(result.reason, "");
        assert_int_equal(result.status, LH_OK);
        assert_int_equal(small_latest(s->folder), step);
    }
    writer_close(w);
}

static void without_savers_no_save_begins(void **state)
{
    scratch_t *s = *state;
    pid_t pids[2];
    writer_t *w = open_writer(s->folder, 0);
    savers_of_test(pids);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kill(pids[i], SIGKILL), 0);
        wait_until_gone(pids[i]);
    }
    assert_false(writer_lost(w));
    assert_int_equal(writer_begin(w), LH_IO);
    assert_string_equal(fail_reason(), "the process that saves and the one in reserve were killed: "
                                       "checkpoints can't be saved any more");
    assert_true(writer_lost(w));
    writer_close(w);
}

static void a_saver_that_hangs_is_given_up_at_the_deadline(void **state)
{
    scratch_t *s = *state;
    writer_result_t result;
    assert_int_equal(small_save(s->folder, 1, 0), LH_OK);
    writer_t *w = open_hanging(s->folder, 200 * MS);
    submit(w, 2);
    assert_int_equal(writer_poll(w, &result), LH_AGAIN);
    const uint64_t before = sys()->now_ns();
    assert_int_equal(writer_wait(w, &result), LH_OK);
    assert_true(sys()->now_ns() - before < 5000 * MS);
    assert_int_equal(result.status, LH_IO);
    assert_string_equal(result.reason, "step 2 was not written within 0.2 s and is given up");
    assert_int_equal(writer_begin(w), LH_OK);
    assert_int_equal(small_latest(s->folder), 1);
    writer_close(w);
}

/* What it has to do besides saves, as where one is given up, may never come to its end either. */
static void a_saver_that_hangs_at_the_end_has_the_deadline(void **state)
{
    scratch_t *s = *state;
    pid_t pids[2];
    writer_t *w = open_writer(s->folder, 200 * MS);
    savers_of_test(pids);
    assert_int_equal(kill(pids[0], SIGSTOP), 0);
    const uint64_t before = sys()->now_ns();
    writer_close(w);
    assert_true(sys()->now_ns() - before < 5000 * MS);
}

/* The saver was given up, and its file system does not let it go: the reserve that has taken its place does not
 * wait for it once more when the trainer ends. */
static void the_reserve_does_not_wait_for_a_saver_that_was_given_up(void **state)
{
    scratch_t *s = *state;
    const saver_how_t how = {.folder = s->folder, .deadline_ns = 3000 * MS, .arena_fd = -1};
    saver_t stuck = {.socket = -1}, reserve, next;
    stuck.pid = fork();
    if (stuck.pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    assert_true(stuck.pid > 0);
    assert_int_equal(saver_start(&how, &stuck, &reserve), LH_OK);
    saver_fork(&reserve, &next);
    assert_true(next.socket >= 0);
    const uint64_t before = sys()->now_ns();
    saver_end(&reserve, 3000 * MS);
    saver_end(&next, 3000 * MS);
    assert_true(sys()->now_ns() - before < 2000 * MS);
    assert_int_equal(kill(stuck.pid, SIGKILL), 0);
    assert_int_equal(waitpid(stuck.pid, NULL, 0), stuck.pid);
}

/* In the saver: a file system that hangs once this is there. */
static char hangs_behind[512];

static int hang_statvfs(int fd, struct statvfs *out)
{
    while (access(hangs_behind, F_OK) == 0)
        (void)pause();
    return sys_real.fstatvfs(fd, out);
}

static void a_commit_is_told_where_the_file_system_hangs_behind_it(void **state)
{
    scratch_t *s = *state;
    writer_result_t result;
    static sys_t hanging;
    hanging = sys_real;
    hanging.fstatvfs = hang_statvfs;
    (void)snprintf(hangs_behind, sizeof(hangs_behind), "%s", scratch_path(s, "step-000000000001"));
    sys_use(&hanging);
    writer_t *w = open_writer(s->folder, 8000 * MS);
    sys_use(NULL);
    submit(w, 1);
    assert_int_equal(writer_wait(w, &result), LH_OK);
    assert_string_equal(result.reason, "");
    assert_int_equal(result.status, LH_OK);
    assert_true(result.has_room);
    assert_int_equal(small_latest(s->folder), 1);
    writer_close(w);
}

/* In the saver: a file system that does not come to the end of what is removed. */
static int hang_rmdir(const char *path)
{
    while (strstr(path, "/.del-step-") != NULL)
        (void)pause();
    return sys_real.rmdir(path);
}

static void a_commit_stands_where_older_ones_can_not_be_removed(void **state)
{
    scratch_t *s = *state;
    writer_result_t result;
    static sys_t hanging;
    hanging = sys_real;
    hanging.rmdir = hang_rmdir;
    sys_use(&hanging);
    writer_t *w = open_writer(s->folder, 6000 * MS);
    sys_use(NULL);
    for (uint64_t step = 1; step <= 3; step++) { /* two are kept */
        submit(w, step);
        assert_int_equal(writer_wait(w, &result), LH_OK);
        assert_string_equal(result.reason, "");
        assert_int_equal(result.status, LH_OK);
        assert_int_equal(result.step, step);
        assert_true(result.has_room);
        assert_true(result.ns < 6000 * MS || step == 3);
        assert_int_equal(small_latest(s->folder), step);
    }
    assert_true(result.ns >= 6000 * MS); /* it was waited for, and given up */
    writer_close(w);
}

static int slow_fsync(int fd)
{
    const struct timespec pause_50ms = {.tv_nsec = 50000000};
    (void)nanosleep(&pause_50ms, NULL);
    return sys_real.fsync(fd);
}

/* kill -9 right after submit: the next run waits for the helper and finds its checkpoint. */
static void a_save_outlives_the_trainer(void **state)
{
    scratch_t *s = *state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t trainer = fork();
    if (trainer == 0) {
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1); /* it runs no other tests */
        sys_t table = sys_real;
        table.fsync = slow_fsync;
        sys_use(&table);
        writer_t *w = open_writer(s->folder, 0);
        submit(w, 7);
        (void)!write(ready[1], "x", 1);
        for (;;)
            (void)pause();
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(kill(trainer, SIGKILL), 0);
    assert_int_equal(waitpid(trainer, NULL, 0), trainer);
    (void)close(ready[0]);
    (void)close(ready[1]);

    writer_t *w = open_writer(s->folder, 0);
    assert_int_equal(small_latest(s->folder), 7);
    writer_close(w);
}

static void two_runs_do_not_write_in_one_folder(void **state)
{
    scratch_t *s = *state;
    writer_t *w = open_writer(s->folder, 0), *other;
    const writer_how_t how = {.folder = s->folder, .lock_ns = 50 * MS};
    assert_int_equal(writer_start(&how, &other), LH_OK);
    assert_int_equal(writer_open(other), LH_INVALID);
    assert_int_equal(status_exit_code(LH_INVALID), EXIT_REFUSED);
    assert_string_equal(behind_folder(s, fail_reason()),
                        ".lock: another run still writes in this folder");
    writer_close(other);
    writer_close(w);
    assert_int_equal(writer_start(&how, &other), LH_OK);
    assert_int_equal(writer_open(other), LH_OK);
    writer_close(other);
}

static int quiet(void **state)
{
    (void)state;
    log_threshold(LH_LOG_ERROR + 1);
    return 0;
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(saves_follow_one_another),
        FACT(a_large_part_is_saved_in_pieces),
        FACT(a_save_that_fails_says_why_and_the_next_one_works),
        FACT(a_saver_that_is_killed_costs_only_its_save),
        FACT(a_saver_that_does_not_come_to_its_end_is_not_waited_for),
        FACT(the_reserve_takes_over),
        FACT(without_savers_no_save_begins),
        FACT(a_saver_that_hangs_is_given_up_at_the_deadline),
        FACT(a_saver_that_hangs_at_the_end_has_the_deadline),
        FACT(the_reserve_does_not_wait_for_a_saver_that_was_given_up),
        FACT(a_commit_is_told_where_the_file_system_hangs_behind_it),
        FACT(a_commit_stands_where_older_ones_can_not_be_removed),
        FACT(a_save_outlives_the_trainer),
        FACT(two_runs_do_not_write_in_one_folder),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
