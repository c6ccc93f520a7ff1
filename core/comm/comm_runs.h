/* comm/comm_runs.h - carries out the runs of plans, for whoever waits and for the thread that drives
 * them meanwhile. Who calls what is said at each: "locked" is between runs_enter and runs_leave. */
#ifndef COMM_COMM_RUNS_H
#define COMM_COMM_RUNS_H

#include <comm/comm_state.h>

void runs_enter(comm_t *c);
void runs_leave(comm_t *c);

/* collective_start and its like. gate: NULL, none. */
lh_status_t runs_start(collective_t *x, const collective_gate_t *gate) LH_MUST_CHECK;
lh_status_t runs_test(collective_t *x);
lh_status_t runs_wait(collective_t *x) LH_MUST_CHECK;

/* Locked: tells all that no run will end any more. */
void runs_release(comm_t *c);
/* Of the thread; `comm` is a comm_t. */
void *runs_thread(void *comm);

#endif
