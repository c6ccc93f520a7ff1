/* ib_test.c - what is the ib transport's own, over the stand-in of libibverbs (tests/fake_verbs): it
 * bears what a fabric does to packets, ends as it should where it can't, and says so in one sentence
 * where there is nothing to use. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <transport_facts.h>

#include "../torture.h"
#include "fact_main.h"

static void *stand_in(const char *name)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) check_skip("libibverbs is not the stand-in of these tests");
    return found;
}

static void order(const char *text)
{
    bool (*function)(const char *);
    void *found = stand_in("verbs_order");
    memcpy(&function, &found, sizeof(found));
    CHECK(function(text), "%s", text);
}

static uint64_t count_of(const char *name)
{
    uint64_t (*function)(const char *);
    void *found = stand_in("verbs_count");
    memcpy(&function, &found, sizeof(found));
    return function(name);
}

/* ---- what a fabric does to packets ---- */

static void lost_packets_are_sent_again(end_t *e)
{
    order("loss=250");
    messages_of_a_direction_keep_their_order(e);
    CHECK(count_of("lost") > 0);
    CHECK(count_of("rnr") == 0 && count_of("overruns") == 0);
}

static void late_packets_and_completions_in_any_order_are_borne(end_t *e)
{
    order("delay_us=1000 reorder=1");
    messages_of_a_direction_keep_their_order(e);
    CHECK(count_of("delayed") > 0);
    CHECK(count_of("rnr") == 0 && count_of("overruns") == 0);
}

static void all_of_it_at_once_is_borne(end_t *e)
{
    order("loss=1000 delay_us=200 reorder=1");
    messages_of_a_direction_keep_their_order(e);
    CHECK(count_of("rnr") == 0 && count_of("overruns") == 0);
}

static void sizes_arrive_over_several_queue_pairs(end_t *e)
{
    order("reorder=1");
    sizes_arrive(e);
    CHECK(count_of("rnr") == 0 && count_of("overruns") == 0);
}

/* ---- messages of random sizes, while the fabric gets better and worse ---- */

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

static void change_fabric(uint32_t side, uint64_t n)
{
    char text[80];
    static const uint32_t loss[] = {0, 0, 3000, 500}, delay[] = {0, 0, 50, 500};
    const uint64_t x = mix(2 * n + side);
    (void)snprintf(text, sizeof(text), "loss=%u delay_us=%u reorder=%u", loss[x % 4],
                   delay[x / 4 % 4], (uint32_t)(x / 16 % 2));
    order(text);
}

static void post_messages(end_t *e, const buffer_t *b, flow_t *out, flow_t *in, uint64_t messages)
{
    for (; in->next < messages && in->next - in->first < SLOTS; in->next++)
        if (e->api->irecv(e->conn, b->region, b->data + (SLOTS + in->next % SLOTS) * LARGEST,
                          LARGEST, (uint32_t)in->next, in->next) != LH_OK)
            break;
    for (; out->next < messages && out->next - out->first < SLOTS; out->next++) {
        char *data = b->data + out->next % SLOTS * LARGEST;
        const uint64_t bytes = size_of(e->side, out->next);
        if (out->next % 256 == 0) change_fabric(e->side, out->next);
        buffer_fill(data, bytes, 2 * out->next + e->side);
        if (e->api->isend(e->conn, b->region, data, bytes, (uint32_t)out->next, out->next) != LH_OK)
            break;
    }
}

static void a_changing_fabric_is_borne(end_t *e)
{
    lh_wire_event_t events[64];
    flow_t out = {0}, in = {0};
    const bool all = torture_wanted();
    const uint64_t messages = all ? 1000000 : 3000;
    end_meet(e);
    buffer_t b = buffer_new(e, 2 * (uint64_t)SLOTS * LARGEST, false, 0);
    while (out.first < messages || in.first < messages) {
        uint32_t count = 0;
        post_messages(e, &b, &out, &in, messages);
        CHECK(e->api->poll(e->transport, events, sizeof(events[0]), 64, &count) == LH_OK);
        for (uint32_t i = 0; i < count; i++) {
            const lh_wire_event_t *event = &events[i];
            CHECK(event->status == LH_OK && event->type < LH_WIRE_DOWN, "%s", event->reason);
            flow_t *flow = event->type == LH_WIRE_SENT ? &out : &in;
            const uint64_t n = flow->first++;
            CHECK(event->cookie == n && event->tag == (uint32_t)n);
            if (event->type == LH_WIRE_SENT) continue;
            CHECK(event->bytes == size_of(1 - e->side, n));
            buffer_check(b.data + (SLOTS + n % SLOTS) * LARGEST, event->bytes,
                         2 * n + (1 - e->side));
        }
    }
    for (int i = 0; i < 100; i++) {
        uint32_t count = 0;
        CHECK(e->api->poll(e->transport, events, sizeof(events[0]), 64, &count) == LH_OK);
        CHECK(count == 0, "an event too many");
    }
    CHECK(count_of("rnr") == 0 && count_of("overruns") == 0);
    end_barrier(e);
}

