/* link_wait_test.c - what a step waits for other sites, against the table of a Llama of 7B that was
 * computed elsewhere (tests/lab/sites_test.py has the same). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <base/memory.h>
#include <plan/link_wait.h>

#include <cmocka.h>
#undef fail

/* Two sites; 2 bytes a parameter of sums and as many of values. */
static void a_large_model_waits_as_the_table_has_it(void **state)
{
    (void)state;
    static const double trips[] = {0.4e-3, 10e-3, 30e-3, 50e-3},
                        told[] = {1.003, 1.004, 1.008, 1.011};
    const double step = 6.3, bytes = 6.75e9;
    const double crosses[2 * 2 * 2] = {0, bytes, bytes, 0, 0, bytes, bytes, 0};
    for (uint32_t i = 0; i < 4; i++) {
        const probe_pair_t pair = {.figures = {.round_trip_ns = (uint64_t)(1e9 * trips[i]),
                                               .rate = {12500000000, 12500000000}}};
        const link_wait_how_t how = {.sites = 2,
                                     .crosses = crosses,
                                     .pairs = &pair,
                                     .pair_count = 1,
                                     .edge = {1.0 / 64, 1.0 / 64},
                                     .window_s = {step * 2 / 3, step / 3},
                                     .trips = {0.5, 0.5}};
        link_wait_t out;
        assert_true(link_wait(&how, &out));
        assert_true(fabs(out.moved_s[CROSSING_SUMS] - bytes / 0.95 / 12.5e9) < 1e-9);
        const double found = 1 + (out.wait_s[CROSSING_SUMS] + out.wait_s[CROSSING_VALUES]) / step;
        assert_true(fabs(found - told[i]) < 6e-4);
    }
}

/* Three sites, of which the slower direction of the slower link counts, and the INI's rate before what
 * was measured. What nobody has measured has no time. */
static void the_busiest_direction_counts(void **state)
{
    (void)state;
    double crosses[2 * 3 * 3] = {0}; /* sums first */
    crosses[0 * 3 + 1] = 950;        /* a to b */
    crosses[1 * 3 + 0] = 950;        /* b to a */
    crosses[2 * 3 + 1] = 95;         /* c to b */
    probe_pair_t pairs[3] = {{.figures = {.round_trip_ns = 1000000, .rate = {2000, 1000}}},
                             {.figures = {.round_trip_ns = 9000000, .rate = {1, 1}}},
                             {.figures = {.round_trip_ns = 4000000, .rate = {1, 50}}}};
    link_wait_how_t how = {
        .sites = 3, .crosses = crosses, .pairs = pairs, .pair_count = 3, .trips = {0.5, 0.5}};
    link_wait_t out;
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.moved_s[CROSSING_SUMS] - 2) < 1e-9); /* 95 bytes at 95 % of 50 a second */
    assert_true(fabs(out.wait_s[CROSSING_SUMS] - 2.002) < 1e-9);
    assert_true(out.moved_s[CROSSING_VALUES] == 0 && out.wait_s[CROSSING_VALUES] == 0);
    how.window_s[CROSSING_SUMS] = 1.5;
    how.edge[CROSSING_SUMS] = 0.5;
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.wait_s[CROSSING_SUMS] - (0.5 * 0.5 + 1 + 0.002)) < 1e-9);
    how.trips[CROSSING_SUMS] = 2; /* a ring of three: as many of the slowest link */
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.wait_s[CROSSING_SUMS] - (0.5 * 0.5 + 1 + 0.008)) < 1e-9);
    how.rate = 100;
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.moved_s[CROSSING_SUMS] - 10) < 1e-9);
    how.rate = 0;
    pairs[2].figures.rate[1] = 0;
    assert_false(link_wait(&how, &out));
    pairs[2].figures.rate[1] = 50;
    how.pair_count = 2;
    assert_false(link_wait(&how, &out));
}

/* Three sites whose pairs have half of their rate while all are busy, and all of it where only those of
 * the second are. */
static void what_pairs_share_counts_where_all_are_busy(void **state)
{
    (void)state;
    double crosses[2 * 3 * 3] = {0};
    probe_pair_t pairs[3] = {{.figures = {.rate = {1000, 1000}}}};
    for (uint32_t i = 0; i < 3; i++) {
        probe_figures_t *f = &pairs[i].figures;
        *f = (probe_figures_t){.round_trip_ns = 1000000, .rate = {1000, 1000}, .beside_pairs = 3};
        for (int way = 0; way < 2; way++) {
            f->beside[BESIDE_ALL][way] = f->beside[BESIDE_FIRST][way] = 500;
            f->beside[BESIDE_SECOND][way] = 500;
        }
    }
    pairs[0].figures.beside[BESIDE_SECOND][0] = pairs[0].figures.beside[BESIDE_SECOND][1] = 990;
    pairs[2].figures.beside[BESIDE_FIRST][0] = pairs[2].figures.beside[BESIDE_FIRST][1] = 990;
    link_wait_how_t how = {.sites = 3, .crosses = crosses, .pairs = pairs, .pair_count = 3};
    link_wait_t out;
    for (uint32_t from = 0; from < 3; from++)
        for (uint32_t to = 0; to < 3; to++)
            crosses[from * 3 + to] = from == to ? 0 : 950;
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.moved_s[CROSSING_SUMS] - 2) < 1e-9);
    how.rate = 4000; /* of which each has a half, too */
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.moved_s[CROSSING_SUMS] - 0.5) < 1e-9);
    how.rate = 0;
    crosses[0 * 3 + 2] = crosses[2 * 3 + 0] = 0; /* a chain by the second */
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.moved_s[CROSSING_SUMS] - 1) < 1e-9);
    crosses[0 * 3 + 2] = crosses[2 * 3 + 0] = 950; /* a chain by the first */
    crosses[1 * 3 + 2] = crosses[2 * 3 + 1] = 0;
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.moved_s[CROSSING_SUMS] - 2) < 1e-9);
    crosses[0 * 3 + 1] = crosses[2 * 3 + 0] = 0; /* one way, then the other */
    assert_true(link_wait(&how, &out));
    assert_true(fabs(out.moved_s[CROSSING_SUMS] - 1) < 1e-9);
}

/* Two ranks a site: of 400 bytes that one sends, 300 go to the other rank of its site. The last 25
 * are a quarter of what crosses, which nothing hides. */
static void what_stays_inside_a_site_hides_nothing(void **state)
{
    (void)state;
    static const double to[2] = {300, 100}, back[2] = {100, 300}, inside[2] = {300, 0};
    assert_true(fabs(link_wait_edge(to, 2, 0, 25) - 0.25) < 1e-12);
    assert_true(fabs(link_wait_edge(back, 2, 1, 25) - 0.25) < 1e-12);
    assert_true(link_wait_edge(inside, 2, 0, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_model_waits_as_the_table_has_it),
        cmocka_unit_test(the_busiest_direction_counts),
        cmocka_unit_test(what_pairs_share_counts_where_all_are_busy),
        cmocka_unit_test(what_stays_inside_a_site_hides_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
