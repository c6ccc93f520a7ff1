/* ops_update.c - what changes parameters: the global norm, clipping, AdamW (Loshchilov, Hutter,
 * 2019) and SGD, on flat arrays. Formulas are in longhaul/ops.h.
 *
 * A rank updates the elements that it owns, [n] of a parameter, whatever the parameter's shape;
 * masters and moments lie in the same order. What changes from step to step (learning rate, number
 * of the step, factors) comes in `step`, a row of LH_STEP_WORDS for each group of parameters, in
 * device memory. So the list of calls is the same in every step, and the device decides whether a
 * step counts at all (all gradients are finite), without the host waiting for it. */
#include <ops/op_rows.h>

#include <longhaul/rule.h>

/* How many elements of a parameter one partial sum of squares is over: LH_NORM_BLOCK of
 * longhaul/optimizer.h. It is the same in every layout, so the norm is a sum of the same numbers in
 * the same order however the parameter is cut. */
enum { PARTIAL_ELEMENTS = 4096 };

/* What stays the same from step to step; the learning rate changes, so it comes in `step`. */
static const lh_option_t adamw_attributes[] = {
    LH_OPTION_F64(lh_adamw_t, beta1, "beta1", "0.9", "0..0.99999", "decay of the first moment"),
    LH_OPTION_F64(lh_adamw_t, beta2, "beta2", "0.95", "0..0.99999", "decay of the second moment"),
    LH_OPTION_F64(lh_adamw_t, epsilon, "epsilon", "1e-8", "0..1", "added to the root"),
    LH_OPTION_F64(lh_adamw_t, decay, "decay", "0", "0..1e6", "decoupled weight decay"),
};

static const lh_option_t sgd_attributes[] = {
    LH_OPTION_CHOICE(lh_sgd_t, nesterov, "nesterov", "no", "no|yes", "looks ahead"),
    LH_OPTION_F64(lh_sgd_t, momentum, "momentum", "0", "0..0.99999", "decay of the moment"),
    LH_OPTION_F64(lh_sgd_t, decay, "decay", "0", "0..1e6", "decoupled weight decay"),
};

/* The rule of `step`: [groups, LH_STEP_WORDS], or the row of the parameter's group,
 * [LH_STEP_WORDS]. */
static arg_rule_t step_rule(const lh_arg_t *step)
{
    if (step->rank == 1) return (arg_rule_t){"step", WIDE, 1, {LH_STEP_WORDS}};
    return (arg_rule_t){"step", WIDE, 2, {ANY, LH_STEP_WORDS}};
}

/* x [n] gives [partial sums, 2]: a sum of squares, and how many of its elements are not finite. */
static lh_status_t sum_squares_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                     uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rule = {"x", FLOATS, 1, {ANY}};
    const lh_status_t status = op_args_check("sum_squares", args, &rule, 1);
    const uint64_t n = args[0].shape[0];
    const uint64_t partials = n / PARTIAL_ELEMENTS + (n % PARTIAL_ELEMENTS != 0);
    if (status == LH_OK) op_arg_set(&args[1], op_dtype_wide(args[0].dtype), 2, partials, 2);
    return status;
}

/* squares [n, 2], the partial sums of all ranks, and step, which is changed in place. */
static lh_status_t clip_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rules[] = {{"squares", WIDE, 2, {ANY, 2}}, step_rule(&args[1])};
    const lh_status_t status = op_args_check("clip", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[2], &args[1]);
    return status;
}

/* g, master, m1, m2 [n] and step give master, m1 and m2, each in the memory of the input of its
 * name, and w [n], the value in the compute dtype, which is optional. */
static lh_status_t adamw_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const uint64_t n = args[0].shape[0];
    const arg_rule_t rules[] = {{"g", FLOATS, 1, {ANY}},
                                {"master", WIDE, 1, {n}},
                                {"m1", FLOATS, 1, {n}},
                                {"m2", FLOATS, 1, {n}},
                                step_rule(&args[4])};
    const lh_status_t status = op_args_check("adamw", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < 3; i++)
        op_arg_like(&args[5 + i], &args[1 + i]);
    op_arg_set(&args[8], LH_DTYPE_NONE, 1, n, 0); /* NONE: the recorder's compute dtype */
    return LH_OK;
}

/* As adamw, with one moment m1, which may be left out where there is no momentum. */
static lh_status_t sgd_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                             uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const lh_sgd_t *how = attributes;
    const uint64_t n = args[0].shape[0];
    const arg_rule_t rules[] = {{"g", FLOATS, 1, {ANY}},
                                {"master", WIDE, 1, {n}},
                                {"m1", FLOATS, 1, {n}},
                                step_rule(&args[3])};
    const lh_status_t status = op_args_check("sgd", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    if (how->momentum != 0 && args[2].dtype == LH_DTYPE_NONE)
        return fail(LH_INVALID, "sgd: momentum is %g and input m1 is left out", how->momentum);
    op_arg_like(&args[4], &args[1]);
    op_arg_like(&args[5], &args[2]);
    op_arg_set(&args[6], LH_DTYPE_NONE, 1, n, 0);
    return LH_OK;
}

/* A multiplication and an addition for each element. */
static void reduce_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                        lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 2 * op_arg_elements(&args[0]), args, arg_count);
}

/* An estimate for AdamW and SGD: 12 FLOPs an element. Both are bounded by memory. */
static void update_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                        lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 12 * op_arg_elements(&args[0]), args, arg_count);
}

/* None has a gradient: nothing is trained through an update. */
static const lh_op_t rows[] = {
    {
        LH_OP_TEXT(LH_SUM_SQUARES_TEXT),
        .shape = sum_squares_shape,
        .cost = reduce_cost,
    },
    {
        LH_OP_TEXT(LH_CLIP_TEXT),
        .shape = clip_shape,
        .cost = reduce_cost,
    },
    {
        LH_OP_TEXT(LH_ADAMW_TEXT),
        ATTRIBUTES(lh_adamw_t, adamw_attributes),
        .shape = adamw_shape,
        .cost = update_cost,
    },
    {
        LH_OP_TEXT(LH_SGD_TEXT),
        ATTRIBUTES(lh_sgd_t, sgd_attributes),
        .shape = sgd_shape,
        .cost = update_cost,
    },
};

const op_rows_t ops_update = {rows, COUNT(rows)};
