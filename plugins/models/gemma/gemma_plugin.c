/* gemma_plugin.c - Gemma 1, 2 and 3 (text): Llama's layout with scaled embeddings, norms of 1 + w and
 * GeGLU. Gemma 2 and 3 norm what each part adds to the residual stream as well, and alternate windows;
 * Gemma 2 caps scores and logits, Gemma 3 norms heads and turns those of windows by a base of its own. */
#include <longhaul/decoder.h>

typedef struct gemma_config {
    lh_decoder_t base;
    lh_rotary_t rope;
    uint64_t window, query_scale;
    double attention_cap, logit_cap, rope_local;
    char *layers; /* NULL: the kind's own */
    uint32_t kind;
} gemma_config_t;

enum { GEMMA, GEMMA2, GEMMA3 }; /* kind */

/* clang-format off */
#define REAL(f, fallback, range, help) LH_OPTION_F64(gemma_config_t, f, #f, fallback, range, help)

static const lh_option_t options[] = {
    LH_OPTION_CHOICE(gemma_config_t, kind, "kind", "gemma2", "gemma|gemma2|gemma3_text", "which of them"),
    LH_DECODER_OPTIONS(gemma_config_t, "8192", "1e-6", "yes"),
    LH_DECODER_FFN(gemma_config_t), LH_DECODER_HEADS(gemma_config_t),
    LH_OPTION_F64(gemma_config_t, rope.base, "rope_base", "10000", "1..1e12", "base of the rotary frequencies"),
    LH_OPTION_CHOICE(gemma_config_t, rope.scaling, "rope_scaling", "default", "default|linear", "gemma3_text: how rotary frequencies are stretched for longer sequences"),
    LH_OPTION_F64(gemma_config_t, rope.factor, "rope_factor", "1", "1..1e6", "linear: how much longer"),
    REAL(rope_local, "10000", "1..1e12", "gemma3_text: rope_base of blocks with a window"),
    LH_OPTION_U64(gemma_config_t, window, "window", "4096", "0..16777216", "tokens that a token sees in blocks with a window; 0: all before"),
    LH_OPTION_STRING(gemma_config_t, layers, "layers", "", "w (window) or f (full) for each block, beginning again; empty: wf, of gemma3_text wwwwwf"),
    /* A whole number, as Transformers takes no 256.0 for it. */
    LH_OPTION_U64(gemma_config_t, query_scale, "query_scale", "256", "1..1000000", "gemma2, gemma3_text: scores are divided by its root"),
    REAL(attention_cap, "0", "0..1e6", "gemma2, gemma3_text: scores are capped at this; 0: not"),
    REAL(logit_cap, "0", "0..1e6", "gemma2, gemma3_text: logits are capped at this; 0: not"),
};

#define WINDOWS "kind=gemma2|gemma3_text"
#define WORDS "w=sliding_attention|f=full_attention"
static const lh_hf_key_t hf_keys[] = {
    LH_HF_KEY("model_type", "kind", NULL), LH_HF_KEY("intermediate_size", "ffn", NULL), LH_DECODER_KEYS("rms_norm_eps", "true"),
    LH_DECODER_HEAD_KEYS("256"),
    LH_HF_WHEN("rope_parameters.rope_theta|+rope_theta", "rope_base", "10000", "kind=gemma|gemma2"),
    LH_HF_WHEN("rope_parameters.rope_type|rope_parameters.type|rope_scaling.rope_type|rope_scaling.type", NULL, "default", "kind=gemma|gemma2"),
    LH_HF_WHEN("rope_parameters.full_attention.rope_theta|+rope_theta", "rope_base", "1000000", "kind=gemma3_text"),
    LH_HF_WHEN("rope_parameters.full_attention.rope_type|+rope_scaling.rope_type|rope_scaling.type", "rope_scaling", "default", "kind=gemma3_text"),
    LH_HF_WHEN("rope_parameters.full_attention.factor|+rope_scaling.factor", "rope_factor", NULL, "rope_scaling=linear"),
    LH_HF_WHEN("rope_parameters.sliding_attention.rope_theta|+rope_local_base_freq", "rope_local", "10000", "kind=gemma3_text"), LH_HF_WHEN("rope_parameters.sliding_attention.rope_type", NULL, "default", "kind=gemma3_text"),
    {.key = "sliding_window", .option = "window", .fixed = "4096", .when = WINDOWS, .null = "0"},
    {.key = "layer_types[]", .option = "layers", .fixed = "wf", .when = "kind=gemma2", .words = WORDS},
    {.key = "layer_types[]", .option = "layers", .fixed = "wwwwwf", .when = "kind=gemma3_text", .words = WORDS},
    LH_HF_WHEN("sliding_window_pattern|_sliding_window_pattern", NULL, "6", "kind=gemma3_text"), LH_HF_WHEN("query_pre_attn_scalar", "query_scale", "256", WINDOWS),
    {.key = "attn_logit_softcapping", .option = "attention_cap", .fixed = "50", .when = "kind=gemma2", .null = "0"},
    {.key = "final_logit_softcapping", .option = "logit_cap", .fixed = "30", .when = "kind=gemma2", .null = "0"},
    {.key = "attn_logit_softcapping", .option = "attention_cap", .fixed = "0", .when = "kind=gemma3_text", .null = "0"},
    {.key = "final_logit_softcapping", .option = "logit_cap", .fixed = "0", .when = "kind=gemma3_text", .null = "0"},
    LH_HF_MUST("hidden_activation", "gelu_pytorch_tanh"), LH_HF_WHEN("hidden_act", NULL, "gelu_pytorch_tanh", WINDOWS),
    LH_HF_WHEN("hidden_act", NULL, "gelu_pytorch_tanh|gelu", "kind=gemma"), /* early files said gelu and meant the other */
    LH_HF_MUST("attention_bias", "false"), LH_HF_MUST("use_bidirectional_attention", "false"), {.key = "attention_dropout"},
};
/* clang-format on */

