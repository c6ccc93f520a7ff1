/* crossings_test.c - what all members send over borders, counted from the pieces, against the messages of
 * their scripts. */
#include <comm/crossings.h>
#include <comm/script_make.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <base/memory.h>
#include <longhaul/dtype.h>

#include <cmocka.h>

enum { MOST = 16, SEGMENTS = 3, CASES = 6000 };

static uint64_t random_state = 1;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

/* A letter a rank. */
static world_t *world_of(uint32_t rank, const char *sites)
{
    world_t *w;
    assert_int_equal(world_new(rank, (uint32_t)strlen(sites), &w), LH_OK);
    for (uint32_t r = 0; r < w->row.size; r++)
        (void)snprintf(w->ranks[r].site_name, WORLD_SITE_NAME, "%c", sites[r]);
    world_number(w);
    return w;
}

typedef struct counts {
    uint64_t by_rank[MOST], between[MOST * MOST];
} counts_t;

/* The lanes of one member's script. */
static void lanes_add(const script_t *s, const world_t *w, const group_t *g, counts_t *out)
{
    for (uint32_t i = 0; i < s->lane_count; i++) {
        const script_lane_t *lane = &s->lanes[i];
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < lane->count; k++)
            bytes += s->steps[s->order[lane->first + k]].bytes;
        assert_int_equal(bytes, lane->bytes);
        const uint32_t here = w->ranks[w->row.rank].site,
                       there = w->ranks[g->ranks[lane->peer]].site;
        if (!lane->sending || here == there) continue;
        out->by_rank[w->row.rank] += bytes;
        out->between[here * w->row.sites + there] += bytes;
    }
}

/* Segments of odd lengths, of several blocks or of a part of one; some members own nothing. */
static uint64_t deal(uint32_t size, uint32_t only, coll_segment_t segments[][SEGMENTS],
                     coll_piece_t *pieces)
{
    uint64_t at = 0;
    for (uint32_t o = 0; o < size; o++) {
        pieces[o] = (coll_piece_t){segments[o], o == only || only == size ? draw(SEGMENTS + 1) : 0};
        for (uint32_t i = 0; i < pieces[o].count; i++) {
            segments[o][i] = (coll_segment_t){.whole = at, .count = 1 + draw(700)};
            at += segments[o][i].count + 5;
        }
    }
    return at;
}

static void one_case(const char *sites)
{
    static const uint32_t ops[] = {
        COLL_ALL_REDUCE, COLL_ALL_REDUCE, COLL_REDUCE_SCATTER, COLL_ALL_GATHER, COLL_BROADCAST,
        COLL_REDUCE,     COLL_SCATTER,    COLL_GATHER,         COLL_ALL_TO_ALL, COLL_BARRIER};
    static const lh_dtype_t borders[] = {0, LH_DTYPE_F32, LH_DTYPE_BF16, LH_DTYPE_I8};
    const uint32_t size = (uint32_t)strlen(sites), op = ops[draw(sizeof(ops) / sizeof(ops[0]))];
    const bool rooted = op == COLL_BROADCAST || op == COLL_REDUCE;
    const uint32_t root = draw(size);
    coll_segment_t segments[MOST][SEGMENTS];
    coll_piece_t pieces[MOST];
    static char cut[1];
    coll_how_t how = {.name = "test",
                      .op = op,
                      .dtype = draw(2) == 0 ? LH_DTYPE_F32 : LH_DTYPE_BF16,
                      .border = borders[draw(4)],
                      .root = root,
                      .elements = deal(size, rooted ? root : size, segments, pieces),
                      .pieces = pieces,
                      .cut = {draw(2) == 0 || op == COLL_ALL_TO_ALL ? cut : NULL, 0}};
    script_how_t asked = {.how = &how,
                          .algorithm = COLL_DIRECT + draw(2),
                          .between = BETWEEN_MESH + draw(BETWEEN_WAYS - BETWEEN_MESH),
                          .chunk_bytes = 64 + draw(3000),
                          .lag = 1 + draw(4),
                          .depth = 1 + draw(3)};
    counts_t counted = {{0}, {0}}, sent = {{0}, {0}};
    if (op == COLL_ALL_REDUCE) how.cut.address = NULL;
    for (uint32_t r = 0; r < size; r++) {
        world_t *w = world_of(r, sites);
        group_t *g;
        script_t script;
        assert_int_equal(world_group_new(w, LH_GROUP_DATA, &g), LH_OK);
        how.group = g;
        asked.middle = r == 0 ? draw(g->sites) : asked.middle;
        if (r == 0) crossings_add(&asked, 1, w, counted.by_rank, counted.between);
        assert_int_equal(script_new(&asked, &script), LH_OK);
        lanes_add(&script, w, g, &sent);
        script_free(&script);
        world_group_free(g);
        world_free(w);
    }
    if (memcmp(&counted, &sent, sizeof(sent)) != 0)
        print_error("%s: op %u, between %u, middle %u, border %u, dtype %u\n", sites, op,
                    asked.between, asked.middle, how.border, how.dtype);
    assert_memory_equal(&counted, &sent, sizeof(sent));
}

static void what_is_counted_is_what_scripts_send(void **state)
{
    (void)state;
    static const char *const worlds[] = {
        "a",     "aaa",      "ab",           "aabb",     "abab",
        "abc",   "aaabbc",   "abcabcab",     "aaaaabbb", "aabbccdd",
        "abcde", "aaaabbcb", "aaabbbcccddd", "cabbage",  "aaaaaaaabbcccc"};
    for (uint32_t i = 0; i < CASES; i++)
        one_case(worlds[draw(sizeof(worlds) / sizeof(worlds[0]))]);
}

/* Either end of a pair asks for its half. */
static void a_pair_crosses_once(void **state)
{
    (void)state;
    coll_segment_t all = {.count = 100};
    coll_piece_t pieces[2] = {{NULL, 0}, {&all, 1}};
    for (uint32_t r = 0; r < 2; r++) {
        counts_t counted = {{0}, {0}};
        world_t *w = world_of(r, "ab");
        group_t *g;
        assert_int_equal(world_group_new(w, LH_GROUP_DATA, &g), LH_OK);
        const coll_how_t how = {.name = "test",
                                .op = r == 0 ? COLL_SEND : COLL_RECV,
                                .group = g,
                                .dtype = LH_DTYPE_F32,
                                .root = 1 - r,
                                .elements = 100,
                                .pieces = pieces};
        const script_how_t asked = {.how = &how, .between = BETWEEN_MESH};
        crossings_add(&asked, 3, w, counted.by_rank, counted.between);
        assert_int_equal(counted.by_rank[0], 1200);
        assert_int_equal(counted.by_rank[1], 0);
        assert_int_equal(counted.between[1], 1200);
        world_group_free(g);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_counted_is_what_scripts_send),
        cmocka_unit_test(a_pair_crosses_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
