/* spec_models_test.c - the specs under examples/specs are the models of their plugins: the same
 * losses, norms and trained weights to the bit, and PyTorch's loss curve. */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/memory.h>
#include <config/job_load.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <spec/spec.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE, SEQUENCES = 2 /* of a micro-batch */ };

/* A spec under examples/specs, the plugin that it stands for, and a model of tests/golden. */
typedef struct pair {
    const char *spec, *golden;
    lh_dtype_t compute;
} pair_t;

static const golden_model_t *golden_find(const char *name)
{
    for (uint32_t i = 0; i < GOLDEN_MODELS; i++)
        if (strcmp(golden_models[i].name, name) == 0) return &golden_models[i];
    _fail(name, __LINE__);
    return NULL;
}

/* What holds a spec as a plugin. */
typedef struct adopted {
    job_t *job;
    host_t *host;
    registry_t *registry;
    const plugin_t *plugin;
} adopted_t;

static void adopt(const char *spec, adopted_t *out)
{
    char path[] = "/tmp/longhaul-spec-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    (void)dprintf(file,
                  "include = %s/%s.ini\n[pipeline]\nname = spec\nstages = export\n"
                  "[model]\nvocab = 131\n",
                  LH_TEST_SPECS, spec);
    (void)close(file);
    OK(job_load(path, NULL, 0, &out->job));
    (void)unlink(path);
    OK(host_new(&out->host));
    OK(registry_new(LH_TEST_PLUGINS, out->host, &out->registry));
    OK(spec_adopt(out->job, out->registry));
    OK(registry_load(out->registry, LH_KIND_MODEL, "spec", &out->plugin));
}

static void adopted_close(adopted_t *a)
{
    registry_free(a->registry);
    host_free(a->host);
    job_free(a->job);
}

/* One model that is trained; made NULL: by its plugin. */
typedef struct training {
    rig_t rig;
    program_t *train, *update;
} training_t;

static void training_open(training_t *t, const golden_model_t *m, const plugin_t *made,
                          lh_dtype_t compute)
{
    const rig_how_t rig = {
        .model = m->plugin, .made = made, .options = golden_options(m), .compute = compute};
    rig_open_how(&t->rig, &rig);
    t->update = rig_update(&t->rig, 0.1);
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = SEQUENCES,
                               .rows = GOLDEN_SEQUENCE,
                               .micro_batches = GOLDEN_BATCH / SEQUENCES};
    OK(program_new(t->rig.engine, t->rig.weights, &how, &t->train));
    OK(engine_build(t->rig.engine));
    golden_weights(m, &t->rig);
}

static float training_step(training_t *t, const golden_model_t *m, uint32_t number, float *norm)
{
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    golden_batch(m, number, batch);
    for (uint32_t i = 0; i < GOLDEN_BATCH / SEQUENCES; i++) {
        rig_batch(t->train, batch + i * SEQUENCES * (GOLDEN_SEQUENCE + 1), SEQUENCES,
                  GOLDEN_SEQUENCE, TOKENS);
        OK(program_run(t->train, i));
    }
    const float loss = rig_loss(t->train);
    *norm = rig_step(t->update, number + 1, 3e-3, 1.0, NULL);
    return loss;
}

static void same_weights(const rig_t *a, const rig_t *b)
{
    assert_int_equal(a->parameters->count, b->parameters->count);
    for (uint32_t i = 0; i < a->parameters->count; i++) {
        const parameter_t *p = &a->parameters->items[i], *q = &b->parameters->items[i];
        const size_t bytes = p->elements * sizeof(float);
        assert_string_equal(p->name, q->name);
        assert_string_equal(p->row->hf_name, q->row->hf_name);
        assert_int_equal(p->elements, q->elements);
        assert_int_equal(p->row->shard, q->row->shard);
        assert_int_equal(p->row->unit, q->row->unit);
        assert_int_equal(p->row->init, q->row->init);
        assert_int_equal(p->row->flags, q->row->flags);
        assert_int_equal(p->storage, q->storage);
        float *x = mem_new(bytes), *y = mem_new(bytes);
        OK(weights_read(a->weights, SPACE_PARAMETER, i, 0, p->elements, LH_DTYPE_F32, x));
        OK(weights_read(b->weights, SPACE_PARAMETER, i, 0, p->elements, LH_DTYPE_F32, y));
        assert_memory_equal(x, y, bytes);
        mem_free(x);
        mem_free(y);
    }
}

/* The plain doubles of `reference` and the delays of `fake` take long. */
static bool is_quick(void)
{
    return strcmp(rig_device(), "cpu") == 0;
}

static void bits_are_those_of_the_plugin(void **state)
{
    const pair_t *pair = *state;
    const golden_model_t *m = golden_find(pair->golden);
    double losses[GOLDEN_STEPS], expected_norms[GOLDEN_STEPS];
    const uint32_t steps = is_quick() ? GOLDEN_STEPS : 3;
    training_t plugin, spec;
    adopted_t adopted;
    const double tolerance = golden_curve(m, pair->compute, SEQUENCES, losses, expected_norms);
    /* Two models in turn: threads that wait for work would take each other's processors. */
    assert_int_equal(setenv("LH_TEST_THREADS", "1", 1), 0);
    adopt(pair->spec, &adopted);
    training_open(&plugin, m, NULL, pair->compute);
    training_open(&spec, m, adopted.plugin, pair->compute);
    same_weights(&plugin.rig, &spec.rig);
    for (uint32_t i = 0; i < steps; i++) {
        float norms[2];
        const float a = training_step(&plugin, m, i, &norms[0]);
        const float b = training_step(&spec, m, i, &norms[1]);
        assert_memory_equal(&a, &b, sizeof(a));
        assert_memory_equal(&norms[0], &norms[1], sizeof(norms[0]));
        assert_true(fabs((double)b - losses[i]) / losses[i] <= tolerance);
    }
    same_weights(&plugin.rig, &spec.rig);
    rig_close(&plugin.rig);
    rig_close(&spec.rig);
    adopted_close(&adopted);
}

int main(void)
{
    static pair_t pairs[] = {
        {"falcon-7b", "falcon-7b-kind", LH_DTYPE_F32},
        {"falcon-7b", "falcon-7b-kind", LH_DTYPE_BF16},
        {"qwen3", "qwen3", LH_DTYPE_F32},
        {"qwen3", "qwen3", LH_DTYPE_BF16},
        {"gpt2", "gpt2", LH_DTYPE_F32},
        {"gpt2", "gpt2", LH_DTYPE_BF16},
        {"mixtral", "mixtral", LH_DTYPE_F32},
        {"mixtral", "mixtral", LH_DTYPE_BF16},
    };
    enum { PAIRS = sizeof(pairs) / sizeof(pairs[0]) };
    static char titles[PAIRS][96];
    struct CMUnitTest tests[PAIRS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < PAIRS; i++) {
        if (!is_quick() && pairs[i].compute != LH_DTYPE_F32) continue;
        if (!golden_there(golden_find(pairs[i].golden))) continue;
        (void)snprintf(titles[i], sizeof(titles[i]), "%s, %s: bits_are_those_of_the_plugin",
                       pairs[i].spec, pairs[i].compute == LH_DTYPE_F32 ? "f32" : "bf16");
        tests[count++] = (struct CMUnitTest){titles[i], bits_are_those_of_the_plugin, NULL, NULL,
                                             &pairs[i]};
    }
    return _cmocka_run_group_tests("spec_models", tests, count, NULL, NULL);
}
