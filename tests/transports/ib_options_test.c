/* ib_options_test.c - what an INI sets of the ib transport and a port may not have, what cards agree on,
 * and what a peer gone wild tells of its memory; over the stand-in of libibverbs (tests/fake_verbs). */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <transport_facts.h>

#include "ib_facts.h"

#include <ib.h>

/* ---- a card with four GIDs, as the kernel shows it ---- */

static const struct {
    const char *gid, *type;
} rows[] = {{"0000:0000:0000:0000:0000:ffff:7f00:0001", "IB/RoCE v1"},
            {"0000:0000:0000:0000:0000:ffff:7f00:0001", "RoCE v2"},
            {"0000:0000:0000:0000:0000:ffff:7f00:0009", "RoCE v2"},
            {"0000:0000:0000:0000:0000:0000:0000:0000", ""}};
enum { ROWS = 4 };
static char card[64];

static void card_path(uint32_t row, const char *what, char out[256])
{
    (void)snprintf(out, 256, "%s/ports/1/%s/%u", card, what, row);
}

static void write_line(uint32_t row, const char *what, const char *text)
{
    char path[256];
    card_path(row, what, path);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fprintf(f, "%s\n", text) > 0 && fclose(f) == 0);
}

static void each_folder(int (*act)(const char *path), bool last_first)
{
    static const char *const folders[] = {"",
                                          "/ports",
                                          "/ports/1",
                                          "/ports/1/gids",
                                          "/ports/1/gid_attrs",
                                          "/ports/1/gid_attrs/types"};
    for (int i = 0; i < 6; i++) {
        char path[256];
        (void)snprintf(path, sizeof(path), "%s%s", card, folders[last_first ? 5 - i : i]);
        CHECK(act(path) == 0 || i == 0);
    }
}

static int make_folder(const char *path)
{
    return mkdir(path, 0700);
}

static void card_new(void)
{
    (void)snprintf(card, sizeof(card), "/tmp/ib-card-%d", (int)getpid());
    each_folder(make_folder, false);
    for (uint32_t i = 0; i < ROWS; i++) {
        write_line(i, "gids", rows[i].gid);
        write_line(i, "gid_attrs/types", rows[i].type);
    }
    (void)setenv("FAKE_VERBS_FOLDER", card, 1);
}

static void card_free(void)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        char path[256];
        card_path(i, "gids", path);
        (void)unlink(path);
        card_path(i, "gid_attrs/types", path);
        (void)unlink(path);
    }
    each_folder(rmdir, true);
}

/* ---- opening with other options ---- */

static ib_config_t *config_of(end_t *e)
{
    return e->config;
}

static void reopen(end_t *e)
{
    lh_transport_t *former = e->transport;
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK, "%s", check_host_reason());
    e->api->close(former); /* orders are forgotten where nothing is open */
}

static void expect_refusal(end_t *e, lh_status_t why, const char *words)
{
    lh_transport_t *t = NULL;
    CHECK(e->api->open(check_host(), e->config, &t) == why, "%s", check_host_reason());
    CHECK(strstr(check_host_reason(), words) != NULL, "%s", check_host_reason());
}

static void part(end_t *e)
{
    end_barrier(e);
    e->api->close_conn(e->conn);
    if (e->side == 1) e->api->close_listener(e->listener);
    e->event_count = 0;
    end_barrier(e);
}

/* ---- GIDs ---- */

static void a_gid_is_of_the_latest_version_of_roce(end_t *e)
{
    static char here[] = "127.0.0.1";
    card_new();
    config_of(e)->bind = here;
    reopen(e);
    ib_meet(e, LH_SECURITY_PLAIN);
    CHECK(ib_count("gid") == 1, "%llu", (unsigned long long)ib_count("gid"));
    part(e);
    card_free();
}

static void an_address_of_ipv6_has_a_gid_of_its_family(end_t *e)
{
    static char here[] = "::1";
    card_new();
    write_line(3, "gids", "0000:0000:0000:0000:0000:0000:0000:0001");
    write_line(3, "gid_attrs/types", "RoCE v2");
    config_of(e)->bind = here;
    reopen(e);
    ib_meet(e, LH_SECURITY_KNOWN);
    CHECK(ib_count("gid") == 3, "%llu", (unsigned long long)ib_count("gid"));
    buffer_t out = buffer_new(e, 1 << 20, false, 0), in = buffer_new(e, 1 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 4, 1 << 18);
    part(e);
    card_free();
}

