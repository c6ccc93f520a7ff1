/* recorded_collectives_test.c - a model that records collectives runs them over two ranks, there and
 * back. Ranks have the same weights and the same batch, so that what two ranks sum is what one adds
 * to itself: the same bits. */
#include "recorded_rig.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/memory.h>
#include <engine/handover.h>
#include <engine/program.h>
#include <ops/ops_collective.h>
#include <parallel/transfer_order.h>

enum { RANKS = 2 };

/* What a block of the test's model does to its output: doubles it, one way or the other. */
enum { BY_ADDING, BY_REDUCING, BY_GATHERING, BY_EXCHANGING, WAYS };
static uint32_t way, ranks_recorded;

static lh_value_t over_ranks(lh_graph_t *g, const char *op, lh_value_t x)
{
    const op_collective_t how = {
        .struct_size = sizeof(how), .group = LH_GROUP_DATA, .ways = ranks_recorded};
    return g->api->op(g, op, &how, &x, 1, NULL);
}

static lh_value_t record_doubled(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                 lh_value_t input)
{
    const lh_value_t x = recorded_plain->record(m, g, part, block, input);
    if (part != LH_PART_BLOCK) return x;
    switch (way) {
    case BY_REDUCING: return over_ranks(g, "all_reduce", over_ranks(g, "replicate", x));
    case BY_GATHERING: return over_ranks(g, "reduce_scatter", over_ranks(g, "all_gather", x));
    case BY_EXCHANGING: {
        const lh_value_t back = over_ranks(g, "all_to_all", over_ranks(g, "all_to_all", x));
        return lh_add(g, back, back);
    }
    default: return lh_add(g, x, x);
    }
}

static void run_open(recorded_t *r, uint32_t how_recorded)
{
    way = how_recorded;
    recorded_open(r, record_doubled);
}

static void run_once(recorded_t *r, transfers_t *transfers)
{
    golden_weights(&golden_models[0], &r->rig);
    if (transfers != NULL) OK(transfers_value_gather(transfers));
    recorded_run(r, 0);
    if (transfers != NULL) OK(transfers_finish(transfers));
    recorded_gradients(r);
}

/* Where the device captures, all lists are replayed, whatever they start and wait for; of the
 * activations a few travel, and no more than those have a mirror. */
static void replays_check(const recorded_t *r)
{
    const engine_t *e = r->rig.engine;
    if (strcmp(rig_device(), "fake") != 0) return;
    for (uint32_t i = 0; i < e->program_count; i++) {
        const call_list_t *lists = e->programs[i]->lists;
        for (uint32_t k = 0; k < 2; k++)
            assert_true(lists[k].count == 0 || lists[k].replay != NULL);
    }
    for (uint32_t i = 0; i < e->mirror_count; i++) {
        const mirror_t *m = &e->mirrors[i];
        assert_true(m->pinned.bytes > 0 && m->pinned.bytes <= m->of->bytes);
        if (m->of == &e->arenas[ARENA_ACTIVATIONS]) assert_true(m->pinned.bytes < m->of->bytes / 2);
    }
}

/* How often the host has waited for what is still queued. */
static const lh_device_api_t *real_api;
static uint32_t host_waits;

static lh_status_t test_counted(lh_event_t *e, uint64_t timeout_ns)
{
    if (timeout_ns > 0 && real_api->test(e, 0) == LH_AGAIN) host_waits++;
    return real_api->test(e, timeout_ns);
}

/* A step of ranks that exchange through the host is queued without a wait; only figures take one. */
static void waits_check(recorded_t *r, transfers_t *transfers)
{
    static lh_device_api_t api;
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    real_api = r->rig.engine->api;
    api = *real_api;
    api.test = test_counted;
    r->rig.engine->api = &api;
    golden_batch(&golden_models[0], 1, batch);
    for (uint32_t step = 0; step < 3; step++) {
        host_waits = 0;
        rig_batch(r->train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, RECORDED_TOKENS);
        OK(program_run(r->train, 0));
        assert_int_equal(host_waits, 0);
        (void)rig_loss(r->train);
        OK(transfers_finish(transfers));
    }
}

typedef struct recorded_case {
    uint32_t way, recompute;
    const char *optimizer;
} recorded_case_t;

/* At once, and not in second runs. */
static void lists_capture(engine_t *e)
{
    for (uint32_t i = 0; i < e->program_count; i++)
        for (uint32_t k = 0; k < 2; k++)
            OK(call_list_capture(e, &e->programs[i]->lists[k]));
}

