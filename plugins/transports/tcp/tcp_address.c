/* tcp_address.c - where this rank listens: one address, or one a card, never "any" unless the INI
 * says so; and what others are told to dial, which is another one behind NAT.
 *
 * Addresses are numbers throughout: names are resolved by nobody in here, so that a rank does not
 * hang on a name server. On the wire an address is 24 bytes that are the same for every processor,
 * and those of several cards follow each other. */
#include "tcp_card.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

enum { ADVERTISE_BYTES = 1024 };
enum { ADDRESS_BYTES = 24 }; /* family 4 or 6, 0, port, address, scope; big-endian port */

/* The system's struct under its family's name. */
static const struct sockaddr_in *sockaddr_v4(const struct sockaddr_storage *a)
{
    return (const struct sockaddr_in *)(const void *)a;
}

static const struct sockaddr_in6 *sockaddr_v6(const struct sockaddr_storage *a)
{
    return (const struct sockaddr_in6 *)(const void *)a;
}

/* One more, as ADDRESS_BYTES says. The scope does not travel: it is a number of this machine's. */
static void address_add(const struct sockaddr_storage *from, lh_address_t *out)
{
    uint8_t *bytes = out->bytes + out->length;
    memset(bytes, 0, ADDRESS_BYTES);
    out->length += ADDRESS_BYTES;
    if (from->ss_family == AF_INET) {
        bytes[0] = 4;
        memcpy(bytes + 2, &sockaddr_v4(from)->sin_port, 2);
        memcpy(bytes + 4, &sockaddr_v4(from)->sin_addr, 4);
        return;
    }
    bytes[0] = 6;
    memcpy(bytes + 2, &sockaddr_v6(from)->sin6_port, 2);
    memcpy(bytes + 4, &sockaddr_v6(from)->sin6_addr, 16);
}

uint32_t address_count(const lh_address_t *a)
{
    const uint32_t count = a->length / ADDRESS_BYTES;
    return a->length % ADDRESS_BYTES == 0 && count <= CARDS_MOST ? count : 0;
}

/* A link-local address is of the interface that this end uses: its scope does not travel. */
bool address_read(const place_t *here, const lh_address_t *from, uint32_t i,
                  struct sockaddr_storage *out, socklen_t *length)
{
    memset(out, 0, sizeof(*out));
    if (i >= address_count(from)) return false;
    const uint8_t *bytes = from->bytes + (size_t)i * ADDRESS_BYTES;
    if (bytes[1] != 0) return false;
    if (bytes[0] == 4) {
        struct sockaddr_in *a = (struct sockaddr_in *)(void *)out;
        a->sin_family = AF_INET;
        memcpy(&a->sin_port, bytes + 2, 2);
        memcpy(&a->sin_addr, bytes + 4, 4);
        *length = sizeof(*a);
        return true;
    }
    if (bytes[0] != 6) return false;
    struct sockaddr_in6 *a = (struct sockaddr_in6 *)(void *)out;
    a->sin6_family = AF_INET6;
    memcpy(&a->sin6_port, bytes + 2, 2);
    memcpy(&a->sin6_addr, bytes + 4, 16);
    if (IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr) && here->address.ss_family == AF_INET6)
        a->sin6_scope_id = sockaddr_v6(&here->address)->sin6_scope_id;
    *length = sizeof(*a);
    return true;
}

/* Which of the peer's addresses in the network of one of ours is that stream's turn. Those of ours in
 * that network, of which there may be several, begin with one each, as they stand in the list, so that
 * two ends with the same list do not cross it. */
static uint32_t address_turn(const lh_transport_t *t, uint32_t index)
{
    const uint32_t own = index % t->here_count;
    uint32_t before = 0, beside = 0;
    for (uint32_t i = 0; i < t->here_count; i++) {
        if (i != own && !address_is_beside(&t->here[own], &t->here[i].address)) continue;
        before += i < own;
        beside++;
    }
    return before + beside * (index / t->here_count);
}

/* Ours in turn, each to the peer's that it reaches best: one in its own network, else one of its
 * family, else any. Of several that are as good each is taken in turn as well. */
const place_t *address_way(const lh_transport_t *t, const lh_address_t *there, uint32_t index,
                           struct sockaddr_storage *to, socklen_t *length)
{
    const place_t *from = &t->here[index % t->here_count];
    uint32_t as_good[CARDS_MOST], count = 0, best = 0;
    for (uint32_t i = 0; i < address_count(there); i++) {
        if (!address_read(from, there, i, to, length)) return NULL;
        const uint32_t good = address_is_beside(from, to)                ? 2
                              : to->ss_family == from->address.ss_family ? 1
                                                                         : 0;
        if (good < best) continue;
        if (good > best) count = 0;
        best = good;
        as_good[count++] = i;
    }
    const uint32_t turn = best == 2 ? address_turn(t, index) : index;
    if (count == 0 || !address_read(from, there, as_good[turn % count], to, length)) return NULL;
    return from;
}

