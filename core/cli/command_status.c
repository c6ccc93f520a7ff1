/* command_status.c - longhaul status FOLDER [--json] [--follow]: how a run fares, asked from another
 * shell or another machine.
 *
 * Everything is read from the pipeline's folder: the lock says whether a run is at work, status.json
 * how its training does, train.log what was warned of since it began. The run is not asked and does
 * not notice.
 *
 *     shakespeare: step 412 of 1000, loss 2.3412, 18.2k tokens/s, 452 ms a step, 4m 26s left
 *       process 4711 on t1 since 2026-11-23T22:10:02Z: longhaul run examples/shakespeare.ini
 *       4 ranks, 2 sites
 *       late: rank 3 on tokyo/t2, silent for 2.1 s
 *       saved: step 400 (2026-11-23T22:12:40.117Z), again at 500
 *       warning: ...
 *
 * --json prints one object: "folder", "held" (true, false, or null where that can't be told),
 * "holder", "age_s", "warnings", and as "run" what status.json holds. With --follow, one a second and
 * a line each, until no run is at work there any more; where that can't be told, until the training has
 * ended. */
#include <cli/cli.h>

#include <math.h>
#include <stdio.h>
#include <time.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <watch/run_state.h>

/* TAIL_BYTES: of train.log, from its end. STALE_S: status.json is renewed each second; a longer
 * pause is told. */
enum { WARNINGS = 3, TAIL_BYTES = 1 << 16, TIME_BYTES = TEXT_TIME, STALE_S = 5 };

/* The last warnings of a run, oldest first; each points into tail. */
typedef struct warnings {
    char *tail;
    const char *lines[WARNINGS];
    uint32_t count;
} warnings_t;

static const json_value_t *status_member(const run_look_t *look, const char *key)
{
    return json_member(json_root(look->status), key);
}

static double status_figure(const run_look_t *look, const char *key)
{
    const json_value_t *v = status_member(look, key);
    return json_is_numeric(v) ? json_number(v) : (double)NAN;
}

static const char *status_words(const json_value_t *v)
{
    const char *text = json_text(v);
    return text == NULL ? "" : text;
}

/* ---- train.log ---- */

/* The end of the file, with a NUL behind it; NULL: there is none, or no memory. */
static char *read_tail(const char *folder)
{
    int fd = -1;
    uint64_t size = 0;
    char *path = path_join(folder, "train.log");
    const bool open = path != NULL && file_open(path, &fd, &size) == LH_OK;
    mem_free(path);
    if (!open) return NULL;
    const uint64_t bytes = size < TAIL_BYTES ? size : TAIL_BYTES;
    char *tail = mem_new(bytes + 1);
    if (tail != NULL) {
        const ssize_t got = sys()->pread(fd, tail, bytes, (off_t)(size - bytes));
        tail[got > 0 ? got : 0] = '\0';
    }
    (void)sys()->close(fd);
    return tail;
}

/* A line begins with its time, which sorts as a text; a rank's name may follow. */
static bool is_warning(const char *line, const char *since)
{
    if (strlen(line) <= TIME_BYTES || strncmp(line, since, strlen(since)) < 0) return false;
    const char *text = line + TIME_BYTES;
    if (text_starts(text, "rank ")) {
        const char *colon = strstr(text, ": ");
        text = colon == NULL ? text : colon + 2;
    }
    return text_starts(text, "warning: ") || text_starts(text, "error: ");
}

static void read_warnings(const char *folder, const run_look_t *look, warnings_t *out)
{
    const char *since = status_words(status_member(look, "started"));
    *out = (warnings_t){.tail = read_tail(folder)};
    fail_clear();
    if (out->tail == NULL) return;
    char *rest = out->tail;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (!is_warning(line, since)) continue;
        if (out->count == WARNINGS) {
            memmove(out->lines, out->lines + 1, (WARNINGS - 1) * sizeof(out->lines[0]));
            out->count--;
        }
        out->lines[out->count++] = line;
    }
}

/* ---- for people ---- */

