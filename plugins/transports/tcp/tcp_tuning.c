/* tcp_tuning.c - from what is known of a link to what its sockets are told: how many, how much the
 * kernel may hold for them, how fast they send.
 *
 * A long link is full when rate x round trip bytes are on their way (its window), so a sender that
 * may hold less is slow however fast the link is: 4 MiB, what Linux lets a socket grow to, are 0.5
 * Gb/s at 50 ms. So between sites buffers are set, to 1.5 x (window + queue), where the queue of
 * the routers is taken for as long as the window: bbr keeps up to two windows on their way. Buffers
 * too large do no harm by themselves, for memory is taken by bytes, not by limits; bytes that the
 * kernel holds unsent do (they fill net.ipv4.tcp_mem, and then every socket's window shrinks), so
 * those are bounded by TCP_NOTSENT_LOWAT. The round trip is the handshake's, where the host knows
 * none. */
#include "tcp_tuning.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

/* lh_tuning_t.control: by a model of the link, by losses */
enum { CONTROL_BBR = 1, CONTROL_CUBIC = 2 };
static const char *const control_names[] = {"", "bbr", "cubic"};

enum {
    WAN_STREAMS = 4,
    RATE_STREAMS = 16,     /* most for the rate alone */
    SCALE_MOST = 14,       /* RFC 7323 */
    SHORT_BYTES = 1 << 20, /* a stream's: the kernel's own tuning does as well */
    WAN_CHUNK = 1 << 20,
    SITE_CHUNK = 256 << 10,
    CHUNK_MS = 16,
    LOWAT_CHUNKS = 2,
    COUNTED = 4, /* the kernel counts each buffer twice, and there is one a direction */
    GUESS_SHARE = 4,
};
/* The neighbours of a choice that the host may measure. */
enum { MORE_STREAMS, FEWER_STREAMS, MORE_BUFFER, LARGER_CHUNK, OTHER_CONTROL };
#define STREAM_RATE 3125000000ull  /* 25 Gb/s: what one stream carries */
#define GUESSED_RATE 1250000000ull /* 10 Gb/s: where neither the link's nor the card's is known */
#define NEAR_NS 200000ull          /* 20 km there and back, or two machines at one switch */
#define NEAR_LOSS 1e-5
#define SLOWEST_CARD 12500000ull /* 100 Mb/s: virtual cards say less, and mean nothing */
/* Of a buffer's bytes, those that are payload on their way; the rest is the kernel's own. */
#define PAYLOAD_SHARE 0.72

static void tuning_set_int(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof(value));
}

