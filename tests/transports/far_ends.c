/* far_ends.c - `far_ends PLUGIN SPACE SPACE WHAT CLASS ROUND_TRIP_NS BYTES_PER_SECOND [key=value ...]`: a connection of a
 * transport over a long link. Each end enters the network namespace of its site (a file such as
 * /proc/PID/fd/N, see tests/lab), so the link between them may be emulated.
 *
 * WHAT is bulk (2 s to warm up, then 4 s are measured; bulk=BYTES: messages of so many), sealed (the same, encrypted),
 * burst (64 MB once a second, nine times), latency=BYTES (a message there and one back, a thousand times) or idle (the
 * processor time of 5 s in which nothing comes): a line of JSON comes out, for bench/links and bench/rdma. Or it is
 * messages=N: so many of random sizes each way, sealed and encrypted, every byte, size, tag and order checked
 * (far_messages.py). CLASS,
 * ROUND_TRIP_NS and BYTES_PER_SECOND are what the connection is told of its link; class 0: nothing is told.
 *
 * Between two polls an end does no more than one of perftest's, or what is measured is this program: with latency it
 * asks no clock and keeps no list of events; within a site the end that sends bulk data polls without a pause, as
 * ib_write_bw does, and the one that receives, where ib_write_bw has nobody at all, sleeps between its polls, with
 * receives posted for as many messages as ib_write_bw has under way. */
#include "fact_main.h"

#include <config/options.h>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    MESSAGE = 4 << 20,
    MESSAGE_MOST = 64 << 20,
    AHEAD = 24,       /* messages of bulk data under way, and their receives       */
    AHEAD_MOST = 128, /* of short ones: as perftest has, where these are less than */
    AHEAD_BYTES = AHEAD * MESSAGE,
    ROUNDS = 1000, /* there and back */
    IDLE_S = 5,
    BURST = 64000000,
    BURSTS = 9,
    LARGEST = 1 << 20, /* of messages that are checked */
    SLOTS = 64, /* of them under way each way: as many as a round trip of a long link holds */
};

static const char *spaces[2];
static char **settings; /* of the plugin's options, which may name a card of the site */
static bool bursts, idles, seals;
static uint64_t bulk_bytes = MESSAGE;
static uint64_t trip_bytes; /* 0: no latency */
static uint64_t messages;   /* 0: it measures */
static lh_link_t told = {.struct_size = sizeof(told)};

static void enter_site(end_t *e)
{
    const int fd = open(spaces[e->side], O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, "%s can't be entered", spaces[e->side]);
    (void)close(fd);
    e->api->close(e->transport); /* it has looked at the cards of another namespace */
    const option_table_t table = plugin_options(e->plugin);
    for (uint32_t i = 0; i < table.count; i++) {
        const lh_option_t *row = &table.rows[i];
        const size_t length = strlen(row->key);
        for (char **s = settings; *s != NULL; s++)
            if (strncmp(*s, row->key, length) == 0 && (*s)[length] == '=')
                CHECK(option_set(row, *s + length + 1, "far_ends", "/", e->config) == LH_OK);
    }
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK);
}

static void meet(end_t *e)
{
    lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
    if (told.scope != 0) params.link = &told;
    params.security = messages > 0 || seals ? LH_SECURITY_PRIVATE : LH_SECURITY_PLAIN;
    if (messages > 0) params.silence_ns = 10000000000u; /* it may be cut meanwhile */
    end_listen(e, params.security);
    e->conn = end_join_with(e, &params);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
}

/* Of bulk data. Short messages that are as few as long ones are over before an end has slept. */
static uint32_t messages_ahead(void)
{
    const uint64_t fit = AHEAD_BYTES / bulk_bytes;
    return fit < AHEAD ? AHEAD : fit > AHEAD_MOST ? AHEAD_MOST : (uint32_t)fit;
}

/* Microseconds between two polls where nothing came. As a rank it sleeps, and an emulator needs the processors; within a
 * site there is none. */
static useconds_t nap_us(const end_t *e)
{
    enum { CHECKED = 200, FAR = 20, RECEIVES = 500 };
    if (messages > 0) return CHECKED; /* of a round trip of 8 ms */
    if (told.scope != LH_LINK_SITE) return FAR;
    return e->side == 0 ? 0 : RECEIVES; /* a tenth of what 24 messages of 64 KiB take at 2 Gb/s */
}

