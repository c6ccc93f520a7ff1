/* checkpoint/memory_image.h - what one rank saves of a step, as it lies in shared memory: found and
 * checked again after the rank has died, and written to the disk as that rank's share.
 *
 * The memory is one file without a name that the rank's launcher holds, so that it outlives the
 * rank and not the job:
 *
 *     head       which slots there are, one page
 *     slot 0, 1  of this rank, in turn: while one is filled the other stays whole
 *     slot 2...  two for each rank of another machine whose images are kept here
 *
 *     slot       head, one page | tensors, at the places of writer_place | a manifest of them
 *
 * The manifest is a rank's share of a checkpoint (manifest.h) whose parts' names are their places,
 * and it seals itself; each part's XXH3-64 stands in it, as on disk. Nothing here is believed
 * without that: whoever looks may find a slot that somebody was killed in the middle of. A slot is
 * the same bytes wherever it is copied to. */
#ifndef CHECKPOINT_MEMORY_IMAGE_H
#define CHECKPOINT_MEMORY_IMAGE_H

#include <checkpoint/saver_share.h>

/* MEMORY_PAGE: bytes of a head. MEMORY_SLOTS: at most, so that a machine keeps images for
 * (MEMORY_SLOTS - 2) / 2 ranks of others by each of its own. */
enum { MEMORY_PAGE = 4096, MEMORY_OWN = 2, MEMORY_SLOTS = MEMORY_OWN + 2 * SAVER_GUESTS };

/* Which image of a job: a step of one epoch, whose number `session` is, by one of `ranks`. */
typedef struct memory_key {
    uint64_t session, step;
    uint32_t rank, ranks;
} memory_key_t;

/* The slots of a memory, as its head says. */
typedef struct memory_slots {
    uint32_t count;
    struct {
        uint64_t begin, bytes;
    } slot[MEMORY_SLOTS];
} memory_slots_t;

/* Bytes of a slot for so many bytes of tensors and of a manifest. */
uint64_t memory_slot_bytes(uint64_t tensors, uint64_t manifest);
/* Adds two slots behind those that there are, and returns where the second one ends. */
uint64_t memory_slots_add(memory_slots_t *s, uint64_t bytes);
/* Writes the head, and empties every slot. The memory is as long as the slots say. */
void memory_slots_write(const memory_slots_t *s, char *memory);
void memory_empty(char *slot);
/* Of a slot that another rank fills: what is in it has come whole, or is on its way. What is half
 * there is no damage, and nobody is to be warned of it. */
void memory_arrived(char *memory, uint32_t slot, bool whole);

/* An image that was found. It points into the slot, which stays as it is meanwhile. */
typedef struct memory_image {
    memory_key_t key;
    const char *slot;
    manifest_t *manifest;
} memory_image_t;

/* By the saver: hashes what `job` says lies in the slot, and describes it there. The head is
 * written last. LH_INVALID: the manifest has no room. */
lh_status_t memory_describe(const save_job_t *job, const memory_key_t *key, char *slot,
                            uint64_t bytes) LH_MUST_CHECK;
/* LH_AGAIN: the slot is empty, or holds half of one. LH_CORRUPT: what it holds was changed. */
lh_status_t memory_image_open(const char *slot, uint64_t bytes, memory_image_t *out) LH_MUST_CHECK;
void memory_image_close(memory_image_t *image);
/* Writes it into the staging folder of this attempt as the share of its rank, whoever does so. */
lh_status_t memory_image_write(const memory_image_t *image, const char *folder, uint32_t attempt,
                               uint64_t shard_bytes) LH_MUST_CHECK;
/* The share of an image, for the functions of saver_share.h; attempt 0 is no save's: a run counts its own
 * from 1. */
saver_share_t memory_image_share(const memory_image_t *image, const char *folder, uint32_t attempt);

/* All whole images of a memory; images of which a byte has changed since they were whole are told in
 * a warning. fd: of
 * the memory, or -1. */
typedef struct memory_found {
    char *memory; /* mapped, read-only; NULL: there is none */
    uint64_t bytes;
    memory_image_t images[MEMORY_SLOTS];
    uint32_t count;
} memory_found_t;
void memory_find(int fd, memory_found_t *out);
void memory_found_close(memory_found_t *found);

#endif
