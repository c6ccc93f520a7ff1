/* falcon_plugin.c - Falcon in its three kinds: 7B (one key head, one norm for both parts), 40B and 180B
 * (groups of heads, a norm for each part) and RW (ALiBi, biases, one part after the other). Hugging
 * Face keeps q, k and v together, group by group.
 *
 * Before Transformers knew Falcon, its folders brought their own code and said RefinedWeb or
 * RefinedWebModel, n_layer, n_head and n_head_kv, of tensors with today's names and shapes. 40B had
 * code of its own, so no key says that a model is of its kind, but n_head_kv, which no other has; and
 * to the code of the others a key that is absent said no. */
#include <longhaul/decoder.h>

typedef struct falcon_config {
    lh_decoder_t base;
    lh_rotary_t rope;
    uint64_t norms;
    bool grouped, multi_query, parallel, alibi, biased;
} falcon_config_t;

/* clang-format off */
#define FLAG(f, fallback, help) LH_OPTION_BOOL(falcon_config_t, f, #f, fallback, help)
static const lh_option_t options[] = {
    LH_DECODER_OPTIONS(falcon_config_t, "2048", "1e-5", "yes"),
    LH_DECODER_FFN_OR_4(falcon_config_t),
    LH_DECODER_SIZE(falcon_config_t, kv_heads, "0", "0..1024", "where grouped: key and value heads; 0: as many as heads"),
    LH_OPTION_F64(falcon_config_t, rope.base, "rope_base", "10000", "1..1e12", "base of the rotary frequencies"),
    FLAG(grouped, "no", "40B, 180B: kv_heads counts, and both parts read the same row"),
    FLAG(multi_query, "yes", "where not grouped: one key and value head"),
    FLAG(parallel, "yes", "where not grouped: both parts read the same normed row"),
    LH_OPTION_U64(falcon_config_t, norms, "norms", "0", "0..2", "where grouped: norms before the two parts; 0: 2"),
    FLAG(alibi, "no", "scores fall with distance, instead of rotary positions"),
    FLAG(biased, "no", "linear layers have biases"),
};

static const lh_hf_key_t hf_keys[] = {
    LH_HF_KEY("num_hidden_layers|n_layer", "blocks", NULL), LH_HF_KEY("hidden_size", "hidden", NULL),
    LH_HF_KEY("num_attention_heads|n_head", "heads", NULL), LH_HF_KEY("vocab_size", "vocab", NULL),
    LH_HF_KEY("max_position_embeddings", "max_tokens", "2048"), LH_HF_KEY("layer_norm_epsilon", "epsilon", NULL), LH_HF_KEY("tie_word_embeddings", "tied", "true"),
    LH_HF_KEY("ffn_hidden_size", "ffn", "0"), LH_HF_KEY("num_kv_heads|n_head_kv", "kv_heads", "0"),
    LH_HF_KEY("rope_parameters.rope_theta|+rope_theta", "rope_base", "10000"),
    LH_HF_MUST("rope_parameters.rope_type|rope_parameters.type|rope_scaling.rope_type|rope_scaling.type", "default"),
    LH_HF_KEY("new_decoder_architecture|n_head_kv=true", "grouped", "false"),
    LH_HF_KEY("multi_query|n_head_kv=true|n_head=false", "multi_query", "true"),
    LH_HF_KEY("parallel_attn|n_head_kv=true|n_head=false", "parallel", "true"), LH_HF_KEY("num_ln_in_parallel_attn", "norms", "0"),
    LH_HF_KEY("alibi", "alibi", "false"), LH_HF_KEY("bias", "biased", "false"),
    LH_HF_MUST("activation", "gelu"), LH_HF_MUST("apply_residual_connection_post_layernorm", "false"), {.key = "attention_dropout"}, {.key = "hidden_dropout"},
};

#define LAYER "transformer.h.{}."
#define NORM(w, hf, p) LH_NORM(w, hf ".weight", p, h), LH_BIAS(w "_bias", hf ".bias", p, NONE, 1, h)
#define MATRIX(w, hf, cut, how, u, o, i) LH_MATRIX(w, LAYER hf ".weight", BLOCK, cut, how, u, o, i)
#define BIAS(b, hf, cut, u, width) LH_BIAS(b, LAYER hf ".bias", BLOCK, cut, u, width)
/* clang-format on */

