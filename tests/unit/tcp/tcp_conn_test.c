/* Messages between two ranks over loopback: bytes, order, grants, refusals, ends. */

#include "tcp_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint32_t level;   /* of security, for all tests of a group */
static uint64_t streams; /* likewise */

typedef struct pair {
    kit_end_t a, b;
} pair_t;

static pair_t *pair_new(void)
{
    pair_t *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    p->a.host.key = p->b.host.key = 7;
    p->b.config.streams = streams;
    kit_open(&p->a, 0);
    kit_open(&p->b, 1);
    kit_join(&p->a, &p->b, level);
    return p;
}

static void pair_free(pair_t *p)
{
    kit_close(&p->a);
    kit_close(&p->b);
    free(p);
}

static void exchange(size_t bytes, bool receive_first)
{
    pair_t *p = pair_new();
    uint8_t *from = malloc(bytes + 1), *to = malloc(bytes + 1);
    kit_fill(from, bytes, 5);
    memset(to, 0, bytes + 1);
    if (receive_first) assert_int_equal(kit_api->irecv(p->a.conn, NULL, to, bytes, 9, 21), LH_OK);
    assert_int_equal(kit_api->isend(p->b.conn, NULL, from, bytes, 9, 22), LH_OK);
    for (int i = 0; i < 50; i++) {
        kit_poll(&p->b);
        kit_poll(&p->a);
    }
    if (!receive_first) assert_int_equal(kit_api->irecv(p->a.conn, NULL, to, bytes, 9, 21), LH_OK);
    const lh_wire_event_t *got = kit_wait(&p->a, &p->b, &p->a, LH_WIRE_RECEIVED, 0,
                                          KIT_PATIENCE_MS);
    assert_non_null(got);
    assert_int_equal(got->status, LH_OK);
    assert_int_equal(got->cookie, 21);
    assert_int_equal(got->bytes, bytes);
    assert_int_equal(got->tag, 9);
    assert_memory_equal(from, to, bytes);
    const lh_wire_event_t *sent = kit_wait(&p->a, &p->b, &p->b, LH_WIRE_SENT, 0, KIT_PATIENCE_MS);
    assert_non_null(sent);
    assert_int_equal(sent->cookie, 22);
    assert_int_equal(sent->bytes, bytes);
    free(from);
    free(to);
    pair_free(p);
}

static void a_message_of_any_size_arrives_whole(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,     1,     63,        4095,          16384,
                                   16385, 70001, 256 << 10, (1 << 20) + 7, (9 << 20) + 1};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        exchange(sizes[i], true);
        exchange(sizes[i], false);
    }
}

/* Both directions at once, posted far ahead, mixed sizes; the order posted is the order matched. */
static void many_messages_match_in_order(void **state)
{
    (void)state;
    enum { COUNT = 200, MOST = 300000 };
    pair_t *p = pair_new();
    kit_end_t *ends[2] = {&p->a, &p->b};
    uint8_t *out = malloc(MOST), *in[2];
    uint32_t posted[2] = {0, 0}, sent[2] = {0, 0}, told[2] = {0, 0}, left[2] = {0, 0};
    uint32_t size[COUNT];
    kit_fill(out, MOST, 3);
    for (uint32_t i = 0; i < COUNT; i++)
        size[i] = i % 5 == 4 ? MOST - i : (i * 977) % 20000;
    for (int e = 0; e < 2; e++)
        in[e] = calloc(COUNT, MOST / 8 + MOST); /* lazily touched */
    const uint64_t end = kit_now() + KIT_PATIENCE_NS;
    while ((told[0] < COUNT || told[1] < COUNT || left[0] < COUNT || left[1] < COUNT) &&
           kit_now() < end)
        for (int e = 0; e < 2; e++) {
            kit_end_t *k = ends[e];
            while (posted[e] < COUNT &&
                   kit_api->irecv(k->conn, NULL, in[e] + (size_t)posted[e] * MOST, MOST, posted[e],
                                  posted[e]) == LH_OK)
                posted[e]++;
            while (sent[e] < COUNT &&
                   kit_api->isend(k->conn, NULL, out, size[sent[e]], sent[e], sent[e]) == LH_OK)
                sent[e]++;
            k->count = 0;
            kit_poll(k);
            for (uint32_t i = 0; i < k->count; i++) {
                const lh_wire_event_t *event = &k->events[i];
                assert_int_equal(event->status, LH_OK);
                if (event->type == LH_WIRE_SENT) {
                    assert_int_equal(event->cookie, left[e]++);
                    continue;
                }
                assert_int_equal(event->type, LH_WIRE_RECEIVED);
                assert_int_equal(event->cookie, told[e]);
                assert_int_equal(event->bytes, size[told[e]]);
                assert_memory_equal(in[e] + (size_t)told[e] * MOST, out, size[told[e]]);
                told[e]++;
            }
        }
    assert_int_equal(told[0], COUNT);
    assert_int_equal(told[1], COUNT);
    assert_int_equal(left[0], COUNT);
    free(in[0]);
    free(in[1]);
    free(out);
    pair_free(p);
}

