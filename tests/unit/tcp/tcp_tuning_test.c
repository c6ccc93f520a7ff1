/* tcp_tuning_test.c - what figures of a link make of a connection, and that its sockets have it. */
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tcp_kit.h"
#include "tcp_ledger.h"
#include "tcp_tuning.h"
#include "tcp_warm.h"

#define GBIT 125000000ull
#define MS 1000000ull

static const limits_t may_force = {
    .budget = UINT64_MAX, .force = true, .bbr = true, .window = 65535ull << 10};
/* Linux as it comes: 4 MiB to send from, 6 MiB to receive into, nothing forced. */
static const limits_t may_not = {
    .budget = UINT64_MAX, .bbr = true, .auto_send = 4 << 20, .window = 3019898};

static lh_tuning_t chosen(uint32_t scope, uint64_t rate, uint64_t trip_ns, const limits_t *limits)
{
    static const tcp_config_t config;
    static const lh_tuning_t nothing;
    const lh_link_t link = {.scope = scope, .bytes_per_second = rate, .round_trip_ns = trip_ns};
    lh_tuning_t out = {0};
    tuning_choose(&config, &link, &nothing, limits, &out);
    return out;
}

static void a_near_link_is_left_to_the_kernel(void **state)
{
    (void)state;
    for (uint32_t scope = 0; scope <= LH_LINK_SITE; scope++) {
        const lh_tuning_t t = chosen(scope, 0, 0, &may_force);
        assert_int_equal(t.streams, 1);
        assert_int_equal(t.chunk_bytes, 256 << 10);
        assert_int_equal(t.buffer_bytes, 0);
        assert_int_equal(t.pace_bytes_per_second, 0);
    }
    assert_int_equal(chosen(LH_LINK_SITE, 100 * GBIT, 0, &may_force).streams, 4);
}

static void a_link_of_no_length_between_sites_is_not_under_bbr(void **state)
{
    (void)state;
    enum { BBR = 1, CUBIC = 2 };
    static const tcp_config_t config;
    static const lh_tuning_t nothing;
    lh_link_t link = {.scope = LH_LINK_WAN, .bytes_per_second = 10 * GBIT};
    lh_tuning_t out = {0};
    static const struct {
        uint64_t trip_ns;
        double loss;
        uint32_t control;
    } rows[] = {{0, 0, BBR}, {50000, 0, CUBIC}, {50000, 1e-3, BBR}, {200000, 0, BBR}};
    for (uint32_t i = 0; i < 4; i++) {
        link.round_trip_ns = rows[i].trip_ns;
        link.loss = rows[i].loss;
        tuning_choose(&config, &link, &nothing, &may_force, &out);
        assert_int_equal(out.control, rows[i].control);
    }
    link.scope = LH_LINK_SITE;
    tuning_choose(&config, &link, &nothing, &may_force, &out);
    assert_int_equal(out.control, CUBIC);
}

static void between_sites_the_window_and_a_queue_fit(void **state)
{
    (void)state;
    const lh_tuning_t t = chosen(LH_LINK_WAN, GBIT, 50 * MS, &may_force);
    assert_int_equal(t.streams, 4);
    assert_int_equal(t.inflight_bytes, 6250000);
    assert_int_equal(t.buffer_bytes, 3 * 6250000);
    assert_int_equal(t.pace_bytes_per_second, GBIT / 100 * 97);
    assert_int_equal(chosen(LH_LINK_WAN, 400 * GBIT, MS, &may_force).streams, 16);
    /* 100 Gb/s at 100 ms: 1.25 GB on their way, and 67 MB a stream by the scale of windows. */
    assert_int_equal(chosen(LH_LINK_WAN, 100 * GBIT, 100 * MS, &may_force).streams, 24);
}

/* 16 ms of a stream's pace, in bounds: what waits in the kernel delays all that comes behind it. */
static void between_sites_a_stream_takes_what_it_sends_soon(void **state)
{
    (void)state;
    assert_int_equal(chosen(LH_LINK_WAN, GBIT, 50 * MS, &may_force).chunk_bytes, 16 * 30312);
    assert_int_equal(chosen(LH_LINK_WAN, 10 * GBIT, 50 * MS, &may_force).chunk_bytes, 1 << 20);
    assert_int_equal(chosen(LH_LINK_WAN, GBIT / 100, 50 * MS, &may_force).chunk_bytes, 64 << 10);
    assert_int_equal(chosen(LH_LINK_WAN, 0, 50 * MS, &may_force).chunk_bytes, 1 << 20);
}

static void more_streams_where_buffers_cannot_be_forced(void **state)
{
    (void)state;
    /* 5 Gb/s at 50 ms: 1.25 times 31.25 MB in pieces of 3 MB. */
    assert_int_equal(chosen(LH_LINK_WAN, 5 * GBIT, 50 * MS, &may_not).streams, 13);
    assert_int_equal(chosen(LH_LINK_WAN, GBIT, 10 * MS, &may_not).streams, 4);
    assert_int_equal(chosen(LH_LINK_WAN, 100 * GBIT, 50 * MS, &may_not).streams, 64);
}

static void without_figures_a_rate_is_assumed_but_no_pace(void **state)
{
    (void)state;
    limits_t limits = may_force;
    lh_tuning_t t = chosen(LH_LINK_WAN, 0, 50 * MS, &limits);
    assert_int_equal(t.inflight_bytes, 62500000); /* 10 Gb/s */
    assert_int_equal(t.pace_bytes_per_second, 0);
    limits.card = GBIT;
    assert_int_equal(chosen(LH_LINK_WAN, 0, 50 * MS, &limits).inflight_bytes, 6250000);
    limits.card = GBIT / 100; /* a TUN device says 10 Mb/s */
    assert_int_equal(chosen(LH_LINK_WAN, 0, 50 * MS, &limits).inflight_bytes, 62500000);
    limits.bbr = false;
    assert_int_equal(chosen(LH_LINK_WAN, 0, MS, &limits).streams, 16);
}