/* The last number of a line of /proc/sys: of tcp_rmem and tcp_wmem the largest. 0: not there. */
static uint64_t setting_of(const char *name)
{
    char path[96];
    unsigned long long value = 0, next;
    (void)snprintf(path, sizeof(path), "/proc/sys/net/%s", name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    while (fscanf(file, "%llu", &next) == 1)
        value = next;
    (void)fclose(file);
    return value;
}

/* In megabits, as the driver says; -1 where it does not know, as for a link that is down. */
uint64_t card_rate(const char *interface)
{
    char path[128];
    long megabits = 0;
    (void)snprintf(path, sizeof(path), "/sys/class/net/%s/speed", interface);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%ld", &megabits) != 1 || megabits < 0) megabits = 0;
    (void)fclose(file);
    return (uint64_t)megabits * 125000;
}

uint64_t cards_rate(const lh_transport_t *t)
{
    uint64_t rate = 0;
    for (uint32_t i = 0; i < t->here_count; i++)
        rate += card_rate(t->here[i].name);
    return rate;
}

/* Pages of the kernel's for all TCP sockets of the machine: from `low` on it takes care, from
 * `pressure` on it squeezes them. A network namespace does not show the figures, and has the
 * same. */
static void kernel_pages(uint64_t *low, uint64_t *pressure)
{
    enum { KERNELS_SHARE = 16 }; /* of all pages: what Linux sets tcp_mem to when it starts */
    unsigned long long first = 0, second = 0;
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_mem", "re");
    if (file != NULL) {
        if (fscanf(file, "%llu %llu", &first, &second) != 2) second = 0;
        (void)fclose(file);
    }
    *pressure = second != 0 ? second : (uint64_t)sysconf(_SC_PHYS_PAGES) / KERNELS_SHARE;
    *low = second != 0 ? first : *pressure / 4 * 3;
}

uint32_t ranks_of_machine(const lh_host_t *host)
{
    uint32_t ranks = 0;
    lh_rank_info_t mine = {.struct_size = sizeof(mine)};
    if (host->rank_info(host, host->world->rank, &mine) == LH_OK)
        for (uint32_t r = 0; r < host->world->size; r++) {
            lh_rank_info_t other = {.struct_size = sizeof(other)};
            ranks += host->rank_info(host, r, &other) == LH_OK && other.node == mine.node;
        }
    return ranks > 0 ? ranks : 1;
}

/* A quarter of what the kernel gives before it squeezes, shared by the ranks of this machine. */
static uint64_t kernel_budget(const lh_host_t *host, uint64_t pressure)
{
    return pressure * (uint64_t)sysconf(_SC_PAGESIZE) / 4 / ranks_of_machine(host);
}

/* The line is "TCP: inuse 27 orphan 1 tw 23 alloc 31 mem 3"; mem counts pages. */
bool memory_is_short(const char *sockstat, uint64_t most, char *out, size_t room)
{
    unsigned long long used, orphans;
    const unsigned long long page = (unsigned long long)sysconf(_SC_PAGESIZE);
    const char *line = strstr(sockstat, "\nTCP: ");
    if (line == NULL || sscanf(line, "\nTCP: inuse %*u orphan %llu tw %*u alloc %*u mem %llu",
                               &orphans, &used) != 2)
        return false;
    if (used <= most / 5 * 4) return false;
    (void)snprintf(
        out, room,
        "the kernel's memory for TCP is nearly used up: %llu MiB of the %llu from which on "
        "windows shrink (net.ipv4.tcp_mem); %llu sockets of programs that have ended "
        "still hold part of it. Links between sites are slow until they are gone",
        used * page >> 20, (unsigned long long)most * page >> 20, orphans);
    return true;
}

/* Said once a transport: what other programs hold makes links slow, and looks like a fault of
 * ours. */
static void memory_watch(const lh_host_t *host, uint64_t low)
{
    char text[512], why[320];
    FILE *file = fopen("/proc/net/sockstat", "re");
    if (file == NULL) return;
    const size_t length = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[length] = '\0';
    if (memory_is_short(text, low, why, sizeof(why))) host->log(host, LH_LOG_WARN, "%s", why);
}

/* A window travels as 16 bits and a scale, which is decided by the first packet of a connection
 * from the largest buffer that the kernel's own tuning may give. */
static uint64_t window_by_scale(uint64_t receive_most)
{
    uint32_t scale = 0;
    while (scale < SCALE_MOST && receive_most >> (scale + 16) > 0)
        scale++;
    return (uint64_t)65535 << scale;
}

static uint64_t larger_value(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void tuning_capabilities(bool *force, bool *bbr)
{
    static const char name[] = "bbr";
    const int small = 4096;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *force = *bbr = false;
    if (fd < 0) return;
    *force = setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &small, sizeof(small)) == 0;
    *bbr = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name) - 1) == 0;
    (void)close(fd);
}

