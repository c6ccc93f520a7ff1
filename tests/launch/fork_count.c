/* fork_count.c - loaded before the C library (LD_PRELOAD): what a process was when it forked its
 * savers. A plugin is mapped from memory that is named after it. Each saver, as it takes its name,
 * appends a line to the file that FORK_COUNT names: its name, how many threads the process had
 * that forked it, and how many plugins were loaded there. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static int threads, plugins; /* of the parent, right before the fork that made this process */

static int threads_now(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    if (folder == NULL) return -1;
    for (const struct dirent *e; (e = readdir(folder)) != NULL;)
        count += e->d_name[0] != '.';
    (void)closedir(folder);
    return count;
}

static int plugins_now(void)
{
    char line[1024];
    int count = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    if (f == NULL) return -1;
    while (fgets(line, sizeof(line), f) != NULL)
        count += strstr(line, "/memfd:longhaul.") != NULL;
    (void)fclose(f);
    return count;
}

pid_t fork(void)
{
    pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
    threads = threads_now();
    plugins = plugins_now();
    return next();
}

int prctl(int option, ...)
{
    int (*next)(int, ...) = (int (*)(int, ...))dlsym(RTLD_NEXT, "prctl");
    unsigned long words[4];
    va_list rest;
    va_start(rest, option);
    for (int i = 0; i < 4; i++)
        words[i] = va_arg(rest, unsigned long);
    va_end(rest);
    const char *file = getenv("FORK_COUNT");
    const char *name = option == PR_SET_NAME ? (const char *)words[0] : "";
    if (file != NULL && strncmp(name, "longhaul-s", 10) == 0) {
        char line[64];
        const int length = snprintf(line, sizeof(line), "%s %d %d\n", name, threads, plugins);
        const int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (fd >= 0) (void)!write(fd, line, (size_t)length);
        if (fd >= 0) (void)close(fd);
    }
    return next(option, words[0], words[1], words[2], words[3]);
}
