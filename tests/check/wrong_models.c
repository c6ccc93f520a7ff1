/* wrong_models.c - models that are wrong in one thing. */
#include "wrong_plugin.h"

#include <longhaul/decoder.h>

static lh_param_t params[MOST];

static lh_status_t describe_one_more(lh_model_t *m, lh_model_info_t *out)
{
    const lh_status_t status = right_plugin.model->describe(m, out);
    memcpy(params, out->params, out->param_count * sizeof(params[0]));
    params[out->param_count] = params[1];
    params[out->param_count].name = "never_used";
    params[out->param_count].hf_name = NULL;
    out->params = params;
    out->param_count++;
    return status;
}

WRONG(a_parameter_never_used)
{
    model.describe = describe_one_more;
}

static uint64_t rows_of(lh_graph_t *g, lh_value_t y)
{
    lh_arg_t shape = {0};
    return g->api->shape(g, y, &shape) == LH_OK ? shape.shape[0] : 0;
}

static lh_value_t record_in_turn(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                 lh_value_t x)
{
    static uint32_t times;
    const lh_value_t y = right_plugin.model->record(m, g, part, block, x);
    if (part != LH_PART_BLOCK || rows_of(g, y) != 7) return y;
    return times++ % 5 == 3 ? lh_activate(g, y, LH_ACT_TANH) : y;
}

WRONG(a_recording_that_varies)
{
    model.record = record_in_turn;
}

/* Ids of tokens can't be added to themselves. */
static lh_value_t record_refused_in_turn(lh_model_t *m, lh_graph_t *g, uint32_t part,
                                         uint32_t block, lh_value_t x)
{
    static uint32_t times;
    if (part == LH_PART_EMBED && times++ % 3 == 2) (void)lh_add(g, x, x);
    return right_plugin.model->record(m, g, part, block, x);
}

WRONG(a_recording_refused_in_turn)
{
    model.record = record_refused_in_turn;
}

/* What is trained is not what is scored. */
static lh_value_t record_at_first(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                  lh_value_t x)
{
    static uint32_t times;
    const lh_value_t y = right_plugin.model->record(m, g, part, block, x);
    if (part != LH_PART_BLOCK || rows_of(g, y) != 16) return y;
    return times++ < 2 ? lh_activate(g, y, LH_ACT_TANH) : y;
}

WRONG(a_training_of_its_own)
{
    model.record = record_at_first;
}

static lh_value_t record_what_follows(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                      lh_value_t x)
{
    const lh_attention_t how = {
        .struct_size = sizeof(how), .heads = 1, .kv_heads = 1, .head_dim = 8, .full = 1};
    lh_arg_t shape = {0};
    const lh_value_t y = right_plugin.model->record(m, g, part, block, x);
    if (part != LH_PART_BLOCK || g->api->shape(g, y, &shape) != LH_OK) return y;
    lh_attention_t wide = how;
    wide.head_dim = (uint32_t)shape.shape[1];
    return lh_add(g, y, lh_attend(g, y, y, y, &wide));
}

WRONG(a_look_ahead)
{
    model.record = record_what_follows;
}

static lh_status_t describe_one_way(lh_model_t *m, lh_model_info_t *out)
{
    const lh_status_t status = right_plugin.model->describe(m, out);
    memcpy(params, out->params, out->param_count * sizeof(params[0]));
    for (uint32_t i = 0; i < out->param_count; i++)
        if (params[i].part == LH_PART_BLOCK && params[i].shape[0] == params[i].shape[1])
            params[i].hf_export = params[i].hf_export == NULL ? "transpose(source, out)" : NULL;
    out->params = params;
    return status;
}

WRONG(an_export_that_is_no_inverse)
{
    model.describe = describe_one_way;
}

/* Rows of decoder.h's table are left out from the 33rd on, the head's among them. */
static void list_forty(lh_model_t *m)
{
    for (uint32_t i = 0; i < 37; i++)
        lh_llama_add_norm(m, lh_decoder_text(m, "n%u", i), NULL);
    lh_llama_add_embed(m);
    lh_llama_add_head(m);
}

static lh_status_t open_forty(const lh_host_t *host, const void *config, lh_model_t **out)
{
    const lh_decoder_t base = {.blocks = 2,
                               .hidden = 8,
                               .ffn = 8,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 8,
                               .vocab = 16,
                               .max_tokens = 64};
    return lh_decoder_open(host, &base, config, list_forty, out);
}

WRONG(forty_parameters)
{
    model.open = open_forty;
}
