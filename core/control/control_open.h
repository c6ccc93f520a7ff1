/* control/control_open.h - opens a rank's control plane and closes it.
 *
 * Apart from control.h, since opening a plane needs control_how_t of control_state.h, which those
 * who only use one do not see. */
#ifndef CONTROL_CONTROL_OPEN_H
#define CONTROL_CONTROL_OPEN_H

#include <control/control.h>
#include <control/control_state.h>

/* Meets all ranks. Facts that differ: LH_MISMATCH and a table of who differs, on every rank. Makes
 * the world. Strangers have no effect beyond control_counts_t.strangers. */
lh_status_t control_open(const control_how_t *how, control_t **out, world_t **world) LH_MUST_CHECK;
/* Before control_close, on rank 0: the job does not end with these ranks, as others are to follow. Machines that wait
 * beside it (control_members.h) are not told that it is over. On other ranks it does nothing. */
void control_goes_on(control_t *c);
/* Says goodbye: what ends without one is a death. status and reason of this rank's end travel with
 * it, so that all others end with the first reason. Returns how the job ended as far as this rank
 * knows: status, or what failed before it; then fail_reason() is the sentence that all have. Rank 0
 * waits here until all others have said goodbye, for join_ns at most, or 1 s after a failure. NULL
 * does nothing. */
lh_status_t control_close(control_t *c, lh_status_t status, const char *reason);

#endif
