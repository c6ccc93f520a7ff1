/* tcp_socket.c - sockets that listen and dial, when the kernel gives one up, and what it counts. */
#include "tcp_tuning.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

enum {
    BACKLOG = 256,
    PAUSE_MAX_MS = 1000,
    RETRY_MS = 500, /* the user timeout counts from the first retransmission */
    SAMPLE_NS = 50000000,
    AWAY_NS = 1000000000, /* nobody polled: the machine may have slept */
};

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* headers older than the kernel */
#endif
#define SILENCE_NS 3000000000ull
#define SILENCE_MAX_NS 600000000000ull
#define SILENCE_MIN_NS 1000000000ull

/* Options are wishes: a kernel that refuses one gives a slower socket, not none. */
static void socket_set_int(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof(value));
}

/* The place of the port is the only difference of the two families here. */
static void set_port(struct sockaddr_storage *a, uint16_t port)
{
    if (a->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)a)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons(port);
}

/* Ranks of one machine count up from the port of the INI, by their place on it. */
static uint16_t own_port(const lh_transport_t *t)
{
    lh_rank_info_t info = {.struct_size = sizeof(info)};
    const lh_host_t *host = t->host;
    if (t->config->port == 0) return 0;
    if (host->rank_info(host, host->world->rank, &info) != LH_OK) return (uint16_t)t->config->port;
    return (uint16_t)(t->config->port + info.local_rank);
}

bool socket_bind_card(int fd, const char *name)
{
    return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, (socklen_t)strlen(name) + 1) == 0;
}

/* IPV6_V6ONLY: an address means itself, and not another family's as well. Sockets that are accepted
 * are bound to the listener's card. */
lh_status_t socket_listen(lh_transport_t *t, const place_t *here, lh_address_t *address, int *out)
{
    const lh_host_t *host = t->host;
    struct sockaddr_storage local = here->address;
    socklen_t length = here->length;
    char text[80];
    set_port(&local, own_port(t));
    address_text(&local, text, sizeof(text));
    const int fd = socket(local.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return host->fail(host, LH_IO, "a socket for %s", text);
    /* A job that starts again need not wait until the kernel has forgotten the last one's
     * sockets. */
    socket_set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (local.ss_family == AF_INET6) socket_set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    set_buffers(t, fd,
                t->config->buffer_bytes); /* before SYN: it decides the scale of the window */
    if ((t->by_card && !socket_bind_card(fd, here->name)) ||
        bind(fd, (const struct sockaddr *)&local, length) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&local, &length) != 0) {
        const lh_status_t status = host->fail(host, LH_IO, "listen on %s", text);
        (void)close(fd);
        return status;
    }
    const lh_status_t status = address_publish(t, &local, address);
    if (status != LH_OK) {
        (void)close(fd);
        return status;
    }
    *out = fd;
    return LH_OK;
}

/* From an address that this rank listens on, so that what the peer sees is what it was told; the
 * port is chosen by connect. The kernel chooses a card by where a packet goes and not by its source,
 * so of two cards in one network it would take the same for both: hence socket_bind_card. A peer on
 * this machine is met over the loopback, from the very address that it listens on: from another one
 * its answer would be sent out by its card, to nobody. */
int socket_dial(lh_conn_t *c, uint32_t index)
{
    const lh_transport_t *t = c->transport;
    struct sockaddr_storage to, from;
    socklen_t length, from_length;
    const place_t *here = address_way(t, &c->address, index, &to, &length);
    if (here == NULL) {
        errno = EINVAL;
        return -1;
    }
    const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    const bool is_inside = t->by_card && address_is_own(&to);
    from = is_inside ? to : here->address;
    from_length = is_inside ? length : here->length;
    set_port(&from, 0);
    socket_set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    socket_tune(c, fd, true);
    if ((t->by_card && !is_inside && !socket_bind_card(fd, here->name)) ||
        (from.ss_family == to.ss_family && !address_is_any(&from) &&
         bind(fd, (const struct sockaddr *)&from, from_length) != 0) ||
        (connect(fd, (const struct sockaddr *)&to, length) != 0 && errno != EINPROGRESS)) {
        const int error = errno;
        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Keepalive counts in whole seconds, so less than one can't be kept. */
uint64_t silence_within(uint64_t ns)
{
    if (ns == 0) return SILENCE_NS;
    if (ns > SILENCE_MAX_NS) return SILENCE_MAX_NS;
    return ns < SILENCE_MIN_NS ? SILENCE_MIN_NS : ns;
}

/* A cut link is seen within silence_ns: an idle one by keepalive, a busy one by the user timeout,
 * and where retransmissions start late (a path of long or varying trips) by socket_sample. */
void socket_prepare(int fd, uint64_t silence_ns)
{
    const uint64_t ms = silence_ns / 1000000;
    /* Batches are made here: the kernel need not wait for more. */
    socket_set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    socket_set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    socket_set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    socket_set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    socket_set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, (int)(ms / 1000));
    socket_set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)ms - RETRY_MS);
    /* A link that is healed is found within a second: the kernel would double its pauses, and try
     * again only after as long again as the cut was (Linux 6.15 on; before, it does). */
    socket_set_int(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, PAUSE_MAX_MS);
}

