/* checkpoint/shared_folder.h - whether several hosts see the same folder: rank 0 marks it, the
 * others look for the mark before anything is made that only one of them would see. */
#ifndef CHECKPOINT_SHARED_FOLDER_H
#define CHECKPOINT_SHARED_FOLDER_H

#include <base/status.h>

/* Makes an empty file there, with a name that no host has asked for before, so that no network file
 * system remembers its absence. `session` is a random number that all ranks know. What a crash
 * leaves of it goes with the next run's leftovers. */
lh_status_t shared_folder_mark(const char *folder, uint64_t session) LH_MUST_CHECK;
/* LH_MISMATCH when it is not seen within SHARED_FOLDER_MS. */
lh_status_t shared_folder_look(const char *folder, uint64_t session) LH_MUST_CHECK;
/* After all have looked. */
void shared_folder_unmark(const char *folder, uint64_t session);

enum { SHARED_FOLDER_MS = 3000 };

#endif
