/* trained_models_test.c - two really trained models give the logits, losses and single gradients
 * that plain Python in double precision made of the same weights (reference.json beside them). */
#include "golden.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>

enum { MODELS = 2, IDS = 600 };

static const golden_model_t models[MODELS] = {
    {"../../examples/data/stories260K",
     "llama",
     {{"blocks", "5"},
      {"hidden", "64"},
      {"ffn", "172"},
      {"heads", "8"},
      {"kv_heads", "4"},
      {"vocab", "512"},
      {"max_tokens", "512"},
      {"epsilon", "1e-5"},
      {"rope_base", "10000"},
      {"tied", "yes"},
      {NULL, NULL}}},
    {"../data/models/capp-gpt2",
     "gpt2",
     {{"blocks", "4"},
      {"hidden", "64"},
      {"heads", "4"},
      {"vocab", "53"},
      {"max_tokens", "512"},
      {"epsilon", "1e-5"},
      {NULL, NULL}}},
};

static json_t *reference_of(const golden_model_t *m)
{
    char path[512];
    json_error_t error;
    (void)snprintf(path, sizeof(path), "%s/%s/reference.json", LH_TEST_GOLDEN, m->name);
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL) print_error("%s: %s\n", path, error.text);
    assert_non_null(root);
    return root;
}

static uint64_t read_ids(const json_t *list, int32_t out[IDS])
{
    const size_t count = json_array_size(list);
    assert_true(count > 1 && count <= IDS);
    for (size_t i = 0; i < count; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return count;
}

static program_t *open_program(const golden_model_t *m, rig_t *rig, const program_how_t *how)
{
    rig_open(rig, m->plugin, m->options, LH_DTYPE_F32);
    program_t *p = rig_program(rig, how);
    OK(engine_build(rig->engine));
    golden_weights(m, rig);
    return p;
}

/* The last position's logits, one prompt. */
static void logits_check(const golden_model_t *m, const json_t *prompt)
{
    int32_t ids[IDS + 1] = {0};
    rig_t rig;
    const uint64_t count = read_ids(json_object_get(prompt, "ids"), ids);
    const json_t *expected = json_object_get(prompt, "logits_at_last_position");
    const uint64_t vocab = json_array_size(expected);
    const program_how_t how = {
        .use = USE_SCORE, .sequences = 1, .rows = count, .wants_logits = true};
    program_t *score = open_program(m, &rig, &how);
    rig_batch(score, ids, 1, count, (double)count);
    OK(program_run(score, 0));

    const uint64_t bytes = count * vocab * sizeof(float);
    assert_int_equal(program_output_bytes(score, OUTPUT_LOGITS), bytes);
    float *logits = mem_new(bytes);
    OK(program_output(score, OUTPUT_LOGITS, logits, bytes));
    double worst = 0;
    for (uint64_t v = 0; v < vocab; v++)
        worst = fmax(worst, fabs((double)logits[(count - 1) * vocab + v] -
                                 json_number_value(json_array_get(expected, v))));
    print_message("%s: %llu logits differ by at most %.2g\n", m->name, (unsigned long long)vocab,
                  worst);
    assert_true(worst <= 1e-4);
    mem_free(logits);
    rig_close(&rig);
}

static void the_logits_are_those_of_the_reference(void **state)
{
    const golden_model_t *m = *state;
    json_t *root = reference_of(m);
    const json_t *prompt = json_object_get(root, "prompt"), *cases = json_object_get(root, "cases");
    if (prompt != NULL) logits_check(m, prompt);
    for (size_t i = 0; i < json_array_size(cases); i++)
        logits_check(m, json_array_get(cases, i));
    assert_true(prompt != NULL || json_array_size(cases) > 0);
    json_decref(root);
}

static void the_losses_of_packed_windows_are_those_of_the_reference(void **state)
{
    const golden_model_t *m = *state;
    json_t *root = reference_of(m);
    const json_t *windows = json_object_get(json_object_get(root, "packed"), "windows");
    for (size_t i = 0; i < json_array_size(windows); i++) {
        const json_t *window = json_array_get(windows, i);
        int32_t ids[IDS + 1], labels[IDS];
        rig_t rig;
        const uint64_t count = read_ids(json_object_get(window, "input_ids"), ids);
        assert_int_equal(read_ids(json_object_get(window, "labels"), labels), count);
        ids[count] = labels[count - 1];
        const program_how_t how = {.use = USE_SCORE, .sequences = 1, .rows = count};
        program_t *score = open_program(m, &rig, &how);
        rig_batch(score, ids, 1, count, (double)count);
        OK(program_run(score, 0));
        const double expected = json_number_value(json_object_get(window, "mean_nll"));
        assert_true(fabs((double)rig_loss(score) - expected) <= 1e-5);
        rig_close(&rig);
    }
    json_decref(root);
}

/* Where element `index` of the Hugging Face tensor lies in a parameter; false: not in this one. */
static bool element_of(const parameter_t *p, const json_t *index, uint64_t *out)
{
    const char *how = p->row->hf_import;
    const uint64_t first = (uint64_t)json_integer_value(json_array_get(index, 0));
    const uint64_t second = (uint64_t)json_integer_value(json_array_get(index, 1));
    const uint64_t in = p->columns, rows = p->rows;
    unsigned part = 0, parts = 1;
    if (how == NULL) {
        *out = json_array_size(index) == 1 ? first : first * in + second;
    } else if (sscanf(how, "rows_in(source, part=%u, parts=%u)", &part, &parts) == 2) {
        *out = first - part * p->elements;
        return first / p->elements == part;
    } else { /* [in, out] there, [out, in] here; maybe one part of several side by side */
        (void)sscanf(how, "columns_in(source, part=%u, parts=%u)", &part, &parts);
        if (second / rows != part) return false;
        *out = (second - part * rows) * in + first;
    }
    return true;
}

static bool is_named(const parameter_t *p, const char *name)
{
    char full[128];
    const char *hf = p->row->hf_name, *hole = strstr(hf, "{}");
    if (hole == NULL) return strcmp(hf, name) == 0;
    (void)snprintf(full, sizeof(full), "%.*s%u%s", (int)(hole - hf), hf, p->block, hole + 2);
    return strcmp(full, name) == 0;
}

static void gradient_check(const rig_t *rig, const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "tensor"));
    const json_t *index = json_object_get(entry, "index");
    const double expected = json_number_value(json_object_get(entry, "dloss"));
    for (uint32_t i = 0; i < rig->parameters->count; i++) {
        const parameter_t *p = &rig->parameters->items[i];
        uint64_t element;
        float value, got;
        if (p->storage != i || !is_named(p, name) || !element_of(p, index, &element)) continue;
        OK(weights_read(rig->weights, SPACE_PARAMETER, i, element, 1, LH_DTYPE_F32, &value));
        assert_true(fabs((double)value - json_number_value(json_object_get(entry, "value"))) <
                    1e-7);
        OK(weights_read(rig->weights, SPACE_GRAD, i, element, 1, LH_DTYPE_F32, &got));
        if (!(fabs((double)got - expected) <= 1e-3 * fabs(expected) + 2e-7))
            print_error("%s[%llu]: gradient %.9g, expected %.9g\n", name,
                        (unsigned long long)element, (double)got, expected);
        assert_true(fabs((double)got - expected) <= 1e-3 * fabs(expected) + 2e-7);
        return;
    }
    print_error("no parameter is %s\n", name);
    assert_true(false);
}

