/* link_tuner_test.c - when a link between two sites is tuned anew: figures that were made up, step by step. */
#include <links/link_tuner.h>

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <base/philox.h>

#include <cmocka.h>

#define MS 1000000ull

static const probe_figures_t opened = {
    .measured_s = 1, .round_trip_ns = 10 * MS, .loss = {1e-5, -1}};

static tuner_figures_t seen_trip(uint64_t trip_ns)
{
    return (tuner_figures_t){.round_trip_ns = trip_ns, .loss = {-1, -1}};
}

/* After how many steps with this round trip the link is tuned anew; 0: not after `most`. */
static uint32_t steps_until(link_tuner_t *t, uint64_t trip_ns, uint32_t most)
{
    const tuner_figures_t seen = seen_trip(trip_ns);
    for (uint32_t step = 1; step <= most; step++)
        if (link_tuner_step(t, &seen) != 0) return step;
    return 0;
}

static void a_longer_way_counts_after_twenty_steps(void **state)
{
    (void)state;
    link_tuner_t t;
    link_tuner_begin(&t, &opened);
    assert_true(t.now.kept[0] == 1 && t.now.loss[0] == 1e-5 && t.now.loss[1] == 0);
    for (uint32_t step = 1; step < 20; step++) {
        const tuner_figures_t seen = seen_trip((30 + step % 3) * MS);
        assert_int_equal(link_tuner_step(&t, &seen), 0);
    }
    const tuner_figures_t last = seen_trip(29 * MS);
    assert_int_equal(link_tuner_step(&t, &last), TUNED_TRIP);
    assert_int_equal(t.now.round_trip_ns, 29 * MS); /* the least of them */
    assert_int_equal(steps_until(&t, 31 * MS, 100), 0);
}

/* A tenth, a millisecond of a busy machine, one step that was as before, steps that told nothing. */
static void what_is_near_or_not_in_turn_changes_nothing(void **state)
{
    (void)state;
    link_tuner_t t;
    link_tuner_begin(&t, &opened);
    assert_int_equal(steps_until(&t, 11 * MS, 100), 0);
    assert_int_equal(steps_until(&t, 9 * MS, 100), 0);
    for (uint32_t step = 0; step < 200; step++) {
        const tuner_figures_t seen = seen_trip(step % 20 == 19 ? 10 * MS : 40 * MS);
        assert_int_equal(link_tuner_step(&t, &seen), 0);
    }
    /* Nineteen longer ones, then shorter ones: the turn begins anew. */
    link_tuner_begin(&t, &opened);
    assert_int_equal(steps_until(&t, 40 * MS, 19), 0);
    assert_int_equal(steps_until(&t, 5 * MS, 19), 0);
    assert_int_equal(steps_until(&t, 5 * MS, 1), 1);
    assert_int_equal(t.now.round_trip_ns, 5 * MS);
    /* What tells nothing ends no turn and counts for none. */
    link_tuner_begin(&t, &opened);
    assert_int_equal(steps_until(&t, 40 * MS, 19), 0);
    assert_int_equal(steps_until(&t, 0, 100), 0);
    assert_int_equal(steps_until(&t, 40 * MS, 1), 1);
    /* A link of which nothing was known is not followed. */
    const probe_figures_t unknown = {.measured_s = 1};
    link_tuner_begin(&t, &unknown);
    assert_int_equal(steps_until(&t, 40 * MS, 100), 0);
}

static void a_way_that_comes_and_goes_is_followed_more_and_more_rarely(void **state)
{
    (void)state;
    link_tuner_t t;
    link_tuner_begin(&t, &opened);
    for (uint32_t patience = 20; patience <= 1280; patience *= 2) {
        assert_int_equal(steps_until(&t, 40 * MS, 10000), 20);
        assert_int_equal(steps_until(&t, 10 * MS, 10000), patience);
    }
    assert_int_equal(steps_until(&t, 40 * MS, 10000), 20);
    assert_int_equal(steps_until(&t, 10 * MS, 10000), 1280); /* and not more rarely than that */
    assert_int_equal(steps_until(&t, 40 * MS, 10000), 20);
    assert_int_equal(steps_until(&t, 40 * MS, 1000), 0); /* calm */
    assert_int_equal(steps_until(&t, 10 * MS, 10000), 20);
}

/* Whatever is seen: of 10,000 steps few change anything, and two changes are twenty steps apart. */
static void no_order_of_figures_makes_it_swing(void **state)
{
    (void)state;
    for (uint64_t run = 0; run < 20; run++) {
        link_tuner_t t;
        uint64_t draws = 0, last = 0;
        uint32_t changes = 0;
        tuner_figures_t seen = {.kept = {1, 1}, .loss = {-1, -1}};
        link_tuner_begin(&t, &opened);
        uint64_t left = 0;
        for (uint64_t step = 1; step <= 10000; step++, left--) {
            if (left == 0) {
                left = 1 + (uint64_t)(60 * philox_uniform(run, 1, draws++));
                seen.round_trip_ns = (uint64_t)(60e6 * philox_uniform(run, 2, draws++));
            }
            if (link_tuner_step(&t, &seen) == 0) continue;
            assert_true(last == 0 || step - last >= 20);
            last = step;
            changes++;
        }
        assert_in_range(changes, 1, 80); /* 500 if twenty steps were all */
    }
}

