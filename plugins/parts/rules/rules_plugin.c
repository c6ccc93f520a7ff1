/* rules_plugin.c - update rules as rows: they record ops, the core executes, at any ZeRO stage. */
#include "adafactor.h"
#include "muon.h"

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

/* ---- muon and adafactor: their records are in files of their own ---- */

static const lh_option_t muon_options[] = {
    LH_OPTION_F64(muon_config_t, momentum, "momentum", "0.95", "0..0.99999",
                  "decay of the running gradient"),
    LH_OPTION_BOOL(muon_config_t, nesterov, "nesterov", "yes", "looks one step ahead"),
    LH_OPTION_U64(muon_config_t, steps, "steps", "5", "1..20", "Newton-Schulz iterations"),
    LH_OPTION_CHOICE(
        muon_config_t, scale, "scale", "shape", "shape|adamw|none",
        "a step is longer by: root of rows / columns where that is over 1; 0.2 root of "
        "the longer side, as AdamW moves; nothing"),
    LH_OPTION_F64(muon_config_t, epsilon, "epsilon", "1e-7", "0..1",
                  "least norm that the momentum is divided by"),
};

static const lh_rule_state_t muon_states[] = {
    {.name = "muon_momentum", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
};

static const lh_option_t adafactor_options[] = {
    LH_OPTION_F64(adafactor_config_t, beta2_decay, "beta2_decay", "0.8", "0..1",
                  "second moments take N^-this of step N"),
    LH_OPTION_F64(adafactor_config_t, epsilon, "epsilon", "1.1920929e-7", "0..1",
                  "least root of a second moment"),
    LH_OPTION_F64(adafactor_config_t, least, "least", "1e-3", "0..1",
                  "a step is relative to the root mean square of the parameter, or to this"),
    LH_OPTION_F64(adafactor_config_t, clip, "clip", "1", "1e-9..1e9",
                  "root mean square of a step that is not made shorter"),
};

static const lh_rule_state_t adafactor_states[] = {
    {.name = "row_moment", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ROW},
    {.name = "column_moment", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_COLUMN},
};

static const lh_option_t direction_attributes[] = {
    LH_OPTION_CHOICE(muon_direction_t, nesterov, "nesterov", "no", "no|yes", "looks ahead"),
    LH_OPTION_F64(muon_direction_t, momentum, "momentum", "0.95", "0..0.99999", "decay of m1"),
    LH_OPTION_F64(muon_direction_t, epsilon, "epsilon", "1e-7", "0..1", "least norm of u"),
    LH_OPTION_U64(muon_direction_t, matrices, "matrices", "1", "1..", "that g is a stack of"),
};

static const lh_option_t move_attributes[] = {
    LH_OPTION_F64(muon_move_t, decay, "decay", "0", "0..1e6", "decoupled weight decay"),
    LH_OPTION_F64(muon_move_t, ratio, "ratio", "1", "0..1e6", "of the step to y"),
};

static const lh_option_t adafactor_attributes[] = {
    LH_OPTION_F64(adafactor_how_t, beta2_decay, "beta2_decay", "0.8", "0..1", "see formula"),
    LH_OPTION_F64(adafactor_how_t, epsilon, "epsilon", "1.1920929e-7", "0..1", "see formula"),
    LH_OPTION_F64(adafactor_how_t, least, "least", "1e-3", "0..1", "see formula"),
    LH_OPTION_F64(adafactor_how_t, clip, "clip", "1", "1e-9..1e9", "see formula"),
    LH_OPTION_F64(adafactor_how_t, decay, "decay", "0", "0..1e6", "decoupled weight decay"),
};

/* clang-format off */
#define ATTRIBUTES(t, s)                                                                          \
    .attributes = t, .attribute_size = sizeof(lh_option_t), .attribute_count = COUNT(t),          \
    .attributes_bytes = sizeof(s)
#define RULE(rule_name, grain_, text)                                                             \
    {.name = #rule_name, .help = text, .options = rule_name##_options,                            \
     .option_size = sizeof(lh_option_t), .option_count = COUNT(rule_name##_options),              \
     .config_size = sizeof(rule_name##_config_t), .grain = grain_, .states = rule_name##_states,  \
     .state_size = sizeof(lh_rule_state_t), .state_count = COUNT(rule_name##_states),             \
     .record = rule_name##_record}

static const lh_op_t ops[] = {
    {LH_OP_TEXT(MUON_DIRECTION_TEXT), ATTRIBUTES(direction_attributes, muon_direction_t),
     .shape = muon_direction_shape, .cost = muon_cost},
    {LH_OP_TEXT(MUON_MOVE_TEXT), ATTRIBUTES(move_attributes, muon_move_t),
     .shape = muon_move_shape, .cost = muon_cost},
    {LH_OP_TEXT(ADAFACTOR_TEXT), ATTRIBUTES(adafactor_attributes, adafactor_how_t),
     .shape = adafactor_shape, .cost = adafactor_cost},
};

static const lh_kernel_t kernels[] = {
    RULES_KERNELS("rules.muon_direction", muon_direction_prepare),
    RULES_KERNELS("rules.muon_move", muon_move_prepare),
    RULES_KERNELS("rules.adafactor", adafactor_prepare),
};

static const lh_rule_t rules[] = {
    RULE(adamw, LH_GRAIN_ELEMENT, "Adam with decoupled weight decay (Loshchilov and Hutter 2019)"),
    RULE(sgd, LH_GRAIN_ELEMENT, "gradient descent with momentum and decoupled weight decay"),
    RULE(muon, LH_GRAIN_MATRIX, "orthogonalised momentum, for matrices alone (Jordan et al. 2024)"),
    RULE(adafactor, LH_GRAIN_MATRIX,
         "second moments by row and by column (Shazeer and Stern 2018)"),
};
/* clang-format on */

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_PARTS,
    .name = "rules",
    .version = "0.1.0",
    .summary = "update rules: adamw, sgd, muon, adafactor",
    LH_TABLE_OPS(ops),
    LH_TABLE_KERNELS(kernels),
    LH_TABLE_RULES(rules),
};
