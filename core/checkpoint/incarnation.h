/* checkpoint/incarnation.h - which of two starts of a run was the later one, where sites have folders of
 * checkpoints of their own, or snapshots stay in memory.
 *
 * A run that goes on without a site makes steps again that this site may have made, and saved, before:
 * with other ranks, and so with other bits. A machine that is left out keeps what it had in memory likewise.
 * Of two checkpoints, or images, of one step that of the later start is what the run has gone on from. No
 * clock and no count of meetings says which that is, as launchers are started anew and forget them. So each
 * start counts one more than any folder that takes part in it has seen, and writes that into all of them
 * before it saves; what it saves carries the number (MANIFEST_INCARNATION). Two starts one after the other
 * have a machine in common (control_members.c), and so a folder: the later one has the larger number.
 * [serial] */
#ifndef CHECKPOINT_INCARNATION_H
#define CHECKPOINT_INCARNATION_H

#include <checkpoint/manifest.h>

enum { INCARNATION_RUN = 33 }; /* a run's id and NUL */
/* A start a second for 30,000 years: a larger number was not counted by starts, and is none. */
#define INCARNATION_MOST UINT64_C(1000000000000)

typedef struct incarnation {
    uint64_t number;           /* from 1 to INCARNATION_MOST; 0: none */
    char run[INCARNATION_RUN]; /* id of the run; "": not known */
} incarnation_t;

/* Of the start that has made a checkpoint, or an image in memory, as its manifest says. */
incarnation_t incarnation_of(const manifest_t *m);
/* Whether a is a later start than b, of the same run. False where one of them is not known. */
bool incarnation_later(const incarnation_t *a, const incarnation_t *b);
/* The number of a start before which `seen` was the highest: one more, but where there is none more. */
uint64_t incarnation_after(uint64_t seen);

/* The last one that was written into a folder. A folder that is missing has none. */
lh_status_t incarnation_read(const char *folder, incarnation_t *out) LH_MUST_CHECK;
/* After a power loss, too, it is what incarnation_read finds, also where the folder is new. Only while holding
 * the folder's lock. Names there that look like a number of a start and are none are told in a warning, and stay. */
lh_status_t incarnation_write(const char *folder, const incarnation_t *value) LH_MUST_CHECK;

#endif
