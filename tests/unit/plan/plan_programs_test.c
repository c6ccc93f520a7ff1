/* plan_programs_test.c - what is planned for a job against what its device is asked for, and what a
 * bench of it measures. */
#include <unit/plan/plan_kit.h>

#include <math.h>

#include <base/memory.h>
#include <config/job_load.h>
#include <engine/engine.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <plan/device_bench.h>
#include <plan/step_plan.h>

static job_t *job;

static const char ini[] = "[pipeline]\nname = small\nstages = train\n"
                          "[data]\ntrain = corpus\n"
                          "[model]\nplugin = llama\nvocab = 192\nblocks = 2\nhidden = 32\n"
                          "ffn = 48\nheads = 2\nmax_tokens = 16\n"
                          "[train]\nsequence = 16\nbatch = 6\nmicro_batch = 2\nsteps = 1\n"
                          "precision = f32\n"
                          "[optimizer]\nplugin = zero0\nrule = rules:adamw\n"
                          "learning_rate = 1e-3\n"
                          "[device]\nplugin = cpu\nthreads = 1\n";

static int start_with_a_job(void **state)
{
    if (plan_start(state) != 0) return 1;
    char *path = path_join(folder, "small.ini");
    ok(file_replace(path, ini, sizeof(ini) - 1));
    ok(job_load(path, NULL, 0, &job));
    mem_free(path);
    registry_use_job(registry, job);
    return 0;
}

static int stop_with_a_job(void **state)
{
    const int failed = plan_stop(state);
    job_free(job);
    return failed;
}

static void open_programs(plan_programs_t *p)
{
    const plan_programs_how_t how = {.session = {.job = job, .registry = registry, .vocab = 192}};
    ok(plan_programs_open(&how, p));
}

/* Counts what is allocated on the way to the device. */
static const lh_device_api_t *real_api;
static uint64_t asked[3]; /* by space */

static lh_status_t counting_alloc(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                                  void **address)
{
    asked[space] += bytes;
    return real_api->alloc(d, space, bytes, out, address);
}

static void the_plan_is_what_the_device_is_asked_for(void **state)
{
    (void)state;
    const plugin_t *device;
    ok(registry_load(registry, LH_KIND_DEVICE, "cpu", &device));
    real_api = device->device;
    lh_device_api_t counting = *real_api;
    counting.alloc = counting_alloc;
    ((plugin_t *)(uintptr_t)device)->device = &counting;

    plan_programs_t p;
    memory_report_t planned, built;
    open_programs(&p);
    assert_int_equal(asked[LH_SPACE_DEVICE], 0); /* planning takes nothing */
    engine_memory(p.session->engine, &planned);
    ok(engine_build(p.session->engine));
    engine_memory(p.session->engine, &built);
    assert_memory_equal(&planned, &built, sizeof(planned));
    assert_int_equal(asked[LH_SPACE_PINNED], planned.bytes[MEMORY_PINNED]);
    assert_int_equal(asked[LH_SPACE_DEVICE], planned.total_bytes - planned.bytes[MEMORY_LIBRARY]);
    /* F32 weights hold 16 bytes each: value (which is the master), gradient, two moments. */
    const uint64_t weights = weights_parameters(p.session->weights)->elements;
    const uint64_t held = planned.bytes[MEMORY_PARAMETERS] + planned.bytes[MEMORY_GRADIENTS] +
                          planned.bytes[MEMORY_MASTER] + planned.bytes[MEMORY_STATE];
    assert_in_range(held, 16 * weights, 16 * weights + 64 * 4 * 64);
    plan_programs_close(&p);
    ((plugin_t *)(uintptr_t)device)->device = real_api;
}

/* A linear layer costs 2 FLOPs a weight and token forward, twice that backward. */
static void matmuls_of_a_step_are_six_flops_a_weight_and_token(void **state)
{
    (void)state;
    plan_programs_t p;
    step_plan_t plan;
    open_programs(&p);
    assert_int_equal(p.programs.schedule->rounds, 3);
    ok(step_plan_new(p.programs.train, p.programs.update, p.programs.schedule->rounds, NULL, NULL,
                     &plan));
    double flops = 0;
    for (uint32_t i = 0; i < plan.kind_count; i++)
        if (strncmp(plan.kinds[i].kind, "matmul", 6) == 0) flops += plan.kinds[i].sum.flops;
    const double weights = 2 * (4 * 32 * 32 + 3 * 32 * 48) + 192 * 32;
    assert_true(flops == 6 * weights * 6 * 16);
    step_plan_free(&plan);
    plan_programs_close(&p);
}

/* Fully recomputed, a block keeps its input, 2 x 16 tokens of 32 numbers, which the row before left to
 * it; the head leaves as much of a gradient. One list is made where there is one round. */
