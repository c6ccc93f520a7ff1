/* published_models_test.c - config.json and the index of published models, which may not be shipped, give
 * the same tensors and as many bytes, and those that are no plain language models are refused;
 * skipped where LONGHAUL_REFERENCE does not name the folder that holds them. */
#include <unit/checkpoint/model_kit.h>

#include <format/json.h>
#include <hf/hf_weights.h>

static const struct {
    const char *plugin, *folder, *index;
} models[] = {
    {"falcon", "falcon-180b", "model.safetensors.index.json"},
    {"falcon", "falcon-7b", "pytorch_model.bin.index.json"},
    {"gemma", "gemma-2b-it", "model.safetensors.index.json"},
    {"llama", "llama-3.2-3b", "model.safetensors.index.json"},
    {"llama", "mistral-7b-v0.3", "model.safetensors.index.json"},
};

/* Elements of the tensor of a name, or of the parameter that a tied one shares; 0: none of this name. */
static uint64_t elements_of(const hf_weights_t *w, const parameters_t *p, const char *name)
{
    for (uint32_t i = 0; i < w->count; i++)
        if (strcmp(w->tensors[i].name, name) == 0) return w->tensors[i].elements;
    for (uint32_t i = 0; i < w->tied_count; i++)
        if (strcmp(w->tied[i].tensor, name) == 0) return p->items[w->tied[i].parameter].elements;
    return 0;
}

/* They are of BF16, and a copy of a tied tensor is counted where the index names it. */
static void names_and_bytes_are_those_of_the_index(void **state)
{
    (void)state;
    const char *root = getenv("LONGHAUL_REFERENCE");
    if (root == NULL || *root == '\0') {
        print_message("skipped: LONGHAUL_REFERENCE is not set\n");
        skip();
    }
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        char folder[400], path[512];
        model_kit_t k;
        hf_weights_t w;
        json_document_t *file;
        uint64_t bytes = 0, total;
        (void)snprintf(folder, sizeof(folder), "%s/data/hf-metadata/%s", root, models[m].folder);
        (void)snprintf(path, sizeof(path), "%s/%s", folder, models[m].index);
        kit_open(&k, models[m].plugin, folder);
        assert_null(k.config.unread.data);
        assert_int_equal(hf_weights_new(k.parameters, HF_OF_BOTH, &w), LH_OK);
        assert_int_equal(json_read(path, 1 << 20, UINT64_MAX, &file), LH_OK);

        const json_value_t *names = json_member(json_root(file), "weight_map");
        for (json_walk_t n = json_walk(names); json_next(&n);) {
            const uint64_t elements = elements_of(&w, k.parameters, n.key);
            if (elements == 0) FAIL_TEST("%s: %s\n", models[m].folder, n.key);
            bytes += 2 * elements;
        }
        for (uint32_t i = 0; i < w.count; i++)
            if (json_member(names, w.tensors[i].name) == NULL)
                FAIL_TEST("%s lacks %s\n", models[m].folder, w.tensors[i].name);
        assert_int_equal(
            json_take_count(path, json_member(json_root(file), "metadata"), "total_size", &total),
            LH_OK);
        assert_int_equal(bytes, total);
        json_free(file);
        hf_weights_free(&w);
        kit_close(&k);
    }
}

static const struct {
    const char *plugin, *folder, *sentence;
} refused[] = {
    {"llama", "llama-2-13b", "quantization_config: quantised weights are not read"},
    {"gptneox", "pythia-410m",
     "architectures is GPTNeoXForSequenceClassification, this model plugin reads "
     "GPTNeoXForCausalLM"},
};

static void what_is_no_language_model_as_it_is_is_refused(void **state)
{
    (void)state;
    const char *root = getenv("LONGHAUL_REFERENCE");
    if (root == NULL || *root == '\0') {
        print_message("skipped: LONGHAUL_REFERENCE is not set\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        char path[512];
        host_t *host;
        registry_t *registry;
        const plugin_t *plugin;
        hf_config_t c;
        (void)snprintf(path, sizeof(path), "%.300s/data/hf-metadata/%s/config.json", root,
                       refused[i].folder);
        assert_int_equal(host_new(&host), LH_OK);
        assert_int_equal(registry_new(LH_TEST_PLUGINS, host, &registry), LH_OK);
        assert_int_equal(registry_load(registry, LH_KIND_MODEL, refused[i].plugin, &plugin), LH_OK);
        assert_int_equal(hf_config_read(plugin->model->hf, path, &c), LH_UNSUPPORTED);
        if (strstr(fail_reason(), refused[i].sentence) == NULL) FAIL_TEST("%s\n", fail_reason());
        registry_free(registry);
        host_free(host);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_bytes_are_those_of_the_index),
        cmocka_unit_test(what_is_no_language_model_as_it_is_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
