/* spec_models_test.c - the specs under examples/specs are the models of their plugins: the same
 * losses, norms and trained weights to the bit, and PyTorch's loss curve. Those that have no plugin
 * have that curve, whatever is recomputed. */
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

/* A spec without a plugin, and its model. */
typedef struct alone {
    const char *spec;
    golden_model_t golden;
    lh_dtype_t compute;
} alone_t;

/* Lines of a spec, and what stands in their place. */
typedef struct planted {
    const char *lines, *instead;
} planted_t;

/* What holds a spec as a plugin. */
typedef struct adopted {
    job_t *job;
    host_t *host;
    registry_t *registry;
    const plugin_t *plugin;
} adopted_t;

/* The text of a spec; the caller frees. */
static char *spec_text(const char *spec)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s.ini", LH_TEST_SPECS, spec);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = mem_new(1 << 16);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    (void)fclose(f);
    return text;
}

/* A copy of a spec with what is planted in it. */
static void spec_plant(const char *spec, const planted_t *planted, char path[])
{
    char *text = spec_text(spec);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    const char *rest = text;
    for (; planted->lines != NULL; planted++) {
        const char *at = strstr(rest, planted->lines);
        if (at == NULL) _fail(planted->lines, __LINE__);
        (void)dprintf(file, "%.*s%s", (int)(at - rest), rest, planted->instead);
        rest = at + strlen(planted->lines);
    }
    (void)dprintf(file, "%s", rest);
    (void)close(file);
    mem_free(text);
}

/* planted: NULL, or what is other than in the file. */
static void adopt(const char *spec, const planted_t *planted, adopted_t *out)
{
    char path[] = "/tmp/longhaul-job-XXXXXX", own[] = "/tmp/longhaul-spec-XXXXXX";
    char included[4096];
    if (planted != NULL) spec_plant(spec, planted, own);
    (void)snprintf(included, sizeof(included), "%s/%s.ini", LH_TEST_SPECS, spec);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    (void)dprintf(file,
                  "include = %s\n[pipeline]\nname = spec\nstages = export\n"
                  "[model]\nvocab = 131\n",
                  planted != NULL ? own : included);
    (void)close(file);
    OK(job_load(path, NULL, 0, &out->job));
    (void)unlink(path);
    if (planted != NULL) (void)unlink(own);
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
                          lh_dtype_t compute, uint32_t recompute)
{
    const rig_how_t rig = {
        .model = m->plugin, .made = made, .options = golden_options(m), .compute = compute};
    rig_open_how(&t->rig, &rig);
    t->update = rig_update(&t->rig, 0.1);
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = SEQUENCES,
                               .rows = GOLDEN_SEQUENCE,
                               .recompute = recompute,
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

/* What two models that compute the same may differ by where the library that multiplies in BF16 sums
 * in another order, as rows lie further apart: of a loss and a norm as a share, of a weight at steps of
 * 3e-3 whatever its size. */
static const double library_share = 1e-4;

static void near_weights(const float *x, const float *y, uint64_t elements)
{
    uint64_t far = 0;
    for (uint64_t i = 0; i < elements; i++)
        far += fabs((double)x[i] - (double)y[i]) > library_share;
    assert_int_equal(far, 0);
}

static void same_weights(const rig_t *a, const rig_t *b, bool exact)
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
        if (exact)
            assert_memory_equal(x, y, bytes);
        else
            near_weights(x, y, p->elements);
        mem_free(x);
        mem_free(y);
    }
}

/* The plain doubles of `reference` and the delays of `fake` take long. */
static bool is_quick(void)
{
    return strcmp(rig_device(), "cpu") == 0;
}

/* Two models in turn: threads that wait for work would take each other's processors. */
static void one_thread(void)
{
    assert_int_equal(setenv("LH_TEST_THREADS", "1", 1), 0);
}

