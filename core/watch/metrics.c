/* metrics.c - JSON lines, each written whole from memory that is kept for the next, and read back
 * one by one.
 *
 * A line is one event and stands for itself: whoever reads the file takes what it knows and skips
 * the rest, so lines of new kinds break no script. Each is written with one call to a file that is
 * opened for appending; a run that is killed leaves whole lines and at most one that is cut off,
 * which both readers below leave out. */
#include <watch/metrics.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <engine/engine.h>
#include <format/json.h>
#include <longhaul/link.h>
#include <session/link_record.h>

enum { METRICS_LIMIT = 1 << 30, STEP_LINE = 1024 };

/* By LH_LINK_* and PART_*: these are keys of the file, and names in the report. */
const char *const step_scope_names[STEP_SCOPES] = {
    [LH_LINK_NODE] = "node", [LH_LINK_SITE] = "site", [LH_LINK_WAN] = "wan"};

const char *const step_part_names[STEP_PARTS] = {
    [PART_DATA] = "data",         [PART_COMPUTE] = "compute", [PART_UPDATE] = "update",
    [PART_EVALUATE] = "evaluate", [PART_SAVE] = "save",       [PART_WATCH] = "watch",
};

/* Begins a line in the place of the last one. The memory of a line is kept from one to the next,
 * and metrics_open takes enough for a step's, so that a step allocates nothing. Every line has
 * these two keys, in this order, before its own. */
static json_writer_t *metrics_line_begin(metrics_t *m, json_writer_t *w, uint64_t step)
{
    char now[TEXT_TIME];
    text_time(sys()->wall_ns(), now);
    m->line.length = 0;
    m->line.failed = false;
    *w = (json_writer_t){.to = &m->line, .style = JSON_SPACED};
    json_open(w, NULL, '{');
    json_put_u64(w, "step", step);
    json_put_text(w, "time", now);
    return w;
}

/* Nine digits are all that a float has; json_put_real would write as many as give the double back.
 * JSON has no NaN or infinity: they are null. */
static void put_real(json_writer_t *w, const char *key, double value)
{
    char digits[32] = "null";
    if (isfinite(value)) (void)snprintf(digits, sizeof(digits), "%.9g", value);
    json_put_as_is(w, key, digits);
}

/* Ends the line and writes it, whole. A write that fails loses the line and not the run. The first
 * line that is lost is told, and how many were lost at the end. */
static void metrics_line_end(metrics_t *m, json_writer_t *w)
{
    json_close(w);
    text_append(&m->line, "\n");
    if (m->file.fd < 0 || m->line.failed) return;
    /* What is written to a file without a name is nobody's. */
    if (!m->gone && !file_is(m->file.fd, m->path)) {
        m->gone = true;
        log_line(LH_LOG_WARN,
                 "%s: was removed or replaced, or its folder was: lines of this run are lost from "
                 "here on",
                 m->path);
    }
    if (file_records_add(&m->file, m->line.data, m->line.length) || m->file.lost > 1) return;
    log_line(LH_LOG_WARN, "%s: cannot write: %s; lines are lost until it can be written", m->path,
             strerror(errno));
}

/* Keys are in a fixed order, so that two runs can be compared line by line. */
void metrics_step(metrics_t *m, const step_report_t *s)
{
    json_writer_t own, *w = metrics_line_begin(m, &own, s->step);
    put_real(w, "loss", s->loss);
    put_real(w, "cross_entropy", s->cross_entropy);
    put_real(w, "learning_rate", s->learning_rate);
    put_real(w, "gradient_norm", s->gradient_norm);
    json_put_flag(w, "applied", s->applied);
    if (s->pairs > 0) {
        put_real(w, "pairs", s->pairs);
        put_real(w, "accuracy", s->pairs_won / s->pairs);
        put_real(w, "margin", s->margin);
    }
    json_put_u64(w, "tokens", s->tokens);
    put_real(w, "tokens_per_s", s->tokens_per_s);
    put_real(w, "seconds", s->seconds);
    json_open(w, "parts", '{');
    for (int i = 0; i < STEP_PARTS; i++)
        put_real(w, step_part_names[i], s->part_s[i]);
    json_close(w);
    /* By class of link, what the step waited for others. */
    if (m->ranks > 1) {
        json_open(w, "exposed", '{');
        for (int i = LH_LINK_NODE; i < STEP_SCOPES; i++)
            put_real(w, step_scope_names[i], s->exposed_s[i]);
        json_close(w);
        put_real(w, "least_exposed_before", s->least_exposed_s);
    }
    metrics_line_end(m, w);
}

