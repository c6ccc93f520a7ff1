/* hf_unread.c - goes through the members of a config.json and looks for each in the table.
 *
 * A row that does not hold in this file makes its keys known all the same: what a model of another
 * kind would read is no mistake here. Keys that every file of Transformers may have are known to
 * the core. */
#include <hf/hf_unread.h>

#include <stdio.h>

#include <hf/hf_value.h>

/* Rows whose keys are compared with one that nobody reads. */
enum { KEYS_NEAR = 128 };

/* What every config.json may say whatever the model is, and what changes no value that is computed
 * or is read by other code here. */
static const char *const housekeeping[] = {
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "quantization_config",
    "transformers_version",
    "_name_or_path",
    "use_cache",
    "initializer_range",
    "tokenizer_class",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "task_specific_params",
    "pretraining_tp",
    "_attn_implementation",
    "chunk_size_feed_forward",
    "is_decoder",
    "is_encoder_decoder",
    "torchscript",
    "auto_map",
    "id2label",
    "label2id",
    "problem_type",
};

/* What is known of a path: a row has it, or one leads through it. */
typedef enum known { KNOWN_NOT, KNOWN_INSIDE, KNOWN_WHOLE } known_t;

/* Whether a row of the table has this path, be it that the row does not hold in this file. */
static known_t path_known(const hf_table_t *t, const char *path)
{
    known_t known = KNOWN_NOT;
    const size_t length = strlen(path);
    for (uint32_t i = 0; i < t->count; i++) {
        hf_alternative_t a;
        for (const char *at = t->keys[i].key; hf_next_alternative(&at, &a);) {
            if (strcmp(a.path, path) == 0) return KNOWN_WHOLE;
            if (strncmp(a.path, path, length) == 0 && a.path[length] == '.') known = KNOWN_INSIDE;
        }
    }
    for (size_t i = 0; i < sizeof(housekeeping) / sizeof(housekeeping[0]); i++)
        if (strcmp(housekeeping[i], path) == 0) return KNOWN_WHOLE;
    return known;
}

/* Whether one of the places of a row's key is there. */
static bool stands_in(const json_value_t *root, const char *key)
{
    hf_alternative_t a;
    while (hf_next_alternative(&key, &a))
        if (hf_value_at(root, a.path) != NULL) return true;
    return false;
}

/* ", rms_norm_esp = 1e-05 (rms_norm_eps?)": the nearest key that the table has and the file has
 * not, if one is near. */
static void tell_unread(const hf_table_t *t, const json_value_t *root, const char *path,
                        const json_value_t *value, text_t *out)
{
    char found[JSON_FOUND];
    text_nearest_t near = {.typed = path};
    char keys[KEYS_NEAR][HF_VALUE_PATH];
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->count && count < KEYS_NEAR; i++) {
        hf_alternative_t a;
        const char *at = t->keys[i].key;
        if (stands_in(root, at) || !hf_next_alternative(&at, &a)) continue;
        memcpy(keys[count], a.path, sizeof(a.path));
        text_nearest_offer(&near, keys[count++]);
    }
    json_found(value, found);
    text_printf(out, "%s%s = %s", out->length == 0 ? "" : ", ", path, found);
    if (text_nearest_name(&near) != NULL) text_printf(out, " (%s?)", text_nearest_name(&near));
}

/* Every key that no row has, in the order of the file. An object that rows lead into is looked
 * through; any other is told as a whole. */
static void find_unread(const hf_table_t *t, const json_value_t *root, const json_value_t *map,
                        const char *prefix, text_t *out)
{
    for (json_walk_t w = json_walk(map); json_next(&w);) {
        char path[HF_VALUE_PATH];
        const int length = snprintf(path, sizeof(path), "%s%s", prefix, w.key);
        /* A key that is too long for a path is no row's either. */
        const bool fits = length > 0 && (size_t)length + 1 < sizeof(path);
        const known_t known = fits ? path_known(t, path) : KNOWN_NOT;
        /* null says nothing, whoever would read it. */
        if (known == KNOWN_WHOLE || json_is_nil(w.value)) continue;
        if (known == KNOWN_INSIDE && json_is_map(w.value)) {
            strcat(path, ".");
            find_unread(t, root, w.value, path, out);
        } else {
            tell_unread(t, root, path, w.value, out);
        }
    }
}

void hf_unread(const hf_table_t *table, const json_value_t *root, text_t *out)
{
    find_unread(table, root, root, "", out);
}
