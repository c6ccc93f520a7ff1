/* parameters_test.c - a model's table becomes logical parameters, and what is wrong with it is
 * said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail

#include <math.h>
#include <stdlib.h>

#include <graph/parameters.h>

struct lh_model { /* what describe() hands out */
    lh_model_info_t info;
};

static lh_status_t describe(lh_model_t *m, lh_model_info_t *out)
{
    *out = m->info;
    return LH_OK;
}

static const lh_model_api_t api = {.struct_size = sizeof(api), .describe = describe};

#define ROWS(table)                                                                        \
    {                                                                                      \
        {                                                                                  \
            .struct_size = sizeof(lh_model_info_t), .blocks = 4, .hidden = 8, .vocab = 16, \
            .params = (table), .param_size = sizeof((table)[0]),                           \
            .param_count = sizeof(table) / sizeof((table)[0])                              \
        }                                                                                  \
    }

static const lh_param_t good[] = {
    LH_MATRIX("embed", "e", EMBED, VOCAB, NORMAL, 1, 16, 8),
    LH_NORM("norm", "n.{}", BLOCK, 8),
    {.name = "w", .part = LH_PART_BLOCK, .init = LH_INIT_RESIDUAL, .shape = {64, 128}},
    {.name = "expert",
     .part = LH_PART_BLOCK,
     .init = LH_INIT_ZERO,
     .shape = {3, 2, 8},
     .classes = 2},
    {.name = "head",
     .part = LH_PART_HEAD,
     .init = LH_INIT_NORMAL,
     .shape = {16, 8},
     .tied_to = "embed"},
};

static const uint8_t classes[] = {0, 1, 0, 1};

static parameters_t *make(void)
{
    static lh_model_t m = ROWS(good);
    parameters_t *p;
    m.info.block_classes = classes;
    assert_int_equal(parameters_new(&api, &m, &p), LH_OK);
    return p;
}

static void names_are_logical_and_blocks_have_the_rows_of_their_class(void **state)
{
    (void)state;
    static const char *const names[] = {"embed",         "blocks.0.norm",   "blocks.0.w",
                                        "blocks.1.norm", "blocks.1.w",      "blocks.1.expert",
                                        "blocks.2.norm", "blocks.2.w",      "blocks.3.norm",
                                        "blocks.3.w",    "blocks.3.expert", "head"};
    parameters_t *p = make();
    assert_int_equal(p->count, sizeof(names) / sizeof(names[0]));
    for (uint32_t i = 0; i < p->count; i++)
        assert_string_equal(p->items[i].name, names[i]);
    assert_int_equal(p->items[5].rank, 3);
    assert_int_equal(p->items[5].rows, 6);
    assert_int_equal(p->items[5].columns, 8);
    parameters_free(p);
}

static void a_tied_parameter_has_no_storage_of_its_own(void **state)
{
    (void)state;
    parameters_t *p = make();
    uint32_t head, found;
    assert_true(parameters_find(p, "head", &head));
    assert_int_equal(p->items[head].storage, 0);
    assert_int_equal(p->elements, 16 * 8 + 4 * (8 + 64 * 128) + 2 * 48);
    assert_true(parameters_find_local(p, LH_PART_BLOCK, 3, "w", &found));
    assert_string_equal(p->items[found].name, "blocks.3.w");
    assert_false(parameters_find_local(p, LH_PART_HEAD, 0, "embed", &found));
    parameters_free(p);
}

