/* ib_lists_test.c - what the ib transport posts together, in which order and at which pace; and its clocks: how long
 * a goodbye is waited for, what wakes a sleeper, and how seldom a connection that is well looks. */
#include <sys/timerfd.h>
#include <unistd.h>

#include "ib_conn_rig.h"

static void take_grant(lh_conn_t *c, uint32_t number)
{
    c->board->grants[number - 1] = (ib_grant_t){
        .number = number, .address = 1 << 20, .bytes = ROOM, .keys = {5}, .tag = 3};
    receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE, .number = number});
    step(c);
    assert_int_equal(c->granted, number);
    card.posted_count = 0;
}

static uint32_t chunks_on(uint32_t over)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < card.posted_count; i++)
        count += card.posted[i].what.kind == IB_CHUNK && card.posted[i].pair == over;
    return count;
}

/* By what each has under way and how fast it was of late: beside one four times as fast the others have
 * a few, too. One that had none for a second is tried before what it was says anything. */
static void a_chunk_goes_where_it_would_end_first(void **state)
{
    enum { CHUNK = 500, CHUNKS = ROOM / CHUNK + 1 };
    (void)state;
    lh_conn_t *c = open_conn(false);
    lh_region_t region = {.base = memory,
                          .bytes = ROOM,
                          .mrs = {bare_reg_mr(NULL, memory, ROOM, 0)},
                          .kind = LH_MEM_HOST};
    c->tuning.chunk_bytes = CHUNK;
    take_grant(c, 1);
    for (uint32_t i = 0; i < PAIRS; i++) {
        c->pairs[i].rate = i == 1 ? 4000000 : 1000000;
        c->pairs[i].done_ns = bare.now;
    }
    assert_int_equal(ib_isend(c, &region, memory, ROOM, 3, 0), LH_OK);
    assert_int_equal(chunks_on(0) + chunks_on(1) + chunks_on(2), CHUNKS);
    assert_int_equal(card.posted[0].pair, 1);
    assert_true(chunks_on(1) > CHUNKS / 2 && chunks_on(0) >= 1 && chunks_on(2) >= 1);
    for (uint32_t i = 0; i < PAIRS; i++)
        while (ib_pair_wrs(&c->pairs[i]) > 0) {
            complete(c, i);
            step(c);
        }
    take_grant(c, 2);
    bare.now += 2000 * MS;
    assert_int_equal(ib_isend(c, &region, memory, ROOM, 3, 1), LH_OK);
    assert_int_equal(card.posted[0].pair, 0);
    assert_true(chunks_on(1) > chunks_on(0) && chunks_on(2) >= 1);
    close_conn(c);
}

static void send_whole(lh_conn_t *c, lh_region_t *region, uint32_t number)
{
    take_grant(c, number);
    assert_int_equal(ib_isend(c, region, memory, ROOM, 3, number), LH_OK);
}

static void complete_all(lh_conn_t *c)
{
    for (uint32_t i = 0; i < PAIRS; i++)
        while (c->pairs[i].state == IB_PAIR_UP && ib_pair_wrs(&c->pairs[i]) > 0) {
            complete(c, i);
            step(c);
        }
}

