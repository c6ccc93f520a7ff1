/* ops_linear.c - matrix products and sums over rows or columns. */
#include <ops/op_rows.h>

static const lh_option_t matmul_attributes[] = {
    LH_OPTION_CHOICE(lh_matmul_t, transpose_a, "transpose_a", "no", "no|yes", "a is [k, m]"),
    LH_OPTION_CHOICE(lh_matmul_t, transpose_b, "transpose_b", "no", "no|yes", "b is [n, k]"),
    LH_OPTION_CHOICE(lh_matmul_t, activation, "activation", "none", "none|silu|gelu|gelu_tanh|tanh",
                     "function of what is written to c"),
};

enum { MM_A, MM_B, MM_BIAS, MM_SCALE_A, MM_SCALE_B, MM_C, MM_AUX, MM_AMAX };

static lh_status_t matmul_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const lh_matmul_t *how = attributes;
    const lh_arg_t *a = &args[MM_A], *b = &args[MM_B];
    const uint64_t m = a->shape[how->transpose_a != 0], k = a->shape[how->transpose_a == 0];
    const uint64_t n = b->shape[how->transpose_b == 0];
    const uint64_t b_rows = how->transpose_b != 0 ? ANY : k;
    const uint64_t b_columns = how->transpose_b != 0 ? k : ANY;

    const arg_rule_t rules[] = {
        {"a", FLOATS, 2, {ANY, ANY}},
        {"b", IS(a->dtype), 2, {b_rows, b_columns}},
        {"bias", FLOATS, 1, {n}},
        {"scale_a", IS(LH_DTYPE_F32), 1, {1}},
        {"scale_b", IS(LH_DTYPE_F32), 1, {1}},
    };
    const lh_status_t status = args_check("matmul", args, rules, COUNT(rules));
    if (status != LH_OK) return status;

    arg_set(&args[MM_C], a->dtype, 2, m, n);
    arg_set(&args[MM_AUX], a->dtype, 2, m, n);
    arg_set(&args[MM_AMAX], LH_DTYPE_F32, 1, 1, 0);
    return LH_OK;
}

static void matmul_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                        lh_cost_t *out)
{
    const lh_matmul_t *how = attributes;
    const double k = (double)args[MM_A].shape[how->transpose_a == 0];
    cost_set(out, 2 * k * arg_elements(&args[MM_C]), args, arg_count);
}

/* With y = op(a) op(b): the gradient of a is gy op(b)', of b op(a)' gy, each transposed again if
 * the forward product read it transposed. */
static lh_value_t matmul_gradient_a(lh_graph_t *g, const lh_matmul_t *how, lh_value_t gy,
                                    lh_value_t b)
{
    const uint32_t tb = how->transpose_b;
    if (how->transpose_a != 0) {
        const lh_matmul_t product = {sizeof(product), tb, 1, LH_ACT_NONE};
        return record_one(g, "matmul", &product, b, gy);
    }
    const lh_matmul_t product = {sizeof(product), 0, !tb, LH_ACT_NONE};
    return record_one(g, "matmul", &product, gy, b);
}

static lh_value_t matmul_gradient_b(lh_graph_t *g, const lh_matmul_t *how, lh_value_t gy,
                                    lh_value_t a)
{
    const uint32_t ta = how->transpose_a;
    if (how->transpose_b != 0) {
        const lh_matmul_t product = {sizeof(product), 1, ta, LH_ACT_NONE};
        return record_one(g, "matmul", &product, gy, a);
    }
    const lh_matmul_t product = {sizeof(product), !ta, 0, LH_ACT_NONE};
    return record_one(g, "matmul", &product, a, gy);
}

