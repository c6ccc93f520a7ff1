/* gptneox_plugin.c - GPT-NeoX and Pythia: layer norm, biases, attention and feed-forward side by side,
 * a part of each head turns. Hugging Face keeps q, k and v of a head together in one tensor. */
#include <longhaul/decoder.h>

typedef struct gptneox_config {
    lh_decoder_t base;
    lh_rotary_t rope;
    double turning;
    bool parallel;
} gptneox_config_t;

/* clang-format off */
static const lh_option_t options[] = {
    LH_DECODER_OPTIONS(gptneox_config_t, "2048", "1e-5", "no"),
    LH_DECODER_FFN(gptneox_config_t),
    LH_OPTION_F64(gptneox_config_t, rope.base, "rope_base", "10000", "1..1e12", "base of the rotary frequencies"),
    LH_OPTION_F64(gptneox_config_t, turning, "turning", "0.25", "0..1", "share of a head's components that turn"),
    LH_OPTION_BOOL(gptneox_config_t, parallel, "parallel", "yes", "attention and feed-forward part read the same row"),
};

static const lh_hf_key_t hf_keys[] = {
    LH_DECODER_KEYS("layer_norm_eps", "false"),
    LH_HF_KEY("intermediate_size", "ffn", NULL),
    LH_HF_KEY("rope_parameters.rope_theta|+rotary_emb_base|rope_theta", "rope_base", "10000"),
    LH_HF_KEY("rope_parameters.partial_rotary_factor|+rotary_pct|partial_rotary_factor", "turning", "0.25"),
    LH_HF_MUST("rope_parameters.rope_type|rope_parameters.type|rope_scaling.rope_type|rope_scaling.type", "default"),
    LH_HF_KEY("use_parallel_residual", "parallel", "true"),
    LH_HF_MUST("hidden_act", "gelu"), LH_HF_MUST("attention_bias", "true"),
    {.key = "attention_dropout"}, {.key = "hidden_dropout"}, LH_HF_ANY("classifier_dropout"),
};

#define LAYER "gpt_neox.layers.{}."
#define LINEAR(w, b, hf, cut, bias_cut, how, u, o, i)                        \
    LH_MATRIX(w, LAYER hf ".weight", BLOCK, cut, how, u, o, i),              \
    LH_BIAS(b, LAYER hf ".bias", BLOCK, bias_cut, u, o)
#define NORM(w, b, hf, p) LH_NORM(w, hf ".weight", p, h), LH_BIAS(b, hf ".bias", p, NONE, 1, h)
/* clang-format on */

static void list_params(lh_model_t *m)
{
    const uint64_t h = m->base.hidden, f = m->base.ffn, vocab = m->base.vocab;
    LH_DECODER_ADD(
        m, LH_MATRIX("embed", "gpt_neox.embed_in.weight", EMBED, VOCAB, NORMAL, 1, vocab, h),
        NORM("norm1", "norm1_bias", LAYER "input_layernorm", BLOCK));
    static const char *const names[3][2] = {{"wq", "bq"}, {"wk", "bk"}, {"wv", "bv"}};
    for (uint32_t i = 0; i < 3; i++)
        lh_decoder_add_fused(m, i, names[i][0], names[i][1],
                             LAYER "attention.query_key_value.weight",
                             LAYER "attention.query_key_value.bias");
    LH_DECODER_ADD(
        m,
        LINEAR("wo", "bo", "attention.dense", IN, NONE, RESIDUAL, (uint32_t)m->base.head_dim, h, h),
        NORM("norm2", "norm2_bias", LAYER "post_attention_layernorm", BLOCK),
        LINEAR("w_up", "b_up", "mlp.dense_h_to_4h", OUT, OUT, NORMAL, 1, f, h),
        LINEAR("w_down", "b_down", "mlp.dense_4h_to_h", IN, NONE, RESIDUAL, 1, h, f),
        NORM("norm", "norm_bias", "gpt_neox.final_layer_norm", HEAD),
        LH_MATRIX("head", "embed_out.weight", HEAD, VOCAB, NORMAL, 1, vocab, h));
    if (m->base.tied) m->params[m->param_count - 1].tied_to = "embed";
}

static uint64_t turning_dims(const lh_model_t *m)
{
    const gptneox_config_t *c = m->config;
    return (uint64_t)((double)m->base.head_dim * c->turning);
}

static lh_status_t model_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    const gptneox_config_t *c = config;
    const lh_status_t status = lh_decoder_open_rotary(host, &c->base, c, list_params, out);
    if (status != LH_OK || (turning_dims(*out) > 0 && turning_dims(*out) % 2 == 0)) return status;
    lh_decoder_close(*out);
    return host->fail(host, LH_INVALID, "turning %g of a head of %llu is no even number above 0",
                      c->turning, (unsigned long long)(c->base.hidden / c->base.heads));
}

static lh_value_t record_block(const lh_model_t *m, lh_graph_t *g, lh_value_t x)
{
    const gptneox_config_t *c = m->config;
    const lh_decoder_t *d = &m->base;
    const lh_attention_t how = lh_decoder_attention(d);
    const uint64_t dims = turning_dims(m);
    const lh_value_t f = lh_rotary_frequencies(g, &c->rope, dims);

    const lh_value_t n = lh_layer_norm(g, x, "norm1", "norm1_bias", d->epsilon);
    const lh_value_t q = lh_turn(g, lh_project(g, n, "wq", "bq"), f, d->heads, d->head_dim, dims);
    const lh_value_t k = lh_turn(g, lh_project(g, n, "wk", "bk"), f, d->heads, d->head_dim, dims);
    const lh_value_t v = lh_project(g, n, "wv", "bv");
    const lh_value_t a = lh_project(g, lh_attend(g, q, k, v, &how), "wo", "bo");
    const lh_value_t sum = lh_add(g, x, a);

    const lh_value_t read = c->parallel ? x : sum;
    lh_value_t up = lh_layer_norm(g, read, "norm2", "norm2_bias", d->epsilon);
    up = lh_activate(g, lh_project(g, up, "w_up", "b_up"), LH_ACT_GELU);
    return lh_add(g, sum, lh_project(g, up, "w_down", "b_down"));
}

static lh_value_t model_record(lh_model_t *m, lh_graph_t *g, uint32_t part,
                               LH_UNUSED uint32_t block, lh_value_t x)
{
    switch (part) {
    case LH_PART_EMBED: return lh_embed(g, x, lh_named(g, "embed"));
    case LH_PART_BLOCK: return record_block(m, g, x);
    case LH_PART_HEAD:
        x = lh_layer_norm(g, x, "norm", "norm_bias", m->base.epsilon);
        return lh_project(g, x, "head", NULL);
    default: return 0;
    }
}

LH_DECODER_PLUGIN("gptneox", gptneox_config_t, "GPT-NeoX and Pythia", .model_type = "gpt_neox",
                  .architecture = "GPTNeoXForCausalLM|GPTNeoXModel",
                  .ignored = "*.attention.bias, *.attention.masked_bias, *.rotary_emb.inv_freq",
                  .prefix = "gpt_neox.");
