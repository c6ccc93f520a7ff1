/* metrics.c - JSON lines written from fixed buffers, read back one by one. */
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
#include <engine/engine_profile.h>
#include <format/json.h>
#include <longhaul/link.h>
#include <session/link_record.h>

enum { METRICS_LIMIT = 1 << 30 };

const char *const step_scope_names[STEP_SCOPES] = {
    [LH_LINK_NODE] = "node", [LH_LINK_SITE] = "site", [LH_LINK_WAN] = "wan"};

const char *const step_part_names[STEP_PARTS] = {
    [PART_DATA] = "data",         [PART_COMPUTE] = "compute", [PART_UPDATE] = "update",
    [PART_EVALUATE] = "evaluate", [PART_SAVE] = "save",       [PART_WATCH] = "watch",
};

/* JSON has no NaN or infinity: they are written as null. */
static const char *number(double value, char out[32])
{
    if (!isfinite(value)) return "null";
    (void)snprintf(out, 32, "%.9g", value);
    return out;
}

void metrics_head(uint64_t step, char out[METRICS_HEAD])
{
    char now[TEXT_TIME];
    text_time(sys()->wall_ns(), now);
    (void)snprintf(out, METRICS_HEAD, "{\"step\": %llu, \"time\": \"%s\"", (unsigned long long)step,
                   now);
}

void metrics_line(metrics_t *m, const char *line, int length)
{
    if (m->file.fd < 0 || length < 0) return;
    /* What is written to a file without a name is nobody's. */
    if (!m->gone && !file_is(m->file.fd, m->path)) {
        m->gone = true;
        log_line(LH_LOG_WARN,
                 "%s: was removed or replaced, or its folder was: lines of this run are lost from "
                 "here on",
                 m->path);
    }
    if (file_records_add(&m->file, line, (size_t)length) || m->file.lost > 1) return;
    log_line(LH_LOG_WARN, "%s: cannot write: %s; lines are lost until it can be written", m->path,
             strerror(errno));
}

/* By class of link, what a step waited for others; only where there are several ranks. */
static int exposed_write(char *out, size_t room, const step_report_t *s)
{
    char a[32];
    int length = snprintf(out, room, ", \"exposed\": {");
    for (int i = LH_LINK_NODE; i < STEP_SCOPES; i++)
        length += snprintf(out + length, room - (size_t)length, "%s\"%s\": %s",
                           i == LH_LINK_NODE ? "" : ", ", step_scope_names[i],
                           number(s->exposed_s[i], a));
    return length + snprintf(out + length, room - (size_t)length, "}");
}

void metrics_step(metrics_t *m, const step_report_t *s)
{
    char line[1024], head[METRICS_HEAD], a[32], b[32], c[32], d[32], e[32], f[32];
    metrics_head(s->step, head);
    int length = snprintf(
        line, sizeof(line),
        "%s, \"loss\": %s, \"cross_entropy\": %s, \"learning_rate\": %s, "
        "\"gradient_norm\": %s, \"applied\": %s, \"tokens\": %llu, \"tokens_per_s\": %s, "
        "\"seconds\": %s, \"parts\": {",
        head, number(s->loss, a), number(s->cross_entropy, b), number(s->learning_rate, c),
        number(s->gradient_norm, d), s->applied ? "true" : "false", (unsigned long long)s->tokens,
        number(s->tokens_per_s, e), number(s->seconds, f));
    for (int i = 0; i < STEP_PARTS; i++)
        length += snprintf(line + length, sizeof(line) - (size_t)length, "%s\"%s\": %s",
                           i == 0 ? "" : ", ", step_part_names[i], number(s->part_s[i], a));
    length += snprintf(line + length, sizeof(line) - (size_t)length, "}");
    lh_assert(length > 0 && (size_t)length < sizeof(line));
    if (m->ranks > 1) length += exposed_write(line + length, sizeof(line) - (size_t)length, s);
    length += snprintf(line + length, sizeof(line) - (size_t)length, "}\n");
    lh_assert((size_t)length < sizeof(line));
    metrics_line(m, line, length);
}

void metrics_links(metrics_t *m, const run_start_t *start)
{
    char head[METRICS_HEAD];
    text_t line = {0};
    bool any = false;
    for (uint32_t i = 0; i < start->link_count; i++)
        any |= start->links[i].figures.measured_s != 0;
    json_writer_t rows = {.to = &line, .style = JSON_SPACED};
    metrics_head(start->first_step, head);
    if (any) {
        text_printf(&line, "%s, \"links\": ", head);
        link_record_rows(&rows, NULL, start->links, start->link_count);
        text_append(&line, "}\n");
    }
    if (line.length > 0 && !line.failed) metrics_line(m, line.data, (int)line.length);
    text_free(&line);
}

void metrics_evaluated(metrics_t *m, const evaluation_report_t *e)
{
    char line[320], head[METRICS_HEAD], a[32], b[32], c[32];
    metrics_head(e->step, head);
    metrics_line(m, line,
                 snprintf(line, sizeof(line),
                          "%s, \"evaluation\": {\"loss\": %s, \"perplexity\": %s, "
                          "\"tokens\": %llu, \"seconds\": %s}}\n",
                          head, number(e->loss, a), number(exp(e->loss), b),
                          (unsigned long long)e->tokens, number(e->seconds, c)));
}

