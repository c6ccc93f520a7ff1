/* zero1_plugin.c - master weights and states are cut over the replicas: each sums the gradients of
 * its own share, updates it, and all gather the new values. */
#include "../zero.h"

enum { VALUE, GRAD, MASTER, STATE, WIDE_GRAD };

/* clang-format off */
static const lh_space_t spaces[] = {
    ZERO_SPACE("value", VALUE, 0, SELF, ALWAYS, 0),
    {.name = "grad", .holds = LH_HOLDS_GRAD, .dtype = LH_DTYPE_F32, .cut = LH_GROUP_DATA, .place = LH_ON_DEVICE, .lives = LH_LIVES_STEP, .inside = 1 + WIDE_GRAD},
    ZERO_SPACE("master", MASTER, LH_DTYPE_F32, DATA, ALWAYS, ZERO_SEEDED),
    ZERO_SPACE("state", STATE, 0, DATA, ALWAYS, ZERO_SAVED),
    ZERO_SPACE("wide_grad", GRAD, LH_DTYPE_F32, SELF, STEP, 0),
};
static const lh_move_t moves[] = {
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = WIDE_GRAD, .to = GRAD, .group = LH_GROUP_DATA, .reduce = LH_REDUCE_SUM},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_AFTER_STEP, .what = LH_MOVE_GATHER, .from = MASTER, .to = VALUE, .group = LH_GROUP_DATA},
};

/* Cut inside a site, the same in every site. */
static const lh_space_t site_spaces[] = {
    ZERO_SPACE("value", VALUE, 0, SELF, ALWAYS, 0),
    {.name = "grad", .holds = LH_HOLDS_GRAD, .dtype = LH_DTYPE_F32, .cut = LH_GROUP_SITE, .place = LH_ON_DEVICE, .lives = LH_LIVES_STEP, .inside = 1 + WIDE_GRAD},
    ZERO_SPACE("master", MASTER, LH_DTYPE_F32, SITE, ALWAYS, ZERO_SEEDED),
    ZERO_SPACE("state", STATE, 0, SITE, ALWAYS, ZERO_SAVED),
    ZERO_SPACE("wide_grad", GRAD, LH_DTYPE_F32, SELF, STEP, 0),
};
static const lh_move_t site_moves[] = {
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = WIDE_GRAD, .to = GRAD, .group = LH_GROUP_SITE, .reduce = LH_REDUCE_SUM},
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = GRAD, .to = GRAD, .group = LH_GROUP_ACROSS, .reduce = LH_REDUCE_SUM},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_AFTER_STEP, .what = LH_MOVE_GATHER, .from = MASTER, .to = VALUE, .group = LH_GROUP_SITE},
};
/* clang-format on */

static const zero_tables_t zero_tables[ZERO_CUTS] = {
    [ZERO_OVER_DATA] = ZERO_TABLES(spaces, moves),
    [ZERO_OVER_SITE] = ZERO_TABLES(site_spaces, site_moves),
};
static const lh_option_t options[] = {ZERO_BUCKET, ZERO_CUT};

ZERO_PLUGIN("zero1", options, "master weights and states cut over the replicas");
