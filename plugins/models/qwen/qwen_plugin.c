/* qwen_plugin.c - Qwen 2, 2.5 and 3: Llama's layout; Qwen 2 adds biases to q, k and v, Qwen 3 norms the
 * heads of q and k before they turn. */
#include <longhaul/decoder.h>

typedef struct qwen_config {
    lh_decoder_t base;
    lh_rotary_t rope;
    uint32_t kind;
} qwen_config_t;

enum { QWEN2, QWEN3 }; /* kind */

/* clang-format off */
static const lh_option_t options[] = {
    LH_OPTION_CHOICE(qwen_config_t, kind, "kind", "qwen3", "qwen2|qwen3", "biases of q, k and v, or norms of heads; Qwen 2.5 is qwen2"),
    LH_DECODER_OPTIONS(qwen_config_t, "32768", "1e-6", "no"),
    LH_DECODER_FFN(qwen_config_t),
    LH_DECODER_HEADS(qwen_config_t),
    LH_ROTARY_OPTIONS(qwen_config_t),
};

static const lh_hf_key_t hf_keys[] = {
    LH_HF_KEY("model_type", "kind", NULL),
    LH_DECODER_KEYS("rms_norm_eps", "false"),
    LH_HF_KEY("intermediate_size", "ffn", NULL),
    LH_HF_KEY("num_key_value_heads", "kv_heads", "heads"),
    LH_HEAD_DIM_KEY("0", "kind=qwen2"), LH_HEAD_DIM_KEY("128", "kind=qwen3"),
    LH_ROTARY_KEYS,
    LH_HF_MUST("hidden_act", "silu"), LH_HF_MUST("attention_bias", "false"),
    LH_HF_MUST("use_sliding_window", "false"), LH_HF_MUST("layer_types[]", "full_attention"),
    LH_HF_ANY("sliding_window"), LH_HF_ANY("max_window_layers"), /* mean nothing without */
    {.key = "attention_dropout"},
};

#define BIAS(n, of, width) LH_BIAS(n, LH_LAYER "self_attn." of ".bias", BLOCK, OUT, head, width)
/* clang-format on */

static void list_params(lh_model_t *m)
{
    const qwen_config_t *c = m->config;
    const uint32_t head = (uint32_t)m->base.head_dim;
    const uint64_t q = m->base.heads * head, kv = m->base.kv_heads * head;
    lh_llama_add_embed(m);
    lh_llama_add_norm(m, "attn_norm", LH_LAYER "input_layernorm.weight");
    lh_llama_add_attention(m);
    if (c->kind == QWEN2)
        LH_DECODER_ADD(m, BIAS("bq", "q_proj", q), BIAS("bk", "k_proj", kv),
                       BIAS("bv", "v_proj", kv));
    else
        lh_llama_add_head_norms(m);
    lh_llama_add_norm(m, "ffn_norm", LH_LAYER "post_attention_layernorm.weight");
    lh_llama_add_gated(m);
    lh_llama_add_head(m);
}

LH_DECODER_OPEN(lh_decoder_open_rotary, qwen_config_t, list_params)

static lh_value_t record_block(const lh_model_t *m, lh_graph_t *g, lh_value_t x)
{
    const qwen_config_t *c = m->config;
    const lh_decoder_t *d = &m->base;
    const lh_attention_t how = lh_decoder_attention(d);
    const lh_value_t f = lh_rotary_frequencies(g, &c->rope, d->head_dim);
    const bool biased = c->kind == QWEN2;

    const lh_value_t a = lh_rms(g, x, "attn_norm", d->epsilon);
    lh_value_t q = lh_project(g, a, "wq", biased ? "bq" : NULL);
    lh_value_t k = lh_project(g, a, "wk", biased ? "bk" : NULL);
    const lh_value_t v = lh_project(g, a, "wv", biased ? "bv" : NULL);
    if (!biased) {
        q = lh_rms(g, q, "q_norm", d->epsilon);
        k = lh_rms(g, k, "k_norm", d->epsilon);
    }
    q = lh_turn(g, q, f, d->heads, d->head_dim, d->head_dim);
    k = lh_turn(g, k, f, d->kv_heads, d->head_dim, d->head_dim);
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

LH_DECODER_PLUGIN("qwen", qwen_config_t, "Qwen 2, 2.5 and 3", .model_type = "qwen2|qwen3",
                  .architecture = "Qwen2ForCausalLM|Qwen3ForCausalLM|Qwen2Model|Qwen3Model",
                  .ignored = "*.rotary_emb.inv_freq", .prefix = "model.");
