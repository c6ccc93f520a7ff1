/* ops_route.c - softmax, the largest of a row, and experts: picks sorted by expert, their rows
 * laid back to back, multiplied and brought home.
 *
 * A model records its own router: a matmul onto one logit for each expert, softmax and top_k. Then
 * `route` sorts the t * k picks by expert, `gather_rows` copies their rows in that order,
 * `grouped_matmul` multiplies the rows of each expert with that expert's weight, and `scatter_rows`
 * adds up the k results of a token, each times its share. How many rows an expert gets is known in
 * device memory only; shapes say how many picks there are in all. So no pick is dropped and no row
 * padded, and a step is the same list of calls whatever the router decides. */
#include <ops/op_rows.h>

/* columns is for top_k_grad, which does not see x but makes a gx as wide. In top_k it is 0, or the
 * width of x. */
static const lh_option_t top_k_attributes[] = {
    LH_OPTION_U32(lh_top_k_t, k, "k", NULL, "1..65536", "how many are taken"),
    LH_OPTION_U32(lh_top_k_t, columns, "columns", "0", NULL, "columns of x; 0: all that it has"),
};
/* How many experts the layer has; offsets have one entry more. */
static const lh_option_t route_attributes[] = {
    LH_OPTION_U32(lh_route_t, experts, "experts", NULL, "1..65536", "experts"),
};
/* How many picks a token has, and so how many rows of x or y belong to it. */
static const lh_option_t picks_attributes[] = {
    LH_OPTION_U32(lh_picks_t, k, "k", NULL, "1..65536", "picks of a token"),
};
/* The layout of each expert's matrix in b. */
static const lh_option_t grouped_attributes[] = {
    LH_OPTION_CHOICE(lh_grouped_t, transpose_b, "transpose_b", "no", "no|yes",
                     "b is [experts, out, in]"),
};

/* ---- softmax ---- */

/* x [t, w] gives y like x, over the columns of each row. */
static lh_status_t softmax_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = op_args_check("softmax", args, &rule, 1);
    if (status == LH_OK) op_arg_like(&args[1], &args[0]);
    return status;
}

/* gy and y [t, w] give gx like y; y is the output of softmax. */
static lh_status_t softmax_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                      uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rules[] = {{"gy", FLOATS, 2, {ANY, ANY}}, op_rule_like("y", FLOATS, &args[0])};
    const lh_status_t status = op_args_check("softmax_grad", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[2], &args[1]);
    return status;
}

/* The gradient needs y and not x. */
static void softmax_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                             const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    LH_SLOTS(LH_SOFTMAX_TEXT);
    if (wanted[in_x]) into[in_x] = op_record(g, "softmax_grad", NULL, from[0], forward[out_y]);
}

/* An estimate, for top_k too: 8 FLOPs an element. */
static void softmax_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                         lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 8 * op_arg_elements(&args[0]), args, arg_count);
}

/* For ops that move bytes and compute little: one FLOP for each element of the first input. */
static void moved_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                       lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, op_arg_elements(&args[0]), args, arg_count);
}

/* ---- top_k ---- */

/* x [t, w] gives values [t, k], the largest of each row in falling order, and ids [t, k], their
 * columns. */
static lh_status_t top_k_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_TOP_K_TEXT);
    const lh_top_k_t *how = attributes;
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, how->columns}};
    const lh_status_t status = op_args_check("top_k", args, &rule, 1);
    if (status != LH_OK) return status;
    if (how->k == 0 || how->k > args[in_x].shape[1])
        return fail(LH_INVALID, "top_k: k is %u, rows have %llu columns", how->k,
                    (unsigned long long)args[in_x].shape[1]);
    op_arg_set(&args[out_values], args[in_x].dtype, 2, args[in_x].shape[0], how->k);
    op_arg_set(&args[out_ids], LH_DTYPE_I32, 2, args[in_x].shape[0], how->k);
    return LH_OK;
}

