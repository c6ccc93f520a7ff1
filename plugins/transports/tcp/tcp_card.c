/* tcp_card.c - which of the cards that `nics` names streams go over: the nearest to this rank's
 * device, and all of those that are equally near.
 *
 * What is near is read from the kernel: below which root port a card is plugged in, its NUMA
 * node, and the distance between nodes. What passes between two devices below one root port need
 * not reach the processor, so those are nearest. Where the host tells of no device the
 * processors that this process may run on stand for the rank's place; where these are of several
 * nodes no card is nearer than another. */
#include "tcp_card.h"

#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LIST_BYTES = 512, LINE_BYTES = 4096, PATH_BYTES = 512, NODES_MOST = 256 };
/* The kernel's table of distances has 10 for a node itself; 20 is what it takes for another one. */
enum { DISTANCE_PORT = 0, DISTANCE_OWN = 10, DISTANCE_OTHER = 20 };
static const char system_files[] = "/sys";

/* The first line of a file; false: there is none. */
static bool read_line(const char *path, char out[LINE_BYTES])
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool read = fgets(out, LINE_BYTES, file) != NULL;
    (void)fclose(file);
    return read;
}

/* Of a NUMA node. */
static bool node_line(const char *system, int32_t node, const char *what, char out[LINE_BYTES])
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof(path), "%s/devices/system/node/node%d/%s", system, node, what);
    return read_line(path, out);
}

/* Whether a list as "0-15,32-47" has the number. */
static bool list_has(const char *list, unsigned long number)
{
    for (char *at, *end = NULL;; list = end + 1) {
        const unsigned long first = strtoul(list, &at, 10);
        unsigned long last = first;
        if (at == list) return false;
        end = at;
        if (*at == '-') last = strtoul(at + 1, &end, 10);
        if (number >= first && number <= last) return true;
        if (*end != ',') return false;
    }
}

/* A node without processors has an empty list. */
int32_t cards_own_node(const char *system, const cpu_set_t *own)
{
    char list[LINE_BYTES];
    for (int32_t node = 0; node < NODES_MOST; node++) {
        int inside = 0;
        if (!node_line(system, node, "cpulist", list)) continue;
        for (uint32_t i = 0; i < CPU_SETSIZE; i++)
            inside += CPU_ISSET(i, own) && list_has(list, i);
        if (inside > 0 && inside == CPU_COUNT(own)) return node;
    }
    return -1;
}

/* A node's table has a column for each node that there is, and numbers may be missing. */
static uint32_t node_distance(const char *system, int32_t from, int32_t to)
{
    char line[LINE_BYTES], other[LINE_BYTES];
    char *at = line, *end;
    if (from < 0 || to < 0 || from == to) return DISTANCE_OWN;
    if (!node_line(system, from, "distance", line)) return DISTANCE_OTHER;
    for (int32_t node = 0; node < to; node++)
        if (node_line(system, node, "distance", other)) (void)strtoul(at, &at, 10);
    const unsigned long distance = strtoul(at, &end, 10);
    return end == at ? DISTANCE_OTHER : (uint32_t)distance;
}

/* The node that the kernel tells of a device by its folder; -1: it tells none. */
static int32_t folder_node(const char *folder)
{
    char path[PATH_BYTES + 16], line[LINE_BYTES];
    (void)snprintf(path, sizeof(path), "%s/numa_node", folder);
    return read_line(path, line) ? (int32_t)strtol(line, NULL, 10) : -1;
}

/* The folder of the root port below which a device is, of its own folder: that is inside it, as
 * ".../pci0000:3a/0000:3a:00.0/0000:3b:00.0". False: it is no PCI device, or is not there. */
static bool folder_port(const char *folder, char port[PATH_MAX])
{
    char *end = NULL;
    if (realpath(folder, port) == NULL) return false;
    for (char *at = port, *next; at != NULL; at = next) {
        next = strchr(at + 1, '/');
        if (next == NULL || strncmp(at, "/pci", 4) != 0 || !isxdigit((unsigned char)at[4]))
            continue;
        end = next + 1 + strcspn(next + 1, "/");
    }
    if (end == NULL) return false;
    *end = '\0';
    return true;
}

