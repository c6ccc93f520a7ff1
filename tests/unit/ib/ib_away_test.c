/* ib_away_test.c - queue pairs of the ib transport that both ends part with, over a card that is a few
 * functions here: what is said of them, in which order it may come, and what credits it wants; and what
 * sealed frames wait for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <bare_card.h>

enum { PAIRS = 3, QPS = 16, ROWS = 32, POSTED = 64, ROOM = 4096, MS = 1000000 };

typedef struct posted { /* a write with an immediate */
    uint32_t pair;
    ib_immediate_t what;
} posted_t;

static struct {
    verbs_qp_t qps[QPS];
    cm_id_t ids[QPS];
    uint32_t qp_count, id_count;
    verbs_wc_t rows[ROWS];
    uint32_t row_count;
    posted_t posted[POSTED];
    uint32_t posted_count, receives; /* receives: work requests for what comes */
    uint32_t lists, told;            /* of writes: posted together; those that tell of their end */
    uint32_t receive_lists;
    bool refuses;     /* work requests for what comes */
    uint32_t stopped; /* the number of the queue pair that was stopped last */
    verbs_wc_t late;  /* comes just before its queue pair is stopped; of no pair: nothing does */
    cm_event_t event; /* to be told; of no id: none */
    uint32_t asked;   /* how often for an event */
} card;
static char memory[ROOM];

static const lh_host_t host = {BARE_HOST};

/* ---- the card ---- */

static verbs_qp_t *create_qp(verbs_pd_t *pd, verbs_qp_init_t *how)
{
    assert_true(card.qp_count < QPS);
    verbs_qp_t *qp = &card.qps[card.qp_count];
    *qp = (verbs_qp_t){.context = how->send_cq->context,
                       .pd = pd,
                       .send_cq = how->send_cq,
                       .number = 100 + card.qp_count++};
    return qp;
}

static void push(verbs_wc_t row)
{
    assert_true(card.row_count < ROWS);
    card.rows[card.row_count++] = row;
}

static int modify_qp(verbs_qp_t *qp, verbs_qp_attr_t *attr, LH_UNUSED int mask)
{
    if (attr->state != VERBS_QP_ERROR) return 0;
    card.stopped = qp->number;
    if (card.late.pair == qp->number) push(card.late);
    return 0;
}

static int create_id(LH_UNUSED cm_channel_t *channel, cm_id_t **out, void *context,
                     LH_UNUSED int space)
{
    assert_true(card.id_count < QPS);
    *out = &card.ids[card.id_count++];
    (*out)->context = context;
    return 0;
}

static int set_option(LH_UNUSED cm_id_t *id, LH_UNUSED int level, LH_UNUSED int option,
                      LH_UNUSED void *value, LH_UNUSED size_t bytes)
{
    return 0;
}

/* Nobody answers. */
static int resolve_address(LH_UNUSED cm_id_t *id, LH_UNUSED struct sockaddr *from,
                           LH_UNUSED struct sockaddr *to, LH_UNUSED int timeout_ms)
{
    return 0;
}

static int get_event(LH_UNUSED cm_channel_t *channel, cm_event_t **out)
{
    *out = &card.event;
    card.asked++;
    return card.event.id != NULL ? 0 : -1;
}

static int ack_event(cm_event_t *event)
{
    event->id = NULL;
    return 0;
}

static const char *event_text(LH_UNUSED int type)
{
    return "an event";
}

static int poll_cq(LH_UNUSED verbs_cq_t *cq, int most, verbs_wc_t *out)
{
    assert_true(card.row_count <= (uint32_t)most);
    const uint32_t count = card.row_count;
    memcpy(out, card.rows, count * sizeof(out[0]));
    card.row_count = 0;
    return (int)count;
}

static int post_send(LH_UNUSED verbs_qp_t *qp, verbs_send_wr_t *first, verbs_send_wr_t **bad)
{
    *bad = NULL;
    card.lists++;
    for (const verbs_send_wr_t *wr = first; wr != NULL; wr = wr->next) {
        card.told += (wr->flags & VERBS_SIGNALED) != 0;
        if (wr->opcode != VERBS_WRITE_WITH_IMMEDIATE) continue;
        assert_true(card.posted_count < POSTED);
        posted_t *p = &card.posted[card.posted_count++];
        p->pair = (uint32_t)(wr->id >> 2 & 15);
        assert_true(ib_immediate_read(ntohl(wr->immediate), &p->what));
    }
    return 0;
}

