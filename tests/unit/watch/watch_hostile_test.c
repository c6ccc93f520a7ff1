/* watch_hostile_test.c - names and reasons that strangers chose reach a page, a log and metrics as
 * text and nothing else: no mark-up, no control characters, no lines of their own. */
#include <unit/base/scratch_files.h>

#include <fcntl.h>

#include <jansson.h>

#include <base/log.h>
#include <watch/chart.h>
#include <watch/metrics.h>
#include <watch/watch.h>

#define MARKUP "<script>alert('x')</script>&\""
#define ESCAPE                    \
    "\x1b[2J\x1b]0;title\x07\x9b" \
    "31m\xc2\x9b"                 \
    "31m"
#define FORGED "\nerror: all is lost"

static bool has_control(const char *text, bool lines)
{
    for (; *text != '\0'; text++)
        if (((unsigned char)*text < 0x20 && !(lines && (*text == '\n' || *text == '\t'))) ||
            *text == 0x7f)
            return true;
    return false;
}

/* A whole run whose every text is hostile; stderr goes to a file. */
static void run_hostile(scratch_t *s)
{
    static const char hostile[] = MARKUP ESCAPE FORGED;
    const run_start_t start = {.name = hostile,
                               .folder = s->folder,
                               .model = hostile,
                               .optimizer = hostile,
                               .rule = hostile,
                               .device_name = hostile,
                               .precision = hostile,
                               .steps = 1,
                               .batch = 1,
                               .sequence = 1,
                               .micro_batch = 1,
                               .tokens_per_step = 1};
    const step_report_t step = {.step = 1, .loss = 1, .applied = true, .seconds = 1};
    const save_report_t saved = {.step = 1, .path = hostile, .reason = hostile};
    const profile_row_t row = {.part = "<b>", .op = "<i>\x1b", .kernel = "<script>", .ns = 5};
    const profile_frame_t frame = {.list = "<p>", .part = "<b>\x1b", .op = MARKUP, .ns = 5};
    const run_end_t end = {.steps = 1,
                           .reason = hostile,
                           .profile = &row,
                           .profile_count = 1,
                           .frames = &frame,
                           .frame_count = 1};
    watch_t *w;
    const int terminal = dup(STDERR_FILENO);
    const int file = open(scratch_path(s, "stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(terminal >= 0 && file >= 0);
    (void)dup2(file, STDERR_FILENO);
    job_t job = {.pipeline = {.folder = s->folder}, .train = {.log_every = 1}};
    assert_int_equal(document_load(scratch_text(s, "a.ini", "[train]\n"), &job.document), LH_OK);
    assert_int_equal(watch_new(&job, &w), LH_OK);
    observer_t *o = watch_observer(w);
    o->begin(o, &start);
    o->step(o, &step);
    o->saved(o, &saved);
    o->end(o, &end);
    watch_free(w);
    document_free(job.document);
    (void)dup2(terminal, STDERR_FILENO);
    (void)close(terminal);
    (void)close(file);
}

static void a_page_shows_mark_up_as_text(void **state)
{
    scratch_t *s = *state;
    size_t length;
    run_hostile(s);
    char *page = scratch_read(scratch_path(s, "report.html"), &length);
    assert_null(strstr(page, "<script>alert"));
    assert_non_null(strstr(page, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
    assert_false(has_control(page, true));
    mem_free(page);
}

static void a_terminal_and_a_log_get_no_control_characters(void **state)
{
    static const char *const names[] = {"stderr", "train.log"};
    scratch_t *s = *state;
    run_hostile(s);
    for (size_t i = 0; i < 2; i++) {
        size_t length;
        char *text = scratch_read(scratch_path(s, names[i]), &length);
        assert_true(length > 100);
        assert_false(has_control(text, true));
        assert_null(strstr(text, "\x9b"));
        assert_non_null(strstr(text, "\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\xc2\\x9b31m"));
        mem_free(text);
    }
}

static void nobodys_text_passes_for_a_line_of_ours(void **state)
{
    scratch_t *s = *state;
    size_t length;
    run_hostile(s);
    char *text = scratch_read(scratch_path(s, "train.log"), &length);
    assert_null(strstr(text, "\nerror: all is lost"));
    assert_non_null(strstr(text, "\n  error: all is lost"));
    mem_free(text);
}

static void metrics_stay_json(void **state)
{
    scratch_t *s = *state;
    size_t length, lines = 0;
    run_hostile(s);
    char *text = scratch_read(scratch_path(s, "metrics.jsonl"), &length);
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, lines++) {
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(line);
        json_decref(line);
    }
    assert_int_equal(lines, 2);
    assert_false(has_control(text, true));
    mem_free(text);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_page_shows_mark_up_as_text),
        IN_FOLDER(a_terminal_and_a_log_get_no_control_characters),
        IN_FOLDER(nobodys_text_passes_for_a_line_of_ours),
        IN_FOLDER(metrics_stay_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
