/* tcp_kit.c - see tcp_kit.h. */
#include "tcp_kit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

const lh_plugin_t *kit_plugin;
const lh_transport_api_t *kit_api;
lh_link_t kit_link;
uint32_t kit_service = LH_SERVICE_GRADIENT;
uint32_t kit_flags;

void kit_fault(const char *file, int line, const char *fact)
{
    (void)fprintf(stderr, "%s:%d: not so: %s\n", file, line, fact);
    abort();
}

int kit_load(void)
{
    void *library = dlopen(LH_TEST_PLUGINS "/transports/tcp.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) (void)fprintf(stderr, "%s\n", dlerror());
    const lh_plugin_t *plugin = library == NULL ? NULL : dlsym(library, LH_PLUGIN_SYMBOL);
    if (plugin == NULL) return -1;
    KIT_MUST(plugin->config_size == sizeof(kit_config_t));
    kit_plugin = plugin;
    kit_api = plugin->transport;
    return 0;
}

uint64_t kit_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static kit_host_t *mine(const lh_host_t *host)
{
    return (kit_host_t *)(uintptr_t)host;
}

static void do_log(const lh_host_t *host, int32_t level, const char *fmt, ...)
{
    va_list args;
    if (level != LH_LOG_WARN) return;
    va_start(args, fmt);
    (void)vsnprintf(mine(host)->warned, sizeof(mine(host)->warned), fmt, args);
    va_end(args);
}

static lh_status_t do_fail(const lh_host_t *host, lh_status_t status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(mine(host)->reason, sizeof(mine(host)->reason), fmt, args);
    va_end(args);
    return status;
}

static void *do_alloc(const lh_host_t *host, size_t bytes, size_t alignment)
{
    if (mine(host)->allocations_left > 0 && --mine(host)->allocations_left == 0) {
        (void)do_fail(host, LH_NO_MEMORY, "out of memory");
        return NULL;
    }
    if (alignment < 64) alignment = 64;
    const size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void *memory = aligned_alloc(alignment, whole);
    if (memory != NULL) memset(memory, 0, whole);
    return memory;
}

static void do_release(const lh_host_t *host, void *memory)
{
    (void)host;
    free(memory);
}

static uint64_t do_now(const lh_host_t *host)
{
    (void)host;
    return kit_now();
}

static lh_status_t do_random(const lh_host_t *host, void *out, size_t bytes)
{
    (void)host;
    return getrandom(out, bytes, 0) == (ssize_t)bytes ? LH_OK : LH_IO;
}

static bool do_stopping(const lh_host_t *host)
{
    (void)host;
    return false;
}

static void do_count(const lh_host_t *host, const char *metric, double amount)
{
    kit_host_t *h = mine(host);
    if (strcmp(metric, "tcp.strangers") == 0) h->strangers += amount;
    if (strcmp(metric, "tcp.thread_seals") == 0) h->seals += amount;
    if (strcmp(metric, "tcp.zero_copies") == 0) h->zero_copies += amount;
    if (strcmp(metric, "tcp.zero_copies_copied") == 0) h->copied += amount;
}

struct lh_thread {
    pthread_t id;
    void (*body)(void *);
    void *argument;
};

static void *thread_run(void *argument)
{
    const lh_thread_t *t = argument;
    t->body(t->argument);
    return NULL;
}

static lh_status_t do_thread_start(const lh_host_t *host, LH_UNUSED const char *name,
                                   void (*body)(void *), void *argument, lh_thread_t **out)
{
    lh_thread_t *t = malloc(sizeof(*t));
    KIT_MUST(t != NULL);
    *t = (lh_thread_t){.body = body, .argument = argument};
    const int error = pthread_create(&t->id, NULL, thread_run, t);
    KIT_MUST(error == 0);
    mine(host)->threads++;
    *out = t;
    return LH_OK;
}

static void do_thread_join(const lh_host_t *host, lh_thread_t *t)
{
    const int error = pthread_join(t->id, NULL);
    KIT_MUST(error == 0);
    mine(host)->threads--;
    free(t);
}

static lh_status_t do_rank_info(const lh_host_t *host, uint32_t rank, lh_rank_info_t *out)
{
    (void)host;
    LH_FILL(lh_rank_info_t, out, .rank = rank, .host_name = "lab");
    return LH_OK;
}

/* Both ends get the same bytes, which depend on the pair, the purpose and the key. */
static lh_status_t do_derive(const lh_host_t *host, const char *purpose, uint32_t peer, void *out,
                             size_t bytes)
{
    const kit_host_t *h = mine(host);
    const uint32_t a = h->world.rank < peer ? h->world.rank : peer, b = h->world.rank + peer - a;
    if (h->key == 0) return do_fail(host, LH_UNSUPPORTED, "the job has no secret");
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)out)[i] = (uint8_t)(h->key * 31u + a * 7u + b * 13u + i +
                                        (uint8_t)purpose[i % strlen(purpose)]);
    return LH_OK;
}

