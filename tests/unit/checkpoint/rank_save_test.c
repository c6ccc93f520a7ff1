/* rank_save_test.c - checkpoints that several ranks write together: any number of ranks loads them,
 * and whatever happens to one of them, the save is whole or nothing is left of it. */
#include <unit/checkpoint/rank_world.h>

#include <dirent.h>
#include <errno.h>

#include <checkpoint/folder_lock.h>

static const uint32_t counts[] = {1, 2, 3, 4, 8};
enum { COUNTS = sizeof(counts) / sizeof(counts[0]) };

static void save_steps_1_to_4(world_place_t *p)
{
    writer_t *w;
    if (world_open(p, &w) != LH_OK) _exit(1);
    for (uint64_t step = 1; step <= 4; step++)
        if (world_save(p, w, step) != LH_OK) break;
    writer_close(w);
}

/* Entries of a folder whose names begin so. */
static uint32_t entries(const char *folder, const char *head)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    uint32_t found = 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        found += strncmp(e->d_name, head, strlen(head)) == 0;
    (void)closedir(d);
    return found;
}

static void any_number_of_ranks_loads_what_any_number_saved(void **state)
{
    scratch_t *s = *state;
    for (uint32_t i = 0; i < COUNTS; i++) {
        char folder[96];
        (void)snprintf(folder, sizeof(folder), "%s/of-%u", s->folder, counts[i]);
        world_run_t run = {.folder = folder, .ranks = counts[i], .keep = 2};
        world_start(&run, save_steps_1_to_4);
        world_end(&run);
        for (uint32_t r = 0; r < counts[i]; r++) {
            assert_string_equal(run.outcomes[r].reason, "");
            assert_int_equal(run.outcomes[r].status, LH_OK);
            assert_int_equal(run.outcomes[r].saves, 4);
        }
        world_forget(&run);
        for (uint32_t k = 0; k < COUNTS; k++)
            world_check(folder, 4, counts[k]);
        assert_int_equal(entries(folder, "step-"), 2); /* keep */
        assert_int_equal(entries(folder, ".tmp-"), 0);
        (void)strcat(folder, "/step-000000000004");
        assert_int_equal(checkpoint_verify(folder), LH_OK);
        assert_int_equal(entries(folder, "rank-"), 0);
    }
}

static void each_checkpoint_names_the_one_before(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 3};
    world_start(&run, save_steps_1_to_4);
    world_end(&run);
    world_forget(&run);
    checkpoint_t *old, *new;
    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000002"), &old), LH_OK);
    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000003"), &new), LH_OK);
    assert_string_equal(new->manifest->parent, old->manifest->self);
    checkpoint_close(old);
    checkpoint_close(new);
}

static void every_element_is_written_by_one_rank(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 4, .keep = 1};
    world_start(&run, save_steps_1_to_4);
    world_end(&run);
    world_forget(&run);
    checkpoint_t *c;
    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000004"), &c), LH_OK);
    for (uint32_t t = 0; t < WORLD_TENSORS; t++) {
        const manifest_tensor_t *m = checkpoint_find(c, world_tensors[t].name);
        const uint64_t n = world_elements(t);
        assert_int_equal(m->part_count, world_tensors[t].whole ? 1 : n < 4 ? n : 4);
    }
    checkpoint_close(c);
}

/* ---- failures ------------------------------------------------------------------------------- */

static void all_but_rank_2_save_step_2(world_place_t *p)
{
    writer_t *w;
    writer_result_t result;
    if (world_open(p, &w) != LH_OK || world_save(p, w, 1) != LH_OK) _exit(1);
    if (p->rank == 2) (void)raise(SIGKILL);
    if (world_submit(p, w, 2) != LH_OK || writer_wait(w, &result) != LH_OK) _exit(1);
    p->outcome->saves += result.status == LH_OK;
    writer_leave(w); /* as a run ends that has lost a rank */
}

/* The lock is free once rank 0's savers are gone. */
static uint64_t ns_until_unlocked(const char *folder)
{
    folder_lock_t lock;
    const uint64_t since = sys()->now_ns();
    assert_int_equal(folder_lock_take(folder, 30000 * MS, &lock), LH_OK);
    folder_lock_give(&lock);
    return sys()->now_ns() - since;
}

static void a_rank_that_dies_before_a_save_costs_it(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 4};
    world_start(&run, all_but_rank_2_save_step_2);
    world_end(&run);
    for (uint32_t r = 0; r < 4; r++)
        if (r != 2) assert_int_equal(run.outcomes[r].saves, 2);
    world_forget(&run);
    assert_true(ns_until_unlocked(s->folder) < 8000 * MS);
    world_check(s->folder, 1, 4);
    assert_int_equal(entries(s->folder, ".tmp-step-"), 0);
}

static int no_space(int fd, off_t length)
{
    (void)fd;
    (void)length;
    errno = ENOSPC;
    return -1;
}

