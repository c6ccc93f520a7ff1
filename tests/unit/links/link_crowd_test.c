/* link_crowd_test.c - what pairs of sites leave each other, by figures of layouts that are known. */
#include <links/link_crowd.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <links/links.h>

#include <cmocka.h>

enum { SITES = 3, PAIRS = 3 };
static const char *const names[] = {"tokyo", "osaka", "nagoya"};

/* Three sites of 1 GB/s each way, with nothing measured at once yet. */
static void three(probe_pair_t pairs[PAIRS])
{
    memset(pairs, 0, PAIRS * sizeof(*pairs));
    for (uint32_t b = 1; b < SITES; b++)
        for (uint32_t a = 0; a < b; a++) {
            probe_pair_t *p = &pairs[links_pair(a, b)];
            (void)snprintf(p->site[0], sizeof(p->site[0]), "%s", names[a]);
            (void)snprintf(p->site[1], sizeof(p->site[1]), "%s", names[b]);
            p->figures.rate[0] = p->figures.rate[1] = 1000000000;
            p->figures.beside_pairs = PAIRS;
        }
}

/* Both ways of one pair. */
static void came(probe_pair_t pairs[PAIRS], uint32_t a, uint32_t b, uint32_t beside, uint64_t rate)
{
    uint64_t *ways = pairs[links_pair(a, b)].figures.beside[beside];
    ways[0] = ways[1] = rate;
}

static void came_of_all(probe_pair_t pairs[PAIRS], uint64_t rate)
{
    for (uint32_t b = 1; b < SITES; b++)
        for (uint32_t a = 0; a < b; a++)
            came(pairs, a, b, BESIDE_ALL, rate);
}

static void is_rate(const probe_pair_t pairs[PAIRS], uint32_t from, uint32_t to, uint32_t busy,
                    double expected)
{
    const double found = link_crowd_rate(pairs, SITES, from, to, busy);
    assert_true(fabs(found - expected) < 1);
}

static void is_said(const probe_pair_t pairs[PAIRS], const char *expected)
{
    char text[256];
    assert_true(link_crowd_text(pairs, SITES, text, sizeof(text)));
    assert_string_equal(text, expected);
}

static void pairs_are_those_of_a_site_or_all(void **state)
{
    (void)state;
    assert_true(link_crowd_has(0, 2, CROWD_ALL) && link_crowd_has(0, 2, 0));
    assert_true(link_crowd_has(0, 2, 2) && !link_crowd_has(0, 2, 1));
    assert_false(link_crowd_has(0, 2, CROWD_NONE));
    assert_true(link_crowd_ns(400000) == 400000000 && link_crowd_ns(50000000) == 800000000);
}

static void a_mesh_is_as_fast_as_its_pairs_alone(void **state)
{
    (void)state;
    uint32_t middle;
    char text[256];
    probe_pair_t pairs[PAIRS];
    three(pairs);
    assert_int_equal(link_crowd_layout(pairs, SITES, &middle), CROWD_UNKNOWN);
    assert_false(link_crowd_text(pairs, SITES, text, sizeof(text)));
    is_rate(pairs, 0, 1, CROWD_ALL, 1e9);
    came_of_all(pairs, 900000000); /* a tenth less is a busy machine */
    assert_int_equal(link_crowd_layout(pairs, SITES, &middle), CROWD_APART);
    is_rate(pairs, 2, 1, CROWD_ALL, 1e9);
    is_said(pairs, "all pairs of sites at once: none takes from another");
}

/* Tokyo, osaka, nagoya in a row: what goes from end to end takes both cables, and had more of them, as
 * its way is longer. */
