/* ib_pair.c - queue pairs: what is posted on them, and what their completions mean.
 *
 * What is under way is kept, in order, until its completion, as a queue pair that fails has all of
 * it sent again by its successor (ib_mend.c). Requests of one queue pair complete in order, so a
 * completion stands for all in front of it: only the last of those that are posted together is
 * signaled. A completion of a former turn is known by its queue pair number.
 *
 * To post is a doorbell of a card, and a system call of soft-RoCE. So chunks that can leave at once
 * (messages whose grants come together, small chunks of one message) are gathered and posted as one
 * list, of LIST requests, LIST_BYTES and a quarter of the window at most: the sender hears of the first with
 * the last, which is to be no later than a large chunk would be. Nothing stays gathered when this transport
 * returns to its host, or looks at what came. */
#include <arpa/inet.h>
#include <errno.h>

#include "ib.h"

enum { BATCH = 32, SMALL = 4096, RATE_OLD_NS = 1000000000 };
enum { LIST = 16, LIST_BYTES = 256 << 10 };
LH_STATIC_ASSERT((int)IB_NOTICE_WRS <= (int)LIST, "a notice is one list");
enum { REPOST = 16 };      /* receive work requests that are posted again together */
enum { ASK_NS = 1000000 }; /* between two looks at the connection manager, a system call */
LH_STATIC_ASSERT(IB_RECEIVES / 2 + REPOST + 2 + IB_PAIRS_MOST <= IB_RECEIVES,
                 "a peer that is not told of a half, nor of those, has credits for a chunk");
enum { ID_RECEIVE = 0, ID_CHUNK = 1, ID_NOTICE = 2, ID_OTHER = 3 };
enum { OTHER_GOODBYE = 1, OTHER_PROBE = 2, OTHER_AWAY = 3 };

/* kind 2 bits, pair 4, row of the send 12, bytes 32; ID_OTHER: bytes is 1 for a goodbye, 2 for a
 * probe of the path, 3 for what is said of a queue pair that is down */
static uint64_t id_write(uint32_t kind, uint32_t pair, uint64_t row, uint64_t bytes)
{
    return kind | (uint64_t)pair << 2 | row << 12 | bytes << 24;
}

static uint32_t id_kind(uint64_t id)
{
    return id & 3;
}

static uint32_t id_pair(uint64_t id)
{
    return id >> 2 & 15;
}

static uint32_t id_row(uint64_t id)
{
    return id >> 12 & 511;
}

static uint64_t id_bytes(uint64_t id)
{
    return id >> 24;
}

static uint64_t pair_now(const lh_conn_t *c)
{
    return c->transport->host->now_ns(c->transport->host);
}

/* Receive work requests have no memory: writes know where they go, and only their immediates are
 * wanted. */
bool ib_pair_receives(ib_pair_t *p, uint32_t count)
{
    verbs_recv_wr_t wrs[BATCH], *bad;
    while (count > 0) {
        const uint32_t now = count < BATCH ? count : BATCH;
        for (uint32_t i = 0; i < now; i++)
            wrs[i] = (verbs_recv_wr_t){.id = id_write(ID_RECEIVE, p->index, 0, 0),
                                       .next = i + 1 < now ? &wrs[i + 1] : NULL};
        const int error = p->qp->context->ops.post_recv(p->qp, wrs, &bad);
        if (error != 0) {
            errno = error;
            return false;
        }
        count -= now;
    }
    return true;
}

/* Keys are of ports: of this end's memory by the one that the queue pair is on, of the peer's by the
 * one that it leads to. What is written is a chunk, a frame or a piece of the board. */
static void row_keys(const ib_pair_t *p, const ib_sent_t *r, uint32_t *lkey, uint32_t *rkey)
{
    const lh_conn_t *c = p->conn;
    const ib_operation_t *o = &c->sends[id_row(r->id) % IB_DEPTH];
    const uint32_t there = p->index % c->peer_ports;
    if (id_kind(r->id) != ID_CHUNK) {
        *lkey = c->board_out[p->port]->lkey;
        *rkey = p->peer_key;
    } else if (r->frame != 0) {
        *lkey = c->sealed.mr_out[p->port]->lkey;
        *rkey = c->sealed.peer.keys[there];
    } else {
        *lkey = o->region != NULL ? o->region->mrs[p->port]->lkey : 0;
        *rkey = o->to_keys[there];
    }
}

/* What the processor copies into the work request: it must reach it. */
static bool is_inline(const ib_pair_t *p, const ib_sent_t *r)
{
    const ib_operation_t *o = &p->conn->sends[id_row(r->id) % IB_DEPTH];
    const bool own = id_kind(r->id) == ID_CHUNK && r->frame == 0 && o->region != NULL;
    return r->bytes > 0 && r->bytes <= p->inline_bytes && (!own || o->region->kind == LH_MEM_HOST);
}

