/* queued_steps_test.c - what a device that works off a queue has to do while the host waits between two
 * steps. Such a device (tests/fake_device, with delays) trains behind a table of functions that counts:
 * where the host waits for the last of what was queued, the device is idle from then on until more is
 * queued. The counts follow from the order of calls alone, and not from how long anything takes.
 *
 * Counts are taken between two steps in the middle of a run, behind the one that is measured kernel by
 * kernel, for which the host waits at every call. */
#include "small_corpus.h"

#include <errno.h>
#include <time.h>

#include <longhaul/function.h>

#include <base/sys.h>
#include <base/text.h>
#include <config/job_load.h>
#include <plugin/host.h>
#include <plugin/registry.h>
#include <train/train_run.h>

enum { STEPS = 20, FROM = 8, TO = 17, SAVED = 8, EVENTS = 4096, FILES = 4096 };

/* Of the host, since the run began. */
typedef struct counts {
    uint32_t waits;       /* for the computing stream */
    uint32_t dry_waits;   /* of them for the last of what it had */
    uint32_t reads;       /* of tokens */
    uint32_t idle_reads;  /* of them while the device was idle */
    uint32_t early_reads; /* of them behind work of a step that was not told yet */
    uint32_t idle_tells;  /* steps that were told while the device was idle */
    uint32_t hooks, idle_hooks;
} counts_t;

/* A record on the computing stream, and how much work was queued before it. */
typedef struct queue_mark {
    lh_event_t *event;
    uint64_t work;
    bool awaited;
} queue_mark_t;

/* The run at hand; one thread, the one that trains, touches it. */
static struct {
    const lh_device_api_t *real;
    lh_stream_t *computing;
    queue_mark_t marks[EVENTS];
    uint32_t mark_count;
    /* Copies, fills and replays that were queued there. A run has some of them behind its kernels. */
    uint64_t work;
    bool idle;          /* the host has waited for the last of them */
    bool fed;           /* some were queued since a step was told */
    bool tokens[FILES]; /* descriptors of corpus.bin */
    uint64_t told;      /* the last step that the observer heard of */
    uint64_t saved;     /* the same when it heard of a save for the first time; 0: not yet */
    counts_t counts, at[STEPS + 1];
    double loss[STEPS + 1], norm[STEPS + 1], hooked[STEPS + 1];
    char reason[512];
} seen;

/* What the run is to meet. */
static uint64_t broken_from; /* once this step is told tokens can't be read; 0: never */
static bool waits_for_save;  /* who hears of a step waits for a while for the save of step SAVED */

/* ---- the device's functions ---- */

static lh_status_t on_stream_new(lh_device_t *d, const lh_stream_how_t *how, lh_stream_t **out)
{
    const lh_status_t status = seen.real->stream_new(d, how, out);
    if (status == LH_OK && how->role == LH_STREAM_COMPUTE) seen.computing = *out;
    return status;
}

static void work_note(const lh_stream_t *s)
{
    if (s != seen.computing) return;
    seen.work++;
    seen.idle = false;
    seen.fed = true;
}

static lh_status_t on_copy(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from,
                           uint64_t bytes)
{
    work_note(s);
    return seen.real->copy(s, to, from, bytes);
}

static lh_status_t on_fill(lh_stream_t *s, const lh_place_t *to, uint8_t byte, uint64_t bytes)
{
    work_note(s);
    return seen.real->fill(s, to, byte, bytes);
}

static lh_status_t on_replay(lh_replay_t *r, lh_stream_t *s)
{
    work_note(s);
    return seen.real->replay(r, s);
}

/* The event's mark, or the first free one. */
static queue_mark_t *mark_of(const lh_event_t *e)
{
    uint32_t i = 0;
    while (i < seen.mark_count && seen.marks[i].event != e)
        i++;
    assert_true(i < EVENTS);
    return &seen.marks[i];
}

static lh_status_t on_record(lh_stream_t *s, lh_event_t *e)
{
    const lh_status_t status = seen.real->record(s, e);
    if (s != seen.computing || status != LH_OK) return status;
    queue_mark_t *mark = mark_of(e);
    if (mark == &seen.marks[seen.mark_count]) seen.mark_count++;
    *mark = (queue_mark_t){.event = e, .work = seen.work};
    return status;
}

