/* hf_weights.c - expands the rows' Hugging Face names over blocks, runs their transforms, and reads
 * the rows of a model plugin's table.
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

/* What stands for the number of an expert in a Hugging Face name. */
#define EXPERT "{e}"

/* Experts that a parameter may have: real ones have some hundreds. */
enum { EXPERTS_MOST = 1 << 16 };

/* The pattern with the block's number for each {} and the expert's for each {e}. The caller frees
 * it; NULL: no memory. */
static char *tensor_name(const char *pattern, uint32_t block, uint32_t expert)
{
    text_t name = {0};
    for (const char *at = pattern; *at != '\0';) {
        if (text_starts(at, "{}")) {
            text_printf(&name, "%u", block);
            at += 2;
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
static lh_status_t count_tensors(const parameter_t *item, uint32_t *out)
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
        const lh_status_t status = count_tensors(&p->items[i], &count);
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
        const lh_status_t status = count_tensors(item, &count);
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
            return fail(LH_INVALID, "parameter %s is part of tensor %s and has no hf_import",
                        item->name, t->name);
        if ((item->row->hf_import == NULL) != (item->row->hf_export == NULL))
            return fail(LH_INVALID, "parameter %s has only one of hf_import and hf_export",
                        item->name);
        held += elements;
    }
    /* Parts that overlap and leave a hole of the same size are not found out here. */
    if (held == t->elements) return LH_OK;
    return fail(LH_INVALID, "tensor %s has %llu elements, its parameters %llu", t->name,
                (unsigned long long)t->elements, (unsigned long long)held);
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

/* A tensor of the SDK over dense memory of the host. */
static lh_tensor_t weights_dense(uint32_t rank, const uint64_t *shape, float *data)
{
    lh_assert(rank <= LH_MAX_RANK);
    lh_tensor_t t = {.struct_size = sizeof(t), .dtype = LH_DTYPE_F32, .rank = rank, .data = data};
    uint64_t stride = 1;
    for (uint32_t i = rank; i > 0; i--) {
        t.shape[i - 1] = shape[i - 1];
        t.stride[i - 1] = stride;
        stride *= shape[i - 1];
    }
    t.data_bytes = stride * sizeof(float);
    return t;
}

/* Binds and runs a row's function text, such as "split_qkv(source, heads, kv_heads, 0, out)", over
 * the two tensors. The core's own functions need no name of a plugin in front. */
static lh_status_t weights_run(const hf_transform_t *how, const char *text, const char *where,
                               lh_tensor_t *source, lh_tensor_t *out)
{
    /* The two names that a text may use beside its plain arguments. */
    static const call_variable_t variables[] = {{"source", CALL_TENSOR}, {"out", CALL_TENSOR}};
    const call_scope_t scope = {.functions = weight_functions,
                                .function_count = weight_function_count,
                                .variables = variables,
                                .variable_count = 2,
                                .plugins = how->plugins,
                                .host = how->host};
    const call_value_t values[] = {{.tensor = source}, {.tensor = out}};
    call_t *call;
    lh_status_t status = call_bind(text, where, &scope, CALL_STATUS, &call);
    if (status != LH_OK) return status;
    status = call_run(call, values, NULL);
    call_free(call);
    return status;
}

/* Without a function the tensor is the parameter: the elements are the same in the same order. */
lh_status_t hf_transform_import(const hf_transform_t *how, const hf_tensor_t *tensor,
                                const hf_user_t *user, float *source, float *out)
{
    lh_assert(user->parameter < how->parameters->count);
    const parameter_t *item = &how->parameters->items[user->parameter];
    uint64_t shape[LH_MAX_RANK], elements;
    const uint32_t rank = hf_user_shape(how->parameters, user, shape, &elements);
    if (item->row->hf_import == NULL) {
        memcpy(out, source, elements * sizeof(float));
        return LH_OK;
    }
    lh_tensor_t from = weights_dense(tensor->rank, tensor->shape, source);
    lh_tensor_t to = weights_dense(rank, shape, out);
    return weights_run(how, item->row->hf_import, item->name, &from, &to);
}

lh_status_t hf_transform_export(const hf_transform_t *how, const hf_tensor_t *tensor,
                                const hf_user_t *user, float *source, float *out)
{
    lh_assert(user->parameter < how->parameters->count);
    const parameter_t *item = &how->parameters->items[user->parameter];
    uint64_t shape[LH_MAX_RANK], elements;
    const uint32_t rank = hf_user_shape(how->parameters, user, shape, &elements);
    if (item->row->hf_export == NULL) {
        memcpy(out, source, elements * sizeof(float));
        return LH_OK;
    }
    lh_tensor_t from = weights_dense(rank, shape, source);
    lh_tensor_t to = weights_dense(tensor->rank, tensor->shape, out);
    return weights_run(how, item->row->hf_export, item->name, &from, &to);
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

/* The core's own functions for weights. Parts of fused tensors are counted from 0; *_out functions
 * write only their part of `out`. A tensor is seen as rows of columns; rank 1 has one column. */
typedef struct weight { /* a tensor as rows of columns; rank 1 has one column */
    float *data;
    uint64_t rows, columns;
} weight_t;

/* Refuses through the host, as these are functions like a plugin's own. */
static lh_status_t as_weight(const lh_call_t *call, const char *what, const lh_tensor_t *t,
                             weight_t *out)
{
    if (t->dtype != LH_DTYPE_F32 || t->rank < 1 || t->rank > 2)
        return call->host->fail(call->host, LH_INVALID, "%s: F32 of one or two dimensions expected",
                                what);
    *out = (weight_t){t->data, t->shape[0], t->rank == 2 ? t->shape[1] : 1};
    return LH_OK;
}

static lh_status_t functions_both(const lh_call_t *call, const lh_tensor_t *source,
                                  const lh_tensor_t *out, weight_t *from, weight_t *to)
{
    *from = *to = (weight_t){0};
    const lh_status_t status = as_weight(call, "source", source, from);
    return status == LH_OK ? as_weight(call, "out", out, to) : status;
}

/* The refusal of all functions below. */
static lh_status_t sizes_differ(const lh_call_t *call, const char *what, const weight_t *from,
                                const weight_t *to)
{
    return call->host->fail(call->host, LH_INVALID,
                            "%s: source [%llu, %llu] does not fit out [%llu, %llu]", what,
                            (unsigned long long)from->rows, (unsigned long long)from->columns,
                            (unsigned long long)to->rows, (unsigned long long)to->columns);
}

/* part < parts and narrow x parts == wide */
static bool parts_fit(uint64_t part, uint64_t parts, uint64_t narrow, uint64_t wide)
{
    return part < parts && wide % parts == 0 && wide / parts == narrow;
}

/* GPT-2's linear layers are stored as [in, out]. */
LH_FUNCTION(status, transposed, (tensor, source), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.rows != to.columns || from.columns != to.rows)
        return call->host->fail(call->host, LH_INVALID,
                                "transposed: source [%llu, %llu] becomes [%llu, %llu], out is "
                                "[%llu, %llu]",
                                (unsigned long long)from.rows, (unsigned long long)from.columns,
                                (unsigned long long)from.columns, (unsigned long long)from.rows,
                                (unsigned long long)to.rows, (unsigned long long)to.columns);
    for (uint64_t i = 0; i < to.rows; i++)
        for (uint64_t k = 0; k < to.columns; k++)
            to.data[i * to.columns + k] = from.data[k * from.columns + i];
    return LH_OK;
}

/* Part `part` of the columns of an [in, out] matrix, transposed: queries, keys and values of
 * GPT-2's c_attn stand beside each other. */
LH_FUNCTION(status, columns_in, (tensor, source), (u64, part), (u64, parts), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.rows != to.columns || !parts_fit(part, parts, to.rows, from.columns))
        return sizes_differ(call, "columns_in", &from, &to);
    for (uint64_t i = 0; i < to.rows; i++)
        for (uint64_t k = 0; k < to.columns; k++)
            to.data[i * to.columns + k] = from.data[k * from.columns + part * to.rows + i];
    return LH_OK;
}

LH_FUNCTION(status, columns_out, (tensor, source), (u64, part), (u64, parts), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (to.rows != from.columns || !parts_fit(part, parts, from.rows, to.columns))
        return sizes_differ(call, "columns_out", &from, &to);
    for (uint64_t i = 0; i < from.rows; i++)
        for (uint64_t k = 0; k < from.columns; k++)
            to.data[k * to.columns + part * from.rows + i] = from.data[i * from.columns + k];
    return LH_OK;
}

/* Part `part` of the rows: matrices that are fused one above the other, such as gate and up. */
LH_FUNCTION(status, rows_in, (tensor, source), (u64, part), (u64, parts), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.columns != to.columns || !parts_fit(part, parts, to.rows, from.rows))
        return sizes_differ(call, "rows_in", &from, &to);
    const uint64_t count = to.rows * to.columns;
    memcpy(to.data, from.data + part * count, count * sizeof(float));
    return LH_OK;
}

