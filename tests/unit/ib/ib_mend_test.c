/* ib_mend_test.c - queue pairs of the ib transport that fail and are met again: what came over them counts, and
 * who has gone is known; and who proves to have the job's key when both meet. */
#include "ib_conn_rig.h"

/* That the other end is ready was lost with the port that it said so over, which has come back. */
static void one_that_meets_is_up_once_anything_comes_over_it(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    ib_pair_t *p = &c->pairs[2];
    p->state = IB_PAIR_MEETING;
    p->turn = 1;
    p->away = true;
    p->give_up_ns = bare.now + 1000 * MS;
    atomic_store(&c->pairs_up, PAIRS - 1);
    receive(c, 2, &(ib_immediate_t){.kind = IB_NOTICE});
    step(c);
    assert_true(p->state == IB_PAIR_UP && !p->away);
    assert_int_equal(atomic_load(&c->pairs_up), PAIRS);
    assert_int_equal(p->arrived, 1);
    close_conn(c);
}

/* The other end's card has been told so: were it not counted, that end would take the greeting for corrupt. */
static void what_comes_before_one_that_fails_is_stopped_counts(void **state)
{
    uint8_t raw[IB_GREETING_BYTES];
    ib_greeting_t greeting;
    (void)state;
    lh_conn_t *c = open_conn(true);
    const ib_pair_t *p = &c->pairs[0];
    card.late = (verbs_wc_t){
        .id = 0,
        .opcode = VERBS_WC_RECEIVE_IMMEDIATE,
        .immediate = htonl(ib_immediate_write(&(ib_immediate_t){.kind = IB_NOTICE})),
        .pair = p->qp->number};
    fail_send(c, 0);
    step(c);
    assert_int_equal(p->state, IB_PAIR_UP); /* it was not flushed yet */
    flush(c, 0);
    assert_true(p->state != IB_PAIR_UP && p->turn == 1);
    ib_greeting_pack(p, raw);
    assert_true(ib_greeting_read(raw, sizeof(raw), &greeting));
    assert_true(greeting.turn == 1 && greeting.board == 1);
    close_conn(c);
}

static void one_that_fails_and_flushes_nothing_is_waited_for_a_while(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    fail_send(c, 2);
    const uint64_t begin = bare.now;
    assert_true(ib_conn_due(c) <= bare.now + 100 * MS);
    step(c);
    assert_int_equal(c->pairs[2].state, IB_PAIR_UP);
    bare.now = begin + 100 * (uint64_t)MS;
    step(c);
    assert_int_equal(c->pairs[2].state, IB_PAIR_DOWN);
    close_conn(c);
}

/* The peer takes notices in the order of their numbers, and of those that the first has carried nobody knows
 * yet which have come. */
static void notices_wait_for_one_that_leads_and_is_being_stopped(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 0), LH_OK);
    step(c);
    assert_true(card.posted_count == 1 && card.posted[0].pair == c->lead);
    fail_send(c, c->lead);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 1), LH_OK);
    step(c);
    assert_int_equal(card.posted_count, 1);
    close_conn(c);
}

/* It has carried none, or is away. */
static void another_leads_that_is_not_being_stopped(void **state)
{
    (void)state;
    for (uint32_t stopped = 0; stopped < 2; stopped++) {
        lh_conn_t *c = open_conn(false);
        fail_send(c, stopped);
        if (stopped == 1) hear_away(c, 2, 0, 0);
        assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 0), LH_OK);
        step(c);
        assert_int_equal(c->pairs[stopped].state, IB_PAIR_UP);
        assert_int_equal(card.posted_count,
                         1 + stopped); /* the other one that is away is answered */
        assert_int_equal(card.posted[0].what.kind, IB_NOTICE);
        assert_int_equal(card.posted[0].pair, 1 + stopped);
        assert_int_equal(c->lead, 1 + stopped);
        close_conn(c);
    }
}

/* Each look is a system call: as an error is seen, as the queue pair goes down, and once a millisecond between
 * them. */
