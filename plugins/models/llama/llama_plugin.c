/* llama_plugin.c - Llama 2 and 3, Mistral: RMSNorm, rotary grouped-query attention, SwiGLU, no biases;
 * of Mistral also a window. */
#include <longhaul/decoder.h>

typedef struct llama_config {
    lh_decoder_t base;
    lh_rotary_t rope;
    uint64_t window;
    uint32_t kind;
} llama_config_t;

enum { LLAMA, MISTRAL }; /* kind */

/* clang-format off */
static const lh_option_t options[] = {
    LH_DECODER_OPTIONS(llama_config_t, "2048", "1e-5", "no"),
    LH_DECODER_FFN(llama_config_t),
    LH_DECODER_HEADS(llama_config_t),
    LH_ROTARY_OPTIONS(llama_config_t),
    LH_OPTION_CHOICE(llama_config_t, kind, "kind", "llama", "llama|mistral", "what config.json calls it; mistral may have a window"),
    LH_OPTION_U64(llama_config_t, window, "window", "0", "0..16777216", "mistral: tokens that a token sees, itself included; 0: all before"),
};

static const lh_hf_key_t hf_keys[] = {
    LH_HF_KEY("model_type", "kind", NULL),
    LH_HF_KEY("num_hidden_layers", "blocks", "32"), LH_HF_KEY("hidden_size", "hidden", "4096"),
    LH_HF_WHEN("intermediate_size", "ffn", "11008", "kind=llama"),
    LH_HF_WHEN("intermediate_size", "ffn", "14336", "kind=mistral"),
    LH_HF_KEY("num_attention_heads", "heads", "32"),
    LH_DECODER_HEAD_KEYS("0"),
    LH_HF_KEY("vocab_size", "vocab", "32000"),
    LH_HF_WHEN("max_position_embeddings", "max_tokens", "2048", "kind=llama"),
    LH_HF_WHEN("max_position_embeddings", "max_tokens", "131072", "kind=mistral"),
    LH_HF_KEY("rms_norm_eps", "epsilon", "1e-6"),
    LH_HF_KEY("tie_word_embeddings", "tied", "false"),
    LH_ROTARY_KEYS,
    {.key = "sliding_window", .option = "window", .fixed = "4096", .when = "kind=mistral", .null = "0"},
    LH_HF_WHEN("layer_types[]", NULL, "sliding_attention", "kind=mistral"), /* else Transformers makes it a Ministral */
    LH_HF_MUST("hidden_act", "silu"),
    LH_HF_WHEN("attention_bias", NULL, "false", "kind=llama"), LH_HF_WHEN("mlp_bias", NULL, "false", "kind=llama"),
    LH_HF_MUST("rope_parameters.partial_rotary_factor|partial_rotary_factor", "1"), {.key = "attention_dropout"},
};
/* clang-format on */

static void list_params(lh_model_t *m)
{
    lh_llama_add_embed(m);
    lh_llama_add_norm(m, "attn_norm", LH_LAYER "input_layernorm.weight");
    lh_llama_add_attention(m);
    lh_llama_add_norm(m, "ffn_norm", LH_LAYER "post_attention_layernorm.weight");
    lh_llama_add_gated(m);
    lh_llama_add_head(m);
}

static lh_status_t model_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    const llama_config_t *c = config;
    if (c->window != 0 && c->kind != MISTRAL)
        return host->fail(host, LH_INVALID, "window = %llu wants kind = mistral: Llama has none",
                          (unsigned long long)c->window);
    return lh_decoder_open_rotary(host, &c->base, c, list_params, out);
}

static lh_value_t record_block(const lh_model_t *m, lh_graph_t *g, lh_value_t x)
{
    const llama_config_t *c = m->config;
    const lh_decoder_t *d = &m->base;
    lh_attention_t how = lh_decoder_attention(d);
    how.window = (uint32_t)c->window;
    const lh_value_t f = lh_rotary_frequencies(g, &c->rope, d->head_dim);

    const lh_value_t a = lh_rms(g, x, "attn_norm", d->epsilon);
    lh_value_t q = lh_project(g, a, "wq", NULL);
    q = lh_turn(g, q, f, d->heads, d->head_dim, d->head_dim);
    lh_value_t k = lh_project(g, a, "wk", NULL);
    k = lh_turn(g, k, f, d->kv_heads, d->head_dim, d->head_dim);
    const lh_value_t v = lh_project(g, a, "wv", NULL);
    x = lh_add(g, x, lh_project(g, lh_attend(g, q, k, v, &how), "wo", NULL));
    return lh_add(g, x, lh_llama_gated(g, lh_rms(g, x, "ffn_norm", d->epsilon), LH_ACT_SILU));
}

static lh_value_t model_record(lh_model_t *m, lh_graph_t *g, uint32_t part,
                               LH_UNUSED uint32_t block, lh_value_t x)
{
    switch (part) {
    case LH_PART_EMBED: return lh_embed(g, x, lh_named(g, "embed"));
    case LH_PART_BLOCK: return record_block(m, g, x);
    case LH_PART_HEAD: return lh_project(g, lh_rms(g, x, "norm", m->base.epsilon), "head", NULL);
    default: return 0;
    }
}

LH_DECODER_PLUGIN(
    "llama", llama_config_t, "Llama 2 and 3, Mistral", .model_type = "llama|mistral",
    .architecture = "LlamaForCausalLM|MistralForCausalLM|LlamaModel|MistralModel|LLaMAForCausalLM",
    .ignored = "*.rotary_emb.inv_freq", .prefix = "model.");
