/* ib_test.c - what is the ib transport's own, over the stand-in of libibverbs (tests/fake_verbs): it
 * bears what a fabric does to packets, ends as it should where it can't, and says so in one sentence
 * where there is nothing to use. */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <transport_facts.h>

#include "ib_facts.h"
#include "ib_ring.h"

/* ---- what a fabric does to packets ---- */

static void lost_packets_are_sent_again(end_t *e)
{
    ib_order("loss=250");
    messages_of_a_direction_keep_their_order(e);
    CHECK(ib_count("lost") > 0);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
}

/* Of one kind alone: what the other end has taken is told again, and taken once. */
static void bears_loss_of(end_t *e, const char *kind)
{
    ib_order(kind);
    messages_of_a_direction_keep_their_order(e);
    CHECK(ib_count("lost") > 0);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
}

static void lost_answers_are_given_again(end_t *e)
{
    bears_loss_of(e, "lose_answer=200");
}

static void lost_immediates_are_sent_again(end_t *e)
{
    bears_loss_of(e, "lose_immediate=200");
}

static void every_so_manieth_packet_may_be_lost(end_t *e)
{
    bears_loss_of(e, "lose_packet=200");
}

/* Cards that repeat selectively: what comes behind a lost packet lies in memory before it, and its
 * completion waits. Answers are not lost, so that next to nothing is sent again but what was. */
