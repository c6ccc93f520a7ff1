/* half_gradients.c - a third party's optimizer: gradients are kept and summed in BF16, whole on
 * every rank or cut. Stage gathered makes what was cut whole again, which the host refuses. With
 * fickle = yes every second one that a process opens has buckets of another size: ranks that do not
 * fit together. */
#include <longhaul/plugin.h>

enum { VALUE, GRAD, MASTER, STATE, WIDE_GRAD };
enum { STAGE_WHOLE, STAGE_CUT, STAGE_APART, STAGE_GATHERED };

/* clang-format off */
#define SPACE(n, what, type, group, life, keep) \
    {.name = n, .holds = LH_HOLDS_##what, .dtype = type, .cut = LH_GROUP_##group, .place = LH_ON_DEVICE, .lives = LH_LIVES_##life, .flags = keep}
#define SEEDED (LH_KEEP_SAVED | LH_KEEP_FROM_VALUE)

static const lh_space_t whole_spaces[] = {
    SPACE("value", VALUE, 0, SELF, ALWAYS, 0),
    SPACE("grad", GRAD, LH_DTYPE_BF16, SELF, STEP, 0),
    SPACE("master", MASTER, LH_DTYPE_F32, SELF, ALWAYS, SEEDED),
    SPACE("state", STATE, 0, SELF, ALWAYS, LH_KEEP_SAVED),
};
static const lh_move_t whole_moves[] = {
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = GRAD, .to = GRAD, .group = LH_GROUP_DATA, .reduce = LH_REDUCE_SUM},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_STEP, .what = LH_MOVE_COPY, .from = MASTER, .to = VALUE},
};

#define CUT_SPACES(wide) \
    { \
        SPACE("value", VALUE, 0, SELF, ALWAYS, 0), \
        SPACE("grad", GRAD, LH_DTYPE_BF16, SITE, STEP, 0), \
        SPACE("master", MASTER, LH_DTYPE_F32, SITE, ALWAYS, SEEDED), \
        SPACE("state", STATE, 0, SITE, ALWAYS, LH_KEEP_SAVED), \
        SPACE("wide_grad", GRAD, wide, SELF, BUCKET, 0), \
    }
static const lh_space_t cut_spaces[] = CUT_SPACES(LH_DTYPE_BF16), apart_spaces[] = CUT_SPACES(LH_DTYPE_F32);
#define CUT_MOVES \
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = WIDE_GRAD, .to = GRAD, .group = LH_GROUP_SITE, .reduce = LH_REDUCE_SUM, .each_micro = 1}, \
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = GRAD, .to = GRAD, .group = LH_GROUP_ACROSS, .reduce = LH_REDUCE_SUM}, \
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER}, \
    {.when = LH_AT_AFTER_STEP, .what = LH_MOVE_GATHER, .from = MASTER, .to = VALUE, .group = LH_GROUP_SITE}
static const lh_move_t cut_moves[] = {CUT_MOVES};
static const lh_move_t gathered_moves[] = {
    CUT_MOVES,
    {.when = LH_AT_STEP, .what = LH_MOVE_GATHER, .from = GRAD, .to = WIDE_GRAD, .group = LH_GROUP_SITE},
};
/* clang-format on */

typedef struct half_config {
    uint32_t stage;
    bool fickle;
} half_config_t;

struct lh_optimizer {
    const lh_host_t *host;
    uint32_t stage;
    uint64_t bucket_bytes; /* 0: the host chooses */
};

static lh_status_t half_open(const lh_host_t *host, const void *config, lh_optimizer_t **out)
{
    lh_optimizer_t *o = host->alloc(host, sizeof(*o), 64);
    if (o == NULL) return LH_NO_MEMORY;
    const half_config_t *how = config;
    static uint32_t opened;
    *o = (lh_optimizer_t){host, how->stage, how->fickle ? 4096u << opened++ % 2 : 0};
    *out = o;
    return LH_OK;
}

static void half_close(lh_optimizer_t *o)
{
    o->host->release(o->host, o);
}

static lh_status_t half_describe(lh_optimizer_t *o, LH_UNUSED const lh_train_t *train,
                                 lh_description_t *out)
{
    const bool cut = o->stage != STAGE_WHOLE, gathered = o->stage == STAGE_GATHERED;
    LH_FILL(lh_description_t, out,
            .spaces = !cut                      ? whole_spaces
                      : o->stage == STAGE_APART ? apart_spaces
                                                : cut_spaces,
            .space_size = sizeof(lh_space_t), .space_count = cut ? 5 : 4,
            .moves = gathered ? gathered_moves
                     : cut    ? cut_moves
                              : whole_moves,
            .move_size = sizeof(lh_move_t),
            .move_count = gathered ? 5
                          : cut    ? 4
                                   : 3,
            .bucket_bytes = o->bucket_bytes);
    return LH_OK;
}

static const lh_optimizer_api_t half_api = {
    .struct_size = sizeof(half_api),
    .open = half_open,
    .close = half_close,
    .describe = half_describe,
};

static const lh_option_t options[] = {
    LH_OPTION_CHOICE(half_config_t, stage, "stage", "whole", "whole|cut|apart|gathered",
                     "gradients whole, cut inside a site, cut and whole in two dtypes, or cut and "
                     "gathered"),
    LH_OPTION_BOOL(half_config_t, fickle, "fickle", "no", "two sizes of buckets, in turn"),
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_OPTIMIZER,
    .name = "half_gradients",
    .version = "0.1.0",
    .summary = "gradients in BF16",
    LH_TABLE_OPTIONS(options),
    .config_size = sizeof(half_config_t),
    .optimizer = &half_api,
};
