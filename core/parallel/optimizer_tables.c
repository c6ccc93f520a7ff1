/* optimizer_tables.c - what an optimizer's tables of spaces and moves come to here.
 *
 * In this order: rows are imported by the sizes that the plugin was built with; each is checked by
 * itself; spaces that are one over so few ranks are joined (roots_find); each kind of data gets its
 * lasting space, and its whole form where that is cut (kinds_find); one group is found that cuts
 * everything (cut_find); moves are given their places in a step (moves_sort). A table that passes
 * is one that the step can run as it stands. */
#include <parallel/optimizer_tables.h>

#include <base/memory.h>
#include <longhaul/dtype.h>
#include <plugin/import.h>

/* The kinds of moves by their words in longhaul/optimizer.h, for sentences. */
static const char *const what_text[] = {
    [LH_MOVE_GATHER] = "GATHER", [LH_MOVE_REDUCE] = "REDUCE", [LH_MOVE_ADD] = "ADD",
    [LH_MOVE_COPY] = "COPY",     [LH_MOVE_DIFFER] = "DIFFER", [LH_MOVE_UPDATE] = "UPDATE",
};

/* More instances than any model has. Who asks for more than that gets all that there are, and sums of the two can't
 * overflow. */
enum { AHEAD_MOST = 1 << 20 };

/* Copies the plugin's rows. Moves are put in the order in which a step runs them: by moment, and
 * within a moment in the order of the table. */
static lh_status_t rows_read(const lh_description_t *d, optimizer_tables_t *t)
{
    if (d->space_count == 0 || d->space_count > TABLE_SPACES || d->move_count > TABLE_MOVES)
        return fail(LH_INVALID, "the optimizer lists %u spaces and %u moves; at most %d and %d",
                    d->space_count, d->move_count, TABLE_SPACES, TABLE_MOVES);
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < d->space_count; i++)
        status = import_row(&t->spaces[i], sizeof(t->spaces[i]), d->spaces, d->space_size, i,
                            offsetof_end_(&t->spaces[i], inside), "the optimizer's spaces");
    t->space_count = d->space_count;
    for (uint32_t when = LH_AT_INSTANCE; when <= LH_AT_AFTER_STEP; when++) {
        for (uint32_t i = 0; status == LH_OK && i < d->move_count; i++) {
            lh_move_t move;
            status = import_row(&move, sizeof(move), d->moves, d->move_size, i,
                                offsetof_end_(&move, keep), "the optimizer's moves");
            if (status != LH_OK || move.when != when) continue;
            if (move.ahead > AHEAD_MOST) move.ahead = AHEAD_MOST;
            t->moves[t->move_count++] = move;
        }
    }
    if (status == LH_OK && t->move_count != d->move_count)
        return fail(LH_INVALID, "%u of the optimizer's moves name a moment that does not exist",
                    d->move_count - t->move_count);
    return status;
}

/* The core decides what a checkpoint holds and what starts as a copy of the values; a table must
 * say the same. */
static lh_status_t kept_check(const lh_space_t *s)
{
    const bool saved = s->holds == LH_HOLDS_MASTER || s->holds == LH_HOLDS_STATE;
    const uint32_t expected = (saved ? LH_KEEP_SAVED : 0u) |
                              (s->holds == LH_HOLDS_MASTER ? LH_KEEP_FROM_VALUE : 0u);
    if (s->flags == expected) return LH_OK;
    return fail(LH_UNSUPPORTED,
                "space '%s' has flags %u; built is %u for what it holds (1: saved, 2: starts as a "
                "copy of the value)",
                s->name, s->flags, expected);
}

/* Sums are of floats, and of no dtype there is no memory. */
static bool sums_fit(lh_dtype_t dtype)
{
    return dtype == 0 || dtype == LH_DTYPE_F32 || dtype == LH_DTYPE_BF16 || dtype == LH_DTYPE_F16 ||
           dtype == LH_DTYPE_F64;
}