static void rank_1_has_no_space_for_step_2(world_place_t *p)
{
    writer_t *w;
    if (p->rank == 1) {
        static sys_t full;
        full = sys_real;
        full.fallocate = no_space;
        sys_use(&full);
    }
    if (world_open(p, &w) != LH_OK) _exit(1);
    (void)world_save(p, w, 2);
    writer_close(w);
}

static void a_rank_without_space_costs_the_save(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 3};
    world_start(&run, rank_1_has_no_space_for_step_2);
    world_end(&run);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(run.outcomes[r].status, LH_IO);
    assert_non_null(strstr(run.outcomes[1].reason, "No space left on device"));
    world_forget(&run);
    assert_int_equal(entries(s->folder, "step-"), 0);
    assert_int_equal(entries(s->folder, ".tmp-step-"), 0);
}

static void a_step_that_failed_can_be_saved_again(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 3};
    world_start(&run, rank_1_has_no_space_for_step_2);
    world_end(&run);
    world_forget(&run);
    world_start(&run, save_steps_1_to_4);
    world_end(&run);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(run.outcomes[r].saves, 4);
    world_forget(&run);
    world_check(s->folder, 4, 2);
    assert_int_equal(entries(s->folder, ".tmp-"), 0);
}

static int hang_fsync(int fd)
{
    while (fd >= 0)
        (void)pause();
    return -1;
}

/* The first child of a process, by the kernel's list. */
static pid_t child_of(pid_t parent)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    for (int i = 0; i < 5000; i++) {
        char path[64], line[64] = "";
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)parent, (int)parent);
        FILE *f = fopen(path, "r");
        if (f == NULL) return 0;
        if (fgets(line, sizeof(line), f) == NULL) line[0] = '\0';
        (void)fclose(f);
        if (atoi(line) > 0) return (pid_t)atoi(line);
        (void)nanosleep(&nap, NULL);
    }
    return 0;
}

static _Atomic bool *hung; /* of all processes of the test */

/* Whoever tells them writes through a file system that works. */
static int fsync_of_small_files_only(int fd)
{
    struct stat st;
    if (sys_real.fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 256) {
        *hung = true;
        return hang_fsync(fd);
    }
    return sys_real.fsync(fd);
}

static void shards_of_rank_0_hang(world_place_t *p)
{
    writer_t *w;
    if (p->rank == 0) {
        static sys_t hanging;
        hanging = sys_real;
        hanging.fsync = fsync_of_small_files_only;
        sys_use(&hanging);
    }
    if (world_open(p, &w) != LH_OK) _exit(1);
    if (p->rank == 0 && fork() == 0) {
        const struct timespec nap = {.tv_nsec = 1 * MS};
        const pid_t saver = child_of(getppid());
        for (int ms = 0; ms < 60000 && !*hung; ms++) /* until it is in the middle of a save */
            (void)nanosleep(&nap, NULL);
        (void)kill(saver, SIGKILL);
        _exit(0);
    }
    (void)world_save(p, w, 2);
    writer_close(w);
}

static void a_killed_saver_of_rank_0_costs_the_save(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 3};
    hung = mmap(NULL, sizeof(*hung), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(hung, MAP_FAILED);
    world_start(&run, shards_of_rank_0_hang);
    world_end(&run);
    assert_int_equal(munmap(hung, sizeof(*hung)), 0);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(run.outcomes[r].status, LH_IO);
    assert_string_equal(run.outcomes[0].reason, "the process that saves was ended by signal 9");
    world_forget(&run);
    assert_int_equal(entries(s->folder, "step-"), 0);
    assert_int_equal(entries(s->folder, ".tmp-step-"), 0);
}

static int no_space_at_first(int fd, off_t length)
{
    static bool met;
    if (met) return sys_real.fallocate(fd, length);
    met = true;
    return no_space(fd, length);
}

/* Rank 0's saver hears that step 1 is given up once rank 1 has written its share of step 2. */
static void step_1_is_given_up_late(world_place_t *p)
{
    writer_t *w;
    writer_result_t result;
    const struct timespec nap = {.tv_nsec = MS};
    static sys_t full;
    full = sys_real;
    full.fallocate = no_space_at_first;
    if (p->rank == 1) sys_use(&full);
    if (world_open(p, &w) != LH_OK || world_submit(p, w, 1) != LH_OK) _exit(1);
    if (writer_wait(w, &result) != LH_OK) _exit(1);
    world_tell(result.status == LH_OK ? &p->outcome->wrote : &p->outcome->failed, 1);
    if (world_all_wrote(p, 1)) _exit(1);
    const pid_t saver = child_of(getpid());
    if (p->rank == 0) (void)kill(saver, SIGSTOP);
    writer_settle(w, false);
    if (world_submit(p, w, 2) != LH_OK) _exit(1);
    while (p->rank == 0 && world_heard(&p->all[1].wrote) < 2 && world_heard(&p->all[1].failed) < 2)
        (void)nanosleep(&nap, NULL);
    if (p->rank == 0) (void)kill(saver, SIGCONT);
    if (writer_wait(w, &result) != LH_OK) _exit(1);
    world_tell(result.status == LH_OK ? &p->outcome->wrote : &p->outcome->failed, 2);
    if (world_agree(p, w, 2, &result) != LH_OK) _exit(1);
    p->outcome->status = result.status;
    writer_close(w);
}

