/* weak_writers_test.c - the checker must see what it is there for: the same save through a system
 * that leaves out or reorders calls, one weakness at a time, loses a checkpoint in some crash
 * state. */
#include <crash/call_faults.h>
#include <crash/four_ranks.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include <unit/base/scratch_files.h>

#include <base/log.h>
#include <checkpoint/checkpoint_folder.h>
#include <torture.h>

enum { WHOLE_BITS = 9, SAMPLES = 64, DEFERRED = 16, PATH = 128 };

static uint64_t seeds = 3;
static four_ranks_t four;

static sys_t weak;              /* mem_table but for what a weakness changes */
static uint32_t syncs, dropped; /* fsyncs so far, which one is left out */
static struct {
    char path[DEFERRED][PATH];
    uint32_t count;
} deferred;
static char opened[MEM_FILES][PATH];

static crash_count_t walked(const mem_fs_t *fs, uint64_t seed)
{
    const crash_walk_how_t how = {.whole_bits = WHOLE_BITS,
                                  .samples = SAMPLES,
                                  .seed = seed,
                                  .expect = {2, 2, 0},
                                  .look = four_look,
                                  .context = &four};
    crash_count_t count = {0};
    crash_walk(fs, &how, &count);
    return count;
}

/* Two steps on the disk; then a journal of what `weak` makes of saving the third. */
static crash_count_t save_weakly(uint64_t keep, uint64_t seed, lh_status_t *status)
{
    mem_fs_t *fs = four_disk(2, 3);
    fs->random = (uint32_t)seed;
    syncs = 0;
    deferred.count = 0;
    sys_use(&weak);
    *status = four_run(3, keep);
    sys_use(&mem_table);
    const crash_count_t count = walked(fs, seed);
    mem_fs_free(fs);
    return count;
}

static void is_caught(const char *what, uint64_t keep)
{
    uint64_t states = 0, faults = 0;
    char first[160] = "";
    four.losses = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        lh_status_t status;
        const crash_count_t count = save_weakly(keep, seed, &status);
        assert_int_equal(status, LH_OK); /* such a writer notices nothing */
        if (count.faults == 0) FAIL_TEST("%s: not caught with seed %d\n", what, (int)seed);
        states += count.states;
        faults += count.faults;
        (void)snprintf(first, sizeof(first), "%.159s", count.first);
    }
    print_message(
        "%s: caught %llu times of %llu, %llu states of %llu built look wrong, %llu of them "
        "lose a checkpoint; %s\n",
        what, (unsigned long long)seeds, (unsigned long long)seeds, (unsigned long long)faults,
        (unsigned long long)states, (unsigned long long)four.losses, first);
}

static void a_strong_writer_is_not_blamed(void **state)
{
    (void)state;
    weak = mem_table;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        lh_status_t status;
        const crash_count_t count = save_weakly(1, seed, &status);
        assert_int_equal(status, LH_OK);
        if (count.faults > 0) FAIL_TEST("%s\n", count.first);
    }
}

static int sync_files_only(int fd)
{
    return mem_fs_is_folder(mem_fs_used(), fd) ? 0 : mem_table.fsync(fd);
}

static void no_sync_of_folders(void **state)
{
    (void)state;
    weak = mem_table;
    weak.fsync = sync_files_only;
    is_caught("no fsync of folders", 2);
}

static int sync_folders_only(int fd)
{
    return mem_fs_is_folder(mem_fs_used(), fd) ? mem_table.fsync(fd) : 0;
}

static void no_sync_of_files(void **state)
{
    (void)state;
    weak = mem_table;
    weak.fsync = sync_folders_only;
    is_caught("no fsync of files", 2);
}

static int remembering_open(const char *path, int flags, mode_t mode)
{
    const int fd = mem_table.open(path, flags, mode);
    if (fd >= 0) (void)snprintf(opened[fd - MEM_FIRST_FD], PATH, "%s", path);
    return fd;
}

static int defer_sync(int fd)
{
    if (mem_fs_is_folder(mem_fs_used(), fd)) return mem_table.fsync(fd);
    assert_true(deferred.count < DEFERRED);
    (void)snprintf(deferred.path[deferred.count++], PATH, "%s", opened[fd - MEM_FIRST_FD]);
    return 0;
}

