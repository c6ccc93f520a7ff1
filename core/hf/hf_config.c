/* hf_config.c - walks the rows of a model's table over a config.json, once to read, once to write.
 *
 * Reading goes row by row in the table's order, as a row may depend on options that earlier rows
 * have set. Writing collects edits, a path and the JSON that is to stand there, and then copies the
 * old file with the edits put in, so that what nobody asked to change comes out as it was. */
#include <hf/hf_config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/text.h>
#include <config/quantity.h>
#include <format/json.h>
#include <hf/hf_weights.h>

/* Values of a config.json are named by dotted paths: "rope_scaling.factor". NUL included. */
enum { HF_VALUE_PATH = 128 };

/* A config.json that is to say other things than `root` (NULL: nothing yet). Zero-initialise the
 * rest; free it with hf_value_forget. */
typedef struct hf_value_edits {
    const json_value_t *root;
    /* JSON that is to stand at a path; owned */
    struct hf_value_edit {
        char path[HF_VALUE_PATH];
        char *json;
    } * rows;
    size_t count, capacity;
} hf_value_edits_t;

/* Borrowed from root; NULL where it is absent or null, which means the same in these files. */
static const json_value_t *hf_value_find(const json_value_t *root, const char *path)
{
    const json_value_t *at = root;
    char name[HF_VALUE_PATH];
    /* Goes down a name at a time. json_member of what is no object is NULL, so a path through a
     * number finds nothing. */
    while (*path != '\0') {
        const size_t length = strcspn(path, ".");
        lh_assert(length < sizeof(name));
        (void)snprintf(name, sizeof(name), "%.*s", (int)length, path);
        at = json_member(at, name);
        path += length + (path[length] == '.');
    }
    return at == NULL || json_is_nil(at) ? NULL : at;
}

/* Appends the value as an INI would say it; false: a list or an object. */
static bool hf_value_text(const json_value_t *value, text_t *out)
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

/* The sentence of a value that is none of what is wanted ("an object"). */
static lh_status_t hf_value_refuse(const char *file, const char *key, const json_value_t *value,
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

/* What the path leads through is objects, or null, or absent. */
static lh_status_t hf_value_check_parents(const char *file, const json_value_t *root,
                                          const char *path)
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

/* From now on this JSON stands at the path. */
static lh_status_t hf_value_put(hf_value_edits_t *edits, const char *path, const char *json)
{
    lh_assert(strlen(path) < HF_VALUE_PATH);
    char *copy = mem_text(json);
    if (copy == NULL) return LH_NO_MEMORY;
    struct hf_value_edit *edit = find_edit(edits, path);
    if (edit == NULL) {
        void *grown = mem_grow(edits->rows, &edits->capacity, edits->count + 1, sizeof(*edit));
        if (grown == NULL) {
            mem_free(copy);
            return LH_NO_MEMORY;
        }
        edits->rows = grown;
        edit = &edits->rows[edits->count++];
        memcpy(edit->path, path, strlen(path) + 1);
    }
    mem_free(edit->json);
    edit->json = copy;
    return LH_OK;
}

/* The same for a text, which gets its quotes here. */
static lh_status_t hf_value_put_text(hf_value_edits_t *edits, const char *path, const char *text)
{
    text_t quoted = {0};
    json_writer_t w = {.to = &quoted};
    json_put_text(&w, NULL, text);
    lh_status_t status = text_status(&quoted);
    if (status == LH_OK) status = hf_value_put(edits, path, quoted.data);
    text_free(&quoted);
    return status;
}

static void hf_value_forget(hf_value_edits_t *edits)
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
        if (!text_starts(edits->rows[i].path, prefix)) continue;
        char key[HF_VALUE_PATH];
        const char *rest = edits->rows[i].path + strlen(prefix);
        const size_t length = strcspn(rest, ".");
        (void)snprintf(key, sizeof(key), "%.*s", (int)length, rest);
        (void)snprintf(path, sizeof(path), "%.*s", (int)(strlen(prefix) + length + 1),
                       edits->rows[i].path);
        /* An object on the way to several new values is made by the first of them. */
        bool stands = json_member(map, key) != NULL;
        for (size_t before = 0; rest[length] == '.' && before < i && !stands; before++)
            stands = text_starts(edits->rows[before].path, path);
        if (stands) continue;
        if (rest[length] == '\0')
            json_put_as_is(w, key, edits->rows[i].json);
        else
            write_changed(edits, key, NULL, path, w);
    }
}