static void a_gid_is_chosen_by_row_or_address(end_t *e)
{
    static char row[] = "0", address[] = "127.0.0.1", other[] = "2", any[] = "auto",
                named[] = "127.0.0.9";
    ib_config_t *config = config_of(e);
    char text[128];
    lh_address_t where;
    lh_listener_t *l;
    card_new();
    config->gid = address;
    reopen(e);
    ib_meet(e, LH_SECURITY_PLAIN);
    CHECK(ib_count("gid") == 1);
    part(e);
    config->gid = row;
    reopen(e);
    ib_meet(e, LH_SECURITY_PLAIN);
    CHECK(ib_count("gid") == 0);
    part(e);
    /* Its address is another one, which is bound where `bind` leaves that open. */
    config->bind = any;
    for (int i = 0; i < 2; i++) {
        config->gid = i == 0 ? other : named;
        reopen(e);
        CHECK(e->api->listen(e->transport, 0, LH_SECURITY_PLAIN, &where, &l) == LH_OK);
        CHECK(e->api->address_text(e->transport, &where, text, sizeof(text)) == LH_OK);
        CHECK(strncmp(text, "127.0.0.9:", 10) == 0, "%s", text);
    }
    card_free();
}

/* Where the host knows the rank's address its device is the one, and not the first that has such a row:
 * fake1 has no table here. */
static void a_row_is_one_of_the_device_with_the_rank_s_address(end_t *e)
{
    static char row[] = "2", any[] = "auto";
    lh_world_t world = *check_host()->world;
    lh_host_t host = *check_host();
    lh_transport_t *t;
    card_new();
    host.world = &world;
    config_of(e)->bind = any;
    config_of(e)->gid = row;
    ib_order("devices=2");
    (void)snprintf(world.address, sizeof(world.address), "127.0.0.2");
    CHECK(e->api->open(&host, e->config, &t) == LH_INVALID);
    CHECK(strstr(check_host_reason(), "gid = 2: port 1 of fake1 has no such GID") != NULL, "%s",
          check_host_reason());
    (void)snprintf(world.address, sizeof(world.address), "127.0.0.1"); /* row 2 is of 127.0.0.9 */
    CHECK(e->api->open(&host, e->config, &t) == LH_OK, "%s", check_host_reason());
    e->api->close(t);
    card_free();
    end_barrier(e);
}

static void a_gid_that_the_port_does_not_have_is_named(end_t *e)
{
    static char row[] = "5", empty[] = "3", other[] = "2", here[] = "127.0.0.1",
                nothing[] = "10.1.2.3", nonsense[] = "roce";
    ib_config_t *config = config_of(e);
    card_new();
    config->bind = here;
    config->gid = row;
    expect_refusal(e, LH_INVALID,
                   "gid = 5: port 1 of fake0 has no such GID; it has 0 (127.0.0.1, RoCE v1), 1 "
                   "(127.0.0.1, RoCE v2), 2 (127.0.0.9, RoCE v2)");
    config->gid = empty;
    expect_refusal(e, LH_INVALID, "gid = 3: port 1 of fake0 has no such GID");
    config->gid = nothing;
    expect_refusal(e, LH_INVALID, "gid = 10.1.2.3: port 1 of fake0 has no such GID");
    config->gid = other;
    expect_refusal(e, LH_INVALID,
                   "gid = 2: that of port 1 of fake0 is of 127.0.0.9, and the rank's address is "
                   "127.0.0.1; expected one of that address: 0 (127.0.0.1, RoCE v1), 1 (127.0.0.1, "
                   "RoCE v2)");
    config->gid = nonsense;
    expect_refusal(e, LH_INVALID, "gid = roce: expected auto, a row of the port's table");
    card_free();
    end_barrier(e);
}

