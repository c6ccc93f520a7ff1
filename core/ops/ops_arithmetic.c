/* ops_arithmetic.c - matrix products, sums over rows or columns, and ops by element.
 *
 * Two groups of rows. The linear ops: `matmul`, which has nearly all FLOPs of a model; `linear`,
 * which is always recorded as a matmul; and the sums that the gradients of biases and factors need.
 * The ops by element: copies, sums, products, activations and gated activations (SwiGLU and its
 * like; Shazeer, "GLU variants improve transformer", 2020). Ops by element may be cut by rows and
 * by columns, as no element needs another. */
#include <ops/op_rows.h>

/* Names of LH_ACT_*, in their order. */
#define FUNCTIONS "none|silu|gelu|gelu_tanh|tanh"

static const lh_option_t matmul_attributes[] = {
    LH_OPTION_CHOICE(lh_matmul_t, transpose_a, "transpose_a", "no", "no|yes", "a is [k, m]"),
    LH_OPTION_CHOICE(lh_matmul_t, transpose_b, "transpose_b", "no", "no|yes", "b is [n, k]"),
    LH_OPTION_CHOICE(lh_matmul_t, activation, "activation", "none", FUNCTIONS,
                     "function of what is written to c"),
};

/* Slots of matmul, in the order of LH_MATMUL_TEXT. */
enum { MM_A, MM_B, MM_BIAS, MM_SCALE_A, MM_SCALE_B, MM_C, MM_AUX, MM_AMAX };

/* An activation is more than a product: what is joined behind it would be another function's. */
static bool matmul_product(const void *attributes, bool *transpose_a, bool *transpose_b)
{
    const lh_matmul_t *how = attributes;
    *transpose_a = how->transpose_a != 0;
    *transpose_b = how->transpose_b != 0;
    return how->activation == LH_ACT_NONE;
}

/* a [m, k] and b [k, n] ([k, m] and [n, k] where they are transposed) give c and aux [m, n] in the
 * dtype of a, and amax F32 [1], the largest |c|. bias is [n], scale_a and scale_b are F32 [1]. */
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
    const lh_status_t status = op_args_check("matmul", args, rules, COUNT(rules));
    if (status != LH_OK) return status;

    op_arg_set(&args[MM_C], a->dtype, 2, m, n);
    op_arg_set(&args[MM_AUX], a->dtype, 2, m, n);
    op_arg_set(&args[MM_AMAX], LH_DTYPE_F32, 1, 1, 0);
    return LH_OK;
}

/* A multiplication and an addition for each of the k terms of each element of c: 2 m n k FLOPs. */
static void matmul_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                        lh_cost_t *out)
{
    const lh_matmul_t *how = attributes;
    const double k = (double)args[MM_A].shape[how->transpose_a == 0];
    op_cost_set(out, 2 * k * op_arg_elements(&args[MM_C]), args, arg_count);
}

/* With y = op(a) op(b), the gradient of op(a) is gy op(b)', and that of op(b) is op(a)' gy, where '
 * transposes; the gradient of a or b is transposed once more if the forward product read a or b
 * transposed. Each of the four cases is one matmul, without a copy that transposes. */
static lh_value_t matmul_gradient_a(lh_graph_t *g, const lh_matmul_t *how, lh_value_t gy,
                                    lh_value_t b)
{
    const uint32_t tb = how->transpose_b;
    if (how->transpose_a != 0) {
        const lh_matmul_t product = {sizeof(product), tb, 1, LH_ACT_NONE};
        return op_record(g, "matmul", &product, b, gy);
    }
    const lh_matmul_t product = {sizeof(product), 0, !tb, LH_ACT_NONE};
    return op_record(g, "matmul", &product, gy, b);
}