static void more_loss_counts_at_once_and_less_after_a_while(void **state)
{
    (void)state;
    link_tuner_t t;
    link_tuner_begin(&t, &opened);
    tuner_figures_t seen = {.loss = {1.9e-5, 2e-6}}; /* a factor of two; too little to tell */
    for (uint32_t step = 0; step < 100; step++)
        assert_int_equal(link_tuner_step(&t, &seen), 0);
    seen.loss[1] = 1e-4;
    assert_int_equal(link_tuner_step(&t, &seen), TUNED_LOSS);
    assert_true(t.now.loss[0] == 1e-5 && t.now.loss[1] == 1e-4);
    assert_int_equal(link_tuner_step(&t, &seen), 0);
    seen.loss[1] = 0;
    for (uint32_t step = 1; step < 20; step++)
        assert_int_equal(link_tuner_step(&t, &seen), 0);
    assert_int_equal(link_tuner_step(&t, &seen), TUNED_LOSS);
    assert_true(t.now.loss[1] == 0);
    assert_int_equal(t.patience, 40);
    seen.loss[0] = seen.loss[1] = -1; /* nothing is told of it */
    for (uint32_t step = 0; step < 100; step++)
        assert_int_equal(link_tuner_step(&t, &seen), 0);
}

static void a_rate_counts_as_its_pace_was_changed(void **state)
{
    (void)state;
    link_tuner_t t;
    link_tuner_begin(&t, &opened);
    tuner_figures_t seen = {.kept = {0.95, 0}, .loss = {-1, -1}};
    assert_int_equal(link_tuner_step(&t, &seen), 0);
    seen.kept[0] = 0.5;
    assert_int_equal(link_tuner_step(&t, &seen), TUNED_RATE);
    assert_true(t.now.kept[0] == 0.5 && t.now.kept[1] == 1);
    assert_int_equal(link_tuner_step(&t, &seen), 0);
    seen.kept[0] = 1;
    assert_int_equal(link_tuner_step(&t, &seen), TUNED_RATE);
}

static void a_change_is_told_in_a_line(void **state)
{
    (void)state;
    char text[512];
    link_change_t c = {.site = {"tokyo", "osaka"},
                       .step = 24,
                       .rate = {100000000, 125000000},
                       .before = {.round_trip_ns = 10 * MS, .kept = {1, 1}, .loss = {0, 0}},
                       .now = {.round_trip_ns = 10 * MS, .kept = {0.5, 1}, .loss = {0, 0}},
                       .why = TUNED_RATE,
                       .tuned = "window 0.5 MB"};
    link_tuner_text(&c, text, sizeof(text));
    assert_string_equal(text, "tokyo-osaka: 0.4 Gb/s there instead of 0.8 from step 24 on; window "
                              "0.5 MB");
    c.now = (tuner_figures_t){.round_trip_ns = 30 * MS, .kept = {1, 0.5}, .loss = {1e-4, 0}};
    c.tuned[0] = '\0';
    link_tuner_text(&c, text, sizeof(text));
    assert_string_equal(text,
                        "tokyo-osaka: 0.5 Gb/s back instead of 1, 30.00 ms instead of 10.00, a "
                        "loss of 1.0e-04 there instead of 0.0e+00 from step 24 on");
    char little[24];
    link_tuner_text(&c, little, sizeof(little));
    assert_string_equal(little, "tokyo-osaka: 0.5 Gb/s b");
}

static void what_is_other_of_a_connection_is_told(void **state)
{
    (void)state;
    char text[256];
    const lh_tuning_t before = {.streams = 4,
                                .chunk_bytes = 512 << 10,
                                .inflight_bytes = 2000000,
                                .buffer_bytes = 6 << 20,
                                .control = 1};
    lh_tuning_t after = before;
    after.pace_bytes_per_second = 7;
    link_tuner_changes(&before, &after, text, sizeof(text));
    assert_string_equal(text, "");
    after.inflight_bytes = 1000000;
    after.chunk_bytes = 256 << 10;
    link_tuner_changes(&before, &after, text, sizeof(text));
    assert_string_equal(text, "window 1 MB instead of 2, chunks of 256 KiB instead of 512");
    after = before;
    after.streams = 2;
    after.buffer_bytes = 9 << 20;
    after.control = 2;
    link_tuner_changes(&before, &after, text, sizeof(text));
    assert_string_equal(
        text, "2 streams instead of 4, buffers of 9 MiB instead of 6, another congestion control");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_longer_way_counts_after_twenty_steps),
        cmocka_unit_test(what_is_near_or_not_in_turn_changes_nothing),
        cmocka_unit_test(a_way_that_comes_and_goes_is_followed_more_and_more_rarely),
        cmocka_unit_test(no_order_of_figures_makes_it_swing),
        cmocka_unit_test(more_loss_counts_at_once_and_less_after_a_while),
        cmocka_unit_test(a_rate_counts_as_its_pace_was_changed),
        cmocka_unit_test(a_change_is_told_in_a_line),
        cmocka_unit_test(what_is_other_of_a_connection_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