void metrics_saved(metrics_t *m, const save_report_t *s)
{
    char line[256], head[METRICS_HEAD], a[32];
    metrics_head(s->step, head);
    metrics_line(m, line,
                 snprintf(line, sizeof(line),
                          "%s, \"save\": {\"committed\": %s, \"failed\": %s, "
                          "\"stall_s\": %s}}\n",
                          head, s->committed ? "true" : "false",
                          s->reason != NULL ? "true" : "false", number(s->stall_s, a)));
}

static void kinds_json(const memory_report_t *m, const char *name, text_t *out)
{
    text_printf(out, "\"%s\": {", name);
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        if (m->bytes[k] > 0)
            text_printf(out, "\"%s\": %llu, ", memory_kind_text(k),
                        (unsigned long long)m->bytes[k]);
    text_printf(out, "\"total\": %llu}", (unsigned long long)m->total_bytes);
}

lh_status_t metrics_memory(metrics_t *m, const run_end_t *end)
{
    text_t line = {0};
    char head[METRICS_HEAD];
    metrics_head(end->steps, head);
    text_printf(&line, "%s, \"memory\": [", head);
    for (uint32_t i = 0; i < end->memory_count; i++) {
        const rank_memory_t *r = &end->memory[i];
        text_printf(&line, "%s{\"rank\": %u, ", i == 0 ? "" : ", ", r->rank);
        kinds_json(&r->planned, "planned", &line);
        text_append(&line, ", ");
        kinds_json(&r->measured, "measured", &line);
        if (r->device_bytes > 0)
            text_printf(&line, ", \"device\": %llu", (unsigned long long)r->device_bytes);
        text_printf(&line, ", \"resident\": %llu}", (unsigned long long)r->resident_bytes);
    }
    text_append(&line, "]}\n");
    const lh_status_t status = text_status(&line);
    if (status == LH_OK) metrics_line(m, line.data, (int)line.length);
    text_free(&line);
    return status;
}

/* UINT64_MAX for what is no line of a step: it is then left out like steps that come again. */
static uint64_t line_step(const char *line, size_t length)
{
    json_document_t *document;
    if (json_parse("metrics.jsonl", line, length, UINT64_MAX, &document) != LH_OK) document = NULL;
    const json_value_t *root = json_root(document);
    const json_value_t *step = json_member(root, "step");
    const uint64_t number_of = json_is_whole(step) ? (uint64_t)json_whole(step) : UINT64_MAX;
    json_free(document);
    return number_of;
}

/* Keeps the whole lines of steps up to last. */
static lh_status_t keep_until(const char *path, uint64_t last)
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
        if (line_step(data + at, bytes) <= last) text_append_n(&kept, data + at, bytes);
        at += bytes;
    }
    status = text_status(&kept);
    if (status == LH_OK)
        status = file_replace(path, kept.data == NULL ? "" : kept.data, kept.length);
    text_free(&kept);
    mem_free(data);
    return status;
}

lh_status_t metrics_open(metrics_t *m, const char *folder, uint64_t first_step)
{
    *m = (metrics_t){.file.fd = -1};
    const int length = snprintf(m->path, sizeof(m->path), "%s/metrics.jsonl", folder);
    if (length < 0 || (size_t)length >= sizeof(m->path))
        return fail(LH_INVALID, "%s: path too long for metrics", folder);

    if (first_step > 0) {
        const lh_status_t status = keep_until(m->path, first_step);
        if (status != LH_OK) return status;
    }
    const int how = O_APPEND | (first_step == 0 ? O_TRUNC : 0);
    return file_begin(m->path, how, &m->file.fd);
}

void metrics_close(metrics_t *m)
{
    if (m->file.lost > 0)
        log_line(LH_LOG_WARN, "%s: %llu lines of metrics were lost", m->path,
                 (unsigned long long)m->file.lost);
    if (m->file.fd >= 0) (void)sys()->close(m->file.fd);
    m->file = (file_records_t){.fd = -1};
}

static double real(const json_value_t *object, const char *key)
{
    const json_value_t *value = json_member(object, key);
    return json_is_numeric(value) ? json_number(value) : (double)NAN;
}

/* Lines of saves and of memory hold no point of a curve. */
static bool read_point(const char *line, size_t length, metrics_point_t *p)
{
    json_document_t *document;
    if (json_parse("metrics.jsonl", line, length, UINT64_MAX, &document) != LH_OK) document = NULL;
    const json_value_t *root = json_root(document);
    const json_value_t *step = json_member(root, "step");
    const json_value_t *evaluation = json_member(root, "evaluation");
    const bool usable = json_is_whole(step) && json_member(root, "save") == NULL &&
                        json_member(root, "memory") == NULL && json_member(root, "links") == NULL;

    if (usable) {
        *p = (metrics_point_t){.step = (uint64_t)json_whole(step),
                               .evaluation = evaluation != NULL};
        p->loss = real(evaluation != NULL ? evaluation : root, "loss");
        p->learning_rate = real(root, "learning_rate");
        p->gradient_norm = real(root, "gradient_norm");
        p->tokens_per_s = real(root, "tokens_per_s");
        p->seconds = real(root, "seconds");
        for (int i = 0; i < STEP_PARTS; i++)
            p->part_s[i] = real(json_member(root, "parts"), step_part_names[i]);
        const json_value_t *exposed = json_member(root, "exposed");
        for (int i = LH_LINK_NODE; exposed != NULL && i < STEP_SCOPES; i++)
            p->exposed_s[i] = real(exposed, step_scope_names[i]);
    }
    json_free(document);
    return usable;
}

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
