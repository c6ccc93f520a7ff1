/* links/links.h - connections to the other ranks, each over the transport plugin that the INI names
 * for its class of link ([transport.node|site|wan]), and the memory that is registered with them.
 *
 * One thread at a time calls (comm.h sees to it). Nothing blocks but links_open and links_connect.
 * Messages of one direction of a link match in the order posted. */
#ifndef LINKS_LINKS_H
#define LINKS_LINKS_H

#include <config/job.h>
#include <control/control.h>
#include <links/link_probe.h>
#include <plugin/registry.h>

typedef struct links links_t;
typedef struct link link_t; /* to one peer, both directions */

typedef struct links_how {
    const job_t *job; /* [transport.*] sections: plugin, security, fallback, options */
    registry_t *registry;
    const world_t *world;
    control_t *control; /* carries the addresses */
} links_how_t;

/* Opens the transports of the classes of link that this world has, listens, exchanges addresses. */
lh_status_t links_open(const links_how_t *how, links_t **out) LH_MUST_CHECK;
void links_close(links_t *l);

/* Memory that messages lie in, the same order of calls on all ranks. fd: memfd behind it or -1.
 * *arena counts from 0. */
lh_status_t links_arena(links_t *l, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                        uint32_t *arena) LH_MUST_CHECK;

/* Measures the links between sites, pair by pair: one rank of each site, the others wait. What is
 * known already (rank 0's list counts; it may be NULL) is taken over, as [comm] probe says. Sites
 * of one machine have no link. Before links_connect, whose connections are told what was found. */
lh_status_t links_probe(links_t *l, const probe_pair_t *known, uint32_t count) LH_MUST_CHECK;
/* What is known of the links between sites, the same on all ranks: a row a pair. */
const probe_pair_t *links_pairs(const links_t *l, uint32_t *count);

/* NULL: not connected. */
link_t *links_find(links_t *l, uint32_t peer, uint32_t service);
uint32_t link_peer(const link_t *k);
uint32_t link_scope(const link_t *k);
const char *link_transport(const link_t *k);
/* Base address of a peer's arena in this process, where the transport maps it (shm); else NULL. */
const void *link_map(const link_t *k, uint32_t arena);

/* LH_AGAIN: not now, links_poll frees room. cookie comes back with the event. */
lh_status_t link_send(link_t *k, uint32_t arena, const void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie);
lh_status_t link_recv(link_t *k, uint32_t arena, void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie);

typedef struct links_event {
    uint64_t cookie;
    bool received; /* else: sent */
    uint64_t bytes;
} links_event_t;
/* Makes progress; *count may be 0. A lost or broken link ends in a status with the peer named; it
 * has been told to the control plane then. */
lh_status_t links_poll(links_t *l, links_event_t *events, uint32_t max,
                       uint32_t *count) LH_MUST_CHECK;
/* Sleeps until there may be something to poll, the control plane has a failure, `wake_fd` is
 * readable (-1: none) or the time is over. Spins first for spin_ns. */
void links_sleep(links_t *l, int wake_fd, uint64_t spin_ns, uint64_t timeout_ns);

/* Between two steps: a link between sites that has become slower or faster is paced anew. */
void links_follow(links_t *l, uint64_t step);

/* For reports and the choice of algorithms. */
typedef struct link_class { /* by scope */
    const char *transport;  /* NULL: no such link here */
    uint64_t bytes_sent, bytes_received;
    uint64_t round_trip_ns, bytes_per_second; /* measured; 0: unknown */
} link_class_t;
void links_class(const links_t *l, uint32_t scope, link_class_t *out);
lh_status_t link_stats(const link_t *k, lh_link_stats_t *out);

#endif
