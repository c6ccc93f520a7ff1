/* fake_cudnn.c - the backend API of cuDNN 9: descriptors that are sets of attributes. Of operations it
 * makes a graph that fake_cudnn_run.c interprets, one operation after the other, as cuDNN's manual
 * defines each. So what NVIDIA's frontend writes down for attention is computed without a line here
 * that knows attention.
 *
 * Two engines do any graph; they differ by name only. */
#include <stdio.h>
#include <stdlib.h>

#include "fake_cudnn.h"

enum { ENGINES = 2 };

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    void *data;
    struct attribute *next;
} attribute_t;

typedef struct descriptor {
    cudnnBackendDescriptorType_t type;
    uint32_t users; /* who made it, and every descriptor that has it as an attribute */
    bool finalized;
    attribute_t *attributes;
    const fake_graph_t *graph; /* of an operation graph, once it is finalized */
} descriptor_t;

struct cudnnContext {
    cuda_stream_t stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of users and graphs */
static fake_graph_t *graphs;

/* ---- attributes ---- */

static size_t type_bytes(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    default: return 4;
    }
}

static void descriptor_release(descriptor_t *d);

static void attribute_drop(attribute_t *a)
{
    if (a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < a->count; i++)
            descriptor_release(((descriptor_t **)a->data)[i]);
    free(a->data);
    free(a);
}

static void descriptor_clear(descriptor_t *d)
{
    while (d->attributes != NULL) {
        attribute_t *a = d->attributes;
        d->attributes = a->next;
        attribute_drop(a);
    }
}

static void descriptor_release(descriptor_t *d)
{
    pthread_mutex_lock(&lock);
    const bool last = --d->users == 0;
    pthread_mutex_unlock(&lock);
    if (!last) return;
    descriptor_clear(d);
    free(d);
}

static const attribute_t *attribute_find(const descriptor_t *d, cudnnBackendAttributeName_t name)
{
    for (const attribute_t *a = d->attributes; a != NULL; a = a->next)
        if (a->name == name) return a;
    return NULL;
}

static bool attribute_put(descriptor_t *d, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count, const void *data)
{
    attribute_t *a = calloc(1, sizeof(*a));
    const size_t bytes = (size_t)count * type_bytes(type);
    if (a == NULL || (a->data = malloc(bytes + 1)) == NULL) {
        free(a);
        return false;
    }
    for (attribute_t **at = &d->attributes; *at != NULL; at = &(*at)->next) {
        attribute_t *old = *at;
        if (old->name != name) continue;
        *at = old->next;
        attribute_drop(old);
        break;
    }
    if (bytes > 0) memcpy(a->data, data, bytes);
    a->name = name;
    a->type = type;
    a->count = count;
    pthread_mutex_lock(&lock);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            ((descriptor_t **)a->data)[i]->users++;
    pthread_mutex_unlock(&lock);
    a->next = d->attributes;
    d->attributes = a;
    return true;
}

/* One made by the caller takes over what another has. */
static void descriptor_become(descriptor_t *d, const descriptor_t *from)
{
    descriptor_clear(d);
    for (const attribute_t *a = from->attributes; a != NULL; a = a->next)
        (void)attribute_put(d, a->name, a->type, a->count, a->data);
    d->graph = from->graph;
    d->finalized = true;
}

static descriptor_t *child_of(const descriptor_t *d, cudnnBackendAttributeName_t name)
{
    const attribute_t *a = attribute_find(d, name);
    return a != NULL && a->count > 0 ? ((descriptor_t **)a->data)[0] : NULL;
}

static int64_t number_of(const descriptor_t *d, cudnnBackendAttributeName_t name, int64_t fallback)
{
    const attribute_t *a = d != NULL ? attribute_find(d, name) : NULL;
    int64_t wide;
    int32_t narrow;
    if (a == NULL || a->count < 1) return fallback;
    switch (type_bytes(a->type)) {
    case 8: memcpy(&wide, a->data, sizeof(wide)); return wide;
    case 4: memcpy(&narrow, a->data, sizeof(narrow)); return narrow;
    default: return *(const char *)a->data;
    }
}

/* ---- the graph of an operation graph ---- */

static bool numbers_read(const descriptor_t *d, cudnnBackendAttributeName_t name,
                         int64_t out[FAKE_DIMS])
{
    const attribute_t *a = attribute_find(d, name);
    if (a == NULL || a->count != FAKE_DIMS || a->type != CUDNN_TYPE_INT64) return false;
    memcpy(out, a->data, FAKE_DIMS * sizeof(*out));
    return true;
}