static void matmul_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                            const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    const lh_matmul_t *how = attributes;
    lh_value_t gy = from[0];
    if (gy != 0 && how->activation != LH_ACT_NONE) {
        const lh_activate_t act = {sizeof(act), how->activation};
        gy = record_one(g, "activate_grad", &act, gy, forward[MM_AUX]);
    }
    const lh_value_t before =
        from[MM_AUX - MM_C]; /* others may use what the activation was given */
    if (before != 0) gy = gy == 0 ? before : record_one(g, "add", NULL, gy, before);
    if (gy == 0 || from[MM_AMAX - MM_C] != 0) return;
    lh_value_t product = gy; /* the gradient of op(a) op(b), which stands before the scales */
    for (uint32_t s = MM_SCALE_A; s <= MM_SCALE_B; s++)
        if (forward[s] != 0) product = record_one(g, "scale", NULL, product, forward[s]);
    if (wanted[MM_A]) into[MM_A] = matmul_gradient_a(g, how, product, forward[MM_B]);
    if (wanted[MM_B]) into[MM_B] = matmul_gradient_b(g, how, product, forward[MM_A]);
    if (wanted[MM_BIAS]) into[MM_BIAS] = record_one(g, "sum_rows", NULL, gy, 0);
}

static lh_status_t linear_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_LINEAR_TEXT);
    const lh_arg_t *x = &args[in_x], *weight = &args[in_weight];
    const arg_rule_t rules[] = {{"x", FLOATS, 2, {ANY, ANY}},
                                {"weight", IS(x->dtype), 2, {ANY, x->shape[1]}},
                                {"bias", FLOATS, 1, {weight->shape[0]}}};
    const lh_status_t status = args_check("linear", args, rules, COUNT(rules));
    if (status == LH_OK) arg_set(&args[out_y], x->dtype, 2, x->shape[0], weight->shape[0]);
    return status;
}

static void linear_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                          lh_value_t *out)
{
    (void)attributes;
    const lh_matmul_t how = {.struct_size = sizeof(how), .transpose_b = 1};
    out[0] = g->api->op(g, "matmul", &how, in, 3, NULL);
}

/* An activation behind a product that has none. What the product was stays as aux, for the gradient
 * and for other users. */
static bool matmul_fuse(const void *const *calls, void *out)
{
    const lh_matmul_t *product = calls[0];
    const lh_activate_t *activate = calls[1];
    lh_matmul_t *fused = out;
    *fused = *product;
    fused->activation = activate->function;
    return product->activation == LH_ACT_NONE;
}

static lh_status_t sum_rows_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = args_check("sum_rows", args, &rule, 1);
    if (status == LH_OK) arg_set(&args[1], args[0].dtype, 1, args[0].shape[1], 0);
    return status;
}

static lh_status_t sum_columns_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                     uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = args_check("sum_columns", args, &rule, 1);
    if (status == LH_OK) arg_set(&args[1], args[0].dtype, 2, args[0].shape[0], 1);
    return status;
}

static void sum_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                     lh_cost_t *out)
{
    (void)attributes;
    cost_set(out, arg_elements(&args[0]), args, arg_count);
}

static const lh_op_t rows[] = {
    {
        LH_OP_TEXT(LH_MATMUL_TEXT),
        ATTRIBUTES(lh_matmul_t, matmul_attributes),
        .flags = LH_OP_COSTLY | LH_OP_PRODUCT,
        .shape = matmul_shape,
        .cost = matmul_cost,
        .gradient = matmul_gradient,
        .fuses = "matmul a b bias scale_a scale_b -> aux _ amax; activate aux -> c",
        .fuse = matmul_fuse,
    },
    {
        LH_OP_TEXT(LH_LINEAR_TEXT),
        .shape = linear_shape,
        .expand = linear_expand,
    },
    {
        LH_OP_TEXT(LH_SUM_ROWS_TEXT),
        .flags = LH_OP_COLUMNS,
        .shape = sum_rows_shape,
        .cost = sum_cost,
    },
    {
        LH_OP_TEXT(LH_SUM_COLUMNS_TEXT),
        .flags = LH_OP_ROWS,
        .shape = sum_columns_shape,
        .cost = sum_cost,
    },
};

const op_rows_t ops_linear = {rows, COUNT(rows)};
