/* ib_place.c - addresses: what a listener's holds for the host, and how people read it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "ib.h"

typedef struct place { /* what an address holds */
    uint32_t magic, token;
    uint16_t family, port; /* port: big-endian */
    uint8_t bytes[16];
    uint32_t scope;
} place_t;

void ib_place_write(const struct sockaddr_storage *from, uint16_t port, uint32_t token,
                    lh_address_t *out)
{
    place_t p = {.magic = IB_MAGIC, .token = token, .family = from->ss_family, .port = port};
    if (from->ss_family == AF_INET)
        memcpy(p.bytes, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    else
        memcpy(p.bytes, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 16);
    out->length = sizeof(p);
    memcpy(out->bytes, &p, sizeof(p));
}

bool ib_place_read(const lh_address_t *from, struct sockaddr_storage *out, uint32_t *token)
{
    place_t p;
    if (from->length != sizeof(p)) return false;
    memcpy(&p, from->bytes, sizeof(p));
    if (p.magic != IB_MAGIC || (p.family != AF_INET && p.family != AF_INET6)) return false;
    memset(out, 0, sizeof(*out));
    *token = p.token;
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
    return true;
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
    struct sockaddr_storage a;
    uint32_t token;
    if (!ib_place_read(address, &a, &token)) return LH_INVALID;
    ib_place_text(&a, text, room);
    return LH_OK;
}
