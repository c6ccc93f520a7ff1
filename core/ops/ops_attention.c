/* ops_attention.c - rotary positions (Su et al., "RoFormer", 2021) and attention, each with its
 * gradient, and attention over cached keys and values for generation.
 *
 * All work on flat rows: q is [t, heads * head_dim], one row for each token of all sequences of a
 * micro-batch, and `starts` says where documents begin, so that no mask is kept and no row is
 * padded. Scores never exist as a value of the graph. Of them the way back needs only lse, the
 * logarithm of the sum of exp(score), one number for each query row and head, from which the
 * gradient computes the probabilities again (Dao et al., "FlashAttention", 2022): more FLOPs for
 * much less memory. Key and value heads may be fewer than query heads (grouped-query attention). */
#include <ops/op_rows.h>

/* heads and head_dim say how a flat row is cut into heads. */
static const lh_option_t rope_attributes[] = {
    LH_OPTION_U32(lh_rope_t, heads, "heads", NULL, "1..65536", "heads side by side in x"),
    LH_OPTION_U32(lh_rope_t, head_dim, "head_dim", NULL, "2..65536", "width of a head"),
    LH_OPTION_U32(lh_rope_t, pairs, "pairs", "0", "0..32768",
                  "pairs of components that turn; 0: all of a head"),
    LH_OPTION_CHOICE(lh_rope_t, interleaved, "interleaved", "no", "no|yes",
                     "a pair is two neighbours instead of two halves"),
    LH_OPTION_CHOICE(lh_rope_t, inverse, "inverse", "no", "no|yes", "turns back"),
    LH_OPTION_F64(lh_rope_t, magnitude, "magnitude", "0", NULL, "factor on the result; 0: 1"),
};

/* Options that attention has with a cache and without one. */
#define HEADS                                                                                     \
    LH_OPTION_U32(lh_attention_t, heads, "heads", NULL, "1..65536", "query heads"),               \
        LH_OPTION_U32(lh_attention_t, kv_heads, "kv_heads", "0", "0..65536",                      \
                      "key and value heads; 0: as many as query heads"),                          \
        LH_OPTION_U32(lh_attention_t, head_dim, "head_dim", NULL, "1..65536", "width of a head"), \
        LH_OPTION_U32(lh_attention_t, value_dim, "value_dim", "0", "0..65536",                    \
                      "width of a value head; 0: head_dim"),                                      \
        LH_OPTION_U32(lh_attention_t, window, "window", "0", NULL,                                \
                      "rows that a query sees, itself included; 0: all before it")
#define SCORES                                                         \
    LH_OPTION_F64(lh_attention_t, scale, "scale", "0", NULL,           \
                  "factor on scores; 0: 1 / sqrt(head_dim)"),          \
        LH_OPTION_F64(lh_attention_t, soft_cap, "soft_cap", "0", NULL, \
                      "bound on scores by tanh; 0: none")

static const lh_option_t attention_attributes[] = {
    HEADS,
    LH_OPTION_CHOICE(lh_attention_t, full, "full", "no", "no|yes", "sees later rows too"),
    LH_OPTION_U64(lh_attention_t, q_begin, "q_begin", "0", NULL, "position of the first query row"),
    LH_OPTION_U64(lh_attention_t, k_begin, "k_begin", "0", NULL, "position of the first key row"),
    LH_OPTION_U32(
        lh_attention_t, document_rows, "document_rows", "0", NULL,
        "rows of every document, where all have as many; 0: the host sets it if it knows"),
    SCORES,
};

/* complete() of rope: pairs 0 stands for all of a head, which is half of its width. */
static void all_pairs(void *attributes, const lh_arg_t *args)
{
    (void)args;
    lh_rope_t *how = attributes;
    if (how->pairs == 0) how->pairs = how->head_dim / 2;
}

