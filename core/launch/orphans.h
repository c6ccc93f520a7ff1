/* launch/orphans.h - processes that are there when their rank is not any more: what it left at work, such as a
 * saver, which its launcher has taken over; and its own, where SIGKILL does not end it.
 *
 * A process that waits in the kernel, for a driver or a disk, may do so for ever. A launcher that waited for it
 * would never say why the job ended, and nobody would start it elsewhere: it is named and left behind. */
#ifndef LAUNCH_ORPHANS_H
#define LAUNCH_ORPHANS_H

#include <launch/launch_members.h>

/* The ranks of this machine have ended. Returns once what they left at work has ended too, or can't be. hear
 * takes a signal that came to the launcher meanwhile: this may take a minute. */
void orphans_reap(starter_t *s, void (*hear)(starter_t *s));

/* Whether the launcher has killed this rank so long ago that nothing will end it. */
bool orphans_is_stuck(const started_t *r, uint64_t now);
/* Such a rank is told of and left behind: started_t.stuck is its process from here on. */
void orphans_leave_rank(const starter_t *s, started_t *r);
/* The first that was left behind; NULL: none was. */
const started_t *orphans_find_rank(const starter_t *s);

#endif
