/* zero.h - what the ZeRO stages share: their options, and the plugin around two tables. Each stage
 * is a file with its tables; no code of theirs runs inside a step. */
#ifndef PLUGINS_OPTIMIZERS_ZERO_H
#define PLUGINS_OPTIMIZERS_ZERO_H

#include <longhaul/plugin.h>

enum { ZERO_OVER_DATA, ZERO_OVER_SITE, ZERO_CUTS };

typedef struct zero_config {
    uint64_t bucket_bytes;
    uint32_t cut;
} zero_config_t;

#define ZERO_BUCKET                                                   \
    LH_OPTION_BYTES(zero_config_t, bucket_bytes, "bucket", "0", NULL, \
                    "gradients that are summed at a time; 0: chosen by the host")
#define ZERO_CUT                                                                                  \
    LH_OPTION_CHOICE(zero_config_t, cut, "cut", "data", "data|site",                              \
                     "over which ranks data is cut: all replicas, or those of a site, each site " \
                     "holding all of it")

/* clang-format off */
#define ZERO_SPACE(n, what, type, group, life, keep) \
    {.name = n, .holds = LH_HOLDS_##what, .dtype = type, .cut = LH_GROUP_##group, .place = LH_ON_DEVICE, .lives = LH_LIVES_##life, .flags = keep}
#define ZERO_SAVED LH_KEEP_SAVED
#define ZERO_SEEDED (LH_KEEP_SAVED | LH_KEEP_FROM_VALUE)
/* clang-format on */

typedef struct zero_tables {
    const lh_space_t *spaces;
    const lh_move_t *moves;
    uint32_t space_count, move_count;
} zero_tables_t;
#define ZERO_TABLES(s, m)                                        \
    {                                                            \
        s, m, sizeof(s) / sizeof(s[0]), sizeof(m) / sizeof(m[0]) \
    }

/* By ZERO_OVER_*; of the stage that includes this. */
static const zero_tables_t zero_tables[ZERO_CUTS];

struct lh_optimizer {
    const lh_host_t *host;
    zero_config_t how;
};

static lh_status_t zero_open(const lh_host_t *host, const void *config, lh_optimizer_t **out)
{
    lh_optimizer_t *o = host->alloc(host, sizeof(*o), 64);
    if (o == NULL) return LH_NO_MEMORY;
    o->host = host;
    o->how = *(const zero_config_t *)config;
    *out = o;
    return LH_OK;
}

static void zero_close(lh_optimizer_t *o)
{
    o->host->release(o->host, o);
}

static lh_status_t zero_describe(lh_optimizer_t *o, LH_UNUSED const lh_train_t *train,
                                 lh_description_t *out)
{
    const zero_tables_t *t = &zero_tables[o->how.cut];
    LH_FILL(lh_description_t, out, .spaces = t->spaces, .space_size = sizeof(t->spaces[0]),
            .space_count = t->space_count, .moves = t->moves, .move_size = sizeof(t->moves[0]),
            .move_count = t->move_count, .bucket_bytes = o->how.bucket_bytes);
    return LH_OK;
}

static const lh_optimizer_api_t zero_api = {
    .struct_size = sizeof(zero_api),
    .open = zero_open,
    .close = zero_close,
    .describe = zero_describe,
};

#define ZERO_PLUGIN(stage, table, text)                            \
    LH_PLUGIN = {LH_PLUGIN_HEADER,                                 \
                 .kind = LH_KIND_OPTIMIZER,                        \
                 .name = stage,                                    \
                 .version = "0.2.0",                               \
                 .summary = text,                                  \
                 .options = table,                                 \
                 .option_size = sizeof(table[0]),                  \
                 .option_count = sizeof(table) / sizeof(table[0]), \
                 .config_size = sizeof(zero_config_t),             \
                 .optimizer = &zero_api}

#endif
