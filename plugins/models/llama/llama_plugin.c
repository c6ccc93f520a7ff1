/* llama_plugin.c - Llama 2 and 3: RMSNorm, rotary grouped-query attention, SwiGLU, no biases. */
#include <math.h>

#include <longhaul/plugin.h>

typedef struct llama_config {
    uint64_t blocks, hidden, ffn, heads, kv_heads, head_dim, vocab, max_tokens, rope_original;
    double epsilon, rope_base, rope_factor, rope_low, rope_high;
    uint32_t rope_scaling;
    bool tied;
} llama_config_t;

enum { SCALING_DEFAULT, SCALING_LINEAR, SCALING_LLAMA3 }; /* rope_scaling */

/* clang-format off */
#define SIZE(field, fallback, range, help) LH_OPTION_U64(llama_config_t, field, #field, fallback, range, help)
#define REAL(field, fallback, range, help) LH_OPTION_F64(llama_config_t, field, #field, fallback, range, help)

static const lh_option_t options[] = {
    SIZE(blocks, NULL, "1..1024", "transformer blocks"),
    SIZE(hidden, NULL, "1..65536", "width of the residual stream"),
    SIZE(ffn, NULL, "1..262144", "width inside the feed-forward part"),
    SIZE(heads, NULL, "1..1024", "query heads"),
    SIZE(kv_heads, "0", "0..1024", "key and value heads, shared by groups of query heads; 0: as many as heads"),
    SIZE(head_dim, "0", "0..1024", "width of a head, even; 0: hidden / heads"),
    SIZE(vocab, NULL, "1..4194304", "rows of the embedding table"),
    SIZE(max_tokens, "2048", "1..16777216", "longest sequence the model is meant for"),
    REAL(epsilon, "1e-5", "0..1", "added to the mean square in RMSNorm"),
    LH_OPTION_BOOL(llama_config_t, tied, "tied", "no", "the head uses the embedding table"),
    REAL(rope_base, "10000", "1..1e12", "base of the rotary frequencies"),
    LH_OPTION_CHOICE(llama_config_t, rope_scaling, "rope_scaling", "default", "default|linear|llama3", "how rotary frequencies are stretched for longer sequences"),
    REAL(rope_factor, "1", "1..1e6", "linear and llama3: how much longer"),
    REAL(rope_low, "1", "0..1e6", "llama3: wavelengths over original / this are stretched whole"),
    REAL(rope_high, "4", "0..1e6", "llama3: wavelengths under original / this are left alone"),
    SIZE(rope_original, "8192", "1..16777216", "llama3: longest sequence before stretching"),
};

static const lh_hf_key_t hf_keys[] = {
    {"num_hidden_layers", "blocks", "32", NULL}, {"hidden_size", "hidden", "4096", NULL},
    {"intermediate_size", "ffn", "11008", NULL},
    {"num_attention_heads", "heads", "32", NULL},
    {"num_key_value_heads", "kv_heads", "heads", NULL},
    {"head_dim", "head_dim", "0", NULL},
    {"vocab_size", "vocab", "32000", NULL},
    {"max_position_embeddings", "max_tokens", "2048", NULL},
    {"rms_norm_eps", "epsilon", "1e-6", NULL},
    {"tie_word_embeddings", "tied", "false", NULL},
    {"rope_parameters.rope_theta|+rope_theta", "rope_base", "10000", NULL},
    {"rope_parameters.rope_type|+rope_scaling.rope_type|rope_scaling.type", "rope_scaling", "default", NULL},
    {"rope_parameters.factor|+rope_scaling.factor", "rope_factor", "1", "rope_scaling=linear|llama3"},
    {"rope_parameters.low_freq_factor|+rope_scaling.low_freq_factor", "rope_low", "1", "rope_scaling=llama3"},
    {"rope_parameters.high_freq_factor|+rope_scaling.high_freq_factor", "rope_high", "4", "rope_scaling=llama3"},
    {"rope_parameters.original_max_position_embeddings|+rope_scaling.original_max_position_embeddings", "rope_original", "8192", "rope_scaling=llama3"},
    {"hidden_act", NULL, "silu", NULL}, {"attention_bias", NULL, "false", NULL}, {"mlp_bias", NULL, "false", NULL},
    {"rope_parameters.partial_rotary_factor|partial_rotary_factor", NULL, "1", NULL}, {"attention_dropout", NULL, NULL, NULL},
};
/* clang-format on */