/* "step 412 of 1000, loss 2.3412, 18.2k tokens/s, 452 ms a step, 4m 26s left" */
static void append_step(const run_look_t *look, text_t *out)
{
    char count[16], left[24];
    const double loss = status_figure(look, "loss"), rate = status_figure(look, "tokens_per_s");
    const double a_step = status_figure(look, "seconds_a_step"),
                 rest = status_figure(look, "seconds_left");
    const uint64_t steps = run_look_count(look, "steps"); /* 0: this version does not tell */
    text_printf(out, "step %llu", (unsigned long long)run_look_count(look, "step"));
    if (steps > 0) text_printf(out, " of %llu", (unsigned long long)steps);
    if (isfinite(loss)) text_printf(out, ", loss %.4f", loss);
    if (isfinite(rate)) {
        text_count(rate, count);
        text_printf(out, ", %s tokens/s", count);
    }
    if (isfinite(a_step))
        text_printf(out, a_step < 1 ? ", %.0f ms a step" : ", %.1f s a step",
                    a_step < 1 ? a_step * 1e3 : a_step);
    if (isfinite(rest) && run_look_trains(look)) {
        text_duration(rest, left);
        text_printf(out, ", %s left", left);
    }
}

/* The first line: what the run does, or how it ended. */
static void status_print_head(const char *folder, const run_look_t *look)
{
    text_t line = {0};
    const json_value_t *end = status_member(look, "end");
    const char *name = status_words(status_member(look, "name"));
    text_printf(&line, "%s: ", name[0] == '\0' ? folder : name);
    if (look->status == NULL) {
        text_append(&line, "at work, nothing is trained yet");
    } else {
        append_step(look, &line);
        if (json_is_yes(json_member(end, "failed")))
            text_printf(&line, "; failed at %s: %s", status_words(json_member(end, "time")),
                        status_words(json_member(end, "reason")));
        else if (json_is_map(end))
            text_printf(&line, "; the training ended at %s",
                        status_words(json_member(end, "time")));
        else if (look->held == FOLDER_FREE)
            text_append(&line, "; it is not at work any more, and has not said why");
        else if (look->age_s > STALE_S)
            text_printf(&line, "; nothing was heard for %.0f s", look->age_s);
    }
    if (!line.failed) cli_print_line("%s", line.data);
    text_free(&line);
}

static void print_ranks(const run_look_t *look)
{
    const uint64_t ranks = run_look_count(look, "ranks"), sites = run_look_count(look, "sites");
    const uint64_t late = run_look_count(look, "late_count");
    size_t shown = 0;
    if (ranks > 1)
        cli_print_line("  %llu ranks, %llu site%s", (unsigned long long)ranks,
                       (unsigned long long)sites, sites == 1 ? "" : "s");
    for (json_walk_t w = json_walk(status_member(look, "late")); json_next(&w); shown++)
        cli_print_line("  late: %s, %s", status_words(json_member(w.value, "name")),
                       status_words(json_member(w.value, "why")));
    if (late > shown) cli_print_line("  late: %llu more", (unsigned long long)(late - shown));
}

static void print_saves(const run_look_t *look)
{
    uint64_t step = 0;
    const json_value_t *saved = status_member(look, "saved"),
                       *not_saved = status_member(look, "not_saved");
    const json_value_t *evaluation = status_member(look, "evaluation");
    const uint64_t every = run_look_count(look, "save_every"), at = run_look_count(look, "step");
    const uint64_t steps = run_look_count(look, "steps");
    uint64_t next = every == 0 ? steps : (at / every + 1) * every;
    next = next > steps ? steps : next;
    char again[64] = "";
    if (run_look_trains(look) && next > at)
        (void)snprintf(again, sizeof(again), ", %s at %llu", json_is_map(saved) ? "again" : "first",
                       (unsigned long long)next);
    if (json_count(json_member(saved, "step"), &step))
        cli_print_line("  saved: step %llu (%s)%s", (unsigned long long)step,
                       status_words(json_member(saved, "time")), again);
    else
        cli_print_line("  saved: nothing yet%s", again);
    if (json_count(json_member(status_member(look, "in_memory"), "step"), &step))
        cli_print_line("  in memory: step %llu (%s)", (unsigned long long)step,
                       status_words(json_member(status_member(look, "in_memory"), "time")));
    if (json_count(json_member(not_saved, "step"), &step))
        cli_print_line("  not saved: step %llu (%s): %s", (unsigned long long)step,
                       status_words(json_member(not_saved, "time")),
                       status_words(json_member(not_saved, "reason")));
    if (json_count(json_member(evaluation, "step"), &step))
        cli_print_line("  held-out loss: %.4f at step %llu",
                       json_is_numeric(json_member(evaluation, "loss"))
                           ? json_number(json_member(evaluation, "loss"))
                           : (double)NAN,
                       (unsigned long long)step);
}

