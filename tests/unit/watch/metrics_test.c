/* metrics_test.c - metrics.jsonl: what a resumed run keeps, and what the report reads back. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <unit/full_disk.h>
#include <watch/chart.h>
#include <watch/live.h>
#include <watch/metrics.h>
#include <watch/progress.h>
#include <watch/report.h>

#include <cmocka.h>

static char folder[] = "/tmp/metrics_test_XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return folder_remove(folder) != LH_OK;
}

static run_start_t start_of_20(void)
{
    return (run_start_t){.name = "n",
                         .folder = folder,
                         .model = "m",
                         .optimizer = "o",
                         .rule = "r",
                         .device_name = "cpu",
                         .precision = "f32",
                         .steps = 20};
}

static void write_steps(uint64_t first, uint64_t last, double loss)
{
    metrics_t m;
    assert_int_equal(metrics_open(&m, folder, &(run_start_t){.first_step = first}), LH_OK);
    for (uint64_t i = first + 1; i <= last; i++) {
        const step_report_t s = {
            .step = i, .loss = loss, .tokens = 100 * i, .seconds = 0.5, .applied = true};
        metrics_step(&m, &s);
    }
    metrics_close(&m);
}

static void a_resumed_run_drops_the_lines_that_a_crash_left_behind(void **state)
{
    (void)state;
    metrics_point_t *points;
    size_t count;
    write_steps(0, 15, 2);
    write_steps(10, 20, 1); /* the checkpoint was of step 10 */
    assert_int_equal(metrics_read(folder, &points, &count), LH_OK);
    assert_int_equal(count, 20);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(points[i].step, i + 1);
        assert_true(points[i].loss == (i < 10 ? 2 : 1));
    }
    mem_free(points);
}

static void a_file_that_is_too_long_to_be_read_is_gone_on_with(void **state)
{
    (void)state;
    const off_t longer = (off_t)(UINT64_C(1) << 30) + 1;
    struct stat st;
    char *path = path_join(folder, "metrics.jsonl");
    assert_non_null(path);
    write_steps(0, 1, 2);
    assert_int_equal(truncate(path, longer), 0); /* a hole */
    write_steps(10, 12, 1);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > longer);
    assert_int_equal(unlink(path), 0);
    mem_free(path);
}

static void tell_restart(uint64_t count, uint64_t first_step)
{
    metrics_t m;
    const run_start_t start = {
        .first_step = first_step, .restarts = count, .restart_reason = "rank 3 \"on\" o1"};
    assert_int_equal(metrics_open(&m, folder, &start), LH_OK);
    metrics_restart(&m, &start);
    metrics_close(&m);
}

/* Before its first checkpoint and behind one; a fresh run knows of none. */
static void restarts_stay_and_are_no_points(void **state)
{
    (void)state;
    metrics_point_t *points;
    size_t count;
    char *text, *path = path_join(folder, "metrics.jsonl");
    write_steps(0, 3, 2);
    tell_restart(1, 0);
    assert_int_equal(metrics_read(folder, &points, &count), LH_OK);
    assert_int_equal(count, 0);
    mem_free(points);
    tell_restart(2, 0);
    tell_restart(3, 10);
    tell_restart(4, 5); /* the one before went on after a step that is lost since */
    assert_int_equal(file_read(path, 1 << 20, &text, &count), LH_OK);
    const char *at = text;
    for (uint32_t i = 1; i <= 4; i++) {
        char row[96];
        (void)snprintf(row, sizeof(row),
                       "\"restart\": {\"count\": %u, \"reason\": \"rank 3 \\\"on\\\" o1\"}", i);
        at = strstr(at, row);
        assert_non_null(at);
    }
    mem_free(text);
    write_steps(0, 1, 1);
    assert_int_equal(file_read(path, 1 << 20, &text, &count), LH_OK);
    assert_null(strstr(text, "restart"));
    mem_free(text);
    mem_free(path);
}

static uint64_t leap_day(void)
{
    return UINT64_C(1709251199007) * 1000000;
}

