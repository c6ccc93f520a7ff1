/* regroup_test.c - machines that come and go: what rank 0 tells ranks of another layout and of a past
 * epoch, and heralds, which are no ranks; who leads where rank 0's machine is gone, and what a witness
 * has to do with it. */
#include <unit/base/scratch_files.h>

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <control/control_door.h>
#include <unit/control/control_ranks.h>

/* Each machine by its own address, all of this one. */
static char at_t1[] = "127.0.0.1", at_o1[] = "127.0.0.2", at_k1[] = "127.0.0.3", w1[] = "w1";
static job_host_t tokyo[] = {{"t1", 1, 0, at_t1}}, osaka[] = {{"o1", 1, 1, at_o1}},
                  kyoto[] = {{"k1", 1, 2, at_k1}};
static job_site_t sites[] = {{.name = "tokyo", .hosts = tokyo, .host_count = 1},
                             {.name = "osaka", .hosts = osaka, .host_count = 1}};
static char prefer[] = "tokyo";
static const job_t job = {.sites = sites,
                          .site_count = 2,
                          .site_ranks = 2,
                          .all_sites = sites,
                          .all_site_count = 2,
                          .launch = {.go_on_with = GO_ON_RANKS, .prefer = prefer}};

static job_site_t three_sites[] = {{.name = "tokyo", .hosts = tokyo, .host_count = 1},
                                   {.name = "osaka", .hosts = osaka, .host_count = 1},
                                   {.name = "kyoto", .hosts = kyoto, .host_count = 1}};
static const job_t three = {.sites = three_sites,
                            .site_count = 3,
                            .site_ranks = 3,
                            .all_sites = three_sites,
                            .all_site_count = 3,
                            .launch = {.go_on_with = GO_ON_RANKS}};
static const job_t tied = {.sites = sites,
                           .site_count = 2,
                           .site_ranks = 2,
                           .all_sites = sites,
                           .all_site_count = 2,
                           .launch = {.go_on_with = GO_ON_RANKS, .witness = w1}};

/* t2 is a spare of t1, and a machine behind o1. */
static job_host_t t2[] = {{"t2", 1, 0, at_k1}};
static job_site_t spared_sites[] = {
    {.name = "tokyo", .hosts = tokyo, .host_count = 1, .spares = t2, .spare_count = 1},
    {.name = "osaka", .hosts = osaka, .host_count = 1}};
static const job_t spared = {.sites = spared_sites,
                             .site_count = 2,
                             .site_ranks = 2,
                             .all_sites = spared_sites,
                             .all_site_count = 2,
                             .launch = {.go_on_with = GO_ON_RANKS}};

/* Half of the ranks are t1's, and nothing decides between it and the others. Who waits does so for a
 * second. */
static job_host_t two[] = {{"t1", 2, 0, at_t1}}, third[] = {{"o1", 1, 2, at_o1}},
                  fourth[] = {{"k1", 1, 3, at_k1}};
static job_site_t half_sites[] = {{.name = "tokyo", .hosts = two, .host_count = 1},
                                  {.name = "osaka", .hosts = third, .host_count = 1},
                                  {.name = "kyoto", .hosts = fourth, .host_count = 1}};
static const job_t halves = {
    .sites = half_sites,
    .site_count = 3,
    .site_ranks = 4,
    .all_sites = half_sites,
    .all_site_count = 3,
    .launch = {.go_on_with = GO_ON_RANKS, .quorum_timeout_ns = 1000 * CONTROL_MS}};

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

static void hears_of_meeting(const process_t *p, uint32_t epoch, const char *layout)
{
    const uint64_t since = sys()->now_ns();
    while (atomic_load(&p->told.met_epoch) == 0 && seconds_since(since) < 20)
        (void)usleep(10000);
    assert_int_equal(atomic_load(&p->told.met_epoch), epoch);
    assert_string_equal(p->told.met, layout);
}

static void open_alone(star_t *star, process_t *zero)
{
    assert_int_equal(star_open(star), LH_OK);
    process_new(star, zero, 0, ".-", 4, false);
    (void)rank_open_thread(&zero->run);
    if (zero->run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero->run.reason);
    assert_int_equal(zero->run.world->row.epoch, 4);
}

/* Of another job than that: machine's own names, and all of that job have met in epoch 3. */
static void process_of(const star_t *star, process_t *p, const job_t *of, uint32_t machine,
                       const char *layout, uint32_t epoch)
{
    machine_t at;
    char all[MEMBERS_TEXT];
    uint32_t first;
    members_machine(of, machine, &at);
    members_all(of, all);
    process_new(star, p, 0, ".-", epoch, false);
    p->members.job = of;
    p->members.machine = machine;
    p->members.layout = layout;
    p->members.met = strlen(all) == 2 ? ".." : "...";
    p->run.how.host = at.host;
    p->run.how.site = at.site->name;
    p->run.how.address = at.address;
    p->run.how.size = members_ranks(of, layout);
    p->run.how.listener = -1;
    p->members.herald = members_ranks_of(of, layout, machine, &first) == 0;
    p->run.how.rank = p->members.herald ? JOB_RANKS + machine : first;
    if (p->members.herald) p->run.how.size = p->run.how.rank + 1;
    if (p->members.herald) p->run.how.address = at_t1;
}

