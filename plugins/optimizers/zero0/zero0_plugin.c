/* zero0_plugin.c - every rank holds everything: gradients are summed over all replicas, then each
 * replica makes the same update. */
#include <longhaul/plugin.h>

enum { VALUE, GRAD, MASTER, STATE };

/* clang-format off */
#define SPACE(n, what, type, life, keep) \
    {.name = n, .holds = LH_HOLDS_##what, .dtype = type, .cut = LH_GROUP_SELF, .place = LH_ON_DEVICE, .lives = LH_LIVES_##life, .flags = keep}

static const lh_space_t spaces[] = {
    SPACE("value", VALUE, 0, ALWAYS, 0),
    SPACE("grad", GRAD, LH_DTYPE_F32, STEP, 0),
    SPACE("master", MASTER, LH_DTYPE_F32, ALWAYS, LH_KEEP_SAVED | LH_KEEP_FROM_VALUE),
    SPACE("state", STATE, 0, ALWAYS, LH_KEEP_SAVED),
};

static const lh_move_t moves[] = {
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = GRAD, .to = GRAD, .group = LH_GROUP_DATA, .reduce = LH_REDUCE_SUM},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_STEP, .what = LH_MOVE_COPY, .from = MASTER, .to = VALUE},
};
/* clang-format on */

struct lh_optimizer {
    const lh_host_t *host;
};

static lh_status_t zero0_open(const lh_host_t *host, LH_UNUSED const void *config,
                              lh_optimizer_t **out)
{
    lh_optimizer_t *o = host->alloc(host, sizeof(*o), 64);
    if (o == NULL) return LH_NO_MEMORY;
    o->host = host;
    *out = o;
    return LH_OK;
}

static void zero0_close(lh_optimizer_t *o)
{
    o->host->release(o->host, o);
}

static lh_status_t zero0_describe(LH_UNUSED lh_optimizer_t *o, LH_UNUSED const lh_train_t *train,
                                  lh_description_t *out)
{
    LH_FILL(lh_description_t, out, .spaces = spaces, .space_size = sizeof(spaces[0]),
            .space_count = sizeof(spaces) / sizeof(spaces[0]), .moves = moves,
            .move_size = sizeof(moves[0]), .move_count = sizeof(moves) / sizeof(moves[0]));
    return LH_OK;
}

static const lh_optimizer_api_t api = {
    .struct_size = sizeof(api),
    .open = zero0_open,
    .close = zero0_close,
    .describe = zero0_describe,
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_OPTIMIZER,
    .name = "zero0",
    .version = "0.1.0",
    .summary = "replicated parameters, gradients and states",
    .optimizer = &api,
};