/* The first that are well, of which stats tells; not where an ACK timeout of 67 ms is too short for the way. */
static void chunks_go_over_as_many_queue_pairs_as_are_used(void **state)
{
    enum { CHUNK = 500, CHUNKS = ROOM / CHUNK + 1 };
    static const lh_tuning_t two = {.struct_size = sizeof(two), .streams = 2},
                             many = {.struct_size = sizeof(many), .streams = PAIRS + 1};
    lh_tuning_t now = {.struct_size = sizeof(now)};
    lh_link_stats_t stats = {.struct_size = sizeof(stats)};
    (void)state;
    lh_conn_t *c = open_conn(false);
    lh_region_t region = {.base = memory,
                          .bytes = ROOM,
                          .mrs = {bare_reg_mr(NULL, memory, ROOM, 0)},
                          .kind = LH_MEM_HOST};
    c->tuning.chunk_bytes = CHUNK;
    c->tuning.ack_timeout = 14;
    atomic_store(&c->round_trip_min_ns, 100 * MS);
    assert_int_equal(ib_retune(c, &two, &now), LH_OK);
    assert_int_equal(now.streams, PAIRS);
    atomic_store(&c->round_trip_min_ns, 10 * MS);
    assert_int_equal(ib_retune(c, &two, &now), LH_OK);
    assert_int_equal(now.streams, 2);
    c->tuning.window_bytes = 1 << 20; /* which is what two have requests for, and was cut */
    assert_int_equal(ib_api.stats(c, &stats), LH_OK);
    assert_true(stats.paths_up == 2 && stats.paths_down == 0);
    send_whole(c, &region, 1);
    assert_true(chunks_on(0) > 0 && chunks_on(1) > 0 && chunks_on(2) == 0);
    assert_int_equal(chunks_on(0) + chunks_on(1), CHUNKS);
    complete_all(c);
    fail_pair(c, 1);
    send_whole(c, &region, 2);
    assert_true(chunks_on(0) > 0 && chunks_on(2) > 0);
    assert_int_equal(chunks_on(0) + chunks_on(2), CHUNKS);
    assert_int_equal(ib_api.stats(c, &stats), LH_OK);
    assert_true(stats.paths_up == 2 && stats.paths_down == 1);
    complete_all(c);
    assert_int_equal(c->send_first, 2);
    assert_int_equal(ib_retune(c, &many, &now), LH_OK);
    assert_int_equal(now.streams, PAIRS);
    close_conn(c);
}

/* Sixteen at a time, or before the peer is told of them. */
static void receive_requests_are_posted_again_in_lists(void **state)
{
    enum { LIST = 16, MORE = 3 };
    (void)state;
    lh_conn_t *c = open_conn(false);
    const uint32_t before = card.receives;
    card.receive_lists = 0;
    for (uint32_t i = 0; i < LIST; i++) {
        assert_int_equal(card.receives, before);
        receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE});
        step(c);
    }
    assert_true(card.receives == before + LIST && card.receive_lists == 1);
    assert_int_equal(c->pairs[0].credits.posted, IB_RECEIVES + LIST);
    for (uint32_t i = 0; i < MORE; i++)
        receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE});
    step(c);
    assert_int_equal(card.receives, before + LIST);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 0), LH_OK);
    step(c);
    assert_true(card.receives == before + LIST + MORE && card.receive_lists == 2);
    assert_int_equal(c->board[1].notices[0].posted[0], IB_RECEIVES + LIST + MORE);
    close_conn(c);
}

/* Over the first queue pair: the others have no credits. Their grants come together. */
enum { GATHERED = 5, GATHERED_BYTES = 100 };
static lh_conn_t *open_gathered(lh_region_t *region, uint64_t window)
{
    lh_conn_t *c = open_conn(false);
    *region = (lh_region_t){.base = memory,
                            .bytes = ROOM,
                            .mrs = {bare_reg_mr(NULL, memory, ROOM, 0)},
                            .kind = LH_MEM_HOST};
    c->tuning.window_bytes = window;
    for (uint32_t i = 1; i < PAIRS; i++)
        c->pairs[i].credits.used = c->pairs[i].credits.granted;
    for (uint32_t i = 0; i < GATHERED; i++) {
        c->board->grants[i] = (ib_grant_t){
            .number = i + 1, .address = 1 << 20, .bytes = ROOM, .keys = {5}, .tag = 3};
        assert_int_equal(ib_isend(c, region, memory, GATHERED_BYTES, 3, i), LH_OK);
    }
    card.lists = card.told = 0;
    receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE, .number = GATHERED});
    step(c);
    assert_int_equal(chunks_on(0), GATHERED);
    return c;
}

