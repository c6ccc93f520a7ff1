/* train/trainer.h - a training run brought up and taken down. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <train/train_state.h>

/* Everything before step 1: all refusals that the job deserves come from here. t is closed by the
 * caller whatever is returned. All ranks call it, as it meets the others several times. */
lh_status_t trainer_open(trainer_t *t, const train_how_t *how) LH_MUST_CHECK;
/* Where the run failed nobody is waited for; the others are told by the control plane. */
void trainer_close(trainer_t *t);

/* What is planned for this rank: the engine's memory, and what comm holds for transfers. */
void trainer_planned_memory(const trainer_t *t, memory_report_t *out);
/* All ranks tell all of their memory, once the steps are made: t->ranks_memory. Blocking, all ranks.
 * Asked at most once: the last save asks before it gives device memory back. */
lh_status_t trainer_memory(trainer_t *t) LH_MUST_CHECK;

#endif
