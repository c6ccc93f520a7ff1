/* longhaul/decoder.h - what decoder-only models share: options, keys of config.json, open and
 * describe, rows of parameters, and the calls of which their blocks consist.
 *
 * A plugin that includes this has a config struct with an lh_decoder_t named base, lists its
 * parameters with lh_decoder_add, and records its parts; nothing here need be used. It is for model
 * plugins alone, as it says what their lh_model_t is. Everything is inline: rotary frequencies want
 * libm. Widths count elements; all calls are the host's, [serial]. */
#ifndef LH_DECODER_H
#define LH_DECODER_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <longhaul/plugin.h>
#include <longhaul/positions.h>

/* What such models are asked for. What a model has no option for is 0. */
typedef struct lh_decoder {
    uint64_t blocks, hidden, ffn, heads, kv_heads, head_dim, vocab, max_tokens;
    double epsilon;
    bool tied;
    bool balanced;            /* a loss that balances experts is minimised, too */
    uint64_t experts, chosen; /* of a block; of them, those that a token goes to */
    double balance;           /* what that loss counts */
} lh_decoder_t;

/* ---- options and keys, as rows of a plugin's tables; S: its config struct ---- */

/* clang-format off */
#define LH_DECODER_SIZE(S, f, fallback, range, help) LH_OPTION_U64(S, base.f, #f, fallback, range, help)
#define LH_DECODER_OPTIONS(S, tokens, epsilon_, tied_) \
    LH_DECODER_SIZE(S, blocks, NULL, "1..1024", "transformer blocks"), \
    LH_DECODER_SIZE(S, hidden, NULL, "1..65536", "width of the residual stream"), \
    LH_DECODER_SIZE(S, heads, NULL, "1..1024", "query heads"), \
    LH_DECODER_SIZE(S, vocab, NULL, "1..4194304", "rows of the embedding table"), \
    LH_DECODER_SIZE(S, max_tokens, tokens, "1..16777216", "longest sequence the model is meant for"), \
    LH_OPTION_F64(S, base.epsilon, "epsilon", epsilon_, "0..1", "added under the root in norms"), \
    LH_OPTION_BOOL(S, base.tied, "tied", tied_, "the head uses the embedding table")
#define LH_DECODER_FFN(S) LH_DECODER_SIZE(S, ffn, NULL, "1..262144", "width inside the feed-forward part")
#define LH_DECODER_FFN_OR_4(S) LH_DECODER_SIZE(S, ffn, "0", "0..262144", "width inside the feed-forward part; 0: 4 hidden")
/* Where heads of keys and values may be fewer, and heads of any width. */
#define LH_DECODER_HEADS(S) \
    LH_DECODER_SIZE(S, kv_heads, "0", "0..1024", "key and value heads, shared by groups of query heads; 0: as many as heads"), \
    LH_DECODER_SIZE(S, head_dim, "0", "0..1024", "width of a head, even; 0: hidden / heads")
/* Of a model whose blocks have experts; lh_routed reads what they say. */
#define LH_DECODER_EXPERTS(S, count, chosen_) \
    LH_DECODER_SIZE(S, experts, count, "1..4096", "experts of a block"), \
    LH_DECODER_SIZE(S, chosen, chosen_, "1..64", "experts that a token goes to"), \
    LH_OPTION_BOOL(S, base.balanced, "balanced", "no", "minimise a loss that balances experts, too"), \
    LH_OPTION_F64(S, base.balance, "balance", "0.001", "0..", "what that loss counts")
/* A member named rope. */
#define LH_ROTARY_OPTIONS(S) \
    LH_OPTION_F64(S, rope.base, "rope_base", "10000", "1..1e12", "base of the rotary frequencies"), \
    LH_OPTION_CHOICE(S, rope.scaling, "rope_scaling", "default", "default|linear|llama3", "how rotary frequencies are stretched for longer sequences"), \
    LH_OPTION_F64(S, rope.factor, "rope_factor", "1", "1..1e6", "linear and llama3: how much longer"), \
    LH_OPTION_F64(S, rope.low, "rope_low", "1", "0..1e6", "llama3: wavelengths over original / this are stretched whole"), \
    LH_OPTION_F64(S, rope.high, "rope_high", "4", "0..1e6", "llama3: wavelengths under original / this are left alone"), \
    LH_OPTION_U64(S, rope.original, "rope_original", "8192", "1..16777216", "llama3: longest sequence before stretching")

