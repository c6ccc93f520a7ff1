/* processors.c - processors ordered by package, core and number, cut into as many pieces as there
 * are ranks: a rank's threads then share caches, and no rank waits for another's share of a core.
 */
#include <cli/processors.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int order(const void *a, const void *b)
{
    const processor_t *x = a, *y = b;
    if (x->package != y->package) return x->package < y->package ? -1 : 1;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

bool processors_share(const cpu_set_t *all, const char *folder, uint32_t index, uint32_t count,
                      cpu_set_t *out)
{
    processor_t list[CPU_SETSIZE];
    uint32_t n = 0;
    for (uint32_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, all))
            list[n++] = (processor_t){topology_read(folder, i, "physical_package_id"),
                                      topology_read(folder, i, "core_id"), i};
    if (n < count) return false;
    qsort(list, n, sizeof(list[0]), order);
    CPU_ZERO(out);
    for (uint32_t i = 0; i < n / count; i++)
        CPU_SET(list[index * (n / count) + i].number, out);
    return true;
}

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

bool processors_of_rank(const job_t *job, uint32_t index, uint32_t count, cpu_set_t *out)
{
    cpu_set_t all;
    return job->launch.bind && sched_getaffinity(0, sizeof(all), &all) == 0 &&
           processors_share(&all, PROCESSORS_FOLDER, index, count, out);
}

void processors_take_share(const job_t *job)
{
    cpu_set_t own;
    const uint32_t count = ranks_beside_rank_0(job);
    if (count > 1 && processors_of_rank(job, 0, count, &own))
        (void)sched_setaffinity(0, sizeof(own), &own);
}