static void device_folder(const char *system, const char *device, char out[PATH_BYTES])
{
    (void)snprintf(out, PATH_BYTES, "%s/bus/pci/devices/%s", system, device);
}

/* As the kernel writes it, which NVIDIA's libraries do with large letters; "": it is no address. */
static void device_take(const char *address, char out[DEVICE_ADDRESS])
{
    size_t i = 0;
    memset(out, 0, DEVICE_ADDRESS);
    for (; i + 1 < DEVICE_ADDRESS && address[i] != '\0'; i++) {
        out[i] = (char)tolower((unsigned char)address[i]);
        if (strchr("0123456789abcdef:.", out[i]) == NULL) break;
    }
    if (address[i] != '\0') out[0] = '\0';
}

void cards_from(const char *system, const lh_world_t *world, const cpu_set_t *own, card_from_t *out)
{
    char folder[PATH_BYTES];
    *out = (card_from_t){.node = -1};
    if (LH_HAS(world, device)) device_take(world->device, out->device);
    device_folder(system, out->device, folder);
    if (out->device[0] != '\0' && access(folder, F_OK) == 0) {
        out->node = folder_node(folder);
        return;
    }
    out->device[0] = '\0';
    if (own != NULL) out->node = cards_own_node(system, own);
}

bool card_is_real(const char *system, const char *interface)
{
    char folder[PATH_BYTES];
    (void)snprintf(folder, sizeof(folder), "%s/class/net/%.15s/device", system, interface);
    return access(folder, F_OK) == 0;
}

/* A peer at an address of this machine is met by the loopback, whatever that address belongs to. */
bool card_leads_away(int fd, bool *is_real)
{
    struct sockaddr_storage own, peer;
    socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
    place_t place;
    *is_real = false;
    if (getsockname(fd, (struct sockaddr *)&own, &own_length) != 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_length) != 0 || address_is_own(&peer))
        return false;
    *is_real = address_find(&own, &place) && card_is_real(system_files, place.name);
    return true;
}

uint32_t cards_nearest(const char *system, const card_from_t *from, card_t *cards, uint32_t count)
{
    card_t sorted[CARDS_MOST];
    char folder[PATH_BYTES], port[PATH_MAX] = "", own[PATH_MAX];
    uint32_t least = UINT32_MAX, done = 0;
    device_folder(system, from->device, folder);
    const bool has_port = from->device[0] != '\0' && folder_port(folder, port);
    for (uint32_t i = 0; i < count; i++) {
        card_t *c = &cards[i];
        (void)snprintf(folder, sizeof(folder), "%s/class/net/%s/device", system, c->name);
        c->numa = folder_node(folder);
        c->beside = has_port && folder_port(folder, own) && strcmp(own, port) == 0;
        c->distance = c->beside ? DISTANCE_PORT : node_distance(system, from->node, c->numa);
        if (c->distance < least) least = c->distance;
    }
    for (uint32_t i = 0; i < count; i++)
        if (cards[i].distance == least) sorted[done++] = cards[i];
    const uint32_t nearest = done;
    for (uint32_t i = 0; i < count; i++)
        if (cards[i].distance != least) sorted[done++] = cards[i];
    memcpy(cards, sorted, count * sizeof(sorted[0]));
    return nearest;
}

/* One more item of a list for people, which is cut to room. */
static void list_add(char *list, size_t room, const char *item)
{
    const size_t length = strlen(list);
    if (snprintf(list + length, room - length, "%s%s", length > 0 ? ", " : "", item) < 0)
        list[length] = '\0';
}

void cards_text(const lh_transport_t *t, char *out, size_t room)
{
    out[0] = '\0';
    for (uint32_t i = 0; i < t->here_count; i++)
        list_add(out, room, t->here[i].name);
}

