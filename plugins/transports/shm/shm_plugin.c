/* shm_plugin.c - the shm transport: its options, its figures, and the poll that drives it.
 *
 * A poll walks all connections and moves what can be moved, in the thread that calls it: there is
 * no other. The host spins on it while it waits for a collective, and sleeps on the epoll
 * descriptor between steps. */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "shm.h"

/* Events of one epoll_wait; spinning polls between two looks at the sockets. */
enum { BATCH = 32, SOCKETS_EVERY = 256 };

static const lh_option_t options[] = {
    LH_OPTION_BYTES(shm_config_t, ring_bytes, "ring", "512KiB", "64KiB..64MiB",
                    "memory of each direction of a connection; rounded up to a power of two"),
    LH_OPTION_BYTES(shm_config_t, direct_bytes, "direct", "4KiB", "1..",
                    "from this size on a message is copied once, from the sender's mapped memory"),
    LH_OPTION_BOOL(shm_config_t, checksum, "checksum", "yes",
                   "whether every message carries a checksum of its bytes"),
};

/* The ring's size becomes a power of two, by which places in it are counted. */
static lh_status_t shm_open(const lh_host_t *host, const void *config, lh_transport_t **out)
{
    lh_transport_t *t = host->alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->host = host;
    t->config = *(const shm_config_t *)config;
    t->check = shm_check_choose();
    uint64_t ring = SHM_RING_LEAST;
    while (ring < t->config.ring_bytes && ring < SHM_RING_MOST)
        ring *= 2;
    t->config.ring_bytes = ring;
    lh_status_t status = shm_machine(host, t->machine);
    if (status == LH_OK) {
        t->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (t->epoll < 0) status = host->fail(host, LH_IO, "epoll_create1");
    }
    if (status != LH_OK) {
        host->release(host, t);
        return status;
    }
    *out = t;
    return LH_OK;
}

/* May be called with everything still open. */
static void shm_close(lh_transport_t *t)
{
    while (t->conns != NULL)
        shm_close_conn(t->conns);
    while (t->remotes != NULL)
        shm_remote_free(t->remotes);
    while (t->listeners != NULL)
        shm_close_listener(t->listeners);
    while (t->regions != NULL)
        shm_release(t, t->regions);
    (void)close(t->epoll);
    t->host->release(t->host, t);
}

static lh_status_t shm_nic_count(LH_UNUSED lh_transport_t *t, uint32_t *out)
{
    *out = 1;
    return LH_OK;
}

/* Rate and latency are guesses of the right size: the host measures its links. */
static lh_status_t shm_nic_info(lh_transport_t *t, uint32_t nic, lh_nic_info_t *info)
{
    if (nic != 0) return t->host->fail(t->host, LH_INVALID, "there is one card, not %u", nic);
    const uint32_t checksum = t->config.checksum ? LH_CAN_CHECKSUM : 0;
    LH_FILL(lh_nic_info_t, info,
            .flags = LH_CAN_DIAL_TO_SEND | LH_CAN_DIAL_TO_RECEIVE | LH_CAN_DUPLEX | checksum,
            .memory_kinds = LH_MEM_HOST, .bytes_per_second = 10000000000ull, .latency_ns = 300,
            .max_message_bytes = (uint64_t)1 << 40, .max_connections = 4096, .max_sends = SHM_DEPTH,
            .max_recvs = SHM_DEPTH, .alignment_bytes = 64, .numa = -1, .name = "shared memory");
    return LH_OK;
}

/* A wait is over: whoever is awake needs no system call to be told. */
static void wake_up(lh_transport_t *t)
{
    t->armed = false;
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next)
        if (c->shared != NULL) atomic_store(&c->shared->sides[c->side].asleep, 0);
}

/* A listener's socket has no connection: who comes in is looked for in accept. What a peer that has ended
 * leaves, its socket and its process, stays readable until a step has broken the connection, so each is
 * looked at once: epoll tells those first that it has not told for longest. */
static void read_sockets(lh_transport_t *t)
{
    struct epoll_event events[BATCH];
    int64_t left = BATCH;
    for (const lh_conn_t *c = t->conns; c != NULL; c = c->next)
        left += 2;
    for (int count = BATCH; count == BATCH && left > 0; left -= count) {
        count = epoll_wait(t->epoll, events, BATCH, 0);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr != NULL) shm_conn_read(events[i].data.ptr);
    }
}

/* While it spins it looks at the rings only, and now and then at the sockets, which say no more
 * than that a peer has ended. */
static lh_status_t shm_poll(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                            uint32_t max, uint32_t *count)
{
    shm_sink_t s = {events, event_size, max, 0};
    /* Sockets matter while somebody slept, dials, or may have died. */
    if (t->armed || t->dialing > 0 || ++t->polls % SOCKETS_EVERY == 0) {
        if (t->armed) wake_up(t);
        read_sockets(t);
    }
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next)
        shm_step(c, &s);
    *count = s.count;
    return LH_OK;
}

static lh_status_t shm_wait_fd(lh_transport_t *t, int *fd)
{
    *fd = t->epoll;
    return LH_OK;
}

/* Says first that it sleeps and looks then, as the writers write first and ask then. */
static lh_status_t shm_arm(lh_transport_t *t)
{
    t->armed = true;
    for (lh_conn_t *c = t->conns; c != NULL; c = c->next)
        if (c->state == SHM_OPEN) atomic_store(&c->shared->sides[c->side].asleep, 1);
    shm_fence(memory_order_seq_cst);
    for (const lh_conn_t *c = t->conns; c != NULL; c = c->next)
        if (shm_ready(c)) {
            wake_up(t);
            return LH_AGAIN;
        }
    return LH_OK;
}

/* [any]: from atomics alone. */
static lh_status_t shm_stats(lh_conn_t *c, lh_link_stats_t *out)
{
    const uint64_t sent = atomic_load_explicit(&c->bytes_sent, memory_order_relaxed);
    const uint64_t received = atomic_load_explicit(&c->bytes_received, memory_order_relaxed);
    LH_FILL(lh_link_stats_t, out, .paths_up = 1, .bytes_sent = sent, .bytes_received = received);
    return LH_OK;
}

static const lh_transport_api_t api = {
    .struct_size = sizeof(api),
    .open = shm_open,
    .close = shm_close,
    .nic_count = shm_nic_count,
    .nic_info = shm_nic_info,
    .listen = shm_listen,
    .accept = shm_accept,
    .admit = shm_admit,
    .close_listener = shm_close_listener,
    .connect = shm_connect,
    .cancel = shm_cancel,
    .close_conn = shm_close_conn,
    .register_memory = shm_register,
    .release_memory = shm_release,
    .isend = shm_isend,
    .irecv = shm_irecv,
    .poll = shm_poll,
    .wait_fd = shm_wait_fd,
    .arm = shm_arm,
    .stats = shm_stats,
    .mapping = &shm_mapping,
    .security_levels = 1u << LH_SECURITY_PLAIN,
};

static const lh_draft_t drafts[] = {{LH_DRAFT_ONE_SIDED, &shm_one_sided}};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_TRANSPORT,
    .config_size = sizeof(shm_config_t),
    .name = "shm",
    .version = "0.1.0",
    .summary = "shared memory between processes of one machine",
    LH_TABLE_OPTIONS(options),
    LH_TABLE_DRAFTS(drafts),
    .transport = &api,
};
