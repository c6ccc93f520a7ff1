/* The way of sums between sites: times against the formulas of the pages on long links, by hand. */
#include <comm/coll.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST = 4 };

typedef struct scene {
    between_how_t how;
    between_link_t links[MOST * MOST];
    double share[MOST];
} scene_t;

/* Sites that are all joined alike, 1 GB/s and 10 ms, for 2e9 bytes a part and as many a result. */
static void alike(scene_t *s, uint32_t sites)
{
    for (uint32_t i = 0; i < MOST * MOST; i++)
        s->links[i] = (between_link_t){.bytes_per_second = 1e9, .round_trip_s = 0.01};
    for (uint32_t i = 0; i < sites; i++)
        s->share[i] = 1.0 / sites;
    s->how = (between_how_t){.sites = sites,
                             .links = s->links,
                             .share = s->share,
                             .part_bytes = 2e9,
                             .partial_bytes = 4e9,
                             .result_bytes = 2e9};
}

static void link_set(scene_t *s, uint32_t a, uint32_t b, double rate, double trip)
{
    s->links[a * s->how.sites + b] = s->links[b * s->how.sites + a] = (between_link_t){
        .bytes_per_second = rate, .round_trip_s = trip};
}

static void near(double got, double expected)
{
    assert_true(got > expected * 0.999999 && got < expected * 1.000001);
}

/* 2 S / N over each link of a mesh and a round trip; S and half of one where all exchange; S to and
 * from the middle. */
static void times_are_those_of_bytes_and_trips(void **state)
{
    (void)state;
    scene_t s;
    alike(&s, 3);
    near(coll_between_seconds(&s.how, BETWEEN_MESH, 0), 2 * 2.0 / 3 + 0.01);
    near(coll_between_seconds(&s.how, BETWEEN_EXCHANGE, 0), 2.0 + 0.005);
    near(coll_between_seconds(&s.how, BETWEEN_CHAIN, 1), 2.0 + 0.01);
    /* A third each: one part, one sum in F32, two results; (4 - 1) trips over four sites. */
    near(coll_between_seconds(&s.how, BETWEEN_RING, 0), (2.0 + 4.0 + 2 * 2.0) / 3 + 2 * 0.01);
    alike(&s, 4);
    near(coll_between_seconds(&s.how, BETWEEN_RING, 0), (2.0 + 2 * 4.0 + 3 * 2.0) / 4 + 3 * 0.01);
    alike(&s, 2);
    near(coll_between_seconds(&s.how, BETWEEN_MESH, 0), 2.0 + 0.01);
    near(coll_between_seconds(&s.how, BETWEEN_EXCHANGE, 0), 2.0 + 0.005);
    s.how.part_bytes = 4e9; /* of F32, with a result of BF16 */
    near(coll_between_seconds(&s.how, BETWEEN_MESH, 0), 2.0 + 1.0 + 0.01);
    near(coll_between_seconds(&s.how, BETWEEN_EXCHANGE, 0), 4.0 + 0.005);
}

static void chosen(const scene_t *s, uint32_t way, uint32_t middle)
{
    uint32_t at = 99;
    assert_int_equal(coll_between_choose(&s->how, &at), way);
    assert_int_equal(at, middle);
}

static void the_fastest_way_is_taken(void **state)
{
    (void)state;
    scene_t s;
    alike(&s, 2);
    chosen(&s, BETWEEN_EXCHANGE, 0);
    alike(&s, 3);
    chosen(&s, BETWEEN_MESH, 0);
    s.how.part_bytes = s.how.result_bytes = 1000; /* latency is all */
    chosen(&s, BETWEEN_EXCHANGE, 0);
    for (uint32_t middle = 0; middle < 3; middle++) { /* the other two are hardly joined */
        alike(&s, 3);
        link_set(&s, (middle + 1) % 3, (middle + 2) % 3, 1e8, 0.02);
        chosen(&s, BETWEEN_CHAIN, middle);
    }
    alike(&s, 4);
    chosen(&s, BETWEEN_MESH, 0);
    link_set(&s, 0, 2, 1e8, 0.01); /* each is joined to two others only */
    link_set(&s, 1, 3, 1e8, 0.01);
    chosen(&s, BETWEEN_RING, 0);
}

/* Half of the rate is left to each pair while all are busy, to those of `middle` alone all or half of
 * it: a chain, or borders that all pairs of a site share. */
static void crowded(scene_t *s, uint32_t middle, bool chain)
{
    alike(s, 3);
    for (uint32_t from = 0; from < 3; from++)
        for (uint32_t to = 0; to < 3; to++) {
            between_link_t *k = &s->links[from * 3 + to];
            k->beside_all = 5e8;
            k->beside_from = chain && from == middle ? 1e9 : 5e8;
            k->beside_to = chain && to == middle ? 1e9 : 5e8;
        }
}

static void what_pairs_share_makes_a_mesh_slow(void **state)
{
    (void)state;
    scene_t s;
    for (uint32_t middle = 0; middle < 3; middle++) {
        crowded(&s, middle, true);
        near(coll_between_seconds(&s.how, BETWEEN_MESH, 0), 2 * 2 * 2.0 / 3 + 0.01);
        near(coll_between_seconds(&s.how, BETWEEN_EXCHANGE, 0), 2 * 2.0 + 0.005);
        near(coll_between_seconds(&s.how, BETWEEN_CHAIN, middle), 2.0 + 0.01);
        near(coll_between_seconds(&s.how, BETWEEN_CHAIN, (middle + 1) % 3), 2 * 2.0 + 0.01);
        near(coll_between_seconds(&s.how, BETWEEN_RING, 0), (2.0 + 4.0 + 2 * 2.0) / 3 + 2 * 0.01);
        chosen(&s, BETWEEN_CHAIN, middle);
    }
    crowded(&s, 0, false);
    chosen(&s, BETWEEN_MESH, 0); /* all have the half: 2/3 of a part each, not all of it */
}

static void what_is_not_known_is_not_predicted(void **state)
{
    (void)state;
    scene_t s;
    alike(&s, 2);
    link_set(&s, 0, 1, 0, 0.01);
    chosen(&s, BETWEEN_EXCHANGE, 0);
    alike(&s, 3);
    link_set(&s, 0, 2, 0, 0);
    chosen(&s, BETWEEN_MESH, 0);
    s.how.asked = BETWEEN_CHAIN;
    chosen(&s, BETWEEN_CHAIN, 1);
}

static void who_asks_is_heard(void **state)
{
    (void)state;
    scene_t s;
    alike(&s, 3);
    link_set(&s, 0, 1, 1e8, 0.02);
    for (uint32_t way = BETWEEN_MESH; way < BETWEEN_WAYS; way++) {
        s.how.asked = way;
        chosen(&s, way, way == BETWEEN_CHAIN ? 2 : 0);
    }
    alike(&s, 2);
    for (s.how.asked = BETWEEN_CHAIN; s.how.asked <= BETWEEN_RING; s.how.asked++)
        chosen(&s, BETWEEN_MESH, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_those_of_bytes_and_trips),
        cmocka_unit_test(the_fastest_way_is_taken),
        cmocka_unit_test(what_pairs_share_makes_a_mesh_slow),
        cmocka_unit_test(what_is_not_known_is_not_predicted),
        cmocka_unit_test(who_asks_is_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