void metrics_restart(metrics_t *m, const run_start_t *start)
{
    if (start->restarts == 0) return;
    json_writer_t own, *w = metrics_line_begin(m, &own, start->first_step);
    json_open(w, "restart", '{');
    json_put_u64(w, "count", start->restarts);
    json_put_text(w, "reason", start->restart_reason);
    if (start->memory_step > 0) json_put_u64(w, "memory_step", start->memory_step);
    json_close(w);
    metrics_line_end(m, w);
}

/* Written once, before the first step, and only where something was measured. */
void metrics_links(metrics_t *m, const run_start_t *start)
{
    bool any = false;
    for (uint32_t i = 0; i < start->link_count; i++)
        any |= start->links[i].figures.measured_s != 0;
    if (!any) return;
    json_writer_t own, *w = metrics_line_begin(m, &own, start->first_step);
    link_record_rows(w, "links", start->links, start->link_count);
    metrics_line_end(m, w);
}

static void put_link_figures(json_writer_t *w, const link_change_t *c, const tuner_figures_t *f)
{
    json_open(w, "bytes_per_second", '[');
    for (int way = 0; way < 2; way++)
        json_put_u64(w, NULL, (uint64_t)((double)c->rate[way] * f->kept[way]));
    json_close(w);
    json_put_u64(w, "round_trip_ns", f->round_trip_ns);
    json_open(w, "loss", '[');
    for (int way = 0; way < 2; way++)
        put_real(w, NULL, f->loss[way]);
    json_close(w);
}

void metrics_retuned(metrics_t *m, const link_change_t *c)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } reasons[] = {{TUNED_RATE, "rate"}, {TUNED_TRIP, "round_trip"}, {TUNED_LOSS, "loss"}};
    char text[512];
    json_writer_t own, *w = metrics_line_begin(m, &own, c->step);
    link_tuner_text(c, text, sizeof(text));
    json_open(w, "retuned", '{');
    json_open(w, "sites", '[');
    for (int i = 0; i < 2; i++)
        json_put_text(w, NULL, c->site[i]);
    json_close(w);
    json_open(w, "why", '[');
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if ((c->why & reasons[i].bit) != 0) json_put_text(w, NULL, reasons[i].name);
    json_close(w);
    put_link_figures(w, c, &c->now);
    json_open(w, "before", '{');
    put_link_figures(w, c, &c->before);
    json_close(w);
    json_put_text(w, "tuned", c->tuned);
    json_put_text(w, "text", text);
    json_close(w);
    metrics_line_end(m, w);
}

/* Perplexity is e to the mean loss; that of pairs has none. */
void metrics_evaluated(metrics_t *m, const evaluation_report_t *e)
{
    json_writer_t own, *w = metrics_line_begin(m, &own, e->step);
    json_open(w, "evaluation", '{');
    put_real(w, "loss", e->loss);
    if (!e->pairs) put_real(w, "perplexity", exp(e->loss));
    json_put_u64(w, e->pairs ? "pairs" : "tokens", e->tokens);
    put_real(w, "seconds", e->seconds);
    json_close(w);
    metrics_line_end(m, w);
}

