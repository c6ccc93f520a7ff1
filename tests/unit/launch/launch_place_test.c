/* launch_place_test.c - what a launcher tells each of its ranks in one variable is what the rank reads there,
 * how long that rank then waits for rank 0, and whether train.log has what is said meanwhile. */
#include <unit/base/scratch_files.h>

#include <string.h>

#include <base/log.h>
#include <launch/launch_state.h>

static const uint64_t second = UINT64_C(1000000000);

/* As the rank finds it in its environment, from which it takes it away. */
static void handed_over(const launch_place_t *told, launch_place_t *read)
{
    static const job_t job;
    text_t text = {0};
    launch_place_write(told, &text);
    assert_false(text.failed);
    char *value = strchr(text.data, '=');
    assert_non_null(value);
    *value++ = '\0';
    assert_int_equal(setenv(text.data, value, 1), 0);
    if (launch_place_find(&job, read) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_null(getenv(PLACE_OURS));
    text_free(&text);
}

static void a_rank_reads_what_its_launcher_has_written(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < 8; flags++) {
        launch_place_t read, told = {.rank = 3,
                                     .size = 8,
                                     .port = 29400,
                                     .row = 1,
                                     .skip = (flags & 1) != 0,
                                     .waits = (flags & 2) != 0,
                                     .door = (flags & 4) != 0,
                                     .epoch = 7,
                                     .board = 4,
                                     .secret = 5,
                                     .listener = -1,
                                     .memory = 6,
                                     .address = "10.0.0.1"};
        handed_over(&told, &read);
        assert_true(read.ours);
        assert_string_equal(read.by, "longhaul");
        assert_int_equal(read.rank, 3);
        assert_int_equal(read.size, 8);
        assert_int_equal(read.port, 29400);
        assert_int_equal(read.row, 1);
        assert_int_equal(read.skip, (flags & 1) != 0);
        assert_int_equal(read.waits, (flags & 2) != 0);
        assert_int_equal(read.door, (flags & 4) != 0);
        assert_int_equal(read.herald, read.door); /* it is no rank either */
        assert_int_equal(read.epoch, 7);
        assert_int_equal(read.board, 4);
        assert_int_equal(read.secret, 5);
        assert_int_equal(read.listener, -1);
        assert_int_equal(read.memory, 6);
        assert_string_equal(read.address, "10.0.0.1");
        assert_string_equal(read.layout, "");
    }
}

static void a_rank_of_a_layout_reads_its_launchers_votes(void **state)
{
    (void)state;
    launch_place_t read, told = {.rank = 1,
                                 .size = 2,
                                 .epoch = 5,
                                 .board = 4,
                                 .secret = 5,
                                 .listener = -1,
                                 .memory = -1,
                                 .address = "t1",
                                 .layout = ".-a",
                                 .met = "...",
                                 .met_epoch = 4,
                                 .tried = "5:.-a",
                                 .machine = 3,
                                 .elects = true};
    handed_over(&told, &read);
    assert_string_equal(read.layout, ".-a");
    assert_string_equal(read.met, "...");
    assert_int_equal(read.met_epoch, 4);
    assert_string_equal(read.tried, "5:.-a");
    assert_int_equal(read.machine, 3);
    assert_true(read.elects);
    assert_false(read.herald);
}

/* Stages before training run on rank 0's machine, and the others wait as long as that takes, up to a week.
 * Ranks that start again have seen them end. */
static void a_rank_waits_for_stages_before_its_own(void **state)
{
    (void)state;
    const job_t job = {.launch = {.join_timeout_ns = 5 * second, .rejoin_ns = 9 * second}};
    launch_t l = {.how = {.job = &job}, .place = {.epoch = 1}};
    assert_int_equal(launch_patience(&l), 5 * second);
    l.place.waits = true; /* as its launcher has told it */
    assert_int_equal(launch_patience(&l), 7 * 24 * 3600 * second);
    l.place.epoch = 2;
    assert_int_equal(launch_patience(&l), 9 * second);
    l.place = (launch_place_t){.epoch = 1};
    l.waits = true; /* of the launcher, or of a rank that another starter began */
    assert_int_equal(launch_patience(&l), 7 * 24 * 3600 * second);
}

static void nobody_hears(void *context, bool here)
{
    (void)context;
    (void)here;
}

/* Whether a line that is logged while ranks meet comes to train.log, which is left empty. */
static bool log_has_the_wait(scratch_t *s, const launch_t *l)
{
    char *text = NULL;
    size_t length = 0;
    (void)scratch_write(s, "train.log", "", 0);
    const int fd = launch_log_open(l);
    log_note(LH_LOG_INFO, "waiting for rank 1");
    launch_log_close(fd);
    log_note(LH_LOG_INFO, "nobody waits any more");
    assert_int_equal(file_read(scratch_path(s, "train.log"), 4096, &text, &length), LH_OK);
    const bool has = strstr(text, "waiting for rank 1\n") != NULL;
    assert_null(strstr(text, "nobody waits"));
    assert_int_equal(has, length > 0);
    mem_free(text);
    return has;
}

/* That of a folder in which ranks go on with a training, and of no other command's. */
static void train_log_is_of_ranks_that_go_on(void **state)
{
    scratch_t *s = *state;
    const job_t job = {.pipeline = {.folder = s->folder}};
    launch_t l = {.how = {.job = &job, .leads = nobody_hears}, .place = {.epoch = 1}};
    assert_false(log_has_the_wait(s, &l)); /* it may be of the run before */
    l.place.epoch = 2;
    assert_true(log_has_the_wait(s, &l));
    l.how.leads = NULL; /* `longhaul bench`, started again */
    assert_false(log_has_the_wait(s, &l));
    l.place.epoch = 1;
    l.how.leads = nobody_hears;
    l.how.resume = true;
    assert_true(log_has_the_wait(s, &l));
    board_row_t row = {.follows = true};
    l.row = &row; /* of an old rank 0: another launcher has the folder, and the log */
    assert_false(log_has_the_wait(s, &l));
    row.follows = false;
    assert_true(log_has_the_wait(s, &l));
    log_threshold(LH_LOG_WARN); /* it matters less than is asked for */
    assert_false(log_has_the_wait(s, &l));
    log_threshold(LH_LOG_INFO);
    l.row = NULL;
    assert_int_equal(unlink(scratch_path(s, "train.log")), 0);
    assert_int_equal(launch_log_open(&l), -1);
    assert_false(file_exists(scratch_path(s, "train.log")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_reads_what_its_launcher_has_written),
        cmocka_unit_test(a_rank_of_a_layout_reads_its_launchers_votes),
        cmocka_unit_test(a_rank_waits_for_stages_before_its_own),
        cmocka_unit_test_setup_teardown(train_log_is_of_ranks_that_go_on, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