/* The pairs of x [t, heads * head_dim] turn by the angles positions [t] times frequencies [pairs];
 * y is like x. The frequencies come from the model, so that a model can scale contexts as it
 * likes. */
static lh_status_t rope_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const lh_rope_t *how = attributes;
    if (how->heads == 0 || how->pairs == 0 || 2 * (uint64_t)how->pairs > how->head_dim)
        return fail(LH_INVALID,
                    "rope: heads %u, head_dim %u, pairs %u; expected heads of at least two pairs' "
                    "components",
                    how->heads, how->head_dim, how->pairs);

    const uint64_t t = args[0].shape[0], width = (uint64_t)how->heads * how->head_dim;
    const arg_rule_t rules[] = {{"x", FLOATS, 2, {ANY, width}},
                                {"positions", INDEX, 1, {t}},
                                {"frequencies", WIDE, 1, {how->pairs}}};
    const lh_status_t status = op_args_check("rope", args, rules, COUNT(rules));
    if (status == LH_OK) op_arg_like(&args[3], &args[0]);
    return status;
}

/* 3 FLOPs for each component: two multiplications and an addition. */
static void rope_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 3 * op_arg_elements(&args[0]), args, arg_count);
}

/* A rotation is orthogonal, so its gradient is the rotation back, with the same magnitude. */
static void rope_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                          const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    lh_rope_t back = *(const lh_rope_t *)attributes;
    back.inverse = !back.inverse;
    const lh_value_t in[] = {from[0], forward[1], forward[2]};
    if (wanted[0] && from[0] != 0) into[0] = g->api->op(g, "rope", &back, in, 3, NULL);
}

/* How many heads each of `ways` equal parts has. op is for the sentence. */
static lh_status_t cut_heads(const char *op, uint32_t heads, uint32_t ways, uint32_t *out)
{
    lh_assert(ways > 0);
    if (heads % ways != 0)
        return fail(LH_INVALID, "%s: %u heads can't be cut into %u equal parts", op, heads, ways);
    *out = heads / ways;
    return LH_OK;
}

/* Attributes of one of `ways` parts, each with as many heads. */
static lh_status_t rope_split(const lh_host_t *host, const void *attributes, uint32_t part,
                              uint32_t ways, void *out)
{
    (void)host, (void)part;
    lh_rope_t *mine = out;
    *mine = *(const lh_rope_t *)attributes;
    return cut_heads("rope", mine->heads, ways, &mine->heads);
}

/* Query heads and key heads are cut alike, so that a query head stays with the key head that it
 * uses. */
static lh_status_t attention_split(const lh_host_t *host, const void *attributes, uint32_t part,
                                   uint32_t ways, void *out)
{
    (void)host, (void)part;
    lh_attention_t *mine = out;
    *mine = *(const lh_attention_t *)attributes;
    const lh_status_t status = cut_heads("attention", mine->heads, ways, &mine->heads);
    if (status != LH_OK) return status;
    return cut_heads("attention (key and value)", mine->kv_heads, ways, &mine->kv_heads);
}

/* complete() of the ops with lh_attention_t: kv_heads 0 stands for as many as query heads. */
static void attention_all_heads(void *attributes, const lh_arg_t *args)
{
    (void)args;
    lh_attention_t *how = attributes;
    if (how->kv_heads == 0) how->kv_heads = how->heads;
}

/* Width of a value head, which may differ from that of query and key heads. */
static uint32_t value_dim(const lh_attention_t *how)
{
    return how->value_dim != 0 ? how->value_dim : how->head_dim;
}

/* Checks that there are heads, and equally many query heads for each key head. */
static lh_status_t heads_check(const char *op, const lh_attention_t *how)
{
    if (how->heads == 0 || how->kv_heads == 0 || how->head_dim == 0)
        return fail(LH_INVALID, "%s: heads %u, kv_heads %u, head_dim %u; expected at least 1", op,
                    how->heads, how->kv_heads, how->head_dim);
    if (how->heads % how->kv_heads != 0)
        return fail(LH_INVALID, "%s: heads %u is not a multiple of kv_heads %u", op, how->heads,
                    how->kv_heads);
    return LH_OK;
}

