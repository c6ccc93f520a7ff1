/* transfer_order_test.c - the transfers of all ranks of planned worlds: lists that fit together,
 * and what is said of lists that do not. */
#include <unit/plan/plan_kit.h>

#include <stdio.h>
#include <time.h>

#include <base/memory.h>
#include <config/job_load.h>
#include <engine/engine.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <parallel/transfer_order.h>
#include <parallel/transfer_plan.h>
#include <plan/step_plan.h>

enum { MOST = 4 };

static const char ini[] = "[pipeline]\nname = small\nstages = train\n"
                          "[data]\ntrain = corpus\n"
                          "[model]\nplugin = llama\nvocab = 192\nblocks = 3\nhidden = 32\n"
                          "ffn = 48\nheads = 2\nmax_tokens = 16\n"
                          "[train]\nsequence = 16\nbatch = 16\nmicro_batch = 1\nsteps = 1\n"
                          "evaluate_every = 1\nprecision = f32\n"
                          "[optimizer]\nplugin = zero0\nrule = rules:adamw\n"
                          "learning_rate = 1e-3\n"
                          "[comm]\nbucket = 8KiB\n"
                          "[device]\nplugin = cpu\nthreads = 1\n";

/* Ranks of the worlds, and how they are cut. */
static const char *const worlds[][2] = {
    {"launch.ranks_per_node=2", NULL},
    {"launch.ranks_per_node=4", NULL},
    {"site.a.hosts=a1:2", "site.b.hosts=b1:2"},
    {"site.a.hosts=a1:3", "site.b.hosts=b1:1"},
};
static const char *const optimizers[][2] = {
    {"optimizer.plugin=zero0", NULL},
    {"optimizer.plugin=zero1", NULL},
    {"optimizer.plugin=zero2", NULL},
    {"optimizer.plugin=zero3", NULL},
    {"optimizer.plugin=zero1", "optimizer.cut=site"},
    {"optimizer.plugin=zero2", "optimizer.cut=site"},
    {"optimizer.plugin=zero3", "optimizer.cut=site"},
};
static const char *const accumulations[] = {"parallel.accumulation=depth",
                                            "parallel.accumulation=breadth"};
enum { DEPTH, BREADTH, TWO_IN_FLIGHT, ORDERS }; /* the last one from a file */
enum { UNEVEN = 3, WORLDS = 4, OPTIMIZERS = 7, BY_SITE = 4, SEQUENCES = 16 };

/* Settings besides those. */
static const char *also[2];

typedef struct planned { /* all ranks of a job */
    job_t *job;
    uint32_t ranks;
    world_t *worlds[MOST];
    plan_programs_t programs[MOST];
    transfer_row_t *rows[MOST];
    transfer_list_t lists[MOST];
} planned_t;

/* Two chunks, the next micro-batch there before one goes back, weights last. */
static void table_write(const char *path, uint32_t micro_batches)
{
    text_t text = {0};
    text_append(&text, "program,chunk,micro_batch,frame\n");
    for (uint32_t m = 0; m <= micro_batches; m++) {
        const uint32_t back = m - 1;
        for (uint32_t c = 0; c < 2 && m < micro_batches; c++)
            text_printf(&text, "forward,%u,%u,%u\n", c, m, m % 2);
        for (uint32_t c = 0; c < 2 && m > 0; c++)
            text_printf(&text, "backward_input,%u,%u,%u\n", 1 - c, back, back % 2);
        for (uint32_t c = 0; c < 2 && m > 0; c++)
            text_printf(&text, "backward_weights,%u,%u,%u\n", c, back, back % 2);
    }
    ok(text_status(&text));
    ok(file_replace(path, text.data, text.length));
    text_free(&text);
}

static int start_with_an_ini(void **state)
{
    if (plan_start(state) != 0) return 1;
    char *path = path_join(folder, "small.ini");
    ok(file_replace(path, ini, sizeof(ini) - 1));
    mem_free(path);
    return 0;
}

static void plan_open(planned_t *p, uint32_t world, uint32_t optimizer, uint32_t accumulation)
{
    const char *sets[8];
    uint32_t count = 0;
    char *path = path_join(folder, "small.ini");
    memset(p, 0, sizeof(*p));
    for (uint32_t i = 0; i < 2; i++) {
        if (worlds[world][i] != NULL) sets[count++] = worlds[world][i];
        if (optimizers[optimizer][i] != NULL) sets[count++] = optimizers[optimizer][i];
        if (also[i] != NULL) sets[count++] = also[i];
    }
    char *table = path_join(folder, "table.csv"), set[160];
    table_write(table, world == 0 ? SEQUENCES / 2 : SEQUENCES / 4); /* one at a time */
    (void)snprintf(set, sizeof(set), "parallel.schedule=%s", table);
    mem_free(table);
    sets[count++] = accumulation == TWO_IN_FLIGHT ? set : accumulations[accumulation];
    ok(job_load(path, sets, count, &p->job));
    mem_free(path);
    registry_use_job(registry, p->job);
    p->ranks = job_ranks(p->job);
    for (uint32_t r = 0; r < p->ranks; r++) {
        ok(world_plan(p->job, r, &p->worlds[r]));
        const plan_programs_how_t how = {
            .session = {.job = p->job, .registry = registry, .vocab = 192, .world = p->worlds[r]}};
        ok(plan_programs_open(&how, &p->programs[r]));
        ok(transfer_rows(p->programs[r].session->engine, &p->rows[r], &p->lists[r].count));
        p->lists[r].rows = p->rows[r];
    }
}

