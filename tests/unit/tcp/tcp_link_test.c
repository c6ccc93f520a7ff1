/* Two network namespaces and a cable between them: over IPv4 and IPv6, and what happens when it is
 * cut. With a second cable both have two cards. Needs root; else it is skipped. */
#include "tcp_kit.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char names[2][32];
static uint32_t zero_copy;    /* of both ends of join_over */
static uint64_t buffer_bytes; /* likewise                  */

static int run(const char *fmt, ...)
{
    char command[1024];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(command, sizeof(command), fmt, args);
    va_end(args);
    return system(command);
}

static void enter(int side)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/run/netns/%s", names[side]);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(setns(fd, CLONE_NEWNET), 0);
    (void)close(fd);
}

static int lay_cable(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "lh%d-%d", (int)getpid(), i);
        if (run("ip netns add %s && ip -n %s link set lo up", names[i], names[i]) != 0) return -1;
    }
    if (run("ip -n %s link add cable type veth peer name cable netns %s", names[0], names[1]) != 0)
        return -1;
    for (int i = 0; i < 2; i++)
        if (run("ip -n %s addr add 10.77.0.%d/24 dev cable && "
                "ip -n %s addr add fd77::%d/64 dev cable nodad && ip -n %s link set cable up",
                names[i], i + 1, names[i], i + 1, names[i]) != 0)
            return -1;
    return 0;
}

/* A second one, of cards named `second`: both have networks of their own, with which the tests begin. */
static int lay_two_cables(void **state)
{
    if (lay_cable(state) != 0 || run("ip -n %s link add second type veth peer name second netns %s",
                                     names[0], names[1]) != 0)
        return -1;
    for (int i = 0; i < 2; i++)
        if (run("ip -n %s addr add 10.78.0.%d/24 dev second && ip -n %s link set second up",
                names[i], i + 1, names[i]) != 0)
            return -1;
    return 0;
}

/* The kernel's word that a link is up or down comes a little after it is. */
static void await_link(int side, const char *card, bool up)
{
    assert_int_equal(run("for n in $(seq 200); do ip -n %s link show %s | grep -q 'state UP'; "
                         "test $? = %d && exit 0; sleep 0.05; done; exit 1",
                         names[side], card, up ? 0 : 1),
                     0);
}

static int take_cable_away(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        (void)run("ip netns del %s 2>/dev/null", names[i]);
    return 0;
}

/* Sockets belong to the namespace in which they are made: the listener's, then those that dial. Both
 * have their options. */
static void open_ends(kit_end_t *a, kit_end_t *b, uint32_t security)
{
    a->host.key = b->host.key = 7;
    enter(0);
    kit_open(a, 0);
    assert_int_equal(kit_api->listen(a->transport, 0, security, &a->address, &a->listener), LH_OK);
    enter(1);
    kit_open(b, 1);
}

static void join_over(kit_end_t *a, kit_end_t *b, char *addresses[2], uint64_t streams,
                      uint32_t security)
{
    memset(a, 0, sizeof(*a));
    memset(b, 0, sizeof(*b));
    a->config.bind = addresses[0];
    b->config.bind = addresses[1];
    a->config.zero_copy = b->config.zero_copy = zero_copy;
    a->config.buffer_bytes = b->config.buffer_bytes = buffer_bytes;
    b->config.streams = streams;
    open_ends(a, b, security);
    kit_join(a, b, security);
}

/* The cards of each end, by commas. */
static void join_cards(kit_end_t *a, kit_end_t *b, char *one, char *two)
{
    memset(a, 0, sizeof(*a));
    memset(b, 0, sizeof(*b));
    a->config.nics = one;
    b->config.nics = two;
    for (int side = 0; side < 2; side++) {
        await_link(side, "cable", true);
        await_link(side, "second", true);
    }
    open_ends(a, b, LH_SECURITY_PROVEN);
    kit_join(a, b, LH_SECURITY_PROVEN);
}