static void print_status(const char *folder, const run_look_t *look)
{
    const uint64_t restarts = run_look_count(look, "restarts");
    const uint64_t refused = run_look_count(look, "refused_steps");
    const uint64_t again = run_look_count(look, "launcher_restarts");
    warnings_t warnings;
    status_print_head(folder, look);
    if (look->holder[0] != '\0') cli_print_line("  %s", look->holder);
    if (look->held == FOLDER_UNKNOWN && run_look_trains(look))
        cli_print_line("  whether it is at work can't be told: .run.lock can't be read, or there "
                       "are no locks");
    if (look->status == NULL) return;
    print_ranks(look);
    print_saves(look);
    if (restarts > 0)
        cli_print_line("  gone on with %llu time%s", (unsigned long long)restarts,
                       restarts == 1 ? "" : "s");
    if (again > 0)
        cli_print_line("  started again by its launcher %llu time%s: %s", (unsigned long long)again,
                       again == 1 ? "" : "s", status_words(status_member(look, "restart_reason")));
    if (refused > 0)
        cli_print_line("  steps that were not applied: %llu", (unsigned long long)refused);
    read_warnings(folder, look, &warnings);
    for (uint32_t i = 0; i < warnings.count; i++)
        cli_print_line("  %s", warnings.lines[i]);
    mem_free(warnings.tail);
}

/* ---- for scripts ---- */

static lh_status_t status_print_json(const char *folder, const run_look_t *look, bool follows)
{
    text_t text = {0};
    warnings_t warnings;
    json_writer_t w = {.to = &text, .style = follows ? JSON_SPACED : 1};
    json_open(&w, NULL, '{');
    json_put_text(&w, "folder", folder);
    if (look->held == FOLDER_UNKNOWN)
        json_put_nil(&w, "held");
    else
        json_put_flag(&w, "held", look->held == FOLDER_HELD);
    json_put_text(&w, "holder", look->holder);
    json_put_real(&w, "age_s", look->age_s);
    read_warnings(folder, look, &warnings);
    json_open(&w, "warnings", '[');
    for (uint32_t i = 0; i < warnings.count; i++)
        json_put_text(&w, NULL, warnings.lines[i]);
    json_close(&w);
    mem_free(warnings.tail);
    if (look->status == NULL)
        json_put_nil(&w, "run");
    else
        json_put_value(&w, "run", json_root(look->status));
    json_close(&w);
    return cli_print_text(&text);
}

/* ---- the command ---- */

/* *goes_on: there is more to come. Where the lock tells nothing, the end of the training is the end, and its silence. */
static lh_status_t print_once(cli_t *cli, bool follows, bool *goes_on)
{
    run_look_t look;
    lh_status_t status = run_look(cli->name, &look);
    if (status != LH_OK) return status;
    if (cli_flag(cli, "json") != NULL)
        status = status_print_json(cli->name, &look, follows);
    else
        print_status(cli->name, &look);
    *goes_on = look.held == FOLDER_HELD ||
               (look.held == FOLDER_UNKNOWN && run_look_is_heard(&look));
    run_look_free(&look);
    return status;
}

static int status_of_run(cli_t *cli)
{
    const struct timespec second = {.tv_sec = 1};
    const bool follows = cli_flag(cli, "follow") != NULL;
    bool goes_on;
    lh_status_t status = print_once(cli, follows, &goes_on);
    while (status == LH_OK && follows && goes_on && fflush(stdout) == 0) {
        (void)nanosleep(&second, NULL);
        status = print_once(cli, follows, &goes_on);
    }
    return status;
}

const command_t command_status = {
    .name = "status",
    .summary = "how a run fares, from another shell or machine; NAME is [pipeline] folder",
    .needs = CLI_TAKES_NAME,
    .run = status_of_run,
    .nameless = "of what? [pipeline] folder was expected",
    .flags = {CLI_FLAG_JSON, {"follow", NULL, "again each second, until the run has ended"}},
};
