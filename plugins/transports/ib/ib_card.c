/* ib_card.c - see ib_card.h. The kernel's files are small and each holds one figure; what can't be
 * read is left out, as every driver has another choice of them. */
#include "ib_card.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <longhaul/line.h>

#include "ib_tuning.h"

enum { WORD = 128, PORTS_MOST = 8 };

/* What tells of loss and of timers, in the order of their weight: of ConnectX' firmware, of
 * soft-RoCE, and of every port. */
static const char *const counters[] = {
    "roce_adp_retrans",        "roce_adp_retrans_to", "local_ack_timeout_err",
    "out_of_sequence",         "packet_seq_err",      "implied_nak_seq_err",
    "rnr_nak_retry_err",       "roce_slow_restart",   "roce_slow_restart_cnps",
    "roce_slow_restart_trans", "np_cnp_sent",         "rp_cnp_handled",
    "out_of_seq_request",      "rcvd_seq_err",        "completer_retry_err",
    "retry_exceeded_err",      "rcvd_rnr_err",        "symbol_error",
    "port_rcv_errors",         "port_xmit_discards",  "link_downed",
};

/* The first line of FOLDER/NAME, without its end. False: there is none. */
static bool read_word(const char *folder, const char *name, char out[WORD])
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    out[0] = '\0';
    if (folder[0] == '\0' || length < 0 || (size_t)length >= sizeof(path)) return false;
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    const bool read = fgets(out, WORD, f) != NULL; /* of an empty GID the kernel refuses the type */
    (void)fclose(f);
    if (!read) out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return read;
}

uint64_t ib_card_counter(const char *folder, uint32_t port, const char *name)
{
    static const char *const places[] = {"hw_counters", "counters"};
    char path[WORD], word[WORD];
    for (uint32_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        (void)snprintf(path, sizeof(path), "ports/%u/%s/%s", port, places[i], name);
        char *end;
        if (!read_word(folder, path, word)) continue;
        const uint64_t value = strtoull(word, &end, 10);
        if (end != word) return value;
    }
    return UINT64_MAX;
}

int32_t ib_card_numa(const char *folder)
{
    char word[WORD];
    return read_word(folder, "device/numa_node", word) ? (int32_t)strtol(word, NULL, 10) : -1;
}

void ib_card_bus(const char *folder, char *out, size_t room)
{
    char path[PATH_MAX], target[PATH_MAX];
    out[0] = '\0';
    const int length = snprintf(path, sizeof(path), "%s/device", folder);
    if (folder[0] == '\0' || length < 0 || (size_t)length >= sizeof(path)) return;
    if (realpath(path, target) == NULL) return;
    const char *last = strrchr(target, '/') + 1;
    if (strchr(last, ':') != NULL) (void)snprintf(out, room, "%s", last);
}

/* Linux's soft-RoCE has 128 packets of a queue pair unacknowledged at most (rxe_param.h:
 * RXE_MAX_UNACKED_PSNS), whatever its link is like. It alone names its interface in `parent`. */
uint64_t ib_card_pair_bytes(const char *folder, uint32_t mtu)
{
    enum { SOFT_PACKETS = 128 };
    char interface[WORD];
    if (!read_word(folder, "parent", interface)) return 0;
    return (uint64_t)SOFT_PACKETS * ib_mtu_bytes(mtu);
}

bool ib_card_gid(const char *folder, uint32_t port, uint32_t index, ib_gid_t *out)
{
    static const uint8_t nothing[16];
    char path[WORD], word[WORD];
    *out = (ib_gid_t){.index = index};
    (void)snprintf(path, sizeof(path), "ports/%u/gids/%u", port, index);
    if (!read_word(folder, path, word) || inet_pton(AF_INET6, word, out->bytes) != 1 ||
        memcmp(out->bytes, nothing, sizeof(nothing)) == 0)
        return false;
    (void)snprintf(path, sizeof(path), "ports/%u/gid_attrs/types/%u", port, index);
    if (read_word(folder, path, word) && strstr(word, "RoCE") != NULL)
        out->roce = strstr(word, "v2") != NULL ? 2 : 1;
    return true;
}

