/* golden_engine_test.c - the engine gives PyTorch's logits, losses, gradients and loss curves. */
#include "../torture.h"
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <base/memory.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE };

static const golden_model_t *model_of(void **state)
{
    return *state;
}

static program_t *program_of(rig_t *rig, uint32_t use, bool logits)
{
    const program_how_t how = {
        .use = use, .sequences = GOLDEN_BATCH, .rows = GOLDEN_SEQUENCE, .wants_logits = logits};
    return rig_program(rig, &how);
}

static void logits_are_those_of_pytorch(void **state)
{
    const golden_model_t *m = model_of(state);
    rig_t rig;
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    double tolerance, expected_loss;
    assert_int_equal(golden_numbers(m, "logits_abs", &tolerance, 1), 1);
    assert_int_equal(golden_numbers(m, "cross_entropy_first_batch", &expected_loss, 1), 1);
    golden_batch(m, 0, batch);

    rig_open(&rig, m->plugin, golden_options(m), LH_DTYPE_F32);
    program_t *score = program_of(&rig, USE_SCORE, true);
    OK(engine_build(rig.engine));
    golden_weights(m, &rig);
    rig_batch(score, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(score, 0));

    uint64_t count = 0;
    float *expected = golden_tensor(m, "expected.safetensors", "logits", &count);
    assert_int_equal(program_output_bytes(score, OUTPUT_LOGITS), count * sizeof(float));
    float *logits = mem_array(count, sizeof(float));
    OK(program_output(score, OUTPUT_LOGITS, logits, count * sizeof(float)));
    double worst = 0;
    for (uint64_t i = 0; i < count; i++)
        worst = fmax(worst, fabs((double)logits[i] - (double)expected[i]));
    print_message("%s: logits differ by at most %.2g\n", m->name, worst);
    assert_true(worst <= tolerance);
    float losses[2]; /* with the model's own, and the cross-entropy alone */
    OK(program_output(score, OUTPUT_LOSS, losses, sizeof(losses)));
    assert_true(fabs((double)losses[1] - expected_loss) <= 1e-5 * expected_loss);
    mem_free(logits);
    mem_free(expected);
    rig_close(&rig);
}

static void gradient_compare(const golden_model_t *m, const rig_t *rig, uint32_t i,
                             double tolerance)
{
    const parameter_t *p = &rig->parameters->items[i];
    float *expected = golden_parameter(m, "expected.safetensors", "grad.", p);
    assert_non_null(expected);
    float *got = mem_array(p->elements, sizeof(float));
    OK(weights_read(rig->weights, SPACE_GRAD, i, 0, p->elements, LH_DTYPE_F32, got));
    double difference = 0, norm = 0;
    for (uint64_t e = 0; e < p->elements; e++) {
        const double d = (double)got[e] - (double)expected[e];
        difference += d * d;
        norm += (double)expected[e] * (double)expected[e];
    }
    /* Keys that do not turn have a bias whose gradient is rounding alone: softmax does not see it. */
    const double most = tolerance * sqrt(norm) + 1e-8;
    if (!(sqrt(difference) <= most))
        print_error("%s: gradient of %s differs by %.3g of %.3g\n", m->name, p->name,
                    sqrt(difference), sqrt(norm));
    assert_true(sqrt(difference) <= most);
    mem_free(expected);
    mem_free(got);
}

static void gradients_are_those_of_pytorch(void **state)
{
    const golden_model_t *m = model_of(state);
    rig_t rig;
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    double tolerance, expected_loss;
    assert_int_equal(golden_numbers(m, "gradient_rel", &tolerance, 1), 1);
    assert_int_equal(golden_numbers(m, "loss_first_batch", &expected_loss, 1), 1);
    golden_batch(m, 0, batch);

    rig_open(&rig, m->plugin, golden_options(m), LH_DTYPE_F32);
    program_t *train = program_of(&rig, USE_TRAIN, false);
    OK(engine_build(rig.engine));
    golden_weights(m, &rig);
    rig_batch(train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(train, 0));
    assert_true(fabs((double)rig_loss(train) - expected_loss) <= 1e-5 * expected_loss);
    for (uint32_t i = 0; i < rig.parameters->count; i++)
        if (rig.parameters->items[i].storage == i) gradient_compare(m, &rig, i, tolerance);
    rig_close(&rig);
}

/* Norms of gradients along a curve of F32: they drift apart faster than losses. */
#define NORM_REL 0.01

