/* What the receiving side of an open connection makes of bytes; the plugin's own parser is fed without
 * sockets. One flipped bit anywhere, at each level of security, is found, and no message that it touches is
 * given to the caller: 10,000 bits a level, 1,000,000 where LONGHAUL_TORTURE asks for it. And a message that
 * comes in parts, its receive posted between them, beside others on a faster stream. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bare_host.h"
#include "../../torture.h"
#include "tcp_kit.h"

#include <tcp.h>

#include <cmocka.h>

enum { MESSAGES = 6, EARLY = 4, ROOM = 1000, WIRE = 8192, CI_FLIPS = 10000, TORTURE = 1000000 };

/* From EARLY on they come before their receives are posted. */
static const uint32_t length_of[MESSAGES] = {300, 0, ROOM, 7, 200, 64};
static uint8_t sent[MESSAGES][ROOM], got[MESSAGES][ROOM];
static uint64_t flips = CI_FLIPS, seed = 20261122;

static uint64_t next_random(void)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static const lh_world_t world = {.struct_size = sizeof(world), .size = 2};
static const lh_host_t host = {.struct_size = sizeof(host),
                               .world = &world,
                               .fail = bare_fail,
                               .alloc = bare_alloc,
                               .release = bare_release};
static const tcp_config_t config;

typedef struct end {
    lh_transport_t transport;
    lh_conn_t *conn;
    stream_t *stream;
} end_t;

static void end_open(end_t *e)
{
    memset(e, 0, sizeof(*e));
    e->transport.host = &host;
    e->transport.config = &config;
    e->transport.epoll = e->transport.timer = -1;
    assert_int_equal(conn_new(&e->transport, &e->conn), LH_OK);
    assert_int_equal(stream_new(&e->transport, STAGE_BYTES, &e->stream), LH_OK);
    e->conn->stream_count = e->conn->open_count = 1;
    e->conn->state = CONN_UP;
    stream_adopt(e->conn, e->stream, 0);
    e->stream->state = STREAM_OPEN;
    e->transport.open_streams = 1;
}

/* Seals outlive it. */
static void end_close(end_t *e)
{
    e->stream->seals[0] = e->stream->seals[1] = NULL;
    conn_free(e->conn);
}

static size_t take_batch(stream_t *s, uint8_t *wire)
{
    size_t length = 0;
    for (uint32_t i = 0; i < s->vector_count; i++) {
        memcpy(wire + length, s->vectors[i].iov_base, s->vectors[i].iov_len);
        length += s->vectors[i].iov_len;
    }
    s->vector_done = s->vector_count;
    return length;
}

/* All messages, that of ROOM bytes in two frames, a frame of grants and one of padding. */
static size_t make_wire(seal_t *seal, uint8_t *wire)
{
    end_t e;
    end_open(&e);
    e.stream->seals[0] = seal;
    frame_t grant = {.type = FRAME_GRANT};
    assert_true(stream_add(e.stream, &grant, NULL));
    frame_t pad = {.type = FRAME_PAD, .length = ROOM};
    assert_true(stream_add(e.stream, &pad, sent[2]));
    for (uint32_t m = 0; m < MESSAGES; m++) {
        const uint32_t half = length_of[m] == ROOM ? ROOM / 2 : length_of[m];
        for (uint32_t at = 0; at == 0 || at < length_of[m]; at += half) {
            frame_t f = {.type = FRAME_DATA,
                         .message = m,
                         .tag = m,
                         .offset = at,
                         .total = length_of[m],
                         .length = half};
            assert_true(stream_add(e.stream, &f, sent[m] + at));
            if (half == 0) break;
        }
    }
    const size_t length = take_batch(e.stream, wire);
    end_close(&e);
    return length;
}

/* Posts the next receive; its tag is its number. */
static void post_into(end_t *e, uint8_t *to, uint32_t bytes)
{
    const uint32_t m = e->conn->recv_end++;
    e->conn->recvs[m % DEPTH] = (operation_t){.data = to, .bytes = bytes, .tag = m};
    receive_posted(e->conn, m);
}

static void post(end_t *e, uint32_t m)
{
    assert_int_equal(e->conn->recv_end, m);
    post_into(e, got[m], length_of[m]);
}

/* How many messages came well; each of them has the bytes that were sent. */
static uint32_t count_received(const end_t *e)
{
    uint32_t count = 0;
    for (uint32_t m = 0; m < MESSAGES; m++) {
        if (!e->conn->recvs[m].done) continue;
        assert_memory_equal(got[m], sent[m], length_of[m]);
        count++;
    }
    return count;
}