/* As many as one list holds, from that one on. A write of no bytes needs no memory at either end. */
static int post_rows(ib_pair_t *p, uint64_t first, uint32_t count)
{
    verbs_send_wr_t wrs[LIST], *bad;
    verbs_sge_t pieces[LIST];
    for (uint32_t i = 0; i < count; i++) {
        const ib_sent_t *r = &p->sent[(first + i) % IB_SEND_WRS];
        pieces[i] = (verbs_sge_t){r->from, r->bytes, 0};
        wrs[i] = (verbs_send_wr_t){
            .id = r->id,
            .next = i + 1 < count ? &wrs[i + 1] : NULL,
            .sges = &pieces[i],
            .sge_count = r->bytes > 0 ? 1 : 0,
            .opcode = r->has_immediate ? VERBS_WRITE_WITH_IMMEDIATE : VERBS_WRITE,
            .flags = (r->signaled ? VERBS_SIGNALED : 0u) | (is_inline(p, r) ? VERBS_INLINE : 0u),
            .immediate = r->immediate};
        wrs[i].remote.address = r->to;
        row_keys(p, r, &pieces[i].lkey, &wrs[i].remote.rkey);
    }
    return p->qp->context->ops.post_send(p->qp, wrs, &bad);
}

/* What was gathered is one list. After a failure it is under way no more, and the connection ends: what of it
 * was posted after all is of no use without the rest. */
static bool pair_flush(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    const uint32_t count = p->gathered;
    const uint64_t first = p->sent_end - count;
    if (count == 0) return true;
    p->gathered = 0;
    p->gathered_bytes = 0;
    const uint64_t now = pair_now(c);
    for (uint32_t i = 0; i < count; i++) {
        ib_sent_t *r = &p->sent[(first + i) % IB_SEND_WRS];
        r->since_ns = now;
        r->signaled = i + 1 == count;
    }
    const int error = post_rows(p, first, count);
    if (error == 0) return true;
    p->sent_end = first;
    ib_conn_break(c, LH_IO, "rank %u: queue pair %u of %s takes no more: %s", c->peer, p->index,
                  c->transport->ports[p->port].device, strerror(error));
    return false;
}

/* There is room in the ring: whoever posts has looked. */
static void pair_gather(ib_pair_t *p, const ib_sent_t *row)
{
    p->credits.used += row->has_immediate;
    p->sent[p->sent_end++ % IB_SEND_WRS] = *row;
    p->gathered++;
    p->gathered_bytes += row->bytes;
}

/* At once, behind what was gathered. */
static bool pair_post(ib_pair_t *p, const ib_sent_t *rows, uint32_t count)
{
    if (p->gathered + count > LIST && !pair_flush(p)) return false;
    for (uint32_t i = 0; i < count; i++)
        pair_gather(p, &rows[i]);
    return pair_flush(p);
}

bool ib_pairs_flush(lh_conn_t *c)
{
    ib_pair_t *p = &c->pairs[c->gathers];
    return c->state == IB_OPEN && pair_flush(p);
}

/* A chunk, with others that leave over the same queue pair at once. False: the connection broke. */
static bool chunk_post(ib_pair_t *p, const ib_sent_t *row)
{
    lh_conn_t *c = p->conn;
    if (c->gathers != p->index && !ib_pairs_flush(c)) return false;
    c->gathers = p->index;
    const uint64_t all = p->gathered_bytes + row->bytes;
    const bool full = p->gathered == LIST || all > LIST_BYTES || 4 * all > c->tuning.window_bytes;
    if (full && !pair_flush(p)) return false;
    pair_gather(p, row);
    return true;
}

/* What has no pace needs no clock. */
static bool bucket_is_open(lh_conn_t *c)
{
    return c->bucket.rate == 0 || ib_bucket_open(&c->bucket, pair_now(c));
}

/* What is sent again leaves however full the bucket is, and what follows waits for it. That it was paid for
 * when it was first sent says nothing: the line is to carry it another time, and what the bucket has let in
 * until now is no more than its depth. */
static void bucket_take_again(lh_conn_t *c, const ib_sent_t *r)
{
    if (id_kind(r->id) != ID_CHUNK) return;
    (void)bucket_is_open(c);
    ib_bucket_take(&c->bucket, r->bytes);
}

/* By a later turn: all that the peer has not taken, as it was; then, where nothing but what is small
 * seems to come through, what shows whether that is still so. */
bool ib_pair_repost(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    for (uint64_t i = p->sent_first; i < p->sent_end; i++) /* also those that it does not come to */
        p->notices |= id_kind(p->sent[i % IB_SEND_WRS].id) == ID_NOTICE;
    for (uint64_t i = p->sent_first; i < p->sent_end; i++) {
        ib_sent_t *r = &p->sent[i % IB_SEND_WRS];
        r->signaled = true; /* the last of a list may have gone over another one */
        if (post_rows(p, i, 1) != 0) return false;
        r->since_ns = p->heard_ns; /* what it has waited for says nothing of this pair's rate */
        p->credits.used += r->has_immediate;
        bucket_take_again(c, r);
        atomic_fetch_add_explicit(&c->bytes_again, r->bytes, memory_order_relaxed);
    }
    if ((ib_pair_doubted(p) || !p->proven) && !p->probing) p->probing = ib_pair_probe(p);
    return true;
}

/* A write of a piece of this end's mirror to the same place of the peer's board. */
static ib_sent_t board_write(const lh_conn_t *c, uint64_t id, const void *piece, size_t bytes)
{
    const uint64_t from = (uint64_t)(uintptr_t)piece;
    return (ib_sent_t){.id = id,
                       .from = from,
                       .to = c->peer_board + (from - (uint64_t)(uintptr_t)&c->board[1]),
                       .bytes = (uint32_t)bytes};
}

