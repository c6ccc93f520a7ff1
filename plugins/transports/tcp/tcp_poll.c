/* tcp_poll.c - progress: epoll for what is rare, direct reads while there are few streams (a system
 * call less a turn), and the descriptor to sleep on. */
#include "tcp_poll.h"

#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "tcp_ledger.h"
#include "tcp_work.h"
#include "tcp_zero.h"

enum {
    DIRECT_STREAMS = 4, /* up to so many are read without asking epoll */
    LOOK_NS = 100000,   /* then epoll is asked so often                */
    ROWS = 64,
    WAKE_NS = 10000000, /* while something has a deadline */
};

/* A listener or a stream. A row may be of a stream that an earlier row has closed. */
static void serve_row(const struct epoll_event *row)
{
    watch_t *watch = row->data.ptr;
    if (watch->kind == WATCH_POOL) return; /* every poll takes what threads have done */
    if (watch->kind == WATCH_LISTENER) {
        listener_serve((lh_listener_t *)(void *)watch);
        return;
    }
    stream_t *s = (stream_t *)(void *)watch;
    bool more;
    if (s->state != STREAM_OPEN) {
        if (s->state != STREAM_CLOSED && s->state != STREAM_NONE) stream_progress(s);
        return;
    }
    if (row->events & EPOLLOUT) stream_watch_out(s, false);
    /* An error, or the kernel's word that it has let go of pages, which would wake for ever. */
    if (row->events & EPOLLERR) zero_collect(s);
    if (row->events & (EPOLLIN | EPOLLHUP | EPOLLERR)) (void)stream_pull(s, &more);
}

/* One look; more rows than ROWS come at the next. The timer's row has no pointer. */
static void serve_epoll(lh_transport_t *t)
{
    struct epoll_event rows[ROWS];
    const int count = epoll_wait(t->epoll, rows, ROWS, 0);
    t->served = t->now;
    for (int i = 0; i < count; i++) {
        if (rows[i].data.ptr != NULL) {
            serve_row(&rows[i]);
            continue;
        }
        uint64_t expirations;
        (void)!read(t->timer, &expirations, sizeof(expirations));
        t->timer_set = false;
    }
}

void tcp_bury(lh_transport_t *t)
{
    for (lh_conn_t *c = t->graveyard, *next; c != NULL; c = next) {
        next = c->next;
        conn_free(c);
    }
    for (stream_t *s = t->dead_strangers, *next; s != NULL; s = next) {
        next = s->next;
        stream_free(s);
    }
    t->graveyard = NULL;
    t->dead_strangers = NULL;
}

/* Sends before it receives: the peer has something to do then while this end reads. */
static void serve_conn(lh_conn_t *c, bool direct)
{
    if (c->state <= CONN_JOINING) dial_serve(c);
    if (c->state == CONN_UP || c->state == CONN_ENDING) (void)conn_push(c);
    for (uint32_t i = 0; direct && i < c->stream_count && c->state <= CONN_UP; i++) {
        stream_t *s = c->streams[i];
        bool more;
        if (s == NULL || s->state != STREAM_OPEN) continue;
        zero_collect(s);
        (void)stream_pull(s, &more);
    }
    if (c->state == CONN_UP) socket_sample(c);
}

/* Few streams are read directly, whether or not something has come: a read that finds nothing costs
 * as much as an epoll_wait, and one that finds something saves it. */
lh_status_t tcp_poll(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size, uint32_t max,
                     uint32_t *count)
{
    sink_t sink = {(char *)events, event_size, max, 0};
    t->now = t->host->now_ns(t->host);
    if (t->graveyard != NULL || t->dead_strangers != NULL) tcp_bury(t);
    const bool direct = t->open_streams <= DIRECT_STREAMS;
    if (!direct || t->unsettled > 0 || t->now - t->served >= LOOK_NS) serve_epoll(t);
    /* Only while somebody is on the way in or out are there deadlines to look at. */
    for (lh_listener_t *l = t->listeners; l != NULL && t->unsettled > 0; l = l->next)
        listener_expire(l);
    work_take(t);
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next) {
        serve_conn(c, direct);
        conn_tell(c, &sink);
    }
    ledger_settle(t);
    *count = sink.count;
    return LH_OK;
}

lh_status_t tcp_wait_fd(lh_transport_t *t, int *fd)
{
    *fd = t->epoll;
    return LH_OK;
}

/* Wakes who sleeps on the epoll descriptor while handshakes or ends have deadlines. */
static void tcp_set_timer(lh_transport_t *t)
{
    if (t->timer_set) return;
    const struct itimerspec when = {.it_value = {.tv_nsec = WAKE_NS}};
    t->timer_set = timerfd_settime(t->timer, 0, &when, NULL) == 0;
}

/* Grants that wait for company leave now, for nobody may poll for long. */
lh_status_t tcp_arm(lh_transport_t *t)
{
    bool deadline = t->unsettled > 0;
    t->now = t->host->now_ns(t->host);
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next) {
        /* The peer may wait for them, and this end is about to sleep. */
        if (c->advertised != c->recv_end) c->grant_now = true;
        if (c->state == CONN_UP) (void)conn_push(c);
        if (conn_has_events(c) || conn_can_push(c)) return LH_AGAIN;
        /* A FRAME_END that nobody reads must not be waited for. */
        deadline |= c->state == CONN_ENDING;
        for (uint32_t i = 0; c->state == CONN_UP && i < c->stream_count; i++)
            stream_watch_out(c->streams[i], c->streams[i]->blocked);
        for (uint32_t i = 0; c->state == CONN_UP && i < c->stream_count; i++)
            stream_watch_in(c->streams[i], !c->streams[i]->opening);
    }
    if (work_waits(t)) return LH_AGAIN;
    if (deadline) tcp_set_timer(t);
    return LH_OK;
}
