/* hf/hf_config.h - config.json into a model plugin's options and back, by the plugin's table.
 *
 * The core knows no architecture: a row of the plugin's table says which key of config.json is
 * which option, what other keys may say the same, and what must hold for the model to be the
 * plugin's at all (lh_hf_key_t in longhaul/model.h).
 *
 * Rows and what they make of {"hidden_size": 64, "rope_theta": 10000.0, "attn_pdrop": 0.1}:
 *
 *     hidden_size -> hidden                   the option hidden = 64
 *     rope_parameters.rope_theta|+rope_theta -> rope_base, else 10000
 *                                             the option rope_base = 10000.0
 *     attn_pdrop, for no option               told as ignored
 *     grouped|hidden_size=yes -> grouped      the option grouped = yes, as hidden_size is there */
#ifndef HF_HF_CONFIG_H
#define HF_HF_CONFIG_H

#include <base/text.h>

#include <longhaul/model.h>

typedef struct hf_option {
    /* As they would stand in the INI: "rope_base", "10000.0". Owned. */
    char *key, *value;
} hf_option_t;

/* What a config.json says in the words of an INI. Freed by hf_config_free. */
typedef struct hf_config {
    hf_option_t *options;
    uint32_t count;
    int64_t bos, eos; /* first of a list; -1: none. May lie outside the vocabulary */
    /* "attn_pdrop = 0.1, ...": keys that the model has no use for, for a warning; data NULL:
     * nothing. */
    text_t ignored;
    /* "rms_norm_esp = 1e-05 (rms_norm_eps?), ...": keys that no row of the table has; likewise. */
    text_t unread;
} hf_config_t;

/* Refuses another model_type, quantised weights, and values that a fixed row forbids. */
lh_status_t hf_config_read(const lh_hf_t *table, const char *path, hf_config_t *out) LH_MUST_CHECK;
void hf_config_free(hf_config_t *c);
const char *hf_config_option(const hf_config_t *c, const char *key); /* NULL: none */
/* "key = value" lines, one an option. */
void hf_config_text(const hf_config_t *c, text_t *out);

/* What an export writes; all of it is the caller's and only read. */
typedef struct hf_config_facts {
    /* The effective value of an option of the model, valid until the next call; NULL: it has none of
     * this name. */
    const char *(*option)(void *context, const char *key);
    void *context;
    /* Rows of the embedding as it is exported. */
    uint64_t vocab;
    /* Transformer blocks: lists with an item each are as long. 0: as many as the option says. */
    uint32_t blocks;
    /* "float32", "bfloat16" or "float16": of most weights. NULL: what the kept file says stays. */
    const char *dtype;
    /* Path of the imported config.json, whose other keys stay, or NULL: a new one is made. */
    const char *kept;
    int64_t bos, eos; /* -1: none; not looked at where kept is given */
} hf_config_facts_t;

/* Appends the text of a config.json. With `kept` it is that file with as few changes as possible:
 * keys that the table doesn't know and the order of all stay, and a value that says the same in
 * other words is left alone. */
lh_status_t hf_config_write(const lh_hf_t *table, const hf_config_facts_t *facts,
                            text_t *out) LH_MUST_CHECK;

#endif
