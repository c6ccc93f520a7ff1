/* ops_norm.c - RMS norm (Zhang, Sennrich, 2019) and layer norm (Ba, Kiros, Hinton, 2016), and the
 * residual add fused with RMS norm or with the gradient of either. Formulas are in longhaul/ops.h.
 *
 * A norm works on rows of [t, w]. It keeps one or two statistics for each row (rstd; mean and rstd)
 * for its gradient, in F32 beside BF16 data: little memory beside a row of w elements, for a pass
 * over x that is saved. The gradient of a norm's weight is a sum over all tokens, made in the same
 * pass as gx. */
#include <ops/op_rows.h>

/* Shared by both norms, their gradients and the fused one. */
static const lh_option_t norm_attributes[] = {
    LH_OPTION_CHOICE(lh_norm_t, one_plus, "one_plus", "no", "no|yes", "scales by 1 + w"),
    LH_OPTION_F64(lh_norm_t, epsilon, "epsilon", "1e-5", "0..1", "added to the mean square"),
};

/* d, how many columns are normed together: as many as the weight has, if a row is a whole number of
 * such groups (norms of heads: w [head_dim]); else all of a row, and then the rule of w refuses a
 * weight of another length. */
static uint64_t group_width(uint64_t width, const lh_arg_t *w)
{
    const uint64_t d = w->rank == 1 ? w->shape[0] : 0;
    return d != 0 && width % d == 0 ? d : width;
}

/* x [t, columns] and w [d] give y like x and rstd [t * columns / d]. */
static lh_status_t rms_norm_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_RMS_NORM_TEXT);
    const lh_arg_t *x = &args[in_x], *w = &args[in_w];
    const uint64_t d = group_width(x->shape[1], w);
    if (x->rank == 2 && w->rank == 1 && d != w->shape[0])
        return fail(LH_INVALID,
                    "rms_norm wants w of %llu, or of a group's width that divides it, found %llu",
                    (unsigned long long)x->shape[1], (unsigned long long)w->shape[0]);
    const arg_rule_t rules[] = {{"x", FLOATS, 2, {ANY, ANY}}, {"w", FLOATS, 1, {d}}};
    const lh_status_t status = op_args_check("rms_norm", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[out_y], x);
    op_arg_set(&args[out_rstd], op_dtype_wide(x->dtype), 1, x->shape[0] * (x->shape[1] / d), 0);
    return LH_OK;
}

/* gy and x [t, columns], w [d] and rstd [t * columns / d] give gx like x and gw [d]. gw is a sum
 * over tokens, so its dtype is wide. If the weight is frozen, gw is made beside gx, and not
 * used. */
static lh_status_t rms_norm_grad_shape(const lh_host_t *host, const void *attributes,
                                       lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    const uint64_t t = args[in_gy].shape[0], w = args[in_gy].shape[1];
    const uint64_t d = group_width(w, &args[in_w]);
    const arg_rule_t rules[] = {{"gy", FLOATS, 2, {ANY, ANY}},
                                {"x", FLOATS, 2, {t, w}},
                                {"w", FLOATS, 1, {d}},
                                {"rstd", WIDE, 1, {d == 0 ? t : t * (w / d)}}};
    const lh_status_t status = op_args_check("rms_norm_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[out_gx], &args[in_x]);
    op_arg_set(&args[out_gw], op_dtype_wide(args[in_w].dtype), 1, d, 0);
    return LH_OK;
}

/* As rms_norm_grad, and residual is like x. */
static lh_status_t rms_norm_grad_add_shape(const lh_host_t *host, const void *attributes,
                                           lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_RMS_NORM_GRAD_ADD_TEXT);
    const uint64_t t = args[in_gy].shape[0], w = args[in_gy].shape[1];
    const uint64_t d = group_width(w, &args[in_w]);
    const arg_rule_t rules[] = {{"gy", FLOATS, 2, {ANY, ANY}},
                                {"x", FLOATS, 2, {t, w}},
                                {"w", FLOATS, 1, {d}},
                                {"rstd", WIDE, 1, {d == 0 ? t : t * (w / d)}},
                                {"residual", IS(args[in_x].dtype), 2, {t, w}}};
    const lh_status_t status = op_args_check("rms_norm_grad_add", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[out_gx], &args[in_x]);
    op_arg_set(&args[out_gw], op_dtype_wide(args[in_w].dtype), 1, d, 0);
    return LH_OK;
}

/* One op makes both gradients. rstd has no gradient: if one arrives there, the op's gradient is not
 * defined, and nothing is returned. */