static void versions_of_roce_that_differ_are_refused(end_t *e)
{
    static char first[] = "0", second[] = "1";
    lh_conn_t *conn;
    card_new();
    config_of(e)->gid = e->side == 0 ? first : second;
    reopen(e);
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
        CHECK(e->api->connect(e->transport, &e->address, &params, &conn) == LH_UNSUPPORTED);
        CHECK(strstr(check_host_reason(), "rank 1's GID is of RoCE v2, that of fake0 here of v1; "
                                          "expected the same") != NULL,
              "%s", check_host_reason());
    }
    card_free();
    end_barrier(e);
}

/* Of two ports: each has its own row, and a peer is told of one version. */
static void ports_with_other_versions_of_roce_are_refused(end_t *e)
{
    static char both[] = "127.0.0.1, 127.0.0.9";
    card_new();
    config_of(e)->bind = both;
    reopen(e);
    write_line(2, "gid_attrs/types", "IB/RoCE v1");
    expect_refusal(e, LH_INVALID,
                   "bind: the GID of 127.0.0.1:0 of fake0 is of RoCE v2, that of 127.0.0.9:0 of "
                   "fake0 of v1; expected one version (gid)");
    card_free();
    end_barrier(e);
}

/* It has no table, as fake1 here; the first port is the one that is told of. */
static void a_row_is_not_asked_of_a_port_that_is_down(end_t *e)
{
    static char both[] = "127.0.0.1, 127.0.0.2", row[] = "1";
    card_new();
    config_of(e)->bind = both;
    config_of(e)->gid = row;
    ib_order("devices=2");
    expect_refusal(e, LH_INVALID, "gid = 1: port 1 of fake1 has no such GID");
    ib_order("dead_device=2");
    reopen(e);
    card_free();
    end_barrier(e);
}

/* ---- MTU, traffic class, memory, window ---- */

static void an_mtu_is_taken_where_the_port_has_it(end_t *e)
{
    ib_config_t *config = config_of(e);
    ib_meet(e, LH_SECURITY_PLAIN);
    CHECK(ib_count("path_mtu") == 4, "code %llu", (unsigned long long)ib_count("path_mtu"));
    buffer_t out = buffer_new(e, 1 << 20, false, 0), in = buffer_new(e, 1 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 4, 1 << 18);
    end_barrier(e);
    ib_order("mtu=3");
    expect_refusal(e, LH_INVALID, "mtu = 2048: port 1 of fake0 has 1024");
    config->mtu = 1500;
    expect_refusal(e, LH_INVALID, "mtu = 1500: expected 256, 512, 1024, 2048 or 4096");
    end_barrier(e);
}

static void a_traffic_class_that_can_t_be_set_is_refused(end_t *e)
{
    config_of(e)->traffic_class = 104;
    reopen(e);
    ib_order("no_class=1");
    expect_refusal(e, LH_UNSUPPORTED, "traffic_class = 104: port 1 of fake0: ");
    end_barrier(e);
}

static void memory_that_may_not_be_locked_is_counted(end_t *e)
{
    lh_region_t *region;
    static char data[100000];
    const struct rlimit limit = {.rlim_cur = 65536, .rlim_max = 65536};
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = data,
                              .bytes = sizeof(data),
                              .fd = -1,
                              .numa = -1};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    ib_order("no_memory=1");
    CHECK(e->api->register_memory(e->transport, 0, &arena, &region) == LH_IO);
    CHECK(strstr(check_host_reason(),
                 "registering 100000 bytes with fake0; a process may lock 65536 "
                 "bytes in all (ulimit -l), with ") != NULL,
          "%s", check_host_reason());
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        const lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
        ib_order("no_memory=0 no_pinning=1"); /* a driver may lock more than what is registered */
        CHECK(e->api->connect(e->transport, &e->address, &params, &e->conn) == LH_IO);
        CHECK(strstr(check_host_reason(), "fake0 can't make a completion queue of 512 entries") !=
                      NULL &&
                  strstr(check_host_reason(), "; a process may lock 65536 bytes in all") != NULL,
              "%s", check_host_reason());
        ib_order("no_pinning=2");
        e->conn = end_dial(e, &params);
        ib_expect_end(e, LH_IO, "; a process may lock 65536 bytes in all (ulimit -l), with ");
    }
    end_barrier(e);
}

