/* live.c - the thread that tells how a run fares, and one that renews its report.
 *
 * status.json is replaced by a rename, so that a reader never sees half of it, and without fsync: it
 * is worth nothing after a power loss. It is made in memory that is there from the start. In a file
 * system over the network a rename is what another machine sees soonest. */
#include <watch/live.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <base/thread.h>
#include <format/json.h>
#include <watch/figures.h>
#include <watch/report.h>
#include <watch/scrape.h>

/* STATUS_BYTES: room for the text, that no step nor second allocates; of a file that is read, the
 * most. */
enum { STATUS_BYTES = 1 << 14, PERIOD_S = 1 };
#define NS_PER_S UINT64_C(1000000000)

struct live {
    char *path, *temporary; /* of status.json */
    pthread_t thread, reporter;
    bool runs, reports, began;
    const job_watch_t *how;
    const run_start_t *start;
    char *folder, *textfile; /* textfile: under which name it is written; NULL: none is wanted */
    bool textfile_told;      /* that it could not be written */
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
    bool report_told; /* of the reporter: that the report could not be made */
};

/* ---- writing ---- */

/* 0, or why not (errno). A file that can't be written is tried again a second later. Of status.json
 * nothing is said: metrics.jsonl has warned of the same disk already. */
static int live_replace(const text_t *text, const char *temporary, const char *path)
{
    if (text->failed) return ENOMEM;
    const int fd = sys_open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
    if (fd < 0) return errno;
    int error = file_write(fd, temporary, text->data, text->length) == LH_OK ? 0 : errno;
    if (sys()->close(fd) != 0 && error == 0) error = errno;
    if (error == 0 && sys_rename(temporary, path) != 0) error = errno;
    if (error != 0) (void)sys()->unlink(temporary);
    fail_clear();
    return error;
}

/* It lies in another folder than the rest, of which nobody else warns. */
static void live_textfile(live_t *l)
{
    const int error = live_replace(&l->figures, l->textfile, l->how->textfile);
    if (error == 0 || l->textfile_told) return;
    l->textfile_told = true;
    log_line(LH_LOG_WARN, "[watch] textfile = %s: cannot be written: %s; tried again each second",
             l->how->textfile, strerror(error));
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
    if (l->textfile != NULL) figures_write(&l->copy, &l->late, l->start, l->room, &l->figures);
    (void)pthread_mutex_unlock(&l->work);
    (void)live_replace(&l->text, l->temporary, l->path);
    if (l->textfile != NULL) live_textfile(l);
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
    figures_write(&l->copy, &l->late, l->start, l->room, out);
    (void)pthread_mutex_unlock(&l->work);
}

/* The page of the run so far; for how long none is due behind it. Reading a long metrics.jsonl takes its time: it is
 * made so seldom that it takes a hundredth of one processor at most. */
static uint64_t live_report(live_t *l)
{
    const uint64_t now = sys()->now_ns();
    (void)pthread_mutex_lock(&l->work);
    const run_end_t so_far = {.steps = l->copy.last.step,
                              .seconds = (double)(now - l->copy.started_at) * 1e-9};
    (void)pthread_mutex_unlock(&l->work);
    if (report_write(l->folder, l->start, &so_far) != LH_OK && !l->report_told) {
        l->report_told = true;
        log_line(LH_LOG_WARN, "the report is not renewed: %s", fail_reason());
    }
    fail_clear();
    const uint64_t pause = 100 * (sys()->now_ns() - now);
    return pause > l->how->report_ns ? pause : l->how->report_ns;
}

/* In a thread of its own: status.json is renewed meanwhile, by which others see that the run is at work. */
static void *live_reports(void *argument)
{
    live_t *l = argument;
    uint64_t pause = l->how->report_ns;
    for (;;) {
        const uint64_t at = sys()->now_ns() + pause;
        const struct timespec until = {.tv_sec = (time_t)(at / NS_PER_S),
                                       .tv_nsec = (long)(at % NS_PER_S)};
        (void)pthread_mutex_lock(&l->lock);
        while (!l->ends && pthread_cond_timedwait(&l->changed, &l->lock, &until) != ETIMEDOUT) {
        }
        const bool ends = l->ends;
        (void)pthread_mutex_unlock(&l->lock);
        if (ends) return NULL;
        pause = live_report(l);
    }
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
    do
        live_write(l);
    while (live_wait(l));
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

/* The last checkpoint that a run before saved, if training goes on from it or a later one and it is still there. When
 * it was committed, its folder's time tells. */
static void live_saved_before(run_state_t *s, const json_value_t *saved)
{
    struct stat st;
    uint64_t step;
    const char *path = json_text(json_member(saved, "path"));
    if (path == NULL || !json_count(json_member(saved, "step"), &step) || step > s->first_step ||
        sys()->stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return;
    s->saved.step = step;
    s->saved.wall = (uint64_t)st.st_mtim.tv_sec * NS_PER_S + (uint64_t)st.st_mtim.tv_nsec;
    (void)snprintf(s->saved.text, sizeof(s->saved.text), "%s", path);
}

/* A training that is gone on with counts those before it, and has their checkpoints: what the file said that they
 * left. */
static void live_go_on(live_t *l)
{
    json_document_t *document = NULL;
    uint64_t before = 0;
    if (!file_exists(l->path) ||
        json_read(l->path, STATUS_BYTES * 4, UINT64_MAX, &document) != LH_OK)
        document = NULL;
    if (!json_count(json_member(json_root(document), "restarts"), &before)) before = 0;
    live_saved_before(&l->state, json_member(json_root(document), "saved"));
    json_free(document);
    fail_clear();
    l->state.restarts = before + 1;
}

static void live_serve(live_t *l)
{
    if (l->how->metrics == NULL) return;
    if (scrape_open(l->how->metrics, live_page, l, &l->scrape) == LH_OK)
        log_line(LH_LOG_INFO, "figures for Prometheus: port %u, /metrics", scrape_port(l->scrape));
    else
        log_line(LH_LOG_WARN, "figures are not served: %s", fail_reason());
}

void live_begin(live_t *l, const run_start_t *start)
{
    run_state_begin(&l->state, start);
    if (start->first_step > 0 || start->restarts > 0) live_go_on(l);
    if (run_lateness_new(start->control, start->world, &l->late) != LH_OK) fail_clear();
    l->began = true;
    l->start = start;
    l->room = UINT64_MAX;
    live_serve(l);
    const int error = thread_start(&l->thread, "lh-live", live_run, l);
    l->runs = error == 0;
    l->reports = l->runs && l->how->report_ns > 0 &&
                 thread_start(&l->reporter, "lh-report", live_reports, l) == 0;
    if (l->runs) return;
    log_line(LH_LOG_WARN, "%s is not renewed: %s", l->path, strerror(error));
    live_write(l);
}

/* Every change comes through here. hurries: it is to be seen at once and not within a second. */
static void live_unlock(live_t *l, bool hurries)
{
    l->hurries = l->hurries || hurries;
    if (hurries) (void)pthread_cond_broadcast(&l->changed);
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
    live_unlock(l, !save->memory); /* snapshots may come as often as steps */
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
    if (l->reports) (void)pthread_join(l->reporter, NULL);
    l->runs = l->reports = false;
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