static void rank_compares(rig_rank_t *one, void *context)
{
    const recorded_case_t *c = context;
    recorded_t alone = {0}, together = {0};
    run_open(&alone, BY_ADDING);
    (void)rig_update(&alone.rig, 0.1);
    recorded_train(&alone, c->recompute);
    OK(engine_build(alone.rig.engine));
    run_once(&alone, NULL);

    ranks_recorded = RANKS;
    run_open(&together, c->way);
    rig_rank_open(one, &together.rig);
    (void)rig_rank_update(one, &together.rig, 0.1, c->optimizer);
    recorded_train(&together, c->recompute);
    OK(engine_build(together.rig.engine));
    lists_capture(together.rig.engine);
    OK(comm_connect(one->comm));
    run_once(&together, one->transfers);
    assert_memory_equal(&alone.loss, &together.loss, sizeof(float));
    recorded_compare(&alone, &together);
    replays_check(&together);
    waits_check(&together, one->transfers);

    /* They are calls of the list, as all that ranks exchange. */
    transfer_row_t *rows;
    uint32_t count, of_activations = 0;
    OK(transfer_rows(together.rig.engine, &rows, &count));
    for (uint32_t i = 0; i < count; i++)
        of_activations += !rows[i].waits && strstr(rows[i].transfer.name, " of part ") != NULL;
    assert_true(of_activations >= 4); /* two blocks, there and back */
    mem_free(rows);

    recorded_free(&together);
    rig_rank_close(one, &together.rig);
    recorded_free(&alone);
    rig_close(&alone.rig);
}

static void over_two_ranks(uint32_t how_recorded, uint32_t recompute, const char *optimizer)
{
    recorded_case_t c = {how_recorded, recompute, optimizer};
    rig_over_ranks(RANKS, rank_compares, &c);
}

static void an_all_reduce_is_a_sum_there_and_back(void **state)
{
    (void)state;
    over_two_ranks(BY_REDUCING, RECOMPUTE_NONE, "zero0");
}

static void it_is_so_when_blocks_are_computed_again(void **state)
{
    (void)state;
    over_two_ranks(BY_REDUCING, RECOMPUTE_FULL, "zero0");
}

static void gathered_rows_are_scattered_again(void **state)
{
    (void)state;
    over_two_ranks(BY_GATHERING, RECOMPUTE_NONE, "zero0");
}

static void rows_that_are_exchanged_twice_come_back(void **state)
{
    (void)state;
    over_two_ranks(BY_EXCHANGING, RECOMPUTE_NONE, "zero0");
}

static void they_stand_beside_gathered_blocks_in_a_replay(void **state)
{
    (void)state;
    over_two_ranks(BY_REDUCING, RECOMPUTE_NONE, "zero3");
}

/* The frozen weights of pairs of answers: the same values, so the same scores as those of the policy. */
static void rank_scores_twice(rig_rank_t *one, LH_UNUSED void *context)
{
    enum { BOTH = 2, STATS = 3 * RECORDED_TOKENS };
    static float stats[BOTH][STATS];
    const program_how_t score = {
        .use = USE_SCORE, .sequences = GOLDEN_BATCH, .rows = GOLDEN_SEQUENCE};
    int32_t batch[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)];
    recorded_t policy = {0};
    program_t *programs[BOTH];
    ranks_recorded = RANKS;
    run_open(&policy, BY_REDUCING);
    rig_rank_open(one, &policy.rig);
    (void)rig_rank_update(one, &policy.rig, 0.1, "zero0");
    recorded_train(&policy, RECOMPUTE_NONE);
    rig_t reference = policy.rig;
    const weights_how_t how = {.api = policy.rig.weights->api,
                               .model = policy.rig.model,
                               .compute = LH_DTYPE_F32,
                               .reference = true};
    OK(weights_new(policy.rig.engine, &how, &reference.weights));
    OK(program_new(policy.rig.engine, policy.rig.weights, &score, &programs[0]));
    OK(program_new(policy.rig.engine, reference.weights, &score, &programs[1]));
    OK(engine_build(policy.rig.engine));
    OK(comm_connect(one->comm));
    golden_weights(&golden_models[0], &policy.rig);
    golden_weights(&golden_models[0], &reference);
    OK(transfers_value_gather(one->transfers));
    golden_batch(&golden_models[0], 0, batch);
    for (uint32_t i = 0; i < BOTH; i++) {
        rig_batch(programs[i], batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, RECORDED_TOKENS);
        OK(program_run(programs[i], 0));
        OK(program_output(programs[i], OUTPUT_STATS, stats[i], sizeof(stats[i])));
    }
    assert_memory_equal(stats[0], stats[1], sizeof(stats[0]));
    rig_rank_close(one, &policy.rig);
}

static void frozen_weights_beside_the_trained_exchange_too(void **state)
{
    (void)state;
    rig_over_ranks(RANKS, rank_scores_twice, NULL);
}

/* Alone, or over a number of ranks that the group has not. */
static void a_group_that_is_not_there_is_refused(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        recorded_t r = {0};
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1);
        ranks_recorded = 2;
        run_open(&r, BY_REDUCING);
        (void)rig_update(&r.rig, 0.1);
        recorded_train(&r, RECOMPUTE_NONE);
        assert_int_equal(engine_plan(r.rig.engine), LH_INVALID);
        assert_string_equal(fail_reason(),
                            "the model records the all_reduce over 2 ranks, and there is one");
        rig_close(&r.rig);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_all_reduce_is_a_sum_there_and_back),
        cmocka_unit_test(it_is_so_when_blocks_are_computed_again),
        cmocka_unit_test(gathered_rows_are_scattered_again),
        cmocka_unit_test(rows_that_are_exchanged_twice_come_back),
        cmocka_unit_test(they_stand_beside_gathered_blocks_in_a_replay),
        cmocka_unit_test(frozen_weights_beside_the_trained_exchange_too),
        cmocka_unit_test(a_group_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
