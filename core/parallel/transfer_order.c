/* transfer_order.c - walks the lists of all ranks side by side.
 *
 * Messages between two ranks keep the order in which their transfers were started, so any two ranks
 * must start what both take part in in the same order. That alone does not end every wait where
 * groups differ, so the walk is made: a rank goes on until it waits for a transfer that some member
 * has not started. If all ranks reach the end of their lists, then no timing can stop them; else
 * the sentence names two ranks of the circle.
 *
 * In the walk only waits can stop a rank, and whether they do depends on what has been started, not
 * on when: so its outcome is that of every timing. An example that pairs alone don't find, with
 * transfers x of ranks 0 and 1, y of 1 and 2, z of 2 and 0:
 *
 *    rank 0   start x, wait x, start z, wait z
 *    rank 1   start y, wait y, start x, wait x
 *    rank 2   start z, wait z, start y, wait y
 *
 * Rank 0 waits for rank 1 to start x, which waits for rank 2 to start y, which waits for rank 0 to
 * start z.
 *
 * A send and its receive are a transfer of two members of a group, which both name alike. Each
 * direction between two ranks has an order of its own, as its messages have, in which collectives
 * of both stand too. Whoever waits for a send waits until the other end has started its receive,
 * since a long message leaves only then: so two ranks that both send first, and wait for that before they
 * receive, wait in a circle.
 *
 * Whoever waits for a transfer waits for all that it has started before, too: a device that queues work
 * takes in what came in the order of starts. A device that does each call at once would not, but
 * what fits must not depend on it. */
#include <parallel/transfer_order.h>

#include <base/digest.h>
#include <base/memory.h>

/* Ranks may share one list (the same rows in memory), as those of a large job do in `check`. So
 * what is known of a list is known once; two ranks are compared only if no two others with their
 * lists that meet in the same groups were; and who has started what is asked of each group once and
 * not of each of its ranks. A thousand ranks take a fraction of a second. */

typedef struct walker { /* a rank on its way through its list */
    uint32_t at;
    uint32_t list;     /* which of the lists that differ */
    uint32_t met;      /* all members have made the starts in front of this row     */
    uint32_t *what;    /* [rows] which of the transfers that there are; of the list */
    uint32_t *started; /* [transfers] how often, so far                             */
    uint32_t *last;    /* [transfers] 1 + the row of the last start, so far         */
    uint32_t *passed;  /* [transfers] how many of the starts are in front of `met`  */
} walker_t;

typedef struct members { /* of a group */
    uint32_t *ranks;
    uint32_t count;
} members_t;

/* How far a group has come with a transfer: its first `count` members have started it `times`
 * times. */
typedef struct group_progress {
    uint32_t times, count;
} group_progress_t;

/* One check. */
typedef struct order {
    const world_t *world;
    const transfer_list_t *lists;
    walker_t *walkers;             /* [ranks] */
    uint32_t *group_of[LH_GROUPS]; /* [ranks] into groups; NULL: no list names that kind */
    members_t *groups;
    uint32_t group_count;
    size_t group_capacity;
    uint32_t list_count;        /* that differ */
    uint32_t known;             /* transfers that differ */
    group_progress_t *progress; /* [groups][known] */
    bool pairs;                 /* some lists have sends or receives */
} order_t;

/* A row of a rank's list; NULL behind its end. */
static const transfer_row_t *row_at(const order_t *o, uint32_t rank, uint32_t at)
{
    lh_assert(rank < o->world->row.size);
    return at < o->lists[rank].count ? &o->lists[rank].rows[at] : NULL;
}

/* The other end of a rank's row of a pair. */
static uint32_t row_partner(const order_t *o, uint32_t rank, const transfer_row_t *row)
{
    const members_t *g = &o->groups[o->group_of[row->transfer.group][rank]];
    const uint32_t member = row->receives ? row->transfer.from : row->transfer.to;
    lh_assert(member < g->count);
    return g->ranks[member];
}

/* Whether `other` takes part in a row of `rank`. */
static bool row_has_rank(const order_t *o, uint32_t rank, const transfer_row_t *row, uint32_t other)
{
    if (collective_is_pair(row->transfer.op)) return row_partner(o, rank, row) == other;
    const uint32_t *group_of = o->group_of[row->transfer.group];
    return group_of[rank] == group_of[other];
}