/* Rank 0's machine was not reached. As the one to whom others come, or as who looks for that one. */
static void process_elects(process_t *p, bool serves)
{
    p->members.herald = p->members.elects = true;
    p->run.how.rank = serves ? 0 : JOB_RANKS + p->members.machine;
    p->run.how.size = serves ? 1 : p->run.how.rank + 1;
    if (!serves) p->run.how.address = at_t1;
    p->run.how.join_ns = 1500 * CONTROL_MS;
}

static void begin(process_t *p)
{
    (void)pthread_create(&p->run.thread, NULL, rank_open_thread, &p->run);
}

static void end(process_t *p)
{
    (void)pthread_join(p->run.thread, NULL);
}

/* Within half a minute, else `why` is what it does instead. */
static void end_soon(process_t *p, const char *why)
{
    const uint64_t since = sys()->now_ns();
    while (pthread_tryjoin_np(p->run.thread, NULL) == EBUSY) {
        if (seconds_since(since) > 30) FAIL_TEST("%s\n", why);
        (void)usleep(10000);
    }
}

/* Two ranks that came, and met. */
static void have_met(const process_t *zero, const process_t *one)
{
    if (zero->run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero->run.reason);
    if (one->run.status != LH_OK) FAIL_TEST("rank 1: %s\n", one->run.reason);
}

static void close_both(const star_t *star, const process_t *zero, const process_t *one)
{
    rank_run_t both[] = {zero->run, one->run};
    ranks_close(both, 2);
    secret_free(star->secret);
}

/* A port that is free at all of these addresses, and nobody listens at t1's. */
static void star_without_zero(star_t *star)
{
    assert_int_equal(star_open(star), LH_OK);
    (void)close(star->listener);
    star->listener = -1;
}

