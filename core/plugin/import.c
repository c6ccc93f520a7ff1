/* import.c - every table of a plugin, row by row, each checked as it comes in.
 *
 * All rows are copied, to rows of this host's size, so that the rest of the host needs to know one
 * layout only, and so that a table which the plugin changes later changes nothing here. Of the
 * texts only version and summary are copied, made harmless to a terminal; all others stay where the
 * plugin has them, and whether that is its own memory is not looked at. */
#include <plugin/import.h>

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <base/text.h>
#include <config/options.h>
#include <longhaul/dtype.h>

/* Rows that a table may have, so that a wild count does not ask for all memory; bytes of a
 * sentence's beginning, which holds a path. */
enum { ROWS = 1 << 16, WHAT_BYTES = 700 };

#define UP_TO(T, f) (offsetof(T, f) + sizeof(((T *)0)->f))

/* A table as the plugin exports it, and what this host makes of its rows. */
typedef struct table {
    const char *what;  /* "options" */
    const void *rows;  /* in the plugin */
    uint32_t row_size; /* of the plugin's version of the row */
    uint32_t count;    /* of rows */
    size_t own_size;   /* of this host's version */
    size_t min_size;   /* up to the last field that every version has */
} table_t;

/* Two versions of one struct. A plugin that is older has a shorter struct: what is missing becomes
 * zero, which every later field takes for "not set". One that is newer has a longer one: what is
 * unknown must be zero, as a value there asks for something that this host can't give. So both
 * directions work without a list of versions, and what can't work is refused by name. */
static lh_status_t copy_known(void *dst, size_t dst_size, const void *src, size_t src_size,
                              const char *what)
{
    for (size_t i = dst_size; i < src_size; i++)
        if (((const unsigned char *)src)[i] != 0)
            return fail(LH_ABI,
                        "%s has %zu bytes and uses those behind the %zu that this host knows", what,
                        src_size, dst_size);
    memset(dst, 0, dst_size);
    memcpy(dst, src, src_size < dst_size ? src_size : dst_size);
    return LH_OK;
}

/* LH_BORDER has seen to it at the plugin's compiler that sizes are multiples of 8. */
static lh_status_t check_size(size_t size, size_t min_size, const char *what)
{
    if (size < min_size || size > IMPORT_MAX_STRUCT)
        return fail(LH_ABI, "%s has %zu bytes, expected %zu to %d", what, size, min_size,
                    IMPORT_MAX_STRUCT);
    if (size % 8 != 0) /* would cut a pointer in half */
        return fail(LH_ABI, "%s has %zu bytes, expected a multiple of 8", what, size);
    return LH_OK;
}

/* The size is read from the struct itself, once it is certain that four bytes are there. */
lh_status_t import_struct(void *dst, size_t dst_size, const void *src, size_t min_size,
                          size_t limit, const char *what)
{
    uint32_t size;
    if (limit < sizeof(size))
        return fail(LH_ABI, "%s does not lie in the plugin's own memory", what);
    memcpy(&size, src, sizeof(size));
    const lh_status_t status = check_size(size, min_size, what);
    if (status != LH_OK) return status;
    if (size > limit)
        return fail(LH_ABI, "%s has %u bytes, but only %zu are the plugin's own", what, size,
                    limit);
    return copy_known(dst, dst_size, src, size, what);
}

/* A row's place is counted by the plugin's size of it: rows may have grown since it was built. */
lh_status_t import_row(void *dst, size_t dst_size, const void *table, uint32_t row_size,
                       uint32_t index, size_t min_size, const char *what)
{
    if (table == NULL) return fail(LH_ABI, "%s is NULL", what);
    const lh_status_t status = check_size(row_size, min_size, what);
    if (status != LH_OK) return status;
    return copy_known(dst, dst_size, (const char *)table + (size_t)row_size * index, row_size,
                      what);
}

/* Zeroed memory that lives as long as the imported plugin; import_free frees all of it. */
static void *import_own(importer_t *i, size_t bytes)
{
    void **owned = mem_grow(i->owned, &i->owned_capacity, i->owned_count + 1, sizeof(*owned));
    if (owned == NULL) return NULL;
    i->owned = owned;
    void *memory = mem_new(bytes);
    if (memory != NULL) i->owned[i->owned_count++] = memory;
    return memory;
}

