/* ops_embed.c - what deals with the vocabulary: rows of a table chosen by token ids, and the
 * cross-entropy of logits.
 *
 * Both may hold a part of the vocabulary only, rows [first, first + rows) of lh_rows_t, so that
 * table and logits can be cut over ranks: an id outside of the part gives zeros, and the results of
 * the parts are added up. A whole vocabulary is the part that begins at 0 and has all rows. */
#include <ops/op_rows.h>

/* Which rows of the vocabulary an op holds. Embedding and cross-entropy are cut alike. */
static const lh_option_t vocabulary_attributes[] = {
    LH_OPTION_U64(lh_rows_t, first, "first", "0", NULL, "first row of the vocabulary held here"),
    LH_OPTION_U64(lh_rows_t, rows, "rows", "0", NULL, "rows held here; 0: all"),
};

/* The rows of part `part` of `ways` equal parts; refused where the rows can't be shared evenly. */
static lh_status_t vocabulary_split(const lh_host_t *host, const void *attributes, uint32_t part,
                                    uint32_t ways, void *out)
{
    (void)host;
    const lh_rows_t *all = attributes;
    lh_rows_t *mine = out;
    lh_assert(ways > 0 && part < ways);
    if (all->rows % ways != 0)
        return fail(LH_INVALID, "a vocabulary of %llu rows can't be cut into %u equal parts",
                    (unsigned long long)all->rows, ways);
    *mine = *all;
    mine->rows = all->rows / ways;
    mine->first = all->first + part * mine->rows;
    return LH_OK;
}

/* Refuses a table or logits without exactly how->rows rows of the vocabulary. */
static lh_status_t vocabulary_check(const char *op, const char *slot, uint64_t found,
                                    const lh_rows_t *how)
{
    if (found == how->rows) return LH_OK;
    return fail(LH_INVALID, "%s: %s has %llu rows of the vocabulary, expected rows = %llu", op,
                slot, (unsigned long long)found, (unsigned long long)how->rows);
}

/* complete() of embed: rows 0 stands for all rows of the table. */
static void rows_of_table(void *attributes, const lh_arg_t *args)
{
    lh_rows_t *how = attributes;
    if (how->rows == 0) how->rows = args[1].shape[0];
}

/* tokens [t] and table [rows, w] give y [t, w]. */
static lh_status_t embed_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rules[] = {{"tokens", INDEX, 1, {ANY}}, {"table", FLOATS, 2, {ANY, ANY}}};
    lh_status_t status = op_args_check("embed", args, rules, COUNT(rules));
    if (status == LH_OK) status = vocabulary_check("embed", "table", args[1].shape[0], attributes);
    if (status == LH_OK) op_arg_set(&args[2], args[1].dtype, 2, args[0].shape[0], args[1].shape[1]);
    return status;
}

/* tokens [t] and gy [t, w] give gtable [rows, w]. The table is no input, so its rows come as an
 * attribute, which embed's complete() has filled in. */
static lh_status_t embed_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                    uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const lh_rows_t *how = attributes;
    const uint64_t t = args[0].shape[0];
    const arg_rule_t rules[] = {{"tokens", INDEX, 1, {ANY}}, {"gy", FLOATS, 2, {t, ANY}}};
    const lh_status_t status = op_args_check("embed_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    if (how->rows == 0) return fail(LH_INVALID, "embed_grad: rows is 0, expected the table's");
    op_arg_set(&args[2], args[1].dtype, 2, how->rows, args[1].shape[1]);
    return LH_OK;
}

/* Bytes of the tokens, of the rows of the table that they choose, and of y. */
static void embed_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                       lh_cost_t *out)
{
    (void)attributes, (void)arg_count;
    const lh_arg_t moved[] = {args[0], args[2], args[2]};
    op_cost_set(out, 0, moved, COUNT(moved));
}

/* One addition an element of gy. */
static void embed_grad_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                            lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, op_arg_elements(&args[1]), args, arg_count);
}

/* Only the table has a gradient; token ids are no floats. */
static void embed_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                           const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    if (wanted[1] && from[0] != 0)
        into[1] = op_record(g, "embed_grad", attributes, forward[0], from[0]);
}

/* A token's row needs no other token's, so embed may be cut by rows. embed_grad sums over tokens:
 * its kernels have to keep a fixed order. */
static const lh_op_t rows[] = {
    {
        LH_OP_TEXT(LH_EMBED_TEXT),
        ATTRIBUTES(lh_rows_t, vocabulary_attributes),
        .flags = LH_OP_ROWS,
        .shape = embed_shape,
        .cost = embed_cost,
        .split = vocabulary_split,
        .gradient = embed_gradient,
        .complete = rows_of_table,
    },
    {
        LH_OP_TEXT(LH_EMBED_GRAD_TEXT),
        ATTRIBUTES(lh_rows_t, vocabulary_attributes),
        .shape = embed_grad_shape,
        .cost = embed_grad_cost,
        .split = vocabulary_split,
    },
};

const op_rows_t ops_embed = {rows, COUNT(rows)};

/* ---- cross-entropy ----
 *
 * It takes three ops, so that logits can be made in chunks of rows and cut by columns: ce_stats
 * makes three numbers for each row, ce_loss the loss of those, ce_grad the gradient of the logits.
 * None of them has a gradient function: the core records ce_grad beside the loss, as the logits of
 * a chunk are gone afterwards.
 *
 * cross_entropy is the three in one, for whoever holds the whole vocabulary: a row's statistics are
 * used while it is still in a cache, and its gradient is written where the logits were. Where the
 * vocabulary is cut the statistics of all parts must be joined before there is a gradient, so there
 * it can't be used and its parts are recorded. */