static lh_tuning_t retuned(end_t *e, lh_tuning_t wanted)
{
    lh_tuning_t in_force = {.struct_size = sizeof(in_force)};
    wanted.struct_size = sizeof(wanted);
    CHECK(e->api->retune(e->conn, &wanted, &in_force) == LH_OK);
    return in_force;
}

/* Of one queue pair, and with the pace that is set: a new tuning may go below both, not beyond. */
static void expect_bounds(end_t *e)
{
    enum { PACE = 50000000 };
    static const uint64_t wishes[] = {PACE / 2, 2 * PACE, UINT64_MAX};
    for (uint32_t i = 0; i < 3; i++) {
        const lh_tuning_t paced = retuned(e, (lh_tuning_t){.pace_bytes_per_second = wishes[i]});
        CHECK(paced.pace_bytes_per_second == wishes[i]);
    }
    config_of(e)->pace = PACE;
    for (uint32_t i = 0; i < 3; i++) {
        const lh_tuning_t paced = retuned(e, (lh_tuning_t){.pace_bytes_per_second = wishes[i]});
        CHECK(paced.pace_bytes_per_second == (i == 0 ? wishes[0] : PACE));
    }
    config_of(e)->pace = 0;
    (void)retuned(e, (lh_tuning_t){.pace_bytes_per_second = UINT64_MAX});
    for (uint64_t chunk = 131072; chunk >= 65536; chunk /= 2) {
        const lh_tuning_t wide = retuned(
            e, (lh_tuning_t){.chunk_bytes = chunk, .inflight_bytes = 1 << 30});
        CHECK(wide.inflight_bytes == (IB_RECEIVES - 2) * chunk, "%llu",
              (unsigned long long)wide.inflight_bytes);
    }
}

/* A window that was chosen, and not set: a warning, and what there is room for. */
static void a_window_that_was_chosen_is_cut(end_t *e)
{
    char said[512];
    lh_tuning_t in_force = {.struct_size = sizeof(in_force)};
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted),
                                .streams = 1,
                                .chunk_bytes = 65536,
                                .inflight_bytes = 1 << 30};
    lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
    params.tuning = &wanted;
    end_listen(e, LH_SECURITY_PLAIN);
    ib_join_heard(e, &params, said, sizeof(said));
    CHECK(strstr(said, "a window of 1073741824 bytes is more than 1 queue pairs have receive work "
                       "requests for; 8257536 instead") != NULL,
          "%s", said);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    CHECK(e->api->retune(e->conn, NULL, &in_force) == LH_OK);
    CHECK(in_force.inflight_bytes == (IB_RECEIVES - 2) * 65536, "%llu",
          (unsigned long long)in_force.inflight_bytes);
    expect_bounds(e);
    buffer_t out = buffer_new(e, 16 << 20, false, 0), in = buffer_new(e, 16 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 16, 1 << 20);
    CHECK(ib_count("rnr") == 0);
    end_barrier(e);
}

/* Four were chosen, and its completion queues have entries for two: a warning, and as many as go, whose
 * requests have less room at both ends, though the one that listens would have four. Those that are set are
 * refused (ib_test.c), and so is a window that is. */
