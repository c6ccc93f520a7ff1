/* checkpoint/folder_lock.h - who may write in a folder: a run in its pipeline's, and its savers in that of
 * its checkpoints.
 *
 * The lock is on a file there. Whoever holds it may remove that name: who waited for the file sees,
 * once it has it, that the name leads elsewhere, and begins again. Somebody else may remove it as
 * well; so the folder itself is locked too, where the file system can do that: a network's may lock
 * files alone.
 *
 * `.lock` is that of checkpoints, which savers hold on to that outlive a run; `.run.lock` that of a
 * pipeline's folder, from before the first stage until after the last one. */
#ifndef CHECKPOINT_FOLDER_LOCK_H
#define CHECKPOINT_FOLDER_LOCK_H

#include <base/status.h>

typedef struct folder_lock {
    int fd;           /* -1: not taken; children that keep it open hold the lock as well */
    int folder_fd;    /* of the folder, likewise; -1: it can't be opened. Where fd is -1: nothing */
    const char *name; /* of the file */
    bool made;        /* the file was made for it */
    uint32_t folders; /* so were these, from the folder upwards */
} folder_lock_t;

/* Makes the folder where it is missing and waits at most timeout_ns for another process. */
lh_status_t folder_lock_take(const char *folder, uint64_t timeout_ns,
                             folder_lock_t *out) LH_MUST_CHECK;
/* The lock of a pipeline's folder, for `holder`, which the next one reads that is refused: at once.
 * with_folder: the folder itself is locked too; not where `.lock` is to be taken in it as well, by
 * another process of this run. LH_UNSUPPORTED: no locks there; LH_IO: the file can't be made. */
lh_status_t folder_lock_hold(const char *folder, const char *holder, bool with_folder,
                             folder_lock_t *out) LH_MUST_CHECK;
/* Whether a run holds a pipeline's folder, for who only looks: nothing is made or changed there.
 * holder: what that run has written of itself, "" where it can't be read. FOLDER_UNKNOWN: this
 * user may not look, or the file system has no locks. */
enum { FOLDER_FREE, FOLDER_HELD, FOLDER_UNKNOWN };
enum { FOLDER_HOLDER = 512 };
uint32_t folder_lock_look(const char *folder, char holder[FOLDER_HOLDER]);
/* LH_IO when the folder's name leads to another one by now, or to none. */
lh_status_t folder_lock_check(const folder_lock_t *lock, const char *folder) LH_MUST_CHECK;
/* Gives it back. Not taken: does nothing. */
void folder_lock_give(folder_lock_t *lock);
/* Gives it back and takes away what was made for it, a folder only if nothing else lies in it.
 * Only where no child that has it open writes there. */
void folder_lock_undo(folder_lock_t *lock, const char *folder);

#endif
