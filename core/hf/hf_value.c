/* hf_value.c - paths into a config.json, and its copy with edits.
 *
 * An edit is a path and the JSON that is to stand there. The copy walks the old file and puts each
 * edit where its path leads, so the file need not be changed in memory; what no member of the old
 * file has taken is new and comes behind. Edits are some dozens, so each is found by a walk. */
#include <hf/hf_value.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>

/* Goes down a name at a time. json_member of what is no object is NULL, so a path through a number
 * finds nothing. */
const json_value_t *hf_value_at(const json_value_t *root, const char *path)
{
    const json_value_t *at = root;
    char name[HF_VALUE_PATH];
    while (*path != '\0') {
        const size_t length = strcspn(path, ".");
        lh_assert(length < sizeof(name));
        (void)snprintf(name, sizeof(name), "%.*s", (int)length, path);
        at = json_member(at, name);
        path += length + (path[length] == '.');
    }
    return at;
}

const json_value_t *hf_value_find(const json_value_t *root, const char *path)
{
    const json_value_t *at = hf_value_at(root, path);
    return json_is_nil(at) ? NULL : at;
}

bool hf_value_text(const json_value_t *value, text_t *out)
{
    if (json_is_text(value)) {
        text_append(out, json_text(value));
    } else if (json_is_flag(value)) {
        text_append(out, json_is_yes(value) ? "yes" : "no");
    } else if (json_is_numeric(value)) {
        json_writer_t w = {.to = out};
        json_put_value(&w, NULL, value);
    } else {
        return false;
    }
    return true;
}

lh_status_t hf_value_refuse(const char *file, const char *key, const json_value_t *value,
                            const char *wanted)
{
    text_t found = {0};
    if (!hf_value_text(value, &found))
        text_append(&found, json_is_nil(value)    ? "null"
                            : json_is_list(value) ? "a list"
                                                  : "an object");
    lh_status_t status = text_status(&found);
    if (status == LH_OK)
        status = fail(LH_INVALID, "%s: %s is %.64s, %s was expected", file, key,
                      found.data == NULL ? "''" : found.data, wanted);
    text_free(&found);
    return status;
}