static void plan_close(planned_t *p)
{
    for (uint32_t r = 0; r < p->ranks; r++) {
        mem_free(p->rows[r]);
        plan_programs_close(&p->programs[r]);
        world_free(p->worlds[r]);
    }
    job_free(p->job);
}

/* Sites of unequal size can't be cut by. */
static bool is_possible(uint32_t world, uint32_t optimizer)
{
    return optimizer < BY_SITE || world == 2;
}

/* So ranks that compare before step 0 need not send each other their lists. */
static void lists_differ_in_sizes_alone(planned_t *p)
{
    for (uint32_t r = 0; r < p->ranks; r++) {
        assert_int_equal(p->lists[r].count, p->lists[0].count);
        for (uint32_t i = 0; i < p->lists[r].count; i++)
            p->rows[r][i].transfer.elements = 0;
        assert_memory_equal(p->rows[r], p->rows[0], p->lists[0].count * sizeof(transfer_row_t));
    }
}

static void every_layout_fits_together(void **state)
{
    (void)state;
    planned_t p;
    for (uint32_t w = 0; w < WORLDS; w++) {
        for (uint32_t o = 0; o < OPTIMIZERS; o++) {
            for (uint32_t a = 0; a < ORDERS && is_possible(w, o); a++) {
                plan_open(&p, w, o, a);
                assert_true(p.lists[0].count > 0);
                /* Between sites, breadth-first the first blocks are not left whole. */
                uint32_t legs;
                const program_t *train = p.programs[0].programs.train;
                const bool far = worlds[w][1] != NULL && a == BREADTH;
                assert_int_equal(program_legs(train, &legs), far ? 2 : 0);
                assert_int_equal(program_halves(train), far);
                ok(transfer_order_check(p.worlds[0], p.lists));
                if (w != UNEVEN) lists_differ_in_sizes_alone(&p);
                plan_close(&p);
            }
        }
    }
}

/* Leaves one wait after the other out of the lists. */
static uint32_t waits_leave_out(const engine_t *e)
{
    uint32_t waits = 0;
    for (uint32_t i = 0; i < e->program_count; i++) {
        flow_t *f = e->programs[i]->flow;
        for (uint32_t c = 1; c < f->call_count; c++) {
            flow_call_t *call = &f->calls[c], kept = *call;
            transfer_row_t *rows;
            uint32_t count;
            if (call->kind != FLOW_WAIT) continue;
            call->first_only = call->later_only = true; /* of no run */
            const lh_status_t status = transfer_rows(e, &rows, &count);
            if (status == LH_OK)
                print_error("program %u goes well without its wait for '%s'\n", i,
                            kept.transfer->name);
            assert_int_equal(status, LH_INVALID);
            *call = kept;
            waits++;
        }
    }
    return waits;
}

static void no_wait_can_be_left_out(void **state)
{
    (void)state;
    planned_t p;
    for (uint32_t o = 0; o < OPTIMIZERS; o++) {
        for (uint32_t a = 0; a < ORDERS; a++) {
            plan_open(&p, 2, o, a);
            assert_true(waits_leave_out(p.programs[0].session->engine) > 2);
            plan_close(&p);
        }
    }
}

static void exchange_rows(transfer_row_t *a, transfer_row_t *b)
{
    const transfer_row_t kept = *a;
    *a = *b;
    *b = kept;
}

static void starts_in_another_order_are_refused(void **state)
{
    (void)state;
    planned_t p;
    for (uint32_t o = 0; o < BY_SITE; o++) {
        plan_open(&p, 1, o, 0);
        transfer_row_t *starts[2];
        uint32_t found = 0;
        for (uint32_t i = 0; found < 2; i++)
            if (!p.rows[3][i].waits) starts[found++] = &p.rows[3][i];
        char first[TRANSFER_NAME], second[TRANSFER_NAME], expected[256];
        memcpy(first, starts[0]->transfer.name, TRANSFER_NAME);
        memcpy(second, starts[1]->transfer.name, TRANSFER_NAME);
        const char *op = collective_names[starts[0]->transfer.op];
        exchange_rows(starts[0], starts[1]);
        assert_int_equal(transfer_order_check(p.worlds[0], p.lists), LH_MISMATCH);
        (void)snprintf(expected, sizeof(expected), "starts the %s of %s, rank 3", op, first);
        assert_non_null(strstr(fail_reason(), expected));
        (void)snprintf(expected, sizeof(expected), "starts the %s of %s", op, second);
        assert_non_null(strstr(fail_reason(), expected));
        plan_close(&p);
    }
}

static void a_rank_that_starts_less_or_other_bytes_is_named(void **state)
{
    (void)state;
    planned_t p;
    plan_open(&p, 0, 0, 0);
    uint32_t at = p.lists[1].count;
    while (p.rows[1][at - 1].waits)
        at--;
    p.lists[1].count = at - 1;
    assert_int_equal(transfer_order_check(p.worlds[0], p.lists), LH_MISMATCH);
    assert_non_null(strstr(fail_reason(), "rank 1"));
    assert_non_null(strstr(fail_reason(), "which never does"));
    p.lists[1].count = p.lists[0].count;
    p.rows[1][at - 1].transfer.elements++;
    assert_int_equal(transfer_order_check(p.worlds[0], p.lists), LH_MISMATCH);
    assert_non_null(strstr(fail_reason(), "of another size or kind"));
    plan_close(&p);
}

