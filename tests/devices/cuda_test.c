/* The cuda plugin over the stand-ins of NVIDIA's libraries (tests/fake_cuda): that its queues, events,
 * captures and words keep the device's promises, that products are right in every form, and that what
 * fails is said. On a GPU what needs no stand-in. Exit code 77 where there is neither. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda_api.h"
#include "stream_bench.h"

static const rig_setting_t plain[] = {{"capture", 1}, {0}};

/* fake: what LH_FAKE_CUDA says. */
static void bench_open(bench_t *b, const char *fake)
{
    setenv("LH_FAKE_CUDA", fake, 1);
    bench_open_with(b, "cuda", plain);
}

/* ---- queues ---- */

static void a_wait_orders_streams_and_a_missing_one_shows(void **state)
{
    (void)state;
    uint32_t shown = 0;
    for (int seed = 1; seed <= 5; seed++) {
        char fake[32];
        bench_t b;
        (void)snprintf(fake, sizeof(fake), "delay_us=300 seed=%d", seed);
        bench_open(&b, fake);
        bench_pass_on(&b, false);
        shown += !bench_out_is_in(&b);
        bench_pass_on(&b, true);
        assert_true(bench_out_is_in(&b));
        bench_close(&b);
    }
    assert_true(shown > 0);
}

static void the_host_reaches_pinned_memory_only(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b, "");
    assert_true(bench_touch_dies(b.device.address));
    assert_false(bench_touch_dies(b.out.address));
    bench_close(&b);
}

static void an_event_is_past_at_a_time_of_the_hosts_clock(void **state)
{
    (void)state;
    bench_t b;
    uint64_t first = 0, second = 0;
    bench_open(&b, "delay_us=3000");
    const lh_device_api_t *api = b.rig.api;
    const uint64_t before = rig_now_ns();
    MUST(api->record(b.rig.stream, b.first));
    bench_hold(&b);
    for (int i = 0; i < 10; i++)
        MUST(api->fill(b.rig.stream, &b.device, 0, 4));
    MUST(api->record(b.rig.stream, b.second));
    assert_int_equal(api->test(b.second, 0), LH_AGAIN);
    bench_go(&b);
    MUST(api->test(b.second, minute_ns));
    const uint64_t after = rig_now_ns();
    MUST(api->event_time(b.first, &first));
    MUST(api->event_time(b.second, &second));
    /* The clocks are compared through a thread that may be held up. */
    const uint64_t slack = 1000000000;
    assert_true(first + slack > before && second < after + slack);
    assert_true(second > first && second - first < after - before);
    bench_close(&b);
}

static void words_hold_a_stream_and_tell_the_host(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b, "");
    bench_words(&b);
    assert_int_equal(b.rig.api->await(b.rig.stream, &b.device), LH_INVALID);
    bench_close(&b);
}

/* ---- captures ---- */

static void a_capture_runs_when_it_is_replayed(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b, "");
    bench_replays(&b);
    bench_close(&b);
}

static void a_capture_must_be_closed_in_itself(void **state)
{
    (void)state;
    bench_t b;
    lh_replay_t *replay;
    bench_open(&b, "");
    const lh_device_api_t *api = b.rig.api;
    MUST(api->capture_begin(b.rig.stream));
    MUST(api->record(b.rig.stream, b.first));
    MUST(api->wait(b.other, b.first));
    MUST(api->fill(b.other, &b.device, 0, 4));
    assert_int_equal(api->capture_end(b.rig.stream, &replay), LH_INVALID);
    MUST(api->record(b.other, b.second));
    MUST(api->test(b.second, minute_ns));
    MUST(api->capture_begin(b.rig.stream));
    assert_int_equal(api->wait(b.rig.stream, b.second), LH_INVALID);
    assert_int_equal(api->capture_end(b.rig.stream, &replay), LH_INVALID);
    bench_close(&b);
}

/* One of the plugin's own kernels, by its name. */
static void a_captured_kernel_runs_at_every_replay(void **state)
{
    (void)state;
    static const double x[] = {1, 2, 3, 4};
    static const lh_activate_t silu = {sizeof(silu), LH_ACT_SILU};
    double y[4] = {0};
    bench_t b;
    lh_replay_t *replay;
    rig_call_t *call;
    bench_open(&b, "");
    const rig_slot_t slots[] = {RIG_IN(F32, x, 4), RIG_OUT(F32, y, 4)};
    MUST(rig_prepare(&b.rig, "activate", &silu, slots, COUNT(slots), &call));
    MUST(b.rig.api->capture_begin(b.rig.stream));
    rig_launch(call);
    MUST(b.rig.api->capture_end(b.rig.stream, &replay));
    rig_read(call);
    assert_true(rig_on_gpu() || y[0] != y[0]); /* nothing has run */
    MUST(b.rig.api->replay(replay, b.rig.stream));
    rig_wait(&b.rig);
    rig_read(call);
    assert_true(y[0] > 0.731 && y[0] < 0.732);
    b.rig.api->replay_free(replay);
    rig_free(call);
    bench_close(&b);
}