void limits_read(const lh_host_t *host, const char *interface, limits_t *out)
{
    const uint64_t send = setting_of("ipv4/tcp_wmem"), receive = setting_of("ipv4/tcp_rmem");
    uint64_t low, pressure;
    kernel_pages(&low, &pressure);
    memory_watch(host, low);
    *out = (limits_t){.budget = kernel_budget(host, pressure),
                      .card = card_rate(interface),
                      .send = setting_of("core/wmem_max"),
                      .receive = setting_of("core/rmem_max"),
                      .auto_send = send,
                      .auto_receive = receive};
    tuning_capabilities(&out->force, &out->bbr);
    /* What one stream can have on its way: bounded by the scale, and where limits hold by both
     * ends' buffers. */
    out->window = window_by_scale(larger_value(receive, out->receive));
    if (out->force) return;
    const uint64_t held = larger_value(send, 2 * out->send),
                   kept = larger_value(receive, 2 * out->receive);
    const uint64_t least = (uint64_t)(PAYLOAD_SHARE * (double)(held < kept ? held : kept));
    if (least < out->window) out->window = least;
}

/* With all cards of this transport. */
static void limits_ask(lh_transport_t *t)
{
    limits_read(t->host, t->here[0].name, &t->limits);
    t->limits.card = cards_rate(t);
    t->limits.cards = t->here_count;
}

/* Buffers that were chosen are cut to what is left; those that were asked for are not. */
lh_status_t buffers_check(lh_transport_t *t)
{
    const uint64_t asked = t->config->buffer_bytes;
    if (asked == 0) return LH_OK;
    limits_ask(t);
    if (asked <= t->limits.budget / COUNTED) return LH_OK;
    return t->host->fail(
        t->host, LH_INVALID,
        "buffer = %lluMiB: a connection takes four times that of the kernel's memory "
        "for TCP; expected at most %lluMiB, a quarter of net.ipv4.tcp_mem for all "
        "ranks of this machine",
        (unsigned long long)asked >> 20, (unsigned long long)(t->limits.budget / COUNTED) >> 20);
}

/* By rate, as one stream is one core's work; between sites at least WAN_STREAMS, and as many as
 * windows need. */
static uint64_t choose_streams(const lh_link_t *link, const limits_t *limits, uint64_t flight)
{
    const uint64_t by_rate = (link->bytes_per_second + STREAM_RATE - 1) / STREAM_RATE;
    const uint64_t most = by_rate > RATE_STREAMS ? RATE_STREAMS : by_rate;
    if (link->scope == LH_LINK_NODE) return 1;
    if (link->scope != LH_LINK_WAN) return most;
    /* Without bbr a loss halves a stream's window: the more of them, the less that is of all. */
    uint64_t streams = limits->bbr ? larger_value(most, WAN_STREAMS) : RATE_STREAMS;
    if (limits->window > 0)
        streams = larger_value(streams,
                               (flight + flight / 4 + limits->window - 1) / limits->window);
    return streams;
}

/* As many over each card: the next multiple, or where that is more than a connection can have the last.
 * Of two ends with CARDS_MOST cards at most there is always a number that is one of both. */
static uint64_t over_cards(uint64_t streams, uint64_t cards)
{
    const uint64_t each = cards > 0 ? cards : 1, most = STREAMS_MAX / each;
    const uint64_t turns = (larger_value(streams, 1) + each - 1) / each;
    return (turns < most ? turns : most) * each;
}
LH_STATIC_ASSERT((CARDS_MOST - 1) * CARDS_MOST <= STREAMS_MAX,
                 "streams over all cards of two ends");

/* The least number of streams that is as many over each of `own` cards and over each of `there`. */
static uint32_t cards_of_both(uint32_t own, uint32_t there)
{
    uint32_t all = own;
    while (all % there != 0)
        all += own;
    return all;
}

/* The windows of either end's kernel may be what calls for streams, so the larger number counts; what an
 * INI sets is a bound. */
uint32_t streams_of_both(const tcp_config_t *config, uint32_t own, uint32_t wished, uint32_t step)
{
    if (config->streams != 0) return wished < own ? wished : own;
    return step == 0 || own <= wished ? wished : (uint32_t)over_cards(own, step);
}

