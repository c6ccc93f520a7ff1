/* golden_curves_test.c - PyTorch's loss curves and gradient norms come out however the batch is cut
 * into micro-batches, whatever is recomputed and with any number of threads. The kernels of `cpu` take the
 * first models every way and the others two, or each model one under the address sanitizer; of the plain
 * doubles of `reference` and the delays of `fake`, which take long, the first models' one is a sample
 * (LONGHAUL_TORTURE=1: all; the whole batch of every model is golden_engine_test's). */
#include "../torture.h"
#include "golden.h"

#include <engine/model_program.h>
#include <engine/program.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct way {
    const char *name;
    uint32_t micro_batch, recompute;
    const char *threads;
    lh_dtype_t compute;
} way_t;

static const way_t ways[] = {
    {"1 x 4, selective, 1 thread, f32", 4, RECOMPUTE_SELECTIVE, "1", LH_DTYPE_F32},
    {"2 x 2, full, 2 threads, f32", 2, RECOMPUTE_FULL, "2", LH_DTYPE_F32},
    {"4 x 1, none, 1 thread, f32", 1, RECOMPUTE_NONE, "1", LH_DTYPE_F32},
    {"1 x 4, full, 2 threads, bf16", 4, RECOMPUTE_FULL, "2", LH_DTYPE_BF16},
    {"2 x 2, none, 1 thread, bf16", 2, RECOMPUTE_NONE, "1", LH_DTYPE_BF16},
    {"4 x 1, selective, 2 threads, bf16", 1, RECOMPUTE_SELECTIVE, "2", LH_DTYPE_BF16},
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]), TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE };

typedef struct run {
    const golden_model_t *model;
    const way_t *way;
    rig_t rig;
    program_t *train, *update;
} run_t;

static void open_run(run_t *r)
{
    assert_int_equal(setenv("LH_TEST_THREADS", r->way->threads, 1), 0);
    rig_open(&r->rig, r->model->plugin, golden_options(r->model), r->way->compute);
    r->update = rig_update(&r->rig, 0.1);
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = r->way->micro_batch,
                               .rows = GOLDEN_SEQUENCE,
                               .micro_batches = GOLDEN_BATCH / r->way->micro_batch,
                               .recompute = r->way->recompute};
    OK(program_new(r->rig.engine, r->rig.weights, &how, &r->train));
    OK(engine_build(r->rig.engine));
    golden_weights(r->model, &r->rig);
}

/* One step; the losses of the micro-batches add up to the batch's. */
static double step(run_t *r, uint32_t number, double *norm)
{
    const uint32_t rows = r->way->micro_batch, row = GOLDEN_SEQUENCE + 1;
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    golden_batch(r->model, number, batch);
    for (uint32_t i = 0; i < GOLDEN_BATCH / rows; i++) {
        rig_batch(r->train, batch + i * rows * row, rows, GOLDEN_SEQUENCE, TOKENS);
        OK(program_run(r->train, i));
    }
    const double loss = (double)rig_loss(r->train);
    *norm = (double)rig_step(r->update, number + 1, 3e-3, 1.0, NULL);
    return loss;
}

static void the_curve_is_that_of_pytorch(void **state)
{
    run_t *r = *state;
    double losses[GOLDEN_STEPS], norms[GOLDEN_STEPS], worst = 0, worst_norm = 0;
    const double tolerance = golden_curve(r->model, r->way->compute, r->way->micro_batch, losses,
                                          norms);

    open_run(r);
    const double most_norm = golden_norm_tolerance(r->model, &r->rig, r->way->compute);
    for (uint32_t i = 0; i < GOLDEN_STEPS; i++) {
        double norm;
        const double loss = step(r, i, &norm);
        worst = fmax(worst, fabs(loss - losses[i]) / losses[i]);
        worst_norm = fmax(worst_norm, fabs(norm - norms[i]) / norms[i]);
    }
    rig_close(&r->rig);
    print_message("losses differ by at most %.2g, norms by %.2g\n", worst, worst_norm);
    assert_true(worst <= tolerance);
    assert_true(worst_norm <= most_norm);
}

#if defined(__SANITIZE_ADDRESS__)
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

/* Both dtypes, both ways to cut a batch, and all that is recomputed or a part of it. The processor's device goes
 * every way when all is wanted; others two of six, by turns from model to model. */
static bool is_in_sample(uint32_t model, uint32_t way)
{
    const char *device = getenv("LH_TEST_DEVICE");
    const bool every = device == NULL || strcmp(device, "cpu") == 0;
    const bool one_of_two = (!every || sanitized) && getenv("LH_TEST_GPU") == NULL;
    const bool is_one = way == (model % 2 == 0 ? 1 : 5), is_of_two = way == 1 || way == 5;
    if (torture_wanted()) return every || (model + way) % 3 == 0;
    if (every && !sanitized && model < GOLDEN_FIRST) return true;
    return (every || model < GOLDEN_FIRST) && (one_of_two ? is_one : is_of_two);
}

int main(void)
{
    static run_t runs[GOLDEN_MODELS * WAYS];
    static char titles[GOLDEN_MODELS * WAYS][128];
    struct CMUnitTest tests[GOLDEN_MODELS * WAYS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < GOLDEN_MODELS * WAYS; i++) {
        if (!is_in_sample(i / WAYS, i % WAYS) || !golden_there(&golden_models[i / WAYS])) continue;
        runs[i] = (run_t){.model = &golden_models[i / WAYS], .way = &ways[i % WAYS]};
        (void)snprintf(titles[i], sizeof(titles[i]), "%s: the_curve_is_that_of_pytorch: %s",
                       runs[i].model->name, runs[i].way->name);
        tests[count++] = (struct CMUnitTest){titles[i], the_curve_is_that_of_pytorch, NULL, NULL,
                                             &runs[i]};
    }
    return _cmocka_run_group_tests("golden_curves", tests, count, NULL, NULL);
}
