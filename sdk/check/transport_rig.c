/* transport_rig.c - the host that a transport sees under test, and the two processes around it. */
#include "transport_rig.h"

#include <base/file.h>
#include <config/options.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* What does not come in this time does not come. A cancel is owed within 100 ms. */
static const uint64_t patience_ns = 30000000000ull, drain_patience_ns = 5000000000ull;
/* An end that waits longer than this leaves the processor to the other, which may have none. */
static const uint64_t spin_ns = 2000000;

static uint32_t my_side;

void rig_fault(const char *file, int line, const char *what, const char *fmt, ...)
{
    va_list args;
    char text[512];
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    check_fault("%s: not so at %s:%d: %s%s (its last reason: %s)",
                my_side == 0 ? "the end that dials" : "the end that listens", path_name(file), line,
                what, text, check_host_reason());
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

void end_open(end_t *e, uint32_t side, int channel, const char *const *settings)
{
    e->side = my_side = side;
    e->channel = channel;
    check_host_world(side, 2);
    e->api = e->plugin->transport;
    configure(e, settings);
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK);
    e->nic.struct_size = sizeof(e->nic);
    CHECK(e->api->nic_info(e->transport, 0, &e->nic) == LH_OK);
}

void end_close(end_t *e)
{
    e->api->close(e->transport);
    e->transport = NULL;
    CHECK(check_host_blocks() == 0, "%lld blocks of memory were not given back",
          (long long)check_host_blocks());
}