static void messages_pass_over_ipv4_and_ipv6_and_interface_names(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static char *binds[][2] = {{"10.77.0.1", "10.77.0.2"},
                               {"fd77::1", "fd77::2"},
                               {"cable", "cable"},
                               {"0.0.0.0", "10.77.0.2"}};
    static uint8_t from[3 << 20], to[3 << 20];
    kit_fill(from, sizeof(from), 2);
    for (size_t i = 0; i < 4; i++) {
        memset(to, 0, sizeof(to));
        join_over(&a, &b, binds[i], 3, LH_SECURITY_PRIVATE);
        lh_link_stats_t stats = {.struct_size = sizeof(stats)};
        assert_int_equal(kit_api->stats(b.conn, &stats), LH_OK);
        assert_int_equal(stats.paths_up, 3);
        assert_int_equal(kit_api->irecv(a.conn, NULL, to, sizeof(to), 1, 1), LH_OK);
        assert_int_equal(kit_api->isend(b.conn, NULL, from, sizeof(from), 1, 1), LH_OK);
        const lh_wire_event_t *got = kit_wait(&a, &b, &a, LH_WIRE_RECEIVED, 0, KIT_PATIENCE_MS);
        assert_non_null(got);
        assert_int_equal(got->status, LH_OK);
        assert_memory_equal(from, to, sizeof(to));
        kit_close(&a);
        kit_close(&b);
    }
}

/* With the cable cut the kernel has all of a message, and nobody has acknowledged it: of a copy that is
 * enough. Pages are given back with the end of the connection, in time. */
static void a_send_from_pages_is_told_when_the_peer_has_it(void **state)
{
    (void)state;
    enum { BYTES = 64 << 10 };
    static kit_end_t a, b;
    static char *binds[2] = {"10.77.0.1", "10.77.0.2"};
    static uint8_t from[BYTES], to[BYTES];
    buffer_bytes = 1 << 20; /* takes the message at once */
    for (zero_copy = KIT_ZERO_NO; zero_copy >= KIT_ZERO_YES; zero_copy--) {
        join_over(&a, &b, binds, 1, LH_SECURITY_PLAIN);
        assert_int_equal(kit_api->irecv(a.conn, NULL, to, BYTES, 1, 1), LH_OK);
        assert_null(kit_wait(&a, &b, &b, LH_WIRE_DOWN, 0, 20)); /* b hears of it */
        assert_int_equal(run("ip -n %s link set cable down", names[0]), 0);
        assert_int_equal(kit_api->isend(b.conn, NULL, from, BYTES, 1, 1), LH_OK);
        const lh_wire_event_t *sent = kit_wait(&b, NULL, &b, LH_WIRE_SENT, 0, 200);
        assert_int_equal(sent == NULL, zero_copy == KIT_ZERO_YES);
        const uint64_t start = kit_now();
        kit_api->cancel(b.conn);
        assert_non_null(kit_wait(&b, NULL, &b, LH_WIRE_DRAINED, 0, KIT_PATIENCE_MS));
        assert_true(kit_now() - start < 500000000u);
        sent = kit_wait(&b, NULL, &b, LH_WIRE_SENT, 0, 0);
        assert_non_null(sent);
        assert_int_equal(sent->status, zero_copy == KIT_ZERO_YES ? LH_CANCELLED : LH_OK);
        kit_close(&a);
        kit_close(&b);
        assert_int_equal(run("ip -n %s link set cable up", names[0]), 0);
        await_link(0, "cable", true);
        await_link(1, "cable", true);
    }
    zero_copy = 0;
    buffer_bytes = 0;
}

/* Without room for the kernel's notes of pages (optmem_max) messages are copied. */
static void where_the_kernel_has_no_room_for_pages_it_copies(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static char *binds[2] = {"10.77.0.1", "10.77.0.2"};
    static uint8_t from[3 << 20], to[3 << 20];
    if (run("ip netns exec %s sh -c 'echo 1 > /proc/sys/net/core/optmem_max' 2>/dev/null",
            names[1]) != 0) {
        print_message("optmem_max is not of a network namespace here\n");
        skip();
    }
    kit_fill(from, sizeof(from), 6);
    zero_copy = KIT_ZERO_YES;
    join_over(&a, &b, binds, 1, LH_SECURITY_PLAIN);
    zero_copy = 0;
    assert_int_equal(kit_api->irecv(a.conn, NULL, to, sizeof(to), 1, 1), LH_OK);
    assert_int_equal(kit_api->isend(b.conn, NULL, from, sizeof(from), 1, 1), LH_OK);
    const lh_wire_event_t *got = kit_wait(&a, &b, &a, LH_WIRE_RECEIVED, 0, KIT_PATIENCE_MS);
    assert_non_null(got);
    assert_int_equal(got->status, LH_OK);
    assert_memory_equal(from, to, sizeof(to));
    assert_non_null(kit_wait(&a, &b, &b, LH_WIRE_SENT, 0, KIT_PATIENCE_MS));
    assert_true(b.host.zero_copies == 0 && b.host.copied == 0);
    kit_close(&a);
    kit_close(&b);
}