static transfer_row_t row(const char *name, uint32_t group, bool waits)
{
    transfer_row_t made;
    memset(&made, 0, sizeof(made));
    made.transfer.op = COLLECTIVE_ALL_REDUCE;
    made.transfer.group = group;
    made.transfer.ways = 2;
    made.waits = waits;
    (void)snprintf(made.transfer.name, TRANSFER_NAME, "%s", name);
    return made;
}

/* Two sites of two: pair by pair all is in order, but each rank waits for the next one round. */
static void ranks_that_wait_in_a_circle_are_refused(void **state)
{
    (void)state;
    planned_t p;
    plan_open(&p, 2, 0, 0);
    const uint32_t first[] = {LH_GROUP_SITE, LH_GROUP_ACROSS, LH_GROUP_ACROSS, LH_GROUP_SITE};
    transfer_row_t rows[MOST][4];
    transfer_list_t lists[MOST];
    for (uint32_t r = 0; r < MOST; r++) {
        for (uint32_t i = 0; i < 4; i++) {
            const bool site = (first[r] == LH_GROUP_SITE) == (i < 2);
            rows[r][i] = row(site ? "inside" : "over sites", site ? LH_GROUP_SITE : LH_GROUP_ACROSS,
                             i % 2 == 1);
        }
        lists[r] = (transfer_list_t){rows[r], 4};
    }
    assert_int_equal(transfer_order_check(p.worlds[0], lists), LH_MISMATCH);
    assert_non_null(strstr(fail_reason(), "ranks wait for each other: rank 0"));
    /* Started before anybody waits, the same goes well. */
    for (uint32_t r = 0; r < MOST; r++)
        exchange_rows(&rows[r][1], &rows[r][2]);
    ok(transfer_order_check(p.worlds[0], lists));
    plan_close(&p);
}

/* ---- sends and receives ---- */

enum { PAIR_RANKS = 3, PAIR_ROWS = 8 };

/* Lists of a few ranks, which begin empty. */
typedef struct pair_lists {
    world_t *world;
    transfer_row_t rows[PAIR_RANKS][PAIR_ROWS];
    transfer_list_t lists[PAIR_RANKS];
} pair_lists_t;

static void pairs_open(pair_lists_t *p)
{
    memset(p, 0, sizeof(*p));
    ok(world_new(0, PAIR_RANKS, &p->world));
    world_number(p->world);
    for (uint32_t r = 0; r < PAIR_RANKS; r++)
        p->lists[r].rows = p->rows[r];
}

/* The end of a pair that a rank has: its start, or its wait. */
static transfer_row_t *pair_put(pair_lists_t *p, uint32_t rank, uint32_t from, uint32_t to,
                                bool waits)
{
    assert_true(p->lists[rank].count < PAIR_ROWS && (rank == from || rank == to));
    transfer_row_t *made = &p->rows[rank][p->lists[rank].count++];
    char name[TRANSFER_NAME];
    (void)snprintf(name, sizeof(name), "activations 0, %u to %u, tag 4", from, to);
    *made = row(name, LH_GROUP_DATA, waits);
    made->transfer.op = COLLECTIVE_SEND;
    made->transfer.ways = PAIR_RANKS;
    made->transfer.from = from;
    made->transfer.to = to;
    made->transfer.tag = 4;
    made->transfer.dtype = LH_DTYPE_F32;
    made->transfer.elements = 64;
    made->receives = rank == to;
    return made;
}

/* The start and the wait behind it, as a recording has them. */
static transfer_row_t *pair_run(pair_lists_t *p, uint32_t rank, uint32_t from, uint32_t to)
{
    transfer_row_t *start = pair_put(p, rank, from, to, false);
    (void)pair_put(p, rank, from, to, true);
    return start;
}

static void pairs_fit(pair_lists_t *p)
{
    ok(transfer_order_check(p->world, p->lists));
    world_free(p->world);
}

static void pairs_refused(pair_lists_t *p, const char *expected)
{
    assert_int_equal(transfer_order_check(p->world, p->lists), LH_MISMATCH);
    if (strstr(fail_reason(), expected) == NULL) print_error("%s\n", fail_reason());
    assert_non_null(strstr(fail_reason(), expected));
    world_free(p->world);
}

/* There and back between two of three ranks, of which the third starts nothing. */
static void a_send_meets_a_receive(void **state)
{
    (void)state;
    pair_lists_t p;
    pairs_open(&p);
    for (uint32_t r = 0; r < 2; r++) {
        (void)pair_run(&p, r, 0, 1);
        (void)pair_run(&p, r, 1, 0);
        assert_true(transfer_rows_pair(p.rows[r], p.lists[r].count));
    }
    assert_false(transfer_rows_pair(p.rows[2], p.lists[2].count));
    pairs_fit(&p);
}

