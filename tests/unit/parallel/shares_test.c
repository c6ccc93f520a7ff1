/* shares_test.c - parameters are cut no finer than their rule can be given pieces of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail

#include <parallel/shards.h>

/* 3 * 4096 elements are no whole number of rows of 100. */
enum { ROWS = 300, COLUMNS = 100, ELEMENTS = ROWS * COLUMNS, WAYS = 3 };

static parameter_t matrix = {.name = (char[]){"w"},
                             .rank = 2,
                             .shape = {ROWS, COLUMNS},
                             .rows = ROWS,
                             .columns = COLUMNS,
                             .elements = ELEMENTS};
static const parameters_t parameters = {.items = &matrix, .count = 1, .elements = ELEMENTS};
static const lh_rule_state_t by_element = {.name = "m", .extent = LH_EXTENT_ELEMENT};

struct lh_optimizer {
    lh_slice_t slices[WAYS];
};

static lh_status_t slice(lh_optimizer_t *o, LH_UNUSED uint32_t space, LH_UNUSED uint32_t param,
                         uint32_t rank, lh_slice_t *out)
{
    *out = o->slices[rank];
    return LH_OK;
}

static const lh_optimizer_api_t api = {.struct_size = sizeof(api), .slice = slice};

static lh_status_t cut(uint32_t grain, uint32_t grain_elements, lh_optimizer_t *o, shares_t *out)
{
    const lh_rule_t rule = {.grain = grain,
                            .grain_elements = grain_elements,
                            .states = &by_element,
                            .state_size = sizeof(by_element),
                            .state_count = 1};
    const lh_rule_t *const rules[] = {&rule};
    const shares_how_t how = {.parameters = &parameters,
                              .rule_of = rules,
                              .ways = WAYS,
                              .api = o == NULL ? NULL : &api,
                              .optimizer = o};
    return shard_shares_new(&how, out);
}

/* Slices begin at multiples of `unit` and are cut into `owners` pieces that are not empty. */
static void cut_at(uint32_t grain, uint32_t grain_elements, uint64_t unit, uint32_t owners)
{
    shares_t s;
    uint64_t sum = 0;
    uint32_t holding = 0;
    assert_int_equal(cut(grain, grain_elements, NULL, &s), LH_OK);
    for (uint32_t m = 0; m < WAYS; m++) {
        const lh_slice_t mine = shard_shares_slice(&s, 0, m);
        if (mine.end == mine.begin) continue;
        assert_int_equal(mine.begin % unit, 0);
        assert_int_equal(mine.begin % LH_NORM_BLOCK, 0);
        sum += mine.end - mine.begin;
        holding++;
    }
    assert_int_equal(sum, ELEMENTS);
    assert_int_equal(holding, owners);
    shard_shares_free(&s);
}

static void the_grain_of_a_rule_is_kept(void **state)
{
    (void)state;
    cut_at(LH_GRAIN_ELEMENT, 0, LH_NORM_BLOCK, WAYS);
    cut_at(LH_GRAIN_BLOCK, 6144, 12288, WAYS);
    cut_at(LH_GRAIN_ROW, 0, COLUMNS, 1); /* 102,400: more than there are */
}

static void a_piece_or_a_matrix_has_one_owner(void **state)
{
    (void)state;
    cut_at(LH_GRAIN_PIECE, 0, ELEMENTS, 1);
    cut_at(LH_GRAIN_MATRIX, 0, ELEMENTS, 1);
}

/* Of the first slice's 12,288 elements the rule would get 122 rows: 88 would keep their value. */
static void slices_of_an_optimizer_are_held_to_the_grain(void **state)
{
    (void)state;
    lh_optimizer_t fine = {{{0, 12288}, {12288, 24576}, {24576, ELEMENTS}}};
    lh_optimizer_t whole = {{{0, 0}, {0, ELEMENTS}, {ELEMENTS, ELEMENTS}}};
    static const uint32_t wide[] = {LH_GRAIN_ROW, LH_GRAIN_PIECE, LH_GRAIN_MATRIX};
    shares_t s;
    assert_int_equal(cut(LH_GRAIN_ELEMENT, 0, &fine, &s), LH_OK);
    shard_shares_free(&s);
    assert_int_equal(cut(LH_GRAIN_BLOCK, 6144, &fine, &s), LH_OK);
    shard_shares_free(&s);
    for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
        assert_int_equal(cut(wide[i], 0, &fine, &s), LH_INVALID);
        assert_int_equal(cut(wide[i], 0, &whole, &s), LH_OK);
        shard_shares_free(&s);
    }
    assert_int_equal(cut(LH_GRAIN_ROW, 0, &fine, &s), LH_INVALID);
    assert_string_equal(
        fail_reason(),
        "the optimizer's slice of parameter 'w' for rank 1 begins at 12288, expected a "
        "multiple of 102400: of the norm's 4096 elements and of what its rule "
        "takes together");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grain_of_a_rule_is_kept),
        cmocka_unit_test(a_piece_or_a_matrix_has_one_owner),
        cmocka_unit_test(slices_of_an_optimizer_are_held_to_the_grain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
