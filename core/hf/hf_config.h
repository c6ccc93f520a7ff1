/* hf/hf_config.h - config.json into a model plugin's options and back, by the plugin's
 * table. */
#ifndef HF_HF_CONFIG_H
#define HF_HF_CONFIG_H

#include <base/text.h>

#include <longhaul/model.h>

typedef struct hf_option {
    char *key, *value; /* as they would stand in the INI: "rope_base", "10000.0" */
} hf_option_t;

typedef struct hf_config {
    hf_option_t *options;
    uint32_t count;
    int64_t bos, eos; /* first of a list; -1: none. May lie outside the vocabulary */
    text_t ignored; /* "attn_pdrop = 0.1, ...": what the model has no use for; data NULL: nothing */
} hf_config_t;

/* Refuses another model_type, quantised weights, and values that a fixed row forbids. */
lh_status_t hf_config_read(const lh_hf_t *table, const char *path, hf_config_t *out) LH_MUST_CHECK;
void hf_config_free(hf_config_t *c);
const char *hf_config_option(const hf_config_t *c, const char *key); /* NULL: none */
/* "key = value" lines, one an option. */
void hf_config_text(const hf_config_t *c, text_t *out);

typedef struct hf_config_facts {
    const char *(*option)(void *context, const char *key); /* effective value; NULL: none */
    void *context;
    uint64_t vocab;    /* rows of the embedding as it is exported */
    const char *dtype; /* "float32", "bfloat16", "float16"       */
    const char *kept;  /* path of the imported config.json, or NULL; its other keys stay */
    int64_t bos, eos;  /* -1: none; ignored where kept has them  */
} hf_config_facts_t;

lh_status_t hf_config_write(const lh_hf_t *table, const hf_config_facts_t *facts,
                            text_t *out) LH_MUST_CHECK;

#endif