/* The plugin's version or summary: a copy on one line with nothing in it that a terminal obeys. */
static lh_status_t import_shown(importer_t *i, const char *text, const char **out)
{
    text_t shown = {0};
    text_append_shown(&shown, text, false);
    char *copy = shown.failed ? NULL : import_own(i, shown.length + 1);
    if (copy != NULL && shown.length > 0) memcpy(copy, shown.data, shown.length);
    text_free(&shown);
    if (copy == NULL) return LH_NO_MEMORY;
    *out = copy;
    return LH_OK;
}

/* How many bytes from p on are the plugin's own, as its file's segments say; 0 for an address
 * elsewhere. A table on the heap or in another library is refused by that: it could change or
 * go. */
static size_t import_room(const importer_t *i, const void *p)
{
    const uintptr_t address = (uintptr_t)p;
    return address < i->load_base ? 0 : (size_t)image_room(i->image, address - i->load_base);
}

/* *out gets the copied rows, NULL for a table of none. A table of NULL with rows is refused by
 * import_row, with the name of the table. */
static lh_status_t import_table(importer_t *i, const table_t *t, void **out)
{
    char what[WHAT_BYTES];
    (void)snprintf(what, sizeof(what), "%s: a row of %s", i->path, t->what);
    lh_assert(t->min_size <= t->own_size);
    *out = NULL;
    if (t->count == 0) return LH_OK;
    if (t->count > ROWS)
        return fail(LH_ABI, "%s: %u %s, expected at most %d", i->path, t->count, t->what, ROWS);
    /* Asked of the whole table at once, so that no row is read that is not the plugin's. */
    if (t->rows != NULL && (uint64_t)t->row_size * t->count > import_room(i, t->rows))
        return fail(LH_ABI, "%s: the table of %u %s does not lie in the plugin's own memory",
                    i->path, t->count, t->what);
    char *rows = import_own(i, t->own_size * t->count);
    if (rows == NULL) return LH_NO_MEMORY;
    for (uint32_t k = 0; k < t->count; k++) {
        const lh_status_t status = import_row(rows + t->own_size * k, t->own_size, t->rows,
                                              t->row_size, k, t->min_size, what);
        if (status != LH_OK) return status;
    }
    *out = rows;
    return LH_OK;
}

/* A table of rows of T; last: the last field that every version of T has. */
#define TABLE(T, last, text, p, size, n) (&(table_t){text, p, size, n, sizeof(T), UP_TO(T, last)})

/* Options of a plugin, an op or a rule; whose begins the sentence. options_validate checks defaults
 * against ranges and offsets against config_size. */
static lh_status_t import_options(importer_t *i, const char *whose, const lh_option_t *rows,
                                  uint32_t size, uint32_t count, size_t config_size,
                                  lh_option_t **out)
{
    void *copy;
    lh_status_t status = import_table(i, TABLE(lh_option_t, offset, "options", rows, size, count),
                                      &copy);
    if (status != LH_OK) return status;
    *out = copy;
    const option_table_t table = {.rows = copy,
                                  .count = copy == NULL ? 0 : count,
                                  .owner = whose,
                                  .config_size = config_size};
    return options_validate(&table);
}

/* The name of a function, an op's part, a rule or a state, as an INI can say it. */
static bool is_ini_name(const char *name)
{
    enum { MOST = 63 };
    return plugin_is_name(name, MOST);
}

/* A signature is parsed here only to refuse a wrong one: a call parses it again when it is
 * bound. */
