/* links/links.h - connections to the other ranks, each over the transport plugin that the INI names
 * for its class of link ([transport.node|site|wan]), and the memory that is registered with them.
 *
 * One thread at a time calls (comm_runs.h sees to it; a probe beside the opening has links of its own,
 * links_early.h). Nothing blocks but links_open, links_connect, links_probe, links_early_finish,
 * links_sleep and, for 0.2 s at most, links_close. Messages of one direction of a link match in the
 * order posted, and a receive that was posted before the peer's message leaves is what lets that message
 * go without a round trip.
 *
 * The first link that breaks ends all: its peer is named, the control plane is told, and every call
 * from then on returns the same failure. Links are not repaired here: what an outage of a long link
 * may last is up to the transport, which is told of it ([transport.wan] outage). */
#ifndef LINKS_LINKS_H
#define LINKS_LINKS_H

#include <stdatomic.h>

#include <base/text.h>
#include <config/job.h>
#include <control/control.h>
#include <links/carrier.h>
#include <links/link_tuner.h>
#include <plugin/registry.h>

typedef struct links links_t;
typedef struct links_early links_early_t; /* links_early.c */
typedef struct link link_t;               /* to one peer, both directions */

/* All that is named here outlives the links. */
typedef struct links_how {
    const job_t *job; /* [transport.*] sections: plugin, security, fallback, options */
    registry_t *registry;
    const world_t *world;
    control_t *control; /* carries the addresses */
    bool apart;         /* a link that breaks is told to its caller alone, and the job goes on */
} links_how_t;

/* Opens the transports of the classes of link that this world has, listens, exchanges addresses.
 * All ranks call it. A class that some rank can't open is opened anew by its fallback on all ranks,
 * or refused on all, with the rank and its reason. */
lh_status_t links_open(const links_how_t *how, links_t **out) LH_MUST_CHECK;
/* Cancels what is posted and waits 0.2 s at most for transports to let go of it; then everything is
 * closed. From then on nobody touches buffers. NULL does nothing. */
void links_close(links_t *l);

/* Memory that messages lie in, the same order of calls on all ranks. fd: memfd behind it or -1.
 * *arena counts from 0. */
lh_status_t links_arena(links_t *l, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                        uint32_t *arena) LH_MUST_CHECK;
/* Whether messages over a class of link may lie in a device's own memory: LH_OK, or why not. */
lh_status_t links_take_device(const links_t *l, uint32_t scope) LH_MUST_CHECK;
/* As links_arena, for memory of a device that its dma-buf stands for: known to the transports that take
 * such alone, so that links_take_device is asked before a message is planned there. fd is the caller's
 * to close. After a failure there is no such arena. */
lh_status_t links_device_arena(links_t *l, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                               uint32_t *arena) LH_MUST_CHECK;
/* Forgets the arenas from the first-th on; before anything is connected. */
void links_arenas_drop(links_t *l, uint32_t first);

/* NULL: not connected. */
link_t *links_find(links_t *l, uint32_t peer, uint32_t service);
uint32_t link_peer(const link_t *k);
/* LH_LINK_*. */
uint32_t link_scope(const link_t *k);
const char *link_transport(const link_t *k);
/* Base address of a peer's arena in this process, where the transport maps it (shm); else NULL. */
const void *link_map(const link_t *k, uint32_t arena);

/* Post a message and return; the memory belongs to the transport until the event comes. LH_AGAIN:
 * not now, links_poll frees room. cookie comes back with the event. */
lh_status_t link_send(link_t *k, uint32_t arena, const void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie);
lh_status_t link_recv(link_t *k, uint32_t arena, void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie);

/* A message that has ended: what was sent may be written again, what was received is there. */
typedef struct links_event {
    uint64_t cookie;
    bool received; /* else: sent */
    uint64_t bytes;
} links_event_t;
/* Makes progress; *count may be 0. A lost or broken link ends in a status with the peer named; it
 * has been told to the control plane then (but where links are `apart`). */
lh_status_t links_poll(links_t *l, links_event_t *events, uint32_t max,
                       uint32_t *count) LH_MUST_CHECK;
/* Sleeps until there may be something to poll, the control plane has a failure, `wake_fd` is
 * readable (-1: none) or the time is over. Spins first for spin_ns. */
void links_sleep(links_t *l, int wake_fd, uint64_t spin_ns, uint64_t timeout_ns);

