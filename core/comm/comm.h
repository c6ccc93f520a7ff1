/* comm/comm.h - what a rank communicates with: its links, its planned collectives and the thread
 * that drives them while the rank computes.
 *
 * Order of use: comm_open, comm_arena for every memory, collective_new for every plan (also before
 * their memory exists, see coll_place_t: the address must be final), comm_connect, then runs. All
 * ranks do these in the same order. One thread opens, plans, connects and closes; runs may be
 * started and waited for by any.
 *
 * A failure before the runs leaves a comm that can only be closed. A failure of a run is one of the
 * whole comm (comm_runs.c); links are not opened again within it. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <comm/collective.h>

/* All that is named here outlives the comm. */
typedef struct comm_how {
    const job_t *job; /* [comm], [transport.*] */
    registry_t *registry;
    const world_t *world;
    control_t *control;
    bool thread;  /* a progress thread of its own; false: only waits make progress, and nothing may
                     begin behind a gate that the one who waits can't pass */
    bool planned; /* no links: plans are made to be counted, never connected */
} comm_how_t;

lh_status_t comm_open(const comm_how_t *how, comm_t **out) LH_MUST_CHECK;
/* No run is under way: its thread ends and nothing is polled, so that a link that ends is no
 * failure any more. Then a barrier, then comm_close, so that all ranks end in order. */
void comm_stop(comm_t *c);
void comm_close(comm_t *c); /* frees its plans; NULL does nothing */

const world_t *comm_world(const comm_t *c);
control_t *comm_control(const comm_t *c);
links_t *comm_links(comm_t *c);
/* The group LH_GROUP_*, made once. NULL after fail(). */
const group_t *comm_group(comm_t *c, uint32_t which);

/* fd: memfd behind the memory, sealed against shrinking or able to be, or -1. It stays open until
 * comm_close: peers on this machine map it, and read in place. */
lh_status_t comm_arena(comm_t *c, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                       uint32_t *arena) LH_MUST_CHECK;
/* Measures the links between sites that are not known (links_probe), connects to all peers that
 * plans need and posts what can be posted early. Plans are checked: all ranks' lists of messages
 * must match pair by pair, or all are refused with the first difference. */
lh_status_t comm_connect(comm_t *c) LH_MUST_CHECK;
/* What a record has of links between sites, for comm_connect: until it has returned. Rank 0's
 * counts. */
void comm_known_links(comm_t *c, const probe_pair_t *known, uint32_t count);
/* Of plans and staging: a row of the memory report. */
uint64_t comm_bytes(const comm_t *c);
/* After comm_connect: scripts that the plans share, one for each group, op and shape. */
uint32_t comm_scripts(const comm_t *c);
/* The same before comm_connect, without any peer: memory of ranks on a node is mapped where its
 * transport can, and long links have the chunks that they have before they are measured. */
lh_status_t comm_plan(comm_t *c, uint64_t *bytes) LH_MUST_CHECK;

/* The step of training, for what control_progress tells of waits. Between two steps: links between
 * sites that have become slower or faster are paced anew. */
void comm_step(comm_t *c, uint64_t step);

/* By scope (index LH_LINK_*): ns that waits took, by the class of link that was waited for, since
 * the last call. */
void comm_exposed(comm_t *c, uint64_t ns[4]);

#endif