void end_tell(end_t *e, const void *data, size_t bytes)
{
    CHECK(send(e->channel, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

void end_hear(end_t *e, void *data, size_t bytes)
{
    const uint64_t until = check_now_ns() + 2 * patience_ns;
    for (;;) {
        const ssize_t got = recv(e->channel, data, bytes, MSG_DONTWAIT | MSG_WAITALL);
        if (got == (ssize_t)bytes) return;
        CHECK(got < 0, "the other end has gone");
        CHECK(check_now_ns() < until, "the other end does not come");
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
        .hello = {.job = check_host()->world->job,
                  .epoch = check_host()->world->epoch,
                  .rank = 0,
                  .service = service,
                  .direction = LH_SEND | LH_RECEIVE},
        .cookie = cookie,
        .dial_ns = patience_ns,
        .silence_ns = 3000000000ull,
    };
}

lh_conn_t *end_dial(end_t *e, const lh_conn_params_t *params)
{
    lh_conn_t *conn = NULL;
    const lh_status_t status = e->api->connect(e->transport, &e->address, params, &conn);
    if (status == LH_UNREACHABLE && strcmp(e->nic.name, "loopback") == 0)
        check_skip("its card is called loopback and reaches no other process");
    CHECK(status == LH_OK);
    return conn;
}

lh_conn_t *end_join(end_t *e, uint32_t service, uint64_t cookie)
{
    return end_join_at(e, service, cookie, LH_SECURITY_PLAIN);
}

lh_conn_t *end_join_at(end_t *e, uint32_t service, uint64_t cookie, uint32_t security)
{
    lh_conn_params_t params = end_params(e, service, cookie);
    params.security = security;
    return end_join_with(e, &params);
}

lh_conn_t *end_join_with(end_t *e, const lh_conn_params_t *params)
{
    lh_conn_t *conn = NULL;
    lh_hello_t hello;
    const uint64_t until = check_now_ns() + patience_ns;
    if (e->side == 0) return end_dial(e, params);
    for (;;) {
        const lh_status_t status = e->api->accept(e->listener, &hello, &conn);
        if (status == LH_OK) break;
        CHECK(status == LH_AGAIN && check_now_ns() < until);
        end_poll(e);
    }
    CHECK(memcmp(&hello, &params->hello, sizeof(hello)) == 0, "the hello arrives as it was sent");
    CHECK(e->api->admit(conn, params) == LH_OK);
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
    check_alive();
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
    const uint64_t begin = check_now_ns();
    const uint64_t until = begin + (type == LH_WIRE_DRAINED ? drain_patience_ns : patience_ns);
    while (!end_take(e, type, cookie, &event)) {
        const uint32_t before = e->event_count;
        end_poll(e);
        if (e->event_count == before && check_now_ns() - begin > spin_ns) (void)usleep(50);
        if (end_take(e, type, cookie, &event)) break; /* before what ended the link after it */
        if (type < LH_WIRE_DOWN && end_take(e, LH_WIRE_DOWN, RIG_CONN, &other))
            rig_fault(__FILE__, __LINE__, "an event", "type %u of %llx: the link is down: %s", type,
                      (unsigned long long)cookie, other.reason);
        CHECK(check_now_ns() < until, "event %u of %llx does not come", type,
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

/* What a message has at a place. From one multiple of PATTERN_BLOCK to the next only the lowest 11 bits
 * of the place count, so that PATTERN_PERIOD bytes come four times: those of a million messages are
 * copied and compared, and not made one by one. */
enum { PATTERN_BLOCK = 1 << 13, PATTERN_PERIOD = 1 << 11 };

static char byte_of(uint64_t index, uint64_t seed)
{
    return (char)((index * 2654435761u + seed * 40503u + (index >> 13)) >> 3);
}

static uint64_t at_most(uint64_t bytes, uint64_t most)
{
    return bytes < most ? bytes : most;
}

void buffer_fill(char *data, uint64_t bytes, uint64_t seed)
{
    for (uint64_t at = 0; at < bytes; at += PATTERN_BLOCK) {
        const uint64_t block = at_most(bytes - at, PATTERN_BLOCK);
        const uint64_t once = at_most(block, PATTERN_PERIOD);
        for (uint64_t i = 0; i < once; i++)
            data[at + i] = byte_of(at + i, seed);
        for (uint64_t i = once; i < block; i += PATTERN_PERIOD)
            memcpy(data + at + i, data + at, at_most(block - i, PATTERN_PERIOD));
    }
}

void buffer_check(const char *data, uint64_t bytes, uint64_t seed)
{
    char expected[PATTERN_PERIOD] = {0};
    for (uint64_t at = 0; at < bytes; at += PATTERN_PERIOD) {
        const uint64_t once = at_most(bytes - at, PATTERN_PERIOD);
        for (uint64_t i = 0; at % PATTERN_BLOCK == 0 && i < once; i++)
            expected[i] = byte_of(at + i, seed);
        if (memcmp(data + at, expected, once) == 0) continue;
        for (uint64_t i = at; i < at + once; i++)
            CHECK(data[i] == byte_of(i, seed), "byte %llu of %llu", (unsigned long long)i,
                  (unsigned long long)bytes);
    }
}

void end_send(end_t *e, const buffer_t *b, uint64_t at, uint64_t bytes, uint32_t tag,
              uint64_t cookie)
{
    lh_status_t status;
    const uint64_t until = check_now_ns() + patience_ns;
    while ((status = e->api->isend(e->conn, b->region, b->data + at, bytes, tag, cookie)) ==
           LH_AGAIN) {
        end_poll(e);
        CHECK(check_now_ns() < until);
    }
    CHECK(status == LH_OK, "status %d", status);
}

void end_receive(end_t *e, const buffer_t *b, uint64_t at, uint64_t bytes, uint32_t tag,
                 uint64_t cookie)
{
    lh_status_t status;
    const uint64_t until = check_now_ns() + patience_ns;
    while ((status = e->api->irecv(e->conn, b->region, b->data + at, bytes, tag, cookie)) ==
           LH_AGAIN) {
        end_poll(e);
        CHECK(check_now_ns() < until);
    }
    CHECK(status == LH_OK, "status %d", status);
}

static pid_t start(const subject_t *s, uint32_t side, const int channels[2])
{
    const pid_t pid = fork();
    if (pid != 0) return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close(channels[1 - side]);
    static end_t e; /* too big for a stack */
    e.plugin = s->plugin;
    end_open(&e, side, channels[side], s->fact->settings != NULL ? s->fact->settings : s->sets);
    s->fact->run(&e);
    end_close(&e);
    _exit(0);
}

/* A side that found a fault has said so itself. */
static void judge_side(uint32_t side, int how, bool killed)
{
    const char *which = side == 0 ? "the end that dials" : "the end that listens";
    if (killed && WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL) return;
    if (WIFSIGNALED(how))
        check_fault("%s crashed: signal %d (%s)", which, WTERMSIG(how), strsignal(WTERMSIG(how)));
    if (WEXITSTATUS(how) != 0) check_fault("%s left with exit code %d", which, WEXITSTATUS(how));
    if (killed) check_fault("%s was not killed", which);
}

void rig_run(subject_t *s)
{
    int channels[2], how[2];
    pid_t pids[2];
    if (plugin_is_without_messages(s->plugin->transport)) check_skip("it carries no messages");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels) != 0)
        check_skip("no sockets: %s", strerror(errno));
    for (uint32_t side = 0; side < 2; side++)
        pids[side] = start(s, side, channels);
    const int error = errno;
    (void)close(channels[0]);
    (void)close(channels[1]);
    /* Of a fork that failed the number is -1, which kill takes for every process. */
    for (uint32_t side = 0; side < 2; side++)
        if (pids[side] < 0) {
            if (pids[1 - side] > 0) (void)kill(pids[1 - side], SIGKILL);
            check_skip("no two processes: %s", strerror(error));
        }
    for (uint32_t ended = 0; ended < 2; ended++) {
        int status;
        const pid_t pid = waitpid(0, &status, 0); /* the two are all that this process started */
        const uint32_t side = pid == pids[1];
        how[side] = status;
        /* The second to end has none left beside it: the first one's number may be another's. */
        if (ended == 0 && WIFEXITED(status) && WEXITSTATUS(status) != 0)
            (void)kill(pids[1 - side], SIGKILL);
    }
    for (uint32_t side = 0; side < 2; side++)
        judge_side(side, how[side], s->fact->kills && side == 1);
}