static void a_chain_has_a_middle_whose_pairs_are_free(void **state)
{
    (void)state;
    uint32_t middle = 99;
    probe_pair_t pairs[PAIRS];
    three(pairs);
    came(pairs, 0, 1, BESIDE_ALL, 300000000);
    came(pairs, 1, 2, BESIDE_ALL, 300000000);
    came(pairs, 0, 2, BESIDE_ALL, 700000000);
    assert_int_equal(link_crowd_layout(pairs, SITES, &middle),
                     CROWD_SHARED); /* no site alone yet */
    came(pairs, 0, 1, BESIDE_FIRST, 400000000);
    came(pairs, 0, 2, BESIDE_FIRST, 600000000);
    came(pairs, 0, 1, BESIDE_SECOND, 980000000);
    came(pairs, 1, 2, BESIDE_FIRST, 960000000);
    came(pairs, 0, 2, BESIDE_SECOND, 600000000);
    came(pairs, 1, 2, BESIDE_SECOND, 400000000);
    assert_int_equal(link_crowd_layout(pairs, SITES, &middle), CROWD_CHAIN);
    assert_int_equal(middle, 1);
    is_said(pairs,
            "all pairs of sites at once: down to 30 % of what one has alone, but those of osaka "
            "without the other: a chain with osaka in the middle");
    /* An equal part of a cable, not what luck gave. */
    is_rate(pairs, 0, 1, CROWD_ALL, 5e8);
    is_rate(pairs, 1, 2, CROWD_ALL, 5e8);
    is_rate(pairs, 0, 2, CROWD_ALL, 7e8);
    is_rate(pairs, 0, 1, 1, 1e9);
    is_rate(pairs, 1, 0, 1, 1e9);
    is_rate(pairs, 1, 0, 0, 5e8);
    is_rate(pairs, 0, 1, CROWD_NONE, 1e9);
}

static void a_border_that_all_share_has_no_middle(void **state)
{
    (void)state;
    uint32_t middle;
    probe_pair_t pairs[PAIRS];
    three(pairs);
    came_of_all(pairs, 500000000);
    for (uint32_t i = 0; i < PAIRS; i++)
        for (int way = 0; way < 2; way++)
            pairs[i].figures.beside[BESIDE_FIRST][way] =
                pairs[i].figures.beside[BESIDE_SECOND][way] = 500000000;
    assert_int_equal(link_crowd_layout(pairs, SITES, &middle), CROWD_SHARED);
    is_rate(pairs, 2, 0, 2, 5e8);
    is_said(pairs, "all pairs of sites at once: down to 50 % of what one has alone: they share "
                   "borders or cables");
}

/* A fast pair's rate is not a slow one's, and figures of other sites are none of these. */
static void what_was_measured_of_others_is_not_believed(void **state)
{
    (void)state;
    uint32_t middle;
    probe_pair_t pairs[PAIRS];
    three(pairs);
    pairs[links_pair(0, 1)].figures.rate[0] = 9000000000;
    came_of_all(pairs, 1000000000);
    came(pairs, 0, 1, BESIDE_ALL, 8500000000);
    came(pairs, 0, 2, BESIDE_ALL, 400000000);
    is_rate(pairs, 0, 1, CROWD_ALL, 9e9);
    is_rate(pairs, 0, 2, CROWD_ALL, 7e8);
    pairs[links_pair(0, 2)].figures.beside_pairs = 6;
    is_rate(pairs, 0, 2, CROWD_ALL, 1e9);
    assert_int_equal(link_crowd_layout(pairs, SITES, &middle), CROWD_UNKNOWN);
    /* Beside as many, but at another time. */
    pairs[links_pair(0, 2)].figures.beside_pairs = PAIRS;
    is_rate(pairs, 0, 2, CROWD_ALL, 7e8);
    pairs[links_pair(0, 2)].figures.beside_at_s = 7;
    is_rate(pairs, 0, 2, CROWD_ALL, 1e9);
    assert_int_equal(link_crowd_layout(pairs, SITES, &middle), CROWD_UNKNOWN);
    /* Two sites have one pair. */
    probe_pair_t pair = {
        .figures = {.rate = {7, 7}, .beside_pairs = 1, .beside = {{1, 1}, {1, 1}, {1, 1}}}};
    assert_true(link_crowd_rate(&pair, 2, 0, 1, CROWD_NONE) > 6);
}

/* What a site's pairs have while no others are busy: that with the first of the other sites, and that with
 * the second. */
static void came_of_site(probe_pair_t pairs[PAIRS], uint32_t site, uint64_t first, uint64_t second)
{
    uint64_t rate = first;
    for (uint32_t s = 0; s < SITES; s++) {
        if (s == site) continue;
        came(pairs, site, s, site < s ? BESIDE_FIRST : BESIDE_SECOND, rate);
        rate = second;
    }
}

