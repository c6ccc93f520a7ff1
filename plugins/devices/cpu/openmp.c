/* openmp.c - runs parts on libgomp's team: the one that oneDNN uses, since two pools that stay
 * awake would fight for the same cores.
 *
 * libgomp's entry points are looked up by name and called directly: the plugin is compiled without
 * OpenMP, so that it links against nothing, and the team is the one that is there. */
#include "openmp.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OPENMP_LIBRARY "libgomp.so.1"

/* "NAME=value" or a part of it. */
static bool environment_has(const char *row)
{
    const size_t name = strcspn(row, "=") + 1;
    for (char **at = environ; at != NULL && *at != NULL; at++)
        if (strncmp(*at, row, name) == 0) return true;
    return false;
}

/* Only what the user has not set. Not by setenv, which moves the list as it grows: threads of the host, and
 * libraries in them, may be looking through it. It stays where it is, and there is a new one, with what is
 * new in the block behind it. */
void openmp_environment(uint32_t threads)
{
    enum { ROWS = 3, ROW = 32 };
    static char **kept; /* also where a setenv makes another one later */
    char number[ROW];
    (void)snprintf(number, sizeof(number), "OMP_NUM_THREADS=%u", threads);
    /* Between two kernels a thread waits awake, for about a millisecond: longer than the control
     * thread needs to get from one to the next, short enough to leave an idle core alone. */
    const char *const rows[ROWS] = {number, "OMP_DYNAMIC=false", "GOMP_SPINCOUNT=20000"};
    size_t count = 0, added = 0;
    while (environ != NULL && environ[count] != NULL)
        count++;
    char **list = calloc(1, (count + ROWS + 1) * sizeof(*list) + ROWS * ROW);
    if (list == NULL) return;
    if (count > 0) memcpy(list, environ, count * sizeof(*list));
    for (size_t i = 0; i < ROWS; i++) {
        if (environment_has(rows[i])) continue;
        char *row = (char *)(list + count + ROWS + 1) + i * ROW;
        memcpy(row, rows[i], strlen(rows[i]));
        list[count + added++] = row;
    }
    if (added == 0) {
        free(list);
        return;
    }
    kept = list;
    __atomic_store_n(&environ, kept, __ATOMIC_RELEASE);
}

/* NULL, too, where the library is not there: asked once, at the end. */
static void *openmp_symbol(void *library, const char *name)
{
    return library == NULL ? NULL : dlsym(library, name);
}

lh_status_t openmp_open(const lh_host_t *host, cpu_openmp_t *out)
{
    void *library = dlopen(OPENMP_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    void *parallel = openmp_symbol(library, "GOMP_parallel");
    void *number = openmp_symbol(library, "omp_get_thread_num");
    void *size = openmp_symbol(library, "omp_get_num_threads");
    void *set = openmp_symbol(library, "omp_set_num_threads");
    void *dynamic = openmp_symbol(library, "omp_set_dynamic");
    if (parallel == NULL || number == NULL || size == NULL || set == NULL || dynamic == NULL)
        return host->fail(host, LH_NO_DEVICE,
                          "the cpu device needs libgomp (%s; Debian's package libgomp1)",
                          OPENMP_LIBRARY);

    memcpy(&out->parallel, &parallel, sizeof(parallel));
    memcpy(&out->thread_number, &number, sizeof(number));
    memcpy(&out->team_size, &size, sizeof(size));
    memcpy(&out->set_threads, &set, sizeof(set));
    memcpy(&out->set_dynamic, &dynamic, sizeof(dynamic));
    return LH_OK;
}

static _Atomic uint32_t came; /* not on the stack: a thread may look at it a moment longer */

/* Who comes counts itself: there is no other way to learn how many a limit leaves. */
static void count_body(void *data)
{
    (void)data;
    atomic_fetch_add(&came, 1);
}

uint32_t openmp_team(const cpu_openmp_t *openmp, uint32_t threads)
{
    /* A region of that many threads; whoever of them exists comes. The team's threads are made
     * here and keep the mask: a handler would run on whatever a product has in the register of the
     * stack (AVX2 kernels of oneDNN), and only the control thread has a stack for handlers. What a
     * thread's own instruction raises is not held back: the kernel would end the process without a
     * word where a sanitizer's handler, on a stack of its own, tells where it was. */
    sigset_t all, mask;
    (void)sigfillset(&all);
    static const int own[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
        (void)sigdelset(&all, own[i]);
    atomic_store(&came, 0);
    openmp->set_dynamic(0);
    openmp->set_threads((int)threads);
    (void)pthread_sigmask(SIG_SETMASK, &all, &mask);
    openmp->parallel(count_body, NULL, threads, 0);
    (void)pthread_sigmask(SIG_SETMASK, &mask, NULL);
    const uint32_t given = atomic_load(&came);
    if (given < threads) openmp->set_threads((int)given);
    return given;
}

/* One parallel region. */
typedef struct openmp_team {
    const cpu_openmp_t *openmp;
    uint32_t parts;
    uint64_t asked; /* threads; libgomp may give fewer (OMP_THREAD_LIMIT) */
    void (*work)(void *context, uint32_t part);
    void *context;
} openmp_team_t;

/* A thread that was asked for has scratch of its own, so whoever comes takes whole shares of them.
 */
static void openmp_body(void *data)
{
    const openmp_team_t *team = data;
    const uint64_t t = (uint64_t)team->openmp->thread_number();
    const uint64_t n = (uint64_t)team->openmp->team_size(), asked = team->asked;
    const uint32_t end = (uint32_t)((t + 1) * asked / n * team->parts / asked);
    for (uint32_t part = (uint32_t)(t * asked / n * team->parts / asked); part < end; part++)
        team->work(team->context, part);
}

/* One part, or one thread, needs no team: waking it costs microseconds. */
void openmp_run(lh_threads_t *threads, uint32_t parts, void (*work)(void *context, uint32_t part),
                void *context)
{
    const lh_stream_t *s = (const lh_stream_t *)threads;
    const uint32_t count = threads->count < parts ? threads->count : parts;
    if (count <= 1) {
        for (uint32_t part = 0; part < parts; part++)
            work(context, part);
        return;
    }
    openmp_team_t team = {&s->device->openmp, parts, threads->count, work, context};
    s->device->openmp.parallel(openmp_body, &team, threads->count, 0);
}

/* From a part of a kernel to a part of a team. */
typedef struct openmp_kernel {
    const lh_prepared_t *k;
    cpu_work_t work;
} openmp_kernel_t;

static void openmp_kernel_part(void *context, uint32_t part)
{
    const openmp_kernel_t *kernel = context;
    kernel->work(kernel->k, part);
}

void cpu_run(lh_stream_t *s, const lh_prepared_t *k, cpu_work_t work, uint32_t parts)
{
    openmp_kernel_t kernel = {k, work};
    openmp_run(&s->threads, parts, openmp_kernel_part, &kernel);
}
