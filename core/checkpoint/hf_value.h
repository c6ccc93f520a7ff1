/* checkpoint/hf_value.h - values of a config.json by paths such as "rope_parameters.factor". */
#ifndef CHECKPOINT_HF_VALUE_H
#define CHECKPOINT_HF_VALUE_H

#include <checkpoint/json_text.h>

/* Borrowed from root; NULL where it is absent or null. */
json_t *hf_value_find(const json_t *root, const char *path);
/* Takes value; makes the objects above it. */
lh_status_t hf_value_put(json_t *root, const char *path, json_t *value) LH_MUST_CHECK;
/* Appends the value as an INI would say it; false: a list or an object. */
bool hf_value_text(const json_t *value, text_t *out);

/* The sentence of a value that is none of what is wanted ("an object"). */
lh_status_t hf_value_refuse(const char *file, const char *key, const json_t *value,
                            const char *wanted) LH_MUST_CHECK;
/* What the path leads through is objects, or null, or absent. */
lh_status_t hf_value_check_parents(const char *file, const json_t *root,
                                   const char *path) LH_MUST_CHECK;

#endif
