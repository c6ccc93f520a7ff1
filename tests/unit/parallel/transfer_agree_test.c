/* transfer_agree_test.c - before step 0 ranks hold their lists of transfers against each other, over
 * a real control plane: what fits goes on, and what does not is refused on every rank in the same
 * words. Ranks are threads; two of them are a site. What a check of lists finds is
 * unit.plan.transfer_order_test's to say. */
#include <unit/control/control_ranks.h>

#include <ops/ops_collective.h>
#include <parallel/transfer_order.h>

enum { MANY = 7000 }; /* rows that are more than a gather takes */

typedef struct agreed { /* of a rank */
    transfer_list_t list;
    lh_status_t status;
    char said[1024];
} agreed_t;
static agreed_t agreed[RANKS];

static void add(uint32_t rank, const char *name, uint32_t group, bool waits)
{
    transfer_list_t *list = &agreed[rank].list;
    transfer_row_t *row = &list->rows[list->count++];
    assert_true(list->count <= MANY);
    memset(row, 0, sizeof(*row));
    row->transfer.op = COLLECTIVE_ALL_REDUCE;
    row->transfer.group = group;
    row->transfer.ways = group == LH_GROUP_DATA ? RANKS : 2;
    row->transfer.elements = 100;
    row->waits = waits;
    (void)snprintf(row->transfer.name, TRANSFER_NAME, "%s", name);
}

static void add_both(uint32_t rank, const char *name, uint32_t group)
{
    add(rank, name, group, false);
    add(rank, name, group, true);
}

static void alike(uint32_t rank)
{
    add(rank, "gradients", LH_GROUP_DATA, false);
    add(rank, "values", LH_GROUP_SITE, false);
    add(rank, "values", LH_GROUP_SITE, true);
    add(rank, "gradients", LH_GROUP_DATA, true);
}

/* Of a site alone: lists differ, and no rank waits for ever. */
static void more_in_one_site(uint32_t rank)
{
    alike(rank);
    if (rank >= 2) add_both(rank, "extra", LH_GROUP_SITE);
}

/* Sizes are compared by core/comm, plan by plan. */
static void other_sizes(uint32_t rank)
{
    alike(rank);
    agreed[rank].list.rows[1].transfer.elements += rank;
    agreed[rank].list.rows[2].transfer.elements += rank;
}

static void another_order(uint32_t rank)
{
    if (rank < 3) {
        alike(rank);
        return;
    }
    add(rank, "values", LH_GROUP_SITE, false);
    add(rank, "gradients", LH_GROUP_DATA, false);
    add(rank, "values", LH_GROUP_SITE, true);
    add(rank, "gradients", LH_GROUP_DATA, true);
}

static void one_less(uint32_t rank)
{
    alike(rank);
    if (rank != 1) add_both(rank, "loss", LH_GROUP_DATA);
}

/* From rank 0 to rank 1: the start and the wait of one end. */
static void pair_rows_add(uint32_t rank, uint32_t tag)
{
    add_both(rank, "activations", LH_GROUP_DATA);
    for (uint32_t i = agreed[rank].list.count - 2; i < agreed[rank].list.count; i++) {
        transfer_row_t *row = &agreed[rank].list.rows[i];
        row->transfer.op = COLLECTIVE_SEND;
        row->transfer.to = 1;
        row->transfer.tag = tag;
        row->receives = rank == 1;
    }
}

/* Lists that differ in any case travel in pieces. */
static void many_pairs(uint32_t rank)
{
    for (uint32_t i = 0; i < MANY / 2 && rank < 2; i++)
        pair_rows_add(rank, 0);
}

static void one_of_many_pairs(uint32_t rank)
{
    for (uint32_t i = 0; i < MANY / 2 && rank < 2; i++)
        pair_rows_add(rank, rank == 1 && i == MANY / 2 - 1);
}

static void too_long(uint32_t rank)
{
    for (uint32_t i = 0; i < MANY / 2; i++)
        add_both(rank, rank == 2 && i == 99 ? "other" : "loss", LH_GROUP_DATA);
}

static const struct {
    void (*make)(uint32_t rank);
    const char *sentence; /* NULL: they agree */
} cases[] = {
    {alike, NULL},
    {more_in_one_site, NULL},
    {other_sizes, NULL},
    {another_order,
     "where rank 2 on osaka/o1 starts the all_reduce of gradients, rank 3 on osaka/o1 "
     "starts the all_reduce of values"},
    {one_less, "rank 0 on tokyo/t1 starts the all_reduce of loss with rank 1 on tokyo/t1, which "
               "never does"},
    {too_long,
     "rank 0 on tokyo/t1 and rank 2 on osaka/o1 start and wait for other transfers, or in "
     "another order; their lists of 7000 and 7000 rows are too long to say which"},
    {many_pairs, NULL},
    {one_of_many_pairs,
     "where rank 0 on tokyo/t1 starts the send of activations, rank 1 on tokyo/t1 starts the recv "
     "of activations, of another size or kind"},
    {alike, NULL}, /* the plane goes on */
};

static void *agree_thread(void *argument)
{
    rank_run_t *r = argument;
    agreed_t *a = &agreed[r->how.rank];
    a->status = transfer_order_agree(r->world, r->control, &a->list);
    (void)snprintf(a->said, sizeof(a->said), "%s", a->status == LH_OK ? "" : fail_reason());
    return NULL;
}

static void all_ranks_judge_alike(void **state)
{
    star_t star;
    rank_run_t ranks[RANKS];
    (void)state;
    assert_int_equal(star_open(&star), LH_OK);
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (rank_run_t){.how = star_how(&star, i, RANKS)};
        agreed[i].list.rows = test_calloc(MANY, sizeof(transfer_row_t));
    }
    ranks_open(ranks, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        if (ranks[i].status != LH_OK) FAIL_TEST("rank %u: %s\n", i, ranks[i].reason);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (uint32_t i = 0; i < RANKS; i++) {
            agreed[i].list.count = 0;
            cases[c].make(i);
            (void)pthread_create(&ranks[i].thread, NULL, agree_thread, &ranks[i]);
        }
        for (uint32_t i = 0; i < RANKS; i++)
            (void)pthread_join(ranks[i].thread, NULL);
        for (uint32_t i = 0; i < RANKS; i++) {
            const char *wanted = cases[c].sentence == NULL ? "" : cases[c].sentence;
            assert_string_equal(agreed[i].said, wanted);
            assert_int_equal(agreed[i].status, cases[c].sentence == NULL ? LH_OK : LH_MISMATCH);
        }
    }
    ranks_close(ranks, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, LH_OK);
        test_free(agreed[i].list.rows);
    }
    secret_free(star.secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_judge_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
