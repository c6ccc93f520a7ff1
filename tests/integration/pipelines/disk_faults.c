/* disk_faults.c - preloaded into a run: the file that DISK_FAULTS names says which call of the
 * process that writes a checkpoint goes wrong, and how; a line each:
 *
 *     STEP CALL N WHAT     the n-th such call while it saves that step (0: any): an error's number,
 *                          "hang" (it never returns) or "stop" (the process stops as by SIGSTOP)
 *
 * Cross-checks on the unmodified program what the tests behind the seam show. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { CALLS = 8, ROWS = 16 };
static const char *const names[CALLS] = {"none",      "mkdir", "write",  "pwrite",
                                         "fallocate", "fsync", "rename", "close"};
enum { NONE, MKDIR, WRITE, PWRITE, FALLOCATE, FSYNC, RENAME, CLOSE };

static struct {
    pid_t of; /* the process that this is about */
    unsigned long long step;
    unsigned count[CALLS], rows;
    struct {
        unsigned long long step;
        int call;
        unsigned n;
        char what[16];
    } row[ROWS];
} faults;

int mkdir(const char *path, mode_t mode);
int rename(const char *from, const char *to);
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);

static void read_rows(void)
{
    char call[16], what[16];
    unsigned long long step;
    unsigned n;
    const char *path = getenv("DISK_FAULTS");
    FILE *f = path == NULL ? NULL : fopen(path, "r");
    while (f != NULL && faults.rows < ROWS &&
           fscanf(f, "%llu %15s %u %15s", &step, call, &n, what) == 4)
        for (int i = 0; i < CALLS; i++)
            if (strcmp(call, names[i]) == 0) {
                faults.row[faults.rows].step = step;
                faults.row[faults.rows].call = i;
                faults.row[faults.rows].n = n;
                (void)snprintf(faults.row[faults.rows++].what, sizeof(what), "%s", what);
            }
    if (f != NULL) (void)fclose(f);
}

/* An empty file beside the list says that something did go wrong. */
static void leave_word(void)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s.struck", getenv("DISK_FAULTS"));
    const int fd = creat(path, 0600);
    if (fd >= 0) (void)syscall(SYS_close, fd);
}

/* 0, or the error to fail with. */
static int strikes(int call)
{
    char name[17] = "";
    (void)prctl(PR_GET_NAME, name);
    if (strcmp(name, "longhaul-save") != 0) return 0;
    if (faults.of != getpid()) {
        memset(&faults, 0, sizeof(faults));
        faults.of = getpid();
        read_rows();
    }
    const unsigned n = ++faults.count[call];
    for (unsigned i = 0; i < faults.rows; i++) {
        if (faults.row[i].call != call || faults.row[i].n != n ||
            (faults.row[i].step != 0 && faults.row[i].step != faults.step))
            continue;
        leave_word();
        if (strcmp(faults.row[i].what, "stop") == 0) (void)raise(SIGSTOP);
        while (strcmp(faults.row[i].what, "hang") == 0)
            (void)pause();
        return atoi(faults.row[i].what);
    }
    return 0;
}

#define REAL(type, name, ...)         \
    static type (*real)(__VA_ARGS__); \
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, name)

int mkdir(const char *path, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t);
    const char *step = strstr(path, "/.tmp-step-");
    if (step == NULL) return real(path, mode); /* a folder above */
    (void)strikes(NONE);
    memset(faults.count, 0, sizeof(faults.count)); /* from here on it is the step's */
    faults.step = strtoull(step + strlen("/.tmp-step-"), NULL, 10);
    const int error = strikes(MKDIR);
    if (error == 0) return real(path, mode);
    errno = error;
    return -1;
}

ssize_t write(int fd, const void *from, size_t bytes)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    const int error = strikes(WRITE);
    if (error == 0) return real(fd, from, bytes);
    errno = error;
    return -1;
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    const int error = strikes(PWRITE);
    if (error == 0) return real(fd, from, bytes, offset);
    (void)real(fd, from, bytes / 2, offset);
    errno = error;
    return -1;
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    REAL(int, "posix_fallocate", int, off_t, off_t);
    const int error = strikes(FALLOCATE);
    return error != 0 ? error : real(fd, offset, length);
}

int fsync(int fd)
{
    REAL(int, "fsync", int);
    const int error = strikes(FSYNC);
    if (error == 0) return real(fd);
    errno = error;
    return -1;
}

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    const int error = strikes(RENAME);
    if (error == 0) return real(from, to);
    errno = error;
    return -1;
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    const int error = strikes(RENAME);
    if (error == 0) return real(from_folder, from, to_folder, to, flags);
    errno = error;
    return -1;
}

int close(int fd)
{
    REAL(int, "close", int);
    const int error = strikes(CLOSE);
    const int result = real(fd);
    if (error == 0) return result;
    errno = error;
    return -1;
}
