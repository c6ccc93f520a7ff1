/* machine.c - what the ranks of a machine share: its processors, and its memory.
 *
 * Processors are ordered by package, core and number and cut into as many pieces as there are
 * ranks: a rank's threads then share caches, and no rank waits for another's share of a core. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <base/control_group.h>
#include <base/file.h>
#include <base/memory.h>
#include <base/processors.h>
#include <base/text.h>
#include <launch/machine.h>

/* A processor as it is sorted; number is the kernel's. */
typedef struct processor {
    int package, core;
    uint32_t number;
} processor_t;

/* 0 where nothing is said. */
static int topology_read(const char *folder, uint32_t number, const char *what)
{
    char path[256];
    int value = 0;
    (void)snprintf(path, sizeof(path), "%s/cpu%u/topology/%s", folder, number, what);
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    if (fscanf(f, "%d", &value) != 1) value = 0;
    (void)fclose(f);
    return value;
}

/* Neighbours share most: threads of a core first, then cores of a package. */
static int by_package(const void *a, const void *b)
{
    const processor_t *x = a, *y = b;
    if (x->package != y->package) return x->package < y->package ? -1 : 1;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Equal shares, cut from the sorted list. Processors that are left over go to nobody: one rank with
 * more of them would only wait for the others. */
bool machine_share(const cpu_set_t *all, const char *folder, uint32_t index, uint32_t count,
                   cpu_set_t *out)
{
    processor_t list[CPU_SETSIZE];
    lh_assert(count > 0 && index < count);
    uint32_t n = 0;
    for (uint32_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, all))
            list[n++] = (processor_t){topology_read(folder, i, "physical_package_id"),
                                      topology_read(folder, i, "core_id"), i};
    if (n == 0) return false;
    qsort(list, n, sizeof(list[0]), by_package);
    CPU_ZERO(out);
    if (n < count) CPU_SET(list[(uint64_t)index * n / count].number, out);
    for (uint32_t i = 0; i < n / count; i++)
        CPU_SET(list[index * (n / count) + i].number, out);
    return true;
}

/* How many ranks the INI puts on rank 0's machine; all, where it names no hosts. */
static uint32_t ranks_beside_rank_0(const job_t *job)
{
    const job_site_t *site;
    const job_host_t *first, *host;
    uint32_t count = 0;
    job_rank_place(job, 0, &site, &first);
    for (uint32_t r = 0; r < job_ranks(job); r++) {
        job_rank_place(job, r, &site, &host);
        count += first == NULL || host == NULL || strcmp(first->name, host->name) == 0;
    }
    return count;
}

bool machine_share_of_rank(const job_t *job, uint32_t index, uint32_t count, cpu_set_t *out)
{
    cpu_set_t all;
    return job->launch.bind && sched_getaffinity(0, sizeof(all), &all) == 0 &&
           machine_share(&all, MACHINE_PROCESSORS, index, count, out);
}

/* Alone on its machine the process keeps all processors. */
void machine_take_share(const job_t *job)
{
    cpu_set_t own;
    const uint32_t count = ranks_beside_rank_0(job);
    processors_share(count);
    if (count > 1 && machine_share_of_rank(job, 0, count, &own))
        (void)sched_setaffinity(0, sizeof(own), &own);
}

/* What can't be read is left out: it only makes a sentence longer. */
enum { LINE = 128 };

/* Where a version of control groups keeps its counts, below the group's folder. */
typedef struct group_files {
    const char *kills, *limit;
} group_files_t;

static const group_files_t version_1 = {"memory.oom_control", "memory.limit_in_bytes"};
static const group_files_t version_2 = {"memory.events", "memory.max"};

/* A line of both files and of /proc/vmstat is "oom_kill COUNT". */
static bool kills_read(FILE *f, uint64_t *out)
{
    char line[LINE];
    bool found = false;
    if (f == NULL) return false;
    while (!found && fgets(line, sizeof(line), f) != NULL)
        found = sscanf(line, "oom_kill %" SCNu64, out) == 1;
    (void)fclose(f);
    return found;
}

/* Of the machine, where no group's are counted. */
static void kills_read_all(const char *root, uint64_t *out)
{
    char *path = path_join(root, "proc/vmstat");
    if (path != NULL) (void)kills_read(fopen(path, "re"), out);
    mem_free(path);
}

/* "max", and what version 1 writes for it, is no limit. */
static uint64_t limit_read(FILE *f)
{
    uint64_t limit = UINT64_MAX;
    if (f == NULL) return limit;
    if (fscanf(f, "%" SCNu64, &limit) != 1 || limit >= (uint64_t)INT64_MAX / 2) limit = UINT64_MAX;
    (void)fclose(f);
    return limit;
}

/* The kills of the group, and the narrowest limit of it and those above it, as far as they are
 * mounted. */
static void group_read(control_group_t *g, machine_kills_t *out)
{
    const group_files_t *files = g->unified ? &version_2 : &version_1;
    out->grouped = kills_read(control_group_open(g, files->kills), &out->kills);
    do {
        const uint64_t limit = limit_read(control_group_open(g, files->limit));
        if (limit < out->limit) out->limit = limit;
    } while (control_group_rise(g));
}

void machine_kills_read(const char *root, machine_kills_t *out)
{
    control_group_t group;
    *out = (machine_kills_t){.limit = UINT64_MAX};
    if (control_group_find(root, CONTROLLER_MEMORY, &group)) group_read(&group, out);
    if (!out->grouped) kills_read_all(root, &out->kills);
}

/* No count that grew: nothing is said, as SIGKILL may come from anybody. */
void machine_kills_tell(const machine_kills_t *before, const machine_kills_t *after, text_t *out)
{
    char limit[16];
    if (after->kills <= before->kills || after->grouped != before->grouped) return;
    text_printf(out,
                ", likely for want of memory: the kernel has killed a process of this %s for it",
                after->grouped ? "control group" : "machine");
    if (after->limit == UINT64_MAX) return;
    text_bytes((double)after->limit, limit);
    text_printf(out, ", whose limit is %s", limit);
}
