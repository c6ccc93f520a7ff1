/* control/control_door.h - a door: it stands where rank 0 will listen, while stages that come before the
 * ranks run on rank 0's machine. Machines that wait come to it, so that each of them, and rank 0's, can
 * tell all others that it is asked to stop. */
#ifndef CONTROL_CONTROL_DOOR_H
#define CONTROL_CONTROL_DOOR_H

#include <control/control_stop.h>

typedef struct control_door_how {
    const job_t *job;
    int listener;            /* taken over, also when it fails */
    const secret_t *secret;  /* outlives the call */
    const char *site, *host; /* this machine's; "" where the INI lists none */
    control_asked_t *asked;  /* by its launcher */
} control_door_how_t;

/* Until its launcher asks for something, or a machine that has come is asked to stop. LH_OK: rank 0 is to
 * listen now, and all that have come dial again. Else STATUS_STOPPED or STATUS_ENDED, which all have been
 * told; sentence says whose machine was asked so, and *elsewhere that it was not this one. Another status
 * after fail(). */
lh_status_t control_door_keep(const control_door_how_t *how, char sentence[CONTROL_STOP_TEXT],
                              bool *elsewhere) LH_MUST_CHECK;

#endif