static void a_line_of_each_kind_has_its_time_of_day(void **state)
{
    static const char head[] = "{\"step\": 1, \"time\": \"2024-02-29T23:59:59.007Z\", \"";
    (void)state;
    metrics_t m;
    size_t length;
    char *text, *path = path_join(folder, "metrics.jsonl");
    const rank_memory_t memory = {.rank = 0};
    sys_t table = sys_real;
    table.wall_ns = leap_day;
    sys_use(&table);
    assert_int_equal(metrics_open(&m, folder, &(run_start_t){0}), LH_OK);
    const probe_pair_t links[] = {{.site = {"a", "b"}, .figures = {.measured_s = 1}},
                                  {.site = {"a", "c"}}};
    metrics_links(&m, &(run_start_t){.first_step = 1, .links = &links[1], .link_count = 1});
    metrics_links(&m, &(run_start_t){.first_step = 1, .links = links, .link_count = 2});
    metrics_step(&m, &(step_report_t){.step = 1, .loss = 1});
    metrics_evaluated(&m, &(evaluation_report_t){.step = 1, .loss = 1});
    metrics_saved(&m, &(save_report_t){.step = 1, .committed = true});
    const run_end_t end = {.steps = 1, .memory = &memory, .memory_count = 1};
    assert_int_equal(metrics_memory(&m, &end), LH_OK);
    metrics_close(&m);
    sys_use(NULL);
    assert_int_equal(file_read(path, 1 << 20, &text, &length), LH_OK);
    int lines = 0;
    for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1, lines++)
        assert_memory_equal(at, head, sizeof(head) - 1);
    assert_int_equal(lines, 5); /* a link that was not measured has none */
    assert_non_null(strstr(text, "\"links\": [{\"sites\": [\"a\", \"b\"]"));
    mem_free(text);
    metrics_point_t *points;
    size_t count;
    assert_int_equal(metrics_read(folder, &points, &count), LH_OK);
    assert_int_equal(count, 2);
    mem_free(points);
    mem_free(path);
}

/* A link that was tuned anew, of a name that has to be escaped. */
static link_change_t changed(uint64_t step)
{
    return (link_change_t){.site = {"a&b", "c"},
                           .step = step,
                           .rate = {100000000, 200000000},
                           .before = {.round_trip_ns = 10000000, .kept = {1, 1}},
                           .now = {.round_trip_ns = 30000000, .kept = {0.5, 1}, .loss = {0.001, 0}},
                           .why = TUNED_RATE | TUNED_TRIP | TUNED_LOSS,
                           .tuned = "window 1.5 MB"};
}

static void a_link_that_is_tuned_anew_is_told_with_what_it_was_before(void **state)
{
    static const char line[] =
        "\"retuned\": {\"sites\": [\"a&b\", \"c\"], \"why\": [\"rate\", \"round_trip\", \"loss\"], "
        "\"bytes_per_second\": [50000000, 200000000], \"round_trip_ns\": 30000000, "
        "\"loss\": [0.001, 0], \"before\": {\"bytes_per_second\": [100000000, 200000000], "
        "\"round_trip_ns\": 10000000, \"loss\": [0, 0]}, \"tuned\": \"window 1.5 MB\", \"text\": "
        "\"a&b-c: 0.4 Gb/s there instead of 0.8, 30.00 ms instead of 10.00, a loss of 1.0e-03 "
        "there "
        "instead of 0.0e+00 from step 1 on; window 1.5 MB\"}}\n";
    (void)state;
    enum { SHOWN = 16, CHANGES = 18 };
    metrics_t m;
    metrics_point_t *points;
    size_t count, length;
    char *text, *path = path_join(folder, "metrics.jsonl"),
                *page = path_join(folder, "report.html");
    write_steps(0, 1, 2);
    assert_int_equal(metrics_open(&m, folder, &(run_start_t){.first_step = 1}), LH_OK);
    for (uint64_t step = 1; step <= CHANGES; step++) {
        const link_change_t change = changed(step);
        metrics_retuned(&m, &change);
    }
    metrics_close(&m);
    assert_int_equal(file_read(path, 1 << 20, &text, &length), LH_OK);
    assert_non_null(strstr(text, line));
    mem_free(text);
    assert_int_equal(metrics_read(folder, &points, &count), LH_OK);
    assert_int_equal(count, 1); /* it is no point of a curve */
    mem_free(points);

    const probe_pair_t link = {.site = {"a&b", "c"}, .figures = {.measured_s = 1}};
    run_start_t start = start_of_20();
    start.sites = 2;
    start.links = &link;
    start.link_count = 1;
    const run_end_t end = {.steps = 1};
    assert_int_equal(report_write(folder, &start, &end), LH_OK);
    assert_int_equal(file_read(page, 1 << 24, &text, &length), LH_OK);
    assert_non_null(strstr(text, "(the last 16 of 18; metrics.jsonl has all)"));
    assert_null(strstr(text, "from step 2 on"));
    assert_non_null(strstr(text, "<li>a&amp;b-c: 0.4 Gb/s there instead of 0.8, "));
    size_t shown = 0;
    for (const char *at = text; (at = strstr(at, "<li>")) != NULL; at++)
        shown++;
    assert_int_equal(shown, SHOWN);
    mem_free(text);
    mem_free(path);
    mem_free(page);
}