/* What it may have under way is what waits at the other end: a request for each write. */
static void a_peer_that_does_not_poll_keeps_its_requests(end_t *e)
{
    enum { MESSAGES = 256 };
    end_meet(e);
    buffer_t b = buffer_new(e, MESSAGES * 8, false, 0);
    if (e->side == 1) {
        for (uint32_t i = 0; i < MESSAGES; i++)
            end_receive(e, &b, i * 8, 8, i, i);
        end_poll(e);
        end_barrier(e);
        (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        for (uint32_t i = 0; i < MESSAGES; i++)
            (void)end_await(e, LH_WIRE_RECEIVED, i);
        for (uint32_t i = 0; i < MESSAGES; i++)
            buffer_check(b.data + i * 8, 8, i);
        CHECK(count_of("rnr") == 0);
    } else {
        end_barrier(e);
        for (uint32_t i = 0; i < MESSAGES; i++) {
            buffer_fill(b.data + i * 8, 8, i);
            end_send(e, &b, i * 8, 8, i, i);
        }
        for (uint32_t i = 0; i < MESSAGES; i++)
            (void)end_await(e, LH_WIRE_SENT, i);
    }
    end_barrier(e);
}

/* ---- ends ---- */

static void expect_end(end_t *e, lh_status_t why, const char *words)
{
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == why, "status %d: %s", down.status, down.reason);
    CHECK(strstr(down.reason, words) != NULL, "%s", down.reason);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
}

static void a_cut_ends_both_as_lost(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 200000, false, 0);
    end_barrier(e);
    order("mute=1");
    for (uint32_t i = 0; i < 3; i++) {
        end_receive(e, &b, 0, 1000, 1, 100 + i);
        end_send(e, &b, 0, 1000, 1, 200 + i);
    }
    expect_end(e, LH_PEER_LOST, "does not answer");
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(end_await(e, LH_WIRE_RECEIVED, 100 + i).status == LH_PEER_LOST);
        CHECK(end_await(e, LH_WIRE_SENT, 200 + i).status == LH_PEER_LOST);
    }
    end_barrier(e);
}

static void a_post_that_fails_ends_both(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 1000, false, 0);
    end_barrier(e);
    if (e->side == 0) {
        order("post_fails=1");
        end_receive(e, &b, 0, 1000, 1, 1);
    }
    expect_end(e, e->side == 0 ? LH_IO : LH_PEER_LOST, e->side == 0 ? "takes no more" : "rank 0");
    end_barrier(e);
}

/* With the second of two the first still carries the goodbye. */
static void a_second_queue_pair_that_fails_ends_both(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 1 << 20, false, 0);
    end_receive(e, &b, 0, 1 << 20, 1, 1);
    end_barrier(e);
    if (e->side == 0) {
        order("fail_pair=2");
        end_send(e, &b, 0, 1 << 20, 1, 2);
    }
    expect_end(e, LH_IO, "queue pair");
    end_barrier(e);
}

/* A peer gone wild: side 0 writes an immediate that was changed. */
static void expect_corrupt(end_t *e, const char *change, const char *words)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 5000, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 5000, 3, 1);
    if (e->side == 1) end_poll(e);
    end_barrier(e);
    if (e->side == 0) {
        for (int i = 0; i < 100; i++)
            end_poll(e);
        order(change);
        end_send(e, &b, 0, 5000, 3, 1);
    }
    expect_end(e, LH_CORRUPT, words);
    CHECK(end_await(e, e->side == 0 ? LH_WIRE_SENT : LH_WIRE_RECEIVED, 1).cookie == 1);
    end_barrier(e);
}

static void an_immediate_of_no_meaning_is_corrupt(end_t *e)
{
    expect_corrupt(e, "immediate=0xc0000000", "no meaning");
}

static void a_chunk_of_no_receive_is_corrupt(end_t *e)
{
    expect_corrupt(e, "immediate=0x00500000", "fits no receive");
}

static void a_chunk_behind_the_last_is_corrupt(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 200000, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 200000, 3, 1);
    if (e->side == 1) end_poll(e);
    end_barrier(e);
    if (e->side == 0) {
        for (int i = 0; i < 100; i++)
            end_poll(e);
        order("immediate=0x20000000"); /* the first of several says that it is the last */
        end_send(e, &b, 0, 200000, 3, 1);
    }
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == LH_CORRUPT, "status %d: %s", down.status, down.reason);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    end_barrier(e);
}