static void queue_pairs_that_a_card_has_no_room_for_are_fewer(end_t *e)
{
    enum { WANTED = 20 << 20, CHUNK = 65536, ROOM = 2 * (IB_RECEIVES - 2) * CHUNK };
    char said[1024];
    lh_conn_t *conn;
    lh_tuning_t in_force = {.struct_size = sizeof(in_force)};
    lh_link_stats_t stats = {.struct_size = sizeof(stats)};
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted),
                                .streams = 4,
                                .chunk_bytes = CHUNK,
                                .inflight_bytes = WANTED};
    lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
    params.tuning = &wanted;
    ib_order("cqe_most=1100");
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        config_of(e)->window_bytes = WANTED;
        CHECK(e->api->connect(e->transport, &e->address, &params, &conn) == LH_INVALID);
        CHECK(strstr(check_host_reason(), "window = 20971520: 2 queue pairs with 126 receive work "
                                          "requests each") != NULL,
              "%s", check_host_reason());
        config_of(e)->window_bytes = 0;
    }
    ib_join_heard(e, &params, said, sizeof(said));
    CHECK(e->side == 1 ||
              strstr(said, "fake0 can't make a completion queue of 2048 entries, which 4 queue "
                           "pairs need; 2 queue pairs instead of 4; one of that card has 1100 at "
                           "most") != NULL,
          "%s", said);
    CHECK(strstr(said, "a window of 20971520 bytes is more than 2 queue pairs have receive work "
                       "requests for; 16515072 instead") != NULL,
          "%s", said);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    CHECK(e->api->stats(e->conn, &stats) == LH_OK && stats.paths_up == 2 && stats.paths_down == 0);
    CHECK(e->api->retune(e->conn, NULL, &in_force) == LH_OK && in_force.streams == 2);
    CHECK(in_force.inflight_bytes == ROOM, "%llu", (unsigned long long)in_force.inflight_bytes);
    buffer_t out = buffer_new(e, 16 << 20, false, 0), in = buffer_new(e, 16 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 16, 1 << 20);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

/* Each queue of a queue pair has 140, so that 12 wait beyond those that the peer has credits for, five for each of
 * two queue pairs. */
static void work_requests_that_a_card_has_few_of_are_for_fewer_queue_pairs(end_t *e)
{
    char said[1024];
    lh_conn_t *conn;
    lh_link_stats_t stats = {.struct_size = sizeof(stats)};
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted),
                                .streams = 4,
                                .chunk_bytes = 65536,
                                .inflight_bytes = 4 << 20};
    lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
    params.tuning = &wanted;
    ib_order("wrs_most=140");
    reopen(e);
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        config_of(e)->queue_pairs = 3;
        CHECK(e->api->connect(e->transport, &e->address, &params, &conn) == LH_INVALID);
        CHECK(strstr(check_host_reason(), "a connection of 3 queue pairs, and fake0 has 140 work "
                                          "requests for each queue of one, enough for 2") != NULL,
              "%s", check_host_reason());
        config_of(e)->queue_pairs = 0;
    }
    ib_join_heard(e, &params, said, sizeof(said));
    CHECK(e->side == 1 ||
              strstr(said, "fake0 has 140 work requests for each queue of a queue pair, "
                           "enough for 2 queue pairs; 2 instead of 4") != NULL,
          "%s", said);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    CHECK(e->api->stats(e->conn, &stats) == LH_OK && stats.paths_up == 2 && stats.paths_down == 0);
    buffer_t out = buffer_new(e, 16 << 20, false, 0), in = buffer_new(e, 16 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 16, 1 << 20);
    (void)ib_exchange(e, &out, &in, 256, 8);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
    ib_order("wrs_most=132");
    expect_refusal(
        e, LH_UNSUPPORTED,
        "fake0 has 132 work requests for each queue of a queue pair; expected 133 or more");
    end_barrier(e);
}

/* What a link's figures make of it, and what is set, is what queue pairs are made ready with, at both
 * ends; traffic_class is set to 104. */
static void what_is_chosen_reaches_the_card(end_t *e)
{
    enum { UNKNOWN = 14, FAR = 15, SET = 20, CLASS = 104 };
    const lh_link_t far = {.struct_size = sizeof(far),
                           .scope = LH_LINK_WAN,
                           .round_trip_ns = 30000000,
                           .bytes_per_second = 12500000000};
    lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
    ib_meet(e, LH_SECURITY_PLAIN);
    CHECK(ib_count("ack_timeout") == UNKNOWN && ib_count("traffic_class") == CLASS, "%llu, %llu",
          (unsigned long long)ib_count("ack_timeout"),
          (unsigned long long)ib_count("traffic_class"));
    part(e);
    params.link = &far;
    end_listen(e, LH_SECURITY_PLAIN);
    e->conn = end_join_with(e, &params);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    CHECK(ib_count("ack_timeout") == FAR, "%llu", (unsigned long long)ib_count("ack_timeout"));
    part(e);
    config_of(e)->ack_timeout = SET;
    ib_meet(e, LH_SECURITY_PLAIN);
    CHECK(ib_count("ack_timeout") == SET, "%llu", (unsigned long long)ib_count("ack_timeout"));
    end_barrier(e);
}

