/* kill_test.c - kill -9 at random moments of real saves: real processes, real files. What was said
 * to be saved is found, whole; what stands under a checkpoint's name is one.
 *
 * LONGHAUL_TORTURE=1: 1,000 kills instead of 30. LONGHAUL_SEED=n: other moments. */
#include <unit/checkpoint/small_state.h>

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <base/log.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/folder_lock.h>
#include <checkpoint/writer.h>
#include <torture.h>

enum { CI_KILLS = 30, TORTURE_KILLS = 1000, KEEP = 3, MOST_US = 40000, LOCK_S = 120 };
#define SECOND UINT64_C(1000000000)

static uint64_t seed = 20261121, kills = CI_KILLS;

static uint64_t chance(uint64_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (seed >> 33) % below;
}

static void sleep_us(uint64_t us)
{
    const struct timespec t = {.tv_sec = (time_t)(us / 1000000),
                               .tv_nsec = (long)(us % 1000000) * 1000};
    (void)nanosleep(&t, NULL);
}

/* A trainer that does nothing but save, and says which steps are saved; it never ends. */
static void save_for_ever(const char *folder, int said)
{
    (void)setpgid(0, 0);
    const writer_how_t how = {.folder = folder, .keep = {.newest = KEEP}, .shard_bytes = 64};
    writer_t *w;
    checkpoint_t *c = NULL;
    if (writer_start(&how, &w) != LH_OK || writer_open(w) != LH_OK ||
        writer_layout(w, small_tensors, SMALL_TENSORS) != LH_OK ||
        checkpoint_open_latest(folder, &c) != LH_OK)
        _exit(1);
    uint64_t step = c == NULL ? 0 : c->manifest->meta.step;
    if (c != NULL) checkpoint_make_way(folder, step, false);
    checkpoint_close(c);
    for (;;) {
        const checkpoint_meta_t meta = {.run = "killed", .step = ++step};
        writer_result_t result;
        if (writer_begin(w) != LH_OK) _exit(1);
        for (uint32_t t = 0; t < SMALL_TENSORS; t++) {
            void *place;
            if (writer_place(w, t, &place) != LH_OK) _exit(1);
            for (uint64_t i = 0; i < small_elements(t); i++)
                ((float *)place)[i] = small_value(step, t, i);
        }
        if (writer_submit(w, &meta) != LH_OK) _exit(1);
        if (writer_wait(w, &result) != LH_OK) _exit(1);
        if (result.status != LH_OK)
            step += 1; /* its saver was killed: the folder may be there */
        else if (write(said, &step, sizeof(step)) != (ssize_t)sizeof(step))
            _exit(1);
    }
}

/* Who saves and who is in reserve, as far as the trainer forked them. */
static void savers_of(pid_t trainer, pid_t pids[2])
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)trainer, (int)trainer);
    FILE *f = fopen(path, "r");
    pids[0] = pids[1] = 0;
    if (f == NULL) return;
    if (fscanf(f, "%d %d", &pids[0], &pids[1]) < 1) pids[0] = 0;
    (void)fclose(f);
}

static bool in_a_save(const char *folder)
{
    DIR *d = opendir(folder);
    bool found = false;
    for (struct dirent *e = d == NULL ? NULL : readdir(d); e != NULL && !found; e = readdir(d))
        found = strncmp(e->d_name, ".tmp-", 5) == 0 || strncmp(e->d_name, ".del-", 5) == 0;
    if (d != NULL) (void)closedir(d);
    return found;
}

/* Mostly all of its processes at once; else one of them, and later the others. */
static void kill_some(pid_t trainer)
{
    const uint64_t which = chance(10);
    pid_t savers[2];
    savers_of(trainer, savers);
    if (which <= 1 && savers[which] > 0) (void)kill(savers[which], SIGKILL);
    if (which == 2) (void)kill(trainer, SIGKILL);
    if (which <= 2) sleep_us(chance(MOST_US));
    (void)kill(-trainer, SIGKILL);
}

/* Until the trainer has saved one, on a busy machine later than on an idle one. Returns what a
 * moment within a save is chosen from. */
static uint64_t wait_for_save(int said, uint64_t save_us)
{
    struct pollfd fd = {.fd = said, .events = POLLIN};
    const uint64_t begin = sys()->now_ns();
    if (poll(&fd, 1, 20000) != 1) return save_us;
    return (save_us + 3 * ((sys()->now_ns() - begin) / 1000 + 5000)) / 2;
}

/* Nobody writes there any more, and all that stands there is whole. Returns the newest. */
static uint64_t look(const char *folder)
{
    folder_lock_t lock;
    checkpoint_steps_t steps;
    assert_int_equal(folder_lock_take(folder, LOCK_S * SECOND, &lock), LH_OK);
    assert_int_equal(checkpoint_steps(folder, &steps), LH_OK);
    for (size_t i = 0; i < steps.count; i++) {
        char name[CHECKPOINT_NAME], path[160];
        checkpoint_name(steps.steps[i], name);
        (void)snprintf(path, sizeof(path), "%.100s/%s", folder, name);
        if (checkpoint_verify(path) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    }
    const int64_t found = small_latest(folder);
    if (steps.count > 0) assert_int_equal(found, steps.steps[0]);
    mem_free(steps.steps);
    folder_lock_give(&lock);
    return found < 0 ? 0 : (uint64_t)found;
}

static void no_kill_loses_a_checkpoint(void **state)
{
    scratch_t *s = *state;
    char folder[128];
    uint64_t saved = 0, inside = 0, commits = 0, save_us = MOST_US;
    const uint64_t begin = seed;
    (void)snprintf(folder, sizeof(folder), "%.100s/c", s->folder);
    /* On a busy machine many a kill comes before the first save: then more of them. */
    for (uint64_t n = 0; n < kills || (n < 8 * kills && inside * 4 <= kills); n++) {
        int said[2];
        assert_int_equal(pipe(said), 0);
        const pid_t trainer = fork();
        assert_true(trainer >= 0);
        if (trainer == 0) {
            (void)close(said[0]);
            save_for_ever(folder, said[1]);
        }
        (void)setpgid(trainer, trainer); /* whoever comes first */
        (void)close(said[1]);
        sleep_us(1000 + chance(save_us));
        if (chance(2) == 0) save_us = wait_for_save(said[0], save_us);
        sleep_us(chance(save_us));
        kill_some(trainer);
        assert_int_equal(waitpid(trainer, NULL, 0), trainer);
        uint64_t step;
        while (read(said[0], &step, sizeof(step)) == (ssize_t)sizeof(step)) {
            saved = step;
            commits++;
        }
        (void)close(said[0]);
        if (in_a_save(folder)) inside++;
        const uint64_t found = look(folder);
        if (found < saved)
            FAIL_TEST("kill %llu: step %llu was saved, step %llu is found\n", (unsigned long long)n,
                      (unsigned long long)saved, (unsigned long long)found);
        saved = found;
    }
    print_message("%llu kills, %llu of them within a save, %llu saves; 0 lost; seed %llu\n",
                  (unsigned long long)kills, (unsigned long long)inside,
                  (unsigned long long)commits, (unsigned long long)begin);
    assert_true(commits > 0 && inside * 4 > kills);
}

static int quiet(void **state)
{
    (void)state;
    const char *wanted = getenv("LONGHAUL_SEED");
    if (torture_wanted()) kills = TORTURE_KILLS;
    if (wanted != NULL) seed = strtoull(wanted, NULL, 10);
    log_threshold(LH_LOG_ERROR + 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_kill_loses_a_checkpoint, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
