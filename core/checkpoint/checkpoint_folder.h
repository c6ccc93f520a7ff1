/* checkpoint/checkpoint_folder.h - a folder of checkpoints: which names in it count, what of it is
 * old or left over, who may write there, and that all hosts see the same one. */
#ifndef CHECKPOINT_CHECKPOINT_FOLDER_H
#define CHECKPOINT_CHECKPOINT_FOLDER_H

#include <base/status.h>

/* ---- names ----------------------------------------------------------------------------------- */

/* A hint for people and scripts; commit_finish writes it. */
#define CHECKPOINT_POINTER \
    "latest"                   /* names the newest: "step-000000000100 <self of its manifest>" */
enum { CHECKPOINT_NAME = 32 }; /* "step-000000000100" and NUL */
/* Twelve digits at least, so that names sort as numbers do. */
void checkpoint_name(uint64_t step, char out[CHECKPOINT_NAME]);
/* "step-000000000100" and nothing else. */
bool checkpoint_name_parse(const char *name, uint64_t *step);

/* Removes what a crash left: .tmp-*, .del-*. Only while no other writer works in the folder. */
lh_status_t checkpoint_clean(const char *folder) LH_MUST_CHECK;
/* Which committed steps stay when another one is. */
typedef struct checkpoint_keep {
    uint64_t newest; /* so many; of commit_finish, 0: all */
    uint64_t every;  /* and those whose step is a multiple of this; 0: none */
    bool best;       /* and that with the least MANIFEST_HELD_OUT, the older of two */
} checkpoint_keep_t;
/* Of the committed steps up to `newest`, removes all but those that `keep` names; of those behind steps
 * that were not applied, which do not count, all but the newest of all. Later ones stay and do
 * not count: a run that could not read them, nor put them aside, went on from before them. Neither
 * do links and what has no manifest, and a step with anything else in it stays, with a warning. */
lh_status_t checkpoint_prune(const char *folder, uint64_t newest,
                             const checkpoint_keep_t *keep) LH_MUST_CHECK;

/* The committed steps of a folder. */
typedef struct checkpoint_steps {
    uint64_t *steps; /* newest first; the caller frees with mem_free */
    size_t count, capacity;
} checkpoint_steps_t;

/* Makes the folder and those above it, and until the first checkpoint is committed there makes
 * their names safe: a power loss must not take a checkpoint by taking a folder above it. */
lh_status_t checkpoint_folder_make(const char *folder) LH_MUST_CHECK;
/* A folder that is missing has none. */
lh_status_t checkpoint_steps(const char *folder, checkpoint_steps_t *out) LH_MUST_CHECK;

/* Once `step` is loaded whole, all above it, which could not be, are renamed damaged-step-...
 * (refused-step-... where they lie behind steps that were not applied; left-step-... where somebody
 * has chosen `step` and left them), so that their numbers can be used again and a person can look at
 * them. Not before: a folder in which nothing is whole would
 * then look like one in which nothing was saved. Only while holding its lock. A failure is a
 * warning. */
void checkpoint_make_way(const char *folder, uint64_t step, bool chosen);
/* Renames that step stale-step-..., which no start takes: a later start of the run has gone on without it
 * (incarnation.h). Nothing where it is not there. Only while holding the folder's lock. A failure is a warning. */
void checkpoint_set_stale(const char *folder, uint64_t step);

/* Removes a folder after a failure whose sentence stays what fail_reason() says. */
void checkpoint_discard(const char *path);

/* ---- who may write --------------------------------------------------------------------------- */

/* The lock is on a file there. Whoever holds it may remove that name: who waited for the file sees,
 * once it has it, that the name leads elsewhere, and begins again. Somebody else may remove it as
 * well; so the folder itself is locked too, where the file system can do that: a network's may lock
 * files alone.
 *
 * `.lock` is that of checkpoints, which savers hold on to that outlive a run; `.run.lock` that of a
 * pipeline's folder, from before the first stage until after the last one. */
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

/* ---- before the first step: that all hosts see the same folder ------------------------------- */

/* Makes an empty file there, with a name that no host has asked for before, so that no network file
 * system remembers its absence. `session` is a random number that all ranks know. What a crash
 * leaves of it goes with the next run's leftovers. */
lh_status_t checkpoint_folder_mark(const char *folder, uint64_t session) LH_MUST_CHECK;
/* LH_MISMATCH when it is not seen within CHECKPOINT_LOOK_MS. */
lh_status_t checkpoint_folder_look(const char *folder, uint64_t session) LH_MUST_CHECK;
/* After all have looked. */
void checkpoint_folder_unmark(const char *folder, uint64_t session);

enum { CHECKPOINT_LOOK_MS = 3000 };

#endif
