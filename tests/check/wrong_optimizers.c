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

static lh_status_t describe_by_rules(lh_optimizer_t *o, const lh_train_t *train,
                                     lh_description_t *out)
{
    for (uint32_t i = 0; i < train->param_count; i++)
        if (train->rules[train->params[i].rule].grain == 0) return LH_INVALID;
    return right_plugin.optimizer->describe(o, train, out);
}

/* Right: a parameter's rule is one of those that train.h tells of. */
WRONG(a_look_at_the_rules)
{
    optimizer.describe = describe_by_rules;
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

static uint64_t told[MOST];
static uint32_t told_count, told_ranks;

static lh_status_t describe_and_keep(lh_optimizer_t *o, const lh_train_t *train,
                                     lh_description_t *out)
{
    told_count = train->param_count < MOST ? train->param_count : MOST;
    told_ranks = train->families[0].size[LH_GROUP_DATA];
    for (uint32_t i = 0; i < told_count; i++)
        told[i] = train->params[i].rows * train->params[i].columns;
    return right_plugin.optimizer->describe(o, train, out);
}

static lh_status_t slice_as_told(lh_optimizer_t *o, uint32_t space, uint32_t param, uint32_t rank,
                                 lh_slice_t *out)
{
    (void)o, (void)space;
    if (param >= told_count || rank >= told_ranks) return LH_INVALID;
    const uint64_t n = told[param], units = (n + LH_NORM_BLOCK - 1) / LH_NORM_BLOCK;
    const uint64_t begin = units * rank / told_ranks * LH_NORM_BLOCK,
                   end = units * (rank + 1) / told_ranks * LH_NORM_BLOCK;
    *out = (lh_slice_t){begin < n ? begin : n, end < n ? end : n};
    return LH_OK;
}

/* Right: it slices the parameters that describe() was told of. */
WRONG(slices_as_told)
{
    optimizer.describe = describe_and_keep;
    optimizer.slice = slice_as_told;
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
