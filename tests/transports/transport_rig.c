/* transport_rig.c - the host that a transport sees under test, and the two processes around it. */
#include "transport_rig.h"

#include <config/options.h>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <plugin/host.h>

static const uint64_t patience_ns = 30000000000ull;
static const int fact_seconds = 120;

static char last_reason[1024];
static _Atomic int64_t allocations, fail_in;
static lh_world_t world;
static uint32_t my_side;
static struct {
    char name[48];
    double value;
} metrics[32];

void rig_fault(const char *file, int line, const char *what, const char *fmt, ...)
{
    va_list args;
    char text[512];
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)fprintf(stderr, "    side %u: %s:%d: not so: %s %s (last reason: %s)\n", my_side, file,
                  line, what, text, last_reason);
    _exit(1);
}

void rig_skip(const char *why)
{
    if (my_side == 0) (void)fprintf(stderr, "    skipped: %s\n", why);
    _exit(RIG_SKIPPED);
}

uint64_t rig_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void rig_host_log(const lh_host_t *host, int32_t level, const char *fmt, ...)
{
    (void)host, (void)level, (void)fmt;
}

static lh_status_t rig_host_fail(const lh_host_t *host, lh_status_t status, const char *fmt, ...)
{
    va_list args;
    (void)host;
    va_start(args, fmt);
    (void)vsnprintf(last_reason, sizeof(last_reason), fmt, args);
    va_end(args);
    return status;
}

static void *rig_host_alloc(const lh_host_t *host, size_t bytes, size_t alignment)
{
    void *memory = NULL;
    (void)host;
    if (alignment < 64) alignment = 64;
    if (atomic_load(&fail_in) > 0 && atomic_fetch_sub(&fail_in, 1) == 1) return NULL;
    if (posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) != 0) return NULL;
    memset(memory, 0, bytes);
    atomic_fetch_add(&allocations, 1);
    return memory;
}

static void rig_host_release(const lh_host_t *host, void *memory)
{
    (void)host;
    if (memory != NULL) atomic_fetch_sub(&allocations, 1);
    free(memory);
}

static uint64_t rig_host_now_ns(const lh_host_t *host)
{
    (void)host;
    return rig_now_ns();
}

static lh_status_t rig_host_random(const lh_host_t *host, void *out, size_t bytes)
{
    (void)host;
    return getrandom(out, bytes, 0) == (ssize_t)bytes ? LH_OK : LH_IO;
}

static bool rig_host_stopping(const lh_host_t *host)
{
    (void)host;
    return false;
}

static void rig_host_count(const lh_host_t *host, const char *metric, double amount)
{
    (void)host;
    for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++) {
        if (metrics[i].name[0] == '\0')
            (void)snprintf(metrics[i].name, sizeof(metrics[i].name), "%s", metric);
        if (strcmp(metrics[i].name, metric) != 0) continue;
        metrics[i].value += amount;
        return;
    }
}

void rig_fail_alloc(uint64_t n)
{
    atomic_store(&fail_in, (int64_t)n);
}

bool rig_failed_alloc(void)
{
    return atomic_load(&fail_in) == 0;
}

int64_t rig_allocations(void)
{
    return atomic_load(&allocations);
}

double rig_metric(const char *metric)
{
    for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++)
        if (strcmp(metrics[i].name, metric) == 0) return metrics[i].value;
    return 0;
}

static lh_status_t rig_host_rank_info(const lh_host_t *host, uint32_t rank, lh_rank_info_t *out)
{
    (void)host;
    LH_FILL(lh_rank_info_t, out, .rank = rank, .local_rank = rank, .host_name = "rig");
    return LH_OK;
}

/* Not a secret and not a derivation, but the same bytes on both ends and others for another
 * purpose. */
static lh_status_t rig_host_derive_key(const lh_host_t *host, const char *purpose, uint32_t peer,
                                       void *out, size_t bytes)
{
    (void)host, (void)peer;
    uint64_t state = 1469598103934665603ull;
    for (const char *c = purpose; *c != '\0'; c++)
        state = (state ^ (uint8_t)*c) * 1099511628211ull;
    for (size_t i = 0; i < bytes; i++) {
        state = (state ^ i) * 1099511628211ull;
        ((uint8_t *)out)[i] = (uint8_t)(state >> 32);
    }
    return LH_OK;
}

struct lh_thread {
    pthread_t thread;
    void (*body)(void *);
    void *argument;
};