/* The whole file: what stood there in its order, what is new behind it, in the objects of its
 * path. */
static void hf_value_write(const hf_value_edits_t *edits, text_t *out)
{
    json_writer_t w = {.to = out, .style = 2};
    write_changed(edits, NULL, edits->root, "", &w);
    text_append(out, "\n");
}

/* Real files have a few KiB. */
enum { CONFIG_MOST = 16 << 20 };

/* The first alternative that is there. */
static const json_value_t *find_value(const json_value_t *root, const char *key,
                                      hf_alternative_t *found)
{
    while (hf_next_alternative(&key, found)) {
        const json_value_t *value = hf_value_find(root, found->path);
        if (value != NULL) return value;
    }
    return NULL;
}

/* "rope_scaling=linear|llama3" against what `option` says. */
static bool config_holds(const char *when, const char *(*option)(void *context, const char *key),
                         void *context)
{
    if (when == NULL) return true;
    /* A condition that is none holds never: the plugin's table is not this host's to mend. */
    const char *equals = strchr(when, '=');
    char name[64];
    if (equals == NULL) return false;
    (void)snprintf(name, sizeof(name), "%.*s", (int)(equals - when), when);
    const char *value = option(context, name);
    return value != NULL && hf_one_of(equals + 1, value);
}

/* An option has one row at most that holds, so the first is the one. */
const char *hf_config_option(const hf_config_t *c, const char *key)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (strcmp(c->options[i].key, key) == 0) return c->options[i].value;
    return NULL;
}

/* config_holds's question while a file is read: options that earlier rows have set. */
static const char *read_option(void *context, const char *key)
{
    return hf_config_option(context, key);
}

/* There is room for one option a row. true and false are yes and no in an INI. */
static lh_status_t add_option(hf_config_t *c, const char *key, const char *value)
{
    hf_option_t *o = &c->options[c->count];
    if (strcmp(value, "true") == 0) value = "yes";
    if (strcmp(value, "false") == 0) value = "no";
    o->key = mem_text(key);
    o->value = mem_text(value);
    c->count++;
    return o->key == NULL || o->value == NULL ? LH_NO_MEMORY : LH_OK;
}

/* A key that the file leaves out: its option is what the row says for that case, another option's
 * value, or missing. */
static lh_status_t read_absent(const hf_table_t *t, const char *path, const lh_hf_key_t *row,
                               hf_config_t *c)
{
    if (row->option == NULL) return LH_OK;
    if (row->fixed == NULL) return fail(LH_INVALID, "%s: %s is missing", path, row->key);
    /* `fixed` is a value, or the name of an option whose value counts here as well: key/value heads
     * that are as many as heads. */
    if (!hf_is_option(t, row->fixed)) return add_option(c, row->option, row->fixed);
    const char *other = hf_config_option(c, row->fixed);
    if (other == NULL)
        return fail(LH_INVALID, "%s: %s and %s are both missing", path, row->key, row->fixed);
    return add_option(c, row->option, other);
}

/* A key that is there: an option's value; or one that must be as the row says; or, for rows with
 * neither, one that changes training only, such as a dropout, and is told as ignored unless it is
 * off. */
static lh_status_t read_value(const char *path, const lh_hf_key_t *row, const char *where,
                              const char *text, hf_config_t *c)
{
    if (row->option != NULL) return add_option(c, row->option, text);
    if (row->fixed == NULL) {
        /* A dropout of 0 changes nothing, so there is nothing to tell. */
        if (!hf_same_value(text, "0") && !hf_same_value(text, "no"))
            text_printf(&c->ignored, "%s%s = %s", c->ignored.length == 0 ? "" : ", ", where, text);
        return LH_OK;
    }
    if (hf_same_value(text, row->fixed)) return LH_OK;
    return fail(LH_UNSUPPORTED, "%s: %s is %s, this model plugin can only %s", path, where, text,
                row->fixed);
}

/* For each place where a row's value may stand, what leads there must be objects: a typing error in
 * a file is not the same as a value that is absent. */
static lh_status_t check_places(const char *path, const json_value_t *root, const char *key)
{
    hf_alternative_t place;
    lh_status_t status = LH_OK;
    while (status == LH_OK && hf_next_alternative(&key, &place))
        status = hf_value_check_parents(path, root, place.path);
    return status;
}

