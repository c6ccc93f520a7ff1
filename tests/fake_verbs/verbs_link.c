/* verbs_link.c - frames over a socket: what is lost, late or on time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "verbs_fake.h"

enum { FRAME_MOST = (int)sizeof(frame_t) + FAKE_MTU };

static void watch(fake_id_t *id, int how, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = id};
    (void)epoll_ctl(engine.epoll, how, id->fd, &event);
}

bool link_open(fake_id_t *id, int fd)
{
    id->out = malloc(FAKE_OUT_BYTES + FRAME_MOST);
    id->in = malloc(FRAME_MOST);
    if (id->out == NULL || id->in == NULL) return false;
    id->fd = fd;
    id->late_end = &id->late;
    watch(id, EPOLL_CTL_ADD, EPOLLIN);
    return true;
}

void link_close(fake_id_t *id)
{
    if (id->fd >= 0) {
        if (id->out != NULL) link_flush(id);
        (void)close(id->fd);
    }
    id->fd = -1;
    free(id->out);
    free(id->in);
    id->out = id->in = NULL;
    id->out_first = id->out_end = id->in_count = 0;
    while (id->late != NULL) {
        late_frame_t *late = id->late;
        id->late = late->next;
        free(late);
    }
    id->late_end = &id->late;
}

void link_flush(fake_id_t *id)
{
    while (id->out_first < id->out_end) {
        const ssize_t sent = send(id->fd, id->out + id->out_first, id->out_end - id->out_first,
                                  MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) {
            if (!id->full) watch(id, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            id->full = true;
            return;
        }
        if (sent < 0) break; /* nobody reads it any more */
        id->out_first += (size_t)sent;
    }
    id->out_first = id->out_end = 0;
    if (id->full) watch(id, EPOLL_CTL_MOD, EPOLLIN);
    id->full = false;
}

/* On the way of a payload: who changes it, and who reads it (verbs_tap). */
static void meddle(char *payload, size_t bytes)
{
    if (engine.orders.flip != 0 && bytes >= engine.orders.flip &&
        (engine.orders.flip_of == 0 || bytes == engine.orders.flip_of)) {
        payload[engine.orders.flip - 1] ^= 4;
        engine.orders.flip = 0;
    }
    if (engine.tap[0] == '\0') return;
    FILE *f = fopen(engine.tap, "a");
    if (f == NULL) return;
    (void)fwrite(payload, 1, bytes, f);
    (void)fclose(f);
}

bool link_is_dead(const fake_id_t *id)
{
    const uint64_t dead = engine.orders.dead_device;
    return engine.orders.port_down != 0 ||
           (dead != 0 && dead <= FAKE_DEVICES && id->open.verbs == &engine.contexts[dead - 1]);
}

static bool falls_in_hole(const fake_id_t *id, const frame_t *head)
{
    const uint64_t hole = engine.orders.mtu_hole, of = engine.orders.mtu_hole_of;
    return hole != 0 && head->bytes > hole &&
           (of == 0 || (of <= FAKE_DEVICES && id->open.verbs == &engine.contexts[of - 1]));
}

/* Whether it is the so-manieth of its kind. */
static bool is_chosen(uint64_t every, uint64_t *counted)
{
    return every != 0 && ++*counted % every == 0;
}

static bool is_lost(const fake_id_t *id, const frame_t *head)
{
    const orders_t *o = &engine.orders;
    const bool packet = head->kind == FRAME_PACKET, answer = head->kind == FRAME_ANSWER;
    if (o->mute != 0 || link_is_dead(id) || falls_in_hole(id, head)) return true;
    if (!packet && !answer) return false;
    if (o->loss != 0 && engine_random() % o->loss == 0) return true;
    if (answer) return is_chosen(o->lose_answer, &engine.answers_at);
    return is_chosen(o->lose_packet, &engine.packets_at) ||
           ((head->flags & FLAG_IMMEDIATE) != 0 &&
            is_chosen(o->lose_immediate, &engine.immediates_at));
}

/* Whether the line of its device takes a packet now. It may be AHEAD_NS behind, since nobody looks
 * more often than once a millisecond. What is lost takes its time, too. */
