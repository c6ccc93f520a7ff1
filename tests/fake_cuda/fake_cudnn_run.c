/* fake_cudnn_run.c - does a graph of cuDNN's operations, plainly: one batch entry after the other, every
 * tensor whole and in F32, rounded to its dtype where it has a narrower one.
 *
 * A packed tensor of the batch begins at its offset and has as many rows as fit before the next; rows
 * behind them are read as zero and never written. Tensors that an operation makes are taken from where
 * it made them, not from memory; those in the workspace are not written, as no one may read them. */
#include <math.h>
#include <stdlib.h>

#include <longhaul/dtype.h>

#include "fake_cudnn.h"

typedef struct run {
    const fake_graph_t *g;
    cuda_address_t place[FAKE_TENSORS];
    cuda_address_t workspace;
    float scalar[FAKE_TENSORS]; /* of tensors by value, which are read when the work is queued */
} run_t;

typedef struct values {
    const run_t *run;
    float *at[FAKE_TENSORS];
    void *memory[FAKE_TENSORS]; /* as the worker reaches it */
    int64_t batch;
} values_t;

/* ---- tensors ---- */

static size_t dtype_bytes(cudnnDataType_t dtype)
{
    switch (dtype) {
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16: return 2;
    case CUDNN_DATA_BOOLEAN: return 1;
    default: return 4;
    }
}

static float number_read(const void *at, cudnnDataType_t dtype, int64_t i)
{
    switch (dtype) {
    case CUDNN_DATA_HALF: return lh_f16_to_f32(((const uint16_t *)at)[i]);
    case CUDNN_DATA_BFLOAT16: return lh_bf16_to_f32(((const uint16_t *)at)[i]);
    case CUDNN_DATA_INT32: return (float)((const int32_t *)at)[i];
    default: return ((const float *)at)[i];
    }
}

static void number_write(void *at, cudnnDataType_t dtype, int64_t i, float value)
{
    switch (dtype) {
    case CUDNN_DATA_HALF: ((uint16_t *)at)[i] = lh_f32_to_f16(value); break;
    case CUDNN_DATA_BFLOAT16: ((uint16_t *)at)[i] = lh_f32_to_bf16(value); break;
    case CUDNN_DATA_INT32: ((int32_t *)at)[i] = (int32_t)value; break;
    default: ((float *)at)[i] = value;
    }
}

static float as_stored(float value, cudnnDataType_t dtype)
{
    if (dtype == CUDNN_DATA_HALF) return lh_f16_to_f32(lh_f32_to_f16(value));
    if (dtype == CUDNN_DATA_BFLOAT16) return lh_bf16_to_f32(lh_f32_to_bf16(value));
    return value;
}

/* Of one batch entry. */
static size_t elements_of(const fake_tensor_t *t)
{
    return (size_t)(t->dim[1] * t->dim[2] * t->dim[3]);
}

/* Which of the last two dimensions goes along the rows: that of the wider stride. */
static int rows_dim(const fake_tensor_t *t)
{
    return t->dim[3] == 1 || t->stride[2] >= t->stride[3] ? 2 : 3;
}

static int64_t offset_read(const values_t *v, int ragged, int64_t batch)
{
    return ((const int32_t *)v->memory[ragged])[batch];
}

/* The first element of this batch entry, and how many rows it has. */
static int64_t entry_first(const values_t *v, const fake_tensor_t *t, int64_t *rows)
{
    *rows = t->dim[rows_dim(t)];
    if (t->ragged < 0) return t->dim[0] == 1 ? 0 : v->batch * t->stride[0];
    const int64_t first = offset_read(v, t->ragged, v->batch);
    const int64_t there = (offset_read(v, t->ragged, v->batch + 1) - first) /
                          t->stride[rows_dim(t)];
    if (there < *rows) *rows = there;
    return first;
}

/* Whether all that an entry's elements lie on is memory of one allocation. */
static bool entry_lies(const values_t *v, int index, int64_t first, int64_t rows)
{
    const fake_tensor_t *t = &v->run->g->tensor[index];
    int64_t last = first;
    for (int d = 1; d < FAKE_DIMS; d++)
        last += ((d == rows_dim(t) ? rows : t->dim[d]) - 1) * t->stride[d];
    pthread_mutex_lock(&fake.lock);
    const bool lies = rows == 0 || fake_real(v->run->place[index],
                                             (uint64_t)(last + 1) * dtype_bytes(t->dtype)) != NULL;
    pthread_mutex_unlock(&fake.lock);
    return lies && first >= 0;
}

