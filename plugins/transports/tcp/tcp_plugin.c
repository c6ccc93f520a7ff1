/* tcp_plugin.c - messages over TCP: works everywhere, over several streams where the link is long,
 * with a checksum or a seal on every frame.
 *
 * This file has the functions of lh_transport_api_t (longhaul/transport.h) and the options; what
 * they set in motion is in the files by noun: address, card, socket, stream, greet, dial, conn, send,
 * receive, poll. */
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "tcp_card.h"
#include "tcp_kernel.h"
#include "tcp_poll.h"
#include "tcp_tuning.h"

#define DIAL_NS 10000000000ull /* where the host names none */

/* The address is chosen first: a transport that can't listen anywhere is refused before the job
 * starts. */
static lh_status_t tcp_start(lh_transport_t *t)
{
    const lh_host_t *host = t->host;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    const lh_status_t status = address_choose(t);
    if (status != LH_OK) return status;
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (t->epoll < 0 || t->timer < 0 || epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->timer, &event) != 0)
        return host->fail(host, LH_IO, "epoll and a timer");
    t->now = host->now_ns(host);
    return LH_OK;
}

static void listener_close(const lh_listener_t *l)
{
    for (uint32_t i = 0; i < l->fd_count; i++)
        (void)close(l->fds[i]);
}

/* May be called with everything still open, and with a start that failed half-way. */
static void tcp_close(lh_transport_t *t)
{
    const lh_host_t *host = t->host;
    while (t->listeners != NULL) {
        lh_listener_t *l = t->listeners;
        t->listeners = l->next;
        for (stream_t *s = l->strangers, *next; s != NULL; s = next) {
            next = s->next;
            stream_free(s);
        }
        listener_close(l);
        host->release(host, l);
    }
    for (lh_conn_t *c = t->conns, *next; c != NULL; c = next) {
        next = c->next;
        conn_free(c);
    }
    tcp_bury(t);
    task_pool_free(t->pool);
    for (lh_region_t *r = t->regions, *next; r != NULL; r = next) {
        next = r->next;
        host->release(host, r);
    }
    if (t->timer >= 0) (void)close(t->timer);
    if (t->epoll >= 0) (void)close(t->epoll);
    if (t->tls_context != NULL) tls_context_free(t->tls_context);
    host->release(host, t);
}

static lh_status_t tcp_open(const lh_host_t *host, const void *config, lh_transport_t **out)
{
    lh_transport_t *t = host->alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->host = host;
    t->config = config;
    t->epoll = t->timer = -1;
    t->numa = -1;
    lh_status_t status = tcp_start(t);
    if (status == LH_OK) status = buffers_check(t);
    if (status != LH_OK) {
        tcp_close(t);
        return status;
    }
    *out = t;
    return LH_OK;
}

static lh_status_t tcp_nic_count(LH_UNUSED lh_transport_t *t, uint32_t *out)
{
    *out = 1;
    return LH_OK;
}

/* One card, or what stands for one: the addresses that were chosen. Its rate is what their interfaces
 * say, together. */
static lh_status_t tcp_nic_info(lh_transport_t *t, uint32_t nic, lh_nic_info_t *info)
{
    if (nic != 0)
        return t->host->fail(t->host, LH_INVALID, "there is one address, not %u", nic + 1);
    lh_nic_info_t mine = {
        .struct_size = sizeof(mine),
        .flags = LH_CAN_DIAL_TO_SEND | LH_CAN_DIAL_TO_RECEIVE | LH_CAN_DUPLEX | LH_CAN_CHECKSUM |
                 LH_CAN_KNOW | LH_CAN_PROVE | LH_CAN_ENCRYPT | LH_CAN_PACE,
        .memory_kinds = LH_MEM_HOST,
        .bytes_per_second = cards_rate(t),
        .max_message_bytes = MESSAGE_MAX,
        .max_connections = 4096,
        .max_sends = DEPTH,
        .max_recvs = DEPTH,
        .alignment_bytes = 64,
        .numa = t->numa,
    };
    cards_text(t, mine.name, sizeof(mine.name));
    lh_fill(info, &mine, sizeof(mine));
    return LH_OK;
}