static void what_is_lost_may_be_sent_again_alone(end_t *e)
{
    enum { MESSAGES = 8, BYTES = 1 << 20 };
    end_meet(e);
    buffer_t out = buffer_new(e, MESSAGES * BYTES, false, 0);
    buffer_t in = buffer_new(e, MESSAGES * BYTES, false, 0);
    uint64_t again[2], lost[2];
    for (uint32_t i = 0; i < 2; i++) {
        end_barrier(e);
        ib_order(i == 0 ? "lose_packet=20" : "selective=1");
        end_barrier(e);
        const uint64_t before = ib_count("resent"), gone = ib_count("lost");
        for (uint32_t round = 0; round < 4; round++)
            (void)ib_exchange(e, &out, &in, MESSAGES, BYTES);
        again[i] = ib_count("resent") - before;
        lost[i] = ib_count("lost") - gone;
        CHECK(lost[i] > 20, "%llu lost", (unsigned long long)lost[i]);
    }
    CHECK(again[1] <= 2 * lost[1] + 8 && again[1] < again[0], "%llu of %llu, %llu of %llu",
          (unsigned long long)again[1], (unsigned long long)lost[1], (unsigned long long)again[0],
          (unsigned long long)lost[0]);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
    ib_order("lose_packet=0 loss=250 reorder=1"); /* likewise where answers are, too */
    for (uint32_t round = 0; round < 4; round++)
        (void)ib_exchange(e, &out, &in, MESSAGES, BYTES);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

/* The stand-in's own: a write that meets no receive work request is counted, wherever facts say that
 * none did. It is tried again, and comes. */
static void a_write_that_meets_no_request_is_counted(end_t *e)
{
    enum { REFUSED = 5, MESSAGES = 16, BYTES = 100000 };
    end_meet(e);
    buffer_t out = buffer_new(e, MESSAGES * BYTES, false, 0);
    buffer_t in = buffer_new(e, MESSAGES * BYTES, false, 0);
    (void)ib_exchange(e, &out, &in, MESSAGES, BYTES);
    CHECK(ib_count("rnr") == 0);
    end_barrier(e);
    if (e->side == 1) ib_order("not_ready=5");
    (void)ib_exchange(e, &out, &in, MESSAGES, BYTES);
    CHECK(ib_count("rnr") == (e->side == 1 ? REFUSED : 0), "%llu",
          (unsigned long long)ib_count("rnr"));
    end_barrier(e);
}

/* The stand-in's own: no more comes than a line with a rate carries, over however many queue pairs. */
static void a_line_with_a_rate_is_borne(end_t *e)
{
    enum { MESSAGES = 8, BYTES = 1 << 18, RATE = 20000000 };
    end_meet(e);
    buffer_t out = buffer_new(e, MESSAGES * BYTES, false, 0);
    buffer_t in = buffer_new(e, MESSAGES * BYTES, false, 0);
    end_barrier(e);
    ib_order("rate=20000000");
    const uint64_t begin = check_now_ns();
    (void)ib_exchange(e, &out, &in, MESSAGES, BYTES);
    const double took_s = (double)(check_now_ns() - begin) * 1e-9;
    CHECK(took_s > 0.9 * MESSAGES * BYTES / RATE, "%.3f s", took_s);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

static void late_packets_and_completions_in_any_order_are_borne(end_t *e)
{
    ib_order("delay_us=1000 reorder=1");
    messages_of_a_direction_keep_their_order(e);
    CHECK(ib_count("delayed") > 0);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
}

static void all_of_it_at_once_is_borne(end_t *e)
{
    ib_order("loss=1000 delay_us=200 reorder=1");
    messages_of_a_direction_keep_their_order(e);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
}

static void a_changing_fabric_is_borne(end_t *e)
{
    ib_random_messages(e, LH_SECURITY_PLAIN, 1, 1000000);
}

/* Likewise over cards that send what is lost alone. */
static void a_changing_fabric_of_selective_cards_is_borne(end_t *e)
{
    ib_order("selective=1");
    ib_random_messages(e, LH_SECURITY_PLAIN, 1, 50000);
}

static void sizes_arrive_over_several_queue_pairs(end_t *e)
{
    ib_order("reorder=1");
    sizes_arrive(e);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
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
        CHECK(ib_count("rnr") == 0);
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

/* Of 256 messages two queue pairs have credits for 252. */
static void ends_that_both_do_not_poll_keep_their_requests(end_t *e)
{
    ib_rest(e, LH_SECURITY_PLAIN, IB_DEPTH, 8, 32);
}

/* Side 1 has as many receives out as there may be, and posts another as soon as one has ended. Side 0
 * does not know yet that it has: its caller has no room for events. */
static void a_receive_posted_before_its_sender_is_told_is_granted(end_t *e)
{
    lh_wire_event_t none;
    uint32_t count = 0;
    end_meet(e);
    buffer_t b = buffer_new(e, (IB_DEPTH + 1) * 8, false, 0);
    if (e->side == 1) {
        for (uint32_t i = 0; i < IB_DEPTH; i++)
            end_receive(e, &b, i * 8, 8, i, i);
        end_poll(e);
    }
    end_barrier(e);
    if (e->side == 0) {
        end_send(e, &b, 0, 8, 0, 0);
    } else {
        (void)end_await(e, LH_WIRE_RECEIVED, 0);
        end_receive(e, &b, IB_DEPTH * 8, 8, IB_DEPTH, IB_DEPTH);
        /* Of one beside so many that are not used it tells as it goes to sleep. */
        (void)e->api->arm(e->transport);
    }
    const uint64_t until = check_now_ns() + 300000000;
    while (check_now_ns() < until)
        CHECK(e->api->poll(e->transport, &none, sizeof(none), 0, &count) == LH_OK);
    end_barrier(e);
    for (uint32_t i = 1; i <= IB_DEPTH; i++) {
        if (e->side == 0) end_send(e, &b, i * 8, 8, i, i);
        (void)end_await(e, e->side == 0 ? LH_WIRE_SENT : LH_WIRE_RECEIVED, i);
    }
    end_barrier(e);
}

/* A ping-pong beside 24 receives that are posted ahead, one more for each that is used: eight of them are told
 * of at a time, by two writes of a packet each. One by one that would be three packets a message. */
static void receives_are_told_of_in_groups(end_t *e)
{
    enum { AHEAD = 24, GROUP = 8, ROUNDS = 400, BYTES = 8, WRITES = 3 };
    end_meet(e);
    buffer_t b = buffer_new(e, 2 * (uint64_t)BYTES, false, 0);
    for (uint32_t i = 0; i < AHEAD; i++)
        end_receive(e, &b, 0, BYTES, 1, 1);
    end_poll(e);
    end_barrier(e);
    const uint64_t before = ib_count("packets"), again = ib_count("resent");
    for (uint32_t i = 0; i < ROUNDS; i++) {
        if (e->side == 1) (void)end_await(e, LH_WIRE_RECEIVED, 1);
        end_send(e, &b, BYTES, BYTES, 1, 2);
        if (e->side == 0) (void)end_await(e, LH_WIRE_RECEIVED, 1);
        (void)end_await(e, LH_WIRE_SENT, 2);
        end_receive(e, &b, 0, BYTES, 1, 1);
    }
    const uint64_t packets = ib_count("packets") - before - (ib_count("resent") - again);
    CHECK(packets <= ROUNDS + WRITES * (ROUNDS / GROUP) + ROUNDS / 10,
          "%llu packets for %u messages", (unsigned long long)packets, (uint32_t)ROUNDS);
    end_barrier(e);
}

/* Who does not poll for a while tells of none meanwhile, however many the peer uses. */
static void who_goes_to_sleep_has_told_of_all_receives(end_t *e)
{
    enum { AHEAD = 24, MORE = 4, ALL = AHEAD + MORE };
    char word;
    end_meet(e);
    buffer_t b = buffer_new(e, (uint64_t)ALL * 8, false, 0);
    for (uint32_t i = 0; e->side == 1 && i < ALL; i++) {
        end_receive(e, &b, i * 8, 8, i, i);
        if (i + 1 == AHEAD) end_poll(e);
    }
    if (e->side == 1)
        while (e->api->arm(e->transport) != LH_OK)
            end_poll(e);
    end_barrier(e);
    for (uint32_t i = 0; e->side == 0 && i < ALL; i++) {
        buffer_fill(b.data + i * 8, 8, i);
        end_send(e, &b, i * 8, 8, i, i);
    }
    for (uint32_t i = 0; e->side == 0 && i < ALL; i++)
        (void)end_await(e, LH_WIRE_SENT, i);
    if (e->side == 0)
        end_tell(e, "", 1);
    else
        CHECK(read(e->channel, &word, 1) == 1);
    for (uint32_t i = 0; e->side == 1 && i < ALL; i++) {
        (void)end_await(e, LH_WIRE_RECEIVED, i);
        buffer_check(b.data + i * 8, 8, i);
    }
    end_barrier(e);
}

/* ---- ends ---- */

static void a_cut_ends_both_as_lost(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 200000, false, 0);
    end_barrier(e);
    ib_order("mute=1");
    for (uint32_t i = 0; i < 3; i++) {
        end_receive(e, &b, 0, 1000, 1, 100 + i);
        end_send(e, &b, 0, 1000, 1, 200 + i);
    }
    ib_expect_end(e, LH_PEER_LOST, "does not answer");
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
        ib_order("post_fails=1");
        end_receive(e, &b, 0, 1000, 1, 1);
    }
    ib_expect_end(e, e->side == 0 ? LH_IO : LH_PEER_LOST,
                  e->side == 0 ? "takes no more" : "rank 0");
    end_barrier(e);
}

/* Whatever the peer does, whose process stands still: packets are lost, or a queue pair is about to be
 * replaced. */
static void a_cancel_waits_for_nobody(end_t *e)
{
    static const char *const orders[] = {"mute=1", "fail_one=1 mute=1", "fail_one=1"};
    enum { ORDERS = sizeof(orders) / sizeof(orders[0]), BYTES = 8 << 20 };
    buffer_t b = buffer_new(e, 2 * (uint64_t)BYTES, false, 0);
    end_listen(e, LH_SECURITY_PLAIN);
    for (uint32_t i = 0; i < ORDERS; i++) {
        lh_wire_event_t event;
        char word;
        e->conn = end_join(e, LH_SERVICE_GRADIENT, RIG_CONN);
        (void)end_await(e, LH_WIRE_UP, RIG_CONN);
        end_receive(e, &b, 0, BYTES, 1, 1);
        end_poll(e);
        end_barrier(e);
        if (e->side == 0) {
            end_send(e, &b, BYTES, BYTES, 1, 2);
            for (int k = 0; k < 20; k++)
                end_poll(e);
            ib_order(orders[i]);
            for (int k = 0; k < 20; k++)
                end_poll(e);
            const uint64_t until = check_now_ns() + 100000000;
            e->api->cancel(e->conn);
            for (uint32_t polls = 1; !end_take(e, LH_WIRE_DRAINED, RIG_CONN, &event); polls++) {
                end_poll(e);
                /* A machine that ran something else meanwhile is no fault of the transport. */
                CHECK(check_now_ns() < until || polls < 100, "%s: not within 100 ms", orders[i]);
            }
            CHECK(check_now_ns() < until + 1000000000, "%s: it stood still", orders[i]);
            memset(b.data, 1, b.bytes); /* it is this end's again */
            ib_order("mute=0");
            end_tell(e, "", 1);
        } else { /* does nothing meanwhile */
            CHECK(read(e->channel, &word, 1) == 1);
            (void)end_await(e, LH_WIRE_DOWN, RIG_CONN);
            (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
        }
        e->api->close_conn(e->conn);
        e->event_count = 0;
        end_barrier(e);
    }
}

/* ---- queue pairs that are replaced ---- */

enum { REPLACED_MESSAGES = 8, REPLACED_BYTES = 1 << 20 };

/* `who` breaks queue pair `pair` of his while messages are under way both ways, several times. */
static void replaces(end_t *e, uint32_t who, uint32_t pairs, uint32_t security)
{
    const uint64_t all = (uint64_t)REPLACED_MESSAGES * REPLACED_BYTES;
    ib_meet(e, security);
    buffer_t out = buffer_new(e, all, false, 0), in = buffer_new(e, all, false, 0);
    for (uint32_t round = 1; round <= 4; round++) {
        char text[40];
        lh_wire_event_t event;
        end_barrier(e);
        (void)snprintf(text, sizeof(text), "fail_one=%u", round % pairs + 1);
        for (uint32_t i = 0; i < REPLACED_MESSAGES; i++) {
            end_receive(e, &in, i * (uint64_t)REPLACED_BYTES, REPLACED_BYTES, i, i);
            buffer_fill(out.data + i * REPLACED_BYTES, REPLACED_BYTES, i + 100 * e->side + round);
            end_send(e, &out, i * (uint64_t)REPLACED_BYTES, REPLACED_BYTES, i, i);
        }
        for (int i = 0; i < 3; i++)
            end_poll(e);
        if (e->side == who) ib_order(text);
        const uint64_t begin = ib_ran_ns(e);
        for (uint32_t i = 0; i < REPLACED_MESSAGES; i++) {
            (void)end_await(e, LH_WIRE_SENT, i);
            (void)end_await(e, LH_WIRE_RECEIVED, i);
        }
        CHECK(ib_ran_ns(e) - begin < 2000000000);
        for (uint32_t i = 0; i < REPLACED_MESSAGES; i++)
            buffer_check(in.data + i * REPLACED_BYTES, REPLACED_BYTES,
                         i + 100 * (1 - e->side) + round);
        if (e->side == who) CHECK(end_await(e, LH_WIRE_DEGRADED, RIG_CONN).status == LH_PEER_LOST);
        while (!end_take(e, LH_WIRE_DEGRADED, RIG_CONN, &event) || event.status != LH_OK)
            end_poll(e);
        end_barrier(e);
    }
    CHECK(check_host_metric("rdma.replaced") >= 4);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

static void a_queue_pair_that_fails_where_it_was_dialed_is_replaced(end_t *e)
{
    replaces(e, 0, 1, LH_SECURITY_PLAIN);
}

static void a_queue_pair_that_fails_where_it_was_taken_is_replaced(end_t *e)
{
    replaces(e, 1, 1, LH_SECURITY_PLAIN);
}

static void one_of_several_is_replaced_with_its_proof(end_t *e)
{
    replaces(e, 0, 3, LH_SECURITY_KNOWN);
}

/* ---- cuts ---- */

/* So short an ACK timeout that the card gives up within the cut. */
static void a_blackout_of_100_ms_costs_no_more_than_half_a_second(end_t *e)
{
    end_meet(e);
    buffer_t out = buffer_new(e, 1 << 20, false, 0), in = buffer_new(e, 1 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 4, 1 << 18);
    end_barrier(e);
    ib_order("mute=1");
    const uint64_t begin = ib_ran_ns(e), until = check_now_ns() + 100000000;
    for (uint32_t i = 0; i < 4; i++) {
        end_receive(e, &in, i << 18, 1 << 18, i, i);
        end_send(e, &out, i << 18, 1 << 18, i, i);
    }
    while (check_now_ns() < until)
        end_poll(e);
    ib_order("mute=0");
    for (uint32_t i = 0; i < 4; i++) {
        (void)end_await(e, LH_WIRE_SENT, i);
        (void)end_await(e, LH_WIRE_RECEIVED, i);
    }
    const double took_ms = (double)(ib_ran_ns(e) - begin) / 1e6;
    (void)fprintf(stderr, "    %.0f ms with the cut of 100 ms\n", took_ms);
    CHECK(took_ms < 600, "%.0f ms", took_ms);
    end_barrier(e);
}

static void a_dead_path_is_seen_on_an_idle_link(end_t *e)
{
    end_meet(e);
    end_barrier(e);
    const uint64_t begin = check_now_ns();
    ib_order("mute=1");
    ib_expect_end(e, LH_PEER_LOST, "does not answer");
    CHECK(check_now_ns() - begin < 15000000000); /* some four seconds */
    end_barrier(e);
}

static double processor_s(void)
{
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

/* The thread of the stand-in, which a card would not need, counts with it. */
static void who_waits_on_an_idle_link_takes_no_processor(end_t *e)
{
    struct pollfd sleeper = {.events = POLLIN};
    end_meet(e);
    end_barrier(e);
    CHECK(e->api->wait_fd(e->transport, &sleeper.fd) == LH_OK);
    const uint64_t begin = check_now_ns();
    const double before = processor_s();
    while (check_now_ns() < begin + 2000000000) {
        if (e->api->arm(e->transport) == LH_OK) (void)poll(&sleeper, 1, 500);
        end_poll(e);
    }
    const double share = (processor_s() - before) * 1e9 / (double)(check_now_ns() - begin);
    CHECK(share <= 0.01, "%.2f %% of a core", 100 * share);
    end_barrier(e);
}

/* ---- known ---- */

static void both_ends_prove_the_key(end_t *e)
{
    ib_meet(e, LH_SECURITY_KNOWN);
    buffer_t out = buffer_new(e, 1 << 20, false, 0), in = buffer_new(e, 1 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 4, 1 << 18);
    CHECK(check_host_metric("ib.strangers") == 0);
    end_barrier(e);
}

/* Before side 1 accepts anybody, as a rank that is the last to be ready. */
static void all_that_dial_at_once_come_in(end_t *e)
{
    enum { CONNECTIONS = 100, FIRST = 100 };
    lh_hello_t hello;
    lh_conn_t *conn;
    lh_wire_event_t down = {.reason = ""};
    end_listen(e, LH_SECURITY_KNOWN);
    for (uint32_t i = 0; e->side == 0 && i < CONNECTIONS; i++) {
        lh_conn_params_t params = end_params(e, LH_SERVICE_BULK, FIRST + i);
        params.security = LH_SECURITY_KNOWN;
        params.hello.serial = i;
        (void)end_dial(e, &params);
    }
    for (const uint64_t until = check_now_ns() + 1000000000; check_now_ns() < until;)
        end_poll(e);
    end_barrier(e);
    for (uint32_t i = 0; e->side == 1 && i < CONNECTIONS; i++) {
        const uint64_t until = check_now_ns() + 20000000000ull;
        while (e->api->accept(e->listener, &hello, &conn) != LH_OK) {
            CHECK(check_now_ns() < until, "%u of %u came", i, (uint32_t)CONNECTIONS);
            end_poll(e);
        }
        lh_conn_params_t params = end_params(e, LH_SERVICE_BULK, FIRST + hello.serial);
        params.security = LH_SECURITY_KNOWN;
        params.hello = hello;
        CHECK(e->api->admit(conn, &params) == LH_OK);
    }
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        CHECK(!end_take(e, LH_WIRE_DOWN, FIRST + i, &down), "%s", down.reason);
        (void)end_await(e, LH_WIRE_UP, FIRST + i);
    }
    end_barrier(e);
}

/* Side 1's part where side 0 dials in vain: it is counted and never given out. Until side 0 says that its
 * connection has ended. */
static void turn_away_one(end_t *e)
{
    lh_hello_t hello;
    lh_conn_t *conn;
    char word;
    const uint64_t until = check_now_ns() + 20000000000ull;
    while (check_host_metric("ib.strangers") < 1) {
        CHECK(check_now_ns() < until);
        CHECK(e->api->accept(e->listener, &hello, &conn) == LH_AGAIN);
    }
    end_hear(e, &word, 1);
}

/* Side 0 dials with what must not do; side 1 has a listener that asks for proof. */
static void expect_denied(end_t *e, uint32_t level, const char *change, const char *words)
{
    lh_conn_t *conn;
    end_listen(e, LH_SECURITY_KNOWN);
    if (e->side == 0) {
        lh_conn_params_t params = end_params(e, 1, RIG_CONN);
        params.security = level;
        if (change != NULL) ib_order(change);
        CHECK(e->api->connect(e->transport, &e->address, &params, &conn) == LH_OK);
        ib_expect_end(e, LH_DENIED, words);
        end_tell(e, "", 1);
    } else {
        turn_away_one(e);
    }
    end_barrier(e);
}

static void another_level_is_denied(end_t *e)
{
    expect_denied(e, LH_SECURITY_PLAIN, NULL, "another level of security");
}

/* The nonce that it asks with is another than the one that it proves. */
static void a_proof_that_is_wrong_is_denied(end_t *e)
{
    expect_denied(e, LH_SECURITY_KNOWN, "private_byte=1", "does not believe");
}

static void an_answer_that_is_not_proven_is_denied(end_t *e)
{
    end_listen(e, LH_SECURITY_KNOWN);
    if (e->side == 1) ib_order("private_byte=1");
    e->conn = end_join_at(e, LH_SERVICE_GRADIENT, RIG_CONN, LH_SECURITY_KNOWN);
    if (e->side == 0) ib_expect_end(e, LH_DENIED, "could not prove");
    if (e->side == 1) (void)end_await(e, LH_WIRE_DOWN, RIG_CONN);
    end_barrier(e);
}

static void what_it_cannot_seal_is_refused(end_t *e)
{
    lh_address_t address;
    lh_listener_t *l;
    CHECK(e->api->listen(e->transport, 0, LH_SECURITY_PROVEN, &address, &l) == LH_UNSUPPORTED);
    CHECK(strstr(check_host_reason(), "offers plain") != NULL &&
          strstr(check_host_reason(), "known") != NULL);
}

static void a_window_without_requests_is_refused(end_t *e)
{
    lh_conn_t *conn;
    end_listen(e, LH_SECURITY_PLAIN);
    const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
    if (e->side == 0) {
        CHECK(e->api->connect(e->transport, &e->address, &params, &conn) == LH_INVALID);
        CHECK(strstr(check_host_reason(), "have room for 8257536") != NULL, "%s",
              check_host_reason());
    }
    end_barrier(e);
}

static void queue_pairs_without_a_completion_queue_are_refused(end_t *e)
{
    lh_conn_t *conn;
    end_listen(e, LH_SECURITY_PLAIN);
    const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
    if (e->side == 0) {
        ib_order("cqe_most=1000");
        CHECK(e->api->connect(e->transport, &e->address, &params, &conn) == LH_IO);
        CHECK(strstr(check_host_reason(), "fake0 can't make a completion queue of 8192 entries, "
                                          "which 16 queue pairs need") != NULL &&
                  strstr(check_host_reason(), "; one of that card has 1000 at most") != NULL,
              "%s", check_host_reason());
    }
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
        ib_order(change);
        end_send(e, &b, 0, 5000, 3, 1);
    }
    ib_expect_end(e, LH_CORRUPT, words);
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
        ib_order("immediate=0x20000000"); /* the first of several says that it is the last */
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
    end_barrier(e);
    buffer_t b = buffer_new(e, 5000, false, 0);
    if (e->side == 0) {
        ib_order("immediate=0x0000fff0");
        end_receive(e, &b, 0, 5000, 3, 1);
    }
    ib_expect_end(e, LH_CORRUPT, "can't have");
    end_barrier(e);
}

static void a_stranger_is_turned_away_and_counted(end_t *e)
{
    lh_conn_t *conn;
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
        lh_address_t wrong = e->address;
        wrong.bytes[4] ^= 1; /* the listener's token */
        CHECK(e->api->connect(e->transport, &wrong, &params, &conn) == LH_OK);
        ib_expect_end(e, LH_UNREACHABLE, "not this job");
        e->api->close_conn(conn);
        end_tell(e, "", 1);
    } else {
        turn_away_one(e);
    }
    end_barrier(e);
    e->conn = end_join(e, LH_SERVICE_BULK, RIG_CONN);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    end_barrier(e);
}

/* ---- ends that don't fit together ---- */

/* Side 0 reads in the address of side 1 what `at` and `change` make of it. */
static void expect_misfit(end_t *e, uint32_t at, uint8_t change, lh_status_t why, const char *words)
{
    lh_conn_t *conn;
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
        lh_address_t other = e->address;
        other.bytes[at] ^= change;
        CHECK(e->api->connect(e->transport, &other, &params, &conn) == why);
        CHECK(strstr(check_host_reason(), words) != NULL, "%s", check_host_reason());
    }
    end_barrier(e);
}

