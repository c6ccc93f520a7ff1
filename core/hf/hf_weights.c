/* hf_weights.c - expands the rows' Hugging Face names over blocks, and reads the rows of a model
 * plugin's table.
 *
 * Tensors are collected by sorting the names: parameters of one tensor then stand side by side.
 * Whether the parameters of a tensor fill it is checked by counting elements; that their parts do
 * not overlap is up to the functions that the plugin names. */
#include <hf/hf_weights.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/text.h>
#include <config/quantity.h>
#include <plugin/import.h>

/* What stands for the number of a block and of an expert in a Hugging Face name. */
#define BLOCK "{}"
#define EXPERT "{e}"

/* Experts that a parameter may have: real ones have some hundreds. */
enum { EXPERTS_MOST = 1 << 16 };

/* The pattern with the block's number for each {} and the expert's for each {e}. The caller frees
 * it; NULL: no memory. */
static char *tensor_name(const char *pattern, uint32_t block, uint32_t expert)
{
    text_t name = {0};
    for (const char *at = pattern; *at != '\0';) {
        if (text_starts(at, BLOCK)) {
            text_printf(&name, "%u", block);
            at += strlen(BLOCK);
        } else if (text_starts(at, EXPERT)) {
            text_printf(&name, "%u", expert);
            at += strlen(EXPERT);
        } else {
            text_append_n(&name, at++, 1);
        }
    }
    if (text_status(&name) == LH_OK && name.data != NULL) return name.data;
    text_free(&name);
    return NULL;
}

/* By name, then by parameter and expert, so that the order does not depend on qsort. */
static int by_tensor(const void *a, const void *b)
{
    const hf_user_t *x = a, *y = b;
    const int order = strcmp(x->tensor, y->tensor);
    if (order != 0) return order;
    if (x->parameter != y->parameter) return x->parameter < y->parameter ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

/* In how many tensors a parameter lies: one, or one for each expert. */
static lh_status_t parameter_tensor_count(const parameter_t *item, uint32_t *out)
{
    *out = 1;
    if (item->row->hf_name == NULL || strstr(item->row->hf_name, EXPERT) == NULL) return LH_OK;
    if (item->rank != 3 || item->shape[0] > EXPERTS_MOST)
        return fail(LH_INVALID,
                    "parameter %s has " EXPERT " in its Hugging Face name and %u dimensions; "
                    "3 are expected, the first of up to %d experts",
                    item->name, item->rank, EXPERTS_MOST);
    *out = (uint32_t)item->shape[0];
    return LH_OK;
}

/* A name for each tensor in which a parameter lies. A tied one has no tensor of its own; its name is
 * noted apart, as some files hold a copy under it. */
static lh_status_t list_users(const parameters_t *p, uint32_t which, hf_weights_t *w)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t count;
        const lh_status_t status = parameter_tensor_count(&p->items[i], &count);
        if (status != LH_OK) return status;
        all += count;
    }
    if (all >= UINT32_MAX) return LH_NO_MEMORY;
    w->users = mem_array((size_t)all, sizeof(w->users[0]));
    w->tied = mem_array((size_t)all, sizeof(w->tied[0]));
    if (w->users == NULL || w->tied == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < p->count; i++) {
        const parameter_t *item = &p->items[i];
        uint32_t count;
        if ((which & (item->factor ? HF_OF_ADAPTER : HF_OF_MODEL)) == 0) continue;
        /* Its memory is another parameter's. */
        const bool tied = item->storage != i;
        if (item->row->hf_name == NULL && tied) continue;
        if (item->row->hf_name == NULL && item->factor)
            return fail(
                LH_UNSUPPORTED,
                "parameter %s has no PEFT name: its matrix is no tensor of its own in Hugging "
                "Face's files; use [export] adapter = merged",
                item->name);
        if (item->row->hf_name == NULL)
            return fail(LH_UNSUPPORTED, "parameter %s has no Hugging Face name", item->name);
        const bool experts = strstr(item->row->hf_name, EXPERT) != NULL;
        const lh_status_t status = parameter_tensor_count(item, &count);
        if (status != LH_OK) return status;
        for (uint32_t e = 0; e < count; e++) {
            char *name = tensor_name(item->row->hf_name, item->block, e);
            if (name == NULL) return LH_NO_MEMORY;
            const hf_user_t user = {name, i, experts ? e : HF_NO_EXPERT};
            if (tied)
                w->tied[w->tied_count++] = user;
            else
                w->users[w->user_count++] = user;
        }
    }
    lh_assert(w->user_count + w->tied_count <= all);
    if (w->user_count > 0) qsort(w->users, w->user_count, sizeof(w->users[0]), by_tensor);
    return LH_OK;
}