/* As most of Transformers' configs name them. */
#define LH_DECODER_KEYS(epsilon_, tied_) \
    LH_HF_KEY("num_hidden_layers", "blocks", NULL), LH_HF_KEY("hidden_size", "hidden", NULL), \
    LH_HF_KEY("num_attention_heads", "heads", NULL), \
    LH_HF_KEY("vocab_size", "vocab", NULL), LH_HF_KEY("max_position_embeddings", "max_tokens", NULL), \
    LH_HF_KEY(epsilon_, "epsilon", NULL), LH_HF_KEY("tie_word_embeddings", "tied", tied_)
/* width: that of a head where config.json has none, "0" for hidden / heads. */
#define LH_DECODER_HEAD_KEYS(width) \
    LH_HF_KEY("num_key_value_heads", "kv_heads", "heads"), LH_HEAD_DIM_KEY(width, NULL)
#define LH_HEAD_DIM_KEY(width, condition) \
    {.key = "head_dim", .option = "head_dim", .fixed = width, .when = condition, .derived = "hidden / heads"}
/* base: that of the architecture's Transformers class, which counts where config.json has none. A row of
 * max_tokens stands before them: an absent original_max_position_embeddings is that. */
#define LH_ROTARY_KEYS LH_ROTARY_KEYS_OF("10000")
#define LH_ROTARY_KEYS_OF(base) \
    LH_HF_KEY("rope_parameters.rope_theta|rope_scaling.rope_theta|+rope_theta", "rope_base", base), \
    LH_HF_KEY("rope_parameters.rope_type|rope_parameters.type|+rope_scaling.rope_type|rope_scaling.type", "rope_scaling", "default"), \
    LH_HF_WHEN("rope_parameters.factor|+rope_scaling.factor", "rope_factor", NULL, "rope_scaling=linear|llama3"), \
    LH_HF_WHEN("rope_parameters.low_freq_factor|+rope_scaling.low_freq_factor", "rope_low", NULL, "rope_scaling=llama3"), \
    LH_HF_WHEN("rope_parameters.high_freq_factor|+rope_scaling.high_freq_factor", "rope_high", NULL, "rope_scaling=llama3"), \
    LH_HF_WHEN("rope_parameters.original_max_position_embeddings|+rope_scaling.original_max_position_embeddings", "rope_original", "max_tokens", "rope_scaling=llama3")

/* Rows beside LH_MATRIX and LH_NORM: a bias, and a block's matrix [rows, columns] of each expert, whose
 * Hugging Face name has {e} where the expert's number stands: "...experts.{e}.w1.weight". */
#define LH_BIAS(n, hf, p, s, u, width)                                                          \
    {.name = n, .hf_name = hf, .part = LH_PART_##p, .shard = LH_SHARD_##s, .init = LH_INIT_ZERO, \
     .flags = LH_PARAM_NO_DECAY, .unit = u, .shape = {width}}
