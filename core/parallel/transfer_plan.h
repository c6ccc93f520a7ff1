/* parallel/transfer_plan.h - makes a collective for each transfer, once programs have memory or, for a
 * job that is only planned, places: a plan of core/comm, or what the device's own collectives are
 * told. */
#ifndef PARALLEL_TRANSFER_PLAN_H
#define PARALLEL_TRANSFER_PLAN_H

#include <parallel/transfers.h>

/* Lets the engine plan all transfers when it is built (exchange_t.bind, native). Before
 * engine_arrange. */
void transfer_plan_use(transfers_t *t);
/* Plans every transfer as engine_build does, for a comm that is planned only. After engine_plan,
 * whose places stand for the memory. */
lh_status_t transfer_plan(transfers_t *t) LH_MUST_CHECK;
/* After comm_plan: adds the bytes that all ranks of the world send over borders,
 * starts[transfers_count] being how often each transfer runs: to by_rank[ranks], and to
 * between[CROSSINGS + 1][sites][sites] by what is carried, from a site to another. All ranks have
 * transfers that are alike, so any can count; but for sends and receives, which are left out. */
lh_status_t transfer_plan_crossings(const transfers_t *t, const uint64_t *starts, uint64_t *by_rank,
                                    uint64_t *between) LH_MUST_CHECK;
/* Likewise: the bytes that this rank sends over borders by its sends. */
uint64_t transfer_plan_pairs(const transfers_t *t, const uint64_t *starts);

#endif
