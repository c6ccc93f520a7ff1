/* optimizer_tables.c - what an optimizer's tables of spaces and moves come to here. */
#include <parallel/optimizer_tables.h>

#include <plugin/abi.h>

static const char *const what_text[] = {
    [LH_MOVE_GATHER] = "GATHER", [LH_MOVE_REDUCE] = "REDUCE", [LH_MOVE_ADD] = "ADD",
    [LH_MOVE_COPY] = "COPY",     [LH_MOVE_DIFFER] = "DIFFER", [LH_MOVE_UPDATE] = "UPDATE",
};

static lh_status_t rows_read(const lh_description_t *d, optimizer_tables_t *t)
{
    if (d->space_count == 0 || d->space_count > TABLE_SPACES || d->move_count > TABLE_MOVES)
        return fail(LH_INVALID, "the optimizer lists %u spaces and %u moves; at most %d and %d",
                    d->space_count, d->move_count, TABLE_SPACES, TABLE_MOVES);
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < d->space_count; i++)
        status = abi_import_row(&t->spaces[i], sizeof(t->spaces[i]), d->spaces, d->space_size, i,
                                offsetof_end_(&t->spaces[i], inside), "the optimizer's spaces");
    t->space_count = d->space_count;
    /* Moves run by moment, within one in the order of the table. */
    for (uint32_t when = LH_AT_VISIT; when <= LH_AT_AFTER_STEP; when++) {
        for (uint32_t i = 0; status == LH_OK && i < d->move_count; i++) {
            lh_move_t move;
            status = abi_import_row(&move, sizeof(move), d->moves, d->move_size, i,
                                    offsetof_end_(&move, keep), "the optimizer's moves");
            if (status == LH_OK && move.when == when) t->moves[t->move_count++] = move;
        }
    }
    if (status == LH_OK && t->move_count != d->move_count)
        return fail(LH_INVALID, "%u of the optimizer's moves name a moment that does not exist",
                    d->move_count - t->move_count);
    return status;
}

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
    return LH_OK;
}

static uint32_t group_size(const lh_train_t *train, uint32_t group)
{
    uint32_t most = 1;
    for (uint32_t f = 0; f < train->family_count; f++)
        if (train->families[f].size[group] > most) most = train->families[f].size[group];
    return most;
}

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
    if (m->every > 1 || m->stagger != 0 || m->late != 0 || m->keep != 0 || m->rule_slot != 0)
        return fail(
            LH_UNSUPPORTED,
            "move %s from '%s' to '%s' does not run whole in every step, which is not built", what,
            from, to);
    if (m->what == LH_MOVE_ADD || m->what == LH_MOVE_DIFFER)
        return fail(LH_UNSUPPORTED, "move %s from '%s' to '%s' is not built", what, from, to);
    if ((m->what == LH_MOVE_GATHER || m->what == LH_MOVE_REDUCE) && group_size(train, m->group) > 1)
        return fail(LH_UNSUPPORTED,
                    "move %s from '%s' to '%s' runs over %u ranks, which is not built", what, from,
                    to, group_size(train, m->group));
    return LH_OK;
}

/* Over one rank a sum or a gather between two spaces of a kind is no work: they are one. */
static void roots_find(optimizer_tables_t *t)
{
    for (uint32_t i = 0; i < t->space_count; i++)
        t->root[i] = i;
    for (uint32_t i = 0; i < t->move_count; i++) {
        const lh_move_t *m = &t->moves[i];
        if ((m->what != LH_MOVE_GATHER && m->what != LH_MOVE_REDUCE) ||
            t->spaces[m->from].holds != t->spaces[m->to].holds)
            continue;
        const uint32_t old = t->root[m->from], kept = t->root[m->to];
        for (uint32_t s = 0; s < t->space_count; s++)
            if (t->root[s] == old) t->root[s] = kept;
    }
}

static lh_status_t kinds_find(optimizer_tables_t *t)
{
    uint32_t *const place[] = {[LH_HOLDS_VALUE] = &t->value,
                               [LH_HOLDS_GRAD] = &t->grad,
                               [LH_HOLDS_MASTER] = &t->master,
                               [LH_HOLDS_STATE] = &t->state};
    t->value = t->grad = t->master = t->state = TABLE_SPACES;
    for (uint32_t i = 0; i < t->space_count; i++) {
        if (t->root[i] != i) continue;
        uint32_t *at = place[t->spaces[i].holds];
        if (*at != TABLE_SPACES)
            return fail(LH_UNSUPPORTED,
                        "spaces '%s' and '%s' hold the same kind and no move joins "
                        "them, which is not built",
                        t->spaces[*at].name, t->spaces[i].name);
        *at = i;
    }
    if (t->value == TABLE_SPACES || t->grad == TABLE_SPACES)
        return fail(LH_INVALID, "the optimizer lists no space for the %s",
                    t->value == TABLE_SPACES ? "value" : "gradient");
    t->grad_dtype = t->spaces[t->grad].dtype;
    if (t->master != TABLE_SPACES) t->master_dtype = t->spaces[t->master].dtype;
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

    *out = (optimizer_tables_t){0};
    status = rows_read(&d, out);
    for (uint32_t i = 0; status == LH_OK && i < out->space_count; i++)
        status = space_check(&out->spaces[i]);
    for (uint32_t i = 0; status == LH_OK && i < out->move_count; i++)
        status = move_check(out, &out->moves[i], train);
    if (status != LH_OK) return status;
    roots_find(out);
    return kinds_find(out);
}
