/* hf_config.c - walks the rows of a model's table over a config.json, once to read, once to write.
 */
#include <checkpoint/hf_config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <checkpoint/hf_table.h>
#include <checkpoint/hf_value.h>
#include <checkpoint/json_text.h>

enum { CONFIG_MOST = 16 << 20 };

/* The first alternative that is there. */
static const json_t *find_value(const json_t *root, const char *key, hf_alternative_t *found)
{
    while (hf_next_alternative(&key, found)) {
        const json_t *value = hf_value_find(root, found->path);
        if (value != NULL) return value;
    }
    return NULL;
}

/* "rope_scaling=linear|llama3" against what `option` says. */
static bool holds(const char *when, const char *(*option)(void *context, const char *key),
                  void *context)
{
    if (when == NULL) return true;
    const char *equals = strchr(when, '=');
    char name[64];
    if (equals == NULL) return false;
    (void)snprintf(name, sizeof(name), "%.*s", (int)(equals - when), when);
    const char *value = option(context, name);
    return value != NULL && hf_one_of(equals + 1, value);
}

const char *hf_config_option(const hf_config_t *c, const char *key)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (strcmp(c->options[i].key, key) == 0) return c->options[i].value;
    return NULL;
}

static const char *read_option(void *context, const char *key)
{
    return hf_config_option(context, key);
}

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

static lh_status_t read_absent(const hf_table_t *t, const char *path, const lh_hf_key_t *row,
                               hf_config_t *c)
{
    if (row->option == NULL) return LH_OK;
    if (row->fixed == NULL) return fail(LH_INVALID, "%s: %s is missing", path, row->key);
    if (!hf_is_option(t, row->fixed)) return add_option(c, row->option, row->fixed);
    const char *other = hf_config_option(c, row->fixed);
    if (other == NULL)
        return fail(LH_INVALID, "%s: %s and %s are both missing", path, row->key, row->fixed);
    return add_option(c, row->option, other);
}

static lh_status_t read_value(const char *path, const lh_hf_key_t *row, const char *where,
                              const char *text, hf_config_t *c)
{
    if (row->option != NULL) return add_option(c, row->option, text);
    if (row->fixed == NULL) {
        if (!hf_same_value(text, "0") && !hf_same_value(text, "no"))
            text_printf(&c->ignored, "%s%s = %s", c->ignored.length == 0 ? "" : ", ", where, text);
        return LH_OK;
    }
    if (hf_same_value(text, row->fixed)) return LH_OK;
    return fail(LH_UNSUPPORTED, "%s: %s is %s, this model plugin can only %s", path, where, text,
                row->fixed);
}

static lh_status_t check_places(const char *path, const json_t *root, const char *key)
{
    hf_alternative_t place;
    lh_status_t status = LH_OK;
    while (status == LH_OK && hf_next_alternative(&key, &place))
        status = hf_value_check_parents(path, root, place.path);
    return status;
}

static lh_status_t read_row(const hf_table_t *t, const char *path, const json_t *root,
                            const lh_hf_key_t *row, hf_config_t *c)
{
    hf_alternative_t found;
    lh_status_t status = check_places(path, root, row->key);
    if (status != LH_OK || !holds(row->when, read_option, c)) return status;
    const json_t *value = find_value(root, row->key, &found);
    if (value == NULL) return read_absent(t, path, row, c);

    text_t text = {0};
    if (!hf_value_text(value, &text))
        status = json_text_refuse(path, found.path, value, "a number, a text, true or false");
    else
        status = text_status(&text);
    if (status == LH_OK)
        status = read_value(path, row, found.path, text.data == NULL ? "" : text.data, c);
    text_free(&text);
    return status;
}

static bool is_token_id(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= INT32_MAX;
}

