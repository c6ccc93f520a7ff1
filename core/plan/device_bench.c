/* device_bench.c - times launches, copies and products on a device that is opened for nothing else,
 * and the calls of a job's step in its own session. */
#include <plan/device_bench.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <longhaul/ops.h>
#include <longhaul/rule.h>

#include <base/dtype.h>
#include <base/memory.h>
#include <base/philox.h>
#include <base/sys.h>
#include <engine/engine.h>
#include <engine/kernel_choice.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <graph/op_table.h>
#include <program/allocation.h>

/* ---- peaks of a device ---- */

enum {
    REPEATS = 9,      /* of which the median counts */
    SIDE_FIRST = 512, /* of a square matmul; doubled while time and memory are left */
    SIDE_LAST = 16384,
    PIECE_BYTES = 1 << 20,
    COPY_BYTES_MOST = 256 << 20,
    LAUNCHES = 256, /* behind one another, for the cost of one */
};
/* How long a test of an event may wait before it says LH_AGAIN; and how much scratch a kernel may
 * ask for. */
static const uint64_t wait_ns = 100000000;
static const uint64_t scratch_limit_bytes = (uint64_t)4 << 30;

static const double seconds_least = 1e-9; /* what a clock can tell */

/* A device with one stream and two events, before and behind what is measured. Zero where opening
 * did not come to it, so rig_close can follow any failure. */
typedef struct rig {
    const device_bench_how_t *how;
    const lh_device_api_t *api;
    lh_device_t *device;
    lh_device_properties_t properties;
    lh_stream_t *stream;
    lh_event_t *before, *event;
    lh_native_t native;
    op_table_t *ops;
    kernel_choice_t *kernels;
} rig_t;

/* A plugin need not have a native handle of its stream; then kernels get none. */
static lh_status_t rig_open(const device_bench_how_t *how, rig_t *r)
{
    *r = (rig_t){.how = how, .api = how->device->device};
    const lh_stream_how_t stream = {.struct_size = sizeof(stream), .role = LH_STREAM_COMPUTE};
    lh_status_t status = r->api->open(how->device->host, how->config, how->index, &r->device);
    r->properties.struct_size = sizeof(r->properties);
    if (status == LH_OK) status = r->api->properties(r->device, &r->properties);
    if (status == LH_OK) status = r->api->stream_new(r->device, &stream, &r->stream);
    if (status == LH_OK) status = r->api->event_new(r->device, &r->before);
    if (status == LH_OK) status = r->api->event_new(r->device, &r->event);
    if (status == LH_OK) status = op_table_new(&r->ops);
    if (status != LH_OK) return status;
    if (r->api->native != NULL && r->api->native(r->stream, &r->native) != LH_OK)
        r->native = (lh_native_t){0};
    const kernel_choice_how_t kernels = {.ops = r->ops,
                                         .device = how->device,
                                         .opened = r->device,
                                         .config = how->config,
                                         .stream = r->stream,
                                         .scratch_limit_bytes = scratch_limit_bytes};
    return kernel_choice_new(&kernels, &r->kernels);
}

/* All that was queued before is done when this returns. */
static lh_status_t rig_wait(rig_t *r)
{
    lh_status_t status = r->api->record(r->stream, r->event);
    if (status != LH_OK) return status;
    do
        status = r->api->test(r->event, wait_ns);
    while (status == LH_AGAIN);
    return status;
}

/* Waits for what is still queued: a measurement that failed may have left work behind. */
static void rig_close(rig_t *r)
{
    if (r->event != NULL) (void)rig_wait(r);
    kernel_choice_free(r->kernels);
    op_table_free(r->ops);
    if (r->event != NULL) r->api->event_free(r->event);
    if (r->before != NULL) r->api->event_free(r->before);
    if (r->stream != NULL) r->api->stream_free(r->stream);
    if (r->device != NULL) r->api->close(r->device);
}