/* What may leave at once is two chunks, and one more. */
static void no_more_leaves_than_the_pace_lets_out(end_t *e)
{
    enum { MESSAGES = 8, BYTES = 1 << 18, CHUNK = 65536, PACE = 5000000 };
    end_meet(e);
    buffer_t out = buffer_new(e, MESSAGES * BYTES, false, 0);
    buffer_t in = buffer_new(e, MESSAGES * BYTES, false, 0);
    end_barrier(e);
    const uint64_t begin = check_now_ns();
    (void)ib_exchange(e, &out, &in, MESSAGES, BYTES);
    const double took_s = (double)(check_now_ns() - begin) * 1e-9;
    CHECK(took_s > 0.95 * (MESSAGES * BYTES - 3 * CHUNK) / PACE, "%.3f s", took_s);
    end_barrier(e);
}

/* ---- memory of a device ---- */

typedef struct device_memory {
    char *base; /* where the device has it: the processor can't touch that */
    char *seen; /* the same memory, as the test reaches it */
    uint64_t bytes;
    int fd;
    lh_region_t *region;
} device_memory_t;

/* A memfd stands for the dma-buf. */
static device_memory_t device_memory_new(end_t *e, uint32_t kind, uint64_t bytes)
{
    device_memory_t m = {.bytes = bytes, .fd = memfd_create("device", MFD_CLOEXEC)};
    CHECK(m.fd >= 0 && ftruncate(m.fd, (off_t)(bytes + 8192)) == 0);
    m.base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m.seen = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 8192);
    CHECK(m.base != MAP_FAILED && m.seen != MAP_FAILED);
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = kind,
                              .base = m.base,
                              .bytes = bytes,
                              .fd_offset = 8192,
                              .fd = m.fd,
                              .numa = -1};
    CHECK(e->api->register_memory(e->transport, 0, &arena, &m.region) == LH_OK, "%s",
          check_host_reason());
    return m;
}

static void a_device_s_memory_is_reached_in_place(end_t *e)
{
    static const uint64_t sizes[] = {1, 8, 220, 1024, 100000, 1 << 20};
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), SLOT = 1 << 20 };
    lh_nic_info_t info = {.struct_size = sizeof(info)};
    CHECK(e->api->nic_info(e->transport, 0, &info) == LH_OK &&
          (info.memory_kinds & LH_MEM_CUDA) != 0 && (info.memory_kinds & LH_MEM_DMABUF) != 0);
    ib_meet(e, LH_SECURITY_PLAIN);
    device_memory_t out = device_memory_new(e, LH_MEM_CUDA, SIZES * SLOT),
                    in = device_memory_new(e, LH_MEM_DMABUF, SIZES * SLOT);
    const buffer_t from = {out.base, out.bytes, out.region, -1},
                   to = {in.base, in.bytes, in.region, -1};
    for (uint32_t i = 0; i < SIZES; i++) {
        end_receive(e, &to, i * (uint64_t)SLOT, sizes[i], i, i);
        buffer_fill(out.seen + i * SLOT, sizes[i], i + 100 * e->side);
        end_send(e, &from, i * (uint64_t)SLOT, sizes[i], i, i);
    }
    for (uint32_t i = 0; i < SIZES; i++) {
        (void)end_await(e, LH_WIRE_SENT, i);
        (void)end_await(e, LH_WIRE_RECEIVED, i);
    }
    for (uint32_t i = 0; i < SIZES; i++)
        buffer_check(in.seen + i * SLOT, sizes[i], i + 100 * (1 - e->side));
    end_barrier(e);
}

