/* rules_plugin.c - update rules as rows: they record ops, the core executes, at any ZeRO stage. */
#include <longhaul/plugin.h>

typedef struct adamw_config {
    double beta1, beta2, epsilon;
} adamw_config_t;

static const lh_option_t adamw_options[] = {
    LH_OPTION_F64(adamw_config_t, beta1, "beta1", "0.9", "0..0.99999", "decay of the first moment"),
    LH_OPTION_F64(adamw_config_t, beta2, "beta2", "0.95", "0..0.99999999",
                  "decay of the second moment"),
    LH_OPTION_F64(adamw_config_t, epsilon, "epsilon", "1e-8", "0..1",
                  "added to the root of the second moment"),
};

static const lh_rule_state_t adamw_states[] = {
    {.name = "exp_avg", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
    {.name = "exp_avg_sq", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
};

static lh_value_t adamw_record(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                               lh_value_t grad, lh_value_t master, lh_value_t *states,
                               lh_value_t *value)
{
    const adamw_config_t *c = config;
    const lh_adamw_t how = {sizeof(how), 0, c->beta1, c->beta2, c->epsilon, piece->decay};
    const lh_value_t in[] = {grad, master, states[0], states[1], 0};
    lh_value_t more[3] = {0};

    const lh_value_t updated = g->api->op(g, "adamw", &how, in, 5, more);
    states[0] = more[0];
    states[1] = more[1];
    *value = more[2];
    return updated;
}

typedef struct sgd_config {
    double momentum;
    bool nesterov;
} sgd_config_t;

static const lh_option_t sgd_options[] = {
    LH_OPTION_F64(sgd_config_t, momentum, "momentum", "0.9", "0..0.99999",
                  "decay of the running gradient"),
    LH_OPTION_BOOL(sgd_config_t, nesterov, "nesterov", "no",
                   "looks one step ahead (Sutskever et al. 2013)"),
};

static const lh_rule_state_t sgd_states[] = {
    {.name = "momentum", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
};

static lh_value_t sgd_record(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                             lh_value_t grad, lh_value_t master, lh_value_t *states,
                             lh_value_t *value)
{
    const sgd_config_t *c = config;
    const lh_sgd_t how = {sizeof(how), c->nesterov, c->momentum, piece->decay};
    const lh_value_t in[] = {grad, master, states[0], 0};
    lh_value_t more[2] = {0};

    const lh_value_t updated = g->api->op(g, "sgd", &how, in, 4, more);
    states[0] = more[0];
    *value = more[1];
    return updated;
}

/* clang-format off */
#define COUNT(t) (uint32_t)(sizeof(t) / sizeof((t)[0]))
#define RULE(rule_name, text)                                                                        \
    {.name = #rule_name, .help = text, .options = rule_name##_options, .option_size = sizeof(lh_option_t), \
     .option_count = COUNT(rule_name##_options), .config_size = sizeof(rule_name##_config_t),        \
     .grain = LH_GRAIN_ELEMENT, .states = rule_name##_states, .state_size = sizeof(lh_rule_state_t), \
     .state_count = COUNT(rule_name##_states), .record = rule_name##_record}

static const lh_rule_t rules[] = {
    RULE(adamw, "Adam with decoupled weight decay (Loshchilov and Hutter 2019)"),
    RULE(sgd, "gradient descent with momentum and decoupled weight decay"),
};
/* clang-format on */

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_PARTS,
    .name = "rules",
    .version = "0.1.0",
    .summary = "update rules: adamw, sgd",
    LH_TABLE_RULES(rules),
};