static void card_count(const stream_t *s, lh_card_stats_t *row)
{
    int unsent = 0;
    if (s->state == STREAM_OPEN && ioctl(s->fd, SIOCOUTQNSD, &unsent) == 0 && unsent > 0)
        row->bytes_unsent += (uint64_t)unsent;
    row->paths++;
    row->bytes_sent += s->sent;
    row->bytes_received += s->received;
    row->bytes_retransmitted += s->retransmitted;
    if (s->trip_min_ns != 0 &&
        (row->round_trip_min_ns == 0 || s->trip_min_ns < row->round_trip_min_ns))
        row->round_trip_min_ns = s->trip_min_ns;
}

/* The host's rows may be of another version's size. */
uint32_t cards_stats(const lh_conn_t *c, lh_card_stats_t *rows, uint32_t row_size, uint32_t max)
{
    const lh_transport_t *t = c->transport;
    uint32_t count = 0;
    for (; t->here_count > 1 && count < t->here_count && count < max; count++) {
        lh_card_stats_t mine = {0};
        char *row = (char *)rows + (size_t)count * row_size;
        (void)snprintf(mine.name, sizeof(mine.name), "%.31s", t->here[count].name);
        for (uint32_t i = 0; i < c->stream_count; i++)
            if (c->streams[i] != NULL && c->streams[i]->card == count)
                card_count(c->streams[i], &mine);
        memset(row, 0, row_size);
        memcpy(row, &mine, row_size < sizeof(mine) ? row_size : sizeof(mine));
    }
    return count;
}

/* "this machine has no network interface eth7; expected some of lo, eth0": of those with an address. */
static lh_status_t card_refuse_name(const lh_transport_t *t, const char *name)
{
    char names[256] = "";
    struct if_nameindex *all = if_nameindex();
    for (uint32_t i = 0; all != NULL && all[i].if_index != 0; i++) {
        place_t place = {0};
        if (address_of_interface(&place, all[i].if_name))
            list_add(names, sizeof(names), all[i].if_name);
    }
    if (all != NULL) if_freenameindex(all);
    return t->host->fail(t->host, LH_NO_DEVICE,
                         "nics: this machine has no network interface %s; expected some of %s",
                         name, names);
}

/* A card that is not used in the end is checked, too: a typing error is told on every rank. */
static lh_status_t card_check(const lh_transport_t *t, const card_t *c)
{
    const lh_host_t *host = t->host;
    struct ifreq request;
    place_t place = {0};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return host->fail(host, LH_IO, "a socket for %s", c->name);
    memset(&request, 0, sizeof(request));
    memcpy(request.ifr_name, c->name, sizeof(c->name));
    const bool known = ioctl(fd, SIOCGIFFLAGS, &request) == 0;
    const bool binds = socket_bind_card(fd, c->name);
    const int error = errno;
    (void)close(fd);
    if (known && (request.ifr_flags & IFF_UP) == 0)
        return host->fail(host, LH_NO_DEVICE, "nics: %s is down; expected an interface that is up",
                          c->name);
    if (known && (request.ifr_flags & IFF_RUNNING) == 0)
        return host->fail(host, LH_NO_DEVICE,
                          "nics: the link of %s is down; expected one that is up", c->name);
    if (!address_of_interface(&place, c->name))
        return host->fail(host, LH_NO_DEVICE,
                          "nics: %s has no address; expected an interface with an IPv4 or IPv6 one",
                          c->name);
    if (!binds)
        return host->fail(host, LH_NO_DEVICE,
                          "nics: a socket can't be bound to %s (%s); expected Linux 5.7 or later, "
                          "where every process may, or CAP_NET_RAW",
                          c->name, strerror(error));
    return LH_OK;
}

/* One more of the list, which may name it by another name that it has (`ip link property`). */
static lh_status_t card_add(const lh_transport_t *t, const char *name, card_t *cards,
                            uint32_t *count)
{
    const lh_host_t *host = t->host;
    char own[IF_NAMESIZE] = "";
    const unsigned index = if_nametoindex(name);
    if (index == 0 || if_indextoname(index, own) == NULL) return card_refuse_name(t, name);
    for (uint32_t i = 0; i < *count; i++)
        if (strcmp(cards[i].name, own) == 0)
            return host->fail(host, LH_INVALID, "nics has %s twice", own);
    if (*count == CARDS_MOST)
        return host->fail(host, LH_INVALID, "nics = %s: expected %d interfaces at most",
                          t->config->nics, CARDS_MOST);
    card_t *c = &cards[*count];
    *c = (card_t){.numa = -1};
    (void)snprintf(c->name, sizeof(c->name), "%s", own);
    ++*count;
    return card_check(t, c);
}

