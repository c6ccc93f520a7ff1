/* call_faults_test.c - every call that a run makes to the file system fails in turn, with each
 * error that a disk has: what was saved stays, what is called saved is saved, nothing half-written
 * is left, one sentence says why, and the next save works. */
#include <crash/call_faults.h>
#include <crash/four_ranks.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <unit/base/scratch_files.h>

#include <base/log.h>

enum { KEEP = 2, WHOLE_BITS = 6, SAMPLES = 16 };

static const int errors[] = {ENOSPC, EDQUOT, EIO, EROFS, EACCES, EMFILE, ESTALE};
enum { ERRORS = sizeof(errors) / sizeof(errors[0]) };

static four_ranks_t four;
static uint64_t injections, refused;
static crash_count_t states;

static bool has_staging(const mem_fs_t *fs)
{
    const uint32_t folder = mem_tree_find(&fs->live, FOUR_FOLDER);
    const mem_node_t *n = &fs->live.nodes[folder];
    for (uint32_t i = 0; i < n->count; i++)
        if (strncmp(n->entries[i].name, ".tmp-", 5) == 0) return true;
    return false;
}

/* Then its files stay until the next run: the disk may have the rename. */
static bool was_renamed(const mem_fs_t *fs)
{
    for (uint32_t i = 0; i < fs->count; i++)
        if (fs->changes[i].kind == CHANGE_RENAME &&
            strcmp(fs->changes[i].to, "step-000000000003") == 0)
            return true;
    return false;
}

static void check_sentence(const char *call, uint32_t at, int error)
{
    const char *said = fail_reason();
    if (*said == '\0' || strchr(said, '\n') != NULL)
        FAIL_TEST("%s, call %u: \"%s\"\n", call, at, said);
    if (strstr(said, strerror(error)) == NULL)
        FAIL_TEST("%s, call %u: \"%s\" does not say: %s\n", call, at, said, strerror(error));
}

/* What a power loss leaves of a run that met an error is no worse. */
static void check_states(const mem_fs_t *fs, uint64_t seed)
{
    const crash_walk_how_t how = {.whole_bits = WHOLE_BITS,
                                  .samples = SAMPLES,
                                  .seed = seed,
                                  .expect = {2, 2, 0},
                                  .look = four_look,
                                  .context = &four};
    crash_walk(fs, &how, &states);
    if (states.faults > 0) FAIL_TEST("call %d: %s\n", (int)seed, states.first);
}

/* False: the run makes fewer calls than that. */
static bool inject(call_fault_t kind, uint32_t at, int error, bool look)
{
    mem_fs_t *fs = four_disk(2, KEEP);
    fail_clear();
    call_faults_use(&mem_table, kind, at, error);
    const lh_status_t status = four_run(3, KEEP);
    const char *struck = call_faults.struck;
    memset(&call_faults, 0, sizeof(call_faults));
    sys_use(&mem_table);
    if (struck != NULL) injections++;
    if (struck == NULL) assert_int_equal(status, LH_OK);

    const int64_t found = four_found(&four);
    if (found < 0) FAIL_TEST("%s, call %u: %s\n", struck, at, four.said);
    if (status == LH_OK && found != 3)
        FAIL_TEST("%s, call %u: said to be saved, %d was found\n", struck, at, (int)found);
    if (found != 2 && found != 3) FAIL_TEST("%s, call %u: %d was found\n", struck, at, (int)found);
    if (status != LH_OK) {
        refused++;
        check_sentence(struck, at, error);
        if (has_staging(fs) && !was_renamed(fs))
            FAIL_TEST("%s, call %u: staging is left\n", struck, at);
    }
    if (kind == CALL_SHORT || kind == CALL_AGAIN) assert_int_equal(status, LH_OK);
    if (look) check_states(fs, at);

    memset(fs->files, 0, sizeof(fs->files));
    if (status != LH_OK) assert_int_equal(four_run(3, KEEP), LH_OK); /* it is tried again */
    assert_int_equal(four_run(4, KEEP), LH_OK);
    assert_int_equal(four_found(&four), 4);
    mem_fs_free(fs);
    return struck != NULL;
}

static uint32_t calls_of_a_run(void)
{
    mem_fs_t *fs = four_disk(2, KEEP);
    call_faults_use(&mem_table, CALL_NONE, 0, 0);
    assert_int_equal(four_run(3, KEEP), LH_OK);
    const uint32_t calls = call_faults.calls;
    memset(&call_faults, 0, sizeof(call_faults));
    sys_use(&mem_table);
    mem_fs_free(fs);
    return calls;
}

static void every_call_fails_with_every_error(void **state)
{
    (void)state;
    const uint32_t calls = calls_of_a_run();
    four.pointer_may_lag = true;
    assert_true(calls > 100);
    for (int e = 0; e < ERRORS; e++)
        for (uint32_t at = 1; at <= calls; at++)
            (void)inject(CALL_FAILS, at, errors[e], errors[e] == EIO);
}

static void the_disk_is_full_from_a_call_on(void **state)
{
    (void)state;
    const int full[] = {ENOSPC, EDQUOT};
    for (int e = 0; e < 2; e++) {
        uint32_t at = 1;
        while (inject(CALL_FULL, at, full[e], true))
            at++;
        assert_true(at > 30);
    }
}

static void short_writes_and_interruptions_cost_nothing(void **state)
{
    (void)state;
    const uint32_t calls = calls_of_a_run();
    for (uint32_t at = 1; at <= calls; at++) {
        (void)inject(CALL_SHORT, at, 0, false);
        (void)inject(CALL_AGAIN, at, EINTR, false);
    }
}

static int quiet(void **state)
{
    (void)state;
    log_threshold(LH_LOG_ERROR + 1);
    return 0;
}

static int tell(void **state)
{
    (void)state;
    sys_use(NULL);
    print_message("%llu calls failed, %llu saves were refused, 0 said to be saved and not there; "
                  "%llu crash states, 0 lost\n",
                  (unsigned long long)injections, (unsigned long long)refused,
                  (unsigned long long)states.states);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails_with_every_error),
        cmocka_unit_test(the_disk_is_full_from_a_call_on),
        cmocka_unit_test(short_writes_and_interruptions_cost_nothing),
    };
    return cmocka_run_group_tests(tests, quiet, tell);
}
