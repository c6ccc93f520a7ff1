/* hf_weights.c - expands the rows' Hugging Face names over blocks and runs their transforms. */
#include <checkpoint/hf_weights.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/checked.h>
#include <base/memory.h>
#include <base/text.h>
#include <checkpoint/weight_functions.h>

static char *block_name(const char *pattern, uint32_t block)
{
    text_t name = {0};
    for (const char *at = pattern; *at != '\0';) {
        if (at[0] == '{' && at[1] == '}') {
            text_printf(&name, "%u", block);
            at += 2;
        } else {
            text_append_n(&name, at++, 1);
        }
    }
    if (text_status(&name) == LH_OK && name.data != NULL) return name.data;
    text_free(&name);
    return NULL;
}

static int by_tensor(const void *a, const void *b)
{
    const hf_user_t *x = a, *y = b;
    const int order = strcmp(x->tensor, y->tensor);
    return order != 0 ? order : x->parameter < y->parameter ? -1 : 1;
}

static lh_status_t list_users(const parameters_t *p, hf_weights_t *w)
{
    w->users = mem_array(p->count, sizeof(w->users[0]));
    w->tied = mem_array(p->count, sizeof(w->tied[0]));
    if (w->users == NULL || w->tied == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < p->count; i++) {
        const parameter_t *item = &p->items[i];
        const bool tied = item->storage != i;
        if (item->row->hf_name == NULL && tied) continue;
        if (item->row->hf_name == NULL)
            return fail(LH_UNSUPPORTED, "parameter %s has no Hugging Face name", item->name);
        char *name = block_name(item->row->hf_name, item->block);
        if (name == NULL) return LH_NO_MEMORY;
        if (tied)
            w->tied[w->tied_count++] = (hf_user_t){name, i};
        else
            w->users[w->user_count++] = (hf_user_t){name, i};
    }
    if (w->user_count > 0) qsort(w->users, w->user_count, sizeof(w->users[0]), by_tensor);
    return LH_OK;
}

static lh_status_t tensor_shape(const parameter_t *item, hf_tensor_t *t)
{
    const uint64_t *shape = item->row->hf_shape[0] != 0 ? item->row->hf_shape : item->shape;
    t->elements = 1;
    for (t->rank = 0; t->rank < 3 && shape[t->rank] != 0; t->rank++) {
        t->shape[t->rank] = shape[t->rank];
        if (!checked_mul(t->elements, shape[t->rank], &t->elements) || t->elements > INT64_MAX / 8)
            return fail(LH_INVALID, "tensor %s has too many elements", t->name);
    }
    return LH_OK;
}

static lh_status_t check_tensor(const parameters_t *p, const hf_tensor_t *t)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < t->user_count; i++) {
        const parameter_t *item = &p->items[t->users[i].parameter];
        hf_tensor_t own = {.name = t->name};
        const lh_status_t status = tensor_shape(item, &own);
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
        held += item->elements;
    }
    if (held == t->elements) return LH_OK;
    return fail(LH_INVALID, "tensor %s has %llu elements, its parameters %llu", t->name,
                (unsigned long long)t->elements, (unsigned long long)held);
}

lh_status_t hf_weights_new(const parameters_t *parameters, hf_weights_t *out)
{
    hf_weights_t w = {0};
    lh_status_t status = list_users(parameters, &w);
    if (status != LH_OK) goto free_all;
    w.tensors = mem_array(w.user_count, sizeof(w.tensors[0]));
    if (w.tensors == NULL) {
        status = LH_NO_MEMORY;
        goto free_all;
    }
    for (uint32_t i = 0; i < w.user_count && status == LH_OK; i++) {
        hf_tensor_t *last = w.count == 0 ? NULL : &w.tensors[w.count - 1];
        if (last != NULL && strcmp(last->name, w.users[i].tensor) == 0) {
            last->user_count++;
            continue;
        }
        hf_tensor_t *t = &w.tensors[w.count++];
        *t = (hf_tensor_t){.name = w.users[i].tensor, .users = &w.users[i], .user_count = 1};
        status = tensor_shape(&parameters->items[w.users[i].parameter], t);
    }
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

static lh_tensor_t dense(uint32_t rank, const uint64_t *shape, float *data)
{
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

static lh_status_t run(const hf_transform_t *how, const char *text, const char *where,
                       lh_tensor_t *source, lh_tensor_t *out)
{
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

lh_status_t hf_transform_import(const hf_transform_t *how, const hf_tensor_t *tensor,
                                uint32_t parameter, float *source, float *out)
{
    const parameter_t *item = &how->parameters->items[parameter];
    if (item->row->hf_import == NULL) {
        memcpy(out, source, item->elements * sizeof(float));
        return LH_OK;
    }
    lh_tensor_t from = dense(tensor->rank, tensor->shape, source);
    lh_tensor_t to = dense(item->rank, item->shape, out);
    return run(how, item->row->hf_import, item->name, &from, &to);
}

lh_status_t hf_transform_export(const hf_transform_t *how, const hf_tensor_t *tensor,
                                uint32_t parameter, float *source, float *out)
{
    const parameter_t *item = &how->parameters->items[parameter];
    if (item->row->hf_export == NULL) {
        memcpy(out, source, item->elements * sizeof(float));
        return LH_OK;
    }
    lh_tensor_t from = dense(item->rank, item->shape, source);
    lh_tensor_t to = dense(tensor->rank, tensor->shape, out);
    return run(how, item->row->hf_export, item->name, &from, &to);
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