/* "10.0.0.7:29500", "[fe80::1]:29500". */
void address_text(const struct sockaddr_storage *from, char *out, size_t room)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (from->ss_family == AF_INET) {
        (void)inet_ntop(AF_INET, &sockaddr_v4(from)->sin_addr, host, sizeof(host));
        (void)snprintf(out, room, "%s:%u", host, ntohs(sockaddr_v4(from)->sin_port));
    } else {
        (void)inet_ntop(AF_INET6, &sockaddr_v6(from)->sin6_addr, host, sizeof(host));
        (void)snprintf(out, room, "[%s]:%u", host, ntohs(sockaddr_v6(from)->sin6_port));
    }
}

/* Into a place, with the name under which it was found. */
static void place_take(place_t *p, const struct sockaddr *address, const char *interface)
{
    p->length = address->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                              : sizeof(struct sockaddr_in6);
    memcpy(&p->address, address, p->length);
    p->network_bits = 0;
    (void)snprintf(p->name, sizeof(p->name), "%s", interface);
}

/* The bytes that networks are told apart by: 4 or 16 of them. */
static const uint8_t *address_bytes(const struct sockaddr_storage *a, uint32_t *count)
{
    *count = a->ss_family == AF_INET ? 4 : 16;
    return a->ss_family == AF_INET ? (const uint8_t *)&sockaddr_v4(a)->sin_addr
                                   : (const uint8_t *)&sockaddr_v6(a)->sin6_addr;
}

/* The ones of a mask, which come first. */
static uint32_t mask_bits(const struct sockaddr *mask, uint32_t family)
{
    struct sockaddr_storage copy = {0};
    uint32_t count, bits = 0;
    if (mask == NULL) return 0;
    memcpy(&copy, mask,
           family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    copy.ss_family = (sa_family_t)family;
    const uint8_t *bytes = address_bytes(&copy, &count);
    while (bits < 8 * count && (bytes[bits / 8] >> (7 - bits % 8) & 1) != 0)
        bits++;
    return bits;
}

bool address_is_beside(const place_t *p, const struct sockaddr_storage *a)
{
    uint32_t count;
    if (p->network_bits == 0 || p->address.ss_family != a->ss_family) return false;
    const uint8_t *x = address_bytes(&p->address, &count), *y = address_bytes(a, &count);
    for (uint32_t i = 0; i < p->network_bits; i++)
        if (((x[i / 8] ^ y[i / 8]) >> (7 - i % 8) & 1) != 0) return false;
    return true;
}

void address_take(place_t *p, const struct ifaddrs *i)
{
    place_take(p, i->ifa_addr, i->ifa_name);
    p->network_bits = mask_bits(i->ifa_netmask, i->ifa_addr->sa_family);
}

bool address_find(const struct sockaddr_storage *a, place_t *out)
{
    struct ifaddrs *all;
    bool own = false;
    if (getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *i = all; i != NULL && !own; i = i->ifa_next) {
        uint32_t count;
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != a->ss_family) continue;
        memset(out, 0, sizeof(*out));
        place_take(out, i->ifa_addr, i->ifa_name);
        const uint8_t *x = address_bytes(&out->address, &count), *y = address_bytes(a, &count);
        own = memcmp(x, y, count) == 0;
    }
    freeifaddrs(all);
    return own;
}

bool address_is_own(const struct sockaddr_storage *a)
{
    place_t place;
    return address_find(a, &place);
}

/* A number, with its interface where it is link-local: "fe80::1%eth0". */
static bool take_text(place_t *p, const char *text)
{
    struct addrinfo *found;
    const struct addrinfo how = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (getaddrinfo(text, NULL, &how, &found) != 0) return false;
    place_take(p, found->ai_addr, text);
    freeaddrinfo(found);
    return true;
}

/* How well an interface's address answers `wanted` (NULL: any that reaches other machines). */
static int rank_of(const struct ifaddrs *i, const char *wanted)
{
    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0) return 0;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) return 0;
    if (wanted != NULL && strcmp(i->ifa_name, wanted) != 0) return 0;
    /* The loopback reaches nobody else, but may be asked for by name. */
    if (wanted == NULL && (i->ifa_flags & IFF_LOOPBACK) != 0) return 0;
    if (family == AF_INET) return 3;
    const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
    return IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr) ? 1 : 2;
}