void kit_open(kit_end_t *e, uint32_t rank)
{
    e->host.world = (lh_world_t){.struct_size = sizeof(lh_world_t),
                                 .rank = rank,
                                 .size = 8,
                                 .nodes = 1,
                                 .sites = 1,
                                 .epoch = 3,
                                 .job = 0x1122334455667788u};
    if (e->machine != NULL) {
        e->host.world.nodes = 2;
        (void)snprintf(e->host.world.address, sizeof(e->host.world.address), "%s", e->machine);
    }
    e->host.api = (lh_host_t){.struct_size = sizeof(lh_host_t),
                              .abi_version = LH_ABI_VERSION,
                              .world = &e->host.world,
                              .log = do_log,
                              .fail = do_fail,
                              .alloc = do_alloc,
                              .release = do_release,
                              .now_ns = do_now,
                              .random = do_random,
                              .stopping = do_stopping,
                              .count = do_count,
                              .rank_info = do_rank_info,
                              .derive_key = do_derive,
                              .thread_start = do_thread_start,
                              .thread_join = do_thread_join};
    const lh_status_t status = kit_api->open(&e->host.api, &e->config, &e->transport);
    if (status != LH_OK) (void)fprintf(stderr, "open: %s\n", e->host.reason);
    KIT_MUST(status == LH_OK);
}

void kit_close(kit_end_t *e)
{
    kit_api->close(e->transport);
}

lh_conn_params_t kit_params(const kit_end_t *from, uint32_t peer, uint32_t security)
{
    return (lh_conn_params_t){.struct_size = sizeof(lh_conn_params_t),
                              .direction = LH_SEND | LH_RECEIVE,
                              .security = security,
                              .peer = peer,
                              .hello = {.job = from->host.world.job,
                                        .epoch = from->host.world.epoch,
                                        .rank = from->host.world.rank,
                                        .service = kit_service,
                                        .direction = LH_SEND | LH_RECEIVE},
                              .cookie = 1000 + from->host.world.rank,
                              .dial_ns = 3000000000u,
                              .silence_ns = 3000000000u,
                              .link = kit_link.struct_size > 0 ? &kit_link : NULL,
                              .flags = kit_flags};
}

void kit_poll(kit_end_t *e)
{
    uint32_t count = 0;
    if (e == NULL || e->count == KIT_EVENTS) return;
    const lh_status_t status = kit_api->poll(
        e->transport, e->events + e->count, sizeof(lh_wire_event_t), KIT_EVENTS - e->count, &count);
    KIT_MUST(status == LH_OK);
    for (uint32_t i = e->count; i < e->count + count; i++)
        (void)snprintf(e->reasons[i], KIT_TEXT, "%s",
                       e->events[i].reason != NULL ? e->events[i].reason : "");
    e->count += count;
}

const char *kit_reason(const kit_end_t *e, const lh_wire_event_t *event)
{
    return e->reasons[event - e->events];
}

const lh_wire_event_t *kit_wait(kit_end_t *a, kit_end_t *b, kit_end_t *e, uint32_t type,
                                uint32_t from, uint32_t ms)
{
    const uint64_t end = kit_now() + (uint64_t)ms * 1000000u;
    uint32_t seen = from;
    do {
        kit_poll(a);
        kit_poll(b);
        for (; seen < e->count; seen++)
            if (e->events[seen].type == type) return &e->events[seen];
    } while (kit_now() < end);
    return NULL;
}

void kit_join(kit_end_t *a, kit_end_t *b, uint32_t security)
{
    lh_hello_t hello;
    const uint64_t end = kit_now() + KIT_PATIENCE_NS;
    lh_status_t status = LH_OK;
    if (a->listener == NULL)
        status = kit_api->listen(a->transport, 0, security, &a->address, &a->listener);
    KIT_MUST(status == LH_OK);
    lh_conn_params_t params = kit_params(b, a->host.world.rank, security);
    status = kit_api->connect(b->transport, &a->address, &params, &b->conn);
    if (status != LH_OK) (void)fprintf(stderr, "connect: %s\n", b->host.reason);
    KIT_MUST(status == LH_OK);
    do {
        kit_poll(a);
        kit_poll(b);
        status = kit_api->accept(a->listener, &hello, &a->conn);
    } while (status == LH_AGAIN && kit_now() < end);
    KIT_MUST(status == LH_OK && hello.rank == b->host.world.rank);
    params = kit_params(a, hello.rank, security);
    status = kit_api->admit(a->conn, &params);
    KIT_MUST(status == LH_OK);
    const lh_wire_event_t *up = kit_wait(a, b, a, LH_WIRE_UP, 0, KIT_PATIENCE_MS);
    KIT_MUST(up != NULL && up->cookie == params.cookie);
    up = kit_wait(a, b, b, LH_WIRE_UP, 0, KIT_PATIENCE_MS);
    KIT_MUST(up != NULL);
}

void kit_fill(uint8_t *bytes, size_t length, uint32_t seed)
{
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < length; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(x >> 24);
    }
}