/* Cards that c's streams go over, those of the peer as well where it listens. */
static uint32_t conn_cards(const lh_conn_t *c)
{
    const uint32_t own = c->transport->limits.cards > 0 ? c->transport->limits.cards : 1;
    const uint32_t there = address_count(&c->address); /* 0: the peer dialed */
    return there > 0 ? cards_of_both(own, there) : own;
}

uint32_t conn_step(const lh_conn_t *c)
{
    if (c->transport->config->streams != 0) return 0;
    return c->link.scope == LH_LINK_NODE ? 1 : conn_cards(c);
}

/* What a stream takes at once between sites: what it sends in 16 ms. The kernel holds two of those
 * unsent, so that a busy processor has that long to bring more, and what says that a receive is
 * posted waits no longer behind them: it travels in the head of the next piece. */
static uint64_t choose_chunk(uint64_t pace, uint32_t streams)
{
    const uint64_t bytes = pace / streams / 1000 * CHUNK_MS;
    if (pace == 0 || pace == UINT64_MAX || bytes > WAN_CHUNK) return WAN_CHUNK;
    return bytes < EAGER_BYTES ? EAGER_BYTES : bytes;
}

/* The first that is set. */
static uint64_t first_of(uint64_t a, uint64_t b, uint64_t c)
{
    return a != 0 ? a : b != 0 ? b : c;
}

/* bbr asks a timer before each handful of packets, which halves what a processor can send; what it is good
 * for, long ways and losses, is not there. */
static bool is_near(const lh_link_t *link)
{
    return link->round_trip_ns != 0 && link->round_trip_ns < NEAR_NS && link->loss < NEAR_LOSS;
}

void tuning_choose(const tcp_config_t *config, const lh_link_t *link, const lh_tuning_t *wanted,
                   const limits_t *limits, lh_tuning_t *out)
{
    /* Streams, pace, pieces, buffers, control: in this order, as pace and buffers are shared by the
     * streams. */
    const bool wan = link->scope == LH_LINK_WAN;
    const uint64_t rate = link->bytes_per_second;
    const uint64_t card = limits->card >= SLOWEST_CARD ? limits->card : GUESSED_RATE;
    /* A link that was not measured is taken for as fast as the card. */
    const uint64_t assumed = rate == 0 && wan ? card : rate;
    const uint64_t flight = (uint64_t)((double)assumed * (double)link->round_trip_ns / 1e9);
    /* What stays inside a machine goes over no card. */
    const uint64_t cards = link->scope == LH_LINK_NODE ? 1 : limits->cards;
    const uint64_t found = first_of(wanted->streams, choose_streams(link, limits, flight), 1);
    const uint64_t streams = first_of(config->streams, over_cards(found, cards), 1);
    out->streams = streams < 1 ? 1 : streams > STREAMS_MAX ? STREAMS_MAX : (uint32_t)streams;

    /* A little below the rate, so that queues on the way drain. */
    out->pace_bytes_per_second = first_of(config->pace, wanted->pace_bytes_per_second,
                                          wan ? rate / 100 * 97 : 0);
    out->chunk_bytes = first_of(config->chunk_bytes, wanted->chunk_bytes,
                                wan ? choose_chunk(out->pace_bytes_per_second, out->streams)
                                    : SITE_CHUNK);
    if (out->chunk_bytes > PAYLOAD_MAX) out->chunk_bytes = PAYLOAD_MAX;
    if (out->chunk_bytes < EAGER_BYTES) out->chunk_bytes = EAGER_BYTES;

    out->inflight_bytes = first_of(wanted->inflight_bytes, flight, 0);
    out->buffer_bytes = first_of(config->buffer_bytes, wanted->buffer_bytes,
                                 3 * out->inflight_bytes);
    out->control = wanted->control == CONTROL_BBR || wanted->control == CONTROL_CUBIC
                       ? wanted->control
                   : wan && limits->bbr && !is_near(link) ? CONTROL_BBR
                                                          : CONTROL_CUBIC;
}

static bool is_auto(const char *congestion)
{
    return congestion == NULL || strcmp(congestion, "auto") == 0;
}