/* The same for b: op(a)' gy. */
static lh_value_t matmul_gradient_b(lh_graph_t *g, const lh_matmul_t *how, lh_value_t gy,
                                    lh_value_t a)
{
    const uint32_t ta = how->transpose_a;
    if (how->transpose_b != 0) {
        const lh_matmul_t product = {sizeof(product), 1, ta, LH_ACT_NONE};
        return op_record(g, "matmul", &product, gy, a);
    }
    const lh_matmul_t product = {sizeof(product), !ta, 0, LH_ACT_NONE};
    return op_record(g, "matmul", &product, a, gy);
}

/* gy first goes back through the activation, whose input is aux; then what arrives through aux
 * itself is added, where another op has read aux. The bias is added behind the scales, so its
 * gradient is taken before gy is scaled. amax has no gradient: if one arrives there, the op's
 * gradient is not defined, and nothing is returned. */
static void matmul_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                            const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    const lh_matmul_t *how = attributes;
    lh_value_t gy = from[0];
    if (gy != 0 && how->activation != LH_ACT_NONE) {
        const lh_activate_t act = {sizeof(act), how->activation};
        gy = op_record(g, "activate_grad", &act, gy, forward[MM_AUX]);
    }
    const lh_value_t before =
        from[MM_AUX - MM_C]; /* others may use what the activation was given */
    if (before != 0) gy = gy == 0 ? before : op_record(g, "add", NULL, gy, before);
    if (gy == 0 || from[MM_AMAX - MM_C] != 0) return;
    lh_value_t product = gy; /* the gradient of op(a) op(b), which stands before the scales */
    for (uint32_t s = MM_SCALE_A; s <= MM_SCALE_B; s++)
        if (forward[s] != 0) product = op_record(g, "scale", NULL, product, forward[s]);
    if (wanted[MM_A]) into[MM_A] = matmul_gradient_a(g, how, product, forward[MM_B]);
    if (wanted[MM_B]) into[MM_B] = matmul_gradient_b(g, how, product, forward[MM_A]);
    if (wanted[MM_BIAS]) into[MM_BIAS] = op_record(g, "sum_rows", NULL, gy, 0);
}

/* x [t, in] and weight [out, in] give y [t, out]: the layout in which models keep their weights. */
static lh_status_t linear_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_LINEAR_TEXT);
    const lh_arg_t *x = &args[in_x], *weight = &args[in_weight];
    const arg_rule_t rules[] = {{"x", FLOATS, 2, {ANY, ANY}},
                                {"weight", IS(x->dtype), 2, {ANY, x->shape[1]}},
                                {"bias", FLOATS, 1, {weight->shape[0]}}};
    const lh_status_t status = op_args_check("linear", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_set(&args[out_y], x->dtype, 2, x->shape[0], weight->shape[0]);
    return status;
}

/* linear has no kernel and no gradient of its own: it is this matmul, whose gradient is stated
 * above. */
static void linear_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                          lh_value_t *out)
{
    (void)attributes;
    const lh_matmul_t how = {.struct_size = sizeof(how), .transpose_b = 1};
    out[0] = g->api->op(g, "matmul", &how, in, 3, NULL);
}

/* Joins an activation to the product before it, unless the product has an activation already. The
 * product itself stays as aux, for the gradient and for other ops. */
static bool matmul_fuse(const void *const *calls, void *out)
{
    const lh_matmul_t *product = calls[0];
    const lh_activate_t *activate = calls[1];
    lh_matmul_t *fused = out;
    *fused = *product;
    fused->activation = activate->function;
    return product->activation == LH_ACT_NONE;
}

/* [t, w] to [w]. */
static lh_status_t sum_rows_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = op_args_check("sum_rows", args, &rule, 1);
    if (status == LH_OK) op_arg_set(&args[1], args[0].dtype, 1, args[0].shape[1], 0);
    return status;
}

/* [t, w] to [t, 1]. */
static lh_status_t sum_columns_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                     uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = op_args_check("sum_columns", args, &rule, 1);
    if (status == LH_OK) op_arg_set(&args[1], args[0].dtype, 2, args[0].shape[0], 1);
    return status;
}

