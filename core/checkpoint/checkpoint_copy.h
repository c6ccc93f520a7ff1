/* checkpoint/checkpoint_copy.h - a committed checkpoint from one folder to another that can't see it:
 * its files as a stream of bytes, and the commit of what has come.
 *
 * Several ranks send, each every n-th file; whoever takes a stream writes the same files into one
 * staging folder with the others of its site, and one of them commits. [serial] */
#ifndef CHECKPOINT_CHECKPOINT_COPY_H
#define CHECKPOINT_CHECKPOINT_COPY_H

#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>
#include <checkpoint/manifest.h>

/* Files first, first + step, ... of a manifest, one after the other. Zero but for the first four. */
typedef struct copy_stream {
    const manifest_t *manifest;
    const char *folder; /* where they lie, or come to lie */
    uint32_t first, step;
    bool writes;
    uint32_t next;   /* file to be opened */
    uint32_t file;   /* that is open */
    uint64_t offset; /* in it */
    int fd;          /* -1: none is open */
} copy_stream_t;

void copy_stream_begin(copy_stream_t *s, const manifest_t *manifest, const char *folder,
                       uint32_t first, uint32_t step, bool writes);
uint64_t copy_stream_bytes(const copy_stream_t *s); /* of all its files */
/* The next `bytes` of it, or what is left, from or to `piece`. A file that is whole is synced. */
lh_status_t copy_stream_move(copy_stream_t *s, void *piece, uint64_t bytes) LH_MUST_CHECK;
/* Closes what is open. LH_INVALID: it has not come to its end. */
lh_status_t copy_stream_end(copy_stream_t *s);

/* The text of a checkpoint's manifest, as it lies there; *out is the caller's. */
lh_status_t copy_manifest_read(const char *path, char **out, size_t *length) LH_MUST_CHECK;
/* Commits what has come into the staging folder of c, whose manifest's text is this one, by the
 * order of commit.h. Frees c. */
lh_status_t copy_commit(commit_t *c, const char *text, size_t length) LH_MUST_CHECK;

#endif