static int post_recv(LH_UNUSED verbs_qp_t *qp, verbs_recv_wr_t *first, verbs_recv_wr_t **bad)
{
    *bad = NULL;
    if (card.refuses) return ENOMEM;
    card.receive_lists++;
    for (const verbs_recv_wr_t *wr = first; wr != NULL; wr = wr->next)
        card.receives++;
    return 0;
}

/* ---- one connection ---- */

static verbs_device_t device;
static verbs_context_t context = {
    .device = &device, .ops = {.poll_cq = poll_cq, .post_send = post_send, .post_recv = post_recv}};
static ib_config_t config;
static lh_transport_t transport;

static void step(lh_conn_t *c)
{
    lh_wire_event_t events[16];
    ib_sink_t sink = {events, sizeof(events[0]), 16, 0};
    ib_conn_step(c, &sink);
}

/* The oldest request of a queue pair ends well. */
static void complete(lh_conn_t *c, uint32_t pair)
{
    const ib_pair_t *p = &c->pairs[pair];
    uint64_t i = p->sent_first;
    while (i < p->sent_end && !p->sent[i % IB_SEND_WRS].signaled)
        i++;
    assert_true(i < p->sent_end);
    push((verbs_wc_t){
        .id = p->sent[i % IB_SEND_WRS].id, .opcode = VERBS_WC_SEND_WRITE, .pair = p->qp->number});
}

/* All of its queue pairs are up. */
static lh_conn_t *open_conn(bool dials)
{
    memset(&card, 0, sizeof(card));
    const ib_tuning_t tuning = {.queue_pairs = PAIRS, .chunk_bytes = ROOM, .window_bytes = 1 << 20};
    transport = bare_transport(&host, &config, &context);
    ib_verbs_t *v = &transport.verbs;
    v->create_qp = create_qp;
    v->modify_qp = modify_qp;
    v->create_id = create_id;
    v->set_option = set_option;
    v->resolve_address = resolve_address;
    v->get_event = get_event;
    v->ack_event = ack_event;
    v->event_text = event_text;
    lh_conn_t *c = ib_conn_new(&transport, dials ? IB_DIALING : IB_MET);
    assert_non_null(c);
    c->security = LH_SECURITY_PLAIN;
    c->patience_ns = 3000000000;
    c->give_up_ns = UINT64_MAX;
    assert_true(bare_conn_open(c, &tuning, card.ids));
    card.id_count = PAIRS;
    step(c);
    for (uint32_t i = 0; i < PAIRS; i++)
        complete(c, i); /* the probe of its path */
    step(c);
    step(c);
    assert_true(c->up_said);
    card.posted_count = 0;
    return c;
}

static void close_conn(lh_conn_t *c)
{
    assert_int_equal(c->state, IB_OPEN);
    ib_cancel(c);
    step(c);
    assert_int_equal(c->state, IB_DRAINED);
    ib_close_conn(c);
}

static void receive(lh_conn_t *c, uint32_t over, const ib_immediate_t *what)
{
    push((verbs_wc_t){.id = (uint64_t)over << 2,
                      .opcode = VERBS_WC_RECEIVE_IMMEDIATE,
                      .immediate = htonl(ib_immediate_write(what)),
                      .pair = c->pairs[over].qp->number});
}

/* The other end says of a queue pair that it is down, and that nothing came over it. */
static void hear_away(lh_conn_t *c, uint32_t over, uint32_t index, uint32_t turn)
{
    receive(c, over, &(ib_immediate_t){.kind = IB_AWAY, .index = index, .turn = turn});
}

static void fail_pair(lh_conn_t *c, uint32_t pair)
{
    push((verbs_wc_t){.id = (uint64_t)pair << 2,
                      .status = VERBS_WC_RETRIES_EXCEEDED,
                      .pair = c->pairs[pair].qp->number});
    step(c);
    assert_true(c->pairs[pair].state != IB_PAIR_UP);
}

/* It is time to part with what has not come back. */
static void pass_time(lh_conn_t *c)
{
    bare.now += 300 * MS;
    step(c);
}