/* complete() of the two ops that see logits: rows 0 stands for all columns of the logits. */
static void rows_of_logits(void *attributes, const lh_arg_t *args)
{
    lh_rows_t *how = attributes;
    if (how->rows == 0) how->rows = args[0].shape[1];
}

/* logits [t, rows] and labels [t] give stats [t, 3]: the largest logit, the sum of
 * exp(logit - largest), the label's logit. The nll of a row is log(sum) + largest - logit. Stats of
 * parts of the vocabulary can be joined. */
static lh_status_t ce_stats_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const uint64_t t = args[0].shape[0];
    const arg_rule_t rules[] = {{"logits", FLOATS, 2, {ANY, ANY}}, {"labels", INDEX, 1, {t}}};
    lh_status_t status = op_args_check("ce_stats", args, rules, COUNT(rules));
    if (status == LH_OK)
        status = vocabulary_check("ce_stats", "logits", args[0].shape[1], attributes);
    if (status == LH_OK) op_arg_set(&args[2], op_dtype_wide(args[0].dtype), 2, t, 3);
    return status;
}

/* logits [t, rows], labels [t], stats [t, 3] and weights [t] give the gradient, shaped like the
 * logits, in the compute dtype: products take it. */
static lh_status_t ce_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const uint64_t t = args[0].shape[0];
    const arg_rule_t rules[] = {{"logits", FLOATS, 2, {ANY, ANY}},
                                {"labels", INDEX, 1, {t}},
                                {"stats", WIDE, 2, {t, 3}},
                                {"weights", WIDE, 1, {t}}};
    lh_status_t status = op_args_check("ce_grad", args, rules, COUNT(rules));
    if (status == LH_OK)
        status = vocabulary_check("ce_grad", "logits", args[0].shape[1], attributes);
    if (status == LH_OK) op_arg_set(&args[4], LH_DTYPE_NONE, 2, t, args[0].shape[1]);
    return status;
}

/* logits [t, w], labels [t] and weights [t] give loss [1] and the gradient, as the parts do. */
static lh_status_t cross_entropy_shape(const lh_host_t *host, const void *attributes,
                                       lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const uint64_t t = args[0].shape[0];
    const arg_rule_t rules[] = {
        {"logits", FLOATS, 2, {ANY, ANY}}, {"labels", INDEX, 1, {t}}, {"weights", WIDE, 1, {t}}};
    const lh_status_t status = op_args_check("cross_entropy", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    op_arg_set(&args[3], op_dtype_wide(args[0].dtype), 1, 1, 0);
    op_arg_set(&args[4], LH_DTYPE_NONE, 2, t, args[0].shape[1]);
    return status;
}

/* What cross_entropy is recorded as where the device has no kernel for it. */
static void cross_entropy_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                                 lh_value_t *out)
{
    LH_SLOTS(LH_CROSS_ENTROPY_TEXT);
    (void)attributes;
    const lh_value_t stats = op_record(g, "ce_stats", NULL, in[in_logits], in[in_labels]);
    const lh_value_t of[] = {in[in_logits], in[in_labels], stats, in[in_weights]};
    out[0] = op_record(g, "ce_loss", NULL, stats, in[in_weights]);
    out[out_glogits - out_loss] = g->api->op(g, "ce_grad", NULL, of, COUNT(of), NULL);
}

/* stats [t, 3] and weights [t] give loss [1]: the sum of weight times nll over all rows. */
static lh_status_t ce_loss_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const arg_rule_t rules[] = {{"stats", WIDE, 2, {ANY, 3}},
                                {"weights", WIDE, 1, {args[0].shape[0]}}};
    const lh_status_t status = op_args_check("ce_loss", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_set(&args[2], args[0].dtype, 1, 1, 0);
    return status;
}

/* An estimate: 4 FLOPs an element of the first input. */
static void ce_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                    lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 4 * op_arg_elements(&args[0]), args, arg_count);
}

/* What its parts take together, over logits that are read once. */
static void cross_entropy_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                               lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 8 * op_arg_elements(&args[0]), args, arg_count);
}

/* The head makes logits in chunks of rows, so the two ops that see logits may be cut by rows. */
static const lh_op_t loss_rows[] = {
    {
        LH_OP_TEXT(LH_CE_STATS_TEXT),
        ATTRIBUTES(lh_rows_t, vocabulary_attributes),
        .flags = LH_OP_ROWS,
        .shape = ce_stats_shape,
        .cost = ce_cost,
        .split = vocabulary_split,
        .complete = rows_of_logits,
    },
    {
        LH_OP_TEXT(LH_CE_GRAD_TEXT),
        ATTRIBUTES(lh_rows_t, vocabulary_attributes),
        .flags = LH_OP_ROWS,
        .shape = ce_grad_shape,
        .cost = ce_cost,
        .split = vocabulary_split,
        .complete = rows_of_logits,
    },
    {
        LH_OP_TEXT(LH_CE_LOSS_TEXT),
        .shape = ce_loss_shape,
        .cost = ce_cost,
    },
    {
        LH_OP_TEXT(LH_CROSS_ENTROPY_TEXT),
        .shape = cross_entropy_shape,
        .cost = cross_entropy_cost,
        .expand = cross_entropy_expand,
    },
};

const op_rows_t ops_loss = {loss_rows, COUNT(loss_rows)};
