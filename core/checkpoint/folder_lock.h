/* checkpoint/folder_lock.h - who may write in a folder: one run at a time, and the helpers that
 * outlive it.
 *
 * The lock is on the file `.lock`. Whoever holds it may remove that name: who waited for the file
 * sees, once it has it, that the name leads elsewhere, and begins again. */
#ifndef CHECKPOINT_FOLDER_LOCK_H
#define CHECKPOINT_FOLDER_LOCK_H

#include <base/status.h>

typedef struct folder_lock {
    int fd;           /* -1: not taken; children that keep it open hold the lock as well */
    bool made;        /* the file was made for it */
    uint32_t folders; /* so were these, from the folder upwards */
} folder_lock_t;

/* Makes the folder where it is missing and waits at most timeout_ns for another process. */
lh_status_t folder_lock_take(const char *folder, uint64_t timeout_ns,
                             folder_lock_t *out) LH_MUST_CHECK;
/* Gives it back. Not taken: does nothing. */
void folder_lock_give(folder_lock_t *lock);
/* Gives it back and takes away what was made for it, a folder only if nothing else lies in it.
 * Only where no child that has it open writes there. */
void folder_lock_undo(folder_lock_t *lock, const char *folder);

#endif
