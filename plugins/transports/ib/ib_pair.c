/* ib_pair.c - queue pairs: what is posted on them, and what their completions mean.
 *
 * A completion's id says all that is needed when it comes back, also with an error, so nothing is
 * looked up. Requests of one queue pair complete in order: only the last of a notice's is signaled,
 * and it stands for all of them. */
#include <arpa/inet.h>
#include <errno.h>

#include "ib.h"

enum { BATCH = 32 };
enum { ID_RECEIVE = 0, ID_CHUNK = 1, ID_NOTICE = 2, ID_GOODBYE = 3 };

/* kind 2 bits, pair 4, requests 6, row of the send 9 (3 unused), bytes 32 */
static uint64_t id_write(uint32_t kind, uint32_t pair, uint32_t wrs, uint64_t row, uint64_t bytes)
{
    return kind | (uint64_t)pair << 2 | (uint64_t)wrs << 6 | row << 12 | bytes << 24;
}

static uint32_t id_kind(uint64_t id)
{
    return id & 3;
}

static uint32_t id_pair(uint64_t id)
{
    return id >> 2 & 15;
}

static uint32_t id_wrs(uint64_t id)
{
    return id >> 6 & 63;
}

static uint32_t id_row(uint64_t id)
{
    return id >> 12 & 511;
}

static uint64_t id_bytes(uint64_t id)
{
    return id >> 24;
}

/* Receive work requests have no memory: writes know where they go, and only their immediates are
 * wanted. */
static bool post_receives(ib_pair_t *p, uint32_t count)
{
    verbs_recv_wr_t wrs[BATCH], *bad;
    while (count > 0) {
        const uint32_t now = count < BATCH ? count : BATCH;
        for (uint32_t i = 0; i < now; i++)
            wrs[i] = (verbs_recv_wr_t){.id = id_write(ID_RECEIVE, p->index, 0, 0, 0),
                                       .next = i + 1 < now ? &wrs[i + 1] : NULL};
        if (p->qp->context->ops.post_recv(p->qp, wrs, &bad) != 0) return false;
        count -= now;
    }
    return true;
}

lh_status_t ib_pair_make(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    verbs_qp_init_t how = {
        .send_cq = c->cq,
        .recv_cq = c->cq,
        .cap = {.send_wrs = IB_SEND_WRS, .recv_wrs = IB_RECEIVES, .send_sges = 1, .recv_sges = 1},
        .type = VERBS_RC,
    };
    int failed = t->verbs.create_qp(p->id, t->pd, &how);
    if (failed != 0 && how.cap.inline_bytes > 0) { /* a device may have no room for them */
        how.cap.inline_bytes = 0;
        failed = t->verbs.create_qp(p->id, t->pd, &how);
    }
    if (failed != 0) return host->fail(host, LH_IO, "a queue pair of %s", t->device);
    p->qp = p->id->qp;
    ib_credits_begin(&p->credits);
    if (!post_receives(p, IB_RECEIVES))
        return host->fail(host, LH_IO, "receive work requests of %s", t->device);
    return LH_OK;
}

static bool post(ib_pair_t *p, verbs_send_wr_t *first, uint32_t wrs)
{
    verbs_send_wr_t *bad;
    lh_conn_t *c = p->conn;
    const int error = p->qp->context->ops.post_send(p->qp, first, &bad);
    if (error != 0) {
        ib_conn_break(c, LH_IO, "rank %u: queue pair %u of %s takes no more: %s", c->peer, p->index,
                      c->transport->device, strerror(error));
        return false;
    }
    p->wrs += wrs;
    p->credits.used++;
    return true;
}

static verbs_sge_t board_piece(const lh_conn_t *c, const void *at, size_t bytes)
{
    return (verbs_sge_t){(uint64_t)(uintptr_t)at, (uint32_t)bytes, c->boards->lkey};
}

/* A write of a piece of this end's mirror to the same place of the peer's board. */
static verbs_send_wr_t board_write(lh_conn_t *c, verbs_sge_t *piece)
{
    const uint64_t at = piece->address - (uint64_t)(uintptr_t)&c->board[1];
    verbs_send_wr_t wr = {.sges = piece, .sge_count = 1, .opcode = VERBS_WRITE};
    wr.remote.address = c->peer_board + at;
    wr.remote.rkey = c->peer_key;
    return wr;
}

static bool anything_to_notify(const lh_conn_t *c)
{
    if (c->receive_end > c->receive_told) return true;
    for (uint32_t i = 0; i < c->pair_count; i++)
        if (ib_credits_due(&c->pairs[i].credits)) return true;
    return false;
}

