/* ops_embed.c - rows of a table chosen by token ids. */
#include <graph/op_rows.h>
#include <graph/vocabulary.h>

const lh_option_t vocabulary_attributes[VOCABULARY_ATTRIBUTES] = {
    LH_OPTION_U64(lh_rows_t, first, "first", "0", NULL, "first row of the vocabulary held here"),
    LH_OPTION_U64(lh_rows_t, rows, "rows", "0", NULL, "rows held here; 0: all"),
};

lh_status_t vocabulary_split(const lh_host_t *host, const void *attributes, uint32_t part,
                             uint32_t ways, void *out)
{
    (void)host;
    const lh_rows_t *all = attributes;
    lh_rows_t *mine = out;
    if (all->rows % ways != 0)
        return fail(LH_INVALID, "a vocabulary of %llu rows can't be cut into %u equal parts",
                    (unsigned long long)all->rows, ways);
    *mine = *all;
    mine->rows = all->rows / ways;
    mine->first = all->first + part * mine->rows;
    return LH_OK;
}

lh_status_t vocabulary_check(const char *op, const char *slot, uint64_t found, const lh_rows_t *how)
{
    if (found == how->rows) return LH_OK;
    return fail(LH_INVALID, "%s: %s has %llu rows of the vocabulary, expected rows = %llu", op,
                slot, (unsigned long long)found, (unsigned long long)how->rows);
}

static lh_status_t embed_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const arg_rule_t rules[] = {{"tokens", INDEX, 1, {ANY}}, {"table", FLOATS, 2, {ANY, ANY}}};
    lh_status_t status = args_check("embed", args, rules, COUNT(rules));
    if (status == LH_OK) status = vocabulary_check("embed", "table", args[1].shape[0], attributes);
    if (status == LH_OK) arg_set(&args[2], args[1].dtype, 2, args[0].shape[0], args[1].shape[1]);
    return status;
}

static lh_status_t embed_grad_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                    uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const lh_rows_t *how = attributes;
    const uint64_t t = args[0].shape[0];
    const arg_rule_t rules[] = {{"tokens", INDEX, 1, {ANY}}, {"gy", FLOATS, 2, {t, ANY}}};
    const lh_status_t status = args_check("embed_grad", args, rules, COUNT(rules));
    if (status != LH_OK) return status;
    if (how->rows == 0) return fail(LH_INVALID, "embed_grad: rows is 0, expected the table's");
    arg_set(&args[2], args[1].dtype, 2, how->rows, args[1].shape[1]);
    return LH_OK;
}

/* Only the rows that tokens point to are touched: bytes are those of y and of what is read. */
static void embed_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                       lh_cost_t *out)
{
    (void)attributes, (void)arg_count;
    const lh_arg_t moved[] = {args[0], args[2], args[2]};
    cost_set(out, 0, moved, COUNT(moved));
}

static void embed_grad_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                            lh_cost_t *out)
{
    (void)attributes;
    cost_set(out, arg_elements(&args[1]), args, arg_count);
}

static void embed_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                           const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    if (wanted[1] && from[0] != 0)
        into[1] = record_one(g, "embed_grad", attributes, forward[0], from[0]);
}

static const lh_op_t rows[] = {
    {
        .name = "embed",
        .slots = "tokens table -> y",
        ATTRIBUTES(lh_rows_t, vocabulary_attributes),
        .flags = LH_OP_ROWS,
        .shape = embed_shape,
        .cost = embed_cost,
        .split = vocabulary_split,
        .gradient = embed_gradient,
    },
    {
        .name = "embed_grad",
        .slots = "tokens gy -> gtable+",
        ATTRIBUTES(lh_rows_t, vocabulary_attributes),
        .shape = embed_grad_shape,
        .cost = embed_grad_cost,
        .split = vocabulary_split,
    },
};

const op_rows_t ops_embed = {rows, COUNT(rows)};
