/* my_optimizer.c - a template for optimizer plugins, with an update rule of its own beside it.
 *
 * An optimizer describes which data exists (spaces), how it is cut over ranks, where it lies, and
 * what moves at which moment of a step. The host turns the two tables into a static schedule: none
 * of this code runs inside a step. How a parameter changes is the rule's business: any rule works
 * with any optimizer. Rename the file, `my_optimizer` and the name below (all three must agree). */
#include <longhaul/plugin.h>

/* [optimizer] of the INI: what this plugin reads beside the core's own keys. */
typedef struct my_config {
    uint64_t bucket_bytes;
} my_config_t;

static const lh_option_t options[] = {
    LH_OPTION_BYTES(my_config_t, bucket_bytes, "bucket", "25MiB", "64KiB..1GiB",
                    "gradients that are summed over ranks at a time"),
};

/* Moves name spaces by their row. */
enum { VALUE, GRAD, MASTER, STATE };

static const lh_space_t spaces[] = {
    {.name = "value",
     .holds = LH_HOLDS_VALUE,
     .cut = LH_GROUP_SELF, /* whole on every rank; LH_GROUP_DATA cuts it over them */
     .place = LH_ON_DEVICE,
     .lives = LH_LIVES_ALWAYS},
    {.name = "grad",
     .holds = LH_HOLDS_GRAD,
     .dtype = LH_DTYPE_F32,
     .cut = LH_GROUP_SELF,
     .place = LH_ON_DEVICE,
     .lives = LH_LIVES_STEP},
    {.name = "master",
     .holds = LH_HOLDS_MASTER,
     .dtype = LH_DTYPE_F32,
     .cut = LH_GROUP_SELF,
     .place = LH_ON_DEVICE,
     .lives = LH_LIVES_ALWAYS,
     .flags = LH_KEEP_SAVED | LH_KEEP_FROM_VALUE},
    {.name = "state",
     .holds = LH_HOLDS_STATE,
     .cut = LH_GROUP_SELF,
     .place = LH_ON_DEVICE,
     .lives = LH_LIVES_ALWAYS,
     .flags = LH_KEEP_SAVED},
};

static const lh_move_t moves[] = {
    {.when = LH_AT_GRAD,
     .what = LH_MOVE_REDUCE,
     .from = GRAD,
     .to = GRAD,
     .group = LH_GROUP_DATA,
     .reduce = LH_REDUCE_SUM},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_STEP, .what = LH_MOVE_COPY, .from = MASTER, .to = VALUE},
};

struct lh_optimizer {
    const lh_host_t *host;
    my_config_t config;
};

static lh_status_t my_open(const lh_host_t *host, const void *config, lh_optimizer_t **out)
{
    lh_optimizer_t *o = host->alloc(host, sizeof(*o), 64);
    if (o == NULL) return LH_NO_MEMORY;
    o->host = host;
    o->config = *(const my_config_t *)config;
    *out = o;
    return LH_OK;
}

static void my_close(lh_optimizer_t *o)
{
    o->host->release(o->host, o);
}

/* train tells parameters and groups; a description may depend on them. No memory exists yet. */
static lh_status_t my_describe(lh_optimizer_t *o, LH_UNUSED const lh_train_t *train,
                               lh_description_t *out)
{
    LH_FILL(lh_description_t, out, .spaces = spaces, .space_size = sizeof(spaces[0]),
            .space_count = sizeof(spaces) / sizeof(spaces[0]), .moves = moves,
            .move_size = sizeof(moves[0]), .move_count = sizeof(moves) / sizeof(moves[0]),
            .bucket_bytes = o->config.bucket_bytes);
    return LH_OK;
}

static const lh_optimizer_api_t api = {
    .struct_size = sizeof(api),
    .open = my_open,
    .close = my_close,
    .describe = my_describe,
};

/* The rule: [optimizer] rule = my_optimizer:my_rule, its options in [rule.my_rule]. It says what
 * state it keeps and records its update as ops; here the core's sgd with momentum does the work. */
typedef struct rule_config {
    double momentum;
} rule_config_t;

static const lh_option_t rule_options[] = {
    LH_OPTION_F64(rule_config_t, momentum, "momentum", "0.9", "0..0.99999",
                  "decay of the running gradient"),
};

static const lh_rule_state_t rule_states[] = {
    {.name = "momentum", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
};

static lh_value_t rule_record(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                              lh_value_t grad, lh_value_t master, lh_value_t *states,
                              lh_value_t *value)
{
    const rule_config_t *c = config;
    const lh_sgd_t how = {
        .struct_size = sizeof(how), .momentum = c->momentum, .decay = piece->decay};
    const lh_value_t in[] = {grad, master, states[0], g->api->input(g, LH_INPUT_STEP)};
    lh_value_t more[2] = {0};

    const lh_value_t updated = g->api->op(g, "sgd", &how, in, 4, more);
    states[0] = more[0];
    *value = more[1]; /* written in the same pass, in the compute dtype */
    return updated;
}

static const lh_rule_t rules[] = {
    {
        .name = "my_rule",
        .help = "gradient descent with momentum",
        .options = rule_options,
        .option_size = sizeof(rule_options[0]),
        .option_count = sizeof(rule_options) / sizeof(rule_options[0]),
        .config_size = sizeof(rule_config_t),
        .grain = LH_GRAIN_ELEMENT, /* its work may be cut anywhere */
        .states = rule_states,
        .state_size = sizeof(rule_states[0]),
        .state_count = sizeof(rule_states) / sizeof(rule_states[0]),
        .record = rule_record,
    },
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_OPTIMIZER,
    .name = "my_optimizer",
    .version = "0.1.0",
    .summary = "a template: everything whole on every rank",
    .config_size = sizeof(my_config_t),
    LH_TABLE_OPTIONS(options),
    LH_TABLE_RULES(rules),
    .optimizer = &api,
};
