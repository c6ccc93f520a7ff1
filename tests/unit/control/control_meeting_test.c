/* control_meeting_test.c - ranks that are to meet: one does not come, has no key, is there already, is shut out,
 * speaks another version, or is silent as behind a cut link. */
#include <unit/base/scratch_files.h>

#include <control/control_state.h>
#include <unit/control/control_ranks.h>

static void who_does_not_come_is_named(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    for (uint32_t i = 0; i < 3; i++) {
        ranks[i] = (rank_run_t){.how = star_how(&star, i, RANKS)};
        ranks[i].how.join_ns = UINT64_C(3000000000);
    }
    ranks_open(ranks, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(ranks[i].status, LH_TIMED_OUT);
        assert_string_equal(ranks[i].reason, "3 of 4 ranks have come in 3 s; missing: rank 3");
    }
    secret_free(star.secret);
}

/* Five seconds from the first look on, each five for a minute, and then each minute; a look that comes
 * late makes none up for. */
static void a_wait_is_told_often_and_then_seldom(void **state)
{
    const uint64_t second = 1000 * CONTROL_MS;
    control_wait_t w = {0};
    uint32_t told = 0, last = 0;
    (void)state;
    for (uint32_t s = 0; s <= 300; s++) {
        if (!control_wait_due(&w, 7 * second + s * second)) continue;
        if (s < 60) assert_int_equal(s, 5 * (told + 1));
        if (s > 60) assert_int_equal(s - last, 60);
        last = s;
        told++;
    }
    assert_int_equal(told, 12 + 4);
    assert_true(control_wait_due(&w, 1000 * second));
    assert_false(control_wait_due(&w, 1001 * second));
}

static void who_comes_without_the_key_is_counted(void **state)
{
    star_t star;
    rank_run_t ranks[2];
    secret_t *wrong;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    assert_int_equal(secret_random(&wrong), LH_OK);
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i] = (rank_run_t){.how = star_how(&star, i, 2)};
        ranks[i].how.join_ns = UINT64_C(3000000000);
    }
    ranks[1].how.secret = wrong;
    ranks_open(ranks, 2);
    assert_int_equal(ranks[1].status, LH_DENIED);
    assert_int_equal(ranks[0].status, LH_TIMED_OUT);
    assert_string_equal(ranks[0].reason,
                        "1 of 2 ranks have come in 3 s; missing: rank 1; 1 connection "
                        "did not prove to have the job's key");
    secret_free(wrong);
    secret_free(star.secret);
}

static void a_twin_is_refused_and_the_first_stays(void **state)
{
    static control_culprit_t of_twin;
    star_t star;
    rank_run_t ranks[RANKS + 1];
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    for (uint32_t i = 0; i < RANKS; i++)
        ranks[i] = (rank_run_t){.how = star_how(&star, i, RANKS)};
    for (uint32_t i = 0; i < 3; i++)
        (void)pthread_create(&ranks[i].thread, NULL, rank_open_thread, &ranks[i]);
    (void)usleep(2000000); /* the first one is there by then */
    rank_run_t *twin = &ranks[RANKS];
    *twin = (rank_run_t){.how = star_how(&star, 2, RANKS)};
    twin->how.culprit = &of_twin;
    FILE *said = listen_to_logs();
    (void)rank_open_thread(twin);
    assert_int_equal(twin->status, LH_MISMATCH);
    assert_non_null(strstr(twin->reason, "rank 2 on osaka/o1 is there already, as process "));
    assert_true(of_twin.told); /* so it leaves to rank 0 what is said of it */
    was_logged(said, "refused: rank 2 on osaka/o1 is there already, as process ");
    (void)rank_open_thread(&ranks[3]);
    for (uint32_t i = 0; i < 3; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, LH_OK);
    ranks_close(ranks, RANKS);
    secret_free(star.secret);
}