/* A wait may take several calls. */
static lh_status_t on_test(lh_event_t *e, uint64_t timeout_ns)
{
    queue_mark_t *mark = mark_of(e);
    if (timeout_ns > 0 && mark != &seen.marks[seen.mark_count] && !mark->awaited) {
        mark->awaited = true;
        seen.counts.waits++;
        seen.counts.dry_waits += mark->work == seen.work;
        seen.idle = seen.idle || mark->work == seen.work;
    }
    return seen.real->test(e, timeout_ns);
}

/* ---- reads of tokens ---- */

static int on_open(const char *path, int flags, mode_t mode)
{
    const int fd = sys_real.open(path, flags, mode);
    if (fd >= 0 && fd < FILES) seen.tokens[fd] = text_ends(path, "/corpus.bin");
    return fd;
}

static ssize_t on_pread(int fd, void *to, size_t bytes, off_t offset)
{
    if (fd < FILES && seen.tokens[fd]) {
        seen.counts.reads++;
        seen.counts.idle_reads += seen.idle;
        seen.counts.early_reads += seen.fed;
        if (broken_from != 0 && seen.told >= broken_from) {
            errno = EIO;
            return -1;
        }
    }
    return sys_real.pread(fd, to, bytes, offset);
}

/* ---- who is told ---- */

/* What was read and waited for until then made the run ready. */
static void on_begin(LH_UNUSED observer_t *o, LH_UNUSED const run_start_t *start)
{
    seen.counts = (counts_t){0};
    seen.idle = seen.fed = false;
}

static void on_step(LH_UNUSED observer_t *o, const step_report_t *step)
{
    assert_int_equal(step->step, seen.told + 1);
    seen.counts.idle_tells += seen.idle;
    seen.loss[step->step] = step->loss;
    seen.norm[step->step] = step->gradient_norm;
    seen.told = step->step;
    seen.fed = false;
    seen.at[seen.told] = seen.counts;
    const struct timespec nap = {.tv_sec = 1};
    if (waits_for_save && seen.told > SAVED && seen.told < 2 * SAVED && seen.saved == 0)
        (void)nanosleep(&nap, NULL);
}

static void on_evaluated(LH_UNUSED observer_t *o, LH_UNUSED const evaluation_report_t *report)
{
}

static void on_saved(LH_UNUSED observer_t *o, const save_report_t *save)
{
    assert_true(save->committed);
    if (seen.saved == 0) seen.saved = seen.told;
}

static void on_end(LH_UNUSED observer_t *o, LH_UNUSED const run_end_t *end)
{
}

/* An after_step of the INI. */
LH_FUNCTION(status, figures, (u64, step), (f64, loss))
{
    assert_int_equal(step, seen.told + 1);
    seen.hooked[step] = loss;
    seen.counts.hooks++;
    seen.counts.idle_hooks += seen.idle;
    return LH_OK;
}

static void hooks_forget(LH_UNUSED void *maker)
{
}

static void hooks_adopt(registry_t *registry)
{
    static lh_function_t functions[] = {LH_FUNCTION_ENTRY(figures, "keeps the loss")};
    plugin_t made = {.kind = LH_KIND_PARTS,
                     .name = "hooks",
                     .version = "1.0.0",
                     .summary = "what this test lets an INI call",
                     .functions = functions,
                     .function_count = 1,
                     .path = mem_text("queued_steps_test.c")};
    assert_non_null(made.path);
    assert_int_equal(registry_adopt(registry, &made, hooks_forget, NULL), LH_OK);
}

/* ---- a run ---- */

#define ASYNCHRONOUS "fake\ndelay = 30us"
#define SYNCHRONOUS "cpu"

static const char ini[] = "[pipeline]\nname = small\nstages = train\nfolder = %s/%s\n"
                          "[data]\ntrain = %s/corpus\nsplit = 1,0,0\n"
                          "[model]\nplugin = llama\nvocab = 64\nblocks = 1\nhidden = 16\n"
                          "ffn = 32\nheads = 2\nmax_tokens = 8\n"
                          "[train]\nsequence = 8\nbatch = 4\nmicro_batch = %u\nsteps = 20\n"
                          "[optimizer]\nplugin = zero0\nrule = rules:adamw\nclip = 1\n"
                          "learning_rate = 1e-2\n"
                          "[device]\nthreads = 1\nplugin = %s\n%s";