/* ---- lines ---- */

static void tell_port(const char *folder, const char *name, uint32_t port,
                      const verbs_port_t *figures, ib_card_line_t line, void *context)
{
    static const char *const states[] = {
        [1] = "down", [2] = "not yet up", [3] = "armed", [VERBS_PORT_ACTIVE] = "active"};
    const uint32_t state = (uint32_t)figures->state;
    const uint64_t rate = ib_port_rate(figures->width, figures->speed);
    const int32_t numa = ib_card_numa(folder);
    char word[WORD];
    lh_line_t w = {.length = 0};
    lh_line_add(&w, "%s port %u: %s", name, port,
                state < sizeof(states) / sizeof(states[0]) && states[state] != NULL ? states[state]
                                                                                    : "unknown");
    if (rate != 0) lh_line_add(&w, ", %.3g Gb/s", 8e-9 * (double)rate);
    const uint32_t mtu = ib_mtu_bytes((uint32_t)figures->mtu);
    if (mtu != 0) lh_line_add(&w, ", MTU %u", mtu);
    lh_line_add(&w, ", %s",
                figures->link_layer == VERBS_LINK_ETHERNET ? "Ethernet (RoCE)" : "InfiniBand");
    if (read_word(folder, "fw_ver", word) && word[0] != '\0')
        lh_line_add(&w, ", firmware %s", word);
    ib_card_bus(folder, word, sizeof(word));
    if (word[0] != '\0') lh_line_add(&w, ", at %s", word);
    if (numa >= 0) lh_line_add(&w, ", NUMA node %d", numa);
    line(context, w.text);
}

/* "::ffff:10.0.0.1" for the kernel's eight groups of four digits. */
static bool kernel_gid_text(const char *raw, char out[INET6_ADDRSTRLEN])
{
    static const struct in6_addr nothing;
    struct in6_addr a;
    return inet_pton(AF_INET6, raw, &a) == 1 && memcmp(&a, &nothing, sizeof(a)) != 0 &&
           inet_ntop(AF_INET6, &a, out, INET6_ADDRSTRLEN) != NULL;
}

static void tell_gids(const char *folder, uint32_t port, int count, bool ethernet,
                      ib_card_line_t line, void *context)
{
    for (int i = 0; i < count && i < IB_GIDS_MOST; i++) {
        char path[WORD], word[WORD], gid[INET6_ADDRSTRLEN];
        lh_line_t w = {.length = 0};
        (void)snprintf(path, sizeof(path), "ports/%u/gids/%d", port, i);
        if (!read_word(folder, path, word) || !kernel_gid_text(word, gid)) continue;
        lh_line_add(&w, "  GID %d: %s", i, gid);
        (void)snprintf(path, sizeof(path), "ports/%u/gid_attrs/types/%d", port, i);
        if (ethernet && read_word(folder, path, word))
            lh_line_add(&w, ", %s", strstr(word, "v2") != NULL ? "RoCE v2" : "RoCE v1");
        (void)snprintf(path, sizeof(path), "ports/%u/gid_attrs/ndevs/%d", port, i);
        if (read_word(folder, path, word)) lh_line_add(&w, ", of %s", word);
        line(context, w.text);
    }
}

/* Classes of PCI: display controllers, 3D ones and others of that kind, and accelerators; of the
 * first sort only those of makers of accelerators, as servers have a card for a screen, too. */
static bool is_accelerator(const char *device)
{
    char class[WORD], vendor[WORD];
    if (!read_word(device, "class", class) || !read_word(device, "vendor", vendor)) return false;
    const unsigned long kind = strtoul(class, NULL, 16) >> 8, maker = strtoul(vendor, NULL, 16);
    return kind == 0x0302 || kind == 0x0380 || kind == 0x1200 ||
           (kind == 0x0300 && (maker == 0x10de || maker == 0x1002));
}