/* For qsort: by size, smallest first. */
static int by_measured_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median, as a machine that others use gives single times that are far too long. */
double device_bench_median(double *values, uint32_t count)
{
    lh_assert(count > 0);
    qsort(values, count, sizeof(*values), by_measured_value);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Something to run many times: a launch, or a copy. lh_launch_t for a kernel that has been
 * prepared, or two places for a copy: both are timed by the same loop. */
typedef struct work {
    const kernel_t *kernel; /* NULL: a copy of `bytes` */
    lh_launch_t call;
    lh_place_t to, from;
    uint64_t bytes;
} work_t;

/* Seconds of `times` launches behind one another. By the device's own clock where it says when an
 * event was passed, so that what the host waits is not counted; else by the host's, with a single wait
 * whose cost is shared by all of them. */
static lh_status_t work_queue(rig_t *r, const work_t *w, uint32_t times, double *seconds)
{
    const bool told = r->api->event_time != NULL;
    uint64_t begin = sys()->now_ns(), end;
    lh_status_t status = told ? r->api->record(r->stream, r->before) : LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < times; i++)
        status = w->kernel != NULL ? w->kernel->row->launch(w->kernel->prepared, &w->call)
                                   : r->api->copy(r->stream, &w->to, &w->from, w->bytes);
    if (status == LH_OK) status = rig_wait(r);
    end = sys()->now_ns();
    if (status == LH_OK && told) status = r->api->event_time(r->before, &begin);
    if (status == LH_OK && told) status = r->api->event_time(r->event, &end);
    /* Signed: a device's clock may be set right between the two. */
    if (status == LH_OK) *seconds = fmax((double)(int64_t)(end - begin) * 1e-9, seconds_least);
    return status;
}

/* Median seconds of one, after a run to warm up; stops early when budget_s is spent. At least one
 * measured run is made even where the budget is already spent. */
static lh_status_t work_time(rig_t *r, const work_t *w, uint32_t times, double budget_s,
                             double *out)
{
    double seconds[REPEATS];
    uint32_t count = 0;
    lh_assert(times > 0);
    const uint64_t begin = sys()->now_ns();
    double spent;
    lh_status_t status = work_queue(r, w, times, &spent);
    while (status == LH_OK && count < REPEATS) {
        status = work_queue(r, w, times, &spent);
        seconds[count++] = spent / times;
        if ((double)(sys()->now_ns() - begin) * 1e-9 > budget_s) break;
    }
    if (status != LH_OK) return status;
    *out = device_bench_median(seconds, count);
    return LH_OK;
}

/* Normal numbers everywhere, as weights and activations are: a device that is short of power runs
 * slower the more bits change from one operand to the next, so numbers of one sign and size would
 * flatter it. The pattern is made once in pinned memory and copied piece by piece over the whole
 * allocation. */
static lh_status_t fill_pattern(rig_t *r, const allocation_t *to, lh_dtype_t dtype)
{
    allocation_t pinned = {.name = "pattern", .space = LH_SPACE_PINNED, .bytes = PIECE_BYTES};
    const uint64_t size = lh_dtype_bytes(dtype);
    lh_status_t status = allocation_alloc(&pinned, r->api, r->device);
    float *values = status != LH_OK ? NULL : mem_array(PIECE_BYTES / size, sizeof(*values));
    if (status == LH_OK && values == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK) philox_normals(1, 0, 0, PIECE_BYTES / size, 1, values);
    if (status == LH_OK)
        status = dtype_convert(dtype, pinned.address, LH_DTYPE_F32, values, PIECE_BYTES / size);
    const lh_place_t from = allocation_place(&pinned, 0);
    for (uint64_t at = 0; status == LH_OK && at < to->bytes; at += PIECE_BYTES) {
        const lh_place_t place = allocation_place(to, at);
        const uint64_t left = to->bytes - at;
        status = r->api->copy(r->stream, &place, &from, left < PIECE_BYTES ? left : PIECE_BYTES);
    }
    if (status == LH_OK) status = rig_wait(r);
    mem_free(values);
    allocation_release(&pinned, r->api);
    return status;
}

/* Dense, row by row. */
static lh_arg_t square_arg(lh_dtype_t dtype, uint64_t side)
{
    return (lh_arg_t){.dtype = dtype, .rank = 2, .shape = {side, side}, .stride = {side, 1}};
}

/* Seconds of [side, side] x [side, side], the second one transposed as a linear layer has it. Goes
 * through the same choice of kernels as a program, so that the peak is one which programs can
 * reach. Memory for all three matrices and for scratch is taken and given back here. */