static void rms_norm_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                              const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    if (from[0] == 0 || from[1] != 0) return; /* from[1]: of rstd */
    const lh_value_t in[] = {from[0], forward[0], forward[1], forward[3]};
    lh_value_t gw;
    const lh_value_t gx = g->api->op(g, "rms_norm_grad", attributes, in, 4, &gw);
    if (wanted[0]) into[0] = gx;
    if (wanted[1]) into[1] = gw;
}

/* x [t, w], w and b [w] give y like x, mean and rstd [t]. */
static lh_status_t layer_norm_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                    uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const uint64_t t = args[0].shape[0], w = args[0].shape[1];
    const arg_rule_t rules[] = {
        {"x", FLOATS, 2, {ANY, ANY}}, {"w", FLOATS, 1, {w}}, {"b", FLOATS, 1, {w}}};
    const lh_status_t status = op_args_check("layer_norm", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[3], &args[0]);
    op_arg_set(&args[4], op_dtype_wide(args[0].dtype), 1, t, 0);
    op_arg_set(&args[5], op_dtype_wide(args[0].dtype), 1, t, 0);
    return LH_OK;
}

/* gy and x [t, w], w [w], mean and rstd [t] give gx like x, and gw and gb [w] in a wide dtype. */
static lh_status_t layer_norm_grad_shape(const lh_host_t *host, const void *attributes,
                                         lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const uint64_t t = args[0].shape[0], w = args[0].shape[1];
    const arg_rule_t rules[] = {{"gy", FLOATS, 2, {ANY, ANY}},
                                {"x", FLOATS, 2, {t, w}},
                                {"w", FLOATS, 1, {w}},
                                {"mean", WIDE, 1, {t}},
                                {"rstd", WIDE, 1, {t}}};
    const lh_status_t status = op_args_check("layer_norm_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[5], &args[1]);
    op_arg_set(&args[6], op_dtype_wide(args[2].dtype), 1, w, 0);
    op_arg_set(&args[7], op_dtype_wide(args[2].dtype), 1, w, 0);
    return LH_OK;
}

/* As layer_norm_grad, and residual is like x. */
static lh_status_t layer_norm_grad_add_shape(const lh_host_t *host, const void *attributes,
                                             lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    LH_SLOTS(LH_LAYER_NORM_GRAD_ADD_TEXT);
    const uint64_t t = args[in_gy].shape[0], w = args[in_gy].shape[1];
    const arg_rule_t rules[] = {
        {"gy", FLOATS, 2, {ANY, ANY}}, {"x", FLOATS, 2, {t, w}},
        {"w", FLOATS, 1, {w}},         {"mean", WIDE, 1, {t}},
        {"rstd", WIDE, 1, {t}},        {"residual", IS(args[in_x].dtype), 2, {t, w}}};
    const lh_status_t status = op_args_check("layer_norm_grad_add", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[out_gx], &args[in_x]);
    op_arg_set(&args[out_gw], op_dtype_wide(args[in_w].dtype), 1, w, 0);
    op_arg_set(&args[out_gb], op_dtype_wide(args[in_w].dtype), 1, w, 0);
    return LH_OK;
}

/* As rms_norm_gradient; mean has no gradient either. */
static void layer_norm_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    if (from[0] == 0 || from[1] != 0 || from[2] != 0) return; /* of mean, rstd */
    const lh_value_t in[] = {from[0], forward[0], forward[1], forward[4], forward[5]};
    lh_value_t more[2];
    const lh_value_t gx = g->api->op(g, "layer_norm_grad", attributes, in, 5, more);
    if (wanted[0]) into[0] = gx;
    if (wanted[1]) into[1] = more[0];
    if (wanted[2]) into[2] = more[1];
}

/* Slots of add_rms_norm, in the order of LH_ADD_RMS_NORM_TEXT. */
enum { AN_A, AN_B, AN_W, AN_SUM, AN_Y, AN_RSTD };

/* a and b [t, w] and w [w] give sum and y like a, and rstd [t]. The weight is as long as a row. */
static lh_status_t add_rms_norm_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                      uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const lh_arg_t *a = &args[AN_A];
    const arg_rule_t rules[] = {{"a", FLOATS, 2, {ANY, ANY}},
                                {"b", IS(a->dtype), 2, {a->shape[0], a->shape[1]}},
                                {"w", FLOATS, 1, {a->shape[1]}}};
    const lh_status_t status = op_args_check("add_rms_norm", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_like(&args[AN_SUM], a);
    op_arg_like(&args[AN_Y], a);
    op_arg_set(&args[AN_RSTD], op_dtype_wide(a->dtype), 1, a->shape[0], 0);
    return LH_OK;
}

