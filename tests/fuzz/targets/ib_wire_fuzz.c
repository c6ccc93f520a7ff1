/* ib_wire_fuzz.c - an open connection of the ib transport whose peer has gone wild: over a card that
 * is a few functions here, the input writes into the board (grants, credits, goodbyes, shares),
 * completes and fails work requests, and brings immediates and sealed frames with any head. This end
 * may write only where it may read from its own memory, touches nothing beside its receives, and
 * each operation ends once.
 *
 * The first byte is the level of security; then records of RECORD bytes, of which the first says
 * what happens. */
#include <bare_card.h>
#include <fuzz/fuzz.h>

#include <arpa/inet.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { RECORD = 12, PAIRS = 2, OPERATIONS = 12, ROOM = 600, GUARD = 64, ROWS = 2048 };

static struct {
    verbs_qp_t qps[PAIRS];
    uint32_t qp_count;
    cm_id_t ids[PAIRS];
    verbs_wc_t rows[ROWS];
    uint32_t row_first, row_end;
    uint64_t pending[PAIRS][IB_SEND_WRS]; /* ids of what is under way; not signaled: 0 */
    uint32_t pending_count[PAIRS];
} card;
static struct { /* the rank's own */
    uint8_t in[OPERATIONS][ROOM + GUARD], out[ROOM];
} memory;
static uint32_t ended[2][OPERATIONS]; /* sends, receives */

/* ---- the host ---- */

/* No payload here is large enough for a thread. */
static lh_status_t do_start(const lh_host_t *host, const char *name, void (*body)(void *),
                            void *argument, lh_thread_t **out)
{
    (void)host;
    (void)name;
    (void)body;
    (void)argument;
    *out = NULL;
    return LH_OK;
}

static const lh_host_t host = {BARE_HOST, .thread_start = do_start};

/* ---- the card ---- */

static verbs_qp_t *create_qp(verbs_pd_t *pd, verbs_qp_init_t *how)
{
    const uint32_t i = card.qp_count++ % PAIRS;
    card.qps[i] = (verbs_qp_t){
        .context = how->send_cq->context, .pd = pd, .send_cq = how->send_cq, .number = 100 + i};
    return &card.qps[i];
}

static int modify_qp(verbs_qp_t *qp, verbs_qp_attr_t *attr, int mask)
{
    (void)qp;
    (void)attr;
    (void)mask;
    return 0;
}

static int no_event(cm_channel_t *channel, cm_event_t **out)
{
    (void)channel;
    *out = NULL;
    return -1;
}

static void push(verbs_wc_t row)
{
    if (card.row_end - card.row_first < ROWS) card.rows[card.row_end++ % ROWS] = row;
}

static int poll_cq(verbs_cq_t *cq, int most, verbs_wc_t *out)
{
    int count = 0;
    (void)cq;
    while (count < most && card.row_first < card.row_end)
        out[count++] = card.rows[card.row_first++ % ROWS];
    return count;
}

/* What is read is registered, and what is written to the peer's board is inside of it. */
static void check_request(const verbs_send_wr_t *wr)
{
    if (wr->sge_count > 0) {
        const verbs_sge_t *s = wr->sges;
        FUZZ_ASSERT(s->lkey >= 1 && s->lkey <= bare.mr_count);
        const verbs_mr_t *mr = &bare.mrs[s->lkey - 1];
        const uint64_t base = (uint64_t)(uintptr_t)mr->address;
        FUZZ_ASSERT(s->address >= base && s->address + s->bytes <= base + mr->bytes);
    }
    if (wr->remote.rkey != BARE_KEY) return;
    const uint64_t board = (uint64_t)(uintptr_t)bare.peer;
    FUZZ_ASSERT(wr->remote.address >= board &&
                wr->remote.address + (wr->sge_count > 0 ? wr->sges->bytes : 0) <=
                    board + sizeof(bare.peer));
}

static int post_send(verbs_qp_t *qp, verbs_send_wr_t *first, verbs_send_wr_t **bad)
{
    const uint32_t i = qp->number - 100;
    for (const verbs_send_wr_t *wr = first; wr != NULL; wr = wr->next) {
        check_request(wr);
        FUZZ_ASSERT(card.pending_count[i] < IB_SEND_WRS);
        card.pending[i][card.pending_count[i]++] = (wr->flags & VERBS_SIGNALED) != 0 ? wr->id + 1
                                                                                     : 0;
    }
    *bad = NULL;
    return 0;
}

static int post_recv(verbs_qp_t *qp, verbs_recv_wr_t *first, verbs_recv_wr_t **bad)
{
    (void)qp;
    (void)first;
    *bad = NULL;
    return 0;
}