uint32_t hf_user_shape(const parameters_t *parameters, const hf_user_t *user,
                       uint64_t shape[LH_MAX_RANK], uint64_t *elements)
{
    const parameter_t *item = &parameters->items[user->parameter];
    const uint32_t skipped = user->expert == HF_NO_EXPERT ? 0 : 1;
    lh_assert(item->rank > skipped);
    memset(shape, 0, LH_MAX_RANK * sizeof(shape[0]));
    memcpy(shape, item->shape + skipped, (item->rank - skipped) * sizeof(shape[0]));
    *elements = skipped == 0 ? item->elements : item->elements / item->shape[0];
    return item->rank - skipped;
}

/* The shape that the row says the tensor has, or the parameter's own. Elements are bounded so that
 * eight bytes for each still fit an int64_t. */
static lh_status_t tensor_shape(const parameters_t *p, const hf_user_t *user, hf_tensor_t *t)
{
    const parameter_t *item = &p->items[user->parameter];
    uint64_t own[LH_MAX_RANK], elements;
    (void)hf_user_shape(p, user, own, &elements);
    const uint64_t *shape = item->row->hf_shape[0] != 0 ? item->row->hf_shape : own;
    t->elements = 1;
    for (t->rank = 0; t->rank < 3 && shape[t->rank] != 0; t->rank++) {
        t->shape[t->rank] = shape[t->rank];
        if (!checked_mul(t->elements, shape[t->rank], &t->elements) || t->elements > INT64_MAX / 8)
            return fail(LH_INVALID, "tensor %s has too many elements", t->name);
    }
    return LH_OK;
}

/* Whether two parameters of a tensor are one row's, of two blocks, because its name has no {}. */
static bool is_of_all_blocks(const parameters_t *p, const hf_tensor_t *t)
{
    const parameter_t *first = &p->items[t->users[0].parameter];
    return t->user_count > 1 && strstr(first->row->hf_name, BLOCK) == NULL &&
           p->items[t->users[1].parameter].row == first->row;
}

/* A parameter that is not the whole tensor, and does not say how it is taken out: what makes it a
 * part is most often a slip in a name. */
static lh_status_t refuse_part(const parameters_t *p, const hf_tensor_t *t, uint32_t user)
{
    const parameter_t *item = &p->items[t->users[user].parameter];
    if (t->user_count == 1)
        return fail(LH_INVALID, "parameter %s has the hf_shape of tensor %s and no hf_import",
                    item->name, t->name);
    const char *other = p->items[t->users[user == 0 ? 1 : 0].parameter].name;
    if (is_of_all_blocks(p, t))
        return fail(LH_INVALID,
                    "parameter %s is tensor %s, and so is %s: its Hugging Face name has no " BLOCK
                    " for the block's number",
                    item->name, t->name, other);
    return fail(LH_INVALID,
                "parameter %s is part of tensor %s, also named by %s, and has no hf_import",
                item->name, t->name, other);
}

/* The parameters of a tensor agree on its shape and have as many elements as it has. One that is a
 * part, or of another shape, must say how it is taken out. */
static lh_status_t check_tensor(const parameters_t *p, const hf_tensor_t *t)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < t->user_count; i++) {
        const parameter_t *item = &p->items[t->users[i].parameter];
        hf_tensor_t own = {.name = t->name};
        const lh_status_t status = tensor_shape(p, &t->users[i], &own);
        uint64_t shape[LH_MAX_RANK], elements;
        (void)hf_user_shape(p, &t->users[i], shape, &elements);
        if (status != LH_OK) return status;
        if (own.rank != t->rank || memcmp(own.shape, t->shape, sizeof(own.shape)) != 0)
            return fail(LH_INVALID, "parameters %s and %s want tensor %s in different shapes",
                        p->items[t->users[0].parameter].name, item->name, t->name);
        if (item->row->hf_import == NULL && (t->user_count > 1 || item->row->hf_shape[0] != 0))
            return refuse_part(p, t, i);
        if ((item->row->hf_import == NULL) != (item->row->hf_export == NULL))
            return fail(LH_INVALID, "parameter %s has only one of hf_import and hf_export",
                        item->name);
        held += elements;
    }
    /* Parts that overlap and leave a hole of the same size are not found out here. */
    if (held == t->elements) return LH_OK;
    return fail(LH_INVALID, "tensor %s has %llu elements, its parameters %llu%s", t->name,
                (unsigned long long)t->elements, (unsigned long long)held,
                is_of_all_blocks(p, t) ? ": their Hugging Face name has no " BLOCK
                                         " for the block's number"
                                       : "");
}

/* Sorted users become tensors in one pass: a user with the name of the last tensor belongs to
 * it. */
