/* watch.c - hands every event to progress, metrics and event files.
 *
 * The observer comes last in this file; what it needs beyond the other files of the folder,
 * TensorBoard's event files, stands before it. Those are written by hand, field by field: the four
 * messages that a scalar takes do not justify a protobuf library. */
#include <watch/watch.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <longhaul/crc32c.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <watch/live.h>
#include <watch/metrics.h>
#include <watch/progress.h>
#include <watch/report.h>

/* ---- event files ---- */

enum { TAG_LIMIT = 128, RECORD_LIMIT = 256 };

struct watch_events {
    file_records_t file;
    char path[512];
};

/* A message as it is built. RECORD_LIMIT holds the longest that this file makes: a tag of TAG_LIMIT
 * bytes with all that stands around it. */
typedef struct buffer {
    unsigned char bytes[RECORD_LIMIT];
    size_t length;
} buffer_t;

/* Nothing checks for room here: callers keep to TAG_LIMIT, and the assertion is for who changes
 * that. */
static void buffer_put(buffer_t *b, const void *bytes, size_t length)
{
    lh_assert(b->length + length <= sizeof(b->bytes));
    memcpy(b->bytes + b->length, bytes, length);
    b->length += length;
}

static void put_byte(buffer_t *b, unsigned char byte)
{
    lh_assert(b->length < sizeof(b->bytes));
    b->bytes[b->length++] = byte;
}

/* Seven bits a byte, lowest first, the eighth set while more follow: protobuf's encoding of whole
 * numbers. */
static void put_varint(buffer_t *b, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte(b, (unsigned char)(value | 0x80));
    put_byte(b, (unsigned char)value);
}

/* The mask is that of the TFRecord format: rotated by 15 bits and added to a constant, so that a
 * checksum of data which holds checksums is not one of them. */
