/* ib_plugin.c - the ib transport: its options, its figures, and the poll that drives it. */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "ib.h"

enum { EVENTS_EVERY = 256 }; /* polls between two looks at the connection manager, a system call */

static const lh_option_t options[] = {
    LH_OPTION_STRING(ib_config_t, device, "device", "",
                     "RDMA device whose addresses are taken, as ibv_devices names it; empty: any"),
    LH_OPTION_STRING(ib_config_t, bind, "bind", "auto",
                     "address or interface of an RDMA device, to listen on and dial from; auto: "
                     "the address through which this machine meets rank 0's, else the first that "
                     "belongs to a device"),
    LH_OPTION_U64(ib_config_t, port, "port", "0", "0..65535",
                  "port of a machine's first rank, counted up for its others; 0: any free one"),
    LH_OPTION_U64(ib_config_t, queue_pairs, "queue_pairs", "0", "0..16",
                  "queue pairs of a connection; 0: 1, or as many as keep what a lost packet makes "
                  "them send again below 2 %"),
    LH_OPTION_BYTES(ib_config_t, chunk_bytes, "chunk", "0", "0..67108864",
                    "piece of a message that one work request writes; 0: what the line carries in "
                    "100 us, 1MiB to 8MiB"),
    LH_OPTION_BYTES(ib_config_t, window_bytes, "window", "0", NULL,
                    "bytes of a connection under way at once; 0: 1.25 x round trip x rate and two "
                    "chunks where the link was measured, else 16 chunks"),
    LH_OPTION_U64(ib_config_t, traffic_class, "traffic_class", "0", "0..255",
                  "traffic class of packets (RoCE: DSCP x 4); 0: the device's own"),
    LH_OPTION_U64(
        ib_config_t, ack_timeout, "ack_timeout", "0", "0..31",
        "t of the time 4.096 us x 2^t after which a packet counts as lost; 0: the least "
        "that is 4 round trips, 1 ms and two chunks where the link was measured, else 14"),
};

/* May be called with everything still open. */
static void ib_close(lh_transport_t *t)
{
    while (t->conns != NULL)
        ib_close_conn(t->conns);
    while (t->listeners != NULL)
        ib_close_listener(t->listeners);
    while (t->regions != NULL)
        ib_release(t, t->regions);
    ib_device_close(t);
    if (t->epoll >= 0) (void)close(t->epoll);
    t->host->release(t->host, t);
}

static bool watch_fd(const lh_transport_t *t, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static lh_status_t ib_open(const lh_host_t *host, const void *config, lh_transport_t **out)
{
    lh_transport_t *t = host->alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->host = host;
    t->config = config;
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    lh_status_t status = t->epoll < 0 ? host->fail(host, LH_IO, "epoll_create1")
                                      : ib_device_open(t);
    if (status == LH_OK && (!watch_fd(t, t->events->fd) || !watch_fd(t, t->channel->fd)))
        status = host->fail(host, LH_IO, "epoll_ctl");
    if (status != LH_OK) {
        ib_close(t);
        return status;
    }
    *out = t;
    return LH_OK;
}

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
        .flags = LH_CAN_DIAL_TO_SEND | LH_CAN_DIAL_TO_RECEIVE | LH_CAN_DUPLEX,
        .memory_kinds = LH_MEM_HOST,
        .bytes_per_second = t->rate,
        .latency_ns = 2000,
        .max_message_bytes = IB_MESSAGE_MOST,
        .max_connections = 4096,
        .max_sends = IB_DEPTH,
        .max_recvs = IB_DEPTH,
        .alignment_bytes = 64,
        .numa = -1,
    };
    memcpy(mine.name, t->device, sizeof(mine.name));
    lh_fill(info, &mine, sizeof(mine));
    return LH_OK;
}

/* Events of completion queues say only that it is time to poll, which is what happens anyway. */
static void take_cq_events(lh_transport_t *t)
{
    verbs_cq_t *cq;
    void *context;
    while (t->verbs.get_cq_event(t->channel, &cq, &context) == 0)
        t->verbs.ack_cq_events(cq, 1);
}

static lh_status_t ib_poll(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                           uint32_t max, uint32_t *count)
{
    ib_sink_t s = {events, event_size, max, 0};
    if (t->armed) take_cq_events(t);
    if (t->armed || t->dialing > 0 || ++t->polls % EVENTS_EVERY == 0) ib_meet_events(t);
    t->armed = false;
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next)
        ib_conn_step(c, &s);
    *count = s.count;
    return LH_OK;
}

static lh_status_t ib_wait_fd(lh_transport_t *t, int *fd)
{
    *fd = t->epoll;
    return LH_OK;
}

/* Asks first to be told, and looks then: what comes between the two is seen by one of them. */
static lh_status_t ib_arm(lh_transport_t *t)
{
    t->armed = true;
    if (t->dialing > 0) return LH_AGAIN;
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next) {
        if (ib_conn_stir(c)) return LH_AGAIN;
        if (c->state != IB_OPEN) continue;
        if (c->cq->context->ops.req_notify_cq(c->cq, 0) != 0 || ib_pairs_pump(c) > 0)
            return LH_AGAIN;
    }
    return LH_OK;
}

static lh_status_t ib_stats(lh_conn_t *c, lh_link_stats_t *out)
{
    const uint64_t sent = atomic_load_explicit(&c->bytes_sent, memory_order_relaxed);
    const uint64_t received = atomic_load_explicit(&c->bytes_received, memory_order_relaxed);
    const uint32_t up = atomic_load_explicit(&c->pairs_up, memory_order_relaxed);
    LH_FILL(lh_link_stats_t, out, .paths_up = up, .bytes_sent = sent, .bytes_received = received);
    return LH_OK;
}

static const lh_transport_api_t api = {
    .struct_size = sizeof(api),
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
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_TRANSPORT,
    .config_size = sizeof(ib_config_t),
    .name = "ib",
    .version = "0.1.0",
    .summary = "RDMA over InfiniBand or RoCE: writes straight into the peer's receives",
    LH_TABLE_OPTIONS(options),
    .transport = &api,
};
