/* transport_bench.c - `transport_bench PLUGIN [LEVEL] [key=value ...]`: one-way time and rate of a connection by
 * message size, with a level of security (plain); both ends spin. For authors of transports; `longhaul bench
 * collectives` is what jobs feel. */
#include "fact_main.h"

#include <stdlib.h>

enum { MOST = 64 << 20, ROUNDS = 5000 };

static uint32_t level = LH_SECURITY_PLAIN;

static void share(end_t *e, const buffer_t *b)
{
    lh_address_t offer = {0}, theirs;
    lh_remote_t *remote;
    const lh_mapping_api_t *api = e->api->mapping;
    if (api == NULL) return;
    while (api->offer(e->conn, b->region, &offer) == LH_AGAIN)
        end_poll(e);
    end_tell(e, &offer, sizeof(offer));
    end_hear(e, &theirs, sizeof(theirs));
    while (api->take(e->conn, &theirs, &remote) == LH_AGAIN)
        end_poll(e);
    end_barrier(e);
}

static void until_received(end_t *e)
{
    lh_wire_event_t events[8];
    for (;;) {
        uint32_t count = 0;
        CHECK(e->api->poll(e->transport, events, sizeof(events[0]), 8, &count) == LH_OK);
        for (uint32_t i = 0; i < count; i++) {
            CHECK(events[i].status == LH_OK && events[i].type < LH_WIRE_DOWN);
            if (events[i].type == LH_WIRE_RECEIVED) return;
        }
    }
}

static int by_size(const void *a, const void *b)
{
    const uint64_t one = *(const uint64_t *)a, two = *(const uint64_t *)b;
    return (one > two) - (one < two);
}

/* Half of there and back; the median, so that a loaded machine shows less. */
static double ping_ns(end_t *e, const buffer_t *b, uint64_t bytes, uint32_t rounds)
{
    static uint64_t times[ROUNDS];
    for (uint32_t i = 0; i < rounds; i++) {
        const uint64_t begin = check_now_ns();
        end_receive(e, b, MOST, bytes, 1, 1);
        if (e->side == 0) end_send(e, b, 0, bytes, 1, 2);
        until_received(e);
        if (e->side == 1) end_send(e, b, 0, bytes, 1, 2);
        times[i] = check_now_ns() - begin;
    }
    qsort(times, rounds, sizeof(times[0]), by_size);
    return (double)times[rounds / 2] / 2;
}

/* Both directions at once, two messages out in each. */
static double stream_once(end_t *e, const buffer_t *b, uint64_t bytes, uint32_t rounds)
{
    enum { OUT = 4 };
    uint32_t sent = 0, posted = 0, done = 0;
    lh_wire_event_t events[16];
    end_barrier(e);
    const uint64_t begin = check_now_ns();
    while (done < 2 * rounds) {
        uint32_t count = 0;
        while (posted < rounds && posted * 2 < done + OUT &&
               e->api->irecv(e->conn, b->region, b->data + MOST, bytes, 1, 1) == LH_OK)
            posted++;
        while (sent < rounds && sent * 2 < done + OUT &&
               e->api->isend(e->conn, b->region, b->data, bytes, 1, 2) == LH_OK)
            sent++;
        CHECK(e->api->poll(e->transport, events, sizeof(events[0]), 16, &count) == LH_OK);
        done += count;
    }
    const double ns = (double)(check_now_ns() - begin);
    end_barrier(e);
    return (double)bytes * rounds / ns;
}

static double stream_rate(end_t *e, const buffer_t *b, uint64_t bytes, uint32_t rounds)
{
    double best = 0;
    for (int i = 0; i < 8; i++) {
        const double rate = stream_once(e, b, bytes, rounds);
        if (rate > best) best = rate;
    }
    return best;
}

static void bench(end_t *e)
{
    end_listen(e, level);
    e->conn = end_join_at(e, LH_SERVICE_GRADIENT, RIG_CONN, level);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    buffer_t b = buffer_new(e, 2 * (uint64_t)MOST, true, LH_REMOTE_READ);
    memset(b.data, 1, b.bytes);
    share(e, &b);
    if (e->side == 0)
        (void)fprintf(fact_out, "%12s %14s %22s\n", "bytes", "one way (us)",
                      "each way, both (GB/s)");
    for (uint64_t bytes = 0; bytes <= MOST; bytes = bytes == 0 ? 64 : bytes * 4) {
        const uint32_t rounds = bytes < 65536 ? ROUNDS : (uint32_t)(5 + (MOST / bytes));
        const double ns = ping_ns(e, &b, bytes, rounds);
        const double rate = stream_rate(e, &b, bytes, rounds);
        if (e->side == 0)
            (void)fprintf(fact_out, "%12llu %14.2f %22.2f\n", (unsigned long long)bytes, ns / 1e3,
                          rate);
        if (e->side == 0) (void)fflush(fact_out);
    }
    end_barrier(e);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t level;
    } levels[] = {{"plain", LH_SECURITY_PLAIN},
                  {"known", LH_SECURITY_KNOWN},
                  {"proven", LH_SECURITY_PROVEN},
                  {"private", LH_SECURITY_PRIVATE}};
    int settings = 2;
    if (argc < 2) return 2;
    for (uint32_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (argc < 3 || strcmp(argv[2], levels[i].name) != 0) continue;
        level = levels[i].level;
        settings = 3;
    }
    const fact_t fact = {"bench", bench, false,
                         argc > settings ? (const char *const *)(argv + settings) : NULL};
    return fact_main(argv[1], &fact, 1, NULL);
}
