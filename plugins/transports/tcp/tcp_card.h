/* tcp_card.h - which of the cards that `nics` names streams go over. */
#ifndef TCP_CARD_H
#define TCP_CARD_H

#include <sched.h>

#include "tcp.h"

enum { CARD_NAME = 16 }; /* of an interface, with the NUL: the kernel's IFNAMSIZ */

typedef struct card {
    char name[CARD_NAME];
    int32_t numa;      /* its node; -1: the kernel tells none      */
    uint32_t distance; /* as the kernel counts: 10 is the own node */
} card_t;

/* Fills t->here with the nearest of t->config->nics and logs which these are. Names that are no card
 * with an address, and what does not go together with `nics`, are refused. */
lh_status_t cards_choose(lh_transport_t *t);
/* "eth0, eth1": where streams leave from; cut to room. */
void cards_text(const lh_transport_t *t, char *out, size_t room);

/* The first two of t->here that have no address but a link-local one; false: there are no two. */
bool cards_local(const lh_transport_t *t, const place_t *two[2]);

/* The two that follow read /sys, or what a test puts in its place. */

/* The NUMA node that has all of these processors; -1: none has. */
int32_t cards_own_node(const char *system, const cpu_set_t *own);
/* Puts the cards that are nearest to node `own` (-1: to none) first, each part in the order that it
 * had, and returns how many these are: 1 to count. A card without a node counts as near. */
uint32_t cards_nearest(const char *system, int32_t own, card_t *cards, uint32_t count);

#endif
