/* crash_states_test.c - saves, prunes and restarts on a file system in memory; every state that a
 * power loss may leave of them is loaded by the real loader: the last checkpoint that was said to
 * be saved is found, or a newer one, complete and verified, never a wrong one.
 *
 * LONGHAUL_TORTURE=1: all kills instead of some, more power losses in a row. LONGHAUL_SEED=n:
 * another sample. */
#include <crash/call_faults.h>
#include <crash/four_ranks.h>
#include <crash/mem_fs_shared.h>

#include <stdio.h>
#include <stdlib.h>

#include <unit/base/scratch_files.h>

#include <base/log.h>
#include <checkpoint/incarnation.h>
#include <torture.h>

enum { WHOLE_BITS = 11, SAMPLES = 600, PICKS_MOST = 4096 };

static crash_count_t total;
static uint64_t seed = 20261121;
static bool torture;
static four_ranks_t state_of_all;

/* Trees that are run on from. */
static struct {
    mem_fs_t *fs[PICKS_MOST];
    uint32_t count, most;
    crash_expect_t expect[PICKS_MOST];
} picks;

static void keep_pick(void *context, const mem_tree_t *tree, const crash_expect_t *expect)
{
    (void)context;
    if (picks.count == picks.most) return;
    picks.expect[picks.count] = *expect;
    picks.fs[picks.count++] = mem_fs_new(tree);
}

static void walk_as(const char *what, const mem_fs_t *fs, crash_expect_t expect,
                    uint32_t pick_every, crash_look_t look)
{
    const crash_walk_how_t how = {.whole_bits = torture ? WHOLE_BITS + 2 : WHOLE_BITS,
                                  .samples = torture ? 4 * SAMPLES : SAMPLES,
                                  .seed = seed++,
                                  .expect = expect,
                                  .look = look,
                                  .context = &state_of_all,
                                  .pick_every = pick_every,
                                  .pick = keep_pick};
    crash_count_t count = {0};
    crash_walk(fs, &how, &count);
    crash_count_add(&total, &count);
    if (count.faults > 0)
        FAIL_TEST("%s: %llu crash states lose what was saved; the first: %s\n", what,
                  (unsigned long long)count.faults, count.first);
}

static void walk_all(const char *what, const mem_fs_t *fs, crash_expect_t expect,
                     uint32_t pick_every)
{
    walk_as(what, fs, expect, pick_every, four_look);
}

static mem_fs_t *fresh(void)
{
    mem_fs_t *fs = mem_fs_new(NULL);
    mem_fs_use(fs);
    sys_use(&mem_table);
    return fs;
}

/* Steps 1..count are on the disk; random bytes from then on differ by count. */
static mem_fs_t *with_steps(uint64_t count)
{
    mem_fs_t *fs = four_disk(count, 8);
    fs->random = (uint32_t)count;
    return fs;
}

static void a_first_save_into_folders_that_it_makes(void **state)
{
    (void)state;
    mem_fs_t *fs = fresh();
    assert_int_equal(four_run(1, 3), LH_OK);
    walk_all("first save", fs, (crash_expect_t){0, 0, 0}, 0);
    mem_fs_free(fs);
}

static void saves_that_follow_one_another_and_prune(void **state)
{
    (void)state;
    for (uint64_t keep = 1; keep <= 3; keep++) {
        mem_fs_t *fs = with_steps(3);
        for (uint64_t step = 4; step <= (torture ? 7u : 5u); step++)
            assert_int_equal(four_save(step, keep), LH_OK);
        walk_all("saves with pruning", fs, (crash_expect_t){3, 3, 0}, 0);
        mem_fs_free(fs);
    }
}

/* How many calls a run makes. */
static uint32_t calls_of_a_run(uint64_t keep)
{
    mem_fs_t *fs = with_steps(2);
    call_faults_use(&mem_table, CALL_NONE, 0, 0);
    assert_int_equal(four_run(3, keep), LH_OK);
    sys_use(&mem_table);
    const uint32_t calls = call_faults.calls;
    mem_fs_free(fs);
    return calls;
}

/* kill -9 at a call, a new run on what the file system shows, and a power loss at any time. */
static void a_run_after_one_that_was_killed_at_any_call(void **state)
{
    (void)state;
    const uint64_t keep = 2;
    const uint32_t calls = calls_of_a_run(keep), step = torture ? 1 : 5;
    for (uint32_t at = 1 + (uint32_t)(seed % step); at <= calls; at += step) {
        mem_fs_t *fs = with_steps(2);
        call_faults_use(&mem_table, CALL_FROZEN, at, 0);
        (void)four_run(3, keep); /* what it says, nobody hears */
        sys_use(&mem_table);
        memset(&call_faults, 0, sizeof(call_faults));
        memset(fs->files, 0, sizeof(fs->files));
        assert_int_equal(four_run(4, keep), LH_OK);
        walk_all("run after a kill", fs, (crash_expect_t){2, 2, 0}, 0);
        mem_fs_free(fs);
    }
}

