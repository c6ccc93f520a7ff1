/* parameter_draw_test.c - start values come out in order and whole, with the same bits for any number of
 * threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail

#include <stdlib.h>
#include <string.h>

#include <graph/parameter_draw.h>

enum { ROWS = 700, COLUMNS = 1001 }; /* more than one span, and no whole number of them */

struct lh_model {
    uint32_t unused;
};

static const lh_param_t table[] = {
    LH_MATRIX("embed", "e", EMBED, VOCAB, NORMAL, 1, ROWS, COLUMNS),
    LH_NORM("norm", "n.{}", BLOCK, 8),
    {.name = "w", .part = LH_PART_BLOCK, .init = LH_INIT_RESIDUAL, .shape = {64, 129}},
};

static lh_status_t describe(lh_model_t *m, lh_model_info_t *out)
{
    (void)m;
    *out = (lh_model_info_t){.struct_size = sizeof(*out),
                             .blocks = 2,
                             .hidden = COLUMNS,
                             .vocab = ROWS,
                             .params = table,
                             .param_size = sizeof(table[0]),
                             .param_count = sizeof(table) / sizeof(table[0])};
    return LH_OK;
}

static parameters_t *make(void)
{
    static const lh_model_api_t api = {.struct_size = sizeof(api), .describe = describe};
    static lh_model_t model;
    parameters_t *p;
    assert_int_equal(parameters_new(&api, &model, &p), LH_OK);
    return p;
}

static void check_part(parameter_draw_t *in, const parameters_t *p, uint32_t index, uint64_t begin,
                       uint64_t end)
{
    const uint64_t count = end - begin;
    float *expected = malloc((count + 1) * sizeof(float));
    parameter_span_t span;
    uint64_t at = begin;
    assert_non_null(expected);
    parameter_initial(p, index, 5, 0.02, begin, count, expected);
    parameter_draw_start(in, index, begin, end);
    while (parameter_draw_next(in, &span)) {
        assert_int_equal(span.parameter, index);
        assert_int_equal(span.begin, at);
        assert_true(span.count > 0 && span.count <= end - at);
        assert_memory_equal(span.values, expected + (at - begin), span.count * sizeof(float));
        at += span.count;
    }
    assert_int_equal(at, end);
    free(expected);
}

static void values_are_the_same_for_any_number_of_threads(void **state)
{
    static const uint32_t threads[] = {1, 2, 3, 8, 0, 1000};
    (void)state;
    parameters_t *p = make();
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        parameter_draw_t *in;
        assert_int_equal(parameter_draw_new(p, 5, 0.02, threads[t], &in), LH_OK);
        for (uint32_t i = 0; i < p->count; i++) {
            const uint64_t all = p->items[i].elements;
            check_part(in, p, i, 0, all);
            check_part(in, p, i, all / 3, all - 1);
            check_part(in, p, i, 7, 7);
        }
        parameter_draw_free(in);
    }
    parameters_free(p);
}

static void who_stops_early_loses_nothing(void **state)
{
    (void)state;
    parameters_t *p = make();
    parameter_draw_t *in;
    parameter_span_t span;
    assert_int_equal(parameter_draw_new(p, 5, 0.02, 4, &in), LH_OK);
    parameter_draw_start(in, 0, 0, p->items[0].elements);
    assert_true(parameter_draw_next(in, &span));
    parameter_draw_free(in); /* the next one is being drawn */
    parameter_draw_free(NULL);
    parameters_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_the_same_for_any_number_of_threads),
        cmocka_unit_test(who_stops_early_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
