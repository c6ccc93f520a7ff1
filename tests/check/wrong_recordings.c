/* wrong_recordings.c - models that describe or record one thing wrongly, spoiled in place: what a
 * right model says is changed on its way to the host. The right one is llama. */
#include <stdlib.h>
#include <unistd.h>

#include "wrong_plugin.h"

/* ---- tables ---- */

static lh_param_t rows[MOST];
static lh_hf_key_t keys[MOST];
static lh_hf_t table;

/* Copies of the rows, for `change` to spoil; its row by name, or the first. */
static lh_param_t *row_of(lh_model_info_t *info, const char *name)
{
    if (info->params != rows) memcpy(rows, info->params, info->param_count * sizeof(rows[0]));
    info->params = rows;
    for (uint32_t i = 0; i < info->param_count; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return &rows[0];
}

#define DESCRIBE(fault, change)                                               \
    static lh_status_t describe_##fault(lh_model_t *m, lh_model_info_t *info) \
    {                                                                         \
        const lh_status_t status = right_plugin.model->describe(m, info);     \
        if (status != LH_OK) return status;                                   \
        change;                                                               \
        return LH_OK;                                                         \
    }
#define DESCRIBES(fault, change)           \
    DESCRIBE(fault, change)                \
    WRONG(fault)                           \
    {                                      \
        model.describe = describe_##fault; \
    }

DESCRIBES(no_blocks, info->blocks = 0)
DESCRIBES(a_name_twice, row_of(info, "wk")->name = "wq")
DESCRIBES(a_name_with_a_blank, row_of(info, "wk")->name = "w k")
DESCRIBES(a_tie_to_nobody, row_of(info, "head")->tied_to = "nobody")
DESCRIBES(a_start_of_no_kind, row_of(info, "wo")->init = 99)
DESCRIBES(a_part_of_no_kind, row_of(info, "wo")->part = 9)
DESCRIBES(a_shape_of_nothing, row_of(info, "wo")->shape[0] = 0)
DESCRIBES(heads_as_wide_as_the_row, row_of(info, "wq")->shape[0] = info->hidden)
DESCRIBES(a_norm_too_long, row_of(info, "attn_norm")->shape[0]++)
DESCRIBES(sixteen_tokens_at_most, info->max_tokens = 16)
DESCRIBES(one_file_name_for_two, row_of(info, "wk")->hf_name = row_of(info, "wq")->hf_name)
DESCRIBES(one_file_name_for_all_blocks, row_of(info, "wo")->hf_name = "model.layers.wo.weight")
DESCRIBES(an_import_without_export, row_of(info, "wo")->hf_import = "transpose(source, out)")
DESCRIBES(a_transform_of_no_name, row_of(info, "wo")->hf_import = "turn_round(source, out)";
          row_of(info, "wo")->hf_export = "turn_round(source, out)")
DESCRIBES(a_cut_that_leaves_halves, row_of(info, "wo")->shard = LH_SHARD_NONE)
DESCRIBES(a_cut_of_outputs_for_inputs, row_of(info, "w_down")->shard = LH_SHARD_OUT)
DESCRIBES(a_query_that_is_not_cut, row_of(info, "wq")->shard = LH_SHARD_NONE)
DESCRIBES(a_norm_that_is_cut, row_of(info, "attn_norm")->shard = LH_SHARD_OUT)
DESCRIBES(an_embedding_cut_by_columns, row_of(info, "embed")->shard = LH_SHARD_IN)
DESCRIBES(gates_cut_apart, row_of(info, "w_gate")->shard = LH_SHARD_IN)
DESCRIBES(a_norm_that_decays, row_of(info, "ffn_norm")->flags = 0)
DESCRIBES(a_router_cut_by_rows, row_of(info, "router")->shard = LH_SHARD_OUT)
DESCRIBES(a_router_cut_by_columns, row_of(info, "router")->shard = LH_SHARD_IN)
DESCRIBES(a_router_cut_as_a_vocabulary, row_of(info, "router")->shard = LH_SHARD_VOCAB)
DESCRIBES(a_router_cut_by_experts, row_of(info, "router")->shard = LH_SHARD_EXPERT)
DESCRIBES(experts_of_one_file, row_of(info, "w_up")->hf_name = row_of(info, "w_gate")->hf_name)
DESCRIBES(experts_cut_by_rows_alone, row_of(info, "w_gate")->shard = LH_SHARD_OUT)
DESCRIBES(heads_cut_through, row_of(info, "wq")->unit = 1; row_of(info, "wk")->unit = 1;
          row_of(info, "wv")->unit = 1; row_of(info, "wo")->unit = 1)

/* ---- keys of config.json ---- */

static lh_hf_key_t *key_of(const char *option)
{
    table = *right_plugin.model->hf;
    memcpy(keys, table.keys, table.key_count * sizeof(keys[0]));
    table.keys = keys;
    model.hf = &table;
    for (uint32_t i = 0; i < table.key_count; i++)
        if (keys[i].option != NULL && strcmp(keys[i].option, option) == 0) return &keys[i];
    abort();
}

WRONG(a_key_that_is_missing)
{
    *key_of("epsilon") = (lh_hf_key_t){.key = "nothing", .fixed = "*"};
}
WRONG(a_key_for_another_option)
{
    key_of("heads")->option = "kv_heads";
}
WRONG(a_key_of_no_option)
{
    key_of("epsilon")->option = "epsilom";
}
WRONG(a_key_that_is_always_the_same)
{
    *key_of("tied") = (lh_hf_key_t){.key = "tie_word_embeddings", .fixed = "true|false"};
}

/* ---- functions of the plugin's own that turn weights ---- */

/* Doubles, both ways: export and import give four times the weight. */
LH_FUNCTION(status, doubles, (tensor, source), (tensor, out))
{
    for (uint64_t i = 0; i < source->shape[0] * source->shape[1]; i++)
        ((float *)out->data)[i] = 2 * ((const float *)source->data)[i];
    return LH_OK;
}

static const lh_function_t own_functions[] = {LH_FUNCTION_ENTRY(doubles, "twice the weights")};

static void give_functions(const lh_function_t *own)
{
    it.functions = own;
    it.function_size = sizeof(own[0]);
    it.function_count = 1;
}

#define TURNED(info, call) \
    row_of(info, "wo")->hf_import = row_of(info, "wo")->hf_export = "planted_model:" call

DESCRIBE(twice, TURNED(info, "doubles(source, out)"))
WRONG(a_transform_that_is_no_inverse)
{
    model.describe = describe_twice;
    give_functions(own_functions);
}

/* What uses the options must be given those of the instance at hand. */
LH_FUNCTION(status, refuses, (tensor, source), (tensor, out))
{
    (void)source, (void)out;
    if (call->config == NULL) abort();
    return call->host->fail(call->host, LH_INVALID, "these weights are not for turning");
}

static const lh_function_t refusing[] = {LH_FUNCTION_ENTRY(refuses, "refuses all weights")};

DESCRIBE(refused, TURNED(info, "refuses(source, out)"))
WRONG(a_transform_that_refuses)
{
    model.describe = describe_refused;
    give_functions(refusing);
}

/* ---- opening ---- */

static lh_status_t open_silently(const lh_host_t *host, const void *config, lh_model_t **out)
{
    const lh_status_t status = right_plugin.model->open(host, config, out);
    lh_model_info_t info = {.struct_size = sizeof(info)};
    if (status != LH_OK || right_plugin.model->describe(*out, &info) != LH_OK) return status;
    if (info.vocab == 32) {
        right_plugin.model->close(*out);
        return LH_INVALID;
    }
    return LH_OK;
}

WRONG(a_refusal_without_a_word)
{
    model.open = open_silently;
}

/* ---- recordings ---- */

/* What the host gives a model to record with, and one that stands between them. */
static const lh_graph_api_t *real;
static lh_value_t (*spoiled_op)(lh_graph_t *g, const char *name, const void *attributes,
                                const lh_value_t *in, uint32_t in_count, lh_value_t *more);
static const char *renamed, *renamed_as; /* parameter */

static lh_value_t param_between(lh_graph_t *g, const char *name)
{
    return real->param(g, renamed != NULL && strcmp(name, renamed) == 0 ? renamed_as : name);
}

static lh_value_t record_between(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                 lh_value_t x)
{
    real = g->api;
    lh_graph_api_t between = *real;
    if (spoiled_op != NULL) between.op = spoiled_op;
    between.param = param_between;
    g->api = &between;
    const lh_value_t y = right_plugin.model->record(m, g, part, block, x);
    g->api = real;
    return y;
}

static void spoil(lh_value_t (*op)(lh_graph_t *, const char *, const void *, const lh_value_t *,
                                   uint32_t, lh_value_t *))
{
    spoiled_op = op;
    model.record = record_between;
}

#define RECORDS(fault, of, T, change)                                                       \
    static lh_value_t op_##fault(lh_graph_t *g, const char *name, const void *attributes,   \
                                 const lh_value_t *in, uint32_t in_count, lh_value_t *more) \
    {                                                                                       \
        if (strcmp(name, of) != 0 || attributes == NULL)                                    \
            return real->op(g, name, attributes, in, in_count, more);                       \
        T how = *(const T *)attributes;                                                     \
        change;                                                                             \
        return real->op(g, name, &how, in, in_count, more);                                 \
    }                                                                                       \
    WRONG(fault)                                                                            \
    {                                                                                       \
        spoil(op_##fault);                                                                  \
    }

RECORDS(an_expert_less, "route", lh_route_t, how.experts--)
RECORDS(experts_the_wrong_way_round, "grouped_matmul", lh_grouped_t,
        how.transpose_b = !how.transpose_b)
RECORDS(one_expert_for_all, "top_k", lh_top_k_t, how.k = 1)
/* Right: a bias of each expert [experts, ffn], which is added to that expert's rows. */
static lh_status_t bias_shape(LH_UNUSED const lh_host_t *host, LH_UNUSED const void *attributes,
                              lh_arg_t *args, LH_UNUSED uint32_t arg_count)
{
    args[3].dtype = args[0].dtype;
    args[3].rank = args[0].rank;
    memcpy(args[3].shape, args[0].shape, sizeof(args[3].shape));
    return LH_OK;
}

static void bias_cost(LH_UNUSED const void *attributes, LH_UNUSED const lh_arg_t *args,
                      LH_UNUSED uint32_t arg_count, lh_cost_t *out)
{
    LH_FILL(lh_cost_t, out, .flops = 1);
}

static lh_status_t describe_expert_bias(lh_model_t *m, lh_model_info_t *info)
{
    const lh_status_t status = right_plugin.model->describe(m, info);
    if (status != LH_OK) return status;
    const lh_param_t *gate = row_of(info, "w_gate");
    lh_param_t *bias = &rows[info->param_count++];
    *bias = *gate;
    bias->name = "b_gate";
    bias->hf_name = NULL;
    bias->shape[2] = 0;
    return LH_OK;
}

static lh_value_t op_expert_bias(lh_graph_t *g, const char *name, const void *attributes,
                                 const lh_value_t *in, uint32_t in_count, lh_value_t *more)
{
    static uint32_t products; /* of three, the first is the gate's */
    const lh_value_t y = real->op(g, name, attributes, in, in_count, more);
    if (strcmp(name, "grouped_matmul") != 0 || products++ % 3 != 0) return y;
    const lh_value_t biased[] = {y, real->param(g, "b_gate"), in[2]};
    return real->op(g, "wrong.expert_bias", NULL, biased, 3, NULL);
}

WRONG(experts_with_a_bias)
{
    ops[0] = (lh_op_t){.name = "wrong.expert_bias",
                       .slots = "x b offsets -> y",
                       .help = "adds each expert's bias to its rows",
                       .shape = bias_shape,
                       .cost = bias_cost};
    it.op_count = 1;
    it.op_size = sizeof(ops[0]);
    it.ops = ops;
    model.describe = describe_expert_bias;
    spoil(op_expert_bias);
}

RECORDS(heads_of_queries_for_keys, "attention", lh_attention_t, how.kv_heads = how.heads)
RECORDS(attention_to_all, "attention", lh_attention_t, how.full = 1)
RECORDS(a_window_that_is_left_out, "attention", lh_attention_t, how.window = 0)
RECORDS(one_epsilon_for_all, "rms_norm", lh_norm_t, how.epsilon = 1e-5)
RECORDS(half_as_many_heads_turn, "rope", lh_rope_t, how.heads = how.heads / 2 + 1)

static lh_value_t constant_between(lh_graph_t *g, const float *values, uint64_t count)
{
    float same[512];
    (void)values;
    for (uint64_t i = 0; i < count && i < 512; i++)
        same[i] = 1.0f / (float)(i + 1);
    return real->constant(g, same, count);
}

static lh_value_t record_frequencies(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                     lh_value_t x)
{
    real = g->api;
    lh_graph_api_t between = *real;
    between.constant = constant_between;
    g->api = &between;
    const lh_value_t y = right_plugin.model->record(m, g, part, block, x);
    g->api = real;
    return y;
}

WRONG(frequencies_of_no_option)
{
    model.record = record_frequencies;
}

WRONG(a_parameter_of_another_name)
{
    renamed = "ffn_norm";
    renamed_as = "ffn_normm";
    model.record = record_between;
}

WRONG(a_matrix_for_a_norm)
{
    renamed = "attn_norm";
    renamed_as = "wo";
    model.record = record_between;
}

/* The part that is at hand ends otherwise. */
#define ENDS(fault, of, what)                                                                     \
    static lh_value_t record_##fault(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block, \
                                     lh_value_t x)                                                \
    {                                                                                             \
        const lh_value_t y = right_plugin.model->record(m, g, part, block, x);                    \
        return part == (of) ? (what) : y;                                                         \
    }                                                                                             \
    WRONG(fault)                                                                                  \
    {                                                                                             \
        model.record = record_##fault;                                                            \
    }

ENDS(a_head_that_records_nothing, LH_PART_HEAD, 0)
ENDS(a_block_of_another_width, LH_PART_BLOCK, lh_linear(g, y, g->api->param(g, "w_up"), 0))
ENDS(a_block_that_crashes, LH_PART_BLOCK, block == 1 ? (abort(), y) : y)
ENDS(a_block_that_hangs, LH_PART_BLOCK, block == 1 ? (lh_value_t)pause() : y)
ENDS(a_block_that_leaves, LH_PART_BLOCK, block == 1 ? (_exit(0), y) : y)
ENDS(a_value_of_nobody, LH_PART_BLOCK, y + 1000)
