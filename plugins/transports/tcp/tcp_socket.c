/* tcp_socket.c - what the kernel is told about a stream: when to give up, how much to hold, how
 * fast to send. */
#include "tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

enum {
    BACKLOG = 256,
    LOWAT_CHUNKS = 2,
    RETRY_MS = 500, /* the user timeout counts from the first retransmission */
    SAMPLE_NS = 250000000,
    AWAY_NS = 1000000000, /* nobody polled: the machine may have slept */
};

#define SILENCE_NS 3000000000ull
#define SILENCE_MIN_NS 1000000000ull
#define STREAM_RATE 3125000000ull /* 25 Gb/s: what one stream carries */

static void set_int(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof(value));
}

static void set_buffer(int fd, int name, int force, uint64_t bytes)
{
    const int value = bytes > INT32_MAX / 2 ? INT32_MAX / 2 : (int)bytes;
    int most = 0;
    socklen_t length = sizeof(most);
    if (setsockopt(fd, SOL_SOCKET, force, &value, sizeof(value)) == 0) return;
    /* Without the right to force, a small value would only switch autotuning off. */
    if (getsockopt(fd, SOL_SOCKET, name, &most, &length) == 0 && value > most / 2)
        (void)setsockopt(fd, SOL_SOCKET, name, &value, sizeof(value));
}

static void set_buffers(int fd, uint64_t bytes)
{
    if (bytes == 0) return;
    set_buffer(fd, SO_SNDBUF, SO_SNDBUFFORCE, bytes);
    set_buffer(fd, SO_RCVBUF, SO_RCVBUFFORCE, bytes);
}

static void set_port(struct sockaddr_storage *a, uint16_t port)
{
    if (a->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)a)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons(port);
}

static uint16_t own_port(const lh_transport_t *t)
{
    lh_rank_info_t info = {.struct_size = sizeof(info)};
    const lh_host_t *host = t->host;
    if (t->config->port == 0) return 0;
    if (host->rank_info(host, host->world->rank, &info) != LH_OK) return (uint16_t)t->config->port;
    return (uint16_t)(t->config->port + info.local_rank);
}

