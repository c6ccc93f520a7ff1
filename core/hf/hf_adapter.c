/* hf_adapter.c - PEFT's two files of an adapter.
 *
 * A tensor is called base_model.model.MODULE.lora_A.weight, or lora_magnitude_vector (DoRA), where
 * MODULE is a matrix's name in Transformers without ".weight". target_modules, by which PEFT finds
 * them when it loads, are the last words of those names. */
#include <hf/hf_adapter.h>

#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>
#include <format/json.h>

enum { CONFIG_MOST = 1 << 20, CONFIG_VALUES = 100000 };

/* ---- reading ---- */

/* A flag that is not `wanted`; no flag says no. */
static lh_status_t refuse_flag(const char *path, const json_value_t *root, const char *key,
                               bool wanted)
{
    const json_value_t *v = json_member(root, key);
    const bool none = v == NULL || json_is_nil(v);
    if (none ? !wanted : json_is_flag(v) && json_is_yes(v) == wanted) return LH_OK;
    return json_refuse(path, key, v, wanted ? "true" : "false");
}

/* A list or an object that holds nothing. */
static lh_status_t refuse_filled(const char *path, const json_value_t *root, const char *key)
{
    const json_value_t *v = json_member(root, key);
    const bool holder = json_is_map(v) || json_is_list(v);
    if (v == NULL || json_is_nil(v) || (holder && json_size(v) == 0)) return LH_OK;
    return json_refuse(path, key, v, "nothing");
}

/* How the factors began says whether the matrix is still the model's: with pissa, olora, corda, loftq and
 * the like PEFT takes what they began as off the matrix, when it loads an adapter too. Of the values
 * known here it does not. */
static lh_status_t refuse_changed_base(const char *path, const json_value_t *root)
{
    static const char key[] = "init_lora_weights";
    const json_value_t *v = json_member(root, key);
    if (v == NULL || json_is_nil(v) || json_is_flag(v)) return LH_OK;
    if (json_is_text(v) && hf_one_of("gaussian|eva|orthogonal", json_text(v))) return LH_OK;
    return json_refuse(path, key, v,
                       "one that leaves the matrix as it is: true, false, \"gaussian\", \"eva\" or "
                       "\"orthogonal\"");
}

/* The value that [adapter.NAME] has. */
static lh_status_t refuse_other(const char *path, const json_value_t *root, const char *key,
                                double wanted)
{
    char text[64];
    const json_value_t *v = json_member(root, key);
    if (json_is_numeric(v) && json_number(v) == wanted) return LH_OK;
    (void)snprintf(text, sizeof(text), "%g, as [adapter.NAME] has it,", wanted);
    return json_refuse(path, key, v, text);
}

static lh_status_t adapter_config_check(const char *path, const json_value_t *root,
                                        const hf_adapter_t *wanted)
{
    static const char *const flags[] = {"use_rslora", "fan_in_fan_out", "lora_bias", "use_qalora",
                                        "use_bdlora"};
    static const char *const empty[] = {"rank_pattern",
                                        "alpha_pattern",
                                        "modules_to_save",
                                        "layer_replication",
                                        "target_parameters",
                                        "trainable_token_indices",
                                        "alora_invocation_tokens",
                                        "arrow_config",
                                        "kasa_config",
                                        "monteclora_config"};
    const json_value_t *type = json_member(root, "peft_type"), *bias = json_member(root, "bias");
    if (!text_equal(json_text(type), "LORA"))
        return json_refuse(path, "peft_type", type, "\"LORA\"");
    if (bias != NULL && !text_equal(json_text(bias), "none"))
        return json_refuse(path, "bias", bias, "\"none\"");
    lh_status_t status = refuse_other(path, root, "r", (double)wanted->rank);
    if (status == LH_OK) status = refuse_other(path, root, "lora_alpha", wanted->alpha);
    if (status == LH_OK) status = refuse_flag(path, root, "use_dora", wanted->dora);
    if (status == LH_OK) status = refuse_changed_base(path, root);
    for (size_t i = 0; status == LH_OK && i < sizeof(flags) / sizeof(flags[0]); i++)
        status = refuse_flag(path, root, flags[i], false);
    for (size_t i = 0; status == LH_OK && i < sizeof(empty) / sizeof(empty[0]); i++)
        status = refuse_filled(path, root, empty[i]);
    return status;
}

static lh_status_t adapter_config_read(const char *folder, const hf_adapter_t *wanted)
{
    json_document_t *file = NULL;
    char *path = path_join(folder, HF_ADAPTER_CONFIG);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = json_read(path, CONFIG_MOST, CONFIG_VALUES, &file);
    if (status == LH_OK) status = adapter_config_check(path, json_root(file), wanted);
    json_free(file);
    mem_free(path);
    return status;
}

