/* ops_loss.c - cross-entropy in three steps, so that logits can be walked in chunks and cut. */
#include <graph/op_rows.h>
#include <graph/vocabulary.h>

static lh_status_t ce_stats_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const uint64_t t = args[0].shape[0];
    const arg_rule_t rules[] = {{"logits", WIDE, 2, {ANY, ANY}}, {"labels", INDEX, 1, {t}}};
    lh_status_t status = args_check("ce_stats", args, rules, COUNT(rules));
    if (status == LH_OK)
        status = vocabulary_check("ce_stats", "logits", args[0].shape[1], attributes);
    if (status == LH_OK) arg_set(&args[2], args[0].dtype, 2, t, 3);
    return status;
}

static lh_status_t ce_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const uint64_t t = args[0].shape[0];
    const arg_rule_t rules[] = {{"logits", WIDE, 2, {ANY, ANY}},
                                {"labels", INDEX, 1, {t}},
                                {"stats", WIDE, 2, {t, 3}},
                                {"weights", WIDE, 1, {t}}};
    lh_status_t status = args_check("ce_grad", args, rules, COUNT(rules));
    if (status == LH_OK)
        status = vocabulary_check("ce_grad", "logits", args[0].shape[1], attributes);
    if (status == LH_OK) arg_like(&args[4], &args[0]);
    return status;
}

static lh_status_t ce_loss_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rules[] = {{"stats", WIDE, 2, {ANY, 3}},
                                {"weights", WIDE, 1, {args[0].shape[0]}}};
    const lh_status_t status = args_check("ce_loss", args, rules, COUNT(rules));
    if (status == LH_OK) arg_set(&args[2], args[0].dtype, 1, 1, 0);
    return status;
}

static void ce_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                    lh_cost_t *out)
{
    (void)attributes;
    cost_set(out, 4 * arg_elements(&args[0]), args, arg_count);
}

static const lh_op_t rows[] = {
    {
        .name = "ce_stats",
        .slots = "logits labels -> stats",
        ATTRIBUTES(lh_rows_t, vocabulary_attributes),
        .flags = LH_OP_ROWS,
        .shape = ce_stats_shape,
        .cost = ce_cost,
        .split = vocabulary_split,
    },
    {
        .name = "ce_grad",
        .slots = "logits labels stats weights -> glogits",
        ATTRIBUTES(lh_rows_t, vocabulary_attributes),
        .flags = LH_OP_ROWS,
        .shape = ce_grad_shape,
        .cost = ce_cost,
        .split = vocabulary_split,
    },
    {
        .name = "ce_loss",
        .slots = "stats weights -> loss+",
        .shape = ce_loss_shape,
        .cost = ce_cost,
    },
};

const op_rows_t ops_loss = {rows, COUNT(rows)};
