/* ib_tuning_test.c - what figures of a link make of a connection of the ib transport. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ib_ring.h"
#include "ib_tuning.h"

#define GBIT 125000000ull
#define MS 1000000ull
#define MIB ((uint64_t)1 << 20)

static const ib_rules_t near = {.name = "ib", .pairs_least = 1, .timeout_unknown = 14};
static const ib_rules_t far = {
    .name = "apn", .pairs_least = 4, .timeout_unknown = 16, .paced = true};
static const ib_wish_t no_wish;
static const lh_tuning_t no_tuning;

static ib_tuning_t chosen(uint64_t trip_ns, uint64_t rate, double loss)
{
    const lh_link_t link = {.round_trip_ns = trip_ns, .bytes_per_second = rate, .loss = loss};
    return ib_tuning(&near, &no_wish, &link, &no_tuning, 100 * GBIT);
}

static void the_ack_timeout_is_the_least_that_is_patient(void **state)
{
    static const struct {
        uint64_t trip_ns;
        uint32_t t;
    } table[] = {{400000, 10}, {2 * MS, 12}, {10 * MS, 14}, {30 * MS, 15}, {50 * MS, 16}};
    (void)state;
    for (uint32_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(ib_ack_timeout(table[i].trip_ns, 0, 14), table[i].t);
        assert_int_equal(chosen(table[i].trip_ns, 100 * GBIT, 0).ack_timeout, table[i].t);
        assert_true((uint64_t)4096 << table[i].t >= 4 * table[i].trip_ns + MS);
        assert_true((uint64_t)4096 << (table[i].t - 1) < 4 * table[i].trip_ns + MS);
    }
    assert_int_equal(ib_ack_timeout(0, 0, 14), 14);
    assert_int_equal(ib_ack_timeout(UINT64_MAX, UINT64_MAX, 14), 22);
    /* Two chunks of 1 MiB take 84 ms at 0.2 Gb/s. */
    assert_int_equal(chosen(400000, GBIT / 5, 0).ack_timeout, 15);
    /* So do a window's 16 of a link that nobody has measured, in 0.67 s; and one set by hand, 64 MiB
     * of which 1.25 MB are on the way and the rest wait 0.53 s at 1 Gb/s. */
    const lh_link_t thin = {.bytes_per_second = GBIT / 5},
                    wide = {.round_trip_ns = 10 * MS, .bytes_per_second = GBIT};
    const ib_wish_t wish = {.window_bytes = 64 * MIB};
    assert_int_equal(ib_tuning(&near, &no_wish, &thin, &no_tuning, 0).ack_timeout, 18);
    assert_int_equal(ib_tuning(&near, &wish, &wide, &no_tuning, 0).ack_timeout, 18);
}

static void the_window_holds_what_is_under_way(void **state)
{
    (void)state;
    const ib_tuning_t t = chosen(10 * MS, 100 * GBIT, 0);
    assert_int_equal(t.chunk_bytes, 1250000 / 128 * 128);
    assert_int_equal(t.window_bytes, 156250000 + 2 * t.chunk_bytes);
    assert_int_equal(t.queue_pairs, 2); /* 127 chunks, of which 126 fit on one */
    assert_int_equal(chosen(MS, GBIT, 0).queue_pairs, 1);
    assert_int_equal(chosen(0, GBIT, 0).chunk_bytes, MIB);
    assert_int_equal(chosen(0, 10000 * GBIT, 0).chunk_bytes, 8 * MIB);
    assert_int_equal(chosen(0, 0, 0).window_bytes, 16 * chosen(0, 0, 0).chunk_bytes);
}

/* 0.2 Gb/s at 100 ms: a window of 1.25 x 2.5 MB and two chunks, over queue pairs that have 512 KiB under
 * way each, and no chunk is larger. */
