/* train/train_run.h - the train stage: from data and start weights to a row of checkpoints.
 *
 * Rank 0 and all others call the same function with the same job; they differ in how->world, and in
 * that only rank 0 has an observer. */
#ifndef TRAIN_TRAIN_RUN_H
#define TRAIN_TRAIN_RUN_H

#include <train/train.h>

/* LH_OK also when it was terminated after a save: see outcome. Blocks until the run is over. The
 * calling thread is the control thread: it makes every step, calls the observer and asks between
 * steps whether somebody wants the run to stop. A failure of any rank ends the run on all; the
 * sentence that is returned is this rank's own, and control_close puts that of the rank which
 * failed first in its place. */
lh_status_t train_run(const train_how_t *how, train_result_t *out) LH_MUST_CHECK;

#endif
