/* tcp_card.h - which of the cards that `nics` names streams go over. */
#ifndef TCP_CARD_H
#define TCP_CARD_H

#include <sched.h>

#include "tcp.h"

enum { CARD_NAME = 16 };      /* of an interface, with the NUL: the kernel's IFNAMSIZ */
enum { DEVICE_ADDRESS = 32 }; /* as lh_world_t.device */

typedef struct card {
    char name[CARD_NAME];
    int32_t numa;      /* its node; -1: the kernel tells none                               */
    bool beside;       /* below the root port of the device                                 */
    uint32_t distance; /* as the kernel counts nodes: 10 is the own one; 0: it is beside it */
} card_t;

typedef struct card_from {       /* what cards are to be near to */
    char device[DEVICE_ADDRESS]; /* this rank's, as the kernel writes it; "": none is known */
    int32_t node; /* of the device, else of the processors; -1: of none, or of several */
} card_from_t;

/* Fills t->here with the nearest of t->config->nics and logs which these are. Names that are no card
 * with an address, and what does not go together with `nics`, are refused. */
lh_status_t cards_choose(lh_transport_t *t);
/* "eth0, eth1": where streams leave from; cut to room. */
void cards_text(const lh_transport_t *t, char *out, size_t room);

/* lh_transport_api_t.card_stats: a row for each of t->here. */
uint32_t cards_stats(const lh_conn_t *c, lh_card_stats_t *rows, uint32_t row_size, uint32_t max);

/* The first two of t->here that have no address but a link-local one; false: there are no two. */
bool cards_local(const lh_transport_t *t, const place_t *two[2]);

/* Whether a connected socket leads to another machine; *is_real: by a device, and not by an interface
 * that the kernel makes up (tun, veth, bridge, bond, VLAN), which has none of its own. */
bool card_leads_away(int fd, bool *is_real);

/* The four that follow read /sys, or what a test puts in its place. */

bool card_is_real(const char *system, const char *interface);
/* The NUMA node that has all of these processors; -1: none has. */
int32_t cards_own_node(const char *system, const cpu_set_t *own);
/* The device that the host tells of, where the kernel knows it; else these processors (NULL: not
 * known). */
void cards_from(const char *system, const lh_world_t *world, const cpu_set_t *own,
                card_from_t *out);
/* Puts the cards that are nearest first, each part in the order that it had, and returns how
 * many these are: 1 to count. Below the device's root port is nearer than its node. A card
 * without a node counts as on it. */
uint32_t cards_nearest(const char *system, const card_from_t *from, card_t *cards, uint32_t count);

#endif