/* gvalues and ids [t, k] give gx [t, columns]. x is no input, so its width is an attribute. */
static lh_status_t top_k_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                    uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_TOP_K_GRAD_TEXT);
    const lh_top_k_t *how = attributes;
    const arg_rule_t rules[] = {{"gvalues", FLOATS, 2, {ANY, how->k}},
                                op_rule_like("ids", INDEX, &args[in_gvalues])};
    const lh_status_t status = op_args_check("top_k_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_set(&args[out_gx], args[in_gvalues].dtype, 2, args[in_gvalues].shape[0], how->columns);
    return LH_OK;
}

/* In gx the chosen columns have the gradients, and all others 0. */
static void top_k_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                           const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(LH_TOP_K_TEXT);
    lh_top_k_t how = *(const lh_top_k_t *)attributes;
    lh_arg_t x;
    if (!wanted[in_x] || from[0] == 0 || g->api->shape(g, forward[in_x], &x) != LH_OK) return;
    how.columns = (uint32_t)x.shape[1];
    into[in_x] = op_record(g, "top_k_grad", &how, from[0], forward[out_ids]);
}

/* ---- picks by expert ---- */

/* ids [t, k] give order [t * k], the numbers of the picks sorted by expert, and offsets [experts +
 * 1]: the first place of each expert in order, and behind the last one. Pick p = i * k + j is
 * token i's j-th; numbers are I32, which bounds how many there may be. */
static lh_status_t route_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_ROUTE_TEXT);
    const lh_route_t *how = attributes;
    const arg_rule_t rule = {"ids", INDEX, 2, {ANY, ANY}};
    const lh_status_t status = op_args_check("route", args, &rule, 1);
    if (status != LH_OK) return status;
    lh_assert(args[in_ids].rank == 2);
    const uint64_t picks = args[in_ids].shape[0] * args[in_ids].shape[1];
    if (picks > INT32_MAX)
        return fail(LH_INVALID, "route: %llu picks, at most %d have a number",
                    (unsigned long long)picks, INT32_MAX);
    op_arg_set(&args[out_order], LH_DTYPE_I32, 1, picks, 0);
    op_arg_set(&args[out_offsets], LH_DTYPE_I32, 1, (uint64_t)how->experts + 1, 0);
    return LH_OK;
}

/* x [t, w] and order [t * k] give y [t * k, w]: for each pick, in that order, the row of its
 * token. */
static lh_status_t gather_rows_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                     uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_GATHER_ROWS_TEXT);
    const lh_picks_t *how = attributes;
    const arg_rule_t rules[] = {{"x", FLOATS, 2, {ANY, ANY}},
                                {"order", INDEX, 1, {args[in_x].shape[0] * how->k}}};
    const lh_status_t status = op_args_check("gather_rows", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_set(&args[out_y], args[in_x].dtype, 2, args[in_order].shape[0], args[in_x].shape[1]);
    return LH_OK;
}

/* A row that was copied k times gets the sum of k gradients: scatter_rows without shares. */
static void gather_rows_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                 const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(LH_GATHER_ROWS_TEXT);
    if (wanted[in_x])
        into[in_x] = op_record(g, "scatter_rows", attributes, from[0], forward[in_order]);
}

/* x [t * k, w], whose rows are picks in the order of order [t * k], and shares [t, k] give y [t,
 * w]: for each token the sum of its k rows, each times its share. Without shares each counts 1. */
static lh_status_t scatter_rows_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                      uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_SCATTER_ROWS_TEXT);
    const uint64_t k = ((const lh_picks_t *)attributes)->k, picks = args[in_x].shape[0];
    if (k == 0 || picks % k != 0)
        return fail(LH_INVALID, "scatter_rows: %llu rows are not %llu for each token",
                    (unsigned long long)picks, (unsigned long long)k);
    const arg_rule_t rules[] = {{"x", FLOATS, 2, {ANY, ANY}},
                                {"order", INDEX, 1, {picks}},
                                {"shares", FLOATS, 2, {picks / k, k}}};
    const lh_status_t status = op_args_check("scatter_rows", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_set(&args[out_y], args[in_x].dtype, 2, picks / k, args[in_x].shape[1]);
    return LH_OK;
}

/* gy [t, w], x [t * k, w], order [t * k] and shares [t, k] give gx like x and gshares like
 * shares. */
