/* base/file.h - files, folders and paths through the seam of sys.h, with failures as sentences that
 * name the path.
 *
 * Nothing is buffered here: a read or write is the system's, begun again until all bytes are done.
 * What has to survive a power loss is written beside its place, synced and renamed; what only grows
 * (logs, metrics) is written in whole records instead. Functions may be called by any thread; a
 * descriptor and a file_records_t belong to one thread at a time. Descriptors are closed by the
 * caller with sys()->close, texts are freed with mem_free. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <sys/types.h>

#include <longhaul/base.h>

#include <base/digest.h>

/* Reads a whole regular file of at most limit bytes; one NUL follows the data (not counted). The
 * caller frees *out with mem_free. Directories, FIFOs and devices are refused without blocking. */
lh_status_t file_read(const char *path, uint64_t limit, char **out, size_t *length) LH_MUST_CHECK;
/* As file_read, but a symbolic link is refused, too: by the open itself, so that nobody can put one
 * there in between. */
lh_status_t file_read_plain(const char *path, uint64_t limit, char **out,
                            size_t *length) LH_MUST_CHECK;
/* The SHA-256 of a regular file, read in pieces of a mebibyte. */
lh_status_t file_digest(const char *path, char out[SHA256_TEXT]) LH_MUST_CHECK;

/* Replaces path so that a reader sees the old or the new bytes, never a part: temporary file beside
 * it, write, fsync, rename, fsync of the folder. */
lh_status_t file_replace(const char *path, const void *bytes, size_t length) LH_MUST_CHECK;
/* As file_replace, without the fsync of the folder: nothing can fail any more once others see the
 * file, but a power loss may take its name away again. */
lh_status_t file_show(const char *path, const void *bytes, size_t length) LH_MUST_CHECK;
/* As file_replace, without any fsync: for what need not survive a power loss, by who can't wait for a
 * disk. A process that waits in fsync can't be ended by any signal. */
lh_status_t file_renew(const char *path, const void *bytes, size_t length) LH_MUST_CHECK;

/* Opens a regular file for writing, made (0644) if it is missing, with more flags of open(), O_RDWR
 * among them. A symbolic link, FIFO or device is refused without blocking. */
lh_status_t file_begin(const char *path, int flags, int *fd) LH_MUST_CHECK;
/* As file_begin, for reading and writing, empty and for this process alone: LH_INVALID while
 * another process has the file, until that one closes it or ends; a file system that has no locks
 * keeps nobody out. A file with a second name (a hard link) keeps its bytes: it only loses this
 * name. */
lh_status_t file_take(const char *path, int *fd) LH_MUST_CHECK;

/* All bytes or an error: EINTR and short counts are dealt with. `path` is for the sentence. A read
 * past the end is LH_CORRUPT, as whoever reads knows from elsewhere how long the file must be. */
lh_status_t file_pread(int fd, const char *path, void *to, size_t bytes,
                       uint64_t offset) LH_MUST_CHECK;
lh_status_t file_pwrite(int fd, const char *path, const void *from, size_t bytes,
                        uint64_t offset) LH_MUST_CHECK;
lh_status_t file_write(int fd, const char *path, const void *from, size_t bytes) LH_MUST_CHECK;

/* Whether all that was printed reached stdout, which is flushed: asked once, before a command
 * reports success. */
lh_status_t file_finish_stdout(void) LH_MUST_CHECK;

/* Opens an existing regular file for reading; *size, its bytes, may be NULL. */
lh_status_t file_open(const char *path, int *fd, uint64_t *size) LH_MUST_CHECK;
/* As file_open, but a symbolic link is refused. */
lh_status_t file_open_plain(const char *path, int *fd, uint64_t *size) LH_MUST_CHECK;

/* Makes a memfd such that nobody can change it, its length or its seals any more. Whoever writes
 * into it, or a page that the kernel still holds, is waited for: FILE_SEAL_MS at most. what: for
 * the sentence, "cannot seal ...". */
enum { FILE_SEAL_MS = 2000 };
lh_status_t file_seal(int fd, const char *what) LH_MUST_CHECK;

/* Whether the path leads to anything, links followed. */
bool file_exists(const char *path);
/* Whether the path still leads to what is open as fd: who had its lock before may have renamed or
 * removed it. Links are not followed. */
bool file_is(int fd, const char *path);
/* Whether two paths lead to one file, by whatever name and link. */
bool file_same(const char *a, const char *b);

/* Makes a folder and those above it; one that is there already is fine. */
lh_status_t folder_make(const char *path) LH_MUST_CHECK;
/* How many folders folder_make would make; 0 without memory. Together with folders_unmake it takes
 * back what a command has made that then fails. */
uint32_t folders_missing(const char *path);
/* Removes the folder and those above it, `count` in all, as long as nothing lies in them. */
void folders_unmake(const char *path, uint32_t count);
/* fsyncs a folder, so that names in it survive a power loss. */
lh_status_t folder_sync(const char *path) LH_MUST_CHECK;
/* Removes a folder and all in it; missing is fine. Symbolic links, and `path` where it is one, are
 * removed, not followed. */
lh_status_t folder_remove(const char *path) LH_MUST_CHECK;
/* Whether `below` is the folder `above` or lies in it, through whatever names and links; false
 * where one of them is missing. */
bool folder_holds(const char *above, const char *below);

/* The file in the user's cache folder, whether it is there or not, for what is known of `text`:
 * $XDG_CACHE_HOME/longhaul/KIND-DIGEST.END, or below ~/.cache. The digest is cut short: whoever reads
 * the file compares the text. The caller frees with mem_free. Fails where no folder for caches is
 * known. */
lh_status_t path_in_cache(const char *kind, const char *text, const char *end,
                          char **out) LH_MUST_CHECK;
/* "a/b" from "a" and "b"; an absolute name stands alone. NULL after fail(LH_NO_MEMORY). */
char *path_join(const char *folder, const char *name);
/* The path from the root on: a relative one is taken against the working folder, without "./" at
 * its head. NULL after fail(). */
char *path_absolute(const char *path);
/* ROOT of the running program's file ROOT/bin/NAME, wherever the tree was moved to. Owned. */
lh_status_t path_program_root(char **out) LH_MUST_CHECK;
/* Folder part of a path ("." if it has none); NULL after fail(LH_NO_MEMORY). */
char *path_folder(const char *path);
const char *path_name(const char *path); /* what follows the last slash, inside of `path` */

/* A file that grows by whole records (lines of a log, records of an event file): one that cannot be
 * written leaves no part behind, and the next is tried all the same, so that a full disk costs
 * records and never leaves half of one. */
typedef struct file_records {
    int fd;        /* opened with O_APPEND by the caller, who closes it */
    size_t torn;   /* bytes of a part at its end that could not be cut off yet */
    uint64_t lost; /* records that were not written */
} file_records_t;

/* False where the record is lost, with errno. */
bool file_records_add(file_records_t *f, const void *bytes, size_t length);
/* The first `before` bytes go; fd is open for reading too. Where it returns false the file is as it
 * was, or, where its disk has failed meanwhile, without some of its records. */
bool file_records_cut(file_records_t *f, off_t before);

#endif