static void list_params(lh_model_t *m)
{
    const falcon_config_t *c = m->config;
    const uint64_t h = m->base.hidden, f = m->base.ffn, vocab = m->base.vocab;
    const uint32_t d = (uint32_t)m->base.head_dim;
    const bool second = c->grouped ? c->norms != 1 : !c->parallel;
    LH_DECODER_ADD(m, LH_MATRIX("embed", "transformer.word_embeddings.weight", EMBED, VOCAB, NORMAL,
                                1, vocab, h));
    if (c->grouped && second)
        LH_DECODER_ADD(m, NORM("norm1", LAYER "ln_attn", BLOCK));
    else
        LH_DECODER_ADD(m, NORM("norm1", LAYER "input_layernorm", BLOCK));
    static const char *const names[3][2] = {{"wq", "bq"}, {"wk", "bk"}, {"wv", "bv"}};
    for (uint32_t i = 0; i < 3; i++)
        lh_decoder_add_fused(m, i, names[i][0], c->biased ? names[i][1] : NULL,
                             LAYER "self_attention.query_key_value.weight",
                             LAYER "self_attention.query_key_value.bias");
    LH_DECODER_ADD(m, MATRIX("wo", "self_attention.dense", IN, RESIDUAL, d, h, h));
    if (c->biased) LH_DECODER_ADD(m, BIAS("bo", "self_attention.dense", NONE, 1, h));
    if (second && c->grouped)
        LH_DECODER_ADD(m, NORM("norm2", LAYER "ln_mlp", BLOCK));
    else if (second)
        LH_DECODER_ADD(m, NORM("norm2", LAYER "post_attention_layernorm", BLOCK));
    LH_DECODER_ADD(m, MATRIX("w_up", "mlp.dense_h_to_4h", OUT, NORMAL, 1, f, h));
    if (c->biased) LH_DECODER_ADD(m, BIAS("b_up", "mlp.dense_h_to_4h", OUT, 1, f));
    LH_DECODER_ADD(m, MATRIX("w_down", "mlp.dense_4h_to_h", IN, RESIDUAL, 1, h, f));
    if (c->biased) LH_DECODER_ADD(m, BIAS("b_down", "mlp.dense_4h_to_h", NONE, 1, h));
    LH_DECODER_ADD(m, NORM("norm", "transformer.ln_f", HEAD),
                   LH_MATRIX("head", "lm_head.weight", HEAD, VOCAB, NORMAL, 1, vocab, h));
    if (m->base.tied) m->params[m->param_count - 1].tied_to = "embed";
}

static lh_status_t model_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    const falcon_config_t *c = config;
    lh_decoder_t d = c->base;
    if (!c->grouped) d.kv_heads = c->multi_query ? 1 : d.heads;
    return lh_decoder_open_rotary(host, &d, c, list_params, out);
}

/* ALiBi's slopes, divided by the root of head_dim, as Falcon adds them before it scales. */
static lh_value_t alibi_slopes(const lh_decoder_t *d, lh_graph_t *g)
{
    float s[1024];
    lh_alibi_fill(d->heads, sqrt((double)d->head_dim), s);
    return g->api->constant(g, s, d->heads);
}

static lh_value_t record_attention(const lh_model_t *m, lh_graph_t *g, lh_value_t n)
{
    const falcon_config_t *c = m->config;
    const lh_decoder_t *d = &m->base;
    const lh_attention_t how = lh_decoder_attention(d);
    lh_value_t q = lh_project(g, n, "wq", c->biased ? "bq" : NULL);
    lh_value_t k = lh_project(g, n, "wk", c->biased ? "bk" : NULL);
    const lh_value_t v = lh_project(g, n, "wv", c->biased ? "bv" : NULL);
    if (c->alibi) {
        const lh_value_t in[] = {q, k, v, 0, alibi_slopes(d, g)};
        return g->api->op(g, "attention", &how, in, 5, NULL);
    }
    const lh_value_t f = lh_rotary_frequencies(g, &c->rope, d->head_dim);
    q = lh_turn(g, q, f, d->heads, d->head_dim, d->head_dim);
    k = lh_turn(g, k, f, d->kv_heads, d->head_dim, d->head_dim);
    return lh_attend(g, q, k, v, &how);
}

static lh_value_t record_block(const lh_model_t *m, lh_graph_t *g, lh_value_t x)
{
    const falcon_config_t *c = m->config;
    const double epsilon = m->base.epsilon;
    const bool second = c->grouped ? c->norms != 1 : !c->parallel;
    const lh_value_t n = lh_layer_norm(g, x, "norm1", "norm1_bias", epsilon);
    const lh_value_t a = lh_project(g, record_attention(m, g, n), "wo", c->biased ? "bo" : NULL);
    const lh_value_t sum = lh_add(g, x, a);
    lh_value_t up = n;
    if (second) up = lh_layer_norm(g, c->grouped ? x : sum, "norm2", "norm2_bias", epsilon);
    up = lh_activate(g, lh_project(g, up, "w_up", c->biased ? "b_up" : NULL), LH_ACT_GELU);
    return lh_add(g, sum, lh_project(g, up, "w_down", c->biased ? "b_down" : NULL));
}

static lh_value_t model_record(lh_model_t *m, lh_graph_t *g, uint32_t part,
                               LH_UNUSED uint32_t block, lh_value_t x)
{
    switch (part) {
    case LH_PART_EMBED: return lh_embed(g, x, lh_named(g, "embed"));
    case LH_PART_BLOCK: return record_block(m, g, x);
    case LH_PART_HEAD:
        return lh_project(g, lh_layer_norm(g, x, "norm", "norm_bias", m->base.epsilon), "head",
                          NULL);
    default: return 0;
    }
}

LH_DECODER_PLUGIN("falcon", falcon_config_t, "Falcon 7B, 40B, 180B and RW",
                  .model_type = "falcon|RefinedWebModel|RefinedWeb",
                  .architecture = "FalconForCausalLM|RWForCausalLM|FalconModel|RWModel",
                  .ignored = "*.rotary_emb.inv_freq", .prefix = "transformer.");
