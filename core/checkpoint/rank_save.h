/* checkpoint/rank_save.h - one checkpoint written by the savers of several ranks, on a file system
 * that all of them see. No message passes between them: each tells its own trainer, and the trainers
 * agree.
 *
 *     every rank     the staging folder, which whoever comes first makes; its files;
 *                    rank-XXXXX.json: its share of the manifest, synced, renamed into place
 *     rank 0, once   one manifest, rename, `latest`
 *     all have
 *     rank 0, once   removes the staging folder
 *     one has failed
 *
 * Where its trainer is gone, rank 0's saver waits a while for the shares of the others and commits,
 * or removes the staging folder. */
#ifndef CHECKPOINT_RANK_SAVE_H
#define CHECKPOINT_RANK_SAVE_H

#include <checkpoint/manifest.h>

typedef struct rank_save {
    const char *folder;
    uint32_t rank, ranks;
    uint64_t session; /* the same on all ranks, another for every run: nothing stale is taken */
    uint32_t attempt; /* which save of the session                                            */
    uint64_t keep, shard_bytes;
    const checkpoint_meta_t *meta;
    const char *parent;
} rank_save_t;

/* What this rank owns; data[i] holds the elements of part i. */
lh_status_t rank_save_write(const rank_save_t *how, const checkpoint_tensor_t *tensors,
                            const void *const *data, uint32_t count) LH_MUST_CHECK;
/* On rank 0, once all ranks have written. Where it fails, rank_save_abandon is still to be called. */
lh_status_t rank_save_commit(const rank_save_t *how, char self[SHA256_TEXT]) LH_MUST_CHECK;
/* On rank 0: removes what was written, and what saves before have left. A failure is a warning. */
void rank_save_abandon(const rank_save_t *how);
/* On rank 0 without a trainer: commits if all shares come until then, else abandons. */
void rank_save_orphan(const rank_save_t *how, uint64_t until_ns);

/* ---- before the first step: that all hosts see the same folder ------------------------------- */

/* Makes an empty file there, with a name that no host has asked for before, so that no network file
 * system remembers its absence. `session` is a random number that all ranks know. What a crash
 * leaves of it goes with the next run's leftovers. */
lh_status_t rank_save_mark(const char *folder, uint64_t session) LH_MUST_CHECK;
/* LH_MISMATCH when it is not seen within RANK_SAVE_LOOK_MS. */
lh_status_t rank_save_look(const char *folder, uint64_t session) LH_MUST_CHECK;
/* After all have looked. */
void rank_save_unmark(const char *folder, uint64_t session);

enum { RANK_SAVE_LOOK_MS = 3000 };

#endif
