/* verbs_pair.c - reliable queue pairs: packets, answers, timers, completions. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "verbs_fake.h"

static const uint64_t not_ready_ns = 1000000;

static void complete(fake_cq_t *cq, const verbs_wc_t *wc)
{
    if (cq->count == cq->room) {
        engine.counts.overruns++;
        return;
    }
    cq->rows[cq->count++] = *wc;
    if (!cq->notify) return;
    cq->notify = false;
    events_put(&((fake_channel_t *)cq->open.channel)->events, cq);
}

static void complete_send(fake_qp_t *q, const fake_wqe_t *w, int status)
{
    if (status == VERBS_WC_OK && (w->wr.flags & VERBS_SIGNALED) == 0) return;
    complete((fake_cq_t *)q->open.send_cq, &(verbs_wc_t){.id = w->wr.id,
                                                         .status = status,
                                                         .opcode = VERBS_WC_SEND_WRITE,
                                                         .pair = q->open.number});
}

static fake_wqe_t *send_at(fake_qp_t *q, uint32_t index)
{
    return &q->sends[(q->send_first + index) % q->send_room];
}

static void retire(fake_qp_t *q, int status)
{
    fake_wqe_t *w = send_at(q, 0);
    complete_send(q, w, status);
    free(w->copy);
    q->send_first = (q->send_first + 1) % q->send_room;
    q->send_count--;
}

/* The oldest request gets the reason, everything else is flushed. */
void pair_fail(fake_qp_t *q, int status)
{
    if (q->failed) return;
    q->failed = true;
    for (bool first = true; q->send_count > 0; first = false)
        retire(q, first && status != VERBS_WC_OK ? status : VERBS_WC_FLUSHED);
    for (; q->receive_count > 0; q->receive_count--) {
        complete((fake_cq_t *)q->open.recv_cq, &(verbs_wc_t){.id = q->receives[q->receive_first],
                                                             .status = VERBS_WC_FLUSHED,
                                                             .pair = q->open.number});
        q->receive_first = (q->receive_first + 1) % q->receive_room;
    }
    q->acknowledged = q->next = q->end;
}

/* A completion of a queue pair that is no more would mean nothing to anybody. */
static void forget_completions(fake_cq_t *cq, uint32_t pair)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < cq->count; i++)
        if (cq->rows[i].pair != pair) cq->rows[kept++] = cq->rows[i];
    cq->count = kept;
}

fake_qp_t *pair_find(uint32_t number)
{
    fake_qp_t *q = engine.qps;
    while (q != NULL && q->open.number != number)
        q = q->behind;
    return q;
}

void pair_free(fake_qp_t *q)
{
    fake_qp_t **at = &engine.qps;
    pair_fail(q, VERBS_WC_OK);
    while (*at != q)
        at = &(*at)->behind;
    *at = q->behind;
    if (q->id != NULL) q->id->qp = NULL;
    forget_completions((fake_cq_t *)q->open.send_cq, q->open.number);
    forget_completions((fake_cq_t *)q->open.recv_cq, q->open.number);
    free(q->sends);
    free(q->receives);
    free(q);
}

/* ---- memory ---- */

/* Keys are an index and, above it, a count, so that one which was given back is known as such. They
 * are of one protection domain, as queue pairs are. */
static char *memory_at(const fake_qp_t *q, uint32_t key, uint64_t address, uint64_t bytes,
                       int access)
{
    const verbs_mr_t *mr = engine.mrs[key % FAKE_MRS];
    if (mr == NULL || mr->rkey != key || mr->pd != q->open.pd ||
        (engine.access[key % FAKE_MRS] & access) != access)
        return NULL;
    const uint64_t base = (uint64_t)(uintptr_t)mr->address;
    if (address < base || bytes > mr->bytes || address - base > mr->bytes - bytes) return NULL;
    char *behind = engine.behind[key % FAKE_MRS];
    return behind != NULL ? behind + (address - base) : (char *)(uintptr_t)address;
}

/* ---- the sending side ---- */

static uint64_t packet_bytes(const fake_wqe_t *w, uint64_t index)
{
    const uint64_t left = w->piece.bytes - index * FAKE_MTU;
    return left < FAKE_MTU ? left : FAKE_MTU;
}