static lh_status_t scatter_rows_grad_shape(const lh_host_t *host, const void *attributes,
                                           lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_SCATTER_ROWS_GRAD_TEXT);
    const uint64_t k = ((const lh_picks_t *)attributes)->k;
    const uint64_t t = args[in_gy].shape[0], w = args[in_gy].shape[1];
    const arg_rule_t rules[] = {{"gy", FLOATS, 2, {ANY, ANY}},
                                {"x", FLOATS, 2, {t * k, w}},
                                {"order", INDEX, 1, {t * k}},
                                {"shares", FLOATS, 2, {t, k}}};
    const lh_status_t status = op_args_check("scatter_rows_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[out_gx], &args[in_x]);
    op_arg_like(&args[out_gshares], &args[in_shares]);
    return LH_OK;
}

/* Without shares the gradient of x is gather_rows; with shares one op makes both gradients. */
static void scatter_rows_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                  const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(LH_SCATTER_ROWS_TEXT);
    if (forward[in_shares] == 0) {
        if (wanted[in_x])
            into[in_x] = op_record(g, "gather_rows", attributes, from[0], forward[in_order]);
        return;
    }
    const lh_value_t in[] = {from[0], forward[in_x], forward[in_order], forward[in_shares]};
    lh_value_t gshares;
    const lh_value_t gx = g->api->op(g, "scatter_rows_grad", attributes, in, COUNT(in), &gshares);
    if (wanted[in_x]) into[in_x] = gx;
    if (wanted[in_shares]) into[in_shares] = gshares;
}

/* ---- how even the load of experts is ---- */

static lh_status_t route_load_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                    uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_ROUTE_LOAD_TEXT);
    const arg_rule_t rule = {"offsets", INDEX, 1, {ANY}};
    const lh_status_t status = op_args_check("route_load", args, &rule, 1);
    if (status != LH_OK) return status;
    if (args[in_offsets].shape[0] < 2)
        return fail(LH_INVALID, "route_load: one offset is for no expert");
    op_arg_set(&args[out_load], LH_DTYPE_F32, 1, args[in_offsets].shape[0] - 1, 0);
    return LH_OK;
}

static lh_status_t mean_rows_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                   uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_MEAN_ROWS_TEXT);
    const arg_rule_t rule = {"x", FLOATS, 2, {ANY, ANY}};
    const lh_status_t status = op_args_check("mean_rows", args, &rule, 1);
    if (status == LH_OK)
        op_arg_set(&args[out_y], op_dtype_wide(args[in_x].dtype), 1, args[in_x].shape[1], 0);
    return status;
}

static lh_status_t mean_rows_grad_shape(const lh_host_t *host, const void *attributes,
                                        lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_MEAN_ROWS_GRAD_TEXT);
    const arg_rule_t rules[] = {{"gy", WIDE, 1, {args[in_x].shape[1]}},
                                {"x", FLOATS, 2, {ANY, ANY}}};
    const lh_status_t status = op_args_check("mean_rows_grad", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[out_gx], &args[in_x]);
    return status;
}

static void mean_rows_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                               const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    LH_SLOTS(LH_MEAN_ROWS_TEXT);
    if (wanted[in_x]) into[in_x] = op_record(g, "mean_rows_grad", NULL, from[0], forward[in_x]);
}

/* Loads are F32 even beside means in F64. */
static lh_status_t dot_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                             uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_DOT_TEXT);
    const arg_rule_t rules[] = {{"a", WIDE, 1, {ANY}}, {"b", WIDE, 1, {args[in_a].shape[0]}}};
    const lh_status_t status = op_args_check("dot", args, rules, COUNT(rules));
    const bool f64 = args[in_a].dtype == LH_DTYPE_F64 || args[in_b].dtype == LH_DTYPE_F64;
    if (status == LH_OK) op_arg_set(&args[out_y], f64 ? LH_DTYPE_F64 : LH_DTYPE_F32, 1, 1, 0);
    return status;
}