/* Until a machine has opened its port. Who looks is a stranger there. */
static void until_it_listens(const star_t *star, const char *address)
{
    const uint64_t since = sys()->now_ns();
    int fd;
    while (control_dial(address, star->port, sys()->now_ns() + 1000 * CONTROL_MS, 0, &fd) !=
           LH_OK) {
        if (seconds_since(since) > 20) FAIL_TEST("%s\n", fail_reason());
        (void)usleep(1000);
    }
    (void)close(fd);
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

/* Until somebody has come to rank 0 and proven the key. */
static void await_handshake(const process_t *zero)
{
    control_counts_t counts;
    const uint64_t begin = sys()->now_ns();
    do
        control_counts(zero->run.control, &counts);
    while (counts.handshakes == 0 && seconds_since(begin) < 20);
}

/* The job ends while a herald waits: it is told, and does not wait for ever. */
static void a_herald_hears_that_the_job_is_over(void **state)
{
    static process_t zero, herald;
    star_t star;
    (void)state;
    open_alone(&star, &zero);
    process_new(&star, &herald, 1, ".-", 1, true);
    (void)pthread_create(&herald.run.thread, NULL, rank_open_thread, &herald.run);
    await_handshake(&zero);
    (void)rank_close_thread(&zero.run);
    assert_int_equal(zero.run.status, LH_OK);
    (void)pthread_join(herald.run.thread, NULL);
    assert_true(herald.told.over);
    secret_free(star.secret);
}

/* o1's herald, which says so of its program and INI. */
static void herald_finds(const star_t *star, process_t *herald, const control_fact_t *facts,
                         uint32_t count)
{
    process_new(star, herald, 1, ".-", 4, true);
    herald->run.how.facts = facts;
    herald->run.how.fact_count = count;
    begin(herald);
}

/* A machine of another program or INI is refused as it comes, and not with all ranks when it is to have some. A
 * herald knows no plugin. */
static void a_herald_that_differs_is_refused(void **state)
{
    static const control_fact_t here[] = {{"program", "1"},
                                          {"model plugin llama", "2.0"},
                                          {"[train] batch", "8"}},
                                same[] = {{"program", "1"}, {"[train] batch", "8"}},
                                newer[] = {{"program", "2"}, {"[train] batch", "8"}},
                                fewer[] = {{"program", "1"}};
    static const struct {
        const control_fact_t *facts;
        uint32_t count;
        const char *reason;
    } odd[] = {{newer, 2,
                "osaka/o1 differs from tokyo/t1: ranks of it would be refused\n"
                "program: 2, expected 1"},
               {fewer, 1,
                "osaka/o1 differs from tokyo/t1: ranks of it would be refused\n"
                "[train] batch: (not set), expected 8"}};
    static process_t zero, herald;
    star_t star;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    process_new(&star, &zero, 0, ".-", 4, false);
    zero.run.how.facts = here;
    zero.run.how.fact_count = 3;
    (void)rank_open_thread(&zero.run);
    if (zero.run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero.run.reason);

    for (uint32_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        herald_finds(&star, &herald, odd[i].facts, odd[i].count);
        end_soon(&herald, "a herald that differs waits");
        assert_int_equal(herald.run.status, LH_MISMATCH);
        assert_string_equal(herald.run.reason, odd[i].reason);
    }
    herald_finds(&star, &herald, same, 2);
    await_handshake(&zero);
    (void)rank_close_thread(&zero.run);
    assert_int_equal(zero.run.status, LH_OK);
    end(&herald);
    assert_true(herald.told.over);
    secret_free(star.secret);
}

/* The job ends at once: a herald is told as soon as rank 0 is, whose process may be killed before it comes to
 * its end. */
static void a_herald_hears_of_an_end_at_once_before_rank_0_has_ended(void **state)
{
    static process_t zero, herald;
    star_t star;
    (void)state;
    open_alone(&star, &zero);
    process_new(&star, &herald, 1, ".-", 1, true);
    begin(&herald);
    await_handshake(&zero);
    control_fail(zero.run.control, 0, STATUS_ENDED, "its machine was told to end at once");
    end_soon(&herald, "the herald was not told");
    assert_true(herald.told.over);
    assert_true(fails_within(zero.run.control, 20));
    (void)rank_close_thread(&zero.run);
    assert_int_equal(zero.run.status, STATUS_ENDED);
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
    have_met(&zero, &other);
    assert_int_equal(other.run.world->row.epoch, 4);
    close_both(&star, &zero, &other);
}

/* t1 is lost. o1 finds nobody before it, listens, and decides with k1 for both. */
static void another_machine_leads(void **state)
{
    static process_t o1, k1, alone;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &o1, &three, 1, "...", 4);
    process_elects(&o1, false);
    (void)rank_open_thread(&o1.run);
    assert_int_equal(o1.run.status, LH_UNREACHABLE);

    process_of(&star, &o1, &three, 1, "...", 4);
    process_elects(&o1, true);
    process_of(&star, &k1, &three, 2, "...", 5); /* it heard of a restart that failed */
    process_elects(&k1, false);
    begin(&o1);
    until_it_listens(&star, "127.0.0.2");
    begin(&k1);
    end(&o1);
    end(&k1);
    was_told(&o1, 6, "-..");
    was_told(&k1, 6, "-..");
    assert_string_equal(o1.told.reason, "rank 0 on tokyo/t1 was not reached: tokyo/t1 is gone");

    /* Alone it has a third of the ranks, and waits. */
    process_of(&star, &alone, &three, 1, "...", 4);
    process_elects(&alone, true);
    process_of(&star, &k1, &three, 2, "...", 4);
    process_elects(&k1, true);
    begin(&alone);
    (void)usleep(2500000);
    assert_int_equal(atomic_load(&alone.told.epoch), 0);
    /* Of two that listen the later in order gives way, and comes to the other. */
    (void)rank_open_thread(&k1.run);
    assert_int_equal(k1.run.status, LH_PEER_LOST);
    assert_int_equal(atomic_load(&k1.told.epoch), 0);
    assert_string_equal(k1.run.reason, "another machine is there to decide");
    process_of(&star, &k1, &three, 2, "...", 4);
    process_elects(&k1, false);
    (void)rank_open_thread(&k1.run);
    end(&alone);
    was_told(&alone, 5, "-..");
    was_told(&k1, 5, "-..");
    secret_free(star.secret);
}

/* Rank 0 is on a spare, which was cut off, and is back: o1, which took its place meanwhile and waits, as
 * it has half of the ranks, gives way to it though its number is lower. Then both meet. */
static void rank_0_on_a_spare_goes_before_who_elects(void **state)
{
    static process_t zero, o1;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &o1, &spared, 1, "a.", 4);
    process_elects(&o1, true);
    process_of(&star, &zero, &spared, 2, "a.", 4);
    zero.run.how.join_ns = 20000 * CONTROL_MS;
    o1.members.met = zero.members.met = "a.";
    begin(&o1);
    (void)usleep(1800000);
    assert_int_equal(pthread_tryjoin_np(o1.run.thread, NULL), EBUSY);
    begin(&zero);
    end_soon(&o1, "o1 waits beside rank 0");
    assert_int_equal(o1.run.status, LH_PEER_LOST);
    assert_string_equal(o1.run.reason, "another machine is there to decide");

    process_of(&star, &o1, &spared, 1, "a.", 4);
    o1.members.met = "a.";
    o1.run.how.address = at_k1;
    begin(&o1);
    end(&o1);
    end(&zero);
    have_met(&zero, &o1);
    close_both(&star, &zero, &o1);
}

