/* checks_of_devices.c - a device's memory, streams and kernels. The truth is the reference device
 * in double precision. */
#include "check.h"
#include "check_host.h"
#include "device_memory.h"
#include "node_run.h"
#include "op_cases.h"

#include <math.h>
#include <stdio.h>

#include <base/memory.h>

/* Relative to the largest element of a tensor. F32: sums of up to 5000 terms walk by a few hundred
 * roundings at most, slopes of tanh cancel near the flat ends; BF16: a few roundings of 2^-9 one
 * after the other. */
static const double tolerance_f32 = 2e-5, tolerance_bf16 = 3e-2;
/* Of a tensor whose numbers cancel: those that went in are of size 1. */
static const double least_size = 0.1;

typedef struct bench {
    subject_t *s;
    op_table_t *ops;
    opened_t tested, truth;
    void *config, *no_config;
} bench_t;

static void bench_open(subject_t *s, bench_t *b)
{
    *b = (bench_t){.s = s};
    const plugin_t *reference = subject_reference(s);
    if (reference == NULL) check_skip("no reference device: %s", fail_reason());
    b->config = subject_config(s, s->plugin);
    subject_need_device(s, b->config);
    b->no_config = subject_config(s, reference);
    check_ok(op_table_new(&b->ops), "ops");
    check_ok(op_table_add(b->ops, s->plugin->ops, sizeof(*s->plugin->ops), s->plugin->op_count,
                          s->plugin->name),
             "its ops");
    if (opened_open(s->plugin, check_host(), b->config, &b->tested) != LH_OK)
        check_fault("it can't be opened: %s", check_host_reason());
    check_ok(opened_open(reference, check_host(), b->no_config, &b->truth), "reference device");
}

static void bench_close(bench_t *b)
{
    opened_close(&b->tested);
    opened_close(&b->truth);
    op_table_free(b->ops);
    mem_free(b->config);
    mem_free(b->no_config);
}

typedef struct shape {
    uint64_t rows, width;
} shape_t;
static const shape_t shapes[] = {{1, 5}, {7, 53}, {33, 128}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

typedef struct pair { /* a case on both devices, on the same numbers */
    recording_t *r, *exact;
    node_run_t *runs[2];
} pair_t;

typedef struct how {
    uint64_t pad, shift;
    bool add;
} how_t;

/* False: the device has no kernel for it, which node_run_lacking names. */
static bool pair_open(bench_t *b, const op_case_t *c, const shape_t *at, lh_dtype_t dtype,
                      const how_t *how, pair_t *p)
{
    *p = (pair_t){0};
    const node_run_how_t tested = {
        .on = &b->tested, .pad = how->pad, .shift = how->shift, .add = how->add};
    const node_run_how_t truth = {.on = &b->truth, .add = how->add};
    check_ok(op_case_record(c, b->ops, b->s->plugin, at->rows, at->width, dtype, &p->r), c->what);
    check_ok(op_case_record(c, b->ops, b->s->plugin, at->rows, at->width, LH_DTYPE_F64, &p->exact),
             c->what);
    lh_status_t status = node_run_new(&tested, p->r, &p->runs[0]);
    if (status == LH_UNSUPPORTED) {
        op_case_t forward = *c; /* a device that is young may have no gradients yet */
        forward.flags |= OP_CASE_FORWARD;
        recording_free(p->r);
        recording_free(p->exact);
        return forward.flags != c->flags && pair_open(b, &forward, at, dtype, how, p);
    }
    if (status != LH_OK)
        check_fault("%s: %s: %s", c->what, status_text(status), check_host_reason());
    check_ok(node_run_new(&truth, p->exact, &p->runs[1]), "reference device");
    op_case_fill(p->r, c->flags, b->s->seed, p->runs, 2);
    status = node_run_go(p->runs[0], false);
    if (status != LH_OK)
        check_fault("%s: %s: %s", c->what, status_text(status), check_host_reason());
    check_ok(node_run_go(p->runs[1], false), "reference device");
    return true;
}

static void pair_close(pair_t *p)
{
    node_run_free(p->runs[0]);
    node_run_free(p->runs[1]);
    recording_free(p->r);
    recording_free(p->exact);
}

static const char *maker_of(const recording_t *r, lh_value_t v)
{
    return r->nodes[r->values[v].node].op->row.name;
}

static void compare(const pair_t *p, const op_case_t *c, const shape_t *at, lh_dtype_t dtype,
                    lh_value_t v)
{
    const uint64_t n = node_run_elements(p->runs[0], v);
    double *got = check_memory(n, sizeof(*got)), *want = check_memory(n, sizeof(*want)), size = 0;
    node_run_get(p->runs[0], v, got);
    node_run_get(p->runs[1], v, want);
    for (uint64_t i = 0; i < n; i++)
        if (isfinite(want[i])) size = fmax(size, fabs(want[i]));
    size = fmax(size, least_size);
    const double limit = (dtype == LH_DTYPE_F32 ? tolerance_f32 : tolerance_bf16) * size;
    for (uint64_t i = 0; i < n; i++)
        if (!(got[i] == want[i] || fabs(got[i] - want[i]) <= limit))
            check_fault("%s [%llu, %llu] %s: op %s gives %.9g in element %llu of %llu, in double "
                        "it is %.9g (largest %.3g)",
                        c->what, (unsigned long long)at->rows, (unsigned long long)at->width,
                        dtype == LH_DTYPE_F32 ? "F32" : "BF16", maker_of(p->r, v), got[i],
                        (unsigned long long)i, (unsigned long long)n, want[i], size);
    mem_free(got);
    mem_free(want);
}

/* Every case, shape and dtype that it has kernels for. */
static uint32_t compare_all(bench_t *b, const how_t *how)
{
    static const lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16};
    uint32_t compared = 0;
    for (uint32_t i = 0; i < op_case_count * SHAPES * 2; i++) {
        const op_case_t *c = &op_cases[i / (SHAPES * 2)];
        const shape_t *at = &shapes[i / 2 % SHAPES];
        const lh_dtype_t dtype = dtypes[i % 2];
        pair_t p;
        if (dtype != LH_DTYPE_F32 && (c->flags & OP_CASE_WIDE) != 0) continue;
        if (!pair_open(b, c, at, dtype, how, &p)) continue;
        compared++;
        for (lh_value_t v = 1; v < p.r->value_count; v++) {
            const uint32_t kind = p.r->values[v].kind;
            if ((kind == VALUE_RESULT || kind == VALUE_GRADIENT) && node_run_has(p.runs[0], v))
                compare(&p, c, at, dtype, v);
        }
        if (!node_run_kept_between(p.runs[0]))
            check_fault("%s [%llu, %llu]: it writes between the rows of a tensor", c->what,
                        (unsigned long long)at->rows, (unsigned long long)at->width);
        pair_close(&p);
    }
    return compared;
}

