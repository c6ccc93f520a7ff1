/* train/train_save.h - hands the weights and states to the writer and hears what became of them. */
#ifndef TRAIN_TRAIN_SAVE_H
#define TRAIN_TRAIN_SAVE_H

#include <train/trainer.h>

/* Hands over, or says why not: where the save before takes too long, this one is left out, unless
 * it is the last of the run. */
lh_status_t trainer_save(trainer_t *t, bool last) LH_MUST_CHECK;
void trainer_poll_save(trainer_t *t);
/* Of several ranks: what this one says of the save under way in a sum over all ranks, and what
 * follows from that sum. All ranks do the latter at the same point of the run. */
double trainer_save_word(trainer_t *t);
lh_status_t trainer_save_agreed(trainer_t *t, double words) LH_MUST_CHECK;
/* Waits until what was handed over is committed; fails if it was not. */
lh_status_t trainer_finish_save(trainer_t *t) LH_MUST_CHECK;

/* All ranks tell all of their memory, once the steps are made: t->memory. */
lh_status_t trainer_memory(trainer_t *t) LH_MUST_CHECK;

#endif