/* What others are told to dial, without the port. */
static void told(const char *machine, char *bind, char *advertise, char out[64])
{
    static kit_end_t e;
    memset(&e, 0, sizeof(e));
    e.machine = machine;
    e.config.bind = bind;
    e.config.advertise = advertise;
    kit_open(&e, 0);
    assert_int_equal(kit_api->listen(e.transport, 0, LH_SECURITY_PLAIN, &e.address, &e.listener),
                     LH_OK);
    assert_int_equal(kit_api->address_text(e.transport, &e.address, out, 64), LH_OK);
    assert_true(atoi(strrchr(out, ':') + 1) > 0);
    *strrchr(out, ':') = '\0';
    kit_close(&e);
}

/* The cable is the first interface that is up; the bridge came later. */
static void it_listens_where_the_machine_is_reached(void **state)
{
    char text[64];
    (void)state;
    enter(0);
    assert_int_equal(run("ip -n %s link add bridge type bridge && "
                         "ip -n %s addr add 172.30.0.1/24 dev bridge && "
                         "ip -n %s addr add fd78::1/64 dev bridge nodad && "
                         "ip -n %s link set bridge up",
                         names[0], names[0], names[0], names[0]),
                     0);
    told("172.30.0.1", "auto", NULL, text);
    assert_string_equal(text, "172.30.0.1");
    told("fd78::1", NULL, NULL, text);
    assert_string_equal(text, "[fd78::1]");
    told("172.30.0.1", "0.0.0.0", NULL, text);
    assert_string_equal(text, "172.30.0.1");
    told("172.30.0.1", "10.77.0.1", NULL, text);
    assert_string_equal(text, "10.77.0.1");
    told("127.0.0.1", "auto", NULL, text); /* all are on this machine, though it plays two sites */
    assert_string_equal(text, "127.0.0.1");
    told("", "auto", NULL, text);
    assert_string_equal(text, "10.77.0.1");
    told(NULL, "auto", NULL, text);
    assert_string_equal(text, "127.0.0.1");
}

static void others_dial_what_is_advertised(void **state)
{
    static kit_end_t e;
    char text[64];
    (void)state;
    enter(0);
    told("10.77.0.1", "auto", "192.0.2.7", text);
    assert_string_equal(text, "192.0.2.7");
    told("10.77.0.1", "auto", "other=192.0.2.8, lab=192.0.2.9", text); /* the kit's host is lab */
    assert_string_equal(text, "192.0.2.9");
    told("10.77.0.1", "auto", "other=192.0.2.8", text);
    assert_string_equal(text, "10.77.0.1");

    memset(&e, 0, sizeof(e));
    kit_open(&e, 0); /* gives it a host */
    kit_close(&e);
    static char name[] = "lab=example.org";
    e.config.advertise = name;
    assert_int_equal(kit_api->open(&e.host.api, &e.config, &e.transport), LH_INVALID);
}

/* Bytes that have left by a card, from when it was made. */
static uint64_t sent_by(int side, const char *card)
{
    char line[512], name[32];
    unsigned long long bytes = 0;
    bool found = false;
    enter(side);
    FILE *f = fopen("/proc/net/dev", "re");
    assert_non_null(f);
    while (!found && fgets(line, sizeof(line), f) != NULL)
        found = sscanf(line, " %31[^:]: %*u %*u %*u %*u %*u %*u %*u %*u %llu", name, &bytes) == 2 &&
                strcmp(name, card) == 0;
    (void)fclose(f);
    assert_true(found);
    return bytes;
}