static void list_params(lh_model_t *m)
{
    const gemma_config_t *c = m->config;
    lh_llama_add_embed(m);
    lh_llama_add_norm(m, "attn_norm", LH_LAYER "input_layernorm.weight");
    lh_llama_add_attention(m);
    if (c->kind == GEMMA3) lh_llama_add_head_norms(m);
    if (c->kind != GEMMA) {
        lh_llama_add_norm(m, "attn_out", LH_LAYER "post_attention_layernorm.weight");
        lh_llama_add_norm(m, "ffn_norm", LH_LAYER "pre_feedforward_layernorm.weight");
        lh_llama_add_norm(m, "ffn_out", LH_LAYER "post_feedforward_layernorm.weight");
    } else {
        lh_llama_add_norm(m, "ffn_norm", LH_LAYER "post_attention_layernorm.weight");
    }
    lh_llama_add_gated(m);
    lh_llama_add_head(m);
    /* Weights of norms are what is added to 1. */
    for (uint32_t i = 0; i < m->param_count; i++)
        if (m->params[i].init == LH_INIT_ONE) m->params[i].init = LH_INIT_ZERO;
}

static lh_status_t model_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    const gemma_config_t *c = config;
    if (c->layers != NULL && c->layers[strspn(c->layers, "wf")] != '\0')
        return host->fail(host, LH_INVALID, "layers = %.64s: expected letters w and f", c->layers);
    if (c->rope.scaling != LH_ROTARY_DEFAULT && c->kind != GEMMA3)
        return host->fail(host, LH_INVALID, "rope_scaling = linear wants kind = gemma3_text");
    return lh_decoder_open_rotary(host, &c->base, c, list_params, out);
}

static bool has_window(const gemma_config_t *c, uint32_t block)
{
    const char *layers = c->layers != NULL ? c->layers : c->kind == GEMMA3 ? "wwwwwf" : "wf";
    return c->kind != GEMMA && layers[block % strlen(layers)] == 'w';
}

static lh_value_t gemma_norm(const lh_model_t *m, lh_graph_t *g, lh_value_t x, const char *w)
{
    const lh_norm_t how = {sizeof(how), 1, m->base.epsilon};
    const lh_value_t in[] = {x, lh_named(g, w)};
    return g->api->op(g, "rms_norm", &how, in, 2, NULL);
}

static lh_value_t record_block(const lh_model_t *m, lh_graph_t *g, uint32_t block, lh_value_t x)
{
    const gemma_config_t *c = m->config;
    const lh_decoder_t *d = &m->base;
    const bool windowed = has_window(c, block);
    lh_rotary_t rope = c->rope;
    if (c->kind == GEMMA3 && windowed) rope = (lh_rotary_t){.base = c->rope_local};
    const lh_value_t f = lh_rotary_frequencies(g, &rope, d->head_dim);
    lh_attention_t how = lh_decoder_attention(d);
    if (windowed) how.window = (uint32_t)c->window;
    how.scale = c->kind == GEMMA ? 0 : 1 / sqrt((double)c->query_scale);
    how.soft_cap = c->kind == GEMMA ? 0 : c->attention_cap;

    lh_value_t a = gemma_norm(m, g, x, "attn_norm");
    lh_value_t q = lh_project(g, a, "wq", NULL), k = lh_project(g, a, "wk", NULL);
    if (c->kind == GEMMA3) q = gemma_norm(m, g, q, "q_norm");
    if (c->kind == GEMMA3) k = gemma_norm(m, g, k, "k_norm");
    a = lh_llama_attend(g, a, q, k, f, &how);
    x = lh_add(g, x, c->kind == GEMMA ? a : gemma_norm(m, g, a, "attn_out"));
    a = lh_llama_gated(g, gemma_norm(m, g, x, "ffn_norm"), LH_ACT_GELU_TANH);
    return lh_add(g, x, c->kind == GEMMA ? a : gemma_norm(m, g, a, "ffn_out"));
}

static lh_value_t model_record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                               lh_value_t x)
{
    const gemma_config_t *c = m->config;
    const double cap = c->kind == GEMMA ? 0 : c->logit_cap;
    switch (part) {
    case LH_PART_EMBED:
        return lh_times(g, lh_embed(g, x, lh_named(g, "embed")), sqrt((double)m->base.hidden));
    case LH_PART_BLOCK: return record_block(m, g, block, x);
    case LH_PART_HEAD:
        x = lh_project(g, gemma_norm(m, g, x, "norm"), "head", NULL);
        return cap <= 0 ? x
                        : lh_times(g, lh_activate(g, lh_times(g, x, 1 / cap), LH_ACT_TANH), cap);
    default: return 0;
    }
}

LH_DECODER_PLUGIN("gemma", gemma_config_t, "Gemma 1, 2 and 3 (text)",
                  .model_type = "gemma|gemma2|gemma3_text",
                  .architecture = "GemmaForCausalLM|Gemma2ForCausalLM|Gemma3ForCausalLM|GemmaModel|"
                                  "Gemma2Model|Gemma3TextModel",
                  .ignored = "*.rotary_emb.inv_freq", .prefix = "model.");