/* The spare that leads was started anew, and knows nothing of that: it comes as a spare to o1, which waits for it
 * to lead. It has its rank again, though no machine is missing. */
static void a_spare_that_has_forgotten_that_it_leads_is_told(void **state)
{
    static char osaka_goes_on[] = "osaka";
    static process_t o1, spare;
    job_t favoured = spared;
    star_t star;
    (void)state;
    favoured.launch.go_on_with = GO_ON_NONE;
    favoured.launch.prefer = osaka_goes_on;
    star_without_zero(&star);
    process_of(&star, &o1, &favoured, 1, "a.", 4);
    process_elects(&o1, true);
    o1.run.how.join_ns = 400 * CONTROL_MS;
    o1.members.met = "a.";
    process_of(&star, &spare, &favoured, 2, "..", 1);
    assert_true(spare.members.herald);
    spare.members.met = "";
    begin(&o1);
    (void)usleep(50000);
    begin(&spare);
    end_soon(&o1, "o1 waits for rank 0's machine, which has come");
    end_soon(&spare, "the spare waits for whoever leads");
    was_told(&o1, 5, "a.");
    was_told(&spare, 5, "a.");
    assert_string_equal(o1.told.reason,
                        "rank 0 on tokyo/t2 was not reached: its machine is here now, "
                        "and all meet as before");
    secret_free(star.secret);
}

/* The same where o1 is half of the ranks, and nothing decides for it: t1 may train elsewhere, until it comes too. */
static void without_most_a_spare_is_not_told_that_it_leads(void **state)
{
    static process_t o1, spare, t1;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &o1, &spared, 1, "a.", 4);
    process_elects(&o1, true);
    o1.run.how.join_ns = 400 * CONTROL_MS;
    o1.members.met = "a.";
    process_of(&star, &spare, &spared, 2, "..", 1);
    spare.members.met = "";
    begin(&o1);
    (void)usleep(50000);
    begin(&spare);
    (void)usleep(700000);
    assert_int_equal(pthread_tryjoin_np(o1.run.thread, NULL), EBUSY);
    assert_int_equal(pthread_tryjoin_np(spare.run.thread, NULL), EBUSY);
    process_of(&star, &t1, &spared, 0, "a.", 4);
    t1.members.met_epoch = 2;
    assert_true(t1.members.herald);
    begin(&t1);
    end_soon(&o1, "o1 waits, though all are there");
    end_soon(&spare, "the spare waits, though all are there");
    end_soon(&t1, "t1 waits for whoever leads");
    was_told(&o1, 5, "a.");
    was_told(&spare, 5, "a.");
    was_told(&t1, 5, "a.");
    secret_free(star.secret);
}

/* A spare was told that it leads, and nobody comes: its launcher can tell that from all else. */
static void a_spare_that_leads_and_lacks_ranks_says_so(void **state)
{
    static process_t zero;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &zero, &spared, 2, "a.", 4);
    zero.members.met = "";
    zero.members.met_epoch = 0;
    zero.run.how.join_ns = 200 * CONTROL_MS;
    begin(&zero);
    end_soon(&zero, "it waits on");
    assert_int_equal(zero.run.status, LH_TIMED_OUT);
    assert_int_equal(atomic_load(&zero.told.lacked), 1);
    assert_int_equal(atomic_load(&zero.told.epoch), 0);
    secret_free(star.secret);
}

/* Rank 0's machine is replaced by a spare: no host is missing, and yet it hears of that when it is back. */
static void an_old_leader_hears_of_a_spare_in_its_place(void **state)
{
    static process_t zero, o1, old;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &zero, &spared, 2, "a.", 5);
    process_of(&star, &o1, &spared, 1, "a.", 5);
    o1.members.met = zero.members.met = "a.";
    o1.run.how.address = at_k1;
    begin(&zero);
    begin(&o1);
    end(&zero);
    end(&o1);
    have_met(&zero, &o1);

    process_of(&star, &old, &spared, 0, "..", 4);
    old.run.how.join_ns = 1000 * CONTROL_MS;
    begin(&old);
    end_soon(&old, "t1 was told nothing");
    was_told(&old, 5, "a.");
    close_both(&star, &zero, &o1);
}

