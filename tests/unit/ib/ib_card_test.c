/* ib_card_test.c - what the ib transport tells of cards: of a tree laid out as the kernel lays out
 * /sys for a ConnectX card, with an accelerator on each of two NUMA nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ib_card.h"

static char root[64], card[128];

static void put(const char *path, const char *text)
{
    char whole[512], *at = whole;
    (void)snprintf(whole, sizeof(whole), "%s/%s", root, path);
    while ((at = strchr(at + 1, '/')) != NULL) {
        *at = '\0';
        (void)mkdir(whole, 0700);
        *at = '/';
    }
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static int make_tree(void **state)
{
    char from[256];
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/ib_card.XXXXXX");
    assert_non_null(mkdtemp(root));
    (void)snprintf(card, sizeof(card), "%s/class/infiniband/mlx5_0", root);
#define PCI "devices/pci0000:3a/0000:3a:00.0/"
    put(PCI "0000:3b:00.0/numa_node", "1\n");
    put("bus/pci/devices/0000:17:00.0/class", "0x030200\n");
    put("bus/pci/devices/0000:17:00.0/vendor", "0x10de\n");
    put("bus/pci/devices/0000:17:00.0/numa_node", "0\n");
    put("bus/pci/devices/0000:5d:00.0/class", "0x120000\n");
    put("bus/pci/devices/0000:5d:00.0/vendor", "0x1002\n");
    put("bus/pci/devices/0000:5d:00.0/numa_node", "1\n");
    put("bus/pci/devices/0000:02:00.0/class", "0x030000\n"); /* a server's screen */
    put("bus/pci/devices/0000:02:00.0/vendor", "0x1a03\n");
    put("bus/pci/devices/0000:02:00.0/numa_node", "0\n");
    put("devices/system/node/node1/distance", "32 10\n");
    put("class/infiniband/mlx5_0/fw_ver", "28.39.1002\n");
    put("class/infiniband/rxe0/parent", "eth0\n");
#define PORT "class/infiniband/mlx5_0/ports/1/"
    put(PORT "gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n");
    put(PORT "gids/1", "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n");
    put(PORT "gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    put(PORT "gids/3", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
    put(PORT "gid_attrs/types/0", "IB/RoCE v1\n");
    put(PORT "gid_attrs/types/1", "RoCE v2\n");
    put(PORT "gid_attrs/types/3", "RoCE v2\n");
    put(PORT "gid_attrs/ndevs/3", "ens1f0\n");
    put(PORT "hw_counters/roce_adp_retrans", "12\n");
    put(PORT "hw_counters/out_of_sequence", "0\n");
    put(PORT "counters/symbol_error", "3\n");
    (void)snprintf(from, sizeof(from), "%s/device", card);
    return symlink("../../../" PCI "0000:3b:00.0", from);
}

static int drop_tree(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

static void add_line(void *context, const char *text)
{
    char *all = context;
    (void)snprintf(all + strlen(all), 2048 - strlen(all), "%s\n", text);
}

static void a_card_is_told_of_line_by_line(void **state)
{
    const verbs_port_t port = {.state = VERBS_PORT_ACTIVE,
                               .mtu = 5,
                               .gids = 8,
                               .width = 2,
                               .speed = 32,
                               .link_layer = VERBS_LINK_ETHERNET};
    char all[2048] = "";
    (void)state;
    ib_card_tell(card, "mlx5_0", 1, &port, add_line, all);
    assert_string_equal(
        all, "mlx5_0 port 1: active, 100 Gb/s, MTU 4096, Ethernet (RoCE), firmware "
             "28.39.1002, at 0000:3b:00.0, NUMA node 1\n"
             "  counters of mlx5_0 port 1: roce_adp_retrans 12, symbol_error 3, 0 in the "
             "rest (1)\n"
             "  NUMA distance: 32 to 0000:17:00.0, 10 to 0000:5d:00.0\n"
             "  GID 0: fe80::202:c9ff:fe00:1, RoCE v1\n"
             "  GID 1: fe80::202:c9ff:fe00:1, RoCE v2\n"
             "  GID 3: ::ffff:10.77.0.1, RoCE v2, of ens1f0\n");
}

static void what_a_driver_does_not_tell_is_left_out(void **state)
{
    const verbs_port_t port = {.state = 1, .link_layer = VERBS_LINK_INFINIBAND, .gids = 8};
    char all[2048] = "";
    (void)state;
    ib_card_tell("", "fake0", 2, &port, add_line, all);
    assert_string_equal(all, "fake0 port 2: down, InfiniBand\n");
    assert_int_equal(ib_card_numa(""), -1);
    assert_true(ib_card_counter("", 1, "roce_adp_retrans") == UINT64_MAX);
    assert_true(ib_card_counter(card, 1, "nothing") == UINT64_MAX);
    assert_int_equal(ib_card_counter(card, 1, "roce_adp_retrans"), 12);
    assert_int_equal(ib_card_counter(card, 1, "symbol_error"), 3);
}

/* Soft-RoCE has 128 packets of a queue pair under way; of others nothing is known. */
static void what_one_queue_pair_has_under_way_is_known_of_soft_roce(void **state)
{
    char soft[256];
    (void)state;
    (void)snprintf(soft, sizeof(soft), "%s/class/infiniband/rxe0", root);
    assert_int_equal(ib_card_pair_bytes(soft, 5), 524288);
    assert_int_equal(ib_card_pair_bytes(soft, 3), 131072);
    assert_int_equal(ib_card_pair_bytes(card, 5), 0);
    assert_int_equal(ib_card_pair_bytes("", 5), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_is_told_of_line_by_line),
        cmocka_unit_test(what_a_driver_does_not_tell_is_left_out),
        cmocka_unit_test(what_one_queue_pair_has_under_way_is_known_of_soft_roce),
    };
    return cmocka_run_group_tests(tests, make_tree, drop_tree);
}
