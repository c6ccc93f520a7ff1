/* hf/hf_value.h - values of a config.json by their dotted paths, as an INI would say them, and a
 * copy of the file in which some of them say something else.
 *
 * "rope_scaling.factor" is the member factor of the object rope_scaling. A copy with edits keeps
 * what nobody asked to change as it was: the order of the keys, numbers in the words in which they
 * stand (1e-05), keys that no table knows. */
#ifndef HF_HF_VALUE_H
#define HF_HF_VALUE_H

#include <base/text.h>
#include <format/json.h>
#include <hf/hf_weights.h>

/* Bytes of a path, NUL included. */
enum { HF_VALUE_PATH = 128 };

/* Borrowed from root; NULL where nothing stands. hf_value_find takes null for nothing too, as most
 * keys mean the same by both. */
const json_value_t *hf_value_at(const json_value_t *root, const char *path);
const json_value_t *hf_value_find(const json_value_t *root, const char *path);

/* Appends the value as an INI would say it; false: a list, an object or null. */
bool hf_value_text(const json_value_t *value, text_t *out);

/* The sentence of a value that is none of what is wanted ("an object"). */
lh_status_t hf_value_refuse(const char *file, const char *key, const json_value_t *value,
                            const char *wanted) LH_MUST_CHECK;
/* What the path leads through is objects, or null, or absent. */
lh_status_t hf_value_check_parents(const char *file, const json_value_t *root,
                                   const char *path) LH_MUST_CHECK;

/* What an INI says, appended as JSON: a flag, a whole number, a real, null or a text, whichever
 * fits first. */
void hf_value_json(const char *text, text_t *out);

/* A config.json that is to say other things than `root` (NULL: nothing yet), which stays the
 * caller's. Zero-initialise the rest; free it with hf_value_forget. */
typedef struct hf_value_edits {
    const json_value_t *root;
    /* JSON that is to stand at a path; owned. NULL: nothing is */
    struct hf_value_edit {
        char path[HF_VALUE_PATH];
        char *json;
    } * rows;
    size_t count, capacity;
} hf_value_edits_t;

/* From now on this JSON stands at the path; the last one counts. */
lh_status_t hf_value_put(hf_value_edits_t *edits, const char *path, const char *json) LH_MUST_CHECK;
/* As hf_value_put, for a text, which gets its quotes here. */
lh_status_t hf_value_put_text(hf_value_edits_t *edits, const char *path,
                              const char *text) LH_MUST_CHECK;
/* From now on nothing stands at the path. */
lh_status_t hf_value_drop(hf_value_edits_t *edits, const char *path) LH_MUST_CHECK;
void hf_value_forget(hf_value_edits_t *edits);

/* Appends the whole file: what stood there in its order, what is new behind it, in the objects of
 * its path. */
void hf_value_write(const hf_value_edits_t *edits, text_t *out);

/* ---- keys that nobody reads ------------------------------------------------------------------ */

/* Keys of a config.json that no row of a model's table has: a misspelled key would
 * else leave its option at the value of an absent one, in silence.
 *
 * Appends "rms_norm_esp = 1e-05 (rms_norm_eps?), ..." in the order of the file: values as JSON, and
 * the key that may have been meant where one is near that the file lacks. */
void hf_unread(const hf_table_t *table, const json_value_t *root, text_t *out);

#endif