bool conn_keeps_speed(const lh_conn_t *c)
{
    const char *asked = c->transport->config->congestion;
    return is_auto(asked) ? c->tuning.control == CONTROL_BBR
                          : strcmp(asked, control_names[CONTROL_BBR]) == 0;
}

/* What the INI has set is not tried otherwise. */
static bool tcp_tuning_change(const tcp_config_t *config, const limits_t *limits, int what,
                              lh_tuning_t *out)
{
    uint32_t before;
    switch (what) {
    case MORE_STREAMS:
        out->streams = (uint32_t)over_cards(2 * (uint64_t)out->streams, limits->cards);
        return config->streams == 0;
    case FEWER_STREAMS:
        before = out->streams;
        out->streams = (uint32_t)over_cards((before + 1) / 2, limits->cards);
        return config->streams == 0 && out->streams > 1 && out->streams < before;
    case MORE_BUFFER: out->buffer_bytes *= 2; return config->buffer_bytes == 0;
    case LARGER_CHUNK:
        out->chunk_bytes = 2 * out->chunk_bytes < PAYLOAD_MAX ? 2 * out->chunk_bytes : PAYLOAD_MAX;
        return config->chunk_bytes == 0;
    default:
        out->control = out->control == CONTROL_BBR ? CONTROL_CUBIC : CONTROL_BBR;
        return is_auto(config->congestion) && limits->bbr;
    }
}

/* Where packets are lost a stream is what loses speed, so more of them promise most; where none is,
 * a window that is too small, or a model of the link that is wrong. */
bool tuning_offer(lh_transport_t *t, const lh_link_t *link, uint32_t choice, lh_tuning_t *out)
{
    /* Neighbours in the order in which they are worth a measurement. */
    static const int clean[] = {MORE_BUFFER, OTHER_CONTROL, MORE_STREAMS, LARGER_CHUNK,
                                FEWER_STREAMS};
    static const int lossy[] = {MORE_STREAMS, MORE_BUFFER, OTHER_CONTROL, LARGER_CHUNK,
                                FEWER_STREAMS};
    static const lh_tuning_t nothing = {.struct_size = sizeof(nothing)};
    const int *order = link->loss > 1e-5 ? lossy : clean;
    lh_tuning_t first = {.struct_size = sizeof(first)};
    if (t->limits.window == 0) limits_ask(t);
    tuning_choose(t->config, link, &nothing, &t->limits, &first);
    *out = first;
    if (choice == 0) return true;
    for (size_t i = 0; i < sizeof(clean) / sizeof(clean[0]); i++) {
        *out = first;
        if (tcp_tuning_change(t->config, &t->limits, order[i], out) && --choice == 0) return true;
    }
    return false;
}

/* For the log of a measurement. */
void tuning_text(const lh_tuning_t *u, char *out, size_t room)
{
    const uint32_t streams = u->streams > 0 ? u->streams : 1;
    (void)snprintf(out, room, "window %.3g MB = %u streams x %.3g MB, buffers of %.3g MiB, %s",
                   (double)u->inflight_bytes / 1e6, streams,
                   (double)u->inflight_bytes / 1e6 / streams, (double)u->buffer_bytes / 1048576,
                   control_names[u->control]);
}

/* Lowers the buffers to what the kernel has left for us. For a rate that is only assumed it is a
 * quarter of that: such a connection leaves room for others, and says nothing. A probe's has all, as a
 * rate that its own buffers bound would go down as the link's. The next probe's connection finds nothing
 * taken, at either end: the host closes the last one before it connects or admits anew, and with its
 * sockets goes what it took. */