static uint32_t harvest(end_t *e, lh_wire_event_t *events, uint32_t most)
{
    uint32_t count = 0;
    CHECK(e->api->poll(e->transport, events, sizeof(*events), most, &count) == LH_OK);
    for (uint32_t i = 0; i < count; i++)
        CHECK(events[i].status == LH_OK && events[i].type < LH_WIRE_DOWN, "%s",
              events[i].reason != NULL ? events[i].reason : "");
    if (count == 0 && nap_us(e) > 0) (void)usleep(nap_us(e));
    return count;
}

/* Side 0 sends for six seconds, then a message of one byte. */
static void send_bulk(end_t *e, const buffer_t *b)
{
    lh_wire_event_t events[64];
    const uint64_t until = check_now_ns() + 6000000000u;
    const uint32_t ahead = messages_ahead();
    uint32_t out = 0;
    for (bool more = true; more || out > 0;) {
        more = check_now_ns() < until;
        while (more && out < ahead &&
               e->api->isend(e->conn, b->region, b->data, bulk_bytes, 1, 1) == LH_OK)
            out++;
        out -= harvest(e, events, 64);
    }
    end_send(e, b, 0, 1, 1, 2);
    (void)end_await(e, LH_WIRE_SENT, 2);
}

static double take_bulk(end_t *e, const buffer_t *b)
{
    lh_wire_event_t events[64];
    uint64_t begin = 0, end = 0, bytes = 0, first = 0;
    const uint32_t ahead = messages_ahead();
    uint32_t posted = 0;
    for (;;) {
        while (posted < ahead &&
               e->api->irecv(e->conn, b->region, b->data, bulk_bytes, 1, 1) == LH_OK)
            posted++;
        const uint32_t count = harvest(e, events, 64);
        const uint64_t now = check_now_ns();
        for (uint32_t i = 0; i < count; i++) {
            if (events[i].type != LH_WIRE_RECEIVED) continue;
            if (events[i].bytes == 1) return (double)bytes * 8e9 / (double)(end - begin);
            posted--;
            if (first == 0) first = now;
            if (now < first + 2000000000u || now > first + 6000000000u) continue;
            if (begin != 0) bytes += events[i].bytes;
            if (begin == 0) begin = now;
            end = now;
        }
    }
}

static double take_burst(end_t *e, const buffer_t *b)
{
    lh_wire_event_t events[64];
    char word = 'g';
    uint32_t posted = 0, done = 0;
    const uint32_t all = (BURST + MESSAGE - 1) / MESSAGE;
    while (posted < all && e->api->irecv(e->conn, b->region, b->data, MESSAGE, 1, 1) == LH_OK)
        posted++;
    for (int i = 0; i < 5000; i++) /* the receives' grants reach the other end */
        (void)harvest(e, events, 1);
    const uint64_t begin = check_now_ns();
    end_tell(e, &word, 1);
    while (done < all)
        done += harvest(e, events, 64);
    return (double)(check_now_ns() - begin) / 1e6;
}

static void send_burst(end_t *e, const buffer_t *b)
{
    lh_wire_event_t events[64];
    char word;
    uint64_t left = BURST;
    uint32_t out = 0;
    end_hear(e, &word, 1);
    while (left > 0 || out > 0) {
        const uint64_t bytes = left < MESSAGE ? left : MESSAGE;
        if (left > 0 && e->api->isend(e->conn, b->region, b->data, bytes, 1, 1) == LH_OK) {
            left -= bytes;
            out++;
            continue;
        }
        out -= harvest(e, events, 64);
    }
}

static void tell_tuning(end_t *e)
{
    lh_tuning_t t = {.struct_size = sizeof(t)};
    lh_link_stats_t s = {.struct_size = sizeof(s)};
    if (e->api->retune != NULL) (void)e->api->retune(e->conn, NULL, &t);
    if (e->api->stats != NULL) (void)e->api->stats(e->conn, &s);
    (void)fprintf(fact_out,
                  "\"streams\": %u, \"buffer_bytes\": %llu, \"pace_bytes_per_second\": %llu, "
                  "\"retransmitted\": %llu}\n",
                  t.streams, (unsigned long long)t.buffer_bytes,
                  (unsigned long long)t.pace_bytes_per_second,
                  (unsigned long long)s.bytes_retransmitted);
    (void)fflush(fact_out);
}

static void run_bulk(end_t *e, const buffer_t *b)
{
    double rate = 0;
    if (e->side == 0) {
        send_bulk(e, b);
        end_hear(e, &rate, sizeof(rate));
        (void)fprintf(fact_out, "{\"bits_per_second\": %.0f, ", rate);
        tell_tuning(e);
    } else {
        rate = take_bulk(e, b);
        end_tell(e, &rate, sizeof(rate));
    }
}

