/* hf/hf_unread.h - keys of a config.json that no row of a model's table has: a misspelled key would
 * else leave its option at the value of an absent one, in silence. */
#ifndef HF_HF_UNREAD_H
#define HF_HF_UNREAD_H

#include <format/json.h>
#include <hf/hf_weights.h>

/* Appends "rms_norm_esp = 1e-05 (rms_norm_eps?), ..." in the order of the file: values as JSON, and
 * the key that may have been meant where one is near that the file lacks. */
void hf_unread(const hf_table_t *table, const json_value_t *root, text_t *out);

#endif
