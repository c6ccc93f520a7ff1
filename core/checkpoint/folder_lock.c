/* folder_lock.c - flock on a file that may lose its name while another process waits for it, and on
 * its folder. */
#include <checkpoint/folder_lock.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

enum { PAUSE_NS = 20000000, TRIES = 100, HOLD_NS = 300000000, HOLDER_BYTES = 512 };

typedef struct wanted {
    const char *folder, *name;
    bool with_folder;
    uint64_t timeout_ns, waited_ns;
} wanted_t;

/* LH_AGAIN: the file or its folder went between two looks. */
static lh_status_t open_file(const wanted_t *w, const char *path, folder_lock_t *lock)
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

static lh_status_t take(wanted_t *w, folder_lock_t *out)
{
    char *path = path_join(w->folder, w->name);
    if (path == NULL) return LH_NO_MEMORY;
    folder_lock_t lock;
    lh_status_t status = LH_AGAIN;
    for (int i = 0; i < TRIES && status == LH_AGAIN; i++) {
        status = open_file(w, path, &lock);
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

lh_status_t folder_lock_take(const char *folder, uint64_t timeout_ns, folder_lock_t *out)
{
    wanted_t w = {folder, ".lock", true, timeout_ns, 0};
    char reason[2048]; /* fail_reason() is written anew */
    const lh_status_t status = take(&w, out);
    if (status != LH_UNSUPPORTED) return status;
    (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
    return fail_again(LH_IO, reason);
}

lh_status_t folder_lock_hold(const char *folder, const char *holder, bool with_folder,
                             folder_lock_t *out)
{
    wanted_t w = {folder, ".run.lock", with_folder, HOLD_NS, 0};
    const lh_status_t status = take(&w, out);
    if (status != LH_OK) return status;
    out->made = true; /* what a killed run left is ours to remove */
    /* For a sentence alone: a full disk is no reason. */
    if (sys_ftruncate(out->fd, 0) == 0) (void)!sys()->pwrite(out->fd, holder, strlen(holder), 0);
    return LH_OK;
}

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

void folder_lock_give(folder_lock_t *lock)
{
    if (lock->fd >= 0) {
        (void)sys()->close(lock->fd);
        if (lock->folder_fd >= 0) (void)sys()->close(lock->folder_fd);
    }
    lock->fd = -1;
}

void folder_lock_undo(folder_lock_t *lock, const char *folder)
{
    char *path = lock->fd >= 0 && lock->made ? path_join(folder, lock->name) : NULL;
    if (path != NULL && file_is(lock->fd, path) && sys()->unlink(path) == 0)
        folders_unmake(folder, lock->folders);
    mem_free(path);
    folder_lock_give(lock);
}
