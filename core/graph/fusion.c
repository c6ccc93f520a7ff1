/* fusion.c - finds the patterns, asks for a kernel, rewrites in place. */
#include <graph/fusion.h>

#include <base/memory.h>
#include <graph/recorder.h>

#include <longhaul/ops.h>

typedef struct fusion {
    recording_t *r;
    fusion_has_kernel_t has_kernel;
    void *context;
} fusion_t;

static bool is_op(const graph_node_t *node, const char *name)
{
    return node->op != NULL && node->op->plugin == NULL && strcmp(node->op->row.name, name) == 0;
}

/* The live node that makes v, if it is the named op; NULL otherwise. */
static graph_node_t *maker(const recording_t *r, lh_value_t v, const char *name)
{
    if (r->values[v].kind != VALUE_RESULT) return NULL;
    graph_node_t *node = &r->nodes[r->values[v].node];
    return is_op(node, name) ? node : NULL;
}

static bool used_once(const recording_t *r, lh_value_t v)
{
    uint32_t uses = r->output == v;
    for (uint32_t i = 0; i < r->loss_count; i++)
        uses += r->losses[i].value == v;
    for (uint32_t n = 1; n < r->node_count; n++)
        for (uint32_t s = 0; r->nodes[n].op != NULL && s < r->nodes[n].op->in_count; s++)
            uses += r->nodes[n].slots[s] == v;
    return uses == 1;
}

static void drop_value(recording_t *r, lh_value_t v)
{
    if (v != 0) r->values[v] = (graph_value_t){.kind = VALUE_NONE};
}

static void drop_node(graph_node_t *node)
{
    mem_free(node->attributes);
    *node = (graph_node_t){.op = NULL};
}

/* The fused call if the op exists and has a kernel; *fits says so. On LH_OK with fits the caller
 * owns call->attributes. */
static lh_status_t propose(const fusion_t *f, const char *name, const void *attributes,
                           const lh_value_t *in, uint32_t in_count, op_call_t *call, bool *fits)
{
    const op_t *op = op_table_find(f->r->how.ops, name);
    *fits = false;
    if (op == NULL) return LH_OK;
    const lh_status_t status = op_call_make(f->r, op, attributes, in, in_count, call);
    if (status != LH_OK) return status;
    *fits = f->has_kernel(f->context, op, call->attributes, call->args,
                          op->in_count + op->out_count);
    if (!*fits) mem_free(call->attributes);
    return LH_OK;
}

/* Puts the call in place of node `index`, with these outputs (0: a new value is made). */
static lh_status_t replace(fusion_t *f, uint32_t index, op_call_t *call, const lh_value_t *outputs)
{
    recording_t *r = f->r;
    const op_t *op = call->op;
    graph_node_t node = {.op = op, .attributes = call->attributes};
    memcpy(node.slots, call->in, op->in_count * sizeof(node.slots[0]));
    for (uint32_t i = 0; i < op->out_count; i++) {
        const uint32_t slot = op->in_count + i;
        const graph_value_t value = {
            .kind = VALUE_RESULT, .node = index, .slot = slot, .arg = call->args[slot]};
        node.slots[slot] = outputs[i];
        if (outputs[i] != 0)
            r->values[outputs[i]] = value;
        else if ((node.slots[slot] = recorder_value(r, &value)) == 0) {
            mem_free(call->attributes);
            return r->status;
        }
    }
    drop_node(&r->nodes[index]);
    r->nodes[index] = node;
    return LH_OK;
}

/* The gradient runs on the same device, so it must have that kernel too. */
static lh_status_t has_gate_gradient(const fusion_t *f, const void *attributes, lh_value_t a,
                                     lh_value_t b, bool *fits)
{
    const lh_value_t in[] = {a, a, b};
    op_call_t call;
    const lh_status_t status = propose(f, "gate_grad", attributes, in, 3, &call, fits);
    if (status == LH_OK && *fits) mem_free(call.attributes);
    return status;
}

/* multiply at `index`, one side of which (0 or 1) is an activation that only it uses. */
static lh_status_t fuse_gate(fusion_t *f, uint32_t index, uint32_t side, bool *done)
{
    recording_t *r = f->r;
    const graph_node_t product = r->nodes[index];
    const lh_value_t x = product.slots[side], other = product.slots[1 - side];
    graph_node_t *activate = maker(r, x, "activate");
    const lh_arg_t *a = &r->values[x].arg, *b = &r->values[other].arg;
    if (activate == NULL || !used_once(r, x)) return LH_OK;
    if (a->dtype != b->dtype || a->rank != b->rank ||
        memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) != 0)
        return LH_OK;

    const lh_value_t in[] = {activate->slots[0], other};
    op_call_t call;
    lh_status_t status = has_gate_gradient(f, activate->attributes, in[0], in[1], done);
    if (status == LH_OK && *done)
        status = propose(f, "gate", activate->attributes, in, 2, &call, done);
    if (status != LH_OK || !*done) return status;

    status = replace(f, index, &call, &product.slots[2]);
    if (status != LH_OK) return status;
    drop_node(&r->nodes[r->values[x].node]);
    drop_value(r, x);
    return LH_OK;
}