static void *thread_run(void *argument)
{
    const lh_thread_t *t = argument;
    t->body(t->argument);
    return NULL;
}

static lh_status_t rig_host_thread_start(const lh_host_t *host, const char *name,
                                         void (*body)(void *), void *argument, lh_thread_t **out)
{
    (void)name;
    lh_thread_t *t = rig_host_alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->body = body;
    t->argument = argument;
    if (pthread_create(&t->thread, NULL, thread_run, t) != 0) {
        rig_host_release(host, t);
        return LH_IO;
    }
    *out = t;
    return LH_OK;
}

static void rig_host_thread_join(const lh_host_t *host, lh_thread_t *t)
{
    (void)pthread_join(t->thread, NULL);
    rig_host_release(host, t);
}

static const void *rig_host_extension(const lh_host_t *host, const char *id)
{
    (void)host, (void)id;
    return NULL;
}

static const lh_host_t test_host = {
    .struct_size = sizeof(test_host),
    .abi_version = LH_ABI_VERSION,
    .world = &world,
    .log = rig_host_log,
    .fail = rig_host_fail,
    .alloc = rig_host_alloc,
    .release = rig_host_release,
    .now_ns = rig_host_now_ns,
    .random = rig_host_random,
    .stopping = rig_host_stopping,
    .count = rig_host_count,
    .rank_info = rig_host_rank_info,
    .derive_key = rig_host_derive_key,
    .thread_start = rig_host_thread_start,
    .thread_join = rig_host_thread_join,
    .extension = rig_host_extension,
};

const lh_host_t *rig_host(void)
{
    return &test_host;
}

const char *rig_reason(void)
{
    return last_reason;
}

/* Defaults, and what the fact sets, through the parser that an INI's values go through. */
static void configure(end_t *e, const char *const *settings)
{
    option_table_t table = plugin_options(e->plugin);
    table.config = e->config = calloc(1, table.config_size + 1);
    CHECK(e->config != NULL);
    for (uint32_t i = 0; i < table.count; i++) {
        const lh_option_t *row = &table.rows[i];
        const char *value = row->fallback;
        const size_t length = strlen(row->key);
        for (const char *const *s = settings; s != NULL && *s != NULL; s++)
            if (strncmp(*s, row->key, length) == 0 && (*s)[length] == '=') value = *s + length + 1;
        CHECK(value != NULL && option_set(row, value, "rig", "/", e->config) == LH_OK);
    }
}

void end_open(end_t *e, const char *plugin, uint32_t side, int channel, const char *const *settings)
{
    host_t *host;
    registry_t *registry;
    e->side = my_side = side;
    e->channel = channel;
    world = (lh_world_t){.struct_size = sizeof(world),
                         .rank = side,
                         .size = 2,
                         .nodes = 1,
                         .sites = 1,
                         .epoch = 7,
                         .job = 0x1234567812345678};
    CHECK(host_new(&host) == LH_OK && registry_new(LH_TEST_PLUGINS, host, &registry) == LH_OK);
    CHECK(registry_load(registry, LH_KIND_TRANSPORT, plugin, &e->plugin) == LH_OK, "%s",
          fail_reason());
    e->api = e->plugin->transport;
    configure(e, settings);
    CHECK(e->api->open(&test_host, e->config, &e->transport) == LH_OK);
    e->nic.struct_size = sizeof(e->nic);
    CHECK(e->api->nic_info(e->transport, 0, &e->nic) == LH_OK);
}

void end_close(end_t *e)
{
    e->api->close(e->transport);
    e->transport = NULL;
    CHECK(atomic_load(&allocations) == 0, "%lld blocks of memory were not given back",
          (long long)atomic_load(&allocations));
}