static void a_row_leaves_what_is_not_computed_again(void **state)
{
    (void)state;
    plan_programs_t p;
    program_call_t call;
    job->train.recompute = RECOMPUTE_FULL;
    job->parallel.accumulation = ACCUMULATION_BREADTH;
    open_programs(&p);
    assert_int_equal(program_frame_bytes(p.programs.train), 2 * 16 * 32 * sizeof(float));
    assert_true(program_call(p.programs.train, false, 0, &call));
    assert_false(program_call(p.programs.train, true, 0, &call));
    plan_programs_close(&p);
    job->parallel.accumulation = ACCUMULATION_DEPTH; /* two inputs of blocks, and the gradient */
    open_programs(&p);
    assert_int_equal(program_frame_bytes(p.programs.train), 3 * 2 * 16 * 32 * sizeof(float));
    assert_true(program_call(p.programs.train, true, 0, &call));
    plan_programs_close(&p);
    job->train.recompute = RECOMPUTE_NONE;
}

static void a_bench_knows_all_that_the_plan_asks_for(void **state)
{
    (void)state;
    plan_programs_t p;
    step_plan_t plan;
    measured_call_t *rows;
    uint32_t count;
    device_rate_t rate = {.peak_flops = {[LH_DTYPE_F32] = 1e9}, .bytes_per_second = 1e9};
    open_programs(&p);
    ok(device_bench_program(&p, 0.01, &rate, &rows, &count));
    ok(step_plan_new(p.programs.train, p.programs.update, p.programs.schedule->rounds, NULL, &rate,
                     &plan));
    assert_int_equal(plan.unmeasured, 0);
    uint64_t calls = 0;
    double seconds = 0;
    for (uint32_t i = 0; i < count; i++) {
        calls += rows[i].count;
        seconds += rows[i].seconds * (double)rows[i].count;
    }
    assert_int_equal(calls, plan.all.calls);
    /* The same launches: the plan of what was just measured is what was measured. */
    assert_true(fabs(plan.all.seconds - seconds) < 0.02 * seconds);
    mem_free(rows);
    step_plan_free(&plan);
    device_rate_free(&rate);
    plan_programs_close(&p);
}

/* The cpu device with a clock of its own, which goes on by a millisecond whenever it is asked, and the
 * first numbers that were copied to it. */
static struct {
    lh_device_api_t api, real;
    uint64_t ns, count;
    double sum, squares;
    uint32_t negative;
} watched;

static lh_status_t watched_time(lh_event_t *e, uint64_t *ns)
{
    (void)e;
    watched.ns += 1000000;
    *ns = watched.ns;
    return LH_OK;
}

static lh_status_t watched_copy(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from,
                                uint64_t bytes)
{
    const float *values = from->address;
    for (uint64_t i = 0; watched.count == 0 && i < bytes / sizeof(float); i++) {
        watched.sum += (double)values[i];
        watched.squares += (double)values[i] * (double)values[i];
        watched.negative += values[i] < 0;
    }
    if (watched.count == 0) watched.count = bytes / sizeof(float);
    return watched.real.copy(s, to, from, bytes);
}

static void peaks_are_of_normal_numbers_by_the_devices_clock(void **state)
{
    (void)state;
    _Alignas(64) static const char config[4096];
    const plugin_t *cpu;
    ok(registry_load(registry, LH_KIND_DEVICE, "cpu", &cpu));
    watched.real = watched.api = *cpu->device;
    watched.api.event_time = watched_time;
    watched.api.copy = watched_copy;
    plugin_t device = *cpu;
    device.device = &watched.api;
    const device_bench_how_t how = {.device = &device, .config = config, .budget_s = 0.02};
    device_rate_t rate;
    ok(device_bench(&how, &rate));
    assert_true(fabs(rate.launch_s - 1e-3 / 256) < 1e-12);
    assert_true(fabs(rate.peak_flops[LH_DTYPE_F32] - 2 * pow(512, 3) / 1e-3) < 1);
    const double n = (double)watched.count;
    assert_true(n >= 3 * 4096 / sizeof(float));
    assert_true(fabs(watched.sum / n) < 5 / sqrt(n) && fabs(watched.squares / n - 1) < 8 / sqrt(n));
    assert_true(fabs(watched.negative / n - 0.5) < 3 / sqrt(n));
    device_rate_free(&rate);
}

/* As training refuses it. */
static void a_sequence_that_is_too_long_is_refused(void **state)
{
    (void)state;
    const char *const set = "train.sequence=17";
    job_t *longer;
    plan_programs_t p;
    ok(job_load(job->path, &set, 1, &longer));
    const plan_programs_how_t how = {
        .session = {.job = longer, .registry = registry, .vocab = 192}};
    assert_int_equal(plan_programs_open(&how, &p), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "sequence = 17, the model is made for 16 tokens"));
    job_free(longer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_that_is_too_long_is_refused),
        cmocka_unit_test(the_plan_is_what_the_device_is_asked_for),
        cmocka_unit_test(matmuls_of_a_step_are_six_flops_a_weight_and_token),
        cmocka_unit_test(a_row_leaves_what_is_not_computed_again),
        cmocka_unit_test(a_bench_knows_all_that_the_plan_asks_for),
        cmocka_unit_test(peaks_are_of_normal_numbers_by_the_devices_clock),
    };
    return cmocka_run_group_tests(tests, start_with_a_job, stop_with_a_job);
}