/* Of a connection that has carried `bytes` each way: both cards have had more than `least` of
 * them. */
static void cards_told(const kit_end_t *e, uint64_t bytes, uint64_t least)
{
    lh_card_stats_t rows[3];
    uint64_t sent = 0, received = 0;
    uint32_t count;
    assert_int_equal(kit_api->card_stats(e->conn, rows, sizeof(rows[0]), 3, &count), LH_OK);
    assert_int_equal(count, 2);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(strcmp(rows[i].name, "cable") == 0 || strcmp(rows[i].name, "second") == 0);
        assert_true(rows[i].bytes_sent > least && rows[i].bytes_unsent == 0);
        assert_int_equal(rows[i].paths, 1);
        sent += rows[i].bytes_sent;
        received += rows[i].bytes_received;
    }
    assert_string_not_equal(rows[0].name, rows[1].name);
    assert_true(sent == bytes && received == bytes);
}

/* 8 MiB each way, and at both ends more than `least` of them leave by each of the two cards. */
static void both_cards_carry(kit_end_t *a, kit_end_t *b, uint64_t least)
{
    static uint8_t from[8 << 20], to[2][8 << 20];
    static const char *const cards[] = {"cable", "second"};
    kit_end_t *const ends[] = {a, b};
    uint64_t before[2][2];
    kit_fill(from, sizeof(from), 4);
    memset(to, 0, sizeof(to));
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < 2; i++)
            before[e][i] = sent_by(e, cards[i]);
        assert_int_equal(kit_api->irecv(ends[e]->conn, NULL, to[e], sizeof(from), 1, 1), LH_OK);
    }
    for (int e = 0; e < 2; e++)
        assert_int_equal(kit_api->isend(ends[e]->conn, NULL, from, sizeof(from), 1, 2), LH_OK);
    for (int e = 0; e < 2; e++) {
        const lh_wire_event_t *got = kit_wait(a, b, ends[e], LH_WIRE_RECEIVED, 0, KIT_PATIENCE_MS);
        assert_non_null(got);
        assert_int_equal(got->status, LH_OK);
        assert_memory_equal(from, to[e], sizeof(from));
    }
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < 2; i++) {
            const uint64_t bytes = sent_by(e, cards[i]) - before[e][i];
            print_message("end %d by %s: %.2f MiB\n", e, cards[i], (double)bytes / 1048576);
            assert_true(bytes > least);
        }
    for (int e = 0; e < 2; e++)
        cards_told(ends[e], sizeof(from), least);
}

static void a_connection_goes_over_both_cards(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static char same[] = "cable, second", other[] = "lhother cable";
    char *const lists[] = {same, other};
    /* Of two networks the order does not matter, and a card may have another name beside its own. */
    for (int i = 0; i < 2; i++)
        assert_int_equal(run("ip -n %s link property add dev second altname lhother", names[i]), 0);
    for (int i = 0; i < 2; i++) {
        lh_link_stats_t stats = {.struct_size = sizeof(stats)};
        join_cards(&a, &b, same, lists[i]);
        assert_int_equal(kit_api->stats(b.conn, &stats), LH_OK);
        assert_int_equal(stats.paths_up, 2);
        both_cards_carry(&a, &b, 1 << 20);
        kit_close(&a);
        kit_close(&b);
    }
}

static void set_on_both(const char *name, int value)
{
    for (int side = 0; side < 2; side++)
        assert_int_equal(run("ip netns exec %s sh -c 'for c in all cable second; do "
                             "echo %d > /proc/sys/net/ipv4/conf/$c/%s || exit 1; done'",
                             names[side], value, name),
                         0);
}

static void open_refused(const char *sentence)
{
    static kit_end_t e;
    static char cards[] = "cable, second";
    lh_transport_t *other = NULL;
    memset(&e, 0, sizeof(e));
    enter(0);
    kit_open(&e, 0); /* gives it a host */
    e.config.nics = cards;
    assert_int_equal(kit_api->open(&e.host.api, &e.config, &other), LH_NO_DEVICE);
    assert_string_equal(e.host.reason, sentence);
    kit_close(&e);
}

/* What the kernel would send by the first of them alone. Where either answers for the other it is not to
 * be had. */