static void options_win(void **state)
{
    (void)state;
    const tcp_config_t config = {
        .streams = 2, .chunk_bytes = 1 << 19, .buffer_bytes = 1 << 24, .pace = 1000};
    const lh_link_t link = {
        .scope = LH_LINK_WAN, .bytes_per_second = GBIT, .round_trip_ns = 50 * MS};
    const lh_tuning_t wanted = {.streams = 8, .buffer_bytes = 5 << 20};
    lh_tuning_t t = {0};
    tuning_choose(&config, &link, &wanted, &may_not, &t);
    assert_int_equal(t.streams, 2);
    assert_int_equal(t.chunk_bytes, 1 << 19);
    assert_int_equal(t.buffer_bytes, 1 << 24);
    assert_int_equal(t.pace_bytes_per_second, 1000);
}

static void the_larger_wish_for_streams_counts_where_no_ini_says(void **state)
{
    (void)state;
    static const tcp_config_t automatic, three = {.streams = 3};
    assert_int_equal(streams_of_both(&automatic, 4, 16, 1), 16);
    assert_int_equal(streams_of_both(&automatic, 13, 4, 1), 13);
    assert_int_equal(streams_of_both(&automatic, 13, 6, 6), 18);
    assert_int_equal(streams_of_both(&automatic, 64, 56, 56), 56);
    assert_int_equal(streams_of_both(&automatic, 13, 2, 0), 2); /* the other end's INI */
    assert_int_equal(streams_of_both(&three, 3, 16, 1), 3);
    assert_int_equal(streams_of_both(&three, 3, 2, 0), 2);
}

static void memory_that_dead_programs_hold_is_named(void **state)
{
    (void)state;
    static const char sockstat[] = "sockets: used 190\n"
                                   "TCP: inuse 14 orphan 32 tw 0 alloc 48 mem 332000\n"
                                   "UDP: inuse 1 mem 0\n";
    char why[320] = "";
    assert_true(memory_is_short(sockstat, 287898, why, sizeof(why)));
    assert_non_null(strstr(why, "; 32 sockets of programs that have ended still hold part of it."));
    assert_false(memory_is_short(sockstat, 500000, why, sizeof(why)));
    assert_false(memory_is_short("", 500000, why, sizeof(why)));
    assert_false(memory_is_short("x\nTCP: inuse 14 orphan\n", 1, why, sizeof(why)));
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof(value);
    assert_int_equal(getsockopt(fd, level, name, &value, &length), 0);
    return value;
}

/* This process's connected TCP sockets: both ends of the one connection that is there. */
static uint32_t sockets(int fds[256])
{
    uint32_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    for (const struct dirent *d; (d = readdir(folder)) != NULL;) {
        struct sockaddr_storage name;
        socklen_t length = sizeof(name);
        const int fd = atoi(d->d_name);
        if (getpeername(fd, (struct sockaddr *)&name, &length) != 0) continue;
        if (name.ss_family == AF_INET) fds[count++] = fd;
        assert_true(count < 256);
    }
    (void)closedir(folder);
    return count;
}

static void join(kit_end_t *a, kit_end_t *b, uint32_t scope, uint32_t security)
{
    memset(a, 0, sizeof(*a));
    memset(b, 0, sizeof(*b));
    a->host.key = b->host.key = 7;
    kit_link = (lh_link_t){.struct_size = sizeof(kit_link),
                           .scope = scope,
                           .round_trip_ns = scope == LH_LINK_WAN ? 10 * MS : 0};
    kit_open(a, 0);
    kit_open(b, 1);
    kit_join(a, b, security);
}

static void sockets_between_sites_have_what_the_page_says(void **state)
{
    (void)state;
    static kit_end_t a, b;
    int fds[256];
    limits_t limits;
    join(&a, &b, LH_LINK_WAN, LH_SECURITY_PLAIN);
    limits_read(&a.host.api, "lo", &limits);
    assert_int_equal(sockets(fds), limits.bbr ? 8 : 32);
    for (uint32_t i = 0; i < sockets(fds); i++) {
        char congestion[16] = "";
        socklen_t length = sizeof(congestion) - 1;
        assert_int_equal(getsockopt(fds[i], IPPROTO_TCP, TCP_CONGESTION, congestion, &length), 0);
        assert_string_equal(congestion, limits.bbr ? "bbr" : "cubic");
        assert_int_equal(option(fds[i], IPPROTO_TCP, TCP_NOTSENT_LOWAT), 2 << 20);
        assert_int_equal(option(fds[i], IPPROTO_IP, IP_TOS), 10 << 2); /* AF11: gradients */
    }
    if (!limits.bbr) print_message("this kernel offers no bbr: 16 streams under cubic\n");
    kit_close(&a);
    kit_close(&b);
    join(&a, &b, LH_LINK_SITE, LH_SECURITY_PLAIN);
    assert_int_equal(sockets(fds), 2);
    assert_int_equal(option(fds[0], IPPROTO_IP, IP_TOS), 0);
    kit_close(&a);
    kit_close(&b);
}