/* The context and a first key: where the job has none, it is said now and not at the first dial. */
static lh_status_t need_security(lh_transport_t *t, uint32_t security)
{
    uint8_t key[32];
    if (security > LH_SECURITY_PRIVATE)
        return t->host->fail(t->host, LH_UNSUPPORTED, "security %u is asked for; there are 0 to %u",
                             security, (uint32_t)LH_SECURITY_PRIVATE);
    if (security == LH_SECURITY_PLAIN) return LH_OK;
    const lh_status_t status = t->host->derive_key(t->host, "tcp", t->host->world->rank, key,
                                                   sizeof(key));
    secret_wipe(key, sizeof(key));
    if (status != LH_OK) return status;
    return t->tls_context != NULL ? LH_OK : tls_context_new(t->host, &t->tls_context);
}

/* One more socket. After a failure the caller closes those that there are. */
static lh_status_t listener_add(lh_listener_t *l, const place_t *here, lh_address_t *address)
{
    lh_transport_t *t = l->transport;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &l->watch};
    int fd;
    const lh_status_t status = socket_listen(t, here, address, &fd);
    if (status != LH_OK) return status;
    l->fds[l->fd_count++] = fd;
    if (epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &event) == 0) return LH_OK;
    return t->host->fail(t->host, LH_IO, "watch the listener");
}

/* The listener's security is for all who come in: a stranger can't choose. */
static lh_status_t tcp_listen(lh_transport_t *t, uint32_t nic, uint32_t security,
                              lh_address_t *address, lh_listener_t **out)
{
    const lh_host_t *host = t->host;
    if (nic != 0) return host->fail(host, LH_INVALID, "there is one address, not %u", nic + 1);
    lh_status_t status = need_security(t, security);
    if (status != LH_OK) return status;
    lh_listener_t *l = host->alloc(host, sizeof(*l), 64);
    if (l == NULL) return LH_NO_MEMORY;
    l->watch.kind = WATCH_LISTENER;
    l->transport = t;
    l->security = security;
    address->length = 0;
    for (uint32_t i = 0; i < t->here_count && status == LH_OK; i++)
        status = listener_add(l, &t->here[i], address);
    if (status != LH_OK) {
        listener_close(l);
        host->release(host, l);
        return status;
    }
    l->next = t->listeners;
    t->listeners = l;
    *out = l;
    return LH_OK;
}

/* Hands the oldest stranger that has said who it is to the host, as a connection that is not
 * admitted yet. */
static lh_status_t tcp_accept(lh_listener_t *l, lh_hello_t *hello, lh_conn_t **out)
{
    lh_transport_t *t = l->transport;
    lh_conn_t *c;
    t->now = t->host->now_ns(t->host);
    listener_serve(l);
    stream_t *s = l->strangers;
    while (s != NULL && s->state != STREAM_OFFERED)
        s = s->next;
    if (s == NULL) return LH_AGAIN;
    const lh_status_t status = conn_new(t, &c);
    if (status != LH_OK) return status;
    c->hello = *hello = s->greeting.hello;
    c->security = l->security;
    c->stream_count = s->greeting.streams;
    conn_name(c, c->hello.rank);
    t->unsettled++;
    stranger_take(s);
    stream_adopt(c, s, 0);
    *out = c;
    return LH_OK;
}

