/* Who may come in, and what a middleman can do: nothing that is not seen. */
#include "tcp_kit.h"
#include "tcp_relay.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <longhaul/crc32c.h>
#include <tcp_frame.h>

#include <cmocka.h>

enum { LARGE = 100000 };
static uint32_t threads; /* KIT_THREADS, of both ends */

static void open_both(kit_end_t *a, kit_end_t *b, uint32_t security)
{
    memset(a, 0, sizeof(*a));
    memset(b, 0, sizeof(*b));
    a->config.threads = b->config.threads = threads;
    a->host.key = b->host.key = 7;
    kit_open(a, 0);
    kit_open(b, 1);
    assert_int_equal(kit_api->listen(a->transport, 0, security, &a->address, &a->listener), LH_OK);
}

/* Until the stranger sees the end of its connection: seconds it took, or -1. */
static double until_closed(kit_end_t *a, int fd, double most)
{
    const uint64_t start = kit_now();
    uint8_t bytes[64];
    while ((double)(kit_now() - start) < most * 1e9) {
        kit_poll(a);
        const ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return (double)(kit_now() - start) / 1e9;
        assert_true(n < 0); /* it is told nothing */
        (void)poll(NULL, 0, 1);
    }
    return -1;
}

static void strangers_are_dropped_in_silence_and_counted(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static const char *const words[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\xff\xff",
                                        "\x16\x03\x03\x00\x05hello", "SSH-2.0-OpenSSH_9.2\r\n"};
    for (uint32_t security = 0; security <= LH_SECURITY_PRIVATE; security++) {
        open_both(&a, &b, security);
        double expected = 0;
        for (size_t i = 0; i < 4; i++) {
            uint8_t text[64] = {0};
            memcpy(text, words[i], i == 1 || i == 2 ? 5 : strlen(words[i]));
            const int fd = relay_dial(&a.address);
            assert_true(fd >= 0);
            assert_int_equal(send(fd, text, sizeof(text), 0), sizeof(text));
            assert_true(until_closed(&a, fd, 1) >= 0);
            (void)close(fd);
            assert_true(a.host.strangers == ++expected);
        }
        kit_join(&a, &b, security); /* and others are not disturbed */
        kit_close(&a);
        kit_close(&b);
    }
}

static void who_says_nothing_is_dropped_after_two_seconds(void **state)
{
    (void)state;
    static kit_end_t a, b;
    open_both(&a, &b, LH_SECURITY_PROVEN);
    const int silent = relay_dial(&a.address), slow = relay_dial(&a.address);
    assert_int_equal(send(slow, "\x16\x03", 2, 0), 2);
    const double seconds = until_closed(&a, silent, 4);
    assert_true(seconds > 1.5 && seconds < 2.6);
    assert_true(until_closed(&a, slow, 1) >= 0);
    (void)close(silent);
    (void)close(slow);
    kit_close(&a);
    kit_close(&b);
}

static void a_crowd_does_not_keep_a_rank_out(void **state)
{
    (void)state;
    static kit_end_t a, b;
    int crowd[200];
    open_both(&a, &b, LH_SECURITY_PLAIN);
    for (int i = 0; i < 200; i++) {
        crowd[i] = relay_dial(&a.address);
        assert_true(crowd[i] >= 0);
        if (i % 50 == 0) kit_poll(&a);
    }
    kit_join(&a, &b, LH_SECURITY_PLAIN);
    assert_true(a.host.strangers >= 200 - 64);
    for (int i = 0; i < 200; i++)
        (void)close(crowd[i]);
    kit_close(&a);
    kit_close(&b);
}

/* A listener keeps so many strangers and no more: of many ranks that dial at once it hangs up on
 * some in their handshake, which says nothing of their key. */
