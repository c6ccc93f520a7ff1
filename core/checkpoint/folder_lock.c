/* folder_lock.c - locks of folders.
 *
 * Locks are flock and not fcntl: they belong to the open file, so that savers that have the
 * descriptor hold the lock on after their trainer has died, and another library's close of the same
 * file does not give it back. */
#include <checkpoint/folder_lock.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

/* PAUSE_NS: between two looks at a lock that another process has; a blocking lock has no timeout.
 * TRIES: names that vanish between two looks. HOLD_NS: a run that is just ending may have the
 * pipeline's lock. HOLDER_BYTES: of the sentence about who has it. */
enum { PAUSE_NS = 20000000, TRIES = 100, HOLD_NS = 300000000, HOLDER_BYTES = 512 };

/* What is to be locked, and how long has been waited so far, for file and folder together. */
typedef struct wanted {
    const char *folder, *name;
    bool with_folder;
    uint64_t timeout_ns, waited_ns;
} wanted_t;

/* LH_AGAIN: the file or its folder went between two looks. O_EXCL first tells who made the file:
 * only what was made for a lock may be removed with it. */
static lh_status_t open_lock_file(const wanted_t *w, const char *path, folder_lock_t *lock)
{
    lock->name = w->name;
    lock->folder_fd = -1;
    lock->folders = folders_missing(w->folder);
    const lh_status_t status = folder_make(w->folder);
    if (status == LH_IO && errno == ENOENT && lock->folders > 0) return LH_AGAIN;
    if (status != LH_OK) return status;
    lock->fd = sys_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    lock->made = lock->fd >= 0;
    if (!lock->made && errno == EEXIST) lock->fd = sys_open(path, O_RDWR | O_NOFOLLOW, 0);
    if (lock->fd >= 0) return LH_OK;
    return errno == ENOENT ? LH_AGAIN : fail_io(errno, "%s: cannot open", path);
}

/* ": process 4711 on t1 ...", as the one that has the lock has written into its file. */
static void read_holder(int fd, char out[HOLDER_BYTES])
{
    char text[HOLDER_BYTES - 2] = "";
    const ssize_t got = sys()->pread(fd, text, sizeof(text) - 1, 0);
    out[0] = '\0';
    if (got > 0) (void)snprintf(out, HOLDER_BYTES, ": %s", text);
}

/* holder: NULL where the file says who has the lock. LH_UNSUPPORTED: this file system has no locks.
 */
static lh_status_t await_lock(int fd, const char *path, const char *holder, wanted_t *w)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (; sys()->lock(fd) != 0; w->waited_ns += PAUSE_NS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return fail(LH_UNSUPPORTED, "%s: cannot lock: %s", path, strerror(errno));
        if (w->waited_ns >= w->timeout_ns) {
            char said[HOLDER_BYTES] = "";
            if (holder == NULL) read_holder(fd, said);
            return fail(LH_INVALID, "%s: another run still writes in this folder%s", path, said);
        }
        (void)nanosleep(&pause, NULL);
    }
    return LH_OK;
}

/* Where a folder can't be locked, what is open of it still tells it from another one. */
static lh_status_t take_folder(const char *path, folder_lock_t *lock, wanted_t *w)
{
    lock->folder_fd = sys_open(w->folder, O_RDONLY | O_DIRECTORY, 0);
    if (lock->folder_fd < 0 || !w->with_folder) return LH_OK;
    const lh_status_t status = await_lock(lock->folder_fd, path, "", w);
    if (status != LH_UNSUPPORTED) return status;
    fail_clear();
    return LH_OK;
}

/* The file is locked, then it is looked whether its name still leads to it: the one who had the
 * lock before may have removed the name, and another process may have locked a new file under it.
 * Then it begins again. */
static lh_status_t wanted_lock_take(wanted_t *w, folder_lock_t *out)
{
    char *path = path_join(w->folder, w->name);
    if (path == NULL) return LH_NO_MEMORY;
    folder_lock_t lock;
    lh_status_t status = LH_AGAIN;
    for (int i = 0; i < TRIES && status == LH_AGAIN; i++) {
        status = open_lock_file(w, path, &lock);
        if (status != LH_OK) continue;
        status = await_lock(lock.fd, path, NULL, w);
        if (status == LH_OK && !file_is(lock.fd, path)) status = LH_AGAIN;
        bool ours = status == LH_OK || status == LH_UNSUPPORTED; /* nobody else can lock it */
        if (status == LH_OK) status = take_folder(path, &lock, w);
        if (status != LH_OK && ours) folder_lock_undo(&lock, w->folder);
        if (status != LH_OK) folder_lock_give(&lock);
    }
    if (status == LH_AGAIN) status = fail_io(errno, "%s: cannot lock", path);
    if (status == LH_OK) *out = lock;
    mem_free(path);
    return status;
}

