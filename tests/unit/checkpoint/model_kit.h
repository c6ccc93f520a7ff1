/* model_kit.h - a model plugin opened from a config.json, as the commands do it. */
#ifndef TESTS_MODEL_KIT_H
#define TESTS_MODEL_KIT_H

#include <unit/base/scratch_files.h>

#include <graph/parameters.h>
#include <hf/hf_config.h>
#include <plugin/host.h>
#include <plugin/registry.h>

typedef struct model_kit {
    host_t *host;
    registry_t *registry;
    const plugin_t *plugin;
    hf_config_t config;
    option_table_t options;
    void *values;
    lh_model_t *model;
    parameters_t *parameters;
} model_kit_t;

static inline void kit_open(model_kit_t *k, const char *plugin, const char *folder)
{
    char path[512];
    memset(k, 0, sizeof(*k));
    (void)snprintf(path, sizeof(path), "%s/config.json", folder);
    assert_int_equal(host_new(&k->host), LH_OK);
    assert_int_equal(registry_new(LH_TEST_PLUGINS, k->host, &k->registry), LH_OK);
    assert_int_equal(registry_load(k->registry, LH_KIND_MODEL, plugin, &k->plugin), LH_OK);
    if (hf_config_read(k->plugin->model->hf, path, &k->config) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    k->options = plugin_options(k->plugin);
    k->values = mem_new(k->options.config_size);
    assert_non_null(k->values);
    for (uint32_t i = 0; i < k->options.count; i++) {
        const lh_option_t *row = &k->options.rows[i];
        const char *value = hf_config_option(&k->config, row->key);
        if (value == NULL) value = row->fallback;
        if (option_set(row, value, "config.json", folder, k->values) != LH_OK)
            FAIL_TEST("%s\n", fail_reason());
    }
    const lh_model_api_t *api = k->plugin->model;
    assert_int_equal(api->open(k->plugin->host, k->values, &k->model), LH_OK);
    assert_int_equal(parameters_new(api, k->model, &k->parameters), LH_OK);
}

static inline void kit_close(model_kit_t *k)
{
    parameters_free(k->parameters);
    k->plugin->model->close(k->model);
    options_free(k->options.rows, k->options.count, k->values);
    mem_free(k->values);
    hf_config_free(&k->config);
    registry_free(k->registry);
    host_free(k->host);
}

static inline const char *kit_option(void *context, const char *key)
{
    const model_kit_t *k = context;
    return hf_config_option(&k->config, key);
}

#endif
