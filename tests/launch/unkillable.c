/* unkillable.c - loaded before the C library (LD_PRELOAD): processes that SIGKILL does not end, as one that
 * waits in a driver. They are those with the rank that UNKILLABLE names in their environment. Half a
 * second behind the first such signal the clock of whoever sent it is a minute and a second ahead, so that nobody
 * need wait, and others that were killed with them have ended. */
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

enum { AHEAD_S = 61, LATER_MS = 500 };
static _Atomic long long sent_ms; /* 0: none was */

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

static long long ms_of(const struct timespec *t)
{
    return (long long)t->tv_sec * 1000 + t->tv_nsec / 1000000;
}

int kill(pid_t pid, int number)
{
    struct timespec now;
    long long none = 0;
    int (*next)(pid_t, int);
    *(void **)&next = dlsym(RTLD_NEXT, "kill");
    if (number != SIGKILL || !is_unkillable(pid)) return next(pid, number);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)atomic_compare_exchange_strong(&sent_ms, &none, ms_of(&now));
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int (*next)(clockid_t, struct timespec *);
    *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    const int result = next(clock, out);
    const long long sent = atomic_load(&sent_ms);
    if (result == 0 && clock == CLOCK_MONOTONIC && sent != 0 && ms_of(out) > sent + LATER_MS)
        out->tv_sec += AHEAD_S;
    return result;
}