static void a_queue_pair_that_is_being_stopped_asks_for_few_events(void **state)
{
    enum { POLLS = 100 };
    (void)state;
    lh_conn_t *c = open_conn(false);
    bare.now = 1000 * MS;
    fail_send(c, 2);
    assert_true(card.asked >= 1);
    card.asked = 0;
    const uint64_t begin = bare.now;
    for (uint32_t i = 0; i < POLLS; i++)
        step(c);
    assert_true(bare.now < begin + MS);
    assert_int_equal(card.asked, 0);
    bare.now += 2 * MS;
    step(c);
    assert_int_equal(card.asked, 1);
    flush(c, 2);
    assert_int_equal(card.asked, 2);
    assert_int_equal(c->pairs[2].state, IB_PAIR_DOWN);
    close_conn(c);
}

/* At the end that listens, where the other one does not say in time that it is ready. */
static lh_conn_t *open_meeting(ib_pair_t **out)
{
    lh_conn_t *c = open_conn(false);
    ib_pair_t *p = &c->pairs[2];
    p->state = IB_PAIR_MEETING;
    p->turn = 1;
    p->give_up_ns = bare.now + 1000 * MS;
    p->failure = "it was lost";
    atomic_store(&c->pairs_up, PAIRS - 1);
    *out = p;
    return c;
}

/* It is ready after all, just then, and knows that what it wrote has arrived. */
static void what_came_over_one_that_meets_counts_though_it_is_parted_with(void **state)
{
    ib_pair_t *p;
    (void)state;
    lh_conn_t *c = open_meeting(&p);
    step(c);
    assert_int_equal(p->state, IB_PAIR_MEETING);
    assert_int_equal(card.posted_count, 0); /* nothing is told yet */
    receive(c, 2, &(ib_immediate_t){.kind = IB_NOTICE});
    flush(c, 2);
    assert_int_equal(p->state, IB_PAIR_DOWN);
    assert_int_equal(atomic_load(&c->pairs_up), PAIRS - 1);
    pass_time(c);
    assert_int_equal(words_on(2, 0) + words_on(2, 1), 1);
    assert_int_equal(card.posted[0].what.number, 1);
    close_conn(c);
}

static void one_that_meets_nobody_is_parted_with(void **state)
{
    ib_pair_t *p;
    (void)state;
    lh_conn_t *c = open_meeting(&p);
    step(c);
    flush(c, 2);
    assert_int_equal(p->state, IB_PAIR_DOWN);
    assert_string_equal(p->failure, "it was lost");
    assert_int_equal(atomic_load(&c->pairs_up), PAIRS - 1);
    assert_int_equal(words_on(2, 0) + words_on(2, 1), 1);
    assert_int_equal(card.posted[0].what.number, 0);
    close_conn(c);
}

/* The connection manager goes on waiting for what says that the other end is ready. */
static void one_that_is_up_by_what_came_is_counted_when_it_is_given_up(void **state)
{
    ib_pair_t *p;
    (void)state;
    lh_conn_t *c = open_meeting(&p);
    receive(c, 2, &(ib_immediate_t){.kind = IB_NOTICE});
    step(c);
    assert_int_equal(p->state, IB_PAIR_UP);
    card.event = (cm_event_t){.id = p->id, .type = CM_UNREACHABLE};
    ib_meet_events(&transport);
    assert_int_equal(p->state, IB_PAIR_UP);
    flush(c, 2);
    assert_int_equal(p->state, IB_PAIR_DOWN);
    assert_int_equal(atomic_load(&c->pairs_up), PAIRS - 1);
    assert_true(p->give_up_ns > bare.now);
    close_conn(c);
}

/* It has written over it, and gone, before this end has looked. */
static void an_end_that_has_gone_is_known_over_one_that_meets(void **state)
{
    ib_pair_t *p;
    (void)state;
    lh_conn_t *c = open_meeting(&p);
    receive(c, 2, &(ib_immediate_t){.kind = IB_NOTICE});
    card.event = (cm_event_t){.id = p->id, .type = CM_DISCONNECTED};
    ib_meet_events(&transport);
    assert_int_equal(p->arrived, 1);
    assert_true(c->ended);
    close_conn(c);
}

