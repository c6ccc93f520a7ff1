/* ops_cache.c - generation: keys and values kept from call to call, and attention over them. */
#include <graph/op_rows.h>

static const lh_option_t cached_attributes[] = {
    LH_OPTION_U32(lh_attention_t, heads, "heads", NULL, "1..65536", "query heads"),
    LH_OPTION_U32(lh_attention_t, kv_heads, "kv_heads", "0", "0..65536",
                  "key and value heads; 0: as many as query heads"),
    LH_OPTION_U32(lh_attention_t, head_dim, "head_dim", NULL, "1..65536", "width of a head"),
    LH_OPTION_U32(lh_attention_t, value_dim, "value_dim", "0", "0..65536",
                  "width of a value head; 0: head_dim"),
    LH_OPTION_U32(lh_attention_t, window, "window", "0", NULL,
                  "rows that a query sees, itself included; 0: all before it"),
    LH_OPTION_F64(lh_attention_t, scale, "scale", "0", NULL,
                  "factor on scores; 0: 1 / sqrt(head_dim)"),
    LH_OPTION_F64(lh_attention_t, soft_cap, "soft_cap", "0", NULL,
                  "bound on scores by tanh; 0: none"),
};

/* Rows are the same number for each sequence. */
static lh_status_t rows_check(const char *op, const lh_arg_t *x, const lh_arg_t *lengths)
{
    if (x->shape[0] % lengths->shape[0] == 0) return LH_OK;
    return fail(LH_INVALID, "%s: %llu rows are not a multiple of %llu sequences", op,
                (unsigned long long)x->shape[0], (unsigned long long)lengths->shape[0]);
}

static lh_status_t cache_write_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                     uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const uint64_t width = args[0].shape[1], sequences = args[1].shape[0];
    const arg_rule_t rules[] = {{"x", FLOATS, 2, {ANY, ANY}},
                                {"lengths", INDEX, 1, {ANY}},
                                {"cache", FLOATS, 3, {sequences, ANY, width}}};
    lh_status_t status = args_check("cache_write", args, rules, COUNT(rules));
    if (status == LH_OK) status = rows_check("cache_write", &args[0], &args[1]);
    if (status == LH_OK) arg_like(&args[3], &args[2]);
    return status;
}

static lh_status_t attention_cached_shape(const lh_host_t *host, const void *attributes,
                                          lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const lh_attention_t *how = attributes;
    if (how->kv_heads == 0 || how->heads % how->kv_heads != 0)
        return fail(LH_INVALID, "attention_cached: heads %u is not a multiple of kv_heads %u",
                    how->heads, how->kv_heads);
    const uint64_t d = how->head_dim, value_dim = how->value_dim != 0 ? how->value_dim : d;
    const uint64_t sequences = args[3].shape[0], capacity = args[1].shape[1];
    const arg_rule_t rules[] = {
        {"q", FLOATS, 2, {ANY, how->heads * d}},
        {"k_cache", FLOATS, 3, {sequences, ANY, how->kv_heads * d}},
        {"v_cache", FLOATS, 3, {sequences, capacity, how->kv_heads * value_dim}},
        {"lengths", INDEX, 1, {ANY}},
        {"slopes", WIDE, 1, {how->heads}},
    };
    lh_status_t status = args_check("attention_cached", args, rules, COUNT(rules));
    if (status == LH_OK) status = rows_check("attention_cached", &args[0], &args[3]);
    if (status == LH_OK)
        arg_set(&args[5], args[0].dtype, 2, args[0].shape[0], how->heads * value_dim);
    return status;
}

static void cache_write_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                             lh_cost_t *out)
{
    (void)attributes, (void)arg_count;
    const lh_arg_t moved[] = {args[0], args[0]};
    cost_set(out, 0, moved, COUNT(moved));
}

/* The cache's fill is known in device memory only: counted as full. */
static void attention_cached_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                                  lh_cost_t *out)
{
    (void)attributes;
    cost_set(out, 4 * arg_elements(&args[0]) * (double)args[1].shape[1], args, arg_count);
}

static lh_status_t cached_split(const lh_host_t *host, const void *attributes, uint32_t part,
                                uint32_t ways, void *out)
{
    (void)host, (void)part;
    lh_attention_t *mine = out;
    *mine = *(const lh_attention_t *)attributes;
    if (mine->heads % ways != 0 || mine->kv_heads % ways != 0)
        return fail(LH_INVALID,
                    "attention_cached: %u and %u heads can't be cut into %u equal parts",
                    mine->heads, mine->kv_heads, ways);
    mine->heads /= ways;
    mine->kv_heads /= ways;
    return LH_OK;
}

static const lh_op_t rows[] = {
    {
        .name = "cache_write",
        .slots = "x lengths cache -> cache",
        .shape = cache_write_shape,
        .cost = cache_write_cost,
    },
    {
        .name = "attention_cached",
        .slots = "q k_cache v_cache lengths slopes? -> y",
        ATTRIBUTES(lh_attention_t, cached_attributes),
        .shape = attention_cached_shape,
        .cost = attention_cached_cost,
        .split = cached_split,
    },
};

const op_rows_t ops_cache = {rows, COUNT(rows)};