static void messages_that_can_leave_at_once_are_posted_together(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_gathered(&region, 1 << 20);
    assert_true(card.lists == 1 && card.told == 1);
    complete(c, 0); /* the last, and with it all */
    step(c);
    assert_int_equal(c->send_first, GATHERED);
    assert_true(c->in_flight == 0 && ib_pair_wrs(&c->pairs[0]) == 0);
    close_conn(c);
    c = open_gathered(&region, 4 * 2 * GATHERED_BYTES); /* of which two are a quarter */
    assert_true(card.lists == 3 && card.told == 3);
    complete(c, 0);
    step(c);
    assert_int_equal(c->send_first, 2);
    assert_int_equal(c->in_flight, 3 * GATHERED_BYTES);
    close_conn(c);
}

/* The peer has taken two: each of the others tells of its own end. */
static void messages_that_were_posted_together_are_written_again_one_by_one(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_gathered(&region, 1 << 20);
    c->pairs[2].credits.used = 0;
    card.posted_count = 0;
    receive(c, 1, &(ib_immediate_t){.kind = IB_AWAY, .number = 2, .index = 0});
    step(c);
    assert_int_equal(chunks_on(2), 3);
    for (uint32_t i = 2; i < GATHERED; i++) {
        assert_int_equal(c->send_first, i);
        complete(c, 2);
        step(c);
    }
    assert_int_equal(c->send_first, GATHERED);
    close_conn(c);
}

/* Over another one, or by a later turn: it takes the line's time as what is sent first does. */
static void what_is_sent_again_is_paced(void **state)
{
    enum { RATE = 1000, LEFT = 3, BYTES = LEFT * GATHERED_BYTES };
    lh_region_t region;
    (void)state;
    for (int by_turn = 0; by_turn < 2; by_turn++) {
        lh_conn_t *c = open_gathered(&region, 1 << 20);
        ib_pair_t *p = &c->pairs[0];
        c->pairs[2].credits.used = 0;
        const uint64_t begin = 1000000 * (uint64_t)MS;
        bare.now = begin;
        ib_bucket_set(&c->bucket, RATE, ROOM, begin / 2); /* full since long */
        if (by_turn == 0) {
            receive(c, 1, &(ib_immediate_t){.kind = IB_AWAY, .number = GATHERED - LEFT});
            step(c);
            assert_int_equal(chunks_on(2), LEFT);
        } else {
            fail_pair(c, 0);
            const ib_greeting_t greeting = {.turn = 1, .board = GATHERED - LEFT};
            cm_id_t *id;
            assert_int_equal(create_id(NULL, &id, &p->watch, 0), 0);
            ib_pair_renew(p, &greeting, id);
            assert_int_equal(ib_pair_make(p), LH_OK);
            card.posted_count = 0;
            receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE, .number = GATHERED});
            step(c);
            assert_int_equal(p->state, IB_PAIR_UP);
            assert_int_equal(chunks_on(0), LEFT);
        }
        (void)ib_bucket_open(&c->bucket, bare.now);
        assert_true(c->bucket.tokens <= ROOM - BYTES + 1e-9 * RATE * (double)(bare.now - begin));
        assert_true(c->bucket.tokens >= ROOM - BYTES);
        close_conn(c);
    }
}

/* What was gathered before a message that meets a receive of another tag leaves in front of the goodbye. */
static void messages_before_a_wrong_one_leave(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_gathered(&region, 1 << 20);
    complete(c, 0);
    step(c);
    card.posted_count = 0;
    for (uint32_t i = GATHERED; i < GATHERED + 2; i++) {
        c->board->grants[i] = (ib_grant_t){.number = i + 1,
                                           .address = 1 << 20,
                                           .bytes = ROOM,
                                           .keys = {5},
                                           .tag = i == GATHERED ? 3 : 4};
        assert_int_equal(ib_isend(c, &region, memory, GATHERED_BYTES, 3, i), LH_OK);
    }
    receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE, .number = GATHERED + 2});
    step(c);
    assert_int_equal(c->why, LH_MISMATCH);
    assert_int_equal(card.posted_count, 2);
    assert_int_equal(card.posted[0].what.kind, IB_CHUNK);
    assert_int_equal(card.posted[1].what.kind, IB_GOODBYE);
    ib_cancel(c);
    step(c);
    ib_close_conn(c);
}