/* IPv4 before global before link-local IPv6. */
bool address_of_interface(place_t *p, const char *wanted)
{
    struct ifaddrs *all, *best = NULL;
    if (getifaddrs(&all) != 0) return false;
    for (struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
        if (rank_of(i, wanted) > (best != NULL ? rank_of(best, wanted) : 0)) best = i;
    if (best != NULL) address_take(p, best);
    freeifaddrs(all);
    return best != NULL;
}

/* Through which interface other machines are reached is known from the way to rank 0's: the first
 * one that is up may be a bridge of containers. */
static lh_status_t choose_bind(lh_transport_t *t)
{
    const char *bind = t->config->bind;
    const lh_world_t *w = t->host->world;
    place_t *here = &t->here[0];
    t->here_count = 1;
    if (bind == NULL || strcmp(bind, "auto") == 0) {
        /* One machine; else the way to rank 0, as core/control has found it; else any interface. */
        if (w->nodes <= 1 && take_text(here, "127.0.0.1")) return LH_OK;
        if (LH_HAS(w, address) && w->address[0] != '\0' && take_text(here, w->address))
            return LH_OK;
        if (address_of_interface(here, NULL)) return LH_OK;
        return t->host->fail(t->host, LH_NO_DEVICE,
                             "no network interface is up; name an address: bind = ...");
    }
    if (take_text(here, bind) || address_of_interface(here, bind)) return LH_OK;
    return t->host->fail(t->host, LH_NO_DEVICE,
                         "bind = %s: neither an address nor an interface that is up and has one",
                         bind);
}

/* A word of `advertise`: ADDRESS for every machine, HOST=ADDRESS for one. False: it is neither. */
static bool take_advertised(lh_transport_t *t, char *word, const char *host)
{
    place_t said;
    char *number = strchr(word, '=');
    if (number != NULL) *number++ = '\0';
    if (!take_text(&said, number != NULL ? number : word)) return false;
    if (number != NULL && strcmp(word, host) != 0) return true;
    t->outside = said;
    return true;
}

/* Words by commas or blanks. All are checked, also those for other hosts: a typing error is told on
 * every rank. */
static lh_status_t choose_advertised(lh_transport_t *t)
{
    char list[ADVERTISE_BYTES], *rest = list;
    const char *all = t->config->advertise;
    lh_rank_info_t self = {.struct_size = sizeof(self)};
    if (all == NULL) return LH_OK;
    lh_status_t status = t->host->rank_info(t->host, t->host->world->rank, &self);
    if (status == LH_OK && (size_t)snprintf(list, sizeof(list), "%s", all) >= sizeof(list))
        status = t->host->fail(t->host, LH_INVALID, "advertise is longer than %d bytes",
                               ADVERTISE_BYTES - 1);
    for (char *word; status == LH_OK && (word = strsep(&rest, " ,\t")) != NULL;)
        if (*word != '\0' && !take_advertised(t, word, self.host_name))
            status = t->host->fail(t->host, LH_INVALID,
                                   "advertise = %s: expected ADDRESS or HOST=ADDRESS, separated by "
                                   "commas; an address is a number",
                                   all);
    return status;
}

lh_status_t address_choose(lh_transport_t *t)
{
    if (t->config->nics != NULL) return cards_choose(t);
    const lh_status_t status = choose_bind(t);
    return status == LH_OK ? choose_advertised(t) : status;
}

bool address_is_any(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET ? sockaddr_v4(a)->sin_addr.s_addr == htonl(INADDR_ANY)
                                   : IN6_IS_ADDR_UNSPECIFIED(&sockaddr_v6(a)->sin6_addr) != 0;
}

/* Which of the three it is: see tcp.h. NAT is expected to keep ports. */
lh_status_t address_publish(lh_transport_t *t, const struct sockaddr_storage *bound,
                            lh_address_t *out)
{
    lh_address_t any = {0};
    place_t outside = t->outside;
    const lh_world_t *w = t->host->world;
    address_add(bound, &any);
    /* The bound one is what others dial, unless it is `any` or something else is advertised. */
    if (outside.length == 0 && !address_is_any(bound)) {
        address_add(bound, out);
        return LH_OK;
    }
    if (outside.length == 0 &&
        (!LH_HAS(w, address) || w->address[0] == '\0' || !take_text(&outside, w->address) ||
         outside.address.ss_family != bound->ss_family) &&
        (!address_of_interface(&outside, NULL) || outside.address.ss_family != bound->ss_family))
        return t->host->fail(t->host, LH_NO_DEVICE,
                             "bind = %s: no interface has an address that others could dial",
                             t->here[0].name);
    address_add(&outside.address, out);
    memcpy(out->bytes + out->length - ADDRESS_BYTES + 2, any.bytes + 2, 2); /* the port */
    return LH_OK;
}
