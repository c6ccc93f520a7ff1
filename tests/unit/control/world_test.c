/* Ranks, sites and groups. */
#include <control/world.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <base/memory.h>
#include <base/processors.h>

#include <cmocka.h>

/* A letter a rank: its site; one host a site. */
static world_t *world_of(uint32_t rank, const char *sites)
{
    world_t *w;
    assert_int_equal(world_new(rank, (uint32_t)strlen(sites), &w), LH_OK);
    for (uint32_t r = 0; r < w->row.size; r++) {
        (void)snprintf(w->ranks[r].site_name, WORLD_SITE_NAME, "%c", sites[r]);
        (void)snprintf(w->ranks[r].host, WORLD_HOST_NAME, "h");
    }
    world_number(w);
    return w;
}

static void numbers_nodes_and_sites_by_name(void **state)
{
    (void)state;
    world_t *w = world_of(1, "aabab");
    assert_int_equal(w->row.sites, 2);
    assert_int_equal(w->row.nodes, 2);
    assert_int_equal(w->ranks[3].local_rank, 2);
    assert_int_equal(w->ranks[4].local_rank, 1);
    assert_int_equal(world_scope(w, 0, 3), LH_LINK_NODE);
    assert_int_equal(world_scope(w, 0, 2), LH_LINK_WAN);
    (void)snprintf(w->ranks[1].host, WORLD_HOST_NAME, "other");
    world_number(w);
    assert_int_equal(world_scope(w, 0, 1), LH_LINK_SITE);
    char text[64];
    world_rank_text(w, 1, text, sizeof(text));
    assert_string_equal(text, "rank 1 on a/other");
    world_free(w);
}

static void sites_know_their_ranks(void **state)
{
    (void)state;
    world_t *w = world_of(1, "abaacb");
    static const uint32_t ranks[3][3] = {{0, 2, 3}, {1, 5}, {4}}, sizes[] = {3, 2, 1};
    for (uint32_t s = 0; s < 3; s++) {
        assert_int_equal(world_site_size(w, s), sizes[s]);
        assert_int_equal(world_site_name(w, s)[0], 'a' + (int)s);
        for (uint32_t i = 0; i < sizes[s]; i++) {
            assert_int_equal(world_site_rank(w, s, i), ranks[s][i]);
            assert_int_equal(w->ranks[ranks[s][i]].place, i);
        }
    }
    world_free(w);
}

static void groups_list_sites_one_after_the_other(void **state)
{
    (void)state;
    world_t *w = world_of(3, "abab");
    group_t *g;
    assert_int_equal(world_group_new(w, LH_GROUP_DATA, &g), LH_OK);
    const uint32_t data[] = {0, 2, 1, 3};
    assert_memory_equal(g->ranks, data, sizeof(data));
    assert_int_equal(g->self, 3);
    assert_int_equal(g->sites, 2);
    assert_int_equal(g->site_begin[1], 2);
    assert_int_equal(g->site_begin[2], 4);
    world_group_free(g);

    assert_int_equal(world_group_new(w, LH_GROUP_SITE, &g), LH_OK);
    assert_int_equal(g->size, 2);
    assert_int_equal(g->ranks[0], 1);
    assert_int_equal(g->self, 1);
    assert_int_equal(g->sites, 1);
    world_group_free(g);

    assert_int_equal(world_group_new(w, LH_GROUP_ACROSS, &g), LH_OK);
    assert_int_equal(g->size, 2);
    assert_int_equal(g->ranks[0], 2);
    assert_int_equal(g->ranks[1], 3);
    assert_int_equal(g->sites, 2);
    world_group_free(g);

    assert_int_equal(world_group_new(w, LH_GROUP_SELF, &g), LH_OK);
    assert_int_equal(g->size, 1);
    assert_int_equal(g->ranks[0], 3);
    world_group_free(g);
    world_free(w);
}

