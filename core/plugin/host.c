/* host.c - lh_host_t over base: log, memory, clock, random bytes, metrics, threads.
 *
 * A plugin's pointer to lh_host_t is the first member of a service_t, which knows the plugin's
 * name: one table of functions for all, one struct a plugin, and no lookup. The functions named
 * do_* are the members of that table; what they promise, and to which thread, is in
 * longhaul/host.h. A plugin's arguments are not trusted: what is wrong is refused or ignored, never
 * asserted. */
#include <plugin/host.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/processors.h>
#include <base/sys.h>
#include <base/text.h>
#include <base/thread.h>

typedef struct service { /* lh_host_t first: a plugin's pointer is one to this */
    lh_host_t api;
    host_t *host;
    struct service *next;
    char plugin[32];
    const void *kept; /* host_keep */
} service_t;

struct host {
    _Atomic bool stopping;
    lh_world_t world;    /* in force; plugins read it, by lh_host_t.world  */
    lh_world_t alone;    /* of this process without others, to go back to  */
    host_world_t others; /* where `world` came from; ranks NULL: alone     */
    service_t *services; /* a list, the newest first; freed by host_free */
    pthread_mutex_t
        lock; /* of services, metrics and metric_count; nothing else is taken under it */
    host_metric_t metrics[HOST_METRICS];
    uint32_t metric_count;
};

/* A thread of a plugin; freed by the join. */
struct lh_thread {
    pthread_t thread;
    void (*body)(void *);
    void *argument;
};

/* The inverse of &service->api; the host never hands out another lh_host_t. */
static const service_t *service_of(const lh_host_t *api)
{
    return (const service_t *)(const void *)api;
}

/* Formatted here first, so that the plugin's name stands before its own text. */
static void do_log(const lh_host_t *api, int32_t level, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    log_line(level, "%s: %s", service_of(api)->plugin, text);
}

/* The plugin's name stands before its sentence, so that a user knows whose it is. */
static lh_status_t do_fail(const lh_host_t *api, lh_status_t status, const char *fmt, ...)
{
    const int error = errno; /* of the call that the plugin speaks of */
    char text[1024];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    const char *plugin = service_of(api)->plugin;
    return status == LH_IO ? fail_io(error, "%s: %s", plugin, text)
                           : fail(status, "%s: %s", plugin, text);
}

/* Through mem_new, so that plugins' allocations are counted and made to fail as ours are. mem_new
 * aligns to 64 bytes, while a plugin may ask for a page or more: so the block is larger than asked
 * for, and its address lies in the 64 bytes before what the plugin gets, where do_release finds
 * it. */
static void *do_alloc(const lh_host_t *api, size_t bytes, size_t alignment)
{
    enum { HEAD = 64 };
    (void)api;
    const size_t align = alignment < HEAD ? HEAD : alignment;
    if ((align & (align - 1)) != 0 || align > (size_t)1 << 30) {
        (void)fail(LH_INVALID, "%s: an alignment of %zu bytes is no power of two up to 1 GiB",
                   service_of(api)->plugin, alignment);
        return NULL;
    }
    if (bytes > SIZE_MAX / 2) {
        (void)fail(LH_NO_MEMORY, "%s: %zu bytes asked for", service_of(api)->plugin, bytes);
        return NULL;
    }
    char *block = mem_new(bytes + align + HEAD);
    if (block == NULL) return NULL;
    char *memory = (char *)(((uintptr_t)block + HEAD + align - 1) & ~(uintptr_t)(align - 1));
    memcpy(memory - sizeof(block), &block, sizeof(block));
    return memory;
}

/* NULL does nothing, as for free. */
static void do_release(const lh_host_t *api, void *memory)
{
    (void)api;
    if (memory == NULL) return;
    char *block;
    memcpy(&block, (char *)memory - sizeof(block), sizeof(block));
    mem_free(block);
}

/* The clock of the whole host: a plugin's times and ours can be compared. */
static uint64_t do_now_ns(const lh_host_t *api)
{
    (void)api;
    return sys()->now_ns();
}