/* Reads an entry from memory, or writes it there. */
static cuda_result_t entry_move(const values_t *v, int index, bool write)
{
    const fake_tensor_t *t = &v->run->g->tensor[index];
    float *value = v->at[index];
    int64_t rows;
    const int64_t first = entry_first(v, t, &rows);
    const int along = rows_dim(t);
    if (!entry_lies(v, index, first, rows)) return CUDA_ILLEGAL_ADDRESS;
    for (int64_t h = 0; h < t->dim[1]; h++)
        for (int64_t i = 0; i < t->dim[2]; i++)
            for (int64_t j = 0; j < t->dim[3]; j++, value++) {
                const bool there = (along == 2 ? i : j) < rows;
                const int64_t at = first + h * t->stride[1] + i * t->stride[2] + j * t->stride[3];
                if (!write)
                    *value = there ? number_read(v->memory[index], t->dtype, at) : 0;
                else if (there)
                    number_write(v->memory[index], t->dtype, at, *value);
            }
    return CUDA_OK;
}

/* ---- operations ---- */

/* An operand's element for (h, i, j) of the result: dimensions of 1 are repeated. */
static float operand_at(const values_t *v, int index, int64_t h, int64_t i, int64_t j)
{
    const fake_tensor_t *t = &v->run->g->tensor[index];
    if (t->dim[1] == 1) h = 0;
    if (t->dim[2] == 1) i = 0;
    if (t->dim[3] == 1) j = 0;
    return v->at[index][(h * t->dim[2] + i) * t->dim[3] + j];
}

static float point_compute(int mode, float x, float b, float t)
{
    switch (mode) {
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return expf(x);
    case CUDNN_POINTWISE_LOG: return logf(x);
    case CUDNN_POINTWISE_CMP_EQ: return x == b;
    case CUDNN_POINTWISE_CMP_NEQ: return x != b;
    case CUDNN_POINTWISE_CMP_GT: return x > b;
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_CMP_LT: return x < b;
    case CUDNN_POINTWISE_CMP_LE: return x <= b;
    case CUDNN_POINTWISE_LOGICAL_AND: return x != 0 && b != 0;
    case CUDNN_POINTWISE_LOGICAL_OR: return x != 0 || b != 0;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: return NAN;
    }
}

static void pointwise_do(const values_t *v, const fake_operation_t *o)
{
    const fake_tensor_t *y = &v->run->g->tensor[o->out];
    float *out = v->at[o->out];
    for (int64_t h = 0; h < y->dim[1]; h++)
        for (int64_t i = 0; i < y->dim[2]; i++)
            for (int64_t j = 0; j < y->dim[3]; j++) {
                const int64_t index[FAKE_DIMS] = {v->batch, h, i, j};
                if (o->mode == CUDNN_POINTWISE_GEN_INDEX) {
                    *out++ = (float)index[o->axis];
                    continue;
                }
                const float x = operand_at(v, o->in[0], h, i, j);
                const float b = o->in[1] >= 0 ? operand_at(v, o->in[1], h, i, j) : 0;
                const float t = o->in[2] >= 0 ? operand_at(v, o->in[2], h, i, j) : 0;
                *out++ = point_compute(o->mode, x, b, t);
            }
}

/* Each element of the result takes those of x that lie under it: a head its group, a row its columns. */
static void reduction_do(const values_t *v, const fake_operation_t *o)
{
    const fake_tensor_t *x = &v->run->g->tensor[o->in[0]], *y = &v->run->g->tensor[o->out];
    const bool most = o->mode == CUDNN_REDUCE_TENSOR_MAX;
    float *out = v->at[o->out];
    const float *in = v->at[o->in[0]];
    for (size_t i = 0; i < elements_of(y); i++)
        out[i] = most ? -INFINITY : 0;
    for (int64_t h = 0; h < x->dim[1]; h++)
        for (int64_t i = 0; i < x->dim[2]; i++)
            for (int64_t j = 0; j < x->dim[3]; j++) {
                float *to =
                    &out[(h * y->dim[1] / x->dim[1] * y->dim[2] + i * y->dim[2] / x->dim[2]) *
                             y->dim[3] +
                         j * y->dim[3] / x->dim[3]];
                const float value = *in++;
                *to = most ? (value > *to || value != value ? value : *to) : *to + value;
            }
}

