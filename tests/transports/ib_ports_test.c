/* ib_ports_test.c - ranks of the ib transport with several ports, over the stand-in of libibverbs
 * (tests/fake_verbs): messages are spread over them, and ports that go down, that are down when a run
 * begins, that have another MTU or are taken out leave the others. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <transport_facts.h>

#include "ib_facts.h"

static const char two_ports[] = "bind=127.0.0.1, 127.0.0.2";

/* fake0 has odd addresses of loopback, fake1 even ones. */
static void both_ports_carry_a_message(end_t *e)
{
    ib_meet(e, LH_SECURITY_KNOWN);
    buffer_t out = buffer_new(e, 8 << 20, false, 0), in = buffer_new(e, 8 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    const uint64_t all = ib_count("packets"), second = ib_count("second");
    /* Of eight chunks one at least: on a busy machine the other port may be done first seven times. */
    CHECK(second > all / 16 && second < all - all / 16, "%llu of %llu packets",
          (unsigned long long)second, (unsigned long long)all);
    end_barrier(e);
}

static void await_pairs(end_t *e, lh_status_t status)
{
    lh_wire_event_t event;
    const uint64_t until = check_now_ns() + 20000000000ull;
    while (!end_take(e, LH_WIRE_DEGRADED, RIG_CONN, &event) || event.status != status) {
        CHECK(check_now_ns() < until);
        end_poll(e);
    }
}

/* Both are up: neither carries next to nothing of 64 MiB each way. */
static void expect_both_carry(end_t *e, buffer_t *out, buffer_t *in)
{
    const uint64_t all = ib_count("packets"), second = ib_count("second");
    for (int i = 0; i < 8; i++)
        (void)ib_exchange(e, out, in, 8, 1 << 20);
    const uint64_t share = (ib_count("second") - second) * 100 / (ib_count("packets") - all);
    CHECK(share >= 1 && share <= 99, "%llu %% over fake1", (unsigned long long)share);
}

/* Of side 0, while messages are under way both ways: they end over the other port, and later ones
 * need not wait; then it comes back, and the connection is whole. Notices go over the first. Answers
 * are late before, so that the other end has taken writes that this one does not know of. */
static void a_port_that_goes_down_leaves_the_others(end_t *e)
{
    static const char *const orders[] = {"dead_device=2", "dead_device=1", "dead_device=1",
                                         "dead_device=2"};
    ib_meet(e, LH_SECURITY_KNOWN);
    buffer_t out = buffer_new(e, 8 << 20, false, 0), in = buffer_new(e, 8 << 20, false, 0);
    for (uint32_t round = 0; round < 4; round++) {
        end_barrier(e);
        if (e->side == round / 2) ib_order("delay_us=10000");
        for (uint32_t i = 0; i < 8; i++) {
            end_receive(e, &in, i << 20, 1 << 20, i, i);
            buffer_fill(out.data + (i << 20), 1 << 20, i + 100 * e->side + round);
            end_send(e, &out, i << 20, 1 << 20, i, i);
        }
        const uint64_t begin = ib_ran_ns(e), until_ns = check_now_ns() + 15000000;
        while (check_now_ns() < until_ns)
            end_poll(e);
        if (e->side == round / 2) ib_order(orders[round]);
        ib_order("delay_us=0");
        for (uint32_t i = 0; i < 8; i++) {
            (void)end_await(e, LH_WIRE_SENT, i);
            (void)end_await(e, LH_WIRE_RECEIVED, i);
        }
        for (uint32_t i = 0; i < 8; i++)
            buffer_check(in.data + (i << 20), 1 << 20, i + 100 * (1 - e->side) + round);
        const uint64_t first = ib_ran_ns(e) - begin;
        await_pairs(e, LH_PEER_LOST);
        const uint64_t second = ib_exchange(e, &out, &in, 8, 1 << 20);
        (void)fprintf(stderr, "    %.0f ms as it goes down, %.0f ms without it\n",
                      (double)first / 1e6, (double)second / 1e6);
        CHECK(first < 2000000000 && second < 1000000000);
        lh_link_stats_t stats = {.struct_size = sizeof(stats)};
        const uint64_t until = check_now_ns() + 20000000000ull;
        while (stats.paths_up != 2 || stats.paths_down != 2) { /* one that idles is seen later */
            CHECK(check_now_ns() < until);
            end_poll(e);
            CHECK(e->api->stats(e->conn, &stats) == LH_OK);
        }
        end_barrier(e);
        ib_order("dead_device=0");
        await_pairs(e, LH_OK);
        expect_both_carry(e, &out, &in);
    }
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

/* A port of side `who` is down when both begin, as after a restart: they meet over the other one, and
 * take it in when it is back. The first queue pair would be on the first port. */
static void begin_without(end_t *e, uint32_t who, const char *down, uint32_t security)
{
    lh_link_stats_t stats = {.struct_size = sizeof(stats)};
    lh_wire_event_t event, last = {.status = LH_PEER_LOST};
    lh_transport_t *former = e->transport;
    if (e->side == who) ib_order(down);
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK, "%s", check_host_reason());
    e->api->close(former); /* orders are forgotten where nothing is open */
    end_barrier(e);
    const uint64_t begin = check_now_ns();
    ib_meet(e, security);
    (void)fprintf(stderr, "    up after %.0f ms\n", (double)(check_now_ns() - begin) / 1e6);
    CHECK(e->api->stats(e->conn, &stats) == LH_OK);
    CHECK(stats.paths_up == 2 && stats.paths_down == 2, "%u, %u", stats.paths_up, stats.paths_down);
    buffer_t out = buffer_new(e, 8 << 20, false, 0), in = buffer_new(e, 8 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    await_pairs(e, LH_PEER_LOST);
    end_barrier(e);
    ib_order("dead_device=0");
    const uint64_t until = check_now_ns() + 20000000000ull;
    for (stats.paths_down = 1; last.status != LH_OK || stats.paths_down != 0; end_poll(e)) {
        CHECK(check_now_ns() < until);
        while (end_take(e, LH_WIRE_DEGRADED, RIG_CONN, &event))
            last = event;
        CHECK(e->api->stats(e->conn, &stats) == LH_OK);
    }
    end_barrier(e);
    expect_both_carry(e, &out, &in);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

static void a_port_that_is_down_at_the_end_that_dials_is_taken_in_later(end_t *e)
{
    begin_without(e, 0, "dead_device=1", LH_SECURITY_KNOWN);
}

static void a_port_that_is_down_at_the_end_that_listens_is_taken_in_later(end_t *e)
{
    begin_without(e, 1, "dead_device=1", LH_SECURITY_PLAIN);
}

static void a_second_port_that_is_down_is_taken_in_later(end_t *e)
{
    begin_without(e, 0, "dead_device=2", LH_SECURITY_PLAIN);
}

/* It has gone down since the address was told, so that what the other end asks there is not answered. */
static void a_port_that_goes_down_before_they_meet_is_left_out(end_t *e)
{
    lh_link_stats_t stats = {.struct_size = sizeof(stats)};
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 1) ib_order("dead_device=2");
    end_barrier(e);
    e->conn = end_join(e, LH_SERVICE_GRADIENT, RIG_CONN);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    CHECK(e->api->stats(e->conn, &stats) == LH_OK);
    CHECK(stats.paths_up == 2 && stats.paths_down == 2, "%u, %u", stats.paths_up, stats.paths_down);
    buffer_t out = buffer_new(e, 8 << 20, false, 0), in = buffer_new(e, 8 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    end_barrier(e);
}

/* In its place with another `bind`; configured values begin with device and bind. */
static void reopen(end_t *e, char *bind)
{
    e->api->close(e->transport);
    memcpy((char *)e->config + sizeof(char *), &bind, sizeof(bind));
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK, "%s", check_host_reason());
}

/* Of six queue pairs those of the first port of the end that dials are known to be down from the start,
 * so they are soon dialed again and again; the last one leads to a port that does not answer, which
 * shows only when its first try has taken too long. Both sorts are left out then. */
static void ports_known_down_and_one_that_is_silent_are_left_out(end_t *e)
{
    static char two[] = "127.0.0.1, 127.0.0.2", three[] = "127.0.0.1, 127.0.0.3, 127.0.0.2";
    lh_link_stats_t stats = {.struct_size = sizeof(stats)};
    reopen(e, e->side == 0 ? two : three);
    end_listen(e, LH_SECURITY_PLAIN);
    ib_order(e->side == 0 ? "dead_device=1" : "dead_device=2");
    end_barrier(e);
    e->conn = end_join(e, LH_SERVICE_GRADIENT, RIG_CONN);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    CHECK(e->api->stats(e->conn, &stats) == LH_OK);
    CHECK(stats.paths_up == 2 && stats.paths_down == 4, "%u, %u", stats.paths_up, stats.paths_down);
    buffer_t out = buffer_new(e, 8 << 20, false, 0), in = buffer_new(e, 8 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    end_barrier(e);
}

/* Ports are not crossed, as each may be in a network of its own: with the first down here and the second
 * there no queue pair has two that are up. */
static void ends_that_have_no_two_ports_up_say_so(end_t *e)
{
    lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
    params.dial_ns = 300000000;
    ib_order(e->side == 0 ? "dead_device=1" : "dead_device=2");
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        e->conn = end_dial(e, &params);
        ib_expect_end(e, LH_UNREACHABLE,
                      "no queue pair has a port that is up here and one that was");
    }
    end_barrier(e);
}

/* The two networks are wired to other ports here than there: `bind` has them in another order. */
static void ports_of_two_networks_that_are_crossed_are_told_of(end_t *e)
{
    static char crossed[] = "127.0.0.2, 127.0.0.1";
    if (e->side == 0) reopen(e, crossed);
    ib_order("apart=1");
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        const lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
        e->conn = end_dial(e, &params);
        ib_expect_end(e, LH_UNREACHABLE,
                      "ports are not crossed: the first leads to the other end's first");
    }
    end_barrier(e);
}

/* Likewise, where it has them in the same: nothing goes from one network to the other. */
static void ports_of_two_networks_meet(end_t *e)
{
    ib_order("apart=1");
    both_ports_carry_a_message(e);
}

/* A path of the second ports that carries small packets only, before the connection is up. */
static void a_second_path_with_a_smaller_mtu_is_named(end_t *e)
{
    end_listen(e, LH_SECURITY_PLAIN);
    ib_order("mtu_hole=2000 mtu_hole_of=2");
    e->conn = end_join(e, LH_SERVICE_GRADIENT, RIG_CONN);
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == LH_UNREACHABLE || down.status == LH_PEER_LOST, "status %d", down.status);
    /* Both find it, and the first of them ends the connection: the other may hear of that alone. */
    const char *words = "packets of 4096 bytes don't come through to rank";
    const bool named = strstr(down.reason, words) != NULL;
    bool other;
    end_tell(e, &named, sizeof(named));
    end_hear(e, &other, sizeof(other));
    CHECK(named || other, "%s", down.reason);
    end_barrier(e);
}

