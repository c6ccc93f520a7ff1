/* vote_file_test.c - what a machine remembers of meetings is one thing, by whatever name its launcher
 * calls it; and what becomes of one that has nothing to remember. */
#include <unit/base/scratch_files.h>

#include <string.h>

#include <launch/launch.h>
#include <launch/launch_members.h>

static job_host_t tokyo[] = {{"t1", 1, 0, NULL}}, osaka[] = {{"o1", 1, 1, NULL}};
static job_site_t sites[] = {{.name = "tokyo", .hosts = tokyo, .host_count = 1},
                             {.name = "osaka", .hosts = osaka, .host_count = 1}};
static job_host_t t2[] = {{"t2", 1, 0, NULL}};
static job_site_t spared[] = {
    {.name = "tokyo", .hosts = tokyo, .host_count = 1, .spares = t2, .spare_count = 1},
    {.name = "osaka", .hosts = osaka, .host_count = 1}};

static void launcher_new(scratch_t *s, job_t *job, launch_t *l, starter_t *starter,
                         const char *host, const char *asked)
{
    *job = (job_t){.path = "a.ini",
                   .sites = sites,
                   .site_count = 2,
                   .site_ranks = 2,
                   .all_sites = sites,
                   .all_site_count = 2,
                   .launch = {.go_on_with = GO_ON_RANKS},
                   .pipeline = {.folder = s->folder}};
    *l = (launch_t){.how = {.job = job, .votes = true, .resume = true, .machine = asked}};
    (void)snprintf(l->host, sizeof(l->host), "%s", host);
    *starter = (starter_t){.launch = l, .place = {.epoch = 1}};
}

/* Its own name has a domain, and --host says what the INI does. Two files would be two votes. */
static void a_machine_has_one_vote_by_each_of_its_names(void **state)
{
    scratch_t *s = *state;
    static job_t job;
    static launch_t l;
    static starter_t one, other;
    launcher_new(s, &job, &l, &one, "t1.example.org", NULL);
    assert_int_equal(starter_remember(&one), LH_OK);
    one.place.epoch = 4;
    one.place.met_epoch = 3;
    (void)snprintf(one.place.met, sizeof(one.place.met), "..");
    assert_int_equal(vote_file_write(&one.votes, &one.place), LH_OK);
    assert_true(file_exists(scratch_path(s, ".votes-t1")));

    static launch_t again;
    launcher_new(s, &job, &again, &other, "t1", "t1");
    assert_int_equal(starter_remember(&other), LH_OK);
    assert_null(other.votes.path); /* the first one lives */
    assert_int_equal(other.place.met_epoch, 0);
    vote_file_close(&other.votes, false);
    vote_file_close(&one.votes, false);

    launcher_new(s, &job, &again, &other, "t1", "t1");
    assert_int_equal(starter_remember(&other), LH_OK);
    assert_int_equal(other.place.met_epoch, 3);
    assert_int_equal(other.place.epoch, 4);
    assert_string_equal(other.place.met, "..");
    vote_file_close(&other.votes, true);
    assert_false(file_exists(scratch_path(s, ".votes-t1")));
}

/* The launcher of an old rank 0 is started again, and finds the folder held. What it remembers has rank 0 here, and
 * what ends it meanwhile is nothing for the log of the run that goes on elsewhere. */
static void an_old_rank_0_writes_nothing_into_the_log_of_another(void **state)
{
    scratch_t *s = *state;
    static job_t job;
    static launch_t l;
    static starter_t starter;
    static board_row_t board[1];
    char *text;
    size_t length;
    lh_status_t status;
    launcher_new(s, &job, &l, &starter, "t1", "t1");
    (void)scratch_write(s, "train.log", "", 0);
    l.starts = l.leads = l.meets = true;
    launch_follow(&l);
    members_all(&job, starter.place.layout);
    assert_int_equal(starter_make_ranks(&starter), LH_OK);
    assert_true(l.leads && l.follows);
    launch_note_end(&l, "stopped by signal 15");
    assert_int_equal(file_read(scratch_path(s, "train.log"), 4096, &text, &length), LH_OK);
    assert_int_equal(length, 0);
    mem_free(text);

    starter.board = board; /* it hears that o1 leads; and later leads itself, and has the folder */
    for (uint32_t epoch = 5; epoch < 7; epoch++) {
        (void)snprintf(board[0].told.layout, sizeof(board[0].told.layout),
                       epoch == 5 ? "-." : "..");
        atomic_store(&board[0].told.epoch, epoch);
        assert_true(starter_follows(&starter, &status));
        assert_int_equal(status, LH_OK);
        assert_int_equal(l.leads, epoch == 6);
        assert_false(l.follows);
    }
    launch_note_end(&l, "stopped by signal 15");
    assert_int_equal(file_read(scratch_path(s, "train.log"), 4096, &text, &length), LH_OK);
    assert_non_null(strstr(text, "longhaul: stopped by signal 15\n"));
    mem_free(text);
    mem_free(starter.ranks);
}

