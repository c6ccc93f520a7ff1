/* train/train_step.h - one optimizer step: its batch, the rounds of forward and backward, the update, and
 * what comes of it.
 *
 * A step is queued and then finished, two calls since a device that queues work has the next step
 * before the figures of this one are read. All ranks make the same calls in the same order, and
 * so start the same transfers and agreements. */
#ifndef TRAIN_TRAIN_STEP_H
#define TRAIN_TRAIN_STEP_H

#include <train/train_state.h>

/* Counted from the first step of this run, not of the job, so that a resumed run has its profile
 * too. */
enum { PROFILED_STEP = 5 }; /* by then pages are touched and libraries warm */

/* Queues step t->queued + 1: its rounds, and the update behind them. */
lh_status_t train_step_queue(trainer_t *t) LH_MUST_CHECK;
/* What the device gets to do, and the host does, before the host waits for the figures of step
 * t->step + 1: the next step where it may be queued, and the batch behind all that is. */
lh_status_t train_step_ahead(trainer_t *t) LH_MUST_CHECK;
/* Reads the figures of step t->step + 1, which waits for it, and tells them; *applied is false if it
 * was not finite. A step that is not applied still counts: step and tokens move on, the data moves
 * on, only the weights stay. */
lh_status_t train_step_finish(trainer_t *t, bool *applied) LH_MUST_CHECK;

#endif