void metrics_saved(metrics_t *m, const save_report_t *s)
{
    json_writer_t own, *w = metrics_line_begin(m, &own, s->step);
    json_open(w, "save", '{');
    json_put_flag(w, "committed", s->committed);
    json_put_flag(w, "failed", s->reason != NULL);
    put_real(w, "stall_s", s->stall_s);
    if (s->memory) json_put_flag(w, "memory", true);
    json_close(w);
    metrics_line_end(m, w);
}

/* Kinds of which there is none are left out. */
static void put_kinds(json_writer_t *w, const char *key, const memory_report_t *m)
{
    json_open(w, key, '{');
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        if (m->bytes[k] > 0) json_put_u64(w, engine_memory_text(k), m->bytes[k]);
    json_put_u64(w, "total", m->total_bytes);
    json_close(w);
}

/* The last line of a run that gathered the memory of its ranks. */
lh_status_t metrics_memory(metrics_t *m, const run_end_t *end)
{
    json_writer_t own, *w = metrics_line_begin(m, &own, end->steps);
    json_open(w, "memory", '[');
    for (uint32_t i = 0; i < end->memory_count; i++) {
        const rank_memory_t *r = &end->memory[i];
        json_open(w, NULL, '{');
        json_put_u64(w, "rank", r->rank);
        put_kinds(w, "planned", &r->planned);
        put_kinds(w, "measured", &r->measured);
        if (r->device_bytes > 0) json_put_u64(w, "device", r->device_bytes);
        json_put_u64(w, "resident", r->resident_bytes);
        json_close(w);
    }
    json_close(w);
    metrics_line_end(m, w);
    return text_status(&m->line);
}

/* Whether a line is of a step up to last, which a run that goes on after that step does not make
 * again. Of one that begins with step 0 only what was told of restarts stands; where its launcher
 * has started it again, that stands whatever step it went on after. What is no line of a step is
 * left out like steps that come again, and like an evaluation that does. Parses the whole line, as
 * the step might stand anywhere in it. */
static bool line_stays(const char *line, size_t length, const run_start_t *start)
{
    const uint64_t last = start->first_step;
    json_document_t *document;
    if (json_parse("metrics.jsonl", line, length, UINT64_MAX, &document) != LH_OK) document = NULL;
    const json_value_t *root = json_root(document);
    const json_value_t *step = json_member(root, "step");
    const bool restart = json_member(root, "restart") != NULL;
    const bool made = json_is_whole(step) && (uint64_t)json_whole(step) <= last;
    const bool again = made && start->evaluates && (uint64_t)json_whole(step) == last &&
                       json_member(root, "evaluation") != NULL;
    const bool stays = json_is_whole(step) && !again &&
                       ((restart && start->restarts > 0) || (made && (last > 0 || restart)));
    json_free(document);
    return stays;
}

/* Keeps the whole lines of steps up to the first one of a run. A resumed run makes the steps behind its
 * checkpoint again. Their old lines go first, so that each step stands in the file once. */
static lh_status_t keep_until(const char *path, const run_start_t *start)
{
    char *data;
    size_t length;
    if (!file_exists(path)) return LH_OK;
    lh_status_t status = file_read(path, METRICS_LIMIT, &data, &length);
    if (status != LH_OK) return status;

    text_t kept = {0};
    for (size_t at = 0; at < length;) {
        const char *end = memchr(data + at, '\n', length - at);
        if (end == NULL) break;
        const size_t bytes = (size_t)(end - (data + at)) + 1;
        if (line_stays(data + at, bytes, start)) text_append_n(&kept, data + at, bytes);
        at += bytes;
    }
    status = text_status(&kept);
    if (status == LH_OK)
        status = file_replace(path, kept.data == NULL ? "" : kept.data, kept.length);
    text_free(&kept);
    mem_free(data);
    return status;
}

