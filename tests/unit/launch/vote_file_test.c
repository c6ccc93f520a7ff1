/* vote_file_test.c - what a machine remembers of meetings is one thing, by whatever name its launcher
 * calls it. */
#include <unit/base/scratch_files.h>

#include <launch/launch_members.h>

static job_host_t tokyo[] = {{"t1", 1, 0, NULL}}, osaka[] = {{"o1", 1, 1, NULL}};
static job_site_t sites[] = {{.name = "tokyo", .hosts = tokyo, .host_count = 1},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_machine_has_one_vote_by_each_of_its_names, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