/* Counts only where something could be sent at both ends of the time, at one pace, which for who sends
 * beside others is a part of the connection's own: told is what all of that pace would have carried.
 * What waits for the peer's receive, or lets others go first, says nothing of the link. */
static void sample_rate(lh_conn_t *c)
{
    const uint64_t sent = atomic_load_explicit(&c->bytes_sent, memory_order_relaxed);
    const uint64_t ns = c->transport->now - c->rate_ns;
    const bool busy = c->send_next != c->send_end && c->starved_since == 0 && !c->yields;
    if (busy && c->rate_busy && ns > 0 && sent > c->rate_bytes) {
        const double rate = (double)(sent - c->rate_bytes) * 1e9 / (double)ns / c->share;
        const uint64_t old = atomic_load_explicit(&c->rate, memory_order_relaxed);
        atomic_store_explicit(
            &c->rate, old == 0 ? (uint64_t)rate : (uint64_t)(0.75 * (double)old + 0.25 * rate),
            memory_order_relaxed);
    }
    c->rate_busy = busy;
    c->rate_bytes = sent;
    c->rate_ns = c->transport->now;
}

/* Of one stream, from the kernel's figures. */
static uint64_t silence_of(stream_t *s, const struct tcp_info *info, bool was_away)
{
    return silence_at(&s->waits_since, s->transport->now, info->tcpi_unacked, info->tcpi_probes,
                      (uint64_t)info->tcpi_last_ack_recv * 1000000, was_away);
}

/* For the figures of its card. */
static void sample_stream(stream_t *s, const struct tcp_info *info)
{
    const uint64_t trip_ns = (uint64_t)info->tcpi_rtt * 1000;
    s->retransmitted = (uint64_t)info->tcpi_total_retrans * info->tcpi_snd_mss;
    if (trip_ns != 0 && (s->trip_min_ns == 0 || trip_ns < s->trip_min_ns)) s->trip_min_ns = trip_ns;
}

/* Every SAMPLE_NS: the least round trip of the streams is the path's, the others wait behind
 * data. */
void socket_sample(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    uint64_t retransmitted = 0, in_flight = 0;
    uint32_t trip = UINT32_MAX, mtu = UINT32_MAX;
    const uint64_t since = c->transport->now - c->sampled_ns;
    if (since < SAMPLE_NS) return;
    c->sampled_ns = c->transport->now;
    for (uint32_t i = 0; i < c->stream_count; i++) {
        struct tcp_info info;
        socklen_t length = sizeof(info);
        if (c->streams[i] == NULL || c->streams[i]->state != STREAM_OPEN) continue;
        memset(&info, 0, sizeof(info));
        if (getsockopt(c->streams[i]->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
        /* The kernel's user timeout would come later where it retransmits late. */
        if (silence_of(c->streams[i], &info, since > AWAY_NS) >= c->silence_ns) {
            (void)stream_lost(c->streams[i], ETIMEDOUT);
            return;
        }
        sample_stream(c->streams[i], &info);
        if (info.tcpi_rtt < trip) trip = info.tcpi_rtt;
        if (info.tcpi_pmtu < mtu) mtu = info.tcpi_pmtu;
        retransmitted += (uint64_t)info.tcpi_total_retrans * info.tcpi_snd_mss;
        in_flight += (uint64_t)info.tcpi_unacked * info.tcpi_snd_mss;
    }
    if (trip == UINT32_MAX) return;
    sample_rate(c);
    const uint64_t before = atomic_load_explicit(&c->round_trip_min_ns, memory_order_relaxed);
    const uint64_t trip_ns = (uint64_t)trip * 1000;
    atomic_store_explicit(&c->round_trip_ns, trip_ns, memory_order_relaxed);
    /* The least is the path's own; the latest has queues in it. */
    if (before == 0 || trip_ns < before)
        atomic_store_explicit(&c->round_trip_min_ns, trip_ns, memory_order_relaxed);
    atomic_store_explicit(&c->path_mtu, mtu, memory_order_relaxed);
    atomic_store_explicit(&c->in_flight, in_flight, memory_order_relaxed);
    atomic_store_explicit(&c->retransmitted, retransmitted, memory_order_relaxed);
    if (retransmitted > c->retransmits_counted)
        host->count(host, "tcp.retransmitted_bytes",
                    (double)(retransmitted - c->retransmits_counted));
    c->retransmits_counted = retransmitted;
}