/* w and change [t, w], magnitude [t] give y and inverse [t]. */
static lh_status_t dora_scale_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                    uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_DORA_SCALE_TEXT);
    const lh_arg_t *w = &args[in_w];
    const arg_rule_t rules[] = {{"w", FLOATS, 2, {ANY, ANY}},
                                {"change", FLOATS, 2, {w->shape[0], w->shape[1]}},
                                {"magnitude", FLOATS, 1, {w->shape[0]}}};
    const lh_status_t status = op_args_check("dora_scale", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_set(&args[out_y], op_dtype_wide(w->dtype), 1, w->shape[0], 0);
    op_arg_set(&args[out_inverse], op_dtype_wide(w->dtype), 1, w->shape[0], 0);
    return LH_OK;
}

/* The norm is taken for a constant (Liu et al., "DoRA: weight-decomposed low-rank adaptation", 2024,
 * 4.3), so that a matrix's change has the gradient of any product. */
static void dora_scale_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    LH_SLOTS(LH_DORA_SCALE_TEXT);
    if (from[0] != 0 && from[1] == 0 && wanted[in_magnitude])
        into[in_magnitude] = op_record(g, "multiply", NULL, from[0], forward[out_inverse]);
}

/* Two squares and their sums. */
static void dora_scale_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                            lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 5 * op_arg_elements(&args[0]), args, arg_count);
}

/* One addition an element. */
static void sum_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                     lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, op_arg_elements(&args[0]), args, arg_count);
}

/* matmul is the op at which a head is cut into chunks of rows (LH_OP_PRODUCT), and selective
 * recomputation keeps its output (LH_OP_COSTLY). `fuses`: a matmul and an activation become one
 * matmul where a kernel does both. linear is the layer whose weight may have an adapter
 * (LH_OP_LINEAR); the matmul that it becomes is no layer any more. */
static const lh_op_t linear_rows[] = {
    {
        LH_OP_TEXT(LH_MATMUL_TEXT),
        ATTRIBUTES(lh_matmul_t, matmul_attributes),
        .flags = LH_OP_COSTLY | LH_OP_PRODUCT,
        .shape = matmul_shape,
        .cost = matmul_cost,
        .gradient = matmul_gradient,
        .fuses = "matmul a b bias scale_a scale_b -> aux _ amax; activate aux -> c",
        .fuse = matmul_fuse,
        .product = matmul_product,
    },
    {
        LH_OP_TEXT(LH_LINEAR_TEXT),
        .flags = LH_OP_LINEAR,
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
    {
        LH_OP_TEXT(LH_DORA_SCALE_TEXT),
        .flags = LH_OP_DETACHED,
        .shape = dora_scale_shape,
        .cost = dora_scale_cost,
        .gradient = dora_scale_gradient,
    },
};

const op_rows_t ops_linear = {linear_rows, COUNT(linear_rows)};

static const lh_option_t activate_attributes[] = {
    LH_OPTION_CHOICE(lh_activate_t, function, "function", NULL, FUNCTIONS, "which function"),
};

/* y is like x, of any dtype and shape. Whoever records a copy may give its output another dtype
 * afterwards (recording_retype); the copy then converts. */
static lh_status_t copy_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    op_arg_like(&args[1], &args[0]);
    return LH_OK;
}

/* No FLOPs: a copy is bounded by memory alone. */
static void copy_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 0, args, arg_count);
}

/* The gradient of x is the value that arrives, not a copy of it. */
static void copy_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                          const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)g, (void)attributes, (void)forward;
    if (wanted[0]) into[0] = from[0];
}

/* The functions are numbered without gaps from LH_ACT_NONE to LH_ACT_TANH. */
static lh_status_t function_check(const char *op, const lh_activate_t *how)
{
    if (how->function <= LH_ACT_TANH) return LH_OK;
    return fail(LH_INVALID, "%s: function %u is unknown, expected 0 to %d", op, how->function,
                LH_ACT_TANH);
}