static uint32_t words_on(uint32_t index, uint32_t over)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < card.posted_count; i++)
        count += card.posted[i].what.kind == IB_AWAY && card.posted[i].what.index == index &&
                 card.posted[i].pair == over;
    return count;
}

/* The end that listens has said so before it was asked, of the turn that it knew, and that came over
 * a slower one. */
static void an_answer_is_taken_though_an_older_word_comes_behind_it(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(true);
    fail_pair(c, 0);
    pass_time(c);
    assert_true(c->pairs[0].asked && c->pairs[0].turn == 1);
    hear_away(c, 1, 0, 0);
    step(c);
    assert_false(c->pairs[0].away); /* no answer */
    hear_away(c, 1, 0, 1);
    hear_away(c, 2, 0, 0);
    step(c);
    assert_true(c->pairs[0].away);
    close_conn(c);
}

static void a_word_leaves_without_a_credit(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    for (uint32_t i = 1; i < PAIRS; i++)
        c->pairs[i].credits.used = c->pairs[i].credits.granted;
    fail_pair(c, 0);
    assert_int_equal(card.posted_count, 0);
    pass_time(c);
    assert_true(c->pairs[0].asked);
    assert_int_equal(words_on(0, 1) + words_on(0, 2), 1);
    for (uint32_t i = 1; i < PAIRS; i++) {
        assert_int_equal(ib_credits_left(&c->pairs[i].credits), 0);
        assert_false(ib_credits_for_chunk(&c->pairs[i].credits, 0));
        assert_false(ib_credits_for_notice(&c->pairs[i].credits, false));
    }
    close_conn(c);
}

/* Both ends may have used all of the one that notices go over while nothing came over it, and tell what
 * came over another meanwhile: neither could tell later what came over this one. For what leaves so there
 * are more work requests than the other end has credits for. */
static void what_gives_credits_back_leaves_without_one(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    ib_credits_t *lead = &c->pairs[c->lead].credits;
    assert_int_equal(card.receives, PAIRS * (IB_RECEIVES + IB_SPARE));
    lead->used = lead->granted;
    for (uint32_t i = 1; i < PAIRS; i++) {
        c->pairs[i].credits.posted += IB_RECEIVES / 2;
        step(c);
        assert_int_equal(card.posted_count, i);
        assert_int_equal(card.posted[i - 1].what.kind, IB_NOTICE);
        assert_int_equal(card.posted[i - 1].pair, c->lead);
        assert_int_equal(c->pairs[i].credits.told, c->pairs[i].credits.posted);
    }
    assert_int_equal(lead->used, lead->granted + PAIRS - 1);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 0), LH_OK); /* nobody waits for it alone */
    step(c);
    assert_int_equal(card.posted_count, PAIRS - 1);
    close_conn(c);
}

static void a_word_on_the_one_that_it_came_over_is_corrupt(void **state)
{
    (void)state;
    for (uint32_t index = 1; index <= PAIRS; index += PAIRS - 1) { /* of none, likewise */
        lh_conn_t *c = open_conn(false);
        hear_away(c, 1, index, 0);
        step(c);
        assert_int_equal(c->why, LH_CORRUPT);
        assert_true(c->state >= IB_LEAVING);
        ib_cancel(c);
        step(c);
        ib_close_conn(c);
    }
}

/* A chunk in front of two notices, over one that is then down at the peer. */
static lh_conn_t *open_loaded(lh_region_t *region)
{
    lh_conn_t *c = open_conn(false);
    *region = (lh_region_t){.base = memory,
                            .bytes = ROOM,
                            .mrs = {bare_reg_mr(NULL, memory, ROOM, 0)},
                            .kind = LH_MEM_HOST};
    c->board->grants[0] = (ib_grant_t){
        .number = 1, .address = 1 << 20, .bytes = ROOM, .keys = {5}, .tag = 3};
    receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE, .number = 1});
    step(c);
    assert_int_equal(c->granted, 1);
    assert_int_equal(ib_isend(c, region, memory, 200, 3, 0), LH_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, i), LH_OK);
        step(c);
    }
    assert_int_equal(card.posted_count, 3);
    assert_int_equal(card.posted[0].what.kind, IB_CHUNK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(card.posted[i].pair, 0);
    card.posted_count = 0;
    return c;
}

