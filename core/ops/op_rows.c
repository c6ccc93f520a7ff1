/* op_rows.c - checks of inputs and statements of outputs for the core's ops. */
#include <ops/op_rows.h>

#include <base/text.h>
#include <longhaul/dtype.h>

static bool fits(const lh_arg_t *arg, const arg_rule_t *rule)
{
    if ((rule->dtypes & IS(arg->dtype)) == 0) return false;
    if (rule->rank != ANY && rule->rank != arg->rank) return false;
    for (uint32_t i = 0; i < rule->rank; i++)
        if (rule->shape[i] != ANY && rule->shape[i] != arg->shape[i]) return false;
    return true;
}

static void describe_shape(text_t *t, uint32_t rank, const uint64_t *shape)
{
    text_append(t, " [");
    for (uint32_t i = 0; i < rank; i++) {
        if (i > 0) text_append(t, ", ");
        if (shape[i] == ANY)
            text_append(t, "any");
        else
            text_printf(t, "%llu", (unsigned long long)shape[i]);
    }
    text_append(t, "]");
}

static void describe_rule(text_t *t, const arg_rule_t *rule)
{
    if (rule->dtypes == ANY_DTYPE) text_append(t, "any dtype");
    bool first = true;
    for (lh_dtype_t d = 0; d < LH_DTYPES && rule->dtypes != ANY_DTYPE; d++) {
        if ((rule->dtypes & IS(d)) == 0) continue;
        text_printf(t, "%s%s", first ? "" : " or ", lh_dtype_name(d));
        first = false;
    }
    if (rule->rank != ANY) describe_shape(t, rule->rank, rule->shape);
}

static lh_status_t refuse(const char *op, const lh_arg_t *arg, const arg_rule_t *rule)
{
    text_t found = {0}, expected = {0};
    text_append(&found, lh_dtype_name(arg->dtype));
    describe_shape(&found, arg->rank, arg->shape);
    describe_rule(&expected, rule);
    lh_status_t status = text_status(&found);
    if (status == LH_OK) status = text_status(&expected);
    if (status == LH_OK)
        status = fail(LH_INVALID, "%s: input %s is %s, expected %s", op, rule->slot, found.data,
                      expected.data);
    text_free(&found);
    text_free(&expected);
    return status;
}

lh_status_t op_args_check(const char *op, const lh_arg_t *args, const arg_rule_t *rules,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (args[i].dtype != LH_DTYPE_NONE && !fits(&args[i], &rules[i]))
            return refuse(op, &args[i], &rules[i]);
    return LH_OK;
}

arg_rule_t op_rule_like(const char *slot, uint32_t dtypes, const lh_arg_t *like)
{
    arg_rule_t rule = {.slot = slot, .dtypes = dtypes, .rank = like->rank};
    memcpy(rule.shape, like->shape, sizeof(rule.shape));
    return rule;
}

void op_arg_set(lh_arg_t *out, lh_dtype_t dtype, uint32_t rank, uint64_t rows, uint64_t columns)
{
    *out = (lh_arg_t){.dtype = dtype, .rank = rank, .shape = {rows}};
    if (rank > 1) out->shape[1] = columns;
}

void op_arg_like(lh_arg_t *out, const lh_arg_t *like)
{
    *out = (lh_arg_t){.dtype = like->dtype, .rank = like->rank};
    memcpy(out->shape, like->shape, sizeof(out->shape));
}

lh_dtype_t op_dtype_wide(lh_dtype_t dtype)
{
    return dtype == LH_DTYPE_F64 ? LH_DTYPE_F64 : LH_DTYPE_F32;
}

double op_arg_elements(const lh_arg_t *arg)
{
    if (arg->dtype == LH_DTYPE_NONE) return 0;
    double n = 1;
    for (uint32_t i = 0; i < arg->rank; i++)
        n *= (double)arg->shape[i];
    return n;
}

void op_cost_set(lh_cost_t *out, double flops, const lh_arg_t *args, uint32_t arg_count)
{
    double bytes = 0;
    for (uint32_t i = 0; i < arg_count; i++)
        bytes += op_arg_elements(&args[i]) * (double)lh_dtype_bytes(args[i].dtype);
    LH_FILL(lh_cost_t, out, .flops = flops, .bytes = bytes);
}

lh_value_t op_record(lh_graph_t *g, const char *op, const void *attributes, lh_value_t a,
                     lh_value_t b)
{
    const lh_value_t in[] = {a, b};
    return g->api->op(g, op, attributes, in, b == 0 ? 1 : 2, NULL);
}