static bool line_takes(const fake_id_t *id, size_t bytes)
{
    enum { AHEAD_NS = 2000000 };
    const uint64_t rate = engine.orders.rate;
    if (rate == 0) return true;
    uint64_t *free_ns = &engine.line_ns[id->open.verbs == &engine.contexts[1] ? 1 : 0];
    const uint64_t now = engine_now();
    if (*free_ns > now + AHEAD_NS) return false;
    if (*free_ns < now) *free_ns = now;
    *free_ns += (uint64_t)((double)bytes * 1e9 / (double)rate);
    return true;
}

/* False: there is no room now. What is lost was sent. */
bool link_send(fake_id_t *id, const frame_t *head, const void *payload)
{
    const size_t bytes = sizeof(*head) + head->bytes;
    if (id->fd < 0) return true;
    if (id->out_end + bytes > FAKE_OUT_BYTES + (size_t)FRAME_MOST ||
        (head->kind == FRAME_PACKET && (id->out_end >= FAKE_OUT_BYTES || !line_takes(id, bytes))))
        return false;
    engine.counts.packets += head->kind == FRAME_PACKET;
    engine.counts.second += head->kind == FRAME_PACKET && id->open.verbs == &engine.contexts[1];
    if (is_lost(id, head)) {
        engine.counts.lost++;
        return true;
    }
    memcpy(id->out + id->out_end, head, sizeof(*head));
    if (head->bytes > 0) memcpy(id->out + id->out_end + sizeof(*head), payload, head->bytes);
    if (head->kind == FRAME_PACKET) meddle(id->out + id->out_end + sizeof(*head), head->bytes);
    id->out_end += bytes;
    link_flush(id);
    return true;
}

static void deliver(fake_id_t *id, const frame_t *head, const char *payload)
{
    if (link_is_dead(id)) return;
    if (head->kind == FRAME_PACKET || head->kind == FRAME_ANSWER) {
        if (id->qp != NULL) pair_frame(id->qp, head, payload);
    } else {
        cm_frame(id, head, payload);
    }
}

static void delay(fake_id_t *id, const frame_t *head, const char *payload)
{
    late_frame_t *late = malloc(sizeof(*late) + head->bytes);
    if (late == NULL) abort();
    late->next = NULL;
    late->due_ns = engine_now() + engine.orders.delay_us * 1000;
    late->head = *head;
    if (head->bytes > 0) memcpy(late->payload, payload, head->bytes);
    *id->late_end = late;
    id->late_end = &late->next;
    engine.counts.delayed++;
    engine_wake();
}

void link_late(fake_id_t *id, uint64_t now)
{
    while (id->late != NULL && id->late->due_ns <= now) {
        late_frame_t *late = id->late;
        id->late = late->next;
        if (id->late == NULL) id->late_end = &id->late;
        deliver(id, &late->head, late->payload);
        free(late);
    }
    if (id->late == NULL && id->ended && id->fd >= 0) cm_gone(id);
}

/* Reads frame by frame, and not more than a few at a time: others wait for the lock. */
void link_read(fake_id_t *id)
{
    for (int frames = 0; frames < 64 && id->fd >= 0;) {
        frame_t head;
        size_t wanted = sizeof(head);
        if (id->in_count >= sizeof(head)) {
            memcpy(&head, id->in, sizeof(head));
            if (head.bytes > FAKE_MTU) abort(); /* only this library writes there */
            wanted += head.bytes;
        }
        if (id->in_count == wanted && wanted >= sizeof(head)) {
            id->in_count = 0;
            frames++;
            if (engine.orders.delay_us != 0 || id->late != NULL)
                delay(id, &head, id->in + sizeof(head));
            else
                deliver(id, &head, id->in + sizeof(head));
            continue;
        }
        const ssize_t got = recv(id->fd, id->in + id->in_count, wanted - id->in_count,
                                 MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            (void)epoll_ctl(engine.epoll, EPOLL_CTL_DEL, id->fd, NULL);
            id->ended = true;
            if (id->late == NULL) cm_gone(id);
            return;
        }
        id->in_count += (size_t)got;
    }
}