static void await_wholeness(end_t *e)
{
    lh_wire_event_t event, last = {.status = LH_OK};
    const uint64_t until = check_now_ns() + 20000000000ull;
    lh_link_stats_t stats = {.struct_size = sizeof(stats),
                             .paths_down = 1}; /* nobody has asked yet */
    while (last.status != LH_OK || stats.paths_down != 0) {
        CHECK(check_now_ns() < until);
        end_poll(e);
        while (end_take(e, LH_WIRE_DEGRADED, RIG_CONN, &event))
            last = event;
        CHECK(e->api->stats(e->conn, &stats) == LH_OK);
    }
}

/* It gets smaller while messages are under way, from both ends or one, and large again. What it has
 * lost goes over the others, and so does what comes later. */
static void a_path_whose_mtu_shrinks_leaves_the_others(end_t *e)
{
    static const char *const orders[] = {"mtu_hole=2000 mtu_hole_of=1",
                                         "mtu_hole=2000 mtu_hole_of=2"};
    ib_meet(e, LH_SECURITY_PLAIN);
    buffer_t out = buffer_new(e, 8 << 20, false, 0), in = buffer_new(e, 8 << 20, false, 0);
    for (uint32_t round = 0; round < 4; round++) {
        end_barrier(e);
        if (round == 0 || e->side == round - 1 || round == 3) ib_order(orders[round % 2]);
        const uint64_t during = ib_exchange(e, &out, &in, 8, 1 << 20);
        const uint64_t after = ib_exchange(e, &out, &in, 8, 1 << 20);
        (void)fprintf(stderr, "    %.0f ms as it shrinks, %.0f ms without it\n",
                      (double)during / 1e6, (double)after / 1e6);
        CHECK(during < 2000000000 && after < 1000000000);
        end_barrier(e);
        ib_order("mtu_hole=0");
        const uint64_t until = check_now_ns() + 2000000000ull; /* it is tried again each second */
        while (check_now_ns() < until)
            end_poll(e);
        await_wholeness(e);
        end_barrier(e);
        /* All pairs are up. Which of them has chunks depends on how fast each was. */
        (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    }
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

/* There is no other. */
static void a_path_whose_mtu_shrinks_ends_the_last(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 1 << 20, false, 0);
    end_barrier(e);
    ib_order("mtu_hole=2000");
    if (e->side == 1) end_receive(e, &b, 0, 1 << 20, 1, 1);
    if (e->side == 0) end_send(e, &b, 0, 1 << 20, 1, 1);
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == (e->side == 0 ? LH_UNREACHABLE : LH_PEER_LOST), "status %d: %s",
          down.status, down.reason);
    CHECK(e->side == 1 || strstr(down.reason, "packets of 4096 bytes don't come through") != NULL,
          "%s", down.reason);
    end_barrier(e);
}