/* Trains both, and compares each step, then the weights; exact: to the bit. */
static void train_alike(const golden_model_t *m, lh_dtype_t compute, uint32_t recompute,
                        const adopted_t *adopted, bool exact)
{
    double losses[GOLDEN_STEPS], expected_norms[GOLDEN_STEPS];
    /* From a last bit that differs the two go apart, with each step further: what must be near is so early. */
    const uint32_t steps = is_quick() && exact ? GOLDEN_STEPS : is_quick() ? 8 : 3;
    training_t plugin, spec;
    const double tolerance = golden_curve(m, compute, SEQUENCES, losses, expected_norms);
    one_thread();
    training_open(&plugin, m, NULL, compute, RECOMPUTE_NONE);
    training_open(&spec, m, adopted->plugin, compute, recompute);
    same_weights(&plugin.rig, &spec.rig, true);
    for (uint32_t i = 0; i < steps; i++) {
        float norms[2];
        const float a = training_step(&plugin, m, i, &norms[0]);
        const float b = training_step(&spec, m, i, &norms[1]);
        const double share = exact ? 0 : library_share;
        assert_true(fabs((double)a - (double)b) <= share * fabs((double)a));
        assert_true(fabs((double)norms[0] - (double)norms[1]) <= share * fabs((double)norms[0]));
        assert_true(fabs((double)b - losses[i]) / losses[i] <= tolerance);
    }
    same_weights(&plugin.rig, &spec.rig, exact);
    rig_close(&plugin.rig);
    rig_close(&spec.rig);
}

static void bits_are_those_of_the_plugin(void **state)
{
    const pair_t *pair = *state;
    adopted_t adopted;
    adopt(pair->spec, NULL, &adopted);
    train_alike(golden_find(pair->golden), pair->compute, RECOMPUTE_NONE, &adopted, true);
    adopted_close(&adopted);
}

/* What is joined and taken apart again is what it was, there and back: gate and up by columns, k and v
 * by heads. In every bit but where a library multiplies in BF16. */