/* A power loss, a run on what it left, another power loss, and so on. */
static void runs_after_power_losses(void **state)
{
    (void)state;
    picks.count = 0;
    picks.most = torture ? 64 : 4;
    mem_fs_t *fs = with_steps(2);
    assert_int_equal(four_run(3, 2), LH_OK);
    while (picks.count < picks.most) /* chance alone gives some seeds fewer */
        walk_all("a save", fs, (crash_expect_t){2, 2, 0}, torture ? 100 : 1000);
    mem_fs_free(fs);
    for (uint32_t i = 0; i < picks.count; i++) { /* the list grows */
        fs = picks.fs[i];
        fs->random = i + 17;
        mem_fs_use(fs);
        sys_use(&mem_table);
        const int64_t found = four_found(&state_of_all);
        const crash_expect_t before = {(uint64_t)found, (uint64_t)found, 0};
        if (found < 0) FAIL_TEST("%s\n", state_of_all.said);
        assert_int_equal(four_run((uint64_t)found + 1, 2), LH_OK);
        if (i + 1 == picks.most / 2) picks.most = torture ? 256 : 8;
        walk_all("a run after a power loss", fs, before, torture ? 2000 : 8000);
        mem_fs_free(fs);
    }
    assert_true(picks.count >= 4);
}

/* Each shard by a rank of its own, who hands its share of the manifest in through the folder. */
static void ranks_that_meet_in_the_staging_folder(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < (torture ? 20u : 3u); n++) {
        mem_fs_t *fs = with_steps(2);
        sys_use(&mem_shared_table);
        for (uint64_t step = 3; step <= 4; step++)
            if (four_meet(n, step, n % 3) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        sys_use(&mem_table);
        walk_all("ranks together", fs, (crash_expect_t){2, 2, 0}, 0);
        assert_int_equal(four_found(&state_of_all), 4);
        mem_fs_free(fs);
    }
}

/* Steps 1 and 2 are here, step 3 with another site alone: the journal begins then. */
static mem_fs_t *with_step_elsewhere(void)
{
    mem_fs_t *fs = with_steps(3);
    assert_int_equal(sys()->rename(FOUR_FOLDER "/step-000000000003", FOUR_OTHER), 0);
    mem_fs_t *after = mem_fs_new(&fs->live);
    mem_fs_free(fs);
    after->random = 3;
    mem_fs_use(after);
    return after;
}