/* Through sys(), as the clock: a test that simulates either reaches plugins as well. */
static lh_status_t do_random(const lh_host_t *api, void *out, size_t bytes)
{
    if (sys()->random(out, bytes) != 0)
        return fail_io(errno, "%s: no random bytes", service_of(api)->plugin);
    return LH_OK;
}

/* Of the job, not of the plugin. */
static bool do_stopping(const lh_host_t *api)
{
    return host_stopping(service_of(api)->host);
}

/* Names are compared up to the length that is kept. Counts that find no room any more are dropped:
 * metrics are for reports. */
static void do_count(const lh_host_t *api, const char *metric, double amount)
{
    host_t *h = service_of(api)->host;
    uint32_t i = 0;
    if (metric == NULL || !isfinite(amount)) return;
    (void)pthread_mutex_lock(&h->lock);
    while (i < h->metric_count && strncmp(h->metrics[i].name, metric, HOST_METRIC_NAME - 1) != 0)
        i++;
    if (i == h->metric_count && i < HOST_METRICS) {
        (void)snprintf(h->metrics[i].name, HOST_METRIC_NAME, "%s", metric);
        h->metric_count++;
    }
    if (i < HOST_METRICS) h->metrics[i].value += amount;
    (void)pthread_mutex_unlock(&h->lock);
}

/* lh_fill: the plugin's struct may be shorter or longer than this host's. */
static lh_status_t do_rank_info(const lh_host_t *api, uint32_t rank, lh_rank_info_t *out)
{
    const host_t *h = service_of(api)->host;
    lh_rank_info_t info = {.struct_size = sizeof(info)};
    if (rank >= h->world.size)
        return fail(LH_INVALID, "%s: rank %u of a world of %u", service_of(api)->plugin, rank,
                    h->world.size);
    if (h->others.ranks != NULL)
        info = h->others.ranks[rank];
    else if (gethostname(info.host_name, sizeof(info.host_name) - 1) != 0)
        strcpy(info.host_name, "localhost");
    lh_fill(out, &info, sizeof(info));
    return LH_OK;
}

/* The secret is the job's (core/control): the host passes the question on. */
static lh_status_t do_derive_key(const lh_host_t *api, const char *purpose, uint32_t peer,
                                 void *out, size_t bytes)
{
    const host_t *h = service_of(api)->host;
    if (h->others.derive == NULL)
        return fail(LH_UNSUPPORTED, "%s: no key for '%s': this job has no secret",
                    service_of(api)->plugin, purpose != NULL ? purpose : "");
    if (purpose == NULL || peer >= h->world.size)
        return fail(LH_INVALID, "%s: a key for rank %u of a world of %u", service_of(api)->plugin,
                    peer, h->world.size);
    return h->others.derive(h->others.context, purpose, peer, out, bytes);
}

static void *plugin_thread_run(void *argument)
{
    const lh_thread_t *t = argument;
    t->body(t->argument);
    return NULL;
}

static lh_status_t do_thread_start(const lh_host_t *api, const char *name, void (*body)(void *),
                                   void *argument, lh_thread_t **out)
{
    lh_thread_t *t = mem_new(sizeof(*t));
    if (t == NULL) return LH_NO_MEMORY;

    t->body = body;
    t->argument = argument;
    const int error = thread_start(&t->thread, name != NULL ? name : service_of(api)->plugin,
                                   plugin_thread_run, t);
    if (error != 0) {
        mem_free(t);
        return fail(LH_NO_MEMORY, "%s: cannot start thread %s: %s", service_of(api)->plugin,
                    name != NULL ? name : "", strerror(error));
    }
    *out = t;
    return LH_OK;
}

/* Waits without a limit: a plugin asks its thread to end before it joins it. */
static void do_thread_join(const lh_host_t *api, lh_thread_t *t)
{
    (void)api;
    if (t == NULL) return;
    (void)pthread_join(t->thread, NULL);
    mem_free(t);
}

/* This host has none yet. */
static const void *do_extension(const lh_host_t *api, const char *id)
{
    (void)api, (void)id;
    return NULL;
}

