/* sent_values_test.c - a model whose ranks record different things: one sends a block's output and
 * takes the other's, the other takes first and sends then, or sends first too, forward and, by the
 * gradients of both, back. Ranks have the same weights and the same batch, so that what comes is what each has itself:
 * the same bits as one rank alone. What has no partner, or waits in a circle, is refused before a
 * step. */
#include "../torture.h"
#include "recorded_rig.h"

#include <stdlib.h>
#include <unistd.h>

#include <base/memory.h>
#include <engine/handover.h>
#include <engine/program.h>
#include <ops/ops_collective.h>
#include <parallel/transfer_order.h>

/* What a block of the test's model does to its output: doubles it, by what it has or by what comes, one
 * rank sending first or both, or sends it doubled and gives what comes; or, to be refused, sends without
 * anybody who takes, or sends on both ranks what is made of what comes. */
enum { BY_ADDING, BY_TRADING, BY_SENDING_FIRST, BY_SWAPPING, BY_SENDING_ALONE, BY_PASSING_ON };
static uint32_t way, rank_recorded, ranks_recorded;

static op_collective_t trade_end(uint32_t peer)
{
    return (op_collective_t){.struct_size = sizeof(op_collective_t),
                             .group = LH_GROUP_DATA,
                             .ways = ranks_recorded,
                             .peer = peer,
                             .tag = 3};
}

static void send_to(lh_graph_t *g, uint32_t peer, lh_value_t x)
{
    const op_collective_t how = trade_end(peer);
    (void)g->api->op(g, "send", &how, &x, 1, NULL);
}

static lh_value_t receive_from(lh_graph_t *g, uint32_t peer, lh_value_t like)
{
    op_collective_t how = trade_end(peer);
    lh_arg_t arg;
    if (g->api->shape(g, like, &arg) != LH_OK) return 0;
    how.rows = arg.shape[0];
    how.columns = arg.shape[1];
    return g->api->op(g, "recv", &how, NULL, 0, NULL);
}

static lh_value_t record_trading(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                 lh_value_t input)
{
    const lh_value_t x = recorded_plain->record(m, g, part, block, input);
    const uint32_t peer = 1 - rank_recorded;
    lh_value_t y = x;
    if (part != LH_PART_BLOCK) return x;
    if (way == BY_ADDING || rank_recorded > 1) return lh_add(g, x, x);
    if (way == BY_PASSING_ON) {
        y = lh_add(g, x, receive_from(g, peer, x));
        send_to(g, peer, y);
        return y;
    }
    if (way == BY_SWAPPING) {
        send_to(g, peer, lh_add(g, x, x));
        return receive_from(g, peer, x);
    }
    const bool first = rank_recorded == 0 || way == BY_SENDING_FIRST;
    if (first) send_to(g, peer, x);
    if (way != BY_SENDING_ALONE) y = receive_from(g, peer, x);
    if (!first && way != BY_SENDING_ALONE) send_to(g, peer, x);
    return lh_add(g, y, y);
}

static bool is_pair_call(const flow_call_t *call)
{
    return call->transfer != NULL && collective_is_pair(call->transfer->op);
}

/* Starts of the list, as the profile and the trace see them. */
static void calls_check(const recorded_t *r)
{
    uint32_t sends = 0, receives = 0;
    program_call_t call;
    for (uint32_t i = 0; program_call(r->train, false, i, &call); i++) {
        if (call.transfer == NULL || !collective_is_pair(call.transfer->op)) continue;
        assert_string_equal(call.kernel, call.waits ? "wait" : "start");
        sends += !call.waits && call.transfer->op == COLLECTIVE_SEND;
        receives += !call.waits && call.transfer->op == COLLECTIVE_RECEIVE;
    }
    const uint32_t expected = rank_recorded > 1 ? 0 : 4; /* two blocks, there and back */
    assert_int_equal(sends, expected);
    assert_int_equal(receives, expected);
}

static bool call_touches(const flow_t *f, const flow_call_t *call, uint32_t value)
{
    for (uint32_t s = 0; s < flow_call_slots(call); s++)
        if (call->slots[s] != 0 && f->values[call->slots[s]].buffer == f->values[value].buffer)
            return true;
    return false;
}

/* What came is waited for by who computes with it and by nobody before, so that nothing is started only
 * then; and what was sent when all is computed. */