lh_status_t hf_weights_new(const parameters_t *parameters, uint32_t which, hf_weights_t *out)
{
    hf_weights_t w = {0};
    lh_status_t status = list_users(parameters, which, &w);
    if (status != LH_OK) goto free_all;
    w.tensors = mem_array(w.user_count, sizeof(w.tensors[0]));
    if (w.tensors == NULL) {
        status = LH_NO_MEMORY;
        goto free_all;
    }
    for (uint32_t i = 0; i < w.user_count && status == LH_OK; i++) {
        /* The users of a tensor stand side by side, and users points to the first of them. */
        hf_tensor_t *last = w.count == 0 ? NULL : &w.tensors[w.count - 1];
        if (last != NULL && strcmp(last->name, w.users[i].tensor) == 0) {
            last->user_count++;
            continue;
        }
        hf_tensor_t *t = &w.tensors[w.count++];
        *t = (hf_tensor_t){.name = w.users[i].tensor, .users = &w.users[i], .user_count = 1};
        status = tensor_shape(parameters, &w.users[i], t);
    }
    lh_assert(w.count <= w.user_count);
    for (uint32_t i = 0; i < w.count && status == LH_OK; i++)
        status = check_tensor(parameters, &w.tensors[i]);
    if (status != LH_OK) goto free_all;
    *out = w;
    return LH_OK;

free_all:
    hf_weights_free(&w);
    return status;
}

void hf_weights_free(hf_weights_t *w)
{
    for (uint32_t i = 0; i < w->user_count; i++)
        mem_free(w->users[i].tensor);
    for (uint32_t i = 0; i < w->tied_count; i++)
        mem_free(w->tied[i].tensor);
    mem_free(w->users);
    mem_free(w->tied);
    mem_free(w->tensors);
    *w = (hf_weights_t){0};
}

void hf_shape_text(uint32_t rank, const uint64_t *shape, char out[HF_SHAPE_TEXT])
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < rank && at + 24 < HF_SHAPE_TEXT; i++)
        at += (size_t)snprintf(out + at, HF_SHAPE_TEXT - at, "%s%llu", i == 0 ? "[" : ", ",
                               (unsigned long long)shape[i]);
    (void)snprintf(out + at, HF_SHAPE_TEXT - at, rank == 0 ? "[]" : "]");
}

/* Rows of a plugin's table; real ones have some dozens. */
enum { KEYS_MOST = 1024 };

/* Each row is copied by the size that the plugin was built with, so that rows may grow in later
 * versions. */
lh_status_t hf_table_import(const lh_hf_t *plugin, hf_table_t *out)
{
    hf_table_t t = {0};
    const char *what = "the model's table of config.json keys";
    lh_status_t status = import_struct(&t.head, sizeof(t.head), plugin, offsetof_end_(plugin, keys),
                                       IMPORT_MAX_STRUCT, what);
    if (status != LH_OK) return status;
    if (t.head.key_count > KEYS_MOST || t.head.model_type == NULL)
        return fail(LH_INVALID, "%s: %u rows of %s", what, t.head.key_count,
                    t.head.model_type == NULL ? "no model_type" : t.head.model_type);
    t.count = t.head.key_count;
    t.keys = mem_array(t.count, sizeof(t.keys[0]));
    if (t.keys == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < t.count && status == LH_OK; i++) {
        status = import_row(&t.keys[i], sizeof(t.keys[i]), t.head.keys, t.head.key_size, i,
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

/* *at moves behind what was cut off. */
bool hf_next_alternative(const char **at, hf_alternative_t *out)
{
    const char *text = *at;
    if (*text == '\0') return false;
    const size_t length = strcspn(text, "|");
    *at = text + length + (text[length] == '|');
    out->also = *text == '+';
    const int plus = out->also;
    const int own = (int)length - plus;
    out->list = own >= 2 && strncmp(text + length - 2, "[]", 2) == 0;
    (void)snprintf(out->path, sizeof(out->path), "%.*s", own - (out->list ? 2 : 0), text + plus);
    out->by_being[0] = '\0';
    return true;
}

bool hf_next_place(const char **at, hf_alternative_t *out)
{
    if (!hf_next_alternative(at, out)) return false;
    char *equals = strchr(out->path, '=');
    if (equals == NULL) return true;
    (void)snprintf(out->by_being, sizeof(out->by_being), "%s", equals + 1);
    *equals = '\0';
    return true;
}

bool hf_one_of(const char *alternatives, const char *value)
{
    hf_alternative_t a;
    while (hf_next_alternative(&alternatives, &a))
        if (strcmp(a.path, value) == 0) return true;
    return false;
}

/* A truth in the words of an INI. */
static const char *table_plain(const char *value)
{
    if (strcmp(value, "true") == 0) return "yes";
    return strcmp(value, "false") == 0 ? "no" : value;
}

/* 1e4 is 10000.0, and true is yes. */
bool hf_same_value(const char *a, const char *b)
{
    double x, y;
    if (quantity_f64(a, &x) && quantity_f64(b, &y)) return x == y;
    return strcmp(table_plain(a), table_plain(b)) == 0;
}

bool hf_is_option(const hf_table_t *t, const char *name)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (text_equal(t->keys[i].option, name)) return true;
    return false;
}