/* Slots of attention. attention_grad has the same inputs from slot 1 on, behind gy. */
enum { AT_Q, AT_K, AT_V, AT_STARTS, AT_SLOPES, AT_Y, AT_LSE };

/* Checks q [t, heads * head_dim], k [t', kv_heads * head_dim], v [t', kv_heads * value_dim], starts
 * and slopes [heads]; args begins with q. t' may differ from t, where a part of a sequence looks at
 * another part. */
static lh_status_t qkv_check(const char *op, const lh_attention_t *how, const lh_arg_t *args)
{
    const lh_status_t status = heads_check(op, how);
    if (status != LH_OK) return status;
    const uint64_t d = how->head_dim, kv = how->kv_heads;
    const lh_arg_t *q = &args[AT_Q], *k = &args[AT_K];
    const arg_rule_t rules[] = {
        {"q", FLOATS, 2, {ANY, how->heads * d}},
        {"k", IS(q->dtype), 2, {ANY, kv * d}},
        {"v", IS(q->dtype), 2, {k->shape[0], kv * value_dim(how)}},
        {"starts", INDEX, 1, {ANY}},
        {"slopes", WIDE, 1, {how->heads}},
    };
    return op_args_check(op, args, rules, COUNT(rules));
}

/* y is [t, heads * value_dim] in the dtype of q, lse [heads, t] in the wide dtype. */
static lh_status_t attention_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                   uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const lh_attention_t *how = attributes;
    const lh_status_t status = qkv_check("attention", how, args);
    if (status != LH_OK) return status;
    const lh_arg_t *q = &args[AT_Q];
    op_arg_set(&args[AT_Y], q->dtype, 2, q->shape[0], (uint64_t)how->heads * value_dim(how));
    op_arg_set(&args[AT_LSE], op_dtype_wide(q->dtype), 2, how->heads, q->shape[0]);
    return LH_OK;
}

/* Inputs gy q k v starts slopes y lse give gq, gk and gv, like q, k and v. */
static lh_status_t attention_grad_shape(const lh_host_t *host, const void *attributes,
                                        lh_arg_t *args, uint32_t arg_count)
{
    (void)host, (void)arg_count;
    const lh_attention_t *how = attributes;
    const lh_status_t status = qkv_check("attention_grad", how, args + 1);
    if (status != LH_OK) return status;

    const lh_arg_t *q = &args[1];
    const uint64_t t = q->shape[0], width = (uint64_t)how->heads * value_dim(how);
    const arg_rule_t gy = {"gy", FLOATS, 2, {t, width}};
    const arg_rule_t kept[] = {{"y", FLOATS, 2, {t, width}}, {"lse", WIDE, 2, {how->heads, t}}};
    lh_status_t checked = op_args_check("attention_grad", args, &gy, 1);
    if (checked == LH_OK) checked = op_args_check("attention_grad", args + 6, kept, COUNT(kept));
    for (uint32_t i = 0; i < 3 && checked == LH_OK; i++)
        op_arg_like(&args[8 + i], &args[1 + i]);
    return checked;
}

/* How many pairs of a query row and a key row meet in each head, by which attention costs. Where
 * documents begin lies in device memory, so they are taken as equally long, which is exact where
 * each sequence is one document. A document of n rows has n (n + 1) / 2 pairs if it is causal. With
 * a window of w rows, row i sees i rows for i up to w, and each later row sees w rows. */
static double attention_pairs(const lh_attention_t *how, const lh_arg_t *q, const lh_arg_t *starts)
{
    const double t = (double)q->shape[0];
    const double documents = starts->shape[0] > 1 ? (double)(starts->shape[0] - 1) : 1;
    const double length = t / documents, window = (double)how->window;
    if (how->full != 0) return t * length;
    if (how->window == 0 || window >= length) return t * (length + 1) / 2;
    return documents * (window * (window + 1) / 2 + (length - window) * window);
}