uint32_t watch_events_crc(const void *bytes, size_t length)
{
    const uint32_t crc = lh_crc32c(0, bytes, length);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* Frames data as a record: length, its checksum, data, its checksum; all little-endian. length and
 * checksums are written as they lie in memory, which is little-endian on every machine that this
 * program is built for. */
static void events_write_record(watch_events_t *f, const buffer_t *data)
{
    unsigned char record[RECORD_LIMIT + 16];
    const uint64_t length = data->length;
    const uint32_t head = watch_events_crc(&length, sizeof(length));
    const uint32_t tail = watch_events_crc(data->bytes, data->length);

    lh_assert(data->length + 16 <= sizeof(record));
    memcpy(record, &length, 8);
    memcpy(record + 8, &head, 4);
    memcpy(record + 12, data->bytes, data->length);
    memcpy(record + 12 + data->length, &tail, 4);
    if (file_records_add(&f->file, record, data->length + 16) || f->file.lost > 1) return;
    log_line(LH_LOG_WARN, "%s: cannot write: %s; records are lost until it can be written", f->path,
             strerror(errno));
}

/* Field 1 of every event, a double in seconds. */
static void put_wall_time(buffer_t *b)
{
    const double seconds = (double)sys()->wall_ns() * 1e-9;
    put_byte(b, 0x09); /* field 1, 64 bits */
    buffer_put(b, &seconds, 8);
}

/* The first record of each file: which version of the format follows, and who wrote it. */
static void write_version(watch_events_t *f)
{
    static const char version[] = "brain.Event:2", writer[] = "longhaul";
    buffer_t b = {.length = 0};

    put_wall_time(&b);
    put_byte(&b, 0x1A); /* field 3: file_version */
    put_varint(&b, sizeof(version) - 1);
    buffer_put(&b, version, sizeof(version) - 1);
    put_byte(&b, 0x52); /* field 10: source_metadata { 1: writer } */
    put_varint(&b, sizeof(writer) + 1);
    put_byte(&b, 0x0A);
    put_varint(&b, sizeof(writer) - 1);
    buffer_put(&b, writer, sizeof(writer) - 1);
    events_write_record(f, &b);
}

/* The name has host and process in it, as TensorBoard wants it, so two runs never share a file. */
lh_status_t watch_events_open(const char *folder, watch_events_t **out)
{
    watch_events_t *f = mem_new(sizeof(*f));
    if (f == NULL) return LH_NO_MEMORY;

    char host[64] = "localhost";
    (void)gethostname(host, sizeof(host) - 1);
    lh_status_t status = LH_OK;
    const int length = snprintf(f->path, sizeof(f->path), "%s/events.out.tfevents.%010llu.%s.%d",
                                folder, (unsigned long long)(sys()->wall_ns() / 1000000000u), host,
                                (int)getpid());
    if (length < 0 || (size_t)length >= sizeof(f->path)) {
        status = fail(LH_INVALID, "%s: path too long for an event file", folder);
        goto free_file;
    }
    status = file_begin(f->path, O_TRUNC | O_APPEND, &f->file.fd);
    if (status != LH_OK) goto free_file;
    write_version(f);
    *out = f;
    return LH_OK;

free_file:
    mem_free(f);
    return status;
}

/* Lengths of inner messages come before them, so they are computed from the inside out: value in
 * summary in event. A length of up to 127 takes a byte, a longer one two. */
void watch_events_scalar(watch_events_t *f, uint64_t step, const char *tag, double value)
{
    const size_t tag_length = strnlen(tag, TAG_LIMIT);
    const float simple = (float)value;
    buffer_t b = {.length = 0};

    put_wall_time(&b);
    if (step != 0) {
        put_byte(&b, 0x10); /* field 2: step */
        put_varint(&b, step);
    }
    const size_t entry = 1 + (tag_length > 127 ? 2u : 1u) + tag_length + 5;
    put_byte(&b, 0x2A); /* field 5: summary { 1: value { 1: tag, 2: simple_value } } */
    put_varint(&b, 1 + (entry > 127 ? 2u : 1u) + entry);
    put_byte(&b, 0x0A);
    put_varint(&b, entry);
    put_byte(&b, 0x0A);
    put_varint(&b, tag_length);
    buffer_put(&b, tag, tag_length);
    put_byte(&b, 0x15);
    buffer_put(&b, &simple, 4);
    events_write_record(f, &b);
}

/* The file stays: TensorBoard reads what is there. */
void watch_events_close(watch_events_t *f)
{
    if (f == NULL) return;
    if (f->file.lost > 0)
        log_line(LH_LOG_WARN, "%s: %llu records were lost", f->path,
                 (unsigned long long)f->file.lost);
    (void)sys()->close(f->file.fd);
    mem_free(f);
}

/* ---- the observer ---- */

/* Owns everything but plugins. The observer's functions cast back from their first argument. */
struct watch {
    observer_t observer; /* first: an observer_t * is a watch_t * */
    char *folder;
    uint64_t log_every;
    progress_line_t progress;
    metrics_t metrics;
    watch_events_t *events;
    job_watch_t how;
    live_t *live;
    int log;
    const registry_t *plugins;     /* NULL: train.log names none */
    void (*opened)(void *context); /* or NULL */
    void *opened_context;
    run_start_t start;
    memory_report_t memory;
    probe_pair_t *links; /* of start */
    char *texts[12];     /* the strings of start */
};

/* The observer's texts live only during the call, the report is written at the end. A text that
 * could not be copied for want of memory is empty: the report then lacks a word and not the run its
 * report. */
static void keep_start(watch_t *w, const run_start_t *s)
{
    w->start = *s;
    const char **texts[] = {&w->start.name,
                            &w->start.folder,
                            &w->start.model,
                            &w->start.optimizer,
                            &w->start.rule,
                            &w->start.device_name,
                            &w->start.precision,
                            &w->start.restart_reason,
                            &w->start.values_way,
                            &w->start.cards[LH_LINK_NODE],
                            &w->start.cards[LH_LINK_SITE],
                            &w->start.cards[LH_LINK_WAN]};
    _Static_assert(sizeof(texts) / sizeof(texts[0]) == sizeof(w->texts) / sizeof(w->texts[0]),
                   "each has its copy");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        w->texts[i] = *texts[i] == NULL ? NULL : mem_text(*texts[i]);
        *texts[i] = w->texts[i] == NULL ? "" : w->texts[i];
    }
    if (s->memory != NULL) {
        w->memory = *s->memory;
        w->start.memory = &w->memory;
    }
    w->links = mem_array(s->link_count, sizeof(*w->links));
    w->start.links = w->links;
    if (w->links == NULL)
        w->start.link_count = 0;
    else if (s->link_count > 0)
        memcpy(w->links, s->links, s->link_count * sizeof(*w->links));
}