static void row_carry(ib_sent_t *row, const ib_immediate_t *what)
{
    row->has_immediate = true;
    row->immediate = htonl(ib_immediate_write(what));
}

/* Whether the peer may wait for credits that only a notice gives back. */
static bool gives_credits(const lh_conn_t *c)
{
    for (uint32_t i = 0; i < c->pair_count; i++)
        if (ib_credits_due(&c->pairs[i].credits)) return true;
    return false;
}

static bool pair_is_well(const ib_pair_t *p)
{
    return p->state == IB_PAIR_UP && !ib_pair_doubted(p) && !p->failing;
}

/* All notices go over one queue pair, so that they arrive in their order: those under way are all of
 * the one that leads. Where that is away, over another one from then on: by then the peer has taken
 * all that came over the first, and what did not come is told anew. One in doubt goes on to lead where
 * any went over it: even those that are acknowledged may lie in the peer's completion queue, and it may
 * look into another port's first. So does one that is being stopped, and none leaves meanwhile: the peer
 * counts notices, and would read the place of one that did not come for one that overtook it. NULL: not
 * now. */
static ib_pair_t *lead_of(lh_conn_t *c)
{
    ib_pair_t *p = &c->pairs[c->lead];
    if (p->state != IB_PAIR_UP && !p->away) return NULL;
    bool found = p->state == IB_PAIR_UP && (pair_is_well(p) || p->notices);
    for (uint32_t i = 0; i < c->pair_count && !found; i++) {
        found = pair_is_well(&c->pairs[i]);
        if (found) p = &c->pairs[i];
    }
    if (p->state != IB_PAIR_UP || p->failing) return NULL;
    c->lead = p->index;
    return p;
}

/* Inside a site receives are told of in groups, as a notice costs as much as a small message: the
 * peer comes to these when it has used those that it knows of, more than twice as many. So none waits
 * for ever: with the last of those that are used, if not before, these are told of. Who goes to sleep
 * has told of all; between sites a round trip would pass before the peer has heard of it. */
static bool grants_can_wait(const lh_conn_t *c)
{
    const uint64_t untold = c->receive_end - c->receive_told;
    const uint64_t unused = c->receive_told - c->receive_first;
    return untold == 0 || (ib_rules.gathers && !c->transport->armed && unused > 2 * untold);
}

/* Of each queue pair that has spent so many: before the peer is told of what there is, else REPOST in a list. */
static void post_spent(lh_conn_t *c, uint32_t least)
{
    for (uint32_t i = 0; i < c->pair_count && c->state == IB_OPEN; i++) {
        ib_pair_t *p = &c->pairs[i];
        if (p->spent < least || p->qp == NULL || p->failing) continue;
        if (!ib_pair_receives(p, p->spent)) {
            p->failing = true;
            p->failure = "it takes no receive work requests";
            continue;
        }
        p->credits.posted += p->spent;
        p->spent = 0;
    }
}

void ib_pairs_notify(lh_conn_t *c)
{
    const bool waited = c->retells || gives_credits(c);
    if (!waited && grants_can_wait(c) && !ib_private_due(c)) return;
    ib_pair_t *p = lead_of(c);
    ib_board_t *mine = &c->board[1];
    ib_sent_t rows[IB_NOTICE_WRS];
    uint32_t count = 0;
    if (p == NULL || ib_pair_wrs(p) + IB_NOTICE_WRS > c->transport->wrs ||
        !ib_credits_for_notice(&p->credits, waited))
        return;
    post_spent(c, 1);
    if (p->failing) return;
    const uint64_t id = id_write(ID_NOTICE, p->index, 0, 0);
    ib_notice_t *notice = &mine->notices[c->notices_out % IB_NOTICES];
    uint64_t *posted = notice->posted;
    notice->opened = c->sealed.in_first;
    for (uint32_t i = 0; i < c->pair_count; i++)
        posted[i] = c->pairs[i].credits.posted;
    rows[count++] = board_write(c, id, notice,
                                offsetof(ib_notice_t, posted) + c->pair_count * sizeof(posted[0]));
    uint64_t told = c->receive_told;
    while (told < c->receive_end) { /* at most twice: around the ring's end */
        const uint64_t slot = told % IB_DEPTH;
        const uint64_t more = c->receive_end - told < IB_DEPTH - slot ? c->receive_end - told
                                                                      : IB_DEPTH - slot;
        for (uint64_t i = 0; i < more; i++) {
            const ib_operation_t *o = &c->receives[slot + i];
            const uint64_t at = c->security == LH_SECURITY_PRIVATE ? 0
                                                                   : (uint64_t)(uintptr_t)o->data;
            mine->grants[slot + i] = (ib_grant_t){
                .number = told + i + 1, .address = at, .bytes = o->bytes, .tag = o->tag};
            for (uint32_t k = 0; o->region != NULL && k < c->transport->port_count; k++)
                mine->grants[slot + i].keys[k] = o->region->mrs[k]->rkey;
        }
        rows[count++] = board_write(c, id, &mine->grants[slot], more * sizeof(ib_grant_t));
        told += more;
    }
    row_carry(&rows[count - 1], &(ib_immediate_t){.kind = IB_NOTICE, .number = (uint32_t)told});
    for (uint32_t i = 0; i < count; i++) {
        rows[i].order = c->notices_out;
        rows[i].told = c->receive_told;
    }
    if (!pair_post(p, rows, count)) return;
    c->retells = false;
    p->notices = true;
    c->notices_out++;
    c->receive_told = told;
    c->sealed.in_told = notice->opened;
    for (uint32_t i = 0; i < c->pair_count; i++)
        c->pairs[i].credits.told = posted[i];
}