/* It has ended with nothing acknowledged since: whether it still waits for that, by then. */
static bool leaves_still(lh_conn_t *c, uint64_t until_ns)
{
    bare.now = until_ns;
    step(c);
    return c->state == IB_LEAVING;
}

/* Behind a window, a goodbye leaves when that has: 2.5 MB at 0.2 Gb/s take 100 ms, and the answer another round
 * trip. No peer holds an end up for more than half a second. */
static void a_goodbye_has_the_time_of_what_is_in_front_of_it(void **state)
{
    static const struct {
        uint64_t trip_ns, rate, in_flight, leave_ms;
    } links[] = {{0, 0, 1 << 20, 50},
                 {100 * MS, 25000000, 0, 150},
                 {100 * MS, 25000000, 2500000, 250},
                 {100 * MS, 25000000, 250000000, 500},
                 {10000 * (uint64_t)MS, 25000000, 0, 500}};
    (void)state;
    for (uint32_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        lh_conn_t *c = open_conn(false);
        c->link.round_trip_ns = links[i].trip_ns;
        c->link.bytes_per_second = links[i].rate;
        c->in_flight = links[i].in_flight;
        atomic_store(&c->round_trip_ns, 0); /* of the probe, on this card's clock */
        atomic_store(&c->rate, 0);
        const uint64_t begin = bare.now;
        ib_conn_break(c, LH_MISMATCH, "tags");
        assert_int_equal(card.posted[card.posted_count - 1].what.kind, IB_GOODBYE);
        assert_true(leaves_still(c, begin + (links[i].leave_ms - 1) * MS));
        assert_false(leaves_still(c, begin + (links[i].leave_ms + 1) * MS));
        assert_int_equal(c->state, IB_DRAINED);
        ib_close_conn(c);
    }
}

/* What the card flushes of one that fails ends no wait for the goodbye, which went over another. */
static void a_goodbye_outlives_one_that_fails(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    fail_send(c, 0);
    ib_conn_break(c, LH_MISMATCH, "tags");
    assert_int_equal(card.posted[card.posted_count - 1].what.kind, IB_GOODBYE);
    assert_int_equal(card.posted[card.posted_count - 1].pair, 1);
    flush(c, 0);
    assert_int_equal(c->state, IB_LEAVING);
    complete(c, 1);
    step(c);
    assert_int_equal(c->state, IB_DRAINED);
    ib_close_conn(c);
}

/* The clock of these tests goes on by 1 us at each look. */
static void a_connection_that_is_well_asks_the_clock_seldom(void **state)
{
    enum { LOOK = 1000 };
    (void)state;
    lh_conn_t *c = open_conn(false);
    lh_region_t region = {.base = memory,
                          .bytes = ROOM,
                          .mrs = {bare_reg_mr(NULL, memory, ROOM, 0)},
                          .kind = LH_MEM_HOST};
    take_grant(c, 1);
    uint64_t before = bare.now;
    for (int i = 0; i < 10; i++)
        step(c);
    assert_int_equal(bare.now, before);
    assert_int_equal(ib_isend(c, &region, memory, 8, 3, 0), LH_OK);
    /* To choose a queue pair of several, and when it was posted. */
    assert_int_equal(bare.now, before + 2 * LOOK);
    complete(c, card.posted[0].pair);
    before = bare.now;
    step(c);
    assert_int_equal(bare.now, before + LOOK);
    transport.looks = true;
    step(c);
    assert_int_equal(bare.now, before + 2 * LOOK);
    close_conn(c);
}

static bool poll_looks(void)
{
    lh_wire_event_t event;
    uint32_t count;
    assert_int_equal(ib_api.poll(&transport, &event, sizeof(event), 1, &count), LH_OK);
    return transport.looks;
}