static void what_is_joined_and_taken_apart_changes_no_bit(void **state)
{
    static const planted_t planted[] = {
        {"v    = linear(a, wv)\n", "v0   = linear(a, wv)\n"
                                   "kv0  = concat(k0, v0, groups=kv)\n"
                                   "k2   = columns(kv0, groups=kv, count=d)\n"
                                   "v    = columns(kv0, groups=kv, from=d)\n"},
        {"k1   = rms_norm(k0, ", "k1   = rms_norm(k2, "},
        {"gate = activate(linear(n, w_gate), function=silu)\n"
         "x    = add(h, linear(multiply(gate, linear(n, w_up)), w_down))\n",
         "both = concat(linear(n, w_gate), linear(n, w_up))\n"
         "gate = activate(columns(both, count=ffn), function=silu)\n"
         "made = heads(heads(multiply(gate, columns(both, from=ffn)), width=ffn / 2), width=ffn)\n"
         "x    = add(h, linear(made, w_down))\n"},
        {NULL, NULL}};
    const lh_dtype_t *compute = *state;
    const bool exact = !is_quick() || *compute == LH_DTYPE_F32;
    static const uint32_t recomputed[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    adopted_t adopted;
    adopt("qwen3", planted, &adopted);
    for (size_t i = 0; i < sizeof(recomputed) / sizeof(recomputed[0]); i++)
        if (is_quick() || i == 0)
            train_alike(golden_find("qwen3"), *compute, recomputed[i], &adopted, exact);
    adopted_close(&adopted);
}

/* Of a spec that no plugin has. */
static void the_curve_is_that_of_pytorch(void **state)
{
    const alone_t *alone = *state;
    const golden_model_t *m = &alone->golden;
    double losses[GOLDEN_STEPS], expected[GOLDEN_STEPS];
    static const uint32_t recomputed[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    const double tolerance = golden_curve(m, alone->compute, SEQUENCES, losses, expected);
    const uint32_t steps = is_quick() ? GOLDEN_STEPS : 3;
    float first[GOLDEN_STEPS] = {0}; /* without recomputation: all others have its bits */
    adopted_t adopted;
    one_thread();
    adopt(alone->spec, NULL, &adopted);
    for (size_t r = 0; r < sizeof(recomputed) / sizeof(recomputed[0]); r++) {
        training_t t;
        if (!is_quick() && r > 0) break;
        training_open(&t, m, adopted.plugin, alone->compute, recomputed[r]);
        for (uint32_t i = 0; i < steps; i++) {
            float norm;
            const float loss = training_step(&t, m, i, &norm);
            if (fabs((double)loss - losses[i]) / losses[i] > tolerance ||
                fabs((double)norm - expected[i]) / expected[i] >
                    golden_norm_tolerance(m, &t.rig, alone->compute)) {
                print_error("step %u: loss %g, norm %g; expected %g, %g\n", i, (double)loss,
                            (double)norm, losses[i], expected[i]);
                _fail(__FILE__, __LINE__);
            }
            if (r == 0) first[i] = loss;
            assert_memory_equal(&first[i], &loss, sizeof(loss));
        }
        rig_close(&t.rig);
    }
    adopted_close(&adopted);
}

#define SIZES                                                                           \
    {"blocks", "2"}, {"hidden", "32"}, {"ffn", "56"}, {"heads", "4"}, {"vocab", "131"}, \
    {                                                                                   \
        "max_tokens", "128"                                                             \
    }
#define PHI3                                            \
    {                                                   \
        "phi3", "spec",                                 \
        {                                               \
            SIZES, {"kv_heads", "2"}, {"window", "10"}, \
            {                                           \
                NULL, NULL                              \
            }                                           \
        }                                               \
    }
#define MLA                                                                               \
    {                                                                                     \
        "mla", "spec",                                                                    \
        {                                                                                 \
            SIZES, {"q_rank", "24"}, {"kv_rank", "16"}, {"still", "8"}, {"turning", "4"}, \
                {"value_dim", "10"},                                                      \
            {                                                                             \
                NULL, NULL                                                                \
            }                                                                             \
        }                                                                                 \
    }

static void title(char out[96], const char *spec, lh_dtype_t compute, const char *what)
{
    (void)snprintf(out, 96, "%s, %s: %s", spec, compute == LH_DTYPE_F32 ? "f32" : "bf16", what);
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
    static alone_t alone[] = {
        {"phi3", PHI3, LH_DTYPE_F32},
        {"phi3", PHI3, LH_DTYPE_BF16},
        {"mla", MLA, LH_DTYPE_F32},
        {"mla", MLA, LH_DTYPE_BF16},
    };
    static lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16};
    enum {
        PAIRS = sizeof(pairs) / sizeof(pairs[0]),
        ALONE = sizeof(alone) / sizeof(alone[0]),
        ALL = PAIRS + ALONE + 2
    };
    static char titles[ALL][96];
    struct CMUnitTest tests[ALL];
    uint32_t count = 0;
    for (uint32_t i = 0; i < PAIRS; i++) {
        if (!is_quick() && pairs[i].compute != LH_DTYPE_F32) continue;
        if (!golden_there(golden_find(pairs[i].golden))) continue;
        title(titles[count], pairs[i].spec, pairs[i].compute, "bits_are_those_of_the_plugin");
        tests[count] = (struct CMUnitTest){titles[count], bits_are_those_of_the_plugin, NULL, NULL,
                                           &pairs[i]};
        count++;
    }
    for (uint32_t i = 0; i < 2 && golden_there(golden_find("qwen3")); i++) {
        if (!is_quick() && dtypes[i] != LH_DTYPE_F32) continue;
        title(titles[count], "qwen3", dtypes[i], "what_is_joined_and_taken_apart_changes_no_bit");
        tests[count] = (struct CMUnitTest){
            titles[count], what_is_joined_and_taken_apart_changes_no_bit, NULL, NULL, &dtypes[i]};
        count++;
    }
    /* Of other sizes there are no options for them. */
    for (uint32_t i = 0; i < ALONE && getenv("LH_TEST_GOLDEN") == NULL; i++) {
        if (!is_quick() && alone[i].compute != LH_DTYPE_F32) continue;
        title(titles[count], alone[i].spec, alone[i].compute, "the_curve_is_that_of_pytorch");
        tests[count] = (struct CMUnitTest){titles[count], the_curve_is_that_of_pytorch, NULL, NULL,
                                           &alone[i]};
        count++;
    }
    return _cmocka_run_group_tests("spec_models", tests, count, NULL, NULL);
}