/* t1 was cut off, and waits as rank 0 of all. It asks where the job is, and hears that it has gone on. */
static void an_old_leader_hears_of_the_new_one(void **state)
{
    static process_t zero, old, herald;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &zero, &three, 1, "-.-", 7);
    zero.members.met = "-.-";
    zero.members.met_epoch = 6;
    (void)rank_open_thread(&zero.run);
    if (zero.run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero.run.reason);

    process_of(&star, &old, &three, 0, "...", 4);
    old.run.how.join_ns = 2000 * CONTROL_MS;
    const uint64_t begun = sys()->now_ns();
    (void)rank_open_thread(&old.run);
    was_told(&old, 7, "-.-");
    assert_true(seconds_since(begun) < 15);

    process_of(&star, &herald, &three, 0, "-.-", 7);
    herald.run.how.address = at_o1;
    begin(&herald);
    const uint64_t since = sys()->now_ns();
    while (control_status(zero.run.control) == LH_OK && seconds_since(since) < 20) {
        control_take_in(zero.run.control);
        (void)usleep(10000);
    }
    end(&herald);
    was_told(&herald, 8, "..-"); /* t1 leads again */
    (void)rank_close_thread(&zero.run);
    was_told(&zero, 8, "..-");
    secret_free(star.secret);
}

/* o1 leads a group of which the others are in another one by now, and has not noticed so far: t1, which
 * has met in that one, is not called back by it. */
static void an_old_leader_calls_nobody_back(void **state)
{
    static process_t old, zero;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &old, &three, 1, "-.-", 4);
    old.members.met = "-.-";
    (void)rank_open_thread(&old.run);
    if (old.run.status != LH_OK) FAIL_TEST("rank 0: %s\n", old.run.reason);

    process_of(&star, &zero, &three, 0, ".-.", 7);
    zero.members.met = ".-.";
    zero.members.met_epoch = 6;
    zero.run.how.join_ns = 2000 * CONTROL_MS;
    begin(&zero);
    (void)usleep(4000000);
    assert_int_equal(atomic_load(&zero.told.epoch), 0);
    assert_int_equal(pthread_tryjoin_np(zero.run.thread, NULL), EBUSY);
    (void)rank_close_thread(&old.run);

    /* k1 is back, and they meet. */
    static process_t k1;
    process_of(&star, &k1, &three, 2, ".-.", 7);
    k1.members.met = ".-.";
    k1.members.met_epoch = 6;
    k1.run.how.address = at_t1;
    (void)rank_open_thread(&k1.run);
    end(&zero);
    have_met(&zero, &k1);
    close_both(&star, &zero, &k1);
}

/* Both hosts were started anew, to go on, and remember nothing: the spare may train with others. Once it
 * is there as well nobody is left who could, and they meet. Without --resume it is a first meeting. */
static void who_resumes_and_remembers_nothing_waits_for_all(void **state)
{
    static process_t zero, o1, spare;
    star_t star;
    (void)state;
    for (uint32_t resumes = 0; resumes < 2; resumes++) {
        star_without_zero(&star);
        process_of(&star, &zero, &spared, 0, "..", 1);
        process_of(&star, &o1, &spared, 1, "..", 1);
        process_of(&star, &spare, &spared, 2, "..", 1);
        zero.run.how.join_ns = 500 * CONTROL_MS;
        zero.members.met = o1.members.met = spare.members.met = "";
        zero.members.met_epoch = o1.members.met_epoch = spare.members.met_epoch = 0;
        zero.members.resumes = o1.members.resumes = spare.members.resumes = resumes != 0;
        o1.run.how.address = at_t1;
        begin(&zero);
        begin(&o1);
        (void)usleep(2000000);
        if (resumes != 0) {
            assert_int_equal(pthread_tryjoin_np(zero.run.thread, NULL), EBUSY);
            begin(&spare);
        }
        end(&zero);
        end(&o1);
        have_met(&zero, &o1);
        rank_run_t both[] = {zero.run, o1.run};
        ranks_close(both, 2);
        if (resumes != 0) end(&spare);
        secret_free(star.secret);
    }
}

/* Of two halves the one that the witness sees goes on, and meets once the witness knows of that. */
static void a_witness_breaks_a_tie(void **state)
{
    static process_t zero, witness;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &zero, &tied, 0, "..", 4);
    zero.run.how.join_ns = 1000 * CONTROL_MS;
    process_of(&star, &witness, &tied, 2, "..", 4);
    assert_true(witness.members.herald);
    begin(&zero);
    begin(&witness);
    end(&zero);
    end(&witness);
    was_told(&zero, 5, ".-");
    was_told(&witness, 5, ".-");

    process_of(&star, &zero, &tied, 0, ".-", 5);
    zero.members.tried = "5:.-";
    process_of(&star, &witness, &tied, 2, "..", 4);
    begin(&zero);
    begin(&witness);
    /* It has not been told, and may have gone to others: it is now, and comes again. */
    end(&witness);
    was_told(&witness, 5, ".-");
    assert_int_equal(pthread_tryjoin_np(zero.run.thread, NULL), EBUSY);
    process_t told;
    process_of(&star, &told, &tied, 2, ".-", 5);
    told.members.tried = "5:.-";
    begin(&told);
    end(&zero);
    if (zero.run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero.run.reason);
    assert_int_equal(zero.run.world->row.epoch, 5);
    hears_of_meeting(&told, 5, ".-");
    (void)rank_close_thread(&zero.run);
    end(&told);
    assert_true(told.told.over);
    secret_free(star.secret);
}

