/* program_bench.c - profiles a few steps and takes the median of each call. */
#include <plan/program_bench.h>

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <base/sys.h>
#include <engine/engine_profile.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <longhaul/rule.h>
#include <plan/device_bench.h>

enum { REPEATS_MOST = 9, LISTS = 3, ALIKE_SLOTS = 3 };
static const double seconds_least = 1e-9; /* what a clock can tell */

typedef struct listing { /* a call list that a step runs */
    program_t *program;
    bool later;
    uint64_t times; /* in a step */
    uint32_t calls;
    double *seconds; /* [calls, REPEATS_MOST] */
} listing_t;

typedef struct bench {
    job_programs_t *p;
    listing_t lists[LISTS];
    uint32_t repeats;
} bench_t;

static void fill_input(const bench_t *b, uint32_t which, void *to, uint64_t bytes)
{
    lh_assert(bytes % 4 == 0);
    const job_train_t *train = &b->p->session->job->train;
    const uint64_t tokens = b->p->layout.share.rows * train->sequence;
    const uint64_t count = b->p->programs.schedule->round_micro_batches;
    const uint64_t starts = bytes / 4 / count; /* of a micro-batch */
    const uint64_t vocab = weights_parameters(b->p->session->weights)->vocab;
    int32_t *ids = to;
    float *reals = to;
    for (uint64_t i = 0; i < bytes / 4; i++) {
        switch (which) {
        case LH_INPUT_TOKENS:
        case LH_INPUT_LABELS: ids[i] = (int32_t)(i * 2654435761U % vocab); break;
        case LH_INPUT_POSITIONS: ids[i] = (int32_t)(i % train->sequence); break;
        case LH_INPUT_STARTS:
            ids[i] = (int32_t)(i % starts * train->sequence);
            if ((uint64_t)ids[i] > tokens) ids[i] = (int32_t)tokens;
            break;
        case LH_INPUT_WEIGHTS: reals[i] = 1 / (float)(tokens * count); break;
        case LH_INPUT_STEP:
            reals[i] = i % LH_STEP_WORDS == LH_STEP_LEARNING_RATE ? 1e-4F
                       : i % LH_STEP_WORDS == LH_STEP_NORM        ? 0
                                                                  : 1;
            break;
        default: ids[i] = 0; break;
        }
    }
}

static lh_status_t give_inputs(const bench_t *b, program_t *program)
{
    lh_status_t status = LH_OK;
    for (uint32_t which = LH_INPUT_TOKENS; status == LH_OK && which <= LH_INPUT_LENGTHS; which++) {
        if (!program_has_input(program, which)) continue;
        const uint64_t bytes = program_input_bytes(program, which);
        void *values = mem_new(bytes);
        if (values == NULL) return LH_NO_MEMORY;
        fill_input(b, which, values, bytes);
        status = program_input(program, which, values, bytes);
        mem_free(values);
    }
    return status;
}

static lh_status_t run_step(const bench_t *b)
{
    lh_status_t status = give_inputs(b, b->p->programs.update);
    if (status == LH_OK) status = give_inputs(b, b->p->programs.train);
    for (uint32_t l = 0; status == LH_OK && l < LISTS; l++)
        if (b->lists[l].times > 0)
            status = program_run(b->lists[l].program, b->lists[l].later ? 1 : 0);
    return status == LH_OK ? engine_wait(b->p->session->engine) : status;
}

static lh_status_t lists_make(bench_t *b)
{
    const listing_t lists[LISTS] = {
        {.program = b->p->programs.train, .times = 1},
        {.program = b->p->programs.train,
         .times = b->p->programs.schedule->rounds - 1,
         .later = true},
        {.program = b->p->programs.update, .times = 1},
    };
    memcpy(b->lists, lists, sizeof(lists));
    for (uint32_t l = 0; l < LISTS; l++) {
        listing_t *list = &b->lists[l];
        program_call_t call;
        while (list->times > 0 && program_call(list->program, list->later, list->calls, &call))
            list->calls++;
        list->seconds = mem_array((size_t)list->calls * REPEATS_MOST, sizeof(double));
        if (list->seconds == NULL) return LH_NO_MEMORY;
    }
    return LH_OK;
}

static void note_times(bench_t *b)
{
    lh_assert(b->repeats < REPEATS_MOST);
    program_call_t call;
    for (uint32_t l = 0; l < LISTS; l++)
        for (uint32_t i = 0; i < b->lists[l].calls; i++)
            if (program_call(b->lists[l].program, b->lists[l].later, i, &call))
                b->lists[l].seconds[(size_t)i * REPEATS_MOST + b->repeats] = (double)call.ns * 1e-9;
    b->repeats++;
}