/* The same memory by other strides: as it is, or with its last two dimensions swapped. */
static void reshape_do(const values_t *v, const fake_operation_t *o)
{
    const fake_tensor_t *x = &v->run->g->tensor[o->in[0]], *y = &v->run->g->tensor[o->out];
    const bool turned = x->stride[2] == y->stride[3] && x->stride[3] == y->stride[2] &&
                        x->dim[2] == y->dim[3] && x->dim[3] == y->dim[2];
    float *out = v->at[o->out];
    for (int64_t h = 0; h < y->dim[1]; h++)
        for (int64_t i = 0; i < y->dim[2]; i++)
            for (int64_t j = 0; j < y->dim[3]; j++)
                *out++ = turned ? operand_at(v, o->in[0], h, j, i)
                                : operand_at(v, o->in[0], h, i, j);
}

/* c = a b for every head; the heads of b are shared by groups of a's. */
static void matmul_do(const values_t *v, const fake_operation_t *o)
{
    const fake_tensor_t *a = &v->run->g->tensor[o->in[0]], *b = &v->run->g->tensor[o->in[1]];
    const int64_t m = a->dim[2], depth = a->dim[3], n = b->dim[3];
    float *c = v->at[o->out];
    memset(c, 0, elements_of(&v->run->g->tensor[o->out]) * sizeof(*c));
    for (int64_t h = 0; h < a->dim[1]; h++) {
        const float *left = v->at[o->in[0]] + h * m * depth;
        const float *right = v->at[o->in[1]] + h * b->dim[1] / a->dim[1] * depth * n;
        for (int64_t i = 0; i < m; i++, c += n)
            for (int64_t k = 0; k < depth; k++) {
                const float factor = left[i * depth + k];
                if (factor == 0) continue;
                for (int64_t j = 0; j < n; j++)
                    c[j] += factor * right[k * n + j];
            }
    }
}

static void operation_do(const values_t *v, const fake_operation_t *o)
{
    const fake_tensor_t *y = &v->run->g->tensor[o->out];
    switch (o->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: matmul_do(v, o); break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: pointwise_do(v, o); break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: reduction_do(v, o); break;
    default: reshape_do(v, o);
    }
    float *out = v->at[o->out];
    for (size_t i = 0; i < elements_of(y); i++)
        out[i] = as_stored(out[i], y->dtype);
}

static bool product_fits(const fake_graph_t *g, const fake_operation_t *o)
{
    const fake_tensor_t *a = &g->tensor[o->in[0]], *b = &g->tensor[o->in[1]];
    const fake_tensor_t *c = &g->tensor[o->out];
    return a->dim[3] == b->dim[2] && c->dim[2] == a->dim[2] && c->dim[3] == b->dim[3] &&
           c->dim[1] == a->dim[1] && a->dim[1] % b->dim[1] == 0;
}

bool fake_graph_known(const fake_graph_t *g)
{
    bool made[FAKE_TENSORS] = {false};
    for (int i = 0; i < g->operations; i++) {
        const fake_operation_t *o = &g->operation[i];
        for (int k = 0; k < FAKE_OPERANDS; k++) /* in an order in which it can be done */
            if (o->in[k] >= 0 && g->tensor[o->in[k]].produced && !made[o->in[k]]) return false;
        made[o->out] = true;
        if (o->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && !product_fits(g, o))
            return false;
        if (o->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
            o->mode != CUDNN_POINTWISE_GEN_INDEX && isnan(point_compute(o->mode, 1, 1, 1)))
            return false;
        if (o->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR &&
            o->mode != CUDNN_REDUCE_TENSOR_MAX && o->mode != CUDNN_REDUCE_TENSOR_ADD)
            return false;
    }
    return true;
}

/* ---- a run ---- */

static bool in_workspace(const run_t *r, int t)
{
    return r->place[t] >= r->workspace &&
           r->place[t] < r->workspace + (uint64_t)r->g->workspace_bytes;
}