bool ib_pair_probe(ib_pair_t *p)
{
    const lh_conn_t *c = p->conn;
    const uint32_t bytes = ib_mtu_bytes(c->transport->ports[p->port].mtu);
    ib_sent_t row = board_write(c, id_write(ID_OTHER, p->index, 0, OTHER_PROBE), c->board[1].probe,
                                bytes != 0 ? bytes : 1);
    return ib_pair_wrs(p) < c->transport->wrs && pair_post(p, &row, 1);
}

bool ib_pairs_share(lh_conn_t *c)
{
    ib_pair_t *p = &c->pairs[c->lead];
    ib_sent_t row = board_write(c, id_write(ID_OTHER, p->index, 0, 0), &c->board[1].share,
                                sizeof(ib_share_t));
    row_carry(&row, &(ib_immediate_t){.kind = IB_SHARE});
    return pair_post(p, &row, 1);
}

static uint64_t slower_of(uint64_t a, uint64_t b)
{
    return b == 0 || (a != 0 && a < b) ? a : b;
}

/* By the slowest rate that is known, as a peer that is not told in time is told of a death. */
static uint64_t leave_time(const lh_conn_t *c)
{
    const uint64_t usual = atomic_load_explicit(&c->round_trip_ns, memory_order_relaxed);
    const uint64_t trip = c->link.round_trip_ns > usual ? c->link.round_trip_ns : usual;
    uint64_t rate = atomic_load_explicit(&c->rate, memory_order_relaxed);
    rate = slower_of(rate, slower_of(c->link.bytes_per_second, c->transport->rate));
    const double line = rate == 0 ? 0.0 : (double)c->in_flight * 1e9 / (double)rate;
    const double all = IB_LEAVE_MS * 1e6 + (double)trip + line;
    return all < IB_LEFT_MS * 1e6 ? (uint64_t)all : IB_LEFT_MS * 1000000ull;
}

/* Over the one that leads, else over any that can take it. */
void ib_pairs_goodbye(lh_conn_t *c)
{
    ib_pair_t *p = NULL;
    ib_board_t *mine = &c->board[1];
    for (uint32_t i = 0; i < c->pair_count && p == NULL; i++) {
        ib_pair_t *one = &c->pairs[(c->lead + i) % c->pair_count];
        if (one->state == IB_PAIR_UP && !one->failing && !ib_pair_doubted(one) &&
            ib_pair_wrs(one) < c->transport->wrs && one->credits.granted > one->credits.used)
            p = one;
    }
    if (p == NULL) return;
    ib_goodbye_write(mine, c->why, c->reason);
    ib_sent_t row = board_write(c, id_write(ID_OTHER, p->index, 0, OTHER_GOODBYE), &mine->status,
                                offsetof(ib_board_t, grants) - offsetof(ib_board_t, status));
    row_carry(&row, &(ib_immediate_t){.kind = IB_GOODBYE});
    if (pair_post(p, &row, 1)) c->leave_ns = pair_now(c) + leave_time(c);
}

static bool pair_is_idle(const ib_pair_t *p, uint64_t now, uint64_t pause)
{
    return p->state == IB_PAIR_UP && !p->failing && ib_pair_wrs(p) == 0 &&
           now >= p->heard_ns + pause;
}

/* With the first that is due leave the packets of those that were idle for half as long: each by itself would
 * wake a sleeper twice, to send it and by its answer. From then on all of them are due together. */
void ib_pairs_ping(lh_conn_t *c, uint64_t now)
{
    const uint64_t pause = c->transport->config->keepalive_ns;
    bool due = false;
    for (uint32_t i = 0; pause != 0 && i < c->pair_count; i++)
        due |= pair_is_idle(&c->pairs[i], now, pause);
    for (uint32_t i = 0; due && i < c->pair_count && c->state == IB_OPEN; i++) {
        ib_pair_t *p = &c->pairs[i];
        if (!pair_is_idle(p, now, pause / 2)) continue;
        const ib_sent_t row = {.id = id_write(ID_OTHER, i, 0, 0), .to = c->peer_board};
        (void)pair_post(p, &row, 1);
    }
}

/* When a chunk would have ended on it, from now; rates are those of the last chunks. One that has had
 * none for long may have got better since, which only a chunk can tell. */
static double finish_of(const ib_pair_t *p, uint64_t bytes, uint64_t usual, uint64_t now)
{
    const bool old = p->bytes == 0 && now > p->done_ns + RATE_OLD_NS;
    const uint64_t rate = p->rate != 0 && !old ? p->rate : usual;
    return (double)(p->bytes + bytes) / (double)(rate != 0 ? rate : 1);
}

/* Behind a chunk there are credits for a notice, and for a word on each of the others. A word leaves the
 * last one, where it can. */
typedef enum pair_use { USE_CHUNK, USE_WORD, USE_WORD_ANYHOW } pair_use_t;