static void kernels_compute(subject_t *s)
{
    bench_t b;
    bench_open(s, &b);
    if (compare_all(&b, &(how_t){0}) == 0) check_fault("it has a kernel for none of the base ops");
    bench_close(&b);
}

static void rows_may_lie_apart(subject_t *s)
{
    bench_t b;
    bench_open(s, &b);
    if (compare_all(&b, &(how_t){.pad = 3}) == 0) check_skip("it has no kernels for base ops");
    bench_close(&b);
}

static void gradients_add(subject_t *s)
{
    bench_t b;
    bench_open(s, &b);
    if (compare_all(&b, &(how_t){.add = true}) == 0) check_skip("it has no kernels for base ops");
    bench_close(&b);
}

/* ---- the same bits ---- */

static void same_bits(const op_case_t *c, const pair_t *a, const pair_t *b, const char *how)
{
    for (lh_value_t v = 1; v < a->r->value_count; v++) {
        const uint32_t kind = a->r->values[v].kind;
        if ((kind != VALUE_RESULT && kind != VALUE_GRADIENT) || !node_run_has(a->runs[0], v))
            continue;
        const uint64_t n = node_run_elements(a->runs[0], v);
        double *x = check_memory(n, sizeof(*x)), *y = check_memory(n, sizeof(*y));
        node_run_get(a->runs[0], v, x);
        node_run_get(b->runs[0], v, y);
        if (memcmp(x, y, n * sizeof(*x)) != 0)
            check_fault("%s: op %s gives other bits %s", c->what, maker_of(a->r, v), how);
        mem_free(x);
        mem_free(y);
    }
}

static void bits_repeat(subject_t *s)
{
    static const shape_t at = {33, 128};
    bench_t b;
    bench_open(s, &b);
    for (uint32_t i = 0; i < op_case_count; i++) {
        pair_t once, again, elsewhere;
        const op_case_t *c = &op_cases[i];
        if (!pair_open(&b, c, &at, LH_DTYPE_F32, &(how_t){0}, &once)) continue;
        (void)pair_open(&b, c, &at, LH_DTYPE_F32, &(how_t){0}, &again);
        (void)pair_open(&b, c, &at, LH_DTYPE_F32, &(how_t){.shift = 3}, &elsewhere);
        same_bits(c, &once, &again, "the second time");
        same_bits(c, &once, &elsewhere, "where its arguments lie elsewhere");
        pair_close(&once);
        pair_close(&again);
        pair_close(&elsewhere);
    }
    bench_close(&b);
}

