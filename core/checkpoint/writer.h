/* checkpoint/writer.h - writes checkpoints beside training: the trainer copies tensors into shared
 * memory (the only time it stands still), a process of its own writes and commits them: saver.h.
 *
 *     writer_start(how, &w)                   first of all: it forks, and needs no folder yet
 *     writer_open(w)                          the folder is this run's
 *     checkpoint_open_newest(folder, ...)     now that nobody else writes there
 *     writer_layout(w, tensors, count)
 *     each save: writer_begin, fill each writer_place, writer_submit; writer_poll now and then
 *     at the end or on SIGTERM: writer_wait
 *
 * With `memory` a snapshot may also stay in memory, where it outlives this process
 * (writer_submit_memory); the arena is then laid out as memory_image.h says, and has room for the
 * images of ranks on other machines (writer_guests).
 *
 * A saver that dies, or is silent past the deadline and is killed, costs that save: its result is
 * a failure, training goes on, the one in reserve makes the next save. Where both died between two
 * saves there is nobody left to fork another: writer_lost. A trainer that dies after submit still
 * gets its checkpoint. [serial] */
#ifndef CHECKPOINT_WRITER_H
#define CHECKPOINT_WRITER_H

#include <base/status.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/manifest.h>

typedef struct writer writer_t;

typedef struct writer_how {
    const char *folder;     /* of the checkpoints; made if missing                    */
    checkpoint_keep_t keep; /* committed checkpoints that stay; newest 0: all      */
    uint64_t shard_bytes;   /* of a file; 0: 4 GiB                                    */
    uint64_t deadline_ns;   /* a save that takes longer is given up; 0: 10 minutes    */
    uint64_t lock_ns;       /* wait for another run's saver to finish; 0: 30 seconds */
    uint32_t rank, ranks; /* ranks 0 or 1: alone. Else each saves what it owns, and every submit of
                             one is a submit of all: saver.h */
    bool apart, leads;    /* sites have folders of their own; this rank leads in that of its site */
    bool memory;          /* of several ranks: room for snapshots that stay in memory */
    int memory_fd; /* with `memory`: the arena, which somebody holds that outlives this process, and
                      who inherits it after this one reads it (memory_find); -1: nobody does */
} writer_how_t;

/* How a save ended, once. */
typedef struct writer_result {
    lh_status_t status; /* LH_OK: committed, or of several ranks this one's share written */
    uint64_t step;
    uint64_t ns;   /* from the request to the saver's answer   */
    bool has_room; /* the saver has told what is left where checkpoints lie */
    uint64_t free_bytes;
    char reason[512]; /* why not                                   */
} writer_result_t;

/* Forks the savers, while this process has one thread and neither a device nor a plugin: what those
 * hold (locks, memory that a device knows, threads that are not copied) is then not in the savers.
 */
lh_status_t writer_start(const writer_how_t *how, writer_t **out) LH_MUST_CHECK;
/* Once, before writer_layout: on rank 0 locks the folder, which the savers then hold as well, and
 * removes what a crash left in it. Where it fails the writer is still to be closed. */
lh_status_t writer_open(writer_t *w) LH_MUST_CHECK;
/* With `memory`, before writer_layout: what a manifest takes besides its tensors, at most. */
void writer_head(writer_t *w, uint64_t bytes);
/* What every save consists of; shared memory for all of it, whose pages the first save takes
 * unless writer_ahead has. Parts of MiBs are stored in pieces, of which a rank of another layout reads
 * those that it needs. Once, or again between saves. */
lh_status_t writer_layout(writer_t *w, const checkpoint_tensor_t *tensors,
                          uint32_t count) LH_MUST_CHECK;
/* With `memory`, after writer_layout and before the first save: two slots more for each rank whose
 * images are kept here, of so many bytes. What lay in the arena before is lost. */
lh_status_t writer_guests(writer_t *w, const uint64_t *bytes, uint32_t count) LH_MUST_CHECK;
bool writer_has_memory(const writer_t *w);
int writer_memory_fd(const writer_t *w); /* of an arena that somebody holds; else -1 */
/* Whether this rank locks its folder and commits there. */
bool writer_leads(const writer_t *w);
/* Bytes of one of this rank's two slots. */
uint64_t writer_slot_bytes(const writer_t *w);
/* Slot `slot` (0, 1) of this rank, or of guest `guest` - 1. */
void *writer_slot(const writer_t *w, uint32_t guest, uint32_t slot);
/* The whole arena, for who registers it. */
void *writer_memory(const writer_t *w, uint64_t *bytes);
/* What this rank's share of every save will take of the manifest, at most. */
lh_status_t writer_manifest_bytes(const writer_t *w, uint64_t *bytes) LH_MUST_CHECK;
/* Begins to take the pages beside the caller, for a save that will come. */
void writer_ahead(writer_t *w);
/* Takes the memory of a whole save now, that of guests' images as well, so that a lack of it is known
 * before anything is copied. */
lh_status_t writer_reserve(writer_t *w) LH_MUST_CHECK;
/* Where tensor `index` is to be copied: dense, 64-byte aligned, valid until layout or close. Fails
 * where there is no memory for it. */
lh_status_t writer_place(writer_t *w, uint32_t index, void **out) LH_MUST_CHECK;
uint64_t writer_place_bytes(const writer_t *w, uint32_t index);

/* ranks > 1, before the first submit: a number that is the same on all of them and another for
 * every run. */
void writer_session(writer_t *w, uint64_t session);
/* A resumed run: `self` of the checkpoint it starts from, so that the next one names it. */
void writer_parent(writer_t *w, const char *self);

/* LH_OK: the places may be filled. LH_AGAIN: the save before is still being written. */
lh_status_t writer_begin(writer_t *w) LH_MUST_CHECK;
lh_status_t writer_submit(writer_t *w, const checkpoint_meta_t *meta) LH_MUST_CHECK;
/* As writer_submit, but the snapshot stays in memory: a result is that it is described.
 * writer_settle ends it, with `committed` once all ranks' images are where they are kept: only then
 * may the one before be overwritten. *slot: in which of the two it lies. to_disk: it is to be on
 * the disk, too: once guests' images are there writer_write is called, and the rest is as with
 * writer_submit. */
lh_status_t writer_submit_memory(writer_t *w, const checkpoint_meta_t *meta, bool to_disk,
                                 uint32_t *slot) LH_MUST_CHECK;
void writer_write(writer_t *w);
/* ranks > 1: a result is that of this rank's share. Once it is known that all ranks have written,
 * who leads calls writer_commit, which has another result; then, or when one has failed and none
 * writes any more, all call writer_settle. */
void writer_commit(writer_t *w);
void writer_settle(writer_t *w, bool committed);
/* LH_OK: a save ended (well or not) and *out says how. LH_AGAIN: it is still being written.
 * LH_INVALID without a sentence: nothing is being written. Never blocks. */
lh_status_t writer_poll(writer_t *w, writer_result_t *out) LH_MUST_CHECK;
/* As writer_poll, but waits until the save ends or its deadline passes. */
lh_status_t writer_wait(writer_t *w, writer_result_t *out) LH_MUST_CHECK;
bool writer_busy(const writer_t *w);
/* No save can be made any more. */
bool writer_lost(const writer_t *w);
/* Waits for a save under way. NULL does nothing. */
void writer_close(writer_t *w);
/* Does not wait: for a run that fails. The saver ends its save alone; where other ranks' shares
 * don't come it gives up soon. NULL does nothing. */
void writer_leave(writer_t *w);

#endif