void conn_keep_budget(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    /* Nobody has measured this link or said anything of it. */
    const bool guessed = c->link.bytes_per_second == 0 && c->wanted.buffer_bytes == 0 &&
                         t->config->buffer_bytes == 0;
    t->budget_used -= c->budget_used;
    const bool leaves_room = guessed && !c->probes;
    const uint64_t budget = t->limits.budget;
    /* This connection's share was given back above, and is taken again below. */
    const uint64_t left = budget > t->budget_used ? budget - t->budget_used : 0;
    const uint64_t asked = c->tuning.buffer_bytes;
    const uint64_t most = left / COUNTED / (leaves_room ? GUESS_SHARE : 1);
    if (asked > most) {
        c->tuning.buffer_bytes = most;
        t->host->log(
            t->host, guessed ? LH_LOG_DEBUG : LH_LOG_WARN,
            "%s: buffers of %llu MiB would take more than a quarter of the kernel's memory "
            "for TCP (net.ipv4.tcp_mem); %llu MiB instead",
            c->peer_text, (unsigned long long)(asked >> 20), (unsigned long long)(most >> 20));
    }
    c->budget_used = COUNTED * c->tuning.buffer_bytes;
    t->budget_used += c->budget_used;
}

/* As the kernel knows it of a socket; 0: it does not. */
static uint64_t round_trip_of(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
    return (uint64_t)info.tcpi_rtt * 1000;
}

void conn_tune(lh_conn_t *c, int fd)
{
    lh_transport_t *t = c->transport;
    if (t->limits.window == 0) limits_ask(t);
    /* The peer has answered once on this socket: that was a round trip of an empty link. */
    if (c->link.scope == LH_LINK_WAN && c->link.round_trip_ns == 0) {
        c->link.round_trip_ns = round_trip_of(fd);
        c->measures = fd >= 0;
    }
    limits_t limits = t->limits;
    limits.cards = conn_cards(c);
    tuning_choose(t->config, &c->link, &c->wanted, &limits, &c->tuning);
    conn_keep_budget(c);
}

/* What one stream sends in a time, or what was found to do better than that, was chosen for `of` of them: for
 * another number it is as many times as long. */
uint64_t conn_chunk(const lh_conn_t *c, uint64_t chunk, uint64_t pace, uint32_t of,
                    uint32_t streams)
{
    const bool goes_by_it = of != 0 && c->link.scope == LH_LINK_WAN &&
                            c->transport->config->chunk_bytes == 0;
    if (chunk > PAYLOAD_MAX) chunk = PAYLOAD_MAX;
    if (goes_by_it) chunk = chunk * choose_chunk(pace, streams) / choose_chunk(pace, of);
    return chunk < EAGER_BYTES ? EAGER_BYTES : chunk > PAYLOAD_MAX ? PAYLOAD_MAX : chunk;
}

/* Pace and buffers are over all streams. */
void conn_settle_streams(lh_conn_t *c, uint32_t streams)
{
    lh_tuning_t *tuning = &c->tuning;
    tuning->chunk_bytes = conn_chunk(c, tuning->chunk_bytes, tuning->pace_bytes_per_second,
                                     tuning->streams, streams);
    c->stream_count = tuning->streams = streams;
}

/* The number of streams is agreed by now and stays; buffers and pace follow the better round
 * trip. */
void conn_tune_whole(lh_conn_t *c)
{
    const uint32_t streams = c->tuning.streams;
    if (!c->measures) return;
    for (uint32_t i = 0; i < c->stream_count; i++) {
        const uint64_t trip = round_trip_of(c->streams[i]->fd);
        if (trip != 0 && trip < c->link.round_trip_ns) c->link.round_trip_ns = trip;
    }
    conn_tune(c, -1);
    conn_settle_streams(c, streams);
    for (uint32_t i = 0; i < c->stream_count; i++)
        socket_tune(c, c->streams[i]->fd, false);
}