void ib_pairs_notify(lh_conn_t *c)
{
    ib_pair_t *p = &c->pairs[0];
    ib_board_t *mine = &c->board[1];
    verbs_sge_t pieces[IB_NOTICE_WRS];
    verbs_send_wr_t wrs[IB_NOTICE_WRS];
    uint32_t count = 0;
    if (!anything_to_notify(c) || p->wrs + IB_NOTICE_WRS > IB_SEND_WRS ||
        !ib_credits_for_notice(&p->credits))
        return;
    uint64_t *posted = mine->posted[c->notices_out % IB_RECEIVES];
    for (uint32_t i = 0; i < c->pair_count; i++)
        posted[i] = c->pairs[i].credits.posted;
    pieces[count++] = board_piece(c, posted, c->pair_count * sizeof(posted[0]));
    uint64_t told = c->receive_told;
    while (told < c->receive_end) { /* at most twice: around the ring's end */
        const uint64_t slot = told % IB_DEPTH;
        const uint64_t more = c->receive_end - told < IB_DEPTH - slot ? c->receive_end - told
                                                                      : IB_DEPTH - slot;
        for (uint64_t i = 0; i < more; i++) {
            const ib_operation_t *o = &c->receives[slot + i];
            mine->grants[slot + i] = (ib_grant_t){told + i + 1, (uint64_t)(uintptr_t)o->data,
                                                  o->bytes, o->key, o->tag};
        }
        pieces[count++] = board_piece(c, &mine->grants[slot], more * sizeof(ib_grant_t));
        told += more;
    }
    for (uint32_t i = 0; i < count; i++) {
        wrs[i] = board_write(c, &pieces[i]);
        if (i > 0) wrs[i - 1].next = &wrs[i];
    }
    verbs_send_wr_t *last = &wrs[count - 1];
    last->id = id_write(ID_NOTICE, 0, count, 0, 0);
    last->opcode = VERBS_WRITE_WITH_IMMEDIATE;
    last->flags = VERBS_SIGNALED;
    last->immediate = htonl(
        ib_immediate_write(&(ib_immediate_t){.kind = IB_NOTICE, .number = (uint32_t)told}));
    if (!post(p, wrs, count)) return;
    c->notices_out++;
    c->receive_told = told;
    for (uint32_t i = 0; i < c->pair_count; i++)
        c->pairs[i].credits.told = posted[i];
}

void ib_pairs_goodbye(lh_conn_t *c)
{
    ib_pair_t *p = &c->pairs[0];
    ib_board_t *mine = &c->board[1];
    verbs_send_wr_t *bad;
    if (p->wrs == IB_SEND_WRS || p->credits.granted == p->credits.used) return;
    ib_goodbye_write(mine, c->why, c->reason);
    verbs_sge_t piece = board_piece(c, &mine->status,
                                    offsetof(ib_board_t, grants) - offsetof(ib_board_t, status));
    verbs_send_wr_t wr = board_write(c, &piece);
    wr.id = id_write(ID_GOODBYE, 0, 1, 0, 0);
    wr.opcode = VERBS_WRITE_WITH_IMMEDIATE;
    wr.flags = VERBS_SIGNALED;
    wr.immediate = htonl(ib_immediate_write(&(ib_immediate_t){.kind = IB_GOODBYE}));
    if (p->qp->context->ops.post_send(p->qp, &wr, &bad) != 0) return;
    p->wrs++;
    p->credits.used++;
    c->leave_ns = c->transport->host->now_ns(c->transport->host) + IB_LEAVE_MS * 1000000ull;
}

bool ib_pairs_write(lh_conn_t *c, uint64_t message)
{
    ib_operation_t *o = &c->sends[message % IB_DEPTH];
    const uint64_t left = o->bytes - o->posted, bytes = left < o->chunk ? left : o->chunk;
    ib_pair_t *p = NULL;
    if (c->in_flight > 0 && c->in_flight + bytes > c->tuning.window_bytes) return false;
    for (uint32_t i = 0; i < c->pair_count; i++) {
        ib_pair_t *other = &c->pairs[i];
        /* The first one keeps room for notices. */
        if (other->wrs + IB_NOTICE_WRS >= IB_SEND_WRS || !ib_credits_for_chunk(&other->credits))
            continue;
        if (p == NULL || other->bytes < p->bytes) p = other;
    }
    if (p == NULL) return false;
    verbs_sge_t piece = {(uint64_t)(uintptr_t)(o->data + o->posted), (uint32_t)bytes, o->key};
    const ib_immediate_t what = {
        .kind = IB_CHUNK, .last = bytes == left, .number = (uint32_t)message, .index = o->out};
    verbs_send_wr_t wr = {.id = id_write(ID_CHUNK, p->index, 1, message % IB_DEPTH, bytes),
                          .sges = &piece,
                          .sge_count = bytes > 0 ? 1 : 0,
                          .opcode = VERBS_WRITE_WITH_IMMEDIATE,
                          .flags = VERBS_SIGNALED,
                          .immediate = htonl(ib_immediate_write(&what))};
    wr.remote.address = o->to + o->posted;
    wr.remote.rkey = o->to_key;
    if (!post(p, &wr, 1)) return false;
    p->bytes += bytes;
    c->in_flight += bytes;
    o->posted += bytes;
    o->out++;
    return true;
}