static void different_tags_end_both_ends_with_both_tags_named(void **state)
{
    (void)state;
    static uint8_t bytes[100000];
    for (int early = 0; early < 2; early++)
        for (int small = 0; small < 2; small++) {
            pair_t *p = pair_new();
            const size_t size = small ? 100 : sizeof(bytes);
            if (early) assert_int_equal(kit_api->irecv(p->a.conn, NULL, bytes, size, 17, 1), LH_OK);
            assert_int_equal(kit_api->isend(p->b.conn, NULL, bytes, size, 18, 2), LH_OK);
            for (int i = 0; i < 20; i++) {
                kit_poll(&p->b);
                kit_poll(&p->a);
            }
            if (!early)
                assert_int_equal(kit_api->irecv(p->a.conn, NULL, bytes, size, 17, 1), LH_OK);
            for (int e = 0; e < 2; e++) {
                kit_end_t *k = e ? &p->b : &p->a;
                const lh_wire_event_t *down = kit_wait(&p->a, &p->b, k, LH_WIRE_DOWN, 0,
                                                       KIT_PATIENCE_MS);
                assert_non_null(down);
                assert_int_equal(down->status, LH_MISMATCH);
                assert_non_null(strstr(kit_reason(k, down), "17"));
                assert_non_null(strstr(kit_reason(k, down), "18"));
                assert_non_null(kit_wait(&p->a, &p->b, k, LH_WIRE_DRAINED, 0, KIT_DRAIN_MS));
            }
            pair_free(p);
        }
}

static void a_message_that_is_too_long_ends_both_ends(void **state)
{
    (void)state;
    static uint8_t bytes[100000];
    static const size_t sizes[][2] = {{100, 99}, {100000, 20000}, {100000, 64}};
    for (size_t i = 0; i < 3; i++) {
        pair_t *p = pair_new();
        assert_int_equal(kit_api->irecv(p->a.conn, NULL, bytes, sizes[i][1], 1, 1), LH_OK);
        assert_int_equal(kit_api->isend(p->b.conn, NULL, bytes, sizes[i][0], 1, 2), LH_OK);
        for (int e = 0; e < 2; e++) {
            kit_end_t *k = e ? &p->b : &p->a;
            const lh_wire_event_t *down = kit_wait(&p->a, &p->b, k, LH_WIRE_DOWN, 0,
                                                   KIT_PATIENCE_MS);
            assert_non_null(down);
            assert_int_equal(down->status, LH_TRUNCATED);
        }
        const lh_wire_event_t *got = kit_wait(&p->a, &p->b, &p->a, LH_WIRE_RECEIVED, 0,
                                              KIT_DRAIN_MS);
        assert_non_null(got);
        assert_int_equal(got->status, LH_TRUNCATED);
        pair_free(p);
    }
}

static void posts_beyond_the_depth_are_refused_for_now(void **state)
{
    (void)state;
    pair_t *p = pair_new();
    uint8_t byte = 0;
    lh_nic_info_t info = {.struct_size = sizeof(info)};
    assert_int_equal(kit_api->nic_info(p->a.transport, 0, &info), LH_OK);
    for (uint32_t i = 0; i < info.max_recvs; i++)
        assert_int_equal(kit_api->irecv(p->a.conn, NULL, &byte, 1, 0, i), LH_OK);
    assert_int_equal(kit_api->irecv(p->a.conn, NULL, &byte, 1, 0, 0), LH_AGAIN);
    for (uint32_t i = 0; i < info.max_sends; i++)
        assert_int_equal(kit_api->isend(p->a.conn, NULL, &byte, 1, 0, i), LH_OK);
    assert_int_equal(kit_api->isend(p->a.conn, NULL, &byte, 1, 0, 0), LH_AGAIN);
    pair_free(p);
}

static void cancel_ends_every_operation_once_and_within_100_ms(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 20];
    pair_t *p = pair_new();
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(kit_api->irecv(p->a.conn, NULL, bytes, 64, i, i), LH_OK);
        assert_int_equal(kit_api->isend(p->a.conn, NULL, bytes, sizeof(bytes), i, 10 + i), LH_OK);
    }
    kit_poll(&p->a);
    const uint64_t start = kit_now();
    kit_api->cancel(p->a.conn);
    assert_non_null(kit_wait(&p->a, NULL, &p->a, LH_WIRE_DRAINED, 0, KIT_PATIENCE_MS));
    assert_true(kit_now() - start < 100000000u);
    uint32_t seen[15] = {0};
    for (uint32_t i = 1; i + 1 < p->a.count; i++) {
        assert_int_equal(p->a.events[i].status, LH_CANCELLED);
        seen[p->a.events[i].cookie]++;
    }
    for (uint32_t i = 0; i < 15; i++)
        assert_int_equal(seen[i], i < 5 || i >= 10);
    assert_int_equal(p->a.events[p->a.count - 1].type, LH_WIRE_DRAINED);
    assert_int_equal(kit_api->isend(p->a.conn, NULL, bytes, 1, 0, 0), LH_CANCELLED);
    kit_api->close_conn(p->a.conn);
    const lh_wire_event_t *down = kit_wait(&p->a, &p->b, &p->b, LH_WIRE_DOWN, 0, KIT_PATIENCE_MS);
    assert_non_null(down);
    assert_int_equal(down->status, LH_PEER_LOST);
    assert_non_null(strstr(kit_reason(&p->b, down), "rank 0 on lab"));
    pair_free(p);
}

