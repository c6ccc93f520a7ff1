/* gpt2_plugin.c - GPT-2: layer norm, learned positions, biases, tied head; weights stored [in,
 * out]. */
#include <longhaul/decoder.h>

typedef struct gpt2_config {
    lh_decoder_t base;
} gpt2_config_t;

/* clang-format off */
static const lh_option_t options[] = {
    LH_DECODER_OPTIONS(gpt2_config_t, "1024", "1e-5", "yes"),
    LH_DECODER_FFN_OR_4(gpt2_config_t),
};

static const lh_hf_key_t hf_keys[] = {
    LH_HF_KEY("n_layer", "blocks", "12"),
    LH_HF_KEY("n_embd", "hidden", "768"),
    LH_HF_KEY("n_inner", "ffn", "0"),
    LH_HF_KEY("n_head", "heads", "12"),
    LH_HF_KEY("vocab_size", "vocab", "50257"),
    LH_HF_KEY("n_positions|n_ctx", "max_tokens", "1024"),
    LH_HF_KEY("layer_norm_epsilon", "epsilon", "1e-5"),
    LH_HF_KEY("tie_word_embeddings", "tied", "true"),
    LH_HF_MUST("activation_function", "gelu_new"),
    LH_HF_MUST("scale_attn_weights", "true"),
    LH_HF_MUST("scale_attn_by_inverse_layer_idx", "false"),
    LH_HF_MUST("reorder_and_upcast_attn", "false"),
    LH_HF_MUST("add_cross_attention", "false"),
    LH_HF_ANY("summary_type"), LH_HF_ANY("summary_use_proj"), LH_HF_ANY("summary_activation"),
    LH_HF_ANY("summary_proj_to_labels"), LH_HF_ANY("summary_first_dropout"),
    {.key = "embd_pdrop"}, {.key = "attn_pdrop"}, {.key = "resid_pdrop"},
};

#define H "transformer.h.{}."
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
    LH_BIAS(bias, H hf ".bias", BLOCK, bias_cut, 1, o)
#define NORM(n, bias, hf, p) LH_NORM(n, hf ".weight", p, h), LH_BIAS(bias, hf ".bias", p, NONE, 1, h)
/* clang-format on */

static void list_params(lh_model_t *m)
{
    const lh_decoder_t *d = &m->base;
    const uint64_t h = d->hidden;
    const uint32_t head = (uint32_t)d->head_dim;
    LH_DECODER_ADD(
        m, LH_MATRIX("embed", "transformer.wte.weight", EMBED, VOCAB, NORMAL, 1, d->vocab, h),
        LH_MATRIX("positions", "transformer.wpe.weight", EMBED, NONE, NORMAL, 1, d->max_tokens, h),
        NORM("norm1", "norm1_bias", H "ln_1", BLOCK), QKV("wq", "bq", 0), QKV("wk", "bk", 1),
        QKV("wv", "bv", 2), CONV1D("wo", "bo", "attn.c_proj", IN, NONE, RESIDUAL, head, h, h),
        NORM("norm2", "norm2_bias", H "ln_2", BLOCK),
        CONV1D("w_up", "b_up", "mlp.c_fc", OUT, OUT, NORMAL, 1, h, d->ffn),
        CONV1D("w_down", "b_down", "mlp.c_proj", IN, NONE, RESIDUAL, 1, d->ffn, h),
        NORM("norm", "norm_bias", "transformer.ln_f", HEAD),
        LH_MATRIX("head", "lm_head.weight", HEAD, VOCAB, NORMAL, 1, d->vocab, h));
    if (d->tied) m->params[m->param_count - 1].tied_to = "embed";
}

LH_DECODER_OPEN(lh_decoder_open, gpt2_config_t, list_params)

static lh_value_t record_embed(lh_graph_t *g, lh_value_t tokens)
{
    const lh_value_t at = g->api->input(g, LH_INPUT_POSITIONS);
    const lh_value_t x = lh_embed(g, tokens, lh_named(g, "embed"));
    return lh_add(g, x, lh_embed(g, at, lh_named(g, "positions")));
}

static lh_value_t record_block(const lh_decoder_t *d, lh_graph_t *g, lh_value_t x)
{
    const lh_attention_t how = lh_decoder_attention(d);
    const lh_value_t n = lh_layer_norm(g, x, "norm1", "norm1_bias", d->epsilon);
    const lh_value_t q = lh_project(g, n, "wq", "bq"), k = lh_project(g, n, "wk", "bk");
    const lh_value_t a = lh_attend(g, q, k, lh_project(g, n, "wv", "bv"), &how);
    x = lh_add(g, x, lh_project(g, a, "wo", "bo"));

    lh_value_t up = lh_layer_norm(g, x, "norm2", "norm2_bias", d->epsilon);
    up = lh_activate(g, lh_project(g, up, "w_up", "b_up"), LH_ACT_GELU_TANH);
    return lh_add(g, x, lh_project(g, up, "w_down", "b_down"));
}

static lh_value_t model_record(lh_model_t *m, lh_graph_t *g, uint32_t part,
                               LH_UNUSED uint32_t block, lh_value_t x)
{
    switch (part) {
    case LH_PART_EMBED: return record_embed(g, x);
    case LH_PART_BLOCK: return record_block(&m->base, g, x);
    case LH_PART_HEAD:
        x = lh_layer_norm(g, x, "norm", "norm_bias", m->base.epsilon);
        return lh_project(g, x, "head", NULL);
    default: return 0;
    }
}

LH_DECODER_PLUGIN("gpt2", gpt2_config_t, "GPT-2", .model_type = "gpt2",
                  .architecture = "GPT2LMHeadModel|GPT2Model",
                  .ignored = "*.attn.bias, *.attn.masked_bias", .prefix = "transformer.");
