/* checkpoint/checkpoint.h - finds, opens and reads committed checkpoints, into any layout.
 *
 * A folder of checkpoints is read without its lock, as `verify`, `eval` and other runs do while one
 * trains: a checkpoint may then vanish at any moment, but never change. Where the status of a
 * failure is LH_IO errno says why; checkpoint_lost and checkpoint_damaged judge by both. */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H

#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>
#include <checkpoint/manifest.h>
#include <format/safetensors.h>
#include <graph/parameters.h>

/* An open checkpoint. [serial]: reads share the scratch memory. */
typedef struct checkpoint {
    char *path; /* .../step-000000000100 */
    manifest_t *manifest;
    safetensors_t **files; /* one a manifest file */
    /* For a stored part that is wanted in part or in another dtype; grows to the largest so far. */
    void *scratch;
    uint64_t scratch_bytes;
} checkpoint_t;

/* Manifest, its seal, every file's size and header against the manifest; not yet the data. A second time where
 * the disk failed. */
lh_status_t checkpoint_open(const char *path, checkpoint_t **out) LH_MUST_CHECK;
/* Of a checkpoint that lies where this process can't see it: its manifest alone. Nothing can be read of
 * it. */
lh_status_t checkpoint_open_text(const char *path, const char *text, size_t length,
                                 checkpoint_t **out) LH_MUST_CHECK;
void checkpoint_close(checkpoint_t *c);
const manifest_tensor_t *checkpoint_find(const checkpoint_t *c, const char *name);

/* The wanted part (count 0: the whole) of a tensor as F32; every stored part that is touched is
 * checked against its hash: LH_CORRUPT. */
lh_status_t checkpoint_read(checkpoint_t *c, const manifest_tensor_t *t,
                            const tensor_part_t *wanted, float *out) LH_MUST_CHECK;

/* LH_CORRUPT: the bytes of a part have another hash than the manifest says. For who reads them otherwise. */
lh_status_t checkpoint_check_hash(const checkpoint_t *c, const manifest_part_t *part,
                                  uint64_t found) LH_MUST_CHECK;

/* Refuses weights that the model has no place for: it is not the one that was saved. */
lh_status_t checkpoint_refuse_extra(const checkpoint_t *c, const parameters_t *p) LH_MUST_CHECK;

/* Reads every tensor back and checks all. */
lh_status_t checkpoint_verify(const char *path) LH_MUST_CHECK;

/* The newest good checkpoint of a folder, all of whose data verifies: step-* are tried from the
 * newest downwards. `latest` does not choose; a warning tells where it names a newer one than was
 * found. A checkpoint that was saved behind steps which were not applied (MANIFEST_REFUSED) is
 * passed over, with a warning, for a good one below it, and taken where there is none. Each damaged
 * one costs a warning with its reason; whoever saves from there on takes them out of the way with
 * checkpoint_make_way. No checkpoint at all: LH_OK and *out is NULL; only damaged ones: LH_CORRUPT.
 * One that this process cannot read though it may be whole (no permission, no descriptor left, a
 * newer version) is not skipped: that is the failure. */
lh_status_t checkpoint_open_latest(const char *folder, checkpoint_t **out) LH_MUST_CHECK;

/* Which are still to be tried: good ones of steps below `good`, and below `refused` those behind steps that were
 * not applied. Two bounds, as good ones are tried first, and a refused one above them all may be the one that is
 * whole. */
typedef struct checkpoint_below {
    uint64_t good, refused;
} checkpoint_below_t;
#define CHECKPOINT_ALL ((checkpoint_below_t){UINT64_MAX, UINT64_MAX})
/* That one, which was to be taken, has turned out damaged. */
void checkpoint_exclude(checkpoint_below_t *below, const checkpoint_t *damaged);
bool checkpoint_excluded(const checkpoint_below_t *below, const checkpoint_t *c);

/* As checkpoint_open_latest, among those of `below` and by manifests and headers alone: no data is
 * verified. A caller that then reads the data and finds some of it lost calls checkpoint_skip, and
 * asks again without that one. */
lh_status_t checkpoint_open_newest(const char *folder, const checkpoint_below_t *below,
                                   checkpoint_t **out) LH_MUST_CHECK;
/* One step of a folder as checkpoint_open_newest tries it. LH_CORRUPT: it is damaged, and skipped with a
 * warning. LH_AGAIN: it is not there any more. */
lh_status_t checkpoint_open_step(const char *folder, uint64_t step,
                                 checkpoint_t **out) LH_MUST_CHECK;
/* Whether a read that failed so (errno: error) has met damage. */
bool checkpoint_lost(lh_status_t status, int error);
/* Whether opening that failed so has met damage. A wrong manifest is; that this process may not
 * read it, has no memory or no descriptors left, or is too old for it, is not. */
bool checkpoint_damaged(lh_status_t status, int error);
/* Nothing stands there any more: a run that trains has removed it. */
bool checkpoint_gone(const char *path);
/* Warns with fail_reason(). */
void checkpoint_skip(uint64_t step);

/* ---- a copy to a folder that can't see it ---------------------------------------------------- */

/* A committed checkpoint goes as a stream of its files' bytes, and what has come is committed.
 *
 * Several ranks send, each every n-th file; whoever takes a stream writes the same files into one
 * staging folder with the others of its site, and one of them commits. [serial] */

/* Files first, first + step, ... of a manifest, one after the other. Zero but for the first four. */
typedef struct checkpoint_copy {
    const manifest_t *manifest;
    const char *folder; /* where they lie, or come to lie */
    uint32_t first, step;
    bool writes;
    uint32_t next;   /* file to be opened */
    uint32_t file;   /* that is open */
    uint64_t offset; /* in it */
    int fd;          /* -1: none is open */
} checkpoint_copy_t;

void checkpoint_copy_begin(checkpoint_copy_t *s, const manifest_t *manifest, const char *folder,
                           uint32_t first, uint32_t step, bool writes);
uint64_t checkpoint_copy_bytes(const checkpoint_copy_t *s); /* of all its files */
/* The next `bytes` of it, or what is left, from or to `piece`: a second time where the disk failed to give
 * them. A file that is whole is synced. */
lh_status_t checkpoint_copy_move(checkpoint_copy_t *s, void *piece, uint64_t bytes) LH_MUST_CHECK;
/* Closes what is open. LH_INVALID: it has not come to its end. */
lh_status_t checkpoint_copy_end(checkpoint_copy_t *s);

/* Reads back what streams have written into a folder, once they are at their end, by the manifest with this
 * text: whether every file and part is as it was saved. One that is zero has none. */
lh_status_t checkpoint_copy_verify(const char *folder, const checkpoint_copy_t *streams,
                                   uint32_t count, const char *text, size_t length) LH_MUST_CHECK;

/* The text of a checkpoint's manifest, as it lies there; *out is the caller's. */
lh_status_t checkpoint_copy_manifest(const char *path, char **out, size_t *length) LH_MUST_CHECK;
/* Commits what has come into the staging folder of c, whose manifest's text is this one, by the
 * order of commit.h. Frees c. */
lh_status_t checkpoint_copy_commit(commit_t *c, const char *text, size_t length) LH_MUST_CHECK;

#endif