/* Of connect and of admit. Structs of the host may be shorter than this plugin's. */
static void take_params(lh_conn_t *c, const lh_conn_params_t *params)
{
    static const lh_link_t no_link = {.struct_size = sizeof(no_link)};
    static const lh_tuning_t no_tuning = {.struct_size = sizeof(no_tuning)};
    c->link = no_link;
    c->wanted = no_tuning;
    if (params->link != NULL)
        memcpy(&c->link, params->link,
               params->link->struct_size < sizeof(c->link) ? params->link->struct_size
                                                           : sizeof(c->link));
    if (params->tuning != NULL)
        memcpy(&c->wanted, params->tuning,
               params->tuning->struct_size < sizeof(c->wanted) ? params->tuning->struct_size
                                                               : sizeof(c->wanted));
    c->tuning.struct_size = sizeof(c->tuning);
    lh_rank_info_t peer = {.struct_size = sizeof(peer)};
    if (c->transport->host->rank_info(c->transport->host, params->peer, &peer) == LH_OK)
        c->site = peer.site;
    c->service = params->hello.service;
    c->probes = LH_HAS(params, flags) && (params->flags & LH_CONN_PROBE) != 0;
    c->share = 1;
    conn_tune(c, c->streams[0] != NULL ? c->streams[0]->fd : -1);
    c->direction = params->direction;
    c->cookie = params->cookie;
    c->silence_ns = silence_within(params->silence_ns);
    c->dscp = params->dscp != 0              ? params->dscp
              : c->link.scope == LH_LINK_WAN ? dscp_of(params->hello.service)
                                             : 0;
}

/* The token that goes out with the welcome is what the connection's other streams join by. */
static lh_status_t tcp_admit(lh_conn_t *c, const lh_conn_params_t *params)
{
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    if (c->dialed || c->admitted)
        return host->fail(host, LH_INVALID, "%s is admitted already", c->peer_text);
    if (params->security != c->security)
        return host->fail(host, LH_UNSUPPORTED, "security %u is asked for, the listener has %u",
                          params->security, c->security);
    /* It may have hung up while the host made up its mind. */
    if (c->state >= CONN_ENDING || c->streams[0]->state != STREAM_OFFERED)
        return host->fail(host, LH_PEER_LOST, "%s has gone", c->peer_text);
    if (host->random(host, c->token, TOKEN_BYTES) != LH_OK) return LH_IO;
    t->now = host->now_ns(host);
    const greeting_t *asked = &c->streams[0]->greeting;
    take_params(c, params);
    conn_settle_streams(c,
                        streams_of_both(t->config, c->tuning.streams, asked->streams, asked->step));
    c->admitted = true;
    (void)admit_stream(c->streams[0]);
    return LH_OK;
}

static void tcp_close_listener(lh_listener_t *l)
{
    lh_transport_t *t = l->transport;
    while (l->strangers != NULL) {
        stream_t *s = l->strangers;
        stranger_take(s);
        stream_free(s);
    }
    lh_listener_t **at = &t->listeners;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    listener_close(l);
    t->host->release(t->host, l);
}

/* Starts the first stream; whether anybody is there is found out by later polls. */
static lh_status_t tcp_connect(lh_transport_t *t, const lh_address_t *address,
                               const lh_conn_params_t *params, lh_conn_t **out)
{
    const lh_host_t *host = t->host;
    struct sockaddr_storage to;
    socklen_t length;
    lh_conn_t *c;
    lh_status_t status = need_security(t, params->security);
    if (status != LH_OK) return status;
    if (address_way(t, address, 0, &to, &length) == NULL)
        return host->fail(host, LH_INVALID, "an address of %u bytes that is not of this plugin",
                          address->length);
    status = conn_new(t, &c);
    if (status != LH_OK) return status;
    conn_name(c, params->peer);
    c->address = *address;
    take_params(c, params);
    address_text(&to, c->address_text, sizeof(c->address_text));
    c->hello = params->hello;
    c->security = params->security;
    c->dialed = true;
    c->stream_count = c->tuning.streams;
    c->dial_ns = params->dial_ns != 0 ? params->dial_ns : DIAL_NS;
    t->now = host->now_ns(host);
    c->dial_deadline = t->now + c->dial_ns;
    t->unsettled++;
    dial_serve(c);
    *out = c;
    return LH_OK;
}

/* Local and at once: sockets are closed, threads have given back what they seal and open, and poll tells
 * what was outstanding. */
static void tcp_cancel(lh_conn_t *c)
{
    if (c->state >= CONN_BROKEN) return;
    c->transport->now = c->transport->host->now_ns(c->transport->host);
    turn_away(c);
    conn_break(c, LH_CANCELLED, "cancelled");
}