/* FLOPs of `products` matrix products over the pairs: 2 for each pair, head and component. About
 * half of the products are over head_dim and half over value_dim; the mean of both stands for
 * either. */
static double attention_flops(const lh_attention_t *how, const lh_arg_t *q, const lh_arg_t *starts,
                              double products)
{
    const double mean_dim = (how->head_dim + value_dim(how)) / 2.0;
    return 2 * products * attention_pairs(how, q, starts) * how->heads * mean_dim;
}

/* Two products: scores from q and k, and y from probabilities and v. */
static void attention_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                           lh_cost_t *out)
{
    op_cost_set(out, attention_flops(attributes, &args[AT_Q], &args[AT_STARTS], 2), args,
                arg_count);
}

/* Five products: scores again, then the gradients of probabilities, q, k and v. */
static void attention_grad_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                                lh_cost_t *out)
{
    op_cost_set(out, attention_flops(attributes, &args[1], &args[4], 5), args, arg_count);
}

/* One op makes all three gradients, as they share the probabilities. lse has no gradient: if one
 * arrives there, the op's gradient is not defined, and nothing is returned. */
static void attention_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                               const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    if (from[0] == 0 || from[1] != 0) return; /* from[1]: of lse */
    const lh_value_t in[] = {from[0],       forward[AT_Q],      forward[AT_K],
                             forward[AT_V], forward[AT_STARTS], forward[AT_SLOPES],
                             forward[AT_Y], forward[AT_LSE]};
    lh_value_t more[2];
    const lh_value_t gq = g->api->op(g, "attention_grad", attributes, in, 8, more);
    if (wanted[AT_Q]) into[AT_Q] = gq;
    if (wanted[AT_K]) into[AT_K] = more[0];
    if (wanted[AT_V]) into[AT_V] = more[1];
}

/* The op for generation. A cache holds earlier rows only, so attention that sees later rows has
 * none. */
static const char *attention_with_cache(const void *attributes)
{
    return ((const lh_attention_t *)attributes)->full == 0 ? "attention_cached" : NULL;
}

/* attention may be cut by heads, but not by rows, as a row needs the keys and values of its whole
 * document. Selective recomputation keeps its output, which would cost much to compute again. */
static const lh_op_t rows[] = {
    {
        LH_OP_TEXT(LH_ROPE_TEXT),
        ATTRIBUTES(lh_rope_t, rope_attributes),
        .flags = LH_OP_ROWS | LH_OP_IN_PLACE,
        .shape = rope_shape,
        .cost = rope_cost,
        .split = rope_split,
        .gradient = rope_gradient,
        .complete = all_pairs,
    },
    {
        LH_OP_TEXT(LH_ATTENTION_TEXT),
        ATTRIBUTES(lh_attention_t, attention_attributes),
        .flags = LH_OP_COSTLY,
        .shape = attention_shape,
        .cost = attention_cost,
        .split = attention_split,
        .gradient = attention_gradient,
        .complete = attention_all_heads,
        .cached = attention_with_cache,
    },
    {
        LH_OP_TEXT(LH_ATTENTION_GRAD_TEXT),
        ATTRIBUTES(lh_attention_t, attention_attributes),
        .flags = LH_OP_COSTLY,
        .shape = attention_grad_shape,
        .cost = attention_grad_cost,
        .split = attention_split,
        .complete = attention_all_heads,
    },
};

const op_rows_t ops_attention = {rows, COUNT(rows)};

/* ---- generation: keys and values kept from call to call, and attention over them ---- */

/* The options of attention without those that a cache decides: `full`, and where queries and keys
 * begin. */
static const lh_option_t cached_attributes[] = {
    HEADS,
    SCORES,
};

