/* call_faults.c - counts calls and lets one of them fail. */
#include <crash/call_faults.h>

#include <errno.h>
#include <fcntl.h>

#include <crash/mem_fs.h>

call_faults_t call_faults;

/* True: the call is not to be made. */
static bool strikes(const char *name)
{
    call_faults_t *f = &call_faults;
    const bool now = ++f->calls == f->at;
    if (f->kind == CALL_FROZEN && f->at > 0 && f->calls >= f->at) {
        if (f->struck == NULL) f->struck = name;
        errno = EIO;
        return true;
    }
    if (f->kind == CALL_FULL) f->calls--; /* only those that need space count */
    if (!now || f->kind != CALL_FAILS) return false;
    f->struck = name;
    errno = f->error;
    return true;
}

static bool is_now(call_fault_t kind, const char *name)
{
    call_faults_t *f = &call_faults;
    if (f->kind != kind || f->calls + 1 != f->at) return false;
    f->calls++;
    f->struck = name;
    return true;
}

static bool is_again(const char *name)
{
    if (!is_now(CALL_AGAIN, name)) return false;
    errno = EINTR;
    return true;
}

/* The same for a call that needs space on the disk. */
static bool is_full(const char *name)
{
    call_faults_t *f = &call_faults;
    if (f->kind != CALL_FULL) return strikes(name);
    if (++f->calls < f->at || f->at == 0) return false;
    if (f->struck == NULL) f->struck = name;
    errno = f->error;
    return true;
}

static bool in_memory(void)
{
    return mem_fs_used() != NULL && call_faults.kind == CALL_FAILS;
}

static int faults_open(const char *path, int flags, mode_t mode)
{
    if (is_again("open")) return -1;
    return ((flags & O_CREAT) != 0 ? is_full("open") : strikes("open"))
               ? -1
               : call_faults.below->open(path, flags, mode);
}

static int faults_close(int fd)
{
    if (!strikes("close")) return call_faults.below->close(fd);
    const int error = errno;
    if (in_memory()) mem_fs_lose(mem_fs_used(), fd, true);
    (void)call_faults.below->close(fd); /* as on NFS: closed, and what was written is lost */
    errno = error;
    return -1;
}

static ssize_t faults_read(int fd, void *to, size_t bytes)
{
    if (is_again("read")) return -1;
    return strikes("read") ? -1 : call_faults.below->read(fd, to, bytes);
}

static ssize_t faults_pread(int fd, void *to, size_t bytes, off_t offset)
{
    if (is_again("pread")) return -1;
    return strikes("pread") ? -1 : call_faults.below->pread(fd, to, bytes, offset);
}

static ssize_t faults_write(int fd, const void *from, size_t bytes)
{
    if (is_again("write")) return -1;
    if (is_now(CALL_SHORT, "write")) return call_faults.below->write(fd, from, (bytes + 1) / 2);
    if (!is_full("write")) return call_faults.below->write(fd, from, bytes);
    const int error = errno;
    if (call_faults.kind == CALL_FAILS) (void)call_faults.below->write(fd, from, bytes / 2);
    errno = error;
    return -1;
}

static ssize_t faults_pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    if (is_again("pwrite")) return -1;
    if (is_now(CALL_SHORT, "pwrite"))
        return call_faults.below->pwrite(fd, from, (bytes + 1) / 2, offset);
    if (!is_full("pwrite")) return call_faults.below->pwrite(fd, from, bytes, offset);
    const int error = errno;
    if (call_faults.kind == CALL_FAILS)
        (void)call_faults.below->pwrite(fd, from, bytes / 2, offset);
    errno = error;
    return -1;
}

static int faults_fsync(int fd)
{
    if (is_again("fsync")) return -1;
    if (!strikes("fsync")) return call_faults.below->fsync(fd);
    const int error = errno;
    if (in_memory()) mem_fs_lose(mem_fs_used(), fd, false);
    errno = error;
    return -1;
}

static int faults_ftruncate(int fd, off_t length)
{
    if (is_again("ftruncate")) return -1;
    return strikes("ftruncate") ? -1 : call_faults.below->ftruncate(fd, length);
}

static int faults_fallocate(int fd, off_t length)
{
    if (is_again("fallocate")) return -1;
    return is_full("fallocate") ? -1 : call_faults.below->fallocate(fd, length);
}

static int faults_fstat(int fd, struct stat *out)
{
    return strikes("fstat") ? -1 : call_faults.below->fstat(fd, out);
}

static int faults_fstatvfs(int fd, struct statvfs *out)
{
    return strikes("fstatvfs") ? -1 : call_faults.below->fstatvfs(fd, out);
}

static int faults_stat(const char *path, struct stat *out)
{
    return strikes("stat") ? -1 : call_faults.below->stat(path, out);
}

static int faults_lstat(const char *path, struct stat *out)
{
    return strikes("lstat") ? -1 : call_faults.below->lstat(path, out);
}

static int faults_mkdir(const char *path, mode_t mode)
{
    return is_full("mkdir") ? -1 : call_faults.below->mkdir(path, mode);
}

static int faults_rename(const char *from, const char *to)
{
    if (is_again("rename")) return -1;
    return is_full("rename") ? -1 : call_faults.below->rename(from, to);
}

static int faults_rename_new(const char *from, const char *to)
{
    if (is_again("rename_new")) return -1;
    return is_full("rename_new") ? -1 : call_faults.below->rename_new(from, to);
}

static int faults_unlink(const char *path)
{
    return strikes("unlink") ? -1 : call_faults.below->unlink(path);
}

static int faults_rmdir(const char *path)
{
    return strikes("rmdir") ? -1 : call_faults.below->rmdir(path);
}

static int faults_lock(int fd)
{
    return strikes("lock") ? -1 : call_faults.below->lock(fd);
}

static int faults_list(const char *path, int (*each)(void *context, const char *name),
                       void *context)
{
    return strikes("list") ? -1 : call_faults.below->list(path, each, context);
}

static int faults_random(void *out, size_t bytes)
{
    return strikes("random") ? -1 : call_faults.below->random(out, bytes);
}

void call_faults_use(const sys_t *below, call_fault_t kind, uint32_t at, int error)
{
    static sys_t table;
    call_faults = (call_faults_t){.below = below, .kind = kind, .at = at, .error = error};
    table = (sys_t){
        .open = faults_open,
        .close = faults_close,
        .read = faults_read,
        .write = faults_write,
        .pread = faults_pread,
        .pwrite = faults_pwrite,
        .fsync = faults_fsync,
        .ftruncate = faults_ftruncate,
        .fallocate = faults_fallocate,
        .fstat = faults_fstat,
        .fstatvfs = faults_fstatvfs,
        .stat = faults_stat,
        .lstat = faults_lstat,
        .mkdir = faults_mkdir,
        .rename = faults_rename,
        .rename_new = faults_rename_new,
        .unlink = faults_unlink,
        .rmdir = faults_rmdir,
        .lock = faults_lock,
        .list = faults_list,
        .now_ns = below->now_ns,
        .wall_ns = below->wall_ns,
        .random = faults_random,
    };
    sys_use(&table);
}
