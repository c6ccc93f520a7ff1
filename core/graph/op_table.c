/* op_table.c - rows by name: the core's groups, then those of plugins, each checked once. */
#include <graph/op_table.h>

#include <stdio.h>

#include <base/digest.h>
#include <base/memory.h>
#include <graph/op_rows.h>
#include <graph/op_slots.h>
#include <plugin/abi.h>

enum { NAME_LIMIT = 64, ATTRIBUTES_LIMIT = 4096 };

struct op_table {
    op_t **ops; /* each allocated alone: recordings hold on to them */
    uint32_t count;
    size_t capacity;
    uint32_t *buckets;     /* index + 1; 0: empty; open addressing */
    uint32_t bucket_count; /* a power of two, at least twice count */
};

static const op_rows_t *const core_rows[] = {
    &ops_linear, &ops_embed,  &ops_norm,  &ops_attention,  &ops_element,
    &ops_loss,   &ops_update, &ops_cache, &ops_collective,
};

static uint32_t bucket_of(const op_table_t *t, const char *name)
{
    uint32_t at = (uint32_t)xxh3(name, strlen(name)) & (t->bucket_count - 1);
    while (t->buckets[at] != 0 && strcmp(t->ops[t->buckets[at] - 1]->row.name, name) != 0)
        at = (at + 1) & (t->bucket_count - 1);
    return at;
}

static lh_status_t make_room(op_table_t *t)
{
    op_t **ops = mem_grow(t->ops, &t->capacity, (size_t)t->count + 1, sizeof(op_t *));
    if (ops == NULL) return LH_NO_MEMORY;
    t->ops = ops;
    if (2 * (t->count + 1) <= t->bucket_count) return LH_OK;

    const uint32_t more = t->bucket_count == 0 ? 128 : 2 * t->bucket_count;
    uint32_t *buckets = mem_array(more, sizeof(uint32_t));
    if (buckets == NULL) return LH_NO_MEMORY;
    mem_free(t->buckets);
    t->buckets = buckets;
    t->bucket_count = more;
    for (uint32_t i = 0; i < t->count; i++)
        t->buckets[bucket_of(t, t->ops[i]->row.name)] = i + 1;
    return LH_OK;
}

static lh_status_t check_name(const char *name, bool core)
{
    const size_t length = strlen(name);
    const size_t fine = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.");
    if (length == 0 || length >= NAME_LIMIT || fine != length)
        return fail(LH_INVALID, "'%.64s' is no op's name, expected at most %d of a-z 0-9 _ .", name,
                    NAME_LIMIT - 1);
    if (core == (strchr(name, '.') != NULL))
        return fail(LH_INVALID, "op %s: a plugin's name has a dot, the core's have none", name);
    return LH_OK;
}

/* Attributes are compared and copied by their bytes, so none may be a pointer. */
static lh_status_t check_attributes(const lh_op_t *row)
{
    if (row->attributes_bytes == 0 && row->attribute_count == 0) return LH_OK;
    if (row->attributes_bytes < sizeof(uint32_t) || row->attributes_bytes > ATTRIBUTES_LIMIT)
        return fail(LH_INVALID, "op %s has attributes of %u bytes, expected 4 to %d", row->name,
                    row->attributes_bytes, ATTRIBUTES_LIMIT);
    for (uint32_t i = 0; i < row->attribute_count; i++) {
        lh_option_t option;
        const lh_status_t status = abi_import_row(&option, sizeof(option), row->attributes,
                                                  row->attribute_size, i, sizeof(option),
                                                  row->name);
        if (status != LH_OK) return status;
        if (option.key == NULL || option.offset >= row->attributes_bytes)
            return fail(LH_INVALID, "op %s: attribute %u has no key or lies outside its struct",
                        row->name, i);
        if (option.type == LH_OPT_STRING || option.type == LH_OPT_PATH)
            return fail(LH_INVALID, "op %s: attribute '%s' is text, expected a number", row->name,
                        option.key);
    }
    return LH_OK;
}

static lh_status_t check_row(const op_table_t *t, const lh_op_t *row, bool core)
{
    if (row->name == NULL || row->slots == NULL || row->shape == NULL)
        return fail(LH_INVALID, "op %s lacks its %s", row->name == NULL ? "?" : row->name,
                    row->name == NULL    ? "name"
                    : row->slots == NULL ? "slots"
                                         : "shape()");
    lh_status_t status = check_name(row->name, core);
    if (status != LH_OK) return status;
    const op_t *other = op_table_find(t, row->name);
    if (other != NULL)
        return fail(LH_INVALID, "op %s is already %s%s", row->name,
                    other->plugin == NULL ? "the core's" : "brought by plugin ",
                    other->plugin == NULL ? "" : other->plugin);
    return check_attributes(row);
}

static lh_status_t add_row(op_table_t *t, const lh_op_t *row, const char *plugin)
{
    lh_status_t status = check_row(t, row, plugin == NULL);
    if (status == LH_OK) status = make_room(t);
    if (status != LH_OK) return status;

    op_t *op = mem_new(sizeof(*op));
    if (op == NULL) return LH_NO_MEMORY;
    op->row = *row;
    op->index = t->count;
    op->plugin = plugin;
    status = op_slots_parse(op);
    if (status != LH_OK) {
        mem_free(op);
        return status;
    }
    t->buckets[bucket_of(t, row->name)] = t->count + 1;
    t->ops[t->count++] = op;
    return LH_OK;
}

lh_status_t op_table_add(op_table_t *t, const lh_op_t *rows, uint32_t row_size, uint32_t count,
                         const char *plugin)
{
    char what[96];
    (void)snprintf(what, sizeof(what), "ops of plugin %.64s", plugin);
    for (uint32_t i = 0; i < count; i++) {
        lh_op_t row;
        lh_status_t status = abi_import_row(&row, sizeof(row), rows, row_size, i,
                                            offsetof(lh_op_t, cost), what);
        if (status == LH_OK) status = add_row(t, &row, plugin);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

lh_status_t op_table_new(op_table_t **out)
{
    op_table_t *t = mem_new(sizeof(*t));
    if (t == NULL) return LH_NO_MEMORY;
    for (uint32_t g = 0; g < COUNT(core_rows); g++)
        for (uint32_t i = 0; i < core_rows[g]->count; i++) {
            const lh_status_t status = add_row(t, &core_rows[g]->rows[i], NULL);
            if (status == LH_OK) continue;
            op_table_free(t);
            return status;
        }
    *out = t;
    return LH_OK;
}

void op_table_free(op_table_t *t)
{
    if (t == NULL) return;
    for (uint32_t i = 0; i < t->count; i++)
        mem_free(t->ops[i]);
    mem_free(t->ops);
    mem_free(t->buckets);
    mem_free(t);
}

const op_t *op_table_find(const op_table_t *t, const char *name)
{
    if (t->bucket_count == 0) return NULL;
    const uint32_t index = t->buckets[bucket_of(t, name)];
    return index == 0 ? NULL : t->ops[index - 1];
}

uint32_t op_table_count(const op_table_t *t)
{
    return t->count;
}

const op_t *op_table_at(const op_table_t *t, uint32_t index)
{
    return t->ops[index];
}

uint32_t op_slot(const op_t *op, const char *name)
{
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++)
        if (strcmp(op->slot_name[s], name) == 0) return s;
    return OP_SLOTS;
}