/* Names by commas or blanks. */
static lh_status_t cards_read(const lh_transport_t *t, card_t *cards, uint32_t *count)
{
    char list[LIST_BYTES], *rest = list;
    const lh_host_t *host = t->host;
    const char *all = t->config->nics;
    lh_status_t status = LH_OK;
    *count = 0;
    if ((size_t)snprintf(list, sizeof(list), "%s", all) >= sizeof(list))
        return host->fail(host, LH_INVALID, "nics is longer than %d bytes", LIST_BYTES - 1);
    for (char *name; status == LH_OK && (name = strsep(&rest, " ,\t")) != NULL;)
        if (*name != '\0') status = card_add(t, name, cards, count);
    if (status == LH_OK && *count == 0)
        return host->fail(host, LH_INVALID,
                          "nics = %s: expected names of network interfaces, separated by commas",
                          all);
    return status;
}

/* Whether an interface answers for addresses of others. With arp_ignore it does not; with arp_filter
 * where the answer would leave by it, which takes rules by source, and those are taken to be there. Of
 * either what holds is the larger value of all interfaces' and of its own. */
static bool answers_for_all(const char *interface)
{
    static const char *const settings[] = {"arp_ignore", "arp_filter"};
    const char *const names[] = {"all", interface};
    char path[PATH_BYTES], line[LINE_BYTES];
    for (uint32_t i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof(path), "/proc/sys/net/ipv4/conf/%s/%s", names[i % 2],
                       settings[i / 2]);
        if (!read_line(path, line) || strtol(line, NULL, 10) != 0) return false;
    }
    return true;
}

/* Another interface in the card's IPv4 network that answers for it, as Linux does by itself: then what
 * is for the card comes by that one, and the socket that is bound to the card does not get it. */
static bool card_rival(const place_t *card, char rival[CARD_NAME])
{
    struct ifaddrs *all;
    bool found = false;
    if (card->address.ss_family != AF_INET || getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        place_t other = {0};
        const unsigned flags = i->ifa_flags & (IFF_UP | IFF_LOOPBACK | IFF_NOARP);
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || flags != IFF_UP) continue;
        address_take(&other, i);
        other.name[strcspn(other.name, ":")] = '\0'; /* of eth0:1 it is eth0 that answers */
        if (strcmp(other.name, card->name) == 0 || !address_is_beside(&other, &card->address))
            continue;
        (void)snprintf(rival, CARD_NAME, "%.15s", other.name);
        found = answers_for_all(rival);
    }
    freeifaddrs(all);
    return found;
}

/* Such an address is of IPv6, and a card has it where address_of_interface has found no better one. */
bool cards_local(const lh_transport_t *t, const place_t *two[2])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->here_count && count < 2; i++) {
        const struct sockaddr_in6 *a = (const void *)&t->here[i].address;
        if (a->sin6_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr))
            two[count++] = &t->here[i];
    }
    return count == 2;
}

/* Of the cards that are used. All link-local addresses are in one network, whatever the cable, so that of
 * two a stream might leave by a card that does not reach the peer's which it goes to. */