static int rename_then_sync(const char *from, const char *to)
{
    if (mem_table.rename(from, to) != 0) return -1;
    for (uint32_t i = 0; i < deferred.count; i++) {
        char path[2 * PATH];
        (void)snprintf(path, sizeof(path), "%s", deferred.path[i]);
        if (strncmp(path, from, strlen(from)) == 0)
            (void)snprintf(path, sizeof(path), "%s%s", to, deferred.path[i] + strlen(from));
        const int fd = mem_table.open(path, O_RDONLY, 0);
        assert_true(fd >= 0);
        assert_int_equal(mem_table.fsync(fd), 0);
        assert_int_equal(mem_table.close(fd), 0);
    }
    deferred.count = 0;
    return 0;
}

static void the_rename_before_the_sync(void **state)
{
    (void)state;
    weak = mem_table;
    weak.open = remembering_open;
    weak.fsync = defer_sync;
    weak.rename = weak.rename_new = rename_then_sync;
    is_caught("rename before fsync", 2);
}

static bool is_new_pointer(const char *path)
{
    static const char head[] = FOUR_FOLDER "/latest.tmp-";
    return strncmp(path, head, sizeof(head) - 1) == 0;
}

static int open_pointer_itself(const char *path, int flags, mode_t mode)
{
    if (is_new_pointer(path))
        return mem_table.open(FOUR_FOLDER "/latest", (flags & ~O_EXCL) | O_TRUNC, mode);
    return mem_table.open(path, flags, mode);
}

static int rename_no_pointer(const char *from, const char *to)
{
    return is_new_pointer(from) ? 0 : mem_table.rename(from, to);
}

static void the_pointer_overwritten_in_place(void **state)
{
    (void)state;
    weak = mem_table;
    weak.open = open_pointer_itself;
    weak.rename = weak.rename_new = rename_no_pointer;
    is_caught("pointer overwritten in place", 2);
}

static int mkdir_after_pruning(const char *path, mode_t mode)
{
    if (strstr(path, "/.tmp-") != NULL)
        assert_int_equal(checkpoint_prune(FOUR_FOLDER, UINT64_MAX, &(checkpoint_keep_t){0}), LH_OK);
    return mem_table.mkdir(path, mode);
}

static void the_old_ones_pruned_before_the_commit(void **state)
{
    (void)state;
    weak = mem_table;
    weak.mkdir = mkdir_after_pruning;
    is_caught("prune before commit", 1);
}

/* The staging folder's name replaced by the final one. */
static const char *without_staging(const char *path)
{
    static char changed[2 * PATH];
    const char *at = strstr(path, "/.tmp-");
    if (at == NULL) return path;
    const size_t before = (size_t)(at - path) + 1, name = strlen("step-000000000003");
    const char *after = at + strlen("/.tmp-") + name + strlen("-xxxxxxxx");
    (void)snprintf(changed, sizeof(changed), "%.*s%.*s%s", (int)before, path, (int)name,
                   at + strlen("/.tmp-"), after);
    return changed;
}

static int open_unstaged(const char *path, int flags, mode_t mode)
{
    return mem_table.open(without_staging(path), flags, mode);
}

static int mkdir_unstaged(const char *path, mode_t mode)
{
    return mem_table.mkdir(without_staging(path), mode);
}

static int rename_unstaged(const char *from, const char *to)
{
    return strstr(from, "/.tmp-") != NULL ? 0 : mem_table.rename(from, to);
}

static void no_staging_folder(void **state)
{
    (void)state;
    weak = mem_table;
    weak.open = open_unstaged;
    weak.mkdir = mkdir_unstaged;
    weak.rename = weak.rename_new = rename_unstaged;
    is_caught("no staging folder", 2);
}

static int forgetful_fsync(int fd)
{
    return ++syncs == dropped ? 0 : mem_table.fsync(fd);
}

/* Each fsync by itself. Only the first one of the staging folder is there for nothing but to have
 * its names on the disk sooner: the one after the manifest covers them. */