static void a_window_is_spread_over_queue_pairs_that_carry_little(void **state)
{
    const ib_wish_t soft = {.pair_bytes = 524288}, set = {.pair_bytes = 524288, .queue_pairs = 2};
    lh_link_t link = {.round_trip_ns = 100 * MS, .bytes_per_second = GBIT / 5};
    (void)state;
    const ib_tuning_t t = ib_tuning(&near, &soft, &link, &no_tuning, 0);
    assert_int_equal(t.chunk_bytes, 524288);
    assert_int_equal(t.window_bytes, 3125000 + 2 * 524288);
    assert_int_equal(t.queue_pairs, 8);
    assert_int_equal(ib_tuning(&near, &set, &link, &no_tuning, 0).queue_pairs, 2);
    link.bytes_per_second = 100 * GBIT;
    assert_int_equal(ib_tuning(&near, &soft, &link, &no_tuning, 0).queue_pairs, IB_PAIRS_MOST);
    link.round_trip_ns = 0; /* nobody has measured it */
    const lh_link_t open = {.scope = LH_LINK_WAN};
    assert_int_equal(ib_tuning(&far, &soft, &open, &no_tuning, 0).queue_pairs, IB_PAIRS_MOST);
    assert_int_equal(ib_tuning(&far, &no_wish, &open, &no_tuning, 0).queue_pairs, 4);
    assert_int_equal(ib_tuning(&far, &set, &open, &no_tuning, 0).queue_pairs, 2);
    assert_int_equal(ib_tuning(&near, &soft, &link, &no_tuning, 0).queue_pairs, 1);
    assert_int_equal(ib_tuning(&near, &soft, &link, &no_tuning, 0).chunk_bytes, 1249920);
}

static void loss_is_shared_by_queue_pairs(void **state)
{
    (void)state;
    assert_int_equal(chosen(MS, 100 * GBIT, 1e-7).queue_pairs, 1);
    assert_int_equal(chosen(10 * MS, 100 * GBIT, 1e-5).queue_pairs, 16);
    assert_int_equal(chosen(MS, 10 * GBIT, 1e-4).queue_pairs, 2);
    assert_int_equal(chosen(MS, 10 * GBIT, -1.0).queue_pairs, 1);
    assert_int_equal(chosen(MS, 10 * GBIT, 2.0).queue_pairs, 1);
}

static void what_is_set_goes_before_what_is_measured(void **state)
{
    const ib_wish_t wish = {
        .queue_pairs = 3, .chunk_bytes = 4 * MIB, .window_bytes = 5 * MIB, .ack_timeout = 17};
    const lh_tuning_t tuning = {.streams = 5, .chunk_bytes = 2 * MIB, .inflight_bytes = 9 * MIB};
    const lh_tuning_t wild = {.streams = 999, .chunk_bytes = UINT64_MAX};
    const lh_link_t link = {.round_trip_ns = MS, .bytes_per_second = GBIT};
    (void)state;
    ib_tuning_t t = ib_tuning(&near, &wish, &link, &tuning, 0);
    assert_true(t.queue_pairs == 3 && t.chunk_bytes == 4 * MIB && t.window_bytes == 5 * MIB &&
                t.ack_timeout == 17);
    t = ib_tuning(&near, &no_wish, &link, &tuning, 0);
    assert_true(t.queue_pairs == 5 && t.chunk_bytes == 2 * MIB && t.window_bytes == 9 * MIB);
    t = ib_tuning(&near, &no_wish, &link, &wild, 0);
    assert_true(t.queue_pairs == IB_PAIRS_MOST && t.chunk_bytes == IB_CHUNK_MOST);
}

static void a_port_has_the_rate_of_its_lanes(void **state)
{
    (void)state;
    assert_int_equal(ib_port_rate(2, 32), 100 * GBIT); /* 4 x EDR */
    assert_int_equal(ib_port_rate(2, 128), 400 * GBIT);
    assert_int_equal(ib_port_rate(1, 4), 10 * GBIT);
    assert_int_equal(ib_port_rate(3, 4), 0);
    assert_int_equal(ib_port_rate(2, 3), 0);
}