/* RFC 4594, as docs/transports.md has it: CS5, AF21, AF11, AF12, CS1. */
static void every_service_has_its_class_of_packets(void **state)
{
    (void)state;
    static const struct {
        uint32_t service, dscp;
    } rows[] = {{LH_SERVICE_CONTROL, 40},
                {LH_SERVICE_ACTIVATION, 18},
                {LH_SERVICE_GRADIENT, 10},
                {LH_SERVICE_PARAMETER, 12},
                {LH_SERVICE_BULK, 8}};
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(dscp_of(rows[i].service), rows[i].dscp);
}

/* What was asked for is refused where it can't be had; what is chosen is cut. */
static void a_buffer_beyond_the_kernels_memory_is_refused(void **state)
{
    (void)state;
    static kit_end_t e;
    lh_transport_t *other = NULL;
    limits_t limits;
    kit_open(&e, 0); /* gives it a host */
    limits_read(&e.host.api, "", &limits);
    e.config.buffer_bytes = limits.budget / 4 + (1 << 20);
    assert_int_equal(kit_api->open(&e.host.api, &e.config, &other), LH_INVALID);
    assert_non_null(strstr(e.host.reason, "expected at most"));
    e.config.buffer_bytes = limits.budget / 4;
    assert_int_equal(kit_api->open(&e.host.api, &e.config, &other), LH_OK);
    kit_api->close(other);
    kit_close(&e);
}

/* Of a window that the host has found, and no kernel has room for, what is left is taken and told. */
static void a_chosen_buffer_beyond_the_kernels_memory_is_cut(void **state)
{
    (void)state;
    static kit_end_t a, b;
    lh_tuning_t now = {.struct_size = sizeof(now)};
    limits_t limits;
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    kit_link = (lh_link_t){.struct_size = sizeof(kit_link),
                           .scope = LH_LINK_WAN,
                           .round_trip_ns = 50 * MS,
                           .bytes_per_second = 10000 * GBIT};
    kit_open(&a, 0);
    kit_open(&b, 1);
    a.config.streams = b.config.streams = 1;
    kit_join(&a, &b, LH_SECURITY_PLAIN);
    limits_read(&a.host.api, "", &limits);
    assert_int_equal(kit_api->retune(a.conn, NULL, &now), LH_OK);
    assert_true(now.buffer_bytes > 0 && now.buffer_bytes <= limits.budget / 4);
    assert_non_null(strstr(a.host.warned, "would take more than a quarter of the kernel's memory"));
    assert_non_null(strstr(a.host.warned, " MiB instead"));
    kit_close(&a);
    kit_close(&b);
}

/* As a probe's and the one for training behind it, which nothing is polled between: each takes three
 * quarters of what a rank may have. */
static void a_closed_connection_leaves_its_buffers_to_the_next(void **state)
{
    (void)state;
    static kit_end_t a, b;
    lh_tuning_t now = {.struct_size = sizeof(now)};
    limits_t limits;
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    kit_open(&a, 0);
    kit_open(&b, 1);
    a.config.streams = b.config.streams = 1;
    limits_read(&b.host.api, "", &limits);
    /* A window is what the link carries in a second here, and the buffers are three of them. */
    const uint64_t window = limits.budget / 16;
    kit_link = (lh_link_t){.struct_size = sizeof(kit_link),
                           .scope = LH_LINK_WAN,
                           .round_trip_ns = 1000 * MS,
                           .bytes_per_second = window};
    kit_join(&a, &b, LH_SECURITY_PLAIN);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kit_api->retune(b.conn, NULL, &now), LH_OK);
        assert_in_range(now.buffer_bytes, 3 * (window - 1), 3 * window); /* by way of a double */
        assert_null(strstr(b.host.warned, "would take more"));
        if (i == 1) break;
        kit_api->close_conn(b.conn);
        const lh_conn_params_t params = kit_params(&b, 0, LH_SECURITY_PLAIN);
        assert_int_equal(kit_api->connect(b.transport, &a.address, &params, &b.conn), LH_OK);
    }
    /* The end that listens closes its own before it admits the next. */
    assert_true(a.transport->budget_used > 0);
    kit_api->close_conn(a.conn);
    assert_int_equal(a.transport->budget_used, 0);
    kit_close(&a);
    kit_close(&b);
}

/* A link that nobody has measured, of a round trip that no kernel has room for: one for training takes a
 * quarter of what is left, whatever it carries; a probe's has all. */
static void a_probes_own_connection_is_not_cut_to_a_guess(void **state)
{
    (void)state;
    static const struct {
        uint32_t service, flags;
        uint64_t parts; /* of the budget: 4 are all, as a buffer is counted four times */
    } rows[] = {{LH_SERVICE_GRADIENT, 0, 16},
                {LH_SERVICE_BULK, 0, 16},
                {LH_SERVICE_BULK, LH_CONN_PROBE, 4}};
    static kit_end_t a, b;
    for (int i = 0; i < 3; i++) {
        lh_tuning_t now = {.struct_size = sizeof(now)};
        limits_t limits;
        memset(&a, 0, sizeof(a));
        memset(&b, 0, sizeof(b));
        kit_link = (lh_link_t){.struct_size = sizeof(kit_link),
                               .scope = LH_LINK_WAN,
                               .round_trip_ns = 1000000000 * MS};
        kit_open(&a, 0);
        kit_open(&b, 1);
        a.config.streams = b.config.streams = 1;
        kit_service = rows[i].service;
        kit_flags = rows[i].flags;
        kit_join(&a, &b, LH_SECURITY_PLAIN);
        kit_service = LH_SERVICE_GRADIENT;
        kit_flags = 0;
        limits_read(&b.host.api, "", &limits);
        assert_int_equal(kit_api->retune(b.conn, NULL, &now), LH_OK); /* dialed */
        assert_int_equal(now.buffer_bytes, limits.budget / rows[i].parts);
        assert_int_equal(kit_api->retune(a.conn, NULL, &now), LH_OK);
        assert_int_equal(now.buffer_bytes, limits.budget / rows[i].parts);
        assert_null(strstr(b.host.warned, "would take more")); /* a guess says nothing */
        kit_close(&a);
        kit_close(&b);
    }
}