static void notices_are_told_anew_in_one_in_front_of_chunks(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_loaded(&region);
    for (uint32_t i = 1; i < PAIRS; i++)
        c->pairs[i].credits.used = c->pairs[i].credits.granted - 2; /* for no chunk */
    hear_away(c, 1, 0, 0);
    step(c);
    assert_true(c->pairs[0].away);
    assert_int_equal(words_on(0, 1) + words_on(0, 2), 1); /* it is answered */
    assert_int_equal(card.posted_count, 2);
    const posted_t *notice = &card.posted[card.posted[0].what.kind == IB_NOTICE ? 0 : 1];
    assert_int_equal(notice->what.kind, IB_NOTICE);
    assert_int_equal(notice->what.number, 2);
    assert_int_equal(c->lead, notice->pair);
    assert_int_equal(c->notices_out, 1); /* the other end has taken none */
    assert_int_equal(c->receive_told, 2);
    assert_int_equal(ib_pair_wrs(&c->pairs[0]), 1);
    assert_true(ib_pair_waits(&c->pairs[0]));
    c->pairs[2].credits.granted += IB_RECEIVES / 2;
    step(c);
    assert_int_equal(ib_pair_wrs(&c->pairs[0]), 0);
    assert_false(ib_pair_waits(&c->pairs[0]));
    assert_int_equal(card.posted_count, 3);
    assert_int_equal(card.posted[2].what.kind, IB_CHUNK);
    assert_int_equal(card.posted[2].pair, 2);
    close_conn(c);
}

/* Where neither is left with a credit what tells anew goes as well. */
static void what_is_told_anew_leaves_without_a_credit(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_loaded(&region);
    for (uint32_t i = 1; i < PAIRS; i++)
        c->pairs[i].credits.used = c->pairs[i].credits.granted;
    hear_away(c, 1, 0, 0);
    step(c);
    assert_int_equal(card.posted_count, 2);
    assert_false(c->retells);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 2), LH_OK); /* and no more */
    step(c);
    assert_int_equal(card.posted_count, 2);
    close_conn(c);
}

/* At once, and not when the other end has answered for the one that carried it: that answer may be on the
 * queue pair that the word is about. */
static void a_word_that_went_with_another_is_said_again(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(true);
    fail_pair(c, 0);
    pass_time(c);
    assert_int_equal(words_on(0, 1), 1);
    fail_pair(c, 1);
    pass_time(c);
    assert_true(c->pairs[0].asked && c->pairs[1].asked);
    assert_int_equal(words_on(1, 2), 1);
    assert_int_equal(words_on(0, 2), 1);
    hear_away(c, 2, 0, 1);
    hear_away(c, 2, 1, 1);
    step(c);
    assert_true(c->pairs[1].away && c->pairs[0].away);
    assert_int_equal(words_on(0, 2), 1);
    assert_int_equal(ib_pair_wrs(&c->pairs[1]), 0);
    close_conn(c);
}

/* Likewise the answer of the end that listens; one that comes twice is answered twice. */
static void an_answer_that_went_with_another_is_said_again(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    hear_away(c, 1, 0, 1);
    step(c);
    assert_true(c->pairs[0].away);
    const uint32_t over = words_on(0, 1) == 1 ? 1 : 2;
    assert_int_equal(words_on(0, over), 1);
    fail_pair(c, over);
    pass_time(c);
    assert_int_equal(words_on(0, 3 - over), 1);
    hear_away(c, 3 - over, 0, 1);
    step(c);
    assert_true(c->pairs[0].away);
    assert_int_equal(words_on(0, 3 - over), 2);
    close_conn(c);
}

/* It is met again whatever is under way over the one that leads. */
static void one_with_chunks_alone_waits_for_no_notice(void **state)
{
    lh_region_t region;
    (void)state;
    lh_conn_t *c = open_loaded(&region);
    c->board->grants[1] = (ib_grant_t){
        .number = 2, .address = 1 << 20, .bytes = ROOM, .keys = {5}, .tag = 3};
    receive(c, 0, &(ib_immediate_t){.kind = IB_NOTICE, .number = 2});
    step(c);
    assert_int_equal(ib_isend(c, &region, memory, 100, 3, 1), LH_OK);
    const uint32_t other = card.posted[0].pair;
    assert_true(other != 0 && ib_pair_wrs(&c->pairs[other]) == 1);
    fail_pair(c, other);
    assert_false(ib_pair_waits(&c->pairs[other]));
    close_conn(c);
}

