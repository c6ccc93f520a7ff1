/* tcp_address.c - where this rank listens: one address, never "any" unless the INI says so. */
#include "tcp.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

enum { ADDRESS_BYTES = 24 }; /* family 4 or 6, 0, port, address, scope; big-endian port */

static const struct sockaddr_in *v4(const struct sockaddr_storage *a)
{
    return (const struct sockaddr_in *)(const void *)a;
}

static const struct sockaddr_in6 *v6(const struct sockaddr_storage *a)
{
    return (const struct sockaddr_in6 *)(const void *)a;
}

static void address_write(const struct sockaddr_storage *from, lh_address_t *out)
{
    memset(out, 0, sizeof(*out));
    out->length = ADDRESS_BYTES;
    if (from->ss_family == AF_INET) {
        out->bytes[0] = 4;
        memcpy(out->bytes + 2, &v4(from)->sin_port, 2);
        memcpy(out->bytes + 4, &v4(from)->sin_addr, 4);
        return;
    }
    out->bytes[0] = 6;
    memcpy(out->bytes + 2, &v6(from)->sin6_port, 2);
    memcpy(out->bytes + 4, &v6(from)->sin6_addr, 16);
}

/* A link-local address is of the interface that this end uses: its scope does not travel. */
bool address_read(const lh_transport_t *t, const lh_address_t *from, struct sockaddr_storage *out,
                  socklen_t *length)
{
    memset(out, 0, sizeof(*out));
    if (from->length != ADDRESS_BYTES || from->bytes[1] != 0) return false;
    if (from->bytes[0] == 4) {
        struct sockaddr_in *a = (struct sockaddr_in *)(void *)out;
        a->sin_family = AF_INET;
        memcpy(&a->sin_port, from->bytes + 2, 2);
        memcpy(&a->sin_addr, from->bytes + 4, 4);
        *length = sizeof(*a);
        return true;
    }
    if (from->bytes[0] != 6) return false;
    struct sockaddr_in6 *a = (struct sockaddr_in6 *)(void *)out;
    a->sin6_family = AF_INET6;
    memcpy(&a->sin6_port, from->bytes + 2, 2);
    memcpy(&a->sin6_addr, from->bytes + 4, 16);
    if (IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr) && t->here.address.ss_family == AF_INET6)
        a->sin6_scope_id = v6(&t->here.address)->sin6_scope_id;
    *length = sizeof(*a);
    return true;
}

void address_text(const struct sockaddr_storage *from, char *out, size_t room)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (from->ss_family == AF_INET) {
        (void)inet_ntop(AF_INET, &v4(from)->sin_addr, host, sizeof(host));
        (void)snprintf(out, room, "%s:%u", host, ntohs(v4(from)->sin_port));
    } else {
        (void)inet_ntop(AF_INET6, &v6(from)->sin6_addr, host, sizeof(host));
        (void)snprintf(out, room, "[%s]:%u", host, ntohs(v6(from)->sin6_port));
    }
}

static void take(place_t *p, const struct sockaddr *address, const char *interface)
{
    p->length = address->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                              : sizeof(struct sockaddr_in6);
    memcpy(&p->address, address, p->length);
    (void)snprintf(p->name, sizeof(p->name), "%s", interface);
}

static bool take_text(place_t *p, const char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    struct sockaddr_in6 b = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &a.sin_addr) == 1)
        take(p, (const struct sockaddr *)(const void *)&a, text);
    else if (inet_pton(AF_INET6, text, &b.sin6_addr) == 1)
        take(p, (const struct sockaddr *)(const void *)&b, text);
    else
        return false;
    return true;
}

/* How well an interface's address answers `wanted` (NULL: any that reaches other machines). */
static int rank_of(const struct ifaddrs *i, const char *wanted)
{
    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0) return 0;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) return 0;
    if (wanted != NULL && strcmp(i->ifa_name, wanted) != 0) return 0;
    if (wanted == NULL && (i->ifa_flags & IFF_LOOPBACK) != 0) return 0;
    if (family == AF_INET) return 3;
    const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
    return IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr) ? 1 : 2;
}

static bool take_interface(place_t *p, const char *wanted)
{
    struct ifaddrs *all, *best = NULL;
    if (getifaddrs(&all) != 0) return false;
    for (struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
        if (rank_of(i, wanted) > (best != NULL ? rank_of(best, wanted) : 0)) best = i;
    if (best != NULL) take(p, best->ifa_addr, best->ifa_name);
    freeifaddrs(all);
    return best != NULL;
}

lh_status_t address_choose(lh_transport_t *t)
{
    const char *bind = t->config->bind;
    if (bind == NULL || strcmp(bind, "auto") == 0) {
        if (t->host->world->nodes <= 1 && take_text(&t->here, "127.0.0.1")) return LH_OK;
        if (take_interface(&t->here, NULL)) return LH_OK;
        return t->host->fail(t->host, LH_NO_DEVICE,
                             "no network interface is up; name an address: bind = ...");
    }
    if (take_text(&t->here, bind) || take_interface(&t->here, bind)) return LH_OK;
    return t->host->fail(t->host, LH_NO_DEVICE,
                         "bind = %s: neither an address nor an interface that is up and has one",
                         bind);
}

bool address_is_any(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET ? v4(a)->sin_addr.s_addr == htonl(INADDR_ANY)
                                   : IN6_IS_ADDR_UNSPECIFIED(&v6(a)->sin6_addr) != 0;
}

lh_status_t address_publish(lh_transport_t *t, const struct sockaddr_storage *bound,
                            lh_address_t *out)
{
    lh_address_t any;
    place_t outside;
    address_write(bound, out);
    if (!address_is_any(bound)) return LH_OK;
    if (!take_interface(&outside, NULL) || outside.address.ss_family != bound->ss_family)
        return t->host->fail(t->host, LH_NO_DEVICE,
                             "bind = %s: no interface has an address that others could dial",
                             t->here.name);
    any = *out;
    address_write(&outside.address, out);
    memcpy(out->bytes + 2, any.bytes + 2, 2); /* the port */
    return LH_OK;
}