/* One that is met again, or for the first time, and is rejected. */
static lh_conn_t *open_rejected(bool again, int by)
{
    lh_conn_t *c = open_conn(true);
    ib_pair_t *p = &c->pairs[1];
    if (again) {
        fail_pair(c, 1);
    } else {
        p->state = IB_PAIR_MEETING;
        atomic_store(&c->pairs_up, PAIRS - 1);
    }
    assert_true(p->state == IB_PAIR_MEETING && p->turn == (again ? 1u : 0u));
    card.event = (cm_event_t){.id = p->id, .type = CM_REJECTED, .status = by};
    ib_meet_events(&transport);
    return c;
}

/* Its number may be held for a queue pair that was before (10), or it has no room (3). */
static void one_that_a_connection_manager_rejects_is_tried_again(void **state)
{
    static const int numbers[] = {10, 3};
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        lh_conn_t *c = open_rejected(i % 2 == 0, numbers[i / 2]);
        assert_int_equal(c->pairs[1].state, IB_PAIR_DOWN);
        assert_false(c->ended);
        pass_time(c);
        assert_true(c->pairs[1].asked);
        assert_int_equal(words_on(1, 0) + words_on(1, 2), 1); /* the others go on without it */
        close_conn(c);
    }
}

/* A program that has gone is known by it. */
static void an_end_that_rejects_has_ended(void **state)
{
    static const int numbers[] = {CM_REJECTED_BY_NOBODY, CM_REJECTED_BY_PROGRAM};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        lh_conn_t *c = open_rejected(true, numbers[i]);
        assert_true(c->ended);
        close_conn(c);
        c = open_rejected(false, numbers[i]);
        assert_true(c->state >= IB_LEAVING);
        assert_int_equal(c->why, LH_UNREACHABLE);
        ib_cancel(c);
        step(c);
        ib_close_conn(c);
    }
}

/* ---- `known`, at the end that listens ---- */

static uint8_t rejected[UINT8_MAX];

static int reject(LH_UNUSED cm_id_t *id, const void *data, uint8_t bytes)
{
    memcpy(rejected, data, bytes);
    return 0;
}

static int accept_id(LH_UNUSED cm_id_t *id, LH_UNUSED cm_param_t *param)
{
    return 0;
}

static lh_status_t derive_key(LH_UNUSED const lh_host_t *of, LH_UNUSED const char *purpose,
                              LH_UNUSED uint32_t peer, void *out, size_t bytes)
{
    memset(out, 3, bytes);
    return LH_OK;
}

/* Signed, but where it asks for a challenge. */
static void request(lh_listener_t *l, const ib_greeting_t *g, const uint8_t *session)
{
    ib_said_t said = {.text = ""};
    cm_event_t event = {.listen_id = l->ids[0], .type = CM_CONNECT_REQUEST};
    assert_true(ib_greeting_write(g, said.raw));
    if (session != NULL) ib_session_sign(session, false, said.raw);
    assert_true(ib_greeting_read(said.raw, IB_GREETING_BYTES, &said.greeting));
    assert_int_equal(create_id(NULL, &event.id, l, 0), 0);
    memset(rejected, 0, sizeof(rejected));
    ib_listener_event(l, event.id, &event, &said);
}

/* Who has heard it can't say it again. And it may be late, as an end may not poll for seconds, but not for ever.
 * The nonces are alike here: it is the challenge that is used up. */
static void a_proof_is_taken_once_and_for_half_a_minute(void **state)
{
    static const uint64_t late_ms[] = {0, 5000, 31000};
    static const uint8_t dials[IB_NONCE_BYTES] = "dialdialdia";
    static lh_listener_t l;
    uint8_t nonce[IB_NONCE_BYTES], session[IB_SESSION_BYTES];
    lh_host_t proves = host;
    (void)state;
    memset(&card, 0, sizeof(card));
    proves.derive_key = derive_key;
    transport = bare_transport(&proves, &config, &context);
    transport.verbs.reject = reject;
    l.transport = &transport;
    l.security = LH_SECURITY_KNOWN;
    assert_int_equal(create_id(NULL, &l.ids[0], &l, 0), 0);
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t taken = l.waiting_count + (i < 2);
        ib_greeting_t g = {
            .pairs = 1, .ports = 1, .security = LH_SECURITY_KNOWN, .first = true, .asks = true};
        memcpy(g.mac, dials, sizeof(dials));
        request(&l, &g, NULL);
        assert_true(ib_challenge_read(rejected, sizeof(rejected), nonce));
        assert_true(ib_session(&proves, 0, dials, nonce, session));
        g.asks = false;
        bare.now += late_ms[i] * MS;
        request(&l, &g, session);
        assert_int_equal(l.waiting_count, taken);
        request(&l, &g, session);
        assert_int_equal(l.waiting_count, taken);
        assert_string_equal((const char *)rejected, ib_not_proven);
    }
}