/* The kernel's table: 10 is the node itself, 20 and more another one. 0: unknown. */
static long numa_distance(const char *system, int32_t from, int32_t to)
{
    char folder[PATH_MAX], word[WORD];
    (void)snprintf(folder, sizeof(folder), "%.3000s/devices/system/node/node%d", system, from);
    if (!read_word(folder, "distance", word)) return 0;
    char *at = word;
    for (int32_t i = 0; i < to; i++)
        (void)strtol(at, &at, 10);
    return strtol(at, NULL, 10);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void tell_distances(const char *folder, ib_card_line_t line, void *context)
{
    static const char place[] = "/class/infiniband/";
    char system[PATH_MAX], buses[PATH_MAX];
    struct dirent **rows;
    const char *cut = strstr(folder, place);
    const int32_t own = ib_card_numa(folder);
    lh_line_t w = {.length = 0};
    bool any = false;
    if (cut == NULL || own < 0) return;
    lh_line_add(&w, "  NUMA distance:");
    (void)snprintf(system, sizeof(system), "%.*s", (int)(cut - folder), folder);
    (void)snprintf(buses, sizeof(buses), "%.3000s/bus/pci/devices", system);
    const int count = scandir(buses, &rows, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char device[PATH_MAX], word[WORD];
        (void)snprintf(device, sizeof(device), "%.3000s/%.255s", buses, rows[i]->d_name);
        if (is_accelerator(device) && read_word(device, "numa_node", word)) {
            const int32_t node = (int32_t)strtol(word, NULL, 10);
            const long distance = node >= 0 ? numa_distance(system, own, node) : 0;
            if (distance > 0)
                lh_line_add(&w, "%s %ld to %s", any ? "," : "", distance, rows[i]->d_name);
            any |= distance > 0;
        }
        free(rows[i]);
    }
    if (count >= 0) free(rows);
    if (any) line(context, w.text);
}

/* With the port's name, as the host keeps such a line without those above it. */
static void tell_counters(const char *folder, const char *name, uint32_t port, ib_card_line_t line,
                          void *context)
{
    lh_line_t w = {.length = 0};
    uint32_t known = 0, raised = 0;
    lh_line_add(&w, "  counters of %s port %u:", name, port);
    for (uint32_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        const uint64_t value = ib_card_counter(folder, port, counters[i]);
        if (value == UINT64_MAX) continue;
        known++;
        if (value > 0)
            lh_line_add(&w, "%s %s %llu", raised++ > 0 ? "," : "", counters[i],
                        (unsigned long long)value);
    }
    if (known > raised)
        lh_line_add(&w, "%s 0 in the rest (%u)", raised > 0 ? "," : "", known - raised);
    if (known > 0) line(context, w.text);
}

void ib_card_tell(const char *folder, const char *name, uint32_t port, const verbs_port_t *figures,
                  ib_card_line_t line, void *context)
{
    tell_port(folder, name, port, figures, line, context);
    tell_counters(folder, name, port, line, context);
    tell_distances(folder, line, context);
    tell_gids(folder, port, figures->gids, figures->link_layer == VERBS_LINK_ETHERNET, line,
              context);
}

static void tell_device(const ib_verbs_t *v, verbs_device_t *device, ib_card_line_t line,
                        void *context)
{
    verbs_port_t figures = {0};
    verbs_context_t *open = v->open_device(device);
    if (open == NULL) {
        lh_line_t w = {.length = 0};
        lh_line_add(&w, "%s can't be opened: %s", v->get_device_name(device), strerror(errno));
        line(context, w.text);
        return;
    }
    for (uint8_t port = 1; port <= PORTS_MOST && v->query_port(open, port, &figures) == 0; port++)
        ib_card_tell(device->folder, v->get_device_name(device), port, &figures, line, context);
    (void)v->close_device(open);
}

lh_status_t ib_cards(const lh_host_t *host, ib_card_line_t line, void *context)
{
    ib_verbs_t v;
    int count = 0;
    const lh_status_t status = ib_verbs_load(host, &v);
    if (status != LH_OK) return status;
    verbs_device_t **list = v.get_device_list(&count);
    if (list == NULL || count == 0) {
        if (list != NULL) v.free_device_list(list);
        return host->fail(host, LH_NO_DEVICE, "this machine has no RDMA device");
    }
    for (int i = 0; i < count; i++)
        tell_device(&v, list[i], line, context);
    v.free_device_list(list);
    return LH_OK;
}
