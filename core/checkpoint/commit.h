/* checkpoint/commit.h - how a checkpoint comes into being: staging folder, files, manifest, rename,
 * pointer; at every moment a crash or a power loss leaves the old one or the new one whole.
 *
 * commit_begin, then commit_write for each file's tensors, then commit_finish; or commit_abandon.
 * All file calls go through base/sys.h. */
#ifndef CHECKPOINT_COMMIT_H
#define CHECKPOINT_COMMIT_H

#include <base/status.h>
#include <checkpoint/manifest.h>

typedef struct commit commit_t;

#define CHECKPOINT_POINTER \
    "latest"                   /* names the newest: "step-000000000100 <self of its manifest>" */
enum { CHECKPOINT_NAME = 32 }; /* "step-000000000100" and NUL */
void checkpoint_name(uint64_t step, char out[CHECKPOINT_NAME]);
/* "step-000000000100" and nothing else. */
bool checkpoint_name_parse(const char *name, uint64_t *step);

/* parent: `self` of the checkpoint before, or "". A step that has a folder is refused: a name is
 * never used again. */
lh_status_t commit_begin(const char *folder, const checkpoint_meta_t *meta, const char *parent,
                         commit_t **out) LH_MUST_CHECK;
/* The same with a staging folder of this name, in which several processes write: whoever comes first
 * makes it. A step that is there is refused by who leads. */
lh_status_t commit_join(const char *folder, const checkpoint_meta_t *meta, const char *parent,
                        const char *staging, bool leads, commit_t **out) LH_MUST_CHECK;
const char *commit_staging(const commit_t *c); /* its path */
manifest_t *commit_manifest(commit_t *c);      /* what was written through c so far */
/* Frees c and leaves the staging folder to who made it. */
void commit_leave(commit_t *c);
/* Writes one safetensors file with these tensors; data[i] holds the elements of part i, dense.
 * `rank` names the writer in the file's name. */
lh_status_t commit_write(commit_t *c, uint32_t rank, const checkpoint_tensor_t *tensors,
                         const void *const *data, uint32_t count) LH_MUST_CHECK;
/* Cuts the tensors into files of at most shard_bytes (0: 4 GiB) and writes them all. */
lh_status_t commit_write_all(commit_t *c, uint32_t rank, const checkpoint_tensor_t *tensors,
                             const void *const *data, uint32_t count,
                             uint64_t shard_bytes) LH_MUST_CHECK;
/* What these parts of one of `ranks` and their files will take of the manifest, at most. */
lh_status_t commit_manifest_bytes(const checkpoint_tensor_t *tensors, uint32_t count,
                                  uint64_t shard_bytes, uint32_t ranks,
                                  uint64_t *bytes) LH_MUST_CHECK;
/* Manifest, rename, pointer; then all but the newest `keep` are removed (0: none). After the rename
 * the checkpoint stands: a failed pointer or removal is a warning. self may be NULL. Frees c
 * whatever it returns. */
lh_status_t commit_finish(commit_t *c, uint64_t keep, char self[SHA256_TEXT]) LH_MUST_CHECK;
/* Removes the staging folder. NULL does nothing. */
void commit_abandon(commit_t *c);

/* Streaming form of commit_write for whole tensors that do not fit in memory together. */
lh_status_t commit_stream(commit_t *c, uint32_t rank, const checkpoint_tensor_t *tensors,
                          uint32_t count) LH_MUST_CHECK;
lh_status_t commit_stream_tensor(commit_t *c, uint32_t index, const void *data) LH_MUST_CHECK;
lh_status_t commit_stream_end(commit_t *c) LH_MUST_CHECK;

/* Removes what a crash left: .tmp-*, .del-*. Only while no other writer works in the folder. */
lh_status_t checkpoint_clean(const char *folder) LH_MUST_CHECK;
/* Of the committed steps up to `newest`, removes all but the newest `keep`; of those behind steps
 * that were not applied, which do not count, all but the newest of all. Later ones stay and do
 * not count: a run that could not read them, nor put them aside, went on from before them. Neither
 * do links and what has no manifest, and a step with anything else in it stays, with a warning. */
lh_status_t checkpoint_prune(const char *folder, uint64_t newest, uint64_t keep) LH_MUST_CHECK;

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

/* Once `step` is loaded whole, all above it, which could not be, are renamed damaged-step-... (refused-step-... behind steps that were not applied), so
 * that their numbers can be used again and a person can look at them; not before, or a folder in
 * which nothing is whole would look like one in which nothing was saved. Only while holding
 * its lock. A failure is a warning. */
void checkpoint_make_way(const char *folder, uint64_t step);

/* Removes a folder after a failure whose sentence stays what fail_reason() says. */
void checkpoint_discard(const char *path);

#endif