static bool send_packet(fake_qp_t *q, fake_wqe_t *w, uint64_t number)
{
    const uint64_t index = number - w->first, bytes = packet_bytes(w, index);
    const bool last = index + 1 == w->packets;
    const bool immediate = last && w->wr.opcode == VERBS_WRITE_WITH_IMMEDIATE;
    frame_t head = {.kind = FRAME_PACKET,
                    .bytes = (uint32_t)bytes,
                    .number = number,
                    .address = w->wr.remote.address + index * FAKE_MTU,
                    .rkey = w->wr.remote.rkey,
                    .immediate = w->wr.immediate,
                    .flags = (last ? FLAG_LAST : 0) | (immediate ? FLAG_IMMEDIATE : 0)};
    const char *from = w->copy;
    if (bytes > 0 && from == NULL) {
        from = memory_at(q, w->piece.lkey, w->piece.address, w->piece.bytes, 0);
        if (from == NULL) {
            pair_fail(q, 4 /* IBV_WC_LOC_PROT_ERR */);
            return false;
        }
    }
    if (immediate && engine.orders.immediate != 0) {
        head.immediate ^= htonl((uint32_t)engine.orders.immediate);
        engine.orders.immediate = 0;
    }
    if (engine.orders.astray != 0 && engine.orders.astray_of == bytes) {
        head.address += engine.orders.astray;
        engine.orders.astray = 0;
    }
    return link_send(q->id, &head, bytes > 0 ? from + index * FAKE_MTU : NULL);
}

void pair_send(fake_qp_t *q)
{
    uint32_t at = 0;
    if (!q->connected || q->failed || q->next == q->end) return;
    if (q->wait_until_ns != 0 && engine_now() < q->wait_until_ns) return;
    q->wait_until_ns = 0;
    while (q->next < q->end && q->next - q->acknowledged < FAKE_WINDOW) {
        fake_wqe_t *w = send_at(q, at);
        if (q->next >= w->first + w->packets) {
            at++;
            continue;
        }
        if (!send_packet(q, w, q->next)) return;
        if (q->next == q->acknowledged) {
            q->early_ns = engine_now();
            if (q->early == 0) q->since_ns = q->early_ns;
        }
        q->next++;
    }
}

static void go_back(fake_qp_t *q)
{
    engine.counts.resent += q->next - q->acknowledged;
    q->next = q->acknowledged;
}

/* Of what is not answered: all, or with `selective` the oldest packet alone. Where that finds no room
 * now, the timer sends it. */
static void packet_resend(fake_qp_t *q)
{
    if (engine.orders.selective == 0) {
        go_back(q);
    } else if (q->acknowledged < q->next) {
        engine.counts.resent++;
        (void)send_packet(q, send_at(q, 0), q->acknowledged);
    }
}

/* What the other end's process has not read yet is not lost: a machine with few processors may keep
 * it from reading for longer than a card's timer has patience. */