/* The oldest of a queue pair end, up to one that tells. */
static void complete(uint32_t i, int status)
{
    uint32_t used = 0;
    while (used < card.pending_count[i]) {
        const uint64_t id = card.pending[i][used++];
        if (id == 0) continue;
        push((verbs_wc_t){
            .id = id - 1, .status = status, .opcode = VERBS_WC_SEND_WRITE, .pair = 100 + i});
        break;
    }
    card.pending_count[i] -= used;
    memmove(card.pending[i], card.pending[i] + used,
            card.pending_count[i] * sizeof(card.pending[i][0]));
}

/* ---- one connection ---- */

static verbs_device_t device;
static verbs_context_t context = {
    .device = &device, .ops = {.poll_cq = poll_cq, .post_send = post_send, .post_recv = post_recv}};
static ib_config_t config;
static lh_transport_t transport;

static lh_conn_t *open_conn(uint32_t security)
{
    memset(&card, 0, sizeof(card));
    memset(ended, 0, sizeof(ended));
    memset(&memory, 0x5a, sizeof(memory));
    const ib_tuning_t tuning = {.queue_pairs = PAIRS, .chunk_bytes = 256, .window_bytes = 1024};
    ib_pool_t *pool = transport.pool;
    transport = bare_transport(&host, &config, &context);
    transport.epoll = epoll_create1(EPOLL_CLOEXEC);
    transport.pool = pool;
    transport.verbs.create_qp = create_qp;
    transport.verbs.modify_qp = modify_qp;
    transport.verbs.get_event = no_event;
    lh_conn_t *c = ib_conn_new(&transport, IB_MET);
    FUZZ_ASSERT(c != NULL);
    c->security = security;
    c->patience_ns = 1000000000;
    FUZZ_ASSERT(bare_conn_open(c, &tuning, card.ids));
    /* Beyond the exchange of shares, which only the job's key can finish: keys of zeros. */
    c->sealed.ready_keys = security == LH_SECURITY_PRIVATE;
    c->sealed.peer = (ib_share_t){
        .frames = 4096, .keys = {9}, .slot_bytes = 256 + IB_SEAL_OVER, .slots = 4};
    return c;
}

/* False: it is over. */
static bool step(lh_conn_t *c)
{
    lh_wire_event_t events[16];
    ib_sink_t sink = {events, sizeof(events[0]), 16, 0};
    ib_conn_step(c, &sink);
    for (uint32_t i = 0; i < sink.count; i++) {
        const lh_wire_event_t *e = &events[i];
        if (e->type == LH_WIRE_SENT || e->type == LH_WIRE_RECEIVED)
            ended[e->type == LH_WIRE_RECEIVED][e->cookie]++;
        if (e->type == LH_WIRE_RECEIVED && e->status == LH_OK) FUZZ_ASSERT(e->bytes <= ROOM);
    }
    return c->state != IB_DRAINED;
}

/* A frame with whatever head, under the right key for the next place but as the input has it. */
static void write_frame(lh_conn_t *c, const uint8_t *in)
{
    static ib_cipher_t *cipher;
    ib_private_t *s = &c->sealed;
    uint8_t text[256] = {0};
    const uint64_t frame = s->in_first + in[1] % 4;
    if (cipher == NULL) cipher = ib_cipher_new();
    if (c->security != LH_SECURITY_PRIVATE || !ib_keys_at(&s->in, frame)) return;
    const ib_frame_t head = {.message = c->receive_first + in[2] % 4 - (in[2] >> 7),
                             .offset = (uint64_t)in[3] * 4,
                             .bytes = in[4],
                             .index = in[5] % 8u,
                             .tag = in[6] % 4u,
                             .last = (in[7] & 1) != 0};
    uint8_t *to = ib_private_slot(s, true, frame);
    FUZZ_ASSERT(ib_seal_frame(cipher, &s->in.now, frame, &head, text, to));
    if ((in[7] & 0xf0) == 0xf0) to[in[8]] ^= 1;
    push((verbs_wc_t){.id = (uint64_t)(in[9] % PAIRS) << 2,
                      .opcode = VERBS_WC_RECEIVE_IMMEDIATE,
                      .bytes = head.bytes + IB_SEAL_OVER + (in[7] >> 1 & 1),
                      .immediate = htonl((uint32_t)frame),
                      .pair = 100 + in[9] % PAIRS});
}