/* What a link promises against others on the network is part of how a run was made. */
static void note_transports(const run_start_t *s)
{
    static const char *const classes[] = {NULL, "inside a machine", "inside a site",
                                          "between sites"};
    for (uint32_t k = LH_LINK_NODE; k < STEP_SCOPES; k++)
        if (s->transports[k] != NULL)
            log_note(LH_LOG_INFO, "links %s over %s: security = %s", classes[k], s->transports[k],
                     s->security[k]);
    if (s->values_way != NULL && s->values_way[0] != '\0')
        log_note(LH_LOG_INFO, "%s", s->values_way);
}

/* They were measured before there was a train.log. log_note writes to train.log and not to the
 * terminal, which has shown them. */
static void note_links(const run_start_t *s)
{
    char text[512];
    for (uint32_t i = 0; i < s->link_count; i++) {
        if (s->links[i].figures.measured_s == 0) continue;
        link_probe_text(&s->links[i], text, sizeof(text));
        log_note(LH_LOG_INFO, "%s", text);
    }
}

/* Which builds these were, for whoever asks later; the terminal has no use for it. So a run can be
 * told from one with another build, long after both are gone. */
static void note_plugins(const registry_t *plugins)
{
    for (uint32_t i = 0; plugins != NULL && i < registry_count(plugins); i++) {
        const plugin_t *p = registry_at(plugins, i);
        const char *build = p->origin.build[0] != '\0' ? p->origin.build : "none";
        const char *libraries = p->origin.libraries != NULL ? p->origin.libraries : "none";
        log_note(LH_LOG_INFO,
                 "plugin %s %s %s: sha256 %s, abi %u.%u, build-id %s, new libraries: %s",
                 plugin_kind_text(p->kind), p->name, p->version, p->sha256,
                 p->row.abi_version >> 16, p->row.abi_version & 0xffff, build, libraries);
    }
}

/* A run that is gone on with appends to train.log, and so does one that its launcher has started
 * again before it had a checkpoint; a fresh one begins it anew. The order is that in which lines
 * should stand in the log: plugins, links, then what progress says of the run. */
static void on_begin(observer_t *o, const run_start_t *s)
{
    watch_t *w = (watch_t *)o;
    keep_start(w, s);
    char *log_path = path_join(w->folder, "train.log");
    char *events = path_join(w->folder, "events");
    if (log_path != NULL) {
        const int how = O_APPEND | (s->first_step == 0 && s->restarts == 0 ? O_TRUNC : 0);
        if (file_begin(log_path, how, &w->log) != LH_OK) log_line(LH_LOG_WARN, "%s", fail_reason());
        log_also(w->log, log_path);
        if (w->log >= 0 && w->opened != NULL) w->opened(w->opened_context);
        note_plugins(w->plugins);
        note_transports(s);
        note_links(s);
    }
    if (metrics_open(&w->metrics, w->folder, s) != LH_OK)
        log_line(LH_LOG_WARN, "%s", fail_reason());
    w->metrics.ranks = s->ranks;
    metrics_restart(&w->metrics, s);
    metrics_links(&w->metrics, s);
    if (events == NULL || folder_make(events) != LH_OK ||
        watch_events_open(events, &w->events) != LH_OK)
        log_line(LH_LOG_WARN, "no event files: %s", fail_reason());
    mem_free(events);
    mem_free(log_path);
    progress_begin(&w->progress, s, w->log_every);
    live_begin(w->live, &w->start);
}