/* It reaches whoever elects, who gives it t1's ranks each time, and nobody reaches it. */
static void a_spare_that_nobody_reaches_ends_at_the_third_time(void **state)
{
    static job_t job;
    static launch_t l;
    static starter_t starter;
    static board_row_t board[1];
    lh_status_t status;
    launcher_new(*state, &job, &l, &starter, "t2", "t2");
    job.sites = job.all_sites = spared;
    members_all(&job, starter.place.layout);
    assert_int_equal(starter_make_ranks(&starter), LH_OK);
    assert_true(starter.place.herald);
    starter.board = board;
    for (uint32_t turn = 1; turn <= 3; turn++) {
        control_told_t *told = &board[0].told;
        (void)snprintf(told->layout, sizeof(told->layout), "a.");
        atomic_store(&told->epoch, 4 + turn);
        assert_true(starter_follows(&starter, &status));
        assert_int_equal(status, LH_OK);
        assert_false(starter.place.herald);
        assert_int_equal(starter.ranks[0].rank, 0);
        assert_int_equal(starter.place.epoch, 4 + turn);

        memset(board, 0, sizeof(board)); /* of the ranks that lead: they are told nothing */
        atomic_store(&told->lacked, 1);
        starter.first = &starter.ranks[0];
        assert_int_equal(starter_regroups(&starter, &status), turn < 3);
        assert_int_equal(status, LH_OK);
        assert_int_equal(starter.place.herald, turn < 3);
        assert_string_equal(starter.place.layout, turn < 3 ? ".." : "a.");
    }
    mem_free(starter.ranks);
}

/* What it tried is forgotten only as it has no vote. One that has met may have met in what it tried as well. */
static void a_spare_that_has_met_forgets_nothing(void **state)
{
    static job_t job;
    static launch_t l;
    static starter_t starter;
    static board_row_t board[1];
    lh_status_t status;
    for (uint32_t met = 2; met-- > 0;) {
        launcher_new(*state, &job, &l, &starter, "t2", "t2");
        job.sites = job.all_sites = spared;
        starter.place.epoch = 4;
        starter.place.met_epoch = met == 0 ? 0 : 3;
        (void)snprintf(starter.place.layout, sizeof(starter.place.layout), "a.");
        (void)snprintf(starter.place.tried, sizeof(starter.place.tried), "4:a.");
        assert_int_equal(starter_make_ranks(&starter), LH_OK);
        assert_false(starter.place.herald);
        memset(board, 0, sizeof(board));
        atomic_store(&board[0].told.lacked, 1);
        starter.board = board;
        starter.first = &starter.ranks[0];
        assert_int_equal(starter_regroups(&starter, &status), met == 0);
        assert_int_equal(status, LH_OK);
        assert_string_equal(starter.place.tried, met == 0 ? "" : "4:a.");
        assert_string_equal(starter.place.layout, met == 0 ? ".." : "a.");
        mem_free(starter.ranks);
    }
}

/* It is in `.-` and epoch 5, and hears of a meeting: of what it was told it forgets nothing, in that epoch too. */
static void a_witness_keeps_what_it_was_told(void **state)
{
    static const struct {
        const char *tried;
        uint32_t epoch;
        const char *met;
        bool takes; /* the meeting is what it remembers then */
    } rows[] = {{"5:.-", 4, "-.", false},
                {"5:.-", 5, "-.", false},
                {"5:.-", 5, ".-", true},
                {"5:.-", 6, "-.", true},
                {"", 5, "-.", true}};
    static char witness[] = "w1";
    static job_t job;
    static launch_t l;
    static starter_t starter;
    static board_row_t board[1];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        control_told_t *told = &board[0].told;
        launcher_new(*state, &job, &l, &starter, "w1", "w1");
        job.launch.witness = witness;
        starter.place.epoch = 5;
        (void)snprintf(starter.place.layout, sizeof(starter.place.layout), ".-");
        (void)snprintf(starter.place.tried, sizeof(starter.place.tried), "%s", rows[i].tried);
        assert_int_equal(starter_make_ranks(&starter), LH_OK);
        assert_true(starter.place.herald);
        memset(board, 0, sizeof(board));
        (void)snprintf(told->met, sizeof(told->met), "%s", rows[i].met);
        atomic_store(&told->met_epoch, rows[i].epoch);
        starter.board = board;
        assert_int_equal(starter_note_met(&starter), LH_OK);
        assert_string_equal(starter.place.tried, rows[i].takes ? "" : rows[i].tried);
        assert_string_equal(starter.place.met, rows[i].takes ? rows[i].met : "");
        assert_int_equal(starter.place.met_epoch, rows[i].takes ? rows[i].epoch : 0);
        mem_free(starter.ranks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_machine_has_one_vote_by_each_of_its_names, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(an_old_rank_0_writes_nothing_into_the_log_of_another,
                                        scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_spare_that_nobody_reaches_ends_at_the_third_time,
                                        scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_spare_that_has_met_forgets_nothing, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_witness_keeps_what_it_was_told, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