/* The first of several; -1 where the file names none. */
static lh_status_t read_token_id(const char *path, const json_t *root, const char *key,
                                 int64_t *out)
{
    static const char wanted[] = "a token id from 0 on";
    const json_t *value = hf_value_find(root, key);
    if (value == NULL) return LH_OK;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is_token_id(json_array_get(value, i)))
            return hf_value_refuse(path, key, json_array_get(value, i), wanted);
    const json_t *first = json_is_array(value) ? json_array_get(value, 0) : value;
    if (!is_token_id(first)) return hf_value_refuse(path, key, value, wanted);
    *out = json_integer_value(first);
    return LH_OK;
}

static lh_status_t check_architecture(const hf_table_t *t, const char *path, const json_t *root)
{
    const json_t *list = hf_value_find(root, "architectures");
    const char *reads = t->head.architecture;
    bool known = json_array_size(list) == 0;
    if (list != NULL && !json_is_array(list))
        return hf_value_refuse(path, "architectures", list, "a list of names");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *name = json_array_get(list, i);
        if (!json_is_string(name))
            return hf_value_refuse(path, "architectures", name, "a list of names");
        if (hf_one_of(reads, json_string_value(name))) known = true;
    }
    if (known) return LH_OK;
    return fail(LH_UNSUPPORTED, "%s: architectures is %.64s, this model plugin reads %s", path,
                json_string_value(json_array_get(list, 0)), reads);
}

static lh_status_t check_kind(const hf_table_t *t, const char *path, const json_t *root)
{
    const char *type;
    const lh_status_t status = json_text_string(path, root, "model_type", &type);
    if (status != LH_OK) return status;
    if (!hf_one_of(t->head.model_type, type))
        return fail(LH_UNSUPPORTED, "%s: model_type is %.64s, this model plugin reads %s", path,
                    type, t->head.model_type);
    if (hf_value_find(root, "quantization_config") != NULL)
        return fail(LH_UNSUPPORTED, "%s: quantization_config: quantised weights are not read",
                    path);
    return check_architecture(t, path, root);
}

