/* golden_ranks_test.c - PyTorch's loss curves come out of 2 and 4 ranks, at every ZeRO stage and with
 * recomputation; and what the update gathers of the ranks' losses is what each of them says over the
 * control plane. The first models share the ways among them, the others go one; LONGHAUL_TORTURE=1: all. */
#include "../torture.h"
#include "golden.h"

#include <engine/model_program.h>
#include <engine/program.h>
#include <math.h>
#include <stdio.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE };

typedef struct way {
    uint32_t ranks;
    const char *optimizer;
    lh_dtype_t compute;
    uint32_t recompute;
} way_t;

static const way_t ways[] = {
    {2, "zero0", LH_DTYPE_F32, RECOMPUTE_NONE},  {2, "zero1", LH_DTYPE_BF16, RECOMPUTE_NONE},
    {4, "zero2", LH_DTYPE_F32, RECOMPUTE_NONE},  {4, "zero3", LH_DTYPE_F32, RECOMPUTE_SELECTIVE},
    {2, "zero3", LH_DTYPE_F32, RECOMPUTE_FULL},  {2, "zero3", LH_DTYPE_BF16, RECOMPUTE_SELECTIVE},
    {4, "zero3", LH_DTYPE_BF16, RECOMPUTE_NONE}, {2, "zero3", LH_DTYPE_BF16, RECOMPUTE_FULL},
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

typedef struct one_case {
    const golden_model_t *model;
    const way_t *way;
} one_case_t;

typedef struct rank {
    const one_case_t *c;
    rig_rank_t *one;
    rig_t rig;
    program_t *train, *update;
} rank_t;

static void open_rank(rank_t *r)
{
    const way_t *way = r->c->way;
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = GOLDEN_BATCH / way->ranks,
                               .rows = GOLDEN_SEQUENCE,
                               .micro_batches = 1,
                               .replicas = way->ranks,
                               .recompute = way->recompute};
    rig_open(&r->rig, r->c->model->plugin, golden_options(r->c->model), way->compute);
    rig_rank_open(r->one, &r->rig);
    r->update = rig_rank_update(r->one, &r->rig, 0.1, way->optimizer);
    OK(program_new(r->rig.engine, r->rig.weights, &how, &r->train));
    OK(engine_build(r->rig.engine));
    OK(comm_connect(r->one->comm));
    golden_weights(r->c->model, &r->rig);
    OK(transfers_value_gather(r->one->transfers));
}

/* One step of this rank's rows; the ranks' losses add up to the batch's. */
static double step(rank_t *r, uint32_t number, double *norm)
{
    const uint32_t ranks = r->c->way->ranks, rows = GOLDEN_BATCH / ranks;
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    double all[RIG_RANKS], sum = 0;
    golden_batch(r->c->model, number, batch);
    rig_batch(r->train, batch + r->one->rank * rows * (GOLDEN_SEQUENCE + 1), rows, GOLDEN_SEQUENCE,
              TOKENS);
    OK(program_run(r->train, 0));
    const double mine = (double)rig_loss(r->train);
    *norm = (double)rig_step(r->update, number + 1, 3e-3, 1.0, NULL);
    OK(control_gather(r->one->control, &mine, sizeof(mine), all));
    /* Of each rank the cross-entropy, and behind it the model's own losses, if it has any. */
    float gathered[2 * RIG_RANKS] = {0};
    const size_t bytes = program_output_bytes(r->update, OUTPUT_LOSSES);
    const size_t terms = bytes / (ranks * sizeof(*gathered));
    assert_true(terms == 1 || terms == 2);
    OK(program_output(r->update, OUTPUT_LOSSES, gathered, bytes));
    for (uint32_t i = 0; i < ranks; i++) {
        const double own = terms == 2 ? (double)gathered[2 * i + 1] : 0;
        assert_true(fabs((double)gathered[terms * i] + own - all[i]) <= 1e-7 * all[i]);
        sum += all[i];
    }
    return sum;
}

static void curve(rank_t *r)
{
    const golden_model_t *model = r->c->model;
    double losses[GOLDEN_STEPS], norms[GOLDEN_STEPS], worst = 0, worst_norm = 0;
    const double tolerance = golden_curve(model, r->c->way->compute,
                                          GOLDEN_BATCH / r->c->way->ranks, losses, norms);
    for (uint32_t i = 0; i < GOLDEN_STEPS; i++) {
        double norm;
        const double loss = step(r, i, &norm);
        worst = fmax(worst, fabs(loss - losses[i]) / losses[i]);
        worst_norm = fmax(worst_norm, fabs(norm - norms[i]) / norms[i]);
    }
    if (r->one->rank == 0)
        print_message("losses differ by at most %.2g, norms by %.2g\n", worst, worst_norm);
    assert_true(worst <= tolerance);
    assert_true(worst_norm <= golden_norm_tolerance(model, &r->rig, r->c->way->compute));
}

static void rank_trains(rig_rank_t *one, void *context)
{
    rank_t r = {.c = context, .one = one};
    open_rank(&r);
    curve(&r);
    rig_rank_close(one, &r.rig);
}

static void the_curve_is_that_of_pytorch(void **state)
{
    const one_case_t *c = *state;
    rig_over_ranks(c->way->ranks, rank_trains, *state);
}

/* Of models behind the first the way that cuts most and makes most anew. */
static bool is_in_sample(uint32_t model, uint32_t way)
{
    if (torture_wanted()) return true;
    return model < GOLDEN_FIRST ? way % GOLDEN_FIRST == model : way == WAYS - 1;
}

int main(void)
{
    static one_case_t cases[GOLDEN_MODELS * WAYS];
    static char titles[GOLDEN_MODELS * WAYS][128];
    struct CMUnitTest tests[GOLDEN_MODELS * WAYS];
    uint32_t count = 0;
    if (strcmp(rig_device(), "cpu") != 0) return 77; /* others' bits are compared with its */
    for (uint32_t i = 0; i < GOLDEN_MODELS * WAYS; i++) {
        if (!is_in_sample(i / WAYS, i % WAYS)) continue;
        if (!golden_there(&golden_models[i / WAYS])) continue;
        one_case_t *c = &cases[count];
        *c = (one_case_t){&golden_models[i / WAYS], &ways[i % WAYS]};
        static const char *const anew[] = {[RECOMPUTE_NONE] = "none",
                                           [RECOMPUTE_SELECTIVE] = "selective",
                                           [RECOMPUTE_FULL] = "full"};
        (void)snprintf(titles[count], sizeof(titles[count]), "%s: %u ranks, %s, %s, %s",
                       c->model->name, c->way->ranks, c->way->optimizer,
                       c->way->compute == LH_DTYPE_F32 ? "f32" : "bf16", anew[c->way->recompute]);
        tests[count] = (struct CMUnitTest){titles[count], the_curve_is_that_of_pytorch, NULL, NULL,
                                           c};
        count++;
    }
    return _cmocka_run_group_tests("golden_ranks", tests, count, NULL, NULL);
}
