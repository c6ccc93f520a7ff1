/* ops_element.c - ops by element: copies, sums, products and activations. */
#include <ops/op_rows.h>

#define FUNCTIONS "none|silu|gelu|gelu_tanh|tanh"
static const lh_option_t activate_attributes[] = {
    LH_OPTION_CHOICE(lh_activate_t, function, "function", NULL, FUNCTIONS, "which function"),
};

static lh_status_t copy_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    arg_like(&args[1], &args[0]);
    return LH_OK;
}

static void copy_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes;
    cost_set(out, 0, args, arg_count);
}

static void copy_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                          const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)g, (void)attributes, (void)forward;
    if (wanted[0]) into[0] = from[0];
}

static lh_status_t function_check(const char *op, const lh_activate_t *how)
{
    if (how->function <= LH_ACT_TANH) return LH_OK;
    return fail(LH_INVALID, "%s: function %u is unknown, expected 0 to %d", op, how->function,
                LH_ACT_TANH);
}

static lh_status_t activate_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rule = {"x", FLOATS, ANY, {ANY}};
    lh_status_t status = function_check("activate", attributes);
    if (status == LH_OK) status = args_check("activate", args, &rule, 1);
    if (status == LH_OK) arg_like(&args[1], &args[0]);
    return status;
}

static lh_status_t activate_grad_shape(const lh_host_t *host, const void *attributes,
                                       lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rules[] = {{"gy", FLOATS, ANY, {ANY}}, rule_like("x", FLOATS, &args[0])};
    lh_status_t status = function_check("activate_grad", attributes);
    if (status == LH_OK) status = args_check("activate_grad", args, rules, COUNT(rules));
    if (status == LH_OK) arg_like(&args[2], &args[1]);
    return status;
}

static void activate_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                              const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    if (wanted[0] && from[0] != 0)
        into[0] = record_one(g, "activate_grad", attributes, from[0], forward[0]);
}

static void activate_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                          lh_cost_t *out)
{
    (void)attributes;
    cost_set(out, 8 * arg_elements(&args[0]), args, arg_count);
}

static lh_status_t add_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                             uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rules[] = {{"a", FLOATS, ANY, {ANY}}, rule_like("b", FLOATS, &args[0])};
    const lh_status_t status = args_check("add", args, rules, COUNT(rules));
    if (status == LH_OK) arg_like(&args[2], &args[0]);
    return status;
}

static void add_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                         const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)g, (void)attributes, (void)forward;
    if (wanted[0]) into[0] = from[0];
    if (wanted[1]) into[1] = from[0];
}

static void once_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes;
    cost_set(out, arg_elements(&args[0]), args, arg_count);
}

/* How b of multiply is spread over a. */
enum { SPREAD_NONE, SPREAD_ROW, SPREAD_COLUMN };
static uint32_t spread(const lh_arg_t *a, const lh_arg_t *b)
{
    if (b->rank == 1 && a->rank == 2) return SPREAD_ROW;
    return b->rank == 2 && b->shape[1] == 1 && a->shape[1] != 1 ? SPREAD_COLUMN : SPREAD_NONE;
}

static lh_status_t multiply_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const lh_arg_t *a = &args[0], *b = &args[1];
    arg_rule_t rules[] = {{"a", FLOATS, ANY, {ANY}}, rule_like("b", FLOATS, a)};
    const uint32_t how = spread(a, b);
    if (how == SPREAD_ROW) rules[1] = (arg_rule_t){"b", FLOATS, 1, {a->shape[1]}};
    if (how == SPREAD_COLUMN) rules[1] = (arg_rule_t){"b", FLOATS, 2, {a->shape[0], 1}};
    const lh_status_t status = args_check("multiply", args, rules, COUNT(rules));
    if (status == LH_OK) arg_like(&args[2], a);
    return status;
}

static void multiply_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                              const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    if (from[0] == 0) return;
    if (wanted[0]) into[0] = record_one(g, "multiply", NULL, from[0], forward[1]);
    if (!wanted[1]) return;

    lh_arg_t a, b;
    if (g->api->shape(g, forward[0], &a) != LH_OK || g->api->shape(g, forward[1], &b) != LH_OK)
        return;
    into[1] = record_one(g, "multiply", NULL, from[0], forward[0]);
    const uint32_t how = spread(&a, &b);
    if (how == SPREAD_ROW) into[1] = record_one(g, "sum_rows", NULL, into[1], 0);
    if (how == SPREAD_COLUMN) into[1] = record_one(g, "sum_columns", NULL, into[1], 0);
}

