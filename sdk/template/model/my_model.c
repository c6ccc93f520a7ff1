/* my_model.c - a template for model plugins: every token looks at the window of tokens before it,
 * then through a small feed-forward part.
 *
 * A model describes: it lists its parameters and records the forward pass of each part once. It
 * never computes, and meets no gradient, no rank and no device; the host makes all that from the
 * recording. Rename the file, `my_model` and the name in the table below (all three must agree). */
#include <longhaul/plugin.h>

/* What the INI's [model] section may say. The table below tells the host where each value goes. */
typedef struct my_config {
    uint64_t blocks, hidden, ffn, heads, window, vocab, max_tokens;
    double epsilon;
} my_config_t;

/* clang-format off */
static const lh_option_t options[] = {
    /* field, key, default (NULL: required), range, what help prints */
    LH_OPTION_U64(my_config_t, blocks, "blocks", "4", "1..1024", "blocks of attention and feed-forward"),
    LH_OPTION_U64(my_config_t, hidden, "hidden", NULL, "1..65536", "width of the residual stream"),
    LH_OPTION_U64(my_config_t, ffn, "ffn", NULL, "1..262144", "width inside the feed-forward part"),
    LH_OPTION_U64(my_config_t, heads, "heads", "4", "1..1024", "heads of the attention"),
    LH_OPTION_U64(my_config_t, window, "window", "64", "1..1048576", "tokens that a token sees"),
    /* The host fills in vocab from the tokenizer when [model] vocab = from_tokenizer. */
    LH_OPTION_U64(my_config_t, vocab, "vocab", NULL, "1..4194304", "rows of the embedding table"),
    LH_OPTION_U64(my_config_t, max_tokens, "max_tokens", "2048", "1..16777216", "longest sequence"),
    LH_OPTION_F64(my_config_t, epsilon, "epsilon", "1e-5", "0..1", "added to the variance in a norm"),
};
/* clang-format on */

enum { PARAMS = 10 };

struct lh_model { /* the host only ever holds a pointer to it */
    const lh_host_t *host;
    my_config_t config;
    lh_param_t params[PARAMS];
};

/* name, Hugging Face name (NULL: none), part, how tensor parallelism may cut it, start values, rows
 * that a cut may not separate, rows, columns. The host prefixes "blocks.7." for blocks. */
static void list_params(lh_model_t *m)
{
    const my_config_t *c = &m->config;
    const uint32_t head = (uint32_t)(c->hidden / c->heads);
    const uint64_t h = c->hidden;

    const lh_param_t table[PARAMS] = {
        LH_MATRIX("embed", NULL, EMBED, VOCAB, NORMAL, 1, c->vocab, h),
        LH_NORM("attn_norm", NULL, BLOCK, h),
        LH_MATRIX("wq", NULL, BLOCK, OUT, NORMAL, head, h, h),
        LH_MATRIX("wk", NULL, BLOCK, OUT, NORMAL, head, h, h),
        LH_MATRIX("wv", NULL, BLOCK, OUT, NORMAL, head, h, h),
        LH_MATRIX("wo", NULL, BLOCK, IN, RESIDUAL, head, h, h),
        LH_NORM("ffn_norm", NULL, BLOCK, h),
        LH_MATRIX("up", NULL, BLOCK, OUT, NORMAL, 1, c->ffn, h),
        LH_MATRIX("down", NULL, BLOCK, IN, RESIDUAL, 1, h, c->ffn),
        LH_MATRIX("head", NULL, HEAD, VOCAB, NORMAL, 1, c->vocab, h),
    };
    memcpy(m->params, table, sizeof(table));
}

/* Ranges are checked by the table; here stands what crosses options. */
static lh_status_t my_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    const my_config_t *c = config;
    if (c->hidden % c->heads != 0)
        return host->fail(host, LH_INVALID, "hidden %llu is not a multiple of heads %llu",
                          (unsigned long long)c->hidden, (unsigned long long)c->heads);

    lh_model_t *m = host->alloc(host, sizeof(*m), 64);
    if (m == NULL) return LH_NO_MEMORY; /* alloc said why */
    m->host = host;
    m->config = *c;
    list_params(m);
    *out = m;
    return LH_OK;
}

static void my_close(lh_model_t *m)
{
    m->host->release(m->host, m);
}

/* LH_FILL writes no more than the host has room for: it may be older than this plugin. */
static lh_status_t my_describe(lh_model_t *m, lh_model_info_t *out)
{
    LH_FILL(lh_model_info_t, out, .blocks = (uint32_t)m->config.blocks, .hidden = m->config.hidden,
            .vocab = m->config.vocab, .max_tokens = m->config.max_tokens, .params = m->params,
            .param_size = sizeof(m->params[0]), .param_count = PARAMS);
    return LH_OK;
}

#define LINEAR(x, w) lh_linear(g, x, g->api->param(g, w), 0)
#define NORM(x, w) lh_rms_norm(g, x, g->api->param(g, w), c->epsilon)

/* x is [tokens, hidden], and so is what comes back. A call that cannot be recorded gives 0, and the
 * host keeps the first reason: no check after each line. */
static lh_value_t record_block(const my_config_t *c, lh_graph_t *g, lh_value_t x)
{
    const lh_attention_t how = {.struct_size = sizeof(how),
                                .heads = (uint32_t)c->heads,
                                .kv_heads = (uint32_t)c->heads,
                                .head_dim = (uint32_t)(c->hidden / c->heads),
                                .window = (uint32_t)c->window};
    const lh_value_t n = NORM(x, "attn_norm");
    const lh_value_t seen = lh_attend(g, LINEAR(n, "wq"), LINEAR(n, "wk"), LINEAR(n, "wv"), &how);
    x = lh_add(g, x, LINEAR(seen, "wo"));

    const lh_value_t wide = lh_activate(g, LINEAR(NORM(x, "ffn_norm"), "up"), LH_ACT_GELU_TANH);
    return lh_add(g, x, LINEAR(wide, "down"));
}

/* Pure: may be called again for other token counts and uses (training, scoring, generation). */
static lh_value_t my_record(lh_model_t *m, lh_graph_t *g, uint32_t part, LH_UNUSED uint32_t block,
                            lh_value_t x)
{
    switch (part) {
    case LH_PART_EMBED: return lh_embed(g, x, g->api->param(g, "embed"));
    case LH_PART_BLOCK: return record_block(&m->config, g, x);
    case LH_PART_HEAD: return LINEAR(x, "head");
    default: return 0;
    }
}

static const lh_model_api_t api = {
    .struct_size = sizeof(api),
    .open = my_open,
    .close = my_close,
    .describe = my_describe,
    .record = my_record,
    /* .hf: a table that says which key of config.json is which option; see longhaul/model.h */
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_MODEL,
    .name = "my_model",
    .version = "0.1.0",
    .summary = "a template: windowed attention without positions",
    .config_size = sizeof(my_config_t),
    LH_TABLE_OPTIONS(options),
    .model = &api,
};