/* Half of the ranks go on, and t1, which has none then, stands with them. It came before the last of them, and
 * may have gone to others since, whom that one has met: it is told, and its vote counts when it comes again. */
static void who_is_left_out_has_its_vote_behind_the_last_rank(void **state)
{
    static process_t o1, k1, t1;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_t *const all[] = {&o1, &k1, &t1};
    for (uint32_t i = 0; i < 3; i++) {
        process_of(&star, all[i], &halves, (i + 1) % 3, "-..", 5);
        all[i]->members.tried = "5:-..";
        all[i]->run.how.address = at_o1;
    }
    assert_true(t1.members.herald);
    begin(&o1);
    until_it_listens(&star, at_o1);
    begin(&t1);
    (void)usleep(500000);
    begin(&k1);
    end_soon(&t1, "it is not told that it is to come again");
    was_told(&t1, 5, "-..");
    assert_int_equal(pthread_tryjoin_np(o1.run.thread, NULL), EBUSY);
    process_of(&star, &t1, &halves, 0, "-..", 5);
    t1.members.tried = "5:-..";
    t1.run.how.address = at_o1;
    begin(&t1);
    end(&o1);
    end(&k1);
    have_met(&o1, &k1);
    hears_of_meeting(&t1, 5, "-..");
    close_both(&star, &o1, &k1);
    end(&t1);
    assert_true(t1.told.over);
}

/* Rank 1 of a job with a witness: rank 0 listens as long as that runs. */
static void process_of_tied(const star_t *star, process_t *p, uint32_t machine)
{
    process_new(star, p, machine, "..", 1, false);
    p->members.job = &tied;
    p->run.how.outage_ns = UINT64_C(60000000000);
}

/* A process of its own, which takes part until it is killed. */
static pid_t process_start(process_t *p)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)rank_open_thread(&p->run);
    for (;;)
        (void)pause();
}

/* Its machine was started anew behind a link that nobody knows to be cut. It comes again until rank 0 knows, and
 * is not refused for good. */
static void who_comes_anew_to_a_job_that_runs_is_not_refused(void **state)
{
    static process_t zero, one, anew;
    star_t star;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    process_of_tied(&star, &zero, 0);
    process_of_tied(&star, &one, 1);
    process_of_tied(&star, &anew, 1);
    anew.run.how.join_ns = 400 * CONTROL_MS;
    const pid_t pid = process_start(&one);
    (void)rank_open_thread(&zero.run);
    if (zero.run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero.run.reason);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    (void)usleep(1400000); /* rank 0 doubts it a second behind the last heartbeat it has read */
    (void)rank_open_thread(&anew.run);
    if (anew.run.status != LH_TIMED_OUT) FAIL_TEST("%s\n", anew.run.reason);
    assert_int_equal(control_status(zero.run.control), LH_OK);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(fails_within(zero.run.control, 20)); /* now it is known */
    (void)rank_close_thread(&zero.run);
    assert_int_equal(zero.run.status, LH_PEER_LOST);
    secret_free(star.secret);
}