lh_status_t socket_listen(lh_transport_t *t, lh_address_t *address, int *out)
{
    const lh_host_t *host = t->host;
    struct sockaddr_storage local = t->here.address;
    socklen_t length = t->here.length;
    char text[80];
    set_port(&local, own_port(t));
    address_text(&local, text, sizeof(text));
    const int fd = socket(local.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return host->fail(host, LH_IO, "a socket for %s", text);
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (local.ss_family == AF_INET6) set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    set_buffers(fd, t->config->buffer_bytes); /* before SYN: it decides the scale of the window */
    if (bind(fd, (const struct sockaddr *)&local, length) != 0 || listen(fd, BACKLOG) != 0 ||
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

int socket_dial(lh_conn_t *c)
{
    const lh_transport_t *t = c->transport;
    struct sockaddr_storage to, from = t->here.address;
    socklen_t length;
    if (!address_read(t, &c->address, &to, &length)) {
        errno = EINVAL;
        return -1;
    }
    const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    set_port(&from, 0);
    set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    socket_tune(c, fd, true);
    if ((from.ss_family == to.ss_family && !address_is_any(&from) &&
         bind(fd, (const struct sockaddr *)&from, t->here.length) != 0) ||
        (connect(fd, (const struct sockaddr *)&to, length) != 0 && errno != EINPROGRESS)) {
        const int error = errno;
        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

uint64_t silence_within(uint64_t ns)
{
    if (ns == 0 || ns > SILENCE_NS) return SILENCE_NS;
    return ns < SILENCE_MIN_NS ? SILENCE_MIN_NS : ns;
}

/* A cut link is seen within silence_ns: an idle one by keepalive, a busy one by the user timeout,
 * and where retransmissions start late (a path of long or varying trips) by socket_sample. */
void socket_prepare(int fd, uint64_t silence_ns)
{
    const uint64_t ms = silence_ns / 1000000;
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, (int)(ms / 1000));
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)ms - RETRY_MS);
}

void tuning_choose(const tcp_config_t *config, const lh_link_t *link, const lh_tuning_t *wanted,
                   lh_tuning_t *out)
{
    const bool wan = link->scope == LH_LINK_WAN;
    const uint64_t rate = link->bytes_per_second;
    const uint64_t flight = (uint64_t)((double)rate * (double)link->round_trip_ns / 1e9);
    uint64_t streams = config->streams != 0 ? config->streams : wanted->streams;
    if (streams == 0 && link->scope != LH_LINK_NODE)
        streams = (rate + STREAM_RATE - 1) / STREAM_RATE;
    if (wan && config->streams == 0 && wanted->streams == 0 && streams < 4) streams = 4;
    if (streams > 16 && config->streams == 0 && wanted->streams == 0) streams = 16;
    out->streams = streams < 1 ? 1 : streams > STREAMS_MAX ? STREAMS_MAX : (uint32_t)streams;

    out->chunk_bytes = config->chunk_bytes != 0   ? config->chunk_bytes
                       : wanted->chunk_bytes != 0 ? wanted->chunk_bytes
                       : wan                      ? 1 << 20
                                                  : 256 << 10;
    if (out->chunk_bytes > PAYLOAD_MAX) out->chunk_bytes = PAYLOAD_MAX;
    if (out->chunk_bytes < EAGER_BYTES) out->chunk_bytes = EAGER_BYTES;

    out->inflight_bytes = wanted->inflight_bytes != 0 ? wanted->inflight_bytes : flight;
    out->buffer_bytes = config->buffer_bytes != 0   ? config->buffer_bytes
                        : wanted->buffer_bytes != 0 ? wanted->buffer_bytes
                                                    : out->inflight_bytes + out->inflight_bytes / 2;
    out->pace_bytes_per_second = config->pace != 0 ? config->pace : wanted->pace_bytes_per_second;
    if (wan && out->pace_bytes_per_second == 0) out->pace_bytes_per_second = rate / 100 * 97;
}

/* A quarter of what the kernel gives all TCP sockets of the machine before it squeezes them. */
static uint64_t kernel_budget(void)
{
    unsigned long long low, pressure = 0, most;
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_mem", "re");
    if (file == NULL) return UINT64_MAX;
    if (fscanf(file, "%llu %llu %llu", &low, &pressure, &most) != 3) pressure = 0;
    (void)fclose(file);
    return pressure == 0 ? UINT64_MAX : pressure * (uint64_t)sysconf(_SC_PAGESIZE) / 4;
}

/* The kernel counts each buffer twice, and there is one a direction. */
void socket_budget(lh_conn_t *c)
{
    enum { COUNTED = 4 };
    lh_transport_t *t = c->transport;
    if (t->budget == 0) t->budget = kernel_budget();
    const uint64_t left = t->budget > t->budget_used ? t->budget - t->budget_used : 0;
    const uint64_t asked = c->tuning.buffer_bytes;
    if (asked > left / COUNTED) {
        c->tuning.buffer_bytes = left / COUNTED;
        t->host->log(
            t->host, LH_LOG_WARN,
            "%s: buffers of %llu MiB would take more than a quarter of the kernel's memory "
            "for TCP (net.ipv4.tcp_mem); %llu MiB instead",
            c->peer_text, (unsigned long long)(asked >> 20),
            (unsigned long long)(c->tuning.buffer_bytes >> 20));
    }
    c->budget_used = COUNTED * c->tuning.buffer_bytes;
    t->budget_used += c->budget_used;
}

/* buffer and pace are over all streams. A short path is left to the kernel's own tuning. */
void socket_tune(lh_conn_t *c, int fd, bool before_connect)
{
    const lh_tuning_t *tuning = &c->tuning;
    const uint64_t streams = tuning->streams > 0 ? tuning->streams : 1;
    const char *congestion = c->transport->config->congestion;
    enum { SHORT_BYTES = 1 << 20 };
    if (tuning->buffer_bytes / streams > SHORT_BYTES || c->transport->config->buffer_bytes != 0)
        set_buffers(fd, tuning->buffer_bytes / streams);
    if (before_connect) return;
    if (tuning->pace_bytes_per_second > 0) {
        const uint64_t pace = tuning->pace_bytes_per_second / streams;
        (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof(pace));
    }
    const uint64_t lowat = LOWAT_CHUNKS * tuning->chunk_bytes;
    set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, (int)lowat);
    if (c->dscp > 0) {
        set_int(fd, IPPROTO_IP, IP_TOS, (int)(c->dscp << 2));
        set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, (int)(c->dscp << 2));
    }
    if (congestion == NULL || strcmp(congestion, "auto") == 0)
        congestion = c->link.scope == LH_LINK_WAN ? "bbr" : "cubic";
    if (congestion != NULL)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
                         (socklen_t)strlen(congestion));
}