void end_tell(end_t *e, const void *data, size_t bytes)
{
    CHECK(send(e->channel, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

void end_hear(end_t *e, void *data, size_t bytes)
{
    const uint64_t until = rig_now_ns() + 2 * patience_ns;
    for (;;) {
        const ssize_t got = recv(e->channel, data, bytes, MSG_DONTWAIT | MSG_WAITALL);
        if (got == (ssize_t)bytes) return;
        CHECK(got < 0, "the other end has gone");
        CHECK(rig_now_ns() < until, "the other end does not come");
        if (e->transport != NULL) end_poll(e);
    }
}

void end_barrier(end_t *e)
{
    char word = 'b';
    end_tell(e, &word, 1);
    end_hear(e, &word, 1);
}

void end_listen(end_t *e, uint32_t security)
{
    if (e->side == 0) {
        end_hear(e, &e->address, sizeof(e->address));
        return;
    }
    CHECK(e->api->listen(e->transport, 0, security, &e->address, &e->listener) == LH_OK);
    end_tell(e, &e->address, sizeof(e->address));
}

lh_conn_params_t end_params(const end_t *e, uint32_t service, uint64_t cookie)
{
    return (lh_conn_params_t){
        .struct_size = sizeof(lh_conn_params_t),
        .direction = LH_SEND | LH_RECEIVE,
        .peer = 1 - e->side,
        .hello = {.job = world.job,
                  .epoch = world.epoch,
                  .rank = 0,
                  .service = service,
                  .direction = LH_SEND | LH_RECEIVE},
        .cookie = cookie,
        .dial_ns = patience_ns,
        .silence_ns = 3000000000ull,
    };
}

lh_conn_t *end_join(end_t *e, uint32_t service, uint64_t cookie)
{
    lh_conn_t *conn = NULL;
    lh_hello_t hello;
    const lh_conn_params_t params = end_params(e, service, cookie);
    const uint64_t until = rig_now_ns() + patience_ns;
    if (e->side == 0) {
        CHECK(e->api->connect(e->transport, &e->address, &params, &conn) == LH_OK);
        return conn;
    }
    for (;;) {
        const lh_status_t status = e->api->accept(e->listener, &hello, &conn);
        if (status == LH_OK) break;
        CHECK(status == LH_AGAIN && rig_now_ns() < until);
        end_poll(e);
    }
    CHECK(memcmp(&hello, &params.hello, sizeof(hello)) == 0, "the hello arrives as it was sent");
    CHECK(e->api->admit(conn, &params) == LH_OK);
    return conn;
}

void end_meet(end_t *e)
{
    end_listen(e, LH_SECURITY_PLAIN);
    e->conn = end_join(e, LH_SERVICE_GRADIENT, RIG_CONN);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
}

void end_poll(end_t *e)
{
    uint32_t count = 99999;
    if (e->event_count + 64 > RIG_EVENTS) return;
    lh_wire_event_t *at = &e->events[e->event_count];
    CHECK(e->api->poll(e->transport, at, sizeof(*at), 64, &count) == LH_OK);
    CHECK(count <= 64);
    for (uint32_t i = 0; i < count; i++) { /* a reason lives until the next poll */
        char *text = e->reasons[e->event_count];
        (void)snprintf(text, sizeof(e->reasons[0]), "%s", at[i].reason != NULL ? at[i].reason : "");
        at[i].reason = text;
        e->event_count++;
    }
}

bool end_take(end_t *e, uint32_t type, uint64_t cookie, lh_wire_event_t *out)
{
    static char reason[160];
    for (uint32_t i = 0; i < e->event_count; i++) {
        if (e->events[i].type != type || e->events[i].cookie != cookie) continue;
        *out = e->events[i];
        memcpy(reason, e->events[i].reason, sizeof(reason));
        out->reason = reason;
        for (uint32_t k = i + 1; k < e->event_count; k++) {
            e->events[k - 1] = e->events[k];
            memcpy(e->reasons[k - 1], e->events[k].reason, sizeof(e->reasons[0]));
            e->events[k - 1].reason = e->reasons[k - 1];
        }
        e->event_count--;
        return true;
    }
    return false;
}

lh_wire_event_t end_await(end_t *e, uint32_t type, uint64_t cookie)
{
    lh_wire_event_t event, other;
    const uint64_t until = rig_now_ns() + patience_ns;
    while (!end_take(e, type, cookie, &event)) {
        end_poll(e);
        if (end_take(e, type, cookie, &event)) break; /* before what ended the link after it */
        if (type < LH_WIRE_DOWN && end_take(e, LH_WIRE_DOWN, RIG_CONN, &other))
            rig_fault(__FILE__, __LINE__, "an event", "type %u of %llx: the link is down: %s", type,
                      (unsigned long long)cookie, other.reason);
        CHECK(rig_now_ns() < until, "event %u of %llx does not come", type,
              (unsigned long long)cookie);
    }
    return event;
}

buffer_t buffer_new(end_t *e, uint64_t bytes, bool shared, uint32_t access)
{
    buffer_t b = {.bytes = bytes > 0 ? bytes : 1, .fd = -1};
    if (shared) {
        b.fd = memfd_create("rig", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK(b.fd >= 0 && ftruncate(b.fd, (off_t)b.bytes) == 0);
    }
    void *map = mmap(NULL, b.bytes, PROT_READ | PROT_WRITE,
                     shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, b.fd, 0);
    CHECK(map != MAP_FAILED);
    b.data = map;
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .access = access,
                              .base = b.data,
                              .bytes = b.bytes,
                              .fd = b.fd,
                              .numa = -1};
    CHECK(e->api->register_memory(e->transport, 0, &arena, &b.region) == LH_OK);
    return b;
}

void buffer_free(end_t *e, buffer_t *b)
{
    e->api->release_memory(e->transport, b->region);
    (void)munmap(b->data, b->bytes);
    if (b->fd >= 0) (void)close(b->fd);
}

static char byte_of(uint64_t index, uint64_t seed)
{
    return (char)((index * 2654435761u + seed * 40503u + (index >> 13)) >> 3);
}

void buffer_fill(char *data, uint64_t bytes, uint64_t seed)
{
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = byte_of(i, seed);
}

void buffer_check(const char *data, uint64_t bytes, uint64_t seed)
{
    for (uint64_t i = 0; i < bytes; i++)
        CHECK(data[i] == byte_of(i, seed), "byte %llu of %llu", (unsigned long long)i,
              (unsigned long long)bytes);
}

void end_send(end_t *e, const buffer_t *b, uint64_t at, uint64_t bytes, uint32_t tag,
              uint64_t cookie)
{
    lh_status_t status;
    const uint64_t until = rig_now_ns() + patience_ns;
    while ((status = e->api->isend(e->conn, b->region, b->data + at, bytes, tag, cookie)) ==
           LH_AGAIN) {
        end_poll(e);
        CHECK(rig_now_ns() < until);
    }
    CHECK(status == LH_OK, "status %d", status);
}

void end_receive(end_t *e, const buffer_t *b, uint64_t at, uint64_t bytes, uint32_t tag,
                 uint64_t cookie)
{
    lh_status_t status;
    const uint64_t until = rig_now_ns() + patience_ns;
    while ((status = e->api->irecv(e->conn, b->region, b->data + at, bytes, tag, cookie)) ==
           LH_AGAIN) {
        end_poll(e);
        CHECK(rig_now_ns() < until);
    }
    CHECK(status == LH_OK, "status %d", status);
}

static pid_t start(const char *plugin, const fact_t *fact, uint32_t side, const int channels[2])
{
    const pid_t pid = fork();
    if (pid != 0) return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close(channels[1 - side]);
    (void)alarm((unsigned)fact_seconds);
    static end_t e; /* too big for a stack */
    end_open(&e, plugin, side, channels[side], fact->settings);
    fact->run(&e);
    end_close(&e);
    _exit(0);
}

static const char *verdict(int status, bool killed)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == RIG_SKIPPED) return "skip";
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "hang";
    if (WIFSIGNALED(status)) return killed && WTERMSIG(status) == SIGKILL ? NULL : "crash";
    return WEXITSTATUS(status) == 0 && !killed ? NULL : "fail";
}

static const char *run_fact(const char *plugin, const fact_t *fact)
{
    int channels[2], status[2];
    pid_t pids[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels) != 0) return "no sockets";
    for (uint32_t side = 0; side < 2; side++)
        pids[side] = start(plugin, fact, side, channels);
    (void)close(channels[0]);
    (void)close(channels[1]);
    for (uint32_t side = 0; side < 2; side++)
        (void)waitpid(pids[side], &status[side], 0);
    const char *first = verdict(status[0], false);
    return first != NULL ? first : verdict(status[1], fact->kills);
}

int rig_main(const char *plugin, const fact_t *facts, uint32_t count, const char *only)
{
    uint32_t bad = 0, run = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (only != NULL && strcmp(only, facts[i].name) != 0) continue;
        const uint64_t begin = rig_now_ns();
        const char *wrong = run_fact(plugin, &facts[i]);
        const bool ok = wrong == NULL || strcmp(wrong, "skip") == 0;
        (void)fprintf(stderr, "%-5s %s: %s (%.0f ms)\n", wrong == NULL ? "pass" : wrong, plugin,
                      facts[i].name, (double)(rig_now_ns() - begin) / 1e6);
        bad += !ok;
        run++;
    }
    if (run == 0) (void)fprintf(stderr, "there is no fact '%s'\n", only != NULL ? only : "");
    return bad > 0 || run == 0 ? 1 : 0;
}