static void a_send_without_its_receive_is_refused(void **state)
{
    (void)state;
    pair_lists_t p;
    pairs_open(&p);
    (void)pair_run(&p, 0, 0, 1);
    pairs_refused(&p, "rank 0 starts the send of activations 0, 0 to 1, tag 4 with rank 1, which "
                      "never starts the recv");
    pairs_open(&p);
    (void)pair_run(&p, 0, 0, 2);
    (void)pair_run(&p, 1, 0, 1); /* of what goes to another */
    (void)pair_run(&p, 2, 0, 2);
    pairs_refused(&p, "rank 1 starts the recv of activations 0, 0 to 1, tag 4 with rank 0, which "
                      "never starts the send");
    pairs_open(&p);
    (void)pair_run(&p, 0, 0, 1);
    (void)pair_run(&p, 0, 0, 1);
    (void)pair_run(&p, 1, 0, 1);
    pairs_refused(&p, "which never starts the recv"); /* it has started one */
}

static void ends_that_differ_are_refused(void **state)
{
    (void)state;
    for (uint32_t what = 0; what < 3; what++) {
        pair_lists_t p;
        pairs_open(&p);
        (void)pair_run(&p, 0, 0, 1);
        transfer_row_t *other = pair_run(&p, 1, 0, 1);
        if (what == 0) other->transfer.elements++;
        if (what == 1) other->transfer.dtype = LH_DTYPE_BF16;
        if (what == 2) other->transfer.tag++;
        pairs_refused(&p, "where rank 0 starts the send of activations 0, 0 to 1, tag 4, rank 1 "
                          "starts the recv of activations 0, 0 to 1, tag 4, of another size or "
                          "kind");
    }
}

/* A row that travelled says who is at its ends; it is believed of its own rank alone. */
static void an_end_of_another_rank_is_refused(void **state)
{
    (void)state;
    pair_lists_t p;
    pairs_open(&p);
    (void)pair_run(&p, 0, 0, 1);
    pair_run(&p, 1, 0, 1)->receives = false;
    pairs_refused(&p,
                  "rank 1 names a send of activations 0, 0 to 1, tag 4, and is not that member");
    pairs_open(&p);
    (void)pair_run(&p, 1, 0, 1);
    pair_run(&p, 0, 0, 1)->transfer.to = PAIR_RANKS;
    pairs_refused(&p, "rank 0 names a send of");
}

/* Each sends first and waits for that: nobody has come to a receive. */
static void ranks_that_all_send_first_are_refused(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= PAIR_RANKS; ranks++) {
        pair_lists_t p;
        pairs_open(&p);
        for (uint32_t r = 0; r < ranks; r++) {
            (void)pair_run(&p, r, r, (r + 1) % ranks);
            (void)pair_run(&p, r, (r + ranks - 1) % ranks, r);
        }
        pairs_refused(&p, "ranks wait for each other: rank 0 for the send of activations 0, 0 to "
                          "1, tag 4, which rank 1 starts only behind its wait for the send of ");
        pairs_open(&p);
        for (uint32_t r = 0; r < ranks; r++) { /* one of them takes first */
            const uint32_t next = (r + 1) % ranks, before = (r + ranks - 1) % ranks;
            if (r == 0) (void)pair_run(&p, r, before, r);
            (void)pair_run(&p, r, r, next);
            if (r != 0) (void)pair_run(&p, r, before, r);
        }
        pairs_fit(&p);
    }
}

/* Both directions under way before either is waited for: each has an order of its own. */
static void what_is_started_before_any_wait_may_cross(void **state)
{
    (void)state;
    pair_lists_t p;
    pairs_open(&p);
    for (uint32_t r = 0; r < 2; r++) {
        (void)pair_put(&p, r, r, 1 - r, false);
        (void)pair_put(&p, r, 1 - r, r, false);
        (void)pair_put(&p, r, r, 1 - r, true);
        (void)pair_put(&p, r, 1 - r, r, true);
    }
    pairs_fit(&p);
}

/* Waits as an arrangement leaves them: rank 0 has what comes from rank 1 before rank 1 has taken what was
 * sent first. But a queue takes in the end of the send first, and rank 1 receives only behind what rank 0
 * sends in the end, by way of rank 2. Where rank 1 takes at once, all goes well. */
static void whoever_waits_waits_for_what_was_started_before(void **state)
{
    (void)state;
    for (uint32_t late = 0; late < 2; late++) {
        pair_lists_t p;
        pairs_open(&p);
        (void)pair_put(&p, 0, 0, 1, false);
        (void)pair_run(&p, 0, 1, 0);
        (void)pair_run(&p, 0, 0, 2);
        (void)pair_put(&p, 0, 0, 1, true);
        (void)pair_put(&p, 1, 1, 0, false);
        if (late == 0) (void)pair_put(&p, 1, 0, 1, false);
        (void)pair_run(&p, 1, 2, 1);
        if (late == 1) (void)pair_put(&p, 1, 0, 1, false);
        (void)pair_put(&p, 1, 0, 1, true);
        (void)pair_put(&p, 1, 1, 0, true);
        (void)pair_run(&p, 2, 0, 2);
        (void)pair_run(&p, 2, 2, 1);
        if (late == 0)
            pairs_fit(&p);
        else
            pairs_refused(&p,
                          "ranks wait for each other: rank 0 for the send of activations 0, 0 to "
                          "1, tag 4, which rank 1 starts only behind its wait for the recv of "
                          "activations 0, 2 to 1, tag 4");
    }
}

/* A collective of all stands in both orders: who comes to it before what the other has sent waits.
 */