static void a_save_that_is_given_up_late_takes_none_with_it(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 2};
    world_start(&run, step_1_is_given_up_late);
    world_end(&run);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(run.outcomes[r].status, LH_OK);
    world_forget(&run);
    world_check(s->folder, 2, 2);
    assert_int_equal(entries(s->folder, ".tmp-step-"), 0);
}

static void rank_2_owns_what_rank_1_owns(world_place_t *p)
{
    writer_t *w;
    if (p->rank == 2) p->count = world_share(1, p->ranks, p->tensors, p->which);
    if (world_open(p, &w) != LH_OK) _exit(1);
    (void)world_save(p, w, 1);
    writer_close(w);
}

static void shares_that_do_not_cover_a_tensor_once_are_refused(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 3};
    world_start(&run, rank_2_owns_what_rank_1_owns);
    world_end(&run);
    assert_non_null(strstr(run.outcomes[0].reason, "overlap"));
    for (uint32_t r = 0; r < 3; r++)
        assert_int_not_equal(run.outcomes[r].status, LH_OK);
    world_forget(&run);
    assert_int_equal(entries(s->folder, "step-"), 0);
}

/* What a run left that was killed while it saved, and a share with a rank's name in it. */
static void leftovers_of_another_run_are_not_taken(void **state)
{
    scratch_t *s = *state;
    assert_int_equal(folder_make(scratch_path(s, ".tmp-step-000000000001-00000000000003e9-1")),
                     LH_OK);
    (void)scratch_text(s, ".tmp-step-000000000001-00000000000003e9-1/rank-00001.json", "{}");
    world_run_t run = {.folder = s->folder, .ranks = 3};
    world_start(&run, save_steps_1_to_4);
    world_end(&run);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(run.outcomes[r].saves, 4);
    world_forget(&run);
    world_check(s->folder, 4, 3);
}

static int slow_fsync(int fd)
{
    const struct timespec pause_20ms = {.tv_nsec = 20000000};
    (void)nanosleep(&pause_20ms, NULL);
    return sys_real.fsync(fd);
}

static void submit_and_stay(world_place_t *p)
{
    writer_t *w;
    static sys_t slow;
    slow = sys_real;
    slow.fsync = slow_fsync;
    sys_use(&slow);
    if (world_open(p, &w) != LH_OK || world_submit(p, w, 7) != LH_OK) _exit(1);
    p->outcome->status = LH_OK;
    for (;;)
        (void)pause();
}

static void wait_until_submitted(const world_run_t *run, uint32_t but)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    for (uint32_t r = 0; r < run->ranks; r++)
        for (int i = 0; r != but && i < 10000; i++) {
            if (*(volatile lh_status_t *)&run->outcomes[r].status == LH_OK) break;
            (void)nanosleep(&nap, NULL);
        }
}

static void a_save_outlives_all_trainers(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 3, .keep = 1};
    world_start(&run, save_steps_1_to_4);
    world_end(&run);
    world_forget(&run);
    world_start(&run, submit_and_stay);
    wait_until_submitted(&run, UINT32_MAX);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(kill(run.pids[r], SIGKILL), 0);
    world_end(&run);
    world_forget(&run);
    (void)ns_until_unlocked(s->folder);
    world_check(s->folder, 7, 2);
    assert_int_equal(entries(s->folder, "step-"), 1); /* what it displaces is removed as well */
}

static void submit_without_rank_1(world_place_t *p)
{
    if (p->rank == 1) _exit(0);
    submit_and_stay(p);
}

static void savers_do_not_stay_behind_for_a_rank_that_never_comes(void **state)
{
    scratch_t *s = *state;
    world_run_t run = {.folder = s->folder, .ranks = 3}; /* deadline: 10 minutes */
    world_start(&run, submit_without_rank_1);
    wait_until_submitted(&run, 1);
    assert_int_equal(kill(run.pids[0], SIGKILL), 0);
    assert_int_equal(kill(run.pids[2], SIGKILL), 0);
    world_end(&run);
    world_forget(&run);
    assert_true(ns_until_unlocked(s->folder) < 8000 * MS);
    assert_int_equal(entries(s->folder, "step-"), 0);
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
        FACT(any_number_of_ranks_loads_what_any_number_saved),
        FACT(each_checkpoint_names_the_one_before),
        FACT(every_element_is_written_by_one_rank),
        FACT(a_rank_that_dies_before_a_save_costs_it),
        FACT(a_rank_without_space_costs_the_save),
        FACT(a_step_that_failed_can_be_saved_again),
        FACT(a_killed_saver_of_rank_0_costs_the_save),
        FACT(a_save_that_is_given_up_late_takes_none_with_it),
        FACT(shares_that_do_not_cover_a_tensor_once_are_refused),
        FACT(leftovers_of_another_run_are_not_taken),
        FACT(a_save_outlives_all_trainers),
        FACT(savers_do_not_stay_behind_for_a_rank_that_never_comes),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
