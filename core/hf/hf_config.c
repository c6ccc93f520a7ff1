/* hf_config.c - walks the rows of a model's table over a config.json, once to read, once to write.
 *
 * Reading goes row by row in the table's order, as a row may depend on options that earlier rows
 * have set. Writing collects edits, a path and the JSON that is to stand there, and then copies the
 * old file with the edits put in, so that what nobody asked to change comes out as it was. */
#include <hf/hf_config.h>

#include <stdio.h>

#include <base/memory.h>
#include <config/quantity.h>
#include <hf/hf_value.h>
#include <hf/hf_weights.h>

/* A real file has a few KiB. Bytes of a word that stands for one of an option, NUL included. */
enum { CONFIG_MOST = 16 << 20, HF_WORD = 128 };

/* The option that says how many blocks a model has. */
#define HF_BLOCKS "blocks"

/* The first alternative that is there and says something. */
static const json_value_t *find_value(const json_value_t *root, const char *key,
                                      hf_alternative_t *found)
{
    while (hf_next_place(&key, found)) {
        const json_value_t *value = hf_value_find(root, found->path);
        if (value != NULL) return value;
    }
    return NULL;
}

/* Whether null stands at one of them. */
static bool says_null(const json_value_t *root, const char *key)
{
    hf_alternative_t a;
    while (hf_next_place(&key, &a))
        if (json_is_nil(hf_value_at(root, a.path))) return true;
    return false;
}

/* The other side of a word that the row's table has: "w=sliding_attention|f=full_attention". False:
 * it has none. */
static bool other_word(const char *words, const char *word, bool to_file, char out[HF_WORD])
{
    hf_alternative_t pair;
    while (hf_next_alternative(&words, &pair)) {
        char *equals = strchr(pair.path, '=');
        if (equals == NULL) continue;
        *equals = '\0';
        if (strcmp(to_file ? pair.path : equals + 1, word) != 0) continue;
        (void)snprintf(out, HF_WORD, "%s", to_file ? equals + 1 : pair.path);
        return true;
    }
    return false;
}

