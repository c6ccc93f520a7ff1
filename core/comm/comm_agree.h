/* comm/comm_agree.h - before the first run: all ranks plan the same, and every message has its match.
 * What ranks tell each other grows with the groups that they are in, not with plans. */
#ifndef COMM_COMM_AGREE_H
#define COMM_COMM_AGREE_H

#include <comm/comm_state.h>

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

#endif