/* A text is no number and no truth, whatever it says: Transformers would not take it for one. */
static lh_status_t check_type(const char *path, const char *key, const json_value_t *value)
{
    const char *text = json_text(value);
    uint64_t whole;
    double real;
    if (text == NULL) return LH_OK;
    /* "12" in quotes */
    if (quantity_u64(text, &whole) || quantity_f64(text, &real))
        return json_refuse(path, key, value, "a number without quotes");
    if (hf_one_of("true|false|yes|no", text))
        return json_refuse(path, key, value, "true or false without quotes");
    return LH_OK;
}

/* One row: whether it holds, where its value stands, what kind of value it is, and what that
 * means. */
static lh_status_t read_row(const hf_table_t *t, const char *path, const json_value_t *root,
                            const lh_hf_key_t *row, hf_config_t *c)
{
    hf_alternative_t found;
    lh_status_t status = check_places(path, root, row->key);
    if (status != LH_OK || !config_holds(row->when, read_option, c)) return status;
    const json_value_t *value = find_value(root, row->key, &found);
    if (value == NULL) return read_absent(t, path, row, c);
    status = check_type(path, found.path, value);
    if (status != LH_OK) return status;

    text_t text = {0};
    if (!hf_value_text(value, &text))
        status = json_refuse(path, found.path, value, "a number, a text, true or false");
    else
        status = text_status(&text);
    if (status == LH_OK)
        status = read_value(path, row, found.path, text.data == NULL ? "" : text.data, c);
    text_free(&text);
    return status;
}

static bool is_token_id(const json_value_t *value)
{
    return json_is_whole(value) && json_whole(value) >= 0 && json_whole(value) <= INT32_MAX;
}

/* The first of several; -1 where the file names none. */
static lh_status_t read_token_id(const char *path, const json_value_t *root, const char *key,
                                 int64_t *out)
{
    static const char wanted[] = "a token id from 0 on";
    const json_value_t *value = hf_value_find(root, key);
    if (value == NULL) return LH_OK;
    /* A list of ids is one of which any ends a text; the whole list must be good. */
    for (json_walk_t w = json_walk(value); json_next(&w);)
        if (!is_token_id(w.value)) return hf_value_refuse(path, key, w.value, wanted);
    const json_value_t *first = json_is_list(value) ? json_item(value, 0) : value;
    if (!is_token_id(first)) return hf_value_refuse(path, key, value, wanted);
    *out = json_whole(first);
    return LH_OK;
}

/* "architectures" may be absent; where it names any, one must be the plugin's. */
static lh_status_t check_architecture(const hf_table_t *t, const char *path,
                                      const json_value_t *root)
{
    const json_value_t *list = hf_value_find(root, "architectures");
    const char *reads = t->head.architecture;
    bool known = json_size(list) == 0;
    if (list != NULL && !json_is_list(list))
        return hf_value_refuse(path, "architectures", list, "a list of names");
    /* One architecture of several that the plugin reads is enough. */
    for (json_walk_t w = json_walk(list); json_next(&w);) {
        if (!json_is_text(w.value))
            return hf_value_refuse(path, "architectures", w.value, "a list of names");
        if (hf_one_of(reads, json_text(w.value))) known = true;
    }
    if (known) return LH_OK;
    return fail(LH_UNSUPPORTED, "%s: architectures is %.64s, this model plugin reads %s", path,
                json_text(json_item(list, 0)), reads);
}

/* Whether the file is of a model that the plugin reads, before any of its values is looked at. */
static lh_status_t check_kind(const hf_table_t *t, const char *path, const json_value_t *root)
{
    const char *type;
    const lh_status_t status = json_take_text(path, root, "model_type", &type);
    if (status != LH_OK) return status;
    if (!hf_one_of(t->head.model_type, type))
        return fail(LH_UNSUPPORTED, "%s: model_type is %.64s, this model plugin reads %s", path,
                    type, t->head.model_type);
    if (hf_value_find(root, "quantization_config") != NULL)
        return fail(LH_UNSUPPORTED, "%s: quantization_config: quantised weights are not read",
                    path);
    return check_architecture(t, path, root);
}