/* y is shaped like x, of any rank. */
static lh_status_t activate_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rule = {"x", FLOATS, ANY, {ANY}};
    lh_status_t status = function_check("activate", attributes);
    if (status == LH_OK) status = op_args_check("activate", args, &rule, 1);
    if (status == LH_OK) op_arg_like(&args[1], &args[0]);
    return status;
}

/* gy and x of one shape give gx, in the dtype of x. */
static lh_status_t activate_grad_shape(const lh_host_t *host, const void *attributes,
                                       lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rules[] = {{"gy", FLOATS, ANY, {ANY}}, op_rule_like("x", FLOATS, &args[0])};
    lh_status_t status = function_check("activate_grad", attributes);
    if (status == LH_OK) status = op_args_check("activate_grad", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[2], &args[1]);
    return status;
}

/* The gradient needs x and not y, so x stays in memory for the way back. */
static void activate_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                              const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    if (wanted[0] && from[0] != 0)
        into[0] = op_record(g, "activate_grad", attributes, from[0], forward[0]);
}

/* An estimate, the same for all functions: 8 FLOPs an element. */
static void activate_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                          lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 8 * op_arg_elements(&args[0]), args, arg_count);
}

/* a and b have one shape; y is like a. Their dtypes may differ, as where a BF16 gradient is added
 * to an F32 one. */
static lh_status_t add_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                             uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rules[] = {{"a", FLOATS, ANY, {ANY}}, op_rule_like("b", FLOATS, &args[0])};
    const lh_status_t status = op_args_check("add", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[2], &args[0]);
    return status;
}

/* The gradients of both inputs are the same value, so graph/gradient.c may not add onto it in
 * place. */
static void add_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                         const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)g, (void)attributes, (void)forward;
    if (wanted[0]) into[0] = from[0];
    if (wanted[1]) into[1] = from[0];
}

/* One FLOP an element. */
static void once_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, op_arg_elements(&args[0]), args, arg_count);
}

/* How b of multiply is repeated over an a of [t, w]: not at all, as a row [w], or as a column
 * [t, 1]. */
enum { SPREAD_NONE, SPREAD_ROW, SPREAD_COLUMN };
static uint32_t multiply_spread(const lh_arg_t *a, const lh_arg_t *b)
{
    if (b->rank == 1 && a->rank == 2) return SPREAD_ROW;
    if (b->rank == 2 && b->shape[1] == 1 && a->rank == 2 && a->shape[1] != 1) return SPREAD_COLUMN;
    return SPREAD_NONE;
}

/* b is shaped like a, or is a row or a column that is repeated over a. y is like a. */
static lh_status_t multiply_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const lh_arg_t *a = &args[0], *b = &args[1];
    arg_rule_t rules[] = {{"a", FLOATS, ANY, {ANY}}, op_rule_like("b", FLOATS, a)};
    const uint32_t how = multiply_spread(a, b);
    if (how == SPREAD_ROW) rules[1] = (arg_rule_t){"b", FLOATS, 1, {a->shape[1]}};
    if (how == SPREAD_COLUMN) rules[1] = (arg_rule_t){"b", FLOATS, 2, {a->shape[0], 1}};
    const lh_status_t status = op_args_check("multiply", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[2], a);
    return status;
}

/* ga = gy b and gb = gy a. If b was repeated, gb is summed over the dimension of the repetition;
 * the product is recorded whole and then summed, as no op does both. */
static void multiply_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                              const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    if (from[0] == 0) return;
    if (wanted[0]) into[0] = op_record(g, "multiply", NULL, from[0], forward[1]);
    if (!wanted[1]) return;

    lh_arg_t a, b;
    if (g->api->shape(g, forward[0], &a) != LH_OK || g->api->shape(g, forward[1], &b) != LH_OK)
        return;
    into[1] = op_record(g, "multiply", NULL, from[0], forward[0]);
    const uint32_t how = multiply_spread(&a, &b);
    if (how == SPREAD_ROW) into[1] = op_record(g, "sum_rows", NULL, into[1], 0);
    if (how == SPREAD_COLUMN) into[1] = op_record(g, "sum_columns", NULL, into[1], 0);
}