static void a_device_s_memory_that_can_t_be_reached_is_refused(end_t *e)
{
    lh_nic_info_t info = {.struct_size = sizeof(info)};
    lh_region_t *region;
    lh_arena_t arena = {.struct_size = sizeof(arena),
                        .kind = LH_MEM_CUDA,
                        .base = &info,
                        .bytes = 4096,
                        .fd = -1,
                        .numa = -1};
    CHECK(e->api->register_memory(e->transport, 0, &arena, &region) == LH_UNSUPPORTED);
    CHECK(strstr(check_host_reason(), "without a dma-buf") != NULL, "%s", check_host_reason());
    lh_transport_t *former = e->transport;
    ib_order("no_dmabuf=1");
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK);
    e->api->close(former);
    CHECK(e->api->nic_info(e->transport, 0, &info) == LH_OK && info.memory_kinds == LH_MEM_HOST);
    arena.fd = memfd_create("device", MFD_CLOEXEC);
    CHECK(e->api->register_memory(e->transport, 0, &arena, &region) == LH_UNSUPPORTED);
    CHECK(strstr(check_host_reason(), "fake0 takes no memory of devices: its driver registers no "
                                      "dma-buf") != NULL,
          "%s", check_host_reason());
    (void)close(arena.fd);
    end_barrier(e);
}

/* ---- what two cards agree on ---- */

static void queue_pairs_have_flow_labels_that_differ(end_t *e)
{
    ib_meet(e, LH_SECURITY_PLAIN);
    CHECK(ib_count("labels") == 4, "%llu", (unsigned long long)ib_count("labels"));
    buffer_t out = buffer_new(e, 1 << 20, false, 0), in = buffer_new(e, 1 << 20, false, 0);
    end_barrier(e);
    if (e->side == 0) ib_order("fail_one=2");
    (void)ib_exchange(e, &out, &in, 4, 1 << 18);
    const uint64_t until = check_now_ns() + 20000000000ull;
    while (ib_count("labels") < 5) { /* and so has the one that replaces another */
        CHECK(check_now_ns() < until);
        end_poll(e);
    }
    end_barrier(e);
}

static void enhanced_features_are_those_that_both_have(end_t *e)
{
    static const char *const orders[3][2] = {
        {"ece=7", "ece=13"}, {"ece=7", "ece=0"}, {"ece=0", "ece=7"}};
    for (uint32_t i = 0; i < 3; i++) {
        ib_order(orders[i][e->side]);
        ib_meet(e, LH_SECURITY_KNOWN);
        const uint64_t taken = ib_count("ece_taken");
        CHECK(taken == 5, "round %u: %llu", i,
              (unsigned long long)taken); /* later rounds: none new */
        buffer_t out = buffer_new(e, 1 << 20, false, 0), in = buffer_new(e, 1 << 20, false, 0);
        (void)ib_exchange(e, &out, &in, 4, 1 << 18);
        part(e);
        buffer_free(e, &out);
        buffer_free(e, &in);
    }
}

/* ---- a request that the other end calls invalid ---- */

static void a_request_that_was_invalid_once_is_sent_again(end_t *e)
{
    ib_meet(e, LH_SECURITY_PLAIN);
    buffer_t out = buffer_new(e, 8 << 20, false, 0), in = buffer_new(e, 8 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    end_barrier(e);
    ib_order("invalid=1");
    (void)ib_exchange(e, &out, &in, 8, 1 << 20);
    CHECK(check_host_metric("rdma.replaced") >= 1);
    end_barrier(e);
}

static void a_request_that_stays_invalid_ends_both(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 5000, false, 0);
    end_barrier(e);
    if (e->side == 1) {
        end_receive(e, &b, 0, 5000, 3, 1);
        end_poll(e);
    }
    end_barrier(e);
    if (e->side == 1) ib_order("invalid=1000000");
    end_barrier(e);
    if (e->side == 0) end_send(e, &b, 0, 5000, 3, 1);
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == (e->side == 0 ? LH_IO : LH_PEER_LOST), "status %d: %s", down.status,
          down.reason);
    CHECK(e->side == 1 || strstr(down.reason, "remote invalid request error") != NULL, "%s",
          down.reason);
    end_barrier(e);
}

/* ---- a peer gone wild ---- */

/* Side 1 grants, and a bit of what it writes is changed on the way: side 0 finds it, or its writes are
 * refused. */