static void dot_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                         const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    LH_SLOTS(LH_DOT_TEXT);
    if (wanted[in_a]) into[in_a] = op_record(g, "scale", NULL, forward[in_b], from[0]);
    if (wanted[in_b]) into[in_b] = op_record(g, "scale", NULL, forward[in_a], from[0]);
}

/* Two FLOPs an element of the first input. */
static void pass_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 2 * op_arg_elements(&args[0]), args, arg_count);
}

/* ---- grouped_matmul ---- */

/* a [picks, in], b [experts, in, out] (transpose_b: [experts, out, in]) and offsets [experts + 1]
 * give c [picks, out]: rows [offsets[e], offsets[e + 1]) of a are multiplied with matrix e of b. */
static lh_status_t grouped_matmul_shape(const lh_host_t *host, const void *attributes,
                                        lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)arg_count;
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const lh_grouped_t *how = attributes;
    const lh_arg_t *a = &args[in_a], *b = &args[in_b];
    const uint32_t in = how->transpose_b != 0 ? 2 : 1; /* dimension of b */
    arg_rule_t rules[] = {{"a", FLOATS, 2, {ANY, ANY}},
                          {"b", IS(a->dtype), 3, {ANY, ANY, ANY}},
                          {"offsets", INDEX, 1, {b->shape[0] + 1}}};
    rules[1].shape[in] = a->shape[1];
    const lh_status_t status = op_args_check("grouped_matmul", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_set(&args[out_c], a->dtype, 2, a->shape[0], b->shape[3 - in]);
    return status;
}

/* a [picks, m], g [picks, n] and offsets [experts + 1] give gb [experts, m, n], in a wide dtype, as
 * a sum over tokens is. */
static lh_status_t grouped_matmul_grad_shape(const lh_host_t *host, const void *attributes,
                                             lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    const lh_arg_t *a = &args[in_a], *g = &args[in_g];
    const arg_rule_t rules[] = {{"a", FLOATS, 2, {ANY, ANY}},
                                {"g", FLOATS, 2, {a->shape[0], ANY}},
                                {"offsets", INDEX, 1, {ANY}}};
    const lh_status_t status = op_args_check("grouped_matmul_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    if (args[in_offsets].shape[0] < 2)
        return fail(LH_INVALID, "grouped_matmul_grad: one offset is for no expert");
    args[out_gb] = (lh_arg_t){.dtype = op_dtype_wide(a->dtype),
                              .rank = 3,
                              .shape = {args[in_offsets].shape[0] - 1, a->shape[1], g->shape[1]}};
    return LH_OK;
}

/* Each pick meets one expert, so it takes 2 in out FLOPs, whatever experts the picks go to. */
static void grouped_matmul_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                                lh_cost_t *out)
{
    (void)attributes;
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const double in = (double)args[in_a].shape[1];
    op_cost_set(out, 2 * in * op_arg_elements(&args[out_c]), args, arg_count);
}

/* The same number of products, summed over picks. */
static void grouped_matmul_grad_cost(const void *attributes, const lh_arg_t *args,
                                     uint32_t arg_count, lh_cost_t *out)
{
    (void)attributes;
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    const double columns = (double)args[in_g].shape[1];
    op_cost_set(out, 2 * columns * op_arg_elements(&args[in_a]), args, arg_count);
}

/* ga is the same op with b read the other way round. gb is, for each expert, the sum of the outer
 * products of its rows of a and g, with dimensions in the order of b. */
static void grouped_matmul_gradient(lh_graph_t *g, const void *attributes,
                                    const lh_value_t *forward, const lh_value_t *from,
                                    const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const lh_grouped_t *how = attributes;
    const lh_grouped_t turned = {sizeof(turned), how->transpose_b == 0};
    const lh_value_t of_a[] = {from[0], forward[in_b], forward[in_offsets]};
    const lh_value_t of_b[] = {how->transpose_b != 0 ? from[0] : forward[in_a],
                               how->transpose_b != 0 ? forward[in_a] : from[0],
                               forward[in_offsets]};
    if (wanted[in_a]) into[in_a] = g->api->op(g, "grouped_matmul", &turned, of_a, 3, NULL);
    if (wanted[in_b]) into[in_b] = g->api->op(g, "grouped_matmul_grad", NULL, of_b, 3, NULL);
}