static void a_rank_that_a_crowd_pushes_out_comes_again(void **state)
{
    (void)state;
    enum { CROWD = 80, TIMES = 4 };
    static kit_end_t a, b;
    int crowd[CROWD];
    lh_hello_t hello;
    open_both(&a, &b, LH_SECURITY_PROVEN);
    lh_conn_params_t params = kit_params(&b, 0, LH_SECURITY_PROVEN);
    assert_int_equal(kit_api->connect(b.transport, &a.address, &params, &b.conn), LH_OK);
    for (int t = 0; t < TIMES; t++) {
        for (const uint64_t end = kit_now() + 80000000u; kit_now() < end; (void)poll(NULL, 0, 1))
            kit_poll(&b); /* dials, or is hung up on and dials again */
        kit_poll(&a);
        kit_poll(&a); /* takes it in: its handshake has begun */
        for (int i = 0; i < CROWD; i++) {
            crowd[i] = relay_dial(&a.address);
            assert_true(crowd[i] >= 0);
        }
        kit_poll(&a);
        kit_poll(&a);
        for (int i = 0; i < CROWD; i++)
            (void)close(crowd[i]);
    }
    const lh_wire_event_t *up = NULL;
    for (const uint64_t end = kit_now() + KIT_PATIENCE_NS; up == NULL && kit_now() < end;) {
        up = kit_wait(&a, &b, &b, LH_WIRE_UP, 0, 1);
        const lh_wire_event_t *down = kit_wait(NULL, NULL, &b, LH_WIRE_DOWN, 0, 0);
        if (down != NULL) fail_msg("%s", kit_reason(&b, down));
        if (kit_api->accept(a.listener, &hello, &a.conn) != LH_OK) continue;
        params = kit_params(&a, hello.rank, LH_SECURITY_PROVEN);
        assert_int_equal(kit_api->admit(a.conn, &params), LH_OK);
    }
    assert_non_null(up);
    kit_close(&a);
    kit_close(&b);
}

/* b dials with what `change` made of its parameters: why it went down. */
static const char *refusal(kit_end_t *a, kit_end_t *b, const lh_conn_params_t *params,
                           lh_status_t expected)
{
    lh_hello_t hello;
    lh_conn_t *c;
    b->count = 0;
    assert_int_equal(kit_api->connect(b->transport, &a->address, params, &b->conn), LH_OK);
    const lh_wire_event_t *down = NULL;
    for (int i = 0; i < 3000 && down == NULL; i++) {
        down = kit_wait(a, b, b, LH_WIRE_DOWN, 0, 1);
        assert_int_equal(kit_api->accept(a->listener, &hello, &c), LH_AGAIN);
    }
    assert_non_null(down);
    assert_int_equal(down->status, expected);
    return kit_reason(b, down);
}

static void another_job_epoch_or_rank_is_refused_with_a_sentence(void **state)
{
    (void)state;
    static kit_end_t a, b;
    for (uint32_t security = 0; security <= LH_SECURITY_PROVEN; security++) {
        open_both(&a, &b, security);
        lh_conn_params_t p = kit_params(&b, 0, security);
        p.hello.job++;
        assert_non_null(strstr(refusal(&a, &b, &p, LH_DENIED), "another job"));
        p = kit_params(&b, 0, security);
        p.hello.epoch--;
        assert_non_null(strstr(refusal(&a, &b, &p, LH_DENIED), "another epoch"));
        p = kit_params(&b, 0, security);
        if (security != LH_SECURITY_PLAIN) {
            p.hello.rank = 5; /* another than the key proves */
            assert_non_null(strstr(refusal(&a, &b, &p, LH_DENIED), "does not believe"));
        } else {
            p.peer = 4;
            assert_non_null(strstr(refusal(&a, &b, &p, LH_DENIED), "another rank"));
        }
        kit_close(&a);
        kit_close(&b);
    }
}

/* A control frame as it goes over a stream in plain. */
static void frame_send(int fd, uint8_t type, uint8_t *payload, uint32_t length)
{
    uint8_t bytes[HEAD_BYTES + HELLO_BYTES];
    frame_t f = {.type = type, .length = length};
    frame_set_crc(&f, lh_crc32c(0, payload, length));
    frame_write(&f, bytes);
    memcpy(bytes + HEAD_BYTES, payload, length);
    assert_int_equal(send(fd, bytes, HEAD_BYTES + length, MSG_NOSIGNAL), HEAD_BYTES + length);
}