static void a_collective_stands_in_the_order_of_pairs(void **state)
{
    (void)state;
    pair_lists_t p;
    for (uint32_t late = 0; late < 2; late++) {
        pairs_open(&p);
        for (uint32_t r = 0; r < PAIR_RANKS; r++) {
            if (r < 2 && (late == 0 || r == 0)) (void)pair_run(&p, r, 0, 1);
            for (uint32_t wait = 0; wait < 2; wait++) {
                transfer_row_t *all = &p.rows[r][p.lists[r].count++];
                *all = row("sums", LH_GROUP_DATA, wait == 1);
                all->transfer.ways = PAIR_RANKS;
            }
            if (r == 1 && late == 1) (void)pair_run(&p, r, 0, 1);
        }
        if (late == 0)
            pairs_fit(&p);
        else
            pairs_refused(&p, "where rank 0 starts the send of activations 0, 0 to 1, tag 4, rank "
                              "1 starts the all_reduce of sums");
    }
}

/* ---- lists that ranks share ---- */

/* Rows in any order, of few transfers: whether each start has its partners is chance. */
static uint32_t chance(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 16) % below;
}

enum { FEW = 3, ROWS = 6 };

static void list_draw(uint32_t *state, bool like_first, const transfer_row_t *first,
                      transfer_row_t rows[ROWS])
{
    static const uint32_t kinds[] = {LH_GROUP_SITE, LH_GROUP_ACROSS, LH_GROUP_DATA};
    bool used[FEW] = {false};
    if (like_first) memcpy(rows, first, ROWS * sizeof(*rows));
    for (uint32_t i = 0; i < FEW && !like_first; i++) {
        uint32_t k = chance(state, FEW);
        while (used[k])
            k = (k + 1) % FEW;
        used[k] = true;
        char name[16];
        (void)snprintf(name, sizeof(name), "t%u", k);
        rows[2 * i] = row(name, kinds[k], false);
        rows[2 * i + 1] = row(name, kinds[k], true);
    }
    /* A wait further behind, as overlap has it. */
    for (uint32_t i = 1; i + 1 < ROWS; i++)
        if (chance(state, 3) == 0 && rows[i].waits && !rows[i + 1].waits)
            exchange_rows(&rows[i], &rows[i + 1]);
}

static bool meet(const world_t *w, uint32_t kind, uint32_t a, uint32_t b)
{
    const uint32_t half = w->row.size / 2; /* two sites, one behind the other */
    return kind == LH_GROUP_DATA || (kind == LH_GROUP_SITE && a / half == b / half) ||
           (kind == LH_GROUP_ACROSS && a % half == b % half);
}

/* Whether a list has started a transfer in front of row `end`. */
static bool has_started(const transfer_list_t *list, uint32_t end, const char *name)
{
    for (uint32_t i = 0; i < end; i++)
        if (!list->rows[i].waits && strcmp(list->rows[i].transfer.name, name) == 0) return true;
    return false;
}

/* Whether a rank may go past its next row: all have made its starts up to that of what it waits for. */
static bool may_go(const world_t *w, const transfer_list_t *lists, const uint32_t at[8], uint32_t r)
{
    const transfer_row_t *rows = lists[r].rows, *next = &rows[at[r]];
    if (!next->waits) return true;
    for (uint32_t i = 0; i < at[r] && !has_started(&lists[r], i, next->transfer.name); i++)
        for (uint32_t m = 0; !rows[i].waits && m < w->row.size; m++)
            if (meet(w, rows[i].transfer.group, r, m) &&
                !has_started(&lists[m], at[m], rows[i].transfer.name))
                return false;
    return true;
}

/* The same question, asked in the plainest way: all pairs, then all ranks in turn. */
static bool naive(const world_t *w, const transfer_list_t *lists)
{
    const uint32_t n = w->row.size;
    uint32_t at[8] = {0};
    for (uint32_t a = 0; a < n; a++) {
        for (uint32_t b = 0; b < n; b++) {
            uint32_t x = 0, y = 0;
            for (;;) {
                while (x < ROWS &&
                       (lists[a].rows[x].waits || !meet(w, lists[a].rows[x].transfer.group, a, b)))
                    x++;
                while (y < ROWS &&
                       (lists[b].rows[y].waits || !meet(w, lists[b].rows[y].transfer.group, a, b)))
                    y++;
                if (x == ROWS || y == ROWS) break;
                if (strcmp(lists[a].rows[x++].transfer.name, lists[b].rows[y++].transfer.name) != 0)
                    return false;
            }
            if (x != y && (x < ROWS || y < ROWS)) return false;
        }
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < n; r++) {
            if (at[r] == ROWS || !may_go(w, lists, at, r)) continue;
            at[r]++;
            moved = true;
        }
    }
    for (uint32_t r = 0; r < n; r++)
        if (at[r] < ROWS) return false;
    return true;
}