static void grants_that_nobody_gave_are_corrupt(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 5000, false, 0);
    if (e->side == 0) {
        order("immediate=0x0000fff0");
        end_receive(e, &b, 0, 5000, 3, 1);
    }
    expect_end(e, LH_CORRUPT, "can't have");
    end_barrier(e);
}

static void a_stranger_is_turned_away_and_counted(end_t *e)
{
    lh_hello_t hello;
    lh_conn_t *conn;
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
        lh_address_t wrong = e->address;
        wrong.bytes[4] ^= 1; /* the listener's token */
        CHECK(e->api->connect(e->transport, &wrong, &params, &conn) == LH_OK);
        expect_end(e, LH_UNREACHABLE, "not this job");
        e->api->close_conn(conn);
        end_tell(e, "", 1);
    } else {
        char word;
        const uint64_t until = check_now_ns() + 20000000000ull;
        while (check_host_metric("ib.strangers") < 1) {
            CHECK(check_now_ns() < until);
            CHECK(e->api->accept(e->listener, &hello, &conn) == LH_AGAIN);
        }
        end_hear(e, &word, 1);
    }
    e->conn = end_join(e, LH_SERVICE_BULK, RIG_CONN);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    end_barrier(e);
}

/* ---- nothing to use ---- */

static void expect_refusal(end_t *e, const char *words)
{
    lh_transport_t *t = NULL;
    CHECK(e->api->open(check_host(), e->config, &t) == LH_NO_DEVICE);
    CHECK(strstr(check_host_reason(), words) != NULL);
}

static void what_is_missing_is_said_in_one_sentence(end_t *e)
{
    char *kept;
    char other[] = "mlx5_7";
    lh_region_t *region;
    char data[64];
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = data,
                              .bytes = sizeof(data),
                              .fd = -1,
                              .numa = -1};
    order("no_device=1");
    expect_refusal(e, "this machine has no RDMA device");
    order("no_device=0 port_down=1");
    expect_refusal(e, "port 1 of fake0 is down");
    order("port_down=0 no_memory=1");
    CHECK(e->api->register_memory(e->transport, 0, &arena, &region) == LH_IO);
    CHECK(strstr(check_host_reason(), "registering 64 bytes with fake0") != NULL);
    order("no_memory=0");
    memcpy(&kept, e->config, sizeof(kept)); /* device comes first */
    char *name = other;
    memcpy(e->config, &name, sizeof(name));
    expect_refusal(e, "belongs to the RDMA device mlx5_7 (RDMA devices here: fake0)");
    memcpy(e->config, &kept, sizeof(kept));
}

static uint32_t open_files(void)
{
    uint32_t count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void nothing_stays_behind_a_close(end_t *e)
{
    lh_transport_t *own = e->transport;
    const uint32_t before = open_files();
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK);
    end_meet(e);
    buffer_t b = buffer_new(e, 1 << 20, false, 0);
    end_receive(e, &b, 0, 1 << 19, 1, 1);
    end_barrier(e);
    e->api->close(e->transport);
    (void)munmap(b.data, b.bytes);
    e->transport = own;
    CHECK(open_files() == before, "%u files more", open_files() - before);
    end_barrier(e);
}

int main(int argc, char **argv)
{
    static const char *const many[] = {"queue_pairs=4", "chunk=64KiB", NULL};
    static const char *const short_patience[] = {"ack_timeout=12", NULL};
    static const char *const wide[] = {"queue_pairs=16", "chunk=64KiB", "window=256KiB", NULL};
    static const char *const two[] = {"queue_pairs=2", "chunk=64KiB", NULL};
    static const fact_t facts[] = {
#define FACT(name, settings) {#name, name, false, settings}
        FACT(lost_packets_are_sent_again, many),
        FACT(late_packets_and_completions_in_any_order_are_borne, many),
        FACT(all_of_it_at_once_is_borne, many),
        FACT(sizes_arrive_over_several_queue_pairs, wide),
        FACT(a_changing_fabric_is_borne, many),
        FACT(a_peer_that_does_not_poll_keeps_its_requests, NULL),
        FACT(a_cut_ends_both_as_lost, short_patience),
        FACT(a_post_that_fails_ends_both, NULL),
        FACT(a_second_queue_pair_that_fails_ends_both, two),
        FACT(an_immediate_of_no_meaning_is_corrupt, NULL),
        FACT(a_chunk_of_no_receive_is_corrupt, NULL),
        FACT(a_chunk_behind_the_last_is_corrupt, two),
        FACT(grants_that_nobody_gave_are_corrupt, NULL),
        FACT(a_stranger_is_turned_away_and_counted, NULL),
        FACT(what_is_missing_is_said_in_one_sentence, NULL),
        FACT(nothing_stays_behind_a_close, two),
    };
    return fact_main("ib", facts, sizeof(facts) / sizeof(facts[0]), argc > 1 ? argv[1] : NULL);
}
