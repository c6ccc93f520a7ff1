/* ib_conn_rig.h - one connection of the ib transport over a card that is a few functions here: what is posted is
 * written down, and a test says what completes, comes and fails, and what time it is. */
#ifndef IB_CONN_RIG_H
#define IB_CONN_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>

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
LH_UNUSED static char memory[ROOM];

static const lh_host_t host = {BARE_HOST};

/* ---- the card ---- */

static inline verbs_qp_t *create_qp(verbs_pd_t *pd, verbs_qp_init_t *how)
{
    assert_true(card.qp_count < QPS);
    verbs_qp_t *qp = &card.qps[card.qp_count];
    *qp = (verbs_qp_t){.context = how->send_cq->context,
                       .pd = pd,
                       .send_cq = how->send_cq,
                       .number = 100 + card.qp_count++};
    return qp;
}

static inline void push(verbs_wc_t row)
{
    assert_true(card.row_count < ROWS);
    card.rows[card.row_count++] = row;
}

static inline int modify_qp(verbs_qp_t *qp, verbs_qp_attr_t *attr, LH_UNUSED int mask)
{
    if (attr->state != VERBS_QP_ERROR) return 0;
    card.stopped = qp->number;
    if (card.late.pair == qp->number) push(card.late);
    return 0;
}

static inline int create_id(LH_UNUSED cm_channel_t *channel, cm_id_t **out, void *context,
                            LH_UNUSED int space)
{
    assert_true(card.id_count < QPS);
    *out = &card.ids[card.id_count++];
    (*out)->context = context;
    return 0;
}

static inline int set_option(LH_UNUSED cm_id_t *id, LH_UNUSED int level, LH_UNUSED int option,
                             LH_UNUSED void *value, LH_UNUSED size_t bytes)
{
    return 0;
}

/* Nobody answers. */
static inline int resolve_address(LH_UNUSED cm_id_t *id, LH_UNUSED struct sockaddr *from,
                                  LH_UNUSED struct sockaddr *to, LH_UNUSED int timeout_ms)
{
    return 0;
}

static inline int get_event(LH_UNUSED cm_channel_t *channel, cm_event_t **out)
{
    *out = &card.event;
    card.asked++;
    return card.event.id != NULL ? 0 : -1;
}

static inline int ack_event(cm_event_t *event)
{
    event->id = NULL;
    return 0;
}

static inline const char *event_text(LH_UNUSED int type)
{
    return "an event";
}

static inline int poll_cq(LH_UNUSED verbs_cq_t *cq, int most, verbs_wc_t *out)
{
    assert_true(card.row_count <= (uint32_t)most);
    const uint32_t count = card.row_count;
    memcpy(out, card.rows, count * sizeof(out[0]));
    card.row_count = 0;
    return (int)count;
}

static inline int post_send(LH_UNUSED verbs_qp_t *qp, verbs_send_wr_t *first, verbs_send_wr_t **bad)
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

static inline int post_recv(LH_UNUSED verbs_qp_t *qp, verbs_recv_wr_t *first, verbs_recv_wr_t **bad)
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

static inline void step(lh_conn_t *c)
{
    lh_wire_event_t events[16];
    ib_sink_t sink = {events, sizeof(events[0]), 16, 0};
    ib_conn_step(c, &sink);
}

/* The oldest request of a queue pair ends well. */
static inline void complete(lh_conn_t *c, uint32_t pair)
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
static inline lh_conn_t *open_conn(bool dials)
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

static inline void close_conn(lh_conn_t *c)
{
    assert_int_equal(c->state, IB_OPEN);
    ib_cancel(c);
    step(c);
    assert_int_equal(c->state, IB_DRAINED);
    ib_close_conn(c);
}

static inline void receive(lh_conn_t *c, uint32_t over, const ib_immediate_t *what)
{
    push((verbs_wc_t){.id = (uint64_t)over << 2,
                      .opcode = VERBS_WC_RECEIVE_IMMEDIATE,
                      .immediate = htonl(ib_immediate_write(what)),
                      .pair = c->pairs[over].qp->number});
}

/* The other end says of a queue pair that it is down, and that nothing came over it. */
static inline void hear_away(lh_conn_t *c, uint32_t over, uint32_t index, uint32_t turn)
{
    receive(c, over, &(ib_immediate_t){.kind = IB_AWAY, .index = index, .turn = turn});
}

static inline void fail_pair(lh_conn_t *c, uint32_t pair)
{
    push((verbs_wc_t){.id = (uint64_t)pair << 2,
                      .status = VERBS_WC_RETRIES_EXCEEDED,
                      .pair = c->pairs[pair].qp->number});
    step(c);
    assert_true(c->pairs[pair].state != IB_PAIR_UP);
}

/* It is time to part with what has not come back. */
static inline void pass_time(lh_conn_t *c)
{
    bare.now += 300 * MS;
    step(c);
}

static inline uint32_t words_on(uint32_t index, uint32_t over)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < card.posted_count; i++)
        count += card.posted[i].what.kind == IB_AWAY && card.posted[i].what.index == index &&
                 card.posted[i].pair == over;
    return count;
}

/* What a stopped queue pair ends with. */
static inline void flush(lh_conn_t *c, uint32_t pair)
{
    assert_int_equal(card.stopped, c->pairs[pair].qp->number);
    push((verbs_wc_t){
        .id = (uint64_t)pair << 2, .status = VERBS_WC_FLUSHED, .pair = c->pairs[pair].qp->number});
    step(c);
}

/* Retries exceeded, of something that was sent: that says nothing of what still comes. */
static inline void fail_send(lh_conn_t *c, uint32_t pair)
{
    enum { ID_OTHER = 3 };
    push((verbs_wc_t){.id = (uint64_t)pair << 2 | ID_OTHER,
                      .status = VERBS_WC_RETRIES_EXCEEDED,
                      .pair = c->pairs[pair].qp->number});
    step(c);
    assert_int_equal(c->pairs[pair].state, IB_PAIR_UP);
    assert_int_equal(card.stopped, c->pairs[pair].qp->number);
}

#endif
