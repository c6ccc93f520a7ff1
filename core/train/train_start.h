/* train/train_start.h - where a run goes on: the checkpoint that it is resumed from, the same on all
 * ranks. All functions are for all ranks. */
#ifndef TRAIN_TRAIN_START_H
#define TRAIN_TRAIN_START_H

#include <train/train_state.h>

/* Opens the writer, and the checkpoint that the run goes on from (t->resumed, NULL: none). Every
 * rank has a writer: one that nobody has forked before is forked here. */
lh_status_t train_start_find(trainer_t *t) LH_MUST_CHECK;
/* Appends the lines of a run's identity that say which ranks make it. */
void train_start_layout(const trainer_t *t, text_t *out);
/* Appends the line that says in which order ranks add; nothing for one rank. */
void train_start_sums(const trainer_t *t, text_t *out);
/* Whether the checkpoint was made by other ranks than these, and [launch] go_on_with lets them go on: it
 * promises no bits then. What ranks, and their devices, have chosen may differ; all else must agree. */
lh_status_t train_start_by_others(const trainer_t *t, bool *out) LH_MUST_CHECK;
/* What must be as it was where same_bits is promised. Compared are the lines that both texts have.
 * A line that is added later in opening is checked by the call after it. */
lh_status_t train_start_check_bits(const trainer_t *t) LH_MUST_CHECK;
/* Fills weights and states from t->resumed, each byte read once and checked; where some are lost
 * that checkpoint is skipped and all ranks take an older one. */
lh_status_t train_start_resume(trainer_t *t) LH_MUST_CHECK;

#endif
