/* script_test.c - scripts of every op, algorithm and way between sites, over groups of many shapes. */
#include "script_bench.h"
#include "torture.h"

static const char *const shapes[] = {"a",     "aa",       "ab",       "aaa",      "aab",
                                     "abc",   "aaaa",     "aabb",     "aaab",     "abbc",
                                     "aaaaa", "aabbb",    "abbb",     "abcd",     "abbccd",
                                     "aaaab", "aaaaaaaa", "aaaabbbb", "aabbbbbc", "aaabbccc"};
static const uint64_t sizes[] = {0, 1, 5, 67, 1003};
static const uint64_t chunks[] = {4, 100, 1024, 1 << 20};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void try_variants(spec_t spec)
{
    for (uint32_t i = 0; i < COUNT(sizes) * COUNT(chunks); i++) {
        spec.elements = sizes[i % COUNT(sizes)];
        spec.chunk = chunks[i / COUNT(sizes)];
        if (spec.chunk == 4 && spec.elements > 100) continue;
        for (uint32_t v = 0; v < 48; v++) {
            static const lh_dtype_t borders[] = {0, LH_DTYPE_BF16, LH_DTYPE_I8};
            static uint32_t turn;
            if (!torture_wanted() && turn++ % 17 != 0) continue;
            spec.cut = (v & 1) != 0 || spec.op == COLL_ALL_TO_ALL;
            spec.scattered = (v & 2) != 0;
            spec.mapped = (v & 4) != 0 && !spec.on_device;
            spec.dtype = (v & 8) != 0 ? LH_DTYPE_BF16 : LH_DTYPE_F32;
            spec.border = borders[v / 16];
            if (spec.op == COLL_ALL_REDUCE && spec.cut) continue;
            try_spec(&spec);
        }
    }
}

static void try_op(uint32_t op, uint32_t algorithms)
{
    for (uint32_t s = 0; s < COUNT(shapes); s++)
        for (uint32_t a = COLL_DIRECT; a <= algorithms; a++) {
            const uint32_t last = (uint32_t)strlen(shapes[s]) - 1;
            try_variants((spec_t){.sites = shapes[s], .op = op, .algorithm = a, .root = last});
        }
}

static void all_reduce_sums_in_order(void **state)
{
    (void)state;
    try_op(COLL_ALL_REDUCE, COLL_RING);
}

static void every_way_between_sites_gives_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < COUNT(shapes); s++) {
        const uint32_t length = (uint32_t)strlen(shapes[s]);
        const uint32_t sites = 1 + (uint32_t)(shapes[s][length - 1] - 'a');
        for (uint32_t way = BETWEEN_EXCHANGE; sites > 1 && way < BETWEEN_WAYS; way++)
            for (uint32_t a = COLL_DIRECT; a <= COLL_RING; a++)
                try_variants((spec_t){.sites = shapes[s],
                                      .op = COLL_ALL_REDUCE,
                                      .algorithm = a,
                                      .between = way,
                                      .middle = length % sites});
    }
}

/* Bytes that rank 0 can have been sent before it has computed anything, in a sum over two sites of one
 * rank each whose pieces are 40 segments of 8192 elements. */
static uint64_t bytes_awaited(lh_dtype_t border, uint64_t window, uint64_t *staging)
{
    enum { SEGMENTS = 40, LONG = 8192 };
    coll_segment_t segments[2][SEGMENTS];
    world_t *world;
    group_t *group;
    script_t script;
    uint64_t bytes = 0;
    assert_int_equal(world_new(0, 2, &world), LH_OK);
    for (uint32_t r = 0; r < 2; r++)
        (void)snprintf(world->ranks[r].site_name, WORLD_SITE_NAME, "%u", r);
    world_number(world);
    assert_int_equal(world_group_new(world, LH_GROUP_DATA, &group), LH_OK);
    for (uint64_t i = 0; i < 2 * SEGMENTS; i++)
        segments[i % 2][i / 2] = (coll_segment_t){i * LONG, LONG, i / 2 * LONG};
    const coll_piece_t pieces[2] = {{segments[0], SEGMENTS}, {segments[1], SEGMENTS}};
    const coll_how_t how = {.name = "deep",
                            .op = COLL_ALL_REDUCE,
                            .group = group,
                            .dtype = LH_DTYPE_F32,
                            .border = border,
                            .elements = (uint64_t)2 * SEGMENTS * LONG,
                            .pieces = pieces};
    const script_how_t in = {.how = &how,
                             .algorithm = COLL_DIRECT,
                             .between = BETWEEN_EXCHANGE,
                             .chunk_bytes = 4 << 20,
                             .lag = 4,
                             .depth = 6,
                             .window = window};
    assert_int_equal(script_new(&in, &script), LH_OK);
    for (uint32_t i = 0; i < script.step_count; i++)
        if (script.steps[i].kind == STEP_RECV && script.steps[i].needs == 0)
            bytes += script.steps[i].bytes;
    *staging = script.staging_bytes;
    script_free(&script);
    world_group_free(group);
    world_free(world);
    return bytes;
}