static const control_fact_t kept[] = {{"binary", "1f00"}, {"[train] batch", "8"}};
static const control_fact_t found_anew[] = {{"binary", "1f00"}, {"[train] batch", "16"}};

/* In epoch 3 of a job of two machines. Those of the second were started anew, or those of the first. */
static void come_again(const star_t *star, rank_run_t *ranks, bool first_is_new)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        const bool anew = (i < 2) == first_is_new;
        ranks[i] = (rank_run_t){.how = star_how(star, i, RANKS)};
        ranks[i].how.epoch = anew ? 1 : 3;
        ranks[i].how.stayed = !anew;
        ranks[i].how.facts = anew ? found_anew : kept;
        ranks[i].how.fact_count = 2;
    }
}

/* The others wait for one that fits. */
static void who_comes_anew_and_differs_is_refused_alone(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS], fitting[RANKS];
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    come_again(&star, ranks, false);
    for (uint32_t i = 0; i < RANKS; i++)
        (void)pthread_create(&ranks[i].thread, NULL, rank_open_thread, &ranks[i]);
    for (uint32_t i = 2; i < RANKS; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
        assert_int_equal(ranks[i].status, LH_MISMATCH);
        char expected[256];
        (void)snprintf(
            expected, sizeof(expected),
            "rank %u on osaka/o1 was started anew and differs from rank 0 on tokyo/t1, "
            "which has met the others before: it is refused\n[train] batch: 16, expected 8",
            i);
        assert_string_equal(ranks[i].reason, expected);
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_tryjoin_np(ranks[i].thread, NULL), EBUSY);
    come_again(&star, fitting, false);
    for (uint32_t i = 2; i < RANKS; i++) {
        fitting[i].how.facts = kept;
        (void)pthread_create(&fitting[i].thread, NULL, rank_open_thread, &fitting[i]);
    }
    for (uint32_t i = 2; i < RANKS; i++)
        (void)pthread_join(fitting[i].thread, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
        fitting[i] = ranks[i];
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        if (fitting[i].status != LH_OK) FAIL_TEST("rank %u: %s\n", i, fitting[i].reason);
        assert_int_equal(fitting[i].world->row.epoch, 3);
    }
    ranks_close(fitting, RANKS);
    secret_free(star.secret);
}

/* Fewer than half have stayed, or what they found is not the same, or rank 0 was started anew, be it by a launcher
 * that finds what those have found that stayed: it can't know. */
static void where_nobody_knows_who_is_right_all_are_refused(void **state)
{
    enum { FEW, NOT_ALIKE, WITHOUT_ZERO, ZERO_LIKE_THE_OTHERS, CASES };
    static const char *const batches[CASES] = {
        [FEW] = "8 on ranks 0-1 (tokyo/t1); 16 on ranks 2-3 (osaka/o1)",
        [NOT_ALIKE] = "8 on ranks 0-1 (tokyo/t1); 16 on ranks 2-3 (osaka/o1)",
        [WITHOUT_ZERO] = "16 on ranks 0-1 (tokyo/t1); 8 on ranks 2-3 (osaka/o1)",
        [ZERO_LIKE_THE_OTHERS] = "8 on ranks 0-2 (tokyo/t1); 16 on rank 3 (osaka/o1)"};
    for (uint32_t what = 0; what < CASES; what++) {
        star_t star;
        rank_run_t ranks[RANKS];
        char expected[160];
        (void)state;
        assert_int_equal(star_open(&star), LH_OK);
        come_again(&star, ranks, what == WITHOUT_ZERO);
        if (what == FEW) ranks[1].how.stayed = false;
        if (what == NOT_ALIKE) ranks[2].how.stayed = true;
        if (what == ZERO_LIKE_THE_OTHERS) {
            ranks[0].how.stayed = false;
            ranks[2].how.stayed = true;
            ranks[2].how.facts = kept;
        }
        ranks_open(ranks, RANKS);
        (void)snprintf(expected, sizeof(expected),
                       "ranks differ; nothing was started\n[train] batch: %s", batches[what]);
        for (uint32_t i = 0; i < RANKS; i++) {
            assert_int_equal(ranks[i].status, LH_MISMATCH);
            assert_string_equal(ranks[i].reason, expected);
        }
        secret_free(star.secret);
    }
}