static void expect_corrupt_grant(end_t *e, const char *change, const char *words)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 5000, false, 0);
    end_barrier(e);
    if (e->side == 1) {
        ib_order(change);
        end_receive(e, &b, 0, 5000, 3, 1);
    } else {
        end_send(e, &b, 0, 5000, 3, 1);
    }
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    if (e->side == 0)
        CHECK(down.status == LH_CORRUPT && strstr(down.reason, words) != NULL, "status %d: %s",
              down.status, down.reason);
    else
        CHECK(down.status == LH_CORRUPT || down.status == LH_PEER_LOST, "status %d: %s",
              down.status, down.reason);
    CHECK(end_await(e, e->side == 0 ? LH_WIRE_SENT : LH_WIRE_RECEIVED, 1).status == down.status);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    end_barrier(e);
}

#define OF_GRANT " flip_of=48"
_Static_assert(sizeof(ib_grant_t) == 48, "see OF_GRANT");

static void a_grant_of_another_number_is_corrupt(end_t *e)
{
    expect_corrupt_grant(e, "flip=1" OF_GRANT, "grant 0 from rank 1 is none");
}

static void a_grant_of_another_address_is_corrupt(end_t *e)
{
    expect_corrupt_grant(e, "flip=14" OF_GRANT, "refuses what is written where its grants say");
}

static void a_grant_with_another_key_is_corrupt(end_t *e)
{
    expect_corrupt_grant(e, "flip=25" OF_GRANT, "refuses what is written where its grants say");
}

/* Of one queue pair a notice has 16 bytes: frames, and receive work requests. */
static void credits_that_nobody_has_are_corrupt(end_t *e)
{
    expect_corrupt_grant(e, "flip=14 flip_of=16", "gives grants or credits that it can't have");
}

int main(int argc, char **argv)
{
    static const char *const many[] = {"queue_pairs=4", "chunk=64KiB", NULL};
    static const char *const smaller[] = {"mtu=2048", NULL};
    static const char *const class[] = {"traffic_class=104", NULL};
    static const char *const paced[] = {"queue_pairs=2", "chunk=64KiB", "pace=40Mbps", NULL};
    static const fact_t facts[] = {
#define FACT(name, settings) {#name, name, false, settings}
        FACT(a_gid_is_of_the_latest_version_of_roce, NULL),
        FACT(an_address_of_ipv6_has_a_gid_of_its_family, NULL),
        FACT(a_gid_is_chosen_by_row_or_address, NULL),
        FACT(a_row_is_one_of_the_device_with_the_rank_s_address, NULL),
        FACT(a_gid_that_the_port_does_not_have_is_named, NULL),
        FACT(versions_of_roce_that_differ_are_refused, NULL),
        FACT(ports_with_other_versions_of_roce_are_refused, NULL),
        FACT(a_row_is_not_asked_of_a_port_that_is_down, NULL),
        FACT(an_mtu_is_taken_where_the_port_has_it, smaller),
        FACT(a_traffic_class_that_can_t_be_set_is_refused, NULL),
        FACT(memory_that_may_not_be_locked_is_counted, NULL),
        FACT(a_window_that_was_chosen_is_cut, NULL),
        FACT(queue_pairs_that_a_card_has_no_room_for_are_fewer, NULL),
        FACT(work_requests_that_a_card_has_few_of_are_for_fewer_queue_pairs, NULL),
        FACT(what_is_chosen_reaches_the_card, class),
        FACT(no_more_leaves_than_the_pace_lets_out, paced),
        FACT(a_device_s_memory_is_reached_in_place, many),
        FACT(a_device_s_memory_that_can_t_be_reached_is_refused, NULL),
        FACT(queue_pairs_have_flow_labels_that_differ, many),
        FACT(enhanced_features_are_those_that_both_have, many),
        FACT(a_request_that_was_invalid_once_is_sent_again, many),
        FACT(a_request_that_stays_invalid_ends_both, NULL),
        FACT(a_grant_of_another_number_is_corrupt, NULL),
        FACT(a_grant_of_another_address_is_corrupt, NULL),
        FACT(a_grant_with_another_key_is_corrupt, NULL),
        FACT(credits_that_nobody_has_are_corrupt, NULL),
    };
    ib_facts_begin();
    return fact_main("ib", facts, sizeof(facts) / sizeof(facts[0]), argc > 1 ? argv[1] : NULL);
}