static void two_cards_of_one_network_carry_both(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static char cards[] = "cable, second";
    for (int i = 0; i < 2; i++)
        assert_int_equal(run("ip -n %s addr flush dev second && "
                             "ip -n %s addr add 10.77.0.%d/24 dev second",
                             names[i], names[i], i + 3),
                         0);
    await_link(0, "cable", true);
    await_link(0, "second", true);
    set_on_both("rp_filter", 0);
    set_on_both("arp_ignore", 0);
    open_refused(
        "nics: second answers for the address of cable, as both are in one network; expected "
        "net.ipv4.conf.all.arp_ignore = 1 and arp_announce = 2, or a network for each");
    set_on_both("arp_filter", 1); /* with rules for each source either answers for itself alone */
    enter(0);
    memset(&a, 0, sizeof(a));
    a.config.nics = cards;
    kit_open(&a, 0);
    kit_close(&a);
    set_on_both("arp_filter", 0);
    set_on_both("arp_ignore", 1);
    set_on_both("arp_announce", 2);
    join_cards(&a, &b, cards, cards);
    both_cards_carry(&a, &b, 1 << 20);
    kit_close(&a);
    kit_close(&b);
}

static void a_card_that_is_down_or_has_no_address_is_refused(void **state)
{
    (void)state;
    await_link(0, "cable", true);
    await_link(0, "second", true);
    assert_int_equal(run("ip -n %s addr flush dev second", names[0]), 0);
    open_refused("nics: second has no address; expected an interface with an IPv4 or IPv6 one");
    assert_int_equal(run("ip -n %s link set second down", names[1]), 0);
    await_link(0, "second", false);
    open_refused("nics: the link of second is down; expected one that is up");
    assert_int_equal(run("ip -n %s link set second down", names[0]), 0);
    open_refused("nics: second is down; expected an interface that is up");
}

