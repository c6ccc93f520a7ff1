/* mem_fs_shared.c - every call of mem_table under one lock. */
#include <crash/mem_fs_shared.h>

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* list calls back */

/* Errors are the thread's own: errno is left alone by the lock. */
#define CALL(type, call)                \
    (void)pthread_mutex_lock(&lock);    \
    const type result = mem_table.call; \
    (void)pthread_mutex_unlock(&lock);  \
    return result

static int shared_open(const char *path, int flags, mode_t mode)
{
    CALL(int, open(path, flags, mode));
}

static int shared_close(int fd)
{
    CALL(int, close(fd));
}

static ssize_t shared_read(int fd, void *to, size_t bytes)
{
    CALL(ssize_t, read(fd, to, bytes));
}

static ssize_t shared_write(int fd, const void *from, size_t bytes)
{
    CALL(ssize_t, write(fd, from, bytes));
}

static ssize_t shared_pread(int fd, void *to, size_t bytes, off_t offset)
{
    CALL(ssize_t, pread(fd, to, bytes, offset));
}

static ssize_t shared_pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    CALL(ssize_t, pwrite(fd, from, bytes, offset));
}

static int shared_fsync(int fd)
{
    CALL(int, fsync(fd));
}

static int shared_ftruncate(int fd, off_t length)
{
    CALL(int, ftruncate(fd, length));
}

static int shared_fallocate(int fd, off_t length)
{
    CALL(int, fallocate(fd, length));
}

static int shared_fstat(int fd, struct stat *out)
{
    CALL(int, fstat(fd, out));
}

static int shared_fstatvfs(int fd, struct statvfs *out)
{
    CALL(int, fstatvfs(fd, out));
}

static int shared_stat(const char *path, struct stat *out)
{
    CALL(int, stat(path, out));
}

static int shared_lstat(const char *path, struct stat *out)
{
    CALL(int, lstat(path, out));
}

static int shared_mkdir(const char *path, mode_t mode)
{
    CALL(int, mkdir(path, mode));
}

static int shared_rename(const char *from, const char *to)
{
    CALL(int, rename(from, to));
}

static int shared_rename_new(const char *from, const char *to)
{
    CALL(int, rename_new(from, to));
}

static int shared_unlink(const char *path)
{
    CALL(int, unlink(path));
}

static int shared_rmdir(const char *path)
{
    CALL(int, rmdir(path));
}

static int shared_lock(int fd)
{
    CALL(int, lock(fd));
}

static int shared_random(void *out, size_t bytes)
{
    CALL(int, random(out, bytes));
}

static int shared_list(const char *path, int (*each)(void *context, const char *name),
                       void *context)
{
    CALL(int, list(path, each, context));
}

static uint64_t shared_now_ns(void)
{
    return sys_real.now_ns();
}

static uint64_t shared_wall_ns(void)
{
    return sys_real.wall_ns();
}

void mem_shared_mark(uint64_t number)
{
    (void)pthread_mutex_lock(&lock);
    mem_fs_mark(mem_fs_used(), number);
    (void)pthread_mutex_unlock(&lock);
}

const sys_t mem_shared_table = {
    .open = shared_open,
    .close = shared_close,
    .read = shared_read,
    .write = shared_write,
    .pread = shared_pread,
    .pwrite = shared_pwrite,
    .fsync = shared_fsync,
    .ftruncate = shared_ftruncate,
    .fallocate = shared_fallocate,
    .fstat = shared_fstat,
    .fstatvfs = shared_fstatvfs,
    .stat = shared_stat,
    .lstat = shared_lstat,
    .mkdir = shared_mkdir,
    .rename = shared_rename,
    .rename_new = shared_rename_new,
    .unlink = shared_unlink,
    .rmdir = shared_rmdir,
    .lock = shared_lock,
    .random = shared_random,
    .list = shared_list,
    .now_ns = shared_now_ns,
    .wall_ns = shared_wall_ns,
};