static void retune_changes_what_it_names_and_tells_the_rest(void **state)
{
    (void)state;
    pair_t *p = pair_new();
    lh_tuning_t before = {.struct_size = sizeof(before)}, after = {.struct_size = sizeof(after)};
    assert_int_equal(kit_api->retune(p->a.conn, NULL, &before), LH_OK);
    assert_true(before.chunk_bytes > 0 && before.chunk_bytes != 128 << 10);
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted), .chunk_bytes = 128 << 10};
    assert_int_equal(kit_api->retune(p->a.conn, &wanted, &after), LH_OK);
    assert_int_equal(after.chunk_bytes, 128 << 10);
    assert_int_equal(after.inflight_bytes, before.inflight_bytes);
    pair_free(p);
}

static uint64_t pace_after(pair_t *p, uint64_t wanted)
{
    lh_tuning_t after = {.struct_size = sizeof(after)};
    const lh_tuning_t tuning = {.struct_size = sizeof(tuning), .pace_bytes_per_second = wanted};
    assert_int_equal(kit_api->retune(p->a.conn, &tuning, &after), LH_OK);
    return after.pace_bytes_per_second;
}

static void a_pace_that_is_set_is_the_most(void **state)
{
    (void)state;
    pair_t *p = pair_new();
    assert_int_equal(pace_after(p, 3000000), 3000000);
    assert_int_equal(pace_after(p, UINT64_MAX), UINT64_MAX);
    p->a.config.pace = 2000000;
    assert_int_equal(pace_after(p, 1000000), 1000000);
    assert_int_equal(pace_after(p, 3000000), 2000000);
    assert_int_equal(pace_after(p, UINT64_MAX), 2000000);
    pair_free(p);
}

/* Pace and buffers are divided by them. */
static void streams_in_force_are_those_that_both_ends_have(void **state)
{
    (void)state;
    static pair_t p;
    lh_tuning_t after = {.struct_size = sizeof(after)};
    memset(&p, 0, sizeof(p));
    p.a.host.key = p.b.host.key = 7;
    p.a.config.streams = 1;
    p.b.config.streams = 4;
    kit_open(&p.a, 0);
    kit_open(&p.b, 1);
    kit_join(&p.a, &p.b, level);
    assert_int_equal(kit_api->retune(p.b.conn, NULL, &after), LH_OK);
    assert_int_equal(after.streams, 1);
    kit_close(&p.a);
    kit_close(&p.b);
}

static void what_was_sent_before_an_orderly_end_arrives(void **state)
{
    (void)state;
    static uint8_t from[16000], to[16000];
    pair_t *p = pair_new();
    kit_fill(from, sizeof(from), 1);
    assert_int_equal(kit_api->isend(p->a.conn, NULL, from, sizeof(from), 1, 1), LH_OK);
    assert_non_null(kit_wait(&p->a, NULL, &p->a, LH_WIRE_SENT, 0, KIT_PATIENCE_MS));
    kit_api->cancel(p->a.conn);
    assert_int_equal(kit_api->irecv(p->b.conn, NULL, to, sizeof(to), 1, 2), LH_OK);
    const lh_wire_event_t *got = kit_wait(&p->b, NULL, &p->b, LH_WIRE_RECEIVED, 0, KIT_PATIENCE_MS);
    assert_non_null(got);
    assert_int_equal(got->status, LH_OK);
    assert_memory_equal(from, to, sizeof(to));
    pair_free(p);
}

#define TESTS                                                                 \
    cmocka_unit_test(a_message_of_any_size_arrives_whole),                    \
        cmocka_unit_test(many_messages_match_in_order),                       \
        cmocka_unit_test(different_tags_end_both_ends_with_both_tags_named),  \
        cmocka_unit_test(a_message_that_is_too_long_ends_both_ends),          \
        cmocka_unit_test(posts_beyond_the_depth_are_refused_for_now),         \
        cmocka_unit_test(cancel_ends_every_operation_once_and_within_100_ms), \
        cmocka_unit_test(retune_changes_what_it_names_and_tells_the_rest),    \
        cmocka_unit_test(a_pace_that_is_set_is_the_most),                     \
        cmocka_unit_test(streams_in_force_are_those_that_both_ends_have),     \
        cmocka_unit_test(what_was_sent_before_an_orderly_end_arrives)

int main(void)
{
    const struct CMUnitTest tests[] = {TESTS};
    static const char *const names[] = {"plain", "known", "proven", "private"};
    int failed = 0;
    if (kit_load() != 0) return 1;
    for (level = LH_SECURITY_PLAIN; level <= LH_SECURITY_PRIVATE; level++)
        for (streams = 1; streams <= 4; streams += 3) {
            print_message("%s, %u streams\n", names[level], (unsigned)streams);
            failed += cmocka_run_group_tests(tests, NULL, NULL);
        }
    return failed;
}
