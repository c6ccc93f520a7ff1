/* base/sys.h - the only door to the system: clock, random bytes, files. Tests put a table of their
 * own in place to inject faults and to record what a writer did.
 *
 * Every function behaves as the call it is named after: -1 and errno on failure. The code above
 * uses file.h, which turns failures into sentences. */
#ifndef BASE_SYS_H
#define BASE_SYS_H

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

#include <longhaul/base.h>

typedef struct sys {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*read)(int fd, void *to, size_t bytes);
    ssize_t (*write)(int fd, const void *from, size_t bytes);
    ssize_t (*pread)(int fd, void *to, size_t bytes, off_t offset);
    ssize_t (*pwrite)(int fd, const void *from, size_t bytes, off_t offset);
    int (*fsync)(int fd);
    int (*ftruncate)(int fd, off_t length);
    int (*fallocate)(int fd, off_t length); /* posix_fallocate: returns 0, or -1 and errno */
    int (*fstat)(int fd, struct stat *out);
    int (*fstatvfs)(int fd, struct statvfs *out);
    int (*stat)(const char *path, struct stat *out);
    int (*lstat)(const char *path, struct stat *out);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rename)(const char *from, const char *to);
    int (*rename_new)(const char *from, const char *to); /* EEXIST where the name is taken, where
                                                            the file system can tell */
    int (*link)(const char *from, const char *to); /* a second name; EEXIST where one is taken */
    int (*unlink)(const char *path);
    int (*rmdir)(const char *path);
    int (*lock)(int fd); /* flock, exclusive, without waiting: EWOULDBLOCK when another has it */
    /* Calls each(context, name) for every entry but "." and "..", in sorted order; stops when it
     * returns non-zero and returns that. */
    int (*list)(const char *path, int (*each)(void *context, const char *name), void *context);

    uint64_t (*now_ns)(void);  /* CLOCK_MONOTONIC: deadlines and durations          */
    uint64_t (*wall_ns)(void); /* CLOCK_REALTIME: only for texts that people read    */
    int (*random)(void *out, size_t bytes);
} sys_t;

extern const sys_t sys_real;

/* The table in force. Set once before threads start; NULL restores the real one. */
const sys_t *sys(void);
void sys_use(const sys_t *table);

/* The same calls, begun again where a signal interrupts them. */
int sys_open(const char *path, int flags, mode_t mode);
int sys_fsync(int fd);
int sys_ftruncate(int fd, off_t length);
int sys_fallocate(int fd, off_t length);
int sys_rename(const char *from, const char *to);
int sys_rename_new(const char *from, const char *to);

#endif
