/* ib_facts.c - see ib_facts.h. */
#include "ib_facts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../torture.h"

static _Atomic uint64_t *beats; /* [2], by side; one at a time runs a fact */

void ib_facts_begin(void)
{
    beats = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (beats == MAP_FAILED) abort();
}

static void *stand_in(const char *name)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) check_skip("libibverbs is not the stand-in of these tests");
    return found;
}

void ib_order(const char *text)
{
    bool (*function)(const char *);
    void *found = stand_in("verbs_order");
    memcpy(&function, &found, sizeof(found));
    CHECK(function(text), "%s", text);
}

void ib_tap(const char *path)
{
    void (*function)(const char *);
    void *found = stand_in("verbs_tap");
    memcpy(&function, &found, sizeof(found));
    function(path);
}

uint64_t ib_count(const char *name)
{
    uint64_t (*function)(const char *);
    void *found = stand_in("verbs_count");
    memcpy(&function, &found, sizeof(found));
    return function(name);
}

uint64_t ib_ran_ns(const end_t *e)
{
    static bool asked;
    void (*function)(_Atomic uint64_t *, _Atomic uint64_t *);
    void *found = stand_in("verbs_beat");
    memcpy(&function, &found, sizeof(found));
    if (!asked) function(&beats[e->side], &beats[1 - e->side]);
    asked = true;
    return ib_count("ran_ns");
}

void ib_meet(end_t *e, uint32_t security)
{
    (void)ib_ran_ns(e);
    end_listen(e, security);
    e->conn = end_join_at(e, LH_SERVICE_GRADIENT, RIG_CONN, security);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
}

void ib_expect_end(end_t *e, lh_status_t why, const char *words)
{
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == why, "status %d: %s", down.status, down.reason);
    CHECK(strstr(down.reason, words) != NULL, "%s", down.reason);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
}

void ib_join_heard(end_t *e, const lh_conn_params_t *params, char *text, size_t room)
{
    FILE *f = tmpfile();
    const int said = dup(STDERR_FILENO);
    CHECK(f != NULL && said >= 0 && fflush(stderr) == 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
    e->conn = end_join_with(e, params);
    (void)fflush(stderr);
    CHECK(dup2(said, STDERR_FILENO) >= 0 && close(said) == 0);
    rewind(f);
    text[fread(text, 1, room - 1, f)] = '\0';
    (void)fclose(f);
}

uint64_t ib_exchange(end_t *e, buffer_t *out, buffer_t *in, uint32_t messages, uint64_t bytes)
{
    const uint64_t begin = ib_ran_ns(e);
    for (uint32_t i = 0; i < messages; i++) {
        end_receive(e, in, i * bytes, bytes, i, i);
        buffer_fill(out->data + i * bytes, bytes, i + 100 * e->side);
        end_send(e, out, i * bytes, bytes, i, i);
    }
    for (uint32_t i = 0; i < messages; i++) {
        (void)end_await(e, LH_WIRE_SENT, i);
        (void)end_await(e, LH_WIRE_RECEIVED, i);
    }
    for (uint32_t i = 0; i < messages; i++)
        buffer_check(in->data + i * bytes, bytes, i + 100 * (1 - e->side));
    return ib_ran_ns(e) - begin;
}

/* True: an end came to rest only when all had come to it. */
static bool rest_once(end_t *e, const buffer_t *out, const buffer_t *in, uint32_t messages,
                      uint64_t bytes, uint64_t packets)
{
    lh_wire_event_t event;
    for (uint32_t i = 0; i < messages; i++)
        end_receive(e, in, i * bytes, bytes, i, i);
    end_barrier(e); /* of which both are told meanwhile */
    const uint64_t before = ib_count("packets"), until = check_now_ns() + 10000000000;
    for (uint32_t i = 0; i < messages; i++) {
        buffer_fill(out->data + i * bytes, bytes, i + 100 * e->side);
        end_send(e, out, i * bytes, bytes, i, i);
    }
    while (ib_count("packets") < before + packets) {
        CHECK(check_now_ns() < until, "nothing leaves");
        end_poll(e);
    }
    (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    const bool late = end_take(e, LH_WIRE_RECEIVED, messages - 1, &event);
    for (uint32_t i = 0; i < messages; i++) {
        (void)end_await(e, LH_WIRE_SENT, i);
        if (!late || i + 1 < messages) (void)end_await(e, LH_WIRE_RECEIVED, i);
        buffer_check(in->data + i * bytes, bytes, i + 100 * (1 - e->side));
    }
    bool other;
    end_tell(e, &late, sizeof(late));
    end_hear(e, &other, sizeof(other));
    return late || other;
}

/* An end that stands still between its last look and its rest may find half of what comes at once, and gives
 * credits for the others: then once more. */
void ib_rest(end_t *e, uint32_t security, uint32_t messages, uint64_t bytes, uint64_t packets)
{
    ib_meet(e, security);
    buffer_t out = buffer_new(e, messages * bytes, false, 0);
    buffer_t in = buffer_new(e, messages * bytes, false, 0);
    uint32_t tries = 0;
    while (rest_once(e, &out, &in, messages, bytes, packets))
        CHECK(++tries < 10, "all had come before, each time");
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0, "%llu not ready, %llu overruns",
          (unsigned long long)ib_count("rnr"), (unsigned long long)ib_count("overruns"));
    end_barrier(e);
}

/* ---- messages of random sizes, while the fabric gets better and worse and queue pairs fail ---- */

enum { LARGEST = 300000, SLOTS = 16 };

typedef struct flow { /* messages of one direction: [first, next) are under way */
    uint64_t first, next;
} flow_t;

static uint64_t mix(uint64_t n)
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    return n ^ (n >> 27);
}