static void curve_check(const golden_model_t *m, lh_dtype_t compute, const char *curve,
                        const char *limit)
{
    rig_t rig;
    double expected[GOLDEN_STEPS], norms[GOLDEN_STEPS], tolerance;
    assert_int_equal(golden_numbers(m, curve, expected, GOLDEN_STEPS), GOLDEN_STEPS);
    assert_int_equal(golden_numbers(m, "gradient_norms_fp32", norms, GOLDEN_STEPS), GOLDEN_STEPS);
    assert_int_equal(golden_numbers(m, limit, &tolerance, 1), 1);

    rig_open(&rig, m->plugin, golden_options(m), compute);
    program_t *update = rig_update(&rig, 0.1);
    program_t *train = program_of(&rig, USE_TRAIN, false);
    OK(engine_build(rig.engine));
    golden_weights(m, &rig);
    double worst = 0, worst_norm = 0;
    for (uint32_t step = 0; step < GOLDEN_STEPS; step++) {
        int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
        golden_batch(m, step, batch);
        rig_batch(train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
        OK(program_run(train, 0));
        const double loss = (double)rig_loss(train);
        const double norm = (double)rig_step(update, step + 1, 3e-3, 1.0, NULL);
        worst = fmax(worst, fabs(loss - expected[step]) / expected[step]);
        worst_norm = fmax(worst_norm, fabs(norm - norms[step]) / norms[step]);
        if (compute == LH_DTYPE_F32 && worst_norm > NORM_REL)
            print_error("%s: step %u: norm %.6g, expected %.6g\n", m->name, step, norm,
                        norms[step]);
        if (worst > tolerance)
            print_error("%s: step %u: loss %.7g, expected %.7g\n", m->name, step, loss,
                        expected[step]);
    }
    print_message("%s: %s differs by at most %.2g, norms by %.2g\n", m->name, curve, worst,
                  worst_norm);
    assert_true(worst <= tolerance);
    assert_true(compute != LH_DTYPE_F32 || worst_norm <= NORM_REL);
    rig_close(&rig);
}

static void the_f32_loss_curve_is_that_of_pytorch(void **state)
{
    curve_check(model_of(state), LH_DTYPE_F32, "loss_curve_fp32", "curve_fp32_rel");
}

static void the_bf16_loss_curve_is_that_of_pytorch(void **state)
{
    curve_check(model_of(state), LH_DTYPE_BF16, "loss_curve_bf16_autocast", "curve_bf16_rel");
}

/* A curve of the plain doubles of `reference` takes seconds, and so does one of the delays of `fake`:
 * of eight models one is trained on them, and with fewer threads than were asked for; in torture each. */
static bool is_left_out(uint32_t model, uint32_t fact)
{
    enum { CURVES = 2, SLOW = 8 };
#if defined(__SANITIZE_ADDRESS__)
    uint32_t each = 2; /* as released, each */
#else
    uint32_t each = 1;
#endif
    if (strcmp(rig_device(), "cpu") != 0 || getenv("OMP_DYNAMIC") != NULL) each = SLOW;
    return fact >= CURVES && model % each != 0 && !torture_wanted();
}

int main(void)
{
    void (*const facts[])(void **) = {logits_are_those_of_pytorch, gradients_are_those_of_pytorch,
                                      the_f32_loss_curve_is_that_of_pytorch,
                                      the_bf16_loss_curve_is_that_of_pytorch};
    static const char *const names[] = {
        "logits_are_those_of_pytorch", "gradients_are_those_of_pytorch",
        "the_f32_loss_curve_is_that_of_pytorch", "the_bf16_loss_curve_is_that_of_pytorch"};
    enum { FACTS = sizeof(facts) / sizeof(facts[0]) };
    struct CMUnitTest tests[FACTS * GOLDEN_MODELS];
    char titles[FACTS * GOLDEN_MODELS][128];
    uint32_t count = 0;
    for (uint32_t i = 0; i < FACTS * GOLDEN_MODELS; i++) {
        const golden_model_t *m = &golden_models[i / FACTS];
        if (!golden_there(m) || is_left_out(i / FACTS, i % FACTS)) continue;
        (void)snprintf(titles[count], sizeof(titles[count]), "%s: %s", m->name, names[i % FACTS]);
        tests[count] = (struct CMUnitTest){titles[count], facts[i % FACTS], NULL, NULL,
                                           (void *)(uintptr_t)m};
        count++;
    }
    return _cmocka_run_group_tests("golden_engine", tests, count, NULL, NULL);
}