/* Buried by the next poll. */
static void tcp_close_conn(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    tcp_cancel(c);
    lh_conn_t **at = &t->conns;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->next = t->graveyard;
    t->graveyard = c;
}

static lh_status_t tcp_register(lh_transport_t *t, LH_UNUSED uint32_t nic, const lh_arena_t *memory,
                                lh_region_t **out)
{
    if (memory->kind != LH_MEM_HOST)
        return t->host->fail(t->host, LH_UNSUPPORTED, "memory of kind %u, only the host's is taken",
                             memory->kind);
    lh_region_t *r = t->host->alloc(t->host, sizeof(*r), 64);
    if (r == NULL) return LH_NO_MEMORY;
    r->next = t->regions;
    t->regions = r;
    *out = r;
    return LH_OK;
}

static void tcp_release(lh_transport_t *t, lh_region_t *r)
{
    lh_region_t **at = &t->regions;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    t->host->release(t->host, r);
}

/* Before it was admitted a connection has no direction yet, and takes both. */
static lh_status_t tcp_may_post(const lh_conn_t *c, uint32_t direction, uint64_t bytes)
{
    const lh_host_t *host = c->transport->host;
    if (c->state >= CONN_ENDING) return host->fail(host, c->why, "%s", c->reason);
    if ((c->dialed || c->admitted) && (c->direction & direction) == 0)
        return host->fail(host, LH_INVALID, "the connection to %s does not %s", c->peer_text,
                          direction == LH_SEND ? "send" : "receive");
    if (bytes > MESSAGE_MAX)
        return host->fail(host, LH_INVALID, "a message of %llu bytes, at most %llu",
                          (unsigned long long)bytes, (unsigned long long)MESSAGE_MAX);
    return LH_OK;
}

/* Queued only; it leaves at the next poll, together with what else is posted by then. */
static lh_status_t tcp_isend(lh_conn_t *c, LH_UNUSED lh_region_t *region, const void *data,
                             uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = tcp_may_post(c, LH_SEND, bytes);
    if (status != LH_OK) return status;
    if (c->send_end - c->send_first == DEPTH) return LH_AGAIN;
    c->sends[c->send_end++ % DEPTH] = (operation_t){
        .data = (uint8_t *)(uintptr_t)data, .bytes = bytes, .cookie = cookie, .tag = tag};
    return LH_OK;
}

/* Large messages wait for this grant, so it is sent at once; for small ones grants gather. */
static lh_status_t tcp_irecv(lh_conn_t *c, LH_UNUSED lh_region_t *region, void *data,
                             uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = tcp_may_post(c, LH_RECEIVE, bytes);
    if (status != LH_OK) return status;
    if (c->recv_end - c->recv_first == DEPTH) return LH_AGAIN;
    const uint32_t message = c->recv_end++;
    c->recvs[message % DEPTH] = (operation_t){
        .data = data, .bytes = bytes, .cookie = cookie, .tag = tag};
    /* Small ones may leave without a grant, so telling of them can wait for company. */
    if (c->grant_since == 0) c->grant_since = c->transport->now;
    if (bytes > EAGER_BYTES || c->recv_end - c->advertised >= EAGER_SLOTS / 2) c->grant_now = true;
    receive_posted(c, message);
    return LH_OK;
}