enum { PARAMS = 12, MAX_PAIRS = 512 };

struct lh_model {
    const lh_host_t *host;
    llama_config_t config; /* with the zeros of kv_heads and head_dim filled in */
    lh_param_t params[PARAMS];
};

#define LAYER "model.layers.{}."

static void list_params(lh_model_t *m)
{
    const llama_config_t *c = &m->config;
    const uint32_t head = (uint32_t)c->head_dim;
    const uint64_t h = c->hidden, q = c->heads * head, kv = c->kv_heads * head;

    const lh_param_t table[PARAMS] = {
        LH_MATRIX("embed", "model.embed_tokens.weight", EMBED, VOCAB, NORMAL, 1, c->vocab, h),
        LH_NORM("attn_norm", LAYER "input_layernorm.weight", BLOCK, h),
        LH_MATRIX("wq", LAYER "self_attn.q_proj.weight", BLOCK, OUT, NORMAL, head, q, h),
        LH_MATRIX("wk", LAYER "self_attn.k_proj.weight", BLOCK, OUT, NORMAL, head, kv, h),
        LH_MATRIX("wv", LAYER "self_attn.v_proj.weight", BLOCK, OUT, NORMAL, head, kv, h),
        LH_MATRIX("wo", LAYER "self_attn.o_proj.weight", BLOCK, IN, RESIDUAL, head, h, q),
        LH_NORM("ffn_norm", LAYER "post_attention_layernorm.weight", BLOCK, h),
        LH_MATRIX("w_gate", LAYER "mlp.gate_proj.weight", BLOCK, OUT, NORMAL, 1, c->ffn, h),
        LH_MATRIX("w_up", LAYER "mlp.up_proj.weight", BLOCK, OUT, NORMAL, 1, c->ffn, h),
        LH_MATRIX("w_down", LAYER "mlp.down_proj.weight", BLOCK, IN, RESIDUAL, 1, h, c->ffn),
        LH_NORM("norm", "model.norm.weight", HEAD, h),
        LH_MATRIX("head", "lm_head.weight", HEAD, VOCAB, NORMAL, 1, c->vocab, h),
    };
    memcpy(m->params, table, sizeof(table));
    if (c->tied) m->params[PARAMS - 1].tied_to = "embed";
}

static lh_status_t llama_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    llama_config_t c = *(const llama_config_t *)config;
    if (c.kv_heads == 0) c.kv_heads = c.heads;
    if (c.head_dim == 0 && c.hidden % c.heads != 0)
        return host->fail(host, LH_INVALID, "hidden %llu is not a multiple of heads %llu",
                          (unsigned long long)c.hidden, (unsigned long long)c.heads);
    if (c.head_dim == 0) c.head_dim = c.hidden / c.heads;
    if (c.heads % c.kv_heads != 0)
        return host->fail(host, LH_INVALID, "heads %llu is not a multiple of kv_heads %llu",
                          (unsigned long long)c.heads, (unsigned long long)c.kv_heads);
    if (c.head_dim % 2 != 0 || c.head_dim / 2 > MAX_PAIRS)
        return host->fail(host, LH_INVALID, "head_dim %llu is not an even number up to %d",
                          (unsigned long long)c.head_dim, 2 * MAX_PAIRS);

    lh_model_t *m = host->alloc(host, sizeof(*m), 64);
    if (m == NULL) return LH_NO_MEMORY;
    m->host = host;
    m->config = c;
    list_params(m);
    *out = m;
    return LH_OK;
}

static void llama_close(lh_model_t *m)
{
    m->host->release(m->host, m);
}

static lh_status_t llama_describe(lh_model_t *m, lh_model_info_t *out)
{
    LH_FILL(lh_model_info_t, out, .blocks = (uint32_t)m->config.blocks, .hidden = m->config.hidden,
            .vocab = m->config.vocab, .max_tokens = m->config.max_tokens, .params = m->params,
            .param_size = sizeof(m->params[0]), .param_count = PARAMS);
    return LH_OK;
}

