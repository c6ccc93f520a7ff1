/* figures_test.c - the figures of a made-up run: every sample has its type before it, values are those
 * of the state, and names from outside stay inside of their quotes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <watch/figures.h>
#include <watch/scrape.h>

#include <cmocka.h>

static probe_pair_t links[] = {
    {.site = {"tokyo", "osaka"},
     .figures = {.measured_s = 1,
                 .round_trip_ns = 8000000,
                 .rate = {125000000, 62500000},
                 .loss = {0.001, -1}}},
    {.site = {"tokyo", "kobe"}}, /* not measured */
};

static world_rank_t ranks[] = {{.site = 0, .site_name = "tokyo"},
                               {.site = 1, .site_name = "osaka"}};
static uint32_t by_site[] = {0, 1}, site_begin[] = {0, 1, 2};
static const world_t world = {
    .row = {.size = 2, .sites = 2}, .ranks = ranks, .by_site = by_site, .site_begin = site_begin};

static void make(run_state_t *s, run_start_t *start)
{
    *start = (run_start_t){.name = "a \"run\"\\\n\x1b",
                           .model = "llama",
                           .steps = 1000,
                           .ranks = 4,
                           .sites = 2,
                           .first_step = 40,
                           .tokens_per_step = 100,
                           .links = links,
                           .link_count = 2,
                           .world = &world,
                           .transports = {[LH_LINK_WAN] = "tcp"},
                           .security = {[LH_LINK_WAN] = "private"},
                           .cards = {[LH_LINK_WAN] = "eth0, eth1"},
                           .flops_per_step = 1e9,
                           .peak_flops = 1e10};
    *s = (run_state_t){.restarts = 2};
    run_state_begin(s, start);
    for (uint64_t step = 41; step <= 44; step++) {
        const step_report_t r = {
            .step = step,
            .loss = 2.5,
            .applied = step != 43,
            .seconds = 0.5,
            .part_s = {[PART_COMPUTE] = 0.25},
            .exposed_s = {[LH_LINK_WAN] = 0.125},
            .least_exposed_s = 0.0625,
            .flows = {{.site = 1,
                       .sent = step * 1000,
                       .retransmitted = 3,
                       .loss = 0.25,
                       .packets = 1e6,
                       .round_trip_ns = 16000000}},
            .flow_count = 1,
            .borders =
                {{.from = 0, .to = 1, .sent = step * 4000, .round_trip_ns = 16000000, .loss = 0.5},
                 {.from = 1, .to = 0, .sent = step * 3000, .loss = -1}},
            .border_count = 2,
            .tokens = step * 100,
            .tokens_per_s = 200};
        run_state_step(s, &r);
    }
    run_state_saved(s, &(save_report_t){.step = 44, .path = "x", .committed = true});
    run_state_saved(s,
                    &(save_report_t){.step = 44, .path = "x", .reason = "full", .has_room = true});
    run_state_evaluated(s, &(evaluation_report_t){.step = 40, .loss = 3});
}

/* The sample's value as it stands; NULL: there is none. */
static const char *sample(const char *page, const char *name)
{
    char begin[512];
    (void)snprintf(begin, sizeof(begin), "\nlonghaul_%s} ", name);
    const char *at = strstr(page, begin);
    return at == NULL ? NULL : at + strlen(begin);
}

static void has(const char *page, const char *name, const char *labels, const char *value)
{
    char full[256], line[64];
    (void)snprintf(full, sizeof(full), "%s{run=\"a \\\"run\\\"\\\\  \"%s", name, labels);
    const char *at = sample(page, full);
    if (at == NULL) fail_msg("%s is missing in\n%s", full, page);
    (void)snprintf(line, sizeof(line), "%s\n", value);
    if (strncmp(at, line, strlen(line)) != 0) fail_msg("%s is %.20s, not %s", full, at, value);
}