/* One direction. The kernel doubles what it is told, for its own overhead. */
static void set_buffer(const limits_t *limits, int fd, bool receive, uint64_t bytes)
{
    const uint64_t most = receive ? limits->receive : limits->send;
    const uint64_t grows_to = receive ? limits->auto_receive : limits->auto_send;
    const int value = bytes > INT32_MAX / 2 ? INT32_MAX / 2 : (int)bytes;
    if (limits->force)
        tuning_set_int(fd, SOL_SOCKET, receive ? SO_RCVBUFFORCE : SO_SNDBUFFORCE, value);
    /* Setting it switches the kernel's own tuning off, which may reach further. */
    else if (2 * (bytes < most ? bytes : most) > grows_to)
        tuning_set_int(fd, SOL_SOCKET, receive ? SO_RCVBUF : SO_SNDBUF, value);
}

void set_buffers(lh_transport_t *t, int fd, uint64_t bytes)
{
    if (bytes == 0) return;
    if (t->limits.window == 0) limits_ask(t);
    set_buffer(&t->limits, fd, false, bytes);
    set_buffer(&t->limits, fd, true, bytes);
}

/* buffer and pace are over all streams. A short path is left to the kernel's own tuning. A buffer
 * to receive into that is set before the connection is made decides how far windows can ever grow,
 * so only one that was asked for is. */
void socket_tune(lh_conn_t *c, int fd, bool before_connect)
{
    const lh_tuning_t *tuning = &c->tuning;
    const uint64_t streams = tuning->streams > 0 ? tuning->streams : 1;
    const uint64_t buffer = tuning->buffer_bytes / streams;
    const char *congestion = c->transport->config->congestion;
    const bool asked = c->transport->config->buffer_bytes != 0;
    if (asked || (buffer > SHORT_BYTES && !before_connect)) set_buffers(c->transport, fd, buffer);
    if (before_connect) return;
    if (tuning->pace_bytes_per_second > 0) {
        const bool none = tuning->pace_bytes_per_second == UINT64_MAX;
        const double part = c->share / (double)streams;
        const uint64_t pace = none ? UINT64_MAX
                                   : (uint64_t)((double)tuning->pace_bytes_per_second * part);
        (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof(pace));
    }
    /* What waits unsent in the kernel is bounded: it would only be late there. */
    const uint64_t lowat = LOWAT_CHUNKS * tuning->chunk_bytes;
    tuning_set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, (int)lowat);
    if (c->dscp > 0) {
        tuning_set_int(fd, IPPROTO_IP, IP_TOS, (int)(c->dscp << 2));
        tuning_set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, (int)(c->dscp << 2));
    }
    if (is_auto(congestion)) congestion = control_names[tuning->control];
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion));
}

/* RFC 4594: signaling; low-latency data; high-throughput data, parameters the first to be dropped
 * of it; low-priority data. */
uint32_t dscp_of(uint32_t service)
{
    switch (service) {
    case LH_SERVICE_CONTROL: return 40;    /* CS5  */
    case LH_SERVICE_ACTIVATION: return 18; /* AF21 */
    case LH_SERVICE_GRADIENT: return 10;   /* AF11 */
    case LH_SERVICE_PARAMETER: return 12;  /* AF12 */
    case LH_SERVICE_BULK: return 8;        /* CS1  */
    default: return 0;
    }
}

void conn_say_tuning(const lh_conn_t *c)
{
    char congestion[16] = "", pace[48] = "not paced";
    socklen_t length = sizeof(congestion) - 1;
    const lh_tuning_t *u = &c->tuning;
    const lh_host_t *host = c->transport->host;
    if (c->link.scope != LH_LINK_WAN) return;
    (void)getsockopt(c->streams[0]->fd, IPPROTO_TCP, TCP_CONGESTION, congestion, &length);
    if (u->pace_bytes_per_second > 0)
        (void)snprintf(pace, sizeof(pace), "paced at %.1f MB/s",
                       (double)u->pace_bytes_per_second / 1e6);
    host->log(host, LH_LOG_INFO,
              "%s: a link between sites, %.2f ms there and back: %u streams under %s, buffers of "
              "%.1f MiB, %s, DSCP %u",
              c->peer_text, (double)c->link.round_trip_ns / 1e6, c->stream_count, congestion,
              (double)u->buffer_bytes / 1048576, pace, c->dscp);
}