static void waits_stand_behind(const recorded_t *r)
{
    const flow_t *f = r->train->flow;
    for (uint32_t c = 1; c < f->call_count; c++) {
        const flow_call_t *call = &f->calls[c];
        uint32_t next = c + 1;
        if (call->kind != FLOW_WAIT || !is_pair_call(call)) continue;
        while (next < f->call_count && f->calls[next].kind == FLOW_WAIT)
            next++;
        if (call->transfer->op == COLLECTIVE_SEND) {
            assert_int_equal(next, f->call_count);
        } else {
            assert_true(next < f->call_count);
            assert_true(call_touches(f, &f->calls[next], f->moved[call->moved.writes]));
        }
    }
}

/* Without any one of the waits for what is sent or comes the list is refused. */
static void pair_waits_leave_out(const recorded_t *r)
{
    flow_t *f = r->train->flow;
    transfer_row_t *rows;
    uint32_t count, waits = 0;
    OK(transfer_rows(r->rig.engine, &rows, &count));
    assert_int_equal(transfer_rows_pair(rows, count), rank_recorded <= 1);
    mem_free(rows);
    for (uint32_t c = 1; c < f->call_count; c++) {
        flow_call_t *call = &f->calls[c], kept = *call;
        if (call->kind != FLOW_WAIT || !is_pair_call(call)) continue;
        call->first_only = call->later_only = true; /* of no run */
        assert_int_equal(transfer_rows(r->rig.engine, &rows, &count), LH_INVALID);
        assert_non_null(strstr(fail_reason(), "'activations "));
        *call = kept;
        waits++;
    }
    assert_int_equal(waits, rank_recorded > 1 ? 0 : 8);
}

/* Where the device captures, lists with sends and receives are replayed, and of the activations no
 * more than what travels has a mirror. */
static void trade_replays_check(const recorded_t *r)
{
    const engine_t *e = r->rig.engine;
    if (strcmp(rig_device(), "fake") != 0) return;
    assert_non_null(r->train->lists[0].replay);
    for (uint32_t i = 0; i < e->mirror_count; i++) {
        const mirror_t *m = &e->mirrors[i];
        if (m->of == &e->arenas[ARENA_ACTIVATIONS])
            assert_true(m->pinned.bytes > 0 && m->pinned.bytes < m->of->bytes);
    }
}

typedef struct trade_case {
    uint32_t way, recompute;
    const char *optimizer, *transport;
    const char *expected; /* of the refusal */
} trade_case_t;

static void together_open(rig_rank_t *one, const trade_case_t *c, recorded_t *together)
{
    rank_recorded = one->rank;
    ranks_recorded = one->ranks;
    if (c->transport != NULL) rig_rank_transport(one, c->transport);
    way = c->way;
    recorded_open(together, record_trading);
    rig_rank_open(one, &together->rig);
    (void)rig_rank_update(one, &together->rig, 0.1, c->optimizer);
    recorded_train(together, c->recompute);
}

/* Launched in the first step, replayed from the second on where the device does that. */
static void rank_trades(rig_rank_t *one, void *context)
{
    enum { STEPS = 4 };
    const trade_case_t *c = context;
    recorded_t alone = {0}, together = {0};
    way = BY_ADDING;
    recorded_open(&alone, record_trading);
    (void)rig_update(&alone.rig, 0.1);
    recorded_train(&alone, c->recompute);
    OK(engine_build(alone.rig.engine));
    golden_weights(&golden_models[0], &alone.rig);

    together_open(one, c, &together);
    OK(engine_build(together.rig.engine));
    calls_check(&together);
    waits_stand_behind(&together);
    pair_waits_leave_out(&together);
    OK(comm_connect(one->comm));
    golden_weights(&golden_models[0], &together.rig);
    OK(transfers_value_gather(one->transfers));
    for (uint32_t step = 0; step < STEPS; step++) {
        recorded_run(&alone, step);
        recorded_run(&together, step);
        OK(transfers_finish(one->transfers));
        assert_memory_equal(&alone.loss, &together.loss, sizeof(float));
        recorded_gradients(&alone);
        recorded_gradients(&together);
        if (one->ranks == 2) recorded_compare(&alone, &together);
        recorded_free(&together);
        recorded_free(&alone);
    }
    trade_replays_check(&together);
    rig_rank_close(one, &together.rig);
    rig_close(&alone.rig);
}