static lh_status_t matmul_time(rig_t *r, lh_dtype_t dtype, uint64_t side, double budget_s,
                               double *out)
{
    const op_t *op = op_table_find(r->ops, "matmul");
    const lh_matmul_t how = {.struct_size = sizeof(how), .transpose_b = 1};
    lh_arg_t args[OP_SLOTS] = {square_arg(dtype, side), square_arg(dtype, side)};
    const uint32_t c = op_slot(op, "c");
    args[c] = square_arg(dtype, side);
    kernel_t *kernel;
    lh_status_t status = kernel_choose(r->kernels, op, &how, args, &kernel);
    if (status != LH_OK) return status;

    /* One allocation holds both inputs and the product, side by side. */
    const uint64_t bytes = side * side * lh_dtype_bytes(dtype);
    allocation_t data = {.name = "matmul", .space = LH_SPACE_DEVICE, .bytes = 3 * bytes};
    allocation_t scratch = {
        .name = "scratch", .space = LH_SPACE_DEVICE, .bytes = kernel->plan.scratch_bytes};
    status = allocation_alloc(&data, r->api, r->device);
    if (status == LH_OK) status = allocation_alloc(&scratch, r->api, r->device);
    if (status == LH_OK) status = fill_pattern(r, &data, dtype);
    if (status == LH_OK) {
        lh_place_t places[OP_SLOTS] = {allocation_place(&data, 0), allocation_place(&data, bytes)};
        places[c] = allocation_place(&data, 2 * bytes);
        work_t work = {.kernel = kernel,
                       .call = {.struct_size = sizeof(work.call),
                                .arg_count = kernel->arg_count,
                                .args = places,
                                .stream = r->stream,
                                .queue = r->native.kind[0] != '\0' ? &r->native : NULL}};
        if (scratch.memory != NULL) work.call.scratch = allocation_place(&scratch, 0);
        status = kernel_bind(kernel, &work.call);
        if (status == LH_OK) status = work_time(r, &work, 1, budget_s, out);
    }
    allocation_release(&scratch, r->api);
    allocation_release(&data, r->api);
    return status;
}

/* Larger squares while time and memory are left. 2 n^3 operations for a product of n x n matrices.
 * The largest rate counts: small squares do not fill a device, and very large ones may be slower
 * again. */
static lh_status_t peak_measure(rig_t *r, lh_dtype_t dtype, double budget_s, double *out)
{
    const uint64_t begin = sys()->now_ns(), memory = r->properties.memory_bytes;
    for (uint64_t side = SIDE_FIRST; side <= SIDE_LAST; side *= 2) {
        const double n = (double)side, spent = (double)(sys()->now_ns() - begin) * 1e-9;
        /* Four runs of this size, at the best rate so far, must fit into what is left. */
        if (side > SIDE_FIRST && (16 * n * n * n / 8 / *out * 4 > budget_s - spent ||
                                  4 * side * side * lh_dtype_bytes(dtype) > memory))
            return LH_OK;
        double seconds;
        const lh_status_t status = matmul_time(r, dtype, side, (budget_s - spent) / 3, &seconds);
        /* A dtype that the device has no kernel for has no peak. */
        if (status == LH_UNSUPPORTED) return LH_OK;
        if (status != LH_OK) return status;
        *out = fmax(*out, 2 * n * n * n / seconds);
    }
    return LH_OK;
}

/* A copy reads and writes, so its bytes count twice. The piece is made smaller where the device has
 * little memory, or so slow a one that the budget would not do. */
static lh_status_t bandwidth_measure(rig_t *r, double budget_s, double *out)
{
    uint64_t bytes = COPY_BYTES_MOST;
    while (bytes > PIECE_BYTES &&
           (3 * bytes > r->properties.memory_bytes || budget_s * 1e9 < (double)bytes))
        bytes /= 2;
    allocation_t data = {.name = "copies", .space = LH_SPACE_DEVICE, .bytes = 2 * bytes};
    double seconds = 0;
    lh_status_t status = allocation_alloc(&data, r->api, r->device);
    if (status == LH_OK) status = fill_pattern(r, &data, LH_DTYPE_F32);
    if (status == LH_OK) {
        const work_t work = {.to = allocation_place(&data, bytes),
                             .from = allocation_place(&data, 0),
                             .bytes = bytes};
        status = work_time(r, &work, 1, budget_s, &seconds);
    }
    allocation_release(&data, r->api);
    if (status == LH_OK) *out = 2 * (double)bytes / seconds;
    return status;
}