/* Of the process, as its affinity is: world_publish has said how many share a quota. */
static uint32_t do_processors(const lh_host_t *api)
{
    (void)api;
    return processors_count();
}

/* A process without others is rank 0 of 1; core/control fills in the real world later. */
lh_status_t host_new(host_t **out)
{
    host_t *h = mem_new(sizeof(*h));
    if (h == NULL) return LH_NO_MEMORY;
    h->world = (lh_world_t){
        .struct_size = sizeof(h->world), .size = 1, .nodes = 1, .sites = 1, .epoch = 1};
    if (sys()->random(&h->world.job, sizeof(h->world.job)) != 0) {
        mem_free(h);
        return fail_io(errno, "no random bytes");
    }
    h->alone = h->world;
    (void)pthread_mutex_init(&h->lock, NULL);
    *out = h;
    return LH_OK;
}

/* The world's ranks are not freed here: core/control owns them. */
void host_free(host_t *h)
{
    if (h == NULL) return;
    for (service_t *s = h->services; s != NULL;) {
        service_t *next = s->next;
        mem_free(s);
        s = next;
    }
    (void)pthread_mutex_destroy(&h->lock);
    mem_free(h);
}

/* Called with the lock held. */
static service_t *service_new(host_t *h, const char *plugin)
{
    service_t *s = mem_new(sizeof(*s));
    if (s == NULL) return NULL;
    (void)snprintf(s->plugin, sizeof(s->plugin), "%s", plugin);
    s->host = h;
    s->api = (lh_host_t){
        .struct_size = sizeof(s->api),
        .abi_version = LH_ABI_VERSION,
        .world = &h->world,
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
    s->next = h->services;
    h->services = s;
    return s;
}

/* One service a name for the life of the host: a plugin may keep the pointer in statics. */
lh_status_t host_for(host_t *h, const char *plugin, const lh_host_t **out)
{
    (void)pthread_mutex_lock(&h->lock);
    service_t *s = h->services;
    while (s != NULL && strcmp(s->plugin, plugin) != 0)
        s = s->next;
    /* Under the lock: two threads that ask for one name get one service. */
    if (s == NULL) s = service_new(h, plugin);
    (void)pthread_mutex_unlock(&h->lock);
    if (s == NULL) return LH_NO_MEMORY;
    *out = &s->api;
    return LH_OK;
}

/* The services are this file's; what was handed out is const for plugins alone. */
void host_keep(const lh_host_t *host, const void *kept)
{
    ((service_t *)(uintptr_t)host)->kept = kept;
}

const void *host_kept(const lh_host_t *host)
{
    return service_of(host)->kept;
}

/* Plugins hold a pointer to h->world: it is filled in, never moved. */
void host_set_world(host_t *h, const host_world_t *world)
{
    lh_assert(world == NULL || world->row.rank < world->row.size);
    lh_assert(world == NULL || world->row.struct_size == sizeof(world->row));
    /* NULL when the job's ranks have parted: back to a world of one, of the same random number. */
    h->others = world != NULL ? *world : (host_world_t){0};
    h->world = world != NULL ? world->row : h->alone;
}

/* A path that would be cut names another place, or none. */
void host_set_device(host_t *h, const char *pci_path)
{
    char *device = h->world.device;
    memset(device, 0, sizeof(h->world.device));
    if (strlen(pci_path) < sizeof(h->world.device)) memcpy(device, pci_path, strlen(pci_path));
}

/* An atomic store and nothing else, as a signal handler may do it. */
void host_stop(host_t *h)
{
    atomic_store(&h->stopping, true);
}

bool host_stopping(const host_t *h)
{
    return atomic_load(&h->stopping);
}

/* A copy under the lock, as plugins go on counting; the caller sees each metric whole. */
uint32_t host_metrics(host_t *h, host_metric_t *out, uint32_t max)
{
    lh_assert(out != NULL || max == 0);
    (void)pthread_mutex_lock(&h->lock);
    const uint32_t count = h->metric_count;
    for (uint32_t i = 0; i < count && i < max; i++)
        out[i] = h->metrics[i];
    (void)pthread_mutex_unlock(&h->lock);
    return count;
}