/* Each stream is paced to its part of the rate: a message on one of them would take four times as long. */
static void a_message_goes_over_all_streams(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static uint8_t from[400000], to[400000];
    uint64_t before[STREAMS_MAX];
    kit_fill(from, sizeof(from), 7);
    join(&a, &b, LH_LINK_WAN, LH_SECURITY_PLAIN);
    assert_int_equal(kit_api->irecv(a.conn, NULL, to, sizeof(to), 1, 1), LH_OK);
    assert_true(b.conn->stream_count >= 4);
    for (uint32_t i = 0; i < b.conn->stream_count; i++)
        before[i] = b.conn->streams[i]->out_sequence;
    assert_int_equal(kit_api->isend(b.conn, NULL, from, sizeof(from), 1, 1), LH_OK);
    assert_non_null(kit_wait(&a, &b, &a, LH_WIRE_RECEIVED, 0, KIT_PATIENCE_MS));
    assert_memory_equal(from, to, sizeof(to));
    /* Parts are not shorter than 32 KiB. */
    uint32_t streams = 0;
    for (uint32_t i = 0; i < b.conn->stream_count; i++)
        streams += b.conn->streams[i]->out_sequence > before[i];
    const uint32_t most = (sizeof(from) + (32 << 10) - 1) / (32 << 10);
    assert_int_equal(streams, b.conn->stream_count < most ? b.conn->stream_count : most);
    kit_close(&a);
    kit_close(&b);
}

static void who_sends_shares_the_pace_by_urgency(void **state)
{
    (void)state;
    static lh_conn_t c[5];
    static const uint32_t services[] = {LH_SERVICE_PARAMETER, LH_SERVICE_GRADIENT, LH_SERVICE_BULK,
                                        LH_SERVICE_GRADIENT, LH_SERVICE_ACTIVATION};
    memset(c, 0, sizeof(c));
    for (int i = 0; i < 5; i++)
        c[i] = (lh_conn_t){.service = services[i], .next = i < 4 ? &c[i + 1] : NULL};
    c[4].site = 1; /* another link */
    c[4].is_sending = c[0].is_sending = true;
    assert_true(ledger_share(c, &c[0]) == 1 && ledger_share(c, &c[1]) == 1);
    c[1].is_sending = c[2].is_sending = true;
    assert_true(ledger_share(c, &c[1]) == 14.0 / 16);
    assert_true(ledger_share(c, &c[0]) == 1.0 / 16 && ledger_share(c, &c[2]) == 1.0 / 16);
    c[3].is_sending = true;
    assert_true(ledger_share(c, &c[1]) == 7.0 / 16 && ledger_share(c, &c[3]) == 7.0 / 16);
    assert_true(ledger_share(c, &c[4]) == 1);
}

/* As to the ranks of a larger site, with a snapshot beside: of each of them what it sends tells the rate. */
static void many_that_are_equally_urgent_let_nobody_go_first(void **state)
{
    (void)state;
    enum { EQUAL = 16, ALL, PACE = 1000000 };
    static lh_transport_t t;
    static stream_t stream;
    static lh_conn_t c[ALL];
    memset(&t, 0, sizeof(t));
    memset(&stream, 0, sizeof(stream));
    stream.fd = -1;
    t.conns = c;
    t.now = 1000 * MS;
    for (uint32_t i = 0; i < ALL; i++) {
        c[i] = (lh_conn_t){.transport = &t,
                           .state = CONN_UP,
                           .link = {.scope = LH_LINK_WAN},
                           .tuning = {.pace_bytes_per_second = PACE},
                           .service = i < EQUAL ? LH_SERVICE_GRADIENT : LH_SERVICE_BULK,
                           .share = 1,
                           .streams = {&stream},
                           .stream_count = 1,
                           .next = i + 1 < ALL ? &c[i + 1] : NULL};
        atomic_store(&c[i].bytes_sent, PACE);
    }
    ledger_settle(&t);
    for (uint32_t i = 0; i < EQUAL; i++) {
        assert_true(c[i].share == 15.0 / 16 / EQUAL);
        assert_false(c[i].yields);
    }
    assert_true(c[EQUAL].share == 1.0 / 16 && c[EQUAL].yields);
}

/* A second of a pace between two looks each. Nothing hears of the sockets, which are none. */
static void what_is_not_paced_any_more_has_no_share(void **state)
{
    (void)state;
    enum { PACE = 1000000 };
    static lh_transport_t t;
    static stream_t stream;
    static lh_conn_t c[2];
    memset(&t, 0, sizeof(t));
    memset(&stream, 0, sizeof(stream));
    memset(c, 0, sizeof(c));
    stream.fd = -1;
    t.conns = c;
    for (int i = 0; i < 2; i++)
        c[i] = (lh_conn_t){.transport = &t,
                           .state = CONN_UP,
                           .link = {.scope = LH_LINK_WAN},
                           .tuning = {.pace_bytes_per_second = PACE},
                           .service = LH_SERVICE_GRADIENT,
                           .share = 1,
                           .streams = {&stream},
                           .stream_count = 1,
                           .next = i == 0 ? &c[1] : NULL};
    for (uint64_t look = 1; look <= 2; look++) {
        t.now = look * 1000 * MS;
        for (int i = 0; i < 2; i++)
            atomic_store(&c[i].bytes_sent, look * PACE);
        ledger_settle(&t);
        if (look == 1) {
            assert_true(c[0].share == 0.5 && c[1].share == 0.5);
            c[0].tuning.pace_bytes_per_second = UINT64_MAX;
            c[0].rate_busy = true;
        }
    }
    assert_true(c[0].share == 1 && c[1].share == 1);
    assert_false(c[0].rate_busy); /* what it sent was partly by its share */
    /* One that ends sends the rest at the part that its sockets have. */
    c[1].share = 0.5;
    c[1].state = CONN_ENDING;
    t.now += 1000 * MS;
    ledger_settle(&t);
    assert_true(c[1].share == 0.5);
}

