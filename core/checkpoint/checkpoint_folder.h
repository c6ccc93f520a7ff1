/* checkpoint/checkpoint_folder.h - a folder of checkpoints: which names in it count, what of it is
 * old or left over, and that all hosts see the same one. */
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
    uint64_t newest; /* so many; of checkpoint_displace, 0: all */
    uint64_t every;  /* and those whose step is a multiple of this; 0: none */
    bool best;       /* and that with the least MANIFEST_HELD_OUT, the older of two */
} checkpoint_keep_t;
/* Of the committed steps up to `newest`, removes all but those that `keep` names; of those behind steps
 * that were not applied, which do not count, all but the newest of all. Later ones stay and do
 * not count: a run that could not read them, nor put them aside, went on from before them. Neither
 * do links and what has no manifest, and a step with anything else in it stays, with a warning. */
lh_status_t checkpoint_prune(const char *folder, uint64_t newest,
                             const checkpoint_keep_t *keep) LH_MUST_CHECK;
/* By whoever has committed `step`, once it has told so: removes what that displaces. The checkpoint
 * stands whatever becomes of this, so that a failure is a warning. */
void checkpoint_displace(const char *folder, uint64_t step, const checkpoint_keep_t *keep);

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
/* Likewise damaged-step-..., or refused-step-...: what stands where a copy that is whole is to be committed. */
void checkpoint_set_damaged(const char *folder, uint64_t step);

/* Removes a folder after a failure whose sentence stays what fail_reason() says. */
void checkpoint_discard(const char *path);

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