static void values_are_those_of_the_state(void **state)
{
    (void)state;
    run_state_t s;
    run_start_t start;
    const lateness_t late = {.count = 1};
    text_t page = {0};
    make(&s, &start);
    figures_write(&s, &late, &start, 4096, &page);
    assert_int_equal(text_status(&page), LH_OK);
    has(page.data, "step", "", "44");
    has(page.data, "planned_steps", "", "1000");
    has(page.data, "loss", "", "2.5");
    has(page.data, "tokens", "", "4400");
    has(page.data, "tokens_total", "", "400"); /* of four steps */
    has(page.data, "tokens_per_second", "", "200");
    has(page.data, "steps_seconds_total", "", "2");
    has(page.data, "part_seconds_total", ",part=\"compute\"", "1");
    has(page.data, "part_seconds_total", ",part=\"save\"", "0");
    has(page.data, "exposed_seconds_total", ",link=\"wan\"", "0.5");
    has(page.data, "least_exposed_seconds_total", "", "0.25");
    has(page.data, "left_seconds", "", "478");
    has(page.data, "refused_steps_total", "", "1");
    has(page.data, "restarts_total", "", "2");
    has(page.data, "saves_total", ",result=\"committed\"", "1");
    has(page.data, "saves_total", ",result=\"failed\"", "1");
    has(page.data, "saved_step", "", "44");
    has(page.data, "evaluation_loss", "", "3");
    has(page.data, "free_bytes", "", "4096");
    has(page.data, "checkpoint_free_bytes", "", "0");
    has(page.data, "running", "", "1");
    has(page.data, "step_seconds", "", "0.5");
    has(page.data, "peak_ratio", "",
        "0.20000000000000001"); /* 1e9 FLOPs in 0.5 s of 1e10 a second */
    has(page.data, "transport_info",
        ",link=\"wan\",transport=\"tcp\",security=\"private\",cards=\"eth0, eth1\"", "1");
    assert_null(strstr(page.data, "link=\"site\",transport"));
    has(page.data, "link_bytes_per_second", ",from=\"tokyo\",to=\"osaka\"", "125000000");
    has(page.data, "link_bytes_per_second", ",from=\"osaka\",to=\"tokyo\"", "62500000");
    has(page.data, "link_round_trip_seconds", ",from=\"tokyo\",to=\"osaka\"",
        "0.0080000000000000002");
    has(page.data, "link_sent_bytes_total", ",from=\"tokyo\",to=\"osaka\"", "44000");
    has(page.data, "link_retransmitted_bytes_total", ",from=\"tokyo\",to=\"osaka\"", "3");
    has(page.data, "link_now_loss_ratio", ",from=\"tokyo\",to=\"osaka\"", "0.25");
    has(page.data, "link_now_round_trip_seconds", ",from=\"tokyo\",to=\"osaka\"", "0.016");
    assert_null(strstr(page.data, "link_now_bytes_per_second")); /* nothing was sent long enough */
    has(page.data, "border_sent_bytes_total", ",from=\"tokyo\",to=\"osaka\"", "176000");
    has(page.data, "border_sent_bytes_total", ",from=\"osaka\",to=\"tokyo\"", "132000");
    has(page.data, "border_loss_ratio", ",from=\"tokyo\",to=\"osaka\"", "0.5");
    has(page.data, "border_round_trip_seconds", ",from=\"tokyo\",to=\"osaka\"", "0.016");
    assert_null(
        strstr(page.data, "border_round_trip_seconds{run=\"a \\\"run\\\"\\\\  \",from=\"osaka\""));
    /* A control plane alone knows of strangers; one way of the loss is not known, a link not at all. */
    assert_null(strstr(page.data, "strangers_total"));
    assert_null(strstr(page.data, "kobe"));
    assert_null(strstr(page.data, "loss_ratio{run=\"a \\\"run\\\"\\\\  \",from=\"osaka\""));
    assert_null(strstr(page.data, "nan"));
    text_free(&page);
}

/* Each line is a comment or a sample; each name has its two comments once, right before its samples. */
static void the_page_has_the_form_of_the_format(void **state)
{
    (void)state;
    run_state_t s;
    run_start_t start;
    const lateness_t late = {0};
    text_t page = {0};
    make(&s, &start);
    figures_write(&s, &late, &start, UINT64_MAX, &page);
    assert_null(strstr(page.data, "longhaul_free_bytes"));
    char name[64] = "", seen[8192] = "";
    char *rest = page.data;
    uint32_t samples = 0;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line != '\0';) {
        if (strncmp(line, "# HELP longhaul_", 16) == 0) {
            (void)snprintf(name, sizeof(name), " %.*s ", (int)strcspn(line + 7, " "), line + 7);
            assert_null(strstr(seen, name));
            (void)strncat(seen, name, sizeof(seen) - strlen(seen) - 1);
            continue;
        }
        const size_t length = strlen(name) - 2;
        if (strncmp(line, "# TYPE ", 7) == 0) {
            assert_memory_equal(line + 7, name + 1, length);
            const bool total = strncmp(name + 1 + length - 6, "_total", 6) == 0;
            assert_string_equal(line + 7 + length, total ? " counter" : " gauge");
            continue;
        }
        assert_memory_equal(line, name + 1, length);
        assert_int_equal(line[length], '{');
        samples++;
    }
    assert_true(samples > 30);
    text_free(&page);
}

