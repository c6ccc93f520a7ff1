/* Choices by line: what a line names, which saved line a call takes, and older lines. A row of `copy`
 * that has four ways and takes one by what it is told of its places; each is its variant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include <math.h>

#include <engine/kernel_choice.h>

struct lh_prepared {
    uint64_t variant;
};
enum { PLAIN = 1, WIDE = 2, PACKED = 3, IN_PLACE = 4, TIMED = 5, SCRATCH = 4096 };

static uint32_t prepared_count; /* prepare() was asked so often */
static bool endless;            /* the kernel's name takes all its room, without a NUL */

/* The way that a call takes if nobody wants another follows from its arguments. */
static lh_status_t prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                           lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    (void)host, (void)d;
    const lh_arg_t *x = &desc->args[0], *y = &desc->args[1];
    uint64_t variant = x->alignment >= 64 ? WIDE : PLAIN;
    if ((x->flags & LH_ARG_KEPT) != 0) variant = PACKED;
    if (y->alias_slot != 0) variant = IN_PLACE;
    const bool may_wide = x->alignment >= 64;
    prepared_count++;
    if ((desc->flags & LH_KERNEL_TUNE) != 0) {
        variant = TIMED;
        plan->flags |= LH_KERNEL_TUNE;
    }
    if ((desc->flags & LH_KERNEL_MOST) != 0) plan->scratch_bytes = SCRATCH;
    if (desc->variant == WIDE && !may_wide) return LH_UNSUPPORTED;
    plan->variant = desc->variant != 0 ? desc->variant : variant;
    plan->flags |= LH_KERNEL_ORDERED;
    memcpy(plan->name, "copy.test", sizeof("copy.test"));
    if (endless) memset(plan->name, 'n', sizeof(plan->name));
    *out = malloc(sizeof(**out));
    assert_non_null(*out);
    (*out)->variant = plan->variant;
    return LH_OK;
}

static void release(lh_prepared_t *k)
{
    free(k);
}

static lh_kernel_t rows[] = {{.op = "copy", .prepare = prepare, .release = release},
                             {.op = "test.odd", .prepare = prepare, .release = release}};
static const plugin_t device = {.name = "test", .kernels = rows, .kernel_count = 2};

static double said; /* what the op says that it computes */

static lh_status_t odd_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                             uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    args[1] = args[0];
    return LH_OK;
}

static void odd_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                     lh_cost_t *out)
{
    (void)attributes, (void)args, (void)arg_count;
    out->flops = said;
    out->bytes = 8;
}

static const lh_op_t odd = {
    .name = "test.odd", .slots = "x -> y", .shape = odd_shape, .cost = odd_cost};

static op_table_t *ops;

static int load(void **state)
{
    (void)state;
    if (op_table_new(&ops) != LH_OK) return -1;
    return op_table_add(ops, &odd, sizeof(odd), 1, "test") == LH_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    op_table_free(ops);
    return 0;
}

static kernel_choice_t *choice_new(const char *variants)
{
    const kernel_choice_how_t how = {
        .ops = ops, .device = &device, .scratch_limit_bytes = 1 << 20, .variants = variants};
    kernel_choice_t *c;
    assert_int_equal(kernel_choice_new(&how, &c), LH_OK);
    return c;
}

/* A copy of [8, 4] F32 to BF16. alias: over its input, which has its dtype then. */
static const kernel_t *choose(kernel_choice_t *c, uint32_t alignment, bool kept, bool alias)
{
    lh_arg_t args[2] = {
        {.dtype = LH_DTYPE_F32, .rank = 2, .shape = {8, 4}, .stride = {4, 1}},
        {.dtype = LH_DTYPE_BF16, .rank = 2, .shape = {8, 4}, .stride = {4, 1}},
    };
    args[0].alignment = args[1].alignment = alignment;
    args[0].flags = kept ? LH_ARG_KEPT : 0;
    args[1].alias_slot = alias ? 1 : 0;
    kernel_t *k;
    if (kernel_choose(c, op_table_find(ops, "copy"), NULL, args, &k) != LH_OK) return NULL;
    return k;
}

static uint64_t variant(kernel_choice_t *c, uint32_t alignment, bool kept, bool alias)
{
    const kernel_t *k = choose(c, alignment, kept, alias);
    return k == NULL ? 0 : k->plan.variant;
}

static void a_line_names_all_that_a_row_is_told(void **state)
{
    (void)state;
    static const struct {
        uint32_t alignment;
        bool kept, alias;
        const char *line;
    } calls[] = {
        {0, false, false, "copy F32[8,4] -> BF16[8,4]"},
        {8, false, false, "copy F32[8,4]@8 -> BF16[8,4]@8"},
        {64, false, false, "copy F32[8,4]@64 -> BF16[8,4]@64"},
        {256, true, false, "copy F32[8,4]!@256 -> BF16[8,4]@256"},
        {256, false, true, "copy F32[8,4]@256 -> BF16[8,4]~1@256"},
    };
    kernel_choice_t *c = choice_new(NULL);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        assert_string_equal(choose(c, calls[i].alignment, calls[i].kept, calls[i].alias)->line,
                            calls[i].line);
    kernel_choice_free(c);
}

