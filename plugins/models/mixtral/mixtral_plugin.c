/* mixtral_plugin.c - Mixtral: Mistral with experts in place of the feed-forward part. Each token goes to
 * the few that its router scores highest; what they say counts by a softmax over those scores. Blocks
 * add to two sums of which the head makes the loss that balances experts: lh_routed and lh_balance of
 * longhaul/decoder.h. */
#include <longhaul/decoder.h>

typedef struct mixtral_config {
    lh_decoder_t base;
    lh_rotary_t rope;
    uint64_t window;
} mixtral_config_t;

/* clang-format off */
static const lh_option_t options[] = {
    LH_DECODER_OPTIONS(mixtral_config_t, "32768", "1e-5", "no"),
    LH_DECODER_FFN(mixtral_config_t),
    LH_DECODER_HEADS(mixtral_config_t),
    LH_ROTARY_OPTIONS(mixtral_config_t),
    LH_OPTION_U64(mixtral_config_t, window, "window", "0", "0..16777216", "tokens that a token sees, itself included; 0: all before"),
    LH_DECODER_EXPERTS(mixtral_config_t, "8", "2"),
};

static const lh_hf_key_t hf_keys[] = {
    LH_DECODER_KEYS("rms_norm_eps", "false"),
    LH_HF_KEY("intermediate_size", "ffn", NULL),
    LH_DECODER_HEAD_KEYS("0"),
    LH_ROTARY_KEYS_OF("1000000"),
    {.key = "sliding_window", .option = "window", .fixed = "0", .null = "0"},
    LH_HF_KEY("num_local_experts", "experts", "8"), LH_HF_KEY("num_experts_per_tok", "chosen", "2"),
    LH_HF_MUST("hidden_act", "silu"), {.key = "attention_dropout"}, {.key = "router_jitter_noise"},
    LH_HF_KEY("output_router_logits", "balanced", "false"), LH_HF_KEY("router_aux_loss_coef", "balance", "0.001"),
};
/* clang-format on */

#define MOE LH_LAYER "block_sparse_moe."

static void list_params(lh_model_t *m)
{
    const uint64_t n = m->base.experts, h = m->base.hidden, f = m->base.ffn;
    lh_llama_add_embed(m);
    lh_llama_add_norm(m, "attn_norm", LH_LAYER "input_layernorm.weight");
    lh_llama_add_attention(m);
    lh_llama_add_norm(m, "ffn_norm", LH_LAYER "post_attention_layernorm.weight");
    LH_DECODER_ADD(m, LH_MATRIX("router", MOE "gate.weight", BLOCK, NONE, NORMAL, 1, n, h),
                   LH_EXPERTS("w_gate", MOE "experts.{e}.w1.weight", NORMAL, n, f, h),
                   LH_EXPERTS("w_up", MOE "experts.{e}.w3.weight", NORMAL, n, f, h),
                   LH_EXPERTS("w_down", MOE "experts.{e}.w2.weight", RESIDUAL, n, h, f));
    lh_llama_add_head(m);
}

LH_DECODER_OPEN(lh_decoder_open_rotary, mixtral_config_t, list_params)

static lh_value_t record_block(const lh_model_t *m, lh_graph_t *g, lh_value_t x)
{
    const mixtral_config_t *c = m->config;
    const lh_decoder_t *d = &m->base;
    lh_attention_t how = lh_decoder_attention(d);
    how.window = (uint32_t)c->window;
    const lh_value_t f = lh_rotary_frequencies(g, &c->rope, d->head_dim);

    const lh_value_t a = lh_rms(g, x, "attn_norm", d->epsilon);
    const lh_value_t q = lh_project(g, a, "wq", NULL), k = lh_project(g, a, "wk", NULL);
    x = lh_add(g, x, lh_llama_attend(g, a, q, k, f, &how));
    const lh_value_t n = lh_rms(g, x, "ffn_norm", d->epsilon);
    return lh_add(g, x, lh_routed(g, n, d, LH_SHARES_OF_CHOSEN, LH_ACT_SILU));
}

static lh_value_t model_record(lh_model_t *m, lh_graph_t *g, uint32_t part,
                               LH_UNUSED uint32_t block, lh_value_t x)
{
    switch (part) {
    case LH_PART_EMBED: return lh_embed(g, x, lh_named(g, "embed"));
    case LH_PART_BLOCK: return record_block(m, g, x);
    case LH_PART_HEAD:
        lh_balance(g, &m->base);
        return lh_project(g, lh_rms(g, x, "norm", m->base.epsilon), "head", NULL);
    default: return 0;
    }
}

LH_DECODER_PLUGIN("mixtral", mixtral_config_t, "Mixtral", .model_type = "mixtral",
                  .architecture = "MixtralForCausalLM|MixtralModel",
                  .ignored = "*.rotary_emb.inv_freq", .prefix = "model.");