static bool has_credits(const ib_pair_t *p, pair_use_t use)
{
    if (use == USE_WORD_ANYHOW) return true;
    return ib_credits_for_chunk(&p->credits, use == USE_CHUNK ? p->conn->pair_count - 1 : 0);
}

/* The pair that would end it first, with room and credits. Chunks go over the first of those that are well, as many as
 * are used: where one goes down the next takes its place. */
static ib_pair_t *choose_pair(lh_conn_t *c, uint64_t bytes, pair_use_t use)
{
    const uint64_t now = c->pair_count > 1 ? pair_now(c) : 0; /* of one alone nobody asks */
    ib_pair_t *best = NULL;
    uint64_t usual = 0;
    uint32_t left = use == USE_CHUNK ? ib_pairs_used(c) : c->pair_count;
    for (uint32_t i = 0; i < c->pair_count; i++)
        if (c->pairs[i].rate > usual) usual = c->pairs[i].rate;
    for (uint32_t i = 0; i < c->pair_count && left > 0; i++) {
        ib_pair_t *p = &c->pairs[i];
        if (!pair_is_well(p)) continue;
        left--;
        if (ib_pair_wrs(p) + IB_NOTICE_WRS >= c->transport->wrs || !has_credits(p, use)) continue;
        if (best == NULL || finish_of(p, bytes, usual, now) < finish_of(best, bytes, usual, now))
            best = p;
    }
    return best;
}

/* Notices may have used what was kept for it, as long as the peer's did not come, and the peer's may
 * wait for it. So it leaves without a credit as well. */
bool ib_pairs_part(lh_conn_t *c, uint32_t index)
{
    const ib_pair_t *down = &c->pairs[index];
    ib_pair_t *p = choose_pair(c, 0, USE_WORD);
    if (p == NULL) p = choose_pair(c, 0, USE_WORD_ANYHOW);
    if (p == NULL) return false;
    ib_sent_t row = {.id = id_write(ID_OTHER, p->index, 0, OTHER_AWAY), .to = c->peer_board};
    row_carry(&row, &(ib_immediate_t){.kind = IB_AWAY,
                                      .number = (uint32_t)down->arrived,
                                      .index = index,
                                      .turn = down->turn});
    return pair_post(p, &row, 1);
}

/* The next notice has the number of the first that did not come, and tells of all since. */
static void notice_unsay(lh_conn_t *c, const ib_sent_t *r)
{
    if (r->order >= c->notices_out) return; /* a later one, or of the same */
    c->notices_out = r->order;
    c->retells = true;
    if (r->told < c->receive_first)
        ib_conn_break(c, LH_CORRUPT, "rank %u has filled receives of which it says not to know",
                      c->peer);
    else
        c->receive_told = r->told;
}

/* Of a queue pair that is down still, in that turn. Said twice it changes nothing. */
static void word_unsay(lh_conn_t *c, const ib_sent_t *r)
{
    ib_immediate_t what;
    (void)ib_immediate_read(ntohl(r->immediate), &what);
    ib_pair_t *of = &c->pairs[what.index];
    if (of->state != IB_PAIR_DOWN || ib_turn_ahead(of->turn, what.turn) != 0) return;
    if (of->away)
        of->answer_due = !c->dials;
    else
        of->asked = false;
}

static bool is_word(const ib_sent_t *r)
{
    return id_kind(r->id) == ID_OTHER && id_bytes(r->id) == OTHER_AWAY;
}

void ib_pair_unsay_words(ib_pair_t *p)
{
    for (uint64_t i = p->sent_first; i < p->sent_end; i++)
        if (is_word(&p->sent[i % IB_SEND_WRS])) word_unsay(p->conn, &p->sent[i % IB_SEND_WRS]);
}

/* Chunks go over others as credits allow. What gives credits back can't wait behind them; words have been
 * said again as it went down; a packet that showed whether the path lives is of no use on another. */
void ib_pair_unsay(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    uint64_t end = p->sent_first;
    for (uint64_t i = p->sent_first; i < p->sent_end; i++) {
        const ib_sent_t *r = &p->sent[i % IB_SEND_WRS];
        if (id_kind(r->id) == ID_NOTICE)
            notice_unsay(c, r);
        else if (r->has_immediate && !is_word(r))
            p->sent[end++ % IB_SEND_WRS] = *r;
        else if (id_kind(r->id) == ID_OTHER && id_bytes(r->id) == OTHER_PROBE)
            p->probing = false;
    }
    p->sent_end = end;
}

/* The oldest request. False: not now. */
static bool move_one(lh_conn_t *c, ib_pair_t *from)
{
    ib_sent_t row = from->sent[from->sent_first % IB_SEND_WRS];
    ib_pair_t *p = choose_pair(c, row.bytes, USE_CHUNK);
    if (p == NULL) return false;
    row.id = (row.id & ~id_write(0, 15, 0, 0)) | id_write(0, p->index, 0, 0);
    if (!pair_post(p, &row, 1)) return false;
    if (id_kind(row.id) == ID_CHUNK) {
        from->bytes -= row.bytes;
        p->bytes += row.bytes;
    }
    bucket_take_again(c, &row);
    atomic_fetch_add_explicit(&c->bytes_again, row.bytes, memory_order_relaxed);
    from->sent_first++;
    return true;
}

