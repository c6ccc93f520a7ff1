/* tcp_silence_test.c - what counts as a peer's silence, by invented clocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tcp_silence.h"

enum { FLIGHT = 7 };
#define MS UINT64_C(1000000)

static void idle_is_no_silence(void **state)
{
    (void)state;
    uint64_t since = 0;
    for (uint64_t now = 10000; now < 100000; now += 250)
        assert_int_equal(silence_at(&since, now * MS, 0, 0, now * MS - 1, false), 0);
}

static void it_counts_from_what_was_sent(void **state)
{
    (void)state;
    uint64_t since = 0;
    /* An hour without a message; then one is sent, and the last acknowledgement is an hour old. */
    const uint64_t hour = 3600 * 1000 * MS;
    assert_int_equal(silence_at(&since, 2 * hour, FLIGHT, 0, hour, false), 0);
    assert_int_equal(silence_at(&since, 2 * hour + 250 * MS, FLIGHT, 0, hour, false), 250 * MS);
    assert_int_equal(silence_at(&since, 2 * hour + 3000 * MS, FLIGHT, 0, hour, false), 3000 * MS);
    /* All of it is acknowledged: what is sent next waits from then on. */
    assert_int_equal(silence_at(&since, 2 * hour + 3250 * MS, 0, 0, 10 * MS, false), 0);
    assert_int_equal(silence_at(&since, 2 * hour + 9000 * MS, FLIGHT, 0, 5750 * MS, false), 0);
}

static void an_acknowledgement_ends_it(void **state)
{
    (void)state;
    uint64_t since = 0;
    /* A busy stream: something is always on its way, the last acknowledgement is always young. */
    for (uint64_t now = 10000; now < 100000; now += 250)
        assert_in_range(silence_at(&since, now * MS, FLIGHT, 0, 40 * MS, false), 0, 40 * MS);
    /* The link is cut. */
    assert_int_equal(silence_at(&since, 102960 * MS, FLIGHT, 0, 3000 * MS, false), 3000 * MS);
}

/* What is sent after a cut is dropped here; the kernel tries again after 200 ms and, as that was
 * dropped, too, after 500 more, when the packet leaves. */
static void a_probe_without_an_answer_counts(void **state)
{
    (void)state;
    uint64_t since = 0;
    assert_int_equal(silence_at(&since, 10000 * MS, 0, 0, 10 * MS, false), 0);
    assert_int_equal(silence_at(&since, 10200 * MS, 0, 1, 210 * MS, false), 0);
    assert_int_equal(silence_at(&since, 10700 * MS, FLIGHT, 0, 710 * MS, false), 500 * MS);
    assert_int_equal(silence_at(&since, 13200 * MS, FLIGHT, 0, 3210 * MS, false), 3000 * MS);
    /* A peer that reads nothing and answers is there. */
    since = 0;
    assert_int_equal(silence_at(&since, 20000 * MS, 0, 1, 900 * MS, false), 0);
    assert_int_equal(silence_at(&since, 20050 * MS, 0, 0, 40 * MS, false), 0);
    assert_int_equal(silence_at(&since, 21000 * MS, 0, 1, 990 * MS, false), 0);
}

static void a_machine_that_slept_waits_anew(void **state)
{
    (void)state;
    uint64_t since = 0;
    assert_int_equal(silence_at(&since, 10000 * MS, FLIGHT, 0, 10 * MS, false), 0);
    assert_int_equal(silence_at(&since, 70000 * MS, FLIGHT, 0, 60010 * MS, true), 0);
    assert_int_equal(silence_at(&since, 70250 * MS, FLIGHT, 0, 60260 * MS, false), 250 * MS);
}

static void an_age_beyond_the_clock_is_none(void **state)
{
    (void)state;
    uint64_t since = 0; /* the clock of a machine that has just started */
    assert_int_equal(silence_at(&since, 5 * MS, FLIGHT, 0, 90 * MS, false), 0);
    assert_int_equal(silence_at(&since, 9 * MS, FLIGHT, 0, 94 * MS, false), 4 * MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_is_no_silence),
        cmocka_unit_test(it_counts_from_what_was_sent),
        cmocka_unit_test(an_acknowledgement_ends_it),
        cmocka_unit_test(a_probe_without_an_answer_counts),
        cmocka_unit_test(a_machine_that_slept_waits_anew),
        cmocka_unit_test(an_age_beyond_the_clock_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