/* What was chosen for each, as a checkpoint has it; asked for again in another order. */
static void each_call_takes_its_own_line_again(void **state)
{
    (void)state;
    kernel_choice_t *c = choice_new(NULL);
    assert_int_equal(variant(c, 16, false, false), PLAIN);
    assert_int_equal(variant(c, 256, false, false), WIDE);
    assert_int_equal(variant(c, 256, true, false), PACKED);
    assert_int_equal(variant(c, 256, false, true), IN_PLACE);
    text_t saved = {0};
    kernel_choice_text(c, 0, &saved);
    assert_int_equal(text_status(&saved), LH_OK);
    kernel_choice_free(c);

    prepared_count = 0;
    c = choice_new(saved.data);
    assert_int_equal(variant(c, 256, false, true), IN_PLACE);
    assert_int_equal(variant(c, 256, true, false), PACKED);
    assert_int_equal(variant(c, 256, false, false), WIDE);
    assert_int_equal(variant(c, 16, false, false), PLAIN);
    assert_int_equal(prepared_count, 4);
    /* A call that no line names is free, as it was where the lines were written. */
    assert_int_equal(variant(c, 64, false, false), WIDE);
    assert_int_equal(variant(c, 32, false, false), PLAIN);
    text_t again = {0};
    kernel_choice_text(c, 0, &again);
    assert_true(kernel_choice_agree(again.data, saved.data));
    assert_true(kernel_choice_agree(saved.data, again.data));
    kernel_choice_free(c);
    text_free(&again);
    text_free(&saved);
}

static void a_choice_that_the_row_refuses_is_refused(void **state)
{
    (void)state;
    kernel_choice_t *c = choice_new("copy F32[8,4]@16 -> BF16[8,4]@16 = copy.test 2\n");
    assert_null(choose(c, 16, false, false));
    kernel_choice_free(c);
    c = choice_new("copy F32[8,4]@16 -> BF16[8,4]@16 = copy.other 1\n");
    assert_null(choose(c, 16, false, false));
    kernel_choice_free(c);
}

/* They did not name what tells these calls apart, so each may have several; and they bind. */
static void older_lines_are_taken_by_all_calls_that_they_fit(void **state)
{
    (void)state;
    static const char old[] = "copy F32[8,4] -> BF16[8,4] = copy.test 2\n"
                              "copy F32[8,4] -> BF16[8,4] = copy.test 4\n"
                              "copy F32[8,4]@8 -> BF16[8,4]@8 = copy.test 3\n";
    kernel_choice_t *c = choice_new(old);
    assert_int_equal(variant(c, 256, false, false), WIDE);
    assert_int_equal(variant(c, 256, true, false), WIDE);
    assert_int_equal(variant(c, 16, false, false), IN_PLACE); /* the first that it offers */
    assert_int_equal(variant(c, 8, false, false), PACKED);
    assert_int_equal(variant(c, 4, false, false), PLAIN); /* lines named less than 16 */
    kernel_choice_free(c);

    c = choice_new("copy F32[8,4] -> BF16[8,4] = copy.test 2\n");
    assert_null(choose(c, 16, false, false));
    assert_int_equal(variant(c, 64, false, false), WIDE);
    text_t now = {0};
    kernel_choice_text(c, 0, &now);
    assert_true(kernel_choice_agree(now.data, "copy F32[8,4] -> BF16[8,4] = copy.test 2\n"));
    assert_true(kernel_choice_agree(now.data, old));
    assert_false(kernel_choice_agree(now.data, "copy F32[8,4] -> BF16[8,4] = copy.test 1\n"));
    assert_true(kernel_choice_agree(now.data, "copy F32[8,5] -> BF16[8,5] = copy.test 1\n"));
    assert_true(kernel_choice_agree(
        now.data, "copy F32[8,4]@16 -> BF16[8,4]@16 = copy.test 1\n")); /* another call */
    assert_false(kernel_choice_agree(now.data, "copy F32[8,4]@64 -> BF16[8,4]@64 = copy.test 1\n"));
    text_free(&now);
    kernel_choice_free(c);
}

/* As another rank takes rank 0's: its own call if that is known, else one that lies otherwise; who may
 * time does that instead. */