/* What arrives at y goes back through the norm; what arrives at the sum, which later blocks read as
 * the residual stream, is added. The result is the gradient of both inputs of the add. If nothing
 * arrives at y, the weight has no gradient. */
static void add_rms_norm_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                  const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    lh_value_t gx = from[0], gw = 0;
    if (from[2] != 0) return;
    if (from[1] != 0) {
        const lh_value_t in[] = {from[1], forward[AN_SUM], forward[AN_W], forward[AN_RSTD]};
        gx = g->api->op(g, "rms_norm_grad", attributes, in, 4, &gw);
        if (from[0] != 0) gx = op_record(g, "add", NULL, gx, from[0]);
    }
    if (wanted[AN_A]) into[AN_A] = gx;
    if (wanted[AN_B]) into[AN_B] = gx;
    if (wanted[AN_W]) into[AN_W] = gw;
}

/* Without a kernel for both: the add, then the norm of the sum. */
static void add_rms_norm_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                                lh_value_t *out)
{
    out[0] = op_record(g, "add", NULL, in[AN_A], in[AN_B]);
    const lh_value_t norm[] = {out[0], in[AN_W]};
    out[1] = g->api->op(g, "rms_norm", attributes, norm, COUNT(norm), &out[2]);
}

/* 4 FLOPs an element: square, sum, scale, weight. */
static void norm_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 4 * op_arg_elements(&args[0]), args, arg_count);
}

/* An estimate: three times the FLOPs of the norm. */
static void norm_grad_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                           lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 12 * op_arg_elements(&args[0]), args, arg_count);
}

/* A row of a norm; all have the attributes of lh_norm_t. */
#define NORM(op_text, op_flags, op_shape, op_cost, op_gradient)                              \
    {                                                                                        \
        LH_OP_TEXT(op_text), ATTRIBUTES(lh_norm_t, norm_attributes),                         \
            .flags = (op_flags), .shape = op_shape, .cost = op_cost, .gradient = op_gradient \
    }

/* A norm works on each row alone; its gradient does not, as gw is a sum over rows. The statistics
 * stay in memory, but a norm is cheap enough to be computed again (it is not LH_OP_COSTLY). */
static const lh_op_t rows[] = {
    NORM(LH_RMS_NORM_TEXT, LH_OP_ROWS, rms_norm_shape, norm_cost, rms_norm_gradient),
    NORM(LH_RMS_NORM_GRAD_TEXT, 0, rms_norm_grad_shape, norm_grad_cost, NULL),
    NORM(LH_LAYER_NORM_TEXT, LH_OP_ROWS, layer_norm_shape, norm_cost, layer_norm_gradient),
    NORM(LH_LAYER_NORM_GRAD_TEXT, 0, layer_norm_grad_shape, norm_grad_cost, NULL),
    {
        LH_OP_TEXT(LH_ADD_RMS_NORM_TEXT),
        ATTRIBUTES(lh_norm_t, norm_attributes),
        .flags = LH_OP_ROWS,
        .shape = add_rms_norm_shape,
        .cost = norm_cost,
        .gradient = add_rms_norm_gradient,
        .expand = add_rms_norm_expand,
        .fuses = "add a b -> sum; rms_norm sum w -> y rstd",
    },
    {
        LH_OP_TEXT(LH_RMS_NORM_GRAD_ADD_TEXT),
        ATTRIBUTES(lh_norm_t, norm_attributes),
        .shape = rms_norm_grad_add_shape,
        .cost = norm_grad_cost,
        .fuses = "rms_norm_grad gy x w rstd -> own gw; add own residual -> gx | "
                 "rms_norm_grad gy x w rstd -> own gw; add residual own -> gx",
    },
    {
        LH_OP_TEXT(LH_LAYER_NORM_GRAD_ADD_TEXT),
        ATTRIBUTES(lh_norm_t, norm_attributes),
        .shape = layer_norm_grad_add_shape,
        .cost = norm_grad_cost,
        .fuses = "layer_norm_grad gy x w mean rstd -> own gw gb; add own residual -> gx | "
                 "layer_norm_grad gy x w mean rstd -> own gw gb; add residual own -> gx",
    },
};

const op_rows_t ops_norm = {rows, COUNT(rows)};
