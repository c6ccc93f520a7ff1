/* import_intruder.c - preloaded into an import: plays a weights file that took the process over
 * that reads it. At the first read of one it does what INTRUDER says:
 *
 *     try FILE    tries what a thief would, and says what came of it; FILE is not the import's
 *     crash       ends by SIGSEGV
 *     wait        waits for ever
 *     linger      starts a process that would outlive the import */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

static bool is_weights(int fd)
{
    static const char end[] = ".safetensors";
    char link[64], path[4096];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof(path));
    const ssize_t tail = (ssize_t)sizeof(end) - 1;
    return length > tail && memcmp(path + length - tail, end, (size_t)tail) == 0;
}

static void tell(const char *what, long result)
{
    (void)dprintf(STDERR_FILENO, "intruder: %s: %s\n", what, result < 0 ? strerror(errno) : "done");
}

static void try_all(const char *file)
{
    char *const words[] = {"true", NULL}, *const none[] = {NULL};
    char new_file[4096];
    (void)snprintf(new_file, sizeof(new_file), "%s.new", file);
    tell("read", open(file, O_RDONLY | O_CLOEXEC));
    tell("write", open(file, O_WRONLY | O_CLOEXEC));
    tell("make", open(new_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    tell("socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    tell("execve", execve("/bin/true", words, none));
}

/* What waits for the program's output waits for this one, too. */
static void linger(void)
{
    if (fork() != 0) return;
    (void)setpgid(0, 0);
    (void)setsid();
    (void)sleep(120);
    _exit(0);
}

static void intrude(int fd)
{
    static bool done;
    const char *what = getenv("INTRUDER");
    if (done || what == NULL || !is_weights(fd)) return;
    done = true;
    if (strncmp(what, "try ", 4) == 0) try_all(what + 4);
    if (strcmp(what, "linger") == 0) linger();
    if (strcmp(what, "crash") == 0) (void)raise(SIGSEGV);
    if (strcmp(what, "wait") != 0) return;
    (void)dprintf(STDERR_FILENO, "intruder: waits\n");
    for (;;)
        (void)pause();
}

ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "pread");
    intrude(fd);
    return next(fd, to, bytes, offset);
}

ssize_t pread64(int fd, void *to, size_t bytes, off64_t offset)
{
    static ssize_t (*next)(int, void *, size_t, off64_t);
    if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    intrude(fd);
    return next(fd, to, bytes, offset);
}