static lh_status_t import_functions(importer_t *i)
{
    plugin_t *p = i->plugin;
    void *copy;
    const lh_status_t status = import_table(i,
                                            TABLE(lh_function_t, help, "functions",
                                                  p->row.functions, p->row.function_size,
                                                  p->row.function_count),
                                            &copy);
    if (status != LH_OK) return status;
    p->functions = copy;
    p->function_count = p->row.function_count;
    for (uint32_t k = 0; k < p->function_count; k++) {
        const lh_function_t *f = &p->functions[k];
        if (!is_ini_name(f->name))
            return fail(LH_ABI, "%s: function %u is named '%s', expected [a-z][a-z0-9_]*", i->path,
                        k, f->name != NULL ? f->name : "(none)");
        if (f->fn == NULL || f->help == NULL || f->signature == NULL)
            return fail(LH_ABI, "%s: function '%s' lacks its code, signature or help", i->path,
                        f->name);
        const char *fault = plugin_signature_parse(f->signature, NULL);
        if (fault != NULL)
            return fail(LH_ABI, "%s: function '%s' has the signature '%s': %s", i->path, f->name,
                        f->signature, fault);
        /* The INI could mean either. */
        for (uint32_t o = 0; o < k; o++)
            if (strcmp(p->functions[o].name, f->name) == 0)
                return fail(LH_ABI, "%s: function '%s' stands in the table twice", i->path,
                            f->name);
    }
    return LH_OK;
}

/* acme.swish: two names. The dot keeps ops of plugins apart from the core's. */
static bool is_op_name(const char *name)
{
    char first[64];
    const char *dot = name == NULL ? NULL : strchr(name, '.');
    if (dot == NULL || (size_t)(dot - name) >= sizeof(first)) return false;
    memcpy(first, name, (size_t)(dot - name));
    first[dot - name] = '\0';
    return is_ini_name(first) && is_ini_name(dot + 1);
}

/* Attributes are a struct that begins with struct_size, as all that crosses this border: no option
 * may lie on that. */
static lh_status_t import_op(importer_t *i, lh_op_t *op)
{
    char whose[WHAT_BYTES];
    lh_option_t *attributes;
    if (!is_op_name(op->name))
        return fail(LH_ABI, "%s: op '%s' needs a name with a dot, such as acme.swish", i->path,
                    op->name != NULL ? op->name : "(none)");
    if (op->slots == NULL || op->shape == NULL || op->cost == NULL)
        return fail(LH_ABI, "%s: op '%s' lacks slots, shape or cost", i->path, op->name);
    if (op->attribute_count != 0 && op->attributes_bytes < 8)
        return fail(LH_ABI, "%s: op '%s' has attributes in %u bytes; struct_size comes first",
                    i->path, op->name, op->attributes_bytes);
    (void)snprintf(whose, sizeof(whose), "%s: op '%s'", i->path, op->name);
    const lh_status_t status = import_options(i, whose, op->attributes, op->attribute_size,
                                              op->attribute_count, op->attributes_bytes,
                                              &attributes);
    if (status != LH_OK) return status;
    for (uint32_t k = 0; k < op->attribute_count; k++)
        if (attributes[k].offset < sizeof(uint32_t))
            return fail(LH_ABI, "%s: attribute '%s' of op '%s' lies on struct_size", i->path,
                        attributes[k].key, op->name);
    op->attributes = attributes;
    op->attribute_size = sizeof(lh_option_t);
    return LH_OK;
}

/* Only what can be known without the other plugins: whether two ops have one name, and whether a
 * gradient can be recorded, is asked when a model's table of ops is made. */
static lh_status_t import_ops(importer_t *i)
{
    plugin_t *p = i->plugin;
    void *copy;
    lh_status_t status = import_table(
        i, TABLE(lh_op_t, gradient, "ops", p->row.ops, p->row.op_size, p->row.op_count), &copy);
    if (status != LH_OK) return status;
    p->ops = copy;
    p->op_count = p->row.op_count;
    for (uint32_t k = 0; status == LH_OK && k < p->op_count; k++)
        status = import_op(i, &p->ops[k]);
    return status;
}

/* Every function of a kernel but `fits` is needed. Whether the op exists is not asked: another
 * plugin may bring it. */
static lh_status_t import_kernels(importer_t *i)
{
    plugin_t *p = i->plugin;
    void *copy;
    const lh_status_t status = import_table(i,
                                            TABLE(lh_kernel_t, release, "kernels", p->row.kernels,
                                                  p->row.kernel_size, p->row.kernel_count),
                                            &copy);
    if (status != LH_OK) return status;
    p->kernels = copy;
    p->kernel_count = p->row.kernel_count;
    for (uint32_t k = 0; k < p->kernel_count; k++) {
        const lh_kernel_t *row = &p->kernels[k];
        if (row->op == NULL || row->prepare == NULL || row->launch == NULL || row->release == NULL)
            return fail(LH_ABI, "%s: kernel %u (%s) lacks op, prepare, launch or release", i->path,
                        k, row->op != NULL ? row->op : "(none)");
        if (row->device == NULL && p->kind != LH_KIND_DEVICE)
            return fail(LH_ABI, "%s: kernel %u (%s) names no device, and this plugin is none",
                        i->path, k, row->op);
    }
    return LH_OK;
}

