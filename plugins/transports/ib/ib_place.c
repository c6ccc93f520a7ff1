/* ib_place.c - addresses: what a listener's holds for the host, and how people read it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "ib.h"

typedef struct place { /* what an address holds */
    uint32_t magic, token;
    uint16_t family, port; /* port: big-endian */
    uint8_t bytes[16];
    uint16_t link_layer, mtu;
} place_t;

void ib_place_write(const ib_place_t *from, lh_address_t *out)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)&from->at;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)&from->at;
    place_t p = {.magic = IB_MAGIC,
                 .token = from->token,
                 .family = from->at.ss_family,
                 .link_layer = from->link_layer,
                 .mtu = from->mtu};
    if (p.family == AF_INET) {
        p.port = four->sin_port;
        memcpy(p.bytes, &four->sin_addr, 4);
    } else {
        p.port = six->sin6_port;
        memcpy(p.bytes, &six->sin6_addr, 16);
    }
    out->length = sizeof(p);
    memcpy(out->bytes, &p, sizeof(p));
}

/* The last byte of the magic is the version: "lhb2", "lhb3". */
lh_status_t ib_place_read(const lh_address_t *from, ib_place_t *place)
{
    place_t p = {0};
    struct sockaddr_storage *out = &place->at;
    memcpy(&p, from->bytes, from->length < sizeof(p) ? from->length : sizeof(p));
    if (p.magic != IB_MAGIC && ((p.magic ^ IB_MAGIC) & 0xffffff) == 0) return LH_ABI;
    if (p.magic != IB_MAGIC || from->length != sizeof(p) ||
        (p.family != AF_INET && p.family != AF_INET6))
        return LH_INVALID;
    memset(place, 0, sizeof(*place));
    place->token = p.token;
    place->link_layer = p.link_layer;
    place->mtu = p.mtu;
    if (p.family == AF_INET) {
        struct sockaddr_in *a = (struct sockaddr_in *)(void *)out;
        a->sin_family = AF_INET;
        a->sin_port = p.port;
        memcpy(&a->sin_addr, p.bytes, 4);
    } else {
        struct sockaddr_in6 *a = (struct sockaddr_in6 *)(void *)out;
        a->sin6_family = AF_INET6;
        a->sin6_port = p.port;
        memcpy(&a->sin6_addr, p.bytes, 16);
    }
    return LH_OK;
}

void ib_place_port(struct sockaddr_storage *a, uint16_t port)
{
    if (a->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)a)->sin_port = port;
    else
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = port;
}

void ib_place_text(const struct sockaddr_storage *a, char *out, size_t room)
{
    char host[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a;
    if (a->ss_family == AF_INET)
        (void)inet_ntop(AF_INET, &four->sin_addr, host, sizeof(host));
    else
        (void)inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof(host));
    (void)snprintf(out, room, a->ss_family == AF_INET ? "%s:%u" : "[%s]:%u", host,
                   ntohs(a->ss_family == AF_INET ? four->sin_port : six->sin6_port));
}

lh_status_t ib_address_text(LH_UNUSED lh_transport_t *t, const lh_address_t *address, char *text,
                            size_t room)
{
    ib_place_t place;
    const lh_status_t status = ib_place_read(address, &place);
    if (status != LH_OK) return status;
    ib_place_text(&place.at, text, room);
    return LH_OK;
}
