/* checkpoint/incarnation.h - which of two starts of a run was the later one, where sites have folders of
 * checkpoints of their own.
 *
 * A run that goes on without a site makes steps again that this site may have made, and saved, before:
 * with other ranks, and so with other bits. Of two checkpoints of one step that of the later start is what the
 * run has gone on from. No clock and no count of meetings says which that is, as launchers are started
 * anew and forget them. So each start counts one more than any folder that takes part in it has seen, and writes that
 * into all of them before it saves; its checkpoints carry the number (MANIFEST_INCARNATION). Two starts
 * one after the other have a machine in common (control_members.c), and so a folder: the later one has the
 * larger number. [serial] */
#ifndef CHECKPOINT_INCARNATION_H
#define CHECKPOINT_INCARNATION_H

#include <base/status.h>

enum { INCARNATION_RUN = 33 }; /* a run's id and NUL */

typedef struct incarnation {
    uint64_t number;           /* from 1 on; 0: none */
    char run[INCARNATION_RUN]; /* id of the run; "": not known */
} incarnation_t;

/* The last one that was written into a folder. A folder that is missing has none. */
lh_status_t incarnation_read(const char *folder, incarnation_t *out) LH_MUST_CHECK;
/* After a power loss, too, it is what incarnation_read finds, also where the folder is new. Only while holding
 * the folder's lock. */
lh_status_t incarnation_write(const char *folder, const incarnation_t *value) LH_MUST_CHECK;

#endif
