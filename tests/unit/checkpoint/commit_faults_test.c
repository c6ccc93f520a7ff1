/* commit_faults_test.c - each call that a save makes to the system fails in turn, or is the last
 * one of the process: the checkpoint before stays loadable, and what is called saved is saved. */
#include <unit/checkpoint/small_state.h>

#include <dirent.h>
#include <errno.h>
#include <sys/wait.h>

#include <base/log.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>
#include <checkpoint/saver_share.h>

/* A table that counts the calls that change something and fails the n-th. */
static struct {
    uint32_t calls, fail_at;
    int error;
    bool kill; /* the process ends instead */
    bool failed;
    bool committed; /* the rename that counts was made */
    bool early;     /* it struck before that            */
} fault;

static bool strikes(void)
{
    if (++fault.calls != fault.fail_at) return false;
    if (fault.kill) _exit(42);
    fault.failed = true;
    fault.early = !fault.committed;
    errno = fault.error;
    return true;
}

static int faulty_open(const char *path, int flags, mode_t mode)
{
    return strikes() ? -1 : sys_real.open(path, flags, mode);
}
static int faulty_close(int fd)
{
    const bool strike = strikes();
    const int result = sys_real.close(fd); /* as on NFS: closed, and what was written is lost */
    return strike ? -1 : result;
}
static ssize_t faulty_write(int fd, const void *from, size_t bytes)
{
    return strikes() ? -1 : sys_real.write(fd, from, bytes);
}
static ssize_t faulty_pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    if (!strikes()) return sys_real.pwrite(fd, from, bytes, offset);
    (void)sys_real.pwrite(fd, from, bytes / 2, offset); /* a part got there */
    return -1;
}
/* Nothing loses power here: a real fsync would only cost time. */
static int no_fsync(int fd)
{
    (void)fd;
    return 0;
}
static int faulty_fsync(int fd)
{
    return strikes() ? -1 : no_fsync(fd);
}
static int faulty_fallocate(int fd, off_t length)
{
    return strikes() ? -1 : sys_real.fallocate(fd, length);
}
static int faulty_mkdir(const char *path, mode_t mode)
{
    return strikes() ? -1 : sys_real.mkdir(path, mode);
}
static int faulty_rename(const char *from, const char *to)
{
    if (strikes()) return -1;
    const int result = sys_real.rename(from, to);
    if (result == 0 && strstr(to, "/step-") != NULL) fault.committed = true;
    return result;
}
static int faulty_unlink(const char *path)
{
    return strikes() ? -1 : sys_real.unlink(path);
}
static int faulty_rmdir(const char *path)
{
    return strikes() ? -1 : sys_real.rmdir(path);
}

static sys_t quick; /* the real one but for fsync */

static sys_t faulty_table(void)
{
    sys_t t = sys_real;
    t.open = faulty_open;
    t.close = faulty_close;
    t.write = faulty_write;
    t.pwrite = faulty_pwrite;
    t.fsync = faulty_fsync;
    t.fallocate = faulty_fallocate;
    t.mkdir = faulty_mkdir;
    t.rename = t.rename_new = faulty_rename;
    t.unlink = faulty_unlink;
    t.rmdir = faulty_rmdir;
    return t;
}

/* Steps 1 and 2 are there, 3 is saved with a keep of 2, so that pruning is in the game as well. */
static void start_folder(scratch_t *s)
{
    assert_int_equal(folder_remove(scratch_path(s, "c")), LH_OK);
    for (uint64_t step = 1; step <= 2; step++)
        assert_int_equal(small_save(scratch_path(s, "c"), step, 2), LH_OK);
}