/* For reports and the choice of algorithms: sums of bytes since the links were opened, and the
 * largest figures of any link of the class. */
typedef struct link_class { /* by scope */
    const char *transport;  /* NULL: no such link here */
    const char *security;   /* its level, as the INI writes it */
    const char *card; /* by which it leaves, as the transport names it; lives as the links do */
    uint64_t bytes_sent, bytes_received;
    uint64_t round_trip_ns,
        bytes_per_second; /* as the transport tells; 0: unknown, or nothing was sent */
    /* As it was known before the connections were made, which is all there is before the first step. */
    uint64_t known_trip_ns, known_bytes_per_second;
} link_class_t;
void links_class(const links_t *l, uint32_t scope, link_class_t *out);
/* A row for each other site that this rank has links to, by the order of links, `room` at most; how
 * many. */
uint32_t links_flows(const links_t *l, link_flow_t *rows, uint32_t room);
/* What the link's transport tells of it; LH_UNSUPPORTED if it tells nothing. */
lh_status_t link_stats(const link_t *k, lh_link_stats_t *out);

/* What is known of the links between sites, the same on all ranks: a row a pair. */
const probe_pair_t *links_pairs(const links_t *l, uint32_t *count);

/* ---- the inside, for the files of links/ alone ---- */

enum {
    LINKS_SCOPES = 4, /* index LH_LINK_*                                        */
    LINKS_BATCH = 64, /* events taken from a transport at a time                */
    LINKS_READY = LINKS_SCOPES * LINKS_BATCH,
    LINKS_DEPTH = 4096, /* most operations of a direction of a link, whatever is advertised */
    LINKS_ARENAS = 256,
    LINKS_REASON = 400,
    LINKS_CHANGES = 8, /* of links tuned anew, until somebody asks for them    */
    LINKS_SILENT = 16, /* who sends nothing keeps one of so many of an equal part of a rate */
};
#define LINKS_FILL 0.97 /* of a border's rate: what its ranks send together, so that queues drain */

/* A message on its way. A link has as many as its transport takes, made beforehand, so that posting
 * does not allocate; the transport brings its address back as the cookie of its event. */
typedef struct operation {
    link_t *link;
    uint64_t cookie; /* the caller's */
    bool own;        /* of links_connect: no event for the caller */
} operation_t;

/* One service to one peer. There is a link object before its connection: `conn` is NULL until it
 * has been dialed or admitted, and `up` is set by the transport's event. */
struct link {
    links_t *links;
    carrier_t *carrier;
    lh_conn_t *conn;
    uint32_t peer, service;
    bool dials, up, drained;
    bool leaving;          /* it is about to end: that is no failure           */
    bool gone;             /* it is leaving, and the peer has closed it already      */
    uint32_t own_done;     /* of links_connect's own operations */
    lh_link_t known;       /* of its way, as it is tuned for; 0: not known */
    probe_follow_t follow; /* pace 0: it is not paced           */
    uint64_t told_rate;    /* by the transport, a step ago      */
    probe_losses_t losses; /* of what it sent while it trains   */
    double said_loss;      /* that the log was last told, or the probe found */
    double room;           /* bytes a second that its buffers are for */
    uint64_t buffers;      /* that were asked for; 0: none        */
    uint64_t trip_ns;      /* round trip of the last step; 0: see link_told_t */
    bool slow;             /* it did not keep its pace then       */
    uint64_t sent, received;
    operation_t *operations;
    operation_t **idle; /* those that are free */
    uint32_t idle_count, operation_count;
    lh_remote_t **remotes; /* [links->arena_count at the time], NULL: not mapped */
    const void **maps;
    uint32_t map_count;
};

/* Memory of the caller, registered with every transport that is open, so that whichever link a
 * message takes knows it. */
typedef struct arena {
    lh_arena_t row;
    lh_region_t *regions[LINKS_SCOPES];
} arena_t;

/* A peer that has dialed before this rank asked for its link: ranks reach links_connect at
 * different times. */
typedef struct guest {
    carrier_t *carrier;
    lh_conn_t *conn;
    lh_hello_t hello;
} guest_t;