/* Adding two numbers: all that is left is the launch. The three numbers and the scratch lie 4,096
 * bytes apart. */
static lh_status_t launch_measure(rig_t *r, double budget_s, double *out)
{
    const op_t *op = op_table_find(r->ops, "add");
    lh_arg_t args[OP_SLOTS];
    for (uint32_t i = 0; i < 3; i++)
        args[i] = square_arg(LH_DTYPE_F32, 1);
    kernel_t *kernel;
    lh_status_t status = kernel_choose(r->kernels, op, NULL, args, &kernel);
    if (status != LH_OK) return status;

    const uint64_t step = 4096;
    allocation_t data = {.name = "launches",
                         .space = LH_SPACE_DEVICE,
                         .bytes = 4 * step + kernel->plan.scratch_bytes};
    status = allocation_alloc(&data, r->api, r->device);
    if (status == LH_OK) status = fill_pattern(r, &data, LH_DTYPE_F32);
    if (status == LH_OK) {
        lh_place_t places[OP_SLOTS];
        for (uint32_t i = 0; i < 3; i++)
            places[i] = allocation_place(&data, i * step);
        work_t work = {.kernel = kernel,
                       .call = {.struct_size = sizeof(work.call),
                                .arg_count = 3,
                                .args = places,
                                .scratch = allocation_place(&data, 3 * step),
                                .stream = r->stream,
                                .queue = r->native.kind[0] != '\0' ? &r->native : NULL}};
        status = kernel_bind(kernel, &work.call);
        if (status == LH_OK) status = work_time(r, &work, LAUNCHES, budget_s, out);
    }
    allocation_release(&data, r->api);
    return status;
}

/* The budget is shared out: a tenth for launches, a fifth for copies, the rest for two dtypes of
 * products. */
static lh_status_t device_measure(rig_t *r, double budget_s, device_rate_t *out)
{
    static const lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16};
    lh_status_t status = launch_measure(r, budget_s * 0.1, &out->launch_s);
    if (status == LH_OK) status = bandwidth_measure(r, budget_s * 0.2, &out->bytes_per_second);
    for (uint32_t i = 0; status == LH_OK && i < 2; i++)
        status = peak_measure(r, dtypes[i], budget_s * 0.35, &out->peak_flops[dtypes[i]]);
    return status;
}

/* The rig is closed whatever happened, and only a complete record is handed out. */
lh_status_t device_bench(const device_bench_how_t *how, device_rate_t *out)
{
    rig_t rig;
    device_rate_t rate = {0};
    lh_status_t status = rig_open(how, &rig);
    if (status == LH_OK) {
        (void)snprintf(rate.name, sizeof(rate.name), "%s", rig.properties.name);
        (void)snprintf(rate.fingerprint, sizeof(rate.fingerprint), "%s",
                       rig.properties.fingerprint);
        status = device_measure(&rig, how->budget_s, &rate);
    }
    rig_close(&rig);
    if (status == LH_OK) *out = rate;
    return status;
}

/* ---- calls of a training step ---- */

enum { REPEATS_MOST = 9, LISTS = 3, ALIKE_SLOTS = 3 };

/* times 0: the step has no such list, as with a single round. */
typedef struct listing { /* a call list that a step runs */
    program_t *program;
    bool later;
    uint64_t times; /* in a step */
    uint32_t calls;
    double *seconds; /* [calls, REPEATS_MOST] */
} listing_t;

/* repeats counts steps that were measured so far; all lists have as many. */
typedef struct program_rig {
    plan_programs_t *p;
    listing_t lists[LISTS];
    uint32_t repeats;
} program_rig_t;

/* Numbers that keep a step's arithmetic ordinary: ids spread over the vocabulary, weights whose sum
 * is 1, a learning rate that changes little. Speeds of kernels do not depend on their inputs, but
 * those of infinities and denormals may. */
static void fill_input(const program_rig_t *b, uint32_t which, void *to, uint64_t bytes)
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
        case LH_INPUT_STARTS: {
            const uint64_t start = i % starts * train->sequence; /* may be beyond 32 bits */
            ids[i] = (int32_t)(start < tokens ? start : tokens);
            break;
        }
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