/* The names of a rule and of its states are arrays in their rows: they may lack their NUL. */
static lh_status_t import_rule(importer_t *i, lh_rule_t *rule)
{
    char whose[WHAT_BYTES];
    lh_option_t *options;
    void *states;
    if (memchr(rule->name, '\0', sizeof(rule->name)) == NULL || !is_ini_name(rule->name))
        return fail(LH_ABI, "%s: rule '%.31s' is no name like adamw", i->path, rule->name);
    if (rule->record == NULL || rule->help == NULL)
        return fail(LH_ABI, "%s: rule '%s' lacks record or help", i->path, rule->name);
    if (rule->grain < LH_GRAIN_ELEMENT || rule->grain > LH_GRAIN_MATRIX)
        return fail(LH_ABI, "%s: rule '%s' has grain %u, expected %d to %d", i->path, rule->name,
                    rule->grain, LH_GRAIN_ELEMENT, LH_GRAIN_MATRIX);
    if (rule->grain == LH_GRAIN_BLOCK && rule->grain_elements == 0)
        return fail(LH_ABI, "%s: rule '%s' works in blocks of 0 elements", i->path, rule->name);
    (void)snprintf(whose, sizeof(whose), "%s: rule '%s'", i->path, rule->name);
    lh_status_t status = import_options(i, whose, rule->options, rule->option_size,
                                        rule->option_count, rule->config_size, &options);
    if (status != LH_OK) return status;
    status = import_table(i,
                          TABLE(lh_rule_state_t, initial, "states", rule->states, rule->state_size,
                                rule->state_count),
                          &states);
    /* The row is ours: from here on it points to copies, of this host's sizes. */
    rule->options = options;
    rule->option_size = sizeof(lh_option_t);
    rule->states = states;
    rule->state_size = sizeof(lh_rule_state_t);
    for (uint32_t k = 0; status == LH_OK && k < rule->state_count; k++) {
        const lh_rule_state_t *s = &rule->states[k];
        if (memchr(s->name, '\0', sizeof(s->name)) == NULL || !is_ini_name(s->name))
            return fail(LH_ABI, "%s: state '%.31s' of rule '%s' is no name like exp_avg", i->path,
                        s->name, rule->name);
        /* Memory is taken by both: of no dtype it has no bytes, and kernels write there. */
        if (lh_dtype_bytes(s->dtype) == 0 || s->extent < LH_EXTENT_ELEMENT ||
            s->extent > LH_EXTENT_PARAM)
            return fail(LH_ABI, "%s: state '%s' of rule '%s' has dtype %u and extent %u", i->path,
                        s->name, rule->name, s->dtype, s->extent);
        /* Stores are told apart by it, and NaN is unlike itself. */
        if (isnan(s->initial))
            return fail(LH_ABI, "%s: state '%s' of rule '%s' begins as NaN, expected a number",
                        i->path, s->name, rule->name);
    }
    return status;
}

/* The states of a rule are a table in a table: both are copied. */
static lh_status_t import_rules(importer_t *i)
{
    plugin_t *p = i->plugin;
    void *copy;
    lh_status_t status = import_table(
        i, TABLE(lh_rule_t, record, "rules", p->row.rules, p->row.rule_size, p->row.rule_count),
        &copy);
    if (status != LH_OK) return status;
    p->rules = copy;
    p->rule_count = p->row.rule_count;
    for (uint32_t k = 0; status == LH_OK && k < p->rule_count; k++)
        status = import_rule(i, &p->rules[k]);
    return status;
}

/* Copies an optional struct behind a pointer; *out stays NULL where the pointer is. The struct says
 * its size itself, and has to lie in the plugin's own memory as far as that goes. */
