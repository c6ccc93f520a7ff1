/* ib_gid.c - which GID of its port a queue pair has: a row of the port's table, which is an address and,
 * with RoCE, a version of it.
 *
 * librdmacm finds the port by the address that is bound, so the row must be one of that address. Where
 * `gid` leaves it open it is the one of RoCE v2, which is routed; and where the kernel shows no table it
 * is what its connection manager takes. InfiniBand's GIDs are no IP addresses: there a row is only what
 * leaves a subnet. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include "ib.h"

enum { PORTS_MOST = 8, ROWS_TEXT = 400 };

typedef struct wish { /* what `gid` says */
    bool any, by_index;
    uint32_t index;
    uint8_t bytes[16];
} wish_t;

static void map_address(const void *four, uint8_t out[16])
{
    memset(out, 0, 10);
    memset(out + 10, 0xff, 2);
    memcpy(out + 12, four, 4);
}

static void address_bytes(const struct sockaddr_storage *a, uint8_t out[16])
{
    const void *at = a;
    const struct sockaddr_in *four = at;
    const struct sockaddr_in6 *six = at;
    if (a->ss_family == AF_INET)
        map_address(&four->sin_addr, out);
    else
        memcpy(out, &six->sin6_addr, 16);
}

/* As people write it: an IPv4 address where it is one. */
static void gid_text(const uint8_t bytes[16], char out[INET6_ADDRSTRLEN])
{
    struct in6_addr a;
    memcpy(&a, bytes, sizeof(a));
    if (IN6_IS_ADDR_V4MAPPED(&a))
        (void)inet_ntop(AF_INET, bytes + 12, out, INET6_ADDRSTRLEN);
    else
        (void)inet_ntop(AF_INET6, bytes, out, INET6_ADDRSTRLEN);
}

static bool wish_read(const char *text, wish_t *out)
{
    struct in_addr four;
    *out = (wish_t){.any = text == NULL || text[0] == '\0' || strcmp(text, "auto") == 0};
    if (out->any || inet_pton(AF_INET6, text, out->bytes) == 1) return true;
    out->by_index = text[strspn(text, "0123456789")] == '\0' && strlen(text) < 4;
    if (out->by_index) {
        out->index = (uint32_t)strtoul(text, NULL, 10);
        return out->index < IB_GIDS_MOST;
    }
    if (inet_pton(AF_INET, text, &four) != 1) return false;
    map_address(&four, out->bytes);
    return true;
}

enum { ROCE_LATEST = 2 };

/* The first row of an address, of the latest version of RoCE: a row is a file of the kernel's or two, of which
 * none is read behind one that no other can be better than. */
static bool find_address(const char *folder, uint32_t port, const uint8_t bytes[16], ib_gid_t *out)
{
    bool found = false;
    for (uint32_t i = 0; i < IB_GIDS_MOST && !(found && out->roce == ROCE_LATEST); i++) {
        ib_gid_t row;
        if (!ib_card_gid(folder, port, i, &row) || memcmp(row.bytes, bytes, 16) != 0) continue;
        if (!found || row.roce > out->roce) *out = row;
        found = true;
    }
    return found;
}

static bool find_wish(const char *folder, uint32_t port, const wish_t *w, ib_gid_t *out)
{
    return w->by_index ? ib_card_gid(folder, port, w->index, out)
                       : find_address(folder, port, w->bytes, out);
}

/* "0 (10.0.0.1, RoCE v1), 1 (10.0.0.1, RoCE v2)"; of: of that address alone; NULL: all. */
static void tell_rows(const ib_port_t *p, const uint8_t *of, char out[ROWS_TEXT])
{
    size_t at = 0;
    (void)snprintf(out, ROWS_TEXT, "none that can be seen");
    for (uint32_t i = 0; i < IB_GIDS_MOST && at + 1 < ROWS_TEXT; i++) {
        char text[INET6_ADDRSTRLEN];
        ib_gid_t row;
        if (!ib_card_gid(p->context->device->folder, p->number, i, &row)) continue;
        if (of != NULL && memcmp(row.bytes, of, 16) != 0) continue;
        gid_text(row.bytes, text);
        const int more = snprintf(out + at, ROWS_TEXT - at, "%s%u (%s%s)", at > 0 ? ", " : "", i,
                                  text,
                                  row.roce == 2   ? ", RoCE v2"
                                  : row.roce == 1 ? ", RoCE v1"
                                                  : "");
        at += more > 0 ? (size_t)more : 0;
    }
}