/* What a rank does in a row, in a word. */
static const char *row_op_name(const transfer_row_t *row)
{
    return collective_names[row->receives ? COLLECTIVE_RECEIVE : row->transfer.op];
}

/* The group of a kind that a rank is in, as that rank sees the world. */
static lh_status_t member_group_add(order_t *o, uint32_t kind, uint32_t rank)
{
    world_t seen = *o->world;
    group_t *g;
    seen.row.rank = rank;
    members_t *groups = mem_grow(o->groups, &o->group_capacity, o->group_count + 1u,
                                 sizeof(*groups));
    if (groups == NULL) return LH_NO_MEMORY;
    o->groups = groups;
    const lh_status_t status = world_group_new(&seen, kind, &g);
    if (status != LH_OK) return status;
    members_t *made = &groups[o->group_count++];
    *made = (members_t){mem_array(g->size, sizeof(*made->ranks)), g->size};
    for (uint32_t m = 0; made->ranks != NULL && m < g->size; m++) {
        made->ranks[m] = g->ranks[m];
        o->group_of[kind][g->ranks[m]] = o->group_count - 1;
    }
    world_group_free(g);
    return made->ranks == NULL ? LH_NO_MEMORY : LH_OK;
}

/* All groups of a kind, which no two of them share a rank. */
static lh_status_t groups_make(order_t *o, uint32_t kind)
{
    const uint32_t size = o->world->row.size;
    if (o->group_of[kind] != NULL) return LH_OK;
    o->group_of[kind] = mem_array(size, sizeof(uint32_t));
    if (o->group_of[kind] == NULL) return LH_NO_MEMORY;
    for (uint32_t r = 0; r < size; r++)
        o->group_of[kind][r] = UINT32_MAX;
    for (uint32_t r = 0; r < size; r++) {
        if (o->group_of[kind][r] != UINT32_MAX) continue;
        const lh_status_t status = member_group_add(o, kind, r);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* A rank that reads the rows of an earlier one has its list. */
static void lists_tell_apart(order_t *o)
{
    for (uint32_t r = 0; r < o->world->row.size; r++) {
        uint32_t first = 0;
        while (o->lists[first].rows != o->lists[r].rows ||
               o->lists[first].count != o->lists[r].count)
            first++;
        o->walkers[r].list = first == r ? o->list_count++ : o->walkers[first].list;
    }
}

/* Whether the rank is the first one with its list: lists are numbered in the order of ranks. */
static bool is_first(const order_t *o, uint32_t rank, uint32_t lists_before)
{
    return o->walkers[rank].list == lists_before;
}

/* Whether a row of a pair names members of a group, of which its rank is the right one. */
static bool pair_is_of(const order_t *o, uint32_t rank, const transfer_row_t *row)
{
    const transfer_t *t = &row->transfer;
    const members_t *g = &o->groups[o->group_of[t->group][rank]];
    if (t->from >= g->count || t->to >= g->count || t->from == t->to) return false;
    return g->ranks[row->receives ? t->to : t->from] == rank;
}

/* A row of a rank's list by itself; makes the groups that it names. */
static lh_status_t row_read(order_t *o, uint32_t rank, const transfer_row_t *row)
{
    const transfer_t *t = &row->transfer;
    if (t->group >= LH_GROUPS || t->op == 0 || t->op >= COLLECTIVES || t->op == COLLECTIVE_RECEIVE)
        return fail(LH_MISMATCH, "rank %u names a transfer of group %u and op %u", rank, t->group,
                    t->op);
    const lh_status_t status = groups_make(o, t->group);
    if (status != LH_OK || !collective_is_pair(t->op)) return status;
    o->pairs = true;
    if (pair_is_of(o, rank, row)) return LH_OK;
    return fail(LH_MISMATCH, "rank %u names a %s of %.*s, and is not that member of group '%s'",
                rank, row_op_name(row), TRANSFER_NAME, t->name, collective_groups[t->group]);
}

/* The groups that lists name; a world has no others. */
static lh_status_t lists_read(order_t *o)
{
    lists_tell_apart(o);
    for (uint32_t r = 0, before = 0; r < o->world->row.size; r++) {
        if (!is_first(o, r, before)) continue;
        before++;
        for (uint32_t i = 0; i < o->lists[r].count; i++) {
            const lh_status_t status = row_read(o, r, &o->lists[r].rows[i]);
            if (status != LH_OK) return status;
        }
    }
    return LH_OK;
}

/* The next row, from *at on, with which `rank` starts a transfer that `other` takes part in; NULL:
 * none. *at is left behind that row. Of pairs those that `rank` sends, or else those that it
 * receives. */
static const transfer_row_t *next_with(const order_t *o, uint32_t rank, uint32_t other, bool sends,
                                       uint32_t *at)
{
    for (const transfer_row_t *row; (row = row_at(o, rank, *at)) != NULL;) {
        (*at)++;
        if (row->waits || !row_has_rank(o, rank, row, other)) continue;
        if (!collective_is_pair(row->transfer.op) || row->receives != sends) return row;
    }
    return NULL;
}

/* The sentence for a start that another rank has no partner of. */
static lh_status_t lone_refuse(const transfer_row_t *row, const char *who, const char *other)
{
    const bool pair = collective_is_pair(row->transfer.op);
    return fail(LH_MISMATCH, "%s starts the %s of %.*s with %s, which never %s%s", who,
                row_op_name(row), TRANSFER_NAME, row->transfer.name, other,
                pair ? "starts the " : "does",
                pair ? collective_names[row->receives ? COLLECTIVE_SEND : COLLECTIVE_RECEIVE] : "");
}

/* The sentence for two starts that should meet and differ: x of rank a and y of rank b. NULL: that
 * rank never starts such a transfer. */
static lh_status_t pair_refuse(const order_t *o, uint32_t a, const transfer_row_t *x, uint32_t b,
                               const transfer_row_t *y)
{
    char first[160], second[160];
    world_rank_text(o->world, a, first, sizeof(first));
    world_rank_text(o->world, b, second, sizeof(second));
    if (x == NULL) return lone_refuse(y, second, first);
    if (y == NULL) return lone_refuse(x, first, second);
    const bool named = strncmp(x->transfer.name, y->transfer.name, TRANSFER_NAME) == 0;
    return fail(LH_MISMATCH, "where %s starts the %s of %.*s, %s starts the %s of %.*s%s", first,
                row_op_name(x), TRANSFER_NAME, x->transfer.name, second, row_op_name(y),
                TRANSFER_NAME, y->transfer.name, named ? ", of another size or kind" : "");
}

/* Two ranks must start their common transfers in the same order: collectives, and what a sends to
 * b (sends) or b to a. Transfers are compared whole, name and size included. */
static lh_status_t pair_check(const order_t *o, uint32_t a, uint32_t b, bool sends)
{
    uint32_t at = 0, bt = 0;
    for (;;) {
        const transfer_row_t *x = next_with(o, a, b, sends, &at);
        const transfer_row_t *y = next_with(o, b, a, !sends, &bt);
        if (x == NULL && y == NULL) return LH_OK;
        if (x == NULL || y == NULL || memcmp(&x->transfer, &y->transfer, sizeof(x->transfer)) != 0)
            return pair_refuse(o, a, x, b, y);
    }
}

/* The kinds of groups that two ranks share, a bit each: beside their lists all that a comparison of
 * the two depends on. */
static uint32_t kinds_shared(const order_t *o, uint32_t a, uint32_t b)
{
    uint32_t kinds = 0;
    for (uint32_t k = 0; k < LH_GROUPS; k++)
        if (o->group_of[k] != NULL && o->group_of[k][a] == o->group_of[k][b]) kinds |= 1u << k;
    return kinds;
}

/* Every two ranks whose comparison was not made with others; where some send to one rank alone,
 * every two. */
static lh_status_t pairs_check(const order_t *o)
{
    /* [lists][lists] a bit for each set of kinds: those that were compared. */
    uint64_t *made = mem_array((size_t)o->list_count * o->list_count, sizeof(*made));
    if (made == NULL) return LH_NO_MEMORY;
    _Static_assert(LH_GROUPS <= 6, "a set of kinds is a bit of 64");
    lh_status_t status = LH_OK;
    for (uint32_t b = 0; status == LH_OK && b < o->world->row.size; b++) {
        for (uint32_t a = 0; status == LH_OK && a < b; a++) {
            const uint64_t kinds = UINT64_C(1) << kinds_shared(o, a, b);
            uint64_t *sets = &made[(size_t)o->walkers[a].list * o->list_count + o->walkers[b].list];
            if (!o->pairs && (*sets & kinds) != 0) continue;
            *sets |= kinds;
            status = pair_check(o, a, b, true);
            if (status == LH_OK && o->pairs) status = pair_check(o, a, b, false);
        }
    }
    mem_free(made);
    return status;
}

/* The number of a transfer among those that are known; `count`: it is none of them. Most are the
 * same as that of the row before, which was `near`, or the next. */
static uint32_t known_find(const transfer_t *const *known, uint32_t count, const transfer_t *t,
                           uint32_t near)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t k = (near + i) % count;
        if (memcmp(known[k], t, sizeof(*t)) == 0) return k;
    }
    return count;
}

