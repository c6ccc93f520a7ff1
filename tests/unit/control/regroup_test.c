/* regroup_test.c - machines that come and go: what rank 0 tells ranks of another layout and of a past
 * epoch, and heralds, which are no ranks. */
#include <unit/base/scratch_files.h>

#include <unit/control/control_ranks.h>

static job_host_t tokyo[] = {{"t1", 1, 0}}, osaka[] = {{"o1", 1, 1}};
static job_site_t sites[] = {{.name = "tokyo", .hosts = tokyo, .host_count = 1},
                             {.name = "osaka", .hosts = osaka, .host_count = 1}};
static char prefer[] = "tokyo";
static const job_t job = {.sites = sites,
                          .site_count = 2,
                          .site_ranks = 2,
                          .all_sites = sites,
                          .all_site_count = 2,
                          .launch = {.go_on_with = GO_ON_RANKS, .prefer = prefer}};

/* A process of t1 or o1: rank `machine` of `layout`, or its herald. */
typedef struct process {
    rank_run_t run;
    control_members_t members;
    control_told_t told;
} process_t;

static void process_new(const star_t *star, process_t *p, uint32_t machine, const char *layout,
                        uint32_t epoch, bool herald)
{
    *p = (process_t){
        .members = {
            .job = &job, .layout = layout, .machine = machine, .herald = herald, .tried = ""}};
    /* Both have met in epoch 3. */
    p->members.met = epoch > 1 ? ".." : "";
    p->members.met_epoch = epoch > 1 ? 3 : 0;
    p->members.told = &p->told;
    p->run.how = star_how(star, machine, members_ranks(&job, layout));
    if (herald) p->run.how.size = (p->run.how.rank = JOB_RANKS + machine) + 1;
    p->run.how.listener = machine == 0 ? star->listener : -1;
    p->run.how.host = machine == 0 ? "t1" : "o1";
    p->run.how.site = machine == 0 ? "tokyo" : "osaka";
    p->run.how.epoch = epoch;
    p->run.how.members = &p->members;
}

static void was_told(const process_t *p, uint32_t epoch, const char *layout)
{
    assert_int_equal(p->run.status, LH_PEER_LOST);
    assert_int_equal(atomic_load(&p->told.epoch), epoch);
    assert_string_equal(p->told.layout, layout);
}

static void open_alone(star_t *star, process_t *zero)
{
    assert_int_equal(star_open(star), LH_OK);
    process_new(star, zero, 0, ".-", 4, false);
    (void)rank_open_thread(&zero->run);
    if (zero->run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero->run.reason);
    assert_int_equal(zero->run.world->row.epoch, 4);
}

/* One that was left out comes as it was, hears that, and waits as a herald until it is taken in. */
static void who_is_back_is_told_and_taken_in(void **state)
{
    static process_t zero, late, herald;
    star_t star;
    (void)state;
    open_alone(&star, &zero);
    process_new(&star, &late, 1, "..", 1, false);
    (void)rank_open_thread(&late.run);
    was_told(&late, 4, ".-");
    assert_string_equal(late.told.reason, "the job has gone on without osaka/o1");

    process_new(&star, &herald, 1, ".-", 4, true);
    (void)pthread_create(&herald.run.thread, NULL, rank_open_thread, &herald.run);
    const uint64_t begin = sys()->now_ns();
    while (control_status(zero.run.control) == LH_OK && seconds_since(begin) < 20) {
        control_take_in(zero.run.control);
        (void)usleep(10000);
    }
    (void)pthread_join(herald.run.thread, NULL);
    was_told(&herald, 5, "..");
    (void)rank_close_thread(&zero.run);
    was_told(&zero, 5, "..");
    assert_string_equal(zero.run.reason, "osaka/o1 is back");
    secret_free(star.secret);
}

/* The job ends while a herald waits: it is told, and does not wait for ever. */
static void a_herald_hears_that_the_job_is_over(void **state)
{
    static process_t zero, herald;
    control_counts_t counts;
    star_t star;
    (void)state;
    open_alone(&star, &zero);
    process_new(&star, &herald, 1, ".-", 1, true);
    (void)pthread_create(&herald.run.thread, NULL, rank_open_thread, &herald.run);
    const uint64_t begin = sys()->now_ns();
    do
        control_counts(zero.run.control, &counts);
    while (counts.handshakes == 0 && seconds_since(begin) < 20);
    (void)rank_close_thread(&zero.run);
    assert_int_equal(zero.run.status, LH_OK);
    (void)pthread_join(herald.run.thread, NULL);
    assert_true(herald.told.over);
    secret_free(star.secret);
}

/* Without a site that is preferred neither half of two goes on: rank 0 waits, and meets with the other
 * once it is there, though that one did not hear of the meeting before. */
static void half_of_a_job_waits_for_the_other(void **state)
{
    static process_t zero, other;
    job_t neither = job;
    star_t star;
    (void)state;
    neither.launch.prefer = NULL;
    assert_int_equal(star_open(&star), LH_OK);
    process_new(&star, &zero, 0, "..", 4, false);
    zero.members.job = &neither;
    zero.run.how.join_ns = 200 * CONTROL_MS;
    (void)pthread_create(&zero.run.thread, NULL, rank_open_thread, &zero.run);
    (void)usleep(1500000);
    process_new(&star, &other, 1, "..", 3, false);
    other.members.job = &neither;
    (void)rank_open_thread(&other.run);
    was_told(&other, 4, "..");
    process_new(&star, &other, 1, "..", 4, false);
    other.members.job = &neither;
    (void)rank_open_thread(&other.run);
    (void)pthread_join(zero.run.thread, NULL);
    if (zero.run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero.run.reason);
    if (other.run.status != LH_OK) FAIL_TEST("rank 1: %s\n", other.run.reason);
    assert_int_equal(other.run.world->row.epoch, 4);
    rank_run_t both[] = {zero.run, other.run};
    ranks_close(both, 2);
    secret_free(star.secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_back_is_told_and_taken_in),
        cmocka_unit_test(a_herald_hears_that_the_job_is_over),
        cmocka_unit_test(half_of_a_job_waits_for_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