/* Bytes a second over all streams. */
static uint64_t pace_of(const lh_conn_t *c)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < c->stream_count; i++) {
        uint64_t pace = 0;
        socklen_t length = sizeof(pace);
        assert_int_equal(
            getsockopt(c->streams[i]->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, &length), 0);
        all += pace;
    }
    return all;
}

/* 1.25 windows of 6.25 MB: 16 streams of half a MB, or the least, 4. What one of them sends in 16 ms is
 * the same at both ends, as is its part of the pace. */
static void the_kernel_of_either_end_may_call_for_more_streams(void **state)
{
    (void)state;
    enum { SMALL = 500000, LARGE = 50000000, PACE = 121250000 };
    static const struct {
        uint64_t window[2], ini[2]; /* of the end that listens, and that dials */
        uint32_t streams;
        uint64_t chunk;
    } rows[] = {{{LARGE, LARGE}, {0, 0}, 4, 484992},  {{SMALL, LARGE}, {0, 0}, 16, 121248},
                {{LARGE, SMALL}, {0, 0}, 16, 121248}, {{SMALL, LARGE}, {0, 2}, 2, 970000},
                {{LARGE, SMALL}, {3, 0}, 3, 646656},  {{SMALL, LARGE}, {3, 0}, 3, 646656}};
    static kit_end_t a, b;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kit_end_t *ends[2] = {&a, &b};
        memset(&a, 0, sizeof(a));
        memset(&b, 0, sizeof(b));
        kit_link = (lh_link_t){.struct_size = sizeof(kit_link),
                               .scope = LH_LINK_WAN,
                               .round_trip_ns = 50 * MS,
                               .bytes_per_second = GBIT};
        for (uint32_t e = 0; e < 2; e++) {
            kit_open(ends[e], e);
            ends[e]->config.streams = rows[i].ini[e];
            ends[e]->transport->limits = (limits_t){.budget = UINT64_MAX,
                                                    .bbr = true,
                                                    .auto_send = 1 << 30,
                                                    .auto_receive = 1 << 30,
                                                    .window = rows[i].window[e]};
        }
        kit_join(&a, &b, LH_SECURITY_PLAIN);
        for (uint32_t e = 0; e < 2; e++) {
            lh_tuning_t now = {.struct_size = sizeof(now)};
            lh_link_stats_t stats = {.struct_size = sizeof(stats)};
            assert_int_equal(kit_api->stats(ends[e]->conn, &stats), LH_OK);
            assert_int_equal(stats.paths_up, rows[i].streams);
            assert_int_equal(kit_api->retune(ends[e]->conn, NULL, &now), LH_OK);
            assert_int_equal(now.streams, rows[i].streams);
            assert_int_equal(now.chunk_bytes, rows[i].chunk);
            assert_in_range(pace_of(ends[e]->conn), PACE - 64, PACE);
            /* What this end alone would choose, as the host asks for between two steps. */
            char why[128];
            lh_tuning_t own = {.struct_size = sizeof(own)};
            assert_int_equal(
                kit_api->tune(ends[e]->transport, &kit_link, 0, &own, why, sizeof(why)), LH_OK);
            assert_int_equal(kit_api->retune(ends[e]->conn, &own, &now), LH_OK);
            assert_int_equal(now.streams, rows[i].streams);
            assert_int_equal(now.chunk_bytes, rows[i].chunk);
        }
        kit_close(&a);
        kit_close(&b);
    }
}

static void connections_that_send_at_once_keep_one_pace(void **state)
{
    (void)state;
    enum { BYTES = 3 << 20, PACE = 16000000 };
    static kit_end_t a, b;
    static uint8_t from[BYTES], to[2][BYTES];
    lh_conn_t *here[2], *there[2];
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    b.config.pace = PACE;
    kit_link = (lh_link_t){.struct_size = sizeof(kit_link), .scope = LH_LINK_WAN};
    kit_open(&a, 0);
    kit_open(&b, 1);
    for (uint32_t i = 0; i < 2; i++) {
        kit_service = i == 0 ? LH_SERVICE_PARAMETER : LH_SERVICE_GRADIENT;
        kit_join(&a, &b, LH_SECURITY_PLAIN);
        here[i] = a.conn;
        there[i] = b.conn;
        while (there[i]->state != CONN_UP || here[i]->state != CONN_UP) {
            kit_poll(&a);
            kit_poll(&b);
        }
        assert_int_equal(kit_api->irecv(here[i], NULL, to[i], BYTES, i, i), LH_OK);
    }
    kit_service = LH_SERVICE_GRADIENT;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(kit_api->isend(there[i], NULL, from, BYTES, i, i), LH_OK);
    bool shared = false;
    uint32_t received = 0;
    const uint64_t until = kit_now() + KIT_PATIENCE_NS;
    for (uint32_t seen = 0; received < 2 && kit_now() < until;) {
        kit_poll(&a);
        kit_poll(&b);
        for (; seen < a.count; seen++)
            received += a.events[seen].type == LH_WIRE_RECEIVED;
        const uint64_t values = pace_of(there[0]), gradients = pace_of(there[1]);
        assert_in_range(values + gradients, PACE / 16 + PACE / 2, 2 * PACE);
        if (values > PACE / 16 || gradients > PACE / 16 * 15) continue;
        assert_in_range(values, PACE / 17, PACE / 16);
        assert_in_range(gradients, PACE / 16 * 15 - 64, PACE / 16 * 15);
        shared = true;
    }
    assert_int_equal(received, 2);
    assert_true(shared);
    for (const uint64_t over = kit_now() + 50 * MS; kit_now() < over;)
        kit_poll(&b);
    assert_in_range(pace_of(there[0]), PACE - 64, PACE);
    assert_in_range(pace_of(there[1]), PACE - 64, PACE);
    kit_close(&a);
    kit_close(&b);
}