enum { MATMUL_INPUTS = 5 }; /* a b bias scale_a scale_b, then c aux amax */

/* activate at `index` of a matmul without one. What the product was becomes aux, which the gradient
 * reads, so that its other users stay right. */
static lh_status_t fuse_activation(fusion_t *f, uint32_t index, bool *done)
{
    recording_t *r = f->r;
    const graph_node_t activate = r->nodes[index];
    const lh_value_t product = activate.slots[0], y = activate.slots[1];
    const graph_node_t *matmul = maker(r, product, "matmul");
    if (matmul == NULL || r->values[product].slot != MATMUL_INPUTS) return LH_OK;
    lh_matmul_t how = *(const lh_matmul_t *)matmul->attributes;
    if (how.activation != LH_ACT_NONE) return LH_OK;

    how.activation = ((const lh_activate_t *)activate.attributes)->function;
    op_call_t call;
    lh_status_t status = propose(f, "matmul", &how, matmul->slots, MATMUL_INPUTS, &call, done);
    if (status != LH_OK || !*done) return status;

    const lh_value_t unused = matmul->slots[MATMUL_INPUTS + 1];
    const lh_value_t outputs[] = {y, product, matmul->slots[MATMUL_INPUTS + 2]};
    status = replace(f, r->values[product].node, &call, outputs);
    if (status != LH_OK) return status;
    drop_node(&r->nodes[index]);
    drop_value(r, unused);
    return LH_OK;
}

/* rms_norm at `index` of a sum. The fused op stands where the sum stood, so w must exist there. */
static lh_status_t fuse_residual(fusion_t *f, uint32_t index, bool *done)
{
    recording_t *r = f->r;
    const graph_node_t norm = r->nodes[index];
    const lh_value_t sum = norm.slots[0], w = norm.slots[1];
    const graph_node_t *add = maker(r, sum, "add");
    if (add == NULL) return LH_OK;
    const uint32_t at = r->values[sum].node;
    if (r->values[w].kind == VALUE_RESULT && r->values[w].node >= at) return LH_OK;
    if (r->values[add->slots[0]].arg.dtype != r->values[add->slots[1]].arg.dtype) return LH_OK;

    const lh_value_t in[] = {add->slots[0], add->slots[1], w};
    op_call_t call;
    lh_status_t status = propose(f, "add_rms_norm", norm.attributes, in, 3, &call, done);
    if (status != LH_OK || !*done) return status;

    const lh_value_t outputs[] = {sum, norm.slots[2], norm.slots[3]};
    status = replace(f, at, &call, outputs);
    if (status == LH_OK) drop_node(&r->nodes[index]);
    return status;
}

static lh_status_t fuse_gate_either(fusion_t *f, uint32_t index, bool *done)
{
    const lh_status_t status = fuse_gate(f, index, 0, done);
    return status != LH_OK || *done ? status : fuse_gate(f, index, 1, done);
}

/* Gates come first: an activation behind a matmul may be half of one. */
static const struct {
    const char *op;
    lh_status_t (*fuse)(fusion_t *f, uint32_t index, bool *done);
} patterns[] = {
    {"multiply", fuse_gate_either},
    {"activate", fuse_activation},
    {"rms_norm", fuse_residual},
};

/* Closes the gaps that dropped nodes left. */
static void compact(recording_t *r)
{
    uint32_t kept = 1;
    for (uint32_t n = 1; n < r->node_count; n++) {
        if (r->nodes[n].op == NULL) continue;
        r->nodes[kept] = r->nodes[n];
        for (uint32_t s = r->nodes[kept].op->in_count; s < node_slots(&r->nodes[kept]); s++)
            if (r->nodes[kept].slots[s] != 0) r->values[r->nodes[kept].slots[s]].node = kept;
        kept++;
    }
    r->node_count = kept;
}

lh_status_t recording_fuse(recording_t *r, fusion_has_kernel_t has_kernel, void *context)
{
    fusion_t f = {.r = r, .has_kernel = has_kernel, .context = context};
    lh_status_t status = recording_status(r);
    for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++)
        for (uint32_t n = 1; n < r->node_count && status == LH_OK; n++) {
            bool done = false;
            if (is_op(&r->nodes[n], patterns[p].op)) status = patterns[p].fuse(&f, n, &done);
        }
    compact(r);
    recorder_failed(r, status);
    return status;
}
