/* transfer_order.c - walks the lists of all ranks side by side.
 *
 * Messages between two ranks keep the order in which their transfers were started, so any two ranks
 * must start what both take part in in the same order. That alone does not end every wait where
 * groups differ (three ranks may wait for each other in a circle), so the walk is made: a rank goes
 * on until it waits for a transfer that some member has not started. */
#include <parallel/transfer_order.h>

#include <base/digest.h>
#include <base/memory.h>

typedef struct walker { /* a rank on its way through its list */
    group_t *groups[LH_GROUPS];
    bool *members[LH_GROUPS]; /* [ranks] of the groups */
    uint32_t at;
    uint32_t *what;    /* [rows] which of the transfers that there are  */
    uint32_t *started; /* [transfers] how often, so far                 */
} walker_t;

typedef struct order {
    const world_t *world;
    const transfer_list_t *lists;
    walker_t *walkers; /* [ranks] */
} order_t;

static const transfer_row_t *row_at(const order_t *o, uint32_t rank, uint32_t at)
{
    return at < o->lists[rank].count ? &o->lists[rank].rows[at] : NULL;
}

/* The group of a row, as its rank sees it. */
static const group_t *group_of(const order_t *o, uint32_t rank, const transfer_row_t *row)
{
    return o->walkers[rank].groups[row->transfer.group];
}

static bool is_member(const order_t *o, uint32_t rank, const transfer_row_t *row, uint32_t other)
{
    return o->walkers[rank].members[row->transfer.group][other];
}

static lh_status_t group_make(const world_t *seen, walker_t *w, uint32_t group)
{
    if (w->groups[group] != NULL) return LH_OK;
    w->members[group] = mem_array(seen->row.size, sizeof(bool));
    lh_status_t status = w->members[group] == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) status = world_group_new(seen, group, &w->groups[group]);
    for (uint32_t m = 0; status == LH_OK && m < w->groups[group]->size; m++)
        w->members[group][w->groups[group]->ranks[m]] = true;
    return status;
}

/* The groups that lists name; a world has no others. */
static lh_status_t groups_make(order_t *o)
{
    for (uint32_t r = 0; r < o->world->row.size; r++) {
        world_t seen = *o->world;
        seen.row.rank = r;
        for (uint32_t i = 0; i < o->lists[r].count; i++) {
            const transfer_t *t = &o->lists[r].rows[i].transfer;
            if (t->group >= LH_GROUPS || t->op == 0 || t->op >= COLLECTIVES)
                return fail(LH_MISMATCH, "rank %u names a transfer of group %u and op %u", r,
                            t->group, t->op);
            const lh_status_t status = group_make(&seen, &o->walkers[r], t->group);
            if (status != LH_OK) return status;
        }
    }
    return LH_OK;
}

/* The next start, from `at` on, of a transfer of `rank` that `other` takes part in; NULL: none. */
static const transfer_row_t *next_with(const order_t *o, uint32_t rank, uint32_t other,
                                       uint32_t *at)
{
    for (const transfer_row_t *row; (row = row_at(o, rank, *at)) != NULL;) {
        (*at)++;
        if (!row->waits && is_member(o, rank, row, other)) return row;
    }
    return NULL;
}

static lh_status_t differ(const order_t *o, uint32_t a, const transfer_row_t *x, uint32_t b,
                          const transfer_row_t *y)
{
    char first[160], second[160];
    world_rank_text(o->world, a, first, sizeof(first));
    world_rank_text(o->world, b, second, sizeof(second));
    if (x == NULL || y == NULL) {
        const transfer_t *t = x == NULL ? &y->transfer : &x->transfer;
        return fail(LH_MISMATCH, "%s starts the %s of %.*s with %s, which never does",
                    x == NULL ? second : first, collective_names[t->op], TRANSFER_NAME, t->name,
                    x == NULL ? first : second);
    }
    const bool named = strncmp(x->transfer.name, y->transfer.name, TRANSFER_NAME) == 0;
    return fail(LH_MISMATCH, "where %s starts the %s of %.*s, %s starts the %s of %.*s%s", first,
                collective_names[x->transfer.op], TRANSFER_NAME, x->transfer.name, second,
                collective_names[y->transfer.op], TRANSFER_NAME, y->transfer.name,
                named ? ", of another size or kind" : "");
}