/* The first step touches pages and warms libraries up. */
static lh_status_t measure(bench_t *b, double budget_s)
{
    engine_t *e = b->p->session->engine;
    const uint64_t begin = sys()->now_ns();
    lh_status_t status = run_step(b);
    while (status == LH_OK && b->repeats < REPEATS_MOST) {
        status = engine_profile(e, true);
        if (status == LH_OK) status = run_step(b);
        if (status != LH_OK) break;
        note_times(b);
        if ((double)(sys()->now_ns() - begin) * 1e-9 > budget_s) break;
    }
    const lh_status_t ended = engine_profile(e, false);
    return status != LH_OK ? status : ended;
}

static bool alike(const measured_call_t *row, const program_call_t *call, const char *kind)
{
    if (strcmp(row->kind, kind) != 0 || row->flops != call->flops || row->bytes != call->bytes ||
        row->arg_count != call->arg_count || strcmp(row->kernel, call->kernel) != 0)
        return false;
    for (uint32_t i = 0; i < row->arg_count && i < ALIKE_SLOTS; i++)
        if (memcmp(row->args[i].shape, call->args[i].shape, sizeof(row->args[i].shape)) != 0)
            return false;
    return true;
}

static measured_call_t *row_of(measured_call_t *rows, uint32_t *count, const program_call_t *call)
{
    char kind[CALL_KIND];
    device_rate_kind(call, kind);
    for (uint32_t i = 0; i < *count; i++)
        if (alike(&rows[i], call, kind)) return &rows[i];
    measured_call_t *row = &rows[(*count)++];
    *row = (measured_call_t){.args = call->args,
                             .arg_count = call->arg_count,
                             .kernel = call->kernel,
                             .flops = call->flops,
                             .bytes = call->bytes};
    (void)snprintf(row->kind, sizeof(row->kind), "%s", kind);
    return row;
}

/* Rows of alike calls, with the mean of their medians: so a step's sum is kept. */
static lh_status_t rows_make(const bench_t *b, measured_call_t **out, uint32_t *count)
{
    size_t most = 0;
    for (uint32_t l = 0; l < LISTS; l++)
        most += b->lists[l].calls;
    measured_call_t *rows = mem_array(most, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    uint32_t n = 0;
    program_call_t call;
    for (uint32_t l = 0; l < LISTS; l++) {
        const listing_t *list = &b->lists[l];
        for (uint32_t i = 0; i < list->calls; i++) {
            if (!program_call(list->program, list->later, i, &call)) continue;
            measured_call_t *row = row_of(rows, &n, &call);
            row->seconds += (double)list->times *
                            device_bench_median(&list->seconds[(size_t)i * REPEATS_MOST],
                                                b->repeats);
            row->count += list->times;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        rows[i].seconds /= (double)rows[i].count;
    *out = rows;
    *count = n;
    return LH_OK;
}

/* Rows that differ in shape but not in cost share one entry of the record: their mean. */
static lh_status_t rates_add(const measured_call_t *rows, uint32_t count, device_rate_t *rate)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < count && status == LH_OK; i++) {
        const measured_call_t *row = &rows[i];
        const program_call_t call = {.args = row->args, .arg_count = row->arg_count};
        const double ideal = device_rate_ideal(rate, device_rate_dtype(&call), row->flops,
                                               row->bytes);
        double seconds = 0, calls = 0;
        for (uint32_t k = 0; k < count; k++) {
            if (strcmp(rows[k].kind, row->kind) != 0 || rows[k].flops != row->flops ||
                rows[k].bytes != row->bytes)
                continue;
            seconds += rows[k].seconds * (double)rows[k].count;
            calls += (double)rows[k].count;
        }
        if (ideal <= 0) continue; /* all that it takes is the launch */
        /* A call as short as a launch says little more than that. */
        seconds = fmax(seconds / calls - rate->launch_s,
                       fmax(0.1 * seconds / calls, seconds_least));
        op_rate_t op = {.flops = row->flops, .bytes = row->bytes, .efficiency = ideal / seconds};
        (void)snprintf(op.kind, sizeof(op.kind), "%s", row->kind);
        status = device_rate_add(rate, &op);
    }
    return status;
}

lh_status_t program_bench(job_programs_t *p, double budget_s, device_rate_t *rate,
                          measured_call_t **rows, uint32_t *count)
{
    bench_t b = {.p = p};
    const job_t *job = p->session->job;
    measured_call_t *made = NULL;
    uint32_t n = 0;
    lh_status_t status = engine_build(p->session->engine);
    if (status == LH_OK)
        status = weights_initialize(p->session->weights, job->train.seed, job->model.init_std);
    if (status == LH_OK) status = lists_make(&b);
    if (status == LH_OK) status = measure(&b, budget_s);
    if (status == LH_OK) status = rows_make(&b, &made, &n);
    if (status == LH_OK) status = rates_add(made, n, rate);
    for (uint32_t l = 0; l < LISTS; l++)
        mem_free(b.lists[l].seconds);
    if (status != LH_OK) {
        mem_free(made);
        return status;
    }
    *rows = made;
    *count = n;
    return LH_OK;
}
