/* watch.c - hands every event to progress, metrics and event files. */
#include <watch/watch.h>

#include <fcntl.h>
#include <string.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <watch/event_file.h>
#include <watch/metrics.h>
#include <watch/progress.h>
#include <watch/report.h>

struct watch {
    observer_t observer; /* first: an observer_t * is a watch_t * */
    char *folder;
    uint64_t log_every;
    progress_line_t progress;
    metrics_t metrics;
    event_file_t *events;
    int log;
    const registry_t *plugins;     /* NULL: train.log names none */
    void (*opened)(void *context); /* or NULL */
    void *opened_context;
    run_start_t start;
    memory_report_t memory;
    probe_pair_t *links; /* of start */
    char *texts[7];      /* the strings of start */
};

/* The observer's texts live only during the call, the report is written at the end. */
static void keep_start(watch_t *w, const run_start_t *s)
{
    w->start = *s;
    const char **texts[] = {&w->start.name,      &w->start.folder, &w->start.model,
                            &w->start.optimizer, &w->start.rule,   &w->start.device_name,
                            &w->start.precision};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        w->texts[i] = mem_text(*texts[i]);
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

/* They were measured before there was a train.log. */
static void note_links(const run_start_t *s)
{
    char text[512];
    for (uint32_t i = 0; i < s->link_count; i++) {
        if (s->links[i].figures.measured_s == 0) continue;
        link_probe_text(&s->links[i], text, sizeof(text));
        log_note("%s", text);
    }
}

/* Which builds these were, for whoever asks later; the terminal has no use for it. */
static void note_plugins(const registry_t *plugins)
{
    for (uint32_t i = 0; plugins != NULL && i < registry_count(plugins); i++) {
        const plugin_t *p = registry_at(plugins, i);
        const char *build = p->origin.build[0] != '\0' ? p->origin.build : "none";
        const char *libraries = p->origin.libraries != NULL ? p->origin.libraries : "none";
        log_note("plugin %s %s %s: sha256 %s, abi %u.%u, build-id %s, new libraries: %s",
                 plugin_kind_text(p->kind), p->name, p->version, p->sha256,
                 p->row.abi_version >> 16, p->row.abi_version & 0xffff, build, libraries);
    }
}

static void on_begin(observer_t *o, const run_start_t *s)
{
    watch_t *w = (watch_t *)o;
    keep_start(w, s);
    char *log_path = path_join(w->folder, "train.log");
    char *events = path_join(w->folder, "events");
    if (log_path != NULL) {
        const int how = O_APPEND | (s->first_step == 0 ? O_TRUNC : 0);
        if (file_begin(log_path, how, &w->log) != LH_OK) log_line(LH_LOG_WARN, "%s", fail_reason());
        log_also(w->log, log_path);
        if (w->log >= 0 && w->opened != NULL) w->opened(w->opened_context);
        note_plugins(w->plugins);
        note_links(s);
    }
    if (metrics_open(&w->metrics, w->folder, s->first_step) != LH_OK)
        log_line(LH_LOG_WARN, "%s", fail_reason());
    w->metrics.ranks = s->ranks;
    metrics_links(&w->metrics, s);
    if (events == NULL || folder_make(events) != LH_OK ||
        event_file_open(events, &w->events) != LH_OK)
        log_line(LH_LOG_WARN, "no event files: %s", fail_reason());
    mem_free(events);
    mem_free(log_path);
    progress_begin(&w->progress, s, w->log_every);
}

static void on_step(observer_t *o, const step_report_t *s)
{
    watch_t *w = (watch_t *)o;
    progress_step(&w->progress, s);
    metrics_step(&w->metrics, s);
    if (w->events == NULL) return;
    event_file_scalar(w->events, s->step, "train/loss", s->loss);
    event_file_scalar(w->events, s->step, "train/learning_rate", s->learning_rate);
    event_file_scalar(w->events, s->step, "train/gradient_norm", s->gradient_norm);
    event_file_scalar(w->events, s->step, "train/tokens_per_s", s->tokens_per_s);
}

static void on_evaluated(observer_t *o, const evaluation_report_t *e)
{
    watch_t *w = (watch_t *)o;
    progress_evaluated(&w->progress, e);
    metrics_evaluated(&w->metrics, e);
    if (w->events != NULL) event_file_scalar(w->events, e->step, "valid/loss", e->loss);
}

static void on_saved(observer_t *o, const save_report_t *s)
{
    watch_t *w = (watch_t *)o;
    progress_saved(&w->progress, s);
    metrics_saved(&w->metrics, s);
}

static void on_end(observer_t *o, const run_end_t *e)
{
    watch_t *w = (watch_t *)o;
    progress_end(&w->progress, e);
    if (e->memory_count > 0 && metrics_memory(&w->metrics, e) != LH_OK)
        log_line(LH_LOG_WARN, "%s", fail_reason());
    metrics_close(&w->metrics);
    event_file_close(w->events);
    w->events = NULL;
    if (report_write(w->folder, &w->start, e) != LH_OK)
        log_line(LH_LOG_WARN, "no report: %s", fail_reason());
    else
        log_line(LH_LOG_INFO, "report: %s/report.html", w->folder);
}

lh_status_t watch_new(const char *folder, uint64_t log_every, watch_t **out)
{
    watch_t *w = mem_new(sizeof(*w));
    if (w == NULL) return LH_NO_MEMORY;
    w->observer = (observer_t){on_begin, on_step, on_evaluated, on_saved, on_end};
    w->log_every = log_every;
    w->log = -1;
    w->metrics.file.fd = -1;
    w->folder = mem_text(folder);
    if (w->folder == NULL) {
        mem_free(w);
        return LH_NO_MEMORY;
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

observer_t *watch_observer(watch_t *w)
{
    return &w->observer;
}

void watch_free(watch_t *w)
{
    if (w == NULL) return;
    metrics_close(&w->metrics);
    event_file_close(w->events);
    log_also(-1, "");
    if (w->log >= 0) (void)sys()->close(w->log);
    for (size_t i = 0; i < sizeof(w->texts) / sizeof(w->texts[0]); i++)
        mem_free(w->texts[i]);
    mem_free(w->links);
    mem_free(w->folder);
    mem_free(w);
}
