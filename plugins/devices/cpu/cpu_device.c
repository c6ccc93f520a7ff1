/* cpu_device.c - the processors of this machine as one device: work has finished when the call that
 * asked for it returns, so streams and events are little more than names.
 *
 * The host's thread that launches is one of those that compute. */
#include "cpu_device.h"

#include "cpu_memory.h"
#include "onednn.h"
#include "openmp.h"
#include "processor.h"

#include <stdio.h>

/* Pools of oneDNN (code, a map of arguments for each call) and libgomp's stacks. */
static const uint64_t library_bytes = (uint64_t)64 << 20;

/* Passed at once: it only remembers when, for profiles. */
struct lh_event {
    const lh_host_t *host;
    uint64_t recorded_ns;
};

/* All processors that this process may use are one device. */
static lh_status_t cpu_count(const lh_host_t *host, const void *config, uint32_t *out)
{
    (void)host;
    (void)config;
    *out = 1;
    return LH_OK;
}

/* Instruction set and number of threads: what the options say, or the best and all. What a
 * job asks for and this processor lacks is refused, never lowered. */
static lh_status_t cpu_choose(lh_device_t *d)
{
    const uint32_t best = processor_isa();
    d->isa = d->config.isa == 0 ? best : d->config.isa - 1;
    if (d->isa > best)
        return d->host->fail(d->host, LH_NO_DEVICE, "isa = %s, but this processor has %s at best",
                             processor_isa_name(d->isa), processor_isa_name(best));
    const uint32_t count = processor_count(d->host);
    d->threads = d->config.threads == 0 ? count : (uint32_t)d->config.threads;
    processor_model(d->model, sizeof(d->model));
    return LH_OK;
}

/* oneDNN cuts its work by the number that it is told, and leaves out what nobody comes for. */
static lh_status_t cpu_team(lh_device_t *d)
{
    const uint32_t given = openmp_team(&d->openmp, d->threads);
    if (given < d->threads && d->config.threads != 0)
        return d->host->fail(d->host, LH_NO_DEVICE,
                             "threads = %u, but libgomp gives %u (OMP_THREAD_LIMIT)", d->threads,
                             given);
    d->threads = given;
    return LH_OK;
}

/* libgomp reads its variables when it is loaded, which oneDNN does: so the environment comes
 * first. */
static lh_status_t cpu_open(const lh_host_t *host, const void *config, uint32_t index,
                            lh_device_t **out)
{
    if (index != 0)
        return host->fail(host, LH_NO_DEVICE, "device %u is wanted, the cpu is one device", index);
    lh_device_t *d = host->alloc(host, sizeof(*d), 64);
    if (d == NULL) return LH_NO_MEMORY;

    d->host = host;
    d->run = openmp_run;
    if (config != NULL) memcpy(&d->config, config, sizeof(d->config));
    lh_status_t status = cpu_choose(d);
    if (status != LH_OK) goto release;
    openmp_environment(d->threads);
    status = onednn_open(host, &d->onednn);
    if (status != LH_OK) goto release;
    status = openmp_open(host, &d->openmp);
    if (status != LH_OK) goto onednn;
    status = cpu_team(d);
    if (status != LH_OK) goto onednn;
    *out = d;
    return LH_OK;

onednn:
    onednn_close(d->onednn);
release:
    host->release(host, d);
    return status;
}

/* libgomp's team stays: it is the process's. */
static void cpu_close(lh_device_t *d)
{
    onednn_close(d->onednn);
    d->host->release(d->host, d);
}

/* What a matmul does at best, for who chooses between devices and dtypes before anything is measured:
 * two fused multiply-adds of a vector a clock, of 2.5 GHz as the clock is not known. BF16 is multiplied
 * in pairs where the processor can, else made F32 first. */
static double cpu_flops(const lh_device_t *d, bool bf16)
{
    static const double lanes[CPU_ISAS] = {
        [CPU_BASELINE] = 4, [CPU_AVX2] = 8, [CPU_AVX512] = 16, [CPU_AVX512_BF16] = 16};
    const double f32 = 4 * lanes[d->isa] * 2.5e9 * d->threads;
    return !bf16 ? f32 : d->isa == CPU_AVX512_BF16 ? 2 * f32 : f32 / 2;
}

/* memory_bytes is what /proc/meminfo calls available now; times of copies and launches are left 0, to
 * be measured by whoever needs them. The fingerprint names all that decides bits: the processor, its instruction
 * set, the library, and the number of threads, by which oneDNN cuts its sums. */