/* It has proven its key as the loss of the one before it becomes known, and says its hello then. */
static void who_comes_anew_as_a_job_ends_is_not_refused(void **state)
{
    static process_t zero, one;
    const frame_hello_t hello = {.version = FRAME_VERSION,
                                 .herald = HELLO_RANK,
                                 .layout = "..",
                                 .met = "",
                                 .tried = "",
                                 .rank = 1,
                                 .size = 2,
                                 .pid = 4711,
                                 .epoch = 1,
                                 .site = "osaka",
                                 .host = "o1"};
    const uint64_t silence_ns = 5000 * CONTROL_MS;
    star_t star;
    control_tls_t *tls;
    control_conn_t *anew;
    frame_t frame;
    text_t payload = {0};
    lh_status_t driven = LH_OK;
    int fd;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    process_of_tied(&star, &zero, 0);
    process_of_tied(&star, &one, 1);
    const pid_t pid = process_start(&one);
    (void)rank_open_thread(&zero.run);
    if (zero.run.status != LH_OK) FAIL_TEST("rank 0: %s\n", zero.run.reason);
    assert_int_equal(control_tls_new(star.secret, &tls), LH_OK);
    const uint64_t late = sys()->now_ns() + silence_ns;
    assert_int_equal(control_dial("127.0.0.1", star.port, late, silence_ns, &fd), LH_OK);
    assert_int_equal(conn_new(tls, fd, 1, FRAME_LARGE, &anew), LH_OK);
    while (!conn_is_proven(anew)) {
        assert_int_equal(conn_drive(anew), LH_OK);
        (void)usleep(1000);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(fails_within(zero.run.control, 20));
    frame_write_hello(&payload, &hello);
    conn_put(anew, FRAME_HELLO, &payload);
    text_free(&payload);
    while (driven == LH_OK) { /* until rank 0 ends it */
        driven = conn_drive(anew);
        while (conn_next(anew, &frame) == LH_OK)
            assert_int_not_equal(frame.type, FRAME_REFUSE);
        (void)usleep(1000);
    }
    (void)rank_close_thread(&zero.run);
    conn_free(anew);
    control_tls_free(tls);
    secret_free(star.secret);
}

/* It has waited as long as [launch] quorum_timeout says, and its launcher can tell that from a loss. */
static void has_waited_in_vain(const process_t *p, const control_culprit_t *culprit,
                               const char *missing)
{
    assert_int_equal(p->run.status, LH_TIMED_OUT);
    assert_int_equal(culprit->status, LH_TIMED_OUT);
    assert_int_equal(atomic_load(&p->told.epoch), 0);
    if (strstr(p->run.reason, "in vain for 1.0 s ([launch] quorum_timeout); not here: ") == NULL ||
        strstr(p->run.reason, missing) == NULL)
        FAIL_TEST("it says: %s\n", p->run.reason);
}

/* t1 is lost with half of the ranks. o1 and k1 wait together, and say for whom and what to do; then both
 * end, the one that leads and the one that has come to it. */
static void who_can_not_lead_ends_after_quorum_timeout(void **state)
{
    static process_t o1, k1;
    static control_culprit_t of_o1, of_k1;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &o1, &halves, 1, "...", 4);
    process_elects(&o1, true);
    o1.run.how.join_ns = 3000 * CONTROL_MS; /* k1 has come by then */
    o1.run.how.culprit = &of_o1;
    process_of(&star, &k1, &halves, 2, "...", 4);
    process_elects(&k1, false);
    k1.run.how.culprit = &of_k1;
    FILE *said = listen_to_logs();
    begin(&o1);
    until_it_listens(&star, "127.0.0.2");
    begin(&k1);
    end(&o1);
    end(&k1);
    was_logged(said, "so they wait; of two halves [launch] prefer names the one that goes on; not "
                     "here: tokyo/t1; if it is sure that nobody trains there, take them out of "
                     "[site.*] and start with --resume on all others");
    has_waited_in_vain(&o1, &of_o1, "; not here: tokyo/t1; ");
    has_waited_in_vain(&k1, &of_k1, "; not here: tokyo/t1; ");
    secret_free(star.secret);
}

/* The other half: rank 0 is there, and rank 1 with it. */
static void rank_0_without_a_majority_ends_after_quorum_timeout(void **state)
{
    static process_t zero, one;
    static control_culprit_t of_zero, of_one;
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &zero, &halves, 0, "...", 4);
    zero.run.how.join_ns = 1500 * CONTROL_MS;
    zero.run.how.culprit = &of_zero;
    process_of(&star, &one, &halves, 0, "...", 4);
    one.run.how.rank = 1;
    one.run.how.culprit = &of_one;
    begin(&zero);
    begin(&one);
    end(&zero);
    end(&one);
    has_waited_in_vain(&zero, &of_zero, "; not here: osaka/o1, kyoto/k1; ");
    has_waited_in_vain(&one, &of_one, "; not here: osaka/o1, kyoto/k1; ");
    secret_free(star.secret);
}

/* As half of a job waits so, a machine of it is asked to stop: who leads hears of it from a herald, and both end. */
static void a_stop_is_told_where_others_lead(void **state)
{
    static const char sentence[] = "kyoto/k1 was asked to stop while no step was under way";
    static process_t o1, k1;
    control_asked_t asked = {.what = CONTROL_ASKS_STOP};
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &o1, &halves, 1, "...", 4);
    process_elects(&o1, true);
    o1.run.how.join_ns = 20000 * CONTROL_MS;
    process_of(&star, &k1, &halves, 2, "...", 4);
    process_elects(&k1, false);
    k1.run.how.asked = &asked;
    begin(&o1);
    until_it_listens(&star, "127.0.0.2");
    begin(&k1);
    end_soon(&o1, "o1 waits on");
    end_soon(&k1, "k1 waits on");
    assert_int_equal(o1.run.status, STATUS_STOPPED);
    assert_string_equal(o1.run.reason, sentence);
    assert_int_equal(k1.run.status, STATUS_STOPPED);
    assert_string_equal(k1.run.reason, sentence);
    assert_false(k1.told.over);
    secret_free(star.secret);
}