/* Each program is asked which inputs it has. */
static lh_status_t give_inputs(const program_rig_t *b, program_t *program)
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

/* Lists are run in the order of a step. Their transfers move nothing, as the communicator is
 * planned only. */
static lh_status_t run_step(const program_rig_t *b)
{
    lh_status_t status = give_inputs(b, b->p->programs.update);
    if (status == LH_OK) status = give_inputs(b, b->p->programs.train);
    for (uint32_t l = 0; status == LH_OK && l < LISTS; l++)
        if (b->lists[l].times > 0)
            status = program_run(b->lists[l].program, b->lists[l].later ? 1 : 0);
    return status == LH_OK ? engine_wait(b->p->session->engine) : status;
}

/* Counts the calls of each list and makes room for their times. */
static lh_status_t lists_make(program_rig_t *b)
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

/* The engine adds up the time of each call since profiling was switched on, and each measured step
 * switches it on anew: so these are the times of one step. */
static void note_times(program_rig_t *b)
{
    lh_assert(b->repeats < REPEATS_MOST);
    program_call_t call;
    for (uint32_t l = 0; l < LISTS; l++)
        for (uint32_t i = 0; i < b->lists[l].calls; i++)
            if (program_call(b->lists[l].program, b->lists[l].later, i, &call))
                b->lists[l].seconds[(size_t)i * REPEATS_MOST + b->repeats] = (double)call.ns * 1e-9;
    b->repeats++;
}

/* The first step touches pages and warms libraries up. Profiling is switched off again whatever
 * happens, or the engine would go on asking for events. */
static lh_status_t steps_measure(program_rig_t *b, double budget_s)
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

/* Only the first ALIKE_SLOTS arguments are compared: an op's inputs stand first. */
static bool row_is_alike(const measured_call_t *row, const program_call_t *call, const char *kind)
{
    if (strcmp(row->kind, kind) != 0 || row->flops != call->flops || row->bytes != call->bytes ||
        row->arg_count != call->arg_count || strcmp(row->kernel, call->kernel) != 0)
        return false;
    for (uint32_t i = 0; i < row->arg_count && i < ALIKE_SLOTS; i++)
        if (memcmp(row->args[i].shape, call->args[i].shape, sizeof(row->args[i].shape)) != 0)
            return false;
    return true;
}

/* rows has room for as many as there are calls. */
static measured_call_t *measured_row_of(measured_call_t *rows, uint32_t *count,
                                        const program_call_t *call)
{
    char kind[CALL_KIND];
    device_rate_kind(call, kind);
    for (uint32_t i = 0; i < *count; i++)
        if (row_is_alike(&rows[i], call, kind)) return &rows[i];
    measured_call_t *row = &rows[(*count)++];
    *row = (measured_call_t){.args = call->args,
                             .arg_count = call->arg_count,
                             .kernel = call->kernel,
                             .flops = call->flops,
                             .bytes = call->bytes};
    (void)snprintf(row->kind, sizeof(row->kind), "%s", kind);
    return row;
}

/* Rows of alike calls, with the mean of their medians: so a step's sum is kept. most is an upper
 * bound; calls that are alike share a row, whose seconds are first the sum over all of them and at
 * last the mean of one. */
static lh_status_t rows_make(const program_rig_t *b, measured_call_t **out, uint32_t *count)
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
            if (!program_call(list->program, list->later, i, &call) || call.transfer != NULL)
                continue;
            measured_call_t *row = measured_row_of(rows, &n, &call);
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

/* Rows that differ in shape but not in cost share one entry of the record: their mean. The launch
 * is taken off each time first, since device_rate_seconds adds it again. */
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

/* Builds the engine, so it can be called once for a session; the weights are initial ones. */
lh_status_t device_bench_program(plan_programs_t *p, double budget_s, device_rate_t *rate,
                                 measured_call_t **rows, uint32_t *count)
{
    program_rig_t b = {.p = p};
    const job_t *job = p->session->job;
    measured_call_t *made = NULL;
    uint32_t n = 0;
    lh_status_t status = engine_build(p->session->engine);
    if (status == LH_OK)
        status = weights_initialize(p->session->weights, job->train.seed, job->model.init_std);
    if (status == LH_OK) status = lists_make(&b);
    if (status == LH_OK) status = steps_measure(&b, budget_s);
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