static void is_part(const probe_pair_t pairs[PAIRS], const double *demand, uint32_t from,
                    uint32_t to, double expected)
{
    const double part = link_crowd_part(pairs, SITES, demand, from, to);
    if (fabs(part - expected) > 1e-9) print_message("%u to %u: %.12g\n", from, to, part);
    assert_true(fabs(part - expected) <= 1e-9);
}

/* Of two pairs that have 1 GB/s each by themselves. */
static double sum_of(const probe_pair_t pairs[PAIRS], const double *demand, uint32_t from,
                     uint32_t to, uint32_t other_from, uint32_t other_to)
{
    return 1e9 * (link_crowd_part(pairs, SITES, demand, from, to) +
                  link_crowd_part(pairs, SITES, demand, other_from, other_to));
}

/* Tokyo's, which its traffic to both others shares; osaka and nagoya have a cable of their own. */
static void a_single_uplink_is_shared_by_what_pairs_send(void **state)
{
    (void)state;
    probe_pair_t pairs[PAIRS];
    three(pairs);
    came_of_site(pairs, 0, 600000000, 390000000);
    came_of_site(pairs, 1, 990000000, 980000000);
    came_of_site(pairs, 2, 970000000, 960000000);
    is_part(pairs, NULL, 0, 1, 0.5);
    is_part(pairs, NULL, 0, 2, 0.5);
    is_part(pairs, NULL, 2, 0, 0.5);
    is_part(pairs, NULL, 1, 2, 1);
    static const double demand[SITES][SITES] = {{0, 3, 1}, {7, 0, 100}, {0, 5, 0}};
    is_part(pairs, demand[0], 0, 1, 0.75);
    is_part(pairs, demand[0], 0, 2, 0.25);
    is_part(pairs, demand[0], 1, 0, 31.0 / 32); /* who is silent keeps a sixteenth of a half */
    is_part(pairs, demand[0], 2, 0, 1.0 / 32);
    is_part(pairs, demand[0], 1, 2, 1);
    static const double nothing[SITES][SITES];
    is_part(pairs, nothing[0], 0, 2, 0.5);
    /* Whatever is sent, it is no more than the border carries, and no less where both have enough. */
    double some[SITES][SITES] = {{0}};
    for (some[0][1] = 1; some[0][1] < 1e30; some[0][1] *= 7) {
        some[0][2] = 1e15;
        const double sum = sum_of(pairs, some[0], 0, 1, 0, 2);
        assert_true(sum <= 1e9 * (1 + 1e-12) && sum > 1e9 * (1 - 1e-6));
    }
    /* Of other sites: nothing is known. */
    pairs[links_pair(0, 1)].figures.beside_pairs = 6;
    is_part(pairs, demand[0], 0, 1, 1);
    pairs[links_pair(0, 1)].figures.beside_pairs = PAIRS;
    is_part(pairs, demand[0], 0, 1, 0.75);
    pairs[links_pair(0, 1)].figures.beside_at_s = 7;
    is_part(pairs, demand[0], 0, 1, 1);
    is_part(pairs, demand[0], 0, 2, 1);
}

/* Whole sums go to the middle and back: its pairs have a cable each, but for what the ends keep. */
static void over_a_chain_the_ends_share_both_cables(void **state)
{
    (void)state;
    probe_pair_t pairs[PAIRS];
    three(pairs);
    came_of_site(pairs, 0, 400000000, 600000000);
    came_of_site(pairs, 1, 980000000, 960000000);
    came_of_site(pairs, 2, 600000000, 400000000);
    for (uint32_t from = 0; from < SITES; from++)
        for (uint32_t to = 0; to < SITES; to++)
            if (from != to) is_part(pairs, NULL, from, to, 0.5);
    static const double middle[SITES][SITES] = {{0, 9, 0}, {9, 0, 9}, {0, 9, 0}};
    is_part(pairs, middle[0], 0, 1, 31.0 / 32);
    is_part(pairs, middle[0], 1, 0, 31.0 / 32);
    is_part(pairs, middle[0], 2, 1, 31.0 / 32);
    is_part(pairs, middle[0], 0, 2, 1.0 / 32);
    /* What goes from end to end has the lesser of two parts. */
    static const double all[SITES][SITES] = {{0, 1, 3}, {9, 0, 9}, {0, 9, 0}};
    is_part(pairs, all[0], 0, 1, 0.25);
    is_part(pairs, all[0], 1, 2, 0.75);
    is_part(pairs, all[0], 0, 2, 0.25);
    for (int i = 0; i < 3; i++) {
        const double some[SITES][SITES] = {{0, 1 + i, 20 - 9 * i}, {i, 0, 1e3}, {5, i * i, 0}};
        assert_true(sum_of(pairs, some[0], 0, 1, 0, 2) <= 1e9 * (1 + 1e-12));
        assert_true(sum_of(pairs, some[0], 1, 2, 0, 2) <= 1e9 * (1 + 1e-12));
        assert_true(sum_of(pairs, some[0], 1, 0, 2, 0) <= 1e9 * (1 + 1e-12));
        assert_true(sum_of(pairs, some[0], 2, 1, 2, 0) <= 1e9 * (1 + 1e-12));
    }
}

