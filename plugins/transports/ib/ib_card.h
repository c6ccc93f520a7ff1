/* ib_card.h - a card as the kernel tells of it: firmware, NUMA node, GIDs, counters. */
#ifndef IB_CARD_H
#define IB_CARD_H

#include <longhaul/link.h>

#include "ib_verbs.h"

typedef void (*ib_card_line_t)(void *context, const char *text);

/* folder: of the device in sysfs, as libibverbs names it; "" where there is none.
 *
 * What a counter of a port says, of the firmware's or of the port's own; UINT64_MAX: it has none of
 * that name. */
uint64_t ib_card_counter(const char *folder, uint32_t port, const char *name);
enum { IB_GIDS_MOST = 256 };
typedef struct ib_gid { /* a row of a port's table */
    uint8_t bytes[16];
    uint32_t index;
    uint32_t roce; /* version; 0: InfiniBand */
} ib_gid_t;
/* False: there is none, or the row is empty. */
bool ib_card_gid(const char *folder, uint32_t port, uint32_t index, ib_gid_t *out);
/* -1: unknown. */
int32_t ib_card_numa(const char *folder);
/* "0000:3b:00.0"; "" where it is on no bus. */
void ib_card_bus(const char *folder, char *out, size_t room);
/* The most bytes that a queue pair of the device has under way; 0: no limit is known. mtu: the port's code. */
uint64_t ib_card_pair_bytes(const char *folder, uint32_t mtu);
/* A line with the port's figures, then one each for counters, NUMA distances and, of which there may be
 * very many, GIDs. */
void ib_card_tell(const char *folder, const char *name, uint32_t port, const verbs_port_t *figures,
                  ib_card_line_t line, void *context);

/* lh_transport_api_t.cards */
lh_status_t ib_cards(const lh_host_t *host, ib_card_line_t line, void *context);

#endif
