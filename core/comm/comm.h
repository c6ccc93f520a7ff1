/* comm/comm.h - what a rank communicates with: its links, its planned collectives and the thread
 * that drives them while the rank computes.
 *
 * Order of use: comm_open, comm_probe or not, comm_arena for every memory, collective_new for every plan
 * (also before their memory exists, see coll_place_t: the address must be final), comm_connect, then
 * runs. All ranks do these in the same order. One thread opens, plans, connects and closes; runs may be
 * started and waited for by any.
 *
 * A failure before the runs leaves a comm that can only be closed. A failure of a run is one of the
 * whole comm (comm_runs.c); links are not opened again within it. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <comm/collective.h>
#include <comm/native.h>

/* All that is named here outlives the comm. */
typedef struct comm_how {
    const job_t *job; /* [comm], [transport.*] */
    registry_t *registry;
    const world_t *world;
    control_t *control;
    bool thread;  /* a progress thread of its own; false: runs go on only inside collective_start,
                     _test and _wait, which then look at gates too */
    bool planned; /* no links: plans are made to be counted, never connected */
} comm_how_t;

lh_status_t comm_open(const comm_how_t *how, comm_t **out) LH_MUST_CHECK;
/* To be called when no run is under way, or after a failure: the comm's thread ends, so that
 * nothing polls the links any more and one that ends is no failure. The caller then waits for all
 * ranks (a barrier), and calls comm_close. */
void comm_stop(comm_t *c);
/* After a failure, behind comm_stop: what waits on the device for other ranks ends. It may stand in the queue
 * behind waits for runs of this comm, which comm_stop has told that nothing will end: a library that aborts its
 * communicators waits until the queue is past what it has there. */
void comm_cancel(comm_t *c);
void comm_close(comm_t *c); /* frees its plans; NULL does nothing */

const world_t *comm_world(const comm_t *c);
control_t *comm_control(const comm_t *c);
/* No rank is ever asked: plans are counted, and no run is possible. */
bool comm_is_planned(const comm_t *c);
links_t *comm_links(comm_t *c);
/* Collectives on the device's own queue; NULL: none. They are joined by comm_connect. */
native_t *comm_native(const comm_t *c);
/* The group LH_GROUP_*, made once. NULL after fail(). */
const group_t *comm_group(comm_t *c, uint32_t which);

/* fd: memfd behind the memory, sealed against shrinking or able to be, or -1. It stays open until
 * comm_close: peers on this machine map it, and read in place. */
lh_status_t comm_arena(comm_t *c, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                       uint32_t *arena) LH_MUST_CHECK;
/* Memory of a device, as its dma-buf (fd) stands for it. fd -1: memory of the host, in place of some that
 * this rank has none of. */
typedef struct comm_device_memory {
    void *base; /* an address of the device's: no processor reads there */
    uint64_t bytes;
    int fd; /* the caller's to close */
    uint64_t fd_offset;
} comm_device_memory_t;

/* Lets links reach memory of a device, for plans with coll_how_t.device over a group: on all ranks of
 * the world, which all call it, or on none. mine: why this rank's device shares nothing (fail() has the
 * sentence), else LH_OK. *taken: arenas [count] are those of comm_arena. Else nothing is registered, and
 * fail_reason() says why not, of the first rank that could not. It fails where ranks can't be asked. */
lh_status_t comm_device_arenas(comm_t *c, const group_t *g, const comm_device_memory_t *memory,
                               uint32_t count, lh_status_t mine, uint32_t *arenas,
                               bool *taken) LH_MUST_CHECK;
/* Begins to measure the links between sites that are not known (links_early.h), after comm_known_links, for
 * comm_connect to wait for instead of doing it itself. What this rank does meanwhile should leave the
 * machine a processor: what keeps all busy makes links look slower. Where there are less than two that it may
 * run on for each of the machine's ranks it returns when the links are measured. All ranks call it, or none. */
lh_status_t comm_probe(comm_t *c) LH_MUST_CHECK;
/* Until that is over, as before work for all processors. LH_OK where nothing was begun. */
lh_status_t comm_probe_wait(comm_t *c) LH_MUST_CHECK;
/* Measures the links between sites that are not known (links_probe), connects to all peers that
 * plans need, and makes the scripts and their staging memory. Plans are checked: all ranks' lists
 * of messages must match pair by pair, or all ranks fail with the first difference. */
lh_status_t comm_connect(comm_t *c) LH_MUST_CHECK;
/* The links between sites that an earlier job has measured, for comm_connect, which takes them
 * over as [comm] probe says, and for comm_plan. The list is borrowed until comm_connect or the last
 * comm_plan has returned. comm_connect looks at that of rank 0 alone. */
void comm_known_links(comm_t *c, const probe_pair_t *known, uint32_t count);
/* Bytes of scripts, of the state of runs, of staging and of kept errors: a row of the memory
 * report. */
uint64_t comm_bytes(const comm_t *c);
/* After comm_connect: scripts that the plans share, one for each group, op and shape. */
uint32_t comm_scripts(const comm_t *c);
/* What comm_bytes will be, told before comm_connect and without any peer: memory of ranks on a node
 * counts as mapped where its transport can map, and links between sites are as comm_known_links has
 * them by the names of sites, else as they are before they are measured. After it collective_bytes
 * tells what plans will send, and comm_expected what is known of links. */
lh_status_t comm_plan(comm_t *c, uint64_t *bytes) LH_MUST_CHECK;

/* Of the pairs of sites, as links_pair counts them; NULL and 0: nothing is known. */
const probe_pair_t *comm_expected(const comm_t *c, uint32_t *count);

/* The step of training, for what control_progress tells of waits. Between two steps: links between
 * sites that have become slower or faster are paced anew, and those of which all ranks have told that
 * they are others now are tuned anew. */
void comm_step(comm_t *c, uint64_t step);
/* What this rank has to tell all others of its links to each site, by runs that were started and by what
 * transports say: [sites]. */
void comm_tell(comm_t *c, link_told_t *rows);
/* What comm_tell said on all ranks, [ranks x sites], the same on all of them: from the next comm_step on
 * a site's ranks share the rate of its links by it (links_share), and links are tuned by it
 * (links_agree). Borrowed until comm_close, and looked at there and in comm_borders alone. */
void comm_told(comm_t *c, const link_told_t *all);

/* Before traffic that is not a step's (evaluation, saves, the end): until the next comm_step the ranks
 * of a site have equal parts of the rate of its links. */
void comm_even(comm_t *c);

/* links_flows, links_borders of what comm_told has brought last (none before it has), and links_changes,
 * for reports. */
uint32_t comm_flows(comm_t *c, link_flow_t *rows, uint32_t room);
uint32_t comm_borders(comm_t *c, link_border_t *rows, uint32_t room);
uint32_t comm_changes(comm_t *c, link_change_t *rows, uint32_t room);

/* By scope (index LH_LINK_*): ns that waits took, of the host or of a device, by the class of link that
 * was waited for, since the last call. */
void comm_exposed(comm_t *c, uint64_t ns[4]);
/* Counts a wait that a device has made for what its own queues exchange. */
void comm_expose(comm_t *c, uint32_t scope, uint64_t ns);

#endif