static void single_gradients_are_those_of_differences(void **state)
{
    const golden_model_t *m = *state;
    json_t *root = reference_of(m);
    const json_t *gradients = json_object_get(root, "gradients");
    const json_t *entries = json_object_get(gradients, "entries");
    int32_t ids[IDS];
    rig_t rig;
    const uint64_t count = read_ids(json_object_get(gradients, "ids"), ids) - 1;
    const program_how_t how = {.use = USE_TRAIN, .sequences = 1, .rows = count};
    program_t *train = open_program(m, &rig, &how);
    rig_batch(train, ids, 1, count, (double)count);
    OK(program_run(train, 0));
    assert_true(fabs((double)rig_loss(train) -
                     json_number_value(json_object_get(gradients, "loss"))) <= 1e-5);
    assert_true(json_array_size(entries) > 20);
    for (size_t i = 0; i < json_array_size(entries); i++)
        gradient_check(&rig, json_array_get(entries, i));
    rig_close(&rig);
    json_decref(root);
}

#define OF(fact, i)                                                               \
    {                                                                             \
        (i) == 0 ? "stories260K: " #fact : "capp-gpt2: " #fact, fact, NULL, NULL, \
            (void *)(uintptr_t)&models[i]                                         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OF(the_logits_are_those_of_the_reference, 0),
        OF(the_logits_are_those_of_the_reference, 1),
        OF(the_losses_of_packed_windows_are_those_of_the_reference, 0),
        OF(single_gradients_are_those_of_differences, 0),
        OF(single_gradients_are_those_of_differences, 1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
