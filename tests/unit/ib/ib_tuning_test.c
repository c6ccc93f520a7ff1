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

static const ib_wish_t no_wish;
static const lh_tuning_t no_tuning;

static ib_tuning_t chosen(uint64_t trip_ns, uint64_t rate, double loss)
{
    const lh_link_t link = {.round_trip_ns = trip_ns, .bytes_per_second = rate, .loss = loss};
    return ib_tuning(&no_wish, &link, &no_tuning, 100 * GBIT);
}

static void the_ack_timeout_is_the_least_that_is_patient(void **state)
{
    static const struct {
        uint64_t trip_ns;
        uint32_t t;
    } table[] = {{400000, 10}, {2 * MS, 12}, {10 * MS, 14}, {30 * MS, 15}, {50 * MS, 16}};
    (void)state;
    for (uint32_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(ib_ack_timeout(table[i].trip_ns, 0), table[i].t);
        assert_int_equal(chosen(table[i].trip_ns, 100 * GBIT, 0).ack_timeout, table[i].t);
        assert_true((uint64_t)4096 << table[i].t >= 4 * table[i].trip_ns + MS);
        assert_true((uint64_t)4096 << (table[i].t - 1) < 4 * table[i].trip_ns + MS);
    }
    assert_int_equal(ib_ack_timeout(0, 0), 14);
    assert_int_equal(ib_ack_timeout(UINT64_MAX, UINT64_MAX), 22);
    /* Two chunks of 1 MiB take 84 ms at 0.2 Gb/s. */
    assert_int_equal(chosen(400000, GBIT / 5, 0).ack_timeout, 15);
}

static void the_window_holds_what_is_under_way(void **state)
{
    (void)state;
    const ib_tuning_t t = chosen(10 * MS, 100 * GBIT, 0);
    assert_int_equal(t.chunk_bytes, 1250000 / 128 * 128);
    assert_int_equal(t.window_bytes, 156250000 + 2 * t.chunk_bytes);
    assert_int_equal(t.queue_pairs, 1);
    assert_int_equal(chosen(0, GBIT, 0).chunk_bytes, MIB);
    assert_int_equal(chosen(0, 10000 * GBIT, 0).chunk_bytes, 8 * MIB);
    assert_int_equal(chosen(0, 0, 0).window_bytes, 16 * chosen(0, 0, 0).chunk_bytes);
}

static void loss_is_shared_by_queue_pairs(void **state)
{
    (void)state;
    assert_int_equal(chosen(10 * MS, 100 * GBIT, 1e-7).queue_pairs, 1);
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
    ib_tuning_t t = ib_tuning(&wish, &link, &tuning, 0);
    assert_true(t.queue_pairs == 3 && t.chunk_bytes == 4 * MIB && t.window_bytes == 5 * MIB &&
                t.ack_timeout == 17);
    t = ib_tuning(&no_wish, &link, &tuning, 0);
    assert_true(t.queue_pairs == 5 && t.chunk_bytes == 2 * MIB && t.window_bytes == 9 * MIB);
    t = ib_tuning(&no_wish, &link, &wild, 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ack_timeout_is_the_least_that_is_patient),
        cmocka_unit_test(the_window_holds_what_is_under_way),
        cmocka_unit_test(loss_is_shared_by_queue_pairs),
        cmocka_unit_test(what_is_set_goes_before_what_is_measured),
        cmocka_unit_test(a_port_has_the_rate_of_its_lanes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
