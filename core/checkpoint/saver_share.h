/* checkpoint/saver_share.h - what a save is made of, and one checkpoint by the savers of several
 * ranks.
 *
 * On a file system that all of them see. No message passes between them: each tells its own
 * trainer, and the trainers agree.
 *
 *     every rank     the staging folder, which whoever comes first makes; its files;
 *                    rank-XXXXX.json: its share of the manifest, synced, renamed into place
 *     rank 0, once   one manifest, rename, `latest`
 *     all have
 *     rank 0, once   removes the staging folder
 *     one has failed
 *
 * Where sites have folders of their own, all of this happens in each of them: a rank of the site leads
 * in the place of rank 0, and the shares of the other sites' ranks are written by those of this one to
 * which their images have come. The manifests are the same to the byte.
 *
 * Where its trainer is gone, rank 0's saver waits a while for the shares of the others and commits,
 * or removes the staging folder. */
#ifndef CHECKPOINT_SAVER_SHARE_H
#define CHECKPOINT_SAVER_SHARE_H

#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/manifest.h>

/* How many ranks' images a rank keeps for others, at most. */
enum { SAVER_GUESTS = 31 };

/* Written by the trainer between saves, read by the saver during one; abandoned_... when it hears that one
 * is given up, which may be after the next one was begun. */
typedef struct save_job {
    checkpoint_meta_t meta;
    char parent[SHA256_TEXT]; /* of the checkpoint before; "": none */
    const checkpoint_tensor_t *tensors;
    const uint64_t *offset; /* [count]: where each one's bytes begin, from `base` on */
    uint32_t count;
    uint64_t base;       /* of this save's tensors in the arena */
    uint64_t slot_bytes; /* of the slot that begins a page before, see memory_image.h */
    /* Slots with images to be written, of this rank and of those of other sites; none: the tensors
     * are written as they lie in the arena. */
    struct {
        uint64_t begin, bytes;
    } images[SAVER_GUESTS + 1];
    uint32_t image_count;
    uint64_t arena_bytes;
    uint64_t session; /* of saver_share_t */
    uint32_t attempt; /* which save, from 1 */
    uint64_t abandoned_step;
    uint32_t abandoned_attempt;
    bool leftovers; /* the saver before died in the middle of one */
} save_job_t;

/* Who saves, and which save it is. */
typedef struct saver_share {
    const char *folder;
    uint32_t rank, ranks;
    bool leads;       /* whoever asks commits in this folder: rank 0, or one of each site */
    bool apart;       /* several folders are to hold the same: rank 0's word counts in all */
    uint64_t session; /* the same on all ranks, another for every run: nothing stale is taken */
    uint32_t attempt; /* which save of the session                                            */
    uint64_t shard_bytes;
    const checkpoint_meta_t *meta;
    const char *parent;
} saver_share_t;

/* What this rank owns; data[i] holds the elements of part i. */
lh_status_t saver_share_write(const saver_share_t *how, const checkpoint_tensor_t *tensors,
                              const void *const *data, uint32_t count) LH_MUST_CHECK;
/* By who leads, once all ranks have written. Where it fails, saver_share_abandon is still to be
 * called. */
lh_status_t saver_share_commit(const saver_share_t *how, char self[SHA256_TEXT]) LH_MUST_CHECK;
/* By who leads: removes what this save has written, and nothing of another one's. A failure is a
 * warning. */
void saver_share_abandon(const saver_share_t *how);
/* On rank 0 without a trainer: commits if all shares come until then, and returns true; else abandons. */
bool saver_share_orphan(const saver_share_t *how, uint64_t until_ns);

#endif