/* Of 18 the last 16. */
static void restarts_are_a_table_of_the_report(void **state)
{
    enum { SHOWN = 16, MADE = 18 };
    (void)state;
    size_t length, rows = 0;
    char *text, reason[64], *page = path_join(folder, "report.html");
    run_start_t start = start_of_20();
    const run_end_t end = {.steps = 1};
    write_steps(0, 1, 2);
    start.restart_reason = reason;
    for (start.restarts = 1; start.restarts <= MADE; start.restarts++) {
        metrics_t m;
        (void)snprintf(reason, sizeof(reason), "rank %llu on a<b was lost",
                       (unsigned long long)start.restarts);
        start.first_step = 1;
        start.memory_step = start.restarts == MADE ? 1 : 0;
        assert_int_equal(metrics_open(&m, folder, &start), LH_OK);
        metrics_restart(&m, &start);
        metrics_close(&m);
    }
    start.restarts = MADE;
    assert_int_equal(report_write(folder, &start, &end), LH_OK);
    assert_int_equal(file_read(page, 1 << 24, &text, &length), LH_OK);
    const char *table = strstr(text, "<h2>Started again by the launcher</h2>");
    assert_non_null(table);
    assert_null(strstr(table, "rank 2 on"));
    assert_non_null(strstr(table, "<td class=\"n\">1</td><td>rank 3 on a&lt;b was lost</td>"));
    assert_non_null(
        strstr(table, "<td class=\"n\">1, in memory</td><td>rank 18 on a&lt;b was lost</td>"));
    assert_non_null(strstr(table, "The last 16 of 18; metrics.jsonl has all."));
    for (const char *at = table; (at = strstr(at, " on a&lt;b")) != NULL; at++)
        rows++;
    assert_int_equal(rows, SHOWN);
    mem_free(text);
    mem_free(page);
}

static void a_loss_that_is_not_finite_stays_valid_json(void **state)
{
    (void)state;
    metrics_point_t *points;
    size_t count;
    write_steps(0, 1, (double)NAN);
    assert_int_equal(metrics_read(folder, &points, &count), LH_OK);
    assert_int_equal(count, 1);
    assert_true(isnan(points[0].loss));
    mem_free(points);
}

static void a_full_disk_costs_whole_lines_and_only_while_it_is_full(void **state)
{
    (void)state;
    metrics_t m;
    metrics_point_t *points;
    size_t count, length;
    char *text, *path = path_join(folder, "metrics.jsonl");
    sys_t full = sys_real;
    full.write = write_while_space;
    sys_use(&full);
    assert_int_equal(metrics_open(&m, folder, &(run_start_t){0}), LH_OK);
    for (uint64_t i = 1; i <= 5; i++) {
        const step_report_t s = {.step = i, .loss = 1, .seconds = 0.5, .applied = true};
        space = i == 2 ? 30 : i == 3 ? 0 : SIZE_MAX;
        metrics_step(&m, &s);
    }
    assert_int_equal(m.file.lost, 2);
    metrics_close(&m);
    sys_use(NULL);
    assert_int_equal(file_read(path, 1 << 20, &text, &length), LH_OK);
    assert_int_equal(text[length - 1], '\n');
    assert_int_equal(metrics_read(folder, &points, &count), LH_OK);
    assert_int_equal(count, 3);
    assert_int_equal(points[0].step, 1);
    assert_int_equal(points[1].step, 4);
    assert_int_equal(points[2].step, 5);
    mem_free(points);
    mem_free(text);
    mem_free(path);
}

static int no_fsync(int fd)
{
    (void)fd;
    errno = EIO;
    return -1;
}

/* A rank writes it while others wait for that rank's end. */
static void the_report_waits_for_no_disk(void **state)
{
    (void)state;
    sys_t slow = sys_real;
    slow.fsync = no_fsync;
    const run_start_t start = start_of_20();
    const run_end_t end = {.steps = 1, .status = LH_PEER_LOST, .reason = "rank 1 was lost"};
    write_steps(0, 1, 3);
    sys_use(&slow);
    const lh_status_t status = report_write(folder, &start, &end);
    sys_use(NULL);
    assert_int_equal(status, LH_OK);
}

