/* parallel/recorded_calls.h - transfers that a model has recorded become the exchange's, and the waits
 * for what two ranks send each other are put off. For arrange.c. */
#ifndef PARALLEL_RECORDED_CALLS_H
#define PARALLEL_RECORDED_CALLS_H

#include <parallel/transfers.h>

/* Takes all that recordings stated in a program, before other transfers are put in; the update's are
 * its own. Adds a row to the table for each. Fails with a sentence where one names a group that this
 * world does not have in that size, or a peer that the group does not have. */
lh_status_t recorded_calls_take(transfers_t *t, program_t *p) LH_MUST_CHECK;

#endif