lh_status_t hf_config_read(const lh_hf_t *table, const char *path, hf_config_t *out)
{
    json_t *root;
    hf_table_t t;
    hf_config_t c = {.bos = -1, .eos = -1};
    lh_status_t status = hf_table_import(table, &t);
    if (status != LH_OK) return status;
    status = json_read(path, CONFIG_MOST, UINT64_MAX, &root);
    if (status != LH_OK) goto free_table;

    status = check_kind(&t, path, root);
    c.options = mem_array(t.count, sizeof(c.options[0]));
    if (c.options == NULL) status = LH_NO_MEMORY;
    for (uint32_t i = 0; i < t.count && status == LH_OK; i++)
        status = read_row(&t, path, root, &t.keys[i], &c);
    if (status == LH_OK) status = read_token_id(path, root, "bos_token_id", &c.bos);
    if (status == LH_OK) status = read_token_id(path, root, "eos_token_id", &c.eos);
    json_decref(root);
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

static json_t *json_of(const char *text)
{
    char *end;
    if (hf_same_value(text, "yes")) return json_true();
    if (hf_same_value(text, "no")) return json_false();
    errno = 0;
    const long long whole = strtoll(text, &end, 10);
    if (*text != '\0' && *end == '\0' && errno == 0) return json_integer(whole);
    const double real = strtod(text, &end);
    if (*text != '\0' && *end == '\0' && isfinite(real)) return json_real(real);
    return json_string(text);
}

/* Leaves a value that says the same in other words (1e-05, 10000.0) as it is. */
static lh_status_t put(json_t *root, const char *path, const char *value)
{
    const json_t *old = hf_value_find(root, path);
    text_t text = {0};
    const bool written = old != NULL && hf_value_text(old, &text);
    const lh_status_t status = text_status(&text);
    const bool same = written && status == LH_OK &&
                      hf_same_value(text.data == NULL ? "" : text.data, value);
    text_free(&text);
    if (status != LH_OK || same) return status;
    return hf_value_put(root, path, json_of(value));
}

static lh_status_t write_row(const hf_table_t *t, const hf_config_facts_t *facts,
                             const lh_hf_key_t *row, bool made_anew, json_t *root)
{
    hf_alternative_t a;
    const char *at = row->key;
    if (row->option == NULL) {
        const bool wanted = made_anew && row->fixed != NULL && strchr(row->key, '.') == NULL;
        return wanted && hf_next_alternative(&at, &a) ? put(root, a.path, row->fixed) : LH_OK;
    }
    char rows[24];
    (void)snprintf(rows, sizeof(rows), "%llu", (unsigned long long)facts->vocab);
    if (!holds(row->when, facts->option, facts->context)) return LH_OK;
    const bool is_vocab = strcmp(row->option, "vocab") == 0;
    const char *value = is_vocab ? rows : facts->option(facts->context, row->option);
    if (value == NULL) return LH_OK;

    const bool by_option = row->fixed != NULL && hf_is_option(t, row->fixed);
    const bool by_default = row->fixed != NULL && !by_option && hf_same_value(value, row->fixed);
    if (hf_same_value(value, "0") && (by_option || by_default)) return LH_OK; /* derived */

    lh_status_t status = LH_OK;
    for (bool first = true; status == LH_OK && hf_next_alternative(&at, &a); first = false) {
        const bool dotted = strchr(a.path, '.') != NULL;
        const bool also = a.also && (!dotted || row->when != NULL || !by_default);
        if (first || also || hf_value_find(root, a.path) != NULL) status = put(root, a.path, value);
    }
    return status;
}

static lh_status_t write_kind(const hf_table_t *t, const hf_config_facts_t *facts, json_t *root)
{
    hf_alternative_t type, architecture;
    const char *at = t->head.model_type, *architectures = t->head.architecture;
    lh_status_t status = LH_OK;
    if (json_object_get(root, "architectures") == NULL && architectures != NULL &&
        hf_next_alternative(&architectures, &architecture))
        status = hf_value_put(root, "architectures", json_pack("[s]", architecture.path));
    if (status == LH_OK && json_object_get(root, "model_type") == NULL &&
        hf_next_alternative(&at, &type))
        status = hf_value_put(root, "model_type", json_string(type.path));
    if (status != LH_OK || facts->dtype == NULL) return status;

    const bool newer = json_object_get(root, "dtype") != NULL;
    if (newer) status = hf_value_put(root, "dtype", json_string(facts->dtype));
    if (status == LH_OK && (!newer || json_object_get(root, "torch_dtype") != NULL))
        status = hf_value_put(root, "torch_dtype", json_string(facts->dtype));
    return status;
}

lh_status_t hf_config_write(const lh_hf_t *table, const hf_config_facts_t *facts, text_t *out)
{
    hf_table_t t;
    json_t *root = NULL;
    lh_status_t status = hf_table_import(table, &t);
    if (status != LH_OK) return status;
    if (facts->kept != NULL)
        status = json_read(facts->kept, CONFIG_MOST, UINT64_MAX, &root);
    else
        root = json_object();
    if (status == LH_OK && root == NULL) status = fail(LH_NO_MEMORY, "out of memory");
    if (status != LH_OK) goto free_table;

    status = write_kind(&t, facts, root);
    for (uint32_t i = 0; i < t.count && status == LH_OK; i++)
        status = write_row(&t, facts, &t.keys[i], facts->kept == NULL, root);
    if (status == LH_OK && facts->kept == NULL && facts->bos >= 0)
        status = hf_value_put(root, "bos_token_id", json_integer(facts->bos));
    if (status == LH_OK && facts->kept == NULL && facts->eos >= 0)
        status = hf_value_put(root, "eos_token_id", json_integer(facts->eos));
    if (status == LH_OK) {
        json_text_append(out, root, 0);
        text_append(out, "\n");
        status = text_status(out);
    }
    json_decref(root);
free_table:
    hf_table_free(&t);
    return status;
}