/* What a space may ask for, whatever the other rows say. */
static lh_status_t space_check(const lh_space_t *s)
{
    if (s->holds < LH_HOLDS_VALUE || s->holds > LH_HOLDS_STATE)
        return fail(LH_UNSUPPORTED,
                    "space '%s' holds kind %u; built are value, grad, master, state", s->name,
                    s->holds);
    if (s->place != LH_ON_DEVICE)
        return fail(LH_UNSUPPORTED, "space '%s' does not lie on the device; offload is not built",
                    s->name);
    if (s->rule_slot != 0)
        return fail(LH_UNSUPPORTED, "space '%s' is of an outer rule, which is not built", s->name);
    if (s->cut >= LH_GROUPS)
        return fail(LH_INVALID, "space '%s' is cut by group %u; expected 0 to %d", s->name, s->cut,
                    LH_GROUPS - 1);
    const bool value = s->holds == LH_HOLDS_VALUE;
    if (s->dtype != 0 && (value || s->holds == LH_HOLDS_STATE))
        return fail(LH_UNSUPPORTED, "space '%s' holds %s; built is what %s (dtype 0)", s->name,
                    lh_dtype_name(s->dtype),
                    value ? "the job computes in" : "the rule's states are made of");
    if (!sums_fit(s->dtype))
        return fail(LH_UNSUPPORTED,
                    "space '%s' has dtype %u, %s; built are F32, BF16, F16, F64 and 0", s->name,
                    s->dtype, lh_dtype_name(s->dtype));
    return kept_check(s);
}

/* Ranks in a group LH_GROUP_*, the most of any family of parameters; 0: there is no such group, as
 * sites differ in size. */
static uint32_t group_size(const lh_train_t *train, uint32_t group)
{
    lh_assert(group < LH_GROUPS);
    uint32_t most = train->family_count == 0 ? 1 : 0;
    for (uint32_t f = 0; f < train->family_count; f++)
        if (train->families[f].size[group] > most) most = train->families[f].size[group];
    return most;
}

/* What a move may ask for, whatever the other moves say: it runs whole, in every step, and carries what is
 * stored; a sum of gradients may cross borders as F32 or BF16 whatever that is. */
static lh_status_t move_check(const optimizer_tables_t *t, const lh_move_t *m,
                              const lh_train_t *train)
{
    if (m->what < LH_MOVE_GATHER || m->what > LH_MOVE_UPDATE)
        return fail(LH_INVALID, "the optimizer lists a move of kind %u; expected 1 to 6", m->what);
    const char *what = what_text[m->what];
    if (m->from >= t->space_count || m->to >= t->space_count || m->group >= LH_GROUPS)
        return fail(LH_INVALID, "move %s names space %u, space %u, group %u; there are %u and %d",
                    what, m->from, m->to, m->group, t->space_count, LH_GROUPS);
    const char *from = t->spaces[m->from].name, *to = t->spaces[m->to].name;
    if ((m->what == LH_MOVE_GATHER || m->what == LH_MOVE_REDUCE) &&
        group_size(train, m->group) == 0)
        return fail(LH_INVALID,
                    "move %s from '%s' to '%s' runs across sites (across machines, where "
                    "[parallel] inside = node), which must have equally many ranks for it",
                    what, from, to);
    if (m->every > 1 || m->stagger != 0 || m->late != 0 || m->keep != 0 || m->rule_slot != 0)
        return fail(
            LH_UNSUPPORTED,
            "move %s from '%s' to '%s' does not run whole in every step, which is not built", what,
            from, to);
    if (m->what == LH_MOVE_ADD || m->what == LH_MOVE_DIFFER)
        return fail(LH_UNSUPPORTED, "move %s from '%s' to '%s' is not built", what, from, to);
    const bool crosses = m->wire == LH_DTYPE_F32 || m->wire == LH_DTYPE_BF16;
    if (m->what == LH_MOVE_REDUCE && m->wire != 0 && !crosses)
        return fail(LH_UNSUPPORTED,
                    "move %s from '%s' to '%s' travels as %s between sites; built are F32, BF16 "
                    "and 0, as the job says",
                    what, from, to, lh_dtype_name(m->wire));
    if (m->what != LH_MOVE_REDUCE && m->wire != 0)
        return fail(LH_UNSUPPORTED,
                    "move %s from '%s' to '%s' travels as %s between sites; built is what is "
                    "stored (wire 0)",
                    what, from, to, lh_dtype_name(m->wire));
    return LH_OK;
}

/* The other kinds of moves need no other rank. */
static bool moves_between_ranks(const lh_move_t *m)
{
    return m->what == LH_MOVE_GATHER || m->what == LH_MOVE_REDUCE;
}

/* A sum or a gather between two spaces of a kind is no work over one rank: the two spaces are
 * joined, and lie in the memory of the space that the move goes to. */
