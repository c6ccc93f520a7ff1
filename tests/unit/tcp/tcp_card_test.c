/* tcp_card_test.c - which of several cards streams go over, by a /sys that the test makes; over which
 * addresses they go; and what `nics` refuses. What two cards carry is tcp_link_test.c's. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tcp_card.h"
#include "tcp_kit.h"
#include "tcp_tuning.h"

static char root[] = "/tmp/lh-tcp-card-XXXXXX";

static void put(const char *name, const char *text)
{
    char command[512], path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    (void)snprintf(command, sizeof(command), "mkdir -p \"$(dirname %s)\"", path);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Nodes 0, 1 and 3 of a machine whose node 2 has gone; 3 is nearer to 0 than 1 is. Cards a and c are
 * on node 0, b on 1, d on 3; e is of a board that does not say, f is virtual. */
static int make_machine(void **state)
{
    (void)state;
    if (mkdtemp(root) == NULL) return -1;
    put("devices/system/node/node0/cpulist", "0-3,8-11\n");
    put("devices/system/node/node1/cpulist", "4-5,12\n");
    put("devices/system/node/node3/cpulist", "\n");
    put("devices/system/node/node0/distance", "10 21 12\n");
    put("devices/system/node/node1/distance", "21 10 31\n");
    put("devices/system/node/node3/distance", "12 31 10\n");
    put("class/net/a/device/numa_node", "0\n");
    put("class/net/b/device/numa_node", "1\n");
    put("class/net/c/device/numa_node", "0\n");
    put("class/net/d/device/numa_node", "3\n");
    put("class/net/e/device/numa_node", "-1\n");
    put("class/net/f/mtu", "1500\n");
    return 0;
}

/* Below the root port at 3a:00.0 a switch with an accelerator, 3c:00.0, and two cards, g and h,
 * of which h is the virtual function of one; i is below the root port beside it and on the same
 * node, 1, j is virtio's straight on the root complex. An accelerator without a node stands on
 * the root complex itself. */
static void plug_device(void)
{
#define ROOT "devices/pci0000:3a/"
    static const char *const links[][2] = {
        {ROOT "0000:3a:00.0/0000:3b:00.0/0000:3c:00.0", "bus/pci/devices/0000:3c:00.0"},
        {ROOT "0000:3a:00.0/0000:3b:00.0/0000:3d:00.0", "class/net/g/device"},
        {ROOT "0000:3a:00.0/0000:3b:00.0/0000:3e:00.2", "class/net/h/device"},
        {ROOT "0000:3a:01.0/0000:41:00.0", "class/net/i/device"},
        {ROOT "0000:3a:02.0/virtio3", "class/net/j/device"},
        {ROOT "0000:3a:05.0", "bus/pci/devices/0000:3a:05.0"},
    };
    for (uint32_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        char name[256], to[256], command[1024];
        (void)snprintf(name, sizeof(name), "%s/numa_node", links[i][0]);
        put(name, i < 4 ? "1\n" : "-1\n");
        (void)snprintf(name, sizeof(name), "%s/%s", root, links[i][1]);
        (void)snprintf(to, sizeof(to), "%s/%s", root, links[i][0]);
        (void)snprintf(command, sizeof(command), "mkdir -p \"$(dirname %s)\" && ln -sfn %s %s",
                       name, to, name);
        assert_int_equal(system(command), 0);
    }
#undef ROOT
}