/* [any]: figures that poll has left; no system call. */
static lh_status_t tcp_stats(lh_conn_t *c, lh_link_stats_t *out)
{
    const lh_host_t *host = c->transport->host;
    const uint64_t heard = atomic_load_explicit(&c->heard_ns, memory_order_relaxed);
    const uint64_t now = host->now_ns(host);
    const uint32_t up = atomic_load_explicit(&c->paths_up, memory_order_relaxed);
    LH_FILL(lh_link_stats_t, out, .paths_up = up,
            .round_trip_ns = atomic_load_explicit(&c->round_trip_ns, memory_order_relaxed),
            .round_trip_min_ns = atomic_load_explicit(&c->round_trip_min_ns, memory_order_relaxed),
            .bytes_sent = atomic_load_explicit(&c->bytes_sent, memory_order_relaxed),
            .bytes_received = atomic_load_explicit(&c->bytes_received, memory_order_relaxed),
            .bytes_in_flight = atomic_load_explicit(&c->in_flight, memory_order_relaxed),
            .bytes_retransmitted = atomic_load_explicit(&c->retransmitted, memory_order_relaxed),
            .bytes_per_second = atomic_load_explicit(&c->rate, memory_order_relaxed),
            .starved_ns = atomic_load_explicit(&c->starved_ns, memory_order_relaxed),
            .silent_ns = heard != 0 && now > heard ? now - heard : 0,
            .path_mtu = atomic_load_explicit(&c->path_mtu, memory_order_relaxed));
    return LH_OK;
}

static lh_status_t tcp_card_stats(lh_conn_t *c, lh_card_stats_t *rows, uint32_t row_size,
                                  uint32_t max, uint32_t *count)
{
    *count = cards_stats(c, rows, row_size, max);
    return LH_OK;
}

/* What tuning_offer makes of the host's link, whichever version of the structs it has. */
static lh_status_t tcp_tune(lh_transport_t *t, const lh_link_t *link, uint32_t choice,
                            lh_tuning_t *out, char *why, size_t room)
{
    lh_link_t known = {.struct_size = sizeof(known)};
    lh_tuning_t chosen = {.struct_size = sizeof(chosen)};
    memcpy(&known, link, link->struct_size < sizeof(known) ? link->struct_size : sizeof(known));
    if (!tuning_offer(t, &known, choice, &chosen)) return LH_UNSUPPORTED;
    tuning_text(&chosen, why, room);
    lh_fill(out, &chosen, sizeof(chosen));
    return LH_OK;
}

/* Takes what is set in `wanted` into force on the sockets that are open. The number of streams
 * stays as it is, as only a new connection can have another, and the INI's pace is the most. */
static lh_status_t tcp_retune(lh_conn_t *c, const lh_tuning_t *wanted, lh_tuning_t *in_force)
{
    if (wanted != NULL) {
        lh_tuning_t mine = {.struct_size = sizeof(mine)}, all = c->tuning;
        const uint64_t most = c->transport->config->pace;
        memcpy(&mine, wanted,
               wanted->struct_size < sizeof(mine) ? wanted->struct_size : sizeof(mine));
        if (mine.inflight_bytes != 0) all.inflight_bytes = mine.inflight_bytes;
        if (mine.pace_bytes_per_second != 0) all.pace_bytes_per_second = mine.pace_bytes_per_second;
        if (most != 0 && all.pace_bytes_per_second > most) all.pace_bytes_per_second = most;
        /* This end's own choice of streams may not be what both have agreed on. */
        if (mine.chunk_bytes != 0)
            all.chunk_bytes = conn_chunk(c, mine.chunk_bytes, all.pace_bytes_per_second,
                                         mine.streams, c->stream_count);
        if (mine.buffer_bytes != 0) all.buffer_bytes = mine.buffer_bytes;
        if (mine.control != 0) all.control = mine.control;
        const bool grows = all.buffer_bytes != c->tuning.buffer_bytes;
        c->tuning = all;
        if (grows) conn_keep_budget(c);
        for (uint32_t i = 0; i < c->stream_count; i++)
            if (c->streams[i] != NULL && c->streams[i]->state == STREAM_OPEN)
                socket_tune(c, c->streams[i]->fd, false);
    }
    if (in_force != NULL) lh_fill(in_force, &c->tuning, sizeof(c->tuning));
    return LH_OK;
}

/* The first: the host takes the port off it, and keeps the rest in its record of links. */
static lh_status_t tcp_address_text(lh_transport_t *t, const lh_address_t *address, char *text,
                                    size_t room)
{
    struct sockaddr_storage a;
    socklen_t length;
    if (!address_read(&t->here[0], address, 0, &a, &length)) return LH_INVALID;
    address_text(&a, text, room);
    return LH_OK;
}

