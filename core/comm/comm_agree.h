/* comm/comm_agree.h - before the first run: all ranks plan the same, choose the same algorithms,
 * and every message has its match. Ranks tell each other over the control plane; how much grows
 * with the groups that they are in, not with plans. All ranks call these functions in the same
 * order, from one thread. */
#ifndef COMM_COMM_AGREE_H
#define COMM_COMM_AGREE_H

#include <comm/comm_runs.h>

/* Brings `bytes` of each rank to all: all[rank * bytes]. A world of one rank asks nobody. */
lh_status_t comm_gather(comm_t *c, const void *mine, size_t bytes, void *all) LH_MUST_CHECK;
/* Makes of each rank's status one for all ranks: the first that is not LH_OK, with its sentence. The
 * function itself fails where ranks can't be asked. */
lh_status_t comm_ask(comm_t *c, lh_status_t mine, lh_status_t *of_all) LH_MUST_CHECK;
/* The same, for what no rank goes on without. */
lh_status_t comm_verdict(comm_t *c, lh_status_t mine) LH_MUST_CHECK;
/* Where this rank's buffers of a plan lie. */
void comm_place(const collective_t *x, plan_place_t *out);
/* LH_MISMATCH on every rank if any two ranks of a group plan differently; the sentence names both
 * ranks and the collective. Fills x->places of all plans. */
lh_status_t comm_agree_plans(comm_t *c) LH_MUST_CHECK;
/* As comm_agree_plans, for messages, once scripts are made: what one end sends in a direction is
 * what the other awaits, in lengths, tags and order. */
lh_status_t comm_agree_lanes(comm_t *c) LH_MUST_CHECK;
/* Once links are up: where peers' buffers are seen from here (x->peers); NULL where they are not
 * mapped. */
void comm_map_peers(collective_t *x);
/* A number for the plan's group, the same on all its ranks: ranks match the n-th plans of a key. */
uint64_t comm_key(const coll_how_t *how, const world_t *w);

/* What a rank's transports tell of a class of links, the largest over its links; 0: unknown. */
typedef struct link_figures {
    uint64_t round_trip_ns, bytes_per_second;
} link_figures_t;

typedef struct comm_facts {       /* of all ranks, the same everywhere */
    uint32_t maps[COMM_SERVICES]; /* bit per arena: its peers on the node can map it */
    link_figures_t figures[COMM_SCOPES];
} comm_facts_t;

/* Whether the plan is an end of a pair that is read in place, and so is answered (script_lane_t). The same
 * at both ends. */
bool comm_answers(const collective_t *x, const comm_facts_t *all);
/* The pairs of sites with what is known of them, NULL and 0: nothing. As expected until the ranks connect, even
 * where links have been measured by then (comm_probe); from there on as found. */
const probe_pair_t *comm_pairs(const comm_t *c, uint32_t *count);
/* Sets the way between sites of the request, and its middle. how: with pieces. */
lh_status_t comm_between(const comm_t *c, const coll_how_t *how, script_how_t *out) LH_MUST_CHECK;
/* The request of a script: algorithm, way between sites, chunk, lag, mapped peers. all: [ranks], the same on all
 * ranks, so the choice is too. Sets x->peers[].mapped. */
lh_status_t comm_choose(const collective_t *x, const comm_facts_t *all,
                        script_how_t *out) LH_MUST_CHECK;

#endif
