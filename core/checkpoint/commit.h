/* checkpoint/commit.h - how a checkpoint comes into being: staging folder, files, manifest, rename,
 * pointer; at every moment a crash or a power loss leaves the old one or the new one whole.
 *
 * commit_begin, then commit_write_all, then commit_finish; or commit_abandon.
 * All file calls go through base/sys.h, where tests put a disk that crashes, is full or hangs
 * (tests/crash). [serial] */
#ifndef CHECKPOINT_COMMIT_H
#define CHECKPOINT_COMMIT_H

#include <base/status.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/manifest.h>

typedef struct commit commit_t;

/* parent: `self` of the checkpoint before, or "". A step that has a folder is refused: a name is
 * never used again. */
lh_status_t commit_begin(const char *folder, const checkpoint_meta_t *meta, const char *parent,
                         commit_t **out) LH_MUST_CHECK;
/* As commit_begin, with a staging folder of this name, in which several processes write: whoever
 * comes first makes it. A step that is there is refused by who leads; with COMMIT_LEADS_AGAIN by
 * commit_finish, unless it has the same manifest: then it is committed. */
enum { COMMIT_FOLLOWS, COMMIT_LEADS, COMMIT_LEADS_AGAIN };
lh_status_t commit_join(const char *folder, const checkpoint_meta_t *meta, const char *parent,
                        const char *staging, uint32_t role, commit_t **out) LH_MUST_CHECK;
const char *commit_staging(const commit_t *c); /* its path */
manifest_t *commit_manifest(commit_t *c);      /* what was written through c so far */
/* For a copy: the checkpoint's manifest is to be this text, which m was read from, and nothing that
 * was written through c. Text and m outlive commit_finish. */
void commit_adopt(commit_t *c, const manifest_t *m, const char *text, size_t length);
/* Frees c and leaves the staging folder to who made it. */
void commit_leave(commit_t *c);
/* Writes safetensors files of at most shard_bytes (0: 4 GiB) with these tensors; one that is larger
 * has a file of its own. data[i] holds the elements of part i, dense. `rank` names the writer in
 * the files' names. */
lh_status_t commit_write_all(commit_t *c, uint32_t rank, const checkpoint_tensor_t *tensors,
                             const void *const *data, uint32_t count,
                             uint64_t shard_bytes) LH_MUST_CHECK;
/* What these parts of one of `ranks` and their files will take of the manifest, at most. */
lh_status_t commit_manifest_bytes(const checkpoint_tensor_t *tensors, uint32_t count,
                                  uint64_t shard_bytes, uint32_t ranks,
                                  uint64_t *bytes) LH_MUST_CHECK;
/* Manifest, rename, pointer. After the rename the checkpoint stands: a failed pointer is a warning.
 * What it displaces is removed by checkpoint_displace. self may be NULL. Frees c whatever it
 * returns. */
lh_status_t commit_finish(commit_t *c, char self[SHA256_TEXT]) LH_MUST_CHECK;
/* Removes the staging folder. NULL does nothing. */
void commit_abandon(commit_t *c);

/* As commit_write_all, but tensor by tensor, into one file, for whole tensors that do not fit
 * in memory together. */
lh_status_t commit_stream(commit_t *c, uint32_t rank, const checkpoint_tensor_t *tensors,
                          uint32_t count) LH_MUST_CHECK;
lh_status_t commit_stream_tensor(commit_t *c, uint32_t index, const void *data) LH_MUST_CHECK;
lh_status_t commit_stream_end(commit_t *c) LH_MUST_CHECK;

#endif