static void a_run_without_a_step_has_no_figures_of_one(void **state)
{
    (void)state;
    run_state_t s = {0};
    text_t page = {0};
    const lateness_t late = {0};
    const run_start_t start = {.name = "n", .steps = 10, .ranks = 1};
    run_state_begin(&s, &start);
    figures_write(&s, &late, &start, UINT64_MAX, &page);
    for (const char *const *at =
             (const char *const[]){"_loss{", "tokens_total", "left_seconds", "exposed",
                                   "saved_step", "peak_ratio", "nan", NULL};
         *at != NULL; at++)
        assert_null(strstr(page.data, *at));
    assert_non_null(strstr(page.data, "longhaul_step{run=\"n\"} 0\n"));
    text_free(&page);
}

/* As a file of figures says of it for good; what its links do is over. */
static void a_run_that_has_ended_is_not_running(void **state)
{
    (void)state;
    run_state_t s;
    run_start_t start;
    text_t page = {0};
    const lateness_t late = {0};
    make(&s, &start);
    run_state_end(&s, &(run_end_t){.steps = 44});
    figures_write(&s, &late, &start, UINT64_MAX, &page);
    has(page.data, "running", "", "0");
    has(page.data, "step", "", "44");
    has(page.data, "saved_step", "", "44");
    assert_null(strstr(page.data, "link_sent_bytes_total"));
    assert_null(strstr(page.data, "border_sent_bytes_total"));
    text_free(&page);
}

static void addresses(void **state)
{
    (void)state;
    char host[SCRAPE_HOST];
    uint16_t port;
    static const char *const bad[] = {"",       "9400",     "a",    ":",    ":x",
                                      ":65536", "::1:9400", "a:-1", "[::1]"};
    assert_int_equal(scrape_address(":9400", host, &port), LH_OK);
    assert_true(host[0] == '\0' && port == 9400);
    assert_int_equal(scrape_address("[::1]:1", host, &port), LH_OK);
    assert_string_equal(host, "::1");
    assert_int_equal(scrape_address("t1.example.org:65535", host, &port), LH_OK);
    assert_string_equal(host, "t1.example.org");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(scrape_address(bad[i], host, &port), LH_INVALID);
}

static void requests(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        uint32_t what;
    } rows[] = {
        {"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", SCRAPE_PAGE},
        {"GET /metrics?a=b HTTP/1.0\n\n", SCRAPE_PAGE},
        {"HEAD /metrics HTTP/1.1\r\n\r\n", SCRAPE_HEAD},
        {"GET /metrics HTTP/1.1\r\nHost: a\r\n", SCRAPE_MORE},
        {"", SCRAPE_MORE},
        {"GET / HTTP/1.1\r\n\r\n", SCRAPE_OTHER},
        {"GET /metrics/ HTTP/1.1\r\n\r\n", SCRAPE_OTHER},
        {"POST /metrics HTTP/1.1\r\n\r\n", SCRAPE_METHOD},
        {"GET /metrics HTTP/2.0\r\n\r\n", SCRAPE_BAD},
        {"GET /metrics HTTP/1.\r\n\r\n", SCRAPE_BAD},
        {"GET /metrics\r\n\r\n", SCRAPE_BAD},
        {"\r\n\r\n", SCRAPE_BAD},
        {"\x16\x03\x01\n\n", SCRAPE_BAD},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (scrape_request(rows[i].bytes, strlen(rows[i].bytes)) != rows[i].what)
            fail_msg("%s", rows[i].bytes);
    char long_one[SCRAPE_BYTES];
    memset(long_one, 'a', sizeof(long_one));
    assert_int_equal(scrape_request(long_one, sizeof(long_one) - 1), SCRAPE_MORE);
    assert_int_equal(scrape_request(long_one, sizeof(long_one)), SCRAPE_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_state),
        cmocka_unit_test(the_page_has_the_form_of_the_format),
        cmocka_unit_test(a_run_without_a_step_has_no_figures_of_one),
        cmocka_unit_test(a_run_that_has_ended_is_not_running),
        cmocka_unit_test(addresses),
        cmocka_unit_test(requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