static void a_list_that_ranks_share_is_judged_as_one_of_each(void **state)
{
    (void)state;
    enum { RANKS = 8 };
    uint32_t seed = 7, fits = 0;
    world_t *w;
    ok(world_new(0, RANKS, &w));
    for (uint32_t r = 0; r < RANKS; r++)
        (void)snprintf(w->ranks[r].site_name, sizeof(w->ranks[r].site_name), "%u", r / (RANKS / 2));
    world_number(w);
    for (uint32_t i = 0; i < 4000; i++) {
        transfer_row_t rows[3][ROWS], copies[RANKS][ROWS];
        transfer_list_t shared[RANKS], own[RANKS];
        for (uint32_t l = 0; l < 3; l++)
            list_draw(&seed, l > 0 && chance(&seed, 3) > 0, rows[0], rows[l]);
        const uint32_t differ = 1 + chance(&seed, 3);
        for (uint32_t r = 0; r < RANKS; r++) {
            const uint32_t l = chance(&seed, differ);
            memcpy(copies[r], rows[l], sizeof(rows[l]));
            shared[r] = (transfer_list_t){rows[l], ROWS};
            own[r] = (transfer_list_t){copies[r], ROWS};
        }
        const lh_status_t expected = naive(w, own) ? LH_OK : LH_MISMATCH;
        assert_int_equal(transfer_order_check(w, own), expected);
        assert_int_equal(transfer_order_check(w, shared), expected);
        fits += expected == LH_OK;
    }
    assert_in_range(fits, 200, 3800);
    world_free(w);
}

/* Two sites of 512: as in the small circle, one rank of 1,024 may be the one that is different. */
static void one_of_a_thousand_ranks_is_found(void **state)
{
    (void)state;
    enum { RANKS = 1024, ODD = 777 };
    world_t *w;
    transfer_row_t rows[4], other[4];
    transfer_list_t *lists = mem_array(RANKS, sizeof(*lists));
    ok(world_new(0, RANKS, &w));
    for (uint32_t r = 0; r < RANKS; r++)
        (void)snprintf(w->ranks[r].site_name, sizeof(w->ranks[r].site_name), "%u", r / 512);
    world_number(w);
    for (uint32_t i = 0; i < 4; i++) {
        rows[i] = row(i < 2 ? "inside" : "over sites", i < 2 ? LH_GROUP_SITE : LH_GROUP_ACROSS,
                      i % 2 == 1);
        other[i] = rows[i];
    }
    for (uint32_t r = 0; r < RANKS; r++)
        lists[r] = (transfer_list_t){rows, 4};
    const clock_t begun = clock();
    ok(transfer_order_check(w, lists));
    assert_true((double)(clock() - begun) / CLOCKS_PER_SEC < 30); /* by pairs it would be minutes */
    lists[ODD] = (transfer_list_t){other, 2};
    assert_int_equal(transfer_order_check(w, lists), LH_MISMATCH);
    assert_non_null(strstr(fail_reason(), "rank 777"));
    mem_free(lists);
    world_free(w);
}

/* ZeRO 2 over two ranks: every micro-batch scatters all gradients, a step gathers all values once.
 */
static void the_plan_counts_what_ranks_exchange(void **state)
{
    (void)state;
    planned_t p;
    step_plan_t plan;
    plan_open(&p, 0, 2, 0);
    const plan_programs_t *one = &p.programs[0];
    const uint64_t elements = weights_parameters(one->session->weights)->elements;
    assert_int_equal(one->programs.schedule->rounds, 8);
    ok(step_plan_new(one->programs.train, one->programs.update, one->programs.schedule->rounds,
                     one->session->transfers, NULL, &plan));
    double scattered = 0, gathered = 0;
    for (uint32_t i = 0; i < plan.transfer_count; i++) {
        const step_transfers_t *t = &plan.transfers[i];
        assert_int_equal(t->ways, 2);
        assert_int_equal(t->group, LH_GROUP_DATA);
        if (t->op == COLLECTIVE_REDUCE_SCATTER) scattered = t->bytes;
        if (t->op == COLLECTIVE_ALL_GATHER) gathered = t->bytes;
    }
    uint64_t partials = 0;
    const parameters_t *parameters = weights_parameters(one->session->weights);
    for (uint32_t i = 0; i < parameters->count; i++)
        partials += (parameters->items[i].elements + 4095) / 4096;
    assert_true(scattered == 8.0 * 4 * (double)elements);
    const double losses = 2 * 4; /* of each rank one F32 */
    assert_true(gathered == 4 * (double)elements + 8 * (double)partials + losses);
    for (uint32_t i = 0; i < plan.kind_count; i++)
        assert_string_not_equal(plan.kinds[i].kind, "fill"); /* calls that were counted so */
    step_plan_free(&plan);
    for (uint64_t rounds = 1; rounds <= 3; rounds++) { /* two are more than one, too */
        ok(step_plan_new(one->programs.train, one->programs.update, rounds, one->session->transfers,
                         NULL, &plan));
        assert_int_equal(plan.repeated[CROSSING_SUMS], rounds > 1);
        assert_false(plan.repeated[CROSSING_VALUES]);
        step_plan_free(&plan);
    }
    plan_close(&p);
}

/* Bytes that cross the border of two sites in both directions, by what transfers are: each element
 * of a gather crosses once; of a sum, a site's part (`wide` bytes), and of an all-reduce the other
 * site's part, as two sites exchange. */
static double crossing(const planned_t *p, const step_plan_t plans[MOST], double wide)
{
    double bytes = 0;
    for (uint32_t r = 0; r < p->ranks; r++)
        for (uint32_t i = 0; i < plans[r].transfer_count; i++) {
            const step_transfers_t *t = &plans[r].transfers[i];
            const double elements = t->bytes / (double)lh_dtype_bytes(t->dtype);
            const bool own = t->group == LH_GROUP_ACROSS; /* each rank's are its own */
            if (t->group == LH_GROUP_SITE || (r > 0 && !own)) continue;
            if (t->op == COLLECTIVE_ALL_GATHER) bytes += t->bytes;
            if (t->op == COLLECTIVE_REDUCE_SCATTER) bytes += elements * wide;
            if (t->op == COLLECTIVE_ALL_REDUCE) bytes += elements * wide * (own ? 1 : 2);
        }
    return bytes;
}