/* The folder is there already. */
lh_status_t metrics_open(metrics_t *m, const char *folder, const run_start_t *start)
{
    const bool fresh = start->first_step == 0 && start->restarts == 0;
    *m = (metrics_t){.file.fd = -1};
    const int length = snprintf(m->path, sizeof(m->path), "%s/metrics.jsonl", folder);
    if (length < 0 || (size_t)length >= sizeof(m->path))
        return fail(LH_INVALID, "%s: path too long for metrics", folder);

    /* A file that has grown too long to be read, over months, is better gone on with than left. */
    if (!fresh && keep_until(m->path, start) != LH_OK) {
        log_line(LH_LOG_WARN, "%s; steps that are made again stand there twice", fail_reason());
        fail_clear();
    }
    text_printf(&m->line, "%*s", STEP_LINE, "");
    if (m->line.failed) return LH_NO_MEMORY;
    const int how = O_APPEND | (fresh ? O_TRUNC : 0);
    const lh_status_t status = file_begin(m->path, how, &m->file.fd);
    if (status != LH_OK) text_free(&m->line);
    return status;
}

/* May be called twice. */
void metrics_close(metrics_t *m)
{
    if (m->file.lost > 0)
        log_line(LH_LOG_WARN, "%s: %llu lines of metrics were lost", m->path,
                 (unsigned long long)m->file.lost);
    if (m->file.fd >= 0) (void)sys()->close(m->file.fd);
    m->file = (file_records_t){.fd = -1};
    text_free(&m->line);
}

/* NAN for what is missing or null: charts leave such points out. */
static double point_real(const json_value_t *object, const char *key)
{
    const json_value_t *value = json_member(object, key);
    return json_is_numeric(value) ? json_number(value) : (double)NAN;
}

/* Lines of saves and of memory hold no point of a curve. Whatever has a step and is neither a save
 * nor memory nor links, as measured or tuned anew, nor a restart is a point, of a step or of an
 * evaluation. */
static bool read_point(const char *line, size_t length, metrics_point_t *p)
{
    json_document_t *document;
    if (json_parse("metrics.jsonl", line, length, UINT64_MAX, &document) != LH_OK) document = NULL;
    const json_value_t *root = json_root(document);
    const json_value_t *step = json_member(root, "step");
    const json_value_t *evaluation = json_member(root, "evaluation");
    const bool usable = json_is_whole(step) && json_member(root, "save") == NULL &&
                        json_member(root, "memory") == NULL && json_member(root, "links") == NULL &&
                        json_member(root, "retuned") == NULL &&
                        json_member(root, "restart") == NULL;

    if (usable) {
        *p = (metrics_point_t){.step = (uint64_t)json_whole(step),
                               .evaluation = evaluation != NULL};
        p->loss = point_real(evaluation != NULL ? evaluation : root, "loss");
        p->learning_rate = point_real(root, "learning_rate");
        p->gradient_norm = point_real(root, "gradient_norm");
        p->tokens_per_s = point_real(root, "tokens_per_s");
        p->seconds = point_real(root, "seconds");
        p->tokens = point_real(root, "tokens");
        for (int i = 0; i < STEP_PARTS; i++)
            p->part_s[i] = point_real(json_member(root, "parts"), step_part_names[i]);
        const json_value_t *exposed = json_member(root, "exposed");
        for (int i = LH_LINK_NODE; exposed != NULL && i < STEP_SCOPES; i++)
            p->exposed_s[i] = point_real(exposed, step_scope_names[i]);
    }
    json_free(document);
    return usable;
}

/* A line that has the word `"key"`, parsed; NULL: it has not. Most lines are of steps, so that only what
 * has the word at all is parsed. */
static json_document_t *read_line_of(const char *key, const char *line, size_t length)
{
    json_document_t *document;
    char word[32];
    const int bytes = snprintf(word, sizeof(word), "\"%s\"", key);
    if (memmem(line, length, word, (size_t)bytes) == NULL) return NULL;
    if (json_parse("metrics.jsonl", line, length, UINT64_MAX, &document) != LH_OK) return NULL;
    return document;
}