static uint64_t size_of(uint32_t side, uint64_t n)
{
    const uint64_t x = mix(2 * n + side);
    const uint64_t most = x % 64 == 0 ? LARGEST : x % 8 == 1 ? 20000 : 1000;
    return (x >> 8) % (most + 1);
}

static uint64_t quiet_until_ns; /* nothing that this side sends arrives; 0: it does */

/* Side 0 alone takes ports down, so that one is always there. A blackout, of all of them, is shorter than
 * any patience. */
static void change_fabric(uint32_t side, uint64_t n, uint32_t ports)
{
    enum { MS = 1000000 };
    char text[192];
    static const uint32_t loss[] = {0, 0, 3000, 500}, delay[] = {0, 0, 50, 500};
    static const uint32_t chosen[] = {0, 0, 0, 300}, rate[] = {0, 0, 0, 100000000};
    const uint64_t x = mix(2 * n + side);
    (void)snprintf(text, sizeof(text),
                   "loss=%u delay_us=%u reorder=%u fail_one=%u adaptive_us=%u lose_immediate=%u "
                   "lose_answer=%u rate=%u not_ready=%u",
                   loss[x % 4], delay[x / 4 % 4], (uint32_t)(x / 16 % 2), (uint32_t)(x / 32 % 6),
                   x / 256 % 4 == 0 ? 2000u : 0u, chosen[x / 4096 % 4], chosen[x / 16384 % 4],
                   rate[x / 65536 % 4], x / 268435456 % 4 == 0 ? 3u : 0u);
    ib_order(text);
    if (x / 262144 % 8 == 0) {
        quiet_until_ns = check_now_ns() + (10 + x / 2097152 % 100) * MS;
        ib_order("mute=1");
    }
    if (ports < 2 || side != 0) return;
    (void)snprintf(text, sizeof(text), "dead_device=%u", (uint32_t)(x / 1024 % 4));
    ib_order(text);
}

static void end_quiet(uint64_t now)
{
    if (quiet_until_ns == 0 || now < quiet_until_ns) return;
    quiet_until_ns = 0;
    ib_order("mute=0");
}

static void post_messages(end_t *e, const buffer_t *b, flow_t *out, flow_t *in, uint64_t messages,
                          uint32_t ports)
{
    for (; in->next < messages && in->next - in->first < SLOTS; in->next++)
        if (e->api->irecv(e->conn, b->region, b->data + (SLOTS + in->next % SLOTS) * LARGEST,
                          LARGEST, (uint32_t)in->next, in->next) != LH_OK)
            break;
    for (; out->next < messages && out->next - out->first < SLOTS; out->next++) {
        char *data = b->data + out->next % SLOTS * LARGEST;
        const uint64_t bytes = size_of(e->side, out->next);
        if (out->next % 256 == 0) change_fabric(e->side, out->next, ports);
        buffer_fill(data, bytes, 2 * out->next + e->side);
        if (e->api->isend(e->conn, b->region, data, bytes, (uint32_t)out->next, out->next) != LH_OK)
            break;
    }
}

/* A fabric that is at its worst for a while delays messages by seconds, not by this. */
enum { STANDSTILL_S = 60 };

void ib_random_messages(end_t *e, uint32_t security, uint32_t ports, uint64_t at_most)
{
    lh_wire_event_t events[64];
    flow_t out = {0}, in = {0};
    const uint64_t messages = torture_wanted() ? at_most : 3000;
    uint64_t moved_ns = check_now_ns();
    ib_meet(e, security);
    buffer_t b = buffer_new(e, 2 * (uint64_t)SLOTS * LARGEST, false, 0);
    while (out.first < messages || in.first < messages) {
        uint32_t count = 0;
        post_messages(e, &b, &out, &in, messages, ports);
        CHECK(e->api->poll(e->transport, events, sizeof(events[0]), 64, &count) == LH_OK);
        const uint64_t now = check_now_ns();
        end_quiet(now);
        if (count == 0) (void)usleep(20); /* the other side, and other tests, have this processor */
        if (now - moved_ns > STANDSTILL_S * 1000000000ull && getenv("LONGHAUL_CORE")) abort();
        CHECK(now - moved_ns < STANDSTILL_S * 1000000000ull,
              "nothing moves: sends %llu to %llu, receives %llu to %llu",
              (unsigned long long)out.first, (unsigned long long)out.next,
              (unsigned long long)in.first, (unsigned long long)in.next);
        for (uint32_t i = 0; i < count; i++) {
            const lh_wire_event_t *event = &events[i];
            if (event->type == LH_WIRE_DEGRADED) continue;
            CHECK(event->status == LH_OK && event->type < LH_WIRE_DOWN, "%s", event->reason);
            flow_t *flow = event->type == LH_WIRE_SENT ? &out : &in;
            const uint64_t n = flow->first++;
            moved_ns = now;
            CHECK(event->cookie == n && event->tag == (uint32_t)n);
            if (event->type == LH_WIRE_SENT) continue;
            CHECK(event->bytes == size_of(1 - e->side, n));
            buffer_check(b.data + (SLOTS + n % SLOTS) * LARGEST, event->bytes,
                         2 * n + (1 - e->side));
        }
    }
    end_quiet(UINT64_MAX); /* the other side may wait for an answer still */
    ib_order("not_ready=0");
    for (int i = 0; i < 100; i++) {
        uint32_t count = 0;
        CHECK(e->api->poll(e->transport, events, sizeof(events[0]), 64, &count) == LH_OK);
        for (uint32_t k = 0; k < count; k++)
            CHECK(events[k].type == LH_WIRE_DEGRADED, "an event too many");
    }
    CHECK(ib_count("rnr") == ib_count("refused") && ib_count("overruns") == 0);
    end_barrier(e);
}