/* Units end with a segment, so a number of them says nothing of what a long link holds. */
static void as_much_is_under_way_as_a_link_holds(void **state)
{
    (void)state;
    static const lh_dtype_t borders[] = {LH_DTYPE_F32, LH_DTYPE_BF16, LH_DTYPE_I8};
    for (int i = 0; i < 3; i++) {
        uint64_t few, deep, all, staging;
        const uint64_t item = borders[i] == LH_DTYPE_I8 ? 1 : lh_dtype_bytes(borders[i]);
        few = bytes_awaited(borders[i], 0, &staging);
        deep = bytes_awaited(borders[i], 30 * 8192 * item, &staging);
        assert_in_range(few, 6 * 8192 * item, 8 * 8192 * item);
        assert_in_range(deep, 30 * 8192 * item, 32 * 8192 * item);
        all = bytes_awaited(borders[i], UINT64_MAX, &staging);
        assert_in_range(all, 80 * 8192 * item, 84 * 8192 * item);
        /* What comes, and what is rounded to leave; no more. */
        assert_true(staging <= 2 * all + 4096);
    }
}

static void reduce_scatter_sums_in_order(void **state)
{
    (void)state;
    try_op(COLL_REDUCE_SCATTER, COLL_RING);
}

static void reduce_scatter_adds_to_what_is_there(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < COUNT(shapes); s++)
        try_variants((spec_t){
            .sites = shapes[s], .op = COLL_REDUCE_SCATTER, .algorithm = COLL_DIRECT, .add = true});
}

static void reduce_sums_at_root(void **state)
{
    (void)state;
    try_op(COLL_REDUCE, COLL_RING);
}

static void all_gather_gives_all_to_all(void **state)
{
    (void)state;
    try_op(COLL_ALL_GATHER, COLL_HALVING);
}

static void what_lies_on_a_device_is_only_sent_and_received(void **state)
{
    (void)state;
    static const char *const groups[] = {"a",        "aa", "aaa", "aaaa", "aaaaa",
                                         "aaaaaaaa", "ab", "abc", "abcd", "abcde"};
    for (uint32_t s = 0; s < COUNT(groups); s++)
        try_variants((spec_t){.sites = groups[s],
                              .op = COLL_ALL_GATHER,
                              .algorithm = COLL_DIRECT,
                              .on_device = true});
}

static void broadcast_gives_roots_to_all(void **state)
{
    (void)state;
    try_op(COLL_BROADCAST, COLL_HALVING);
}

static void scatter_gather_and_all_to_all_move_pieces(void **state)
{
    (void)state;
    try_op(COLL_SCATTER, COLL_DIRECT);
    try_op(COLL_GATHER, COLL_DIRECT);
    try_op(COLL_ALL_TO_ALL, COLL_DIRECT);
}

/* In an order of its own. */
static void halving_sums_all(void **state)
{
    (void)state;
    static const char *const even[] = {"a", "aa", "ab", "aaaa", "aabb", "aabbc", "aaaaaaaa"};
    for (uint32_t s = 0; s < COUNT(even); s++)
        for (uint32_t op = COLL_ALL_REDUCE; op <= COLL_REDUCE_SCATTER; op++)
            try_variants((spec_t){
                .sites = even[s], .op = op, .algorithm = COLL_HALVING, .whole_numbers = true});
}

static void barrier_ends(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < COUNT(shapes); s++)
        for (uint32_t a = COLL_DIRECT; a <= COLL_HALVING; a++)
            try_spec(&(spec_t){.sites = shapes[s],
                               .op = COLL_BARRIER,
                               .algorithm = a,
                               .dtype = LH_DTYPE_F32,
                               .chunk = 1024});
}

static void little_is_summed_by_all_at_once(void **state)
{
    (void)state;
    static const char *const one_site[] = {"a", "aa", "aaa", "aaaa", "aaaaa", "aaaaaaaa"};
    for (uint32_t s = 0; s < COUNT(one_site); s++)
        try_variants((spec_t){.sites = one_site[s],
                              .op = COLL_ALL_REDUCE,
                              .algorithm = COLL_DIRECT,
                              .at_once = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_sums_in_order),
        cmocka_unit_test(every_way_between_sites_gives_the_same_bits),
        cmocka_unit_test(as_much_is_under_way_as_a_link_holds),
        cmocka_unit_test(reduce_scatter_sums_in_order),
        cmocka_unit_test(reduce_scatter_adds_to_what_is_there),
        cmocka_unit_test(reduce_sums_at_root),
        cmocka_unit_test(all_gather_gives_all_to_all),
        cmocka_unit_test(what_lies_on_a_device_is_only_sent_and_received),
        cmocka_unit_test(broadcast_gives_roots_to_all),
        cmocka_unit_test(scatter_gather_and_all_to_all_move_pieces),
        cmocka_unit_test(halving_sums_all),
        cmocka_unit_test(barrier_ends),
        cmocka_unit_test(little_is_summed_by_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