LH_FUNCTION(status, rows_out, (tensor, source), (u64, part), (u64, parts), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.columns != to.columns || !parts_fit(part, parts, from.rows, to.rows))
        return sizes_differ(call, "rows_out", &from, &to);
    const uint64_t count = from.rows * from.columns;
    memcpy(to.data + part * count, from.data, count * sizeof(float));
    return LH_OK;
}

/* Whether `count` rows from `first` on lie in `all`. */
static bool rows_lie_in(uint64_t first, uint64_t count, uint64_t all)
{
    return first <= all && count <= all - first;
}

/* As many rows as out has, from row `first` on: matrices of unequal heights that are fused one above
 * the other, such as Phi's queries, keys and values. */
LH_FUNCTION(status, rows_from, (tensor, source), (u64, first), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.columns != to.columns || !rows_lie_in(first, to.rows, from.rows))
        return sizes_differ(call, "rows_from", &from, &to);
    memcpy(to.data, from.data + first * from.columns, to.rows * to.columns * sizeof(float));
    return LH_OK;
}

LH_FUNCTION(status, rows_to, (tensor, source), (u64, first), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.columns != to.columns || !rows_lie_in(first, from.rows, to.rows))
        return sizes_differ(call, "rows_to", &from, &to);
    memcpy(to.data + first * to.columns, from.data, from.rows * from.columns * sizeof(float));
    return LH_OK;
}