static lh_status_t cards_check(const lh_transport_t *t)
{
    const lh_host_t *host = t->host;
    const place_t *local[2] = {NULL, NULL};
    char names[64], rival[CARD_NAME] = "";
    cards_text(t, names, sizeof(names));
    if (t->config->streams != 0 && t->config->streams < t->here_count)
        return host->fail(
            host, LH_INVALID,
            "streams = %llu: a stream goes over one card, and %u are to be used (%s); "
            "expected at least as many, or 0",
            (unsigned long long)t->config->streams, t->here_count, names);
    if (cards_local(t, local))
        return host->fail(
            host, LH_NO_DEVICE,
            "nics: %s and %s have link-local IPv6 addresses alone, which do not tell which of a "
            "peer's cards each of them reaches; expected an IPv4 or global IPv6 address on all "
            "but one",
            local[0]->name, local[1]->name);
    for (uint32_t i = 0; i < t->here_count; i++)
        if (card_rival(&t->here[i], rival))
            return host->fail(
                host, LH_NO_DEVICE,
                "nics: %s answers for the address of %s, as both are in one network; "
                "expected net.ipv4.conf.all.arp_ignore = 1 and arp_announce = 2, or a "
                "network for each",
                rival, t->here[i].name);
    return LH_OK;
}

/* "eth0 (NUMA node 1)", "eth0 (the device's root port, NUMA node 1)". */
static void card_say(const card_t *c, char *list, size_t room)
{
    char text[80], node[24] = "";
    if (c->numa >= 0) (void)snprintf(node, sizeof(node), "NUMA node %d", c->numa);
    if (c->beside || node[0] != '\0')
        (void)snprintf(text, sizeof(text), "%.15s (%s%s%s)", c->name,
                       c->beside ? "the device's root port" : "",
                       c->beside && node[0] != '\0' ? ", " : "", node);
    else
        (void)snprintf(text, sizeof(text), "%.15s", c->name);
    list_add(list, room, text);
}

/* What was chosen, and why. */
static void cards_say(const lh_transport_t *t, const card_t *cards, uint32_t count,
                      const card_from_t *from)
{
    char used[480] = "", far[480] = "", who[64] = "this process", place[128];
    for (uint32_t i = 0; i < count; i++)
        card_say(&cards[i], i < t->here_count ? used : far, sizeof(used));
    if (from->device[0] != '\0') (void)snprintf(who, sizeof(who), "the device at %s", from->device);
    if (from->node >= 0)
        (void)snprintf(place, sizeof(place), "%s is on NUMA node %d", who, from->node);
    else
        (void)snprintf(place, sizeof(place), "%s is on no single NUMA node", who);
    t->host->log(t->host, LH_LOG_INFO, "nics: streams go over %s; %s%s%s", used, place,
                 far[0] != '\0' ? "; farther away and not used: " : "", far);
}

/* What says otherwise where it listens. */
static lh_status_t cards_check_options(const lh_transport_t *t)
{
    const lh_host_t *host = t->host;
    const tcp_config_t *o = t->config;
    if (o->bind != NULL && strcmp(o->bind, "auto") != 0)
        return host->fail(
            host, LH_INVALID,
            "bind = %s and nics = %s: both say where it listens; expected one of them", o->bind,
            o->nics);
    if (o->advertise != NULL)
        return host->fail(host, LH_INVALID,
                          "advertise = %s and nics = %s: one address can't be dialed in place of "
                          "several; expected one of them",
                          o->advertise, o->nics);
    return LH_OK;
}

lh_status_t cards_choose(lh_transport_t *t)
{
    card_t cards[CARDS_MOST];
    card_from_t from;
    uint32_t count;
    cpu_set_t processors;
    lh_status_t status = cards_check_options(t);
    if (status == LH_OK) status = cards_read(t, cards, &count);
    if (status != LH_OK) return status;
    const bool known = sched_getaffinity(0, sizeof(processors), &processors) == 0;
    cards_from(system_files, t->host->world, known ? &processors : NULL, &from);
    t->by_card = true;
    t->here_count = cards_nearest(system_files, &from, cards, count);
    t->numa = cards[0].numa;
    for (uint32_t i = 0; i < t->here_count; i++) {
        if (cards[i].numa != t->numa) t->numa = -1;
        if (!address_of_interface(&t->here[i], cards[i].name)) /* it had one just now */
            return t->host->fail(t->host, LH_NO_DEVICE, "nics: %s has lost its address",
                                 cards[i].name);
    }
    status = cards_check(t);
    if (status == LH_OK) cards_say(t, cards, count, &from);
    return status;
}
