/* ib_api.c - the transport as the host sees it: opening, the card's figures, and the poll that drives
 * everything. */
#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "ib.h"

/* Between two looks at the connection manager, a system call, and at the clock, where connections are well; and at the
 * card's counters. */
enum { TIMES_NS = 10000000, LOOK_NS = 1000000000 };

/* May be called with everything still open. */
static void ib_close(lh_transport_t *t)
{
    while (t->conns != NULL)
        ib_close_conn(t->conns);
    while (t->listeners != NULL)
        ib_close_listener(t->listeners);
    while (t->regions != NULL)
        ib_release(t, t->regions);
    ib_pool_free(t->pool);
    ib_device_close(t);
    if (t->timer >= 0) (void)close(t->timer);
    if (t->epoll >= 0) (void)close(t->epoll);
    t->host->release(t->host, t);
}

static bool watch_fd(const lh_transport_t *t, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

lh_status_t ib_transport_seals(lh_transport_t *t)
{
    enum { THREADS_MOST = 4 };
    cpu_set_t own;
    int fd = -1;
    if (t->pool != NULL) return LH_OK;
    const bool told = LH_HAS(t->host, processors) && t->host->processors != NULL;
    const uint32_t all = told ? t->host->processors(t->host)
                         : sched_getaffinity(0, sizeof(own), &own) == 0 ? (uint32_t)CPU_COUNT(&own)
                                                                        : 2;
    uint32_t threads = all / 2 > THREADS_MOST ? THREADS_MOST : all < 4 ? 1 : all / 2;
    if (t->config->seal_threads != 0) threads = (uint32_t)t->config->seal_threads;
    t->pool = ib_pool_new(t->host, threads, &fd);
    if (t->pool == NULL) return LH_NO_MEMORY;
    if (watch_fd(t, fd)) return LH_OK;
    /* The next connection would find the pool, and sleep where nothing wakes it. */
    const lh_status_t status = t->host->fail(t->host, LH_IO, "epoll_ctl");
    ib_pool_free(t->pool);
    t->pool = NULL;
    return status;
}

static lh_status_t ib_open(const lh_host_t *host, const void *config, lh_transport_t **out)
{
    lh_transport_t *t = host->alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->host = host;
    t->config = config;
    t->timer_ns = UINT64_MAX;
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    lh_status_t status = t->epoll < 0 || t->timer < 0 ? host->fail(host, LH_IO, "epoll_create1")
                                                      : ib_device_open(t);
    if (status == LH_OK && (!watch_fd(t, t->events->fd) || !watch_fd(t, t->timer)))
        status = host->fail(host, LH_IO, "epoll_ctl");
    for (uint32_t i = 0; status == LH_OK && i < t->port_count; i++)
        if (!watch_fd(t, t->ports[i].channel->fd)) status = host->fail(host, LH_IO, "epoll_ctl");
    if (status != LH_OK) {
        ib_close(t);
        return status;
    }
    *out = t;
    return LH_OK;
}

/* Several ports are one card: a message is spread over them here, not by the host. */
static lh_status_t ib_nic_count(LH_UNUSED lh_transport_t *t, uint32_t *out)
{
    *out = 1;
    return LH_OK;
}

static lh_status_t ib_nic_info(lh_transport_t *t, uint32_t nic, lh_nic_info_t *info)
{
    if (nic != 0) return t->host->fail(t->host, LH_INVALID, "there is one card, not %u", nic + 1);
    lh_nic_info_t mine = {
        .struct_size = sizeof(mine),
        .flags = LH_CAN_DIAL_TO_SEND | LH_CAN_DIAL_TO_RECEIVE | LH_CAN_DUPLEX |
                 LH_CAN_OUTLIVE_PATH | LH_CAN_KNOW | LH_CAN_PACE |
                 (ib_rules.seals ? LH_CAN_ENCRYPT : 0u),
        .memory_kinds = LH_MEM_HOST |
                        (t->takes_dmabuf ? LH_MEM_CUDA | LH_MEM_HIP | LH_MEM_DMABUF : 0u),
        .bytes_per_second = t->rate,
        .latency_ns = 2000,
        .max_message_bytes = IB_MESSAGE_MOST,
        .max_connections = 4096,
        .max_sends = IB_DEPTH,
        .max_recvs = IB_DEPTH,
        .alignment_bytes = 64,
        .numa = ib_card_numa(t->ports[0].context->device->folder),
    };
    memcpy(mine.name, t->ports[0].device, sizeof(mine.name));
    ib_card_bus(t->ports[0].context->device->folder, mine.pci_path, sizeof(mine.pci_path));
    lh_fill(info, &mine, sizeof(mine));
    return LH_OK;
}

/* Events of completion queues say only that it is time to poll, which is what happens anyway. */
static void take_cq_events(lh_transport_t *t)
{
    verbs_cq_t *cq;
    void *context;
    for (uint32_t i = 0; i < t->port_count; i++)
        while (t->verbs.get_cq_event(t->ports[i].channel, &cq, &context) == 0)
            t->verbs.ack_cq_events(cq, 1);
}

/* The least of what is due, to wake a sleeper; UINT64_MAX: nothing is. What it is set to does while that is to
 * come and no later: each message puts off the end of a queue pair's idleness, and to set it is a system call. */
static void ib_set_timer(lh_transport_t *t, uint64_t due)
{
    struct itimerspec when = {0};
    const uint64_t now = t->host->now_ns(t->host);
    const uint64_t left = due > now ? due - now : 1;
    if (t->timer_ns == UINT64_MAX ? due == UINT64_MAX : t->timer_ns > now && t->timer_ns <= due)
        return;
    t->timer_ns = due == UINT64_MAX ? due : now + left;
    if (due != UINT64_MAX)
        when.it_value = (struct timespec){.tv_sec = (time_t)(left / 1000000000),
                                          .tv_nsec = (long)(left % 1000000000)};
    (void)timerfd_settime(t->timer, 0, &when, NULL);
}

/* By the kernel's coarse clock, a word of memory that changes with its ticks: to read that is cheaper than the
 * clock itself. Polls can't be counted instead, as a host polls thousands of times in a tick while it waits,
 * and twice a second while it only computes. */
static bool times_are_due(lh_transport_t *t)
{
    struct timespec coarse = {0};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &coarse);
    const uint64_t now = (uint64_t)coarse.tv_sec * 1000000000u + (uint64_t)coarse.tv_nsec;
    if (now < t->timed_ns + TIMES_NS) return false;
    t->timed_ns = now;
    return true;
}

