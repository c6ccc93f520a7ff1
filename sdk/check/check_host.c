/* check_host.c - services small enough to be wrong nowhere, with faults on demand. */
#include "check_host.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include <longhaul/fnv.h>

enum { METRICS = 32 };

static host_faults_t wrong;
static char last_reason[1024];
static _Atomic uint64_t allocs, stop_asked;
static _Atomic int64_t blocks, threads;
static lh_world_t world = {
    .struct_size = sizeof(world), .size = 1, .nodes = 1, .sites = 1, .epoch = 7, .job = 0x12345678};
static struct {
    char name[48];
    double value;
} metrics[METRICS];

struct lh_thread {
    pthread_t thread;
    void (*body)(void *);
    void *argument;
};

uint64_t check_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void be_slow(void)
{
    if (wrong.slow_ns != 0) (void)nanosleep(&(struct timespec){.tv_nsec = wrong.slow_ns}, NULL);
}

static void do_log(const lh_host_t *host, int32_t level, const char *fmt, ...)
{
    va_list args;
    (void)host;
    be_slow();
    if (level < LH_LOG_WARN) return;
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fputc('\n', stderr);
}

static lh_status_t do_fail(const lh_host_t *host, lh_status_t status, const char *fmt, ...)
{
    va_list args;
    (void)host;
    be_slow();
    va_start(args, fmt);
    (void)vsnprintf(last_reason, sizeof(last_reason), fmt, args);
    va_end(args);
    return status;
}

static void *do_alloc(const lh_host_t *host, size_t bytes, size_t alignment)
{
    void *memory = NULL;
    be_slow();
    if (atomic_fetch_add(&allocs, 1) + 1 == wrong.failing_alloc) {
        (void)do_fail(host, LH_NO_MEMORY, "out of memory");
        return NULL;
    }
    if (alignment < 64) alignment = 64;
    if (bytes > (size_t)1 << 39 || /* a sanitizer would end the process */
        posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) != 0) {
        (void)do_fail(host, LH_NO_MEMORY, "no %zu bytes", bytes);
        return NULL;
    }
    memset(memory, 0, bytes);
    (void)atomic_fetch_add(&blocks, 1);
    return memory;
}

static void do_release(const lh_host_t *host, void *memory)
{
    (void)host;
    be_slow();
    if (memory != NULL) (void)atomic_fetch_sub(&blocks, 1);
    free(memory);
}

static uint64_t do_now_ns(const lh_host_t *host)
{
    (void)host;
    be_slow();
    return check_now_ns();
}

static lh_status_t do_random(const lh_host_t *host, void *out, size_t bytes)
{
    (void)host;
    be_slow();
    return getrandom(out, bytes, 0) == (ssize_t)bytes ? LH_OK : LH_IO;
}

static bool do_stopping(const lh_host_t *host)
{
    (void)host;
    const uint64_t asked = atomic_fetch_add(&stop_asked, 1) + 1;
    return wrong.stops_after != 0 && asked >= wrong.stops_after;
}

static void do_count(const lh_host_t *host, const char *metric, double amount)
{
    (void)host;
    for (size_t i = 0; i < METRICS; i++) {
        if (metrics[i].name[0] == '\0')
            (void)snprintf(metrics[i].name, sizeof(metrics[i].name), "%s", metric);
        if (strcmp(metrics[i].name, metric) != 0) continue;
        metrics[i].value += amount;
        return;
    }
}

static lh_status_t do_rank_info(const lh_host_t *host, uint32_t rank, lh_rank_info_t *out)
{
    be_slow();
    if (rank >= world.size) return do_fail(host, LH_INVALID, "rank %u of %u", rank, world.size);
    LH_FILL(lh_rank_info_t, out, .rank = rank, .local_rank = rank, .host_name = "check");
    return LH_OK;
}

/* Not a secret and not a derivation, but the same bytes on both ends and others for another
 * purpose. */
static lh_status_t do_derive_key(const lh_host_t *host, const char *purpose, uint32_t peer,
                                 void *out, size_t bytes)
{
    (void)peer;
    be_slow();
    if (wrong.no_secret) return do_fail(host, LH_UNSUPPORTED, "the job has no secret");
    uint64_t state = lh_fnv_add(LH_FNV_BEGIN, purpose, strlen(purpose));
    for (size_t i = 0; i < bytes; i++) {
        state = lh_fnv_add(state, &i, sizeof(i));
        ((uint8_t *)out)[i] = (uint8_t)(state >> 32);
    }
    return LH_OK;
}

static void *thread_run(void *argument)
{
    const lh_thread_t *t = argument;
    t->body(t->argument);
    return NULL;
}

static lh_status_t do_thread_start(const lh_host_t *host, const char *name, void (*body)(void *),
                                   void *argument, lh_thread_t **out)
{
    (void)name;
    lh_thread_t *t = do_alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->body = body;
    t->argument = argument;
    if (pthread_create(&t->thread, NULL, thread_run, t) != 0) {
        do_release(host, t);
        return do_fail(host, LH_IO, "no thread");
    }
    (void)atomic_fetch_add(&threads, 1);
    *out = t;
    return LH_OK;
}

static void do_thread_join(const lh_host_t *host, lh_thread_t *t)
{
    (void)pthread_join(t->thread, NULL);
    (void)atomic_fetch_sub(&threads, 1);
    do_release(host, t);
}

static const void *do_extension(const lh_host_t *host, const char *id)
{
    (void)host, (void)id;
    be_slow();
    return NULL;
}

/* Those of the affinity: a check has no control group to keep to. */
static uint32_t do_processors(const lh_host_t *host)
{
    cpu_set_t mine;
    (void)host;
    be_slow();
    const int count = sched_getaffinity(0, sizeof(mine), &mine) == 0 ? CPU_COUNT(&mine) : 1;
    return count > 0 ? (uint32_t)count : 1;
}

static const lh_host_t services = {
    .struct_size = sizeof(services),
    .abi_version = LH_ABI_VERSION,
    .world = &world,
    .log = do_log,
    .fail = do_fail,
    .alloc = do_alloc,
    .release = do_release,
    .now_ns = do_now_ns,
    .random = do_random,
    .stopping = do_stopping,
    .count = do_count,
    .rank_info = do_rank_info,
    .derive_key = do_derive_key,
    .thread_start = do_thread_start,
    .thread_join = do_thread_join,
    .extension = do_extension,
    .processors = do_processors,
};

const lh_host_t *check_host(void)
{
    return &services;
}

void check_host_faults(const host_faults_t *faults)
{
    wrong = faults != NULL ? *faults : (host_faults_t){0};
    atomic_store(&allocs, 0);
    atomic_store(&stop_asked, 0);
    last_reason[0] = '\0';
}

uint64_t check_host_allocs(void)
{
    return atomic_load(&allocs);
}

int64_t check_host_blocks(void)
{
    return atomic_load(&blocks);
}

int64_t check_host_threads(void)
{
    return atomic_load(&threads);
}

const char *check_host_reason(void)
{
    return last_reason;
}

void check_host_world(uint32_t rank, uint32_t size)
{
    world.rank = rank;
    world.size = size;
}

double check_host_metric(const char *metric)
{
    for (size_t i = 0; i < METRICS; i++)
        if (strcmp(metrics[i].name, metric) == 0) return metrics[i].value;
    return 0;
}