static int remove_machine(void **state)
{
    char command[64];
    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

static void only_what_has_a_device_is_a_card(void **state)
{
    (void)state;
    assert_true(card_is_real(root, "a"));
    assert_true(card_is_real(root, "e"));
    assert_false(card_is_real(root, "f"));
    assert_false(card_is_real(root, "lo"));
    assert_false(card_is_real("/sys", "lo"));
}

static int32_t node_of(const char *numbers)
{
    cpu_set_t own;
    CPU_ZERO(&own);
    for (char *at = (char *)(uintptr_t)numbers; *at != '\0';)
        CPU_SET(strtoul(at, &at, 10), &own);
    return cards_own_node(root, &own);
}

static void a_process_is_on_the_node_that_has_all_of_its_processors(void **state)
{
    (void)state;
    assert_int_equal(node_of("0"), 0);
    assert_int_equal(node_of("3 8 11"), 0);
    assert_int_equal(node_of("4 5 12"), 1);
    assert_int_equal(node_of("12"), 1);
    assert_int_equal(node_of("3 4"), -1);
    assert_int_equal(node_of("6"), -1); /* of no node */
    assert_int_equal(node_of(""), -1);
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(0, &own);
    assert_int_equal(cards_own_node("/nowhere", &own), -1);
}

/* names, one a letter: which of them are nearest, and then the others. */
static void nearest_to(const card_from_t *from, const char *names, const char *nearest,
                       const char *others)
{
    card_t cards[CARDS_MOST];
    char text[CARDS_MOST + 1] = "", expected[CARDS_MOST + 1];
    const uint32_t count = (uint32_t)strlen(names);
    memset(cards, 0, sizeof(cards));
    for (uint32_t i = 0; i < count; i++)
        cards[i].name[0] = names[i];
    assert_int_equal(cards_nearest(root, from, cards, count), strlen(nearest));
    for (uint32_t i = 0; i < count; i++)
        text[i] = cards[i].name[0];
    (void)snprintf(expected, sizeof(expected), "%s%s", nearest, others);
    assert_string_equal(text, expected);
}

/* To a node's processors. */
static void nearest_are(int32_t own, const char *names, const char *nearest, const char *others)
{
    const card_from_t from = {.node = own};
    nearest_to(&from, names, nearest, others);
}

/* As the host tells it, by a process that may run on the processors of node 0 alone. */
static void from_device(const char *told, card_from_t *out)
{
    lh_world_t world = {.struct_size = sizeof(world)};
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(0, &own);
    (void)snprintf(world.device, sizeof(world.device), "%s", told);
    cards_from(root, &world, &own, out);
}

static void the_nearest_cards_are_used_in_the_order_of_the_list(void **state)
{
    (void)state;
    nearest_are(0, "abc", "ac", "b");
    nearest_are(0, "cba", "ca", "b");
    nearest_are(1, "abc", "b", "ac");
    nearest_are(0, "bd", "d", "b"); /* 12 and 21: the column is not the node's number */
    nearest_are(1, "ad", "a", "d");
    nearest_are(3, "bca", "ca", "b");
    nearest_are(0, "b", "b", "");
    nearest_are(2, "ab", "ab", ""); /* a node without a table is as far from all others */
}

static void what_says_no_node_counts_as_near(void **state)
{
    (void)state;
    nearest_are(0, "ebaf", "eaf", "b");
    nearest_are(1, "eaf", "ef", "a");
    nearest_are(-1, "abcdef", "abcdef", "");
}

static void cards_below_the_devices_root_port_are_nearest(void **state)
{
    (void)state;
    card_from_t from;
    plug_device();
    from_device("0000:3C:00.0", &from); /* as NVIDIA's driver writes it */
    assert_string_equal(from.device, "0000:3c:00.0");
    assert_int_equal(from.node, 1);
    nearest_to(&from, "ighb", "gh", "ib"); /* i and b are on its node */
    nearest_to(&from, "iba", "ib", "a");
    nearest_to(&from, "da", "a", "d"); /* 21 and 31 */
    nearest_to(&from, "fg", "g", "f"); /* what says nothing is on its node, no nearer */
    nearest_to(&from, "jif", "jif", "");
    from_device("0000:3a:05.0", &from); /* below no port, and of a board that tells no nodes */
    assert_int_equal(from.node, -1);
    nearest_to(&from, "gia", "gia", "");
}

static void a_device_that_is_not_known_leaves_it_to_the_processors(void **state)
{
    (void)state;
    static const char *const told[] = {"", "0000:99:00.0", "../../../etc", "GPU 0"};
    card_from_t from;
    plug_device();
    for (uint32_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        from_device(told[i], &from);
        assert_string_equal(from.device, "");
        assert_int_equal(from.node, 0);
        nearest_to(&from, "gab", "a", "gb");
    }
    /* A host from before there was such a field. */
    lh_world_t older = {.struct_size = offsetof(lh_world_t, device), .device = "0000:3c:00.0"};
    cards_from(root, &older, NULL, &from);
    assert_string_equal(from.device, "");
    assert_int_equal(from.node, -1);
}

static void place(place_t *p, const char *address, uint32_t bits)
{
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)&p->address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)&p->address;
    memset(p, 0, sizeof(*p));
    p->network_bits = bits;
    p->length = sizeof(*four);
    four->sin_family = AF_INET;
    if (inet_pton(AF_INET, address, &four->sin_addr) == 1) return;
    p->length = sizeof(*six);
    six->sin6_family = AF_INET6;
    assert_int_equal(inet_pton(AF_INET6, address, &six->sin6_addr), 1);
}