void ib_pairs_move(lh_conn_t *c)
{
    if (atomic_load(&c->pairs_up) == c->pair_count) return;
    for (uint32_t i = 0; i < c->pair_count && c->state == IB_OPEN; i++) {
        ib_pair_t *p = &c->pairs[i];
        while (p->away && p->state == IB_PAIR_DOWN && p->sent_first < p->sent_end)
            if (!move_one(c, p)) break;
    }
}

/* Its way to a queue pair begins with a thread that seals it. */
static bool begin_frame(lh_conn_t *c, uint64_t message, uint32_t bytes)
{
    ib_operation_t *o = &c->sends[message % IB_DEPTH];
    if (!ib_private_room(c)) return false;
    const ib_frame_t head = {.message = message,
                             .offset = o->posted,
                             .bytes = bytes,
                             .index = o->out,
                             .tag = o->tag,
                             .last = o->posted + bytes == o->bytes};
    ib_bucket_take(&c->bucket, bytes + IB_SEAL_OVER);
    o->posted += bytes;
    o->out++;
    ib_private_begin(c, &head, o->data + head.offset);
    ib_private_post(c);
    return c->state == IB_OPEN;
}

/* Whether so many more may be on the line; one always may. */
static bool window_has_room(const lh_conn_t *c, uint64_t bytes)
{
    return c->in_flight == 0 || c->in_flight + bytes <= c->tuning.window_bytes;
}

/* Only here a frame begins to be under way: while it was sealed it was on no line. */
bool ib_pairs_write_frame(lh_conn_t *c, const ib_job_t *job)
{
    const ib_share_t *peer = &c->sealed.peer;
    const uint64_t bytes = job->head.bytes + IB_SEAL_OVER;
    if (!window_has_room(c, bytes)) return false;
    ib_pair_t *p = choose_pair(c, bytes, USE_CHUNK);
    if (p == NULL) return false;
    ib_sent_t row = {.id = id_write(ID_CHUNK, p->index, job->head.message % IB_DEPTH, bytes),
                     .from = (uint64_t)(uintptr_t)job->frame,
                     .to = peer->frames + job->sequence % peer->slots * peer->slot_bytes,
                     .bytes = (uint32_t)bytes,
                     .frame = job->sequence + 1};
    row_carry(&row, &(ib_immediate_t){.kind = IB_CHUNK, .index = (uint32_t)job->sequence});
    if (!pair_post(p, &row, 1)) return false;
    p->bytes += bytes;
    c->in_flight += bytes;
    return true;
}

bool ib_pairs_write(lh_conn_t *c, uint64_t message)
{
    ib_operation_t *o = &c->sends[message % IB_DEPTH];
    const uint64_t left = o->bytes - o->posted, bytes = left < o->chunk ? left : o->chunk;
    const bool sealed = c->security == LH_SECURITY_PRIVATE;
    if (!sealed && !window_has_room(c, bytes)) return false;
    if (!bucket_is_open(c)) return false;
    if (sealed) return begin_frame(c, message, (uint32_t)bytes);
    ib_pair_t *p = choose_pair(c, bytes, USE_CHUNK);
    if (p == NULL) return false;
    ib_sent_t row = {.id = id_write(ID_CHUNK, p->index, message % IB_DEPTH, bytes),
                     .from = (uint64_t)(uintptr_t)(o->data + o->posted),
                     .to = o->to + o->posted,
                     .bytes = (uint32_t)bytes};
    row_carry(&row, &(ib_immediate_t){.kind = IB_CHUNK,
                                      .last = bytes == left,
                                      .number = (uint32_t)message,
                                      .index = o->out});
    if (!chunk_post(p, &row)) return false;
    ib_bucket_take(&c->bucket, bytes);
    p->bytes += bytes;
    c->in_flight += bytes;
    o->posted += bytes;
    o->out++;
    return true;
}

/* ---- completions ---- */

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
    const int32_t more = ib_grants_new(c->granted, c->send_next, low);
    const ib_notice_t *notice = &c->board->notices[c->notices_in++ % IB_NOTICES];
    const uint64_t *posted = notice->posted;
    bool sound = more >= 0 && ib_private_take_opened(c, notice->opened);
    for (uint32_t i = 0; sound && i < c->pair_count; i++)
        sound = ib_credits_take(&c->pairs[i].credits, posted[i]);
    if (sound)
        c->granted += (uint32_t)more;
    else
        ib_conn_break(c, LH_CORRUPT,
                      "rank %u gives grants or credits that it can't have (%u after %llu)", c->peer,
                      low, (unsigned long long)c->granted);
}

/* What was said last counts, and may come over another queue pair before what was said first. */
static void take_away(ib_pair_t *p, const ib_immediate_t *what)
{
    if (p->heard_away && ib_turn_ahead(p->away_turn, what->turn) < 0) return;
    p->heard_away = true;
    p->away_turn = what->turn;
    p->away_count = what->number;
}

