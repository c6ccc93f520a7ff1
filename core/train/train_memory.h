/* train/train_memory.h - snapshots that stay in memory: with whom a rank keeps one, how it gets
 * there beside the steps, and how ranks that start again turn what is left of them into a
 * checkpoint. */
#ifndef TRAIN_TRAIN_MEMORY_H
#define TRAIN_TRAIN_MEMORY_H

#include <train/train_state.h>

/* Before a checkpoint is looked for, all ranks. Where a step is whole in the memory of the ranks that
 * are there, which is of a later start of the run than the newest good one on disk, or of none that is
 * earlier and newer, they write it to the disk: from then on it is a checkpoint like any other. Where
 * that fails a warning says so, and the disk's is the newest. Steps in memory without which a later start
 * has gone on are told in a warning, and are lost.
 * opened: what became of opening the writer; a rank other than 0 does not come here with a failure.
 */
lh_status_t train_memory_rescue(trainer_t *t, lh_status_t opened) LH_MUST_CHECK;
/* After engine_build and before the links are connected, all ranks: the writer's layout, with room
 * for others' images, and the collectives that bring them. Does nothing without [checkpoint]
 * memory_every. */
lh_status_t train_memory_plan(trainer_t *t) LH_MUST_CHECK;
void train_memory_close(trainer_t *t);

/* Whether a snapshot in memory is due after this step. The same on all ranks. */
bool train_memory_due(const trainer_t *t, uint64_t step);
/* Of the snapshot in `slot`: where it is to go to another machine it travels from the next
 * train_memory_start on. False: no image of any rank travels. */
bool train_memory_send(trainer_t *t, uint32_t slot);
/* Begins what is to travel. All ranks call it at the same places between other collectives. */
lh_status_t train_memory_start(trainer_t *t) LH_MUST_CHECK;
/* LH_AGAIN: not all of this rank's has arrived, or begun. Never blocks. */
lh_status_t train_memory_test(trainer_t *t) LH_MUST_CHECK;

/* Which rank keeps the images of `rank`: one of the next machine of its site, or of the next machine
 * of all where its site has no other. World size: there is one machine only. */
uint32_t train_memory_partner(const world_t *w, uint32_t rank);
/* Of how many ranks of other machines a rank of this job keeps the snapshots, at most; by the INI alone. apart:
 * sites have folders of their own, so that each rank's goes to each other site. */
uint64_t train_memory_guests(const job_t *job, bool apart);

#endif