/* Eight seconds of it are one from soon_from on: where the first keys are proved, which has 2 s, it is
 * time as it is. 0: none is yet. Behind soon_to it is as it was, where that is not 0: it must be set before it
 * is there, or the clock would go back. */
static _Atomic uint64_t soon_from, soon_to;

static uint64_t now_soon(void)
{
    const uint64_t now = sys_real.now_ns(), from = atomic_load(&soon_from);
    const uint64_t to = atomic_load(&soon_to);
    return from == 0 || now < from ? now : now + ((to != 0 && now > to ? to : now) - from) * 7;
}

/* The connection of a rank that has proven its key to who listens here, and has said its hello: it takes
 * itself for taken in. Nobody answers it. */
static control_conn_t *hear_a_hello(const star_t *star, control_tls_t *tls)
{
    control_conn_t *conn;
    frame_t hello;
    int fd;
    while (control_accept(star->listener, 0, &fd) != LH_OK)
        (void)usleep(1000);
    assert_int_equal(conn_new(tls, fd, CONN_NO_RANK, FRAME_SMALL, &conn), LH_OK);
    /* Its hello shows that it has seen the end of the handshake, too. */
    while (!conn_is_proven(conn) || conn_next(conn, &hello) == LH_AGAIN) {
        if (conn_drive(conn) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        (void)usleep(1000);
    }
    atomic_store(&soon_from, sys_real.now_ns());
    return conn;
}

/* As rank 0 does with a stranger whose time is over at the moment at which it proves its key, or so much
 * later. */
static void shut_one_out(const star_t *star, uint64_t hold_ns)
{
    control_tls_t *tls;
    assert_int_equal(control_tls_new(star->secret, &tls), LH_OK);
    control_conn_t *conn = hear_a_hello(star, tls);
    const uint64_t until = sys()->now_ns() + hold_ns;
    while (sys()->now_ns() < until)
        (void)usleep(1000);
    conn_free(conn);
    control_tls_free(tls);
}

static void who_is_shut_out_without_a_word_comes_again(void **state)
{
    star_t star;
    rank_run_t ranks[2];
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    for (uint32_t i = 0; i < 2; i++)
        ranks[i] = (rank_run_t){.how = star_how(&star, i, 2)};
    (void)pthread_create(&ranks[1].thread, NULL, rank_open_thread, &ranks[1]);
    shut_one_out(&star, 0);
    shut_one_out(&star, 0);
    (void)rank_open_thread(&ranks[0]);
    (void)pthread_join(ranks[1].thread, NULL);
    for (uint32_t i = 0; i < 2; i++)
        if (ranks[i].status != LH_OK) FAIL_TEST("%s\n", ranks[i].reason);
    ranks_close(ranks, 2);
    secret_free(star.secret);
}

/* It has waited for rank 0 as long as stages there take. Now that it was there, that is over. */
static void who_is_shut_out_and_finds_nobody_gives_up(void **state)
{
    star_t star;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    rank_run_t one = {.how = star_how(&star, 1, 2)};
    one.how.join_ns = UINT64_C(1000000000);
    one.how.patience_ns = UINT64_C(60000000000);
    const uint64_t begin = sys()->now_ns();
    (void)pthread_create(&one.thread, NULL, rank_open_thread, &one);
    shut_one_out(&star, 0);
    (void)close(star.listener);
    (void)pthread_join(one.thread, NULL);
    assert_true(seconds_since(begin) < 20);
    assert_int_equal(one.status, LH_TIMED_OUT);
    assert_non_null(strstr(one.reason, "rank 1 has not met rank 0 in 1 s: "));
    secret_free(star.secret);
}

/* So long are links silent below: for more than the 3 s that a site of its own has, and less than CUT_NS. */
static const uint64_t silent_ns = UINT64_C(5000000000), cut_ns = UINT64_C(60000000000);

static control_how_t how_over_a_cut(const star_t *star, uint32_t rank, uint32_t size)
{
    control_how_t how = star_how(star, rank, size);
    how.site = rank == 0 ? "tokyo" : "osaka";
    how.outage_ns = how.join_ns = cut_ns;
    return how;
}

/* Of osaka; once it has said its hello it is silent. NULL: it was not taken in. */
static control_conn_t *try_to_come(const star_t *star, control_tls_t *tls)
{
    const frame_hello_t hello = {.version = FRAME_VERSION,
                                 .herald = HELLO_RANK,
                                 .layout = "",
                                 .met = "",
                                 .tried = "",
                                 .rank = 1,
                                 .size = 3,
                                 .pid = 4711,
                                 .epoch = 1,
                                 .site = "osaka",
                                 .host = "o1"};
    const uint64_t begin = sys()->now_ns();
    control_conn_t *conn;
    frame_t frame;
    text_t payload = {0};
    int fd;
    assert_int_equal(control_dial("127.0.0.1", star->port, begin + cut_ns, cut_ns, &fd), LH_OK);
    assert_int_equal(conn_new(tls, fd, 1, FRAME_LARGE, &conn), LH_OK);
    frame_write_hello(&payload, &hello);
    conn_put(conn, FRAME_HELLO, &payload);
    text_free(&payload);
    while (conn_next(conn, &frame) == LH_AGAIN) {
        if (conn_drive(conn) != LH_OK) {
            conn_free(conn);
            return NULL;
        }
        (void)usleep(1000);
    }
    if (frame.type == FRAME_BEAT) return conn; /* its first heartbeat: it was taken in */
    conn_free(conn);
    return NULL;
}

static control_conn_t *come_and_be_silent(const star_t *star, control_tls_t *tls)
{
    control_conn_t *conn = try_to_come(star, tls);
    assert_non_null(conn);
    return conn;
}

/* It says goodbye once it is welcomed. */
static void be_welcomed_and_leave(control_conn_t *conn)
{
    text_t payload = {0};
    frame_t frame = {0};
    while (frame.type != FRAME_WELCOME) {
        const lh_status_t driven = conn_drive(conn);
        const lh_status_t cut = conn_next(conn, &frame);
        if (cut == LH_OK) continue;
        assert_int_equal(cut, LH_AGAIN);
        assert_int_equal(driven, LH_OK);
        (void)usleep(1000);
    }
    frame_write_notice(&payload, &(frame_notice_t){.status = LH_OK, .rank = 1, .reason = ""});
    conn_put(conn, FRAME_BYE, &payload);
    text_free(&payload);
    while (conn_unsent(conn) > 0)
        if (conn_drive(conn) != LH_OK) break;
}

/* Rank 2 comes late. Meanwhile rank 1, of another site, is silent as behind a cut link. */
static void a_cut_while_ranks_meet_is_waited_for_by_rank_0(void **state)
{
    star_t star;
    control_tls_t *tls;
    rank_run_t ranks[2];
    sys_t soon = *sys();
    (void)state;
    soon.now_ns = now_soon;
    atomic_store(&soon_from, 0);
    sys_use(&soon);
    assert_int_equal(star_open(&star), LH_OK);
    assert_int_equal(control_tls_new(star.secret, &tls), LH_OK);
    ranks[0] = (rank_run_t){.how = how_over_a_cut(&star, 0, 3)};
    ranks[1] = (rank_run_t){.how = how_over_a_cut(&star, 2, 3)};
    (void)pthread_create(&ranks[0].thread, NULL, rank_open_thread, &ranks[0]);
    control_conn_t *conn = come_and_be_silent(&star, tls);
    atomic_store(&soon_from, sys_real.now_ns());
    const uint64_t until = sys()->now_ns() + silent_ns;
    while (sys()->now_ns() < until)
        (void)usleep(1000);
    (void)pthread_create(&ranks[1].thread, NULL, rank_open_thread, &ranks[1]);
    be_welcomed_and_leave(conn);
    for (uint32_t i = 0; i < 2; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < 2; i++)
        if (ranks[i].status != LH_OK) FAIL_TEST("%s\n", ranks[i].reason);
    ranks_close(ranks, 2);
    sys_use(NULL);
    conn_free(conn);
    control_tls_free(tls);
    secret_free(star.secret);
}

/* Its machine was started anew behind a link that nobody here knows to be cut: the others need not meet again. */
static void who_comes_anew_while_it_is_silent_takes_its_place(void **state)
{
    star_t star;
    control_tls_t *tls;
    rank_run_t ranks[2];
    sys_t soon = *sys();
    (void)state;
    soon.now_ns = now_soon;
    atomic_store(&soon_from, 0);
    sys_use(&soon);
    assert_int_equal(star_open(&star), LH_OK);
    assert_int_equal(control_tls_new(star.secret, &tls), LH_OK);
    ranks[0] = (rank_run_t){.how = how_over_a_cut(&star, 0, 3)};
    ranks[1] = (rank_run_t){.how = how_over_a_cut(&star, 2, 3)};
    (void)pthread_create(&ranks[0].thread, NULL, rank_open_thread, &ranks[0]);
    control_conn_t *first = come_and_be_silent(&star, tls);
    const uint64_t from = sys_real.now_ns();
    atomic_store(&soon_to, from + silent_ns / 8); /* keys are proved once more behind it */
    atomic_store(&soon_from, from);
    while (sys()->now_ns() < from + silent_ns)
        (void)usleep(1000);
    /* Where this process stood still for a moment the first one's silence is counted anew. */
    control_conn_t *second = try_to_come(&star, tls);
    for (; second == NULL; second = try_to_come(&star, tls))
        (void)usleep(100000);
    (void)pthread_create(&ranks[1].thread, NULL, rank_open_thread, &ranks[1]);
    be_welcomed_and_leave(second);
    for (uint32_t i = 0; i < 2; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < 2; i++)
        if (ranks[i].status != LH_OK) FAIL_TEST("%s\n", ranks[i].reason);
    ranks_close(ranks, 2);
    sys_use(NULL);
    atomic_store(&soon_to, 0);
    conn_free(first);
    conn_free(second);
    control_tls_free(tls);
    secret_free(star.secret);
}

/* Rank 0 in tokyo, rank 1 in a site of that name, as the INI tells it before they meet. */
static world_t *plan_of_two(const char *site)
{
    world_t *plan;
    assert_int_equal(world_new(1, 2, &plan), LH_OK);
    (void)snprintf(plan->ranks[0].site_name, WORLD_SITE_NAME, "tokyo");
    (void)snprintf(plan->ranks[1].site_name, WORLD_SITE_NAME, "%s", site);
    world_number(plan);
    return plan;
}

/* They know by the plan that rank 0 is in another site, or do not know where it is. */
static void a_cut_while_ranks_meet_is_waited_for_by_others(void **state)
{
    (void)state;
    for (uint32_t planned = 0; planned < 2; planned++) {
        star_t star;
        rank_run_t ranks[2];
        sys_t soon = *sys();
        world_t *plan = planned == 1 ? plan_of_two("osaka") : NULL;
        soon.now_ns = now_soon;
        atomic_store(&soon_from, 0);
        sys_use(&soon);
        assert_int_equal(star_open(&star), LH_OK);
        for (uint32_t i = 0; i < 2; i++)
            ranks[i] = (rank_run_t){.how = how_over_a_cut(&star, i, 2)};
        ranks[1].how.plan = plan;
        (void)pthread_create(&ranks[1].thread, NULL, rank_open_thread, &ranks[1]);
        shut_one_out(&star, silent_ns);
        (void)rank_open_thread(&ranks[0]);
        (void)pthread_join(ranks[1].thread, NULL);
        for (uint32_t i = 0; i < 2; i++)
            if (ranks[i].status != LH_OK) FAIL_TEST("%s\n", ranks[i].reason);
        ranks_close(ranks, 2);
        sys_use(NULL);
        world_free(plan);
        secret_free(star.secret);
    }
}

/* No link between sites is there that could be cut: it takes rank 0 for lost as it does behind the welcome. */
static void a_rank_0_of_the_same_site_that_is_silent_while_ranks_meet_is_lost(void **state)
{
    star_t star;
    control_tls_t *tls;
    sys_t soon = *sys();
    world_t *plan = plan_of_two("tokyo");
    (void)state;
    soon.now_ns = now_soon;
    atomic_store(&soon_from, 0);
    sys_use(&soon);
    assert_int_equal(star_open(&star), LH_OK);
    assert_int_equal(control_tls_new(star.secret, &tls), LH_OK);
    rank_run_t one = {.how = how_over_a_cut(&star, 1, 2)};
    one.how.site = "tokyo";
    one.how.plan = plan;
    (void)pthread_create(&one.thread, NULL, rank_open_thread, &one);
    control_conn_t *conn = hear_a_hello(&star, tls);
    const uint64_t begin = sys()->now_ns();
    (void)pthread_join(one.thread, NULL); /* the connection stays meanwhile */
    assert_true(sys()->now_ns() - begin < cut_ns * 3 / 4);
    assert_int_equal(one.status, LH_PEER_LOST);
    assert_non_null(strstr(one.reason, "silent for "));
    sys_use(NULL);
    conn_free(conn);
    control_tls_free(tls);
    world_free(plan);
    (void)close(star.listener);
    secret_free(star.secret);
}

/* Its hello has other fields behind the first three. */
static void who_speaks_another_version_is_told_so(void **state)
{
    star_t star;
    control_tls_t *tls;
    control_conn_t *conn;
    frame_t frame = {0};
    frame_notice_t notice;
    text_t hello = {0};
    int fd;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    rank_run_t zero = {.how = star_how(&star, 0, 2)}, one = {.how = star_how(&star, 1, 2)};
    (void)pthread_create(&zero.thread, NULL, rank_open_thread, &zero);
    frame_put_u32(&hello, FRAME_VERSION + 1);
    frame_put_u32(&hello, 1);
    frame_put_u32(&hello, 2);
    frame_put_u64(&hello, 4711);
    FILE *said = listen_to_logs();
    const uint64_t end = sys()->now_ns() + UINT64_C(30000000000);
    assert_int_equal(control_dial("127.0.0.1", star.port, end, 0, &fd), LH_OK);
    assert_int_equal(control_tls_new(star.secret, &tls), LH_OK);
    assert_int_equal(conn_new(tls, fd, 1, FRAME_LARGE, &conn), LH_OK);
    while (conn_drive(conn) == LH_OK && !conn_is_proven(conn))
        (void)usleep(1000);
    conn_put(conn, FRAME_HELLO, &hello);
    while (conn_drive(conn) == LH_OK && sys()->now_ns() < end)
        (void)usleep(1000);
    while (frame.type != FRAME_REFUSE)
        assert_int_equal(conn_next(conn, &frame), LH_OK);
    assert_int_equal(frame_read_notice(&frame, &notice), LH_OK);
    assert_int_equal(notice.status, LH_MISMATCH);
    assert_non_null(strstr(notice.reason, "rank 1 speaks version "));
    was_logged(said, "refused: rank 1 speaks version ");
    conn_free(conn);
    control_tls_free(tls);
    text_free(&hello);
    (void)rank_open_thread(&one);
    (void)pthread_join(zero.thread, NULL);
    assert_int_equal(zero.status, LH_OK);
    rank_run_t both[2] = {zero, one};
    ranks_close(both, 2);
    secret_free(star.secret);
}

/* Rank 0's machine is lost, and another job has its port. */
static void another_key_is_waited_out_by_a_rank_that_has_met(void **state)
{
    star_t star;
    secret_t *others;
    rank_run_t zero, one;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    assert_int_equal(secret_random(&others), LH_OK);
    zero = (rank_run_t){.how = star_how(&star, 0, 2)};
    zero.how.secret = others;
    zero.how.join_ns = 4000 * CONTROL_MS; /* the other one has given up long before */
    one = (rank_run_t){.how = star_how(&star, 1, 2)};
    one.how.epoch = 2;
    one.how.join_ns = 400 * CONTROL_MS;
    (void)pthread_create(&zero.thread, NULL, rank_open_thread, &zero);
    (void)rank_open_thread(&one);
    assert_int_equal(one.status, LH_TIMED_OUT);
    assert_non_null(strstr(one.reason, "rank 1 has not met rank 0 in "));
    assert_non_null(strstr(one.reason, "does not have this job's key"));
    (void)pthread_join(zero.thread, NULL);
    assert_int_equal(zero.status, LH_TIMED_OUT);
    secret_free(others);
    secret_free(star.secret);
}

static void another_key_is_refused_at_once(void **state)
{
    star_t star;
    secret_t *wrong;
    rank_run_t zero, one;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    assert_int_equal(secret_random(&wrong), LH_OK);
    zero = (rank_run_t){.how = star_how(&star, 0, 2)};
    one = (rank_run_t){.how = star_how(&star, 1, 2)};
    one.how.secret = wrong;
    (void)pthread_create(&zero.thread, NULL, rank_open_thread, &zero);
    const uint64_t begin = sys()->now_ns();
    (void)rank_open_thread(&one);
    assert_true(seconds_since(begin) < 10); /* it would wait for 20 */
    assert_int_equal(one.status, LH_DENIED);
    assert_non_null(strstr(one.reason, "does not have this job's key"));
    one.how.secret = star.secret;
    (void)rank_open_thread(&one);
    (void)pthread_join(zero.thread, NULL);
    assert_int_equal(one.status, LH_OK);
    assert_int_equal(zero.status, LH_OK);
    control_counts_t counts;
    control_counts(zero.control, &counts);
    assert_int_equal(counts.strangers, 1);
    assert_int_equal(counts.handshakes, 1);
    rank_run_t both[2] = {zero, one};
    ranks_close(both, 2);
    secret_free(wrong);
    secret_free(star.secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(a_wait_is_told_often_and_then_seldom),
        cmocka_unit_test(a_twin_is_refused_and_the_first_stays),
        cmocka_unit_test(who_comes_anew_and_differs_is_refused_alone),
        cmocka_unit_test(where_nobody_knows_who_is_right_all_are_refused),
        cmocka_unit_test(who_comes_without_the_key_is_counted),
        cmocka_unit_test(who_is_shut_out_without_a_word_comes_again),
        cmocka_unit_test(who_is_shut_out_and_finds_nobody_gives_up),
        cmocka_unit_test(a_cut_while_ranks_meet_is_waited_for_by_rank_0),
        cmocka_unit_test(who_comes_anew_while_it_is_silent_takes_its_place),
        cmocka_unit_test(a_cut_while_ranks_meet_is_waited_for_by_others),
        cmocka_unit_test(a_rank_0_of_the_same_site_that_is_silent_while_ranks_meet_is_lost),
        cmocka_unit_test(who_speaks_another_version_is_told_so),
        cmocka_unit_test(another_key_is_refused_at_once),
        cmocka_unit_test(another_key_is_waited_out_by_a_rank_that_has_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
