/* Sends from the caller's own pages, over the loopback, where the kernel copies them after all but says
 * when it has let go of them as it does elsewhere. What is told only when a peer has acknowledged is
 * tcp_link_test.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp_kit.h"

#include <tcp_zero.h>

#include <cmocka.h>

enum { MESSAGES = 30, MOST = 700000 };
static uint8_t out[MOST];
static uint64_t seed = 20261129;

static uint32_t next_random(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

/* ---- numbers of sends ---- */

static lh_conn_t conn;
static stream_t stream;

/* The kernel holds four sends, of messages 5, 5, 6 and 7, of which all else has left; the first has this
 * number. */
static void hold(uint32_t first)
{
    static const uint32_t message[] = {5, 5, 6, 7};
    memset(&conn, 0, sizeof(conn));
    memset(&stream, 0, sizeof(stream));
    conn.state = CONN_UP;
    stream.conn = &conn;
    stream.zero.first = stream.zero.next = first;
    for (uint32_t i = 0; i < 4; i++) {
        stream.zero.sends[stream.zero.next++ % ZERO_SENDS] = (zero_send_t){message[i], true};
        conn.sends[message[i]].frames++;
    }
}

static void done_are(bool five, bool six, bool seven)
{
    assert_int_equal(conn.sends[5].done, five);
    assert_int_equal(conn.sends[6].done, six);
    assert_int_equal(conn.sends[7].done, seven);
}

static void a_message_is_done_with_the_last_of_its_sends_also_where_numbers_wrap(void **state)
{
    (void)state;
    static const uint32_t firsts[] = {0, 1000, UINT32_MAX - 3, UINT32_MAX - 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++) {
        const uint32_t first = firsts[i];
        hold(first);
        zero_release(&stream, first, first);
        done_are(false, false, false);
        zero_release(&stream, first + 1, first + 3);
        done_are(true, true, true);
        assert_false(zero_holds(&stream));
        assert_int_equal(stream.zero.first, (uint32_t)(first + 4));
        hold(first); /* in another order, and told twice */
        zero_release(&stream, first + 2, first + 3);
        zero_release(&stream, first + 2, first + 2);
        done_are(false, true, true);
        assert_true(zero_holds(&stream));
        zero_release(&stream, first, first + 1);
        done_are(true, true, true);
        assert_false(zero_holds(&stream));
    }
}

static void numbers_that_are_not_held_say_nothing(void **state)
{
    (void)state;
    hold(UINT32_MAX - 1);
    zero_release(&stream, 2, 1000);
    zero_release(&stream, UINT32_MAX - 10, UINT32_MAX - 2);
    done_are(false, false, false);
    assert_int_equal(stream.zero.first, UINT32_MAX - 1);
    /* Of a connection that has broken no message is done. */
    conn.state = CONN_BROKEN;
    zero_release(&stream, UINT32_MAX - 1, 1);
    done_are(false, false, false);
    assert_false(zero_holds(&stream));
}

/* Its socket would be reset, and the word thrown away; but not longer than an end may take. */
static void an_end_that_was_sent_waits_for_the_pages_before_it(void **state)
{
    (void)state;
    static lh_transport_t transport;
    for (int turn = 0; turn < 2; turn++) {
        hold(0);
        transport.open_streams = 1;
        transport.now = 10;
        stream.transport = conn.transport = &transport;
        stream.state = STREAM_OPEN;
        stream.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(stream.fd >= 0);
        conn.streams[0] = conn.end_by = &stream;
        conn.stream_count = 1;
        conn.state = CONN_ENDING;
        conn.end_deadline = 20;
        (void)conn_push(&conn);
        assert_int_equal(conn.state, CONN_ENDING);
        if (turn == 0)
            zero_release(&stream, 0, 3);
        else
            transport.now = 20;
        (void)conn_push(&conn);
        assert_int_equal(conn.state, CONN_BROKEN);
        assert_int_equal(stream_let_go(&stream, false), turn == 0);
        assert_true(stream_let_go(&stream, true));
    }
}

/* ---- messages ---- */

