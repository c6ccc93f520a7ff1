/* rule_test.c - a third party's update rule is recorded and run; Lion's two lines, written out, say
 * what must come out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <base/status.h>
#include <graph/recorder.h>
#include <longhaul/dtype.h>

#include "differences.h"
#include <longhaul/rule.h>

#include <cmocka.h> /* last: it has a fail() of its own */

enum { ELEMENTS = 6 };
static const float grads[ELEMENTS] = {0.5f, -0.25f, 0, 2, -3, 0.125f};
static const float masters[ELEMENTS] = {1, -1, 0.5f, -0.5f, 2, 0.25f};
static const float moments[ELEMENTS] = {-1, 0.125f, 0, -0.25f, 1, 0.5f};

typedef struct lion_run {
    op_table_t *ops;
    recording_t *r;
    interpreter_t *it;
    lh_value_t grad, master, moment, value;
} lion_run_t;

static void start(lion_run_t *run, interpreter_how_t *how, const lh_plugin_t *const *acme)
{
    assert_int_equal(op_table_new(&run->ops), LH_OK);
    assert_int_equal(
        op_table_add(run->ops, (*acme)->ops, (*acme)->op_size, (*acme)->op_count, "acme_lion"),
        LH_OK);
    const recording_how_t recording = {
        .ops = run->ops, .host = test_host(), .compute = LH_DTYPE_BF16, .accumulate = LH_DTYPE_F32};
    assert_int_equal(recorder_new(&recording, &run->r), LH_OK);
    const uint64_t n = ELEMENTS;
    run->grad = recording_argument(run->r, LH_DTYPE_F32, 1, &n);
    run->master = recording_argument(run->r, LH_DTYPE_F32, 1, &n);
    run->moment = recording_argument(run->r, LH_DTYPE_F32, 1, &n);

    const struct {
        double beta1, beta2;
    } config = {0.9, 0.99};
    const lh_piece_t piece = {.struct_size = sizeof(piece), .decay = 0.5};
    lh_value_t state = run->moment;
    run->r->output = (*acme)->rules[0].record(&config, &run->r->graph, &piece, run->grad,
                                              run->master, &state, &run->value);
    /* somebody must want the value in the compute dtype */
    run->r->output = lh_add(&run->r->graph, run->value, run->value);
    assert_int_equal(recording_status(run->r), LH_OK);

    *how = (interpreter_how_t){.host = test_host(),
                               .device = test_plugin("devices", "reference"),
                               .plugins = acme,
                               .plugin_count = 1};
    assert_int_equal(interpreter_new(how, run->r, &run->it), LH_OK);
    memcpy(interpreter_at(run->it, run->grad), grads, sizeof(grads));
    memcpy(interpreter_at(run->it, run->master), masters, sizeof(masters));
    memcpy(interpreter_at(run->it, run->moment), moments, sizeof(moments));
}

static void end(lion_run_t *run)
{
    interpreter_free(run->it);
    recording_free(run->r);
    op_table_free(run->ops);
}

static void run_step(lion_run_t *run, float apply)
{
    float *step = interpreter_at(run->it, run->r->graph.api->input(&run->r->graph, LH_INPUT_STEP));
    step[LH_STEP_LEARNING_RATE] = 0.1f;
    step[LH_STEP_GRAD_SCALE] = 2;
    step[LH_STEP_APPLY] = apply;
    assert_int_equal(interpreter_run(run->it, false), LH_OK);
}

static void lion_moves_by_the_sign_of_its_moment(void **state)
{
    (void)state;
    const lh_plugin_t *acme = test_plugin("parts", "acme_lion");
    interpreter_how_t how;
    lion_run_t run;
    start(&run, &how, &acme);
    run_step(&run, 1);

    const float *master = interpreter_at(run.it, run.master);
    const float *moment = interpreter_at(run.it, run.moment);
    const uint16_t *value = interpreter_at(run.it, run.value);
    for (size_t i = 0; i < ELEMENTS; i++) {
        const double g = 2.0 * grads[i], direction = 0.9 * moments[i] + 0.1 * g;
        const double sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
        const double expected = masters[i] * (1 - 0.1 * 0.5) - 0.1 * sign;
        assert_true(fabs(master[i] - expected) <= 1e-6);
        assert_true(fabs(moment[i] - (0.99 * moments[i] + 0.01 * g)) <= 1e-6);
        assert_int_equal(value[i], lh_f32_to_bf16(master[i]));
    }
    end(&run);
}

static void a_step_that_is_not_applied_changes_nothing(void **state)
{
    (void)state;
    const lh_plugin_t *acme = test_plugin("parts", "acme_lion");
    interpreter_how_t how;
    lion_run_t run;
    start(&run, &how, &acme);
    run_step(&run, 0);
    assert_memory_equal(interpreter_at(run.it, run.master), masters, sizeof(masters));
    assert_memory_equal(interpreter_at(run.it, run.moment), moments, sizeof(moments));
    end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lion_moves_by_the_sign_of_its_moment),
        cmocka_unit_test(a_step_that_is_not_applied_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