/* y is like x; factor [1] lies in device memory, so that a value of this step can scale another. */
static lh_status_t scale_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rules[] = {{"x", FLOATS, ANY, {ANY}}, {"factor", WIDE, 1, {1}}};
    const lh_status_t status = op_args_check("scale", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[2], &args[0]);
    return status;
}

/* The factor's gradient is the sum of all elements of gy x: over columns, then over rows. */
static void scale_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                           const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    if (from[0] == 0) return;
    if (wanted[0]) into[0] = op_record(g, "scale", NULL, from[0], forward[1]);
    if (!wanted[1]) return;
    const lh_value_t product = op_record(g, "multiply", NULL, from[0], forward[0]);
    into[1] = op_record(g, "sum_rows", NULL, op_record(g, "sum_columns", NULL, product, 0), 0);
}

/* a and b, of one shape and dtype, give y like a. */
static lh_status_t gate_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rules[] = {{"a", FLOATS, ANY, {ANY}},
                                op_rule_like("b", IS(args[0].dtype), &args[0])};
    lh_status_t status = function_check("gate", attributes);
    if (status == LH_OK) status = op_args_check("gate", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[2], &args[0]);
    return status;
}

/* gy, a and b of one shape give ga like a and gb like b. */
static lh_status_t gate_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                   uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rules[] = {{"gy", FLOATS, ANY, {ANY}},
                                op_rule_like("a", FLOATS, &args[0]),
                                op_rule_like("b", FLOATS, &args[0])};
    lh_status_t status = function_check("gate_grad", attributes);
    if (status == LH_OK) status = op_args_check("gate_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[3], &args[1]);
    op_arg_like(&args[4], &args[2]);
    return LH_OK;
}

/* Both gradients come from one op, gate_grad, as they share f(a). */
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

/* Without a kernel for gate: an activation and a product, so that f(a) takes memory, too. */
static void gate_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                        lh_value_t *out)
{
    out[0] = op_record(g, "multiply", NULL, op_record(g, "activate", attributes, in[0], 0), in[1]);
}

/* Inputs gy a b, outputs ga = gy b f'(a) and gb = gy f(a). f(a) is computed again, not kept. */
static void gate_grad_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                             lh_value_t *out)
{
    const lh_value_t of_activation = op_record(g, "multiply", NULL, in[0], in[2]);
    out[0] = op_record(g, "activate_grad", attributes, of_activation, in[1]);
    out[1] = op_record(g, "multiply", NULL, in[0], op_record(g, "activate", attributes, in[1], 0));
}

/* A row without attributes that may be cut by rows and by columns. */
#define BY_ELEMENT(op_text, op_shape, op_cost, op_gradient)                          \
    {                                                                                \
        LH_OP_TEXT(op_text), .flags = LH_OP_ROWS | LH_OP_COLUMNS, .shape = op_shape, \
                             .cost = op_cost, .gradient = op_gradient                \
    }
/* The same for a row with an activation. The last arguments are a row's other fields, so that the
 * table below has about one line for each op. */
#define ACTIVATION(op_text, op_shape, op_gradient, ...)                                    \
    {                                                                                      \
        LH_OP_TEXT(op_text), ATTRIBUTES(lh_activate_t, activate_attributes),               \
            .flags = LH_OP_ROWS | LH_OP_COLUMNS, .shape = op_shape, .cost = activate_cost, \
            .gradient = op_gradient, __VA_ARGS__                                           \
    }

/* gate and gate_grad are fused ops: a model records gate, or core/graph/fusion.c finds it; both are
 * expanded into their parts where the device has no kernel. */
static const lh_op_t element_rows[] = {
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

const op_rows_t ops_element = {element_rows, COUNT(element_rows)};
