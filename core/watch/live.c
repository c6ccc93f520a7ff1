/* live.c - the thread that tells how a run fares.
 *
 * status.json is replaced by a rename, so that a reader never sees half of it, and without fsync: it
 * is worth nothing after a power loss. It is made in memory that is there from the start. In a file
 * system over the network a rename is what another machine sees soonest. */
#include <watch/live.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <format/json.h>
#include <watch/metrics.h>
#include <watch/report.h>
#include <watch/scrape.h>

/* STATUS_BYTES: room for the text, that no step nor second allocates; of a file that is read, the
 * most. */
enum { STATUS_BYTES = 1 << 14, PERIOD_S = 1 };

struct live {
    char *path, *temporary; /* of status.json */
    pthread_t thread;
    bool runs, began;
    const job_watch_t *how;
    const run_start_t *start;
    char *folder, *textfile; /* textfile: under which name it is written; NULL: none is wanted */
    scrape_t *scrape;        /* NULL: nothing is served */
    pthread_mutex_t lock;    /* of what follows */
    pthread_cond_t changed;  /* something worth telling at once, or the end */
    bool hurries, ends;
    run_state_t state;
    /* Of the thread, or of the caller where there is none; and of the one that serves figures. */
    pthread_mutex_t work; /* taken before `lock` */
    run_state_t copy;
    lateness_t late;
    uint64_t room; /* UINT64_MAX: not known */
    text_t text, figures;
    uint64_t report_at; /* when the report is due */
};

/* ---- writing ---- */

/* A file that can't be written is tried again a second later, without a word: metrics.jsonl has
 * warned of the same disk already. */
static void live_replace(const text_t *text, const char *temporary, const char *path)
{
    if (text->failed) return;
    const int fd = sys_open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
    if (fd < 0) return;
    const bool written = file_write(fd, temporary, text->data, text->length) == LH_OK;
    if (sys()->close(fd) == 0 && written)
        (void)sys_rename(temporary, path);
    else
        (void)sys()->unlink(temporary);
    fail_clear();
}

/* Left where the run writes; asked of the folder that metrics.jsonl is in, as one that hangs holds up
 * this thread. */
static uint64_t live_room(const live_t *l)
{
    struct statvfs room;
    const int fd = sys_open(l->folder, O_RDONLY | O_DIRECTORY, 0);
    const bool known = fd >= 0 && sys()->fstatvfs(fd, &room) == 0;
    if (fd >= 0) (void)sys()->close(fd);
    return known ? (uint64_t)room.f_bavail * room.f_frsize : UINT64_MAX;
}

/* The state is copied under its lock, and nothing else done there. `work` guards the rest, which the
 * thread that serves figures reads too: no file is touched while it is held. */
static void live_write(live_t *l)
{
    const uint64_t room = live_room(l);
    (void)pthread_mutex_lock(&l->work);
    (void)pthread_mutex_lock(&l->lock);
    l->copy = l->state;
    l->hurries = false;
    (void)pthread_mutex_unlock(&l->lock);
    l->room = room;
    run_lateness_look(&l->late);
    run_state_write(&l->copy, &l->late, &l->text);
    if (l->textfile != NULL) live_figures_write(&l->copy, &l->late, l->start, l->room, &l->figures);
    (void)pthread_mutex_unlock(&l->work);
    live_replace(&l->text, l->temporary, l->path);
    if (l->textfile != NULL) live_replace(&l->figures, l->textfile, l->how->textfile);
}

/* As the page of scrape_open: the state of this moment, with what the last second knew of the
 * others. */
static void live_page(void *context, text_t *out)
{
    live_t *l = context;
    (void)pthread_mutex_lock(&l->work);
    (void)pthread_mutex_lock(&l->lock);
    l->copy = l->state;
    (void)pthread_mutex_unlock(&l->lock);
    live_figures_write(&l->copy, &l->late, l->start, l->room, out);
    (void)pthread_mutex_unlock(&l->work);
}

/* The page of the run so far. Reading a long metrics.jsonl takes its time: it is made so seldom that
 * it takes a hundredth of one processor at most. */
