/* unkillable.c - loaded before the C library (LD_PRELOAD): processes that SIGKILL does not end, as one that
 * waits in a driver. They are those with the rank that UNKILLABLE names in their environment. From the
 * first such signal on the clock of whoever sent it is eleven seconds ahead, so that nobody need wait. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { AHEAD_S = 11 };
static atomic_int ahead;

static int is_unkillable(pid_t pid)
{
    static char environment[1 << 16];
    char path[64], word[64];
    const char *rank = getenv("UNKILLABLE");
    if (rank == NULL) return 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    (void)snprintf(word, sizeof(word), "LONGHAUL_LAUNCH=rank=%.8s ", rank);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t got = read(fd, environment, sizeof(environment));
    (void)close(fd);
    return got > 0 && memmem(environment, (size_t)got, word, strlen(word)) != NULL;
}

int kill(pid_t pid, int number)
{
    int (*next)(pid_t, int);
    *(void **)&next = dlsym(RTLD_NEXT, "kill");
    if (number != SIGKILL || !is_unkillable(pid)) return next(pid, number);
    atomic_store(&ahead, AHEAD_S);
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int (*next)(clockid_t, struct timespec *);
    *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    const int result = next(clock, out);
    if (result == 0 && clock == CLOCK_MONOTONIC) out->tv_sec += atomic_load(&ahead);
    return result;
}