static lh_status_t pair_check(const order_t *o, uint32_t a, uint32_t b)
{
    uint32_t at = 0, bt = 0;
    for (;;) {
        const transfer_row_t *x = next_with(o, a, b, &at), *y = next_with(o, b, a, &bt);
        if (x == NULL && y == NULL) return LH_OK;
        if (x == NULL || y == NULL || memcmp(&x->transfer, &y->transfer, sizeof(x->transfer)) != 0)
            return differ(o, a, x, b, y);
    }
}

/* Numbers the transfers that there are: those of ranks are the same where their rows are. */
static lh_status_t numbers_give(order_t *o)
{
    const uint32_t size = o->world->row.size;
    uint32_t rows = 1, known = 0;
    for (uint32_t r = 0; r < size; r++)
        rows += o->lists[r].count;
    const transfer_t **list = mem_array(rows, sizeof(const transfer_t *));
    lh_status_t status = list == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t r = 0; r < size && status == LH_OK; r++) {
        walker_t *w = &o->walkers[r];
        w->what = mem_array(o->lists[r].count + 1u, sizeof(*w->what));
        if (w->what == NULL) status = LH_NO_MEMORY;
        for (uint32_t i = 0; i < o->lists[r].count && status == LH_OK; i++) {
            const transfer_t *t = &o->lists[r].rows[i].transfer;
            const transfer_row_t *first = r > 0 ? row_at(o, 0, i) : NULL; /* mostly the same one */
            uint32_t k = 0;
            if (first != NULL && memcmp(&first->transfer, t, sizeof(*t)) == 0)
                k = o->walkers[0].what[i];
            while (k < known && memcmp(list[k], t, sizeof(*t)) != 0)
                k++;
            if (k == known) list[known++] = t;
            w->what[i] = k;
        }
    }
    for (uint32_t r = 0; r < size && status == LH_OK; r++) {
        o->walkers[r].started = mem_array(known + 1u, sizeof(uint32_t));
        if (o->walkers[r].started == NULL) status = LH_NO_MEMORY;
    }
    mem_free(list);
    return status;
}

/* The member that keeps `rank` from going on past its next row, or `rank` itself: none does. */
static uint32_t holds_up(const order_t *o, uint32_t rank)
{
    const walker_t *w = &o->walkers[rank];
    const transfer_row_t *row = row_at(o, rank, w->at);
    if (!row->waits) return rank;
    const uint32_t what = w->what[w->at];
    const group_t *g = group_of(o, rank, row);
    for (uint32_t m = 0; m < g->size; m++)
        if (o->walkers[g->ranks[m]].started[what] < w->started[what]) return g->ranks[m];
    return rank;
}

static lh_status_t stuck(const order_t *o, uint32_t rank)
{
    char who[160], other[160];
    const uint32_t by = holds_up(o, rank);
    const transfer_row_t *row = row_at(o, rank, o->walkers[rank].at),
                         *its = row_at(o, by, o->walkers[by].at);
    world_rank_text(o->world, rank, who, sizeof(who));
    world_rank_text(o->world, by, other, sizeof(other));
    return fail(LH_MISMATCH,
                "ranks wait for each other: %s for the %s of %.*s, which %s starts only behind its "
                "wait for the %s of %.*s",
                who, collective_names[row->transfer.op], TRANSFER_NAME, row->transfer.name, other,
                collective_names[its->transfer.op], TRANSFER_NAME, its->transfer.name);
}

static lh_status_t waits_check(const order_t *o)
{
    const uint32_t size = o->world->row.size;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < size; r++) {
            walker_t *w = &o->walkers[r];
            for (; w->at < o->lists[r].count && holds_up(o, r) == r; w->at++) {
                if (!row_at(o, r, w->at)->waits) w->started[w->what[w->at]]++;
                moved = true;
            }
        }
    }
    for (uint32_t r = 0; r < size; r++)
        if (o->walkers[r].at < o->lists[r].count) return stuck(o, r);
    return LH_OK;
}

