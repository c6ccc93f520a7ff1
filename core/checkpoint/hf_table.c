/* hf_table.c - reads the rows of a model plugin's config.json table. */
#include <checkpoint/hf_table.h>

#include <stdio.h>

#include <base/memory.h>
#include <base/text.h>
#include <config/quantity.h>
#include <plugin/abi.h>

enum { KEYS_MOST = 1024 };

lh_status_t hf_table_import(const lh_hf_t *plugin, hf_table_t *out)
{
    hf_table_t t = {0};
    const char *what = "the model's table of config.json keys";
    lh_status_t status = abi_import(&t.head, sizeof(t.head), plugin, offsetof_end_(plugin, keys),
                                    ABI_MAX_STRUCT, what);
    if (status != LH_OK) return status;
    if (t.head.key_count > KEYS_MOST || t.head.model_type == NULL)
        return fail(LH_INVALID, "%s: %u rows of %s", what, t.head.key_count,
                    t.head.model_type == NULL ? "no model_type" : t.head.model_type);
    t.count = t.head.key_count;
    t.keys = mem_array(t.count, sizeof(t.keys[0]));
    if (t.keys == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < t.count && status == LH_OK; i++) {
        status = abi_import_row(&t.keys[i], sizeof(t.keys[i]), t.head.keys, t.head.key_size, i,
                                offsetof(lh_hf_key_t, when), what);
        if (status == LH_OK && t.keys[i].key == NULL)
            status = fail(LH_INVALID, "%s: row %u has no key", what, i);
    }
    if (status != LH_OK) {
        mem_free(t.keys);
        return status;
    }
    *out = t;
    return LH_OK;
}

void hf_table_free(hf_table_t *t)
{
    mem_free(t->keys);
    *t = (hf_table_t){0};
}

bool hf_next_alternative(const char **at, hf_alternative_t *out)
{
    const char *text = *at;
    if (*text == '\0') return false;
    const size_t length = strcspn(text, "|");
    *at = text + length + (text[length] == '|');
    out->also = *text == '+';
    const int plus = out->also;
    (void)snprintf(out->path, sizeof(out->path), "%.*s", (int)length - plus, text + plus);
    return true;
}

bool hf_one_of(const char *alternatives, const char *value)
{
    hf_alternative_t a;
    while (hf_next_alternative(&alternatives, &a))
        if (strcmp(a.path, value) == 0) return true;
    return false;
}

static const char *plain(const char *value)
{
    if (strcmp(value, "true") == 0) return "yes";
    return strcmp(value, "false") == 0 ? "no" : value;
}

bool hf_same_value(const char *a, const char *b)
{
    double x, y;
    if (quantity_f64(a, &x) && quantity_f64(b, &y)) return x == y;
    return strcmp(plain(a), plain(b)) == 0;
}

bool hf_is_option(const hf_table_t *t, const char *name)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (text_equal(t->keys[i].option, name)) return true;
    return false;
}
