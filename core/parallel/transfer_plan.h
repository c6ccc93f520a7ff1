/* parallel/transfer_plan.h - a plan of comm/ for every transfer, once its places are known. */
#ifndef PARALLEL_TRANSFER_PLAN_H
#define PARALLEL_TRANSFER_PLAN_H

#include <parallel/transfers_state.h>

/* planned: there is no memory, and addresses stand for it. */
lh_status_t transfer_plan_all(transfers_t *t, bool planned) LH_MUST_CHECK;
/* exchange_t.bind: plans all, and holds the ranks' lists against each other. */
lh_status_t transfer_plan_bind(exchange_t *x) LH_MUST_CHECK;

#endif