/* Lines that have the word `key`, in the order of the file; those that can't be parsed are left out. */
static lh_status_t read_lines_of(const char *folder, const char *key,
                                 lh_status_t (*take)(void *context, const json_value_t *root),
                                 void *context)
{
    char *data, *path = path_join(folder, "metrics.jsonl");
    size_t length;
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = file_read(path, METRICS_LIMIT, &data, &length);
    mem_free(path);
    if (status != LH_OK) return status;
    for (size_t at = 0; status == LH_OK && at < length;) {
        const char *end = memchr(data + at, '\n', length - at);
        if (end == NULL) break;
        const size_t bytes = (size_t)(end - (data + at)) + 1;
        json_document_t *document = read_line_of(key, data + at, bytes);
        if (document != NULL) status = take(context, json_root(document));
        json_free(document);
        at += bytes;
    }
    mem_free(data);
    return status;
}

static lh_status_t take_change(void *context, const json_value_t *root)
{
    const json_value_t *text = json_member(json_member(root, "retuned"), "text");
    if (json_is_text(text)) text_printf(context, "%s\n", json_text(text));
    return LH_OK;
}

lh_status_t metrics_read_changes(const char *folder, text_t *out)
{
    const lh_status_t status = read_lines_of(folder, "retuned", take_change, out);
    return status == LH_OK ? text_status(out) : status;
}

/* A line may have the word in some text alone. */
static lh_status_t take_restart(void *context, const json_value_t *root)
{
    metrics_restarts_t *r = context;
    const json_value_t *restart = json_member(root, "restart");
    const json_value_t *reason = json_member(restart, "reason"), *time = json_member(root, "time");
    metrics_again_t row = {0};
    if (!json_count(json_member(root, "step"), &row.step) || !json_is_text(reason)) return LH_OK;
    row.memory = json_member(restart, "memory_step") != NULL;
    (void)snprintf(row.time, sizeof(row.time), "%s", json_is_text(time) ? json_text(time) : "");
    (void)snprintf(row.reason, sizeof(row.reason), "%s", json_text(reason));
    metrics_again_t *grown = mem_grow(r->rows, &r->capacity, r->count + 1, sizeof(*r->rows));
    if (grown == NULL) return LH_NO_MEMORY;
    r->rows = grown;
    r->rows[r->count++] = row;
    return LH_OK;
}

lh_status_t metrics_read_restarts(const char *folder, metrics_restarts_t *out)
{
    *out = (metrics_restarts_t){0};
    return read_lines_of(folder, "restart", take_restart, out);
}

/* The points are in the order of lines. A line that can't be parsed is skipped, so a damaged one
 * costs a point and not the report. */
lh_status_t metrics_read(const char *folder, metrics_point_t **out, size_t *count)
{
    char *data, *path = path_join(folder, "metrics.jsonl");
    size_t length, capacity = 0, found = 0;
    metrics_point_t *points = NULL;
    if (path == NULL) return LH_NO_MEMORY;

    lh_status_t status = file_read(path, METRICS_LIMIT, &data, &length);
    mem_free(path);
    if (status != LH_OK) return status;
    for (size_t at = 0; at < length && status == LH_OK;) {
        const char *end = memchr(data + at, '\n', length - at);
        if (end == NULL) break;
        const size_t bytes = (size_t)(end - (data + at)) + 1;
        metrics_point_t *grown = mem_grow(points, &capacity, found + 1, sizeof(*points));
        if (grown == NULL) {
            status = LH_NO_MEMORY;
            break;
        }
        points = grown;
        if (read_point(data + at, bytes, &points[found])) found++;
        at += bytes;
    }
    mem_free(data);
    if (status != LH_OK) {
        mem_free(points);
        return status;
    }
    *out = points;
    *count = found;
    return LH_OK;
}