/* A host that waits polls all the time, and one that computes now and then. */
static void an_idle_queue_pair_sends_its_packet_however_seldom_polls_are(void **state)
{
    enum { SPINS = 1000, PAUSE_US = 30000 };
    uint32_t looks = 0;
    (void)state;
    config.keepalive_ns = 1000 * (uint64_t)MS;
    lh_conn_t *c = open_conn(false);
    card.asked = 0;
    for (uint32_t i = 0; i < SPINS; i++)
        looks += poll_looks();
    assert_true(looks > 0 && looks < SPINS / 2);
    assert_int_equal(card.asked, looks); /* the connection manager, no more often */
    card.lists = 0;
    bare.now += 2 * config.keepalive_ns;
    (void)usleep(PAUSE_US);
    assert_true(poll_looks());
    assert_int_equal(card.lists, PAIRS);
    config.keepalive_ns = 0;
    close_conn(c);
}

/* With the first that is due, those that were idle for half as long: who sleeps wakes once. */
static void idle_queue_pairs_send_their_packets_together(void **state)
{
    static const uint64_t idle_ms[PAIRS] = {1001, 600, 300};
    (void)state;
    config.keepalive_ns = 1000 * (uint64_t)MS;
    lh_conn_t *c = open_conn(false);
    bare.now = 10000 * (uint64_t)MS;
    for (uint32_t i = 0; i < PAIRS; i++)
        c->pairs[i].heard_ns = bare.now - idle_ms[i] * MS;
    transport.looks = true;
    card.lists = 0;
    for (int i = 0; i < 2; i++) { /* what is on its way is not sent again */
        step(c);
        assert_int_equal(card.lists, 2);
        assert_int_equal(ib_pair_wrs(&c->pairs[0]), 1);
        assert_int_equal(ib_pair_wrs(&c->pairs[1]), 1);
        assert_int_equal(ib_pair_wrs(&c->pairs[2]), 0);
    }
    config.keepalive_ns = 0;
    close_conn(c);
}

static int req_notify_cq(LH_UNUSED verbs_cq_t *cq, LH_UNUSED int solicited_only)
{
    return 0;
}

/* No completion says so, and what is due is other than before. */
static void a_queue_pair_that_takes_no_receive_requests_keeps_nobody_asleep(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    context.ops.req_notify_cq = req_notify_cq;
    receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE});
    step(c);
    assert_int_equal(c->pairs[0].spent, 1);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 0), LH_OK);
    card.refuses = true;
    assert_int_equal(ib_api.arm(&transport), LH_AGAIN);
    assert_int_equal(card.stopped, c->pairs[0].qp->number);
    assert_true(ib_conn_due(c) <= bare.now + 100 * MS);
    flush(c, 0);
    assert_int_equal(c->pairs[0].state, IB_PAIR_DOWN);
    assert_true(ib_conn_due(c) <= c->worse_ns);
    close_conn(c);
}

/* A connection whose owner may sleep. */
static lh_conn_t *open_sleeper(void)
{
    lh_conn_t *c = open_conn(false);
    context.ops.req_notify_cq = req_notify_cq;
    transport.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    transport.timer_ns = UINT64_MAX;
    return c;
}

/* As who goes to sleep asks for it: the milliseconds that are left. */
static int64_t timer_ms(void)
{
    struct itimerspec left;
    assert_int_equal(ib_api.arm(&transport), LH_OK);
    assert_int_equal(timerfd_gettime(transport.timer, &left), 0);
    return left.it_value.tv_sec * 1000 + left.it_value.tv_nsec / MS;
}

/* Likewise, the idle queue pairs' last packet being heard `ago` before now. */
static int64_t sleep_ms(lh_conn_t *c, uint64_t ago)
{
    for (uint32_t i = 0; i < PAIRS; i++)
        c->pairs[i].heard_ns = bare.now - ago;
    return timer_ms();
}

/* The bare clock stands still meanwhile, and the kernel's all but does. */
static void a_timer_is_set_for_what_is_due_sooner_alone(void **state)
{
    (void)state;
    config.keepalive_ns = 1000000 * (uint64_t)MS;
    lh_conn_t *c = open_sleeper();
    const uint64_t begin = 800000 * (uint64_t)MS;
    bare.now = begin;
    const int64_t first = sleep_ms(c, 600000 * (uint64_t)MS);
    assert_true(first > 300000 && first <= 400000);
    assert_true(sleep_ms(c, 0) <= first); /* later: it stays */
    const int64_t sooner = sleep_ms(c, 700000 * (uint64_t)MS);
    assert_true(sooner > 200000 && sooner <= 300000);
    bare.now = begin + 301000 * (uint64_t)MS; /* it has passed */
    const int64_t next = sleep_ms(c, 0);
    assert_true(next > 900000 && next <= 1000000);
    config.keepalive_ns = 0;
    (void)close(transport.timer);
    close_conn(c);
}