/* As to two peers of one site: each has half of the pace, and both tell what all of it carries. */
static void connections_that_share_a_pace_tell_the_rate_of_all_of_it(void **state)
{
    (void)state;
    enum { BYTES = 6 << 20, PACE = 32000000 };
    static kit_end_t a, b;
    static uint8_t from[BYTES], to[2][BYTES];
    lh_conn_t *there[2];
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    b.config.pace = PACE;
    b.config.streams = 1;
    b.config.chunk_bytes = 64 << 10;
    kit_link = (lh_link_t){.struct_size = sizeof(kit_link), .scope = LH_LINK_WAN};
    kit_open(&a, 0);
    kit_open(&b, 1);
    for (uint32_t i = 0; i < 2; i++) {
        kit_service = i == 0 ? LH_SERVICE_PARAMETER : LH_SERVICE_GRADIENT;
        kit_join(&a, &b, LH_SECURITY_PLAIN);
        there[i] = b.conn;
        while (there[i]->state != CONN_UP || a.conn->state != CONN_UP) {
            kit_poll(&a);
            kit_poll(&b);
        }
        assert_int_equal(kit_api->irecv(a.conn, NULL, to[i], BYTES, i, i), LH_OK);
    }
    kit_service = there[0]->service = LH_SERVICE_GRADIENT;
    for (const uint64_t over = kit_now() + 20 * MS; kit_now() < over;) { /* the grants arrive */
        kit_poll(&a);
        kit_poll(&b);
    }
    const uint64_t start = kit_now(), until = start + 10000 * MS;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(kit_api->isend(there[i], NULL, from, BYTES, i, i), LH_OK);
    uint32_t received = 0;
    for (uint32_t seen = 0; received < 2 && kit_now() < until;) {
        kit_poll(&a);
        kit_poll(&b);
        for (; seen < a.count; seen++)
            received += a.events[seen].type == LH_WIRE_RECEIVED;
    }
    assert_int_equal(received, 2);
    /* Both together had the link: that is told of each. */
    const double link = 2.0 * BYTES / ((double)(kit_now() - start) * 1e-9);
    const double most = link > PACE ? link : PACE; /* this process may have stood still at first */
    for (uint32_t i = 0; i < 2; i++) {
        lh_link_stats_t stats = {.struct_size = sizeof(stats)};
        assert_int_equal(kit_api->stats(there[i], &stats), LH_OK);
        assert_in_range(stats.bytes_per_second, (uint64_t)(link * 0.7), (uint64_t)(most * 1.5));
    }
    kit_close(&a);
    kit_close(&b);
}

/* Of two that send at once one is closed: the other has the whole pace again. */
static void a_connection_that_is_left_has_all_of_the_pace(void **state)
{
    (void)state;
    enum { BYTES = 24 << 20, PACE = 16000000 };
    static kit_end_t a, b;
    static uint8_t from[BYTES], to[2][BYTES];
    lh_conn_t *there[2];
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    b.config.pace = PACE;
    kit_link = (lh_link_t){.struct_size = sizeof(kit_link), .scope = LH_LINK_WAN};
    kit_open(&a, 0);
    kit_open(&b, 1);
    for (uint32_t i = 0; i < 2; i++) {
        kit_service = i == 0 ? LH_SERVICE_PARAMETER : LH_SERVICE_GRADIENT;
        kit_join(&a, &b, LH_SECURITY_PLAIN);
        there[i] = b.conn;
        while (there[i]->state != CONN_UP || a.conn->state != CONN_UP) {
            kit_poll(&a);
            kit_poll(&b);
        }
        assert_int_equal(kit_api->irecv(a.conn, NULL, to[i], BYTES, i, i), LH_OK);
    }
    kit_service = LH_SERVICE_GRADIENT;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(kit_api->isend(there[i], NULL, from, BYTES, i, i), LH_OK);
    const uint64_t until = kit_now() + KIT_PATIENCE_NS;
    while (pace_of(there[0]) > PACE / 16 && kit_now() < until) {
        kit_poll(&a);
        kit_poll(&b);
    }
    assert_in_range(pace_of(there[0]), PACE / 17, PACE / 16);
    kit_api->cancel(there[1]);
    for (const uint64_t over = kit_now() + 50 * MS; kit_now() < over;) {
        kit_poll(&a);
        kit_poll(&b);
    }
    assert_in_range(pace_of(there[0]), PACE - 64, PACE);
    kit_close(&a);
    kit_close(&b);
}

/* When padding is to leave, of a connection that is made up: a window of a measured link, once, and under
 * cubic after each pause, while the peer waits for what is not posted here. */
