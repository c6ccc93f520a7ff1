/* train/train_sites.h - where each site has checkpoints of its own: which one a run goes on from, and
 * how a site comes by one that it lacks. */
#ifndef TRAIN_TRAIN_SITES_H
#define TRAIN_TRAIN_SITES_H

#include <checkpoint/incarnation.h>
#include <train/train_state.h>

/* What rank 0 and the ranks that lead in the other sites' folders find there of what t->below leaves, and what
 * all make of it: t->resumed, of a site that lacks it its manifest alone; NULL: no site has any. LH_CORRUPT:
 * all that there are are damaged. Of rank 0's answers besides only whether a run may go on counts. All ranks.
 * `opened`: what became of opening this rank's writer. */
lh_status_t train_sites_find(trainer_t *t, lh_status_t opened) LH_MUST_CHECK;
/* Once the links are connected, all ranks, before t->resumed is read: brings it to the sites that lack
 * it, where it then is a checkpoint like any other. What such a site has of that step and above, of a start
 * without which the run has gone on, is set aside there, each step with a warning of rank 0's. Nothing is
 * before what has come is known to be whole; where one site's copy is damaged, that of the next that has one
 * comes. *brought false: no site's is whole, which all ranks have agreed on. */
lh_status_t train_sites_fetch(trainer_t *t, bool *brought) LH_MUST_CHECK;
/* Where ranks have found t->resumed damaged as they loaded it, all ranks; lost: this one has, and
 * fail_reason() says how. The sites of those get the copy of another one, whose ranks have found no damage in
 * what they have loaded, and put their own aside: *again is true, and all load once more. False: no site has
 * one that is whole. Where a disk does not take it all fail: older steps don't displace it. */
lh_status_t train_sites_again(trainer_t *t, bool lost, bool *again) LH_MUST_CHECK;
/* Once t->resumed is loaded whole, all ranks: sets such steps aside in the sites that lacked nothing. */
void train_sites_loaded(const trainer_t *t);
/* The last start that this rank's folder has seen, after train_sites_find that any site's has. */
incarnation_t train_sites_before(const trainer_t *t);
/* The last of opening, all ranks: counts this start in the folders of all sites, so that what it saves is
 * known for later than what any start before has saved: t->incarnation. Nothing where no site has a folder
 * of its own and no snapshot stays in memory, nor did when t->resumed was made. */
lh_status_t train_sites_incarnation(trainer_t *t) LH_MUST_CHECK;
void train_sites_close(trainer_t *t);

#endif