/* The longest that it may take: half a second. */
static lh_conn_t *open_leaver(void)
{
    lh_conn_t *c = open_sleeper();
    c->link.round_trip_ns = 10000 * (uint64_t)MS;
    card.posted_count = 0;
    ib_conn_break(c, LH_MISMATCH, "tags");
    assert_int_equal(card.posted_count, 1);
    assert_int_equal(card.posted[0].what.kind, IB_GOODBYE);
    const int64_t left = timer_ms();
    assert_true(left > 0 && left <= 500);
    return c;
}

static void leaver_close(lh_conn_t *c)
{
    step(c);
    assert_int_equal(c->state, IB_DRAINED);
    (void)close(transport.timer);
    ib_close_conn(c);
}

static void who_leaves_sleeps_until_its_goodbye_has_arrived(void **state)
{
    (void)state;
    lh_conn_t *c = open_leaver();
    complete(c, card.posted[0].pair);
    assert_int_equal(ib_api.arm(&transport), LH_AGAIN);
    assert_int_equal(c->state, IB_LEAVING); /* the poll that follows tells of it */
    assert_int_equal(ib_api.arm(&transport), LH_AGAIN);
    leaver_close(c);
}

/* At the very time that the timer was set to. */
static void who_leaves_sleeps_no_longer_than_its_goodbye_may_take(void **state)
{
    enum { LOOK = 1000 };
    (void)state;
    lh_conn_t *c = open_leaver();
    bare.now = ib_conn_due(c) - LOOK;
    leaver_close(c);
}

/* It is seen while another queue pair is being stopped, and no completion says so. */
static void an_end_of_the_peer_keeps_nobody_asleep(void **state)
{
    (void)state;
    lh_conn_t *c = open_sleeper();
    fail_send(c, 0);
    ib_conn_break(c, LH_MISMATCH, "tags");
    bare.now += 10 * MS;
    assert_true(timer_ms() <= 50);
    bare.now += 10 * MS;
    card.event = (cm_event_t){.id = c->pairs[1].id, .type = CM_DISCONNECTED};
    assert_int_equal(ib_api.arm(&transport), LH_AGAIN);
    assert_true(c->ended);
    leaver_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_goes_where_it_would_end_first),
        cmocka_unit_test(chunks_go_over_as_many_queue_pairs_as_are_used),
        cmocka_unit_test(receive_requests_are_posted_again_in_lists),
        cmocka_unit_test(messages_that_can_leave_at_once_are_posted_together),
        cmocka_unit_test(messages_that_were_posted_together_are_written_again_one_by_one),
        cmocka_unit_test(what_is_sent_again_is_paced),
        cmocka_unit_test(messages_before_a_wrong_one_leave),
        cmocka_unit_test(a_goodbye_has_the_time_of_what_is_in_front_of_it),
        cmocka_unit_test(a_goodbye_outlives_one_that_fails),
        cmocka_unit_test(a_connection_that_is_well_asks_the_clock_seldom),
        cmocka_unit_test(an_idle_queue_pair_sends_its_packet_however_seldom_polls_are),
        cmocka_unit_test(idle_queue_pairs_send_their_packets_together),
        cmocka_unit_test(a_queue_pair_that_takes_no_receive_requests_keeps_nobody_asleep),
        cmocka_unit_test(a_timer_is_set_for_what_is_due_sooner_alone),
        cmocka_unit_test(who_leaves_sleeps_until_its_goodbye_has_arrived),
        cmocka_unit_test(who_leaves_sleeps_no_longer_than_its_goodbye_may_take),
        cmocka_unit_test(an_end_of_the_peer_keeps_nobody_asleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
