/* ib_place.c - addresses: what a listener's holds for the host, and how people read it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "ib.h"

typedef struct place { /* what an address holds */
    uint32_t magic, token;
    uint16_t family, link_layer;
    uint8_t mtu, roce, ports, down;
    struct {
        uint16_t port, reserved; /* port: big-endian */
        uint8_t bytes[16];
    } at[IB_PORTS_MOST];
} place_t;

void ib_place_write(const ib_place_t *from, lh_address_t *out)
{
    place_t p = {.magic = IB_MAGIC,
                 .token = from->token,
                 .family = from->at[0].ss_family,
                 .link_layer = from->link_layer,
                 .mtu = (uint8_t)from->mtu,
                 .roce = (uint8_t)from->roce,
                 .ports = (uint8_t)from->ports,
                 .down = (uint8_t)from->down};
    for (uint32_t i = 0; i < from->ports; i++) {
        const void *at = &from->at[i];
        const struct sockaddr_in *four = at;
        const struct sockaddr_in6 *six = at;
        if (p.family == AF_INET) {
            p.at[i].port = four->sin_port;
            memcpy(p.at[i].bytes, &four->sin_addr, 4);
        } else {
            p.at[i].port = six->sin6_port;
            memcpy(p.at[i].bytes, &six->sin6_addr, 16);
        }
    }
    out->length = sizeof(p);
    memcpy(out->bytes, &p, sizeof(p));
}

/* The last byte of the magic is the version: "lhb5", "lhb6". */
lh_status_t ib_place_read(const lh_address_t *from, ib_place_t *place)
{
    place_t p = {0};
    memcpy(&p, from->bytes, from->length < sizeof(p) ? from->length : sizeof(p));
    if (p.magic != IB_MAGIC && ((p.magic ^ IB_MAGIC) & 0xffffff) == 0) return LH_ABI;
    if (p.magic != IB_MAGIC || from->length != sizeof(p) ||
        (p.family != AF_INET && p.family != AF_INET6) || p.ports == 0 || p.ports > IB_PORTS_MOST)
        return LH_INVALID;
    memset(place, 0, sizeof(*place));
    place->token = p.token;
    place->link_layer = p.link_layer;
    place->mtu = p.mtu;
    place->roce = p.roce;
    place->ports = p.ports;
    place->down = p.down;
    for (uint32_t i = 0; i < p.ports; i++) {
        void *out = &place->at[i];
        struct sockaddr_in *four = out;
        struct sockaddr_in6 *six = out;
        if (p.family == AF_INET) {
            four->sin_family = AF_INET;
            four->sin_port = p.at[i].port;
            memcpy(&four->sin_addr, p.at[i].bytes, 4);
        } else {
            six->sin6_family = AF_INET6;
            six->sin6_port = p.at[i].port;
            memcpy(&six->sin6_addr, p.at[i].bytes, 16);
        }
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
    ib_place_text(&place.at[0], text, room);
    for (uint32_t i = 1; i < place.ports; i++) {
        const size_t at = strlen(text);
        if (at + 2 >= room) break;
        (void)snprintf(text + at, room - at, ", ");
        ib_place_text(&place.at[i], text + at + 2, room - at - 2);
    }
    return LH_OK;
}