static void take_chunk(lh_conn_t *c, const ib_immediate_t *what, uint64_t bytes)
{
    const uint64_t number = ib_number_find(c->receive_first, c->receive_told, what->number);
    if (number == UINT64_MAX ||
        !ib_inbox_take(&c->receives[number % IB_DEPTH].inbox, what->index, what->last, bytes))
        ib_conn_break(c, LH_CORRUPT,
                      "rank %u wrote chunk %u of message %u with %llu bytes, which fits no receive",
                      c->peer, what->index, what->number, (unsigned long long)bytes);
}

static void take_notice(lh_conn_t *c, uint32_t low)
{
    const int32_t more = ib_grants_new(c->granted, c->send_first, low);
    const uint64_t *posted = c->board->posted[c->notices_in++ % IB_RECEIVES];
    bool sound = more >= 0;
    for (uint32_t i = 0; sound && i < c->pair_count; i++)
        sound = ib_credits_take(&c->pairs[i].credits, posted[i]);
    if (sound)
        c->granted += (uint32_t)more;
    else
        ib_conn_break(c, LH_CORRUPT,
                      "rank %u gives grants or credits that it can't have (%u after %llu)", c->peer,
                      low, (unsigned long long)c->granted);
}

static void take_received(lh_conn_t *c, const verbs_wc_t *wc)
{
    ib_immediate_t what;
    char reason[IB_REASON + 1];
    c->pairs[id_pair(wc->id)].spent++;
    if (wc->opcode != VERBS_WC_RECEIVE_IMMEDIATE ||
        !ib_immediate_read(ntohl(wc->immediate), &what)) {
        ib_conn_break(c, LH_CORRUPT, "rank %u wrote an immediate of no meaning: %08x", c->peer,
                      ntohl(wc->immediate));
    } else if (what.kind == IB_CHUNK) {
        take_chunk(c, &what, wc->bytes);
    } else if (what.kind == IB_NOTICE) {
        take_notice(c, what.number);
    } else {
        const lh_status_t why = ib_goodbye_read(c->board, reason);
        c->ended = true; /* so no goodbye is answered */
        ib_conn_break(c, why, "%s", reason);
    }
}

static void take_sent(lh_conn_t *c, uint64_t id)
{
    ib_pair_t *p = &c->pairs[id_pair(id)];
    p->wrs -= id_wrs(id);
    if (id_kind(id) == ID_GOODBYE) c->leave_ns = 0;
    if (id_kind(id) != ID_CHUNK) return;
    p->bytes -= id_bytes(id);
    c->in_flight -= id_bytes(id);
    c->sends[id_row(id) % IB_DEPTH].back++;
}

/* What is flushed tells nothing: the error that began it comes with another completion, or from the
 * connection manager. */
static void take_error(lh_conn_t *c, const verbs_wc_t *wc, bool *flushed)
{
    const char *text = c->transport->verbs.wc_status_text(wc->status);
    c->leave_ns = 0;
    if (wc->status == VERBS_WC_FLUSHED)
        *flushed = true;
    else if (wc->status == VERBS_WC_RETRIES_EXCEEDED)
        ib_conn_break(c, LH_PEER_LOST, "rank %u does not answer on queue pair %u: %s", c->peer,
                      id_pair(wc->id), text);
    else
        ib_conn_break(c, wc->status == VERBS_WC_REMOTE_ACCESS ? LH_PEER_LOST : LH_IO,
                      "rank %u: queue pair %u failed: %s", c->peer, id_pair(wc->id), text);
}

static void post_spent(lh_conn_t *c)
{
    for (uint32_t i = 0; i < c->pair_count && c->state == IB_OPEN; i++) {
        ib_pair_t *p = &c->pairs[i];
        if (p->spent == 0) continue;
        if (!post_receives(p, p->spent))
            ib_conn_break(c, LH_IO, "receive work requests of %s", c->transport->device);
        p->credits.posted += p->spent;
        p->spent = 0;
    }
}

uint32_t ib_pairs_pump(lh_conn_t *c)
{
    verbs_wc_t wcs[BATCH];
    uint32_t all = 0;
    int count = BATCH;
    bool flushed = false;
    while (count == BATCH && c->state <= IB_LEAVING) {
        count = c->cq->context->ops.poll_cq(c->cq, BATCH, wcs);
        if (count < 0) {
            ib_conn_break(c, LH_IO, "the completion queue of %s failed", c->transport->device);
            return all + 1;
        }
        all += (uint32_t)count;
        for (int i = 0; i < count; i++) {
            if (wcs[i].status != VERBS_WC_OK)
                take_error(c, &wcs[i], &flushed);
            else if (id_kind(wcs[i].id) != ID_RECEIVE)
                take_sent(c, wcs[i].id);
            else if (c->state == IB_OPEN)
                take_received(c, &wcs[i]);
        }
        post_spent(c);
    }
    if (flushed) ib_meet_events(c->transport);
    if (flushed && !c->ended)
        ib_conn_break(c, LH_IO, "rank %u: a queue pair of %s went into its error state", c->peer,
                      c->transport->device);
    return all;
}