/* Two of three queue pairs fail with all that they have under way, more than the third has room for,
 * and the other end does not poll for so long that they would be dialed again meanwhile. */
static void what_is_left_of_ports_goes_over_the_others_however_late(end_t *e)
{
    enum { MESSAGES = 8, BYTES = 8 << 20 };
    ib_meet(e, LH_SECURITY_PLAIN);
    buffer_t b = buffer_new(e, (uint64_t)MESSAGES * BYTES, false, 0);
    if (e->side == 0) ib_order("delay_us=50000");
    for (uint32_t i = 0; e->side == 1 && i < MESSAGES; i++)
        end_receive(e, &b, i * (uint64_t)BYTES, BYTES, i, i);
    for (uint32_t i = 0; e->side == 1 && i < 3; i++)
        end_poll(e);
    end_barrier(e);
    const uint64_t begin = check_now_ns();
    while (e->side == 0 && check_now_ns() < begin + 300000000) /* grants are late, too */
        end_poll(e);
    if (e->side == 0) ib_order("dead_device=1");
    for (uint32_t i = 0; e->side == 0 && i < MESSAGES; i++) {
        buffer_fill(b.data + i * (uint64_t)BYTES, BYTES, i);
        end_send(e, &b, i * (uint64_t)BYTES, BYTES, i, i);
    }
    if (e->side == 1) {
        while (check_host_metric("rdma.replaced") < 2) { /* it was told to part */
            CHECK(check_now_ns() < begin + 20000000000ull);
            end_poll(e);
        }
        for (int i = 0; i < 3; i++)
            end_poll(e);
        (void)nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 500000000}, NULL);
    }
    for (uint32_t i = 0; i < MESSAGES; i++)
        (void)end_await(e, e->side == 0 ? LH_WIRE_SENT : LH_WIRE_RECEIVED, i);
    for (uint32_t i = 0; e->side == 1 && i < MESSAGES; i++)
        buffer_check(b.data + i * (uint64_t)BYTES, BYTES, i);
    end_barrier(e);
    ib_order("dead_device=0 delay_us=0");
    await_wholeness(e);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

