/* tcp_relay.h - a middleman between two ranks: passes bytes on in pieces, or changes one of them.
 */
#ifndef TCP_RELAY_H
#define TCP_RELAY_H

#include <longhaul/link.h>

typedef struct relay {
    int listener, near, far; /* near: who dialled us */
    lh_address_t to, own;
    size_t piece;       /* bytes at once; 0: as they come */
    uint64_t passed[2]; /* from near, from far */
    int64_t flip_at[2]; /* position of the byte whose flip_bit changes; -1: none */
    uint8_t flip_bit;
    int64_t repeat_from, repeat_to; /* of what near sent: sent twice; -1: none */
    uint8_t kept[1 << 16];
} relay_t;

/* A socket at the address, as a stranger has it; -1. */
int relay_dial(const lh_address_t *to);
void relay_open(relay_t *r, const lh_address_t *to);
void relay_step(relay_t *r);
void relay_close(relay_t *r);

#endif