static void live_report(live_t *l)
{
    const uint64_t now = sys()->now_ns();
    if (l->how->report_ns == 0 || now < l->report_at) return;
    const run_end_t so_far = {.steps = l->copy.last.step,
                              .seconds = (double)(now - l->copy.started_at) * 1e-9};
    if (report_write(l->folder, l->start, &so_far) != LH_OK) fail_clear();
    const uint64_t end = sys()->now_ns(), pause = 100 * (end - now);
    l->report_at = end + (pause > l->how->report_ns ? pause : l->how->report_ns);
}

/* Waits for the next second, or for what is worth telling at once. False: the end. */
static bool live_wait(live_t *l)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PERIOD_S;
    (void)pthread_mutex_lock(&l->lock);
    while (!l->ends && !l->hurries &&
           pthread_cond_timedwait(&l->changed, &l->lock, &until) != ETIMEDOUT) {
    }
    const bool goes_on = !l->ends;
    (void)pthread_mutex_unlock(&l->lock);
    return goes_on;
}

static void *live_run(void *argument)
{
    live_t *l = argument;
    l->report_at = sys()->now_ns() + l->how->report_ns;
    do {
        live_write(l);
        live_report(l);
    } while (live_wait(l));
    return NULL;
}

/* ---- what training tells ---- */

/* Beside the file, under a name that no node exporter reads; "" where there is none. */
static char *live_beside(const char *path)
{
    text_t text = {0};
    char *folder = path_folder(path);
    if (folder == NULL) return NULL;
    text_printf(&text, "%s/.%s.tmp", folder, path_name(path));
    mem_free(folder);
    return text.data;
}

lh_status_t live_new(const char *folder, const job_watch_t *how, live_t **out)
{
    pthread_condattr_t clock;
    live_t *l = mem_new(sizeof(*l));
    if (l == NULL) return LH_NO_MEMORY;
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&l->changed, &clock);
    (void)pthread_condattr_destroy(&clock);
    l->path = path_join(folder, "status.json");
    l->temporary = path_join(folder, ".status.json.tmp");
    (void)pthread_mutex_init(&l->work, NULL);
    l->how = how;
    l->folder = mem_text(folder);
    if (how->textfile != NULL) l->textfile = live_beside(how->textfile);
    text_printf(&l->text, "%*s", STATUS_BYTES, "");
    text_printf(&l->figures, "%*s", STATUS_BYTES, "");
    if (l->path == NULL || l->temporary == NULL || l->folder == NULL || l->text.failed ||
        l->figures.failed || (how->textfile != NULL && l->textfile == NULL)) {
        live_free(l);
        return LH_NO_MEMORY;
    }
    *out = l;
    return LH_OK;
}

/* A training that is gone on with counts those before it: what the file said that they left. */
static uint64_t live_restarts(const char *path)
{
    json_document_t *document = NULL;
    uint64_t before = 0;
    if (!file_exists(path) || json_read(path, STATUS_BYTES * 4, UINT64_MAX, &document) != LH_OK)
        document = NULL;
    if (!json_count(json_member(json_root(document), "restarts"), &before)) before = 0;
    json_free(document);
    fail_clear();
    return before + 1;
}

static void live_serve(live_t *l)
{
    if (l->how->metrics == NULL) return;
    if (scrape_open(l->how->metrics, live_page, l, &l->scrape) == LH_OK)
        log_line(LH_LOG_INFO, "figures for Prometheus: port %u, /metrics", scrape_port(l->scrape));
    else
        log_line(LH_LOG_WARN, "figures are not served: %s", fail_reason());
}

/* Signals are the other threads': this one must not be the one that takes SIGTERM. */
void live_begin(live_t *l, const run_start_t *start)
{
    sigset_t all, before;
    run_state_begin(&l->state, start);
    if (start->first_step > 0 || start->restarts > 0) l->state.restarts = live_restarts(l->path);
    if (run_lateness_new(start->control, start->world, &l->late) != LH_OK) fail_clear();
    l->began = true;
    l->start = start;
    l->room = UINT64_MAX;
    live_serve(l);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&l->thread, NULL, live_run, l);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    l->runs = error == 0;
    if (l->runs) return;
    log_line(LH_LOG_WARN, "%s is not renewed: %s", l->path, strerror(error));
    live_write(l);
}