static void what_is_idle_is_padded_before_a_burst(void **state)
{
    (void)state;
    enum { WINDOW = 1000000 };
    static char word[] = "reno";
    static const tcp_config_t automatic, reno = {.congestion = word};
    static lh_transport_t t;
    static lh_conn_t c;
    t = (lh_transport_t){.config = &automatic, .now = 5000 * MS};
    const lh_conn_t made = {.transport = &t,
                            .link = {.scope = LH_LINK_WAN, .bytes_per_second = 100000000},
                            .tuning = {.inflight_bytes = WINDOW, .control = 1}, /* bbr */
                            .service = LH_SERVICE_GRADIENT,
                            .stream_count = 4};
    c = made;
    c.granted = 1;
    warm_settle(&c); /* nothing was posted yet */
    assert_true(c.pad_left == 0 && !warm_may_push(&c));
    c.send_next = c.send_end = 1;
    warm_settle(&c); /* nobody waits */
    assert_true(c.pad_left == 0 && !warm_may_push(&c));
    c.granted = 2;
    warm_settle(&c);
    assert_true(c.pad_left == WINDOW && warm_may_push(&c));
    c.send_end = 2; /* what the peer waits for is posted, and warms as it leaves */
    assert_false(warm_may_push(&c));
    warm_sent(&c, WINDOW / 4);
    c.send_next = 2;
    c.granted = 3;
    assert_true(c.pad_left == WINDOW / 4 * 3 && warm_may_push(&c));
    warm_sent(&c, WINDOW);
    assert_true(c.pad_left == 0 && !warm_may_push(&c));

    t.now += 1001 * MS;
    warm_settle(&c);
    assert_true(c.pad_left == 0); /* bbr needs it once */
    c.tuning.control = 2;
    warm_settle(&c);
    assert_true(c.pad_left == WINDOW);
    warm_sent(&c, WINDOW);
    t.now += 999 * MS;
    warm_settle(&c);
    assert_true(c.pad_left == 0); /* no pause yet */
    c.tuning.control = 1;
    t.config = &reno;
    t.now += 2 * MS;
    warm_settle(&c);
    assert_true(c.pad_left == WINDOW); /* the INI's word */

    t.config = &automatic;
    for (int i = 0; i < 4; i++) {
        c = made;
        c.send_next = c.send_end = 1;
        c.granted = 2;
        if (i == 0) c.service = LH_SERVICE_BULK;
        if (i == 1) c.link.scope = LH_LINK_SITE;
        if (i == 2) c.link.bytes_per_second = 0;
        if (i == 3) c.tuning.inflight_bytes = 60000; /* what sockets send at once */
        warm_settle(&c);
        assert_true(c.pad_left == 0);
    }
}

static uint64_t frames_of(const lh_conn_t *c)
{
    uint64_t frames = 0;
    for (uint32_t i = 0; i < c->stream_count; i++)
        frames += c->streams[i]->out_sequence;
    return frames;
}

/* It counts as nothing that was sent or received, and messages behind it are whole. */
static void padding_passes_unseen(void **state)
{
    (void)state;
    enum { WINDOW = 500000 };
    static const uint32_t levels[] = {LH_SECURITY_PLAIN, LH_SECURITY_PRIVATE};
    static kit_end_t a, b;
    static uint8_t from[400000], to[400000];
    kit_fill(from, sizeof(from), 9);
    for (int i = 0; i < 2; i++) {
        memset(&a, 0, sizeof(a));
        memset(&b, 0, sizeof(b));
        memset(to, 0, sizeof(to));
        a.host.key = b.host.key = 7;
        b.config.streams = 4;
        kit_link = (lh_link_t){.struct_size = sizeof(kit_link),
                               .scope = LH_LINK_WAN,
                               .round_trip_ns = 10 * MS,
                               .bytes_per_second = 100 * WINDOW};
        kit_open(&a, 0);
        kit_open(&b, 1);
        kit_join(&a, &b, levels[i]);
        assert_int_equal(kit_api->irecv(a.conn, NULL, to, 1, 0, 0), LH_OK);
        assert_int_equal(kit_api->isend(b.conn, NULL, from, 1, 0, 0), LH_OK);
        const lh_wire_event_t *got = kit_wait(&a, &b, &a, LH_WIRE_RECEIVED, 0, KIT_PATIENCE_MS);
        assert_non_null(got);
        const uint32_t seen = (uint32_t)(got - a.events) + 1;
        const uint64_t before = frames_of(b.conn);
        assert_false(b.conn->is_warmed);
        assert_int_equal(kit_api->irecv(a.conn, NULL, to, sizeof(to), 1, 1), LH_OK);
        const uint64_t until = kit_now() + KIT_PATIENCE_NS;
        while ((!b.conn->is_warmed || b.conn->pad_left > 0) && kit_now() < until) {
            kit_poll(&a);
            kit_poll(&b);
        }
        assert_true(b.conn->is_warmed && b.conn->pad_left == 0 && !a.conn->is_warmed);
        assert_in_range(frames_of(b.conn) - before, WINDOW / PAD_BYTES, WINDOW / PAD_BYTES + 2);
        lh_link_stats_t stats = {.struct_size = sizeof(stats)};
        assert_int_equal(kit_api->stats(b.conn, &stats), LH_OK);
        assert_int_equal(stats.bytes_sent, 1);
        assert_int_equal(kit_api->isend(b.conn, NULL, from, sizeof(from), 1, 1), LH_OK);
        got = kit_wait(&a, &b, &a, LH_WIRE_RECEIVED, seen, KIT_PATIENCE_MS);
        assert_non_null(got);
        assert_int_equal(got->status, LH_OK);
        assert_memory_equal(from, to, sizeof(to));
        assert_int_equal(kit_api->stats(a.conn, &stats), LH_OK);
        assert_int_equal(stats.bytes_received, sizeof(to) + 1);
        kit_close(&a);
        kit_close(&b);
    }
}