static cuda_result_t batch_do(const values_t *v)
{
    const fake_graph_t *g = v->run->g;
    for (int t = 0; t < g->tensors; t++) {
        if (g->tensor[t].produced || v->at[t] == NULL) continue;
        if (g->tensor[t].by_value) {
            *v->at[t] = v->run->scalar[t];
            continue;
        }
        const cuda_result_t result = entry_move(v, t, false);
        if (result != CUDA_OK) return result;
    }
    for (int i = 0; i < g->operations; i++)
        operation_do(v, &g->operation[i]);
    for (int t = 0; t < g->tensors; t++) {
        if (!g->tensor[t].produced || g->tensor[t].is_virtual || v->memory[t] == NULL) continue;
        const cuda_result_t result = entry_move(v, t, true);
        if (result != CUDA_OK) return result;
    }
    return CUDA_OK;
}

/* With room for every tensor that an operation has to do with: not for offsets. */
static cuda_result_t values_make(values_t *v)
{
    const fake_graph_t *g = v->run->g;
    bool used[FAKE_TENSORS] = {false};
    for (int i = 0; i < g->operations; i++) {
        used[g->operation[i].out] = true;
        for (int k = 0; k < FAKE_OPERANDS; k++)
            if (g->operation[i].in[k] >= 0) used[g->operation[i].in[k]] = true;
    }
    pthread_mutex_lock(&fake.lock);
    for (int t = 0; t < g->tensors; t++)
        if (!g->tensor[t].by_value && v->run->place[t] != 0 && !in_workspace(v->run, t))
            v->memory[t] = fake_real(v->run->place[t], 1);
    pthread_mutex_unlock(&fake.lock);
    for (int t = 0; t < g->tensors; t++) {
        const bool outside = !g->tensor[t].is_virtual && !g->tensor[t].by_value &&
                             !in_workspace(v->run, t);
        if (outside && v->memory[t] == NULL) return CUDA_ILLEGAL_ADDRESS;
        if (!used[t]) continue;
        v->at[t] = malloc(elements_of(&g->tensor[t]) * sizeof(float));
        if (v->at[t] == NULL) return CUDA_NO_MEMORY;
    }
    return CUDA_OK;
}

static int64_t batches_of(const fake_graph_t *g)
{
    int64_t most = 1;
    for (int t = 0; t < g->tensors; t++)
        if (g->tensor[t].ragged >= 0 && g->tensor[t].dim[0] > most) most = g->tensor[t].dim[0];
    return most;
}

/* A batch entry whose packed tensors have no rows has no work. */
static bool batch_is_empty(const values_t *v)
{
    const fake_graph_t *g = v->run->g;
    for (int t = 0; t < g->tensors; t++) {
        int64_t rows;
        if (g->tensor[t].ragged < 0 || v->memory[t] == NULL) continue;
        (void)entry_first(v, &g->tensor[t], &rows);
        if (rows > 0) return false;
    }
    return true;
}

static cuda_result_t graph_do(const void *data)
{
    const run_t *r = data;
    values_t v = {.run = r};
    cuda_result_t result = values_make(&v);
    pthread_mutex_lock(&fake.lock);
    void *workspace = fake_real(r->workspace, (uint64_t)r->g->workspace_bytes);
    pthread_mutex_unlock(&fake.lock);
    if (result == CUDA_OK && workspace == NULL) result = CUDA_ILLEGAL_ADDRESS;
    if (result == CUDA_OK) memset(workspace, 0xff, (size_t)r->g->workspace_bytes);
    const int64_t batches = batches_of(r->g);
    for (v.batch = 0; v.batch < batches && result == CUDA_OK; v.batch++)
        if (!batch_is_empty(&v)) result = batch_do(&v);
    for (int t = 0; t < r->g->tensors; t++)
        free(v.at[t]);
    return result;
}

cuda_result_t fake_graph_queue(const fake_graph_t *g, cuda_stream_t stream,
                               const cuda_address_t places[FAKE_TENSORS], cuda_address_t workspace)
{
    run_t r = {.g = g, .workspace = workspace};
    memcpy(r.place, places, sizeof(r.place));
    for (int t = 0; t < g->tensors; t++)
        if (g->tensor[t].by_value)
            r.scalar[t] = number_read((const void *)(uintptr_t)places[t], g->tensor[t].dtype, 0);
    const cuda_result_t begun = fake_begin("cudnnBackendExecute", true);
    if (begun != CUDA_OK) return begun;
    const cuda_result_t loaded = fake_load(stream, (uintptr_t)g);
    if (loaded != CUDA_OK) return fake_end(loaded);
    return fake_end(fake_push_work(stream, graph_do, &r, sizeof(r)));
}
