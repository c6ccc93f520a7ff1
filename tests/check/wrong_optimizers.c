/* wrong_optimizers.c - optimizers that are wrong in one thing. */
#include "wrong_plugin.h"

static lh_space_t spaces[MOST];
static lh_move_t moves[MOST];

static void copy_description(lh_description_t *d)
{
    memcpy(spaces, d->spaces, d->space_count * sizeof(spaces[0]));
    memcpy(moves, d->moves, d->move_count * sizeof(moves[0]));
    d->spaces = spaces;
    d->moves = moves;
}

static lh_status_t describe_what_is_not_built(lh_optimizer_t *o, const lh_train_t *train,
                                              lh_description_t *out)
{
    const lh_status_t status = right_plugin.optimizer->describe(o, train, out);
    copy_description(out);
    moves[0].when = 77;
    return status;
}

WRONG(a_moment_that_is_none)
{
    optimizer.describe = describe_what_is_not_built;
}

static lh_status_t slice_all(lh_optimizer_t *o, uint32_t space, uint32_t param, uint32_t rank,
                             lh_slice_t *out)
{
    (void)o, (void)space, (void)param, (void)rank;
    *out = (lh_slice_t){0, 24};
    return LH_OK;
}

WRONG(slices_that_overlap)
{
    optimizer.slice = slice_all;
}

static bool is_alone(const lh_train_t *train)
{
    return train->families[0].size[LH_GROUP_DATA] == 1;
}

static lh_status_t describe_without_copy(lh_optimizer_t *o, const lh_train_t *train,
                                         lh_description_t *out)
{
    const lh_status_t status = right_plugin.optimizer->describe(o, train, out);
    copy_description(out);
    if (is_alone(train)) out->move_count--; /* the last copies the master's values */
    return status;
}

WRONG(values_that_stay)
{
    optimizer.describe = describe_without_copy;
}
