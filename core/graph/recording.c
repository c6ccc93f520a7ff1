/* recording.c - values and nodes as passes add them, failures, and when two recordings are the same. */
#include <graph/recording.h>

#include <stdio.h>

#include <longhaul/model.h>

#include <base/memory.h>
#include <base/text.h>

/* Only the first failure is kept, as later ones follow from it. The sentence of the last fail() is
 * copied, as the next one overwrites it. */
void recording_failed(recording_t *r, lh_status_t status)
{
    if (status == LH_OK || r->status != LH_OK) return;
    r->status = status;
    r->reason = mem_text(fail_reason());
}

/* Without memory the sentence stays as it is. */
void recording_explain(recording_t *r, const char *before)
{
    text_t text = {0};
    if (r->reason == NULL) return;
    text_printf(&text, "%s%s", before, r->reason);
    if (text.failed) {
        text_free(&text);
        return;
    }
    mem_free(r->reason);
    r->reason = text.data;
}

/* Values never change their ids. The array may move, so a pointer into it does not outlive the next
 * call. */
lh_value_t recording_value_add(recording_t *r, const graph_value_t *value)
{
    graph_value_t *values = mem_grow(r->values, &r->value_capacity, (size_t)r->value_count + 1,
                                     sizeof(*values));
    if (values == NULL) {
        recording_failed(r, LH_NO_MEMORY);
        return 0;
    }
    r->values = values;
    values[r->value_count] = *value;
    return r->value_count++;
}

uint32_t recording_node_add(recording_t *r, const graph_node_t *node)
{
    graph_node_t *nodes = mem_grow(r->nodes, &r->node_capacity, (size_t)r->node_count + 1,
                                   sizeof(*nodes));
    if (nodes == NULL) {
        recording_failed(r, LH_NO_MEMORY);
        return 0;
    }
    r->nodes = nodes;
    nodes[r->node_count] = *node;
    return r->node_count++;
}

bool recording_args_alike(const lh_arg_t *a, const lh_arg_t *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) == 0;
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
    for (uint32_t i = 0; i < r->added_count; i++)
        mem_free((char *)r->added[i].name);
    for (uint32_t i = 0; i < r->total_count; i++)
        mem_free((char *)r->totals[i].name);
    mem_free(r->added);
    mem_free(r->totals);
    mem_free(r->values);
    mem_free(r->nodes);
    mem_free(r->losses);
    mem_free(r->reason);
    mem_free(r);
}

/* Calls fail() with the sentence of the first failure, as other sentences may have come since. */
lh_status_t recording_status(const recording_t *r)
{
    if (r->status == LH_OK) return LH_OK;
    /* errno is not what it was then, and the sentence has it already. */
    const lh_status_t said = r->status == LH_IO ? LH_INVALID : r->status;
    (void)fail(said, "%s", r->reason == NULL ? status_text(r->status) : r->reason);
    return r->status;
}

lh_status_t recording_status_of(const recording_t *r, uint32_t part, uint32_t block)
{
    char reason[1024], where[32];
    const lh_status_t status = recording_status(r);
    if (status == LH_OK || status == LH_NO_MEMORY) return status;
    (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
    (void)snprintf(where, sizeof(where), "block %u", block);
    (void)fail(status, "%s, %s",
               part == LH_PART_EMBED  ? "embedding"
               : part == LH_PART_HEAD ? "head"
                                      : where,
               reason);
    return status;
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
    return r->status == LH_OK ? recording_value_add(r, &value) : 0;
}

void recording_retype(recording_t *r, lh_value_t v, lh_dtype_t dtype)
{
    lh_assert(v > 0 && v < r->value_count);
    r->values[v].arg.dtype = dtype;
}

/* Compares field by field, as the unused ends of shapes may differ. */
static bool same_arg(const lh_arg_t *a, const lh_arg_t *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->layout == b->layout &&
           memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) == 0 &&
           memcmp(a->stride, b->stride, a->rank * sizeof(a->stride[0])) == 0;
}

/* Compares two values; parameters by their names in the part. */
static bool same_graph_value(const graph_value_t *a, const graph_value_t *b)
{
    if (a->kind != b->kind || a->node != b->node || a->slot != b->slot || a->which != b->which)
        return false;
    if (!text_equal(a->name, b->name) || !same_arg(&a->arg, &b->arg)) return false;
    return a->constant_count == b->constant_count &&
           (a->constant_count == 0 ||
            memcmp(a->constant, b->constant, a->constant_count * sizeof(float)) == 0);
}

