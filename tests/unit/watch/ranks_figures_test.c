/* ranks_figures_test.c - figures of a job of several ranks: who has come to rank 0, and how many were not
 * let in. */
#include <unit/control/control_ranks.h>

#include <arpa/inet.h>
#include <sys/socket.h>

#include <watch/figures.h>

enum { STRANGERS = 3 };

/* Knocks with what no rank says, and waits until rank 0 has shut it out: from then on it is counted. */
static void be_a_stranger(uint16_t port)
{
    static const char words[] = "GET / HTTP/1.1\r\n\r\n";
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = 60};
    char bytes[512];
    const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s >= 0);
    assert_int_equal(connect(s, (const struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    (void)send(s, words, sizeof(words) - 1, MSG_NOSIGNAL);
    ssize_t got = 1;
    while (got > 0)
        got = recv(s, bytes, sizeof(bytes), 0); /* 0 or, where its words were not read, a reset */
    assert_true(got == 0 || errno == ECONNRESET);
    (void)close(s);
}

static void has(const text_t *page, const char *lines)
{
    if (strstr(page->data, lines) == NULL) FAIL_TEST("no\n%s\nin\n%s\n", lines, page->data);
}

static void figures_of(const control_t *control, uint32_t late, bool ended, text_t *page)
{
    run_state_t s = {0};
    const run_start_t start = {
        .name = "n", .steps = 10, .ranks = 2, .sites = 1, .control = control};
    const lateness_t who = {.count = late};
    run_state_begin(&s, &start);
    s.ended = ended;
    figures_write(&s, &who, &start, UINT64_MAX, page);
    assert_int_equal(text_status(page), LH_OK);
}

static void strangers_at_rank_0_are_counted(void **state)
{
    star_t star;
    text_t page = {0};
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    rank_run_t ranks[2] = {{.how = star_how(&star, 0, 2)}, {.how = star_how(&star, 1, 2)}};
    (void)pthread_create(&ranks[0].thread, NULL, rank_open_thread, &ranks[0]);
    for (uint32_t i = 0; i < STRANGERS; i++)
        be_a_stranger(star.port);
    (void)rank_open_thread(&ranks[1]);
    (void)pthread_join(ranks[0].thread, NULL);
    for (uint32_t i = 0; i < 2; i++)
        if (ranks[i].status != LH_OK) FAIL_TEST("rank %u: %s\n", i, ranks[i].reason);
    figures_of(ranks[0].control, 1, false, &page);
    has(&page, "# TYPE longhaul_strangers_total counter\nlonghaul_strangers_total{run=\"n\"} 3\n");
    has(&page, "# TYPE longhaul_late_ranks gauge\nlonghaul_late_ranks{run=\"n\"} 1\n");
    has(&page, "longhaul_control_bytes_total{run=\"n\",direction=\"received\"} ");
    assert_null(strstr(page.data, "direction=\"sent\"} 0\n"));
    assert_null(strstr(page.data, "direction=\"received\"} 0\n"));
    /* Behind its end a run asks its control plane nothing: that may be gone. */
    figures_of(ranks[0].control, 1, true, &page);
    assert_null(strstr(page.data, "strangers_total"));
    ranks_close(ranks, 2);
    secret_free(star.secret);
    text_free(&page);
}

/* Each rank has waited so long since its start; returns when rank 0 has heard of it. */
static void step_ends(rank_run_t *ranks, uint64_t step, const uint64_t waited_ns[2])
{
    control_member_t m = {.silent_ns = 0};
    for (uint32_t r = 0; r < 2; r++) {
        (void)control_member(ranks[0].control, r, &m);
        control_waited(ranks[r].control, waited_ns[r] - m.progress.waited_ns);
        control_progress(ranks[r].control, step, "a step");
    }
    for (uint32_t i = 0; i < 2000; i++) {
        if (control_member(ranks[0].control, 1, &m) && m.progress.step == step &&
            m.progress.waited_ns == waited_ns[1])
            return;
        (void)usleep(10000);
    }
    FAIL_TEST("rank 0 does not hear of step %u\n", (uint32_t)step);
}

/* As six seconds after the window of shares began. */
static bool is_slow(lateness_t *l)
{
    l->window_at = sys()->now_ns() - UINT64_C(6000000000);
    run_lateness_look(l);
    for (uint32_t i = 0; i < l->shown; i++)
        if (strstr(l->late[i].why, "slow: ") != NULL) return true;
    return false;
}

/* Of a step of 30 s one rank has waited 1 s less, 3 % of the time: all of it is told at once. */
static void a_long_step_makes_no_rank_slow(void **state)
{
    star_t star;
    lateness_t l;
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    rank_run_t ranks[2] = {{.how = star_how(&star, 0, 2)}, {.how = star_how(&star, 1, 2)}};
    ranks_open(ranks, 2);
    for (uint32_t i = 0; i < 2; i++)
        if (ranks[i].status != LH_OK) FAIL_TEST("rank %u: %s\n", i, ranks[i].reason);
    assert_int_equal(run_lateness_new(ranks[0].control, ranks[0].world, &l), LH_OK);
    step_ends(ranks, 7, (const uint64_t[2]){0, 0});
    run_lateness_look(&l); /* a window begins */
    step_ends(ranks, 8, (const uint64_t[2]){3000000000, 2000000000});
    assert_false(is_slow(&l));
    step_ends(ranks, 17, (const uint64_t[2]){3000000000, 2000000000}); /* of ten steps in all */
    assert_true(is_slow(&l));
    run_lateness_free(&l);
    ranks_close(ranks, 2);
    secret_free(star.secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_at_rank_0_are_counted),
        cmocka_unit_test(a_long_step_makes_no_rank_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