/* One has nearly all of the border, which the other lacks; and a pair with a cable of its own, in a site
 * of four, is on none that others share. */
static void who_is_slowed_is_luck_and_who_shares_is_not(void **state)
{
    (void)state;
    probe_pair_t pairs[PAIRS];
    three(pairs);
    came_of_site(pairs, 0, 900000000, 90000000);
    is_part(pairs, NULL, 0, 1, 0.5);
    is_part(pairs, NULL, 0, 2, 0.5);

    enum { FOUR = 4, FOURS_PAIRS = 6 };
    static const uint64_t alone[] = {9000000000, 1000000000, 1000000000},
                          beside[] = {8900000000, 800000000, 150000000};
    static const double expected[] = {1, 0.5, 0.5};
    probe_pair_t more[FOURS_PAIRS];
    memset(more, 0, sizeof(more));
    for (uint32_t s = 1; s < FOUR; s++) {
        probe_figures_t *f = &more[links_pair(0, s)].figures;
        f->beside_pairs = FOURS_PAIRS;
        for (int way = 0; way < 2; way++) {
            f->rate[way] = alone[s - 1];
            f->beside[BESIDE_FIRST][way] = beside[s - 1];
        }
    }
    for (uint32_t s = 1; s < FOUR; s++) {
        assert_true(fabs(link_crowd_part(more, FOUR, NULL, 0, s) - expected[s - 1]) < 1e-9);
        assert_true(fabs(link_crowd_part(more, FOUR, NULL, s, 0) - expected[s - 1]) < 1e-9);
    }
}

/* A thin pair has all that it has alone, and what it can't use the other has. */
static void no_pair_has_more_than_alone(void **state)
{
    (void)state;
    probe_pair_t pairs[PAIRS];
    three(pairs);
    pairs[links_pair(0, 2)].figures.rate[0] = 100000000;
    came_of_site(pairs, 0, 600000000, 70000000);
    is_part(pairs, NULL, 0, 1, 0.9);
    is_part(pairs, NULL, 0, 2, 1);
    /* Over a mesh all have it. */
    three(pairs);
    for (uint32_t s = 0; s < SITES; s++)
        came_of_site(pairs, s, 900000000, 1000000000);
    is_part(pairs, NULL, 2, 0, 1);
    /* More sites than are ever measured at once, whatever a record says. */
    enum { MANY = 9, MANYS_PAIRS = 36 };
    static probe_pair_t many[MANYS_PAIRS];
    for (uint32_t i = 0; i < MANYS_PAIRS; i++)
        many[i].figures = (probe_figures_t){
            .rate = {10, 10}, .beside = {{1, 1}, {1, 1}, {1, 1}}, .beside_pairs = MANYS_PAIRS};
    assert_true(link_crowd_part(many, MANY, NULL, 0, 8) == 1);
}