/* Counts only where something waited to be sent at both ends of the time. */
static void sample_rate(lh_conn_t *c)
{
    const uint64_t sent = atomic_load_explicit(&c->bytes_sent, memory_order_relaxed);
    const uint64_t ns = c->transport->now - c->rate_ns;
    const bool busy = c->send_next != c->send_end;
    if (busy && c->rate_busy && ns > 0 && sent > c->rate_bytes) {
        const double rate = (double)(sent - c->rate_bytes) * 1e9 / (double)ns;
        const uint64_t old = atomic_load_explicit(&c->rate, memory_order_relaxed);
        atomic_store_explicit(
            &c->rate, old == 0 ? (uint64_t)rate : (uint64_t)(0.75 * (double)old + 0.25 * rate),
            memory_order_relaxed);
    }
    c->rate_busy = busy;
    c->rate_bytes = sent;
    c->rate_ns = c->transport->now;
}

static uint64_t silence_of(stream_t *s, const struct tcp_info *info, bool was_away)
{
    return silence_at(&s->waits_since, s->transport->now, info->tcpi_unacked,
                      (uint64_t)info->tcpi_last_ack_recv * 1000000, was_away);
}

void socket_sample(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    uint64_t retransmitted = 0, in_flight = 0;
    uint32_t trip = UINT32_MAX;
    const uint64_t since = c->transport->now - c->sampled_ns;
    if (since < SAMPLE_NS) return;
    c->sampled_ns = c->transport->now;
    for (uint32_t i = 0; i < c->stream_count; i++) {
        struct tcp_info info;
        socklen_t length = sizeof(info);
        if (c->streams[i] == NULL || c->streams[i]->state != STREAM_OPEN) continue;
        memset(&info, 0, sizeof(info));
        if (getsockopt(c->streams[i]->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
        if (silence_of(c->streams[i], &info, since > AWAY_NS) >= c->silence_ns) {
            (void)stream_lost(c->streams[i], ETIMEDOUT);
            return;
        }
        if (info.tcpi_rtt < trip) trip = info.tcpi_rtt;
        retransmitted += (uint64_t)info.tcpi_total_retrans * info.tcpi_snd_mss;
        in_flight += (uint64_t)info.tcpi_unacked * info.tcpi_snd_mss;
    }
    if (trip == UINT32_MAX) return;
    sample_rate(c);
    const uint64_t before = atomic_load_explicit(&c->round_trip_min_ns, memory_order_relaxed);
    const uint64_t trip_ns = (uint64_t)trip * 1000;
    atomic_store_explicit(&c->round_trip_ns, trip_ns, memory_order_relaxed);
    if (before == 0 || trip_ns < before)
        atomic_store_explicit(&c->round_trip_min_ns, trip_ns, memory_order_relaxed);
    atomic_store_explicit(&c->in_flight, in_flight, memory_order_relaxed);
    atomic_store_explicit(&c->retransmitted, retransmitted, memory_order_relaxed);
    if (retransmitted > c->retransmits_counted)
        host->count(host, "tcp.retransmitted_bytes",
                    (double)(retransmitted - c->retransmits_counted));
    c->retransmits_counted = retransmitted;
}