static lh_status_t cpu_properties(lh_device_t *d, lh_device_properties_t *out)
{
    uint64_t total, available;
    processor_memory(&total, &available);
    lh_device_properties_t mine = {
        .struct_size = sizeof(mine),
        .flags = LH_DEVICE_SYNCHRONOUS | LH_DEVICE_HOST_ACCESS,
        .native = "threads",
        .numa_node = -1,
        .cores = d->threads,
        .memory_bytes = available > library_bytes ? available - library_bytes : 0,
        .reserve_bytes = library_bytes,
        .alignment_bytes = 64,
        .flops_per_second =
            {[LH_DTYPE_F32] = cpu_flops(d, false), [LH_DTYPE_BF16] = cpu_flops(d, true)},
    };
    snprintf(mine.name, sizeof(mine.name), "%s", d->model);
    snprintf(mine.fingerprint, sizeof(mine.fingerprint), "cpu %s; %s; oneDNN %s; %u threads",
             d->model, processor_isa_name(d->isa), onednn_version(d->onednn), d->threads);
    lh_fill(out, &mine, sizeof(mine));
    return LH_OK;
}

static lh_status_t cpu_stream_new(lh_device_t *d, const lh_stream_how_t *how, lh_stream_t **out)
{
    lh_stream_t *s = d->host->alloc(d->host, sizeof(*s), 64);
    if (s == NULL) return LH_NO_MEMORY;

    /* Only the thread that feeds the compute stream has the team; another stream's host thread
     * works alone unless it is given a number, as every host thread would wake a team of its own.
     */
    const uint32_t own = how->role == LH_STREAM_COMPUTE ? d->threads : 1;
    s->threads.struct_size = sizeof(s->threads);
    s->threads.count = how->threads != 0 ? how->threads : own;
    s->threads.run = openmp_run;
    s->device = d;
    *out = s;
    return LH_OK;
}

static void cpu_stream_free(lh_stream_t *s)
{
    s->device->host->release(s->device->host, s);
}

static lh_status_t cpu_event_new(lh_device_t *d, lh_event_t **out)
{
    lh_event_t *e = d->host->alloc(d->host, sizeof(*e), 64);
    if (e == NULL) return LH_NO_MEMORY;

    e->host = d->host;
    *out = e;
    return LH_OK;
}

static void cpu_event_free(lh_event_t *e)
{
    e->host->release(e->host, e);
}

static lh_status_t cpu_record(lh_stream_t *s, lh_event_t *e)
{
    (void)s;
    e->recorded_ns = e->host->now_ns(e->host);
    return LH_OK;
}

/* What was recorded is done already; so of cpu_test. */
static lh_status_t cpu_wait(lh_stream_t *s, lh_event_t *e)
{
    (void)s;
    (void)e;
    return LH_OK;
}

static lh_status_t cpu_test(lh_event_t *e, uint64_t timeout_ns)
{
    (void)e;
    (void)timeout_ns;
    return LH_OK;
}

/* Kernels of other plugins run their parts on these threads, too. */
static lh_status_t cpu_native(lh_stream_t *s, lh_native_t *out)
{
    *out = (lh_native_t){.kind = "threads", .handle = (uint64_t)(uintptr_t)&s->threads};
    return LH_OK;
}

/* The time at which it was recorded is the time at which all before it was done. */
static lh_status_t cpu_event_time(lh_event_t *e, uint64_t *ns)
{
    *ns = e->recorded_ns;
    return LH_OK;
}

/* Figures of the machine and of this process, at this moment. */
static lh_status_t cpu_memory(lh_device_t *d, lh_device_memory_t *out)
{
    (void)d;
    uint64_t total, available;
    processor_memory(&total, &available);
    LH_FILL(lh_device_memory_t, out, .total_bytes = total, .free_bytes = available,
            .process_bytes = processor_process_bytes());
    return LH_OK;
}

const lh_device_api_t cpu_device_api = {
    .struct_size = sizeof(lh_device_api_t),
    .count = cpu_count,
    .open = cpu_open,
    .close = cpu_close,
    .properties = cpu_properties,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .record = cpu_record,
    .wait = cpu_wait,
    .test = cpu_test,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .native = cpu_native,
    .event_time = cpu_event_time,
    .memory = cpu_memory,
    .share = cpu_share,
};

const lh_memory_api_t cpu_memory_draft = {.struct_size = sizeof(lh_memory_api_t), .wrap = cpu_wrap};
