/* gpt2_plugin.c - GPT-2: layer norm, learned positions, biases, tied head; weights stored [in,
 * out]. */
#include <longhaul/plugin.h>

typedef struct gpt2_config {
    uint64_t blocks, hidden, ffn, heads, vocab, max_tokens;
    double epsilon;
    bool tied;
} gpt2_config_t;

/* clang-format off */
#define SIZE(field, fallback, range, help) LH_OPTION_U64(gpt2_config_t, field, #field, fallback, range, help)

static const lh_option_t options[] = {
    SIZE(blocks, NULL, "1..1024", "transformer blocks"),
    SIZE(hidden, NULL, "1..65536", "width of the residual stream"),
    SIZE(ffn, "0", "0..262144", "width inside the feed-forward part; 0: 4 hidden"),
    SIZE(heads, NULL, "1..1024", "attention heads"),
    SIZE(vocab, NULL, "1..4194304", "rows of the embedding table"),
    SIZE(max_tokens, "1024", "1..1048576", "rows of the position table: the longest sequence"),
    LH_OPTION_F64(gpt2_config_t, epsilon, "epsilon", "1e-5", "0..1", "added to the variance in layer norm"),
    LH_OPTION_BOOL(gpt2_config_t, tied, "tied", "yes", "the head uses the embedding table"),
};

static const lh_hf_key_t hf_keys[] = {
    {"n_layer", "blocks", "12", NULL},
    {"n_embd", "hidden", "768", NULL},
    {"n_inner", "ffn", "0", NULL},
    {"n_head", "heads", "12", NULL},
    {"vocab_size", "vocab", "50257", NULL},
    {"n_positions|n_ctx", "max_tokens", "1024", NULL},
    {"layer_norm_epsilon", "epsilon", "1e-5", NULL},
    {"tie_word_embeddings", "tied", "true", NULL},
    {"activation_function", NULL, "gelu_new", NULL},
    {"scale_attn_weights", NULL, "true", NULL},
    {"scale_attn_by_inverse_layer_idx", NULL, "false", NULL},
    {"reorder_and_upcast_attn", NULL, "false", NULL},
    {"add_cross_attention", NULL, "false", NULL},
    {"embd_pdrop", NULL, NULL, NULL}, {"attn_pdrop", NULL, NULL, NULL}, {"resid_pdrop", NULL, NULL, NULL},
};

#define H "transformer.h.{}."
#define BIAS(n, hf, p, s, u, width)                                                             \
    {.name = n, .hf_name = hf, .part = LH_PART_##p, .shard = LH_SHARD_##s, .init = LH_INIT_ZERO, \
     .flags = LH_PARAM_NO_DECAY, .unit = u, .shape = {width}}
/* Hugging Face keeps q, k and v in one [in, 3 out] tensor. */
#define QKV(weight, bias, part_no)                                                              \
    {.name = weight, .hf_name = H "attn.c_attn.weight", .part = LH_PART_BLOCK,                  \
     .hf_import = "columns_in(source, part=" #part_no ", parts=3)",                             \
     .hf_export = "columns_out(source, part=" #part_no ", parts=3)", .shard = LH_SHARD_OUT,     \
     .init = LH_INIT_NORMAL, .unit = head, .shape = {h, h}, .hf_shape = {h, 3 * h}},            \
    {.name = bias, .hf_name = H "attn.c_attn.bias", .part = LH_PART_BLOCK,                      \
     .hf_import = "rows_in(source, part=" #part_no ", parts=3)",                                \
     .hf_export = "rows_out(source, part=" #part_no ", parts=3)", .shard = LH_SHARD_OUT,        \
     .init = LH_INIT_ZERO, .flags = LH_PARAM_NO_DECAY, .unit = head, .shape = {h},              \
     .hf_shape = {3 * h}}
#define CONV1D(weight, bias, hf, cut, bias_cut, how, u, i, o)                                   \
    {.name = weight, .hf_name = H hf ".weight", .hf_import = "transposed(source)",              \
     .hf_export = "transposed(source)", .part = LH_PART_BLOCK, .shard = LH_SHARD_##cut,         \
     .init = LH_INIT_##how, .unit = u, .shape = {o, i}, .hf_shape = {i, o}},                    \
    BIAS(bias, H hf ".bias", BLOCK, bias_cut, 1, o)
#define NORM(n, bias, hf, p) LH_NORM(n, hf ".weight", p, h), BIAS(bias, hf ".bias", p, NONE, 1, h)
/* clang-format on */

enum { PARAMS = 21 };

struct lh_model {
    const lh_host_t *host;
    gpt2_config_t config;
    lh_param_t params[PARAMS];
};

static void list_params(lh_model_t *m)
{
    const gpt2_config_t *c = &m->config;
    const uint64_t h = c->hidden;
    const uint32_t head = (uint32_t)(h / c->heads);

    const lh_param_t table[PARAMS] = {
        LH_MATRIX("embed", "transformer.wte.weight", EMBED, VOCAB, NORMAL, 1, c->vocab, h),
        LH_MATRIX("positions", "transformer.wpe.weight", EMBED, NONE, NORMAL, 1, c->max_tokens, h),
        NORM("norm1", "norm1_bias", H "ln_1", BLOCK),
        QKV("wq", "bq", 0),
        QKV("wk", "bk", 1),
        QKV("wv", "bv", 2),
        CONV1D("wo", "bo", "attn.c_proj", IN, NONE, RESIDUAL, head, h, h),
        NORM("norm2", "norm2_bias", H "ln_2", BLOCK),
        CONV1D("w_up", "b_up", "mlp.c_fc", OUT, OUT, NORMAL, 1, h, c->ffn),
        CONV1D("w_down", "b_down", "mlp.c_proj", IN, NONE, RESIDUAL, 1, c->ffn, h),
        NORM("norm", "norm_bias", "transformer.ln_f", HEAD),
        LH_MATRIX("head", "lm_head.weight", HEAD, VOCAB, NORMAL, 1, c->vocab, h),
    };
    memcpy(m->params, table, sizeof(table));
    if (c->tied) m->params[PARAMS - 1].tied_to = "embed";
}

static lh_status_t gpt2_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    gpt2_config_t c = *(const gpt2_config_t *)config;
    if (c.ffn == 0) c.ffn = 4 * c.hidden;
    if (c.hidden % c.heads != 0)
        return host->fail(host, LH_INVALID, "hidden %llu is not a multiple of heads %llu",
                          (unsigned long long)c.hidden, (unsigned long long)c.heads);

    lh_model_t *m = host->alloc(host, sizeof(*m), 64);
    if (m == NULL) return LH_NO_MEMORY;
    m->host = host;
    m->config = c;
    list_params(m);
    *out = m;
    return LH_OK;
}