/* Numbers the transfers that there are: those of ranks are the same where their rows are. The walk
 * then counts starts by number. */
static lh_status_t list_number(order_t *o, uint32_t rank, const transfer_t **known)
{
    walker_t *w = &o->walkers[rank];
    w->what = mem_array(o->lists[rank].count + 1u, sizeof(*w->what));
    if (w->what == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < o->lists[rank].count; i++) {
        const transfer_t *t = &o->lists[rank].rows[i].transfer;
        const transfer_row_t *first = rank > 0 ? row_at(o, 0, i) : NULL; /* mostly the same one */
        uint32_t k = i > 0 ? w->what[i - 1] : 0;
        if (first != NULL && memcmp(&first->transfer, t, sizeof(*t)) == 0)
            k = o->walkers[0].what[i];
        k = known_find(known, o->known, t, k);
        if (k == o->known) known[o->known++] = t;
        w->what[i] = k;
    }
    return LH_OK;
}

/* Ranks with one list share its numbers. */
static lh_status_t numbers_give(order_t *o)
{
    const uint32_t size = o->world->row.size;
    uint32_t rows = 1, before = 0;
    for (uint32_t r = 0; r < size; r++) {
        if (!is_first(o, r, before)) continue;
        before++;
        rows += o->lists[r].count;
    }
    const transfer_t **known = mem_array(rows, sizeof(const transfer_t *));
    uint32_t **numbers = mem_array(o->list_count, sizeof(uint32_t *));
    lh_status_t status = known == NULL || numbers == NULL ? LH_NO_MEMORY : LH_OK;
    before = 0;
    for (uint32_t r = 0; r < size && status == LH_OK; r++) {
        walker_t *w = &o->walkers[r];
        if (is_first(o, r, before)) {
            status = list_number(o, r, known);
            numbers[before++] = w->what;
        }
        w->what = numbers[w->list];
    }
    for (uint32_t r = 0; r < size && status == LH_OK; r++) {
        walker_t *w = &o->walkers[r];
        const size_t room = o->known + 1u;
        w->started = mem_array(3 * room, sizeof(uint32_t)); /* one block for all three */
        if (w->started == NULL) {
            status = LH_NO_MEMORY;
            break;
        }
        w->last = w->started + room;
        w->passed = w->last + room;
    }
    mem_free(known);
    mem_free(numbers);
    if (status != LH_OK) return status;
    o->progress = mem_array((size_t)o->group_count * o->known + 1u, sizeof(*o->progress));
    return o->progress == NULL ? LH_NO_MEMORY : LH_OK;
}