static void across_asks_for_equal_sites(void **state)
{
    (void)state;
    world_t *w = world_of(0, "aab");
    group_t *g;
    assert_int_equal(world_group_new(w, LH_GROUP_ACROSS, &g), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "site 'a' has 2 ranks, site 'b' has 1"));
    world_free(w);
}

/* Two machines in a site and one in another, of two ranks each. */
static void groups_are_of_machines_where_the_job_says_so(void **state)
{
    (void)state;
    static const char *const hosts[] = {"x", "x", "y", "y", "x", "x"};
    world_t *w = world_of(3, "aaaabb");
    group_t *g;
    for (uint32_t r = 0; r < 6; r++)
        (void)snprintf(w->ranks[r].host, WORLD_HOST_NAME, "%s", hosts[r]);
    w->inside_nodes = true;
    world_number(w);
    assert_int_equal(world_blocks(w), 3);
    assert_true(world_blocks_equal(w));

    assert_int_equal(world_group_new(w, LH_GROUP_SITE, &g), LH_OK);
    assert_int_equal(g->size, 2);
    assert_int_equal(g->ranks[0], 2);
    assert_int_equal(g->self, 1);
    world_group_free(g);

    const uint32_t across[] = {1, 3, 5}; /* the second of each machine; two of them in one site */
    assert_int_equal(world_group_new(w, LH_GROUP_ACROSS, &g), LH_OK);
    assert_int_equal(g->size, 3);
    assert_memory_equal(g->ranks, across, sizeof(across));
    assert_int_equal(g->self, 1);
    assert_int_equal(g->sites, 2);
    assert_int_equal(g->site_begin[1], 2);
    world_group_free(g);

    (void)snprintf(w->ranks[3].host, WORLD_HOST_NAME, "z");
    world_number(w);
    assert_false(world_blocks_equal(w));
    assert_int_equal(world_group_new(w, LH_GROUP_ACROSS, &g), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "node 'x' has 2 ranks, node 'y' has 1"));
    world_free(w);
}

static void leaders_wrap_round_smaller_sites(void **state)
{
    (void)state;
    world_t *w = world_of(0, "aaabbc");
    group_t *g;
    assert_int_equal(world_group_new(w, LH_GROUP_DATA, &g), LH_OK);
    const uint32_t expected[3][6] = {{0, 1, 2, 0, 1, 0}, {3, 4, 3, 3, 4, 3}, {5, 5, 5, 5, 5, 5}};
    for (uint32_t s = 0; s < 3; s++)
        for (uint32_t o = 0; o < 6; o++)
            assert_int_equal(world_group_leader(g, s, o), expected[s][o]);
    world_group_free(g);
    world_free(w);
}

/* Two sites on one machine, and a third on another. */
static void ranks_of_a_machine_share_its_quota(void **state)
{
    (void)state;
    world_t *w = world_of(1, "aabc");
    host_t *host;
    published_t *published;
    processors_t here;
    (void)snprintf(w->ranks[3].host, WORLD_HOST_NAME, "other");
    world_number(w);
    assert_int_equal(host_new(&host), LH_OK);
    processors_here(&here);
    assert_int_equal(here.sharers, 1);
    assert_int_equal(world_publish(host, w, NULL, &published), LH_OK);
    processors_here(&here);
    assert_int_equal(here.sharers, 3);
    world_unpublish(host, published);
    processors_here(&here);
    assert_int_equal(here.sharers, 1);
    host_free(host);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_nodes_and_sites_by_name),
        cmocka_unit_test(sites_know_their_ranks),
        cmocka_unit_test(groups_list_sites_one_after_the_other),
        cmocka_unit_test(across_asks_for_equal_sites),
        cmocka_unit_test(groups_are_of_machines_where_the_job_says_so),
        cmocka_unit_test(leaders_wrap_round_smaller_sites),
        cmocka_unit_test(ranks_of_a_machine_share_its_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