/* Trains in a folder of that name; more: sections of the INI. */
static lh_status_t run(scratch_t *s, const char *name, const char *device, uint32_t micro_batch,
                       const char *more)
{
    char text[2048];
    host_t *host;
    registry_t *registry;
    job_t *job;
    const plugin_t *plugin;
    train_result_t result;
    observer_t observer = {on_begin, on_step, on_evaluated, on_saved, on_end};
    memset(&seen, 0, sizeof(seen));
    small_corpus_write(s);
    assert_int_equal(folder_make(scratch_path(s, name)), LH_OK);
    (void)snprintf(text, sizeof(text), ini, s->folder, name, s->folder, micro_batch, device, more);
    assert_int_equal(job_load(scratch_text(s, "job.ini", text), NULL, 0, &job), LH_OK);
    assert_int_equal(host_new(&host), LH_OK);
    assert_int_equal(registry_new(LH_TEST_PLUGINS, host, &registry), LH_OK);
    registry_use_job(registry, job);
    hooks_adopt(registry);
    assert_int_equal(registry_load(registry, LH_KIND_DEVICE, job->device.plugin, &plugin), LH_OK);
    seen.real = plugin->device;
    lh_device_api_t counted = *seen.real;
    counted.stream_new = on_stream_new;
    counted.copy = on_copy;
    counted.fill = on_fill;
    counted.record = on_record;
    counted.test = on_test;
    if (counted.replay != NULL) counted.replay = on_replay;
    ((plugin_t *)(uintptr_t)plugin)->device = &counted;
    sys_t table = sys_real;
    table.open = on_open;
    table.pread = on_pread;
    sys_use(&table);
    const train_how_t how = {.job = job,
                             .registry = registry,
                             .vocab = SMALL_CORPUS_VOCAB,
                             .observer = &observer,
                             .eod = -1};
    const lh_status_t status = train_run(&how, &result);
    (void)snprintf(seen.reason, sizeof(seen.reason), "%s", status == LH_OK ? "" : fail_reason());
    sys_use(NULL);
    ((plugin_t *)(uintptr_t)plugin)->device = seen.real;
    registry_free(registry);
    host_free(host);
    job_free(job);
    return status;
}

/* What was counted between two steps that were told. */
static counts_t counts_between(void)
{
    const counts_t *a = &seen.at[FROM], *b = &seen.at[TO];
    print_message("%u waits a step, %u of them for the last that is queued\n",
                  (b->waits - a->waits) / (TO - FROM), (b->dry_waits - a->dry_waits) / (TO - FROM));
    return (counts_t){.waits = b->waits - a->waits,
                      .dry_waits = b->dry_waits - a->dry_waits,
                      .reads = b->reads - a->reads,
                      .idle_reads = b->idle_reads - a->idle_reads,
                      .early_reads = b->early_reads - a->early_reads,
                      .idle_tells = b->idle_tells - a->idle_tells,
                      .hooks = b->hooks - a->hooks,
                      .idle_hooks = b->idle_hooks - a->idle_hooks};
}

/* ---- tests ---- */

/* In rounds of one micro-batch and of all of a step's. */
static const uint32_t micro_batches[] = {1, 4};

static void figures_are_those_of(const double *loss, const double *norm)
{
    assert_int_equal(seen.told, STEPS);
    assert_memory_equal(seen.loss, loss, sizeof(seen.loss));
    assert_memory_equal(seen.norm, norm, sizeof(seen.norm));
}

/* By a device that queues nothing, which others are held to. */
static void figures_of_cpu(void **state, const char *name, uint32_t micro_batch, double *loss,
                           double *norm)
{
    assert_int_equal(run(*state, name, SYNCHRONOUS, micro_batch, ""), LH_OK);
    memcpy(loss, seen.loss, sizeof(seen.loss));
    memcpy(norm, seen.norm, sizeof(seen.norm));
}

