/* control/control_ask.h - a process that waits for others asks the machines of the job, one after the
 * other, whether the job has gone on there.
 *
 * A machine that comes back does not know who leads now: rank 0's own machine least of all, at whose
 * port nobody comes any more. Asking takes nobody in and changes nothing where it is answered
 * (control_members_hello). */
#ifndef CONTROL_CONTROL_ASK_H
#define CONTROL_CONTROL_ASK_H

#include <control/control_state.h>

/* How long a process waits before it begins to ask. */
enum { CONTROL_ASK_AFTER_MS = 3000 };

/* Of two that wait for each other the one with the lower order is right: rank 0's machine, whatever its
 * number, as a spare's is higher than all hosts'; then the others as the INI has them. */
uint32_t control_ask_order(const control_members_t *m, uint32_t machine);

/* A thread of its own, as a machine that is down answers late. Only of a job whose members change, in
 * which other machines have addresses; more than once does nothing. Where it can't be started nobody
 * is asked. */
void control_ask_start(control_t *c);
/* Nobody need be asked any more; and waits for the thread, a dial's time at most. */
void control_ask_enough(control_t *c);
void control_ask_end(control_t *c);
/* Whether the job has gone on elsewhere. Valid until control_ask_end. */
bool control_ask_told(control_t *c, frame_regroup_t *out);

#endif