/* ---- what it claims ---- */

static void it_has_the_base_ops(subject_t *s)
{
    static const char *const base[] = {
#define NAME(name, text) #name,
        LH_OPS_BASE(NAME)
#undef NAME
    };
    for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++) {
        bool listed = false;
        for (uint32_t k = 0; k < s->plugin->kernel_count && !listed; k++)
            listed = strcmp(s->plugin->kernels[k].op, base[i]) == 0;
        if (!listed) check_warn("it lists no kernel for '%s', which every model needs", base[i]);
    }
}

static void rows_name_ops(subject_t *s)
{
    op_table_t *ops;
    check_ok(op_table_new(&ops), "ops");
    check_ok(op_table_add(ops, s->plugin->ops, sizeof(*s->plugin->ops), s->plugin->op_count,
                          s->plugin->name),
             "its ops");
    for (uint32_t i = 0; i < s->plugin->kernel_count; i++)
        if (op_table_find(ops, s->plugin->kernels[i].op) == NULL)
            check_fault("kernel row %u is for op '%s', which neither the host nor it defines", i,
                        s->plugin->kernels[i].op);
    op_table_free(ops);
}

/* What it says of a place before it is opened. */
static void check_where(const bench_t *b)
{
    const lh_device_api_t *api = b->s->plugin->device;
    char path[sizeof(b->tested.properties.pci_path)] = "";
    if (api->where == NULL) return;
    if (api->where(check_host(), b->config, 0, path, sizeof(path)) != LH_OK)
        check_fault("where() fails on a device that can be opened: %s", check_host_reason());
    if (memchr(path, '\0', sizeof(path)) == NULL ||
        strcmp(path, b->tested.properties.pci_path) != 0)
        check_fault("where() says '%.31s', its properties '%.31s'", path,
                    b->tested.properties.pci_path);
}

static void properties_make_sense(subject_t *s)
{
    const lh_device_api_t *api = s->plugin->device;
    bench_t b;
    bench_open(s, &b);
    const lh_device_properties_t *p = &b.tested.properties;
    if (p->name[0] == '\0' || p->fingerprint[0] == '\0')
        check_fault("it has no %s", p->name[0] == '\0' ? "name" : "fingerprint");
    if (p->alignment_bytes == 0 || (p->alignment_bytes & (p->alignment_bytes - 1)) != 0)
        check_fault("alignment_bytes is %llu, no power of two",
                    (unsigned long long)p->alignment_bytes);
    if (p->cores == 0 || p->memory_bytes == 0)
        check_fault("cores are %u, memory_bytes %llu", p->cores,
                    (unsigned long long)p->memory_bytes);
    const bool capture = api->capture_begin != NULL, words = api->await != NULL;
    if (capture != ((p->flags & LH_DEVICE_CAPTURE) != 0) ||
        capture != (api->capture_end != NULL && api->replay != NULL && api->replay_free != NULL))
        check_fault("LH_DEVICE_CAPTURE and the four functions for it do not agree");
    if (words != ((p->flags & LH_DEVICE_WORDS) != 0) || words != (api->signal != NULL))
        check_fault("LH_DEVICE_WORDS, await and signal do not agree");
    if ((api->native != NULL) != (p->native[0] != '\0'))
        check_fault("native() and the kind in its properties do not agree");
    check_where(&b);
    bench_close(&b);
}

/* ---- memory and streams ---- */

static void too_much_memory_is_refused(subject_t *s)
{
    static const uint64_t sizes[] = {(uint64_t)1 << 50, UINT64_MAX / 2, UINT64_MAX - 63,
                                     UINT64_MAX};
    const lh_device_api_t *api = s->plugin->device;
    bench_t b;
    bench_open(s, &b);
    for (uint32_t space = LH_SPACE_DEVICE; space <= LH_SPACE_PINNED; space++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            lh_memory_t *memory = NULL;
            void *address = NULL;
            check_host_faults(NULL);
            const lh_status_t status = api->alloc(b.tested.device, space, sizes[i], &memory,
                                                  &address);
            if (status == LH_OK)
                check_fault("alloc of %llu bytes says it went well", (unsigned long long)sizes[i]);
            const bool expected = status == LH_NO_MEMORY || (i > 0 && status == LH_INVALID);
            if (!expected || check_host_reason()[0] == '\0' || memory != NULL)
                check_fault("alloc of %llu bytes says '%s'%s, expected '%s' and why",
                            (unsigned long long)sizes[i], status_text(status),
                            check_host_reason()[0] == '\0' ? " without a reason" : "",
                            status_text(LH_NO_MEMORY));
            if (api->alloc(b.tested.device, space, 4096, &memory, &address) != LH_OK)
                check_fault("after a refused alloc none works any more: %s", check_host_reason());
            api->release(memory);
        }
    bench_close(&b);
}