/* Both ways at once, more chunks than the queue pair that is left has credits for, while the port goes
 * down over which both ends give credits back: what gives them waits behind no chunk. */
static void what_goes_both_ways_needs_more_credits_than_are_left(end_t *e)
{
    enum { MESSAGES = 8, BYTES = 4 << 20 };
    static const char *const orders[] = {"dead_device=1", "dead_device=2"};
    ib_meet(e, LH_SECURITY_PLAIN);
    buffer_t out = buffer_new(e, (uint64_t)MESSAGES * BYTES, false, 0),
             in = buffer_new(e, (uint64_t)MESSAGES * BYTES, false, 0);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < MESSAGES; i++)
            buffer_fill(out.data + i * (uint64_t)BYTES, BYTES, i + 100 * e->side + round);
        end_barrier(e);
        ib_order("rate=100000000");
        for (uint32_t i = 0; i < MESSAGES; i++) {
            end_receive(e, &in, i * (uint64_t)BYTES, BYTES, i, i);
            end_send(e, &out, i * (uint64_t)BYTES, BYTES, i, i);
        }
        const uint64_t until_ns = check_now_ns() + 30000000;
        while (check_now_ns() < until_ns)
            end_poll(e);
        if (e->side == round) ib_order(orders[round]);
        for (uint32_t i = 0; i < MESSAGES; i++) {
            (void)end_await(e, LH_WIRE_SENT, i);
            (void)end_await(e, LH_WIRE_RECEIVED, i);
        }
        for (uint32_t i = 0; i < MESSAGES; i++)
            buffer_check(in.data + i * (uint64_t)BYTES, BYTES, i + 100 * (1 - e->side) + round);
        (void)ib_exchange(e, &out, &in, 1, 1000); /* who has all may have to answer still */
        end_barrier(e);
        ib_order("dead_device=0 rate=0");
        await_wholeness(e);
    }
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