static void roots_find(optimizer_tables_t *t, const lh_train_t *train)
{
    for (uint32_t i = 0; i < t->space_count; i++) {
        t->root[i] = i;
        if (group_size(train, t->spaces[i].cut) <= 1) t->spaces[i].cut = LH_GROUP_SELF;
    }
    for (uint32_t i = 0; i < t->move_count; i++) {
        const lh_move_t *m = &t->moves[i];
        if (!moves_between_ranks(m) || group_size(train, m->group) > 1 ||
            t->spaces[m->from].holds != t->spaces[m->to].holds)
            continue;
        const uint32_t old = t->root[m->from], kept = t->root[m->to];
        for (uint32_t s = 0; s < t->space_count; s++)
            if (t->root[s] == old) t->root[s] = kept;
    }
}

bool optimizer_tables_is_cut(const optimizer_tables_t *t, uint32_t space)
{
    lh_assert(space <= TABLE_SPACES);
    return space != TABLE_SPACES && t->spaces[space].cut != LH_GROUP_SELF;
}

/* Whether `wide` is the whole form of `cut`: two spaces of a kind, and a move between them that
 * sums into the cut one or gathers from it. */
static bool is_wide(const optimizer_tables_t *t, uint32_t wide, uint32_t cut)
{
    if (optimizer_tables_is_cut(t, wide) || !optimizer_tables_is_cut(t, cut)) return false;
    for (uint32_t i = 0; i < t->move_count; i++) {
        const lh_move_t *m = &t->moves[i];
        if (m->what == LH_MOVE_REDUCE && m->from == wide && m->to == cut) return true;
        if (m->what == LH_MOVE_GATHER && m->from == cut && m->to == wide) return true;
    }
    return false;
}

/* Gives a space to its kind: as the kind's lasting space or, where the lasting one is cut, as its
 * whole form. The table may list the two in either order. wide: NULL where the kind has no whole
 * form. */
static lh_status_t kind_add(optimizer_tables_t *t, uint32_t space, uint32_t *place, uint32_t *wide)
{
    if (*place == TABLE_SPACES) {
        *place = space;
        return LH_OK;
    }
    const uint32_t before = *place;
    if (wide != NULL && *wide == TABLE_SPACES && is_wide(t, space, before)) {
        *wide = space;
        return LH_OK;
    }
    if (wide != NULL && *wide == TABLE_SPACES && is_wide(t, before, space)) {
        *wide = before;
        *place = space;
        return LH_OK;
    }
    return fail(
        LH_UNSUPPORTED,
        "spaces '%s' and '%s' hold the same kind and no move joins them, which is not built",
        t->spaces[before].name, t->spaces[space].name);
}

/* The dtype of a space of gradients, which is F32 where the table names none. */
static lh_dtype_t gradients_as(const lh_space_t *s)
{
    return s->dtype != 0 ? s->dtype : LH_DTYPE_F32;
}

/* Whole gradients and the cut ones that they are summed into must have one dtype. */
static lh_status_t wide_grad_check(const optimizer_tables_t *t)
{
    if (t->wide_grad == TABLE_SPACES) return LH_OK;
    const lh_space_t *cut = &t->spaces[t->grad], *wide = &t->spaces[t->wide_grad];
    if (gradients_as(cut) == gradients_as(wide)) return LH_OK;
    return fail(LH_UNSUPPORTED,
                "spaces '%s' and '%s' hold gradients as %s and %s; built is one dtype for both",
                cut->name, wide->name, lh_dtype_name(gradients_as(cut)),
                lh_dtype_name(gradients_as(wide)));
}

/* The lasting space of each kind, and its whole form where one is listed. Joined spaces count as
 * their root. Every table needs values and gradients; without a master the value is changed itself,
 * and a rule may have no states. */
static lh_status_t kinds_find(optimizer_tables_t *t)
{
    struct {
        uint32_t *place, *wide;
    } const kinds[] = {[LH_HOLDS_VALUE] = {&t->value, &t->wide_value},
                       [LH_HOLDS_GRAD] = {&t->grad, &t->wide_grad},
                       [LH_HOLDS_MASTER] = {&t->master, NULL},
                       [LH_HOLDS_STATE] = {&t->state, NULL}};
    t->value = t->grad = t->master = t->state = t->wide_grad = t->wide_value = TABLE_SPACES;
    for (uint32_t i = 0; i < t->space_count; i++) {
        if (t->root[i] != i) continue;
        const uint32_t holds = t->spaces[i].holds;
        const lh_status_t status = kind_add(t, i, kinds[holds].place, kinds[holds].wide);
        if (status != LH_OK) return status;
    }
    if (t->value == TABLE_SPACES || t->grad == TABLE_SPACES)
        return fail(LH_INVALID, "the optimizer lists no space for the %s",
                    t->value == TABLE_SPACES ? "value" : "gradient");
    t->grad_dtype = t->spaces[t->grad].dtype;
    if (t->master != TABLE_SPACES) t->master_dtype = t->spaces[t->master].dtype;
    return wide_grad_check(t);
}