/* Ways of the streams from 0 on, as "ours-theirs" by number: theirs are told apart by their ports. */
static void ways_are(const lh_transport_t *t, const lh_address_t *there, const char *expected)
{
    char ways[128] = "";
    for (uint32_t i = 0; i < (strlen(expected) + 1) / 4; i++) {
        struct sockaddr_storage to;
        socklen_t length;
        const place_t *from = address_way(t, there, i, &to, &length);
        assert_non_null(from);
        /* Both families have the port at the same place. */
        const uint16_t port = ntohs(((const struct sockaddr_in *)(const void *)&to)->sin_port);
        const size_t at = strlen(ways);
        (void)snprintf(ways + at, sizeof(ways) - at, "%s%u-%u", i > 0 ? " " : "",
                       (unsigned)(from - t->here), port);
    }
    assert_string_equal(ways, expected);
}

static void there_is(lh_transport_t *t, lh_address_t *there, const char *const *addresses)
{
    memset(there, 0, sizeof(*there));
    for (uint16_t i = 0; addresses[i] != NULL; i++) {
        place_t p;
        place(&p, addresses[i], 0);
        ((struct sockaddr_in *)(void *)&p.address)->sin_port = htons(i);
        assert_int_equal(address_publish(t, &p.address, there), LH_OK);
    }
}

static void streams_take_cards_in_turn_and_stay_in_their_networks(void **state)
{
    (void)state;
    static const lh_world_t world = {.struct_size = sizeof(world), .size = 2};
    static const lh_host_t host = {.struct_size = sizeof(host), .world = &world};
    static lh_transport_t t = {.host = &host, .here_count = 2};
    static lh_address_t there;
    place(&t.here[0], "10.1.0.1", 24);
    place(&t.here[1], "10.2.0.1", 24);
    there_is(&t, &there, (const char *const[]){"10.1.0.9", "10.2.0.9", NULL});
    assert_int_equal(address_count(&there), 2);
    ways_are(&t, &there, "0-0 1-1 0-0 1-1");
    there_is(&t, &there, (const char *const[]){"10.2.0.9", "10.1.0.9", NULL}); /* another order */
    ways_are(&t, &there, "0-1 1-0 0-1 1-0");
    there_is(&t, &there, (const char *const[]){"10.1.0.9", NULL}); /* one is routed to */
    ways_are(&t, &there, "0-0 1-0 0-0");
    there_is(&t, &there, (const char *const[]){"10.8.0.9", "10.9.0.9", NULL});
    ways_are(&t, &there, "0-0 1-1 0-0");
    there_is(&t, &there, (const char *const[]){"fd00::9", "10.2.0.9", "10.9.0.9", NULL});
    ways_are(&t, &there, "0-1 1-1 0-1 1-1");
    there_is(&t, &there, /* the peer has two cards in each network, and all are taken */
             (const char *const[]){"10.1.0.8", "10.1.0.9", "10.2.0.8", "10.2.0.9", NULL});
    ways_are(&t, &there, "0-0 1-2 0-1 1-3 0-0");
    place(&t.here[1], "10.1.0.2", 24);
    there_is(&t, &there, (const char *const[]){"10.1.0.7", "10.1.0.8", "10.1.0.9", NULL});
    ways_are(&t, &there, "0-0 1-1 0-2 1-0 0-1 1-2");
    there_is(&t, &there, (const char *const[]){"10.1.0.8", "10.1.0.9", NULL}); /* one network */
    ways_are(&t, &there, "0-0 1-1 0-0 1-1");
    t.here_count = 1;
    ways_are(&t, &there, "0-0 0-1 0-0");
    there_is(&t, &there, (const char *const[]){"fd00::9", NULL});
    ways_are(&t, &there, "0-0 0-0");
    there.length += 1;
    struct sockaddr_storage to;
    socklen_t length;
    assert_null(address_way(&t, &there, 0, &to, &length));
}

/* Of these addresses, whose cards have their numbers as names: "0 1" are the first two that are link-local
 * alone, "" says that there are no two. */