/* Every change comes through here. hurries: it is to be seen at once and not within a second. */
static void live_unlock(live_t *l, bool hurries)
{
    l->hurries = l->hurries || hurries;
    if (hurries) (void)pthread_cond_signal(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}

void live_step(live_t *l, const step_report_t *step)
{
    (void)pthread_mutex_lock(&l->lock);
    run_state_step(&l->state, step);
    live_unlock(l, false);
}

void live_evaluated(live_t *l, const evaluation_report_t *e)
{
    (void)pthread_mutex_lock(&l->lock);
    run_state_evaluated(&l->state, e);
    live_unlock(l, false);
}

void live_saved(live_t *l, const save_report_t *save)
{
    (void)pthread_mutex_lock(&l->lock);
    run_state_saved(&l->state, save);
    live_unlock(l, true);
}

void live_asked(live_t *l, uint64_t step)
{
    (void)pthread_mutex_lock(&l->lock);
    l->state.asked_step = step;
    live_unlock(l, true);
}

static void live_join(live_t *l)
{
    scrape_close(l->scrape);
    l->scrape = NULL;
    if (!l->runs) return;
    (void)pthread_mutex_lock(&l->lock);
    l->ends = true;
    live_unlock(l, true);
    (void)pthread_join(l->thread, NULL);
    l->runs = false;
}

/* The thread first: from here on the other ranks may be gone, and with them whoever could be late. */
void live_end(live_t *l, const run_end_t *end)
{
    live_join(l);
    run_state_end(&l->state, end);
    l->late.control = NULL;
    l->late.count = l->late.shown = 0;
    if (l->began) live_write(l);
}

void live_free(live_t *l)
{
    if (l == NULL) return;
    live_join(l);
    run_lateness_free(&l->late);
    (void)pthread_cond_destroy(&l->changed);
    (void)pthread_mutex_destroy(&l->lock);
    (void)pthread_mutex_destroy(&l->work);
    text_free(&l->figures);
    text_free(&l->text);
    mem_free(l->textfile);
    mem_free(l->folder);
    mem_free(l->temporary);
    mem_free(l->path);
    mem_free(l);
}

/* ---- figures for Prometheus ------------------------------------------------------------------ */

/* The state of a run in Prometheus' text format.
 *
 * Times and waits are counters of seconds and not gauges of the last step: whoever scrapes each
 * quarter of a minute sees all steps in between, and rate() of two counters is the share that one
 * has in the other. A figure that is not known is left out, as a gap is truer than a nought. */

typedef struct figures {
    text_t *out;
    char run[2 * STATE_TEXT]; /* as a label's value, escaped */
} figures_t;

/* A label's value: backslash, quote and new line are escaped; control characters become blanks. */
static void figures_escape(const char *from, char *to, size_t room)
{
    size_t length = 0;
    for (; *from != '\0' && length + 3 < room; from++) {
        const char c = *from;
        if (c == '\\' || c == '"') to[length++] = '\\';
        to[length++] = (unsigned char)c < ' ' ? ' ' : c;
    }
    to[length] = '\0';
    to[text_utf8_prefix(to, length)] = '\0';
}

/* The two lines that every name has once, before its samples. */
static void figures_name(figures_t *f, const char *name, const char *type, const char *help)
{
    text_printf(f->out, "# HELP longhaul_%s %s\n# TYPE longhaul_%s %s\n", name, help, name, type);
}

/* labels: more of them, as `,part="data"`, or "". */
static void figures_sample(figures_t *f, const char *name, const char *labels, double value)
{
    text_printf(f->out, "longhaul_%s{run=\"%s\"%s} %.17g\n", name, f->run, labels, value);
}

static void figures_one(figures_t *f, const char *name, const char *type, const char *help,
                        double value)
{
    if (!isfinite(value)) return;
    figures_name(f, name, type, help);
    figures_sample(f, name, "", value);
}

static void figures_gauge(figures_t *f, const char *name, const char *help, double value)
{
    figures_one(f, name, "gauge", help, value);
}

static void figures_counter(figures_t *f, const char *name, const char *help, double value)
{
    figures_one(f, name, "counter", help, value);
}

/* Seconds since 1970, as PromQL's time(); left out where it has not happened. */
static void figures_moment(figures_t *f, const char *name, const char *help, uint64_t wall)
{
    figures_gauge(f, name, help, wall == 0 ? (double)NAN : (double)wall * 1e-9);
}

static void figures_of_run(figures_t *f, const run_state_t *s)
{
    char model[2 * STATE_TEXT], host[2 * STATE_TEXT];
    figures_escape(s->model, model, sizeof(model));
    figures_escape(s->host, host, sizeof(host));
    figures_name(f, "run_info", "gauge", "What the run is; always 1.");
    text_printf(f->out, "longhaul_run_info{run=\"%s\",model=\"%s\",host=\"%s\",version=\"%s\"} 1\n",
                f->run, model, host, LH_VERSION);
    figures_gauge(f, "running", "1 while it trains, 0 once it has ended.", !s->ended);
    figures_gauge(f, "ranks", "Ranks of the job.", s->ranks);
    figures_gauge(f, "sites", "Sites of the job.", s->sites);
    figures_gauge(f, "parameters", "Parameters of the model.", (double)s->parameters);
    figures_moment(f, "start_time_seconds", "When training began or was gone on with.",
                   s->started_wall);
    figures_counter(f, "restarts_total", "How often training was gone on with in this folder.",
                    (double)s->restarts);
    figures_counter(f, "launcher_restarts_total",
                    "Of these, by the launcher of this run, after a lost rank or link.",
                    (double)s->launcher_restarts);
}

static void figures_of_steps(figures_t *f, const run_state_t *s)
{
    const step_report_t *r = &s->last;
    const bool made = s->seconds_a_step > 0;
    figures_gauge(f, "step", "Steps made since the start of training.", (double)r->step);
    figures_gauge(f, "planned_steps", "Steps that the run is to make.", (double)s->steps);
    figures_gauge(f, "loss", "Loss of the last step, over the global batch.", r->loss);
    figures_gauge(f, "cross_entropy", "The same without what the model adds to it.",
                  r->cross_entropy);
    if (made) {
        figures_gauge(f, "learning_rate", "Learning rate of the last step.", r->learning_rate);
        figures_gauge(f, "gradient_norm", "Global norm of the gradients, before clipping.",
                      r->gradient_norm);
        figures_counter(f, "tokens_total", "Tokens since the start of training.",
                        (double)r->tokens);
        figures_gauge(f, "tokens_per_second", "Tokens a second in the last step, of all ranks.",
                      r->tokens_per_s);
        figures_gauge(f, "step_seconds", "Mean time of a step, over some twenty.",
                      s->seconds_a_step);
        figures_gauge(f, "left_seconds", "Time that is left at that pace.",
                      (double)(s->steps - r->step) * s->seconds_a_step);
    }
    if (made && s->peak_flops > 0)
        figures_gauge(f, "peak_ratio", "Share of the measured rate of the device's matmuls.",
                      s->flops_per_step / s->seconds_a_step / s->peak_flops);
    figures_counter(f, "refused_steps_total", "Steps of this run that were not applied.",
                    (double)s->refused);
    figures_counter(f, "steps_seconds_total", "Time of all steps of this run.", s->seconds_sum);
    figures_name(f, "part_seconds_total", "counter", "Time of the parts of steps of this run.");
    for (int i = 0; i < STEP_PARTS; i++) {
        char label[64];
        (void)snprintf(label, sizeof(label), ",part=\"%s\"", step_part_names[i]);
        figures_sample(f, "part_seconds_total", label, s->part_sum[i]);
    }
    if (s->ranks < 2) return;
    figures_name(f, "exposed_seconds_total", "counter",
                 "Time that steps of rank 0 waited for transfers, by class of link.");
    for (int i = LH_LINK_NODE; i < STEP_SCOPES; i++) {
        char label[64];
        (void)snprintf(label, sizeof(label), ",link=\"%s\"", step_scope_names[i]);
        figures_sample(f, "exposed_seconds_total", label, s->exposed_sum[i]);
    }
}

static void figures_of_saves(figures_t *f, const run_state_t *s, uint64_t free_bytes)
{
    if (s->evaluation_wall != 0) {
        figures_gauge(f, "evaluation_loss", "Held-out loss, mean over tokens.", s->evaluation.loss);
        figures_gauge(f, "evaluation_step", "The step after which it was found.",
                      (double)s->evaluation.step);
    }
    figures_name(f, "saves_total", "counter", "Checkpoints of this run, by what became of them.");
    figures_sample(f, "saves_total", ",result=\"committed\"", (double)s->saves);
    figures_sample(f, "saves_total", ",result=\"failed\"", (double)s->failures);
    if (s->saved.wall != 0)
        figures_gauge(f, "saved_step", "Step of the last checkpoint of this run.",
                      (double)s->saved.step);
    figures_moment(f, "saved_time_seconds", "When it was committed.", s->saved.wall);
    if (s->snapshots + s->snapshot_failures > 0) {
        figures_name(f, "snapshots_total", "counter",
                     "Snapshots that stay in memory, by what became of them.");
        figures_sample(f, "snapshots_total", ",result=\"kept\"", (double)s->snapshots);
        figures_sample(f, "snapshots_total", ",result=\"failed\"", (double)s->snapshot_failures);
    }
    if (s->kept.wall != 0)
        figures_gauge(f, "snapshot_step", "Step of the last snapshot that is whole in memory.",
                      (double)s->kept.step);
    if (free_bytes != UINT64_MAX)
        figures_gauge(f, "free_bytes", "Room left where checkpoints are written.",
                      (double)free_bytes);
}

static void figures_of_ranks(figures_t *f, const lateness_t *late, const control_t *control)
{
    control_counts_t counts;
    if (control == NULL) return;
    control_counts(control, &counts);
    figures_gauge(f, "late_ranks", "Ranks that the others wait for.", late->count);
    figures_counter(f, "strangers_total",
                    "Connections to rank 0 that did not prove to have the job's key.",
                    (double)counts.strangers);
    figures_name(f, "control_bytes_total", "counter", "Bytes of the control plane at rank 0.");
    figures_sample(f, "control_bytes_total", ",direction=\"sent\"", (double)counts.bytes_sent);
    figures_sample(f, "control_bytes_total", ",direction=\"received\"",
                   (double)counts.bytes_received);
}

/* What a row of the figures of links is of. */
enum { LINK_RATE, LINK_TRIP, LINK_LOADED_TRIP, LINK_LOSS, LINK_FIGURES };
static const struct {
    const char *name, *help;
} link_names[LINK_FIGURES] = {
    [LINK_RATE] = {"link_bytes_per_second", "Rate of a link between sites, as it was measured."},
    [LINK_TRIP] = {"link_round_trip_seconds", "Least round trip of a link, as it was measured."},
    [LINK_LOADED_TRIP] = {"link_loaded_round_trip_seconds", "The same while the link was full."},
    [LINK_LOSS] = {"link_loss_ratio", "Packets that were lost of those sent, as it was measured."},
};

/* way: from site[0] to site[1], or back. NAN: not measured, or told once for both ways. */
static double link_figure(const probe_figures_t *p, uint32_t which, int way)
{
    const uint64_t once[] = {[LINK_TRIP] = p->round_trip_ns, [LINK_LOADED_TRIP] = p->loaded_ns};
    switch (which) {
    case LINK_RATE: return (double)p->rate[way];
    case LINK_LOSS: return p->loss[way] < 0 ? (double)NAN : p->loss[way];
    default: return way > 0 || once[which] == 0 ? (double)NAN : (double)once[which] * 1e-9;
    }
}

static void figures_of_links(figures_t *f, const run_start_t *start)
{
    uint32_t measured = 0;
    for (uint32_t i = 0; i < start->link_count; i++)
        measured += start->links[i].figures.measured_s != 0;
    for (uint32_t which = 0; measured > 0 && which < LINK_FIGURES; which++) {
        figures_name(f, link_names[which].name, "gauge", link_names[which].help);
        for (uint32_t i = 0; i < 2 * start->link_count; i++) {
            const probe_pair_t *p = &start->links[i / 2];
            const int way = (int)(i % 2);
            char from[2 * WORLD_SITE_NAME], to[2 * WORLD_SITE_NAME], labels[256];
            const double value = p->figures.measured_s == 0 ? (double)NAN
                                                            : link_figure(&p->figures, which, way);
            if (!isfinite(value)) continue;
            figures_escape(p->site[way], from, sizeof(from));
            figures_escape(p->site[1 - way], to, sizeof(to));
            (void)snprintf(labels, sizeof(labels), ",from=\"%s\",to=\"%s\"", from, to);
            figures_sample(f, link_names[which].name, labels, value);
        }
    }
}

/* What a row of the figures of flows is of. */
enum { FLOW_SENT, FLOW_RECEIVED, FLOW_AGAIN, FLOW_RATE, FLOW_TRIP, FLOW_LOSS, FLOW_FIGURES };
static const struct {
    const char *name, *type, *help;
} flow_names[FLOW_FIGURES] = {
    [FLOW_SENT] = {"link_sent_bytes_total", "counter", "Bytes that rank 0 sent to another site."},
    [FLOW_RECEIVED] = {"link_received_bytes_total", "counter",
                       "Bytes that rank 0 received from another site."},
    [FLOW_AGAIN] = {"link_retransmitted_bytes_total", "counter",
                    "Bytes that rank 0 sent to another site again, as they were lost."},
    [FLOW_RATE] = {"link_now_bytes_per_second", "gauge",
                   "Rate of rank 0's fastest link to another site while it sent."},
    [FLOW_TRIP] = {"link_now_round_trip_seconds", "gauge",
                   "Round trip of rank 0's slowest link to another site, as it is now."},
    [FLOW_LOSS] = {"link_now_loss_ratio", "gauge",
                   "Packets that rank 0's link to another site lost of the last million; a bound "
                   "until so many were sent."},
};

static double flow_figure(const link_flow_t *l, uint32_t which)
{
    switch (which) {
    case FLOW_SENT: return (double)l->sent;
    case FLOW_RECEIVED: return (double)l->received;
    case FLOW_AGAIN: return (double)l->retransmitted;
    case FLOW_RATE: return l->bytes_per_second == 0 ? (double)NAN : (double)l->bytes_per_second;
    case FLOW_LOSS: return l->packets > 0 ? l->loss : (double)NAN;
    default: return l->round_trip_ns == 0 ? (double)NAN : (double)l->round_trip_ns * 1e-9;
    }
}

static const char *flow_site(const world_t *w, uint32_t site)
{
    return site < w->row.sites ? world_site_name(w, site) : "";
}

/* By class of link: what carries those of the rank that tells. */
static void figures_of_transports(figures_t *f, const run_start_t *start)
{
    bool named = false;
    for (uint32_t k = LH_LINK_NODE; k < STEP_SCOPES; k++) {
        char card[128], labels[320];
        if (start->transports[k] == NULL) continue;
        if (!named)
            figures_name(f, "transport_info", "gauge",
                         "What carries rank 0's links of a class, and by which cards; always 1.");
        named = true;
        figures_escape(start->cards[k] == NULL ? "" : start->cards[k], card, sizeof(card));
        (void)snprintf(labels, sizeof(labels),
                       ",link=\"%s\",transport=\"%s\",security=\"%s\",cards=\"%s\"",
                       step_scope_names[k], start->transports[k],
                       start->security[k] == NULL ? "" : start->security[k], card);
        figures_sample(f, "transport_info", labels, 1);
    }
}

/* While it trains: of the rank that tells, whose links are as busy as those of its neighbours. */
static void figures_of_flows(figures_t *f, const run_state_t *s, const world_t *w)
{
    char from[2 * WORLD_SITE_NAME], to[2 * WORLD_SITE_NAME], labels[256];
    const uint32_t count = w == NULL ? 0 : s->last.flow_count;
    if (count == 0) return;
    figures_escape(w->ranks[w->row.rank].site_name, from, sizeof(from));
    for (uint32_t which = 0; which < FLOW_FIGURES; which++) {
        bool named = false;
        for (uint32_t i = 0; i < count; i++) {
            const link_flow_t *l = &s->last.flows[i];
            const double value = flow_figure(l, which);
            if (!isfinite(value)) continue;
            if (!named)
                figures_name(f, flow_names[which].name, flow_names[which].type,
                             flow_names[which].help);
            named = true;
            figures_escape(flow_site(w, l->site), to, sizeof(to));
            (void)snprintf(labels, sizeof(labels), ",from=\"%s\",to=\"%s\"", from, to);
            figures_sample(f, flow_names[which].name, labels, value);
        }
    }
}

void live_figures_write(const run_state_t *s, const lateness_t *late, const run_start_t *start,
                        uint64_t free_bytes, text_t *out)
{
    figures_t f = {.out = out};
    out->length = 0;
    out->failed = false;
    figures_escape(s->name, f.run, sizeof(f.run));
    figures_of_run(&f, s);
    figures_of_steps(&f, s);
    figures_of_saves(&f, s, free_bytes);
    figures_of_ranks(&f, late, s->ended ? NULL : start->control);
    figures_of_transports(&f, start);
    figures_of_links(&f, start);
    figures_of_flows(&f, s, s->ended ? NULL : start->world);
}