static uint32_t receive(const uint8_t *wire, size_t length, seal_t *seal, lh_status_t *status)
{
    end_t e;
    end_open(&e);
    e.stream->seals[1] = seal;
    memset(got, 0x5a, sizeof(got));
    for (uint32_t m = 0; m < EARLY; m++)
        post(&e, m);
    memcpy(e.stream->stage, wire, length);
    e.stream->stage_last = (uint32_t)length;
    (void)stream_eat(e.stream);
    for (uint32_t m = EARLY; m < MESSAGES && e.conn->state == CONN_UP; m++)
        post(&e, m);
    *status = e.conn->state == CONN_UP ? LH_OK : e.conn->why;
    const uint32_t count = count_received(&e);
    end_close(&e);
    return count;
}

static void every_flip_is_found(bool sealed, bool encrypts, const char *what)
{
    static uint8_t wire[WIRE];
    static const uint8_t secret[SECRET_BYTES] = {1, 2, 3};
    seal_t *out = NULL, *in = NULL;
    lh_status_t status;
    for (uint32_t m = 0; m < MESSAGES; m++)
        kit_fill(sent[m], ROOM, m + 1);
    if (sealed) {
        assert_int_equal(seal_new(&host, secret, encrypts, false, &out), LH_OK);
        assert_int_equal(seal_new(&host, secret, encrypts, true, &in), LH_OK);
    }
    const size_t length = make_wire(out, wire);
    assert_int_equal(receive(wire, length, in, &status), MESSAGES);
    assert_int_equal(status, LH_OK);
    const uint64_t begin = seed;
    for (uint64_t n = 0; n < flips; n++) {
        const uint64_t bit = next_random() % (length * 8);
        wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
        const uint32_t whole = receive(wire, length, in, &status);
        if (status != LH_CORRUPT || whole == MESSAGES)
            print_error("%s: bit %llu of %zu bytes: status %d, %u messages\n", what,
                        (unsigned long long)bit, length, (int)status, whole);
        assert_true(status == LH_CORRUPT && whole < MESSAGES);
        wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(receive(wire, length, in, &status), MESSAGES);
    print_message("%s: %llu flipped bits of %llu found, seed %llu\n", what,
                  (unsigned long long)flips, (unsigned long long)flips, (unsigned long long)begin);
    seal_free(out);
    seal_free(in);
}

static void every_flipped_bit_is_found_by_the_checksum(void **state)
{
    (void)state;
    every_flip_is_found(false, false, "plain");
}

static void every_flipped_bit_is_found_by_the_proof(void **state)
{
    (void)state;
    every_flip_is_found(true, false, "proven");
}

static void every_flipped_bit_of_what_is_encrypted_is_found(void **state)
{
    (void)state;
    every_flip_is_found(true, true, "private");
}

/* The wire of one message of `bytes`, as the sender's stream `index` makes it. */
static size_t make_message(uint32_t message, uint32_t bytes, const uint8_t *data, uint32_t index,
                           uint8_t *wire)
{
    end_t e;
    end_open(&e);
    e.stream->index = index;
    frame_t f = {
        .type = FRAME_DATA, .message = message, .tag = message, .total = bytes, .length = bytes};
    assert_true(stream_add(e.stream, &f, data));
    const size_t length = take_batch(e.stream, wire);
    end_close(&e);
    return length;
}

static void feed(stream_t *s, const uint8_t *wire, size_t length)
{
    memcpy(s->stage + s->stage_last, wire, length);
    s->stage_last += (uint32_t)length;
    (void)stream_eat(s);
}

/* An end with two streams; returns the second. */
static stream_t *open_two(end_t *e)
{
    stream_t *second;
    end_open(e);
    assert_int_equal(stream_new(&e->transport, STAGE_BYTES, &second), LH_OK);
    e->conn->stream_count = e->conn->open_count = 2;
    stream_adopt(e->conn, second, 1);
    second->state = STREAM_OPEN;
    e->transport.open_streams = 2;
    return second;
}

/* Message 0 stalls on stream 1 after any number of its bytes; its receive and others are posted, so the
 * peer may send message EAGER_SLOTS, which has the same slot, and does on stream 0. */
static void a_message_that_stalls_half_way_holds_no_slot(void **state)
{
    (void)state;
    enum { BYTES = 200 };
    static uint8_t slow[WIRE], fast[WIRE], in[2][BYTES], out[2][BYTES];
    kit_fill(out[0], BYTES, 1);
    kit_fill(out[1], BYTES, 2);
    const size_t slow_length = make_message(0, BYTES, out[0], 1, slow);
    for (size_t cut = HEAD_BYTES; cut <= slow_length; cut++) {
        end_t e;
        stream_t *const second = open_two(&e);
        memset(in, 0x5a, sizeof(in));
        feed(second, slow, cut);
        post_into(&e, in[0], BYTES);
        const size_t length = make_message(EAGER_SLOTS, BYTES, out[1], 0, fast);
        feed(e.stream, fast, length);
        feed(second, slow + cut, slow_length - cut);
        assert_int_equal(e.conn->state, CONN_UP);
        assert_true(e.conn->recvs[0].done);
        assert_memory_equal(in[0], out[0], BYTES);
        for (uint32_t m = 1; m <= EAGER_SLOTS; m++)
            post_into(&e, in[1], BYTES);
        assert_true(e.conn->recvs[EAGER_SLOTS].done);
        assert_memory_equal(in[1], out[1], BYTES);
        end_close(&e);
    }
}

/* Message 0 stalls on stream 1, and comes again and whole on stream 0. When the rest of it comes the
 * receive that is DEPTH later has its row, and must not count these bytes as its own. */
static void a_frame_that_ends_behind_its_message_counts_for_no_other(void **state)
{
    (void)state;
    enum { BYTES = 200 };
    static uint8_t slow[WIRE], fast[WIRE], in[2][BYTES], out[BYTES];
    kit_fill(out, BYTES, 3);
    const size_t slow_length = make_message(0, BYTES, out, 1, slow);
    const size_t length = make_message(0, BYTES, out, 0, fast);
    end_t e;
    stream_t *const second = open_two(&e);
    post_into(&e, in[0], BYTES);
    feed(second, slow, slow_length - 1);
    feed(e.stream, fast, length);
    assert_true(e.conn->recvs[0].done);
    e.conn->recv_first = 1; /* it was told */
    e.conn->recv_end = DEPTH;
    post_into(&e, in[1], BYTES);
    e.conn->recvs[0].total = BYTES;
    feed(second, slow + slow_length - 1, 1);
    assert_false(e.conn->recvs[0].done);
    assert_int_equal(e.conn->state, CONN_BROKEN);
    assert_int_equal(e.conn->why, LH_CORRUPT);
    end_close(&e);
}

/* The wire of a frame that grants so many messages. */
static size_t make_grant(uint32_t grants, uint8_t *wire)
{
    end_t e;
    frame_t f = {.type = FRAME_GRANT};
    end_open(&e);
    e.conn->recv_end = grants;
    assert_true(stream_add(e.stream, &f, NULL));
    const size_t length = take_batch(e.stream, wire);
    end_close(&e);
    return length;
}

/* Of an end that has posted nothing: a peer has 256 receives posted at most, and of as many more it may not
 * know yet that they are done here; 16 whole messages may come without a grant. What is beyond that no peer
 * of ours says. */
static void what_is_beyond_any_grant_ends_the_connection(void **state)
{
    (void)state;
    static const struct {
        uint32_t grants, message; /* grants 0: a message */
        const char *said;         /* NULL: it is taken */
    } rows[] = {{512, 0, NULL},
                {513, 0, "grants for 513 messages, of which 0 are posted; expected 512 at most"},
                {INT32_MAX, 0, "grants for 2147483647 messages"},
                {0, 15, NULL},
                {0, 16, "message 16 of 100 bytes without a grant; expected one below 0"},
                {0, 5000, "message 5000 of 100 bytes without a grant"}};
    static uint8_t wire[WIRE];
    const uint8_t data[100] = {1};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        end_t e;
        const size_t length = rows[i].grants != 0
                                  ? make_grant(rows[i].grants, wire)
                                  : make_message(rows[i].message, sizeof(data), data, 0, wire);
        end_open(&e);
        feed(e.stream, wire, length);
        assert_int_equal(e.conn->state, rows[i].said == NULL ? CONN_UP : CONN_BROKEN);
        if (rows[i].said != NULL) {
            assert_int_equal(e.conn->why, LH_CORRUPT);
            assert_non_null(strstr(e.conn->reason, rows[i].said));
        }
        end_close(&e);
    }
}

int main(void)
{
    const char *wanted = getenv("LONGHAUL_SEED");
    if (torture_wanted()) flips = TORTURE;
    if (wanted != NULL) seed = strtoull(wanted, NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_bit_is_found_by_the_checksum),
        cmocka_unit_test(every_flipped_bit_is_found_by_the_proof),
        cmocka_unit_test(every_flipped_bit_of_what_is_encrypted_is_found),
        cmocka_unit_test(a_message_that_stalls_half_way_holds_no_slot),
        cmocka_unit_test(a_frame_that_ends_behind_its_message_counts_for_no_other),
        cmocka_unit_test(what_is_beyond_any_grant_ends_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