static void local_are(const char *const *addresses, const char *expected)
{
    static lh_transport_t t;
    const place_t *two[2] = {NULL, NULL};
    char text[160] = "";
    for (t.here_count = 0; addresses[t.here_count] != NULL; t.here_count++) {
        place_t *p = &t.here[t.here_count];
        place(p, addresses[t.here_count], 64);
        (void)snprintf(p->name, sizeof(p->name), "%u", t.here_count);
    }
    if (cards_local(&t, two))
        (void)snprintf(text, sizeof(text), "%s %s", two[0]->name, two[1]->name);
    assert_string_equal(text, expected);
}

static void two_cards_that_are_link_local_alone_are_seen(void **state)
{
    (void)state;
    local_are((const char *const[]){"fe80::1", "fe80::2", NULL}, "0 1");
    local_are((const char *const[]){"10.1.0.1", "fe80::1", "fd00::1", "febf::1", "fe80::2", NULL},
              "1 3");
    local_are((const char *const[]){"fe80::1", "10.1.0.1", "fec0::1", NULL}, "");
    local_are((const char *const[]){"254.128.0.1", "254.128.0.2", NULL}, ""); /* 0xfe80 as IPv4 */
    local_are((const char *const[]){"fe80::1", NULL}, "");
}

static uint32_t streams_of(uint32_t scope, uint32_t cards, uint64_t asked, uint32_t wanted)
{
    const limits_t limits = {.budget = UINT64_MAX, .bbr = true, .window = 1 << 30, .cards = cards};
    const tcp_config_t config = {.streams = asked};
    const lh_link_t link = {.scope = scope};
    const lh_tuning_t tuning = {.streams = wanted};
    lh_tuning_t out = {0};
    tuning_choose(&config, &link, &tuning, &limits, &out);
    return out.streams;
}

static void every_card_has_as_many_streams(void **state)
{
    (void)state;
    assert_int_equal(streams_of(LH_LINK_SITE, 1, 0, 0), 1);
    assert_int_equal(streams_of(LH_LINK_SITE, 2, 0, 0), 2);
    assert_int_equal(streams_of(LH_LINK_NODE, 2, 0, 0), 1);
    assert_int_equal(streams_of(LH_LINK_WAN, 2, 0, 0), 4);
    assert_int_equal(streams_of(LH_LINK_WAN, 3, 0, 0), 6);
    assert_int_equal(streams_of(LH_LINK_WAN, 8, 0, 2), 8);
    assert_int_equal(streams_of(LH_LINK_WAN, 2, 5, 0), 5);
    assert_int_equal(streams_of(LH_LINK_WAN, 3, 0, 64), 63); /* 66 are too many */
}

/* Of a connection that an end with so many cards dials to one with so many, each card in a network of its
 * own. */
static void streams_to(uint32_t own, uint32_t others, uint32_t wanted, uint32_t expected)
{
    static const lh_world_t world = {.struct_size = sizeof(world), .size = 2};
    static const lh_host_t host = {.struct_size = sizeof(host), .world = &world};
    static const char *const addresses[] = {"10.9.0.1", "10.9.1.1", "10.9.2.1", "10.9.3.1",
                                            "10.9.4.1", "10.9.5.1", "10.9.6.1", "10.9.7.1"};
    const char *list[CARDS_MOST + 1] = {NULL};
    const tcp_config_t config = {.streams = 0};
    uint32_t over[2][CARDS_MOST] = {{0}};
    lh_transport_t *t = calloc(1, sizeof(*t));
    lh_conn_t *c = calloc(1, sizeof(*c));
    assert_true(t != NULL && c != NULL);
    t->host = &host;
    t->config = &config;
    t->here_count = own;
    t->limits = (limits_t){.budget = UINT64_MAX, .bbr = true, .window = 1 << 30, .cards = own};
    for (uint32_t i = 0; i < own; i++) {
        place(&t->here[i], addresses[i], 24);
        ((struct sockaddr_in *)(void *)&t->here[i].address)->sin_addr.s_addr ^= htonl(1u << 16);
    }
    for (uint32_t i = 0; i < others; i++)
        list[i] = addresses[i];
    there_is(t, &c->address, list);
    c->transport = t;
    c->link.scope = LH_LINK_SITE;
    c->wanted.streams = wanted;
    conn_tune(c, -1);
    assert_int_equal(c->tuning.streams, expected);
    for (uint32_t i = 0; i < expected; i++) {
        struct sockaddr_storage to;
        socklen_t length;
        const place_t *from = address_way(t, &c->address, i, &to, &length);
        assert_non_null(from);
        over[0][from - t->here]++;
        over[1][ntohs(((const struct sockaddr_in *)(const void *)&to)->sin_port)]++;
    }
    for (uint32_t i = 0; i < own; i++)
        assert_int_equal(over[0][i], expected / own);
    for (uint32_t i = 0; i < others; i++)
        assert_int_equal(over[1][i], expected / others);
    free(c);
    free(t);
}