static void gpt2_close(lh_model_t *m)
{
    m->host->release(m->host, m);
}

static lh_status_t gpt2_describe(lh_model_t *m, lh_model_info_t *out)
{
    LH_FILL(lh_model_info_t, out, .blocks = (uint32_t)m->config.blocks, .hidden = m->config.hidden,
            .vocab = m->config.vocab, .max_tokens = m->config.max_tokens, .params = m->params,
            .param_size = sizeof(m->params[0]), .param_count = PARAMS);
    return LH_OK;
}

static lh_value_t norm(const gpt2_config_t *c, lh_graph_t *g, lh_value_t x, const char *weight,
                       const char *bias)
{
    const lh_norm_t how = {sizeof(how), 0, c->epsilon};
    const lh_value_t in[] = {x, g->api->param(g, weight), g->api->param(g, bias)};
    return g->api->op(g, "layer_norm", &how, in, 3, NULL);
}

#define LINEAR(x, w, b) lh_linear(g, x, g->api->param(g, w), g->api->param(g, b))

static lh_value_t record_embed(lh_graph_t *g, lh_value_t tokens)
{
    const lh_value_t at = g->api->input(g, LH_INPUT_POSITIONS);
    const lh_value_t x = lh_embed(g, tokens, g->api->param(g, "embed"));
    return lh_add(g, x, lh_embed(g, at, g->api->param(g, "positions")));
}

static lh_value_t record_block(const gpt2_config_t *c, lh_graph_t *g, lh_value_t x)
{
    const lh_attention_t how = {.struct_size = sizeof(how),
                                .heads = (uint32_t)c->heads,
                                .kv_heads = (uint32_t)c->heads,
                                .head_dim = (uint32_t)(c->hidden / c->heads)};

    const lh_value_t n = norm(c, g, x, "norm1", "norm1_bias");
    const lh_value_t q = LINEAR(n, "wq", "bq"), k = LINEAR(n, "wk", "bk");
    const lh_value_t a = lh_attend(g, q, k, LINEAR(n, "wv", "bv"), &how);
    x = lh_add(g, x, LINEAR(a, "wo", "bo"));

    const lh_value_t up = LINEAR(norm(c, g, x, "norm2", "norm2_bias"), "w_up", "b_up");
    return lh_add(g, x, LINEAR(lh_activate(g, up, LH_ACT_GELU_TANH), "w_down", "b_down"));
}

static lh_value_t gpt2_record(lh_model_t *m, lh_graph_t *g, uint32_t part, LH_UNUSED uint32_t block,
                              lh_value_t x)
{
    const gpt2_config_t *c = &m->config;
    switch (part) {
    case LH_PART_EMBED: return record_embed(g, x);
    case LH_PART_BLOCK: return record_block(c, g, x);
    case LH_PART_HEAD:
        return lh_linear(g, norm(c, g, x, "norm", "norm_bias"), g->api->param(g, "head"), 0);
    default: return 0;
    }
}

/* clang-format off */
static const lh_hf_t hf = {
    .struct_size = sizeof(hf), .key_size = sizeof(hf_keys[0]), .key_count = sizeof(hf_keys) / sizeof(hf_keys[0]),
    .model_type = "gpt2", .architecture = "GPT2LMHeadModel|GPT2Model",
    .ignored = "*.attn.bias, *.attn.masked_bias", .keys = hf_keys, .prefix = "transformer.",
};
static const lh_model_api_t api = {
    .struct_size = sizeof(api), .open = gpt2_open, .close = gpt2_close, .describe = gpt2_describe,
    .record = gpt2_record, .hf = &hf,
};
LH_PLUGIN = {
    LH_PLUGIN_HEADER, .kind = LH_KIND_MODEL, .name = "gpt2", .version = "0.1.0",
    .summary = "GPT-2", .config_size = sizeof(gpt2_config_t), LH_TABLE_OPTIONS(options), .model = &api,
};
/* clang-format on */