static lh_status_t check_wish(const lh_transport_t *t, const ib_port_t *p, const wish_t *w,
                              ib_gid_t *out)
{
    const lh_host_t *host = t->host;
    uint8_t own[16];
    char rows[ROWS_TEXT], here[INET6_ADDRSTRLEN], there[INET6_ADDRSTRLEN];
    if (!find_wish(p->context->device->folder, p->number, w, out)) {
        tell_rows(p, NULL, rows);
        return host->fail(host, LH_INVALID, "gid = %s: port %u of %s has no such GID; it has %s",
                          t->config->gid, p->number, p->device, rows);
    }
    address_bytes(&p->here, own);
    if (p->link_layer != VERBS_LINK_ETHERNET || memcmp(own, out->bytes, 16) == 0) return LH_OK;
    tell_rows(p, own, rows);
    gid_text(own, here);
    gid_text(out->bytes, there);
    return host->fail(host, LH_INVALID,
                      "gid = %s: that of port %u of %s is of %s, and the rank's address is %s; "
                      "expected one of that address: %s",
                      t->config->gid, p->number, p->device, there, here, rows);
}

lh_status_t ib_gid_choose(lh_transport_t *t, ib_port_t *p)
{
    const lh_host_t *host = t->host;
    uint8_t own[16];
    wish_t w;
    ib_gid_t row;
    p->gid = IB_GID_OPEN;
    if (!wish_read(t->config->gid, &w))
        return host->fail(
            host, LH_INVALID,
            "gid = %s: expected auto, a row of the port's table (0 to %d) or an address",
            t->config->gid, IB_GIDS_MOST - 1);
    /* Its table may be empty then; when it is back it has what the kernel takes. */
    if (p->down && !w.any && !find_wish(p->context->device->folder, p->number, &w, &row))
        return LH_OK;
    if (!w.any) {
        const lh_status_t status = check_wish(t, p, &w, &row);
        if (status != LH_OK) return status;
    } else {
        address_bytes(&p->here, own);
        if (p->link_layer != VERBS_LINK_ETHERNET ||
            !find_address(p->context->device->folder, p->number, own, &row))
            return LH_OK;
    }
    p->gid = row.index;
    p->roce = p->link_layer == VERBS_LINK_ETHERNET ? row.roce
                                                   : 0; /* the kernel calls IB's v1, too */
    return LH_OK;
}

bool ib_gid_is_row(const lh_transport_t *t)
{
    wish_t w;
    return wish_read(t->config->gid, &w) && !w.any && w.by_index;
}

static bool tell_address(const ib_gid_t *row, char *out, size_t room)
{
    char text[INET6_ADDRSTRLEN];
    gid_text(row->bytes, text);
    (void)snprintf(out, room, "%s", text);
    return true;
}

bool ib_gid_row(const lh_transport_t *t, const ib_port_t *p, char *out, size_t room)
{
    wish_t w;
    ib_gid_t row;
    return wish_read(t->config->gid, &w) && w.by_index &&
           ib_card_gid(p->context->device->folder, p->number, w.index, &row) && row.roce != 0 &&
           tell_address(&row, out, room);
}

bool ib_gid_address(lh_transport_t *t, char *out, size_t room)
{
    int count = 0;
    wish_t w;
    ib_gid_t row;
    bool found = false;
    if (!wish_read(t->config->gid, &w) || w.any) return false;
    verbs_device_t **list = t->verbs.get_device_list(&count);
    for (int i = 0; list != NULL && i < count && !found; i++) {
        const char *name = t->verbs.get_device_name(list[i]);
        if (t->config->device != NULL && strcmp(name, t->config->device) != 0) continue;
        for (uint32_t port = 1; port <= PORTS_MOST && !found; port++)
            found = find_wish(list[i]->folder, port, &w, &row) && row.roce != 0;
    }
    if (list != NULL) t->verbs.free_device_list(list);
    return found && tell_address(&row, out, room);
}
