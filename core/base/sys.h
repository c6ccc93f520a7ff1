/* base/sys.h - the only door to the system: clock, random bytes, files; and the signals by which it
 * asks a run to end. Tests put a table of their own in place to inject faults and to record what a
 * writer did.
 *
 * A table of functions and not weak symbols or a library put in front: a test decides at run time,
 * one case after the other, and calls the real function from its own. The price is a call through a
 * pointer, which no system call notices. Sockets, processes and mappings do not go
 * through it. */
#ifndef BASE_SYS_H
#define BASE_SYS_H

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

#include <longhaul/base.h>

/* Every function behaves as the call it is named after: -1 and errno on failure. The code above
 * uses file.h, which turns failures into sentences. All may be called by any thread. */
typedef struct sys {
    int (*open)(const char *path, int flags, mode_t mode); /* O_CLOEXEC is added */
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

    uint64_t (*now_ns)(void);               /* CLOCK_MONOTONIC: deadlines and durations          */
    uint64_t (*wall_ns)(void);              /* CLOCK_REALTIME: only for texts that people read    */
    int (*random)(void *out, size_t bytes); /* of the kernel; all bytes or -1 */
} sys_t;

/* The system itself: what a test's table calls behind its fault. */
extern const sys_t sys_real;

/* The table in force. Set once before threads start; NULL restores the real one. */
const sys_t *sys(void);
void sys_use(const sys_t *table);

/* Calls of the table, begun again where a signal interrupts them. */
int sys_open(const char *path, int flags, mode_t mode);
int sys_fsync(int fd);
int sys_ftruncate(int fd, off_t length);
int sys_fallocate(int fd, off_t length);
int sys_rename(const char *from, const char *to);
int sys_rename_new(const char *from, const char *to);

/* A SIGHUP says one of two things. To a process with a controlling terminal: that it closes, which
 * asks the run to end unless who started it ignores the signal (nohup). To one without, as a service
 * or a rank of srun has none: that logs are to be opened anew, as their files have been renamed. This
 * is decided once, by the first call. [main thread at first, then any] */
bool sys_has_terminal(void);
/* How often a SIGHUP has asked for that. log.c looks at each line. [any thread] */
uint32_t sys_reopen_asked(void);
/* Where there is no terminal: from here on a SIGHUP does so, and nothing else. */
void sys_reopen_watch(void);
void sys_reopen_ask(void); /* for who has read the signal from a descriptor; async-signal-safe */

/* SIGTERM, SIGINT and SIGHUP ask a run to save and end; a second one ends it at once. From here on
 * the first signal only sets the flag of sys_stop_requested, the second leaves with 128 + its
 * number: what is committed on disk stays as it is. A SIGHUP asks as well, but is never counted
 * as the first or the second, as a terminal that closes may send several. [main thread] */
lh_status_t sys_stop_watch(void) LH_MUST_CHECK;
void sys_stop_unwatch(void); /* brings back the handlers from before sys_stop_watch */
/* Whether a signal that asks so has come since sys_stop_watch. Asked between steps. [any thread] */
bool sys_stop_requested(void);
/* Whether one of them was another than SIGTERM. [any thread] */
bool sys_stop_by_hand(void);
/* For a run where nothing watches yet or any more: from here on such a signal ends this process at
 * once by that exit code and with a line that names it, or by 128 + its number where it is the
 * second one. What is ignored stays so. Children that a fork makes end as if nothing had been set.
 */
void sys_stop_at_once(int code);
/* That line goes into this file as well, with its time, where it is there by then; "": into none. By one thread at a
 * time. */
void sys_stop_log(const char *path);
/* Such a line, "longhaul: " before it. Async-signal-safe. */
void sys_stop_say(const char *words);
/* Before such a signal ends this process, by the first or (at_once) a second one, the handler calls this,
 * which may change the exit code and calls what is async-signal-safe alone. True: it has said why itself.
 * NULL: nobody need know. Not in children that a fork makes. */
void sys_stop_tell(bool (*tell)(bool at_once, int *code));

#endif