/* Nothing tells which of them a cable joins to which of the peer's. One of them may have no other. */
static void cards_that_are_link_local_alone_are_refused(void **state)
{
    (void)state;
    static kit_end_t e;
    static char cards[] = "cable, second";
    static const char *const both[] = {"cable", "second"};
    await_link(0, "cable", true);
    await_link(0, "second", true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(run("ip -n %s addr flush dev %s && "
                             "ip -n %s addr add fe80::%d/64 dev %s nodad",
                             names[0], both[i], names[0], i + 1, both[i]),
                         0);
    open_refused("nics: cable and second have link-local IPv6 addresses alone, which do not tell "
                 "which of a peer's cards each of them reaches; expected an IPv4 or global IPv6 "
                 "address on all but one");
    assert_int_equal(run("ip -n %s addr add 10.77.0.1/24 dev cable", names[0]), 0);
    enter(0);
    memset(&e, 0, sizeof(e));
    e.config.nics = cards;
    kit_open(&e, 0);
    kit_close(&e);
}

/* The peer's second address goes away before it is dialed. */
static void a_way_that_is_closed_is_named(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static char cards[] = "cable, second";
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    a.config.nics = b.config.nics = cards;
    for (int side = 0; side < 2; side++) {
        await_link(side, "cable", true);
        await_link(side, "second", true);
    }
    open_ends(&a, &b, LH_SECURITY_PLAIN);
    assert_int_equal(run("ip -n %s addr flush dev second", names[0]), 0);
    lh_conn_params_t params = kit_params(&b, 0, LH_SECURITY_PLAIN);
    assert_int_equal(kit_api->connect(b.transport, &a.address, &params, &b.conn), LH_OK);
    const lh_wire_event_t *down = NULL;
    for (const uint64_t end = kit_now() + KIT_PATIENCE_NS; down == NULL && kit_now() < end;) {
        lh_hello_t hello;
        down = kit_wait(&a, &b, &b, LH_WIRE_DOWN, 0, 10);
        if (kit_api->accept(a.listener, &hello, &a.conn) != LH_OK) continue;
        params = kit_params(&a, hello.rank, LH_SECURITY_PLAIN);
        assert_int_equal(kit_api->admit(a.conn, &params), LH_OK);
    }
    assert_non_null(down);
    assert_int_equal(down->status, LH_UNREACHABLE);
    print_message("%s\n", kit_reason(&b, down));
    assert_non_null(strstr(kit_reason(&b, down), ": by second to 10.78.0.1:"));
    kit_close(&a);
    kit_close(&b);
}

/* One pair is idle, another one sends: both ends of both say so in time. */
static void a_cut_cable_is_noticed_within_3500_ms(void **state)
{
    (void)state;
    static kit_end_t ends[4];
    static char *binds[2] = {"10.77.0.1", "10.77.0.2"};
    static uint8_t bytes[32 << 20];
    join_over(&ends[0], &ends[1], binds, 1, LH_SECURITY_PLAIN);
    join_over(&ends[2], &ends[3], binds, 2, LH_SECURITY_PLAIN);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(kit_api->irecv(ends[2].conn, NULL, bytes, sizeof(bytes), i, i), LH_OK);
        assert_int_equal(kit_api->isend(ends[3].conn, NULL, bytes, sizeof(bytes), i, i), LH_OK);
    }
    for (int i = 0; i < 50; i++)
        for (int e = 0; e < 4; e++)
            kit_poll(&ends[e]);
    assert_int_equal(run("ip -n %s link set cable down", names[0]), 0);
    const uint64_t start = kit_now();
    uint64_t polled = start, away = 0; /* away: time that a busy machine kept us from polling */
    bool down[4] = {false};
    for (int left = 4; left > 0 && kit_now() - start < 6000000000u;)
        for (int e = 0; e < 4; e++) {
            const lh_wire_event_t *event = kit_wait(&ends[e], NULL, &ends[e], LH_WIRE_DOWN, 0, 0);
            const uint64_t now = kit_now(), took = now - start;
            if (now - polled > 20000000u) away += now - polled;
            polled = now;
            if (event == NULL || down[e]) continue;
            down[e] = true;
            left--;
            print_message("%s end %d: %.2f s: %s\n", e < 2 ? "idle" : "busy", e, (double)took / 1e9,
                          kit_reason(&ends[e], event));
            assert_true(took - away < 3500000000u);
            assert_int_equal(event->status, LH_PEER_LOST);
            assert_non_null(strstr(kit_reason(&ends[e], event), "on lab"));
        }
    for (int e = 0; e < 4; e++) {
        assert_true(down[e]);
        assert_non_null(kit_wait(&ends[e], NULL, &ends[e], LH_WIRE_DRAINED, 0, KIT_DRAIN_MS));
        kit_close(&ends[e]);
    }
}

int main(void)
{
    if (geteuid() != 0 || system("ip netns list >/dev/null 2>&1") != 0) {
        (void)printf("skipped: network namespaces need root and ip\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_listens_where_the_machine_is_reached, lay_cable,
                                        take_cable_away),
        cmocka_unit_test_setup_teardown(others_dial_what_is_advertised, lay_cable, take_cable_away),
        cmocka_unit_test_setup_teardown(messages_pass_over_ipv4_and_ipv6_and_interface_names,
                                        lay_cable, take_cable_away),
        cmocka_unit_test_setup_teardown(a_send_from_pages_is_told_when_the_peer_has_it, lay_cable,
                                        take_cable_away),
        cmocka_unit_test_setup_teardown(where_the_kernel_has_no_room_for_pages_it_copies, lay_cable,
                                        take_cable_away),
        cmocka_unit_test_setup_teardown(a_connection_goes_over_both_cards, lay_two_cables,
                                        take_cable_away),
        cmocka_unit_test_setup_teardown(two_cards_of_one_network_carry_both, lay_two_cables,
                                        take_cable_away),
        cmocka_unit_test_setup_teardown(a_card_that_is_down_or_has_no_address_is_refused,
                                        lay_two_cables, take_cable_away),
        cmocka_unit_test_setup_teardown(cards_that_are_link_local_alone_are_refused, lay_two_cables,
                                        take_cable_away),
        cmocka_unit_test_setup_teardown(a_way_that_is_closed_is_named, lay_two_cables,
                                        take_cable_away),
        cmocka_unit_test_setup_teardown(a_cut_cable_is_noticed_within_3500_ms, lay_cable,
                                        take_cable_away),
    };
    return kit_load() != 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