/* What a site lacks and gets from another: half of a copy is never found. */
static void a_copy_of_another_site(void **state)
{
    (void)state;
    state_of_all.pointer_may_lag = true; /* it names step 3 all the time */
    mem_fs_t *fs = with_step_elsewhere();
    assert_int_equal(four_found(&state_of_all), 2);
    if (four_copy(3) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    walk_all("a copy of another site", fs, (crash_expect_t){2, 2, 0}, 0);
    assert_int_equal(four_found(&state_of_all), 3);
    mem_fs_free(fs);
    for (uint32_t at = 1; at < 1000; at += torture ? 1 : 7) {
        fs = with_step_elsewhere();
        call_faults_use(&mem_table, CALL_FROZEN, at, 0);
        (void)four_copy(3);
        const bool struck = call_faults.struck != NULL;
        sys_use(&mem_table);
        memset(&call_faults, 0, sizeof(call_faults));
        memset(fs->files, 0, sizeof(fs->files));
        assert_true(four_found(&state_of_all) >= 2);
        walk_all("a copy that was cut off", fs, (crash_expect_t){2, 2, 0}, 0);
        mem_fs_free(fs);
        if (!struck) break;
    }
    state_of_all.pointer_may_lag = false;
}

/* The newest is damaged: it is put aside, and its step saved anew. */
static void a_damaged_step_is_saved_again(void **state)
{
    (void)state;
    mem_fs_t *fs = with_steps(3);
    char path[96];
    (void)snprintf(path, sizeof(path), "%s/step-000000000003/manifest.json", FOUR_FOLDER);
    const int fd = sys()->open(path, 1 /* O_WRONLY */, 0);
    assert_int_equal(sys()->pwrite(fd, "x", 1, 40), 1);
    (void)sys()->close(fd);
    mem_fs_t *damaged = mem_fs_new(&fs->live);
    mem_fs_free(fs);
    mem_fs_use(damaged);
    assert_int_equal(four_found(&state_of_all), 2);
    state_of_all.pointer_may_lag = true; /* it names the damaged one until the next is saved */
    state_of_all.damage_stands = true;
    assert_int_equal(four_run(3, 2), LH_OK);
    assert_int_equal(four_found(&state_of_all), 3);
    walk_all("a damaged step saved again", damaged, (crash_expect_t){2, 3, 0}, 0);
    mem_fs_free(damaged);
    state_of_all.pointer_may_lag = state_of_all.damage_stands = false;
}

/* Of incarnations, which stand for steps in what is expected. */
static const char *number_look(void *context, const crash_expect_t *expect)
{
    static char said[128];
    incarnation_t found;
    (void)context;
    if (incarnation_read(FOUR_FOLDER, &found) != LH_OK) return fail_reason();
    const bool known = found.number >= expect->floor && found.number <= expect->newest;
    if (known && strcmp(found.run, found.number > 0 ? "cafe" : "") == 0) return NULL;
    (void)snprintf(said, sizeof(said), "incarnation %llu of run '%s', not %llu to %llu",
                   (unsigned long long)found.number, found.run, (unsigned long long)expect->floor,
                   (unsigned long long)expect->newest);
    return said;
}

/* A start whose number was told as written saves under it: no power loss sets the count back, nor takes the
 * folder, which may be new. */
static void the_number_of_a_start_is_never_lost(void **state)
{
    (void)state;
    for (uint64_t steps = 0; steps < 2; steps++) {
        mem_fs_t *fs = steps == 0 ? fresh() : with_steps(steps);
        for (uint64_t number = 1; number <= 3; number++) {
            const incarnation_t value = {.number = number, .run = "cafe"};
            mem_fs_mark(fs, MARK_BEGUN + number);
            assert_int_equal(incarnation_write(FOUR_FOLDER, &value), LH_OK);
            mem_fs_mark(fs, MARK_RETURNED + number);
        }
        walk_as("numbers of starts", fs, (crash_expect_t){0, 0, 0}, 0, number_look);
        mem_fs_free(fs);
    }
}

/* kill -9 at a call, and the next start counts on. */
static void a_start_after_one_that_was_killed_as_it_counted(void **state)
{
    (void)state;
    for (uint32_t at = 1; at < 100; at++) {
        mem_fs_t *fs = with_steps(1);
        incarnation_t value = {.number = 1, .run = "cafe"};
        assert_int_equal(incarnation_write(FOUR_FOLDER, &value), LH_OK);
        mem_fs_mark(fs, MARK_RETURNED + 1);
        value.number = 2;
        call_faults_use(&mem_table, CALL_FROZEN, at, 0);
        const lh_status_t status = incarnation_write(FOUR_FOLDER, &value);
        const bool struck = call_faults.struck != NULL;
        sys_use(&mem_table);
        memset(&call_faults, 0, sizeof(call_faults));
        memset(fs->files, 0, sizeof(fs->files));
        if (!struck) assert_int_equal(status, LH_OK); /* else nobody hears it */
        assert_int_equal(incarnation_read(FOUR_FOLDER, &value), LH_OK);
        value.number++;
        mem_fs_mark(fs, MARK_BEGUN + value.number);
        assert_int_equal(incarnation_write(FOUR_FOLDER, &value), LH_OK);
        mem_fs_mark(fs, MARK_RETURNED + value.number);
        walk_as("a start after a kill", fs, (crash_expect_t){0, 2, 0}, 0, number_look);
        mem_fs_free(fs);
        if (!struck) break;
    }
}

static int quiet(void **state)
{
    (void)state;
    const char *wanted = getenv("LONGHAUL_SEED");
    log_threshold(LH_LOG_ERROR + 1);
    torture = torture_wanted();
    if (wanted != NULL) seed = strtoull(wanted, NULL, 10);
    print_message("crash states: seed %llu\n", (unsigned long long)seed);
    return 0;
}

static int tell(void **state)
{
    (void)state;
    sys_use(NULL);
    print_message("crash states: %llu built at %llu moments, %llu looked at, %llu lost\n",
                  (unsigned long long)total.states, (unsigned long long)total.moments,
                  (unsigned long long)total.looks, (unsigned long long)total.faults);
    const uint64_t wanted = torture ? 1000000 : 100000;
    if (total.states < wanted) {
        print_error("fewer than %llu\n", (unsigned long long)wanted);
        return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_first_save_into_folders_that_it_makes),
        cmocka_unit_test(saves_that_follow_one_another_and_prune),
        cmocka_unit_test(a_run_after_one_that_was_killed_at_any_call),
        cmocka_unit_test(runs_after_power_losses),
        cmocka_unit_test(ranks_that_meet_in_the_staging_folder),
        cmocka_unit_test(a_copy_of_another_site),
        cmocka_unit_test(a_damaged_step_is_saved_again),
        cmocka_unit_test(the_number_of_a_start_is_never_lost),
        cmocka_unit_test(a_start_after_one_that_was_killed_as_it_counted),
    };
    return cmocka_run_group_tests(tests, quiet, tell);
}