static void every_single_sync_left_out(void **state)
{
    (void)state;
    lh_status_t status;
    weak = mem_table;
    weak.fsync = forgetful_fsync;
    dropped = 0;
    (void)save_weakly(1, 1, &status);
    const uint32_t all = syncs;
    uint32_t caught = 0, missed = 0, which = 0;
    for (dropped = 1; dropped <= all; dropped++) {
        const crash_count_t count = save_weakly(1, dropped, &status);
        assert_int_equal(status, LH_OK);
        if (count.faults > 0) {
            caught++;
        } else {
            missed++;
            which = dropped;
            print_message("fsync %u left out: not caught\n", dropped);
        }
    }
    print_message("one fsync left out: %u of %u caught\n", caught, all);
    assert_int_equal(missed, 1);
    assert_int_equal(which, 5); /* four shards before it */
}

/* The errors of one kind of call are not heard. */
static int (*failing_fsync)(int fd);
static int (*failing_close)(int fd);

static int fsync_unheard(int fd)
{
    (void)failing_fsync(fd);
    return 0;
}

static int close_unheard(int fd)
{
    (void)failing_close(fd);
    return 0;
}

/* Lets each call of one name fail in turn; a writer that does not hear it is caught whenever it was
 * a file's bytes that were lost, one that does loses nothing. */
static void errors_of(const char *name, bool heard)
{
    uint32_t injected = 0, caught = 0, said_saved = 0;
    four.pointer_may_lag = true; /* once it is committed, a pointer that fails is a warning */
    for (uint32_t at = 1;; at++) {
        mem_fs_t *fs = four_disk(2, 3);
        call_faults_use(&mem_table, CALL_FAILS, at, EIO);
        if (!heard) {
            weak = *sys();
            failing_fsync = weak.fsync;
            failing_close = weak.close;
            if (strcmp(name, "fsync") == 0)
                weak.fsync = fsync_unheard;
            else
                weak.close = close_unheard;
            sys_use(&weak);
        }
        const lh_status_t status = four_run(3, 1);
        const char *struck = call_faults.struck;
        memset(&call_faults, 0, sizeof(call_faults));
        sys_use(&mem_table);
        bool lost = false;
        for (uint32_t i = 0; i < fs->count; i++)
            lost = lost || fs->changes[i].kind == CHANGE_LOST;
        if (struck != NULL && strcmp(struck, name) == 0 && lost) {
            injected++;
            const crash_count_t count = walked(fs, at);
            if (status == LH_OK) said_saved++;
            if (count.faults > 0) caught++;
            if (heard && count.faults > 0) FAIL_TEST("%s %u: %s\n", name, at, count.first);
        }
        mem_fs_free(fs);
        if (struck == NULL) break;
    }
    four.pointer_may_lag = false;
    print_message("%s fails, %s: %u times, %u saves were said to be good, %u caught\n", name,
                  heard ? "heard" : "not heard", injected, said_saved, caught);
    assert_true(injected > 4);
    if (!heard) assert_true(caught >= (strcmp(name, "fsync") == 0 ? 5u : 1u));
}

static void errors_of_fsync_that_nobody_hears(void **state)
{
    (void)state;
    errors_of("fsync", true);
    errors_of("fsync", false);
}

static void errors_of_close_that_nobody_hears(void **state)
{
    (void)state;
    errors_of("close", true);
    errors_of("close", false);
}

static int quiet(void **state)
{
    (void)state;
    if (torture_wanted()) seeds = 50;
    log_threshold(LH_LOG_ERROR + 1);
    return 0;
}

static int restore(void **state)
{
    (void)state;
    sys_use(NULL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_strong_writer_is_not_blamed),
        cmocka_unit_test(no_sync_of_folders),
        cmocka_unit_test(no_sync_of_files),
        cmocka_unit_test(the_rename_before_the_sync),
        cmocka_unit_test(the_pointer_overwritten_in_place),
        cmocka_unit_test(the_old_ones_pruned_before_the_commit),
        cmocka_unit_test(no_staging_folder),
        cmocka_unit_test(every_single_sync_left_out),
        cmocka_unit_test(errors_of_fsync_that_nobody_hears),
        cmocka_unit_test(errors_of_close_that_nobody_hears),
    };
    return cmocka_run_group_tests(tests, quiet, restore);
}