/* A folder of checkpoints without locks is refused: two runs that write there would destroy each
 * other's. */
lh_status_t folder_lock_take(const char *folder, uint64_t timeout_ns, folder_lock_t *out)
{
    wanted_t w = {folder, ".lock", true, timeout_ns, 0};
    char reason[2048]; /* fail_reason() is written anew */
    const lh_status_t status = wanted_lock_take(&w, out);
    if (status != LH_UNSUPPORTED) return status;
    (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
    return fail_again(LH_IO, reason);
}

/* Whoever holds it says so in the file, for the sentence of the next one alone: a full disk is no
 * reason to fail. */
lh_status_t folder_lock_hold(const char *folder, const char *holder, bool with_folder,
                             folder_lock_t *out)
{
    wanted_t w = {folder, ".run.lock", with_folder, HOLD_NS, 0};
    const lh_status_t status = wanted_lock_take(&w, out);
    if (status != LH_OK) return status;
    out->made = true; /* what a killed run left is ours to remove */
    if (sys_ftruncate(out->fd, 0) == 0) (void)!sys()->pwrite(out->fd, holder, strlen(holder), 0);
    return LH_OK;
}

/* A shared lock for a moment keeps no other onlooker out, and who is just starting waits longer
 * than that (HOLD_NS). Not by sys(): this is no part of a save, whose every call fails in tests. */
static uint32_t look_at_lock(int fd)
{
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) return FOLDER_FREE;
    return errno == EWOULDBLOCK ? FOLDER_HELD : FOLDER_UNKNOWN;
}

/* By the file; where somebody has removed that, by the folder itself. */
uint32_t folder_lock_look(const char *folder, char holder[FOLDER_HOLDER])
{
    holder[0] = '\0';
    char *path = path_join(folder, ".run.lock");
    if (path == NULL) return FOLDER_UNKNOWN;
    int fd = sys_open(path, O_RDONLY | O_NOFOLLOW, 0);
    const bool file = fd >= 0;
    if (fd < 0 && errno == ENOENT) fd = sys_open(folder, O_RDONLY | O_DIRECTORY, 0);
    mem_free(path);
    if (fd < 0) return FOLDER_UNKNOWN;
    const uint32_t found = look_at_lock(fd);
    const ssize_t got = file && found == FOLDER_HELD
                            ? sys()->pread(fd, holder, FOLDER_HOLDER - 1, 0)
                            : 0;
    holder[got > 0 ? got : 0] = '\0';
    (void)sys()->close(fd);
    return found;
}

/* By device and inode: a folder that was moved and made anew has the same name. Without a lock
 * there is nothing to compare. */
lh_status_t folder_lock_check(const folder_lock_t *lock, const char *folder)
{
    struct stat named, held;
    if (lock->fd < 0 || lock->folder_fd < 0 || sys()->fstat(lock->folder_fd, &held) != 0)
        return LH_OK;
    if (sys()->stat(folder, &named) == 0 && named.st_dev == held.st_dev &&
        named.st_ino == held.st_ino)
        return LH_OK;
    return fail_io(0, "%s: this folder was removed or replaced while a run writes in it", folder);
}

/* The lock itself goes when the last process that has the descriptor closes it. */
void folder_lock_give(folder_lock_t *lock)
{
    if (lock->fd >= 0) {
        (void)sys()->close(lock->fd);
        if (lock->folder_fd >= 0) (void)sys()->close(lock->folder_fd);
    }
    lock->fd = -1;
}

/* Only what still is the locked file is removed. */
void folder_lock_undo(folder_lock_t *lock, const char *folder)
{
    char *path = lock->fd >= 0 && lock->made ? path_join(folder, lock->name) : NULL;
    if (path != NULL && file_is(lock->fd, path) && sys()->unlink(path) == 0)
        folders_unmake(folder, lock->folders);
    mem_free(path);
    folder_lock_give(lock);
}