static void every_card_of_both_ends_has_as_many_streams(void **state)
{
    (void)state;
    streams_to(1, 1, 3, 3);
    streams_to(2, 2, 0, 2);
    streams_to(2, 3, 0, 6);
    streams_to(3, 2, 0, 6);
    streams_to(4, 6, 0, 12);
    streams_to(4, 6, 13, 24);
    streams_to(1, 8, 0, 8);
    streams_to(7, 8, 0, 56);
    streams_to(7, 8, 60, 56); /* twice as many are more than a connection can have */
    streams_to(5, 8, 64, 40);
}

/* Two of three streams go over the second card; the fourth is not there yet. */
static void what_goes_over_a_card_is_counted(void **state)
{
    (void)state;
    static stream_t streams[3] = {
        {.card = 1, .sent = 100, .received = 7, .retransmitted = 2, .trip_min_ns = 5000},
        {.card = 0, .sent = 10, .received = 8},
        {.card = 1, .sent = 1000, .received = 9, .retransmitted = 3, .trip_min_ns = 4000},
    };
    struct { /* of a host that knows more */
        lh_card_stats_t row;
        uint64_t more;
    } rows[3];
    lh_transport_t *t = calloc(1, sizeof(*t));
    lh_conn_t *c = calloc(1, sizeof(*c));
    assert_true(t != NULL && c != NULL);
    memset(rows, 0xff, sizeof(rows));
    t->here_count = 2;
    (void)snprintf(t->here[0].name, sizeof(t->here[0].name), "eth0");
    (void)snprintf(t->here[1].name, sizeof(t->here[1].name), "eth1");
    c->transport = t;
    c->stream_count = 4;
    for (uint32_t i = 0; i < 3; i++)
        c->streams[i] = &streams[i];
    assert_int_equal(cards_stats(c, &rows[0].row, sizeof(rows[0]), 3), 2);
    assert_string_equal(rows[0].row.name, "eth0");
    assert_true(rows[0].row.bytes_sent == 10 && rows[0].row.bytes_received == 8);
    assert_true(rows[0].row.paths == 1 && rows[0].row.round_trip_min_ns == 0);
    assert_string_equal(rows[1].row.name, "eth1");
    assert_true(rows[1].row.bytes_sent == 1100 && rows[1].row.bytes_received == 16);
    assert_true(rows[1].row.bytes_retransmitted == 5 && rows[1].row.paths == 2);
    assert_true(rows[1].row.round_trip_min_ns == 4000);
    assert_true(rows[0].more == 0 && rows[1].more == 0 && rows[2].more == UINT64_MAX);
    assert_int_equal(cards_stats(c, &rows[0].row, sizeof(rows[0]), 1), 1);
    t->here_count = 1; /* stats tells of it */
    assert_int_equal(cards_stats(c, &rows[0].row, sizeof(rows[0]), 3), 0);
    free(c);
    free(t);
}

/* The tuning that is offered is the one that a connection would have. */
static void fewer_streams_are_still_as_many_a_card(void **state)
{
    (void)state;
    const tcp_config_t config = {.congestion = "auto"};
    lh_transport_t *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    t->config = &config;
    t->limits = (limits_t){.budget = UINT64_MAX, .bbr = true, .window = 1 << 30};
    for (t->limits.cards = 1; t->limits.cards <= 4; t->limits.cards++) {
        const lh_link_t link = {.scope = LH_LINK_WAN, .bytes_per_second = 1 << 27};
        lh_tuning_t first = {0}, other = {0};
        bool fewer = false;
        assert_true(tuning_offer(t, &link, 0, &first));
        for (uint32_t i = 1; tuning_offer(t, &link, i, &other); i++) {
            assert_int_equal(other.streams % t->limits.cards, 0);
            fewer |= other.streams < first.streams;
        }
        assert_int_equal(fewer, t->limits.cards != 4); /* 4, 4, 6 and 4 streams */
    }
    free(t);
}

/* Without CAP_NET_RAW from Linux 5.7 on. */
static bool loopback_binds(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    const bool binds = socket_bind_card(fd, "lo");
    (void)close(fd);
    if (!binds) print_message("no socket can be bound to a card here\n");
    return binds;
}