/* Everything that is cut is cut by one group, so that an element's gradient, master and states meet
 * on one rank. What may be cut: the master with the states (zero1), the gradients too (zero2), the
 * values too (zero3). */
static lh_status_t cut_find(optimizer_tables_t *t)
{
    const uint32_t lasting[] = {t->value, t->grad, t->master, t->state};
    t->cut = LH_GROUP_SELF;
    for (size_t i = 0; i < sizeof(lasting) / sizeof(lasting[0]); i++) {
        if (!optimizer_tables_is_cut(t, lasting[i])) continue;
        const lh_space_t *s = &t->spaces[lasting[i]];
        if (s->cut == LH_GROUP_ACROSS || (t->cut != LH_GROUP_SELF && t->cut != s->cut))
            return fail(LH_UNSUPPORTED,
                        "space '%s' is cut by group %u; built is one cut for all, by DATA or SITE",
                        s->name, s->cut);
        t->cut = s->cut;
    }
    const bool rest = optimizer_tables_is_cut(t, t->master) ||
                      (t->master == TABLE_SPACES && optimizer_tables_is_cut(t, t->value));
    const bool states = optimizer_tables_is_cut(t, t->state);
    if (t->state != TABLE_SPACES && rest != states)
        return fail(LH_UNSUPPORTED, "the optimizer cuts %s but not %s, which is not built",
                    rest ? "the master" : "the states", rest ? "the states" : "the master");
    if (optimizer_tables_is_cut(t, t->grad) && !rest)
        return fail(LH_UNSUPPORTED,
                    "the optimizer cuts the gradients but not the master, which is not built");
    return LH_OK;
}

const lh_move_t *optimizer_tables_move(const optimizer_tables_t *t, uint32_t move)
{
    lh_assert(move <= TABLE_MOVES);
    return move == TABLE_MOVES ? NULL : &t->moves[move];
}

/* Gives a move one of the places in a step, each of which holds at most one move. */
static lh_status_t move_take(const optimizer_tables_t *t, uint32_t move, uint32_t *place)
{
    if (*place != TABLE_MOVES) {
        const lh_move_t *m = &t->moves[move], *before = &t->moves[*place];
        return fail(LH_UNSUPPORTED, "moves from '%s' and '%s' to '%s' and '%s' do the same work",
                    t->spaces[before->from].name, t->spaces[m->from].name,
                    t->spaces[before->to].name, t->spaces[m->to].name);
    }
    *place = move;
    return LH_OK;
}

/* The places are: gradients summed over a group (sum), the result of that sum summed over sites
 * (across), new values gathered after the update (value_gather), an instance's values gathered
 * before the instance (instance). */
static lh_status_t move_sort(optimizer_tables_t *t, uint32_t index)
{
    const lh_move_t *m = &t->moves[index];
    const uint32_t from = t->root[m->from], to = t->root[m->to];
    const uint32_t summed = t->wide_grad != TABLE_SPACES ? t->wide_grad : t->grad;
    if (m->what == LH_MOVE_REDUCE && m->when == LH_AT_GRAD && m->reduce == LH_REDUCE_SUM) {
        if (from == t->grad && to == t->grad && m->group == LH_GROUP_ACROSS)
            return move_take(t, index, &t->across);
        if (from == summed && to == t->grad) return move_take(t, index, &t->sum);
    }
    if (m->what == LH_MOVE_GATHER && m->when == LH_AT_AFTER_STEP && to == t->value &&
        (from == t->master || from == t->value))
        return move_take(t, index, &t->value_gather);
    if (m->what == LH_MOVE_GATHER && m->when == LH_AT_INSTANCE && from == t->value &&
        to == t->wide_value)
        return move_take(t, index, &t->instance);
    return fail(LH_UNSUPPORTED,
                "move %s from '%s' to '%s' over several ranks is not built there; expected sums of "
                "gradients and gathers of values",
                what_text[m->what], t->spaces[m->from].name, t->spaces[m->to].name);
}