/* For good, where the other one carries on; the connection ends when that has gone as well. */
static void a_device_that_is_removed_leaves_the_others(end_t *e)
{
    ib_meet(e, LH_SECURITY_PLAIN);
    buffer_t out = buffer_new(e, 8 << 20, false, 0), in = buffer_new(e, 8 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    end_barrier(e);
    if (e->side == 0) ib_order("remove_device=1");
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    await_pairs(e, LH_PEER_LOST);
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    end_barrier(e);
    if (e->side == 0) ib_order("remove_device=2");
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == (e->side == 0 ? LH_IO : LH_PEER_LOST), "status %d: %s", down.status,
          down.reason);
    CHECK(e->side == 1 || strstr(down.reason, "the RDMA device fake1 was removed") != NULL, "%s",
          down.reason);
    end_barrier(e);
}

/* Three queue pairs: of the end with one port all are on it. */
static void ends_with_one_port_and_two_meet(end_t *e)
{
    static char one[] = "127.0.0.1", two[] = "127.0.0.1,127.0.0.2";
    for (uint32_t who = 0; who < 2; who++) {
        reopen(e, e->side == who ? one : two);
        ib_meet(e, LH_SECURITY_PLAIN);
        buffer_t out = buffer_new(e, 4 << 20, false, 0), in = buffer_new(e, 4 << 20, false, 0);
        (void)ib_exchange(e, &out, &in, 4, 1 << 20);
        end_barrier(e);
        e->api->close_conn(e->conn);
        if (e->side == 1) e->api->close_listener(e->listener);
        buffer_free(e, &out);
        buffer_free(e, &in);
        end_barrier(e);
        e->event_count = 0;
    }
}

static void expect_bind(end_t *e, char *bind, lh_status_t why, const char *words)
{
    lh_transport_t *t = NULL;
    memcpy((char *)e->config + sizeof(char *), &bind, sizeof(bind));
    CHECK(e->api->open(check_host(), e->config, &t) == why, "%s", bind);
    CHECK(strstr(check_host_reason(), words) != NULL, "%s", check_host_reason());
}