/* A factor that the file leaves to the code which reads it. Of powers of two the inverse gives every
 * bit back. */
LH_FUNCTION(status, scaled, (tensor, source), (f64, factor), (tensor, out))
{
    weight_t from, to;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (from.rows != to.rows || from.columns != to.columns)
        return sizes_differ(call, "scaled", &from, &to);
    for (uint64_t i = 0; i < to.rows * to.columns; i++)
        to.data[i] = (float)((double)from.data[i] * factor);
    return LH_OK;
}

/* A fused tensor's rows come in groups, one a key/value head: its query heads, its key, its
 * value. */
typedef struct qkv {
    uint64_t group, heads; /* heads in a group; of this part in it */
    uint64_t at;           /* first one of this part                */
    uint64_t head;         /* elements of a head: head_dim x columns */
} qkv_t;

/* Where part 0, 1 or 2 lies in each group; false: sizes or heads don't fit. */
static bool qkv_layout(uint64_t heads, uint64_t kv_heads, uint64_t part, const weight_t *fused,
                       const weight_t *own, qkv_t *out)
{
    if (kv_heads == 0 || heads % kv_heads != 0 || part > 2) return false;
    /* heads of a group that are queries; heads of the whole tensor */
    const uint64_t queries = heads / kv_heads, all = heads + 2 * kv_heads;
    const uint64_t own_heads = part == 0 ? heads : kv_heads;
    if (fused->rows % all != 0 || fused->columns != own->columns ||
        own->rows != fused->rows / all * own_heads)
        return false;
    *out = (qkv_t){.group = queries + 2,
                   .heads = part == 0 ? queries : 1,
                   .at = part == 0 ? 0 : queries + part - 1,
                   .head = fused->rows / all * fused->columns};
    return true;
}

/* Takes one of queries, keys and values out of all groups. */
LH_FUNCTION(status, split_qkv, (tensor, source), (u64, heads), (u64, kv_heads), (u64, part),
            (tensor, out))
{
    weight_t from, to;
    qkv_t q;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (!qkv_layout(heads, kv_heads, part, &from, &to, &q))
        return sizes_differ(call, "split_qkv", &from, &to);
    const uint64_t count = q.heads * q.head;
    for (uint64_t g = 0; g < kv_heads; g++)
        memcpy(to.data + g * count, from.data + (g * q.group + q.at) * q.head,
               count * sizeof(float));
    return LH_OK;
}

LH_FUNCTION(status, join_qkv, (tensor, source), (u64, heads), (u64, kv_heads), (u64, part),
            (tensor, out))
{
    weight_t from, to;
    qkv_t q;
    const lh_status_t status = functions_both(call, source, out, &from, &to);
    if (status != LH_OK) return status;
    if (!qkv_layout(heads, kv_heads, part, &to, &from, &q))
        return sizes_differ(call, "join_qkv", &from, &to);
    const uint64_t count = q.heads * q.head;
    for (uint64_t g = 0; g < kv_heads; g++)
        memcpy(to.data + (g * q.group + q.at) * q.head, from.data + g * count,
               count * sizeof(float));
    return LH_OK;
}

const lh_function_t weight_functions[] = {
    LH_FUNCTION_ENTRY(transposed, "rows become columns"),
    LH_FUNCTION_ENTRY(columns_in, "one part of the columns of an [in, out] matrix, as [out, in]"),
    LH_FUNCTION_ENTRY(columns_out, "the inverse of columns_in"),
    LH_FUNCTION_ENTRY(rows_in, "one part of the rows"),
    LH_FUNCTION_ENTRY(rows_out, "the inverse of rows_in"),
    LH_FUNCTION_ENTRY(rows_from, "as many rows as the parameter has, from a row on"),
    LH_FUNCTION_ENTRY(rows_to, "the inverse of rows_from"),
    LH_FUNCTION_ENTRY(scaled, "every element times a factor; its inverse is scaled by 1 / factor"),
    LH_FUNCTION_ENTRY(split_qkv,
                      "queries (part 0), keys (1) or values (2) of a tensor fused by head"),
    LH_FUNCTION_ENTRY(join_qkv, "the inverse of split_qkv"),
};
const uint32_t weight_function_count = sizeof(weight_functions) / sizeof(weight_functions[0]);

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
