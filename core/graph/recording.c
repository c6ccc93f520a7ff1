/* recording.c - a recording's life, and when two of them are the same. */
#include <graph/recording.h>

#include <base/memory.h>
#include <base/text.h>
#include <graph/recorder.h>

lh_status_t recording_new(const recording_how_t *how, recording_t **out)
{
    recording_t *r = mem_new(sizeof(*r));
    if (r == NULL) return LH_NO_MEMORY;
    r->graph.api = &recorder_api;
    r->how = *how;
    const graph_value_t no_value = {.kind = VALUE_NONE};
    const graph_node_t no_node = {.op = NULL};
    (void)recorder_value(r, &no_value);
    (void)recorder_node(r, &no_node);
    if (r->status != LH_OK) {
        const lh_status_t status = r->status;
        recording_free(r);
        return status;
    }
    *out = r;
    return LH_OK;
}

void recording_free(recording_t *r)
{
    if (r == NULL) return;
    for (lh_value_t v = 1; v < r->value_count; v++) {
        mem_free((char *)r->values[v].name);
        mem_free((float *)r->values[v].constant);
    }
    for (uint32_t n = 1; n < r->node_count; n++)
        mem_free(r->nodes[n].attributes);
    for (uint32_t i = 0; i < r->loss_count; i++)
        mem_free((char *)r->losses[i].metric);
    mem_free(r->values);
    mem_free(r->nodes);
    mem_free(r->losses);
    mem_free(r->reason);
    mem_free(r);
}

lh_status_t recording_status(const recording_t *r)
{
    if (r->status == LH_OK) return LH_OK;
    /* errno is not what it was then, and the sentence has it already. */
    const lh_status_t said = r->status == LH_IO ? LH_INVALID : r->status;
    (void)fail(said, "%s", r->reason == NULL ? status_text(r->status) : r->reason);
    return r->status;
}

lh_value_t recording_argument(recording_t *r, lh_dtype_t dtype, uint32_t rank,
                              const uint64_t *shape)
{
    lh_assert(rank <= LH_MAX_RANK);
    graph_value_t value = {.kind = VALUE_ARGUMENT, .arg = {.dtype = dtype, .rank = rank}};
    uint64_t stride = 1;
    for (uint32_t i = rank; i-- > 0;) {
        value.arg.shape[i] = shape[i];
        value.arg.stride[i] = stride;
        stride *= shape[i];
    }
    return r->status == LH_OK ? recorder_value(r, &value) : 0;
}

void recording_retype(recording_t *r, lh_value_t v, lh_dtype_t dtype)
{
    lh_assert(v > 0 && v < r->value_count);
    r->values[v].arg.dtype = dtype;
}

static bool same_arg(const lh_arg_t *a, const lh_arg_t *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->layout == b->layout &&
           memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) == 0 &&
           memcmp(a->stride, b->stride, a->rank * sizeof(a->stride[0])) == 0;
}

static bool same_value(const graph_value_t *a, const graph_value_t *b)
{
    if (a->kind != b->kind || a->node != b->node || a->slot != b->slot || a->which != b->which)
        return false;
    if (!text_equal(a->name, b->name) || !same_arg(&a->arg, &b->arg)) return false;
    return a->constant_count == b->constant_count &&
           (a->constant_count == 0 ||
            memcmp(a->constant, b->constant, a->constant_count * sizeof(float)) == 0);
}

static bool same_node(const graph_node_t *a, const graph_node_t *b)
{
    if (a->op != b->op || a->backward != b->backward) return false;
    if (memcmp(a->slots, b->slots, sizeof(a->slots)) != 0) return false;
    if (memcmp(a->adds_to, b->adds_to, sizeof(a->adds_to)) != 0) return false;
    return a->attributes == NULL ||
           memcmp(a->attributes, b->attributes, a->op->row.attributes_bytes) == 0;
}

bool recording_equal(const recording_t *a, const recording_t *b)
{
    if (a->value_count != b->value_count || a->node_count != b->node_count) return false;
    if (a->loss_count != b->loss_count || a->output != b->output) return false;
    for (lh_value_t v = 1; v < a->value_count; v++)
        if (!same_value(&a->values[v], &b->values[v])) return false;
    for (uint32_t n = 1; n < a->node_count; n++)
        if (!same_node(&a->nodes[n], &b->nodes[n])) return false;
    for (uint32_t i = 0; i < a->loss_count; i++)
        if (a->losses[i].value != b->losses[i].value ||
            !text_equal(a->losses[i].metric, b->losses[i].metric))
            return false;
    return true;
}