/* A kernel before 4.14, or what stands for one, has none. */
static bool kernel_has_it(void)
{
    const int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool has = setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
    (void)close(fd);
    if (!has) print_message("this kernel has no MSG_ZEROCOPY\n");
    return has;
}

/* Between sites no end sends so by itself; but a peer that was told to may wait for its pages. */
static void frames_of_the_peer_are_acknowledged_whatever_this_end_does(void **state)
{
    (void)state;
    static lh_transport_t transport;
    static tcp_config_t config;
    const bool has = kernel_has_it();
    transport.config = &config;
    for (config.zero_copy = ZERO_AUTO; config.zero_copy <= ZERO_NO; config.zero_copy++) {
        hold(0);
        stream.transport = &transport;
        conn.link.scope = LH_LINK_WAN;
        stream.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(stream.fd >= 0);
        zero_begin(&stream);
        assert_true(stream.zero.peers);
        assert_int_equal(stream.zero.on, has && config.zero_copy == ZERO_YES);
        (void)close(stream.fd);
    }
}

static void open_pair(kit_end_t *a, kit_end_t *b, uint32_t security, uint64_t streams,
                      uint32_t zero_copy)
{
    memset(a, 0, sizeof(*a));
    memset(b, 0, sizeof(*b));
    a->host.key = b->host.key = 7;
    a->config.zero_copy = b->config.zero_copy = zero_copy;
    b->config.streams = streams;
    kit_open(a, 0);
    kit_open(b, 1);
    kit_join(a, b, security);
}

/* Both ways at once; each buffer is written anew as soon as its send is told. */
static void exchange(uint32_t security, uint64_t streams, uint32_t zero_copy, bool uses)
{
    static kit_end_t a, b;
    kit_end_t *const ends[2] = {&a, &b};
    uint32_t size[MESSAGES], posted[2] = {0, 0}, told[2] = {0, 0}, left[2] = {0, 0};
    uint8_t *in[2], *from[2];
    open_pair(&a, &b, security, streams, zero_copy);
    for (uint32_t i = 0; i < MESSAGES; i++)
        size[i] = next_random(i % 3 == 0 ? 3000 : MOST);
    for (int e = 0; e < 2; e++) {
        in[e] = calloc(MESSAGES, MOST);
        from[e] = malloc((size_t)MESSAGES * MOST);
        assert_true(in[e] != NULL && from[e] != NULL);
        for (uint32_t i = 0; i < MESSAGES; i++) {
            memcpy(from[e] + (size_t)i * MOST, out, size[i]);
            assert_int_equal(
                kit_api->isend(ends[e]->conn, NULL, from[e] + (size_t)i * MOST, size[i], i, i),
                LH_OK);
        }
    }
    const uint64_t end = kit_now() + KIT_PATIENCE_NS;
    while ((told[0] < MESSAGES || told[1] < MESSAGES || left[0] < MESSAGES || left[1] < MESSAGES) &&
           kit_now() < end)
        for (int e = 0; e < 2; e++) {
            kit_end_t *k = ends[e];
            if (posted[e] < MESSAGES && next_random(4) == 0) {
                const uint32_t i = posted[e]++;
                assert_int_equal(
                    kit_api->irecv(k->conn, NULL, in[e] + (size_t)i * MOST, MOST, i, i), LH_OK);
            }
            k->count = 0;
            kit_poll(k);
            for (uint32_t i = 0; i < k->count; i++) {
                const lh_wire_event_t *event = &k->events[i];
                assert_int_equal(event->status, LH_OK);
                if (event->type == LH_WIRE_SENT) {
                    assert_int_equal(event->cookie, left[e]);
                    memset(from[e] + (size_t)left[e] * MOST, 0xa5, size[left[e]]);
                    left[e]++;
                    continue;
                }
                assert_int_equal(event->type, LH_WIRE_RECEIVED);
                assert_int_equal(event->bytes, size[told[e]]);
                assert_memory_equal(in[e] + (size_t)told[e] * MOST, out, size[told[e]]);
                told[e]++;
            }
        }
    for (int e = 0; e < 2; e++) {
        assert_int_equal(told[e], MESSAGES);
        assert_int_equal(left[e], MESSAGES);
        assert_int_equal(ends[e]->host.zero_copies + ends[e]->host.copied > 0, uses);
        free(in[e]);
        free(from[e]);
    }
    kit_close(&a);
    kit_close(&b);
}

