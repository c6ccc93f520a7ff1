/* launch/launch_end.h - how the ranks of this machine have ended: why, whether they start again, and the exit code.
 * For the launcher (launch_start.h), which has waited for them. */
#ifndef LAUNCH_LAUNCH_END_H
#define LAUNCH_LAUNCH_END_H

#include <launch/launch_members.h>

/* Whether a rank that has ended did so by a signal, by its own word, or with code 0 before its end: without a
 * goodbye to the others. */
bool launch_end_is_death(const starter_t *s, const started_t *r);
/* Whether it was a rank of this machine that ended those of the job, as far as is known here. */
bool launch_end_is_own(const starter_t *s);
/* All ranks of this machine have ended: what became of them is told. The exit code of the job: of the first that
 * failed; of a stop that was asked for; else 0; or a negative status. *again: it does not end yet. */
int launch_end_code(starter_t *s, bool *again);
/* Prints that this machine was asked to stop, by which signal. */
void launch_end_tell_stop(const starter_t *s);

#endif