/* Its index; -1: none, -2: one that it doesn't take. */
static int tensor_add(fake_graph_t *g, const descriptor_t *d)
{
    if (d == NULL) return -1;
    const int64_t uid = number_of(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    for (int i = 0; i < g->tensors; i++)
        if (g->tensor[i].uid == uid) return i;
    const int ragged = tensor_add(g, child_of(d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC));
    if (g->tensors == FAKE_TENSORS || ragged == -2 || !d->finalized) return -2;
    fake_tensor_t *t = &g->tensor[g->tensors];
    *t = (fake_tensor_t){.uid = uid,
                         .dtype = (cudnnDataType_t)number_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE, -1),
                         .is_virtual = number_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0,
                         .by_value = number_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0) != 0,
                         .ragged = ragged};
    if (!numbers_read(d, CUDNN_ATTR_TENSOR_DIMENSIONS, t->dim) ||
        !numbers_read(d, CUDNN_ATTR_TENSOR_STRIDES, t->stride))
        return -2;
    return g->tensors++;
}

static bool operation_add(fake_graph_t *g, const descriptor_t *d)
{
    fake_operation_t o = {.type = d->type, .in = {-1, -1, -1}};
    const descriptor_t *how;
    switch (d->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        o.in[0] = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
        o.in[1] = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
        o.out = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
        break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        how = child_of(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        o.mode = (int)number_of(how, CUDNN_ATTR_POINTWISE_MODE, -1);
        o.axis = number_of(how, CUDNN_ATTR_POINTWISE_AXIS, -1);
        o.in[0] = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
        o.in[1] = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
        o.in[2] = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
        o.out = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        how = child_of(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
        o.mode = (int)number_of(how, CUDNN_ATTR_REDUCTION_OPERATOR, -1);
        o.in[0] = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
        o.out = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
        break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        o.in[0] = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
        o.out = tensor_add(g, child_of(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
        break;
    default: return false;
    }
    if (g->operations == FAKE_OPERATIONS || o.in[0] < 0 || o.in[1] == -2 || o.in[2] == -2 ||
        o.out < 0)
        return false;
    g->tensor[o.out].produced = true;
    g->operation[g->operations++] = o;
    return true;
}

/* What the ordered gradient of attention keeps: where five products meet and the sum of the queries'
 * gradients has no accumulator in F32, two bytes for each pair. */
static int64_t workspace_of(const fake_graph_t *g)
{
    int products = 0;
    int64_t pairs = 0;
    bool accumulates = false;
    for (int i = 0; i < g->operations; i++) {
        const fake_operation_t *o = &g->operation[i];
        if (o->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) continue;
        const fake_tensor_t *c = &g->tensor[o->out];
        products++;
        accumulates = accumulates || (!c->is_virtual && c->dtype == CUDNN_DATA_FLOAT);
        if (!c->is_virtual) continue;
        const int64_t these = c->dim[0] * c->dim[1] * c->dim[2] * c->dim[3];
        if (these > pairs) pairs = these;
    }
    return 4096 + (products >= 5 && !accumulates ? 2 * pairs : 0);
}

static cudnnStatus_t graph_finalize(descriptor_t *d)
{
    const attribute_t *ops = attribute_find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    fake_graph_t *g = calloc(1, sizeof(*g));
    if (g == NULL) return CUDNN_STATUS_ALLOC_FAILED;
    bool known = ops != NULL;
    for (int64_t i = 0; known && i < ops->count; i++)
        known = operation_add(g, ((descriptor_t **)ops->data)[i]);
    if (!known || !fake_graph_known(g)) {
        free(g);
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
    g->workspace_bytes = workspace_of(g);
    pthread_mutex_lock(&lock);
    g->next = graphs;
    graphs = g;
    pthread_mutex_unlock(&lock);
    d->graph = g;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what plans are found by ---- */

static const fake_graph_t *graph_of(const descriptor_t *d)
{
    if (d == NULL) return NULL;
    switch (d->type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return d->graph;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return graph_of(child_of(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return graph_of(child_of(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        return graph_of(child_of(d, CUDNN_ATTR_ENGINECFG_ENGINE));
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return graph_of(child_of(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
    default: return NULL;
    }
}

static descriptor_t *descriptor_new(cudnnBackendDescriptorType_t type)
{
    descriptor_t *d = calloc(1, sizeof(*d));
    if (d == NULL) return NULL;
    d->type = type;
    d->users = 1;
    return d;
}

/* `config` shall be engine number `index` of the heuristics' graph. */
static cudnnStatus_t config_fill(const descriptor_t *heuristics, int64_t index,
                                 descriptor_t *config)
{
    descriptor_t *graph = child_of(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    descriptor_t *engine = descriptor_new(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (engine == NULL) return CUDNN_STATUS_ALLOC_FAILED;
    engine->finalized = config->finalized = true;
    const bool put = attribute_put(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph) &&
                     attribute_put(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                   &index) &&
                     attribute_put(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    descriptor_release(engine);
    return put ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}

static cudnnStatus_t heuristics_get(const descriptor_t *d, int64_t wanted, int64_t *count,
                                    void *out)
{
    const int64_t mode = number_of(d, CUDNN_ATTR_ENGINEHEUR_MODE, -1);
    const int64_t there = mode == CUDNN_HEUR_MODE_A ? ENGINES : 0;
    if (out == NULL || wanted == 0) {
        *count = there;
        return CUDNN_STATUS_SUCCESS;
    }
    *count = wanted < there ? wanted : there;
    for (int64_t i = 0; i < *count; i++) {
        const cudnnStatus_t status = config_fill(d, i, ((descriptor_t **)out)[i]);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- the library's functions ---- */

FAKE_EXPORT size_t cudnnGetVersion(void)
{
    return fake.cudnn;
}

FAKE_EXPORT const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                : "CUDNN_STATUS_OF_THE_FAKE";
}

FAKE_EXPORT void cudnnGetLastErrorString(char *message, size_t bytes)
{
    (void)snprintf(message, bytes, "as the fake was told");
}

FAKE_EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    if (fake_begin("cudnnCreate", true) != CUDA_OK) return CUDNN_STATUS_NOT_INITIALIZED;
    (void)fake_end(CUDA_OK);
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}

FAKE_EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    FAKE_MAY_FAIL_AS(cudnnStatus_t, "cudnnSetStream");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *out)
{
    *out = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t *out)
{
    FAKE_MAY_FAIL_AS(cudnnStatus_t, "cudnnBackendCreateDescriptor");
    *out = descriptor_new(type);
    return *out != NULL ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor != NULL) descriptor_release(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t count,
                                                   const void *data)
{
    FAKE_MAY_FAIL_AS(cudnnStatus_t, "cudnnBackendSetAttribute");
    descriptor_t *d = descriptor;
    if (d->finalized || count < 0) return CUDNN_STATUS_BAD_PARAM;
    return attribute_put(d, name, type, count, data) ? CUDNN_STATUS_SUCCESS
                                                     : CUDNN_STATUS_ALLOC_FAILED;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    FAKE_MAY_FAIL_AS(cudnnStatus_t, "cudnnBackendFinalize");
    descriptor_t *d = descriptor;
    if (d->finalized) return CUDNN_STATUS_BAD_PARAM;
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
        const cudnnStatus_t status = graph_finalize(d);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    d->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

/* What no one has set and nothing defines has no elements. */
FAKE_EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t wanted,
                                                   int64_t *count, void *out)
{
    FAKE_MAY_FAIL_AS(cudnnStatus_t, "cudnnBackendGetAttribute");
    const descriptor_t *d = descriptor;
    int64_t unasked, number = 0;
    if (count == NULL) count = &unasked;
    *count = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: return heuristics_get(d, wanted, count, out);
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: number = graph_of(d)->workspace_bytes; break;
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: break;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: number = ENGINES; break;
    default: {
        const attribute_t *a = attribute_find(d, name);
        *count = a != NULL ? a->count : 0;
        if (a == NULL || out == NULL) return CUDNN_STATUS_SUCCESS;
        if (a->type != type || wanted < a->count) return CUDNN_STATUS_BAD_PARAM;
        if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
            for (int64_t i = 0; i < a->count; i++)
                descriptor_become(((descriptor_t **)out)[i], ((descriptor_t **)a->data)[i]);
        } else {
            memcpy(out, a->data, (size_t)a->count * type_bytes(type));
        }
        return CUDNN_STATUS_SUCCESS;
    }
    }
    if (out != NULL) memcpy(out, &number, type_bytes(type));
    return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                              cudnnBackendDescriptor_t pack)
{
    const fake_graph_t *g = graph_of(plan);
    const attribute_t *uids = attribute_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const attribute_t *pointers = attribute_find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const attribute_t *workspace = attribute_find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    cuda_address_t places[FAKE_TENSORS] = {0}, at = 0;
    if (g == NULL || uids == NULL || pointers == NULL || uids->count != pointers->count)
        return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; i < uids->count; i++)
        for (int t = 0; t < g->tensors; t++)
            if (g->tensor[t].uid == ((const int64_t *)uids->data)[i])
                places[t] = ((const cuda_address_t *)pointers->data)[i];
    if (workspace != NULL) memcpy(&at, workspace->data, sizeof(at));
    for (int t = 0; t < g->tensors; t++) {
        const fake_tensor_t *tensor = &g->tensor[t];
        const bool half = tensor->dtype == CUDNN_DATA_HALF || tensor->dtype == CUDNN_DATA_BFLOAT16;
        if (!tensor->is_virtual && places[t] == 0) return CUDNN_STATUS_BAD_PARAM;
        /* What it reads as vectors; the frontend promises 16 bytes of every tensor. */
        if (half && !tensor->by_value && places[t] % 16 != 0)
            return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    }
    return fake_graph_queue(g, handle->stream, places, at) == CUDA_OK
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}