/* Llama 3.1's stretching, as in Meta's apply_scaling: long waves by the factor, short ones not,
 * those between by a mix of both. */
static double stretched(const llama_config_t *c, double f)
{
    if (c->rope_scaling == SCALING_DEFAULT) return f;
    if (c->rope_scaling == SCALING_LINEAR) return f / c->rope_factor;

    const double original = (double)c->rope_original, wave = 2 * 3.14159265358979323846 / f;
    if (wave < original / c->rope_high) return f;
    if (wave > original / c->rope_low) return f / c->rope_factor;
    const double t = (original / wave - c->rope_low) / (c->rope_high - c->rope_low);
    return (1 - t) * f / c->rope_factor + t * f;
}

static lh_value_t frequencies(const llama_config_t *c, lh_graph_t *g)
{
    float f[MAX_PAIRS];
    for (uint64_t i = 0; i < c->head_dim / 2; i++)
        f[i] = (float)stretched(c, pow(c->rope_base, -2.0 * (double)i / (double)c->head_dim));
    return g->api->constant(g, f, c->head_dim / 2);
}

#define LINEAR(x, w) lh_linear(g, x, g->api->param(g, w), 0)
#define RMS(x, w) lh_rms_norm(g, x, g->api->param(g, w), c->epsilon)

static lh_value_t record_block(const llama_config_t *c, lh_graph_t *g, lh_value_t x)
{
    const uint32_t heads = (uint32_t)c->heads, kv = (uint32_t)c->kv_heads;
    const uint32_t d = (uint32_t)c->head_dim;
    const lh_rope_t turn_q = {sizeof(turn_q), heads, d, d / 2, 0, 0, 0};
    const lh_rope_t turn_k = {sizeof(turn_k), kv, d, d / 2, 0, 0, 0};
    const lh_attention_t how = {
        .struct_size = sizeof(how), .heads = heads, .kv_heads = kv, .head_dim = d};
    const lh_value_t f = frequencies(c, g);

    const lh_value_t a = RMS(x, "attn_norm");
    const lh_value_t q = lh_rotate(g, LINEAR(a, "wq"), f, &turn_q);
    const lh_value_t k = lh_rotate(g, LINEAR(a, "wk"), f, &turn_k);
    x = lh_add(g, x, LINEAR(lh_attend(g, q, k, LINEAR(a, "wv"), &how), "wo"));

    const lh_value_t n = RMS(x, "ffn_norm");
    const lh_value_t gate = lh_activate(g, LINEAR(n, "w_gate"), LH_ACT_SILU);
    return lh_add(g, x, LINEAR(lh_multiply(g, gate, LINEAR(n, "w_up")), "w_down"));
}

static lh_value_t llama_record(lh_model_t *m, lh_graph_t *g, uint32_t part,
                               LH_UNUSED uint32_t block, lh_value_t x)
{
    const llama_config_t *c = &m->config;
    switch (part) {
    case LH_PART_EMBED: return lh_embed(g, x, g->api->param(g, "embed"));
    case LH_PART_BLOCK: return record_block(c, g, x);
    case LH_PART_HEAD: return LINEAR(RMS(x, "norm"), "head");
    default: return 0;
    }
}

/* clang-format off */
static const lh_hf_t hf = {
    .struct_size = sizeof(hf), .key_size = sizeof(hf_keys[0]), .key_count = sizeof(hf_keys) / sizeof(hf_keys[0]),
    .model_type = "llama", .architecture = "LlamaForCausalLM|LlamaModel|LLaMAForCausalLM", .ignored = "*.rotary_emb.inv_freq", .keys = hf_keys,
};
static const lh_model_api_t api = {
    .struct_size = sizeof(api), .open = llama_open, .close = llama_close, .describe = llama_describe,
    .record = llama_record, .hf = &hf,
};
LH_PLUGIN = {
    LH_PLUGIN_HEADER, .kind = LH_KIND_MODEL, .name = "llama", .version = "0.1.0",
    .summary = "Llama 2 and 3", .config_size = sizeof(llama_config_t), LH_TABLE_OPTIONS(options), .model = &api,
};
/* clang-format on */