/* All moves together must leave the ranks with equal values: each gradient is summed over every
 * rank once, what is cut is summed into its owners, and what was updated in slices is gathered
 * again. */
static lh_status_t moves_sort(optimizer_tables_t *t, const lh_train_t *train)
{
    lh_status_t status = LH_OK;
    t->sum = t->across = t->value_gather = t->instance = TABLE_MOVES;
    for (uint32_t i = 0; status == LH_OK && i < t->move_count; i++)
        if (moves_between_ranks(&t->moves[i]) && group_size(train, t->moves[i].group) > 1)
            status = move_sort(t, i);
    if (status != LH_OK) return status;

    const uint32_t ranks = group_size(train, LH_GROUP_DATA);
    const lh_move_t *sum = optimizer_tables_move(t, t->sum),
                    *across = optimizer_tables_move(t, t->across);
    uint32_t summed = 1;
    if (sum != NULL) summed *= group_size(train, sum->group);
    if (across != NULL) summed *= group_size(train, across->group);
    if (summed != ranks)
        return fail(LH_UNSUPPORTED,
                    "the optimizer sums gradients over %u of %u ranks; replicas that drift apart "
                    "are not built",
                    summed, ranks);
    if (optimizer_tables_is_cut(t, t->grad) &&
        (sum == NULL || sum->group != t->spaces[t->grad].cut))
        return fail(LH_INVALID, "gradients are cut by group %u and summed over group %u",
                    t->spaces[t->grad].cut, sum == NULL ? LH_GROUP_SELF : (uint32_t)sum->group);
    const lh_move_t *gather = optimizer_tables_move(
        t, optimizer_tables_is_cut(t, t->value) ? t->instance : t->value_gather);
    if (t->cut != LH_GROUP_SELF && (gather == NULL || gather->group != t->cut))
        return fail(LH_INVALID, "parameters are updated in slices and never gathered over group %u",
                    t->cut);
    /* Where nothing is cut the sum over all ranks does the work of both: its collective goes
     * through sites by itself (comm/collective.h). */
    if (t->cut == LH_GROUP_SELF) t->across = TABLE_MOVES;
    return LH_OK;
}

lh_status_t optimizer_tables_read(const lh_optimizer_api_t *api, lh_optimizer_t *optimizer,
                                  const lh_train_t *train, optimizer_tables_t *out)
{
    lh_description_t d = {.struct_size = sizeof(d)};
    lh_status_t status = api->describe(optimizer, train, &d);
    if (status != LH_OK) return status;
    if (d.outer_rule != NULL)
        return fail(LH_UNSUPPORTED, "the optimizer has an outer rule, which is not built");

    *out = (optimizer_tables_t){.bucket_bytes = d.bucket_bytes};
    status = rows_read(&d, out);
    for (uint32_t i = 0; status == LH_OK && i < out->space_count; i++)
        status = space_check(&out->spaces[i]);
    for (uint32_t i = 0; status == LH_OK && i < out->move_count; i++)
        status = move_check(out, &out->moves[i], train);
    if (status != LH_OK) return status;
    roots_find(out, train);
    status = kinds_find(out);
    if (status == LH_OK) status = cut_find(out);
    return status == LH_OK ? moves_sort(out, train) : status;
}

const optimizer_group_t *optimizer_group_of(const optimizer_how_t *how, uint32_t parameter)
{
    const uint32_t group = how->group_of != NULL ? how->group_of[parameter] : 0;
    lh_assert(group < how->group_count);
    return &how->groups[group];
}

const lh_rule_t *optimizer_rule_of(const optimizer_how_t *how, uint32_t parameter)
{
    const uint32_t rule = optimizer_group_of(how, parameter)->rule;
    lh_assert(rule < how->rule_count);
    return how->rules[rule].rule;
}

/* Groups and rules come from the caller, and are indices into each other. */
static lh_status_t optimizer_how_check(const optimizer_how_t *how, const parameters_t *parameters)
{
    if (how->group_count == 0 || how->rule_count == 0)
        return fail(LH_INVALID, "the optimizer step has %u groups and %u rules; at least 1 of each",
                    how->group_count, how->rule_count);
    for (uint32_t i = 0; i < how->group_count; i++)
        if (how->groups[i].rule >= how->rule_count)
            return fail(LH_INVALID, "group %u names rule %u; there are %u", i, how->groups[i].rule,
                        how->rule_count);
    for (uint32_t i = 0; how->group_of != NULL && i < parameters->count; i++)
        if (how->group_of[i] >= how->group_count)
            return fail(LH_INVALID, "parameter '%s' is in group %u; there are %u",
                        parameters->items[i].name, how->group_of[i], how->group_count);
    return LH_OK;
}

