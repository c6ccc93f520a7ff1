/* profiled_step_test.c - one step of a run is measured for the report where the device can tell how
 * long its work took, and the run goes on all the same where it can't. */
#include "small_corpus.h"

#include <config/job_load.h>
#include <plugin/host.h>
#include <train/train_run.h>

enum { STEPS = 7 };

static const char ini[] = "[pipeline]\nname = small\nstages = train\nfolder = %s\n"
                          "[data]\ntrain = corpus\nsplit = 1,0,0\n"
                          "[model]\nplugin = llama\nvocab = 64\nblocks = 1\nhidden = 16\n"
                          "ffn = 32\nheads = 2\nmax_tokens = 8\n"
                          "[train]\nsequence = 8\nbatch = 2\nsteps = 7\n"
                          "[optimizer]\nplugin = zero0\nrule = rules:adamw\n"
                          "learning_rate = 1e-3\n"
                          "[device]\nplugin = cpu\nthreads = 1\n";

typedef struct watcher {
    observer_t observer; /* first: an observer_t * is a watcher_t * */
    uint64_t steps;
    uint32_t rows;
} watcher_t;

static void on_begin(LH_UNUSED observer_t *o, LH_UNUSED const run_start_t *start)
{
}

static void on_step(observer_t *o, LH_UNUSED const step_report_t *step)
{
    ((watcher_t *)o)->steps++;
}

static void on_evaluated(LH_UNUSED observer_t *o, LH_UNUSED const evaluation_report_t *report)
{
}

static void on_saved(LH_UNUSED observer_t *o, LH_UNUSED const save_report_t *report)
{
}

static void on_end(observer_t *o, const run_end_t *end)
{
    ((watcher_t *)o)->rows = end->profile_count;
}

static void on_profiled(LH_UNUSED train_profiler_t *p, LH_UNUSED const train_programs_t *programs,
                        LH_UNUSED const profile_row_t *rows, LH_UNUSED uint32_t count)
{
}

/* The cpu as a device whose work is queued, with events that tell their time or not. */
static const lh_device_api_t *cpu;

static lh_status_t queued_properties(lh_device_t *d, lh_device_properties_t *out)
{
    const lh_status_t status = cpu->properties(d, out);
    out->flags &= ~(uint32_t)LH_DEVICE_SYNCHRONOUS;
    return status;
}

static lh_status_t run(scratch_t *s, bool tells_time, train_profiler_t *profiler, watcher_t *w)
{
    char text[1024];
    host_t *host;
    registry_t *registry;
    job_t *job;
    const plugin_t *device;
    train_result_t result;
    small_corpus_write(s);
    (void)snprintf(text, sizeof(text), ini, s->folder);
    assert_int_equal(job_load(scratch_text(s, "job.ini", text), NULL, 0, &job), LH_OK);
    assert_int_equal(host_new(&host), LH_OK);
    assert_int_equal(registry_new(LH_TEST_PLUGINS, host, &registry), LH_OK);
    registry_use_job(registry, job);
    assert_int_equal(registry_load(registry, LH_KIND_DEVICE, "cpu", &device), LH_OK);
    cpu = device->device;
    lh_device_api_t queued = *cpu;
    queued.properties = queued_properties;
    if (!tells_time) queued.event_time = NULL;
    ((plugin_t *)(uintptr_t)device)->device = &queued;

    *w = (watcher_t){{on_begin, on_step, on_evaluated, on_saved, on_end}, 0, 0};
    const train_how_t how = {.job = job,
                             .registry = registry,
                             .vocab = SMALL_CORPUS_VOCAB,
                             .observer = &w->observer,
                             .eod = -1,
                             .profiler = profiler};
    const lh_status_t status = train_run(&how, &result);
    ((plugin_t *)(uintptr_t)device)->device = cpu;
    registry_free(registry);
    host_free(host);
    job_free(job);
    return status;
}

static void a_step_is_profiled_for_who_watches(void **state)
{
    watcher_t w;
    assert_int_equal(run(*state, true, NULL, &w), LH_OK);
    assert_int_equal(w.steps, STEPS);
    assert_true(w.rows > 0);
}

static void a_device_that_tells_no_time_trains_without_a_profile(void **state)
{
    watcher_t w;
    assert_int_equal(run(*state, false, NULL, &w), LH_OK);
    assert_int_equal(w.steps, STEPS);
    assert_int_equal(w.rows, 0);
}

static void a_profile_that_is_asked_for_is_refused_before_step_0(void **state)
{
    watcher_t w;
    train_profiler_t profiler = {on_profiled};
    assert_int_equal(run(*state, false, &profiler, &w), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "device cpu does not tell when an event was passed: no step "
                                       "can be profiled");
    assert_int_equal(w.steps, 0);
}

int main(void)
{
#define RUN(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        RUN(a_step_is_profiled_for_who_watches),
        RUN(a_device_that_tells_no_time_trains_without_a_profile),
        RUN(a_profile_that_is_asked_for_is_refused_before_step_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