static void ports_that_differ_are_refused(end_t *e)
{
    expect_misfit(e, 10, 3, LH_UNSUPPORTED,
                  "rank 1's port is InfiniBand with an MTU of 4096 bytes, that of fake0 here "
                  "Ethernet (RoCE) with 4096; expected the same");
}

static void mtus_that_differ_are_refused(end_t *e)
{
    expect_misfit(e, 12, 6, LH_UNSUPPORTED,
                  "rank 1's port is Ethernet (RoCE) with an MTU of 1024 bytes");
}

static void another_version_is_refused(end_t *e)
{
    expect_misfit(e, 3, 7, LH_ABI, "rank 1 has another version of this transport");
}

static void a_path_with_a_smaller_mtu_is_named(end_t *e)
{
    end_listen(e, LH_SECURITY_PLAIN);
    ib_order("mtu_hole=2000");
    e->conn = end_join(e, LH_SERVICE_GRADIENT, RIG_CONN);
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == LH_UNREACHABLE || down.status == LH_PEER_LOST, "status %d", down.status);
    /* Both find it, and the first of them ends the connection: the other may hear of that alone. */
    char words[128];
    bool other;
    (void)snprintf(words, sizeof(words),
                   "packets of 4096 bytes don't come through to rank %u, though smaller ones did",
                   1 - e->side);
    const bool named = strstr(down.reason, words) != NULL;
    end_tell(e, &named, sizeof(named));
    end_hear(e, &other, sizeof(other));
    CHECK(named || other, "%s", down.reason);
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
    ib_order("no_device=1");
    expect_refusal(e, "this machine has no RDMA device");
    ib_order("no_device=0 port_down=1");
    expect_refusal(e, "port 1 of fake0 is down");
    ib_order("port_down=0 no_memory=1");
    CHECK(e->api->register_memory(e->transport, 0, &arena, &region) == LH_IO);
    CHECK(strstr(check_host_reason(), "registering 64 bytes with fake0") != NULL);
    ib_order("no_memory=0");
    memcpy(&kept, e->config, sizeof(kept)); /* device comes first */
    char *name = other;
    memcpy(e->config, &name, sizeof(name));
    expect_refusal(e, "belongs to the RDMA device mlx5_7 (RDMA devices here: fake0, fake1)");
    memcpy(e->config, &kept, sizeof(kept));
}

