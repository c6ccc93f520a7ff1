/* launch/launch_door.h - a door: a process that a launcher starts while stages without ranks run on its
 * machine, where rank 0 will be. It stands at the address at which ranks will meet (control_door.h), so that
 * machines which wait hear of a stop that is asked for here, and this one of theirs. */
#ifndef LAUNCH_LAUNCH_DOOR_H
#define LAUNCH_LAUNCH_DOOR_H

#include <launch/launch_state.h>

/* ---- in the launcher ---- */

/* A stage without ranks begins on this machine, where rank 0 will be, of a job with other machines: from here
 * on a stop is told to all that have come. Does nothing where there is a door already. What keeps ranks from
 * meeting later, such as a key that others can read, is refused now; a port that can't be had yet is
 * told. words: the command line of a rank. */
lh_status_t launch_door_open(launch_t *l, char *const *words) LH_MUST_CHECK;
/* Rank 0 is about to listen: the door is gone, and who came to it dials again. STATUS_STOPPED or
 * STATUS_ENDED after fail(): another machine was asked so meanwhile, and all have been told. */
lh_status_t launch_door_pass(launch_t *l) LH_MUST_CHECK;
/* The stages have ended with this code or negative status, and no rank will listen. Where they were
 * asked to stop, all are told. Returns what the launcher ends with: another machine may have been asked. */
int launch_door_shut(launch_t *l, int code);

/* ---- in the door's own process ---- */

/* Returns an exit code or a negative status. */
int launch_door_run(launch_t *l);

#endif
