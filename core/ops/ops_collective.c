/* ops_collective.c - communication as ops: shapes, gradients, bytes.
 *
 * The gradient of each collective is another collective: what was gathered is reduced and
 * scattered on the way back, and the other way round; what was sent comes back. A rank records
 * what it alone sees: its own x, and the y that its group makes. */
#include <ops/ops_collective.h>

#include <longhaul/dtype.h>

#include <ops/op_rows.h>

const char *const collective_names[COLLECTIVES] = {
    [0] = "none",
    [COLLECTIVE_ALL_REDUCE] = "all_reduce",
    [COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
    [COLLECTIVE_ALL_GATHER] = "all_gather",
    [COLLECTIVE_ALL_TO_ALL] = "all_to_all",
    [COLLECTIVE_SEND] = "send",
    [COLLECTIVE_RECEIVE] = "recv",
};

const char *const collective_groups[LH_GROUPS] = {
    [LH_GROUP_SELF] = "self",
    [LH_GROUP_DATA] = "data",
    [LH_GROUP_SITE] = "site",
    [LH_GROUP_ACROSS] = "across",
};

/* All options of op_collective_t; each op reads those that it needs. */
static const lh_option_t collective_attributes[] = {
    LH_OPTION_U32(op_collective_t, group, "group", "0", NULL, "group of ranks"),
    LH_OPTION_U32(op_collective_t, ways, "ways", "1", NULL, "ranks in the group"),
    LH_OPTION_U32(op_collective_t, peer, "peer", "0", NULL, "the other rank, inside the group"),
    LH_OPTION_U32(op_collective_t, tag, "tag", "0", NULL, "the same at both ends"),
    LH_OPTION_U64(op_collective_t, rows, "rows", "0", NULL, "rows that come"),
    LH_OPTION_U64(op_collective_t, columns, "columns", "0", NULL, "columns that come"),
    LH_OPTION_U64(op_collective_t, bytes, "bytes", "0", NULL, "handed over; 0: all of x"),
};

/* complete(): ways 0 stands for 1, and bytes 0 for all of x. */
static void all_bytes(void *attributes, const lh_arg_t *args)
{
    op_collective_t *how = attributes;
    if (how->ways == 0) how->ways = 1;
    if (how->bytes != 0 || args[0].dtype == LH_DTYPE_NONE) return;
    how->bytes = lh_dtype_bytes(args[0].dtype);
    for (uint32_t i = 0; i < args[0].rank; i++)
        how->bytes *= args[0].shape[i];
}

/* vanishes(): in a group of one there is nothing to do. */
static bool group_is_alone(const void *attributes)
{
    return ((const op_collective_t *)attributes)->ways <= 1;
}

/* y is like x. */
static lh_status_t unchanged_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                   uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    op_arg_like(&args[1], &args[0]);
    return LH_OK;
}

/* x [t, w], as that is what a recv makes of it. */
static lh_status_t send_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    const arg_rule_t rules[] = {{"x", ANY_DTYPE, 2, {ANY, ANY}}};
    (void)host, (void)attributes, (void)arg_count;
    return op_args_check("send", args, rules, COUNT(rules));
}

/* Checks that the first dimension can be cut into `ways` equal parts. States y like x, which the
 * caller may cut. */
static lh_status_t cut_shape(const char *op, const op_collective_t *how, lh_arg_t *args)
{
    lh_assert(how->ways > 0); /* all_bytes has made it so */
    if (args[0].rank == 0 || args[0].shape[0] % how->ways != 0)
        return fail(LH_INVALID, "%s: %llu rows can't be cut into %u equal parts", op,
                    (unsigned long long)args[0].shape[0], how->ways);
    op_arg_like(&args[1], &args[0]);
    return LH_OK;
}

/* x [t, w] on every rank gives y [t / ways, w]. */
static lh_status_t reduce_scatter_shape(const lh_host_t *host, const void *attributes,
                                        lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const op_collective_t *how = attributes;
    const lh_status_t status = cut_shape("reduce_scatter", how, args);
    if (status == LH_OK) args[1].shape[0] /= how->ways;
    return status;
}

/* x [t, w] gives y [t, w]: block i of t / ways rows goes to rank i, and y has a block of each
 * rank. */
static lh_status_t all_to_all_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                    uint32_t arg_count)
{
    (void)host, (void)arg_count;
    return cut_shape("all_to_all", attributes, args);
}

/* x [t, w] of every rank gives y [t * ways, w]. */
static lh_status_t all_gather_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                    uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const op_collective_t *how = attributes;
    if (args[0].rank == 0) return fail(LH_INVALID, "all_gather: x is a scalar, expected rows");
    op_arg_like(&args[1], &args[0]);
    args[1].shape[0] *= how->ways;
    return LH_OK;
}

