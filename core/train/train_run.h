/* train/train_run.h - the train stage: from data and start weights to a row of checkpoints. */
#ifndef TRAIN_TRAIN_RUN_H
#define TRAIN_TRAIN_RUN_H

#include <train/train.h>

/* LH_OK also when it was terminated after a save: see outcome. */
lh_status_t train_run(const train_how_t *how, train_result_t *out) LH_MUST_CHECK;

#endif