/* ---- products ---- */

typedef struct shape {
    uint64_t m, n, k;
} shape_t;

typedef struct form {
    lh_dtype_t dtype, out;
    bool transpose_a, transpose_b, bias, gelu, aux, add;
} form_t;

enum { MOST = 48 * 48 };

static double gelu_by_tanh(double x)
{
    return 0.5 * x * (1 + __builtin_tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* By the formula, in double, of what the dtype keeps. */
static void product_expect(const form_t *f, const shape_t *s, const double *a, const double *b,
                           const double *bias, const double *before, double *c, double *aux)
{
    for (uint64_t i = 0; i < s->m; i++) {
        for (uint64_t j = 0; j < s->n; j++) {
            double sum = f->bias ? rig_round(f->out, bias[j]) : 0;
            for (uint64_t k = 0; k < s->k; k++)
                sum += rig_round(f->dtype, a[f->transpose_a ? k * s->m + i : i * s->k + k]) *
                       rig_round(f->dtype, b[f->transpose_b ? j * s->k + k : k * s->n + j]);
            aux[i * s->n + j] = sum;
            c[i * s->n + j] = (f->gelu ? gelu_by_tanh(sum) : sum) +
                              (f->add ? rig_round(f->out, before[i * s->n + j]) : 0);
        }
    }
}

static rig_slot_t matrix(lh_dtype_t dtype, uint64_t rows, uint64_t columns, const double *in,
                         double *out)
{
    return (rig_slot_t){.dtype = dtype, .rank = 2, .shape = {rows, columns}, .in = in, .out = out};
}

static void product_compare(rig_t *rig, const form_t *f, const shape_t *s)
{
    static double a[MOST], b[MOST], bias[48], before[MOST];
    static double c[MOST], aux[MOST], expected[MOST], expected_aux[MOST];
    rig_random(1, a, s->m * s->k);
    rig_random(2, b, s->k * s->n);
    rig_random(3, bias, s->n);
    rig_random(4, before, s->m * s->n);
    const lh_matmul_t how = {.struct_size = sizeof(how),
                             .transpose_a = f->transpose_a,
                             .transpose_b = f->transpose_b,
                             .activation = f->gelu ? LH_ACT_GELU_TANH : LH_ACT_NONE};
    rig_slot_t slots[] = {
        f->transpose_a ? matrix(f->dtype, s->k, s->m, a, NULL)
                       : matrix(f->dtype, s->m, s->k, a, NULL),
        f->transpose_b ? matrix(f->dtype, s->n, s->k, b, NULL)
                       : matrix(f->dtype, s->k, s->n, b, NULL),
        RIG_NONE,
        RIG_NONE,
        RIG_NONE,
        matrix(f->out, s->m, s->n, f->add ? before : NULL, c),
        RIG_NONE,
    };
    if (f->bias) slots[2] = (rig_slot_t){.dtype = f->out, .rank = 1, .shape = {s->n}, .in = bias};
    if (f->add) slots[5].flags = LH_ARG_ADD;
    if (f->aux) slots[6] = matrix(f->out, s->m, s->n, NULL, aux);
    MUST(rig_run(rig, "matmul", &how, slots, COUNT(slots)));

    product_expect(f, s, a, b, bias, before, expected, expected_aux);
    const double most = f->out == LH_DTYPE_F32 ? 2e-5 : 1e-2;
    /* Terms are of size 1, and may cancel. */
    const double distance = rig_distance(c, expected, s->m * s->n);
    if (distance > most * (1 + rig_size(expected, s->m * s->n)))
        fail_msg("%llu x %llu x %llu, dtypes %u to %u: differs by %g", (unsigned long long)s->m,
                 (unsigned long long)s->n, (unsigned long long)s->k, f->dtype, f->out, distance);
    if (!f->aux) return;
    assert_true(rig_distance(aux, expected_aux, s->m * s->n) <=
                most * (1 + rig_size(expected_aux, s->m * s->n)));
}

static void products_of_every_form_are_right(void **state)
{
    (void)state;
    static const shape_t shapes[] = {{1, 1, 1}, {7, 5, 3}, {16, 24, 32}, {33, 48, 17}, {5, 40, 8}};
    static const lh_dtype_t dtypes[][2] = {{LH_DTYPE_F32, LH_DTYPE_F32},
                                           {LH_DTYPE_BF16, LH_DTYPE_BF16},
                                           {LH_DTYPE_BF16, LH_DTYPE_F32},
                                           {LH_DTYPE_F16, LH_DTYPE_F16}};
    bench_t b;
    bench_open(&b, "delay_us=0");
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (uint32_t bits = 0; bits < 64; bits++) {
                const form_t f = {.dtype = dtypes[d][0],
                                  .out = dtypes[d][1],
                                  .transpose_a = bits & 1,
                                  .transpose_b = bits & 2,
                                  .bias = bits & 4,
                                  .gelu = bits & 8,
                                  .aux = bits & 16,
                                  .add = bits & 32};
                product_compare(&b.rig, &f, &shapes[s]);
            }
    bench_close(&b);
}

/* 1 + 2^-12 has no place in TF32's ten bits. The library's choice is by `tf32`, and so is what a
 * fingerprint and a plan of the step's time say. */
static void f32_products_round_to_tf32_where_the_option_lets_them(void **state)
{
    (void)state;
    static const double a[] = {1 + 0x1p-12}, b[] = {1};
    static const lh_matmul_t how = {.struct_size = sizeof(how)};
    double rate[2];
    for (uint64_t tf32 = 0; tf32 < 2; tf32++) {
        const rig_setting_t settings[] = {{"capture", 1}, {"tf32", tf32}, {0}};
        double c[1] = {0};
        rig_t rig;
        const rig_slot_t slots[] = {
            RIG_IN(F32, a, 1, 1), RIG_IN(F32, b, 1, 1), RIG_NONE, RIG_NONE, RIG_NONE,
            RIG_OUT(F32, c, 1, 1)};
        setenv("LH_FAKE_CUDA", "", 1);
        rig_open_with(&rig, "cuda", settings);
        MUST(rig_run(&rig, "matmul", &how, slots, COUNT(slots)));
        assert_true(c[0] == (tf32 ? 1 : a[0]));
        assert_true((strstr(rig.properties.fingerprint, ", TF32") != NULL) == (tf32 != 0));
        rate[tf32] = rig.properties.flops_per_second[LH_DTYPE_F32];
        rig_close(&rig);
    }
    assert_true(rate[1] > rate[0]);
}

static lh_status_t product_prepare_with(rig_t *rig, const lh_arg_t *args, uint32_t flags,
                                        uint64_t variant, lh_kernel_plan_t *plan)
{
    const lh_kernel_t *row = &rig->plugin->kernels[0];
    const lh_matmul_t how = {.struct_size = sizeof(how)};
    const lh_kernel_desc_t desc = {.struct_size = sizeof(desc),
                                   .flags = flags,
                                   .op = "matmul",
                                   .attributes = &how,
                                   .args = args,
                                   .arg_size = sizeof(*args),
                                   .arg_count = 6,
                                   .scratch_limit_bytes = 1 << 20,
                                   .variant = variant,
                                   .stream = rig->stream};
    lh_prepared_t *k = NULL;
    *plan = (lh_kernel_plan_t){.struct_size = sizeof(*plan)};
    const lh_status_t status = row->prepare(rig_host(), rig->device, &desc, plan, &k);
    if (status == LH_OK) row->release(k);
    return status;
}

static lh_status_t product_prepare(rig_t *rig, const lh_arg_t *args, uint64_t variant,
                                   lh_kernel_plan_t *plan)
{
    return product_prepare_with(rig, args, 0, variant, plan);
}

/* The library's first candidate is slow here: who takes the time has the second. */
static void the_fastest_candidate_is_taken_where_they_may_be_timed(void **state)
{
    (void)state;
    const lh_arg_t square = {
        .dtype = LH_DTYPE_BF16, .rank = 2, .shape = {16, 16}, .stride = {16, 1}};
    const lh_arg_t args[6] = {[0] = square, [1] = square, [5] = square};
    lh_kernel_plan_t first, timed, again;
    bench_t b;
    bench_open(&b, "delay_us=0 slow_us=3000");
    MUST(product_prepare(&b.rig, args, 0, &first));
    assert_int_equal(first.flags & LH_KERNEL_TUNE, 0);
    MUST(product_prepare_with(&b.rig, args, LH_KERNEL_TUNE, 0, &timed));
    assert_int_not_equal(timed.flags & LH_KERNEL_TUNE, 0);
    assert_true(timed.variant >> 32 != first.variant >> 32);
    assert_true((uint32_t)timed.variant == (uint32_t)first.variant);
    MUST(product_prepare_with(&b.rig, args, LH_KERNEL_TUNE, timed.variant, &again));
    assert_true(again.variant == timed.variant);
    assert_int_equal(again.flags & LH_KERNEL_TUNE, 0);
    bench_close(&b);
    /* Without memory for a trial the first is taken. */
    bench_open(&b, "delay_us=0 slow_us=3000 fail=cuMemAlloc_v2:2:2");
    MUST(product_prepare_with(&b.rig, args, LH_KERNEL_TUNE, 0, &again));
    assert_true(again.variant == first.variant);
    assert_int_equal(again.flags & LH_KERNEL_TUNE, 0);
    bench_close(&b);
}

static void a_variant_is_taken_again_or_refused(void **state)
{
    (void)state;
    const lh_arg_t square = {
        .dtype = LH_DTYPE_BF16, .rank = 2, .shape = {16, 16}, .stride = {16, 1}};
    const lh_arg_t args[6] = {[0] = square, [1] = square, [5] = square};
    lh_kernel_plan_t plan, again;
    bench_t b;
    bench_open(&b, "");
    MUST(product_prepare(&b.rig, args, 0, &plan));
    assert_string_equal(plan.name, "matmul.bf16.cublaslt");
    assert_int_not_equal(plan.variant, 0);
    MUST(product_prepare(&b.rig, args, plan.variant, &again));
    assert_true(again.variant == plan.variant);
    assert_int_equal(product_prepare(&b.rig, args, plan.variant ^ 1, &again), LH_UNSUPPORTED);
    assert_non_null(strstr(rig_reason(), "another GPU, driver or library"));
    assert_int_equal(product_prepare(&b.rig, args, 1, &again), LH_UNSUPPORTED);
    bench_close(&b);
}

/* No other algorithm is needed where the host tells how places lie; else the next row has the call. */
static void a_library_that_wants_16_bytes_is_taken_where_all_lies_so(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {256, 16, 8, 0};
    bench_t b;
    bench_open(&b, "aligned=1");
    for (size_t i = 0; i < COUNT(alignments); i++) {
        const lh_arg_t square = {.dtype = LH_DTYPE_BF16,
                                 .rank = 2,
                                 .shape = {16, 16},
                                 .stride = {16, 1},
                                 .alignment = 256};
        lh_arg_t args[6] = {[0] = square, [1] = square, [5] = square};
        lh_kernel_plan_t plan, again;
        args[1].alignment = alignments[i];
        const lh_status_t status = product_prepare(&b.rig, args, 0, &plan);
        assert_int_equal(status, alignments[i] >= 16 ? LH_OK : LH_UNSUPPORTED);
        if (status != LH_OK) continue;
        assert_int_not_equal(plan.variant >> 32, 0);
        assert_int_equal((uint32_t)plan.variant, 0);
        MUST(product_prepare(&b.rig, args, plan.variant, &again));
        assert_true(again.variant == plan.variant);
        assert_int_equal(product_prepare(&b.rig, args, plan.variant | 1, &again), LH_UNSUPPORTED);
    }
    bench_close(&b);
}

/* ---- facts, sharing, failures ---- */

static void its_facts_name_gpu_driver_and_library(void **state)
{
    (void)state;
    bench_t b;
    lh_device_memory_t memory = {.struct_size = sizeof(memory)};
    lh_native_t native;
    bench_open(&b, "");
    const lh_device_properties_t *p = &b.rig.properties;
    assert_string_equal(p->name, "Fake GPU 9.0");
    assert_string_equal(p->pci_path, "0000:1b:00.0");
    assert_true(strncmp(p->fingerprint,
                        "Fake GPU 9.0, compute capability 9.0, driver for CUDA 13.0, "
                        "cuBLASLt 130002",
                        74) == 0);
    assert_true(p->flags == (LH_DEVICE_CAPTURE | LH_DEVICE_WORDS | LH_DEVICE_PACKS));
    MUST(b.rig.api->memory(b.rig.device, &memory));
    assert_true(memory.total_bytes == (uint64_t)2048 << 20);
    assert_true(memory.free_bytes < memory.total_bytes);
    MUST(b.rig.api->native(b.rig.stream, &native));
    assert_string_equal(native.kind, "cuda");
    assert_true(native.handle != 0);
    bench_close(&b);
}

static void where_it_is_is_told_before_it_is_opened(void **state)
{
    (void)state;
    const uint64_t config[32] = {0};
    char path[32] = "", few[8] = "";
    bench_t b;
    bench_open(&b, "gpus=2 capability=90");
    MUST(b.rig.api->where(rig_host(), config, 0, path, sizeof(path)));
    assert_string_equal(path, b.rig.properties.pci_path);
    MUST(b.rig.api->where(rig_host(), config, 1, path, sizeof(path)));
    assert_string_equal(path, "0000:1c:00.0");
    MUST(b.rig.api->where(rig_host(), config, 1, few, sizeof(few)));
    assert_string_equal(few, "0000:1c");
    assert_int_equal(b.rig.api->where(rig_host(), config, 2, path, sizeof(path)), LH_NO_DEVICE);
    assert_non_null(strstr(rig_reason(), "this machine has 2 GPUs"));
    bench_close(&b);
}

static void device_memory_is_shared_where_the_driver_offers_it(void **state)
{
    (void)state;
    bench_t b;
    lh_share_t share = {.struct_size = sizeof(share)};
    bench_open(&b, "dmabuf=0");
    assert_int_equal(b.rig.api->share(b.memory[1], LH_SHARE_DMABUF, &share), LH_UNSUPPORTED);
    assert_non_null(strstr(rig_reason(), "offers no dma-buf"));
    bench_close(&b);

    bench_open(&b, "dmabuf=1");
    assert_int_equal(b.rig.api->share(b.memory[0], LH_SHARE_DMABUF, &share), LH_UNSUPPORTED);
    MUST(b.rig.api->share(b.memory[1], LH_SHARE_DMABUF, &share));
    assert_int_equal(share.kind, LH_SHARE_DMABUF);
    assert_true(share.bytes >= BYTES);
    MUST(b.rig.api->copy(b.rig.stream, &b.device, &b.in, BYTES));
    rig_wait(&b.rig);
    void *seen = mmap(NULL, share.bytes, PROT_READ, MAP_SHARED, share.fd, 0);
    assert_true(seen != MAP_FAILED);
    assert_memory_equal(seen, b.in.address, BYTES);
    munmap(seen, share.bytes);
    close(share.fd);
    bench_close(&b);
}

/* Memory goes to network cards only where what they write comes to be seen, by itself or by a call. */
static void what_network_cards_write_is_seen(void **state)
{
    (void)state;
    bench_t b;
    lh_share_t share = {.struct_size = sizeof(share)};
    bench_open(&b, "dmabuf=1 flushes=0");
    assert_int_equal(b.rig.api->share(b.memory[1], LH_SHARE_DMABUF, &share), LH_UNSUPPORTED);
    assert_non_null(
        strstr(rig_reason(), "neither orders what network cards write nor can be told"));
    bench_close(&b);

    bench_open(&b, "dmabuf=1 fail=cuFlushGPUDirectRDMAWrites:2:1");
    MUST(b.rig.api->arrived(b.rig.device));
    assert_int_equal(b.rig.api->arrived(b.rig.device), LH_IO);
    assert_non_null(strstr(rig_reason(), "cuFlushGPUDirectRDMAWrites"));
    bench_close(&b);
}

/* A peer of this machine maps what it is given; a driver that has another address for such memory, or
 * refuses to register it, has pinned memory of its own, which works and is not shared. */
static void pinned_memory_is_shared_as_a_memfd_where_the_driver_registers_it(void **state)
{
    (void)state;
    static const char *const refusals[] = {"registers=0", "fail=cuMemHostRegister_v2:1:801"};
    bench_t b;
    lh_share_t share = {.struct_size = sizeof(share)};
    bench_open(&b, "");
    MUST(b.rig.api->share(b.memory[2], LH_SHARE_MEMFD, &share));
    assert_int_equal(share.kind, LH_SHARE_MEMFD);
    const float *seen = mmap(NULL, share.bytes, PROT_READ, MAP_SHARED, share.fd, 0);
    assert_true(seen != MAP_FAILED);
    assert_int_not_equal(ftruncate(share.fd, 0), 0); /* sealed */
    close(share.fd);
    bench_pass_on(&b, true);
    assert_memory_equal(seen, b.in.address, BYTES);
    assert_int_equal(b.rig.api->share(b.memory[1], LH_SHARE_MEMFD, &share), LH_UNSUPPORTED);
    bench_close(&b);
    assert_true(seen[1] == 1); /* the peer's mapping outlives the rank's memory */
    munmap((void *)(uintptr_t)seen, share.bytes);

    for (size_t i = 0; i < COUNT(refusals); i++) {
        bench_open(&b, refusals[i]);
        bench_pass_on(&b, true);
        assert_true(bench_out_is_in(&b));
        assert_int_equal(b.rig.api->share(b.memory[0], LH_SHARE_MEMFD, &share), LH_UNSUPPORTED);
        assert_non_null(strstr(rig_reason(), "pinned memory as a memfd, which this is not"));
        bench_close(&b);
    }
}

static void an_open_that_fails_anywhere_gives_all_back(void **state)
{
    (void)state;
    static const char *const calls[] = {
        "cuInit:1:999",         "cuDevicePrimaryCtxRetain:1:2",   "cuMemGetInfo_v2:1:46",
        "cuMemGetInfo_v2:2:46", "cuModuleLoadData:1:209",         "cuModuleGetFunction:1:500",
        "cuEventCreate:1:2",    "cuStreamCreateWithPriority:1:2",
    };
    for (size_t i = 0; i < COUNT(calls); i++) {
        char fake[64];
        (void)snprintf(fake, sizeof(fake), "fail=%s", calls[i]);
        setenv("LH_FAKE_CUDA", fake, 1);
        assert_false(rig_offers("cuda", plain));
        assert_true(rig_reason()[0] != '\0');
        setenv("LH_FAKE_CUDA", "", 1);
        assert_true(rig_offers("cuda", plain));
    }
}

/* ---- any call ---- */

typedef struct life {
    lh_device_t *device;
    lh_stream_t *stream;
    lh_event_t *event;
    lh_memory_t *pinned, *memory;
    lh_replay_t *replay;
    lh_prepared_t *product, *other;
    const lh_kernel_t *product_row, *other_row;
} life_t;

/* The row's kernel for two matrices, launched once. */
static lh_status_t life_launch(const lh_plugin_t *plugin, life_t *l, const char *op,
                               const lh_arg_t *args, uint32_t count, const lh_place_t *places,
                               const lh_kernel_t **row, lh_prepared_t **k)
{
    lh_kernel_plan_t plan = {.struct_size = sizeof(plan)};
    const lh_matmul_t matmul = {.struct_size = sizeof(matmul)};
    const lh_activate_t activate = {.struct_size = sizeof(activate), .function = LH_ACT_SILU};
    const lh_kernel_desc_t desc = {
        .struct_size = sizeof(desc),
        .op = op,
        .attributes = strcmp(op, "matmul") == 0 ? (const void *)&matmul : (const void *)&activate,
        .args = args,
        .arg_size = sizeof(*args),
        .arg_count = count,
        .stream = l->stream};
    *row = plugin->kernels;
    while (strcmp((*row)->op, op) != 0)
        (*row)++;
    lh_status_t status = (*row)->prepare(rig_host(), l->device, &desc, &plan, k);
    if (status != LH_OK) return status;
    lh_launch_t call = {.struct_size = sizeof(call),
                        .arg_count = count,
                        .args = places,
                        .scratch = {.memory = l->memory, .address = (char *)places->address + 4096},
                        .stream = l->stream};
    if ((*row)->bind != NULL) status = (*row)->bind(*k, &call, &call.bound);
    return status == LH_OK ? (*row)->launch(*k, &call) : status;
}

/* One of everything that the host calls. */
static lh_status_t life_live(const lh_plugin_t *plugin, const void *config, life_t *l)
{
    const lh_device_api_t *api = plugin->device;
    const lh_stream_how_t how = {.struct_size = sizeof(how), .role = LH_STREAM_COMM};
    const lh_arg_t square = {
        .dtype = LH_DTYPE_F32, .rank = 2, .shape = {16, 16}, .stride = {16, 1}};
    const lh_arg_t product[6] = {[0] = square, [1] = square, [5] = square};
    lh_device_properties_t properties = {.struct_size = sizeof(properties)};
    lh_device_memory_t memory = {.struct_size = sizeof(memory)};
    lh_share_t share = {.struct_size = sizeof(share), .fd = -1};
    void *address = NULL, *pinned = NULL;
    uint64_t ns;
    uint32_t count;
#define STEP(call)                        \
    do {                                  \
        const lh_status_t said_ = (call); \
        if (said_ != LH_OK) return said_; \
    } while (0)
    STEP(api->count(rig_host(), config, &count));
    STEP(api->open(rig_host(), config, 0, &l->device));
    STEP(api->properties(l->device, &properties));
    STEP(api->memory(l->device, &memory));
    STEP(api->alloc(l->device, LH_SPACE_PINNED, BYTES, &l->pinned, &pinned));
    STEP(api->alloc(l->device, LH_SPACE_DEVICE, 65536, &l->memory, &address));
    STEP(api->share(l->memory, LH_SHARE_DMABUF, &share));
    close(share.fd);
    STEP(api->arrived(l->device));
    STEP(api->stream_new(l->device, &how, &l->stream));
    STEP(api->event_new(l->device, &l->event));
    const lh_place_t at = {.memory = l->memory, .address = address};
    const lh_place_t there = {
        .memory = l->memory, .offset = 8192, .address = (char *)address + 8192};
    const lh_place_t word = {.memory = l->pinned, .address = pinned};
    const lh_place_t places[6] = {[0] = at, [1] = at, [5] = there}, pair[2] = {at, there};
    const lh_arg_t args[2] = {square, square};
    STEP(api->fill(l->stream, &at, 0, 65536));
    STEP(life_launch(plugin, l, "matmul", product, 6, places, &l->product_row, &l->product));
    STEP(life_launch(plugin, l, "activate", args, 2, pair, &l->other_row, &l->other));
    STEP(api->capture_begin(l->stream));
    STEP(api->copy(l->stream, &word, &at, 64));
    STEP(api->capture_end(l->stream, &l->replay));
    STEP(api->replay(l->replay, l->stream));
    STEP(api->signal(l->stream, &word));
    STEP(api->await(l->stream, &word));
    STEP(api->record(l->stream, l->event));
    STEP(api->wait(l->stream, l->event));
    STEP(api->test(l->event, minute_ns));
    return api->event_time(l->event, &ns);
#undef STEP
}

static void life_end(const lh_plugin_t *plugin, life_t *l)
{
    const lh_device_api_t *api = plugin->device;
    if (l->product != NULL) l->product_row->release(l->product);
    if (l->other != NULL) l->other_row->release(l->other);
    if (l->replay != NULL) api->replay_free(l->replay);
    if (l->event != NULL) api->event_free(l->event);
    if (l->stream != NULL) api->stream_free(l->stream);
    if (l->pinned != NULL) api->release(l->pinned);
    if (l->memory != NULL) api->release(l->memory);
    if (l->device != NULL) api->close(l->device);
}

/* Calls whose failure changes nothing here, as the plugin then does without. */
static bool life_does_without(const char *call)
{
    static const char *const names[] = {"cuGetErrorName",  "cuGetErrorString",
                                        "cuDeviceGetName", "cuDeviceGetPCIBusId",
                                        "cuMemHostAlloc",  "cuMemHostRegister_v2"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (strcmp(call, names[i]) == 0) return true;
    return false;
}

/* Calls that are not made in such a life, or whose answer nobody reads: what gives something back. */
static bool life_ends_with(const char *call)
{
    static const char *const parts[] = {"Destroy",
                                        "Free",
                                        "Unload",
                                        "Release",
                                        "Ipc",
                                        "Unregister",
                                        "GetCtx",
                                        "GetDevice",
                                        "cuFuncSetAttribute",
                                        "cuStreamSynchronize"};
    for (size_t i = 0; i < COUNT(parts); i++)
        if (strstr(call, parts[i]) != NULL) return true;
    return false;
}

static void a_call_that_fails_is_told(const char *call, int code)
{
    char fake[128];
    life_t l = {0};
    rig_t rig;
    setenv("LH_FAKE_CUDA", "", 1);
    rig_open_with(&rig, "cuda", plain); /* for its table */
    const lh_plugin_t *plugin = rig.plugin;
    rig_close(&rig);
    (void)snprintf(fake, sizeof(fake), "dmabuf=1 delay_us=5 fail=%s:1:%d", call, code);
    setenv("LH_FAKE_CUDA", fake, 1);
    rig_forget();
    const uint64_t config[32] = {0};
    const lh_status_t status = life_live(plugin, config, &l);
    life_end(plugin, &l);
    if (status == LH_OK && !life_does_without(call))
        fail_msg("%s fails with %d, and nobody says so", call, code);
    if (status != LH_OK && rig_reason()[0] == '\0')
        fail_msg("%s fails with %d: status %d without a reason", call, code, status);
    if (status == LH_AGAIN) fail_msg("%s fails with %d: LH_AGAIN", call, code);
}

static void any_call_may_fail_and_is_told(void **state)
{
    (void)state;
    static const char *const calls[] = {
#define CALL_NAME(name, parameters) #name,
        CUDA_DRIVER_CALLS(CALL_NAME) CUBLAS_CALLS(CALL_NAME)
#undef CALL_NAME
    };
    static const int codes[] = {1, 2, 999}; /* a mistake, no memory, an end of the context */
    for (size_t i = 0; i < COUNT(calls); i++)
        for (size_t c = 0; c < COUNT(codes) && !life_ends_with(calls[i]); c++)
            a_call_that_fails_is_told(calls[i], codes[c]);
}

static void memory_that_is_not_there_is_refused(void **state)
{
    (void)state;
    bench_t b;
    lh_memory_t *memory;
    void *address;
    bench_open(&b, "memory_mib=16");
    const lh_status_t status = b.rig.api->alloc(b.rig.device, LH_SPACE_DEVICE, (uint64_t)17 << 20,
                                                &memory, &address);
    assert_int_equal(status, LH_NO_MEMORY);
    assert_non_null(strstr(rig_reason(), "CUDA_ERROR_OUT_OF_MEMORY"));
    MUST(b.rig.api->alloc(b.rig.device, LH_SPACE_DEVICE, (uint64_t)8 << 20, &memory, &address));
    b.rig.api->release(memory);
    bench_close(&b);
}

static void work_that_fails_ends_the_device_by_name(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b, "fail=work:3:700");
    const lh_device_api_t *api = b.rig.api;
    for (int i = 0; i < 4; i++)
        (void)api->fill(b.rig.stream, &b.device, 0, 4);
    lh_status_t status = api->record(b.rig.stream, b.first);
    if (status == LH_OK) status = api->test(b.first, minute_ns);
    assert_int_equal(status, LH_DEVICE_LOST);
    assert_non_null(strstr(rig_reason(), "GPU 0 (Fake GPU 9.0, 0000:1b:00.0) of rank 0 on rig"));
    assert_non_null(strstr(rig_reason(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    assert_non_null(strstr(rig_reason(), "last queued: fill"));
    bench_close(&b);
}

/* The answers of which NVIDIA's header says that nothing works behind them. */
static void whatever_ends_a_context_loses_the_device(void **state)
{
    (void)state;
    static const int codes[] = {CUDA_ECC,
                                CUDA_NVLINK,
                                CUDA_CONTAINED,
                                CUDA_ILLEGAL_ADDRESS,
                                CUDA_LAUNCH_TIMEOUT,
                                CUDA_CONTEXT_DESTROYED,
                                CUDA_ASSERT,
                                CUDA_STACK_ERROR,
                                CUDA_ILLEGAL_INSTRUCTION,
                                CUDA_MISALIGNED,
                                CUDA_INVALID_SPACE,
                                CUDA_INVALID_PC,
                                CUDA_LAUNCH_FAILED,
                                CUDA_TENSOR_LEAK,
                                CUDA_MPS_TERMINATED,
                                CUDA_EXTERNAL_DEVICE,
                                CUDA_UNKNOWN};
    for (size_t i = 0; i < COUNT(codes); i++) {
        char fake[64], code[16];
        bench_t b;
        (void)snprintf(fake, sizeof(fake), "delay_us=0 fail=work:3:%d", codes[i]);
        (void)snprintf(code, sizeof(code), " (%d), ", codes[i]);
        bench_open(&b, fake);
        rig_forget();
        const lh_device_api_t *api = b.rig.api;
        for (int k = 0; k < 4; k++)
            (void)api->fill(b.rig.stream, &b.device, 0, 4);
        lh_status_t status = api->record(b.rig.stream, b.first);
        if (status == LH_OK) status = api->test(b.first, minute_ns);
        if (status != LH_DEVICE_LOST) fail_msg("%d ends with status %d", codes[i], status);
        assert_non_null(strstr(rig_reason(), code));
        bench_close(&b);
    }
}

/* One product of two matrices in the bench's memory. */
static lh_status_t bench_product(bench_t *b)
{
    const lh_arg_t square = {
        .dtype = LH_DTYPE_F32, .rank = 2, .shape = {16, 16}, .stride = {16, 1}};
    const lh_arg_t args[6] = {[0] = square, [1] = square, [5] = square};
    const lh_place_t there = {.memory = b->memory[1], .address = (char *)b->device.address + 8192};
    const lh_place_t places[6] = {[0] = b->device, [1] = b->device, [5] = there};
    life_t l = {.device = b->rig.device, .stream = b->rig.stream, .memory = b->memory[1]};
    const lh_status_t status = life_launch(b->rig.plugin, &l, "matmul", args, 6, places,
                                           &l.product_row, &l.product);
    if (l.product != NULL) l.product_row->release(l.product);
    return status;
}

/* The library says 13 then, whatever has failed. */
static void a_product_behind_work_that_failed_ends_the_device_too(void **state)
{
    (void)state;
    bench_t b;
    bench_open(&b, "fail=work:3:700");
    const lh_device_api_t *api = b.rig.api;
    for (int i = 0; i < 4; i++)
        (void)api->fill(b.rig.stream, &b.device, 0, 4);
    lh_status_t status = api->record(b.rig.stream, b.first);
    if (status == LH_OK) status = api->test(b.first, minute_ns);
    assert_int_equal(status, LH_DEVICE_LOST);
    rig_forget();
    assert_int_equal(bench_product(&b), LH_DEVICE_LOST);
    assert_non_null(strstr(rig_reason(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    assert_non_null(strstr(rig_reason(), "last queued: matmul (cuBLASLt)"));
    bench_close(&b);
}

/* The host launches what it holds then. */
static void a_product_that_no_capture_takes_is_told_as_such(void **state)
{
    (void)state;
    bench_t b;
    lh_replay_t *replay;
    bench_open(&b, "lazy=1");
    const lh_device_api_t *api = b.rig.api;
    MUST(api->capture_begin(b.rig.stream));
    assert_int_equal(bench_product(&b), LH_UNSUPPORTED);
    assert_int_equal(api->capture_end(b.rig.stream, &replay), LH_INVALID);
    MUST(bench_product(&b));
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(words_hold_a_stream_and_tell_the_host),
        cmocka_unit_test(a_capture_runs_when_it_is_replayed),
        cmocka_unit_test(a_capture_must_be_closed_in_itself),
        cmocka_unit_test(a_captured_kernel_runs_at_every_replay),
        cmocka_unit_test(products_of_every_form_are_right),
        cmocka_unit_test(a_variant_is_taken_again_or_refused),
    };
    if (rig_on_gpu()) return cmocka_run_group_tests(on_gpu, NULL, NULL);
    if (getenv("LD_LIBRARY_PATH") == NULL || strstr(getenv("LD_LIBRARY_PATH"), "fake_cuda") == NULL)
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_orders_streams_and_a_missing_one_shows),
        cmocka_unit_test(the_host_reaches_pinned_memory_only),
        cmocka_unit_test(an_event_is_past_at_a_time_of_the_hosts_clock),
        cmocka_unit_test(words_hold_a_stream_and_tell_the_host),
        cmocka_unit_test(a_capture_runs_when_it_is_replayed),
        cmocka_unit_test(a_capture_must_be_closed_in_itself),
        cmocka_unit_test(a_captured_kernel_runs_at_every_replay),
        cmocka_unit_test(products_of_every_form_are_right),
        cmocka_unit_test(f32_products_round_to_tf32_where_the_option_lets_them),
        cmocka_unit_test(the_fastest_candidate_is_taken_where_they_may_be_timed),
        cmocka_unit_test(a_variant_is_taken_again_or_refused),
        cmocka_unit_test(a_library_that_wants_16_bytes_is_taken_where_all_lies_so),
        cmocka_unit_test(its_facts_name_gpu_driver_and_library),
        cmocka_unit_test(where_it_is_is_told_before_it_is_opened),
        cmocka_unit_test(device_memory_is_shared_where_the_driver_offers_it),
        cmocka_unit_test(what_network_cards_write_is_seen),
        cmocka_unit_test(pinned_memory_is_shared_as_a_memfd_where_the_driver_registers_it),
        cmocka_unit_test(an_open_that_fails_anywhere_gives_all_back),
        cmocka_unit_test(any_call_may_fail_and_is_told),
        cmocka_unit_test(memory_that_is_not_there_is_refused),
        cmocka_unit_test(work_that_fails_ends_the_device_by_name),
        cmocka_unit_test(whatever_ends_a_context_loses_the_device),
        cmocka_unit_test(a_product_behind_work_that_failed_ends_the_device_too),
        cmocka_unit_test(a_product_that_no_capture_takes_is_told_as_such),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