lh_status_t hf_adapter_open(const char *folder, const hf_adapter_t *wanted,
                            const shard_limits_t *limits, hf_adapter_files_t *out)
{
    lh_status_t status = adapter_config_read(folder, wanted);
    if (status != LH_OK) return status;
    char *path = path_join(folder, HF_ADAPTER_WEIGHTS);
    if (path == NULL) return LH_NO_MEMORY;
    status = safetensors_open(path, limits == NULL ? NULL : &limits->file, &out->file);
    mem_free(path);
    if (status != LH_OK) return status;
    out->tensors = mem_array(out->file->count, sizeof(*out->tensors));
    if (out->tensors == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < out->file->count; i++)
        out->tensors[i] = (shard_tensor_t){out->file, &out->file->tensors[i]};
    return LH_OK;
}

void hf_adapter_close(hf_adapter_files_t *a)
{
    safetensors_close(a->file);
    mem_free(a->tensors);
    *a = (hf_adapter_files_t){0};
}

const shard_tensor_t *hf_adapter_find(const hf_adapter_files_t *a, const char *name)
{
    const safetensor_t *t = a->file == NULL ? NULL : safetensors_find(a->file, name);
    return t == NULL ? NULL : &a->tensors[t - a->file->tensors];
}

bool hf_adapter_has(const hf_adapter_files_t *a, const shard_tensor_t *t)
{
    return a->file != NULL && t->file == a->file;
}

const shard_tensor_t *hf_adapter_unread(const hf_adapter_files_t *a,
                                        const shard_tensor_t *const *used, uint32_t count)
{
    for (uint32_t i = 0; a->file != NULL && i < a->file->count; i++) {
        bool found = false;
        for (uint32_t k = 0; k < count && !found; k++)
            found = used[k] == &a->tensors[i];
        if (!found) return &a->tensors[i];
    }
    return NULL;
}

lh_status_t hf_adapter_refuse_extra(const hf_adapter_files_t *a, const shard_tensor_t *const *used,
                                    uint32_t count)
{
    const shard_tensor_t *unread = hf_adapter_unread(a, used, count);
    if (unread == NULL) return LH_OK;
    return fail(LH_INVALID, "%s: tensor %s is of no matrix that [adapter.NAME] match names",
                a->file->path, unread->tensor->name);
}

/* ---- magnitudes ---- */

void hf_adapter_add_norms(const float *matrix, uint64_t rows, uint64_t columns, double by,
                          float *out)
{
    for (uint64_t row = 0; row < rows; row++) {
        double sum = 0;
        for (uint64_t i = 0; i < columns; i++) {
            const double value = (double)matrix[row * columns + i];
            sum += value * value;
        }
        out[row] = (float)((double)out[row] + by * sqrt(sum));
    }
}

/* ---- writing ---- */

/* The last word of a tensor's module: "down_proj". */
static void module_of(const char *tensor, char out[64])
{
    const char *end = strstr(tensor, ".lora_"), *begin = end;
    lh_assert(end != NULL);
    while (begin > tensor && begin[-1] != '.')
        begin--;
    (void)snprintf(out, 64, "%.*s", (int)(end - begin), begin);
}

/* Each once, in the order of the tensors' names. */
static void put_modules(json_writer_t *w, const hf_weights_t *weights)
{
    char name[64], before[64];
    json_open(w, "target_modules", '[');
    for (uint32_t i = 0; i < weights->count; i++) {
        bool told = false;
        module_of(weights->tensors[i].name, name);
        for (uint32_t k = 0; k < i && !told; k++) {
            module_of(weights->tensors[k].name, before);
            told = strcmp(name, before) == 0;
        }
        if (!told) json_put_text(w, NULL, name);
    }
    json_close(w);
}

lh_status_t hf_adapter_write_config(const hf_adapter_t *adapter, const hf_weights_t *weights,
                                    const char *folder)
{
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = 2};
    char *path = path_join(folder, HF_ADAPTER_CONFIG);
    if (path == NULL) return LH_NO_MEMORY;
    json_open(&w, NULL, '{');
    if (adapter->base == NULL)
        json_put_nil(&w, "base_model_name_or_path");
    else
        json_put_text(&w, "base_model_name_or_path", adapter->base);
    json_put_text(&w, "bias", "none");
    json_put_flag(&w, "fan_in_fan_out", false);
    json_put_flag(&w, "inference_mode", true);
    json_put_real(&w, "lora_alpha", adapter->alpha);
    json_put_real(&w, "lora_dropout", 0);
    json_put_text(&w, "peft_type", "LORA");
    json_put_u64(&w, "r", adapter->rank);
    put_modules(&w, weights);
    json_put_text(&w, "task_type", "CAUSAL_LM");
    json_put_flag(&w, "use_dora", adapter->dora);
    json_put_flag(&w, "use_rslora", false);
    json_close(&w);
    text_append(&text, "\n");
    lh_status_t status = text_status(&text);
    if (status == LH_OK) status = file_replace(path, text.data, text.length);
    text_free(&text);
    mem_free(path);
    return status;
}
