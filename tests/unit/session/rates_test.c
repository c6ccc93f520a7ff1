/* rates_test.c - learning rates against values worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <plugin/call.h>
#include <plugin/host.h>
#include <session/step_layout.h>

#include <cmocka.h>

static const call_variable_t variables[] = {{"step", CALL_U64}};

static double rate(const char *text, uint64_t step)
{
    host_t *h;
    const lh_host_t *host;
    call_t *call;
    call_value_t out;
    assert_int_equal(host_new(&h), LH_OK);
    assert_int_equal(host_for(h, "longhaul", &host), LH_OK);
    const call_scope_t scope = {.functions = rate_functions,
                                .function_count = rate_function_count,
                                .variables = variables,
                                .variable_count = 1,
                                .host = host};
    assert_int_equal(call_bind(text, "test", &scope, CALL_F64, &call), LH_OK);
    const call_value_t values[] = {{.u64 = step}};
    assert_int_equal(call_run(call, values, &out), LH_OK);
    call_free(call);
    host_free(h);
    return out.f64;
}

static const struct {
    const char *text;
    uint64_t step;
    double rate;
} cases[] = {
    {"constant(3e-4)", 0, 3e-4},
    {"constant(peak=3e-4)", 999, 3e-4},
    /* the first step of a warm-up is not lost at rate 0, the last one reaches the peak */
    {"warmup_cosine(step, peak=1, warmup=4, total=14)", 0, 0.25},
    {"warmup_cosine(step, peak=1, warmup=4, total=14)", 3, 1},
    {"warmup_cosine(step, peak=1, warmup=4, total=14)", 4, 1},
    {"warmup_cosine(step, peak=1, warmup=4, total=14)", 9, 0.5},
    {"warmup_cosine(step, peak=1, warmup=4, total=14)", 14, 0},
    {"warmup_cosine(step, peak=1, warmup=4, total=14)", 1000, 0},
    {"warmup_linear(step, peak=2, warmup=0, total=10)", 0, 2},
    {"warmup_linear(step, peak=2, warmup=0, total=10)", 5, 1},
    {"warmup_linear(step, peak=2, warmup=0, total=10)", 11, 0},
    {"warmup_stable_decay(step, peak=1, warmup=2, decay=4, total=10)", 1, 1},
    {"warmup_stable_decay(step, peak=1, warmup=2, decay=4, total=10)", 6, 1},
    {"warmup_stable_decay(step, peak=1, warmup=2, decay=4, total=10)", 8, 0.5},
    {"warmup_stable_decay(step, peak=1, warmup=2, decay=4, total=10)", 10, 0},
    {"warmup_stable_decay(step, peak=1, warmup=0, decay=99, total=10)", 0, 1},
};

static void a_schedule_gives_the_rate_of_its_definition(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const double got = rate(cases[i].text, cases[i].step);
        if (fabs(got - cases[i].rate) > 1e-15)
            fail_msg("%s at %llu is %.17g, not %.17g", cases[i].text,
                     (unsigned long long)cases[i].step, got, cases[i].rate);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schedule_gives_the_rate_of_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
