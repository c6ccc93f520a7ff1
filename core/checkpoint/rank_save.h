/* checkpoint/rank_save.h - one checkpoint written by the helpers of several ranks, who meet in its
 * staging folder: no message passes, a file system that all of them see is all they share.
 *
 *     rank 0                               every other rank
 *     removes leftovers, makes staging     waits for staging
 *     writes its files                     writes its files
 *     waits for all rank-XXXXX.json        rank-XXXXX.json: its share of the manifest, synced,
 *                                          renamed into place
 *     one manifest, rename, `latest`       waits for the step's folder
 *
 * Who fails says so in failed-XXXXX in the staging folder; rank 0 then, or when a rank is silent
 * too long, removes the staging folder and leaves the reason in .tmp-failed-<session>-<attempt>,
 * which the others find: the save ends the same way everywhere. */
#ifndef CHECKPOINT_RANK_SAVE_H
#define CHECKPOINT_RANK_SAVE_H

#include <checkpoint/manifest.h>

typedef struct rank_save {
    const char *folder;
    uint32_t rank, ranks;
    uint64_t session; /* the same on all ranks, another for every run: nothing stale is taken */
    uint32_t attempt; /* which save of the session                                            */
    uint64_t keep, shard_bytes;
    uint64_t deadline_ns; /* from the call on; rank 0 stops waiting at three quarters of it */
    int trainer;          /* a socket: once its other end is closed patience is short; -1: none */
} rank_save_t;

/* What this rank owns; data[i] holds the elements of part i. Returns when the save has ended; self
 * is filled on rank 0 only. */
lh_status_t rank_save(const rank_save_t *how, const checkpoint_meta_t *meta, const char *parent,
                      const checkpoint_tensor_t *tensors, const void *const *data, uint32_t count,
                      char self[SHA256_TEXT]) LH_MUST_CHECK;

/* For a rank 0 that lost its helper: removes what it left and tells the others. */
void rank_save_failed(const rank_save_t *how, const char *reason);

#endif