/* y [rows, columns], as attributes say, in the compute dtype. */
static lh_status_t recv_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const op_collective_t *how = attributes;
    op_arg_set(&args[0], LH_DTYPE_NONE, 2, how->rows, how->columns);
    return LH_OK;
}

/* Bytes only; the additions of a reduction are not counted. */
static void no_flops(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                     lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 0, args, arg_count);
}

/* all_reduce: what follows it runs alike on every rank, so each rank has the whole gradient of y,
 * and that is the gradient of x. */
static void through_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                             const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)g, (void)attributes, (void)forward;
    if (wanted[0]) into[0] = from[0];
}

/* Records a collective over the same group on the gradient that arrives. bytes is found anew, as
 * shapes differ. */
static void collective_back(lh_graph_t *g, const char *op, const void *attributes,
                            const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    op_collective_t how = *(const op_collective_t *)attributes;
    how.bytes = 0;
    if (wanted[0] && from[0] != 0) into[0] = op_record(g, op, &how, from[0], 0);
}

/* A gradient function that records another collective. */
#define BACK(name, op)                                                                 \
    static void name(lh_graph_t *g, const void *attributes, const lh_value_t *forward, \
                     const lh_value_t *from, const bool *wanted, lh_value_t *into)     \
    {                                                                                  \
        (void)forward;                                                                 \
        collective_back(g, op, attributes, from, wanted, into);                        \
    }
BACK(replicate_gradient, "all_reduce")
BACK(reduce_scatter_gradient, "all_gather")
BACK(all_gather_gradient, "reduce_scatter")
BACK(all_to_all_gradient, "all_to_all")

/* What the peer sends of its way back: nothing arrives here, and all that is known is x. */
static void send_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                          const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    op_collective_t how = *(const op_collective_t *)attributes;
    lh_arg_t x;
    (void)from;
    if (!wanted[0] || g->api->shape(g, forward[0], &x) != LH_OK) return;
    how.rows = x.shape[0];
    how.columns = x.shape[1];
    how.bytes = 0;
    into[0] = g->api->op(g, "recv", &how, NULL, 0, NULL);
}

static void recv_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                          const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    op_collective_t how = *(const op_collective_t *)attributes;
    (void)forward, (void)wanted, (void)into;
    how.rows = how.columns = how.bytes = 0;
    if (from[0] != 0) (void)op_record(g, "send", &how, from[0], 0);
}

/* A row with the attributes of op_collective_t and no FLOPs. */
#define COLLECTIVE(op_text, op_shape, op_gradient, op_complete, op_vanishes)                       \
    {                                                                                              \
        LH_OP_TEXT(op_text), OWN_ATTRIBUTES(op_collective_t, collective_attributes),               \
            .shape = op_shape, .cost = no_flops, .gradient = op_gradient, .complete = op_complete, \
            .vanishes = op_vanishes                                                                \
    }
/* A row in which all ranks of a group take part: it vanishes in a group of one. */
#define OF_ALL(op_text, op_shape, op_gradient) \
    COLLECTIVE(op_text, op_shape, op_gradient, all_bytes, group_is_alone)

/* In the order of ops_collective_kinds below. */
static const lh_op_t rows[] = {
    OF_ALL(OP_ALL_REDUCE_TEXT, unchanged_shape, through_gradient),
    OF_ALL(OP_REPLICATE_TEXT, unchanged_shape, replicate_gradient),
    OF_ALL(OP_REDUCE_SCATTER_TEXT, reduce_scatter_shape, reduce_scatter_gradient),
    OF_ALL(OP_ALL_GATHER_TEXT, all_gather_shape, all_gather_gradient),
    OF_ALL(OP_ALL_TO_ALL_TEXT, all_to_all_shape, all_to_all_gradient),
    COLLECTIVE(OP_SEND_TEXT, send_shape, send_gradient, all_bytes, NULL),
    COLLECTIVE(OP_RECV_TEXT, recv_shape, recv_gradient, NULL, NULL),
};

/* What each row becomes in a program, in the order of the rows. */
const uint32_t ops_collective_kinds[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REPLICATE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER,
    COLLECTIVE_ALL_TO_ALL, COLLECTIVE_SEND,      COLLECTIVE_RECEIVE,
};

_Static_assert(COUNT(ops_collective_kinds) == COUNT(rows), "a kind for each row");

const op_rows_t ops_collective = {rows, COUNT(rows)};