static lh_status_t ib_poll(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                           uint32_t max, uint32_t *count)
{
    ib_sink_t s = {events, event_size, max, 0};
    if (t->armed) take_cq_events(t);
    t->looks = t->armed || times_are_due(t);
    if (t->looks || t->meeting) ib_meet_events(t);
    if (t->looks) ib_device_watch(t, LOOK_NS);
    t->armed = t->meeting = false;
    ib_private_done(t);
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next) {
        ib_conn_step(c, &s);
        t->meeting |= c->state == IB_DIALING ||
                      (c->state == IB_OPEN && atomic_load(&c->pairs_up) < c->pair_count);
    }
    *count = s.count;
    return LH_OK;
}

static lh_status_t ib_wait_fd(lh_transport_t *t, int *fd)
{
    *fd = t->epoll;
    return LH_OK;
}

/* Asks first to be told, and looks then: what comes between the two is seen by one of them. What the connection
 * manager said meanwhile may be of a connection that was looked at before. */
static lh_status_t ib_arm(lh_transport_t *t)
{
    uint64_t due = UINT64_MAX;
    const uint64_t met = t->met_events;
    t->armed = true;
    if (t->pool != NULL && ib_pool_waits(t->pool)) return LH_AGAIN;
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next) {
        if (ib_conn_stir(c)) return LH_AGAIN;
        const uint64_t next = ib_conn_due(c);
        if (next < due) due = next;
        if (c->state != IB_OPEN && c->state != IB_LEAVING) continue;
        for (uint32_t i = 0; i < t->port_count; i++)
            if (c->cqs[i]->context->ops.req_notify_cq(c->cqs[i], 0) != 0) return LH_AGAIN;
        if (ib_pairs_pump(c) > 0) return LH_AGAIN;
    }
    if (t->met_events != met) return LH_AGAIN;
    ib_set_timer(t, due);
    return LH_OK;
}

static uint64_t ib_counter_load(const _Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

static lh_status_t ib_stats(lh_conn_t *c, lh_link_stats_t *out)
{
    const lh_host_t *host = c->transport->host;
    const uint64_t heard = ib_counter_load(&c->heard_ns), now = host->now_ns(host);
    const uint32_t up = atomic_load_explicit(&c->pairs_up, memory_order_relaxed);
    const uint32_t all = c->up_said ? c->pair_count : up, used = c->up_said ? ib_pairs_used(c) : up;
    LH_FILL(lh_link_stats_t, out, .paths_up = up < used ? up : used,
            .paths_down = all > up ? all - up : 0,
            .round_trip_ns = ib_counter_load(&c->round_trip_ns),
            .round_trip_min_ns = ib_counter_load(&c->round_trip_min_ns),
            .bytes_sent = ib_counter_load(&c->bytes_sent),
            .bytes_received = ib_counter_load(&c->bytes_received),
            .bytes_retransmitted = ib_counter_load(&c->bytes_again),
            .bytes_per_second = ib_counter_load(&c->rate),
            .silent_ns = heard != 0 && now > heard ? now - heard : 0,
            .path_mtu = c->pairs[c->first].proven ? ib_mtu_bytes(c->transport->ports[0].mtu) : 0);
    return LH_OK;
}

const lh_transport_api_t ib_api = {
    .struct_size = sizeof(ib_api),
    .open = ib_open,
    .close = ib_close,
    .nic_count = ib_nic_count,
    .nic_info = ib_nic_info,
    .listen = ib_listen,
    .accept = ib_accept,
    .admit = ib_admit,
    .close_listener = ib_close_listener,
    .connect = ib_connect,
    .cancel = ib_cancel,
    .close_conn = ib_close_conn,
    .register_memory = ib_register,
    .release_memory = ib_release,
    .isend = ib_isend,
    .irecv = ib_irecv,
    .poll = ib_poll,
    .wait_fd = ib_wait_fd,
    .arm = ib_arm,
    .stats = ib_stats,
    .address_text = ib_address_text,
    .tune = ib_tune,
    .retune = ib_retune,
    .cards = ib_cards,
    .security_levels = IB_LEVELS,
};