/* At which port figures are served that began to be as `said` was a sink of the log. */
static uint16_t port_of_figures(FILE *said)
{
    static const char words[] = "figures for Prometheus: port ";
    char text[2048] = "";
    assert_true(pread(fileno(said), text, sizeof(text) - 1, 0) > 0);
    const char *at = strstr(text, words);
    assert_non_null(at);
    return (uint16_t)strtoul(at + sizeof(words) - 1, NULL, 10);
}

/* For ThreadSanitizer: who serves figures renews what the report has just read. */
static void figures_are_served_beside_the_report(void **state)
{
    static const char asks[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    char address[] = "127.0.0.1:0", answer[16] = "", *page = path_join(folder, "report.html");
    const job_watch_t how = {.metrics = address, .report_ns = 1};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const run_start_t start = start_of_20();
    const run_end_t end = {.steps = 1};
    FILE *said = tmpfile();
    live_t *l;
    (void)state;
    assert_non_null(said);
    write_steps(0, 1, 2);
    (void)unlink(page);
    assert_int_equal(live_new(folder, &how, &l), LH_OK);
    log_also(fileno(said), "what was said");
    live_begin(l, &start);
    log_also(-1, "");
    to.sin_port = htons(port_of_figures(said));
    (void)fclose(said);
    for (uint32_t i = 0; i < 10000 && !file_exists(page); i++)
        (void)usleep(1000);
    assert_true(file_exists(page));
    const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(s, (struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(send(s, asks, sizeof(asks) - 1, MSG_NOSIGNAL), sizeof(asks) - 1);
    assert_int_equal(recv(s, answer, 12, MSG_WAITALL), 12);
    assert_string_equal(answer, "HTTP/1.1 200");
    (void)close(s);
    live_end(l, &end);
    live_free(l);
    mem_free(page);
}

static void the_report_escapes_what_it_prints(void **state)
{
    (void)state;
    char *page;
    size_t length;
    const run_start_t start = {.name = "<script>alert('x')</script>",
                               .folder = folder,
                               .model = "a&b",
                               .optimizer = "zero0",
                               .rule = "rules:adamw",
                               .device_name = "cpu",
                               .precision = "f32",
                               .tokens_per_step = 7,
                               .steps = 20};
    const run_end_t end = {.steps = 20};
    write_steps(0, 20, 3);
    assert_int_equal(report_write(folder, &start, &end), LH_OK);
    char *path = path_join(folder, "report.html");
    assert_int_equal(file_read(path, 1 << 24, &page, &length), LH_OK);
    assert_null(strstr(page, "<script>alert"));
    assert_non_null(strstr(page, "&lt;script&gt;alert(&#39;x&#39;)"));
    assert_non_null(strstr(page, "a&amp;b"));
    /* As the steps counted them: a run that went on with another batch has made others. */
    assert_non_null(strstr(page, "<b>2.00k</b><span>tokens seen</span>"));
    assert_null(strstr(page, "src="));
    mem_free(page);
    mem_free(path);
}

static void numbers_are_short(void **state)
{
    (void)state;
    char text[24];
    text_count(1071234, text);
    assert_string_equal(text, "1.07M");
    text_count(940, text);
    assert_string_equal(text, "940");
    text_bytes(1536, text);
    assert_string_equal(text, "1.50 KiB");
    text_duration(3840, text);
    assert_string_equal(text, "1h 04m");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_is_too_long_to_be_read_is_gone_on_with),
        cmocka_unit_test(a_resumed_run_drops_the_lines_that_a_crash_left_behind),
        cmocka_unit_test(restarts_stay_and_are_no_points),
        cmocka_unit_test(a_line_of_each_kind_has_its_time_of_day),
        cmocka_unit_test(a_link_that_is_tuned_anew_is_told_with_what_it_was_before),
        cmocka_unit_test(restarts_are_a_table_of_the_report),
        cmocka_unit_test(a_loss_that_is_not_finite_stays_valid_json),
        cmocka_unit_test(a_full_disk_costs_whole_lines_and_only_while_it_is_full),
        cmocka_unit_test(the_report_waits_for_no_disk),
        cmocka_unit_test(figures_are_served_beside_the_report),
        cmocka_unit_test(the_report_escapes_what_it_prints),
        cmocka_unit_test(numbers_are_short),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