static void ports_that_can_t_be_taken_are_named(end_t *e)
{
    static char twice[] = "127.0.0.1, 127.0.0.1", empty[] = "127.0.0.1,, 127.0.0.2",
                families[] = "127.0.0.1, ::1", unknown[] = "127.0.0.1, nosuch0",
                many[] = "127.0.0.1, 127.0.0.2, 127.0.0.3, 127.0.0.4, 127.0.0.5",
                both[] = "127.0.0.1, 127.0.0.2", apart[] = "127.0.0.1 127.0.0.2";
    expect_bind(e, twice, LH_INVALID, "bind has 127.0.0.1:0 twice");
    expect_bind(e, empty, LH_INVALID, "expected auto, or addresses or interfaces with commas");
    expect_bind(e, apart, LH_INVALID, "expected auto, or addresses or interfaces with commas");
    expect_bind(e, many, LH_INVALID, "a rank has 4 ports at most");
    expect_bind(e, families, LH_INVALID,
                "127.0.0.1:0 of fake0 is an IPv4 address, [::1]:0 of fake0 an IPv6 one");
    expect_bind(e, unknown, LH_NO_DEVICE, "no address nosuch0 of this machine");
    ib_order("infiniband_of=2");
    expect_bind(e, both, LH_INVALID,
                "bind: 127.0.0.1:0 of fake0 is Ethernet (RoCE), 127.0.0.2:0 of fake1 InfiniBand; "
                "expected ports of one link layer");
    ib_order("infiniband_of=0 mtu=3 mtu_of=2");
    expect_bind(e, both, LH_INVALID,
                "bind: 127.0.0.1:0 of fake0 has an MTU of 4096 bytes, 127.0.0.2:0 of fake1 1024; "
                "expected ports of one MTU");
    ib_order("mtu=0 port_down=1");
    expect_bind(e, both, LH_NO_DEVICE, "port 1 of fake0 is down, and so are the others");
}

static void ports_that_come_and_go_are_borne(end_t *e)
{
    ib_random_messages(e, LH_SECURITY_PLAIN, 2, 250000);
}

int main(int argc, char **argv)
{
    static const char *const three[] = {"queue_pairs=3", "chunk=64KiB", NULL};
    static const char *const impatient[] = {"ack_timeout=10", NULL};
    static const char *const rails[] = {two_ports, "queue_pairs=4", "chunk=64KiB", "ack_timeout=10",
                                        NULL};
    static const char *const six[] = {"queue_pairs=6", "chunk=64KiB", "ack_timeout=10", NULL};
    static const char *const shaky[] = {two_ports, "queue_pairs=4", "chunk=64KiB", "ack_timeout=12",
                                        NULL};
    static const char *const both[] = {two_ports,     "queue_pairs=2",  "chunk=64KiB",
                                       "window=4MiB", "ack_timeout=12", NULL};
    static const char *const full[] = {two_ports,      "queue_pairs=3",  "chunk=64KiB",
                                       "window=23MiB", "ack_timeout=12", NULL};
    static const fact_t facts[] = {
#define FACT(name, settings) {#name, name, false, settings}
        FACT(both_ports_carry_a_message, rails),
        FACT(a_port_that_goes_down_leaves_the_others, rails),
        FACT(a_port_that_is_down_at_the_end_that_dials_is_taken_in_later, rails),
        FACT(a_port_that_is_down_at_the_end_that_listens_is_taken_in_later, rails),
        FACT(a_second_port_that_is_down_is_taken_in_later, rails),
        FACT(a_port_that_goes_down_before_they_meet_is_left_out, rails),
        FACT(ports_known_down_and_one_that_is_silent_are_left_out, six),
        FACT(ends_that_have_no_two_ports_up_say_so, rails),
        FACT(ports_of_two_networks_that_are_crossed_are_told_of, rails),
        FACT(ports_of_two_networks_meet, rails),
        FACT(a_second_path_with_a_smaller_mtu_is_named, rails),
        FACT(a_path_whose_mtu_shrinks_leaves_the_others, rails),
        FACT(a_path_whose_mtu_shrinks_ends_the_last, impatient),
        FACT(what_is_left_of_ports_goes_over_the_others_however_late, full),
        FACT(what_goes_both_ways_needs_more_credits_than_are_left, both),
        FACT(a_device_that_is_removed_leaves_the_others, rails),
        FACT(ends_with_one_port_and_two_meet, three),
        FACT(ports_that_can_t_be_taken_are_named, NULL),
        FACT(ports_that_come_and_go_are_borne, shaky),
    };
    (void)setenv("FAKE_VERBS", "devices=2", 1);
    ib_facts_begin();
    return fact_main("ib", facts, sizeof(facts) / sizeof(facts[0]), argc > 1 ? argv[1] : NULL);
}