/* What holds after any save that went wrong somewhere. */
static void check_folder(scratch_t *s, bool said_saved)
{
    char folder[128];
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    const int64_t found = small_latest(folder);
    if (said_saved)
        assert_int_equal(found, 3);
    else
        assert_true(found == 2 || found == 3);

    /* No half of a checkpoint stands under a checkpoint's name. */
    checkpoint_steps_t steps;
    assert_int_equal(checkpoint_steps(folder, &steps), LH_OK);
    for (size_t i = 0; i < steps.count; i++) {
        char name[CHECKPOINT_NAME], path[192];
        checkpoint_name(steps.steps[i], name);
        (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
        assert_int_equal(checkpoint_verify(path), LH_OK);
    }
    mem_free(steps.steps);

    /* The next run sweeps and saves on. */
    assert_int_equal(checkpoint_clean(folder), LH_OK);
    assert_int_equal(small_save(folder, 4, 2), LH_OK);
    assert_int_equal(small_latest(folder), 4);
}

static void every_call_may_fail(scratch_t *s, int error)
{
    char folder[128];
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    const sys_t table = faulty_table();
    uint32_t at = 0;
    for (bool struck = true; struck; at++) {
        start_folder(s);
        memset(&fault, 0, sizeof(fault));
        fault.fail_at = at + 1;
        fault.error = error;
        sys_use(&table);
        const lh_status_t status = small_save(folder, 3, 2);
        sys_use(&quick);
        struck = fault.failed;
        check_folder(s, status == LH_OK);
        if (!struck) assert_int_equal(status, LH_OK);
        if (struck && fault.early) assert_int_not_equal(status, LH_OK);
    }
    assert_true(at > 40); /* the table was really in force */
}

static void every_call_may_fail_with_no_space(void **state)
{
    every_call_may_fail(*state, ENOSPC);
}

static void every_call_may_fail_with_an_io_error(void **state)
{
    every_call_may_fail(*state, EIO);
}

static void the_process_may_end_at_every_call(void **state)
{
    scratch_t *s = *state;
    char folder[128];
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    bool ended = true;
    uint32_t at = 0;
    for (; ended; at++) {
        start_folder(s);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            const sys_t table = faulty_table();
            memset(&fault, 0, sizeof(fault));
            fault.fail_at = at + 1;
            fault.kill = true;
            sys_use(&table);
            _exit(small_save(folder, 3, 2) == LH_OK ? 0 : 1);
        }
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFEXITED(how));
        ended = WEXITSTATUS(how) == 42;
        if (!ended) assert_int_equal(WEXITSTATUS(how), 0);
        check_folder(s, !ended);
    }
    assert_true(at > 40);
}

static void every_allocation_may_fail(void **state)
{
    scratch_t *s = *state;
    char folder[128];
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    lh_status_t status = LH_NO_MEMORY;
    uint64_t at = 1;
    for (; status != LH_OK && at < 500; at++) {
        start_folder(s);
        mem_fail_at(at, false);
        status = small_save(folder, 3, 0);
        mem_fail_at(0, false);
        check_folder(s, status == LH_OK);
    }
    assert_true(at > 20 && at < 500);
}

/* What a power loss could undo, in the order it was made safe: the names of files that are synced
 * and renamed. Opening remembers the path of a descriptor. */
static struct {
    char path[64][160]; /* by descriptor */
    char line[256][200];
    uint32_t count;
} record;

static const char *short_name(const char *path)
{
    const char *name = strstr(path, "/c/");
    if (name != NULL && strncmp(name, "/c/latest.tmp-", 14) == 0) return "latest.tmp";
    return name == NULL                        ? "folder"
           : strncmp(name, "/c/.tmp-", 8) != 0 ? name + 3
           : strchr(name + 3, '/') == NULL     ? "staging"
                                               : path_name(name);
}

static void note(const char *what, const char *a, const char *b)
{
    if (record.count < 256)
        (void)snprintf(record.line[record.count++], sizeof(record.line[0]), "%s %.90s%s%.90s", what,
                       a, *b == '\0' ? "" : " ", b);
}

static int noting_open(const char *path, int flags, mode_t mode)
{
    const int fd = sys_real.open(path, flags, mode);
    if (fd >= 0 && fd < 64) (void)snprintf(record.path[fd], sizeof(record.path[fd]), "%s", path);
    return fd;
}

static int noting_fsync(int fd)
{
    note("sync", short_name(record.path[fd]), "");
    return 0;
}

static int noting_rename(const char *from, const char *to)
{
    note("rename", short_name(from), short_name(to));
    return sys_real.rename(from, to);
}

static void everything_is_synced_before_what_relies_on_it(void **state)
{
    static const char *const wanted[] = {
        "sync shard-00000-00000.safetensors",
        "sync shard-00000-00001.safetensors",
        "sync shard-00000-00002.safetensors",
        "sync shard-00000-00003.safetensors",
        "sync staging",
        "sync manifest.json",
        "sync staging",
        "rename staging step-000000000003",
        "sync folder",
        "sync latest.tmp",
        "rename latest.tmp latest",
        "sync folder",
        "rename step-000000000001 .del-step-000000000001",
        "sync folder",
    };
    scratch_t *s = *state;
    char folder[128];
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    start_folder(s);
    sys_t table = sys_real;
    table.open = noting_open;
    table.fsync = noting_fsync;
    table.rename = table.rename_new = noting_rename;
    memset(&record, 0, sizeof(record));
    sys_use(&table);
    assert_int_equal(small_save(folder, 3, 2), LH_OK);
    sys_use(&quick);
    for (uint32_t i = 0; i < record.count && i < sizeof(wanted) / sizeof(wanted[0]); i++)
        assert_string_equal(record.line[i], wanted[i]);
    assert_int_equal(record.count, sizeof(wanted) / sizeof(wanted[0]));
}

static struct {
    uint32_t reserved, full_at, data_writes;
} space;