/* Of a later turn, at the end that listens, which the other end then writes over. */
static void renew_pair(lh_conn_t *c, uint32_t pair, uint32_t turn)
{
    const ib_greeting_t greeting = {.turn = turn, .index = pair};
    ib_pair_t *p = &c->pairs[pair];
    cm_id_t *id;
    assert_int_equal(create_id(NULL, &id, &p->watch, 0), 0);
    ib_pair_renew(p, &greeting, id);
    assert_int_equal(p->state, IB_PAIR_MEETING);
    assert_int_equal(ib_pair_make(p), LH_OK);
    receive(c, pair, &(ib_immediate_t){.kind = IB_NOTICE, .number = (uint32_t)c->granted});
    step(c);
    assert_int_equal(p->state, IB_PAIR_UP);
}

/* It was replaced while there was no other, and its path carries small packets: what was told over it
 * has arrived, but may not have been looked at. */
static void one_in_doubt_leads_as_long_as_its_notices_may_be_overtaken(void **state)
{
    (void)state;
    lh_conn_t *c = open_conn(false);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 0), LH_OK);
    step(c);
    assert_true(card.posted_count == 1 && card.posted[0].pair == 0);
    fail_pair(c, 0);
    c->pairs[0].lost = IB_DOUBT;
    renew_pair(c, 0, 1);
    assert_true(card.posted_count == 2 && card.posted[1].what.kind == IB_NOTICE);
    complete(c, 0);
    assert_int_equal(ib_irecv(c, NULL, NULL, 0, 4, 1), LH_OK);
    step(c);
    assert_true(card.posted_count == 3 && card.posted[2].what.kind == IB_NOTICE);
    assert_int_equal(card.posted[2].pair, 0);
    fail_pair(c, 0);
    receive(c, 1, &(ib_immediate_t){.kind = IB_AWAY, .number = 1, .index = 0, .turn = 1});
    step(c);
    assert_true(c->pairs[0].away);
    assert_true(c->lead != 0);
    close_conn(c);
}

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

/* What a stopped queue pair ends with. */
static void flush(lh_conn_t *c, uint32_t pair)
{
    assert_int_equal(card.stopped, c->pairs[pair].qp->number);
    push((verbs_wc_t){
        .id = (uint64_t)pair << 2, .status = VERBS_WC_FLUSHED, .pair = c->pairs[pair].qp->number});
    step(c);
}

/* Retries exceeded, of something that was sent: that says nothing of what still comes. */
static void fail_send(lh_conn_t *c, uint32_t pair)
{
    enum { ID_OTHER = 3 };
    push((verbs_wc_t){.id = (uint64_t)pair << 2 | ID_OTHER,
                      .status = VERBS_WC_RETRIES_EXCEEDED,
                      .pair = c->pairs[pair].qp->number});
    step(c);
    assert_int_equal(c->pairs[pair].state, IB_PAIR_UP);
    assert_int_equal(card.stopped, c->pairs[pair].qp->number);
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
    for (uint32_t i = 0; i < SPINS; i++)
        looks += poll_looks();
    assert_true(looks > 0 && looks < SPINS / 2);
    card.lists = 0;
    bare.now += 2 * config.keepalive_ns;
    (void)usleep(PAUSE_US);
    assert_true(poll_looks());
    assert_int_equal(card.lists, PAIRS);
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

/* ---- registered memory ---- */

static char said[256];

LH_PRINTF(3, 4)
static lh_status_t say(LH_UNUSED const lh_host_t *of, lh_status_t status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(said, sizeof(said), fmt, args);
    va_end(args);
    return status;
}

enum { LOCKED_MOST = 1000 };

static verbs_mr_t *register_little(verbs_pd_t *pd, void *address, size_t bytes, int access)
{
    if (bytes <= LOCKED_MOST) return bare_reg_mr(pd, address, bytes, access);
    errno = ENOMEM;
    return NULL;
}

static lh_status_t register_memory(lh_transport_t *t, uint64_t bytes, lh_region_t **out)
{
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = memory,
                              .bytes = bytes,
                              .fd = -1};
    return ib_register(t, 0, &arena, out);
}