/* A batch of a small piece and a large one is sealed as one. */
static void messages_of_all_sizes_pass_in_private(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static uint8_t from[3 << 20], to[3 << 20];
    static const uint64_t sizes[] = {100000, 900000, 1, 1 << 20, 70000, 600000};
    kit_fill(from, sizeof(from), 3);
    join(&a, &b, LH_LINK_WAN, LH_SECURITY_PRIVATE);
    uint64_t at = 0;
    const uint32_t count = sizeof(sizes) / sizeof(sizes[0]);
    for (uint32_t i = 0; i < count; at += sizes[i++])
        assert_int_equal(kit_api->irecv(a.conn, NULL, to + at, sizes[i], i, i), LH_OK);
    for (uint64_t until = kit_now() + 20 * MS; kit_now() < until;) { /* the grants arrive */
        kit_poll(&a);
        kit_poll(&b);
    }
    at = 0;
    for (uint32_t i = 0; i < count; at += sizes[i++])
        assert_int_equal(kit_api->isend(b.conn, NULL, from + at, sizes[i], i, i), LH_OK);
    for (uint32_t i = 0, seen = 0; i < count; i++) {
        const lh_wire_event_t *got = kit_wait(&a, &b, &a, LH_WIRE_RECEIVED, seen, KIT_PATIENCE_MS);
        assert_non_null(got);
        assert_int_equal(got->status, LH_OK);
        seen = (uint32_t)(got - a.events) + 1;
    }
    assert_memory_equal(from, to, at);
    kit_close(&a);
    kit_close(&b);
}

/* Each changes one thing of the first; what the INI has set stays. */
static void neighbours_change_one_thing_that_is_not_set(void **state)
{
    (void)state;
    tcp_config_t config = {.congestion = "auto"};
    lh_transport_t t = {.config = &config, .limits = may_force};
    lh_link_t link = {.scope = LH_LINK_WAN, .bytes_per_second = GBIT, .round_trip_ns = 50 * MS};
    lh_tuning_t first = {0}, other = {0};
    char text[128];
    assert_true(tuning_offer(&t, &link, 0, &first));
    tuning_text(&first, text, sizeof(text));
    assert_string_equal(text, "window 6.25 MB = 4 streams x 1.56 MB, buffers of 17.9 MiB, bbr");
    uint32_t count = 1;
    for (; tuning_offer(&t, &link, count, &other); count++)
        assert_int_equal((other.streams != first.streams) + (other.control != first.control) +
                             (other.chunk_bytes != first.chunk_bytes) +
                             (other.buffer_bytes != first.buffer_bytes),
                         1);
    assert_int_equal(count, 6);
    assert_true(tuning_offer(&t, &link, 1, &other));
    assert_int_equal(other.buffer_bytes, 2 * first.buffer_bytes);
    link.loss = 1e-3;
    assert_true(tuning_offer(&t, &link, 1, &other));
    assert_int_equal(other.streams, 2 * first.streams);

    config = (tcp_config_t){.congestion = "cubic", .streams = 4};
    for (count = 1; tuning_offer(&t, &link, count, &other); count++)
        assert_true(other.streams == 4 && other.control == first.control);
    assert_int_equal(count, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_change_one_thing_that_is_not_set),
        cmocka_unit_test(a_near_link_is_left_to_the_kernel),
        cmocka_unit_test(a_link_of_no_length_between_sites_is_not_under_bbr),
        cmocka_unit_test(between_sites_the_window_and_a_queue_fit),
        cmocka_unit_test(between_sites_a_stream_takes_what_it_sends_soon),
        cmocka_unit_test(more_streams_where_buffers_cannot_be_forced),
        cmocka_unit_test(without_figures_a_rate_is_assumed_but_no_pace),
        cmocka_unit_test(options_win),
        cmocka_unit_test(the_larger_wish_for_streams_counts_where_no_ini_says),
        cmocka_unit_test(memory_that_dead_programs_hold_is_named),
        cmocka_unit_test(sockets_between_sites_have_what_the_page_says),
        cmocka_unit_test(every_service_has_its_class_of_packets),
        cmocka_unit_test(a_buffer_beyond_the_kernels_memory_is_refused),
        cmocka_unit_test(who_sends_shares_the_pace_by_urgency),
        cmocka_unit_test(many_that_are_equally_urgent_let_nobody_go_first),
        cmocka_unit_test(what_is_not_paced_any_more_has_no_share),
        cmocka_unit_test(the_kernel_of_either_end_may_call_for_more_streams),
        cmocka_unit_test(connections_that_send_at_once_keep_one_pace),
        cmocka_unit_test(connections_that_share_a_pace_tell_the_rate_of_all_of_it),
        cmocka_unit_test(a_connection_that_is_left_has_all_of_the_pace),
        cmocka_unit_test(a_chosen_buffer_beyond_the_kernels_memory_is_cut),
        cmocka_unit_test(a_closed_connection_leaves_its_buffers_to_the_next),
        cmocka_unit_test(a_probes_own_connection_is_not_cut_to_a_guess),
        cmocka_unit_test(a_message_goes_over_all_streams),
        cmocka_unit_test(what_is_idle_is_padded_before_a_burst),
        cmocka_unit_test(padding_passes_unseen),
        cmocka_unit_test(messages_of_all_sizes_pass_in_private),
    };
    return kit_load() != 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
