/* checkpoint/hf_table.h - a model plugin's table of config.json keys, imported to this host's rows,
 * and questions about it. */
#ifndef CHECKPOINT_HF_TABLE_H
#define CHECKPOINT_HF_TABLE_H

#include <base/status.h>

#include <longhaul/model.h>

typedef struct hf_table {
    lh_hf_t head; /* use keys below instead of its keys */
    lh_hf_key_t *keys;
    uint32_t count;
} hf_table_t;

lh_status_t hf_table_import(const lh_hf_t *plugin, hf_table_t *out) LH_MUST_CHECK;
void hf_table_free(hf_table_t *t);

/* Cuts the next alternative off "a|+b|c"; false at the end. */
typedef struct hf_alternative {
    char path[128];
    bool also; /* marked with + */
} hf_alternative_t;
bool hf_next_alternative(const char **at, hf_alternative_t *out);

/* True if "a|b|c" holds value. */
bool hf_one_of(const char *alternatives, const char *value);
/* Same number, or same text with true for yes and false for no. */
bool hf_same_value(const char *a, const char *b);
bool hf_is_option(const hf_table_t *t, const char *name);

#endif