/* A greeting that fits but for its version, or its magic: with a key, from who has not proven it. */
static void another_version_is_told_to_whom_the_job_could_be(void **state)
{
    (void)state;
    enum { MAGIC_AT = 0, VERSION_AT = 8, OTHER = 77 };
    static kit_end_t a, b;
    static const struct {
        uint32_t security, at;
        bool told;
    } rows[] = {{LH_SECURITY_PLAIN, VERSION_AT, true},
                {LH_SECURITY_PLAIN, MAGIC_AT, false},
                {LH_SECURITY_KNOWN, VERSION_AT, false},
                {LH_SECURITY_PRIVATE, VERSION_AT, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint8_t hello[HELLO_BYTES], answer[HEAD_BYTES + WELCOME_BYTES];
        open_both(&a, &b, rows[i].security);
        const greeting_t g = {.hello = kit_params(&b, 0, rows[i].security).hello,
                              .security = rows[i].security,
                              .streams = 1};
        greeting_write(&g, hello);
        const uint8_t version = hello[VERSION_AT];
        hello[rows[i].at] = OTHER;
        const int fd = relay_dial(&a.address);
        assert_true(fd >= 0);
        frame_send(fd, FRAME_HELLO, hello, HELLO_BYTES);
        if (rows[i].told) {
            frame_t f;
            welcome_t w;
            ssize_t n = -1;
            for (int turn = 0; turn < 1000 && n < 0; turn++) {
                kit_poll(&a);
                (void)poll(NULL, 0, 1);
                n = recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
            }
            assert_int_equal(n, sizeof(answer));
            assert_null(frame_read(answer, &f));
            assert_int_equal(f.type, FRAME_WELCOME);
            assert_null(welcome_read(answer + HEAD_BYTES, &w));
            assert_int_equal(w.answer, REFUSED_VERSION);
            assert_int_equal(w.streams, version);
            for (int at = 0; at < TOKEN_BYTES; at++)
                assert_int_equal(w.token[at], 0);
        }
        assert_true(until_closed(&a, fd, 1) >= 0); /* nothing else is said */
        assert_true(a.host.strangers == 1);
        (void)close(fd);
        kit_close(&a);
        kit_close(&b);
    }
}

/* The other end of that: a listener that speaks another version than the end that dials. */
static void who_dials_another_version_is_told_both(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static relay_t r;
    uint8_t hello[HEAD_BYTES + HELLO_BYTES], welcome[WELCOME_BYTES];
    char ours[32];
    open_both(&a, &b, LH_SECURITY_PLAIN);
    relay_open(&r, &a.address);
    const lh_conn_params_t p = kit_params(&b, 0, LH_SECURITY_PLAIN);
    assert_int_equal(kit_api->connect(b.transport, &r.own, &p, &b.conn), LH_OK);
    ssize_t n = -1;
    for (const uint64_t end = kit_now() + KIT_PATIENCE_NS; n < 0 && kit_now() < end;) {
        kit_poll(&b);
        if (r.near < 0) r.near = accept(r.listener, NULL, NULL);
        if (r.near >= 0) n = recv(r.near, hello, sizeof(hello), MSG_DONTWAIT);
    }
    assert_int_equal(n, sizeof(hello));
    const welcome_t w = {.answer = REFUSED_VERSION, .streams = 77};
    welcome_write(&w, welcome);
    frame_send(r.near, FRAME_WELCOME, welcome, WELCOME_BYTES);
    const lh_wire_event_t *down = kit_wait(&b, NULL, &b, LH_WIRE_DOWN, 0, KIT_PATIENCE_MS);
    assert_non_null(down);
    assert_int_equal(down->status, LH_ABI);
    (void)snprintf(ours, sizeof(ours), "ours of version %u;", hello[HEAD_BYTES + 8]);
    assert_non_null(strstr(kit_reason(&b, down), "rank 0 on lab refused the connection"));
    assert_non_null(strstr(kit_reason(&b, down), "of version 77, "));
    assert_non_null(strstr(kit_reason(&b, down), ours));
    relay_close(&r);
    kit_close(&a);
    kit_close(&b);
}

static void a_second_connection_of_the_same_name_is_refused(void **state)
{
    (void)state;
    static kit_end_t a, b;
    open_both(&a, &b, LH_SECURITY_PLAIN);
    kit_join(&a, &b, LH_SECURITY_PLAIN);
    lh_conn_t *first = b.conn;
    lh_conn_params_t p = kit_params(&b, 0, LH_SECURITY_PLAIN);
    assert_non_null(strstr(refusal(&a, &b, &p, LH_UNREACHABLE), "already"));
    uint8_t from = 5, to = 0;
    assert_int_equal(kit_api->irecv(a.conn, NULL, &to, 1, 1, 1), LH_OK);
    assert_int_equal(kit_api->isend(first, NULL, &from, 1, 1, 1), LH_OK);
    assert_non_null(kit_wait(&a, &b, &a, LH_WIRE_RECEIVED, 0, KIT_PATIENCE_MS));
    assert_int_equal(to, 5);
    kit_close(&a);
    kit_close(&b);
}

/* It has proven who it is, and that the other end closes says nothing against that. */
static void who_is_not_admitted_was_not_denied(void **state)
{
    (void)state;
    static kit_end_t a, b;
    lh_hello_t hello;
    lh_status_t status = LH_AGAIN;
    open_both(&a, &b, LH_SECURITY_PROVEN);
    const lh_conn_params_t p = kit_params(&b, 0, LH_SECURITY_PROVEN);
    assert_int_equal(kit_api->connect(b.transport, &a.address, &p, &b.conn), LH_OK);
    for (const uint64_t end = kit_now() + KIT_PATIENCE_NS; status != LH_OK && kit_now() < end;) {
        kit_poll(&b);
        kit_poll(&a);
        status = kit_api->accept(a.listener, &hello, &a.conn);
    }
    assert_int_equal(status, LH_OK);
    kit_api->close_conn(a.conn);
    a.conn = NULL;
    const lh_wire_event_t *down = kit_wait(&b, NULL, &b, LH_WIRE_DOWN, 0, KIT_PATIENCE_MS);
    assert_non_null(down);
    assert_int_equal(down->status, LH_UNREACHABLE);
    assert_non_null(strstr(kit_reason(&b, down), "refused the connection: it did not admit it"));
    kit_close(&a);
    kit_close(&b);
}

static void another_key_or_level_is_denied_with_a_sentence(void **state)
{
    (void)state;
    static kit_end_t a, b;
    for (uint32_t mine = 0; mine <= LH_SECURITY_PRIVATE; mine++)
        for (uint32_t its = 0; its <= LH_SECURITY_PRIVATE; its++) {
            if (mine == 0 && its == 0) continue;
            open_both(&a, &b, its);
            if (mine == its) b.host.key = 8;
            const lh_conn_params_t p = kit_params(&b, 0, mine);
            const char *why = refusal(&a, &b, &p, LH_DENIED);
            assert_non_null(strstr(why, "rank 0 on lab"));
            assert_non_null(mine == its ? strstr(why, "another key") : strstr(why, "security"));
            if (mine == its || mine == 0 || its == 0) assert_true(a.host.strangers >= 1);
            kit_close(&a);
            kit_close(&b);
        }
}

static void without_a_secret_only_plain_is_possible(void **state)
{
    (void)state;
    static kit_end_t a, b;
    open_both(&a, &b, LH_SECURITY_PLAIN);
    a.host.key = b.host.key = 0;
    lh_address_t address;
    lh_listener_t *listener;
    const lh_conn_params_t p = kit_params(&b, 0, LH_SECURITY_PROVEN);
    assert_int_equal(kit_api->listen(a.transport, 0, LH_SECURITY_PRIVATE, &address, &listener),
                     LH_UNSUPPORTED);
    assert_int_equal(kit_api->connect(b.transport, &a.address, &p, &b.conn), LH_UNSUPPORTED);
    kit_close(&a);
    kit_close(&b);
}

static void a_dead_port_is_given_up_after_dial_ns(void **state)
{
    (void)state;
    static kit_end_t a, b;
    open_both(&a, &b, LH_SECURITY_PLAIN);
    kit_api->close_listener(a.listener);
    lh_conn_params_t p = kit_params(&b, 0, LH_SECURITY_PLAIN);
    p.dial_ns = 300000000;
    const uint64_t start = kit_now();
    assert_int_equal(kit_api->connect(b.transport, &a.address, &p, &b.conn), LH_OK);
    const lh_wire_event_t *down = kit_wait(&b, NULL, &b, LH_WIRE_DOWN, 0, KIT_PATIENCE_MS);
    assert_non_null(down);
    assert_int_equal(down->status, LH_UNREACHABLE);
    assert_non_null(strstr(kit_reason(&b, down), "refused"));
    assert_true(kit_now() - start < 600000000);
    kit_close(&a);
    kit_close(&b);
}

/* Joined through a relay, which does from then on what the test set. */
static void join_through(kit_end_t *a, kit_end_t *b, uint32_t security, relay_t *r, size_t piece)
{
    lh_hello_t hello;
    open_both(a, b, security);
    relay_open(r, &a->address);
    r->piece = piece;
    lh_conn_params_t p = kit_params(b, 0, security);
    assert_int_equal(kit_api->connect(b->transport, &r->own, &p, &b->conn), LH_OK);
    a->conn = NULL;
    for (int i = 0; i < 20000 && a->count + b->count < 2; i++) {
        relay_step(r);
        kit_poll(a);
        kit_poll(b);
        if (a->conn != NULL || kit_api->accept(a->listener, &hello, &a->conn) != LH_OK) continue;
        p = kit_params(a, 1, security);
        assert_int_equal(kit_api->admit(a->conn, &p), LH_OK);
    }
    assert_int_equal(a->count, 1);
    assert_int_equal(b->count, 1);
    assert_int_equal(a->events[0].type, LH_WIRE_UP);
    assert_int_equal(b->events[0].type, LH_WIRE_UP);
}

static void relay_until(kit_end_t *a, kit_end_t *b, relay_t *r, uint32_t events)
{
    const uint64_t end = kit_now() + KIT_PATIENCE_NS;
    while (a->count < events && kit_now() < end) {
        relay_step(r);
        kit_poll(a);
        kit_poll(b);
    }
}

static void frames_may_be_split_at_every_byte(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static relay_t r;
    uint8_t from[1000], to[4][1000];
    kit_fill(from, sizeof(from), 4);
    for (uint32_t security = 0; security <= LH_SECURITY_PRIVATE; security++)
        for (size_t piece = 1; piece < 70; piece += piece < 4 ? 1 : 13) {
            join_through(&a, &b, security, &r, piece);
            for (uint32_t i = 0; i < 4; i++) {
                assert_int_equal(kit_api->irecv(a.conn, NULL, to[i], sizeof(to[i]), i, i), LH_OK);
                assert_int_equal(
                    kit_api->isend(b.conn, NULL, from, i == 2 ? 0 : 250 * (i + 1), i, i), LH_OK);
            }
            relay_until(&a, &b, &r, 5);
            assert_int_equal(a.count, 5);
            for (uint32_t i = 0; i < 4; i++) {
                assert_int_equal(a.events[1 + i].status, LH_OK);
                assert_int_equal(a.events[1 + i].bytes, i == 2 ? 0 : 250 * (i + 1));
                assert_memory_equal(to[i], from, a.events[1 + i].bytes);
            }
            relay_close(&r);
            kit_close(&a);
            kit_close(&b);
        }
}

/* One bit of one message's head or payload: the receive ends, and not well. */
static void flip(uint32_t security, size_t bytes, int64_t at, uint8_t bit)
{
    static kit_end_t a, b;
    static relay_t r;
    static uint8_t from[LARGE], to[LARGE];
    kit_fill(from, bytes, 4);
    join_through(&a, &b, security, &r, 0);
    r.flip_at[0] = (int64_t)r.passed[0] + at;
    r.flip_bit = bit;
    assert_int_equal(kit_api->irecv(a.conn, NULL, to, bytes, 1, 77), LH_OK);
    assert_int_equal(kit_api->isend(b.conn, NULL, from, bytes, 1, 1), LH_OK);
    relay_until(&a, &b, &r, 4);
    assert_int_equal(a.count, 4);
    assert_int_equal(a.events[1].type, LH_WIRE_DOWN);
    assert_int_equal(a.events[1].status, LH_CORRUPT);
    assert_int_equal(a.events[2].cookie, 77);
    assert_int_equal(a.events[2].status, LH_CORRUPT);
    assert_int_equal(a.events[3].type, LH_WIRE_DRAINED);
    relay_close(&r);
    kit_close(&a);
    kit_close(&b);
}

static void a_flipped_bit_is_corruption(void **state)
{
    (void)state;
    for (uint32_t security = 0; security <= LH_SECURITY_PRIVATE; security++)
        for (int64_t at = 0; at < 364; at += at < 64 ? 3 : 59)
            flip(security, 300, at, (uint8_t)(at % 8));
}

/* Of a frame that a thread opens: its head, the beginning, middle and end of its payload. */
static void a_flipped_bit_that_a_thread_finds_is_corruption(void **state)
{
    (void)state;
    static const int64_t at[] = {20, 60, 64, 64 + LARGE / 2, 64 + LARGE - 1};
    threads = KIT_THREADS(2);
    for (uint32_t security = LH_SECURITY_PROVEN; security <= LH_SECURITY_PRIVATE; security++)
        for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
            flip(security, LARGE, at[i], (uint8_t)i);
    threads = 0;
}

/* The same sealed frame again. */
static void a_replayed_frame_is_corruption(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static relay_t r;
    uint8_t from[100] = {1}, to[2][100];
    for (uint32_t security = 0; security <= LH_SECURITY_PRIVATE; security++) {
        join_through(&a, &b, security, &r, 0);
        r.repeat_from = (int64_t)r.passed[0];
        r.repeat_to = r.repeat_from + 164;
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(kit_api->irecv(a.conn, NULL, to[i], 100, 1, i), LH_OK);
        assert_int_equal(kit_api->isend(b.conn, NULL, from, 100, 1, 1), LH_OK);
        relay_until(&a, &b, &r, 5);
        assert_int_equal(a.events[1].status, LH_OK);
        assert_int_equal(a.events[2].type, LH_WIRE_DOWN);
        assert_int_equal(a.events[2].status, LH_CORRUPT);
        relay_close(&r);
        kit_close(&a);
        kit_close(&b);
    }
}

static void what_is_private_can_not_be_read_on_the_way(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static relay_t r;
    uint8_t from[300], to[300];
    memset(from, 'x', sizeof(from));
    for (uint32_t security = 0; security <= LH_SECURITY_PRIVATE; security++) {
        join_through(&a, &b, security, &r, 0);
        r.repeat_from = (int64_t)r.passed[0]; /* keeps what passes */
        r.repeat_to = r.repeat_from + 100000;
        if (r.repeat_to - r.repeat_from > (int64_t)sizeof(r.kept))
            r.repeat_to = r.repeat_from + (int64_t)sizeof(r.kept);
        assert_int_equal(kit_api->irecv(a.conn, NULL, to, sizeof(to), 1, 1), LH_OK);
        assert_int_equal(kit_api->isend(b.conn, NULL, from, sizeof(from), 1, 1), LH_OK);
        relay_until(&a, &b, &r, 2);
        assert_int_equal(a.events[1].status, LH_OK);
        const bool seen = memmem(r.kept, sizeof(r.kept), from, 64) != NULL;
        assert_int_equal(seen, security != LH_SECURITY_PRIVATE);
        relay_close(&r);
        kit_close(&a);
        kit_close(&b);
    }
}

/* Every allocation of either end fails once: what comes of it is an end with a reason, or nothing.
 */
static void memory_that_runs_out_is_an_end_like_others(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static uint8_t from[100000], to[100000];
    uint32_t whole = 0;
    for (uint32_t turn = 1; turn < 40; turn++) {
        lh_hello_t hello;
        open_both(&a, &b, LH_SECURITY_PRIVATE);
        kit_end_t *poor = turn % 2 == 0 ? &a : &b;
        poor->host.allocations_left = turn / 2 + 1;
        lh_conn_params_t p = kit_params(&b, 0, LH_SECURITY_PRIVATE);
        p.dial_ns = 200000000;
        b.config.streams = 2;
        if (kit_api->connect(b.transport, &a.address, &p, &b.conn) == LH_OK) {
            bool posted = false;
            const uint64_t end = kit_now() + 300000000u;
            while (a.count < 2 && kit_now() < end) {
                kit_poll(&a);
                kit_poll(&b);
                if (a.conn == NULL && kit_api->accept(a.listener, &hello, &a.conn) == LH_OK) {
                    p = kit_params(&a, 1, LH_SECURITY_PRIVATE);
                    (void)kit_api->admit(a.conn, &p);
                }
                if (a.conn == NULL || posted) continue;
                posted = true;
                (void)kit_api->isend(b.conn, NULL, from, 100, 1, 1);
                (void)kit_api->isend(b.conn, NULL, from, sizeof(from), 2, 2);
                kit_poll(&b);
                kit_poll(&a);
                (void)kit_api->irecv(a.conn, NULL, to, 100, 1, 1);
                (void)kit_api->irecv(a.conn, NULL, to, sizeof(to), 2, 2);
            }
            for (uint32_t i = 0; i < b.count; i++)
                if (b.events[i].status != LH_OK) assert_true(b.reasons[i][0] != '\0');
            whole += a.count >= 3 && a.events[2].status == LH_OK;
        }
        kit_close(&a);
        kit_close(&b);
    }
    assert_true(whole > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_are_dropped_in_silence_and_counted),
        cmocka_unit_test(who_says_nothing_is_dropped_after_two_seconds),
        cmocka_unit_test(a_crowd_does_not_keep_a_rank_out),
        cmocka_unit_test(a_rank_that_a_crowd_pushes_out_comes_again),
        cmocka_unit_test(another_job_epoch_or_rank_is_refused_with_a_sentence),
        cmocka_unit_test(another_version_is_told_to_whom_the_job_could_be),
        cmocka_unit_test(who_dials_another_version_is_told_both),
        cmocka_unit_test(a_second_connection_of_the_same_name_is_refused),
        cmocka_unit_test(who_is_not_admitted_was_not_denied),
        cmocka_unit_test(another_key_or_level_is_denied_with_a_sentence),
        cmocka_unit_test(without_a_secret_only_plain_is_possible),
        cmocka_unit_test(a_dead_port_is_given_up_after_dial_ns),
        cmocka_unit_test(frames_may_be_split_at_every_byte),
        cmocka_unit_test(a_flipped_bit_is_corruption),
        cmocka_unit_test(a_flipped_bit_that_a_thread_finds_is_corruption),
        cmocka_unit_test(a_replayed_frame_is_corruption),
        cmocka_unit_test(what_is_private_can_not_be_read_on_the_way),
        cmocka_unit_test(memory_that_runs_out_is_an_end_like_others),
    };
    return kit_load() != 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
