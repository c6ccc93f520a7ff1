/* folder_lock.c - flock on a file that may lose its name while another process waits for it. */
#include <checkpoint/folder_lock.h>

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

enum { PAUSE_NS = 20000000, TRIES = 100 };

static char *lock_path(const char *folder)
{
    return path_join(folder, ".lock");
}

/* LH_AGAIN: the file or its folder went between two looks. */
static lh_status_t open_file(const char *folder, const char *path, folder_lock_t *lock)
{
    lock->folders = folders_missing(folder);
    const lh_status_t status = folder_make(folder);
    if (status == LH_IO && errno == ENOENT && lock->folders > 0) return LH_AGAIN;
    if (status != LH_OK) return status;
    lock->fd = sys_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    lock->made = lock->fd >= 0;
    if (!lock->made && errno == EEXIST) lock->fd = sys_open(path, O_RDWR | O_NOFOLLOW, 0);
    if (lock->fd >= 0) return LH_OK;
    return errno == ENOENT ? LH_AGAIN : fail(LH_IO, "%s: cannot open", path);
}

static lh_status_t await_lock(int fd, const char *path, uint64_t timeout_ns, uint64_t *waited_ns)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (; sys()->lock(fd) != 0; *waited_ns += PAUSE_NS) {
        if (errno != EWOULDBLOCK && errno != EINTR) return fail(LH_IO, "%s: cannot lock", path);
        if (*waited_ns >= timeout_ns)
            return fail(LH_INVALID, "%s: another run still writes in this folder", path);
        (void)nanosleep(&pause, NULL);
    }
    return file_is(fd, path) ? LH_OK : LH_AGAIN;
}

lh_status_t folder_lock_take(const char *folder, uint64_t timeout_ns, folder_lock_t *out)
{
    char *path = lock_path(folder);
    if (path == NULL) return LH_NO_MEMORY;
    uint64_t waited_ns = 0;
    folder_lock_t lock;
    lh_status_t status = LH_AGAIN;
    for (int i = 0; i < TRIES && status == LH_AGAIN; i++) {
        status = open_file(folder, path, &lock);
        if (status != LH_OK) continue;
        status = await_lock(lock.fd, path, timeout_ns, &waited_ns);
        if (status == LH_IO) folder_lock_undo(&lock, folder); /* nobody can lock it */
        if (status != LH_OK) folder_lock_give(&lock);
    }
    if (status == LH_AGAIN) status = fail(LH_IO, "%s: cannot lock", path);
    if (status == LH_OK) *out = lock;
    mem_free(path);
    return status;
}

void folder_lock_give(folder_lock_t *lock)
{
    if (lock->fd >= 0) (void)sys()->close(lock->fd);
    lock->fd = -1;
}

void folder_lock_undo(folder_lock_t *lock, const char *folder)
{
    char *path = lock->fd >= 0 && lock->made ? lock_path(folder) : NULL;
    if (path != NULL && sys()->unlink(path) == 0) folders_unmake(folder, lock->folders);
    mem_free(path);
    folder_lock_give(lock);
}