/* Compares two nodes. Ops are rows of one table, so equal ops are one pointer; attributes are
 * compared as bytes. */
static bool same_graph_node(const graph_node_t *a, const graph_node_t *b)
{
    if (a->op != b->op || a->backward != b->backward) return false;
    if (memcmp(a->slots, b->slots, sizeof(a->slots)) != 0) return false;
    if (memcmp(a->adds_to, b->adds_to, sizeof(a->adds_to)) != 0) return false;
    return a->attributes == NULL ||
           memcmp(a->attributes, b->attributes, a->op->row.attributes_bytes) == 0;
}

static bool same_sums(const graph_sum_t *a, const graph_sum_t *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (a[i].value != b[i].value || !text_equal(a[i].name, b[i].name)) return false;
    return true;
}

/* Ids are compared too, as equal blocks are recorded by the same calls in the same order. */
bool recording_equal(const recording_t *a, const recording_t *b)
{
    if (a->value_count != b->value_count || a->node_count != b->node_count) return false;
    if (a->loss_count != b->loss_count || a->output != b->output) return false;
    for (lh_value_t v = 1; v < a->value_count; v++)
        if (!same_graph_value(&a->values[v], &b->values[v])) return false;
    for (uint32_t n = 1; n < a->node_count; n++)
        if (!same_graph_node(&a->nodes[n], &b->nodes[n])) return false;
    for (uint32_t i = 0; i < a->loss_count; i++)
        if (a->losses[i].value != b->losses[i].value ||
            !text_equal(a->losses[i].metric, b->losses[i].metric))
            return false;
    return a->added_count == b->added_count && a->total_count == b->total_count &&
           same_sums(a->added, b->added, a->added_count) &&
           same_sums(a->totals, b->totals, a->total_count);
}

/* Nodes that are alike name the same values, so those of `a` are numbers of both. */
uint32_t recording_difference(const recording_t *a, const recording_t *b)
{
    const uint32_t both = a->node_count < b->node_count ? a->node_count : b->node_count;
    for (uint32_t n = 1; n < both; n++) {
        if (!same_graph_node(&a->nodes[n], &b->nodes[n])) return n;
        for (uint32_t s = 0; s < node_slots(&a->nodes[n]); s++) {
            const lh_value_t v = a->nodes[n].slots[s];
            lh_assert(v < a->value_count && v < b->value_count);
            if (v != 0 && !same_graph_value(&a->values[v], &b->values[v])) return n;
        }
    }
    return a->node_count == b->node_count ? 0 : both;
}

/* In whose memory a value lies. */
static lh_value_t value_owner(const recording_t *r, lh_value_t v)
{
    for (;;) {
        const graph_value_t *value = &r->values[v];
        if (value->kind != VALUE_RESULT) return v;
        const graph_node_t *node = &r->nodes[value->node];
        const uint32_t alias = node->op->alias[value->slot];
        if (alias == 0 || node->slots[alias - 1] == 0) return v;
        v = node->slots[alias - 1];
    }
}

/* Whether a node works in place on a value that lies in the owner's memory. */
static bool node_writes_over(const recording_t *r, const graph_node_t *node, lh_value_t owner)
{
    for (uint32_t s = node->op->in_count; s < node_slots(node); s++) {
        const uint32_t alias = node->op->alias[s];
        const lh_value_t in = alias == 0 ? 0 : node->slots[alias - 1];
        if (in != 0 && value_owner(r, in) == owner) return true;
    }
    return false;
}

uint32_t recording_written_over(const recording_t *r, lh_value_t v)
{
    lh_assert(v > 0 && v < r->value_count);
    const lh_value_t owner = value_owner(r, v);
    if (r->values[owner].kind != VALUE_ARGUMENT) return 0;
    const uint32_t maker = r->values[v].kind == VALUE_RESULT ? r->values[v].node : 0;
    for (uint32_t n = maker + 1; n < r->node_count; n++)
        if (node_writes_over(r, &r->nodes[n], owner)) return n;
    return 0;
}

uint32_t recording_late_read(const recording_t *r, uint32_t *over)
{
    for (uint32_t n = 1; n < r->node_count; n++)
        for (uint32_t s = 0; s < r->nodes[n].op->in_count; s++) {
            const lh_value_t v = r->nodes[n].slots[s];
            *over = v == 0 ? 0 : recording_written_over(r, v);
            if (*over != 0 && *over < n) return n;
        }
    return 0;
}