static void run_bursts(end_t *e, const buffer_t *b)
{
    double ms[BURSTS];
    for (int i = 0; i < BURSTS; i++) {
        const uint64_t begin = check_now_ns();
        if (e->side == 0) send_burst(e, b);
        if (e->side == 1) ms[i] = take_burst(e, b);
        lh_wire_event_t events[1];
        while (check_now_ns() < begin + 1000000000u)
            (void)harvest(e, events, 1);
    }
    if (e->side == 1) {
        end_tell(e, ms, sizeof(ms));
        return;
    }
    end_hear(e, ms, sizeof(ms));
    (void)fprintf(fact_out, "{\"burst_ms\": [");
    for (int i = 0; i < BURSTS; i++)
        (void)fprintf(fact_out, "%s%.1f", i > 0 ? ", " : "", ms[i]);
    (void)fprintf(fact_out, "], ");
    tell_tuning(e);
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* What has come and has left, in all. */
typedef struct trips {
    uint32_t came, left;
} trips_t;

static void trips_poll(end_t *e, trips_t *t)
{
    lh_wire_event_t events[8];
    uint32_t count = 0;
    CHECK(e->api->poll(e->transport, events, sizeof(events[0]), 8, &count) == LH_OK);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(events[i].status == LH_OK && events[i].type < LH_WIRE_DOWN, "%s",
              events[i].reason != NULL ? events[i].reason : "");
        t->came += events[i].type == LH_WIRE_RECEIVED;
        t->left += events[i].type == LH_WIRE_SENT;
    }
}

static void trips_send(end_t *e, const buffer_t *b, trips_t *t)
{
    lh_status_t status;
    while ((status = e->api->isend(e->conn, b->region, b->data + trip_bytes, trip_bytes, 1, 2)) ==
           LH_AGAIN)
        trips_poll(e, t);
    CHECK(status == LH_OK, "status %d", status);
}

/* Without a pause between two polls, and with nothing else, as who measures the other library does. What a round leaves
 * to be done is done while the answer is on its way. */
static void run_latency(end_t *e, const buffer_t *b)
{
    static uint64_t took[ROUNDS];
    trips_t t = {0};
    lh_wire_event_t early;
    for (uint32_t i = 0; i < AHEAD;
         i++) /* as a rank posts them, so that no send waits for its grant */
        end_receive(e, b, 0, trip_bytes, 1, 1);
    for (int i = 0; i < 1000; i++)
        end_poll(e);
    end_barrier(e);
    /* A message may come before this end has heard the other one's word. */
    while (end_take(e, LH_WIRE_RECEIVED, 1, &early))
        t.came++;
    uint64_t begin = check_now_ns();
    for (uint32_t i = 0; i < ROUNDS + ROUNDS / 10; i++) {
        while (e->side == 1 && t.came <= i)
            trips_poll(e, &t);
        trips_send(e, b, &t);
        while (t.left <= i)
            trips_poll(e, &t);
        end_receive(e, b, 0, trip_bytes, 1, 1);
        check_alive();
        while (e->side == 0 && t.came <= i)
            trips_poll(e, &t);
        const uint64_t now = check_now_ns();
        if (i >= ROUNDS / 10) took[i - ROUNDS / 10] = now - begin;
        begin = now;
    }
    qsort(took, ROUNDS, sizeof(took[0]), by_size);
    if (e->side == 0)
        (void)fprintf(fact_out, "{\"one_way_us\": %.2f, \"least_us\": %.2f}\n",
                      (double)took[ROUNDS / 2] / 2e3, (double)took[0] / 2e3);
    (void)fflush(fact_out);
}

