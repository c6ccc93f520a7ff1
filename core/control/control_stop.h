/* control/control_stop.h - a machine is asked to stop before there is a step to end behind: all that have
 * come are told so, by rank 0 or by whoever stands in its place. For the threads of both ends of the
 * star, and for a door. */
#ifndef CONTROL_CONTROL_STOP_H
#define CONTROL_CONTROL_STOP_H

#include <control/control_state.h>

/* STATUS_STOPPED or STATUS_ENDED. */
bool control_stop_is(lh_status_t status);
/* What this process's launcher asks of it that others are to hear: one of these two, or LH_OK. */
lh_status_t control_stop_asked(const control_asked_t *asked);
/* Names the machine; either name may be "". */
void control_stop_sentence(lh_status_t status, const char *site, const char *host,
                           char out[CONTROL_STOP_TEXT]);
/* What a process tells of its own machine, with which rank 0 makes the sentence for all. */
const char *control_stop_reason(lh_status_t status);

/* ---- rank 0 ---- */

/* A machine has told that it was asked so: whom of it that was, and its names. The first counts. */
void control_stop_note(control_t *c, lh_status_t status, uint32_t rank, const char *site,
                       const char *host);
/* At each turn: what is asked of this process itself; and the end, once it is due. */
void control_stop_turn(control_t *c, uint64_t now);
/* True: nobody may meet any more, and all are told why now, where they were not yet. */
bool control_stop_ends(control_t *c);

#endif