static lh_status_t import_optional(importer_t *i, const char *name, const void *src,
                                   size_t own_size, size_t min_size, void **out)
{
    char what[WHAT_BYTES];
    *out = NULL;
    if (src == NULL) return LH_OK;
    (void)snprintf(what, sizeof(what), "%s: %s", i->path, name);
    void *copy = import_own(i, own_size);
    if (copy == NULL) return LH_NO_MEMORY;
    const lh_status_t status = import_struct(copy, own_size, src, min_size, import_room(i, src),
                                             what);
    if (status == LH_OK) *out = copy;
    return status;
}

/* The plugin's option of this name, or of these bytes at the beginning of a text; NULL: none. */
static const lh_option_t *find_option(const plugin_t *p, const char *name, size_t length)
{
    for (uint32_t k = 0; k < p->option_count; k++)
        if (strlen(p->options[k].key) == length && memcmp(p->options[k].key, name, length) == 0)
            return &p->options[k];
    return NULL;
}

/* Whether one of the rows before `end` sets an option of this name. */
static bool is_set_before(const lh_hf_t *hf, uint32_t end, const char *name, size_t length)
{
    for (uint32_t k = 0; k < end; k++)
        if (hf->keys[k].option != NULL && strlen(hf->keys[k].option) == length &&
            memcmp(hf->keys[k].option, name, length) == 0)
            return true;
    return false;
}

/* "hidden / heads" */
static bool is_quotient_before(const lh_hf_t *hf, uint32_t end, const char *text)
{
    const size_t over = strcspn(text, " ");
    if (strncmp(text + over, " / ", 3) != 0) return false;
    const char *under = text + over + 3;
    return is_set_before(hf, end, text, over) && is_set_before(hf, end, under, strlen(under));
}

/* A value that a row of config.json's keys has for its option is one that the option takes. */
static lh_status_t check_hf_value(const char *path, const lh_hf_key_t *row, const char *what,
                                  const char *value, const lh_option_t *option)
{
    char where[WHAT_BYTES];
    (void)snprintf(where, sizeof(where), "%s: config.json key '%s', where it is %s", path, row->key,
                   what);
    /* Rows say it as the file does. */
    if (strcmp(value, "true") == 0) value = "yes";
    if (strcmp(value, "false") == 0) value = "no";
    const lh_status_t status = option_set(option, value, where, "/", NULL);
    return status == LH_INVALID ? LH_ABI : status;
}

enum { HF_PLACE = 127 }; /* bytes of a place; hf cuts off longer ones */

/* The places of a row's key, apart from what they say. One that says something by being there is not
 * written, and the first is. */
static lh_status_t check_hf_places(const char *path, const lh_hf_key_t *row)
{
    for (const char *at = row->key; *at != '\0'; at += *at == '|') {
        const size_t length = strcspn(at, "|"), name = strcspn(at, "|=");
        if (length == 0 || length > HF_PLACE)
            return fail(LH_ABI,
                        "%s: config.json key '%.140s' has a place of %zu bytes, expected 1 to %d",
                        path, row->key, length, HF_PLACE);
        if (name < length && (at == row->key || name == (size_t)(*at == '+') || name + 1 == length))
            return fail(LH_ABI,
                        "%s: config.json key '%.140s' has a place '%.*s', expected NAME=VALUE "
                        "behind the first one",
                        path, row->key, (int)length, at);
        at += length;
    }
    return LH_OK;
}

/* What places say by being there are values that the option takes. */
static lh_status_t check_hf_presence(const char *path, const lh_hf_key_t *row,
                                     const lh_option_t *option)
{
    lh_status_t status = LH_OK;
    for (const char *at = row->key; status == LH_OK && *at != '\0'; at += *at == '|') {
        const size_t length = strcspn(at, "|"), name = strcspn(at, "|=");
        char value[HF_PLACE + 1];
        if (name < length) {
            (void)snprintf(value, sizeof(value), "%.*s", (int)(length - name - 1), at + name + 1);
            status = check_hf_value(path, row, "there", value, option);
        }
        at += length;
    }
    return status;
}

/* A row that names an option which the plugin lacks would import a wrong model: its value would go
 * nowhere. A condition asks about a row before it, as rows are read in their order. */