/* A member that has made the start of a rank's row `at` less than `times` times; `rank` itself: all
 * have. */
static uint32_t rank_lags(const order_t *o, uint32_t rank, uint32_t at, uint32_t times)
{
    const transfer_row_t *row = row_at(o, rank, at);
    lh_assert(row != NULL);
    const uint32_t what = o->walkers[rank].what[at], group = o->group_of[row->transfer.group][rank];
    if (collective_is_pair(row->transfer.op)) {
        const uint32_t other = row_partner(o, rank, row);
        return o->walkers[other].started[what] < times ? other : rank;
    }
    const members_t *g = &o->groups[group];
    group_progress_t *far = &o->progress[(size_t)group * o->known + what];
    if (times > far->times) *far = (group_progress_t){.times = times};
    /* Who is as far as another member asked for is far enough for a rank that asks for less. */
    while (far->count < g->count && o->walkers[g->ranks[far->count]].started[what] >= far->times)
        far->count++;
    for (uint32_t m = far->count; m < g->count; m++)
        if (o->walkers[g->ranks[m]].started[what] < times) return g->ranks[m];
    return rank;
}

/* The member that keeps `rank` from going on past its next row; `rank` itself where nobody does. A
 * wait ends when every member has made each start of this rank's up to the last one of what it waits
 * for. Where it does not, `met` is left at the start that is missing. */