/* What fails is not what has taken most of the limit: who raises it by that alone raises it again. */
static void memory_that_is_held_already_is_told_of(void **state)
{
    static const char ends[] =
        "registering 3000 bytes with card; a process may lock 4096 bytes in all "
        "(ulimit -l), with ";
    static lh_transport_t t;
    struct rlimit before;
    lh_host_t speaks = host;
    lh_region_t *rows[2], *none;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){4096, before.rlim_max}), 0);
    speaks.fail = say;
    t = bare_transport(&speaks, &config, &context);
    t.verbs.reg_mr = register_little;
    (void)snprintf(t.ports[0].device, sizeof(t.ports[0].device), "card");
    assert_int_equal(register_memory(&t, 300, &rows[0]), LH_OK);
    assert_int_equal(register_memory(&t, LOCKED_MOST, &rows[1]), LH_OK);
    for (uint32_t i = 0; i < 3; i++) {
        static const char *const held[] = {"1300 held already", "1000 held already",
                                           "0 held already"};
        assert_int_equal(register_memory(&t, 3000, &none), LH_IO);
        assert_memory_equal(said, ends, sizeof(ends) - 1);
        assert_string_equal(said + sizeof(ends) - 1, held[i]);
        if (i < 2) ib_release(&t, rows[i]);
    }
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

/* A connection of four queue pairs, at an end that dials or listens, on a card with so many work requests for each
 * queue; what there are then. */
static uint32_t fitted_pairs(uint32_t wrs, bool dials, lh_status_t expected)
{
    static lh_transport_t t;
    lh_host_t speaks = host;
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted), .streams = 4};
    const lh_conn_params_t params = {.struct_size = sizeof(params), .tuning = &wanted};
    speaks.fail = say;
    t = bare_transport(&speaks, &config, &context);
    t.wrs = wrs;
    (void)snprintf(t.ports[0].device, sizeof(t.ports[0].device), "card");
    lh_conn_t *c = ib_conn_new(&t, dials ? IB_DIALING : IB_MET);
    assert_non_null(c);
    c->peer_ports = 1;
    c->pair_count = 4;
    assert_int_equal(ib_take_params(c, &params), expected);
    const uint32_t pairs = c->tuning.queue_pairs;
    assert_true(expected != LH_OK ||
                c->tuning.window_most == (IB_RECEIVES - 2) * pairs * c->tuning.chunk_bytes);
    ib_close_conn(c);
    return pairs;
}

/* Five for each, beside 128. Who listens can't choose. */
static void queue_pairs_are_those_that_work_requests_are_enough_for(void **state)
{
    (void)state;
    assert_int_equal(fitted_pairs(IB_SEND_WRS, true, LH_OK), 4);
    assert_int_equal(fitted_pairs(148, true, LH_OK), 4);
    assert_int_equal(fitted_pairs(148, false, LH_OK), 4);
    assert_int_equal(fitted_pairs(147, true, LH_OK), 3);
    assert_int_equal(fitted_pairs(133, true, LH_OK), 1);
    (void)fitted_pairs(147, false, LH_INVALID);
    assert_non_null(strstr(said,
                           "a connection of 4 queue pairs, and card has 147 work requests for "
                           "each queue of one, enough for 3 queue pairs"));
    config.queue_pairs = 4;
    (void)fitted_pairs(147, true, LH_INVALID);
    config.queue_pairs = 0;
}

static lh_status_t start_none(LH_UNUSED const lh_host_t *of, LH_UNUSED const char *name,
                              LH_UNUSED void (*body)(void *), LH_UNUSED void *argument,
                              lh_thread_t **out)
{
    *out = NULL;
    return LH_OK;
}

static void join_none(LH_UNUSED const lh_host_t *of, LH_UNUSED lh_thread_t *thread)
{
}

/* `private`: with them a later connection would sleep, and not be woken by what they have done. */
static void threads_that_can_not_be_watched_are_not_kept(void **state)
{
    static const lh_host_t starts = {BARE_HOST, .thread_start = start_none,
                                     .thread_join = join_none};
    static const ib_config_t one = {.seal_threads = 1};
    static lh_transport_t t;
    (void)state;
    t = bare_transport(&starts, &one, &context);
    t.epoll = -1;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ib_transport_seals(&t), LH_IO);
        assert_null(t.pool);
    }
}