static void several_ranks_count_where_they_have_clearly_more(void **state)
{
    (void)state;
    char text[256];
    probe_pair_t p = {
        .site = {"tokyo", "osaka"},
        .figures = {.rate = {1250000000, 1250000000}, .together = {1300000000, 1000000000}}};
    assert_true(link_crowd_border(&p.figures, 0) == 1250000000);
    assert_true(link_crowd_border(&p.figures, 1) == 1250000000);
    link_crowd_together_text(&p, 2, text, sizeof(text));
    assert_string_equal(text,
                        "tokyo-osaka: 10.4 Gb/s there, 8 Gb/s back by 2 ranks of each at once, "
                        "which share what one has");
    p.figures.together[1] = 2500000000;
    assert_true(link_crowd_border(&p.figures, 1) == 2500000000);
    link_crowd_together_text(&p, 2, text, sizeof(text));
    assert_non_null(strstr(text, "20 Gb/s back by 2 ranks of each at once, more than one has"));
    p.figures.together[0] = p.figures.together[1] = 0;
    assert_true(link_crowd_border(&p.figures, 1) == 1250000000);
}

/* Eight ranks of each site: there each has 1 GB/s of its own; back each has 0.5, and all of them 3. */
static probe_figures_t of_eight(void)
{
    return (probe_figures_t){
        .rate = {1000000000, 500000000},
        .together = {8000000000, 3000000000},
        .together_ranks = 8,
        .beside = {
            [BESIDE_FIRST] = {8000000000, 400000000}, [BESIDE_ALL] = {4000000000, 1500000000}}};
}

static void is_scaled(uint32_t ranks, uint64_t there, uint64_t back)
{
    probe_figures_t f = of_eight();
    link_crowd_scale(&f, ranks);
    assert_true(link_crowd_border(&f, 0) == there && link_crowd_border(&f, 1) == back);
    assert_int_equal(f.together_ranks, ranks);
    assert_true(f.rate[0] == 1000000000 && f.rate[1] == 500000000);
}

/* What a record has of many ranks is used by few. */
static void what_many_ranks_had_counts_for_those_that_there_are(void **state)
{
    (void)state;
    const probe_figures_t eight = of_eight();
    is_scaled(1, 1000000000, 500000000);
    is_scaled(2, 2000000000, 1000000000);
    is_scaled(6, 6000000000, 3000000000);
    is_scaled(7, 7000000000, 3000000000);
    is_scaled(8, 8000000000, 3000000000);

    probe_figures_t f = eight;
    link_crowd_scale(&f, 9); /* nobody knows */
    assert_memory_equal(&f, &eight, sizeof(f));
    link_crowd_scale(&f, 2);
    assert_true(f.beside[BESIDE_FIRST][0] == 2000000000 && f.beside[BESIDE_FIRST][1] == 400000000);
    assert_true(f.beside[BESIDE_ALL][0] == 2000000000 && f.beside[BESIDE_ALL][1] == 1000000000);
    assert_true(f.beside[BESIDE_SECOND][0] == 0 && f.beside[BESIDE_SECOND][1] == 0);

    /* A build that did not say how many they were; and figures as large as a record takes. */
    f = eight;
    f.together_ranks = 0;
    link_crowd_scale(&f, 1);
    assert_true(link_crowd_border(&f, 0) == 1000000000 && link_crowd_border(&f, 1) == 500000000);
    assert_int_equal(f.together_ranks, 0);
    f = (probe_figures_t){.rate = {UINT64_C(1000000000000000000), 0},
                          .together = {UINT64_C(1000000000000000000), 7},
                          .together_ranks = 1000};
    link_crowd_scale(&f, 999);
    assert_true(f.together[0] == UINT64_C(1000000000000000000) && f.together[1] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_those_of_a_site_or_all),
        cmocka_unit_test(a_mesh_is_as_fast_as_its_pairs_alone),
        cmocka_unit_test(a_chain_has_a_middle_whose_pairs_are_free),
        cmocka_unit_test(a_border_that_all_share_has_no_middle),
        cmocka_unit_test(what_was_measured_of_others_is_not_believed),
        cmocka_unit_test(a_single_uplink_is_shared_by_what_pairs_send),
        cmocka_unit_test(over_a_chain_the_ends_share_both_cables),
        cmocka_unit_test(who_is_slowed_is_luck_and_who_shares_is_not),
        cmocka_unit_test(no_pair_has_more_than_alone),
        cmocka_unit_test(several_ranks_count_where_they_have_clearly_more),
        cmocka_unit_test(what_many_ranks_had_counts_for_those_that_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
