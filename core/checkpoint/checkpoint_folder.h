/* checkpoint/checkpoint_folder.h - the committed steps of a folder. */
#ifndef CHECKPOINT_CHECKPOINT_FOLDER_H
#define CHECKPOINT_CHECKPOINT_FOLDER_H

#include <base/status.h>

typedef struct checkpoint_steps {
    uint64_t *steps; /* newest first; the caller frees with mem_free */
    size_t count, capacity;
} checkpoint_steps_t;

/* Makes the folder and those above it, and until the first checkpoint is committed there makes
 * their names safe: a power loss must not take a checkpoint by taking a folder above it. */
lh_status_t checkpoint_folder_make(const char *folder) LH_MUST_CHECK;
/* A folder that is missing has none. */
lh_status_t checkpoint_steps(const char *folder, checkpoint_steps_t *out) LH_MUST_CHECK;

/* Once `step` is loaded whole, all above it, which could not be, are renamed damaged-step-..., so
 * that their numbers can be used again and a person can look at them; not before, or a folder in
 * which nothing is whole would look like one in which nothing was saved. Only while holding
 * its lock. A failure is a warning. */
void checkpoint_make_way(const char *folder, uint64_t step);

/* Removes a folder after a failure whose sentence stays what fail_reason() says. */
void checkpoint_discard(const char *path);

#endif