static lh_status_t scale_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rules[] = {{"x", FLOATS, ANY, {ANY}}, {"factor", WIDE, 1, {1}}};
    const lh_status_t status = args_check("scale", args, rules, COUNT(rules));
    if (status == LH_OK) arg_like(&args[2], &args[0]);
    return status;
}

static void scale_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                           const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    if (from[0] == 0) return;
    if (wanted[0]) into[0] = record_one(g, "scale", NULL, from[0], forward[1]);
    if (!wanted[1]) return;
    const lh_value_t product = record_one(g, "multiply", NULL, from[0], forward[0]);
    into[1] = record_one(g, "sum_rows", NULL, record_one(g, "sum_columns", NULL, product, 0), 0);
}

static lh_status_t gate_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rules[] = {{"a", FLOATS, ANY, {ANY}},
                                rule_like("b", IS(args[0].dtype), &args[0])};
    lh_status_t status = function_check("gate", attributes);
    if (status == LH_OK) status = args_check("gate", args, rules, COUNT(rules));
    if (status == LH_OK) arg_like(&args[2], &args[0]);
    return status;
}

static lh_status_t gate_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                   uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rules[] = {{"gy", FLOATS, ANY, {ANY}},
                                rule_like("a", FLOATS, &args[0]),
                                rule_like("b", FLOATS, &args[0])};
    lh_status_t status = function_check("gate_grad", attributes);
    if (status == LH_OK) status = args_check("gate_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    arg_like(&args[3], &args[1]);
    arg_like(&args[4], &args[2]);
    return LH_OK;
}

static void gate_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                          const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    if (from[0] == 0) return;
    const lh_value_t in[] = {from[0], forward[0], forward[1]};
    lh_value_t gb;
    const lh_value_t ga = g->api->op(g, "gate_grad", attributes, in, 3, &gb);
    if (wanted[0]) into[0] = ga;
    if (wanted[1]) into[1] = gb;
}

static void gate_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                        lh_value_t *out)
{
    out[0] = record_one(g, "multiply", NULL, record_one(g, "activate", attributes, in[0], 0),
                        in[1]);
}

/* gy a b -> ga gb */
static void gate_grad_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                             lh_value_t *out)
{
    const lh_value_t of_activation = record_one(g, "multiply", NULL, in[0], in[2]);
    out[0] = record_one(g, "activate_grad", attributes, of_activation, in[1]);
    out[1] = record_one(g, "multiply", NULL, in[0],
                        record_one(g, "activate", attributes, in[1], 0));
}

#define BY_ELEMENT(op_text, op_shape, op_cost, op_gradient)                          \
    {                                                                                \
        LH_OP_TEXT(op_text), .flags = LH_OP_ROWS | LH_OP_COLUMNS, .shape = op_shape, \
                             .cost = op_cost, .gradient = op_gradient                \
    }
#define ACTIVATION(op_text, op_shape, op_gradient, ...)                                    \
    {                                                                                      \
        LH_OP_TEXT(op_text), ATTRIBUTES(lh_activate_t, activate_attributes),               \
            .flags = LH_OP_ROWS | LH_OP_COLUMNS, .shape = op_shape, .cost = activate_cost, \
            .gradient = op_gradient, __VA_ARGS__                                           \
    }

static const lh_op_t rows[] = {
    BY_ELEMENT(LH_COPY_TEXT, copy_shape, copy_cost, copy_gradient),
    BY_ELEMENT(LH_ADD_TEXT, add_shape, once_cost, add_gradient),
    BY_ELEMENT(LH_MULTIPLY_TEXT, multiply_shape, once_cost, multiply_gradient),
    BY_ELEMENT(LH_SCALE_TEXT, scale_shape, once_cost, scale_gradient),
    ACTIVATION(LH_ACTIVATE_TEXT, activate_shape, activate_gradient, .expand = NULL),
    ACTIVATION(LH_ACTIVATE_GRAD_TEXT, activate_grad_shape, NULL, .expand = NULL),
    ACTIVATION(LH_GATE_TEXT, gate_shape, gate_gradient, .expand = gate_expand,
               .fuses = "activate a -> x; multiply x b -> y | activate a -> x; multiply b x -> y"),
    ACTIVATION(LH_GATE_GRAD_TEXT, gate_grad_shape, NULL, .expand = gate_grad_expand),
};

const op_rows_t ops_element = {rows, COUNT(rows)};