lh_status_t hf_value_check_parents(const char *file, const json_value_t *root, const char *path)
{
    char parent[HF_VALUE_PATH];
    for (const char *dot = strchr(path, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        (void)snprintf(parent, sizeof(parent), "%.*s", (int)(dot - path), path);
        const json_value_t *value = hf_value_find(root, parent);
        if (value != NULL && !json_is_map(value))
            return hf_value_refuse(file, parent, value, "an object");
    }
    return LH_OK;
}

/* NULL: the value at this path stays as it is. */
static struct hf_value_edit *find_edit(const hf_value_edits_t *edits, const char *path)
{
    for (size_t i = 0; i < edits->count; i++)
        if (strcmp(edits->rows[i].path, path) == 0) return &edits->rows[i];
    return NULL;
}

/* json becomes the edit's, or is freed. */
static lh_status_t put_edit(hf_value_edits_t *edits, const char *path, char *json)
{
    lh_assert(strlen(path) < HF_VALUE_PATH);
    struct hf_value_edit *edit = find_edit(edits, path);
    if (edit == NULL) {
        void *grown = mem_grow(edits->rows, &edits->capacity, edits->count + 1, sizeof(*edit));
        if (grown == NULL) {
            mem_free(json);
            return LH_NO_MEMORY;
        }
        edits->rows = grown;
        edit = &edits->rows[edits->count++];
        memcpy(edit->path, path, strlen(path) + 1);
    }
    mem_free(edit->json);
    edit->json = json;
    return LH_OK;
}

lh_status_t hf_value_put(hf_value_edits_t *edits, const char *path, const char *json)
{
    char *copy = mem_text(json);
    return copy == NULL ? LH_NO_MEMORY : put_edit(edits, path, copy);
}

lh_status_t hf_value_drop(hf_value_edits_t *edits, const char *path)
{
    return put_edit(edits, path, NULL);
}

lh_status_t hf_value_put_text(hf_value_edits_t *edits, const char *path, const char *text)
{
    text_t quoted = {0};
    json_writer_t w = {.to = &quoted};
    json_put_text(&w, NULL, text);
    lh_status_t status = text_status(&quoted);
    if (status == LH_OK) status = hf_value_put(edits, path, quoted.data);
    text_free(&quoted);
    return status;
}

void hf_value_forget(hf_value_edits_t *edits)
{
    for (size_t i = 0; i < edits->count; i++)
        mem_free(edits->rows[i].json);
    mem_free(edits->rows);
    *edits = (hf_value_edits_t){0};
}

/* Whether an edit leads through `path`, which ends with a dot. */
static bool leads_through(const hf_value_edits_t *edits, const char *path)
{
    for (size_t i = 0; i < edits->count; i++)
        if (text_starts(edits->rows[i].path, path)) return true;
    return false;
}

static void write_members(const hf_value_edits_t *edits, const json_value_t *map,
                          const char *prefix, json_writer_t *w);

/* An object that edits lead into; nothing but an object can be kept of what stood there. */
static void write_changed(const hf_value_edits_t *edits, const char *key, const json_value_t *map,
                          const char *prefix, json_writer_t *w)
{
    json_open(w, key, '{');
    write_members(edits, json_is_map(map) ? map : NULL, prefix, w);
    json_close(w);
}

/* prefix: the path to these members, with a dot at its end, or "". */
static void write_members(const hf_value_edits_t *edits, const json_value_t *map,
                          const char *prefix, json_writer_t *w)
{
    char path[HF_VALUE_PATH];
    lh_assert(strlen(prefix) < sizeof(path));
    for (json_walk_t member = json_walk(map); json_next(&member);) {
        /* A key with a dot in it, or one that makes the path too long, can't be named by an edit:
         * it is copied as it is. */
        const int length = snprintf(path, sizeof(path), "%s%s", prefix, member.key);
        const bool is_path = strchr(member.key, '.') == NULL && length > 0 &&
                             (size_t)length + 1 < sizeof(path);
        const struct hf_value_edit *edit = is_path ? find_edit(edits, path) : NULL;
        /* From here on path is the prefix of what lies inside of this member. */
        if (is_path) strcat(path, ".");
        if (edit != NULL && edit->json == NULL) continue;
        if (edit != NULL)
            json_put_as_is(w, member.key, edit->json);
        else if (is_path && leads_through(edits, path))
            write_changed(edits, member.key, member.value, path, w);
        else
            json_put_value(w, member.key, member.value);
    }
    /* What is new: the first name behind the prefix in each edit that leads here, unless the object
     * has it or an earlier edit has written it. */
    for (size_t i = 0; i < edits->count; i++) {
        if (edits->rows[i].json == NULL || !text_starts(edits->rows[i].path, prefix)) continue;
        char key[HF_VALUE_PATH];
        const char *rest = edits->rows[i].path + strlen(prefix);
        const size_t length = strcspn(rest, ".");
        (void)snprintf(key, sizeof(key), "%.*s", (int)length, rest);
        (void)snprintf(path, sizeof(path), "%.*s", (int)(strlen(prefix) + length + 1),
                       edits->rows[i].path);
        /* An object on the way to several new values is made by the first of them. */
        bool stands = json_member(map, key) != NULL;
        for (size_t before = 0; rest[length] == '.' && before < i && !stands; before++)
            stands = edits->rows[before].json != NULL &&
                     text_starts(edits->rows[before].path, path);
        if (stands) continue;
        if (rest[length] == '\0')
            json_put_as_is(w, key, edits->rows[i].json);
        else
            write_changed(edits, key, NULL, path, w);
    }
}

void hf_value_write(const hf_value_edits_t *edits, text_t *out)
{
    json_writer_t w = {.to = out, .style = 2};
    write_changed(edits, NULL, edits->root, "", &w);
    text_append(out, "\n");
}

void hf_value_json(const char *text, text_t *out)
{
    char *end;
    json_writer_t w = {.to = out};
    const bool yes = strcmp(text, "yes") == 0 || strcmp(text, "true") == 0;
    if (yes || strcmp(text, "no") == 0 || strcmp(text, "false") == 0) {
        json_put_flag(&w, NULL, yes);
        return;
    }
    if (strcmp(text, "null") == 0) {
        text_append(out, "null");
        return;
    }
    /* A whole number that does not fit 64 bits goes on as a real. */
    errno = 0;
    const long long whole = strtoll(text, &end, 10);
    if (*text != '\0' && *end == '\0' && errno == 0) {
        text_printf(out, "%lld", whole);
        return;
    }
    const double real = text_real(text, &end);
    if (*text != '\0' && *end == '\0' && isfinite(real))
        json_put_real(&w, NULL, real);
    else
        json_put_text(&w, NULL, text);
}

/* ---- keys that nobody reads ------------------------------------------------------------------ */

/* Goes through the members of a config.json and looks for each in the table.
 *
 * A row that does not hold in this file makes its keys known all the same: what a model of another
 * kind would read is no mistake here. Keys that every file of Transformers may have are known to
 * the core. */

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
    "is_causal", /* hf_config refuses false */
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
        for (const char *at = t->keys[i].key; hf_next_place(&at, &a);) {
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
    while (hf_next_place(&key, &a))
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
        if (stands_in(root, at) || !hf_next_place(&at, &a)) continue;
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
