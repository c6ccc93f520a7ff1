/* zero2_plugin.c - gradients are cut too: their whole form lives for a bucket, which is summed as
 * soon as it is made. */
#include "../zero.h"

enum { VALUE, GRAD, MASTER, STATE, WIDE_GRAD };

/* clang-format off */
static const lh_space_t spaces[] = {
    ZERO_SPACE("value", VALUE, 0, SELF, ALWAYS, 0),
    ZERO_SPACE("grad", GRAD, LH_DTYPE_F32, DATA, STEP, 0),
    ZERO_SPACE("master", MASTER, LH_DTYPE_F32, DATA, ALWAYS, ZERO_SEEDED),
    ZERO_SPACE("state", STATE, 0, DATA, ALWAYS, ZERO_SAVED),
    ZERO_SPACE("wide_grad", GRAD, LH_DTYPE_F32, SELF, BUCKET, 0),
};
static const lh_move_t moves[] = {
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = WIDE_GRAD, .to = GRAD, .group = LH_GROUP_DATA, .reduce = LH_REDUCE_SUM, .each_micro = 1},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_AFTER_STEP, .what = LH_MOVE_GATHER, .from = MASTER, .to = VALUE, .group = LH_GROUP_DATA},
};

/* Cut inside a site, the same in every site. */
static const lh_space_t site_spaces[] = {
    ZERO_SPACE("value", VALUE, 0, SELF, ALWAYS, 0),
    ZERO_SPACE("grad", GRAD, LH_DTYPE_F32, SITE, STEP, 0),
    ZERO_SPACE("master", MASTER, LH_DTYPE_F32, SITE, ALWAYS, ZERO_SEEDED),
    ZERO_SPACE("state", STATE, 0, SITE, ALWAYS, ZERO_SAVED),
    ZERO_SPACE("wide_grad", GRAD, LH_DTYPE_F32, SELF, BUCKET, 0),
};
static const lh_move_t site_moves[] = {
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = WIDE_GRAD, .to = GRAD, .group = LH_GROUP_SITE, .reduce = LH_REDUCE_SUM, .each_micro = 1},
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

ZERO_PLUGIN("zero2", options, "gradients cut too: whole only for a bucket");
