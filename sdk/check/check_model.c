/* check_model.c - two blocks of a feed-forward part each. */
#include "check_model.h"

enum { HIDDEN = 24, WIDE = 401, BLOCKS = 2 };

struct lh_model {
    const lh_host_t *host;
};

static const lh_param_t params[] = {
    LH_MATRIX("embed", NULL, EMBED, VOCAB, NORMAL, 1, CHECK_MODEL_VOCAB, HIDDEN),
    LH_NORM("norm", NULL, BLOCK, HIDDEN),
    LH_MATRIX("up", NULL, BLOCK, OUT, NORMAL, 1, WIDE, HIDDEN),
    {.name = "bias",
     .part = LH_PART_BLOCK,
     .init = LH_INIT_ZERO,
     .flags = LH_PARAM_NO_DECAY,
     .unit = 1,
     .shape = {WIDE}},
    LH_MATRIX("down", NULL, BLOCK, IN, NORMAL, 1, HIDDEN, WIDE),
    LH_MATRIX("head", NULL, HEAD, VOCAB, NORMAL, 1, CHECK_MODEL_VOCAB, HIDDEN),
};

static lh_status_t model_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    (void)config;
    lh_model_t *m = host->alloc(host, sizeof(*m), 64);
    if (m == NULL) return LH_NO_MEMORY;
    m->host = host;
    *out = m;
    return LH_OK;
}

static void model_close(lh_model_t *m)
{
    m->host->release(m->host, m);
}

static lh_status_t model_describe(lh_model_t *m, lh_model_info_t *out)
{
    (void)m;
    LH_FILL(lh_model_info_t, out, .blocks = BLOCKS, .hidden = HIDDEN, .vocab = CHECK_MODEL_VOCAB,
            .max_tokens = 64, .params = params, .param_size = sizeof(params[0]),
            .param_count = sizeof(params) / sizeof(params[0]));
    return LH_OK;
}

#define P(name) g->api->param(g, name)
static lh_value_t model_record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                               lh_value_t x)
{
    (void)m, (void)block;
    if (part == LH_PART_EMBED) return lh_embed(g, x, P("embed"));
    if (part == LH_PART_HEAD) return lh_linear(g, x, P("head"), 0);
    const lh_value_t up = lh_linear(g, lh_rms_norm(g, x, P("norm"), 1e-5), P("up"), P("bias"));
    return lh_add(g, x, lh_linear(g, lh_activate(g, up, LH_ACT_SILU), P("down"), 0));
}

const lh_model_api_t check_model = {.struct_size = sizeof(check_model),
                                    .open = model_open,
                                    .close = model_close,
                                    .describe = model_describe,
                                    .record = model_record};