static void take_received(ib_pair_t *p, const verbs_wc_t *wc)
{
    lh_conn_t *c = p->conn;
    ib_immediate_t what;
    char reason[IB_REASON + 1];
    p->spent++;
    p->arrived++;
    if (wc->opcode != VERBS_WC_RECEIVE_IMMEDIATE ||
        !ib_immediate_read(ntohl(wc->immediate), &what)) {
        ib_conn_break(c, LH_CORRUPT, "rank %u wrote an immediate of no meaning: %08x", c->peer,
                      ntohl(wc->immediate));
    } else if (what.kind == IB_SHARE) {
        ib_private_take_share(c);
    } else if (what.kind == IB_CHUNK && c->security == LH_SECURITY_PRIVATE) {
        ib_private_take_frame(c, what.index, wc->bytes);
    } else if (what.kind == IB_CHUNK) {
        take_chunk(c, &what, wc->bytes);
    } else if (what.kind == IB_NOTICE) {
        take_notice(c, what.number);
    } else if (what.kind == IB_AWAY && what.index < c->pair_count && what.index != p->index) {
        take_away(&c->pairs[what.index], &what);
    } else if (what.kind == IB_AWAY) {
        ib_conn_break(c, LH_CORRUPT, "rank %u says over queue pair %u that %u of %u is down",
                      c->peer, p->index, what.index, c->pair_count);
    } else {
        const lh_status_t why = ib_goodbye_read(c->board, reason);
        c->ended = true; /* so no goodbye is answered */
        ib_conn_break(c, why, "%s", reason);
    }
}

/* Of the `bytes` that were posted together with this one, their last. Half of what was and half of what is, so
 * that one late completion does not decide. */
static void pair_measure(ib_pair_t *p, const ib_sent_t *r, uint64_t bytes, uint64_t now)
{
    lh_conn_t *c = p->conn;
    const uint64_t took = now > r->since_ns ? now - r->since_ns : 1;
    if (bytes <= SMALL && p->bytes == 0) {
        const uint64_t least = atomic_load_explicit(&c->round_trip_min_ns, memory_order_relaxed);
        const uint64_t usual = atomic_load_explicit(&c->round_trip_ns, memory_order_relaxed);
        atomic_store_explicit(&c->round_trip_ns, usual == 0 ? took : (7 * usual + took) / 8,
                              memory_order_relaxed);
        if (least == 0 || took < least)
            atomic_store_explicit(&c->round_trip_min_ns, took, memory_order_relaxed);
    }
    if (bytes < IB_CHUNK_LEAST) return;
    const uint64_t since = p->done_ns > r->since_ns ? p->done_ns : r->since_ns;
    const uint64_t rate = (uint64_t)((double)bytes * 1e9 / (double)(now > since ? now - since : 1));
    p->rate = p->rate == 0 ? rate : p->rate / 2 + rate / 2;
    p->done_ns = now;
    uint64_t all = 0;
    uint32_t left = ib_pairs_used(c);
    for (uint32_t i = 0; i < c->pair_count && left > 0; i++) {
        if (c->pairs[i].state != IB_PAIR_UP) continue;
        all += c->pairs[i].rate;
        left--;
    }
    atomic_store_explicit(&c->rate, all, memory_order_relaxed);
}

void ib_pair_done(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    const ib_sent_t *r = &p->sent[p->sent_first++ % IB_SEND_WRS];
    p->acked += r->has_immediate;
    if (id_kind(r->id) == ID_OTHER && id_bytes(r->id) == OTHER_GOODBYE) c->leave_ns = 0;
    if (id_kind(r->id) == ID_OTHER && id_bytes(r->id) == OTHER_PROBE) p->probing = false;
    if (r->bytes > IB_SMALL) {
        const bool doubted = ib_pair_doubted(p);
        p->proven = true;
        p->lost = 0;
        if (doubted && ib_pairs_whole(c)) c->whole_due = true;
    }
    if (id_kind(r->id) != ID_CHUNK) return;
    p->bytes -= r->bytes;
    c->in_flight -= r->bytes;
    c->sends[id_row(r->id) % IB_DEPTH].back++;
    if (r->frame != 0) ib_private_acked(c, r->frame - 1);
}

static void take_sent(ib_pair_t *p)
{
    const ib_sent_t *r;
    uint64_t bytes = 0;
    p->invalid = 0;
    do {
        if (p->sent_first == p->sent_end) return;
        r = &p->sent[p->sent_first % IB_SEND_WRS];
        bytes += r->bytes;
        ib_pair_done(p);
    } while (!r->signaled);
    pair_measure(p, r, bytes, p->heard_ns);
}

/* Of what was asked for, and not of the way there: the memory that it is read from, or what it is. */
static bool is_of_request(int status)
{
    return status == VERBS_WC_LOCAL_PROTECTION || status == VERBS_WC_REMOTE_INVALID ||
           status == VERBS_WC_REMOTE_OPERATION;
}

/* What is flushed tells nothing: the error that began it comes with another completion, or from the
 * connection manager. What the peer's memory refuses would be refused again: it has granted what it
 * does not have, or gone, which is known soon. A request that is refused for its own sake may be one of a card
 * that has lost its count; sent again as it was, and refused so again, it is one. No goodbye goes over one that
 * fails: what is flushed there ends no other's. */