/* ---- what the optimizer's description may depend on ---- */

/* What the optimizer is shown while it describes itself; `train` points at the other fields. */
typedef struct train_tables {
    lh_train_t train;
    lh_family_t family;
    lh_train_param_t *params;
    lh_rule_t *rules;
} train_tables_t;

/* A parameter as the optimizer sees it. Block 0 is the embedding, 1 to `blocks` are the model's
 * blocks, and blocks + 1 is the head. */
static lh_train_param_t train_param(const optimizer_how_t *how, const parameters_t *all, uint32_t i)
{
    const parameter_t *p = &all->items[i];
    lh_train_param_t row = {
        .name = p->name,
        .rows = p->rows,
        .columns = p->columns,
        .logical_rows = p->rows,
        .logical_columns = p->columns,
        .block = p->part == LH_PART_EMBED  ? 0
                 : p->part == LH_PART_HEAD ? all->blocks + 1
                                           : p->block + 1,
        .rate_group = how->group_of != NULL ? how->group_of[i] : 0,
        .rule = optimizer_group_of(how, i)->rule,
    };
    if ((p->row->flags & LH_PARAM_NO_DECAY) != 0) row.flags |= LH_TRAIN_NO_DECAY;
    if (p->storage != i) row.flags |= LH_TRAIN_TIED;
    return row;
}

static void train_tables_free(train_tables_t *t)
{
    mem_free(t->params);
    mem_free(t->rules);
}

/* Sizes of the groups and this rank's place in each; without a world every group has one rank. All
 * parameters are of one family. */
static lh_status_t family_make(const world_t *world, lh_family_t *f)
{
    for (uint32_t g = 0; g < LH_GROUPS; g++) {
        group_t *group;
        f->size[g] = 1;
        if (world == NULL || g == LH_GROUP_SELF) continue;
        /* Sites (or nodes) of unequal size have no group across: its size stays 0. */
        f->size[g] = 0;
        if (g == LH_GROUP_ACROSS && !world_blocks_equal(world)) continue;
        const lh_status_t status = world_group_new(world, g, &group);
        if (status != LH_OK) return status;
        f->size[g] = group->size;
        f->rank[g] = group->self;
        world_group_free(group);
    }
    return LH_OK;
}

/* Fills t, whose lists the caller frees with train_tables_free, on failure too. */
static lh_status_t train_tables_make(const optimizer_how_t *how, const parameters_t *parameters,
                                     const bool *frozen, lh_dtype_t compute, train_tables_t *t)
{
    const uint32_t count = parameters->count;
    t->params = mem_array(count, sizeof(*t->params));
    t->rules = mem_array(how->rule_count, sizeof(*t->rules));
    if (t->params == NULL || t->rules == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        t->params[i] = train_param(how, parameters, i);
        t->params[i].dtype = compute;
        if (frozen[i]) t->params[i].flags |= LH_TRAIN_FROZEN;
    }
    for (uint32_t i = 0; i < how->rule_count; i++)
        t->rules[i] = *how->rules[i].rule;
    const lh_status_t status = family_make(how->world, &t->family);
    if (status != LH_OK) return status;
    t->train = (lh_train_t){.struct_size = sizeof(t->train),
                            .blocks = parameters->blocks,
                            .rounds = how->rounds,
                            .param_size = sizeof(t->params[0]),
                            .param_count = count,
                            .family_size = sizeof(t->family),
                            .family_count = 1,
                            .rule_size = sizeof(t->rules[0]),
                            .rule_count = how->rule_count,
                            .params = t->params,
                            .families = &t->family,
                            .rules = t->rules};
    return LH_OK;
}

lh_status_t optimizer_tables_of(const optimizer_how_t *how, const parameters_t *parameters,
                                const bool *frozen, lh_dtype_t compute, optimizer_tables_t *out)
{
    train_tables_t t = {0};
    lh_status_t status = optimizer_how_check(how, parameters);
    if (status != LH_OK) return status;
    status = train_tables_make(how, parameters, frozen, compute, &t);
    if (status == LH_OK) status = optimizer_tables_read(how->api, how->optimizer, &t.train, out);
    train_tables_free(&t);
    return status;
}