/* "sliding_attention or full_attention", for a sentence. */
static void list_words(const char *words, text_t *out)
{
    hf_alternative_t pair;
    while (hf_next_alternative(&words, &pair)) {
        const char *equals = strchr(pair.path, '=');
        text_printf(out, "%s%s", out->length == 0 ? "" : " or ", equals == NULL ? "" : equals + 1);
    }
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

/* What stands where the row allows one of a few values only. */
static bool is_fixed(const char *fixed, const char *text)
{
    hf_alternative_t one;
    while (hf_next_alternative(&fixed, &one))
        if (hf_same_value(text, one.path)) return true;
    return false;
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
    if (is_fixed(row->fixed, text)) return LH_OK;
    return fail(LH_UNSUPPORTED, "%s: %s is %s, expected %s", path, where, text, row->fixed);
}

/* For each place where a row's value may stand, what leads there must be objects: a typing error in
 * a file is not the same as a value that is absent. */
static lh_status_t check_row_places(const char *path, const json_value_t *root, const char *key)
{
    hf_alternative_t place;
    lh_status_t status = LH_OK;
    while (status == LH_OK && hf_next_place(&key, &place))
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

/* One value in the words of the option, which the row's table may translate. */
static lh_status_t read_word(const char *path, const lh_hf_key_t *row, const char *where,
                             const json_value_t *value, text_t *out)
{
    char word[HF_WORD];
    lh_status_t status = check_type(path, where, value);
    if (status != LH_OK) return status;
    if (row->words == NULL)
        return hf_value_text(value, out)
                   ? text_status(out)
                   : json_refuse(path, where, value, "a number, a text, true or false");
    if (json_is_text(value) && other_word(row->words, json_text(value), false, word)) {
        text_append(out, word);
        return text_status(out);
    }
    text_t wanted = {0};
    list_words(row->words, &wanted);
    status = text_status(&wanted);
    if (status == LH_OK) status = json_refuse(path, where, value, wanted.data);
    text_free(&wanted);
    return status;
}

/* A list: the words of its items one after the other, a letter each as tables have them; or where
 * the row has no option, items that must all be as it says. */
static lh_status_t read_words(const char *path, const lh_hf_key_t *row, const char *key,
                              const json_value_t *list, hf_config_t *c)
{
    text_t all = {0};
    lh_status_t status = LH_OK;
    if (!json_is_list(list)) return json_refuse(path, key, list, "a list");
    for (json_walk_t w = json_walk(list); status == LH_OK && json_next(&w);) {
        char where[HF_VALUE_PATH + 32];
        text_t one = {0};
        (void)snprintf(where, sizeof(where), "%s[%zu]", key, w.index);
        status = read_word(path, row, where, w.value, &one);
        if (status == LH_OK && row->option == NULL)
            status = read_value(path, row, where, one.data, c);
        if (one.data != NULL) text_append(&all, one.data);
        text_free(&one);
    }
    if (status == LH_OK) status = text_status(&all);
    if (status == LH_OK && row->option != NULL)
        status = read_value(path, row, key, all.data == NULL ? "" : all.data, c);
    text_free(&all);
    return status;
}

/* Of a row that knows the words which may stand there, and does not say that they are in a list. */
static lh_status_t config_refuse_list(const char *path, const lh_hf_key_t *row, const char *key,
                                      const json_value_t *list)
{
    char has[JSON_FOUND];
    json_found(list, has);
    if (row->option != NULL)
        return fail(LH_INVALID,
                    "%s: %s is %s, and its row reads one value; of a list the row's key is %s[]",
                    path, key, has, key);
    return fail(LH_INVALID,
                "%s: %s is %s, and its row reads one value; of a list the row's key is %s[], in "
                "[spec.config.fixed] %s = [%s]",
                path, key, has, key, key, row->fixed == NULL ? "..." : row->fixed);
}

/* A row may have places in two objects, as rope_parameters and rope_scaling: Transformers goes by the
 * second where both are there, so they must say the same. */
static lh_status_t check_two_objects(const char *path, const json_value_t *root, const char *key,
                                     const hf_alternative_t *found, const json_value_t *value)
{
    const size_t length = strcspn(found->path, ".");
    hf_alternative_t other;
    text_t one = {0}, two = {0};
    lh_status_t status = LH_OK;
    while (found->path[length] == '.' && hf_next_place(&key, &other)) {
        const json_value_t *second = hf_value_find(root, other.path);
        if (second == NULL || strchr(other.path, '.') == NULL || other.by_being[0] != '\0' ||
            strncmp(found->path, other.path, length + 1) == 0)
            continue;
        const bool said = hf_value_text(value, &one) && hf_value_text(second, &two);
        status = text_status(&one);
        if (status == LH_OK) status = text_status(&two);
        if (status == LH_OK && said && !hf_same_value(one.data, two.data))
            status = fail(LH_UNSUPPORTED,
                          "%s: %s is %s and %s is %s; expected one of them, or the same in both",
                          path, found->path, one.data, other.path, two.data);
        break;
    }
    text_free(&one);
    text_free(&two);
    return status;
}

/* One row: whether it holds, where its value stands, what kind of value it is, and what that
 * means. */
static lh_status_t read_config_row(const hf_table_t *t, const char *path, const json_value_t *root,
                                   const lh_hf_key_t *row, hf_config_t *c)
{
    hf_alternative_t found;
    lh_status_t status = check_row_places(path, root, row->key);
    if (status != LH_OK || !config_holds(row->when, read_option, c)) return status;
    const json_value_t *value = find_value(root, row->key, &found);
    if (value == NULL && row->null != NULL && says_null(root, row->key))
        return read_value(path, row, row->key, row->null, c);
    if (value == NULL) return read_absent(t, path, row, c);
    status = check_two_objects(path, root, row->key, &found, value);
    if (status != LH_OK) return status;
    /* Known, and nothing that this host goes by. */
    if (text_equal(row->fixed, "*") && row->option == NULL) return LH_OK;
    if (found.by_being[0] != '\0') return read_value(path, row, found.path, found.by_being, c);
    if (found.list) return read_words(path, row, found.path, value, c);
    if (json_is_list(value) && (row->option == NULL || row->words != NULL))
        return config_refuse_list(path, row, found.path, value);

    text_t text = {0};
    status = read_word(path, row, found.path, value, &text);
    if (status == LH_OK)
        status = read_value(path, row, found.path, text.data == NULL ? "" : text.data, c);
    text_free(&text);
    return status;
}

/* The row that says how many blocks there are, if any. */
static const lh_hf_key_t *blocks_row(const hf_table_t *t, const hf_config_t *c)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (text_equal(t->keys[i].option, HF_BLOCKS) &&
            config_holds(t->keys[i].when, read_option, (void *)c))
            return &t->keys[i];
    return NULL;
}

/* A list has an item for each block. Of another length it is another model's: cut off, or begun
 * again, it would give some blocks what the file does not say. Looked at once all rows are read, as
 * the number may stand behind the list. */
static lh_status_t check_lists(const hf_table_t *t, const char *path, const json_value_t *root,
                               const hf_config_t *c)
{
    const lh_hf_key_t *row = blocks_row(t, c);
    const char *value = row == NULL ? NULL : hf_config_option(c, HF_BLOCKS);
    uint64_t blocks;
    if (value == NULL || !quantity_u64(value, &blocks)) return LH_OK;
    for (uint32_t i = 0; i < t->count; i++) {
        hf_alternative_t found;
        if (!config_holds(t->keys[i].when, read_option, (void *)c)) continue;
        const json_value_t *list = find_value(root, t->keys[i].key, &found);
        if (list == NULL || !found.list || json_size(list) == blocks) continue;
        return fail(LH_INVALID, "%s: %s has %zu items, one for each of %s = %llu was expected",
                    path, found.path, (size_t)json_size(list), row->key,
                    (unsigned long long)blocks);
    }
    return LH_OK;
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
    const json_value_t *causal = hf_value_find(root, "is_causal");
    if (json_is_flag(causal) && !json_is_yes(causal))
        return fail(LH_UNSUPPORTED, "%s: is_causal is false, expected true", path);
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
        status = read_config_row(&t, path, root, &t.keys[i], &c);
    if (status == LH_OK) status = check_lists(&t, path, root, &c);
    if (status == LH_OK) status = read_token_id(path, root, "bos_token_id", &c.bos);
    if (status == LH_OK) status = read_token_id(path, root, "eos_token_id", &c.eos);
    if (status == LH_OK) {
        hf_unread(&t, root, &c.unread);
        status = text_status(&c.unread);
    }
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
    text_free(&c->unread);
    *c = (hf_config_t){.bos = -1, .eos = -1};
}

void hf_config_text(const hf_config_t *c, text_t *out)
{
    for (uint32_t i = 0; i < c->count; i++)
        text_printf(out, "%s = %s\n", c->options[i].key, c->options[i].value);
}

/* Leaves a value that says the same in other words (1e-05, 10000.0) as it is. */
static lh_status_t config_put(hf_value_edits_t *edits, const char *path, const char *value)
{
    /* What stands there now, in the words of an INI, is compared with what the option says. */
    const json_value_t *old = hf_value_at(edits->root, path);
    text_t text = {0}, json = {0};
    if (json_is_nil(old) && strcmp(value, "null") == 0) return LH_OK;
    const bool written = old != NULL && hf_value_text(old, &text);
    lh_status_t status = text_status(&text);
    const bool same = written && status == LH_OK &&
                      hf_same_value(text.data == NULL ? "" : text.data, value);
    text_free(&text);
    if (status != LH_OK || same) return status;
    hf_value_json(value, &json);
    status = text_status(&json);
    if (status == LH_OK) status = hf_value_put(edits, path, json.data);
    text_free(&json);
    return status;
}

/* A list with a word for each block, of an option that names them by letters; fewer letters than
 * blocks begin again. A list that says so already is left alone. */
static lh_status_t config_put_list(hf_value_edits_t *edits, const char *path, const char *words,
                                   const char *letters, uint32_t blocks)
{
    const json_value_t *old = hf_value_at(edits->root, path);
    const size_t count = strlen(letters), items = blocks == 0 ? count : blocks;
    bool same = json_is_list(old) && json_size(old) == items;
    text_t list = {0};
    json_writer_t w = {.to = &list};
    if (count == 0) return LH_OK;
    text_append(&list, "[\n    "); /* as deep as it will lie */
    for (size_t i = 0; i < items; i++) {
        const char letter[2] = {letters[i % count], '\0'};
        char word[HF_WORD] = "";
        (void)other_word(words, letter, true, word);
        if (i > 0) text_append(&list, ",\n    ");
        json_put_text(&w, NULL, word);
        same = same && text_equal(json_text(json_item(old, i)), word);
    }
    text_append(&list, "\n  ]");
    lh_status_t status = text_status(&list);
    if (status == LH_OK && !same) status = hf_value_put(edits, path, list.data);
    text_free(&list);
    return status;
}

/* A row without an option is written into a new file only, as what it fixes stands in an imported
 * one. */
static lh_status_t write_fixed(const lh_hf_key_t *row, bool made_anew, hf_value_edits_t *edits)
{
    hf_alternative_t a, value;
    const char *at = row->key, *fixed = row->fixed;
    const bool wanted = made_anew && fixed != NULL && strcmp(fixed, "*") != 0 &&
                        strchr(row->key, '.') == NULL;
    if (!wanted || !hf_next_place(&at, &a) || a.list || !hf_next_alternative(&fixed, &value))
        return LH_OK;
    return config_put(edits, a.path, value.path);
}

static bool option_number(const hf_config_facts_t *facts, const char *key, uint64_t *out)
{
    const char *value = facts->option(facts->context, key);
    return value != NULL && quantity_u64(value, out);
}

/* "hidden / heads", of what these options say; one after the other, as a value may lie where the next
 * one is written. */
static lh_status_t derive_value(const hf_config_facts_t *facts, const lh_hf_key_t *row,
                                char out[24])
{
    char over[HF_WORD], under[HF_WORD];
    uint64_t a, b;
    if (sscanf(row->derived, "%127[^ /] / %127[^ /]", over, under) != 2 ||
        !option_number(facts, over, &a) || !option_number(facts, under, &b) || b == 0)
        return fail(LH_INVALID, "config.json key '%s': its option '%s' is 0, and '%s' says nothing",
                    row->key, row->option, row->derived);
    (void)snprintf(out, 24, "%llu", (unsigned long long)(a / b));
    return LH_OK;
}

/* The value of a row's option goes to the first of its places, to those that are marked to be
 * written as well, and to those where the old file has one, but for places that say something by
 * being there: what stands there is another row's. The vocabulary is as many rows as the exported
 * embedding has. */
static lh_status_t write_config_row(const hf_table_t *t, const hf_config_facts_t *facts,
                                    const lh_hf_key_t *row, bool made_anew, hf_value_edits_t *edits)
{
    hf_alternative_t a;
    const char *at = row->key;
    if (!config_holds(row->when, facts->option, facts->context)) return LH_OK;
    if (row->option == NULL) return write_fixed(row, made_anew, edits);
    char rows[24], quotient[24], word[HF_WORD];
    (void)snprintf(rows, sizeof(rows), "%llu", (unsigned long long)facts->vocab);
    const bool is_vocab = strcmp(row->option, "vocab") == 0;
    const char *value = is_vocab ? rows : facts->option(facts->context, row->option);
    if (value == NULL) return LH_OK;

    const bool is_null = row->null != NULL && hf_same_value(value, row->null);
    const bool by_option = row->fixed != NULL && hf_is_option(t, row->fixed);
    const bool by_default = row->fixed != NULL && !by_option && hf_same_value(value, row->fixed);
    /* 0 stands for "derived from others" in an INI; Transformers would take it for a size. Where it
     * stands for another option's value, that is written: to many of Transformers' classes an absent
     * num_key_value_heads is a number of their own. */
    const bool derives = !is_null && hf_same_value(value, "0");
    if (derives && by_default) return LH_OK;
    if (derives && by_option) value = facts->option(facts->context, row->fixed);
    if (value == NULL) return LH_OK;

    lh_status_t status = LH_OK;
    if (derives && row->derived != NULL) {
        status = derive_value(facts, row, quotient);
        value = quotient;
    }
    for (bool first = true; status == LH_OK && hf_next_place(&at, &a); first = false) {
        if (a.by_being[0] != '\0') continue;
        const bool dotted = strchr(a.path, '.') != NULL;
        /* A place inside of an object is made for a value only where it says more than the
         * default. */
        const bool also = a.also && (!dotted || row->when != NULL || !by_default);
        if (!first && !also && hf_value_find(edits->root, a.path) == NULL) continue;
        if (is_null)
            status = config_put(edits, a.path, "null");
        else if (a.list)
            status = config_put_list(edits, a.path, row->words, value, facts->blocks);
        else if (row->words != NULL && other_word(row->words, value, true, word))
            status = config_put(edits, a.path, word);
        else
            status = config_put(edits, a.path, value);
    }
    return status;
}

/* The option that says which of the plugin's model types a model is, by a row of the key model_type.
 * NULL: none does, so all are names of one. */
static const char *kind_option(const hf_table_t *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (strcmp(t->keys[i].key, "model_type") == 0 && t->keys[i].option != NULL)
            return t->keys[i].option;
    return NULL;
}

/* Which of the plugin's model types this model is: where an option says so, its place in the list;
 * else the first. */
static uint32_t model_type_of(const hf_table_t *t, const hf_config_facts_t *facts)
{
    const char *option = kind_option(t), *types = t->head.model_type;
    const char *kind = option == NULL ? NULL : facts->option(facts->context, option);
    hf_alternative_t type;
    for (uint32_t i = 0; kind != NULL && hf_next_alternative(&types, &type); i++)
        if (strcmp(type.path, kind) == 0) return i;
    return 0;
}

/* The alternative at a place, or the first where there are not so many. */
static bool alternative_at(const char *list, uint32_t place, hf_alternative_t *out)
{
    const char *at = list;
    for (uint32_t i = 0; hf_next_alternative(&at, out); i++)
        if (i == place) return true;
    at = list;
    return hf_next_alternative(&at, out);
}

/* Whether the old file has the model type of an older form, another name of the first. */
static bool kind_is_old(const hf_table_t *t, const json_value_t *root)
{
    const char *type = json_text(json_member(root, "model_type"));
    hf_alternative_t first;
    return type != NULL && kind_option(t) == NULL &&
           alternative_at(t->head.model_type, 0, &first) && strcmp(first.path, type) != 0;
}

/* architectures and model_type where the old file has none or those of an older form, and the dtype
 * of the weights under the name by which this file calls it: newer versions of Transformers say
 * dtype, older ones torch_dtype. Types of older forms are known to Python code that lay beside the
 * file, which is not exported: what auto_map says of it goes, too. */
static lh_status_t write_kind(const hf_table_t *t, const hf_config_facts_t *facts,
                              hf_value_edits_t *edits)
{
    hf_alternative_t type, architecture;
    const json_value_t *root = edits->root;
    const uint32_t kind = model_type_of(t, facts);
    const bool old = kind_is_old(t, root);
    lh_status_t status = LH_OK;
    if ((old || json_member(root, "architectures") == NULL) && t->head.architecture != NULL &&
        alternative_at(t->head.architecture, kind, &architecture)) {
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
    if (status == LH_OK && (old || json_member(root, "model_type") == NULL) &&
        alternative_at(t->head.model_type, kind, &type))
        status = hf_value_put_text(edits, "model_type", type.path);
    if (status == LH_OK && old) status = hf_value_drop(edits, "auto_map");
    if (status != LH_OK || facts->dtype == NULL) return status;

    const bool newer = json_member(root, "dtype") != NULL;
    if (newer) status = hf_value_put_text(edits, "dtype", facts->dtype);
    if (status == LH_OK && (!newer || json_member(root, "torch_dtype") != NULL))
        status = hf_value_put_text(edits, "torch_dtype", facts->dtype);
    return status;
}

/* A special token's id, in a config.json that is made anew. Where there is none null says so: to
 * many of Transformers' classes an absent key is an id of their own, as 2 is Llama's end. */
static lh_status_t write_token_id(hf_value_edits_t *edits, const char *key, int64_t id)
{
    char digits[24] = "null";
    if (id >= 0) (void)snprintf(digits, sizeof(digits), "%lld", (long long)id);
    return hf_value_put(edits, key, digits);
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
        status = write_config_row(&t, facts, &t.keys[i], kept == NULL, &edits);
    if (status == LH_OK && kept == NULL)
        status = write_token_id(&edits, "bos_token_id", facts->bos);
    if (status == LH_OK && kept == NULL)
        status = write_token_id(&edits, "eos_token_id", facts->eos);
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
