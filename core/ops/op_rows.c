/* op_rows.c - checks of inputs and statements of outputs for the core's ops. A mistake in what a
 * model recorded is refused with a sentence; what only the core's own files can do wrong is
 * asserted. */
#include <ops/op_rows.h>

#include <base/text.h>
#include <longhaul/dtype.h>

/* Whether an argument is what its rule says. */
static bool argument_fits(const lh_arg_t *arg, const arg_rule_t *rule)
{
    lh_assert(rule->rank <= LH_MAX_RANK);
    if ((rule->dtypes & IS(arg->dtype)) == 0) return false;
    if (rule->rank != ANY && rule->rank != arg->rank) return false;
    for (uint32_t i = 0; i < rule->rank; i++)
        if (rule->shape[i] != ANY && rule->shape[i] != arg->shape[i]) return false;
    return true;
}

/* Appends " [8, any, 4]". */
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

/* Appends what a rule allows: "F32 or BF16 [8, any]". */
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

/* Refuses an argument with a sentence; LH_NO_MEMORY where there is no memory for the sentence. */
static lh_status_t argument_refuse(const char *op, const lh_arg_t *arg, const arg_rule_t *rule)
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

/* An input that is left out is not checked: the recorder has refused it unless it is optional. */
lh_status_t op_args_check(const char *op, const lh_arg_t *args, const arg_rule_t *rules,
                          uint32_t count)
{
    lh_assert(count <= LH_MAX_SLOTS);
    for (uint32_t i = 0; i < count; i++)
        if (args[i].dtype != LH_DTYPE_NONE && !argument_fits(&args[i], &rules[i]))
            return argument_refuse(op, &args[i], &rules[i]);
    return LH_OK;
}

arg_rule_t op_rule_like(const char *slot, uint32_t dtypes, const lh_arg_t *like)
{
    lh_assert(like->rank <= LH_MAX_RANK);
    arg_rule_t rule = {.slot = slot, .dtypes = dtypes, .rank = like->rank};
    memcpy(rule.shape, like->shape, sizeof(rule.shape));
    return rule;
}

void op_arg_set(lh_arg_t *out, lh_dtype_t dtype, uint32_t rank, uint64_t rows, uint64_t columns)
{
    lh_assert(rank == 1 || rank == 2);
    *out = (lh_arg_t){.dtype = dtype, .rank = rank, .shape = {rows}};
    if (rank > 1) out->shape[1] = columns;
}

void op_arg_like(lh_arg_t *out, const lh_arg_t *like)
{
    lh_assert(like->rank <= LH_MAX_RANK);
    *out = (lh_arg_t){.dtype = like->dtype, .rank = like->rank};
    memcpy(out->shape, like->shape, sizeof(out->shape));
}

/* F64 data is for references and tests, which would lose their precision in F32 statistics. */
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

/* An argument that is left out has no elements, so it counts no bytes. */
void op_cost_set(lh_cost_t *out, double flops, const lh_arg_t *args, uint32_t arg_count)
{
    double bytes = 0;
    lh_assert(flops >= 0 && arg_count <= LH_MAX_SLOTS);
    for (uint32_t i = 0; i < arg_count; i++)
        bytes += op_arg_elements(&args[i]) * (double)lh_dtype_bytes(args[i].dtype);
    LH_FILL(lh_cost_t, out, .flops = flops, .bytes = bytes);
}

lh_value_t op_record(lh_graph_t *g, const char *op, const void *attributes, lh_value_t a,
                     lh_value_t b)
{
    lh_assert(op != NULL);
    const lh_value_t in[] = {a, b};
    return g->api->op(g, op, attributes, in, b == 0 ? 1 : 2, NULL);
}