static int reserve_until_full(int fd, off_t length)
{
    if (++space.reserved != space.full_at) return sys_real.fallocate(fd, length);
    errno = ENOSPC;
    return -1;
}

static ssize_t counting_pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    if (offset > 0) space.data_writes++; /* a header stands at 0 */
    return sys_real.pwrite(fd, from, bytes, offset);
}

static void a_disk_without_room_for_the_last_file_gets_no_data(void **state)
{
    scratch_t *s = *state;
    char folder[128];
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    start_folder(s);
    sys_t table = quick;
    table.fallocate = reserve_until_full;
    table.pwrite = counting_pwrite;
    memset(&space, 0, sizeof(space));
    space.full_at = 4; /* of four files */
    sys_use(&table);
    const lh_status_t status = small_save(folder, 3, 2);
    sys_use(&quick);
    assert_int_equal(status, LH_IO);
    assert_int_equal(space.reserved, 4);
    assert_int_equal(space.data_writes, 0);

    const char *said = strstr(fail_reason(), "shard-00000-00003.safetensors: cannot reserve ");
    unsigned long long wanted = 0, there = 0;
    assert_non_null(said);
    assert_int_equal(sscanf(strstr(said, "reserve"), "reserve %llu bytes, the disk has %llu free",
                            &wanted, &there),
                     2);
    assert_true(wanted > 64 && there > 0);
    assert_non_null(strstr(said, strerror(ENOSPC)));
    check_folder(s, false);
}

/* rename() would put the folder in the place of one that is empty. */
static void a_step_that_another_commits_meanwhile_is_not_replaced(void **state)
{
    scratch_t *s = *state;
    char folder[128];
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    start_folder(s);
    const checkpoint_meta_t meta = {.run = "test", .step = 3};
    const checkpoint_tensor_t *t = &small_tensors[2];
    const float values[4] = {0};
    const void *data = values;
    commit_t *c;
    assert_int_equal(commit_begin(folder, &meta, "", &c), LH_OK);
    assert_int_equal(commit_write_all(c, 0, t, &data, 1, 0), LH_OK);
    assert_int_equal(mkdir(scratch_path(s, "c/step-000000000003"), 0700), 0);
    assert_int_equal(commit_finish(c, NULL), LH_IO);
    assert_non_null(strstr(fail_reason(), strerror(EEXIST)));
    assert_int_equal(rmdir(scratch_path(s, "c/step-000000000003")), 0);
    check_folder(s, false);
}

/* The save of a leader that another one has followed, on a folder that both see. */
static struct {
    commit_t *commit;
    lh_status_t status;
} late;

static int unlink_as_another_commits(const char *path)
{
    commit_t *c = late.commit;
    late.commit = NULL;
    const int result = quick.unlink(path);
    if (c != NULL) late.status = commit_finish(c, NULL);
    return result;
}

/* Step 3 in a folder that has steps before it, whose name it tells: written, and not committed. */
static commit_t *late_begin(scratch_t *s, char folder[128])
{
    static const float values[SMALL_MOST];
    const void *data[SMALL_TENSORS] = {values, values, values, values};
    const checkpoint_meta_t meta = {.run = "test", .step = 3, .seed = UINT64_MAX};
    commit_t *c;
    (void)snprintf(folder, 128, "%.100s/c", s->folder);
    start_folder(s);
    assert_int_equal(commit_begin(folder, &meta, "", &c), LH_OK);
    assert_int_equal(commit_write_all(c, 0, small_tensors, data, SMALL_TENSORS, 64), LH_OK);
    return c;
}

/* All of it is written when the next leader begins, which may not have heard of the lock: it commits in
 * the midst of the other's sweep, or after that. Nothing comes of it, and no half. */
static void a_late_leader_commits_nothing(void **state)
{
    scratch_t *s = *state;
    char folder[128];
    static sys_t table;
    table = quick;
    table.unlink = unlink_as_another_commits;
    for (uint32_t meanwhile = 0; meanwhile < 2; meanwhile++) {
        commit_t *c = late_begin(s, folder);
        late.commit = meanwhile ? c : NULL;
        late.status = LH_OK;
        sys_use(&table);
        assert_int_equal(checkpoint_clean(folder), LH_OK);
        sys_use(&quick);
        if (!meanwhile) late.status = commit_finish(c, NULL);
        assert_int_not_equal(late.status, LH_OK);
        assert_int_equal(small_latest(folder), 2);
        check_folder(s, false);
    }
}

static const char *taken_over; /* the folder whose step 3 was renamed to its name last */

static int rename_to_step(const char *from, const char *to)
{
    const int result = quick.rename_new(from, to);
    if (strstr(to, "/step-000000000003") != NULL) taken_over = to;
    return result;
}