static void initial_values_depend_on_seed_name_and_element_only(void **state)
{
    (void)state;
    parameters_t *p = make();
    uint32_t w0, w1;
    assert_true(parameters_find(p, "blocks.0.w", &w0));
    assert_true(parameters_find(p, "blocks.1.w", &w1));
    const uint64_t n = 64 * 128;
    float *all = malloc(n * sizeof(float)), part[100];
    double sum = 0, squares = 0;
    parameter_initial(p, w0, 5, 0.02, 0, n, all);
    parameter_initial(p, w0, 5, 0.02, 777, 100, part);
    assert_memory_equal(part, all + 777, sizeof(part));
    parameter_initial(p, w1, 5, 0.02, 777, 100, part);
    assert_memory_not_equal(part, all + 777, sizeof(part));
    parameter_initial(p, w0, 6, 0.02, 777, 100, part);
    assert_memory_not_equal(part, all + 777, sizeof(part));
    for (uint64_t i = 0; i < n; i++) {
        sum += (double)all[i];
        squares += (double)all[i] * (double)all[i];
    }
    /* 4 blocks: the standard deviation is divided by sqrt(8); 4 sigma of 8192 samples. */
    const double std = 0.02 / sqrt(8);
    assert_true(fabs(sum / (double)n) < 4 * std / sqrt((double)n));
    assert_true(fabs(sqrt(squares / (double)n) / std - 1) < 4 / sqrt(2.0 * (double)n));
    parameter_initial(p, 1, 5, 0.02, 0, 8, part);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(part[i] == 1);
    free(all);
    parameters_free(p);
}

static void refused(lh_model_t *m, const char *sentence)
{
    parameters_t *p;
    assert_int_equal(parameters_new(&api, m, &p), LH_INVALID);
    assert_string_equal(fail_reason(), sentence);
}

static void a_wrong_table_is_refused_with_a_sentence(void **state)
{
    (void)state;
    static const lh_param_t twice[] = {LH_NORM("n", "a", BLOCK, 8), LH_NORM("n", "b", BLOCK, 8)};
    static const lh_param_t ends[] = {LH_NORM("n", "a", EMBED, 8), LH_NORM("n", "b", HEAD, 8)};
    static const lh_param_t behind[] = {LH_NORM("n", "a", BLOCK, 8),
                                        LH_NORM("blocks.3.n", "b", HEAD, 8)};
    static const lh_param_t ahead[] = {LH_NORM("n", "a", BLOCK, 8),
                                       LH_NORM("blocks.3.n", "b", EMBED, 8)};
    static const lh_param_t tied[] = {
        {.name = "h", .part = LH_PART_HEAD, .init = 1, .shape = {2, 2}, .tied_to = "embed"}};
    static const lh_param_t empty[] = {{.name = "h", .part = LH_PART_HEAD, .init = 1}};
    static const lh_param_t huge[] = {
        {.name = "h", .part = LH_PART_HEAD, .init = 1, .shape = {UINT64_MAX, 2}}};
    static const lh_param_t nowhere[] = {{.name = "h", .part = 9, .init = 1, .shape = {2}}};
    lh_model_t m[] = {ROWS(twice),   ROWS(tied), ROWS(empty),  ROWS(huge),
                      ROWS(nowhere), ROWS(ends), ROWS(behind), ROWS(ahead)};
    refused(&m[0], "the model lists parameter 'blocks.0.n' twice");
    refused(&m[1], "parameter 'h' is tied to 'embed', which the model does not have");
    refused(&m[2], "parameter 'h' has no shape");
    refused(&m[3], "parameter 'h' has too many elements");
    refused(&m[4], "parameter 'h' names part 9; expected 1 to 3");
    refused(&m[5], "the model lists parameter 'n' twice");
    refused(&m[6], "the model lists parameter 'blocks.3.n' twice");
    refused(&m[7], "the model lists parameter 'blocks.3.n' twice");
    lh_model_t none = ROWS(twice);
    none.info.blocks = 0;
    refused(&none, "the model has 0 blocks; expected 1 to 65536");
    lh_model_t mute = ROWS(twice);
    mute.info.vocab = 0;
    refused(&mute, "the model has a vocabulary of 0 tokens; expected 1 to 2147483647");
    mute.info.vocab = 1ull << 62;
    refused(&mute,
            "the model has a vocabulary of 4611686018427387904 tokens; expected 1 to 2147483647");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_logical_and_blocks_have_the_rows_of_their_class),
        cmocka_unit_test(a_tied_parameter_has_no_storage_of_its_own),
        cmocka_unit_test(initial_values_depend_on_seed_name_and_element_only),
        cmocka_unit_test(a_wrong_table_is_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
