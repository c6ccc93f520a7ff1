/* zero0_plugin.c - every rank holds everything: gradients are summed over all replicas, then each
 * replica makes the same update. */
#include "../zero.h"

enum { VALUE, GRAD, MASTER, STATE };

/* clang-format off */
static const lh_space_t spaces[] = {
    ZERO_SPACE("value", VALUE, 0, SELF, ALWAYS, 0),
    ZERO_SPACE("grad", GRAD, LH_DTYPE_F32, SELF, STEP, 0),
    ZERO_SPACE("master", MASTER, LH_DTYPE_F32, SELF, ALWAYS, ZERO_SEEDED),
    ZERO_SPACE("state", STATE, 0, SELF, ALWAYS, ZERO_SAVED),
};
static const lh_move_t moves[] = {
    {.when = LH_AT_GRAD, .what = LH_MOVE_REDUCE, .from = GRAD, .to = GRAD, .group = LH_GROUP_DATA, .reduce = LH_REDUCE_SUM},
    {.when = LH_AT_STEP, .what = LH_MOVE_UPDATE, .from = GRAD, .to = MASTER},
    {.when = LH_AT_STEP, .what = LH_MOVE_COPY, .from = MASTER, .to = VALUE},
};
/* clang-format on */

static const zero_tables_t zero_tables[ZERO_CUTS] = {[ZERO_OVER_DATA] = ZERO_TABLES(spaces, moves)};
static const lh_option_t options[] = {ZERO_BUCKET};

ZERO_PLUGIN("zero0", options, "replicated parameters, gradients and states");