/* Windows and ACK timeouts of the table in docs/transports.md. */
static void long_links_are_filled_and_paced(void **state)
{
    static const struct {
        uint64_t trip_ns, window, t;
    } table[] = {{400000, 6250000, 10}, {10 * MS, 156250000, 14}, {30 * MS, 468750000, 15}};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        const lh_link_t link = {.scope = LH_LINK_WAN,
                                .round_trip_ns = table[i].trip_ns,
                                .bytes_per_second = 100 * GBIT};
        const lh_tuning_t share = {.pace_bytes_per_second = 3 * GBIT},
                          none = {.pace_bytes_per_second = UINT64_MAX};
        const ib_wish_t wish = {.pace = 7};
        const ib_tuning_t t = ib_tuning(&far, &no_wish, &link, &no_tuning, 0);
        assert_int_equal(t.window_bytes, table[i].window + 2 * t.chunk_bytes);
        assert_int_equal(t.ack_timeout, table[i].t);
        assert_int_equal(t.queue_pairs, 4);
        assert_true(t.window_bytes <= t.window_most);
        assert_int_equal(t.pace, 97 * GBIT);
        assert_int_equal(ib_tuning(&far, &no_wish, &link, &share, 0).pace, 3 * GBIT);
        assert_int_equal(ib_tuning(&far, &no_wish, &link, &none, 0).pace, 0);
        assert_int_equal(ib_tuning(&far, &wish, &link, &none, 0).pace, 7);
        assert_int_equal(ib_tuning(&near, &no_wish, &link, &share, 0).pace, 0);
    }
    const lh_link_t unknown = {.scope = LH_LINK_WAN};
    assert_int_equal(ib_tuning(&far, &no_wish, &unknown, &no_tuning, 100 * GBIT).ack_timeout, 16);
    assert_int_equal(ib_tuning(&far, &no_wish, &unknown, &no_tuning, 100 * GBIT).pace, 0);
}

/* 64 KiB chunks leave room for 126 on a queue pair. */
static void a_window_has_as_many_pairs_as_it_needs(void **state)
{
    const ib_wish_t small = {.chunk_bytes = 64 << 10},
                    one = {.chunk_bytes = 64 << 10, .queue_pairs = 1};
    const lh_link_t link = {.round_trip_ns = 10 * MS, .bytes_per_second = 20 * GBIT};
    (void)state;
    ib_tuning_t t = ib_tuning(&near, &small, &link, &no_tuning, 0);
    assert_int_equal(t.queue_pairs, 31381072 / (126 * 65536) + 1);
    assert_true(t.window_bytes <= t.window_most);
    t = ib_tuning(&near, &one, &link, &no_tuning, 0);
    assert_true(t.window_bytes > t.window_most);
    assert_int_equal(t.window_most, 126 * 65536);
}

static void each_port_has_a_pair(void **state)
{
    const ib_wish_t three = {.ports = 3}, set = {.ports = 3, .queue_pairs = 2};
    const lh_link_t link = {.round_trip_ns = MS, .bytes_per_second = GBIT};
    (void)state;
    assert_int_equal(ib_tuning(&near, &three, &link, &no_tuning, 0).queue_pairs, 3);
    assert_int_equal(ib_tuning(&near, &set, &link, &no_tuning, 0).queue_pairs, 2);
    /* Also where a host has chosen, whose choice goes before everything but the INI and the ports. */
    const lh_tuning_t one = {.streams = 1}, five = {.streams = 5};
    assert_int_equal(ib_tuning(&near, &three, &link, &one, 0).queue_pairs, 3);
    assert_int_equal(ib_tuning(&near, &three, &link, &five, 0).queue_pairs, 5);
    assert_int_equal(ib_tuning(&near, &set, &link, &one, 0).queue_pairs, 2);
    lh_tuning_t offered;
    for (uint32_t i = 0; ib_tuning_offer(&near, &three, &link, 0, i, &offered); i++)
        assert_true(offered.streams >= 3);
}

static void neighbours_change_one_thing_each(void **state)
{
    lh_tuning_t first, other;
    const ib_wish_t set = {.queue_pairs = 4, .chunk_bytes = MIB, .window_bytes = 9 * MIB};
    const lh_link_t clean = {.scope = LH_LINK_WAN,
                             .round_trip_ns = 10 * MS,
                             .bytes_per_second = GBIT},
                    lossy = {.scope = LH_LINK_WAN,
                             .round_trip_ns = 10 * MS,
                             .bytes_per_second = GBIT,
                             .loss = 1e-3};
    (void)state;
    assert_true(ib_tuning_offer(&far, &no_wish, &clean, 0, 0, &first));
    assert_int_equal(first.streams, 4);
    assert_true(ib_tuning_offer(&far, &no_wish, &clean, 0, 1, &other));
    assert_int_equal(other.inflight_bytes, 2 * first.inflight_bytes);
    assert_true(ib_tuning_offer(&far, &no_wish, &clean, 0, 2, &other));
    assert_int_equal(other.streams, 8);
    assert_true(ib_tuning_offer(&far, &no_wish, &clean, 0, 4, &other));
    assert_int_equal(other.streams, 2);
    assert_false(ib_tuning_offer(&far, &no_wish, &clean, 0, 5, &other));
    assert_false(ib_tuning_offer(&far, &set, &clean, 0, 1, &other));
    assert_true(ib_tuning_offer(&far, &no_wish, &lossy, 0, 0, &first));
    assert_int_equal(first.streams, 16); /* 1e-3 x 1.25 MB / (4096 x 0.02) = 15.3 */
}