typedef struct block {
    lh_memory_t *memory;
    lh_place_t place;
} block_t;

static block_t block_new(bench_t *b, uint32_t space, uint64_t bytes)
{
    block_t k = {0};
    void *address = NULL;
    check_ok(b->s->plugin->device->alloc(b->tested.device, space, bytes, &k.memory, &address),
             "alloc");
    k.place = (lh_place_t){k.memory, 0, address};
    return k;
}

/* Two streams hand a block to each other: what one queues runs behind the other's event. */
static void streams_keep_order(subject_t *s)
{
    enum { ROUNDS = 50, BYTES = 1 << 20 };
    const lh_device_api_t *api = s->plugin->device;
    const lh_stream_how_t how = {.struct_size = sizeof(how), .role = LH_STREAM_COPY, .threads = 1};
    bench_t b;
    bench_open(s, &b);
    lh_stream_t *other;
    lh_event_t *there, *back;
    check_ok(api->stream_new(b.tested.device, &how, &other), "stream_new");
    check_ok(api->event_new(b.tested.device, &there), "event_new");
    check_ok(api->event_new(b.tested.device, &back), "event_new");
    block_t x = block_new(&b, LH_SPACE_DEVICE, BYTES), y = block_new(&b, LH_SPACE_DEVICE, BYTES);
    block_t host = block_new(&b, LH_SPACE_PINNED, BYTES);
    for (int i = 1; i <= ROUNDS; i++) {
        check_ok(api->fill(b.tested.stream, &x.place, (uint8_t)i, BYTES), "fill");
        check_ok(api->record(b.tested.stream, there), "record");
        check_ok(api->wait(other, there), "wait");
        check_ok(api->copy(other, &y.place, &x.place, BYTES), "copy");
        check_ok(api->record(other, back), "record");
        check_ok(api->wait(b.tested.stream, back), "wait");
        check_ok(api->fill(b.tested.stream, &x.place, 0xee, BYTES), "fill");
        check_ok(api->copy(b.tested.stream, &host.place, &y.place, BYTES), "copy");
        check_ok(opened_wait(&b.tested), "test");
        for (uint64_t k = 0; k < BYTES; k += 4093)
            if (((const uint8_t *)host.place.address)[k] != (uint8_t)i)
                check_fault("round %d: byte %llu is %u after a wait for the event behind its fill "
                            "with %d",
                            i, (unsigned long long)k, ((const uint8_t *)host.place.address)[k], i);
    }
    api->release(x.memory);
    api->release(y.memory);
    api->release(host.memory);
    api->event_free(there);
    api->event_free(back);
    api->stream_free(other);
    bench_close(&b);
}

#define DEVICE(name, sentence, seconds, run)                          \
    {                                                                 \
        name, sentence, CHECK_KIND(DEVICE), false, seconds, run, NULL \
    }
const check_t checks_of_devices[] = {
    DEVICE("device.properties", "its properties are there, and flags and functions agree", 20,
           properties_make_sense),
    DEVICE("device.memory", "more memory than there is is refused, and it goes on", 30,
           too_much_memory_is_refused),
    DEVICE("device.streams", "streams that wait for each other's events keep the order", 60,
           streams_keep_order),
    DEVICE("device.share",
           "what share gives stands for the memory itself, and outlives it where it is mapped", 30,
           shared_memory_is_the_memory),
    DEVICE("device.adopt", "two processes read and write one memory, of either space", 60,
           memory_of_a_peer_is_reached),
    DEVICE("device.wrap", "host memory that it wraps is read where it lies", 30,
           host_memory_is_an_input),
    DEVICE("device.rows", "its kernel rows are for ops that exist", 10, rows_name_ops),
    DEVICE("device.base_ops", "it has kernels for all base ops", 10, it_has_the_base_ops),
    DEVICE("device.kernels",
           "every op, forward and backward, agrees with the reference device in double", 120,
           kernels_compute),
    DEVICE("device.padded", "rows may lie apart, and nothing is written between them", 120,
           rows_may_lie_apart),
    DEVICE("device.adds", "gradients add to what is there when asked", 120, gradients_add),
    DEVICE("device.same_bits", "the same arguments give the same bits, wherever they lie", 120,
           bits_repeat),
    {0},
};
