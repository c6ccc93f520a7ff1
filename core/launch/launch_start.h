/* launch/launch_start.h - the ranks of this machine: started, watched, ended. Returns when none of
 * them lives any more, nor anything that they left behind. */
#ifndef LAUNCH_LAUNCH_START_H
#define LAUNCH_LAUNCH_START_H

#include <launch/launch_state.h>

/* words: the command line of a rank, ended by NULL. Returns an exit code or a negative status. */
int launch_start(launch_t *l, char *const *words);

#endif