/* Rank 0 waits for o1, and its machine is asked to stop: the spare's launcher ends as with a job that is over. */
static void a_spare_hears_of_a_stop_as_of_the_end(void **state)
{
    static process_t zero, spare;
    control_asked_t asked = {.what = CONTROL_ASKS_STOP};
    star_t star;
    (void)state;
    star_without_zero(&star);
    process_of(&star, &zero, &spared, 0, "..", 1);
    process_of(&star, &spare, &spared, 2, "..", 1);
    zero.members.met = spare.members.met = "";
    zero.run.how.asked = &asked;
    begin(&zero);
    begin(&spare);
    end_soon(&zero, "rank 0 waits on");
    end_soon(&spare, "the spare waits on");
    assert_int_equal(zero.run.status, STATUS_STOPPED);
    assert_string_equal(zero.run.reason, "tokyo/t1 was asked to stop while no step was under way");
    assert_true(spare.told.over);
    secret_free(star.secret);
}

static void *keep_door(void *how)
{
    char sentence[CONTROL_STOP_TEXT];
    bool elsewhere;
    const lh_status_t status = control_door_keep(how, sentence, &elsewhere);
    return status == LH_OK ? NULL : how;
}

/* The launcher of rank 0's machine was started anew and has stages to run: others may go on meanwhile. */
static void who_elects_goes_past_a_door(void **state)
{
    static process_t o1;
    control_asked_t asked = {0};
    star_t star;
    pthread_t door;
    void *failed = NULL;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    control_door_how_t how = {.job = &halves,
                              .listener = star.listener,
                              .secret = star.secret,
                              .site = "tokyo",
                              .host = "t1",
                              .asked = &asked};
    (void)pthread_create(&door, NULL, keep_door, &how);
    process_of(&star, &o1, &halves, 1, "...", 4);
    process_elects(&o1, false);
    o1.run.how.join_ns = 20000 * CONTROL_MS;
    begin(&o1);
    end_soon(&o1, "o1 waits at the door");
    assert_int_equal(o1.run.status, LH_UNREACHABLE);
    assert_string_equal(o1.run.reason, "no machine before this one is there");
    atomic_store(&asked.what, CONTROL_ASKS_PASS);
    (void)pthread_join(door, &failed);
    assert_null(failed);
    secret_free(star.secret);
}

/* Nobody may go on without rank 0's machine, but for its spare, which is lost with it. */
static void who_can_not_go_on_without_rank_0_says_so(void **state)
{
    static process_t o1;
    static control_culprit_t of_o1;
    job_t whole = spared;
    star_t star;
    (void)state;
    whole.launch.go_on_with = GO_ON_NONE;
    whole.launch.quorum_timeout_ns = 1000 * CONTROL_MS;
    star_without_zero(&star);
    process_of(&star, &o1, &whole, 1, "..", 4);
    process_elects(&o1, true);
    o1.run.how.culprit = &of_o1;
    FILE *said = listen_to_logs();
    begin(&o1);
    end(&o1);
    was_logged(said, "rank 0 was not reached, and neither spares nor [launch] go_on_with let those "
                     "that have come go on without whoever is missing, so they wait; not here: "
                     "tokyo/t1; ");
    has_waited_in_vain(&o1, &of_o1, "; not here: tokyo/t1; ");
    secret_free(star.secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_back_is_told_and_taken_in),
        cmocka_unit_test(a_herald_hears_that_the_job_is_over),
        cmocka_unit_test(a_herald_that_differs_is_refused),
        cmocka_unit_test(a_herald_hears_of_an_end_at_once_before_rank_0_has_ended),
        cmocka_unit_test(half_of_a_job_waits_for_the_other),
        cmocka_unit_test(another_machine_leads),
        cmocka_unit_test(rank_0_on_a_spare_goes_before_who_elects),
        cmocka_unit_test(a_spare_that_has_forgotten_that_it_leads_is_told),
        cmocka_unit_test(without_most_a_spare_is_not_told_that_it_leads),
        cmocka_unit_test(a_spare_that_leads_and_lacks_ranks_says_so),
        cmocka_unit_test(an_old_leader_hears_of_the_new_one),
        cmocka_unit_test(an_old_leader_hears_of_a_spare_in_its_place),
        cmocka_unit_test(an_old_leader_calls_nobody_back),
        cmocka_unit_test(who_resumes_and_remembers_nothing_waits_for_all),
        cmocka_unit_test(a_witness_breaks_a_tie),
        cmocka_unit_test(who_is_left_out_has_its_vote_behind_the_last_rank),
        cmocka_unit_test(who_comes_anew_to_a_job_that_runs_is_not_refused),
        cmocka_unit_test(who_comes_anew_as_a_job_ends_is_not_refused),
        cmocka_unit_test(who_can_not_lead_ends_after_quorum_timeout),
        cmocka_unit_test(rank_0_without_a_majority_ends_after_quorum_timeout),
        cmocka_unit_test(a_stop_is_told_where_others_lead),
        cmocka_unit_test(a_spare_hears_of_a_stop_as_of_the_end),
        cmocka_unit_test(who_elects_goes_past_a_door),
        cmocka_unit_test(who_can_not_go_on_without_rank_0_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