static void nothing_stays_behind_a_close(end_t *e)
{
    lh_transport_t *own = e->transport;
    const uint32_t before = fact_open_files();
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK);
    end_meet(e);
    buffer_t b = buffer_new(e, 1 << 20, false, 0);
    end_receive(e, &b, 0, 1 << 19, 1, 1);
    end_barrier(e);
    e->api->close(e->transport);
    (void)munmap(b.data, b.bytes);
    e->transport = own;
    CHECK(fact_open_files() == before, "%u files more", fact_open_files() - before);
    end_barrier(e);
}

int main(int argc, char **argv)
{
    static const char *const many[] = {"queue_pairs=4", "chunk=64KiB", NULL};
    static const char *const short_patience[] = {"ack_timeout=12", NULL};
    static const char *const wide[] = {"queue_pairs=16", "chunk=64KiB", "window=256KiB", NULL};
    static const char *const three[] = {"queue_pairs=3", "chunk=64KiB", NULL};
    static const char *const impatient[] = {"ack_timeout=10", NULL};
    static const char *const narrow[] = {"queue_pairs=1", "chunk=64KiB", "window=16MiB", NULL};
    static const char *const two[] = {"queue_pairs=2", "chunk=64KiB", NULL};
    static const fact_t facts[] = {
#define FACT(name, settings) {#name, name, false, settings}
        FACT(lost_packets_are_sent_again, many),
        FACT(lost_answers_are_given_again, many),
        FACT(lost_immediates_are_sent_again, many),
        FACT(every_so_manieth_packet_may_be_lost, many),
        FACT(what_is_lost_may_be_sent_again_alone, many),
        FACT(a_write_that_meets_no_request_is_counted, many),
        FACT(a_line_with_a_rate_is_borne, many),
        FACT(late_packets_and_completions_in_any_order_are_borne, many),
        FACT(all_of_it_at_once_is_borne, many),
        FACT(sizes_arrive_over_several_queue_pairs, wide),
        FACT(a_changing_fabric_is_borne, many),
        FACT(a_changing_fabric_of_selective_cards_is_borne, many),
        FACT(a_peer_that_does_not_poll_keeps_its_requests, NULL),
        FACT(ends_that_both_do_not_poll_keep_their_requests, two),
        FACT(a_receive_posted_before_its_sender_is_told_is_granted, NULL),
        FACT(receives_are_told_of_in_groups, NULL),
        FACT(who_goes_to_sleep_has_told_of_all_receives, NULL),
        FACT(a_cut_ends_both_as_lost, short_patience),
        FACT(a_post_that_fails_ends_both, NULL),
        FACT(a_cancel_waits_for_nobody, many),
        FACT(a_queue_pair_that_fails_where_it_was_dialed_is_replaced, NULL),
        FACT(a_queue_pair_that_fails_where_it_was_taken_is_replaced, NULL),
        FACT(one_of_several_is_replaced_with_its_proof, three),
        FACT(a_blackout_of_100_ms_costs_no_more_than_half_a_second, impatient),
        FACT(a_dead_path_is_seen_on_an_idle_link, short_patience),
        FACT(who_waits_on_an_idle_link_takes_no_processor, NULL),
        FACT(both_ends_prove_the_key, three),
        FACT(all_that_dial_at_once_come_in, NULL),
        FACT(another_level_is_denied, NULL),
        FACT(a_proof_that_is_wrong_is_denied, NULL),
        FACT(an_answer_that_is_not_proven_is_denied, NULL),
        FACT(what_it_cannot_seal_is_refused, NULL),
        FACT(a_window_without_requests_is_refused, narrow),
        FACT(queue_pairs_without_a_completion_queue_are_refused, wide),
        FACT(an_immediate_of_no_meaning_is_corrupt, NULL),
        FACT(a_chunk_of_no_receive_is_corrupt, NULL),
        FACT(a_chunk_behind_the_last_is_corrupt, two),
        FACT(grants_that_nobody_gave_are_corrupt, NULL),
        FACT(a_stranger_is_turned_away_and_counted, NULL),
        FACT(ports_that_differ_are_refused, NULL),
        FACT(mtus_that_differ_are_refused, NULL),
        FACT(another_version_is_refused, NULL),
        FACT(a_path_with_a_smaller_mtu_is_named, impatient),
        FACT(what_is_missing_is_said_in_one_sentence, NULL),
        FACT(nothing_stays_behind_a_close, two),
    };
    (void)setenv("FAKE_VERBS", "devices=2", 1); /* of which one is used */
    ib_facts_begin();
    return fact_main("ib", facts, sizeof(facts) / sizeof(facts[0]), argc > 1 ? argv[1] : NULL);
}