/* Softmax and top_k work on each row alone. The ops from route on do not: where the rows of an
 * expert lie depends on all tokens, so those ops are never cut by rows. Nearly all FLOPs are in the
 * grouped products, so selective recomputation keeps their outputs. */
static const lh_op_t rows[] = {
    {
        LH_OP_TEXT(LH_SOFTMAX_TEXT),
        .flags = LH_OP_ROWS,
        .shape = softmax_shape,
        .cost = softmax_cost,
        .gradient = softmax_gradient,
    },
    {
        LH_OP_TEXT(LH_SOFTMAX_GRAD_TEXT),
        .flags = LH_OP_ROWS,
        .shape = softmax_grad_shape,
        .cost = softmax_cost,
    },
    {
        LH_OP_TEXT(LH_TOP_K_TEXT),
        ATTRIBUTES(lh_top_k_t, top_k_attributes),
        .flags = LH_OP_ROWS | LH_OP_PICKS,
        .shape = top_k_shape,
        .cost = softmax_cost,
        .gradient = top_k_gradient,
    },
    {
        LH_OP_TEXT(LH_TOP_K_GRAD_TEXT),
        ATTRIBUTES(lh_top_k_t, top_k_attributes),
        .flags = LH_OP_ROWS,
        .shape = top_k_grad_shape,
        .cost = moved_cost,
    },
    {
        LH_OP_TEXT(LH_ROUTE_TEXT),
        ATTRIBUTES(lh_route_t, route_attributes),
        .flags = LH_OP_PICKED,
        .shape = route_shape,
        .cost = moved_cost,
    },
    {
        LH_OP_TEXT(LH_ROUTE_LOAD_TEXT),
        .shape = route_load_shape,
        .cost = pass_cost,
    },
    {
        LH_OP_TEXT(LH_MEAN_ROWS_TEXT),
        .flags = LH_OP_COLUMNS,
        .shape = mean_rows_shape,
        .cost = pass_cost,
        .gradient = mean_rows_gradient,
    },
    {
        LH_OP_TEXT(LH_MEAN_ROWS_GRAD_TEXT),
        .shape = mean_rows_grad_shape,
        .cost = pass_cost,
    },
    {
        LH_OP_TEXT(LH_DOT_TEXT),
        .shape = dot_shape,
        .cost = pass_cost,
        .gradient = dot_gradient,
    },
    {
        LH_OP_TEXT(LH_GATHER_ROWS_TEXT),
        ATTRIBUTES(lh_picks_t, picks_attributes),
        .flags = LH_OP_PLACES,
        .shape = gather_rows_shape,
        .cost = moved_cost,
        .gradient = gather_rows_gradient,
    },
    {
        LH_OP_TEXT(LH_SCATTER_ROWS_TEXT),
        ATTRIBUTES(lh_picks_t, picks_attributes),
        .flags = LH_OP_PLACES,
        .shape = scatter_rows_shape,
        .cost = moved_cost,
        .gradient = scatter_rows_gradient,
    },
    {
        LH_OP_TEXT(LH_SCATTER_ROWS_GRAD_TEXT),
        ATTRIBUTES(lh_picks_t, picks_attributes),
        .flags = LH_OP_PLACES,
        .shape = scatter_rows_grad_shape,
        .cost = moved_cost,
    },
    {
        LH_OP_TEXT(LH_GROUPED_MATMUL_TEXT),
        ATTRIBUTES(lh_grouped_t, grouped_attributes),
        .flags = LH_OP_COSTLY,
        .shape = grouped_matmul_shape,
        .cost = grouped_matmul_cost,
        .gradient = grouped_matmul_gradient,
    },
    {
        LH_OP_TEXT(LH_GROUPED_MATMUL_GRAD_TEXT),
        .flags = LH_OP_COSTLY,
        .shape = grouped_matmul_grad_shape,
        .cost = grouped_matmul_grad_cost,
    },
};

const op_rows_t ops_route = {rows, COUNT(rows)};