static uint32_t holds_up(const order_t *o, uint32_t rank)
{
    walker_t *w = &o->walkers[rank];
    const transfer_row_t *row = row_at(o, rank, w->at);
    lh_assert(row != NULL);
    if (!row->waits) return rank;
    for (const uint32_t end = w->last[w->what[w->at]]; w->met < end; w->met++) {
        const uint32_t what = w->what[w->met];
        if (row_at(o, rank, w->met)->waits) continue;
        const uint32_t other = rank_lags(o, rank, w->met, w->passed[what] + 1);
        if (other != rank) return other;
        w->passed[what]++;
    }
    return rank;
}

/* The sentence for a rank whose wait never ends: it names that rank, the one that it waits for, and the
 * start that this one has not made. */
static lh_status_t waits_refuse(const order_t *o, uint32_t rank)
{
    char who[160], other[160];
    const uint32_t by = holds_up(o, rank);
    const transfer_row_t *row = row_at(o, rank, o->walkers[rank].met),
                         *its = row_at(o, by, o->walkers[by].at);
    world_rank_text(o->world, rank, who, sizeof(who));
    world_rank_text(o->world, by, other, sizeof(other));
    return fail(LH_MISMATCH,
                "ranks wait for each other: %s for the %s of %.*s, which %s starts only behind its "
                "wait for the %s of %.*s",
                who, row_op_name(row), TRANSFER_NAME, row->transfer.name, other, row_op_name(its),
                TRANSFER_NAME, its->transfer.name);
}

/* Lets every rank go as far as it can, again and again, until no rank moves any more. */
static lh_status_t waits_check(const order_t *o)
{
    const uint32_t size = o->world->row.size;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < size; r++) {
            walker_t *w = &o->walkers[r];
            for (; w->at < o->lists[r].count && holds_up(o, r) == r; w->at++) {
                moved = true;
                if (row_at(o, r, w->at)->waits) continue;
                w->started[w->what[w->at]]++;
                w->last[w->what[w->at]] = w->at + 1;
            }
        }
    }
    for (uint32_t r = 0; r < size; r++)
        if (o->walkers[r].at < o->lists[r].count) return waits_refuse(o, r);
    return LH_OK;
}

void transfer_lists_free(transfer_list_t *lists, uint32_t ranks)
{
    for (uint32_t r = 0; lists != NULL && r < ranks; r++)
        mem_free(lists[r].rows);
    mem_free(lists);
}

static void order_free(order_t *o)
{
    for (uint32_t k = 0; k < LH_GROUPS; k++)
        mem_free(o->group_of[k]);
    for (uint32_t g = 0; g < o->group_count; g++)
        mem_free(o->groups[g].ranks);
    for (uint32_t r = 0, before = 0; r < o->world->row.size; r++) {
        mem_free(o->walkers[r].started);
        if (!is_first(o, r, before)) continue;
        before++;
        mem_free(o->walkers[r].what);
    }
    mem_free(o->groups);
    mem_free(o->progress);
    mem_free(o->walkers);
}

/* Pairs first: their sentence says more than that of a circle. */
lh_status_t transfer_order_check(const world_t *world, const transfer_list_t *lists)
{
    order_t o = {
        .world = world, .lists = lists, .walkers = mem_array(world->row.size, sizeof(walker_t))};
    if (o.walkers == NULL) return LH_NO_MEMORY;
    lh_status_t status = lists_read(&o);
    if (status == LH_OK) status = pairs_check(&o);
    if (status == LH_OK) status = numbers_give(&o);
    if (status == LH_OK) status = waits_check(&o);
    order_free(&o);
    return status;
}