/* Checks that each sequence has as many rows of x: one, or in a prefill the rows of the prompt. */
static lh_status_t cache_rows_check(const char *op, const lh_arg_t *x, const lh_arg_t *lengths)
{
    if (x->shape[0] % lengths->shape[0] == 0) return LH_OK;
    return fail(LH_INVALID, "%s: %llu rows are not a multiple of %llu sequences", op,
                (unsigned long long)x->shape[0], (unsigned long long)lengths->shape[0]);
}

/* x [sequences * rows, w] is written into cache [sequences, capacity, w], for each sequence behind
 * the lengths [sequences] rows that are in it already. The output is the cache itself, in the
 * memory of the input of that name. */
static lh_status_t cache_write_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                     uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    const uint64_t width = args[0].shape[1], sequences = args[1].shape[0];
    const arg_rule_t rules[] = {{"x", FLOATS, 2, {ANY, ANY}},
                                {"lengths", INDEX, 1, {ANY}},
                                {"cache", FLOATS, 3, {sequences, ANY, width}}};
    lh_status_t status = op_args_check("cache_write", args, rules, COUNT(rules));
    if (status == LH_OK) status = cache_rows_check("cache_write", &args[0], &args[1]);
    if (status == LH_OK) op_arg_like(&args[3], &args[2]);
    return status;
}

/* q [sequences * rows, heads * head_dim] over k_cache [sequences, capacity, kv_heads * head_dim]
 * and v_cache [sequences, capacity, kv_heads * value_dim] gives y [sequences * rows, heads *
 * value_dim]. There is no lse, as generation has no way back. */
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
    lh_status_t status = op_args_check("attention_cached", args, rules, COUNT(rules));
    if (status == LH_OK) status = cache_rows_check("attention_cached", &args[0], &args[3]);
    if (status == LH_OK)
        op_arg_set(&args[5], args[0].dtype, 2, args[0].shape[0], how->heads * value_dim);
    return status;
}

/* Bytes are those of x, read and written; the rest of the cache is not touched. */
static void cache_write_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                             lh_cost_t *out)
{
    (void)attributes, (void)arg_count;
    const lh_arg_t moved[] = {args[0], args[0]};
    op_cost_set(out, 0, moved, COUNT(moved));
}

/* How full the cache is is known in device memory only, so it counts as full. Two products, of 2
 * FLOPs for each row of the cache and each component of q. */
static void attention_cached_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                                  lh_cost_t *out)
{
    (void)attributes;
    op_cost_set(out, 4 * op_arg_elements(&args[0]) * (double)args[1].shape[1], args, arg_count);
}

/* As attention_split, with a sentence of its own. */
static lh_status_t cached_split(const lh_host_t *host, const void *attributes, uint32_t part,
                                uint32_t ways, void *out)
{
    (void)host, (void)part;
    lh_attention_t *mine = out;
    lh_assert(ways > 0);
    *mine = *(const lh_attention_t *)attributes;
    if (mine->heads % ways != 0 || mine->kv_heads % ways != 0)
        return fail(LH_INVALID,
                    "attention_cached: %u and %u heads can't be cut into %u equal parts",
                    mine->heads, mine->kv_heads, ways);
    mine->heads /= ways;
    mine->kv_heads /= ways;
    return LH_OK;
}

/* The ops of generation have no gradients. */
static const lh_op_t cache_rows[] = {
    {
        LH_OP_TEXT(LH_CACHE_WRITE_TEXT),
        .shape = cache_write_shape,
        .cost = cache_write_cost,
    },
    {
        LH_OP_TEXT(LH_ATTENTION_CACHED_TEXT),
        ATTRIBUTES(lh_attention_t, cached_attributes),
        .shape = attention_cached_shape,
        .cost = attention_cached_cost,
        .split = cached_split,
        .complete = attention_all_heads,
    },
};

const op_rows_t ops_cache = {cache_rows, COUNT(cache_rows)};
