/* links/links_state.h - what links.c and links_connect.c share. */
#ifndef LINKS_LINKS_STATE_H
#define LINKS_LINKS_STATE_H

#include <links/carrier.h>
#include <links/links.h>

enum {
    LINKS_SCOPES = 4, /* index LH_LINK_*                                        */
    LINKS_BATCH = 64, /* events taken from a transport at a time                */
    LINKS_READY = LINKS_SCOPES * LINKS_BATCH,
    LINKS_DEPTH = 4096, /* most operations of a direction of a link, whatever is advertised */
    LINKS_ARENAS = 256,
    LINKS_REASON = 400,
};

typedef struct operation {
    link_t *link;
    uint64_t cookie; /* the caller's */
    bool own;        /* of links_connect: no event for the caller */
} operation_t;

struct link {
    links_t *links;
    carrier_t *carrier;
    lh_conn_t *conn;
    uint32_t peer, service;
    bool dials, up, drained;
    bool leaving;          /* both ends have agreed that it ends: that is no failure */
    bool gone;             /* it is leaving, and the peer has closed it already      */
    uint32_t own_done;     /* of links_connect's own operations */
    probe_follow_t follow; /* pace 0: it is not paced           */
    uint64_t told_rate;    /* by the transport, a step ago      */
    operation_t *operations;
    operation_t **idle; /* those that are free */
    uint32_t idle_count, operation_count;
    lh_remote_t **remotes; /* [links->arena_count at the time], NULL: not mapped */
    const void **maps;
    uint32_t map_count;
};

typedef struct arena {
    lh_arena_t row;
    lh_region_t *regions[LINKS_SCOPES];
} arena_t;

typedef struct guest { /* has dialed and is not asked for yet */
    carrier_t *carrier;
    lh_conn_t *conn;
    lh_hello_t hello;
} guest_t;

struct links {
    links_how_t how;
    carrier_t *carriers[LINKS_SCOPES];
    lh_address_t *addresses; /* [size x LINKS_SCOPES], as each rank listens */
    arena_t *arenas;
    uint32_t arena_count;
    size_t arena_capacity;
    link_t **links;
    uint32_t link_count;
    size_t link_capacity;
    guest_t *guests;
    uint32_t guest_count;
    size_t guest_capacity;
    links_event_t ready[LINKS_READY]; /* told by the transports, not yet asked for */
    uint32_t ready_first, ready_count;
    uint64_t sent[LINKS_SCOPES], received[LINKS_SCOPES];
    probe_pair_t *pairs; /* [pair_count] of sites, as links_pair counts them */
    uint32_t pair_count;
    bool probing; /* a connection has its pair's whole rate, not a rank's part */
    bool closing;
    lh_status_t failed; /* LH_OK: not */
    char failure[LINKS_REASON];
};

/* Takes what the transports have to tell into `ready`, as far as there is room. */
void links_harvest(links_t *l);
/* LH_OK, or the failure of this object or of the control plane, as fail() gives it. */
lh_status_t links_status(links_t *l);
/* Records that a link is lost and tells the control plane; the first failure stays. */
void links_lose(link_t *k, lh_status_t status, const char *reason);
operation_t *link_operation(link_t *k, uint64_t cookie, bool own); /* NULL: none is free */
void link_idle(operation_t *o);
void link_free(link_t *k);
/* Ends a link that leaves, for another of the same peer and service to take its place. */
void link_drop(link_t *k);
/* The plugin's tuning number `choice` for a link, and its words on it; false: there are fewer. A
 * plugin that offers none has one, of zeroes. */
bool links_tune(const carrier_t *c, const lh_link_t *link, uint32_t choice, lh_tuning_t *out,
                char tuned[PROBE_TUNED]);
/* Of the pairs of sites (0,1), (0,2), (1,2), (0,3) ...: that of these two, which differ. */
uint32_t links_pair(uint32_t site, uint32_t other);

#endif