static bool is_unread(const fake_id_t *id)
{
    int bytes = 0;
    if (id->out_end > id->out_first) return true;
    return id->fd >= 0 && ioctl(id->fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

/* As in the kernel's folder of a card, where the tests have made one. */
static void count_adaptive(void)
{
    char path[sizeof(fake_devices[0].folder) + 64];
    engine.counts.adaptive++;
    if (fake_devices[0].folder[0] == '\0') return;
    (void)snprintf(path, sizeof(path), "%s/ports/%d/hw_counters/roce_adp_retrans",
                   fake_devices[0].folder, FAKE_DEVICE_PORT);
    FILE *f = fopen(path, "r+");
    if (f == NULL) return;
    (void)fprintf(f, "%llu\n", (unsigned long long)engine.counts.adaptive);
    (void)fclose(f);
}

/* ConnectX: after 2 ms, then 4, 8 and 16, an answer or not. */
static void early_timer(fake_qp_t *q, uint64_t now)
{
    const uint64_t patience = engine.orders.adaptive_us * 1000 << (q->early < 3 ? q->early : 3);
    if (patience == 0 || now - q->early_ns < patience || is_unread(q->id)) return;
    q->early++;
    go_back(q);
    count_adaptive();
}

void pair_timers(fake_qp_t *q, uint64_t now)
{
    const uint64_t patience = (uint64_t)4096 << q->id->timeout;
    if (!q->connected || q->failed || q->acknowledged == q->next) return;
    early_timer(q, now);
    if (now - q->since_ns < patience) return;
    q->since_ns = now;
    if (is_unread(q->id)) return;
    if (q->retries++ == FAKE_RETRIES)
        pair_fail(q, VERBS_WC_RETRIES_EXCEEDED);
    else
        packet_resend(q);
}

static void answered(fake_qp_t *q, const frame_t *head)
{
    if (head->number > q->acknowledged && head->number <= q->end) {
        q->acknowledged = head->number;
        if (q->next < q->acknowledged) q->next = q->acknowledged;
        q->retries = q->early = 0;
        q->since_ns = q->early_ns = engine_now();
        while (q->send_count > 0 &&
               send_at(q, 0)->first + send_at(q, 0)->packets <= q->acknowledged)
            retire(q, VERBS_WC_OK);
    }
    if (head->status == ANSWER_ACCESS) pair_fail(q, VERBS_WC_REMOTE_ACCESS);
    if (head->status == ANSWER_INVALID) pair_fail(q, VERBS_WC_REMOTE_INVALID);
    if (q->failed || head->number != q->acknowledged) return;
    if (head->status == ANSWER_NOT_READY) {
        q->wait_until_ns = engine_now() + not_ready_ns;
        go_back(q);
    }
    if (head->status == ANSWER_GAP) packet_resend(q);
    pair_send(q);
}

/* ---- the receiving side ---- */

static void answer(fake_qp_t *q, uint32_t status)
{
    (void)link_send(
        q->id, &(frame_t){.kind = FRAME_ANSWER, .number = q->expected, .status = status}, NULL);
}

static void receive(fake_qp_t *q, const frame_t *head)
{
    complete((fake_cq_t *)q->open.recv_cq, &(verbs_wc_t){.id = q->receives[q->receive_first],
                                                         .opcode = VERBS_WC_RECEIVE_IMMEDIATE,
                                                         .bytes = (uint32_t)q->arrived,
                                                         .immediate = head->immediate,
                                                         .pair = q->open.number,
                                                         .flags = 2 /* IBV_WC_WITH_IMM */});
    q->receive_first = (q->receive_first + 1) % q->receive_room;
    q->receive_count--;
}

/* Whether a write has the request that its immediate needs, which is looked at before its bytes. One
 * that has it may be refused all the same, by order. */
static bool packet_is_met(fake_qp_t *q, const frame_t *head)
{
    const bool met = q->receive_count > 0;
    if ((head->flags & FLAG_IMMEDIATE) == 0) return true;
    if (met && engine.orders.not_ready == 0) return true;
    if (met) {
        engine.orders.not_ready--;
        engine.counts.refused++;
    }
    engine.counts.rnr++;
    answer(q, ANSWER_NOT_READY);
    return false;
}

static bool packet_land(fake_qp_t *q, const frame_t *head, const char *payload)
{
    if (head->bytes == 0) return true;
    char *to = memory_at(q, head->rkey, head->address, head->bytes, VERBS_REMOTE_WRITE);
    if (to == NULL) {
        answer(q, ANSWER_ACCESS);
        pair_fail(q, VERBS_WC_OK);
        return false;
    }
    memcpy(to, payload, head->bytes);
    return true;
}

/* It is the next one, and its bytes are where they belong. */
static void packet_count(fake_qp_t *q, const frame_t *head)
{
    q->expected++;
    q->arrived += head->bytes;
    if ((head->flags & FLAG_IMMEDIATE) != 0) receive(q, head);
    if ((head->flags & FLAG_LAST) != 0) q->arrived = 0;
}

static frame_t *kept_at(fake_qp_t *q, uint64_t number)
{
    return &q->ahead[number % FAKE_WINDOW];
}

static bool is_kept(fake_qp_t *q, uint64_t number)
{
    return q->kept > 0 && kept_at(q, number)->kind == FRAME_PACKET &&
           kept_at(q, number)->number == number;
}

/* Behind one that was lost: its bytes land at once, and its completion waits for its turn. */
static void packet_keep(fake_qp_t *q, const frame_t *head, const char *payload)
{
    if (head->number - q->expected >= FAKE_WINDOW || is_kept(q, head->number)) return;
    if (!packet_land(q, head, payload)) return;
    *kept_at(q, head->number) = *head;
    q->kept++;
}

/* What was kept behind a packet that has come now. False: one meets no request, or there is a gap still. */
static bool kept_follow(fake_qp_t *q)
{
    while (is_kept(q, q->expected)) {
        frame_t *head = kept_at(q, q->expected);
        if (!packet_is_met(q, head)) return false;
        packet_count(q, head);
        head->kind = 0;
        q->kept--;
    }
    if (q->kept == 0) return true;
    q->complained = true;
    answer(q, ANSWER_GAP);
    return false;
}

void pair_frame(fake_qp_t *q, const frame_t *head, const char *payload)
{
    if (!q->connected || q->failed) return;
    if (head->kind == FRAME_ANSWER) {
        answered(q, head);
        return;
    }
    if (head->number < q->expected) { /* again, since the answer was lost */
        answer(q, ANSWER_OK);
        return;
    }
    if (head->number > q->expected) {
        if (engine.orders.selective != 0) packet_keep(q, head, payload);
        if (!q->complained && !q->failed) answer(q, ANSWER_GAP);
        q->complained = true;
        return;
    }
    q->complained = false;
    if (engine.orders.invalid > 0) {
        engine.orders.invalid--;
        answer(q, ANSWER_INVALID);
        pair_fail(q, VERBS_WC_OK);
        return;
    }
    if (!packet_is_met(q, head) || !packet_land(q, head, payload)) return;
    const bool again = is_kept(q, head->number); /* kept, and sent again as it met no request */
    if (again) kept_at(q, head->number)->kind = 0;
    q->kept -= again;
    packet_count(q, head);
    const bool behind = q->kept > 0;
    if (behind && !kept_follow(q)) return;
    if (behind || (head->flags & FLAG_LAST) != 0 || q->expected % 16 == 0) answer(q, ANSWER_OK);
}

/* ---- the calls of the fast path ---- */

static int post_send(verbs_qp_t *qp, verbs_send_wr_t *first, verbs_send_wr_t **bad)
{
    fake_qp_t *q = (fake_qp_t *)qp;
    int error = 0;
    engine_lock();
    for (verbs_send_wr_t *wr = first; wr != NULL && error == 0; wr = wr->next) {
        *bad = wr;
        if (engine.orders.post_fails != 0 || q->send_count == q->send_room) {
            error = ENOMEM;
            break;
        }
        fake_wqe_t *w = send_at(q, q->send_count);
        *w = (fake_wqe_t){.wr = *wr};
        if (wr->sge_count > 0) w->piece = wr->sges[0];
        if (w->piece.bytes > 0 && (wr->flags & VERBS_INLINE) != 0) {
            w->copy = malloc(w->piece.bytes);
            if (w->copy == NULL) abort();
            memcpy(w->copy, (const char *)(uintptr_t)w->piece.address, w->piece.bytes);
        }
        w->first = q->end;
        w->packets = w->piece.bytes == 0 ? 1 : (w->piece.bytes - 1) / FAKE_MTU + 1;
        q->send_count++;
        if (q->failed) {
            retire(q, VERBS_WC_FLUSHED);
            continue;
        }
        q->end += w->packets;
    }
    pair_send(q);
    if (q->acknowledged < q->end) engine_wake();
    engine_unlock();
    return error;
}

static int post_recv(verbs_qp_t *qp, verbs_recv_wr_t *first, verbs_recv_wr_t **bad)
{
    fake_qp_t *q = (fake_qp_t *)qp;
    int error = 0;
    engine_lock();
    for (verbs_recv_wr_t *wr = first; wr != NULL; wr = wr->next) {
        *bad = wr;
        if (q->receive_count == q->receive_room) {
            error = ENOMEM;
            break;
        }
        if (q->failed) continue;
        q->receives[(q->receive_first + q->receive_count++) % q->receive_room] = wr->id;
    }
    engine_unlock();
    return error;
}

/* The rows of one queue pair, of one side, keep their order; others may come before them. */
static uint32_t choose_row(const fake_cq_t *cq)
{
    if (engine.orders.reorder == 0) return 0;
    uint32_t row = (uint32_t)(engine_random() % cq->count);
    for (uint32_t i = 0; i < row; i++)
        if (cq->rows[i].pair == cq->rows[row].pair && cq->rows[i].opcode == cq->rows[row].opcode)
            row = i;
    return row;
}

/* Who spins takes the processor from the end that he waits for, where there are few of them. */
static void rest(void)
{
    struct pollfd something = {.fd = engine.epoll, .events = POLLIN};
    (void)ppoll(&something, 1, &(struct timespec){.tv_nsec = 100000}, NULL);
}

static int poll_cq(verbs_cq_t *open, int most, verbs_wc_t *out)
{
    enum { PATIENCE = 32 };
    fake_cq_t *cq = (fake_cq_t *)open;
    int count = 0;
    engine_lock();
    if (!cq->notify) atomic_store(&engine.polled_ns, engine_now());
    if (cq->count == 0)
        engine_drive();
    else
        engine_beat();
    for (; count < most && cq->count > 0; count++) {
        const uint32_t row = choose_row(cq);
        out[count] = cq->rows[row];
        cq->count--;
        memmove(&cq->rows[row], &cq->rows[row + 1], (cq->count - row) * sizeof(cq->rows[0]));
    }
    engine.empty_polls = count > 0 || cq->notify ? 0 : engine.empty_polls + 1;
    const bool tired = engine.empty_polls > PATIENCE;
    engine_unlock();
    if (tired) rest();
    return count;
}

static int req_notify_cq(verbs_cq_t *open, int solicited_only)
{
    (void)solicited_only;
    engine_lock();
    ((fake_cq_t *)open)->notify = true;
    /* Who asks is about to sleep: the thread takes over at once. */
    atomic_store(&engine.polled_ns, 0);
    engine_unlock();
    return 0;
}

const verbs_ops_t fake_ops = {.poll_cq = poll_cq,
                              .req_notify_cq = req_notify_cq,
                              .post_send = post_send,
                              .post_recv = post_recv};