/* One that replaces another proves itself as well, and each turn is taken once. */
static void a_later_turn_is_proven_and_taken_once(void **state)
{
    static const uint8_t other[IB_SESSION_BYTES] = {1};
    static lh_listener_t l;
    (void)state;
    lh_conn_t *c = open_conn(false);
    ib_pair_t *p = &c->pairs[1];
    transport.verbs.reject = reject;
    transport.verbs.accept = accept_id;
    l.transport = &transport;
    c->security = l.security = LH_SECURITY_KNOWN;
    assert_int_equal(create_id(NULL, &l.ids[0], &l, 0), 0);
    const ib_greeting_t g = {
        .turn = 1, .index = 1, .pairs = PAIRS, .ports = 1, .security = LH_SECURITY_KNOWN};
    fail_pair(c, 1);
    request(&l, &g, other);
    assert_string_equal((const char *)rejected, ib_not_proven);
    assert_true(p->state == IB_PAIR_DOWN && p->turn == 0);
    request(&l, &g, c->session);
    assert_string_equal((const char *)rejected, "");
    assert_true(p->state == IB_PAIR_MEETING && p->turn == 1);
    const cm_id_t *id = p->id;
    request(&l, &g, c->session);
    assert_string_equal((const char *)rejected, ib_has_ended);
    assert_true(p->state == IB_PAIR_MEETING && p->id == id);
    close_conn(c);
}

enum { STRANGERS = 100000 };

static int ask_on(LH_UNUSED cm_channel_t *channel, cm_event_t **out)
{
    card.event = (cm_event_t){.id = &card.ids[QPS - 1], .type = CM_CONNECT_REQUEST};
    *out = &card.event;
    return ++card.asked < STRANGERS ? 0 : -1;
}

/* Who asks faster than is answered keeps nobody from all else. */
static void strangers_that_ask_on_and_on_are_left_for_later(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    card.ids[QPS - 1].context = &transport.nobody;
    card.asked = 0;
    transport.verbs.get_event = ask_on;
    ib_meet_events(&transport);
    assert_true(card.asked > 0 && card.asked < STRANGERS / 10);
    transport.verbs.get_event = get_event;
    card.event.id = NULL;
    close_conn(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_meets_is_up_once_anything_comes_over_it),
        cmocka_unit_test(what_came_over_one_that_meets_counts_though_it_is_parted_with),
        cmocka_unit_test(one_that_meets_nobody_is_parted_with),
        cmocka_unit_test(what_comes_before_one_that_fails_is_stopped_counts),
        cmocka_unit_test(one_that_fails_and_flushes_nothing_is_waited_for_a_while),
        cmocka_unit_test(notices_wait_for_one_that_leads_and_is_being_stopped),
        cmocka_unit_test(another_leads_that_is_not_being_stopped),
        cmocka_unit_test(a_queue_pair_that_is_being_stopped_asks_for_few_events),
        cmocka_unit_test(one_that_is_up_by_what_came_is_counted_when_it_is_given_up),
        cmocka_unit_test(an_end_that_has_gone_is_known_over_one_that_meets),
        cmocka_unit_test(one_that_a_connection_manager_rejects_is_tried_again),
        cmocka_unit_test(an_end_that_rejects_has_ended),
        cmocka_unit_test(a_proof_is_taken_once_and_for_half_a_minute),
        cmocka_unit_test(a_later_turn_is_proven_and_taken_once),
        cmocka_unit_test(strangers_that_ask_on_and_on_are_left_for_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
