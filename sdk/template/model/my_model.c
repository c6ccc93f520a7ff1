/* my_model.c - a template for model plugins: every token looks at the window of tokens before it,
 * then through a small feed-forward part.
 *
 * A model describes: it lists its parameters and records the forward pass of each part once. It
 * never computes, and meets no gradient, no rank and no device; the host makes all that from the
 * recording. What decoder-only models share is in longhaul/decoder.h: options, rows of parameters,
 * open, describe and close, calls by names of parameters; nothing of it need be used. Rename the
 * file, `my_model` and the name at its end (all three must agree). */
#include <longhaul/decoder.h>

/* What the INI's [model] section may say. The table below tells the host where each value goes. */
typedef struct my_config {
    lh_decoder_t base; /* blocks, hidden, ffn, heads, vocab, max_tokens, epsilon, tied */
    uint64_t window;
} my_config_t;

/* clang-format off */
static const lh_option_t options[] = {
    /* With defaults of max_tokens, epsilon and tied. The host fills in vocab from the tokenizer when
     * [model] vocab = from_tokenizer. */
    LH_DECODER_OPTIONS(my_config_t, "2048", "1e-5", "no"),
    LH_DECODER_FFN(my_config_t),
    /* field, key, default (NULL: required), range, what help prints */
    LH_OPTION_U64(my_config_t, window, "window", "64", "1..1048576", "tokens that a token sees"),
};

/* Which key of config.json is which option; see longhaul/model.h. */
static const lh_hf_key_t hf_keys[] = {
    LH_DECODER_KEYS("rms_norm_eps", "false"),
    LH_HF_KEY("intermediate_size", "ffn", NULL),
    LH_HF_KEY("sliding_window", "window", "64"),
};
/* clang-format on */

/* The host prefixes "blocks.7." to names of blocks. A row of one's own: name, Hugging Face name, part,
 * how tensor parallelism may cut it, start values, rows that a cut may not separate, rows, columns. */
static void list_params(lh_model_t *m)
{
    const uint64_t h = m->base.hidden, f = m->base.ffn;
    lh_llama_add_embed(m);
    lh_llama_add_norm(m, "attn_norm", LH_LAYER "input_layernorm.weight");
    lh_llama_add_attention(m); /* wq, wk, wv, wo */
    lh_llama_add_norm(m, "ffn_norm", LH_LAYER "post_attention_layernorm.weight");
    LH_DECODER_ADD(
        m, LH_MATRIX("up", LH_LAYER "mlp.up_proj.weight", BLOCK, OUT, NORMAL, 1, f, h),
        LH_MATRIX("down", LH_LAYER "mlp.down_proj.weight", BLOCK, IN, RESIDUAL, 1, h, f));
    lh_llama_add_head(m); /* norm, head */
}

/* The table checks ranges, lh_decoder_open that heads divide hidden. A model with more rules that cross
 * options has a model_open of its own here, which calls it; one with rotary positions calls
 * lh_decoder_open_rotary. */
LH_DECODER_OPEN(lh_decoder_open, my_config_t, list_params)

/* x is [tokens, hidden], and so is what comes back. A call that cannot be recorded gives 0, and the
 * host keeps the first reason: no check after each line. Of the arguments of one call at most one
 * records; C leaves the order of two open. */
static lh_value_t record_block(const lh_model_t *m, lh_graph_t *g, lh_value_t x)
{
    const my_config_t *c = m->config;
    const double epsilon = m->base.epsilon;
    lh_attention_t how = lh_decoder_attention(&m->base);
    how.window = (uint32_t)c->window;

    const lh_value_t a = lh_rms(g, x, "attn_norm", epsilon);
    const lh_value_t q = lh_project(g, a, "wq", NULL);
    const lh_value_t k = lh_project(g, a, "wk", NULL);
    const lh_value_t v = lh_project(g, a, "wv", NULL);
    x = lh_add(g, x, lh_project(g, lh_attend(g, q, k, v, &how), "wo", NULL));

    const lh_value_t up = lh_project(g, lh_rms(g, x, "ffn_norm", epsilon), "up", NULL);
    return lh_add(g, x, lh_project(g, lh_activate(g, up, LH_ACT_GELU_TANH), "down", NULL));
}

/* Pure: may be called again for other token counts and uses (training, scoring, generation). */
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

LH_DECODER_PLUGIN("my_model", my_config_t, "a template: windowed attention without positions",
                  .model_type = "my_model", .architecture = "MyModelForCausalLM");