/* The disk is away for as long as it takes the next leader to put step 3 aside and save its own. */
static int fsync_behind_the_next_leader(int fd)
{
    if (taken_over == NULL) return quick.fsync(fd);
    char aside[160];
    (void)snprintf(aside, sizeof(aside), "%.140s.aside", taken_over);
    assert_int_equal(sys_real.rename(taken_over, aside), 0);
    assert_int_equal(sys_real.mkdir(taken_over, 0700), 0);
    taken_over = NULL;
    errno = ESTALE;
    return -1;
}

static void a_late_leader_takes_no_name_from_the_next(void **state)
{
    scratch_t *s = *state;
    char folder[128];
    static sys_t table;
    table = quick;
    table.rename_new = rename_to_step;
    table.fsync = fsync_behind_the_next_leader;
    commit_t *c = late_begin(s, folder);
    sys_use(&table);
    const lh_status_t status = commit_finish(c, NULL);
    sys_use(&quick);
    assert_int_equal(status, LH_IO);
    assert_true(file_exists(scratch_path(s, "c/step-000000000003")));
    assert_false(file_exists(scratch_path(s, "c/step-000000000003/" MANIFEST_NAME)));
}

/* Folders of saves that are under way, or were given up. */
static uint32_t staging_folders(const char *folder)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    uint32_t found = 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        found += strncmp(e->d_name, ".tmp-", 5) == 0 || strncmp(e->d_name, ".del-", 5) == 0;
    (void)closedir(d);
    return found;
}

/* A leader of two ranks gives up its save late, as the other rank is lost, while the next leader's save is
 * under way in the same folder: that one is committed whole, and nothing is left of the late one. */
static void a_late_saver_removes_its_own_save_alone(void **state)
{
    float values[SMALL_TENSORS][SMALL_MOST];
    const void *data[SMALL_TENSORS];
    const checkpoint_meta_t of_old = {.run = "test", .step = 3, .seed = UINT64_MAX},
                            of_next = {.run = "test", .step = 4, .seed = UINT64_MAX};
    scratch_t *s = *state;
    char folder[128], self[SHA256_TEXT];
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    for (uint32_t t = 0; t < SMALL_TENSORS; t++) {
        for (uint64_t i = 0; i < small_elements(t); i++)
            values[t][i] = small_value(4, t, i);
        data[t] = values[t];
    }
    start_folder(s);
    const saver_share_t old = {.folder = folder,
                               .ranks = 2,
                               .leads = true,
                               .session = 1,
                               .attempt = 1,
                               .shard_bytes = 64,
                               .meta = &of_old,
                               .parent = ""};
    saver_share_t next = old;
    next.ranks = 1;
    next.session = 2;
    next.meta = &of_next;
    assert_int_equal(saver_share_write(&old, small_tensors, data, SMALL_TENSORS), LH_OK);
    assert_int_equal(saver_share_write(&next, small_tensors, data, SMALL_TENSORS), LH_OK);
    assert_int_equal(staging_folders(folder), 2);
    assert_int_not_equal(saver_share_commit(&old, self), LH_OK);
    saver_share_abandon(&old);
    assert_int_equal(staging_folders(folder), 1);
    assert_int_equal(saver_share_commit(&next, self), LH_OK);
    assert_int_equal(staging_folders(folder), 0);
    assert_int_equal(small_latest(folder), 4);
}

static int quiet(void **state)
{
    (void)state;
    log_threshold(LH_LOG_ERROR + 1);
    quick = sys_real;
    quick.fsync = no_fsync;
    sys_use(&quick);
    return 0;
}

/* Thousands of files: in memory where that can be had. */
static int memory_setup(void **state)
{
    scratch_t *s = calloc(1, sizeof(*s));
    if (s == NULL) return -1;
    *state = s;
    (void)snprintf(s->folder, sizeof(s->folder), "/dev/shm/longhaul-test-XXXXXX");
    if (mkdtemp(s->folder) != NULL) return 0;
    (void)snprintf(s->folder, sizeof(s->folder), "/tmp/longhaul-test-XXXXXX");
    return mkdtemp(s->folder) == NULL ? -1 : 0;
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, memory_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(every_call_may_fail_with_no_space),
        FACT(every_call_may_fail_with_an_io_error),
        FACT(the_process_may_end_at_every_call),
        FACT(every_allocation_may_fail),
        FACT(everything_is_synced_before_what_relies_on_it),
        FACT(a_step_that_another_commits_meanwhile_is_not_replaced),
        FACT(a_disk_without_room_for_the_last_file_gets_no_data),
        FACT(a_late_leader_commits_nothing),
        FACT(a_late_leader_takes_no_name_from_the_next),
        FACT(a_late_saver_removes_its_own_save_alone),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