#define LH_EXPERTS(n, hf, i, experts_, rows, columns)                                           \
    {.name = n, .hf_name = hf, .part = LH_PART_BLOCK, .shard = LH_SHARD_EXPERT,                  \
     .init = LH_INIT_##i, .unit = 1, .shape = {experts_, rows, columns}}
/* clang-format on */

/* ---- a model ---- */

enum { LH_DECODER_PARAMS = 32, LH_DECODER_TEXT = 2048, LH_DECODER_PAIRS = 512 };

struct lh_model {
    const lh_host_t *host;
    const void *config; /* the plugin's own struct, which the host keeps until close */
    lh_decoder_t base;  /* with the zeros of ffn, kv_heads and head_dim filled in    */
    uint32_t param_count, text_bytes;
    /* Rows that were to be added, and whether a text had no room: lh_decoder_open refuses more than
     * LH_DECODER_PARAMS and a text too long. */
    uint32_t param_wanted;
    bool text_full;
    lh_param_t params[LH_DECODER_PARAMS];
    char texts[LH_DECODER_TEXT];
};

/* Appends rows to the model's table. Those beyond LH_DECODER_PARAMS are left out and counted;
 * lh_decoder_open refuses such a model. A plugin that needs more rows brings its own table. */
static inline void lh_decoder_add(lh_model_t *m, const lh_param_t *rows, uint32_t count)
{
    m->param_wanted += count;
    for (uint32_t i = 0; i < count && m->param_count < LH_DECODER_PARAMS; i++)
        m->params[m->param_count++] = rows[i];
}
#define LH_DECODER_ADD(m, ...)                                                  \
    do {                                                                        \
        const lh_param_t rows_[] = {__VA_ARGS__};                               \
        lh_decoder_add(m, rows_, (uint32_t)(sizeof(rows_) / sizeof(rows_[0]))); \
    } while (0)

/* A text with numbers of the model in it, which lives as long: "split_qkv(source, heads=4, ...)".
 * NULL where there is no more room, and lh_decoder_open refuses the model. */
LH_PRINTF(2, 3)
static inline const char *lh_decoder_text(lh_model_t *m, const char *fmt, ...)
{
    char *at = m->texts + m->text_bytes;
    const size_t room = sizeof(m->texts) - m->text_bytes;
    va_list args;
    va_start(args, fmt);
    const int length = vsnprintf(at, room, fmt, args);
    va_end(args);
    if (length < 0 || (size_t)length >= room) {
        m->text_full = true;
        return NULL;
    }
    m->text_bytes += (uint32_t)length + 1;
    return at;
}

/* What `list` added has found room. */
static inline lh_status_t lh_decoder_check_room(const lh_model_t *m)
{
    if (m->param_wanted > LH_DECODER_PARAMS)
        return m->host->fail(m->host, LH_INVALID,
                             "the model lists %u parameters, and decoder.h has room for "
                             "LH_DECODER_PARAMS = %d",
                             (unsigned)m->param_wanted, (int)LH_DECODER_PARAMS);
    if (m->text_full)
        return m->host->fail(m->host, LH_INVALID,
                             "the model's texts are longer than decoder.h has room for, "
                             "LH_DECODER_TEXT = %d bytes",
                             (int)LH_DECODER_TEXT);
    return LH_OK;
}

/* Checks what the option tables cannot, then has `list` add the parameters. config is kept. */
static inline lh_status_t lh_decoder_open(const lh_host_t *host, const lh_decoder_t *base,
                                          const void *config, void (*list)(lh_model_t *m),
                                          lh_model_t **out)
{
    lh_decoder_t d = *base;
    if (d.ffn == 0) d.ffn = 4 * d.hidden;
    if (d.kv_heads == 0) d.kv_heads = d.heads;
    if (d.head_dim == 0 && d.hidden % d.heads != 0)
        return host->fail(host, LH_INVALID, "hidden %llu is not a multiple of heads %llu",
                          (unsigned long long)d.hidden, (unsigned long long)d.heads);
    if (d.head_dim == 0) d.head_dim = d.hidden / d.heads;
    if (d.heads % d.kv_heads != 0)
        return host->fail(host, LH_INVALID, "heads %llu is not a multiple of kv_heads %llu",
                          (unsigned long long)d.heads, (unsigned long long)d.kv_heads);
    if (d.chosen > d.experts)
        return host->fail(host, LH_INVALID, "chosen = %llu of experts = %llu",
                          (unsigned long long)d.chosen, (unsigned long long)d.experts);
    lh_model_t *m = (lh_model_t *)host->alloc(host, sizeof(*m), 64);
    if (m == NULL) return LH_NO_MEMORY;
    m->host = host;
    m->config = config;
    m->base = d;
    list(m);
    const lh_status_t status = lh_decoder_check_room(m);
    if (status == LH_OK)
        *out = m;
    else
        host->release(host, m);
    return status;
}

/* As lh_decoder_open, for a model whose heads turn: components do so by twos. */
static inline lh_status_t lh_decoder_open_rotary(const lh_host_t *host, const lh_decoder_t *base,
                                                 const void *config, void (*list)(lh_model_t *m),
                                                 lh_model_t **out)
{
    const uint64_t d = base->head_dim != 0 ? base->head_dim : base->hidden / base->heads;
    if (d % 2 != 0 || d / 2 > LH_DECODER_PAIRS)
        return host->fail(host, LH_INVALID, "head_dim %llu is not an even number up to %d",
                          (unsigned long long)d, 2 * LH_DECODER_PAIRS);
    return lh_decoder_open(host, base, config, list, out);
}

/* model_open of a plugin that has nothing to check by itself. by: lh_decoder_open or
 * lh_decoder_open_rotary; S: its config struct; list adds its parameters. */
#define LH_DECODER_OPEN(by, S, list)                                                           \
    static lh_status_t model_open(const lh_host_t *host, const void *config, lh_model_t **out) \
    {                                                                                          \
        return by(host, &((const S *)config)->base, config, list, out);                        \
    }

static inline void lh_decoder_close(lh_model_t *m)
{
    m->host->release(m->host, m);
}

static inline lh_status_t lh_decoder_describe(lh_model_t *m, lh_model_info_t *out)
{
    LH_FILL(lh_model_info_t, out, .blocks = (uint32_t)m->base.blocks, .hidden = m->base.hidden,
            .vocab = m->base.vocab, .max_tokens = m->base.max_tokens, .params = m->params,
            .param_size = sizeof(m->params[0]), .param_count = m->param_count,
            .block_classes = NULL);
    return LH_OK;
}

/* The end of a plugin's file: its table and api, of options, hf_keys, model_open and model_record as
 * they are named here. The rest are fields of lh_hf_t. */
/* clang-format off */
#define LH_DECODER_PLUGIN(name_, S, summary_, ...)                                                  \
    static const lh_hf_t hf = {                                                                     \
        .struct_size = sizeof(hf), .key_size = sizeof(hf_keys[0]),                                  \
        .key_count = sizeof(hf_keys) / sizeof(hf_keys[0]), __VA_ARGS__, .keys = hf_keys};           \
    static const lh_model_api_t api = {                                                             \
        .struct_size = sizeof(api), .open = model_open, .close = lh_decoder_close,                  \
        .describe = lh_decoder_describe, .record = model_record, .hf = &hf};                        \
    LH_PLUGIN = {LH_PLUGIN_HEADER, .kind = LH_KIND_MODEL, .name = name_, .version = "0.1.0",        \
                 .summary = summary_, .config_size = sizeof(S), LH_TABLE_OPTIONS(options), .model = &api}
/* clang-format on */

/* ---- recording, by names of parameters ---- */

static inline lh_value_t lh_named(lh_graph_t *g, const char *name)
{
    return name == NULL ? 0 : g->api->param(g, name);
}

/* x times a matrix [out, in], and a bias where there is one (NULL: none). */
static inline lh_value_t lh_project(lh_graph_t *g, lh_value_t x, const char *w, const char *b)
{
    const lh_value_t weight = lh_named(g, w);
    return lh_linear(g, x, weight, lh_named(g, b));
}

/* An RMSNorm of whole rows, or of heads where w is as long as a head. */
static inline lh_value_t lh_rms(lh_graph_t *g, lh_value_t x, const char *w, double epsilon)
{
    return lh_rms_norm(g, x, lh_named(g, w), epsilon);
}

static inline lh_value_t lh_layer_norm(lh_graph_t *g, lh_value_t x, const char *w, const char *b,
                                       double epsilon)
{
    const lh_norm_t how = {sizeof(how), 0, epsilon};
    const lh_value_t weight = lh_named(g, w); /* an initialiser would leave the order open */
    const lh_value_t in[] = {x, weight, lh_named(g, b)};
    return g->api->op(g, "layer_norm", &how, in, 3, NULL);
}

/* x times a number that the model fixes. */
static inline lh_value_t lh_times(lh_graph_t *g, lh_value_t x, double factor)
{
    const float f = (float)factor;
    const lh_value_t in[] = {x, g->api->constant(g, &f, 1)};
    return g->api->op(g, "scale", NULL, in, 2, NULL);
}

/* [dims / 2] F32: the angles by which pairs of the first `dims` components of a head turn from one
 * position to the next. dims is at most 2 LH_DECODER_PAIRS. */
static inline lh_value_t lh_rotary_frequencies(lh_graph_t *g, const lh_rotary_t *r, uint64_t dims)
{
    float f[LH_DECODER_PAIRS];
    lh_rotary_fill(r, dims, f);
    return g->api->constant(g, f, dims / 2);
}

/* Rows of `heads` heads of d components, of which the first `dims` turn. */
static inline lh_value_t lh_turn(lh_graph_t *g, lh_value_t x, lh_value_t frequencies,
                                 uint64_t heads, uint64_t d, uint64_t dims)
{
    const lh_rope_t how = {
        sizeof(how), (uint32_t)heads, (uint32_t)d, (uint32_t)(dims / 2), 0, 0, 0};
    return lh_rotate(g, x, frequencies, &how);
}

/* Causal attention of the model's heads; other attributes may be set in what it returns. */
static inline lh_attention_t lh_decoder_attention(const lh_decoder_t *d)
{
    lh_attention_t how;
    memset(&how, 0, sizeof(how));
    how.struct_size = sizeof(how);
    how.heads = (uint32_t)d->heads;
    how.kv_heads = (uint32_t)d->kv_heads;
    how.head_dim = (uint32_t)d->head_dim;
    return how;
}

/* ---- q, k and v fused in one tensor, group by group ---- */

/* Queries (part 0), keys (1) or values (2) as a parameter [heads head_dim, hidden], with a bias where
 * bias is not NULL, out of Hugging Face's tensors hf ".weight" and hf ".bias", which hold the query
 * heads of a key head, the key head, the value head, and so on. */
static inline void lh_decoder_add_fused(lh_model_t *m, uint32_t part, const char *weight,
                                        const char *bias, const char *hf_weight,
                                        const char *hf_bias)
{
    const uint64_t heads = m->base.heads, kv = m->base.kv_heads, d = m->base.head_dim;
    const unsigned n = (unsigned)heads, n_kv = (unsigned)kv;
    lh_param_t rows[2];
    memset(rows, 0, sizeof(rows));
    for (int i = 0; i < 2; i++) {
        rows[i].name = i == 0 ? weight : bias;
        rows[i].hf_name = i == 0 ? hf_weight : hf_bias;
        rows[i].hf_import = lh_decoder_text(m, "split_qkv(source, heads=%u, kv_heads=%u, part=%u)",
                                            n, n_kv, part);
        rows[i].hf_export = lh_decoder_text(m, "join_qkv(source, heads=%u, kv_heads=%u, part=%u)",
                                            n, n_kv, part);
        rows[i].part = LH_PART_BLOCK;
        rows[i].shard = LH_SHARD_OUT;
        rows[i].init = i == 0 ? LH_INIT_NORMAL : LH_INIT_ZERO;
        rows[i].flags = i == 0 ? 0 : LH_PARAM_NO_DECAY;
        rows[i].unit = (uint32_t)d;
        rows[i].shape[0] = (part == 0 ? heads : kv) * d;
        rows[i].hf_shape[0] = (heads + 2 * kv) * d;
    }
    rows[0].shape[1] = rows[0].hf_shape[1] = m->base.hidden;
    lh_decoder_add(m, rows, bias == NULL ? 1 : 2);
}

/* ---- Llama's layout, which Mistral, Qwen and Gemma share ---- */

#define LH_LAYER "model.layers.{}."

/* A matrix [rows, columns]; columns 0: an RMSNorm's weight. `hf` stays the caller's. */
static inline void lh_llama_add(lh_model_t *m, const char *name, const char *hf, uint32_t part,
                                uint32_t shard, uint32_t unit, uint64_t rows, uint64_t columns)
{
    lh_param_t row;
    memset(&row, 0, sizeof(row));
    row.name = name;
    row.hf_name = hf;
    row.part = part;
    row.shard = shard;
    row.init = columns == 0           ? LH_INIT_ONE
               : shard == LH_SHARD_IN ? LH_INIT_RESIDUAL
                                      : LH_INIT_NORMAL;
    row.flags = columns == 0 ? LH_PARAM_NO_DECAY : 0;
    row.unit = unit;
    row.shape[0] = rows;
    row.shape[1] = columns;
    lh_decoder_add(m, &row, 1);
}

/* q, k, v and what brings heads home: wq, wk, wv, wo. */
static inline void lh_llama_add_attention(lh_model_t *m)
{
    enum { BLOCK = LH_PART_BLOCK, OUT = LH_SHARD_OUT };
    const uint32_t d = (uint32_t)m->base.head_dim;
    const uint64_t h = m->base.hidden, q = m->base.heads * d, kv = m->base.kv_heads * d;
    lh_llama_add(m, "wq", LH_LAYER "self_attn.q_proj.weight", BLOCK, OUT, d, q, h);
    lh_llama_add(m, "wk", LH_LAYER "self_attn.k_proj.weight", BLOCK, OUT, d, kv, h);
    lh_llama_add(m, "wv", LH_LAYER "self_attn.v_proj.weight", BLOCK, OUT, d, kv, h);
    lh_llama_add(m, "wo", LH_LAYER "self_attn.o_proj.weight", BLOCK, LH_SHARD_IN, d, h, q);
}

/* Attention of queries and keys, whole heads of which f turns, over values of the rows a, and what
 * brings heads home. */
static inline lh_value_t lh_llama_attend(lh_graph_t *g, lh_value_t a, lh_value_t q, lh_value_t k,
                                         lh_value_t f, const lh_attention_t *how)
{
    const uint32_t d = how->head_dim;
    const lh_value_t turned_q = lh_turn(g, q, f, how->heads, d, d);
    const lh_value_t turned_k = lh_turn(g, k, f, how->kv_heads, d, d);
    const lh_value_t v = lh_project(g, a, "wv", NULL);
    return lh_project(g, lh_attend(g, turned_q, turned_k, v, how), "wo", NULL);
}

/* What lh_llama_gated reads. */
static inline void lh_llama_add_gated(lh_model_t *m)
{
    enum { BLOCK = LH_PART_BLOCK, OUT = LH_SHARD_OUT };
    const uint64_t h = m->base.hidden, f = m->base.ffn;
    lh_llama_add(m, "w_gate", LH_LAYER "mlp.gate_proj.weight", BLOCK, OUT, 1, f, h);
    lh_llama_add(m, "w_up", LH_LAYER "mlp.up_proj.weight", BLOCK, OUT, 1, f, h);
    lh_llama_add(m, "w_down", LH_LAYER "mlp.down_proj.weight", BLOCK, LH_SHARD_IN, 1, h, f);
}

/* A norm of a block's rows. */
static inline void lh_llama_add_norm(lh_model_t *m, const char *name, const char *hf)
{
    lh_llama_add(m, name, hf, LH_PART_BLOCK, LH_SHARD_NONE, 1, m->base.hidden, 0);
}

/* A norm of each head of a row: of q or k. */
static inline void lh_llama_add_head_norm(lh_model_t *m, const char *name, const char *hf)
{
    lh_llama_add(m, name, hf, LH_PART_BLOCK, LH_SHARD_NONE, 1, m->base.head_dim, 0);
}

/* Those of queries and keys, as Qwen 3 and Gemma 3 have them: q_norm, k_norm. */
static inline void lh_llama_add_head_norms(lh_model_t *m)
{
    lh_llama_add_head_norm(m, "q_norm", LH_LAYER "self_attn.q_norm.weight");
    lh_llama_add_head_norm(m, "k_norm", LH_LAYER "self_attn.k_norm.weight");
}

static inline void lh_llama_add_embed(lh_model_t *m)
{
    lh_llama_add(m, "embed", "model.embed_tokens.weight", LH_PART_EMBED, LH_SHARD_VOCAB, 1,
                 m->base.vocab, m->base.hidden);
}

/* norm and head, tied to embed where the option says so. */
static inline void lh_llama_add_head(lh_model_t *m)
{
    const uint64_t h = m->base.hidden;
    lh_llama_add(m, "norm", "model.norm.weight", LH_PART_HEAD, LH_SHARD_NONE, 1, h, 0);
    lh_llama_add(m, "head", "lm_head.weight", LH_PART_HEAD, LH_SHARD_VOCAB, 1, m->base.vocab, h);
    if (m->base.tied && m->param_count > 0) m->params[m->param_count - 1].tied_to = "embed";
}

/* The feed-forward part: down(f(gate(x)) up(x)); function: LH_ACT_*. */
static inline lh_value_t lh_llama_gated(lh_graph_t *g, lh_value_t x, uint32_t function)
{
    const lh_value_t gate = lh_activate(g, lh_project(g, x, "w_gate", NULL), function);
    return lh_project(g, lh_multiply(g, gate, lh_project(g, x, "w_up", NULL)), "w_down", NULL);
}

/* ---- experts in place of that feed-forward part ----
 *
 * The router scores all experts for each token, and the token goes to the `chosen` of the highest
 * scores: gather_rows lays tokens out expert by expert, and scatter_rows sums what the experts of a
 * token say. The parameters are router [experts, hidden], w_gate and w_up [experts, ffn, hidden] and
 * w_down [experts, hidden, ffn] (LH_EXPERTS). Experts have no capacity, and no token is dropped. */

/* What an expert counts for a token: its part of a softmax over the chosen ones' scores, which is the
 * softmax over all experts scaled so that the chosen ones sum to 1 (Mixtral; norm_topk_prob = true of
 * others); or its part of the softmax over all, unscaled (norm_topk_prob = false). */
enum { LH_SHARES_OF_CHOSEN = 0, LH_SHARES_OF_ALL = 1 };

/* Each expert's rows times its matrix [out, in]; offsets as `route` gives them. */
static inline lh_value_t lh_expert_matmul(lh_graph_t *g, lh_value_t rows, const char *weights,
                                          lh_value_t offsets)
{
    const lh_grouped_t how = {sizeof(how), 1};
    const lh_value_t in[] = {rows, lh_named(g, weights), offsets};
    return g->api->op(g, "grouped_matmul", &how, in, 3, NULL);
}

/* Adds a block's part to the two sums of which lh_balance makes a loss: the share of all picks that
 * each expert has, and its mean probability, both [experts]. all: a softmax over all scores. */
static inline void lh_count_load(lh_graph_t *g, lh_value_t offsets, lh_value_t all)
{
    g->api->accumulate(g, "load", g->api->op(g, "route_load", NULL, &offsets, 1, NULL));
    g->api->accumulate(g, "probability", g->api->op(g, "mean_rows", NULL, &all, 1, NULL));
}

/* Each token of x [tokens, hidden] goes through d->chosen of d->experts parts that are gated as
 * lh_llama_gated is. shares: LH_SHARES_*; function: LH_ACT_* of the gate. Where d->balanced is set the
 * block's load is counted, and the head must call lh_balance. */
static inline lh_value_t lh_routed(lh_graph_t *g, lh_value_t x, const lh_decoder_t *d,
                                   uint32_t shares, uint32_t function)
{
    const bool of_all = shares == LH_SHARES_OF_ALL;
    const lh_top_k_t choose = {sizeof(choose), (uint32_t)d->chosen, 0, 0};
    const lh_route_t sort = {sizeof(sort), (uint32_t)d->experts};
    const lh_picks_t picks = {sizeof(picks), (uint32_t)d->chosen};
    lh_value_t ids = 0, offsets = 0;

    const lh_value_t scores = lh_project(g, x, "router", NULL);
    const lh_value_t ranked = of_all ? lh_softmax(g, scores) : scores;
    const lh_value_t best = g->api->op(g, "top_k", &choose, &ranked, 1, &ids);
    const lh_value_t counts = of_all ? best : lh_softmax(g, best);
    const lh_value_t order = g->api->op(g, "route", &sort, &ids, 1, &offsets);
    if (d->balanced) lh_count_load(g, offsets, of_all ? ranked : lh_softmax(g, scores));

    const lh_value_t from[] = {x, order};
    const lh_value_t rows = g->api->op(g, "gather_rows", &picks, from, 2, NULL);
    const lh_value_t gate = lh_activate(g, lh_expert_matmul(g, rows, "w_gate", offsets), function);
    const lh_value_t wide = lh_multiply(g, gate, lh_expert_matmul(g, rows, "w_up", offsets));
    const lh_value_t home[] = {lh_expert_matmul(g, wide, "w_down", offsets), order, counts};
    return g->api->op(g, "scatter_rows", &picks, home, 3, NULL);
}

/* In the head of a model with lh_routed, and nothing where d->balanced is not set. The loss is
 * Transformers' (load_balancing_loss_func, after Switch Transformers): experts times the sum over
 * experts of the share of tokens that choose an expert and of its mean probability, both means over
 * the tokens of all blocks together. Both sums are over blocks, so each is divided by their number; a
 * load is of picks, of which a token has `chosen`, where Transformers adds up the shares of tokens of
 * a first choice, of a second one and so on: chosen times as much. */
static inline void lh_balance(lh_graph_t *g, const lh_decoder_t *d)
{
    if (!d->balanced) return;
    const double blocks = (double)d->blocks;
    const lh_value_t load = g->api->total(g, "load", d->experts);
    const lh_value_t sums[] = {load, g->api->total(g, "probability", d->experts)};
    const lh_value_t even = g->api->op(g, "dot", NULL, sums, 2, NULL);
    const double factor = d->balance * (double)(d->experts * d->chosen) / (blocks * blocks);
    g->api->loss(g, "balance", lh_times(g, even, factor));
}

#endif