static void trades_over(uint32_t ranks, uint32_t recompute, const char *optimizer,
                        const char *transport)
{
    trade_case_t c = {BY_TRADING, recompute, optimizer, transport, NULL};
    rig_over_ranks(ranks, rank_trades, &c);
}

/* What is sent is as long as what is read in place, where memory is mapped. */
static void two_ranks_may_both_send_first(void **state)
{
    static const char *const transports[] = {"shm", "tcp"};
    (void)state;
    for (uint32_t i = 0; i < (torture_wanted() ? 2 : 1); i++) {
        trade_case_t c = {BY_SENDING_FIRST, RECOMPUTE_NONE, "zero0", transports[i], NULL};
        rig_over_ranks(2, rank_trades, &c);
    }
}

static void what_comes_is_what_was_sent_there_and_back(void **state)
{
    (void)state;
    trades_over(2, RECOMPUTE_NONE, "zero0", "shm");
}

static void it_is_so_over_sockets(void **state)
{
    (void)state;
    trades_over(2, RECOMPUTE_NONE, "zero0", "tcp");
}

/* What came is kept, and nothing is sent again. */
static void blocks_that_are_computed_again_send_once(void **state)
{
    (void)state;
    trades_over(2, RECOMPUTE_SELECTIVE, "zero0", NULL);
    trades_over(2, RECOMPUTE_FULL, "zero0", NULL);
}

/* What comes may be what a gathered block begins with: blocks behind it are gathered meanwhile. */
static void pairs_stand_beside_gathered_blocks(void **state)
{
    (void)state;
    trades_over(2, RECOMPUTE_NONE, "zero3", NULL);
    trade_case_t c = {BY_SWAPPING, RECOMPUTE_NONE, "zero3", NULL, NULL};
    rig_over_ranks(2, rank_trades, &c);
}

/* The third rank has no end of any pair. */
static void a_rank_that_sends_nothing_takes_part_in_the_rest(void **state)
{
    (void)state;
    trades_over(3, RECOMPUTE_NONE, "zero0", NULL);
}

/* All ranks refuse alike, when they have memory and before they connect. */
static void rank_refuses(rig_rank_t *one, void *context)
{
    const trade_case_t *c = context;
    recorded_t together = {0};
    together_open(one, c, &together);
    assert_int_equal(engine_build(together.rig.engine), LH_MISMATCH);
    if (strstr(fail_reason(), c->expected) == NULL) print_error("%s\n", fail_reason());
    assert_non_null(strstr(fail_reason(), c->expected));
    /* The process ends with what it has; the other may have ended before. */
    if (control_barrier(one->control, "the end") != LH_OK) fail_clear();
}

static void a_send_that_nobody_takes_is_refused(void **state)
{
    (void)state;
    trade_case_t c = {BY_SENDING_ALONE, RECOMPUTE_NONE, "zero0", NULL,
                      "rank 0 on here starts the send of activations 0, 0 to 1, tag 3, rank 1 on "
                      "here starts the all_reduce of gradients 0"};
    rig_over_ranks(2, rank_refuses, &c);
}

static void two_ranks_that_pass_on_what_comes_are_refused(void **state)
{
    (void)state;
    trade_case_t c = {BY_PASSING_ON, RECOMPUTE_NONE, "zero0", NULL,
                      "ranks wait for each other: rank 0 on here for the recv of activations 0, 1 "
                      "to 0, tag 3, which rank 1 on here starts only behind its wait for the recv "
                      "of activations 0, 0 to 1, tag 3"};
    rig_over_ranks(2, rank_refuses, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_is_what_was_sent_there_and_back),
        cmocka_unit_test(it_is_so_over_sockets),
        cmocka_unit_test(two_ranks_may_both_send_first),
        cmocka_unit_test(blocks_that_are_computed_again_send_once),
        cmocka_unit_test(pairs_stand_beside_gathered_blocks),
        cmocka_unit_test(a_rank_that_sends_nothing_takes_part_in_the_rest),
        cmocka_unit_test(a_send_that_nobody_takes_is_refused),
        cmocka_unit_test(two_ranks_that_pass_on_what_comes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