/* What one rank knows of all others against what each of them says of itself, in a world of two sites. */
static void one_rank_counts_for_all(const planned_t *p, const step_plan_t plans[MOST])
{
    const transfers_t *moved = p->programs[0].session->transfers;
    uint64_t sent[MOST] = {0};
    uint64_t between[CROSSINGS + 1][2][2] = {{{0}}};
    double told[CROSSINGS][2] = {{0}};
    ok(transfer_plan_crossings(moved, plans[0].starts, sent, &between[0][0][0]));
    for (uint32_t r = 0; r < p->ranks; r++) {
        const uint32_t site = moved->world->ranks[r].site;
        assert_int_equal(sent[r], plans[r].border_bytes);
        for (uint32_t what = 0; what < CROSSINGS; what++)
            told[what][site] += plans[r].crosses[what * 2 + 1 - site];
    }
    for (uint32_t what = 0; what < CROSSINGS; what++)
        for (uint32_t site = 0; site < 2; site++)
            assert_true(told[what][site] == (double)between[what][site][1 - site]);
}

static void what_leaves_a_site_is_what_the_formula_says(void **state)
{
    (void)state;
    also[0] = "train.precision=bf16";
    static const char *const borders[] = {"comm.border=f32", "comm.border=bf16",
                                          "comm.border=int8"};
    static const double wides[] = {4, 2, 132.0 / 128};
    for (uint32_t v = 0; v < OPTIMIZERS * 6; v++) {
        planned_t p;
        step_plan_t plans[MOST];
        const double wide = wides[v % 3];
        double sent = 0;
        also[1] = borders[v % 3];
        plan_open(&p, 2, v / 6, v / 3 % 2 == 0 ? DEPTH : BREADTH);
        for (uint32_t r = 0; r < p.ranks; r++) {
            const plan_programs_t *one = &p.programs[r];
            ok(step_plan_new(one->programs.train, one->programs.update,
                             one->programs.schedule->rounds, one->session->transfers, NULL,
                             &plans[r]));
            sent += (double)plans[r].border_bytes;
        }
        one_rank_counts_for_all(&p, plans);
        /* Blocks at the end of a segment are shorter, and have a whole scale. */
        const double least = crossing(&p, plans, wide);
        assert_true(v % 3 < 2 ? sent == least : sent >= least && sent < 1.01 * least);
        const double elements =
            (double)weights_parameters(p.programs[0].session->weights)->elements;
        const bool all_reduce = v / 6 == 0 ||
                                v / 6 >= BY_SITE; /* and for zero0 partials of norms */
        if (all_reduce) assert_true(sent >= elements * wide * 2);
        if (all_reduce) assert_true(sent < elements * wide * 2 * 1.01);
        for (uint32_t r = 0; r < p.ranks; r++)
            step_plan_free(&plans[r]);
        plan_close(&p);
    }
    also[0] = also[1] = NULL;
}

/* ---- buckets towards the end of a backward pass, and at the beginning of new values ---- */

enum { BUCKETS_MOST = 64, BUCKET = 512 << 10 };

/* Bytes of each sum of gradients that rank 0 starts in a step, in their order. */
static uint32_t sums_started(const planned_t *p, uint64_t bytes[BUCKETS_MOST])
{
    program_call_t call;
    uint32_t count = 0;
    for (uint32_t i = 0; program_call(p->programs[0].programs.train, false, i, &call); i++) {
        if (call.transfer == NULL || call.waits || call.transfer->op != COLLECTIVE_REDUCE_SCATTER)
            continue;
        assert_true(count < BUCKETS_MOST);
        bytes[count++] = transfer_bytes(call.transfer);
    }
    return count;
}

/* Bytes of each gather of new values that rank 0 starts in a step, in their order. */
static uint32_t values_started(const planned_t *p, uint64_t bytes[BUCKETS_MOST])
{
    program_call_t call;
    uint32_t count = 0;
    for (uint32_t i = 0; program_call(p->programs[0].programs.update, false, i, &call); i++) {
        if (call.transfer == NULL || call.waits ||
            strncmp(call.transfer->name, "new values", strlen("new values")) != 0)
            continue;
        assert_true(count < BUCKETS_MOST);
        bytes[count++] = transfer_bytes(call.transfer);
    }
    return count;
}

