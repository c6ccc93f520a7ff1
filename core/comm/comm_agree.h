/* comm/comm_agree.h - before the first run: all ranks plan the same, and every message has its match.
 * What ranks tell each other grows with the groups that they are in, not with plans. */
#ifndef COMM_COMM_AGREE_H
#define COMM_COMM_AGREE_H

#include <comm/comm_runs.h>

/* Of bytes of each rank, to all. */
lh_status_t comm_gather(comm_t *c, const void *mine, size_t bytes, void *all) LH_MUST_CHECK;
/* The same status on all ranks: the first that is not LH_OK, with its sentence. */
lh_status_t comm_verdict(comm_t *c, lh_status_t mine) LH_MUST_CHECK;
/* Where this rank's buffers of a plan lie. */
void comm_place(const collective_t *x, plan_place_t *out);
lh_status_t comm_agree_plans(comm_t *c) LH_MUST_CHECK;
lh_status_t comm_agree_lanes(comm_t *c) LH_MUST_CHECK;
/* Once links are up: where peers' buffers are seen from here. */
void comm_map_peers(collective_t *x);
/* Of a plan's group: ranks match the n-th plans of a key. */
uint64_t comm_key(const coll_how_t *how, const world_t *w);

typedef struct link_figures {
    uint64_t round_trip_ns, bytes_per_second;
} link_figures_t;

typedef struct comm_facts {       /* of all ranks, the same everywhere */
    uint32_t maps[COMM_SERVICES]; /* bit per arena: its peers on the node can map it */
    link_figures_t figures[COMM_SCOPES];
} comm_facts_t;

/* all: [ranks]. The same on all ranks. */
void comm_choose(const collective_t *x, const comm_facts_t *all, script_how_t *out);

#endif