static const lh_transport_api_t api = {
    .struct_size = sizeof(api),
    .open = tcp_open,
    .close = tcp_close,
    .nic_count = tcp_nic_count,
    .nic_info = tcp_nic_info,
    .listen = tcp_listen,
    .accept = tcp_accept,
    .admit = tcp_admit,
    .close_listener = tcp_close_listener,
    .connect = tcp_connect,
    .cancel = tcp_cancel,
    .close_conn = tcp_close_conn,
    .register_memory = tcp_register,
    .release_memory = tcp_release,
    .isend = tcp_isend,
    .irecv = tcp_irecv,
    .poll = tcp_poll,
    .wait_fd = tcp_wait_fd,
    .arm = tcp_arm,
    .stats = tcp_stats,
    .address_text = tcp_address_text,
    .tune = tcp_tune,
    .retune = tcp_retune,
    .cards = tcp_kernel_tell,
    .security_levels = 1u << LH_SECURITY_PLAIN | 1u << LH_SECURITY_KNOWN |
                       1u << LH_SECURITY_PROVEN | 1u << LH_SECURITY_PRIVATE,
    .card_stats = tcp_card_stats,
};

static const lh_option_t options[] = {
    LH_OPTION_STRING(tcp_config_t, bind, "bind", "auto",
                     "address or interface to listen on and dial from; auto: 127.0.0.1 on one "
                     "machine, else the address through which this machine meets rank 0's"),
    LH_OPTION_STRING(tcp_config_t, advertise, "advertise", "",
                     "address that others dial where it is not the bound one (NAT that keeps "
                     "ports): ADDRESS, or HOST=ADDRESS for each host, separated by commas"),
    LH_OPTION_U64(tcp_config_t, port, "port", "0", "0..65535",
                  "port of a machine's first rank, counted up for its others; 0: any free one"),
    LH_OPTION_U64(tcp_config_t, streams, "streams", "0", "0..64",
                  "sockets of a connection; 0: by the link (1 near, in a site one for each 25Gbps "
                  "of its card, 4 to 64 between sites)"),
    LH_OPTION_BYTES(tcp_config_t, chunk_bytes, "chunk", "0", "0..4194304",
                    "piece of a message that one stream takes; 0: 256KiB, between sites what it "
                    "sends in 16 ms, 64KiB to 1MiB"),
    LH_OPTION_BYTES(tcp_config_t, buffer_bytes, "buffer", "0", "0..1073741824",
                    "kernel buffer over all streams of a connection; 0: by the link's round trip "
                    "and rate, else the kernel's own tuning"),
    LH_OPTION_RATE(tcp_config_t, pace, "pace", "0", NULL,
                   "most that a connection sends; 0: between sites 97 % of the measured rate"),
    LH_OPTION_STRING(tcp_config_t, congestion, "congestion", "auto",
                     "the kernel's congestion control; auto: bbr between sites where it is there, "
                     "else cubic"),
    LH_OPTION_STRING(tcp_config_t, nics, "nics", "",
                     "interfaces, separated by commas, in place of bind: streams go in turn over "
                     "those nearest to this rank's device by root port and NUMA node"),
    LH_OPTION_CHOICE(
        tcp_config_t, threads, "threads", "auto", "auto|0|1|2|3|4|5|6|7|8|9|10|11|12|13|14|15|16",
        "threads that seal and open frames beside the one that polls; auto: by a known "
        "rate above 10Gbps and the processors that a device leaves free"),
    LH_OPTION_CHOICE(tcp_config_t, zero_copy, "zero_copy", "auto", "auto|yes|no",
                     "messages from 64KiB on leave from their own pages where they are not "
                     "encrypted; auto: by a card of this machine's, not between sites"),
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_TRANSPORT,
    .config_size = sizeof(tcp_config_t),
    .name = "tcp",
    .version = "0.1.0",
    .summary = "messages over TCP: several streams, checksums, keys and encryption",
    LH_TABLE_OPTIONS(options),
    .transport = &api,
};