static void a_steps_end_leaves_no_device_idle(void **state)
{
    for (uint32_t m = 0; m < 2; m++) {
        double loss[STEPS + 1], norm[STEPS + 1];
        char name[16];
        (void)snprintf(name, sizeof(name), "cpu%u", m);
        figures_of_cpu(state, name, micro_batches[m], loss, norm);
        counts_t c = counts_between();
        assert_true(c.reads > 0);
        assert_int_equal(c.early_reads, 0); /* nothing is gained by reading ahead there */

        (void)snprintf(name, sizeof(name), "fake%u", m);
        assert_int_equal(run(*state, name, ASYNCHRONOUS, micro_batches[m], ""), LH_OK);
        figures_are_those_of(loss, norm);
        c = counts_between();
        assert_true(c.waits > 0);
        assert_int_equal(c.dry_waits, 0);
        assert_int_equal(c.idle_tells, 0);
        assert_int_equal(c.early_reads, c.reads);
        assert_int_equal(c.idle_reads, 0);
    }
}

/* A save needs the state between two steps: one wait for each, for which the next batch does not wait. */
static void the_next_batch_is_there_before_a_save_waits(void **state)
{
    double loss[STEPS + 1], norm[STEPS + 1];
    figures_of_cpu(state, "cpu", 1, loss, norm);
    assert_int_equal(run(*state, "saves", ASYNCHRONOUS, 1, "[checkpoint]\nevery = 1\n"), LH_OK);
    figures_are_those_of(loss, norm);
    const counts_t c = counts_between();
    assert_int_equal(c.dry_waits, TO - FROM);
    assert_int_equal(c.early_reads, c.reads);
    assert_int_equal(c.idle_reads, 0);
}

/* It is called between two steps, which is one wait; what follows of the step holds nothing up. */
static void a_hook_that_reads_figures_costs_its_wait_and_no_more(void **state)
{
    double loss[STEPS + 1], norm[STEPS + 1];
    figures_of_cpu(state, "cpu", 1, loss, norm);
    assert_int_equal(run(*state, "hook", ASYNCHRONOUS, 1,
                         "[hook.after_step]\ncall = hooks:figures(step, loss)\n"),
                     LH_OK);
    figures_are_those_of(loss, norm);
    assert_memory_equal(seen.hooked, loss, sizeof(loss));
    const counts_t c = counts_between();
    assert_int_equal(c.hooks, TO - FROM);
    assert_int_equal(c.idle_hooks, TO - FROM);
    assert_int_equal(c.dry_waits, TO - FROM);
    assert_true(c.reads > 0);
    assert_int_equal(c.idle_reads, 0);
    assert_int_equal(c.idle_tells, 0);
}

/* Steps are queued ahead without end, and a save ends meanwhile: long before another one is due. */
static void a_save_that_ends_is_told_at_the_next_step(void **state)
{
    waits_for_save = true;
    const lh_status_t status = run(*state, "slow", ASYNCHRONOUS, 1, "[checkpoint]\nevery = 8\n");
    waits_for_save = false;
    assert_int_equal(status, LH_OK);
    assert_true(seen.saved > SAVED && seen.saved < 2 * SAVED);
}

/* The batch of step 12, read ahead in vain: step 11 is made, told and saved, and then the run ends. */
static void a_batch_that_cannot_be_read_ahead_fails_its_own_step(void **state)
{
    scratch_t *s = *state;
    broken_from = 10;
    const lh_status_t status = run(s, "broken", ASYNCHRONOUS, 1, "[checkpoint]\nevery = 1\n");
    broken_from = 0;
    assert_int_equal(status, LH_IO);
    assert_non_null(strstr(seen.reason, "corpus.bin"));
    assert_int_equal(seen.told, 11);
    assert_true(file_exists(scratch_path(s, "broken/checkpoints/step-000000000011/manifest.json")));
}

int main(void)
{
#define RUN(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        RUN(a_steps_end_leaves_no_device_idle),
        RUN(the_next_batch_is_there_before_a_save_waits),
        RUN(a_batch_that_cannot_be_read_ahead_fails_its_own_step),
        RUN(a_hook_that_reads_figures_costs_its_wait_and_no_more),
        RUN(a_save_that_ends_is_told_at_the_next_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