static void what_is_known_is_taken_by_calls_that_lie_otherwise(void **state)
{
    (void)state;
    static const char known[] = "copy F32[8,4]@16 -> BF16[8,4]@16 = copy.test 4\n"
                                "copy F32[8,4]@64 -> BF16[8,4]@64 = copy.test 2\n";
    kernel_choice_t *c = choice_new(NULL);
    kernel_choice_tune(c, known, false);
    assert_int_equal(variant(c, 64, false, false), WIDE);
    assert_int_equal(variant(c, 16, false, false), IN_PLACE);
    assert_int_equal(variant(c, 256, true, false), IN_PLACE);
    assert_int_equal(variant(c, 8, false, false), PLAIN);
    kernel_choice_free(c);

    c = choice_new(NULL);
    kernel_choice_tune(c, known, true);
    assert_int_equal(variant(c, 64, false, false), WIDE);
    assert_int_equal(variant(c, 256, true, false), TIMED);
    kernel_choice_free(c);
}

/* A rank's calls that have what another has timed: its own, by an older line, and one that lies otherwise;
 * not one of another choice, nor one that the other lacks. */
static void choices_as_timed_are_counted(void **state)
{
    (void)state;
    static const char timed[] = "copy F32[8,4]@16 -> BF16[8,4]@16 = copy.test 4\n"
                                "copy F32[8,5] -> BF16[8,5] = copy.test 1\n"
                                "copy F32[8,6]@64 -> BF16[8,6]@64 = copy.test 12\n";
    assert_int_equal(kernel_choice_same(timed, timed), 3);
    assert_int_equal(kernel_choice_same("copy F32[8,4]@16 -> BF16[8,4]@16 = copy.test 4\n"
                                        "copy F32[8,4]!@64 -> BF16[8,4]@64 = copy.test 4\n"
                                        "copy F32[8,4]@256 -> BF16[8,4]~1@256 = copy.test 2\n"
                                        "copy F32[8,5]@16 -> BF16[8,5]@16 = copy.test 1\n"
                                        "copy F32[8,6]@64 -> BF16[8,6]@64 = copy.test 1\n"
                                        "copy F32[8,7]@64 -> BF16[8,7]@64 = copy.test 4\n",
                                        timed),
                     3);
    assert_int_equal(kernel_choice_same(NULL, timed), 0);
    assert_int_equal(kernel_choice_same(timed, NULL), 0);
}

static void a_bound_counts_what_timing_might_take(void **state)
{
    (void)state;
    kernel_choice_t *c = choice_new(NULL);
    kernel_choice_tune(c, "copy F32[8,4]@64 -> BF16[8,4]@64 = copy.test 2\n", false);
    kernel_choice_bound(c);
    assert_int_equal(variant(c, 64, false, false), WIDE);
    assert_int_equal(kernel_choice_scratch(c), 0); /* it is known */
    assert_int_equal(variant(c, 256, false, false), WIDE);
    assert_int_equal(kernel_choice_scratch(c), SCRATCH);
    kernel_choice_free(c);
}

static void a_name_without_an_end_gets_one(void **state)
{
    (void)state;
    kernel_choice_t *c = choice_new(NULL);
    endless = true;
    const kernel_t *k = choose(c, 64, false, false);
    endless = false;
    assert_non_null(k);
    assert_int_equal(strlen(k->plan.name), sizeof(k->plan.name) - 1);
    kernel_choice_free(c);
}

/* Plans add costs up, and the record of a device is written with them. */
static void a_cost_is_an_amount(void **state)
{
    (void)state;
    static const double costs[][2] = {{3, 3}, {-1, 0}, {(double)NAN, 0}, {(double)INFINITY, 0}};
    const lh_arg_t args[2] = {
        {.dtype = LH_DTYPE_F32, .rank = 2, .shape = {8, 4}, .stride = {4, 1}},
        {.dtype = LH_DTYPE_F32, .rank = 2, .shape = {8, 4}, .stride = {4, 1}},
    };
    for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
        kernel_choice_t *c = choice_new(NULL);
        kernel_t *k;
        said = costs[i][0];
        assert_int_equal(kernel_choose(c, op_table_find(ops, odd.name), NULL, args, &k), LH_OK);
        assert_true(k->cost.flops == costs[i][1]);
        assert_true(k->cost.bytes == 8);
        kernel_choice_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_names_all_that_a_row_is_told),
        cmocka_unit_test(each_call_takes_its_own_line_again),
        cmocka_unit_test(a_choice_that_the_row_refuses_is_refused),
        cmocka_unit_test(older_lines_are_taken_by_all_calls_that_they_fit),
        cmocka_unit_test(what_is_known_is_taken_by_calls_that_lie_otherwise),
        cmocka_unit_test(choices_as_timed_are_counted),
        cmocka_unit_test(a_bound_counts_what_timing_might_take),
        cmocka_unit_test(a_name_without_an_end_gets_one),
        cmocka_unit_test(a_cost_is_an_amount),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
