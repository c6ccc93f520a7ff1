/* step_plan_test.c - sums over calls, against what paper says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <plan/step_plan.h>

#include <cmocka.h>
#undef fail

static const op_t copy = {.row = {.name = "copy"}}, add = {.row = {.name = "add"}};
static const lh_arg_t f32 = {.dtype = LH_DTYPE_F32};

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static const program_call_t calls[] = {
    {.op = &copy, .args = &f32, .arg_count = 1, .part = "embed", .bytes = 1e6},
    {.op = &add, .args = &f32, .arg_count = 1, .part = "blocks", .flops = 5e6, .bytes = 1e6},
    {.op = &add,
     .args = &f32,
     .arg_count = 1,
     .part = "blocks",
     .backward = true,
     .flops = 5e6,
     .bytes = 1e6},
    {.op = &add, .args = &f32, .arg_count = 1, .part = "head", .backward = true, .flops = 1e6},
    {.op = &copy, .args = &f32, .arg_count = 1, .part = "update", .bytes = 2e6},
};

static void plan_calls(step_plan_t *plan, const device_rate_t *rate)
{
    static const uint64_t times[] = {4, 8, 8, 4, 1};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        assert_int_equal(step_plan_add(plan, &calls[i], times[i], rate), LH_OK);
}

/* 1 GB/s and 1 GFLOP/s; copies reach half of it, of adds nothing is known; a launch is 1 us. */
static void a_step_is_the_sum_of_its_calls(void **state)
{
    (void)state;
    device_rate_t rate = {
        .peak_flops = {[LH_DTYPE_F32] = 1e9}, .bytes_per_second = 1e9, .launch_s = 1e-6};
    const op_rate_t half = {"copy F32", 0, 1e6, 0.5};
    assert_int_equal(device_rate_add(&rate, &half), LH_OK);
    step_plan_t plan = {0};
    plan_calls(&plan, &rate);

    const double embed = 4 * (2e-3 + 1e-6), blocks = 8 * (5e-3 + 1e-6), head = 4 * (1e-3 + 1e-6),
                 update = 4e-3 + 1e-6;
    assert_true(near(plan.parts[STEP_FORWARD].seconds, embed + blocks));
    assert_true(near(plan.parts[STEP_BACKWARD].seconds, blocks));
    assert_true(near(plan.parts[STEP_HEAD].seconds, head));
    assert_true(near(plan.parts[STEP_UPDATE].seconds, update));
    assert_true(near(plan.all.seconds, embed + 2 * blocks + head + update));
    assert_true(near(plan.all.flops, 84e6));
    assert_true(near(plan.all.bytes, 22e6));
    assert_int_equal(plan.all.calls, 25);

    assert_int_equal(plan.kind_count, 2);
    assert_string_equal(plan.kinds[0].kind, "copy F32");
    assert_true(plan.kinds[0].measured);
    assert_true(near(plan.kinds[0].sum.seconds, embed + update));
    assert_false(plan.kinds[1].measured);
    assert_int_equal(plan.unmeasured, 1);
    step_plan_free(&plan);
    device_rate_free(&rate);
}

static void without_a_record_only_times_are_missing(void **state)
{
    (void)state;
    step_plan_t plan = {0};
    plan_calls(&plan, NULL);
    assert_true(near(plan.all.flops, 84e6));
    assert_true(plan.all.seconds == 0);
    assert_int_equal(plan.unmeasured, 0);
    step_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_the_sum_of_its_calls),
        cmocka_unit_test(without_a_record_only_times_are_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