/* ---- before step 0 ---- */

/* What ranks exchange in any case; while all is well, nothing else. */
typedef struct summary {
    uint64_t digest, count;
    uint64_t pairs; /* 1: some rows are of pairs, so that lists differ though they fit */
} summary_t;

/* Rows [at, at + count) of every rank, into all [size][most]; got: [size][count]. */
static lh_status_t rows_gather(control_t *control, uint32_t size, transfer_row_t *own, uint64_t at,
                               uint64_t count, uint64_t most, transfer_row_t *got,
                               transfer_row_t *all)
{
    const lh_status_t status = control_gather(control, own + at, count * sizeof(*own), got);
    for (uint32_t r = 0; status == LH_OK && r < size; r++)
        memcpy(all + r * most + at, got + r * count, count * sizeof(*all));
    return status;
}

/* Every rank's rows, padded to `most` of each: *out is [size][most], freed by the caller. They
 * travel in as many pieces as it takes. */
static lh_status_t lists_gather(control_t *control, uint32_t size, const transfer_list_t *mine,
                                uint64_t most, transfer_row_t **out)
{
    const uint64_t room = control_gather_most(size) / sizeof(transfer_row_t);
    const uint64_t piece = most < room ? most : room;
    lh_assert(piece > 0);
    transfer_row_t *own = mem_array(most, sizeof(*own));
    transfer_row_t *got = mem_array(piece * size, sizeof(*got));
    transfer_row_t *all = mem_array(most * size, sizeof(*all));
    lh_status_t status = own == NULL || got == NULL || all == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) memcpy(own, mine->rows, mine->count * sizeof(*own));
    for (uint64_t at = 0; status == LH_OK && at < most; at += piece)
        status = rows_gather(control, size, own, at, most - at < piece ? most - at : piece, most,
                             got, all);
    mem_free(own);
    mem_free(got);
    if (status != LH_OK) mem_free(all);
    if (status == LH_OK) *out = all;
    return status;
}

/* Where lists are too long to travel: who differs, but not in what. all: [size], not all alike. */
static lh_status_t digests_refuse(const world_t *world, const summary_t *all)
{
    char first[160], other[160];
    uint32_t r = 1;
    while (r + 1 < world->row.size && all[r].digest == all[0].digest &&
           all[r].count == all[0].count)
        r++;
    world_rank_text(world, 0, first, sizeof(first));
    world_rank_text(world, r, other, sizeof(other));
    return fail(LH_MISMATCH,
                "%s and %s start and wait for other transfers, or in another order; their lists of "
                "%llu and %llu rows are too long to say which",
                first, other, (unsigned long long)all[0].count, (unsigned long long)all[r].count);
}

/* Gathers the lists of all ranks and checks them. all: [size], the same on every rank, so that all
 * gather or none does. */
static lh_status_t lists_compare(const world_t *world, control_t *control,
                                 const transfer_list_t *mine, const summary_t *all)
{
    const uint32_t size = world->row.size;
    uint64_t most = 1;
    bool pairs = false;
    for (uint32_t r = 0; r < size; r++) {
        if (all[r].count > most) most = all[r].count;
        pairs = pairs || all[r].pairs != 0;
    }
    if (!pairs && most > control_gather_most(size) / sizeof(transfer_row_t))
        return digests_refuse(world, all);
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

/* The digest of what a rank starts and waits for. Sizes are left out, as each of a site's ranks has
 * another part of what sites sum, and core/comm compares sizes anyway, group by group. */
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
    summary_t own = {.count = mine->count, .pairs = transfer_rows_pair(mine->rows, mine->count)};
    summary_t *all = mem_array(size, sizeof(*all));
    lh_status_t status = all == NULL ? LH_NO_MEMORY : list_digest(mine, &own.digest);
    if (status == LH_OK) status = control_gather(control, &own, sizeof(own), all);
    bool same = true;
    for (uint32_t r = 0; status == LH_OK && r < size; r++)
        same = same && all[r].digest == own.digest && all[r].count == own.count &&
               all[r].pairs == 0;
    if (status == LH_OK && !same) status = lists_compare(world, control, mine, all);
    mem_free(all);
    return status;
}