/* Of two megabytes of gradients, none longer than 24 KiB, so that a bucket is as long as it is to be. */
static void what_is_last_between_sites_is_cut_finer(void **state)
{
    (void)state;
    /* Of the last, sums go on between sites, and values stay inside one. */
    enum { LONGEST = 192 * 32 * 4, ONE_SITE = 0, BY_HAND, BETWEEN_SITES, INSIDE_SITES, CASES };
    static const uint32_t world_of[CASES] = {0, 2, 2, 2}, optimizer_of[CASES] = {1, 1, 1, BY_SITE};
    uint64_t sums[CASES] = {0};
    uint32_t counts[CASES];
    also[1] = "model.blocks=64";
    for (uint32_t c = 0; c < CASES; c++) {
        planned_t p;
        uint64_t bytes[BUCKETS_MOST];
        also[0] = c == BY_HAND ? "comm.bucket=512KiB" : "comm.bucket=0";
        plan_open(&p, world_of[c], optimizer_of[c], DEPTH);
        counts[c] = sums_started(&p, bytes);
        for (uint32_t i = 0; i < counts[c]; i++)
            sums[c] += bytes[i];
        uint64_t left = sums[c];
        for (uint32_t i = 0; i < counts[c]; i++) {
            const bool far = c >= BETWEEN_SITES, last = i + 1 == counts[c];
            const uint64_t half = left / 2 > BUCKET / 8 ? left / 2 : BUCKET / 8;
            const uint64_t most = far && half < BUCKET ? half : BUCKET;
            assert_true(bytes[i] < most + LONGEST);
            assert_true(last || bytes[i] >= most);
            left -= bytes[i];
        }
        if (c >= BETWEEN_SITES) assert_true(bytes[counts[c] - 1] < BUCKET / 8 + LONGEST);
        const uint32_t values = values_started(&p, bytes);
        uint64_t before = 0;
        for (uint32_t i = 0; i < values; i++) {
            const uint64_t share = before > BUCKET ? before / 8 : BUCKET / 8;
            const uint64_t most = c == BETWEEN_SITES && share < BUCKET ? share : BUCKET;
            assert_true(bytes[i] < most + LONGEST);
            assert_true(i + 1 == values || bytes[i] >= most);
            before += bytes[i];
        }
        assert_true(before == sums[c]); /* both in F32 */
        plan_close(&p);
    }
    also[0] = also[1] = NULL;
    assert_true(sums[ONE_SITE] > 4 * BUCKET);
    for (uint32_t c = BY_HAND; c < CASES; c++)
        assert_true(sums[c] == sums[ONE_SITE]);
    assert_int_equal(counts[BY_HAND], counts[ONE_SITE]);
    assert_true(counts[BETWEEN_SITES] >= counts[ONE_SITE] + 2);
}

/* ---- gradients that nothing makes ---- */

/* A block without its parameters. */
static lh_value_t record_doubling(LH_UNUSED lh_model_t *m, lh_graph_t *g, LH_UNUSED uint32_t part,
                                  LH_UNUSED uint32_t block, lh_value_t x)
{
    const lh_value_t in[] = {x, x};
    return g->api->op(g, "add", NULL, in, 2, NULL);
}

static lh_value_t (*record_llama)(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                  lh_value_t x);

static lh_value_t record_outside_blocks(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                        lh_value_t x)
{
    return (part == LH_PART_BLOCK ? record_doubling : record_llama)(m, g, part, block, x);
}

/* In every run where they are whole for a bucket only, else in the first. */
static void gradients_that_nothing_makes_are_zeroed(void **state)
{
    (void)state;
    const plugin_t *plugin;
    ok(registry_load(registry, LH_KIND_MODEL, "llama", &plugin));
    plugin_t *llama = (plugin_t *)(uintptr_t)plugin;
    const lh_model_api_t *whole = llama->model;
    lh_model_api_t api = *whole;
    record_llama = api.record;
    api.record = record_outside_blocks;
    llama->model = &api;
    for (uint32_t stage = 0; stage < BY_SITE; stage++) {
        planned_t p;
        uint32_t fills[2] = {0}, unused = 0;
        plan_open(&p, 0, stage, DEPTH);
        const parameters_t *parameters = weights_parameters(p.programs[0].session->weights);
        for (uint32_t i = 0; i < parameters->count; i++)
            unused += parameters->items[i].part == LH_PART_BLOCK;
        for (uint32_t later = 0; later < 2; later++) {
            program_call_t call;
            for (uint32_t i = 0; program_call(p.programs[0].programs.train, later, i, &call); i++)
                fills[later] += call.op == NULL && call.transfer == NULL;
        }
        assert_true(unused > 0);
        assert_int_equal(fills[0], unused);
        assert_int_equal(fills[1], stage < 2 ? 0 : unused);
        plan_close(&p);
    }
    llama->model = whole;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_fits_together),
        cmocka_unit_test(no_wait_can_be_left_out),
        cmocka_unit_test(starts_in_another_order_are_refused),
        cmocka_unit_test(a_rank_that_starts_less_or_other_bytes_is_named),
        cmocka_unit_test(ranks_that_wait_in_a_circle_are_refused),
        cmocka_unit_test(a_send_meets_a_receive),
        cmocka_unit_test(a_send_without_its_receive_is_refused),
        cmocka_unit_test(ends_that_differ_are_refused),
        cmocka_unit_test(an_end_of_another_rank_is_refused),
        cmocka_unit_test(ranks_that_all_send_first_are_refused),
        cmocka_unit_test(what_is_started_before_any_wait_may_cross),
        cmocka_unit_test(whoever_waits_waits_for_what_was_started_before),
        cmocka_unit_test(a_collective_stands_in_the_order_of_pairs),
        cmocka_unit_test(a_list_that_ranks_share_is_judged_as_one_of_each),
        cmocka_unit_test(one_of_a_thousand_ranks_is_found),
        cmocka_unit_test(the_plan_counts_what_ranks_exchange),
        cmocka_unit_test(what_leaves_a_site_is_what_the_formula_says),
        cmocka_unit_test(what_is_last_between_sites_is_cut_finer),
        cmocka_unit_test(gradients_that_nothing_makes_are_zeroed),
    };
    return cmocka_run_group_tests(tests, start_with_an_ini, plan_stop);
}