static char *writable(const char *text, char out[64])
{
    (void)snprintf(out, 64, "%s", text);
    return out;
}

static void refused(const kit_config_t *config, lh_status_t status, const char *found,
                    const char *expected)
{
    static kit_end_t e;
    lh_transport_t *other = NULL;
    memset(&e, 0, sizeof(e));
    kit_open(&e, 0); /* gives it a host */
    e.config = *config;
    assert_int_equal(kit_api->open(&e.host.api, &e.config, &other), status);
    if (strstr(e.host.reason, found) == NULL || strstr(e.host.reason, expected) == NULL)
        fail_msg("\"%s\" has no \"%s\" or no \"%s\"", e.host.reason, found, expected);
    kit_close(&e);
}

static void what_is_no_card_is_refused_with_what_there_is(void **state)
{
    (void)state;
    char one[64], two[64];
    if (!loopback_binds()) skip();
    const char *const absent[] = {"lhnone0", "lo, lhnone0", "a-name-that-is-too-long-for-linux",
                                  NULL};
    for (uint32_t i = 0; absent[i] != NULL; i++)
        refused(&(kit_config_t){.nics = writable(absent[i], one)}, LH_NO_DEVICE,
                "no network interface ", "expected some of ");
    refused(&(kit_config_t){.nics = writable("lo,lo", one)}, LH_INVALID, "lo twice", "");
    refused(&(kit_config_t){.nics = writable(" , ", one)}, LH_INVALID, "nics =  , ",
            "expected names");
    refused(&(kit_config_t){.nics = writable("lo", one), .bind = writable("127.0.0.1", two)},
            LH_INVALID, "bind = 127.0.0.1 and nics = lo", "expected one of them");
    refused(&(kit_config_t){.nics = writable("lo", one), .advertise = writable("192.0.2.1", two)},
            LH_INVALID, "advertise = 192.0.2.1", "expected one of them");
}

/* The loopback stands for a card; both ends are on this machine. */
static void messages_pass_over_a_card_that_is_named(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static uint8_t from[1 << 20], to[1 << 20];
    char names[2][64];
    lh_nic_info_t info = {.struct_size = sizeof(info)};
    if (!loopback_binds()) skip();
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    a.config.nics = writable("lo", names[0]);
    b.config.nics = writable("lo", names[1]);
    a.host.key = b.host.key = 7;
    kit_fill(from, sizeof(from), 9);
    kit_open(&a, 0);
    kit_open(&b, 1);
    kit_join(&a, &b, LH_SECURITY_PRIVATE);
    assert_int_equal(kit_api->nic_info(a.transport, 0, &info), LH_OK);
    assert_string_equal(info.name, "lo");
    assert_int_equal(kit_api->irecv(a.conn, NULL, to, sizeof(to), 1, 1), LH_OK);
    assert_int_equal(kit_api->isend(b.conn, NULL, from, sizeof(from), 1, 1), LH_OK);
    const lh_wire_event_t *got = kit_wait(&a, &b, &a, LH_WIRE_RECEIVED, 0, KIT_PATIENCE_MS);
    assert_non_null(got);
    assert_int_equal(got->status, LH_OK);
    assert_memory_equal(from, to, sizeof(to));
    kit_close(&a);
    kit_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_has_a_device_is_a_card),
        cmocka_unit_test(a_process_is_on_the_node_that_has_all_of_its_processors),
        cmocka_unit_test(the_nearest_cards_are_used_in_the_order_of_the_list),
        cmocka_unit_test(what_says_no_node_counts_as_near),
        cmocka_unit_test(cards_below_the_devices_root_port_are_nearest),
        cmocka_unit_test(a_device_that_is_not_known_leaves_it_to_the_processors),
        cmocka_unit_test(streams_take_cards_in_turn_and_stay_in_their_networks),
        cmocka_unit_test(two_cards_that_are_link_local_alone_are_seen),
        cmocka_unit_test(every_card_has_as_many_streams),
        cmocka_unit_test(every_card_of_both_ends_has_as_many_streams),
        cmocka_unit_test(fewer_streams_are_still_as_many_a_card),
        cmocka_unit_test(what_goes_over_a_card_is_counted),
        cmocka_unit_test(what_is_no_card_is_refused_with_what_there_is),
        cmocka_unit_test(messages_pass_over_a_card_that_is_named),
    };
    return kit_load() != 0 ? 1 : cmocka_run_group_tests(tests, make_machine, remove_machine);
}