/* Lists of pointers, as links are few and their addresses are cookies of their connections. */
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
    uint64_t sent[LINKS_SCOPES], received[LINKS_SCOPES]; /* by links that are gone */
    double *shares; /* [ranks x sites] of a border's rate; NULL: ranks of a site have equal ones */
    uint64_t *settled; /* [ranks x sites] that was to be sent until these were settled */
    double *demand;    /* [ranks x sites] of late, which they go by */
    /* [sites x sites] of what a pair has alone, where it shares a way with others, and the same two of
     * all ranks of a site together; NULL with `shares`: all send alike. */
    double *parts;
    uint64_t *crossed;
    double *crossing;
    probe_pair_t *pairs; /* [pair_count] of sites, as links_pair counts them */
    uint32_t pair_count;
    link_tuner_t *tuners; /* [pair_count]; NULL: ranks have told each other nothing yet */
    link_change_t changes[LINKS_CHANGES]; /* [change_count], oldest first */
    uint32_t change_count;
    text_t said;          /* of this machine, before it measured */
    probe_words_t *words; /* [word_count] on rank 0, of all machines that measured */
    uint32_t word_count;
    /* A probe beside the opening (links_early.c): that which is under way, or NULL, and the carrier between
     * sites, of which what never changes may be read while the probe has it. */
    links_early_t *early;
    const carrier_t *lent;
    /* Of the links that such a probe has for its own: ranks meet aside; since when what was begun beside it
     * waits, 0: it does not; nobody wants it any more. */
    bool aside;
    _Atomic uint64_t waits_ns;
    _Atomic bool cancelled;
    bool even;    /* paces are those of equal shares, whatever `shares` says */
    bool probing; /* a connection has its pair's whole rate, not a rank's part */
    bool closing;
    lh_status_t failed; /* LH_OK: not */
    char failure[LINKS_REASON];
};

/* Takes what the transports have to tell into `ready`, as far as there is room. What ends an own
 * operation or a connection is dealt with on the way. May be called while waiting for anything. */
void links_harvest(links_t *l);
/* LH_OK, or the failure of this object or of the control plane, as fail() gives it. */
lh_status_t links_status(links_t *l);
/* control_gather and control_collect, in the channel in which ranks measure these links. */
lh_status_t links_gather(const links_t *l, const void *mine, size_t bytes, void *all) LH_MUST_CHECK;
lh_status_t links_collect(const links_t *l, const void *mine, size_t bytes,
                          void *all) LH_MUST_CHECK;
/* Records that a link is lost and tells the control plane; the first failure stays. */
void links_lose(link_t *k, lh_status_t status, const char *reason);
/* A free operation, which link_idle gives back; NULL: all are on their way. */
operation_t *link_operation(link_t *k, uint64_t cookie, bool own);
/* link_send and link_recv for memory of the caller's that is registered as `region`. */
lh_status_t link_post(link_t *k, lh_region_t *region, bool sends, void *data, uint64_t bytes,
                      uint32_t tag, uint64_t cookie);
/* The host's memory of this process alone, as transports register it. base is borrowed. */
static inline lh_arena_t links_memory(void *base, uint64_t bytes)
{
    return (lh_arena_t){.struct_size = sizeof(lh_arena_t),
                        .kind = LH_MEM_HOST,
                        .base = base,
                        .bytes = bytes,
                        .fd = -1,
                        .numa = -1};
}
/* Memory with every transport that is open and takes its kind; regions of others stay NULL. After a
 * failure the caller releases what was registered. */
lh_status_t links_register(links_t *l, const lh_arena_t *arena,
                           lh_region_t *regions[LINKS_SCOPES]) LH_MUST_CHECK;
void links_release(links_t *l, lh_region_t *const regions[LINKS_SCOPES]);
/* Cancels what a link has posted and waits, 0.2 s at most, until its transport says that nobody
 * touches those buffers any more. Events that nobody has taken yet are dropped, of all links. */
void link_drain(link_t *k);
void link_idle(operation_t *o);
/* Also of a link that is only half made. It is not taken from the list. */
void link_free(link_t *k);
/* Ends a link that leaves, for another of the same peer and service to take its place. */
void link_drop(link_t *k);
/* Rows for all pairs of sites, with names, addresses and the plugin, and no figures. The same on
 * all ranks, as addresses have been exchanged. Once. */
lh_status_t links_pairs_make(links_t *l) LH_MUST_CHECK;
/* Of the pairs of sites (0,1), (0,2), (1,2), (0,3) ...: that of these two, which differ. */
uint32_t links_pair(uint32_t site, uint32_t other);

#endif