lh_status_t import_check_hf_key(const plugin_t *plugin, const char *path, const lh_hf_t *hf,
                                uint32_t k)
{
    const lh_hf_key_t *row = &hf->keys[k];
    if (row->key == NULL || row->key[0] == '\0')
        return fail(LH_ABI, "%s: row %u of the config.json keys has no key", path, k);
    lh_status_t status = check_hf_places(path, row);
    if (status != LH_OK) return status;
    if (row->when != NULL) {
        const size_t length = strcspn(row->when, "=");
        if (row->when[length] == '\0' || !is_set_before(hf, k, row->when, length))
            return fail(
                LH_ABI,
                "%s: config.json key '%s' asks for '%s', and no row before it sets that option",
                path, row->key, row->when);
    }
    if (row->option == NULL) return LH_OK;
    const lh_option_t *option = find_option(plugin, row->option, strlen(row->option));
    if (option == NULL)
        return fail(LH_ABI,
                    "%s: config.json key '%s' sets the option '%s', which the plugin has not", path,
                    row->key, row->option);
    if (row->derived != NULL && !is_quotient_before(hf, k, row->derived))
        return fail(LH_ABI,
                    "%s: config.json key '%s' is derived from '%s', expected the options of two "
                    "rows before it, as 'hidden / heads'",
                    path, row->key, row->derived);
    status = check_hf_presence(path, row, option);
    if (status == LH_OK && row->fixed != NULL &&
        !is_set_before(hf, k, row->fixed, strlen(row->fixed)))
        status = check_hf_value(path, row, "absent", row->fixed, option);
    if (status == LH_OK && row->null != NULL)
        status = check_hf_value(path, row, "null", row->null, option);
    return status;
}

/* How a model's options stand in a Hugging Face config.json; optional. */
static lh_status_t import_hf(importer_t *i, lh_model_api_t *model)
{
    void *copy, *keys;
    lh_status_t status = import_optional(i, "hf", model->hf, sizeof(lh_hf_t), UP_TO(lh_hf_t, keys),
                                         &copy);
    lh_hf_t *hf = copy;
    model->hf = hf;
    if (status != LH_OK || hf == NULL) return status;
    if (hf->model_type == NULL || hf->architecture == NULL)
        return fail(LH_ABI, "%s: hf lacks model_type or architecture", i->path);
    status = import_table(
        i, TABLE(lh_hf_key_t, fixed, "keys of hf", hf->keys, hf->key_size, hf->key_count), &keys);
    hf->keys = keys;
    hf->key_size = sizeof(lh_hf_key_t);
    for (uint32_t k = 0; status == LH_OK && k < hf->key_count; k++)
        status = import_check_hf_key(i->plugin, i->path, hf, k);
    return status;
}

/* A transport's collectives; optional, but whole. */
static lh_status_t import_collectives(importer_t *i, lh_transport_api_t *t)
{
    void *copy;
    const lh_status_t status = import_optional(i, "collectives", t->collectives,
                                               sizeof(lh_collective_api_t),
                                               UP_TO(lh_collective_api_t, leave), &copy);
    const lh_collective_api_t *c = copy;
    t->collectives = c;
    if (status != LH_OK || c == NULL) return status;
    if (c->offers == NULL || c->workspace == NULL || c->new_token == NULL || c->join == NULL ||
        c->test == NULL || c->enqueue == NULL || c->cancel == NULL || c->leave == NULL)
        return fail(LH_ABI, "%s: collectives lacks one of its eight functions", i->path);
    return LH_OK;
}

/* A transport's mapping of peers' memory; optional, but whole. */
static lh_status_t import_transport(importer_t *i, lh_transport_api_t *t)
{
    void *copy;
    lh_status_t status = import_collectives(i, t);
    if (status != LH_OK) return status;
    status = import_optional(i, "mapping", t->mapping, sizeof(lh_mapping_api_t),
                             UP_TO(lh_mapping_api_t, map), &copy);
    const lh_mapping_api_t *mapping = copy;
    t->mapping = mapping;
    if (status != LH_OK || mapping == NULL) return status;
    if (mapping->offer == NULL || mapping->take == NULL || mapping->forget == NULL ||
        mapping->map == NULL)
        return fail(LH_ABI, "%s: mapping lacks offer, take, forget or map", i->path);
    return LH_OK;
}

