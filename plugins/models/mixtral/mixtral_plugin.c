/* mixtral_plugin.c - Mixtral: Mistral with experts in place of the feed-forward part. Each token goes to
 * the few that its router scores highest; what they say counts by a softmax over those scores, which is
 * a softmax over all experts scaled so that the chosen ones sum to 1.
 *
 * The loss that balances experts is Transformers' (load_balancing_loss_func, after Switch
 * Transformers): experts times the sum over experts of the share of tokens that an expert is chosen
 * by and of its mean probability, both means over the tokens of all blocks together. Blocks add
 * both to sums which the head reads. */
#include <longhaul/decoder.h>

typedef struct mixtral_config {
    lh_decoder_t base;
    lh_rotary_t rope;
    uint64_t window, experts, chosen;
    double balance;
    bool balanced;
} mixtral_config_t;

/* clang-format off */
static const lh_option_t options[] = {
    LH_DECODER_OPTIONS(mixtral_config_t, "32768", "1e-5", "no"),
    LH_DECODER_FFN(mixtral_config_t),
    LH_DECODER_HEADS(mixtral_config_t),
    LH_ROTARY_OPTIONS(mixtral_config_t),
    LH_OPTION_U64(mixtral_config_t, window, "window", "0", "0..16777216", "tokens that a token sees, itself included; 0: all before"),
    LH_OPTION_U64(mixtral_config_t, experts, "experts", "8", "1..4096", "experts of a block"),
    LH_OPTION_U64(mixtral_config_t, chosen, "chosen", "2", "1..64", "experts that a token goes to"),
    LH_OPTION_BOOL(mixtral_config_t, balanced, "balanced", "no", "minimise a loss that balances experts, too"),
    LH_OPTION_F64(mixtral_config_t, balance, "balance", "0.001", "0..", "what that loss counts"),
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

#define MOE LH_LAYER "block_sparse_moe."
#define EXPERTS(n, hf, init_, rows, columns)                                                          \
    {.name = n, .hf_name = MOE "experts.{e}." hf ".weight", .part = LH_PART_BLOCK,                    \
     .shard = LH_SHARD_EXPERT, .init = LH_INIT_##init_, .unit = 1, .shape = {c->experts, rows, columns}}
/* clang-format on */

static void list_params(lh_model_t *m)
{
    const mixtral_config_t *c = m->config;
    const uint64_t h = m->base.hidden, f = m->base.ffn;
    lh_llama_add_embed(m);
    lh_llama_add_norm(m, "attn_norm", LH_LAYER "input_layernorm.weight");
    lh_llama_add_attention(m);
    lh_llama_add_norm(m, "ffn_norm", LH_LAYER "post_attention_layernorm.weight");
    LH_DECODER_ADD(m, LH_MATRIX("router", MOE "gate.weight", BLOCK, NONE, NORMAL, 1, c->experts, h),
                   EXPERTS("w_gate", "w1", NORMAL, f, h), EXPERTS("w_up", "w3", NORMAL, f, h),
                   EXPERTS("w_down", "w2", RESIDUAL, h, f));
    lh_llama_add_head(m);
}

static lh_status_t model_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    const mixtral_config_t *c = config;
    if (c->chosen > c->experts)
        return host->fail(host, LH_INVALID, "chosen = %llu of experts = %llu",
                          (unsigned long long)c->chosen, (unsigned long long)c->experts);
    return lh_decoder_open_rotary(host, &c->base, c, list_params, out);
}

/* Each expert's rows times its matrix [out, in]. */
static lh_value_t expert_matmul(lh_graph_t *g, lh_value_t rows, const char *weights,
                                lh_value_t offsets)
{
    const lh_grouped_t how = {sizeof(how), 1};
    const lh_value_t in[] = {rows, lh_named(g, weights), offsets};
    return g->api->op(g, "grouped_matmul", &how, in, 3, NULL);
}

static lh_value_t record_routed(const mixtral_config_t *c, lh_graph_t *g, lh_value_t x)
{
    const uint32_t k = (uint32_t)c->chosen;
    const lh_top_k_t choose = {sizeof(choose), k, 0, 0};
    const lh_route_t sort = {sizeof(sort), (uint32_t)c->experts};
    const lh_picks_t picks = {sizeof(picks), k};
    lh_value_t ids, offsets;
    const lh_value_t scores = lh_project(g, x, "router", NULL);
    const lh_value_t best = g->api->op(g, "top_k", &choose, &scores, 1, &ids);
    const lh_value_t shares = g->api->op(g, "softmax", NULL, &best, 1, NULL);
    const lh_value_t order = g->api->op(g, "route", &sort, &ids, 1, &offsets);

    if (c->balanced) {
        const lh_value_t all = g->api->op(g, "softmax", NULL, &scores, 1, NULL);
        g->api->accumulate(g, "load", g->api->op(g, "route_load", NULL, &offsets, 1, NULL));
        g->api->accumulate(g, "probability", g->api->op(g, "mean_rows", NULL, &all, 1, NULL));
    }

    const lh_value_t from[] = {x, order};
    const lh_value_t rows = g->api->op(g, "gather_rows", &picks, from, 2, NULL);
    const lh_value_t gate = lh_activate(g, expert_matmul(g, rows, "w_gate", offsets), LH_ACT_SILU);
    const lh_value_t wide = lh_multiply(g, gate, expert_matmul(g, rows, "w_up", offsets));
    const lh_value_t home[] = {expert_matmul(g, wide, "w_down", offsets), order, shares};
    return g->api->op(g, "scatter_rows", &picks, home, 3, NULL);
}

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
    return lh_add(g, x, record_routed(c, g, lh_rms(g, x, "ffn_norm", d->epsilon)));
}

/* Both sums are over blocks: divided by their number they are means over the tokens of all. A load is
 * of picks, of which a token has `chosen`. */
static lh_value_t record_head(const lh_model_t *m, lh_graph_t *g, lh_value_t x)
{
    const mixtral_config_t *c = m->config;
    const double blocks = (double)c->base.blocks;
    if (c->balanced) {
        const lh_value_t sums[] = {g->api->total(g, "load", c->experts),
                                   g->api->total(g, "probability", c->experts)};
        const lh_value_t even = g->api->op(g, "dot", NULL, sums, 2, NULL);
        const double factor = c->balance * (double)(c->experts * c->chosen) / (blocks * blocks);
        g->api->loss(g, "balance", lh_times(g, even, factor));
    }
    return lh_project(g, lh_rms(g, x, "norm", m->base.epsilon), "head", NULL);
}

static lh_value_t model_record(lh_model_t *m, lh_graph_t *g, uint32_t part,
                               LH_UNUSED uint32_t block, lh_value_t x)
{
    switch (part) {
    case LH_PART_EMBED: return lh_embed(g, x, lh_named(g, "embed"));
    case LH_PART_BLOCK: return record_block(m, g, x);
    case LH_PART_HEAD: return record_head(m, g, x);
    default: return 0;
    }
}

LH_DECODER_PLUGIN("mixtral", mixtral_config_t, "Mixtral", .model_type = "mixtral",
                  .architecture = "MixtralForCausalLM|MixtralModel",
                  .ignored = "*.rotary_emb.inv_freq");