/* The kind is checked first: of another model no value means what its name says. */
lh_status_t hf_config_read(const lh_hf_t *table, const char *path, hf_config_t *out)
{
    json_document_t *file;
    hf_table_t t;
    hf_config_t c = {.bos = -1, .eos = -1};
    lh_status_t status = hf_table_import(table, &t);
    if (status != LH_OK) return status;
    status = json_read(path, CONFIG_MOST, UINT64_MAX, &file);
    if (status != LH_OK) goto free_table;

    const json_value_t *root = json_root(file);
    status = check_kind(&t, path, root);
    /* Room for one option a row. */
    c.options = mem_array(t.count, sizeof(c.options[0]));
    if (c.options == NULL) status = LH_NO_MEMORY;
    for (uint32_t i = 0; i < t.count && status == LH_OK; i++)
        status = read_row(&t, path, root, &t.keys[i], &c);
    if (status == LH_OK) status = read_token_id(path, root, "bos_token_id", &c.bos);
    if (status == LH_OK) status = read_token_id(path, root, "eos_token_id", &c.eos);
    json_free(file);
    if (status == LH_OK)
        *out = c;
    else
        hf_config_free(&c);
free_table:
    hf_table_free(&t);
    return status;
}

void hf_config_free(hf_config_t *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        mem_free(c->options[i].key);
        mem_free(c->options[i].value);
    }
    mem_free(c->options);
    text_free(&c->ignored);
    *c = (hf_config_t){.bos = -1, .eos = -1};
}

void hf_config_text(const hf_config_t *c, text_t *out)
{
    for (uint32_t i = 0; i < c->count; i++)
        text_printf(out, "%s = %s\n", c->options[i].key, c->options[i].value);
}

/* What an INI says, as JSON: a flag, a whole number, a real or a text, whichever fits first. */
static void json_of(const char *text, text_t *out)
{
    char *end;
    json_writer_t w = {.to = out};
    const bool yes = hf_same_value(text, "yes");
    if (yes || hf_same_value(text, "no")) {
        json_put_flag(&w, NULL, yes);
        return;
    }
    /* A whole number that does not fit 64 bits goes on as a real. */
    errno = 0;
    const long long whole = strtoll(text, &end, 10);
    if (*text != '\0' && *end == '\0' && errno == 0) {
        text_printf(out, "%lld", whole);
        return;
    }
    const double real = strtod(text, &end);
    if (*text != '\0' && *end == '\0' && isfinite(real))
        json_put_real(&w, NULL, real);
    else
        json_put_text(&w, NULL, text);
}

/* Leaves a value that says the same in other words (1e-05, 10000.0) as it is. */
static lh_status_t config_put(hf_value_edits_t *edits, const char *path, const char *value)
{
    /* What stands there now, in the words of an INI, is compared with what the option says. */
    const json_value_t *old = hf_value_find(edits->root, path);
    text_t text = {0}, json = {0};
    const bool written = old != NULL && hf_value_text(old, &text);
    lh_status_t status = text_status(&text);
    const bool same = written && status == LH_OK &&
                      hf_same_value(text.data == NULL ? "" : text.data, value);
    text_free(&text);
    if (status != LH_OK || same) return status;
    json_of(value, &json);
    status = text_status(&json);
    if (status == LH_OK) status = hf_value_put(edits, path, json.data);
    text_free(&json);
    return status;
}

/* The value of a row's option goes to the first of its places, to those that are marked to be
 * written as well, and to those where the old file has one. The vocabulary is as many rows as the
 * exported embedding has. */