/* Exactly the api that the plugin's kind names is set: two would leave open what the plugin is, and
 * of one for another kind nothing would ever be called. */
static lh_status_t check_apis(const importer_t *i)
{
    const plugin_t *p = i->plugin;
    /* Read from the imported row: a plugin that is too old to know an api has NULL there. */
    for (uint32_t k = LH_KIND_MODEL; k <= LH_KIND_PARTS; k++) {
        const plugin_kind_t *kind = plugin_kind(k);
        const void *api;
        if (kind->field == NULL) continue;
        memcpy(&api, (const char *)&p->row + kind->pointer_at, sizeof(api));
        if (api == NULL && k == p->kind)
            return fail(LH_ABI, "%s: of kind %s, but .%s is NULL", i->path, kind->name,
                        kind->field);
        if (api != NULL && k != p->kind)
            return fail(LH_ABI, "%s: of kind %s, but .%s is set", i->path,
                        plugin_kind_text(p->kind), kind->field);
    }
    return LH_OK;
}

/* The struct of functions for the plugin's kind, and what hangs on it. */
static lh_status_t import_api(importer_t *i)
{
    plugin_t *p = i->plugin;
    const plugin_kind_t *kind = plugin_kind(p->kind);
    const void *src;
    void *api;
    lh_status_t status = check_apis(i);
    if (status != LH_OK || kind->field == NULL) return status;

    memcpy(&src, (const char *)&p->row + kind->pointer_at, sizeof(src));
    status = import_optional(i, kind->field, src, kind->api_size, kind->api_min, &api);
    if (status != LH_OK) return status;
    const char *lacks = plugin_kind_lacks(kind, api);
    if (lacks != NULL)
        return fail(LH_ABI, "%s: .%s.%s is NULL; every %s brings it", i->path, kind->field, lacks,
                    kind->name);
    /* plugin_t has a pointer for each kind, so that readers need no cast. */
    p->model = p->kind == LH_KIND_MODEL ? api : NULL;
    p->transport = p->kind == LH_KIND_TRANSPORT ? api : NULL;
    p->optimizer = p->kind == LH_KIND_OPTIMIZER ? api : NULL;
    p->device = p->kind == LH_KIND_DEVICE ? api : NULL;
    if (p->kind == LH_KIND_MODEL) return import_hf(i, api);
    return p->kind == LH_KIND_TRANSPORT ? import_transport(i, api) : LH_OK;
}

/* The plugin's struct first, whose fields say where the tables are, then table by table. The order
 * of the tables is that of the sentences: the first mistake is told. */
lh_status_t import_plugin(importer_t *i, const void *symbol)
{
    char what[WHAT_BYTES];
    plugin_t *p = i->plugin;
    lh_assert(symbol != NULL && i->owned_count == 0);
    (void)snprintf(what, sizeof(what), "%s: " LH_PLUGIN_SYMBOL, i->path);
    lh_status_t status = import_struct(&p->row, sizeof(p->row), symbol, UP_TO(lh_plugin_t, summary),
                                       import_room(i, symbol), what);
    if (status != LH_OK) return status;
    if (p->row.version == NULL || p->row.summary == NULL)
        return fail(LH_ABI, "%s: version or summary is NULL", i->path);
    p->kind = p->row.kind;
    p->name = p->row.name;
    status = import_shown(i, p->row.version, &p->version);
    if (status == LH_OK) status = import_shown(i, p->row.summary, &p->summary);
    if (status != LH_OK) return status;

    status = import_options(i, i->path, p->row.options, p->row.option_size, p->row.option_count,
                            p->row.config_size, &p->options);
    p->option_count = p->row.option_count;
    if (status == LH_OK) status = import_functions(i);
    if (status == LH_OK) status = import_ops(i);
    if (status == LH_OK) status = import_kernels(i);
    if (status == LH_OK) status = import_rules(i);
    if (status == LH_OK) status = import_api(i);
    return status;
}

/* Frees every copy that plugin_t points to. Its name lies in its row, its path and origin are the
 * registry's to free. */
void import_free(importer_t *i)
{
    for (size_t k = 0; k < i->owned_count; k++)
        mem_free(i->owned[k]);
    mem_free(i->owned);
    i->owned = NULL;
    i->owned_count = i->owned_capacity = 0;
}