static void a_bucket_lets_out_its_rate(void **state)
{
    ib_bucket_t b;
    uint64_t sent = 0, now = 5 * MS, most = 0;
    (void)state;
    ib_bucket_set(&b, 0, 0, now);
    assert_true(ib_bucket_open(&b, now) && ib_bucket_due(&b) == 0);
    ib_bucket_set(&b, GBIT, 2 * MIB, now);
    while (now < 1005 * MS) { /* who waits until it opens */
        uint64_t burst = 0;
        while (ib_bucket_open(&b, now)) {
            ib_bucket_take(&b, MIB);
            burst += MIB;
        }
        sent += burst;
        if (burst > most) most = burst;
        assert_true(ib_bucket_due(&b) > now);
        now = ib_bucket_due(&b);
    }
    assert_true(sent >= GBIT - MIB && sent <= GBIT + 4 * MIB);
    assert_int_equal(most, 2 * MIB);
    /* Rest does not save up more than its depth. */
    now += 1000000 * MS;
    for (sent = 0; ib_bucket_open(&b, now); sent += MIB)
        ib_bucket_take(&b, MIB);
    assert_int_equal(sent, 2 * MIB);
}

/* However often it changes. */
static void a_new_rate_gives_nothing_ahead(void **state)
{
    ib_bucket_t b;
    uint64_t sent = 0, now = 5 * MS;
    (void)state;
    ib_bucket_set(&b, GBIT, 2 * MIB, now);
    for (int i = 0; i < 1000; i++, now += MS) {
        ib_bucket_change(&b, i % 2 == 0 ? GBIT / 2 : GBIT, 2 * MIB, now);
        for (; ib_bucket_open(&b, now); sent += MIB)
            ib_bucket_take(&b, MIB);
    }
    assert_true(sent >= GBIT * 3 / 4 - 2 * MIB && sent <= GBIT * 3 / 4 + 3 * MIB);
    /* What was taken beyond it is waited for by the new rate. */
    now += 1000 * MS;
    ib_bucket_change(&b, GBIT, 2 * MIB, now);
    ib_bucket_take(&b, 4 * MIB);
    assert_true(ib_bucket_due(&b) == now + (uint64_t)(2e9 * (double)MIB / (double)GBIT) + 1);
    ib_bucket_change(&b, 2 * GBIT, 2 * MIB, now);
    assert_true(ib_bucket_due(&b) == now + (uint64_t)(1e9 * (double)MIB / (double)GBIT) + 1);
    /* A smaller bucket holds less; none holds nothing back, and the next one begins full. */
    now += 1000 * MS;
    ib_bucket_change(&b, GBIT, MIB, now);
    assert_true(b.tokens <= (double)MIB);
    ib_bucket_change(&b, 0, MIB, now);
    ib_bucket_take(&b, 9 * MIB);
    assert_true(ib_bucket_open(&b, now));
    ib_bucket_change(&b, GBIT, 2 * MIB, now);
    assert_true(b.tokens >= (double)(2 * MIB));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ack_timeout_is_the_least_that_is_patient),
        cmocka_unit_test(the_window_holds_what_is_under_way),
        cmocka_unit_test(a_window_is_spread_over_queue_pairs_that_carry_little),
        cmocka_unit_test(loss_is_shared_by_queue_pairs),
        cmocka_unit_test(each_port_has_a_pair),
        cmocka_unit_test(what_is_set_goes_before_what_is_measured),
        cmocka_unit_test(a_port_has_the_rate_of_its_lanes),
        cmocka_unit_test(long_links_are_filled_and_paced),
        cmocka_unit_test(a_window_has_as_many_pairs_as_it_needs),
        cmocka_unit_test(neighbours_change_one_thing_each),
        cmocka_unit_test(a_bucket_lets_out_its_rate),
        cmocka_unit_test(a_new_rate_gives_nothing_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
