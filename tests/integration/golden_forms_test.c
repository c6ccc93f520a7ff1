/* golden_forms_test.c - Falcon by a config.json of the time before Transformers knew it: the logits are
 * those by today's file, bit for bit. */
#include "../unit/base/scratch_files.h"
#include "golden.h"

#include <stdio.h>
#include <string.h>

#include <base/file.h>
#include <base/memory.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE };

#define OLD(type, more)                                                                            \
    "{\"model_type\": \"" type "\", \"architectures\": [\"RWForCausalLM\"], \"hidden_size\": 32, " \
    "\"n_head\": 4, \"n_layer\": 2, \"vocab_size\": 131, \"layer_norm_epsilon\": 1e-05, " more "}"
#define ROTARY "\"parallel_attn\": true, \"alibi\": false, \"bias\": false"

/* The folders of tests/golden, and what an old file says of those models. */
static const struct {
    const char *model, *config;
} forms[] = {
    {"falcon-7b-kind", OLD("RefinedWebModel", "\"multi_query\": true, " ROTARY)},
    {"falcon-7b-kind", OLD("RefinedWeb", "\"multi_query\": true, " ROTARY)},
    {"falcon-40b-kind", OLD("RefinedWeb", "\"n_head_kv\": 2, " ROTARY)},
    {"falcon-rw-kind", OLD("RefinedWebModel", "\"multi_query\": false, \"parallel_attn\": false, "
                                              "\"alibi\": true, \"bias\": true")},
    {"falcon-rw-kind", OLD("RefinedWebModel", "\"alibi\": true, \"bias\": true")},
};

static const golden_model_t *model_called(const char *name)
{
    uint32_t i = 0;
    while (strcmp(golden_models[i].name, name) != 0)
        assert_true(++i < GOLDEN_MODELS);
    return &golden_models[i];
}

/* Those of the first batch; the caller frees them. */
static float *logits_by(const golden_model_t *m, const rig_option_t *options, size_t *bytes)
{
    const program_how_t how = {
        .use = USE_SCORE, .sequences = GOLDEN_BATCH, .rows = GOLDEN_SEQUENCE, .wants_logits = true};
    rig_t rig;
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    program_t *score = NULL;
    golden_batch(m, 0, batch);
    rig_open(&rig, m->plugin, options, LH_DTYPE_F32);
    OK(program_new(rig.engine, rig.weights, &how, &score));
    OK(engine_build(rig.engine));
    golden_weights(m, &rig);
    rig_batch(score, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(score, 0));
    *bytes = program_output_bytes(score, OUTPUT_LOGITS);
    assert_true(*bytes >= TOKENS * sizeof(float));
    float *logits = mem_new(*bytes);
    assert_non_null(logits);
    OK(program_output(score, OUTPUT_LOGITS, logits, *bytes));
    rig_close(&rig);
    return logits;
}

static void an_old_config_gives_the_same_logits(void **state)
{
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        const golden_model_t *m = model_called(forms[i].model);
        const char *path = scratch_text(*state, "config.json", forms[i].config);
        hf_config_t held;
        rig_option_t options[GOLDEN_OPTIONS];
        size_t bytes, old_bytes;
        golden_read_config(m->plugin, path, &held, options);
        print_message("%s: form %zu\n", m->name, i);
        float *today = logits_by(m, golden_options(m), &bytes);
        float *old = logits_by(m, options, &old_bytes);
        assert_int_equal(bytes, old_bytes);
        assert_memory_equal(today, old, bytes);
        mem_free(today);
        mem_free(old);
        hf_config_free(&held);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        an_old_config_gives_the_same_logits, scratch_setup, scratch_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
