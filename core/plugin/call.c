/* call.c - runs a bound call through libffi; nothing is allocated here. */
#include <plugin/call.h>

#include <math.h>

#include <base/memory.h>
#include <plugin/call_tree.h>

/* libffi widens small integers: the room is at least ffi_arg. */
typedef union result {
    ffi_sarg small;
    int64_t i64;
    uint64_t u64;
    double f64;
    const char *str;
    lh_tensor_t *tensor;
} result_t;

static lh_status_t take_result(const call_t *c, call_node_t *n, const result_t *r)
{
    switch (n->type) {
    case CALL_STATUS: {
        const lh_status_t status = (lh_status_t)r->small;
        if (status != LH_OK && fail_reason()[0] == '\0')
            return fail(status, "%s: %s: %s", c->where, n->name, status_text(status));
        return status;
    }
    case CALL_F64:
        if (!isfinite(r->f64)) return fail(LH_INVALID, "%s: %s gave %g", c->where, n->name, r->f64);
        n->value.f64 = r->f64;
        return LH_OK;
    case CALL_STR: n->value.str = r->str; return LH_OK;
    case CALL_TENSOR: n->value.tensor = r->tensor; return LH_OK;
    default: n->value.u64 = r->u64; return LH_OK;
    }
}

/* Depth was bounded when the tree was made. */
static lh_status_t run_node(call_t *c, uint32_t index, const call_value_t *values)
{
    call_node_t *n = &c->nodes[index];
    result_t result = {0};
    if (n->kind == NODE_CONSTANT) return LH_OK;
    if (n->kind == NODE_VARIABLE) {
        n->value = values[n->variable];
        return LH_OK;
    }
    for (uint32_t i = 0; i < n->arg_count; i++) {
        const lh_status_t status = run_node(c, n->args[i], values);
        if (status != LH_OK) return status;
    }
    if (n->type == CALL_STATUS) fail_clear();
    ffi_call(&n->cif, n->fn, &result, n->values);
    return take_result(c, n, &result);
}

lh_status_t call_run(call_t *c, const call_value_t *values, call_value_t *out)
{
    const lh_status_t status = run_node(c, c->root, values);
    if (status == LH_OK && out != NULL) *out = c->nodes[c->root].value;
    return status;
}

void call_free(call_t *c)
{
    if (c == NULL) return;
    mem_free(c->text);
    mem_free(c->where);
    mem_free(c);
}