/* `private`: what is sealed waits for room on the line, and what is being sealed takes none. */
static void a_sealed_frame_waits_for_room_in_the_window(void **state)
{
    enum { BYTES = 1000, SLOTS = 4 };
    (void)state;
    lh_conn_t *c = open_conn(false);
    ib_job_t job = {.conn = c, .head = {.bytes = BYTES}, .frame = (uint8_t *)memory};
    c->tuning.window_bytes = 2 * (BYTES + IB_SEAL_OVER);
    c->sealed.mr_out[0] = bare_reg_mr(NULL, memory, ROOM, 0);
    c->sealed.slots = SLOTS;
    c->sealed.rows = bare_alloc(&host, 2 * SLOTS * sizeof(ib_slot_t), 64);
    assert_non_null(c->sealed.rows);
    c->sealed.peer = (ib_share_t){.frames = 1 << 20, .slot_bytes = ROOM, .slots = SLOTS};
    c->sealed.out_next = 3;
    for (; job.sequence < 2; job.sequence++)
        assert_true(ib_pairs_write_frame(c, &job));
    assert_int_equal(c->in_flight, c->tuning.window_bytes);
    assert_false(ib_pairs_write_frame(c, &job));
    complete(c, card.posted[0].pair);
    step(c);
    assert_int_equal(c->in_flight, BYTES + IB_SEAL_OVER);
    assert_true(ib_pairs_write_frame(c, &job));
    c->tuning.window_bytes = 1; /* one always may be */
    complete(c, card.posted[1].pair);
    complete(c, card.posted[2].pair);
    step(c);
    assert_int_equal(c->in_flight, 0);
    job.sequence++;
    assert_true(ib_pairs_write_frame(c, &job));
    close_conn(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_taken_though_an_older_word_comes_behind_it),
        cmocka_unit_test(a_word_leaves_without_a_credit),
        cmocka_unit_test(what_gives_credits_back_leaves_without_one),
        cmocka_unit_test(a_word_on_the_one_that_it_came_over_is_corrupt),
        cmocka_unit_test(notices_are_told_anew_in_one_in_front_of_chunks),
        cmocka_unit_test(what_is_told_anew_leaves_without_a_credit),
        cmocka_unit_test(a_word_that_went_with_another_is_said_again),
        cmocka_unit_test(an_answer_that_went_with_another_is_said_again),
        cmocka_unit_test(one_with_chunks_alone_waits_for_no_notice),
        cmocka_unit_test(one_in_doubt_leads_as_long_as_its_notices_may_be_overtaken),
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
        cmocka_unit_test(a_chunk_goes_where_it_would_end_first),
        cmocka_unit_test(receive_requests_are_posted_again_in_lists),
        cmocka_unit_test(messages_that_can_leave_at_once_are_posted_together),
        cmocka_unit_test(messages_that_were_posted_together_are_written_again_one_by_one),
        cmocka_unit_test(what_is_sent_again_is_paced),
        cmocka_unit_test(messages_before_a_wrong_one_leave),
        cmocka_unit_test(a_goodbye_has_the_time_of_what_is_in_front_of_it),
        cmocka_unit_test(a_goodbye_outlives_one_that_fails),
        cmocka_unit_test(a_connection_that_is_well_asks_the_clock_seldom),
        cmocka_unit_test(an_idle_queue_pair_sends_its_packet_however_seldom_polls_are),
        cmocka_unit_test(a_queue_pair_that_takes_no_receive_requests_keeps_nobody_asleep),
        cmocka_unit_test(a_timer_is_set_for_what_is_due_sooner_alone),
        cmocka_unit_test(who_leaves_sleeps_until_its_goodbye_has_arrived),
        cmocka_unit_test(who_leaves_sleeps_no_longer_than_its_goodbye_may_take),
        cmocka_unit_test(an_end_of_the_peer_keeps_nobody_asleep),
        cmocka_unit_test(memory_that_is_held_already_is_told_of),
        cmocka_unit_test(queue_pairs_are_those_that_work_requests_are_enough_for),
        cmocka_unit_test(threads_that_can_not_be_watched_are_not_kept),
        cmocka_unit_test(a_sealed_frame_waits_for_room_in_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