static void messages_leave_from_their_pages_and_arrive_whole(void **state)
{
    (void)state;
    if (!kernel_has_it()) skip();
    for (uint32_t security = LH_SECURITY_PLAIN; security <= LH_SECURITY_PROVEN; security++) {
        exchange(security, 1, KIT_ZERO_YES, true);
        exchange(security, 6, KIT_ZERO_YES, true); /* more than are read without epoll */
    }
}

/* By itself not over the loopback; and what is encrypted leaves from other memory. */
static void where_it_is_of_no_use_all_is_copied(void **state)
{
    (void)state;
    exchange(LH_SECURITY_PLAIN, 1, 0, false);
    exchange(LH_SECURITY_PLAIN, 1, KIT_ZERO_NO, false);
    exchange(LH_SECURITY_PRIVATE, 2, KIT_ZERO_YES, false);
}

/* After any number of polls; the memory is freed when it is the caller's. */
static void a_cancel_or_a_close_gives_every_buffer_back(void **state)
{
    (void)state;
    enum { TURNS = 24, EACH = 4 };
    static kit_end_t a, b;
    if (!kernel_has_it()) skip();
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint8_t *from[EACH], *to[EACH];
        open_pair(&a, &b, LH_SECURITY_PLAIN, turn % 2 == 0 ? 1 : 6, KIT_ZERO_YES);
        for (uint32_t i = 0; i < EACH; i++) {
            from[i] = malloc(MOST);
            to[i] = malloc(MOST);
            assert_true(from[i] != NULL && to[i] != NULL);
            memcpy(from[i], out, MOST);
            assert_int_equal(kit_api->irecv(a.conn, NULL, to[i], MOST, i, i), LH_OK);
            assert_int_equal(kit_api->isend(b.conn, NULL, from[i], MOST, i, i), LH_OK);
        }
        kit_poll(&a); /* tells of the receives */
        for (uint32_t polls = next_random(12); polls > 0; polls--) {
            kit_poll(&b);
            if (turn % 3 > 0) kit_poll(&a);
        }
        const bool closes = turn % 4 == 3;
        if (closes) {
            kit_close(&b);
        } else {
            const uint64_t start = kit_now();
            kit_api->cancel(b.conn);
            assert_non_null(kit_wait(&b, NULL, &b, LH_WIRE_DRAINED, 0, KIT_PATIENCE_MS));
            assert_true(kit_now() - start < 500000000u);
            uint32_t ended = 0;
            for (uint32_t i = 0; i < b.count; i++)
                ended += b.events[i].type == LH_WIRE_SENT;
            assert_int_equal(ended, EACH);
        }
        for (uint32_t i = 0; i < EACH; i++) {
            memset(from[i], 0xa5, MOST);
            free(from[i]);
        }
        /* What was told as received is what was sent. */
        assert_non_null(kit_wait(&a, NULL, &a, LH_WIRE_DRAINED, 0, KIT_PATIENCE_MS));
        for (uint32_t i = 0; i < a.count; i++)
            if (a.events[i].type == LH_WIRE_RECEIVED && a.events[i].status == LH_OK)
                assert_memory_equal(to[a.events[i].cookie], out, MOST);
        for (uint32_t i = 0; i < EACH; i++)
            free(to[i]);
        if (!closes) kit_close(&b);
        kit_close(&a);
    }
}

int main(void)
{
    if (kit_load() != 0) return 1;
    kit_fill(out, sizeof(out), 3);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_done_with_the_last_of_its_sends_also_where_numbers_wrap),
        cmocka_unit_test(numbers_that_are_not_held_say_nothing),
        cmocka_unit_test(an_end_that_was_sent_waits_for_the_pages_before_it),
        cmocka_unit_test(frames_of_the_peer_are_acknowledged_whatever_this_end_does),
        cmocka_unit_test(messages_leave_from_their_pages_and_arrive_whole),
        cmocka_unit_test(where_it_is_of_no_use_all_is_copied),
        cmocka_unit_test(a_cancel_or_a_close_gives_every_buffer_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