static double processor_s(void)
{
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

/* As a rank waits: on the descriptor, as long as there is nothing to poll first. */
static void run_idle(end_t *e)
{
    struct pollfd sleeper = {.events = POLLIN};
    CHECK(e->api->wait_fd(e->transport, &sleeper.fd) == LH_OK);
    for (int i = 0; i < 1000; i++)
        end_poll(e);
    const uint64_t until = check_now_ns() + IDLE_S * 1000000000ull;
    const double before = processor_s();
    while (check_now_ns() < until) {
        if (e->api->arm(e->transport) == LH_OK) (void)poll(&sleeper, 1, 100);
        end_poll(e);
    }
    if (e->side == 0)
        (void)fprintf(fact_out, "{\"processor_share\": %.5f}\n", (processor_s() - before) / IDLE_S);
    (void)fflush(fact_out);
}

/* Of the n-th message of a side: most are small, some are cut into pieces for all streams. They have
 * 8 KB on average, so that a million are 8 GB a way. */
static uint64_t size_of(uint32_t side, uint64_t n)
{
    uint64_t x = (n + 1) * 0x9e3779b97f4a7c15u + side;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    const uint64_t most = x % 128 == 0 ? LARGEST : x % 16 == 1 ? 100000 : 2000;
    return (x >> 8) % (most + 1);
}

typedef struct flow { /* messages of one direction: [first, next) are under way */
    uint64_t first, next;
} flow_t;

static bool is_due(const flow_t *f)
{
    return f->next < messages && f->next - f->first < SLOTS;
}

static void check_message(end_t *e, const buffer_t *b, const lh_wire_event_t *event, uint64_t n)
{
    const uint64_t at = (SLOTS + n % SLOTS) * LARGEST, bytes = size_of(1 - e->side, n);
    CHECK(event->cookie == n && event->tag == (uint32_t)n, "message %llu came as %llu",
          (unsigned long long)n, (unsigned long long)event->cookie);
    CHECK(event->bytes == bytes, "message %llu: %llu bytes of %llu", (unsigned long long)n,
          (unsigned long long)event->bytes, (unsigned long long)bytes);
    buffer_check(b->data + at, bytes, 2 * n + (1 - e->side));
}

/* Both directions at once; half of a buffer is sent from, half is received into. */
static void run_messages(end_t *e)
{
    static lh_wire_event_t events[64];
    buffer_t b = buffer_new(e, 2 * (uint64_t)SLOTS * LARGEST, false, 0);
    flow_t out = {0}, in = {0};
    while (out.first < messages || in.first < messages) {
        for (; is_due(&in); in.next++)
            if (e->api->irecv(e->conn, b.region, b.data + (SLOTS + in.next % SLOTS) * LARGEST,
                              LARGEST, (uint32_t)in.next, in.next) != LH_OK)
                break;
        for (; is_due(&out); out.next++) {
            char *data = b.data + out.next % SLOTS * LARGEST;
            const uint64_t bytes = size_of(e->side, out.next);
            buffer_fill(data, bytes, 2 * out.next + e->side);
            if (e->api->isend(e->conn, b.region, data, bytes, (uint32_t)out.next, out.next) !=
                LH_OK)
                break;
        }
        const uint32_t count = harvest(e, events, 64);
        for (uint32_t i = 0; i < count; i++) {
            if (events[i].type == LH_WIRE_RECEIVED) check_message(e, &b, &events[i], in.first++);
            if (events[i].type != LH_WIRE_SENT) continue;
            CHECK(events[i].cookie == out.first, "message %llu is said to have left twice or early",
                  (unsigned long long)events[i].cookie);
            out.first++;
        }
    }
    for (int i = 0; i < 1000; i++)
        CHECK(harvest(e, events, 64) == 0, "an event too many");
    buffer_free(e, &b);
}

static void far(end_t *e)
{
    enter_site(e);
    if (messages > 0) {
        meet(e);
        run_messages(e);
        end_barrier(e);
        return;
    }
    buffer_t b = buffer_new(e, bulk_bytes + 2 * trip_bytes, false, 0);
    memset(b.data, 1, b.bytes);
    meet(e);
    if (idles)
        run_idle(e);
    else if (trip_bytes > 0)
        run_latency(e, &b);
    else if (bursts)
        run_bursts(e, &b);
    else
        run_bulk(e, &b);
    end_barrier(e);
}

int main(int argc, char **argv)
{
    if (argc < 8) return 2;
    spaces[0] = argv[2];
    spaces[1] = argv[3];
    bursts = strcmp(argv[4], "burst") == 0;
    idles = strcmp(argv[4], "idle") == 0;
    seals = strcmp(argv[4], "sealed") == 0;
    if (strncmp(argv[4], "bulk=", 5) == 0) bulk_bytes = strtoull(argv[4] + 5, NULL, 10);
    if (strncmp(argv[4], "latency=", 8) == 0) trip_bytes = strtoull(argv[4] + 8, NULL, 10);
    if (bulk_bytes == 0 || bulk_bytes > MESSAGE_MOST || trip_bytes > MESSAGE_MOST) return 2;
    if (strncmp(argv[4], "messages=", 9) == 0) messages = strtoull(argv[4] + 9, NULL, 10);
    told.scope = (uint32_t)strtoul(argv[5], NULL, 10);
    told.round_trip_ns = strtoull(argv[6], NULL, 10);
    told.bytes_per_second = strtoull(argv[7], NULL, 10);
    settings = argv + 8;
    const fact_t fact = {"far", far, false, NULL};
    return fact_main(argv[1], &fact, 1, NULL);
}
