/* zero3_plugin.c - the values are cut too: a block's are gathered ahead of each instance and dropped
 * after it. */
#include "../zero.h"

enum { VALUE, GRAD, MASTER, STATE, WIDE_GRAD, WIDE_VALUE };

/* clang-format off */
static const lh_space_t spaces[] = {
    ZERO_SPACE("value", VALUE, 0, DATA, ALWAYS, 0),
    ZERO_SPACE("grad", GRAD, LH_DTYPE_F32, DATA, STEP, 0),
    ZERO_SPACE("master", MASTER, LH_DTYPE_F32, DATA, ALWAYS, ZERO_SEEDED),
    ZERO_SPACE("state", STATE, 0, DATA, ALWAYS, ZERO_SAVED),
    ZERO_SPACE("wide_grad", GRAD, LH_DTYPE_F32, SELF, BUCKET, 0),
    ZERO_SPACE("wide_value", VALUE, 0, SELF, INSTANCE, 0),
};
static const lh_move_t moves[] = {
    {.when = LH_AT_INSTANCE, .what = LH_MOVE_GATHER, .from = VALUE, .to = WIDE_VALUE, .group = LH_GROUP_DATA, .ahead = 1},
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = WIDE_GRAD, .to = GRAD, .group = LH_GROUP_DATA, .reduce = LH_REDUCE_SUM, .each_micro = 1},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_STEP, .what = LH_MOVE_COPY, .from = MASTER, .to = VALUE},
};

/* Cut inside a site, the same in every site. */
static const lh_space_t site_spaces[] = {
    ZERO_SPACE("value", VALUE, 0, SITE, ALWAYS, 0),
    ZERO_SPACE("grad", GRAD, LH_DTYPE_F32, SITE, STEP, 0),
    ZERO_SPACE("master", MASTER, LH_DTYPE_F32, SITE, ALWAYS, ZERO_SEEDED),
    ZERO_SPACE("state", STATE, 0, SITE, ALWAYS, ZERO_SAVED),
    ZERO_SPACE("wide_grad", GRAD, LH_DTYPE_F32, SELF, BUCKET, 0),
    ZERO_SPACE("wide_value", VALUE, 0, SELF, INSTANCE, 0),
};
static const lh_move_t site_moves[] = {
    {.when = LH_AT_INSTANCE, .what = LH_MOVE_GATHER, .from = VALUE, .to = WIDE_VALUE, .group = LH_GROUP_SITE, .ahead = 1},
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = WIDE_GRAD, .to = GRAD, .group = LH_GROUP_SITE, .reduce = LH_REDUCE_SUM, .each_micro = 1},
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = GRAD, .to = GRAD, .group = LH_GROUP_ACROSS, .reduce = LH_REDUCE_SUM},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_STEP, .what = LH_MOVE_COPY, .from = MASTER, .to = VALUE},
};
/* clang-format on */

static const zero_tables_t zero_tables[ZERO_CUTS] = {
    [ZERO_OVER_DATA] = ZERO_TABLES(spaces, moves),
    [ZERO_OVER_SITE] = ZERO_TABLES(site_spaces, site_moves),
};
static const lh_option_t options[] = {ZERO_BUCKET, ZERO_CUT};

ZERO_PLUGIN("zero3", options, "parameters cut too: gathered block by block");