/* What the peer may write at any time, and half of the time as it should. */
static void write_board(lh_conn_t *c, const uint8_t *in)
{
    const uint64_t number = c->granted + in[2] % 3;
    ib_grant_t *grant = &c->board->grants[number % IB_DEPTH];
    ib_notice_t *notice = &c->board->notices[c->notices_in % IB_NOTICES];
    if ((in[1] & 1) == 0) {
        *grant = (ib_grant_t){.number = number + 1,
                              .address = 1 << 20,
                              .bytes = in[3] * 8u,
                              .keys = {5},
                              .tag = in[4] % 4u};
        for (uint32_t i = 0; i < PAIRS; i++)
            notice->posted[i] = c->pairs[i].credits.granted + in[5 + i] % 4;
        notice->opened = c->sealed.opened + in[7] % 2;
    } else {
        const uint32_t at = (uint32_t)(in[2] | in[3] << 8) * 4 % (sizeof(ib_board_t) - 8);
        memcpy((uint8_t *)c->board + at, in + 4, 8);
    }
}

static void act(lh_conn_t *c, const uint8_t *in, uint32_t *sends, uint32_t *receives,
                lh_region_t *region)
{
    const uint32_t pair = in[1] % PAIRS;
    uint32_t word;
    memcpy(&word, in + 4, sizeof(word));
    switch (in[0] % 8) {
    case 0:
        push((verbs_wc_t){.id = (uint64_t)pair << 2,
                          .opcode = VERBS_WC_RECEIVE_IMMEDIATE,
                          .bytes = in[2] * 4u,
                          .immediate = word,
                          .pair = 100 + pair});
        return;
    case 1: write_board(c, in); return;
    case 2: /* a notice of what the board has now */
        word = ib_immediate_write(
            &(ib_immediate_t){.kind = IB_NOTICE, .number = (uint32_t)c->granted + in[2] % 3});
        push((verbs_wc_t){
            .id = 0, .opcode = VERBS_WC_RECEIVE_IMMEDIATE, .immediate = htonl(word), .pair = 100});
        return;
    case 3: complete(pair, VERBS_WC_OK); return;
    case 4: /* a chunk as it should be */
        word = ib_immediate_write(
            &(ib_immediate_t){.kind = IB_CHUNK,
                              .last = (in[2] & 1) != 0,
                              .number = (uint32_t)c->receive_first + in[3] % 2,
                              .index = in[4] % 4u});
        push((verbs_wc_t){.id = (uint64_t)pair << 2,
                          .opcode = VERBS_WC_RECEIVE_IMMEDIATE,
                          .bytes = in[5],
                          .immediate = htonl(word),
                          .pair = 100 + pair});
        return;
    case 5:
        if (*receives < OPERATIONS &&
            ib_irecv(c, region, memory.in[*receives], ROOM, *receives % 4, *receives) == LH_OK)
            (*receives)++;
        return;
    case 6:
        if (*sends < OPERATIONS &&
            ib_isend(c, region, memory.out, in[2] * 2u, *sends % 4, *sends) == LH_OK)
            (*sends)++;
        return;
    default:
        if (c->security == LH_SECURITY_PRIVATE) {
            write_frame(c, in);
            return;
        }
        /* A queue pair that is down at the peer, most of the time with a count that can be */
        word = ib_immediate_write(
            &(ib_immediate_t){.kind = IB_AWAY,
                              .number = (uint32_t)c->pairs[pair].acked + in[3] % 3,
                              .index = pair,
                              .turn = c->pairs[pair].turn + in[2] % 2});
        push((verbs_wc_t){.id = (uint64_t)(1 - pair) << 2,
                          .opcode = VERBS_WC_RECEIVE_IMMEDIATE,
                          .immediate = htonl(word),
                          .pair = 101 - pair});
        return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    uint32_t sends = 0, receives = 0;
    if (size < 1) return 0;
    lh_conn_t *c = open_conn(bytes[0] % 2 == 0 ? LH_SECURITY_PLAIN : LH_SECURITY_PRIVATE);
    lh_region_t region = {.base = (char *)&memory, .bytes = sizeof(memory)};
    if (c->security == LH_SECURITY_PLAIN)
        region.mrs[0] = bare_reg_mr(NULL, region.base, region.bytes, 0);
    for (int i = 0; i < 4; i++) { /* the probe comes through, and the share is taken */
        (void)step(c);
        complete(0, VERBS_WC_OK);
    }
    for (size_t at = 1; at + RECORD <= size; at += RECORD) {
        if (bytes[at] == 255)
            complete(bytes[at + 1] % PAIRS, VERBS_WC_REMOTE_ACCESS);
        else
            act(c, bytes + at, &sends, &receives, &region);
        if (!step(c)) break;
    }
    ib_cancel(c);
    while (step(c)) {
    }
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        FUZZ_ASSERT(ended[0][i] == (i < sends) && ended[1][i] == (i < receives));
        for (uint32_t k = 0; k < GUARD; k++)
            FUZZ_ASSERT(memory.in[i][ROOM + k] == 0x5a);
    }
    ib_close_conn(c);
    (void)close(transport.epoll);
    return 0;
}