static lh_status_t write_row(const hf_table_t *t, const hf_config_facts_t *facts,
                             const lh_hf_key_t *row, bool made_anew, hf_value_edits_t *edits)
{
    hf_alternative_t a;
    const char *at = row->key;
    if (row->option == NULL) {
        /* A row without an option is written into a new file only, as what it fixes stands in an
         * imported one. */
        const bool wanted = made_anew && row->fixed != NULL && strchr(row->key, '.') == NULL;
        return wanted && hf_next_alternative(&at, &a) ? config_put(edits, a.path, row->fixed)
                                                      : LH_OK;
    }
    char rows[24];
    (void)snprintf(rows, sizeof(rows), "%llu", (unsigned long long)facts->vocab);
    if (!config_holds(row->when, facts->option, facts->context)) return LH_OK;
    const bool is_vocab = strcmp(row->option, "vocab") == 0;
    const char *value = is_vocab ? rows : facts->option(facts->context, row->option);
    if (value == NULL) return LH_OK;

    const bool by_option = row->fixed != NULL && hf_is_option(t, row->fixed);
    const bool by_default = row->fixed != NULL && !by_option && hf_same_value(value, row->fixed);
    /* 0 stands for "derived from others" in an INI; Transformers would take it for a size. */
    if (hf_same_value(value, "0") && (by_option || by_default)) return LH_OK; /* derived */

    lh_status_t status = LH_OK;
    for (bool first = true; status == LH_OK && hf_next_alternative(&at, &a); first = false) {
        const bool dotted = strchr(a.path, '.') != NULL;
        /* A place inside of an object is made for a value only where it says more than the
         * default. */
        const bool also = a.also && (!dotted || row->when != NULL || !by_default);
        if (first || also || hf_value_find(edits->root, a.path) != NULL)
            status = config_put(edits, a.path, value);
    }
    return status;
}

/* architectures and model_type where the old file has none, and the dtype of the weights under the
 * name by which this file calls it: newer versions of Transformers say dtype, older ones
 * torch_dtype. */
static lh_status_t write_kind(const hf_table_t *t, const hf_config_facts_t *facts,
                              hf_value_edits_t *edits)
{
    hf_alternative_t type, architecture;
    const json_value_t *root = edits->root;
    const char *at = t->head.model_type, *architectures = t->head.architecture;
    lh_status_t status = LH_OK;
    if (json_member(root, "architectures") == NULL && architectures != NULL &&
        hf_next_alternative(&architectures, &architecture)) {
        /* A list is put together by hand, with the blanks that it will have where it lies. */
        text_t list = {0};
        json_writer_t w = {.to = &list};
        text_append(&list, "[\n    "); /* as deep as it will lie */
        json_put_text(&w, NULL, architecture.path);
        text_append(&list, "\n  ]");
        status = text_status(&list);
        if (status == LH_OK) status = hf_value_put(edits, "architectures", list.data);
        text_free(&list);
    }
    if (status == LH_OK && json_member(root, "model_type") == NULL &&
        hf_next_alternative(&at, &type))
        status = hf_value_put_text(edits, "model_type", type.path);
    if (status != LH_OK || facts->dtype == NULL) return status;

    const bool newer = json_member(root, "dtype") != NULL;
    if (newer) status = hf_value_put_text(edits, "dtype", facts->dtype);
    if (status == LH_OK && (!newer || json_member(root, "torch_dtype") != NULL))
        status = hf_value_put_text(edits, "torch_dtype", facts->dtype);
    return status;
}

/* A special token's id, in a config.json that is made anew. */
static lh_status_t write_id(hf_value_edits_t *edits, const char *key, int64_t id)
{
    char digits[24];
    (void)snprintf(digits, sizeof(digits), "%lld", (long long)id);
    return id < 0 ? LH_OK : hf_value_put(edits, key, digits);
}

/* Without an imported file the edits alone are the config, in the order of the table. */
lh_status_t hf_config_write(const lh_hf_t *table, const hf_config_facts_t *facts, text_t *out)
{
    hf_table_t t;
    json_document_t *kept = NULL;
    hf_value_edits_t edits = {0};
    lh_status_t status = hf_table_import(table, &t);
    if (status != LH_OK) return status;
    if (facts->kept != NULL) status = json_read(facts->kept, CONFIG_MOST, UINT64_MAX, &kept);
    if (status != LH_OK) goto free_table;

    /* Rows come behind the kind, and special tokens last, so a new file has an order that people
     * expect. */
    edits.root = json_root(kept);
    status = write_kind(&t, facts, &edits);
    for (uint32_t i = 0; i < t.count && status == LH_OK; i++)
        status = write_row(&t, facts, &t.keys[i], kept == NULL, &edits);
    if (status == LH_OK && kept == NULL) status = write_id(&edits, "bos_token_id", facts->bos);
    if (status == LH_OK && kept == NULL) status = write_id(&edits, "eos_token_id", facts->eos);
    if (status == LH_OK) {
        hf_value_write(&edits, out);
        status = text_status(out);
    }
    hf_value_forget(&edits);
    json_free(kept);
free_table:
    hf_table_free(&t);
    return status;
}