void transfer_lists_free(transfer_list_t *lists, uint32_t ranks)
{
    for (uint32_t r = 0; lists != NULL && r < ranks; r++)
        mem_free(lists[r].rows);
    mem_free(lists);
}

lh_status_t transfer_order_check(const world_t *world, const transfer_list_t *lists)
{
    const uint32_t size = world->row.size;
    order_t o = {.world = world, .lists = lists, .walkers = mem_array(size, sizeof(walker_t))};
    if (o.walkers == NULL) return LH_NO_MEMORY;
    lh_status_t status = groups_make(&o);
    for (uint32_t a = 0; status == LH_OK && a < size; a++)
        for (uint32_t b = 0; status == LH_OK && b < a; b++)
            status = pair_check(&o, b, a);
    if (status == LH_OK) status = numbers_give(&o);
    if (status == LH_OK) status = waits_check(&o);
    for (uint32_t r = 0; r < size; r++) {
        for (uint32_t g = 0; g < LH_GROUPS; g++) {
            world_group_free(o.walkers[r].groups[g]);
            mem_free(o.walkers[r].members[g]);
        }
        mem_free(o.walkers[r].what);
        mem_free(o.walkers[r].started);
    }
    mem_free(o.walkers);
    return status;
}

/* ---- before step 0 ---- */

typedef struct summary {
    uint64_t digest, count;
} summary_t;

/* Every rank's rows, `most` of each. */
static lh_status_t lists_gather(control_t *control, uint32_t size, const transfer_list_t *mine,
                                uint64_t most, transfer_row_t **out)
{
    transfer_row_t *own = mem_array(most, sizeof(*own));
    transfer_row_t *all = mem_array(most * size, sizeof(*all));
    lh_status_t status = own == NULL || all == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) {
        memcpy(own, mine->rows, mine->count * sizeof(*own));
        status = control_gather(control, own, most * sizeof(*own), all);
    }
    mem_free(own);
    if (status != LH_OK) mem_free(all);
    if (status == LH_OK) *out = all;
    return status;
}

static lh_status_t lists_compare(const world_t *world, control_t *control,
                                 const transfer_list_t *mine, const summary_t *all)
{
    const uint32_t size = world->row.size;
    uint64_t most = 1;
    for (uint32_t r = 0; r < size; r++)
        if (all[r].count > most) most = all[r].count;
    transfer_row_t *rows = NULL;
    transfer_list_t *lists = mem_array(size, sizeof(*lists));
    lh_status_t status = lists == NULL ? LH_NO_MEMORY
                                       : lists_gather(control, size, mine, most, &rows);
    for (uint32_t r = 0; status == LH_OK && r < size; r++)
        lists[r] = (transfer_list_t){rows + r * most, (uint32_t)all[r].count};
    if (status == LH_OK) status = transfer_order_check(world, lists);
    mem_free(rows);
    mem_free(lists);
    return status;
}

/* Of what a rank starts and waits for, without sizes: of what sites sum each of a site's ranks has
 * another part, and comm/ compares sizes anyway, group by group. */
static lh_status_t list_digest(const transfer_list_t *list, uint64_t *out)
{
    transfer_row_t *rows = mem_array(list->count, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    memcpy(rows, list->rows, list->count * sizeof(*rows));
    for (uint32_t i = 0; i < list->count; i++)
        rows[i].transfer.elements = 0;
    *out = digest_xxh3(rows, list->count * sizeof(*rows));
    mem_free(rows);
    return LH_OK;
}

lh_status_t transfer_order_agree(const world_t *world, control_t *control,
                                 const transfer_list_t *mine)
{
    const uint32_t size = world->row.size;
    summary_t own = {.count = mine->count};
    summary_t *all = mem_array(size, sizeof(*all));
    lh_status_t status = all == NULL ? LH_NO_MEMORY : list_digest(mine, &own.digest);
    if (status == LH_OK) status = control_gather(control, &own, sizeof(own), all);
    bool same = true;
    for (uint32_t r = 0; status == LH_OK && r < size; r++)
        same = same && all[r].digest == own.digest && all[r].count == own.count;
    if (status == LH_OK && !same) status = lists_compare(world, control, mine, all);
    mem_free(all);
    return status;
}
