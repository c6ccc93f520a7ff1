/* train/train_save.h - hands the weights and states to the writer and hears what became of them.
 *
 * Saves run beside training: the writer is a process of its own that holds a copy. Here is the
 * other half, which decides when a copy is made and learns what became of it. With several ranks
 * each save goes through phases that all ranks enter at the same step; the step's own exchange
 * carries what each has to say. */
#ifndef TRAIN_TRAIN_SAVE_H
#define TRAIN_TRAIN_SAVE_H

#include <train/trainer.h>

/* Begins a save, or says why not. On a device that queues work the tensors are copied while the next
 * step's rounds run: t->taking is set then, and whoever queues that step calls trainer_take until it
 * is not, before the update. Any other device, and the last save of a run, hand over at once. Where
 * the save before takes too long, this save is left out, unless it is the last of the run. A disk
 * or a saver process that fails costs this save and a warning, not the run, unless it is the last
 * save. A writer that can make no save any more (writer_lost) fails the run, as does
 * [hook.before_save] where it refuses. Called by all ranks at the same step. */
lh_status_t trainer_save(trainer_t *t, bool last) LH_MUST_CHECK;
/* A snapshot that stays in memory, where one is due and no save is under way. What keeps this rank
 * from it costs this snapshot and a warning. Called by all ranks at the same step. */
lh_status_t trainer_save_memory(trainer_t *t) LH_MUST_CHECK;
/* While t->taking: copies some more, and hands all over once that is done. */
lh_status_t trainer_take(trainer_t *t) LH_MUST_CHECK;
/* For a rank that is alone: asks the writer, without waiting, whether the last save is done. Does
 * nothing where there are several ranks, which agree in trainer_save_agreed instead. */
void trainer_poll_save(trainer_t *t);
/* Of several ranks: what this one says of the save under way in a sum over all ranks, and what
 * follows from that sum. All ranks do the latter at the same point of the run. */
double trainer_save_word(trainer_t *t);
lh_status_t trainer_save_agreed(trainer_t *t, double words) LH_MUST_CHECK;
/* Waits until what was handed over is committed; fails if it was not. */
lh_status_t trainer_finish_save(trainer_t *t) LH_MUST_CHECK;

#endif