static void take_error(ib_pair_t *p, const verbs_wc_t *wc)
{
    lh_conn_t *c = p->conn;
    const char *text = c->transport->verbs.wc_status_text(wc->status);
    const bool ends = is_of_request(wc->status) && ++p->invalid == IB_INVALID;
    p->flushed |= id_kind(wc->id) == ID_RECEIVE;
    if (wc->status == VERBS_WC_REMOTE_ACCESS && c->refused_ns == 0)
        c->refused_ns = pair_now(c) + IB_REFUSED_MS * 1000000ull;
    if (!p->failing) {
        c->leave_ns = 0;
        p->failing = true;
        p->unanswered = wc->status == VERBS_WC_RETRIES_EXCEEDED;
        if (p->state == IB_PAIR_UP || p->failure == NULL) /* else it went down for that */
            p->failure = wc->status == VERBS_WC_FLUSHED ? "it went into its error state" : text;
    }
    if (ends) ib_conn_break(c, LH_IO, "rank %u: queue pair %u failed: %s", c->peer, p->index, text);
}

static void completion_take(lh_conn_t *c, const verbs_wc_t *wc, uint64_t now)
{
    ib_pair_t *p = &c->pairs[id_pair(wc->id)];
    if (p->qp == NULL || wc->pair != p->qp->number) return; /* of a former turn */
    if (wc->status != VERBS_WC_OK) {
        take_error(p, wc);
        return;
    }
    p->heard_ns = now;
    if (id_kind(wc->id) != ID_RECEIVE) {
        take_sent(p);
        return;
    }
    if (c->state == IB_OPEN && p->state == IB_PAIR_MEETING) ib_pair_heard(p);
    if (c->state == IB_OPEN) take_received(p, wc);
}

/* An error of a send may be told while the queue pair still receives, and what it receives is acknowledged.
 * Receives complete in order, so behind one that was flushed nothing comes. */
static bool pair_is_stopped(ib_pair_t *p)
{
    if (p->state != IB_PAIR_UP || p->qp == NULL || p->flushed) return true;
    const uint64_t now = pair_now(p->conn);
    if (p->stopped_ns != 0) return now >= p->stopped_ns + IB_STOP_MS * 1000000ull;
    p->stopped_ns = now;
    return !ib_pair_stop(p);
}

/* It is to be stopped, or to go down: now, and not when more of it has come. */
static bool pair_settles(const ib_pair_t *p, uint64_t now)
{
    const bool stops = p->state == IB_PAIR_UP && p->qp != NULL && !p->flushed && p->stopped_ns != 0;
    if (!p->failing || p->state == IB_PAIR_DOWN) return false;
    return !stops || now >= p->stopped_ns + IB_STOP_MS * 1000000ull;
}

/* Whether to look what becomes of those that failed. The connection manager, who may know that the peer has ended
 * the connection, is asked first: once in ASK_NS as long as they are only waited for. */
static bool settling_is_due(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    const bool open = c->state == IB_OPEN, acts = open && !c->ended && c->refused_ns == 0;
    bool any = false, due = false;
    for (uint32_t i = 0; i < c->pair_count; i++)
        any |= c->pairs[i].failing || c->pairs[i].heard_away;
    if (!any) return false;
    const uint64_t now = pair_now(c);
    for (uint32_t i = 0; i < c->pair_count; i++)
        due |= (open && c->pairs[i].heard_away) || (acts && pair_settles(&c->pairs[i], now));
    if (!due && now < t->asked_ns + ASK_NS) return false;
    t->asked_ns = now;
    return true;
}

/* Pairs that failed, here or at the peer, go down when nothing of theirs is left in the queue, nor can come into
 * it. How many failed here, or were stopped: one that took no receive work requests before a notice does so
 * without a completion. */
static uint32_t pairs_settle(lh_conn_t *c)
{
    uint32_t failed = 0;
    if (!settling_is_due(c)) return 0;
    ib_meet_events(c->transport);
    for (uint32_t i = 0; i < c->pair_count; i++) {
        ib_pair_t *p = &c->pairs[i];
        const bool waits = c->refused_ns != 0; /* and nothing is tried again */
        const bool fails = c->state == IB_OPEN && p->failing && !c->ended && !waits;
        const bool known = p->stopped_ns != 0; /* that it was stopped */
        const bool stopped = fails && pair_is_stopped(p);
        failed += fails && p->state != IB_PAIR_DOWN && (stopped || !known);
        if (stopped) ib_pair_fail(p, p->failure);
        if (c->state == IB_OPEN && p->heard_away) ib_pair_parted(p);
    }
    return failed;
}

/* Of one port. */
static uint32_t port_pump(lh_conn_t *c, uint32_t port)
{
    verbs_wc_t wcs[BATCH];
    uint32_t all = 0;
    int count = BATCH;
    while (count == BATCH && c->state <= IB_LEAVING) {
        count = c->cqs[port]->context->ops.poll_cq(c->cqs[port], BATCH, wcs);
        if (count < 0) {
            ib_conn_break(c, LH_IO, "the completion queue of %s failed",
                          c->transport->ports[port].device);
            return all + 1;
        }
        if (count == 0) break;
        const uint64_t now = pair_now(c);
        atomic_store_explicit(&c->heard_ns, now, memory_order_relaxed);
        all += (uint32_t)count;
        for (int i = 0; i < count; i++)
            completion_take(c, &wcs[i], now);
        post_spent(c, REPOST);
    }
    return all;
}

uint32_t ib_pairs_pump(lh_conn_t *c)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < c->transport->port_count; i++)
        all += port_pump(c, i);
    return all + pairs_settle(c);
}