/* Progress first: a person should not wait for a slow disk. */
static void on_step(observer_t *o, const step_report_t *s)
{
    watch_t *w = (watch_t *)o;
    progress_step(&w->progress, s);
    for (uint32_t i = 0; i < s->change_count; i++)
        metrics_retuned(&w->metrics, &s->changes[i]);
    metrics_step(&w->metrics, s);
    live_step(w->live, s);
    if (w->events == NULL) return;
    watch_events_scalar(w->events, s->step, "train/loss", s->loss);
    watch_events_scalar(w->events, s->step, "train/learning_rate", s->learning_rate);
    watch_events_scalar(w->events, s->step, "train/gradient_norm", s->gradient_norm);
    watch_events_scalar(w->events, s->step, "train/tokens_per_s", s->tokens_per_s);
}

/* The loss is drawn beside the training loss, as valid/loss. */
static void on_evaluated(observer_t *o, const evaluation_report_t *e)
{
    watch_t *w = (watch_t *)o;
    progress_evaluated(&w->progress, e);
    metrics_evaluated(&w->metrics, e);
    live_evaluated(w->live, e);
    if (w->events != NULL) watch_events_scalar(w->events, e->step, "valid/loss", e->loss);
}

/* Event files have curves alone, and a save is none. */
static void on_saved(observer_t *o, const save_report_t *s)
{
    watch_t *w = (watch_t *)o;
    progress_saved(&w->progress, s);
    metrics_saved(&w->metrics, s);
    live_saved(w->live, s);
}

/* metrics.jsonl is closed before the report is made, which is read from it. */
static void on_end(observer_t *o, const run_end_t *e)
{
    watch_t *w = (watch_t *)o;
    progress_end(&w->progress, e);
    live_end(w->live, e);
    if (e->memory_count > 0 && metrics_memory(&w->metrics, e) != LH_OK)
        log_line(LH_LOG_WARN, "%s", fail_reason());
    metrics_close(&w->metrics);
    watch_events_close(w->events);
    w->events = NULL;
    if (report_write(w->folder, &w->start, e) != LH_OK)
        log_line(LH_LOG_WARN, "no report: %s", fail_reason());
    else
        log_line(LH_LOG_INFO, "report: %s/report.html", w->folder);
}

/* metrics and log have no file yet, which -1 says. */
lh_status_t watch_new(const job_t *job, watch_t **out)
{
    watch_t *w = mem_new(sizeof(*w));
    if (w == NULL) return LH_NO_MEMORY;
    w->observer = (observer_t){on_begin, on_step, on_evaluated, on_saved, on_end};
    w->log_every = job->train.log_every;
    w->log = -1;
    w->metrics.file.fd = -1;
    w->folder = mem_text(job->pipeline.folder);
    lh_status_t status = w->folder == NULL ? LH_NO_MEMORY : job_watch_parse(job, &w->how);
    if (status == LH_OK) status = live_new(w->folder, &w->how, &w->live);
    if (status != LH_OK) {
        job_watch_free(&w->how);
        mem_free(w->folder);
        mem_free(w);
        return status;
    }
    *out = w;
    return LH_OK;
}

void watch_plugins(watch_t *w, const registry_t *plugins)
{
    w->plugins = plugins;
}

void watch_opened(watch_t *w, void (*opened)(void *context), void *context)
{
    w->opened = opened;
    w->opened_context = context;
}

void watch_asked(watch_t *w, uint64_t step)
{
    live_asked(w->live, step);
}

observer_t *watch_observer(watch_t *w)
{
    return &w->observer;
}

/* log_also(-1, "") first: from then on no line goes to a descriptor that is closed next. */
void watch_free(watch_t *w)
{
    if (w == NULL) return;
    live_free(w->live);
    metrics_close(&w->metrics);
    watch_events_close(w->events);
    log_also(-1, "");
    if (w->log >= 0) (void)sys()->close(w->log);
    for (size_t i = 0; i < sizeof(w->texts) / sizeof(w->texts[0]); i++)
        mem_free(w->texts[i]);
    mem_free(w->links);
    job_watch_free(&w->how);
    mem_free(w->folder);
    mem_free(w);
}
